"""Goal: records that were staged, and rot on the disk before their commit, are never committed as if they were well.

Goal: the scrub finds it, and then no decision is made that could not be finished: the driver hears `stage_lost` and
stages anew. Method: real stores on the fake disk; a bit is flipped in a hidden log; the real scrub thread.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.api.errors import StageLost
from broker.background.scrubber import Scrubber
from broker.config import configuration as config
from broker.node.partitions.partition import Partition
from broker.node.sinks.stages import StageStore
from tests.support.processes import eventually
from tests.support.simdisk import SimDisk
from tests.support.sinks import STREAM, Attempt, Driver, Rig, World


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.makedirs("/data")
    return made


@pytest.fixture
def rig(disk: SimDisk) -> Iterator[Rig]:
    rig = Rig(disk)
    yield rig
    rig.drop()


def staged(driver: Driver) -> Attempt:
    attempt = driver.world.attempt(driver.next_batch)
    driver.stage(attempt)
    return attempt


def rot(disk: SimDisk, rig: Rig, partition: int) -> None:
    """One bit of the last batch in a hidden log."""
    path = f"/data/{STREAM}/{partition}/stages/{0:020d}.arrows"
    disk.flip(path, 8 * (disk.size(path) - 20))


def scrubbed(store: StageStore) -> int:
    """Check all that is staged. Returns how many ranges were found to be lost."""
    lost = offset = 0
    while (piece := store.scrub(offset)) is not None:
        lost, offset = lost + len(piece.lost), piece.next_offset
    return lost


def test_what_is_staged_and_whole_is_left_alone(rig: Rig) -> None:
    driver = Driver(World(rows=6), rig, 0)
    driver.write()
    attempt = staged(driver)
    assert [scrubbed(store) for store in rig.stores()] == [0] * len(rig.stores())
    driver.commit(attempt)
    driver.world.check_complete(rig, 2)


def test_a_stage_that_rotted_is_not_decided_and_the_driver_stages_anew(disk: SimDisk, rig: Rig) -> None:
    driver = Driver(World(rows=6), rig, 0)
    driver.write()
    attempt = staged(driver)
    partition = attempt.named()[0].partition
    rot(disk, rig, partition)
    assert scrubbed(rig.store(STREAM, partition)) == 1
    with pytest.raises(StageLost) as refused:
        driver.commit(attempt)
    assert refused.value.why == "damaged"
    driver.world.check(rig)
    driver.commit(staged(driver))
    driver.world.check_complete(rig, 2)


def test_it_is_known_after_a_restart(disk: SimDisk, rig: Rig) -> None:
    driver = Driver(World(rows=6), rig, 0)
    attempt = staged(driver)
    partition = attempt.named()[0].partition
    rot(disk, rig, partition)
    scrubbed(rig.store(STREAM, partition))
    again = Rig(disk.after_crash("kept"), boot=2)
    driver = Driver(driver.world, again, 0)
    with pytest.raises(StageLost):
        driver.commit(attempt)
    again.drop()


def test_the_scrub_of_a_broker_covers_what_is_staged(disk: SimDisk, rig: Rig) -> None:
    attempt = staged(Driver(World(rows=6), rig, 0))
    partition = attempt.named()[0].partition
    rot(disk, rig, partition)

    def stages(main: Partition) -> StageStore | None:
        store = rig.store(STREAM, main.partition)
        return store if store.exists else None

    given = {"scrub.interval_ms": 20, "scrub.bytes_per_s": 1 << 40, "data_dir": "/data"}
    scrubber = Scrubber(config.load(None, {}, given), disk, lambda: rig.partitions, stages=stages)
    scrubber.start()
    try:
        counts = eventually(lambda: counted(scrubber), timeout_s=60, what="one pass is done")
    finally:
        scrubber.stop()
    assert counts["lost_ranges_total"] == 1
    assert counts["failed_partitions_total"] == 0
    assert rig.store(STREAM, partition)._hidden.open().state.lost_ranges


def counted(scrubber: Scrubber) -> dict[str, float]:
    found = {name.removeprefix("liftlog_scrub_"): value for name, _, _, _, value in scrubber.samples()}
    return found if found["passes_total"] else {}
