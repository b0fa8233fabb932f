"""From offsets and times to places in files. Hands out ranges, never bytes: HTTP sends them with sendfile.

A question is asked of a `LogView`, a snapshot that needs no lock. Only what is below the high watermark
is found. When a file does not hold what the index says, the answer is `NeedsRepair`: the log
scans that segment anew and the question is asked again.

A1  A range holds whole batches and nothing else: no schema message, no end marker, no gap.
A2  The first batch of each range was checked against its index entry (S4).
A3  An index that was read from its file is looked at once, whether it has an entry for each batch (`index.py`, I3).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from broker.api.batch import HEADER_BYTES, BatchHeader, decode_batch, read_header, verify_batch
from broker.api.columns import Columns
from broker.api.errors import BadBatch, CorruptLog, OffsetOutOfRange
from broker.storage.blooms import BLOOMS, Mask, Questions
from broker.storage.disk import Disk, File
from broker.storage.encrypted.message import stored_bytes, verify_stored
from broker.storage.recovery import Ranges, merge_ranges
from broker.storage.segments.checkpoint import LogIdentity
from broker.storage.segments.index import IndexView
from broker.storage.segments.scan import Peek, peek
from broker.storage.segments.segment import Segment

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault

SEGMENTS_PER_PLAN_MAX: Final = 64
"""So many files one plan opens at most; `next_offset` says where to go on."""


class NeedsRepair(Exception):
    """Internal: `segment` has no index, does not hold what its index says, or was replaced by another."""

    def __init__(self, segment: Segment, *, around_errors: bool = False) -> None:
        super().__init__(segment)
        self.segment = segment
        self.around_errors = around_errors  # what the disk cannot read counts as damaged


@dataclass(frozen=True, slots=True)
class FileRange:
    """Whole batches at one place of an open file. `fd` belongs to the plan."""

    fd: int
    position: int
    length: int
    path: str


class InOrder:
    """Whether the batches of a plan of an encrypted log are those that belong there, and all of them.

    Each batch of a log opens with its key, wherever in the log somebody has put it, and an index says what anybody has
    written. What the batches themselves say of their offsets is authenticated: the first one holds the offset where the
    plan begins, each other one begins where the one before it ends, and what lies between is known to be missing.
    """

    __slots__ = ("_expected", "_gaps", "_next_offset")

    def __init__(self, plan: ReadPlan, also: Ranges = ()) -> None:
        self._expected = min([plan.asked, *plan.begins[:1]])
        self._gaps = merge_ranges([*plan.gaps, *also])
        self._next_offset = plan.next_offset

    def check(self, header: BatchHeader, where: str) -> None:
        """The next batch. Raises BadBatch."""
        self._check(header.first_offset, where)
        self._expected = header.next_offset

    def check_end(self, where: str) -> None:
        """Nothing comes any more. Raises BadBatch: there was more than that."""
        if self._expected < self._next_offset:
            self._check(self._next_offset, where)

    def _check(self, first: int, where: str) -> None:
        expected = self._expected
        if first != expected and not any(start <= expected < first <= end for start, end in self._gaps):
            raise BadBatch(f"{where}what stands there begins at {first}, what belongs there at {expected}: moved there")


class ReadPlan:
    """Where the records of a read lie. A context manager: owns the files until it is closed.

    Attributes:
        ranges: n >= 0 ranges, to be sent in this order (A1).
        first_offset: The first batch's; may be before the offset that was asked for.
        next_offset: Where to read on. After the last batch, and after what is lost behind it.
        bytes: Sum of the ranges.
        sources: Of each range its segment and file.
        begins: Of each range the first offset of its first batch.
        asked: Where to begin.
        gaps: The offsets that no batch has, as far as was known.
        batch_count: Batches in them.
        columns: None: the ranges have whole batches. Else messages with these columns of theirs (`project.py`).
        is_opened: Its messages were encrypted, and are held in memory (`encrypted/plans.py`).
    """

    __slots__ = (
        "_fds",
        "_files",
        "asked",
        "batch_count",
        "begins",
        "bytes",
        "columns",
        "first_offset",
        "gaps",
        "is_opened",
        "next_offset",
        "ranges",
        "sources",
    )

    def __init__(self, offset: int, gaps: Ranges = ()) -> None:
        self.asked = offset
        self.gaps = gaps
        self.ranges: list[FileRange] = []
        self.sources: list[tuple[Segment, File]] = []
        self.begins: list[int] = []
        self.first_offset = offset
        self.next_offset = offset
        self.bytes = 0
        self.batch_count = 0
        self.columns: Columns | None = None
        self.is_opened = False
        self._files: list[File] = []
        self._fds: list[int] = []

    def __enter__(self) -> ReadPlan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; the ranges are of no use any more. May be called twice."""
        files, self._files = self._files, []
        for file in files:
            file.close()
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    def own(self, file: File) -> File:
        """Close `file` with the plan."""
        self._files.append(file)
        return file

    def own_fd(self, fd: int) -> None:
        """Close a descriptor with the plan."""
        self._fds.append(fd)

    def add(self, segment: Segment, file: File, begin: int, position: int, length: int, batch_count: int) -> None:
        self.begins.append(begin)
        self.batch_count += batch_count
        self.ranges.append(FileRange(file.fileno(), position, length, segment.path))
        self.sources.append((segment, file))
        self.bytes += length


