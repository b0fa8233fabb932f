"""SipHash-2-4 with 128 bits, of one text or of many at once: what message ids and subjects stand as.

A collision would take one message for a repeat of another and lose it in silence, so the hash is keyed and wide: by
chance two of 2^32 different ids share one with probability 2^-65, and who does not know the key cannot look for two
that do. The compiled twin (broker/ingest/_ids.pxi) gives the same values.

`_State` is written once, for Python integers and for numpy arrays of uint64: both take `& M`.

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF"; test vectors of the reference code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

KEY_BYTES: Final = 16
HASHED_AT_ONCE_BYTES: Final = 1 << 20
FEW: Final = 16
"""So many texts are hashed one by one: a round of numpy takes as long for one text as Python takes for twenty."""
M: Final = (1 << 64) - 1
Hashes = npt.NDArray[np.uint64]


class _State:
    """Four words, each an integer or an array of n."""

    __slots__ = ("v0", "v1", "v2", "v3")

    def __init__(self, key: bytes) -> None:
        k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
        self.v0: Any = k0 ^ 0x736F6D6570736575
        self.v1: Any = k1 ^ 0x646F72616E646F6D ^ 0xEE
        self.v2: Any = k0 ^ 0x6C7967656E657261
        self.v3: Any = k1 ^ 0x7465646279746573

    def spread(self, n: int) -> None:
        """From integers to arrays of n."""
        for name in self.__slots__:
            setattr(self, name, np.full(n, getattr(self, name), np.uint64))

    def take(self, word: Any) -> None:
        self.v3 = self.v3 ^ word
        self.rounds(2)
        self.v0 = self.v0 ^ word

    def hash_words(self, words: Hashes) -> tuple[Any, Any]:
        """Hash n texts of m words."""
        self.spread(len(words))
        for i in range(words.shape[1]):
            self.take(words[:, i])
        return self.finish()

    def finish(self) -> tuple[Any, Any]:
        self.v2 = self.v2 ^ 0xEE
        self.rounds(4)
        first = self.v0 ^ self.v1 ^ self.v2 ^ self.v3
        self.v1 = self.v1 ^ 0xDD
        self.rounds(4)
        return first, self.v0 ^ self.v1 ^ self.v2 ^ self.v3

    def rounds(self, count: int) -> None:
        v0, v1, v2, v3 = self.v0, self.v1, self.v2, self.v3
        for _ in range(count):
            v0 = (v0 + v1) & M
            v1 = (v1 << 13 & M | v1 >> 51) ^ v0
            v0 = v0 << 32 & M | v0 >> 32
            v2 = (v2 + v3) & M
            v3 = (v3 << 16 & M | v3 >> 48) ^ v2
            v0 = (v0 + v3) & M
            v3 = (v3 << 21 & M | v3 >> 43) ^ v0
            v2 = (v2 + v1) & M
            v1 = (v1 << 17 & M | v1 >> 47) ^ v2
            v2 = v2 << 32 & M | v2 >> 32
        self.v0, self.v1, self.v2, self.v3 = v0, v1, v2, v3


def siphash(key: bytes, text: bytes) -> tuple[int, int]:
    """The hash of one text as two words of 64 bits. `key` is `KEY_BYTES` long."""
    state = _State(key)
    padded = text + bytes(-(len(text) + 1) % 8) + bytes([len(text) & 255])
    for at in range(0, len(padded), 8):
        state.take(int.from_bytes(padded[at : at + 8], "little"))
    first, second = state.finish()
    return first, second


def siphash_all(key: bytes, texts: Sequence[bytes]) -> Hashes:
    """The hashes of n texts, n x 2. Fast where many are equally long."""
    n = len(texts)
    if n <= FEW:
        return np.array([siphash(key, text) for text in texts], np.uint64).reshape(n, 2)
    hashes = np.zeros((n, 2), np.uint64)
    lengths = np.fromiter(map(len, texts), np.int64, n)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        padding = bytes(-(length + 1) % 8) + bytes([length & 255])
        joined = b"".join([texts[row] + padding for row in rows.tolist()])
        words = np.frombuffer(joined, "<u8").reshape(len(rows), -1)
        hashes[rows, 0], hashes[rows, 1] = _State(key).hash_words(words)
    return hashes


def siphash_column(key: bytes, texts: pa.Array) -> Hashes:
    """The hashes of n strings, n x 2; no Python object for each of them. Fast where many are equally long."""
    n = len(texts)
    if n <= FEW:
        return siphash_all(key, [text.encode() for text in texts.to_pylist()])
    hashes = np.zeros((n, 2), np.uint64)
    _, ends, data = texts.buffers()
    bounds = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + n + 1].astype(np.int64)
    chars = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    starts, lengths = bounds[:-1], np.diff(bounds)
    for length in np.unique(lengths).tolist():
        same = np.flatnonzero(lengths == length)
        step = max(1, HASHED_AT_ONCE_BYTES // (length + 8))
        for at in range(0, len(same), step):
            rows = same[at : at + step]
            padded = np.zeros((len(rows), length + 8 - length % 8), np.uint8)
            padded[:, :length] = chars[starts[rows][:, None] + np.arange(length)]
            padded[:, -1] = length & 255
            hashes[rows, 0], hashes[rows, 1] = _State(key).hash_words(padded.view("<u8"))
    return hashes
