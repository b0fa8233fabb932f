"""Which partition a record goes to. Pure; the same numbers as the broker's `partition_by = key`.

    partition = CRC-32 (IEEE, unsigned) of the key, modulo the number of partitions

A record without a key goes by its subject, as in the broker. Vectorised over the distinct keys.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a key (or, for a record without one, of its subject)."""
    return zlib.crc32(key) % partition_count


def partitions_of(records: pa.RecordBatch, partition_count: int, *, default_subject: str) -> npt.NDArray[np.int32]:
    """The partition of each row.

    Args:
        records: May have the columns `key` and `subject`; nulls and missing columns stand for none.
        default_subject: The subject that the broker stores for a record without one.
    Returns:
        int32, one per row.
    """
    found = np.full(records.num_rows, partition_of(default_subject.encode(), partition_count), np.int32)
    for name in ("subject", "key"):  # the key decides where there is one
        if name in records.schema.names:
            _by_distinct(records.column(name), partition_count, found)
    return found


def _by_distinct(column: Any, partition_count: int, found: npt.NDArray[np.int32]) -> None:
    """Overwrite `found` where the column has a value."""
    encoded = column.dictionary_encode()
    distinct = np.array(
        [
            partition_of(v.encode() if isinstance(v, str) else v, partition_count)
            for v in encoded.dictionary.to_pylist()
        ],
        np.int32,
    )
    if not len(distinct):
        return
    is_there = encoded.indices.is_valid().to_numpy(zero_copy_only=False)
    indices = encoded.indices.fill_null(0).to_numpy()
    np.copyto(found, distinct[indices], where=is_there)
