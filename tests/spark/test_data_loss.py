"""Records that a query still wanted are gone: each way is told apart, and survived where the user says so.

Method: a checkpoint is made, then the stream is deleted, re-created, expired, or its log set back to a
copy from before, as a disk that lost its tail would do.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from broker.client.client import Client, connect
from tests.spark.streams import Stream, places, run
from tests.support.processes import BrokerProcess, eventually


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


def test_a_truncated_log_is_named_and_left_at_the_parting_if_chosen(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    data, copy = tmp_path / "broker" / "data", tmp_path / "copy"
    broker = BrokerProcess(tmp_path / "broker", None).start()
    try:
        with connect(broker.address) as client:
            stream = Stream.create(client, "truncated", partitions=1)
            stream.append(100)
            broker.stop()
            shutil.copytree(data, copy)
            broker.start()
            stream.append(50)
            read_before = stream.expected()
            run(stream.follow(spark), out, checkpoint)
            broker.stop()
            shutil.rmtree(data)
            shutil.copytree(copy, data)
            broker.start()
            broker.stop()  # another start, another leader epoch than the one that wrote what is lost
            broker.start()
            stream.counts = [100]

            with pytest.raises(PySparkException, match=r"LIFTLOG_LOG_TRUNCATED: .*ends at 100.* read up to 150"):
                run(stream.follow(spark), out, checkpoint)
            stream.append(80)
            with pytest.raises(PySparkException, match=r"LIFTLOG_LOG_TRUNCATED: .*from 100 on were lost and written"):
                run(stream.follow(spark), out, checkpoint)
            run(stream.follow(spark, failOnDataLoss="false"), out, checkpoint)
            assert places(spark.read.parquet(out)) == sorted(read_before + stream.expected()[100:])
            stream.append(1)
            run(stream.follow(spark), out, checkpoint)
            assert places(spark.read.parquet(out)) == sorted(read_before + stream.expected()[100:])
    finally:
        broker.stop()
