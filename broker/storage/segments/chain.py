"""The segment files of one log, in order. The last may be the tail, which appends go to.

    sealed | sealed | sealed | tail (awake: file open, index in memory; or resting: neither)

Nothing here knows which offsets are committed or durable, and nothing locks: the log's parts do both.

C1  `segments` is replaced, never changed: readers keep the tuple they took.
C2  A segment is sealed by marker and fsync before the next one is made: that there is a later segment proves
    that all before it is on disk.
C3  A segment with a gap in it is never appended to.
C4  Files are fsynced by `sync` alone, one at a time, and after an error none is: the kernel tells an error of writing
    once, so a second fsync beside or after the one that was told succeeds although bytes are lost.
C5  Only the tail's file runs ahead of what was written (`ahead`), and only while it is open: a sealed segment and a
    resting tail are as long as what they hold.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import numpy as np
from crc32c import crc32c

from broker.api.errors import LiftlogError
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.storage.disk import NO_SPACE, TEMPORARY, Disk, File, ReadableBuffer, storage_error
from broker.storage.read import NeedsRepair
from broker.storage.recovery import Rescan
from broker.storage.segments.checkpoint import TailPoint
from broker.storage.segments.index import INDEX_CACHE, Entries, GrowingIndex, IndexView
from broker.storage.segments.segment import Segment

AHEAD_BYTES: Final = 256 << 10
"""So far runs the length of the tail's file ahead: room for some 200 batches of one record. After a crash so much is
read for nothing, of each tail that was open."""


class Untrusted(Exception):
    """Internal: what the tail's file holds is not known any more. `error` is what to tell the caller."""

    def __init__(self, error: LiftlogError) -> None:
        super().__init__(error)
        self.error = error


