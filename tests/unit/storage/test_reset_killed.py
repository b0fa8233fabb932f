"""Goal: a reset that a kill or a power cut ends between any two steps never leaves records under an epoch that is not
theirs: the new leader would be told that both logs agree, and keep what nobody has committed.

Method: a follower's log on a fake disk holds what a leader of epoch 5 appended alone. It is reset to where the present
leader's log starts, which has epoch 7 before that; the disk crashes at each changing call, and the log is opened anew.
"""

from __future__ import annotations

import errno

import pytest

from broker.api.batch import read_header
from broker.api.errors import StorageFailed
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import first_short
from tests.support.logs import commit, create_log, open_log, read_records, row_batch
from tests.support.simdisk import Crashed, SimDisk

SETTINGS = LogSettings(segment_bytes=3_000, is_sole_replica=False)
RECORDS, TO = 16, 8


def prepared() -> tuple[SimDisk, PartitionLog]:
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    for number in range(RECORDS):
        log.append([row_batch([b"old-%d" % number])], leader_epoch=5, now_us=0)
    log.syncer.sync()
    log.state.advance_high_watermark(4)
    log.checkpoint()
    log.follow(8)
    assert log.state.segment_count > 3
    return disk, log


def steps() -> int:
    disk, log = prepared()
    before = disk.steps
    log.reset(TO, last_epoch=7)
    return disk.steps - before


@pytest.mark.parametrize("mode", first_short(["lost", "killed", "reordered"]))
def test_what_is_left_of_the_old_log_has_its_own_epoch(mode: str) -> None:
    seen = set()
    for step in range(1, steps() + 1):
        disk, log = prepared()
        disk.crash_at = disk.steps + step
        with pytest.raises(Crashed):
            log.reset(TO, last_epoch=7)
        left = disk.after_kill() if mode == "killed" else disk.after_crash(mode, seed=step)
        found = open_log(left, settings=SETTINGS, boot_id="next")
        stored = [
            read_header(message) for message in found.reader.messages(found.state.log_start_offset, None, whole=True)
        ]
        seen.add((found.state.log_start_offset, bool(stored)))
        for header in stored:
            assert found.epochs.epoch_of(header.first_offset) == header.leader_epoch == 5, f"step {step}"
        if stored:
            # The core of a follower asks with these, and cuts by them.
            assert found.epochs.latest == 5, f"step {step}"
            assert found.epochs.end_of(7) == (5, found.state.log_end_offset), f"step {step}"
    assert {(0, True), (TO, True), (TO, False)} <= seen


@pytest.mark.parametrize("to", [TO, 2 * RECORDS])
@pytest.mark.parametrize("is_killed", [True, False])
def test_a_reset_that_failed_takes_nothing_from_a_log_that_goes_on(to: int, is_killed: bool) -> None:
    """Say, an operator chooses it. Its file says that the log starts where the reset was to."""
    disk, log = prepared()
    disk.fail("sync_dir", errno.EIO, after=1)  # the first one is of the state files
    with pytest.raises(StorageFailed):
        log.reset(to, last_epoch=7)
    log.recover(0)
    log.lead(9)
    log.append([row_batch([b"new"])], leader_epoch=9, now_us=0)
    commit(log)
    log.close(clean=not is_killed)
    found = open_log(disk.after_kill(), settings=SETTINGS)
    commit(found)
    assert found.state.log_start_offset == 0
    assert [offset for offset, _, _ in read_records(found, 0)] == [*range(RECORDS + 1)]


def test_a_reset_that_may_have_been_made_is_not_recovered_from_before_its_file_says_so() -> None:
    disk, log = prepared()
    disk.fail("sync_dir", errno.EIO, after=1, times=2)
    with pytest.raises(StorageFailed):
        log.reset(TO, last_epoch=7)
    with pytest.raises(StorageFailed):
        log.recover(0)
    with pytest.raises(StorageFailed):
        log.lead(9)
    log.recover(0)
    assert open_log(disk.after_kill(), settings=SETTINGS).state.log_start_offset == 0


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_reset_does_without_a_new_file_of_epochs(error: int, is_clean: bool) -> None:
    """On a full disk it makes room. The log went on before, with a file that said where the reset was to: what was
    appended below was not there after a kill. The old file would tell other epochs of the new records."""
    disk, log = prepared()
    log.lead(8)
    log.append([row_batch([b"of another leader"])], leader_epoch=8, now_us=0)
    log.syncer.sync()
    log.follow(9)
    disk.fail("write", error, path="epochs")
    log.reset(TO, last_epoch=8)
    assert (log.state.log_start_offset, log.state.log_end_offset, log.epochs.latest) == (TO, TO, 8)
    found = open_log(disk.after_kill(), settings=SETTINGS)
    assert (found.state.log_start_offset, found.state.log_end_offset, found.epochs.latest) == (TO, TO, -1)
    leader = create_log(SimDisk(), settings=SETTINGS)
    leader.reset(TO, last_epoch=8)
    leader.lead(8)
    for _ in range(RECORDS):
        leader.append([row_batch([b"new"])], leader_epoch=8, now_us=0)
    log.append_stored(b"".join(leader.reader.messages(TO, None, whole=True)), leader_epoch=9, now_us=0)
    commit(log)
    log.close(clean=is_clean)
    found = open_log(disk.after_kill(), settings=SETTINGS)
    assert {found.epochs.epoch_of(offset) for offset in range(TO, TO + RECORDS)} == {8}
    assert found.epochs.end_of(5) == (-1, TO)
