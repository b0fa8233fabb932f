"""The source without Spark: a reader asked what Spark would ask, in Spark's order."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_liftlog.options import source_options
from spark_liftlog.reading.stream_reader import LiftlogStreamReader
from spark_liftlog.schema import ROW
from tests.spark.streams import Stream

Value = dict[str, Any]


@contextmanager
def reading(address: str, **options: str) -> Iterator[LiftlogStreamReader]:
    """A query's reader."""
    reader = LiftlogStreamReader(source_options({"brokers": address, **options}, "stream"), ROW)
    try:
        yield reader
    finally:
        reader.stop()


def latest(reader: LiftlogStreamReader, start: Value | None = None) -> Value:
    """Where the next batch ends, within the limits of the options."""
    limit = reader.getDefaultReadLimit()
    assert not isinstance(limit, ReadAllAvailable) or reader._options.max_offsets_per_trigger is None
    return reader.latestOffset(reader.initialOffset() if start is None else start, limit)


def rows_of(reader: LiftlogStreamReader, start: Value | None, end: Value) -> list[tuple[str, int, int]]:
    """(stream, partition, offset) of a batch, read as executors do: from pickles, elsewhere."""
    found = []
    for task in reader.partitions(reader.initialOffset() if start is None else start, end):
        executor: LiftlogStreamReader = pickle.loads(pickle.dumps(reader))
        for batch in executor.read(pickle.loads(pickle.dumps(task))):
            columns = (batch.column(name).to_pylist() for name in ("stream", "partition", "offset"))
            found += zip(*columns, strict=True)
    return sorted(found)


def records(stream: Stream, *ranges: tuple[int, int, int]) -> list[tuple[str, int, int]]:
    """(stream, partition, offset) for each (partition, start, end)."""
    return [(stream.name, partition, at) for partition, start, end in ranges for at in range(start, end)]
