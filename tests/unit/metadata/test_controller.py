"""The controller, tick by tick: what it submits, what it waits for, and what it leaves alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from broker.metadata.catalog import Catalog
from broker.metadata.cluster import FEATURE_LEVEL, FEATURE_LEVEL_FIRST
from broker.metadata.controller import (
    BALANCE_MS,
    BALANCE_PARTITIONS,
    CALM_MS,
    FIRST_ELECTION_MS,
    RETRY_MS,
    Controller,
    HeartbeatArrived,
    Renewed,
    Submit,
    SubmitAnswered,
    TimePassed,
)
from broker.metadata.leader_reports import REPORT_WINDOW_MS, REPORTS_MAX, ReportArrived
from broker.metadata.session import HEARTBEAT_MS, SESSION_MS, lapse_ms
from tests.support.effort import first_short

LAPSE_MS = lapse_ms(SESSION_MS)
TICK_MS = 100


class Bench:
    """A catalog, a controller, and brokers that are opened, in sync, and heard unless they are `silent`."""

    def __init__(self, *brokers: str, calm_ms: int = CALM_MS) -> None:
        self.catalog = Catalog()
        self.now_ms = 10_000
        self.controller = Controller(self.now_ms, calm_ms)
        self.silent: set[str] = set()
        self.numbers: dict[str, int] = {}
        for broker in brokers:
            self.register(broker)

    def apply(self, kind: str, **named: Any) -> dict[str, Any]:
        return self.catalog.apply({"v": 1, "kind": kind, **named})

    def register(self, broker: str, **more: Any) -> None:
        own: dict[str, list[int]] = {}
        for (stream, number), state in sorted(self.catalog.cluster.partitions.items()):
            if broker in state.replicas:
                own.setdefault(stream, []).append(number)
        named = {"incarnation": "p", "http": "h", "grpc": "g", "sound": own, **more}
        assert "ok" in self.apply("register_broker", broker_id=broker, **named)

    def create(self, partitions: int, factor: int, *, name: str = "s", **named: Any) -> None:
        settings = {
            "settings": {"partitions": partitions, "subject": None},
            "created_us": 1,
            "replication_factor": factor,
        }
        assert "ok" in self.apply("create_stream", name=name, incarnation=f"i-{name}", **settings, **named)

    def open(self, *brokers: str) -> None:
        for broker in brokers:
            states = self.catalog.cluster.partitions.items()
            own = [[*at, s.step_outs_of(broker)] for at, s in sorted(states) if broker in s.replicas]
            number = self.catalog.brokers[broker].registration
            self.apply("report_opened", broker_id=broker, registration=number, replicas=own)

    def catch_up(self) -> None:
        """Leaders let everybody into the ISR that lives and has a replica."""
        for at in sorted(self.catalog.cluster.partitions):
            for broker in self.catalog.cluster.partitions[at].replicas:
                state, info = self.catalog.cluster.partitions[at], self.catalog.brokers[broker]
                if state.leader is not None and broker not in state.isr and info.is_live:
                    epochs = {"leader_epoch": state.leader_epoch, "partition_epoch": state.partition_epoch}
                    added = [broker, info.registration, state.step_outs_of(broker)]
                    where = {"stream": at[0], "partition": at[1], "broker_id": state.leader}
                    assert "ok" in self.apply("alter_isr", **where, **epochs, add=added)

    def hear(self) -> None:
        for broker, info in self.catalog.brokers.items():
            if broker not in self.silent:
                self.numbers[broker] = self.numbers.get(broker, 0) + 1
                beat = HeartbeatArrived(broker=broker, registration=info.registration, number=self.numbers[broker])
                self.controller.step(beat, self.catalog, self.now_ms)

    def tick(self, ms: int = TICK_MS) -> list[Any]:
        """Time passes; heartbeats come at each tick."""
        self.now_ms += ms
        self.hear()
        return self.controller.step(TimePassed(), self.catalog, self.now_ms)

    def report(self, reporter: str, *, wall_ms: int = 5) -> Submit:
        """A report of this follower arrives, and is submitted."""
        info, state = self.catalog.brokers[reporter], self.catalog.cluster.partitions["i-s", 0]
        at, epoch = ("i-s", 0), state.leader_epoch
        report = ReportArrived(
            broker=reporter, registration=info.registration, at=at, leader_epoch=epoch, wall_ms=wall_ms
        )
        [submitted] = self.controller.step(report, self.catalog, self.now_ms)
        assert isinstance(submitted, Submit)
        assert self.controller.step(report, self.catalog, self.now_ms) == [], "one is out"
        return submitted

    def arrive(self, reporter: str, led: list[tuple[Any, int]]) -> list[Any]:
        """Reports of a follower for these partitions, by their leader epochs."""
        number = self.catalog.brokers[reporter].registration
        said: list[Any] = []
        for at, epoch in led:
            report = ReportArrived(broker=reporter, registration=number, at=at, leader_epoch=epoch, wall_ms=5)
            said += self.controller.step(report, self.catalog, self.now_ms)
        return said

    def answer(self, submitted: Submit) -> list[Any]:
        result = self.catalog.apply(submitted.command)
        return self.controller.step(SubmitAnswered(number=submitted.number, result=result), self.catalog, self.now_ms)

    def lose(self, submitted: Submit) -> None:
        self.controller.step(SubmitAnswered(number=submitted.number, result=None), self.catalog, self.now_ms)

    def run(self, ms: int, *, tick_ms: int = TICK_MS) -> list[tuple[int, dict[str, Any]]]:
        """Time passes and everything is answered at once. Returns what was submitted but renewals, with when."""
        commands = []
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            for effect in self.tick(tick_ms):
                assert isinstance(effect, Submit)
                self.answer(effect)
                if effect.command["kind"] != "renew_sessions":
                    commands.append((self.now_ms, effect.command))
        return commands

    def leaders(self) -> list[str | None]:
        return [state.leader for _, state in sorted(self.catalog.cluster.partitions.items())]


def kinds(commands: list[tuple[int, dict[str, Any]]]) -> list[str]:
    return [command["kind"] for _, command in commands]


def test_heartbeats_are_one_renewal_and_are_answered_when_it_is_committed() -> None:
    """H2, H3: those that come meanwhile are in the next one; a lost answer loses no heartbeat."""
    bench = Bench("a", "b")
    [renewal] = bench.tick()
    assert renewal.command["renewals"] == {"a": 1, "b": 2}
    assert [bench.tick() for _ in range(5)] == [[]] * 5, "one is out"
    assert bench.answer(renewal) == [
        Renewed(broker=b, registration=n, number=1, renewal=1) for b, n in (("a", 1), ("b", 2))
    ]
    assert bench.tick() == [], "an fsync each"
    [renewal] = bench.tick()
    bench.silent = {"b"}
    bench.tick()
    bench.lose(renewal)
    bench.silent = {"a", "b"}
    bench.tick()
    [again] = bench.tick()
    assert again.command["renewals"] == {"a": 1, "b": 2}
    assert [effect.number for effect in bench.answer(again)] == [9, 8], "the newest of each"


def test_a_renewal_of_a_former_registration_is_answered_by_nobody() -> None:
    bench = Bench("a")
    [renewal] = bench.tick()
    bench.register("a")
    assert bench.answer(renewal) == []
    assert bench.catalog.brokers["a"].renewal == 0


def test_heartbeats_of_a_former_process_keep_nobody_alive() -> None:
    bench = Bench("a")
    bench.register("a")
    bench.silent = {"a"}
    for number in range(LAPSE_MS // TICK_MS + 2):
        beat = HeartbeatArrived(broker="a", registration=1, number=number)
        assert bench.controller.step(beat, bench.catalog, bench.now_ms) == []
        bench.run(TICK_MS)
    assert not bench.catalog.brokers["a"].is_live


def test_silence_for_a_whole_session_is_one_command_until_it_is_answered() -> None:
    """H1, H3."""
    bench = Bench("a", "b")
    bench.run(500)
    bench.silent = {"b"}
    began_ms = bench.now_ms
    found: list[Submit] = []
    while not found:
        for effect in bench.tick():
            if effect.command["kind"] == "fail_broker":
                found.append(effect)
            else:
                bench.answer(effect)
    assert bench.now_ms - began_ms == LAPSE_MS + TICK_MS
    assert found[0].command["broker_id"] == "b"
    assert "fail_broker" not in kinds(bench.run(10_000)), "one is out"
    bench.lose(found[0])
    lost_ms = bench.now_ms
    [(again_ms, again)] = bench.run(5_000)
    assert (again_ms - lost_ms, again) == (RETRY_MS, found[0].command)
    assert not bench.catalog.brokers["b"].is_live
    bench.silent = set()
    bench.run(500)
    assert bench.catalog.brokers["b"].is_live, "it is heard again"


@pytest.mark.parametrize("is_failed", [False, True])
def test_a_renewal_that_was_lost_for_long_keeps_no_dead_broker_alive_and_brings_none_back(is_failed: bool) -> None:
    """H5. Once seed 25 of the simulator's `a_stream_is_damaged_where_it_is_alone`: dead, and live for six seconds."""
    bench = Bench("a", "b")
    [renewal] = bench.tick()
    assert renewal.command["renewals"].keys() == {"a", "b"}
    bench.silent.add("b")
    lapses = [effect for _ in range(LAPSE_MS // TICK_MS + 1) for effect in bench.tick()]
    if is_failed:
        [lapse] = lapses
        bench.answer(lapse)
        bench.tick()
    bench.lose(renewal)
    submitted = [*lapses, *bench.tick(RETRY_MS)]
    [again] = [each for each in submitted if each.command["kind"] == "renew_sessions"]
    assert again.command["renewals"].keys() == {"a"}
    bench.answer(again)
    [lapse] = [each for each in submitted if each.command["kind"] == "fail_broker"]
    bench.answer(lapse)
    assert not bench.catalog.brokers["b"].is_live


def test_a_new_controller_gives_everybody_a_whole_session() -> None:
    """H1: it does not know what the former one has heard, and answered."""
    bench = Bench("a", "b")
    bench.silent = {"b"}
    bench.run(LAPSE_MS - 200)
    bench.controller = Controller(bench.now_ms)
    assert bench.run(LAPSE_MS) == []
    assert kinds(bench.run(200)) == ["fail_broker"]


def test_a_lapse_that_was_judged_before_a_renewal_is_refused_after_it() -> None:
    """H4: a deposed controller's command, committed late."""
    bench = Bench("a")
    bench.silent = {"a"}
    late = next(e for _ in range(50) for e in bench.tick() if e.command["kind"] == "fail_broker")
    bench.apply("renew_sessions", renewals={"a": 1})
    assert "has renewed" in bench.catalog.apply(late.command)["error"]["detail"]
    assert bench.catalog.brokers["a"].is_live


def test_a_heartbeat_from_before_a_stop_does_not_bring_a_broker_back() -> None:
    """It waits for its turn to be renewed, and the broker says meanwhile that it is gone."""
    bench = Bench("a", "b")
    bench.run(500)
    bench.hear()
    bench.silent = {"b"}
    bench.apply("fail_broker", broker_id="b", registration=bench.catalog.brokers["b"].registration)
    bench.run(1_000)
    assert not bench.catalog.brokers["b"].is_live
    bench.silent = set()
    bench.run(1_000)
    assert not bench.catalog.brokers["b"].is_live, "what comes late is of before the stop"


def test_a_controller_that_hung_fails_nobody_for_what_it_did_not_hear() -> None:
    """H1: but one that is always slow still finds out."""
    bench = Bench("a", "b")
    bench.run(500)
    bench.silent = {"a", "b"}
    assert bench.run(30_000, tick_ms=30_000) == []
    bench.silent = {"b"}
    assert [c["broker_id"] for _, c in bench.run(8_000, tick_ms=2 * HEARTBEAT_MS)] == ["b"]


def test_the_first_election_waits_for_its_deadline_and_for_enough() -> None:
    bench = Bench("a", "b", "c")
    bench.create(2, 3)
    bench.open("a")
    assert bench.run(2 * FIRST_ELECTION_MS) == [], "one of them may not lead"
    bench.open("b")
    began_ms = bench.now_ms
    [(at_ms, command)] = bench.run(1_000)
    assert command["partitions"] == {"i-s": [0, 1]}
    assert at_ms - began_ms <= 600, "the deadline was over"
    assert None not in bench.leaders()
    bench.create(1, 3, name="t")
    bench.open("a", "b")
    [(at_ms, command)] = bench.run(FIRST_ELECTION_MS + 1_000)
    assert (command["partitions"], at_ms - bench.now_ms) == ({"i-t": [0]}, 0) or at_ms > began_ms + FIRST_ELECTION_MS


@pytest.mark.parametrize("calm_ms", (CALM_MS, 3_000))
def test_leaderships_go_back_once_their_broker_is_calm(calm_ms: int) -> None:
    bench = Bench("a", "b", "c", calm_ms=calm_ms)
    bench.create(60, 3)
    bench.open("a", "b", "c")
    bench.run(4 * calm_ms + 1_000)
    mine = bench.leaders().count("a")
    assert mine == 20
    bench.silent = {"a"}
    bench.run(LAPSE_MS + 1_000)
    assert "a" not in bench.leaders()
    bench.silent = set()
    bench.run(500)
    bench.catch_up()
    back_ms = bench.now_ms
    moved = bench.run(calm_ms + 5_000)
    assert kinds(moved) == ["elect_preferred"]
    assert moved[0][0] - back_ms >= calm_ms - 1_000
    assert bench.leaders().count("a") == mine


def test_leaderships_go_back_a_few_at_a_time() -> None:
    bench = Bench("a", "b")
    bench.create(100, 2)
    bench.open("a", "b")
    bench.apply("stop_broker", broker_id="a", registration=1)
    bench.register("a")
    bench.catch_up()
    moves = bench.run(CALM_MS + 10 * BALANCE_MS)
    assert [len(command["partitions"]["i-s"]) for _, command in moves] == [BALANCE_PARTITIONS] * 2 + [10]
    assert all(later - sooner >= BALANCE_MS for (sooner, _), (later, _) in pairwise(moves))


def test_a_broker_that_flaps_gets_nothing_back_for_longer_and_longer() -> None:
    """It lives and is in sync, but followers cannot reach it: it is reported away as soon as it leads again."""
    bench = Bench("a", "b", "c")
    bench.create(1, 3)
    bench.open("a", "b", "c")
    bench.run(1_000)
    waits = []
    for _ in range(5):
        for reporter in ("b", "c"):
            bench.answer(bench.report(reporter))
        assert bench.leaders() == ["b"]
        bench.catch_up()
        lost_ms = bench.now_ms
        while bench.leaders() == ["b"]:
            bench.run(500)
        waits.append((bench.now_ms - lost_ms) // CALM_MS)
    assert waits[1:] == [2, 4, 8, 16]


def test_reports_count_together_within_their_window_only() -> None:
    """And over a change of the controller: what the former one submitted is in the catalog."""
    bench = Bench("a", "b", "c")
    bench.create(1, 3)
    bench.open("a", "b", "c")
    for wall_ms, reporter in ((0, "b"), (REPORT_WINDOW_MS + 1, "c"), (REPORT_WINDOW_MS + 2, "b")):
        assert bench.leaders() == ["a"]
        bench.controller = Controller(bench.now_ms)
        bench.answer(bench.report(reporter, wall_ms=wall_ms))
    assert bench.leaders() == ["b"]


@pytest.mark.parametrize("streams", first_short([2, 10]))
def test_a_dead_leader_of_thousands_of_partitions_costs_few_commands(streams: int) -> None:
    """Each survivor reports each partition, in another order. Two reports of one are enough; the rest would be refused,
    and held up heartbeats before that."""
    bench = Bench("a", "b", "c")
    for number in range(streams):
        bench.create(1_000, 3, name=f"s{number}")
    bench.open("a", "b", "c")
    bench.run(FIRST_ELECTION_MS)
    led = [(at, s.leader_epoch) for at, s in bench.catalog.cluster.partitions.items() if s.leader == "a"]
    assert len(led) > 300 * streams
    out = bench.arrive("b", led)
    assert len(out) == REPORTS_MAX
    out += bench.arrive("c", led[::-1])
    assert len(out) == 2 * REPORTS_MAX + REPORTS_MAX, "those of c that b has reported go beside"
    sent = 0
    while out:
        sent += 1
        out += bench.answer(out.pop(0))
    assert "a" not in bench.leaders()
    assert sent == 3 * REPORTS_MAX + REPORTS_MAX, "those of b that have waited"
    out = bench.arrive("b", led)
    assert len(out) == REPORTS_MAX, "of an epoch that is over"
    assert [bench.answer(each) for each in out] == [[]] * REPORTS_MAX, "and none waits"


def test_reports_that_wait_go_in_order_unless_they_are_old() -> None:
    """Nobody else reports: each goes once, a few at a time. What has waited for too long comes again."""
    bench = Bench("a", "b", "c")
    bench.create(300, 3)
    bench.open("a", "b", "c")
    bench.run(FIRST_ELECTION_MS)
    led = [(at, s.leader_epoch) for at, s in bench.catalog.cluster.partitions.items() if s.leader == "a"]
    out, sent = bench.arrive("b", led), []
    while out:
        assert len(out) <= REPORTS_MAX
        sent.append((out[0].command["stream"], out[0].command["partition"]))
        out += bench.answer(out.pop(0))
    assert sent == [at for at, _ in led]
    out = bench.arrive("b", led)
    bench.now_ms += REPORT_WINDOW_MS + 1
    assert [bench.answer(each) for each in out] == [[]] * REPORTS_MAX
    assert len(bench.arrive("b", led)) == REPORTS_MAX


def test_internal_streams_get_replicas_as_brokers_join() -> None:
    """Up to three; a stream of users is left as it is; the old minimum holds until all have joined."""
    bench = Bench("a")
    bench.create(1, 1, name="__offsets", internal=True)
    bench.create(1, 1)
    bench.open("a")
    state = bench.catalog.cluster.partitions
    assert bench.run(2 * CALM_MS) == []
    for broker, factor in (("b", 2), ("c", 3)):
        bench.register(broker)
        assert bench.run(CALM_MS - 1_000) == [], "it may be gone again soon"
        [(_, command)] = bench.run(3_000)
        assert (command["name"], command["replication_factor"]) == ("__offsets", factor)
        assert state["i-__offsets", 0].min_insync_replicas == 1
    bench.catch_up()
    assert state["i-__offsets", 0].isr == ("a", "b", "c")
    assert state["i-__offsets", 0].min_insync_replicas == 2
    bench.register("d")
    assert bench.run(2 * CALM_MS) == []
    assert state["i-s", 0].replicas == ("a",)


def test_the_level_rises_when_all_brokers_know_it_and_are_calm() -> None:
    """Not before: one may be put back to an earlier release. A broker that is away, or does not know it, is waited for
    until it is removed."""
    bench = Bench()
    for broker in "abc":
        bench.register(broker, feature_level_max=FEATURE_LEVEL if broker != "b" else FEATURE_LEVEL_FIRST)
    assert bench.run(3 * CALM_MS) == [], "b is of the earlier release"
    bench.silent.add("b")
    assert kinds(bench.run(2 * CALM_MS)) == ["fail_broker"]
    bench.silent.clear()
    bench.register("b", feature_level_max=FEATURE_LEVEL)
    assert bench.run(CALM_MS - 1_000) == [], "it has just come back"
    [(_, command)] = bench.run(2 * CALM_MS)
    assert (command["kind"], command["level"]) == ("set_feature_level", FEATURE_LEVEL)
    assert bench.catalog.cluster.feature_level == FEATURE_LEVEL
    assert bench.run(2 * CALM_MS) == []


def test_the_level_waits_for_a_broker_that_is_away_and_for_the_end_of_a_rescue() -> None:
    bench = Bench()
    for broker in "ab":
        bench.register(broker, feature_level_max=FEATURE_LEVEL)
    bench.silent.add("b")
    assert kinds(bench.run(3 * CALM_MS)) == ["fail_broker"]
    assert "ok" in bench.apply("remove_broker", broker_id="b")
    bench.apply("form_cluster", cluster_id="x")
    begun = bench.apply("begin_rescue", cluster_id="x", epoch_last=bench.catalog.epoch_last)["ok"]
    assert bench.run(3 * CALM_MS) == []
    for broker in bench.catalog.brokers:
        bench.apply("excuse_replicas", broker_id=broker, rescue=begun["rescue"])
    assert "ok" in bench.apply("end_rescue", rescue=begun["rescue"], brokers=["a"])
    assert kinds(bench.run(3 * CALM_MS)) == ["set_feature_level"]


def test_a_broker_that_is_removed_is_forgotten() -> None:
    bench = Bench("a", "b")
    bench.silent = {"b"}
    bench.run(2 * LAPSE_MS)
    assert "ok" in bench.apply("remove_broker", broker_id="b")
    assert bench.run(LAPSE_MS) == []
    bench.silent = set()
    bench.register("b")
    bench.silent = {"b"}
    assert bench.run(LAPSE_MS - 200) == []


@pytest.mark.parametrize("kind", ["elect_first", "elect_preferred", "raise_replication", "set_feature_level"])
def test_what_a_deposed_controller_submitted_changes_nothing_that_is_newer(kind: str) -> None:
    """H4: applied once more after everything has moved on, it does nothing."""
    bench = Bench("a", "b", "c")
    bench.create(1, 3)
    bench.open("a", "b", "c")
    named: dict[str, dict[str, Any]] = {
        "elect_first": {"partitions": {"i-s": [0]}},
        "elect_preferred": {"partitions": {"i-s": [0]}},
        "raise_replication": {"name": "s", "replication_factor": 2},
        "set_feature_level": {"level": 1},
    }
    before = bench.catalog.snapshot()
    assert "ok" in bench.apply(kind, **named[kind])
    assert bench.catalog.snapshot() == before


def test_no_more_replicas_are_asked_for_in_a_rescue() -> None:
    """It would be refused each time, and be asked for again at once."""
    bench = Bench("a", "b", "c")
    bench.create(1, 1, name="__offsets", internal=True)
    bench.open("a", "b", "c")
    bench.apply("form_cluster", cluster_id="x")
    begun = bench.apply("begin_rescue", cluster_id="x", epoch_last=bench.catalog.epoch_last)["ok"]
    assert bench.run(2 * CALM_MS) == []
    for broker in "abc":
        bench.apply("excuse_replicas", broker_id=broker, rescue=begun["rescue"])
    assert "ok" in bench.apply("end_rescue", rescue=begun["rescue"], brokers=["a"])
    assert "raise_replication" in {command["kind"] for _, command in bench.run(CALM_MS)}
