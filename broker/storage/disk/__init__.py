"""The protocols that storage asks of a disk (`Disk`, `File`), and the real disk that fulfils them (`OsDisk`).

osfile.py       an open file of the operating system
fixed.py        a file that is written within blocks which it has already
overlay.py      a disk that changes nothing: writes stay in memory
preallocate.py  a file whose length runs ahead of what was written
spare_files.py  small files that are there already, for a full disk
unreadable.py   a file with bad sectors, read as zeros

Everything below `broker.storage` goes through these two protocols, so that the same code runs on
`OsDisk` and on the fake disk of the tests, which loses un-fsynced bytes at will. One conformance
suite holds both to this contract:

D1  `File.write` appends at the end, whole or not at all as far as it tells: after an error some of the
    bytes may be there, and the caller truncates.
D2  Bytes are durable after `sync`, names after `sync_dir` of their folder; nothing else is durable.
D3  `replace_file` leaves the old content or the new under the name, whatever happens.
D4  A file that is unlinked or replaced stays readable for those who have it open.
D5  A file that is opened with `ahead` may be longer than what was written, by up to so many zeros, until it is trimmed
    or closed, and after a crash. Its own `size` does not count them; `Disk.size` and whoever else opens it does.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from broker.api.errors import DiskFull, StorageFailed
from broker.storage.disk.fixed import OsFixedFile
from broker.storage.disk.osfile import OsFile
from broker.storage.disk.preallocate import AheadFile
from broker.storage.disk.spare_files import Spares

ReadableBuffer = bytes | bytearray | memoryview
WritableBuffer = bytearray | memoryview
TEMPORARY: Final = ".tmp"
"""Ending of a file that `replace_file` had not renamed yet: never read, removed at open."""
MAKE_TRIES: Final = 100
"""So often a folder is begun anew that somebody who removes empty ones takes away amid `makedirs`."""


class Readable(Protocol):
    """The part of a file that a scan needs. `OSError` passes through."""

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes from `position`; fewer only at the end of the file."""

    def size(self) -> int:
        """Length in bytes."""


class File(Protocol):
    """An open file. `OSError` passes through."""

    def write(self, data: ReadableBuffer) -> None:
        """Append all of `data` (D1)."""

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes from `position`; fewer only at the end of the file."""

    def pread_cold(self, size: int, position: int) -> bytes | bytearray:
        """As `pread`, leaving the page cache as it was found: for those who read everything once."""

    def pread_into(self, block: WritableBuffer, position: int) -> int:
        """As `pread`, into memory that is there already. Returns how many bytes came; fewer only at the end."""

    def forget(self, size: int, position: int) -> None:
        """Let the next `pread` there come from the disk, where the system can; dirty pages stay.

        Linux may let go of nothing where the part is small: it holds the file's memory in larger pieces.
        """

    def start_writeback(self, size: int, position: int) -> None:
        """Let the disk begin with what was written there, where the system can, so that `sync` finds less to do.

        Nothing is durable by it, and it says nothing of errors: `sync` does.
        """

    def rewrite(self, size: int, position: int) -> None:
        """Write the bytes that stand there once more, where they stand; those that `sync` took for written, too."""

    def size(self) -> int:
        """Length in bytes."""

    def truncate(self, size: int) -> None:
        """Cut down to `size` bytes. Durable only after `sync`."""

    def trim(self) -> None:
        """Take away what runs ahead (D5). Durable only after `sync`."""

    def sync(self) -> None:
        """fdatasync: what was written and the length are durable when this returns."""

    def close(self) -> None:
        """Give the descriptor back. Syncs nothing."""

    def fileno(self) -> int:
        """A descriptor that `sendfile` and `pread` take; valid until `close`."""


class Disk(Protocol):
    """Names and files. Paths are absolute strings. `OSError` passes through."""

    def open(self, path: str, *, create: bool = False, readonly: bool = False, ahead: int = 0) -> File:
        """Open a file; `ahead`: to be its only writer, while its length runs ahead by so many bytes (D5)."""

    def listdir(self, path: str) -> list[str]: ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder of that name. A disk that cannot tell fails: nothing is made anew then."""

    def size(self, path: str) -> int:
        """Length of the file of that name, without opening it."""

    def makedirs(self, path: str) -> None:
        """Make the folder and the missing ones above it, durably; it may exist."""

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def read_file(self, path: str) -> bytes: ...

    def replace_file(self, path: str, data: ReadableBuffer, *, frees: bool = False) -> None:
        """Write a small file atomically and durably (D3).

        Args:
            frees: The caller is about to free space with it: also on a full disk, where there are spare files.
        """

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all in it; it may be missing."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder that is empty; else it fails."""


