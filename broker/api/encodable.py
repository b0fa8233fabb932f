"""A batch that a log is to append. It does not know its place yet, and is composed when the log gives it one.

Ingest, storage and sinks each have batches of their own; this is all that they have in common.
"""

from __future__ import annotations

from typing import NotRequired, Protocol, Required, TypedDict, Unpack


class BatchPlace(TypedDict):
    """The place of a batch, with fields of `broker.api.batch.BatchHeader`. `decision` 0: of no sink."""

    first_offset: Required[int]
    leader_epoch: Required[int]
    high_watermark: Required[int]
    group_index: NotRequired[int]
    group_count: NotRequired[int]
    decision: NotRequired[int]


class Encodable(Protocol):
    """A batch that is to be appended: n >= 1 records that do not know their offsets yet."""

    record_count: int
    max_timestamp_us: int

    def compose(self, **place: Unpack[BatchPlace]) -> bytes | bytearray | memoryview:
        """The whole message as it stands there, CRC in place."""
