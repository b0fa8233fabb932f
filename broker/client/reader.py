"""Records of a stream as Arrow record batches: what `Client.read` returns.

Order: within a partition, by offset, always. Over partitions, a bounded read gives one partition after
the other. A following read goes round: whichever partitions a watch says have something new, one
answer of each (about 8 MiB) in turn. Nothing is promised about the order between partitions.
A following read of all partitions takes in those that are added later, from their first record.

Batches are those of the log, cut to the range: some hold one row, some 65,536. Their schema is always
the reader's: the record schema, and behind it `partition` (int32) where the stream has several
partitions; or exactly the columns that were asked for. With a payload the value is decoded (payload/decoding.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from broker.api.answers import ResolvedPositions, Watch
from broker.api.columns import columns_in
from broker.api.conditions import ALL, Conditions
from broker.api.errors import (
    InvalidRequest,
    LiftlogError,
    OffsetOutOfRange,
    Retryable,
    StaleIncarnation,
    UnknownStream,
)
from broker.api.schema import SCHEMA
from broker.client.http.calls import Calls, path, understand
from broker.client.http.interrupt import Interrupt
from broker.client.positions import Position
from broker.client.reading.fetch import PartitionFetch
from broker.client.reading.session import ANSWER_BYTES, FetchSession

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from broker.client.payload.decoding import JsonPayload

TURN_BYTES: Final = 8 << 20
WAIT_MS: Final = 20_000
LOOK_S: Final = 20.0
"""How often a following read of the only partition looks whether it still is the only one."""
QUICK_S: Final = 0.1
"""An empty answer that comes sooner is followed by a pause of this length: no busy loop against a draining broker."""

PARTITION_FIELD: Final = pa.field("partition", pa.int32(), nullable=False)
COLUMNS: Final = (*SCHEMA.names, PARTITION_FIELD.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The offsets to read of one partition.

    Attributes:
        end: Exclusive; ignored by a following read.
        from_earliest: `start` is wherever the log begins; retention may move it until the read begins.
    """

    start: int
    end: int
    from_earliest: bool = False


