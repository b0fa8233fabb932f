"""Goal: a loop does one step at a time, one more for each time that it is woken, and none after `stop`."""

from __future__ import annotations

import threading

from broker.common.looping import ThreadLoop


def test_a_step_that_is_asked_for_comes_at_once() -> None:
    done = threading.Semaphore(0)

    def step() -> float:
        done.release()
        return 3_600.0

    loop = ThreadLoop(step, "loop")
    loop.start()
    for _ in range(3):
        assert done.acquire(timeout=60)
        loop.wake()
    loop.stop()


def test_no_step_begins_once_it_is_stopped_and_stop_waits_for_the_one_under_way() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def step() -> float:
        begun.set()
        may_end.wait(60)
        ended.append(True)
        return 0.0

    loop = ThreadLoop(step, "loop")
    loop.start()
    assert begun.wait(60)
    stopper = threading.Thread(target=loop.stop)
    stopper.start()
    assert not ended
    may_end.set()
    stopper.join()
    count = len(ended)
    loop.wake()
    assert len(ended) == count >= 1


def test_one_that_was_never_started_is_stopped() -> None:
    ThreadLoop(lambda: 0.0, "loop").stop()
