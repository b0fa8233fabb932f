"""Small batches become large ones, small segments become larger ones. Same records, same offsets, same readers.

A trickling stream is stored one record at a time: 944 bytes of header for a few of content, an index entry, a place
that every reader meets. Behind the tail nothing depends on that any more:

    [0][1][2]...[99] | [100]...[180] | [181]...[250] | tail         segments as they were sealed
    [      0..63     ][   64..127   ][    128..250   ] | tail       one segment of large batches

Which segments: sealed, below the high watermark, with nothing newer than `min_age_ms` (batches whose ids may still be
asked for stay as they are), and, in a compacted log, below the clean end (what compaction is about to write anew it
joins itself). This is done to them, in this order:

- neighbours that fit into one segment are joined, when the largest is at most a third of them together: so every byte
  is written at most log3(segment_bytes) times;
- a segment of small batches is written anew when that leaves at most half of its batches;
- with compression, a segment is written anew when a tenth of it could be compressed and is not.

P1  Nothing is written unless one of these holds before, and it does not hold afterwards: a log that nothing is
    appended to comes to rest.
P2  A joined segment covers at most an eighth of what retention keeps, by time, bytes and records: retention takes
    whole segments, and so nothing stays noticeably longer than it would have.
P3  One call writes one file, and is stopped or killed anywhere: the old segments are there, or the new one (J1).
P4  A log in which something is lost, or was changed by somebody, is left alone.

How the new file is made and what it looks like: rewriting.py. How several files become one: joining.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.api.batch import HEADER_BYTES, ROWS_AT, TEMPLATE, read_header
from broker.api.errors import BadBatch
from broker.api.stream import StreamSettings
from broker.storage.disk import storage_error
from broker.storage.log import PartitionLog
from broker.storage.read import NeedsRepair
from broker.storage.rewrite.clean_state import load_clean_state
from broker.storage.rewrite.rewriting import (
    BATCH_COST_BYTES,
    BatchRun,
    BatchShape,
    body_bytes,
    is_joinable,
    is_packable,
    stage,
)
from broker.storage.segments.segment import Segment
from broker.storage.writing.replace import replace_segments, sealed_segments

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault

RETENTION_PARTS: Final = 8
WEIGHT_OF_OTHERS: Final = 2
"""Joined when the others together weigh so many times the largest."""
DEFAULT_SHAPE: Final = BatchShape()
BATCHES_LEAST: Final = 8
"""A segment of fewer is not worth writing for their sake."""
PACKABLE_PARTS: Final = 10
PACED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CoalescingSettings:
    """Limits: up to where things are too small, and how large they become.

    Attributes:
        shape: The shape of the batches that are written.
        min_batch_bytes: A segment whose batches are smaller on average has small batches; 0: nothing is joined.
        min_age_ms: Segments with a newer record stay as they are.
        segment_bytes, span_ms, span_records: The most that a joined segment has (P2); None: no limit.
        is_compacted: The log is; what is not clean yet is left to compaction.
    """

    shape: BatchShape = DEFAULT_SHAPE
    min_batch_bytes: int = 64 << 10
    min_age_ms: int = 120_000
    segment_bytes: int = 256 << 20
    span_ms: int | None = None
    span_records: int | None = None
    is_compacted: bool = False

    @classmethod
    def of(cls, settings: StreamSettings) -> CoalescingSettings | None:
        """The part of a stream's settings that coalescing acts on; None: it is switched off."""
        min_batch_bytes = settings.coalesce_min_batch_bytes
        if min_batch_bytes == 0 and settings.compression == "none":
            return None
        sizes, span_ms, span_records = [settings.segment_bytes], None, None
        if settings.cleanup != "compact":
            if settings.retention_bytes is not None:
                sizes.append(settings.retention_bytes // RETENTION_PARTS)
            if settings.retention_ms is not None:
                span_ms = settings.retention_ms // RETENTION_PARTS
            if settings.retention_records is not None:
                span_records = settings.retention_records // RETENTION_PARTS
        return cls(
            shape=BatchShape(
                batch_bytes=settings.batch_bytes if min_batch_bytes else 0,
                batch_records=settings.batch_records,
                compression=settings.compression,
            ),
            min_batch_bytes=min_batch_bytes,
            min_age_ms=settings.dedup_window_ms,
            segment_bytes=min(sizes),
            span_ms=span_ms,
            span_records=span_records,
            is_compacted=settings.cleanup != "delete",
        )


@dataclass(slots=True, kw_only=True)
class Known:
    """A sealed segment, as coalescing sees it. Segments do not change, so it is found out once.

    Attributes:
        end: Offset after it.
        oldest_us, newest_us: Greatest timestamp of its first batch, and of all.
        left_alone_for: For this shape and size of small batches it would not gain enough if it were written anew alone.
    """

    segment: Segment
    end: int
    bytes: int
    batches: int
    oldest_us: int
    newest_us: int
    left_alone_for: tuple[BatchShape, int] | None = None

    @property
    def records(self) -> int:
        """Offsets that it covers."""
        return self.end - self.segment.base_offset


KnownSegments = MutableMapping[int, Known]
"""Findings about the segments of one log, by `Segment.serial`. The caller keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoalescingReport:
    """The result of one call.

    Attributes:
        start, end: The range of offsets that was written anew.
        segments: So many became one.
        failed: Why nothing was done after all; else empty.
    """

    start: int = 0
    end: int = 0
    segments: int = 0
    batches_before: int = 0
    batches_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    failed: str = ""


def coalesce(
    log: PartitionLog,
    settings: CoalescingSettings,
    memory: KnownSegments,
    *,
    now_us: int,
    throttle: Callable[[int], None] = lambda _: None,
) -> CoalescingReport | None:
    """Write one segment anew, or several as one, if that is due. One at a time per log, and not beside compaction.

    Args:
        memory: Empty at first.
        throttle: As for `compact`.
    Returns:
        None: nothing is due.
    Raises:
        StorageFailed, DiskFull: the disk refuses (P3).
        CorruptLog: a file cannot be read, and scanning it anew did not help.
    """
    try:
        found = _candidates(log, settings, memory, now_us)
        group = next_join(found, settings) if settings.min_batch_bytes else None
        if group is not None:
            return _write(log, settings, found[slice(*group)], throttle)
        for known in found:
            aim = (settings.shape, settings.min_batch_bytes)
            if known.left_alone_for != aim:
                if _gains(log, settings, known, throttle):
                    return _write(log, settings, [known], throttle)
                known.left_alone_for = aim
    except NeedsRepair as damage:
        log.state.repair(damage.segment)
        return CoalescingReport(failed=f"{damage.segment.path} was scanned anew")
    except FileNotFoundError as error:  # let go of by retention meanwhile
        return CoalescingReport(failed=f"{error.filename} is gone")
    except OSError as error:
        raise storage_error(error, f"coalesce {log.state.folder}") from error
    return None


def next_join(found: Sequence[Known], settings: CoalescingSettings) -> tuple[int, int] | None:
    """The first neighbours that are to become one segment, as a range of `found`; None: there are none. Arithmetic."""
    start = 0
    while start < len(found):
        end, best, size, largest = start, start, 0, 0
        oldest_us = min(found[start].oldest_us, found[start].newest_us)
        while end < len(found):
            known = found[end]
            records = known.end - found[start].segment.base_offset
            if (
                size + known.bytes > settings.segment_bytes
                or (settings.span_records is not None and records > settings.span_records)
                or (settings.span_ms is not None and known.newest_us - oldest_us > settings.span_ms * 1_000)
            ):
                break
            size, largest, end = size + known.bytes, max(largest, known.bytes), end + 1
            if size - largest >= WEIGHT_OF_OTHERS * largest:
                best = end
        if best > start:
            return start, best
        start += 1
    return None


def _candidates(log: PartitionLog, settings: CoalescingSettings, memory: KnownSegments, now_us: int) -> list[Known]:
    """The segments that may be written anew, without gaps between them."""
    sealed = sealed_segments(log.state)
    for serial in memory.keys() - {segment.serial for segment, _ in sealed}:
        del memory[serial]
    if not sealed or log.state.lost_ranges or log.state.tampered:
        return []
    limit = log.state.high_watermark
    if settings.is_compacted:
        limit = min(limit, load_clean_state(log.state.disk, log.state.folder).cleaned_to)
    before_us = now_us - settings.min_age_ms * 1_000
    found = []
    for segment, end in sealed:
        if end > limit:
            break
        known = memory.get(segment.serial)
        if known is None:
            known = memory[segment.serial] = _look_at(log, segment, end)
        if settings.min_age_ms and known.newest_us > before_us:
            break
        found.append(known)
    return found


def _look_at(log: PartitionLog, segment: Segment, end: int) -> Known:
    index = log.state.index_of(segment)
    return Known(
        segment=segment,
        end=end,
        bytes=segment.size(log.state.disk),
        batches=len(index),
        oldest_us=int(index.max_timestamps[0]) if len(index) else index.max_timestamp_us,
        newest_us=index.max_timestamp_us,
    )


def _gains(log: PartitionLog, settings: CoalescingSettings, known: Known, throttle: Callable[[int], None]) -> bool:
    """Whether a segment is worth writing anew by itself. Reads the header of every batch, if it may be."""
    is_small = known.batches >= BATCHES_LEAST and known.bytes < known.batches * settings.min_batch_bytes
    packs = settings.shape.compression != "none"
    if not is_small and not packs:
        return False
    index, shape = log.state.index_of(known.segment), settings.shape
    entries = index.entries
    after, run, unpaced, packable_bytes = 0, None, 0, 0
    vault = log.state.vault
    file = log.state.disk.open(known.segment.path, readonly=True)
    try:
        for position, length in zip(entries["position"].tolist(), entries["length"].tolist(), strict=True):
            head: bytes | memoryview = file.pread(min(length, HEADER_BYTES), position)
            size = length - HEADER_BYTES
            if vault is not None:
                head = _opened(vault, known.segment, file.pread(length, position))
            if is_packable(head, length):
                packable_bytes += length
            elif bytes(head[:8]) != TEMPLATE[:8]:
                head = file.pread(length, position) if vault is None else head
                size = body_bytes(head)
            unpaced += BATCH_COST_BYTES if vault is None else BATCH_COST_BYTES + length
            if unpaced >= PACED_BYTES:
                throttle(unpaced)
                unpaced = 0
            try:
                header = read_header(head)
            except BadBatch as error:
                raise NeedsRepair(known.segment) from error
            (rows,) = struct.unpack_from("<q", head, ROWS_AT)
            joins = is_joinable(header, log.remembered.needs_stamp)
            if joins and run is not None and run.takes(header, rows, size, shape):
                run.add(header, rows, size)
                continue
            after += 1
            run = BatchRun(header, rows, size) if joins else None
    finally:
        file.close()
    if packs and packable_bytes * PACKABLE_PARTS >= known.bytes:
        return True
    return is_small and after <= known.batches // 2


def _opened(vault: Vault, segment: Segment, message: bytes) -> memoryview:
    try:
        return vault.open_message(message, where=f"{segment.path}: ")
    except BadBatch as error:
        raise NeedsRepair(segment) from error


def _write(
    log: PartitionLog, settings: CoalescingSettings, group: Sequence[Known], throttle: Callable[[int], None]
) -> CoalescingReport | None:
    segments = [known.segment for known in group]
    sources = [(segment, log.state.index_of(segment)) for segment in segments]
    vault = log.state.vault
    staged = stage(
        log.state.disk, sources, throttle, shape=settings.shape, needs_stamp=log.remembered.needs_stamp, vault=vault
    )
    if staged is None:
        return None
    if not replace_segments(log.state, segments, staged.path, staged.entries, staged.bytes, is_whole=True):
        if log.state.lost_ranges or log.state.tampered:
            return CoalescingReport(
                failed="something of it is lost" if log.state.lost_ranges else "somebody has changed it"
            )
        return CoalescingReport(failed="retention took it meanwhile")
    return CoalescingReport(
        start=segments[0].base_offset,
        end=group[-1].end,
        segments=len(segments),
        batches_before=sum(known.batches for known in group),
        batches_after=len(staged.entries),
        bytes_before=sum(known.bytes for known in group),
        bytes_after=staged.bytes,
    )
