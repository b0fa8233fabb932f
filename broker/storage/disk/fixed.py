"""A file that is written within blocks which it has already: what must go on without a free byte on the disk.

    [ what was written | zeros: blocks of this file's own ]
                         ^ the next `write_at`: takes nothing from the disk

X1  `write_at` within the size of a file that was allocated needs no free space. (File systems that write every change
    elsewhere, btrfs and zfs, may refuse all the same.)
X2  `allocate` adds zeros, or fails and adds nothing that is not zero.
"""

from __future__ import annotations

import os

from broker.storage.disk.osfile import OsFile


class OsFixedFile(OsFile):
    """Such a file of the operating system. It was not opened for appending."""

    __slots__ = ()

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        view = memoryview(data)
        while view:
            count = os.pwrite(self._fd, view, position)
            view, position = view[count:], position + count

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)
