"""Goal: what an operator gives up is empty, and nothing else of a log is touched, whatever crashes meanwhile.

Method: the log of a leader with replicas on the fake disk, of several segments and epochs; bits are flipped, files go;
the power is cut at every step.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.api.batch import decode_batch, verify_batch
from broker.api.errors import CorruptLog, DiskFull, LiftlogError, NotLeader, StorageFailed
from broker.storage.inspect.inspection import inspect_partition
from broker.storage.inspect.scrub import scrub
from broker.storage.log import PartitionLog
from broker.storage.recovery import Ranges
from broker.storage.rewrite.giving_up import give_up
from tests.support.effort import first_short
from tests.support.logs import (
    FOLDER,
    SETTINGS,
    commit,
    create_log,
    open_log,
    read_records,
    row_batch,
    stamped,
    verified_records,
)
from tests.support.simdisk import Crashed, SimDisk, modes_at

REPLICATED = replace(SETTINGS, is_sole_replica=False)
ASIDE = f"{FOLDER}.aside"
END = 34
Damage = Callable[[SimDisk, PartitionLog], None]


def led_log(disk: SimDisk) -> PartitionLog:
    """Three sealed segments and a tail, of batches of two records; epoch 2 begins at 12, epoch 5 at 28."""
    log = create_log(disk, settings=REPLICATED)
    log.lead(1)
    for number in range(END // 2):
        epoch = 1 if number < 6 else 2 if number < 14 else 5
        if log.epochs.led != epoch:
            log.lead(epoch)
        times = [number * 10 + 1, number * 10 + 2]  # the index has their running maximum
        batch = stamped([b"p" * 50] * 2, 7, 0, number // 4) if number % 4 == 1 else row_batch([b"v" * 50] * 2, times)
        log.append([batch], leader_epoch=epoch, now_us=0)
        commit(log)
        if number % 5 == 4:
            assert log.roll_if_due(1 << 60)
    return log


def found_by_the_scrub(log: PartitionLog) -> Ranges:
    offset = log.state.log_start_offset
    while (piece := scrub(log, offset)) is not None:
        offset = piece.next_offset
    return log.state.lost_ranges


def flips(*offsets: int) -> Damage:
    def damage(disk: SimDisk, log: PartitionLog) -> None:
        view = log.state.view()
        for offset in offsets:
            segment = view.segments[view.segment_of(offset)]
            index = view.index(segment)
            disk.flip(segment.path, (int(index.positions[index.find(offset)]) + 900) * 8 + 3)

    return damage


def loses_the_file(disk: SimDisk, log: PartitionLog) -> None:
    disk.unlink(f"{FOLDER}/{10:020d}.arrows")
    disk.sync_dir(FOLDER)


def cuts_the_file(disk: SimDisk, log: PartitionLog) -> None:
    """A sealed segment that ends after two of its batches."""
    segment = log.state.view().segments[1]
    end = log.state.index_of(segment).end_of(1)
    inode = disk.names[segment.path]
    del inode.content[end:], inode.durable[end:]
    log.state.repair(segment)


def flips_the_schema(disk: SimDisk, log: PartitionLog) -> None:
    flips(10)(disk, log)
    disk.flip(f"{FOLDER}/{10:020d}.arrows", 99)


DAMAGES: dict[str, tuple[Damage, Ranges]] = {
    "first": (flips(0), ((0, 2),)),
    "over a border of segments": (flips(8, 10), ((8, 12),)),
    "a segment is gone": (loses_the_file, ((10, 20),)),
    "in the middle": (flips(4), ((4, 6),)),
    "first of a segment": (flips(10), ((10, 12),)),
    "last of a segment": (flips(18), ((18, 20),)),
    "over a border of epochs": (flips(10, 12, 14), ((10, 16),)),
    "in the tail": (flips(32), ((32, 34),)),
    "two ranges": (flips(4, 24), ((4, 6), (24, 26))),
    "a segment is cut": (cuts_the_file, ((14, 20),)),
    "schema": (flips_the_schema, ((10, 12),)),
}


def damaged(name: str) -> tuple[SimDisk, PartitionLog, dict[int, bytes]]:
    """The disk, the log, and the messages that are whole, by their first offset."""
    disk = SimDisk()
    log = led_log(disk)
    before = messages(log)
    damage, ranges = DAMAGES[name]
    damage(disk, log)
    assert found_by_the_scrub(log) == ranges
    log.checkpoint()  # as `Replica.scrub` does
    return disk, log, {at: m for at, m in before.items() if not any(a <= at < b for a, b in ranges)}


def messages(log: PartitionLog) -> dict[int, bytes]:
    return {verify_batch(m).first_offset: bytes(m) for m in log.reader.messages(log.state.log_start_offset, None)}


def check_given_up(log: PartitionLog, ranges: Ranges, whole: dict[int, bytes]) -> None:
    """All offsets are in a batch, those of the ranges in empty ones; the others are what they were."""
    assert found_by_the_scrub(log) == ()
    found, expected, epoch = messages(log), 0, 0
    for at, message in found.items():
        header = verify_batch(message)
        assert (at, header.leader_epoch) == (expected, log.epochs.epoch_of(at))
        assert header.leader_epoch >= epoch
        expected, epoch = header.next_offset, header.leader_epoch
        rows = decode_batch(message).num_rows
        assert (rows == 0) == any(a <= at < b for a, b in ranges), at
        assert rows == 0 or message == whole[at]
    assert expected == END
    assert found.keys() >= whole.keys()
    offsets = [offset for offset, *_ in verified_records(log)]
    assert offsets == [at for at in range(END) if not any(a <= at < b for a, b in ranges)]


def copied(log: PartitionLog, end: int | None = None) -> PartitionLog:
    """A follower's log, which has fetched all of it, in small pieces."""
    follower = create_log(SimDisk(), settings=REPLICATED)
    follower.follow(log.epochs.latest)
    while follower.state.log_end_offset < (log.state.log_end_offset if end is None else end):
        with log.reader.read(follower.state.log_end_offset, max_bytes=2_000, stored=True) as plan:
            data = b"".join(f.pread(p.length, p.position) for p, (_, f) in zip(plan.ranges, plan.sources, strict=True))
        follower.append_stored(data, leader_epoch=log.epochs.latest, now_us=0)
    commit(follower)
    return follower


