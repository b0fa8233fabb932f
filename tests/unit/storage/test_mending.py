"""Goal: what is damaged is what it was again, of another replica's batches, and nothing else of a log is touched,
whatever crashes meanwhile.

Method: two logs of the same records on fake disks. One is damaged, as in `test_giving_up`; of the other come the
batches, joined otherwise, compacted, of another history, or in part. The power is cut at every step.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from broker.api.batch import decode_batch, encode_batch, verify_batch
from broker.api.errors import BadBatch, CorruptLog, LiftlogError, NotReady, StorageFailed
from broker.storage import tracking
from broker.storage.inspect.inspection import inspect_partition
from broker.storage.log import PartitionLog
from broker.storage.log_reader import LogReader
from broker.storage.recovery import Ranges
from broker.storage.rewrite.clean_state import CleanState, load_clean_state, save_clean_state
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.giving_up import give_up
from broker.storage.rewrite.mending import lower_mark, mend
from tests.support.effort import first_short
from tests.support.logs import FOLDER, commit, create_log, open_log, row_batch, stamped, verified_records
from tests.support.published import batch_from_nats, expecting, with_id
from tests.support.simdisk import Crashed, SimDisk, modes_at
from tests.unit.storage.test_giving_up import (
    DAMAGES,
    END,
    REPLICATED,
    damaged,
    flips,
    found_by_the_scrub,
    led_log,
    messages,
)


def another() -> PartitionLog:
    """A replica that has all of it."""
    return led_log(SimDisk())


def answer(log: PartitionLog, start: int, stop: int) -> bytes:
    """What it answers who asks for a range: whole batches."""
    found = messages(log).values()
    return b"".join(m for m in found if (h := verify_batch(m)).next_offset > start and h.first_offset < stop)


def mend_all(log: PartitionLog, other: PartitionLog) -> None:
    while log.state.lost_ranges:
        lost = log.state.lost_ranges[0]
        mend(log, lost, answer(other, *lost))


def check_mended(log: PartitionLog, records: Sequence[object]) -> None:
    assert found_by_the_scrub(log) == ()
    assert verified_records(log) == records
    expected = 0
    for message in messages(log).values():
        header = verify_batch(message)
        assert (header.first_offset, header.leader_epoch) == (expected, log.epochs.epoch_of(expected))
        expected = header.next_offset
    assert expected == END


def without_indexes(disk: SimDisk) -> SimDisk:
    for index in [path for path in disk.names if path.endswith(".index")]:
        disk.unlink(index)
    return disk


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_what_it_was(name: str) -> None:
    disk, log, _ = damaged(name)
    other = another()
    mend_all(log, other)
    check_mended(log, verified_records(other))
    assert messages(log) == messages(other), "byte for byte"
    found = inspect_partition(disk, FOLDER, in_use=True).findings
    assert [each for each in found if each.kind != "leftover"] == []
    log.append([row_batch([b"after"])], leader_epoch=5, now_us=0)
    commit(log)
    assert not [path for path in disk.names if path.endswith(".tmp")]
    again = open_log(without_indexes(disk).after_crash("kept"), settings=REPLICATED)
    assert (again.state.lost_ranges, again.state.log_end_offset) == ((), END + 1)
    assert found_by_the_scrub(again) == ()


@pytest.mark.parametrize("name", DAMAGES)
def test_who_follows_is_mended_likewise(name: str) -> None:
    _, log, _ = damaged(name)
    log.follow(9)
    mend_all(log, another())
    check_mended(log, verified_records(another()))


@pytest.mark.parametrize("name", first_short(DAMAGES))
def test_power_may_go_at_any_step(name: str) -> None:
    """The rule: the damaged log is there then, or the mended one. Done again it ends as it would have."""
    ranges, other = DAMAGES[name][1], another()
    records = verified_records(other)
    disk, log, whole = damaged(name)
    begun = disk.steps
    mend_all(log, other)
    total = disk.steps
    for step in range(begun + 1, total + 2):
        for mode in (*modes_at(step), "kill"):
            disk, log, _ = damaged(name)
            disk.crash_at = step
            if step <= total:
                with pytest.raises(Crashed):
                    mend_all(log, other)
            else:
                mend_all(log, other)
            after = disk.after_kill() if mode == "kill" else disk.after_crash(mode, seed=step)  # type: ignore[arg-type]
            found = open_log(after, settings=REPLICATED)
            assert found.state.log_end_offset == END, (step, mode)
            found.state.advance_high_watermark(END)
            lost = found_by_the_scrub(found)
            assert set(lost) <= set(ranges), (step, mode)
            there = messages(found)
            assert all(there[at] == message for at, message in whole.items()), (step, mode)
            for start, _ in lost:
                with pytest.raises(CorruptLog), found.reader.read(start):
                    pass
            mend_all(found, other)
            check_mended(found, records)
            assert not [path for path in after.names if path.endswith(".tmp")], (step, mode)


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "sync_dir"])
def test_a_disk_that_refuses_leaves_the_range_lost_and_it_may_be_tried_again(operation: str) -> None:
    disk, log, _ = damaged("over a border of segments")
    other = another()
    [lost] = DAMAGES["over a border of segments"][1]
    for nth in range(20):
        disk.heal()
        disk.fail(operation, errno.EIO, after=nth)
        try:
            mend(log, lost, answer(other, *lost))
        except StorageFailed:
            assert log.state.lost_ranges == (lost,)
        except LiftlogError as error:
            pytest.fail(f"{error!r}")
        else:
            break
    disk.heal()
    check_mended(log, verified_records(other))


@pytest.mark.parametrize(
    "part,left",
    [
        ((10, 12), ((12, 16),)),
        ((12, 14), ((10, 12), (14, 16))),
        ((14, 16), ((10, 14),)),
        ((10, 14), ((14, 16),)),
    ],
)
def test_a_part_may_come_and_the_rest_stays_lost(part: tuple[int, int], left: Ranges) -> None:
    """Two others are damaged in the same range, at different places: each has something."""
    disk, log, _ = damaged("over a border of epochs")
    assert log.state.lost_ranges == ((10, 16),)
    assert mend(log, (10, 16), answer(another(), *part)) == part
    assert log.state.lost_ranges == left
    log.close()
    again = open_log(without_indexes(disk), settings=REPLICATED)
    assert found_by_the_scrub(again) == left
    assert [at for at, *_ in verified_records(again)] == [
        at for at in range(END) if not any(a <= at < b for a, b in left)
    ]
    mend_all(again, another())
    check_mended(again, verified_records(another()))


@pytest.mark.parametrize("name", ["a segment is gone", "a segment is cut"])
def test_a_part_of_a_file_that_is_gone_may_come(name: str) -> None:
    disk, log, _ = damaged(name)
    [(start, stop)] = log.state.lost_ranges
    assert mend(log, (start, stop), answer(another(), start + 2, start + 4)) == (start + 2, start + 4)
    assert log.state.lost_ranges == ((start, start + 2), (start + 4, stop))
    again = open_log(without_indexes(disk.after_crash("kept")), settings=REPLICATED)
    assert found_by_the_scrub(again) == ((start, start + 2), (start + 4, stop))
    mend_all(again, another())
    check_mended(again, verified_records(another()))


def joined() -> PartitionLog:
    """A replica that has joined its batches and its segments."""
    log = led_log(SimDisk())
    settings = CoalescingSettings(min_batch_bytes=1 << 20, segment_bytes=1 << 20)
    while coalesce(log, settings, {}, now_us=1 << 60) is not None:
        pass
    return log


@pytest.mark.parametrize("name", DAMAGES)
def test_another_replica_has_joined_its_batches(name: str) -> None:
    other = joined()
    assert len(messages(other)) < len(messages(another()))
    _, log, whole = damaged(name)
    mend_all(log, other)
    check_mended(log, verified_records(other))
    there = messages(log)
    assert all(there[at] == message for at, message in whole.items())


def test_a_joined_batch_is_damaged_and_another_replica_has_many() -> None:
    log, other = joined(), another()
    disk = log.state.disk
    assert isinstance(disk, SimDisk)
    first = next(at for at, m in messages(log).items() if verify_batch(m).last_offset > at + 1)
    flips(first)(disk, log)
    [(start, stop)] = found_by_the_scrub(log)
    assert stop - start > 2
    mend_all(log, other)
    check_mended(log, verified_records(other))


def test_a_batch_that_is_never_joined_does_not_stick_out() -> None:
    _, log, _ = damaged("in the middle")
    message = messages(another())[4]
    header = replace(verify_batch(message), first_offset=3, last_offset=5)
    for field in ({"producer_id": 7}, {"group_count": 2}, {"decision": 9}):
        forged = bytes(encode_batch(decode_batch(message), replace(header, **field)))
        with pytest.raises(BadBatch, match="sticks out"):
            mend(log, (4, 6), forged)
        assert log.state.lost_ranges == ((4, 6),)
    assert not [path for path in log.state.disk.names if path.endswith(".tmp")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("epoch", [0, 2, 5])
def test_records_of_another_history_are_refused(epoch: int) -> None:
    _, log, whole = damaged("in the middle")
    message = messages(another())[4]
    forged = bytes(encode_batch(decode_batch(message), replace(verify_batch(message), leader_epoch=epoch)))
    with pytest.raises(BadBatch, match=f"leader epoch {epoch}"):
        mend(log, (4, 6), forged)
    assert log.state.lost_ranges == ((4, 6),)
    assert messages(log) == whole


def test_a_batch_over_a_border_of_epochs_is_refused() -> None:
    """A log that has joined over it has another history."""
    _, log, _ = damaged("over a border of epochs")
    other = another()
    message = messages(other)[10]
    forged = bytes(encode_batch(decode_batch(message), replace(verify_batch(message), last_offset=13)))
    with pytest.raises(BadBatch, match="leader epoch 1"):
        mend(log, (10, 16), forged)


@pytest.mark.parametrize("what", ["nothing", "before", "behind", "damaged", "cut", "a hole"])
def test_what_came_is_no_use(what: str) -> None:
    _, log, whole = damaged("over a border of segments")
    other = another()
    data = {
        "nothing": b"",
        "before": answer(other, 0, 8),
        "behind": answer(other, 12, 20),
        "damaged": bytes(b ^ (at == 900) for at, b in enumerate(answer(other, 8, 12))),
        "cut": answer(other, 8, 12)[:-8],
        "a hole": answer(other, 8, 10) + answer(other, 12, 14),
    }[what]
    with pytest.raises(BadBatch):
        mend(log, (8, 12), data)
    assert log.state.lost_ranges == ((8, 12),)
    assert messages(log) == whole


@pytest.mark.parametrize("what", ["mended", "given up"])
def test_an_index_that_is_gone_or_lacks_something_is_made_anew_first(what: str) -> None:
    """It was an internal error, of both."""
    disk, log, _ = damaged("in the middle")
    log.close()
    again = open_log(without_indexes(disk), settings=REPLICATED)
    again.state.advance_high_watermark(END)
    if what == "mended":
        mend(again, (4, 6), answer(another(), 4, 6))
        check_mended(again, verified_records(another()))
    else:
        again.lead(9)
        give_up(again, ((4, 6),), leader_epoch=9, aside=f"{FOLDER}.aside")
        assert found_by_the_scrub(again) == ()


def test_what_is_not_lost_is_not_touched() -> None:
    _, log, whole = damaged("in the middle")
    for lost in ((0, 2), (4, 8), (2, 6)):
        with pytest.raises(CorruptLog, match="lost are"):
            mend(log, lost, answer(another(), *lost))
    assert messages(log) == whole


def test_more_damage_that_is_found_on_the_way_ends_it() -> None:
    disk, log, _ = damaged("in the middle")
    flips(8)(disk, log)
    with pytest.raises(CorruptLog, match="more is damaged"):
        mend(log, (4, 6), answer(another(), 4, 6))
    assert log.state.lost_ranges == ((4, 6), (8, 10))
    mend_all(log, another())
    check_mended(log, verified_records(another()))


def test_what_lies_below_the_log_start_counts_no_more() -> None:
    """A trim names an offset: a log may begin within a batch, and it is that batch which is damaged."""
    for other_start in (0, 5):
        disk = SimDisk()
        log, other = led_log(disk), another()
        log.trim(5)
        other.trim(other_start)
        flips(4)(disk, log)
        assert found_by_the_scrub(log) == ((5, 6),)
        mend_all(log, other)
        assert found_by_the_scrub(log) == ()
        assert verified_records(log) == [each for each in verified_records(another()) if each[0] >= 5]


def test_another_replica_has_compacted_less_and_the_mark_goes_down_before() -> None:
    """Below the mark no key stands twice, and a record of an older life of a key comes back here."""
    disk, log, _ = damaged("over a border of segments")
    save_clean_state(disk, FOLDER, CleanState(cleaned_to=30, horizons=((30, 7),)))
    log.state.note_compacted(30)
    cuts = log.state.cuts
    lower_mark(log, 8)
    assert (log.state.compacted_to, load_clean_state(disk, FOLDER).cleaned_to) == (8, 8)
    assert load_clean_state(disk.after_crash("lost"), FOLDER).cleaned_to == 8
    assert log.state.cuts > cuts, "a pass that is under way is not minded"
    save_clean_state(disk, FOLDER, CleanState(cleaned_to=30))
    begun = disk.steps
    mend_all(log, another())
    for step in range(begun + 1, disk.steps):
        disk, log, _ = damaged("over a border of segments")
        save_clean_state(disk, FOLDER, CleanState(cleaned_to=30))
        disk.crash_at = disk.steps + step - begun
        with pytest.raises(Crashed):
            mend_all(log, another())
        after = disk.after_crash("kept")
        found = open_log(after, settings=REPLICATED)
        found.state.advance_high_watermark(END)
        is_there = not found_by_the_scrub(found)
        assert not is_there or load_clean_state(after, FOLDER).cleaned_to <= 8, step


def test_what_may_be_gone_there_for_newer_records_is_said_here_before_it_comes() -> None:
    """The newer record may be above this log's end: a log that is cut below it begins anew (`follower.F10`)."""
    other = another()

    def mend_in_two_steps(log: PartitionLog) -> None:
        mend(log, (8, 12), answer(other, 8, 10), superseded=(50, 6))
        mend(log, (10, 12), answer(other, 10, 12), superseded=(30, 5))

    disk, log, _ = damaged("over a border of segments")
    mend_in_two_steps(log)
    assert log.state.superseded == (50, 6)
    begun, total = damaged("over a border of segments")[0].steps, disk.steps
    for step in range(begun + 1, total):
        disk, log, _ = damaged("over a border of segments")
        disk.crash_at = step
        with pytest.raises(Crashed):
            mend_in_two_steps(log)
        found = open_log(disk.after_crash("kept"), settings=REPLICATED)
        found.state.advance_high_watermark(END)
        assert (8, 12) in found_by_the_scrub(found) or found.state.superseded == (50, 6), step


