"""Goal: an unclean open cuts torn tails, keeps committed damage apart, and changes nothing else.

Files are damaged by hand here, one way at a time; `tests/properties/storage` does it at random and everywhere.
"""

from __future__ import annotations

import errno
import random

import pytest

from broker.api.batch import BatchHeader, encode_batch, seal
from broker.api.errors import CorruptLog, StorageFailed, UnknownFormatVersion
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import Checkpoint, LogSettings, seal_json
from tests.support.effort import first_short
from tests.support.logs import (
    FOLDER,
    check_log,
    commit,
    create_log,
    open_log,
    read_records,
    row_batch,
    verified_records,
)
from tests.support.rows import random_rows
from tests.support.simdisk import MODES, Crashed, SimDisk

SEGMENT = f"{FOLDER}/{0:020d}.arrows"
INDEX = f"{FOLDER}/{0:020d}.index"
CHECKPOINT = f"{FOLDER}/checkpoint"


class Damaged:
    """A log whose process is gone, and hands on its files."""

    def __init__(self, *, settings: LogSettings | None = None) -> None:
        self.disk = SimDisk()
        self.settings = settings or LogSettings()
        self.log = create_log(self.disk, settings=self.settings)
        self.places: list[tuple[int, int]] = []  # position and end of each append in its segment

    def append(self, *values: bytes, group: int = 1) -> None:
        result = self.log.append([row_batch(values) for _ in range(group)], leader_epoch=1, now_us=0)
        end = self.log.state.view().segments[-1].size(self.disk)
        self.places.append((end - result.bytes, end))

    def content(self, path: str = SEGMENT) -> bytearray:
        return self.disk.names[path].content

    def zero(self, start: int, end: int) -> None:
        self.content()[start:end] = bytes(end - start)

    def reopen(self) -> PartitionLog:
        disk = self.disk.after_crash("kept")
        self.disk = disk
        self.log = open_log(disk, settings=self.settings, boot_id="next")
        self.log.state.advance_high_watermark(self.log.state.log_end_offset)
        return self.log

    def offsets(self) -> list[int]:
        offsets = [record[0] for record in verified_records(self.log)]
        start = self.log.state.log_start_offset
        assert offsets == [record[0] for record in read_records(self.log, start)]
        return offsets


# --- torn tails -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("part", first_short(range(4)))
def test_torn_last_batch_is_cut_at_every_length(part: int) -> None:
    made = Damaged()
    made.append(b"a")
    commit(made.log)
    made.append(b"b" * 100)
    start, end = made.places[1]
    whole = bytes(made.content())
    for size in range(start + part, end, 4):
        made.content()[:] = whole[:size]
        log = made.reopen()
        assert (log.state.log_end_offset, made.offsets(), log.state.lost_ranges) == (1, [0], ())
        assert log.state.recovery.cut_bytes == size - start
        assert made.disk.size(SEGMENT) == start
        check_log(log, made.disk)


def test_torn_commit_group_is_cut_as_a_whole() -> None:
    made = Damaged()
    made.append(b"a")
    commit(made.log)
    made.append(b"b", b"c", group=3)
    start, end = made.places[1]
    third = (end - start) // 3
    for size in (end - 1, end - third, end - third - 1, start + third, start + 8):
        made.content()[size:] = b""
        log = made.reopen()
        assert (log.state.log_end_offset, made.offsets()) == (1, [0])
        assert made.disk.size(SEGMENT) == start


def test_zero_filled_tail_is_cut_though_the_file_has_its_full_length() -> None:
    made = Damaged()
    made.append(b"a")
    commit(made.log)
    made.append(b"b" * 3_000)
    start, end = made.places[1]
    made.zero(start + 500, end)
    made.content().extend(bytes(10_000))
    assert made.reopen().state.log_end_offset == 1
    assert made.log.state.recovery.cut_bytes == end - start + 10_000
    assert made.offsets() == [0]


def test_batch_behind_a_torn_one_goes_with_it_when_nothing_proves_that_it_was_committed() -> None:
    """Writes reach the disk out of order: the first of two un-synced ones may be the one that is missing."""
    made = Damaged()
    made.append(b"a")
    commit(made.log)
    made.append(b"b")
    made.append(b"c")
    made.zero(*made.places[1])
    assert made.reopen().state.log_end_offset == 1
    assert (made.offsets(), made.log.state.lost_ranges) == ([0], ())


