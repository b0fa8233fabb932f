"""A session by a fake clock: what is sent, what is counted, and what ends the process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.control.duties import Duties
from broker.control.heart import Heart
from broker.metadata.catalog import Catalog
from broker.metadata.session import SESSION_MS, lapse_ms


class Node:
    """A Raft node, as heart and duties call it: the catalog of a single voter, which commits when told to."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.notes: list[dict[str, Any]] = []
        self.log: list[tuple[Any, Any]] = []
        self.is_controller, self.has_begun, self.term, self.node_id = True, True, 1, "a.1@h:1"

    @property
    def controller(self) -> str | None:
        return self.node_id if self.is_controller else None

    def note(self, note: dict[str, Any]) -> bool:
        if self.is_controller:
            self.notes.append(note)
        return self.is_controller

    def end(self) -> None:
        """Nobody is the controller any more, and what it has asked for is never committed."""
        self.is_controller = self.has_begun = False
        self.log.clear()

    def elect(self) -> None:
        """One in the next term; it has not applied its first entry yet."""
        self.is_controller, self.term = True, self.term + 1

    def stamp(self) -> list[float]:
        return [self.term, 0.0]

    def voters(self) -> tuple[str, ...]:
        return (self.node_id,)

    def lead(self, command: Any, done: Any) -> None:
        self.log.append((command, done))

    def commit(self) -> list[str]:
        """Apply and answer what was asked for; returns the kinds."""
        log, self.log = self.log, []
        for command, done in log:
            done(self.catalog.apply(command))
        return [command["kind"] for command, _ in log]

    def register(self, name: str, process: str) -> int:
        command = {"v": 1, "kind": "register_broker", "broker_id": name, "incarnation": process, "http": f"{process}:1"}
        return int(self.catalog.apply({**command, "grpc": "g:1"})["ok"]["registration"])


