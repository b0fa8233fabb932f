"""What the tasks of a micro-batch agree on: B1 to B4 of pins.py, as tables; and by threads, over a store that compares.

Method: a log is one number, the end of its only partition.
"""

from __future__ import annotations

import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.api.answers import PIN_LENGTH_MAX
from broker.api.errors import InvalidRequest
from broker.client.http.calls import Calls
from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.reading.batch_reader import PINNED_PARTITIONS_MAX
from spark_liftlog.reading.pinning import agree
from spark_liftlog.reading.pins import BATCHES, LOADS_MAX, RUNS, Agreed, Batch, Pinned, agreed, decoded, encoded, pin
from spark_liftlog.reading.refresh import FramePlan
from spark_liftlog.reading.selection import Selection

KEY = ("s", 0)
Outcome = tuple[int, bool]
"""Where a task ends, and whether it is of a replay."""


def heads(end: int, incarnation: str = "i") -> Heads:
    return Heads(incarnations={"s": incarnation}, partitions={KEY: Head(0, end, 1)})


class Program:
    """The tasks of a query, one after the other, over a log that grows."""

    def __init__(self) -> None:
        self.end = 10
        self.pinned: list[Pinned] = []
        self.asked = 0

    def load(self, name: str) -> tuple[str, Heads]:
        return name, heads(self.end)

    def read(self, load: tuple[str, Heads], *, run: str = "a", number: int = 7) -> Outcome:
        batch, (name, plan) = Batch(query="q", number=number, run=run), load
        found = agreed(self.pinned, batch, name)
        if found is None:
            self.pinned, found = pin(self.pinned, batch, name, plan, self.now)
        assert decoded(encoded(self.pinned)) == self.pinned
        assert agreed(self.pinned, batch, name) == found
        return found.state.partitions[KEY].high_watermark, found.is_replay

    def now(self) -> Heads:
        self.asked += 1
        return heads(self.end)


def test_a_load_has_one_state_in_a_batch_and_another_one_in_the_next() -> None:
    it = Program()
    dims = it.load("dims")
    it.end = 11
    assert it.read(dims) == (11, False)
    it.end = 90
    assert [it.read(dims), it.read(dims)] == [(11, False)] * 2
    assert it.read(dims, number=8) == (90, False)
    assert it.asked == 2


def test_a_replay_has_the_state_of_the_run_before() -> None:
    it = Program()
    assert it.read(it.load("dims")) == (10, False)
    it.end = 90
    assert it.read(it.load("dims anew"), run="b") == (10, True)
    assert it.read(it.load("once more"), run="c") == (10, True)
    assert it.read(it.load("dims of the next"), run="b", number=8) == (90, False)


def test_a_program_that_lives_through_a_restart_of_its_query_uses_the_same_load() -> None:
    it = Program()
    dims, more = it.load("dims"), it.load("more")
    assert it.read(dims) == (10, False)
    it.end = 20
    assert it.read(it.load("second")) == (20, False)
    it.end = 90
    assert it.read(it.load("first, of foreachBatch"), run="b") == (10, True)
    assert it.read(dims, run="b") == (20, True), "its place is taken by a load that came first this time"
    assert it.read(more, run="b") == (10, False), "nobody has read a third one"


def test_a_second_load_sees_what_was_appended_before_it_and_so_does_its_replay() -> None:
    it = Program()
    first = it.load("first")
    assert it.read(first) == (10, False)
    same = it.load("nothing was appended")
    it.end = 13
    second = it.load("second")
    it.end = 14
    assert [it.read(same), it.read(second), it.read(first)] == [(10, False), (14, False), (10, False)]
    it.end = 90
    again = [it.load(name) for name in ("1", "2", "3", "4")]
    assert [it.read(load, run="b") for load in again] == [(10, True), (10, True), (14, True), (90, False)]
    assert [it.read(load, run="b") for load in again] == [(10, True), (10, True), (14, True), (90, False)]


def test_a_job_group_that_the_program_has_set_is_no_replay() -> None:
    it = Program()
    assert it.read(it.load("first")) == (10, False)
    it.end = 13
    assert it.read(it.load("second"), run="") == (13, False)
    it.end = 90
    assert it.read(it.load("first anew"), run="b") == (10, True)
    assert it.read(it.load("second anew"), run="") == (13, True)
    it = Program()
    assert it.read(it.load("first"), run="") == (10, False)
    it.end = 90
    assert it.read(it.load("first anew"), run="b") == (10, True)


def test_a_former_driver_takes_nothing_from_its_successor() -> None:
    it = Program()
    old, new = it.load("old"), it.load("new")
    assert it.read(old) == (10, False)
    for number in range(8, 12):
        it.end = 10 * number
        assert it.read(new, run="b", number=number) == (it.end, False)
        it.read(old)
        it.end = 1000
        assert it.read(new, run="b", number=number) == (10 * number, False)
        assert len(it.pinned) <= BATCHES


def test_what_is_kept_is_bounded() -> None:
    it = Program()
    for number in range(20):
        assert it.read(it.load(f"of run {number}"), run=f"{number}") == (10, number > 0)
    assert len(it.pinned[-1].runs) == RUNS
    assert next(iter(it.pinned[-1].runs)) == "0"
    it = Program()
    for number in range(LOADS_MAX):
        assert it.read(it.load(f"{number}")) == (10, False)
    before = encoded(it.pinned)
    batch = Batch(query="q", number=7, run="a")
    for plan, end in ((heads(10), 10), (heads(13), 90)):
        it.end = 90
        kept, found = pin(it.pinned, batch, "one more", plan, it.now)
        assert (encoded(kept), found.state.partitions[KEY].high_watermark) == (before, end)


