"""Records as users have them, as Arrow batches: what `append`, `send_batch` and `stage` take.

    Arrow            RecordBatch, Table, RecordBatchReader, or several of the first two
    data frames      pandas (its index is left out), polars, and whatever else hands out an Arrow stream
    plain Python     dicts with any of the keys value, key, headers, subject, timestamp, reply

Anything else is refused by its type. Columns and their types are the broker's to check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from broker.api.errors import InvalidRecords
from broker.api.schema import HEADERS_TYPE
from broker.client.writing.outgoing import as_bytes, as_pairs, as_timestamp_us, concrete

Records = Any
"""Records in one of the forms above. (Most of their types are those of libraries that need not be there.)"""

TAKEN: Final = (
    "an Arrow table, record batch or reader, a pandas or polars data frame, a list of record batches, or a list of"
    ' dicts such as [{"value": b"x", "key": b"k"}]'
)
DICTS_PER_BATCH: Final = 1 << 16


def record_batches(records: Records) -> Iterator[pa.RecordBatch]:
    """The records in batches, taken one by one from what yields them one by one.

    Yields:
        n >= 0 rows each. A table without rows is one batch, so that its columns are known.
    Raises:
        InvalidRecords: this cannot be records; names what was given, and what is taken.
    """
    if isinstance(records, pa.RecordBatch):
        yield records
    elif isinstance(records, pa.Table):
        yield from records.to_batches() or [pa.RecordBatch.from_pylist([], schema=records.schema)]
    elif isinstance(records, pa.RecordBatchReader):
        yield from records
    elif _is_pandas(records):
        yield from record_batches(_converted(records, lambda frame: pa.Table.from_pandas(frame, preserve_index=False)))
    elif hasattr(records, "__arrow_c_stream__") or hasattr(records, "__arrow_c_array__"):
        yield from record_batches(_converted(records, pa.table))
    elif isinstance(records, Iterable) and not isinstance(records, str | bytes | bytearray | memoryview | Mapping):
        yield from _several(iter(records))
    else:
        raise _refused(f"records are a {_named(records)}")


def _several(records: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    first = next(records, None)
    if first is None:
        return
    if isinstance(first, Mapping):
        yield from _from_dicts(chain([first], records))
        return
    for number, one in enumerate(chain([first], records)):
        if not isinstance(one, pa.RecordBatch | pa.Table):
            raise _refused(f"element {number} of the records is a {_named(one)}")
        yield from record_batches(one)


def _from_dicts(records: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise _refused(f"record {number} is a {_named(record)}, the first one is a dict")
        if unknown := [name for name in record if name not in COLUMNS]:
            raise InvalidRecords(f"record {number} has {unknown[0]!r}; a record has {', '.join(COLUMNS)}", row=number)
        for name, (read, _) in COLUMNS.items():
            value = record.get(name)
            try:
                columns[name].append(None if value is None else read(value))
            except InvalidRecords as error:
                raise InvalidRecords(f"record {number}, {name}: {error}", row=number) from error
        if columns["value"][-1] is None and columns["key"][-1] is None:
            raise InvalidRecords(f"record {number}: without a value it is a tombstone and needs a key", row=number)
        if len(columns["value"]) == DICTS_PER_BATCH:
            yield _batch(columns)
            columns = {name: [] for name in COLUMNS}
    if columns["value"]:
        yield _batch(columns)


def _batch(columns: Mapping[str, list[Any]]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values, COLUMNS[name][1]) for name, values in columns.items()})


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRecords(f"must be text, not {type(value).__name__}")
    return value


COLUMNS: Final[dict[str, tuple[Callable[[Any], Any], pa.DataType]]] = {
    "value": (as_bytes, pa.binary()),
    "key": (as_bytes, pa.binary()),
    "headers": (as_pairs, HEADERS_TYPE),
    "subject": (lambda value: concrete(_text(value)), pa.string()),
    "timestamp": (as_timestamp_us, pa.timestamp("us", tz="UTC")),
    "reply": (_text, pa.string()),
}
"""Keys of a record that is a dict: how each is read, and as which type it is sent."""


def _is_pandas(records: Any) -> bool:
    kind = type(records)
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def _converted(records: Any, convert: Callable[[Any], pa.Table]) -> pa.Table:
    try:
        return convert(records)
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError) as error:
        raise _refused(f"a {_named(records)} that is no Arrow table ({error})") from error


def _refused(what: str) -> InvalidRecords:
    return InvalidRecords(f"{what}; taken is {TAKEN}")


def _named(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
