"""All that serving knows of the broker behind it: Protocols, no code.

`node`, `control` and `runtime` implement them; tests do so over real logs. Serving runs on the data
plane's loop. A method without `async` answers from memory: nothing may hold up that loop. Reads of
a log are made in worker threads, because an index may have to be read, or rebuilt.

Worker threads of serving also call `PartitionHandle.log` (its read side is thread-safe). Everything
else is called only from the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Unpack

from broker.api.answers import LeaderAddress
from broker.api.errors import LiftlogError
from broker.api.placements import Drained, Elected, GivenUp, Placement, ReplicaEnd, RescueEnded, RescueState, Vote
from broker.groups.fencing import CommitVerdict, GroupProgress, OffsetAndEpoch
from broker.groups.offsets import ConsumerOffset
from broker.groups.pins import Pin
from broker.groups.progress import GroupOffset, Read
from broker.metadata.access import Access
from broker.metadata.catalog import StreamInfo
from broker.metadata.groups import Groups
from broker.metadata.producers import NamedProducer
from broker.sinks.ledger import CommitRequest, CommitResult, NamedStage, OpenResult
from broker.sinks.notes import StagePart
from broker.sinks.silence import Holding, Owner, Silence
from broker.sinks.state import SinkState
from broker.storage.inspect.scrub import PIECE_BYTES, Piece
from broker.storage.log import AppendResult, Encodable, PartitionLog
from broker.storage.rows import Measured

Decided = tuple[CommitVerdict, OffsetAndEpoch]
"""What becomes of a step of a group, and the place that is stored."""


class PartitionHandle(Protocol):
    """One partition that this broker leads, or whose committed records it hands out for its leader."""

    @property
    def elsewhere(self) -> Callable[[str], LiftlogError] | None:
        """None: it is led here. Else a reason becomes the error that sends to the leader whoever wants anything but a
        range of records that is there."""

    @property
    def stream(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def incarnation(self) -> str: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def goes_by(self) -> StreamInfo | None:
        """The settings and the state of its stream by which records are taken now; the catalog may have newer ones.
        None: it takes none."""

    @property
    def is_changing(self) -> bool:
        """Whether its log takes records by other ones by now, and `goes_by` holds no more: it may be paused, go on, and
        be paused once more."""

    @property
    def log(self) -> PartitionLog:
        """For reading only."""

    @property
    def end(self) -> int | None:
        """The high watermark, as clients may be told it. None: not known yet, as another broker has led until now."""

    @property
    def fence(self) -> int:
        """The number of the fence that its appends are judged by; 0: there never was one."""

    def lags(self) -> Mapping[str, int]:
        """How many offsets each follower has not told to be durable, by its broker; empty: nobody follows here."""

    def append(
        self,
        batches: Sequence[Encodable],
        *,
        acks: str = "all",
        expected_offset: int | None = None,
        fence: int | None = None,
    ) -> Future[AppendResult]:
        """Append one commit group away from the calling thread.

        Args:
            expected_offset: Append it if it gets this offset; if not, the future has `ExpectationFailed`.
            fence: The number of the fence that the writer holds; if it is not that of the partition, `WriterFenced`.
        Returns:
            Done when committed (`acks=leader`: when durable here; `acks=none`: when appended). Must not be
                cancelled.
        Raises:
            Overloaded: too many appends wait already.
        """

    def scrub(self, offset: int, *, bytes_max: int = PIECE_BYTES) -> Piece | None:
        """Check what is stored here from `offset` on. That this copy lacks a damaged range is remembered; it is lost
        where no other broker has it. From worker threads, too.

        Raises:
            StorageFailed, CorruptLog: the disk cannot read; nothing was marked.
        """

    async def wait_for(self, offset: int, timeout_s: float) -> None:
        """Return when the high watermark is past `offset`, the stream was deleted, or time is up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """The brokers that keep one partition, as the catalog says.

    Attributes:
        leader: Its id, and its HTTP address; None: nobody leads now.
        leader_epoch: -1: none yet.
        replication_factor: So many replicas it has, or is about to have while it is moved.
        min_insync_replicas: So many must have a record before it is committed, now.
        unclean_epoch: The last epoch whose leader was chosen although it may lack committed records; 0: none.
    """

    partition: int
    leader: LeaderAddress | None
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    leader_epoch: int
    replication_factor: int = 1
    min_insync_replicas: int = 1
    unclean_epoch: int = 0


