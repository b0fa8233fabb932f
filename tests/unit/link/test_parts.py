"""The parts of the link that need no socket: who speaks next, how fast others are filled, who the brokers are."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import pytest

from broker.link.connection import CUT_S, SILENT_S, STILL_S, Connection, LeaderStream, host_and_port
from broker.link.directory import Directory, Entry
from broker.link.handshake import Peer
from broker.link.outbox import Outbox
from broker.link.pace import BURST_S, Pace
from broker.metadata.partition import PartitionState
from broker.replication.messages import Fetch
from tests.support.placed import Cluster


def test_who_has_something_to_say_speaks_once_and_in_turn() -> None:
    outbox: Outbox[str] = Outbox(time.monotonic)
    for name in ("a", "b", "a", "c", "b"):
        outbox.ready(name)
    assert [outbox.next(), outbox.next()] == ["a", "b"]
    outbox.ready("a")
    assert [outbox.next(), outbox.next()] == ["c", "a"]


def test_a_later_time_replaces_an_earlier_one_and_to_be_ready_replaces_both() -> None:
    clock_s = [100.0]
    outbox, now_s = Outbox[str](lambda: clock_s[0]), clock_s[0]
    outbox.later("a", now_s - 5)
    outbox.later("a", now_s + 60)
    outbox.later("b", now_s - 1)
    assert outbox.next() == "b"
    outbox.later("c", now_s + 60)
    outbox.ready("c")
    assert outbox.next() == "c"
    outbox.later("d", now_s - 2)
    outbox.later("e", now_s - 3)
    assert [outbox.next(), outbox.next()] == ["e", "d"]
    assert outbox.next(0) is None
    clock_s[0] = now_s + 60
    assert outbox.next(0) == "a", "by the clock that it was handed"
    assert outbox._due == {}


def test_who_waits_is_woken_by_whoever_is_ready_by_time_and_by_the_end() -> None:
    outbox: Outbox[int] = Outbox(time.monotonic)
    seen: list[int | None] = []

    def listen() -> None:
        while (found := outbox.next()) is not None:
            seen.append(found)
        seen.append(None)

    thread = threading.Thread(target=listen)
    thread.start()
    outbox.later(1, time.monotonic() + 0.05)
    outbox.ready(2)
    outbox.later(3, time.monotonic() + 0.02)  # earlier than what it waits for
    while len(seen) < 3:
        time.sleep(0.01)
    outbox.close()
    thread.join(60)
    assert sorted(seen[:3]) == [1, 2, 3]  # type: ignore[type-var]
    assert seen[3:] == [None]


def test_an_outbox_does_not_grow_with_what_is_said() -> None:
    outbox, rng = Outbox[int](time.monotonic), random.Random(3)
    for step in range(20_000):
        source = rng.randrange(10)
        outbox.ready(source) if step % 3 else outbox.later(source, time.monotonic() - 1)
        if step % 4 == 0:
            outbox.next()
    assert len(outbox._ready) <= 10
    assert len(outbox._due) <= 10
    assert len(outbox._timers) < 200


def test_in_the_long_run_no_more_goes_than_may_go() -> None:
    clock = [0.0]
    pace, went, rng = Pace(1_000_000, lambda: clock[0]), 0, random.Random(2)
    for _ in range(5_000):
        if pace.wait_s() == 0:
            size = rng.randrange(200_000)
            pace.take(size)
            went += size
        clock[0] += rng.random() * 0.02
        assert went <= 1_000_000 * (clock[0] + BURST_S) + 200_000
    assert went > 0.9 * 1_000_000 * clock[0]


@pytest.mark.parametrize(
    "address,found", [("b:9292", ("b", 9292)), ("[::1]:1", ("::1", 1)), ("10.0.0.1:2", ("10.0.0.1", 2))]
)
def test_addresses(address: str, found: tuple[str, int]) -> None:
    assert host_and_port(address) == found


@pytest.mark.parametrize("address", ["", "b", "b:", "b:x"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        host_and_port(address)


LOOK_S = 0.103
"""Not quite `link.CHECK_S`: no sum of it is a limit."""


class Waiting:
    """A question waits for its answer, on a stream that says nothing. `coming`: bytes of a frame that is not whole."""

    def __init__(self, partitions: int = 1) -> None:
        cluster = Cluster()
        cluster.register("b")
        cluster.catalog.cluster.partitions = {
            ("s", number): PartitionState(replicas=("a",)) for number in range(partitions)
        }
        self.now_s, self.told, self.coming = 100.0, 0, 0
        directory = Directory(cluster, "b", "b0")
        made = Connection("a", directory, cluster_id="x", key=b"k", counts=Counter(), now_s=lambda: self.now_s)
        self.connection, at = made, ("s", 0)
        made.add(at, self)  # type: ignore[arg-type]
        who: dict[str, Any] = {"follower": "b", "incarnation": (1, 0), "epoch": 1}
        made.ask(at, Fetch(**who, offset=0, last_epoch=-1, durable_end=0, log_start=0))
        self.stream = made._stream = LeaderStream(
            Entry(1, "a:1"), Peer("b", 1), lambda: self.now_s, lambda: None, coming=lambda: self.coming
        )
        self.stream.welcomed_s = self.now_s

    def unreachable(self, leader: str) -> None:
        self.told += 1

    def after(self, seconds: float, *, coming: int = 0) -> tuple[int, bool]:
        """So long after the beginning: how often it was told, and whether the stream was cut.

        Args:
            coming: So many more bytes at each look.
        """
        while self.now_s < 100.0 + seconds:
            self.now_s = min(100.0 + seconds, self.now_s + LOOK_S)
            self.coming += coming
            self.connection.check(self.now_s)
        return self.told, self.stream.outbox.is_closed


def test_a_process_that_stood_still_reports_nobody() -> None:
    """N4: what was said to it meanwhile waits in its sockets."""
    waiting = Waiting()
    waiting.after(1.0)
    before_s = waiting.connection.heard_to(101.0)
    waiting.now_s += 12.0
    assert waiting.connection.heard_to(waiting.now_s) == pytest.approx(before_s + STILL_S), "also before anybody looks"
    waiting.connection.check(waiting.now_s)
    assert waiting.connection.heard_to(waiting.now_s) == pytest.approx(before_s + STILL_S)
    assert waiting.after(13.0 + SILENT_S - 1.0 - STILL_S - 0.1) == (0, False)
    assert waiting.after(13.0 + SILENT_S - 1.0 - STILL_S + 0.1) == (1, False), "from then on it counts"


def test_a_large_answer_on_a_slow_line_is_no_silence() -> None:
    """N4: as long as more of it comes."""
    waiting = Waiting()
    assert waiting.after(60.0, coming=2_000) == (0, False)
    assert waiting.after(60.0 + SILENT_S - 0.2) == (0, False)
    assert waiting.after(60.0 + SILENT_S + 0.2) == (1, False)
    assert waiting.after(60.0 + CUT_S + 0.3) == (2, True)


def test_a_large_answer_may_come_by_fits_and_starts() -> None:
    waiting, heard = Waiting(), list[float]()
    for second in range(1, 60):
        assert waiting.after(second - 0.2) == (0, False)
        waiting.after(float(second), coming=20_000)
        heard.append(waiting.connection.heard_to(waiting.now_s))
    assert max(heard) - min(heard) < 0.5


def test_heartbeats_in_the_place_of_an_answer_are_silence() -> None:
    """A length that was changed on its way: what comes next is taken for the answer."""
    waiting = Waiting()
    assert waiting.after(CUT_S + 0.3, coming=100) == (2, True)


@pytest.mark.parametrize(("partitions", "slower"), [(1, 1.0), (3_000, 2.0), (10_000, 5.0)])
def test_a_leader_may_be_silent_for_longer_with_many_partitions(partitions: int, slower: float) -> None:
    """N2, N8: to report it ends its leadership of each of them."""
    after = Waiting(partitions).after
    assert after(slower * SILENT_S - 0.1) == (0, False)
    assert after(slower * SILENT_S + 0.01) == (1, False)
    assert after(slower * CUT_S + 0.1) == (2, True)


def test_the_directory_tells_of_changes_alone() -> None:
    cluster = Cluster()
    directory = Directory(cluster, "b", "b0")
    news: list[int] = []
    directory.subscribe(lambda: news.append(1))
    assert (directory.own, directory.entry("b")) == (None, None)
    cluster.register("b")  # as process `b0`
    registration = cluster.catalog.brokers["b"].registration
    assert (directory.own, directory.entry("b")) == (Peer("b", registration), Entry(registration, "g"))
    assert len(news) == 1
    cluster.register("c")
    assert len(news) == 2
    cluster.register("d")
    cluster.create("s")
    assert len(news) == 3, "a stream is no news of brokers"
    assert Directory(cluster, "b", "another process").own is None
