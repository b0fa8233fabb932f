"""Faults of disk and clock for a real broker: an `os` that fails on demand, and the socket that says when.

`tests.soak.broker` puts a `FaultyOs` where the broker's modules have `os`, so everything that they write below the data
folder passes through it; what is no file there is passed on as it is. Files have their real bytes on the real disk all
the time, and `sendfile` and mmap see them; what of them a power cut would take is reckoned beside it (`pages.py`).

    soak ── Faults ── socket, a JSON object a line ── serve ── FaultyOs       in the broker's process
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.soak.pages import Pages, Ranges

PAGE_BYTES = 4096
DISK_BYTES = 1 << 34
"""Size of the disk while it has a limit."""


@dataclass
class Rule:
    """The calls that are to fail next.

    Attributes:
        call: `read`, `write`, `fsync`, `truncate` (a file becomes shorter), `extend` (longer), `open`, `replace`.
        match: Found in the path.
        count: So many calls fail.
        number: errno.
        delay_s: A failed fsync returns so much later.
        tell_first: The error is taken by the call before that delay: who syncs the file meanwhile is told nothing.
        evict: Lost pages are gone at once.
        part: A write first takes half of it.
        share: The share of matching calls that fail.
    """

    call: str
    match: str
    count: int = 1
    number: int = errno.EIO
    delay_s: float = 0.0
    tell_first: bool = True
    evict: bool = False
    part: bool = False
    share: float = 1.0

    def error(self, path: str) -> OSError:
        return OSError(self.number, f"{os.strerror(self.number)} (soak)", path)


class _Open:
    """A descriptor (an open file description)."""

    def __init__(self, pages: Pages, *, is_append: bool) -> None:
        self.pages = pages
        self.is_append = is_append
        # L2 of `pages`: an error that nobody was told yet is told to this one too.
        self.seen_count = pages.error_count if pages.told_count == pages.error_count else pages.told_count


class FaultyOs(ModuleType):
    """`os`, but for what is done to files below `folder`."""

    def __init__(self, folder: str) -> None:
        super().__init__("os")
        self._folder = folder
        self._lock = threading.RLock()
        self._rules: list[Rule] = []
        self._pages: dict[tuple[int, int], Pages] = {}
        self._open: dict[int, _Open] = {}
        self._room_bytes: int | None = None
        self._sync_locks: dict[int, threading.Lock] = {}
        self._rng = random.Random(0)
        self.failed: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # --- what the broker calls ------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = os.fspath(path)
        if dir_fd is not None or not str(name).startswith(self._folder) or flags & os.O_DIRECTORY:
            return os.open(path, flags, mode, dir_fd=dir_fd)
        with self._lock:
            if flags & (os.O_WRONLY | os.O_RDWR):
                self._maybe_fail("open", name)
            fd = os.open(path, flags, mode)
            found = os.fstat(fd)
            key = (found.st_dev, found.st_ino)
            pages = self._pages.get(key)
            if pages is None or (pages.path != name and not pages.opened):  # the number of a file that was removed
                pages = self._pages[key] = Pages(name, found.st_size)
                pages.allocated_bytes = min(found.st_size, found.st_blocks * 512)
            if flags & os.O_TRUNC:
                pages.truncated(0)
            pages.opened += 1
            self._open[fd] = _Open(pages, is_append=bool(flags & os.O_APPEND))
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            file = self._open.pop(fd, None)
            if file is not None:
                file.pages.opened -= 1
            os.close(fd)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._maybe_fail_read(fd)
        return os.pread(fd, size, position)

    def preadv(self, fd: int, blocks: Any, position: int, flags: int = 0) -> int:
        self._maybe_fail_read(fd)
        return os.preadv(fd, blocks, position, flags)

    def _maybe_fail_read(self, fd: int) -> None:
        file = self._open.get(fd)
        if file is not None and self._rules:
            with self._lock:
                self._maybe_fail("read", file.pages.path)

    def write(self, fd: int, data: Any) -> int:
        file = self._open.get(fd)
        if file is None:
            return os.write(fd, data)
        with self._lock:
            at = os.fstat(fd).st_size if file.is_append else os.lseek(fd, 0, os.SEEK_CUR)
            return self._write(file.pages, data, at, lambda view: os.write(fd, view))

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        file = self._open.get(fd)
        if file is None:
            return os.pwrite(fd, data, position)
        with self._lock:
            return self._write(file.pages, data, position, lambda view: os.pwrite(fd, view, position))

    def _write(self, pages: Pages, data: Any, at: int, write: Callable[[memoryview], int]) -> int:
        view = memoryview(data).cast("B")
        rule = self._next("write", pages.path)
        if rule is not None and not rule.part:
            raise rule.error(pages.path)
        if rule is not None and len(view) > 1:
            rule.part, rule.count = False, rule.count + 1  # the rest of it fails
            self._rules.append(rule)
            view = view[: len(view) // 2]
        if self._room_bytes is not None and at + len(view) > pages.allocated_bytes:
            view = view[: self._room_bytes]
            if not view:
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (soak)", pages.path)
            self._room_bytes -= len(view)
        count = write(view)
        pages.wrote(at, at + count)
        return count

    def ftruncate(self, fd: int, size: int) -> None:
        file = self._open.get(fd)
        if file is None:
            os.ftruncate(fd, size)
            return
        with self._lock:
            before = os.fstat(fd).st_size
            self._maybe_fail("extend" if size > before else "truncate", file.pages.path)
            os.ftruncate(fd, size)
            if size < before:
                taken_back = file.pages.truncated(size)
                if self._room_bytes is not None:
                    self._room_bytes += taken_back

    def posix_fallocate(self, fd: int, offset: int, size: int) -> None:
        file = self._open.get(fd)
        with self._lock:
            more = max(0, offset + size - os.fstat(fd).st_size)
            if self._room_bytes is not None and file is not None:
                if more > self._room_bytes:
                    raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (soak)", file.pages.path)
                self._room_bytes -= more
            os.posix_fallocate(fd, offset, size)
            if file is not None:
                file.pages.allocated_bytes = max(file.pages.allocated_bytes, offset + size)

    def fsync(self, fd: int) -> None:
        self._sync(fd, os.fsync)

    def fdatasync(self, fd: int) -> None:
        self._sync(fd, os.fdatasync)

    def _sync(self, fd: int, sync: Callable[[int], None]) -> None:
        file = self._open.get(fd)
        if file is None:
            sync(fd)
            return
        pages = file.pages
        with self._lock:
            lock = self._sync_locks.setdefault(id(pages), threading.Lock())
        is_told, rule = False, None
        with lock:  # who comes second waits until the pages are written
            with self._lock:
                rule = self._next("fsync", pages.path)
                taken, size = pages.sync_begins(), os.fstat(fd).st_size
            if rule is None:
                sync(fd)
            with self._lock:
                if rule is None:
                    pages.sync_ends(taken, size)
                else:
                    pages.sync_fails(taken)
                    is_told = rule.tell_first and self._tell(file)
                    if rule.evict:
                        self._evict(pages)
        if rule is not None:
            time.sleep(rule.delay_s)
        with self._lock:
            if self._tell(file) or is_told:
                raise (rule or Rule("fsync", "")).error(pages.path)

    def _tell(self, file: _Open) -> bool:
        pages = file.pages
        is_new = pages.error_count > file.seen_count
        file.seen_count = pages.told_count = pages.error_count
        return is_new

    def replace(self, source: str, target: str) -> None:
        with self._lock:
            self._maybe_fail("replace", str(target))
            self._forget(target)
            os.replace(source, target)
            for pages in self._pages.values():
                if pages.path == source:
                    pages.path = target

    def unlink(self, path: str) -> None:
        with self._lock:
            self._forget(path)
            os.unlink(path)

    def _forget(self, path: str) -> None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return
        self._pages.pop((found.st_dev, found.st_ino), None)
        if self._room_bytes is not None:
            self._room_bytes += found.st_size

    def statvfs(self, path: str) -> Any:
        found = os.statvfs(path)
        if self._room_bytes is None:
            return found
        values = list(found)
        values[2] = DISK_BYTES // found.f_frsize
        values[3] = values[4] = self._room_bytes // found.f_frsize
        return os.statvfs_result(values)

    # --- what the soak orders -------------------------------------------------------------------------------

    def fail(self, rule: Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def clear(self) -> None:
        """Nothing fails any more, and the disk has no limit. (Lost pages stay lost.)"""
        with self._lock:
            self._rules.clear()
            self._room_bytes = None

    def limit_room(self, byte_count: int) -> None:
        with self._lock:
            self._room_bytes = byte_count

    def evict(self) -> None:
        """Take lost pages out of memory."""
        with self._lock:
            for pages in list(self._pages.values()):
                self._evict(pages)

    def power_cut(self, seed: int) -> None:
        """End the process; what was not synced may be gone, page by page, or the file as short as it was."""
        self._lock.acquire()  # for good: nothing is written any more
        rng = random.Random(seed)
        for pages in list(self._pages.values()):
            unsure = pages.unsure()
            for start, end in unsure.items:
                for at in range(start - start % PAGE_BYTES, end, PAGE_BYTES):
                    if rng.random() < 0.7:
                        self._zero(pages, max(at, start), min(at + PAGE_BYTES, end))
            if unsure and rng.random() < 0.5:
                self._shorten(pages)
        os.kill(os.getpid(), signal.SIGKILL)

    def _evict(self, pages: Pages) -> None:
        for start, end in pages.lost.items:
            self._zero(pages, start, end)
        pages.lost = Ranges()

    def _zero(self, pages: Pages, start: int, end: int) -> None:
        def zero(fd: int) -> None:
            stop = min(end, os.fstat(fd).st_size)
            if start < stop:
                os.pwrite(fd, bytes(stop - start), start)

        self._with_file(pages, zero)

    def _shorten(self, pages: Pages) -> None:
        def shorten(fd: int) -> None:
            if pages.durable_bytes < os.fstat(fd).st_size:
                os.ftruncate(fd, pages.durable_bytes)

        self._with_file(pages, shorten)

    def _with_file(self, pages: Pages, do: Callable[[int], None]) -> None:
        """With a descriptor of it, if it still has its name."""
        try:
            fd = os.open(pages.path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            found = os.fstat(fd)
            if self._pages.get((found.st_dev, found.st_ino)) is pages:
                do(fd)
        finally:
            os.close(fd)

    def _next(self, call: str, path: str) -> Rule | None:
        for rule in self._rules:
            if rule.call == call and re.search(rule.match, path) and self._rng.random() < rule.share:
                rule.count -= 1
                if rule.count <= 0:
                    self._rules.remove(rule)
                self.failed[call] = self.failed.get(call, 0) + 1
                return rule
        return None

    def _maybe_fail(self, call: str, path: str) -> None:
        rule = self._next(call, path)
        if rule is not None:
            raise rule.error(path)


class Clock:
    """A wall clock that can be moved, in the place of `time.time` and `time.time_ns`.

    Args:
        path: A file that keeps how far it was moved, for the next broker.
    """

    def __init__(self, path: Path) -> None:
        self.ahead_ns = int(path.read_text()) if path.exists() else 0
        self._path = path
        self._time_ns = time.time_ns

    def move(self, ahead_ns: int) -> None:
        self.ahead_ns = ahead_ns
        self._path.write_text(str(ahead_ns))

    def time_ns(self) -> int:
        return self._time_ns() + self.ahead_ns

    def time(self) -> float:
        return self.time_ns() / 1e9


def serve(path: str, disk: FaultyOs, clock: Clock) -> None:
    """Obey what comes over the socket at `path`, in a thread of its own."""
    Path(path).unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(4)

    def obey(order: dict[str, Any]) -> dict[str, Any]:
        match order.pop("do"):
            case "fail":
                disk.fail(Rule(**order))
            case "clear":
                disk.clear()
            case "room":
                disk.limit_room(order["bytes"])
            case "evict":
                disk.evict()
            case "power_cut":
                disk.power_cut(order["seed"])
            case "clock":
                clock.move(order["ahead_ms"] * 1_000_000)
        return {"failed": disk.failed}

    def run() -> None:
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rw") as lines:
                for line in lines:
                    lines.write(json.dumps(obey(json.loads(line))) + "\n")
                    lines.flush()

    threading.Thread(target=run, name="faults", daemon=True).start()


class Faults:
    """The soak's end of the socket: orders to the broker that runs now."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def order(self, do: str, **values: Any) -> dict[str, int]:
        """Give an order; what has failed so far, by call. OSError: no broker is there."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(self.path))
            with connection.makefile("rw") as lines:
                lines.write(json.dumps({"do": do, **values}) + "\n")
                lines.flush()
                answer = lines.readline()
        found: dict[str, int] = json.loads(answer)["failed"] if answer else {}
        return found

    def power_cut(self, seed: int) -> None:
        """The broker ends at once, without an answer."""
        try:
            self.order("power_cut", seed=seed)
        except OSError:
            return
