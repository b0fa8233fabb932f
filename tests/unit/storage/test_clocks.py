"""Nothing that is stored is stored twice, or goes too early, by a clock that is wrong or that was set.

Goal: what decides that goes by the time that has passed for the replica, and not by timestamps. Method: logs that are
handed two clocks, one that nobody sets (`at`) and one of the day (`wall`), which is an hour ahead, or back, or jumps.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from broker.api.errors import UnknownProducer
from broker.storage.log import LogSettings, PartitionLog
from broker.storage.segments.ages import DOUBT_MS, MARKS_MAX, STEP_US, Ages
from broker.storage.segments.checkpoint import Checkpoint
from tests.properties.storage.test_dedup_model import batch_over_http
from tests.support.logs import create_log, open_log, stamped
from tests.support.published import batch_from_nats, with_id
from tests.support.simdisk import SimDisk
from tests.unit.storage.test_following import stored

SECOND = 1_000_000
HOUR = 3_600 * SECOND
NOON = 1_800_000_000 * SECOND
WINDOW = 120 * SECOND
SETTINGS = LogSettings(dedup_window_ms=WINDOW // 1_000, is_sole_replica=False)
STEPS = [0, HOUR, -HOUR, 400 * 24 * HOUR, -400 * 24 * HOUR]


def is_stored(log: PartitionLog, text: str, *, at: int, wall: int, epoch: int = 1, read: int | None = None) -> bool:
    """Publish a message with this id; whether it was taken for a new one."""
    batch = batch_from_nats([(b"x", with_id(text))], wall if read is None else read)
    before = log.state.log_end_offset
    log.append([batch], leader_epoch=epoch, now_us=at, wall_us=wall)
    log.state.advance_high_watermark(log.syncer.sync())
    return log.state.log_end_offset > before


def pass_on(leader: PartitionLog, follower: PartitionLog, *, at: int) -> None:
    follower.append_stored(stored(leader, follower.state.log_end_offset), leader_epoch=1, now_us=at)
    follower.state.advance_high_watermark(min(follower.syncer.sync(), leader.state.high_watermark))


@pytest.mark.parametrize("step", STEPS)
def test_an_id_is_known_for_its_window_wherever_the_clock_is_set(step: int) -> None:
    log = create_log(SimDisk(), settings=replace(SETTINGS, is_sole_replica=True))
    assert is_stored(log, "a", at=0, wall=NOON, epoch=1)
    assert not is_stored(log, "a", at=WINDOW - SECOND, wall=NOON + step)
    assert is_stored(log, "a", at=WINDOW, wall=NOON + step)


@pytest.mark.parametrize("step", STEPS)
def test_a_new_leader_with_another_clock_knows_the_ids_of_the_window(step: int) -> None:
    """In both directions, whether it had read them before it began to lead or not."""
    for keeps_up in (True, False):
        leader, follower = create_log(SimDisk(), settings=SETTINGS), create_log(SimDisk(), settings=SETTINGS)
        leader.lead(1)
        follower.follow(1)
        assert is_stored(leader, "a", at=0, wall=NOON)
        began = 77 * HOUR  # its clock that nobody sets counts from elsewhere
        follower.tell_time(began)
        pass_on(leader, follower, at=began + SECOND)
        if keeps_up:
            follower.remembered.keep_up()
        follower.lead(2)
        assert not is_stored(follower, "a", at=began + WINDOW - SECOND, wall=NOON + step, epoch=2)
        assert is_stored(follower, "a", at=began + WINDOW + 2 * SECOND, wall=NOON + step, epoch=2)


@pytest.mark.parametrize("how", ["close", "kill", "checkpoint and kill"])
@pytest.mark.parametrize("step", STEPS)
def test_after_a_restart_only_time_that_was_seen_to_pass_has_passed(step: int, how: str) -> None:
    """The next life counts from elsewhere. All that no mark tells of is new to it."""
    disk = SimDisk()
    settings = replace(SETTINGS, is_sole_replica=True)
    log = create_log(disk, settings=settings)
    assert is_stored(log, "a", at=0, wall=NOON)
    assert is_stored(log, "b", at=100 * SECOND, wall=NOON)
    if how == "close":
        log.close()
    elif how == "checkpoint and kill":
        log.checkpoint()
    began = 1_000 * HOUR
    log = open_log(disk if how == "close" else disk.after_kill(), settings=settings, now_us=began)
    assert not is_stored(log, "b", at=began + 15 * SECOND, wall=NOON + step)
    is_known = not is_stored(log, "a", at=began + 85 * SECOND, wall=NOON + step)
    assert is_known is (how == "kill"), "a is 185 seconds old by what the checkpoint says"
    assert not is_stored(log, "b", at=began + 19 * SECOND, wall=NOON + step)


def test_an_id_over_http_is_known_for_its_window_whatever_its_timestamp() -> None:
    log = create_log(SimDisk(), settings=replace(SETTINGS, is_sole_replica=True))
    for text, timestamp in ("a", 0), ("b", NOON + 9 * HOUR):
        log.append([batch_over_http([text], timestamp)], leader_epoch=1, now_us=0, wall_us=NOON)
        log.state.advance_high_watermark(log.syncer.sync())
        assert not is_stored(log, text, at=WINDOW - SECOND, wall=NOON)
        assert is_stored(log, text, at=WINDOW, wall=NOON)
        log = create_log(SimDisk(), settings=replace(SETTINGS, is_sole_replica=True))


def test_a_repeat_that_waited_for_the_disk_counts_from_when_it_was_read() -> None:
    """`settling.G5`. A clock that is set meanwhile makes the window longer, by a minute at most, and never shorter."""
    for wall, is_known in ((NOON + 30 * SECOND, True), (NOON + HOUR, True), (NOON - HOUR, False), (NOON, False)):
        log = create_log(SimDisk(), settings=replace(SETTINGS, is_sole_replica=True))
        assert is_stored(log, "a", at=0, wall=NOON)
        assert is_stored(log, "a", at=WINDOW + 20 * SECOND, wall=wall, read=NOON) is not is_known


@pytest.mark.parametrize("how", ["goes on", "kill"])
def test_what_comes_to_stand_where_a_record_was_taken_back_is_new(how: str) -> None:
    """`ages.A4`: also by the checkpoint that the cut has written."""
    disk = SimDisk()
    leader, follower = create_log(SimDisk(), settings=SETTINGS), create_log(disk, settings=SETTINGS)
    leader.lead(1)
    follower.follow(1)
    for text in "abc":
        assert is_stored(leader, text, at=0, wall=NOON)
    pass_on(leader, follower, at=0)
    follower.tell_time(10 * WINDOW)
    follower.checkpoint()
    follower.truncate(1)
    follower.lead(2)
    now = 10 * WINDOW
    for text in "de":
        assert is_stored(follower, text, at=now, wall=NOON, epoch=2)
    if how == "kill":
        follower = open_log(disk.after_kill(), settings=SETTINGS, now_us=now)
        follower.lead(3)
    else:
        follower.remembered.forget()  # as after a failed append
    for text in "de":
        assert not is_stored(follower, text, at=now + WINDOW - SECOND, wall=NOON, epoch=3 if how == "kill" else 2)


def test_a_log_that_begins_anew_keeps_no_time_of_what_it_had() -> None:
    """`ages.A4`: its leader's state file tells of other records, at offsets at which it had old ones of its own."""
    leader, log = create_log(SimDisk(), settings=SETTINGS), create_log(SimDisk(), settings=SETTINGS)
    for each, epoch, at in ((log, 1, 0), (leader, 2, 10 * WINDOW)):
        each.lead(epoch)
        for text in "abcde":
            assert is_stored(each, f"{text}{epoch}", at=at, wall=NOON, epoch=epoch)
    leader.remembered.keep_committed()
    data, size = leader.handover.piece(5, 0, 1 << 20) or (b"", 0)
    now = 10 * WINDOW
    log.tell_time(now)
    log.follow(2)  # an operator had chosen the other, which has let go of what it had below
    log.reset(5, last_epoch=2)
    assert log.handover.take(5, 0, data, size)
    log.lead(3)
    for text in "abcde":
        assert not is_stored(log, f"{text}2", at=now + WINDOW - SECOND, wall=NOON, epoch=3)


