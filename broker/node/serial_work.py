"""One thing at a time for each owner, on the threads of a pool. Asking for a turn never waits.

    asked ─► (nobody is at it) ─► a thread of the pool: work ─► asked meanwhile? ─► work ...

T1  At most one thread works for an owner at a time. Its work sees all that was asked before the work began.
T2  A turn that is asked for while one is under way comes after it; ten of them are one.
T3  An error in the work is logged, and ends neither the thread nor the turns to come.
T4  After `end` no work begins. `end` returns when none is under way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from broker.common.waiting import Waits

log = logging.getLogger(__name__)


class Workers(Protocol):
    """Threads that carry out what is submitted. Nobody asks what became of it."""

    def submit(self, call: Callable[[], None], /) -> object:
        """Have it called soon. Raises RuntimeError: never."""
        ...


class SerialWork:
    """The work of one owner. Thread-safe.

    Args:
        work: Done in a turn; looks by itself at what there is to do.
    """

    __slots__ = ("_has_ended", "_is_asked", "_is_running", "_lock", "_not_running", "_pool", "_waits", "_work")

    def __init__(self, pool: Workers, work: Callable[[], None], waits: Waits) -> None:
        self._pool = pool
        self._work = work
        self._waits = waits
        self._lock = threading.Lock()
        self._not_running: threading.Condition | None = None  # made by who waits: there are ten thousand owners
        self._is_asked = self._is_running = self._has_ended = False

    def ask(self) -> None:
        """Let there be a turn from now on."""
        with self._lock:
            self._is_asked = True
            if self._is_running or self._has_ended:
                return
            self._is_running = True
        try:
            self._pool.submit(self._run)
        except RuntimeError:  # the broker stops
            with self._lock:
                self._is_running = False
                self._tell()

    def end(self) -> None:
        """No more turns. Not to be called by the work itself."""
        with self._lock:
            self._has_ended = True
            self._not_running = self._not_running or threading.Condition(self._lock)
            self._waits.until(self._not_running, lambda: not self._is_running)

    def _run(self) -> None:
        while self._begins():
            try:
                self._work()
            except Exception:
                log.exception("replica.turn_bug work=%s", self._work)

    def _begins(self) -> bool:
        with self._lock:
            self._is_running = self._is_asked and not self._has_ended
            self._is_asked = False
            if not self._is_running:
                self._tell()
            return self._is_running

    def _tell(self) -> None:
        if self._not_running is not None:
            self._not_running.notify_all()
