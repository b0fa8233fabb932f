"""What a log appends (`Encodable`), and the one made of rows that are already Arrow: POSTed batches, `__offsets`.

The hot path from NATS brings its own `Encodable`: ingest composes its messages in compiled code.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.api.batch import BatchHeader, encode_batch
from broker.api.schema import SCHEMA

ROW_COLUMNS = tuple(name for name in SCHEMA.names if name != "offset")


class Encodable(Protocol):
    """A batch that is to be appended: n >= 1 records that do not know their offsets yet."""

    record_count: int
    max_timestamp_us: int

    def compose(
        self,
        *,
        first_offset: int,
        leader_epoch: int,
        high_watermark: int,
        group_index: int = 0,
        group_count: int = 1,
        decision: int = 0,
    ) -> bytes | bytearray | memoryview:
        """The whole message as it stands at `first_offset`, CRC in place."""


class RowBatch:
    """One batch of rows that does not know its offsets yet. Implements `Encodable`.

    Args:
        rows: n >= 1 rows of every column of `SCHEMA` but `offset`, of exactly its types; `offset` is replaced.
        producer_id, producer_epoch, sequence: Of an idempotent producer; zeros for none.
    """

    __slots__ = ("_rows", "max_timestamp_us", "producer_epoch", "producer_id", "record_count", "sequence")

    def __init__(
        self, rows: pa.RecordBatch, *, producer_id: int = 0, producer_epoch: int = 0, sequence: int = 0
    ) -> None:
        assert rows.num_rows > 0, "a batch holds at least one record"
        self._rows = rows.select(ROW_COLUMNS)
        self.record_count: int = rows.num_rows
        self.max_timestamp_us: int = pc.max(rows.column("timestamp")).cast(pa.int64()).as_py()
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.sequence = sequence

    def compose(
        self,
        *,
        first_offset: int,
        leader_epoch: int,
        high_watermark: int,
        group_index: int = 0,
        group_count: int = 1,
        decision: int = 0,
    ) -> bytearray:
        """Encode the rows as the message that stands at `first_offset`."""
        next_offset = first_offset + self.record_count
        offsets = pa.array(np.arange(first_offset, next_offset, dtype=np.int64))
        header = BatchHeader(
            first_offset=first_offset,
            last_offset=next_offset - 1,
            leader_epoch=leader_epoch,
            high_watermark=high_watermark,
            max_timestamp_us=self.max_timestamp_us,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            sequence=self.sequence,
            group_index=group_index,
            group_count=group_count,
            decision=decision,
        )
        return encode_batch(pa.RecordBatch.from_arrays([offsets, *self._rows.columns], schema=SCHEMA), header)
