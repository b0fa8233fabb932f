"""Where one partition has stored the last record of each subject. A table: no I/O, no clock.

    slots   | subject 128 bits, sequence |  empty  | subject, sequence | ...      open addressing, linear

A sequence is JetStream's: the offset + 1. A subject whose last record is below the log start has none: 0. So has one
that never came, unless the table was full when it may have come: then it is not known.

J1  The sequence of a subject that is in the table is right: each append on it is noted.
J2  The records of subjects that are not in the table lie below `missed_end`. While that is above the log start, such a
    subject is unknown, never 0.
J3  The arrays are the whole state: the compiled twin (broker/ingest/_subjects.pxi) works on the same ones, step by step
    as `find`, `takes`, `put` and `put_back` do.
J4  At most half of the slots are taken, by at most `subjects_max` subjects; what is below the log start goes when room
    is needed. A subject takes 48 bytes, up to twice that while there is room.

Subjects stand as keyed hashes: siphash.py says why that is enough. Format of a snapshot: docs/reference/storage.md.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.api.errors import CorruptLog, UnknownFormatVersion
from broker.api.schema import SCHEMA
from broker.storage.memory.siphash import KEY_BYTES, siphash, siphash_column

SNAPSHOT_VERSION: Final = 1
SLOTS_MIN: Final = 64
NONE: Final = 0
UNKNOWN: Final = -1
GONE: Final = -1
"""Sequence, in a slot, of a subject whose first record was taken back."""
COUNT, LIMIT, IS_FULL, MISSED_END, LOG_START, SUBJECTS_MAX = range(6)
"""Places in `counts`."""
_HEAD: Final = struct.Struct("<HHI16sqqQ")  # version, zeros, key, next offset, missed end, number of subjects
_ENTRY_BYTES: Final = 24
_FIRST, _SECOND, _SEQUENCE = range(3)
Numbers = npt.NDArray[np.int64]
Fill = Callable[[Numbers, Numbers], object]


class SubjectTable:
    """See the module. Not thread-safe: its builder covers it at first, later the log's append lock.

    Args:
        key: The key of the hash; random unless given.

    Attributes:
        slots: 3 int64 each: the subject's two words, sequence. Sequence 0: empty.
        counts: int64: taken slots; how many there may be before `make_room`; whether that is in vain; J2; the log start
            and the bound as last told.
    """

    __slots__ = ("counts", "key", "slots")

    def __init__(self, key: bytes | None = None) -> None:
        self.key = os.urandom(KEY_BYTES) if key is None else key
        self.slots = np.zeros((SLOTS_MIN, 3), np.int64)
        self.counts = np.zeros(6, np.int64)

    def __len__(self) -> int:
        return int(self.counts[COUNT])

    @property
    def missed_end(self) -> int:
        """See J2."""
        return int(self.counts[MISSED_END])

    def begin(self, log_start_offset: int, subjects_max: int) -> None:
        """Say where the log begins and how many subjects are kept. Before anything else is done."""
        counts = self.counts
        if counts[LOG_START] != log_start_offset or counts[SUBJECTS_MAX] != subjects_max:
            counts[LOG_START], counts[SUBJECTS_MAX], counts[IS_FULL] = log_start_offset, subjects_max, 0
            counts[LIMIT] = min(len(self.slots) // 2, subjects_max)

    def make_room(self, fill: Fill | None = None) -> None:
        """Let go of what is below the log start, and grow if that is not enough.

        Args:
            fill: Puts entries (n x 3), all of different subjects, into empty slots, as `_fill` does, but faster.
        """
        counts = self.counts
        live = self.slots[self.slots[:, _SEQUENCE] > counts[LOG_START]]
        most, n = int(counts[SUBJECTS_MAX]), len(live)
        wanted = min(_power(4 * (n + 1)), _power(2 * most))
        self.slots = np.zeros((max(SLOTS_MIN, wanted, _power(2 * n)), 3), np.int64)
        (fill or _fill)(self.slots, live)
        counts[COUNT], counts[LIMIT], counts[IS_FULL] = n, min(len(self.slots) // 2, most), int(n >= most)

    # --- one subject ---------------------------------------------------------------------------------------------

    def find(self, text: bytes) -> int:
        """The sequence of the last record on a subject; `NONE`; `UNKNOWN`."""
        sequence, log_start = int(self.slots[self._slot(text), _SEQUENCE]), self.counts[LOG_START]
        if sequence > log_start:
            return sequence
        return NONE if sequence > 0 or self.counts[MISSED_END] <= log_start else UNKNOWN

    def takes(self, text: bytes) -> bool:
        """Whether a record on a subject can be noted. Makes room for it."""
        counts = self.counts
        if self.slots[self._slot(text), _SEQUENCE]:
            return True
        if counts[COUNT] >= counts[LIMIT] and not counts[IS_FULL]:
            self.make_room()
        return bool(counts[COUNT] < counts[LIMIT])

    def put(self, text: bytes, sequence: int) -> int:
        """Note the last record on a subject, or that it was missed. Returns what stood there, for `put_back`."""
        if not self.takes(text):
            self.counts[MISSED_END] = max(int(self.counts[MISSED_END]), sequence)
            return NONE
        slot = self.slots[self._slot(text)]
        before = int(slot[_SEQUENCE])
        if not before:
            first, second = siphash(self.key, text)
            slot[_FIRST], slot[_SECOND] = _signed(first), _signed(second)
            self.counts[COUNT] += 1
        slot[_SEQUENCE] = sequence
        return before

    def put_back(self, text: bytes, before: int) -> None:
        """Its record was not appended after all. In the opposite order of `put`."""
        slot = self.slots[self._slot(text)]
        if slot[_SEQUENCE]:
            slot[_SEQUENCE] = before or GONE

    def end_take_back(self, missed_end: int) -> None:
        """All is put back; `missed_end` is what it was."""
        self.counts[MISSED_END], self.counts[IS_FULL] = missed_end, 0

    def _slot(self, text: bytes) -> int:
        """Where a subject is, or would be."""
        first, second = siphash(self.key, text)
        mask = len(self.slots) - 1
        at, words = first & mask, (_signed(first), _signed(second))
        while (slot := self.slots[at])[_SEQUENCE] and (slot[_FIRST], slot[_SECOND]) != words:
            at = (at + 1) & mask
        return at

    # --- many ----------------------------------------------------------------------------------------------------

    def digest(self, message: bytes | bytearray | memoryview, start: int = 0) -> Latest:
        """Find the subjects of a batch's records from `start` on. The CRC is not checked."""
        rows = pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA)
        sequences = rows.column("offset").to_numpy() + 1
        skip = int(np.searchsorted(sequences, start, side="right"))
        encoded = rows.column("subject")[skip:].dictionary_encode()
        last = np.zeros(len(encoded.dictionary), np.int64)
        last[encoded.indices.to_numpy(zero_copy_only=False)] = sequences[skip:]  # of several the last one stays
        return Latest(siphash_column(self.key, encoded.dictionary).view(np.int64), last)

    def note(self, latest: Latest) -> None:
        """Note records that are in the log."""
        words, sequences = latest
        found = self._find(words)
        known = found[found >= 0]
        self.slots[known, _SEQUENCE] = np.maximum(self.slots[known, _SEQUENCE], sequences[found >= 0])
        new, counts = np.flatnonzero(found < 0), self.counts
        while len(new):
            if counts[COUNT] >= counts[LIMIT] and not counts[IS_FULL]:
                self.make_room()
            taken = new[: max(0, int(counts[LIMIT] - counts[COUNT]))]
            if not len(taken):
                counts[MISSED_END] = max(int(counts[MISSED_END]), int(sequences[new].max()))
                return
            _fill(self.slots, np.column_stack([words[taken], sequences[taken]]))
            counts[COUNT] += len(taken)
            new = new[len(taken) :]

    def _find(self, words: Numbers) -> Numbers:
        """Where subjects (n x 2) are; -1: nowhere."""
        found = np.full(len(words), -1, np.int64)
        mask = len(self.slots) - 1
        at, left = words[:, 0] & mask, np.arange(len(words))
        while len(left):
            slots = self.slots[at]
            ours = (slots[:, :2] == words[left]).all(axis=1) & (slots[:, _SEQUENCE] != 0)
            found[left[ours]] = at[ours]
            on = ~ours & (slots[:, _SEQUENCE] != 0)
            left, at = left[on], (at[on] + 1) & mask
        return found

    # --- bytes ---------------------------------------------------------------------------------------------------

    def snapshot(self, next_offset: int) -> bytes:
        """As bytes; `next_offset`: the table tells of all records below, and of no other. Slots give the order."""
        held = self.slots[self.slots[:, _SEQUENCE] > self.counts[LOG_START]]
        head = _HEAD.pack(SNAPSHOT_VERSION, 0, 0, self.key, next_offset, self.missed_end, len(held))
        return b"".join([head, held.astype("<i8").tobytes()])

    @classmethod
    def restore(cls, data: bytes) -> SubjectTable:
        """The table that `snapshot` described.

        Raises:
            UnknownFormatVersion, CorruptLog: as `read_head`.
        """
        head = read_head(data)
        count = head.subject_count
        held = np.frombuffer(data, "<i8", 3 * count, _HEAD.size).astype(np.int64).reshape(count, 3)
        sequences = held[:, _SEQUENCE]
        if count and (sequences.min() < 1 or sequences.max() > head.next_offset):
            raise CorruptLog(f"a table of subjects with a sequence that is not in 1 to {head.next_offset}")
        if len(np.unique(sequences)) != count or len(np.unique(held[:, :2], axis=0)) != count:
            raise CorruptLog(f"a table of {count} subjects in which one, or a sequence, stands twice")
        table = cls(head.key)
        table.slots = np.zeros((max(SLOTS_MIN, _power(2 * count)), 3), np.int64)
        _fill(table.slots, held)
        table.counts[COUNT], table.counts[MISSED_END] = count, head.missed_end
        table.begin(0, count)
        return table


