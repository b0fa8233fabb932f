"""Rows: projection, types, joining. Goal: C1 and C2 of schema.py; method: compare with Spark's own Arrow schema."""

from __future__ import annotations

import itertools
import random

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from broker.api.errors import InvalidSetting
from spark_liftlog.schema import HEADERS, ROW, Projection, columns_of, joined
from spark_liftlog.writing.gathering import BYTES_GATHERED, ROWS_GATHERED, gathered
from tests.support.rows import random_rows


@given(st.permutations([field.name for field in ROW]), st.integers(1, 8), st.integers(0, 2**32))
def test_any_projection_gives_exactly_sparks_arrow_schema(names: list[str], count: int, seed: int) -> None:
    schema = StructType([ROW[name] for name in names[:count]])
    records = random_rows(random.Random(seed), 7, first_offset=40)
    rows = Projection(schema).shape("orders", 3).rows(records)
    assert to_arrow_schema(schema, timezone="UTC").equals(rows.schema)
    rows.validate(full=True)
    for name in names[:count]:
        expected = {"stream": ["orders"] * 7, "partition": [3] * 7}.get(name)
        found = rows.column(name).to_pylist()
        assert found == (records.column(name).to_pylist() if expected is None else expected)


def test_batches_of_different_lengths_get_constants_of_their_length() -> None:
    shape = Projection(StructType([ROW["stream"], ROW["partition"]])).shape("s", 1)
    records = random_rows(random.Random(1), 10)
    for count in (3, 10, 1):
        rows = shape.rows(records.slice(0, count))
        assert (rows.num_rows, set(rows.column("stream").to_pylist())) == (count, {"s"})


def test_only_what_is_wanted_is_taken_of_a_record() -> None:
    assert Projection(ROW).shape("s", 0).stored_columns == [
        "key",
        "value",
        "offset",
        "timestamp",
        "subject",
        "headers",
    ]
    assert Projection(StructType([ROW["stream"]])).shape("s", 0).stored_columns == []


def test_the_users_spelling_is_kept() -> None:
    projection = Projection(StructType([StructField("VALUE", BinaryType())]))
    assert projection.shape("s", 0).rows(random_rows(random.Random(2), 3)).schema.names == ["VALUE"]


def test_columns_that_are_never_null_may_be_declared_so() -> None:
    names = ("stream", "partition", "offset", "timestamp", "subject")
    schema = StructType([StructField(name, ROW[name].dataType, nullable=False) for name in names])
    rows = Projection(schema).shape("s", 0).rows(random_rows(random.Random(3), 3))
    assert to_arrow_schema(schema, timezone="UTC").equals(rows.schema)


@pytest.mark.parametrize(
    "field, says",
    [
        (StructField("topic", StringType()), "a liftlog row has the columns key, value"),
        (StructField("value", StringType()), "declared as string, it is binary"),
        (StructField("offset", IntegerType()), "declared as int, it is bigint"),
        (StructField("partition", LongType()), "declared as bigint, it is int"),
        (StructField("timestamp", TimestampNTZType()), "it is timestamp"),
        (StructField("value", BinaryType(), nullable=False), "declared NOT NULL"),
        (StructField("headers", HEADERS, nullable=False), "declared NOT NULL"),
    ],
)
def test_a_column_that_a_record_cannot_give_is_refused_early(field: StructField, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says) as caught:
        columns_of(StructType([field]))
    assert repr(field.name) in str(caught.value)


def test_an_empty_projection_and_a_repeated_column_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="empty"):
        columns_of(StructType([]))
    with pytest.raises(InvalidSetting, match="twice"):
        columns_of(StructType([StructField("offset", LongType()), StructField("OFFSET", LongType())]))


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 40))
def test_joined_batches_are_the_same_rows_in_fewer_batches(sizes: list[int], rows_max: int) -> None:
    first, batches = 0, []
    for size in sizes:
        batches.append(pa.RecordBatch.from_pydict({"n": pa.array(range(first, first + size), pa.int64())}))
        first += size
    out = list(joined(batches, rows_max=rows_max))
    assert [n for batch in out for n in batch.column(0).to_pylist()] == list(range(first))
    assert all(0 < batch.num_rows <= rows_max for batch in out)
    assert all(a.num_rows + b.num_rows > rows_max or b.num_rows == rows_max for a, b in itertools.pairwise(out))


def test_joining_stops_at_its_bytes() -> None:
    big = pa.RecordBatch.from_pydict({"v": [b"x" * (20 << 20)]})
    assert [batch.num_rows for batch in joined([big, big, big], rows_max=1000)] == [1, 1, 1]


@example([(1, 1)])
@given(st.lists(st.tuples(st.integers(0, 9000), st.sampled_from([1, 700, 300_000])), max_size=12))
def test_a_task_gathers_its_rows_in_their_order(sizes: list[tuple[int, int]]) -> None:
    """As few batches as fit into the bounds; one that is larger is passed on as it is."""
    given, first = [], 0
    for rows, width in sizes:
        rows = min(rows, 6_000_000 // width)
        text = pa.repeat(pa.scalar(bytes(width)), rows)
        given.append(pa.RecordBatch.from_pydict({"n": pa.array(range(first, first + rows)), "value": text}))
        first += rows
    found = list(gathered(given))
    assert [n for batch in found for n in batch.column("n").to_pylist()] == list(range(first))
    for batch in found:
        assert batch.num_rows
        if not any(batch is one for one in given):
            assert batch.num_rows <= ROWS_GATHERED
            assert batch.nbytes <= BYTES_GATHERED
    for one, next_one in itertools.pairwise(found):
        held = one.num_rows + next_one.num_rows, one.nbytes + next_one.nbytes
        assert held[0] > 9000 or held[1] > BYTES_GATHERED // 2, "two that would have fitted into one"
