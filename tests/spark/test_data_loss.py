"""Records that a query still wanted are gone: each way is told apart, and survived where the user says so.

Method: a checkpoint is made, or a query is held in the midst of a batch; then the stream is deleted, re-created or
expired. Every row of the users' table, without Spark: test_offsets.py, test_damage.py, test_three_moves.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

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


class Held:
    """A function of foreachBatch: keeps the place of each row, and stays in its batch while the gate is closed."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, batch: DataFrame, _: int) -> None:
        self.places += places(batch)
        assert self.gate.wait(120)


def trimmed(stream: Stream) -> list[tuple[int, int]]:
    stream.append(4)
    stream.client.trim(stream.name, before=9)
    return [(0, 9)]


def grown(stream: Stream) -> list[tuple[int, int]]:
    stream.client.add_partitions(stream.name, 2)
    stream.counts.append(0)
    stream.append(3, partitions=[1])
    return [(1, 0), (1, 1), (1, 2)]


def remade(stream: Stream) -> list[tuple[int, int]]:
    stream.client.delete_stream(stream.name)
    again = Stream.create(stream.client, stream.name, partitions=2)
    again.append(2)
    return again.expected()


@pytest.mark.parametrize(
    "change, says",
    [
        (trimmed, "LIFTLOG_RECORDS_EXPIRED: .*partition 0: records 6 to 8 .* valid offsets are 9 to 10"),
        (grown, None),
        (remade, "LIFTLOG_STALE_INCARNATION: .*deleted and re-created"),
    ],
)
def test_a_stream_that_changes_under_a_running_query(
    spark: SparkSession,
    client: Client,
    tmp_path: Path,
    change: Callable[[Stream], list[tuple[int, int]]],
    says: str | None,
) -> None:
    for chosen in ("true", "false"):
        stream = Stream.create(client, f"{change.__name__}-under-{chosen}", partitions=1)
        held = Held()
        stream.append(5)
        writer = stream.follow(spark, failOnDataLoss=chosen).writeStream.foreachBatch(held)
        query = writer.option("checkpointLocation", str(tmp_path / chosen)).start()
        try:
            eventually(lambda held=held: len(held.places) == 5, timeout_s=120, what="the first batch")  # type: ignore[misc]
            held.gate.clear()
            stream.append(1)
            eventually(lambda held=held: len(held.places) == 6, timeout_s=120, what="the next one is held")  # type: ignore[misc]
            expected = change(stream)
            held.gate.set()
            if says is not None and chosen == "true":
                with pytest.raises(PySparkException, match=says):
                    query.awaitTermination(120)
                expected = []
            else:
                count = 6 + len(expected)
                eventually(lambda held=held, count=count: len(held.places) >= count, timeout_s=120, what="it goes on")  # type: ignore[misc]
                query.processAllAvailable()
            assert sorted(held.places) == sorted([*((0, n) for n in range(6)), *expected])
        finally:
            query.stop()