@pytest.mark.parametrize(
    "text", ["", "{", "nonsense", '{"v":2,"batches":[]}', '{"v":1}', '{"v":1,"batches":[{"batch":1}]}']
)
def test_a_text_of_another_kind_says_nothing(text: str) -> None:
    assert decoded(text) == []


def test_a_text_is_small() -> None:
    """The most partitions that are pinned, and two batches of one state."""
    partitions = {("orders", n): Head(1000 * n, 123_456_789 + 7919 * n, 12) for n in range(PINNED_PARTITIONS_MAX)}
    state = Heads(incarnations={"orders": uuid.uuid4().hex}, partitions=partitions)
    runs = {str(uuid.uuid4()): {"0123456789ab": 0}}
    both = [Pinned(number=n, states=(state,), loads=(0,), runs=runs) for n in (7, 8)]
    text = encoded(both)
    assert len(text) <= PIN_LENGTH_MAX
    assert decoded(text) == both


class Store(Calls):
    """Keeps one text, as a broker does; an answer may be lost, and the request is sent again."""

    def __init__(self, seed: int) -> None:
        self.text, self.version, self.rng = "", 0, random.Random(seed)
        self.lock, self.placed = threading.Lock(), 0

    def json(self, method: str, target: str, body: Any = None, **_: Any) -> Any:
        with self.lock:
            if method == "GET":
                return {"text": self.text, "version": self.version, "placed": False}
            placed = body["version"] == self.version
            if placed:
                self.text, self.version = body["text"], self.version + 1
                self.placed += 1
            if self.rng.random() < 0.3:
                placed = False  # of the request that was sent again
            return {"text": self.text, "version": self.version, "placed": placed}


def frame(load: str, end: int) -> FramePlan:
    return FramePlan(name="f", load=load, selection=Selection(names=("s",)), plan=heads(end))


@pytest.mark.parametrize("seed", range(20))
def test_tasks_that_ask_at_once_agree(seed: int) -> None:
    """Three runs of a batch, each with three loads that many tasks read at once; the log grows all the while."""
    store, rng, end = Store(seed), random.Random(seed), [10]

    def now() -> Heads:
        end[0] += rng.randrange(3)
        return heads(end[0])

    seen: list[list[int]] = []
    with ThreadPoolExecutor(6) as pool:
        for run in (str(uuid.uuid4()) for _ in range(3)):
            batch = Batch(query="q", number=7, run=run)
            of_run: list[int] = []
            for number in range(3):
                end[0] += rng.randrange(3)
                load = frame(f"{run}/{number}", end[0])

                def task(load: FramePlan = load, batch: Batch = batch) -> Agreed | None:
                    return agree(store, load, batch, now)

                found = [one.result() for one in [pool.submit(task) for _ in range(12)]]
                ends = {one.state.partitions[KEY].high_watermark for one in found if one is not None}
                assert (len(found), len(ends)) == (12, 1)
                of_run += ends
            assert of_run == sorted(of_run)
            seen.append(of_run)
    assert seen[0] == seen[1] == seen[2]
    assert store.placed == 9, "one for each load and run"


def test_a_broker_that_knows_no_pins_and_a_frame_that_is_too_large_pin_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Old(Calls):
        def __init__(self) -> None:
            pass

        def json(self, method: str, target: str, body: Any = None, **_: Any) -> Any:
            raise InvalidRequest(f"there is nothing at {target}", path=target)

    batch = Batch(query="q", number=7, run=str(uuid.uuid4()))
    old = FramePlan(name="old", load="l", selection=Selection(names=("s",)), plan=heads(10))
    assert [agree(Old(), old, batch, lambda: heads(10)) for _ in range(3)] == [None] * 3
    rng = random.Random(1)
    partitions = {("s", n): Head(rng.randrange(1 << 60), rng.randrange(1 << 60), 12) for n in range(4000)}
    vast = Heads(incarnations={"s": "i"}, partitions=partitions)
    large = FramePlan(name="large", load="l", selection=Selection(names=("s",)), plan=vast)
    assert [agree(Store(0), large, batch, lambda: vast) for _ in range(3)] == [None] * 3
    assert [line.message.split(" reason=")[0] for line in caplog.records] == ["source.not_pinned streams='s'"] * 2


def test_a_load_beyond_those_that_are_kept_is_told_unless_its_state_is(caplog: pytest.LogCaptureFixture) -> None:
    """Tasks of such a load, and replays, may find another end each: nobody may take it for pinned."""
    store, batch, end = Store(0), Batch(query="q", number=7, run="a"), [10]
    store.rng.random = lambda: 1.0  # type: ignore[method-assign]  # no answer is lost

    def read(load: str, plan: int) -> int:
        one = FramePlan(name="of many loads", load=load, selection=Selection(names=("s",)), plan=heads(plan))
        found = agree(store, one, batch, lambda: heads(end[0]))
        assert found is not None
        return found.state.partitions[KEY].high_watermark

    for number in range(LOADS_MAX):
        assert read(f"{number}", 10) == 10
    placed = store.placed
    end[0] = 90
    assert [read("one more", 10), read("another", 7)] == [10, 10], "what is pinned reaches as far"
    assert "source.not_pinned" not in caplog.text
    assert read("with what was appended", 13) == 90
    assert f"more than {LOADS_MAX} loads" in caplog.text
    assert store.placed == placed, "there is nothing to keep"
