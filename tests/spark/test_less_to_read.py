"""Conditions and columns that go to the brokers: the same rows, and fewer bytes.

Method: the same query with and without, on the same stream; the broker's own count of the bytes that it has sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from broker.client.client import Client
from tests.spark.streams import Stream, run
from tests.spark.test_batch_read import sent_bytes

SWITCH = "spark.sql.python.filterPushdown.enabled"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BATCHES, ROWS = 6, 50
COUNT = 3 * BATCHES * ROWS


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with Spark's switch on."""
    spark.conf.set(SWITCH, "true")
    yield spark
    spark.conf.unset(SWITCH)


@pytest.fixture(scope="module")
def events(client: Client) -> Stream:
    """Three partitions with six batches each. A second of time for each record, a subject and a key for each batch."""
    stream = Stream.create(client, "events")
    for partition in range(3):
        for batch in range(BATCHES):
            times = [NOON + timedelta(seconds=batch * ROWS + i) for i in range(ROWS)]
            rows = {
                "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
                "subject": pa.array([f"of.{batch}"] * ROWS),
                "key": pa.array([None if i == 0 else b"%d" % batch for i in range(ROWS)], pa.binary()),
                "value": pa.array([b"%d" % i + bytes(1000) for i in range(ROWS)], pa.binary()),
            }
            client.append(stream.name, partition, pa.record_batch(rows))
    return stream


def seen(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


@pytest.mark.parametrize(
    "where, expected, share",
    [
        ("offset >= 250", 150, 0.2),
        ("offset BETWEEN 100 AND 149 AND partition <> 1", 100, 0.25),
        ("partition = 1 AND offset < 50", 50, 0.1),
        ("partition IN (0, 2) AND offset = 7", 2, 0.15),
        ("subject = 'of.3'", 150, 0.2),
        ("subject IN ('of.3', 'of.4', NULL) AND offset >= 200", 150, 0.2),
        ("key = CAST('2' AS BINARY)", 147, 0.2),
        ("key <=> CAST('2' AS BINARY) AND subject = 'of.3'", 0, 0),
        ("timestamp >= TIMESTAMP '2026-01-01 12:04:10'", 150, 0.2),
        ("timestamp < TIMESTAMP '2026-01-01 12:00:50' AND value IS NOT NULL", 150, 0.2),
        ("timestamp = TIMESTAMP '2026-01-01 12:00:50'", 3, 0.02),
        ("stream = 'another'", 0, 0),
        ("stream = 'events' AND offset IN (3, 5)", 6, 0.2),
        ("key IS NULL", 18, None),
        ("offset % 50 = 7 OR key IS NULL", 36, None),
    ],
)
def test_the_same_rows_of_fewer_bytes(
    spark: SparkSession, events: Stream, where: str, expected: int, share: float | None
) -> None:
    """`share`: so much of the bytes at most; None: nothing of it can be pushed."""
    assert spark.conf.get(SWITCH) == "false"
    before = sent_bytes(events)
    rows = seen(events.read(spark, pushFilters="true").where(where))
    every = sent_bytes(events) - before
    assert len(rows) == expected
    spark.conf.set(SWITCH, "true")
    try:
        before = sent_bytes(events)
        assert seen(events.read(spark, pushFilters="true").where(where)) == rows
        sent = sent_bytes(events) - before
    finally:
        spark.conf.unset(SWITCH)
    assert every > COUNT * 1000
    assert sent == every if share is None else sent <= share * every


def test_options_and_conditions_are_joined(pushing: SparkSession, events: Stream) -> None:
    def count(where: str, **options: str) -> int:
        return len(seen(events.read(pushing, pushFilters="true", **options).where(where)))

    assert (
        count("offset < 60", partitions='{"events": [1]}', startingTimestamp=str(int(NOON.timestamp() + 40) * 1000))
        == 20
    )
    assert count("subject IN ('of.1', 'of.2')", subjects="*.2,*.3") == 150
    assert count("key = CAST('3' AS BINARY)", subjects="of.2") == 0
    assert count("key = CAST('3' AS BINARY)", key="2") == 0
    assert count("key = CAST('3' AS BINARY)", key="3", columns="key,partition,offset") == 147


def test_a_frame_that_pushes_nothing_may_be_used_again(pushing: SparkSession, events: Stream) -> None:
    frame = events.read(pushing)
    assert frame.where("offset < 5").count() == 15
    assert frame.count() == COUNT
    assert frame.where("offset < 5").union(frame.where("offset >= 295")).count() == 30


def test_spark_keeps_with_a_frame_what_was_pushed_last(pushing: SparkSession, events: Stream) -> None:
    """Why pushing has to be asked for. If this fails, Spark has mended it: see decision record 187."""
    frame = events.read(pushing, pushFilters="true")
    assert frame.where("offset < 5").count() == 15
    assert frame.count() == 15, "all of them, where Spark plans each query"
    assert events.read(pushing, pushFilters="true").count() == COUNT


def test_sql_loads_a_table_anew_in_each_query(pushing: SparkSession, events: Stream) -> None:
    options = f"stream = 'events', brokers = '{events.address}'"
    pushing.sql(f"CREATE TABLE of_events USING liftlog OPTIONS ({options})")
    try:
        table = f"SELECT count(*) AS n FROM of_events WITH ({options}, pushFilters = 'true')"
        before = sent_bytes(events)
        assert pushing.sql(f"{table} WHERE offset < 5").first() == Row(n=15)
        assert sent_bytes(events) - before < COUNT * 1000 / 5
        assert pushing.sql(table).first() == Row(n=COUNT)
        assert pushing.sql(f"{table} WHERE subject = 'of.1'").first() == Row(n=150)
    finally:
        pushing.sql("DROP TABLE of_events")


def test_a_frame_that_is_read_again_grows_as_it_does_without(pushing: SparkSession, stream: Stream) -> None:
    """`collect()` keeps the plan of its frame: it is the tasks that find what was appended and added."""
    stream.append(10)
    offsets = stream.read(pushing, pushFilters="true", resolve="read").where("offset BETWEEN 8 AND 12")
    partitions = stream.read(pushing, pushFilters="true", resolve="read").where("offset >= 12 AND partition IN (1, 3)")

    def places(frame: DataFrame) -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in frame.collect())

    assert places(offsets) == [(p, offset) for p in range(3) for offset in (8, 9)]
    assert places(partitions) == []
    stream.client.add_partitions(stream.name, 4)
    stream.counts.append(0)
    stream.append(14)
    assert places(offsets) == [*((p, o) for p in range(3) for o in range(8, 13)), *((3, o) for o in range(8, 13))]
    assert places(partitions) == [*((1, o) for o in range(12, 24)), (3, 12), (3, 13)]


