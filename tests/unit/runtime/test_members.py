"""A broker that is alone ends members of consumer groups that are silent, and tells a controller of them otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from broker.api.errors import NotReady
from broker.metadata.catalog import Catalog
from broker.metadata.groups import Groups
from broker.runtime.background.members import LOOK_MS, Members
from broker.runtime.cluster.plane.signs import AT_ONCE, TELL_MS, MemberSigns


class Bench:
    """A group `g` with members `a` and `b`, whose timeout is two seconds."""

    def __init__(self) -> None:
        self.groups, self.now_ms = Groups(), 0
        self.sessions = {name: self.groups.join("g", name, ("s",), timeout_ms=2_000, counts={"s": 2}) for name in "ab"}
        self.refuses = False
        self.members = Members(lambda: self.groups, self.change, now_ms=lambda: self.now_ms)

    async def change(self, kind: str, values: Mapping[str, Any]) -> None:
        if self.refuses:
            raise NotReady("the disk is full")
        assert (kind, values["name"]) == ("end_members", "g")
        for member, session in values["members"].items():
            assert self.groups.end("g", {member: session}, {"s": 2})

    async def pass_ms(self, ms: int, *heard: str) -> set[str]:
        for _ in range(0, ms, LOOK_MS):
            self.now_ms += LOOK_MS
            for name in heard:
                self.members.heard("g", name, self.sessions[name])
            await asyncio.sleep(0)
            await self.members.look()
        return set(self.groups.get("g").members)


async def test_a_member_that_is_silent_ends_and_its_partitions_go_to_another() -> None:
    bench = Bench()
    assert await bench.pass_ms(2_500, "a") == {"a", "b"}, "a whole timeout from the start on"
    assert await bench.pass_ms(500, "a") == {"a"}
    assert {grant.member for grant in bench.groups.get("g").grants.values()} == {"a"}


async def test_time_in_which_the_broker_stood_still_counts_for_nobody() -> None:
    bench = Bench()
    assert await bench.pass_ms(1_000, "a") == {"a", "b"}
    bench.now_ms += 60_000
    assert await bench.pass_ms(500, "a") == {"a", "b"}
    assert await bench.pass_ms(2_000, "a") == {"a"}


class Node:
    def __init__(self) -> None:
        self.catalog = Catalog()
        self.notes: list[list[Any]] = []
        self.knows_controller = True

    def tell(self, note: Mapping[str, Any]) -> bool:
        assert (note["type"], note["broker"]) == ("members", "b")
        if self.knows_controller:
            self.notes.append(note["members"])
        return self.knows_controller


class Signs:
    """The signs of one broker, half a second later each time."""

    def __init__(self) -> None:
        self.now_ms, self.node, self.has_session = 1_000, Node(), True
        self.signs = MemberSigns("b", has_session=lambda: self.has_session, now_ms=lambda: self.now_ms)

    def told(self, *heard: tuple[str, int], after_ms: int = TELL_MS) -> list[list[Any]]:
        for member, session in heard:
            self.signs.heard("g", member, session)
        self.now_ms += after_ms
        self.signs.tick(self.node)  # type: ignore[arg-type]
        notes, self.node.notes = self.node.notes, []
        return notes


def test_signs_go_to_all_in_one_note_and_again_if_there_was_no_controller() -> None:
    """I1. The newest session of a member is told."""
    signs = Signs()
    assert signs.told() == []
    signs.node.knows_controller = False
    assert signs.told(("a", 1)) == []
    signs.node.knows_controller = True
    assert signs.told(("a", 2), after_ms=0) == [], "not sooner"
    assert signs.told() == [[["g", "a", 2]]]
    assert signs.told() == [], "each is told once"
    assert [len(each) for each in signs.told(*((f"m{each}", 1) for each in range(AT_ONCE + 1)))] == [AT_ONCE, 1]


def test_a_broker_with_a_session_says_that_it_has_heard_nobody() -> None:
    """I2. Where nobody is a member nothing is said."""
    signs = Signs()
    assert signs.told() == []
    signs.node.catalog.groups.join("g", "a", ("s",), timeout_ms=2_000, counts={"s": 2})
    assert signs.told() == [[]]
    signs.has_session = False
    assert signs.told(("a", 1)) == []
    signs.has_session = True
    assert signs.told() == [[["g", "a", 1]]]
