"""Orders of the protocol's steps that nobody intended, one function each: what random runs seldom reach.

Each plays one order with the real coordinator, partitions and disk, and raises if anything is lost, there twice, can
never be finished, or left for ever. `test_scenarios` plays them as they are, `test_mutants` with the rule broken that
they are about: then each has to fail. The part of other brokers is played by hand: a *take-over* raises the leader
epochs, a *late* message is one whose call is made now with what was judged before.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from broker.api.errors import (
    NotLeader,
    NotReady,
    SinkBatchesMissing,
    SinkFenced,
    SinkRowsDiffer,
    StageLost,
    UnknownSink,
    UnknownStream,
)
from broker.api.stream import settings_from
from broker.node.sinks.commits_log import Removed
from broker.node.sinks.committed import append_durable
from broker.node.sinks.room import silent_first
from broker.node.sinks.stages import StageLimits, StageStore
from broker.sinks.ledger import CommitRequest, Ledger
from broker.sinks.notes import StagePinned
from broker.sinks.silence import PATIENCE
from broker.sinks.state import Decision, SinkState, StageRef
from tests.support.simdisk import SimDisk
from tests.support.sinks import SINK, Attempt, Driver, Rig, World

LEASE_US = StageLimits().stage_lease_ms * 1_000
Judged = list[tuple[StageStore, int, list[StagePinned]]]


def fresh() -> tuple[Rig, World]:
    return Rig(SimDisk()), World(rows=6)


def staged(driver: Driver) -> Attempt:
    attempt = driver.world.attempt(driver.next_batch)
    driver.stage(attempt)
    return attempt


def pin(driver: Driver, attempt: Attempt) -> tuple[StageRef, ...]:
    return driver.rig.sinks.pin(SINK, driver.asked(attempt), attempt.named())


def decide(driver: Driver, attempt: Attempt, refs: tuple[StageRef, ...]) -> SinkState:
    return driver.rig.sinks.decide(SINK, driver.asked(attempt), refs)


def fence(rig: Rig) -> None:
    """Every epoch so far, as for idle pins."""
    rig.sinks.commits.write(lambda ledger, at: ledger.fenced(SINK, epoch=at, now_us=rig.now_us))


def judged(rig: Rig, ledger: Ledger | None = None) -> Judged:
    """The first two steps of a sweep: each partition's pins, and which of them a ledger says are over."""
    known = ledger or rig.sinks.commits.ledger()
    found = [(store, store.staged()) for store in rig.stores()]
    return [(s, staged.leader_epoch, [p for p in staged.pins if not known.is_open(p)]) for s, staged in found]


def drop(rig: Rig, found: Judged) -> None:
    """The third step, however late."""
    for store, leader_epoch, pins in found:
        with suppress(NotLeader):
            rig.rounds.drop(store, leader_epoch, pins)


def snapshot(rig: Rig) -> Ledger:
    """The ledger of a coordinator that was deposed just now."""
    return Ledger(dict(rig.sinks.commits.ledger().states))


def finish_elsewhere(rig: Rig, state: SinkState) -> None:
    """Append the groups of a decision as another leader does, who has the same logs."""
    assert state.last is not None
    for store in rig.stores():
        refs = [ref for ref in state.last.stages if ref.partition == store.main.partition]
        group = store._hidden.group_of(refs, int(state.last.decision, 16))
        if group.batch_count:
            append_durable(store.main, group, decided=True, leader_epoch=store.main.leader_epoch)


def end(rig: Rig, world: World, batches: int) -> None:
    """All of it is there once; and in the end nothing is left over."""
    world.check_complete(rig, batches)
    for _ in range(4):
        rig.now_us += LEASE_US
        rig.rounds.sweep()
    assert not any(store.staged().stages for store in rig.stores()), "left over"
    rig.drop()


# --- pins


def sweep_between_pin_and_decision() -> None:
    rig, world = fresh()
    dead = Driver(world, rig, 0)
    attempt = staged(dead)
    pin(dead, attempt)
    fence(rig)
    heir = Driver(world, rig, 0)
    refs = pin(heir, attempt)
    rig.rounds.sweep()
    decide(heir, attempt, refs)
    rig.sinks.complete(SINK)
    end(rig, world, 1)


def newer_epoch_is_swept() -> None:
    """Nobody has committed with it yet: that is how it is between every first pin of a run and its decision."""
    rig, world = fresh()
    Driver(world, rig, 0).write()
    heir = Driver(world, rig, 1)
    attempt = staged(heir)
    refs = pin(heir, attempt)
    rig.rounds.sweep()
    decide(heir, attempt, refs)
    rig.sinks.complete(SINK)
    end(rig, world, 2)


