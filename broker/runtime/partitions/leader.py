"""One partition that this broker leads: the driver of its core (`broker.replication.leader`).

    append ──► log ──Appended──► core ──Sync──► this thread, a row or the pool ──Synced──► core ──► Commit, Wake, Answer

The core decides when a record is committed and who is told what; this does it: it appends and fsyncs, moves the log's
high watermark, wakes readers and calls back. The log is the replica's
(replica.py). One lock is held over an append and its event, and over a recovery and
its event; effects are done when it is free again.

P1  A callback is told of success only when the core says so (its L2 and L3).
P2  After a failed write or fsync the log is recovered before the next append; recovery may drop what was not durable.
P3  A partition that refuses records, because its stream is paused, read-only or deleted, refuses them for everybody,
    with an error of its own for each append. Reads go on, but for a deleted one. What was decided before (`decided`,
    the commit group of a sink) was accepted then, and is still appended to a paused or read-only stream.
P4  Who appends may offer to sync as well (`here`): to wake another thread and be woken by it takes half as long as a
    quick fsync. It is the pool's while the pool is at it, and after an fsync that took longer than `QUICK_S`.
P5  What is synced in a row (`SyncRow`) keeps nobody waiting: what is appended after it and awaited is synced at once,
    and with it what the row was to sync. The row then finds nothing to do here.
P6  What was judged or searched under a leader epoch is appended under that one, or not at all. (Else a leader that
    searched, was deposed and leads again appends what another leader has appended meanwhile.)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from enum import Enum, auto

from broker.api.errors import (
    LiftlogError,
    NotLeader,
    Overloaded,
    ReadOnly,
    StorageFailed,
    StreamPaused,
    UnknownStream,
)
from broker.metadata.catalog import StreamInfo
from broker.replication.events import (
    Acks,
    Altered,
    Answer,
    Appended,
    Closed,
    Commit,
    Effect,
    Led,
    Recovered,
    Sync,
    Synced,
    SyncFailed,
    Tick,
    Wake,
)
from broker.replication.events import (
    Outcome as Fate,
)
from broker.replication.leader import LEADING, STORED, Leader
from broker.runtime.metrics import FSYNC_SECONDS
from broker.runtime.partitions.replica import Replica
from broker.runtime.partitions.sync import Outcome, SyncPool, SyncRow
from broker.storage.inspect.scrub import PIECE_BYTES, Piece
from broker.storage.log import AppendResult, Encodable, StoredGroup
from broker.storage.segments.checkpoint import LogSettings

__all__ = ["OnDurable", "Outcome", "Partition"]

log = logging.getLogger(__name__)

APPENDS_WAITING_MAX = 256
QUICK_S = 0.002
"""Of P4."""
OnDurable = Callable[[AppendResult, Outcome], None]
_Ticket = tuple[AppendResult, OnDurable]
ME = "self"
"""This broker, as long as there is no other."""


class Partition:
    """The driver of one partition's core. Thread-safe.

    Args:
        replica: This broker's log of the partition.
        leader_epoch: Under which it is led from the start; -1: not before `lead`.
        to_others: Does the effects that need the catalog or other replicas. None: there are none, and it is a fault of
            ours if one comes.
    """

    def __init__(
        self,
        info: StreamInfo,
        replica: Replica,
        *,
        leader_epoch: int,
        pool: SyncPool,
        appender: Executor,
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
        self._appender = appender
        self._to_others = to_others or self._needs_others
        self._lock = threading.RLock()
        self._info = info
        self._is_closed = info.paused or info.read_only
        self._core = Leader(ME)
        self._told_of = info  # the settings that the core knows
        self._sync_queued = False  # in the pool, or at it here
        self._row: _RowState = _RowState.NONE
        self._count_lock = threading.Lock()  # never held for long, as the other is while the disk is written
        self._appends_waiting = 0
        self._core.step(self._altered())
        if leader_epoch >= 0:
            self.lead(leader_epoch)

    @property
    def removed(self) -> bool:
        """The stream was deleted."""
        return self.replica.removed

    @property
    def leader_epoch(self) -> int:
        """Under which it is led, or was led last; -1: it never was."""
        return self._core.epoch

    @property
    def generation(self) -> int:
        """Another one after each recovery of the log: what was appended before, and not durable, may be lost."""
        return self._core.generation

    def lead(self, leader_epoch: int) -> None:
        """Lead it from now on. Who waits since an earlier epoch is told that this is over.

        Raises:
            NotLeader: the log knows a later epoch.
        """
        with self._lock:
            self.log.lead(leader_epoch)
            high_watermark, group_ends = self._state.open_groups()
            effects = self._core.step(
                Led(
                    epoch=leader_epoch,
                    replicas=(ME,),
                    isr=(ME,),
                    partition_epoch=0,
                    high_watermark=high_watermark,
                    durable_end=self._state.durable_end,
                    log_end=self._state.log_end_offset,
                    group_ends=group_ends,
                )
            )
        self._do(effects)

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"

    def alter(self, info: StreamInfo) -> None:
        """Take over altered settings and state."""
        self._info = info
        self._is_closed = info.paused or info.read_only
        self.fsync_each_batch = info.settings.fsync == "batch"
        self.fsync_interval_ms = info.settings.fsync_interval_ms
        self.log.update_settings(LogSettings.of(info.settings, self.log.settings))
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
        on_leader: OnDurable | None = None,
        decided: bool = False,
        here: bool = False,
        row: SyncRow | None = None,
        leader_epoch: int | None = None,
    ) -> AppendResult:
        """Append in the calling thread, as one commit group. It is stored when `on_durable` says so.

        Args:
            on_durable: Called once, from another thread or before this returns, with what was appended and the high
                watermark or the error (P1).
            acks: What `on_durable` waits for.
            on_leader: Called likewise, and before it, when the records are durable on this broker.
            decided: The group of a sink's decision (P3).
            here: It may be synced before this returns (P4).
            row: It is synced with that, which the caller submits, as nobody awaits it (P5).
            leader_epoch: Under which it was judged that this is to be appended (P6); None: nothing was judged.
        Raises:
            NotLeader: the partition has another leader epoch by now; nothing was appended.
            DiskFull, StorageFailed: nothing was appended.
            ReadOnly, StreamPaused: the stream takes none.
            UnknownStream: it was deleted.
        """
        replica, core = self.replica, self._core
        if self._is_closed or replica.removed:
            self.check_open(decided=decided)
        if replica.room is not None:
            replica.room.check()
        now_us = time.time_ns() // 1000
        before: tuple[Effect, ...] = ()
        failure: LiftlogError | None = None
        durable_end = -1
        try:
            with self._lock:
                epoch = core.epoch
                if core.role is not LEADING or (leader_epoch is not None and leader_epoch != epoch):
                    self._refuse(leader_epoch)
                if self._told_of is not self._info:
                    before = self._news()
                if self._state.failure is not None and not replica.removed:
                    before += self._recover(now_us)
                if isinstance(batches, StoredGroup):
                    result = self.log.append_group(batches, leader_epoch=epoch, now_us=now_us)
                else:
                    result = self.log.append(batches, leader_epoch=epoch, now_us=now_us)
                first, end, _, is_repeat = result
                if (
                    here
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
                awaited: tuple[tuple[_Ticket, Acks], ...] = (((result, on_durable), acks),)
                if on_leader is not None:
                    awaited = (((result, on_leader), Acks.LEADER), *awaited)
                effects = core.step(Appended(first, end, group_ends, awaited, durable_end))
                if failure is not None:
                    told = core.step(SyncFailed(core.generation, failure))
                    effects = (*(effect for effect in effects if type(effect) is not Sync), *told)
                elif not effects and row is None and self._row is not NO_ROW:  # P5
                    self._row = _RowState.NONE
                    effects = (Sync(core.generation),)
        except (LiftlogError, OSError):
            self._do(before)
            self.check_open(decided=decided)  # deleted meanwhile: then that is the reason
            raise
        except BaseException:
            self._do((*before, *self._caught_up()))
            raise
        if before:
            self._do(before)
        replica.appended(result)
        if not effects:
            return result
        if row is not None and type(effects[0]) is Sync:
            self._row = _RowState.WAITS
            row.add(self._sync_in_row, self._synced_in_row)
        else:
            self._do(effects)
        if durable_end >= 0:
            FSYNC_SECONDS.observe(replica.sync_took_s)
        elif failure is not None:
            self._log_failure(failure)
        return result

    def _refuse(self, leader_epoch: int | None) -> None:
        """Nothing may be appended (P6)."""
        if self.removed:
            raise self._gone()
        if self._core.role is not LEADING:
            raise NotLeader(f"{self}: this broker does not lead it")
        raise NotLeader(f"{self}: judged in leader epoch {leader_epoch}, it is {self._core.epoch}")

    def _do(self, effects: Sequence[Effect], *, syncs: bool = True) -> None:
        """Do what the core wants, without the lock. `syncs`: a sync is the pool's; else the caller sees to it.

        Each effect is tried, whatever becomes of those before it: somebody waits for his answer. But nobody is told of
        success by answers behind an effect that has failed.
        """
        refused: LiftlogError | None = None
        for effect in effects:
            kind = type(effect)
            if kind is Answer:
                result, tell = effect.ticket  # type: ignore[union-attr]
                try:
                    if effect.outcome is STORED and refused is None:  # type: ignore[union-attr]
                        tell(result, self._state.high_watermark)
                    else:
                        tell(result, refused or self._error_of(effect, result))  # type: ignore[arg-type]
                except Exception:
                    log.exception("partition.callback_bug partition=%s", self)
                continue
            try:
                if kind is Commit:
                    self.replica.records.advance_high_watermark(effect.high_watermark)  # type: ignore[union-attr]
                elif kind is Wake:
                    self.replica.note_change()
                elif kind is not Sync:
                    self._to_others(effect)
                elif syncs:
                    self._submit()
            except Exception as error:
                log.exception("partition.effect_bug partition=%s effect=%s", self, effect)
                refused = StorageFailed(f"{self}: {effect} failed: {error!r}")

    def _needs_others(self, effect: Effect) -> None:
        raise AssertionError(f"{self}: {effect} needs other brokers, and there are none")

    def _submit(self) -> None:
        with self._lock:
            queued, self._sync_queued = self._sync_queued, True
        if not queued:
            self._pool.submit(self)

    def _error_of(self, answer: Answer, result: AppendResult) -> LiftlogError:
        if self.removed or answer.outcome is Fate.CLOSED:
            return self._gone()
        if answer.outcome is Fate.DEPOSED:
            return NotLeader(f"{self}: another leader knows what became of what was appended")
        if answer.outcome is Fate.FAILED:
            return answer.error  # type: ignore[no-any-return]
        records = f"[{result.first_offset}, {result.next_offset})"
        return StorageFailed(f"{self}: records {records} may be lost: the log had to recover")

    def commit_all(self) -> int:
        """Recover the log if it failed, and make all that it holds durable and visible. Returns the high watermark.

        Raises:
            StorageFailed, DiskFull: what the log holds beyond its high watermark is not known.
        """
        self.check_open(decided=True)
        if self.log.failure is not None:
            with self._lock:
                effects = self._recover(time.time_ns() // 1000)
            self._do(effects)
        event = self._synced()
        self._tell(event)
        if isinstance(event, SyncFailed):
            raise event.error
        self.replica.note_change()
        return self.log.high_watermark

    def scrub(self, offset: int, *, bytes_max: int = PIECE_BYTES) -> Piece | None:
        """As `Replica.scrub`."""
        return self.replica.scrub(offset, bytes_max=bytes_max)

    @property
    def minds_time(self) -> bool:
        """Whether `sync_if_due` has something to do, now and then: also once after `fsync = interval` was altered."""
        return not self.fsync_each_batch or self._told_of is not self._info

    def sync_if_due(self, now_s: float) -> int:
        """With `fsync = interval`: have it synced if that is due. Returns the interval in milliseconds.

        A log that has failed is recovered: readers have seen its records, and the next append may be far.
        """
        effects: tuple[Effect, ...] = ()
        with self._lock:
            if self.log.failure is not None and not self.removed:
                try:
                    effects = self._recover(time.time_ns() // 1000)
                except LiftlogError as error:
                    self._log_failure(error)
                    return self.fsync_interval_ms
            effects = (*effects, *self._news(), *self._core.step(Tick(now_ms=int(now_s * 1000))))
        self._do(effects)
        return self.fsync_interval_ms

    def note_removed(self) -> None:
        """Take no more, and wake who waits for records: there will be none, the stream was deleted."""
        self.replica.note_removed()  # before the log is closed, so that no append sees that without the reason
        with self._lock:
            effects = self._core.step(Closed())
        self._do(effects)

    def run_sync(self) -> bool:
        """One group commit: sync, do what comes of it; return whether more is to be synced already. Never raises."""
        event = self._synced()
        with self._lock:
            effects = self._core.step(event)
            self._sync_queued = is_more = bool(effects) and type(effects[-1]) is Sync
        if isinstance(event, SyncFailed):
            self._log_failure(event.error)
        self._do(effects, syncs=False)
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
        self._do(effects)

    def _log_failure(self, error: LiftlogError) -> None:
        if not self.removed:
            log.error("partition.sync_failed partition=%s error=%s", self, error)

    def _sync_in_row(self) -> Synced | SyncFailed | None:
        """For a row: sync, unless somebody who is awaited has had it done (P5)."""
        with self._lock:
            if self._row is not _RowState.WAITS:
                return None
            self._row = _RowState.AT_IT
        return self._synced()

    def _synced_in_row(self, event: Synced | SyncFailed | None) -> None:
        """For a row: do what comes of it."""
        if event is not None:
            with self._lock:
                self._row = _RowState.NONE
            self._tell(event)
            FSYNC_SECONDS.observe(self.replica.sync_took_s)

    def append(self, batches: Sequence[Encodable], *, acks: str = "all") -> Future[AppendResult]:
        """Append away from the calling thread; the future is done when what `acks` asks for is so.

        `all`: committed; `leader`: durable on this broker; `none`: appended.

        Its error has the field `sent` if the records were appended, and then something failed: they may be stored.

        Raises:
            Overloaded: too many appends wait already.
        """
        with self._count_lock:
            if self._appends_waiting >= APPENDS_WAITING_MAX:
                raise Overloaded(f"{self}: {APPENDS_WAITING_MAX} appends wait already", limit=APPENDS_WAITING_MAX)
            self._appends_waiting += 1
        future: Future[AppendResult] = Future()
        level = Acks.LEADER if acks == "leader" else Acks.ALL

        def told(result: AppendResult, outcome: Outcome) -> None:
            if acks != "none":
                self._finish(future, _perhaps_stored(outcome) if isinstance(outcome, LiftlogError) else result)

        def run() -> None:
            try:
                result = self.append_now(batches, told, acks=level)
            except Exception as error:
                self._finish(future, error)
                return
            if acks == "none":
                self._finish(future, result)

        self._appender.submit(run)
        return future

    def _finish(self, future: Future[AppendResult], outcome: AppendResult | Exception) -> None:
        with self._count_lock:
            self._appends_waiting -= 1
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def check_open(self, *, decided: bool = False) -> None:
        """Raise why no record is taken, if so (P3)."""
        if self.removed:
            raise self._gone()
        if decided:
            return
        if self._info.paused:
            raise StreamPaused(f"stream {self.stream!r} is paused", stream=self.stream)
        if self._info.read_only:
            raise ReadOnly(f"stream {self.stream!r} is read-only", stream=self.stream)

    def _gone(self) -> UnknownStream:
        return UnknownStream(
            f"stream {self.stream!r} was deleted (incarnation {self.incarnation})",
            stream=self.stream,
            incarnation=self.incarnation,
        )

    def _recover(self, now_us: int) -> tuple[Effect, ...]:
        """With the lock held (P2)."""
        self.log.recover(now_us)
        end = self.log.log_end_offset
        log.warning("partition.recovered partition=%s log_end_offset=%d", self, end)
        return self._core.step(Recovered(durable_end=self.log.durable_end, log_end=end))

    def _caught_up(self) -> tuple[Effect, ...]:
        """After a fault of ours between the log and the core: what the core was not told may be lost to who waits."""
        with self._lock:
            end = self.log.log_end_offset
            if self.log.failure is not None or self._core.role is not LEADING or end == self._core.log_end:
                return ()
            return self._core.step(Recovered(durable_end=self.log.durable_end, log_end=end))

    async def wait_for(self, offset: int, timeout_s: float) -> None:
        """On the data plane's loop: return when the high watermark is past `offset`, time is up or the stream gone."""
        await self.replica.wait(lambda: self.removed or self._state.high_watermark > offset, timeout_s)


class _RowState(Enum):
    """Whether the sync that the core has asked for waits in a row, or is under way there."""

    NONE = auto()
    WAITS = auto()
    AT_IT = auto()


NO_ROW = _RowState.NONE


def _perhaps_stored(error: LiftlogError) -> LiftlogError:
    """The same error, for one of those who share it, saying that nobody knows what became of the records."""
    return type(error)(error.message, **{**error.fields, "sent": True})