@dataclass(frozen=True, slots=True)
class LogView:
    """A log at one moment. `segments` is never changed in place."""

    identity: LogIdentity
    disk: Disk
    segments: tuple[Segment, ...]
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    lost_ranges: Ranges
    vault: Vault | None = None
    tampered: Ranges = ()

    def stored(self) -> LogView:
        """The same log, as if all that is stored were committed."""
        start, end = self.log_start_offset, self.log_end_offset
        lost, tampered = self.lost_ranges, self.tampered
        return LogView(self.identity, self.disk, self.segments, start, end, end, lost, self.vault, tampered)

    @property
    def gaps(self) -> Ranges:
        """The offsets that no index has an entry for: lost, or tampered."""
        return merge_ranges([*self.lost_ranges, *self.tampered]) if self.tampered else self.lost_ranges

    def index(self, segment: Segment) -> IndexView:
        found = segment.index(self.disk)
        if found is None:
            raise NeedsRepair(segment)
        if not found.is_complete:
            self._check_complete(segment, found)
        return found

    def _check_complete(self, segment: Segment, index: IndexView) -> None:
        """Look whether an index that was read from its file lacks an entry (A3): it does where offsets are in no batch
        that it knows, and are not lost."""
        after, end = segment.base_offset, self.end_of(self.segment_of(segment.base_offset))
        file = self.disk.open(segment.path, readonly=True)
        try:
            if segment.is_replaced:
                raise NeedsRepair(segment)
            for first, stop in _runs(index, 0, len(index)) if len(index) else ():
                self._must_be_lost(segment, after, int(index.first_offsets[first]))
                after = read_head(segment, file, index, stop - 1).next_offset
        finally:
            file.close()
        self._must_be_lost(segment, after, end)
        index.is_complete = True

    def _must_be_lost(self, segment: Segment, start: int, end: int) -> None:
        start = max(start, self.log_start_offset)
        if start < end and self.after_gap(start) < end:
            raise NeedsRepair(segment)

    def segment_of(self, offset: int) -> int:
        """Number of the segment whose range holds `offset`; the first one for lesser offsets."""
        return max(0, bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1)

    def end_of(self, number: int) -> int:
        """Offset after the range of a segment."""
        return self.segments[number + 1].base_offset if number + 1 < len(self.segments) else self.log_end_offset

    def after_lost(self, offset: int) -> int:
        """`offset`, or the end of the lost range that it lies in."""
        return next((end for start, end in self.lost_ranges if start <= offset < end), offset)

    def after_gap(self, offset: int) -> int:
        """As `after_lost`, of both."""
        return next((end for start, end in self.gaps if start <= offset < end), offset)

    def next_of(self, index: IndexView, at: int, segment_end: int) -> int:
        """Offset after batch `at`: where the next begins, or a lost range behind it."""
        end = int(index.first_offsets[at + 1]) if at + 1 < len(index) else segment_end
        first = int(index.first_offsets[at])
        return min([end, *(start for start, _ in self.gaps if first < start)])


