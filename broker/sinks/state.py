"""A sink as `__commits` keeps it: one record per change, key = sink id, value = the *whole* state.

The newest record of a key is enough to go on; an empty value says that the sink is gone.

An epoch is the place of its record: offset in `__commits` + 1. Offsets are never given twice, so
neither are epochs, also where a sink was deleted and another one has its name.

Format: docs/reference/storage.md, section "Sinks".
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from broker.api.errors import CorruptLog, UnknownFormatVersion
from broker.api.plain import parse_json
from broker.api.schema import rows_of
from broker.api.stream import COMMITS_STREAM
from broker.api.validation import build

STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRef:
    """One stage that a decision names; `search_from` as in its pin."""

    stream: str
    incarnation: str
    partition: int
    stage: str
    parts: int
    rows: int
    search_from: int

    @property
    def place(self) -> tuple[str, str, int]:
        """The partition."""
        return self.stream, self.incarnation, self.partition


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The content of a batch. `decision` (32 hex digits) names its commit groups."""

    batch_id: int
    decision: str
    owner: str
    epoch: int
    stages: tuple[StageRef, ...]
    rows: int
    digest: str
    attributes: Mapping[str, str]
    decided_us: int

    @cached_property
    def names(self) -> frozenset[str]:
        """Its stages."""
        return frozenset(ref.stage for ref in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkState:
    """One sink.

    Attributes:
        epoch: Lower ones decide nothing any more: that of the owner who committed last, or of a
            fence. 0: nobody has committed.
        owners: All who have opened the sink, with the epoch of each; the oldest are forgotten.
        checkpoint: The owning checkpoint; a commit of another checkpoint is a fork. None: not told yet.
        last: The newest decision; None before the first, and after a reset.
        former: Streams that decisions before the last one named and that one does not, with their incarnations
            (`destinations.N2`).
        is_done: The last decision is in place everywhere.
        batch_id_least: Nothing below is decided: set by a reset.
        is_one_shot: It is for one batch, and vanishes when that is done, or never came.
    """

    sink: str
    epoch: int = 0
    owners: Mapping[str, int] = field(default_factory=dict)
    checkpoint: str | None = None
    last: Decision | None = None
    former: Mapping[str, str] = field(default_factory=dict)
    is_done: bool = True
    batch_id_least: int = 0
    is_one_shot: bool = False
    changed_us: int = 0

    @property
    def is_ended(self) -> bool:
        """Whether it has had owners, and all of them are superseded: nobody decides before another one opens it."""
        return bool(self.owners) and all(epoch < self.epoch for epoch in self.owners.values())

    def names(self, stage: str) -> bool:
        """Whether the last decision names a stage."""
        return self.last is not None and stage in self.last.names

    def encode(self) -> bytes:
        """The record's value."""
        value = {"v": STATE_VERSION, **_fields(self)}
        if not self.former:  # most have none, and earlier releases do not know it
            del value["former"]
        if self.last is not None:
            value["last"] = {**_fields(self.last), "stages": _folded(self.last.stages)}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> SinkState:
        """Raises UnknownFormatVersion, CorruptLog."""
        try:
            found: dict[str, Any] = parse_json(value)
            if (version := found.pop("v")) != STATE_VERSION:
                raise UnknownFormatVersion(f"a sink's state of version {version}, this release reads {STATE_VERSION}")
            if (last := found["last"]) is not None:
                found["last"] = build(Decision, {**last, "stages": tuple(_unfolded(last["stages"]))})
            return build(cls, found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptLog(f"not a sink's state: {value[:200]!r}") from error


def _fields(value: SinkState | Decision) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in fields(value)}


def _folded(stages: Iterable[StageRef]) -> list[Any]:
    """The partition once for all of its stages: a commit may name tens of thousands."""
    return [
        [*place, [[ref.stage, ref.parts, ref.rows, ref.search_from] for ref in refs]]
        for place, refs in itertools.groupby(stages, key=lambda ref: ref.place)
    ]


def _unfolded(value: Any) -> Iterable[StageRef]:
    for stream, incarnation, partition, refs in value:
        for stage, parts, rows, search_from in refs:
            values = (stream, incarnation, partition, stage, parts, rows, search_from)
            yield build(StageRef, dict(zip(_REF_FIELDS, values, strict=True)))


_REF_FIELDS: Final = tuple(one.name for one in fields(StageRef))


def decision_id(sink: str, *, epoch: int, batch_id: int, stages: Sequence[StageRef], decided_us: int) -> str:
    """128 bits in hex that no other decision has: stage ids are unique, and so is the rest. Never 0."""
    text = json.dumps([sink, epoch, batch_id, decided_us, sorted(s.stage for s in stages)])
    found = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return found if int(found, 16) else "1".zfill(32)


def state_rows(states: Sequence[SinkState], *, timestamp_us: int) -> pa.RecordBatch:
    """States as rows of `__commits`."""
    entries = [(s.sink.encode(), s.encode()) for s in states]
    return rows_of(entries, subject=COMMITS_STREAM, timestamp_us=timestamp_us)


def removal_row(sink: str, *, timestamp_us: int) -> pa.RecordBatch:
    """The row that says that a sink is gone."""
    return rows_of([(sink.encode(), None)], subject=COMMITS_STREAM, timestamp_us=timestamp_us)
