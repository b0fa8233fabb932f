"""One sealed segment written anew without the records that are not to stay. Nothing is put in its place here.

    old   [ 0..3 ] [ 4..5 ] [ 6..6 ] [ 7..9 ] [10..12]      all records of 4..9 go, and 11
    new   [ 0..3 ] [        4..9 empty       ] [10..12]
          as it was                             two rows

W1  The ranges of the batches stay dense: every offset is in the range of one. So what is missing is known to have been
    taken away, and a damaged place is still known as lost.
W2  A batch that loses nothing is copied as it is. One that loses some keeps its header: range, epoch, timestamp,
    producer, group, decision.
W3  Batches that lose all become, with their neighbours of the same leader epoch, one empty batch; but one that a
    producer or a sink is known by, or that belongs to a commit group, becomes an empty batch of its own.
W4  Offsets and their order do not change, and the file becomes shorter with every record that goes.
W5  The new file is on disk when it is handed out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.api.batch import CRC_AT, BatchHeader, decode_batch, encode_batch, read_header
from broker.api.errors import BadBatch
from broker.api.schema import END_OF_STREAM, SCHEMA, SCHEMA_BYTES
from broker.storage.disk import TEMPORARY, Disk, File
from broker.storage.index import ENTRY, LEAST_TIMESTAMP_US, Entries, IndexView
from broker.storage.read import NeedsRepair
from broker.storage.segment import Segment

WINDOW_BYTES: Final = 4 << 20
Mask = npt.NDArray[np.bool_]
_NO_ROWS: Final = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)


class Stored(NamedTuple):
    """One verified batch of a segment."""

    message: memoryview
    header: BatchHeader
    rows: pa.RecordBatch


class Staged(NamedTuple):
    """A new file beside its segment: whole, and on disk (W5)."""

    path: str
    entries: Entries
    bytes: int
    records_gone: int


def windows(
    disk: Disk, segment: Segment, index: IndexView, throttle: Callable[[int], None], *, start: int = 0
) -> Iterator[list[Stored]]:
    """The batches of a segment from the one that holds offset `start` on, some megabytes at a time.

    Raises:
        NeedsRepair: one is damaged.
    """
    file = disk.open(segment.path, readonly=True)
    try:
        at = max(0, index.find(start))
        while at < len(index):
            position = int(index.positions[at])
            end = max(at + 1, bisect_left(index.positions, position + WINDOW_BYTES, at))
            data = memoryview(file.pread(index.end_of(end - 1) - position, position))
            throttle(len(data))
            yield [_stored(segment, data, index.entries[i], position) for i in range(at, end)]
            at = end
    finally:
        file.close()


def _stored(segment: Segment, data: memoryview, entry: np.void, start: int) -> Stored:
    begin = int(entry["position"]) - start
    message = data[begin : begin + int(entry["length"])]
    try:
        rows = decode_batch(message, where=f"{segment.path}: ")
    except BadBatch as error:
        raise NeedsRepair(segment) from error
    return Stored(message, read_header(message), rows)


def stage(
    disk: Disk,
    segment: Segment,
    index: IndexView,
    keep: Callable[[Sequence[Stored]], Mask],
    throttle: Callable[[int], None],
) -> Staged | None:
    """Write what is to stay of a sealed segment into a new file beside it.

    Args:
        keep: Which rows of some batches, all in one array, are to stay.
        throttle: Told of all that is read and written, in bytes. What it raises ends this, without a trace.
    Returns:
        None when all stays.
    """
    rewrite = _Rewrite(disk, segment, index)
    try:
        if not index.contiguous:
            rewrite.begin()
        for batches in windows(disk, segment, index, throttle):
            mask = keep(batches)
            row = 0
            for batch in batches:
                rewrite.take(batch, mask[row : row + batch.rows.num_rows])
                row += batch.rows.num_rows
            throttle(rewrite.flush())
        return rewrite.finish()
    except Exception:
        rewrite.abandon()
        raise


@dataclass(slots=True)
class _Gap:
    """Batches that are to become one empty one."""

    header: BatchHeader
    stored: memoryview | None  # it is one already, and nothing has come to it


class _Rewrite:
    def __init__(self, disk: Disk, segment: Segment, index: IndexView) -> None:
        self.disk = disk
        self.segment = segment
        self.path = segment.path + TEMPORARY
        self.file: File | None = None  # None: all as it was so far
        self.gap: _Gap | None = None
        self.parts: list[bytes | bytearray | memoryview] = []
        self.entries = np.zeros(len(index), ENTRY)
        self.count = 0
        self.position = len(SCHEMA_BYTES)
        self.newest_us = LEAST_TIMESTAMP_US
        self.records_gone = 0

    def take(self, batch: Stored, mask: Mask) -> None:
        kept = int(np.count_nonzero(mask))
        self.records_gone += len(mask) - kept
        header = batch.header
        if kept == 0 and not (header.producer_id or header.decision or header.group_count > 1):
            self.widen(header, batch.message if len(mask) == 0 else None)
            return
        self.close_gap()
        if kept == len(mask):
            self.emit(header, batch.message, as_it_was=True)
        else:
            rows = batch.rows.filter(pa.array(mask)) if kept else _NO_ROWS
            self.emit(header, encode_batch(rows, header))

    def widen(self, header: BatchHeader, stored: memoryview | None) -> None:
        gap = self.gap
        if gap is None or gap.header.leader_epoch != header.leader_epoch:
            self.close_gap()
            self.gap = _Gap(header, stored)
            return
        gap.stored = None
        gap.header = replace(
            gap.header,
            last_offset=header.last_offset,
            max_timestamp_us=max(gap.header.max_timestamp_us, header.max_timestamp_us),
        )

    def close_gap(self) -> None:
        gap, self.gap = self.gap, None
        if gap is not None and gap.stored is not None:
            self.emit(gap.header, gap.stored, as_it_was=True)
        elif gap is not None:
            self.emit(gap.header, encode_batch(_NO_ROWS, gap.header))

    def emit(self, header: BatchHeader, message: bytearray | memoryview, *, as_it_was: bool = False) -> None:
        if self.file is None and not as_it_was:
            self.begin()
        crc = int(bytes(message[CRC_AT : CRC_AT + 8]), 16)
        self.newest_us = max(self.newest_us, header.max_timestamp_us)
        self.entries[self.count] = (header.first_offset, self.position, self.newest_us, len(message), crc)
        self.count += 1
        self.position += len(message)
        if self.file is not None:
            self.parts.append(message)

    def begin(self) -> None:
        """The first change: the new file begins with what comes before it."""
        self.file = self.disk.open(self.path, create=True)
        self.file.truncate(0)
        self.file.write(SCHEMA_BYTES)
        old = self.disk.open(self.segment.path, readonly=True)
        try:
            for at in range(len(SCHEMA_BYTES), self.position, WINDOW_BYTES):
                self.file.write(old.pread(min(WINDOW_BYTES, self.position - at), at))
        finally:
            old.close()

    def flush(self) -> int:
        """Write what is waiting. Returns its bytes."""
        data = b"".join(self.parts)
        self.parts = []
        if self.file is not None and data:
            self.file.write(data)
        return len(data)

    def finish(self) -> Staged | None:
        self.close_gap()
        self.parts.append(END_OF_STREAM)
        self.flush()
        if self.file is None:
            return None
        self.file.sync()
        self.file.close()
        size = self.position + len(END_OF_STREAM)
        return Staged(self.path, self.entries[: self.count].copy(), size, self.records_gone)

    def abandon(self) -> None:
        if self.file is not None:
            self.file.close()
            with suppress(OSError):
                self.disk.unlink(self.path)