def test_a_log_that_is_closed_or_was_cut_is_not_mended() -> None:
    _, log, _ = damaged("in the middle")
    log.follow(9)
    log.truncate(4)
    with pytest.raises(CorruptLog, match="lost are"):
        mend(log, (4, 6), answer(another(), 4, 6))
    _, log, _ = damaged("in the middle")
    log.close()
    with pytest.raises(StorageFailed):
        mend(log, (4, 6), answer(another(), 4, 6))


def loses(*bases: int) -> tuple[SimDisk, PartitionLog]:
    """A log whose files are gone."""
    disk = SimDisk()
    log = led_log(disk)
    for base in bases:
        disk.unlink(f"{FOLDER}/{base:020d}.arrows")
    disk.sync_dir(FOLDER)
    found_by_the_scrub(log)
    log.checkpoint()
    return disk, log


FIRST_FILES = {"first": (0,), "two": (0, 10), "first and third": (0, 20), "all but the tail": (0, 10, 20)}


@pytest.mark.parametrize("name", FIRST_FILES)
@pytest.mark.parametrize("other", [another, joined])
def test_the_first_files_are_gone(name: str, other: Callable[[], PartitionLog]) -> None:
    disk, log = loses(*FIRST_FILES[name])
    assert log.state.lost_ranges[0][0] == 0
    mend_all(log, other())
    check_mended(log, verified_records(another()))
    log.append([row_batch([b"after"])], leader_epoch=5, now_us=0)
    commit(log)
    again = open_log(without_indexes(disk).after_crash("kept"), settings=REPLICATED)
    assert (again.state.lost_ranges, again.state.log_end_offset) == ((), END + 1)
    assert found_by_the_scrub(again) == ()


