"""Goal: what a leader tells its followers, and when: each order of questions, news and streams that end.

Method: the real log on the fake disk, led in epoch 2 with `b` and `c` in sync; streams are lists.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.errors import NotLeader, StorageFailed
from broker.api.stream import settings_from
from broker.common.elapsed import MACHINE
from broker.common.waiting import ThreadWaits
from broker.link import answering
from broker.link.answering import Answering, FollowerSlot
from broker.link.bulk import BulkServer
from broker.link.codec import Answered, decode
from broker.link.pace import Pace
from broker.node.partitions.replica import Replica
from broker.node.partitions.watch import ChangeHub
from broker.replication.events import Deposed, Send
from broker.replication.messages import Fenced, Fetch, Records
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.segments.index import INDEX_CACHE
from tests.support.replicated import STATE, Led
from tests.support.simdisk import SimDisk
from tests.unit.runtime.test_partition import IDENTITY, HeldPool, Waiter, disk, info, pool, rows

__all__ = ["disk", "pool"]  # fixtures
AT = ("i", 0)


class Stream:
    """The answers that are ready, and those that will be, each with its time."""

    def __init__(self, broker: str = "b") -> None:
        self.broker, self.is_over = broker, False
        self.is_ready: list[FollowerSlot] = []
        self.due: dict[int, float] = {}
        self.kept: list[FollowerSlot] = []

    def ready(self, slot: FollowerSlot) -> None:
        self.is_ready.append(slot)

    def later(self, slot: FollowerSlot, at_s: float) -> None:
        self.due[id(slot)] = at_s

    def keep(self, slot: FollowerSlot) -> bool:
        if not self.is_over:
            self.kept.append(slot)
        return not self.is_over

    def forget(self, slot: FollowerSlot) -> None:
        self.kept.remove(slot)
        self.is_ready = [other for other in self.is_ready if other is not slot]
        self.due.pop(id(slot), None)

    def said(self) -> list[Any]:
        """The answers that go out now, and how many bytes with each."""
        slots, self.is_ready = self.is_ready, []
        found = []
        for slot in dict.fromkeys(slots):
            for frame in slot.answering.compose(slot):
                said = decode(frame)
                assert isinstance(said, Answered)
                found.append((said.answer, len(said.data)))
        return found


class Leader(Led):
    """With answers to its followers."""

    answering: Answering
    bulk: BulkServer

    def fetch(
        self,
        stream: Stream,
        offset: int,
        durable_end: int | None = None,
        *,
        takes_bulk: bool = False,
        **values: Any,
    ) -> None:
        fetch = Fetch(
            follower=stream.broker,
            incarnation=(1, 0),
            epoch=2,
            offset=offset,
            last_epoch=2 if offset else -1,
            durable_end=offset if durable_end is None else durable_end,
            log_start=0,
        )
        self.answering.asked(stream, replace(fetch, **values), takes_bulk=takes_bulk)

    def append(self, *values: bytes) -> Waiter:
        waiter = Waiter()
        self.partition.append_now([rows(*(values or (b"x",)))], waiter, here=True)
        self.partition.run_sync()
        return waiter


@pytest.fixture
def led(disk: SimDisk, pool: HeldPool) -> Iterator[Leader]:
    settings = LogSettings.of(settings_from({}), LogSettings(is_sole_replica=False))
    log = PartitionLog.create(disk, "/p", IDENTITY, settings, now_us=0)
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as appender:
        replica = Replica(info(), 0, log, appender=appender, hub=ChangeHub(loop), clocks=MACHINE)
        leader = Leader(info(), replica, pool=pool, appender=appender)
        leader.bulk = BulkServer()
        leader.answering = Answering(
            AT,
            leader.partition,
            bytes_max=1 << 20,
            wait_s=0.2,
            pace=Pace(1 << 40, time.monotonic),
            bulk=leader.bulk,
            closed=lambda made: None,
            now_s=time.monotonic,
            waits=ThreadWaits(),
        )
        outward = leader.outward

        def to_others(effect: Any) -> None:
            if isinstance(effect, Send):
                leader.answering.send(effect)
            else:
                outward.append(effect)

        leader.partition._effects.to_others = to_others
        yield leader
    loop.close()


def test_who_asks_first_hears_at_once_and_who_has_all_when_there_is_news(led: Leader) -> None:
    stream = Stream()
    led.fetch(stream, 0)
    [(answer, size)] = stream.said()
    assert (answer.offset, answer.high_watermark, size) == (0, 0, 0)
    led.fetch(stream, 0)
    assert stream.said() == []
    led.append()
    [(answer, size)] = stream.said()
    assert (answer.offset, answer.high_watermark) == (0, 0)
    assert size > 0


def committed(led: Leader) -> tuple[Stream, Stream]:
    """One record that both followers have, and have not heard that it is committed."""
    b, c = Stream("b"), Stream("c")
    led.append()
    for stream in (b, c):
        led.fetch(stream, 0)
        stream.said()
        led.fetch(stream, 1)
    assert led.partition.log.state.high_watermark == 1
    return b, c


def test_a_late_question_takes_no_place_of_a_later_one(led: Leader) -> None:
    """It was at a disk while its stream ended. The follower would have had to ask again."""
    committed(led)
    stream = Stream()
    led.fetch(stream, 1, number=2)
    stream.said()
    led.fetch(stream, 1, number=5)
    led.fetch(stream, 0, 0, number=4)
    led.append()
    assert [answer.number for answer, size in stream.said() if size] == [5]


def test_a_commit_is_told_soon(led: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q1: also if its time comes before the follower is answered anyway, or another fetch comes meanwhile."""
    monkeypatch.setattr(answering, "COMMIT_S", 3_600.0)
    b, c = committed(led)
    for stream in (b, c):
        assert stream.said() == []
        slot = led.answering._slots[stream.broker]
        assert slot.commit_due_s > time.monotonic()
        led.fetch(stream, 1, number=1)
        slot.commit_due_s = time.monotonic() - 0.001
        led.answering.on_news()
        assert [(answer.high_watermark, size) for answer, size in stream.said()] == [(1, 0)]
        assert slot.commit_due_s == 0
        led.fetch(stream, 1, number=2)
        assert stream.said() == [], "it has heard of it"


