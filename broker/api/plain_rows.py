"""Small batches of rows that have neither headers nor replies, composed without Arrow.

    PlainRows.of(rows).batch(first, stop)     a slice of rows that are Arrow
    plain_batch(entries, subject=…)           keys and values

To take a slice of an Arrow batch, to have it written, and to take that apart costs a quarter of a millisecond, however
few rows it has. Here a message is joined from its columns' bytes.

P1  The message is byte for byte the one that `RowBatch` composes of the same rows.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.api.batch import (
    BODY_LENGTH_AT,
    BUFFER_COUNT,
    BUFFERS_AT,
    CRC_AT,
    FIELDS,
    HEADER_BYTES,
    NODE_COUNT,
    NODES_AT,
    ROWS_AT,
    TEMPLATE,
    VALUE_AT,
    BatchHeader,
    seal,
)
from broker.api.encodable import BatchPlace

_BUFFERS: Final = struct.Struct(f"<{2 * BUFFER_COUNT}q")
_NODES: Final = struct.Struct(f"<{2 * NODE_COUNT}q")
_PADDING: Final = tuple(bytes(-size % 8) for size in range(8))
_NO_ENTRY: Final = bytes(4)
"""Offsets of a column without rows."""


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of bytes or text: its validity (empty: no nulls), its offsets from 0 on, its bytes."""

    null_count: int
    validity: bytes
    offsets: bytes
    data: bytes


class PlainBatch:
    """One batch. Implements `Encodable`.

    Args:
        timestamps: Microseconds, as bytes of int64.
    """

    __slots__ = ("_columns", "_timestamps", "byte_count_max", "max_timestamp_us", "record_count")

    def __init__(
        self, timestamps: bytes, max_timestamp_us: int, subject: TextColumn, key: TextColumn, value: TextColumn
    ) -> None:
        self._timestamps = timestamps
        self._columns = (subject, key, value)
        self.record_count = n = len(timestamps) // 8
        self.max_timestamp_us = max_timestamp_us
        columns = sum(len(each.validity) + len(each.offsets) + len(each.data) for each in self._columns)
        nulls = 2 * (-(-n // 8) + 4 * (n + 1))  # of headers and reply
        self.byte_count_max: int = HEADER_BYTES + 8 * BUFFER_COUNT + 2 * len(timestamps) + columns + nulls

    def compose(self, **place: Unpack[BatchPlace]) -> bytearray:
        """The message that stands at `first_offset`."""
        n, first_offset = self.record_count, place["first_offset"]
        subject, key, value = self._columns
        offsets = np.arange(first_offset, first_offset + n, dtype="<i8").tobytes()
        none, starts = bytes(-(-n // 8)), bytes(4 * (n + 1))
        buffers = (
            *(b"", offsets, b"", self._timestamps),
            *(subject.validity, subject.offsets, subject.data),
            *(key.validity, key.offsets, key.data),
            *(value.validity, value.offsets, value.data),
            *(none, starts, b"", b"", _NO_ENTRY, b"", b"", _NO_ENTRY, b""),  # headers
            *(none, starts, b""),  # reply
        )
        sizes = list(map(len, buffers))
        begins = [0, *itertools.accumulate([size + 7 & ~7 for size in sizes])]
        position = begins.pop()
        places = [0] * (2 * BUFFER_COUNT)
        places[::2], places[1::2] = begins, sizes
        parts = [buffer + _PADDING[len(buffer) & 7] for buffer in buffers if buffer]
        header = BatchHeader(last_offset=first_offset + n - 1, max_timestamp_us=self.max_timestamp_us, **place)
        head = bytearray(TEMPLATE)
        struct.pack_into("<q", head, BODY_LENGTH_AT, position)
        struct.pack_into("<q", head, ROWS_AT, n)
        _BUFFERS.pack_into(head, BUFFERS_AT, *places)
        nulls = (subject.null_count, key.null_count, value.null_count)
        counts = (n, 0, n, 0, n, nulls[0], n, nulls[1], n, nulls[2], n, n, 0, 0, 0, 0, 0, 0, n, n)
        _NODES.pack_into(head, NODES_AT, *counts)
        head[VALUE_AT:CRC_AT] = header.value()[: -FIELDS["crc"]]
        message = bytearray().join([head, *parts])
        seal(message)
        return message


class PlainRows:
    """Rows whose slices become batches. Made by `of`."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        timestamps = rows.column("timestamp")
        self._timestamps = np.frombuffer(timestamps.buffers()[1], "<i8", rows.num_rows, 8 * timestamps.offset)
        self._subject, self._key, self._value = (_Texts(rows.column(name)) for name in ("subject", "key", "value"))

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> PlainRows | None:
        """None: some of them have headers or a reply, or a timestamp is missing."""
        if rows.num_rows == 0 or any(rows.column(name).null_count < rows.num_rows for name in ("headers", "reply")):
            return None
        return None if rows.column("timestamp").null_count else cls(rows)

    def batch(self, first: int, stop: int) -> PlainBatch:
        """Rows [first, stop), of one at least."""
        timestamps = self._timestamps[first:stop]
        columns = (column.slice(first, stop) for column in (self._subject, self._key, self._value))
        return PlainBatch(timestamps.tobytes(), int(timestamps.max()), *columns)


class _Texts:
    """A column of which slices are taken."""

    def __init__(self, column: Any) -> None:
        _, offsets, data = column.buffers()
        self._valid: npt.NDArray[np.bool_] | None = None
        if column.null_count:
            self._valid = column.is_valid().to_numpy(zero_copy_only=False)
        self._offsets = np.frombuffer(offsets, "<i4", len(column) + 1, 4 * column.offset)
        self._data = memoryview(data) if data is not None else memoryview(b"")

    def slice(self, first: int, stop: int) -> TextColumn:
        offsets = self._offsets[first : stop + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        nulls, validity = 0, b""
        if self._valid is not None:
            valid = self._valid[first:stop]
            nulls = len(valid) - int(np.count_nonzero(valid))
            validity = np.packbits(valid, bitorder="little").tobytes() if nulls else b""
        return TextColumn(nulls, validity, (offsets - begin).tobytes(), bytes(self._data[begin:end]))


def plain_batch(entries: Sequence[tuple[bytes, bytes]], *, subject: str, timestamp_us: int) -> PlainBatch:
    """Keys and values, of one at least, as a batch; the rows are those of `schema.rows_of`."""
    keys, values = zip(*entries, strict=True)
    subjects = _texts([subject.encode()] * len(entries))
    timestamps = struct.pack("<q", timestamp_us) * len(entries)
    return PlainBatch(timestamps, timestamp_us, subjects, _texts(keys), _texts(values))


def _texts(texts: Sequence[bytes]) -> TextColumn:
    ends = itertools.accumulate(map(len, texts), initial=0)
    return TextColumn(0, b"", struct.pack(f"<{len(texts) + 1}i", *ends), b"".join(texts))
