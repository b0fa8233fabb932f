"""Filters of Spark's: what is applied of them, and what is given back. Goal: F1 to F4 of filters.py, narrowing.py.

Method: random filters over random rows, with options of all kinds. What the options let through, chosen by what was
given back, is what a slow second implementation chooses of all rows by all filters, one row at a time, with SQL's NULL.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from broker.api.conditions import Conditions
from broker.api.schema import SCHEMA
from spark_liftlog.options import SourceOptions, source_options
from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.reading.filters import pushed
from spark_liftlog.reading.narrowing import Interval, Narrowing
from spark_liftlog.reading.plan import Range
from spark_liftlog.reading.pushing_reader import WORKER, PushingReader, reader_of
from spark_liftlog.reading.refresh import Opening, grown
from spark_liftlog.schema import ROW
from tests.support.effort import examples, first_short, seeded

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000
SUBJECTS = ("a", "a.b", "a.b.c", "b.b", "a.é", "a.*x")
KEYS = (None, b"", b"k", b"\xff", b"long" * 9)
STREAMS = ("s", "t")
Row = dict[str, Any]


def at(us: int) -> datetime:
    return NOON + timedelta(microseconds=us)


def rows_of(rng: random.Random) -> list[Row]:
    """Of each partition the offsets from somewhere on, dense; timestamps nearly in order."""
    found = []
    for stream in STREAMS:
        for partition in range(3):
            first = rng.randrange(4)
            found += [
                {
                    "stream": stream,
                    "partition": partition,
                    "offset": offset,
                    "timestamp": at(offset + rng.randrange(3)),
                    "subject": rng.choice(SUBJECTS),
                    "key": rng.choice(KEYS),
                    "value": rng.choice((None, b"v")),
                }
                for offset in range(first, first + rng.randrange(8))
            ]
    return found


def values_of(rng: random.Random, column: str) -> Any:
    match column:
        case "stream":
            return rng.choice((*STREAMS, "u"))
        case "partition":
            return rng.randrange(-1, 4)
        case "offset":
            return rng.randrange(-1, 12)
        case "timestamp":
            return at(rng.randrange(-1, 13))
        case "subject":
            return rng.choice((*SUBJECTS, "none", "no subject", "a.*", "b,a", "x" * 2_000))
        case "key":
            return rng.choice((*KEYS[1:], b"none", b"x" * 2_000))
    return b"v"


def filter_of(rng: random.Random) -> Filter:
    column = rng.choice(("stream", "partition", "offset", "timestamp", "subject", "key", "value"))
    attribute = (rng.choice((column, column.upper())),)
    made: Filter
    match rng.randrange(10):
        case 0 | 1 | 2:
            made = rng.choice((EqualTo, EqualNullSafe))(attribute, values_of(rng, column))
        case 3 | 4:
            values = [values_of(rng, column) for _ in range(rng.randrange(3))]
            made = In(attribute, tuple([*values, None] if rng.random() < 0.2 else values))
        case 5 | 6 | 7:
            kind = rng.choice((LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual))
            made = kind(attribute, values_of(rng, column))
        case 8:
            made = rng.choice((IsNotNull, IsNull))(attribute)
        case _:
            kind = rng.choice((StringStartsWith, StringEndsWith, StringContains))
            made = kind(("subject",), rng.choice(("a", "b", "é")))
    return Not(made) if rng.random() < 0.1 else made


def holds(one: Filter, row: Row) -> bool | None:
    """SQL: None is NULL."""
    if isinstance(one, Not):
        found = holds(one.child, row)
        return None if found is None else not found
    value = row[one.attribute[0].lower()]  # type: ignore[attr-defined]
    match one:
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case EqualNullSafe():
            return bool(value == one.value)
    if value is None:
        return None
    match one:
        case EqualTo():
            return bool(value == one.value)
        case In():
            return True if value in one.value else None if None in one.value else False
        case LessThan():
            return bool(value < one.value)
        case LessThanOrEqual():
            return bool(value <= one.value)
        case GreaterThan():
            return bool(value > one.value)
        case GreaterThanOrEqual():
            return bool(value >= one.value)
        case StringStartsWith():
            return bool(value.startswith(one.value))
        case StringEndsWith():
            return bool(value.endswith(one.value))
        case StringContains():
            return one.value in value
    raise AssertionError(one)


def read(options: SourceOptions, rows: list[Row], *, is_table: bool) -> list[Row]:
    """What the options let through, as plans, brokers and tasks do."""
    narrowing, found = options.narrowing, []
    for stream, partition in sorted({(row["stream"], row["partition"]) for row in rows}):
        there = [row for row in rows if (row["stream"], row["partition"]) == (stream, partition)]
        offsets = [row["offset"] for row in there]
        whole = Range(stream=stream, partition=partition, incarnation="i", start=min(offsets), end=max(offsets) + 1)
        left = narrowing.of(whole)
        if left is None:
            continue
        there = [row for row in there if left.start <= row["offset"] < left.end]
        wanted = Conditions(
            subjects=() if is_table else options.subjects,
            key=options.key,
            since_us=narrowing.since_us,
            until_us=narrowing.until_us,
        )
        mask = wanted.mask(batch(there)).to_pylist()
        there = [row for row, is_wanted in zip(there, mask, strict=True) if is_wanted]
        if is_table:
            there = [row for row in newest(there) if not options.subjects or row["subject"] in options.subjects]
        found += there
    return found


def newest(rows: list[Row]) -> list[Row]:
    last = {row["key"]: row for row in rows if row["key"] is not None}
    return [row for row in rows if last.get(row["key"]) is row and row["value"] is not None]


def batch(rows: list[Row]) -> pa.RecordBatch:
    columns = {name: pa.array([row.get(name) for row in rows], SCHEMA.field(name).type) for name in SCHEMA.names}
    return pa.record_batch(columns)


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("number", first_short(range(examples(20)), count=6))
def test_what_is_pushed_and_what_is_left_is_all_that_was_asked(number: int, is_table: bool) -> None:
    rng = random.Random(seeded(187) * 1000 + number)
    taken = 0
    for _ in range(50):
        rows = rows_of(rng)
        given = {"streams": "s,t", "mode": "table" if is_table else "log"}
        if rng.random() < 0.3:
            given["subjects"] = rng.choice(("a", "a.b,b.b")) if is_table else rng.choice(("a.*", "a.b,b.>", ">"))
        if rng.random() < 0.2 and not is_table:
            given["key"] = rng.choice(("k", ""))
        options = source_options(given, "batch")
        filters = [filter_of(rng) for _ in range(rng.randrange(1, 4))]
        narrowed, rest = pushed(options, filters)
        assert all(any(one is each for each in filters) for one in rest), "by reference"
        found = [row for row in read(narrowed, rows, is_table=is_table) if all(holds(one, row) for one in rest)]
        expected = [row for row in read(options, rows, is_table=is_table) if all(holds(one, row) for one in filters)]
        assert found == expected, (filters, rest)
        taken += len(filters) - len(rest)
    assert taken


OPTIONS = source_options({"stream": "s"}, "batch")
MANY = tuple(f"subject.{number}" for number in range(300))


@pytest.mark.parametrize(
    "one, changed",
    [
        (EqualTo(("stream",), "s"), {"streams": frozenset(["s"])}),
        (In(("stream",), ("s", None)), {"streams": frozenset(["s"])}),
        (In(("partition",), (1, 2)), {"numbers": frozenset([1, 2])}),
        (LessThan(("partition",), 2), {"partitions": Interval(stop=2)}),
        (EqualNullSafe(("offset",), 7), {"offsets": Interval(7, 8)}),
        (GreaterThan(("offset",), 7), {"offsets": Interval(8)}),
        (GreaterThanOrEqual(("OFFSET",), 7), {"offsets": Interval(7)}),
        (LessThanOrEqual(("offset",), 7), {"offsets": Interval(stop=8)}),
        (GreaterThan(("timestamp",), NOON), {"times": Interval(NOON_US + 1)}),
        (LessThan(("timestamp",), NOON), {"times": Interval(stop=NOON_US)}),
        (LessThanOrEqual(("timestamp",), NOON), {"times": Interval(stop=NOON_US + 1)}),
        (EqualTo(("timestamp",), NOON), {"times": Interval(NOON_US, NOON_US + 1)}),
        (IsNotNull(("offset",)), {}),
    ],
)
def test_these_are_applied_as_they_are(one: Filter, changed: dict[str, Any]) -> None:
    expected = replace(OPTIONS, narrowing=Narrowing(**changed))
    assert pushed(OPTIONS, [one]) == (expected, [])


def test_subjects_and_keys_are_the_options_of_these_names() -> None:
    key, subject = EqualTo(("key",), b"\xff"), In(("subject",), ("b", "a", "b"))
    assert pushed(OPTIONS, [key, IsNotNull(("key",))]) == (replace(OPTIONS, key=b"\xff"), [])
    assert pushed(OPTIONS, [subject]) == (replace(OPTIONS, subjects=("a", "b")), [])


@pytest.mark.parametrize(
    "one, changed",
    [
        (In(("offset",), (3, 9, 5)), {"offsets": Interval(3, 10)}),
        (In(("timestamp",), (NOON, at(9))), {"times": Interval(NOON_US, NOON_US + 10)}),
    ],
)
def test_what_is_applied_in_part_is_given_back(one: Filter, changed: dict[str, Any]) -> None:
    assert pushed(OPTIONS, [one]) == (replace(OPTIONS, narrowing=Narrowing(**changed)), [one])


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(("offset",), 7)),
        IsNull(("key",)),
        IsNotNull(("key",)),
        IsNotNull(("value",)),
        EqualTo(("value",), b"v"),
        EqualTo(("value", "offset"), 7),
        EqualNullSafe(("key",), None),
        EqualTo(("offset",), None),
        EqualTo(("offset",), True),
        GreaterThan(("offset",), 7.5),
        GreaterThan(("key",), b"k"),
        LessThan(("subject",), "k"),
        In(("key",), (b"a", b"b")),
        In(("subject",), ("a", "no subject")),
        In(("subject",), MANY),
        EqualTo(("subject",), "a.*"),
        EqualTo(("subject",), "a,b"),
        EqualTo(("key",), b"x" * 2_000),
        StringStartsWith(("subject",), "a"),
        GreaterThan(("timestamp",), datetime(1969, 1, 1, tzinfo=UTC)),
        LessThan(("timestamp",), datetime.max.replace(tzinfo=UTC)),
        LessThan(("timestamp",), datetime(2026, 1, 1)),
    ],
)
def test_these_stay_with_spark(one: Filter) -> None:
    assert pushed(OPTIONS, [one]) == (OPTIONS, [one])


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("partition",), 1),
        EqualTo(("subject",), "a"),
        GreaterThan(("offset",), 7),
        GreaterThan(("timestamp",), NOON),
    ],
)
def test_only_stream_and_key_go_below_a_table(one: Filter) -> None:
    options = source_options({"stream": "s", "mode": "table"}, "batch")
    assert pushed(options, [one]) == (options, [one])
    assert pushed(options, [EqualTo(("key",), b"k"), one])[0].key == b"k"


@given(
    bounds=st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 6)),
    span=st.tuples(st.integers(-1, 22), st.integers(-1, 22)),
    is_open=st.booleans(),
)
def test_what_a_range_grows_by_is_narrowed_too(
    bounds: tuple[int, int, int], span: tuple[int, int], is_open: bool
) -> None:
    start, length, more = bounds
    end = start + length
    narrowing = Narrowing(offsets=Interval(*span))
    whole = Range(stream="s", partition=0, incarnation="i", start=start, end=end, byte_count=99, is_open=is_open)
    planned = narrowing.of_all([whole])
    assert all(left.record_count or left.is_open for left in planned)
    assert all(left.start <= left.end and start <= left.start and left.end <= end for left in planned)
    now = Heads(incarnations={"s": "i"}, partitions={("s", 0): Head(0, end + more, 1)})
    opening = Opening(always=True, from_earliest=False, added={})
    found = [
        offset for left in narrowing.of_all(grown(planned, opening, now)) for offset in range(left.start, left.end)
    ]
    expected = range(start, end + more if is_open else end)
    assert found == [offset for offset in expected if span[0] <= offset < span[1]]


def test_nothing_is_left_of_a_time_that_cannot_be() -> None:
    options, rest = pushed(OPTIONS, [GreaterThan(("timestamp",), NOON), LessThan(("timestamp",), NOON)])
    assert (rest, options.narrowing.of(Range(stream="s", partition=0, incarnation="i", start=0, end=9))) == ([], None)


@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("imported, running", [(False, False), (True, False), (False, True)])
def test_only_a_worker_that_hands_filters_over_gets_a_reader_that_takes_them(
    monkeypatch: pytest.MonkeyPatch, wants: bool, imported: bool, running: bool
) -> None:
    monkeypatch.delitem(sys.modules, WORKER, raising=False)
    if imported:
        monkeypatch.setitem(sys.modules, WORKER, ModuleType(WORKER))
    name = WORKER if running else "pyspark.sql.worker.plan_data_source_read"
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name=name)))
    options = source_options({"stream": "s", "pushFilters": str(wants)}, "batch")
    reader = reader_of(options, ROW)
    assert isinstance(reader, PushingReader) == (wants and (imported or running))
    is_refused = reader.pushFilters.__func__ is not DataSourceReader.pushFilters  # type: ignore[attr-defined]
    assert is_refused == isinstance(reader, PushingReader), "as Spark looks at it"