def test_epoch_whose_records_were_cut_is_forgotten() -> None:
    made = Damaged()
    made.append(b"0")
    commit(made.log)
    made.append(b"1")
    made.log.append([row_batch([b"2"])], leader_epoch=7, now_us=0)
    assert made.log.epochs.latest == 7
    made.zero(*made.places[1])
    log = made.reopen()
    assert (log.state.log_end_offset, log.epochs.latest, log.epochs.epoch_of(0)) == (1, 1, 1)
    log.append([row_batch([b"1"])], leader_epoch=7, now_us=0)
    assert (log.epochs.epoch_of(1), log.epochs.end_of(1).end_offset) == (7, 1)


def test_epochs_file_that_is_too_old_is_brought_up_by_the_scan() -> None:
    """Restored from a copy, say."""
    made = Damaged()
    made.append(b"0")
    old = made.disk.read_file(f"{FOLDER}/epochs")
    for epoch in (4, 4, 6):
        made.log.append([row_batch([b"x"])], leader_epoch=epoch, now_us=0)
    made.log.syncer.sync()
    made.disk.replace_file(f"{FOLDER}/epochs", old)
    log = made.reopen()
    assert log.epochs.latest == 6
    assert [log.epochs.epoch_of(offset) for offset in range(4)] == [1, 4, 4, 6]


def test_log_goes_on_after_a_cut() -> None:
    made = Damaged()
    made.append(b"a")
    commit(made.log)
    made.append(b"b")
    made.content()[-5:] = b""
    made.reopen()
    made.append(b"B")
    commit(made.log)
    assert [record[2] for record in verified_records(made.log)] == [b"a", b"B"]
    made.reopen()
    assert made.offsets() == [0, 1]
    check_log(made.log, made.disk)


# --- damage to what was committed -----------------------------------------------------------------------------


def committed(count: int, *, checkpoint: bool = True) -> Damaged:
    """`count` appends of one record, all committed; the last one is written when the others are."""
    made = Damaged()
    for i in range(count):
        made.append(b"%d" % i)
        commit(made.log)
    if checkpoint:
        made.log.checkpoint()
    return made


def test_damage_below_the_recovery_point_is_lost_and_what_is_around_it_is_served() -> None:
    made = committed(5)
    made.content()[made.places[2][0] + 900] ^= 1
    before = bytes(made.content())
    made.disk.unlink(INDEX)  # so that all of it is scanned
    log = made.reopen()
    assert (log.state.log_end_offset, log.state.lost_ranges, log.state.recovery.lost) == (5, ((2, 3),), [(2, 3)])
    assert made.offsets() == [0, 1, 3, 4]
    assert made.content() == before, "a committed batch is never cut"
    with log.reader.read(2) as plan:
        assert (plan.first_offset, plan.next_offset) == (3, 5)
    assert log.reader.offset_for_time(0) == 0


def test_segment_with_damage_is_never_appended_to() -> None:
    made = committed(3)
    made.zero(*made.places[1])
    made.disk.unlink(INDEX)
    log = made.reopen()
    made.append(b"new")
    commit(log)
    assert log.state.segment_count == 2
    assert made.offsets() == [0, 2, 3]
    made.reopen()
    assert (made.offsets(), made.log.state.lost_ranges) == ([0, 2, 3], ((1, 2),))


def test_lost_range_at_the_end_is_never_given_out_again() -> None:
    made = committed(4)
    made.content()[made.places[2][0] :] = b""
    log = made.reopen()
    assert (log.state.log_end_offset, log.state.lost_ranges) == (4, ((2, 4),))
    assert made.offsets() == [0, 1]
    with log.reader.read(2) as plan:
        assert (plan.ranges, plan.next_offset) == ([], 4)
    made.append(b"new")
    commit(log)
    assert made.offsets() == [0, 1, 4]
    assert [record[0] for record in read_records(log, 3)] == [4]


def test_later_high_watermark_proves_that_a_bad_batch_was_committed() -> None:
    """No checkpoint says so, but batch 4 was written when 0 to 3 had been committed."""
    made = committed(5, checkpoint=False)
    made.zero(*made.places[2])
    log = made.reopen()
    assert (made.offsets(), log.state.lost_ranges, log.state.log_end_offset) == ([0, 1, 3, 4], ((2, 3),), 5)


def test_high_watermark_that_does_not_reach_the_bad_batch_proves_nothing() -> None:
    made = Damaged()
    for i in range(3):
        made.append(b"%d" % i)
    made.log.syncer.sync()
    made.log.state.advance_high_watermark(2)
    made.append(b"3")
    made.append(b"4")
    made.zero(*made.places[2])  # offset 2: the batches behind it say that 0 and 1 were committed
    log = made.reopen()
    assert (made.offsets(), log.state.lost_ranges) == ([0, 1], ())


