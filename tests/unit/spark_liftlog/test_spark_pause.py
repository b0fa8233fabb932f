"""Idle questions wait for news. Goal: S8 to S11 of pause.py: few questions, and nobody's records wait for long.

Method: Spark's loop is played, on a clock that stands still while nobody waits; then a driver over a real server, in
whose tests a wait is so long that only news can have ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_liftlog.options import source_options
from spark_liftlog.reading.offsets import decode
from spark_liftlog.reading.query import pause as module
from spark_liftlog.reading.query.driver import StreamDriver
from spark_liftlog.reading.query.heads import HeadWatch
from spark_liftlog.reading.query.pause import LONG_WAIT_S, QUIET_S, SOON_S, WAIT_S, WAIT_SHARE, IdlePause
from tests.support.processes import eventually
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Server, running

POLLING_DELAY_S = 0.01
"""Between two triggers without data (spark.sql.streaming.pollingDelay)."""
FOR_EVER_S = 150.0


class Loop:
    """Spark's loop over the sources of one query, none of which has anything new, unless a batch is played."""

    def __init__(self, *, sources: int = 1, interval_s: float = 0.0) -> None:
        self.sources = [IdlePause() for _ in range(sources)]
        self.interval_s = interval_s
        self.now_s = 1000.0
        self.questions = 0

    def trigger(self, *, batch_s: float = 0.0) -> list[float]:
        """How long each source has waited.

        Args:
            batch_s: So long a micro-batch takes that another source has records for.
        """
        began_s, waits = self.now_s, []
        for source in self.sources:
            wait_s = source.asked(self.now_s)
            self.questions += 1
            self.now_s += wait_s
            waits.append(wait_s)
            source.answered(self.now_s)
        if batch_s:
            for source in self.sources:
                source.stirred(self.now_s)
            self.now_s += batch_s
        else:
            self.now_s += POLLING_DELAY_S
        if self.interval_s:
            while self.now_s > began_s + self.interval_s:
                began_s += self.interval_s
            self.now_s = began_s + self.interval_s
        return waits

    def run(self, seconds: float, **options: float) -> list[list[float]]:
        """Triggers for that long."""
        until_s, found = self.now_s + seconds, []
        while self.now_s < until_s:
            found.append(self.trigger(**options))
        return found


def test_an_idle_query_is_asked_the_less_often_the_longer_it_is_idle() -> None:
    loop = Loop()
    counts = []
    for _ in range(6):
        before = loop.questions
        loop.run(10)
        counts.append(loop.questions - before)
    assert counts[0] <= QUIET_S / POLLING_DELAY_S + 9 / (WAIT_S + POLLING_DELAY_S) + 2
    assert max(counts[1:]) <= 10 / (LONG_WAIT_S + POLLING_DELAY_S) + 2, "1,000 without"


@pytest.mark.parametrize("sources", [2, 3, 7])
def test_of_several_sources_one_waits(sources: int) -> None:
    """S10. So each has its records within one wait, however many there are."""
    loop = Loop(sources=sources)
    waits = loop.run(60)
    assert max(sum(each) for each in waits) == LONG_WAIT_S
    assert all(sum(map(bool, each)) <= 1 for each in waits)
    assert loop.questions < 300 * sources


@pytest.mark.parametrize("silence_s", [1.5, 3.0, 9.0, 30.0])
def test_a_wait_is_a_small_part_of_the_silence_before_it(silence_s: float) -> None:
    """S11: whenever another source's record comes."""
    loop = Loop(sources=2)
    for _ in range(3):
        began_s = loop.now_s
        loop.trigger(batch_s=0.001)
        for waits in loop.run(silence_s):
            assert sum(waits) <= max(WAIT_S, (loop.now_s - began_s) * WAIT_SHARE)


@pytest.mark.parametrize("batch_s", [0.02, 0.1, 0.5, 0.9, 5.0])
@pytest.mark.parametrize("pause_s", [0.0, 0.05, 0.2])
def test_nobody_waits_while_batches_follow_each_other(batch_s: float, pause_s: float) -> None:
    """S9: batches of another source, with a pause after each of them, in which nothing is new."""
    loop = Loop(sources=2)
    for _ in range(40):
        assert loop.trigger(batch_s=batch_s) == [0.0, 0.0]
        assert not [each for each in loop.run(pause_s) if any(each)]
    assert any(sum(each) == WAIT_S for each in loop.run(2 * QUIET_S)), "once they are over"


def test_batches_that_are_rare_are_held_up_once_each() -> None:
    loop = Loop(sources=2)
    for _ in range(10):
        loop.run(3 * QUIET_S)
        assert sum(loop.trigger(batch_s=0.1)) <= max(WAIT_S, 4 * QUIET_S * WAIT_SHARE)
        assert not [each for each in loop.run(QUIET_S / 2) if any(each)]


