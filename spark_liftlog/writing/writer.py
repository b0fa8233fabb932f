"""The sink: rows of a frame become records of a stream, appended over HTTP by the executors.

    columns     value binary|string (required), key binary|string, subject string, partition int,
                headers array<struct<key: string, value: binary>>

    partition of a row: its `partition`; else the hash of its key; else the task's turn, batch by batch

Rows are written as they come and stand in the log at once: at least once. A task that is tried again,
a batch that is replayed after a failure, an answer that was lost on its way write their rows again.
There is no staging and nothing to take back: `commit` has nothing to do, `abort` can only say so.

K1  What a log cannot honour is refused: overwriting, complete mode, a column that would be dropped.
K2  An append is at most APPEND_BYTES of columns, or one row: far below what a broker takes.
K3  Rows of one task and one partition keep their order.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from broker.api.errors import InvalidRecords, LiftlogError
from broker.api.schema import HEADERS_TYPE
from broker.client.http.answers import StreamDescription, understand
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls, path
from broker.client.writing.append import Appender
from spark_liftlog.errors import ModeRefused, for_spark
from spark_liftlog.options import SinkOptions
from spark_liftlog.reading.task import DEADLINE_S, session
from spark_liftlog.schema import HEADERS
from spark_liftlog.writing.partitioner import partitions_for

APPEND_BYTES: Final = 4 << 20
PENDING_BYTES_MAX: Final = 32 << 20
"""Held back by a task over all partitions: bounds its memory where there are many partitions."""
TIMEOUT_S: Final = 30.0

_TEXT: Final = (BinaryType(), StringType())
_COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "value": _TEXT,
    "key": _TEXT,
    "subject": (StringType(),),
    "partition": (IntegerType(),),
    "headers": (HEADERS,),
}
_ARROW: Final = {
    "value": pa.binary(),
    "key": pa.binary(),
    "subject": pa.string(),
    "headers": HEADERS_TYPE,
    "partition": pa.int32(),
}

log = logging.getLogger("spark_liftlog")


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task appended."""

    row_count: int


class LiftlogWriter(DataSourceArrowWriter):
    """`df.write`: appends each task's rows.

    Args:
        options: Checked options.
        schema: The frame's.
        overwrite: Refused.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ModeRefused('a stream is appended to, never overwritten: use .mode("append")', mode="overwrite")
        self._options = options
        self._columns = columns_of(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_task(iterator, self._columns, self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _aborted(messages, "")


class LiftlogStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: appends each task's rows, batch by batch. Arguments as `LiftlogWriter`."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ModeRefused(
                'output mode complete would append the whole result again at every trigger: use .outputMode("append")',
                mode="complete",
            )
        self._options = options
        self._columns = columns_of(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_task(iterator, self._columns, self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _aborted(messages, f" batch_id={batchId}")


def columns_of(schema: StructType) -> dict[str, int]:
    """Where in a batch each record column is (K1).

    Raises:
        InvalidRecords: `value` is missing, a column is none of a record's, or of another type.
    """
    found: dict[str, int] = {}
    for index, field in enumerate(schema):
        name = field.name.lower()
        if name not in _COLUMNS:
            raise InvalidRecords(
                f"column {field.name!r} has no place in a record, which takes {', '.join(_COLUMNS)}: select those, and"
                " put the rest into value, for instance with to_json(struct(*)) AS value",
                column=field.name,
            )
        if name in found:
            raise InvalidRecords(f"column {field.name!r} occurs twice", column=field.name)
        # Nullability inside headers is the frame's business, the types are not.
        if field.dataType.simpleString() not in {allowed.simpleString() for allowed in _COLUMNS[name]}:
            allowed = " or ".join(allowed.simpleString() for allowed in _COLUMNS[name])
            raise InvalidRecords(
                f"column {field.name!r} is {field.dataType.simpleString()}, it must be {allowed}", column=field.name
            )
        found[name] = index
    if "value" not in found:
        raise InvalidRecords("a record needs a column value (binary or string)", column="value")
    return found


def write_task(batches: Iterable[pa.RecordBatch], columns: dict[str, int], options: SinkOptions) -> Written:
    """Append the rows of one task.

    Raises:
        LiftlogSparkError: not all of them were appended; some may have been.
    """
    try:
        brokers = session(options.brokers).brokers
        writing = _TaskWriter(brokers, options.stream, partition_count(brokers, options.stream))
        for batch in batches:
            writing.add(batch, columns)
        writing.flush()
    except LiftlogError as error:
        raise for_spark(error)  # noqa: B904 -- for_spark decides about the cause
    return Written(writing.row_count)


class _TaskWriter:
    """Collects rows per partition and appends them in pieces worth a request."""

    def __init__(self, brokers: Brokers, stream: str, count: int) -> None:
        self._appender = Appender(brokers, timeout_s=TIMEOUT_S, deadline_s=DEADLINE_S)
        self._stream = stream
        self._partition_count = count
        self._turn = random.randrange(count)
        self._pending: dict[int, list[pa.RecordBatch]] = {}
        self._bytes: dict[int, int] = {}
        self.row_count = 0

    def add(self, batch: pa.RecordBatch, columns: dict[str, int]) -> None:
        """Take the rows of a batch; append what has become enough."""
        if batch.num_rows == 0:
            return
        arrays = {name: batch.column(index).cast(_ARROW[name]) for name, index in columns.items()}
        explicit = arrays.pop("partition", None)
        rows = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        if explicit is None and "key" not in arrays:
            self._add(self._turn % self._partition_count, rows)
        else:
            numbers = partitions_for(
                arrays.get("key"), explicit, partition_count=self._partition_count, turn=self._turn
            )
            for partition in np.unique(numbers):
                chosen = np.flatnonzero(numbers == partition)
                self._add(int(partition), rows if len(chosen) == len(rows) else rows.take(pa.array(chosen)))
        self._turn += 1
        if sum(self._bytes.values()) > PENDING_BYTES_MAX:
            self.flush()

    def _add(self, partition: int, rows: pa.RecordBatch) -> None:
        for piece in pieces(rows, APPEND_BYTES):
            if self._bytes.get(partition, 0) + piece.nbytes > APPEND_BYTES:
                self._append(partition)
            self._pending.setdefault(partition, []).append(piece)
            self._bytes[partition] = self._bytes.get(partition, 0) + piece.nbytes

    def flush(self) -> None:
        """Append everything that waits."""
        for partition in sorted(self._pending):
            self._append(partition)

    def _append(self, partition: int) -> None:
        batches = self._pending.pop(partition, [])
        self._bytes.pop(partition, None)
        if batches:
            appended = self._appender.append(self._stream, partition, batches, at_least_once=True)
            self.row_count += appended.record_count


def pieces(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Halve rows until each piece is small enough, or one row."""
    if rows.num_rows <= 1 or rows.nbytes <= bytes_max:
        yield rows
        return
    half = rows.num_rows // 2
    yield from pieces(rows.slice(0, half), bytes_max)
    yield from pieces(rows.slice(half), bytes_max)


def partition_count(brokers: Brokers, stream: str) -> int:
    """How many partitions the stream has now: each task asks, since partitions are added and streams made anew.

    Raises:
        UnknownStream: there is no such stream.
    """
    answer: Any = Calls(brokers, timeout_s=TIMEOUT_S, deadline_s=DEADLINE_S).json("GET", path("streams", stream))
    return len(understand(StreamDescription.of, answer, where=str(brokers)).partitions)


def _aborted(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    rows = sum(message.row_count for message in messages if isinstance(message, Written))
    log.warning("sink.aborted%s rows_appended=%d note=they stay in the stream", what, rows)
