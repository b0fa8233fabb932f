"""Lost ranges are given up for good: empty batches of the same offsets and epochs take their place.

    lost   [ 0..3 ] ???????? [ 7..9 ]             4..6 cannot be read: no read goes past it where there are replicas
    then   [ 0..3 ][ 4..6 ][ 7..9 ]               4..6 has no rows: reads pass over it, followers copy it

    1  the checkpoint says what is lost, and how far the log is committed      `handover.H4`
    2  what cannot be read is copied aside, as it is, and fsynced
    3  each segment is written anew beside itself, and fsynced                 `rewriting.W6`
    4  it is renamed over itself; the folder is fsynced
    5  the checkpoint says that nothing is lost there

E1  Only what is named goes. All else is copied byte for byte, each batch verified; another damage ends this.
E2  A crash before step 5 leaves the ranges lost, as the checkpoint says. Done again, it finds batches there already.
E3  It is done by who leads in the epoch in which it was decided: the log may be another's copy by now, and what is
    lost here there elsewhere.
E4  An empty batch ends where an epoch does, and at each border that the caller names: a follower that stands there goes
    on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from broker.api.batch import BatchHeader, crc_of, encode_batch, verify_batch
from broker.api.errors import BadBatch, CorruptLog, LiftlogError, NotLeader, StorageFailed
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.storage.disk import TEMPORARY, Disk, File, storage_error
from broker.storage.disk.unreadable import ReadAround
from broker.storage.log import PartitionLog
from broker.storage.recovery import Ranges, merge_ranges
from broker.storage.rewrite.rewriting import NO_ROWS, SYNC_BYTES, WINDOW_BYTES, StagedSegment
from broker.storage.segments.index import ENTRY, Entries, IndexView
from broker.storage.segments.segment import Segment

ENDING: Final = ".lost"


def give_up(log: PartitionLog, ranges: Ranges, *, leader_epoch: int, aside: str, borders: Sequence[int] = ()) -> None:
    """Let ranges that are lost be empty, durably. Readers and appends go on beside it. One at a time per log.

    Args:
        ranges: Ranges of `lost_ranges`, below the high watermark.
        leader_epoch: The one in which the log leads (E3).
        aside: A folder for what cannot be read: a file `<start>-<end>.lost` for each range, with the bytes that stand
            there, zeros for what the disk does not read.
        borders: Offsets at which empty batches end (E4).
    Raises:
        NotLeader: the log does not lead in that epoch.
        CorruptLog: they are not lost, or more is than that; or no segment is left before them: trim the log instead.
        StorageFailed, DiskFull: the disk refuses; the ranges are still lost, and this may be tried again.
    """
    try:
        _GivingUp(log, ranges, leader_epoch, aside, borders).run()
    except OSError as error:
        raise storage_error(error, f"give up {ranges} of {log.folder}") from error


class _GivingUp:
    def __init__(
        self, log: PartitionLog, ranges: Ranges, leader_epoch: int, aside: str, borders: Sequence[int]
    ) -> None:
        self.log, self.disk, self.ranges = log, log.disk, ranges
        self.leader_epoch, self.aside, self.borders = leader_epoch, aside, borders

    def run(self) -> None:
        log = self.log
        with log.log.checkpoint_lock:  # no truncation, and no other rewrite, meanwhile
            self.check()
            sealed = log.sealed_segments()
            if not sealed or min(start for start, _ in self.ranges) < sealed[0][0].base_offset:
                raise CorruptLog(f"{log.folder}: no segment is left before what is lost: trim it", path=log.folder)
            self.keep_told()
            log.checkpoint()
            for segment, end in sealed:
                if any(start < end and stop > segment.base_offset for start, stop in self.ranges):
                    self.replace(segment, end)
            with log.log.lock:
                self.check()
                state = log.log.state
                state.lost_ranges = tuple(lost for lost in state.lost_ranges if lost not in self.ranges)
            try:
                log.checkpoint()
            except LiftlogError:
                with log.log.lock:
                    state.lost_ranges = merge_ranges([*state.lost_ranges, *self.ranges])  # as on the disk
                raise

    def check(self) -> None:
        log = self.log
        log.log.check_writable()  # `state.L8`
        if log.log.led != self.leader_epoch:
            raise NotLeader(f"{log.folder}: does not lead in {self.leader_epoch}", leader_epoch=log.log.leader_epoch)
        if not self.ranges or not set(self.ranges) <= set(log.lost_ranges):
            raise CorruptLog(f"{log.folder}: lost are {log.lost_ranges}, not {self.ranges}", path=log.folder)

    def keep_told(self) -> None:
        """Keep what the ranges told of ids in a state file; followers take that (`handover.rewritten_to`)."""
        log, remembered = self.log.log, self.log.remembered
        with log.sync_lock, log.lock, log.guarded("write state"):
            if remembered.has_states() and remembered.kept_offset() < max(stop for _, stop in self.ranges):
                remembered.keep_committed()

    def replace(self, segment: Segment, end: int) -> None:
        log = self.log
        staged = self.stage(segment, end)
        if staged is None:
            return
        with log.log.lock:
            self.check()
            if not log.replace_segments([segment], staged.path, staged.entries, staged.bytes):
                raise StorageFailed(f"{segment.path}: it is gone meanwhile", path=segment.path)

    def stage(self, segment: Segment, end: int) -> StagedSegment | None:
        """The segment without its gaps, beside it. None: it has none that are to be given up."""
        index = self.log.index_of(segment)
        source = self.disk.open(segment.path, readonly=True)
        copy = _Copy(self.disk, segment, index)
        try:
            expected, at, given_up = segment.base_offset, len(SCHEMA_BYTES), 0
            for entry in index.entries:
                first, position = int(entry["first_offset"]), int(entry["position"])
                try:
                    message = source.pread(int(entry["length"]), position)
                    header = verify_batch(message, where=f"{segment.path}: ")
                except (BadBatch, OSError) as error:
                    if any(start <= first < stop for start, stop in self.log.lost_ranges):
                        continue  # the index is older than what is known to be lost
                    if isinstance(error, OSError):
                        raise
                    self.log.repair_segment(segment)
                    raise CorruptLog(f"{segment.path}: more is damaged by now: {error}", path=segment.path) from error
                given_up += self.gap(source, copy, (at, position), (expected, header.first_offset))
                copy.add(header.first_offset, header.max_timestamp_us, message)
                copy.epoch = header.leader_epoch
                expected, at = header.next_offset, position + len(message)
            size = source.size()
            if source.pread(len(END_OF_STREAM), max(at, size - len(END_OF_STREAM))) == END_OF_STREAM:
                size -= len(END_OF_STREAM)
            given_up += self.gap(source, copy, (at, size), (expected, end))
            if given_up:
                return copy.finish()
            copy.abandon()
            return None
        except BaseException:
            copy.abandon()
            raise
        finally:
            source.close()

    def gap(self, source: File, copy: _Copy, place: tuple[int, int], offsets: tuple[int, int]) -> bool:
        """Close a gap between two batches. Returns whether it is given up; else its bytes stay, so that it is seen."""
        first, stop = offsets
        start = max(first, self.log.log_start_offset)  # what lies below counts no more
        if first >= stop:
            return False
        is_named = start >= stop or any(a <= start and stop <= b for a, b in self.ranges)
        if not is_named:
            if any(start < b and a < stop for a, b in self.ranges):
                raise CorruptLog(f"{self.log.folder}: more is lost than {self.ranges}", path=self.log.folder)
            copy.keep(source, *place)
            return False
        self.set_aside(source, place, offsets)
        for begin, end, epoch in self.pieces(first, stop):
            copy.add_empty(begin, end, max(epoch, copy.epoch))
        return True

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The spans of the empty batches, one each: begin, end, epoch (E4)."""
        while start < stop:
            epoch = self.log.epoch_of(start)
            ends = [self.log.end_of_epoch(epoch).end_offset, *self.borders]
            end = min([stop, *(each for each in ends if each > start)])
            yield start, end, epoch
            start = end

    def set_aside(self, source: File, place: tuple[int, int], offsets: tuple[int, int]) -> None:
        self.disk.makedirs(self.aside)
        file = self.disk.open(f"{self.aside}/{offsets[0]:020d}-{offsets[1]:020d}{ENDING}", create=True)
        try:
            file.truncate(0)
            around = ReadAround(source)
            for at in range(place[0], place[1], WINDOW_BYTES):
                file.write(around.pread(min(WINDOW_BYTES, place[1] - at), at))
            file.sync()
        finally:
            file.close()
        self.disk.sync_dir(self.aside)


