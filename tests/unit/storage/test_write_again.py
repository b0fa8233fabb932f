"""Goal: what a failed fsync left in the page cache is given to the disk again, verified, and is never nowhere.

Replication factor 1 only. Method: the fake disk, whose failed fsync leaves pages that look clean and are not on the
plates. Bytes of those pages change, as when the system drops them and reads the disk; the process is killed, or the
power goes, at every step of the recovery.
"""

from __future__ import annotations

import errno
import itertools
from contextlib import suppress
from typing import Any

import pytest

from broker.api.errors import StorageFailed
from broker.storage import opening
from broker.storage.log import PartitionLog
from broker.storage.recovery import RecoveredLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.logs import check_log, commit, create_log, open_log, row_batch, verified_records
from tests.support.simdisk import MODES, Crashed, Mode, SimDisk

SETTINGS = LogSettings()


def append(log: PartitionLog, *values: bytes) -> None:
    log.append([row_batch([value]) for value in values], leader_epoch=1, now_us=0)


def values(log: PartitionLog) -> list[bytes]:
    return [value for _, _, value in verified_records(log)]


def failed_log(*, durable: int, visible: int, runs_ahead: bool = False) -> tuple[SimDisk, PartitionLog]:
    """A log of five groups (the last of two batches), of which so many records are durable and visible; its fsync has
    just failed."""
    disk = SimDisk(runs_ahead=runs_ahead)
    log = create_log(disk, settings=SETTINGS)
    for number in range(durable):
        append(log, b"%d" % number)
    if durable:
        commit(log)
        log.checkpoint()
    for number in range(durable, 4):
        append(log, b"%d" % number)
    append(log, b"4", b"5")
    log.state.advance_high_watermark(visible)
    disk.fail("sync", errno.EIO, path=".arrows")
    with pytest.raises(StorageFailed):
        log.syncer.sync()
    return disk, log


def position_of(log: PartitionLog, number: int) -> tuple[str, int]:
    segment = log.state.view().segments[-1]
    index = segment.index(log.state.disk)
    assert index is not None
    return segment.path, int(index.positions[number])


@pytest.mark.parametrize("durable", [0, 2])
@pytest.mark.parametrize("changed", [2, 3, 4, 5])
def test_what_the_page_cache_has_lost_is_stopped_off_where_nobody_saw_it(durable: int, changed: int) -> None:
    disk, log = failed_log(durable=durable, visible=durable)
    path, position = position_of(log, changed)
    disk.flip(path, 8 * (position + 900))
    log.recover(0)
    end = min(changed, 4)  # the group of two goes as a whole
    assert (log.state.log_end_offset, log.state.durable_end, log.state.lost_ranges) == (end, end, ())
    append(log, b"more")
    commit(log)
    assert values(log) == [b"%d" % number for number in range(end)] + [b"more"]
    check_log(log, disk)
    log = open_log(disk.after_crash("lost"), boot_id="next")
    commit(log)
    assert values(log) == [b"%d" % number for number in range(end)] + [b"more"]


@pytest.mark.parametrize("durable", [0, 2])
def test_what_it_has_lost_and_somebody_saw_is_told_as_lost_and_its_offset_is_not_used_again(durable: int) -> None:
    """As with `fsync = interval`: what was appended is visible at once."""
    disk, log = failed_log(durable=durable, visible=6)
    path, position = position_of(log, 3)
    disk.flip(path, 8 * (position + 900))
    log.recover(0)
    assert (log.state.log_end_offset, log.state.lost_ranges) == (6, ((3, 4),))
    append(log, b"more")
    commit(log)
    assert values(log) == [b"0", b"1", b"2", b"4", b"5", b"more"]
    log = open_log(disk.after_crash("lost"), boot_id="next")
    commit(log)
    assert values(log) == [b"0", b"1", b"2", b"4", b"5", b"more"]
    assert log.state.lost_ranges == ((3, 4),)


