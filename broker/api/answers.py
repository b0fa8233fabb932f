"""The answers of brokers, as frozen dataclasses. The client builds them; the OpenAPI document is made of them.

Clients ignore keys that they do not know, so newer brokers can say more. If a key is missing, or has a value of another
type than declared here, the error names it. Notebooks show the larger answers as tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from broker.api.errors import LiftlogError, from_problem
from broker.api.plain import INT64_MAX
from broker.api.stream import NAME_BYTES_MAX, REPLICAS_MAX, StreamSettings
from broker.api.validation import Rule

INT32_MAX: Final = (1 << 31) - 1
LEADER_EPOCH_MAX: Final = (1 << 32) - 1
PIN_LENGTH_MAX: Final = 65_536

Name = Annotated[str, Rule(limit=(1, NAME_BYTES_MAX), is_printable=True)]
PartitionNumber = Annotated[int, Rule(limit=(0, INT32_MAX))]
Offset = Annotated[int, Rule(limit=(0, INT64_MAX))]
Count = Annotated[int, Rule(limit=(0, INT64_MAX))]
LeaderEpoch = Annotated[int, Rule(limit=(-1, LEADER_EPOCH_MAX), doc="-1: unknown or none")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAddress:
    """The leader of a partition. `http`: the address to read from and to append to."""

    id: str
    http: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """One partition as its leader sees it.

    Attributes:
        leader: None: nobody leads it now.
        replicas, isr: Ids of the brokers that are assigned, and of those that are in sync.
        log_start_offset: First offset that is still there.
        high_watermark: First offset that is not committed.
        log_end_offset: Next offset to be assigned.
        bytes: Size of the log on the leader's disk.
        lost_ranges: Offsets [start, end) that the disk lost.
        replica_lag: By the id of each follower's broker: how many offsets it has not told to be on its disk.
        superseded_to: The compaction point. Below it records may be gone for newer ones, all of which stand below it:
            no earlier state of the keys is whole. 0: nothing is gone. None also from a broker of an earlier release.

    Facts that only its leader knows are None where nobody leads, or the leader could not be asked.
    """

    partition: PartitionNumber
    leader: LeaderAddress | None
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    leader_epoch: LeaderEpoch
    log_start_offset: Annotated[int | None, Rule(limit=(0, INT64_MAX), doc="null: not known now, as the next ones")]
    high_watermark: Annotated[int | None, Rule(limit=(0, INT64_MAX))]
    log_end_offset: Annotated[int | None, Rule(limit=(0, INT64_MAX))]
    bytes: Annotated[int | None, Rule(limit=(0, INT64_MAX))]
    segments: Annotated[int | None, Rule(limit=(0, INT64_MAX))]
    lost_ranges: tuple[tuple[Offset, Offset], ...]
    replica_lag: Annotated[
        Mapping[str, Count],
        Rule(
            doc="By broker: offsets that a follower has not told to be on its disk. Empty: none follows, or not known"
        ),
    ] = field(default_factory=dict)
    superseded_to: Annotated[
        int | None,
        Rule(
            limit=(0, INT64_MAX),
            doc="Compaction point: below it records may be gone for newer ones, which stand below it. 0: none is gone;"
            " null: not known now",
        ),
    ] = None

    @property
    def record_count(self) -> int | None:
        """Committed offsets that are still there (more than records, once a log is compacted). None: not known now."""
        if self.high_watermark is None or self.log_start_offset is None:
            return None
        return self.high_watermark - self.log_start_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDescription:
    """A stream and its partitions.

    Attributes:
        incarnation: Changes when a stream is deleted and created again.
        created_ms: Milliseconds since 1970 UTC.
        settings: As `broker.api.stream.StreamSettings`, by name; a newer broker may know more.
        reply_acks_effective: Whether it answers messages: `reply_acks`, unless JetStream does so on its subject.
        replication_factor: So many brokers keep each partition. While replicas are moved or added: so many will.
        min_insync_replicas: So many of them must have a record before it is committed, now. Both are None if nobody
            can tell; of several partitions that differ, the factor is the least and the minimum the greatest.
        warnings: Remarks of the broker about the settings.
        created: In the answer to `create_stream`: True if it was made now, False if it existed. Otherwise None.
    """

    name: Name
    incarnation: str
    created_ms: int
    internal: bool
    paused: Annotated[bool, Rule(doc="It captures nothing and takes no appends until it is resumed")] = False
    read_only: Annotated[bool, Rule(doc="It answers every record with an error")] = False
    settings: Annotated[Mapping[str, Any], Rule(documented_as=StreamSettings)]
    reply_acks_effective: bool = True
    replication_factor: Annotated[int | None, Rule(limit=(1, REPLICAS_MAX), doc="null: not known now")] = None
    min_insync_replicas: Annotated[int | None, Rule(limit=(1, REPLICAS_MAX), doc="null: not known now")] = None
    warnings: tuple[str, ...]
    partitions: tuple[PartitionDescription, ...]
    created: Annotated[bool | None, Rule(is_absent=True, doc="False: it existed, with the same settings")] = field(
        default=None, compare=False
    )

    @property
    def partition_count(self) -> int:
        """As its settings say, where it is offline: then none of `partitions` is told."""
        return len(self.partitions) or int(self.settings["partitions"])

    @property
    def record_count(self) -> int:
        """The sum of `PartitionDescription.record_count` over all partitions of which it is known."""
        return sum(partition.record_count or 0 for partition in self.partitions)

    @property
    def state(self) -> str:
        """`open`, `paused`, `read-only` or `paused, read-only`."""
        found = [word for word, holds in (("paused", self.paused), ("read-only", self.read_only)) if holds]
        return ", ".join(found) or "open"

    @property
    def bytes(self) -> int:
        """Size of all partitions' logs on their leaders' disks."""
        return sum(partition.bytes or 0 for partition in self.partitions)

    def _repr_html_(self) -> str:
        return _table(
            f"stream {self.name} on {self.settings.get('subject') or 'no subject'}",
            ("partition", "leader", "log start", "high watermark", "bytes", "segments"),
            (
                (p.partition, p.leader and p.leader.id, p.log_start_offset, p.high_watermark, p.bytes, p.segments)
                for p in self.partitions
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """All streams, by name."""

    streams: tuple[StreamDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedPartition:
    """The first offset of a log after a trim."""

    partition: PartitionNumber
    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """The answer to a trim."""

    partitions: tuple[TrimmedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleAppended:
    """Records for several partitions that were appended."""

    failed: Annotated[
        tuple[PartitionNumber, ...],
        Rule(doc="Partitions that are led elsewhere, or met an error: their records are to be sent again"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAnswer:
    """The place of appended records: offsets [first_offset, next_offset) of the partition of the request."""

    first_offset: Offset
    next_offset: Offset
    record_count: Count
    leader_epoch: LeaderEpoch
    duplicate: Annotated[bool, Rule(doc="It was appended before, by the same producer as the same sequence")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended(AppendAnswer):
    """The place of appended records: offsets [first_offset, next_offset) of one partition.

    `duplicate`: an earlier try of the same idempotent producer appended them, and its answer was lost.
    """

    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceAnswer:
    """The fence of a partition."""

    fence: Annotated[int, Rule(limit=(0, INT64_MAX), doc="Its number; 0: it never had one")]
    next_offset: Annotated[Offset, Rule(doc="The end of what is committed")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """The id and epoch that an idempotent producer stamps its requests with."""

    producer_id: Annotated[int, Rule(limit=(1, INT64_MAX))]
    epoch: Annotated[int, Rule(limit=(0, LEADER_EPOCH_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo:
    """An idempotent producer that has a name."""

    name: str
    producer_id: Annotated[int, Rule(limit=(1, INT64_MAX))]
    epoch: Annotated[int, Rule(limit=(0, LEADER_EPOCH_MAX))]
    used_ms: Annotated[int, Rule(doc="When it was last registered or known to append; 0: not known")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Producers:
    """The producers that have names."""

    producers: tuple[ProducerInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedPartition:
    """The offsets of a partition that change."""

    log_start_offset: Offset
    high_watermark: Offset
    leader_epoch: LeaderEpoch
    leader: LeaderAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStream:
    """The partitions of a watched stream, by number.

    `unknown`: of these the broker cannot tell now where they end. They are there.
    """

    incarnation: str
    partitions: Mapping[int, WatchedPartition]
    unknown: tuple[PartitionNumber, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The heads of streams.

    Attributes:
        version: Pass it to the next `Client.watch(since=…)`.
        streams: By name.
    """

    version: int
    streams: Mapping[str, WatchedStream]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The place that a position stands for.

    Attributes:
        incarnation: None if the stream is not there.
        error: The reason why this position could not be resolved. The others are not affected.
    """

    stream: str
    partition: int
    incarnation: str | None
    offset: Annotated[int | None, Rule(limit=(0, INT64_MAX), doc="null: no record that late, or an error")]
    leader_epoch: Annotated[int, Rule(limit=(-1, LEADER_EPOCH_MAX), doc="Epoch of the record before it; -1: none")]
    log_start_offset: Offset | None
    high_watermark: Offset | None
    bytes_ahead: Annotated[int | None, Rule(limit=(0, INT64_MAX), doc="Up to the high watermark, roughly")]
    timestamp_us: Annotated[
        int | None, Rule(doc="Newest timestamp up to the batch that has it; null: it is the high watermark")
    ] = None
    age_ms: Annotated[
        int | None,
        Rule(limit=(0, INT64_MAX), doc="Age of that timestamp by its leader's clock; 0: of the future"),
    ] = None
    error: Annotated[LiftlogError | None, Rule(is_absent=True)] = None

    def __post_init__(self) -> None:
        if self.error is not None and isinstance(self.error, Mapping):  # an abstract class is slow to ask
            object.__setattr__(self, "error", from_problem(dict(self.error)))
        elif not isinstance(self.error, LiftlogError | None):
            raise ValueError("the error of a position is no problem")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPositions:
    """The places of positions, in the order of the request."""

    positions: tuple[Resolved, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """The committed offset of a consumer in one partition, and its lag.

    Attributes:
        offset: The next offset that it will read.
        leader_epoch: That of the record before `offset`; -1: unknown.
        incarnation: That of the stream that was read; empty: unknown.
        committed_ms: Time of the commit, milliseconds since 1970 UTC.
    """

    stream: Name
    partition: PartitionNumber
    offset: Offset
    high_watermark: Annotated[int | None, Rule(limit=(0, INT64_MAX), doc="null: the partition that was read is gone")]
    lag: Annotated[int | None, Rule(limit=(0, INT64_MAX), doc="High watermark - offset, in records")]
    behind_ms: Annotated[
        int | None,
        Rule(limit=(0, INT64_MAX), doc="Age of the first record not read, to within a batch; 0: none; null: unknown"),
    ] = None
    unknown: Annotated[
        bool,
        Rule(
            doc="Its leader cannot be asked now, or it could not open the stream; `high_watermark` and `lag` are null"
        ),
    ] = False
    leader_epoch: LeaderEpoch
    incarnation: str
    committed_ms: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLag:
    """A consumer: its committed offsets and how many records are behind them."""

    consumer: Name
    partitions: tuple[PartitionLag, ...]
    lag: Annotated[int, Rule(limit=(0, INT64_MAX), doc="Sum over all partitions, in records")]

    def offsets(self, stream: str) -> dict[int, int]:
        """Committed offset per partition of a stream: what `Client.read(start=…)` takes."""
        return {p.partition: p.offset for p in self.partitions if p.stream == stream}

    def _repr_html_(self) -> str:
        return _table(
            f"consumer {self.consumer}, lag {self.lag}",
            ("stream", "partition", "offset", "high watermark", "lag", "behind (s)"),
            (
                (p.stream, p.partition, p.offset, p.high_watermark, p.lag, _seconds(p.behind_ms))
                for p in self.partitions
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumers:
    """All consumers, by name."""

    consumers: tuple[ConsumerLag, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommitted:
    """The number of offsets that were stored."""

    committed: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedText:
    """A pin: a text under a name."""

    text: str
    version: Annotated[int, Rule(limit=(0, INT64_MAX), doc="0: there is none")]
    placed: Annotated[bool, Rule(doc="Whether this request has placed it")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether a broker can serve. True in a condition when it can.

    Attributes:
        missing: Name of each thing that the broker waits for -> what is wrong with it.
        warnings: What somebody should look at though the broker can serve, likewise.
    """

    ready: bool
    missing: Mapping[str, str]
    warnings: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """The process answers."""

    status: Literal["live"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An RFC 9457 problem. Further keys hold the facts: parameter, value, limit, and others."""

    type: str
    title: str
    status: Annotated[int, Rule(limit=(400, 599))]
    detail: str
    reason: str


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _table(title: str, heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    import html  # for notebooks alone

    def line(tag: str, cells: Iterable[object]) -> str:
        texts = (
            "" if cell is None else f"{cell:,}" if isinstance(cell, int) else html.escape(str(cell)) for cell in cells
        )
        return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><caption>{html.escape(title)}</caption>{line('th', heads)}{body}</table>"
