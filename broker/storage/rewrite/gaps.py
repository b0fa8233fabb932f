"""Sealed segments written anew around their gaps. Whole batches are copied byte for byte; a subclass closes a gap.

    lost   [ 0..3 ] ???????? [ 7..9 ]             4..6 cannot be read
    then   [ 0..3 ][ 4..6 ][ 7..9 ]               4..6 is an empty batch (`giving_up`), or another replica's (`mending`)

    1  the checkpoint says what is lost, and how far the log is committed      `handover.H4`
    2  each segment is written anew beside itself, and fsynced                 `rewriting.W6`
    3  it is renamed over itself; the folder is fsynced
    4  the checkpoint says that nothing is lost there

E1  Only what is named is closed. All else is copied byte for byte, each batch verified; another damage ends this.
E2  A crash before step 4 leaves the ranges lost, as the checkpoint says. Done again, it finds batches there already.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from broker.api.batch import BatchHeader, crc_of, encode_batch, read_header
from broker.api.errors import BadBatch, CorruptLog, LiftlogError, StorageFailed
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.storage.disk import TEMPORARY, Disk, File
from broker.storage.disk.unreadable import ReadAround
from broker.storage.encrypted.message import is_encrypted, verify_stored
from broker.storage.log import PartitionLog
from broker.storage.read import NeedsRepair
from broker.storage.recovery import Ranges, merge_ranges
from broker.storage.rewrite.rewriting import NO_ROWS, SYNC_BYTES, WINDOW_BYTES, StagedSegment
from broker.storage.segments.index import ENTRY, Entries, IndexView
from broker.storage.segments.scan import RECORD_BYTES_LEAST
from broker.storage.segments.segment import Segment
from broker.storage.writing.replace import replace_segments, sealed_segments

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault

FILLER: Final = b"\xff" * RECORD_BYTES_LEAST
"""Bytes of no batch. So many for each offset, and a scan without an index takes the batch after them for what it is."""
FILLERS: Final = WINDOW_BYTES // RECORD_BYTES_LEAST


class GapRewrite:
    """See the module. One at a time per log.

    Args:
        ranges: Parts of `lost_ranges` that are to be closed.
        ending: Of the new file's name. (It is another one than a pass of compaction has.)
    """

    def __init__(self, log: PartitionLog, ranges: Ranges, ending: str) -> None:
        self.log, self.disk, self.ranges, self.ending = log, log.state.disk, ranges, ending

    def run(self) -> None:
        """Do it. OSError passes through."""
        log = self.log
        with log.state.checkpoint_lock:  # no truncation, and no other rewrite, meanwhile
            self.check()
            segments = log.state.chain.segments
            first = segments[0].base_offset if segments else log.state.log_end_offset
            has_none = min(start for start, _ in self.ranges) < first
            if has_none:
                self.check_beginning()
            self.prepare()
            log.checkpoint()
            if has_none:
                self.begin(first)
            for segment, end in sealed_segments(log.state):
                if any(start < end and stop > segment.base_offset for start, stop in self.ranges):
                    self._replace(segment, end)
            with log.state.lock:
                self.check()
                state = log.state
                state.lost_ranges = without(state.lost_ranges, self.ranges)
                log.remembered.reads_again()
            try:
                log.checkpoint()
            except LiftlogError:
                with log.state.lock:
                    state.lost_ranges = merge_ranges([*state.lost_ranges, *self.ranges])  # as on the disk
                raise

    def check(self) -> None:
        """Raise why it is not to be done, if so. Under the log's lock, or the checkpoint lock."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Write what has to be on disk before the first segment is exchanged."""

    def check_beginning(self) -> None:
        """Likewise, where no segment is left at the beginning of what is lost."""
        raise CorruptLog(
            f"{self.log.state.folder}: no segment is left before what is lost: trim it", path=self.log.state.folder
        )

    def begin(self, first: int) -> None:
        """Make a segment there. `first`: where the first one that is left begins, or the log ends."""
        raise NotImplementedError

    def close(self, source: File, copy: GapCopy, place: tuple[int, int], offsets: tuple[int, int]) -> bool:
        """Close a gap between two batches, at these bytes and of these offsets. Returns whether it did; else it has to
        keep the bytes, so that the gap is seen."""
        raise NotImplementedError

    def _replace(self, segment: Segment, end: int) -> None:
        log = self.log
        staged = self._stage(segment, end)
        if staged is None:
            return
        with log.state.lock:
            self.check()
            if not replace_segments(log.state, [segment], staged.path, staged.entries, staged.bytes):
                raise StorageFailed(f"{segment.path}: it is gone meanwhile", path=segment.path)

    def _stage(self, segment: Segment, end: int) -> StagedSegment | None:
        """The segment without its gaps, beside it. None: it has none that are to be closed."""
        index = self._index_of(segment)
        source = self.disk.open(segment.path, readonly=True)
        try:
            return self._copy(source, segment, end, index)
        finally:
            source.close()

    def _copy(self, source: File, segment: Segment, end: int, index: IndexView) -> StagedSegment | None:
        copy = GapCopy(self.disk, segment, index, self.ending, self.log.state.vault)
        try:
            expected, at, closed = segment.base_offset, len(SCHEMA_BYTES), 0
            for entry in index.entries:
                first, position = int(entry["first_offset"]), int(entry["position"])
                try:
                    message = source.pread(int(entry["length"]), position)
                    header = self._checked(message, first, f"{segment.path}: ")
                except (BadBatch, OSError) as error:
                    if any(start <= first < stop for start, stop in self.log.state.lost_ranges):
                        continue  # the index is older than what is known to be lost
                    if isinstance(error, OSError):
                        raise
                    self.log.state.repair(segment)
                    raise CorruptLog(f"{segment.path}: more is damaged by now: {error}", path=segment.path) from error
                closed += self._gap(source, copy, (at, position), (expected, header.first_offset))
                copy.add(header.first_offset, header.max_timestamp_us, message)
                copy.epoch = header.leader_epoch
                expected, at = header.next_offset, position + len(message)
            size = source.size()
            if source.pread(len(END_OF_STREAM), max(at, size - len(END_OF_STREAM))) == END_OF_STREAM:
                size -= len(END_OF_STREAM)
            closed += self._gap(source, copy, (at, size), (expected, end))
            if closed:
                return copy.finish()
            copy.abandon()
            return None
        except BaseException:
            copy.abandon()
            raise

    def _checked(self, message: bytes, first: int, where: str) -> BatchHeader:
        """The header of a batch that is to be copied. What does not open is not: a header decides which offsets are
        missing, and what is in clear would be encrypted (`GapCopy.add`), and be this log's from then on."""
        vault = self.log.state.vault
        header = verify_stored(message, where=where) if vault is None else read_header(vault.open_message(message))
        if header.first_offset != first:
            raise BadBatch(f"{where}a batch that begins at {header.first_offset} stands in the place of {first}")
        return header

    def _index_of(self, segment: Segment) -> IndexView:
        for _ in range(2):
            try:
                return self.log.state.index_of(segment)
            except NeedsRepair:
                self.log.state.repair(segment)
        raise CorruptLog(f"{segment.path}: damaged, and a second scan did not help", path=segment.path)

    def _gap(self, source: File, copy: GapCopy, place: tuple[int, int], offsets: tuple[int, int]) -> bool:
        return offsets[0] < offsets[1] and self.close(source, copy, place, offsets)