def test_the_newest_row_of_a_key_is_the_newest_of_all(pushing: SparkSession, client: Client) -> None:
    """A condition on another column than the key chooses among the rows of a table, never among those of the log."""
    stream = Stream.create(client, "table-of-events", partitions=1, partition_by="key", cleanup="compact")
    rows = {
        "key": [b"a", b"b", b"a", b"c", b"b"],
        "value": [b"1", b"1", b"2", b"1", None],
        "subject": ["x"] * 2 + ["y"] * 3,
    }
    client.append(stream.name, 0, pa.RecordBatch.from_pydict(rows))

    def found(where: str) -> list[tuple[bytes, bytes]]:
        frame = stream.read(pushing, mode="table", pushFilters="true").where(where)
        return sorted((row.key, row.value) for row in frame.select("key", "value").collect())

    assert found("key = CAST('a' AS BINARY)") == [(b"a", b"2")]
    assert found("key = CAST('b' AS BINARY)") == []
    assert found("subject = 'x'") == []
    assert found("offset < 2") == []
    assert found("offset >= 2 AND partition = 0 AND stream = 'table-of-events'") == [(b"a", b"2"), (b"c", b"1")]
    before = sent_bytes(stream)
    assert found("key = CAST('none' AS BINARY)") == []
    assert sent_bytes(stream) == before


def test_the_static_side_of_a_stream_may_push(
    pushing: SparkSession, client: Client, stream: Stream, tmp_path: Path
) -> None:
    names = Stream.create(client, "pushed-names", partitions=1)
    client.append(names.name, 0, pa.RecordBatch.from_pydict({"value": [b"0", b"1", b"2"], "subject": ["n", "m", "n"]}))
    static = (
        names.read(pushing, pushFilters="true")
        .where("subject = 'n'")
        .selectExpr("cast(cast(value AS string) AS int) AS partition")
    )
    stream.append(4)
    joined = stream.follow(pushing).join(static, "partition").select("partition", "offset")
    run(joined, str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    rows = pushing.read.parquet(str(tmp_path / "out")).collect()
    assert Counter(rows) == Counter(Row(partition=p, offset=o) for p in (0, 2) for o in range(4))


def test_few_columns_are_few_bytes(spark: SparkSession, events: Stream, tmp_path: Path) -> None:
    """`.schema(…)` and the option `columns`, in batch reads and in streams, with and without conditions."""
    before = sent_bytes(events)
    every = events.read(spark).count()
    bytes_of_all = sent_bytes(events) - before
    assert every == COUNT
    reader = spark.read.format("liftlog").options(brokers=events.address, stream=events.name)
    follower = spark.readStream.format("liftlog").options(brokers=events.address, stream=events.name)
    schema = "offset BIGINT, timestamp TIMESTAMP"
    for frame in (
        reader.schema(schema).load(),
        events.read(spark, columns="offset,timestamp"),
        events.read(spark, columns="offset,timestamp", subjects="of.*"),
    ):
        before = sent_bytes(events)
        rows = frame.select("offset", "timestamp").collect()
        assert sent_bytes(events) - before < bytes_of_all / 15
        assert Counter(row.offset for row in rows) == dict.fromkeys(range(BATCHES * ROWS), 3)
        assert all(row.timestamp == (NOON + timedelta(seconds=row.offset)).replace(tzinfo=None) for row in rows)
    before = sent_bytes(events)
    stream = follower.schema(schema).option("startingOffsets", "earliest").load()
    run(stream, str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    assert sent_bytes(events) - before < bytes_of_all / 15
    assert spark.read.parquet(str(tmp_path / "out")).count() == COUNT
