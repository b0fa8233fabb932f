"""mode=table: the newest row of each key, in batch jobs, as the static side of a stream, and as of earlier states.

Method: a real broker that compacts; the same rows as a dictionary over all that was appended.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from broker.client.client import Client
from broker.client.writing.partitioner import partition_of
from spark_liftlog.errors import LiftlogSparkError
from spark_liftlog.options import source_options
from spark_liftlog.reading import pinning
from spark_liftlog.reading.batch_reader import LiftlogReader
from spark_liftlog.schema import ROW
from tests.spark.streams import Stream
from tests.spark.test_pins import task
from tests.support.compacting import Keyed
from tests.support.processes import eventually

__all__ = ["task"]

BINARY = pa.binary()
SMALL: dict[str, Any] = {
    "cleanup": "compact",
    "partition_by": "key",
    "segment_bytes": 1 << 16,
    "min_cleanable_dirty_percent": 1,
}


@pytest.fixture
def keyed(request: pytest.FixtureRequest, client: Client) -> Callable[..., Stream]:
    def create(partitions: int = 1, **settings: Any) -> Stream:
        return Stream.create(client, request.node.name, partitions=partitions, **{**SMALL, **settings})

    return create


def append(stream: Stream, *records: Keyed, partition: int | None = None) -> None:
    """Each record to the partition of its key, or all to one."""
    for key, value in records:
        at = partition_of(key or b"", len(stream.counts)) if partition is None else partition
        row = {"key": pa.array([key], BINARY), "value": pa.array([value], BINARY)}
        stream.client.append(stream.name, at, pa.record_batch(row))
        stream.counts[at] += 1


def compacted(stream: Stream, partition: int = 0) -> int:
    """Append further keys until a compaction has removed what has newer records. Returns its point."""
    before = point(stream, partition)
    keys = (b"filler%d" % number for number in count())
    key = next(key for key in keys if partition_of(key, len(stream.counts)) == partition)
    for number in range(4):
        append(stream, (key, b"%d" % number * 40_000))
    eventually(lambda: point(stream, partition) > before, what="a compaction")
    return point(stream, partition)


def point(stream: Stream, partition: int) -> int:
    found = stream.client.describe(stream.name).partitions[partition].superseded_to
    assert found is not None
    return found


def table(frame: DataFrame) -> dict[str, str]:
    rows = (
        frame.where("string(key) NOT LIKE 'filler%'")
        .selectExpr("string(key) AS key", "string(value) AS value")
        .collect()
    )
    found = {row.key: row.value for row in rows}
    assert len(found) == len(rows), "each key once"
    return found


def test_it_is_a_dictionary_over_the_whole_log(spark: SparkSession, keyed: Callable[..., Stream]) -> None:
    stream = keyed(partitions=3)
    expected: dict[str, str] = {}
    for number in range(120):
        key, value = f"k{number * number % 41}", None if number % 7 == 3 else f"v{number}"
        append(stream, (key.encode(), value and value.encode()))
        if value is None:
            expected.pop(key, None)
        else:
            expected[key] = value
    append(stream, (None, b"no key"))
    frame = stream.read(spark, mode="table", maxPartitions=2)
    assert frame.schema == ROW
    assert table(frame) == expected
    assert frame.count() == len(expected)
    for partition in range(3):
        compacted(stream, partition)
    assert table(stream.read(spark, mode="table")) == expected
    only = stream.read(spark, mode="table", columns="partition, key").collect()
    assert all(row.partition == partition_of(bytes(row.key), 3) for row in only)


def test_as_of_is_offsets_or_a_time_and_below_the_compaction_point_an_error(
    spark: SparkSession, keyed: Callable[..., Stream]
) -> None:
    stream = keyed()
    append(stream, (b"a", b"1"), (b"b", b"1"))
    time.sleep(0.002)  # brokers stamp records in microseconds, and asOf has milliseconds
    between = datetime.now(UTC)
    time.sleep(0.002)
    append(stream, (b"a", b"2"), (b"b", None))

    def as_of(value: str, **more: str) -> dict[str, str]:
        return table(stream.read(spark, mode="table", asOf=value, **more))

    def offset(at: int) -> str:
        return json.dumps({stream.name: {"0": at}})

    assert as_of(offset(0)) == {}
    assert as_of(offset(3)) == {"a": "2", "b": "1"}
    assert as_of(between.isoformat()) == as_of(str(int(between.timestamp() * 1000) + 1)) == {"a": "1", "b": "1"}
    assert as_of(offset(-1)) == {"a": "2"}
    with pytest.raises(PySparkException, match=r"LIFTLOG_OFFSET_OUT_OF_RANGE: option asOf: .*has no offset 99"):
        as_of(offset(99))
    compacted(stream)
    with pytest.raises(
        PySparkException,
        match=f"LIFTLOG_STATE_COMPACTED: stream '{stream.name}' partition 0: .* as of offset 3, .* below [0-9]+ .*asOf",
    ) as refused:
        as_of(offset(3))
    [below] = set(re.findall(r"below ([0-9]+) ", str(refused.value)))
    assert 4 < int(below) <= point(stream, 0), "a compaction may have gone on since"
    assert as_of(offset(3), failOnDataLoss="false") == as_of(offset(-1)) == {"a": "2"}


def test_a_frame_is_not_read_with_keys_that_went_after_it_was_planned(
    spark: SparkSession, keyed: Callable[..., Stream]
) -> None:
    stream = keyed()
    append(stream, (b"a", b"old"), (b"b", b"1"))
    planned, fresh = stream.read(spark, mode="table"), stream.read(spark, mode="table", resolve="read")
    assert table(planned) == table(fresh) == {"a": "old", "b": "1"}
    append(stream, (b"a", b"new"))
    assert table(planned) == {"a": "old", "b": "1"}
    assert table(fresh) == {"a": "new", "b": "1"}
    compacted(stream)
    with pytest.raises(PySparkException, match=r"LIFTLOG_STATE_COMPACTED: .*call load\(\) again, or set resolve=read"):
        table(planned)
    assert table(fresh) == {"a": "new", "b": "1"}


def test_a_read_that_a_compaction_overtakes_reads_on(
    keyed: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a task's look at the end and its read the only value goes for a newer one."""
    from spark_liftlog.reading import task as task_module

    stream = keyed()
    append(stream, (b"a", b"old"))
    given = {"brokers": stream.address, "stream": stream.name, "mode": "table"}
    resolved = task_module.resolved

    def late(*args: Any) -> Any:
        found = resolved(*args)
        append(stream, (b"a", b"new"))
        compacted(stream)
        return found

    monkeypatch.setattr(task_module, "resolved", late)
    reader = LiftlogReader(source_options({**given, "resolve": "read"}, "batch"), ROW)
    rows = pa.Table.from_batches([batch for each in reader.partitions() for batch in reader.read(each)]).to_pylist()
    assert [row["value"] for row in rows if row["key"] == b"a"] == [b"new"]
    reader = LiftlogReader(source_options(given, "batch"), ROW)
    with pytest.raises(LiftlogSparkError, match="STATE_COMPACTED"):
        [list(reader.read(each)) for each in reader.partitions()]


