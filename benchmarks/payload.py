"""Messages of a benchmark: deterministic by seed, all different, and prepared as whole blocks of PUB lines.

A block is `rows` lines of one width, so that only the block's number must be written into it before
it is sent again, eight bytes per line by one strided copy:

    PUB bench.0 [_INBOX.bench.0042 ]100\\r\\n  0 00000017 0042 pZ3k…  \\r\\n
                                              │ │        │    └ the row's own random text, by seed
                                              │ │        └ row in the block, four digits
                                              │ └ block, eight digits
                                              └ publisher, one digit

With ids each line is an HPUB whose `Nats-Msg-Id` is the publisher, block and row of its value: these 13 digits.

P1  Message n of a publisher is row n % rows of block n // rows: seed, publisher, size and n decide every byte.
P2  No two messages of a run are equal, so equal hashes over values in order mean: none lost, none twice, in order.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

ROWS_MAX = 10_000
VALUE_BYTES_MIN = 16
_BLOCK_AT, _BLOCK_DIGITS, _ROW_DIGITS = 1, 8, 4
_ID_DIGITS = _BLOCK_AT + _BLOCK_DIGITS + _ROW_DIGITS
_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8)


class Messages:
    """The messages of one publisher.

    Args:
        seed: With `publisher` and `size` it decides every byte.
        publisher: 0 to 9.
        size: Bytes of a value, >= 16.
        subject: Where they are published.
        reply: A prefix for reply subjects; the row's four digits follow. None: plain messages.
        ids: Give each message an id.
        block_bytes: About how long a block may be.
    """

    def __init__(
        self,
        *,
        seed: int,
        publisher: int = 0,
        size: int,
        subject: str = "bench",
        reply: str | None = None,
        ids: bool = False,
        block_bytes: int = 1 << 20,
    ) -> None:
        assert size >= VALUE_BYTES_MIN
        assert 0 <= publisher <= 9
        self.size = size
        self.rows = min(ROWS_MAX, max(16, block_bytes // (size + 32)))
        random = np.random.default_rng([seed, publisher, size])
        values = _ALPHABET[random.integers(0, 64, (self.rows, size), dtype=np.uint8)]
        values[:, 0] = ord(str(publisher))
        rows = "".join(f"{row:0{_ROW_DIGITS}d}" for row in range(self.rows)).encode()
        row_digits = np.frombuffer(rows, dtype=np.uint8).reshape(self.rows, _ROW_DIGITS)
        values[:, _BLOCK_AT + _BLOCK_DIGITS :][:, :_ROW_DIGITS] = row_digits

        head = f"{'HPUB' if ids else 'PUB'} {subject} ".encode()
        inbox = b"" if reply is None else reply.encode() + b"0" * _ROW_DIGITS + b" "
        tail = f"{size}\r\n".encode()
        if ids:
            block = b"NATS/1.0\r\nNats-Msg-Id: " + b"0" * _ID_DIGITS + b"\r\n\r\n"
            tail = b"%d %d\r\n%b" % (len(block), len(block) + size, block)
        value_at = len(head) + len(inbox) + len(tail)
        self.width = value_at + size + 2
        lines = np.empty((self.rows, self.width), dtype=np.uint8)
        lines[:, :value_at] = np.frombuffer(head + inbox + tail, dtype=np.uint8)
        if reply is not None:
            lines[:, len(head) + len(inbox) - 1 - _ROW_DIGITS :][:, :_ROW_DIGITS] = row_digits
        lines[:, value_at : value_at + size] = values
        lines[:, -2:] = np.frombuffer(b"\r\n", dtype=np.uint8)
        self._lines = lines
        self._values = lines[:, value_at : value_at + size]
        id_at = value_at - len(b"\r\n\r\n") - _ID_DIGITS
        if ids:
            lines[:, id_at : id_at + _ID_DIGITS] = values[:, :_ID_DIGITS]
        # One 8-byte item per line: a strided copy of whole items, not of single bytes.
        self._numbers = [
            np.ndarray(
                (self.rows,), dtype=f"V{_BLOCK_DIGITS}", buffer=lines, offset=at + _BLOCK_AT, strides=(self.width,)
            )
            for at in ([value_at, id_at] if ids else [value_at])
        ]
        self._bytes = memoryview(lines).cast("B")

    def block(self, number: int) -> memoryview:
        """The lines of a block, `rows` of them, `width` bytes each; valid until the next call."""
        for numbers in self._numbers:
            numbers[:] = np.void(f"{number:0{_BLOCK_DIGITS}d}".encode())
        return self._bytes

    def values(self, first: int, count: int) -> list[bytes]:
        """The values of `count` messages from number `first` on, one object each."""
        found = []
        for number in range(first // self.rows, -(-(first + count) // self.rows)):
            self.block(number)
            lines = self._values[max(0, first - number * self.rows) : first + count - number * self.rows]
            found += [line.tobytes() for line in lines]
        return found

    def hash(self, count: int) -> str:
        """SHA-256 over the values of the first `count` messages, in order."""
        digest = hashlib.sha256()
        for number in range(0, -(-count // self.rows)):
            self.block(number)
            digest.update(np.ascontiguousarray(self._values[: count - number * self.rows]))
        return digest.hexdigest()


class ValueHashes:
    """SHA-256 over values as they lie in the log, apart for each publisher (its first digit says which)."""

    def __init__(self, publishers: int, size: int) -> None:
        self.counts = [0] * publishers
        self._size = size
        self._digests = [hashlib.sha256() for _ in range(publishers)]

    def update(self, values: Any) -> None:
        """Add a batch's `value` column.

        Raises:
            ValueError: a value of another size, or of nobody: the log holds something that was not published.
        """
        assert pa.types.is_binary(values.type)
        count = len(values)
        _, offsets, data = values.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int32)[values.offset : values.offset + count + 1]
        if values.null_count or not (np.diff(bounds) == self._size).all():
            raise ValueError(f"a value is not {self._size} bytes long")
        rows = np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]].reshape(count, self._size)
        senders = rows[:, 0] - ord("0")
        if senders.max(initial=0) >= len(self.counts):
            raise ValueError(f"a value of publisher {senders.max()}, there are {len(self.counts)}")
        for publisher, digest in enumerate(self._digests):
            mine = rows if len(self.counts) == 1 else rows[senders == publisher]
            digest.update(np.ascontiguousarray(mine))
            self.counts[publisher] += len(mine)

    def hexdigests(self) -> list[str]:
        return [digest.hexdigest() for digest in self._digests]
