"""spark.read: a stream as a table. Method: append known records over HTTP, read them back through Spark."""

from __future__ import annotations

import re
import urllib.request
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from broker.api.schema import HEADERS_TYPE
from broker.client.client import Client
from spark_liftlog.schema import ROW
from tests.spark.streams import Stream, places
from tests.support.processes import eventually


def test_every_record_is_there_once_under_its_partition_and_offset(spark: SparkSession, stream: Stream) -> None:
    stream.append(1000)
    stream.append(7, partitions=[1])
    assert places(stream.read(spark)) == stream.expected()


def test_all_columns_come_as_they_were_published(spark: SparkSession, stream: Stream) -> None:
    records = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([b"\x00\xff", None], pa.binary()),
            "subject": pa.array(["orders.1", "orders.é"], pa.string()),
            "headers": pa.array([[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None], HEADERS_TYPE),
        }
    )
    before = datetime.now(UTC) - timedelta(seconds=1)
    stream.client.append(stream.name, 2, records.slice(0, 1))
    stream.client.append(
        stream.name, 2, pa.RecordBatch.from_pydict({"key": [b"gone"], "value": pa.nulls(1, pa.binary())})
    )
    frame = stream.read(spark)
    assert frame.schema == ROW
    first, second = sorted(frame.collect(), key=lambda row: row.offset)
    assert (first.key, first.value, first.subject) == (b"k", b"\x00\xff", "orders.1")
    assert (first.stream, first.partition, first.offset) == (stream.name, 2, 0)
    assert first.headers == [Row(key="a", value=b"1"), Row(key="a", value=None)]
    assert before.replace(tzinfo=None) <= first.timestamp <= datetime.now()
    assert (second.key, second.value, second.headers) == (b"gone", None, None)


def test_the_path_of_load_names_the_stream_and_sql_can_read_it(spark: SparkSession, stream: Stream) -> None:
    stream.append(5)
    assert spark.read.format("liftlog").option("brokers", stream.address).load(stream.name).count() == 15
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING liftlog OPTIONS (stream '{stream.name}', brokers '{stream.address}')"
    )
    assert spark.sql("SELECT max(offset) AS last FROM v WHERE partition = 1").first() == Row(last=4)


def test_a_table_in_sql_is_made_and_read_with_options(spark: SparkSession, stream: Stream) -> None:
    """Spark forgets a table's OPTIONS: a read names them again."""
    stream.append(5)
    options = f"stream = '{stream.name}', brokers = '{stream.address}'"
    spark.sql(f"CREATE TABLE a_table USING liftlog OPTIONS ({options}) COMMENT 'a stream' TBLPROPERTIES ('team' = 'x')")
    try:
        assert spark.sql(f"SELECT count(*) AS n FROM a_table WITH ({options})").first() == Row(n=15)
        with pytest.raises(PySparkException, match=r"LIFTLOG_INVALID_SETTING: no stream is named.*FROM t WITH"):
            spark.sql("SELECT * FROM a_table").collect()
    finally:
        spark.sql("DROP TABLE a_table")


def test_a_schema_is_a_projection(spark: SparkSession, stream: Stream) -> None:
    stream.append(3, partitions=[0])
    frame = stream.read(spark.newSession(), startingOffsets="earliest")
    projected = (
        spark.read.format("liftlog")
        .schema("offset BIGINT NOT NULL, stream STRING, VALUE BINARY")
        .options(brokers=stream.address, stream=stream.name)
        .load()
    )
    assert projected.columns == ["offset", "stream", "VALUE"]
    rows = sorted(projected.collect())
    assert [(row.offset, row.stream, row.VALUE.strip()) for row in rows] == [
        (i, stream.name, f"0:{i}".encode()) for i in range(3)
    ]
    assert frame.count() == 3


@pytest.mark.parametrize(
    "schema",
    [
        "value STRING",
        "topic STRING",
        "key BINARY NOT NULL",
        "headers ARRAY<STRUCT<key: STRING NOT NULL, value: BINARY>>",
    ],
)
def test_a_schema_that_records_do_not_have_is_refused(spark: SparkSession, stream: Stream, schema: str) -> None:
    frame = spark.read.format("liftlog").schema(schema).options(brokers=stream.address, stream=stream.name).load()
    with pytest.raises(PySparkException, match="LIFTLOG_INVALID_SETTING: column"):
        frame.count()


