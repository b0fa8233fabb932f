"""Decoded batches of a client as rows of the record schema, checked as strictly as what comes from NATS.

Types are those of the schema; others are taken where nothing can be lost on the way. All of it is
vectorised: no Python object per record unless one is about to be refused.

W1  Rows that leave here have exactly `ROW_SCHEMA`, no null where it has none, and no record over its limit.
W2  Sizes are added up before anything is copied: views may share their bytes, so a small body could
    claim a large copy.
W3  A tombstone (null value) has a key, as `Liftlog-Tombstone` needs one.
W4  Nothing lies behind a null. Arrow lets it have bytes, or entries, and stores them; but they are of no record, so no
    limit of records or batches would count them.

Each call of Arrow's compute functions costs 5 to 20 µs, whatever the rows, and lets another thread have the
interpreter: for requests of a few records that is nearly all of their cost. So columns that were not sent, and those
without nulls, are measured by their buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.api.errors import InvalidRecords, InvalidSubject, RecordTooLarge, RequestTooLarge
from broker.api.schema import HEADERS_TYPE, SCHEMA
from broker.api.stream import SUBJECT_BYTES_MAX, check_subject
from broker.serving.payload.decode import view_lengths

ROW_SCHEMA: Final = pa.schema([field for field in SCHEMA if field.name != "offset"])
_FIELDS: Final = tuple(ROW_SCHEMA)
_HEADERS_AT: Final[int] = ROW_SCHEMA.get_field_index("headers")
_BINARY: Final = pa.binary()
_STRING: Final = pa.string()
FEW_ROWS: Final = 512
"""Headers that no row of up to so many has are made once for each number of rows: half a MiB in all."""
ROW_OVERHEAD_BYTES: Final = 36
"""The cost of a record in a batch beside its own bytes: offset, timestamp, and an entry in each column."""

TIMESTAMP_US_MIN: Final = -62_135_596_800_000_000  # 0001-01-01, the first that ISO 8601 and Spark can show
TIMESTAMP_US_MAX: Final = 253_402_300_799_999_999  # 9999-12-31

# A concrete subject: tokens without blanks or control characters, none of them a lone wildcard.
# `check_subject` is the rule, and looks at all others; this is its fast path.
_TOKEN: Final = r"(?:[^\s.\x00-\x20\x7f\x85\p{Z}*>]|[^\s.\x00-\x20\x7f\x85\p{Z}]{2,})"
_CONCRETE: Final = rf"^{_TOKEN}(?:\.{_TOKEN})*$"

Lengths = npt.NDArray[np.int64]


def to_rows(
    batches: Sequence[pa.RecordBatch],
    *,
    subject: str,
    now_us: int,
    record_bytes_max: int,
    decoded_bytes_max: int,
    reserve: Callable[[int], None],
) -> tuple[pa.RecordBatch, Lengths]:
    """Convert and join validated batches of one schema.

    Args:
        batches: At least one, each with rows; columns as `check_columns` allows.
        subject: For rows without one.
        now_us: For rows without a timestamp.
        record_bytes_max: Limit of one record: subject, key, value, headers and reply together.
        decoded_bytes_max: Limit of all records together.
        reserve: Takes the memory of the rows, before they are made. Raises Overloaded.
    Returns:
        The rows (W1) and the bytes of each.
    Raises:
        InvalidRecords: a type or a value that records cannot have; names column and row.
        RecordTooLarge: names the row, its size and the limit.
        RequestTooLarge: all together are too large.
    """
    total = sum(_bytes_made(batch, subject) for batch in batches)
    _check_total(total, decoded_bytes_max)
    reserve(total if len(batches) == 1 else 2 * total)
    converted = [_convert(batch, subject=subject, now_us=now_us) for batch in batches]
    rows = converted[0] if len(converted) == 1 else pa.Table.from_batches(converted).combine_chunks().to_batches()[0]
    lengths = row_bytes(rows)
    if lengths.max() > record_bytes_max:
        row = int(np.argmax(lengths > record_bytes_max))
        raise RecordTooLarge(
            f"row {row} has {lengths[row]} bytes: a record of this stream may have {record_bytes_max} at most",
            row=row,
            size=int(lengths[row]),
            limit=record_bytes_max,
        )
    _check_values(rows)
    if any("subject" in batch.schema.names for batch in batches):
        _check_subjects(rows.column("subject"))
    return rows, lengths


def _bytes_made(batch: pa.RecordBatch, subject: str) -> int:
    """Bytes of a batch's records, those included that the broker adds."""
    total: int = ROW_OVERHEAD_BYTES * batch.num_rows
    total += sum(expanded_bytes(column) for column in batch.columns)
    at = batch.schema.get_field_index("subject")
    missing: int = batch.num_rows if at < 0 else batch.column(at).null_count
    return total + len(subject.encode()) * missing


