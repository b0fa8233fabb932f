"""Which partition a row of the sink goes to. Vectorised over the rows of a batch.

    its column `partition`; else CRC-32 of its key, as the broker's `partition_by = key`; else the turn

Rows without a key share one turn per batch: each batch goes somewhere else, and is one append.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.api.errors import UnknownPartition
from broker.client.writing.partitioner import partitions_of

Numbers = npt.NDArray[np.int32]


def partitions_for(keys: Any, explicit: Any, *, partition_count: int, turn: int) -> Numbers:
    """The partition of each row.

    Args:
        keys: Binary `pyarrow.Array`, or None where the frame has no such column.
        explicit: int32 `pyarrow.Array`, or None; wins over the key where it is not null. One of the two is given.
        partition_count: >= 1.
        turn: Where rows with neither go, modulo the partitions.
    Raises:
        UnknownPartition: an explicit partition that the stream does not have.
    """
    rows = len(keys if keys is not None else explicit)
    found = np.full(rows, turn % partition_count, np.int32)
    if keys is not None and partition_count > 1:
        hashed = partitions_of(pa.RecordBatch.from_arrays([keys], names=["key"]), partition_count, default_subject="")
        np.copyto(found, hashed, where=_is_valid(keys))
    if explicit is not None:
        chosen, is_chosen = explicit.fill_null(0).to_numpy(zero_copy_only=False), _is_valid(explicit)
        wrong = np.flatnonzero(is_chosen & ((chosen < 0) | (chosen >= partition_count)))
        if len(wrong):
            raise UnknownPartition(
                f"column partition: {int(chosen[wrong[0]])} is not a partition of the stream, which has 0 to"
                f" {partition_count - 1}",
                partitions=partition_count,
            )
        np.copyto(found, chosen, where=is_chosen)
    return found


def _is_valid(array: Any) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid
