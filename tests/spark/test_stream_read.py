"""spark.readStream: each record once, over triggers, restarts and a broker that is killed.

Method: queries to parquet, whose rows are compared with every (partition, offset) that was appended.
"""

from __future__ import annotations

import json
import shutil
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import spark_liftlog
from broker.client.client import Client, connect
from tests.spark.streams import Stream, places, published, run, start, wait_published
from tests.support.processes import BrokerProcess, eventually


def offsets_of(checkpoint: str) -> list[dict[str, Any]]:
    """The source's offsets in a checkpoint, batch by batch."""
    files = sorted((p for p in Path(checkpoint, "offsets").iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    return [json.loads(path.read_text().splitlines()[2]) for path in files]


def test_available_now_reads_what_is_there_and_a_restart_goes_on(
    spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    stream.append(25)
    query = run(stream.follow(spark, maxOffsetsPerTrigger=30), out, checkpoint)
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [30, 30, 15]
    assert places(spark.read.parquet(out)) == stream.expected()
    stream.append(10, partitions=[2])
    run(stream.follow(spark, maxOffsetsPerTrigger=30), out, checkpoint)
    run(stream.follow(spark, maxOffsetsPerTrigger=30), out, checkpoint)
    assert places(spark.read.parquet(out)) == stream.expected()


def test_offsets_in_the_checkpoint_are_positions_with_incarnation_and_epoch(
    spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    stream.append(5)
    described = stream.client.describe(stream.name)
    epoch = described.partitions[0].leader_epoch
    run(stream.follow(spark, maxOffsetsPerTrigger=9, consumer="checkpointed"), str(tmp_path / "out"), checkpoint)
    first, second = offsets_of(checkpoint)
    assert first == {
        "v": 1,
        "consumer": "checkpointed",
        "streams": {
            stream.name: {
                "incarnation": described.incarnation,
                "partitions": {"0": [3, epoch], "1": [3, epoch], "2": [3, epoch]},
            }
        },
        "base": {stream.name: {"0": 0, "1": 0, "2": 0}},
    }
    assert "base" not in second
    wait_published(stream, "checkpointed")


def test_latest_means_when_the_query_was_first_planned_also_for_a_replay(
    spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    """As if the driver had died before batch 0 was done: it is run again, and must begin where it began before."""
    out = str(tmp_path / "out")
    stream.append(10)
    run(stream.follow(spark, startingOffsets="latest"), out, checkpoint)
    shutil.rmtree(Path(checkpoint, "commits"))
    stream.append(5)
    run(stream.follow(spark, startingOffsets="latest"), out, checkpoint)
    assert places(spark.read.parquet(out)) == [(p, o) for p in range(3) for o in range(10, 15)]


def test_a_running_query_follows_and_its_lag_falls_to_nothing(
    spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    stream.append(50)
    listener = spark_liftlog.LagListener()
    spark.streams.addListener(listener)
    query = start(stream.follow(spark, consumer="following", maxOffsetsPerTrigger=40), out, checkpoint)
    try:
        wait_published(stream, "following")
        assert stream.client.lag("following") == 0
        stream.append(10)
        wait_published(stream, "following")
        assert places(spark.read.parquet(out)) == stream.expected()
        lags = [spark_liftlog.lag(p) for p in query.recentProgress]
        assert [lag.total for lag in lags if lag is not None][:4] == [110, 70, 30, 0]
        now = spark_liftlog.lag(query)
        assert now is not None
        assert now.partitions == {(stream.name, partition): 0 for partition in range(3)}
        told = [f'{{query="{query.id}",stream="{stream.name}",partition="{n}"}} 0\n' for n in range(3)]
        eventually(lambda: all(line in listener.prometheus() for line in told), what="the listener has it, too")
    finally:
        query.stop()
    eventually(lambda: query.id not in listener.lags(), what="a query that ended is not told of")
    spark.streams.removeListener(listener)


def test_a_batch_that_hangs_is_seen_to_fall_behind(spark: SparkSession, stream: Stream, checkpoint: str) -> None:
    """From outside, from the listener and at the broker alike; and so is a query that waits for more records."""
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(frame: DataFrame, number: int) -> None:
        if frame.count() > 20:
            hangs.set()
            assert goes_on.wait(240)

    listener = spark_liftlog.LagListener()
    spark.streams.addListener(listener)
    source = stream.follow(spark, consumer="hanging", minOffsetsPerTrigger=30, maxTriggerDelay="1h")
    query = source.writeStream.foreachBatch(hang).option("checkpointLocation", checkpoint).queryName("hanging").start()

    def behind(partition_count: int) -> bool:
        wanted = {(stream.name, partition): partition_count for partition in range(3)}
        now, told = spark_liftlog.lag(query), listener.lags().get("hanging")
        at_the_broker = [p.lag for p in stream.client.consumer("hanging").partitions]
        return now == told == spark_liftlog.Lag(wanted) and at_the_broker == [partition_count] * 3

    try:
        eventually(lambda: query.lastProgress is not None, timeout_s=120, what="batch 0, which has none")
        stream.append(5)
        eventually(lambda: behind(5), timeout_s=120, what="15 records wait for minOffsetsPerTrigger")
        stream.append(5)
        assert hangs.wait(120)
        stream.append(100)
        eventually(lambda: behind(110), timeout_s=120, what="its batch hangs")
        goes_on.set()
        eventually(lambda: behind(0), timeout_s=120, what="it goes on")
    finally:
        goes_on.set()
        query.stop()
        spark.streams.removeListener(listener)


def test_idle_triggers_make_no_batches(spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Path) -> None:
    """A query that waits between appends makes batches of them, and none of the waiting."""
    query = start(stream.follow(spark, consumer="idle"), str(tmp_path / "out"), checkpoint)
    try:
        for _ in range(3):
            stream.append(5)
            wait_published(stream, "idle")
            eventually(lambda: query.status["message"] == "Waiting for data to arrive", what="the query is idle")
        positions = [offset["streams"] for offset in offsets_of(checkpoint)]
        assert all(before != after for before, after in pairwise(positions)), "every batch but the first has records"
    finally:
        query.stop()


def test_progress_of_the_last_batch_is_published_at_the_end(
    spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    """The query ends right after the last batch: what `stop` flushes is what was learned."""
    stream.append(20)
    run(stream.follow(spark, consumer="ended"), str(tmp_path / "out"), checkpoint)
    wait_published(stream, "ended")


def test_a_query_without_a_name_publishes_under_one_that_its_checkpoint_keeps(
    spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    for _ in range(2):
        stream.append(5)
        run(stream.follow(spark), out, checkpoint)
    names = {offset["consumer"] for offset in offsets_of(checkpoint)}
    assert len(names) == 1
    assert next(iter(names)).startswith("spark-")
    wait_published(stream, next(iter(names)))


def test_commit_offsets_false_publishes_nothing(
    spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    stream.append(5)
    run(stream.follow(spark, consumer="silent", commitOffsets="false"), str(tmp_path / "out"), checkpoint)
    run(stream.follow(spark, consumer="loud"), str(tmp_path / "out2"), checkpoint + "2")
    wait_published(stream, "loud")
    assert published(stream.client, "silent", stream.name) == {}


def test_a_projection_is_followed(spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Path) -> None:
    stream.append(4)
    frame = (
        spark.readStream.format("liftlog")
        .schema("partition INT, offset BIGINT")
        .options(brokers=stream.address, stream=stream.name, startingOffsets="earliest")
        .load()
    )
    run(frame, str(tmp_path / "out"), checkpoint)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.partition, row.offset) for row in rows) == stream.expected()


def test_a_killed_broker_is_a_pause(spark: SparkSession, checkpoint: str, tmp_path: Path) -> None:
    """kill -9 in the middle of a query, twice, and appends in between: every (partition, offset) once."""
    out = str(tmp_path / "out")
    broker = BrokerProcess(tmp_path / "broker", None).start()
    with connect(broker.address) as client:
        stream = Stream.create(client, "survivor", partitions=2)
        stream.append(2000)
        query = start(stream.follow(spark, maxOffsetsPerTrigger=500, consumer="survivor"), out, checkpoint)
        try:
            for _ in range(2):
                seen = len(query.recentProgress)
                eventually(lambda seen=seen: len(query.recentProgress) > seen + 1, timeout_s=120, what="batches go on")
                broker.kill9()
                broker.start()
                stream.append(1000)
            wait_published(stream, "survivor")
            assert query.exception() is None
        finally:
            query.stop()
            broker.stop()
    assert places(spark.read.parquet(out)) == stream.expected()


@pytest.mark.parametrize(
    "options, says",
    [
        ({"endingOffsets": "latest"}, "LIFTLOG_UNKNOWN_SETTING: option 'endingOffsets' means something for spark.read"),
        ({"maxOffsetsPerTriger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"startingOffsets": "newest"}, "LIFTLOG_INVALID_SETTING: option startingOffsets='newest'"),
        ({"startingOffsets": "{"}, "LIFTLOG_INVALID_SETTING: option startingOffsets='{': .*it is no JSON"),
        ({"consumer": "a/b"}, "LIFTLOG_INVALID_NAME: option consumer: consumer name 'a/b'"),
        ({"stream": "no-such-stream"}, "LIFTLOG_UNKNOWN_STREAM"),
    ],
)
def test_a_bad_option_ends_the_query_with_its_code(
    spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Path, options: dict[str, str], says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        run(stream.follow(spark, **options), str(tmp_path / "out"), checkpoint)


def test_the_checkpoint_of_another_stream_is_refused(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str, tmp_path: Path
) -> None:
    run(stream.follow(spark), str(tmp_path / "out"), checkpoint)
    other = Stream.create(client, "another")
    with pytest.raises(
        PySparkException, match=f"LIFTLOG_INVALID_SETTING: the checkpoint belongs to stream '{stream.name}'"
    ):
        run(other.follow(spark), str(tmp_path / "out"), checkpoint)


def test_a_checkpoint_of_a_later_version_is_refused(
    spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Path
) -> None:
    run(stream.follow(spark), str(tmp_path / "out"), checkpoint)
    path = Path(checkpoint, "offsets", "0")
    path.write_text(path.read_text().replace('{"v": 1, "consumer"', '{"v": 2, "consumer"'))
    path.with_name(".0.crc").unlink()
    with pytest.raises(PySparkException, match=r"LIFTLOG_UNKNOWN_FORMAT_VERSION: .*version 2, this release reads 1"):
        run(stream.follow(spark), str(tmp_path / "out"), checkpoint)


def test_several_streams_with_every_limit_and_a_lost_checkpoint(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str
) -> None:
    """Spark gets a limit of each kind to hand back; what is read in all is each record once."""
    other = Stream.create(client, f"{stream.name}-2", partitions=1)
    both = {"brokers": stream.address, "streamPattern": f"{stream.name}.*", "consumer": stream.name}

    def read(checkpoint: str, **options: str) -> list[int]:
        frame = spark.readStream.format("liftlog").options(**both, **options).load()
        # A folder for each: Spark's file sink skips batch ids that it has, whichever checkpoint they are of.
        query = run(frame.select("stream", "partition", "offset"), f"{checkpoint}-out", checkpoint)
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    stream.append(20, size=100)
    other.append(20, size=100)
    assert len(read(checkpoint, startingOffsets="earliest", maxBytesPerTrigger="4k")) > 1
    stream.append(1)
    assert read(checkpoint, minOffsetsPerTrigger="1000") == [3], "AvailableNow leaves nothing behind"
    wait_published(stream, stream.name)
    stream.append(2)
    with pytest.raises(StreamingQueryException, match="LIFTLOG_NEW_CHECKPOINT"):
        read(checkpoint + "-2", startingOffsets="committed")
    assert read(checkpoint + "-2", startingOffsets="committed", onNewCheckpoint="accept") == [6]
    rows = spark.read.parquet(f"{checkpoint}-out", f"{checkpoint}-2-out").collect()
    expected = [(found.name, *place) for found in (stream, other) for place in found.expected()]
    assert sorted((row.stream, row.partition, row.offset) for row in rows) == sorted(expected)
