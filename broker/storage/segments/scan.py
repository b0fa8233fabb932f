"""Read a segment file from some position to its very end and say what is in it.

Verifies each message's CRC over reads of megabytes; work per batch, none per record. All that is not
a whole, intact, later batch is a *gap*: zeros, flipped bits, a torn write, an end-of-stream marker.
The scan never stops at one; it looks for the next batch behind it:

    schema | batch | batch | ?????????? | batch | batch | end marker
                            ^ gap        ^ found again

1. where the damaged message would end by its own length, or by its own table of buffers (a
   single fault leaves one of the two right); if both agree and run past the end of the file, it is
   a torn write and nothing can follow it;
2. else where the index says that the next one begins, if there is an index;
3. else at any multiple of 8 where a message prefix stands and a whole message verifies.

A record's value may itself hold bytes of a segment. They are met only in step 3, where both lengths of
the message around them were destroyed; there a batch must also fit the offsets: later than what
came before, and no further than records of 16 bytes would fill the gap. (In a compressed segment that is too little:
there step 2 matters.)

Zeros between the last batch and the end of the file are no gap but room (`ahead`).

Deciding what a gap means (torn or lost) is recovery's task.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from broker.api.batch import (
    BODY_LENGTH_AT,
    BUFFER_COUNT,
    BUFFERS_AT,
    CRC_AT,
    FORMAT_VERSION,
    HEADER_BYTES,
    VALUE_AT,
    VALUE_BYTES,
)
from broker.api.errors import UnknownFormatVersion
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.storage.disk import Readable
from broker.storage.encrypted.message import STORED_LENGTHS
from broker.storage.segments.index import IndexView

WINDOW_BYTES: Final = 4 << 20
MESSAGE_BYTES_MAX: Final = 1 << 30
"""A longer one is not written, and a length beyond it is damage."""
RECORD_BYTES_LEAST: Final = 16
"""Offset and timestamp alone take so much in every batch that was not rewritten."""

FOUND: Final = np.dtype(
    [
        ("first_offset", "<i8"),
        ("next_offset", "<i8"),
        ("position", "<i8"),
        ("length", "<i8"),
        ("max_timestamp_us", "<i8"),
        ("high_watermark", "<i8"),
        ("leader_epoch", "<u4"),
        ("group_index", "<u4"),
        ("group_count", "<u4"),
        ("crc", "<u4"),
    ]
)
Check = Callable[[memoryview, str, int], bool]
_PREFIX_WORDS: Final = tuple(int.from_bytes(prefix, "little") for prefix in STORED_LENGTHS)
_CRC_DIGITS: Final = 8
_CRC_ZERO: Final = b"0" * _CRC_DIGITS
_VALUE_END: Final = VALUE_AT + VALUE_BYTES
# The fields of broker.api.batch.FIELDS, from hex to binary; the CRC is compared as text.
_VALUE: Final = struct.Struct(">HHQQIQqQIQII16sI")
_BODY_LENGTH: Final = struct.Struct("<q")
_BUFFERS: Final = struct.Struct(f"<{2 * BUFFER_COUNT}q")

assert _VALUE.size * 2 == VALUE_BYTES


class Peek(NamedTuple):
    """The fields of a message header that storage acts on, not yet verified."""

    format_version: int
    first_offset: int
    next_offset: int
    leader_epoch: int
    high_watermark: int
    max_timestamp_us: int
    group_index: int
    group_count: int
    crc: int
    length: int


def peek(head: bytes | memoryview) -> Peek | None:
    """Decode `HEADER_BYTES` bytes as a message header, fast; None when they are none. The CRC is not checked."""
    header = STORED_LENGTHS.get(bytes(head[:8]))
    if header is None or len(head) < HEADER_BYTES:
        return None
    try:
        value = _VALUE.unpack(bytes.fromhex(str(head[VALUE_AT:_VALUE_END], "ascii")))
    except (ValueError, struct.error):
        return None
    (body,) = _BODY_LENGTH.unpack_from(head, BODY_LENGTH_AT)
    if body < 0 or body % 8 or value[3] < value[2] or value[3] >= 1 << 62:
        return None
    _, _, first, last, epoch, committed, newest, _, _, _, index, count, _, crc = value
    return Peek(value[0], first, last + 1, epoch, committed, newest, index, count, crc, header + body)


@dataclass(slots=True)
class Scan:
    """The content of a segment file from `start` on.

    Attributes:
        batches: One `FOUND` per intact batch, offsets strictly increasing.
        gaps: (position, end) of what is none, in file order; markers are not among them.
        markers: Positions of end-of-stream markers.
        size: Length of the file without its room.
        room_bytes: The zeros at its end, if nothing else follows the last batch (`ahead`).
        schema_is_whole: The file begins with the pinned schema bytes.
    """

    start: int
    batches: npt.NDArray[np.void]
    gaps: list[tuple[int, int]]
    markers: list[int]
    size: int
    room_bytes: int
    schema_is_whole: bool


def scan(
    file: Readable,
    *,
    start: int,
    first_offset: int,
    where: str,
    known: Callable[[], IndexView | None] = lambda: None,
    check: Check | None = None,
) -> Scan:
    """Scan from `start` (a batch's position) to the end of the file.

    Args:
        file: The segment.
        start: Where a batch begins; `len(SCHEMA_BYTES)` for the first.
        first_offset: Least offset that may come.
        where: The file's name, for errors.
        known: Its index, if there is one; asked for where something is damaged.
        check: Given each batch that the scan meets and whose CRC fits, also one with offsets that do not fit, its file
            and its position. False: it is none, as if its CRC did not fit. An error of it ends the scan.
    Raises:
        UnknownFormatVersion: an intact batch of a later release: nothing of this log may be touched.
    """
    return _Scanner(file, start, first_offset, where, known, check).run()


def is_zeros(file: Readable, position: int) -> bool:
    """Whether nothing but zeros follows in a file: the room that an open segment has (`ahead`)."""
    while part := file.pread(WINDOW_BYTES, position):
        if part.strip(b"\0"):
            return False
        position += len(part)
    return True


class _Scanner:
    def __init__(
        self,
        file: Readable,
        start: int,
        first_offset: int,
        where: str,
        known: Callable[[], IndexView | None],
        check: Check | None,
    ) -> None:
        self.file = file
        self.known = known
        self.check = check
        self.size = file.size()
        self.start = start
        self.where = where
        self.next_offset = first_offset
        self.found = np.zeros(64, FOUND)
        self.count = 0
        self.window = b""
        self.window_start = 0

    def run(self) -> Scan:
        gaps: list[tuple[int, int]] = []
        markers: list[int] = []
        at = self.start
        while at < self.size:
            batch = self.verified(at)
            if batch is not None and self.check is not None:
                batch = batch if self.check(self.bytes_at(at, batch.length), self.where, at) else None
            if batch is not None and batch.first_offset >= self.next_offset:
                self.take(batch, at)
                at += batch.length
            elif bytes(self.bytes_at(at, 8)) == END_OF_STREAM:
                markers.append(at)
                at += len(END_OF_STREAM)
            else:
                end = self.resume(at)
                gaps.append((at, end))
                at = end
        head = self.file.pread(len(SCHEMA_BYTES), 0)
        size = self.size
        if gaps and gaps[-1][1] == size and is_zeros(self.file, gaps[-1][0]):
            size, _ = gaps.pop()
        room = self.size - size
        return Scan(self.start, self.found[: self.count], gaps, markers, size, room, head == SCHEMA_BYTES)

    def take(self, batch: Peek, at: int) -> None:
        if batch.format_version != FORMAT_VERSION:
            raise UnknownFormatVersion(
                f"{self.where}: batch at {at} has format version {batch.format_version},"
                f" this release reads {FORMAT_VERSION}",
                path=self.where,
                version=batch.format_version,
            )
        if self.count == len(self.found):
            self.found = np.concatenate([self.found, np.zeros(self.count, FOUND)])
        self.found[self.count] = (
            batch.first_offset,
            batch.next_offset,
            at,
            batch.length,
            batch.max_timestamp_us,
            batch.high_watermark,
            batch.leader_epoch,
            batch.group_index,
            batch.group_count,
            batch.crc,
        )
        self.count += 1
        self.next_offset = batch.next_offset

    def bytes_at(self, at: int, size: int) -> memoryview:
        """A view of the file, out of a window of megabytes; shorter only at the end of the file."""
        begin = at - self.window_start
        if begin < 0 or begin + size > len(self.window):
            self.window = self.file.pread(max(size, min(WINDOW_BYTES, self.size - at)), at)
            self.window_start, begin = at, 0
        return memoryview(self.window)[begin : begin + size]

    def verified(self, at: int) -> Peek | None:
        """The batch at `at`, if a whole intact one is there."""
        batch = peek(self.bytes_at(at, HEADER_BYTES))
        if batch is None or batch.length > min(self.size - at, MESSAGE_BYTES_MAX):
            return None
        if batch.length <= WINDOW_BYTES:
            message = self.bytes_at(at, batch.length)
            crc = crc32c(message[CRC_AT + _CRC_DIGITS :], crc32c(_CRC_ZERO, crc32c(message[:CRC_AT])))
        else:
            crc = self._long_checksum(at, batch.length)
        stored = self.bytes_at(at + CRC_AT, _CRC_DIGITS)
        return batch if b"%08x" % crc == stored else None

    def _long_checksum(self, at: int, length: int) -> int:
        crc = crc32c(_CRC_ZERO, crc32c(self.bytes_at(at, CRC_AT)))
        position, end = at + CRC_AT + _CRC_DIGITS, at + length
        while position < end:
            part = self.file.pread(min(WINDOW_BYTES, end - position), position)
            if not part:
                break
            crc = crc32c(part, crc)
            position += len(part)
        return crc

    def resume(self, at: int) -> int:
        """Where the next intact batch or a final marker begins after damage at `at`; the end of the file if nowhere."""
        head = self.bytes_at(at, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return self.size
        header = STORED_LENGTHS.get(bytes(head[:8]))
        told, counted = _body_lengths(head)
        for begins in (header,) if header else set(STORED_LENGTHS.values()):
            for length in (told, counted):
                if length is not None and self._continues(at + begins + length):
                    return at + begins + length
        if told is not None and told == counted and peek(head) is not None:  # so there is a header
            assert header is not None
            if at + header + told > self.size:
                return self.size
        return self._by_index(at) or self._search(at)

    def _by_index(self, damaged: int) -> int | None:
        index = self.known()
        if index is None:
            return None
        for i in range(bisect_right(index.positions, damaged), len(index)):
            at = int(index.positions[i])
            batch = self.verified(at)
            if batch is not None and self.next_offset <= batch.first_offset == int(index.first_offsets[i]):
                return at
        return None

    def _continues(self, at: int) -> bool:
        if at >= self.size:
            return at == self.size
        batch = self.verified(at)
        if batch is not None:
            return batch.first_offset >= self.next_offset
        return self.size - at == len(END_OF_STREAM) and bytes(self.bytes_at(at, len(END_OF_STREAM))) == END_OF_STREAM

    def _search(self, damaged: int) -> int:
        at = damaged + 8
        while at < self.size:
            view = self.bytes_at(at, min(WINDOW_BYTES, self.size - at))
            words = np.frombuffer(view[: len(view) // 8 * 8], "<u8")
            for candidate in (np.flatnonzero(np.isin(words, _PREFIX_WORDS)) * 8 + at).tolist():
                batch = self.verified(candidate)
                if batch is not None and self._plausible(batch, candidate - damaged):
                    return int(candidate)
            if words.size == 0:
                break
            at += words.size * 8
        tail = self.size - len(END_OF_STREAM)
        return tail if tail > damaged and bytes(self.bytes_at(tail, 8)) == END_OF_STREAM else self.size

    def _plausible(self, batch: Peek, gap_bytes: int) -> bool:
        skipped = batch.first_offset - self.next_offset
        return 0 <= skipped <= gap_bytes // RECORD_BYTES_LEAST and batch.high_watermark <= batch.first_offset


def _body_lengths(head: memoryview) -> tuple[int | None, int | None]:
    """A body's length by its length field and by its table of buffers; None for what cannot be one."""
    (body,) = _BODY_LENGTH.unpack_from(head, BODY_LENGTH_AT)
    places = _BUFFERS.unpack_from(head, BUFFERS_AT)
    counted = max(start + size + -size % 8 for start, size in zip(places[::2], places[1::2], strict=True))
    return tuple(n if 0 <= n <= MESSAGE_BYTES_MAX and n % 8 == 0 else None for n in (body, counted))  # type: ignore[return-value]
