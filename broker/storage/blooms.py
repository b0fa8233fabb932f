"""Which subjects and keys a batch may hold, so that a read of some passes over batches that hold none of them.

    select ── a batch that it had to look at ──► learn ──► BLOOMS: one Bloom filter for each batch, by segment
    plan_read ── its index entry ──────────────► may_hold ──► no: not read, not checked, not sent

A batch has a filter of its keys once one was asked for, and likewise one of its subjects. The latter also has each
token of a subject with its place, so that patterns with wildcards ask for the tokens that they name. A filter is split
into words of 64 bits; an entry sets `BITS` bits of one word.

F1  A filter has all that the batch has. Of what it does not have it says "maybe" once in some eighty times.
F2  A filter counts for the batch that it was made of: the index names the same first offset and CRC. A batch that was
    cut off and written anew, or compacted, is not known.
F3  It is made of a batch whose CRC was checked. So one that is damaged since then is passed over only where nothing of
    what was stored there is wanted.
F4  Filters are in memory alone, those of the segments that were asked for last: after a start the first read with
    conditions looks at all. Hashes are of this process.
F5  There are none of an encrypted log. Its index tells batches by the CRC of what is stored, and anybody may have
    written it: what is passed over is not opened, so nothing would say that the next batch is the one that belongs
    there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.api.conditions import Conditions
from broker.storage.rewrite.keymap import hash_keys
from broker.storage.segments.index import IndexView
from broker.storage.segments.segment import Segment

BITS_PER_ENTRY: Final = 12
BITS: Final = 4
TOKENS: Final = 8
"""Tokens of a subject that are in a filter: the first ones."""
BLOOMS_BYTES_MAX: Final = 64 << 20
"""For the process. Filters of a thousand different keys take 1.7 KB."""

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Questions = Mapping["Kind", Sequence[Hashes]]
"""As `questions_of` has them."""

_KEY: Final = np.uint64(0)
_WHOLE: Final = np.uint64(0x9E3779B97F4A7C15)
_PLACES: Final = np.arange(1, TOKENS + 1, dtype=np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
"""A whole subject and its tokens, by their places, are different entries."""


class Kind(Enum):
    """What a filter has."""

    KEYS = "keys"
    SUBJECTS = "subjects"


def entries_of(rows: pa.RecordBatch, kind: Kind) -> Hashes:
    """What the filter of a batch has to hold, as hashes.

    Args:
        rows: n >= 0 rows of the record schema.
    """
    if kind is Kind.KEYS:
        return _hashed(pc.drop_null(pc.unique(rows.column("key"))))
    subjects = pc.unique(rows.column("subject"))
    tokens = pc.split_pattern(subjects, ".")
    counts = pc.list_value_length(tokens).to_numpy(zero_copy_only=False)
    places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first = places < TOKENS
    return np.unique(
        np.concatenate(
            [
                _hashed(subjects, _WHOLE),
                _hashed(pc.list_flatten(tokens).filter(pa.array(first)), _PLACES[places[first]]),
            ]
        )
    )


def questions_of(wanted: Conditions) -> Questions:
    """Conditions, as filters are asked: of each kind that can tell something, sets of entries. A batch may hold what is
    wanted if its filters have all entries of one set of each kind."""
    found: dict[Kind, Sequence[Hashes]] = {}
    if wanted.key is not None:
        found[Kind.KEYS] = [_hashed(pa.array([wanted.key], pa.binary()))]
    patterns = [_of_pattern(pattern) for pattern in wanted.subjects]
    if patterns and all(map(len, patterns)):
        found[Kind.SUBJECTS] = patterns
    return found


def _of_pattern(pattern: str) -> Hashes:
    """Empty: every subject may match."""
    tokens = pattern.split(".")
    named = [(place, token) for place, token in enumerate(tokens) if token not in ("*", ">")]
    if len(named) == len(tokens):
        return _hashed(pa.array([pattern]), _WHOLE)
    named = [(place, token) for place, token in named if place < TOKENS]
    places = np.array([place for place, _ in named], np.int64)
    return _hashed(pa.array([token for _, token in named], pa.string()), _PLACES[places])


@dataclass(frozen=True, slots=True)
class Blooms:
    """Filters of n batches of one segment. Never changed.

    Attributes:
        first_offsets: n, ascending.
        crcs: n.
        places, sizes: n, where the words of each filter are, and how many.
        words: All words.
    """

    first_offsets: npt.NDArray[np.int64]
    crcs: npt.NDArray[np.uint32]
    places: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.uint64]
    words: Hashes

    @classmethod
    def of(cls, batches: Sequence[tuple[int, int, Hashes]]) -> Blooms:
        """Make filters.

        Args:
            batches: First offset, CRC, entries, in order.
        """
        filters = [_filter_of(entries) for _, _, entries in batches]
        sizes = np.array([len(words) for words in filters], np.uint64)
        return cls(
            np.array([first for first, _, _ in batches], np.int64),
            np.array([crc for _, crc, _ in batches], np.uint32),
            (np.cumsum(sizes) - sizes).astype(np.int64),
            sizes,
            np.concatenate(filters),
        )

    def and_also(self, newer: Blooms) -> Blooms:
        """These and others, which count where both have a batch."""
        first_offsets = np.concatenate([self.first_offsets, newer.first_offsets])
        order = np.argsort(first_offsets, kind="stable")
        ordered = first_offsets[order]
        order = order[np.append(ordered[1:] != ordered[:-1], True)]
        return Blooms(
            first_offsets[order],
            np.concatenate([self.crcs, newer.crcs])[order],
            np.concatenate([self.places, newer.places + len(self.words)])[order],
            np.concatenate([self.sizes, newer.sizes])[order],
            np.concatenate([self.words, newer.words]),
        )

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return int(self.words.nbytes + 28 * len(self.first_offsets))

    def knows(self, first_offset: int, crc: int) -> bool:
        """Whether there is a filter of this batch (F2)."""
        at = int(self.first_offsets.searchsorted(first_offset))
        return at < len(self.crcs) and self.first_offsets[at] == first_offset and self.crcs[at] == crc

    def may_hold(self, index: IndexView, begin: int, end: int, sets: Sequence[Hashes]) -> Mask:
        """Which of the batches [begin, end) may hold all entries of one of these sets; one without a filter may."""
        first_offsets = index.first_offsets[begin:end]
        at = np.minimum(np.searchsorted(self.first_offsets, first_offsets), len(self.first_offsets) - 1)
        known = (self.first_offsets[at] == first_offsets) & (self.crcs[at] == index.entries["crc"][begin:end])
        at = at[known]
        may = np.ones(end - begin, np.bool_)
        may[known] = np.any([self._has(at, entries) for entries in sets], axis=0)
        return may

    def _has(self, at: npt.NDArray[np.int64], hashes: Hashes) -> Mask:
        """Which of these filters have all of some entries."""
        found = np.ones(len(at), np.bool_)
        for one in hashes:
            bits = _bits(one)
            found &= self.words[self.places[at] + _word(one, self.sizes[at])] & bits == bits
        return found


class BloomCache:
    """Filters by segment and kind, the recently used ones. Thread-safe. Segments go by `Segment.serial`, which is never
    used again.

    Args:
        bytes_max: For all of them.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.byte_count = 0
        self._blooms: OrderedDict[tuple[int, Kind], Blooms] = OrderedDict()
        self._lock = threading.Lock()

    def may_hold(self, segment: Segment, index: IndexView, begin: int, end: int, questions: Questions) -> Mask | None:
        """Which of a segment's batches [begin, end) may hold what is wanted; None: nothing is known of any."""
        found = None
        for kind, sets in questions.items():
            blooms = self.of(segment, kind)
            if blooms is not None:
                may = blooms.may_hold(index, begin, end, sets)
                found = may if found is None else found & may
        return found

    def of(self, segment: Segment, kind: Kind) -> Blooms | None:
        """The filters of a segment's batches; None: there are none."""
        with self._lock:
            found = self._blooms.get((segment.serial, kind))
            if found is not None:
                self._blooms.move_to_end((segment.serial, kind))
            return found

    def learn(self, segment: Segment, kind: Kind, batches: Sequence[tuple[int, int, Hashes]]) -> None:
        """Keep the filters of some batches, as `Blooms.of` takes them."""
        if not batches:
            return
        newer = Blooms.of(batches)
        with self._lock:
            before = self._blooms.pop((segment.serial, kind), None)
            now = newer if before is None else before.and_also(newer)
            self.byte_count += now.nbytes - (0 if before is None else before.nbytes)
            self._blooms[segment.serial, kind] = now
            while self.byte_count > self.bytes_max:
                _, gone = self._blooms.popitem(last=False)
                self.byte_count -= gone.nbytes

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._blooms.clear()
            self.byte_count = 0


