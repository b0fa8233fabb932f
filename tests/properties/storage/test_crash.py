"""Power is lost at every step of a log's life, and every way the disk may come back is looked at.

One run of `live` makes some 250 changing calls to the disk. It is run again for each of them, with
the power going there; then each crash mode of the fake disk gives a disk to open. This must hold after every crash:

S1  offsets are dense and increasing;
S2  what a `sync` that returned covers is there, the same;
S3  what is there was appended; the log ends where an append ended, never within one;
S4  each index is that of its segment;

nothing is reported lost (nothing that was synced is damaged), the log goes on, and a second
crash in the middle of the recovery changes none of this.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from dataclasses import dataclass, field

import pytest

from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import first_short, seeded
from tests.support.logs import BOOT_ID, SETTINGS, Record, check_log, commit, create_log, open_log, row_batch
from tests.support.logs import verified_records as records_of_log
from tests.support.simdisk import MODES, Crashed, Mode, SimDisk, modes_at

RETENTION = dataclasses.replace(SETTINGS, retention_records=30)


@dataclass
class Witness:
    """The knowledge of a publisher outside."""

    records: list[Record] = field(default_factory=list)
    ends: set[int] = field(default_factory=lambda: {0})  # where appends ended
    synced_end: int = 0
    trimmed_to: int = 0  # the log start may be anywhere up to here


def append(log: PartitionLog, seen: Witness, rng: random.Random, *, epoch: int, size: int = 200) -> None:
    batches, begin = [], log.state.log_end_offset
    for _ in range(rng.randint(1, 3)):
        values = [rng.randbytes(rng.randrange(size)) for _ in range(rng.randint(1, 3))]
        offsets = range(len(seen.records), len(seen.records) + len(values))
        seen.records += [(offset, offset, value) for offset, value in zip(offsets, values, strict=True)]
        batches.append(row_batch(values, list(offsets)))
    assert begin == log.state.log_end_offset
    seen.ends.add(len(seen.records))  # before the call: it may crash after the write
    result = log.append(batches, leader_epoch=epoch, now_us=len(seen.records))
    assert (result.first_offset, result.next_offset) == (begin, len(seen.records))


def sync(log: PartitionLog, seen: Witness) -> None:
    seen.synced_end = commit(log)


def let_go(log: PartitionLog, seen: Witness, before_offset: int | None) -> None:
    seen.trimmed_to = log.state.high_watermark
    if before_offset is None:
        seen.trimmed_to = log.apply_retention(now_us=10_000)
    else:
        seen.trimmed_to = log.trim(before_offset)


def live(disk: SimDisk, seen: Witness) -> None:
    """A log's life: appends, syncs, rolls, checkpoints, epochs, retention, clean and dirty reopening."""
    rng = random.Random(seeded(1))
    log = create_log(disk)
    for i in range(6):
        append(log, seen, rng, epoch=1)
        if i % 2:
            sync(log, seen)
    log.checkpoint()
    append(log, seen, rng, epoch=2)
    append(log, seen, rng, epoch=2, size=1_500)
    sync(log, seen)
    append(log, seen, rng, epoch=2)
    log.close()
    seen.synced_end = len(seen.records)
    log = open_log(disk, settings=RETENTION)
    assert log.state.recovery.clean
    append(log, seen, rng, epoch=3)
    log.checkpoint()
    for _ in range(4):
        append(log, seen, rng, epoch=3, size=1_000)
    sync(log, seen)
    assert log.idle()
    append(log, seen, rng, epoch=3)
    let_go(log, seen, None)
    sync(log, seen)
    append(log, seen, rng, epoch=3)
    log.close(clean=False)  # a kill without power loss
    log = open_log(disk)
    append(log, seen, rng, epoch=4)
    sync(log, seen)
    let_go(log, seen, log.state.high_watermark - 5)
    log.roll_if_due(1 << 60)
    log.checkpoint()
    append(log, seen, rng, epoch=5)
    let_go(log, seen, 1 << 40)
    sync(log, seen)
    log.remembered.update_settings(LogSettings(segment_bytes=2_000, retention_ms=1))
    log.apply_retention(now_us=1 << 50)
    seen.trimmed_to = log.state.log_start_offset
    append(log, seen, rng, epoch=5)
    log.checkpoint()


AHEAD = pytest.mark.parametrize("runs_ahead", first_short([True, False]), ids=["ahead", ""])


@functools.cache
def steps_of_life(runs_ahead: bool) -> int:
    disk = SimDisk(runs_ahead=runs_ahead)
    live(disk, Witness())
    return disk.steps


