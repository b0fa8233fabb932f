"""Goal: these end by themselves: one-shot sinks, stages of superseded runs, pins of sinks that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from broker.api.errors import (
    CorruptLog,
    DiskFull,
    LiftlogError,
    NotLeader,
    NotReady,
    SinkFenced,
    StorageFailed,
    UnknownSink,
    UnknownStream,
)
from broker.node.sinks.commits_log import Removed
from broker.node.sinks.stages import StageLimits, StageStore
from broker.storage.segments.ages import DOUBT_MS
from tests.support.simdisk import SimDisk
from tests.support.sinks import SINK, STREAM, Driver, Rig, World, rows_of

LIMITS = StageLimits()
LEASE_US = LIMITS.stage_lease_ms * 1_000
GRACE_US = LIMITS.one_shot_grace_ms * 1_000


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(SimDisk())
    yield rig
    rig.drop()


def job(rig: Rig, world: World | None = None) -> Driver:
    """A run of a sink that is for one batch."""
    return Driver(world or World(rows=6), rig, 0, is_one_shot=True)


def pin_all(driver: Driver) -> None:
    attempt = driver.world.attempt(driver.next_batch)
    driver.stage(attempt)
    driver.rig.sinks.pin(SINK, driver.asked(attempt), attempt.named())


def sweep_at(rig: Rig, now_us: int) -> None:
    rig.now_us = now_us
    rig.rounds.sweep()


def test_a_one_shot_sink_vanishes_after_its_grace_and_answers_repetitions_until_then(rig: Rig) -> None:
    driver = job(rig)
    attempt = driver.world.attempt(0)
    driver.stage(attempt)
    driver.commit(attempt)
    done_us = rig.sinks.describe(SINK).changed_us
    sweep_at(rig, done_us + GRACE_US - 1)
    assert not driver.commit(attempt).is_new
    sweep_at(rig, done_us + GRACE_US)
    assert rig.sinks.states() == []
    with pytest.raises(UnknownSink):
        driver.commit(attempt)
    assert sum(len(values) for p in (0, 1) for _, values in rig.visible(p)) == 6, "what it wrote stays"


def test_a_coordinator_whose_clock_is_ahead_forgets_no_sink_before_its_grace(rig: Rig) -> None:
    """It has just begun to lead, and the one before had another clock: a repetition would be written again."""
    driver = job(rig)
    attempt = driver.world.attempt(0)
    driver.stage(attempt)
    driver.commit(attempt)
    rig.sinks.states()
    rig.take_over()
    rig.now_us, rig.ahead_us = rig.now_us + 100 * GRACE_US, 100 * GRACE_US
    for passed_us in 0, GRACE_US - 1:
        sweep_at(rig, rig.now_us + passed_us)
        assert not driver.commit(attempt).is_new
    sweep_at(rig, rig.now_us + 1)
    assert rig.sinks.states() == []


def test_a_leader_whose_clock_is_ahead_drops_no_stage_before_its_lease(rig: Rig) -> None:
    """Or before it has led for six hours, if that is less: then clocks are believed."""
    driver = job(rig)
    attempt = driver.world.attempt(0)
    driver.stage(attempt)
    rig.take_over()
    rig.now_us, rig.ahead_us = rig.now_us + 100 * LEASE_US, 100 * LEASE_US
    for passed_us in 0, DOUBT_MS * 1_000 - 1:
        sweep_at(rig, rig.now_us + passed_us)
        assert any(store.staged().stages for store in rig.stores())
    sweep_at(rig, rig.now_us + 1)
    assert not any(store.staged().stages for store in rig.stores())


def test_a_one_shot_sink_that_never_commits_goes_after_its_stages(rig: Rig) -> None:
    driver = job(rig)
    opened_us = rig.now_us
    rig.now_us = opened_us + LEASE_US - 1
    attempt = driver.world.attempt(0)
    driver.stage(attempt)
    sweep_at(rig, opened_us + LEASE_US)
    assert rig.sinks.states(), "it still has stages"
    sweep_at(rig, opened_us + 2 * LEASE_US)
    assert rig.sinks.states() == []
    assert not any(store.staged().stages for store in rig.stores())


def test_a_one_shot_sink_that_pinned_and_died_leaves_nothing(rig: Rig) -> None:
    pin_all(job(rig))
    for _ in range(4):
        sweep_at(rig, rig.now_us + LEASE_US)
    assert rig.sinks.states() == []
    assert not any(store.staged().stages for store in rig.stores())


def test_a_sink_of_a_query_never_vanishes(rig: Rig) -> None:
    Driver(World(rows=6), rig, 0).write()
    for _ in range(3):
        sweep_at(rig, rig.now_us + 100 * LEASE_US)
    assert [state.sink for state in rig.sinks.states()] == [SINK]


def test_a_sink_that_is_opened_while_it_vanishes_stays(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new owner would be told that nobody has opened it."""
    job(rig).write()
    rig.now_us += GRACE_US
    is_over = rig.rounds._is_over

    def opened_now(state: object) -> bool:
        found = is_over(state)  # type: ignore[arg-type]
        rig.sinks.open(SINK, "late", is_one_shot=True)
        return found

    monkeypatch.setattr(rig.rounds, "_is_over", opened_now)
    rig.rounds.sweep()
    assert "late" in rig.sinks.describe(SINK).owners


