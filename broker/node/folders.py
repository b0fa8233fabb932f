"""The folders of placed partitions: opened, made, moved aside, removed.

    streams/<name>/<incarnation>/<number>/            a replica's log
    streams/<name>/<incarnation>/<number>.aside/      what was damaged, until the others are in sync again

D1  A folder is made durable with its names before it is said to be there.
D2  A damaged folder is moved away as a whole, by one rename; one that was moved away before goes first. A folder
    without a segment goes at once: it would take the place of records.
D3  A folder goes only when the catalog says that this broker is to delete it, or where it is new, and the catalog was
    not told of it.
D4  How far a log went is forgotten before another one is made in its place (`log_ends.E3`).
D5  What is above a stream's folder is synced once, and again after a removal, not with each of its partitions. A folder
    that another turn has just made may not be durable yet: one counts only once a turn has synced it after making its
    own log in it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from broker.api.errors import KeyMissing, LiftlogError, UnknownFormatVersion
from broker.api.stream import StreamSettings
from broker.metadata.catalog import StreamInfo
from broker.node.log_ends import LogEnds
from broker.storage.disk import Disk, disk_errors
from broker.storage.folder import partition_folder
from broker.storage.log import PartitionLog
from broker.storage.recovery import RecoveryReport, list_segments
from broker.storage.segments.checkpoint import PARTITION_FILE, LogIdentity, LogSettings, read_identity

log = logging.getLogger(__name__)

ASIDE = ".aside"


class _Durable:
    """Folders of streams whose names are durable (D5). Thread-safe."""

    def __init__(self) -> None:
        self.folders: frozenset[PurePath] = frozenset()
        self.removals = 0
        self._lock = threading.Lock()

    def note(self, folder: PurePath, removals: int) -> None:
        """It was synced, with all above it. `removals`: as of before."""
        with self._lock:
            if removals == self.removals:
                self.folders |= {folder}

    def removed(self) -> None:
        """Folders that are empty may go, from now on."""
        with self._lock:
            self.removals += 1
            self.folders = frozenset()


@dataclass(frozen=True, slots=True)
class Folders:
    """The logs' folders in one data folder.

    Args:
        root: The folder `streams`.
        settings: The broker's own settings that concern logs.
        ends: So far the logs went when somebody looked last.
        elapsed_us: The clock of logs (`broker.common.elapsed`).
        may_make: Raises DiskFull while there is no room for another log of that stream.
        epoch_beside: The greatest leader epoch of what is kept beside a log; -1: there is none.
    """

    disk: Disk
    root: str
    cluster_id: str
    boot_id: str
    settings: LogSettings
    ends: LogEnds
    elapsed_us: Callable[[], int]
    may_make: Callable[[StreamInfo], None] = lambda info: None
    epoch_beside: Callable[[PartitionLog], int] = lambda opened: -1
    _durable: _Durable = field(default_factory=_Durable, repr=False)
    _settings_of: dict[bool, tuple[StreamSettings, LogSettings]] = field(default_factory=dict, repr=False)

    def path(self, name: str, incarnation: str, number: int) -> str:
        """Where a replica is. Raises OSError: nowhere."""
        return partition_folder(self.root, name, incarnation, number)

    def log_settings(self, settings: StreamSettings, *, is_sole: bool = False) -> LogSettings:
        """The settings of a log, the same ones for all of a stream that are asked for in a row. `is_sole`: nobody else
        keeps it, by the catalog (`placed.V10`)."""
        of, found = self._settings_of.get(is_sole, (None, None))
        if found is None or of is not settings:
            found = replace(LogSettings.of(settings, self.settings), is_sole_replica=is_sole)
            self._settings_of[is_sole] = settings, found
        return found

    def found(self) -> Iterator[LogIdentity]:
        """The replicas of this cluster that have a folder whose identity can be read. OSError passes through.

        Raises:
            UnknownFormatVersion: a later release has written a folder.
        """
        disk = self.disk
        for name in _entries(disk, self.root):
            for incarnation in _entries(disk, f"{self.root}/{name}"):
                for number in _entries(disk, f"{self.root}/{name}/{incarnation}"):
                    folder = f"{self.root}/{name}/{incarnation}/{number}"
                    if not number.isdecimal() or not disk.exists(f"{folder}/{PARTITION_FILE}"):
                        continue
                    try:
                        identity = read_identity(disk, folder)
                    except UnknownFormatVersion:
                        raise
                    except LiftlogError:
                        continue
                    said = (identity.cluster_id, identity.stream, identity.incarnation, str(identity.partition))
                    if said == (self.cluster_id, name, incarnation, number):
                        yield identity

    def open(self, identity: LogIdentity, settings: LogSettings) -> PartitionLog:
        """Open the log that is there, an encrypted one as such whatever the catalog tells of it by now.

        Raises:
            LiftlogError: it is damaged, or the disk refuses.
        """
        with disk_errors(f"open {identity.stream}/{identity.partition}"):
            folder = self.path(identity.stream, identity.incarnation, identity.partition)
            disk, boot_id = self.disk, self.boot_id
            opened = PartitionLog.open(
                disk, folder, settings, boot_id=boot_id, now_us=self.elapsed_us(), expected=identity
            )
        _tell_recovered(identity, opened.state.recovery)
        self.ends.watch((identity.incarnation, identity.partition), opened)
        return opened

    def holds(self, name: str, incarnation: str, number: int) -> bool:
        """Whether a log is where a replica is to be. Raises StorageFailed: the disk does not say."""
        with disk_errors(f"look for {name}/{number}"):
            return self.disk.exists(f"{self.path(name, incarnation, number)}/{PARTITION_FILE}")

    def epoch_seen(self, opened: PartitionLog) -> int:
        """The greatest leader epoch of a log and of what is kept beside it; -1: it has none."""
        return max(opened.epochs.latest, self.epoch_beside(opened))

    def create(self, info: StreamInfo, number: int) -> PartitionLog:
        """A new, empty log where none may be (D1, D2).

        Raises:
            DiskFull, StorageFailed, KeyMissing: there is none.
        """
        self.may_make(info)
        settings = self.log_settings(info.settings)
        if settings.is_encrypted and settings.keyring is None:  # before anything is moved
            raise KeyMissing(f"{info.name}/{number}: its records are encrypted, and this broker has no master key")
        with disk_errors(f"make the folder of {info.name}/{number}"):
            folder = self.path(info.name, info.incarnation, number)
            if self.disk.exists(folder):
                self.move_aside(folder)
        self.ends.forget((info.incarnation, number))
        identity = LogIdentity(
            cluster_id=self.cluster_id, stream=info.name, incarnation=info.incarnation, partition=number
        )
        with disk_errors(f"make {folder}"):
            made = PartitionLog.create(
                self.disk, folder, identity, settings, boot_id=self.boot_id, now_us=self.elapsed_us()
            )
        try:
            with disk_errors(f"make {folder}"):
                self._sync_above(folder)
        except LiftlogError:
            made.close(clean=False)
            raise
        self.ends.watch((info.incarnation, number), made)
        return made

    def sync_names(self, name: str, incarnation: str, number: int) -> None:
        """Make a folder durable that was found, and that nobody was told of: who made it may have been killed before
        (D1). Raises StorageFailed, DiskFull."""
        with disk_errors(f"sync the folder of {name}/{number}"):
            folder = self.path(name, incarnation, number)
            self.disk.sync_dir(folder)
            self._sync_above(folder)

    def _sync_above(self, folder: str) -> None:
        """D1, D5. The log is there, so no removal takes what is looked for here."""
        above, removals = PurePath(folder).parent, self._durable.removals
        if above not in self._durable.folders:
            for path in (above, above.parent, PurePath(self.root)):
                self.disk.sync_dir(str(path))
            self._durable.note(above, removals)

    def move_aside(self, folder: str) -> None:
        """Take a folder out of the way, durably (D2). OSError passes through."""
        if list_segments(self.disk, folder):
            self.disk.remove_tree(folder + ASIDE)
            self.disk.rename(folder, folder + ASIDE)
            log.warning("replica.moved_aside folder=%s", folder + ASIDE)
        else:
            self._remove(folder)
        self.disk.sync_dir(str(PurePath(folder).parent))

    def remove(self, name: str, incarnation: str, number: int) -> None:
        """Remove a replica's folder, and what was moved aside, durably (D3). OSError passes through."""
        self._take_away(name, incarnation, number)
        self.remove_aside(name, incarnation, number)
        self._sync_without(name, incarnation, number)

    def take_back(self, name: str, incarnation: str, number: int) -> None:
        """Remove what `create` has made, or has begun to make, durably. OSError passes through."""
        folder = self.path(name, incarnation, number)
        if self.disk.exists(folder) and list_segments(self.disk, folder):
            return  # it was there before
        self._take_away(name, incarnation, number)
        self._sync_without(name, incarnation, number)

    def _take_away(self, name: str, incarnation: str, number: int) -> None:
        self.ends.leave((incarnation, number))
        self._remove(self.path(name, incarnation, number))
        self._durable.removed()

    def _sync_without(self, name: str, incarnation: str, number: int) -> None:
        above = PurePath(self.path(name, incarnation, number)).parent
        for path in (above, above.parent):
            with suppress(FileNotFoundError):  # another removal took it meanwhile
                self.disk.sync_dir(str(path))
                with suppress(OSError):  # another replica is in it
                    self.disk.remove_folder(str(path))

    def _remove(self, folder: str) -> None:
        """Its identity goes first: what is left of it if the process is killed is no log."""
        with suppress(FileNotFoundError):
            self.disk.unlink(f"{folder}/{PARTITION_FILE}")
        self.disk.remove_tree(folder)

    def remove_aside(self, name: str, incarnation: str, number: int) -> None:
        """Remove damaged files that are not needed any more. OSError passes through."""
        folder = self.path(name, incarnation, number) + ASIDE
        if self.disk.exists(folder):
            self.disk.remove_tree(folder)


def _tell_recovered(identity: LogIdentity, report: RecoveryReport) -> None:
    """Say what an open has found, or changed. Of ten thousand logs that a kill has left nearly all are as they were."""
    if report.lost or report.cut_bytes or report.rebuilt_indexes or report.notes:
        log.log(
            logging.ERROR if report.lost else logging.INFO,
            "partition.recovered partition=%s/%d scanned_bytes=%d cut_bytes=%d lost=%s rebuilt_indexes=%d notes=%s",
            identity.stream,
            identity.partition,
            report.scanned_bytes,
            report.cut_bytes,
            report.lost,
            len(report.rebuilt_indexes),
            report.notes,
        )


def _entries(disk: Disk, path: str) -> list[str]:
    try:
        return sorted(disk.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
