"""Goal: a follower holds what its leader stored, byte for byte, and gives back what its leader does not have; nothing
is appended in an epoch that it was not judged under.

Method: a leader's log and a follower's on fake disks; what goes over is what `read(stored=True)` finds.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace

import pytest

from broker.api.batch import FIELDS, VALUE_AT, read_header
from broker.api.errors import BadBatch, CorruptLog, DiskFull, NotLeader, OffsetOutOfRange, StorageFailed
from broker.storage.log import PartitionLog
from broker.storage.memory.state_files import list_states
from broker.storage.recovery import list_segments
from broker.storage.rewrite.clean_state import CleanState, load_clean_state, save_clean_state
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.rewriting import BatchShape
from broker.storage.segments.checkpoint import CHECKPOINT_FILE, Checkpoint, LogSettings
from broker.storage.writing.replace import sealed_segments
from tests.support.compacting import check_compacted, keyed_batch
from tests.support.logs import (
    FOLDER,
    check_log,
    create_log,
    open_log,
    plan_bytes,
    row_batch,
    sent_records,
    stamped,
    verified_records,
)
from tests.support.simdisk import Inode, SimDisk

SETTINGS = LogSettings(segment_bytes=6_000, is_sole_replica=False)


def new_log(*, settings: LogSettings = SETTINGS) -> tuple[SimDisk, PartitionLog]:
    disk = SimDisk()
    return disk, create_log(disk, settings=settings)


def append(log: PartitionLog, *values: bytes, epoch: int = 1, group: int = 1) -> None:
    log.append([row_batch(values) for _ in range(group)], leader_epoch=epoch, now_us=0)


def stored(log: PartitionLog, start: int, end: int | None = None) -> bytes:
    """The stored messages from `start` on."""
    found = b""
    while start < (log.state.log_end_offset if end is None else end):
        with log.reader.read(start, end=end, stored=True) as plan:
            found += plan_bytes(plan)
            start = plan.next_offset
    return found


def copy(leader: PartitionLog, follower: PartitionLog, *, epoch: int, end: int | None = None) -> None:
    follower.append_stored(stored(leader, follower.state.log_end_offset, end), leader_epoch=epoch, now_us=0)


def groups_of(log: PartitionLog) -> list[tuple[int, int]]:
    """Where each commit group begins and ends. Each batch of `append` has one record."""
    found = []
    for first in range(log.state.log_start_offset, log.state.log_end_offset):
        header = read_header(stored(log, first, first + 1))
        if header.group_index == 0:
            found.append((first, first + header.group_count))
    return found


def values(log: PartitionLog) -> list[bytes]:
    log.state.advance_high_watermark(log.syncer.sync())
    return [value for _, _, value in verified_records(log)]


@pytest.fixture
def leader() -> PartitionLog:
    """Three epochs, groups of two batches among them, several segments."""
    _, log = new_log()
    for number in range(12):
        append(log, b"%d" % number, epoch=1 + number // 5, group=1 + (number % 3 == 2))
    log.syncer.sync()
    return log


# --- verbatim append ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 3, 100])
def test_what_a_leader_stored_is_stored_byte_for_byte(leader: PartitionLog, piece: int) -> None:
    """However much comes in a call; segments are the follower's own."""
    disk, log = new_log(settings=replace(SETTINGS, segment_bytes=2_500))
    log.follow(3)
    while log.state.log_end_offset < leader.state.log_end_offset:
        copy(leader, log, epoch=3, end=min(log.state.log_end_offset + piece, leader.state.log_end_offset))
    assert stored(log, 0) == stored(leader, 0)
    assert log.state.segment_count > leader.state.segment_count
    assert log.epochs.latest == 3
    assert [log.epochs.epoch_of(offset) for offset in range(16)] == [
        leader.epochs.epoch_of(offset) for offset in range(16)
    ]
    assert log.state.group_ends == leader.state.group_ends
    for segment, end in sealed_segments(log.state):  # between groups only
        assert end in [0, *leader.state.group_ends], segment.path
    assert values(log) == values(leader)
    check_log(log, disk)
    log.close()
    assert stored(open_log(disk, settings=SETTINGS), 0) == stored(leader, 0)