@pytest.mark.parametrize("part", [(0, 4), (4, 6), (6, 10), (8, 14)])
def test_of_the_first_files_a_part_may_come(part: tuple[int, int]) -> None:
    disk, log = loses(0, 10)
    assert mend(log, (0, 20), answer(another(), *part)) == part
    left = tuple(each for each in ((0, part[0]), (part[1], 20)) if each[0] < each[1])
    assert log.state.lost_ranges == left
    again = open_log(without_indexes(disk.after_crash("kept")), settings=REPLICATED)
    again.state.advance_high_watermark(END)
    assert found_by_the_scrub(again) == left
    mend_all(again, another())
    check_mended(again, verified_records(another()))


def test_the_log_starts_within_the_first_batch_and_its_file_is_gone() -> None:
    disk = SimDisk()
    log = led_log(disk)
    log.trim(11)
    disk.unlink(f"{FOLDER}/{10:020d}.arrows")
    assert found_by_the_scrub(log) == ((11, 20),)
    mend_all(log, another())
    assert found_by_the_scrub(log) == ()
    assert verified_records(log) == [each for each in verified_records(another()) if each[0] >= 11]
    assert log.reader.batch_start(11) == 10


@pytest.mark.parametrize("part", first_short(range(4)))
def test_power_may_go_while_the_first_file_is_made(part: int) -> None:
    """Every step, in four parts."""
    other = another()
    disk, log = loses(0)
    begun = disk.steps
    mend_all(log, other)
    total = disk.steps
    for step in range(begun + 1 + part, total + 1, 4):
        for mode in (*modes_at(step), "kill"):
            disk, log = loses(0)
            disk.crash_at = step
            with pytest.raises(Crashed):
                mend_all(log, other)
            after = disk.after_kill() if mode == "kill" else disk.after_crash(mode, seed=step)  # type: ignore[arg-type]
            found = open_log(after, settings=REPLICATED)
            found.state.advance_high_watermark(END)
            assert found_by_the_scrub(found) in ((), ((0, 10),)), (step, mode)
            mend_all(found, other)
            check_mended(found, verified_records(other))
            assert not [path for path in after.names if path.endswith(".tmp")], (step, mode)