def test_a_state_file_of_another_broker_says_no_times() -> None:
    """Its clock counts from elsewhere; what it tells of is new to who takes it (`memory.M5`)."""
    leader, follower = create_log(SimDisk(), settings=SETTINGS), create_log(SimDisk(), settings=SETTINGS)
    leader.lead(1)
    assert is_stored(leader, "a", at=5 * HOUR, wall=NOON)
    leader.remembered.save(leader.state.durable_end)
    follower.tell_time(900 * HOUR)
    sections = leader.remembered.states.load(1)
    assert sections is not None
    follower.follow(1)
    pass_on(leader, follower, at=900 * HOUR)
    follower.remembered.states.put(1, sections)
    follower.lead(2)
    assert not is_stored(follower, "a", at=900 * HOUR + WINDOW - SECOND, wall=NOON, epoch=2)


def test_a_producer_expires_after_the_time_that_passed_for_the_broker() -> None:
    """Over a restart the times between producers stay, and the last use counts as one of now."""
    disk, expiry = SimDisk(), 10 * HOUR
    settings = LogSettings(producer_id_expiry_ms=expiry // 1_000)
    log = create_log(disk, settings=settings)
    for producer, at in (1, 0), (2, 6 * HOUR):
        log.append([stamped([b"x"], producer, 0, 0)], leader_epoch=1, now_us=at, wall_us=NOON)
    log.close()
    began = 5_000 * HOUR
    log = open_log(disk, settings=settings, now_us=began)
    log.append([stamped([b"x"], 2, 0, 1)], leader_epoch=1, now_us=began + 3 * HOUR, wall_us=NOON + 400 * 24 * HOUR)
    log.append([stamped([b"x"], 1, 0, 1)], leader_epoch=1, now_us=began + 3 * HOUR, wall_us=NOON + 400 * 24 * HOUR)
    log.append([stamped([b"x"], 2, 0, 2)], leader_epoch=1, now_us=began + 12 * HOUR, wall_us=0)
    with pytest.raises(UnknownProducer):
        log.append([stamped([b"x"], 1, 0, 2)], leader_epoch=1, now_us=began + 13 * HOUR, wall_us=0)


@pytest.mark.parametrize("ahead", [HOUR, 400 * 24 * HOUR])
def test_a_clock_that_is_ahead_deletes_nothing_that_has_not_been_here_for_long_enough(ahead: int) -> None:
    """For the whole limit, or for six hours of one that is longer: then the clock is believed."""
    for limit in 2 * HOUR, 24 * HOUR:
        log = create_log(SimDisk(), settings=LogSettings(retention_ms=limit // 1_000))
        is_stored(log, "", at=0, wall=NOON - ahead)
        log.roll_if_due(1 << 60)
        short = min(limit, DOUBT_MS * 1_000)
        assert log.apply_retention(now_us=short - SECOND, wall_us=NOON + limit) == 0
        assert log.apply_retention(now_us=short, wall_us=NOON + limit) == 1


def test_after_a_long_time_without_a_broker_what_is_old_goes_once_the_clock_is_believed() -> None:
    disk = SimDisk()
    settings = LogSettings(retention_ms=24 * 3_600_000)
    log = create_log(disk, settings=settings)
    is_stored(log, "", at=0, wall=NOON)
    log.close()
    log = open_log(disk, settings=settings, now_us=7 * HOUR)
    month = NOON + 30 * 24 * HOUR
    assert log.apply_retention(now_us=7 * HOUR, wall_us=month) == 0
    assert log.apply_retention(now_us=13 * HOUR + SECOND, wall_us=month + 6 * HOUR) == 1


def test_bytes_and_records_are_no_matter_of_time() -> None:
    log = create_log(SimDisk(), settings=LogSettings(retention_ms=HOUR // 1_000, retention_records=1))
    for _ in range(3):
        is_stored(log, "", at=0, wall=NOON)
        log.roll_if_due(1 << 60)
    assert log.apply_retention(now_us=0, wall_us=NOON) == 2


# --- the marks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_no_age_is_more_than_what_has_passed_and_none_is_forgotten(seed: int) -> None:
    """Against a list with the time of each record, through cuts and restarts; and an age is late by an eighth at most,
    or by a step, as long as nobody forgets."""
    rng = random.Random(seed)
    now, times, ages, is_exact = 0, list[int](), Ages(0), True
    for _ in range(3_000):
        now += rng.choice((0, 1_000, 50_000, STEP_US, SECOND, 100 * SECOND))
        match rng.randrange(40):
            case 0:
                end = rng.randint(0, len(times))
                del times[end:]
                ages.cut(end)
            case 1:
                kept = ages.kept(len(times))
                began = rng.randrange(1 << 40)
                times = [began + at - now for at in times]
                now, is_exact = began, False
                ages = Ages(now, Checkpoint.decode(Checkpoint(ages=kept).encode(), where="").ages)  # type: ignore[union-attr]
                ages.cut(len(times))
                ages.tell(now, len(times))
            case _:
                times += [now] * rng.randrange(4)
                ages.tell(now, len(times))
        age = rng.choice((0, 1_000, SECOND, 1_000 * SECOND))
        end = ages.here_for(age)
        assert all(at <= now - age for at in times[:end])
        since = ages.since(np.arange(len(times)))
        assert (since >= times).all()
        assert (since <= now).all()
        assert (np.diff(since) >= 0).all()
        if is_exact:
            slack = np.maximum(2 * STEP_US, (now - np.array(times, np.int64)) // 4)
            assert (since - times <= slack).all()
        assert len(ages.kept(len(times))) <= 64
    assert len(ages.copy().kept(1 << 60)) <= MARKS_MAX


def test_a_clock_that_goes_back_stands() -> None:
    ages = Ages(100)
    ages.tell(50, 1)
    assert ages.now_us == 100
    assert ages.since(np.array([0])).tolist() == [100]


def test_a_checkpoint_without_ages_is_read_and_one_with_impossible_ones_is_damaged() -> None:
    assert b"ages" not in Checkpoint(recovery_point=9).encode()
    for ages in ((1, 5), (2, 6)), ((2, 6), (1, 5)):
        assert Checkpoint.decode(Checkpoint(ages=ages).encode(), where="") is None
    found = Checkpoint.decode(Checkpoint(ages=((9, 5), (2, 6))).encode(), where="")
    assert found is not None
    assert found.ages == ((9, 5), (2, 6))
