"""Open sinks say that their runs live: from one thread, as long as somebody needs it, whatever brokers answer."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import pytest

from broker.api.errors import LiftlogError, SinkFenced, Unauthenticated, Unauthorized, Unavailable
from broker.client.renewing import Renewing
from tests.support.processes import eventually


class FakeSink:
    """A sink of a run; counts its signs of life, and where they came from."""

    def __init__(self, owner: str = "run", answer: Callable[[], int] = lambda: 1) -> None:
        self.sink, self.owner, self.brokers = "s", owner, object()
        self.run = ("broker", "s", owner)
        self.count = 0
        self.threads: set[str] = set()
        self._answer = answer

    def renew(self) -> int:
        self.count += 1
        self.threads.add(threading.current_thread().name)
        return self._answer()


def more(sink: FakeSink, by: int = 2) -> None:
    goal = sink.count + by
    eventually(lambda: sink.count >= goal, timeout_s=30, what="further signs of life")


def added(renewing: Renewing, sink: FakeSink, every_s: float = 0.01) -> FakeSink:
    renewing.add(sink, every_s)  # type: ignore[arg-type]
    return sink


def test_each_run_is_renewed_again_and_again_by_one_thread() -> None:
    renewing = Renewing()
    one, two = added(renewing, FakeSink("one")), added(renewing, FakeSink("two"))
    more(one)
    more(two)
    assert one.threads == two.threads == {"liftlog-renew"}


def test_objects_of_one_run_renew_together_and_the_next_one_goes_on() -> None:
    renewing = Renewing()
    first = added(renewing, FakeSink(answer=lambda: 3_600_000))
    eventually(lambda: first.count == 1, timeout_s=30, what="the first sign")
    second = added(renewing, FakeSink())
    renewing.remove(first)  # type: ignore[arg-type]
    third = added(renewing, FakeSink())
    more(added(renewing, FakeSink("another")))
    assert (first.count, second.count, third.count) == (1, 0, 0), "its run was heard of just now"


def test_an_object_that_is_gone_is_not_kept() -> None:
    renewing = Renewing()
    other, sink = added(renewing, FakeSink("other")), added(renewing, FakeSink("gone"))
    more(sink)
    del sink

    def is_gone() -> bool:
        gc.collect()
        return list(renewing._runs) == [other.run]

    eventually(is_gone, timeout_s=30, what="the thread lets go of it")


def test_sinks_of_a_closed_client_are_renewed_no_more() -> None:
    renewing = Renewing()
    other, sink = added(renewing, FakeSink("other")), added(renewing, FakeSink("closed"))
    more(sink)
    renewing.end(sink.brokers)  # type: ignore[arg-type]
    before = sink.count
    more(other, 5)
    assert sink.count <= before + 1, "one may have been under way"


def test_a_failure_is_tried_again_and_a_refusal_ends_it() -> None:
    renewing = Renewing()

    def refused() -> int:
        raise SinkFenced("another run has committed")

    def away() -> int:
        raise Unavailable("nobody answers")

    fenced, waiting = added(renewing, FakeSink("fenced", refused)), added(renewing, FakeSink("waiting", away))
    more(waiting, 5)
    assert fenced.count == 1
    added(renewing, fenced)  # it was opened anew
    eventually(lambda: fenced.count == 2, timeout_s=30, what="it is tried once more")


@pytest.mark.parametrize("refusal", [Unauthenticated("unauthenticated"), Unauthorized("sink:write of 's' is needed")])
def test_a_right_that_is_away_for_a_moment_ends_nothing(refusal: LiftlogError) -> None:
    """A token that is renewed too late, a grant that is taken back by mistake: the run is there all the same."""
    renewing, refusals = Renewing(), [refusal, refusal]

    def answer() -> int:
        if refusals:
            raise refusals.pop()
        return 1

    more(added(renewing, FakeSink(answer=answer)), 4)


@pytest.mark.process
def test_a_forked_process_begins_anew() -> None:
    renewing = Renewing()
    sink = added(renewing, FakeSink())
    more(sink)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        mine = added(renewing, FakeSink("child"))
        more(mine)
        os.write(write, b"1" if list(renewing._runs) == [mine.run] else b"0")
        os._exit(0)
    os.close(write)
    try:
        assert os.read(read, 1) == b"1"
    finally:
        os.waitpid(child, 0)
        os.close(read)
    more(sink)