def late_drop() -> None:
    """Judged while the pin was that of a dead run; it arrives when another one has pinned the stage anew."""
    rig, world = fresh()
    dead = Driver(world, rig, 0)
    attempt = staged(dead)
    pin(dead, attempt)
    fence(rig)
    late = judged(rig)
    heir = Driver(world, rig, 0)
    refs = pin(heir, attempt)
    drop(rig, late)
    decide(heir, attempt, refs)
    rig.sinks.complete(SINK)
    end(rig, world, 1)


def late_drop_of_a_repetition() -> None:
    """An older run repeats a batch and names a stage that a newer one has pinned for the next."""
    rig, world = fresh()
    older = Driver(world, rig, 0)
    older.write()
    newer = Driver(world, rig, 1)
    attempt = staged(newer)
    refs = pin(newer, attempt)
    asked = CommitRequest(owner=older.owner, epoch=older.epoch, batch_id=0, rows=world.rows)
    rig.sinks.commit(SINK, asked, attempt.named(), {"checkpoint": "/checkpoint"})
    decide(newer, attempt, refs)
    rig.sinks.complete(SINK)
    end(rig, world, 2)


def drop_of_another_leadership() -> None:
    """A deposed leader's drop, of a stage that the next leader keeps."""
    rig, world = fresh()
    driver = Driver(world, rig, 0)
    attempt = staged(driver)
    refs = pin(driver, attempt)
    late = [(store, store.staged().leader_epoch, store.staged().pins) for store in rig.stores()]
    rig.take_over()
    refs = pin(driver, attempt)
    drop(rig, late)
    decide(driver, attempt, refs)
    rig.sinks.complete(SINK)
    end(rig, world, 1)


def idle_pin_of_two_runs() -> None:
    """Pinned by one run, then by another, which is idle: the fence has to stop the first one too."""
    rig, world = fresh()
    first = Driver(world, rig, 0)
    attempt = staged(first)
    refs = pin(first, attempt)
    second = Driver(world, rig, 0)
    pin(second, attempt)
    rig.now_us += LEASE_US
    rig.rounds.sweep()
    rig.rounds.sweep()
    try:
        decide(first, attempt, refs)
        rig.sinks.complete(SINK)
    except SinkFenced:
        Driver(world, rig, 0).write()
    end(rig, world, 1)


def idle_pin_below_the_current_run() -> None:
    """A run opens and pins and dies; a run with a lower epoch is current. The pin has to go some day."""
    rig, world = fresh()
    first, second = Driver(world, rig, 0), Driver(world, rig, 0)
    pin(second, staged(second))
    first.write()
    end(rig, world, 1)


def late_pin_of_an_older_run() -> None:
    """It comes after the newer one's; answered as pinned, its run would count on a pin that is another's."""
    rig, world = fresh()
    older = Driver(world, rig, 0)
    attempt = staged(older)
    newer = Driver(world, rig, 0)
    refs = pin(newer, attempt)
    with pytest.raises(StageLost):
        pin(older, attempt)
    decide(newer, attempt, refs)
    rig.sinks.complete(SINK)
    end(rig, world, 1)


def pinned_anew_beside_its_own_group() -> None:
    """Decided and appended, not noted yet; a late pin of another run; retention; and it is finished again."""
    rig, world = fresh()
    driver, other = Driver(world, rig, 0), Driver(world, rig, 0)
    attempt = staged(driver)
    for partition in rig.partitions:
        rig.append(partition.partition, b"before")
    state = decide(driver, attempt, pin(driver, attempt))
    finish_elsewhere(rig, state)
    rig.take_over()
    for store, named in rig.sinks._by_store(attempt.named()).items():
        store.pin(named, sink=SINK, epoch=other.epoch, batch_id=0)
    for partition in rig.partitions:
        rig.append(partition.partition, b"after")
        partition.replica.trim(partition.log.state.high_watermark)
    ends = [partition.log.state.log_end_offset for partition in rig.partitions]
    rig.sinks.complete(SINK)
    assert [partition.log.state.log_end_offset for partition in rig.partitions] == ends, "appended once more"
    end(rig, world, 1)


