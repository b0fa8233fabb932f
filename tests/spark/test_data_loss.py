"""Records that a query still wanted are gone: each way is told apart, and survived where the user says so.

Method: a checkpoint is made, then the stream is deleted, re-created or expired. Every row of the users' table, without
Spark: test_offsets.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from broker.client.client import Client
from tests.spark.streams import Stream, places, run
from tests.support.processes import eventually


def test_a_recreated_stream_is_named_and_read_from_its_beginning_if_chosen(
    spark: SparkSession, client: Client, checkpoint: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    stream = Stream.create(client, "recreated", partitions=2)
    stream.append(10)
    run(stream.follow(spark), out, checkpoint)
    client.delete_stream("recreated")
    with pytest.raises(PySparkException, match="LIFTLOG_UNKNOWN_STREAM: stream 'recreated' was deleted"):
        run(stream.follow(spark), out, checkpoint)
    run(stream.follow(spark, failOnDataLoss="false"), out, checkpoint)

    again = Stream.create(client, "recreated", partitions=1)
    again.append(30)
    with pytest.raises(PySparkException, match="LIFTLOG_STALE_INCARNATION: stream 'recreated' was deleted and re-cr"):
        run(again.follow(spark), out, checkpoint)
    run(again.follow(spark, failOnDataLoss="false"), out, checkpoint)
    assert places(spark.read.parquet(out)) == sorted(stream.expected() + again.expected())
    again.append(5)
    run(again.follow(spark), out, checkpoint)
    assert places(spark.read.parquet(out)) == sorted(stream.expected() + again.expected())


def test_retention_past_the_start_is_named_and_skipped_if_chosen(
    spark: SparkSession, client: Client, checkpoint: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    stream = Stream.create(client, "outrun", partitions=1, segment_bytes=65536, retention_records=100)
    stream.append(50, size=2000)
    run(stream.follow(spark), out, checkpoint)
    for _ in range(4):
        stream.append(100, size=2000)
    eventually(lambda: client.describe("outrun").partitions[0].log_start_offset == 350, what="retention has run")
    says = r"LIFTLOG_RECORDS_EXPIRED: .*records 50 to 349 .*valid offsets are 350 to 450"
    with pytest.raises(PySparkException, match=says):
        run(stream.follow(spark), out, checkpoint)
    run(stream.follow(spark, failOnDataLoss="false"), out, checkpoint)
    assert places(spark.read.parquet(out)) == stream.expected()[:50] + stream.expected()[350:]
