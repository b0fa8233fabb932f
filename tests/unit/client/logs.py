"""A small log as a broker would answer it: real batches, right headers, the wanted range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from broker.api import http
from broker.api.batch import BatchHeader, encode_batch, read_header
from broker.api.schema import END_OF_STREAM, HEADERS_TYPE, SCHEMA, SCHEMA_BYTES

INCARNATION = "inc-1"


def rows(offsets: Sequence[int], *, value_bytes: int = 20) -> pa.RecordBatch:
    """Records whose value begins with their offset."""
    n = len(offsets)
    return pa.record_batch(
        [
            pa.array(offsets, pa.int64()),
            pa.array([1_700_000_000_000_000 + o for o in offsets], pa.timestamp("us", tz="UTC")),
            pa.array([f"orders.{o % 3}" for o in offsets]),
            pa.array([None if o % 2 else b"k%d" % o for o in offsets], pa.binary()),
            pa.array([(b"%d " % o).ljust(value_bytes, b".") for o in offsets], pa.binary()),
            pa.array([None] * n, HEADERS_TYPE),
            pa.array([None] * n, pa.string()),
        ],
        schema=SCHEMA,
    )


def message(
    first: int, stop: int, *, keep: Sequence[int] | None = None, value_bytes: int = 20, epoch: int = 0
) -> bytes:
    """The batch of offsets [first, stop); `keep`: what compaction left of them."""
    header = BatchHeader(first_offset=first, last_offset=stop - 1, leader_epoch=epoch)
    return bytes(encode_batch(rows(range(first, stop) if keep is None else keep, value_bytes=value_bytes), header))


def body(*messages: bytes) -> bytes:
    return SCHEMA_BYTES + b"".join(messages) + END_OF_STREAM


@dataclass
class Log:
    """Batches of one partition, in order; what a right answer to a request is."""

    messages: list[bytes]
    log_start: int = 0
    incarnation: str = INCARNATION

    @classmethod
    def of(cls, count: int, *, per_batch: int, value_bytes: int = 20) -> Log:
        starts = range(0, count, per_batch)
        return cls([message(s, min(s + per_batch, count), value_bytes=value_bytes) for s in starts])

    @property
    def high_watermark(self) -> int:
        return read_header(self.messages[-1]).next_offset if self.messages else self.log_start

    def plan(self, offset: int, end: int | None) -> list[bytes]:
        stop = self.high_watermark if end is None else min(end, self.high_watermark)
        found = [(read_header(m), m) for m in self.messages]
        return [m for h, m in found if h.next_offset > offset and h.first_offset < stop]

    def answer(self, offset: int, end: int | None = None) -> tuple[bytes, dict[str, str]]:
        """Body and headers for `offset=&end=`."""
        chosen = self.plan(offset, end)
        after = read_header(chosen[-1]).next_offset if chosen else offset
        return body(*chosen), self.headers(after)

    def headers(self, next_offset: int) -> dict[str, str]:
        return {
            "Content-Type": http.ARROW_STREAM,
            http.HIGH_WATERMARK: str(self.high_watermark),
            http.LOG_START_OFFSET: str(self.log_start),
            http.NEXT_OFFSET: str(next_offset),
            http.LEADER_EPOCH: "0",
            http.INCARNATION: self.incarnation,
        }
