"""Power cuts at every write of everything that writes, in one table: S1 to S6 of the design of the storage.

Each workload below begins with a log of 20 committed records in four segments, keys and a producer among them, and
does one thing to it. It is run once for each changing call that it makes to the disk, with the power going there, and
every crash mode of the fake disk (`simdisk`; in CI two of the five in turns) gives a disk to open. Then:

    S1  offsets are strictly increasing, ranges dense               check_compacted, check
    S2  what was durable is readable, unless the workload lets go   check: `committed`, `lets_go`
    S3  what is served is what was appended, byte by byte           check: `records`
    S4  each index is that of its segment                           check_compacted
    S5  a replica that holds the same offsets holds the same        check_replica: the same workload without a cut;
        records, and the same bytes where nothing was rewritten     `rewrites` compares records
    S6  no file is left open                                        check: `open_files`; test_idle bounds what idle
                                                                    partitions hold

Longer lives, with more in them: test_crash (append, roll, checkpoint, epochs, retention, trim, reopening),
test_compaction, test_coalescing, tests/properties/sinks (stages, decisions, commit groups), and for random
interleavings test_model and test_producers_model. Flipped, zeroed and missing bytes: test_damage.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from broker.api.batch import decode_batch, read_header
from broker.api.schema import END_OF_STREAM
from broker.storage.inspect.repair import repair
from broker.storage.log import PartitionLog
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.rewriting import BatchShape
from broker.storage.segments.checkpoint import LogSettings
from tests.support.compacting import Keyed, check_compacted, keyed_batch, keyed_records, newest_of
from tests.support.effort import first_short
from tests.support.logs import FOLDER, IDENTITY, commit, create_log, open_log
from tests.support.published import expecting, publish
from tests.support.simdisk import Crashed, Mode, SimDisk, modes_at

pytestmark = [pytest.mark.slow, pytest.mark.long]

SETTINGS = LogSettings(segment_bytes=6_000)
RECORDS = 20
PRODUCER = 7


def record(offset: int) -> Keyed:
    """The record that every replica has at an offset."""
    return (None if offset % 4 == 0 else b"k%d" % (offset % 5), b"%d" % offset * 40)


def append(log: PartitionLog, count: int, *, epoch: int = 1) -> None:
    for _ in range(count):
        at = log.state.log_end_offset
        log.append([keyed_batch([record(at)])], leader_epoch=max(epoch, log.epochs.latest), now_us=0)


@functools.cache
def _prepared(runs_ahead: bool) -> SimDisk:
    disk = SimDisk(runs_ahead=runs_ahead)
    log = create_log(disk, settings=SETTINGS)
    stamped = [keyed_batch([record(at)], producer_id=PRODUCER, sequence=at) for at in range(3)]
    for batch in stamped:
        log.append([batch], leader_epoch=1, now_us=0)
    while log.state.log_end_offset < RECORDS:
        append(log, 1, epoch=1 + log.state.log_end_offset // 7)
        if log.state.log_end_offset % 5 == 0:
            commit(log)
            log.roll_if_due(1 << 60)
    commit(log)
    log.close()
    return disk.after_crash("lost")


def prepared(runs_ahead: bool, crash_at: int | None = None) -> SimDisk:
    """The log that every workload begins with, closed, and the power lost: what is there is durable."""
    return _prepared(runs_ahead).after_crash("kept", crash_at=crash_at)


def opened(disk: SimDisk, boot_id: str = "boot-2") -> PartitionLog:
    log = open_log(disk, settings=SETTINGS, boot_id=boot_id)
    log.state.advance_high_watermark(log.state.durable_end)
    return log


# --- workloads ------------------------------------------------------------------------------------------------------


def append_and_sync(disk: SimDisk) -> None:
    log = opened(disk)
    for _ in range(3):
        append(log, 2, epoch=5)
        commit(log)
    log.close()


def append_behind_a_marker(disk: SimDisk) -> None:
    """The last segment is sealed: what follows must not stand behind its end marker."""
    last = max(name for name in disk.names if name.endswith(".arrows"))
    assert disk.names[last].content.endswith(END_OF_STREAM)
    append_and_sync(disk)


def append_to_a_zero_filled_tail(disk: SimDisk) -> None:
    """As a power cut leaves it: the file has its length, the bytes are zeros."""
    log = opened(disk)
    append(log, 2, epoch=5)
    commit(log)
    tail = max(name for name in disk.names if name.endswith(".arrows"))
    inode = disk.names[tail]
    inode.content += bytes(3_000)
    inode.durable[:] = inode.content
    inode.pending.clear()
    log = opened(disk, "boot-3")
    append(log, 2, epoch=6)
    commit(log)
    log.close()


def roll(disk: SimDisk) -> None:
    log = opened(disk)
    for _ in range(2):
        append(log, 3, epoch=5)
        log.roll_if_due(1 << 60)
    log.checkpoint()
    log.close()


def checkpoint(disk: SimDisk) -> None:
    log = opened(disk)
    for _ in range(3):
        append(log, 1, epoch=5)
        commit(log)
        log.checkpoint()
    log.close()


def retention(disk: SimDisk) -> None:
    log = opened(disk)
    log.remembered.update_settings(replace(SETTINGS, retention_records=8))
    log.apply_retention(now_us=0)
    append(log, 2, epoch=5)
    commit(log)
    log.close()


def trim(disk: SimDisk) -> None:
    log = opened(disk)
    log.trim(6)
    append(log, 2, epoch=5)
    log.trim(12)
    commit(log)
    log.close()


def rebuild_indexes(disk: SimDisk) -> None:
    for name in [name for name in disk.names if name.endswith(".index")]:
        disk.unlink(name)
    log = opened(disk)
    keyed_records(log)
    append(log, 2, epoch=5)
    commit(log)
    log.close()


def keep_state(disk: SimDisk) -> None:
    """A producer's state is written anew at each roll."""
    log = opened(disk)
    for _ in range(3):
        at = log.state.log_end_offset
        sequence = 3 + (at - RECORDS) // 2
        batch = keyed_batch([record(at), record(at + 1)], producer_id=PRODUCER, sequence=sequence)
        log.append([batch], leader_epoch=5, now_us=0)
        commit(log)
        log.roll_if_due(1 << 60)
    log.close()


