"""Plans that grow: R1 to R4 of refresh.py, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.api.errors import LiftlogError, StaleIncarnation, UnknownStream
from spark_liftlog.errors import RecordsExpired
from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.reading.plan import Range, plan
from spark_liftlog.reading.refresh import FramePlan, Opening, grown, opened, reaching, replayed
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


def again(
    planned: list[Range], state: Heads, *, tasks: int = 3, from_earliest: bool = True
) -> tuple[list[tuple[int, int]], list[LiftlogError]]:
    """What a replay reads that was planned so, of what was read before; and what it has lost."""
    plan_of = {(r.stream, r.partition): Head(r.start, r.end, -1) for r in planned}
    frame = FramePlan(
        name="f",
        load="l",
        selection=Selection(names=("s",)),
        plan=Heads(incarnations={"s": "i"}, partitions=plan_of),
    )
    cut = opened(plan(planned, partitions_min=tasks, partitions_max=tasks), planned)
    found, lost = [], list[LiftlogError]()
    for number, task in enumerate(cut):
        added = {"s": ("i", len(planned))} if number == len(cut) - 1 else {}
        opening = Opening(always=False, from_earliest=from_earliest, added=added, frame=frame)
        pieces = replayed(task, opening, frame, state, lost.append)
        found += [(piece.partition, piece.start, piece.end) for piece in pieces]
    return covered(sorted(found)), lost


@pytest.mark.parametrize("tasks", [1, 2, 3, 5])
@pytest.mark.parametrize("ends", [(60, 0, 90), (10, 3), (0, 5, 7, 9)])
def test_a_replay_reads_what_was_read_before_however_it_is_planned(tasks: int, ends: tuple[int, ...]) -> None:
    """R4: the log has grown, by partitions too; or the frame was planned by a driver that saw less."""
    then = heads((0, 40), (0, 3), (0, 7))
    found, lost = again(ranges(*ends), then, tasks=tasks)
    assert found == [(partition, n) for partition, end in enumerate((40, 3, 7)) for n in range(end)]
    assert lost == []


def test_a_replay_does_not_read_a_stream_that_matches_since() -> None:
    then = heads((0, 5))
    new = Range(stream="t", partition=0, incarnation="j", start=0, end=9, is_open=True)
    selection = Selection(pattern="s|t")
    known = Heads(incarnations={"s": "i", "t": "j"}, partitions={("s", 0): Head(0, 60, -1), ("t", 0): Head(0, 9, -1)})
    frame = FramePlan(name="f", load="l", selection=selection, plan=known)
    added = {"s": ("i", 1), "t": ("j", 1)}
    taking = Opening(always=False, from_earliest=True, added=added, pattern=selection, frame=frame)
    lost: list[LiftlogError] = []
    pieces = replayed([*ranges(60), new], taking, frame, then, lost.append)
    assert [(piece.stream, piece.start, piece.end) for piece in pieces] == [("s", 0, 5)]
    assert lost == []
    deleted = replace(then, incarnations={**then.incarnations, "u": "k"}, partitions={("u", 0): Head(0, 2, 1)})
    taking = replace(taking, pattern=Selection(pattern="."), added={})
    found = replayed([], taking, frame, deleted, lost.append)
    assert [(piece.stream, piece.incarnation, piece.end) for piece in found] == [("u", "k", 2)], "reading it fails"


def test_what_a_replay_cannot_read_again_is_lost() -> None:
    found, lost = again([replace(r, start=20) for r in ranges(60)], heads((0, 40)))
    assert found == [(0, n) for n in range(20, 40)]
    assert [(type(error), error.fields["log_start_offset"]) for error in lost] == [(RecordsExpired, 20)] * len(lost)
    assert lost
    found, lost = again([replace(r, start=20) for r in ranges(60)], heads((20, 40)), from_earliest=False)
    assert (found, lost) == ([(0, n) for n in range(20, 40)], [])
    found, lost = again([replace(r, start=20) for r in ranges(60)], heads((7, 7)))
    assert (found, lost) == ([], []), "nothing was read of it"
    found, lost = again(ranges(60), heads((0, 40), incarnation="j"), tasks=1)
    assert [type(error) for error in lost] == [StaleIncarnation]
    assert found == [(0, n) for n in range(60)], "who chose to go on reads the new stream"


def test_what_is_pinned_reaches_as_far_as_the_plan() -> None:
    """A broker's word on the ends may be some 2 s old."""
    planned = ranges(60, 0, 90)
    at = {("s", r.partition): Head(r.start + 5, r.end + 5, -1) for r in planned}
    frame = FramePlan(name="f", load="l", selection=Selection(), plan=Heads(incarnations={"s": "i"}, partitions=at))
    now = heads((0, 40), (9, 9))
    for from_earliest, begins in ((True, (5, 9, 5)), (False, (5, 5, 5))):
        opening = Opening(always=False, from_earliest=from_earliest, added={})
        found = reaching(now, opening, frame).partitions
        assert [(head.log_start_offset, head.high_watermark) for _, head in sorted(found.items())] == [
            *zip(begins, (65, 9, 95), strict=True)
        ]
    with pytest.raises(StaleIncarnation):
        reaching(heads((0, 1), incarnation="j"), opening, frame)
