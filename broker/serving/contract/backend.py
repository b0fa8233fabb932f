"""All that serving knows of the broker behind it: Protocols, no code.

`broker.runtime` implements them; tests implement them over real logs. Serving runs on the data
plane's loop. A method without `async` answers from memory: nothing may hold up that loop. Reads of a
log are made in worker threads, because an index may have to be read, or rebuilt.

Who calls from where: `PartitionHandle.log` also from worker threads of serving (its read side is
thread-safe), everything else only from the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from broker.groups.offsets import ConsumerOffset
from broker.metadata.catalog import StreamInfo
from broker.sinks.ledger import Commit, Committed, NamedStage, Opened
from broker.sinks.state import SinkState
from broker.storage.inspect.scrub import PIECE_BYTES, Piece
from broker.storage.log import AppendResult, Encodable, PartitionLog
from broker.storage.rows import RowBatch


class PartitionHandle(Protocol):
    """One partition that this broker leads."""

    @property
    def stream(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def incarnation(self) -> str: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def log(self) -> PartitionLog:
        """For reading only."""

    def append(self, batches: Sequence[Encodable], *, acks: str = "all") -> Future[AppendResult]:
        """Append one commit group away from the calling thread.

        Returns:
            Done when durable (`acks=none`: when appended). Must not be cancelled.
        Raises:
            Overloaded: too many appends wait already.
        """

    def scrub(self, offset: int, *, bytes_max: int = PIECE_BYTES) -> Piece | None:
        """Check what is stored from `offset` on; what is damaged is lost from then on. From worker threads, too.

        Raises:
            StorageFailed, CorruptLog: the disk cannot read; nothing was marked.
        """

    async def wait_for(self, offset: int, timeout_s: float) -> None:
        """Return when the high watermark is past `offset`, the stream was deleted, or time is up."""


class OffsetsView(Protocol):
    """The newest committed offset of each consumer and partition."""

    def consumers(self) -> list[str]: ...

    def get(self, consumer: str) -> list[ConsumerOffset]:
        """In order of stream and partition. Raises UnknownConsumer."""

    async def commit(self, consumer: str, offsets: list[ConsumerOffset]) -> None:
        """Returns when durable."""

    async def forget(self, consumer: str) -> None:
        """Remove all that is stored under the name. Raises UnknownConsumer."""


class SinksView(Protocol):
    """Exactly-once sinks. What a call returns is durable."""

    async def open(self, sink: str, owner: str, *, is_one_shot: bool) -> Opened:
        """Give an owner its epoch of the sink, which is made if need be. Raises SinkFenced."""

    async def states(self) -> list[SinkState]:
        """All by name."""

    async def describe(self, sink: str) -> SinkState:
        """Raises UnknownSink."""

    async def stage(
        self,
        stream: str,
        partition: int,
        batches: Sequence[RowBatch],
        *,
        sink: str,
        epoch: int,
        stage: str,
        part: int,
        is_last: bool,
    ) -> bool:
        """Store one part of a stage; false: it was there. Raises UnknownSink, SinkFenced, StageLost, StagesFull."""

    async def commit(
        self, sink: str, asked: Commit, stages: Sequence[NamedStage], attributes: Mapping[str, str]
    ) -> Committed:
        """Raises as `Ledger.judge`; StageLost."""

    async def abort(self, sink: str, stages: Sequence[NamedStage]) -> int:
        """How many stages went."""

    async def reset(self, sink: str, batch_id: int) -> SinkState:
        """Raises UnknownSink."""

    async def adopt(self, sink: str, checkpoint: str) -> SinkState:
        """Raises UnknownSink."""

    async def delete(self, sink: str) -> None:
        """Raises UnknownSink; why not, while it is unfinished."""


class Backend(Protocol):
    """The broker."""

    @property
    def broker_id(self) -> str: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def version_now(self) -> int:
        """Grows with every change of a high watermark, a log start offset or the set of streams,
        and over restarts."""

    @property
    def offsets(self) -> OffsetsView: ...

    @property
    def sinks(self) -> SinksView: ...

    def streams(self, *, internal: bool = False) -> list[StreamInfo]:
        """By name; `internal`: with those that begin with `__`."""

    def stream(self, name: str) -> StreamInfo:
        """Raises UnknownStream."""

    def partition(self, stream: str, partition: int) -> PartitionHandle:
        """Raises UnknownStream, UnknownPartition."""

    def partitions(self, stream: str) -> Sequence[PartitionHandle]:
        """All of a stream in order. Raises UnknownStream."""

    async def create_stream(self, name: str, values: Mapping[str, Any]) -> tuple[StreamInfo, bool]:
        """Returns the stream, and whether it was created now. Raises StreamExists with `differences`."""

    async def alter_stream(self, name: str, values: Mapping[str, Any]) -> StreamInfo: ...

    async def delete_stream(self, name: str) -> None: ...

    async def set_stream_state(
        self, name: str, *, paused: bool | None = None, read_only: bool | None = None
    ) -> StreamInfo:
        """None leaves as it is. Raises UnknownStream."""

    async def add_partitions(self, name: str, partitions: int) -> StreamInfo:
        """`partitions`: in all. Raises UnknownStream, InvalidSetting."""

    async def trim_stream(self, name: str, incarnation: str, before: Mapping[int, int]) -> dict[int, int]:
        """Let go of what is below an offset of each partition named. Returns the log start offsets.

        Raises UnknownStream, UnknownPartition, StaleIncarnation.
        """

    async def register_producer(self, name: str | None) -> tuple[int, int]:
        """An id and an epoch for an idempotent producer. Raises InvalidName."""

    def check_producer(self, producer_id: int, epoch: int) -> None:
        """Raises UnknownProducer, ProducerFenced."""

    async def wait_for_change(self, since: int, timeout_s: float) -> int:
        """Return `version_now` once it is greater than `since`, or when time is up."""

    def brokers(self) -> list[dict[str, Any]]:
        """`id`, `http`, `grpc` of each."""

    def ready(self) -> tuple[bool, dict[str, str]]:
        """Whether it can serve, and what is missing: name -> what is wrong with it."""

    def metrics(self) -> bytes:
        """Prometheus text."""
