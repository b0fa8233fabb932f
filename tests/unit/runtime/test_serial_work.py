"""One at a time, nothing that was asked for is lost, errors end nothing, and after the end nothing begins."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from broker.common.waiting import ThreadWaits
from broker.node.serial_work import SerialWork
from tests.support.processes import eventually


class Counter:
    def __init__(self) -> None:
        self.wanted = self.seen = self.calls = 0
        self.at_work = threading.Lock()
        self.overlaps = 0
        self.fails = False

    def work(self) -> None:
        if not self.at_work.acquire(blocking=False):
            self.overlaps += 1
            return
        try:
            self.calls += 1
            self.seen = self.wanted
            if self.fails and self.calls % 2:
                raise ValueError("of a test")
        finally:
            self.at_work.release()


def test_what_was_asked_last_is_seen_and_two_never_work_at_once() -> None:
    counter = Counter()
    counter.fails = True
    with ThreadPoolExecutor(4) as pool:
        turns = SerialWork(pool, counter.work, ThreadWaits())

        def ask() -> None:
            for _ in range(2_000):
                counter.wanted += 1
                turns.ask()

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(lambda: counter.seen == counter.wanted, what="the last turn")
        turns.end()
        calls = counter.calls
        turns.ask()
    assert (counter.overlaps, counter.calls) == (0, calls)


def test_the_end_waits_for_the_turn_that_is_under_way() -> None:
    begun, go, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go.wait(60)
        done.set()

    with ThreadPoolExecutor(1) as pool:
        turns = SerialWork(pool, work, ThreadWaits())
        turns.ask()
        assert begun.wait(60)
        ends = threading.Thread(target=turns.end)
        ends.start()
        ends.join(0.05)
        assert ends.is_alive()
        go.set()
        ends.join(60)
        assert done.is_set()
        assert not ends.is_alive()


def test_a_pool_that_is_shut_down_is_no_reason_to_wait() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    turns = SerialWork(pool, lambda: None, ThreadWaits())
    turns.ask()
    turns.end()