def test_a_streaming_query_is_refused_with_the_way_on(spark: SparkSession, keyed: Callable[..., Stream]) -> None:
    frame = keyed().follow(spark, mode="table", startingOffsets="latest")
    query = frame.writeStream.format("noop").start()
    with pytest.raises(PySparkException, match=r"LIFTLOG_NOT_SUPPORTED: option mode='table': .*static side of a join"):
        query.awaitTermination(60)


def test_a_stream_joins_the_table_of_now_in_each_batch(spark: SparkSession, stream: Stream, checkpoint: str) -> None:
    prices = Stream.create(stream.client, stream.name + "-prices", partitions=2, **SMALL)
    append(prices, (b"a", b"1"), (b"b", b"7"), (b"b", None))
    static = stream.read(spark, stream=prices.name, mode="table").selectExpr("key", "string(value) AS price")
    seen: list[list[tuple[str, str | None]]] = []

    def batch(frame: DataFrame, number: int) -> None:
        rows = frame.join(static, "key", "left").select(F.col("key").cast("string"), "price").collect()
        seen.append(sorted((row.key, row.price) for row in rows))

    def run() -> None:
        query = (
            stream.follow(spark)
            .select("key")
            .writeStream.foreachBatch(batch)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    append(stream, (b"a", b""), (b"b", b""))
    run()
    append(prices, (b"a", None), (b"b", b"8"))
    append(stream, (b"a", b""), (b"b", b""))
    run()
    assert seen == [[("a", "1"), ("b", None)], [("a", None), ("b", "8")]]


def test_a_batch_that_comes_again_has_the_same_table_or_an_error(
    keyed: Callable[..., Stream], task: Callable[..., None]
) -> None:
    stream = keyed()
    given = {"brokers": stream.address, "stream": stream.name, "mode": "table"}

    def rows(**more: str) -> dict[bytes, bytes]:
        reader = LiftlogReader(source_options({**given, **more}, "batch"), ROW)
        batches = [batch for each in reader.partitions() for batch in reader.read(each)]
        return {row["key"]: row["value"] for row in pa.Table.from_batches(batches).to_pylist() if row["key"] == b"a"}

    append(stream, (b"a", b"1"))
    assert rows() == {b"a": b"1"}
    append(stream, (b"a", b"2"))
    task("b")
    assert rows() == {b"a": b"1"}, "as the first run has read it"
    compacted(stream)
    task("c")
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_STATE_COMPACTED: .* as of offset 1,"):
        rows()
    assert rows(failOnDataLoss="false") == {b"a": b"2"}
    assert pinning.batch_here() is not None


def test_a_key_that_may_be_in_several_partitions_is_refused_or_left_to_the_query(
    spark: SparkSession, keyed: Callable[..., Stream]
) -> None:
    stream = keyed(partitions=2)
    here = partition_of(b"k", 2)
    append(stream, (b"k", b"old"), (b"gone", b"1"), partition=1 - here)
    time.sleep(0.001)
    append(stream, (b"k", b"new"), (b"gone", None), partition=here)
    with pytest.raises(PySparkException, match=r"LIFTLOG_INVALID_SETTING: option sharedKeys='refuse': key b'(k|gone)'"):
        table(stream.read(spark, mode="table"))
    stream.read(spark, mode="table", sharedKeys="keep").createOrReplaceTempView("parts")
    newest = spark.sql(
        "SELECT newest.* FROM"
        " (SELECT max_by(struct(*), struct(timestamp, partition)) AS newest FROM parts GROUP BY key)"
        " WHERE newest.value IS NOT NULL"
    )
    assert table(newest) == {"k": "new"}
    spark.catalog.dropTempView("parts")


def test_several_partitions_that_are_not_chosen_by_key_are_refused(
    spark: SparkSession, keyed: Callable[..., Stream]
) -> None:
    stream = keyed(partitions=2, partition_by="subject_suffix")
    append(stream, (b"k", b"1"))
    with pytest.raises(PySparkException, match="has 2 partitions and partition_by=subject_suffix"):
        table(stream.read(spark, mode="table"))
    assert table(stream.read(spark, mode="table", sharedKeys="keep")) == {"k": "1"}


def test_subjects_and_batch_rows_apply_to_the_newest_rows(spark: SparkSession, keyed: Callable[..., Stream]) -> None:
    stream = keyed()
    columns = {
        "key": pa.array([b"a", b"a", b"b"], BINARY),
        "value": pa.array([b"1", b"2", b"3"], BINARY),
        "subject": pa.array(["x.1", "y.1", "x.2"]),
    }
    stream.client.append(stream.name, 0, pa.record_batch(columns))
    assert table(stream.read(spark, mode="table", subjects="x.*", batchRows=1)) == {"b": "3"}
    assert stream.read(spark, mode="table", subjects="x.*").select("offset").collect() == [(2,)]
