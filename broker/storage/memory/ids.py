"""Which message ids (`Nats-Msg-Id`) one partition has stored lately, and where. A table: no I/O, no clock.

    entries   | gone | gone | id 128 bits, offset, time | ... | id, offset, time |        a ring, in log order
                              head                              tail
    index     hash -> place in the ring                                                   open addressing, linear

An id is known until its record has been in the log for the window. The time of an entry is when this replica had the
record (`memory.M5`): it ascends along the ring. An id takes 48 bytes at most, twice that while it grows.

I1  The last of the records with one id is known. Those from NATS are a window apart, so within a window it is the only
    one, but for what came over HTTP. (The last, not the first: so the log tells the same from wherever it is read.)
I2  No id is forgotten before its time: a table that is full refuses new ids, and its publishers try again.
I3  The arrays are the whole state: the compiled twin (broker/ingest/_ids.pxi) works on the same ones, step by step as
    `find`, `add`, `take_back` and `expire` do.
I4  The index is at most a quarter full, so that an unknown id seldom meets another; every entry of the ring but the
    stale ones is in it, once.

Ids stand as keyed hashes: siphash.py says why that is enough. Format of a snapshot: docs/reference/storage.md.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.api.batch import NODES_AT
from broker.api.errors import CorruptLog, UnknownFormatVersion
from broker.api.schema import SCHEMA
from broker.storage.memory.siphash import FEW, KEY_BYTES, Hashes, siphash, siphash_all

HEADER_NAME: Final = "Nats-Msg-Id"
_NAME: Final = np.frombuffer(HEADER_NAME.encode(), np.uint8)
INDEX_PER_ENTRY: Final = 4
SNAPSHOT_VERSION: Final = 1
CAPACITY_MIN: Final = 64
STALE: Final = -1
"""Offset of an entry whose id has come again: it is not in the index any more."""
_HEAD: Final = struct.Struct("<HHI16sQ")  # version, zero, bytes of the last id, key, number of entries
_NODE: Final = struct.Struct("<qq")  # length, null count
_HEADERS_AT: Final = NODES_AT + _NODE.size * SCHEMA.names.index("headers")  # no column before it is nested
_FIRST, _SECOND, _OFFSET, _TIME = range(4)
Numbers = npt.NDArray[np.int64]
Index = npt.NDArray[np.int32]


class IdTable:
    """See the module. Not thread-safe: the log's append lock covers it.

    Args:
        key: The key of the hash; random unless given.

    Attributes:
        entries: capacity x 4 int64: the id's two words, offset, microseconds.
        index: `INDEX_PER_ENTRY` times as many int32: place in `entries` + 1; 0: empty.
        places: Head and tail, counted from the beginning of time; modulo the capacity they are places.
        last_id: Id of the last record of the log; empty when it has none.
    """

    __slots__ = ("entries", "index", "key", "last_id", "places")

    def __init__(self, key: bytes | None = None) -> None:
        self.key = os.urandom(KEY_BYTES) if key is None else key
        self.last_id = b""
        self._clear(CAPACITY_MIN)

    def _clear(self, capacity: int) -> None:
        self.entries = np.zeros((capacity, 4), np.int64)
        self.index = np.zeros(INDEX_PER_ENTRY * capacity, np.int32)
        self.places = np.zeros(2, np.int64)

    def __len__(self) -> int:
        return int(self.places[1] - self.places[0])

    @property
    def capacity(self) -> int:
        return len(self.entries)

    # --- one id --------------------------------------------------------------------------------------------------

    def find(self, text: bytes, since_us: int) -> int:
        """The offset of the record with this id, if it is younger than `since_us`; else -1."""
        first, second = siphash(self.key, text)
        at = self._find(first, second)
        if at < 0:
            return -1
        entry = self.entries[int(self.index[at]) - 1]
        return int(entry[_OFFSET]) if entry[_TIME] > since_us else -1

    def add(self, text: bytes, offset: int, time_us: int) -> None:
        """Note where an id is now. There is room for it."""
        first, second = siphash(self.key, text)
        at = self._find(first, second)
        if at >= 0:
            self.entries[int(self.index[at]) - 1, _OFFSET] = STALE
            self._unindex(at)
        tail = int(self.places[1])
        place = tail % self.capacity
        self.entries[place] = (_signed(first), _signed(second), offset, time_us)
        at = first % len(self.index)
        while self.index[at]:
            at = (at + 1) % len(self.index)
        self.index[at] = place + 1
        self.places[1] = tail + 1

    def take_back(self, tail: int) -> None:
        """Forget the entries from `tail` (as `places` had it) on: their records were not appended after all."""
        for at in range(int(self.places[1]) - 1, tail - 1, -1):
            self._drop(at % self.capacity)
        self.places[1] = tail

    def expire(self, since_us: int) -> None:
        """Forget the oldest entries as long as they are not younger than that."""
        head, tail = self.places.tolist()
        while head < tail and self.entries[head % self.capacity, _TIME] <= since_us:
            self._drop(head % self.capacity)
            head += 1
        self.places[0] = head

    def _drop(self, place: int) -> None:
        entry = self.entries[place]
        if entry[_OFFSET] == STALE:
            return
        at = self._find(int(entry[_FIRST]) % (1 << 64), int(entry[_SECOND]) % (1 << 64))
        assert self.index[at] == place + 1, "I4"
        self._unindex(at)

    def _find(self, first: int, second: int) -> int:
        """Where in the index an id is; -1: nowhere."""
        signed_first, signed_second = _signed(first), _signed(second)
        at = first % len(self.index)
        while held := int(self.index[at]):
            entry = self.entries[held - 1]
            if entry[_FIRST] == signed_first and entry[_SECOND] == signed_second:
                return at
            at = (at + 1) % len(self.index)
        return -1

    def _unindex(self, at: int) -> None:
        """Empty a place of the index; later ones of its run move up."""
        mask = len(self.index) - 1
        following = at
        while True:
            following = (following + 1) & mask
            held = int(self.index[following])
            if not held:
                break
            home = int(self.entries[held - 1, _FIRST]) & mask
            if (following - home) & mask >= (following - at) & mask:
                self.index[at] = held
                at = following
        self.index[at] = 0

    # --- many ----------------------------------------------------------------------------------------------------

    def reserve(self, count: int, fill: Callable[[Numbers, Index, int], object] | None = None) -> None:
        """Make room for so many more.

        Args:
            fill: Puts the first n entries into the empty index, as `_index` does, but faster.
        """
        needed = len(self) + count
        if needed > self.capacity:
            self._refill(self._held(), 1 << (needed - 1).bit_length(), fill)

    def note(self, texts: Sequence[bytes], offsets: Numbers, times_us: Numbers) -> None:
        """Note the ids of records that are in the log, in its order."""
        n = len(texts)
        self.reserve(n)
        if n <= FEW:
            self._add_each(texts, offsets, times_us)
            return
        hashes = siphash_all(self.key, texts)
        if not self._knows_any(hashes) and len(np.unique(hashes, axis=0)) == n:
            places = (int(self.places[1]) + np.arange(n)) % self.capacity
            self.entries[places, :2] = hashes.view(np.int64)
            self.entries[places, _OFFSET] = offsets
            self.entries[places, _TIME] = times_us
            self.places[1] += n
            self._index(places)
        else:
            self._add_each(texts, offsets, times_us)

    def _add_each(self, texts: Sequence[bytes], offsets: Numbers, times_us: Numbers) -> None:
        for text, offset, time_us in zip(texts, offsets.tolist(), times_us.tolist(), strict=True):
            self.add(text, offset, time_us)

    def _held(self) -> Numbers:
        """The entries, the oldest first, without the stale ones."""
        head, tail = self.places.tolist()
        begin, count = head % self.capacity, tail - head
        held = np.concatenate(
            [self.entries[begin : begin + count], self.entries[: max(0, begin + count - self.capacity)]]
        )
        found: Numbers = held[held[:, _OFFSET] != STALE]
        return found

    def _refill(
        self, held: Numbers, capacity: int, fill: Callable[[Numbers, Index, int], object] | None = None
    ) -> None:
        self._clear(max(capacity, CAPACITY_MIN))
        self.entries[: len(held)] = held
        self.places[1] = len(held)
        if fill is not None:
            fill(self.entries, self.index, len(held))
        else:
            self._index(np.arange(len(held)))

    def _knows_any(self, hashes: Hashes) -> bool:
        at = self._homes(hashes)
        left = np.arange(len(hashes))
        signed = hashes.view(np.int64)
        while len(left):
            held = self.index[at]
            left, at, held = left[held > 0], at[held > 0], held[held > 0]
            if (self.entries[held - 1, :2] == signed[left]).all(axis=1).any():
                return True
            at = (at + 1) % len(self.index)
        return False

    def _index(self, places: Numbers) -> None:
        """Put entries, all of different ids, into the index: in rounds, one winner a slot."""
        at = self._homes(np.ascontiguousarray(self.entries[places, :2]).view(np.uint64))
        while len(places):
            empty = np.flatnonzero(self.index[at] == 0)
            self.index[at[empty]] = places[empty] + 1
            lost = self.index[at] != places + 1
            places, at = places[lost], (at[lost] + 1) % len(self.index)

    def _homes(self, hashes: Hashes) -> Numbers:
        homes: Numbers = (hashes[:, 0] & np.uint64(len(self.index) - 1)).astype(np.int64)
        return homes

    # --- bytes ---------------------------------------------------------------------------------------------------

    def snapshot(self, *, end: int, since_us: int) -> bytes:
        """The ids of records below `end` and younger than `since_us`, as bytes; the same table gives the same bytes."""
        held = self._held()
        held = held[(held[:, _TIME] > since_us) & (held[:, _OFFSET] < end)]
        return b"".join(
            [
                _HEAD.pack(SNAPSHOT_VERSION, 0, len(self.last_id), self.key, len(held)),
                self.last_id,
                held.astype("<i8").tobytes(),
            ]
        )

    @classmethod
    def restore(cls, data: bytes, since: Callable[[Numbers], Numbers] | None = None) -> IdTable:
        """The table that `snapshot` described.

        Args:
            since: Tells the time from that of an offset (`memory.M5`); None: as the snapshot has it.
        Raises:
            UnknownFormatVersion: a later release wrote it.
            CorruptLog: it is none.
        """
        if len(data) < _HEAD.size:
            raise CorruptLog(f"a table of ids of {len(data)} bytes that ends early")
        version, _, last_bytes, key, count = _HEAD.unpack_from(data)
        if version != SNAPSHOT_VERSION:
            raise UnknownFormatVersion(
                f"table of ids version {version}, this release reads {SNAPSHOT_VERSION}", version=version
            )
        at = _HEAD.size + last_bytes
        if len(data) != at + count * 32:
            raise CorruptLog(f"a table of ids of {len(data)} bytes that says it has {count} entries")
        table = cls(key)
        table.last_id = data[_HEAD.size : at]
        held = np.frombuffer(data, "<i8", 4 * count, at).astype(np.int64).reshape(count, 4)
        if (held[:, _OFFSET] < 0).any() or len(np.unique(held[:, :2], axis=0)) != count:
            raise CorruptLog(f"a table of {count} ids in which one stands twice, or has no offset")
        if since is not None:
            held[:, _TIME] = since(held[:, _OFFSET])
        table._refill(held, 1 << max(0, count - 1).bit_length())
        return table


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


class FoundIds(NamedTuple):
    """The ids of a batch, or of some.

    Attributes:
        texts, offsets: One each for every record that has an id, in order.
        last_id: The id of the last record; empty: none.
    """

    texts: list[bytes]
    offsets: Numbers
    last_id: bytes


def has_headers(message: bytes | bytearray | memoryview) -> bool:
    """Whether a record of a batch has headers. Arrow is not asked, and nothing is decoded."""
    count, null_count = _NODE.unpack_from(message, _HEADERS_AT)
    return bool(null_count != count)


def ids_in(*messages: bytes | bytearray | memoryview) -> FoundIds:
    """Find the ids of a batch, or of some that follow each other. If a header is repeated, the first counts; an empty
    id is none. The CRC is not checked.

    Some together take a fraction of the time where each has a record or two. Arrow computes nothing here: it would load
    pandas for that, half a second of a new leader.
    """
    none = FoundIds([], np.zeros(0, np.int64), b"")
    batches = [pa.ipc.read_record_batch(pa.py_buffer(each), SCHEMA) for each in messages if has_headers(each)]
    if not batches:  # most of the time
        return none
    (rows,) = batches if len(batches) == 1 else _joined(batches)
    headers = rows.column("headers")
    pairs = headers.values
    if not len(pairs):
        return none
    starts, names = _bytes_of(pairs.field(0))
    lengths = np.diff(starts)
    found = np.flatnonzero(lengths == len(HEADER_NAME))
    found = found[(names[starts[found, None] + np.arange(len(HEADER_NAME))] == _NAME).all(axis=1)]
    starts, values = _bytes_of(pairs.field(1))
    owners = np.searchsorted(_numbers(headers, np.int32, 1), found, side="right") - 1
    owners, firsts = np.unique(owners, return_index=True)
    found = found[firsts]
    there = starts[found + 1] > starts[found]
    owners, found = owners[there], found[there]
    if not len(found):
        return none
    texts = [values[start:end].tobytes() for start, end in zip(starts[found], starts[found + 1], strict=True)]
    offsets = _numbers(rows.column("offset"), np.int64)[owners]
    is_last = owners[-1] == rows.num_rows - 1 and has_headers(messages[-1])
    return FoundIds(texts, offsets, texts[-1] if is_last else b"")


def _joined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch of what ids are found by."""
    columns = [batch.select(["offset", "headers"]) for batch in batches]
    found: list[pa.RecordBatch] = pa.Table.from_batches(columns).combine_chunks().to_batches()
    return found


def _numbers(array: pa.Array, of: type, more: int = 0) -> npt.NDArray[Any]:
    """The fixed part of an array: its numbers, or where its items begin, and where the last one ends (`more` 1)."""
    return np.frombuffer(array.buffers()[1], of)[array.offset : array.offset + len(array) + more]


def _bytes_of(array: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Where the texts of an array begin and the last one ends, and their bytes."""
    data = array.buffers()[2]
    return _numbers(array, np.int32, 1), np.frombuffer(data if data is not None else b"", np.uint8)
