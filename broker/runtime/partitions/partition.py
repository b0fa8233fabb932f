"""One partition that this broker leads: the driver of its core (`broker.replication.leader`).

    append ──► log ──Appended──► core ──Sync──► this thread, a row or the pool ──Synced──► core ──► Commit, Wake, Answer

The core decides when a record is committed and who is told what; this does it: it appends and fsyncs, moves the log's
high watermark, wakes readers and calls back. One lock is held over an append and its event, and over a recovery and
its event; effects are done when it is free again.

P1  A callback is told of success only when the core says so (its L2 and L3).
P2  After a failed write or fsync the log is recovered before the next append; recovery may drop what was not durable.
P3  A partition that refuses records, because its stream is paused, read-only or deleted, refuses them for everybody,
    with an error of its own for each append. Reads go on, but for a deleted one. What was decided before (`decided`,
    the commit group of a sink) was accepted then, and is still appended to a paused or read-only stream.
P4  Nothing is let go while a sink's group may have to be looked for; `floor` says from which offset on.
P5  While the table of subjects is not there, appends that need it are told so and go on (`storage/log.py`).
P6  Who appends may offer to sync as well (`here`): to wake another thread and be woken by it takes half as long as a
    quick fsync. It is the pool's while the pool is at it, and after an fsync that took longer than `QUICK_S`.
P7  What is synced in a row (`SyncRow`) keeps nobody waiting: what is appended after it and awaited is synced at once,
    and with it what the row was to sync. The row then finds nothing to do here.
P8  What was judged or searched under a leader epoch is appended under that one, or not at all. (Else a leader that
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
from broker.runtime.background.disk_reserve import Room
from broker.runtime.metrics import FSYNC_SECONDS
from broker.runtime.partitions.open_logs import OpenLogs
from broker.runtime.partitions.sync import Outcome, SyncPool, SyncRow
from broker.runtime.partitions.watch import ChangeHub
from broker.storage.inspect.scrub import PIECE_BYTES, Piece, scrub
from broker.storage.log import AppendResult, Encodable, PartitionLog, StoredGroup
from broker.storage.segments.checkpoint import LogSettings

__all__ = ["OnDurable", "Outcome", "Partition"]

log = logging.getLogger(__name__)

APPENDS_WAITING_MAX = 256
BUILD_PAUSE_S = 5.0
"""After a log could not be read for its table of subjects it is left alone for so long."""
QUICK_S = 0.002
"""Of P6."""
OnDurable = Callable[[AppendResult, Outcome], None]
_Ticket = tuple[AppendResult, OnDurable]
ME = "self"
"""This broker, as long as there is no other."""


class Partition:
    """The driver of one partition's core and log. Thread-safe.

    Args:
        leader_epoch: Under which it is led from the start; -1: not before `lead`.
        to_others: Does the effects that need the catalog or other replicas. None: there are none, and it is a fault of
            ours if one comes.
    """

    def __init__(
        self,
        info: StreamInfo,
        partition: int,
        partition_log: PartitionLog,
        *,
        leader_epoch: int,
        pool: SyncPool,
        appender: Executor,
        hub: ChangeHub,
        room: Room | None = None,
        open_logs: OpenLogs | None = None,
        to_others: Callable[[Effect], None] | None = None,
    ) -> None:
        self.stream = info.name
        self.partition = partition
        self.incarnation = info.incarnation
        self.log = partition_log
        self._records = partition_log.log  # asked without a detour where a call counts
        self.fsync_each_batch = info.settings.fsync == "batch"
        self.fsync_interval_ms = info.settings.fsync_interval_ms
        self.record_count = 0
        self._record_count_seen = 0
        self.byte_count = 0
        self.removed = False
        self._pool = pool
        self._appender = appender
        self._hub = hub
        self._to_others = to_others or self._needs_others
        self._open_logs = open_logs
        self.room = room  # None: a stream of the broker's own, for which the reserve is
        self._lock = threading.RLock()
        self._info = info
        self._is_closed = info.paused or info.read_only
        self._core = Leader(ME)
        self._told_of = info  # the settings that the core knows
        self._sync_queued = False  # in the pool, or at it here
        self._row: _RowState = _RowState.NONE
        self._sync_took_s = 0.0
        self._checkpoint_bytes = 0  # `byte_count` at the last checkpoint, and when it was
        self._checkpoint_s = float("-inf")
        self._count_lock = threading.Lock()  # never held for long, as the other is while the disk is written
        self._appends_waiting = 0
        self._is_building = False
        self._build_again_s = 0.0
        self.letting_go = threading.Lock()
        self.floor: Callable[[], int | None] = lambda: None
        self._core.step(self._altered())
        if leader_epoch >= 0:
            self.lead(leader_epoch)

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
            effects = self._core.step(
                Led(
                    epoch=leader_epoch,
                    replicas=(ME,),
                    isr=(ME,),
                    partition_epoch=0,
                    high_watermark=self.log.high_watermark,
                    durable_end=self.log.durable_end,
                    log_end=self.log.log_end_offset,
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
        self._hub.note(self)  # the cleaner looks at what moved; the core hears of it at its next event

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
            here: It may be synced before this returns (P6).
            row: It is synced with that, which the caller submits, as nobody awaits it (P7).
            leader_epoch: Under which it was judged that this is to be appended (P8); None: nothing was judged.
        Raises:
            NotLeader: the partition has another leader epoch by now; nothing was appended.
            DiskFull, StorageFailed: nothing was appended.
            ReadOnly, StreamPaused: the stream takes none.
            UnknownStream: it was deleted.
        """
        if self.removed or self._is_closed:
            self.check_open(decided=decided)
        partition_log, records, room, core = self.log, self._records, self.room, self._core
        if room is not None:
            room.check()
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
                if records.failure is not None and not self.removed:
                    before += self._recover(now_us)
                if isinstance(batches, StoredGroup):
                    result = partition_log.append_group(batches, leader_epoch=epoch, now_us=now_us)
                else:
                    result = partition_log.append(batches, leader_epoch=epoch, now_us=now_us)
                first, end, byte_count, is_repeat = result
                if (
                    here
                    and self._sync_took_s <= QUICK_S
                    and self.fsync_each_batch
                    and not (core.is_syncing or self._sync_queued)
                ):
                    begun = time.perf_counter()
                    try:
                        durable_end = records.sync()
                    except Exception as error:  # who waits must hear whatever happens
                        failure = self._failure_of(error)
                    self._sync_took_s = time.perf_counter() - begun
                group_ends = () if is_repeat else (end,)
                awaited: tuple[tuple[_Ticket, Acks], ...] = (((result, on_durable), acks),)
                if on_leader is not None:
                    awaited = (((result, on_leader), Acks.LEADER), *awaited)
                effects = core.step(Appended(first, end, group_ends, awaited, durable_end))
                if failure is not None:
                    told = core.step(SyncFailed(core.generation, failure))
                    effects = (*(effect for effect in effects if type(effect) is not Sync), *told)
                elif not effects and row is None and self._row is not NO_ROW:  # P7
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
        if not is_repeat:  # else it may still not be durable: then it is answered when it is
            self.record_count += end - first
        self.byte_count += byte_count
        if room is not None:
            room.took(byte_count)
        if self._open_logs is not None:
            self._open_logs.touch(partition_log)
        if partition_log.lacks_subjects:
            self._build_subjects()
        if not effects:
            return result
        if row is not None and type(effects[0]) is Sync:
            self._row = _RowState.WAITS
            row.add(self._sync_in_row, self._synced_in_row)
        else:
            self._do(effects)
        if durable_end >= 0:
            FSYNC_SECONDS.observe(self._sync_took_s)
        elif failure is not None:
            self._log_failure(failure)
        return result

    def _refuse(self, leader_epoch: int | None) -> None:
        """Nothing may be appended (P8)."""
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
                        tell(result, self._records.high_watermark)
                    else:
                        tell(result, refused or self._error_of(effect, result))  # type: ignore[arg-type]
                except Exception:
                    log.exception("partition.callback_bug partition=%s", self)
                continue
            try:
                if kind is Commit:
                    self._records.advance_high_watermark(effect.high_watermark)  # type: ignore[union-attr]
                elif kind is Wake:
                    self._hub.note(self)
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

    def settle(self) -> int:
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
        self._hub.note(self)
        return self.log.high_watermark

    def apply_retention(self, now_us: int) -> int:
        """Let go of what the settings do not keep (P4). Returns the log start offset."""
        with self.letting_go:
            return self.log.log_start_offset if self.floor() is not None else self.log.apply_retention(now_us=now_us)

    def trim(self, before_offset: int) -> int:
        """Let go of records below `before_offset` (P4). Returns the log start offset."""
        with self.letting_go:
            floor = self.floor()
            return self.log.trim(before_offset if floor is None else min(before_offset, floor))

    def scrub(self, offset: int, *, bytes_max: int = PIECE_BYTES, give_up: bool = False) -> Piece | None:
        """Check what is stored from `offset` on, as `storage.scrub.scrub` does; what is lost is told and remembered."""
        piece = scrub(self.log, offset, bytes_max=bytes_max, give_up=give_up)
        if piece is not None and piece.lost:
            log.error("partition.damaged partition=%s lost=%s", self, piece.lost)
            self._hub.note(self)
            self.log.checkpoint()
        return piece

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

    def rests_from_checkpoints(self, now_s: float, *, rest_s: float, little_bytes: int) -> bool:
        """Whether something, but less than `little_bytes`, was appended since a checkpoint less than `rest_s` ago."""
        return 0 < self.byte_count - self._checkpoint_bytes < little_bytes and now_s - self._checkpoint_s < rest_s

    def checkpoint(self, now_s: float) -> None:
        """Write the log's checkpoint.

        Raises:
            StorageFailed, DiskFull: the old one stands.
        """
        byte_count = self.byte_count  # before: what is appended meanwhile may not be in it
        self.log.checkpoint()
        self._checkpoint_bytes, self._checkpoint_s = byte_count, now_s

    def rest_if_quiet(self) -> None:
        """Give back the file of a log to which nothing was appended since the last call."""
        is_quiet = self.record_count == self._record_count_seen
        if is_quiet and self.log.idle() and self._open_logs is not None:
            self._open_logs.forget(self.log)
        self._record_count_seen = self.record_count

    def note_change(self) -> None:
        """Wake who watches this partition: its log start moved."""
        self._hub.note(self)

    def note_removed(self) -> None:
        """Take no more, and wake who waits for records: there will be none, the stream was deleted."""
        if self._open_logs is not None:
            self._open_logs.forget(self.log)
        self.removed = True  # before the log is closed, so that no append sees that without the reason
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
        FSYNC_SECONDS.observe(self._sync_took_s)
        return is_more

    def _synced(self) -> Synced | SyncFailed:
        """Sync the log. The generation is read before: too early is a sync too many, too late a false ack."""
        generation = self._core.generation
        begun = time.perf_counter()
        event: Synced | SyncFailed
        try:
            event = Synced(generation, self.log.sync())
        except Exception as error:  # who waits must hear whatever happens
            event = SyncFailed(generation, self._failure_of(error))
        self._sync_took_s = time.perf_counter() - begun
        return event

    def _failure_of(self, error: Exception) -> LiftlogError:
        if isinstance(error, LiftlogError):
            return error
        log.exception("partition.sync_bug partition=%s", self)
        return StorageFailed(f"{self}: sync failed: {error!r}")

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
        """For a row: sync, unless somebody who is awaited has had it done (P7)."""
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
            FSYNC_SECONDS.observe(self._sync_took_s)

    def _build_subjects(self) -> None:
        """Have the log read for its table of subjects, in pieces between the appends of others (P5)."""
        with self._count_lock:
            if self._is_building or time.monotonic() < self._build_again_s:
                return
            self._is_building = True
        self._submit_piece()

    def _submit_piece(self) -> None:
        try:
            self._appender.submit(self._build_piece)
        except RuntimeError:  # the broker stops
            self._is_building = False

    def _build_piece(self) -> None:
        is_more = False
        try:
            is_more = not self.removed and self.log.build_subjects()
        except Exception as error:
            self._build_again_s = time.monotonic() + BUILD_PAUSE_S
            if not self.removed:
                log.error("partition.subjects_failed partition=%s error=%s", self, error)
        if is_more:
            self._submit_piece()
        else:
            self._is_building = False

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

        def settled(result: AppendResult, outcome: Outcome) -> None:
            if acks != "none":
                self._settle(future, _perhaps_stored(outcome) if isinstance(outcome, LiftlogError) else result)

        def run() -> None:
            try:
                result = self.append_now(batches, settled, acks=level)
            except Exception as error:
                self._settle(future, error)
                return
            if acks == "none":
                self._settle(future, result)

        self._appender.submit(run)
        return future

    def _settle(self, future: Future[AppendResult], outcome: AppendResult | Exception) -> None:
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
        await self._hub.wait(self, lambda: self.removed or self.log.high_watermark > offset, timeout_s)


class _RowState(Enum):
    """Whether the sync that the core has asked for waits in a row, or is under way there."""

    NONE = auto()
    WAITS = auto()
    AT_IT = auto()


NO_ROW = _RowState.NONE


def _perhaps_stored(error: LiftlogError) -> LiftlogError:
    """The same error, for one of those who share it, saying that nobody knows what became of the records."""
    return type(error)(error.message, **{**error.fields, "sent": True})
