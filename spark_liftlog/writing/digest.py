"""A digest of a batch's rows, wherever they stand: tells a replay from a batch that came out otherwise.

    digest = sum over rows of hash(stream, subject, partition, key, value, headers), 128 bits

Spark places the rows of a replay elsewhere, in other tasks and another order; a sum does not mind. The broker keeps it
with the decision, and refuses a batch id that comes again with another one (decision record 61).

H1  It is a function of the *multiset* of the frame's rows: of what the query gave, before a row is given a partition,
    or found to be bad.
H2  Null and empty are different in value and key, the same in headers (the broker stores no empty headers).
H3  Everywhere the same number: tasks with other versions of this code would make one that fits nothing, so its name
    (`ALGORITHM`) goes with it from the task on. Sums of other names are not added up, nor compared.

A column of bytes is hashed in chunks of 64 words, all chunks of a batch side by side:

    row     | word 0 | word 1 | ... | word 63 | word 64 | ...
    chunk    \\_______________ 0 ____________/ \\____ 1 ____
    hash     mixed( sum of mixed(word ^ KEY[place]) + sum over chunks of mixed(chunk ^ its number) + length )

Every word is mixed before it is added, so that no bit of a word has less weight than the others. It is no cryptography:
who writes the rows can make two batches with one digest.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.api.compiled import load_compiled

Digest: TypeAlias = int
"""Two sums modulo 2^64, side by side; 0: no rows."""
Words: TypeAlias = npt.NDArray[np.uint64]

ALGORITHM: Final = "rows1"
CHUNK_WORDS: Final = 64
COLUMNS: Final = ("stream", "subject", "key", "value")
_MIX: Final = np.uint64(0xFF51AFD7ED558CCD)  # of MurmurHash3's finaliser
_LOW: Final = (1 << 64) - 1
_NULL: Final = np.uint64(0x9AE16A3B2F90404F)
_LISTS: Final = np.uint64(0xC949D7C7509E6557)
_TAIL: Final = np.array([(1 << 8 * n) - 1 for n in range(8)] + [(1 << 64) - 1], np.uint64)
"""Which bytes of a word belong to a row that ends in it."""


def _mixed(words: Words) -> Words:
    """Each word through a bijection in which every bit depends on every other."""
    words = (words ^ (words >> np.uint64(32))) * _MIX
    words = (words ^ (words >> np.uint64(29))) * _MIX
    return words ^ (words >> np.uint64(32))


_KEYS: Final = _mixed(np.arange(1, CHUNK_WORDS + 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def digest_of(columns: Mapping[str, Any], *, rows: int, stream: str | None, subject: str | None) -> Digest:
    """The digest of the rows of a frame.

    Args:
        columns: Arrow arrays of `rows.ARROW`'s types by name; value is among them.
        stream, subject: Those of all rows, where an option says it.
    """
    if rows == 0:
        return 0
    found = np.full(rows, zlib.crc32(f"{stream}\0{subject}".encode()), np.uint64)
    for name in COLUMNS:
        found = _joined(found, _bytes(columns[name]) if name in columns else np.full(rows, _NULL))
    if "partition" in columns:
        numbers = columns["partition"].cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        found = _joined(found, numbers.astype(np.uint64))
    if "headers" in columns:
        found = _joined(found, _lists(columns["headers"]))
    low, high = _mixed(found), _mixed(found ^ _LISTS)
    return (int(high.sum(dtype=np.uint64)) << 64) + int(low.sum(dtype=np.uint64))


def together(parts: Iterable[Digest]) -> Digest:
    """The digest of all rows of the parts, in any order."""
    low = high = 0
    for part in parts:
        low, high = low + (part & _LOW), high + (part >> 64)
    return (high & _LOW) << 64 | (low & _LOW)


def as_text(digest: Digest) -> str:
    """With its name: for the driver, and the broker."""
    return f"{ALGORITHM}:{digest:032x}"


def summed(texts: Iterable[str]) -> str:
    """The digest of all rows of tasks, as text; "" if other code made one: then only numbers of rows are compared."""
    parts = []
    for text in texts:
        name, _, digits = text.rpartition(":")
        if name != ALGORITHM:
            return ""
        parts.append(int(digits, 16))
    return as_text(together(parts))


def _joined(before: Words, column: Words) -> Words:
    return _mixed(before * _MIX + column)


def _bytes(column: Any) -> Words:
    """Hash each value of a binary or string column."""
    count, validity = len(column), column.is_valid().to_numpy(zero_copy_only=False)
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int32)[column.offset : column.offset + count + 1]
    found: Words = hashed(np.frombuffer(data or bytes(8), np.uint8), places, _KEYS)
    found[~validity] = _NULL
    return found


def hashed_by_numpy(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32], keys: Words) -> Words:
    """A number for each slice data[offsets[n] : offsets[n + 1]], of one at least; the compiled twin is _hashed.pxi.

    Args:
        keys: For the places in a chunk, and one for chunks.
    """
    first, last = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(last - first + 8, np.uint8)  # so that a whole word begins at each byte
    padded[:-8] = data[first:last]
    starts, lengths = offsets[:-1].astype(np.int64) - first, np.diff(offsets.astype(np.int64))
    chunk_bytes = 8 * (len(keys) - 1)
    if lengths.max() <= chunk_bytes:
        return _mixed(_chunks(padded, starts, lengths, keys) + lengths.astype(np.uint64))
    counts = np.maximum(-(-lengths // chunk_bytes), 1)
    ends = np.cumsum(counts)
    numbers = np.arange(ends[-1]) - np.repeat(ends - counts, counts)  # of each chunk in its row
    at = numbers * chunk_bytes
    sizes = np.minimum(np.repeat(lengths, counts) - at, chunk_bytes)
    chunks = _chunks(padded, np.repeat(starts, counts) + at, sizes, keys)
    keyed = np.where(numbers == 0, chunks, _mixed(chunks ^ _mixed(numbers.astype(np.uint64) + keys[-1])))
    return _mixed(np.add.reduceat(keyed, ends - counts) + lengths.astype(np.uint64))


def _chunks(padded: npt.NDArray[np.uint8], starts: Any, lengths: Any, keys: Words) -> Words:
    """Hash slices of at most a chunk: the loop is over the places in a slice, not over the slices."""
    words = np.ndarray(len(padded) - 7, np.dtype("<u8"), padded, strides=(1,))  # a word that begins at each byte
    found = np.zeros(len(starts), np.uint64)
    shortest = int(lengths.min()) // 8
    for place in range(-(-int(lengths.max()) // 8)):
        if place < shortest:  # whole words of all slices
            found += _mixed(words[starts + 8 * place] ^ keys[place])
            continue
        there = np.flatnonzero(lengths > 8 * place)
        left = np.minimum(lengths[there] - 8 * place, 8)
        found[there] += _mixed((words[starts[there] + 8 * place] & _TAIL[left]) ^ keys[place])
    return found


def _lists(headers: Any) -> Words:
    """Hash each list of (key, value): in its order, and 0 for none."""
    offsets = headers.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    counts = np.where(headers.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
    if not counts.any():
        return np.zeros(len(headers), np.uint64)
    entries = headers.values.slice(first, last - first)
    keys, values = _bytes(entries.field(0)), _bytes(entries.field(1))
    begins = np.repeat(offsets[:-1] - first, np.diff(offsets))
    places = (np.arange(last - first) - begins).astype(np.uint64)
    each = _mixed(_joined(keys, values) ^ _mixed(places + _LISTS))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(each, dtype=np.uint64)))
    found: Words = np.where(counts > 0, sums[offsets[1:] - first] - sums[offsets[:-1] - first], np.uint64(0))
    return found


if TYPE_CHECKING:
    hashed = hashed_by_numpy
else:
    hashed = getattr(load_compiled("broker.api.gathered._gathering"), "hashed", hashed_by_numpy)