def power_cut_below_the_high_watermark() -> None:
    """With `fsync = interval` records are visible before they are durable: they go, and the group comes lower."""
    rig, world = fresh()
    driver = Driver(world, rig, 0)
    attempt = staged(driver)
    for partition in rig.partitions:
        partition.alter(
            replace(partition.info, settings=settings_from({**partition.settings.as_dict(), "fsync": "interval"}))
        )
        for _ in range(5):
            rig.append(partition.partition, b"goes with the power")
        assert partition.log.state.high_watermark > partition.log.state.durable_end
    state = decide(driver, attempt, pin(driver, attempt))
    rig.drop()
    second = Rig(rig._disk.after_crash("lost"), boot=2)  # type: ignore[attr-defined]
    finish_elsewhere(second, state)
    second.drop()
    third = Rig(second._disk.after_crash("lost"), boot=3)  # type: ignore[attr-defined]
    third.rounds.recover()
    end(third, world, 1)


# --- leaders


def never_tried_by_this_leadership() -> None:
    """It pinned, another leader appended, and it leads again: it has to look."""
    rig, world = fresh()
    driver = Driver(world, rig, 0)
    attempt = staged(driver)
    state = decide(driver, attempt, pin(driver, attempt))
    finish_elsewhere(rig, state)
    rig.take_over()
    rig.sinks.complete(SINK)
    end(rig, world, 1)


def searched_in_another_leadership() -> None:
    """A searches and finds nothing, B leads and appends, A leads again, and the old thread goes on."""
    rig, world = fresh()
    driver = Driver(world, rig, 0)
    attempt = staged(driver)
    state = decide(driver, attempt, pin(driver, attempt))
    append = StageStore._append_group
    with pytest.MonkeyPatch.context() as patch:

        def late(self: StageStore, decision: str, refs: list[StageRef], leader_epoch: int) -> tuple[int, int]:
            patch.setattr(StageStore, "_append_group", append)
            rig.take_over()
            finish_elsewhere(rig, state)
            rig.take_over()
            return append(self, decision, refs, leader_epoch)

        patch.setattr(StageStore, "_append_group", late)
        try:
            rig.sinks.complete(SINK)
        except NotLeader:
            rig.sinks.complete(SINK)
    end(rig, world, 1)


def judged_before_a_take_over() -> None:
    """A decision is judged, the broker is deposed and leads again: what it judged is not appended."""
    rig, world = fresh()
    driver = Driver(world, rig, 0)
    attempt = staged(driver)
    refs = pin(driver, attempt)
    decided = Ledger.decided
    with pytest.MonkeyPatch.context() as patch:

        def late(self: Ledger, sink: str, commit: CommitRequest, decision: Decision) -> SinkState:
            state = decided(self, sink, commit, decision)
            rig.take_over()
            return state

        patch.setattr(Ledger, "decided", late)
        with pytest.raises(NotLeader):
            decide(driver, attempt, refs)
    assert rig.sinks.describe(SINK).last is None
    driver.commit(attempt)
    end(rig, world, 1)


def stale_sweep_of_a_sink_it_does_not_know() -> None:
    """A coordinator that was deposed before the sink was opened judges its pins."""
    rig, world = fresh()
    stale = snapshot(rig)
    driver = Driver(world, rig, 0)
    attempt = staged(driver)
    refs = pin(driver, attempt)
    drop(rig, judged(rig, stale))
    decide(driver, attempt, refs)
    rig.sinks.complete(SINK)
    end(rig, world, 1)


def stale_sweep_after_a_reset() -> None:
    """It knows the batch id as decided; since then the sink was reset, and ids begin anew."""
    rig, world = fresh()
    Driver(world, rig, 0).write()
    stale = snapshot(rig)
    rig.sinks.reset(SINK, 0)
    driver = Driver(world, rig, 0)
    attempt = staged(driver)
    refs = pin(driver, attempt)
    drop(rig, judged(rig, stale))
    decide(driver, attempt, refs)
    rig.sinks.complete(SINK)
    assert len(rows(rig)) == 2 * world.rows
    rig.drop()


def stream_is_not_open() -> None:
    """Its folder cannot be read for a while. It is not gone: the catalog has it."""
    rig, world = fresh()
    driver = Driver(world, rig, 0)
    attempt = staged(driver)
    decide(driver, attempt, pin(driver, attempt))
    store = rig.store

    def nowhere(stream: str, partition: int) -> StageStore:
        raise UnknownStream(f"stream {stream!r} is not open", stream=stream)

    rig.store = nowhere  # type: ignore[method-assign]
    rig.rounds.sweep()
    with pytest.raises(NotReady):
        rig.sinks.delete(SINK)
    rig.store = store  # type: ignore[method-assign]
    rig.rounds.sweep()
    end(rig, world, 1)


