"""Goal: a truncation that a kill ends between any two steps is over once the next process has appended: a power cut
after that brings nothing back.

Method: a follower's log on a fake disk is killed at each changing call of a truncation, opened by the next process,
and goes on, as a leader or as a follower; then the power goes.
"""

from __future__ import annotations

import pytest

from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import first_short
from tests.support.logs import create_log, open_log, row_batch, verified_records
from tests.support.simdisk import Crashed, SimDisk

SETTINGS = LogSettings(segment_bytes=3_000, is_sole_replica=False)
RECORDS = 16
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("to", first_short([3, 10])),
    pytest.mark.parametrize("mode", first_short(["lost", "reordered"])),
]


def prepared() -> tuple[SimDisk, PartitionLog]:
    """Sixteen durable records of two epochs in several segments, below a checkpoint."""
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    for number in range(RECORDS):
        log.append([row_batch([b"old-%d" % number])], leader_epoch=1 + number // 8, now_us=0)
    log.state.advance_high_watermark(log.syncer.sync())
    log.checkpoint()
    log.follow(3)
    assert log.state.segment_count > 3
    return disk, log


def steps_of(to: int) -> int:
    disk, log = prepared()
    before = disk.steps
    log.truncate(to)
    return disk.steps - before


def killed(to: int, step: int) -> PartitionLog:
    """The log of the next process, after a kill at that step."""
    disk, log = prepared()
    disk.crash_at = disk.steps + step
    with pytest.raises(Crashed):
        log.truncate(to)
    found = open_log(disk.after_kill(), settings=SETTINGS)
    assert to <= found.state.log_end_offset <= RECORDS
    return found


def told(log: PartitionLog) -> list[tuple[bytes, int]]:
    """The values, each with its leader epoch."""
    log.state.advance_high_watermark(log.state.durable_end)
    return [(value, log.epochs.epoch_of(offset)) for offset, _, value in verified_records(log)]


def after_power(log: PartitionLog, mode: str, seed: int) -> PartitionLog:
    disk = log.state.disk
    assert isinstance(disk, SimDisk)
    found = open_log(disk.after_crash(mode, seed=seed), settings=SETTINGS, boot_id="next")
    assert found.state.lost_ranges == ()
    return found


def test_what_is_appended_after_it_is_what_a_power_cut_leaves(to: int, mode: str) -> None:
    for step in range(1, steps_of(to) + 1):
        log = killed(to, step)
        kept = [(b"old-%d" % number, 1 + number // 8) for number in range(log.state.log_end_offset)]
        added = [(b"new-%d" % number, 9) for number in range(1 + step % 6)]  # few stay in one segment
        log.lead(9)
        for value, _ in added:
            log.append([row_batch([value])], leader_epoch=9, now_us=0)
        log.syncer.sync()
        assert told(after_power(log, mode, step)) == kept + added, f"step {step}"


def test_before_that_a_power_cut_leaves_the_log_as_it_was_or_shorter(to: int, mode: str) -> None:
    for step in range(1, steps_of(to) + 1):
        found = after_power(killed(to, step), mode, step)
        assert to <= found.state.log_end_offset <= RECORDS
        old = [(b"old-%d" % number, 1 + number // 8) for number in range(found.state.log_end_offset)]
        assert told(found) == old, f"step {step}"
