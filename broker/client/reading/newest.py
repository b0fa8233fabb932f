"""The newest row of each key, from rows that come in the order of their offsets. Vectorised: nothing is done per row.

    waiting     | rows as they came | rows | rows |      joined with the rest when they have as many bytes as that
    newest      | rows, at most one of each key   |

Keys are numbered by Arrow's dictionary over all of these rows; of the rows with one number the last stays. The waiting
rows are as many as the newest ones, so a row that comes costs two rows of such a join. Memory: some four times the
newest rows, and `WAITING_BYTES_MIN`, whatever the length of the log.

A key is bytes, and the empty one is a key. A row without a key is counted and left out. A tombstone (no value) is the
newest row of its key like any other, until `values_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

WAITING_BYTES_MIN: Final = 64 << 20
WAITING_BATCHES_MAX: Final = 4096
"""Batches may have one row each: they are joined after so many, too."""
PART_BYTES: Final = 32 << 20
"""The newest rows are kept in parts of about this: an Arrow array of bytes ends at 2 GiB."""

Places = npt.NDArray[np.int64]


class Newest:
    """Takes rows of one partition, in their order. Their columns include `key`; all batches have the same.

    Args:
        waiting_bytes: Rows are joined once at least so many bytes wait.

    Attributes:
        without_key: Rows without a key that were left out.
    """

    def __init__(self, *, waiting_bytes: int = WAITING_BYTES_MIN) -> None:
        self.without_key = 0
        self._waiting_bytes_min = waiting_bytes
        self._newest: list[pa.RecordBatch] = []
        self._newest_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take further rows, all of them behind those that were taken before."""
        keys = rows.column("key")
        if keys.null_count:
            self.without_key += keys.null_count
            rows = rows.filter(keys.is_valid())
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._waiting_bytes += rows.get_total_buffer_size()
        is_enough = self._waiting_bytes >= max(self._waiting_bytes_min, self._newest_bytes)
        if is_enough or len(self._waiting) >= WAITING_BATCHES_MAX:
            self._join()

    def rows(self) -> list[pa.RecordBatch]:
        """The newest row of each key, tombstones included, in the order of their offsets."""
        if self._waiting:
            self._join()
        return list(self._newest)

    def _join(self) -> None:
        batches = [*self._newest, *self._waiting]
        self._waiting, self._waiting_bytes = [], 0
        numbers, count = key_numbers(batches)
        last = np.empty(count, np.int64)
        last[numbers] = np.arange(len(numbers))  # of places with one number the last assignment counts
        kept = chosen(batches, last)
        self._newest = _in_parts(kept)
        self._newest_bytes = sum(batch.get_total_buffer_size() for batch in self._newest)


def key_numbers(batches: Sequence[pa.RecordBatch]) -> tuple[Places, int]:
    """A number for each row, the same for equal keys, from 0 on; and how many there are. All rows have a key."""
    large = pa.large_binary()  # all distinct keys become one array
    keys = pa.chunked_array([batch.column("key").cast(large) for batch in batches], large).dictionary_encode()
    if not keys.num_chunks:
        return np.zeros(0, np.int64), 0
    numbers = np.concatenate([chunk.indices.to_numpy() for chunk in keys.chunks])
    return numbers, len(keys.chunk(keys.num_chunks - 1).dictionary)


def chosen(batches: Sequence[pa.RecordBatch], places: Places) -> list[pa.RecordBatch]:
    """The rows at some places, counted over all batches, in their order; copied, and no batch without rows."""
    keep = np.zeros(sum(batch.num_rows for batch in batches), np.bool_)
    keep[places] = True
    found, at = [], 0
    for batch in batches:
        mask = keep[at : at + batch.num_rows]
        at += batch.num_rows
        if mask.any():
            found.append(batch.filter(pa.array(mask)))
    return found


def values_of(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows that are no tombstones."""
    found = [
        batch if not batch.column("value").null_count else batch.filter(batch.column("value").is_valid())
        for batch in batches
    ]
    return [batch for batch in found if batch.num_rows]


def shared_keys(batches: Sequence[pa.RecordBatch]) -> tuple[Places, Places]:
    """The keys that have several rows, a value among them.

    Args:
        batches: The newest rows of several partitions, tombstones included.
    Returns:
        The places of the rows with such keys, counted over all batches; and the number of the key of each.
    """
    numbers, count = key_numbers(batches)
    if count == len(numbers):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    has_value = np.zeros(count, np.bool_)
    is_value = np.concatenate([b.column("value").is_valid().to_numpy(zero_copy_only=False) for b in batches])
    has_value[numbers[is_value]] = True
    places = np.flatnonzero((np.bincount(numbers, minlength=count) > 1)[numbers] & has_value[numbers])
    return places, numbers[places]


def newest_of_shared(batches: Sequence[pa.RecordBatch], places: Places, numbers: Places) -> list[pa.RecordBatch]:
    """The rows without those that share their key with a later one: by timestamp; of equal ones the last stays.

    Args:
        places, numbers: As `shared_keys` returns them.
    """
    times = np.concatenate([batch.column("timestamp").cast(pa.int64()).to_numpy() for batch in batches])[places]
    order = np.argsort(times, kind="stable")
    distinct, inverse = np.unique(numbers, return_inverse=True)
    last = np.empty(len(distinct), np.int64)
    last[inverse[order]] = places[order]
    keep = np.ones(sum(batch.num_rows for batch in batches), np.bool_)
    keep[places] = False
    keep[last] = True
    return chosen(batches, np.flatnonzero(keep))


def row_at(batches: Sequence[pa.RecordBatch], place: int) -> dict[str, Any]:
    """One row, for the text of an error."""
    for batch in batches:
        if place < batch.num_rows:
            found: dict[str, Any] = batch.slice(place, 1).to_pylist()[0]
            return found
        place -= batch.num_rows
    raise IndexError(place)


def _in_parts(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows in batches of about `PART_BYTES`, so that their number does not grow with each join."""
    found: list[pa.RecordBatch] = []
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held = batch.get_total_buffer_size()
        if waiting and size + held > PART_BYTES:
            found.append(waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting))
            waiting, size = [], 0
        waiting.append(batch)
        size += held
    if waiting:
        found.append(waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting))
    return found
