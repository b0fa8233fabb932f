"""Open a log that has no clean mark: find out what is there, and keep what was fsynced.

    segment 0        segment 100              segment 200 (the last)
    [ sealed  ]      [ sealed      ]          [ batch batch | batch ???? batch ]
                           ^ recovery point: scan from here to the end of every file

R1  Nothing below `kept_end` is ever cut. It is the greatest of: the recovery point of the checkpoint, and the base of
    the last segment (a segment is fsynced whole before the next is made). For a sole replica also what proves that
    something was committed: the high watermark of the checkpoint, and one in the header of a later intact batch.
R2  A gap at or above it is a torn tail: the file is cut there, and back to where its commit group began.
    A later intact batch that is no evidence goes with it: writes may reach the disk out of order. Zeros alone are the
    room that an open tail has (`ahead`): cut off too, and nothing to tell of.
R3  A gap below it is *lost*, to this replica: a sole one has lost it for good. The offsets are noted, the file is left
    as it is and never appended to again, and what is intact around the gap is served.
R4  Offsets below `kept_end` are never given out again, present or lost.
R5  Everything that recovery keeps is fsynced before it counts as durable.
R6  Where two segments overlap the later one counts: it was whole on disk before it got its name (`Chain.write_again`).
    The overlapping end of the earlier one is cut off, if that one lacks nothing.
R7  All that is found beyond the recovery point is written once more before it is judged. A process that ended after a
    failed fsync leaves pages that look clean and are on no disk: an fsync of ours finds nothing to do there, and what
    it called durable would be gone with the power.
R8  A replica that counts for commits had fsynced all that a high watermark covers before anybody wrote that one down.
    So if the high watermark of its checkpoint, or of any intact batch, is above the log end, the disk has taken back
    what it had fsynced. With other replicas the log is cut all the same (R2), and is *behind*. The checkpoint has that
    high watermark from before the cut until the log is told whom it follows, or that it leads: the catalog knows then.
R9  Of an encrypted log only batches that open decide anything (`encrypted/own.py`). One whose CRC fits and that does
    not open ends the recovery, and nothing was cut or removed by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.storage.disk import TEMPORARY, Disk
from broker.storage.disk.unreadable import ReadAround
from broker.storage.encrypted.own import ForeignBatches, check_of
from broker.storage.memory.state_files import list_states
from broker.storage.rewrite.joining import finish_joins
from broker.storage.segments.checkpoint import CHECKPOINT_FILE, Checkpoint
from broker.storage.segments.index import ENTRY, INDEX_CACHE, Entries, GrowingIndex, IndexView
from broker.storage.segments.scan import Check, Scan, scan
from broker.storage.segments.segment import INDEX_ENDING, SEGMENT_ENDING, Segment, parse_name
from broker.storage.torn_tail import judge_tail

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault

Ranges = tuple[tuple[int, int], ...]
FIRST_POSITION: Final = len(SCHEMA_BYTES)


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """The findings and acts of an open, for the log lines.

    Attributes:
        clean: The clean mark held; no segment was read.
        scanned_bytes, scanned_batches: So many were read and verified.
        cut_bytes: Torn tail that was cut off, in bytes; `cut_offset` is where the log ends since then.
        lost: Ranges found damaged by this open (earlier ones are in `PartitionLog.lost_ranges`).
        rebuilt_indexes: Base offsets of the segments whose index was written anew.
        notes: All else that was out of the ordinary, in words.
    """

    clean: bool = False
    scanned_bytes: int = 0
    scanned_batches: int = 0
    cut_bytes: int = 0
    cut_offset: int | None = None
    lost: list[tuple[int, int]] = field(default_factory=list)
    rebuilt_indexes: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class RecoveredLog:
    """A log as it is on disk. Everything in it is durable (R5).

    `new_epochs` are the (leader epoch, offset) of the first and the last record of each that the scan met.
    `committed_to`: so far records were committed, and the log has other replicas and ends below (R8); else 0.
    """

    segments: list[Segment]
    tail: Segment | None
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    new_epochs: list[tuple[int, int]]
    lost_ranges: Ranges
    committed_to: int
    report: RecoveryReport


def load_checkpoint(disk: Disk, folder: str, report: RecoveryReport) -> Checkpoint | None:
    """The checkpoint; None when it is missing or damaged (the latter is noted).

    Raises:
        UnknownFormatVersion: a later release wrote it.
    """
    path = f"{folder}/{CHECKPOINT_FILE}"
    try:
        data = disk.read_file(path)
    except FileNotFoundError:
        return None
    found = Checkpoint.decode(data, where=path)
    if found is None:
        report.notes.append(f"{path} was damaged; recovered from the segments alone")
    return found


def list_segments(disk: Disk, folder: str) -> list[Segment]:
    """The segments of a folder by base offset, by their names alone."""
    names = filter(None, map(parse_name, disk.listdir(folder)))
    return [Segment(folder, base) for base, ending in sorted(names) if ending == SEGMENT_ENDING]


def is_clean(disk: Disk, checkpoint: Checkpoint, segments: list[Segment], boot_id: str) -> bool:
    """Whether the clean mark is of this run of the machine, and the files are those that it was set for."""
    if not boot_id or checkpoint.clean_boot_id != boot_id:
        return False
    tail = checkpoint.tail
    if tail is None:
        return not segments or segments[-1].base_offset < checkpoint.recovery_point
    last = segments[-1] if segments else None
    return last is not None and last.base_offset == tail.base_offset and disk.size(last.path) == tail.bytes


def merge_ranges(ranges: Iterable[tuple[int, int]], *, log_start_offset: int = 0) -> Ranges:
    """Sorted, joined, without what lies below the log start or is empty."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        start = max(start, log_start_offset)
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def recover(
    disk: Disk,
    folder: str,
    checkpoint: Checkpoint | None,
    report: RecoveryReport,
    *,
    now_us: int,
    is_sole: bool = True,
    vault: Vault | None = None,
) -> RecoveredLog:
    """Bring a folder into a state that can be served and appended to; see the module's invariants.

    Args:
        is_sole: There is no other replica: high watermarks on disk are evidence (R1).
        vault: Opens what is encrypted.
    Raises:
        BadBatch: somebody has changed an encrypted batch (R9).
        UnknownFormatVersion: something in it was written by a later release; nothing was changed.
        OSError: the disk does not do what it is asked; nothing that was fsynced was changed.
    """
    check = check_of(vault)
    finish_joins(disk, folder, report.notes, check)
    segments = list_segments(disk, folder)
    known = checkpoint or _from_names(segments)
    _sweep(disk, folder, segments)
    kept = next(iter(list_states(disk, folder)), known.log_start_offset)  # `state_files.T3`
    while len(segments) > 1 and segments[1].base_offset <= min(known.log_start_offset, kept):
        segments.pop(0).unlink(disk)
    if segments and (known.tail is None or known.tail.base_offset != segments[-1].base_offset):
        disk.sync_dir(folder)  # R5: who made the last one may have been killed before its name was durable
    run = _Recovery(disk, folder, known, report, now_us, is_sole=is_sole, check=check)
    run.lost(known.log_start_offset, segments[0].base_offset if segments else known.recovery_point)
    after = [segment.base_offset for segment in segments[1:]]
    was_tail = known.tail.base_offset if known.tail is not None else known.recovery_point
    for segment, next_base in zip(segments, after, strict=False):
        if next_base > known.recovery_point or segment.base_offset >= was_tail:
            run.sealed(segment, next_base)
    proven = known.high_watermark if is_sole else 0
    run.log_end_offset = max(known.recovery_point, proven, known.log_start_offset)
    tail = run.last(segments[-1]) if segments else None
    return run.result(segments, tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescan:
    """What a segment holds, found by reading it anew.

    Attributes:
        entries: Of all its intact batches.
        size: Length of the file without its room.
        lost: Offsets that should be there and are not.
        tampered: Likewise, where something stands that somebody else has written (`encrypted/own.O3`).
        is_indexed: The index file of a sealed segment has these entries.
    """

    entries: Entries
    size: int
    lost: Sequence[tuple[int, int]]
    tampered: Sequence[tuple[int, int]]
    is_indexed: bool


def rescan(
    disk: Disk,
    segment: Segment,
    end: int,
    *,
    around_errors: bool = False,
    vault: Vault | None = None,
    is_growing: bool = False,
) -> Rescan:
    """Read a segment anew because its index is missing or wrong, or a batch is not where it says. Changes nothing.

    All below `end` was written, and what a sealed one has was fsynced: gaps are lost.

    Args:
        around_errors: Count as a gap what the disk cannot read, as long as it is little (`ReadAround`).
        vault: Opens what is encrypted.
        is_growing: Batches may come behind `end` meanwhile.
    """
    foreign = None if vault is None else ForeignBatches(vault, segment.base_offset, None if is_growing else end)
    run = _Recovery(disk, "", Checkpoint(), RecoveryReport(), 0, check=None if foreign is None else foreign.check)
    run.around_errors = around_errors
    found, batches = run.batches_of(segment, end)
    entries = _entries(batches)
    there = segment.stored_entries(disk) if segment.partial is None else None
    is_indexed = there is not None and np.array_equal(there, entries)
    lost, tampered = run.report.lost, []
    if foreign is not None:
        places = [_place_of(gap, batches, found.size) for gap in lost]
        is_foreign = [foreign.within(start, end) or start == end < found.size for start, end in places]
        tampered = [gap for gap, is_one in zip(lost, is_foreign, strict=True) if is_one]
        lost = [gap for gap, is_one in zip(lost, is_foreign, strict=True) if not is_one]
    return Rescan(entries=entries, size=found.size, lost=lost, tampered=tampered, is_indexed=is_indexed)


def _place_of(gap: tuple[int, int], batches: npt.NDArray[np.void], size: int) -> tuple[int, int]:
    """The bytes between the batches around missing offsets."""
    after = int(np.searchsorted(batches["first_offset"], gap[1]))
    start = FIRST_POSITION if after == 0 else int(batches["position"][after - 1] + batches["length"][after - 1])
    return start, size if after == len(batches) else int(batches["position"][after])


def _from_names(segments: list[Segment]) -> Checkpoint:
    """The checkpoint that names alone prove when there is none: all before the last segment was fsynced (R1)."""
    if not segments:
        return Checkpoint()
    first, last = segments[0].base_offset, segments[-1].base_offset
    return Checkpoint(log_start_offset=first, recovery_point=last)


def _sweep(disk: Disk, folder: str, segments: list[Segment]) -> None:
    """Remove what an interrupted replace or unlink left behind."""
    bases = {segment.base_offset for segment in segments}
    for name in disk.listdir(folder):
        parsed = parse_name(name)
        orphan = parsed is not None and parsed[1] == INDEX_ENDING and parsed[0] not in bases
        if orphan or name.endswith(TEMPORARY):
            disk.unlink(f"{folder}/{name}")


class _Recovery:
    """One run over one folder, or over one segment of it."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        known: Checkpoint,
        report: RecoveryReport,
        now_us: int,
        *,
        is_sole: bool = True,
        check: Check | None = None,
    ) -> None:
        self.disk = disk
        self.check = check
        self.is_sole = is_sole
        self.folder = folder
        self.known = known
        self.report = report
        self.now_us = now_us
        self.log_end_offset = 0
        self.high_watermark = self.committed_to = known.high_watermark
        self.new_epochs: list[tuple[int, int]] = []
        self.around_errors = False

    def lost(self, start: int, end: int) -> None:
        if start < end:
            self.report.lost.append((start, end))

    def result(self, segments: list[Segment], tail: Segment | None) -> RecoveredLog:
        start, end = self.known.log_start_offset, self.log_end_offset
        lost = merge_ranges([*self.known.lost_ranges, *self.report.lost], log_start_offset=start)
        self.report.lost = [found for found in self.report.lost if found not in self.known.lost_ranges]
        return RecoveredLog(
            segments=segments,
            tail=tail,
            log_start_offset=start,
            log_end_offset=end,
            high_watermark=min(max(self.high_watermark, start), end),
            new_epochs=[(epoch, first) for epoch, first in self.new_epochs if first < end],
            lost_ranges=lost,
            committed_to=self.committed_to if self.committed_to > end and not self.is_sole else 0,
            report=self.report,
        )

    def sealed(self, segment: Segment, next_base: int) -> IndexView:
        """A segment with another after it: fsynced, so none of it is cut (R1)."""
        found, batches = self.batches_of(segment, next_base)
        self._note(segment, found)
        entries, size = _entries(batches), found.size
        if (int(batches["next_offset"][-1]) if len(batches) else segment.base_offset) == next_base:
            end = IndexView(entries).end
            is_marked = found.markers == [end] and found.size == end + len(END_OF_STREAM) and not found.room_bytes
            if found.size + found.room_bytes > end and not is_marked:
                size = self._end_at(segment, end)
        return self._seal(segment, entries, size)

    def batches_of(self, segment: Segment, end: int) -> tuple[Scan, npt.NDArray[np.void]]:
        """All that a segment has below `end`. What it should have there, and has not, is lost."""
        found = self._read(segment, FIRST_POSITION, segment.base_offset)
        # Batches that go on belong to the next one (`joining.J3`).
        batches = found.batches[found.batches["next_offset"] <= end]
        expected = segment.base_offset
        for batch in batches:
            self.lost(expected, int(batch["first_offset"]))
            expected = int(batch["next_offset"])
        self.lost(expected, end)
        return found, batches

    def _end_at(self, segment: Segment, position: int) -> int:
        """Cut off what stands behind the last batch of a segment (R6), and mark its end."""
        file = self.disk.open(segment.path)
        try:
            file.truncate(position)
            file.write(END_OF_STREAM)
            file.sync()
            return file.size()
        finally:
            file.close()

    def last(self, segment: Segment) -> Segment | None:
        """The last segment: may have a torn tail. Returns it if it can be appended to."""
        flushed, at = self._flushed_entries(segment)
        begin = int(flushed["position"][at]) if len(flushed) else FIRST_POSITION
        expected = int(flushed["first_offset"][at]) if len(flushed) else segment.base_offset
        found = self._read(segment, begin, expected)
        if (
            self.check is not None
            and begin > FIRST_POSITION
            and (begin, expected)
            not in zip(found.batches["position"][:1].tolist(), found.batches["first_offset"][:1].tolist(), strict=True)
        ):  # whoever writes an index can have the scan begin behind batches (R9)
            flushed, at, begin, expected = flushed[:0], 0, FIRST_POSITION, segment.base_offset
            found = self._read(segment, begin, expected)
        kept = flushed[:at]
        if len(found.batches) and int(found.batches["next_offset"][-1]) > self.known.recovery_point:
            self._write_once_more(segment, begin if begin > FIRST_POSITION else 0, found.size)
            found = self._read(segment, begin, expected)
        self._note(segment, found)
        kept_end = max(self.log_end_offset, segment.base_offset)
        batches, cut, lost = judge_tail(
            found, expected, kept_end, base_offset=segment.base_offset, is_sole=self.is_sole
        )
        for start, end in lost:
            self.lost(start, end)
        entries = np.concatenate([kept, _entries(batches, kept)])
        end_offset = int(batches["next_offset"][-1]) if len(batches) else expected
        self.lost(end_offset, kept_end)
        if cut is None and found.room_bytes and end_offset >= kept_end:
            cut = found.size
        self.log_end_offset = max(end_offset, kept_end)
        size = found.size
        if cut is not None and not self.is_sole:
            self._keep_evidence()
        if cut is not None or end_offset > self.known.recovery_point:
            size = self._make_durable(segment, cut)
        if cut is not None and cut < found.size:
            self.report.cut_bytes += found.size - cut
            self.report.cut_offset = self.log_end_offset
        view = IndexView(entries)
        is_whole = view.contiguous and view.end == size and (found.schema_is_whole or cut == 0)
        if not is_whole or self.log_end_offset > end_offset:
            self._seal(segment, entries, size).is_complete = not len(kept)  # `read.A3`
            return None
        partial = segment.partial or (0, 0)
        is_flushed = partial[0] == len(flushed) and np.array_equal(entries[: len(flushed)], flushed)
        segment.partial = partial if is_flushed else (0, 0)  # else the index file is written anew
        tail = self.known.tail
        segment.created_us = int(entries["max_timestamp_us"][0]) if len(entries) else self.now_us
        if tail is not None and tail.base_offset == segment.base_offset:
            segment.created_us = tail.created_us
        INDEX_CACHE.drop(segment.serial)
        segment.live = GrowingIndex(entries)
        return segment

    def _keep_evidence(self) -> None:
        """R8: what is about to be cut off may be all that tells."""
        if self.committed_to > max(self.known.high_watermark, self.log_end_offset):
            known = replace(self.known, high_watermark=self.committed_to, clean_boot_id=None)
            self.disk.replace_file(
                f"{self.folder}/{CHECKPOINT_FILE}", known.encode(), frees=True
            )  # it opens to make room

    def _make_durable(self, segment: Segment, cut: int | None) -> int:
        """Cut the file, and fsync what stays (R5). Returns its length."""
        file = self.disk.open(segment.path)
        try:
            if cut is not None:
                file.truncate(cut)
            if cut == 0:
                file.write(SCHEMA_BYTES)
            file.sync()
            return file.size()
        finally:
            file.close()

    def _write_once_more(self, segment: Segment, begin: int, end: int) -> None:
        """R7."""
        file = self.disk.open(segment.path)
        try:
            file.rewrite(end - begin, begin)
            file.sync()
        finally:
            file.close()

    def _read(self, segment: Segment, start: int, expected: int) -> Scan:
        file = self.disk.open(segment.path, readonly=True)
        try:
            readable = ReadAround(file) if self.around_errors else file
            known = partial(segment.index, self.disk)
            return scan(readable, start=start, first_offset=expected, where=segment.path, known=known, check=self.check)
        finally:
            file.close()

    def _note(self, segment: Segment, found: Scan) -> None:
        """Note for the report what a scan found, and what its headers prove."""
        self.report.scanned_bytes += max(0, found.size - found.start)
        self.report.scanned_batches += len(found.batches)
        if len(found.batches):
            self.committed_to = max(self.committed_to, int(found.batches["high_watermark"].max()))
            if self.is_sole:
                self.high_watermark = self.committed_to
            epochs = found.batches["leader_epoch"]
            firsts = np.flatnonzero(np.diff(epochs, prepend=np.uint32(0xFFFFFFFF))).tolist()
            for first, after in pairwise([*firsts, len(epochs)]):
                epoch, last = int(epochs[first]), int(found.batches["next_offset"][after - 1]) - 1
                self.new_epochs += [(epoch, int(found.batches["first_offset"][first])), (epoch, last)]
        if not found.schema_is_whole:
            self.report.notes.append(f"{segment.path}: the schema message is damaged or incomplete")
        if found.markers and found.markers[-1] + 8 != found.size:
            self.report.notes.append(f"{segment.path}: batches behind an end-of-stream marker")

    def _flushed_entries(self, segment: Segment) -> tuple[Entries, int]:
        """The entries of the index file, and which of their batches the scan begins with.

        That is the last batch below the recovery point: known, but scanned again, so that the scan begins at an
        offset that is sure. No entries: the scan begins with the segment.
        """
        none = np.zeros(0, ENTRY)
        tail = self.known.tail
        if tail is not None and tail.base_offset == segment.base_offset:
            segment.partial = (tail.entry_count, tail.entry_crc)
        view = segment.index(self.disk)
        if view is None:
            if self.known.recovery_point > segment.base_offset:
                self.report.rebuilt_indexes.append(segment.base_offset)
            return none, 0
        size = self.disk.size(segment.path)
        at = view.find(self.known.recovery_point - 1)
        while at >= 0 and view.end_of(at) > size:
            at -= 1
        return (view.entries, at) if at >= 0 else (none, 0)

    def _seal(self, segment: Segment, entries: Entries, size: int) -> IndexView:
        """Make a segment a sealed one: its index in the cache, and on disk if it was not there or another."""
        segment.partial = None
        INDEX_CACHE.drop(segment.serial)
        there = segment.index(self.disk)
        if there is None or not np.array_equal(there.entries, entries):
            try:
                segment.write_index(self.disk, entries)
            except OSError as error:  # derivable: served from memory, and rebuilt when next needed
                self.report.notes.append(f"{segment.index_path}: {error.strerror or error}")
            if segment.base_offset not in self.report.rebuilt_indexes:
                self.report.rebuilt_indexes.append(segment.base_offset)
        view = IndexView(entries)
        segment.rest(view, size=size, partial=None)
        return view


def _entries(batches: npt.NDArray[np.void], before: Entries | None = None) -> Entries:
    """Index entries of scanned batches, the running maximum carried on from `before`."""
    entries = np.zeros(len(batches), ENTRY)
    for name in ("first_offset", "position", "length", "crc"):
        entries[name] = batches[name]
    running = np.maximum.accumulate(batches["max_timestamp_us"])
    if before is not None and len(before):
        running = np.maximum(running, before["max_timestamp_us"][-1])
    entries["max_timestamp_us"] = running
    return entries
