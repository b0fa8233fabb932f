"""Which partitions a round of the cleaner works on, however many there are."""

from __future__ import annotations

import asyncio

from broker.runtime.cleaner import SLICE, Turns
from broker.runtime.partition import Partition
from broker.runtime.watch import ChangeHub


def partitions(count: int) -> list[Partition]:
    """So many that only have what a turn looks at."""
    made = [Partition.__new__(Partition) for _ in range(count)]
    for partition in made:
        partition.removed = False
    return made


def test_what_moved_comes_at_once_and_everything_in_turn() -> None:
    """2.5 slices: three rounds go through all, and none is longer than a slice and what moved."""
    all_of_them = partitions(SLICE * 5 // 2)
    turns = Turns()
    turns.note(all_of_them[-2:])
    rounds = [turns.take(all_of_them) for _ in range(3)]
    assert set(rounds[0]) == {*all_of_them[:SLICE], *all_of_them[-2:]}
    assert set(rounds[0]) | set(rounds[1]) | set(rounds[2]) == set(all_of_them)
    assert max(map(len, rounds)) == SLICE + 2
    assert turns.take(all_of_them) == all_of_them[:SLICE]


def test_a_few_are_all_looked_at_each_time_and_each_once() -> None:
    few = partitions(3)
    turns = Turns()
    for _ in range(3):
        turns.note(few[:1])
        assert sorted(map(id, turns.take(few))) == sorted(map(id, few))


def test_a_removed_one_that_moved_does_not_come_back() -> None:
    few = partitions(2)
    turns = Turns()
    turns.note(few)
    few[0].removed = True
    assert turns.take(few[1:]) == few[1:]


def test_the_hub_tells_once_what_moved() -> None:
    loop = asyncio.new_event_loop()
    hub = ChangeHub(loop, version=1)
    for key in ("a", "b", "a"):
        hub.note(key)
    assert hub.take_moved() == {"a", "b"}
    assert hub.take_moved() == set()
    loop.close()
