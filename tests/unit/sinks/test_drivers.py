"""The drivers on the fake disk: what a disk that fails, an idle driver, retention and growth do to the protocol.

Power cuts are in tests/properties/sinks.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from broker.api.errors import RequestTooLarge, SinkFenced, StageLost, StagesFull, StorageFailed
from broker.runtime import sinks as coordinator
from broker.runtime.stage_log import StageLog
from broker.runtime.stages import StageLimits
from tests.support.simdisk import SimDisk
from tests.support.sinks import SINK, STREAM, Attempt, Driver, Rig, World

LEASE_US = StageLimits().stage_lease_ms * 1000


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def rig(disk: SimDisk) -> Iterator[Rig]:
    rig = Rig(disk)
    yield rig
    rig.drop()


@pytest.fixture
def driver(rig: Rig) -> Driver:
    return Driver(World(rows=6), rig, 0)


def staged(driver: Driver) -> Attempt:
    attempt = driver.world.attempt(driver.next_batch)
    driver.stage(attempt)
    return attempt


def pin(driver: Driver, attempt: Attempt) -> None:
    for named in attempt.named():
        store = driver.rig.store(STREAM, named.partition)
        store.pin([(named.stage, named.parts)], sink=SINK, epoch=driver.epoch, batch_id=attempt.batch_id)


def test_retention_and_trim_wait_for_pinned_stages(rig: Rig, driver: Driver) -> None:
    for partition in (0, 1):
        rig.append(partition, b"old")
    attempt = staged(driver)
    pin(driver, attempt)
    partition = rig.partitions[attempt.named()[0].partition]
    rig.append(partition.partition, b"new")
    assert partition.trim(2) == 1, "up to the pin"
    assert partition.apply_retention(1 << 60) == 1
    driver.commit(attempt)
    end = partition.log.high_watermark
    assert partition.trim(end) == end
    assert partition.apply_retention(1 << 60) == end


def test_a_part_whose_fsync_fails_is_refused_and_stored_once_when_it_is_repeated(
    disk: SimDisk, rig: Rig, driver: Driver
) -> None:
    attempt = driver.world.attempt(0)
    stage = next(iter(attempt.stages))
    driver.upload(attempt, stage, 0)
    disk.fail("sync", errno.EIO, path="stages")
    with pytest.raises(StorageFailed):
        driver.upload(attempt, stage, 1)
    driver.upload(attempt, stage, 1)
    driver.stage(attempt)
    driver.commit(attempt)
    driver.world.check_complete(rig, 1)


@pytest.mark.parametrize("path", ["stages", f"/data/{STREAM}/", "__commits"])
@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("call", ["sync", "write"])
def test_a_commit_that_meets_a_failing_disk_is_finished_when_it_is_repeated(
    disk: SimDisk, rig: Rig, driver: Driver, path: str, after: int, call: str
) -> None:
    driver.write()
    attempt = staged(driver)
    disk.fail(call, errno.EIO, path=path, after=after, short=100)
    try:
        driver.commit(attempt)
    except StorageFailed:
        disk.heal()
        driver.world.check(rig)
        driver.commit(attempt)
    driver.world.check_complete(rig, 2)


def test_a_stage_that_nobody_commits_expires(rig: Rig, driver: Driver) -> None:
    attempt = staged(driver)
    rig.now_us += LEASE_US - 1
    rig.sinks.sweep()
    assert any(store.byte_count() for store in rig.stores())
    rig.now_us += 1
    rig.sinks.sweep()
    assert not any(store.byte_count() for store in rig.stores())
    with pytest.raises(StageLost):
        driver.commit(attempt)


def test_a_stream_that_is_deleted_during_a_sweep_is_no_fault(
    rig: Rig, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    staged(driver)
    rig.now_us += LEASE_US
    for partition in rig.partitions:
        partition.note_removed()
        partition.log.close()
    rig.sinks.sweep()
    assert "sweep_failed" not in caplog.text


def test_a_pinned_stage_goes_only_after_its_idle_driver_was_fenced(rig: Rig, driver: Driver) -> None:
    """C3."""
    attempt = staged(driver)
    pin(driver, attempt)
    rig.now_us += LEASE_US
    rig.sinks.sweep()
    assert any(store.pins() for store in rig.stores()), "fenced first"
    rig.sinks.sweep()
    assert not any(store.pins() for store in rig.stores())
    with pytest.raises(SinkFenced):
        driver.commit(attempt)


def test_a_hidden_log_is_trimmed_once_nothing_of_it_is_needed(disk: SimDisk, rig: Rig, driver: Driver) -> None:
    for _ in range(3):
        driver.write()
    rig.sinks.sweep()
    for store in rig.stores():
        hidden = store._hidden.open()
        assert hidden.log_start_offset == hidden.log_end_offset
    driver.write()
    driver.world.check_complete(rig, 4)


def test_a_commit_is_answered_though_its_stages_cannot_be_freed(
    disk: SimDisk, rig: Rig, driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is committed is committed; the room is given back by the next round."""
    monkeypatch.setitem(StageLog.trim.__kwdefaults__, "at_least", 1)  # type: ignore[arg-type]
    driver.write()
    disk.fail("rename", errno.EIO, path="/stages/", times=50)
    driver.write()
    assert "sink.forget_failed" in caplog.text
    disk.heal()
    driver.world.check_complete(rig, 2)
    rig.sinks.sweep()
    for store in rig.stores():
        hidden = store._hidden.open()
        assert hidden.log_start_offset == hidden.log_end_offset


def test_commits_are_rewritten_when_they_have_grown(
    disk: SimDisk, rig: Rig, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "REWRITE_BYTES", 8_000)
    monkeypatch.setattr(coordinator, "WRITES_PER_LOOK", 1)
    rig.sinks.open("another")
    for _ in range(6):
        driver.write()
    assert rig.commits.log.log_start_offset > 10
    states = rig.sinks.states()
    assert [state.sink for state in states] == ["another", SINK]
    again = Rig(disk.after_crash("lost"), boot=2)
    assert again.sinks.states() == states
    driver.world.check_complete(again, 6)
    again.drop()


def test_limits_are_named_before_anything_is_decided(disk: SimDisk) -> None:
    rig = Rig(disk, limits=StageLimits(stage_bytes_max=1_000, group_bytes_max=1_500))
    driver = Driver(World(rows=6), rig, 0)
    with pytest.raises((StagesFull, RequestTooLarge), match=r"sinks\."):
        driver.write()
    assert rig.sinks.describe(SINK).last is None
    rig.drop()
