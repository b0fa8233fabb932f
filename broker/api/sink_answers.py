"""Answers about exactly-once sinks and their stages, as frozen dataclasses. Rules: `answers.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from broker.api.answers import Count, Name, Offset, PartitionNumber
from broker.api.plain import INT64_MAX
from broker.api.validation import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Records that are on the broker's disk and not visible yet. Pickles; a driver collects those of its tasks."""

    stream: Name
    partition: PartitionNumber
    stage: str
    parts: Count
    rows: Count

    def as_json(self) -> dict[str, Any]:
        return {"stream": self.stream, "partition": self.partition, "stage": self.stage, "parts": self.parts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The last decision of a sink. `complete`: every record of it is visible."""

    batch_id: Offset
    decision: Annotated[str, Rule(doc="In the header of its batches")]
    owner: str
    epoch: Offset
    rows: Count
    digest: str
    attributes: Mapping[str, str]
    decided_ms: int
    complete: Annotated[bool, Rule(doc="false: being finished")]
    stages: tuple[Stage, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFor:
    """What is staged for one owner of a sink, and not committed yet, in all partitions."""

    owner: Annotated[str | None, Rule(doc="null: the sink has forgotten it")]
    epoch: Offset
    stages: Count
    byte_count: Count
    pinned: Annotated[int, Rule(limit=(0, INT64_MAX), doc="Stages that a commit has named")]
    silent_ms: Annotated[int, Rule(limit=(0, INT64_MAX), doc="So long it was not heard of")]
    is_silent: Annotated[bool, Rule(doc="Its stages go when others need the room")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDescription:
    """A sink, and what was decided last."""

    sink: Name
    current_epoch: Annotated[
        int,
        Rule(
            limit=(0, INT64_MAX),
            doc="The epoch of the owner who committed last, or of a reset. Lower ones decide nothing. 0: none yet",
        ),
    ]
    checkpoint: Annotated[str | None, Rule(doc="Commits of another one are `sink_forked`. null: not known yet")]
    one_shot: Annotated[bool, Rule(doc="It vanishes when its one batch is done, or never came")]
    least_batch_id: Annotated[int, Rule(limit=(0, INT64_MAX), doc="Set by a reset: nothing below is decided")]
    changed_ms: int
    last: Annotated[Decided | None, Rule(doc="The last decision; null: none since the sink was made or reset")]
    destinations: Annotated[
        Mapping[str, str] | None,
        Rule(
            is_absent=True, doc="Streams that it wrote since a reset, with the incarnation that had its last rows there"
        ),
    ] = None
    staged: Annotated[
        tuple[StagedFor, ...] | None, Rule(is_absent=True, doc="What is staged for it, if that was asked for")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sinks:
    """All sinks, by name."""

    sinks: tuple[SinkDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOpened(SinkDescription):
    """A sink that was opened. `epoch`: the owner's, for stages and commits."""

    owner: str = ""
    epoch: Annotated[int, Rule(limit=(0, INT64_MAX), doc="The owner's, for stages and commits")]
    renew_ms: Annotated[int, Rule(limit=(0, INT64_MAX), doc="So often it shall renew. 0: it need not")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRenewed:
    """When an owner shall renew again."""

    renew_ms: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCommitted(SinkDescription):
    """A sink after a commit."""

    outcome: Literal["committed", "already_done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """One part of a stage. `stored` false: it was there."""

    record_count: Count
    stage: str = ""
    part: Count = 0
    stored: Annotated[bool, Rule(doc="false: it was there")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleStaged:
    """A bundle of parts that was stored."""

    elsewhere: Annotated[
        tuple[PartitionNumber, ...], Rule(doc="Other brokers lead these partitions: their parts are not stored")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkAborted:
    """The number of stages that were dropped."""

    dropped: Count
