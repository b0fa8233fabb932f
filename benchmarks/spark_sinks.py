"""Queries that write, for the session of spark_driver.py; and a Python source and sink that do nothing else.

write         rows made by the JVM into a sink, as a batch: rows by the time of the whole query
micro-batch   small micro-batches, one after the other: the median of the durations that Spark reports
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

WARM_UP = 3
"""Micro-batches that do not count: the JVM compiles what they run."""


class NullSource(DataSource):
    """One row a task in each micro-batch, and a sink that drops what it gets. Options: tasks, batches."""

    @classmethod
    def name(cls) -> str:
        return "null"

    def schema(self) -> str:
        return "value BINARY"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NullReader(int(self.options["tasks"]), int(self.options["batches"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return NullWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return NullStreamWriter()


class NullReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, tasks: int, batches: int) -> None:
        self._tasks, self._batches = tasks, batches

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        return None

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return start if start["batch"] >= self._batches else {"batch": start["batch"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(n) for n in range(self._tasks)] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": pa.array([b"x"], pa.binary())})


class NullWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class NullStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return NullWriter().write(iterator)


def run_write(spark: SparkSession, query: dict[str, Any]) -> dict[str, float]:
    """Write rows with values of `size` bytes; if the query names `partitions`, each task to all of them."""
    text = f"rpad(cast(id * 2654435761 % 4294967296 AS string), {query['size']}, cast(id AS string))"
    columns = [f"cast({text} AS binary) AS value"]
    if "partitions" in query:
        columns.append(f"cast(id % {query['partitions']} AS int) AS partition")
    rows = spark.range(0, query["rows"], 1, query["tasks"]).selectExpr(*columns)
    writer = rows.write.format(query["sink"]).mode("append").options(**query["options"])
    started_s = time.monotonic()
    writer.save()
    seconds = time.monotonic() - started_s
    return {"rate": query["rows"] / seconds, "seconds": seconds}


def run_micro_batches(spark: SparkSession, query: dict[str, Any], folder: Path) -> dict[str, float]:
    """The median duration of a micro-batch, in ms."""
    frame = spark.readStream.format(query["source"]).options(**query["source_options"]).load().select("value")
    writer = frame.writeStream.format(query["sink"]).options(**query["options"]).trigger(availableNow=True)
    running = writer.option("checkpointLocation", tempfile.mkdtemp(dir=folder)).start()
    try:
        running.awaitTermination()
    finally:
        running.stop()
    durations = [progress.batchDuration for progress in running.recentProgress if progress.numInputRows]
    if len(durations) < query["batches"]:
        raise RuntimeError(f"{query['source']}: {len(durations)} micro-batches, {query['batches']} were to be")
    return {"ms": statistics.median(durations[WARM_UP:]), "micro_batches": len(durations)}
