"""Random interleavings of two drivers, power cuts, kills, repetitions, aborts, late uploads, expiry, trims.

The drivers' steps are single calls in any order, so each may be overtaken between any two of its own. After every
call `World.check` holds: nothing visible twice, nothing of what was not decided, groups whole, acknowledged batches
there. In the end a last driver, without faults, completes one more batch.
"""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from broker.api.errors import SinkBatchRegressed, SinkFenced, StageLost
from tests.support.effort import examples
from tests.support.simdisk import MODES, Crashed, SimDisk
from tests.support.sinks import SINK, STREAM, Attempt, Driver, Rig, World

Try = tuple[Driver, Attempt]


class Sinks(RuleBasedStateMachine):
    """Drivers come and go with the processes of the broker; what they staged may be committed by none but them."""

    drivers = Bundle("drivers")
    tries = Bundle("tries")

    @initialize(seed=st.integers(0, 1 << 16))
    def start(self, seed: int) -> None:
        self.world = World(rows=3, seed=seed)
        self.disk = SimDisk(seed=seed, runs_ahead=seed % 2 == 1)
        self.boot = 1
        self.rig = Rig(self.disk)
        self.seed = seed

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.restart("lost", 1)
        self.rig.rounds.recover()
        driver = Driver(self.world, self.rig, self.next_batch())
        driver.write()
        self.world.check(self.rig)
        assert self.rig.sinks.states()[0].is_done
        self.rig.now_us += 1 << 60
        self.rig.rounds.sweep()  # fences what is pinned and idle
        self.rig.rounds.sweep()
        assert [store.byte_count() for store in self.rig.stores()] == [0 for _ in self.rig.stores()], "left over"
        self.rig.drop()

    def next_batch(self) -> int:
        """What a checkpoint says: the batch after the last acknowledged one."""
        return max(self.world.acked, default=-1) + 1

    def restart(self, mode: str, seed: int) -> None:
        """The process is gone, and maybe the power was; who drives goes on, and asks the next process."""
        self.boot += 1
        now_us = self.rig.now_us
        self.rig.drop()
        self.disk = self.disk.after_kill() if mode == "kill" else self.disk.after_crash(mode, seed=seed)  # type: ignore[arg-type]
        self.rig = Rig(self.disk, boot=self.boot, now_us=now_us)

    @rule(target=drivers)
    def open(self) -> Driver:
        return Driver(self.world, self.rig, self.next_batch())

    @rule(target=tries, driver=drivers)
    def begin(self, driver: Driver) -> Try:
        """Spread the next batch; nothing is uploaded yet."""
        return driver, self.world.attempt(max(driver.next_batch, 0))

    @rule(target=tries, driver=drivers)
    def stage(self, driver: Driver) -> Try:
        driver.rig = self.rig
        attempt = self.world.attempt(driver.next_batch)
        driver.stage(attempt)
        return driver, attempt

    @rule(one=tries, number=st.integers(0, 7))
    def upload(self, one: Try, number: int) -> None:
        """Any part, however late or often."""
        driver, attempt = one
        driver.rig = self.rig
        parts = [(stage, part) for stage, (_, parts) in attempt.stages.items() for part in range(len(parts))]
        with suppress(StageLost):
            driver.upload(attempt, *parts[number % len(parts)])

    @rule(one=tries)
    def commit(self, one: Try) -> None:
        driver, attempt = one
        driver.rig = self.rig
        with suppress(StageLost, SinkFenced, SinkBatchRegressed):
            driver.commit(attempt)

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


TestSinks = Sinks.TestCase
TestSinks.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
