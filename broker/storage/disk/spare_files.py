"""A few small files that are there already, for a disk that has no byte free.

    <data folder>/spare/0 ... 7     4 KiB each, as large as a checkpoint ever is
    <data folder>/spare/8           256 KiB, for a state file

To free space, something has to be written first: a trim writes its checkpoint, and a state file with what only the
removed records would tell. On a full disk neither could be written, so nothing could ever be freed. Then a spare file
is overwritten in its own blocks, cut to the length of the new content, fsynced, and renamed over the target. No block
is free in between, so nobody else can take it.

B1  Only a write that frees space gets one, or one without which nobody could (a start, a replica that leads or is cut):
    `replace_file(frees=True)`, and only where the disk has refused.
B2  The target has the old content or the new, whatever happens (D3): the spare is whole on disk before the rename.
B3  They are made again as soon as the disk lets. One that a crash left under two names is not overwritten.
B4  A spare that is being written to has one user: it is neither given out nor made again before it has its new name.
    Else two targets would share its blocks, and one partition's checkpoint would stand in the folder of another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

SPARE_FOLDER: Final = "spare"
SMALL_BYTES: Final = 4 << 10
LARGE_BYTES: Final = 256 << 10
SIZES: Final = (*[SMALL_BYTES] * 8, LARGE_BYTES)


def sizes_with(*more: int) -> tuple[int, ...]:
    """The sizes of the spare files, where somebody needs others too."""
    return tuple(sorted((*SIZES, *more)))


class Spares:
    """The spare files of one data folder. Thread-safe.

    Args:
        folder: The data folder; `spare` is made in it.
        sizes: Lengths of the files, the smallest first.

    Attributes:
        is_short: Some of the files are missing.
    """

    def __init__(self, folder: str, sizes: tuple[int, ...] = SIZES) -> None:
        self._folder = f"{folder}/{SPARE_FOLDER}"
        self._sizes = sizes
        self._there: set[int] = set()
        self._in_use: set[int] = set()
        self._lock = threading.Lock()
        self.is_short = True
        self.refill()

    def refill(self) -> None:
        """Make those that are not there, as far as the disk lets. Never raises for want of space."""
        with self._lock, suppress(OSError):
            os.makedirs(self._folder, exist_ok=True)
            for number, size in enumerate(self._sizes):
                if number not in self._there and number not in self._in_use:  # B4
                    self._make(self._path(number), size)
                    self._there.add(number)
            self.is_short = len(self._there) < len(self._sizes)

    @contextmanager
    def taken(self, size: int) -> Iterator[str | None]:
        """The path of a spare file of at least `size` bytes, to be overwritten and renamed within; or None (B4)."""
        number = self._take(size)
        try:
            yield None if number is None else self._path(number)
        finally:
            if number is not None:
                with self._lock:
                    self._in_use.discard(number)

    def _take(self, size: int) -> int | None:
        with self._lock:
            for number, there in enumerate(self._sizes):
                if there >= size and number in self._there:
                    self._there.discard(number)
                    self._in_use.add(number)
                    self.is_short = True
                    return number
        return None

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number}"

    def _make(self, path: str, size: int) -> None:
        with suppress(FileNotFoundError):
            found = os.stat(path)
            if found.st_nlink == 1 and found.st_size == size and found.st_blocks * 512 >= size:
                return
            os.unlink(path)  # B3
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
