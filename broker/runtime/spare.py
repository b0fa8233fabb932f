"""A file that stands for nothing but its size: given up, piece by piece, when the disk has not a byte left.

To make room takes room: a deletion is a line in the catalog, a trim a new checkpoint. The reserve (`room.py`) keeps our
own records from taking the last blocks. It does not keep other programs from it, nor is there one with
`disk_reserve_bytes = 0`. Then the spare goes, so that the catalog, a trim and retention are served once more.

    full ─► one piece is cut off ─► what failed is tried again ─► ... ─► room was made ─► filled again

Z1  Only what makes room, or has been asked for by somebody, may have it: no checkpoint that comes by the clock.
Z2  It is filled again only while more than the reserve is free beside it.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from broker.api.errors import DiskFull
from broker.runtime import room
from broker.storage.disk import Disk

log = logging.getLogger(__name__)
T = TypeVar("T")

SPARE_BYTES: Final = 1 << 20
SHARE: Final = 64
"""At most this part of the file system is taken."""
PIECE_BYTES: Final = 64 << 10
_FILLING: Final = random.Random(0).randbytes(PIECE_BYTES)
"""Nothing that a file system can compress or leave out."""


class Spare:
    """The file, if there is one. Thread-safe.

    Args:
        path: The file; it is in a folder that is there.
        reserve_bytes: What is kept free beside it, as `room.Room` has it.
        look: (free, total) of the file system, in bytes.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        reserve_bytes: int,
        look: Callable[[str], tuple[int, int]] = room.free_and_total,
    ) -> None:
        self._disk = disk
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._look = look
        self._lock = threading.Lock()

    def fill(self) -> None:
        """Make it as large as it should be, if there is room for it (Z2); else it stays as it is."""
        folder = self._path.rpartition("/")[0]
        with self._lock, suppress(OSError):
            free, total = self._look(folder)
            wanted = min(SPARE_BYTES, total // SHARE) // PIECE_BYTES * PIECE_BYTES
            missing = wanted - (self._disk.size(self._path) if self._disk.exists(self._path) else 0)
            if missing <= 0 or free - missing <= min(self._reserve_bytes, total // room.SHARE):
                return
            file = self._disk.open(self._path, create=True)
            try:
                for begin in range(0, missing, PIECE_BYTES):
                    file.write(_FILLING[: missing - begin])
                file.sync()
            finally:
                file.close()
            self._disk.sync_dir(folder)

    def give_up(self) -> bool:
        """Give a piece back to the file system; false: there is none left."""
        with self._lock, suppress(OSError):
            if not self._disk.exists(self._path):
                return False
            file = self._disk.open(self._path)
            try:
                left = file.size()
                if left == 0:
                    return False
                file.truncate(max(0, left - PIECE_BYTES))
                file.sync()
            finally:
                file.close()
            log.warning("disk.spare_given_up left_bytes=%d", max(0, left - PIECE_BYTES))
            return True
        return False

    def make_do(self, act: Callable[[], T]) -> T:
        """Do what makes room, on a full disk with what the spare leaves.

        Raises:
            DiskFull: and nothing of the spare is left.
        """
        while True:
            try:
                return act()
            except DiskFull:
                if not self.give_up():
                    raise