def test_high_watermark_of_the_checkpoint_proves_it_too() -> None:
    made = Damaged()
    made.append(b"0")
    made.append(b"1")
    made.log.state.advance_high_watermark(2)  # fsync = interval: committed before it is durable
    made.log.checkpoint()
    made.content()[made.places[1][0] :] = b""
    log = made.reopen()
    assert (made.offsets(), log.state.lost_ranges, log.state.log_end_offset) == ([0], ((1, 2),), 2)


def test_recovery_point_alone_proves_it() -> None:
    """All was fsynced and nothing committed yet, so no batch carries a high watermark."""
    made = Damaged()
    for i in range(3):
        made.append(b"%d" % i)
    made.log.syncer.sync()
    made.log.checkpoint()
    made.zero(*made.places[1])
    made.disk.unlink(INDEX)
    log = made.reopen()
    assert (made.offsets(), log.state.lost_ranges, log.state.log_end_offset) == ([0, 2], ((1, 2),), 3)


def test_later_segment_proves_that_all_before_it_was_synced() -> None:
    made = Damaged(settings=LogSettings(segment_bytes=3_000))
    for i in range(6):
        made.append(b"%d" % i)
    made.content()[made.places[0][0] + 10] ^= 4
    log = made.reopen()
    assert (made.offsets(), log.state.lost_ranges) == ([1, 2, 3, 4, 5], ((0, 1),))


def test_missing_segment_is_lost() -> None:
    made = Damaged(settings=LogSettings(segment_bytes=3_000))
    for i in range(8):
        made.append(b"%d" % i)
    commit(made.log)
    made.log.close()
    bases = [segment.base_offset for segment in made.log.state.view().segments]
    assert len(bases) == 4
    made.disk.unlink(f"{FOLDER}/{bases[0]:020d}.arrows")
    made.disk.unlink(f"{FOLDER}/{bases[2]:020d}.arrows")
    log = made.reopen()
    assert log.state.lost_ranges[0] == (0, bases[1])
    assert made.offsets() == [*range(bases[1], bases[2]), *range(bases[3], 8)]
    assert log.state.recovery.notes == []


def test_lost_ranges_are_forgotten_with_what_is_around_them() -> None:
    made = committed(4)
    made.zero(*made.places[1])
    made.disk.unlink(INDEX)
    log = made.reopen()
    assert log.state.lost_ranges == ((1, 2),)
    assert log.trim(1) == 1
    assert log.state.lost_ranges == ((1, 2),)
    assert made.offsets() == [2, 3]
    log.trim(3)
    assert log.state.lost_ranges == ()


@pytest.mark.parametrize("place", ["prefix", "length", "buffers", "crc", "body", "end"])
def test_next_batch_is_found_behind_damage_anywhere(place: str) -> None:
    made = committed(3)
    start, end = made.places[1]
    at = {"prefix": 1, "length": 49, "buffers": 330, "crc": 256, "body": 895, "end": end - start - 1}[place]
    made.content()[start + at] ^= 0x10
    made.disk.unlink(INDEX)
    made.reopen()
    assert (made.offsets(), made.log.state.lost_ranges) == ([0, 2], ((1, 2),))


def test_next_batch_is_found_when_a_whole_header_is_gone() -> None:
    made = Damaged()
    for _ in range(3):
        made.append(*[b"x" * 200] * 20)
        commit(made.log)
    made.log.checkpoint()
    start, _ = made.places[1]
    made.zero(start, start + 888)
    made.disk.unlink(INDEX)
    made.reopen()
    assert made.log.state.lost_ranges == ((20, 40),)
    assert made.offsets() == [*range(20), *range(40, 60)]


def test_batch_within_a_value_is_not_taken_for_one_of_the_log() -> None:
    """Somebody publishes bytes of a segment: they are a value, also when the batch around them is damaged."""
    forged = encode_batch(
        random_rows(random.Random(1), 1, first_offset=2),
        BatchHeader(first_offset=2, last_offset=2, high_watermark=2),
    )
    for checkpoint in (True, False):
        made = Damaged()
        made.append(b"0")
        commit(made.log)
        made.append(bytes(forged) * 3)
        if checkpoint:
            commit(made.log)
            made.log.checkpoint()
        start, end = made.places[1]
        made.content()[end - 1] ^= 1
        if made.disk.exists(INDEX):
            made.disk.unlink(INDEX)
        log = made.reopen()
        assert made.offsets() == [0]
        assert log.state.lost_ranges == (((1, 2),) if checkpoint else ())
        # Torn in the middle of the value: what is left of the file holds a whole forged batch.
        made = Damaged()
        made.append(b"0")
        commit(made.log)
        made.append(bytes(forged) * 3)
        start, end = made.places[1]
        made.content()[end - 100 :] = b""
        made.reopen()
        assert (made.offsets(), made.log.state.lost_ranges, made.disk.size(SEGMENT)) == ([0], (), start)