class GapCopy:
    """The new file. `epoch`: of what was written last."""

    def __init__(self, disk: Disk, segment: Segment, index: IndexView, ending: str, vault: Vault | None = None) -> None:
        self.epoch = 0
        self._vault = vault
        self._disk = disk
        self._path = f"{segment.path}{ending}{TEMPORARY}"
        self._first_us = int(index.max_timestamps[0]) if len(index) else 0  # of the first batch that is whole
        self._newest_us = 0
        self._entries: list[tuple[int, int, int, int, int]] = []
        self._size = self._unsynced = 0
        self._file = disk.open(self._path, create=True)
        try:
            self._file.truncate(0)
            self._write(SCHEMA_BYTES)
        except OSError:
            self.abandon()
            raise

    def add_filler(self, offset_count: int) -> None:
        """Keep a gap of so many offsets seen, whatever bytes it has of its own."""
        for at in range(0, offset_count, FILLERS):
            self._write(FILLER * min(FILLERS, offset_count - at))

    def add(self, first: int, timestamp_us: int, message: bytes | bytearray) -> None:
        """A batch; where the log is encrypted, one that is not becomes so."""
        if self._vault is not None and not is_encrypted(message):
            message = self._vault.encrypt(message)
        self._newest_us = max(self._newest_us, timestamp_us)
        self._entries.append((first, self._size, self._newest_us, len(message), crc_of(message)))
        self._write(message)

    def add_empty(self, start: int, end: int, epoch: int) -> None:
        """A batch without rows."""
        newest_us = self._newest_us or self._first_us
        header = BatchHeader(first_offset=start, last_offset=end - 1, leader_epoch=epoch, max_timestamp_us=newest_us)
        self.add(start, newest_us, encode_batch(NO_ROWS, header))
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


def without(ranges: Ranges, gone: Ranges) -> Ranges:
    """The parts of ranges that lie in none of `gone`; both sorted and joined."""
    for start, stop in gone:
        ranges = tuple(
            part
            for first, after in ranges
            for part in ((first, min(after, start)), (max(first, stop), after))
            if part[0] < part[1]
        )
    return ranges
