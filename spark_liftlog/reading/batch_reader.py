"""A batch read: where it starts and ends is asked once, when it is planned.

A frame that Spark plans twice (a self-join, a second action) asks again: with endingOffsets=latest
the second plan may see more. Name the offsets where that matters.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from broker.api.errors import InvalidSetting
from spark_liftlog.errors import shown_to_spark
from spark_liftlog.options import SourceOptions
from spark_liftlog.reading.cluster import Cluster
from spark_liftlog.reading.plan import Range, plan
from spark_liftlog.reading.positions import resolve_where
from spark_liftlog.reading.task import TaskRanges, read_task
from spark_liftlog.schema import Projection


class LiftlogReader(DataSourceReader):
    """Reads [startingOffsets, endingOffsets) of every partition of a stream.

    Args:
        options: Checked options.
        schema: The declared schema; a projection of the row.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._projection = Projection(schema)

    @shown_to_spark
    def partitions(self) -> list[InputPartition]:
        cluster = Cluster(self._options.brokers)
        try:
            tasks = plan(
                self._ranges(cluster),
                partitions_min=self._options.min_partitions,
                partitions_max=self._options.max_partitions,
            )
        finally:
            cluster.close()
        return [TaskRanges(ranges) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = self._options
        return read_task(
            partition,
            self._projection,
            brokers=options.brokers,
            batch_rows=options.batch_rows,
            fail_on_data_loss=options.fail_on_data_loss,
        )

    def _ranges(self, cluster: Cluster) -> list[Range]:
        options = self._options
        _, heads = cluster.heads_now([options.stream])
        starts, ends = (
            resolve_where(
                cluster,
                options.stream,
                heads,
                where,
                option=name,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            for name, where in (
                ("startingOffsets", options.starting_offsets),
                ("endingOffsets", options.ending_offsets),
            )
        )
        ranges = []
        for key, start in starts.items():
            begin, end = start.position.offset, ends[key].position.offset
            if begin > end:
                raise InvalidSetting(
                    f"option startingOffsets: stream {key[0]!r} partition {key[1]} would be read from {begin},"
                    f" behind its end {end}",
                    key="startingOffsets",
                    value=begin,
                    limit=end,
                )
            ranges.append(
                Range(
                    stream=key[0],
                    partition=key[1],
                    incarnation=start.incarnation,
                    start=begin,
                    end=end,
                    address=heads.partitions[key].leader,
                    byte_count=max(0, start.bytes_ahead - ends[key].bytes_ahead),
                )
            )
        return ranges