# --- runs


def tasks_open_for_themselves() -> None:
    """Each task of a run opens; what they stage is committed by the driver, under its epoch."""
    rig, world = fresh()
    driver = Driver(world, rig, 0)
    attempt = world.attempt(0)
    for stage, (_, parts) in attempt.stages.items():
        assert rig.sinks.open(SINK, driver.owner).epoch == driver.epoch, "a run has one epoch"
        for part in range(len(parts)):
            driver.upload(attempt, stage, part)
    driver.commit(attempt)
    end(rig, world, 1)


def late_task_of_a_dead_run_opens() -> None:
    """Under an owner that the sink has never seen: it must not stop the run that works."""
    rig, world = fresh()
    running = Driver(world, rig, 0)
    running.write()
    attempt = staged(running)
    Driver(world, rig, 0)
    running.commit(attempt)
    running.write()
    end(rig, world, 3)


def superseded_run_opens_again() -> None:
    """It would be taken for a new run, and stop the one that works."""
    rig, world = fresh()
    old, new = Driver(world, rig, 0), Driver(world, rig, 0)
    old.write()
    new.next_batch = 1
    new.write()
    with pytest.raises(SinkFenced):
        rig.sinks.open(SINK, old.owner)
    old.next_batch = 2
    with pytest.raises(SinkFenced):
        old.write()
    new.write()
    end(rig, world, 3)


def zombie_of_a_deleted_sink() -> None:
    """Its epoch is not below the current one of the sink that has the name now."""
    rig, world = fresh()
    zombie = Driver(world, rig, 0)
    attempt = staged(zombie)
    rig.sinks.delete(SINK)
    heir = Driver(world, rig, 0)
    assert heir.epoch > zombie.epoch, "epochs are never given twice"
    with pytest.raises((SinkFenced, StageLost)):
        zombie.commit(attempt)
    with pytest.raises((SinkFenced, StageLost)):
        zombie.write()
    heir.write()
    end(rig, world, 1)


def zombie_after_a_reset() -> None:
    rig, world = fresh()
    zombie = Driver(world, rig, 0)
    zombie.write()
    attempt = staged(zombie)
    rig.sinks.reset(SINK, 1)
    with pytest.raises(SinkFenced):
        zombie.commit(attempt)
    heir = Driver(world, rig, 1)
    heir.write()
    end(rig, world, 2)


def overtaken_between_pin_and_decision() -> None:
    """Another run commits the same batch meanwhile: it is decided once."""
    rig, world = fresh()
    slow, quick = Driver(world, rig, 0), Driver(world, rig, 0)
    attempt = staged(slow)
    refs = pin(slow, attempt)
    quick.write()
    with pytest.raises((SinkFenced, NotReady)):
        decide(slow, attempt, refs)
    end(rig, world, 1)


def heir_commits_what_was_staged_before() -> None:
    """The stages are the dead run's; the commit that names them supersedes it, and must not drop them for that."""
    rig, world = fresh()
    dead = Driver(world, rig, 0)
    attempt = staged(dead)
    heir = Driver(world, rig, 0)
    heir.commit(attempt)
    end(rig, world, 1)


def repetition_by_an_heir() -> None:
    """It finds its batch decided, and is current from then on."""
    rig, world = fresh()
    dead = Driver(world, rig, 0)
    attempt = staged(dead)
    dead.commit(attempt)
    heir = Driver(world, rig, 0)
    assert not heir.commit(attempt).is_new
    with pytest.raises(SinkFenced):
        dead.write()
    heir.write()
    end(rig, world, 2)


# --- by hand


def rolled_back_by_one_batch() -> None:
    """The checkpoint lost the batch, and it is planned anew, with more rows: silence would lose them."""
    rig, world = fresh()
    Driver(world, rig, 0).write()
    more = World(rows=world.rows + 1, seed=5)
    again = Driver(more, rig, 0)
    again.owner = "rolled back"
    again.epoch = rig.sinks.open(SINK, again.owner).epoch
    with pytest.raises(SinkRowsDiffer):
        again.write()
    end(rig, world, 1)


