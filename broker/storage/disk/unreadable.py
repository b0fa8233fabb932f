"""A file of which the disk cannot read some sectors, read all the same: zeros stand where they are.

Only for who has tried before and means to give the sectors up. A disk that reads nothing at all is away, not
damaged: then the error passes through, and nothing is given up.
"""

from __future__ import annotations

from typing import Final

from broker.storage.disk import File

PIECE_BYTES: Final = 4096
UNREADABLE_BYTES_MAX: Final = 16 << 20
"""More of one file is not some bad sectors any more."""


class ReadAround:
    """The reading side of a `File`. `OSError` passes through where the file cannot be read at its beginning, or too
    much of it cannot.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._unreadable: set[int] = set()

    def size(self) -> int:
        """Length in bytes."""
        return self._file.size()

    def pread(self, size: int, position: int) -> bytes:
        """As `File.pread`, with zeros for what cannot be read."""
        try:
            return self._file.pread(size, position)
        except OSError:
            pass
        end = min(position + size, self._file.size())
        first = position - position % PIECE_BYTES
        data = b"".join(self._piece(at, min(at + PIECE_BYTES, end)) for at in range(first, end, PIECE_BYTES))
        return data[position - first :]

    def _piece(self, start: int, end: int) -> bytes:
        try:
            return self._file.pread(end - start, start)
        except OSError:
            self._unreadable.add(start)
            if start == 0 or len(self._unreadable) * PIECE_BYTES > UNREADABLE_BYTES_MAX:
                raise
            return bytes(end - start)
