"""The newest value of each key of a stream, as Arrow: what `Client.table` returns.

    describe    partition 0: epoch 3, compaction point 40        partition 1: epoch 5, point 0
    read        [0, 100) into the newest row of each key         [0, 70)
    describe    epoch 3, point 40: 100 is at or above it         epoch 6: read again from the start

A compaction removes a record for a newer one. If that one stands behind the end of the read, the key would be missing
from the result, although it has a value at that end. So an end counts only if the compaction point of the log that was
read is not above it.

V1  The rows are the newest of each key of a partition among its records below the end that `positions` names: those of
    one leader's log, whose compaction point was at or below that end after the last row was read.
V2  An open end moves up until V1 holds. An end that was asked for does not move: it is an error then.
V3  Replicas are compacted each by itself. If the leader changes, what was read of its log says nothing about the point
    of the new one: the partition is read again.
V4  A key that has records in several partitions has no order between them but the time at which brokers received them.
    That is an error, unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from broker.api.answers import PartitionDescription, StreamDescription
from broker.api.errors import InvalidRequest, NotReady, NotSupported, OffsetOutOfRange, StaleIncarnation
from broker.api.gathered.reused_memory import ReusedMemory
from broker.api.schema import SCHEMA
from broker.client.http.calls import Calls
from broker.client.http.patience import Patience
from broker.client.reader import PARTITION_FIELD, Span, reader_schema
from broker.client.reading.fetch import PartitionFetch
from broker.client.reading.gathering import Gathering, Shape
from broker.client.reading.newest import Newest, newest_of_shared, row_at, shared_keys, values_of
from broker.client.reading.session import FetchSession

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

SharedKeys = Literal["refuse", "newest"]
GATHERED_ROWS: Final = 1 << 16
GATHERED_BYTES: Final = 2 << 20
_NEEDED: Final = ("offset", "timestamp", "key", "value")
"""The columns that decide which rows stay."""


class KeyedTable:
    """The newest value of each key. Rows come partition by partition, in the order of their offsets.

    Attributes:
        stream: Its name.
        positions: The offset of each partition below which all records count: the table is the state there. Continue
            from it with `client.read(stream, start=table.positions, follow=True)`.
        without_key: Records without a key. They are in no table.
    """

    def __init__(self, stream: str, rows: pa.Table, positions: Mapping[int, int], *, without_key: int) -> None:
        self.stream = stream
        self.positions = dict(positions)
        self.without_key = without_key
        self._rows = rows

    def __len__(self) -> int:
        """The number of keys that have a value."""
        return int(self._rows.num_rows)

    def __repr__(self) -> str:
        return f"<KeyedTable of {self.stream}, {len(self)} keys at {self.positions}>"

    @property
    def schema(self) -> pa.Schema:
        """That of the rows: as `Client.read` has it."""
        return self._rows.schema

    def to_table(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self._rows

    to_arrow = to_table

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """The rows as a pandas data frame; `options` are those of `pyarrow.Table.to_pandas`."""
        return self._rows.to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars data frame (polars must be installed)."""
        import polars as pl

        frame = pl.from_arrow(self._rows)
        assert isinstance(frame, pl.DataFrame)
        return frame


@dataclass(slots=True)
class _Part:
    """One partition, as far as it is read."""

    span: Span
    is_fixed: bool
    end: int
    position: int
    newest: Newest = field(default_factory=Newest)
    epoch: int | None = None


