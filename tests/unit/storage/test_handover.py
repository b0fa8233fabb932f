"""Goal: a replica that begins anew, or copies what was written anew, knows what its leader was told; or knows that it
does not.

Method: a leader that has let go of half its log, with an idempotent producer in it, and a follower that begins where
the leader's log begins. The state file goes over in pieces, whole, damaged, late and mixed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.api.errors import DiskFull
from broker.replication.events import Led
from broker.replication.leader import Leader
from broker.storage.log import PartitionLog
from broker.storage.memory.state_files import list_states, state_name
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.segments.checkpoint import LogSettings
from tests.support.compacting import keyed_batch
from tests.support.logs import FOLDER, create_log, open_log, plan_bytes, stamped
from tests.support.published import batch_from_nats, with_id
from tests.support.simdisk import SimDisk

SETTINGS = LogSettings(segment_bytes=3_000, is_sole_replica=False)
WHOLE = 1 << 30


def append(log: PartitionLog, sequence: int, *, epoch: int = 1) -> bool:
    """One group of a producer; whether it was there already."""
    return log.append([stamped([b"%d" % sequence], 7, 0, sequence)], leader_epoch=epoch, now_us=0).duplicate


def copy(leader: PartitionLog, log: PartitionLog, *, is_rewritten: bool = False, end: int | None = None) -> None:
    with leader.reader.read(log.state.log_end_offset, end=end, stored=True, max_bytes=WHOLE) as plan:
        log.append_stored(plan_bytes(plan), leader_epoch=1, now_us=0, is_rewritten=is_rewritten)
    log.syncer.sync()


def begins_anew(leader: PartitionLog) -> tuple[SimDisk, PartitionLog]:
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    log.follow(1)
    log.reset(leader.state.log_start_offset, last_epoch=1)
    copy(leader, log)
    return disk, log


def sent(leader: PartitionLog, log: PartitionLog) -> tuple[int, bytes]:
    """The state file that the leader offers now."""
    offset = leader.handover.offered(log.state.log_start_offset, log.state.durable_end)
    piece = leader.handover.piece(offset, 0, WHOLE)
    assert piece is not None
    data, size = piece
    assert len(data) == size
    return offset, data


@pytest.fixture
def leader() -> PartitionLog:
    """Ten groups; the first seven are gone."""
    log = create_log(SimDisk(), settings=SETTINGS)
    log.lead(1)
    for sequence in range(10):
        append(log, sequence)
        log.state.advance_high_watermark(log.syncer.sync())
    log.trim(7)
    return log


@pytest.mark.parametrize("length", [1, 50, WHOLE])
@pytest.mark.parametrize("restarts", [False, True])
def test_who_begins_anew_knows_what_its_log_does_not_tell(leader: PartitionLog, length: int, restarts: bool) -> None:
    disk, log = begins_anew(leader)
    offset, data = sent(leader, log)
    assert 7 <= offset <= 10
    is_there = False
    for at in range(0, len(data), length):
        assert not is_there
        assert log.handover.lacks
        is_there = log.handover.take(offset, at, data[at : at + length], len(data))
    assert is_there
    assert not log.handover.lacks
    if restarts:
        log = open_log(disk.after_crash("lost"), settings=SETTINGS, boot_id="next")
    log.lead(2)
    assert append(log, 6, epoch=2)
    assert append(log, 9, epoch=2)
    assert not append(log, 10, epoch=2)


def test_what_is_damaged_in_any_byte_or_cut_or_of_another_offset_is_not_taken(leader: PartitionLog) -> None:
    disk, log = begins_anew(leader)
    offset, data = sent(leader, log)
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 0x10
        assert not log.handover.take(offset, 0, bytes(wrong), len(wrong))
        assert not log.handover.take(offset, 0, data[:at], at)
    assert not log.handover.take(offset - 1, 0, data, len(data))
    assert list_states(disk, FOLDER) == []
    assert log.handover.lacks
    assert log.handover.take(offset, 0, data, len(data))


def test_pieces_count_only_one_after_the_other_of_one_file_and_of_one_life_of_the_log(leader: PartitionLog) -> None:
    _, log = begins_anew(leader)
    offset, data = sent(leader, log)
    half, size = len(data) // 2, len(data)
    take = log.handover.take
    assert not take(offset, half, data[half:], size)  # without the first
    assert not take(offset, 0, data[:half], size)
    assert not take(offset, 0, data[:half], size)  # anew
    assert not take(offset, half + 1, data[half + 1 :], size)  # one byte is missing: all of it is forgotten
    assert not take(offset, half, data[half:], size)
    assert not take(offset, 0, data[:half], size)
    assert not take(offset, half, data[half:], size + 1)
    assert not take(offset, 0, data[:half], size)
    log.truncate(log.state.log_end_offset - 1)
    copy(leader, log)
    assert not take(offset, half, data[half:], size)
    assert log.handover.lacks
    assert not take(offset, 0, data[:half], size)
    assert take(offset, half, data[half:], size)


def test_what_tells_of_more_than_is_durable_is_neither_offered_nor_taken(leader: PartitionLog) -> None:
    _, whole = begins_anew(leader)
    offset, data = sent(leader, whole)
    _, log = begins_anew(leader)
    log.truncate(offset - 1)
    assert leader.handover.offered(7, log.state.durable_end) == -1
    assert not log.handover.take(offset, 0, data, len(data))
    copy(leader, log)
    assert log.handover.take(offset, 0, data, len(data))


def test_a_full_disk_takes_no_part_of_it(leader: PartitionLog) -> None:
    disk, log = begins_anew(leader)
    offset, data = sent(leader, log)
    disk.bytes_max = disk.used_bytes + len(data) // 2
    with pytest.raises(DiskFull):
        log.handover.take(offset, 0, data, len(data))
    assert log.handover.lacks
    disk.bytes_max = None
    assert log.handover.take(offset, 0, data, len(data))


def test_who_lacks_one_writes_none_and_writes_nothing_anew(leader: PartitionLog) -> None:
    disk, log = begins_anew(leader)
    for _ in range(3):
        leader.append([keyed_batch([(b"k", b"x" * 900)])], leader_epoch=1, now_us=0)
        copy(leader, log)
    log.state.advance_high_watermark(log.state.durable_end)
    log.roll_if_due(1 << 60)
    log.checkpoint()
    assert log.state.segment_count > 1
    assert log.remembered.rewritable_end() == 0
    assert compact(log, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=1 << 60) is None
    log.close()
    assert list_states(disk, FOLDER) == []
    assert open_log(disk, settings=SETTINGS).handover.lacks


def test_who_leads_without_one_tells_what_its_log_tells(leader: PartitionLog) -> None:
    disk, log = begins_anew(leader)
    log.state.advance_high_watermark(9)
    log.lead(2)
    assert list_states(disk, FOLDER) == [9]
    assert not log.handover.lacks
    assert append(log, 9, epoch=2)
    assert not append(log, 10, epoch=2)


def test_who_leads_on_a_full_disk_tells_what_its_log_tells_once_there_is_room(leader: PartitionLog) -> None:
    """Its file could not be written then. It took its log for one that no producer had come to, and said so in one."""
    disk, log = begins_anew(leader)
    log.state.advance_high_watermark(9)
    disk.bytes_max = disk.used_bytes
    log.lead(2)
    assert log.handover.lacks
    disk.bytes_max = None
    assert append(log, 9, epoch=2)
    assert not append(log, 10, epoch=2)
    log.syncer.sync()
    log = open_log(disk.after_kill(), settings=SETTINGS)
    log.lead(3)
    assert append(log, 9, epoch=3)


def test_who_copies_what_was_written_anew_lacks_one_from_then_on(leader: PartitionLog) -> None:
    """The rule: only a state file tells of records that compaction has removed. The replica's own, older one does
    not."""
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    log.follow(1)
    first = create_log(SimDisk(), settings=SETTINGS)
    first.append([stamped([b"0"], 7, 0, 0)], leader_epoch=1, now_us=0)
    copy(first, log)
    assert not log.handover.lacks
    first.append([stamped([b"1"], 7, 0, 1)], leader_epoch=1, now_us=0)
    copy(first, log, is_rewritten=True)
    assert log.handover.lacks
    assert open_log(disk.after_crash("lost"), settings=SETTINGS, boot_id="next").handover.lacks


def test_a_leader_that_finds_its_file_damaged_makes_another(leader: PartitionLog) -> None:
    _, log = begins_anew(leader)
    offset, data = sent(leader, log)
    leader.state.disk.flip(f"{FOLDER}/{state_name(offset)}", 300)  # type: ignore[attr-defined]
    assert leader.handover.piece(offset, 0, WHOLE) is None
    offset, again = sent(leader, log)
    assert again == data or offset == 10
    assert log.handover.take(offset, 0, again, len(again))
    log.lead(2)
    assert append(log, 6, epoch=2)


def test_a_sole_replica_that_gets_company_says_at_once_that_nobody_was_told_anything() -> None:
    """Its log without a state file had no stamp; as one among others it would lack one, and read all of its log."""
    disk = SimDisk()
    log = create_log(disk)
    log.append([keyed_batch([(b"k", b"x")])], leader_epoch=1, now_us=0)
    log.syncer.sync()
    assert list_states(disk, FOLDER) == []
    log.remembered.update_settings(SETTINGS)
    assert list_states(disk, FOLDER) == [1]
    assert not log.handover.lacks


NOW_US = 10_000_000


def publish(log: PartitionLog, epoch: int, number: int, key: str) -> bool:
    """A message with an id and a key; whether it was there already."""
    end = log.state.log_end_offset
    batch = batch_from_nats([(b"x" * 300, (*with_id(f"id-{number}"), ("Liftlog-Key", key)))], NOW_US)
    return log.append([batch], leader_epoch=epoch, now_us=NOW_US).next_offset == end


@pytest.mark.parametrize("is_committed", [True, False])
def test_what_was_copied_of_an_earlier_leader_is_told_by_a_file_of_this_leadership(is_committed: bool) -> None:
    """The earlier leader has let go of a record, whose id its own state file told. This one still has the record, and
    an older state file: to the copy of the other's log that one says nothing of the id.
    """
    settings = replace(SETTINGS, dedup_window_ms=3_600_000)
    first, second, log = (create_log(SimDisk(), settings=settings) for _ in range(3))
    first.lead(1)
    second.follow(1)
    log.follow(1)
    for number in range(12):
        publish(first, 1, number, "same" if number in (0, 3) else f"other-{number}")
    first.state.advance_high_watermark(first.syncer.sync())
    copy(first, second)
    report = compact(first, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=NOW_US + 1)
    assert report is not None
    assert report.records_gone
    assert first.handover.rewritten_to() > 8
    copy(first, log, is_rewritten=True, end=8)
    assert log.handover.lacks
    second.state.advance_high_watermark(12 if is_committed else 2)
    core = Leader("b")
    second.lead(2)
    log.follow(2)
    core.step(
        Led(
            epoch=2,
            replicas=("a", "b", "c"),
            isr=("a", "b"),
            partition_epoch=1,
            high_watermark=second.state.high_watermark,
            durable_end=12,
            log_end=12,
        )
    )
    assert second.handover.offered(core.state_from(0), log.state.durable_end) == -1, "it has not copied all of that yet"
    with second.reader.read(8, stored=True, max_bytes=WHOLE) as plan:
        log.append_stored(plan_bytes(plan), leader_epoch=2, now_us=0)
    log.syncer.sync()
    offset = second.handover.offered(core.state_from(0), log.state.durable_end)
    assert offset == 12
    found = second.handover.piece(offset, 0, WHOLE)
    assert found is not None
    assert log.handover.take(offset, 0, *found)
    log.lead(3)
    assert publish(log, 3, 0, "same"), "its record is gone here, and its id is not"
    assert publish(log, 3, 11, "same")
    assert not publish(log, 3, 12, "same")


def compacted(*, high_watermark: int = 12) -> tuple[SimDisk, PartitionLog]:
    """A log of twelve messages that has let go of the first, with no checkpoint of its own since."""
    disk = SimDisk()
    log = create_log(disk, settings=replace(SETTINGS, dedup_window_ms=3_600_000))
    log.checkpoint()
    log.lead(1)
    for number in range(12):
        publish(log, 1, number, "same" if number in (0, 3) else f"other-{number}")
    log.syncer.sync()
    log.state.advance_high_watermark(high_watermark)
    report = compact(log, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=NOW_US + 1)
    assert report is not None
    assert report.records_gone
    return disk, log


def test_after_a_power_cut_it_is_known_how_far_records_may_have_gone() -> None:
    """Or who copies them would take its tables for whole."""
    disk, log = compacted()
    wanted = log.handover.rewritten_to()
    assert wanted > 8
    found = open_log(disk.after_crash("lost"), settings=log.state.settings, boot_id="next")
    found.lead(2)
    assert found.handover.rewritten_to() >= wanted


def test_so_it_is_where_they_were_copied() -> None:
    """The state file that came tells of more than is committed."""
    _, first = compacted()
    disk = SimDisk()
    log = create_log(disk, settings=first.state.settings)
    log.checkpoint()
    log.follow(1)
    copy(first, log, is_rewritten=True, end=8)
    log.state.advance_high_watermark(8)
    copy(first, log)
    offset = first.handover.offered(12, log.state.durable_end)
    found = first.handover.piece(offset, 0, WHOLE)
    assert found is not None
    assert log.handover.take(offset, 0, *found)
    for each in (log, open_log(disk.after_crash("lost"), settings=first.state.settings, boot_id="next")):
        if each is not log:
            each.lead(2)
        assert 8 <= each.handover.rewritten_to() <= each.state.high_watermark