def test_what_arrives_together_is_one_write_for_each_epoch(
    leader: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many groups and batches it is."""
    disk, log = new_log(settings=replace(SETTINGS, segment_bytes=1 << 20))
    log.follow(3)
    log.append_stored(stored(leader, 0, 1), leader_epoch=3, now_us=0)  # the segment begins
    data, written, write_to = stored(leader, 1), [], disk.write_to

    def note(inode: Inode, path: str, data: bytes, ahead: int) -> None:
        written.append((path, len(data)))
        write_to(inode, path, data, ahead)

    monkeypatch.setattr(disk, "write_to", note)
    log.append_stored(data, leader_epoch=3, now_us=0)
    [segment] = {path for path, _ in written if path.endswith(".arrows")}
    sizes = [size for path, size in written if path == segment]
    assert (len(sizes), sum(sizes)) == (3, len(data)), "as many epochs"
    assert stored(log, 0) == stored(leader, 0)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_was_joined_and_compressed_goes_over_as_it_is(leader: PartitionLog, compression: str) -> None:
    """Offset span and rows differ, several appends are one message."""
    leader.state.advance_high_watermark(leader.state.log_end_offset)
    leader.roll_if_due(1 << 60)
    wanted = CoalescingSettings(
        min_age_ms=0, segment_bytes=1 << 20, shape=BatchShape(batch_records=4, compression=compression)
    )  # type: ignore[arg-type]
    before = stored(leader, 0)
    while coalesce(leader, wanted, {}, now_us=1 << 50) is not None:
        pass
    assert len(stored(leader, 0)) < len(before)
    disk, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3)
    assert stored(log, 0) == stored(leader, 0)
    assert values(log) == values(leader)
    check_log(log, disk)


def test_damaged_or_foreign_messages_are_refused_as_a_whole(leader: PartitionLog) -> None:
    _, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3, end=4)
    end, before = log.state.log_end_offset, stored(log, 0)
    more = stored(leader, end)
    for position in (90, 300, len(more) - 20):
        damaged = bytearray(more)
        damaged[position] ^= 1
        with pytest.raises(BadBatch):
            log.append_stored(damaged, leader_epoch=3, now_us=0)
    for foreign in (stored(leader, 0), stored(leader, 8), more + more, more[:-8], more[8:]):
        with pytest.raises(BadBatch):
            log.append_stored(foreign, leader_epoch=3, now_us=0)
    assert (log.state.log_end_offset, stored(log, 0)) == (end, before)
    log.append_stored(more, leader_epoch=3, now_us=0)
    assert stored(log, 0) == stored(leader, 0)
    log.append_stored(b"", leader_epoch=3, now_us=0)


def test_an_epoch_that_goes_down_or_is_above_the_leaders_is_refused(leader: PartitionLog) -> None:
    _, log = new_log()
    log.follow(2)
    with pytest.raises(BadBatch, match="leader epoch 3"):
        copy(leader, log, epoch=2)
    assert log.state.log_end_offset == 0
    _, other = new_log()
    append(other, b"x", epoch=2)
    other.follow(3)
    first = stored(leader, 0, 1)
    assert read_header(first).leader_epoch == 1
    with pytest.raises(BadBatch):
        other.append_stored(first, leader_epoch=3, now_us=0)


def test_a_write_that_fails_in_the_middle_leaves_whole_messages_and_the_rest_comes_again(leader: PartitionLog) -> None:
    for after in range(4):
        disk, log = new_log(settings=replace(SETTINGS, segment_bytes=2_000))
        log.follow(3)
        disk.fail("write", errno.ENOSPC, path=".arrows", after=2 * after, short=100)
        with pytest.raises(Exception, match="No space left"):
            copy(leader, log, epoch=3)
        assert log.state.log_end_offset < leader.state.log_end_offset
        copy(leader, log, epoch=3)
        assert stored(log, 0) == stored(leader, 0)
        check_log(log, disk)


@pytest.mark.parametrize("leads", [False, True])
def test_an_epoch_of_which_nothing_could_be_written_is_not_the_last_ones(leader: PartitionLog, *, leads: bool) -> None:
    """Found by tests/sim, seed 249: the follower said an epoch of which it had nothing, and never agreed again."""
    disk, log = new_log()
    first = stored(leader, 0, 1)
    log.follow(3)
    log.append_stored(first, leader_epoch=3, now_us=0)
    before = (log.epochs.latest, log.epochs.end_of(9))
    disk.fail("write", errno.ENOSPC, path=".arrows", short=100)
    if leads:
        log.lead(9)
        with pytest.raises(DiskFull):
            log.append([row_batch([b"x"])], leader_epoch=9, now_us=0)
    else:
        log.follow(9)
        with pytest.raises(DiskFull):
            log.append_stored(of_epoch(9, log.state.log_end_offset), leader_epoch=9, now_us=0)
    assert (log.epochs.latest, log.epochs.end_of(9)) == before
    log.checkpoint()
    again = PartitionLog.open(disk, FOLDER, log.state.settings, boot_id="", now_us=0)
    assert (again.epochs.latest, again.epochs.end_of(9)) == before


def of_epoch(epoch: int, offset: int) -> bytes:
    """A stored batch of a leader epoch, to stand at an offset."""
    batch = row_batch([b"x"])
    return bytes(batch.compose(first_offset=offset, leader_epoch=epoch, high_watermark=0))


def test_a_follower_that_leads_knows_what_producers_did(leader: PartitionLog) -> None:
    """It never looked at who wrote a record: the tables are read from the log."""
    for sequence in range(4):
        leader.append([stamped([b"p"], 7, 0, sequence)], leader_epoch=3, now_us=0)
    disk, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3, end=18)
    assert list_states(disk, FOLDER) == [0], "T1"
    copy(leader, log, epoch=3)
    log.roll_if_due(1 << 60)
    log.checkpoint()
    assert log.lead(4) == leader.state.log_end_offset
    assert log.append([stamped([b"p"], 7, 0, 3)], leader_epoch=4, now_us=0).duplicate
    assert log.append([stamped([b"p"], 7, 0, 4)], leader_epoch=4, now_us=0).first_offset == leader.state.log_end_offset
    again = open_log(disk.after_kill(), settings=SETTINGS)
    assert again.append([stamped([b"p"], 7, 0, 2)], leader_epoch=4, now_us=0).duplicate


# --- epochs ---------------------------------------------------------------------------------------------------------


def test_an_append_in_another_epoch_than_the_one_led_is_refused_and_writes_nothing() -> None:
    disk, log = new_log()
    log.lead(5)
    append(log, b"0", epoch=5)
    steps = disk.steps
    for epoch in (4, 6):
        with pytest.raises(NotLeader) as caught:
            append(log, b"x", epoch=epoch)
        assert caught.value.leader_epoch == 5
    log.follow(7)
    for epoch in (5, 7):
        with pytest.raises(NotLeader):
            append(log, b"x", epoch=epoch)
    with pytest.raises(NotLeader):
        log.lead(6)
    with pytest.raises(NotLeader):
        log.follow(6)
    assert (disk.steps, log.state.log_end_offset) == (steps, 1)
    assert log.lead(8) == 1
    append(log, b"1", epoch=8)
    with pytest.raises(NotLeader):
        log.append_stored(b"", leader_epoch=8, now_us=0)
    for call in (lambda: log.truncate(0), lambda: log.reset(0)):
        with pytest.raises(NotLeader):
            call()


def test_what_was_judged_before_another_led_is_not_appended_after_it_leads_again() -> None:
    """A searches and finds nothing, B leads and finishes, A leads again: the old thread's append names its epoch."""
    _, log = new_log()
    log.lead(1)
    judged_under = 1
    log.follow(2)
    log.lead(3)
    with pytest.raises(NotLeader):
        append(log, b"once more", epoch=judged_under)


def test_a_log_that_nobody_told_takes_any_epoch_that_is_not_below_its_last() -> None:
    _, log = new_log()
    append(log, b"0", epoch=3)
    append(log, b"1", epoch=5)
    with pytest.raises(NotLeader):
        append(log, b"x", epoch=4)
    with pytest.raises(NotLeader):
        log.lead(4)


def test_the_end_of_an_epoch_comes_with_the_epoch_that_it_is_the_end_of(leader: PartitionLog) -> None:
    """KIP-279: who asks for an epoch that has no record here is told of the one before it."""
    _, log = new_log()
    for number, epoch in enumerate((1, 1, 4, 4, 6)):
        append(log, b"%d" % number, epoch=epoch)
    assert [log.epochs.end_of(epoch) for epoch in range(8)] == [
        *((-1, 0), (1, 2), (1, 2), (1, 2), (4, 4), (4, 4), (6, 5), (6, 5))
    ]


def test_two_logs_agree_after_the_dialogue_of_epochs() -> None:
    """Each cut is at the end of the follower's last epoch as the leader has it, until both have the same."""
    _, one = new_log()
    _, other = new_log()
    for number in range(4):
        append(one, b"both %d" % number, epoch=1)
    other.follow(1)
    copy(one, other, epoch=1)
    for number in range(3):
        append(one, b"old %d" % number, epoch=1)  # nobody else has these
    other.lead(2)
    append(other, b"new 0", epoch=2)
    other.follow(4)
    one.lead(3)
    append(one, b"lost", epoch=3)
    one.follow(4)
    leader, follower = other, one
    for _ in range(5):
        mine = follower.epochs.latest
        epoch, end = leader.epochs.end_of(mine)
        follower.truncate(min(end, follower.epochs.end_of(epoch).end_offset))
        if epoch == mine and follower.state.log_end_offset == end:
            break
    copy(leader, follower, epoch=4)
    assert stored(leader, 0) == stored(follower, 0)
    assert values(follower) == [b"both 0", b"both 1", b"both 2", b"both 3", b"new 0"]


def test_who_reads_the_epochs_beside_the_first_append_does_not_take_its_epoch_away(leader: PartitionLog) -> None:
    """The file is read without the lock: an append may begin an epoch before what was read is noted."""
    disk, log = new_log()
    append(log, b"0", epoch=1)
    log.close()

    class SlowDisk(SimDisk):
        def read_file(self, path: str) -> bytes:
            data = super().read_file(path)
            if path.endswith("/epochs") and begins.pop("epoch", None):
                append(log, b"1", epoch=2)
            return data

    begins: dict[str, bool] = {}
    disk.__class__ = SlowDisk
    log = open_log(disk, settings=SETTINGS)
    assert log.state.recovery.clean
    begins["epoch"] = True
    assert log.epochs.epoch_of(0) == 1
    assert not begins
    assert (log.epochs.epoch_of(1), log.epochs.latest) == (2, 2)


# --- an incomplete group --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_durable", [False, True])
def test_whoever_leads_cuts_a_group_of_which_it_has_a_part(leader: PartitionLog, is_durable: bool) -> None:
    """Below the recovery point too. The start of its epoch comes after that."""
    first = leader.state.log_end_offset
    append(leader, b"g", b"h", epoch=3, group=4)
    disk, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3, end=first + 4)
    assert log.state.log_end_offset == first + 4
    if is_durable:
        log.syncer.sync()
        log.checkpoint()
        log = open_log(disk.after_kill(), settings=SETTINGS, boot_id="next")
        assert log.state.log_end_offset == first + 4, "what was fsynced is not cut at open"
    assert log.lead(4) == first
    assert log.state.durable_end <= first
    append(log, b"mine", epoch=4)
    assert (log.epochs.epoch_of(first - 1), log.epochs.epoch_of(first)) == (3, 4)
    assert values(log)[-1] == b"mine"
    check_log(log, disk if not is_durable else log.state.disk)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("part", [3, 4])
