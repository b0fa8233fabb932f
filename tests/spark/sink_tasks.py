"""The sink without Spark: its writers called as Spark calls them, in a process that plays one task after the other."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from spark_liftlog.writing.run import QUERY_ID, RUN_ID, Written
from spark_liftlog.writing.sink_options import sink_options
from spark_liftlog.writing.writer import LiftlogStreamWriter, LiftlogWriter
from tests.spark.streams import Stream

SCHEMA = StructType([StructField("value", BinaryType()), StructField("stream", StringType())])
VALUES = StructType(SCHEMA.fields[:1])
PLACED = StructType([*VALUES.fields, StructField("partition", IntegerType())])


@contextmanager
def task(number: int, *, query: str, run: str) -> Iterator[None]:
    """This process is a task of a streaming query meanwhile."""
    before, TaskContext._taskContext = TaskContext._taskContext, None
    context = TaskContext()  # sets itself: there is one
    context._partitionId = number
    context._localProperties = {QUERY_ID: query, RUN_ID: run}
    try:
        yield
    finally:
        TaskContext._taskContext = before


def values(*texts: str) -> pa.RecordBatch:
    """Rows of a frame with the one column value."""
    return pa.RecordBatch.from_pydict({"value": pa.array([text.encode() for text in texts], pa.binary())})


def one_each(*texts: str) -> pa.RecordBatch:
    """Rows of a frame with the columns value and partition: one row for each partition, from 0 on."""
    return values(*texts).append_column("partition", pa.array(range(len(texts)), pa.int32()))


class Query:
    """A streaming query's sink side: a run of it."""

    def __init__(
        self,
        target: Stream,
        *,
        query: str | None = None,
        run: str = "run-1",
        checkpoint: str | None = "/ck",
        schema: StructType = VALUES,
        **options: str,
    ) -> None:
        self.target = target
        self.query, self.run = query or f"query-of-{target.name}", run
        self._options = {"brokers": target.address, "stream": target.name, **options}
        if checkpoint is not None:
            self._options["checkpointLocation"] = checkpoint
        self._schema = schema

    def writer(self) -> LiftlogStreamWriter:
        return LiftlogStreamWriter(sink_options(self._options, "stream"), self._schema, overwrite=False)

    def write(self, number: int, batches: Sequence[pa.RecordBatch]) -> Written:
        """One task; its message as the driver gets it."""
        with task(number, query=self.query, run=self.run):
            writer: LiftlogStreamWriter = pickle.loads(pickle.dumps(self.writer()))
            found: Written = pickle.loads(pickle.dumps(writer.write(iter(batches))))
            return found

    def commit(self, batch_id: int, *messages: Written) -> None:
        self.writer().commit(messages, batch_id)

    def abort(self, batch_id: int, *messages: Written | None) -> None:
        self.writer().abort(messages, batch_id)

    def batch(self, batch_id: int, *tasks: pa.RecordBatch) -> None:
        """All of a micro-batch."""
        self.commit(batch_id, *(self.write(number, [rows]) for number, rows in enumerate(tasks)))


def job(target: Stream, *, schema: StructType = VALUES, **options: str) -> LiftlogWriter:
    """The writer of a `df.write`."""
    given: dict[str, Any] = {"brokers": target.address, "stream": target.name, **options}
    return LiftlogWriter(sink_options(given, "batch"), schema, overwrite=False)


def found(stream: Stream) -> list[str]:
    """The values of a stream, sorted."""
    return sorted(value.decode() for value in stream.client.read(stream.name).to_table().column("value").to_pylist())