def split(rows: pa.RecordBatch, lengths: Lengths, *, batch_bytes: int, batch_records: int) -> list[pa.RecordBatch]:
    """Cut rows into batches: each ends at `batch_records`, or with the record that reaches `batch_bytes`."""
    ends = np.cumsum(lengths + ROW_OVERHEAD_BYTES)
    parts = []
    first, before = 0, 0
    while first < rows.num_rows:
        full = int(np.searchsorted(ends, before + batch_bytes)) + 1
        stop = min(full, first + batch_records, rows.num_rows)
        parts.append(_without_stray_children(rows.slice(first, stop - first)))
        first, before = stop, int(ends[stop - 1])
    return parts


def row_bytes(rows: pa.RecordBatch) -> Lengths:
    """Bytes of each record: subject, key, value, headers and reply together."""
    total = np.zeros(rows.num_rows, np.int64)
    for name in ("subject", "key", "value", "reply"):
        column = rows.column(name)
        if column.null_count < len(column):
            total += _lengths(column)
    headers = rows.column("headers")
    if headers.null_count < len(headers):
        entries = headers.values
        ends = np.concatenate(([0], np.cumsum(_lengths(entries.field(0)) + _lengths(entries.field(1)))))
        offsets = headers.offsets.to_numpy()
        total += np.where(headers.is_valid().to_numpy(zero_copy_only=False), ends[offsets[1:]] - ends[offsets[:-1]], 0)
    return total


def _lengths(column: pa.Array) -> Lengths:
    """Bytes of each value of a binary or string column; 0 where it is null."""
    lengths: Lengths
    if column.null_count or not len(column):
        lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    else:
        lengths = np.diff(_ends(column)).astype(np.int64)
    return lengths


def _ends(column: pa.Array) -> npt.NDArray[np.signedinteger[Any]]:
    """Where the first of n > 0 values of a binary or string column begins, and where each ends: n + 1."""
    is_large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    kind = np.dtype(np.int64 if is_large else np.int32)
    return np.frombuffer(column.buffers()[1], kind, len(column) + 1, kind.itemsize * column.offset)


def expanded_bytes(column: pa.Array) -> int:
    """Bytes of all values if each had its own copy (W2), and of what lies behind nulls (W4)."""
    kind = column.type
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        return int(view_lengths(column).sum(dtype=np.int64)) if len(column) else 0
    if pa.types.is_map(kind):
        return expanded_bytes(column.keys) + expanded_bytes(column.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return expanded_bytes(column.values)
    if pa.types.is_struct(kind):
        return sum(expanded_bytes(column.field(i)) for i in range(kind.num_fields))
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width) * len(column)
    if _is_binary(kind) and not pa.types.is_null(kind) and len(column):
        ends = _ends(column)
        return int(ends[-1]) - int(ends[0])
    return 0


def _check_total(byte_count: int, limit: int) -> None:
    if byte_count > limit:
        raise RequestTooLarge(f"the records have {byte_count} bytes together: {limit} is the limit", limit=limit)


def _is_string(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_binary(kind: pa.DataType) -> bool:
    kinds: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
        pa.types.is_null,
    )
    return _is_string(kind) or any(is_kind(kind) for is_kind in kinds)


def _is_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _is_string(kind.key_type) and _is_binary(kind.item_type)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return bool(pa.types.is_null(kind))
    entry = kind.value_type
    return (
        bool(pa.types.is_struct(entry))
        and [field.name for field in entry] == ["key", "value"]
        and _is_string(entry.field(0).type)
        and _is_binary(entry.field(1).type)
    )


def _is_time(kind: pa.DataType) -> bool:
    return pa.types.is_null(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None)


def _is_text(kind: pa.DataType) -> bool:
    return _is_string(kind) or pa.types.is_null(kind)


_TAKEN: Final[dict[str, tuple[Callable[[pa.DataType], bool], str]]] = {
    "timestamp": (_is_time, "a timestamp with a time zone"),
    "subject": (_is_text, "a string"),
    "key": (_is_binary, "binary or a string"),
    "value": (_is_binary, "binary or a string"),
    "headers": (_is_headers, "a list of struct<key: string, value: binary>, or a map"),
    "reply": (_is_text, "a string"),
}


def _convert(batch: pa.RecordBatch, *, subject: str, now_us: int) -> pa.RecordBatch:
    given, count = batch.schema.names, batch.num_rows
    missing: dict[str, object] = {"timestamp": now_us, "subject": subject}
    arrays = []
    for field in _FIELDS:
        name = field.name
        if name in given:
            column = _cast(batch.column(name), field)
            if name in missing and column.null_count:
                column = pc.fill_null(column, pa.scalar(missing[name], field.type))
        elif name in missing:
            column = pa.repeat(pa.scalar(missing[name], field.type), count)
        else:
            column = _nulls(count, field.type)
        arrays.append(_without_hidden(column) if name in given else column)
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def _nulls(count: int, kind: pa.DataType) -> pa.Array:
    return _no_headers(count) if kind.equals(HEADERS_TYPE) else pa.nulls(count, kind)


