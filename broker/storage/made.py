"""Messages that are made for one answer: where they are kept, and the memory to read into."""

from __future__ import annotations

import os
import tempfile
from typing import Final

from broker.api.batch import HEADER_BYTES
from broker.storage.disk import disk_errors
from broker.storage.read import FileRange, ReadPlan

COPIES: Final = 2
"""So many times a batch is held while it is looked at."""


class MadeFile:
    """Messages in a file in memory, or a temporary one, that a plan closes."""

    path = "messages that were made"

    def __init__(self, plan: ReadPlan) -> None:
        self.size = 0
        self._plan = plan
        self._fd: int | None = None

    def write(self, message: bytearray | memoryview) -> FileRange:
        """Add one; where it is. Raises StorageFailed: there is no room."""
        with disk_errors("keep messages that were made"):
            if self._fd is None:
                self._fd = self._open()
            at = self.size
            while self.size < at + len(message):
                self.size += os.pwrite(self._fd, memoryview(message)[self.size - at :], self.size)
        return FileRange(self._fd, at, len(message), self.path)

    def _open(self) -> int:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("liftlog-made", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        self._plan.own_fd(fd)
        return fd


class Block:
    """Memory for one batch after another. A new block for each costs as much as to read into it: its pages are new."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray(HEADER_BYTES))

    def read(self, part: FileRange, size: int, position: int) -> memoryview:
        """Stored bytes; they are others after the next call."""
        if size > len(self._memory):
            self._memory = memoryview(bytearray(size))
        with disk_errors(f"read {part.path}"):
            return self._memory[: os.preadv(part.fd, [self._memory[:size]], position)]


def joined(ranges: list[FileRange]) -> list[FileRange]:
    """Neighbours as one."""
    found: list[FileRange] = []
    for part in ranges:
        last = found[-1] if found else None
        if last is not None and last.fd == part.fd and last.position + last.length == part.position:
            found[-1] = FileRange(last.fd, last.position, last.length + part.length, last.path)
        else:
            found.append(part)
    return found
