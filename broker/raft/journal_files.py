"""The files of a Raft journal: one that is written to, and one of the same size that takes its place.

    raft.log          records | zeros ............ ]   written within its own blocks (`disk.fixed`)
    raft.log.spare    what the former one was ..... ]   the next beginning is written into these
    raft.log.former   between two steps only

    replace:  write and sync the spare ─► link raft.log as .former ─► rename the spare to raft.log, durably
              ─► rename .former to .spare

So neither an entry nor a snapshot needs a free byte of the disk: a cluster whose disks are full must still be told to
trim, and a broker on a full disk must start. Without a room (`room_bytes` 0) files grow by what is written.

K1  The name has the old content or the new, whatever happens (`disk.D3`).
K2  Behind what was written there are zeros, or what a crash has left of a write that was not synced.
K3  A spare file is never the file that is written to: after a crash both names may be there. One whose head is of the
    same generation is taken for that, and its name goes.
K4  What the disk has no room for is left out, and made up for at the next replacement: then a new beginning needs
    free space, as it does for a journal that has outgrown its spare file.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Final

from broker.storage.disk import NO_SPACE, FixedDisk, FixedFile

KEPT_BYTES: Final = 64 << 10
"""So much of the room is for terms, cuts and a new leader's first entry, which nobody can refuse."""
_BLOCK: Final = bytes(1 << 20)
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})


class JournalFiles:
    """See the module. `OSError` passes through.

    Args:
        room_bytes: So large the files are at least, where the disk lets.

    Attributes:
        size: Of the file that is written to, with its room.
        is_unsure: A replacement has failed, and it is not known which file has the name.
    """

    def __init__(self, disk: FixedDisk, path: str, room_bytes: int) -> None:
        self.path = path
        self.room_bytes = room_bytes
        self.size = 0
        self.is_unsure = False
        self._disk = disk
        self._file: FixedFile | None = None
        self._folder = path.rpartition("/")[0]
        self._spare, self._former = f"{path}.spare", f"{path}.former"

    def attach(self) -> None:
        """Write to the file that has the name."""
        self.close()
        self._file = self._disk.open_fixed(self.path)
        self.size = self._file.size()

    def close(self) -> None:
        """Give the file back."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def write(self, data: bytes, position: int) -> None:
        """Write records."""
        assert self._file is not None
        self._file.write_at(data, position)
        self.size = max(self.size, position + len(data))

    def sync(self) -> None:
        """Make all that was written durable."""
        assert self._file is not None
        self._file.sync()

    def makes_room(self, end: int) -> bool:
        """Whether it can be written up to there, and more is kept (`KEPT_BYTES`), whatever becomes of the disk."""
        if not self.room_bytes or end + KEPT_BYTES <= self.size:
            return True
        return self._stretch(end + KEPT_BYTES + self.room_bytes) or self._stretch(end + KEPT_BYTES)

    def _stretch(self, size: int) -> bool:
        assert self._file is not None
        try:
            self._file.allocate(size)
        except OSError as error:
            if error.errno in NO_SPACE:
                return False
            raise
        self.size = max(self.size, size)
        return True

    # -- another beginning ------------------------------------------------------------------------------------

    def replace(self, data: bytes) -> None:
        """Put a file that begins with `data` in the place of this one, durably, and write to it from then on."""
        self.is_unsure = False
        if not self._exchange(data):
            try:
                self._disk.replace_file(self.path, data)
            except OSError as error:
                self.is_unsure = error.errno not in NO_SPACE or not self._is_still_there()
                raise
        self.is_unsure = True
        self.attach()
        self.is_unsure = False

    def _is_still_there(self) -> bool:
        try:
            return self._disk.size(self.path) == self.size  # a new file is hardly ever as long
        except OSError:
            return False

    def _exchange(self, data: bytes) -> bool:
        """K1, by the spare file. False: there is none of that size."""
        disk = self._disk
        if self._file is None or not disk.exists(self._spare) or disk.size(self._spare) < len(data) + KEPT_BYTES:
            return False
        file = disk.open_fixed(self._spare)
        try:
            file.write_at(data, 0)
            at, size = len(data), file.size()
            while at < size:  # K2: the records of the former file
                file.write_at(_BLOCK[: size - at], at)
                at += len(_BLOCK)
            file.sync()
        finally:
            file.close()
        try:
            disk.link(self.path, self._former)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        self.is_unsure = True
        disk.rename(self._spare, self.path)
        disk.sync_dir(self._folder)
        with suppress(FileNotFoundError):
            disk.rename(self._former, self._spare)
        return True

    def tidy(self, head: bytes) -> None:
        """After a crash: nothing but the name of the file names the file, which begins with `head` (K3)."""
        disk = self._disk
        for name in (self._spare, self._former):
            if disk.exists(name) and self._begins(name, len(head)) == head:
                disk.unlink(name)
        if disk.exists(self._former):
            if disk.exists(self._spare):
                disk.unlink(self._former)
            else:
                disk.rename(self._former, self._spare)

    def _begins(self, path: str, size: int) -> bytes:
        file = self._disk.open(path, readonly=True)
        try:
            return file.pread(size, 0)
        finally:
            file.close()

    def make_ready(self, end: int) -> None:
        """Give both files their room, as far as the disk lets (K4). `end`: so much of the file is written."""
        disk = self._disk
        if not self.room_bytes:
            return
        size = max(self.room_bytes, 2 * (end + KEPT_BYTES))
        if self.size < size:
            self._stretch(size)
        is_new = not disk.exists(self._spare)
        if not is_new and disk.size(self._spare) >= self.size:
            return
        try:
            file = disk.open_fixed(self._spare, create=True)
            try:
                file.allocate(self.size)
                file.sync()
            finally:
                file.close()
            disk.sync_dir(self._folder)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            if is_new:  # half of one is of no use
                with suppress(OSError):
                    disk.unlink(self._spare)