def out_of_range(
    identity: LogIdentity, offset: int, log_start_offset: int, high_watermark: int, message: str | None = None
) -> OffsetOutOfRange:
    """The error for an offset that a log does not have: which log, what was asked, what may be."""
    where = f"{identity.stream}/{identity.partition}"
    return OffsetOutOfRange(
        message or f"{where}: offset {offset} is outside [{log_start_offset}, {high_watermark}]",
        stream=identity.stream,
        partition=identity.partition,
        offset=offset,
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
    )


def plan_read(
    view: LogView,
    offset: int,
    *,
    end: int | None,
    max_bytes: int | None,
    skips_lost: bool = True,
    questions: Questions | None = None,
) -> ReadPlan:
    """Find the batches that hold [offset, min(end, high watermark)).

    Args:
        skips_lost: Go on behind what is lost. Else the plan ends before it: another replica may have it.
        questions: Leave out batches that are known to hold nothing of this (`blooms.questions_of`).
    Raises:
        OffsetOutOfRange: `offset` is not in [log start, high watermark].
        CorruptLog: `offset` is lost, and that is not to be skipped.
        BadBatch: somebody has changed the batch there.
        NeedsRepair: see there.
    """
    if not view.log_start_offset <= offset <= view.high_watermark:
        raise out_of_range(view.identity, offset, view.log_start_offset, view.high_watermark)
    stop = view.high_watermark if end is None else min(end, view.high_watermark)
    if view.lost_ranges and not skips_lost:
        stop = _before_lost(view, offset, stop)
    if view.tampered:
        stop = _before_tampered(view, offset, stop)
    plan = ReadPlan(min(view.after_lost(offset), max(stop, offset)), view.gaps)
    try:
        number = view.segment_of(plan.next_offset)
        last = min(len(view.segments), number + SEGMENTS_PER_PLAN_MAX)
        while number < last and plan.next_offset < stop:
            if not _plan_segment(view, plan, number, stop, max_bytes, questions):
                break
            number += 1
    except BaseException:
        plan.close()
        raise
    if not skips_lost or view.tampered:
        plan.next_offset = min(plan.next_offset, max(stop, offset))
    return plan


def _before_tampered(view: LogView, offset: int, stop: int) -> int:
    for start, end in view.tampered:
        if start <= offset < min(end, stop):
            where = f"{view.identity.stream}/{view.identity.partition}"
            raise BadBatch(f"{where}: what is stored of [{start}, {end}) was not encrypted here", offset=offset)
    return min([stop, *(start for start, _ in view.tampered if start > offset)])


def _before_lost(view: LogView, offset: int, stop: int) -> int:
    for start, end in view.lost_ranges:
        if start <= offset < min(end, stop):
            where = f"{view.identity.stream}/{view.identity.partition}"
            raise CorruptLog(f"{where}: [{start}, {end}) is damaged on this replica", offset=offset)
    return min([stop, *(start for start, _ in view.lost_ranges if start > offset)])


