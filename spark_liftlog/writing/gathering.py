"""Rows of a task, gathered before they are looked at.

Spark hands over batches of some 2,000 rows, so that large values fit into memory (`session.configure`). The sink makes
a few hundred calls of Arrow and numpy for a batch, whatever it holds: on such batches they cost more than everything
that is done to the rows. One copy of the rows into larger batches is a small part of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

ROWS_GATHERED: Final = 1 << 14
"""About so many: columns of numbers then still fit into the processor's cache."""
BYTES_GATHERED: Final = 4 << 20
"""Gathered rows are copied, and held twice meanwhile."""


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in fewer batches. Batches without rows are left out."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if held and (rows + batch.num_rows > ROWS_GATHERED or size + batch.nbytes > BYTES_GATHERED):
            yield _one(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if held:
        yield _one(held)


def _one(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)
