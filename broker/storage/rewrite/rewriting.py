"""Sealed segments written anew: without the records that are not to stay, their batches joined. One file comes of
one segment or of several that follow one another. Nothing is put in its place here.

    old   [ 0..3 ] [ 4..5 ] [ 6..6 ] [ 7..9 ] [10..12]      all records of 4..9 go, and 11
    new   [ 0..3 ] [        4..9 empty       ] [10..12]
          as it was                             two rows

    old   [0][1][2] | [3][4][5][6][7] | [8][9]               small batches, small segments, with a `BatchShape`
    new   [           0..7            ][ 8..9 ]

W1  The ranges of the batches stay dense: every offset is in the range of one. So what is missing is known to have been
    taken away, and a damaged place is still known as lost.
W2  A batch that loses nothing and stays alone is copied as it is. One that loses some keeps its header: range, epoch,
    timestamp, producer, group, decision.
W3  Batches that are joined become one over all their offsets: the epoch is theirs, the timestamp their greatest, the
    high watermark theirs, but at most their first offset; producer, group and decision are none. Without a
    `BatchShape` only batches that lose all are joined.
    With `compression`, whatever is written is compressed, its header else unchanged, but for bodies that are tiny.
W4  Never joined: batches of different leader epochs, of a commit group of several, with a decision, and those whose
    producer stamp still decides something. One that loses all stays as an empty batch of its own.
W5  Offsets and their order do not change.
W6  The new file is on disk when it is handed out.
W7  Its name is no other writer's. A log that is cut or begins anew makes a segment of the same offset meanwhile, by a
    temporary file of its own (`Disk.replace_file`), and its blocks must not become those of this file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.api.batch import CRC_AT, HEADER_BYTES, TEMPLATE, BatchHeader, encode_batch, verify_batch
from broker.api.compression import PLAIN_BODY_BYTES_MAX, decoded_bytes
from broker.api.errors import BadBatch
from broker.api.schema import END_OF_STREAM, SCHEMA, SCHEMA_BYTES
from broker.storage.disk import TEMPORARY, Disk, File, ReadableBuffer
from broker.storage.read import NeedsRepair
from broker.storage.segments.index import ENTRY, LEAST_TIMESTAMP_US, Entries, IndexView, is_in_place, places_of
from broker.storage.segments.segment import Segment

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault

ENDING: Final = ".new"
WINDOW_BYTES: Final = 512 << 10
WINDOW_BATCHES: Final = 64
"""Done between two calls of `throttle`, which sleeps: some 2 ms of work. An ack that comes meanwhile waits for the
interpreter at every step of its way."""
MANY_BATCHES: Final = 16
BATCH_COST_BYTES: Final = 8 << 10
"""A batch costs the time of so many bytes, however small it is: paced by its bytes alone it would hold up others."""
SYNC_BYTES: Final = 8 << 20
"""Synced as it grows, or the fsync at its end would put a whole segment into the disk's queue before those of acks."""
LARGE_BYTES: Final = 256 << 10
Mask = npt.NDArray[np.bool_]
Source = tuple[Segment, IndexView]
NO_ROWS: Final = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in SCHEMA], schema=SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """How large joined batches become, closed at either; and how all that is written is compressed."""

    batch_bytes: int = 1 << 20
    batch_records: int = 1 << 16
    compression: str = "none"


class StoredBatch(NamedTuple):
    """One verified batch of a segment. `stored`: as it is in the file; encrypted, if the log is."""

    message: memoryview
    header: BatchHeader
    rows: pa.RecordBatch
    stored: memoryview


class StagedSegment(NamedTuple):
    """A new file beside its segment: whole, and on disk (W6)."""

    path: str
    entries: Entries
    bytes: int
    records_gone: int


def windows(
    disk: Disk,
    segment: Segment,
    index: IndexView,
    throttle: Callable[[int], None],
    *,
    start: int = 0,
    vault: Vault | None = None,
) -> Iterator[list[StoredBatch]]:
    """The batches of a segment from the one that holds offset `start` on, `WINDOW_BYTES` or `WINDOW_BATCHES` at a time.

    Args:
        vault: Opens what is encrypted.
    Raises:
        NeedsRepair: one is damaged.
    """
    file = disk.open(segment.path, readonly=True)
    try:
        at = max(0, index.find(start))
        while at < len(index):
            position = int(index.positions[at])
            end = max(
                at + 1, bisect_left(index.positions, position + WINDOW_BYTES, at, min(len(index), at + WINDOW_BATCHES))
            )
            data = memoryview(file.pread(index.end_of(end - 1) - position, position))
            throttle(len(data))
            yield _stored(segment, data, index.entries[at : end + 1], end - at, position, vault)
            at = end
    finally:
        file.close()