@pytest.mark.parametrize("interval_s", [SOON_S + POLLING_DELAY_S, 0.1, 0.2, 1.0, 60.0])
def test_a_trigger_interval_is_kept(interval_s: float) -> None:
    """Spark warns of triggers that take longer than their interval, and leaves out the next one."""
    loop = Loop(interval_s=interval_s)
    assert not [each for each in loop.run(max(30.0, 5 * interval_s)) if any(each)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as made:
        made.api.create("read")
        yield made


Started = Callable[..., StreamDriver]


@pytest.fixture
def started(server: Server) -> Iterator[Started]:
    made: list[StreamDriver] = []

    def start(**options: str) -> StreamDriver:
        given = {"brokers": f"127.0.0.1:{server.port}", "startingOffsets": "earliest", "commitOffsets": "false"}
        made.append(StreamDriver(source_options({**given, **(options or {"stream": "read"})}, "stream")))
        return made[-1]

    yield start
    for driver in made:
        driver.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each idle question waits, for ever; how long each was to wait."""
    monkeypatch.setattr(module, "WAIT_S", FOR_EVER_S)
    monkeypatch.setattr(module, "SOON_S", FOR_EVER_S)
    monkeypatch.setattr(module, "BATCH_S", FOR_EVER_S)
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    found: list[float] = []
    original = HeadWatch.after

    def after(self: HeadWatch, heads: Any, wait_s: float) -> Any:
        found.append(wait_s)
        return original(self, heads, wait_s)

    monkeypatch.setattr(HeadWatch, "after", after)
    return found


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def offset(value: dict[str, Any]) -> int:
    found = decode(value)
    assert found is not None
    return found.positions["read", 0].offset


def stands(driver: StreamDriver, server: Server) -> dict[str, Any]:
    """A query that has read one record, and was asked once more: it knows of nothing new."""
    server.api.append("read", values(1))
    at = driver.latest({"v": 1, "start": "earliest"})
    assert offset(at) == 1
    assert driver.latest(at) is at
    return at


def waiting(pool: ThreadPoolExecutor, driver: StreamDriver, at: dict[str, Any], waits: list[float]) -> Future[Any]:
    question = pool.submit(driver.latest, at)
    eventually(lambda: waits or question.done(), what="a question that waits")
    assert waits == [FOR_EVER_S]
    return question


def test_news_end_a_wait(pool: ThreadPoolExecutor, server: Server, started: Started, waits: list[float]) -> None:
    driver = started()
    question = waiting(pool, driver, stands(driver, server), waits)
    server.api.append("read", values(2))
    assert offset(question.result(60)) == 3


def test_the_end_of_a_query_ends_a_wait(
    pool: ThreadPoolExecutor, server: Server, started: Started, waits: list[float]
) -> None:
    driver = started()
    at = stands(driver, server)
    question = waiting(pool, driver, at, waits)
    driver.close()
    assert question.result(60) is at


def test_a_pattern_that_nothing_matches_waits_for_a_stream(
    pool: ThreadPoolExecutor, server: Server, started: Started, waits: list[float]
) -> None:
    driver = started(streamPattern="new-.*")
    at = {"v": 1, "start": "earliest"}
    assert driver.latest(at) is at
    question = waiting(pool, driver, at, waits)
    server.api.create("new-one")
    server.api.append("new-one", values(4))
    found = decode(question.result(60))
    assert found is not None
    assert found.positions.keys() == {("new-one", 0)}


def test_a_micro_batch_of_another_source_has_nobody_wait(
    server: Server, started: Started, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = started()
    at = stands(driver, server)
    monkeypatch.setattr(module, "QUIET_S", FOR_EVER_S)
    driver._pause._stirred_s = float("-inf")
    driver.commit(at)
    assert driver.latest(at) is at
    assert waits == []


def test_a_query_that_reads_what_is_there_never_waits(server: Server, started: Started, waits: list[float]) -> None:
    driver = started()
    server.api.append("read", values(3))
    driver.freeze()
    at = driver.latest({"v": 1, "start": "earliest"})
    for _ in range(3):
        assert driver.latest(at) is at
    assert waits == []


def test_a_batch_that_was_put_off_is_not_put_off_longer(
    pool: ThreadPoolExecutor, server: Server, started: Started, waits: list[float]
) -> None:
    driver = started(stream="read", minOffsetsPerTrigger="1000", maxTriggerDelay="100s")
    at = driver.latest({"v": 1, "start": "earliest"})
    server.api.append("read", values(4))
    eventually(lambda: driver.latest(at) is at and driver._admission.is_waiting, what="a batch that is put off")
    waits.clear()
    question = pool.submit(driver.latest, at)
    eventually(lambda: waits or question.done(), what="a question that waits")
    assert len(waits) == 1
    assert waits[0] <= 100 < FOR_EVER_S
    server.api.append("read", values(1))
    assert question.result(60) is at
    driver._admission._last_batch_s -= 100
    assert offset(driver.latest(at)) == 5
