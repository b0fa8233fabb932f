"""The threads of a pool: what is submitted is carried out, also where the system allows no more threads.

`ThreadPoolExecutor` queues a call, starts a thread for it, and raises if there is none to be had: whoever submitted the
call heard an error, and another thread carried it out later. Its count of idle threads is too high from then on, so
that it starts none for a later call, which may wait for as long as a connection lives.

Q1  The first thread is there with the pool, or there is no pool.
Q2  A call for which no thread can be started waits for one that becomes free, as in a pool that is full.
Q3  With each call a thread is started if there are fewer than calls under way, and more are allowed.
Q4  Where nobody asks what became of a call (`CallThreads`), one that waits is a place in a queue: no `Future`, with its
    lock and its condition, is made for it. A start with ten thousand partitions has as many calls.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from broker.api.errors import Overloaded

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Threads(ThreadPoolExecutor):
    """See the module.

    Args:
        count: How many at most; None: as `ThreadPoolExecutor` takes.
        name: What the names of its threads begin with.

    Raises:
        Overloaded: the system allows no more threads.
    """

    def __init__(self, count: int | None, *, name: str) -> None:
        super().__init__(count, thread_name_prefix=name)
        self._under_way = 0
        self._count_lock = threading.Lock()
        self.submit(_nothing)
        if not self._threads:
            self.shutdown(wait=False)
            raise Overloaded(f"the system allows no more threads, and {name!r} has none: raise the limit of processes")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `Executor.submit`. Raises RuntimeError after a shutdown alone."""
        self._count(1)
        try:
            future = super().submit(fn, *args, **kwargs)
        except BaseException:
            self._count(-1)
            raise
        future.add_done_callback(self._is_over)
        return future

    def _adjust_thread_count(self) -> None:
        if self._under_way <= len(self._threads):
            return
        while self._idle_semaphore.acquire(blocking=False):
            pass  # so many calls were waiting when a thread became free
        with contextlib.suppress(RuntimeError):  # Q2: it is queued already
            super()._adjust_thread_count()

    def _is_over(self, _: Future[Any]) -> None:
        self._count(-1)

    def _count(self, more: int) -> None:
        with self._count_lock:
            self._under_way += more


class CallThreads:
    """See Q4. Thread-safe.

    Args:
        count, name: As `Threads` takes them.

    Raises:
        Overloaded: the system allows no more threads.
    """

    def __init__(self, count: int, *, name: str) -> None:
        self._pool = Threads(count, name=name)
        self._count = count
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._at_work = 0

    def submit(self, call: Callable[[], None], /) -> None:
        """Have it called soon, in turn. Raises RuntimeError after a shutdown: it is never called."""
        with self._lock:
            self._waiting.append(call)
            if self._at_work == self._count:
                return
            try:
                self._pool.submit(self._work)
            except RuntimeError:
                self._waiting.pop()
                raise
            self._at_work += 1

    def shutdown(self) -> None:
        """Take no more calls; return when all that were taken are done."""
        self._pool.shutdown()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:
                log.exception("threads.call_bug call=%s", call)

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._at_work -= 1
            return None


def _nothing() -> None:
    """Has a thread started."""