def _stored(
    segment: Segment, data: memoryview, entries: Entries, count: int, start: int, vault: Vault | None
) -> list[StoredBatch]:
    """The batches that lie at the first `count` of these places of `data`, which begins at `start` of the segment."""
    begins = (entries["position"][:count] - start).tolist()
    there = [data[at : at + length] for at, length in zip(begins, entries["length"].tolist(), strict=False)]
    where = f"{segment.path}: "
    try:
        messages = there if vault is None else [vault.open_message(message, where=where) for message in there]
        headers = [verify_batch(message, where=where) for message in messages]
        if len(messages) < MANY_BATCHES:
            rows = [pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA) for message in messages]
        else:  # in one go: of small batches the call costs more than the content
            with pa.ipc.open_stream(b"".join([SCHEMA_BYTES, *messages, END_OF_STREAM])) as stream:
                rows = list(stream)
    except (BadBatch, pa.ArrowException, OSError) as error:
        raise NeedsRepair(segment) from error
    places = places_of(entries)
    if not all(is_in_place(header, places, at) for at, header in enumerate(headers)):
        raise NeedsRepair(segment)
    return [StoredBatch(*stored) for stored in zip(messages, headers, rows, there, strict=True)]


def stage(
    disk: Disk,
    sources: Sequence[Source],
    throttle: Callable[[int], None],
    *,
    keep: Callable[[Sequence[StoredBatch]], Mask] | None = None,
    shape: BatchShape | None = None,
    needs_stamp: Callable[[BatchHeader], bool] = lambda header: True,
    vault: Vault | None = None,
) -> StagedSegment | None:
    """Write the rows of sealed segments that are to stay into one new file beside the first.

    Args:
        sources: n >= 1 segments, each beginning where the one before it ends.
        throttle: Told of all that is read and written, in bytes. An error from it ends this, without a trace.
        keep: Which rows of some batches, all in one array, are to stay; None: all.
        shape: Join batches up to this; None: only those that lose all.
        needs_stamp: Whether the producer stamp of a batch still decides something (W4).
        vault: Opens what is encrypted, and encrypts what is written anew.
    Returns:
        None when nothing changes.
    """
    rewrite = _Rewrite(disk, sources, shape, needs_stamp, throttle, vault)
    try:
        if len(sources) > 1 or not sources[0][1].contiguous:
            rewrite.begin()
        for segment, index in sources:
            for batches in windows(disk, segment, index, throttle, vault=vault):
                mask = None if keep is None else keep(batches)
                row = 0
                for batch in batches:
                    rewrite.take(batch, None if mask is None else mask[row : row + batch.rows.num_rows])
                    row += batch.rows.num_rows
                throttle(rewrite.flush() + BATCH_COST_BYTES * len(batches))
        return rewrite.finish()
    except Exception:
        rewrite.abandon()
        raise


def is_packable(message: bytes | memoryview, length: int) -> bool:
    """Whether a message of this length is to be compressed, if any is. `message`: at least its first bytes."""
    return bytes(message[:8]) == TEMPLATE[:8] and length > HEADER_BYTES + PLAIN_BODY_BYTES_MAX


def body_bytes(message: bytes | memoryview) -> int:
    """Length of the body of a verified message, as it is without compression."""
    if bytes(message[:8]) == TEMPLATE[:8]:
        return len(message) - HEADER_BYTES
    return decoded_bytes(message) or 0


def is_joinable(header: BatchHeader, needs_stamp: Callable[[BatchHeader], bool]) -> bool:
    """Whether a batch may become part of another (W4, but for the epochs)."""
    if header.decision or header.group_count > 1:
        return False
    return header.producer_id == 0 or not needs_stamp(header)


class BatchRun:
    """Batches that are to become one, by what is known without their rows.

    Args:
        first: The header of the first one.
        rows: So many has it.
        body_bytes: The length of its body, about.

    Attributes:
        rows, body_bytes: Of all.
    """

    def __init__(self, first: BatchHeader, rows: int, body_bytes: int) -> None:
        self.rows = rows
        self.body_bytes = body_bytes
        self._first = self._last = first
        self._max_timestamp_us = first.max_timestamp_us
        self._high_watermark = first.high_watermark

    @property
    def header(self) -> BatchHeader:
        """The header of the batch that they become (W3)."""
        if self._last is self._first:
            return self._first
        return BatchHeader(
            first_offset=self._first.first_offset,
            last_offset=self._last.last_offset,
            leader_epoch=self._first.leader_epoch,
            high_watermark=self._high_watermark,
            max_timestamp_us=self._max_timestamp_us,
            flags=self._first.flags,
        )

    def takes(self, header: BatchHeader, rows: int, body_bytes: int, shape: BatchShape | None) -> bool:
        """Whether one more batch fits, which is joinable by itself."""
        if header.leader_epoch != self._first.leader_epoch:
            return False
        if shape is None:
            return self.rows == rows == 0
        return self.rows + rows <= shape.batch_records and self.body_bytes + body_bytes <= shape.batch_bytes

    def add(self, header: BatchHeader, rows: int, body_bytes: int) -> None:
        """Take one more."""
        self.rows += rows
        self.body_bytes += body_bytes
        self._last = header
        self._max_timestamp_us = max(self._max_timestamp_us, header.max_timestamp_us)
        self._high_watermark = max(self._high_watermark, min(header.high_watermark, self._first.first_offset))


