"""What is damaged here is copied from another replica, and all else stays.

    here    [ 0..3 ] ????????????? [ 9..9 ]       4..8 cannot be read
    there   [ 0..5      ][ 6..6 ][ 7..9 ]         its batches are others: it has joined some
    then    [ 0..3 ][4..5][6..6][7..8][ 9..9 ]    what sticks out is cut off

The segments are written anew as `gaps.py` says; where the first one is gone another is made. One answer may hold a part
of what is lost: the rest stays lost.

M1  A batch is taken if it is whole and if each of its offsets is of the leader epoch that this log has for it. Offset
    and epoch name a record: an epoch has one leader, and he gave the offset out once. So a batch of a log that parted
    from this one is refused, also one that was never committed.
M2  What sticks out is cut off. Other replicas join batches otherwise, between borders that were borders once. A batch
    that is never joined (`rewriting.W4`) does not stick out: then it is not what stood here.
M3  Another replica may have removed records for newer ones: its mark of that is on disk here before anything is
    exchanged (`clean_state`). There is one mark, and it has to hold for what has gone here, too (`follower.F10`): a log
    that follows refuses what came with a mark that no history may have together with its own. This log ends below both
    marks, and they are of different epochs; or it has another record before that mark. Else it begins anew, with its
    leader's. Whoever leads goes on with nobody, and refuses nothing.
M4  Another replica may have compacted less. So the mark of compaction is lowered to the beginning of what is lost, on
    disk, before anything is exchanged (`compaction.Q2`); a pass that is under way counts for nothing (`compaction.Q5`).
M5  What a record told of its id and its subject outlives it in state files (`state_files.T3`). So of a replica from
    which records may have gone there a batch is taken only where a state file here tells of all of it, or can be made
    to. Else this log begins anew, with its leader's (`follower.F8`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from broker.api.batch import BatchHeader, decode_batch, encode_batch
from broker.api.errors import BadBatch, CorruptLog, NotReady
from broker.storage.disk import File, ReadableBuffer, storage_error
from broker.storage.log import PartitionLog
from broker.storage.rewrite.clean_state import lower_clean_state
from broker.storage.rewrite.gaps import GapCopy, GapRewrite
from broker.storage.rewrite.rewriting import is_joinable
from broker.storage.segments.index import ENTRY, IndexView
from broker.storage.segments.segment import Segment
from broker.storage.writing.append import messages_of
from broker.storage.writing.replace import sealed_segments


class Found(NamedTuple):
    """A batch of another replica."""

    header: BatchHeader
    message: memoryview


def mend(
    log: PartitionLog, lost: tuple[int, int], data: ReadableBuffer, *, superseded: tuple[int, int] = (0, -1)
) -> tuple[int, int]:
    """Put batches of another replica in the place of damaged ones, durably. Readers and appends go on beside it. One at
    a time per log, leading or not.

    Args:
        lost: One of `lost_ranges`.
        superseded: As the other replica has it (M3).
        data: n >= 1 stored batches that follow one another, of which some hold offsets of `lost`.
    Returns:
        The part of `lost` that can be read now.
    Raises:
        BadBatch: they are damaged, or not what stood here (M1, M2), or less (M3, M5); nothing was changed.
        CorruptLog: it is not lost (any more), or more is.
        StorageFailed, DiskFull: the disk refuses; it is still lost, and this may be tried again.
    """
    found = [Found(header, message) for header, message in messages_of(memoryview(data))]
    for one, after in pairwise(found):
        if one.header.next_offset != after.header.first_offset:
            raise BadBatch(f"{log.state.folder}: {after.header.first_offset} does not follow {one.header.next_offset}")
    start, stop = (max(lost[0], found[0].header.first_offset), lost[0]) if found else lost
    stop = min(lost[1], found[-1].header.next_offset) if found else start
    if start >= stop:
        raise BadBatch(f"{log.state.folder}: nothing of {lost} came")
    try:
        _Mending(log, (start, stop), found, superseded).run()
    except OSError as error:
        raise storage_error(error, f"mend {lost} of {log.state.folder}") from error
    return start, stop


def bytes_to_write(log: PartitionLog, lost: tuple[int, int], data: ReadableBuffer) -> int:
    """So many bytes more the disk holds at most while `mend` is at work: one segment is there twice."""
    sizes = [
        segment.size(log.state.disk)
        for segment, end in sealed_segments(log.state)
        if segment.base_offset < lost[1] and lost[0] < end
    ]
    return max(sizes, default=0) + memoryview(data).nbytes


def lower_mark(log: PartitionLog, to: int) -> None:
    """Let the mark of compaction be at most `to`, durably (M4).

    Raises:
        StorageFailed, DiskFull: it may be as it was.
    """
    state = log.state
    with state.checkpoint_lock, state.guarded("lower the mark"):
        state.check_writable()
        lower_clean_state(state.disk, state.folder, to)
        with state.lock:
            state.note_compacted(min(state.compacted_to, to))
            state.cuts += 1


class _Mending(GapRewrite):
    def __init__(
        self, log: PartitionLog, piece: tuple[int, int], found: list[Found], superseded: tuple[int, int]
    ) -> None:
        super().__init__(log, (piece,), ".mended")
        self.superseded = superseded
        self.found = [one for one in found if one.header.next_offset > piece[0] and one.header.first_offset < piece[1]]

    def check(self) -> None:
        log, [(start, stop)] = self.log, self.ranges
        log.state.check_writable()  # `state.L8`
        if not any(first <= start and stop <= after for first, after in log.state.lost_ranges):
            raise CorruptLog(
                f"{log.state.folder}: lost are {log.state.lost_ranges}, not [{start}, {stop})", path=log.state.folder
            )
        for header, _ in self.found:  # M1
            first, last = max(header.first_offset, start), min(header.next_offset, stop) - 1
            if not log.epochs.epoch_of(first) == header.leader_epoch == log.epochs.epoch_of(last):
                says = f"a batch of leader epoch {header.leader_epoch} came for [{first}, {last}]"
                here = f"{log.epochs.epoch_of(first)}, {log.epochs.epoch_of(last)}"
                raise BadBatch(f"{log.state.folder}: {says}, of which here are {here}")
        if log.epochs.led is None:
            self.check_mark(start)

    def check_mark(self, start: int) -> None:
        """M3."""
        log, (to, epoch) = self.log, self.superseded
        kept_to, kept_epoch = log.state.superseded
        if to <= start:  # none of what came has gone
            return
        if to <= log.state.log_end_offset:
            fits, here = epoch == log.epochs.epoch_of(to - 1), f"here its epoch is {log.epochs.epoch_of(to - 1)}"
        else:
            fits = kept_to <= log.state.log_end_offset or kept_epoch == epoch
            here = f"here below {kept_to} of epoch {kept_epoch}, and this log ends at {log.state.log_end_offset}"
        if not fits:
            says = f"records may be gone there for newer ones below {to} of leader epoch {epoch}"
            raise BadBatch(f"{log.state.folder}: {says}; {here}")

    def check_beginning(self) -> None:
        pass

    def begin(self, first: int) -> None:
        log, [(start, stop)] = self.log, self.ranges
        held, end = self.found[0].header.first_offset, min(stop, first)
        if start > log.state.log_start_offset:
            held = max(held, start)  # else the log starts within that batch, or where it begins
        segment = Segment(log.state.folder, min(held, start))
        copy = GapCopy(self.disk, segment, IndexView(np.zeros(0, ENTRY)), self.ending, self.log.state.vault)
        try:
            for one in self.found:
                if one.header.first_offset < end:
                    header, message = self.cut(one, segment.base_offset, end)
                    copy.add(header.first_offset, header.max_timestamp_us, message)
            copy.add_filler(first - end)
            staged = copy.finish()
        except BaseException:
            copy.abandon()
            raise
        with log.state.lock, log.state.guarded("mend"):
            self.check()
            log.state.chain.put_first(segment, staged.path, staged.entries, staged.bytes)
        with log.state.guarded("mend"):
            self.disk.sync_dir(log.state.folder)

    def prepare(self) -> None:
        if self.superseded[0] > self.ranges[0][0]:
            self.keep_told()
        self.log.state.raise_superseded(*self.superseded)
        lower_mark(self.log, self.ranges[0][0])

    def keep_told(self) -> None:
        """M5."""
        log, remembered = self.log, self.log.remembered
        stop = min(self.ranges[0][1], log.state.high_watermark)  # nothing has gone above that
        with log.state.sync_lock, log.state.guarded("write state"):
            remembered.states.look()
            if not remembered.has_states() or remembered.kept_offset() >= stop:
                return
            try:
                remembered.keep_committed()
            except NotReady as error:
                says = f"no state file tells of what is below {stop}, and what came may lack records"
                raise BadBatch(f"{log.state.folder}: {says}") from error

    def close(self, source: File, copy: GapCopy, place: tuple[int, int], offsets: tuple[int, int]) -> bool:
        first, stop = offsets
        [(start, end)] = self.ranges
        is_whole = max(first, self.log.state.log_start_offset) >= start  # what lies below the log start counts no more
        begin, after = first if is_whole else start, min(stop, end)
        if begin >= after or stop <= start:
            copy.keep(source, *place)
            return False
        if not is_whole:
            copy.keep(source, *place)
            copy.add_filler(begin - first)
        held = max(begin, self.found[0].header.first_offset)
        if begin < held:
            copy.add_empty(begin, held, max(self.log.epochs.epoch_of(begin), copy.epoch))
        for one in self.found:
            if one.header.next_offset > held and one.header.first_offset < after:
                header, message = self.cut(one, held, after)
                copy.add(header.first_offset, header.max_timestamp_us, message)
                copy.epoch = header.leader_epoch
        if after < stop:
            if is_whole:
                copy.keep(source, *place)
            copy.add_filler(stop - after)
        return True

    def cut(self, one: Found, begin: int, end: int) -> tuple[BatchHeader, bytes | bytearray]:
        """The part of a batch that lies in [begin, end) (M2)."""
        header = one.header
        first, after = max(begin, header.first_offset), min(end, header.next_offset)
        if (first, after) == (header.first_offset, header.next_offset):
            return header, bytes(one.message)
        if not is_joinable(header, lambda _: True):
            span = f"[{header.first_offset}, {header.next_offset})"
            raise BadBatch(f"{self.log.state.folder}: a batch of {span} came, which sticks out of [{begin}, {end})")
        rows = decode_batch(one.message)
        offsets = rows.column("offset")
        rows = rows.filter(pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, after)))
        header = replace(header, first_offset=first, last_offset=after - 1)
        return header, encode_batch(rows, header)
