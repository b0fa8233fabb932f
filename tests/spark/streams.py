"""Helpers of the tests with Spark: a stream with known records, reading it, running queries to their end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from broker.client.client import Client
from tests.support.processes import eventually


@dataclass
class Stream:
    """A stream, and how many records this test appended to each partition."""

    client: Client
    name: str
    counts: list[int]

    @classmethod
    def create(cls, client: Client, name: str, *, partitions: int = 3, **settings: Any) -> Stream:
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:100]
        client.create_stream(name, partitions=partitions, **settings)
        return cls(client, name, [0] * partitions)

    @property
    def address(self) -> str:
        return str(self.client.brokers)

    def append(self, count: int, *, partitions: Iterable[int] | None = None, size: int = 20) -> None:
        """Append to partitions `count` records each; the value names partition and offset."""
        for partition in range(len(self.counts)) if partitions is None else partitions:
            first = self.counts[partition]
            values = [f"{partition}:{offset}".ljust(size).encode() for offset in range(first, first + count)]
            self.client.append(self.name, partition, pa.RecordBatch.from_pydict({"value": values}))
            self.counts[partition] += count

    def expected(self) -> list[tuple[int, int]]:
        """(partition, offset) of all records."""
        return [(partition, offset) for partition, count in enumerate(self.counts) for offset in range(count)]

    def read(self, spark: SparkSession, **options: Any) -> DataFrame:
        return spark.read.format("liftlog").options(**self._options(options)).load()

    def follow(self, spark: SparkSession, **options: Any) -> DataFrame:
        options = {"startingOffsets": "earliest", **options}
        return spark.readStream.format("liftlog").options(**self._options(options)).load()

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"brokers": self.address, "stream": self.name, **options}


def places(frame: DataFrame) -> list[tuple[int, int]]:
    """(partition, offset) of each row, sorted, repetitions included. Checks that the value belongs there."""
    rows = frame.selectExpr("partition", "offset", "trim(cast(value AS string)) AS text").collect()
    for row in rows:
        assert row.text == f"{row.partition}:{row.offset}"
    return sorted((row.partition, row.offset) for row in rows)


def start(frame: DataFrame, folder: str, checkpoint: str, *, available_now: bool = False) -> StreamingQuery:
    """Write a stream to parquet."""
    writer = frame.writeStream.format("parquet").option("path", folder).option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def run(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    """Write what is there now to parquet (Trigger.AvailableNow) and wait until that is done."""
    query = start(frame, folder, checkpoint, available_now=True)
    assert query.awaitTermination(120), "still running"
    return query


def published(client: Client, consumer: str, stream: str) -> dict[int, int]:
    """The consumer's committed offsets; empty before the first."""
    for found in client.consumers():
        if found.consumer == consumer:
            return found.offsets(stream)
    return {}


def wait_published(stream: Stream, consumer: str) -> None:
    """Wait until the consumer's published progress is all of the stream."""
    wanted = dict(enumerate(stream.counts))
    eventually(
        lambda: published(stream.client, consumer, stream.name) == wanted,
        timeout_s=120,
        what=f"{consumer} published {wanted}, last {published(stream.client, consumer, stream.name)}",
    )