class Latest(NamedTuple):
    """Different subjects, n of them: their words, n x 2, and the sequence of the last record on each."""

    words: Numbers
    sequences: Numbers


class SubjectsHead(NamedTuple):
    """The head of a snapshot.

    Attributes:
        key: The key of the hash.
        next_offset: It tells of all records below; the log tells of the others.
        missed_end: J2.
        subject_count: Entries.
    """

    key: bytes
    next_offset: int
    missed_end: int
    subject_count: int


def read_head(data: bytes) -> SubjectsHead:
    """The head of a snapshot.

    Raises:
        UnknownFormatVersion: a later release wrote it.
        CorruptLog: it is none.
    """
    if len(data) < _HEAD.size:
        raise CorruptLog(f"a table of subjects of {len(data)} bytes that ends early")
    version, _, _, key, next_offset, missed_end, count = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise UnknownFormatVersion(
            f"table of subjects version {version}, this release reads {SNAPSHOT_VERSION}", version=version
        )
    if len(data) != _HEAD.size + count * _ENTRY_BYTES:
        raise CorruptLog(f"a table of subjects of {len(data)} bytes that says it has {count} entries")
    if not 0 <= missed_end <= next_offset:
        raise CorruptLog(f"a table of subjects of the records below {next_offset} that missed some below {missed_end}")
    return SubjectsHead(key, next_offset, missed_end, count)


def _fill(slots: Numbers, entries: Numbers) -> None:
    """Put entries, all of subjects that are not there, into slots: in rounds, one winner a slot."""
    mask = len(slots) - 1
    at = entries[:, _FIRST] & mask
    while len(entries):
        empty = np.flatnonzero(slots[at, _SEQUENCE] == 0)
        slots[at[empty]] = entries[empty]
        lost = slots[at, _SEQUENCE] != entries[:, _SEQUENCE]  # sequences differ, each record has one subject
        entries, at = entries[lost], (at[lost] + 1) & mask


def _power(count: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, count - 1).bit_length()


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
