"""A disk in memory that loses what it may lose. It passes the conformance suite that `OsDisk` passes.

Fault model: what a log must survive.

*Power loss* (`after_crash`). Bytes are durable after `File.sync`, names after `sync_dir`. A crash leaves of everything
since, by mode:

    lost        nothing: each file as of its last sync
    kept        everything
    torn        the first so many operations, the last of them cut anywhere
    zeros       the full length, but zeros from some place in the un-synced bytes on
    reordered   any subset of the 512-byte sectors written and of the truncations; holes are zeros

and of the un-synced changes of names a prefix (a journal keeps their order). Synced bytes and names are never touched.

*Kill* (`after_kill`). The process is gone, the machine is not: everything is there, and what was not synced is
still not synced.

*Power loss at any moment* (`crash_at`). Every call that changes something is a step; at the given one the call
is half done, `Crashed` is raised, and every later call raises it too: the process is gone.

*Errors* (`fail`, `bytes_max`). Any call may fail with any errno, a write after part of its bytes. A failed sync
leaves pages that look clean and never reach the disk, as Linux does: a later sync succeeds and does
not write them. A full disk takes what fits and fails with ENOSPC.

*Rot* (`flip`, `lose`, or change `content`): what was synced changes, or is gone, all the same.

Not modelled: sectors that tear, disks that lie about a sync, names that come back.
"""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from broker.storage.disk import TEMPORARY, ReadableBuffer, WritableBuffer
from broker.storage.disk.preallocate import PREFIX_BYTES
from tests.support.effort import EFFORT, seeded

Mode = Literal["lost", "kept", "torn", "zeros", "reordered"]
MODES: tuple[Mode, ...] = ("lost", "kept", "torn", "zeros", "reordered")
SECTOR_BYTES = 512
READS = ("pread", "open", "listdir", "exists", "size", "read_file")
CHANGES = (
    *("create", "link", "makedirs", "remove_folder", "remove_tree", "rename", "rewrite", "stretch", "sync", "sync_dir"),
    *("truncate", "unlink", "write"),
)
CALLS = {*READS, *CHANGES}
"""Each may fail."""


def modes_at(step: int) -> tuple[Mode, ...]:
    """The crash modes to try at a step: two in turns, so that its neighbours try the others; `make prop` tries all."""
    return MODES if EFFORT > 1 else (MODES[step % 5], MODES[(step + 2) % 5])


class Crashed(BaseException):
    """The machine has lost power; nothing that runs on it may go on."""


@dataclass(slots=True)
class Write:
    position: int
    data: bytes
    is_again: bool = False  # over the same bytes: nothing that was synced is lost by it


@dataclass(slots=True)
class Truncate:
    size: int


Change = Write | Truncate