def test_a_follower_that_is_left_alone_cuts_a_group_of_which_it_has_a_part(
    leader: PartitionLog, part: int, is_opened: bool
) -> None:
    """All others were taken from it: with `is_sole_replica` it kept the part, and committed it as a group."""
    first = leader.state.log_end_offset
    append(leader, b"g", epoch=3, group=4)
    disk, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3, end=first + part)
    log.syncer.sync()
    log.state.advance_high_watermark(first)
    alone = replace(SETTINGS, is_sole_replica=True)
    if is_opened:
        log.checkpoint()
        log = open_log(disk.after_kill(), settings=alone, boot_id="next")
    log.remembered.update_settings(alone)
    assert log.lead(4) == (first if part < 4 else first + 4)
    append(log, b"mine", epoch=4)
    assert values(log)[-1] == b"mine"
    check_log(log, log.state.disk)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["", "rolled by age", "rolled and killed"])
@pytest.mark.parametrize("is_whole", [False, True])
def test_whoever_leads_cuts_a_group_that_has_outgrown_a_segment(leader: PartitionLog, how: str, is_whole: bool) -> None:
    """Half of it stayed, in the segment before, and was committed (once seed 102). One that is whole is kept."""
    first = leader.state.log_end_offset
    append(leader, bytes(3_000), epoch=3, group=4)
    disk, log = new_log()
    log.follow(3)
    for end in range(first + 1, first + (5 if is_whole else 4)):
        copy(leader, log, epoch=3, end=end)
        if how:
            assert log.roll_if_due(log.state.settings.segment_age_ms * 1_000)
        if how == "rolled and killed":
            log.checkpoint()
            disk = disk.after_kill()
            log = open_log(disk, settings=SETTINGS, boot_id=f"boot {end}")
            log.follow(3)
            assert log.state.log_end_offset == end
    rolled = [end for _, end in sealed_segments(log.state) if end > first]
    assert rolled == (list(range(first + 1, log.state.log_end_offset + 1)) if how else []), (
        "by size it rolls between groups"
    )
    assert log.lead(4) == (first + 4 if is_whole else first)
    append(log, b"mine", epoch=4)
    assert values(log)[-1] == b"mine"
    check_log(log, disk)


