"""Goal: a damaged replica gives its part away only to somebody who lives by more than his session."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.metadata.heard import HEARD_MS, Heard
from broker.metadata.info import BrokerInfo
from broker.metadata.partition import PartitionState

STATE = PartitionState(replicas=("a", "b", "c"), isr=("a", "b"), leader="a", leader_epoch=3)


def brokers(**renewals: int) -> dict[str, BrokerInfo]:
    return {
        name: BrokerInfo(
            broker_id=name,
            incarnation=f"{name}1",
            http=f"{name}:1",
            grpc=f"{name}:2",
            registration=number,
            renewal=renewal,
        )
        for number, (name, renewal) in enumerate(renewals.items(), 1)
    }


def begun(**renewals: int) -> Heard:
    heard = Heard()
    heard.look(brokers(**renewals), 0)
    return heard


def test_what_was_there_at_the_first_look_says_nothing() -> None:
    heard = begun(a=1, b=1)
    heard.look(brokers(a=1, b=1), 100)
    assert not heard.is_heard("b", 100)
    assert not heard.is_heard("unknown", 100)


@pytest.mark.parametrize("change", [{"renewal": 2}, {"registration": 9}])
def test_who_has_said_something_is_heard_for_a_while(change: dict[str, Any]) -> None:
    heard, known = begun(a=1, b=1), brokers(a=1, b=1)
    known["b"] = replace(known["b"], **change)
    for now_ms in (100, 300, 500):
        heard.look(known, now_ms)
    assert heard.is_heard("b", 100 + HEARD_MS - 1)
    assert not heard.is_heard("b", 100 + HEARD_MS), "it says nothing any more, though its session may run on"
    assert not heard.is_heard("a", 200)


def test_who_is_new_is_heard_and_who_was_removed_is_not() -> None:
    heard = begun(a=1)
    heard.look(brokers(a=1, b=0), 100)
    assert heard.is_heard("b", 100)
    heard.look(brokers(a=1), 200)
    assert not heard.is_heard("b", 200)


@pytest.mark.parametrize(
    ("state", "change", "may_go"),
    [
        (STATE, {}, True),
        (STATE, {"is_live": False}, False),
        (STATE, {"is_stopping": True}, False),
        (replace(STATE, isr=("a", "c")), {}, False),
        (replace(STATE, isr=("a",), last_isr=("b",)), {}, True),
        (replace(STATE, isr=("a",)), {}, False),
        (replace(STATE, isr=("b",), leader="b"), {}, True),
    ],
)
def test_a_damaged_replica_goes_if_such_a_one_could_lead(
    state: PartitionState, change: dict[str, Any], may_go: bool
) -> None:
    heard, known = begun(a=1, b=1, c=1), brokers(a=2, b=2, c=1)
    known["b"] = replace(known["b"], **change)
    heard.look(known, 100)
    assert heard.may_go("a", state, known, 200) is may_go
    assert not heard.may_go("a", state, known, 100 + HEARD_MS)