@pytest.mark.parametrize("runs_ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("durable", [0, 2])
def test_a_kill_at_any_step_of_the_recovery_leaves_what_was_visible(durable: int, runs_ahead: bool) -> None:
    for step in itertools.count(1):
        disk, log = failed_log(durable=durable, visible=6, runs_ahead=runs_ahead)
        disk.crash_at = disk.steps + step
        try:
            log.recover(0)
        except Crashed:
            pass
        else:
            break
        after = disk.after_kill()
        log = open_log(after)
        assert log.state.log_end_offset == 6, f"step {step}"
        append(log, b"more")
        commit(log)
        assert values(log) == [b"0", b"1", b"2", b"3", b"4", b"5", b"more"], f"step {step}"
        assert log.state.lost_ranges == ()
        check_log(log, after)
    assert step > 8


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("durable", [0, 2])
def test_a_power_cut_at_any_step_of_the_recovery_leaves_what_was_durable(durable: int, mode: Mode) -> None:
    for step in itertools.count(1):
        disk, log = failed_log(durable=durable, visible=durable)
        disk.crash_at = disk.steps + step
        try:
            log.recover(0)
        except Crashed:
            pass
        else:
            break
        after = disk.after_crash(mode, seed=step)
        log = open_log(after, boot_id="next")
        assert log.state.lost_ranges == (), f"step {step}"
        assert log.state.log_end_offset in (*range(durable, 5), 6), f"step {step}"
        end = log.state.log_end_offset
        append(log, b"more")
        commit(log)
        assert values(log) == [b"%d" % number for number in range(end)] + [b"more"], f"step {step}"
        check_log(log, after)


def test_a_recovery_that_fails_after_the_copy_has_its_name_is_done_again() -> None:
    disk, log = failed_log(durable=2, visible=6)
    for call in ("rename", "sync_dir", "open", "truncate", "write", "sync", "listdir"):
        disk.fail(call, errno.EIO)
        with pytest.raises(StorageFailed):
            log.recover(0)
        disk.heal()
    for call in ("open", "truncate", "write", "sync"):
        for after in range(1, 4):
            disk.fail(call, errno.EIO, after=after)
            with suppress(StorageFailed):  # it may come too late to hurt
                log.recover(0)
            disk.heal()
            if log.state.failure is None:
                break
            assert log.state.durable_end == 2
    log.recover(0)
    commit(log)
    assert values(log) == [b"%d" % number for number in range(6)]
    check_log(log, disk)


def test_a_damaged_tail_whose_repair_could_not_be_fsynced_is_written_again_too() -> None:
    """It is not the tail any more for those who read, and not durable either."""
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    append(log, b"0")
    commit(log)
    append(log, b"1")
    append(log, b"2")
    path, position = position_of(log, 2)
    disk.flip(path, 8 * (position + 900))
    disk.fail("sync", errno.EIO, path=".arrows")
    with pytest.raises(StorageFailed):
        log.state.repair(log.state.view().segments[-1])
    log.recover(0)
    assert (log.state.log_end_offset, log.state.durable_end) == (2, 2)
    log = open_log(disk.after_crash("lost"), boot_id="next")
    commit(log)
    assert values(log) == [b"0", b"1"]


@pytest.mark.parametrize("is_stopped", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("durable", [0, 2])
def test_a_process_that_ends_before_the_recovery_leaves_nothing_that_is_called_durable_and_is_not(
    durable: int, is_stopped: bool
) -> None:
    """The next start reads pages that look clean and are on no plate: its fsync would find nothing to do."""
    disk, log = failed_log(durable=durable, visible=durable)
    if is_stopped:
        log.close()
    log = open_log(after := disk.after_kill())
    commit(log)
    seen = values(log)
    assert seen[:durable] == [b"%d" % number for number in range(durable)]
    append(log, b"acked")
    assert commit(log) == len(seen) + 1
    log = open_log(after.after_crash("lost"), boot_id="next")
    commit(log)
    assert log.state.lost_ranges == ()
    assert values(log) == [*seen, b"acked"]


def test_a_log_is_failed_until_all_of_its_recovery_has_succeeded() -> None:
    """Also what is told of its records: else nobody would recover it again, nor tell who waits."""
    errors = 0
    for after in itertools.count():
        disk, log = failed_log(durable=2, visible=2)
        disk.fail("listdir", errno.EIO, after=after)
        try:
            log.recover(0)
        except StorageFailed:
            errors += 1
            assert log.state.failure is not None, f"listing {after}"
            log.recover(0)
            assert (log.state.failure, log.state.log_end_offset) == (None, 6)
        else:
            break
    assert errors > 2


def test_the_high_watermark_does_not_move_back_by_a_recovery_beside_which_it_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `fsync = interval` whoever appended does so when it is told, which may be late."""
    _, log = failed_log(durable=2, visible=2)
    real = opening.recover

    def recover(*args: Any, **options: Any) -> RecoveredLog:
        found = real(*args, **options)
        log.state.advance_high_watermark(5)
        return found

    monkeypatch.setattr(opening, "recover", recover)
    log.recover(0)
    assert log.state.high_watermark == 5