class OffsetsView(Protocol):
    """The newest committed offset of each consumer and partition."""

    def consumers(self) -> list[str]: ...

    def knows(self, consumer: str) -> bool:
        """Whether there are offsets under the name."""

    def get(self, consumer: str) -> list[ConsumerOffset]:
        """In order of stream and partition. Raises UnknownConsumer."""

    async def commit(self, consumer: str, offsets: list[ConsumerOffset]) -> None:
        """Returns when committed."""

    async def forget(self, consumer: str) -> None:
        """Remove all that is stored under the name. Raises UnknownConsumer."""

    def pin(self, name: str) -> Pin:
        """The newest pin of a name; of version 0 if there is none."""

    async def place_pin(self, name: str, text: str, *, version: int) -> tuple[Pin, bool]:
        """Replace a pin if it has this version; returns what is committed then, and whether this call did it."""

    def group_names(self) -> list[str]:
        """Consumer groups that have offsets, sorted."""

    def group_offsets(self, group: str) -> dict[Read, GroupOffset]:
        """The newest record of each partition of a group."""

    async def move_group(
        self, group: str, stream: str, read: Read, epoch: int, decide: Callable[[GroupProgress], Decided]
    ) -> GroupProgress:
        """Store what is decided of a partition of a group, by what is committed; returns where it is then, committed.
        Raises GroupFenced."""


class SinksView(Protocol):
    """Exactly-once sinks. The result of a call is committed."""

    async def open(self, sink: str, owner: str, *, is_one_shot: bool) -> OpenResult:
        """Give an owner its epoch of the sink, which is made if need be. Raises SinkFenced."""

    @property
    def renew_ms(self) -> int:
        """So often an owner shall say that it lives."""

    async def renew(self, sink: str, owner: str) -> int:
        """An owner says that it lives; returns `renew_ms`. Raises UnknownSink, SinkFenced."""

    async def silences(self, owners: Sequence[Owner]) -> Sequence[Silence]:
        """Another broker asks how long each owner was not heard of."""

    async def states(self) -> list[SinkState]:
        """All by name."""

    async def described(self) -> tuple[list[SinkState], Mapping[Owner, tuple[Holding, Silence]]]:
        """All by name, and what is staged for each owner, as far as brokers answer."""

    async def describe(self, sink: str) -> SinkState:
        """Raises UnknownSink."""

    async def stage(self, stream: str, partition: int, batches: Sequence[Measured], **part: Unpack[StagePart]) -> bool:
        """Store one part of a stage; false: it was there. Raises UnknownSink, SinkFenced, StageLost, StagesFull."""

    async def stage_bundle(
        self, stream: str, parts: Sequence[tuple[int, Sequence[Measured], StagePart]]
    ) -> Sequence[int]:
        """Store parts of several partitions; returns those that are led elsewhere. Raises as `stage`.

        They survive the end of this process; those of a broker that is alone may not survive a power cut before their
        commit, which is refused then.
        """

    async def commit(
        self, sink: str, asked: CommitRequest, stages: Sequence[NamedStage], attributes: Mapping[str, str]
    ) -> CommitResult:
        """Raises as `Ledger.judge`; StageLost."""

    async def abort(self, sink: str, stages: Sequence[NamedStage]) -> int:
        """How many stages went."""

    async def end(self, sink: str, owner: str) -> None:
        """Supersede the owner of a one-shot sink. Raises SinkFenced: it has others; InvalidRequest."""

    async def reset(self, sink: str, batch_id: int) -> SinkState:
        """Raises UnknownSink."""

    async def adopt(self, sink: str, checkpoint: str) -> SinkState:
        """Raises UnknownSink."""

    async def delete(self, sink: str) -> None:
        """Raises UnknownSink; why not, while it is unfinished."""

    async def check(self, sink: str, epoch: int) -> None:
        """Another broker asks whether an epoch may stage. Raises UnknownSink, SinkFenced."""

    async def ask(self, stream: str, partition: int, incarnation: str, act: str, what: Mapping[str, Any]) -> Any:
        """Another broker, which coordinates sinks, asks something of the stages of a partition that is led here."""


class AuditRecord(NamedTuple):
    """One record for `__audit`.

    Attributes:
        id: No other record has it.
        key: The principal, as the record's key.
        value: JSON.
    """

    id: str
    key: str
    value: str

    def as_json(self) -> dict[str, str]:
        """As brokers tell each other."""
        return self._asdict()