def test_pins_of_an_unknown_sink_are_fenced_and_go(rig: Rig) -> None:
    """Nothing else would ever prove that they are over, and retention would wait for them for ever."""
    driver = Driver(World(rows=6), rig, 0)
    pin_all(driver)
    staged = [store.staged() for store in rig.stores()]
    rig.sinks.commits.write(lambda *_: Removed(SINK))
    rig.rounds.sweep()
    assert [store.staged() for store in rig.stores()] == staged, "unknown is open"
    sweep_at(rig, rig.now_us + LEASE_US)
    rig.rounds.sweep()
    assert not any(store.staged().stages for store in rig.stores())
    assert rig.sinks.describe(SINK).epoch > driver.epoch
    sweep_at(rig, rig.now_us + LEASE_US)
    assert rig.sinks.states() == [], "the state that fenced vanishes"


def test_a_deleted_sink_takes_its_stages_with_it_pinned_or_not(rig: Rig) -> None:
    driver = Driver(World(rows=6), rig, 0)
    pin_all(driver)
    driver.stage(driver.world.attempt(1))
    assert any(store.staged().stages for store in rig.stores())
    rig.sinks.delete(SINK)
    assert not any(store.staged().stages for store in rig.stores())
    assert rig.sinks.states() == []
    with pytest.raises(UnknownSink):
        rig.sinks.delete(SINK)


def test_a_sink_for_one_batch_that_its_owner_ends_takes_its_stages_with_it(rig: Rig) -> None:
    driver = job(rig)
    pin_all(driver)
    driver.stage(driver.world.attempt(1))
    rig.sinks.open("other", "them", is_one_shot=True)
    with pytest.raises(SinkFenced):
        rig.sinks.end(SINK, "them")
    assert any(store.staged().stages for store in rig.stores())
    for _ in range(2):
        rig.sinks.end(SINK, driver.owner)
        assert not any(store.staged().stages for store in rig.stores())
    with pytest.raises(SinkFenced):
        driver.stage(driver.world.attempt(1))
    for ask in (rig.sinks.open, rig.sinks.renew):
        with pytest.raises(SinkFenced):
            ask(SINK, driver.owner)
    with pytest.raises(SinkFenced):
        driver.commit(driver.world.attempt(1))


@pytest.mark.parametrize("has_opened", [False, True])
def test_a_sink_that_was_ended_is_remembered_for_its_grace(rig: Rig, has_opened: bool) -> None:
    """Tasks of its owner that come late are refused until then: they would make it again."""
    if has_opened:
        rig.sinks.open(SINK, "o", is_one_shot=True)
    rig.sinks.end(SINK, "o")
    ended_us = rig.sinks.describe(SINK).changed_us
    sweep_at(rig, ended_us + GRACE_US - 1)
    with pytest.raises(SinkFenced):
        rig.sinks.open(SINK, "o", is_one_shot=True)
    sweep_at(rig, ended_us + GRACE_US)
    assert rig.sinks.states() == []


def test_a_sink_that_another_owner_opens_after_its_end_goes_on(rig: Rig) -> None:
    rig.sinks.end(SINK, "them")
    job(rig).write()
    assert sum(len(values) for p in (0, 1) for _, values in rig.visible(p)) == 6
    with pytest.raises(SinkFenced):
        rig.sinks.open(SINK, "them", is_one_shot=True)


@pytest.mark.parametrize("is_ended", [False, True])
def test_what_comes_when_nobody_can_commit_it_any_more_goes_with_the_next_sweep(rig: Rig, is_ended: bool) -> None:
    """In a cluster the leader of a partition may not know yet that its owner is superseded."""
    driver = job(rig)
    if is_ended:
        rig.sinks.end(SINK, driver.owner)
    store = rig.store(STREAM, 0)
    store.store([rows_of([b"late"])], sink=SINK, epoch=driver.epoch, stage="a" * 32, part=0, is_last=True)
    assert store.staged().stages
    rig.rounds.sweep()
    assert bool(store.staged().stages) is not is_ended