@dataclass(slots=True)
class Inode:
    """One file: what processes see, what is on the plates, and what separates the two."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    room: int = 0  # so many zeros at the end of `content` take no space: its length runs ahead

    @property
    def written(self) -> int:
        return len(self.content) - self.room

    def resize(self, size: int) -> None:
        """Cut, or let the length run ahead."""
        self.room = max(0, size - self.written)
        change = Truncate(size)
        apply(self.content, change)
        self.pending.append(change)

    def settle(self) -> None:
        """All of it is on the plates."""
        for change in self.pending:
            apply(self.durable, change)
        self.pending.clear()


@dataclass(slots=True)
class Fault:
    """`times` calls of `call` on paths that hold `path` fail, after `after` that do not."""

    call: str
    errno: int
    path: str
    after: int
    times: int
    short: int


def apply(content: bytearray, change: Change) -> None:
    if isinstance(change, Write):
        position, data = change.position, change.data
        if position > len(content):
            content.extend(bytes(position - len(content)))
        content[position : position + len(data)] = data
    elif change.size < len(content):
        del content[change.size :]
    else:
        content.extend(bytes(change.size - len(content)))


class SimFile:
    """An open file of a `SimDisk`."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode, ahead: int = 0) -> None:
        self.path = path
        self._ahead = ahead
        self._disk = disk
        self._inode = inode
        self._fd = -1
        self._is_open = True

    def write(self, data: ReadableBuffer) -> None:
        self._check()
        self._disk.write_to(self._inode, self.path, bytes(data), self._ahead)

    def pread(self, size: int, position: int) -> bytes:
        if not self._is_open:
            self._check()
        self._disk.meet_fault("pread", self.path)
        return bytes(memoryview(self._inode.content)[position : position + size])

    def pread_cold(self, size: int, position: int) -> bytes:
        return self.pread(size, position)

    def pread_into(self, block: WritableBuffer, position: int) -> int:
        data = self.pread(len(block), position)
        block[: len(data)] = data
        return len(data)

    def start_writeback(self, size: int, position: int) -> None:
        self._check()  # what is not synced may be on the plates or not, with it as without

    def forget(self, size: int, position: int) -> None:
        self._check()
        self._disk.forgotten += 1

    def rewrite(self, size: int, position: int) -> None:
        self._check()
        self._disk.step("rewrite", self.path)
        data = bytes(self._inode.content[position : position + size])
        if data:
            self._inode.pending.append(Write(position, data, is_again=True))

    def size(self) -> int:
        self._check()
        return self._inode.written if self._ahead else len(self._inode.content)

    def truncate(self, size: int) -> None:
        self._check()
        self._disk.step("truncate", self.path)
        self._inode.resize(size)

    def trim(self) -> None:
        if self._ahead and self._inode.room:
            self.truncate(self.size())

    def sync(self) -> None:
        self._check()
        try:
            self._disk.step("sync", self.path)
        except OSError:
            self._inode.pending.clear()  # clean in the kernel's eyes, and not on the disk
            raise
        self._inode.settle()

    def close(self) -> None:
        if self._is_open:
            if self._ahead and self._inode.room and not self._disk.is_dead:
                with suppress(OSError):  # the room stays
                    self._disk.meet_fault("truncate", self.path)
                    self._inode.resize(self.size())
            self._is_open = False
            self._disk.open_files -= 1
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write_at(self, data: ReadableBuffer, position: int) -> None:
        self._check()
        self._disk.write_into(self._inode, self.path, bytes(data), position)

    def allocate(self, size: int) -> None:
        self._check()
        self._disk.allocate(self._inode, self.path, size)

    def fileno(self) -> int:
        """A descriptor with a copy of the bytes as they are now."""
        self._check()
        if not self._disk.has_descriptors:
            return -1
        if self._fd < 0:
            self._fd = os.memfd_create("simdisk")
            os.write(self._fd, self._inode.content)
        return self._fd

    def _check(self) -> None:
        if not self._is_open:
            raise OSError(errno.EBADF, "closed", self.path)
        if self._disk.is_dead:
            raise Crashed