def _no_headers(count: int) -> pa.Array:
    return _few_null_headers(count) if count <= FEW_ROWS else _empty_headers(pa.array(np.ones(count, np.bool_)))


@lru_cache(FEW_ROWS)
def _few_null_headers(count: int) -> pa.Array:
    return _empty_headers(pa.array(np.ones(count, np.bool_)))


def _empty_headers(is_null: pa.Array) -> pa.Array:
    """Headers without any entry, and without buffers for entries."""
    nothing = pa.array([], HEADERS_TYPE.value_type)
    offsets = pa.array(np.zeros(len(is_null) + 1, np.int32))
    return pa.ListArray.from_arrays(offsets, nothing, type=HEADERS_TYPE, mask=is_null)


def _without_stray_children(part: pa.RecordBatch) -> pa.RecordBatch:
    """A slice whose headers have no entry would be stored with the offset buffers of all of its parent's."""
    headers = part.column("headers")
    if headers.null_count == len(headers):
        return _with_headers(part, _no_headers(len(headers)))
    offsets = headers.offsets
    if offsets[0].as_py() != offsets[len(headers)].as_py():
        return part
    return _with_headers(part, _empty_headers(headers.is_null()))


def _with_headers(part: pa.RecordBatch, headers: pa.Array) -> pa.RecordBatch:
    return part.set_column(_HEADERS_AT, ROW_SCHEMA.field(_HEADERS_AT), headers)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    is_taken, what = _TAKEN[field.name]
    if not is_taken(column.type):
        raise InvalidRecords(
            f"column {field.name!r} is {str(column.type)[:200]}: must be {what}",
            column=field.name,
            value=str(column.type)[:200],
            limit=str(field.type),
        )
    if pa.types.is_null(column.type):
        return _nulls(len(column), field.type)
    if column.type.equals(field.type) and field.name != "headers":
        return column
    try:
        if pa.types.is_fixed_size_binary(column.type):  # there is no direct way from every width
            return column.cast(pa.binary())
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidRecords(f"column {field.name!r}: {str(error)[:300]}", column=field.name) from error


def _without_hidden(column: pa.Array) -> pa.Array:
    """The same values, with nothing behind nulls (W4)."""
    return column.take(pa.array(np.arange(len(column)))) if _hides(column) else column


def _hides(column: pa.Array) -> bool:
    if pa.types.is_list(column.type):
        if column.null_count:
            counts = np.diff(column.offsets.to_numpy())
            if counts[column.is_null().to_numpy(zero_copy_only=False)].any():
                return True
        return len(column.values) > 0 and _hides(column.values.field(1))
    if not column.null_count or column.type not in (_BINARY, _STRING):
        return False
    ends = _ends(column)
    return bool(ends[-1] - ends[0] > (pc.sum(pc.binary_length(column)).as_py() or 0))


def _check_values(rows: pa.RecordBatch) -> None:
    times = rows.column("timestamp").view(pa.int64()).to_numpy()
    wrong = (times < TIMESTAMP_US_MIN) | (times > TIMESTAMP_US_MAX)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidRecords(
            f"row {row}: timestamp {times[row]} us is outside the years 1 to 9999", column="timestamp", row=row
        )
    if rows.column("value").null_count:
        nameless = pc.and_(rows.column("key").is_null(), rows.column("value").is_null())
        if pc.any(nameless).as_py():
            row = pc.index(nameless, True).as_py()
            raise InvalidRecords(f"row {row}: the value is null and there is no key: a tombstone needs a key", row=row)
    if rows.column("headers").null_count < rows.num_rows:
        _check_headers(rows.column("headers"))


def _check_headers(headers: pa.Array) -> None:
    entries = headers.flatten()  # of the rows that are not null
    if entries.null_count or entries.field(0).null_count:
        raise InvalidRecords("column 'headers': a header without a name", column="headers")


def _check_subjects(subjects: pa.Array) -> None:
    good = pc.and_(
        pc.match_substring_regex(subjects, _CONCRETE),
        pc.less_equal(pc.binary_length(subjects), SUBJECT_BYTES_MAX),
    )
    if pc.all(good).as_py():
        return
    for row in np.flatnonzero(~good.to_numpy(zero_copy_only=False)):
        try:
            check_subject(subjects[int(row)].as_py(), wildcards=False)
        except InvalidSubject as error:
            raise InvalidRecords(f"row {row}: {error}", column="subject", row=int(row)) from error
