"""A call to the disk fails, any one, while batches are staged, committed and swept; then the disk is well again.

The process goes on, as it does after a full or failing disk: the run repeats its commit, or dies and the next run
replays the batch with other stages. One failure, or each call of its kind from there on until something was refused.
After every fault each batch is there once, all of it from one attempt, and nothing is left over.
"""

from __future__ import annotations

import errno

import pytest

from broker.api.errors import LiftlogError, StageLost
from tests.properties.sinks.test_crash import BATCHES, prepared
from tests.support.effort import first_short
from tests.support.simdisk import SimDisk
from tests.support.sinks import Driver, Rig, World

pytestmark = [pytest.mark.slow, pytest.mark.long]

KINDS = ("write", "sync", "pread", "open", "create", "makedirs", "sync_dir", "rename", "truncate", "unlink")
CALLS = 14
LEASE_US = 1 << 40


def go_on(disk: SimDisk, rig: Rig, world: World, *, same_run: bool, bundles: bool = False) -> None:
    """Until all batches are acknowledged. After an error the disk is healed."""
    driver: Driver | None = None
    attempt = None
    for _ in range(40):
        if len(world.acked) == BATCHES:
            return
        try:
            if driver is None:
                driver = Driver(world, rig, max(world.acked, default=-1) + 1, repeat=True, bundles=bundles)
            if attempt is None:
                attempt = world.attempt(driver.next_batch)
                driver.stage(attempt)
            driver.commit(attempt)
            attempt = None
            rig.rounds.sweep()
        except LiftlogError as error:
            disk.heal()
            world.check(rig)
            if not same_run:
                driver = attempt = None
            elif isinstance(error, StageLost):  # a part was refused, or is not known to be there
                attempt = None
    raise AssertionError(f"only {world.acked} after 40 tries")


@pytest.mark.parametrize(
    "times, same_run, bundles",
    [
        pytest.param(1, True, False, id="once-same run"),
        pytest.param(1, False, False, id="once-next run"),
        pytest.param(1_000, True, False, id="until it is refused-same run"),
        pytest.param(1_000, False, False, id="until it is refused-next run"),
        pytest.param(1, True, True, id="once-same run-bundles"),
    ],
)
@pytest.mark.parametrize("kind", first_short(KINDS, count=len(KINDS) // 2))
def test_a_disk_that_fails_at_any_call_loses_and_doubles_nothing(
    kind: str, times: int, same_run: bool, bundles: bool
) -> None:
    sound = prepared()
    rig = Rig(sound, boot=2)
    before = sound.calls.get(kind, 0)
    go_on(sound, rig, World(), same_run=same_run, bundles=bundles)
    count = sound.calls.get(kind, 0) - before
    for after in range(0, count, max(1, count // CALLS)):
        disk, world = prepared(), World()
        rig = Rig(disk, boot=2)
        disk.fail(kind, errno.EIO, after=after, times=times)
        try:
            go_on(disk, rig, world, same_run=same_run, bundles=bundles)
            disk.heal()
            world.check_complete(rig, BATCHES)
            for _ in range(3):
                rig.now_us += LEASE_US
                rig.rounds.sweep()
            assert not any(store.staged().stages for store in rig.stores()), "left over"
            again = Rig(disk.after_crash("lost", seed=after), boot=3)
            world.check_complete(again, BATCHES)
        except Exception as error:
            raise AssertionError(f"{kind} number {after} of {count}") from error