def _plan_segment(
    view: LogView, plan: ReadPlan, number: int, stop: int, max_bytes: int | None, questions: Questions | None
) -> bool:
    """Add what one segment has of the plan. False: the plan is full."""
    segment, segment_end = view.segments[number], view.end_of(number)
    index = view.index(segment)
    if len(index) and not segment.base_offset <= index.first_offsets[0] <= index.first_offsets[-1] < segment_end:
        raise NeedsRepair(segment)  # the index of another one: whole, and of no use here
    begin = max(0, index.find(plan.next_offset))
    if begin < len(index) and view.next_of(index, begin, segment_end) <= plan.next_offset:
        begin += 1  # what lies between is lost
    end = index.find_from(stop)
    if end > begin and view.next_of(index, end - 1, segment_end) > view.high_watermark:
        end -= 1  # a batch is committed as a whole
    may = BLOOMS.may_hold(segment, index, begin, end, questions) if questions and end > begin else None
    if max_bytes is not None and end > begin:
        end = _within(index, begin, end, may, max_bytes - plan.bytes, at_least_one=not plan.ranges)
    runs = _runs(index, begin, end, may) if end > begin else []
    if runs:
        file = plan.own(view.disk.open(segment.path, readonly=True))
        if segment.is_replaced or file.size() < index.end_of(runs[-1][1] - 1):
            raise NeedsRepair(segment)
        if not plan.ranges:
            plan.first_offset = int(index.first_offsets[runs[0][0]])
        for start, after in runs:
            read_head(segment, file, index, start)
            position = int(index.positions[start])
            begin, length = int(index.first_offsets[start]), index.end_of(after - 1) - position
            plan.add(segment, file, begin, position, length, after - start)
    next_offset = int(index.first_offsets[end]) if end < len(index) else segment_end
    plan.next_offset = max(plan.next_offset, min(next_offset, view.high_watermark))
    return end == len(index)


def _within(index: IndexView, begin: int, end: int, may: Mask | None, bytes_max: int, *, at_least_one: bool) -> int:
    """The greatest end in [begin, end] so that the batches fit.

    Args:
        may: Those that count, of [begin, end); None: all.
        at_least_one: One that counts fits in any case.
    """
    if may is None:
        limit = int(index.positions[begin]) + max(0, bytes_max)
        found = bisect_right(index.positions, limit, begin, end)
        found -= found > begin and index.end_of(found - 1) > limit
        return max(found, begin + at_least_one)
    sizes = np.cumsum(np.where(may, index.entries["length"][begin:end], 0), dtype=np.int64)
    least = int(np.argmax(may)) + 1 if at_least_one and may.any() else 0
    return begin + max(least, int(np.searchsorted(sizes, max(0, bytes_max), side="right")))


def _runs(index: IndexView, begin: int, end: int, may: Mask | None = None) -> list[tuple[int, int]]:
    """The batches [begin, end) as runs without gaps between them.

    Args:
        may: Those that are wanted, of [begin, ...); None: all.
    """
    if index.contiguous and may is None:
        return [(begin, end)]
    entries = index.entries[begin:end]
    wanted = np.ones(end - begin, np.bool_) if may is None else may[: end - begin]
    touch = entries["position"][1:] == (entries["position"] + entries["length"])[:-1]
    goes_on = np.concatenate([[False], touch & wanted[:-1], [False]])  # before each batch, and behind the last
    starts = np.flatnonzero(wanted & ~goes_on[:-1]) + begin
    stops = np.flatnonzero(wanted & ~(goes_on[1:] & np.append(wanted[1:], False))) + begin + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def read_head(segment: Segment, file: File, index: IndexView, at: int) -> Peek:
    """The header of batch `at`, which must be what the index says (A2)."""
    entry = index.entries[at]
    head = peek(file.pread(HEADER_BYTES, int(entry["position"])))
    if head is None or (head.first_offset, head.length, head.crc) != (
        entry["first_offset"],
        entry["length"],
        entry["crc"],
    ):
        raise NeedsRepair(segment)
    return head


