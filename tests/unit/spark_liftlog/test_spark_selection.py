"""Which streams are read, and how much of them at a time. Goal: Selection, and N5, N6 of admission.py."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.reading.offsets import Key
from spark_liftlog.reading.query.admission import within_bytes
from spark_liftlog.reading.selection import Selection

NAMES = ("orders", "orders-eu", "order", "returns", "__offsets")


@pytest.mark.parametrize(
    "pattern, watched, read",
    [
        ("orders.*", "orders*", ["orders", "orders-eu"]),
        ("orders?", "order*", ["orders", "order"]),
        ("order(s|s-eu)", "*", ["orders", "orders-eu"]),
        ("orders|returns", "*", ["orders", "returns"]),
        ("orders", "orders*", ["orders"]),
        (".*", "*", ["orders", "orders-eu", "order", "returns"]),
        ("orders{0,1}-eu", "order*", ["orders-eu"]),
        ("[a-o].*", "*", ["orders", "orders-eu", "order"]),
    ],
)
def test_a_pattern_reads_what_matches_whole_names(pattern: str, watched: str, read: list[str]) -> None:
    selection = Selection(pattern=pattern)
    assert selection.watched == [watched]
    told = [name for name in NAMES if not name.startswith("__") and re.match(watched.replace("*", ".*"), name)]
    assert [name for name in told if selection.has(name)] == read


def test_only_what_is_read_is_looked_at() -> None:
    heads = Heads(
        incarnations={"a": "1", "b": "2"},
        partitions={("a", 0): Head(0, 1, 1), ("a", 1): Head(0, 1, 1), ("b", 0): Head(0, 1, 1)},
    )
    assert Selection(names=("a", "b")).of(heads) is heads
    found = Selection(names=("a", "b"), partitions={"a": frozenset([1])}).of(heads)
    assert sorted(found.partitions) == [("a", 1), ("b", 0)]
    assert sorted(Selection(pattern="b").of(heads).incarnations) == ["b"]


BACKLOGS = st.dictionaries(st.integers(0, 8), st.tuples(st.integers(1, 1000), st.integers(1, 10_000)), min_size=1)


@given(BACKLOGS, st.integers(1, 1 << 20))
def test_a_bound_in_bytes_is_kept_and_nobody_starves(found: dict[int, tuple[int, int]], bytes_max: int) -> None:
    backlogs: dict[Key, int] = {("s", number): count for number, (count, _) in found.items()}
    sizes: dict[Key, int] = {("s", number): count * size for number, (count, size) in found.items()}
    taken = within_bytes(backlogs, backlogs, sizes, bytes_max)
    assert all(1 <= taken[key] <= backlogs[key] for key in backlogs)
    total = sum(taken[key] * sizes[key] // backlogs[key] for key in taken)
    ones = sum(size for _, size in found.values())
    assert total <= bytes_max + ones
    if sum(sizes.values()) <= bytes_max:
        assert taken == backlogs
