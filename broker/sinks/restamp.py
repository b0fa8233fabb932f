"""Staged batches on their way: into the hidden log with their stage's name, into the partition's log with offsets.

A staged message is a whole batch already. To stand at other offsets it needs another header value, another
`offset` column and another CRC, nothing else: the column is the first buffer of the body (broker.api.batch),
so all of it is patched in place, in the memory that it was read into. Nothing is decoded or encoded again.

Both classes are what a log appends (`broker.api.encodable`).
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final, Unpack

import numpy as np

from broker.api.batch import (
    BUFFERS_AT,
    FIELDS,
    HEADER_BYTES,
    ROWS_AT,
    TEMPLATE,
    VALUE_AT,
    VALUE_BYTES,
    BatchHeader,
    seal,
)
from broker.api.encodable import BatchPlace, Encodable
from broker.api.errors import BadBatch

_OFFSETS_AT: Final = BUFFERS_AT + 16
"""Buffer 1: the data of the first column; buffer 0, its validity, is empty."""


class StampedBatch:
    """A batch whose header names a stage or a decision, whatever the log says."""

    __slots__ = ("_batch", "_decision", "max_timestamp_us", "record_count")

    def __init__(self, batch: Encodable, decision: int) -> None:
        self._batch = batch
        self._decision = decision
        self.record_count = batch.record_count
        self.max_timestamp_us = batch.max_timestamp_us

    def compose(self, **place: Unpack[BatchPlace]) -> bytes | bytearray | memoryview:
        """The message of the batch, naming the decision."""
        place["decision"] = self._decision
        return self._batch.compose(**place)


class RestampedBatch:
    """A stored, verified, uncompressed message, to be appended elsewhere: composed in place, once.

    Args:
        message: As `PartitionLog.batches_in_turn` yields it, with its header.
        decision: The decision that its new header names.
    Raises:
        BadBatch: rows were removed from it, or its offsets are not where an uncompressed batch has them.
    """

    __slots__ = ("_decision", "_header", "_message", "max_timestamp_us", "record_count")

    def __init__(self, message: bytearray | memoryview, header: BatchHeader, decision: int) -> None:
        self._message = message
        self._header = header
        self._decision = decision
        self.max_timestamp_us = self._header.max_timestamp_us
        (self.record_count,) = struct.unpack_from("<q", message, ROWS_AT)
        place = struct.unpack_from("<qq", message, _OFFSETS_AT)
        span = self._header.next_offset - self._header.first_offset
        is_plain = bytes(message[:8]) == TEMPLATE[:8]
        if not is_plain or self.record_count != span or place != (0, 8 * self.record_count):
            raise BadBatch(
                f"a staged batch of {self.record_count} rows for {span} offsets, its offset column at {place}:"
                " it was rewritten and cannot be appended as it is"
            )

    def compose(self, **place: Unpack[BatchPlace]) -> bytearray | memoryview:
        """The message, changed to what stands at `first_offset`."""
        message = self._message
        first_offset = place["first_offset"]
        last_offset = first_offset + self.record_count - 1
        place["decision"] = self._decision
        header = replace(self._header, last_offset=last_offset, **place)
        message[VALUE_AT : VALUE_AT + VALUE_BYTES - FIELDS["crc"]] = header.value()[: -FIELDS["crc"]]
        column = np.frombuffer(message, "<i8", self.record_count, HEADER_BYTES)
        column[:] = np.arange(first_offset, first_offset + self.record_count, dtype=np.int64)
        del column
        seal(message)
        return message
