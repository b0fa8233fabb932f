"""Goal: a partition tells those who wait of success only for what is durable, whatever the disk does.

Method: the real log on the fake disk, whose fsync fails when told to; the real fsync pool.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.api.batch import decode_batch
from broker.api.errors import NotLeader, ReadOnly, StorageFailed, StreamPaused, UnknownStream
from broker.api.stream import settings_from
from broker.common.elapsed import MACHINE
from broker.groups.offsets import offset_rows
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Outcome, Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncPool
from broker.node.partitions.watch import ChangeHub
from broker.node.sinks.committed import append_durable
from broker.replication.events import Synced
from broker.storage.disk import OsDisk
from broker.storage.log import AppendResult, PartitionLog
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from broker.storage.writing.state import LogState
from tests.support.led_alone import LedAlone
from tests.support.processes import eventually
from tests.support.simdisk import SimDisk

IDENTITY = LogIdentity(cluster_id="c", stream="s", incarnation="i", partition=0)


def info(**state: Any) -> StreamInfo:
    return StreamInfo(name="s", incarnation="i", created_us=0, settings=settings_from({}), **state)


def rows(*values: bytes) -> RowBatch:
    return RowBatch(offset_rows([(b"k", value) for value in values], timestamp_us=1))


class HeldPool(SyncPool):
    """The pool, with the fsync held back until the test lets it go."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        super().__init__(1)

    def submit(self, partition: object) -> None:
        held = self

        class Held:
            def run_sync(self) -> bool:
                held.go.acquire()
                return bool(partition.run_sync())  # type: ignore[attr-defined]

        super().submit(Held())


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def pool() -> Iterator[HeldPool]:
    made = HeldPool()
    yield made
    made.go.release(1000)
    made.close()


@pytest.fixture
def partition(disk: SimDisk, pool: HeldPool) -> Iterator[Partition]:
    log = PartitionLog.create(disk, "/p", IDENTITY, LogSettings.of(settings_from({})), now_us=0)
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as appender:
        yield LedAlone(
            info(),
            Replica(info(), 0, log, appender=appender, hub=ChangeHub(loop), clocks=MACHINE),
            leader_epoch=1,
            pool=pool,
            appender=appender,
        )
    loop.close()


def stored(partition: Partition) -> list[bytes]:
    return [v for m in partition.log.reader.batches(0) for v in decode_batch(m).column("value").to_pylist()]


class Waiter:
    """Remembers the outcome of one append."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.outcome: Outcome | None = None

    def __call__(self, result: AppendResult, outcome: Outcome) -> None:
        assert not self.done.is_set(), "called twice"
        self.outcome = outcome
        self.done.set()

    def wait(self) -> Outcome:
        assert self.done.wait(60)
        assert self.outcome is not None
        return self.outcome


def test_one_fsync_serves_all_that_was_appended_before_it(partition: Partition, pool: HeldPool) -> None:
    waiters = [Waiter() for _ in range(5)]
    for i, waiter in enumerate(waiters):
        partition.append_now([rows(b"%d" % i)], waiter)
    assert partition.log.state.high_watermark == 0
    pool.go.release()
    assert [w.wait() for w in waiters] == [5] * 5
    assert partition.log.state.high_watermark == 5


def test_who_appends_may_sync_as_well_and_needs_no_other_thread(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6. The pool is held all the time."""
    monkeypatch.setattr("broker.node.partitions.partition.QUICK_S", 3600.0)  # a thread may lose its core amid an fsync
    waiters = [Waiter(), Waiter()]
    for i, waiter in enumerate(waiters):
        partition.append_now([rows(b"%d" % i)], waiter, here=True)
        assert (waiter.outcome, partition.log.state.high_watermark) == (i + 1, i + 1)


def test_an_offer_to_sync_is_not_taken_up_while_the_pool_is_at_it(partition: Partition, pool: HeldPool) -> None:
    queued, offered = Waiter(), Waiter()
    partition.append_now([rows(b"a")], queued)
    partition.append_now([rows(b"b")], offered, here=True)
    assert (offered.outcome, partition.log.state.high_watermark) == (None, 0)
    pool.go.release()
    assert [queued.wait(), offered.wait()] == [2, 2]


