"""Goal: the leader of a replicated partition says no word of success without a session, refuses at once, and does not
recover in place.

Method: the real log on the fake disk; followers and sessions are made up.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from broker.api.errors import NotEnoughReplicas, NotLeader, NotReady, StorageFailed, UnknownStream
from broker.api.stream import settings_from
from broker.background.interval_syncs import IntervalSyncs
from broker.common.elapsed import MACHINE
from broker.groups.offsets import ConsumerOffset
from broker.link.following import Following
from broker.node.partitions.acceptance import Acceptance
from broker.node.partitions.consumers import Consumers
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.watch import ChangeHub
from broker.node.sinks.committed import append_durable
from broker.replication.events import Acks, AskIsr, Effect, StepOut
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.processes import eventually
from tests.support.replicated import STATE, Led
from tests.support.simdisk import SimDisk
from tests.unit.runtime.test_partition import IDENTITY, HeldPool, Waiter, disk, info, pool, rows

__all__ = ["disk", "pool"]  # fixtures


@pytest.fixture
def led(disk: SimDisk, pool: HeldPool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Led]:
    monkeypatch.setattr("broker.node.partitions.partition.QUICK_S", 3600.0)  # a thread may lose its core amid an fsync
    settings = LogSettings.of(settings_from({}), LogSettings(is_sole_replica=False))
    log = PartitionLog.create(disk, "/p", IDENTITY, settings, now_us=0)
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as appender:
        yield Led(
            info(),
            Replica(info(), 0, log, appender=appender, hub=ChangeHub(loop), clocks=MACHINE),
            pool=pool,
            appender=appender,
        )
    loop.close()


def append(led: Led, **options: object) -> Waiter:
    """One record, and its fsync."""
    waiter = Waiter()
    led.partition.append_now([rows(b"x")], waiter, here=True, **options)  # type: ignore[arg-type]
    if led.partition.has_followers:
        led.partition.run_sync()
    return waiter


def test_followers_are_told_before_the_leader_syncs(led: Led) -> None:
    """P4: all of them fsync at the same time."""
    heard: list[int] = []
    led.partition.replica.on_news = lambda: heard.append(led.partition.log.state.durable_end)
    waiter = Waiter()
    led.partition.append_now([rows(b"x")], waiter, here=True)
    assert (heard, led.partition.log.state.durable_end) == ([0], 0)
    led.follow(1, "b")
    led.follow(1, "c")
    assert waiter.outcome is None, "its own is missing"
    led.partition.run_sync()
    assert (waiter.outcome, led.partition.log.state.durable_end) == (1, 1)


def test_an_ack_waits_for_the_followers_in_sync(led: Led) -> None:
    waiter = append(led)
    led.follow(1, "b")
    assert (waiter.outcome, led.partition.log.state.durable_end) == (None, 1)
    led.follow(1, "c")
    assert (waiter.outcome, led.partition.log.state.high_watermark) == (1, 1)


def test_a_follower_lags_by_what_it_has_not_told_to_be_on_its_disk(led: Led) -> None:
    for _ in range(2):
        append(led)
    assert led.partition.lags() == {"b": 2, "c": 2}
    led.follow(1, "b")
    assert led.partition.lags() == {"b": 1, "c": 2}
    led.follow(2)
    assert led.partition.lags() == {"b": 0, "c": 0}
    led.partition.depose()
    assert led.partition.lags() == {}, "who does not lead knows of nobody"


def test_a_commit_of_offsets_waits_for_the_followers_in_sync(led: Led) -> None:
    """A consumer that goes on from it elsewhere would find an older one."""
    consumers = Consumers(led.partition, leader_epoch=2)

    async def commits() -> None:
        offset = ConsumerOffset(consumer="c", stream="s", partition=0, offset=7)
        commit = asyncio.create_task(consumers.commit("c", [offset]))
        while led.partition.log.state.log_end_offset == 0:
            await asyncio.sleep(0.01)
        led.partition.run_sync()
        for name in ("b", "c"):
            for _ in range(20):  # whoever was told here would be through
                await asyncio.sleep(0)
            assert (commit.done(), led.partition.log.state.durable_end, consumers.consumers()) == (False, 1, [])
            led.follow(1, name)
        await asyncio.wait_for(commit, 60)

    asyncio.run(commits())
    assert [each.offset for each in consumers.get("c")] == [7]


def test_too_few_in_sync_is_an_error_at_once_and_ends_when_one_is_back(led: Led) -> None:
    before = append(led)
    led.answer_isr("a")
    with pytest.raises(NotEnoughReplicas, match="min_insync_replicas=2") as found:
        append(led)
    assert (found.value.fields["in_sync"], found.value.status) == (["a"], 503)
    assert (led.partition.log.state.log_end_offset, before.outcome) == (1, None)
    led.answer_isr("a", "b")
    after = append(led)
    led.follow(2, "b")
    assert (before.outcome, after.outcome) == (2, 2)


def test_without_a_session_nothing_is_appended(led: Led) -> None:
    led.has_session = False
    with pytest.raises(NotReady, match="session"):
        append(led)
    assert led.partition.log.state.log_end_offset == 0
    led.has_session = True
    append(led)
    assert led.partition.log.state.log_end_offset == 1


@pytest.mark.parametrize("acks", [Acks.ALL, Acks.LEADER])
def test_who_is_stored_without_a_session_is_told_when_there_is_one(led: Led, acks: Acks) -> None:
    book, waiter = Waiter(), Waiter()
    led.partition.append_now([rows(b"x")], waiter, acks=acks, also=[(book, Acks.OWN)])
    led.has_session = False
    led.partition.run_sync()
    led.follow(1)
    led.partition.tick(1)
    assert (waiter.outcome, led.partition.log.state.high_watermark, book.done.is_set()) == (None, 1, True)
    led.has_session = True
    led.partition.tick(2)
    assert isinstance(waiter.outcome, int)


@pytest.mark.parametrize(
    "end, error",
    [
        (lambda led: led.partition.depose(), NotLeader),
        (lambda led: led.partition.lead(3, STATE), NotLeader),
        (lambda led: led.partition.note_removed(), UnknownStream),
    ],
    ids=["deposed", "led anew", "deleted"],
)
def test_who_is_held_back_when_the_leadership_ends_is_told_that(led: Led, end: object, error: type) -> None:
    waiter = append(led)
    led.has_session = False
    led.follow(1)
    assert waiter.outcome is None
    end(led)  # type: ignore[operator]
    assert isinstance(waiter.outcome, error)


class Late:
    """Does nothing yet."""

    def __init__(self) -> None:
        self.steps: list[Sequence[Effect]] = []

    def do(self, effects: Sequence[Effect]) -> None:
        self.steps.append(effects)


def test_who_hears_of_it_after_the_end_of_the_leadership_is_told_that_too(led: Led) -> None:
    """The effects of a step may be done after those of a later one. No tick comes where the log was closed since."""
    waiter = append(led)
    real, late = led.partition._effects, Late()
    led.partition._effects = late  # type: ignore[assignment]
    led.follow(1)
    led.partition._effects = real
    led.has_session = False
    led.partition.depose()
    for effects in late.steps:
        real.do(effects)
    assert isinstance(waiter.outcome, NotLeader)


def test_what_is_said_late_of_an_earlier_leadership_ends_no_later_one(led: Led) -> None:
    """The server confirmed a subscription after the stream was paused, and led anew: it was not ready any more."""
    led.state = replace(led.state, leader_epoch=3)
    led.partition.lead(3, led.state)
    led.partition.serve(3)
    led.partition.serve(2)
    assert led.partition.serves


def test_errors_need_no_session(led: Led) -> None:
    waiter = append(led)
    led.has_session = False
    led.partition.depose()
    assert isinstance(waiter.outcome, NotLeader)


def test_the_leader_of_others_is_named(led: Led) -> None:
    led.partition.depose()
    with pytest.raises(NotLeader) as found:
        append(led)
    assert "leader" not in found.value.fields
    led.partition.is_led_at("b:9293")
    with pytest.raises(NotLeader) as found:
        append(led)
    assert found.value.fields["leader"] == "b:9293"


def test_a_failed_fsync_ends_the_leadership_and_asks_for_a_step_out(led: Led, disk: SimDisk) -> None:
    waiter = append(led)
    disk.fail("sync", errno.EIO, path=".arrows")
    failed = append(led)
    assert isinstance(waiter.outcome, StorageFailed)
    assert isinstance(failed.outcome, StorageFailed)
    assert (led.outward, led.partition.leads) == ([StepOut()], False)
    with pytest.raises(NotLeader):
        append(led)
    assert led.partition.log.state.failure is not None, "nobody but who has stepped out recovers it"


@pytest.mark.parametrize("how", ["append", "tick"])
def test_whatever_has_failed_the_log_ends_the_leadership(led: Led, how: str) -> None:
    waiter = append(led)
    led.partition.log.state.fail(StorageFailed("a checkpoint, say"))
    if how == "append":
        with pytest.raises(StorageFailed):
            append(led)
    else:
        led.partition.tick(1)
    assert (led.outward, led.partition.leads) == ([StepOut()], False)
    assert isinstance(waiter.outcome, StorageFailed)
    led.partition.tick(2)
    assert len(led.outward) == 1


def test_a_write_that_fails_the_log_ends_the_leadership(led: Led, disk: SimDisk) -> None:
    append(led)
    disk.fail("write", errno.EIO, path=".arrows", times=10)
    disk.fail("truncate", errno.EIO, path=".arrows", times=10)
    with pytest.raises(StorageFailed):
        append(led)
    assert (led.outward, led.partition.leads) == ([StepOut()], False)


def test_a_follower_that_is_silent_is_asked_out(led: Led) -> None:
    append(led)
    led.follow(1)
    led.partition.tick(0)
    append(led)
    led.partition.tick(5_000)
    assert not [effect for effect in led.outward if type(effect) is AskIsr]
    led.follow(2, "b")
    led.partition.tick(10_001)
    asked = led.outward[-1]
    assert isinstance(asked, AskIsr)
    assert asked.remove == "c"


def test_who_is_about_to_hand_over_takes_nothing_more_until_it_leads_anew(led: Led) -> None:
    """P19: what was acknowledged under `leader` is with the others then."""
    told = append(led, acks=Acks.LEADER)
    assert told.outcome is not None
    assert not led.partition.hands_over()
    with pytest.raises(NotReady, match="this broker stops"):
        append(led)
    led.follow(1, "b")
    assert not led.partition.hands_over(), "anybody who is in sync may be elected"
    led.follow(1, "c")
    assert led.partition.hands_over()
    led.state = replace(led.state, leader_epoch=3)
    led.partition.lead(3, led.state)
    led.partition.serve(3)
    append(led)
    assert led.partition.log.state.log_end_offset == 2


def by_intake(led: Led) -> None:
    led.partition.append_now([rows(b"x")], Waiter(), acks=Acks.LEADER, sorted_by=1)


def by_http(led: Led) -> None:
    led.partition.append([rows(b"x")], acks="leader").result(60)


def by_a_sink(led: Led) -> None:
    append_durable(led.partition, [rows(b"x")], leader_epoch=2, decided=True)


def by_a_consumer(led: Led) -> None:
    offset = ConsumerOffset(consumer="c", stream="s", partition=0, offset=7)
    asyncio.run(Consumers(led.partition, leader_epoch=2).commit("c", [offset]))


def gated(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, at_end: bool = False
) -> tuple[threading.Event, threading.Event]:
    """Let callers of this method wait at its beginning, or end. Returns (somebody is there, he may go on)."""
    there, may_go = threading.Event(), threading.Event()
    method = getattr(owner, name)

    def held(*args: object, **options: object) -> object:
        done = method(*args, **options) if at_end else None
        there.set()
        assert may_go.wait(60)
        return done if at_end else method(*args, **options)

    monkeypatch.setattr(owner, name, held)
    return there, may_go


@pytest.mark.parametrize("way", [by_intake, by_http, by_a_sink, by_a_consumer])
def test_what_was_judged_before_a_hand_over_is_refused_after_it(
    led: Led, monkeypatch: pytest.MonkeyPatch, way: Callable[[Led], None]
) -> None:
    """P19: nobody would wait for it. It is not in doubt: who sends it again stores it once."""
    there, may_go = gated(monkeypatch, Acceptance, "check_ready", at_end=True)
    with ThreadPoolExecutor(1) as thread:
        appending = thread.submit(way, led)
        try:
            assert there.wait(60)
            assert led.partition.hands_over()
            may_go.set()
            eventually(lambda: appending.done() or led.partition.log.state.log_end_offset, what="its end")
        finally:
            may_go.set()
            led.partition.depose()  # who waits for an ack is told
        with pytest.raises(NotReady, match="this broker stops") as found:
            appending.result(60)
    assert "sent" not in found.value.fields
    assert led.partition.log.state.log_end_offset == 0


def test_a_hand_over_waits_for_an_append_at_the_disk(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    """P19: it was taken before, and nobody sees it in the log yet."""
    there, may_go = gated(monkeypatch, PartitionLog, "append")
    with ThreadPoolExecutor(1) as thread:
        appending = thread.submit(append, led, acks=Acks.LEADER)
        try:
            assert there.wait(60)
            assert not led.partition.hands_over()
        finally:
            may_go.set()
        assert isinstance(appending.result(60).outcome, int)
    assert not led.partition.hands_over()
    led.follow(1)
    assert led.partition.hands_over()


def test_who_has_nobody_to_hand_over_to_goes_on(led: Led) -> None:
    led.state = replace(led.state, isr=("a",), min_insync_replicas=1, leader_epoch=3)
    led.partition.lead(3, led.state)
    led.partition.serve(3)
    assert led.partition.hands_over()
    assert append(led).outcome == 1


def test_who_tells_the_time_does_not_wait_for_an_append_at_the_disk(led: Led) -> None:
    """P18: all partitions of a broker are told by one thread. Those who wait for a session are told without a lock."""
    partition = led.partition
    waiter = append(led)
    led.has_session = False
    led.follow(1)
    partition.tick(0)
    led.has_session = True
    append(led)
    held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with partition._lock:
            held.set()
            assert may_go.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    partition.tick(10_001)
    may_commit, is_held = partition.may_commit, holder.is_alive()
    may_go.set()
    holder.join(60)
    assert (is_held, may_commit) == (True, False), "nobody has waited for it"
    assert waiter.outcome == 1
    assert not [effect for effect in led.outward if type(effect) is AskIsr]
    partition.tick(10_002)
    assert [effect for effect in led.outward if type(effect) is AskIsr], "at the next time it is told"
    assert partition.may_commit


def by_interval(led: Led) -> Partition:
    """Nobody else keeps it any more, and it is synced by an interval of 10 ms."""
    partition = led.partition
    partition.alter(replace(info(), settings=settings_from({"fsync": "interval", "fsync_interval_ms": 10})))
    assert not partition.minds_time, "others keep it, too: who is in sync goes by the tick"
    led.state = replace(led.state, replicas=("a",), isr=("a",), min_insync_replicas=1, leader_epoch=3)
    partition.lead(3, led.state)
    partition.serve(3)
    return partition


def test_an_interval_that_is_shorter_than_a_tick_is_kept(led: Led, pool: HeldPool) -> None:
    """P13. Seen before: it was synced by the tick of all replicas, each 200 ms or later."""
    partition = by_interval(led)
    pool.go.release(10)
    syncs = IntervalSyncs(lambda: [partition])
    syncs.start()
    try:
        append(led)
        eventually(lambda: partition.log.state.durable_end == 1, what="the fsync")
    finally:
        syncs.stop()


def test_who_tells_the_time_late_does_not_turn_it_back(led: Led, pool: HeldPool) -> None:
    """P13. Two threads have looked at the clock, and wait for the lock."""
    partition = by_interval(led)
    pool.go.release(10)
    partition.tick(10_000)
    append(led)
    partition.sync_if_due(9.0)
    partition.tick(8_000)
    assert partition._core.now_ms == 10_000
    partition.sync_if_due(10.1)
    eventually(lambda: partition.log.state.durable_end == 1, what="the fsync")


def test_a_log_with_nothing_to_sync_is_not_told_the_time_by_the_thread_for_that(led: Led) -> None:
    partition = by_interval(led)
    partition.tick(10_000)
    assert partition.minds_time
    assert partition.sync_if_due(20.0) == 10
    assert partition._core.now_ms == 10_000
    partition.depose()
    assert not partition.minds_time


def test_a_new_leader_tells_no_end_before_it_has_committed_its_beginning(led: Led) -> None:
    """P14. Its followers may have told more."""
    partition = led.partition
    append(led)
    assert (partition.end, partition.log.state.durable_end) == (0, 1)
    partition.depose()
    assert partition.end is None
    led.state = replace(led.state, leader_epoch=3)
    partition.lead(3, led.state)
    partition.serve(3)
    assert partition.serves
    assert partition.end is None
    led.follow(1)
    assert partition.end == 1
    led.has_session = False
    assert partition.end is None


def test_an_end_that_readers_do_not_see_yet_is_not_told(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    """The core has moved its high watermark, and the effect that moves the log's is still to be done."""
    partition = led.partition
    append(led)
    late: list[Effect] = []
    do = partition._effects.do
    with monkeypatch.context() as patched:
        patched.setattr(type(partition._effects), "do", lambda _, effects, **__: late.extend(effects))
        led.follow(1)
        assert late
        assert partition.end == 0
        partition.lead(3, replace(led.state, leader_epoch=3))  # its epoch begins at 1
        partition.serve(3)
        led.state = replace(led.state, leader_epoch=3)
        led.follow(1)
        assert partition.serves
        assert partition.end is None
    do(late)
    assert partition.end == 1


