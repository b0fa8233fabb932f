"""The exactly-once sink in Spark: checkpoints that lost their end, were copied, restored, half deleted.

Method: run a query to its end, do to its checkpoint what a crash or a person would do, run it again, and read the
stream with the plain client. The remains of a killed driver are made by hand here: a checkpoint whose last commit is
missing is what remains of one that died after the sink's commit. (Real kills: test_kills.py.)
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from broker.client.client import Client
from tests.spark.sink_tasks import found
from tests.spark.streams import Stream


def run_into(target: Stream, frame: DataFrame, checkpoint: str, **options: Any) -> None:
    """All that there is, in micro-batches, until the end."""
    writer = frame.writeStream.format("liftlog").options(brokers=target.address, checkpointLocation=checkpoint)
    if "stream" not in frame.columns:
        writer = writer.option("stream", target.name)
    query = writer.options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(120), "still running"


def shuffled(source: Stream, spark: SparkSession) -> DataFrame:
    """Rows that stand elsewhere at every execution."""
    return source.follow(spark, maxOffsetsPerTrigger=60).repartition(2, F.rand()).select("value")


def expected(source: Stream) -> list[str]:
    return sorted(f"{partition}:{offset}".ljust(20) for partition, offset in source.expected())


def test_replays_copies_and_backups_of_a_checkpoint(
    spark: SparkSession, stream: Stream, client: Client, tmp_path: Path
) -> None:
    target = Stream.create(client, "once")
    checkpoint, backup, copy = (str(tmp_path / name) for name in ("checkpoint", "backup", "copy"))
    stream.append(30)
    run_into(target, shuffled(stream, spark), checkpoint)
    assert found(target) == expected(stream)
    shutil.copytree(checkpoint, backup)

    # Died after the sink's commit, before Spark's own: the last batch comes again, its rows placed otherwise.
    forget_last(checkpoint, "commits")
    stream.append(30)
    run_into(target, shuffled(stream, spark), checkpoint)
    assert (seen := found(target)) == expected(stream)
    frames = (one.read(spark).select("value") for one in (target, stream))
    assert_df_equality(*frames, ignore_row_order=True)

    # A copy, run beside the original.
    shutil.copytree(checkpoint, copy)
    stream.append(10)
    with pytest.raises(PySparkException, match=r"LIFTLOG_SINK_FORKED: .*/checkpoint query .*/copy query"):
        run_into(target, shuffled(stream, spark), copy)
    assert found(target) == seen

    # A backup of before, put back.
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    with pytest.raises(PySparkException, match=r"LIFTLOG_SINK_BATCH_REGRESSED: .* has decided batch"):
        run_into(target, shuffled(stream, spark), checkpoint)

    # Offsets and commits deleted, the query's id kept: batch ids begin at 0 again.
    for folder in ("offsets", "commits"):
        shutil.rmtree(Path(checkpoint, folder))
    with pytest.raises(PySparkException, match=r"LIFTLOG_SINK_BATCH_REGRESSED: .*, this is 0"):
        run_into(target, shuffled(stream, spark), checkpoint)
    assert found(target) == seen


def forget_last(checkpoint: str, *folders: str) -> None:
    """Delete the newest file of these folders, and its checksum."""
    for folder in folders:
        last = max(Path(checkpoint, folder).glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink()


def test_a_batch_that_is_planned_anew_with_as_many_rows_is_refused(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str
) -> None:
    """The newest offsets and commits are deleted by hand; the batch then has another share of each partition."""
    target = Stream.create(client, "anew")
    stream.append(20, partitions=[0])
    frame = stream.follow(spark, maxOffsetsPerTrigger=20).select("value")
    run_into(target, frame, checkpoint)
    forget_last(checkpoint, "offsets", "commits")
    stream.append(500, partitions=[1, 2])
    with pytest.raises(PySparkException, match=r"LIFTLOG_SINK_ROWS_DIFFER: .* as many, but others .*keepFirst"):
        run_into(target, frame, checkpoint)
    assert len(found(target)) == 20, "nothing of it was written"
    run_into(target, frame, checkpoint, onRepeatWithOtherRows="keepFirst")
    assert len(found(target)) == 1020, "20 of the first plan; and 20 records are lost, as the option says"


def test_a_replay_with_the_time_of_its_batch_is_the_same_batch(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str
) -> None:
    """Spark keeps a batch's time with its offsets. Chance, on the other hand, comes out otherwise each time."""
    target = Stream.create(client, "timed")
    stream.append(10)
    timed = shuffled(stream, spark).selectExpr("concat(value, cast(current_timestamp() AS string)) AS value")
    run_into(target, timed, checkpoint)
    forget_last(checkpoint, "commits")
    run_into(target, timed, checkpoint)
    assert len(found(target)) == 30
    forget_last(checkpoint, "commits")
    with pytest.raises(PySparkException, match="LIFTLOG_SINK_ROWS_DIFFER"):
        run_into(target, stream.follow(spark).selectExpr("cast(uuid() AS binary) AS value"), checkpoint)
    assert len(found(target)) == 30


