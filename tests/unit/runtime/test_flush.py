"""Goal: this thread syncs a flushed batch that is awaited and comes alone; the pool syncs everything else.

Method: the real parser, log and pool; the pool's fsync is held back, so what is acknowledged at once was synced here.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from broker.api.errors import StorageFailed
from broker.api.stream import settings_from
from broker.common.elapsed import MACHINE
from broker.ingest import load
from broker.intake.flush import CROWD_RECORDS, Flusher
from broker.metadata.catalog import StreamInfo
from broker.node.partitions import partition as leader
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncPool
from broker.node.partitions.watch import ChangeHub
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from tests.support.led_alone import LedAlone
from tests.support.simdisk import SimDisk
from tests.unit.runtime.test_partition import HeldPool, pool

__all__ = ["pool"]  # a fixture


class CountingHub(ChangeHub):
    """Counts how often something was noted."""

    count = 0

    def note(self, *keys: Hashable) -> None:
        self.count += 1
        super().note(*keys)


class Intake:
    """A flusher with two streams, `a` on sid 1 and `b` on sid 2."""

    def __init__(self, pool: SyncPool, appender: ThreadPoolExecutor, implementation: str = "auto") -> None:
        parser = load(implementation)
        self.loop = asyncio.new_event_loop()
        self.sent: list[bytes] = []
        self.at_send: list[tuple[int, int, int]] = []
        self.parser = parser.Intake()
        self.flusher = Flusher(
            self.parser, parser.Builder, self.send, loop=self.loop, pool=pool, pending_bytes_max=1 << 20
        )
        self.disk = SimDisk()
        self.partitions = []
        self.builders = []
        for sid, name in enumerate("ab", 1):
            info = StreamInfo(name=name, incarnation="i", created_us=0, settings=settings_from({"linger_ms": 0}))
            identity = LogIdentity(cluster_id="c", stream=name, incarnation="i", partition=0)
            log = PartitionLog.create(self.disk, f"/{name}", identity, LogSettings.of(info.settings), now_us=0)
            self.hub = CountingHub(self.loop)
            replica = Replica(info, 0, log, appender=appender, hub=self.hub, clocks=MACHINE)
            partition = self.partition(info, replica, pool=pool, appender=appender)
            self.partitions.append(partition)
            slot = self.flusher.add(info, partition)
            self.builders.append(slot.builder)
            self.noted = self.hub.count
            self.parser.route(sid, [slot.builder], partition_by="subject_suffix")

    def partition(
        self, info: StreamInfo, replica: Replica, *, pool: SyncPool, appender: ThreadPoolExecutor
    ) -> Partition:
        return LedAlone(info, replica, leader_epoch=1, pool=pool, appender=appender)

    def send(self, blob: bytes) -> None:
        log = self.partitions[-1].log
        self.sent.append(blob)
        self.at_send.append((log.state.durable_end, log.state.high_watermark, self.hub.count - self.noted))

    def receive(self, *sids: int, unawaited: int = 0) -> None:
        """One message for each sid, in one read of the socket, behind some for sid 1 that nobody awaits."""
        messages = [b"MSG s 1 1\r\nx\r\n"] * unawaited + [b"MSG s %d _INBOX.1 1\r\nx\r\n" % sid for sid in sids]
        self.parser.feed(b"".join(messages), 1)
        self.flusher.after_feed()

    def acked(self) -> int:
        return b"".join(self.sent).count(b"PUB _INBOX.1 ")


@pytest.fixture
def intake(pool: HeldPool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Intake]:
    monkeypatch.setattr(leader, "QUICK_S", 3600.0)  # a thread that loses its core has no slow disk
    with ThreadPoolExecutor(1) as appender:
        made = Intake(pool, appender)
        yield made
        pool.go.release(1000)
        pool.close()
        made.loop.close()


@pytest.mark.parametrize("unawaited", [0, 1], ids=["awaited", "one of them not"])
def test_a_few_that_come_alone_are_durable_and_acknowledged_without_the_pool(intake: Intake, unawaited: int) -> None:
    for count in (1, CROWD_RECORDS - 2, 1):
        before = intake.acked()
        intake.receive(*[1] * count, unawaited=unawaited)
        assert intake.acked() == before + count
    assert intake.partitions[0].log.state.durable_end == CROWD_RECORDS + 3 * unawaited
    assert intake.flusher.counts["acks_sent"] == CROWD_RECORDS


def test_when_an_ack_goes_out_its_record_is_durable_and_readers_were_told(intake: Intake) -> None:
    """N1; of stream `b`. A reader that looks after the ack sees its record."""
    for count in range(1, 4):
        intake.receive(2)
        assert intake.at_send[count - 1 :] == [(count, count, count)]


def test_with_fsync_interval_readers_were_told_when_an_ack_goes_out(intake: Intake) -> None:
    partition = intake.partitions[1]
    partition.alter(replace(partition.info, settings=settings_from({"linger_ms": 0, "fsync": "interval"})))
    before = intake.hub.count - intake.noted
    intake.receive(2)
    assert intake.at_send == [(0, 1, before + 1)]
    assert intake.flusher.counts["acks_sent"] == 1


def test_a_sync_here_that_fails_is_answered_with_the_error_and_counted(intake: Intake) -> None:
    intake.disk.fail("sync", errno.EIO, path=".arrows")
    intake.receive(2, 2)
    assert [blob.count(b"storage_failed") for blob in intake.sent] == [2]
    assert (intake.flusher.counts["append_failed_records"], intake.flusher.counts["acks_sent"]) == (2, 0)
    intake.receive(2)
    assert (intake.acked(), intake.flusher.counts["acks_sent"], intake.flusher.counts["batches"]) == (3, 1, 2)


def test_a_crowd_that_comes_alone_is_as_well_if_all_are_awaited(intake: Intake) -> None:
    for count in (CROWD_RECORDS, 1_000):
        before = intake.acked()
        intake.receive(*[1] * count)
        assert intake.acked() == before + count
    assert intake.partitions[0].log.state.durable_end == CROWD_RECORDS + 1_000


def test_two_partitions_at_once_are_the_pools(intake: Intake) -> None:
    intake.receive(1, 2)
    assert intake.acked() == 0
    assert [partition.log.state.durable_end for partition in intake.partitions] == [0, 0]


def test_while_the_pool_syncs_one_partition_another_is_the_pools_as_well(intake: Intake) -> None:
    intake.receive(unawaited=CROWD_RECORDS)
    intake.receive(2)
    assert intake.acked() == 0


@pytest.mark.parametrize("awaited", [0, 1])
def test_a_crowd_that_is_not_all_awaited_does_not_hold_up_the_socket(intake: Intake, awaited: int) -> None:
    intake.receive(*[1] * awaited, unawaited=CROWD_RECORDS)
    assert intake.acked() == 0
    assert intake.partitions[0].log.state.durable_end == 0


def test_a_record_that_nobody_awaits_does_not_hold_up_the_socket(intake: Intake) -> None:
    intake.receive(unawaited=1)
    assert intake.partitions[0].log.state.durable_end == 0


@pytest.mark.parametrize("how", ["altered", "recovered"])
def test_a_batch_that_a_later_append_gets_answered_is_not_under_way_for_ever(
    intake: Intake, pool: HeldPool, how: str
) -> None:
    """The rule: any thread that learns of the outcome tells those who wait. Here this thread does, in the append of
    another batch."""
    slot, partition = intake.builders[0].tag, intake.partitions[0]
    intake.receive(unawaited=1)
    assert slot.in_flight == 1
    if how == "altered":
        partition.alter(replace(partition.info, settings=settings_from({"linger_ms": 0, "fsync": "interval"})))
    else:
        intake.disk.fail("sync", errno.EIO, path=".arrows")
        with pytest.raises(StorageFailed):
            partition.log.syncer.sync()
    intake.receive(1)
    removed = intake.loop.create_task(intake.flusher.remove(slot))
    intake.loop.run_until_complete(asyncio.sleep(0))  # it has flushed
    pool.go.release(1000)
    intake.loop.run_until_complete(asyncio.wait_for(removed, 20))
    assert (slot.in_flight, slot.ticked, intake.flusher._pending_bytes) == (0, 0, 0)
    assert intake.flusher.counts["batches"] == 2
    assert intake.acked() == 1
