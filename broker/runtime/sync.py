"""The fsync pool: group commit.

A partition that has appended asks once; by the time a thread gets to it, whatever was appended
meanwhile is synced by the same call. Nothing but syncing runs here, so a slow rewrite by the cleaner
never delays an ack.

Where many partitions wait at once, one sync of the file system serves all of them (`broker.storage.syncfs` says when
that may be trusted; `durable` what it means for a log):

Z1  One thread at a time syncs the file system. Who comes meanwhile waits, and takes all that has gathered then: an
    fsync beside it would only compete for the same journal.
Z2  After an error the file system is not synced as a whole again until the broker is restarted: the next call could
    say that all is well where it is not. From then on each file is fsynced, and tells its own errors.
Z3  It pays only while nobody else has much to write there. When it takes long, and longer than fsyncs of each file
    would have, it is left alone for a while.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from broker.api.errors import LiftlogError, StorageFailed
from broker.runtime.metrics import FSYNC_SECONDS, Sample
from broker.storage.disk import FileSystem
from broker.storage.durable import SyncedLog, sync_together
from broker.storage.syncfs import OsFileSystem

log = logging.getLogger(__name__)

SLOW_S: Final = 0.1
PAUSE: Final = 20.0
"""A sync of the file system that takes longer than `SLOW_S`, and longer than fsyncs of each file would have, was not
worth it: for so many times as long it is left alone (Z3)."""
WEIGHT: Final = 0.1
"""Of the latest fsync in the average of all."""
Outcome = int | LiftlogError
"""The durable end, or why there is none."""
Waiting = TypeVar("Waiting")


class Syncable(Protocol):
    """What the pool works on."""

    def run_sync(self) -> bool:
        """Sync, tell the waiters; return whether there is more to do already. Never raises."""
        ...


class Driver(Generic[Waiting]):
    """A `Syncable` whose log may be synced together with others.

    Attributes:
        sync_took_s: How long its last fsync alone took.
    """

    log: SyncedLog
    sync_took_s = 0.0

    def run_sync(self) -> bool:
        """One group commit of this log alone."""
        waiting = self.sync_begins()
        begun = time.perf_counter()
        outcome: Outcome
        try:
            outcome = self.log.sync()
        except LiftlogError as error:
            outcome = error
        except Exception as error:  # who waits must hear whatever happens
            log.exception("partition.sync_bug partition=%s", self)
            outcome = StorageFailed(f"{self}: sync failed: {error!r}")
        self.sync_took_s = time.perf_counter() - begun
        is_more = self.sync_ends(waiting, outcome)
        FSYNC_SECONDS.observe(self.sync_took_s)
        return is_more

    def sync_begins(self) -> Waiting:
        """Who waits for what was appended before now. Called before the log is looked at."""
        raise NotImplementedError

    def sync_ends(self, waiting: Waiting, outcome: Outcome) -> bool:
        """Tell them; return whether there is more to do already. Never raises."""
        raise NotImplementedError


def file_system_of(folder: str, threshold: int) -> FileSystem | None:
    """The file system of a data folder to which nothing was written yet; None where each file is to be fsynced."""
    if threshold == 0:
        return None
    try:
        return OsFileSystem(folder)
    except OSError as error:
        log.info("fsync.syncfs_unavailable folder=%s reason=%s", folder, error.strerror or error)
        return None


class SyncPool:
    """A few threads and a queue of dirty partitions, each in it at most once.

    Args:
        file_system: Of the logs; opened before anything was written to them, closed by `close`. None: none to be synced
            as a whole.
        threshold: So many logs (n >= 2) that wait are synced at once; 0: never.

    Attributes:
        counts: Syncs of the file system (`syncfs`), and of partitions that they served (`syncfs_partitions`).
    """

    def __init__(self, threads: int, file_system: FileSystem | None = None, threshold: int = 0) -> None:
        self.counts = {"syncfs": 0, "syncfs_partitions": 0}
        self._file_system = file_system
        self._threshold = threshold
        self._together_lock = threading.Lock()
        self._is_trusted = file_system is not None and threshold > 0
        self._paused_until_s = 0.0
        self._alone_s = 0.0
        self._queue: queue.SimpleQueue[Syncable | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"fsync-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, partition: Syncable) -> None:
        """Sync this partition soon. The caller sees to it that it is not queued twice."""
        self._queue.put(partition)

    def samples(self) -> Iterator[Sample]:
        """For /metrics."""
        made, served = self.counts["syncfs"], self.counts["syncfs_partitions"]
        yield "liftlog_syncfs_total", "Syncs of the whole file system", (), (), made
        yield "liftlog_syncfs_partitions_total", "Group commits that those served", (), (), served
        yield "liftlog_syncfs_trusted", "1 while many partitions may be synced at once", (), (), float(self._is_trusted)

    def _work(self) -> None:
        while (partition := self._queue.get()) is not None:
            if self._is_crowd():
                self._together(partition)
            else:
                self._alone(partition)

    def _may_be_together(self) -> bool:
        return self._is_trusted and time.monotonic() >= self._paused_until_s

    def _is_crowd(self) -> bool:
        """Whether others wait with the one in hand, or are being synced together just now (Z1)."""
        if not self._is_trusted or (self._queue.qsize() + 1 < self._threshold and not self._together_lock.locked()):
            return False
        return self._may_be_together()

    def _alone(self, partition: Syncable) -> None:
        begun = time.perf_counter()
        try:
            if partition.run_sync():
                self._queue.put(partition)
        except Exception:
            log.exception("fsync.bug partition=%s", partition)
        if isinstance(partition, Driver):
            self._alone_s += WEIGHT * (time.perf_counter() - begun - self._alone_s)

    def _together(self, first: Syncable) -> None:
        """Sync all that wait, and the one in hand."""
        with self._together_lock:  # Z1
            crowd, others = self._take_all(first)
            if self._may_be_together():
                tell = self._sync(crowd)
            else:
                crowd, others, tell = [], [*crowd, *others], []
        for driver, waiting, outcome in tell:
            try:
                if driver.sync_ends(waiting, outcome):
                    self._queue.put(driver)
            except Exception:
                log.exception("fsync.bug partition=%s", driver)
        for partition in others:
            self._alone(partition)

    def _take_all(self, first: Syncable) -> tuple[list[Driver[object]], list[Syncable]]:
        """Those that can be synced together, and the others."""
        crowd: list[Driver[object]] = []
        others: list[Syncable] = []
        taken: Syncable | None = first
        while True:
            if isinstance(taken, Driver):
                crowd.append(taken)
            elif taken is not None:
                others.append(taken)
            try:
                taken = self._queue.get_nowait()
            except queue.Empty:
                return crowd, others
            if taken is None:
                self._queue.put(None)  # the pool is being closed: every thread needs its own
                return crowd, others

    def _sync(self, crowd: Sequence[Driver[object]]) -> list[tuple[Driver[object], object, Outcome]]:
        """Sync a crowd; returns who is to be told what."""
        assert self._file_system is not None
        waiting = [driver.sync_begins() for driver in crowd]
        begun = time.perf_counter()
        outcomes: Sequence[Outcome]
        failed: Exception | None
        try:
            outcomes, failed = sync_together([driver.log for driver in crowd], self._file_system)
        except Exception as error:  # who waits must hear whatever happens
            log.exception("fsync.bug partitions=%d", len(crowd))
            outcomes, failed = [StorageFailed(f"sync failed: {error!r}")] * len(crowd), error
        taken_s = time.perf_counter() - begun
        FSYNC_SECONDS.observe(taken_s)
        self.counts["syncfs"] += 1
        self.counts["syncfs_partitions"] += len(crowd)
        if failed is not None:  # Z2
            self._is_trusted = False
            log.error("fsync.syncfs_failed partitions=%d error=%s", len(crowd), failed)
        elif taken_s > max(SLOW_S, self._alone_s * len(crowd) / len(self._threads)):  # Z3
            self._paused_until_s = time.monotonic() + PAUSE * taken_s
            log.info("fsync.syncfs_slow partitions=%d taken_ms=%.1f", len(crowd), taken_s * 1e3)
        return list(zip(crowd, waiting, outcomes, strict=True))

    def close(self) -> None:
        """Finish what is queued and stop the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._file_system is not None:
            self._file_system.close()
