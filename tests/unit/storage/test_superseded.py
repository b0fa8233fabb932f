"""The mark of the records for which others may be gone: on disk before the first of them goes, there as long as a
record is. (`clean_state`, `compaction.Q4`, `truncate.L10`, `follower.F10`, `follower.F12`.)

`k` stands at 20 and at 40. One replica has compacted all of its log, or some; the leader that an operator chose ends in
between. A replica that follows that leader has its `k`, whenever a power cut, a kill or a cut came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from broker.api.errors import BadBatch, OffsetOutOfRange
from broker.replication import following as f
from broker.storage.log import PartitionLog
from broker.storage.rewrite.clean_state import CLEAN_STATE_FILE, CleanState, load_clean_state, save_clean_state
from broker.storage.rewrite.compaction import CompactionReport, CompactionSettings, compact
from broker.storage.rewrite.mending import mend
from broker.storage.segments.checkpoint import CHECKPOINT_FILE, Checkpoint, LogSettings
from broker.storage.writing.replace import sealed_segments
from tests.support.compacting import keyed_batch, keyed_records
from tests.support.effort import first_short
from tests.support.followed import follow
from tests.support.logs import FOLDER, create_log, open_log
from tests.support.simdisk import Crashed, SimDisk
from tests.unit.storage.test_giving_up import flips, found_by_the_scrub
from tests.unit.storage.test_mending import answer

SETTINGS = LogSettings(segment_bytes=6_000, is_sole_replica=False, is_compacted=True)
OLD, NEW, CHOSEN_END, END = 20, 40, 30, 60


def log_of(end: int, *, disk: SimDisk | None = None) -> PartitionLog:
    """Has led in epoch 1 up to there, and follows nobody yet."""
    log = create_log(disk or SimDisk(), settings=SETTINGS)
    log.lead(1)
    extend(log, end, epoch=1)
    return log


def extend(log: PartitionLog, end: int, *, epoch: int) -> None:
    for at in range(log.state.log_end_offset, end):
        key = b"k" if epoch == 1 and at in (OLD, NEW) else b"%d-%d" % (epoch, at)
        log.append([keyed_batch([(key, b"%d" % at)])], leader_epoch=epoch, now_us=1)
    log.state.advance_high_watermark(log.syncer.sync())


def chosen(end: int = CHOSEN_END) -> PartitionLog:
    """The leader of epoch 5, chosen by an operator."""
    log = log_of(end)
    log.lead(5)
    extend(log, end + 1, epoch=5)
    return log


def run_pass(log: PartitionLog, throttle: Callable[[int], None] = lambda _: None) -> CompactionReport | None:
    settings = CompactionSettings(min_cleanable_dirty_percent=0)
    return compact(log, settings, map_bytes=1 << 16, now_us=10**15, throttle=throttle)


class Stopped(Exception):
    """The broker ends."""


def half_a_pass(log: PartitionLog) -> None:
    """Stopped once `k@20` is gone."""

    def throttle(_: int) -> None:
        if OLD not in keyed_records(log):
            raise Stopped

    with pytest.raises(Stopped):
        run_pass(log, throttle)
    assert log.state.compacted_to == 0


def check_follows(log: PartitionLog, leader: PartitionLog, epoch: int = 5) -> list[f.Effect]:
    """It becomes a copy in which each key of the leader's has its newest value."""
    done = follow(log, leader, epoch)
    log.state.advance_high_watermark(log.state.log_end_offset)
    assert log.state.log_end_offset == leader.state.log_end_offset
    there, here = (dict(keyed_records(one).values()) for one in (leader, log))
    assert there == here
    return done


def outcomes(disk: SimDisk) -> Iterator[PartitionLog]:
    """The log as the next process finds it."""
    yield open_log(disk.after_kill(), settings=SETTINGS, boot_id="")
    for mode in ("lost", "kept", "reordered"):
        yield open_log(disk.after_crash(mode, seed=disk.steps), settings=SETTINGS, boot_id="")  # type: ignore[arg-type]


PARTS = 6
each_part = pytest.mark.parametrize("part", first_short(range(PARTS)))


def each_step(
    make: Callable[[], PartitionLog], act: Callable[[PartitionLog], object], part: int | None = None
) -> Iterator[PartitionLog]:
    """The power is cut at each step that `act` makes on the disk, or at a part of them; then the log as it is found."""
    stride = 1 if part is None else PARTS
    step, is_done, first = 1 + (part or 0) - stride, False, make().state.disk
    assert isinstance(first, SimDisk)
    while not is_done:
        step += stride
        disk = first.after_kill()
        log = open_log(disk, settings=SETTINGS, boot_id="")
        disk.crash_at = disk.steps + step
        try:
            act(log)
            is_done = True
        except Crashed:
            yield from outcomes(disk)
    assert step > 3 * stride


