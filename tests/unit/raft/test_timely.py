"""Timely commands: carried out before their time is up by the clock of who asks, or never (`node.N8`)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.api.errors import DeadlineExceeded, NotReady
from tests.unit.raft.group import Group, Message

TIMEOUT_S = 2.0


def is_command(message: Message) -> bool:
    return message[2]["type"] in ("submit", "submitted")


def a_group(ahead_s: float) -> Group:
    """`a` leads `bc`, and its clock is so much ahead."""
    group = Group("abc")
    group.clocks = {"a": 100.0 + ahead_s, "b": 100.0, "c": 100.0}
    group.elect("a")
    return group


def wait(group: Group, seconds: float) -> None:
    for name in group.clocks:
        group.clocks[name] += seconds


def ask(group: Group, name: str = "b") -> list[Any]:
    results: list[Any] = []
    command = {"v": 1, "kind": "register_producer", "name": "p", "request_id": "r"}
    group.nodes[name].submit(command, results.append, timeout_s=TIMEOUT_S, timely=True)
    return results


def settle(group: Group) -> None:
    for _ in range(8):
        group.turn()


def test_it_needs_the_clock_of_who_leads_now() -> None:
    group = a_group(5.0)
    (refusal,) = ask(group)
    assert isinstance(refusal, NotReady)
    group.nodes["b"].heed(group.nodes["a"].stamp())
    assert ask(group) == []
    settle(group)
    assert group.has("c") == {"p"}
    group.elect("c")
    (refusal,) = ask(group)  # the stamp is of another term
    assert isinstance(refusal, NotReady)


def test_a_late_stamp_of_a_former_controller_takes_nothing_away() -> None:
    group = a_group(5.0)
    late = group.nodes["a"].stamp()
    group.elect("c")
    group.nodes["b"].heed(group.nodes["c"].stamp())
    group.nodes["b"].heed(late)
    assert ask(group) == []
    settle(group)
    assert group.has("a") == {"p"}


@pytest.mark.parametrize("seed", range(200))
def test_whatever_was_slow_it_is_not_carried_out_after_it_is_in_doubt(seed: int) -> None:
    rng = random.Random(seed)
    group = a_group(rng.choice([-50.0, 0.0, 50.0]))
    stamp = group.nodes["a"].stamp()
    wait(group, stamp_s := rng.choice([0.0, 0.4, 1.5]))  # it was on its way so long
    group.nodes["b"].heed(stamp)
    wait(group, rng.choice([0.0, 1.0]))
    results = ask(group)
    wait(group, late_s := rng.choice([0.1, 1.0, 1.9, 2.1, 30.0]))
    group.nodes["b"].tick()
    is_in_doubt = late_s > TIMEOUT_S
    assert [type(each) for each in results] == [DeadlineExceeded] * is_in_doubt
    settle(group)
    if is_in_doubt:
        assert group.has("c") == set()
    elif late_s + stamp_s <= TIMEOUT_S:
        assert [*results[0]] == ["ok"]
        assert group.has("c") == {"p"}
    else:  # the clock is known so well only
        assert results[0]["error"]["again"]
        assert group.has("c") == set()


def test_no_other_controller_takes_it() -> None:
    """It lay in a socket while the one that it was meant for was deposed, and is elected again."""
    group = a_group(0.0)
    group.nodes["b"].heed(group.nodes["a"].stamp())
    ask(group)
    group.nodes["b"].tick()
    group.deliver(lambda message: not is_command(message))
    for name in "ca":
        group.nodes[name].core._SyncObj__raftElectionDeadline = 0
        for _ in range(4):
            for each in "abc":
                group.nodes[each].tick()
            group.deliver(lambda message: not is_command(message))
        assert group.nodes[name].is_controller
    assert any(is_command(message) for message in group.net)
    settle(group)
    assert group.has("c") == set()


@pytest.mark.parametrize("stamp", [None, 1, [], [1], ["1", 2.0], [1, "2"], [True, 2.0], [1, 2.0, 3], [1.0, 2.0]])
def test_a_stamp_that_is_none_is_not_minded(stamp: Any) -> None:
    group = a_group(0.0)
    group.nodes["b"].heed(stamp)
    assert isinstance(ask(group)[0], NotReady)
    number = "nobody/1"
    command = {"v": 1, "kind": "register_producer", "name": "p", "request_id": "r"}
    message = {"type": "submit", "cluster": "x", "id": number, "command": command, "until": stamp}
    group.hand_over((group.ids[1], group.ids[0], message))
    settle(group)
    assert group.has("c") == ({"p"} if stamp is None else set())  # None: it has all the time in the world
