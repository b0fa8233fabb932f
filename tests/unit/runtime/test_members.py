"""A broker that is alone ends members of consumer groups that are silent, and tells a controller of them otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from broker.api.errors import NotReady
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
        self.notes: list[list[Any]] = []
        self.knows_controller = True

    def note(self, note: Mapping[str, Any]) -> bool:
        assert note["type"] == "members"
        if self.knows_controller:
            self.notes.append(note["members"])
        return self.knows_controller


def test_signs_go_to_the_controller_in_one_note_and_again_if_there_was_none() -> None:
    """I1. The newest session of a member is told."""
    now_ms, node = [1_000], Node()
    signs = MemberSigns(now_ms=lambda: now_ms[0])
    signs.tick(node)  # type: ignore[arg-type]
    node.knows_controller = False
    signs.heard("g", "a", 1)
    signs.tick(node)  # type: ignore[arg-type]
    signs.heard("g", "a", 2)
    node.knows_controller = True
    signs.tick(node)  # type: ignore[arg-type]
    assert node.notes == [], "not sooner"
    now_ms[0] += TELL_MS
    signs.tick(node)  # type: ignore[arg-type]
    assert node.notes == [[["g", "a", 2]]]
    now_ms[0] += TELL_MS
    signs.tick(node)  # type: ignore[arg-type]
    assert len(node.notes) == 1, "each is told once"
    for number in range(AT_ONCE + 1):
        signs.heard("g", f"m{number}", 1)
    signs.tick(node)  # type: ignore[arg-type]
    assert [len(each) for each in node.notes[1:]] == [AT_ONCE, 1]