BLOOMS: Final = BloomCache(BLOOMS_BYTES_MAX)
"""Shared by all logs of the process."""


def _hashed(texts: pa.Array, salt: Hashes | np.uint64 = _KEY) -> Hashes:
    """Hashes of which all bits are equally good. The low ones of `hash_keys` are weak. (MurmurHash3's last step.)"""
    hashes: Hashes = hash_keys(texts)[:, 0] ^ salt
    hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    return hashes ^ (hashes >> np.uint64(33))


def _filter_of(entries: Hashes) -> Hashes:
    size = max(1, -(-len(entries) * BITS_PER_ENTRY // 64))
    words = np.zeros(size, np.uint64)
    np.bitwise_or.at(words, _word(entries, np.uint64(size)), _bits(entries))
    return words


def _word(hashes: Hashes, sizes: Hashes | np.uint64) -> npt.NDArray[np.int64]:
    """The word of an entry in a filter of so many: by the upper half of the hash."""
    found: npt.NDArray[np.int64] = ((hashes >> np.uint64(32)) * sizes >> np.uint64(32)).astype(np.int64)
    return found


def _bits(hashes: Hashes) -> Hashes:
    """The bits of an entry in its word: by the lower half of the hash."""
    found = np.zeros_like(hashes)
    for n in range(BITS):
        found |= np.uint64(1) << (hashes >> np.uint64(6 * n) & np.uint64(63))
    return found