@pytest.mark.parametrize("first_offset,high_watermark", [(0, 0), (1_000, 2), (3, 1_000)])
def test_batch_that_cannot_stand_there_is_not_believed(first_offset: int, high_watermark: int) -> None:
    """The header around it is gone altogether, and what is found within does not fit the offsets."""
    rows = random_rows(random.Random(1), 1, first_offset=first_offset)
    forged = encode_batch(
        rows, BatchHeader(first_offset=first_offset, last_offset=first_offset, high_watermark=high_watermark)
    )
    made = Damaged()
    made.append(b"0")
    commit(made.log)
    made.append(bytes(forged))
    start, end = made.places[1]
    within = bytes(made.content()).index(forged, start)
    made.zero(start, start + 888)
    shift = -(within - start) % 8  # so that it lies where a batch could begin
    made.content()[within + shift : end] = bytes(forged) + bytes(end - within - shift - len(forged))
    log = made.reopen()
    assert (made.offsets(), log.state.lost_ranges, log.state.log_end_offset) == ([0], (), 1)


# --- markers, schema, empty files -----------------------------------------------------------------------------


def test_last_segment_that_is_sealed_is_not_appended_to() -> None:
    made = Damaged()
    made.append(b"0")
    assert made.log.roll_if_due(1 << 60)
    log = made.reopen()
    made.append(b"1")
    commit(log)
    assert log.state.segment_count == 2
    assert made.offsets() == [0, 1]
    check_log(log, made.disk)


def test_batches_behind_a_marker_are_found_and_served_without_it() -> None:
    made = Damaged()
    made.append(b"0")
    made.append(b"1")
    start = made.places[1][0]
    content = made.content()
    content[start:] = END_OF_STREAM + content[start:]
    log = made.reopen()
    assert made.offsets() == [0, 1]
    with log.reader.read(0) as plan:
        assert len(plan.ranges) == 2, "the marker between them is not sent"
    assert any("behind an end-of-stream marker" in note for note in log.state.recovery.notes)
    made.append(b"2")
    commit(log)
    assert log.state.segment_count == 2
    made.reopen()
    assert (made.offsets(), made.log.state.lost_ranges) == ([0, 1, 2], ())


@pytest.mark.parametrize("size", [0, 1, 8, len(SCHEMA_BYTES) - 1])
@pytest.mark.parametrize("behind_others", [False, True])
def test_segment_with_half_a_schema_message_begins_anew(size: int, behind_others: bool) -> None:
    made = Damaged()
    if behind_others:
        made.append(b"0")
        made.log.roll_if_due(1 << 60)
    end = made.log.state.log_end_offset
    made.disk.replace_file(f"{FOLDER}/{end:020d}.arrows", SCHEMA_BYTES[:size])
    log = made.reopen()
    assert log.state.log_end_offset == end
    made.append(b"new")
    commit(log)
    assert made.offsets() == list(range(end + 1))
    check_log(log, made.disk)


def test_committed_batches_behind_a_damaged_schema_message_are_served() -> None:
    made = committed(3)
    made.content()[100] ^= 1
    log = made.reopen()
    assert (made.offsets(), log.state.lost_ranges) == ([0, 1, 2], ())
    assert any("schema message is damaged" in note for note in log.state.recovery.notes)
    made.append(b"3")
    commit(log)
    assert log.state.segment_count == 2
    assert made.offsets() == [0, 1, 2, 3]