def test_after_a_slow_fsync_the_next_one_is_the_pools_and_after_a_quick_one_there_it_is_not(
    partition: Partition, pool: HeldPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiters = [Waiter() for _ in range(3)]
    monkeypatch.setattr("broker.node.partitions.partition.QUICK_S", -1.0)  # no fsync is quick
    for number in range(2):
        partition.append_now([rows(b"a")], waiters[number], here=True)
        assert waiters[number].outcome is None
        pool.go.release()
        assert waiters[number].wait() == number + 1
        eventually(lambda: not partition._sync_queued, what="the pool to be done")
    monkeypatch.setattr("broker.node.partitions.partition.QUICK_S", 3600.0)
    partition.append_now([rows(b"c")], waiters[2], here=True)
    assert waiters[2].outcome == 3


def test_who_syncs_what_it_appends_is_told_of_a_failed_fsync_and_goes_on_after_it(
    partition: Partition, disk: SimDisk
) -> None:
    failed, after = Waiter(), Waiter()
    disk.fail("sync", errno.EIO, path=".arrows")
    partition.append_now([rows(b"a")], failed, here=True)
    assert isinstance(failed.outcome, StorageFailed)
    partition.append_now([rows(b"b")], after, here=True)
    assert isinstance(after.outcome, int)
    assert stored(partition)[-1] == b"b"


def test_a_repeat_of_what_is_not_durable_yet_is_answered_when_it_is(partition: Partition, pool: HeldPool) -> None:
    def stamped() -> RowBatch:
        return RowBatch(offset_rows([(b"k", b"x")], timestamp_us=1), producer_id=1)

    first, repeat, late = Waiter(), Waiter(), Waiter()
    assert not partition.append_now([stamped()], first).duplicate
    assert partition.append_now([stamped()], repeat).duplicate
    assert not repeat.done.wait(0.05)
    pool.go.release(10)
    assert [first.wait(), repeat.wait()] == [1, 1]
    assert partition.append_now([stamped()], late).duplicate
    assert late.wait() == 1
    assert partition.replica.record_count == 1
    assert stored(partition) == [b"x"]


def test_a_repeat_whose_first_try_failed_to_sync_is_answered_after_the_recovery(
    partition: Partition, pool: HeldPool, disk: SimDisk
) -> None:
    batch = RowBatch(offset_rows([(b"k", b"x")], timestamp_us=1), producer_id=1)
    first, repeat = Waiter(), Waiter()
    disk.fail("sync", errno.EIO, path=".arrows")
    partition.append_now([batch], first)
    pool.go.release(10)
    assert isinstance(first.wait(), StorageFailed)
    assert partition.append_now([batch], repeat).first_offset == 0
    assert repeat.wait() == 1
    assert stored(partition) == [b"x"]


def test_an_append_that_failed_behind_its_write_says_that_it_may_be_stored(
    partition: Partition, pool: HeldPool, disk: SimDisk
) -> None:
    """And it is: without the field, a client would send it again, and have it twice."""
    pool.go.release(100)
    disk.fail("sync", errno.EIO, path=".arrows")
    doubtful = [partition.append([rows(b"a")]), partition.append([rows(b"a")])]
    errors = [future.exception(60) for future in doubtful]
    assert any(isinstance(error, StorageFailed) and error.fields.get("sent") for error in errors)
    assert partition.append([rows(b"b")]).result(60).next_offset == 3
    assert stored(partition) == [b"a", b"a", b"b"]


def test_an_append_that_was_refused_says_nothing_of_the_kind(partition: Partition, disk: SimDisk) -> None:
    disk.fail("write", errno.EIO)
    error = partition.append([rows(b"a")]).exception(60)
    assert isinstance(error, StorageFailed)
    assert not error.fields.get("sent")
    assert stored(partition) == []


def test_append_from_before_a_recovery_is_never_reported_as_durable(
    partition: Partition, pool: HeldPool, disk: SimDisk
) -> None:
    """P2. a and b are synced in vain; c makes the log recover, which may or may not save them; c is synced."""
    waiters = {name: Waiter() for name in "abc"}
    partition.append_now([rows(b"a")], waiters["a"])
    partition.append_now([rows(b"b")], waiters["b"])
    disk.fail("sync", errno.EIO)
    assert isinstance(partition.run_sync(), bool)
    assert isinstance(waiters["a"].wait(), StorageFailed)
    assert isinstance(waiters["b"].wait(), StorageFailed)

    partition.append_now([rows(b"c")], waiters["c"])
    pool.go.release(10)
    assert isinstance(waiters["c"].wait(), int)
    assert stored(partition)[-1] == b"c"


def test_who_waits_when_the_log_recovers_is_told_that_nobody_knows(
    partition: Partition, pool: HeldPool, disk: SimDisk
) -> None:
    """P2. The pool's sync of `a` has failed and not told anybody yet when `b` makes the log recover."""
    first, second = Waiter(), Waiter()
    partition.append_now([rows(b"a")], first)
    disk.fail("sync", errno.EIO)
    failed = partition._synced()
    partition.append_now([rows(b"b")], second)
    assert isinstance(first.wait(), StorageFailed)
    assert "had to recover" in str(first.wait())
    partition._tell(failed)
    assert second.outcome is None
    pool.go.release(10)
    assert second.wait() == 2
    assert stored(partition) == [b"a", b"b"]


def test_a_fault_of_ours_between_log_and_core_leaves_nobody_waiting_and_the_partition_goes_on(
    partition: Partition, pool: HeldPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No memory for the event of an append that is in the log already."""
    before, never, after = Waiter(), Waiter(), Waiter()
    partition.append_now([rows(b"a")], before)
    with monkeypatch.context() as patch:
        patch.setattr("broker.node.partitions.partition.Appended", _no_memory)
        with pytest.raises(MemoryError):
            partition.append_now([rows(b"b")], never)
    assert isinstance(before.wait(), StorageFailed)
    partition.append_now([rows(b"c")], after)
    pool.go.release(10)
    assert after.wait() == 3
    assert not never.done.is_set()
    assert stored(partition) == [b"a", b"b", b"c"]


def _no_memory(*_: object) -> None:
    raise MemoryError


def test_who_waits_is_told_of_a_recovery_whatever_ends_the_append_that_recovered(
    partition: Partition, pool: HeldPool, disk: SimDisk
) -> None:
    waiter, after = Waiter(), Waiter()
    partition.append_now([rows(b"a")], waiter)
    disk.fail("sync", errno.EIO)
    partition._synced()  # and nobody is told yet

    class Wrong(RowBatch):
        def compose(self, **_: Any) -> bytes:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        partition.append_now([Wrong(offset_rows([(b"k", b"v")], timestamp_us=1))], Waiter())
    assert isinstance(waiter.wait(), StorageFailed)
    partition.append_now([rows(b"c")], after)
    pool.go.release(10)
    assert isinstance(after.wait(), int)


@pytest.mark.parametrize("here", [False, True])
def test_a_commit_that_the_log_refuses_swallows_no_answer(
    partition: Partition, pool: HeldPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, here: bool
) -> None:
    """Those who wait hear of it, and not of success: a record that is not committed may be lost."""

    def refuse(state: LogState, offset: int) -> None:
        raise AssertionError(f"high watermark {offset} beyond the log end")

    waiters = [Waiter(), Waiter()]
    with monkeypatch.context() as patch:
        patch.setattr(LogState, "advance_high_watermark", refuse)
        for waiter in waiters:
            partition.append_now([rows(b"a")], waiter, here=here)
        pool.go.release(10)
        assert all(isinstance(waiter.wait(), StorageFailed) for waiter in waiters)
    assert "partition.effect_bug" in caplog.text
    after = Waiter()
    partition.append_now([rows(b"b")], after)
    pool.go.release(10)
    assert after.wait() == 3


def test_a_new_leadership_lets_nobody_of_the_one_before_wait(partition: Partition, pool: HeldPool) -> None:
    """P8, and L4 of the core."""
    waiter, later = Waiter(), Waiter()
    partition.append_now([rows(b"a")], waiter)
    partition.lead(2)
    assert isinstance(waiter.wait(), NotLeader)
    partition.append_now([rows(b"b")], later)
    pool.go.release(10)
    assert later.wait() == 2
    assert (partition.log.epochs.latest, partition.leader_epoch) == (2, 2)


def test_nothing_is_appended_before_it_is_led(partition: Partition, pool: HeldPool) -> None:
    unled = LedAlone(info(), partition.replica, leader_epoch=-1, pool=pool, appender=partition.replica._appender)
    with pytest.raises(NotLeader):
        unled.append_now([rows(b"a")], Waiter())
    assert unled.leader_epoch == -1
    assert stored(partition) == []


def test_refusing_partition_takes_nothing_from_anybody(partition: Partition) -> None:
    partition.alter(info(paused=True))
    with pytest.raises(StreamPaused):
        partition.append_now([rows(b"x")], Waiter())
    partition.alter(info(read_only=True))
    with pytest.raises(ReadOnly):
        partition.append([rows(b"x")]).result(60)
    partition.alter(info())
    assert partition.append([rows(b"x")], acks="none").result(60).next_offset == 1


@pytest.mark.parametrize("state, error", [({"paused": True}, StreamPaused), ({"read_only": True}, ReadOnly)])
def test_an_append_that_was_judged_before_a_change_is_refused_behind_it(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, state: dict[str, bool], error: type[Exception]
) -> None:
    """P7. It reads the clock between the two: there it waits for others who append, or for its turn."""
    real = partition.replica.elapsed_us

    def altered_meanwhile() -> int:
        partition.alter(info(**state))
        return real()

    monkeypatch.setattr(partition.replica, "elapsed_us", altered_meanwhile)
    waiter = Waiter()
    with pytest.raises(error):
        partition.append_now([rows(b"x")], waiter)
    assert (stored(partition), partition.log.state.log_end_offset, waiter.done.is_set()) == ([], 0, False)
    partition.append_now([rows(b"decided")], waiter, decided=True)
    assert partition.log.state.log_end_offset == 1


def test_refusal_is_a_new_error_for_each_append(partition: Partition) -> None:
    """One and the same would gather the frames, and the batches in them, of all who met it."""
    partition.alter(info(read_only=True))
    errors = []
    for _ in range(2):
        with pytest.raises(ReadOnly) as caught:
            partition.append_now([rows(b"x")], Waiter())
        errors.append(caught.value)
    assert errors[0] is not errors[1]


def test_append_that_meets_a_deleted_stream_says_so_whenever_it_comes(
    partition: Partition, pool: HeldPool, caplog: pytest.LogCaptureFixture
) -> None:
    before, between = Waiter(), Waiter()
    partition.append_now([rows(b"before")], before)  # its sync waits in the pool until the log is closed

    class Late(list[RowBatch]):
        """The log asks first whether there is anything to append: that is when the stream is deleted."""

        def __bool__(self) -> bool:
            partition.note_removed()
            partition.log.close()
            return True

    with pytest.raises(UnknownStream, match="was deleted"):
        partition.append_now(Late([rows(b"between")]), between)
    pool.go.release(10)
    assert isinstance(before.wait(), int | UnknownStream)
    with pytest.raises(UnknownStream, match="was deleted"):
        partition.append_now([rows(b"after")], Waiter())
    with pytest.raises(UnknownStream, match="was deleted"):
        partition.append([rows(b"after")]).result(60)
    assert not between.done.is_set()
    assert [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")] == []


def test_quiet_partition_holds_no_descriptor_and_takes_appends_again(tmp_path: Path, pool: HeldPool) -> None:
    """S6: what 10,000 idle partitions live on."""
    log = PartitionLog.create(OsDisk(), str(tmp_path / "p"), IDENTITY, LogSettings.of(settings_from({})), now_us=0)
    loop = asyncio.new_event_loop()

    def held() -> list[str]:
        links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return [str(link.readlink()) for link in links if link.is_symlink() and str(tmp_path) in str(link.readlink())]

    with ThreadPoolExecutor(1) as appender:
        replica = Replica(info(), 0, log, appender=appender, hub=ChangeHub(loop), clocks=MACHINE)
        partition = LedAlone(info(), replica, leader_epoch=1, pool=pool, appender=appender)
        pool.go.release(100)
        for value in (b"a", b"b"):
            waiter = Waiter()
            partition.append_now([rows(value)], waiter)
            assert isinstance(waiter.wait(), int)
            partition.replica.rest_if_quiet()
            assert held()
            partition.replica.rest_if_quiet()
            assert held() == []
        assert stored(partition) == [b"a", b"b"]
    log.close()
    loop.close()


def test_a_group_that_a_recovery_lost_is_not_called_durable_by_what_came_behind_it(
    partition: Partition, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `fsync = interval` it is appended, then its fsync fails elsewhere, and the page cache has not kept it."""
    partition.alter(replace(info(), settings=settings_from({"fsync": "interval"})))
    real = partition.append_now

    def append(*args: Any, **options: Any) -> AppendResult:
        result = real(*args, **options)
        disk.fail("sync", errno.EIO, path=".arrows")
        with pytest.raises(StorageFailed):
            partition.log.syncer.sync()
        segment = next(path for path in disk.names if path.endswith(".arrows"))
        disk.flip(segment, 8 * (len(disk.names[segment].content) - 8))
        real([rows(b"other")], Waiter())
        return result

    monkeypatch.setattr(partition, "append_now", append)
    with pytest.raises(StorageFailed, match="may be lost"):
        append_durable(partition, [rows(b"group")], leader_epoch=1)
    assert partition.log.state.lost_ranges == ((0, 1),)


def test_a_fault_after_a_sync_leaves_the_partition_to_be_synced_again(
    partition: Partition, pool: HeldPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, met = partition._core.step, []

    def fails_once(event: Any) -> Any:
        effects = step(event)
        if isinstance(event, Synced) and not met:
            met.append(event)
            raise RuntimeError("a fault of ours")
        return effects

    monkeypatch.setattr(partition._core, "step", fails_once)
    pool.go.release(2)
    partition.append_now([rows(b"a")], Waiter())
    eventually(lambda: met and not partition._sync_queued, what="the fault")
    after = Waiter()
    partition.append_now([rows(b"b")], after)
    assert after.wait() == 2