class AuditView(Protocol):
    """The stream `__audit`, where it is led."""

    async def append(self, records: Sequence[AuditRecord]) -> None:
        """Return when they are committed; of an id that is there already, nothing is appended.

        Raises:
            NotLeader: another broker leads it: `leader`.
            NotReady: nobody does now, or it is not made yet (then `made` is False).
            NotEnoughReplicas, DiskFull, StorageFailed.
        """


class AdminView(Protocol):
    """Calls of an operator by hand. The result of a call has the command in it."""

    def placements(self) -> list[Placement]:
        """All partitions, as this broker's catalog has them."""

    def ends(self) -> list[ReplicaEnd]:
        """The copies on this broker."""

    async def reassign(
        self, stream: str, partition: int | None, replicas: Sequence[str], min_insync_replicas: int | None
    ) -> list[Placement]:
        """Have these brokers keep one partition, or all. Raises UnknownStream, UnknownPartition."""

    async def drain(self, broker: str, *, fewer_replicas: bool) -> Drained:
        """Have others keep what a broker keeps. Raises InvalidRequest: there are too few."""

    async def remove_broker(self, broker: str) -> None:
        """Give a broker up for good. Refused while it lives, or keeps anything."""

    async def elect_preferred(self, stream: str | None, partition: int | None) -> Elected:
        """Have preferred replicas lead where they may; None: all."""

    async def elect_unclean(self, stream: str, partition: int, broker: str, epoch_seen: int) -> Placement:
        """Have a replica lead that may lack committed records."""

    async def accept_loss(self, stream: str, partition: int, *, is_accepted: bool) -> GivenUp:
        """Let what is damaged be empty, of a partition that is led here, where nobody else has it. Raises
        InvalidRequest: it is not accepted, or there is another way."""

    async def rescue(self) -> RescueState:
        """How far a rescue of the catalog is, if one is under way."""

    async def excuse(self, broker: str, stream: str | None, partition: int | None) -> RescueState:
        """Give up what a broker may have; of all, of a stream, or of a partition. Raises InvalidRequest."""

    async def end_rescue(self, brokers: Sequence[str]) -> RescueEnded:
        """Let who has most lead each partition. Raises InvalidRequest: somebody is missing."""


class Watcher(Protocol):
    """The changes that one watcher waits for. `streams`: keys of those that count, besides what concerns all: names of
    streams, or `groups.change_key`."""

    streams: Set[Hashable]

    def told(self) -> None:
        """Wake who waits."""

    async def wait(self, timeout_s: float) -> None:
        """Return when something has changed since this returned last, or time is up."""