def check_head(vault: Vault | None, segment: Segment, file: File, index: IndexView, at: int) -> None:
    """Check the CRC of batch `at`, whose header decides something; of an encrypted one, that it opens.

    The index knows the place, the first offset and the CRC that a header names. A bit that flips in another field is
    seen by nothing else.
    """
    entry = index.entries[at]
    try:
        message = file.pread(int(entry["length"]), int(entry["position"]))
        if vault is None:
            verify_stored(message)
        else:
            vault.open_message(message)
    except BadBatch as error:
        raise NeedsRepair(segment) from error


def group_start(view: LogView, to: int | None = None) -> int:
    """Where a log can be cut so that nothing from `to` on stays, and no commit group stays in part.

    Args:
        view: Its last group may be incomplete.
        to: At most the log end; None: that.
    Returns:
        `to`, or the first offset of the group that holds the record before it and does not end there. `to` also if
        that record is lost: here nobody knows what its group was, and others may have it.
    Raises:
        OffsetOutOfRange: that would be below the log start.
        NeedsRepair: see there.
    """
    to = view.log_end_offset if to is None else to
    if to < view.log_start_offset:
        raise out_of_range(view.identity, to, view.log_start_offset, view.high_watermark)
    if not view.segments:
        return to
    start = _group_start(view, to)
    view.index(view.segments[view.segment_of(start - 1)])  # whoever cuts there needs it
    return start


def _group_start(view: LogView, to: int) -> int:
    last = view.segment_of(to - 1)
    if any(start < to <= end for start, end in view.gaps):
        return to
    head: Peek | None = None
    for number in range(last, -1, -1):  # a segment that grew old was sealed wherever it ended
        segment = view.segments[number]
        index = view.index(segment)
        at = len(index) - 1 if head is not None else index.find(to - 1)
        if head is None and at < 0:
            return to
        file = view.disk.open(segment.path, readonly=True)
        try:
            if segment.is_replaced:
                raise NeedsRepair(segment)
            while at >= 0 and (head is None or head.group_index > 0):
                is_last = head is None
                head = read_head(segment, file, index, at)
                if is_last and head.next_offset <= to and head.group_index == head.group_count - 1:
                    return to
                if not is_last or head.group_index or view.next_of(index, at, view.end_of(number)) <= to:
                    check_head(view.vault, segment, file, index, at)  # else the index tells that the cut is within it
                at -= 1
        finally:
            file.close()
        if head is not None and head.group_index == 0:
            break
    assert head is not None, "the last batch was read"
    if head.first_offset < view.log_start_offset:
        raise out_of_range(view.identity, to, view.log_start_offset, view.high_watermark)
    return head.first_offset


def batch_start(view: LogView, offset: int) -> int:
    """Where the stored batch begins that `offset` lies within; `offset` itself where one begins, or none is. Reads no
    batch.

    Raises:
        NeedsRepair: see there.
    """
    if not view.segments or not view.segments[0].base_offset <= offset < view.log_end_offset:
        return offset
    index = view.index(view.segments[view.segment_of(offset)])
    at = index.find(offset)
    return int(index.first_offsets[at]) if at >= 0 and view.after_gap(offset) == offset else offset


def verified_messages(
    file: File, place: FileRange, vault: Vault | None = None, order: InOrder | None = None
) -> Iterator[tuple[memoryview, int]]:
    """Each message of a range, opened where a vault is given, and the offset after it.

    Args:
        order: Of an encrypted log.
    Raises:
        BadBatch: one is damaged, or does not belong there.
    """
    view = memoryview(file.pread(place.length, place.position))
    while view:
        length = stored_bytes(view[:HEADER_BYTES], where=f"{place.path}: ")
        message = view[:length]
        if vault is None:
            yield message, verify_batch(message, where=f"{place.path}: ").next_offset
        else:
            message = vault.open_message(message, where=f"{place.path}: ")
            header = read_header(message)
            if order is not None:
                order.check(header, f"{place.path}: ")
            yield message, header.next_offset
        view = view[length:]


def greatest_timestamp(view: LogView, segment: Segment) -> int:
    """The greatest timestamp of a segment's records."""
    greatest = segment.max_timestamp_us(view.disk)
    if greatest is None:
        raise NeedsRepair(segment)
    return greatest


