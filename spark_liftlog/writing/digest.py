"""A sum over rows that does not depend on their order: tells a replay from a batch that came out otherwise.

    rows with their streams, bytes of the records, their squares, all bytes of the values: each modulo 2^64

It is compared only by the broker, which logs a repetition that has another one: queries with `rand()` or
`current_timestamp()` replay so. Two different batches may have the same; nothing depends on it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Sums: TypeAlias = tuple[int, int, int, int]
NOTHING: Sums = (0, 0, 0, 0)


def digest_of(stream: str, rows: pa.RecordBatch, lengths: Any) -> Sums:
    """Of rows of one stream; `lengths` are the bytes of each."""
    squares = int((lengths.astype(np.uint64) ** 2).sum())
    return (zlib.crc32(stream.encode()) * rows.num_rows, int(lengths.sum()), squares, _byte_sum(rows.column("value")))


def together(parts: Iterable[Sums]) -> Sums:
    """Of all rows of the parts, in any order."""
    sums = NOTHING
    for part in parts:
        a, b, c, d = ((x + y) & 0xFFFF_FFFF_FFFF_FFFF for x, y in zip(sums, part, strict=True))
        sums = (a, b, c, d)
    return sums


def as_text(sums: Sums) -> str:
    """For the broker."""
    return "-".join(format(number, "x") for number in sums)


def _byte_sum(values: Any) -> int:
    data = values.buffers()[2]
    if data is None:
        return 0
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    first, last = int(offsets[values.offset]), int(offsets[values.offset + len(values)])
    return int(np.frombuffer(data, np.uint8)[first:last].sum(dtype=np.uint64))