def test_whoever_leads_keeps_a_group_whose_rest_is_damaged_here(leader: PartitionLog) -> None:
    """Others may have all of it, committed, and would cut it to where this log ends (once seed 90)."""
    first = leader.state.log_end_offset
    append(leader, b"g", epoch=3, group=3)
    disk, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3)
    log.syncer.sync()
    log.checkpoint()
    with log.reader.read(first + 2, stored=True) as plan:
        [place] = plan.ranges
    disk.flip(place.path, 8 * (place.position + 96))
    log = open_log(disk.after_kill(), settings=SETTINGS, boot_id="next")
    assert log.state.lost_ranges == ((first + 2, first + 3),)
    assert log.lead(4) == first + 3
    assert log.epochs.end_of(3).end_offset == first + 3


def flip_in_header(disk: SimDisk, log: PartitionLog, first: int, field: str) -> None:
    """Another last digit of a field in the header of the batch that holds `first`."""
    at = VALUE_AT
    for name, digits in FIELDS.items():
        at += digits
        if name == field:
            break
    with log.reader.read(first, end=first + 1, stored=True) as plan:
        [place] = plan.ranges
    disk.flip(place.path, 8 * (place.position + at - 1))


@pytest.mark.parametrize("field", ["group_index", "group_count"])
def test_whoever_leads_believes_no_header_whose_batch_is_damaged(leader: PartitionLog, field: str) -> None:
    """It would cut a committed group that one flipped bit made look as if its rest were missing (once seed 1400)."""
    append(leader, b"g", epoch=3, group=2)
    end = leader.state.log_end_offset
    disk, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3)
    log.syncer.sync()
    flip_in_header(disk, log, end - 1, field)
    assert log.lead(4) == end
    assert log.state.lost_ranges == ((end - 1, end),)


def test_a_cut_at_a_lost_record_does_without_the_index_of_its_segment(leader: PartitionLog) -> None:
    """The index is gone when the cut comes: it is made anew before anything is taken back."""
    disk, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3)
    log.syncer.sync()
    flip_in_header(disk, log, 1, "group_count")
    log.close()
    log = open_log(disk, settings=SETTINGS)
    for name in [name for name in disk.listdir(FOLDER) if name.endswith(".index")]:
        disk.unlink(f"{FOLDER}/{name}")
    log.state.lost_ranges = ((1, 2),)
    log.follow(4)
    assert log.truncate(2) == 2
    assert log.state.lost_ranges == ((1, 2),)
    again = open_log(disk.after_kill(), settings=SETTINGS)
    assert (again.state.log_end_offset, again.state.lost_ranges) == (2, ((1, 2),))


def test_a_cut_anywhere_does_without_any_index() -> None:
    """A cut within a group goes back to its start. Where that begins a segment, the one before is the one that stays,
    and nobody had looked for its index: the cut failed half-way."""
    settings = LogSettings(segment_bytes=3_000, is_sole_replica=False)
    disk, log = new_log(settings=settings)
    for number in range(16):
        append(log, b"%d" % number, group=1 + number % 4)
    log.syncer.sync()
    ends = [0, *(end for _, end in groups_of(log))]
    borders = {segment.base_offset for segment in log.state.chain.segments}
    assert any(start in borders and start > 0 and end - start > 1 for start, end in groups_of(log))
    log.close()
    for to in range(ends[-1]):
        bare = disk.after_kill()
        again = open_log(bare, settings=settings)
        for name in [name for name in bare.listdir(FOLDER) if name.endswith(".index")]:
            bare.unlink(f"{FOLDER}/{name}")
        again.follow(3)
        expected = max(end for end in ends if end <= to)
        assert again.truncate(to) == expected
        assert open_log(bare.after_kill(), settings=settings).state.log_end_offset == expected


def test_epochs_are_not_derived_from_a_damaged_header(leader: PartitionLog) -> None:
    """A wrong epoch would tell followers to cut elsewhere."""
    disk, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3)
    log.syncer.sync()
    first, end = (leader.epochs.end_of(epoch).end_offset for epoch in (1, 2))
    flip_in_header(disk, log, first, "leader_epoch")
    log.close()
    disk.unlink(f"{FOLDER}/epochs")
    again = open_log(disk, settings=SETTINGS)
    assert [again.epochs.end_of(epoch).end_offset for epoch in (1, 2)] == [first + 1, end]  # one batch is none any more
    assert again.state.lost_ranges == ((first, first + 1),)


