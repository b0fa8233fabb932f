"""Two calls to the disk fail, the second while the first is made good, and the power may go behind both: each batch of
a sink is there once, all of it from one attempt.

Method: as test_faults, whose way to go on it uses; which calls fail is up to a seed.
"""

from __future__ import annotations

import errno
import random

import pytest

from broker.api.errors import LiftlogError
from tests.properties.sinks.test_crash import BATCHES, prepared
from tests.properties.sinks.test_faults import go_on
from tests.support.effort import EFFORT, first_short, seeded
from tests.support.sinks import Driver, Rig, World

SECOND = 36


@pytest.mark.parametrize("same_run", first_short([True, False]), ids=["same run", "next run"])
def test_a_second_failure_while_the_first_is_made_good_loses_and_doubles_nothing(same_run: bool) -> None:
    sound = prepared()
    rig = Rig(sound, boot=2)
    before = sound.count
    go_on(sound, rig, World(), same_run=same_run)
    total = sound.count - before
    for number in range(SECOND * EFFORT):
        rng = random.Random(seeded(number))
        first = before + rng.randint(1, total)
        second = first + rng.choice((1, 2, 3, rng.randint(1, 60)))
        disk, world = prepared(), World()
        rig = Rig(disk, boot=2)
        disk.fails_at = {first, second}
        disk.fails_with = rng.choice((errno.EIO, errno.ENOSPC))
        try:
            driver: Driver | None = None
            while disk.count <= second and len(world.acked) < BATCHES:  # no healing before both have come
                try:
                    if driver is None:
                        driver = Driver(world, rig, max(world.acked, default=-1) + 1, repeat=True)
                    attempt = world.attempt(driver.next_batch)
                    driver.stage(attempt)
                    driver.commit(attempt)
                    rig.rounds.sweep()
                except LiftlogError:
                    driver = driver if same_run else None
            disk.heal()
            if number % 2:  # the power goes behind both
                disk = disk.after_crash("lost", seed=number)
                rig = Rig(disk, boot=3)
            go_on(disk, rig, world, same_run=False)
            world.check_complete(rig, BATCHES)
            again = Rig(disk.after_crash("lost", seed=number), boot=4)
            world.check_complete(again, BATCHES)
        except Exception as error:
            raise AssertionError(f"{number}: calls {first} and {second} of {before + total}") from error
