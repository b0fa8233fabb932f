"""Batches for a log (`broker.api.encodable`) made of rows that are already Arrow: POSTed batches, `__offsets`.

The hot path from NATS brings its own `Encodable`: ingest composes its messages in compiled code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeGuard, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.api.batch import BUFFER_COUNT, HEADER_BYTES, BatchHeader, encode_batch
from broker.api.encodable import BatchPlace, Encodable
from broker.api.schema import SCHEMA

if TYPE_CHECKING:
    from broker.storage.memory.ids import IdTable
    from broker.storage.memory.subjects import SubjectTable

__all__ = ["ROW_COLUMNS", "Conditional", "Encodable", "Measured", "RowBatch", "StoredGroup", "is_conditional"]

ROW_COLUMNS = tuple(name for name in SCHEMA.names if name != "offset")
OFFSET_BYTES: Final = 8
OVERHEAD_BYTES_MAX: Final = HEADER_BYTES + 8 * BUFFER_COUNT
"""Beside the buffers of a message: its header, and their padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A commit group that is made, or read from elsewhere, while `PartitionLog.append_group` writes it.

    Attributes:
        batches: n >= 1 of them; each is composed, written and let go before the next is asked for.
        batch_count: n.
        byte_count: Bytes of their messages together, at most.
    """

    batches: Iterable[Encodable]
    batch_count: int
    byte_count: int


class Conditional(Encodable, Protocol):
    """A batch that came with message ids and expectations of its records' publishers.

    Attributes:
        condition_count: Records with either. 0: nothing is to be settled.
        id_count: Records with an id.
        minds_ids: Settling needs the table: some record has an id, or expects one.
        minds_subjects: Some record expects the last one on its subject.
        last_id: That of the last record that stays; empty: it has none.
    """

    @property
    def condition_count(self) -> int: ...
    @property
    def id_count(self) -> int: ...
    @property
    def minds_ids(self) -> bool: ...
    @property
    def minds_subjects(self) -> bool: ...
    @property
    def last_id(self) -> bytes: ...

    def make_room(self, ids: IdTable, *, now_us: int, wall_us: int, window_us: int, ids_max: int) -> None:
        """Before `settle`: let the ids go that are out of their window, and make room for those of this batch.

        So the table does not move its entries while some are noted that may have to be taken back.
        """

    def settle(
        self,
        ids: IdTable | None,
        subjects: SubjectTable | None,
        *,
        next_offset: int,
        now_us: int,
        wall_us: int,
        window_us: int,
        ids_max: int,
        subjects_max: int,
        fence: int = 0,
    ) -> None:
        """Drop the records that are not to be stored, once, before `compose`; note the ids of the others.

        The batch keeps which records were dropped and why, for its answers. `record_count` then counts what is left.

        Args:
            ids: This log's table, with room for this batch; its ids are in it afterwards. None: ids mean nothing here.
            subjects: This log's table; the records that stay are in it afterwards. None: not known yet, or never.
            next_offset: The offset of the first record.
            now_us: The time, by the clock of the table: an id that is noted now is of now.
            wall_us: The time, by the clock of the timestamps: so long ago a record was read (`settling.G5`).
            window_us: How long an id is known.
            ids_max: A new id over that is refused.
            fence: The partition's: a record that names another is dropped.
            subjects_max: 0: a record that expects the last one on its subject is refused for good.
        """

    def take_back(self, subjects: SubjectTable) -> None:
        """Undo what `settle` did to `subjects`: the batch was not appended after all."""

    def note_subjects(self, subjects: SubjectTable, first_offset: int) -> None:
        """Note the subjects of a batch that was appended, and that `settle` had no table for."""


def is_conditional(batch: Encodable) -> TypeGuard[Conditional]:
    """Whether a batch knows its ids. (Asking for the whole protocol takes longer than settling a message.)"""
    return hasattr(batch, "settle")


class Measured(Encodable, Protocol):
    """A batch that knows about how long its message will be.

    Attributes:
        byte_count_max: Its message has so many bytes or a little fewer.
    """

    byte_count_max: int


class RowBatch:
    """One batch of rows that does not know its offsets yet. Implements `Encodable`.

    Args:
        rows: n >= 1 rows of every column of `SCHEMA` but `offset`, of exactly its types; `offset` is replaced.
        producer_id, producer_epoch, sequence: Those of an idempotent producer; zeros for none.
    Attributes:
        byte_count_max: Its message has so many bytes or a little fewer.
    """

    __slots__ = (
        "_rows",
        "byte_count_max",
        "max_timestamp_us",
        "producer_epoch",
        "producer_id",
        "record_count",
        "sequence",
    )

    def __init__(
        self, rows: pa.RecordBatch, *, producer_id: int = 0, producer_epoch: int = 0, sequence: int = 0
    ) -> None:
        assert rows.num_rows > 0, "a batch holds at least one record"
        self._rows = rows.select(ROW_COLUMNS)
        self.record_count: int = rows.num_rows
        self.byte_count_max: int = self._rows.nbytes + OFFSET_BYTES * rows.num_rows + OVERHEAD_BYTES_MAX
        self.max_timestamp_us: int = pc.max(rows.column("timestamp")).cast(pa.int64()).as_py()
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.sequence = sequence

    def compose(self, **place: Unpack[BatchPlace]) -> bytearray:
        """Encode the rows as the message that stands at `first_offset`."""
        first_offset = place["first_offset"]
        next_offset = first_offset + self.record_count
        offsets = pa.array(np.arange(first_offset, next_offset, dtype=np.int64))
        header = BatchHeader(
            last_offset=next_offset - 1,
            max_timestamp_us=self.max_timestamp_us,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            sequence=self.sequence,
            **place,
        )
        return encode_batch(pa.RecordBatch.from_arrays([offsets, *self._rows.columns], schema=SCHEMA), header)
