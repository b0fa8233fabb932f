"""Goal: a partition to which nothing comes costs next to nothing: there may be ten thousand of them."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.background.cleaner import Cleaner
from broker.common.elapsed import MACHINE
from broker.config.configuration import load
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.watch import ChangeHub
from broker.storage.log import LogIdentity, LogSettings, PartitionLog
from broker.storage.segments.chain import Chain
from tests.support.led_alone import LedAlone
from tests.support.simdisk import SimDisk
from tests.unit.runtime.test_partition import HeldPool, disk, info, partition, pool, rows

__all__ = ["disk", "partition", "pool"]  # fixtures

MANY = 50
BYTES_EACH = 8_000
"""6,500 are taken, and 7,250 where other tests came before (their objects had other attributes, so that dictionaries
share fewer keys). With a bound method for each name of a part, and deques where nobody waits, it was 10,600."""


def opened(disk: SimDisk, number: int, pool: HeldPool, appender: ThreadPoolExecutor, hub: ChangeHub) -> Partition:
    identity = LogIdentity(cluster_id="c", stream="s", incarnation="i", partition=number)
    log = PartitionLog.open(disk, f"/s/{number}", LogSettings(), boot_id="b", now_us=1, expected=identity)
    replica = Replica(info(), number, log, appender=appender, hub=hub, clocks=MACHINE)
    return LedAlone(info(), replica, leader_epoch=1, pool=pool, appender=appender)


def test_an_open_partition_takes_little_memory(disk: SimDisk, pool: HeldPool) -> None:
    loop = asyncio.new_event_loop()
    hub = ChangeHub(loop)
    for number in range(2 * MANY):
        identity = LogIdentity(cluster_id="c", stream="s", incarnation="i", partition=number)
        PartitionLog.create(disk, f"/s/{number}", identity, LogSettings(), now_us=1).close(clean=True)
    with ThreadPoolExecutor(1) as appender:
        before = [opened(disk, number, pool, appender, hub) for number in range(MANY)]  # what all share is made
        hub.take_moved()
        gc.collect()
        tracemalloc.start()
        try:
            after = [opened(disk, number, pool, appender, hub) for number in range(MANY, 2 * MANY)]
            hub.take_moved()
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            loop.close()
    assert len(before) == len(after) == MANY
    assert taken / MANY < BYTES_EACH


def test_a_round_does_nothing_to_an_empty_log(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaner = Cleaner(load(None, {}), lambda: [partition], moved=set)
    with monkeypatch.context() as patch:
        for name in ("roll_if_due", "apply_retention", "idle"):
            patch.setattr(PartitionLog, name, None)
        cleaner._clean(partition.replica, 1)
        partition.append_now([rows(b"x")], lambda *_: None)
        with pytest.raises(TypeError):
            cleaner._clean(partition.replica, 1)


def test_a_checkpoint_is_up_to_date_until_something_is_appended(partition: Partition) -> None:
    log = partition.log
    partition.append_now([rows(b"x")], lambda *_: None)
    log.syncer.sync()
    log.checkpoint()
    assert not log.checkpoints.is_up_to_date, "the index in memory may be ahead of its file"
    assert log.idle()
    assert log.checkpoints.is_up_to_date
    partition.append_now([rows(b"y")], lambda *_: None)
    assert not log.checkpoints.is_up_to_date
    log.syncer.sync()
    assert log.idle()
    assert not log.checkpoints.is_up_to_date
    log.checkpoint()
    assert log.checkpoints.is_up_to_date
    log.state.advance_high_watermark(2)
    assert not log.checkpoints.is_up_to_date


def test_an_append_that_is_not_synced_yet_is_in_the_next_checkpoint(partition: Partition) -> None:
    """The recovery point stands where it was, and the tail does not."""
    log = partition.log
    log.checkpoint()
    partition.append_now([rows(b"x")], lambda *_: None)
    log.checkpoint()
    written = log.checkpoints.written
    assert written is not None
    assert written.tail is not None
    assert written.recovery_point == 0


def test_a_segment_that_was_sealed_by_its_age_is_in_the_next_checkpoint(partition: Partition) -> None:
    """Nothing else has moved since the last one."""
    log = partition.log
    partition.append_now([rows(b"x")], lambda *_: None)
    log.syncer.sync()
    assert log.idle()
    log.checkpoint()
    assert log.roll_if_due(1 << 62)
    log.checkpoint()
    written = log.checkpoints.written
    assert written is not None
    assert written.tail is None


def test_whoever_asks_while_a_segment_is_sealed_is_told_that_something_moves(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked without a lock: the tail may have been sealed, and still be the tail."""
    log = partition.log
    partition.append_now([rows(b"x")], lambda *_: None)
    log.syncer.sync()
    log.checkpoint()
    told: list[bool] = []
    retire = Chain._retire

    def asked(chain: Chain) -> None:
        told.append(log.checkpoints.is_up_to_date)
        retire(chain)

    monkeypatch.setattr(Chain, "_retire", asked)
    assert log.roll_if_due(1 << 62)
    assert told == [False]
