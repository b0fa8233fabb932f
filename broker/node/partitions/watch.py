"""Wakes whoever waits for a partition, or for streams, to move on.

High watermarks move in the fsync threads; waiters live on the data plane's loop. `note` may be called
from any thread as often as one likes: while nobody waits it only remembers what moved, and while a wake-up is on its
way to the loop it does not send another.

W1  A waiter is woken by what it waits for, and by nothing else: a stream that takes a thousand batches a second costs
    nothing to those who watch another one.
W2  Waiting begins before looking, so a change in between is never missed.

Work in rounds asks with `take_moved` for what changed since the last one, so that thousands of idle partitions cost
nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterator, Set
from contextlib import contextmanager
from typing import Final


class StreamWatcher:
    """The changes that one watcher waits for. Made by `ChangeHub.watching`; for coroutines of its loop.

    Args:
        places: By key, who watches it; the hub's.
    """

    def __init__(self, places: dict[Hashable, set[StreamWatcher]]) -> None:
        self._places = places
        self._streams: Set[Hashable] = frozenset()
        self._is_told = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def streams(self) -> Set[Hashable]:
        """Names of those whose changes count. `ChangeHub.ALL` counts always."""
        return self._streams

    @streams.setter
    def streams(self, keys: Set[Hashable]) -> None:
        for key in self._streams - keys:
            self._places[key].discard(self)
            if not self._places[key]:
                del self._places[key]
        for key in keys - self._streams:
            self._places.setdefault(key, set()).add(self)
        self._streams = frozenset(keys)

    def told(self) -> None:
        """Wake the watcher."""
        self._is_told = True
        self._end()

    def _end(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Return when something has changed since this returned last, or time is up."""
        if not self._is_told:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = loop.call_later(timeout_s, self._end)
            try:
                await self._waiting
            finally:
                timer.cancel()
                self._waiting = None
        self._is_told = False


class ChangeHub:
    """One per broker; waiting is for coroutines of `loop` only.

    Args:
        loop: The data plane's loop.
    """

    ALL: Final[Hashable] = "*"
    """Key of changes to every stream, or to which streams there are. No stream has this name."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._changed: set[Hashable] = set()
        self._moved: set[Hashable] = set()
        self._scheduled = False
        self._waiters: dict[Hashable, list[asyncio.Future[None]]] = {}
        self._waiter_count = 0
        self._watchers: dict[StreamWatcher, None] = {}  # thousands, of consumer groups: found by their keys
        self._places: dict[Hashable, set[StreamWatcher]] = {}

    def note(self, *keys: Hashable) -> None:
        """Say that these changed. Thread-safe, cheap."""
        with self._lock:
            self._moved.update(keys)
            if not self._waiter_count:
                return
            self._changed.update(keys)
            if self._scheduled:
                return
            self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def take_moved(self) -> set[Hashable]:
        """Take all keys that were noted since the last call; from any thread, for one caller."""
        with self._lock:
            moved, self._moved = self._moved, set()
        return moved

    def _wake(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
            self._scheduled = False
        for key in (self.ALL,) if self.ALL in changed else changed:
            for watcher in self._watchers if key is self.ALL else self._places.get(key, ()):
                watcher.told()
        for key in changed:
            for future in self._waiters.pop(key, ()):
                if not future.done():
                    future.set_result(None)

    @contextmanager
    def watching(self) -> Iterator[StreamWatcher]:
        """Watch streams for a while: say which, look, wait, and look again (W2)."""
        watcher = StreamWatcher(self._places)
        with self._lock:
            self._waiter_count += 1
        self._watchers[watcher] = None
        try:
            yield watcher
        finally:
            watcher.streams = frozenset()
            del self._watchers[watcher]
            with self._lock:
                self._waiter_count -= 1

    async def wait(self, key: Hashable, done: Callable[[], bool], timeout_s: float) -> None:
        """Return when `done()` holds or time is up. `key` is what has to change for that (W2)."""
        deadline = self._loop.time() + timeout_s
        while True:
            future: asyncio.Future[None] = self._loop.create_future()
            with self._lock:
                self._waiter_count += 1
            self._waiters.setdefault(key, []).append(future)
            try:
                left = deadline - self._loop.time()
                if done() or left <= 0:
                    return
                await asyncio.wait([future], timeout=left)
            finally:
                with self._lock:
                    self._waiter_count -= 1
                waiting = self._waiters.get(key)
                if waiting is not None and future in waiting:
                    waiting.remove(future)
                    if not waiting:
                        del self._waiters[key]
