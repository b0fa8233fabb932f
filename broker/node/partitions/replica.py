"""One partition's log on this broker, whoever leads it: synced, checkpointed, trimmed, scrubbed, and let rest.

R1  Nothing is let go while a sink's group may have to be looked for; `floor` says from which offset on.
R2  While the table of subjects is not there, appends that need it are told so and go on (`storage/log.py`). The log is
    read for it in pieces, between the appends of others.
R3  A log that is appended to keeps its file open, of all logs those that were appended to last (open_logs.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor

from broker.api.errors import LiftlogError, StorageFailed
from broker.common.disk_reserve import Account
from broker.common.elapsed import Clocks
from broker.common.waiting import THREADS, Waits
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.open_logs import OpenLogs
from broker.node.partitions.watch import ChangeHub
from broker.storage.inspect.scrub import PIECE_BYTES, Piece, scrub
from broker.storage.log import AppendResult, PartitionLog

log = logging.getLogger(__name__)

BUILD_PAUSE_S = 5.0
"""After a log could not be read for its table of subjects it is left alone for so long."""


class Replica:
    """See the module. Thread-safe.

    Args:
        room: What its stream draws on; None: a disk without a reserve.
        open_logs: R3; None: the log rests when it is told to.
        clocks: The machine's.
        waits: For those who append to its log, or look for something in it, and wait for other replicas.

    Attributes:
        log: The partition's log.
        may_let_go: Whether retention decides here: it does where the partition is led.
        state: How far its records are: asked without a detour where a call counts.
        record_count, byte_count: Appended since the start.
        removed: The stream was deleted: what fails from now on is no fault.
        is_closed: Nor is it when this broker does not keep the log any more.
        sync_took_s: Time that the last sync took.
        on_news: Called after each append, each change that `note_change` tells of, and when the log starts elsewhere;
            must not wait.
    """

    def __init__(
        self,
        info: StreamInfo,
        partition: int,
        partition_log: PartitionLog,
        *,
        appender: Executor,
        hub: ChangeHub,
        clocks: Clocks,
        room: Account | None = None,
        open_logs: OpenLogs | None = None,
        waits: Waits = THREADS,
    ) -> None:
        self.stream = info.name
        self.partition = partition
        self.incarnation = info.incarnation
        self.log = partition_log
        self.state = partition_log.state
        self.room = room
        self.now_s, self.elapsed_us, self.wall_us = clocks
        self.record_count = 0
        self.byte_count = 0
        self.removed = self.is_closed = False
        self.sync_took_s = 0.0
        self.on_news: Callable[[], None] | None = None
        self.waits = waits
        self.letting_go = threading.Lock()
        self.floor: Callable[[], int | None] = _no_floor
        self.may_let_go: Callable[[], bool] = _always
        self._appender = appender
        self._hub = hub
        self._open_logs = open_logs
        self._record_count_seen = 0
        self._checkpoint_bytes = 0  # `byte_count` at the last checkpoint, and when it was
        self._checkpoint_s = float("-inf")
        self._build_lock = threading.Lock()
        self._is_building = False
        self._build_again_s = 0.0

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"

    def note_change(self) -> None:
        """Wake who watches this partition, and have the background look at it."""
        self._hub.note(self, self.stream)
        if self.on_news is not None:
            self.on_news()

    async def wait(self, done: Callable[[], bool], timeout_s: float) -> None:
        """On the data plane's loop: return when `done()` holds after a change, or time is up."""
        await self._hub.wait(self, done, timeout_s)

    def appended(self, result: AppendResult) -> None:
        """Count what was appended; what an append brings with it is begun."""
        first, end, byte_count, is_repeat = result
        if self.on_news is not None:
            self.on_news()  # first: others wait for it
        if not is_repeat:
            self.record_count += end - first
        self.byte_count += byte_count
        if self.room is not None:
            self.room.took(byte_count)
        self._note_open()
        if self.log.tracking.lacks_some:
            self._build_subjects()

    def refused(self) -> None:
        """An append has failed, or a seal; the log may have opened its file for it, and keeps it open (R3)."""
        if self.log.state.is_awake:
            self._note_open()

    def _note_open(self) -> None:
        if self._open_logs is not None:
            self._open_logs.touch(self.log)
            if self.is_over:  # since it was appended to: nobody else takes it out
                self._open_logs.forget(self.log)

    def sync(self) -> int | LiftlogError:
        """Make the log durable. Returns the durable end, or why there is none. All who wait must hear of either."""
        begun = self.now_s()
        try:
            return self.log.syncer.sync()
        except LiftlogError as error:
            return error
        except Exception as error:
            log.exception("partition.sync_bug partition=%s", self)
            return StorageFailed(f"{self}: sync failed: {error!r}")
        finally:
            self.sync_took_s = self.now_s() - begun

    # --- let go, check, rest --------------------------------------------------------------------------------

    def apply_retention(self, now_us: int, wall_us: int | None = None) -> int:
        """Let go of what the settings do not keep (R1), as `PartitionLog.apply_retention` does."""
        with self.letting_go:
            before, may = self.log.state.log_start_offset, self.floor() is None and self.may_let_go()
            return self._started(before, self.log.apply_retention(now_us=now_us, wall_us=wall_us)) if may else before

    def trim(self, before_offset: int) -> int:
        """Let go of records below `before_offset` (R1). Returns the log start offset."""
        with self.letting_go:
            floor, before = self.floor(), self.log.state.log_start_offset
            return self._started(before, self.log.trim(before_offset if floor is None else min(before_offset, floor)))

    def _started(self, before: int, start: int) -> int:
        if start > before and self.on_news is not None:
            self.on_news()
        return start

    def scrub(self, offset: int, *, bytes_max: int = PIECE_BYTES, give_up: bool = False) -> Piece | None:
        """Check what is stored from `offset` on, as `storage.scrub.scrub` does; what is lost is told and remembered."""
        piece = scrub(self.log, offset, bytes_max=bytes_max, give_up=give_up)
        if piece is not None and piece.tampered and not self.removed:
            log.error("partition.tampered partition=%s ranges=%s", self, self.log.state.tampered or piece.lost)
        if piece is not None and piece.lost and not self.removed:
            log.error("partition.damaged partition=%s lost=%s", self, piece.lost)
            self.note_change()
            self.log.checkpoint()
        return piece

    def rests_from_checkpoints(self, now_s: float, *, rest_s: float, little_bytes: int) -> bool:
        """Whether something, but less than `little_bytes`, was appended since a checkpoint less than `rest_s` ago."""
        return 0 < self.byte_count - self._checkpoint_bytes < little_bytes and now_s - self._checkpoint_s < rest_s

    def checkpoint(self, now_s: float) -> None:
        """Write the log's checkpoint. A log that follows first reads what its leader has told.

        Raises:
            StorageFailed, DiskFull: the old one stands.
        """
        byte_count = self.byte_count  # before: what is appended meanwhile may not be in it
        self.keep_up()
        self.log.checkpoint()
        self._checkpoint_bytes, self._checkpoint_s = byte_count, now_s

    def keep_up(self) -> None:
        """A log that follows reads what its leader was told. One that is led knows it."""
        if not self.may_let_go():
            self.log.remembered.keep_up()

    def rest_if_quiet(self) -> None:
        """Give back the file of a log to which nothing was appended since the last call (R3)."""
        is_quiet = self.record_count == self._record_count_seen
        if is_quiet and self.log.idle() and self._open_logs is not None:
            self._open_logs.forget(self.log)
        self._record_count_seen = self.record_count

    @property
    def is_over(self) -> bool:
        """Nobody here is to look after it any more: what fails is no fault."""
        return self.removed or self.is_closed

    def note_removed(self) -> None:
        """The stream was deleted, and the log will be closed: what fails from now on is no fault."""
        self.removed = True  # first: an append under way looks at it behind what it counts
        if self._open_logs is not None:
            self._open_logs.forget(self.log)

    def note_closed(self) -> None:
        """The log is about to be closed; the stream may go on elsewhere. Nobody here is to look after it any more."""
        self.is_closed = True
        if self._open_logs is not None:
            self._open_logs.forget(self.log)

    # --- the table of subjects (R2) -------------------------------------------------------------------------

    def _build_subjects(self) -> None:
        with self._build_lock:
            if self._is_building or self.now_s() < self._build_again_s:
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
            is_more = not self.removed and self.log.tracking.build()
        except Exception as error:
            self._build_again_s = self.now_s() + BUILD_PAUSE_S
            if not self.removed:
                log.error("partition.subjects_failed partition=%s error=%s", self, error)
        if is_more:
            self._submit_piece()
        else:
            self._is_building = False


def _no_floor() -> None:
    return None


def _always() -> bool:
    return True