def test_a_group_that_goes_on_after_an_open_does_not_end_where_the_open_found_the_log_to_end(
    leader: PartitionLog,
) -> None:
    """The rule: a replica that leads then commits that group as a whole."""
    first = leader.state.log_end_offset
    append(leader, b"g", b"h", epoch=3, group=4)
    append(leader, b"next", epoch=3)
    disk, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3, end=first + 4)
    log.syncer.sync()
    log.checkpoint()
    log = open_log(disk.after_kill(), settings=SETTINGS, boot_id="next")
    assert log.state.log_end_offset == first + 4
    log.follow(3)
    copy(leader, log, epoch=3, end=first + 6)
    copy(leader, log, epoch=3)
    assert log.lead(4) == first + 9
    assert log.state.open_groups() == (0, (first + 8, first + 9))


def test_the_epoch_of_the_record_before_the_log_start_is_known_as_long_as_somebody_may_end_there() -> None:
    """All was let go of, and other epochs have begun since: a follower that ends there agrees, and is not reset."""
    _, log = new_log()
    log.lead(5)
    append(log, b"a", b"b", epoch=5)
    log.state.advance_high_watermark(log.syncer.sync())
    assert log.trim(2) == 2
    for epoch in (6, 7, 8):
        log.lead(epoch)
        append(log, b"%d" % epoch, epoch=epoch)
    log.syncer.sync()
    assert (log.state.log_start_offset, log.epochs.end_of(5), log.epochs.epoch_of(1)) == (2, (5, 2), 5)
    assert log.epochs.end_of(4) == (-1, 0)


# --- truncate, reset ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", range(17))
@pytest.mark.parametrize("how", ["", "durable", "sealed", "reopened"])
def test_a_truncated_log_is_the_beginning_of_what_it_was(leader: PartitionLog, to: int, how: str) -> None:
    """Also below the recovery point and the high watermark; it ends where a commit group ended."""
    disk, log = new_log(settings=replace(SETTINGS, segment_bytes=3_000))
    log.follow(3)
    copy(leader, log, epoch=3)
    whole = stored(log, 0)
    if how:
        log.state.advance_high_watermark(log.syncer.sync())
        log.checkpoint()
    if how == "sealed":
        log.roll_if_due(1 << 60)
    if how == "reopened":
        log.close()
        log = open_log(disk, settings=SETTINGS)
        log.follow(3)
    ends = [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16]
    expected = max(end for end in ends if end <= to)
    assert log.truncate(to) == expected == log.state.log_end_offset
    assert log.state.high_watermark <= expected
    assert log.state.durable_end <= expected
    assert stored(log, 0) == whole[: len(stored(log, 0))]
    assert log.epochs.latest == (leader.epochs.epoch_of(expected - 1) if expected else -1)
    check_log(log, disk)
    log.follow(9)
    again = open_log(disk.after_kill(), settings=SETTINGS)
    assert (again.state.log_end_offset, again.epochs.latest, again.state.lost_ranges) == (
        expected,
        log.epochs.latest,
        (),
    )
    copy(leader, log, epoch=9)
    assert stored(log, 0) == whole
    check_log(log, disk)
    assert values(log) == values(leader)


def test_a_truncation_lowers_everything_that_names_an_offset(leader: PartitionLog) -> None:
    disk, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3)
    log.state.advance_high_watermark(log.syncer.sync())
    log.checkpoint()
    save_clean_state(disk, FOLDER, CleanState(cleaned_to=14, horizons=((4, 10), (14, 20)), tombstones_to=9))
    log.state.lost_ranges = ((5, 6), (7, 12), (13, 14))
    before = Checkpoint.decode(disk.read_file(f"{FOLDER}/checkpoint"), where="")
    assert before is not None
    assert before.tail is not None
    assert before.tail.base_offset >= 8
    log.truncate(8)
    found = Checkpoint.decode(disk.read_file(f"{FOLDER}/checkpoint"), where="")
    assert found is not None
    assert (found.high_watermark, found.recovery_point) == (8, 8)
    assert (found.lost_ranges, log.state.lost_ranges) == (((5, 6), (7, 8)), ((5, 6), (7, 8)))
    assert found.tail is None
    assert load_clean_state(disk, FOLDER) == CleanState(cleaned_to=8, horizons=((4, 10), (8, 20)), tombstones_to=8)
    assert log.state.group_ends == []
    assert (log.state.high_watermark, log.state.durable_end, log.state.log_end_offset) == (8, 8, 8)


@pytest.mark.parametrize("how", ["kill", "lost", "close"])
def test_the_epochs_that_were_cut_do_not_come_back_behind_records_of_an_earlier_one(
    leader: PartitionLog, how: str
) -> None:
    """No epoch begins with what is appended after the cut, so their file is not written then."""
    disk, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3)
    log.syncer.sync()
    log.checkpoint()
    _, other = new_log()
    for number in range(12):
        append(other, b"%d" % number, epoch=1, group=1 + (number % 3 == 2))
    log.truncate(leader.epochs.end_of(1).end_offset)
    log.follow(4)
    copy(other, log, epoch=4)
    log.syncer.sync()
    if how == "close":
        log.close()
    again = open_log(disk.after_crash("lost") if how == "lost" else disk.after_kill(), settings=SETTINGS)
    assert again.state.log_end_offset == other.state.log_end_offset
    assert again.epochs.latest == 1
    assert {again.epochs.epoch_of(offset) for offset in range(again.state.log_end_offset)} == {1}