def test_half_a_pass_and_a_leader_that_ends_within_it() -> None:
    log = log_of(END)
    half_a_pass(log)
    for found in (log, open_log(log.state.disk.after_kill(), settings=SETTINGS)):  # type: ignore[attr-defined]
        assert found.state.superseded == (sealed_segments(found.state)[-1][1], 1)
        assert isinstance(check_follows(found, chosen())[0], f.Reset)
        assert found.state.superseded == (0, -1)


@pytest.mark.slow
@each_part
def test_a_power_cut_at_each_step_of_a_pass(part: int) -> None:
    gone, leader = 0, chosen()

    def committed(log: PartitionLog) -> None:
        log.state.advance_high_watermark(log.state.log_end_offset)
        run_pass(log)

    for log in each_step(lambda: log_of(END), committed, part):
        log.state.advance_high_watermark(log.state.log_end_offset)
        gone += OLD not in keyed_records(log)
        check_follows(log, leader)
    assert gone


@pytest.mark.slow
@each_part
def test_a_power_cut_at_each_step_of_beginning_anew(part: int) -> None:
    def make() -> PartitionLog:
        log = log_of(END)
        run_pass(log)
        return log

    def reset(log: PartitionLog) -> None:
        log.follow(5)
        log.reset(0)

    leader = chosen()
    for log in each_step(make, reset, part):
        check_follows(log, leader, epoch=5)


@pytest.mark.slow
@each_part
def test_a_power_cut_at_each_step_of_a_copy_of_a_compacted_log(part: int) -> None:
    """It has the leader's gaps, and no leader's mark but that one's."""
    source = log_of(END)
    run_pass(source)

    def make() -> PartitionLog:
        return create_log(SimDisk(), settings=SETTINGS)

    def copy(log: PartitionLog) -> None:
        follow(log, source, 2, upto=OLD + 5)

    source.lead(2)
    gone, leader = 0, chosen()
    for log in each_step(make, copy, part):
        gone += log.state.log_end_offset > OLD
        check_follows(log, leader)
    assert gone


@pytest.mark.parametrize("end", [OLD + 1, CHOSEN_END, NEW, NEW + 1, END])
def test_an_interrupted_copy_goes_on_with_who_has_what_it_lacks(end: int) -> None:
    source, log = log_of(END), create_log(SimDisk(), settings=SETTINGS)
    run_pass(source)
    source.lead(2)
    follow(log, source, 2, upto=end)
    assert log.state.superseded == (source.state.superseded[0], 1)
    other = log_of(END)
    other.lead(3)
    extend(other, END + 5, epoch=3)
    assert {type(effect) for effect in check_follows(log, other, 3)} == {f.Append}


def test_an_interrupted_copy_begins_anew_with_who_has_not() -> None:
    source, log = log_of(END), create_log(SimDisk(), settings=SETTINGS)
    run_pass(source)
    source.lead(2)
    follow(log, source, 2, upto=OLD + 2)
    assert log.state.log_end_offset < CHOSEN_END
    done = check_follows(log, chosen())
    assert isinstance(done[0], f.Reset)
    assert log.state.superseded == (0, -1)


def test_a_copy_of_a_copy_has_the_mark_too() -> None:
    source, between, log = log_of(END), *(create_log(SimDisk(), settings=SETTINGS) for _ in range(2))
    run_pass(source)
    source.lead(2)
    follow(between, source, 2)
    between.state.advance_high_watermark(between.state.log_end_offset)
    between.lead(3)
    follow(log, between, 3)
    assert log.state.superseded == source.state.superseded
    check_follows(log, chosen())


def test_a_pass_that_begins_while_the_cut_is_on_its_way() -> None:
    """The core knows the mark of before."""
    log = log_of(END)

    def meanwhile(effect: f.Effect) -> None:
        if isinstance(effect, f.Truncate) and not log.state.compacted_to:
            half_a_pass(log)
            run_pass(log)

    done = follow(log, chosen(), 5, before=meanwhile)
    assert [type(effect) for effect in done[:2]] == [f.Truncate, f.Reset]
    assert OLD in keyed_records(log)


def test_a_pass_that_takes_nothing_away_leaves_a_cut_a_cut() -> None:
    log = log_of(NEW)  # without the newer one
    assert run_pass(log) is not None
    assert log.state.compacted_to > CHOSEN_END
    assert log.state.superseded == (0, -1)
    assert isinstance(check_follows(log, chosen())[0], f.Truncate)