def test_the_tables_are_read_again_if_they_were_read_around_it() -> None:
    """A producer whose batch was damaged is known again: its repeat is found."""
    _, log, _ = damaged("in the tail")
    log.remembered.forget()
    log.remembered.known()
    mend_all(log, another())
    assert log.remembered.memory is None
    assert log.remembered.known().end == END


def longer_log(disk: SimDisk) -> PartitionLog:
    """With a last batch of a producer, and a message with an id, that no state file tells of."""
    log = create_log(disk, settings=replace(REPLICATED, dedup_window_ms=120_000))
    log.lead(5)
    log.append([row_batch([b"v"])], leader_epoch=5, now_us=0)
    for _ in range(2):
        log.append([stamped([b"p" * 50] * 2, 7, 0, 0)], leader_epoch=5, now_us=0)
        log.append([batch_from_nats([(b"v" * 100, with_id("a"))], 0)], leader_epoch=5, now_us=0)
    log.append([row_batch([b"v"])], leader_epoch=5, now_us=0)
    commit(log)
    assert log.state.log_end_offset == 5, "each was stored once"
    log.checkpoint()
    return log


def repeats(log: PartitionLog, *, now_us: int = 1) -> list[bool]:
    """Send both once more: whether each was stored, in epoch 6."""
    before = log.state.log_end_offset
    found = []
    for batch in (stamped([b"p" * 50] * 2, 7, 0, 0), batch_from_nats([(b"v" * 100, with_id("a"))], 0)):
        log.append([batch], leader_epoch=6, now_us=now_us)
        found.append(log.state.log_end_offset > before)
    commit(log)
    return found


