"""Goal: what was taken back stays away, also where an interrupted join has left segments that the log does not know.

Method: a join whose new file is in its place while some of the old ones are still there, as in `joining`, step 4; the
new file is damaged, or not; then records are taken back, and the folder is opened again, here and after a kill.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.api.errors import StorageFailed
from broker.storage.log import PartitionLog
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.rewriting import BatchShape
from tests.support.logs import FOLDER, Record, commit, open_log, verified_records
from tests.support.simdisk import SimDisk
from tests.unit.storage.test_coalescing import LARGE, NOW_US, trickled

SETTINGS = replace(LARGE, is_sole_replica=False)
LAST = f"{FOLDER}/{60:020d}.arrows"


def interrupted(left: int) -> tuple[SimDisk, PartitionLog, list[Record]]:
    """The join of [0, 80) in batches of 30. It stopped at the removal of the segment that begins at `left`."""
    disk = SimDisk()
    log = trickled(20, segments=4, disk=disk, settings=SETTINGS)
    records = verified_records(log)
    disk.fail("unlink", errno.EIO, path=f"{left:020d}.arrows")
    shape = BatchShape(batch_records=30)
    with pytest.raises(StorageFailed):
        coalesce(log, CoalescingSettings(min_age_ms=0, segment_bytes=1 << 20, shape=shape), {}, now_us=NOW_US)
    disk.heal()
    assert log.state.segment_count == 1
    assert LAST in disk.names
    log.follow(2)
    return disk, log, records


def damaged(disk: SimDisk, byte: int) -> None:
    disk.flip(f"{FOLDER}/{0:020d}.arrows", 8 * byte)


def taken_back(log: PartitionLog, take_back: Callable[[PartitionLog], object]) -> None:
    """As a follower does it: a log that has failed is recovered first."""
    try:
        take_back(log)
    except StorageFailed:
        log.recover(0)
        take_back(log)


@pytest.mark.parametrize("byte", [600, 4_500], ids=["first batch", "second batch"])
@pytest.mark.parametrize("left", [20, 40, 60])
@pytest.mark.parametrize("to", [10, 30, 45, 70])
def test_a_truncation_beside_the_leftovers_of_a_damaged_join_leaves_nothing_behind_the_cut(
    left: int, byte: int, to: int
) -> None:
    disk, log, records = interrupted(left)
    damaged(disk, byte)
    taken_back(log, lambda log: log.truncate(to))
    end = log.state.log_end_offset
    assert end <= to
    for found in (disk.after_kill(), disk.after_crash("lost")):
        again = open_log(found, settings=SETTINGS)
        assert again.state.log_end_offset == end
        commit(again)
        kept = verified_records(again)
        lost = {at for start, stop in again.state.lost_ranges for at in range(start, stop)}
        assert kept == [record for record in records[:end] if record[0] not in lost]


@pytest.mark.parametrize("byte", [600, 4_500], ids=["first batch", "second batch"])
@pytest.mark.parametrize("to", [0, 50, 60])
def test_a_reset_beside_the_leftovers_of_a_damaged_join_leaves_nothing(byte: int, to: int) -> None:
    disk, log, _ = interrupted(40)
    damaged(disk, byte)
    taken_back(log, lambda log: log.reset(to))
    for found in (disk.after_kill(), disk.after_crash("lost")):
        again = open_log(found, settings=SETTINGS)
        assert (again.state.log_start_offset, again.state.log_end_offset, again.state.lost_ranges) == (to, to, ())


@pytest.mark.parametrize("to", [0, 10, 30, 45, 70])
def test_the_leftovers_of_a_join_that_is_whole_are_no_obstacle(to: int) -> None:
    disk, log, records = interrupted(40)
    end = log.truncate(to)
    again = open_log(disk.after_kill(), settings=SETTINGS)
    assert (again.state.log_end_offset, again.state.lost_ranges) == (end, ())
    commit(again)
    assert verified_records(again) == records[:end]
