"""Planning. Goal: N1 to N4 of plan.py for any ranges; method: Hypothesis against the definitions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_liftlog.options import source_options
from spark_liftlog.parsing import Kind
from spark_liftlog.reading.offsets import Key
from spark_liftlog.reading.plan import TASK_BYTES, Range, plan, prorate

KINDS: tuple[Kind, ...] = ("batch", "stream")


@st.composite
def range_sets(draw: st.DrawFn) -> list[Range]:
    found = []
    for partition in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, 1 << 40))
        length = draw(st.integers(0, 5) | st.integers(0, 10**9))
        found.append(
            Range(
                stream=draw(st.sampled_from("ab")) + str(partition),
                partition=partition,
                incarnation="i",
                start=start,
                end=start + length,
                address="h:1",
                byte_count=draw(st.integers(0, 1 << 36)),
            )
        )
    return found


@given(range_sets(), st.integers(1, 40), st.integers(1, 40))
def test_a_plan_is_exactly_the_ranges(ranges: list[Range], minimum: int, maximum: int) -> None:
    """N1: glue the pieces together again and compare."""
    pieces = [piece for task in plan(ranges, partitions_min=minimum, partitions_max=maximum) for piece in task]
    for r in ranges:
        mine = sorted((p for p in pieces if (p.stream, p.partition) == (r.stream, r.partition)), key=lambda p: p.start)
        assert all(p.record_count > 0 for p in mine)
        assert all(a.end == b.start for a, b in pairwise(mine))
        assert sum(p.record_count for p in mine) == r.record_count
        if mine:
            assert (mine[0].start, mine[-1].end, mine[0].incarnation) == (r.start, r.end, "i")
    keys = [(p.stream, p.partition, p.start) for p in pieces]
    assert keys == sorted(keys)


@given(range_sets(), st.integers(1, 40), st.integers(1, 40))
def test_the_number_of_tasks_is_within_its_bounds(ranges: list[Range], minimum: int, maximum: int) -> None:
    """N2."""
    tasks = plan(ranges, partitions_min=minimum, partitions_max=maximum)
    records = sum(r.record_count for r in ranges)
    assert len(tasks) <= min(maximum, records)
    assert len(tasks) >= min(minimum, maximum, records)
    assert all(tasks)


def test_nothing_to_read_is_no_task() -> None:
    assert plan([], partitions_min=3, partitions_max=4) == []
    assert (
        plan([Range(stream="s", partition=0, incarnation="i", start=5, end=5)], partitions_min=3, partitions_max=4)
        == []
    )


def some(partition: int, records: int, byte_count: int) -> Range:
    return Range(stream="s", partition=partition, incarnation="i", start=0, end=records, byte_count=byte_count)


def test_small_ranges_share_a_task() -> None:
    tasks = plan([some(p, 10, 1000) for p in range(50)], partitions_min=1, partitions_max=4)
    assert [len(task) for task in tasks] == [50]


@pytest.mark.parametrize("byte_count", [100, 1 << 20])
def test_a_thousand_slow_partitions_cost_no_more_tasks_than_cores_need(byte_count: int) -> None:
    """A task costs Spark 26 ms. A trickle is one task; as much as 1 GiB is shared by as many as may be, evenly."""
    tasks = plan([some(p, 10, byte_count) for p in range(1000)], partitions_min=1, partitions_max=4)
    assert len(tasks) == (1 if byte_count == 100 else 4)
    sizes = [len(task) for task in tasks]
    assert max(sizes) - min(sizes) <= 2, "a partition at a border may be cut in two"


@pytest.mark.parametrize(
    "cores,given,tasks_count",
    [
        (1, {}, 2),
        (2, {}, 4),
        (16, {}, 32),
        (1, {"maxPartitions": "24"}, 24),
        (2, {"maxPartitions": "3"}, 3),
        (16, {"maxPartitions": "3"}, 3),
        (1, {"minPartitions": "7"}, 7),
        (16, {"minPartitions": "7"}, 32),
        (16, {"minPartitions": "3", "maxPartitions": "5"}, 5),
    ],
)
def test_as_many_tasks_as_the_options_and_the_cores_of_the_planner_say(
    cores: int, given: dict[str, str], tasks_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than 100 tasks would be worth while: the bound counts, and by default it is twice the cores."""
    monkeypatch.setattr("spark_liftlog.options.cores", lambda: cores)
    for kind in KINDS:
        options = source_options({"stream": "s", **given}, kind)
        bounds = {"partitions_min": options.min_partitions, "partitions_max": options.max_partitions}
        assert len(plan([some(0, 1_000_000, 100 * TASK_BYTES)], **bounds)) == tasks_count
        assert len(plan([some(0, 1_000_000, 100)], **bounds)) == int(given.get("minPartitions", 1)), "few bytes"