class StreamChanges(Protocol):
    """Changes streams."""

    async def create_stream(
        self, name: str, values: Mapping[str, Any], *, beside: Sequence[str] | None = None
    ) -> tuple[StreamInfo, bool]:
        """Returns the stream, and whether it was created now.

        Args:
            beside: Streams of the same queue group. None: whichever there are.
        Raises:
            StreamExists: with `differences`. NotReady: there is another one in its group.
        """

    async def alter_stream(self, name: str, values: Mapping[str, Any]) -> StreamInfo: ...

    async def delete_stream(self, name: str) -> None: ...

    async def set_stream_state(
        self, name: str, *, paused: bool | None = None, read_only: bool | None = None
    ) -> StreamInfo:
        """None leaves as it is. Raises UnknownStream."""

    async def add_partitions(self, name: str, partitions: int) -> StreamInfo:
        """`partitions`: in all. Raises UnknownStream, InvalidSetting."""

    async def raise_fence(self, name: str, incarnation: str, partition: int, after: int) -> int:
        """Fence a partition anew; returns the number. It may not go by it yet (`PartitionHandle.fence`).

        Raises UnknownStream, UnknownPartition, StaleIncarnation; ExpectationFailed: `after` is not its newest `fence`.
        """

    async def trim_stream(self, name: str, incarnation: str, before: Mapping[int, int]) -> dict[int, int]:
        """Let go of what is below an offset of each partition named. Returns the log start offsets.

        Raises UnknownStream, UnknownPartition, StaleIncarnation.
        """

    async def register_producer(self, name: str | None, owner: str | None = None) -> tuple[int, int]:
        """An id and an epoch for an idempotent producer. Raises InvalidName."""

    async def forget_producer(self, name: str) -> None:
        """Forget the name of a producer. Raises UnknownProducer."""

    async def change_access(self, kind: str, values: Mapping[str, Any]) -> int:
        """Carry out one of `access.KINDS`. Returns when it holds here: the version as of then. Raises UnknownToken."""

    async def change_group(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one of `group_commands.KINDS`. Returns when it holds here."""


class Backend(StreamChanges, Protocol):
    """The broker."""

    @property
    def broker_id(self) -> str: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def offsets(self) -> OffsetsView: ...

    @property
    def sinks(self) -> SinksView: ...

    @property
    def admin(self) -> AdminView: ...

    @property
    def audit(self) -> AuditView: ...

    @property
    def feature_level(self) -> int:
        """The level that all brokers of the cluster know."""

    def knows(self, level: int) -> bool:
        """Whether all brokers of the cluster know what came with a feature level; a broker alone knows all."""

    def streams(self, *, internal: bool = False) -> list[StreamInfo]:
        """By name; `internal`: with those that begin with `__`."""

    def stream(self, name: str) -> StreamInfo:
        """Raises UnknownStream."""

    async def look_for(self, stream: str) -> None:
        """Return when this broker knows of a stream, if the cluster does: another broker may just have made it."""

    async def catch_up(self) -> None:
        """Return when this broker knows all that was acknowledged before. Raises NotReady: nobody can tell."""

    async def position(self) -> int:
        """How far the catalog is applied here, as an index that all brokers count alike. What is open here has heard of
        all that is below, and of all that this broker has shown. Raises NotReady: the broker stops."""

    def check_session(self) -> None:
        """Raises NotReady: what this broker knows of the cluster may be old."""

    def partition(self, stream: str, partition: int) -> PartitionHandle:
        """One that is led here. Raises UnknownStream, UnknownPartition, NotLeader, NotReady."""

    def partitions(self, stream: str) -> Sequence[PartitionHandle]:
        """Those of a stream that are led here, in order. Raises UnknownStream."""

    def reader(self, stream: str, partition: int) -> PartitionHandle:
        """One whose committed records are handed out here, led here or not. Raises as `partition`."""

    def nearest(self, stream: str, partition: int, rack: str) -> str | None:
        """The HTTP address of a replica in this rack that a reader of a partition that is led here might ask instead;
        None: there is none, or this broker is as near."""

    def whereabouts(self, stream: str) -> Sequence[Whereabouts]:
        """The places of all partitions of a stream, in order. Raises UnknownStream."""

    def where(self, stream: str, partition: int) -> Whereabouts:
        """The place of one. Raises UnknownStream, UnknownPartition."""

    def producers(self) -> Mapping[str, NamedProducer]:
        """The producers that have names."""

    def producer_name(self, producer_id: int) -> str | None:
        """The name of a producer; None: it has none."""

    @property
    def access(self) -> Access:
        """Tokens and grants, as this broker knows them now."""

    @property
    def groups(self) -> Groups:
        """Consumer groups, as this broker knows them now."""

    def member_heard(self, group: str, member: str, session: int) -> None:
        """A member of a consumer group has said something here: who counts their silence is told."""

    def tell_inbox(self, inbox: str, ack: bytes) -> None:
        """Send Liftbridge's `Ack` of a record on NATS, to the inbox that its publisher named. Nobody hears whether it
        could be sent; where it may not be, it is counted."""

    def check_producer(self, producer_id: int, epoch: int) -> None:
        """Raises UnknownProducer, ProducerFenced."""

    def watching(self) -> AbstractContextManager[Watcher]:
        """Watch streams for a while: say which, look, wait, and look again."""

    async def controller(self) -> str | None:
        """The id of the broker that decides about streams; None: there is none now."""

    async def votes(self) -> list[Vote]:
        """In the group that keeps the catalog, as far as this broker knows."""

    def note_elsewhere(self, streams: Iterable[str]) -> None:
        """These have changed at another broker: wake who watches them."""

    def addresses(self) -> tuple[str, ...]:
        """`http` of each of `brokers`. Each answer names them."""

    def brokers(self) -> list[dict[str, Any]]:
        """Of each: `id`, `http`, `grpc`, `rack`, `session_ms`, `auth_mode`; whether it is `live` or `stopping`."""

    def ready(self) -> tuple[bool, dict[str, str]]:
        """Whether it can serve, and what is missing: name -> what is wrong with it."""

    def warnings(self) -> dict[str, str]:
        """What somebody should look at though it can serve: name -> what is wrong with it."""

    def uncaptured(self, info: StreamInfo) -> list[str]:
        """A sentence for each reason why this broker captures nothing, or not all, of what it leads of a stream."""

    def metrics(self) -> bytes:
        """Prometheus text."""
