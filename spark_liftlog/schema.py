"""The rows that Spark sees, and how batches of the log become them. Nothing is done per row.

    key binary, value binary, stream string, partition int, offset bigint, timestamp timestamp,
    subject string, headers array<struct<key: string, value: binary>>

All columns are nullable, as Kafka's are, so that frames of both can be unioned; offset, timestamp,
subject, stream and partition are in fact never null, and a user may declare them so.

A user's schema is a projection: only its columns are built and shipped, in its order, under its
spelling. It is the only column pruning that a Python source has.

C1  A batch has exactly the Arrow schema that Spark derives from the declared one: names, order,
    types, nullability. (Spark checks the first batch of a task and the IPC writer chokes on others.)
C2  Columns are taken over as they are; `stream` and `partition` are constants repeated.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker.api.errors import InvalidSetting
from broker.client.reading.gathering import Shape

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
ROW: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("stream", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("subject", StringType()),
        StructField("headers", HEADERS),
    ]
)
OF_KAFKA: Final = {
    "topic": "in its place: stream",
    "timestamptype": "there is none: a timestamp is when the broker received the record",
}
"""Columns of Spark's Kafka source that have another name here, and what is said of them."""
NEVER_NULL: Final = frozenset(("stream", "partition", "offset", "timestamp", "subject"))
GATHERED_BYTES: Final = 2 << 20
"""Rows are gathered up to about this: enough to pay Spark's cost of a batch, and little enough that what
was just received is still in the processor's cache. A larger batch of the log is passed on as it is."""
JOINED_BYTES_MAX: Final = 2 * GATHERED_BYTES
"""Batches of several ranges in one task are joined up to this, or to half of it."""


class Projection:
    """The making of batches of the declared schema (C1, C2).

    Args:
        schema: The declared schema.
    Raises:
        InvalidSetting: a column that a record does not have, of another type, declared NOT NULL where
            nulls occur, named twice, or no column at all.
    """

    def __init__(self, schema: StructType) -> None:
        self._columns = columns_of(schema)
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def shape(self, stream: str, partition: int, *, with_subject: bool = False) -> Shape:
        """The shape of batches with rows of one partition; with the subject as one more, last column if asked for."""
        constants = {"stream": _text(stream), "partition": _number(partition)}
        if with_subject and "subject" not in self._columns:
            schema = self._schema.append(pa.field("subject of the row", pa.string()))
            return Shape([*self._columns, "subject"], schema, constants)
        return Shape(self._columns, self._schema, constants)

    def finished(self, batches: Generator[pa.RecordBatch, None, None]) -> Generator[pa.RecordBatch, None, None]:
        """The batches in the declared schema, for one that has more than columns of the record."""
        return batches

    def without_empty_headers(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give a record without any header null in that column, however it was written. Batches are in the shape."""
        if "headers" not in self._columns:
            yield from batches
            return
        at = self._columns.index("headers")
        for batch in batches:
            headers = batch.column(at)
            if headers.null_count == len(headers):
                yield batch
                continue
            import pyarrow.compute as pc

            is_empty = pc.equal(pc.list_value_length(headers), 0)
            if pc.any(is_empty).as_py():
                columns = batch.columns
                columns[at] = pc.if_else(is_empty, pa.scalar(None, headers.type), headers)
                batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
            yield batch

    def of_subjects(self, batches: Iterable[pa.RecordBatch], patterns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Keep the rows whose subject matches one of the patterns: checked NATS subjects, wildcards allowed. Batches
        are in the shape with subjects. Each distinct subject of a batch is judged once."""
        import pyarrow.compute as pc

        at, width = [*self._columns, "subject"].index("subject"), len(self._columns)
        wanted = re.compile("|".join(map(_regex, patterns)))
        for batch in batches:
            column = batch.column(at).dictionary_encode()
            fits = [wanted.fullmatch(subject) is not None for subject in column.dictionary.to_pylist()]
            schema = pa.schema([batch.schema.field(i) for i in range(width)])
            rest = pa.RecordBatch.from_arrays(batch.columns[:width], schema=schema)
            if all(fits):
                yield rest
            elif any(fits):
                yield rest.filter(pc.take(pa.array(fits), column.indices))


def _text(value: str) -> pa.StringScalar:
    """`pa.scalar` would import pandas where it is installed, as does all that makes Arrow of Python objects. A worker
    of Spark's that reads needs none, and its first task would wait for that."""
    text = value.encode()
    return pa.StringArray.from_buffers(1, pa.py_buffer(struct.pack("=2i", 0, len(text))), pa.py_buffer(text))[0]


def _number(value: int) -> pa.Int32Scalar:
    return pa.Int32Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(struct.pack("=i", value))])[0]


