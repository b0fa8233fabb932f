"""Goal: changes of in-sync replicas that are due together are one command, and each partition hears the answer to its
own question: the state that it was judged by, a refusal with its state, or nothing.

Method: the effects of the cores of many leaders over a real catalog, which answers when the test lets it. No broker
has a disk or a log here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from broker.api.errors import DeadlineExceeded, from_problem
from broker.metadata.catalog import Catalog
from broker.metadata.cluster import FEATURE_LEVEL
from broker.metadata.partition import PartitionState, Place
from broker.metadata.partition_commands import ISR_CHANGES_MAX
from broker.node.isr_changes import IsrChanges
from broker.node.leader_effects import LeaderEffects
from broker.node.partitions.partition import Partition
from broker.node.wiring import Followers, Host
from broker.replication.events import AskIsr
from tests.support.processes import eventually

STREAM = "i-s"
ALL = ("a", "b", "c")


class Service:
    """The catalog of brokers `a`, `b` and `c`, and what was sent to it. `a` leads all partitions, `b` is in sync.

    Attributes:
        goes: Cleared: the controller does not answer.
        in_doubt: So many commands are carried out, and their answers are lost.
    """

    touched = None

    def __init__(self, partitions: int, level: int) -> None:
        self.catalog = Catalog()
        self.sent: list[dict[str, Any]] = []
        self.goes = threading.Event()
        self.goes.set()
        self.in_doubt = 0
        self._lock = threading.Lock()
        for broker in "abc":
            named = {"incarnation": broker, "http": "h", "grpc": "g", "feature_level_max": level}
            self.apply("register_broker", broker_id=broker, **named)
        self.apply("set_feature_level", level=level)
        for first in range(0, partitions, 1_000):
            settings = {"partitions": min(1_000, partitions - first), "subject": None}
            named = {"name": f"s{first}", "incarnation": f"{STREAM}{first}", "created_us": 1, "settings": settings}
            self.apply("create_stream", replication_factor=3, min_insync_replicas=2, **named)
        self.places = sorted(self.catalog.cluster.partitions)
        states = self.catalog.cluster.partitions
        in_sync: dict[str, Any] = {"isr": ("a", "b"), "opened": ALL, "leader": "a", "leader_incarnation": (1, 0)}
        for at, state in states.items():
            states[at] = replace(state, replicas=ALL, **in_sync, leader_epoch=3, partition_epoch=3)
        self.catalog.take_touched()

    def by(self, broker: str) -> dict[str, Any]:
        return {"broker_id": broker, "registration": self.catalog.brokers[broker].registration}

    def apply(self, kind: str, **named: Any) -> Any:
        with self._lock:
            result = self.catalog.apply({"v": 1, "kind": kind, **named})
        if "error" in result:
            raise from_problem(result["error"])
        return result["ok"]

    def execute(self, command: Mapping[str, Any], **_: object) -> Any:
        self.sent.append(dict(command))
        assert self.goes.wait(60)
        if self.in_doubt:
            self.in_doubt -= 1
            self.catalog.apply(command)
            raise DeadlineExceeded("made to be lost", sent=True)
        return self.apply(**{key: value for key, value in command.items() if key != "v"})

    def subscribe(self, callback: Callable[[], None]) -> None:
        raise AssertionError("nobody here does")

    def rows(self) -> list[int]:
        """Of how many changes each command was."""
        return [len(each["add"]) + len(each["remove"]) if each["kind"] == "alter_isrs" else 1 for each in self.sent]


class Noting:
    """One that notes what its core would be told, and its effects."""

    def __init__(self, host: Host, changes: IsrChanges, at: Place) -> None:
        self.host, self.at = host, at
        self.told: list[tuple[tuple[str, ...], int | None]] = []
        self.requests = 0
        self.effects = LeaderEffects(host, at, changes, ask_turn=lambda: None, step_out=lambda why: None)
        self.effects.begin(cast(Partition, self), cast(Followers, self))

    def isr_answered(self, state: PartitionState, request: int | None = None) -> None:
        self.told.append((state.isr, request))

    def close(self) -> None:
        pass

    @property
    def state(self) -> PartitionState:
        return self.host.service.catalog.cluster.partitions[self.at]

    def ask(self, *, late: int = 0, again: bool = False, **change: Any) -> None:
        """Ask for `c` in, or for what is named, as of the present state or an earlier one."""
        self.requests += not again
        self.ask_as_of(self.state, late=late, **change)

    def ask_as_of(self, state: PartitionState, *, late: int = 0, **change: Any) -> None:
        if not change:
            change = {"add": "c", "incarnation": (self.host.service.catalog.brokers["c"].registration, 0)}
        epoch = state.partition_epoch - late
        self.effects.do(AskIsr(request=self.requests, epoch=state.leader_epoch, partition_epoch=epoch, **change))


Made = Callable[..., tuple[Service, list[Noting]]]


@pytest.fixture
def made() -> Iterator[Made]:
    services: list[Service] = []
    with ThreadPoolExecutor(4) as pool:

        def make(partitions: int, level: int = FEATURE_LEVEL) -> tuple[Service, list[Noting]]:
            service = Service(partitions, level)
            services.append(service)
            host = cast(Host, SimpleNamespace(me="a", service=service, commands=pool))
            changes = IsrChanges("a", service, pool)
            return service, [Noting(host, changes, at) for at in service.places]

        yield make
        for service in services:
            service.goes.set()


def answered(partitions: list[Noting], count: int = 1) -> None:
    eventually(lambda: all(len(each.told) >= count for each in partitions), what="all to be answered")


def nothing_under_way(partitions: list[Noting]) -> None:
    many = partitions[0].effects._changes._many
    eventually(lambda: not many._waiting and not many._under_way, what="the end of all tries")


def test_changes_that_are_due_together_are_one_command(made: Made) -> None:
    """One goes at once; those that come meanwhile are the next."""
    service, partitions = made(40)
    service.goes.clear()
    for each in partitions:
        each.ask()
        each.ask(again=True)  # at a tick
    service.goes.set()
    answered(partitions)
    assert [each.told for each in partitions] == [[(ALL, 1)]] * 40
    assert service.rows() == [1, 39]


def test_a_broker_that_rejoins_with_many_partitions_causes_few_commands(made: Made) -> None:
    service, partitions = made(2_000)
    service.goes.clear()
    for each in partitions:
        each.ask()
    service.goes.set()
    answered(partitions)
    assert all(state.isr == ALL for state in service.catalog.cluster.partitions.values())
    assert [each.told for each in partitions] == [[(ALL, 1)]] * 2_000
    assert service.rows() == [1, *[ISR_CHANGES_MAX] * 3, 2_000 - 1 - 3 * ISR_CHANGES_MAX]
    for each in partitions:  # and leaves again
        each.ask(remove="c")
    answered(partitions, 2)
    assert {each.told[-1] for each in partitions} == {(("a", "b"), 2)}


def test_each_is_answered_for_itself(made: Made) -> None:
    """A refusal brings the state, and holds up none of the others. What is not known yet is no answer."""
    service, partitions = made(5)
    first, stale, early, out, gone = partitions
    service.goes.clear()
    first.ask()
    stale.ask(late=1)
    early.ask(late=-7)
    out.ask(remove="b")
    gone.ask()
    eventually(lambda: service.sent, what="the first command")
    service.apply("reassign", stream=gone.at[0], partition=gone.at[1], replicas=["b", "a"])
    service.apply("elect_preferred", partitions={gone.at[0]: [gone.at[1]]})  # the leadership is lost meanwhile
    service.goes.set()
    answered([first, stale, out, gone])
    early.ask(again=True)
    answered([early])
    assert (first.told, stale.told, out.told) == ([(ALL, 1)], [(("a", "b"), 1)], [(("a",), 1)])
    assert gone.told == [(("a", "b"), None)], "news of another leadership, and no answer"
    assert early.told == [(ALL, 1)]
    assert service.rows() == [1, 4, 1]


def test_a_command_that_would_change_nothing_answers_each(made: Made) -> None:
    service, partitions = made(3)
    service.goes.clear()
    for each in partitions:
        each.ask(late=1)
    service.goes.set()
    answered(partitions)
    assert [each.told for each in partitions] == [[(("a", "b"), 1)]] * 3
    assert service.rows() == [1, 2]


def test_a_command_in_doubt_answers_nobody_and_is_asked_again(made: Made) -> None:
    """It was carried out, or not. The next try is refused because the first was accepted, and says so."""
    service, partitions = made(4)
    service.in_doubt = 2
    service.goes.clear()
    for each in partitions:
        each.ask()
    before = {each.at: each.state for each in partitions}
    service.goes.set()
    nothing_under_way(partitions)
    assert [each.told for each in partitions] == [[]] * 4
    for each in partitions:  # at a tick, as of the state that the core knows
        each.ask_as_of(before[each.at])
    answered(partitions)
    assert [each.told for each in partitions] == [[(ALL, 1)]] * 4


def test_a_partition_that_closes_meanwhile_hears_nothing(made: Made) -> None:
    service, partitions = made(3)
    service.goes.clear()
    for each in partitions:
        each.ask()
    eventually(lambda: service.sent, what="the first command")
    for each in partitions[:2]:  # one is under way, one waits
        each.effects.end()
    service.goes.set()
    answered(partitions[2:])
    nothing_under_way(partitions)
    assert [each.told for each in partitions] == [[], [], [(ALL, 1)]]


def test_a_partition_that_hangs_as_it_is_answered_holds_up_no_other(made: Made) -> None:
    """Its append is at its disk, under the lock that its core is behind."""
    _, partitions = made(6)
    freed = threading.Event()
    hung, others = partitions[0], partitions[1:]
    tell = hung.isr_answered

    def hang(state: PartitionState, request: int | None = None) -> None:
        assert freed.wait(60)
        tell(state, request)

    hung.isr_answered = hang  # type: ignore[method-assign]
    for each in partitions:
        each.ask()
    answered(others)
    for each in others:
        each.ask(remove="c")
    answered(others, 2)
    assert hung.told == []
    freed.set()
    answered([hung])


def test_below_the_level_each_change_is_a_command(made: Made) -> None:
    """A controller of an earlier release knows no other."""
    service, partitions = made(5, level=1)
    for each in partitions:
        each.ask()
    answered(partitions)
    assert [each["kind"] for each in service.sent] == ["alter_isr"] * 5
    assert [each.told for each in partitions] == [[(ALL, 1)]] * 5


def test_what_a_fault_of_ours_keeps_from_being_asked_is_asked_again(made: Made) -> None:
    service, partitions = made(3)
    execute = service.execute

    def broken(command: Mapping[str, Any], **_: object) -> Any:
        raise ValueError("made to fail")

    service.execute = broken  # type: ignore[method-assign]
    for each in partitions:
        each.ask()
    nothing_under_way(partitions)
    service.execute = execute  # type: ignore[method-assign]
    for each in partitions:
        each.ask(again=True)
    answered(partitions)
    assert {each.told[0] for each in partitions} == {(ALL, 1)}


def test_an_earlier_question_that_is_handed_on_last_keeps_no_later_one_from_being_asked(made: Made) -> None:
    """Of two threads that ask. The later one counted as under way for ever, and the in-sync replicas changed no more in
    this leadership."""
    service, [partition] = made(1)
    service.goes.clear()
    partition.ask()
    eventually(lambda: service.sent, what="the first command, for which the others wait")
    changes, passed_over = partition.effects._changes, list[Any]()

    def ask(*asked: Any) -> None:
        passed_over.append(asked)
        if len(passed_over) == 1:
            partition.ask(remove="b")
        IsrChanges.ask(changes, *asked)

    with patch.object(changes, "ask", ask):
        partition.ask(remove="b")
    service.goes.set()

    def is_told() -> bool:
        partition.ask(again=True, remove="b")  # at a tick
        return 3 in {request for _, request in partition.told}

    eventually(is_told, what="an answer to the last question")
