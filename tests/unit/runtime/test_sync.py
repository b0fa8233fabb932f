"""The fsync pool: who is synced together with whom, and that everybody hears of it, whatever happens. Z1 to Z3.

Method: real logs on the fake disk; the sync of its file system waits until the test lets it go.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterator

import pytest

from broker.api.errors import StorageFailed
from broker.runtime import sync
from broker.runtime.sync import Driver, Outcome, SyncPool
from broker.storage.checkpoint import LogSettings
from broker.storage.log import PartitionLog
from tests.support.logs import create_log, row_batch
from tests.support.simdisk import SimDisk, SimFileSystem

WAIT_S = 60


class One(Driver[int]):
    """A log that is dirty, and what it was told."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.outcomes: list[Outcome] = []
        self.told = threading.Semaphore(0)
        self.again = 0

    def append(self) -> One:
        self.log.append([row_batch([b"x"])], leader_epoch=1, now_us=0)  # type: ignore[attr-defined]
        return self

    def sync_begins(self) -> int:
        return self.log.log_end_offset

    def sync_ends(self, waiting: int, outcome: Outcome) -> bool:
        assert not isinstance(outcome, int) or outcome >= waiting
        self.outcomes.append(outcome)
        self.told.release()
        self.again -= 1
        return self.again >= 0

    def wait(self) -> Outcome:
        assert self.told.acquire(timeout=WAIT_S)
        return self.outcomes[-1]


class Held(SimFileSystem):
    """Waits until it is let go."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk, "/data")
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.closed = False

    def sync(self) -> None:
        self.begun.release()
        assert self.go.acquire(timeout=WAIT_S)
        super().sync()

    def close(self) -> None:
        self.closed = True


class Blocker:
    """Keeps a thread of the pool busy until it is let go, so that others gather."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.runs = threading.Event()

    def run_sync(self) -> bool:
        self.runs.set()
        assert self.go.wait(WAIT_S)
        return False


class Asked:
    """A lock that says when it is asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked = threading.Semaphore(0)
        self.locked = self._lock.locked

    def __enter__(self) -> None:
        self.asked.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.makedirs("/data")
    return made


@pytest.fixture
def held(disk: SimDisk) -> Held:
    return Held(disk)


@pytest.fixture
def pool(held: Held) -> Iterator[SyncPool]:
    """With one thread and a threshold of three."""
    made = SyncPool(1, held, 3)
    yield made
    held.go.release(100)
    made.close()
    assert held.closed


def dirty(disk: SimDisk, count: int) -> list[One]:
    settings = LogSettings(segment_bytes=1 << 20)
    return [One(create_log(disk, settings=settings, folder=f"/data/p{n}")).append() for n in range(count)]


def submit_at_once(pool: SyncPool, ones: list[One]) -> None:
    blocker = Blocker()
    pool.submit(blocker)
    assert blocker.runs.wait(WAIT_S)
    for one in ones:
        pool.submit(one)
    blocker.go.set()


def test_a_crowd_is_served_by_one_sync_of_the_file_system(pool: SyncPool, disk: SimDisk, held: Held) -> None:
    ones = dirty(disk, 5)
    syncs = disk.calls.get("sync", 0)
    held.go.release()
    submit_at_once(pool, ones)
    assert [one.wait() for one in ones] == [1] * 5
    assert disk.calls["syncfs"] == 1
    assert disk.calls.get("sync", 0) == syncs
    assert pool.counts == {"syncfs": 1, "syncfs_partitions": 5}
    assert [(name, value) for name, _, _, _, value in pool.samples()] == [
        ("liftlog_syncfs_total", 1),
        ("liftlog_syncfs_partitions_total", 5),
        ("liftlog_syncfs_trusted", 1.0),
    ]


def test_a_few_are_synced_each_by_itself(pool: SyncPool, disk: SimDisk) -> None:
    ones = dirty(disk, 2)
    submit_at_once(pool, ones)
    assert [one.wait() for one in ones] == [1, 1]
    assert "syncfs" not in disk.calls


@pytest.mark.parametrize("threshold", [0, 3])
def test_without_a_file_system_or_a_threshold_each_is_synced_by_itself(disk: SimDisk, threshold: int) -> None:
    pool = SyncPool(1, None if threshold else disk.file_system("/data"), threshold)
    ones = dirty(disk, 5)
    submit_at_once(pool, ones)
    assert [one.wait() for one in ones] == [1] * 5
    assert "syncfs" not in disk.calls
    pool.close()


def test_what_was_appended_after_it_began_is_synced_once_more(pool: SyncPool, disk: SimDisk, held: Held) -> None:
    ones = dirty(disk, 3)
    ones[0].again = 1
    submit_at_once(pool, ones)
    assert held.begun.acquire(timeout=WAIT_S)
    ones[0].append()
    held.go.release()
    assert [one.wait() for one in ones[1:]] == [1, 1]
    ones[0].wait()
    ones[0].wait()
    assert ones[0].outcomes == [1, 2]


def begin_together(pool: SyncPool, held: Held, ones: list[One]) -> Blocker:
    """One of two threads syncs these together, and is held in it; the other is free once the blocker lets it go."""
    blockers = [Blocker(), Blocker()]
    for blocker in blockers:
        pool.submit(blocker)
        assert blocker.runs.wait(WAIT_S)
    for one in ones:
        pool.submit(one)
    blockers[0].go.set()
    assert held.begun.acquire(timeout=WAIT_S)
    return blockers[1]


def test_who_comes_while_it_is_under_way_is_served_by_the_next_one(disk: SimDisk, held: Held) -> None:
    """Z1: also a single one, which would only compete for the same journal."""
    pool = SyncPool(2, held, 3)
    pool._together_lock = lock = Asked()  # type: ignore[assignment]
    ones = dirty(disk, 4)
    other_thread = begin_together(pool, held, ones[:3])
    assert lock.asked.acquire(timeout=WAIT_S)
    pool.submit(ones[3])
    other_thread.go.set()
    assert lock.asked.acquire(timeout=WAIT_S)
    held.go.release(10)
    assert [one.wait() for one in ones] == [1] * 4
    pool.close()
    assert disk.calls["syncfs"] == 2
    assert pool.counts == {"syncfs": 2, "syncfs_partitions": 4}


def test_after_an_error_all_are_told_and_each_file_is_fsynced_from_then_on(
    pool: SyncPool, disk: SimDisk, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    """Z2."""
    ones = dirty(disk, 6)
    failing, others = ones[:3], ones[3:]
    disk.fail("syncfs", errno.EIO)
    held.go.release(2)
    submit_at_once(pool, failing)
    assert all(isinstance(one.wait(), StorageFailed) for one in failing)
    assert [one.log.durable_end for one in failing] == [0] * 3
    submit_at_once(pool, others)
    for one in others:  # which of them lost bytes is for each file to tell
        if isinstance(one.wait(), StorageFailed):
            one.log.recover(now_us=0)  # type: ignore[attr-defined]
            assert one.log.sync() == 1
    assert disk.calls["syncfs"] == 1
    assert [value for name, _, _, _, value in pool.samples() if name == "liftlog_syncfs_trusted"] == [0.0]
    assert "fsync.syncfs_failed partitions=3" in caplog.text


def test_who_comes_while_a_failing_sync_is_under_way_is_not_believed_to_be_written(disk: SimDisk, held: Held) -> None:
    """Z1, Z2: the second crowd waits for the first, and must not ask the file system after that."""
    pool = SyncPool(2, held, 3)
    pool._together_lock = lock = Asked()  # type: ignore[assignment]
    ones = dirty(disk, 6)
    disk.fail("syncfs", errno.EIO)
    other_thread = begin_together(pool, held, ones[:3])
    for one in ones[3:]:
        pool.submit(one)
    assert lock.asked.acquire(timeout=WAIT_S)
    other_thread.go.set()
    assert lock.asked.acquire(timeout=WAIT_S)
    held.go.release(10)
    outcomes = [one.wait() for one in ones]
    assert all(isinstance(outcome, StorageFailed) for outcome in outcomes[:3])
    assert disk.calls["syncfs"] == 1
    after = disk.after_crash("lost")
    for number, outcome in enumerate(outcomes):
        if outcome == 1:
            assert after.size(f"/data/p{number}/{0:020}.arrows") > 1_000
    pool.close()


def test_it_is_left_alone_for_a_while_when_it_did_not_pay(
    pool: SyncPool, disk: SimDisk, held: Held, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Z3."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sync, "SLOW_S", -1.0)
    monkeypatch.setattr(sync, "PAUSE", 1e9)
    pool._alone_s = -1.0
    ones = dirty(disk, 3)
    held.go.release(10)
    submit_at_once(pool, ones)
    assert [one.wait() for one in ones] == [1] * 3
    again = [one.append() for one in ones]
    submit_at_once(pool, again)
    assert [one.wait() for one in again] == [2] * 3
    assert disk.calls["syncfs"] == 1
    assert "fsync.syncfs_slow partitions=3" in caplog.text
    pool._paused_until_s = 0.0
    again = [one.append() for one in ones]
    submit_at_once(pool, again)
    assert [one.wait() for one in again] == [3] * 3
    assert disk.calls["syncfs"] == 2


def test_closing_finishes_the_crowd_and_every_thread(disk: SimDisk, held: Held) -> None:
    pool = SyncPool(4, held, 3)
    blockers = [Blocker() for _ in range(4)]
    for blocker in blockers:
        pool.submit(blocker)
        assert blocker.runs.wait(WAIT_S)
    ones = dirty(disk, 8)
    for one in ones:
        pool.submit(one)
    held.go.release(10)
    closer = threading.Thread(target=pool.close)
    closer.start()
    for blocker in blockers:
        blocker.go.set()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    assert [one.wait() for one in ones] == [1] * 8
    assert held.closed


def test_a_bug_in_the_middle_is_told_to_all(
    pool: SyncPool, disk: SimDisk, held: Held, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(held, "holds", broken)
    ones = dirty(disk, 3)
    submit_at_once(pool, ones)
    assert all(isinstance(one.wait(), StorageFailed) for one in ones)
    assert "fsync.bug" in caplog.text


def test_a_file_system_that_cannot_be_trusted_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert sync.file_system_of("/proc", 0) is None
    assert caplog.text == ""
    assert sync.file_system_of("/proc", 2) is None
    assert "fsync.syncfs_unavailable folder=/proc reason=" in caplog.text
