"""One partition that this broker leads: the driver of its core (`broker.replication.leader`).

    append ──► log ──Appended──► core ──Sync──► this thread, a row or the pool ──Synced──► core ──► Commit, Wake, Answer

The core decides when a record is committed and who is told what; this appends and has the log fsynced, and tells the
core of both. The log is the replica's (replica.py). One lock is held over an append and its event, and over a recovery
and its event. Effects that the core wants are done when it is free again (effects.py).

P1  A callback is told of success only when the core says so (its L2 and L3).
P2  After a failed write or fsync the log is recovered before the next append; recovery may drop what was not durable.
P3  A partition that refuses records, because its stream is paused, read-only or deleted, refuses them for everybody,
    with an error of its own for each append. Reads go on, but for a deleted one. A group that was decided before
    (`decided`, of a sink) was accepted then, and is still appended to a paused or read-only stream.
P4  A caller that appends may offer to sync as well (`here`): to wake another thread and be woken by it takes half as
    long as a quick fsync. It is the pool's while the pool is at it, after an fsync that took longer than `QUICK_S`, and
    always where other brokers keep it, too: they are told of it first, and fsync it at the same time.
P5  Partitions that are synced in a row keep nobody waiting (row_sync.py).
P6  An append that was judged under a leader epoch, or searched for, is done under that one or not at all. (Else a
    leader that searched, was deposed and leads again appends what another leader has appended meanwhile.)
P7  Once it goes by a pause, or is read-only, nothing is appended that was judged before: not by who waits for the lock.
P20  Parts of it know it by weak references, so that it is gone, with its log, when the last who uses it lets go: no
    search for cycles counts what its tables take.
P21  An append that names a fence is judged by that of the partition, under the lock. So once it goes by a fence, all
    that was appended under those before stands below the log end. A repeat is a repeat all the same. So are records
    from NATS that name one, each for itself (`settling.G1`).

A partition that other brokers keep as well is a `replicated.ReplicatedPartition`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from functools import partial

from broker.api.errors import (
    LiftlogError,
    NotLeader,
    NotReady,
    ReadOnly,
    StreamPaused,
    WriterFenced,
)
from broker.api.plain_rows import PlainBatch
from broker.api.stream import StreamSettings
from broker.common.metrics import FSYNC_SECONDS
from broker.common.weak_methods import WeakCall
from broker.metadata.catalog import StreamInfo
from broker.metadata.partition import PartitionState
from broker.node.partitions.acks import OWN, OnDurable, Ticket, gone
from broker.node.partitions.effects import Effects
from broker.node.partitions.queued_appends import QueuedAppends
from broker.node.partitions.replica import Replica
from broker.node.partitions.row_sync import NO_ROW, RowState, RowSync
from broker.node.partitions.sync import Outcome, SyncExecutor, SyncRow
from broker.replication.events import (
    Acks,
    Altered,
    Appended,
    Closed,
    Effect,
    Led,
    Recovered,
    Sync,
    Synced,
    SyncFailed,
    Tick,
)
from broker.replication.leader import LEADING, Leader
from broker.storage.inspect.scrub import PIECE_BYTES, Piece
from broker.storage.log import AppendResult, Encodable, StoredGroup
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogSettings

__all__ = ["Outcome", "Partition"]

log = logging.getLogger(__name__)

QUICK_S = 0.002
"""See P4."""
NOWHERE = -1
"""No record gets this offset."""
ME = "self"
"""This broker, where no other one has to know its name."""


class Partition:
    """The driver of one partition's core. Thread-safe.

    Args:
        replica: This broker's log of the partition.
        leader_epoch: Under which it is led from the start; -1: not before `lead`.
        core: Its core, which knows this broker's id; None: a new one.
        tell, to_others: As `Effects` takes them.

    Attributes:
        fence: The number of the newest one that it goes by (P21).
        has_followers: It is led, and other brokers keep it too: to be durable here is not to be committed.
    """

    has_followers = False
    elsewhere: Callable[[str], LiftlogError] | None = None
    """As `PartitionHandle.elsewhere`: records are handed out here while it is led here."""

    def __init__(
        self,
        info: StreamInfo,
        replica: Replica,
        *,
        pool: SyncExecutor,
        appender: Executor,
        leader_epoch: int = -1,
        core: Leader | None = None,
        tell: Callable[[Ticket, Outcome], None] | None = None,
        to_others: Callable[[Effect], None] | None = None,
    ) -> None:
        self.stream = replica.stream
        self.partition = replica.partition
        self.incarnation = replica.incarnation
        self.replica = replica
        self.log = replica.log
        self.fsync_each_batch = info.settings.fsync == "batch"
        self.fsync_interval_ms = info.settings.fsync_interval_ms
        self._state = replica.state
        self._pool = pool
        self._effects = Effects(replica, submit=WeakCall(self._submit), tell=tell, to_others=to_others)  # P20
        self._lock = threading.RLock()
        self._info = info
        self._is_closed = info.paused or info.read_only
        self.fence = info.fence_of(self.partition)
        self._core = core or Leader(ME)
        self._told_of = info  # the settings that the core knows
        self._sync_queued = False  # in the pool, or at it here
        self._row: RowSync | None = None  # made when it is first synced in a row
        self._queued = QueuedAppends(replica, WeakCall(self.append_now), appender)
        self._core.step(self._altered())
        if leader_epoch >= 0:
            self.lead(leader_epoch)

    @property
    def removed(self) -> bool:
        """The stream was deleted."""
        return self.replica.removed

    @property
    def settings(self) -> StreamSettings:
        """The stream's."""
        return self._info.settings

    @property
    def goes_by(self) -> StreamInfo:
        """As `PartitionHandle.goes_by`."""
        return self._info

    @property
    def is_changing(self) -> bool:
        """As `PartitionHandle.is_changing`."""
        return False

    @property
    def leader_epoch(self) -> int:
        """Under which it is led, or was led last; -1: it never was."""
        return self._core.epoch

    @property
    def end(self) -> int | None:
        """The high watermark, as clients may be told it; None: it is not known yet."""
        return self._state.high_watermark

    def lags(self) -> dict[str, int]:
        """As `PartitionHandle.lags`: nobody follows a broker that is alone."""
        return {}

    @property
    def generation(self) -> int:
        """Another one after each recovery of the log: what was appended before, and not durable, may be lost."""
        return self._core.generation

    def lead(self, leader_epoch: int, state: PartitionState | None = None) -> None:
        """Lead it from now on. All who wait since an earlier epoch are told that this is over.

        Args:
            state: The others that keep it, by the catalog; None: nobody.
        Raises:
            NotLeader: the log knows a later epoch.
            DiskFull, StorageFailed: an incomplete group could not be cut; it is not led.
        """
        me = self._core.me
        state = state or PartitionState(replicas=(me,), isr=(me,))
        with self._lock:
            self.log.lead(leader_epoch)
            high_watermark, group_ends = self._state.open_groups()
            log_end = self._state.log_end_offset
            effects = self._core.step(
                Led(
                    epoch=leader_epoch,
                    replicas=state.replicas,
                    isr=state.isr,
                    min_insync_replicas=state.min_insync_replicas,
                    partition_epoch=state.partition_epoch,
                    high_watermark=high_watermark,
                    durable_end=self._state.durable_end,
                    log_end=log_end,
                    group_ends=group_ends if group_ends and group_ends[-1] == log_end else (),
                    log_start=self.log.checkpoints.kept_start_offset,
                )
            )
        self._effects.do(effects)

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"

    def append(
        self,
        batches: Sequence[Encodable],
        *,
        acks: str = "all",
        leader_epoch: int | None = None,
        expected_offset: int | None = None,
        fence: int | None = None,
    ) -> Future[AppendResult]:
        """As `QueuedAppends.append`."""
        return self._queued.append(
            batches, acks=acks, leader_epoch=leader_epoch, expected_offset=expected_offset, fence=fence
        )

    def alter(self, info: StreamInfo) -> None:
        """Take over altered settings and state. Behind it nothing is appended that they refuse (P7)."""
        with self._lock:
            self._info = info
            self._is_closed = info.paused or info.read_only
            self.fence = info.fence_of(self.partition)
        self.fsync_each_batch = info.settings.fsync == "batch"
        self.fsync_interval_ms = info.settings.fsync_interval_ms
        self.log.remembered.update_settings(LogSettings.of(info.settings, self.log.state.settings))
        self.replica.note_change()  # the cleaner looks at what moved; the core hears of it at its next event

    def _altered(self) -> Altered:
        settings = self._info.settings
        return Altered(
            min_insync_replicas=1,
            fsync_each_batch=settings.fsync == "batch",
            fsync_interval_ms=settings.fsync_interval_ms,
        )

    def _news(self) -> tuple[Effect, ...]:
        """With the lock held: tell the core of settings that it does not know yet."""
        if self._told_of is self._info:
            return ()
        self._told_of = self._info
        return self._core.step(self._altered())

    def append_now(
        self,
        batches: Sequence[Encodable] | StoredGroup,
        on_durable: OnDurable,
        *,
        acks: Acks = Acks.ALL,
        also: Sequence[tuple[OnDurable, Acks]] = (),
        decided: bool = False,
        here: bool = False,
        row: SyncRow | None = None,
        leader_epoch: int | None = None,
        sorted_by: int = 0,
        expected_offset: int | None = None,
        fence: int | None = None,
    ) -> AppendResult:
        """Append in the calling thread, as one commit group. It is stored when `on_durable` says so.

        Args:
            on_durable: Called once, from another thread or before this returns, with what was appended and the high
                watermark or the error (P1).
            acks: The moment that `on_durable` waits for.
            also: Others who are called likewise, and before it, each at the moment that is named with him.
            decided: The group of a sink's decision (P3).
            here: It may be synced before this returns (P4).
            row: It is synced with that, which the caller submits, as nobody awaits it (P5).
            leader_epoch: Under which it was judged that this is to be appended (P6); None: nothing was judged.
            sorted_by: So many partitions there were when these records were given to this one (`replicated.P15`);
                0: it does not matter.
            expected_offset: As `PartitionLog.append` takes it; not of a `StoredGroup`.
            fence: The number of the fence that the writer holds; None: it holds none, and is let in (P21).
        Raises:
            NotLeader: the partition has another leader epoch by now; nothing was appended.
            NotReady: there are more partitions by now, or another broker leads soon; or this one has no session, or
                does not serve yet (`acks.P8`, `replicated.P11`). Nothing was appended.
            NotEnoughReplicas: `replicated.P9`.
            DiskFull, StorageFailed: nothing was appended.
            ReadOnly, StreamPaused: the stream takes none.
            WriterFenced: P21; nothing was appended.
            UnknownStream: it was deleted.
        """
        replica, core = self.replica, self._core
        if core.role is LEADING and not replica.removed:
            self._check_ready()
        if self._is_closed or replica.removed:
            self.check_open(decided=decided)
        if replica.room is not None:
            replica.room.check(_size(batches))
        if core.role is not LEADING:
            self._refuse(leader_epoch)  # at once: who begins to lead holds the lock, and reads
        now_us = replica.elapsed_us()
        before: tuple[Effect, ...] = ()
        failure: LiftlogError | None = None
        durable_end = -1
        try:
            with self._lock:
                epoch = core.epoch
                if core.role is not LEADING or (leader_epoch is not None and leader_epoch != epoch):
                    self._refuse(leader_epoch)
                if self._is_closed:  # P7
                    self.check_open(decided=decided)
                self._judge_again(sorted_by)
                if self._told_of is not self._info:
                    before = self._news()
                if self._state.failure is not None and not replica.removed:
                    before += self._recover(now_us)
                is_fenced = fence is not None and fence != self.fence
                if isinstance(batches, StoredGroup):
                    assert fence is expected_offset is None, "it was decided"
                    result = self.log.append_group(batches, leader_epoch=epoch, now_us=now_us)
                else:
                    result = self.log.append(
                        batches,
                        leader_epoch=epoch,
                        now_us=now_us,
                        wall_us=replica.wall_us(),
                        expected_offset=NOWHERE if is_fenced else expected_offset,
                        fence=self.fence,
                    )
                    if is_fenced and not result.has_records:
                        raise WriterFenced(f"{self}: fence {fence} is not the one that it has; nothing was appended")
                first, end, _, is_repeat = result
                if (
                    here
                    and not self.has_followers
                    and replica.sync_took_s <= QUICK_S
                    and self.fsync_each_batch
                    and not (core.is_syncing or self._sync_queued)
                ):
                    synced = replica.sync()
                    if isinstance(synced, int):
                        durable_end = synced
                    else:
                        failure = synced
                group_ends = () if is_repeat else (end,)
                awaited = [
                    (Ticket(tell, result, epoch, level, sorted_by > 0 and level is not OWN), level)
                    for tell, level in (*also, (on_durable, acks))
                ]
                effects = core.step(Appended(first, end, group_ends, tuple(awaited), durable_end))
                for ticket, _ in awaited:
                    if ticket.is_sorted:
                        self._began_to_wait()
                if failure is not None:
                    told = core.step(SyncFailed(core.generation, failure))
                    effects = (*(effect for effect in effects if type(effect) is not Sync), *told)
                elif not effects and row is None and self._row is not None and self._row.state is not NO_ROW:  # P5
                    self._row.state = NO_ROW
                    effects = (Sync(core.generation),)
        except (LiftlogError, OSError):
            self._effects.do(before)
            replica.refused()
            self.look_at_failure()
            self.check_open(decided=decided)  # deleted meanwhile: then that is the reason
            raise
        except BaseException:
            self._effects.do((*before, *self._caught_up()))
            raise
        if before:
            self._effects.do(before)
        try:
            replica.appended(result)
        except Exception:  # what it counts and begins is ours alone: it is stored, and somebody waits for his answer
            log.exception("partition.appended_bug partition=%s", self)
        if not effects:
            return result
        if row is not None and type(effects[0]) is Sync:
            in_row = self._row = self._row or RowSync(replica, self._lock)
            in_row.state = RowState.WAITS
            row.add(partial(in_row.sync, self._synced), partial(in_row.synced, self._tell))
        else:
            self._effects.do(effects)
        if durable_end >= 0:
            FSYNC_SECONDS.observe(replica.sync_took_s)
        elif failure is not None:
            self._log_failure(failure)
        return result

    def _check_ready(self) -> None:
        """Without the lock: what needs no log to be refused."""

    def look_at_failure(self) -> None:
        """Something may have failed the log: here the next append recovers it (P2)."""

    def _judge_again(self, sorted_by: int) -> None:
        """With the lock held, before anything is written: what was judged without it may be so no more."""
        if sorted_by and sorted_by != self._info.settings.partitions:
            raise NotReady(f"{self}: sorted by {sorted_by} partitions, and there is another number of them now")

    def _began_to_wait(self) -> None:
        """With the lock held: somebody whose records were sorted by a number of partitions waits to be told."""

    def _refuse(self, leader_epoch: int | None) -> None:
        """Nothing may be appended (P6)."""
        if self.removed:
            raise gone(self.replica)
        if self._core.role is not LEADING:
            raise NotLeader(f"{self}: this broker does not lead it")
        raise NotLeader(f"{self}: decided in leader epoch {leader_epoch}, the leader epoch is now {self._core.epoch}")

    def _submit(self) -> None:
        with self._lock:
            queued, self._sync_queued = self._sync_queued, True
        if not queued:
            self._pool.submit(self)

    def commit_all(self) -> int:
        """Recover the log if it failed, and make all that it holds durable and visible. Returns the high watermark.

        Raises:
            UnknownStream: the stream was deleted.
            StorageFailed, DiskFull: what the log holds beyond its high watermark is not known.
        """
        self.check_open(decided=True)
        if self.log.state.failure is not None:
            with self._lock:
                effects = self._recover(self.replica.elapsed_us())
            self._effects.do(effects)
        event = self._synced()
        self._tell(event)
        if isinstance(event, SyncFailed):
            self.check_open(decided=True)  # deleted meanwhile, and the log closed: then that is the reason
            raise event.error
        self.replica.note_change()
        return self.log.state.high_watermark

    def scrub(self, offset: int, *, bytes_max: int = PIECE_BYTES) -> Piece | None:
        """As `Replica.scrub`."""
        return self.replica.scrub(offset, bytes_max=bytes_max)

    @property
    def minds_time(self) -> bool:
        """Whether `sync_if_due` has something to do, now and then: also once after `fsync = interval` was altered."""
        return not self.fsync_each_batch or self._told_of is not self._info

    @staticmethod
    def who_mind_time(partitions: Iterable[Partition]) -> list[Partition]:
        """Those of them that mind time. Nearly all of ten thousand do not: they are looked at without a call for each,
        as it is each second."""
        maybe = [each for each in partitions if not each.fsync_each_batch or each._told_of is not each._info]
        return [each for each in maybe if each.minds_time]

    def sync_if_due(self, now_s: float) -> int:
        """With `fsync = interval`: have it synced if that is due. Returns the interval in milliseconds. Where there is
        nothing to do it costs next to nothing.

        A log that has failed is recovered: readers have seen its records, and the next append may be far.
        """
        state = self._state
        if state.durable_end == state.log_end_offset and state.failure is None and self._told_of is self._info:
            return self.fsync_interval_ms
        effects: tuple[Effect, ...] = ()
        with self._lock:
            if self.log.state.failure is not None and not self.removed:
                try:
                    effects = self._recover(self.replica.elapsed_us())
                except LiftlogError as error:
                    self._log_failure(error)
                    return self.fsync_interval_ms
            effects = (*effects, *self._news(), *self._time(int(now_s * 1000)))
        self._effects.do(effects)
        return self.fsync_interval_ms

    def _time(self, now_ms: int) -> tuple[Effect, ...]:
        """With the lock held: tell the core the time, or a later one that it was told (`replicated.P13`)."""
        return self._core.step(Tick(now_ms=max(now_ms, self._core.now_ms)))

    def note_removed(self) -> None:
        """Take no more, and wake who waits for records: there will be none, the stream was deleted."""
        self.replica.note_removed()  # before the log is closed, so that no append sees that without the reason
        with self._lock:
            effects = self._core.step(Closed())
        self._effects.do(effects)

    def run_sync(self) -> bool:
        """One group commit: sync, do what comes of it; return whether more is to be synced already. Never raises."""
        event = self._synced()
        with self._lock:
            self._sync_queued = False  # whatever becomes of the step: else it is never synced again
            effects = self._core.step(event)
            self._sync_queued = is_more = bool(effects) and type(effects[-1]) is Sync
        if isinstance(event, SyncFailed):
            self._log_failure(event.error)
        self._effects.do(effects, syncs=False)
        FSYNC_SECONDS.observe(self.replica.sync_took_s)
        return is_more

    def _synced(self) -> Synced | SyncFailed:
        """Sync the log. The generation is read before: too early is a sync too many, too late a false ack."""
        generation = self._core.generation
        synced = self.replica.sync()
        return Synced(generation, synced) if isinstance(synced, int) else SyncFailed(generation, synced)

    def _tell(self, event: Synced | SyncFailed) -> None:
        with self._lock:
            effects = self._core.step(event)
        if isinstance(event, SyncFailed):
            self._log_failure(event.error)
        self._effects.do(effects)

    def _log_failure(self, error: LiftlogError) -> None:
        if not self.removed:
            log.error("partition.sync_failed partition=%s error=%s", self, error)

    def check_open(self, *, decided: bool = False) -> None:
        """Raise why no record is taken, if so (P3)."""
        if self.removed:
            raise gone(self.replica)
        if decided:
            return
        if self._info.paused:
            raise StreamPaused(f"stream {self.stream!r} is paused", stream=self.stream)
        if self._info.read_only:
            raise ReadOnly(f"stream {self.stream!r} is read-only", stream=self.stream)

    def _recover(self, now_us: int) -> tuple[Effect, ...]:
        """With the lock held (P2)."""
        self.log.recover(now_us)
        end = self.log.state.log_end_offset
        log.warning("partition.recovered partition=%s log_end_offset=%d", self, end)
        return self._core.step(Recovered(durable_end=self.log.state.durable_end, log_end=end))

    def _caught_up(self) -> tuple[Effect, ...]:
        """After a fault of ours between the log and the core: what the core was not told may be lost to who waits."""
        with self._lock:
            end = self.log.state.log_end_offset
            if self.log.state.failure is not None or self._core.role is not LEADING or end == self._core.log_end:
                return ()
            return self._core.step(Recovered(durable_end=self.log.state.durable_end, log_end=end))

    async def wait_for(self, offset: int, timeout_s: float) -> None:
        """On the data plane's loop: return when the high watermark is past `offset`, time is up or the stream gone."""
        await self.replica.wait(lambda: self.removed or self._state.high_watermark > offset, timeout_s)


def _size(batches: Sequence[Encodable] | StoredGroup) -> int:
    """Bytes of what is large: of a sink's group, and of a body. What comes over NATS is bounded by its batches."""
    if isinstance(batches, StoredGroup):
        return batches.byte_count
    return sum(batch.byte_count_max for batch in batches if isinstance(batch, RowBatch | PlainBatch))
