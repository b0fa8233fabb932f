"""A segment's file whose length runs ahead of what was written, so that an fsync has less to do.

    what was written               room: zeros, no blocks
    [ schema | batch | batch | ... ][ 00 00 00 ............ ]
                                    ^ `size()`               ^ length of the file

Each fsync of a file that has become longer also writes the file's new length, to the journal of the file system, and
waits for that: a second trip to the disk. So the length is moved on ahead, by many small batches' worth at once; the
room is a hole and takes no space.

A1  Only this object writes to the file. Its position is its own, so nothing may be behind `size()` but zeros.
A2  Zeros where a batch would begin are the end of an Arrow stream: whoever opens the file by its name reads what was
    written. So a batch that is written into the room becomes visible at once, by its first 8 bytes, which come last.
A3  `trim`, `truncate` and `close` end the room; a sealed segment has none. After a crash recovery cuts off the rest of
    it: zeros at the end of a file are room to it (`scan`).
A4  Room is a help, never a need: where the disk refuses it, the file grows by its writes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from broker.storage.disk.osfile import OsFile

PREFIX_BYTES: Final = 8
"""Continuation marker and length: what says that a message begins."""


class AheadFile(OsFile):
    """See the module.

    Args:
        fd: Not opened for appending.
        room_bytes: So far the length runs ahead. Writes of a quarter of it and more make no room: they are rare.
    """

    __slots__ = ("_end", "_length", "_room_bytes")

    def __init__(self, fd: int, path: str, room_bytes: int) -> None:
        super().__init__(fd, path)
        self._end = self._length = super().size()
        self._room_bytes = room_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        end = self._end + len(view)
        if end > self._length and len(view) < self._room_bytes // 4:
            self._make_room(end)
        if end <= self._length and len(view) > PREFIX_BYTES:
            self._write_at(view[PREFIX_BYTES:], self._end + PREFIX_BYTES)  # A2
            view = view[:PREFIX_BYTES]
        self._write_at(view, self._end)
        self._end, self._length = end, max(end, self._length)

    def size(self) -> int:
        return self._end

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._end = self._length = size

    def trim(self) -> None:
        if self._length > self._end:
            self.truncate(self._end)

    def close(self) -> None:
        with suppress(OSError):  # then whoever opens it for appending does it (`chain`), or recovery
            self.trim()
        super().close()

    def _make_room(self, end: int) -> None:
        try:
            os.ftruncate(self._fd, end + self._room_bytes)
        except OSError:  # A4
            self._room_bytes = 0
        else:
            self._length = end + self._room_bytes

    def _write_at(self, view: memoryview, position: int) -> None:
        while view:
            count = os.pwrite(self._fd, view, position)
            view, position = view[count:], position + count
