"""Messages that are made for one answer: where they are kept, and the memory to read into."""

from __future__ import annotations

import os
import tempfile
from typing import Final

from broker.api.batch import HEADER_BYTES
from broker.api.compression import PACKED_HEADER_BYTES
from broker.storage.disk import disk_errors
from broker.storage.read import FileRange, ReadPlan

COPIES: Final = 2
"""So many times a batch is held while it is looked at."""
BLOCK_BYTES: Final = 256 << 10
"""Of messages that are written together: they stay in the processor's cache meanwhile."""
WINDOW_BYTES: Final = 256 << 10
"""Read at once, of batches that are smaller."""


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


class MadeRun:
    """Messages that are made one behind the other in a block, and go to the file together: to write each costs more
    than its bytes.

    Attributes:
        head: What the last one in the file was added with; empty: there is none.
    """

    def __init__(self, plan: ReadPlan) -> None:
        self.head = b""
        self._file = MadeFile(plan)
        self._block_bytes = min(BLOCK_BYTES, plan.bytes)
        self._block = memoryview(b"")
        self._filled = 0
        self._last = b""
        self._written: list[FileRange] = []

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        return self._file.size + self._filled

    @property
    def held(self) -> int:
        """Bytes of memory: the file and the block."""
        return self._file.size + max(len(self._block), self._block_bytes)

    def room(self, size: int) -> memoryview:
        """Where the next message is made. Raises StorageFailed, DiskFull: those before could not be written."""
        if self._filled + size > len(self._block):
            self.write()
            if size > len(self._block):
                self._block = memoryview(bytearray(max(size, self._block_bytes)))
        return self._block[self._filled : self._filled + size]

    def add(self, message: memoryview, head: bytes) -> None:
        """It is made there, of the batch with this header."""
        self._filled += len(message)
        self._last = head

    def write(self) -> None:
        """Write what was added since. Raises StorageFailed, DiskFull: it could not be; then it is as if not added."""
        made, self._filled = self._block[: self._filled], 0
        if made:
            self._written.append(self._file.write(made))
            self.head = self._last

    def ranges(self) -> list[FileRange]:
        """All that was written."""
        return joined(self._written)


class Block:
    """Memory for one batch after another. A new block for each costs as much as to read into it: its pages are new."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray(HEADER_BYTES))

    def room(self, size: int) -> memoryview:
        """So much of it, whatever it holds; it is used again by the next call."""
        if size > len(self._memory):
            self._memory = memoryview(bytearray(size))
        return self._memory[:size]

    def read(self, part: FileRange, size: int, position: int) -> memoryview:
        """Stored bytes; they are others after the next call."""
        memory = self.room(size)
        with disk_errors(f"read {part.path}"):
            return memory[: os.preadv(part.fd, [memory], position)]


class Window:
    """Stored bytes, read ahead: to ask for each small batch costs more than its bytes.

    Args:
        block: The memory.
        most: Of all that will be read.

    Attributes:
        ahead: So many bytes are read at once at least.
    """

    def __init__(self, block: Block, most: int) -> None:
        self.ahead = min(WINDOW_BYTES, most)
        self._block = block
        self._fd: int | None = None
        self._at = 0
        self._there = memoryview(b"")

    def read(self, part: FileRange, size: int, at: int) -> memoryview:
        """Bytes at a place of a range, fewer where the range ends; they may be others after the next call.

        Raises:
            StorageFailed: they cannot be read.
        """
        size = min(size, part.position + part.length - at)
        begin = at - self._at
        if part.fd != self._fd or not 0 <= begin <= len(self._there) - size:
            ahead = min(max(size + PACKED_HEADER_BYTES, self.ahead), part.position + part.length - at)
            self._fd = None  # until it is there
            self._there = self._block.read(part, ahead, at)
            self._fd, self._at, begin = part.fd, at, 0
        return self._there[begin : begin + size]


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