def test_a_state_file_goes_with_the_records_that_it_tells_of() -> None:
    """T5: what producers did above the cut is forgotten, what they did below is known, by the file that stays."""
    disk, log = new_log()
    for sequence in range(6):
        log.append([stamped([b"p"], 7, 0, sequence)], leader_epoch=1, now_us=0)
        log.state.advance_high_watermark(log.syncer.sync() if sequence < 3 else log.state.high_watermark)
        if sequence in (1, 4):
            log.roll_if_due(1 << 60)
    assert list_states(disk, FOLDER) == [5, 2]
    log.follow(2)
    assert log.truncate(4) == 4
    assert list_states(disk, FOLDER) == [2]
    log.lead(3)
    assert log.append([stamped([b"p"], 7, 0, 3)], leader_epoch=3, now_us=0).duplicate
    assert not log.append([stamped([b"p"], 7, 0, 4)], leader_epoch=3, now_us=0).duplicate
    for boot in ("boot-1", "next"):
        again = open_log(disk.after_kill(), settings=SETTINGS, boot_id=boot)
        assert again.append([stamped([b"p"], 7, 0, 4)], leader_epoch=3, now_us=0).duplicate


def test_where_no_state_file_is_below_the_cut_who_leads_tells_what_its_log_tells() -> None:
    """T6: until then it lacks one."""
    disk, log = new_log()
    for sequence in range(4):
        log.append([stamped([b"p"], 7, 0, sequence)], leader_epoch=1, now_us=0)
    log.state.advance_high_watermark(log.syncer.sync())
    log.roll_if_due(1 << 60)
    log.checkpoint()
    assert list_states(disk, FOLDER) == [4]
    log.follow(2)
    assert log.truncate(2) == 2
    assert list_states(disk, FOLDER) == []
    assert log.handover.lacks
    log.lead(3)
    assert list_states(disk, FOLDER) == [2]
    assert log.append([stamped([b"p"], 7, 0, 1)], leader_epoch=3, now_us=0).duplicate
    assert not log.append([stamped([b"p"], 7, 0, 2)], leader_epoch=3, now_us=0).duplicate


def test_a_cut_below_the_log_start_is_for_reset(leader: PartitionLog) -> None:
    _, log = new_log(settings=replace(SETTINGS, segment_bytes=2_000))
    log.follow(3)
    copy(leader, log, epoch=3)
    log.state.advance_high_watermark(log.syncer.sync())
    log.trim(6)
    before = stored(log, 6)
    with pytest.raises(OffsetOutOfRange):
        log.truncate(5)
    assert stored(log, 6) == before
    assert log.truncate(6) == 6
    assert log.state.log_start_offset == log.state.log_end_offset == 6


def test_a_cut_within_a_joined_batch_takes_all_of_it_and_lowers_the_mark() -> None:
    disk, log = joined_copy()
    assert [log.reader.batch_start(offset) for offset in (0, 1, 4, 5, 8, 10, 11)] == [0, 0, 0, 5, 5, 10, 11]
    save_clean_state(disk, FOLDER, CleanState(cleaned_to=9))
    assert log.state.compacted_to == 9
    assert log.truncate(8) == 5
    assert (log.state.log_end_offset, log.state.compacted_to) == (5, 5)
    assert load_clean_state(disk, FOLDER) == CleanState(cleaned_to=5)


def test_a_cut_within_a_joined_batch_that_holds_the_log_start_leaves_nothing() -> None:
    """Not even by a power cut: the log begins anew where it began."""
    disk, log = joined_copy()
    log.trim(2)
    assert log.truncate(3) == 2
    for found in (log, open_log(disk.after_crash("lost"), settings=SETTINGS)):
        assert (found.state.log_start_offset, found.state.log_end_offset, found.state.high_watermark) == (2, 2, 2)
    assert log.handover.lacks


def joined_copy() -> tuple[SimDisk, PartitionLog]:
    """Ten records in two batches."""
    disk, log = new_log(settings=replace(SETTINGS, segment_bytes=1 << 20))
    log.lead(1)
    for number in range(10):
        append(log, b"%d" % number)
    log.state.advance_high_watermark(log.syncer.sync())
    log.roll_if_due(1 << 60)
    wanted = CoalescingSettings(min_age_ms=0, segment_bytes=1 << 20, shape=BatchShape(batch_records=5))
    while coalesce(log, wanted, {}, now_us=1 << 50) is not None:
        pass
    log.follow(2)
    return disk, log


@pytest.mark.parametrize("to", [0, 5, 16, 40])
def test_a_reset_log_begins_anew_and_keeps_nothing(leader: PartitionLog, to: int) -> None:
    disk, log = new_log(settings=replace(SETTINGS, segment_bytes=2_000))
    leader.append([stamped([b"p"], 7, 0, 0)], leader_epoch=3, now_us=0)
    log.follow(3)
    copy(leader, log, epoch=3)
    log.state.advance_high_watermark(log.syncer.sync())
    log.checkpoint()
    save_clean_state(disk, FOLDER, CleanState(cleaned_to=9))
    log.reset(to, last_epoch=2)
    for found in (log, open_log(disk.after_kill(), settings=SETTINGS), open_log(disk.after_crash("lost"), boot_id="n")):
        assert (found.state.log_start_offset, found.state.high_watermark, found.state.log_end_offset) == (to, to, to)
        assert found.epochs.latest == (2 if to else -1)
        assert found.epochs.end_of(3) == ((2, to) if to else (-1, 0))
        assert found.state.lost_ranges == ()
        assert found.state.segment_count == 1
    assert load_clean_state(disk, FOLDER) == CleanState(superseded_to=0)
    assert list_states(disk, FOLDER) == []
    log.lead(4)
    assert list_states(disk, FOLDER) == [to]
    append(log, b"first", epoch=4)
    assert not log.append([stamped([b"p"], 7, 0, 0)], leader_epoch=4, now_us=0).duplicate
    assert values(log) == [b"first", b"p"]
    check_log(log, disk)


