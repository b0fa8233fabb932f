"""Batches of publishers: small, of unique values, made cheaply."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from broker.api.batch import BatchHeader, encode_batch
from broker.api.schema import HEADERS_TYPE, SCHEMA
from broker.storage.rows import RowBatch


@cache
def columns(count: int) -> tuple[Any, ...]:
    """Those that are the same in each batch of so many messages."""
    return (
        pa.array(range(count), pa.timestamp("us", "UTC")),
        pa.array(["orders.1"] * count),
        pa.nulls(count, pa.binary()),
        pa.nulls(count, HEADERS_TYPE),
        pa.nulls(count, pa.string()),
    )


class Batch(RowBatch):
    """As any `RowBatch`, made and composed in a tenth of the time; knows its last message.

    Args:
        producer_id: 0: without an id, so that a repeat is stored again.
        sequence: The number of this batch among the producer's.
        keys: A key for each value; a key without a value is a tombstone. None: there are no keys.
    """

    def __init__(
        self,
        values: Sequence[bytes | None],
        producer_id: int = 0,
        sequence: int = 0,
        keys: Sequence[bytes] | None = None,
    ) -> None:
        self.values = values
        self.keys = keys
        self.record_count = len(values)
        self.max_timestamp_us = len(values) - 1
        self.producer_id, self.producer_epoch, self.sequence = producer_id, 0, sequence
        self.message = b""

    def compose(self, **place: Any) -> bytearray:
        first, count = place["first_offset"], self.record_count
        times, subjects, keys, headers, replies = columns(count)
        if self.keys is not None:
            keys = pa.array(self.keys, pa.binary())
        offsets = pa.array(np.arange(first, first + count, dtype=np.int64))
        values = pa.array(self.values, pa.binary())
        rows = pa.RecordBatch.from_arrays([offsets, times, subjects, keys, values, headers, replies], schema=SCHEMA)
        header = BatchHeader(
            last_offset=first + count - 1,
            max_timestamp_us=self.max_timestamp_us,
            producer_id=self.producer_id,
            sequence=self.sequence,
            **place,
        )
        message = encode_batch(rows, header)
        self.message = bytes(message)
        return message
