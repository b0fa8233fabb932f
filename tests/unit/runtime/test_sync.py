"""The fsync pool: who comes back is served again, closing finishes what is queued, a bug ends no thread."""

from __future__ import annotations

import threading

import pytest

from broker.node.partitions.sync import SyncPool, SyncRow
from tests.support.processes import eventually

WAIT_S = 60


class One:
    """Is to be synced `times` times, each time when it is let go."""

    def __init__(self, times: int = 1) -> None:
        self.left = times
        self.runs = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def run_sync(self) -> bool:
        self.runs.release()
        assert self.go.acquire(timeout=WAIT_S)
        self.left -= 1
        return self.left > 0


class Broken:
    def run_sync(self) -> bool:
        raise ZeroDivisionError


def test_who_has_more_to_sync_comes_after_those_that_wait() -> None:
    pool = SyncPool(1)
    first, second = One(2), One()
    pool.submit(first)
    assert first.runs.acquire(timeout=WAIT_S)
    pool.submit(second)
    first.go.release(2)
    assert second.runs.acquire(timeout=WAIT_S)
    assert first.left == 1
    second.go.release()
    assert first.runs.acquire(timeout=WAIT_S)
    pool.close()
    assert (first.left, second.left) == (0, 0)


def test_closing_finishes_what_is_queued_and_every_thread() -> None:
    pool = SyncPool(2)
    ones = [One() for _ in range(6)]
    for one in ones:
        pool.submit(one)
    closer = threading.Thread(target=pool.close)
    closer.start()
    for one in ones:
        one.go.release()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    assert [one.left for one in ones] == [0] * 6


def test_closing_finishes_who_has_more_to_sync_meanwhile() -> None:
    """The thread that is at it puts it back behind the ends of the others."""
    pool = SyncPool(2)
    one = One(3)
    pool.submit(one)
    assert one.runs.acquire(timeout=WAIT_S)
    closer = threading.Thread(target=pool.close)
    closer.start()
    while all(thread.is_alive() for thread in pool._threads):  # the other finds its end
        pool._threads[0].join(0.01)
    one.go.release(3)
    closer.join(WAIT_S)
    assert (closer.is_alive(), one.left) == (False, 0)


def test_what_is_submitted_to_a_closed_pool_is_done() -> None:
    pool = SyncPool(1)
    pool.close()
    one = One(2)
    one.go.release(2)
    pool.submit(one)
    assert one.left == 0


def test_a_bug_is_logged_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    pool = SyncPool(1)
    one = One()
    one.go.release()
    pool.submit(Broken())
    pool.submit(one)
    pool.close()
    assert one.left == 0
    assert "fsync.bug" in caplog.text


def test_a_bug_of_one_in_a_row_keeps_no_other_from_being_synced() -> None:
    told: list[int] = []

    def fails(*_: int) -> int:
        raise RuntimeError("a fault of ours")

    pool = SyncPool(2)
    row = SyncRow(pool)
    for sync, tell in ((fails, told.append), (lambda: 1, fails), (lambda: 2, told.append)):
        row.add(sync, tell)
    row.submit()
    eventually(lambda: told == [2], what="the last one")
    row.add(lambda: 3, told.append)
    row.submit()
    eventually(lambda: told == [2, 3], what="one of a later row")
    pool.close()