def test_readers_of_what_is_taken_back_get_an_answer_and_no_wrong_record(leader: PartitionLog) -> None:
    _, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3)
    log.state.advance_high_watermark(log.syncer.sync())
    view = log.state.view()
    log.truncate(6)
    copy(leader, log, epoch=3, end=8)
    views = [view]
    fresh = log.state.view
    log.state.view = lambda: views.pop() if views else fresh()  # type: ignore[method-assign]
    with pytest.raises(OffsetOutOfRange):
        log.reader.read(12)
    with log.reader.read(6, stored=True) as plan:
        assert plan.next_offset == 8


@pytest.mark.parametrize("call", ["write", "rename", "unlink", "open", "truncate", "sync", "sync_dir", "create"])
def test_a_truncation_that_fails_anywhere_leaves_the_log_as_it_was_or_shorter(leader: PartitionLog, call: str) -> None:
    for after in range(6):
        disk, log = new_log(settings=replace(SETTINGS, segment_bytes=3_000))
        log.follow(3)
        copy(leader, log, epoch=3)
        log.state.advance_high_watermark(log.syncer.sync())
        log.checkpoint()
        whole = stored(log, 0)
        disk.fail(call, errno.EIO, after=after)
        try:
            log.truncate(7)
        except StorageFailed:
            disk.heal()
            log.recover(0)
        disk.heal()
        end = log.state.log_end_offset
        assert end >= 6
        assert stored(log, 0) == whole[: len(stored(log, 0))]
        assert log.truncate(7) == 6
        copy(leader, log, epoch=3)
        assert stored(log, 0) == whole
        check_log(log, disk)
        check_log(open_log(disk.after_kill(), settings=SETTINGS), disk)


def test_a_failed_fsync_of_a_replica_among_others_cuts_what_is_not_durable(leader: PartitionLog) -> None:
    """Nothing is salvaged: others have it."""
    disk, log = new_log(settings=replace(SETTINGS, segment_bytes=1 << 20))
    log.follow(3)
    copy(leader, log, epoch=3, end=6)
    log.syncer.sync()
    copy(leader, log, epoch=3)
    log.state.advance_high_watermark(8)
    disk.fail("sync", errno.EIO, path=".arrows")
    with pytest.raises(StorageFailed):
        log.syncer.sync()
    log.recover(0)
    assert (log.state.log_end_offset, log.state.high_watermark, log.state.durable_end, log.state.lost_ranges) == (
        6,
        6,
        6,
        (),
    )
    copy(leader, log, epoch=3)
    assert stored(log, 0) == stored(leader, 0)
    check_log(log, disk)


def test_a_high_watermark_on_disk_proves_nothing_where_there_are_other_replicas(leader: PartitionLog) -> None:
    """Neither the checkpoint's nor a header's: beyond the recovery point the first gap cuts, and nothing is lost."""
    disk, log = new_log(settings=replace(SETTINGS, segment_bytes=1 << 20))
    log.follow(3)
    copy(leader, log, epoch=3, end=4)
    log.syncer.sync()
    copy(leader, log, epoch=3)
    log.state.advance_high_watermark(12)
    log.checkpoints.keep()
    path = f"{FOLDER}/{0:020d}.arrows"
    position = int(log.state.view().segments[0].index(disk).positions[5])  # type: ignore[union-attr]
    disk.flip(path, 8 * (position + 300))
    log = open_log(disk.after_crash("kept"), settings=SETTINGS, boot_id="next")
    assert log.state.log_end_offset < 12
    assert log.state.high_watermark == log.state.log_end_offset
    assert log.state.lost_ranges == ()


@pytest.mark.parametrize("damage", ["damaged", "missing"])
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_replica_without_its_checkpoint_says_so_at_each_open(
    leader: PartitionLog, damage: str, is_empty: bool
) -> None:
    """Seed 347 of the simulator: the process was killed after the first open, which had written a new checkpoint; the
    next one took the folder for sound, and served records that an answered trim had let go."""
    disk = leader.state.disk
    leader.state.advance_high_watermark(leader.syncer.sync())
    leader.checkpoint()
    path = f"{FOLDER}/{CHECKPOINT_FILE}"
    if damage == "damaged":
        disk.replace_file(path, bytes([disk.read_file(path)[0] ^ 1]) + disk.read_file(path)[1:])
    else:
        disk.unlink(path)
    for segment in list_segments(disk, FOLDER) if is_empty else ():
        segment.unlink(disk)
    files = {name: disk.read_file(f"{FOLDER}/{name}") for name in disk.listdir(FOLDER)}
    for _ in range(2):
        with pytest.raises(CorruptLog, match=f"the checkpoint is {damage}, so this replica begins anew"):
            open_log(disk, settings=SETTINGS)
        assert files == {name: disk.read_file(f"{FOLDER}/{name}") for name in disk.listdir(FOLDER)}
    if not is_empty:
        assert values(open_log(disk, settings=replace(SETTINGS, is_sole_replica=True)))