def last_of_the_subject(log: PartitionLog) -> int:
    """As a publisher is told who expects something else; nothing is stored. The first is sent away, where a producer's
    state is there and not all is durable.
    """
    [answer] = publish(log, [(b"", expecting(1 << 40))], 0, subjects=["orders.1"])
    if answer["error"]["err_code"] == 10163:
        assert log.tracking.lacks_some
        while log.tracking.build():
            pass
        [answer] = publish(log, [(b"", expecting(1 << 40))], 0, subjects=["orders.1"])
    return int(answer["error"]["description"].removeprefix("wrong last sequence: ").split()[0])


def track_subjects(disk: SimDisk) -> None:
    """The first who asks, then a state file at each roll, one of them late."""
    log = opened(disk)
    for i in range(3):
        append(log, 2, epoch=5)
        assert last_of_the_subject(log) == log.state.log_end_offset
        if i == 1:
            log.remembered.is_due = True
            log.checkpoint()
        commit(log)
        log.roll_if_due(1 << 60)
    log.close()


def compaction(disk: SimDisk) -> None:
    log = opened(disk)
    for _ in range(2):
        settings = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=0)
        compact(log, settings, map_bytes=1 << 12, now_us=1 << 50)
        append(log, 6, epoch=5)
        commit(log)
        log.roll_if_due(1 << 60)
    log.close()


def coalescing(disk: SimDisk) -> None:
    log = opened(disk)
    shape = BatchShape(batch_records=7, compression="zstd")
    wanted = CoalescingSettings(min_age_ms=0, segment_bytes=30_000, shape=shape)
    while coalesce(log, wanted, {}, now_us=1 << 50) is not None:
        pass
    append(log, 2, epoch=5)
    commit(log)
    log.close()


def repaired(disk: SimDisk) -> None:
    """A torn tail and a wrong index: what repair may cut and write anew without losing anything."""
    tail = max(name for name in disk.names if name.endswith(".arrows"))
    inode = disk.names[tail]
    inode.content[-len(END_OF_STREAM) :] = b"\xff\xff\xff\xff\x70\x03\0\0" + bytes(200)
    inode.durable[:] = inode.content
    disk.unlink(f"{FOLDER}/checkpoint")
    disk.flip(f"{FOLDER}/{0:020d}.index", 77)
    repair(disk, FOLDER, now_us=0, expected=IDENTITY)


@dataclass(frozen=True)
class Workload:
    """A workload, and what it may change: `lets_go`: the greatest log start; `rewrites`: bytes, not records.

    `compacts`: records of which newer ones exist may be missing; `tracks`: the last of a subject must be told.
    """

    do: Callable[[SimDisk], None]
    lets_go: int = 0
    rewrites: bool = False
    compacts: bool = False
    tracks: bool = False
    steps_least: int = 5


