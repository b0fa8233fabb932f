"""One Spark session that runs queries as they come on stdin, a JSON object per line, until stdin ends.

Each is answered by a line `RESULT {measures}`, or `FAILED "what was raised"`. Run by spark_read.py in a process of its
own, so that a JVM and its settings end with the case.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.functions import from_json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.payload import Messages
from benchmarks.spark_sinks import NullSource, run_micro_batches, run_write
from spark_liftlog import configure, register
from spark_liftlog.schema import ROW

BATCH_ROWS = 17_000
"""As many as liftlog's source yields at a time: what it joins of such rows, on average."""
DISTINCT = 30
"""Different batches that a worker keeps, so that not one batch in the processor's cache is all that is read."""


class MemorySource(DataSource):
    """Rows as liftlog's source gives them, from memory. Options: rows, tasks, size."""

    @classmethod
    def name(cls) -> str:
        return "memory"

    def schema(self) -> StructType:
        return ROW

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return MemoryStreamReader(self.options)


class MemoryReader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self._rows, self._tasks, self._size = (int(options[name]) for name in ("rows", "tasks", "size"))

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._rows // self._tasks) for _ in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from rows_from_memory(partition.value, self._size)


class MemoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Any) -> None:
        self._reader = MemoryReader(options)

    def initialOffset(self) -> dict[str, int]:
        return {"offset": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        return None

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"offset": self._reader._rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._reader.partitions() if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)


def rows_from_memory(count: int, size: int) -> Iterator[pa.RecordBatch]:
    batches = prepared(size)
    for number in range(count // BATCH_ROWS):
        yield batches[number % DISTINCT]
    if rest := count % BATCH_ROWS:
        yield batches[0].slice(0, rest)


@cache
def prepared(size: int) -> Sequence[pa.RecordBatch]:
    """Batches of the declared schema, made once in a worker."""
    schema = to_arrow_schema(ROW, timezone="UTC")
    messages = Messages(seed=1, size=size)
    found = []
    for number in range(DISTINCT):
        first = number * BATCH_ROWS
        columns = {
            "value": pa.array(messages.values(first, BATCH_ROWS), pa.binary()),
            "stream": pa.repeat(pa.scalar("bench"), BATCH_ROWS),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), BATCH_ROWS),
            "offset": pa.array(range(first, first + BATCH_ROWS), pa.int64()),
            "timestamp": pa.array(range(first, first + BATCH_ROWS), pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "subject": pa.repeat(pa.scalar("bench.0"), BATCH_ROWS),
        }
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(BATCH_ROWS, field.type)
            for field in schema
        ]
        found.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return found


def run(spark: SparkSession, query: dict[str, Any], folder: Path) -> dict[str, float]:
    """Run one query; with `check` only count its rows, as a batch."""
    if query["kind"] == "write":
        return run_write(spark, query)
    if query["kind"] == "micro-batch":
        return run_micro_batches(spark, query, folder)
    if query["kind"] == "start":
        return run_start(spark, query, folder)
    if query["kind"] == "stream" and not query.get("check"):
        return run_stream(spark, query, folder)
    frame = load(spark.read, query)
    started_s = time.monotonic()
    if query.get("check"):
        if (count := frame.count()) != query["rows"] // query["tasks"] * query["tasks"]:
            raise RuntimeError(f"{query['source']}: {count} rows were read, {query['rows']} are there")
    else:
        frame.write.format("noop").mode("overwrite").save()
    seconds = time.monotonic() - started_s
    return {"rate": query["rows"] / seconds, "seconds": seconds}


def run_stream(spark: SparkSession, query: dict[str, Any], folder: Path) -> dict[str, float]:
    writer = load(spark.readStream, query).writeStream.format("noop").trigger(availableNow=True)
    running = writer.option("checkpointLocation", tempfile.mkdtemp(dir=folder)).start()
    try:
        running.awaitTermination()
    finally:
        running.stop()
    batches = [progress for progress in running.recentProgress if progress.numInputRows]
    rows = sum(progress.numInputRows for progress in batches)
    if rows != query["rows"] // query["tasks"] * query["tasks"]:
        raise RuntimeError(f"{query['source']}: {rows} rows were read, {query['rows']} are there")
    seconds = sum(progress.batchDuration for progress in batches) / 1000
    return {"rate": rows / seconds, "seconds": seconds, "micro_batches": len(batches)}


def run_start(spark: SparkSession, query: dict[str, Any], folder: Path) -> dict[str, float]:
    """A streaming query from `load` to its end, with one micro-batch of one row."""
    started_s = time.monotonic()
    frame = load(spark.readStream, query)
    loaded_s = time.monotonic()
    writer = frame.writeStream.format("noop").trigger(availableNow=True)
    running = writer.option("checkpointLocation", tempfile.mkdtemp(dir=folder)).start()
    try:
        running.awaitTermination()
    finally:
        running.stop()
    ended_s = time.monotonic()
    if sum(progress.numInputRows for progress in running.recentProgress) != 1:
        raise RuntimeError(f"{query['source']}: one row was to be read")
    return {"ms": 1000 * (ended_s - started_s), "load_ms": 1000 * (loaded_s - started_s)}


def load(reader: Any, query: dict[str, Any]) -> DataFrame:
    if query["source"] == "null":
        options = {"tasks": "1", "batches": "1"}
    elif query["source"] == "memory":
        options = {name: query[name] for name in ("rows", "tasks", "size")}
    elif query["source"] == "kafka":
        options = {
            "kafka.bootstrap.servers": query["brokers"],
            "subscribe": query["stream"],
            "startingOffsets": "earliest",
            "minPartitions": query["tasks"],
        }
    else:
        options = {
            "brokers": query["brokers"],
            "stream": query["stream"],
            "startingOffsets": "earliest",
            "minPartitions": query["tasks"],
            "maxPartitions": query["tasks"],
        }
    reader = reader.format(query["source"]).options(**options)
    if query.get("by") == "liftlog":
        reader = reader.option("payload", "json").schema(query["json"])
    frame: DataFrame = reader.load()
    if query.get("by") == "from_json":
        frame = frame.select(from_json(frame.value.cast("string"), query["json"]).alias("object")).select("object.*")
    return frame


def main(folder: Path, jars: Sequence[str]) -> None:
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("liftlog-benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(jars))
    spark = configure(builder).getOrCreate()
    register(spark)
    spark.dataSource.register(MemorySource)
    spark.dataSource.register(NullSource)
    try:
        for line in sys.stdin:
            try:
                answer = "RESULT " + json.dumps(run(spark, json.loads(line), folder))
            except Exception as error:
                traceback.print_exc()
                answer = "FAILED " + json.dumps(f"{type(error).__name__}: {str(error).strip()}")
            print(answer, flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    # Under its module's name, so that workers import these classes instead of unpickling them from __main__.
    from benchmarks import spark_driver

    spark_driver.main(Path(sys.argv[1]), sys.argv[2:])
