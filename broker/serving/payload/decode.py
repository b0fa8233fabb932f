"""Bytes that a stranger sent, as record batches that are safe to compute with.

The frame is walked first (`framing.py`), then Arrow decodes, then `validate(full=True)` looks at every
offset, length and UTF-8 string, but at those of nulls: for views this is done here. Nothing reads a value before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.api.errors import InvalidRecords
from broker.serving.payload.framing import walk

_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


def decode_stream(
    body: bytes | bytearray | memoryview, *, decoded_bytes_max: int, reserve: Callable[[int], None]
) -> list[pa.RecordBatch]:
    """The batches of a whole Arrow stream, in their own schema; those without rows left out.

    Args:
        body: Must not change afterwards: the batches are views into it.
        decoded_bytes_max: Limit of all batch bodies together, decompressed.
        reserve: Takes the memory of what Arrow will decompress, before it does. Raises Overloaded.
    Raises:
        InvalidRecords: malformed in any way.
        RequestTooLarge: over a limit.
    """
    reserve(walk(body, decoded_bytes_max=decoded_bytes_max).inflated_bytes)
    try:
        with pa.ipc.open_stream(pa.py_buffer(body), options=_OPTIONS) as reader:
            check_text(reader.schema)
            check_columns(reader.schema)
            batches = []
            for number, batch in enumerate(reader):
                try:
                    batch.validate(full=True)
                except (pa.ArrowException, ValueError) as error:
                    raise InvalidRecords(f"batch {number}: {str(error)[:300]}", batch=number) from error
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if (length := shortest_view(column)) < 0:
                        raise InvalidRecords(
                            f"batch {number}: column {name!r} has a view of {length} bytes", batch=number, column=name
                        )
                if batch.num_rows:
                    batches.append(batch)
            return batches
    except InvalidRecords:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        raise InvalidRecords(f"the request body is not a usable Arrow stream: {str(error)[:300]}") from error


def shortest_view(column: pa.Array) -> int:
    """The least length among the views of a column at any depth, nulls included; 0: it has none.

    Arrow does not validate a null, and yet adds up its length when it casts: a negative one has it allocate less than
    it then writes.
    """
    kind = column.type
    if not len(column):
        return 0
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        return min(int(view_lengths(column).min()), 0)
    if pa.types.is_map(kind):
        return min(shortest_view(column.keys), shortest_view(column.items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return shortest_view(column.values)
    if pa.types.is_struct(kind):
        return min((shortest_view(column.field(i)) for i in range(kind.num_fields)), default=0)
    return 0  # no other type that is taken has views (`rows`)


def view_lengths(column: pa.Array) -> npt.NDArray[np.int32]:
    """The length of each of the views of a column that has some. Their buffer may have any bytes behind them."""
    return np.frombuffer(column.buffers()[1], np.int32, 4 * len(column), 16 * column.offset)[::4]


def check_text(schema: pa.Schema) -> None:
    """Refuse a schema with text that is not UTF-8: a name at any depth, a time zone.

    Arrow checks the text of values alone, and decodes that of a schema wherever it is asked for.

    Raises:
        InvalidRecords: names the column by its number, from 0.
    """
    for number in range(len(schema)):
        try:
            for _ in _texts(schema.field(number)):
                pass
        except UnicodeDecodeError as error:
            raise InvalidRecords(f"column {number}: a name or time zone of its type is not UTF-8: {error}") from error


def _texts(field: pa.Field) -> Iterator[str | None]:
    """Each text of a field and its type, decoded. Arrow reads no deeper than 64 levels."""
    yield field.name
    kind = field.type
    while isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind.storage_type
    if pa.types.is_timestamp(kind):
        yield kind.tz
    for i in range(kind.num_fields):
        yield from _texts(kind.field(i))


COLUMNS = ("key", "value", "headers", "subject", "timestamp", "reply")


def check_columns(schema: pa.Schema) -> None:
    """Refuse a schema that records cannot have. (Types are checked where they are converted.)

    Raises:
        InvalidRecords: names the column and what there may be.
    """
    seen = set()
    for name in schema.names:
        if name == "offset":
            raise InvalidRecords("column 'offset': the broker assigns offsets; drop the column", column="offset")
        if name not in COLUMNS:
            raise InvalidRecords(
                f"column {name[:100]!r} is unknown; there are {', '.join(COLUMNS)}",
                column=name[:100],
                limit=list(COLUMNS),
            )
        if name in seen:
            raise InvalidRecords(f"column {name!r} is given twice", column=name)
        seen.add(name)
    if not seen & {"key", "value"}:
        raise InvalidRecords("a column 'value' or 'key' is required", limit=["value", "key"])
