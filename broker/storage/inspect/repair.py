"""Repair a partition's folder: rebuild what can be derived, cut a torn tail, note what is lost. Nothing is deleted.

The repair is the recovery that the broker itself does at an unclean open, and the rebuild of an index that it does
when it reads, made to happen now. They run on an `AsideDisk`, on which whatever would vanish is first
copied or moved into a folder of its own:

    <aside>/00000000000000004711.arrows.52000     the bytes that were cut from position 52000 on
    <aside>/00000000000000000000.index            an index as it was
    <aside>/checkpoint                            likewise

M1  Bytes leave their place only after they are durable in the folder aside.
M2  A log in which nothing is wrong is not touched; nor is one that belongs elsewhere or is of a later release.
M3  Every step may be repeated: a repair that was killed is done again from the start.

Who calls this holds the lock of the data folder: a broker must not have the log open.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from broker.storage.disk import Disk, File, ReadableBuffer
from broker.storage.disk.overlay import OverlayDisk
from broker.storage.inspect.findings import BLOCKING, Finding, Inspection
from broker.storage.inspect.inspection import inspect_partition
from broker.storage.log import PartitionLog
from broker.storage.recovery import RecoveryReport, list_segments, merge_ranges, rescan
from broker.storage.segments.checkpoint import CHECKPOINT_FILE, Checkpoint, LogIdentity, LogSettings
from broker.storage.segments.epochs import EPOCHS_FILE
from broker.storage.segments.scan import is_zeros
from broker.storage.segments.segment import INDEX_ENDING

COPY_BYTES: Final = 4 << 20
KEEP_MS: Final = 1 << 50
"""The window of ids of a log that is mended: none is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing that was done to a file.

    Attributes:
        what: `cut` at `position`, `rebuilt` (an index, from its segment), `moved` as a whole, `wrote` anew.
        bytes: That were taken away.
        aside: Where those are now; None: there were none, or nothing was really done.
    """

    what: str
    path: str
    position: int = 0
    bytes: int = 0
    aside: str | None = None


@dataclass(slots=True, kw_only=True)
class Mending:
    """What a repair found and did.

    Attributes:
        before: As it was.
        deeds: What was done, in order; with a dry run, what would be.
        after: As it is now, or would be; None: nothing was done.
        refused: Why nothing may be done here; None: something could.
    """

    before: Inspection
    deeds: list[Deed] = field(default_factory=list)
    after: Inspection | None = None
    refused: str | None = None


def mend(
    disk: Disk,
    folder: str,
    aside: str,
    *,
    now_us: int,
    expected: LogIdentity | None = None,
    dry_run: bool = False,
) -> Mending:
    """Repair one partition's folder.

    Args:
        aside: Where to put what is taken away. Made when the first file needs it; on the same file system.
        now_us: Becomes the creation time of a segment that begins anew.
        expected: What the folder's place says that it holds.
        dry_run: Only tell; nothing on the disk is changed.
    Raises:
        DiskFull, StorageFailed: the disk refuses; nothing was taken away that is not aside (M1).
        OSError: the same, from a plain call.
    """
    mending = Mending(before=inspect_partition(disk, folder, expected=expected))
    refusing = mending.before.of_kind(*BLOCKING)
    if refusing:
        mending.refused = f"{refusing[0].text}: {refusing[0].consequence}"
    findings = [finding for finding in mending.before.findings if finding.is_repairable]
    if refusing or not findings:
        return mending
    work = AsideDisk(OverlayDisk(disk) if dry_run else disk, None if dry_run else aside)
    mending.deeds = work.deeds
    _note_losses(work, folder, mending.before, findings)
    _rebuild(work, folder, findings)
    log = PartitionLog.open(work, folder, LogSettings(dedup_window_ms=KEEP_MS), boot_id="", now_us=now_us)
    try:
        log.checkpoint()
    finally:
        log.close(clean=False)
    mending.after = inspect_partition(work.under, folder, expected=expected)
    return mending


def _note_losses(disk: AsideDisk, folder: str, found: Inspection, findings: Sequence[Finding]) -> None:
    """Write the lost ranges into the checkpoint, before anything else: what follows builds indexes around them."""
    lost = [(f.first_offset, f.next_offset) for f in findings if f.kind == "lost_range"]
    ranges = [(first, after) for first, after in lost if first is not None and after is not None]
    if not ranges:
        return
    path = f"{folder}/{CHECKPOINT_FILE}"
    known = None
    if disk.exists(path):
        known = Checkpoint.decode(disk.read_file(path), where=path)
    if known is None:  # what the names prove: all before the last segment was fsynced
        segments = list_segments(disk, folder)
        point = segments[-1].base_offset if segments else found.log_start_offset
        known = Checkpoint(
            high_watermark=found.high_watermark, log_start_offset=found.log_start_offset, recovery_point=point
        )
    merged = merge_ranges([*known.lost_ranges, *ranges], log_start_offset=known.log_start_offset)
    disk.replace_file(path, replace(known, lost_ranges=merged, clean_boot_id=None).encode())


def _rebuild(disk: AsideDisk, folder: str, findings: Sequence[Finding]) -> None:
    """Build sealed segments' indexes anew; take away what the open that follows will derive."""
    wrong = {f.path for f in findings if f.kind in ("wrong_index", "lost_range")}
    segments = list_segments(disk, folder)
    for segment, following in pairwise(segments):
        if wrong & {segment.path, segment.index_path}:
            rescan(disk, segment, following.base_offset, RecoveryReport())
    gone = [f.path for f in findings if f.kind == "wrong_epochs" and f.path.endswith(f"/{EPOCHS_FILE}")]
    if segments and wrong & {segments[-1].path, segments[-1].index_path}:
        gone.append(segments[-1].index_path)  # then the open scans the last segment from its start
    for path in sorted(set(gone)):
        if disk.exists(path):
            disk.unlink(path)