def find_time(view: LogView, timestamp_us: int) -> int | None:
    """The earliest committed offset whose timestamp is at or after `timestamp_us`; None when there is none."""
    for number in range(view.segment_of(view.log_start_offset), len(view.segments)):
        segment = view.segments[number]
        greatest = greatest_timestamp(view, segment)
        if greatest >= timestamp_us:
            found = _find_time_in(view, segment, timestamp_us)
            if found is not None:
                return found
    return None


def _find_time_in(view: LogView, segment: Segment, timestamp_us: int) -> int | None:
    index = view.index(segment)
    file = view.disk.open(segment.path, readonly=True)
    try:
        if segment.is_replaced:
            raise NeedsRepair(segment)
        # One batch, unless the log starts within the segment: the maximum then still counts what is gone.
        for at in range(max(index.find_time(timestamp_us), index.find(view.log_start_offset), 0), len(index)):
            if int(index.first_offsets[at]) >= view.high_watermark:
                return None
            if read_head(segment, file, index, at).max_timestamp_us < timestamp_us:
                check_head(view.vault, segment, file, index, at)
                continue
            rows = read_rows(view.vault, segment, file, index, at)
            offsets = rows.column("offset").to_numpy()
            timestamps = rows.column("timestamp").cast(pa.int64()).to_numpy()
            fits = (timestamps >= timestamp_us) & (offsets >= view.log_start_offset) & (offsets < view.high_watermark)
            if fits.any():
                return int(offsets[int(fits.argmax())])
    finally:
        file.close()
    return None


def read_rows(vault: Vault | None, segment: Segment, file: File, index: IndexView, at: int) -> pa.RecordBatch:
    """The verified rows of batch `at`."""
    entry = index.entries[at]
    try:
        message = file.pread(int(entry["length"]), int(entry["position"]))
        return decode_batch(message if vault is None else vault.open_message(message))
    except BadBatch as error:
        raise NeedsRepair(segment) from error


def bytes_between(view: LogView, start: int, end: int) -> int:
    """About how many bytes the records [start, end) have. The records of a batch count as equally large."""
    start, end = max(start, view.log_start_offset), min(end, view.log_end_offset)
    if start >= end or not view.segments:
        return 0
    total = 0
    for number in range(view.segment_of(start), len(view.segments)):
        segment, segment_end = view.segments[number], view.end_of(number)
        if segment.base_offset >= end:
            break
        if start <= segment.base_offset and segment_end <= end and number + 1 < len(view.segments):
            total += segment.size(view.disk)
            continue
        index = view.index(segment)
        first, last = max(0, index.find(start)), index.find_from(end) - 1
        if last >= first:
            total += _place(view, index, last, end, segment_end) - _place(view, index, first, start, segment_end)
    return total


def timestamp_at(view: LogView, offset: int) -> int | None:
    """The greatest timestamp in its segment up to the end of the batch that has `offset`, microseconds since 1970 UTC.

    So the record there is about that old, to within a batch; None: nothing is stored from `offset` on. A timestamp of
    the future hides the age of what is behind it.
    """
    offset = max(offset, view.log_start_offset)
    if offset >= view.log_end_offset:
        return None
    for number in range(view.segment_of(offset), len(view.segments)):
        index = view.index(view.segments[number])
        if len(index):
            return int(index.max_timestamps[max(0, index.find(offset))])
    return None


def _place(view: LogView, index: IndexView, at: int, offset: int, segment_end: int) -> int:
    """About where in the file the records before `offset` end, by its share of batch `at`."""
    entry, next_offset = index.entries[at], view.next_of(index, at, segment_end)
    first, length = int(entry["first_offset"]), int(entry["length"])
    inside = min(max(offset, first), next_offset) - first
    return int(entry["position"]) + length * inside // max(1, next_offset - first)