def test_a_decision_that_is_unfinished_is_finished_after_its_owner_has_ended_the_sink(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = job(rig)
    attempt = driver.world.attempt(0)
    driver.stage(attempt)

    def fail(*args: object, **options: object) -> None:
        raise StorageFailed("write: I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(StageStore, "finish", fail)
        with pytest.raises(StorageFailed):
            driver.commit(attempt)
        rig.sinks.end(SINK, driver.owner)
    rig.rounds.sweep()
    assert sum(len(values) for p in (0, 1) for _, values in rig.visible(p)) == 6
    assert rig.sinks.describe(SINK).is_done


def test_a_deletion_that_fails_half_way_says_that_some_is_done(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(World(rows=6), rig, 0)
    driver.stage(driver.world.attempt(1))

    def refused(*_: object) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr(rig.sinks.commits, "write", refused)
    with pytest.raises(DiskFull) as error:
        rig.sinks.delete(SINK)
    assert error.value.fields.get("sent") is True
    assert not any(store.staged().stages for store in rig.stores())


def test_the_first_commit_of_a_run_drops_what_older_runs_staged_and_nothing_else(rig: Rig) -> None:
    world = World(rows=6)
    old, new, newer = (Driver(world, rig, 0) for _ in range(3))
    for driver in (old, new, newer):
        driver.stage(world.attempt(5))
    new.write()
    left = {stage.epoch for store in rig.stores() for stage in store.staged().stages}
    assert left == {new.epoch, newer.epoch}
    with pytest.raises(SinkFenced):
        old.stage(world.attempt(6))


def test_what_a_superseded_run_sends_late_is_refused_at_the_partition(rig: Rig) -> None:
    """The check is made under the partition's lock: what passes it is there when superseded stages are looked for."""
    world = World(rows=6)
    old, new = Driver(world, rig, 0), Driver(world, rig, 0)
    new.write()
    with pytest.raises(SinkFenced):
        old.stage(world.attempt(1))
    assert not any(store.staged().stages for store in rig.stores())


@pytest.mark.parametrize(
    "error,level",
    [
        (NotReady("s/0: nobody leads it now"), "WARNING"),
        (NotLeader("another one does"), "WARNING"),
        (StorageFailed("write: I/O error"), "ERROR"),
        (CorruptLog("damaged", path="x"), "ERROR"),
    ],
)
def test_a_failover_is_a_warning_and_a_fault_is_an_error(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: LiftlogError, level: str
) -> None:
    driver = job(rig)
    pin_all(driver)

    def fail(*args: object, **options: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(StageStore, "sweep", fail)
        rig.rounds.sweep()
    told = [record for record in caplog.records if record.getMessage().startswith("sink.sweep_failed")]
    assert {record.levelname for record in told} == {level}
    assert all("tries again" in record.getMessage() for record in told)


def test_a_partition_that_is_gone_at_the_broker_that_is_asked_is_no_fault(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream was deleted, and this broker has not heard of it yet."""
    pin_all(job(rig))

    def fail(*args: object, **options: object) -> None:
        raise UnknownStream("s")

    with monkeypatch.context() as patch:
        patch.setattr(StageStore, "sweep", fail)
        rig.rounds.sweep()
    assert "sweep_failed" not in caplog.text


def test_locks_of_sinks_are_not_kept(rig: Rig) -> None:
    for n in range(50):
        with pytest.raises(UnknownSink):
            rig.sinks.reset(f"never-{n}", 0)
    assert not rig.sinks.locks._locks


def test_a_fault_of_ours_in_one_sink_or_partition_keeps_no_other_from_its_round(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the round, each time: what came behind it was never finished, and no stage of it ever dropped."""
    completed, swept = list[str](), list[object]()

    def complete(sink: str) -> None:
        completed.append(sink)
        if sink == "one":
            raise KeyError(sink)

    def sweep_stages(store: object) -> list[object]:
        swept.append(store)
        if store is stores[0]:
            raise KeyError(store)
        return []

    unfinished = [SimpleNamespace(sink=sink) for sink in ("one", "other")]
    stores = [SimpleNamespace(place="s/0"), SimpleNamespace(place="s/1")]
    monkeypatch.setattr(rig.sinks.commits, "ledger", lambda: SimpleNamespace(unfinished=lambda: unfinished))
    monkeypatch.setattr(rig.sinks, "states", lambda: [])
    monkeypatch.setattr(rig.sinks, "complete", complete)
    monkeypatch.setattr(rig.rounds, "_sweep_stages", sweep_stages)
    monkeypatch.setattr(rig.sinks.stores, "stores", lambda: stores)
    rig.rounds.sweep()
    assert (completed, swept) == (["one", "other"], stores)
    assert "sink.round_bug at=one" in caplog.text
    assert "sink.round_bug at=s/0" in caplog.text
