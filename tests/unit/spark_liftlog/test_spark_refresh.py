"""Plans that grow: R1 to R3 of refresh.py, as tables."""

from __future__ import annotations

import pytest

from broker.api.errors import StaleIncarnation, UnknownStream
from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.reading.plan import Range, plan
from spark_liftlog.reading.refresh import Opening, grown, opened
from spark_liftlog.reading.selection import Selection


def ranges(*ends: int) -> list[Range]:
    return [
        Range(stream="s", partition=partition, incarnation="i", start=0, end=end, byte_count=end << 20, is_open=True)
        for partition, end in enumerate(ends)
    ]


def heads(*partitions: tuple[int, int], incarnation: str = "i") -> Heads:
    return Heads(
        incarnations={"s": incarnation},
        partitions={("s", number): Head(*at, 1) for number, at in enumerate(partitions)},
    )


def read(planned: list[Range], now: Heads, *, tasks: int = 3, from_earliest: bool = True) -> list[tuple[int, int, int]]:
    cut = plan(planned, partitions_min=tasks, partitions_max=tasks)
    last = len(opened(cut, planned)) - 1
    found = []
    for number, task in enumerate(opened(cut, planned)):
        added = {"s": ("i", len(planned))} if number == last else {}
        opening = Opening(always=True, from_earliest=from_earliest, added=added)
        found += [(piece.partition, piece.start, piece.end) for piece in grown(task, opening, now)]
    return sorted(found)


def covered(pieces: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, start, end in pieces for offset in range(start, end)]


@pytest.mark.parametrize("tasks", [1, 2, 3, 5])
def test_what_was_appended_and_added_is_read_once(tasks: int) -> None:
    pieces = covered(read(ranges(60, 0, 90), heads((0, 75), (0, 2), (0, 90), (3, 7)), tasks=tasks))
    assert pieces == [
        *((0, n) for n in range(75)),
        *((1, n) for n in range(2)),
        *((2, n) for n in range(90)),
        *((3, n) for n in range(3, 7)),
    ]


def test_an_empty_plan_has_a_task_that_looks() -> None:
    assert read(ranges(0, 0), heads((0, 3), (0, 0))) == [(0, 0, 3)]


def test_what_retention_took_is_left_out_where_the_plan_begins_at_earliest() -> None:
    now = heads((50, 60), (0, 90))
    assert covered(read(ranges(60, 90), now)) == [*((0, n) for n in range(50, 60)), *((1, n) for n in range(90))]
    assert (0, 0) in covered(read(ranges(60, 90), now, from_earliest=False)), "named offsets stay: the read fails"


def test_everything_that_was_planned_may_be_gone() -> None:
    assert covered(read(ranges(60), heads((80, 82)))) == [(0, 80), (0, 81)]


def test_another_stream_of_the_name_is_an_error() -> None:
    with pytest.raises(StaleIncarnation, match=r"incarnation i; now it is j, .*load\(\) again"):
        read(ranges(60), heads((0, 60), incarnation="j"))
    with pytest.raises(UnknownStream, match=r"deleted after this frame was planned; .*load\(\) again"):
        read(ranges(0), Heads(incarnations={}, partitions={}))


@pytest.mark.parametrize("count", [0, 2])
def test_streams_that_match_since_are_taken_by_one_task(count: int) -> None:
    """R1, also where nothing matched when the frame was planned."""
    selection = Selection(pattern="s|t.*")
    added = {"s": ("i", 2)} if count else {}
    taking = Opening(always=True, from_earliest=True, added=added, pattern=selection)
    now = Heads(
        incarnations={"s": "i", "t1": "j", "other": "k"},
        partitions={
            ("s", 0): Head(0, 5, 1),
            ("s", 1): Head(0, 5, 1),
            ("t1", 0): Head(2, 4, 1),
            ("other", 0): Head(0, 9, 1),
        },
    )
    found = [(r.stream, r.partition, r.incarnation, r.start, r.end) for r in grown([], taking, now)]
    every = [] if count else [("s", 0, "i", 0, 5), ("s", 1, "i", 0, 5)]
    assert found == [*every, ("t1", 0, "j", 2, 4)]
    assert grown([], Opening(always=True, from_earliest=True, added={}), now) == []
    assert [name for name in now.incarnations if taking.takes(name)] == ["s", "t1"]
