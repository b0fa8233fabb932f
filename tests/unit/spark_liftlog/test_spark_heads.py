"""The watch of heads. Goal: V1 to V5 of heads.py: who asks sees what is there, and nobody pays for what nobody asks.

Method: a real server over real logs; the calls are counted on their way to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.client.http.interrupt import Interrupt
from broker.serving.contract.endpoint import WAIT_MS_MAX
from spark_liftlog.reading.advance import Heads
from spark_liftlog.reading.cluster import Cluster
from spark_liftlog.reading.query import heads as module
from spark_liftlog.reading.query.heads import HeadWatch
from spark_liftlog.reading.selection import Selection
from tests.support.processes import eventually
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Server, running

MANY = 60
READ = Selection(names=("read",))


class Counted(Cluster):
    """Counts calls: those that have begun, those that were answered, and of the latter the long polls.

    An answer to a long poll says that there is something else. (Its time is longer than any of these tests.)
    """

    begun = answered = polls_answered = 0

    def _watch(self, query: dict[str, Any], deadline_s: float, interrupt: Interrupt | None) -> tuple[int, Heads]:
        self.begun += 1
        try:
            told = super()._watch(query, deadline_s, interrupt)
            self.polls_answered += query.get("since") is not None
            return told
        finally:
            self.answered += 1

    @property
    def is_waiting(self) -> bool:
        """Whether a long poll is open, or about to be."""
        return self.begun > self.answered


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as made:
        for name in ("read", "busy"):
            made.api.create(name)
        yield made


Watched = Callable[[Selection], tuple[HeadWatch, Counted]]


@pytest.fixture
def watched(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(module, "MAX_WAIT_MS", WAIT_MS_MAX)
    made: list[tuple[HeadWatch, Counted]] = []

    def watch(selection: Selection) -> tuple[HeadWatch, Counted]:
        cluster = Counted(f"127.0.0.1:{server.port}")
        made.append((HeadWatch(cluster, selection), cluster))
        return made[-1]

    yield watch
    for watch_, cluster in made:
        watch_.close()
        cluster.close()


def end(heads: Heads) -> int:
    return heads.partitions["read", 0].high_watermark


def idle(watch: HeadWatch, cluster: Counted) -> Heads:
    """Ask, as an idle query does, until a long poll is open."""
    before = watch.current()
    eventually(lambda: watch.current() is before and cluster.is_waiting, what="a long poll")
    return before


def parked(server: Server, watch: HeadWatch) -> None:
    """Let the source read on while nobody asks, until nobody polls."""

    def moved() -> bool:
        server.api.append("read", values(1))
        return watch._is_parked

    eventually(moved, what="nobody polls")


def there(server: Server) -> int:
    return server.backend.partition("read", 0).log.state.high_watermark


@contextmanager
def busy(server: Server) -> Iterator[Callable[[], int]]:
    """A neighbour that takes one batch after the other; how many it has taken."""
    api, taken, is_over = server.api.another(), [0], threading.Event()

    def run() -> None:
        while not is_over.is_set():
            assert api.append("busy", values(1)).status == 200
            taken[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: taken[0]
    finally:
        is_over.set()
        thread.join(60)
        api.close()


@pytest.mark.slow
def test_a_busy_neighbour_costs_an_idle_query_nothing(server: Server, watched: Watched) -> None:
    """Seen before: once the query had got a record, an answer at once for each poll, and each of them another view."""
    watch, cluster = watched(READ)
    idle(watch, cluster)
    with busy(server) as taken:
        server.api.append("read", values(1))
        eventually(lambda: end(watch.current()) == 1, what="the record")
        before = idle(watch, cluster)
        answered, goal = cluster.polls_answered, taken() + MANY
        while taken() < goal:
            assert watch.current() is before, "V5"
        assert cluster.polls_answered == answered, "nothing has changed for it"


def test_a_busy_neighbour_that_the_broker_cannot_tell_apart_is_looked_at_slowly(
    server: Server, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pattern without a beginning has the broker tell of all streams."""
    monkeypatch.setattr(module, "QUICK_S", 3600.0)
    watch, cluster = watched(Selection(pattern="read|none"))
    before = idle(watch, cluster)
    answered = cluster.polls_answered
    for _ in range(MANY):
        server.api.append("busy", values(1))
        assert watch.current() is before
    assert cluster.polls_answered <= answered + 1, "then it pauses"


def test_nobody_asks_and_nobody_polls(server: Server, watched: Watched) -> None:
    """V4, while the stream itself moves. Seen before: a call for each of its changes, whatever the trigger interval."""
    watch, cluster = watched(READ)
    idle(watch, cluster)
    begun = cluster.begun
    for _ in range(MANY):
        server.api.append("read", values(1))
    parked(server, watch)
    assert cluster.begun <= begun + 2
    begun = cluster.begun
    for _ in range(MANY):
        server.api.append("read", values(1))
    assert (cluster.begun, cluster.is_waiting) == (begun, False)
    assert end(watch.current()) == there(server), "the next question sees all of it"
    assert end(watch.recent()) == there(server)
    assert cluster.begun == begun + 1, "and costs one call"


def test_each_question_sees_what_was_there_before_it(server: Server, watched: Watched) -> None:
    """As long as batches follow each other, with a call for each of them."""
    watch, cluster = watched(READ)
    idle(watch, cluster)
    parked(server, watch)
    begun = cluster.begun
    for _ in range(MANY):
        server.api.append("read", values(1))
        assert end(watch.current()) == there(server)
        eventually(lambda: watch._is_parked, what="nobody polls")
    assert cluster.begun == begun + MANY


def test_an_idle_query_sees_what_comes_without_a_call_of_its_own(server: Server, watched: Watched) -> None:
    """The answer of the long poll that was open."""
    watch, cluster = watched(READ)
    before = idle(watch, cluster)
    server.api.append("read", values(3))
    eventually(lambda: end(watch.current()) == 3, what="the records")
    assert before is not watch.current()


def test_while_no_broker_answers_the_last_view_counts(server: Server, watched: Watched) -> None:
    """V1, also at a watch that is parked: a query with a long trigger interval survives any pause of the brokers."""
    watch, cluster = watched(READ)
    idle(watch, cluster)
    parked(server, watch)
    last = watch._heads  # a question now would open a long poll if it heard nothing new
    server.shut_down()
    for _ in range(3):
        assert watch.current() is last
    assert cluster.begun < 50


def test_closing_ends_the_thread_wherever_it_is(server: Server, watched: Watched) -> None:
    for is_parked in (False, True):
        watch, cluster = watched(READ)
        idle(watch, cluster)
        thread = watch._thread
        assert thread is not None
        if is_parked:
            parked(server, watch)
        watch.close()
        thread.join(60)
        assert not thread.is_alive()