def longer_and_damaged() -> tuple[SimDisk, PartitionLog]:
    """Both are damaged, and a broker starts with that."""
    disk = SimDisk()
    log = longer_log(disk)
    flips(1, 3)(disk, log)
    disk = disk.after_kill()
    log = open_log(disk, settings=log.state.settings, now_us=0)
    log.lead(6)
    log.state.advance_high_watermark(5)
    assert found_by_the_scrub(log) == ((1, 4),)
    return disk, log


def check_decides_nothing(log: PartitionLog) -> None:
    for batch in (stamped([b"p" * 50] * 2, 7, 0, 0), batch_from_nats([(b"v" * 100, with_id("a"))], 0)):
        with pytest.raises(NotReady, match="are damaged here"):
            log.append([batch], leader_epoch=6, now_us=1)
    assert log.state.log_end_offset == 5


@pytest.mark.parametrize("then", ["goes on", "is killed", "stops"])
def test_nothing_that_was_damaged_is_stored_again(then: str) -> None:
    """`remembered.U5`: neither before it is mended nor after, and no state file is made that lacks it."""
    disk, log = longer_and_damaged()
    check_decides_nothing(log)
    log.roll_if_due(1 << 60)
    log.checkpoint()
    if then == "stops":
        log.close()
    if then != "goes on":
        disk = disk.after_kill()
        log = open_log(disk, settings=log.state.settings, now_us=0)
        log.lead(6)
        check_decides_nothing(log)
    assert [each for each in log.remembered.states.offsets if each > 1] == []
    log.append([row_batch([b"of nobody"])], leader_epoch=6, now_us=1)
    commit(log)
    mend(log, (1, 4), answer(longer_log(SimDisk()), 1, 4))
    assert repeats(log) == [False, False]
    log.close()
    log = open_log(disk, settings=log.state.settings, now_us=1)
    log.lead(6)
    assert repeats(log, now_us=2) == [False, False]