def sent_bytes(stream: Stream) -> float:
    with urllib.request.urlopen(f"http://{stream.address.split(',')[0]}/metrics") as answer:
        found = re.search(r"^liftlog_http_records_sent_bytes_total (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_columns_and_subjects_are_chosen_by_option(spark: SparkSession, client: Client) -> None:
    """A wildcard stands for one token, `>` for the rest; the subject need not be among the columns."""
    stream = Stream.create(client, "by-subject", partitions=1)
    subjects = ["a.eu", "a.us", "a.eu.1", "b.eu", "a", "aXeu"] * 50
    rows = pa.RecordBatch.from_pydict({"value": [str(n).encode() for n in range(300)], "subject": subjects})
    client.append(stream.name, 0, rows)

    def seen(patterns: str, columns: str = "offset") -> list[str]:
        frame = stream.read(spark, subjects=patterns, columns=columns)
        assert frame.columns == columns.split(",")
        return [subjects[row.offset] for row in frame.collect()]

    assert seen("a.*") == [s for s in subjects if s in ("a.eu", "a.us")]
    assert seen("a.>", "subject,offset") == [s for s in subjects if s in ("a.eu", "a.us", "a.eu.1")]
    assert seen("*.eu, a", "offset,partition") == [s for s in subjects if s in ("a.eu", "b.eu", "a")]
    assert seen(">") == subjects
    assert seen("none") == []
    assert stream.read(spark, subjects="b.*").count() == 50
    before = sent_bytes(stream)
    assert seen("none") == []
    assert sent_bytes(stream) == before, "brokers leave out what is not wanted"


def test_rows_of_one_key_are_chosen_by_option(spark: SparkSession, client: Client) -> None:
    """The key need not be among the columns; a record without a key has none, and an empty key is one."""
    stream = Stream.create(client, "by-key", partitions=1)
    keys = ["a", None, "é", "", "aa", "A"] * 50
    subjects = ["x", "x", "y"] * 100
    raw = [None if key is None else key.encode() for key in keys]
    rows = pa.RecordBatch.from_pydict({"value": [b"v"] * 300, "key": raw, "subject": subjects})
    client.append(stream.name, 0, rows)

    for key in ("a", "é", "", "none"):
        wanted = [offset for offset, each in enumerate(keys) if each == key]
        assert [row.offset for row in stream.read(spark, key=key, columns="offset").collect()] == wanted
        frame = stream.read(spark, key=key, subjects="y", columns="offset")
        assert [row.offset for row in frame.collect()] == [offset for offset in wanted if subjects[offset] == "y"]
        before = sent_bytes(stream)
        assert stream.read(spark, key=key).count() == len(wanted)
        assert (sent_bytes(stream) > before) == bool(wanted), "brokers leave out what is not wanted"
    with pytest.raises(PySparkException, match="LIFTLOG_INVALID_SETTING: option columns: 'topic' is none of"):
        stream.read(spark, columns="offset,topic").count()
    both = spark.read.format("liftlog").options(brokers=stream.address, stream=stream.name, columns="offset")
    with pytest.raises(PySparkException, match=r"option columns='offset': \.schema"):
        both.schema("value BINARY").load().count()


def test_small_partitions_share_a_task_and_empty_ones_have_none(spark: SparkSession, client: Client) -> None:
    stream = Stream.create(client, "packing", partitions=12)
    stream.append(20, partitions=range(10))
    assert stream.read(spark).rdd.getNumPartitions() == 1
    assert places(stream.read(spark)) == stream.expected()
    split = stream.read(spark, minPartitions=5, maxPartitions=6)
    assert 5 <= split.rdd.getNumPartitions() <= 6
    assert places(split) == stream.expected()


def test_a_long_partition_is_split_among_tasks(spark: SparkSession, client: Client) -> None:
    stream = Stream.create(client, "splitting", partitions=1)
    for _ in range(10):
        stream.append(1000, size=8192)
    frame = stream.read(spark, maxPartitions=3)
    assert frame.rdd.getNumPartitions() == 3
    assert places(frame) == stream.expected()


def test_an_empty_stream_has_no_rows(spark: SparkSession, stream: Stream) -> None:
    assert stream.read(spark).count() == 0


def test_offsets_in_json_bound_the_read(spark: SparkSession, stream: Stream) -> None:
    stream.append(10)
    frame = stream.read(
        spark,
        startingOffsets=f'{{"{stream.name}": {{"0": 3, "1": -2, "2": 10}}}}',
        endingOffsets=f'{{"{stream.name}": {{"0": 5, "1": 1, "2": -1}}}}',
    )
    assert places(frame) == [(0, 3), (0, 4), (1, 0)]


@pytest.mark.parametrize(
    "options, says",
    [
        ({"startingOffset": "earliest"}, "LIFTLOG_UNKNOWN_SETTING: the liftlog source has no option 'startingoffset'"),
        ({"subscribe": "x"}, "LIFTLOG_UNKNOWN_SETTING"),
        ({"maxOffsetsPerTrigger": "5"}, r"LIFTLOG_UNKNOWN_SETTING: option 'maxOffsetsPerTrigger' means something for"),
        ({"batchRows": "0"}, "LIFTLOG_INVALID_SETTING: option batchRows='0': must be a whole number from 1"),
        ({"stream": "no-such-stream"}, "LIFTLOG_UNKNOWN_STREAM"),
        ({"startingOffsets": '{"STREAM": {"0": 1}}'}, "LIFTLOG_INVALID_SETTING: .*partition 1 is not named"),
        ({"startingOffsets": '{"STREAM": {"0": 0, "1": 0, "2": 0, "3": 0}}'}, "partition 3 is not one that is read"),
        (
            {"startingOffsets": '{"STREAM": {"0": 0, "1": 0, "2": 99}}'},
            "LIFTLOG_OFFSET_OUT_OF_RANGE: option startingOffsets: .*valid offsets are 0 to 2",
        ),
    ],
)
def test_a_bad_option_is_an_error_with_its_code(
    spark: SparkSession, stream: Stream, options: dict[str, str], says: str
) -> None:
    stream.append(2)
    given = {key: value.replace("STREAM", stream.name) for key, value in options.items()}
    with pytest.raises(PySparkException, match=says):
        stream.read(spark, **given).count()


def test_what_retention_deleted_is_an_error_or_left_out(spark: SparkSession, client: Client) -> None:
    stream = Stream.create(client, "expired", partitions=1, segment_bytes=65536, retention_records=100)
    for _ in range(5):
        stream.append(100, size=2000)
    head = 400
    eventually(lambda: client.describe(stream.name).partitions[0].log_start_offset == head, what="retention has run")
    where = f'{{"{stream.name}": {{"0": 0}}}}'
    with pytest.raises(PySparkException, match=f"LIFTLOG_OFFSET_OUT_OF_RANGE: .*valid offsets are {head} to 500"):
        stream.read(spark, startingOffsets=where).count()
    assert places(stream.read(spark, startingOffsets=where, failOnDataLoss="false")) == stream.expected()[head:]


def test_large_records_do_not_break_a_batch(spark: SparkSession, stream: Stream) -> None:
    stream.append(12, partitions=[0, 1], size=2 << 20)
    lengths = stream.read(spark).selectExpr("length(value) AS n").collect()
    assert [row.n for row in lengths] == [2 << 20] * 24


def test_a_static_side_of_a_join_sees_what_is_appended_meanwhile(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str
) -> None:
    """Also partitions that were added, and after a trim. With resolve=plan it stays what it was: Spark's cache."""
    names = Stream.create(client, "names", partitions=1)

    def name(number: int, partition: int = 0) -> None:
        rows = [{"key": str(number).encode(), "value": b"name"}]
        client.append(names.name, partition, rows)

    def static(resolve: str) -> DataFrame:
        frame = names.read(spark, resolve=resolve).selectExpr("string(key) AS id", "string(value) AS name")
        return frame.withColumnRenamed("name", resolve)

    rows: dict[str, tuple[str | None, str | None]] = {}

    def collect(batch: DataFrame, _: int) -> None:
        rows.update({row.id: (row.auto, row.plan) for row in batch.collect()})

    name(0)
    events = stream.follow(spark).selectExpr("trim(string(value)) AS id").selectExpr("split(id, ':')[1] AS id")
    joined = events.join(static("auto"), "id", "left").join(static("plan"), "id", "left")
    query = joined.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint).start()
    try:
        stream.append(1, partitions=[0])
        eventually(lambda: "0" in rows, timeout_s=120, what="the first batch")
        name(1)
        client.add_partitions(names.name, 2)
        name(2, partition=1)
        stream.append(2, partitions=[0])
        eventually(lambda: {"1", "2"} <= rows.keys(), timeout_s=120, what="the next batch")
    finally:
        query.stop()
    assert rows == {"0": ("name", "name"), "1": ("name", None), "2": ("name", None)}


def test_a_view_that_resolves_when_it_is_read_sees_what_is_appended(spark: SparkSession, stream: Stream) -> None:
    stream.append(2)
    views = {resolve: stream.read(spark, resolve=resolve) for resolve in ("auto", "read")}
    for name, frame in views.items():
        frame.createOrReplaceTempView(name)
        assert spark.sql(f"SELECT count(*) AS n FROM {name}").first() == Row(n=6)
    stream.append(1)
    stream.client.trim(stream.name, before=1, partitions=[0])
    assert places(spark.table("read")) == stream.expected()[1:]
    with pytest.raises(PySparkException, match=r"LIFTLOG_RECORDS_EXPIRED: .*records 0 to 0"):
        spark.table("auto").collect()
