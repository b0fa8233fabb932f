"""Power is lost at every step of staging and committing to two partitions, and the query starts again.

One run of `live` writes two batches. It is run again for each changing call that it makes to the disk, with the
power going there; then each crash mode of the fake disk gives a disk to go on with. The next driver behaves as Spark
does: it opens the sink, and replays the batch that was not acknowledged, with its rows spread over the partitions
otherwise, under new stage ids. This must hold after every crash (`World.check`):

- a decided batch is there once, all of it from one attempt; an acknowledged one is there at every restart;
- its rows in one partition are one commit group;
- nothing of an attempt that was not decided is ever visible.
"""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from typing import Literal

import pytest

from broker.api.errors import LiftlogError, StageLost
from tests.support.effort import first_short
from tests.support.simdisk import MODES, Crashed, Mode, SimDisk, modes_at
from tests.support.sinks import Driver, Rig, World

BATCHES = 2


def prepared() -> SimDisk:
    """A disk with the partitions made and some records in them."""
    disk = SimDisk()
    rig = Rig(disk)
    for partition in range(2):
        rig.append(partition, b"before")
    rig.drop()
    return disk.after_crash("lost")


def live(disk: SimDisk, world: World, *, boot: int = 2, is_interval: bool = False, bundles: bool = False) -> None:
    """Go on from what is on the disk until all batches are acknowledged."""
    rig = Rig(disk, boot=boot, is_interval=is_interval)
    try:
        world.check(rig)
        rig.rounds.recover()
        world.check(rig)
        next_batch = max(world.acked, default=-1) + 1
        driver = Driver(world, rig, next_batch, repeat=True, bundles=bundles)
        while driver.next_batch < BATCHES:
            for partition in range(2):
                rig.append(partition, b"between")
            driver.write()
            rig.rounds.sweep()
        world.check(rig)
    finally:
        rig.drop()


def steps_of_life() -> int:
    disk = prepared()
    live(disk, World())
    return disk.steps


STEPS = steps_of_life()
PARTS = 24
"""Into so many tests all steps are divided: part k has every 24th step from k on."""


def crash(step: int, *, bundles: bool = False) -> tuple[SimDisk, World]:
    disk, world = prepared(), World()
    disk.crash_at = step
    with pytest.raises(Crashed):
        live(disk, world, bundles=bundles)
    return disk, world


def check_after(disk: SimDisk, world: World, *, boot: int = 3) -> None:
    live(disk, world, boot=boot)
    rig = Rig(disk, boot=boot + 1)
    world.check_complete(rig, BATCHES)
    rig.rounds.sweep()
    assert not [pin for store in rig.stores() for pin in store.staged().pins]
    rig.drop()


@pytest.mark.parametrize("part", first_short(range(PARTS)))
def test_power_loss_at_any_step_of_a_commit_keeps_every_batch_once(part: int) -> None:
    """Every step, in parts; the seed of a failure is its step."""
    for step in range(1 + part, STEPS + 1, PARTS):
        for mode in modes_at(step):
            disk, world = crash(step)
            try:
                check_after(disk.after_crash(mode, seed=step), world)
            except Exception as error:
                raise AssertionError(f"mode {mode}, step {step} of {STEPS}") from error


@pytest.mark.parametrize("part", first_short(range(PARTS)))
def test_power_loss_at_any_step_of_a_bundle_keeps_every_batch_once(part: int) -> None:
    """Parts are written, and durable only with their commit. Every step, in parts."""
    whole = prepared()
    live(whole, World(), bundles=True)
    for step in range(1 + part, whole.steps + 1, PARTS):
        for mode in modes_at(step):
            disk, world = crash(step, bundles=True)
            try:
                check_after(disk.after_crash(mode, seed=step), world)
            except Exception as error:
                raise AssertionError(f"mode {mode}, step {step} of {whole.steps}") from error