def test_a_second_pass_raises_the_mark_before_it_takes_away_more() -> None:
    log = log_of(NEW)
    run_pass(log)
    extend(log, END, epoch=1)
    half_a_pass_from = log.state.compacted_to
    assert 0 < half_a_pass_from < NEW

    def throttle(_: int) -> None:
        if OLD not in keyed_records(log):
            raise Stopped

    with pytest.raises(Stopped):
        run_pass(log, throttle)
    assert log.state.compacted_to == half_a_pass_from
    check_follows(log, chosen())


def test_each_round_of_a_pass_has_a_mark_of_its_own() -> None:
    """The map takes some of the keys."""
    for rounds in range(1, 6):
        log = log_of(END)
        for _ in range(rounds):
            settings = CompactionSettings(min_cleanable_dirty_percent=0)
            compact(log, settings, map_bytes=24 * 16, now_us=10**15)
            is_gone = OLD not in keyed_records(log)
            assert not is_gone or log.state.superseded[0] > NEW
        check_follows(log, chosen())


@pytest.mark.parametrize("damage", ["missing", "torn", "of an earlier release"])
def test_a_mark_that_is_not_known_counts_as_the_high_watermark(damage: str) -> None:
    log = log_of(END)
    half_a_pass(log)
    log.checkpoint()
    disk = log.state.disk.after_kill()  # type: ignore[attr-defined]
    break_mark(disk, damage)
    found = open_log(disk, settings=SETTINGS)
    assert found.state.superseded == (END, 1)
    found.follow(2)  # it does not rise by itself
    assert load_clean_state(disk, FOLDER).superseded_to == END
    assert isinstance(check_follows(found, chosen())[0], f.Reset)


@pytest.mark.parametrize(("damage", "kept"), [("missing", 0), ("torn", END), ("of an earlier release", END)])
def test_a_log_that_is_not_compacted_needs_no_mark(damage: str, kept: int) -> None:
    disk = SimDisk()
    log_of(END, disk=disk).checkpoint()
    disk = disk.after_kill()
    break_mark(disk, damage)
    found = open_log(disk, settings=replace(SETTINGS, is_compacted=False))
    assert found.state.superseded[0] == kept


def break_mark(disk: SimDisk, damage: str) -> None:
    path = f"{FOLDER}/{CLEAN_STATE_FILE}"
    if damage == "of an earlier release":
        save_clean_state(disk, FOLDER, CleanState())
        state = disk.read_file(path)
        assert b'"superseded_to":-1' in state
    elif damage == "torn":
        disk.replace_file(path, b"{}")
    elif disk.exists(path):
        disk.unlink(path)


def test_a_log_that_has_lost_its_end_keeps_the_mark() -> None:
    """The disk has taken back what it had fsynced, the newer record with it, and the checkpoint of then."""
    log = log_of(END)
    run_pass(log)
    disk = log.state.disk.after_kill()  # type: ignore[attr-defined]
    end = 0
    for segment, after in sealed_segments(log.state):
        if segment.base_offset > OLD + 2:
            segment.unlink(disk)
        else:
            end = after
    tail = log.state.chain.tail
    assert tail is not None
    tail.unlink(disk)
    point = Checkpoint(high_watermark=end, recovery_point=end, leader_epoch=1)
    disk.replace_file(f"{FOLDER}/{CHECKPOINT_FILE}", point.encode())
    found = open_log(disk, settings=SETTINGS, boot_id="")
    assert not found.state.lost_ranges
    assert OLD < found.state.log_end_offset < CHOSEN_END < NEW < found.state.superseded[0]
    assert isinstance(check_follows(found, chosen())[0], f.Reset)


def test_who_leads_lacks_nothing() -> None:
    """An operator chose a copy that was interrupted. A copy of that one is not told of what nobody has."""
    source, log = log_of(END), create_log(SimDisk(), settings=SETTINGS)
    run_pass(source)
    source.lead(2)
    follow(log, source, 2, upto=OLD + 2)
    log.lead(5)
    assert log.state.superseded == (log.state.log_end_offset, 1)
    again = open_log(log.state.disk.after_kill(), settings=SETTINGS)  # type: ignore[attr-defined]
    assert again.state.superseded == (log.state.log_end_offset, 1)


def test_an_empty_log_forgets_whom_it_copied_before() -> None:
    source, log = log_of(END), create_log(SimDisk(), settings=SETTINGS)
    log.state.raise_superseded(50, 1)  # and then the power was cut, before there was a record
    source.lead(2)
    follow(log, source, 2, upto=5)
    assert log.state.superseded == (0, -1)


