"""Goal: a reset that a kill or a power cut ends between any two steps never leaves records under an epoch that is not
theirs: the new leader would be told that both logs agree, and keep what nobody has committed.

Method: a follower's log on a fake disk holds what a leader of epoch 5 appended alone. It is reset to where the present
leader's log starts, which has epoch 7 before that; the disk crashes at each changing call, and the log is opened anew.
"""

from __future__ import annotations

import pytest

from broker.api.batch import read_header
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.logs import create_log, open_log, row_batch
from tests.support.simdisk import Crashed, SimDisk

SETTINGS = LogSettings(segment_bytes=3_000, is_sole_replica=False)
RECORDS, TO = 16, 8


def prepared() -> tuple[SimDisk, PartitionLog]:
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    for number in range(RECORDS):
        log.append([row_batch([b"old-%d" % number])], leader_epoch=5, now_us=0)
    log.sync()
    log.advance_high_watermark(4)
    log.checkpoint()
    log.follow(8)
    assert log.segment_count > 3
    return disk, log


def steps() -> int:
    disk, log = prepared()
    before = disk.steps
    log.reset(TO, last_epoch=7)
    return disk.steps - before


@pytest.mark.parametrize("mode", ["killed", "lost", "reordered"])
def test_what_is_left_of_the_old_log_has_its_own_epoch(mode: str) -> None:
    seen = set()
    for step in range(1, steps() + 1):
        disk, log = prepared()
        disk.crash_at = disk.steps + step
        with pytest.raises(Crashed):
            log.reset(TO, last_epoch=7)
        left = disk.after_kill() if mode == "killed" else disk.after_crash(mode, seed=step)
        found = open_log(left, settings=SETTINGS, boot_id="next")
        stored = [read_header(message) for message in found.log.messages(found.log_start_offset, None, whole=True)]
        seen.add((found.log_start_offset, bool(stored)))
        for header in stored:
            assert found.epoch_of(header.first_offset) == header.leader_epoch == 5, f"step {step}"
        if stored:
            # The core of a follower asks with these, and cuts by them.
            assert found.leader_epoch == 5, f"step {step}"
            assert found.end_of_epoch(7) == (5, found.log_end_offset), f"step {step}"
    assert {(0, True), (TO, True), (TO, False)} <= seen
