"""Scrubbing: rot is found and never served, and nothing else is ever marked.

Method: logs on the fake disk; bits are flipped, reads fail, files are replaced and let go between the steps.
"""

from __future__ import annotations

import errno

import pytest

from broker.api.errors import StorageFailed
from broker.storage.inspect.scrub import Piece, scrub
from broker.storage.log import PartitionLog
from tests.support.compacting import keyed_batch
from tests.support.logs import FOLDER, commit, create_log, open_log, read_records, row_batch
from tests.support.simdisk import SimDisk, SimFile
from tests.unit.storage.test_compaction import run as compact

SEGMENTS = 3
BATCHES = 4


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> PartitionLog:
    """Three segments of four batches of two records, the last one the tail."""
    log = create_log(disk)
    for number in range(SEGMENTS):
        for _ in range(BATCHES):
            log.append([row_batch([b"v" * 50] * 2)], leader_epoch=1, now_us=0)
        commit(log)
        if number < SEGMENTS - 1:
            assert log.roll_if_due(1 << 60)
    return log


def path_of(base: int) -> str:
    return f"{FOLDER}/{base:020d}.arrows"


def flip_batch(disk: SimDisk, log: PartitionLog, offset: int) -> None:
    """One bit in the body of the batch that begins at `offset`."""
    view = log.state.view()
    segment = view.segments[view.segment_of(offset)]
    index = view.index(segment)
    disk.flip(segment.path, (int(index.positions[index.find(offset)]) + 900) * 8 + 3)


def scrubbed(log: PartitionLog, *, bytes_max: int = 2_000) -> list[Piece]:
    pieces, offset = [], 0
    while (piece := scrub(log, offset, bytes_max=bytes_max)) is not None:
        assert piece.next_offset > offset
        offset = piece.next_offset
        pieces.append(piece)
    return pieces


def offsets(log: PartitionLog) -> list[int]:
    return [offset for offset, _, _ in read_records(log, 0)]


def test_a_whole_log_is_checked_piece_by_piece_and_nothing_is_changed(disk: SimDisk, log: PartitionLog) -> None:
    disk.calls.clear()
    pieces = scrubbed(log)
    assert sum(piece.batches for piece in pieces) == SEGMENTS * BATCHES
    assert len(pieces) > SEGMENTS
    assert all(piece.lost == () for piece in pieces)
    assert disk.calls.keys() <= {"open", "pread", "read_file", "size"}
    assert scrub(log, log.state.high_watermark) is None
    assert disk.open_files == 1, "the tail's own"


@pytest.mark.parametrize("offset", [0, 4, 8, 14, 16, 22])
def test_rot_is_marked_and_what_is_around_it_is_served(disk: SimDisk, log: PartitionLog, offset: int) -> None:
    """In sealed segments and in the tail; the mark survives a restart, appends go on."""
    flip_batch(disk, log, offset)
    pieces = scrubbed(log)
    assert [piece.lost for piece in pieces if piece.lost] == [((offset, offset + 2),)]
    assert log.state.lost_ranges == ((offset, offset + 2),)
    assert disk.forgotten == 1
    log.append([row_batch([b"after"])], leader_epoch=1, now_us=0)
    commit(log)
    expected = [i for i in range(25) if i not in (offset, offset + 1)]
    assert offsets(log) == expected
    log.close()
    found = open_log(disk)
    assert (found.state.lost_ranges, offsets(found)) == (((offset, offset + 2),), expected)
    assert all(piece.lost == () for piece in scrubbed(found)), "once is enough"


def test_rot_of_all_that_there_is_from_an_offset_on_is_told(disk: SimDisk, log: PartitionLog) -> None:
    flip_batch(disk, log, 20)
    flip_batch(disk, log, 22)
    piece = scrub(log, 20)
    assert piece is not None
    assert (piece.lost, piece.next_offset) == (((20, 24),), 24)
    assert scrub(log, piece.next_offset) is None