def test_a_follower_that_lacks_a_state_file_gets_one_later_and_is_answered_meanwhile() -> None:
    """A fetch without an answer would count against the leader."""
    _, log = longer_and_damaged()
    assert log.handover.offered(5, 5) == -1
    mend(log, (1, 4), answer(longer_log(SimDisk()), 1, 4))
    assert log.handover.offered(5, 5) == 5


def test_no_state_file_is_made_of_what_is_mended_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The damage is found by that read, and the log is whole when it ends."""
    disk, other, read = SimDisk(), longer_log(SimDisk()), LogReader.messages
    held = answer(other, 1, 4)
    flips(1, 3)(disk, longer_log(disk))
    disk = disk.after_kill()
    log = open_log(disk, settings=other.state.settings, now_us=0)
    log.lead(6)
    log.state.advance_high_watermark(5)
    log.append([row_batch([b"of nobody"])], leader_epoch=6, now_us=0)

    def read_slowly(reader: LogReader, offset: int, end: int | None, *, whole: bool = False) -> Iterator[memoryview]:
        found = list(read(reader, offset, end, whole=whole))
        if log.state.lost_ranges:
            mend(log, (1, 4), held)
        yield from found

    monkeypatch.setattr(LogReader, "messages", read_slowly)
    with pytest.raises(NotReady, match="meanwhile"):
        log.remembered.keep_committed()
    monkeypatch.undo()
    assert not log.state.lost_ranges
    commit(log)
    assert repeats(log) == [False, False]
    log.remembered.keep_committed()
    log = open_log(disk.after_kill(), settings=other.state.settings, now_us=1)
    log.lead(6)
    assert repeats(log, now_us=2) == [False, False]


def test_what_is_given_up_or_trimmed_decides_nothing_any_more() -> None:
    _, log = longer_and_damaged()
    check_decides_nothing(log)
    give_up(log, ((1, 4),), leader_epoch=6, aside=f"{FOLDER}.aside")
    assert repeats(log) == [True, True]
    _, log = longer_and_damaged()
    check_decides_nothing(log)
    log.append([row_batch([b"of nobody"])], leader_epoch=6, now_us=1)
    commit(log)
    log.roll_if_due(1 << 60)
    log.trim(4)
    assert repeats(log) == [True, True]


def test_ids_are_decided_once_what_is_damaged_is_older_than_their_window() -> None:
    _, log = longer_and_damaged()
    check_decides_nothing(log)
    log.append([batch_from_nats([(b"v", with_id("a"))], 0)], leader_epoch=6, now_us=10**9)
    assert log.state.log_end_offset == 6


def tracked_log(disk: SimDisk) -> PartitionLog:
    """The last record of "s" is the third one, of three. What the state file of subjects knows ends before it."""
    log = create_log(disk, settings=REPLICATED)
    log.lead(5)
    log.append([batch_from_nats([(b"v" * 100, expecting(0))], 0)], leader_epoch=5, now_us=0)
    commit(log)
    log.checkpoint()
    for _ in range(2):
        log.append([batch_from_nats([(b"v" * 100, ())], 0)], leader_epoch=5, now_us=0)
    log.append([row_batch([b"v" * 100])], leader_epoch=5, now_us=0)
    commit(log)
    log.checkpoint()
    return log


def tracked_and_damaged() -> tuple[SimDisk, PartitionLog]:
    disk = SimDisk()
    flips(2)(disk, tracked_log(disk))
    disk = disk.after_kill()
    log = open_log(disk, settings=REPLICATED, now_us=0)
    log.lead(6)
    log.state.advance_high_watermark(4)
    return disk, log


def update(log: PartitionLog, expected: int) -> bool:
    """Whether a record of "s" is stored by who has seen `expected`."""
    before = log.state.log_end_offset
    log.append([batch_from_nats([(b"v", expecting(expected))], 1)], leader_epoch=6, now_us=1)
    commit(log)
    return log.state.log_end_offset > before


@pytest.mark.parametrize("is_read_at_once", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
def test_nothing_is_expected_of_a_subject_while_its_last_record_may_be_damaged(
    is_read_at_once: bool, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`remembered.U5`: who has seen the second record would overwrite the third, which he has not seen."""
    disk, log = tracked_and_damaged()
    if not is_read_at_once:
        monkeypatch.setattr(tracking, "BUILT_AT_ONCE_BYTES", -1)
    if is_known:
        assert found_by_the_scrub(log) == ((2, 3),)
    if not is_read_at_once:
        assert not update(log, 2), "it is not known yet"
        monkeypatch.undo()
        while log.tracking.build():
            pass
    for _ in range(2):
        with pytest.raises(NotReady, match="are damaged here"):
            update(log, 2)
        log.checkpoint()
    log.append([row_batch([b"of nobody"])], leader_epoch=6, now_us=1)
    commit(log)
    mend(log, (2, 3), answer(tracked_log(SimDisk()), 2, 3))
    assert not update(log, 2)
    log.close()
    log = open_log(disk, settings=REPLICATED, now_us=1)
    log.lead(6)
    assert not update(log, 2)
    assert update(log, 3)


