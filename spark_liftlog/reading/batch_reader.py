"""A batch read: where it starts and ends is asked when it is planned; its end again when it is read, if need be.

Spark plans a frame once, however often it is used. In a micro-batch (the static side of a join), and with resolve=read
everywhere, its tasks ask where its open ends are now (refresh.py). In a micro-batch they agree on them (pins.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from broker.api.errors import InvalidSetting, StaleIncarnation
from spark_liftlog.errors import shown_to_spark
from spark_liftlog.options import SourceOptions
from spark_liftlog.parsing import OFFSET_MAX
from spark_liftlog.payload import projection_of
from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.reading.cluster import ANY, Cluster
from spark_liftlog.reading.narrowing import between
from spark_liftlog.reading.offsets import Key
from spark_liftlog.reading.plan import Range, plan
from spark_liftlog.reading.positions import keys_of, resolve_where
from spark_liftlog.reading.refresh import FramePlan, Opening, opened
from spark_liftlog.reading.table import whole_partitions
from spark_liftlog.reading.task import TaskRanges, read_task
from spark_liftlog.reading.where import LATEST, ByTime, Where, option_of

PINNED_PARTITIONS_MAX: Final = 2_000
"""Partitions of a frame that a micro-batch pins: each of its tasks is handed them."""

log = logging.getLogger("spark_liftlog")


class LiftlogReader(DataSourceReader):
    """Reads from the start to the end of every partition of the streams that are read.

    Args:
        options: Checked options.
        schema: The declared schema: a projection of the row, with a payload also columns of it.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._projection = projection_of(schema, options.payload)

    @shown_to_spark
    def partitions(self) -> list[InputPartition]:
        cluster = Cluster(self._options.brokers)
        try:
            ranges = self._ranges(cluster)
            left = self._narrowed(cluster, ranges)
        finally:
            cluster.close()
        options = self._options
        if options.table is not None:
            tasks = whole_partitions(left, tasks_max=options.max_partitions)
        else:
            tasks = plan(
                left,
                partitions_min=options.min_partitions,
                partitions_max=options.max_partitions,
                records_max=options.max_records_per_partition,
            )
        is_open = any(r.is_open for r in ranges)
        grows = options.resolve != "plan" and options.starting == "earliest" and options.ending == "latest"
        selection = options.selection
        pattern = selection if grows and selection.pattern is not None else None
        if not is_open and pattern is None:
            return [TaskRanges(task) for task in tasks]
        opening = Opening(
            always=options.resolve == "read",
            from_earliest=options.starting == "earliest",
            added={},
            watched=() if selection.pattern is None else selection.watched,
            frame=_frame(options, ranges),
        )
        open_ranges = [r for r in left if r.is_open]
        found: list[InputPartition] = [TaskRanges(task, opening) for task in opened(tasks, open_ranges)]
        if grows and selection.partitions is None:
            counts = Counter(r.stream for r in ranges)
            known = {r.stream: (r.incarnation, counts[r.stream]) for r in ranges}
            found[-1] = TaskRanges(found[-1].value, replace(opening, added=known, pattern=pattern))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._projection, options=self._options)

    def _narrowed(self, cluster: Cluster, ranges: list[Range]) -> list[Range]:
        """What Spark's filters leave of the ranges. They begin at the first record that is not too old."""
        narrowing = self._options.narrowing
        left, since_us = narrowing.of_all(ranges), narrowing.since_us
        if since_us is None or not left:
            return left
        starts = resolve_where(
            cluster,
            [(r.stream, r.partition) for r in left],
            ByTime(at_ms=since_us // 1000, strategy="latest"),
            side="starting",
            fail_on_data_loss=self._options.fail_on_data_loss,
            known={r.stream: r.incarnation for r in left},
        )
        found = []
        for r in left:
            start = starts[r.stream, r.partition]
            is_same = start.incarnation == r.incarnation  # else the task says what is wrong
            found.append(between(r, start.position.offset, OFFSET_MAX) if is_same else r)
        return [r for r in found if r is not None]

    def _ranges(self, cluster: Cluster) -> list[Range]:
        options = self._options

        def now() -> Heads:
            _, found = cluster.heads_now(options.selection.watched)
            return options.selection.of(found)

        def whole() -> Heads:
            return cluster.whole(now(), now)

        asking = cluster.asking_again()
        while True:
            keys, heads = keys_of(cluster, options.selection, whole(), whole)
            known, there = heads.incarnations, dict.fromkeys(heads.incarnations, ANY)
            starts, ends = (
                resolve_where(cluster, keys, where, side=side, fail_on_data_loss=options.fail_on_data_loss, known=there)
                for side, where in (
                    ("starting", options.starting),
                    ("ending" if options.table is None else "asOf", options.ending),
                )
            )
            found = [(key[0], one.incarnation) for places in (starts, ends) for key, one in places.items()]
            others = [(stream, incarnation) for stream, incarnation in found if incarnation != known[stream]]
            if not others:
                break
            if not asking.again():
                raise StaleIncarnation(
                    f"stream {others[0][0]!r} was deleted and re-created while it was planned; call load() again",
                    stream=others[0][0],
                    incarnation=others[0][1],
                )
        ranges = []
        for key, start in starts.items():
            begin, end = start.position.offset, ends[key].position.offset
            if begin > end:
                option = option_of("starting", options.starting)
                raise InvalidSetting(
                    f"option {option}: stream {key[0]!r} partition {key[1]} would be read from {begin},"
                    f" behind its end {end}",
                    key=option,
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
                    is_open=options.resolve != "plan" and _is_latest(options.ending, key),
                )
            )
        return ranges


def _is_latest(where: Where, key: Key) -> bool:
    if isinstance(where, ByTime):
        return False
    return (where if isinstance(where, str) else where[key[0]][key[1]]) in ("latest", LATEST)


def _frame(options: SourceOptions, ranges: list[Range]) -> FramePlan | None:
    if len(ranges) > PINNED_PARTITIONS_MAX:
        log.warning("source.not_pinned streams=%s reason=%d partitions", options.selection, len(ranges))
        return None
    selection = options.selection
    which = (selection.names, selection.pattern, selection.partitions, options.starting, options.ending)
    text = json.dumps(which, default=_plain, sort_keys=True)
    return FramePlan(
        name=hashlib.sha256(text.encode()).hexdigest()[:16],
        load=uuid.uuid4().hex[:12],
        selection=selection,
        plan=Heads(
            incarnations={r.stream: r.incarnation for r in ranges},
            partitions={(r.stream, r.partition): Head(r.start, r.end, -1) for r in ranges},
        ),
    )


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else asdict(value)
