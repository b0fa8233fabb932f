"""The fsync pool: group commit.

A partition that has appended asks once; by the time a thread gets to it, whatever was appended
meanwhile is synced by the same call. Nothing but syncing runs here, so a slow rewrite by the cleaner
never delays an ack.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Protocol

from broker.api.errors import LiftlogError

log = logging.getLogger(__name__)

Outcome = int | LiftlogError
"""The durable end, or why there is none."""


class Syncable(Protocol):
    """What the pool works on."""

    def run_sync(self) -> bool:
        """Sync, tell the waiters; return whether there is more to do already. Never raises."""
        ...


class SyncPool:
    """A few threads and a queue of dirty partitions, each in it at most once."""

    def __init__(self, threads: int) -> None:
        self._queue: queue.SimpleQueue[Syncable | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"fsync-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, partition: Syncable) -> None:
        """Sync this partition soon. The caller sees to it that it is not queued twice."""
        self._queue.put(partition)

    def _work(self) -> None:
        while (partition := self._queue.get()) is not None:
            try:
                if partition.run_sync():
                    self._queue.put(partition)
            except Exception:
                log.exception("fsync.bug partition=%s", partition)

    def close(self) -> None:
        """Finish what is queued and stop the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