def test_two_ranges_of_one_piece_are_both_found(disk: SimDisk, log: PartitionLog) -> None:
    flip_batch(disk, log, 0)
    flip_batch(disk, log, 4)
    lost = [lost for piece in scrubbed(log, bytes_max=1 << 20) for lost in piece.lost]
    assert lost == [(0, 2), (4, 6)]


def test_damage_that_was_only_in_memory_marks_nothing(
    disk: SimDisk, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B2: the bytes are right once they come from the disk."""
    flip_batch(disk, log, 4)
    file = type(disk.open(path_of(0), readonly=True))
    original = file.forget

    def forget(self: SimFile, size: int, position: int) -> None:
        if position == 0 and size >= self.size():  # of a part the system may keep all
            flip_batch(disk, log, 4)  # back again
        original(self, size, position)

    monkeypatch.setattr(file, "forget", forget)
    assert all(piece.lost == () for piece in scrubbed(log))
    assert log.state.lost_ranges == ()


def test_a_segment_that_is_replaced_under_a_scrub_is_not_marked(disk: SimDisk) -> None:
    """B2: the scrub works on the view that it took; compaction puts another file there; nothing is lost."""
    log = create_log(disk)
    for _ in range(3):
        log.append([keyed_batch([(b"k", b"v"), (b"l", b"w"), (None, b"x")])], leader_epoch=1, now_us=0)
        commit(log)
        assert log.roll_if_due(1 << 60)
    before = log.state.view()
    report = compact(log)
    assert report is not None
    assert report.segments_rewritten
    stale, log.state.view = log.state.view, lambda: before  # type: ignore[method-assign]
    views = [before, before]
    log.state.view = lambda: views.pop() if views else stale()  # type: ignore[method-assign]
    pieces = scrubbed(log)
    assert all(piece.lost == () for piece in pieces)
    assert log.state.lost_ranges == ()
    assert not views


def test_a_segment_that_retention_took_under_a_scrub_is_not_marked(disk: SimDisk, log: PartitionLog) -> None:
    views = [log.state.view()]
    log.trim(8)
    fresh = log.state.view
    log.state.view = lambda: views.pop() if views else fresh()  # type: ignore[method-assign]
    piece = scrub(log, 0)
    assert piece is not None
    assert piece.next_offset > 8
    assert log.state.lost_ranges == ()


def test_a_read_error_marks_nothing_until_the_caller_gives_up(disk: SimDisk, log: PartitionLog) -> None:
    """B3: an error for a while is no damage."""
    disk.fail("pread", errno.EIO, path=path_of(0), times=3)
    for _ in range(3):
        with pytest.raises(StorageFailed):
            scrub(log, 0)
    assert log.state.lost_ranges == ()
    assert all(piece.lost == () for piece in scrubbed(log))


def test_a_disk_that_reads_nothing_is_away_not_damaged(disk: SimDisk, log: PartitionLog) -> None:
    disk.fail("pread", errno.EIO, path=path_of(0), times=1_000)
    with pytest.raises(StorageFailed):
        scrub(log, 0, give_up=True)
    assert log.state.lost_ranges == ()
    disk.heal()
    assert offsets(log) == list(range(24))


def test_a_sector_that_cannot_be_read_is_lost_once_given_up(disk: SimDisk, log: PartitionLog) -> None:
    """Only the batches in it; the file is left as it is."""
    bad = 4096
    file = type(disk.open(path_of(0), readonly=True))
    original = file.pread

    def pread(self: object, size: int, position: int) -> bytes:
        if self.path == path_of(0) and position <= bad < position + size:  # type: ignore[attr-defined]
            raise OSError(errno.EIO, "Input/output error", path_of(0))
        return original(self, size, position)  # type: ignore[arg-type]

    file.pread = pread  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(StorageFailed):
            scrub(log, 6)
        piece = scrub(log, 6, give_up=True)
        assert piece is not None
        assert piece.lost == log.state.lost_ranges == ((6, 8),)
        assert offsets(log) == [*range(6), *range(8, 24)]
    finally:
        file.pread = original  # type: ignore[method-assign]