def test_it_is_mended_while_the_table_of_subjects_is_built_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    (_, log), other = tracked_and_damaged(), tracked_log(SimDisk())
    monkeypatch.setattr(tracking, "BUILT_AT_ONCE_BYTES", -1)
    monkeypatch.setattr(tracking, "PIECE_BYTES", 1)
    assert not update(log, 2), "it is not known yet"
    for _ in range(3):
        assert log.tracking.build()
    assert log.state.lost_ranges == ((2, 3),)
    mend(log, (2, 3), answer(other, 2, 3))
    monkeypatch.undo()
    while log.tracking.build():
        pass
    assert not update(log, 2)
    assert update(log, 3)


def keyed_log(disk: SimDisk) -> PartitionLog:
    """Messages of one key, each with an id that no state file tells of."""
    log = create_log(disk, settings=replace(REPLICATED, dedup_window_ms=120_000, is_compacted=True))
    log.lead(5)
    log.append([row_batch([b"v"])], leader_epoch=5, now_us=0)
    for name in ("a", "b", "c"):
        headers = (*with_id(name), ("Liftlog-Key", "k"))
        log.append([batch_from_nats([(b"v" * 100, headers)], 0)], leader_epoch=5, now_us=0)
    commit(log)
    log.checkpoints.keep()
    return log


