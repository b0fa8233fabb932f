"""From keys to their newest offsets, in a fixed number of bytes: what compaction remembers of a log.

A key stands as 128 bits, so the map needs `ENTRY_BYTES` a slot whatever the keys are: two words of hash, one of offset,
side by side, for the time goes into waiting for memory. Open addressing; a call handles many keys at once, in rounds:

    slot = hash mod slots, the next slot in the next round
    ours     the newest offset is written             the rest, which met other
    empty    one of those that want it gets it        keys, goes on to the next round

H1  Two different keys share their 128 bits with probability at most 2^-112, whatever the keys are: nobody can
    choose keys that collide, since the multipliers are random and of this process. (Multilinear hashing:
    the difference of two keys is a sum of c x R with 0 < |c| <= 256, which is 0 mod 2^64 for at most 2^8 of the
    2^64 values of R; twice. Keys over `SHORT_BYTES_MAX` are hashed by BLAKE2b under a random key.)
H2  At most `capacity` keys are held, 3/4 of the slots, so that a search ends soon. `put` tells how many it took.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ENTRY_BYTES: Final = 24
SHORT_BYTES_MAX: Final = 256
HASHED_AT_ONCE_BYTES: Final = 1 << 18
_WIDTHS: Final = (16, 32, 64, 128, SHORT_BYTES_MAX)
"""Keys between two of these are hashed together: arrays as wide as the longest, without a loop over the lengths."""
_LONG_KEY: Final = os.urandom(32)
_MULTIPLIERS: Final = np.frombuffer(os.urandom(16 * SHORT_BYTES_MAX), np.uint64).reshape(SHORT_BYTES_MAX, 2)

Hashes = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]


def hash_keys(keys: pa.Array) -> Hashes:
    """Hash keys.

    Args:
        keys: n of them, binary; nulls hash like the empty key.
    Returns:
        n x 2. Keys that are equal have equal rows (H1).
    """
    n = len(keys)
    hashes = np.zeros((n, 2), np.uint64)
    buffers = keys.buffers()
    if n == 0 or buffers[2] is None:
        return hashes
    bounds = np.frombuffer(buffers[1], np.int32)[keys.offset : keys.offset + n + 1].astype(np.int64)
    data = np.frombuffer(buffers[2], np.uint8)
    starts, lengths = bounds[:-1], np.diff(bounds)
    for row in np.flatnonzero(lengths > SHORT_BYTES_MAX).tolist():  # the time is in the bytes, not in the call
        key = data[starts[row] : starts[row] + lengths[row]].tobytes()
        digest = hashlib.blake2b(key, digest_size=16, key=_LONG_KEY).digest()
        hashes[row] = np.frombuffer(digest, np.uint64)
    above = 0
    for width in _WIDTHS:
        rows = np.flatnonzero((lengths > above) & (lengths <= width))
        above = width
        if len(rows):
            _hash_short(data, starts[rows], lengths[rows], rows, hashes)
    return hashes


def _hash_short(data: npt.NDArray[np.uint8], starts: Offsets, lengths: Offsets, rows: Offsets, hashes: Hashes) -> None:
    """Hash the keys of some rows: n >= 1 of 1 to `SHORT_BYTES_MAX` bytes, none much longer than another."""
    width = int(lengths.max())
    multipliers = _MULTIPLIERS[:width]
    is_even = int(lengths.min()) == width
    is_dense = is_even and len(rows) * width == int(starts[-1] - starts[0]) + width  # nothing in between
    step = max(1, HASHED_AT_ONCE_BYTES // width)
    for at in range(0, len(rows), step):
        begins, ends = starts[at : at + step, None], (starts + lengths)[at : at + step, None]
        if is_dense:
            first = int(begins[0, 0])
            words = data[first : first + len(begins) * width].reshape(-1, width).astype(np.uint64)
            words += np.uint64(1)
        else:
            places = begins + np.arange(width)
            words = data.take(places, mode="clip").astype(np.uint64)  # clip: a short key may be the last of all
            words += np.uint64(1)
            if not is_even:
                words *= places < ends  # what is behind a key is not of it
        hashes[rows[at : at + step]] = words @ multipliers


class KeyMap:
    """See the module.

    Args:
        map_bytes: The slots may take so many; at least one key fits.

    Attributes:
        capacity: Keys that it takes (H2).
        count: Keys in it.
    """

    __slots__ = ("_slots", "_table", "capacity", "count")

    def __init__(self, map_bytes: int) -> None:
        self._slots = max(2, map_bytes // ENTRY_BYTES)
        self.capacity = max(1, self._slots * 3 // 4)
        self.count = 0
        self._table = np.zeros((self._slots, 3), np.int64)  # hash, hash, newest offset + 1; 0: empty

    def put(self, hashes: Hashes, offsets: Offsets) -> int:
        """Note offsets, as far as the map takes them.

        Args:
            hashes: n x 2.
            offsets: n, ascending, none less than one that is in the map.
        Returns:
            How many were noted, from the first on; fewer than n when the map is full.
        """
        at = 0
        spare = max(1, self.capacity // 64)  # nearly full is full: else the parts become tiny
        while at < len(offsets):
            room = self.capacity - self.count
            if room < spare:
                break
            end = min(len(offsets), at + room)
            self._put(hashes[at:end], offsets[at:end])
            at = end
        return at

    def newest(self, hashes: Hashes) -> Offsets:
        """The newest offset of each key (n x 2 hashes); -1 for one that is not in the map."""
        found = np.full(len(hashes), -1, np.int64)
        words = hashes.view(np.int64)
        slots = self._home(hashes)
        left = np.arange(len(hashes))
        while len(left):
            entries = self._table.take(slots, axis=0)
            is_taken = entries[:, 2] > 0
            ours = (entries[:, 0] == words[:, 0]) & (entries[:, 1] == words[:, 1]) & is_taken
            found[left[ours]] = entries[ours, 2] - 1
            on = np.flatnonzero(~ours & is_taken)
            left, words = left[on], words[on]
            slots = (slots[on] + 1) % self._slots
        return found

    def _home(self, hashes: Hashes) -> Offsets:
        home: Offsets = (hashes[:, 0] % np.uint64(self._slots)).astype(np.int64)
        return home

    def _put(self, hashes: Hashes, offsets: Offsets) -> None:
        table, words, newest = self._table, hashes.view(np.int64), offsets + 1
        slots = self._home(hashes)
        while len(newest):
            entries = table.take(slots, axis=0)
            empty = np.flatnonzero(entries[:, 2] == 0)
            if len(empty):
                wanted = slots[empty]
                table[wanted, 2] = empty + 1  # where several want one slot, one stays in it
                winners = empty[table[wanted, 2] == empty + 1]
                table[slots[winners], :2] = words[winners]
                self.count += len(winners)
                entries[empty] = table.take(wanted, axis=0)
            ours = (entries[:, 0] == words[:, 0]) & (entries[:, 1] == words[:, 1])
            table[slots[ours], 2] = newest[ours]  # ascending: the last assignment is the newest
            on = np.flatnonzero(~ours)
            words, newest = words[on], newest[on]
            slots = (slots[on] + 1) % self._slots
        assert self.count <= self.capacity, "H2"