@pytest.mark.parametrize("name", DAMAGES)
def test_the_range_is_empty_and_all_else_is_as_it_was(name: str) -> None:
    disk, log, whole = damaged(name)
    ranges = DAMAGES[name][1]
    with pytest.raises(CorruptLog), log.reader.read(ranges[0][0]):
        pass
    give_up(log, ranges, leader_epoch=5, aside=ASIDE)
    check_given_up(log, ranges, whole)
    check_given_up(copied(log), ranges, whole)
    found = inspect_partition(disk, FOLDER, in_use=True).findings
    assert [each for each in found if each.kind != "leftover"] == [], "an index whose segment is gone may be left"
    log.append([row_batch([b"after"])], leader_epoch=5, now_us=0)
    commit(log)
    assert verified_records(log)[-1][::2] == (END, b"after")
    assert not [path for path in disk.names if path.endswith(".tmp")]
    for index in [path for path in disk.names if path.endswith(".index")]:
        disk.unlink(index)
    again = open_log(disk.after_crash("kept"), settings=REPLICATED)
    assert (again.state.lost_ranges, again.state.log_end_offset) == ((), END + 1)
    assert found_by_the_scrub(again) == ()


@pytest.mark.parametrize("name", first_short(DAMAGES))
def test_power_may_go_at_any_step(name: str) -> None:
    """The rule: the damaged log is there then, or the one without the damage. Done again it ends as it would have."""
    ranges = DAMAGES[name][1]
    disk, log, whole = damaged(name)
    begun = disk.steps
    give_up(log, ranges, leader_epoch=5, aside=ASIDE)
    total, seen = disk.steps, set()
    assert total > begun + 5
    for step in range(begun + 1, total + 2):
        for mode in (*modes_at(step), "kill"):
            disk, log, _ = damaged(name)
            assert disk.steps == begun
            disk.crash_at = step
            if step <= total:
                with pytest.raises(Crashed):
                    give_up(log, ranges, leader_epoch=5, aside=ASIDE)
            else:
                give_up(log, ranges, leader_epoch=5, aside=ASIDE)
            after = disk.after_kill() if mode == "kill" else disk.after_crash(mode, seed=step)  # type: ignore[arg-type]
            found = open_log(after, settings=REPLICATED)
            assert found.state.log_end_offset == END, (step, mode)
            found.state.advance_high_watermark(END)
            found.lead(6)
            lost = found_by_the_scrub(found)
            seen.add(lost)
            if lost:
                assert lost == ranges, (step, mode)
                assert {at: m for at, m in messages(found).items() if decode_batch(m).num_rows} == whole, (step, mode)
                with pytest.raises(CorruptLog), found.reader.read(ranges[0][0]):
                    pass
                give_up(found, ranges, leader_epoch=6, aside=ASIDE)
            else:
                assert step > total - 3, "without a checkpoint that says so"
            check_given_up(found, ranges, whole)
            assert not [path for path in after.names if path.endswith(".tmp")], (step, mode)
    assert seen == {(), ranges}


