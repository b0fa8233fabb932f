"""Whoever becomes the controller knows how long members of groups have been silent, and ends nobody for less."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.metadata.catalog import Catalog
from broker.metadata.controller import Controller, Submit, TimePassed
from broker.metadata.member_watch import QUIET_MS, MemberWatch
from broker.metadata.session import SESSION_MS

TIMEOUT_MS = 30_000
STEP_MS = 500


class Bench:
    """Brokers a, b and c; a group `g` of members x and y. What a counts, who may become the controller."""

    def __init__(self, **register: Any) -> None:
        self.catalog, self.now_ms = Catalog(), 100_000
        for name in "abc":
            self.register(name, **register)
        join = self.catalog.groups.join
        self.sessions = {each: join("g", each, ("s",), timeout_ms=TIMEOUT_MS, counts={"s": 2}) for each in "xy"}
        self.watch = MemberWatch("a", self.now_ms)
        self.controller: Controller | None = None

    def register(self, name: str, **more: Any) -> None:
        """A broker comes, or comes back."""
        named = {"broker_id": name, "incarnation": f"p{name}", "http": f"{name}:1", "grpc": f"{name}:2"}
        assert "ok" in self.catalog.apply({"v": 1, "kind": "register_broker", **named, **more})

    def fail(self, name: str) -> None:
        """A broker is taken for dead."""
        info = self.catalog.brokers[name]
        named = {"broker_id": name, "registration": info.registration, "renewal": info.renewal}
        assert "ok" in self.catalog.apply({"v": 1, "kind": "fail_broker", **named})

    def run(self, ms: int, heard: str = "xy", *, by: str = "b", telling: str = "abc") -> None:
        """These members poll at `by` all the time; these brokers tell whom they have heard."""
        for _ in range(ms // STEP_MS):
            self.now_ms += STEP_MS
            for broker in telling:
                rows = [("g", each, self.sessions[each]) for each in heard if broker == by]
                self.watch.told(broker, rows, self.now_ms, leads=self.controller is not None)
            self.watch.look(self.catalog, self.now_ms, leads=self.controller is not None)

    def lead(self) -> None:
        self.controller = Controller(self.now_ms, lives=self.watch.lead(self.catalog, self.now_ms))

    def ended_after_ms(self, heard: str = "x", **how: Any) -> tuple[int, set[str]]:
        """How long it takes from now on until somebody is to end, and who."""
        began_ms = self.now_ms
        assert self.controller is not None
        while self.now_ms < began_ms + 10 * TIMEOUT_MS:
            self.run(STEP_MS, heard, **how)
            for each in self.controller.step(TimePassed(), self.catalog, self.now_ms):
                if isinstance(each, Submit) and each.command["kind"] == "end_members":
                    return self.now_ms - began_ms, set(each.command["members"])
        raise AssertionError("nobody ended")


def test_a_new_controller_goes_on_counting_where_the_one_before_was() -> None:
    """With one every few seconds a member that had fallen silent never ended, and its group never came to rest."""
    bench = Bench()
    bench.run(10_000)
    bench.run(20_000, "x")
    bench.lead()
    took_ms, who = bench.ended_after_ms()
    assert who == {"y"}
    assert 10_000 < took_ms <= 10_000 + SESSION_MS + 2 * STEP_MS, "L2"


def test_a_controller_that_follows_itself_goes_on_too() -> None:
    bench = Bench()
    bench.run(5_000)
    for _ in range(5):
        bench.run(4_000, "x")
        bench.lead()
        bench.controller = None
    bench.lead()
    took_ms, who = bench.ended_after_ms()
    assert (took_ms <= TIMEOUT_MS - 20_000 + 6 * SESSION_MS + 2 * STEP_MS, who) == (True, {"y"})


@pytest.mark.parametrize("quiet", ["b", "a", "abc"])
@pytest.mark.parametrize("tells_again", [False, True])
def test_time_in_which_a_broker_that_lives_told_nothing_counts_for_nobody(quiet: str, *, tells_again: bool) -> None:
    """L1. It was cut off from here and answered polls, or no broker had a session and none did."""
    bench = Bench()
    bench.run(10_000)
    bench.run(25_000, "xy", telling="".join({*"abc"} - {*quiet}))
    if tells_again:
        bench.run(STEP_MS, "")
    bench.lead()
    took_ms, _ = bench.ended_after_ms("")
    assert took_ms > TIMEOUT_MS - QUIET_MS


def test_a_broker_that_is_taken_for_dead_is_not_waited_for() -> None:
    bench = Bench()
    bench.run(10_000)
    bench.fail("c")
    bench.run(20_000, "x", telling="ab")
    bench.lead()
    assert bench.ended_after_ms(telling="ab") == (10_000 + SESSION_MS + STEP_MS, {"y"})


@pytest.mark.parametrize("led", [False, True])
def test_a_broker_that_comes_back_was_not_silent_while_it_was_taken_for_dead(*, led: bool) -> None:
    """A member that was silent meanwhile was counted anew, at each broker but the controller."""
    bench = Bench()
    bench.run(10_000)
    dead_ms = 2 * SESSION_MS
    bench.run(dead_ms, "x", telling="ab")
    bench.fail("c")
    if led:
        bench.lead()
    bench.run(15_000, "x", telling="ab")
    bench.controller = None
    bench.run(1_000, "x", telling="ab")
    bench.register("c")
    bench.run(1_000, "x")
    bench.lead()
    took_ms, who = bench.ended_after_ms()
    put_off_ms = dead_ms + (1 + led) * SESSION_MS + 2 * STEP_MS
    assert (took_ms <= TIMEOUT_MS - 17_000 - dead_ms + put_off_ms, who) == (True, {"y"})


def test_a_broker_that_is_new_was_not_silent_before() -> None:
    bench = Bench()
    bench.run(10_000)
    bench.run(20_000, "x")
    bench.register("d")
    bench.run(1_000, "x", telling="dabc")
    bench.lead()
    took_ms, who = bench.ended_after_ms(telling="dabc")
    assert (took_ms <= TIMEOUT_MS - 21_000 + SESSION_MS + 2 * STEP_MS, who) == (True, {"y"})


def test_time_that_several_brokers_left_untold_is_passed_over_once() -> None:
    """L4. None had a session while there was no controller: that took as long three times."""
    bench = Bench()
    bench.run(10_000)
    bench.run(12_000, "x")
    for _ in range(2):
        bench.run(3_000, "", telling="")
        bench.run(STEP_MS, "x", telling="c")
        bench.run(STEP_MS, "x")
    bench.lead()
    took_ms, who = bench.ended_after_ms()
    assert (took_ms <= TIMEOUT_MS - 12_000 + SESSION_MS + 2 * STEP_MS, who) == (True, {"y"})


@pytest.mark.parametrize("seed", range(20))
def test_what_counts_is_the_time_in_which_no_broker_was_silent_for_long(seed: int) -> None:
    """L4. Silences lie within each other, beside each other, and overlap."""
    rng, bench = random.Random(seed), Bench()
    bench.run(2_000)
    began_ms = bench.now_ms
    told_ms, passed = dict.fromkeys("abc", began_ms), set[int]()
    for _ in range(40):
        telling = "".join(each for each in "abc" if rng.random() < 0.3)
        bench.run(STEP_MS, "x", telling=telling)
        for each in telling:
            if bench.now_ms - told_ms[each] > QUIET_MS:
                passed |= {*range(told_ms[each], bench.now_ms, STEP_MS)}
            told_ms[each] = bench.now_ms
    bench.run(STEP_MS, "x", telling="abc")
    for each in told_ms.values():
        if bench.now_ms - each > QUIET_MS:
            passed |= {*range(each, bench.now_ms, STEP_MS)}
    counted_ms = bench.now_ms - began_ms - STEP_MS * len(passed)
    bench.lead()
    assert bench.ended_after_ms() == (TIMEOUT_MS - max(0, counted_ms - SESSION_MS) + STEP_MS, {"y"})


def test_a_broker_of_a_release_that_tells_the_controller_alone_makes_it_count_anew() -> None:
    bench = Bench()
    bench.run(30_000, "x", telling="ab")
    bench.lead()
    took_ms, who = bench.ended_after_ms()
    assert (took_ms > TIMEOUT_MS, who) == (True, {"y"})


def test_the_controller_ends_who_is_silent_though_another_broker_says_nothing() -> None:
    """L3. That one has no session for long, and its members go elsewhere."""
    bench = Bench()
    bench.run(1_000)
    bench.lead()
    took_ms, who = bench.ended_after_ms(telling="ab")
    assert (took_ms <= TIMEOUT_MS + SESSION_MS + 2 * STEP_MS, who) == (True, {"y"})


def test_nothing_is_kept_of_who_is_gone_where_another_broker_is_the_controller() -> None:
    bench = Bench()
    bench.run(1_000)
    bench.catalog.groups.end("g", dict(bench.sessions), {"s": 2})
    bench.run(1_000, "")
    assert bench.watch.lives._heard == {"g": {}}
