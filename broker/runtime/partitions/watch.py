"""Wakes whoever waits for a partition to move on.

High watermarks move in the fsync threads; waiters live on the data plane's loop. `note` may be called
from any thread as often as one likes: while nobody waits it only counts, and while a wake-up is on its
way to the loop it does not send another.

The version counts every change. It begins at the start time in microseconds, so it also grows over
restarts and a client's old version is never ahead of it.

Who works in rounds asks with `take_moved` for what changed since the last one, so that thousands of idle partitions
cost nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable


class ChangeHub:
    """One per broker; waiting is for coroutines of `loop` only.

    Args:
        loop: The data plane's loop.
        version: Where to begin to count: the start time in microseconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, version: int) -> None:
        self.version = version
        self._loop = loop
        self._lock = threading.Lock()
        self._changed: set[Hashable] = set()
        self._moved: set[Hashable] = set()
        self._scheduled = False
        self._waiters: dict[Hashable, list[asyncio.Future[None]]] = {}
        self._waiter_count = 0

    ANY: Hashable = "any change"

    def note(self, key: Hashable) -> None:
        """Say that `key` changed. Thread-safe, cheap."""
        with self._lock:
            self.version += 1
            self._moved.add(key)
            if not self._waiter_count:
                return
            self._changed.add(key)
            if self._scheduled:
                return
            self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def take_moved(self) -> set[Hashable]:
        """What was noted since the last call; from any thread, for one caller."""
        with self._lock:
            moved, self._moved = self._moved, set()
        return moved

    def _wake(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
            self._scheduled = False
        for key in (*changed, self.ANY):
            for future in self._waiters.pop(key, ()):
                if not future.done():
                    future.set_result(None)

    async def wait(self, key: Hashable, done: Callable[[], bool], timeout_s: float) -> None:
        """Return when `done()` holds or time is up. `key` is what has to change for that.

        Registering comes before looking, so a change in between is never missed.
        """
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
