"""An answer's body as verified record batches, decoded where they lie.

    | schema, pinned bytes | batch | batch | ... | batch | end marker |
    0                                                                length

The body is read into buffers of Arrow's memory pool, 2 MiB or as long as the batch needs. A buffer is
owned by the batches decoded from it (nothing is copied but the torn tail of one buffer to the front
of the next), and its pages go back to the pool when the last of them is dropped: the pool, not this
module, makes the buffers reusable, so a batch that somebody keeps is never overwritten.

Invariants
F1  No byte of a batch is decoded before its framing and CRC were checked, no batch before the schema.
F2  The end marker lies exactly at the announced end. A body that ends early, or holds anything but
    schema, batches and end marker, is an error; whole batches before that place have been yielded.

Tried (loopback, 1.1 MiB batches, CRC checked): 2 MiB buffers 4.4 GB/s, 4 MiB 3.2, 8 MiB 2.6: they
should stay in the processor's cache.

Format: docs/storage.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from broker.api.batch import HEADER_BYTES, BatchHeader, message_bytes, verify_batch
from broker.api.errors import BadBatch, Unavailable
from broker.api.schema import END_OF_STREAM, SCHEMA, SCHEMA_BYTES

BUFFER_BYTES: Final = 2 << 20

ReadInto = Callable[[memoryview], int]
"""Fills the front of a view: n >= 1 bytes, 0 at the end of the body or of the connection."""


def read_batches(
    readinto: ReadInto,
    length: int,
    *,
    where: str = "",
    buffer_bytes: int = BUFFER_BYTES,
    patience_s: float = float("inf"),
) -> Iterator[tuple[BatchHeader, pa.RecordBatch]]:
    """Yield the batches of one body.

    Args:
        readinto: Reads on in the body.
        length: Bytes of the whole body.
        where: Begins the text of errors.
        buffer_bytes: Size of a buffer; a larger batch gets a larger one.
        patience_s: How long the bytes of one batch may take to come.
    Yields:
        Header and rows (all columns of `SCHEMA`, as the leader wrote them: nothing is sliced).
    Raises:
        BadBatch: schema, framing, CRC or end marker do not fit.
        UnknownFormatVersion: a later release wrote a batch.
        Unavailable: the body ended early, or came too slowly.
    """
    least = len(SCHEMA_BYTES) + len(END_OF_STREAM)
    if length < least:
        raise BadBatch(f"{where}a body of {length} bytes; schema and end marker alone are {least}")
    window = _Window(readinto, length, where=where, buffer_bytes=buffer_bytes, patience_s=patience_s)
    if window.take(len(SCHEMA_BYTES)).to_pybytes() != SCHEMA_BYTES:
        raise BadBatch(f"{where}the answer does not begin with the record schema that this release reads")
    while (room := window.behind - len(END_OF_STREAM)) > 0:
        size = message_bytes(window.peek(min(HEADER_BYTES, window.behind)), where=where)
        if size > room:
            raise BadBatch(f"{where}a batch of {size} bytes where {room} are left before the end marker")
        message = window.take(size)
        header = verify_batch(memoryview(message).cast("B"), where=where)
        try:
            rows = pa.ipc.read_record_batch(message, SCHEMA)
        except (pa.ArrowException, OSError) as error:  # the CRC is right, so whoever wrote it was wrong
            raise BadBatch(f"{where}{error}") from error
        yield header, rows
    if window.take(len(END_OF_STREAM)).to_pybytes() != END_OF_STREAM:
        raise BadBatch(f"{where}no end marker at the end of {length} bytes")


class _Window:
    """The part of the body that is in memory and not taken yet: `_view[_at:_filled]`."""

    def __init__(self, readinto: ReadInto, length: int, *, where: str, buffer_bytes: int, patience_s: float) -> None:
        self._readinto = readinto
        self._length = length
        self._where = where
        self._buffer_bytes = buffer_bytes
        self._patience_s = patience_s
        self._buffer = pa.allocate_buffer(min(buffer_bytes, length))
        self._view = memoryview(self._buffer).cast("B")
        self._at = 0
        self._filled = 0
        self._unread = length

    @property
    def behind(self) -> int:
        """Bytes of the body that are not taken yet, in memory or not."""
        return self._unread + self._filled - self._at

    def peek(self, count: int) -> memoryview:
        """The next `count` bytes; they stay."""
        self._ensure(count)
        return self._view[self._at : self._at + count]

    def take(self, count: int) -> pa.Buffer:
        """The next `count` bytes, zero-copy; whoever holds them holds their whole buffer."""
        self._ensure(count)
        self._at += count
        return self._buffer.slice(self._at - count, count)

    def _ensure(self, count: int) -> None:
        assert count <= self.behind
        if self._at + count > len(self._view):
            tail = self._view[self._at : self._filled]
            self._buffer = pa.allocate_buffer(min(max(self._buffer_bytes, count), self.behind))
            self._view = memoryview(self._buffer).cast("B")
            self._view[: len(tail)] = tail
            self._at, self._filled = 0, len(tail)
        if self._filled - self._at >= count:
            return
        out_of_time = time.monotonic() + self._patience_s
        while self._filled - self._at < count:
            got = self._readinto(self._view[self._filled :])
            if not got:
                read = self._length - self._unread
                raise Unavailable(f"{self._where}the answer ended after {read} of {self._length} bytes", sent=True)
            self._filled += got
            self._unread -= got
            if time.monotonic() > out_of_time:
                raise Unavailable(f"{self._where}a batch took longer than {self._patience_s:g} s to come", sent=True)
