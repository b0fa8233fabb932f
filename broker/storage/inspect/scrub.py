"""Read what a log has on disk, piece by piece, and check that it is what was written.

    [ segment ][ segment ][ tail ....|....... ]
      piece ►  piece ►              ^ durable and committed so far

So rot is found before the last good copy elsewhere is gone, and what has rotted is never served.

B1  Only what is durable and committed is checked, where the index says it is. Nothing changes while all is well.
B2  A batch that does not verify is read again from the disk, past the page cache. If it still does not, its segment is
    scanned anew (`LogState.repair`), and what that scan does not find is lost. A segment that was
    replaced or let go meanwhile is not the log's any more and is left alone: no race marks anything.
B3  An error of the disk marks nothing. A caller that has tried often enough says `give_up`; then the sectors that
    cannot be read are damage, unless most of the file cannot be read (`unreadable.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from broker.api.batch import read_header
from broker.api.errors import BadBatch
from broker.storage.disk import File
from broker.storage.encrypted.message import verify_stored
from broker.storage.encrypted.own import OwnBatches
from broker.storage.log import PartitionLog
from broker.storage.read import LogView, NeedsRepair
from broker.storage.recovery import Ranges
from broker.storage.segments.index import IndexView, is_in_place, places_of
from broker.storage.segments.segment import Segment

PIECE_BYTES: Final = 256 << 10
"""A reader of several pieces pauses between them, so that acks do not wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The result of one step, which checked the batches of [offset, next_offset).

    Attributes:
        bytes: So many were read.
        batches: So many were checked.
        lost: Ranges that this step found damaged, and that `lost_ranges` has since.
        tampered: So many ranges were found that somebody has changed (`encrypted/own.O3`). Where there are others, they
            are among the lost ones.
    """

    next_offset: int
    bytes: int
    batches: int
    lost: Ranges = ()
    tampered: int = 0


def scrub(log: PartitionLog, offset: int, *, bytes_max: int = PIECE_BYTES, give_up: bool = False) -> Piece | None:
    """Check the next batches from `offset` on; at least one, and about `bytes_max` bytes.

    Args:
        offset: One below the log start counts as the log start.
        give_up: Count as lost what cannot be read (B3).
    Returns:
        None: nothing is durable and committed there yet.
    Raises:
        StorageFailed: the disk cannot read; nothing was marked.
        CorruptLog: the files change while they are read.
    """
    before, known = log.state.lost_ranges, log.state.tampered_count
    piece = log.state.ask(lambda view: _check(view, offset, log.state.durable_end, bytes_max, give_up))
    tampered = log.state.tampered_count - known
    if log.state.lost_ranges == before and not tampered:
        return piece
    lost = _added(before, log.state.lost_ranges)
    if piece is None:  # all that there was from the offset on
        piece = Piece(
            next_offset=max(offset + 1, min(log.state.high_watermark, log.state.durable_end)), bytes=0, batches=0
        )
    return Piece(next_offset=piece.next_offset, bytes=piece.bytes, batches=piece.batches, lost=lost, tampered=tampered)


def _check(view: LogView, offset: int, durable_end: int, bytes_max: int, give_up: bool) -> Piece | None:
    offset = view.after_gap(max(offset, view.log_start_offset))
    end = min(view.high_watermark, durable_end)
    if offset >= end or not view.segments:
        return None
    number = view.segment_of(offset)
    segment, segment_end = view.segments[number], view.end_of(number)
    index = view.index(segment)
    begin = max(0, index.find(offset))
    if begin < len(index) and view.next_of(index, begin, segment_end) <= offset:
        begin += 1
    stop = index.find_from(end)
    if begin >= stop:
        return Piece(next_offset=max(offset + 1, min(segment_end, end)), bytes=0, batches=0)
    position = int(index.positions[begin])
    stop = max(begin + 1, bisect_left(index.positions, position + bytes_max, begin, stop))
    size = index.end_of(stop - 1) - position
    file = view.disk.open(segment.path, readonly=True)
    try:
        if segment.is_replaced:
            raise NeedsRepair(segment)
        bad = _first_bad(file, segment, index, begin, stop, view)
        if bad is not None:
            file.forget(file.size(), 0)  # all of it: Linux lets no part of a large folio go
            if _first_bad(file, segment, index, bad, bad + 1, view) is not None:
                raise NeedsRepair(segment)
    except OSError as error:
        if not give_up:
            raise
        raise NeedsRepair(segment, around_errors=True) from error
    finally:
        file.close()
    next_offset = int(index.first_offsets[stop]) if stop < len(index) else segment_end
    return Piece(next_offset=min(next_offset, end), bytes=size, batches=stop - begin)


def _first_bad(file: File, segment: Segment, index: IndexView, begin: int, stop: int, view: LogView) -> int | None:
    """The first of the batches [begin, stop) that is not what the index says, or does not open; None: all are well."""
    own = None if view.vault is None else OwnBatches(view.vault)
    places = places_of(index.entries[begin : stop + 1])
    start = places[0].position
    data = memoryview(file.pread_cold(index.end_of(stop - 1) - start, start))
    for at in range(stop - begin):
        place = places[at]
        message = data[place.position - start : place.end - start]
        try:
            if own is None:
                header = verify_stored(message, where=f"{segment.path}: ")
            else:
                header = read_header(own.open(message, f"{segment.path}: "))
        except BadBatch:
            return begin + at
        is_known = view.after_gap(header.next_offset) != header.next_offset  # that something is missing behind it
        is_there = len(message) == place.end - place.position
        if not is_there or not is_in_place(header, places[: at + 1] if is_known else places, at):
            return begin + at
    return None


def _added(before: Ranges, after: Ranges) -> Ranges:
    """The parts of `after` that are not in `before`; both sorted and joined."""
    added: list[tuple[int, int]] = []
    for start, end in after:
        for known_start, known_end in before:
            if known_end <= start or known_start >= end:
                continue
            if start < known_start:
                added.append((start, known_start))
            start = max(start, known_end)
        if start < end:
            added.append((start, end))
    return tuple(added)