def compacted() -> PartitionLog:
    """Of which the last is left."""
    log = keyed_log(SimDisk())
    log.roll_if_due(1 << 60)
    commit(log)
    compact(log, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=1 << 60)
    assert log.state.superseded[0] == 4
    return log


def stores_the_first_again(log: PartitionLog) -> bool:
    before, again = log.state.log_end_offset, batch_from_nats([(b"v" * 100, (*with_id("a"), ("Liftlog-Key", "k")))], 1)
    log.append([again], leader_epoch=log.epochs.latest, now_us=1)
    return log.state.log_end_offset > before


def test_what_came_without_a_record_that_had_gone_does_not_tell_its_id() -> None:
    """M5: the repeat of an older value of a key would come to stand above the newer one."""
    disk, other = SimDisk(), compacted()
    flips(1)(disk, keyed_log(disk))
    log = open_log(disk.after_kill(), settings=other.state.settings, now_us=0)
    log.lead(6)
    log.state.advance_high_watermark(4)
    assert found_by_the_scrub(log) == ((1, 2),)
    with pytest.raises(BadBatch, match="state file"):
        mend(log, (1, 2), answer(other, 1, 2), superseded=other.state.superseded)
    with pytest.raises(NotReady):
        stores_the_first_again(log)
    assert log.state.lost_ranges == ((1, 2),)


def test_where_the_id_is_known_a_state_file_tells_of_it_before_it_comes() -> None:
    disk, other = SimDisk(), compacted()
    log = keyed_log(disk)
    flips(1)(disk, log)
    assert found_by_the_scrub(log) == ((1, 2),)
    assert mend(log, (1, 2), answer(other, 1, 2), superseded=other.state.superseded) == (1, 2)
    assert not stores_the_first_again(log)
    log = open_log(disk.after_kill(), settings=other.state.settings, now_us=0)
    log.lead(6)
    assert not stores_the_first_again(log)
