"""Goal: a message that waited for the disk has its whole window (`memory.M4`).

A soak found it (seed 7, on a busy machine): a repeat that was read within the window, and appended after it, was stored
once more, because the table had been read anew in between.
"""

from __future__ import annotations

import errno

import pytest

from broker.api.errors import StorageFailed
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.logs import create_log, open_log
from tests.support.published import batch_from_nats, with_id
from tests.support.simdisk import SimDisk

WINDOW_MS = 1_000
SETTINGS = LogSettings(dedup_window_ms=WINDOW_MS, segment_age_ms=WINDOW_MS)
SECOND_US = 1_000_000


def stored(log: PartitionLog, text: str, *, read_us: int, now_us: int) -> int:
    """How many records came of a message with this id."""
    before = log.state.log_end_offset
    log.append([batch_from_nats([(b"x", with_id(text))], read_us)], leader_epoch=0, now_us=now_us)
    return log.state.log_end_offset - before


@pytest.mark.parametrize("how", ["recover", "kill", "close", "roll and kill"])
def test_a_repeat_that_waited_is_known_when_the_table_was_read_anew(how: str) -> None:
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    first_us, repeat_us, late_us = 10 * SECOND_US, int(10.9 * SECOND_US), 14 * SECOND_US
    assert stored(log, "a", read_us=first_us, now_us=first_us) == 1
    log.syncer.sync()
    if how == "recover":
        disk.fail("sync", errno.EIO)
        assert stored(log, "b", read_us=repeat_us, now_us=repeat_us) == 1
        with pytest.raises(StorageFailed):
            log.syncer.sync()
        log.recover(late_us)
    elif how == "close":
        assert stored(log, "b", read_us=repeat_us, now_us=late_us) == 1  # the state file is written by that clock
        log.close()
        log = open_log(disk, settings=SETTINGS, now_us=late_us)
    else:
        if how == "roll and kill":
            assert log.roll_if_due(late_us)
        log = open_log(disk.after_kill(), settings=SETTINGS, now_us=late_us)
    assert stored(log, "a", read_us=repeat_us, now_us=late_us) == 0
    if "kill" in how:  # no checkpoint says since when it is there
        assert stored(log, "a", read_us=late_us, now_us=late_us) == 0
        late_us += WINDOW_MS * 1_000
    assert stored(log, "a", read_us=late_us, now_us=late_us) == 1, "and no longer than that"