class Both:
    """One broker's heart, and the duties of a controller that hears it, on one clock."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.node: Any = Node()
        self.said: list[bool] = []
        self.halted: list[str] = []
        self.controlled = 0
        self.heart = Heart(
            "b",
            "p1",
            halt=self.halted.append,
            changed=self.said.append,
            controlled=self._note_controller,
            now_ms=lambda: self.now_ms,
        )
        self.duties = Duties("a", "x", wake=lambda: None, now_ms=lambda: self.now_ms, now_wall_ms=lambda: self.now_ms)
        self.hears = True
        self.behind: Catalog | None = None
        self.kinds: list[str] = []

    def _note_controller(self) -> None:
        self.controlled += 1

    @property
    def applied(self) -> Catalog:
        """The catalog as the broker has applied it."""
        return self.behind or self.node.catalog

    def run(self, ms: int, *, commits: bool = True) -> None:
        for _ in range(ms // 50):
            self.now_ms += 50
            view: Any = SimpleNamespace(
                note=self.node.note, catalog=self.applied, controller=self.node.controller, term=self.node.term
            )
            self.heart.tick(view)
            notes, self.node.notes = self.node.notes, []
            for note in notes if self.hears else ():
                self.duties.beat(self.node, note, lambda answer: self.heart.renewed(answer, self.applied))
            self.duties.tick(self.node)
            if commits:
                self.kinds += self.node.commit()


def test_a_session_lasts_as_long_as_it_is_renewed_and_ends_before_the_controller_says_so() -> None:
    both = Both()
    assert not both.heart.has_session()
    both.heart.registered(both.node.register("b", "p1"), both.now_ms)
    both.run(10_000)
    assert both.heart.has_session()
    assert both.said == [True]
    assert "fail_broker" not in both.kinds
    both.hears = False
    while both.heart.has_session():
        both.run(50)
    assert both.said == [True, False]
    assert both.node.catalog.brokers["b"].is_live
    both.run(lapse_ms(SESSION_MS))
    assert not both.node.catalog.brokers["b"].is_live
    both.hears = True
    both.run(1_000)
    assert both.heart.has_session()
    assert both.node.catalog.brokers["b"].is_live


@pytest.mark.parametrize("phase_ms", range(0, 500, 50))
def test_a_session_outlasts_an_election(phase_ms: int) -> None:
    """B3, O5: at whatever moment the controller has died. The next heartbeat goes to its successor at once, also before
    that has applied the first entry of its term."""
    both = Both()
    both.heart.registered(both.node.register("b", "p1"), both.now_ms)
    both.run(3_000 + phase_ms)
    both.node.end()
    both.run(950)
    both.node.elect()
    both.run(100)
    both.node.has_begun = True
    both.run(500)
    assert both.said == [True]


def test_a_heartbeat_that_was_kept_for_a_controller_goes_with_it() -> None:
    """O5: who was elected and never began has no successor in this process to whom it was told."""
    both = Both()
    both.heart.registered(both.node.register("b", "p1"), both.now_ms)
    both.node.has_begun = False
    both.run(100)
    assert set(both.duties._early) == {"b"}
    both.node.end()
    both.run(50)
    assert not both.duties._early
    assert not both.kinds


def test_a_controller_goes_on_with_the_lives_of_members_that_this_broker_has_counted() -> None:
    """O6: also those that it was told of while nobody was the controller."""
    both = Both()
    both.run(500)
    before = both.duties._controller
    both.node.end()
    both.run(50)
    note = {"type": "members", "broker": "b", "members": [["g", "m", 7], ["malformed"], 3]}
    both.duties.members(both.node, note)
    both.duties.members(both.node, {"members": 3, "broker": []})
    both.node.elect()
    both.node.has_begun = True
    both.run(100)
    after = both.duties._controller
    assert before is not None
    assert after is not None
    assert (after is not before, after.lives is before.lives) == (True, True)


def test_a_renewal_counts_once_the_catalog_here_has_it() -> None:
    """S2: notes come, and the log does not."""
    both = Both()
    both.heart.registered(both.node.register("b", "p1"), both.now_ms)
    both.run(2_000)
    both.behind = Catalog.restore(both.node.catalog.snapshot())
    both.run(SESSION_MS + 500)
    assert both.node.catalog.brokers["b"].is_live
    assert not both.heart.has_session()
    both.behind = None
    both.run(50)
    assert both.heart.has_session()


def test_a_thread_that_hangs_loses_the_session_by_the_clock_alone() -> None:
    """B1: nobody ticks."""
    both = Both()
    both.heart.registered(both.node.register("b", "p1"), both.now_ms)
    both.run(2_000)
    both.now_ms += SESSION_MS
    assert not both.heart.has_session()


def test_a_controller_that_commits_nothing_keeps_no_session_alive() -> None:
    both = Both()
    both.heart.registered(both.node.register("b", "p1"), both.now_ms)
    both.run(1_000)
    both.run(SESSION_MS + 500, commits=False)
    assert not both.heart.has_session()


def test_what_an_earlier_term_has_asked_for_is_not_answered_to_the_next() -> None:
    """O1: the core is another one, and knows nothing of it."""
    both = Both()
    both.heart.registered(both.node.register("b", "p1"), both.now_ms)
    both.run(1_000, commits=False)
    late = both.node.log
    both.node.log, both.node.term = [], 2
    both.run(100, commits=False)
    first = both.duties._controller
    for command, done in late:
        done(both.node.catalog.apply(command))
    both.run(2_000)
    assert both.duties._controller is first
    assert both.heart.has_session()
    both.node.has_begun = False
    both.run(100)
    assert both.duties._controller is None


@pytest.mark.parametrize(
    "note", [{}, {"broker": 1}, {"broker": "b", "registration": "1", "number": 1}, {"broker": [], "registration": 1}]
)
def test_malformed_notes_are_dropped(note: dict[str, Any]) -> None:
    both = Both()
    both.duties.beat(both.node, note, lambda answer: None)
    both.duties.report(both.node, note)
    both.heart.registered(1, 0)
    both.heart.renewed(note, both.applied)


def test_a_report_becomes_a_command() -> None:
    both = Both()
    both.duties.tick(both.node)
    note = {"broker": "b", "registration": 3, "stream": "s", "partition": 0, "leader_epoch": 7}
    both.duties.report(both.node, note)
    [command] = [command for command, _ in both.node.log if command["kind"] == "report_leader"]
    assert {command[key] for key in ("stream", "partition", "leader_epoch")} == {"s", 0, 7}
    assert command["at_ms"] == both.now_ms


def test_a_report_that_comes_before_the_first_entry_of_a_term_is_kept_for_the_controller() -> None:
    """O5: a follower says it as soon as it hears who leads. It would say it again a second later."""
    both = Both()
    registration = both.node.register("b", "p1")
    both.node.catalog.cluster.add_stream("s", [("a", "b")], first=0, min_insync=1)
    both.node.has_begun = False
    both.duties.tick(both.node)
    note = {"broker": "b", "registration": registration, "stream": "s", "partition": 0, "leader_epoch": 7}
    for strange in ({"broker": "nobody"}, {"stream": "none"}):
        both.duties.report(both.node, {**note, **strange})
    both.duties.report(both.node, note)
    assert not both.node.log
    both.node.has_begun = True
    both.duties.tick(both.node)
    said = [command for command, _ in both.node.log if command["kind"] == "report_leader"]
    assert [(command["broker_id"], command["stream"]) for command in said] == [("b", "s")]


def test_a_report_that_was_kept_for_a_controller_goes_with_it() -> None:
    """O5: as with heartbeats."""
    both = Both()
    registration = both.node.register("b", "p1")
    both.node.catalog.cluster.add_stream("s", [("a", "b")], first=0, min_insync=1)
    both.node.has_begun = False
    note = {"broker": "b", "registration": registration, "stream": "s", "partition": 0, "leader_epoch": 7}
    both.duties.report(both.node, note)
    both.node.end()
    both.duties.tick(both.node)
    both.node.elect()
    both.node.has_begun = True
    both.duties.tick(both.node)
    assert not [command for command, _ in both.node.log if command["kind"] == "report_leader"]


def test_who_cannot_reach_a_leader_is_told_of_each_controller_and_of_none_that_is_gone() -> None:
    """B3."""
    both = Both()
    both.heart.registered(both.node.register("b", "p1"), both.now_ms)
    both.run(1_000)
    assert both.controlled == 1
    both.node.end()
    both.run(1_000)
    assert both.controlled == 1
    both.node.elect()
    both.run(1_000)
    assert both.controlled == 2


def test_another_process_under_our_name_ends_this_one_and_its_session_at_once() -> None:
    """B2. Our own registration, seen again or late, does not."""
    both = Both()
    both.heart.registered(both.node.register("b", "p1"), both.now_ms)
    both.run(1_000)
    both.heart.applied(both.node.catalog)
    assert not both.halted
    both.node.register("b", "p2")
    both.heart.applied(both.node.catalog)
    both.heart.applied(both.node.catalog)
    assert both.halted == ["another process has registered as broker b, at p2:1"]
    assert not both.heart.has_session()


def test_a_broker_that_was_removed_halts() -> None:
    """B2. A catalog that does not have it yet is no reason: it may be behind the one that has answered."""
    both = Both()
    both.heart.registered(both.node.register("b", "p1"), both.now_ms)
    both.heart.applied(Catalog())
    assert not both.halted
    both.heart.applied(both.node.catalog)
    both.heart.applied(Catalog())
    assert both.halted == ["broker b was removed from the cluster"]