# --- indexes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["missing", "empty", "short", "flipped", "of another log"])
@pytest.mark.parametrize("sealed", [False, True])
def test_index_that_is_missing_or_wrong_is_rebuilt(trouble: str, sealed: bool) -> None:
    made = Damaged()
    for i in range(6):
        made.append(b"%d" % i)
    if sealed:
        made.log.roll_if_due(1 << 60)
        made.append(b"6")
    commit(made.log)
    made.log.close()
    good = bytes(made.content(INDEX))
    match trouble:
        case "missing":
            made.disk.unlink(INDEX)
        case "empty":
            made.content(INDEX).clear()
        case "short":
            del made.content(INDEX)[-32:]
        case "flipped":
            made.content(INDEX)[77] ^= 8
        case "of another log":
            other = Damaged()
            other.append(b"longer than the others")
            other.log.close()
            made.content(INDEX)[:] = other.content(INDEX)
    log = open_log(made.disk, settings=made.settings)
    assert log.state.recovery.clean, "that it is wrong is found when it is needed"
    log.state.advance_high_watermark(log.state.log_end_offset)
    made.log = log
    assert made.offsets() == list(range(6 + sealed))
    made.append(b"more")
    commit(log)
    check_log(log, made.disk)
    log.close()
    if sealed:
        assert bytes(made.content(INDEX)) == good
    log = open_log(made.disk, settings=made.settings)
    assert log.state.recovery.clean
    check_log(log, made.disk)


def test_index_that_disagrees_with_its_segment_is_found_at_the_read_and_rebuilt() -> None:
    """S4. Its CRC is right, the segment's batches are elsewhere: a segment that was restored from a copy, say."""
    made = Damaged()
    made.append(b"0")
    made.append(b"1")
    made.log.roll_if_due(1 << 60)
    made.append(b"2")
    commit(made.log)
    made.log.close()
    other = Damaged()
    other.append(b"0 and longer")
    other.append(b"1 and longer by far")
    other.log.roll_if_due(1 << 60)
    made.content()[:] = other.content()
    log = open_log(made.disk, settings=made.settings)
    log.state.advance_high_watermark(3)
    assert [record[2] for record in read_records(log, 0)] == [b"0 and longer", b"1 and longer by far", b"2"]
    check_log(log, made.disk)


def test_sealed_segment_that_was_cut_is_found_at_the_read() -> None:
    made = Damaged(settings=LogSettings(segment_bytes=3_000))
    for i in range(6):
        made.append(b"%d" % i)
    commit(made.log)
    made.log.close()
    del made.content()[made.places[1][0] + 50 :]
    log = open_log(made.disk, settings=made.settings)
    assert log.state.recovery.clean
    made.log = log
    assert (made.offsets(), log.state.lost_ranges) == ([0, 2, 3, 4, 5], ((1, 2),))


def test_body_that_rots_while_the_log_is_open_is_never_yielded() -> None:
    made = committed(4)
    made.content()[made.places[1][0] + 900] ^= 1
    assert [record[0] for record in verified_records(made.log)] == [0, 2, 3]
    assert made.log.state.lost_ranges == ((1, 2),)
    made.append(b"4")
    commit(made.log)
    assert made.offsets() == [0, 2, 3, 4]


def test_orphans_of_interrupted_work_are_swept() -> None:
    made = committed(2)
    for name in (f"{FOLDER}/checkpoint.tmp", f"{FOLDER}/{77:020d}.index"):
        made.disk.replace_file(name, b"x")
    made.disk.replace_file(f"{FOLDER}/notes.txt", b"an operator's")
    made.reopen()
    assert "notes.txt" in made.disk.listdir(FOLDER)
    assert not {"checkpoint.tmp", f"{77:020d}.index"} & set(made.disk.listdir(FOLDER))


# --- small files, versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_log_without_its_checkpoint_is_recovered_from_the_segments(damage: str) -> None:
    made = Damaged(settings=LogSettings(segment_bytes=3_000))
    for i in range(9):
        made.append(b"%d" % i)
        commit(made.log)
    made.log.trim(4)
    made.log.checkpoint()
    start = made.log.state.view().segments[0].base_offset
    if damage == "missing":
        made.disk.unlink(CHECKPOINT)
    else:
        made.content(CHECKPOINT)[20] ^= 1
    log = made.reopen()
    assert (log.state.log_start_offset, log.state.log_end_offset) == (start, 9)
    assert made.offsets() == list(range(start, 9))
    [note] = log.state.recovery.notes
    assert "recovered from the segments alone" in note