class SimDisk:
    """See the module.

    Args:
        seed: Decides how far a half-done call came (with `effort.SEED`).
        crash_at: The step at which the power goes; None: never.
        runs_ahead: Files that are opened with `ahead` do run ahead; else this disk refuses it.

    Attributes:
        steps: Changing calls so far.
        calls: How often each kind of call was made.
        count: How many calls of any kind.
        fails_at: Those of them that fail with `fails_with`, whatever they are; a write after 50 bytes.
        open_files: Files that are open now.
        forgotten: How often somebody asked to read past the page cache, which this disk does not have.
        bytes_max: Capacity; None is no limit.
        has_descriptors: Off for who reads by `pread` alone, and often: `fileno` means nothing then.
        ahead_max: Nothing runs ahead by more, whatever is asked for.
        half_gone: Files of a folder that was removed, with their folder: a folder further above was synced since, and
            not the one that had it. Here no power cut brings them back; a real disk may.
        spares: Sizes of the spare files that there are, beside the capacity. None is made again.
    """

    def __init__(self, *, seed: int = 0, crash_at: int | None = None, runs_ahead: bool = False) -> None:
        self.names: dict[str, Inode] = {}
        self.has_descriptors = True
        self.folders: set[str] = {"/"}
        self.runs_ahead = runs_ahead
        self.steps = 0
        self.crash_at = crash_at
        self.calls: dict[str, int] = {}
        self.count = 0
        self.fails_at: set[int] = set()
        self.fails_with = errno.EIO
        self.open_files = 0
        self.forgotten = 0
        self.bytes_max: int | None = None
        self.ahead_max = 1 << 62
        self.spares: list[int] = []
        self.half_gone: dict[str, str] = {}
        self._durable_names: dict[str, Inode] = {}
        self._pending_names: list[tuple[str, str, Inode | None]] = []  # folder, path, what it names now
        self._faults: list[Fault] = []
        self._rng = random.Random(seeded(seed))
        self.is_dead = False

    @property
    def used_bytes(self) -> int:
        """The bytes that all files take; room takes none."""
        return sum(inode.written for inode in {id(inode): inode for inode in self.names.values()}.values())

    # --- faults ---------------------------------------------------------------------------------------------

    def fail(self, call: str, error: int, *, path: str = "", after: int = 0, times: int = 1, short: int = 0) -> None:
        """Let `times` calls fail with an errno, after `after` good ones; a write after `short` bytes."""
        assert call in CALLS, call
        self._faults.append(Fault(call, error, path, after, times, short))

    def heal(self) -> None:
        """No more faults, no limit."""
        self._faults.clear()
        self.fails_at = set()
        self.bytes_max = None

    def flip(self, path: str, bit: int) -> None:
        """Turn one bit of a file, on the plates too if it got there."""
        inode = self.names[path]
        for content in (inode.content, inode.durable):
            if bit // 8 < len(content):
                content[bit // 8] ^= 1 << bit % 8

    def lose(self, path: str) -> None:
        """A file is gone, on the plates too."""
        del self.names[path]
        self._durable_names.pop(path, None)
        self._pending_names = [change for change in self._pending_names if change[1] != path]

    def after_crash(self, mode: Mode, *, seed: int = 0, crash_at: int | None = None) -> SimDisk:
        """The disk that the next process finds. This one stays as it is, so several outcomes can be looked at."""
        rng = random.Random(seeded(seed))
        found = SimDisk(seed=seed, crash_at=crash_at, runs_ahead=self.runs_ahead)
        found.ahead_max = self.ahead_max
        found.folders = set(self.folders)
        names = dict(self._durable_names)
        kept = {"lost": 0, "kept": len(self._pending_names)}.get(mode, rng.randint(0, len(self._pending_names)))
        for _, path, inode in self._pending_names[:kept]:
            if inode is None:
                names.pop(path, None)
            else:
                names[path] = inode
        survivors: dict[int, Inode] = {}
        for path in sorted(names):
            inode = names[path]
            if id(inode) not in survivors:
                content = _survived(inode, mode, rng)
                survivors[id(inode)] = Inode(content, bytearray(content))
            found.names[path] = survivors[id(inode)]
        found._durable_names = dict(found.names)
        return found

    def after_kill(self, *, crash_at: int | None = None) -> SimDisk:
        """The disk that the next process on the same, running machine finds."""
        found = SimDisk(crash_at=crash_at, runs_ahead=self.runs_ahead)
        found.ahead_max = self.ahead_max
        found.folders = set(self.folders)
        copies: dict[int, Inode] = {}

        def copy(inode: Inode) -> Inode:
            if id(inode) not in copies:
                copies[id(inode)] = Inode(bytearray(inode.content), bytearray(inode.durable), list(inode.pending))
            return copies[id(inode)]

        found.names = {path: copy(inode) for path, inode in self.names.items()}
        found._durable_names = {path: copy(inode) for path, inode in self._durable_names.items()}
        found._pending_names = [
            (folder, path, None if inode is None else copy(inode)) for folder, path, inode in self._pending_names
        ]
        return found

    def check_power(self) -> None:
        if self.is_dead:
            raise Crashed

    def meet_fault(self, call: str, path: str) -> Fault | None:
        """Raise the fault that is set for this call; a write gets it back, to do part of its work first."""
        if self.is_dead:
            raise Crashed
        self.calls[call] = self.calls.get(call, 0) + 1
        self.count += 1
        if not self._faults and not self.fails_at:
            return None
        if self.count in self.fails_at:
            if call == "write":
                return Fault(call, self.fails_with, path, 0, 0, 50)
            raise OSError(self.fails_with, os.strerror(self.fails_with), path)
        for fault in self._faults:
            if fault.call == call and fault.path in path:
                if fault.after > 0:
                    fault.after -= 1
                elif fault.times > 0:
                    fault.times -= 1
                    if call == "write":
                        return fault
                    raise OSError(fault.errno, os.strerror(fault.errno), path)
        return None

    def step(self, call: str, path: str) -> Fault | None:
        """Count a changing call; it may fail, or be the last one."""
        fault = self.meet_fault(call, path)
        self.steps += 1
        if self.steps == self.crash_at:
            self.is_dead = True
            raise Crashed
        return fault

    def write_to(self, inode: Inode, path: str, data: bytes, ahead: int) -> None:
        if inode.room < len(data) < ahead // 4:
            with suppress(OSError):
                self.step("stretch", path)
                inode.resize(inode.written + len(data) + ahead)
        allowed, error = len(data), 0
        if self.bytes_max is not None:
            free = max(0, self.bytes_max - self.used_bytes)
            if free < len(data):
                allowed, error = free, errno.ENOSPC
        try:
            fault = self.step("write", path)
        except Crashed:
            allowed = self._rng.randint(0, allowed)
            self._append(inode, data, allowed)
            raise
        if fault is not None:
            allowed, error = min(allowed, fault.short), fault.errno
        self._append(inode, data, allowed)
        if error:
            raise OSError(error, os.strerror(error), path)

    def write_into(self, inode: Inode, path: str, data: bytes, position: int) -> None:
        """Write within a file of which all takes space, or beyond its end."""
        allowed, error = len(data), 0
        if self.bytes_max is not None:
            free = max(0, self.bytes_max - self.used_bytes)
            if position + len(data) > len(inode.content) + free:
                allowed, error = max(0, len(inode.content) + free - position), errno.ENOSPC
        try:
            fault = self.step("write", path)
        except Crashed:
            self._write_some(inode, data, position, self._rng.randint(0, allowed))
            raise
        if fault is not None:
            allowed, error = min(allowed, fault.short), fault.errno
        self._write_some(inode, data, position, allowed)
        if error:
            raise OSError(error, os.strerror(error), path)

    def _write_some(self, inode: Inode, data: bytes, position: int, count: int) -> None:
        if count:
            change = Write(position, data[:count])
            apply(inode.content, change)
            inode.pending.append(change)
            inode.room = 0

    def allocate(self, inode: Inode, path: str, size: int) -> None:
        more = size - len(inode.content)
        if more <= 0:
            return
        self.step("stretch", path)
        if self.bytes_max is not None and more > self.bytes_max - self.used_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        inode.resize(size)
        inode.room = 0

    def _append(self, inode: Inode, data: bytes, allowed: int) -> None:
        """Write so many bytes of `data`; into room all but the first 8 first."""
        at, prefix = inode.written, min(PREFIX_BYTES, len(data)) if len(data) <= inode.room else 0
        body, head = data[prefix : prefix + allowed], data[: max(0, prefix + allowed - len(data))]
        for change in (Write(at + prefix, body), Write(at, head)):
            if change.data:
                apply(inode.content, change)
                inode.pending.append(change)
        inode.room = max(0, len(inode.content) - at - (allowed if allowed == len(data) or not prefix else 0))

    # --- Disk -----------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, readonly: bool = False, ahead: int = 0) -> SimFile:
        self.meet_fault("open", path)
        inode = self.names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._check_folder(os.path.dirname(path))
            self.step("create", path)
            inode = Inode()
            self._name(path, inode)
        self.open_files += 1
        if ahead:
            inode.room = 0  # whoever opens it finds a length, and does not know what of it was written
        return SimFile(self, path, inode, min(ahead, self.ahead_max) if self.runs_ahead else 0)

    def open_fixed(self, path: str, *, create: bool = False) -> SimFile:
        return self.open(path, create=create)

    def link(self, source: str, target: str) -> None:
        inode = self._inode(source)
        if target in self.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self.step("link", source)
        self._name(target, inode)

    def listdir(self, path: str) -> list[str]:
        self.meet_fault("listdir", path)
        if path in self.names:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self._check_folder(path)
        prefix = path.rstrip("/") + "/"
        there = {name[len(prefix) :] for name in (*self.names, *self.folders) if name.startswith(prefix)}
        return sorted(name for name in there if name and "/" not in name)

    def exists(self, path: str) -> bool:
        self.meet_fault("exists", path)
        return path in self.names or path in self.folders

    def size(self, path: str) -> int:
        self.meet_fault("size", path)
        return len(self._inode(path).content)

    def makedirs(self, path: str) -> None:
        self.step("makedirs", path)
        while path not in self.folders:
            self.folders.add(path)
            path = os.path.dirname(path)

    def rename(self, source: str, target: str) -> None:
        if source in self.folders:
            self._rename_folder(source, target)
            return
        inode = self._inode(source)
        self.step("rename", source)
        del self.names[source]
        self._name(target, inode)  # one change: the old name goes with it
        self._pending_names.append((os.path.dirname(source), source, None))

    def _rename_folder(self, source: str, target: str) -> None:
        """Here it is durable at once: no power cut takes it back."""
        self.step("rename", source)

        def moved(path: str) -> str:
            return target + path[len(source) :] if path == source or path.startswith(source + "/") else path

        self.folders = {moved(path) for path in self.folders}
        self.names = {moved(path): inode for path, inode in self.names.items()}
        self._durable_names = {moved(path): inode for path, inode in self._durable_names.items()}
        self._pending_names = [(moved(folder), moved(path), inode) for folder, path, inode in self._pending_names]

    def unlink(self, path: str) -> None:
        self._inode(path)
        self.step("unlink", path)
        del self.names[path]
        self._pending_names.append((os.path.dirname(path), path, None))

    def sync_dir(self, path: str) -> None:
        self._check_folder(path)
        self.step("sync_dir", path)
        left = []
        self.half_gone = {name: folder for name, folder in self.half_gone.items() if self._above(folder) != path}
        for folder, name, inode in self._pending_names:
            is_gone = folder.startswith(path + "/") and folder not in self.folders  # and so is what was in it
            if folder != path and not (is_gone and inode is None):
                left.append((folder, name, inode))
            elif inode is None:
                self._durable_names.pop(name, None)
                if is_gone and self._above(folder) != path:
                    self.half_gone[name] = folder
            else:
                self._durable_names[name] = inode
        self._pending_names = left

    def _above(self, folder: str) -> str:
        """The nearest folder above that is there."""
        while (above := os.path.dirname(folder)) not in self.folders:
            folder = above
        return above

    def read_file(self, path: str) -> bytes:
        self.meet_fault("read_file", path)
        return bytes(self._inode(path).content)

    def replace_file(self, path: str, data: ReadableBuffer, *, frees: bool = False) -> None:
        temporary = path + TEMPORARY
        try:
            self._replace_by(temporary, path, data)
        except OSError as error:
            with suppress(OSError):
                self.unlink(temporary)
            fitting = [size for size in self.spares if size >= len(data)]
            if not frees or error.errno != errno.ENOSPC or not fitting:
                raise
            self.spares.remove(min(fitting))
            bytes_max, self.bytes_max = self.bytes_max, None
            try:
                self._replace_by(temporary, path, data)
            finally:
                self.bytes_max = bytes_max
        self.sync_dir(os.path.dirname(path))

    def _replace_by(self, temporary: str, path: str, data: ReadableBuffer) -> None:
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write(data)
            file.sync()
            self.rename(temporary, path)
        finally:
            file.close()

    def remove_tree(self, path: str) -> None:
        self.step("remove_tree", path)
        for name in [name for name in self.names if name.startswith(path + "/")]:
            self.unlink(name)
        self.folders -= {name for name in self.folders if name == path or name.startswith(path + "/")}

    def remove_folder(self, path: str) -> None:
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self.step("remove_folder", path)
        self.folders.discard(path)

    def _name(self, path: str, inode: Inode) -> None:
        self.names[path] = inode
        self._pending_names.append((os.path.dirname(path), path, inode))

    def _inode(self, path: str) -> Inode:
        self.check_power()
        inode = self.names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def _check_folder(self, path: str) -> None:
        self.check_power()
        if path not in self.folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _survived(inode: Inode, mode: Mode, rng: random.Random) -> bytearray:
    """The bytes that a crash leaves of one file."""
    content = bytearray(inode.durable)
    pending = inode.pending
    match mode:
        case "lost":
            pass
        case "kept":
            content = bytearray(inode.content)
        case "torn":
            count = rng.randint(0, len(pending))
            for change in pending[:count]:
                apply(content, change)
            if count < len(pending) and isinstance(torn := pending[count], Write):
                apply(content, Write(torn.position, torn.data[: rng.randint(0, len(torn.data))]))
        case "zeros":
            for change in pending:
                apply(content, change)
            written = [change for change in pending if isinstance(change, Write) and not change.is_again]
            if written:
                first = min(change.position for change in written)
                start = rng.randint(min(first, len(content)), len(content))
                content[start:] = bytes(len(content) - start)
        case "reordered":
            for change in pending:
                if isinstance(change, Truncate):
                    if rng.random() < 0.5:
                        apply(content, change)
                    continue
                for at in range(0, len(change.data), SECTOR_BYTES):
                    if rng.random() < 0.6:
                        apply(content, Write(change.position + at, change.data[at : at + SECTOR_BYTES]))
    return content