@pytest.mark.parametrize("at", range(1, 40, 2))
def test_a_truncation_under_a_pass_of_compaction_ends_it(at: int) -> None:
    """`compaction.Q5`: at whichever piece that it reads or writes. Else a record would be left out for the sake of a
    newer one that is gone, and the mark raised again."""
    disk, log = new_log(settings=replace(SETTINGS, segment_bytes=1_500))
    for number in range(8):
        log.append([keyed_batch([(b"k", b"%d" % number)])], leader_epoch=1, now_us=0)
    log.roll_if_due(1 << 60)
    log.state.advance_high_watermark(log.syncer.sync())
    log.follow(2)
    calls: list[int] = []
    then: list[bytes] = []

    def throttle(size: int) -> None:
        calls.append(size)
        if len(calls) == at:
            assert log.truncate(5) == 5
            then.append(stored(log, 0))

    wanted = CompactionSettings(min_cleanable_dirty_percent=0, min_compaction_lag_ms=0)
    report = compact(log, wanted, map_bytes=1 << 12, now_us=1 << 50, throttle=throttle)
    if then:
        assert report is not None
        assert report.uncleanable
        assert stored(log, 0) == then[0]
        assert load_clean_state(disk, FOLDER) == CleanState()
    check_compacted(log)


def test_what_was_taken_back_is_no_repeat_also_when_the_log_is_as_long_again() -> None:
    """The tables tell of records below the log end; others may have taken their offsets."""
    (_, log), (_, other) = new_log(), new_log()
    log.lead(1)
    append(log, b"both")
    assert not log.append([stamped([b"lost"], 1, 0, 0)], leader_epoch=1, now_us=0).duplicate
    other.follow(1)
    copy(log, other, epoch=1, end=1)
    other.lead(2)
    append(other, b"instead", epoch=2)
    log.follow(2)
    log.truncate(1)
    copy(other, log, epoch=2)
    log.lead(3)
    again = log.append([stamped([b"lost"], 1, 0, 0)], leader_epoch=3, now_us=0)
    assert (again.first_offset, again.duplicate) == (2, False)
    assert values(log) == [b"both", b"instead", b"lost"]


# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 6, 12])
@pytest.mark.parametrize("has_replicas", [True, False])
def test_where_there_are_other_replicas_no_read_goes_past_what_is_damaged(number: int, has_replicas: bool) -> None:
    """In a header: the index cannot say what stood there, so the segment is scanned anew (once seed 792)."""
    disk = SimDisk()
    log = create_log(disk, settings=replace(SETTINGS, is_sole_replica=not has_replicas))
    for each in range(13):
        append(log, b"%d" % each)
    log.state.advance_high_watermark(log.syncer.sync())
    with log.reader.read(number, end=number + 1) as plan:
        [place] = plan.ranges
    disk.names[place.path].content[place.position + 96] ^= 1
    found = []
    at = 0
    with suppress(CorruptLog):
        while at < log.state.log_end_offset:
            with log.reader.read(at, max_bytes=1, stored=True) as plan:
                found += [offset for offset, *_ in sent_records(plan)]
                assert plan.next_offset > at
                at = plan.next_offset
    before, after = list(range(number)), list(range(number + 1, 13))
    assert (found, at) == ((before, number) if has_replicas else (before + after, 13))
    assert log.state.lost_ranges == ((number, number + 1),)


# --- state files ----------------------------------------------------------------------------------------------------


def ahead_of_its_commits() -> tuple[SimDisk, PartitionLog]:
    """A follower whose newest state file tells of records that are not committed, and may be taken back."""
    minding = replace(SETTINGS, dedup_window_ms=1_000)
    _, leader = new_log()
    leader.append([stamped([b"first" * 100] * 3, 7, 0, 0)], leader_epoch=1, now_us=0)
    for number in range(40):
        append(leader, b"%d" % number * 100)
    disk, log = new_log(settings=minding)
    log.follow(1)
    copy(leader, log, epoch=1)
    log.state.advance_high_watermark(30)
    log.checkpoint()
    assert list_states(disk, FOLDER)[0] > 30
    return disk, log


@pytest.mark.parametrize("restarts", [False, True])
def test_retention_and_a_truncation_leave_no_gap_in_what_is_told_of_producers(restarts: bool) -> None:
    """The state file above the cut goes; one that told of the segments that are gone was there before they went."""
    disk, log = ahead_of_its_commits()
    before = log.state.segment_count
    assert log.trim(25) == 25
    assert log.state.segment_count < before
    log.truncate(31)
    if restarts:
        log.close()
        log = open_log(disk, settings=SETTINGS)
    log.lead(2)
    again = log.append([stamped([b"first" * 100] * 3, 7, 0, 0)], leader_epoch=2, now_us=0)
    assert (again.duplicate, again.first_offset, again.next_offset) == (True, 0, 3)


def test_only_what_a_committed_state_file_tells_may_be_compacted_away() -> None:
    """After a truncation the newest file may be gone, and ids are read from the older one and the log above it."""
    _, log = ahead_of_its_commits()
    assert log.remembered.rewritable_end() == 0
    log.state.advance_high_watermark(log.state.log_end_offset)
    assert log.remembered.rewritable_end() == log.state.log_end_offset


@pytest.mark.parametrize("asked", [3, 5])
def test_what_a_leader_of_another_epoch_has_sent_is_not_appended(leader: PartitionLog, asked: int) -> None:
    """It was asked for before the log began to follow this one: the logs may part below."""
    _, log = new_log()
    log.follow(3)
    copy(leader, log, epoch=3, end=6)
    log.follow(4)
    with pytest.raises(NotLeader):
        copy(leader, log, epoch=asked)
    assert log.state.log_end_offset == 6
    copy(leader, log, epoch=4)
    assert log.state.log_end_offset == leader.state.log_end_offset
