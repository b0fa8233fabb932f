"""Goal: counting and background work beside an append may fail: it is stored all the same, and those who wait are told
once.

Method: `Replica.appended` fails, as it would for want of memory.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.api.errors import NotReady
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.storage.log import AppendResult
from tests.unit.runtime.test_partition import HeldPool, Waiter, disk, partition, pool, rows, stored

__all__ = ["disk", "partition", "pool"]  # fixtures


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    def appended(self: Replica, result: AppendResult) -> None:
        raise MemoryError("a fault of ours")

    monkeypatch.setattr(Replica, "appended", appended)


@pytest.mark.parametrize("here", [False, True])
@pytest.mark.usefixtures("faulty")
def test_a_fault_in_what_is_counted_loses_no_sync_and_no_waiter(
    partition: Partition, pool: HeldPool, here: bool, caplog: pytest.LogCaptureFixture
) -> None:
    waiter = Waiter()
    pool.go.release()
    with caplog.at_level(logging.ERROR):
        partition.append_now([rows(b"a")], waiter, here=here)
    assert waiter.wait() == 1
    assert stored(partition) == [b"a"]
    assert [record.message.split()[0] for record in caplog.records] == ["partition.appended_bug"]


@pytest.mark.usefixtures("faulty")
async def test_an_append_that_is_awaited_is_answered_once_despite_it(partition: Partition, pool: HeldPool) -> None:
    pool.go.release()
    result = await asyncio.wait_for(asyncio.wrap_future(partition.append([rows(b"a")])), 60)
    assert (result.first_offset, result.next_offset) == (0, 1)


def test_an_append_that_comes_after_the_last_thread_has_ended_is_refused_and_waits_nowhere(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = partition._queued
    with ThreadPoolExecutor(1) as ended:
        monkeypatch.setattr(queued, "_appender", ended)
    with pytest.raises(NotReady):
        partition.append([rows(b"a")])
    assert queued._waiting == 0
