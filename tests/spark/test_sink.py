"""df.write and df.writeStream: rows become records. Method: write with Spark, read back with client and Spark."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from broker.client.client import Client
from tests.spark.streams import Stream, wait_published


def write(frame: DataFrame, target: Stream, mode: str = "append", **options: Any) -> None:
    given = {"brokers": target.address, "stream": target.name, **options}
    frame.write.format("liftlog").mode(mode).options(**given).save()


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).select(F.col("id").cast("string").alias("value"))


def values(stream: Stream) -> list[int]:
    return sorted(int(value) for value in stream.client.read(stream.name).to_table().column("value").to_pylist())


def test_rows_come_back_with_all_their_columns(spark: SparkSession, stream: Stream) -> None:
    headers = F.array(F.struct(F.lit("h").alias("key"), F.col("id").cast("string").cast("binary").alias("value")))
    frame = spark.range(100).select(
        F.concat(F.lit("key-"), F.col("id")).alias("key"),
        F.when(F.col("id") != 7, F.to_json(F.struct("id"))).alias("value"),
        F.when(F.col("id") % 2 == 0, headers).alias("headers"),
        F.lit("orders.from.spark").alias("subject"),
        F.when(F.col("id") >= 90, F.lit(2)).cast("int").alias("partition"),
    )
    write(frame, stream)
    read = stream.read(spark)
    written = frame.withColumns({name: F.col(name).cast("binary") for name in ("key", "value")}).drop("partition")
    assert_df_equality(read.select(written.columns), written, ignore_row_order=True, ignore_nullable=True)
    partitions = {row.key.decode(): row.partition for row in read.collect()}
    for i in range(100):
        assert partitions[key := f"key-{i}"] == (2 if i >= 90 else crc32(key.encode()) % 3)


def test_without_keys_every_row_is_written_and_keeps_its_order(spark: SparkSession, stream: Stream) -> None:
    write(numbers(spark, 25_000).coalesce(1), stream)
    assert values(stream) == list(range(25_000))
    for partition in range(3):
        table = stream.client.read(stream.name, partitions=[partition]).to_table()
        found = [int(value) for value in table.column("value").to_pylist()]
        assert found == sorted(found)


def test_large_rows_are_written_in_several_appends(spark: SparkSession, client: Client) -> None:
    stream = Stream.create(client, "large-rows", partitions=1)
    frame = spark.range(60).select(F.expr("repeat('x', 1000000)").alias("value"))
    write(frame.coalesce(1), stream)
    assert stream.read(spark).selectExpr("sum(length(value)) AS n").first() == Row(n=60_000_000)


def test_nothing_to_write_is_fine(spark: SparkSession, stream: Stream) -> None:
    write(numbers(spark, 0), stream)
    assert stream.read(spark).count() == 0


def test_partitions_added_and_streams_made_anew_are_seen_by_the_next_write(
    spark: SparkSession, stream: Stream, client: Client
) -> None:
    """Workers serve one write after the other: none may go by how many partitions there were before."""
    write(numbers(spark, 6), stream)
    client.add_partitions(stream.name, 5)
    write(spark.range(2).selectExpr("'x' AS value", "4 AS partition"), stream)
    assert stream.read(spark).where("partition = 4").count() == 2
    client.delete_stream(stream.name)
    client.create_stream(stream.name, partitions=1)
    write(spark.range(30).selectExpr("'x' AS value", "string(id) AS key"), stream)
    assert stream.read(spark).count() == 30


def test_a_stream_is_piped_into_another(spark: SparkSession, stream: Stream, client: Client, checkpoint: str) -> None:
    """As in the quickstart: source and sink in one query, in several batches; save() takes the stream as its path."""
    target = Stream.create(client, "piped", partitions=2)
    stream.append(40)
    frame = stream.follow(spark, maxOffsetsPerTrigger=50, consumer="pipe").select("key", "value")
    writer = frame.writeStream.format("liftlog").option("brokers", target.address).queryName("pipe")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(target.name)
    assert query.awaitTermination(120)
    written = target.read(spark).select("key", "value")
    assert_df_equality(written, stream.read(spark).select("key", "value"), ignore_row_order=True)
    assert written.count() == len(stream.expected())
    wait_published(stream, "pipe")


@pytest.mark.parametrize("mode", ["overwrite"])
def test_overwriting_is_refused(spark: SparkSession, stream: Stream, mode: str) -> None:
    stream.append(1)
    with pytest.raises(PySparkException, match="LIFTLOG_MODE: a stream is appended to, never overwritten"):
        write(numbers(spark, 1), stream, mode=mode)
    assert stream.read(spark).count() == 3


def test_complete_mode_is_refused(spark: SparkSession, stream: Stream, checkpoint: str) -> None:
    stream.append(1)
    counts = stream.follow(spark).groupBy("partition").count().select(F.col("count").cast("string").alias("value"))
    query = (
        counts.writeStream.format("liftlog")
        .options(brokers=stream.address, stream=stream.name, checkpointLocation=checkpoint)
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException, match="LIFTLOG_MODE: output mode complete"):
        query.awaitTermination(120)
    assert stream.read(spark).count() == 3


@pytest.mark.parametrize(
    "columns, options, says",
    [
        (["id"], {}, "LIFTLOG_INVALID_RECORDS: column 'id' does not belong to a record"),
        (["id AS value"], {}, "LIFTLOG_INVALID_RECORDS: column 'value' is bigint, it must be binary or string"),
        (["'x' AS key"], {}, "LIFTLOG_INVALID_RECORDS: a record needs a column value"),
        (
            ["'x' AS value", "5 AS partition"],
            {},
            "LIFTLOG_UNKNOWN_PARTITION: row 0 of task [0-9]+: column partition: 5",
        ),
        (["'x' AS value"], {"sinkId": "s"}, "LIFTLOG_UNKNOWN_SETTING: option 'sinkId' means something for writeStream"),
        (["'x' AS value"], {"stream": "no-such-stream"}, "LIFTLOG_UNKNOWN_STREAM"),
        (["'x' AS value"], {"stream": "__offsets"}, "LIFTLOG_INVALID_NAME"),
        (["repeat('x', 9000000) AS value"], {}, "LIFTLOG_RECORD_TOO_LARGE"),
    ],
)
def test_what_cannot_be_written_is_an_error_with_its_code(
    spark: SparkSession, stream: Stream, columns: list[str], options: dict[str, str], says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        write(spark.range(1).selectExpr(*columns), stream, **options)
    assert stream.read(spark).count() == 0


def test_a_mode_that_spark_needs_is_asked_for_by_spark(spark: SparkSession, stream: Stream) -> None:
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        write(numbers(spark, 1), stream, mode="error")
