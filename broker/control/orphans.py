"""Folders of streams: how one goes, and those that the catalog does not name, found at the start.

    streams/<name>/<incarnation>/      named by the catalog: a stream's
                                       deleted, says the catalog: removed, the broker was killed before it had done so
                                       of no record: removed, the broker was killed amid a creation
                                       neither: left as it is, and named in a line and by `liftlog doctor`

O1  A folder is removed only if the catalog remembers the deletion of exactly that incarnation, or there was never a
    record in it (O4), and no partition in it says in its `partition.json` that it is of another cluster, stream or
    incarnation. Everything else may be somebody's only copy.
O2  The catalog forgets a deletion only when the folder is gone and that is durable.
O3  Where there are folders of streams and no catalog at all, nothing starts: an empty one would
    begin its numbers (leader epochs, producer ids) again, under logs that hold them already.
O4  There was never a record where there are no other files than those of a new log, and none of them says of an offset
    or of a leader epoch. So it is with what a creation leaves that was killed before the catalog had it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from broker.api.errors import CorruptLog, LiftlogError
from broker.storage.disk import TEMPORARY, Disk
from broker.storage.encrypted.keyfile import KEYS_COPY, KEYS_FILE
from broker.storage.folder import partition_folder
from broker.storage.recovery import RecoveryReport, load_checkpoint
from broker.storage.rewrite.clean_state import CLEAN_STATE_FILE, CleanState, load_clean_state
from broker.storage.segments.checkpoint import CHECKPOINT_FILE, PARTITION_FILE, Checkpoint, read_identity

log = logging.getLogger(__name__)

Incarnation = tuple[str, str]
"""Stream and incarnation."""
SHOWN: Final = 20
NEW_FILES: Final = {PARTITION_FILE, CHECKPOINT_FILE, CLEAN_STATE_FILE, KEYS_FILE, KEYS_COPY}
"""The files of a log that was never appended to."""


def unnamed_folders(disk: Disk, root: str, known: Collection[Incarnation]) -> Iterator[Incarnation]:
    """The incarnations that have a folder in `root` and are not known. OSError passes through."""
    if not disk.exists(root):
        return
    for stream in sorted(disk.listdir(root)):
        for incarnation in sorted(_folders(disk, f"{root}/{stream}")):
            if (stream, incarnation) not in known:
                yield stream, incarnation


def require_catalog(disk: Disk, path: str, root: str) -> None:
    """Refuse a catalog that is gone (O3).

    Args:
        path: Where the catalog's file is.
        root: The folder `streams`.
    Raises:
        CorruptLog: it is not there, and folders of streams are.
    """
    if disk.exists(path):
        return
    folders = list(unnamed_folders(disk, root, ()))
    if folders:
        raise CorruptLog(
            f"{path} is missing, and {root} holds {len(folders)} streams: restore it from a backup. Without it their"
            f" names and settings are not known; their records are read by `liftlog log export {root}/NAME`."
            " To begin anew take another data_dir"
        )


def remove_orphans(
    disk: Disk, root: str, *, cluster_id: str, known: Collection[Incarnation], deleted: Collection[Incarnation]
) -> list[Incarnation]:
    """Finish the deletions that were cut short (O1); say what else lies there.

    Args:
        root: The folder `streams`.
        known: The streams that the catalog names.
        deleted: Those that were deleted, as the catalog says.
    Returns:
        Those of `deleted` that have no folder any more: the catalog may forget them (O2).
    """
    left: list[Incarnation] = []
    try:
        for stream, incarnation in list(unnamed_folders(disk, root, known)):
            folder = f"{root}/{stream}/{incarnation}"
            is_deleted = (stream, incarnation) in deleted
            may_go = is_deleted or _is_empty(disk, folder)
            if may_go and _is_ours(disk, folder, cluster_id, stream, incarnation):
                disk.remove_tree(folder)
                what = "deletion" if is_deleted else "creation"
                log.info("stream.folder_removed path=%s (its %s had been cut short)", folder, what)
            else:
                left.append((stream, incarnation))
        if disk.exists(root):
            for stream in disk.listdir(root):
                _sync_names(disk, root, stream)
            disk.sync_dir(root)
    except OSError as error:
        log.warning("stream.folders_unread path=%s error=%s", root, error)
        return []
    if left:
        paths = [f"{root}/{stream}/{incarnation}" for stream, incarnation in left]
        shown = ", ".join(paths[:SHOWN]) + (", ..." if len(paths) > SHOWN else "")
        log.warning("stream.folders_unknown count=%d paths=%s", len(paths), shown)
    return [one for one in deleted if one not in left]


def remove_folder(disk: Disk, root: str, stream: str, incarnation: str) -> None:
    """Remove the folder of a deleted incarnation, durably, and that of its name if nothing else is in it.

    Raises:
        OSError: something of it may be left.
    """
    disk.remove_tree(partition_folder(root, stream, incarnation))
    _sync_names(disk, root, stream)
    disk.sync_dir(root)


def _sync_names(disk: Disk, root: str, stream: str) -> None:
    """Remove the folder of a name if it is empty; else what was removed in it becomes durable."""
    try:
        disk.remove_folder(f"{root}/{stream}")
    except NotADirectoryError:
        pass
    except OSError:
        with suppress(FileNotFoundError):
            disk.sync_dir(f"{root}/{stream}")


def _is_ours(disk: Disk, folder: str, cluster_id: str, stream: str, incarnation: str) -> bool:
    """Whether nothing but partitions of that incarnation is in it."""
    for number in _folders(disk, folder):
        if not disk.exists(f"{folder}/{number}/{PARTITION_FILE}"):
            continue  # a removal of it was cut short, and files go in no order
        try:
            found = read_identity(disk, f"{folder}/{number}")
        except LiftlogError:
            return False
        if (found.cluster_id, found.stream, found.incarnation, str(found.partition)) != (
            cluster_id,
            stream,
            incarnation,
            number,
        ):
            return False
    return True


def _is_empty(disk: Disk, folder: str) -> bool:
    """Whether there was never a record in it (O4)."""
    try:
        numbers = disk.listdir(folder)
        return all(number.isdecimal() and _is_new(disk, f"{folder}/{number}") for number in numbers)
    except (NotADirectoryError, LiftlogError):
        return False


def _is_new(disk: Disk, folder: str) -> bool:
    if not {name.removesuffix(TEMPORARY) for name in disk.listdir(folder)} <= NEW_FILES:
        return False
    report = RecoveryReport()
    point = load_checkpoint(disk, folder, report) or Checkpoint()
    is_clean = load_clean_state(disk, folder) in (CleanState(), CleanState(superseded_to=0))
    return not report.notes and is_clean and replace(point, clean_boot_id=None) == Checkpoint()


def _folders(disk: Disk, path: str) -> list[str]:
    try:
        return disk.listdir(path)
    except NotADirectoryError:
        return []
