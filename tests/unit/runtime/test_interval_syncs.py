"""`fsync = interval`: what was acknowledged is synced within the interval, whatever else is done."""

from __future__ import annotations

import errno
import threading

import pytest

from broker.background import interval_syncs
from broker.background.cleaner import Cleaner
from broker.background.interval_syncs import IntervalSyncs
from broker.config.configuration import load
from broker.node.partitions.partition import Partition
from tests.support.processes import eventually
from tests.support.simdisk import SimDisk
from tests.unit.runtime.test_cleaner import interval
from tests.unit.runtime.test_partition import HeldPool, disk, partition, pool, rows

__all__ = ["disk", "partition", "pool"]  # fixtures

ROUNDS = {"LIFTLOG_CLEANER_CHECKPOINT_INTERVAL_MS": "10", "LIFTLOG_CLEANER_INTERVAL_MS": "10"}


def test_a_long_round_of_the_cleaner_does_not_hold_up_syncs(partition: Partition, pool: HeldPool) -> None:
    """A commit of a gigabyte is finished in it, or a thousand checkpoints are written."""
    partition.alter(interval(partition))
    partition.append_now([rows(b"x")], lambda *_: None)
    is_at_it, may_end = threading.Event(), threading.Event()

    def also() -> None:
        is_at_it.set()
        may_end.wait()

    cleaner = Cleaner(load(None, ROUNDS), lambda: [partition], moved=set, also=also)
    pool.go.release(10)
    cleaner.start()
    try:
        assert is_at_it.wait(10)
        partition.append_now([rows(b"y")], lambda *_: None)
        eventually(lambda: partition.log.state.durable_end == 2, timeout_s=10)
    finally:
        may_end.set()
        cleaner.stop()


def test_a_stream_that_is_altered_does_not_wait_for_the_next_look(
    partition: Partition, pool: HeldPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interval_syncs, "LOOK_S", 3600.0)
    has_looked = threading.Event()

    def partitions() -> list[Partition]:
        has_looked.set()
        return [partition]

    syncs = IntervalSyncs(partitions)
    pool.go.release(10)
    syncs.start()
    try:
        assert has_looked.wait(10)
        partition.alter(interval(partition))
        syncs.look()
        partition.append_now([rows(b"x")], lambda *_: None)
        eventually(lambda: partition.log.state.durable_end == 1, timeout_s=10)
    finally:
        syncs.stop()


def test_who_has_a_short_interval_does_not_have_all_others_looked_at_each_time(
    partition: Partition, pool: HeldPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interval_syncs, "LOOK_S", 3600.0)
    looks: list[int] = []

    def partitions() -> list[Partition]:
        looks.append(1)
        return [partition]

    partition.alter(interval(partition))
    syncs = IntervalSyncs(partitions)
    pool.go.release(10)
    syncs.start()
    try:
        for end in (1, 2, 3):
            partition.append_now([rows(b"x")], lambda *_: None)
            eventually(lambda end=end: partition.log.state.durable_end == end, timeout_s=10)  # type: ignore[misc]
    finally:
        syncs.stop()
    assert len(looks) == 1


def test_a_fault_at_one_partition_does_not_end_the_syncs_of_the_others(
    partition: Partition, pool: HeldPool, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty:
        fsync_each_batch, minds_time, fsync_interval_ms, asked = False, True, 10, 0

        def sync_if_due(self, now_s: float) -> int:
            self.asked += 1
            raise RuntimeError("a fault of ours")

    faulty = Faulty()
    partition.alter(interval(partition))
    syncs = IntervalSyncs(lambda: [faulty, partition])  # type: ignore[list-item]
    pool.go.release(10)
    syncs.start()
    try:
        partition.append_now([rows(b"x")], lambda *_: None)
        eventually(lambda: partition.log.state.durable_end == 1 and faulty.asked > 2, timeout_s=10)
    finally:
        syncs.stop()
    assert caplog.text.count("cleaner.bug what=fsync") == 1


@pytest.mark.parametrize("point", ["before", "due", "under way", "failed"])
def test_a_stream_that_is_deleted_beside_its_sync_leaves_no_fault(
    partition: Partition, pool: HeldPool, disk: SimDisk, caplog: pytest.LogCaptureFixture, point: str
) -> None:
    """As `partitions.control` deletes: told first, then the log is closed without a mark. It is asked on."""
    partition.alter(interval(partition))
    asked = threading.Semaphore(0)

    def partitions() -> list[Partition]:
        asked.release()
        return [partition]

    def delete() -> None:
        partition.note_removed()
        partition.log.close(clean=False)
        disk.heal()
        caplog.clear()

    if point != "before":
        partition.append_now([rows(b"x")], lambda *_: None)
    if point == "failed":
        disk.fail("sync", errno.EIO, times=1000)
        pool.go.release()  # one, so that no other is about to be told when the stream is deleted
    syncs = IntervalSyncs(partitions)
    if point in ("before", "due"):
        delete()
    syncs.start()
    try:
        if point == "under way":
            eventually(lambda: partition._sync_queued, timeout_s=10)
            delete()
        if point == "failed":
            eventually(lambda: "partition.sync_failed" in caplog.text, timeout_s=10)
            delete()
        pool.go.release(10)
        while asked.acquire(blocking=False):
            pass
        assert asked.acquire(timeout=10)
        assert asked.acquire(timeout=10), "the thread goes on"
    finally:
        syncs.stop()
    pool.close()
    assert caplog.text == "", "it is not brought back, and nothing is told of it"