def test_a_log_start_that_is_not_written_down_is_told_to_nobody(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash would undo it: whoever led then would bring back what was answered as gone."""
    for end in (1, 2, 3):
        append(led)
        led.follow(end)
    log = led.partition.log
    log.roll_if_due(1 << 60)
    append(led)
    led.follow(4)

    def refuses(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "made to refuse")

    with monkeypatch.context() as patched:
        patched.setattr(type(log.state.disk), "replace_file", refuses)
        with pytest.raises(StorageFailed):
            led.partition.replica.trim(3)
        assert log.state.failure is None
        assert (log.state.log_start_offset, log.checkpoints.kept_start_offset) == (3, 0)
        led.partition.tick(1_000)
        assert led.partition._core.trims.log_start == 0
        following = Following.__new__(Following)
        following._log, following._replica = log, led.partition.replica
        following._whole_to = following._whole_from = 4
        following._lacks_room = False
        assert following._holds().log_start == 0
    log.checkpoint()
    led.partition.tick(2_000)
    assert led.partition._core.trims.log_start == following._holds().log_start == 3


# -- another number of partitions (P17)


def test_a_stop_refuses_what_was_sorted_and_has_stopped_when_all_before_was_answered(led: Led) -> None:
    stopped: list[int] = []
    before = append(led, sorted_by=1)
    led.partition.stop_taking(7, lambda: stopped.append(1))
    with pytest.raises(NotReady, match="gets more partitions"):
        append(led, sorted_by=1)
    assert led.partition.log.state.log_end_offset == 1, "what is refused is not stored"
    assert not led.partition.has_stopped(7, 2)
    led.follow(1)
    assert (before.outcome, bool(stopped)) == (1, True)
    assert led.partition.has_stopped(7, 2)
    assert not led.partition.has_stopped(8, 2), "of another moment"
    append(led)  # over HTTP: its client chose the partition
    assert led.partition.has_stopped(7, 2), "that is not waited for"
    led.partition.stop_taking(8, lambda: None)
    assert led.partition.has_stopped(8, 2)
    led.partition.go_on_taking()
    assert not led.partition.has_stopped(8, 2)
    append(led, sorted_by=1)
    led.partition.stop_taking(9, lambda: None)
    assert not led.partition.has_stopped(9, 2), "what came since is not committed"
    led.follow(3)
    assert led.partition.has_stopped(9, 2)


def test_what_an_earlier_stop_waited_for_does_not_end_a_later_one(led: Led) -> None:
    """It was taken back, and what came since, and nobody awaits, is not committed."""
    append(led, sorted_by=1)
    led.partition.stop_taking(7, lambda: None)
    led.partition.go_on_taking()
    led.partition.append_now([rows(b"x")], Waiter(), acks=Acks.OWN, sorted_by=1)
    led.partition.run_sync()
    led.partition.stop_taking(8, lambda: None)
    led.follow(1)
    assert not led.partition.has_stopped(8, 2)
    led.follow(2)
    assert led.partition.has_stopped(8, 2)


def test_a_stop_waits_for_what_a_former_leader_has_left(led: Led) -> None:
    """Nobody here waits for it, and it is stored by the old number: whoever repeats it must find its id here."""
    led.partition.append_now([rows(b"x")], Waiter(), acks=Acks.OWN, sorted_by=1)
    led.partition.run_sync()
    led.partition.lead(3, STATE)
    led.partition.serve(3)
    led.partition.stop_taking(7, lambda: None)
    assert not led.partition.has_stopped(7, 3)
    led.state = replace(STATE, leader_epoch=3)
    led.follow(1)
    assert led.partition.has_stopped(7, 3)


def test_who_is_held_back_without_a_session_keeps_a_stop_from_its_end(led: Led) -> None:
    waiter = append(led, sorted_by=1)
    led.has_session = False
    led.follow(1)
    led.partition.stop_taking(7, lambda: None)
    assert (waiter.outcome, led.partition.has_stopped(7, 2)) == (None, False)
    led.has_session = True
    led.partition.tick(1)
    assert (waiter.outcome, led.partition.has_stopped(7, 2)) == (1, True)


def test_a_stop_that_ends_with_its_leadership_has_not_stopped(led: Led) -> None:
    append(led, sorted_by=1)
    led.partition.stop_taking(7, lambda: None)
    led.partition.lead(3, STATE)
    led.partition.serve(3)
    assert not led.partition.has_stopped(7, 2)
    assert not led.partition.has_stopped(7, 3)
    with pytest.raises(NotReady):
        append(led, sorted_by=1)


@pytest.mark.parametrize("sorted_by", [0, 1])
def test_a_new_leadership_takes_nothing_before_it_serves(
    led: Led, sorted_by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11, P15, also if it was judged before the leadership began (by another thread)."""
    led.partition.lead(3, STATE)
    monkeypatch.setattr(Acceptance, "check_ready", lambda _: None)
    with pytest.raises(NotReady, match="just begun"):
        append(led, sorted_by=sorted_by)
    assert led.partition.log.state.log_end_offset == 0


@pytest.mark.parametrize("is_done", [True, False], ids=["trimmed", "deposed"])
def test_who_waits_for_a_trim_no_more_is_told_nothing(
    led: Led, caplog: pytest.LogCaptureFixture, is_done: bool
) -> None:
    """Seen in `make chaos`, 21000: a trim was not answered in time, and then it was done."""
    append(led)
    led.follow(1)
    gone, other = led.partition.trim(1), led.partition.trim(1)
    assert not gone.done()
    gone.cancel()
    if is_done:
        led.partition.replica.trim(1)
        led.partition.tick(1)
        led.follow(1, log_start=1)
    else:
        led.partition.depose()
    assert other.done()
    error = other.exception()
    assert is_done or (isinstance(error, NotLeader) and error.fields["sent"] is True), "the next leader may have it"
    assert caplog.text == ""


def test_who_waits_for_an_append_no_more_is_told_nothing(led: Led, caplog: pytest.LogCaptureFixture) -> None:
    gone, other = led.partition.append([rows(b"x")]), led.partition.append([rows(b"y")])
    eventually(lambda: led.partition.log.state.log_end_offset == 2, what="both are appended")
    gone.cancel()
    led.partition.run_sync()
    led.follow(2)
    assert other.result(60).first_offset == 1
    assert caplog.text == ""
    assert led.partition._queued._waiting == 0


def test_who_waits_for_a_trim_hears_that_an_fsync_has_failed(disk: SimDisk, led: Led) -> None:
    """Once seed 137 of the driven simulator: the core named no error to a trim, and the driver took that for done."""
    for _ in range(2):
        append(led)
    for broker in ("b", "c"):
        led.follow(2, broker)
    done = led.partition.trim(1)
    disk.fail("sync", errno.EIO, path=".arrows", times=1)
    append(led)
    assert isinstance(done.exception(timeout=60), StorageFailed)
