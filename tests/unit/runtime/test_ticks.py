"""Goal: messages that nobody awaits are flushed at ticks that all partitions share, and synced in a row. Awaited ones
wait for neither. N6 and N7 of `flush`, P7 of `partition`.

Method: the real parser, logs and pool; the pool, or the fsync of one log, is held back until the test lets it go.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from broker.common.metrics import REGISTRY
from broker.intake import flush
from broker.node.partitions.sync import ROW_LOGS, Outcome, SyncPool, SyncRow
from broker.storage.log import PartitionLog
from tests.support.logs import create_log, open_log, row_batch
from tests.support.processes import eventually
from tests.support.simdisk import Crashed, SimDisk, SimFile
from tests.support.waiting import until
from tests.unit.runtime.test_flush import Intake
from tests.unit.runtime.test_partition import HeldPool, pool

__all__ = ["pool"]  # a fixture
WAIT_S = 20


class Ticking(Intake):
    """Both streams linger."""

    def __init__(self, pool: SyncPool, appender: ThreadPoolExecutor, linger_s: float) -> None:
        super().__init__(pool, appender)
        self.slots = [builder.tag for builder in self.builders]
        for slot in self.slots:
            slot.linger_s = linger_s

    def unawaited(self, *sids: int) -> None:
        """One message for each sid, each in a read of its own."""
        for sid in sids:
            self.parser.feed(b"MSG s %d 1\r\nx\r\n" % sid, 1)
            self.flusher.after_feed()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        self.loop.run_until_complete(until(condition, what))

    def ends(self) -> list[tuple[int, int]]:
        return [(partition.log.state.log_end_offset, partition.log.state.durable_end) for partition in self.partitions]


@pytest.fixture
def make(pool: HeldPool) -> Iterator[Callable[..., Ticking]]:
    made: list[Ticking] = []
    with ThreadPoolExecutor(1) as appender:

        def make(linger_s: float = 0.001, on: SyncPool = pool) -> Ticking:
            made.append(Ticking(on, appender, linger_s))
            return made[-1]

        yield make
        pool.go.release(1000)
        pool.close()
        for ticking in made:
            ticking.loop.close()


def hold_fsync_of(path: str, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """That the fsync of this log has begun; and what lets it go."""
    plain, begun, go = SimFile.sync, threading.Event(), threading.Event()

    def sync(file: SimFile) -> None:
        if file.path.startswith(path) and file.path.endswith(".arrows"):
            begun.set()
            assert go.wait(WAIT_S)
        plain(file)

    monkeypatch.setattr(SimFile, "sync", sync)
    return begun, go


@pytest.mark.parametrize("slots", [1, 8], ids=["a turn of the loop each", "one turn"])
def test_partitions_share_a_tick_and_a_place_in_the_pool(
    make: Callable[..., Ticking], pool: HeldPool, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    monkeypatch.setattr(flush, "TICK_SLOTS", slots)
    intake = make()
    intake.unawaited(1, 2, 1)
    assert intake.ends() == [(0, 0), (0, 0)]
    assert len(intake.flusher._ticks) == 1
    intake.until(lambda: intake.ends() == [(2, 0), (1, 0)], "the tick")
    pool.go.release()
    intake.until(lambda: intake.ends() == [(2, 2), (1, 1)], "both by one turn of the pool")
    intake.until(lambda: intake.flusher._pending_bytes == intake.flusher._ticked_bytes == 0, "both to be answered")
    assert [partition.log.state.high_watermark for partition in intake.partitions] == [2, 1]


def test_an_awaited_record_takes_along_what_lingers_in_its_partition_and_waits_for_no_tick(
    make: Callable[..., Ticking],
) -> None:
    intake = make(linger_s=3600.0)
    intake.unawaited(1, 2)
    intake.receive(1)
    assert intake.acked() == 1
    assert intake.ends() == [(2, 2), (0, 0)]
    intake.unawaited(1)
    intake.flusher._tick(3600.0)
    assert intake.ends() == [(3, 2), (1, 0)]


def test_an_awaited_record_of_another_partition_is_synced_here_beside_a_tick(make: Callable[..., Ticking]) -> None:
    intake = make()
    intake.unawaited(1)
    intake.until(lambda: intake.ends()[0] == (1, 0), "the tick, whose fsync is held back")
    intake.receive(2)
    assert intake.acked() == 1
    assert intake.ends() == [(1, 0), (1, 1)]


def test_an_awaited_record_does_not_wait_for_the_row_that_its_partition_is_in(
    make: Callable[..., Ticking], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The row hangs in the fsync of `b`, with `a` behind it."""
    begun, go = hold_fsync_of("/b", monkeypatch)
    threads = SyncPool(2)
    intake = make(on=threads)
    intake.unawaited(2, 1)
    intake.until(begun.is_set, "the fsync of the first in the row")
    intake.receive(1)
    intake.until(lambda: intake.acked() == 1, "the ack")
    assert not go.is_set()
    assert intake.ends() == [(2, 2), (1, 0)]
    assert intake.slots[0].idle.is_set()  # what the row was to sync is durable as well, and told
    intake.partitions[0].note_removed()
    intake.partitions[0].log.close()
    go.set()
    intake.until(lambda: intake.flusher._pending_bytes == 0, "the row")
    assert intake.ends() == [(2, 2), (1, 1)]
    assert "sync_failed" not in caplog.text  # the row finds nothing to do in the partition that is gone
    threads.close()


