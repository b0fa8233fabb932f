"""Take a frame's columns as records, and find the rows that cannot be one. Vectorised over a batch.

    columns     value binary|string (required), key binary|string, subject string, stream string, partition int,
                headers array<struct<key: string, value: binary>>

K1  A frame that a log cannot honour is refused: a column that would be dropped, of another type, named twice.
K2  A row that the broker would refuse is found here, where its place in the frame is still known: the first one of a
    task is an error that names it, or goes to another stream. The broker takes all rows that pass here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from broker.api.errors import InvalidRecords, InvalidSubject, LiftlogError, RecordTooLarge, UnknownPartition
from broker.api.schema import HEADERS_TYPE
from broker.api.stream import check_subject
from spark_liftlog.schema import HEADERS, OF_KAFKA

Flags = npt.NDArray[np.bool_]
Lengths = npt.NDArray[np.int64]

_TEXT: Final = (BinaryType(), StringType())
COLUMNS: Final[Mapping[str, tuple[DataType, ...]]] = {
    "value": _TEXT,
    "key": _TEXT,
    "subject": (StringType(),),
    "headers": (HEADERS,),
    "stream": (StringType(),),
    "partition": (IntegerType(),),
}
ARROW: Final[Mapping[str, pa.DataType]] = {
    "value": pa.binary(),
    "key": pa.binary(),
    "subject": pa.string(),
    "headers": HEADERS_TYPE,
    "stream": pa.string(),
    "partition": pa.int32(),
}
_PLAIN_SUBJECT: Final = r"^[A-Za-z0-9_\-]+(?:\.[A-Za-z0-9_\-]+)*$"
"""Surely a subject, if it is short; the others are judged one by one by the rule itself."""
_SHORT: Final = 200


@dataclass(frozen=True, slots=True)
class Target:
    """A stream that rows go to, as it was when the task began.

    Attributes:
        subject: The broker stores it for a record without one.
    """

    stream: str
    partition_count: int
    incarnation: str
    record_bytes_max: int
    subject: str


@dataclass(frozen=True, slots=True)
class Bad:
    """Rows that cannot be records, all for one reason: where in the batch, and the error of the first."""

    rows: npt.NDArray[np.int64]
    error: LiftlogError


def columns_of(schema: StructType) -> dict[str, int]:
    """Where in a batch each record column is (K1).

    Raises:
        InvalidRecords: `value` is missing, a column is none of a record's, or of another type.
    """
    found: dict[str, int] = {}
    for index, field in enumerate(schema):
        name = field.name.lower()
        if name not in COLUMNS:
            advice = OF_KAFKA.get(
                name, "select those, and put the rest into value, for instance with to_json(struct(*)) AS value"
            )
            raise InvalidRecords(
                f"column {field.name!r} does not belong to a record, which has {', '.join(COLUMNS)}: {advice}",
                column=field.name,
            )
        if name in found:
            raise InvalidRecords(f"column {field.name!r} occurs twice", column=field.name)
        # Nullability inside headers is the frame's business, the types are not.
        if field.dataType.simpleString() not in {allowed.simpleString() for allowed in COLUMNS[name]}:
            allowed = " or ".join(allowed.simpleString() for allowed in COLUMNS[name])
            raise InvalidRecords(
                f"column {field.name!r} is {field.dataType.simpleString()}, it must be {allowed}", column=field.name
            )
        found[name] = index
    if "value" not in found:
        raise InvalidRecords("a record needs a column value (binary or string)", column="value")
    return found


def row_bytes(rows: pa.RecordBatch, subject: str) -> Lengths:
    """The size of each row as the broker measures it: subject, key, value and headers together.

    Args:
        subject: The subject of rows without one.
    """
    total = np.zeros(rows.num_rows, np.int64)
    names = rows.schema.names
    for name in ("key", "value", "subject"):
        if name in names:
            missing = len(subject.encode()) if name == "subject" else 0
            total += pc.fill_null(pc.binary_length(rows.column(name)), missing).to_numpy()
    if "subject" not in names:
        total += len(subject.encode())
    if "headers" in names and (headers := rows.column("headers")).null_count < len(headers):
        entries = headers.values
        ends = np.concatenate(([0], np.cumsum(_lengths(entries.field(0)) + _lengths(entries.field(1)))))
        offsets = headers.offsets.to_numpy()
        total += np.where(_is_valid(headers), ends[offsets[1:]] - ends[offsets[:-1]], 0)
    return total


def bad_rows(rows: pa.RecordBatch, partitions: Any, target: Target, lengths: Lengths) -> Iterator[Bad]:
    """The rows of one stream that cannot be records of it (K2). A row may be in several answers.

    Args:
        rows: Record columns.
        partitions: Explicit int32 partitions, or None.
        lengths: As `row_bytes` gives them.
    """
    names = rows.schema.names
    empty = rows.column("value").is_null()
    if "key" in names:
        empty = pc.and_(empty, rows.column("key").is_null())
    nulls = (
        f"value and key are null: a record of stream {target.stream!r} without a value is a tombstone: it needs a key"
    )
    yield from _bad(_flags(empty), lambda row: InvalidRecords(nulls))
    if partitions is not None:
        numbers = partitions.fill_null(0).to_numpy(zero_copy_only=False)
        yield from _bad(
            (numbers < 0) | (numbers >= target.partition_count),
            lambda row: UnknownPartition(
                f"column partition: {int(numbers[row])} is no partition of stream {target.stream!r}, it has 0 to"
                f" {target.partition_count - 1}",
                partitions=target.partition_count,
            ),
        )
    yield from _bad(
        lengths > target.record_bytes_max,
        lambda row: RecordTooLarge(
            f"{lengths[row]} bytes: a record of stream {target.stream!r} has at most {target.record_bytes_max}"
            " (its setting record_bytes_max)",
            size=int(lengths[row]),
            limit=target.record_bytes_max,
        ),
    )
    if "headers" in names:
        nameless = f"column headers: a header without a name, for stream {target.stream!r}"
        yield from _bad(_nameless(rows.column("headers")), lambda row: InvalidRecords(nameless))
    if "subject" in names:
        yield from _bad_subjects(rows.column("subject"), target)


def _bad(flags: Flags, error: Any) -> Iterator[Bad]:
    found = np.flatnonzero(flags)
    if len(found):
        yield Bad(found, error(int(found[0])))


def _bad_subjects(subjects: Any, target: Target) -> Iterator[Bad]:
    plain = pc.and_(
        pc.match_substring_regex(subjects, _PLAIN_SUBJECT), pc.less_equal(pc.binary_length(subjects), _SHORT)
    )
    if pc.all(pc.fill_null(plain, True)).as_py():
        return
    encoded = subjects.dictionary_encode()
    indices = encoded.indices.fill_null(-1).to_numpy()
    for code, subject in enumerate(encoded.dictionary.to_pylist()):
        try:
            check_subject(subject, wildcards=False)
        except InvalidSubject as error:
            told = InvalidSubject(f"column subject: {error}, for stream {target.stream!r}", **error.fields)
            yield Bad(np.flatnonzero(indices == code), told)


def _nameless(headers: Any) -> Flags:
    """Rows one of whose headers is null, or has no name."""
    entries = headers.values
    wrong = (~_is_valid(entries)) | (~_is_valid(entries.field(0)))
    if not wrong.any():
        return np.zeros(len(headers), np.bool_)
    before = np.concatenate(([0], np.cumsum(wrong)))
    offsets = headers.offsets.to_numpy()
    found: Flags = _is_valid(headers) & (before[offsets[1:]] > before[offsets[:-1]])
    return found


def _lengths(column: Any) -> Lengths:
    lengths: Lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    return lengths


def _flags(values: Any) -> Flags:
    flags: Flags = values.to_numpy(zero_copy_only=False)
    return flags


def _is_valid(values: Any) -> Flags:
    return _flags(values.is_valid())