class _Rewrite:
    def __init__(
        self,
        disk: Disk,
        sources: Sequence[Source],
        shape: BatchShape | None,
        needs_stamp: Callable[[BatchHeader], bool],
        throttle: Callable[[int], None],
        vault: Vault | None,
    ) -> None:
        self.disk = disk
        self.vault = vault
        self.throttle = throttle
        self.shape = shape
        self.needs_stamp = needs_stamp
        self.segment = sources[0][0]
        self.path = self.segment.path + ENDING + TEMPORARY  # `W7`
        self.file: File | None = None  # None: all as it was so far
        self.run: BatchRun | None = None
        self.rows: list[pa.RecordBatch] = []  # of the run
        self.stored: memoryview | None = None  # the run is one batch so far, as it was
        self.packs = False  # and it is to be compressed
        self.parts: list[bytes | bytearray | memoryview] = []
        self.entries = np.zeros(sum(len(index) for _, index in sources), ENTRY)
        self.count = 0
        self.position = len(SCHEMA_BYTES)
        self.unsynced = 0
        self.newest_us = LEAST_TIMESTAMP_US
        self.records_gone = 0

    def take(self, batch: StoredBatch, mask: Mask | None) -> None:
        stored = batch.rows.num_rows
        kept = stored if mask is None else int(np.count_nonzero(mask))
        self.records_gone += stored - kept
        rows = batch.rows if kept == stored else batch.rows.filter(pa.array(mask)) if kept else NO_ROWS
        size = body_bytes(batch.message) * kept // max(1, stored)
        header, run = batch.header, self.run
        joins = is_joinable(header, self.needs_stamp)
        if joins and run is not None and run.takes(header, kept, size, self.shape):
            run.add(header, kept, size)
            self.rows.append(rows)
            self.stored = None
            return
        self.close_run()
        self.run = BatchRun(header, kept, size)
        self.rows = [rows]
        self.stored = batch.stored if kept == stored else None
        compression = "none" if self.shape is None else self.shape.compression
        self.packs = compression != "none" and is_packable(batch.message, len(batch.message))
        if not joins:
            self.close_run()

    def close_run(self) -> None:
        run, self.run = self.run, None
        if run is None:
            return
        compression = "none" if self.shape is None else self.shape.compression
        stored = self.stored
        if stored is not None and not self.packs:
            self.emit(run.header, stored, as_it_was=True)
        else:
            filled = [rows for rows in self.rows if rows.num_rows]
            rows = filled[0] if len(filled) == 1 else pa.concat_batches(filled) if filled else NO_ROWS
            message = encode_batch(rows, run.header, compression=compression)
            self.emit(run.header, message if self.vault is None else self.vault.encrypt(message))
        self.rows, self.stored = [], None

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
        """The first change: the new file begins with what comes before it in the first segment."""
        self.file = self.disk.open(self.path, create=True)
        self.file.truncate(0)
        self.write(SCHEMA_BYTES)
        old = self.disk.open(self.segment.path, readonly=True)
        try:
            for at in range(len(SCHEMA_BYTES), self.position, WINDOW_BYTES):
                piece = old.pread(min(WINDOW_BYTES, self.position - at), at)
                self.write(piece)
                self.throttle(len(piece))
        finally:
            old.close()

    def flush(self) -> int:
        """Write what is waiting, large messages without another copy. Returns its bytes."""
        parts, self.parts = self.parts, []
        begin, total = 0, 0
        for at, part in enumerate(parts):
            total += len(part)
            if len(part) >= LARGE_BYTES:
                if begin < at:
                    self.write(b"".join(parts[begin:at]))
                self.write(part)
                begin = at + 1
        if begin < len(parts):
            self.write(b"".join(parts[begin:]))
        return total

    def write(self, data: ReadableBuffer) -> None:
        """Append to the new file, if there is one yet."""
        if self.file is None:
            return
        self.file.write(data)
        self.unsynced += len(data)
        if self.unsynced >= SYNC_BYTES:
            self.file.sync()
            self.unsynced = 0

    def finish(self) -> StagedSegment | None:
        self.close_run()
        self.parts.append(END_OF_STREAM)
        self.flush()
        if self.file is None:
            return None
        self.file.sync()
        self.file.close()
        size = self.position + len(END_OF_STREAM)
        return StagedSegment(self.path, self.entries[: self.count].copy(), size, self.records_gone)

    def abandon(self) -> None:
        if self.file is not None:
            self.file.close()
            with suppress(OSError):
                self.disk.unlink(self.path)
