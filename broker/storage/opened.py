"""What is known of an open log, how it is found on disk, and how trouble with its files is met.

The shared ground of everything that `PartitionLog` does; no operation of its own but opening. Three kinds of
trouble:

- a file that can be derived is missing or wrong, or a committed batch is damaged: scanned anew, lost ranges noted
  (`_repair`); the question that met it is asked again (`_ask`);
- the disk refuses and nothing has changed: an error of the tree (`_guarded`);
- what a file holds is not known any more: the log is failed until it is recovered (`_fail`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Self, TypeVar

from broker.api.batch import BatchHeader
from broker.api.errors import CorruptLog, DiskFull, LiftlogError, StorageFailed, WrongFolder
from broker.storage.chain import Chain, Untrusted
from broker.storage.checkpoint import (
    CHECKPOINT_FILE,
    PARTITION_FILE,
    Checkpoint,
    LogIdentity,
    LogSettings,
    check_identity,
    read_identity,
    write_identity,
)
from broker.storage.disk import Disk, File, storage_error
from broker.storage.epochs import Epochs, derive_epochs, load_epochs, write_epochs
from broker.storage.index import Entries, IndexView
from broker.storage.joining import announce, retract, settle_joins
from broker.storage.read import LogView, NeedsRepair
from broker.storage.recovery import (
    Ranges,
    RecoveryReport,
    is_clean,
    list_segments,
    load_checkpoint,
    merge_ranges,
    recover,
)
from broker.storage.segment import Segment

REPAIRS_PER_CALL_MAX: Final = 8
T = TypeVar("T")


class OpenLog:
    """See the module.

    Attributes:
        identity: Which partition this is.
        settings: When it rolls and what it keeps; altered by `update_settings`.
        log_start_offset: First offset that can be read.
        log_end_offset: The next offset that will be given out.
        durable_end: First offset that is not known to be on disk; the recovery point.
        high_watermark: First offset that is not committed.
        leader_epoch: Of the last record; -1 before the first.
        lost_ranges: Half-open ranges of committed offsets that are damaged on disk, at or above the log start.
        recovery: What the last open or `recover` found and did.
        failure: Why appends are refused; None while the log is well.
    """

    @classmethod
    def create(
        cls, disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings, *, now_us: int, boot_id: str = ""
    ) -> Self:
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
    ) -> Self:
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
            joins: list[str] = []
            checkpoint = load_checkpoint(disk, folder, report)
            settle_joins(disk, folder, joins)
            segments = list_segments(disk, folder)
            if not segments and report.notes:
                raise CorruptLog(
                    f"{folder}: the checkpoint is damaged and no segment is left, so the next offset is not known",
                    path=folder,
                )
            log._checkpointed = checkpoint
            if checkpoint is not None and is_clean(disk, checkpoint, segments, boot_id):
                log._rest(checkpoint, segments)
            else:
                log._recover(checkpoint, report, now_us)
            log.recovery.notes += joins
            return log
        except OSError as error:
            raise storage_error(error, f"open {folder}") from error

    def __init__(self, disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings, boot_id: str) -> None:
        self.identity = identity
        self.settings = settings
        self.folder = folder
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.durable_end = 0
        self.high_watermark = 0
        self.leader_epoch = -1
        self.lost_ranges: Ranges = ()
        self.recovery = RecoveryReport()
        self.failure: LiftlogError | None = None
        self._disk = disk
        self._boot_id = boot_id
        self._chain = Chain(disk, folder, [], None)
        self._epochs: Epochs | None = None  # None: not read yet
        self._checkpointed: Checkpoint | None = None  # what the file says
        self._is_closed = False
        self._checkpoint_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._lock = threading.RLock()
        self._high_watermark_lock = threading.Lock()

    def _known_epochs(self) -> Epochs:
        epochs = self._epochs
        if epochs is None:
            with self._guarded("read epochs"):
                epochs = load_epochs(self._disk, self.folder) or self._ask(derive_epochs)
            self._epochs = epochs
        return epochs

    def _point(self, *, clean: bool = False, flush: bool = True) -> Checkpoint:
        assert not clean or self.durable_end == self.log_end_offset, "a clean mark on a log that is not durable"
        return Checkpoint(
            high_watermark=self.high_watermark,
            log_start_offset=self.log_start_offset,
            recovery_point=self.durable_end,
            leader_epoch=self.leader_epoch,
            tail=self._chain.point(flush=flush),
            lost_ranges=self.lost_ranges,
            clean_boot_id=self._boot_id if clean else None,
        )

    def _write_checkpoint(self, point: Checkpoint, *, frees: bool = False) -> None:
        if point != self._checkpointed:
            self._disk.replace_file(f"{self.folder}/{CHECKPOINT_FILE}", point.encode(), frees=frees)
            self._checkpointed = point

    def _rest(self, checkpoint: Checkpoint, segments: list[Segment]) -> None:
        """Take the state of a clean checkpoint; no segment is read."""
        self.recovery = RecoveryReport(clean=True)
        tail, point = None, checkpoint.tail
        if point is not None:
            tail = segments[-1]
            tail.created_us = point.created_us
            tail.rest(None, size=point.bytes, partial=(point.entry_count, point.entry_crc))
        self._chain = Chain(self._disk, self.folder, segments, tail)
        self.log_start_offset = checkpoint.log_start_offset
        self.log_end_offset = self.durable_end = checkpoint.recovery_point
        self.high_watermark = checkpoint.high_watermark
        self.leader_epoch = checkpoint.leader_epoch
        self.lost_ranges = checkpoint.lost_ranges

    def _recover(self, checkpoint: Checkpoint | None, report: RecoveryReport, now_us: int) -> None:
        found = recover(self._disk, self.folder, checkpoint, report, now_us=now_us)
        self.recovery = found.report
        self._chain = Chain(self._disk, self.folder, found.segments, found.tail)
        self.log_start_offset = found.log_start_offset
        self.log_end_offset = self.durable_end = found.log_end_offset
        self.high_watermark = found.high_watermark
        self.lost_ranges = found.lost_ranges
        stored = load_epochs(self._disk, self.folder)
        epochs = Epochs([*stored.items]) if stored is not None else self._ask(derive_epochs)
        epochs.cut(found.log_end_offset)
        for epoch, first_offset in found.new_epochs:
            if epoch > epochs.latest:
                epochs.begin(epoch, first_offset)
        self._epochs, self.leader_epoch = epochs, epochs.latest
        try:
            if epochs.items != (stored.items if stored is not None else []):
                write_epochs(self._disk, self.folder, epochs)
            # Where nothing was wrong the old one still holds, and an empty log needs none: thousands of idle
            # logs start without an fsync.
            is_new = checkpoint is None and found.segments
            if is_new or report.lost or report.cut_offset is not None:
                self._write_checkpoint(self._point())
        except OSError as error:  # a full disk: what was found now is found again at the next open
            report.notes.append(f"{self.folder}: no new checkpoint: {error.strerror or error}")

    @property
    def disk(self) -> Disk:
        """Where its files are."""
        return self._disk

    def sealed_segments(self) -> list[tuple[Segment, int]]:
        """The segments that nothing is appended to any more, each with the offset after it."""
        with self._lock:
            segments, tail, end = self._chain.segments, self._chain.tail, self.log_end_offset
        ends = [*(segment.base_offset for segment in segments[1:]), end]
        return [(segment, end) for segment, end in zip(segments, ends, strict=False) if segment is not tail]

    def index_of(self, segment: Segment) -> IndexView:
        """The index of a sealed segment, with an entry for each batch: what is written anew without one is gone.

        Raises:
            NeedsRepair: there is none, or it lacks entries.
        """
        return self._view().index(segment)

    def rewritable_end(self) -> int:
        """Only what lies below it may be written anew with fewer records."""
        return self.log_end_offset

    def needs_stamp(self, header: BatchHeader) -> bool:
        """Whether the producer stamp of a stored batch may still decide an append."""
        return header.producer_id != 0

    def replace_segments(self, old: Sequence[Segment], staged: str, entries: Entries, size: int) -> bool:
        """Put the file `staged`, which is on disk, in the place of sealed segments, durably. Readers are undisturbed.

        Args:
            old: n >= 1 that follow one another.
            entries: Its index.
            size: Its bytes.
        Returns:
            False: one of them is gone meanwhile; then `staged` is gone too.
        Raises:
            StorageFailed, DiskFull: the log is failed, or the disk refuses; the old ones are there, or the new one,
                whole (J1).
        """
        start = old[0].base_offset
        end = next((after for segment, after in self.sealed_segments() if segment is old[-1]), start)
        is_done = False
        replaced: File | None = None
        try:
            if end > start:
                if len(old) > 1:
                    with self._guarded("join"):
                        announce(self._disk, self.folder, start, end)
                with suppress(OSError):  # held open, or the lock would wait until its blocks are freed
                    replaced = self._disk.open(old[0].path, readonly=True)
                with self._lock, self._guarded("replace"):
                    self._check_writable()
                    is_done = self._chain.replace(old, staged, entries, size)
        finally:
            if replaced is not None:
                replaced.close()
            if not is_done:
                with suppress(OSError):
                    self._disk.unlink(staged)
        with self._guarded("replace"):
            self._disk.sync_dir(self.folder)
            if len(old) > 1 and end > start:
                for segment in old[1:] if is_done else ():
                    segment.unlink(self._disk)
                self._disk.sync_dir(self.folder)
                retract(self._disk, self.folder, start, end)
        return is_done

    def repair_segment(self, segment: Segment) -> None:
        """Scan a segment anew whose batches are not what its index says, or which has none; what is lost is noted."""
        self._repair(segment)

    def _view(self) -> LogView:
        # In this order: what a later attribute holds covers what an earlier one says.
        high_watermark, end, segments = self.high_watermark, self.log_end_offset, self._chain.segments
        start = self.log_start_offset
        return LogView(self.identity, self._disk, segments, start, high_watermark, end, self.lost_ranges)

    def _ask(self, question: Callable[[LogView], T]) -> T:
        """Ask again after each repair, or when a segment went away after the view was taken."""
        for _ in range(REPAIRS_PER_CALL_MAX + len(self._chain.segments)):  # a power cut may take every index file
            view = self._view()
            try:
                return question(view)
            except NeedsRepair as damage:
                self._repair(damage.segment, around_errors=damage.around_errors)
            except FileNotFoundError as error:
                for segment in view.segments:
                    if segment.path == error.filename:
                        self._repair(segment)
            except OSError as error:
                raise storage_error(error, f"read in {self.folder}") from error
        raise CorruptLog(f"{self.folder}: damaged, and scanning it anew did not help", path=self.folder)

    def _repair(self, segment: Segment, *, around_errors: bool = False) -> None:
        """Scan a segment anew: its index is written, what is lost is noted.

        One that is not ours any more is left alone. `around_errors`: what the disk cannot read is damaged; else that
        is an error.
        """
        with self._lock:
            if segment not in self._chain.segments:
                return
            was_tail = segment is self._chain.tail
            if was_tail:
                self._check_writable()  # `recover` is about to write it again
            with self._guarded("scan"):
                lost = self._chain.repair(segment, self.log_end_offset, around_errors=around_errors)
            if was_tail and self._chain.tail is None:
                self.durable_end = self.log_end_offset
            self.lost_ranges = merge_ranges([*self.lost_ranges, *lost], log_start_offset=self.log_start_offset)

    def _guarded(self, doing: str) -> _Guard:
        """What `_error_of` says of what the disk raises within."""
        return _Guard(self, doing)

    def _fail(self, error: LiftlogError) -> LiftlogError:
        if self.failure is None:
            self.failure = error
        return error

    def _check_writable(self) -> None:
        failure = self.failure
        if failure is not None:
            cls = DiskFull if isinstance(failure, DiskFull) else StorageFailed
            raise cls(f"{failure.message} (nothing is accepted until the log has recovered)", **failure.fields)

    def _error_of(self, error: OSError | Untrusted, doing: str) -> LiftlogError:
        """Trouble of the disk as an error of the tree; the log is failed when a file is not to be trusted."""
        if isinstance(error, Untrusted):
            return self._fail(error.error)
        return storage_error(error, f"{doing} in {self.folder}")


class _Guard:
    """What `_guarded` returns. (A class: a generator would take four times as long to enter.)"""

    __slots__ = ("_doing", "_log")

    def __init__(self, log: OpenLog, doing: str) -> None:
        self._log = log
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (OSError, Untrusted)):
            raise self._log._error_of(error, self._doing) from error
