"""Goal: a log with other replicas whose disk has taken back committed records from its end says so, until somebody was
told; one that lacks only what it had never fsynced does not.

Method: a log on a fake disk, which has fsynced and committed more than its checkpoint says. Then a bit flips, the file
is cut, or the power goes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.api.errors import CorruptLog
from broker.storage.disk.preallocate import PREFIX_BYTES
from broker.storage.inspect.repair import repair
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import CHECKPOINT_FILE, Checkpoint, LogSettings
from tests.support.effort import first_short
from tests.support.logs import FOLDER, create_log, open_log, row_batch
from tests.support.simdisk import MODES, Crashed, SimDisk

SETTINGS = LogSettings(is_sole_replica=False)
KEPT, COMMITTED, END = 10, 18, 20


def prepared(settings: LogSettings = SETTINGS) -> tuple[SimDisk, PartitionLog]:
    """20 fsynced records, a batch each. 10 by its checkpoint; by the header of the last one 18 are committed."""
    disk = SimDisk()
    log = create_log(disk, settings=settings)
    for number in range(END):
        log.append([row_batch([b"%d" % number])], leader_epoch=1, now_us=0)
        log.state.advance_high_watermark(min(log.syncer.sync(), COMMITTED))
        if number == KEPT - 1:
            log.checkpoint()
    return disk, log


def at(log: PartitionLog, offset: int) -> tuple[str, int]:
    """The file of a record's batch, and where that stands there."""
    with log.reader.read(offset, end=END, stored=True) as plan:
        return plan.ranges[0].path, plan.ranges[0].position


def flipped(disk: SimDisk, log: PartitionLog, offset: int) -> SimDisk:
    path, position = at(log, offset)
    disk.flip(path, 8 * (position + 96))
    return disk.after_crash("lost", seed=1)


def cut(disk: SimDisk, log: PartitionLog, offset: int) -> SimDisk:
    path, position = at(log, offset)
    disk = disk.after_crash("lost", seed=1)
    for content in (disk.names[path].content, disk.names[path].durable):
        del content[position:]
    return disk


def stored(log: PartitionLog, start: int, end: int) -> bytes:
    return b"".join(log.reader.messages(start, end, whole=True))


def reopened(disk: SimDisk, settings: LogSettings = SETTINGS) -> PartitionLog:
    return open_log(disk, settings=settings, boot_id="next")


@pytest.mark.parametrize("offset", range(KEPT, COMMITTED))
def test_a_batch_that_a_later_header_covers_is_missed(offset: int) -> None:
    log = reopened(flipped(*prepared(), offset))
    assert (log.state.log_end_offset, log.state.high_watermark, log.state.lost_ranges) == (
        offset,
        min(offset, KEPT),
        (),
    )
    assert log.state.is_behind


@pytest.mark.parametrize("offset", [COMMITTED, END - 1])
def test_a_batch_that_nothing_covers_looks_like_a_torn_tail(offset: int) -> None:
    """Nothing is promised for such a batch: docs/explain/replication.md."""
    log = reopened(flipped(*prepared(), offset))
    assert log.state.log_end_offset == offset
    assert not log.state.is_behind


def test_a_cut_below_the_recovery_point_is_missed_at_each_open() -> None:
    """The log goes on from the recovery point: what it lost there, and all behind it, others may have."""
    disk = cut(*prepared(), 7)
    for _ in range(2):
        log = reopened(disk)
        assert (log.state.log_end_offset, log.state.lost_ranges) == (KEPT, ((7, KEPT),))
        assert log.state.is_behind
        log.close()


def test_what_is_lost_within_the_log_costs_nobody_else_anything() -> None:
    disk = flipped(*prepared(), 5)
    log = reopened(disk)
    assert not log.state.is_behind


def test_a_log_that_ends_below_the_high_watermark_of_its_checkpoint_is_behind() -> None:
    disk, log = prepared()
    path = f"{FOLDER}/{CHECKPOINT_FILE}"
    told = Checkpoint.decode(disk.read_file(path), where=path)
    assert told is not None
    disk.replace_file(path, replace(told, high_watermark=COMMITTED).encode())
    log = reopened(cut(disk, log, COMMITTED - 1))
    assert (log.state.log_end_offset, log.state.is_behind) == (COMMITTED - 1, True)


@pytest.mark.parametrize("mode", MODES)
def test_what_was_never_fsynced_is_not_missed(mode: str) -> None:
    disk, log = prepared()
    for number in range(6):
        log.append([row_batch([b"more-%d" % number] * 30)], leader_epoch=1, now_us=0)
    for seed in range(20):
        log = reopened(disk.after_crash(mode, seed=seed))  # type: ignore[arg-type]
        assert log.state.log_end_offset >= END
        assert not log.state.is_behind


