"""Where each batch of a segment lies: one entry of 32 bytes per batch.

    0   i64  first offset of the batch
    8   i64  position of its first byte in the segment file
    16  i64  greatest timestamp up to and including this batch, microseconds
    24  u32  length of the message in bytes
    28  u32  CRC-32C of the message, as its header says

Timestamps are not monotonic, their running maximum is; so offsets and times are both found by
bisection. (By `bisect` over the column, not `searchsorted`: that copies a strided column first.)
The file is read with pread, never memory-mapped: a mapped file that shrinks kills the process.

A sealed segment's index file ends with a footer, also 32 bytes: magic, version, CRC-32C of the
entries, their count, the end of the last batch. The active segment's has none yet: how many of
its entries count, and their CRC, is in the checkpoint.

I1  An index is derivable from its segment. One that is missing, short or does not match its CRC is
    rebuilt by scanning, never believed.
I2  Entries below a published count never change: a view taken from a growing index stays valid.
I3  Every offset of a segment is in the range of one batch, or lost. So between two entries that do not touch in the
    file, and before the first and behind the last, offsets may be missing only where they are lost; anything else is an
    entry that the file lacks, whatever its CRC says. `read.LogView` looks once, when an index has been read.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from operator import add
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from broker.api.batch import BatchHeader
from broker.api.schema import SCHEMA_BYTES

ENTRY: Final = np.dtype(
    [("first_offset", "<i8"), ("position", "<i8"), ("max_timestamp_us", "<i8"), ("length", "<u4"), ("crc", "<u4")]
)
ENTRY_BYTES: Final = 32
ONE_ENTRY: Final = struct.Struct("<qqqII")
"""As `ENTRY`: to write one by numpy takes three times as long."""
FOOTER: Final = struct.Struct("<8sIIqq")
MAGIC: Final = b"LIFTINDX"
VERSION: Final = 1
Entries = npt.NDArray[np.void]

assert ENTRY.itemsize == ENTRY_BYTES == FOOTER.size == ONE_ENTRY.size


class IndexView:
    """The entries of one segment as they were when the view was taken. n >= 0 of them.

    Attributes:
        is_complete: No entry is missing, as far as is known. False: it comes from a file, and nobody has looked (I3).
    """

    __slots__ = ("contiguous", "entries", "first_offsets", "is_complete", "max_timestamps", "positions")

    def __init__(self, entries: Entries, *, contiguous: bool | None = None) -> None:
        self.entries = entries
        self.first_offsets = entries["first_offset"]
        self.positions = entries["position"]
        self.max_timestamps = entries["max_timestamp_us"]
        self.contiguous = is_contiguous(entries) if contiguous is None else contiguous
        self.is_complete = True

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def end(self) -> int:
        """Position after the last batch; after the schema message when there is none."""
        return self.end_of(len(self.entries) - 1)

    @property
    def max_timestamp_us(self) -> int:
        """Greatest timestamp of all batches; the least possible one when there is none."""
        return int(self.max_timestamps[-1]) if len(self.entries) else LEAST_TIMESTAMP_US

    def end_of(self, i: int) -> int:
        """Position after batch `i`; -1 is the schema message."""
        if i < 0:
            return len(SCHEMA_BYTES)
        entry = self.entries[i]
        return int(entry["position"]) + int(entry["length"])

    def find(self, offset: int) -> int:
        """The last batch that begins at or before `offset`; -1 when all begin later."""
        return bisect_right(self.first_offsets, offset) - 1

    def find_from(self, offset: int) -> int:
        """The first batch that begins at or after `offset`; n when all begin before."""
        return bisect_left(self.first_offsets, offset)

    def find_time(self, timestamp_us: int) -> int:
        """The first batch with a record at or after that time; n when there is none."""
        return bisect_left(self.max_timestamps, timestamp_us)


LEAST_TIMESTAMP_US: Final = -(1 << 63)


class GrowingIndex:
    """The index of the active segment. One thread appends, any number take views (I2). `end`: as that of a view."""

    __slots__ = ("_entries", "_memory", "count", "end", "max_timestamp_us")

    def __init__(self, entries: Entries | None = None) -> None:
        self.count = 0 if entries is None else len(entries)
        self._memory = bytearray(ENTRY_BYTES * max(16, self.count))  # what `_entries` shows
        self._entries: Entries = np.frombuffer(self._memory, ENTRY)
        if entries is not None:
            self._entries[: self.count] = entries
        view = self.view()
        self.end = view.end
        self.max_timestamp_us = view.max_timestamp_us

    def append(self, first_offset: int, position: int, max_timestamp_us: int, length: int, crc: int) -> None:
        count = self.count
        if count == len(self._entries):
            self.make_room(1)
        if max_timestamp_us > self.max_timestamp_us:
            self.max_timestamp_us = max_timestamp_us
        ONE_ENTRY.pack_into(
            self._memory, ENTRY_BYTES * count, first_offset, position, self.max_timestamp_us, length, crc
        )
        self.end = position + length
        self.count = count + 1

    def make_room(self, count: int) -> None:
        """Let the next `count` appends need no memory. MemoryError: nothing has changed."""
        lacking = self.count + count - len(self._entries)
        if lacking > 0:
            memory = self._memory + bytes(max(len(self._memory), ENTRY_BYTES * lacking))  # another: views have the old
            self._memory, self._entries = memory, np.frombuffer(memory, ENTRY)

    def view(self) -> IndexView:
        count = self.count  # before the array, which may be replaced by a longer one in between
        return IndexView(self._entries[:count], contiguous=True)


def is_contiguous(entries: Entries) -> bool:
    """Whether the batches follow one another without foreign bytes between or before them."""
    ends = entries["position"] + entries["length"]
    starts = np.append(entries["position"], ends[-1:])
    return bool((starts[1:] == ends).all()) and (len(entries) == 0 or int(starts[0]) == len(SCHEMA_BYTES))


def footer_of(entries: Entries) -> bytes:
    """The footer that closes a sealed segment's index file."""
    data = entries.tobytes()
    return FOOTER.pack(MAGIC, VERSION, crc32c(data), len(entries), IndexView(entries, contiguous=True).end)