@pytest.mark.parametrize("to", [0, OLD, CHOSEN_END])
def test_no_cut_below_the_mark_but_of_what_is_copied_again(to: int) -> None:
    log = log_of(END)
    run_pass(log)
    mark = log.state.superseded
    log.follow(5)
    with pytest.raises(OffsetOutOfRange, match="gone for newer ones"):
        log.truncate(to)
    assert log.state.log_end_offset == END
    log.truncate(to, is_copied_again=True)
    assert log.state.log_end_offset <= to
    assert log.state.superseded == mark
    assert log.state.compacted_to <= to


def damaged_at(log: PartitionLog, offset: int) -> PartitionLog:
    """The next process finds it so: a record below all that this is about cannot be read."""
    log.checkpoint()
    disk = log.state.disk.after_kill()  # type: ignore[attr-defined]
    log = open_log(disk, settings=SETTINGS)
    flips(offset)(disk, log)
    assert found_by_the_scrub(log) == ((offset, offset + 1),)
    log.checkpoint()
    return log


def interrupted_and_damaged() -> PartitionLog:
    """Copied from who has removed `k@20` for `k@40`, as far as 22."""
    source, log = log_of(END), create_log(SimDisk(), settings=SETTINGS)
    run_pass(source)
    source.lead(2)
    follow(log, source, 2, upto=OLD + 2)
    log.state.advance_high_watermark(log.state.log_end_offset)
    return damaged_at(log, 3)


def ran_on(log: PartitionLog, epoch: int) -> PartitionLog:
    """It leads in that epoch, and removes records of it for newer ones of it."""
    log.lead(epoch)
    for at in range(log.state.log_end_offset, log.state.log_end_offset + 40):
        log.append([keyed_batch([(b"q", b"%d" % at)])], leader_epoch=epoch, now_us=1)
    log.state.advance_high_watermark(log.syncer.sync())
    run_pass(log)
    assert log.state.superseded[1] == epoch
    return log


def mend_from(log: PartitionLog, other: PartitionLog) -> None:
    [lost] = log.state.lost_ranges
    mend(log, lost, answer(other, *lost), superseded=other.epochs.superseded_there)


def test_a_copy_that_was_interrupted_keeps_its_mark_when_it_is_mended() -> None:
    """Whose mark is later need not have what the copy's own mark tells of: here it was led from 30 on by another."""
    log, other = interrupted_and_damaged(), ran_on(log_of(CHOSEN_END), 5)
    mark, disk = log.state.superseded, log.state.disk
    assert log.state.log_end_offset < CHOSEN_END < mark[0] < other.state.superseded[0]
    assert OLD in keyed_records(other)
    with pytest.raises(BadBatch, match=r"gone there for newer ones below \d+ of leader epoch 5.*epoch 1"):
        mend_from(log, other)
    for found in (log, open_log(disk.after_kill(), settings=SETTINGS)):  # type: ignore[attr-defined]
        assert (found.state.superseded, found.state.lost_ranges) == (mark, ((3, 4),))
        found.reset(0)  # it begins anew, with its leader's
        check_follows(found, other)


def test_a_later_mark_of_the_same_epoch_takes_the_place_of_the_own_one() -> None:
    """Who has the record before the later one has all that is before it in its epoch."""
    source, mark = log_of(END + 40), interrupted_and_damaged().state.superseded
    run_pass(source)
    assert source.state.superseded > mark == (mark[0], 1)

    def mended(log: PartitionLog) -> None:
        if log.state.lost_ranges:
            mend_from(log, source)

    leader = chosen()
    for log in each_step(interrupted_and_damaged, mended):
        assert log.state.superseded == mark or log.state.superseded == source.state.superseded
        assert log.state.lost_ranges or log.state.superseded == source.state.superseded
        if not log.state.lost_ranges:
            check_follows(log, leader)


def test_what_has_gone_for_records_of_another_history_is_not_taken() -> None:
    """The log goes on beyond the place of those records: no end of its own says that it lacks them."""
    log = damaged_at(log_of(END), 3)
    other = ran_on(log_of(5), 5)
    assert 3 < other.state.superseded[0] < END
    with pytest.raises(BadBatch, match="of leader epoch 5"):
        mend_from(log, other)
    assert (log.state.superseded, log.state.lost_ranges) == ((0, -1), ((3, 4),))


def test_who_leads_takes_it_all_the_same() -> None:
    """An operator has chosen it: it goes on with nobody."""
    log, other = interrupted_and_damaged(), ran_on(log_of(CHOSEN_END), 5)
    log.lead(6)
    mend_from(log, other)
    assert not log.state.lost_ranges