class Chain:
    """See the module. `OSError` passes through where nothing has changed.

    Attributes:
        tail: The last of `segments`, or None: the next append makes a new one.
        file: The tail's, while it is awake.
    """

    __slots__ = ("_fsync_lock", "_retired", "_salvaged", "_sync_error", "disk", "file", "folder", "segments", "tail")

    def __init__(self, disk: Disk, folder: str, segments: list[Segment], tail: Segment | None) -> None:
        self.disk = disk
        self.folder = folder
        self.segments = tuple(segments)
        self.tail = tail
        self.file: File | None = None
        self._fsync_lock = threading.Lock()  # innermost (C4)
        self._sync_error: OSError | None = None
        self._retired: list[File] = []  # of sealed segments: a sync may still be using them
        self._salvaged: bytes | None = None

    def awake(self) -> GrowingIndex | None:
        """The tail's index, its file open; None when there is no tail.

        Raises:
            NeedsRepair: the tail's index file or length is not what it was.
        """
        tail = self.tail
        if tail is None:
            return None
        if tail.live is None:
            view = tail.index(self.disk)
            if view is None or not view.contiguous or self.disk.size(tail.path) != view.end:
                raise NeedsRepair(tail)
            tail.live = GrowingIndex(view.entries)
            INDEX_CACHE.drop(tail.serial)
        if self.file is None:
            self.file = self._open_tail(tail, tail.live.end)
        return tail.live

    def _open_tail(self, tail: Segment, end: int) -> File:
        """The tail's file, as long as what it holds: room that was left of it would come to stand between batches."""
        file = self.disk.open(tail.path, ahead=AHEAD_BYTES)
        try:
            if file.size() < end:
                raise NeedsRepair(tail)
            if file.size() > end:
                file.truncate(end)
        except BaseException:
            file.close()
            raise
        return file

    def begin(self, base_offset: int, *, frees: bool = False) -> GrowingIndex:
        """Make a new tail. Its name is durable when this returns. `frees`: as `Disk.replace_file` takes it."""
        assert self.tail is None, "the tail has to be sealed first"
        segment = Segment(self.folder, base_offset)
        if frees:
            self.disk.replace_file(segment.path, SCHEMA_BYTES, frees=True)
        file = self.disk.open(segment.path, create=True, ahead=AHEAD_BYTES)
        try:
            if not frees:
                if file.size():
                    file.truncate(0)
                file.write(SCHEMA_BYTES)
                self.disk.sync_dir(self.folder)
        except OSError:
            file.close()
            with suppress(OSError):
                self.disk.unlink(segment.path)
            raise
        segment.partial = (0, 0)
        segment.live = GrowingIndex()
        self.file, self.tail = file, segment
        # One of that name holds nothing: its records would be at or above the log end.
        self.segments = (*(other for other in self.segments if other.base_offset != base_offset), segment)
        return segment.live

    def write(self, data: ReadableBuffer, end: int) -> None:
        """Append to the tail's file, whose length is `end` or, within a group, was: all of `data`, or cut to `end`.

        Raises:
            DiskFull: nothing was written.
            Untrusted: the disk failed otherwise, or what was written could not be taken back.
        """
        file = self.file
        assert file is not None
        try:
            file.write(data)
        except OSError as error:
            found = storage_error(error, f"write in {self.folder}")
            self.cut(end)
            raise (found if error.errno in NO_SPACE else Untrusted(found)) from error

    def start_writeback(self, begin: int, end: int) -> None:
        """Let the disk begin with these bytes of the tail's file: the fsync is to come."""
        assert self.file is not None
        self.file.start_writeback(end - begin, begin)

    def cut(self, end: int) -> None:
        """Take back what was written to the tail's file behind `end`.

        Raises:
            Untrusted: it could not be.
        """
        assert self.file is not None
        try:
            self.file.truncate(end)
        except OSError as error:
            raise Untrusted(storage_error(error, f"truncate in {self.folder}")) from error

    def sync(self, file: File) -> None:
        """Fsync a file of this chain (C4). Any thread, with the log's locks or without.

        Raises:
            OSError: of this fsync, or of one before it: what is on disk is not known until the log is recovered.
        """
        with self._fsync_lock:
            if self._sync_error is not None:
                raise self._sync_error
            try:
                file.sync()
            except OSError as error:
                self._sync_error = error
                raise

    def seal(self) -> bool:
        """End the tail: marker, fsync, index (C2). False: there is none, or it is empty.

        Raises:
            DiskFull, Untrusted: as `write`; the tail is still the tail.
        """
        index, tail, file = self.awake(), self.tail, self.file
        if index is None or index.count == 0 or tail is None or file is None:
            return False
        view = index.view()
        self.write(END_OF_STREAM, view.end)
        try:
            file.trim()  # C5
            self.sync(file)
        except OSError as error:
            raise Untrusted(storage_error(error, f"fsync {tail.path}")) from error
        with suppress(OSError):  # derivable: rebuilt when it is missing
            tail.write_index(self.disk, view.entries, have=tail.partial[0] if tail.partial else 0)
        tail.rest(view, size=view.end + len(END_OF_STREAM), partial=None)
        self._retire()
        return True

    def point(self, *, flush: bool = True) -> TailPoint | None:
        """The checkpoint's entry for the tail; its index file is brought up to that."""
        tail = self.tail
        if tail is None:
            return None
        if flush and tail.live is not None:
            try:
                self._flush_index(tail, tail.live)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                # Derivable: on a full disk the checkpoint says how much of it there is.
        assert tail.partial is not None
        return tail.point(tail.partial, self.disk)

    def rest(self) -> None:
        """Forget the tail's index and close all files. `awake` brings them back."""
        tail = self.tail
        if tail is not None and tail.live is not None:
            self._flush_index(tail, tail.live)
            tail.rest(None, size=tail.live.end, partial=tail.partial)
        self.close()

    def close(self) -> None:
        """Close all files."""
        self.close_retired()
        file, self.file = self.file, None
        if file is not None:
            file.close()

    def close_retired(self) -> None:
        """Close the files of sealed segments. Not while one of them is being synced."""
        files, self._retired = self._retired, []
        for file in files:
            file.close()

    def drop_below(self, start: int) -> list[Segment]:
        """Take off the segments that end at or before `start`. Their files are still there."""
        segments = self.segments
        count = 0
        while count + 1 < len(segments) and segments[count + 1].base_offset <= start:
            count += 1
        self.segments = segments[count:]
        return list(segments[:count])

    def put_first(self, fresh: Segment, staged: str, entries: Entries, size: int) -> None:
        """Let the durable file `staged` be a segment before all others: one whose file is gone, and whose index may be
        left. Its name is not durable yet."""
        assert not self.segments or fresh.base_offset < self.segments[0].base_offset, "it is not before the others"
        with suppress(FileNotFoundError):
            self.disk.unlink(fresh.index_path)
        self.disk.rename(staged, fresh.path)
        with suppress(OSError):  # derivable: rebuilt when it is missing
            fresh.write_index(self.disk, entries)
        fresh.rest(IndexView(entries), size=size, partial=None)
        self.segments = (fresh, *self.segments)

    def replace(self, old: Sequence[Segment], staged: str, entries: Entries, size: int) -> bool:
        """Put the durable file `staged` in the place of sealed segments. False: one of them is gone meanwhile.

        It gets the name of the first; the files of the others are still there. The old index goes first: beside the
        new file it would be untrue. An open that finds no index scans anew (`index.I1`).
        """
        first = old[0]
        number = self.segments.index(first) if first in self.segments else len(self.segments)
        if self.segments[number : number + len(old)] != tuple(old) or self.tail in old:
            return False
        fresh = Segment(self.folder, first.base_offset)
        first.is_replaced = True  # before the name changes: who opens the new file with the old index sees it
        try:
            with suppress(FileNotFoundError):
                self.disk.unlink(first.index_path)
            self.disk.rename(staged, first.path)
        except OSError:
            first.is_replaced = False
            raise
        with suppress(OSError):  # derivable: rebuilt when it is missing
            fresh.write_index(self.disk, entries)
        fresh.rest(IndexView(entries), size=size, partial=None)
        self.segments = (*self.segments[:number], fresh, *self.segments[number + len(old) :])
        for segment in old:
            INDEX_CACHE.drop(segment.serial)
        return True

    def end_at(self, to: int, *, is_all: bool = False) -> None:
        """Take back what is stored from `to` on, where a batch begins; `is_all`: everything. The tail then ends there.

        The newest segment goes first, and all names that go are gone on disk before the last one is cut: an unlinked
        file may come back after a power cut, behind a gap, or beside the records that follow. An index goes before its
        segment is cut: it would tell of what will stand there instead.

        Raises:
            OSError, Untrusted: the files are as they were, or some of it is done; this object is not to be used.
        """
        self.close()
        self.tail = None
        kept = () if is_all else tuple(segment for segment in self.segments if segment.base_offset < to)
        gone, self.segments = self.segments[len(kept) :], kept  # first: whoever misses a file of ours calls it lost
        for segment in reversed(gone):
            segment.is_replaced = True
            segment.unlink(self.disk)
        if kept:
            self._end_last_at(to)
        else:
            self.disk.sync_dir(self.folder)
        if self.tail is None:
            self.begin(to, frees=True)  # its name keeps the next offset

    def _end_last_at(self, to: int) -> None:
        """Cut the last segment at an offset above its base; it is the tail then, if it is without gaps (C3)."""
        last = self.segments[-1]
        view = last.index(self.disk)
        if view is None:
            raise NeedsRepair(last)
        entries = view.entries[: view.find_from(to)].copy()
        end = IndexView(entries).end
        last.is_replaced = True  # before it is cut: who opens it with the old index sees that
        with suppress(FileNotFoundError):
            self.disk.unlink(last.index_path)
        self.disk.sync_dir(self.folder)
        fresh = Segment(self.folder, last.base_offset)
        fresh.created_us = last.created_us or (int(entries["max_timestamp_us"][0]) if len(entries) else 0)
        INDEX_CACHE.drop(last.serial)
        self.segments = (*self.segments[:-1], fresh)
        if IndexView(entries).contiguous:
            self._cut_file(fresh.path, end)
            fresh.partial, fresh.live = (0, 0), GrowingIndex(entries)
            self.tail = fresh
        else:
            self._cut_file(fresh.path, end, END_OF_STREAM)
            fresh.write_index(self.disk, entries)
            fresh.rest(IndexView(entries), size=end + len(END_OF_STREAM), partial=None)

    def write_again(self, durable_end: int, *, salvage: bool = True) -> None:
        """After a failure: give what is not durable to the disk anew, as a segment of its own, which begins there.

        A failed fsync leaves pages that the kernel holds as clean and that never reached the disk. This object keeps
        the bytes that it read from them, so all of it may be done again and again until the log is open anew. They are
        copied as they are found: the next open verifies all from `durable_end` on. The old file is cut after the copy
        has its name on disk, so a kill or a power cut at any step leaves what is visible in one of the two.

        Args:
            salvage: This is the only replica. Else what is not durable is cut off: others have it.
        """
        tail = self.tail
        if tail is None or tail.live is None:
            if not salvage and self.segments:  # `end_at` may have failed between the cut of its file and the fsync
                self._sync_file(self.segments[-1].path)
            return
        index = tail.live.view()
        count = index.find_from(durable_end)
        durable = index.end_of(count - 1) if count else 0  # not even the schema message is sure to be there
        if count == len(index) or not salvage:
            self._cut_file(tail.path, durable)
            return
        if self._salvaged is None:
            file = self.disk.open(tail.path, readonly=True)
            try:
                begin = max(durable, len(SCHEMA_BYTES))
                self._salvaged = file.pread(index.end - begin, begin)
            finally:
                file.close()
        copy = Segment(self.folder, durable_end if count else tail.base_offset)
        self._write_beside(copy, self._salvaged)
        with suppress(FileNotFoundError):
            self.disk.unlink(copy.index_path)
        self.disk.rename(copy.path + TEMPORARY, copy.path)
        self.disk.sync_dir(self.folder)
        if count:
            self._cut_file(tail.path, durable, END_OF_STREAM)
            with suppress(OSError):  # derivable: rebuilt when it is missing
                tail.write_index(self.disk, index.entries[:count])

    def _write_beside(self, segment: Segment, batches: bytes) -> None:
        file = self.disk.open(segment.path + TEMPORARY, create=True)
        try:
            file.truncate(0)
            file.write(SCHEMA_BYTES)
            file.write(batches)
            file.sync()
        finally:
            file.close()

    def _sync_file(self, path: str) -> None:
        file = self.disk.open(path)
        try:
            file.sync()
        finally:
            file.close()

    def _cut_file(self, path: str, size: int, ending: bytes = b"") -> None:
        file = self.disk.open(path)
        try:
            file.truncate(size)
            file.write(ending)
            file.sync()
        finally:
            file.close()

    def end_of(self, segment: Segment, log_end_offset: int) -> int:
        """The offset after the range of a segment of this chain."""
        following = self.segments[self.segments.index(segment) + 1 :]
        return following[0].base_offset if following else log_end_offset

    def remove(self, segment: Segment) -> None:
        """Its file is gone. Raises as `take_anew`."""
        if segment is self.tail:
            self._give_up_tail()
        self.segments = tuple(other for other in self.segments if other is not segment)

    def take_anew(self, segment: Segment, found: Rescan, end: int) -> None:
        """Take what a scan has found of a segment, and write its index. A tail that is not whole is given up.

        Args:
            end: So far it was scanned. The index of a growing tail knows what has come since.
        Raises:
            Untrusted: the tail had to be given up, and its fsync failed.
        """
        entries, size, live = found.entries, found.size, segment.live
        if live is not None:
            grown = live.view()
            entries, size = np.concatenate([entries, grown.entries[grown.find_from(end) :]]), grown.end
        view = IndexView(entries)
        if segment is not self.tail:
            self._seal_anew(segment, view, size, is_indexed=found.is_indexed)
        elif view.contiguous and view.end == size and not found.lost and not found.tampered:
            segment.partial, segment.live = (0, 0), GrowingIndex(entries)
        else:
            self._give_up_tail()
            self._seal_anew(segment, view, size)

    def _give_up_tail(self) -> None:
        """Nothing is appended to it any more. What it holds is durable before a later segment says so (C2)."""
        try:
            if self.file is not None:
                self.file.trim()
                self.sync(self.file)
        except OSError as error:
            raise Untrusted(storage_error(error, f"fsync in {self.folder}")) from error
        self._retire()

    def _seal_anew(self, segment: Segment, view: IndexView, size: int, *, is_indexed: bool = False) -> None:
        if not is_indexed:
            with suppress(OSError):  # derivable: served from memory, and rebuilt when next needed
                segment.write_index(self.disk, view.entries)
        segment.rest(view, size=size, partial=None)

    def _retire(self) -> None:
        if self.file is not None:
            self._retired.append(self.file)
        self.file = self.tail = None

    def _flush_index(self, tail: Segment, live: GrowingIndex) -> None:
        assert tail.partial is not None
        count, crc = tail.partial
        entries = live.view().entries
        if len(entries) > count:
            tail.write_index(self.disk, entries, have=count, sealed=False)
            tail.partial = (len(entries), crc32c(entries[count:].tobytes(), crc))