def sealed_entries(data: bytes) -> Entries | None:
    """The entries of a sealed segment's index file, or None when it is not whole (I1)."""
    if len(data) < FOOTER.size or len(data) % ENTRY_BYTES:
        return None
    magic, version, crc, count, end = FOOTER.unpack_from(data, len(data) - FOOTER.size)
    if (magic, version, count) != (MAGIC, VERSION, len(data) // ENTRY_BYTES - 1):
        return None
    entries = counted_entries(data, count, crc)
    return entries if entries is not None and IndexView(entries, contiguous=True).end == end else None


def counted_entries(data: bytes, count: int, crc: int) -> Entries | None:
    """The first `count` entries of an index file, or None when they are not those of `crc` (I1)."""
    if len(data) < count * ENTRY_BYTES or crc32c(memoryview(data)[: count * ENTRY_BYTES]) != crc:
        return None
    entries = np.frombuffer(data, ENTRY, count) if count else np.zeros(0, ENTRY)
    return entries if is_sound(entries) else None


def is_sound(entries: Entries) -> bool:
    """Whether they can be the index of a segment at all: offsets and positions rise, no batch reaches into the next.

    A CRC says that they are what somebody wrote, not that it was for this file: searches and reads rely on order.
    """
    if not len(entries):
        return True
    first, position, length = (entries[name].astype(np.int64) for name in ("first_offset", "position", "length"))
    return bool(
        first[0] >= 0
        and position[0] >= len(SCHEMA_BYTES)
        and position[-1] <= 1 << 62
        and (length > 0).all()
        and (first[1:] > first[:-1]).all()
        and (position[1:] > position[:-1]).all()
        and (position[1:] - position[:-1] >= length[:-1]).all()
        and (entries["max_timestamp_us"][1:] >= entries["max_timestamp_us"][:-1]).all()
    )


class EntryPlace(NamedTuple):
    """Where an entry says that a batch lies."""

    first_offset: int
    position: int
    end: int


def places_of(entries: Entries) -> list[EntryPlace]:
    """The places of entries."""
    positions, lengths = entries["position"].tolist(), entries["length"].tolist()
    ends = map(add, positions, lengths)
    return list(map(EntryPlace, entries["first_offset"].tolist(), positions, ends))


def is_in_place(header: BatchHeader, places: Sequence[EntryPlace], at: int) -> bool:
    """Whether a batch that is whole begins where the index says, and ends where the next one begins that touches it."""
    place, after = places[at], places[at + 1] if at + 1 < len(places) else None
    touches = after is not None and after.position == place.end
    return header.first_offset == place.first_offset and (
        after is None or not touches or header.next_offset == after.first_offset
    )


class IndexCache:
    """Indexes of sealed and resting segments, the recently used ones, within `bytes_max` for the whole process.

    Thread-safe. Keys are `Segment.serial`: never reused, so an old entry cannot stand for a new file.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.byte_count = 0
        self._views: OrderedDict[int, IndexView] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, serial: int) -> IndexView | None:
        with self._lock:
            view = self._views.get(serial)
            if view is not None:
                self._views.move_to_end(serial)
            return view

    def put(self, serial: int, view: IndexView) -> None:
        """Keep `view`, dropping the least recently used others. One over the bound alone is kept, alone."""
        with self._lock:
            self._drop(serial)
            self._views[serial] = view
            self.byte_count += view.entries.nbytes
            while self.byte_count > self.bytes_max and len(self._views) > 1:
                self._drop(next(iter(self._views)))

    def drop(self, serial: int) -> None:
        with self._lock:
            self._drop(serial)

    def _drop(self, serial: int) -> None:
        view = self._views.pop(serial, None)
        if view is not None:
            self.byte_count -= view.entries.nbytes


INDEX_CACHE: Final = IndexCache(64 << 20)
"""Shared by all logs of the process: 64 MiB hold the places of two million batches."""
