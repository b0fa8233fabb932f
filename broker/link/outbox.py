"""The queue of one stream: each source that has something to say is in it once, and speaks when the stream can take it.

    somebody ── ready ──► [ a  c  b ] ──► next ──► the stream's thread asks `a` what it has to say now
    somebody ── later ──► (at 0.2 s: d) ─┘

O1  It holds sources, never bytes: what is said is made when the stream has taken what came before. So a slow reader
    holds up one stream, with one answer in memory, and what it hears is not old.
O2  There are as many entries as sources, and for each one time at most that counts. Nothing is kept of a source that
    was forgotten.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Outbox(Generic[T]):
    """See the module. Thread-safe. Sources are compared by identity or value, and hashed.

    Args:
        now_s: A clock that never goes back.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = threading.Condition()
        self._ready: deque[T] = deque()
        self._queued: set[T] = set()
        self._due: dict[T, tuple[float, int]] = {}
        self._timers: list[tuple[float, int]] = []  # of all times that counted once
        self._timed: dict[int, T] = {}  # by number: those that count
        self._number = 0
        self.is_closed = False

    def ready(self, source: T) -> None:
        """It has something to say."""
        with self._lock:
            if source not in self._queued and not self.is_closed:
                self._queued.add(source)
                self._untime(source)
                self._ready.append(source)
                self._lock.notify()

    def later(self, source: T, at_s: float) -> None:
        """It has, by its clock, then; or earlier, if it is said to be ready. A later call replaces this one."""
        with self._lock:
            if not self.is_closed and source not in self._queued and self._due.get(source, (None, 0))[0] != at_s:
                self._untime(source)
                self._number += 1
                self._due[source] = at_s, self._number
                self._timed[self._number] = source
                heapq.heappush(self._timers, (at_s, self._number))
                if self._timers[0][1] == self._number:
                    self._lock.notify()

    def forget(self, source: T) -> None:
        """It has nothing to say any more."""
        with self._lock:
            self._untime(source)
            if source in self._queued:
                self._queued.discard(source)
                self._ready.remove(source)

    def _untime(self, source: T) -> None:
        _, number = self._due.pop(source, (0.0, 0))
        self._timed.pop(number, None)

    def next(self, wait_s: float = 3_600.0) -> T | None:
        """Wait for one; None: there was none for so long, or it is closed."""
        until_s = self._now_s() + wait_s
        with self._lock:
            while not self.is_closed:
                due_s = self._fire()
                if self._ready:
                    source = self._ready.popleft()
                    self._queued.discard(source)
                    return source
                left_s = until_s - self._now_s()
                if left_s <= 0:
                    return None
                self._lock.wait(left_s if due_s is None else min(due_s, left_s))
            return None

    def _fire(self) -> float | None:
        """Those whose time has come are ready. Returns how long until the next one."""
        now_s = self._now_s()
        while self._timers:
            at_s, number = self._timers[0]
            source = self._timed.get(number)
            if source is None:  # replaced
                heapq.heappop(self._timers)
            elif at_s <= now_s:
                heapq.heappop(self._timers)
                self._untime(source)
                self._queued.add(source)
                self._ready.append(source)
            else:
                return at_s - now_s
        return None

    def close(self) -> None:
        """Nothing is said any more, and nothing kept: a reader may hold the stream long after it was cut."""
        with self._lock:
            self.is_closed = True
            for kept in (self._ready, self._queued, self._due, self._timers, self._timed):
                kept.clear()
            self._lock.notify_all()
