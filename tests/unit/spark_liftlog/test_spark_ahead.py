"""Goal: A1 to A3 of prefetch.py. Method: generators that say when they run, and wait where the test says so."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pyarrow as pa
import pytest

from broker.api.errors import BadBatch
from broker.client.http.interrupt import Interrupt
from spark_liftlog.reading.prefetch import AHEAD_MAX, read_ahead

DEADLINE_S = 60


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number]})


def numbers(batches: object) -> list[int]:
    return [each["n"][0].as_py() for each in batches]  # type: ignore[attr-defined]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "liftlog-read-ahead"]


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_batches_come_in_order_and_the_thread_has_ended_then(count: int) -> None:
    assert numbers(read_ahead((batch(n) for n in range(count)), Interrupt())) == list(range(count))
    assert threads() == []


def test_an_error_comes_behind_the_batches_before_it_as_it_was_raised() -> None:
    error = BadBatch("damaged")

    def made() -> Generator[pa.RecordBatch, None, None]:
        yield batch(1)
        raise error

    found = read_ahead(made(), Interrupt())
    assert next(found)["n"][0].as_py() == 1
    with pytest.raises(BadBatch) as caught:
        next(found)
    assert caught.value is error
    assert threads() == []


def test_no_more_than_the_bound_is_made_before_it_is_asked_for() -> None:
    made: list[int] = []
    full = threading.Event()

    def counting() -> Generator[pa.RecordBatch, None, None]:
        for number in range(100):
            made.append(number)
            if number == AHEAD_MAX + 1:  # one is taken, AHEAD_MAX wait, this one is in the making
                full.set()
            yield batch(number)

    found = read_ahead(counting(), Interrupt())
    next(found)
    assert full.wait(DEADLINE_S)
    assert len(made) <= AHEAD_MAX + 2
    found.close()  # type: ignore[attr-defined]
    assert len(made) <= AHEAD_MAX + 3
    assert threads() == []


def test_closing_early_ends_a_thread_that_waits_for_its_source_and_closes_the_source() -> None:
    interrupt, waiting, closed = Interrupt(), threading.Event(), threading.Event()

    def stuck() -> Generator[pa.RecordBatch, None, None]:
        try:
            yield batch(1)
            waiting.set()
            while not interrupt.is_set:
                interrupt.pause(DEADLINE_S)
        finally:
            closed.set()

    found = read_ahead(stuck(), interrupt)
    next(found)
    assert waiting.wait(DEADLINE_S)
    found.close()  # type: ignore[attr-defined]
    assert closed.is_set()
    assert threads() == []


def test_an_iteration_that_was_never_begun_starts_no_thread() -> None:
    found = read_ahead((batch(n) for n in range(3)), Interrupt())
    assert threads() == []
    found.close()  # type: ignore[attr-defined]