WORKLOADS = {
    "append and fsync": Workload(append_and_sync),
    "append behind an end marker": Workload(append_behind_a_marker),
    "append to a zero-filled tail": Workload(append_to_a_zero_filled_tail),
    "roll": Workload(roll),
    "checkpoint": Workload(checkpoint),
    "retention": Workload(retention, lets_go=RECORDS),
    "trim": Workload(trim, lets_go=12),
    "index rebuild": Workload(rebuild_indexes),
    "state snapshot": Workload(keep_state),
    "subjects": Workload(track_subjects, tracks=True),
    "compaction": Workload(compaction, rewrites=True, compacts=True),
    "coalescing": Workload(coalescing, rewrites=True),
    "repair": Workload(repaired, steps_least=3),
}


# --- what must hold -------------------------------------------------------------------------------------------------


def check(disk: SimDisk, workload: Workload) -> PartitionLog:
    log = opened(disk, "boot-9")
    check_compacted(log)  # S1, S4
    assert log.state.log_start_offset <= workload.lets_go
    assert log.state.log_end_offset >= RECORDS, "S2"
    found = keyed_records(log)
    assert list(found) == sorted(found), "S1"
    assert all(found[at] == record(at) for at in found), "S3"
    everything = {at: record(at) for at in range(log.state.log_start_offset, log.state.log_end_offset)}
    if workload.compacts:
        kept = {at: value for at, value in everything.items() if value[0] is None}
        kept |= {at: (key, value) for key, (at, value) in newest_of(everything).items()}
        assert kept.items() <= found.items(), "S2"
    else:
        assert {at for at in found if at >= log.state.log_start_offset} == set(everything), "S2"
    assert not any(name.endswith(".tmp") for name in disk.names)
    if workload.tracks:
        assert last_of_the_subject(log) == log.state.log_end_offset
    return log


def check_replica(log: PartitionLog, other: PartitionLog, workload: Workload) -> None:
    """S5, over the offsets that both hold."""
    start = max(log.state.log_start_offset, other.state.log_start_offset)
    end = min(log.state.log_end_offset, other.state.log_end_offset)
    if workload.rewrites:
        mine, theirs = keyed_records(log), keyed_records(other)
        if not workload.compacts:
            assert [mine[at] for at in range(start, end)] == [theirs[at] for at in range(start, end)]
        assert all(theirs[at] == value for at, value in mine.items() if at in theirs)
        return
    mine_bytes, their_bytes = (
        {read_header(m).first_offset: bytes(m) for m in x.reader.batches(start)} for x in (log, other)
    )
    shared = mine_bytes.keys() & their_bytes.keys()
    assert shared
    for first_offset in shared:
        mine_rows, their_rows = (decode_batch(of[first_offset]) for of in (mine_bytes, their_bytes))
        assert mine_rows.equals(their_rows)
        if first_offset < RECORDS:  # later ones carry the high watermark of their own leader
            assert mine_bytes[first_offset] == their_bytes[first_offset]


@pytest.mark.parametrize("runs_ahead", first_short([True, False]), ids=["ahead", ""])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_power_cut_at_any_write_keeps_s1_to_s6(name: str, runs_ahead: bool) -> None:
    workload = WORKLOADS[name]
    whole = prepared(runs_ahead)
    before = whole.steps
    workload.do(whole)
    total = whole.steps - before
    assert total >= workload.steps_least, "nothing was written: the workload does not do what it says"
    reference = check(whole.after_kill(), workload)
    for step in range(1, total + 1):
        disk = prepared(runs_ahead, crash_at=step)
        with pytest.raises(Crashed):
            workload.do(disk)
        for mode in modes_at(step):
            check_cut(disk, mode, step, workload, reference)


def check_cut(disk: SimDisk, mode: Mode, step: int, workload: Workload, reference: PartitionLog) -> None:
    try:
        found = disk.after_crash(mode, seed=step)
        log = check(found, workload)
        check_replica(log, reference, workload)
        append(log, 2, epoch=9)  # it goes on, and a producer's repetition is still known
        batch = keyed_batch([record(1)], producer_id=PRODUCER, sequence=1)
        assert log.append([batch], leader_epoch=9, now_us=0).duplicate
        commit(log)
        log.close()
        log = check(found, workload)
        log.close()
        assert found.open_files == 0, "S6"
    except Exception as error:
        raise AssertionError(f"mode {mode}, step {step}") from error