def test_a_long_range_is_split_evenly() -> None:
    tasks = plan([some(0, 1_000_000, 100 * TASK_BYTES)], partitions_min=1, partitions_max=4)
    assert [(t[0].start, t[0].end) for t in tasks] == [
        (0, 250_000),
        (250_000, 500_000),
        (500_000, 750_000),
        (750_000, 1_000_000),
    ]


def test_equal_partitions_are_not_cut_when_they_fit_the_tasks() -> None:
    tasks = plan([some(p, 1000, 10 * TASK_BYTES) for p in range(4)], partitions_min=1, partitions_max=4)
    assert [[(p.partition, p.start, p.end) for p in task] for task in tasks] == [[(i, 0, 1000)] for i in range(4)]


def test_no_sliver_is_cut_off_a_range() -> None:
    """N3: the ideal cut is 1 % behind a border."""
    tasks = plan([some(0, 990, 990 * 100_000), some(1, 1010, 1010 * 100_000)], partitions_min=2, partitions_max=2)
    assert [[(p.partition, p.start, p.end) for p in task] for task in tasks] == [[(0, 0, 990)], [(1, 0, 1010)]]


def test_min_partitions_splits_what_is_small() -> None:
    assert len(plan([some(0, 100, 100)], partitions_min=7, partitions_max=8)) == 7


KEYS = st.tuples(st.sampled_from("ab"), st.integers(0, 20))


@given(st.dictionaries(KEYS, st.integers(0, 5) | st.integers(0, 1 << 62)), st.integers(1, 1 << 62))
def test_proration_starves_nobody_and_keeps_to_the_limit(backlogs: dict[Key, int], limit: int) -> None:
    """N4."""
    shares = prorate(backlogs, limit)
    waiting = {key for key, count in backlogs.items() if count}
    assert shares.keys() == waiting
    assert all(1 <= shares[key] <= backlogs[key] for key in waiting)
    total = sum(backlogs.values())
    assert sum(shares.values()) == min(total, max(limit, sum(shares.values()))) or sum(shares.values()) <= limit
    assert sum(shares.values()) <= max(limit, len(waiting)) + len(waiting)
    if total <= limit:
        assert shares == {key: backlogs[key] for key in waiting}
    if limit >= len(waiting) * 2 and total > limit:
        assert sum(shares.values()) >= limit - len(waiting)


def test_a_share_below_one_is_rounded_up() -> None:
    assert prorate({("s", 0): 1_000_000, ("s", 1): 1}, 10) == {("s", 0): 9, ("s", 1): 1}


def test_shares_follow_the_backlogs() -> None:
    assert prorate({("s", 0): 300, ("s", 1): 100}, 40) == {("s", 0): 30, ("s", 1): 10}
    assert prorate({("s", 0): 300, ("s", 1): 100}, None) == {("s", 0): 300, ("s", 1): 100}


def test_the_limit_is_used_up_although_shares_are_rounded_down() -> None:
    assert sum(prorate({("s", 0): 100, ("s", 1): 100}, 3).values()) == 3


@given(range_sets(), st.integers(1, 40), st.integers(1, 40), st.integers(1, 2000))
def test_no_task_has_more_records_than_it_may(ranges: list[Range], minimum: int, maximum: int, share: int) -> None:
    """Also where that takes more tasks than `partitions_max`; still exactly the ranges (N1)."""
    records = sum(r.record_count for r in ranges)
    bound = max(1, records // share)
    tasks = plan(ranges, partitions_min=minimum, partitions_max=maximum, records_max=bound)
    assert all(sum(piece.record_count for piece in task) <= bound for task in tasks)
    assert sum(piece.record_count for task in tasks for piece in task) == records