class RecordReader:
    """An iterator of `pyarrow.RecordBatch`, and a context manager. For one thread; `close` may come from another.

    One that is dropped half read closes its connection at once: nothing refers to it but whoever made it (the
    generator below refers to `_Reading`), so it need not wait for the collector of cycles.

    Attributes:
        stream: Its name.
        schema: The schema of every batch.
    """

    def __init__(
        self,
        calls: Calls,
        stream: str,
        spans: Mapping[int, Span],
        *,
        incarnation: str,
        columns: Sequence[str] | None,
        with_partition: bool,
        follow: bool,
        max_bytes: int | None,
        take_added: bool = False,
        rack: str | None = None,
        wanted: Conditions = ALL,
        payload: JsonPayload | None = None,
    ) -> None:
        self.stream = stream
        self.schema = reader_schema(columns, with_partition, payload)
        self._follow = follow
        self._interrupt = Interrupt()
        self._reading = _Reading(
            calls,
            stream,
            spans,
            incarnation=incarnation,
            schema=self.schema,
            answer_bytes=max_bytes or (TURN_BYTES if follow and len(spans) > 1 else ANSWER_BYTES),
            take_added=take_added and follow,
            interrupt=self._interrupt,
            rack=rack,
            wanted=wanted,
            payload=payload,
        )
        self._batches = self._reading.following() if follow else self._reading.bounded()

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition: commit it, or continue from it."""
        return self._reading.positions()

    @property
    def lost(self) -> dict[int, list[tuple[int, int]]]:
        """By partition, the ranges [start, end) that a disk has lost of what was read: no record of them was left out
        by a condition, they are gone. Only partitions that have some. Each is also told by a log line, `fetch.gap`."""
        return self._reading.lost()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Itself. Raises InvalidRequest: it is closed. (An iteration that is under way then just ends.)"""
        self._check_open()
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next n >= 1 rows.

        Raises:
            StopIteration: the range is read, or the reader was closed.
            OffsetOutOfRange: retention deleted what comes next. With the field `parted_epoch`: records were given up
                after they had been read (an operator's unclean election). `Client.resolve` of the position
                `{"epoch": parted_epoch}` says where to go on.
            StaleIncarnation, UnknownStream: the stream was deleted meanwhile.
            Unavailable and others that are Retryable: nobody could answer for the client's `deadline_s`.
            BadBatch: the log is damaged there.
            InvalidRecords: a value is not what the payload says, with FAILFAST. `positions` is before its batch.
        """
        if self._interrupt.is_set:
            raise StopIteration
        return next(self._batches)

    def close(self) -> None:
        """End the read; a thread that waits in it sees the end of the iteration. Idempotent."""
        self._interrupt.set()
        with contextlib.suppress(ValueError):  # another thread is in it: it ends by the interrupt
            self._batches.close()

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = "follow" if self._follow else "bounded"
        return f"<RecordReader of {self.stream} ({kind}) at {self.positions}>"

    def to_table(self) -> pa.Table:
        """All rows that are left, as a table.

        Raises:
            InvalidRequest: the reader follows; its rows never end. Or it is closed, also while they are read.
        """
        if self._follow:
            raise InvalidRequest("a reader with follow=True never ends: iterate over it")
        batches = list(self)
        self._check_open()  # else what there is might be taken for all
        return pa.Table.from_batches(batches, self.schema)

    def _check_open(self) -> None:
        if self._interrupt.is_set:
            raise InvalidRequest(f"the reader of {self.stream!r} is closed")

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """As `to_table`, as a pandas data frame; `options` are those of `pyarrow.Table.to_pandas`."""
        return self.to_table().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """As `to_table`, as a polars data frame (polars must be installed)."""
        import polars as pl

        frame = pl.from_arrow(self.to_table())
        assert isinstance(frame, pl.DataFrame)
        return frame


class _Reading:
    """The positions of a reader, and the two orders of going on. Arguments are those of `RecordReader`."""

    def __init__(
        self,
        calls: Calls,
        stream: str,
        spans: Mapping[int, Span],
        *,
        incarnation: str,
        schema: pa.Schema,
        answer_bytes: int,
        take_added: bool,
        interrupt: Interrupt,
        rack: str | None,
        wanted: Conditions,
        payload: JsonPayload | None,
    ) -> None:
        self.stream = stream
        self.schema = schema
        self._payload = payload
        self._calls = calls
        self._spans = dict(spans)
        self._incarnation = incarnation
        self._take_added = take_added
        self._interrupt = interrupt
        self._session = FetchSession(brokers=calls.brokers, rack=rack)
        self._answer_bytes = answer_bytes
        self._wanted = wanted
        self._columns = [*schema.names, *(() if payload is None else ("value",))]
        # Rows with as many columns have these columns: an answer has those that were asked for, or all.
        self._as_sent = len(schema.names) if tuple(schema.names) == columns_in(schema.names) else None
        self._fetches = {partition: self._fetch(partition) for partition in sorted(spans)}

    def positions(self) -> dict[int, int]:
        return {partition: fetch.position for partition, fetch in self._fetches.items()}

    def lost(self) -> dict[int, list[tuple[int, int]]]:
        return {partition: list(fetch.lost) for partition, fetch in self._fetches.items() if fetch.lost}

    def _fetch(self, partition: int) -> PartitionFetch:
        return PartitionFetch(
            self._session,
            self.stream,
            partition,
            self._spans[partition].start,
            incarnation=self._incarnation,
            max_bytes=self._answer_bytes,
            timeout_s=self._calls.timeout_s,
            deadline_s=self._calls.deadline_s,
            interrupt=self._interrupt,
            wanted=self._wanted,
            columns=self._columns,
        )

    def bounded(self) -> Generator[pa.RecordBatch, None, None]:
        for partition, fetch in self._fetches.items():
            end = self._spans[partition].end
            while fetch.position < end and not self._interrupt.is_set:
                before = fetch.position
                yield from self._answer(partition, end)
                if fetch.position == before and not self._interrupt.is_set:
                    fetch.nothing_yet()

    def following(self) -> Generator[pa.RecordBatch, None, None]:
        looked_s = time.monotonic()
        while len(self._fetches) == 1 and not self._interrupt.is_set:
            ((partition, fetch),) = self._fetches.items()
            asked_s, before = time.monotonic(), fetch.position
            yield from self._answer(partition, None, max_wait_ms=WAIT_MS)
            if fetch.position == before:
                self._pace(asked_s)
            if self._take_added and time.monotonic() - looked_s >= LOOK_S:
                looked_s = time.monotonic()
                self._watch(0)
        version = 0
        while not self._interrupt.is_set:
            asked_s = time.monotonic()
            version, heads = self._watch(version)
            if not self._behind(heads):
                self._pace(asked_s)
            while (behind := self._behind(heads)) and not self._interrupt.is_set:
                were_at = self.positions()
                for partition in behind:
                    yield from self._answer(partition, heads[partition])
                if self.positions() == were_at:  # nobody has what the watch promised, after an unclean stop perhaps
                    version = 0
                    self._pace(asked_s)
                    break

    def _pace(self, asked_s: float) -> None:
        if time.monotonic() - asked_s < QUICK_S:
            self._interrupt.pause(QUICK_S)

    def _behind(self, heads: Mapping[int, int]) -> list[int]:
        """The partitions with something new."""
        return [p for p, fetch in self._fetches.items() if heads.get(p, 0) > fetch.position]

    def _watch(self, since: int) -> tuple[int, dict[int, int]]:
        """Wait for a change. Returns its version, and the high watermarks of the partitions that are read."""
        try:
            value = self._calls.json(
                "GET",
                path("watch"),
                query={"since": since, "max_wait_ms": WAIT_MS, "streams": self.stream},
                wait_s=WAIT_MS / 1000,
                interrupt=self._interrupt,
            )
        except LiftlogError:
            if self._interrupt.is_set:
                return since, {}
            raise
        watch = understand(Watch, value, where=f"watching {self.stream}")
        stream = watch.streams.get(self.stream)
        if stream is None:  # deleted: then this says so; or not served at the moment
            self._calls.json("GET", path("streams", self.stream), interrupt=self._interrupt)
            return 0, {}
        if stream.incarnation != self._incarnation:
            raise StaleIncarnation(
                f"stream {self.stream!r} was deleted and re-created while it was read",
                stream=self.stream,
                incarnation=stream.incarnation,
            )
        if self._take_added:
            for partition in sorted(stream.partitions.keys() - self._fetches.keys()):
                self._spans[partition] = Span(start=0, end=0, from_earliest=True)
                self._fetches = {**self._fetches, partition: self._fetch(partition)}
        if not stream.partitions and self._fetches:
            self._check_online(min(self._fetches))
        read = {p: head for p, head in stream.partitions.items() if p in self._fetches}
        for partition, head in read.items():
            self._calls.brokers.note_leader((self.stream, partition), head.leader.http)
        return watch.version, {partition: head.high_watermark for partition, head in read.items()}

    def _check_online(self, partition: int) -> None:
        """Nobody tells of any partition: raises why, where that does not pass."""
        body = {"positions": [Position(self.stream, partition, "earliest").as_json()]}
        try:
            value = self._calls.json("POST", path("offsets", "resolve"), body, interrupt=self._interrupt)
        except LiftlogError:
            if self._interrupt.is_set:
                return
            raise
        for found in understand(ResolvedPositions, value, where=f"watching {self.stream}").positions:
            if found.error is not None and not isinstance(found.error, (Retryable, UnknownStream)):
                raise found.error

    def _answer(
        self, partition: int, end: int | None, *, max_wait_ms: int = 0
    ) -> Generator[pa.RecordBatch, None, None]:
        """The rows of one answer, in the reader's schema."""
        fetch = self._fetches[partition]
        try:
            for rows in fetch.answer(end, max_wait_ms=max_wait_ms):
                if self._payload is None:
                    yield self._shaped(rows, partition)
                else:
                    yield from self._decoded(rows, partition, self._payload)
        except OffsetOutOfRange as error:
            # "earliest" means wherever the log begins, also if that moved since it was resolved.
            span, log_start_offset = self._spans[partition], error.fields.get("log_start_offset")
            if not (span.from_earliest and fetch.position == span.start and isinstance(log_start_offset, int)):
                raise
            if log_start_offset <= fetch.position:
                raise
            fetch.position = log_start_offset
            self._spans[partition] = Span(start=log_start_offset, end=span.end, from_earliest=True)

    def _decoded(
        self, rest: pa.RecordBatch, partition: int, payload: JsonPayload
    ) -> Generator[pa.RecordBatch, None, None]:
        """The rows in several batches, if need be. Meanwhile the position is before those that were not handed out."""
        fetch = self._fetches[partition]
        behind = fetch.position
        while rest.num_rows:
            fetch.position = rest.column("offset")[0].as_py()  # if one of these ends the read
            shaped, rest = payload.shaped(rest, self.schema, stream=self.stream, partition=partition)
            fetch.position = rest.column("offset")[0].as_py() if rest.num_rows else behind
            if shaped.num_rows:
                yield shaped

    def _shaped(self, rows: pa.RecordBatch, partition: int) -> pa.RecordBatch:
        if rows.num_columns == self._as_sent:
            return rows
        columns = [
            pa.repeat(pa.scalar(partition, PARTITION_FIELD.type), rows.num_rows)
            if name == PARTITION_FIELD.name
            else rows.column(name)
            for name in self.schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def reader_schema(columns: Sequence[str] | None, with_partition: bool, payload: JsonPayload | None = None) -> pa.Schema:
    """The schema of a reader's batches. Raises InvalidRequest for columns that are not there."""
    if payload is not None:
        with_partition = with_partition or (columns is not None and PARTITION_FIELD.name in columns)
        return payload.schema(columns, of_record=reader_schema(None, with_partition))
    if columns is None:
        return SCHEMA.append(PARTITION_FIELD) if with_partition else SCHEMA
    for name in columns:
        if name not in COLUMNS:
            raise InvalidRequest(f"records have no column {name!r}, only {', '.join(COLUMNS)}", column=name)
    if len(set(columns)) != len(columns) or not columns:
        raise InvalidRequest(f"columns {list(columns)}: must name at least one column, each once")
    return pa.schema([PARTITION_FIELD if name == PARTITION_FIELD.name else SCHEMA.field(name) for name in columns])
