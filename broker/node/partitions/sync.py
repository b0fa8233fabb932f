"""The fsync pool: group commit.

A partition that has appended asks once; by the time a thread gets to it, whatever was appended
meanwhile is synced by the same call. Nothing but syncing runs here, so a slow rewrite by the cleaner
never delays an ack.

To wake a thread and be woken by it costs more than a quick fsync. So what nobody awaits is synced in a row by one
thread (`SyncRow`), a few logs at a time. Where the disk is slow the row grows, and further threads take from it; one
is left for what is awaited.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from broker.api.errors import LiftlogError

log = logging.getLogger(__name__)

T = TypeVar("T")
ROW_LOGS: Final = 32
"""So many logs of a row are synced before the thread looks who else waits. A row that is longer gets another thread."""
Outcome = int | LiftlogError
"""The durable end, or why there is none."""


class SyncTarget(Protocol):
    """One log for the pool to work on."""

    def run_sync(self) -> bool:
        """Sync, tell the waiters; return whether there is more to do already. Never raises."""
        ...


class SyncExecutor(Protocol):
    """Has logs synced, each by itself, on threads of its own: `SyncPool`, or what a simulator has in its place."""

    @property
    def thread_count(self) -> int:
        """So many are synced at the same time at most."""
        ...

    def submit(self, partition: SyncTarget) -> None:
        """Sync this partition soon. The caller sees to it that it is not queued twice."""
        ...


class SyncPool:
    """A few threads and a queue of dirty partitions, each in it at most once.

    After `close` whoever submits something does it himself: what is submitted is done, or its owner hears why not.
    """

    def __init__(self, threads: int) -> None:
        self.thread_count = threads
        self._queue: queue.SimpleQueue[SyncTarget | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # over `_is_closed` and what it says of the queue's end
        self._is_closed = False
        self._threads = [threading.Thread(target=self._work, name=f"fsync-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, partition: SyncTarget) -> None:
        """As `SyncExecutor.submit`."""
        if not self._put(partition):
            while _synced(partition):
                pass

    def _put(self, partition: SyncTarget) -> bool:
        with self._lock:
            if not self._is_closed:
                self._queue.put(partition)
            return not self._is_closed

    def _work(self) -> None:
        while (partition := self._queue.get()) is not None:
            while _synced(partition) and not self._put(partition):
                pass
            del partition  # else it stays until the next one comes

    def close(self) -> None:
        """Finish what is queued and stop the threads."""
        with self._lock:
            self._is_closed = True
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads:
            thread.join()


def _synced(partition: SyncTarget) -> bool:
    """Sync it once. Returns whether there is more to do."""
    try:
        return partition.run_sync()
    except Exception:
        log.exception("fsync.bug partition=%s", partition)
        return False


def _tried(act: Callable[[], T]) -> tuple[T] | None:
    """What it returns; None: it has failed, which is a fault of ours. The others of a row must hear."""
    try:
        return (act(),)
    except Exception:
        log.exception("fsync.bug act=%s", act)
        return None


class SyncRow:
    """Appends to several partitions that nobody awaits: synced one after the other, then told. Each fails by itself."""

    def __init__(self, pool: SyncExecutor) -> None:
        self._pool = pool
        self._turns_max = max(1, pool.thread_count - 1)
        self._lock = threading.Lock()
        self._members: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._turns = 0  # so many threads of the pool work on it, or will

    def add(self, sync: Callable[[], T], tell: Callable[[T], None]) -> None:
        """One log: how it is synced, which never raises, and who hears what came of it. `submit` has to follow."""
        with self._lock:
            self._members.append((sync, tell))

    def submit(self) -> None:
        """Have all that were added synced."""
        with self._lock:
            wanted = min(self._turns_max, -(-len(self._members) // ROW_LOGS))
            more = max(0, wanted - self._turns)
            self._turns += more
        for _ in range(more):
            self._pool.submit(self)

    def run_sync(self) -> bool:
        """For the pool: sync the next few; return whether there are more."""
        with self._lock:
            members = [self._members.popleft() for _ in range(min(ROW_LOGS, len(self._members)))]
        synced = [(tell, _tried(sync)) for sync, tell in members]
        for tell, outcome in synced:
            if outcome is not None:
                _tried(partial(tell, outcome[0]))
        with self._lock:
            is_more = bool(self._members)
            self._turns -= not is_more
            return is_more