def crash(step: int, runs_ahead: bool) -> tuple[SimDisk, Witness]:
    """The disk and what was known when the power went at `step`."""
    disk, seen = SimDisk(seed=step, crash_at=step, runs_ahead=runs_ahead), Witness()
    with pytest.raises(Crashed):
        live(disk, seen)
    return disk, seen


def check_after(disk: SimDisk, seen: Witness, *, boot_id: str = "boot-2") -> None:
    if not disk.exists("/data/streams/orders/i1/0/partition.json"):
        assert seen.synced_end == 0  # never made: made now
        log = create_log(disk, boot_id=boot_id)
    else:
        log = open_log(disk, boot_id=boot_id)
    assert log.state.lost_ranges == ()
    assert log.state.log_end_offset in seen.ends
    assert seen.synced_end <= log.state.log_end_offset <= len(seen.records)
    assert log.state.durable_end == log.state.log_end_offset
    assert log.state.log_start_offset <= max(seen.trimmed_to, seen.synced_end)
    log.state.advance_high_watermark(log.state.durable_end)
    begin, end = log.state.log_start_offset, log.state.log_end_offset
    assert records_of_log(log) == seen.records[begin:end]
    check_log(log, disk)
    # It goes on from there, and a clean restart finds the same.
    result = log.append([row_batch([b"after"])], leader_epoch=9, now_us=0)
    assert result.first_offset == end
    commit(log)
    log.close()
    log = open_log(disk, boot_id=boot_id)
    assert log.state.recovery.clean
    assert records_of_log(log) == [*seen.records[begin:end], (end, 0, b"after")]
    check_log(log, disk)
    log.close()
    assert disk.open_files == 0


@AHEAD
@pytest.mark.parametrize("part", first_short(range(12)))
def test_power_loss_at_any_step_loses_nothing_synced(part: int, runs_ahead: bool) -> None:
    """Every step, in twelve parts; the seed of a failure is its step."""
    steps = steps_of_life(runs_ahead)
    for step in range(1 + part, steps + 1, 12):
        disk, seen = crash(step, runs_ahead)
        for mode in modes_at(step):
            try:
                check_after(disk.after_crash(mode, seed=step), seen)
            except Exception as error:
                raise AssertionError(f"mode {mode}, step {step} of {steps}") from error


@AHEAD
@pytest.mark.parametrize("case", first_short([(mode, part) for part in range(4) for mode in MODES]))
def test_power_loss_within_recovery_loses_nothing_synced(case: tuple[Mode, int], runs_ahead: bool) -> None:
    """A crash, then another at each step of the recovery from it. Of the crashes, a quarter at a time."""
    mode, part = case
    for step in range(3 + 17 * part, steps_of_life(runs_ahead), 68):
        disk, seen = crash(step, runs_ahead)
        for second in range(1, 40):
            again = disk.after_crash(mode, seed=step, crash_at=second)
            try:
                check_after(again, seen)
                break
            except Crashed:
                pass
            try:
                # Records of the interrupted run itself may be there or not: only look at those before.
                final = again.after_crash(mode, seed=second)
                if final.exists("/data/streams/orders/i1/0/partition.json"):
                    log = open_log(final, boot_id="boot-3")
                    assert log.state.lost_ranges == ()
                    log.state.advance_high_watermark(log.state.durable_end)
                    kept = [record for record in records_of_log(log) if record[2] != b"after"]
                    assert kept == seen.records[log.state.log_start_offset : log.state.log_start_offset + len(kept)]
                    assert log.state.log_start_offset + len(kept) >= seen.synced_end
            except Exception as error:
                raise AssertionError(f"mode {mode}, step {step}, then step {second} of the recovery") from error


@AHEAD
@pytest.mark.parametrize("part", first_short(range(9)))
def test_kill_without_power_loss_keeps_every_append_and_the_next_process_makes_it_durable(
    part: int, runs_ahead: bool
) -> None:
    """R5. The page cache survives the process; what the next one calls durable survives the machine."""
    for step in range(1 + part, steps_of_life(runs_ahead) + 1, 9):
        disk, seen = crash(step, runs_ahead)
        found = disk.after_kill()
        if found.exists("/data/streams/orders/i1/0/partition.json"):
            log = open_log(found, boot_id=BOOT_ID)
            end = log.state.log_end_offset
            assert end in sorted(seen.ends)[-2:] or end == 0
            assert log.state.durable_end == end
            lost = found.after_crash("lost")
            if end > 0:
                assert open_log(lost, boot_id="next").state.log_end_offset == end, f"step {step}"
            log.append([row_batch([b"more"])], leader_epoch=max(log.epochs.latest, 1), now_us=0)
            log.syncer.sync()
            lost = found.after_crash("lost")
            assert open_log(lost, boot_id="next").state.log_end_offset == end + 1, f"step {step}"