def row_of(names: Sequence[str]) -> StructType:
    """The row with these columns only, in their order; without names, all.

    Raises:
        InvalidSetting: a column that a record does not have, or twice.
    """
    known = {field.name: field for field in ROW}
    for name in names:
        if name.lower() not in known or [other.lower() for other in names].count(name.lower()) > 1:
            kafka = f"; {OF_KAFKA[name.lower()]}" if name.lower() in OF_KAFKA else ""
            why = "occurs twice" if name.lower() in known else f"is none of {', '.join(known)}{kafka}"
            raise InvalidSetting(f"option columns: {name!r} {why}", key="columns", value=name)
    return StructType([known[name.lower()] for name in names]) if names else ROW


def columns_of(schema: StructType) -> list[str]:
    """The record columns that a declared schema names, in its order. Raises as `Projection`."""
    known = {field.name: field for field in ROW}
    found: list[str] = []
    for field in schema:
        name = field.name.lower()
        if name not in known:
            kafka = f"; {OF_KAFKA[name]}" if name in OF_KAFKA else ""
            raise _refused(field.name, f"a liftlog row has the columns {', '.join(known)}{kafka}")
        if field.dataType != known[name].dataType:
            declared, actual = field.dataType.simpleString(), known[name].dataType.simpleString()
            if declared == actual:
                raise _refused(field.name, f"its parts must be declared nullable: {name} {actual}")
            raise _refused(field.name, f"declared as {declared}, it is {actual}; declare that and cast it in the query")
        if not field.nullable and name not in NEVER_NULL:
            raise _refused(field.name, "declared NOT NULL, but a record may be without it")
        if name in found:
            raise _refused(field.name, "declared twice")
        found.append(name)
    if not found:
        raise _refused("", f"it is empty; choose from {', '.join(known)}")
    return found


def joined(batches: Iterable[pa.RecordBatch], *, rows_max: int) -> Generator[pa.RecordBatch, None, None]:
    """Join small batches and slice large ones, so that none has more than `rows_max` rows. Order is kept.

    A batch that fits only without its neighbour is passed on as it is: what is copied is small.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held = batch.get_total_buffer_size()  # of a slice: what it keeps; `nbytes` takes 30 times as long
        for at in range(0, batch.num_rows, rows_max):
            part = batch.slice(at, rows_max) if batch.num_rows > rows_max else batch
            if waiting and (rows + part.num_rows > rows_max or size + held > JOINED_BYTES_MAX):
                yield _one(waiting)
                rows = size = 0
            waiting.append(part)
            rows += part.num_rows
            size += held
            if rows == rows_max or 2 * size >= JOINED_BYTES_MAX:
                yield _one(waiting)
                rows = size = 0
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The batches as one; the list is emptied, so that they are not kept while the one is used."""
    whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    batches.clear()
    return whole


def _refused(column: str, why: str) -> InvalidSetting:
    return InvalidSetting(f"column {column!r} of the given schema: {why}", key="schema", value=column)


def _regex(pattern: str) -> str:
    tokens = [{"*": r"[^.]+", ">": r".+"}.get(token, re.escape(token)) for token in pattern.split(".")]
    return r"\.".join(tokens)
