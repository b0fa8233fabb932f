"""A task of mode=table: the newest row of each key of whole partitions.

    records of the log (task.py) -> newest.py of the client, in all columns that decide -> the declared columns -> Spark

The rules are those of `client.table` (broker/client/table.py): the end of a read counts only if the compaction point of
the log that was read is not above it, which is asked before and after (V1), and the leader must not have changed (V3).

B1  A task has whole partitions: the newest row of a key is among its rows.
B2  An end that others read too does not move: one that was asked for, that of a plan, or that of a micro-batch, which
    is pinned. If the log is compacted past it, that is a loss as `failOnDataLoss` says. With resolve=read it moves.
B3  A task sees no other's keys. So a key may be only in the partition to which its hash goes, or the query is asked to
    choose among several rows (sharedKeys=keep).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from broker.api.answers import PartitionDescription, StreamDescription
from broker.api.errors import InvalidSetting, LiftlogError, NotReady, NotSupported
from broker.api.schema import SCHEMA
from broker.client.http.interrupt import Interrupt
from broker.client.http.patience import Patience
from broker.client.reading.gathering import Shape
from broker.client.reading.newest import Newest, values_of
from broker.client.table import shown
from broker.client.writing.partitioner import partition_of, partitions_of
from spark_liftlog.errors import StateCompacted
from spark_liftlog.reading.plan import TASK_BYTES, Range
from spark_liftlog.reading.table_options import TableOptions

_DECIDE: Final = ("key", "value")

Described = tuple[StreamDescription, PartitionDescription]
Read = Callable[[Range, Shape, int, list[int | None]], Iterator[pa.RecordBatch]]
"""Reads a range in a shape, from no leader of an epoch before the given one, and notes the newest that has answered."""

log = logging.getLogger("spark_liftlog")

_told: set[tuple[str, int]] = set()


def whole_partitions(ranges: Sequence[Range], *, tasks_max: int) -> list[list[Range]]:
    """The tasks of a table's plan (B1): few where there is little, and of about the same size."""
    weighed = sorted(
        ((max(r.byte_count, r.record_count), r) for r in ranges if r.record_count),
        key=lambda one: (-one[0], one[1].stream, one[1].partition),
    )
    wanted = -(-sum(weight for weight, _ in weighed) // TASK_BYTES)
    tasks: list[tuple[int, list[Range]]] = [(0, []) for _ in range(min(wanted, tasks_max, len(weighed)))]
    for weight, r in weighed:
        at = min(range(len(tasks)), key=lambda number: tasks[number][0])
        tasks[at] = (tasks[at][0] + weight, [*tasks[at][1], r])
    return [found for _, found in tasks]


class TableTask:
    """The reading of one partition after the other.

    Args:
        read: Reads records; raises what a read of the log raises.
        describe: Asks for the partition of a range, until its leader answers.
        may_move: Ends that are open may move (B2).
    """

    def __init__(
        self,
        options: TableOptions,
        read: Read,
        describe: Callable[[Range], Described],
        *,
        may_move: bool,
        fail_on_data_loss: bool,
        deadline_s: float,
        interrupt: Interrupt,
    ) -> None:
        self._options = options
        self._read = read
        self._describe = describe
        self._may_move = may_move
        self._fail_on_data_loss = fail_on_data_loss
        self._deadline_s = deadline_s
        self._interrupt = interrupt

    def rows(self, wanted: Range, shape: Shape) -> Iterator[pa.RecordBatch]:
        """The newest row of each key of a partition, in a shape.

        Raises:
            StateCompacted: the log was compacted past the end of the range.
            InvalidSetting: a key may be in several partitions.
        """
        columns = {*shape.stored_columns, *_DECIDE}
        gathered = Shape([name for name in SCHEMA.names if name in columns])
        patience = Patience(self._deadline_s, interrupt=self._interrupt, what=f"reading {wanted.stream} as a table")
        description, before = self._describe(wanted)
        self._check_partitioned(description)
        wanted, newest, start = self._reaching(wanted, before), Newest(), wanted.start
        while not self._interrupt.is_set:
            epochs: list[int | None] = []
            for batch in self._read(replace(wanted, start=start), gathered, before.leader_epoch, epochs):
                newest.add(batch)
            _, after = self._describe(wanted)
            if any(epoch not in (None, before.leader_epoch) for epoch in (*epochs, after.leader_epoch)):
                patience.pause(NotReady(f"{wanted.stream}/{wanted.partition} has another leader now"))
                newest, start = Newest(), wanted.start
            else:
                moved = self._reaching(wanted, after)
                if moved.end == wanted.end:
                    break
                wanted, start = moved, wanted.end
            before = after
        key = (wanted.stream, wanted.partition)
        if newest.without_key and key not in _told:
            _told.add(key)
            log.warning("table.without_key partition=%s/%d records=%d", *key, newest.without_key)
        found = newest.rows()
        if self._options.keeps_shared_keys:
            yield from map(shape.rows, found)
            return
        self._check_at_home(wanted, description, found)
        yield from map(shape.rows, values_of(found))

    def _reaching(self, wanted: Range, found: PartitionDescription) -> Range:
        """The range up to an end at which the state is whole."""
        point = found.superseded_to
        if point is None:
            raise NotSupported(
                f"{wanted.stream}/{wanted.partition}: the broker is of a release without tables: update it"
            )
        if point <= wanted.end:
            return wanted
        if self._may_move and wanted.is_open:
            return replace(wanted, end=max(point, found.high_watermark or 0))
        error = self._compacted(wanted, point)
        if self._fail_on_data_loss:
            raise error
        log.warning("source.data_loss error=%s", error)
        return replace(wanted, end=point)

    def _compacted(self, wanted: Range, point: int) -> LiftlogError:
        way = "take a later asOf" if self._options.is_as_of else "call load() again, or set resolve=read in a batch job"
        return StateCompacted(
            f"stream {wanted.stream!r} partition {wanted.partition}: the table is to be as of offset {wanted.end}, and"
            f" compaction has removed records below {point} for newer ones, so that state is not whole any more; {way};"
            f" set failOnDataLoss=false to read the state of {point}, or raise the stream's min_compaction_lag_ms to"
            " keep earlier states for longer",
            stream=wanted.stream,
            partition=wanted.partition,
            offset=wanted.end,
            superseded_to=point,
        )

    def _check_partitioned(self, description: StreamDescription) -> None:
        """Whether equal keys are in one partition (B3)."""
        by = description.settings.get("partition_by")
        if description.partition_count == 1 or by == "key" or self._options.keeps_shared_keys:
            return
        raise InvalidSetting(
            f"option sharedKeys='refuse': stream {description.name!r} has {description.partition_count} partitions and"
            f" partition_by={by}, so a key may be in several of them; keep gives the newest row of each key and"
            " partition, tombstones included, and the query takes the newest of them",
            key="sharedKeys",
            value="refuse",
        )

    def _check_at_home(self, wanted: Range, description: StreamDescription, rows: Sequence[pa.RecordBatch]) -> None:
        """Whether each key is where its hash says: nobody else has it then (B3)."""
        count = description.partition_count
        if count == 1:
            return
        for batch in rows:
            strays = np.flatnonzero(partitions_of(batch, count, default_subject="") != wanted.partition)
            if not len(strays):
                continue
            key = batch.column("key")[int(strays[0])].as_py()
            raise InvalidSetting(
                f"option sharedKeys='refuse': key {shown(key)} of stream {wanted.stream!r} is in partition"
                f" {wanted.partition} and belongs to {partition_of(key, count)}, where a newer record of it may be:"
                " partitions were added, or a producer chose the partition; keep gives the newest row of each key and"
                " partition, tombstones included, and the query takes the newest of them",
                key="sharedKeys",
                value="refuse",
            )