class FixedFile(Protocol):
    """A file that is written within its own blocks (`fixed`). `OSError` passes through."""

    def write_at(self, data: ReadableBuffer, position: int) -> None:
        """Write all of `data` there, over what stands there."""

    def allocate(self, size: int) -> None:
        """Let the file have this size, if it has less, with blocks for all of it."""

    def size(self) -> int:
        """Length in bytes, with what was never written."""

    def sync(self) -> None:
        """As `File.sync`."""

    def close(self) -> None:
        """As `File.close`."""


class FixedDisk(Disk, Protocol):
    """A disk with such files."""

    def open_fixed(self, path: str, *, create: bool = False) -> FixedFile:
        """Open a file, to write anywhere in it."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, which must not be there yet."""


class OsDisk:
    """The disk of the machine.

    Args:
        spares: For those who free space; None: there are none.
    """

    _spares: Spares | None = None

    def __init__(self, spares: Spares | None = None) -> None:
        self._spares = spares

    def open(self, path: str, *, create: bool = False, readonly: bool = False, ahead: int = 0) -> OsFile:
        flags = os.O_CLOEXEC | (os.O_CREAT if create else 0)
        if ahead:
            return AheadFile(os.open(path, flags | os.O_RDWR, 0o644), path, ahead)
        return OsFile(os.open(path, flags | (os.O_RDONLY if readonly else os.O_RDWR | os.O_APPEND), 0o644), path)

    def open_fixed(self, path: str, *, create: bool = False) -> OsFixedFile:
        return OsFixedFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644), path)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def makedirs(self, path: str) -> None:
        for left in range(MAKE_TRIES - 1, -1, -1):
            try:
                self._make_missing(path)
                return
            except FileNotFoundError:  # somebody else has removed one above it meanwhile, which was empty
                if not left:
                    raise

    def _make_missing(self, path: str) -> None:
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(folder, 0o755)
            self.sync_dir(os.path.dirname(folder))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)
        if self._spares is not None and self._spares.is_short:
            self._spares.refill()

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace_file(self, path: str, data: ReadableBuffer, *, frees: bool = False) -> None:
        temporary = path + TEMPORARY
        try:
            _write_whole(temporary, data, os.O_CREAT | os.O_TRUNC)
            os.replace(temporary, path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary)
            if not frees or error.errno not in NO_SPACE or not self._replace_by_spare(path, data):
                raise
        self.sync_dir(os.path.dirname(path))
        if self._spares is not None and self._spares.is_short:
            self._spares.refill()

    def _replace_by_spare(self, path: str, data: ReadableBuffer) -> bool:
        """Write `data` into the blocks of a spare file, and rename that. False: there is none of that size."""
        if self._spares is None:
            return False
        with self._spares.taken(len(data)) as spare:
            if spare is None:
                return False
            _write_whole(spare, data, 0)
            os.replace(spare, path)
        return True

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:  # of something in it, if somebody else replaced a file meanwhile
            if self.exists(path):
                raise

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)


def _write_whole(path: str, data: ReadableBuffer, flags: int) -> None:
    """Let a file hold `data` and nothing else, durably. It is written over what is there, then cut."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    file = OsFile(fd, path)
    try:
        file.write(data)
        file.truncate(len(data))
        file.sync()
    finally:
        file.close()


NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""No further file can be opened for now. What is open goes on."""
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def storage_error(error: OSError, doing: str) -> DiskFull | StorageFailed:
    """Turn an `OSError` into the error that callers see: `DiskFull` when space is missing, else `StorageFailed`."""
    cls = DiskFull if error.errno in NO_SPACE else StorageFailed
    return cls(f"{doing}: {error.strerror or error}", doing=doing, errno=error.errno)


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """An `OSError` in here becomes what a caller is told of it."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, doing) from error
