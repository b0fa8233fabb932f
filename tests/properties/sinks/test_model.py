"""Random interleavings of runs: power cuts, kills, repetitions, aborts, late calls, expiry, lost room, take-overs, and
disks that fail for a while.

The runs' steps are single calls in any order, so each may be overtaken between any two of its own; so are the halves
of a commit (pin, decide) and the steps of a sweep (judge, by what a deposed coordinator knew, too; drop). After every
call `World.check` holds: nothing visible twice, nothing of what was not decided, groups whole, acknowledged batches
there, and what is acknowledged is what was decided, not a plan of the same batch with as many other rows. In the end a
last run, without faults, completes one more batch, and nothing is left over.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from broker.api.errors import (
    InvalidRequest,
    LiftlogError,
    NotLeader,
    NotReady,
    SinkBatchRegressed,
    SinkFenced,
    SinkRowsDiffer,
    StageLost,
)
from broker.sinks.ledger import Ledger
from broker.sinks.notes import StagePinned
from broker.sinks.state import StageRef
from tests.support.effort import examples, first_short
from tests.support.simdisk import MODES, Crashed, SimDisk
from tests.support.sinks import SINK, STREAM, Attempt, Driver, Rig, World

FAILS = ("write", "sync", "sync", "pread", "open", "create", "sync_dir", "rename", "truncate", "unlink")
Try = tuple[Driver, Attempt]
Half = tuple[Driver, Attempt, tuple[StageRef, ...]]
Judged = list[tuple[int, int, list[StagePinned]]]
"""Partition, leader epoch, pins."""


class Sinks(RuleBasedStateMachine):
    """Drivers come and go with the processes of the broker; what they staged may be committed by none but them."""

    drivers = Bundle("drivers")
    tries = Bundle("tries")
    halves = Bundle("halves")
    views = Bundle("views")
    drops = Bundle("drops")

    @initialize(seed=st.integers(0, 1 << 16))
    def start(self, seed: int) -> None:
        self.world = World(rows=3, seed=seed)
        self.disk = SimDisk(seed=seed, runs_ahead=seed % 2 == 1)
        self.boot = 1
        self.is_interval = seed % 3 == 0
        self.rig = Rig(self.disk, is_interval=self.is_interval)
        self.seed = seed

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.restart("lost", 1)
        self.rig.rounds.recover()
        driver = Driver(self.world, self.rig, self.next_batch())
        driver.write(keeps_first=True)
        self.world.check(self.rig)
        assert self.rig.sinks.states()[0].is_done
        self.rig.now_us += 1 << 60
        self.rig.rounds.sweep()  # fences what is pinned and idle
        self.rig.rounds.sweep()
        assert [store.byte_count() for store in self.rig.stores()] == [0 for _ in self.rig.stores()], "left over"
        self.rig.drop()

    def next_batch(self) -> int:
        """The batch after the last acknowledged one, as a checkpoint says it."""
        return max(self.world.acked, default=-1) + 1

    def restart(self, mode: str, seed: int) -> None:
        """The process is gone, and maybe the power was; who drives goes on, and asks the next process."""
        self.boot += 1
        now_us = self.rig.now_us
        self.rig.drop()
        self.disk = self.disk.after_kill() if mode == "kill" else self.disk.after_crash(mode, seed=seed)  # type: ignore[arg-type]
        self.rig = Rig(self.disk, boot=self.boot, now_us=now_us, is_interval=self.is_interval)

    @rule(target=drivers, bundles=st.booleans())
    def open(self, bundles: bool) -> Driver:
        return Driver(self.world, self.rig, self.next_batch(), bundles=bundles)

    @rule(target=tries, driver=drivers)
    def begin(self, driver: Driver) -> Try:
        """Spread the next batch; nothing is uploaded yet."""
        return driver, self.world.attempt(max(driver.next_batch, 0))

    @rule(target=tries, driver=drivers)
    def stage(self, driver: Driver) -> Try:
        driver.rig = self.rig
        attempt = self.world.attempt(driver.next_batch)
        with suppress(SinkFenced):  # then only some of its parts are there
            driver.stage(attempt)
        return driver, attempt

    @rule(target=tries, driver=drivers)
    def plan_anew(self, driver: Driver) -> Try:
        """The newest files of the checkpoint are gone: the same batch id, as many rows, but others."""
        driver.rig = self.rig
        attempt = self.world.attempt(max(driver.next_batch - 1, 0), plan=1)
        with suppress(SinkFenced):
            driver.stage(attempt)
        return driver, attempt

    @rule(one=tries, number=st.integers(0, 7))
    def upload(self, one: Try, number: int) -> None:
        """Any part, however late or often."""
        driver, attempt = one
        driver.rig = self.rig
        parts = [(stage, part) for stage, (_, parts) in attempt.stages.items() for part in range(len(parts))]
        with suppress(StageLost, SinkFenced):
            driver.upload(attempt, *parts[number % len(parts)])

    @rule(driver=drivers, step=st.integers(1, 12), mode=st.sampled_from([*MODES, "kill"]), seed=st.integers(0, 99))
    def stage_and_die(self, driver: Driver, step: int, mode: str, seed: int) -> None:
        """The power goes while parts are written and made durable, of a bundle or one by one."""
        self.disk.crash_at = self.disk.steps + step
        with suppress(Crashed):
            self.stage(driver)
        self.restart(mode, seed)

    @rule(
        driver=drivers,
        call=st.integers(0, 12),
        kind=st.sampled_from(FAILS),
        times=st.sampled_from([1, 2, 1_000]),
        step=st.none() | st.integers(1, 30),
    )
    def write_on_a_disk_that_fails(self, driver: Driver, call: int, kind: str, times: int, step: int | None) -> None:
        """Anywhere while parts are written, and at any fsync of their commit; the run repeats both, or goes away. The
        power may go in the same commit."""
        driver.rig = self.rig
        attempt = self.world.attempt(driver.next_batch)
        self.failing(kind, call, times, lambda: driver.stage(attempt))
        with suppress(LiftlogError):
            driver.stage(attempt)
        self.disk.crash_at = None if step is None else self.disk.steps + step
        with suppress(Crashed):
            self.failing("sync", call % 5, times, lambda: driver.commit(attempt))
        if step is not None:
            self.restart(MODES[step % len(MODES)], step)
            driver.rig = self.rig
        if times != 2:
            with suppress(LiftlogError):
                driver.commit(attempt)

    @rule(kind=st.sampled_from(FAILS), call=st.integers(0, 12), times=st.sampled_from([1, 1_000]))
    def sweep_on_a_disk_that_fails(self, kind: str, call: int, times: int) -> None:
        self.failing(kind, call, times, self.rig.rounds.sweep)

    def failing(self, kind: str, call: int, times: int, act: Callable[[], object]) -> None:
        """Do it while calls of a kind fail, `times` from the given one on; then the disk is well again."""
        self.disk.fail(kind, errno.EIO, after=call, times=times)
        with suppress(LiftlogError):
            act()
        self.disk.heal()

    @rule(one=tries)
    def commit(self, one: Try) -> None:
        driver, attempt = one
        driver.rig = self.rig
        with suppress(StageLost, SinkFenced, SinkBatchRegressed, SinkRowsDiffer):
            driver.commit(attempt)

    @rule(target=halves, one=tries)
    def pin(self, one: Try) -> object:
        """The first half of a commit: stages are pinned, nothing is decided."""
        driver, attempt = one
        driver.rig = self.rig
        asked = driver.asked(attempt)
        try:
            return driver, attempt, self.rig.sinks.pin(SINK, asked, attempt.named())
        except (StageLost, InvalidRequest):
            return multiple()

    @rule(half=consumes(halves))
    def decide(self, half: Half) -> None:
        """The second half, however late, by whoever coordinates by then."""
        driver, attempt, refs = half
        driver.rig = self.rig
        try:
            self.rig.sinks.complete(SINK)
            self.rig.sinks.decide(SINK, driver.asked(attempt), refs)
            self.rig.sinks.complete(SINK)
        except (SinkFenced, SinkBatchRegressed, SinkRowsDiffer, NotReady):
            return
        self.world.acked.add(attempt.batch_id)

    @rule(target=views)
    def depose(self) -> Ledger:
        """The ledger of a coordinator that is deposed now; it may go on to sweep for a while."""
        return Ledger(dict(self.rig.sinks.commits.ledger().states))

    @rule(target=drops, view=views | st.none())
    def judge(self, view: Ledger | None) -> Judged:
        """The first steps of a sweep: the pins of each partition, and which of them are over."""
        ledger = view or self.rig.sinks.commits.ledger()
        found = [(store.main.partition, store.staged()) for store in self.rig.stores()]
        return [(n, staged.leader_epoch, [p for p in staged.pins if not ledger.is_open(p)]) for n, staged in found]

    @rule(judged=drops)
    def drop(self, judged: Judged) -> None:
        """The last step, however late or often."""
        for number, leader_epoch, pins in judged:
            with suppress(NotLeader):
                self.rig.rounds.drop(self.rig.store(STREAM, number), leader_epoch, pins)

    @rule(partition=st.integers(0, 1), from_last=st.booleans())
    def make_room(self, partition: int, from_last: bool) -> None:
        """Owners are taken for silent, rightly or not, and others need the room."""
        store = self.rig.store(STREAM, partition)
        if store.exists:
            owners = sorted({(held.sink, held.epoch) for held in store.holdings()}, reverse=from_last)
            kept, store.limits = store.limits, replace(store.limits, stage_bytes_max=1)
            store.make_room(owners)
            store.limits = kept

    @rule()
    def take_over(self) -> None:
        self.rig.take_over()

    @rule(one=tries, step=st.integers(1, 40), mode=st.sampled_from([*MODES, "kill"]), seed=st.integers(0, 99))
    def commit_and_die(self, one: Try, step: int, mode: str, seed: int) -> None:
        """The power goes in the middle of it, unless it is over by then."""
        self.disk.crash_at = self.disk.steps + step
        with suppress(Crashed):
            self.commit(one)
        self.restart(mode, seed)

    @rule(target=tries, one=consumes(tries))
    def abort(self, one: Try) -> object:
        """As Spark does when a commit raised; it may be too late."""
        self.rig.sinks.abort(SINK, one[1].named())
        return one if one[1].number % 2 else multiple()

    @rule(partition=st.integers(0, 1))
    def append(self, partition: int) -> None:
        self.rig.append(partition, b"between")

    @rule(hours=st.integers(0, 30))
    def sweep(self, hours: int) -> None:
        self.rig.now_us += hours * 3_600_000_000
        self.rig.rounds.sweep()

    @rule(mode=st.sampled_from([*MODES, "kill"]), seed=st.integers(0, 99), recover=st.booleans())
    def die(self, mode: str, seed: int, recover: bool) -> None:
        self.restart(mode, seed)
        if recover:
            self.rig.rounds.recover()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "rig"):
            self.world.check(self.rig)
            for partition in range(2):
                assert self.rig.store(STREAM, partition).byte_count() >= 0


@pytest.mark.parametrize("lives", first_short([10, 30]))
def test_sinks(lives: int) -> None:
    run_state_machine_as_test(
        Sinks, settings=settings(max_examples=examples(lives), stateful_step_count=40, deadline=None)
    )
