"""An answer's body as verified record batches, decoded where they lie.

    | schema, pinned bytes | batch | batch | ... | batch | end marker |
    0                                                                length

An answer to who asked for some columns may have those only, then the schema says so (`broker/api/columns.py`).

`read_messages` reads the body into buffers of Arrow's memory pool, 2 MiB or as long as the batch needs. A buffer is
owned by the batches decoded from it (nothing is copied but the torn tail of one buffer to the front
of the next), and its pages go back to the pool when the last of them is dropped: the pool, not this
module, makes the buffers reusable, so a batch that somebody keeps is never overwritten.

With a `ReusedMemory` it reads all of them into one block, again and again: for whoever copies what he wants of a
message before he asks for the next one. Messages that are longer than the block get memory of their own.

Invariants
F1  No byte of a batch is decoded before its framing and CRC were checked, no batch before the schema.
F2  The end marker lies exactly at the announced end. A body that ends early, or holds anything but
    schema, batches and end marker, is an error; whole batches before that place have been yielded.

Tried (loopback, 1.1 MiB batches, CRC checked): 2 MiB buffers 4.4 GB/s, 4 MiB 3.2, 8 MiB 2.6: they
should stay in the processor's cache.

Format: docs/reference/storage.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from broker.api.batch import HEADER_BYTES, BatchHeader, message_bytes
from broker.api.checked import verified, verified_projected
from broker.api.columns import Columns, schema_bytes, schema_of
from broker.api.errors import BadBatch, Unavailable
from broker.api.gathered.reused_memory import ReusedMemory
from broker.api.schema import END_OF_STREAM, SCHEMA, SCHEMA_BYTES

BUFFER_BYTES: Final = 2 << 20
FILL_BYTES: Final = 256 << 10
"""Asked of the socket at least, so that small batches do not cost a call each."""
TAIL_BYTES: Final = 4 << 10
"""A tail up to this size moves to the front when more is asked for: a reused front is still in the cache."""

ReadInto = Callable[[memoryview], int]
"""Fills the front of a view: n >= 1 bytes, 0 at the end of the body or of the connection."""


@dataclass(slots=True)
class Message:
    """A batch as stored, or some columns of it, verified.

    Attributes:
        data: The whole message.
        is_passing: `data` will be overwritten when the next message is asked for.
        where: Begins the text of errors.
        columns: Those that it has; None: all.
    """

    header: BatchHeader
    data: memoryview
    is_passing: bool = False
    where: str = ""
    columns: Columns | None = None

    def kept(self) -> Message:
        """The same in memory of its own, if it is passing."""
        return replace(self, data=memoryview(bytes(self.data)), is_passing=False) if self.is_passing else self

    def rows(self) -> pa.RecordBatch:
        """All columns of `SCHEMA`, or `columns`, zero-copy unless compressed. Raises BadBatch: they are no Arrow."""
        schema = SCHEMA if self.columns is None else schema_of(self.columns)
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(self.data), schema)
        except (pa.ArrowException, OSError) as error:  # the CRC is right, so whoever wrote it was wrong
            raise BadBatch(f"{self.where}{error}") from error


def read_messages(
    readinto: ReadInto,
    length: int,
    *,
    where: str = "",
    buffer_bytes: int = BUFFER_BYTES,
    patience_s: float = float("inf"),
    memory: ReusedMemory | None = None,
    columns: Columns | None = None,
) -> Iterator[Message]:
    """Yield the messages of one body.

    Args:
        readinto: Reads on in the body.
        length: Bytes of the whole body.
        where: Begins the text of errors.
        buffer_bytes: Size of a buffer; a larger batch gets a larger one.
        patience_s: Longest time until the bytes of one batch have come.
        memory: Read into one block of it; messages that fit into `buffer_bytes` are then passing.
        columns: Those that were asked for; the body may have them only.
    Raises:
        BadBatch: schema, framing, CRC or end marker do not fit.
        UnknownFormatVersion: a later release wrote a batch.
        Unavailable: the body ended early, or came too slowly.
    """
    least = len(SCHEMA_BYTES) + len(END_OF_STREAM)
    if length < least:
        raise BadBatch(f"{where}a body of {length} bytes; schema and end marker alone are {least}")
    source = _Source(readinto, length, where=where, patience_s=patience_s)
    window = _Window(source, buffer_bytes) if memory is None else _ReusedWindow(source, buffer_bytes, memory)
    try:
        schema = bytes(window.take(len(SCHEMA_BYTES))[0])
        if schema == SCHEMA_BYTES:
            columns = None
        elif columns is None or schema != schema_bytes(columns):
            raise BadBatch(f"{where}the answer does not begin with the record schema that this release reads")
        while (room := window.behind - len(END_OF_STREAM)) > 0:
            size = message_bytes(window.peek(min(HEADER_BYTES, window.behind)), where=where)
            if size > room:
                raise BadBatch(f"{where}a batch of {size} bytes where {room} are left before the end marker")
            data, is_passing = window.take(size)
            if columns is None:
                yield Message(verified(data, where=where), data, is_passing, where)
            else:
                yield Message(verified_projected(data, columns, where=where), data, is_passing, where, columns)
        if bytes(window.take(len(END_OF_STREAM))[0]) != END_OF_STREAM:
            raise BadBatch(f"{where}no end marker at the end of {length} bytes")
    finally:
        window.close()


class _Source:
    """The body: what is left of it, read within the time."""

    def __init__(self, readinto: ReadInto, length: int, *, where: str, patience_s: float) -> None:
        self._readinto = readinto
        self._length = length
        self._where = where
        self._patience_s = patience_s
        self.unread = length

    def fill(self, view: memoryview, at: int, least: int) -> int:
        """Read to `view[at:]`, at least up to `least`. Returns up to where it is filled now."""
        out_of_time = time.monotonic() + self._patience_s
        while at < least:
            got = self._readinto(view[at:])
            if not got:
                read = self._length - self.unread
                raise Unavailable(f"{self._where}the answer ended after {read} of {self._length} bytes", sent=True)
            at += got
            self.unread -= got
            if time.monotonic() > out_of_time:
                raise Unavailable(f"{self._where}a batch took longer than {self._patience_s:g} s to come", sent=True)
        return at


class _Window:
    """The part of the body that is in memory and not taken yet: `_view[_at:_filled]`."""

    def __init__(self, source: _Source, buffer_bytes: int) -> None:
        self._source = source
        self._buffer_bytes = buffer_bytes
        self._view = memoryview(b"")
        self._at = 0
        self._filled = 0

    @property
    def behind(self) -> int:
        """Bytes of the body that are not taken yet, in memory or not."""
        return self._source.unread + self._filled - self._at

    def peek(self, count: int) -> memoryview:
        """The next `count` bytes; they stay."""
        self._ensure(count)
        return self._view[self._at : self._at + count]

    def take(self, count: int) -> tuple[memoryview, bool]:
        """The next `count` bytes, zero-copy, and whether they pass: whoever holds others holds their whole buffer."""
        self._ensure(count)
        self._at += count
        return self._view[self._at - count : self._at], False

    def close(self) -> None:
        """Nothing more is taken."""

    def _ensure(self, count: int) -> None:
        if self._at + count <= self._filled:
            return
        assert count <= self.behind
        if self._at + count > len(self._view):
            tail = self._view[self._at : self._filled]
            self._view = memoryview(pa.allocate_buffer(min(max(self._buffer_bytes, count), self.behind))).cast("B")
            self._view[: len(tail)] = tail
            self._at, self._filled = 0, len(tail)
        self._filled = self._source.fill(self._view, self._filled, self._at + count)


class _ReusedWindow(_Window):
    """The same in one block. A long message is read up to the header of the next one, which begins at the front too."""

    def __init__(self, source: _Source, buffer_bytes: int, memory: ReusedMemory) -> None:
        super().__init__(source, buffer_bytes)
        self._memory = memory
        self._block = memory.take(buffer_bytes)
        self._view = memoryview(self._block)  # type: ignore[arg-type]

    def take(self, count: int) -> tuple[memoryview, bool]:
        if count <= len(self._view):
            self._ensure(count)
            self._at += count
            return self._view[self._at - count : self._at], True
        there = self._view[self._at : self._filled]
        whole = memoryview(pa.allocate_buffer(count)).cast("B")
        whole[: len(there)] = there
        self._source.fill(whole, len(there), count)
        self._at = self._filled = 0
        return whole, False

    def close(self) -> None:
        self._view = memoryview(b"")
        self._memory.give(self._block)

    def _ensure(self, count: int) -> None:
        if self._at + count <= self._filled:
            return
        assert count <= self.behind
        if self._at + count > len(self._view) or self._filled - self._at <= TAIL_BYTES:
            tail = bytes(self._view[self._at : self._filled])
            self._view[: len(tail)] = tail
            self._at, self._filled = 0, len(tail)
        most = self._at + max(count + HEADER_BYTES, FILL_BYTES)
        self._filled = self._source.fill(self._view[:most], self._filled, self._at + count)
