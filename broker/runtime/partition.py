"""One partition that this broker leads: append, wait until durable, tell the readers.

    append ──► log (page cache) ──► fsync pool ──► high watermark ──► callbacks (acks), waiting readers

With replication factor 1 the high watermark is the fsynced end: consumers never see an offset that a
power loss could change. With `fsync = interval` it is the log end, and the cleaner syncs.

P1  A callback gets the durable end only if what it waits for is durable.
P2  After a failed write or fsync every waiter gets the error, and the log is recovered before the next append. Recovery
    may have to drop what was not durable, so each recovery begins a new generation: who waits since an earlier
    one gets an error, even if its offsets are durable now. (An error says "unknown", a false ack would be a loss.)
P3  A partition that refuses records, because its stream is paused, read-only or deleted, refuses them for everybody,
    with an error of its own for each append. Reads go on, but for a deleted one. What was decided before (`decided`,
    the commit group of a sink) was accepted then, and is still appended to a paused or read-only stream.
P4  Nothing is let go while a sink's group may have to be looked for; `floor` says from which offset on.
P5  While the table of subjects is not there, appends that need it are told so and go on (`storage/log.py`).
P6  Who appends may offer to sync as well (`here`): to wake another thread and be woken by it takes half as long as a
    quick fsync. It is the pool's while the pool is at it, and after an fsync that took longer than `QUICK_S`.
P7  What is synced in a row (`SyncRow`) keeps nobody waiting: what is appended after it and awaited is synced and told
    as if there were no row. (Both may be at it at once; the log sees to it that one of them finds nothing to do.)
P8  What was judged or searched under a leader epoch is appended under that one, or not at all. (Else a leader that
    searched, was deposed and leads again appends what another leader has appended meanwhile.)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future

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
from broker.runtime.metrics import FSYNC_SECONDS
from broker.runtime.open_logs import OpenLogs
from broker.runtime.room import Room
from broker.runtime.sync import Outcome, SyncPool, SyncRow
from broker.runtime.watch import ChangeHub
from broker.storage.checkpoint import LogSettings
from broker.storage.log import AppendResult, Encodable, PartitionLog, StoredGroup
from broker.storage.scrub import PIECE_BYTES, Piece, scrub

__all__ = ["OnDurable", "Outcome", "Partition"]

log = logging.getLogger(__name__)

APPENDS_WAITING_MAX = 256
BUILD_PAUSE_S = 5.0
"""After a log could not be read for its table of subjects it is left alone for so long."""
QUICK_S = 0.002
"""Of P6."""
OnDurable = Callable[[AppendResult, Outcome], None]
Waiting = tuple[int, AppendResult, OnDurable]
"""Since which generation, for what, and how it is told."""


class Partition:
    """The driver of one partition's log. Thread-safe."""

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
    ) -> None:
        self.stream = info.name
        self.partition = partition
        self.incarnation = info.incarnation
        self.leader_epoch = leader_epoch
        self.log = partition_log
        self.fsync_each_batch = info.settings.fsync == "batch"
        self.fsync_interval_ms = info.settings.fsync_interval_ms
        self.record_count = 0
        self._record_count_seen = 0
        self.byte_count = 0
        self.removed = False
        self._pool = pool
        self._appender = appender
        self._hub = hub
        self._open_logs = open_logs
        self.room = room  # None: a stream of the broker's own, for which the reserve is
        self._lock = threading.Lock()
        self._info = info
        self._is_closed = info.paused or info.read_only
        self._generation = 0
        self._callbacks: list[Waiting] = []
        self._sync_queued = False
        self._synced_s = 0.0
        self._sync_took_s = 0.0
        self._checkpoint_bytes = 0  # `byte_count` at the last checkpoint, and when it was
        self._checkpoint_s = float("-inf")
        self._appends_waiting = 0
        self._is_building = False
        self._build_again_s = 0.0
        self.letting_go = threading.Lock()
        self.floor: Callable[[], int | None] = lambda: None

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"

    def alter(self, info: StreamInfo) -> None:
        """Take over altered settings and state."""
        self._info = info
        self._is_closed = info.paused or info.read_only
        self.fsync_each_batch = info.settings.fsync == "batch"
        self.fsync_interval_ms = info.settings.fsync_interval_ms
        self.log.update_settings(LogSettings.of(info.settings, self.log.settings))
        self._hub.note(self)  # the cleaner looks at what moved

    def append_now(
        self,
        batches: Sequence[Encodable] | StoredGroup,
        on_durable: OnDurable,
        *,
        decided: bool = False,
        here: bool = False,
        row: SyncRow | None = None,
        leader_epoch: int | None = None,
    ) -> AppendResult:
        """Append in the calling thread, as one commit group. It is durable when `on_durable` says so.

        Args:
            on_durable: Called once, from another thread or before this returns, with what was appended and the
                durable end or the error (P1).
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
        partition_log, room, epoch = self.log, self.room, self.leader_epoch
        if leader_epoch not in (None, epoch):
            raise NotLeader(f"{self}: judged in leader epoch {leader_epoch}, it is {epoch}")
        if room is not None:
            room.check()
        now_us = time.time_ns() // 1000
        try:
            if partition_log.failure is not None and not self.removed:
                self._recover(now_us)
            generation = self._generation  # before the append: too early is an error too many, too late a false ack
            if isinstance(batches, StoredGroup):
                result = partition_log.append_group(batches, leader_epoch=epoch, now_us=now_us)
            else:
                result = partition_log.append(batches, leader_epoch=epoch, now_us=now_us)
        except (LiftlogError, OSError):
            self.check_open(decided=decided)  # deleted meanwhile: then that is the reason
            raise
        if not result.duplicate:  # else it may still not be durable: then it is answered when it is
            self.record_count += result.next_offset - result.first_offset
        self.byte_count += result.bytes
        if room is not None:
            room.took(result.bytes)
        if self._open_logs is not None:
            self._open_logs.touch(partition_log)
        if partition_log.lacks_subjects:
            self._build_subjects()
        if not self.fsync_each_batch:
            partition_log.advance_high_watermark(result.next_offset)
            self._hub.note(self)
            on_durable(result, result.next_offset)
            return result
        if row is not None:
            waiting = [(generation, result, on_durable)]

            def tell(outcome: Outcome) -> None:
                self._tell(waiting, outcome)
                FSYNC_SECONDS.observe(self._sync_took_s)

            row.add(self._sync, tell)
            return result
        with self._lock:
            self._callbacks.append((generation, result, on_durable))
            if self._sync_queued:
                return result
            self._sync_queued = True
        if not here or self._sync_took_s > QUICK_S or self.run_sync():
            self._pool.submit(self)
        return result

    def settle(self) -> int:
        """Recover the log if it failed, and make all that it holds durable and visible. Returns the high watermark.

        Raises:
            StorageFailed, DiskFull: what the log holds beyond its high watermark is not known.
        """
        self.check_open(decided=True)
        if self.log.failure is not None:
            self._recover(time.time_ns() // 1000)
        self.log.advance_high_watermark(self.log.sync())
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

    def sync_if_due(self, now_s: float) -> int:
        """With `fsync = interval`: have it synced if that is due. Returns the interval in milliseconds."""
        if self.log.durable_end < self.log.log_end_offset and now_s - self._synced_s >= self.fsync_interval_ms / 1000:
            self._synced_s = now_s
            with self._lock:
                queued, self._sync_queued = self._sync_queued, True
            if not queued:
                self._pool.submit(self)
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
        self._hub.note(self)

    def run_sync(self) -> bool:
        """One group commit: sync, tell who waits for it; return whether others wait already. Never raises."""
        with self._lock:
            waiting, self._callbacks = self._callbacks, []
        self._tell(waiting, self._sync())
        FSYNC_SECONDS.observe(self._sync_took_s)
        with self._lock:
            self._sync_queued = bool(self._callbacks)
            return self._sync_queued

    def _sync(self) -> Outcome:
        begun = time.perf_counter()
        outcome: Outcome
        try:
            outcome = self.log.sync()
        except LiftlogError as error:
            outcome = error
        except Exception as error:  # who waits must hear whatever happens
            log.exception("partition.sync_bug partition=%s", self)
            outcome = StorageFailed(f"{self}: sync failed: {error!r}")
        self._sync_took_s = time.perf_counter() - begun
        return outcome

    def _tell(self, waiting: list[Waiting], outcome: Outcome) -> None:
        if isinstance(outcome, int):
            self.log.advance_high_watermark(outcome)
        elif self.removed:
            outcome = self._gone()
        else:
            log.error("partition.sync_failed partition=%s error=%s", self, outcome)
        self._hub.note(self)  # before an ack: a version that is asked for after it counts its record
        for generation, result, callback in waiting:
            try:
                callback(result, outcome if generation == self._generation else self._unsure(result))
            except Exception:
                log.exception("partition.callback_bug partition=%s", self)

    def _build_subjects(self) -> None:
        """Have the log read for its table of subjects, in pieces between the appends of others (P5)."""
        with self._lock:
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
        """Append away from the calling thread; the future is done when durable (`acks=none`: when appended).

        Its error has the field `sent` if the records were appended, and then something failed: they may be stored.

        Raises:
            Overloaded: too many appends wait already.
        """
        with self._lock:
            if self._appends_waiting >= APPENDS_WAITING_MAX:
                raise Overloaded(f"{self}: {APPENDS_WAITING_MAX} appends wait already", limit=APPENDS_WAITING_MAX)
            self._appends_waiting += 1
        future: Future[AppendResult] = Future()

        def settled(result: AppendResult, outcome: Outcome) -> None:
            if acks != "none":
                self._settle(future, _perhaps_stored(outcome) if isinstance(outcome, LiftlogError) else result)

        def run() -> None:
            try:
                result = self.append_now(batches, settled)
            except Exception as error:
                self._settle(future, error)
                return
            if acks == "none":
                self._settle(future, result)

        self._appender.submit(run)
        return future

    def _settle(self, future: Future[AppendResult], outcome: AppendResult | Exception) -> None:
        with self._lock:
            self._appends_waiting -= 1
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _unsure(self, result: AppendResult) -> StorageFailed:
        return StorageFailed(
            f"{self}: records [{result.first_offset}, {result.next_offset}) may be lost: the log had to recover"
        )

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

    def _recover(self, now_us: int) -> None:
        self._generation += 1  # before anything is dropped (P2)
        self.log.recover(now_us)
        self.log.advance_high_watermark(self.log.durable_end)
        log.warning(
            "partition.recovered partition=%s log_end_offset=%d high_watermark=%d",
            self,
            self.log.log_end_offset,
            self.log.high_watermark,
        )

    async def wait_for(self, offset: int, timeout_s: float) -> None:
        """On the data plane's loop: return when the high watermark is past `offset`, time is up or the stream gone."""
        await self._hub.wait(self, lambda: self.removed or self.log.high_watermark > offset, timeout_s)


def _perhaps_stored(error: LiftlogError) -> LiftlogError:
    """The same error, for one of those who share it, saying that nobody knows what became of the records."""
    return type(error)(error.message, **{**error.fields, "sent": True})
