"""One partition's log on one disk: append, make durable, read, let go.

    log start          high watermark   durable end   log end
        | seg | seg | seg      |             |           |
        [---- committed -------)             |           |
        [---- fsynced -----------------------)           |
        [---- appended ----------------------------------)

Any thread may call anything. `append` holds the append lock while it composes and writes; `sync` does not
hold it during the fsync, so one fsync serves all that was written before it (group commit). Readers hold
no lock: they work on a `LogView`, whose parts are replaced, never changed.

L1  Offsets are dense and strictly increasing; one append is one write.
L2  log start <= high watermark <= log end; durable end <= log end. None of them moves back while the log is open,
    but the log end in `recover`.
L3  After a failed fsync, or a write that could not be taken back, the log is failed: it appends and
    syncs nothing until `recover`. Reads go on.
L4  Locks are taken in this order: checkpoint, sync, append.

The clock is an argument. What was found at open is in `recovery`; the caller logs it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from crc32c import crc32c

from broker.api.batch import CRC_AT, message_bytes, verify_batch
from broker.api.errors import BadBatch, CorruptLog, DiskFull, LiftlogError, StorageFailed, WrongFolder
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.storage.checkpoint import (
    CHECKPOINT_FILE,
    EPOCHS_FILE,
    PARTITION_FILE,
    Checkpoint,
    Epochs,
    LogIdentity,
    LogSettings,
    TailPoint,
    check_identity,
    read_identity,
    write_identity,
)
from broker.storage.disk import NO_SPACE, Disk, File, storage_error
from broker.storage.index import INDEX_CACHE, GrowingIndex
from broker.storage.read import LogView, NeedsRepair, ReadPlan, bytes_between, find_time, plan_read
from broker.storage.recovery import (
    Ranges,
    RecoveryReport,
    list_segments,
    load_checkpoint,
    load_epochs,
    merge_ranges,
    recover,
    rescan,
)
from broker.storage.retention import Kept, is_expired, retained_from
from broker.storage.scan import MESSAGE_BYTES_MAX, peek
from broker.storage.segment import Segment

REPAIRS_PER_CALL_MAX: Final = 8
BATCHES_READ_BYTES: Final = 4 << 20
T = TypeVar("T")


class Encodable(Protocol):
    """A batch that is to be appended: n >= 1 records that do not know their offsets yet."""

    record_count: int
    max_timestamp_us: int

    def compose(
        self,
        *,
        first_offset: int,
        leader_epoch: int,
        high_watermark: int,
        group_index: int = 0,
        group_count: int = 1,
        decision: int = 0,
    ) -> bytes | bytearray | memoryview:
        """The whole message as it stands at `first_offset`, CRC in place."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where an append went: offsets [first_offset, next_offset), and how many bytes were written."""

    first_offset: int
    next_offset: int
    bytes: int


