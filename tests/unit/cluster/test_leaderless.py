"""Changes of leaders, as the controller counts them (`leaderless.W1` to `W4`)."""

from __future__ import annotations

from broker.common.metrics import REGISTRY
from broker.control.leaderless import Leaderless
from tests.unit.metadata.scenario import Scenario


class Counted:
    """A catalog that grows by verbs, each at a time of its own, and what is told of it."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.counts = True
        self.scenario = Scenario()
        self.told: list[tuple[str, float]] = []
        self.begin()

    def begin(self) -> None:
        """Another process."""
        self.leaderless = Leaderless(now_ms=lambda: self.now_ms, tell=lambda *change: self.told.append(change))
        self.leaderless.applied(self.scenario.catalog, None, counts=self.counts)

    def run(self, verb: str, *words: str, ms: int, **values: str) -> list[tuple[str, float]]:
        """Apply a command at a time in ms; returns what is told of it."""
        self.now_ms, self.told = ms, []
        self.scenario.run(verb, list(words), values)
        self.leaderless.applied(self.scenario.catalog, self.scenario.commands[-1], counts=self.counts)
        return self.told

    def leader(self) -> str | None:
        return self.scenario.catalog.cluster.partitions["i1", 0].leader


def counted(replicas: str = "2") -> Counted:
    """Replicas at a and b, led by a, whose session was renewed at 1,000."""
    made = Counted()
    for broker in ("a", "b"):
        made.run("register", broker, ms=0)
    made.run("create", replicas, ms=0)
    for broker in ("a", "b"):
        assert made.run("opened", broker, ms=100) == [], "W4"
    assert made.leader() == "a"
    assert made.run("renew", "a", "b", ms=1_000) == []
    return made


def test_a_leader_whose_session_lapses_led_until_its_last_renewal() -> None:
    made = counted()
    made.run("renew", "b", ms=3_000)
    assert made.run("fail", "a", ms=3_200) == [("failed", 2.2)]
    assert made.leader() == "b"
    made.run("renew", "a", ms=4_000)
    assert made.run("fail", "a", ms=9_000) == [], "it leads nothing"


def test_a_leader_that_cannot_be_reached_led_until_its_last_renewal() -> None:
    made = counted()
    assert made.run("report", "b", ms=1_750, at="1") == [("unreachable", 0.75)]


def test_a_leader_that_is_started_anew_led_until_its_last_renewal() -> None:
    made = counted()
    assert made.run("register", "a", ms=1_400, sound="yes") == [("restarted", 0.4)]
    assert made.leader() == "a", "it is the preferred one, and in sync"


def test_who_hands_over_leads_until_the_next_one_is_named() -> None:
    made = counted()
    assert made.run("stop", "a", ms=5_000) == [("stopped", 0.0)]
    made.run("register", "a", ms=6_000, sound="yes")
    made.run("alter", "b", ms=6_100, add="a")
    assert made.run("preferred", ms=7_000) == [("preferred", 0.0)]
    assert made.run("step-out", "a", ms=8_000, why="damage") == [("other", 0.0)]


def test_nobody_leads_until_somebody_does() -> None:
    made = counted("1")
    assert made.run("fail", "a", ms=4_000) == []
    assert made.leader() is None
    assert made.run("register", "a", ms=61_000, sound="yes") == [("restarted", 60.0)], "since the last renewal"
    assert made.leader() == "a"
    made.run("renew", "a", ms=62_000)
    assert made.run("fail", "a", ms=70_000) == []
    assert made.run("renew", "a", ms=72_000) == [("returned", 10.0)]


def test_a_leader_that_goes_on_in_another_epoch_is_no_change() -> None:
    """W4."""
    made = counted()
    made.run("register", "c", ms=2_000)
    before = made.scenario.catalog.cluster.partitions["i1", 0].leader_epoch
    assert made.run("reassign", "a,c", ms=3_000) == []
    assert made.scenario.catalog.cluster.partitions["i1", 0].leader_epoch > before
    assert made.leader() == "a"


def test_who_is_not_the_controller_counts_nothing_and_knows_all() -> None:
    """W2."""
    made = counted("1")
    made.counts = False
    assert made.run("fail", "a", ms=4_000) == []
    made.counts = True
    assert made.run("register", "a", ms=11_000, sound="yes") == [("restarted", 10.0)]


def test_a_process_counts_from_its_own_start() -> None:
    """W3."""
    made = counted()
    made.now_ms = 50_000
    made.begin()
    assert made.run("fail", "a", ms=53_000) == [("failed", 0.0)], "no renewal was seen"
    made = counted("1")
    made.run("fail", "a", ms=4_000)
    made.now_ms = 50_000
    made.begin()
    assert made.run("register", "a", ms=53_000, sound="yes") == [("restarted", 3.0)]


def test_what_is_deleted_is_forgotten() -> None:
    made = counted()
    made.run("delete", ms=2_000)
    made.run("register", "c", ms=3_000)
    assert made.leaderless._led == {}


def test_the_metric_has_a_cause() -> None:
    name, labels = "liftlog_leaderless_seconds", {"cause": "failed"}
    before = [REGISTRY.get_sample_value(f"{name}_{what}", labels) or 0.0 for what in ("count", "sum")]
    made = counted()
    made.leaderless._tell = Leaderless()._tell
    made.run("fail", "a", ms=3_500)
    after = [REGISTRY.get_sample_value(f"{name}_{what}", labels) for what in ("count", "sum")]
    assert after == [before[0] + 1, before[1] + 2.5]