def test_rows_name_their_stream_and_bad_ones_become_dead_letters(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str
) -> None:
    """Two streams and a dead letter stream in one micro-batch of two tasks."""
    letters = Stream.create(client, "letters", partitions=1)
    other = Stream.create(client, "routed", partitions=1)
    stream.append(10)
    name = F.when(F.col("partition") == 1, F.lit("routed")).when(F.col("partition") == 2, F.lit("no-such-stream"))
    frame = stream.follow(spark, minPartitions=3).select("value", name.otherwise(F.lit(letters.name)).alias("stream"))
    routed = frame.withColumn("stream", F.when(F.col("stream") != "letters", F.col("stream")))
    run_into(other, routed, checkpoint, deadLetterStream="letters")
    assert len(found(other)) == 10
    assert len(found(letters)) == 20


def test_foreach_batch_writes_once_with_a_transaction(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str
) -> None:
    """Every batch twice, as if its driver had died in between; two writes in one function do not collide."""
    targets = [Stream.create(client, f"foreach-{n}") for n in range(2)]
    stream.append(20)

    def write(batch: DataFrame, batch_id: int) -> None:
        for target in [*targets, *targets]:
            options = {"brokers": target.address, "stream": target.name, "txnAppId": "foreach", "txnVersion": batch_id}
            batch.select("value").write.format("liftlog").mode("append").options(**options).save()

    query = stream.follow(spark, maxOffsetsPerTrigger=30).writeStream.foreachBatch(write)
    query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination(120)
    assert found(targets[0]) == found(targets[1]) == expected(stream)


def first_of_each(source: Stream, spark: SparkSession) -> DataFrame:
    """A stateful query: its state has as many partitions as the shuffle of its first run."""
    return source.follow(spark, maxOffsetsPerTrigger=30).select("value").dropDuplicates(["value"])


def test_other_shuffle_partitions_over_a_checkpoint_change_nothing(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str, request: pytest.FixtureRequest
) -> None:
    """A shuffle takes the new number, and a batch that comes again has its rows in other tasks; state keeps the old."""
    setting = "spark.sql.shuffle.partitions"
    request.addfinalizer(lambda: spark.conf.set(setting, "2"))
    targets = [Stream.create(client, f"width-{n}") for n in range(2)]
    frames = [lambda: stream.follow(spark).repartition("value").select("value"), lambda: first_of_each(stream, spark)]
    for width in ("2", "5", "3"):
        spark.conf.set(setting, width)
        stream.append(20)
        for number, (target, frame) in enumerate(zip(targets, frames, strict=True)):
            place = f"{checkpoint}-{number}"
            if width != "2":
                forget_last(place, "commits")
            run_into(target, frame(), place)
            assert found(target) == expected(stream), f"query {number} with {width}"


def test_a_repartitioned_checkpoint_is_refused_once(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str, request: pytest.FixtureRequest
) -> None:
    """Spark adds a batch of its own, of which no sink hears."""
    provider = "spark.sql.streaming.stateStore.providerClass"
    request.addfinalizer(lambda: spark.conf.unset(provider))
    spark.conf.set(provider, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    target = Stream.create(client, "repartitioned")
    stream.append(20)
    run_into(target, first_of_each(stream, spark), checkpoint)
    spark._streamingCheckpointManager.repartition(checkpoint, 3)
    stream.append(20)
    with pytest.raises(PySparkException, match=r"LIFTLOG_SINK_BATCHES_MISSING: .*onMissingBatches=accept"):
        run_into(target, first_of_each(stream, spark), checkpoint)
    run_into(target, first_of_each(stream, spark), checkpoint, onMissingBatches="accept")
    assert found(target) == expected(stream)


def test_a_destination_made_anew_between_two_runs_is_refused_until_it_is_accepted(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str
) -> None:
    """Spark's checkpoint goes on behind what was written, and the new stream has none of that."""
    target = Stream.create(client, "anew")
    stream.append(20)
    run_into(target, shuffled(stream, spark), checkpoint)
    before = expected(stream)
    client.delete_stream(target.name)
    client.create_stream(target.name, partitions=2)
    stream.append(20)
    refused = r"LIFTLOG_SINK_DESTINATION_NEW: .*batch \d+ names stream 'anew'.*last batch \d+.*onNewDestination=accept"
    for _ in range(2):
        with pytest.raises(PySparkException, match=refused):
            run_into(target, shuffled(stream, spark), checkpoint)
    assert found(target) == []
    run_into(target, shuffled(stream, spark), checkpoint, onNewDestination="accept")
    stream.append(20)
    run_into(target, shuffled(stream, spark), checkpoint)
    assert found(target) == sorted(set(expected(stream)) - set(before))


def test_names_of_source_and_query_change_nothing_for_the_sink(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str, request: pytest.FixtureRequest
) -> None:
    """`readStream.name` (source evolution) and `queryName`, over a restart and a lost commit."""
    setting = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    request.addfinalizer(lambda: spark.conf.unset(setting))
    spark.conf.set(setting, "true")
    target = Stream.create(client, "named")
    options = {"brokers": stream.address, "stream": stream.name, "startingOffsets": "earliest"}
    for name in ("first", "second"):
        stream.append(20)
        frame = spark.readStream.format("liftlog").options(**options).name("orders").load().select("value")
        writer = frame.writeStream.queryName(name).format("liftlog").option("stream", target.name)
        writer = writer.options(brokers=target.address, checkpointLocation=checkpoint)
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        assert found(target) == expected(stream)
        forget_last(checkpoint, "commits")
