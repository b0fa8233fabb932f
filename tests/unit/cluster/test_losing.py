"""Goal: what is damaged is given up only where nobody else who is there has it, and only by somebody who says so.

Method: the judgement over a real catalog, in which brokers die and leave the ISR; no disk.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.errors import InvalidRequest, NotReady
from broker.control.operating.admin import ClusterAdmin
from broker.control.operating.losing import refusal, to_give_up
from broker.metadata.partition import PartitionState
from broker.storage.recovery import Ranges
from tests.unit.cluster.test_admin import Service

LOST: Ranges = ((4, 6), (10, 12))


class Damaged(Service):
    """`s/0` is led by its preferred replica, alone: the other two died, one after the other.

    Args:
        min_insync: A stream's setting; 2: the last one that died is in the last ISR.
    """

    def __init__(self, min_insync: int = 1) -> None:
        super().__init__("abc", 3)
        self.do("set_min_insync", stream="i", min_insync_replicas=min_insync)
        self.leader = self.state(0).leader or ""
        self.early, self.late = (each for each in "abc" if each != self.leader)
        for broker in (self.early, self.late):
            self.do("fail_broker", broker_id=broker, registration=self.registrations[broker])
        assert self.state(0).isr == (self.leader,)

    def back(self, broker: str) -> None:
        named = {"broker_id": broker, "incarnation": f"q-{broker}", "http": f"{broker}:1", "grpc": f"{broker}:2"}
        self.do("register_broker", **named, raft=f"{broker}.x@{broker}:3", sound={"i": [0, 1]})

    def state(self, number: int) -> PartitionState:
        return self.catalog.cluster.partitions["i", number]

    def judged(
        self,
        ends: dict[str, int],
        *,
        lost: Ranges = LOST,
        high_watermark: int = 20,
        asked: dict[str, bool] | None = None,
    ) -> Ranges:
        state, cluster = self.state(0), self.catalog.cluster
        asked = {self.early: False, self.late: False} if asked is None else asked
        ends_of = {"lost": lost, "ends": ends, "high_watermark": high_watermark}
        return to_give_up("s/0", self.leader, state, cluster, asked=asked, **ends_of)  # type: ignore[arg-type]


def test_where_nobody_else_is_there_all_that_is_damaged_may_go() -> None:
    assert Damaged().judged({}) == LOST


def test_the_refusal_names_the_offsets_and_who_is_away() -> None:
    one = Damaged()
    one.back(one.early)
    said = refusal("s/0", one.leader, one.state(0), one.catalog.cluster, LOST)
    assert "[4, 6), [10, 12) cannot be read" in said.message
    assert "4 records" in said.message
    assert (said.fields["ranges"], said.fields["may_have_it"]) == ([[4, 6], [10, 12]], [one.late])


@pytest.mark.parametrize("end,left", [(0, LOST), (4, LOST), (5, LOST), (6, LOST[1:]), (11, LOST[1:])])
def test_what_a_live_follower_is_past_stays(end: int, left: Ranges) -> None:
    one = Damaged()
    one.back(one.early)
    assert one.judged({one.early: end, one.late: 99}) == left, "who is away says nothing"


def test_a_live_follower_that_is_past_all_of_it_is_waited_for() -> None:
    one = Damaged()
    one.back(one.early)
    with pytest.raises(InvalidRequest, match="catching up") as refused:
        one.judged({one.early: 12})
    assert refused.value.fields["has_it"] == [one.early]


def test_a_live_follower_that_has_told_nothing_is_waited_for() -> None:
    one = Damaged()
    one.back(one.early)
    with pytest.raises(NotReady, match="has not told"):
        one.judged({one.early: -1, one.late: -1})


def test_whoever_lives_is_asked_first() -> None:
    """It may have the records in files that were moved aside."""
    one = Damaged()
    one.back(one.early)
    with pytest.raises(NotReady, match="yet to be asked") as refused:
        one.judged({one.early: 4}, asked={one.late: True})
    assert refused.value.fields["silent"] == [one.early]


@pytest.mark.parametrize("end", [-1, 4, 12])
def test_who_is_damaged_in_the_same_place_has_it_no_more(end: int) -> None:
    """It told its durable end before it was, and tells nothing since."""
    one = Damaged()
    one.back(one.early)
    assert one.judged({one.early: end}, asked={one.early: True}) == LOST


def test_who_may_lead_without_a_loss_does() -> None:
    one = Damaged(min_insync=2)
    one.back(one.late)
    assert one.late in one.state(0).last_isr
    with pytest.raises(InvalidRequest, match="comes from there"):
        one.judged({one.late: 0})


def test_who_left_while_enough_were_in_sync_cannot_lead() -> None:
    one = Damaged(min_insync=2)
    one.back(one.early)
    assert one.early not in one.state(0).last_isr
    assert one.judged({one.early: 0}) == LOST


def test_nothing_is_given_up_that_is_sound_or_not_committed() -> None:
    one = Damaged()
    with pytest.raises(InvalidRequest, match="nothing is damaged"):
        one.judged({}, lost=())
    with pytest.raises(NotReady, match="committed"):
        one.judged({}, high_watermark=11)


class Led:
    """A partition that is led here, and remembers what was given up."""

    def __init__(self, one: Damaged) -> None:
        self.stream, self.incarnation, self.partition = "s", "i", 0
        self.leader_epoch, self.serves = one.state(0).leader_epoch, True
        self.state = SimpleNamespace(lost_ranges=LOST, folder="/streams/s/i/0", high_watermark=20)
        self.log = SimpleNamespace(state=self.state)
        self.damage, self.given_up = self, ()  # type: Any, Ranges
        self.asked: list[Any] = []
        self.ends = {one.early: 5, one.late: -1}

    def follower_ends(self) -> dict[str, int]:
        return self.ends

    def asked_for_lost(self) -> dict[str, bool]:
        return dict.fromkeys(self.ends, False)

    def give_up(self, ranges: Ranges, **options: Any) -> None:
        self.asked.append((ranges, options))
        self.given_up, self.state.lost_ranges = ranges, ()


def test_it_is_done_once_accepted_and_said_again_when_asked_again() -> None:
    one = Damaged()
    one.back(one.early)
    led = Led(one)
    admin = ClusterAdmin(one.leader, one, open_here=lambda: [led], may_change=lambda: True)  # type: ignore[arg-type,list-item]
    with pytest.raises(InvalidRequest, match="--yes"):
        asyncio.run(admin.accept_loss("s", 0, is_accepted=False))
    assert led.asked == []
    first = asyncio.run(admin.accept_loss("s", 0, is_accepted=True))
    epoch = one.state(0).leader_epoch
    assert led.asked == [(LOST, {"leader_epoch": epoch, "aside": "/streams/s/i/0.aside", "borders": [5]})]
    assert first.ranges == LOST
    assert asyncio.run(admin.accept_loss("s", 0, is_accepted=True)) == first
    assert len(led.asked) == 1
    with pytest.raises(InvalidRequest, match="nothing is damaged"):
        asyncio.run(admin.accept_loss("s", 0, is_accepted=False))


@pytest.mark.parametrize("what", ["does not serve", "another epoch", "not open"])
def test_who_does_not_lead_gives_up_nothing(what: str) -> None:
    one = Damaged()
    led = Led(one)
    led.serves = what != "does not serve"
    led.leader_epoch -= what == "another epoch"
    here = [] if what == "not open" else [led]
    admin = ClusterAdmin(one.leader, one, open_here=lambda: here, may_change=lambda: True)  # type: ignore[arg-type,return-value]
    with pytest.raises(NotReady, match="does not lead"):
        asyncio.run(admin.accept_loss("s", 0, is_accepted=True))
    assert led.asked == []