class AsideFile:
    """An open file of an `AsideDisk`."""

    def __init__(self, disk: AsideDisk, file: File, path: str) -> None:
        self._disk = disk
        self._file = file
        self.path = path
        self.write, self.pread, self.size = file.write, file.pread, file.size
        self.sync, self.close, self.fileno = file.sync, file.close, file.fileno
        self.pread_cold, self.pread_into = file.pread_cold, file.pread_into
        self.forget, self.hasten, self.rewrite = file.forget, file.hasten, file.rewrite
        self.trim = file.trim

    def truncate(self, size: int) -> None:
        count = self._file.size() - size
        if count > 0 and not is_zeros(self._file, size):
            aside = self._disk.copy(self._file, f"{self.path}.{size}" if size else self.path, size)
            what = "rebuilt" if self.path.endswith(INDEX_ENDING) else "cut"
            self._disk.deeds.append(Deed(what=what, path=self.path, position=size, bytes=count, aside=aside))
        self._file.truncate(size)


class AsideDisk:
    """A disk on which nothing is deleted, for one partition's folder. See the module.

    Attributes:
        under: The disk that it works on.
        deeds: What was done so far.
    """

    def __init__(self, under: Disk, aside: str | None) -> None:
        self.under = under
        self.deeds: list[Deed] = []
        self._aside = aside
        self.listdir, self.exists, self.size = under.listdir, under.exists, under.size
        self.makedirs, self.sync_dir, self.read_file = under.makedirs, under.sync_dir, under.read_file
        self.rename = under.rename

    def open(self, path: str, *, create: bool = False, readonly: bool = False, ahead: int = 0) -> File:
        if readonly:
            return self.under.open(path, readonly=True)
        if create and not self.under.exists(path):
            self.deeds.append(Deed(what="wrote", path=path))
        return AsideFile(self, self.under.open(path, create=create), path)

    def unlink(self, path: str) -> None:
        """Move the file aside."""
        count, target = self.under.size(path), self._target(path)
        if target is None:
            self.under.unlink(path)
        else:
            self._move(path, target)
        self.deeds.append(Deed(what="moved", path=path, bytes=count, aside=target))

    def replace_file(self, path: str, data: ReadableBuffer, *, frees: bool = False) -> None:
        before = self.under.read_file(path) if self.under.exists(path) else None
        if before == bytes(data):
            return
        aside = None
        if before is not None:
            file = self.under.open(path, readonly=True)
            try:
                aside = self.copy(file, path, 0)
            finally:
                file.close()
        self.under.replace_file(path, data)
        self.deeds.append(Deed(what="wrote", path=path, bytes=len(before or b""), aside=aside))

    def remove_tree(self, path: str) -> None:
        raise AssertionError(f"a repair removes no folder: {path}")

    remove_folder = remove_tree

    def copy(self, file: File, name: str, position: int) -> str | None:
        """Copy a file from `position` on into the folder aside, durably (M1). Returns where; None with a dry run."""
        target = self._target(name)
        if target is None:
            return None
        copied = self.under.open(target, create=True)
        try:
            while part := file.pread(COPY_BYTES, position):
                copied.write(part)
                position += len(part)
            copied.sync()
        finally:
            copied.close()
        self.under.sync_dir(self._folder())
        return target

    def _move(self, path: str, target: str) -> None:
        try:
            self.under.rename(path, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._copy_over(path)
        self.under.sync_dir(self._folder())
        self.under.sync_dir(path.rpartition("/")[0])

    def _copy_over(self, path: str) -> None:
        file = self.under.open(path, readonly=True)
        try:
            self.copy(file, path, 0)
        finally:
            file.close()
        self.under.unlink(path)

    def _folder(self) -> str:
        assert self._aside is not None
        return self._aside

    def _target(self, path: str) -> str | None:
        """A free name in the folder aside; None with a dry run."""
        if self._aside is None:
            return None
        self.under.makedirs(self._aside)
        wanted = target = f"{self._aside}/{path.rpartition('/')[2]}"
        number = 0
        while self.under.exists(target):
            number += 1
            target = f"{wanted}~{number}"
        return target
