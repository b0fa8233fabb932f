"""The drivers on the fake disk: what a disk that fails, an idle driver, retention and growth do to the protocol.

Power cuts are in tests/properties/sinks.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from broker.api.errors import (
    NotLeader,
    NotReady,
    RequestTooLarge,
    SinkFenced,
    StageLost,
    StagesFull,
    StorageFailed,
    UnknownStream,
)
from broker.node.sinks import commits_log
from broker.node.sinks.committed import append_durable
from broker.node.sinks.stage_log import StageLog
from broker.node.sinks.stages import StageLimits, StageStore
from broker.replication.events import Appended
from broker.sinks.ledger import CommitRequest, Ledger, NamedStage
from broker.sinks.notes import PartStored, StagePinned
from broker.sinks.state import SinkState
from broker.storage.log import WRITEBACK_BYTES
from tests.support.processes import eventually
from tests.support.simdisk import SimDisk
from tests.support.sinks import SINK, STREAM, Attempt, Driver, Rig, World, rows_of

LEASE_US = StageLimits().stage_lease_ms * 1000


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def rig(disk: SimDisk) -> Iterator[Rig]:
    rig = Rig(disk)
    yield rig
    rig.drop()


@pytest.fixture
def driver(rig: Rig) -> Driver:
    return Driver(World(rows=6), rig, 0)


def staged(driver: Driver) -> Attempt:
    attempt = driver.world.attempt(driver.next_batch)
    driver.stage(attempt)
    return attempt


def pin(driver: Driver, attempt: Attempt) -> None:
    for named in attempt.named():
        store = driver.rig.store(STREAM, named.partition)
        store.pin([(named.stage, named.parts)], sink=SINK, epoch=driver.epoch, batch_id=attempt.batch_id)


def test_retention_and_trim_wait_for_pinned_stages(rig: Rig, driver: Driver) -> None:
    for partition in (0, 1):
        rig.append(partition, b"old")
    attempt = staged(driver)
    pin(driver, attempt)
    partition = rig.partitions[attempt.named()[0].partition]
    rig.append(partition.partition, b"new")
    assert partition.replica.trim(2) == 1, "up to the pin"
    assert partition.replica.apply_retention(1 << 60) == 1
    driver.commit(attempt)
    end = partition.log.state.high_watermark
    assert partition.replica.trim(end) == end
    assert partition.replica.apply_retention(1 << 60) == end


def test_a_pin_that_waits_for_its_stages_holds_up_nobody_who_lets_go(
    rig: Rig, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others keep the stages too, they may take seconds, and the cleaner looks after all partitions."""
    attempt, was_free = staged(driver), []
    ready = StageLog.ready

    def waits(hidden: StageLog, **options: Any) -> Any:
        was_free.append(not hidden._main.replica.letting_go.locked())
        return ready(hidden, **options)

    monkeypatch.setattr(StageLog, "ready", waits)
    pin(driver, attempt)
    assert was_free
    assert all(was_free)


def test_a_pin_waits_for_whoever_lets_go_by_the_floor_of_before(rig: Rig, driver: Driver) -> None:
    """Else the group could be appended and let go of before its note is there, and be looked for in vain."""
    attempt = staged(driver)
    letting_go, order = rig.partitions[attempt.named()[0].partition].replica.letting_go, []
    letting_go.acquire()
    pinning = threading.Thread(target=lambda: (pin(driver, attempt), order.append("pinned")))
    pinning.start()
    eventually(lambda: rig.store(STREAM, attempt.named()[0].partition).staged().pins, what="a pin in the table")
    order.append("let go")
    letting_go.release()
    pinning.join()
    assert order == ["let go", "pinned"]


def test_a_part_whose_fsync_fails_is_refused_and_stored_once_when_it_is_repeated(
    disk: SimDisk, rig: Rig, driver: Driver
) -> None:
    attempt = driver.world.attempt(0)
    stage = next(iter(attempt.stages))
    driver.upload(attempt, stage, 0)
    disk.fail("sync", errno.EIO, path="stages")
    with pytest.raises(StorageFailed):
        driver.upload(attempt, stage, 1)
    driver.upload(attempt, stage, 1)
    driver.stage(attempt)
    driver.commit(attempt)
    driver.world.check_complete(rig, 1)