def test_what_is_not_given_up_stays_lost_in_the_same_segment() -> None:
    disk = SimDisk()
    log = led_log(disk)
    flips(2, 6)(disk, log)
    assert found_by_the_scrub(log) == ((2, 4), (6, 8))
    give_up(log, ((6, 8),), leader_epoch=5, aside=ASIDE)
    assert log.state.lost_ranges == ((2, 4),)
    with pytest.raises(CorruptLog), log.reader.read(2):
        pass
    for index in [path for path in disk.names if path.endswith(".index")]:
        disk.unlink(index)
    log.close()
    again = open_log(disk, settings=REPLICATED)
    assert found_by_the_scrub(again) == ((2, 4),)
    assert [at for at, *_ in read_records(again, 4)] == list(range(4, 6)) + list(range(8, END))


def test_a_sole_replica_that_has_lost_something_can_be_mended_likewise() -> None:
    """Reads pass over it before and after; what was lost is no reason any more not to compact or join."""
    disk = SimDisk()
    log = create_log(disk)
    log.lead(1)
    for _ in range(12):
        log.append([row_batch([b"v" * 50] * 2)], leader_epoch=1, now_us=0)
        commit(log)
    flips(4)(disk, log)
    assert found_by_the_scrub(log) == ((4, 6),)
    before = verified_records(log)
    give_up(log, log.state.lost_ranges, leader_epoch=1, aside=ASIDE)
    assert found_by_the_scrub(log) == ()
    assert verified_records(log) == before
    assert len(before) == 22


def test_what_cannot_be_read_is_kept_aside() -> None:
    disk = SimDisk()
    log = led_log(disk)
    before = messages(log)[4]
    flips(4)(disk, log)
    ranges = found_by_the_scrub(log)
    give_up(log, ranges, leader_epoch=5, aside=ASIDE)
    kept = disk.read_file(f"{ASIDE}/{4:020d}-{6:020d}.lost")
    assert len(kept) == len(before)
    assert sum(a != b for a, b in zip(kept, before, strict=True)) == 1
    assert disk.after_crash("lost").read_file(f"{ASIDE}/{4:020d}-{6:020d}.lost") == kept


def test_a_follower_that_stands_in_the_range_goes_on_from_there() -> None:
    disk = SimDisk()
    log = led_log(disk)
    flips(8, 10, 12, 14)(disk, log)
    assert found_by_the_scrub(log) == ((8, 16),)
    give_up(log, ((8, 16),), leader_epoch=5, aside=ASIDE, borders=[14])
    with log.reader.read(14, stored=True) as plan:
        assert plan.first_offset == 14, "no epoch or segment begins there"


def test_an_epoch_that_lies_within_the_range_is_still_known() -> None:
    disk, log, _ = damaged("over a border of epochs")
    log.lead(9)
    for number in range(3):
        log.append([row_batch([b"%d" % number])], leader_epoch=9, now_us=0)
    log.lead(11)
    log.append([row_batch([b"x"])], leader_epoch=11, now_us=0)
    commit(log)
    flips(END, END + 1, END + 2)(disk, log)
    ranges = found_by_the_scrub(log)
    assert ranges == ((10, 16), (END, END + 3))
    give_up(log, ranges, leader_epoch=11, aside=ASIDE)
    ends = {epoch: log.epochs.end_of(epoch) for epoch in range(12)}
    assert {epoch: copied(log).epochs.end_of(epoch) for epoch in range(12)} == ends
    disk.unlink(f"{FOLDER}/epochs")
    log.close()
    again = open_log(disk, settings=REPLICATED)
    assert {epoch: again.epochs.end_of(epoch) for epoch in range(12)} == ends