def test_a_commit_is_told_when_its_time_has_come(led: Leader) -> None:
    for stream in committed(led):
        slot = led.answering._slots[stream.broker]
        [due_s] = stream.due.values()
        assert slot.commit_due_s == 0 or due_s <= slot.commit_due_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        stream.ready(slot)  # what the outbox does
        assert [(answer.high_watermark, size) for answer, size in stream.said()] == [(1, 0)]


def test_the_next_record_takes_a_commit_along(led: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "COMMIT_S", 3_600.0)
    b, _ = committed(led)
    led.append()
    [(answer, size)] = b.said()
    assert (answer.offset, answer.high_watermark) == (1, 1)
    assert size > 0


def test_another_log_start_waits_for_nothing(led: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "COMMIT_S", 3_600.0)
    b, _ = committed(led)
    led.partition.log.trim(1)
    led.answering.on_news()
    assert [(answer.high_watermark, answer.log_start) for answer, _ in b.said()] == [(1, 1)]


def test_a_log_start_that_no_checkpoint_says_yet_is_no_news(led: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash would undo it."""
    b, _ = committed(led)
    log = led.partition.log

    def refuses(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "made to refuse")

    with monkeypatch.context() as patched:
        patched.setattr(type(log.state.disk), "replace_file", refuses)
        with pytest.raises(StorageFailed):
            log.trim(1)
    assert (log.state.log_start_offset, log.checkpoints.kept_start_offset) == (1, 0)
    led.append()
    assert [answer.log_start for answer, _ in b.said()] == [0]


def test_bytes_go_once_for_an_offset_until_they_are_asked_for_after_a_while(led: Leader) -> None:
    stream = Stream()
    led.append()
    led.fetch(stream, 0)
    [(_, size)] = stream.said()
    assert size > 0
    led.fetch(stream, 0, number=1)
    assert stream.said() == [], "they are on their way"
    slot = led.answering._slots["b"]
    assert slot.sent is not None
    slot.sent = slot.sent._replace(at_s=slot.sent.at_s - answering.AGAIN_S)
    led.fetch(stream, 0, number=2)
    [(answer, again)] = stream.said()
    assert (answer.number, again) == (2, size)


def test_who_was_told_that_there_is_nothing_is_left_alone_for_longer(led: Leader) -> None:
    stream = Stream()
    led.append()
    led.fetch(stream, 0)
    stream.said()
    now_s = time.monotonic()
    led.fetch(stream, 1, durable_end=0)  # after bytes: soon
    [due_s] = stream.due.values()
    assert due_s - now_s < answering.CALM_S / 2
    slot = led.answering._slots["b"]
    slot.since_s -= 1
    stream.ready(slot)
    assert [size for _, size in stream.said()] == [0]
    led.fetch(stream, 1, durable_end=0, number=1)
    [due_s] = stream.due.values()
    assert due_s - now_s > answering.CALM_S / 2
    led.fetch(stream, 1, durable_end=0, number=2, lacks_state=True)  # it waits for a file
    [due_s] = stream.due.values()
    assert due_s - now_s < answering.CALM_S / 2


def test_a_question_of_a_later_leadership_waits_for_it(led: Leader) -> None:
    stream = Stream()
    led.fetch(stream, 0, epoch=3)
    assert stream.said() == []
    led.partition.lead(3, replace(STATE, leader_epoch=3))
    [(answer, _)] = stream.said() or stream.said()
    assert isinstance(answer, Records)
    assert answer.epoch == 3


def test_an_earlier_leadership_is_fenced(led: Leader) -> None:
    stream = Stream()
    led.fetch(stream, 0, epoch=1)
    assert [answer for answer, _ in stream.said()] == [Fenced(epoch=2, incarnation=(1, 0))]


def test_nothing_goes_out_once_the_leadership_is_over(led: Leader) -> None:
    """Neither what waits nor what is being read: another leader may write here by now."""
    stream = Stream()
    led.append()
    led.fetch(stream, 0)
    led.partition.step(Deposed())
    assert stream.said() == []
    led.partition.lead(4, replace(STATE, leader_epoch=4))
    led.fetch(stream, 0, epoch=4)
    opened, read = led.partition.log, led.partition.log.reader.read

    def deposed_meanwhile(*args: Any, **values: Any) -> Any:
        plan = read(*args, **values)
        led.partition.step(Deposed())
        return plan

    slot = led.answering._slots["b"]
    led.answering._log = _Reads(opened, deposed_meanwhile)  # type: ignore[assignment]
    assert slot.answering.compose(slot) == []


class _Reads:
    """A log whose reads are another function."""

    def __init__(self, log: PartitionLog, read: Any) -> None:
        self._log, self.reader = log, SimpleNamespace(read=read)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def test_a_stream_that_is_over_takes_nobodys_place(led: Leader) -> None:
    """Its reader may be amid a question when another stream of the same broker has begun."""
    old, new = Stream(), Stream()
    led.fetch(old, 0)
    led.fetch(new, 0)
    old.is_over = True
    led.fetch(old, 0)
    assert led.answering._slots["b"].stream is new
    led.append()
    assert new.said()


def test_a_slow_pace_holds_back_who_is_not_in_sync_alone(led: Leader) -> None:
    led.answering._pace = Pace(1 << 10, time.monotonic)
    led.answering._pace.take(1 << 20)
    b, c = Stream("b"), Stream("c")
    led.answer_isr("a", "b")
    led.append()
    for stream in (b, c):
        led.fetch(stream, 0)
    assert [size > 0 for _, size in b.said()] == [True]
    assert c.said() == []
    slot = led.answering._slots["c"]
    slot.since_s -= 60  # it is answered all the same: its leader is there
    c.ready(slot)
    assert [size for _, size in c.said()] == [0]


def test_after_the_end_nobody_is_answered(led: Leader) -> None:
    stream = Stream()
    led.fetch(stream, 0)
    led.answering.close()
    assert stream.said() == []
    led.fetch(stream, 0)
    led.append()
    assert stream.is_ready == []


# -- Q6 ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def far(led: Leader, monkeypatch: pytest.MonkeyPatch) -> Leader:
    """Two records are much, and are committed; `b` lacks both, and `c` alone is in sync."""
    monkeypatch.setattr(answering, "BULK_BYTES_LEAST", 1)
    led.bulk.told_port = 9
    for _ in range(2):
        led.append()
    led.follow(2, "b", "c")
    assert led.partition.log.state.high_watermark == 2
    monkeypatch.setattr(led.partition, "leadership", lambda: (2, 2, ("a", "c")))
    return led


def told(stream: Stream) -> list[Answered]:
    """All that goes out now."""
    slots, stream.is_ready = stream.is_ready, []
    frames = [frame for slot in dict.fromkeys(slots) for frame in slot.answering.compose(slot)]
    said = [decode(frame) for frame in frames]
    assert all(isinstance(each, Answered) for each in said)
    return said  # type: ignore[return-value]


def test_who_lacks_much_that_is_committed_is_told_where_it_is(far: Leader) -> None:
    b = Stream("b")
    far.fetch(b, 0, takes_bulk=True)
    [said] = told(b)
    with far.partition.log.reader.read(0) as plan:
        assert said.bulk is not None
        assert (said.data, said.bulk.port, said.bulk.byte_count) == (b"", 9, plan.bytes)
    assert isinstance(said.answer, Records)
    assert (said.answer.offset, said.answer.high_watermark) == (0, 2)


@pytest.mark.parametrize("why", ["asks for none", "in sync", "uncommitted", "little", "slow", "too many"])
def test_all_others_get_their_bytes_on_the_stream(far: Leader, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Stream("b")
    match why:
        case "in sync":
            monkeypatch.setattr(far.partition, "leadership", lambda: (2, 2, ("a", "b", "c")))
        case "uncommitted":
            far.append()
            monkeypatch.setattr(far.partition, "leadership", lambda: (2, 2, ("a", "c")))
        case "little":
            monkeypatch.setattr(answering, "BULK_BYTES_LEAST", 1 << 20)
        case "slow":
            far.answering._pace = Pace(3, time.monotonic)
        case "too many":
            monkeypatch.setattr(far.bulk, "has_room", lambda to: False)
    far.fetch(b, 2 if why == "uncommitted" else 0, takes_bulk=why != "asks for none")
    [said] = told(b)
    assert said.bulk is None
    assert said.data


def test_while_it_fetches_in_bulk_it_is_answered_without_bytes(far: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks again, for it waits, or tells of an fsync; also long after the bytes would go again."""
    monkeypatch.setattr(answering, "AGAIN_S", 0.0)
    b = Stream("b")
    far.fetch(b, 0, takes_bulk=True)
    [first] = told(b)
    assert first.bulk is not None
    far.fetch(b, 0, takes_bulk=True, number=1)
    assert told(b) == []
    [(slot, due_s)] = b.due.items()
    assert due_s < time.monotonic() + 1, "it is not taken for one that has all"
    found = far.answering._slots["b"]
    assert id(found) == slot
    monkeypatch.setattr(far.answering, "_now_s", lambda: due_s + 0.01)
    b.ready(found)
    [said] = told(b)
    assert (said.bulk, said.data) == (None, b"")
    assert found.is_fetching
    assert found.calm is None


def test_what_was_fetched_in_vain_comes_on_the_stream_at_once(far: Leader) -> None:
    b = Stream("b")
    far.fetch(b, 0, takes_bulk=True)
    told(b)
    transfer = far.answering._slots["b"].transfer
    assert transfer is not None
    far.fetch(b, 0)
    [said] = told(b)
    assert transfer.is_over
    assert said.bulk is None
    assert said.data


def test_a_follower_that_is_elsewhere_by_now_gets_what_it_lacks_there(far: Leader) -> None:
    b = Stream("b")
    far.fetch(b, 0, takes_bulk=True)
    told(b)
    before = far.answering._slots["b"].transfer
    assert before is not None
    far.fetch(b, 1, takes_bulk=True, number=1)
    [said] = told(b)
    assert before.is_over
    assert said.bulk is not None


@pytest.mark.parametrize("how", ["left", "close"])
def test_nothing_is_fetched_any_more_once_it_has_ended(far: Leader, how: str) -> None:
    b = Stream("b")
    far.fetch(b, 0, takes_bulk=True)
    told(b)
    slot = far.answering._slots["b"]
    transfer = slot.transfer
    assert transfer is not None
    if how == "left":
        far.answering.left(slot)
    else:
        far.answering.close()
    assert transfer.is_over


def test_a_leadership_that_ends_while_it_looks_names_nothing(far: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q2."""
    b = Stream("b")
    far.fetch(b, 0, takes_bulk=True)
    epochs = iter([2, 3])
    monkeypatch.setattr(far.partition, "leadership", lambda: (next(epochs), 2, ("a", "c")))
    assert told(b) == []
    assert far.bulk.has_room("b")
    assert not far.answering._slots["b"].is_fetching


def test_bytes_in_bulk_count_for_the_pace(far: Leader) -> None:
    """Q5."""
    b = Stream("b")
    far.answering._pace = pace = Pace(1_000_000_000, time.monotonic)
    free_s = pace._free_s
    far.fetch(b, 0, takes_bulk=True)
    [said] = told(b)
    assert said.bulk is not None
    assert pace._free_s > free_s


# --- what a question needs is read without the partition's lock --------------------------------------------------


def at_a_read(led: Leader, disk: SimDisk, meanwhile: Callable[[], object]) -> list[bool]:
    """Cold indexes. `meanwhile` happens at the first read of one. Returns who holds the partition's lock at a read."""
    held: list[bool] = []
    meet_fault = disk.meet_fault

    def meets(call: str, path: str) -> Any:
        if call in ("read_file", "pread"):
            held.append(led.partition._lock._is_owned())  # type: ignore[attr-defined]
            if len(held) == 1:
                meanwhile()
        return meet_fault(call, path)

    for segment in led.partition.log.state.chain.segments:
        INDEX_CACHE.drop(segment.serial)
    disk.meet_fault = meets  # type: ignore[method-assign]
    return held


def led_log(led: Leader) -> None:
    for _ in range(6):
        led.append(b"x" * 300)
        assert led.partition.log.roll_if_due(1 << 60)
    led.follow(6)


def test_intake_goes_on_while_a_lagging_follower_has_an_index_read(led: Leader, disk: SimDisk) -> None:
    led_log(led)
    stream, appended = Stream("c"), []
    held = at_a_read(led, disk, lambda: appended.append(led.partition.append_now([rows(b"y")], Waiter()).first_offset))
    led.fetch(stream, 3)
    assert appended == [6]
    assert held
    assert not any(held)
    [(answer, size)] = stream.said()
    assert (answer.offset, size > 0) == (3, True)


def test_a_question_is_looked_up_again_where_the_leadership_has_changed(led: Leader, disk: SimDisk) -> None:
    led_log(led)
    stream = Stream("c")

    def leads_again() -> None:
        led.partition.depose()
        led.partition.lead(3, replace(STATE, leader_epoch=3))

    held = at_a_read(led, disk, leads_again)
    led.fetch(stream, 3)
    assert len(held) > 1
    assert [(type(answer), answer.epoch) for answer, _ in stream.said()] == [(Fenced, 3)]


def test_who_does_not_lead_refuses_without_the_lock(led: Leader) -> None:
    """A thread that begins to lead holds it while it reads."""
    led.partition.depose()
    with ThreadPoolExecutor(1) as other, led.partition._lock, pytest.raises(NotLeader):
        other.submit(led.partition.append_now, [rows(b"y")], Waiter()).result(timeout=60)


def test_a_partition_that_is_closed_leaves_nothing_with_a_stream(led: Leader) -> None:
    stream = Stream()
    led.fetch(stream, 0)
    stream.said()
    led.fetch(stream, 0)
    assert (len(stream.kept), len(stream.due)) == (1, 1)
    led.answering.close()
    assert (stream.kept, stream.due, stream.is_ready) == ([], {}, [])
    led.fetch(stream, 0)  # it was under way
    assert (stream.kept, stream.is_ready) == ([], [])


def test_a_stream_that_has_ended_leaves_nothing_with_a_partition(led: Leader) -> None:
    stream = Stream()
    stream.is_over = True
    led.fetch(stream, 0)
    early = Fetch(follower="b", incarnation=(1, 0), epoch=2, offset=0, last_epoch=-1, durable_end=0, log_start=0)
    led.answering.ask_early(stream, early)
    assert (led.answering._slots, stream.is_ready) == ({}, [])


def test_a_fault_in_one_partition_is_told_and_ends_no_stream(led: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    stream = Stream()
    with monkeypatch.context() as faulty:
        faulty.setattr(led.partition, "step_by", fails)
        led.fetch(stream, 0)
    led.fetch(stream, 0)
    with monkeypatch.context() as faulty:
        faulty.setattr(led.partition, "leadership", fails)
        assert stream.said() == []
    assert stream.due, "it is tried again"
    led.fetch(stream, 0)
    assert [type(answer) for answer, _ in stream.said()] == [Records]
