"""What `sync` of a log promises, and what a sync that failed leaves: G1 to G3.

Method: real logs on the fake disk, whose sync fails, or lets others append while it is under way.
"""

from __future__ import annotations

import errno

import pytest

from broker.api.errors import DiskFull, LiftlogError, StorageFailed
from broker.storage.log import PartitionLog
from tests.support.logs import create_log, open_log, row_batch, verified_records
from tests.support.simdisk import SimDisk, SimFile


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


def append(log: PartitionLog, value: bytes = b"x") -> None:
    log.append([row_batch([value])], leader_epoch=1, now_us=0)


def values(log: PartitionLog) -> list[bytes]:
    log.advance_high_watermark(log.durable_end)
    return [value for _, _, value in verified_records(log)]


def test_what_is_appended_while_it_is_under_way_is_not_said_to_be_durable(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1."""
    log, plain = create_log(disk), SimFile.sync
    append(log)

    def sync(file: SimFile) -> None:
        plain(file)
        append(log, b"late")

    monkeypatch.setattr(SimFile, "sync", sync)
    assert log.sync() == log.durable_end == 1
    assert log.log_end_offset == 2
    assert values(open_log(disk.after_crash("lost"))) == [b"x"]


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, StorageFailed), (errno.ENOSPC, DiskFull)])
def test_a_sync_that_failed_fails_the_log_until_it_has_recovered(
    disk: SimDisk, number: int, error: type[LiftlogError]
) -> None:
    """G2: the next fsync says that all is well, and the record is not on the disk."""
    log = create_log(disk)
    append(log)
    disk.fail("sync", number, path=".arrows")
    for _ in range(2):
        with pytest.raises(error):
            log.sync()
    with pytest.raises(error):
        append(log)
    assert log.durable_end == 0
    assert values(open_log(disk.after_crash("lost"))) == []
    log.recover(now_us=0)
    append(log, b"y")
    assert log.sync() == 2
    assert values(open_log(disk.after_crash("lost"))) == [b"x", b"y"]


def roll_in_vain(log: PartitionLog, disk: SimDisk) -> None:
    disk.fail("sync", errno.EIO, path=log.folder)
    with pytest.raises(StorageFailed):
        log.roll_if_due(1 << 60)


def check_it_comes_back(log: PartitionLog, disk: SimDisk) -> None:
    assert log.durable_end == 0
    log.recover(0)
    assert log.sync() == 1
    assert values(open_log(disk.after_crash("lost"))) == [b"x"]


def test_a_sync_beside_a_roll_that_got_the_error_does_not_say_that_all_is_well(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3."""
    log, plain, rolls = create_log(disk), SimFile.sync, [roll_in_vain]
    append(log)

    def sync(file: SimFile) -> None:
        if rolls:
            rolls.pop()(log, disk)
        plain(file)

    monkeypatch.setattr(SimFile, "sync", sync)
    with pytest.raises(StorageFailed):
        log.sync()
    check_it_comes_back(log, disk)
