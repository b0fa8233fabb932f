"""Consumer offsets: what the internal stream `__offsets` holds, and the newest of each in memory.

Key `consumer/stream/partition`, value a JSON object; the newest record of a key counts, a null value
(tombstone) removes it. The table is rebuilt from the log at start, batch by batch. Pins are in the stream, too
(pins.py): they are no consumers, and are passed over here.

O1  The table equals "newest committed record of each key" of the log.
O2  An offset is stored as the consumer gave it: lag is computed when asked, against the high watermark.

Format: docs/reference/storage.md, section "Offset stream".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from broker.api.errors import UnknownConsumer
from broker.api.plain import parse_json
from broker.api.schema import rows_of
from broker.api.stream import OFFSETS_STREAM
from broker.api.validation import build

VALUE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOffset:
    """How far one consumer is in one partition.

    Attributes:
        offset: The next offset that it will read.
        leader_epoch: The epoch of the record before `offset`; -1 unknown.
        incarnation: The incarnation of the stream that was read; empty unknown.
        timestamp_us: When it was committed.
    """

    consumer: str
    stream: str
    partition: int
    offset: int
    leader_epoch: int = -1
    incarnation: str = ""
    timestamp_us: int = 0
    metadata: str = ""

    @property
    def key(self) -> bytes:
        """The record's key."""
        return f"{self.consumer}/{self.stream}/{self.partition}".encode()

    def value(self) -> bytes:
        """The record's value."""
        return json.dumps(
            {
                "v": VALUE_VERSION,
                "offset": self.offset,
                "leader_epoch": self.leader_epoch,
                "incarnation": self.incarnation,
                "timestamp_us": self.timestamp_us,
                "metadata": self.metadata,
            },
            separators=(",", ":"),
        ).encode()


def decode_offset(key: bytes, value: bytes) -> ConsumerOffset | None:
    """One record as an offset; None if it is none that this release understands."""
    try:
        consumer, stream, partition = key.decode().split("/")
        fields: dict[str, Any] = parse_json(value)
        if fields.pop("v") != VALUE_VERSION or not (partition.isascii() and partition.isdecimal()):
            return None
        names = {"consumer": consumer, "stream": stream, "partition": int(partition)}
        found = build(ConsumerOffset, {**fields, **names})
        return found if found.key == key else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def offset_rows(entries: Sequence[tuple[bytes, bytes | None]], *, timestamp_us: int) -> pa.RecordBatch:
    """Keys and values as rows, ready to append."""
    return rows_of(entries, subject=OFFSETS_STREAM, timestamp_us=timestamp_us)


@dataclass(slots=True)
class OffsetTable:
    """The newest offset of each key (O1)."""

    _rows: dict[str, dict[tuple[str, int], ConsumerOffset]] = field(default_factory=dict)

    def apply(self, batch: pa.RecordBatch) -> None:
        """Take in the records of one batch of the offset stream."""
        keys = batch.column("key").to_pylist()
        values = batch.column("value")
        for key, row in {key: row for row, key in enumerate(keys)}.items():
            self._put(key, values[row].as_py())

    def _put(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            return
        if value is None:
            self._remove(key)
        elif entry := decode_offset(key, value):
            self._rows.setdefault(entry.consumer, {})[entry.stream, entry.partition] = entry

    def _remove(self, key: bytes) -> None:
        parts = key.decode(errors="replace").split("/")
        if len(parts) == 3 and parts[2].isdigit() and (rows := self._rows.get(parts[0])):
            rows.pop((parts[1], int(parts[2])), None)
            if not rows:
                del self._rows[parts[0]]

    def consumers(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._rows)

    def knows(self, consumer: str) -> bool:
        """Whether there are offsets of it."""
        return consumer in self._rows

    def silent(self, before_us: int) -> list[str]:
        """Consumers that committed nothing at or after a time, sorted."""
        return sorted(
            consumer
            for consumer, rows in list(self._rows.items())
            if max(entry.timestamp_us for entry in list(rows.values())) < before_us
        )

    def get(self, consumer: str) -> list[ConsumerOffset]:
        """The offsets of one consumer, by stream and partition.

        Raises:
            UnknownConsumer: nothing is stored under this name.
        """
        if consumer not in self._rows:
            raise UnknownConsumer(f"no consumer {consumer!r}", consumer=consumer)
        return [entry for _, entry in sorted(self._rows[consumer].items())]
