"""One sync of a whole file system, where Linux does that in a way to be relied upon.

`syncfs` writes out all dirty files of a file system and commits its journal once, where an fsync of each file waits
for a commit of its own. It says less than fsync does, so it is used only under these rules:

Y1  Its descriptor is opened before the files that it is to answer for are written: errors of the file system are told
    to each descriptor once, from its opening on.
Y2  An error means that any file may have failed, also one that was dirty and that nobody asked for. It is told once:
    the next call may succeed with those pages lost. So after an error this descriptor is never used again. A file's
    own fsync still tells what became of that file.
Y3  Linux 5.8 and later tell errors of writing pages; what the file system itself says (a journal that could not be
    committed) is passed on since 5.17 only. Older kernels are refused.
Y4  ext4 and xfs only. A FUSE file system is written to its server, and not further; others were not looked into.
    ext4 had versions that answer 0 when it was shut down after an error; fsync of a folder does not, so one follows.

Source: fs/sync.c of Linux; syncfs(2); the commits 735e4ae5ba28 (5.8) and 5679897eb104 (5.17).
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path
from typing import Final

from broker.storage.disk import File
from broker.storage.osfile import OsFile

KERNEL_MIN: Final = (5, 17)
KINDS: Final = ("ext4", "xfs")


class OsFileSystem:
    """The file system of a folder (`broker.storage.disk.FileSystem`).

    Args:
        folder: Is opened now, and answers for what is written from now on (Y1).

    Raises:
        OSError: `syncfs` cannot be relied upon here; the text says why.
    """

    def __init__(self, folder: str) -> None:
        self._syncfs = _system_call()
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._device = os.fstat(self._fd).st_dev
            kind = kind_of(self._device, Path("/proc/self/mountinfo").read_text())
            if kind not in KINDS:
                raise OSError(errno.EOPNOTSUPP, f"the file system is {kind or 'not known'}, not {' or '.join(KINDS)}")
        except OSError:
            os.close(self._fd)
            raise

    def holds(self, file: File) -> bool:
        return isinstance(file, OsFile) and file.device() == self._device

    def sync(self) -> None:
        if self._syncfs(self._fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        os.fsync(self._fd)  # Y4

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def kind_of(device: int, mountinfo: str) -> str | None:
    """The type of the file system with this `st_dev`, from the text of /proc/self/mountinfo; None: not there."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mountinfo.splitlines():
        mount, _, rest = line.partition(" - ")
        if mount.split()[2:3] == [wanted] and rest:
            return rest.split()[0]
    return None


def is_new_enough(release: str) -> bool:
    """Whether a kernel of this release, as `uname -r` names it, is one of Y3."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= KERNEL_MIN


def _system_call() -> ctypes._NamedFuncPointer:
    system = os.uname()
    if system.sysname != "Linux" or not is_new_enough(system.release):
        wanted = ".".join(map(str, KERNEL_MIN))
        raise OSError(errno.EOPNOTSUPP, f"{system.sysname} {system.release} is not Linux {wanted} or later")
    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except AttributeError as error:
        raise OSError(errno.ENOSYS, "the C library has no syncfs") from error
    call.argtypes = (ctypes.c_int,)
    call(-1)
    if (number := ctypes.get_errno()) != errno.EBADF:  # a sandbox may forbid it
        raise OSError(number, f"syncfs: {os.strerror(number)}")
    return call