@pytest.mark.parametrize("mode", first_short(["kill", *MODES], count=2))
def test_bundles_that_a_power_cut_took_are_not_committed(mode: Mode | Literal["kill"]) -> None:
    """The driver outlives the broker, and commits what was answered: all of it is there, or nothing is decided."""
    lost = 0
    for seed in range(20):
        world, rig = World(seed=seed), Rig(disk := prepared(), boot=2)
        driver = Driver(world, rig, 0, bundles=True)
        attempt = world.attempt(0)
        driver.stage(attempt)
        rig.drop()
        again = disk.after_kill() if mode == "kill" else disk.after_crash(mode, seed=seed)
        driver.rig = rig = Rig(again, boot=3)
        try:
            driver.commit(attempt)
        except StageLost:
            lost += 1
            assert world.decided(rig) == (-1, -1)
            driver.write()
        world.check_complete(rig, 1)
        rig.drop()
    assert lost == (20 if mode == "lost" else 0 if mode == "kill" else lost)


def fail_and_cut(seed: int) -> None:
    """An fsync of a bundle's commit fails, and the power goes soon after, if the commit goes on."""
    rng, world, disk = random.Random(seed), World(seed=seed), prepared()
    driver = Driver(world, Rig(disk, boot=2), 0, bundles=True)
    attempt = world.attempt(0)
    driver.stage(attempt)
    disk.fail("sync", errno.EIO, after=rng.randrange(3), times=rng.choice([1, 2]))
    disk.crash_at = disk.steps + rng.randrange(1, 30)
    with suppress(Crashed, LiftlogError):
        driver.commit(attempt)
    disk.heal()
    disk.crash_at = None
    check_after(disk.after_crash(rng.choice(MODES), seed=seed), world)


@pytest.mark.parametrize("seed", first_short(range(60), count=15))
def test_a_failed_fsync_and_then_a_power_cut_keep_every_batch_once(seed: int) -> None:
    fail_and_cut(seed)


@pytest.mark.parametrize("part", first_short(range(PARTS)))
def test_kill_at_any_step_of_a_commit_keeps_every_batch_once(part: int) -> None:
    for step in range(1 + part, STEPS + 1, PARTS):
        disk, world = crash(step)
        try:
            check_after(disk.after_kill(), world)
        except Exception as error:
            raise AssertionError(f"step {step} of {STEPS}") from error


@pytest.mark.parametrize("case", first_short([(mode, part) for part in range(3) for mode in MODES]))
def test_a_second_power_loss_while_it_recovers_keeps_every_batch_once(case: tuple[Mode, int]) -> None:
    """A crash at some steps, of which a third at a time, then one at some steps of what follows."""
    mode, part = case
    for step in range(7 + 29 * part, STEPS, 87):
        for second in (second for second in range(1 + step % 5, 60, 7) if mode in modes_at(second)):
            disk, world = crash(step)
            again = disk.after_crash(mode, seed=step)
            again.crash_at = second
            try:
                try:
                    live(again, world, boot=3)
                except Crashed:
                    again = again.after_crash(mode, seed=second)
                again.crash_at = None
                check_after(again, world, boot=4)
            except Exception as error:
                raise AssertionError(f"mode {mode}, step {step} of {STEPS}, then {second}") from error


@pytest.mark.parametrize("part", first_short(range(3)))
def test_power_loss_where_records_are_visible_before_they_are_durable(part: int) -> None:
    """`fsync = interval`: a cut moves the end of the log back, below what was visible when stages were pinned."""
    disk = prepared()
    live(disk, World(), is_interval=True)
    for step in range(1 + 6 * part, disk.steps + 1, 18):
        cut, world = prepared(), World()
        cut.crash_at = step
        with pytest.raises(Crashed):
            live(cut, world, is_interval=True)
        again = cut.after_crash("lost", seed=step)
        try:
            again.crash_at = 9 + step % 23
            with suppress(Crashed):
                live(again, world, boot=3, is_interval=True)
            again.crash_at = None
            check_after(again.after_crash("lost", seed=step), world, boot=4)
        except Exception as error:
            raise AssertionError(f"step {step} of {disk.steps}") from error
