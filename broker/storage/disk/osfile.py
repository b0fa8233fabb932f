"""An open file of the operating system: what `broker.storage.disk.File` asks for, by the calls that do it best."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from typing import Final


def _system_call() -> ctypes._NamedFuncPointer | None:
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError):  # Linux alone has it
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


REWRITE_BYTES: Final = 1 << 20
_sync_file_range: Final = _system_call()
_WRITE_ONLY: Final = 2
"""SYNC_FILE_RANGE_WRITE. The flags that wait would take the errors of writing from this descriptor, and the fsync after
them would answer that all is well. Without them all is left to it."""


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        while len(data) < size:  # Linux moves at most 2 GiB at a time
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def pread_cold(self, size: int, position: int) -> bytes | bytearray:
        data = bytearray(size)
        try:
            if os.preadv(self._fd, [data], position, os.RWF_NOWAIT) == size:
                return data  # all of it was in memory, and stays there
        except (BlockingIOError, AttributeError):
            pass
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
        # No reading ahead: what comes next would look as if somebody wanted it.
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
        found = self.pread(size, position)
        self.forget(size, position)
        return found

    def pread_into(self, block: bytearray | memoryview, position: int) -> int:
        view, done = memoryview(block), 0
        while done < len(view) and (more := os.preadv(self._fd, [view[done:]], position + done)):
            done += more
        return done

    def start_writeback(self, size: int, position: int) -> None:
        if _sync_file_range is not None:
            _sync_file_range(self._fd, position, size, _WRITE_ONLY)

    def forget(self, size: int, position: int) -> None:
        with suppress(OSError):
            os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)

    def rewrite(self, size: int, position: int) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)  # not for appending, which goes to the end wherever told to
        try:
            end = position + size
            while data := self.pread(min(REWRITE_BYTES, end - position), position):
                view = memoryview(data)
                while view:
                    count = os.pwrite(fd, view, position)
                    view, position = view[count:], position + count
        finally:
            os.close(fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def trim(self) -> None:
        """Nothing runs ahead."""

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def fileno(self) -> int:
        return self._fd