def planned_anew_with_as_many_rows() -> None:
    """As before, but each partition has another share, so that the number of rows tells nothing."""
    rig, world = fresh()
    Driver(world, rig, 0).write()
    again = Driver(world, rig, 0)
    other = world.attempt(0, plan=1)
    again.stage(other)
    with pytest.raises(SinkRowsDiffer, match="keep_first"):
        again.commit(other)
    assert not again.commit(staged(again)).is_new, "a replay, its rows placed otherwise, is the same batch"
    again.stage(other)
    assert not again.commit(other, keeps_first=True).is_new
    end(rig, world, 1)


def restored_from_an_older_copy() -> None:
    """The broker knows batch 0 as the last one, the query's checkpoint 2; and then none at all."""
    disk, world = SimDisk(), World(rows=6)
    rig = Rig(disk)
    Driver(world, rig, 0).write()
    copy = disk.after_kill()
    later = Driver(world, rig, 1)
    later.write()
    later.write()
    rig.drop()
    for old, last in ((copy, "batch 0"), (SimDisk(), "no batch")):
        restored = Rig(old, boot=9)
        again = Driver(world, restored, 3)
        with pytest.raises(SinkBatchesMissing, match=f"has {last}.*follows batch 2"):
            again.write()
        restored.sinks.reset(SINK, 3)
        Driver(world, restored, 3).write()
        restored.drop()


def deleted_while_unfinished() -> None:
    """The defect: a decided batch was never finished, and never known again."""
    rig, world = fresh()
    driver = Driver(world, rig, 0)
    attempt = staged(driver)
    decide(driver, attempt, pin(driver, attempt))
    with pytest.raises(NotReady):
        rig.sinks.remove(SINK)
    rig.sinks.complete(SINK)
    end(rig, world, 1)


def job_repeats_its_commit() -> None:
    """The answer was lost, and a round of the cleaner came in between."""
    rig, world = fresh()
    job = Driver(world, rig, 0, is_one_shot=True)
    attempt = staged(job)
    job.commit(attempt)
    rig.rounds.sweep()
    try:
        assert not job.commit(attempt).is_new
    except UnknownSink:
        raise AssertionError("the job is told that nobody opened the sink, and its rows are in the stream") from None
    rig.drop()


def pins_of_a_sink_that_nobody_knows() -> None:
    rig, world = fresh()
    driver = Driver(world, rig, 0)
    pin(driver, staged(driver))
    rig.sinks.commits.write(lambda *_: Removed(SINK))
    end(rig, World(rows=6), 0)


def silent_one_comes_back() -> None:
    """Judged silent, and its stages pinned and decided before they are dropped to make room."""
    rig, world = fresh()
    frozen = Driver(world, rig, 0)
    attempt = staged(frozen)
    rig.now_us += StageLimits().owner_silent_ms * 1_000 * PATIENCE
    silent = [(store, silent_first(store, rig.sinks.silences)) for store in rig.stores()]
    refs = pin(frozen, attempt)
    decide(frozen, attempt, refs)
    for store, owners in silent:
        assert owners, "it is silent"
        store.limits = replace(store.limits, stage_bytes_max=1)
        store.make_room(owners)
    rig.sinks.complete(SINK)
    world.acked.add(0)
    end(rig, world, 1)


def rows(rig: Rig) -> list[bytes]:
    return [value for partition in (0, 1) for _, values in rig.visible(partition) for value in values]


SCENARIOS = (
    sweep_between_pin_and_decision,
    newer_epoch_is_swept,
    late_drop,
    late_drop_of_a_repetition,
    drop_of_another_leadership,
    idle_pin_of_two_runs,
    idle_pin_below_the_current_run,
    late_pin_of_an_older_run,
    pinned_anew_beside_its_own_group,
    power_cut_below_the_high_watermark,
    never_tried_by_this_leadership,
    searched_in_another_leadership,
    judged_before_a_take_over,
    stale_sweep_of_a_sink_it_does_not_know,
    stale_sweep_after_a_reset,
    stream_is_not_open,
    tasks_open_for_themselves,
    late_task_of_a_dead_run_opens,
    superseded_run_opens_again,
    zombie_of_a_deleted_sink,
    zombie_after_a_reset,
    overtaken_between_pin_and_decision,
    heir_commits_what_was_staged_before,
    repetition_by_an_heir,
    rolled_back_by_one_batch,
    planned_anew_with_as_many_rows,
    restored_from_an_older_copy,
    deleted_while_unfinished,
    job_repeats_its_commit,
    pins_of_a_sink_that_nobody_knows,
    silent_one_comes_back,
)