def test_who_does_not_lead_gives_up_nothing() -> None:
    _, log, _ = damaged("in the middle")
    log.follow(6)
    with pytest.raises(NotLeader):
        give_up(log, ((4, 6),), leader_epoch=5, aside=ASIDE)
    assert log.state.lost_ranges == ((4, 6),)


@pytest.mark.parametrize("ranges", [(), ((0, 2),), ((4, 8),)])
def test_only_what_is_lost_is_given_up(ranges: Ranges) -> None:
    _, log, _ = damaged("in the middle")
    with pytest.raises(CorruptLog):
        give_up(log, ranges, leader_epoch=5, aside=ASIDE)
    assert log.state.lost_ranges == ((4, 6),)


def test_more_damage_that_is_found_on_the_way_ends_it() -> None:
    disk, log, _ = damaged("in the middle")
    flips(8)(disk, log)
    with pytest.raises(CorruptLog, match="more is damaged"):
        give_up(log, ((4, 6),), leader_epoch=5, aside=ASIDE)
    assert log.state.lost_ranges == ((4, 6), (8, 10))
    assert not [path for path in disk.names if path.endswith(".tmp")]
    give_up(log, log.state.lost_ranges, leader_epoch=5, aside=ASIDE)
    assert log.state.lost_ranges == ()


def test_where_the_log_begins_with_the_damage_it_is_to_be_trimmed() -> None:
    disk = SimDisk()
    log = led_log(disk)
    disk.unlink(f"{FOLDER}/{0:020d}.arrows")
    assert found_by_the_scrub(log) == ((0, 10),)
    with pytest.raises(CorruptLog, match="trim it"):
        give_up(log, ((0, 10),), leader_epoch=5, aside=ASIDE)
    log.trim(10)
    assert log.state.lost_ranges == ()


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "sync_dir"])
def test_a_disk_that_refuses_leaves_the_range_lost_and_it_may_be_tried_again(operation: str) -> None:
    disk, log, whole = damaged("over a border of segments")
    ranges = DAMAGES["over a border of segments"][1]
    for nth in range(12):
        disk.heal()
        disk.fail(operation, errno.EIO, after=nth)
        try:
            give_up(log, ranges, leader_epoch=5, aside=ASIDE)
        except StorageFailed:
            assert log.state.lost_ranges == ranges
        except LiftlogError as error:
            pytest.fail(f"{error!r}")
        else:
            break
    disk.heal()
    check_given_up(log, ranges, whole)


def test_on_a_full_disk_the_range_stays_lost_until_the_last_byte_it_needs_is_free() -> None:
    """It asks for no reserve: it takes what there is, for the copy aside and for the segments around the range."""
    name = "over a border of segments"
    disk, log, whole = damaged(name)
    log.checkpoint()
    used, files, free = disk.used_bytes, disk.open_files, -1
    for free in itertools.count(0, 150):
        disk.bytes_max = used + free
        try:
            give_up(log, DAMAGES[name][1], leader_epoch=5, aside=ASIDE)
        except DiskFull:
            assert log.state.lost_ranges == DAMAGES[name][1]
            assert not [path for path in disk.names if path.endswith(".tmp")], "half a file takes room"
            assert disk.open_files == files
            assert messages_around(log) == whole
        else:
            break
    assert free > 1_000
    assert [path for path in disk.names if path.startswith(ASIDE)]
    check_given_up(log, DAMAGES[name][1], whole)


def messages_around(log: PartitionLog) -> dict[int, bytes]:
    """What can be read beside the lost ranges, by the first offset of each batch."""
    found: dict[int, bytes] = {}
    offset = log.state.log_start_offset
    for start, stop in (*log.state.lost_ranges, (END, END)):
        found |= {verify_batch(m).first_offset: bytes(m) for m in log.reader.messages(offset, start)}
        offset = stop
    return found


def test_a_follower_takes_the_state_file_that_tells_of_what_is_gone() -> None:
    """Or a producer whose last batch is lost would be out of sequence at the next leader."""
    _, log, _ = damaged("in the tail")
    give_up(log, log.state.lost_ranges, leader_epoch=5, aside=ASIDE)
    assert log.handover.rewritten_to() >= 34
