"""The file `ends` of a data folder: so far each log here was committed and on disk.

    a round of the cleaner, a clean stop ──► ends of all logs ──► one file, replaced
    a log is about to take back records  ──► its end, lowered ──► the file, before anything in the log
    a start: the log that is there ends below ──► it was put back from a copy

E1  An end is that of the log's checkpoint: no recovery ends below (`recovery.R1`). So a log that is well never does.
E2  It is lowered, on disk, before the log takes back what stands there, and not raised before that has been done.
E3  It is forgotten, on disk, before another log is made in that place.
E4  It stays while the log ends below, until the catalog has heard of that: a process may be killed before.
E5  A file that is missing or damaged says nothing.
E6  After a write that failed the file may hold either: the greater of both entries counts until it is written again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import Final

from broker.api.errors import LiftlogError
from broker.api.plain import is_offset
from broker.metadata.partition import Place
from broker.storage.disk import Disk, disk_errors
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import open_json, seal_json

log = logging.getLogger(__name__)

FILE: Final = "ends"


class LogEnds:
    """See the module. Thread-safe. Its lock is taken under those of a log, never the other way round."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk, self._path = disk, path
        self._lock = threading.Lock()
        self._ends: dict[Place, int] = {}  # as in the file, or above (E6)
        self._is_sure = True  # as in the file
        self._logs: dict[Place, PartitionLog] = {}
        self._lower_end = self._lower  # one for all logs
        self._cuts: dict[Place, tuple[int, int]] = {}  # to where each log is being cut, and how often it was before

    def load(self) -> None:
        """Read the file (E5). Raises StorageFailed: it cannot be read for now."""
        self._ends = {}
        with disk_errors(f"read {self._path}"):
            if not self._disk.exists(self._path):
                return
            data = self._disk.read_file(self._path)
            self._disk.sync_dir(str(PurePath(self._path).parent))  # who wrote it may have been killed before
        with suppress(ValueError, TypeError, KeyError, LiftlogError):
            values = open_json(data, where=self._path) or {"ends": ()}
            self._ends = {(name, number): end for name, number, end in values["ends"] if _are_fit(name, number, end)}

    def known(self, at: Place) -> int:
        """So far its log went at the least; 0: nothing is known."""
        return self._ends.get(at, 0)

    def watch(self, at: Place, opened: PartitionLog) -> None:
        """This is the log there. It is looked at from now on, and its end lowered before it is cut (E2)."""
        with self._lock:
            self._logs[at] = opened
        opened.state.before_cut = partial(self._lower_end, at)

    def note(self, *, kept: Collection[Place] = ()) -> None:
        """Write down how far the logs are. `kept`: the end of these stays as it is (E4), open or not."""
        with self._lock:
            logs = self._logs.items()
            ends = {at: self._end(at, opened) for at, opened in logs if at not in kept}
            ends |= {at: self._ends.get(at, 0) for at in kept}
            try:
                self._write({at: end for at, end in ends.items() if end})
            except LiftlogError as error:
                log.warning("replica.ends_not_saved path=%s error=%s", self._path, error)

    def forget(self, at: Place) -> None:
        """Another log is to be there (E3). Raises StorageFailed, DiskFull."""
        with self._lock:
            self._drop(at)
            if at in self._ends:
                self._write({known: end for known, end in self._ends.items() if known != at})

    def leave(self, at: Place) -> None:
        """There is no log any more. The file says so with the next note."""
        with self._lock:
            self._drop(at)

    def _drop(self, at: Place) -> None:
        self._logs.pop(at, None)
        self._cuts.pop(at, None)

    def _end(self, at: Place, opened: PartitionLog) -> int:
        to, cuts = self._cuts.get(at, (0, -1))
        is_cut = opened.state.cuts != cuts  # before the end is looked at
        end = opened.checkpoints.kept_end_offset
        if is_cut:
            self._cuts.pop(at, None)
        return end if is_cut else min(end, to)

    def _lower(self, at: Place, to: int, cuts: int) -> None:
        with self._lock:
            self._cuts[at] = to, cuts
            if self._ends.get(at, 0) > to:
                self._write({**self._ends, at: to}, frees=True)  # `spare_files.B1`: what is cut makes room

    def _write(self, ends: dict[Place, int], *, frees: bool = False) -> None:
        before = self._ends
        if self._is_sure and ends == before:
            return
        self._is_sure = False
        self._ends = {at: max(before.get(at, 0), ends.get(at, 0)) for at in before | ends}  # E6
        with disk_errors(f"write {self._path}"):
            data = seal_json({"ends": [[*at, end] for at, end in ends.items()]})
            self._disk.replace_file(self._path, data, frees=frees)
        self._ends, self._is_sure = ends, True


def _are_fit(name: object, number: object, end: object) -> bool:
    return isinstance(name, str) and is_offset(number) and is_offset(end)