class PartitionLog:
    """See the module. Made by `create` and `open`.

    Attributes:
        identity: Which partition this is.
        settings: When it rolls and what it keeps; altered by `update_settings`.
        recovery: What the last open or `recover` found and did.
        failure: Why appends are refused; None while the log is well.
    """

    @classmethod
    def create(
        cls, disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings, *, now_us: int, boot_id: str = ""
    ) -> PartitionLog:
        """Make a folder for a new, empty log, and open it.

        Raises:
            WrongFolder: the folder already holds a log.
            StorageFailed, DiskFull: the disk refuses.
        """
        try:
            if disk.exists(f"{folder}/{PARTITION_FILE}"):
                raise WrongFolder(f"{folder} already holds a log", path=folder)
            disk.makedirs(folder)
            write_identity(disk, folder, identity)
        except OSError as error:
            raise storage_error(error, f"create {folder}") from error
        return cls.open(disk, folder, settings, boot_id=boot_id, now_us=now_us, expected=identity)

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str,
        settings: LogSettings,
        *,
        boot_id: str,
        now_us: int,
        expected: LogIdentity | None = None,
    ) -> PartitionLog:
        """Open a log; recover it unless it was closed cleanly since this machine booted.

        Args:
            boot_id: Identifies this run of the machine; empty: not known, a clean mark is not trusted.
            expected: Refuse a folder of another partition.
        Raises:
            WrongFolder: no log is there, or that of another partition.
            UnknownFormatVersion: a later release wrote it; nothing was changed.
            CorruptLog: a file that cannot be rebuilt from others is damaged.
            StorageFailed, DiskFull: the disk refuses.
        """
        try:
            identity = read_identity(disk, folder)
            if expected is not None:
                check_identity(identity, expected, folder=folder)
            log = cls(disk, folder, identity, settings, boot_id)
            report = RecoveryReport()
            checkpoint = load_checkpoint(disk, folder, report)
            segments = list_segments(disk, folder)
            if not segments and report.notes:
                raise CorruptLog(
                    f"{folder}: the checkpoint is damaged and no segment is left: the next offset is not known",
                    path=folder,
                )
            if checkpoint is not None and _is_clean(disk, checkpoint, segments, boot_id):
                log._rest(checkpoint, segments)
            else:
                log._recover(checkpoint, report, now_us)
            return log
        except OSError as error:
            raise storage_error(error, f"open {folder}") from error

    def __init__(self, disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings, boot_id: str) -> None:
        self.identity = identity
        self.settings = settings
        self.folder = folder
        self.recovery = RecoveryReport()
        self.failure: LiftlogError | None = None
        self._disk = disk
        self._boot_id = boot_id
        self._checkpoint_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._lock = threading.RLock()
        self._segments: tuple[Segment, ...] = ()
        self._tail: Segment | None = None  # always the last of _segments; None: the next append makes a new one
        self._file: File | None = None  # of the tail, while it is not resting
        self._retired: list[File] = []  # of sealed segments; a sync may still be using them
        self._epochs: Epochs | None = None  # None: not read yet
        self._leader_epoch = -1
        self._log_start_offset = 0
        self._log_end_offset = 0
        self._durable_end = 0
        self._high_watermark = 0
        self._lost_ranges: Ranges = ()
        self._checkpointed: Checkpoint | None = None

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset that will be given out."""
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """First offset that is not committed."""
        return self._high_watermark

    @property
    def durable_end(self) -> int:
        """First offset that is not known to be on disk: the recovery point."""
        return self._durable_end

    @property
    def leader_epoch(self) -> int:
        """Epoch of the last record; -1 before the first."""
        return self._leader_epoch

    @property
    def lost_ranges(self) -> Ranges:
        """Half-open ranges of committed offsets that are damaged on disk, at or above the log start."""
        return self._lost_ranges

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def byte_count(self) -> int:
        """Bytes of all segment files."""
        while True:
            segments = self._segments
            try:
                return sum(segment.size(self._disk) for segment in segments)
            except FileNotFoundError:  # retention was here in between
                if segments is self._segments:
                    return 0

    @property
    def is_dirty(self) -> bool:
        """Whether `checkpoint` would write something new."""
        found = self._checkpointed
        return found is None or (
            found.high_watermark,
            found.log_start_offset,
            found.recovery_point,
            found.lost_ranges,
        ) != (self._high_watermark, self._log_start_offset, self._durable_end, self._lost_ranges)

    def update_settings(self, settings: LogSettings) -> None:
        """Take other limits from now on."""
        self.settings = settings

    # --- append ---------------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Encodable], *, leader_epoch: int, now_us: int) -> AppendResult:
        """Append batches as one commit group, with one write. Not durable before a later `sync`.

        Args:
            batches: n >= 1; they get consecutive offsets in this order.
            leader_epoch: Not less than that of the last append.
            now_us: Decides the age of a new segment.
        Raises:
            DiskFull: nothing was appended; a later call may succeed.
            StorageFailed: nothing was appended; nothing will be before `recover`.
        """
        assert batches, "an append holds at least one batch"
        self._withdraw_clean_mark()
        with self._lock:
            self._check_writable()
            first = offset = self._log_end_offset
            messages = []
            for i, batch in enumerate(batches):
                message = batch.compose(
                    first_offset=offset,
                    leader_epoch=leader_epoch,
                    high_watermark=self._high_watermark,
                    group_index=i,
                    group_count=len(batches),
                )
                assert message_bytes(message) == len(message) <= MESSAGE_BYTES_MAX, "a batch is not as long as it says"
                messages.append(message)
                offset += batch.record_count
            data = messages[0] if len(messages) == 1 else b"".join(messages)
            index, file = self._prepare(len(data), leader_epoch, now_us)
            position = end = index.view().end
            try:
                file.write(data)
            except OSError as error:
                raise self._take_back(file, end, error) from error
            at = first
            for batch, message in zip(batches, messages, strict=True):
                crc = int(bytes(message[CRC_AT : CRC_AT + 8]), 16)
                index.append(at, position, batch.max_timestamp_us, len(message), crc)
                at += batch.record_count
                position += len(message)
            self._log_end_offset = offset
            return AppendResult(first, offset, len(data))

    def sync(self) -> int:
        """Make durable all that was appended before the call. Appends go on meanwhile.

        Returns:
            The durable end, at least the log end of when the call began.
        Raises:
            StorageFailed, DiskFull: what was not durable may be gone; the log is failed (L3).
        """
        wanted = self._log_end_offset
        with self._sync_lock:
            with self._lock:
                self._check_writable()
                self._close_retired()
                end, file = self._log_end_offset, self._file
            if self._durable_end < wanted and file is not None:
                try:
                    file.sync()
                except OSError as error:
                    with self._lock:
                        raise self._fail(storage_error(error, f"fsync in {self.folder}")) from error
                with self._lock:
                    self._durable_end = max(self._durable_end, end)
            return self._durable_end

    def advance_high_watermark(self, offset: int) -> None:
        """Commit what is below `offset`; one that is not greater changes nothing."""
        with self._lock:
            assert offset <= self._log_end_offset, f"high watermark {offset} beyond the log end {self._log_end_offset}"
            self._high_watermark = max(self._high_watermark, offset)

    def roll_if_due(self, now_us: int) -> bool:
        """Seal the active segment if it is older than `segment_age_ms`. Returns whether it did."""
        with self._lock:
            tail = self._tail
            if self.failure or tail is None or now_us - tail.created_us < self.settings.segment_age_ms * 1_000:
                return False
            return self._seal_tail()

    # --- read -----------------------------------------------------------------------------------------------

    def read(self, offset: int, *, end: int | None = None, max_bytes: int | None = None) -> ReadPlan:
        """Find the batches that hold [offset, min(end, high watermark)).

        Args:
            offset: In [log start, high watermark]; at the high watermark the plan is empty.
            end: Exclusive; the last batch may go past it.
            max_bytes: At least one batch comes, if there is any; further ones while they fit.
        Returns:
            A plan; close it. Where it stops short, `next_offset` says where to go on.
        Raises:
            OffsetOutOfRange: with `log_start_offset` and `high_watermark`.
            CorruptLog: the files change while they are read.
        """
        return self._ask(lambda view: plan_read(view, offset, end=end, max_bytes=max_bytes))

    def batches(self, offset: int, end: int | None = None) -> Iterator[memoryview]:
        """Yield the verified messages that hold [offset, min(end, high watermark)), in order.

        Damaged ones are not yielded: they are noted in `lost_ranges`.

        Raises:
            OffsetOutOfRange: as `read`.
        """
        repaired = -1
        while True:
            messages: list[memoryview] = []
            damaged: Segment | None = None
            with self.read(offset, end=end, max_bytes=BATCHES_READ_BYTES) as plan:
                next_offset = plan.next_offset
                for place, (segment, file) in zip(plan.ranges, plan.sources, strict=True):
                    try:
                        for message, after in _verified(file.pread(place.length, place.position), place.path):
                            messages.append(message)
                            offset = after
                    except BadBatch:
                        damaged = segment
                        break
            yield from messages
            if damaged is not None:
                if repaired == offset:
                    raise CorruptLog(f"{damaged.path}: damaged, and scanning it anew did not help", path=damaged.path)
                repaired = offset
                self._repair(damaged)
            elif plan.ranges:
                offset = next_offset
            else:
                return

    def offset_for_time(self, timestamp_us: int) -> int | None:
        """The earliest committed offset whose timestamp is at or after `timestamp_us`, exactly; None when none is."""
        return self._ask(lambda view: find_time(view, timestamp_us))

    def bytes_between(self, start: int, end: int) -> int:
        """Stored bytes of [start, end), to whole batches."""
        return self._ask(lambda view: bytes_between(view, start, end))

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that wrote `offset`; -1 when there is no such record, or not any more."""
        return self._epochs_now().epoch_of(offset) if offset < self._log_end_offset else -1

    def epoch_end(self, epoch: int) -> int:
        """First offset after the records of `epoch` and earlier ones; the log end for the latest epoch."""
        return self._epochs_now().end_of(epoch, self._log_end_offset)

    # --- let go ---------------------------------------------------------------------------------------------

    def apply_retention(self, *, now_us: int) -> int:
        """Remove the segments that the settings do not keep. Returns the log start offset."""
        with self._lock:
            tail = self._tail
            greatest = None if tail is None else tail.max_timestamp_us(self._disk)
            if (
                tail is not None
                and greatest is not None
                and not self.failure
                and is_expired(greatest, self.settings, now_us)
            ):
                self._seal_tail()

        def kept(view: LogView) -> int:
            segments = []
            for segment in view.segments:
                greatest = segment.max_timestamp_us(view.disk)
                if greatest is None:
                    raise NeedsRepair(segment)
                segments.append(
                    Kept(base_offset=segment.base_offset, bytes=segment.size(view.disk), max_timestamp_us=greatest)
                )
            if self._tail is None:  # the last one is sealed: it may go too
                segments.append(Kept(base_offset=view.log_end_offset, bytes=0, max_timestamp_us=1 << 62))
            gone = retained_from(segments, end_offset=view.high_watermark, settings=self.settings, now_us=now_us)
            return segments[gone].base_offset if gone else view.log_start_offset

        return self._let_go(self._ask(kept))

    def trim(self, before_offset: int) -> int:
        """Let go of records below `before_offset` (at most the high watermark). Returns the log start offset."""
        return self._let_go(min(before_offset, self._high_watermark))

    def _let_go(self, start: int) -> int:
        with self._lock:
            if start <= self._log_start_offset or self.failure:
                return self._log_start_offset
            if start == self._log_end_offset and self._tail is None:
                self._new_tail()  # its name keeps the next offset
            self._log_start_offset = start
            self._lost_ranges = merge_ranges(self._lost_ranges, log_start_offset=start)
        self.checkpoint()  # K3
        with self._lock:
            gone = [a for a, b in zip(self._segments, self._segments[1:], strict=False) if b.base_offset <= start]
            self._segments = self._segments[len(gone) :]
        for segment in gone:
            with suppress(OSError):  # removed at the next open
                segment.unlink(self._disk)
        return start

    # --- rest -----------------------------------------------------------------------------------------------

    def checkpoint(self, *, clean: bool = False) -> None:
        """Write down how far the log is, so that the next open starts there. Nothing new: nothing is written.

        Args:
            clean: Also set the clean mark; only for a log that is wholly durable.
        Raises:
            StorageFailed, DiskFull: the old checkpoint stands.
        """
        with self._checkpoint_lock:
            try:
                with self._lock:
                    point = self._point(clean)
                if point != self._checkpointed:
                    self._disk.replace_file(f"{self.folder}/{CHECKPOINT_FILE}", point.encode())
                    self._checkpointed = point
            except OSError as error:
                raise storage_error(error, f"checkpoint in {self.folder}") from error

    def idle(self) -> bool:
        """Close the tail's file and forget its index, if all is durable. Returns whether no descriptor is held."""
        with self._sync_lock, self._lock:
            self._close_retired()
            tail, file = self._tail, self._file
            if self.failure or self._durable_end < self._log_end_offset:
                return False
            if tail is not None and tail.live is not None:
                try:
                    self._flush_index(tail)
                except OSError:
                    return False
                tail.rest(None, size=tail.live.view().end, partial=tail.partial)
            if file is not None:
                self._file = None
                file.close()
            return True

    def close(self, *, clean: bool = True) -> None:
        """Give everything back. Cleanly: fsync, and set the clean mark, so that the next open reads no segment.

        A failed log is closed without the mark.
        """
        try:
            if clean and self.failure is None:
                self.sync()
                self.checkpoint(clean=True)
        finally:
            with self._sync_lock, self._lock:
                if self.failure is None:
                    self.failure = StorageFailed(f"{self.folder} is closed", path=self.folder)
                self._close_files()

    def recover(self, now_us: int) -> RecoveryReport:
        """Bring a failed log back: drop what was appended and is not durable, open everything anew.

        What readers may have seen (below the high watermark) is written again first, since after a failed
        fsync the kernel holds pages as clean that never reached the disk. A log that is well is left alone.

        Raises:
            StorageFailed, DiskFull: the disk still refuses; the log stays failed.
        """
        with self._checkpoint_lock, self._sync_lock, self._lock:
            if self.failure is None:
                return self.recovery
            try:
                self._rewrite_tail()
                self._close_files()
                known = replace(self._point(False, flush=False), tail=None)
                for segment in self._segments:
                    INDEX_CACHE.drop(segment.serial)
                self._recover(known, RecoveryReport(), now_us)
            except OSError as error:
                raise self._fail(storage_error(error, f"recover {self.folder}")) from error
            self.failure = None
            return self.recovery

    # --- helpers: all hold the append lock ------------------------------------------------------------------

    def _prepare(self, size: int, leader_epoch: int, now_us: int) -> tuple[GrowingIndex, File]:
        """The tail, open, with room for `size` bytes, and the epoch noted."""
        try:
            tail = self._wake()
            if tail is not None and tail.live is not None:
                bytes_now = tail.live.view().end
                if tail.live.count and bytes_now + size > self.settings.segment_bytes:
                    self._seal_tail()
            if self._tail is None:
                self._new_tail()
            tail = self._tail
            assert tail is not None
            assert tail.live is not None
            assert self._file is not None
            if tail.live.count == 0:
                tail.created_us = now_us
            self._begin_epoch(leader_epoch)
        except OSError as error:
            raise storage_error(error, f"append in {self.folder}") from error
        return tail.live, self._file

    def _begin_epoch(self, leader_epoch: int) -> None:
        if leader_epoch == self._leader_epoch:
            return
        assert leader_epoch > self._leader_epoch, f"leader epoch {leader_epoch} after {self._leader_epoch}"
        epochs = Epochs(list(self._epochs_now().items))
        epochs.begin(leader_epoch, self._log_end_offset)
        epochs.trim(self._log_start_offset)
        self._disk.replace_file(f"{self.folder}/{EPOCHS_FILE}", epochs.encode())
        self._epochs, self._leader_epoch = epochs, leader_epoch

    def _wake(self) -> Segment | None:
        """Open the tail's file and read its index, if it rests. Returns the tail, if there is one (still)."""
        tail = self._tail
        if tail is None or self._file is not None:
            return tail
        if tail.live is None:
            view = tail.index(self._disk)
            if view is None or self._disk.size(tail.path) != view.end:
                self._repair(tail)
                tail = self._tail
                if tail is None:
                    return None
            else:
                tail.live = GrowingIndex(view.entries)
                INDEX_CACHE.drop(tail.serial)
        self._file = self._disk.open(tail.path)
        return tail

    def _new_tail(self) -> None:
        segment = Segment(self.folder, self._log_end_offset)
        file = self._disk.open(segment.path, create=True)
        try:
            if file.size():
                file.truncate(0)
            file.write(SCHEMA_BYTES)
            self._disk.sync_dir(self.folder)
        except OSError:
            file.close()
            with suppress(OSError):
                self._disk.unlink(segment.path)
            raise
        segment.live = GrowingIndex()
        segment.partial = (0, 0)
        self._file, self._tail = file, segment
        self._segments = (*self._segments, segment)

    def _seal_tail(self) -> bool:
        """End the tail: marker, fsync, index. The next append makes a new one. Returns False for an empty one."""
        tail = self._wake()
        file = self._file
        if tail is None or file is None or tail.live is None or tail.live.count == 0:
            return False
        view = tail.live.view()
        try:
            file.write(END_OF_STREAM)
        except OSError as error:
            raise self._take_back(file, view.end, error) from error
        try:
            file.sync()
        except OSError as error:
            raise self._fail(storage_error(error, f"fsync {tail.path}")) from error
        self._durable_end = self._log_end_offset
        with suppress(OSError):  # derivable: rebuilt when it is missing
            tail.write_index(self._disk, view.entries, have=tail.partial[0] if tail.partial else 0)
        tail.rest(view, size=view.end + len(END_OF_STREAM), partial=None)
        self._retired.append(file)
        self._file = self._tail = None
        return True

    def _flush_index(self, tail: Segment) -> None:
        assert tail.live is not None
        assert tail.partial is not None
        count, crc = tail.partial
        entries = tail.live.view().entries
        if len(entries) > count:
            tail.write_index(self._disk, entries, have=count, sealed=False)
            tail.partial = (len(entries), crc32c(entries[count:].tobytes(), crc))

    def _point(self, clean: bool, *, flush: bool = True) -> Checkpoint:
        tail, point = self._tail, None
        if tail is not None:
            if flush and tail.live is not None:
                self._flush_index(tail)
            assert tail.partial is not None
            point = TailPoint(
                base_offset=tail.base_offset,
                created_us=tail.created_us,
                entry_count=tail.partial[0],
                entry_crc=tail.partial[1],
                bytes=tail.size(self._disk),
            )
        assert not clean or self._durable_end == self._log_end_offset, "a clean mark on a log that is not durable"
        return Checkpoint(
            high_watermark=self._high_watermark,
            log_start_offset=self._log_start_offset,
            recovery_point=self._durable_end,
            leader_epoch=self._leader_epoch,
            tail=point,
            lost_ranges=self._lost_ranges,
            clean_boot_id=self._boot_id if clean else None,
        )

    def _withdraw_clean_mark(self) -> None:
        known = self._checkpointed
        if known is not None and known.clean_boot_id is not None:
            self.checkpoint()  # K2

    def _take_back(self, file: File, size: int, error: OSError) -> LiftlogError:
        """After a failed write: cut what of it is there. Without space that is all; else the log is failed (L3)."""
        found = storage_error(error, f"write in {self.folder}")
        try:
            file.truncate(size)
        except OSError as worse:
            return self._fail(storage_error(worse, f"truncate in {self.folder}"))
        return found if error.errno in NO_SPACE else self._fail(found)

    def _fail(self, error: LiftlogError) -> LiftlogError:
        if self.failure is None:
            self.failure = error
        return error

    def _check_writable(self) -> None:
        failure = self.failure
        if failure is not None:
            cls = DiskFull if isinstance(failure, DiskFull) else StorageFailed
            raise cls(f"{failure.message} (the log accepts nothing until it has recovered)", **failure.fields)

    def _close_retired(self) -> None:
        files, self._retired = self._retired, []
        for file in files:
            file.close()

    def _close_files(self) -> None:
        self._close_retired()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rest(self, checkpoint: Checkpoint, segments: list[Segment]) -> None:
        """Take the state of a clean checkpoint; no segment is read."""
        self.recovery = RecoveryReport(clean=True)
        self._segments = tuple(segments)
        if checkpoint.tail is not None:
            self._tail = tail = segments[-1]
            tail.created_us = checkpoint.tail.created_us
            tail.rest(
                None, size=checkpoint.tail.bytes, partial=(checkpoint.tail.entry_count, checkpoint.tail.entry_crc)
            )
        self._log_start_offset = checkpoint.log_start_offset
        self._log_end_offset = self._durable_end = checkpoint.recovery_point
        self._high_watermark = checkpoint.high_watermark
        self._leader_epoch = checkpoint.leader_epoch
        self._lost_ranges = checkpoint.lost_ranges
        self._checkpointed = checkpoint

    def _recover(self, checkpoint: Checkpoint | None, report: RecoveryReport, now_us: int) -> None:
        found = recover(self._disk, self.folder, checkpoint, report, now_us=now_us)
        self.recovery = found.report
        self._segments, self._tail = tuple(found.segments), found.tail
        self._log_start_offset = found.log_start_offset
        self._log_end_offset = self._durable_end = found.log_end_offset
        self._high_watermark = found.high_watermark
        self._epochs, self._leader_epoch = found.epochs, found.epochs.latest
        self._lost_ranges = found.lost_ranges
        self._disk.replace_file(f"{self.folder}/{EPOCHS_FILE}", found.epochs.encode())
        point = self._point(False)
        self._disk.replace_file(f"{self.folder}/{CHECKPOINT_FILE}", point.encode())
        self._checkpointed = point

    def _rewrite_tail(self) -> None:
        """Cut the tail to what is durable, and write what is committed beyond it again."""
        tail = self._tail
        if tail is None or tail.live is None:
            return
        index = tail.live.view()
        durable = index.end_of(index.find_from(self._durable_end) - 1)
        committed = index.end_of(index.find_from(self._high_watermark) - 1)
        file = self._disk.open(tail.path)
        try:
            again = file.pread(max(0, committed - durable), durable)
            file.truncate(durable)
            if again:
                file.write(again)
            file.sync()
        finally:
            file.close()

    # --- helpers that take their own locks ------------------------------------------------------------------

    def _view(self) -> LogView:
        # In this order: what a later attribute holds covers what an earlier one says.
        high_watermark, end, segments = self._high_watermark, self._log_end_offset, self._segments
        return LogView(self._disk, segments, self._log_start_offset, high_watermark, end, self._lost_ranges)

    def _ask(self, question: Callable[[LogView], T]) -> T:
        """Ask again after each repair, or when a segment went away after the view was taken."""
        for _ in range(REPAIRS_PER_CALL_MAX):
            view = self._view()
            try:
                return question(view)
            except NeedsRepair as damage:
                self._repair(damage.segment)
            except FileNotFoundError as error:
                missing = next((s for s in view.segments if s.path == error.filename), None)
                if missing is not None:
                    self._repair(missing)
            except OSError as error:
                raise storage_error(error, f"read in {self.folder}") from error
        raise CorruptLog(f"{self.folder}: damaged, and scanning it anew did not help", path=self.folder)

    def _repair(self, segment: Segment) -> None:
        """Scan a segment anew: write its index, note what is lost, never append to it again if anything is."""
        with self._lock:
            if segment not in self._segments:
                return
            number = self._segments.index(segment)
            following = self._segments[number + 1 :]
            end = following[0].base_offset if following else self._log_end_offset
            report = RecoveryReport()
            try:
                view = rescan(self._disk, segment, end, report)
            except FileNotFoundError:
                report.lost.append((segment.base_offset, end))
                self._segments = (*self._segments[:number], *following)
                view = None
            except OSError as error:
                raise storage_error(error, f"scan {segment.path}") from error
            self._lost_ranges = merge_ranges(
                [*self._lost_ranges, *report.lost], log_start_offset=self._log_start_offset
            )
            if segment is self._tail:
                whole = (
                    view is not None and view.contiguous and view.end == segment.size(self._disk) and not report.lost
                )
                if whole and view is not None:
                    segment.partial = (0, 0)
                    segment.live = GrowingIndex(view.entries)
                else:
                    self._tail = None
                    if self._file is not None:
                        self._retired.append(self._file)
                        self._file = None

    def _epochs_now(self) -> Epochs:
        epochs = self._epochs
        if epochs is None:
            epochs = self._epochs = load_epochs(self._disk, self.folder) or Epochs()
        return epochs


def _is_clean(disk: Disk, checkpoint: Checkpoint, segments: list[Segment], boot_id: str) -> bool:
    """Whether the clean mark is of this run of the machine, and the files are those that it was set for."""
    if not boot_id or checkpoint.clean_boot_id != boot_id:
        return False
    tail = checkpoint.tail
    if tail is None:
        return not segments or segments[-1].base_offset <= checkpoint.recovery_point
    last = segments[-1] if segments else None
    return last is not None and last.base_offset == tail.base_offset and disk.size(last.path) == tail.bytes


def _verified(data: bytes, path: str) -> Iterator[tuple[memoryview, int]]:
    """Each message of a range and the offset after it.

    Raises:
        BadBatch: one is damaged.
    """
    view = memoryview(data)
    while view:
        head = peek(view[:1024])
        if head is None or head.length > len(view):
            raise BadBatch(f"{path}: no batch", path=path)
        message = view[: head.length]
        yield message, verify_batch(message, where=f"{path}: ").next_offset
        view = view[head.length :]