class TableReading:
    """The read of a table.

    Args:
        describe: Describes the stream now.
        spans: What to read of each partition. `fixed`: those whose end was asked for.
    """

    def __init__(
        self,
        calls: Calls,
        description: StreamDescription,
        spans: Mapping[int, Span],
        *,
        describe: Callable[[], StreamDescription],
        fixed: frozenset[int],
        columns: Sequence[str] | None,
    ) -> None:
        self.stream = description.name
        self._calls = calls
        self._describe = describe
        self._incarnation = description.incarnation
        self.schema = reader_schema(columns, with_partition=description.partition_count > 1)
        wanted = {*self.schema.names, *_NEEDED} - {PARTITION_FIELD.name}
        self._shape = Shape([name for name in SCHEMA.names if name in wanted])
        self._session = FetchSession(brokers=calls.brokers)
        self._memory = ReusedMemory()
        self._parts = {
            number: _Part(span, number in fixed, span.end, span.start) for number, span in sorted(spans.items())
        }

    def table(self, shared_keys: SharedKeys) -> KeyedTable:
        """Read it. Raises as `Client.table`."""
        self._read_all()
        return KeyedTable(
            self.stream,
            pa.Table.from_batches(self._merged(shared_keys), self.schema),
            {number: part.end for number, part in self._parts.items()},
            without_key=sum(part.newest.without_key for part in self._parts.values()),
        )

    def _read_all(self) -> None:
        patience = Patience(self._calls.deadline_s, what=f"reading {self.stream} as a table")
        before = self._known(self._parts)
        for number, part in self._parts.items():
            self._check(before[number], part)
        todo = list(self._parts)
        while todo:
            for number in todo:
                self._read(number, self._parts[number], before[number].leader_epoch)
            after = self._known(todo)
            again, moved = [], None
            for number in todo:
                part, point = self._parts[number], after[number].superseded_to or 0
                if not before[number].leader_epoch == part.epoch == after[number].leader_epoch:  # V3
                    moved = number
                    again.append(number)
                    self._parts[number] = _Part(part.span, part.is_fixed, part.end, position=part.span.start)
                    continue
                self._check(after[number], part)
                if point > part.end:  # V2
                    again.append(number)
                    part.end = max(point, after[number].high_watermark or 0)
            if moved is None:
                patience.progress()
            else:
                patience.pause(NotReady(f"{self.stream}/{moved} has another leader now"))
            todo, before = again, after

    def _check(self, found: PartitionDescription, part: _Part) -> None:
        check_as_of(self.stream, found, part.end if part.is_fixed else None)

    def _read(self, number: int, part: _Part, epoch: int) -> None:
        """Take the rows from where the partition is read to, up to its end."""
        fetch = PartitionFetch(
            self._session,
            self.stream,
            number,
            part.position,
            incarnation=self._incarnation,
            epoch=epoch,
            timeout_s=self._calls.timeout_s,
            deadline_s=self._calls.deadline_s,
            columns=self._shape.stored_columns,
        )
        gathering = Gathering(self._shape, rows_max=GATHERED_ROWS, bytes_enough=GATHERED_BYTES, memory=self._memory)
        while True:
            try:
                for rows in fetch.until(part.end, gathering.add, gathering.memory):
                    part.newest.add(rows)
                break
            except OffsetOutOfRange as error:  # retention moved the start of the log meanwhile
                start = error.fields.get("log_start_offset")
                if not isinstance(start, int) or start <= fetch.position:
                    raise
                fetch.position = min(start, part.end)
        for rows in gathering.rest():
            part.newest.add(rows)
        part.position, part.epoch = part.end, fetch.leader_epoch

    def _known(self, numbers: Sequence[int] | Mapping[int, object]) -> dict[int, PartitionDescription]:
        """These partitions as their leaders describe them; a leader that is away is waited for.

        Raises:
            StaleIncarnation: the stream was deleted and created again.
        """
        patience = Patience(self._calls.deadline_s, what=f"describing {self.stream}")
        while True:
            found = self._describe()
            if found.incarnation != self._incarnation:
                raise StaleIncarnation(
                    f"stream {self.stream!r} was deleted and re-created while it was read",
                    stream=self.stream,
                    incarnation=found.incarnation,
                )
            known = {part.partition: part for part in found.partitions if part.partition in numbers}
            unknown = [n for n in numbers if n not in known or known[n].superseded_to is None]
            if not unknown:
                return known
            which = unknown[0]
            if which in known and known[which].high_watermark is not None:
                raise NotSupported(f"{self.stream}/{which}: the broker is of a release without compaction points")
            patience.pause(NotReady(f"nobody can tell of {self.stream}/{which} now"))

    def _merged(self, shared: SharedKeys) -> list[pa.RecordBatch]:
        """The values of all partitions; a key that is in several of them once (V4)."""
        batches = [
            self._with_partition(number, batch) for number, part in self._parts.items() for batch in part.newest.rows()
        ]
        if len(self._parts) > 1 and batches:
            places, numbers = shared_keys(batches)
            if len(places) and shared == "refuse":
                raise self._shared(batches, places[numbers == numbers[0]].tolist())
            if len(places):
                batches = newest_of_shared(batches, places, numbers)
        return [batch.select(self.schema.names) for batch in values_of(batches)]

    def _with_partition(self, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.append_column(PARTITION_FIELD, pa.repeat(pa.scalar(number, PARTITION_FIELD.type), rows.num_rows))

    def _shared(self, batches: Sequence[pa.RecordBatch], places: Sequence[int]) -> InvalidRequest:
        rows = [row_at(batches, place) for place in places]
        key, at = rows[0]["key"], {str(row["partition"]): row["offset"] for row in rows}
        where = " and ".join(f"partition {partition} (offset {offset})" for partition, offset in at.items())
        return InvalidRequest(
            f"stream {self.stream!r}: key {shown(key)} is in {where}, and which of its values is newer only the time"
            " says at which brokers received them; shared_keys='newest' goes by that time",
            stream=self.stream,
            key=shown(key),
            offsets=at,
        )


def check_as_of(stream: str, partition: PartitionDescription, end: int | None) -> None:
    """Whether the state before `end` can still be told (V1). None: the end is open.

    Raises:
        OffsetOutOfRange: compaction has removed records that were newest there.
    """
    point = partition.superseded_to or 0
    if end is None or point <= end:
        return
    raise OffsetOutOfRange(
        f"stream {stream!r} partition {partition.partition}: compaction has removed records below {point} for newer"
        f" ones, so the table as of offset {end} is not whole any more; the oldest that is, is that as of {point}; to"
        " keep older ones for longer raise the stream's setting min_compaction_lag_ms",
        stream=stream,
        partition=partition.partition,
        offset=end,
        superseded_to=point,
        log_start_offset=partition.log_start_offset,
        high_watermark=partition.high_watermark,
    )


def shown(key: bytes) -> str:
    """A key in the text of an error: not all of a long one."""
    return repr(key[:40]) + ("…" if len(key) > 40 else "")