def test_who_was_not_in_sync_may_miss_what_it_had_never_fsynced() -> None:
    """It is killed amid one write of all that it lacks, whose first bytes come last (`preallocate.A2`), and the batches
    behind them tell of what was committed without it. The catalog minds no word of it: it is no member."""
    _, leading = prepared()
    disk = SimDisk()
    following = create_log(disk, settings=SETTINGS)
    following.follow(1)
    following.append_stored(stored(leading, 0, KEPT), leader_epoch=1, now_us=0)
    following.syncer.sync()
    following.append_stored(stored(leading, KEPT, END), leader_epoch=1, now_us=0)
    path, position = at(following, KEPT)
    killed = disk.after_kill()
    killed.names[path].content[position : position + PREFIX_BYTES] = bytes(PREFIX_BYTES)
    log = reopened(killed)
    assert (log.state.log_end_offset, log.state.is_behind) == (KEPT, True)


def test_a_sole_replica_keeps_to_its_lost_ranges() -> None:
    alone = replace(SETTINGS, is_sole_replica=True)
    log = reopened(flipped(*prepared(alone), KEPT), alone)
    assert (log.state.log_end_offset, log.state.lost_ranges) == (END, ((KEPT, KEPT + 1),))
    assert not log.state.is_behind


# --- until somebody was told ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [True, False])
def test_it_is_behind_at_each_open_until_it_was_told_whom_it_follows(is_clean: bool) -> None:
    disk = flipped(*prepared(), 14)
    for _ in range(3):
        log = reopened(disk)
        assert (log.state.log_end_offset, log.state.is_behind) == (14, True)
        if is_clean:
            log.close()
        else:
            log.checkpoint()
            disk = disk.after_kill()
    log = reopened(disk)
    log.follow(2)
    assert not log.state.is_behind
    log.close()
    assert not reopened(disk).state.is_behind


def test_whoever_leads_with_it_is_behind_no_more() -> None:
    log = reopened(flipped(*prepared(), 14))
    assert log.lead(2) == 14
    assert not log.state.is_behind


@pytest.mark.parametrize("offset", first_short([14, 0]))
def test_the_power_goes_at_any_step_of_the_open_that_cuts(offset: int) -> None:
    """Also where a whole segment is cut off, as its schema is damaged; and with a checkpoint that knows
    nothing."""

    def damaged() -> SimDisk:
        disk, log = prepared()
        if offset:
            return flipped(disk, log, offset)
        path, _ = at(log, KEPT)
        disk.replace_file(f"{FOLDER}/{CHECKPOINT_FILE}", Checkpoint().encode())
        disk.flip(path, 8 * 20)
        return disk.after_crash("lost", seed=1)

    def opened_until(step: int) -> SimDisk:
        disk = damaged()
        disk.crash_at = disk.steps + step
        try:
            log = reopened(disk)
        except Crashed:
            return disk
        assert log.state.is_behind
        return disk

    whole = damaged()
    before = whole.steps
    assert reopened(whole).state.is_behind
    assert whole.steps - before >= 3
    for step in range(1, whole.steps - before + 1):
        for mode in MODES:
            disk = opened_until(step).after_crash(mode, seed=step)
            assert reopened(disk).state.is_behind, (step, mode)


def test_a_repair_keeps_what_the_broker_would_have_noticed() -> None:
    """Else it would lead with a log that lacks committed records."""
    disk = flipped(*prepared(), KEPT)
    report = repair(disk, FOLDER, now_us=1, has_others=True)
    assert report.actions
    log = reopened(disk)
    assert (log.state.log_end_offset, log.state.is_behind) == (KEPT, True)


@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_repair_makes_no_checkpoint_anew(how: str, dry_run: bool) -> None:
    """The broker begins anew from the others; only they know log start and high watermark."""
    disk, _ = prepared()
    path = f"{FOLDER}/{CHECKPOINT_FILE}"
    if how == "missing":
        disk.unlink(path)
        disk.sync_dir(FOLDER)
    else:
        disk.flip(path, 96)
    disk = disk.after_crash("lost", seed=1)
    before = {path: bytes(inode.content) for path, inode in disk.names.items()}
    report = repair(disk, FOLDER, now_us=1, has_others=True, dry_run=dry_run)
    assert report.refused is not None
    assert "replicas" in report.refused
    assert not report.actions
    assert {path: bytes(inode.content) for path, inode in disk.names.items()} == before
    with pytest.raises(CorruptLog, match=how):
        reopened(disk)
