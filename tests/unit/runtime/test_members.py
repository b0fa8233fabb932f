"""A broker tells the controller of the members of consumer groups that it has heard of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.control.signs import AT_ONCE, TELL_MS, MemberSigns
from broker.metadata.catalog import Catalog


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
