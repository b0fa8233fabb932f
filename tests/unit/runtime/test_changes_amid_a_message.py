"""Goal: whatever is done to a stream while a message of it is half read, the message is acked or refused in words, what
was acked is in the log, and reading goes on.

Method: the real intake driver, its loop turned by hand; real parsers, logs and fsync pool. Streams are changed as
turns of replicas do it, with no connection to NATS that could hold a change back until the
message is whole.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from broker.api.batch import decode_batch
from broker.api.stream import settings_from
from broker.common.elapsed import MACHINE
from broker.config.configuration import load
from broker.intake.captures import Attachment
from broker.intake.driver import IntakeDriver
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncPool
from broker.node.partitions.watch import ChangeHub
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from tests.support.acks import offset_of, partition_of
from tests.support.effort import first_short
from tests.support.led_alone import LedAlone
from tests.support.simdisk import SimDisk
from tests.support.waiting import until
from tests.unit.ingest.twins import TWIN_IDS
from tests.unit.ingest.wire import answers_in, hmsg, msg

pytestmark = pytest.mark.slow

VALUE = b"x" * 30
MESSAGES = {
    "plain": msg("s.1", VALUE, reply="half"),
    "with headers": hmsg("s.1", VALUE, ("Liftlog-Key", "k"), ("Nats-Msg-Id", "i"), reply="half"),
}


class Broker:
    """Streams `s` (subject s.>, hashed) on sid 1 and `t` on sid 2."""

    def __init__(self, implementation: str, appender: ThreadPoolExecutor, pool: SyncPool) -> None:
        prefixes = ["half", "behind", "before", "r", "goes", "waits", "0"]
        overrides = {"intake.implementation": implementation, "nats.reply_prefixes": prefixes}
        self.driver = IntakeDriver(load(None, {}, overrides), pool)
        self.loop = self.driver._loop
        self.hub = ChangeHub(self.loop)
        self.disk, self.appender, self.pool = SimDisk(), appender, pool
        self.sent = b""
        self.driver._flusher.answers.send = self.send
        self.infos: dict[str, StreamInfo] = {}
        self.partitions: dict[str, list[Partition]] = {}
        for sid, name in enumerate("st", 1):
            settings = settings_from({"subject": f"{name}.>", "partition_by": "key", "linger_ms": 0})
            self.infos[name] = StreamInfo(name=name, incarnation="i", created_us=0, settings=settings)
            self.partitions[name] = [self.partition(name, 0)]
            self.attach(name, sid)

    def send(self, blob: bytes) -> None:
        self.sent += blob

    def partition(self, name: str, number: int) -> Partition:
        info = self.infos[name]
        identity = LogIdentity(cluster_id="c", stream=name, incarnation="i", partition=number)
        log = PartitionLog.create(self.disk, f"/{name}{number}", identity, LogSettings.of(info.settings), now_us=0)
        return LedAlone(
            info,
            Replica(info, number, log, appender=self.appender, hub=self.hub, clocks=MACHINE),
            leader_epoch=1,
            pool=self.pool,
            appender=self.appender,
            has_others=True,  # else all of its stream is taken in, or nothing (`captures.E7`)
        )

    def run(self, coroutine: Any) -> None:
        self.loop.run_until_complete(coroutine)

    def attach(self, name: str, sid: int) -> None:
        self.begin_all(name)
        attachment = self.driver._streams[name]
        for subscription, (_, slots) in enumerate(attachment.subscriptions):  # as `_subscribe` does, but to nobody
            self.driver._route(sid + subscription, slots, attachment.info)
            attachment.sids.append(sid + subscription)

    def begin_all(self, name: str) -> None:
        for partition in self.partitions[name]:
            self.run(self.driver._captures.begin(self.infos[name], partition))

    def receive(self, data: bytes) -> None:
        self.driver._intake.feed(data, 1)
        self.driver._after_feed(len(data))

    def answers(self) -> dict[bytes, dict[str, Any]]:
        found = answers_in(self.sent)
        assert len(dict(found)) == len(found), "an answer came twice"
        return {reply: json.loads(body) for reply, body in found}

    def until_answered(self, reply: bytes) -> dict[str, Any]:
        self.run(until(lambda: b"PUB %b " % reply in self.sent, f"no answer to {reply!r}"))
        return self.answers()[reply]

    def value_at(self, ack: dict[str, Any]) -> bytes:
        log = self.partitions[ack["stream"]][partition_of(ack)].log
        rows = [row for message in log.reader.batches(0) for row in decode_batch(message).to_pylist()]
        return bytes(rows[offset_of(ack)]["value"])

    # -- changes

    def change(self, **settings: Any) -> None:
        before = self.infos["s"]
        values = {**before.settings.as_dict(), **settings}
        self.infos["s"] = replace(before, settings=settings_from(values))
        for partition in self.partitions["s"]:
            partition.alter(self.infos["s"])

    def alter(self, **settings: Any) -> None:
        self.change(**settings)
        self.begin_all("s")

    def add_partitions(self) -> None:
        self.change(partitions=3)
        added = [self.partition("s", number) for number in (1, 2)]
        self.partitions["s"] += added
        self.begin_all("s")

    def detach(self) -> None:
        self.run(self.driver._detach("s"))

    def set_state(self, **state: bool) -> None:
        self.infos["s"] = replace(self.infos["s"], **state)
        for partition in self.partitions["s"]:
            partition.alter(self.infos["s"])

    def pause(self) -> None:
        self.detach()
        self.set_state(paused=True)

    def pause_and_resume(self) -> None:
        self.pause()
        self.set_state(paused=False)
        self.attach("s", 3)

    def delete(self) -> None:
        self.detach()
        for partition in self.partitions["s"]:
            partition.note_removed()
            partition.log.close(clean=False)


CHANGES: dict[str, tuple[Callable[[Broker], None], str]] = {
    "acks off": (lambda b: b.alter(reply_acks=False), ""),
    "awaits none": (lambda b: b.alter(acks="none"), ""),
    "smaller records": (lambda b: b.alter(record_bytes_max=1024), ""),
    "linger": (lambda b: b.alter(linger_ms=10_000), ""),
    "fsync interval": (lambda b: b.alter(fsync="interval"), ""),
    "partitions": (Broker.add_partitions, ""),
    "read-only": (lambda b: b.set_state(read_only=True), "read_only"),
    "pause": (Broker.pause, "stream_paused"),
    "pause and resume": (Broker.pause_and_resume, ""),
    "delete": (Broker.delete, "unknown_stream"),
}


# -- partitions that are captured one by one (captures.py)


class Led(Broker):
    """A broker that leads partitions 0 and 1 of the 3 of `s`, each captured by itself."""

    def __init__(self, implementation: str, appender: ThreadPoolExecutor, pool: SyncPool) -> None:
        super().__init__(implementation, appender, pool)
        self.detach()
        self.change(partitions=3)
        self.partitions["s"] += [self.partition("s", number) for number in (1, 2)]
        for number in (0, 1):
            self.begin(number)
        self.driver._route(3, self.attachment.slots, self.attachment.info)
        self.attachment.sids.append(3)

    @property
    def attachment(self) -> Attachment:
        return self.driver._streams["s"]

    def until_stored(self) -> None:
        self.run(until(lambda: self.driver._flusher._pending_bytes == 0, "bytes are under way"))

    def begin(self, number: int) -> None:
        self.run(self.driver._captures.begin(self.infos["s"], self.partitions["s"][number]))

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self.run(self.driver._captures.end(self.partitions["s"][number]))

    def end_and_begin(self, *numbers: int) -> None:
        self.end(*numbers)
        for number in numbers:
            self.begin(number)

    def alter_all(self) -> None:
        self.change(linger_ms=3)
        for number in (0, 1):
            self.begin(number)


KEYS = (b"a", b"b", b"c", b"d", b"e")
LED_CHANGES: dict[str, Callable[[Led], None]] = {
    "one comes": lambda b: b.begin(2),
    "one goes": lambda b: b.end(1),
    "the other goes": lambda b: b.end(0),
    "both go": lambda b: b.end(0, 1),
    "one goes and comes": lambda b: b.end_and_begin(1),
    "both go and come": lambda b: b.end_and_begin(0, 1),
    "altered": Led.alter_all,
}


@pytest.mark.parametrize("change", LED_CHANGES.values(), ids=LED_CHANGES)
@pytest.mark.parametrize("case", first_short([(key, part) for key in KEYS for part in range(3)]))
def test_partitions_come_and_go_in_the_midst_of_a_message(
    implementation: str, case: tuple[bytes, int], change: Callable[[Led], None]
) -> None:
    """The rule for each partition: one that is led throughout stores the message; any other stores it once, or not at
    all. Wherever the message is cut, in three parts."""
    key, part = case
    wire = hmsg("s.1", VALUE, ("Liftlog-Key", key.decode()), sid=3, reply="half")
    stored: set[tuple[int, int]] = set()
    pool = SyncPool(1)
    with ThreadPoolExecutor(1) as appender:
        for cut in range(1 + part, len(wire), 3):
            broker = Led(implementation, appender, pool)
            broker.receive(wire[:cut])
            change(broker)
            broker.receive(wire[cut : cut + 5])
            broker.receive(wire[cut + 5 :])
            broker.receive(msg("t.1", b"behind", sid=2, reply="behind"))
            broker.until_answered(b"behind")
            for slot in broker.driver._flusher._intake.dirty():
                broker.driver._flusher._flush(slot.tag, force=True)
            broker.until_stored()
            found = [
                (p.partition, p.log.state.log_end_offset) for p in broker.partitions["s"] if p.log.state.log_end_offset
            ]
            assert sum(count for _, count in found) <= 1
            if found:
                assert broker.value_at(broker.until_answered(b"half")) == VALUE
            stored |= set(found)
            broker.loop.close()
        pool.close()
    assert len(stored) <= 1, "of one partition"


@pytest.mark.parametrize("key", first_short(KEYS))
def test_a_message_amid_another_number_of_partitions_is_sorted_by_the_new_one_or_refused(
    implementation: str, key: bytes
) -> None:
    """E5: what gathers, is half received, or comes later. By the former number another broker would store it, too."""
    wire = hmsg("s.1", VALUE, ("Liftlog-Key", key.decode()), sid=3, reply="half")
    gathered = hmsg("s.1", VALUE, ("Liftlog-Key", key.decode()), sid=3)
    pool = SyncPool(1)
    refused = 0
    with ThreadPoolExecutor(1) as appender:
        for cut in range(1, len(wire)):
            broker = Led(implementation, appender, pool)
            broker.change(partitions=3, linger_ms=10_000)
            for number in (0, 1):
                broker.begin(number)
            broker.receive(gathered + wire[:cut])
            broker.change(partitions=5)
            for number in (0, 1):
                broker.begin(number)
            broker.receive(wire[cut:])
            broker.receive(msg("t.1", b"behind", sid=2, reply="behind"))
            broker.until_answered(b"behind")
            for slot in broker.driver._flusher._intake.dirty():
                broker.driver._flusher._flush(slot.tag, force=True)
            broker.until_stored()
            found = [p.partition for p in broker.partitions["s"] if p.log.state.log_end_offset]
            assert found in ([], [crc32(key) % 5])
            answer = broker.answers().get(b"half")
            if answer is not None and "error" in answer:
                refused += 1
                assert "[not_ready]" in answer["error"]["description"]
                assert not found
            broker.loop.close()
        pool.close()
    assert (refused > 0) == (crc32(key) % 3 in (0, 1)), "sorted to one that is led here before its key was whole"


def test_what_came_before_the_server_confirmed_is_given_to_the_partition_at_once(implementation: str) -> None:
    """E6: another leader may have taken it by the former number. It is refused then, as this leadership has not begun;
    what lingered until it has would be stored."""
    key = next(key for key in (b"%d" % number for number in range(100)) if crc32(key) % 5 == 0)
    pool = SyncPool(1)
    with ThreadPoolExecutor(1) as appender:
        broker = Led(implementation, appender, pool)
        broker.change(partitions=5, linger_ms=10_000)

        async def subscribe(_: object) -> None:
            broker.receive(hmsg("s.1", VALUE, ("Liftlog-Key", key.decode()), sid=3))
            assert broker.partitions["s"][0].log.state.log_end_offset == 0, "it lingers"

        broker.driver._captures._subscribe = subscribe
        broker.begin(0)
        assert broker.partitions["s"][0].log.state.log_end_offset == 1
        broker.until_stored()
        broker.loop.close()
        pool.close()


def test_what_hashes_to_a_partition_that_is_led_elsewhere_is_passed_over_in_silence(implementation: str) -> None:
    pool = SyncPool(1)
    with ThreadPoolExecutor(1) as appender:
        broker = Led(implementation, appender, pool)
        for number in range(40):
            broker.receive(hmsg("s.1", VALUE, ("Liftlog-Key", f"k{number}"), sid=3, reply=f"r{number}"))
        broker.until_stored()
        ends = [p.log.state.log_end_offset for p in broker.partitions["s"]]
        assert ends[2] == 0
        assert 0 < ends[0] + ends[1] == len(broker.answers()) < 40
        broker.loop.close()
        pool.close()


@pytest.fixture(params=first_short(TWIN_IDS[::-1]))
def implementation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=first_short(TWIN_IDS[::-1]))
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[], Broker]]:
    made: list[Broker] = []
    pool = SyncPool(1)
    with ThreadPoolExecutor(1) as appender:

        def one() -> Broker:
            made.append(Broker(request.param, appender, pool))
            return made[-1]

        yield one
        pool.close()
    for broker in made:
        broker.loop.close()


@pytest.mark.parametrize("change, reason", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("wire", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("part", first_short(range(6)))
def test_it_is_stored_or_refused_with_an_answer_and_reading_goes_on(
    make: Callable[[], Broker], part: int, wire: bytes, change: Callable[[Broker], None], reason: str
) -> None:
    """Wherever the message is cut, in six parts."""
    for cut in range(1 + part, len(wire), 6):
        broker = make()
        broker.receive(msg("s.1", b"before", reply="before") + wire[:cut])
        change(broker)
        is_silent = broker.infos["s"].settings.acks == "none" or not broker.infos["s"].settings.reply_acks
        broker.receive(wire[cut : cut + 5])
        broker.receive(wire[cut + 5 :])
        broker.receive(msg("t.1", b"behind", sid=2, reply="behind"))
        assert broker.value_at(broker.until_answered(b"behind")) == b"behind"
        assert broker.value_at(broker.until_answered(b"before")) == b"before"
        if is_silent and b"half" not in broker.answers():  # its fate was decided behind the change
            [place] = [p for p in broker.partitions["s"] if p.log.state.log_end_offset == 2]
            assert broker.value_at({"stream": "s", "partition": place.partition, "seq": 2}) == VALUE
            continue
        answer = broker.until_answered(b"half")
        if change is Broker.add_partitions and "error" in answer:  # sorted by the former number (`captures.E5`)
            assert "[not_ready]" in answer["error"]["description"], answer
        elif reason:
            assert f"[{reason}]" in answer["error"]["description"], answer
        else:
            assert broker.value_at(answer) == VALUE


def test_a_hundred_changes_in_the_midst_of_a_hundred_messages(make: Callable[[], Broker]) -> None:
    """The report: 40 alters under load, and nothing was acked ever after."""
    broker = make()
    message = msg("s.1", VALUE, reply="rrr")
    for number in range(100):
        wire = message.replace(b"rrr", b"%03d" % number)
        cut = 1 + number * 7 % (len(wire) - 1)
        broker.receive(wire[:cut])
        broker.alter(linger_ms=number % 3) if number != 50 else broker.add_partitions()
        broker.receive(wire[cut:])
    for number in range(100):
        assert broker.value_at(broker.until_answered(b"%03d" % number)) == VALUE
    assert sum(p.log.state.log_end_offset for p in broker.partitions["s"]) == 100


def test_what_is_half_read_when_the_connection_ends_is_gone_and_reading_goes_on(make: Callable[[], Broker]) -> None:
    """The rest of it never comes: its publisher gets no ack, and repeats it."""
    wire = MESSAGES["plain"]
    for cut in range(1, len(wire)):
        broker = make()
        broker.receive(wire[:cut])
        broker.alter(linger_ms=1)
        broker.driver._intake.reset()
        broker.receive(msg("s.1", b"behind", reply="behind"))
        assert broker.value_at(broker.until_answered(b"behind")) == b"behind"
        assert broker.partitions["s"][0].log.state.log_end_offset == 1


class Broken:
    """A builder on which every call fails."""

    def __getattr__(self, name: str) -> Any:
        raise MemoryError(name)


def test_a_failure_of_ours_in_one_slot_does_not_end_reading(
    make: Callable[[], Broker], caplog: pytest.LogCaptureFixture
) -> None:
    """N6. It is logged once a second, and counted."""
    broker = make()
    slot = broker.driver._streams["s"].slots[0]
    builder, slot.builder = slot.builder, Broken()  # type: ignore[assignment]
    with caplog.at_level(logging.ERROR):
        broker.receive(msg("s.1", b"waits", reply="waits") + msg("t.1", b"goes on", sid=2, reply="goes"))
        for _ in range(20):
            broker.receive(b"PING\r\n")
    assert broker.value_at(broker.until_answered(b"goes")) == b"goes on"
    assert broker.driver._flusher.counts["flush_bugs"] == 21
    assert 1 <= len(caplog.records) < 21
    slot.builder = builder
    broker.receive(b"PING\r\n")
    assert broker.value_at(broker.until_answered(b"waits")) == b"waits"


class Subscription:
    """The subscription of a client that is replaced while this one is ended."""

    def __init__(self, driver: IntakeDriver, then: Callable[[], None]) -> None:
        self._driver, self._then = driver, then

    async def unsubscribe(self) -> None:
        await asyncio.sleep(0)
        self._then()
        raise OSError("the connection is gone")


def test_a_stream_that_goes_with_its_connection_leaves_the_next_connections_subscriptions_alone(
    make: Callable[[], Broker],
) -> None:
    """Numbers of subscriptions begin anew: the one that ended is another stream's by now."""
    broker = make()
    driver = broker.driver

    class Client:
        is_connected = True

    first, second = Client(), Client()

    def replaced() -> None:
        driver._client = second  # type: ignore[assignment]
        for attachment in driver._streams.values():
            driver._unroute(attachment)
        attachment = driver._streams["t"]
        driver._route(1, attachment.slots, attachment.info)
        attachment.sids.append(1)

    first._subs = {1: Subscription(driver, replaced)}  # type: ignore[attr-defined]
    driver._client = first  # type: ignore[assignment]
    broker.detach()
    broker.receive(msg("t.1", b"behind", reply="behind"))
    assert broker.value_at(broker.until_answered(b"behind")) == b"behind"