def test_while_a_row_is_synced_what_comes_gathers_for_later(make: Callable[..., Ticking], pool: HeldPool) -> None:
    intake = make()
    intake.unawaited(1)
    intake.until(lambda: intake.ends()[0] == (1, 0), "the tick")
    intake.unawaited(1, 2)
    intake.until(lambda: intake.ends()[1] == (1, 0), "the next tick")
    assert intake.ends()[0] == (1, 0)
    pool.go.release(10)
    intake.until(lambda: intake.ends() == [(2, 2), (1, 1)], "all")


def test_the_log_that_fails_in_a_row_fails_alone(make: Callable[..., Ticking], pool: HeldPool) -> None:
    intake = make()
    intake.disk.fail("sync", errno.EIO, path=".arrows")  # the first in the row
    intake.unawaited(1, 2)
    pool.go.release(10)
    intake.until(lambda: intake.flusher.counts["batches"] == 2, "both")
    assert intake.ends() == [(1, 0), (1, 1)]
    assert intake.flusher.counts["append_failed_records"] == 1
    intake.unawaited(1)
    intake.until(lambda: intake.ends()[0] == (2, 2), "the log has recovered")
    for slot in intake.slots:
        intake.loop.run_until_complete(intake.flusher.remove(slot))


def test_a_bug_in_one_partition_keeps_no_other_from_its_tick(make: Callable[..., Ticking], pool: HeldPool) -> None:
    """N6."""
    intake = make()
    intake.unawaited(1, 2)
    intake.slots[0].builder = None
    pool.go.release(10)
    intake.until(lambda: intake.ends()[1] == (1, 1), "the other one")
    assert intake.flusher.counts["flush_bugs"] == 1


def test_removing_a_stream_waits_for_the_row(make: Callable[..., Ticking], pool: HeldPool) -> None:
    intake = make()
    intake.unawaited(1)
    intake.until(lambda: intake.ends()[0] == (1, 0), "the tick")
    removal = intake.loop.create_task(intake.flusher.remove(intake.slots[0]))
    for _ in range(10):
        intake.loop.run_until_complete(_turn())
    assert not removal.done()
    pool.go.release()
    intake.until(removal.done, "the removal")
    assert intake.ends()[0] == (1, 1)


async def _turn() -> None:
    pass


def test_who_cannot_be_told_keeps_no_other_of_the_row_from_hearing(
    pool: HeldPool, caplog: pytest.LogCaptureFixture
) -> None:
    row, told = SyncRow(pool), threading.Event()

    def broken(_: Outcome) -> None:
        raise ZeroDivisionError

    row.add(lambda: 1, broken)
    row.add(lambda: 1, lambda _: told.set())
    row.submit()
    pool.go.release()
    assert told.wait(WAIT_S)
    assert "fsync.bug" in caplog.text