def test_bundles_cost_no_fsync_of_their_own(disk: SimDisk, rig: Rig) -> None:
    driver = Driver(World(), rig, 0, bundles=True)
    driver.write()  # makes the logs
    synced = disk.calls["sync"]
    attempts = [driver.world.attempt(1) for _ in range(20)]
    for attempt in attempts:
        driver.stage(attempt)
    assert disk.calls["sync"] == synced
    driver.commit(attempts[-1])
    driver.world.check_complete(rig, 2)


def test_a_pin_has_little_to_make_durable_however_many_bundles_there_were(disk: SimDisk, rig: Rig) -> None:
    driver = Driver(World(), rig, 0, bundles=True)
    driver.write()
    synced, store, large = disk.calls["sync"], rig.store(STREAM, 0), rows_of([bytes(WRITEBACK_BYTES // 3)])
    for number in range(6):
        store.put([large], sink=SINK, epoch=driver.epoch, stage=f"{number + 1:032x}", part=0, is_last=True)
    assert disk.calls["sync"] == synced + 2


def test_a_bundle_whose_fsync_fails_is_not_committed_by_halves(disk: SimDisk, rig: Rig) -> None:
    """The commit meets the error of parts that were answered long ago."""
    driver = Driver(World(rows=6), rig, 0, bundles=True)
    driver.write()
    attempt = staged(driver)
    disk.fail("sync", errno.EIO, path="stages")
    with pytest.raises(StorageFailed):
        driver.commit(attempt)
    with suppress(StageLost):
        driver.commit(attempt)
    driver.write()
    driver.world.check(rig)


@pytest.mark.parametrize("call", ["makedirs", "sync_dir", "create", "rename", "write", "sync"])
@pytest.mark.parametrize("after", range(3))
def test_a_hidden_log_whose_making_failed_is_made_by_the_next_part_and_stays(
    disk: SimDisk, rig: Rig, driver: Driver, call: str, after: int
) -> None:
    """It used to be refused as a folder that holds a log already; and what is not synced, goes with the power."""
    disk.fail(call, errno.EIO, after=after)
    attempt = driver.world.attempt(0)
    for _ in range(2):
        with suppress(StorageFailed):
            driver.stage(attempt)
    driver.stage(attempt)
    driver.rig = again = Rig(disk.after_crash("lost"), boot=2)
    driver.commit(attempt)
    driver.world.check_complete(again, 1)
    again.drop()


@pytest.mark.parametrize("path", ["stages", f"/data/{STREAM}/", "__commits"])
@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("call", ["sync", "write"])
def test_a_commit_that_meets_a_failing_disk_is_finished_when_it_is_repeated(
    disk: SimDisk, rig: Rig, driver: Driver, path: str, after: int, call: str
) -> None:
    driver.write()
    attempt = staged(driver)
    disk.fail(call, errno.EIO, path=path, after=after, short=100)
    try:
        driver.commit(attempt)
    except StorageFailed:
        disk.heal()
        driver.world.check(rig)
        driver.commit(attempt)
    driver.world.check_complete(rig, 2)


def test_a_stage_that_nobody_commits_expires(rig: Rig, driver: Driver) -> None:
    attempt = staged(driver)
    rig.now_us += LEASE_US - 1
    rig.rounds.sweep()
    assert any(store.byte_count() for store in rig.stores())
    rig.now_us += 1
    rig.rounds.sweep()
    assert not any(store.byte_count() for store in rig.stores())
    with pytest.raises(StageLost):
        driver.commit(attempt)


def test_a_stream_that_is_deleted_during_a_sweep_is_no_fault(
    rig: Rig, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    staged(driver)
    rig.now_us += LEASE_US
    for partition in rig.partitions:
        partition.note_removed()
        partition.log.close()
    rig.rounds.sweep()
    assert "sweep_failed" not in caplog.text


def test_a_pinned_stage_goes_only_after_its_idle_driver_was_fenced(rig: Rig, driver: Driver) -> None:
    """C3."""
    attempt = staged(driver)
    pin(driver, attempt)
    rig.now_us += LEASE_US
    rig.rounds.sweep()
    assert any(store.staged().pins for store in rig.stores()), "fenced first"
    rig.rounds.sweep()
    assert not any(store.staged().pins for store in rig.stores())
    with pytest.raises(SinkFenced):
        driver.commit(attempt)


def test_a_hidden_log_is_trimmed_once_nothing_of_it_is_needed(disk: SimDisk, rig: Rig, driver: Driver) -> None:
    for _ in range(3):
        driver.write()
    rig.rounds.sweep()
    for store in rig.stores():
        hidden = store._hidden.open()
        assert hidden.state.log_start_offset == hidden.state.log_end_offset
    driver.write()
    driver.world.check_complete(rig, 4)


def test_a_commit_is_answered_though_its_stages_cannot_be_freed(
    disk: SimDisk, rig: Rig, driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit stays as it is; the next round gives the room back."""
    monkeypatch.setitem(StageLog.trim.__kwdefaults__, "at_least", 1)  # type: ignore[arg-type]
    driver.write()
    disk.fail("rename", errno.EIO, path="/stages/", times=50)
    driver.write()
    assert "sink.forget_failed" in caplog.text
    disk.heal()
    driver.world.check_complete(rig, 2)
    rig.rounds.sweep()
    for store in rig.stores():
        hidden = store._hidden.open()
        assert hidden.state.log_start_offset == hidden.state.log_end_offset


def test_commits_are_rewritten_when_they_have_grown(
    disk: SimDisk, rig: Rig, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits_log, "REWRITE_BYTES", 8_000)
    monkeypatch.setattr(commits_log, "WRITES_PER_LOOK", 1)
    rig.sinks.open("another", "o")
    for _ in range(6):
        driver.write()
    assert rig.commits.log.state.log_start_offset > 10
    states = rig.sinks.states()
    assert [state.sink for state in states] == ["another", SINK]
    again = Rig(disk.after_crash("lost"), boot=2)
    assert again.sinks.states() == states
    driver.world.check_complete(again, 6)
    again.drop()


def test_limits_are_named_before_anything_is_decided(disk: SimDisk) -> None:
    rig = Rig(disk, limits=StageLimits(stage_bytes_max=1_000, group_bytes_max=1_500))
    driver = Driver(World(rows=6), rig, 0)
    with pytest.raises((StagesFull, RequestTooLarge), match=r"sinks\."):
        driver.write()
    assert rig.sinks.describe(SINK).last is None
    rig.drop()


# --- pins (docs/explain/sinks.md, "A stage"). Orders of whole steps are in tests/properties/sinks/test_scenarios.py.


def pins_of(rig: Rig) -> list[StagePinned]:
    return [pin for store in rig.stores() for pin in store.staged().pins]


def test_a_sweep_between_pin_and_decision_leaves_what_is_pinned_anew(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run pins and dies; the next one commits the same stages. They used to keep the epoch of the dead run."""
    dead = Driver(World(rows=6), rig, 0)
    attempt = staged(dead)
    pin(dead, attempt)
    rig.sinks.commits.write(lambda ledger, at: ledger.fenced(SINK, epoch=at, now_us=0))
    heir = Driver(dead.world, rig, 0)
    decide = rig.sinks.decide

    def swept(*args: Any, **kwargs: Any) -> SinkState:
        rig.rounds.sweep()
        return decide(*args, **kwargs)

    monkeypatch.setattr(rig.sinks, "decide", swept)
    heir.commit(attempt)
    heir.world.check_complete(rig, 1)


def test_a_pin_of_an_older_epoch_is_refused_where_a_newer_one_has_pinned(rig: Rig) -> None:
    older, attempt = Driver(world := World(rows=6), rig, 0), world.attempt(0)
    older.stage(attempt)
    newer = Driver(world, rig, 0)
    pin(newer, attempt)
    with pytest.raises(StageLost, match="newer owner"):
        pin(older, attempt)
    assert {found.epoch for found in pins_of(rig)} == {newer.epoch}
    newer.commit(attempt)
    world.check_complete(rig, 1)


def test_a_pin_names_the_high_watermark_and_keeps_the_lower_one_when_it_is_renewed(rig: Rig) -> None:
    """The durable end may be truncated, and the group then stand below the place where it is looked for."""
    older = Driver(World(rows=6), rig, 0)
    attempt = staged(older)
    for partition in rig.partitions:
        rig.append(partition.partition, b"visible")
        partition.log.append([rows_of([b"durable"])], leader_epoch=partition.leader_epoch, now_us=0)
        partition._core.step(Appended(1, 2, (2,), ()))  # and its sync has not been told yet
        partition.log.syncer.sync()
        assert (partition.log.state.high_watermark, partition.log.state.durable_end) == (1, 2)
    pin(older, attempt)
    assert {found.search_from for found in pins_of(rig)} == {1}
    for partition in rig.partitions:
        partition.commit_all()
    newer = Driver(older.world, rig, 0)
    pin(newer, attempt)
    assert {(found.epoch, found.search_from) for found in pins_of(rig)} == {(newer.epoch, 1)}
    newer.commit(attempt)
    newer.world.check_complete(rig, 1)


def test_who_becomes_leader_looks_for_what_it_never_tried(rig: Rig, driver: Driver) -> None:
    """It pinned, another leader finished, and it leads again: its memory of "never tried" says nothing."""
    attempt = staged(driver)
    asked = driver.asked(attempt)
    refs = rig.sinks.pin(SINK, asked, attempt.named())
    state = rig.sinks.decide(SINK, asked, refs)
    rig.take_over()
    for store in rig.stores():
        finish_elsewhere(rig, store, state)
    rig.take_over()
    rig.sinks.complete(SINK)
    driver.world.check_complete(rig, 1)


def test_a_group_that_was_looked_for_under_one_leadership_is_not_appended_under_another(
    rig: Rig, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A searches and finds nothing, B leads and finishes, A leads again: the old thread must not append once more."""
    attempt = staged(driver)
    asked = driver.asked(attempt)
    state = rig.sinks.decide(SINK, asked, rig.sinks.pin(SINK, asked, attempt.named()))
    append = StageStore._append_group

    def late(self: StageStore, *args: Any) -> tuple[int, int]:
        monkeypatch.setattr(StageStore, "_append_group", append)
        rig.take_over()
        finish_elsewhere(rig, self, state)
        rig.take_over()
        return append(self, *args)

    monkeypatch.setattr(StageStore, "_append_group", late)
    with pytest.raises(NotLeader):
        rig.sinks.complete(SINK)
    rig.sinks.complete(SINK)
    driver.world.check_complete(rig, 1)


def finish_elsewhere(rig: Rig, store: StageStore, state: SinkState) -> None:
    """Append the group of a decision as another leader would, who has the same logs."""
    assert state.last is not None
    refs = [ref for ref in state.last.stages if ref.partition == store.main.partition]
    group = store._hidden.group_of(refs, int(state.last.decision, 16))
    if group.batch_count:
        append_durable(store.main, group, decided=True, leader_epoch=store.main.leader_epoch)


def test_a_decision_that_was_judged_under_another_leadership_is_not_appended(rig: Rig, driver: Driver) -> None:
    attempt = staged(driver)
    change = rig.sinks.commits.write

    def judged(ledger: Ledger, epoch: int) -> SinkState:
        rig.take_over()
        return ledger.fenced(SINK, epoch=epoch, now_us=0)

    with pytest.raises(NotLeader):
        change(judged)
    assert rig.sinks.describe(SINK).epoch == 0
    driver.commit(attempt)
    driver.world.check_complete(rig, 1)


@pytest.mark.parametrize("path", ["__commits", "/stages"])
def test_a_table_that_cannot_be_read_is_a_failing_disk(disk: SimDisk, rig: Rig, path: str) -> None:
    """Wherever in the reading it fails. It used to be `internal` in the middle of it: a bug, not a disk."""
    driver = Driver(World(rows=6), rig, 0)
    attempt = staged(driver)
    failures = 0
    for call in ("open", "pread"):
        for after in range(8):
            found = disk.after_crash("kept")
            driver.rig = again = Rig(found, boot=2)
            found.fail(call, errno.EIO, path=path, after=after, times=99)
            for act in (driver.stage, driver.commit):
                try:
                    act(attempt)
                except StorageFailed:
                    failures += 1
            found.heal()
            driver.commit(attempt)
            driver.world.check_complete(again, 1)
            again.drop()
    assert failures >= 4


def test_a_stream_that_is_not_open_is_waited_for_and_one_that_is_gone_is_not(
    rig: Rig, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6: it used to count as deleted, and the batch was recorded as complete without its rows."""
    attempt = staged(driver)
    asked = driver.asked(attempt)
    rig.sinks.decide(SINK, asked, rig.sinks.pin(SINK, asked, attempt.named()))

    def nowhere(stream: str, partition: int) -> StageStore:
        raise UnknownStream(f"stream {stream!r} is not open", stream=stream)

    with monkeypatch.context() as away:
        away.setattr(rig, "store", nowhere)
        with pytest.raises(NotReady):
            rig.sinks.complete(SINK)
        rig.rounds.sweep()
        assert not rig.sinks.describe(SINK).is_done
        with pytest.raises(NotReady):
            rig.sinks.delete(SINK)
        rig.gone.add(STREAM)
        rig.rounds.sweep()
        assert rig.sinks.describe(SINK).is_done
    rig.gone.clear()


def test_a_decision_waits_for_its_stream_and_is_finished_when_it_is_back(rig: Rig, driver: Driver) -> None:
    attempt = staged(driver)
    asked = driver.asked(attempt)
    rig.sinks.decide(SINK, asked, rig.sinks.pin(SINK, asked, attempt.named()))
    store, rig.store = rig.store, lambda *_: (_ for _ in ()).throw(UnknownStream("not open"))  # type: ignore[method-assign]
    rig.rounds.sweep()
    rig.store = store  # type: ignore[method-assign]
    rig.rounds.sweep()
    driver.world.check_complete(rig, 1)


@pytest.mark.slow
def test_thirteen_thousand_stages_are_committed_at_once(rig: Rig) -> None:
    """200 tasks that write to 64 partitions; and what they make of `__commits` stays small."""
    count = 12_801
    opened = rig.sinks.open(SINK, "run")
    named = [NamedStage(stream=STREAM, partition=n % 2, stage=f"{n:032x}", parts=1) for n in range(count)]
    given = {"sink": SINK, "epoch": opened.epoch, "part": 0, "is_last": True}
    for n in (0, 1, 7_000):
        store = rig.store(STREAM, named[n].partition)
        store.store([rows_of([b"%d" % n])], stage=named[n].stage, **given)  # type: ignore[arg-type]
    for store in rig.stores():  # those without rows all at once, which takes seconds, not minutes
        rest = [s.stage for n, s in enumerate(named) if n not in (0, 1, 7_000) and s.partition == store.main.partition]
        for i in range(0, len(rest), 100):
            notes = [PartStored(stage=s, rows=0, stored_us=rig.now_us, **given) for s in rest[i : i + 100]]  # type: ignore[arg-type]
            with store._hidden.lock:
                store._hidden.append(notes)
    rig.sinks.commit(SINK, CommitRequest(owner="run", epoch=opened.epoch, batch_id=0, rows=3), named, {})
    assert sum(len(values) for p in (0, 1) for _, values in rig.visible(p)) == 3
    assert rig.commits.log.state.byte_count < 3 << 20
    rig.rounds.sweep()
    assert not any(store.staged().stages for store in rig.stores())
    assert len(rig.sinks.describe(SINK).last.stages) == count  # type: ignore[union-attr]


def test_a_stage_over_the_share_of_a_commit_is_refused_while_it_is_staged(disk: SimDisk) -> None:
    rig = Rig(disk, limits=StageLimits(group_bytes_max=8_000))
    driver = Driver(World(), rig, 0)
    stage = "a" * 32

    def send(part: int) -> bool:
        store = rig.store(STREAM, 0)
        rows = [rows_of([b"x" * 2_000])]
        return store.store(rows, sink=SINK, epoch=driver.epoch, stage=stage, part=part, is_last=False)

    assert send(0)
    assert send(1)
    with pytest.raises(RequestTooLarge, match=r"sinks\.group_bytes_max=8000"):
        send(2)
    assert not send(0), "what is there is still known"
    rig.drop()
