"""Messages in turn are those of the log: over segments, over what is damaged, and when the disk fails."""

from __future__ import annotations

import errno

import pytest

from broker.api.batch import read_header
from broker.api.errors import OffsetOutOfRange, StorageFailed
from broker.storage.log import PartitionLog
from tests.support.logs import commit, create_log, row_batch
from tests.support.simdisk import SimDisk
from tests.unit.storage.test_scrub import flip_batch

SIZES = (5, 400, 1, 90, 2_000, 7)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> PartitionLog:
    """Two segments of six batches of different lengths, two records each."""
    log = create_log(disk)
    for number in range(2):
        for size in SIZES:
            log.append([row_batch([b"v" * size] * 2)], leader_epoch=1, now_us=0)
        commit(log)
        if number == 0:
            assert log.roll_if_due(1 << 60)
    return log


def in_turn(log: PartitionLog, start: int, end: int) -> list[bytes]:
    found = []
    for header, message in log.reader.batches_in_turn(start, end):
        assert header == read_header(message)
        found.append(bytes(message))
        message[:] = bytes(len(message))  # it is ours until the next one comes
    return found


@pytest.mark.parametrize("start,end", [(0, 24), (3, 5), (10, 15), (12, 12), (24, 24)])
def test_they_are_the_messages_of_the_log(log: PartitionLog, disk: SimDisk, start: int, end: int) -> None:
    assert in_turn(log, start, end) == [bytes(message) for message in log.reader.batches(start, end)]
    assert disk.open_files == 1, "the tail's own"


def test_they_share_their_memory(log: PartitionLog) -> None:
    longest = max(len(message) for message in log.reader.batches(0))
    memory = {len(message.obj) for _, message in log.reader.batches_in_turn(0, 24) if len(message) == longest}
    assert memory == {longest}
    blocks = [message.obj for _, message in log.reader.batches_in_turn(8, 20)]
    assert all(block is blocks[0] for block in blocks)


@pytest.mark.parametrize("offset", [0, 8, 22])
def test_a_damaged_one_does_not_come_and_is_noted(disk: SimDisk, log: PartitionLog, offset: int) -> None:
    whole = in_turn(log, 0, 24)
    flip_batch(disk, log, offset)
    assert in_turn(log, 0, 24) == [message for message in whole if read_header(message).first_offset != offset]
    assert log.state.lost_ranges == ((offset, offset + 2),)


def test_a_length_that_rotted_is_damage(disk: SimDisk, log: PartitionLog) -> None:
    whole = in_turn(log, 0, 24)
    segment = log.state.view().segments[0]
    position = int(log.state.view().index(segment).positions[2])
    for bit in (3, 29):  # a little longer than it is, and longer than the file
        disk.flip(segment.path, (position + 48) * 8 + bit)
        assert in_turn(log, 0, 24) == whole[:2] + whole[3:]


def test_who_stops_early_leaves_no_file_open(disk: SimDisk, log: PartitionLog) -> None:
    turns = log.reader.batches_in_turn(0, 24)
    next(turns)
    del turns
    assert disk.open_files == 1


def test_a_disk_that_cannot_read_is_said_to_fail(disk: SimDisk, log: PartitionLog) -> None:
    turns = log.reader.batches_in_turn(0, 24)
    next(turns)
    disk.fail("pread", errno.EIO, path=".arrows")
    with pytest.raises(StorageFailed, match="read"):
        next(turns)
    assert log.state.failure is None


def test_what_is_not_there_is_refused(log: PartitionLog) -> None:
    with pytest.raises(OffsetOutOfRange):
        next(log.reader.batches_in_turn(25, 30))