@pytest.mark.parametrize("is_sole", [True, False])
def test_the_power_goes_at_any_step_of_the_first_append(is_sole: bool) -> None:
    """Whoever opens it takes it for what it is, an empty log or one with a record; never for a damaged one."""
    settings = LogSettings(is_sole_replica=is_sole)
    for step in range(1, 60):
        disk = SimDisk()
        log = create_log(disk, settings=settings)
        log.lead(1)
        disk.crash_at = disk.steps + step
        try:
            log.append([row_batch([b"v"])], leader_epoch=1, now_us=0)
            log.syncer.sync()
            break
        except Crashed:
            pass
        for left in (disk.after_kill(), *(disk.after_crash(mode, seed=step) for mode in MODES)):
            again = open_log(left, settings=settings, boot_id="")
            assert not any("checkpoint" in note for note in again.state.recovery.notes)
            assert again.state.log_end_offset in (0, 1)
    assert step > 4


def test_a_log_without_a_record_writes_no_checkpoint_before_it_is_closed() -> None:
    """Ten thousand partitions are made at once, and each would cost two fsyncs more."""
    disk = SimDisk()
    log = create_log(disk)
    log.lead(3)
    steps = disk.steps
    log.checkpoint()
    assert disk.steps == steps
    assert log.checkpoints.is_up_to_date
    assert log.checkpoints.is_lacking
    log.close()
    assert open_log(disk).state.recovery.clean


def test_empty_log_with_a_damaged_checkpoint_is_refused() -> None:
    made = Damaged()
    made.log.close()
    made.content(CHECKPOINT)[20] ^= 1
    with pytest.raises(CorruptLog, match="next offset is not known"):
        made.reopen()


@pytest.mark.parametrize("file", ["partition.json", "checkpoint", "epochs"])
def test_small_file_of_a_later_version_is_refused_and_named(file: str) -> None:
    made = committed(2)
    data = b'{"format_version": 3}' if file == "partition.json" else seal_json({"format_version": 3})
    made.disk.replace_file(f"{FOLDER}/{file}", data)
    before = {name: bytes(inode.content) for name, inode in made.disk.names.items()}
    with pytest.raises(UnknownFormatVersion, match=f"{file}: format version 3"):
        made.reopen()
    assert {name: bytes(inode.content) for name, inode in made.disk.names.items()} == before


def test_intact_batch_of_a_later_version_is_refused_and_nothing_is_cut() -> None:
    made = committed(2, checkpoint=False)
    start, end = made.places[1]
    message = made.content()[start:end]
    message[88:92] = b"0002"
    seal(message)
    made.content()[start:end] = message
    before = bytes(made.content())
    with pytest.raises(UnknownFormatVersion, match=r"batch at .* has format version 2"):
        made.reopen()
    assert bytes(made.disk.names[SEGMENT].content) == before


def test_recovered_state_is_written_down_when_something_was_wrong() -> None:
    made = committed(3)
    made.zero(*made.places[1])
    made.disk.unlink(INDEX)
    made.reopen()
    point = Checkpoint.decode(made.disk.read_file(CHECKPOINT), where="")
    assert point is not None
    assert point.lost_ranges == ((1, 2),)


def test_start_without_anything_wrong_writes_nothing() -> None:
    """Ten thousand partitions start without ten thousand fsyncs."""
    made = committed(3)
    made.disk = made.disk.after_crash("kept")
    log = open_log(made.disk, settings=made.settings, boot_id="next")
    assert made.disk.steps == 0
    assert (log.state.log_end_offset, log.state.recovery.scanned_batches) == (3, 1)


def test_recovery_on_a_full_disk_serves_what_is_there() -> None:
    made = committed(4)
    made.append(b"torn")
    made.content()[-3:] = b""
    made.zero(*made.places[1])
    made.disk.unlink(INDEX)
    disk = made.disk.after_crash("kept")
    disk.bytes_max = 0
    log = open_log(disk, settings=made.settings)
    assert log.state.lost_ranges == ((1, 2),)
    assert log.state.log_end_offset == 4
    assert any("No space left" in note for note in log.state.recovery.notes)
    log.state.advance_high_watermark(4)
    assert [record[0] for record in read_records(log, 0)] == [0, 2, 3]
    disk.heal()
    log.append([row_batch([b"4"])], leader_epoch=1, now_us=0)
    commit(log)
    assert [record[0] for record in verified_records(log)] == [0, 2, 3, 4]


def test_an_open_fails_where_the_epochs_cannot_be_read() -> None:
    """A log that did not know its epochs would take appends of leaders that are long deposed."""
    damaged = Damaged()
    damaged.append(b"a")
    commit(damaged.log)
    disk = damaged.disk.after_crash("kept")
    disk.fail("read_file", errno.EIO, path="epochs")
    with pytest.raises(StorageFailed):
        open_log(disk, boot_id="next")
    assert open_log(disk, boot_id="next").epochs.latest == 1
