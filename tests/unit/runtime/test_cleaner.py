"""Which partitions a round of the cleaner works on, however many there are, and who rests from checkpoints."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest

from broker.api.stream import settings_from
from broker.background.cleaner import LITTLE_BYTES, REST_ROUNDS, SLICE, Cleaner, DueReplicas
from broker.config.configuration import load
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.open_logs import OpenLogs
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.watch import ChangeHub
from broker.storage.remembered import Remembered
from tests.support.processes import eventually
from tests.support.simdisk import SimDisk
from tests.unit.runtime.test_partition import HeldPool, disk, partition, pool, rows

__all__ = ["disk", "partition", "pool"]  # fixtures


def partitions(count: int) -> list[Replica]:
    """So many that only have what a turn looks at."""
    made = [Replica.__new__(Replica) for _ in range(count)]
    for one in made:
        one.removed = False
    return made


def test_what_moved_comes_at_once_and_everything_in_turn() -> None:
    """2.5 slices: three rounds go through all, and none is longer than a slice and what moved."""
    all_of_them = partitions(SLICE * 5 // 2)
    turns = DueReplicas()
    turns.note(all_of_them[-2:])
    rounds = [turns.take(all_of_them) for _ in range(3)]
    assert set(rounds[0]) == {*all_of_them[:SLICE], *all_of_them[-2:]}
    assert set(rounds[0]) | set(rounds[1]) | set(rounds[2]) == set(all_of_them)
    assert max(map(len, rounds)) == SLICE + 2
    assert turns.take(all_of_them) == all_of_them[:SLICE]


def test_a_few_are_all_looked_at_each_time_and_each_once() -> None:
    few = partitions(3)
    turns = DueReplicas()
    for _ in range(3):
        turns.note(few[:1])
        assert sorted(map(id, turns.take(few))) == sorted(map(id, few))


def test_a_removed_one_that_moved_does_not_come_back() -> None:
    few = partitions(2)
    turns = DueReplicas()
    turns.note(few)
    few[0].removed = True
    assert turns.take(few[1:]) == few[1:]


def test_the_hub_tells_once_what_moved() -> None:
    loop = asyncio.new_event_loop()
    hub = ChangeHub(loop)
    for key in ("a", "b", "a"):
        hub.note(key)
    assert hub.take_moved() == {"a", "b"}
    assert hub.take_moved() == set()
    loop.close()


class Rounds:
    """Rounds of checkpoints of one partition that is always in motion, 5 s apart."""

    def __init__(self, partition: Partition) -> None:
        self.partition, self.turns, self.now_s = partition, DueReplicas(), 1000.0
        self.cleaner = Cleaner(load(None, {}), lambda: [partition], moved=set)

    def append(self, size: int) -> None:
        self.partition.append_now([rows(bytes(size))], lambda *_: None)
        self.partition.log.syncer.sync()  # the pool of these tests syncs nothing by itself

    def next(self) -> bool:
        """Whether a checkpoint was written that says that all is durable."""
        self.now_s += 5.0
        self.turns.note([self.partition.replica])
        self.cleaner._checkpoint(self.turns, [self.partition.replica], self.now_s)
        found = self.partition.log.checkpoints.written
        return found is not None and found.recovery_point == self.partition.log.state.log_end_offset


@pytest.fixture
def rounds(partition: Partition) -> Rounds:
    made = Rounds(partition)
    made.append(1)
    assert made.next()
    return made


def test_a_trickling_partition_writes_a_checkpoint_in_a_round_of_twelve(rounds: Rounds) -> None:
    written = []
    for _ in range(3 * REST_ROUNDS):
        rounds.append(100)
        written.append(rounds.next())
    assert written == [*[False] * (REST_ROUNDS - 1), True] * 3


def test_much_that_was_appended_is_in_a_checkpoint_after_one_round(rounds: Rounds) -> None:
    for _ in range(3):
        rounds.append(LITTLE_BYTES)
        assert rounds.next()


def test_a_partition_that_falls_quiet_while_it_rests_gets_its_checkpoint_all_the_same(rounds: Rounds) -> None:
    rounds.append(100)
    for _ in range(REST_ROUNDS - 1):
        assert not rounds.next()
        assert rounds.partition.replica in rounds.turns._moved
    assert rounds.next()
    assert not rounds.turns._moved


def test_what_moves_without_an_append_does_not_wait(rounds: Rounds) -> None:
    rounds.partition.replica.trim(1)
    found = rounds.partition.log.checkpoints.written
    assert found is not None
    rounds.partition.log.state.lost_ranges = ((0, 1),)  # a read found damage
    rounds.next()
    found = rounds.partition.log.checkpoints.written
    assert found is not None
    assert found.lost_ranges == ((0, 1),)


def test_a_checkpoint_that_failed_is_tried_again_in_the_next_round(rounds: Rounds, disk: SimDisk) -> None:
    rounds.append(LITTLE_BYTES)
    disk.fail("sync", errno.EIO, path="checkpoint")
    assert not rounds.next()
    rounds.append(1)
    assert rounds.next()


@pytest.mark.parametrize("kind", [errno.ENOSPC, errno.EIO])
def test_a_log_that_was_woken_in_vain_counts_as_open(
    partition: Partition, pool: HeldPool, disk: SimDisk, kind: int
) -> None:
    """It slept, its file was opened to be sealed, and the disk refused that."""
    open_logs = partition.replica._open_logs = OpenLogs(16, pool)
    pool.go.release(10)
    partition.append_now([rows(b"x")], lambda *_: None)
    eventually(lambda: partition.log.state.durable_end == 1)
    partition.replica.rest_if_quiet()
    partition.replica.rest_if_quiet()
    assert (partition.log.state.is_awake, len(open_logs)) == (False, 0)
    disk.fail("write", kind, path=".arrows")
    cleaner = Cleaner(load(None, {}), lambda: [partition], moved=set)
    assert cleaner._each([partition.replica], lambda replica: replica.log.roll_if_due(1 << 60), "clean")
    assert partition.log.state.is_awake
    assert [*open_logs._order] == [partition.log]


def interval(partition: Partition) -> StreamInfo:
    return replace(partition.info, settings=settings_from({"fsync": "interval", "fsync_interval_ms": 10}))


def test_what_was_appended_under_fsync_interval_is_synced_when_that_is_altered(
    partition: Partition, pool: HeldPool
) -> None:
    """Nobody may append any more, and from now on all is to be on the disk."""
    before = partition.info
    partition.alter(interval(partition))
    partition.append_now([rows(b"x")], lambda *_: None)
    partition.alter(before)
    env = {"LIFTLOG_CLEANER_CHECKPOINT_INTERVAL_MS": "10", "LIFTLOG_CLEANER_INTERVAL_MS": "3600000"}
    cleaner = Cleaner(load(None, env), lambda: [partition], moved=set)
    pool.go.release(10)
    cleaner.start()
    try:
        eventually(lambda: partition.log.state.durable_end == 1)
    finally:
        cleaner.stop()
    assert not partition.minds_time


def test_a_log_whose_interval_sync_failed_is_recovered_without_an_append(
    partition: Partition, pool: HeldPool, disk: SimDisk
) -> None:
    """Its records are in memory alone, and readers have seen them."""
    partition.alter(interval(partition))
    partition.append_now([rows(b"x")], lambda *_: None)
    disk.fail("sync", errno.EIO, path=".arrows")
    pool.go.release(10)
    partition.sync_if_due(1.0)
    eventually(lambda: partition.log.state.failure is not None)
    disk.fail("rename", errno.EIO)
    partition.sync_if_due(2.0)
    assert partition.log.state.failure is not None, "the disk still refuses"
    partition.sync_if_due(3.0)
    assert partition.log.state.failure is None
    assert (partition.log.state.durable_end, partition.log.state.high_watermark) == (1, 1)


@pytest.mark.slow
def test_a_log_that_follows_keeps_up_between_checkpoints(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    """`remembered.U4`: however seldom there is one. A log that is led does not."""
    kept: list[bool] = []
    monkeypatch.setattr(Remembered, "keep_up", lambda remembered: kept.append(partition.replica.may_let_go()))
    leads = [True]
    partition.replica.may_let_go = lambda: leads[0]
    rounds: list[bool] = []

    def moved() -> set[object]:
        rounds.append(leads[0])
        return {partition.replica}

    env = {"LIFTLOG_CLEANER_CHECKPOINT_INTERVAL_MS": "3600000", "LIFTLOG_CLEANER_INTERVAL_MS": "3600000"}
    cleaner = Cleaner(load(None, env), lambda: [partition], moved=moved)
    cleaner.start()
    try:
        eventually(lambda: len(rounds) >= 2)
        leads[0] = False
        eventually(lambda: kept)
    finally:
        cleaner.stop()
    assert not any(kept)
