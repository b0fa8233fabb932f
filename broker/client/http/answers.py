"""What brokers answer, as frozen dataclasses. Pure.

Keys that this release does not know are ignored, so that newer brokers can say more; a key that is
missing or of a wrong shape is an error that names it. In notebooks the larger ones show as tables.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from broker.api.errors import LiftlogError, from_problem

Json = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """One partition as its leader sees it.

    Attributes:
        leader_id, leader_http: Who leads it; `leader_http` is where to read and append.
        replicas, isr: Broker ids: assigned, in sync.
        log_start_offset: First offset that is still there.
        high_watermark: First offset that is not committed.
        log_end_offset: Next offset to be assigned.
        bytes: Of the log on the leader's disk.
        lost_ranges: Offsets [start, end) that the disk lost.
    """

    partition: int
    leader_id: str
    leader_http: str
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    bytes: int
    segments: int
    lost_ranges: tuple[tuple[int, int], ...]

    @property
    def record_count(self) -> int:
        """Committed offsets that are still there (more than records, once a log is compacted)."""
        return self.high_watermark - self.log_start_offset

    @classmethod
    def of(cls, value: Json) -> PartitionDescription:
        return cls(
            partition=int(value["partition"]),
            leader_id=value["leader"]["id"],
            leader_http=value["leader"]["http"],
            replicas=tuple(value["replicas"]),
            isr=tuple(value["isr"]),
            leader_epoch=int(value["leader_epoch"]),
            log_start_offset=int(value["log_start_offset"]),
            high_watermark=int(value["high_watermark"]),
            log_end_offset=int(value["log_end_offset"]),
            bytes=int(value["bytes"]),
            segments=int(value["segments"]),
            lost_ranges=tuple((int(start), int(end)) for start, end in value["lost_ranges"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDescription:
    """A stream and its partitions.

    Attributes:
        incarnation: Changes when a stream is deleted and created again.
        created_ms: Milliseconds since 1970 UTC.
        settings: As `broker.api.stream.StreamSettings`, by name; a newer broker may know more.
        warnings: What the broker found worth saying about the settings.
        paused: It captures nothing and takes no appends until it is resumed.
        read_only: It answers every record with an error.
        created: In the answer to `create_stream`: whether it was made now, or existed already; else None.
    """

    name: str
    incarnation: str
    created_ms: int
    internal: bool
    settings: Mapping[str, Any]
    warnings: tuple[str, ...]
    partitions: tuple[PartitionDescription, ...]
    paused: bool = False
    read_only: bool = False
    created: bool | None = field(default=None, compare=False)

    @property
    def record_count(self) -> int:
        """As `PartitionDescription.record_count`, over all partitions."""
        return sum(partition.record_count for partition in self.partitions)

    @property
    def state(self) -> str:
        """`open`, `paused`, `read-only` or `paused, read-only`."""
        found = [word for word, holds in (("paused", self.paused), ("read-only", self.read_only)) if holds]
        return ", ".join(found) or "open"

    @property
    def bytes(self) -> int:
        """Of all partitions' logs on their leaders' disks."""
        return sum(partition.bytes for partition in self.partitions)

    @classmethod
    def of(cls, value: Json) -> StreamDescription:
        return cls(
            name=value["name"],
            incarnation=value["incarnation"],
            created_ms=int(value["created_ms"]),
            internal=bool(value["internal"]),
            settings=dict(value["settings"]),
            warnings=tuple(value["warnings"]),
            partitions=tuple(PartitionDescription.of(partition) for partition in value["partitions"]),
            paused=bool(value.get("paused", False)),  # a broker of before had no such states
            read_only=bool(value.get("read_only", False)),
            created=_optional(bool, value.get("created")),
        )

    def _repr_html_(self) -> str:
        return _table(
            f"stream {self.name} on {self.settings.get('subject') or 'no subject'}",
            ("partition", "leader", "log start", "high watermark", "bytes", "segments"),
            (
                (p.partition, p.leader_id, p.log_start_offset, p.high_watermark, p.bytes, p.segments)
                for p in self.partitions
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a consumer is in one partition.

    Attributes:
        offset: The next offset that it will read.
        high_watermark, lag: None when the partition that was read is gone.
        leader_epoch: Of the record before `offset`, -1 unknown.
        incarnation: Of the stream that was read, empty unknown.
        committed_ms: When it said so, milliseconds since 1970 UTC.
    """

    stream: str
    partition: int
    offset: int
    high_watermark: int | None
    lag: int | None
    leader_epoch: int
    incarnation: str
    committed_ms: int
    metadata: str

    @classmethod
    def of(cls, value: Json) -> PartitionLag:
        return cls(
            stream=value["stream"],
            partition=int(value["partition"]),
            offset=int(value["offset"]),
            high_watermark=_optional(int, value["high_watermark"]),
            lag=_optional(int, value["lag"]),
            leader_epoch=int(value["leader_epoch"]),
            incarnation=value["incarnation"],
            committed_ms=int(value["committed_ms"]),
            metadata=value["metadata"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLag:
    """A consumer: its committed offsets and how many records are behind them.

    Attributes:
        lag: Records not read yet, all partitions together.
    """

    consumer: str
    partitions: tuple[PartitionLag, ...]
    lag: int

    @classmethod
    def of(cls, value: Json) -> ConsumerLag:
        return cls(
            consumer=value["consumer"],
            partitions=tuple(PartitionLag.of(partition) for partition in value["partitions"]),
            lag=int(value["lag"]),
        )

    def offsets(self, stream: str) -> dict[int, int]:
        """Committed offset per partition of a stream: what `Client.read(start=…)` takes."""
        return {p.partition: p.offset for p in self.partitions if p.stream == stream}

    def _repr_html_(self) -> str:
        return _table(
            f"consumer {self.consumer}, lag {self.lag}",
            ("stream", "partition", "offset", "high watermark", "lag"),
            ((p.stream, p.partition, p.offset, p.high_watermark, p.lag) for p in self.partitions),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Where a position is.

    Attributes:
        incarnation: None if the stream is not there.
        offset: None: no record is that late, or `error` says why.
        leader_epoch: Of the record before `offset`; -1 none.
        bytes_ahead: From `offset` to the high watermark, roughly.
        error: Why this position could not be resolved; the others were.
    """

    stream: str
    partition: int
    incarnation: str | None
    offset: int | None
    leader_epoch: int
    log_start_offset: int | None
    high_watermark: int | None
    bytes_ahead: int | None
    error: LiftlogError | None = None

    @classmethod
    def of(cls, value: Json) -> Resolved:
        return cls(
            stream=value["stream"],
            partition=int(value["partition"]),
            incarnation=value["incarnation"],
            offset=_optional(int, value["offset"]),
            leader_epoch=int(value["leader_epoch"]),
            log_start_offset=_optional(int, value["log_start_offset"]),
            high_watermark=_optional(int, value["high_watermark"]),
            bytes_ahead=_optional(int, value["bytes_ahead"]),
            error=_optional(lambda problem: from_problem(dict(problem)), value.get("error")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedPartition:
    """What may have changed of a partition."""

    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    leader_id: str
    leader_http: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStream:
    """What may have changed of a stream; partitions by number."""

    incarnation: str
    partitions: Mapping[int, WatchedPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The heads of streams.

    Attributes:
        version: Hand it to the next `Client.watch(since=…)`.
        streams: By name.
    """

    version: int
    streams: Mapping[str, WatchedStream]

    @classmethod
    def of(cls, value: Json) -> Watch:
        streams = {
            name: WatchedStream(
                incarnation=stream["incarnation"],
                partitions={
                    int(number): WatchedPartition(
                        log_start_offset=int(partition["log_start_offset"]),
                        high_watermark=int(partition["high_watermark"]),
                        leader_epoch=int(partition["leader_epoch"]),
                        leader_id=partition["leader"]["id"],
                        leader_http=partition["leader"]["http"],
                    )
                    for number, partition in stream["partitions"].items()
                },
            )
            for name, stream in value["streams"].items()
        }
        return cls(version=int(value["version"]), streams=streams)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """A broker of the cluster and its addresses."""

    id: str
    http: str
    grpc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The cluster.

    Attributes:
        feature_level: What all brokers of the cluster can read.
        controller: Id of the broker that decides about streams.
        version: Of the broker that answered.
    """

    cluster_id: str
    feature_level: int
    controller: str
    version: str
    brokers: tuple[BrokerDescription, ...]

    @classmethod
    def of(cls, value: Json) -> ClusterDescription:
        return cls(
            cluster_id=value["cluster_id"],
            feature_level=int(value["feature_level"]),
            controller=value["controller"],
            version=value["version"],
            brokers=tuple(BrokerDescription(id=b["id"], http=b["http"], grpc=b["grpc"]) for b in value["brokers"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether a broker can serve. True in a condition when it can.

    Attributes:
        missing: What it waits for: name -> what is wrong with it.
    """

    ready: bool
    missing: Mapping[str, str]

    def __bool__(self) -> bool:
        return self.ready

    @classmethod
    def of(cls, value: Json) -> Readiness:
        return cls(ready=bool(value["ready"]), missing=dict(value["missing"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Where records went: offsets [first_offset, next_offset) of one partition.

    `duplicate`: by an earlier try of the same idempotent producer, whose answer was lost.
    """

    partition: int
    first_offset: int
    next_offset: int
    record_count: int
    leader_epoch: int
    duplicate: bool = False

    @classmethod
    def of(cls, value: Json, partition: int) -> Appended:
        return cls(
            partition=partition,
            first_offset=int(value["first_offset"]),
            next_offset=int(value["next_offset"]),
            record_count=int(value["record_count"]),
            leader_epoch=int(value["leader_epoch"]),
            duplicate=bool(value.get("duplicate", False)),
        )


def understand(read: Callable[[Any], T], value: Any, *, where: str) -> T:
    """Read an answer.

    Raises:
        LiftlogError: it is not of the shape that this client knows. Its field `sent` is true: the broker did what it
            was asked to.
    """
    try:
        return read(value)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise LiftlogError(
            f"{where}: an answer that this client does not understand ({type(error).__name__}: {error})",
            address=where,
            sent=True,
        ) from error


def _optional(read: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else read(value)


def _table(title: str, heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    def line(tag: str, cells: Iterable[object]) -> str:
        texts = (
            "" if cell is None else f"{cell:,}" if isinstance(cell, int) else html.escape(str(cell)) for cell in cells
        )
        return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><caption>{html.escape(title)}</caption>{line('th', heads)}{body}</table>"