class _Copy:
    """The new file. `epoch`: of what was written last."""

    def __init__(self, disk: Disk, segment: Segment, index: IndexView) -> None:
        self.epoch = 0
        self._disk = disk
        self._path = f"{segment.path}{ENDING}{TEMPORARY}"  # another one than a pass of compaction has
        self._newest_us = int(index.max_timestamps[0]) if len(index) else 0
        self._entries: list[tuple[int, int, int, int, int]] = []
        self._size = self._unsynced = 0
        self._file = disk.open(self._path, create=True)
        self._file.truncate(0)
        self._write(SCHEMA_BYTES)

    def add(self, first: int, timestamp_us: int, message: bytes | bytearray) -> None:
        """A batch."""
        self._newest_us = max(self._newest_us, timestamp_us)
        self._entries.append((first, self._size, self._newest_us, len(message), crc_of(message)))
        self._write(message)

    def add_empty(self, start: int, end: int, epoch: int) -> None:
        """A batch without rows."""
        header = BatchHeader(
            first_offset=start, last_offset=end - 1, leader_epoch=epoch, max_timestamp_us=self._newest_us
        )
        self.add(start, self._newest_us, encode_batch(NO_ROWS, header))
        self.epoch = epoch

    def keep(self, source: File, start: int, end: int) -> None:
        """Bytes of no batch."""
        around = ReadAround(source)
        for at in range(start, end, WINDOW_BYTES):
            self._write(around.pread(min(WINDOW_BYTES, end - at), at))

    def finish(self) -> StagedSegment:
        """It is on the disk."""
        self._write(END_OF_STREAM)
        self._file.sync()
        self._file.close()
        entries: Entries = np.array(self._entries, ENTRY)
        return StagedSegment(self._path, entries, self._size, 0)

    def abandon(self) -> None:
        """It is not needed."""
        self._file.close()
        with suppress(OSError):
            self._disk.unlink(self._path)

    def _write(self, data: bytes | bytearray) -> None:
        self._file.write(data)
        self._size += len(data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES:
            self._file.sync()
            self._unsynced = 0