def test_a_row_that_grows_gets_further_threads_and_leaves_one_for_what_is_awaited() -> None:
    threads = SyncPool(3)
    row, go, at_work, told = SyncRow(threads), threading.Event(), threading.Semaphore(0), []

    def slow() -> Outcome:
        at_work.release()
        assert go.wait(WAIT_S)
        return 1

    try:
        for number in range(5 * ROW_LOGS):
            row.add(slow, lambda _, number=number: told.append(number))  # type: ignore[misc]
        row.submit()
        row.submit()
        assert at_work.acquire(timeout=WAIT_S)
        assert at_work.acquire(timeout=WAIT_S)  # two at once, of three
        awaited = threading.Event()

        class Awaited:
            def run_sync(self) -> bool:
                awaited.set()
                return False

        threads.submit(Awaited())
        assert awaited.wait(WAIT_S)
    finally:
        go.set()
        eventually(lambda: len(told) == 5 * ROW_LOGS, what="all are told, once each")
        threads.close()
    assert sorted(told) == list(range(5 * ROW_LOGS))


def test_a_batch_whose_answer_cannot_be_sent_does_not_hold_up_its_partition_for_good(
    make: Callable[..., Ticking], pool: HeldPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake = make()
    broken = iter([ZeroDivisionError()])

    def send(blob: bytes) -> None:
        for error in broken:
            raise error
        intake.send(blob)

    monkeypatch.setattr(intake.flusher.answers, "send", send)
    intake.receive(1, 1, 2)  # not alone: the pool syncs them
    pool.go.release(2)
    intake.until(lambda: intake.flusher._pending_bytes == 0, "both to be settled")
    assert intake.flusher.counts["flush_bugs"] == 1
    intake.receive(1, 2)
    pool.go.release(2)
    intake.until(lambda: intake.acked() >= 3, "later records are acked")
    assert all(slot.idle.is_set() for slot in intake.slots)


def test_a_power_cut_anywhere_in_a_row_takes_nothing_that_was_told_to_be_durable(pool: HeldPool) -> None:
    folders = [f"/data/p{number}" for number in range(4)]

    def life(disk: SimDisk, told: dict[str, int]) -> None:
        disk.makedirs("/data")
        logs = [create_log(disk, folder=folder) for folder in folders]
        for _ in range(2):
            row = SyncRow(pool)
            for log in logs:
                log.append([row_batch([b"x"])], leader_epoch=1, now_us=0)
                row.add(lambda log=log: _synced(log), lambda end, log=log: _note(told, log, end))  # type: ignore[misc]
            assert not row.run_sync()

    steps = SimDisk()
    life(steps, {})
    found: set[tuple[int, ...]] = set()
    for step in range(1, steps.steps + 1):
        told: dict[str, int] = {}
        disk = SimDisk(crash_at=step)
        with suppress(Crashed):
            life(disk, told)
        after = disk.after_crash("lost")
        for folder, end in told.items():
            assert open_log(after, folder=folder).state.log_end_offset >= end
        found.add(tuple(told.values()))
    assert {(), (1, 1, 1, 1)} <= found


def _synced(log: PartitionLog) -> Outcome:
    return log.syncer.sync()


def _note(told: dict[str, int], log: PartitionLog, end: Outcome) -> None:
    assert isinstance(end, int)
    told[log.state.folder] = end


def test_one_wake_up_serves_what_a_row_has_synced_and_a_bug_ends_none_of_it(
    make: Callable[..., Ticking], pool: HeldPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N6. While the loop does not turn, the second log of the row is synced as well."""
    intake = make()
    before = REGISTRY.get_sample_value("liftlog_fsync_seconds_count") or 0.0
    intake.unawaited(1, 2)
    intake.until(lambda: intake.ends() == [(1, 0), (1, 0)], "the tick")
    wakes, plain = [], intake.loop.call_soon_threadsafe
    monkeypatch.setattr(intake.loop, "call_soon_threadsafe", lambda *of: wakes.append(of) or plain(*of))
    monkeypatch.setattr(intake.flusher.answers, "give", _broken_once(intake.flusher.answers.give))
    pool.go.release()
    eventually(lambda: len(intake.flusher._heard) == 2, what="the row")
    assert len(wakes) == 1
    intake.until(lambda: intake.flusher.counts["batches"] == 1, "the other answer")
    assert intake.flusher.counts["flush_bugs"] == 1
    assert REGISTRY.get_sample_value("liftlog_fsync_seconds_count") == before + 2


def _broken_once(plain: Callable[..., None]) -> Callable[..., None]:
    calls: list[object] = []

    def broken(*of: object) -> None:
        calls.append(of)
        if len(calls) == 1:
            raise ZeroDivisionError
        plain(*of)

    return broken
