"""Partitions of one stream that are captured by two brokers, one by one, and move between them under load.

Method: a real nats-server, two intake drivers, publishers that await each ack.
"""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest

from broker.api.batch import decode_batch
from broker.api.stream import settings_from
from broker.client.nats_connection import flush
from broker.common.elapsed import MACHINE
from broker.config.configuration import load
from broker.intake import nats_seam
from broker.intake.captures import Attachment
from broker.intake.driver import IntakeDriver
from broker.metadata.catalog import StreamInfo
from broker.metadata.overlap import subject_of
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncPool
from broker.node.partitions.watch import ChangeHub
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from tests.support.acks import offset_of, partition_of
from tests.support.led_alone import LedAlone
from tests.support.processes import NatsServer, eventually
from tests.support.simdisk import SimDisk

pytestmark = pytest.mark.process
PARTITIONS = 4


class Broker:
    """Its driver, and a log for each partition, whether it is led here or not."""

    def __init__(
        self,
        url: str,
        pool: SyncPool,
        appender: ThreadPoolExecutor,
        loop: asyncio.AbstractEventLoop,
        *,
        takes_all: bool = False,
    ) -> None:
        self.driver = IntakeDriver(load(None, {}, {"nats.urls": [url]}), pool, takes_all=takes_all)
        self.pool, self.appender, self.hub = pool, appender, ChangeHub(loop)
        self.disk = SimDisk()

    def make(self, info: StreamInfo) -> list[Partition]:
        made = []
        for number in range(PARTITIONS):
            identity = LogIdentity(cluster_id="c", stream=info.name, incarnation="i", partition=number)
            folder = f"/{info.name}/{number}"
            log = PartitionLog.create(self.disk, folder, identity, LogSettings.of(info.settings), now_us=0)
            replica = Replica(info, number, log, appender=self.appender, hub=self.hub, clocks=MACHINE)
            made.append(LedAlone(info, replica, leader_epoch=1, pool=self.pool, appender=self.appender))
        return made


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[str, Broker, Broker]]:
    server = NatsServer(tmp_path).start()
    pool, loop = SyncPool(2), asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as appender:
        a, b = (Broker(server.url, pool, appender, loop) for _ in range(2))
        for broker in (a, b):
            broker.driver.start()
            eventually(lambda broker=broker: broker.driver.state == "connected")  # type: ignore[misc]
        yield server.url, a, b
        for broker in (a, b):
            broker.driver.stop(20)
        pool.close()
    loop.close()
    server.stop()


def subscriptions_of(broker: Broker) -> int:
    client: Any = broker.driver._client
    return len(client._subs)


class Publishers:
    """Publish to each key or subject, one record at a time, until told to end; what is not answered is sent again."""

    def __init__(self, url: str, targets: list[tuple[str, dict[str, str]]]) -> None:
        self.url, self.targets = url, targets
        self.acks: dict[bytes, dict[str, Any]] = {}
        self.repeated = [0] * len(targets)
        self.count = [0] * len(targets)
        self.is_ending = False

    async def run(self) -> None:
        client = await nats.connect(self.url)
        await asyncio.gather(*(self.publish(client, at) for at in range(len(self.targets))))
        await client.close()

    async def publish(self, client: Any, at: int) -> None:
        subject, headers = self.targets[at]
        while not self.is_ending:
            value = b"%d %d" % (at, self.count[at])
            try:
                answer = json.loads((await client.request(subject, value, timeout=0.5, headers=headers)).data)
            except (TimeoutError, nats.errors.Error):
                self.repeated[at] += 1
                continue
            if "error" in answer:
                self.repeated[at] += 1
                continue
            self.acks[value] = answer
            self.count[at] += 1


@pytest.mark.parametrize("by", ["key", "subject_suffix"])
def test_a_partition_moves_while_all_are_published_to(brokers: tuple[str, Broker, Broker], by: str) -> None:
    url, a, b = brokers
    settings = settings_from({"subject": "s", "partition_by": by, "partitions": PARTITIONS, "linger_ms": 0})
    info = StreamInfo(name="s", incarnation="i", created_us=0, settings=settings)
    of_a, of_b = a.make(info), b.make(info)
    wait([a.driver.begin(info, of_a[n]) for n in (0, 1)] + [b.driver.begin(info, of_b[n]) for n in (2, 3)])
    if by == "key":
        targets = [("s", {"Liftlog-Key": f"k{n}"}) for n in range(12)]
    else:
        targets = [("s" if n == 0 else f"s.{n}", {}) for n in range(PARTITIONS)]
    publishers = Publishers(url, targets)

    def until_more() -> None:
        before = list(publishers.count)
        eventually(lambda: all(now > then + 5 for now, then in zip(publishers.count, before, strict=True)))

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(lambda: asyncio.run(publishers.run()))
        until_more()
        leaders = {0: a, 1: a, 2: b, 3: b}
        moved = set()
        for number, source, target in ((1, a, b), (3, b, a), (1, b, a), (0, a, b)):
            of = {a: of_a, b: of_b}
            source.driver.end(of[source][number]).result(60)
            target.driver.begin(info, of[target][number]).result(60)
            leaders[number] = target
            moved.add(number)
            until_more()
        publishers.is_ending = True
        running.result(60)
    stored = [value for log in (*of_a, *of_b) for value in values_in(log)]
    partitions: dict[int, int] = {}
    for value, ack in publishers.acks.items():
        at = partition_of(ack)
        assert value in [values_in(of[at])[offset_of(ack)] for of in (of_a, of_b) if has(of, ack)]
        partitions[int(value.split()[0])] = at
    assert set(partitions.values()) == set(range(PARTITIONS))
    for at, number in partitions.items():
        if number not in moved:
            assert publishers.repeated[at] == 0, "a partition that stayed was held up"
    twice = {value for value, count in Counter(stored).items() if count > 1}
    assert {partitions[int(value.split()[0])] for value in twice} <= moved
    expected = 1 if by == "key" else len([n for n, leader in leaders.items() if leader is a])
    assert subscriptions_of(a) == expected


def has(partitions: list[Partition], ack: dict[str, Any]) -> bool:
    return bool(offset_of(ack) < partitions[partition_of(ack)].log.state.log_end_offset)


@functools.cache
def values_in(partition: Partition) -> list[bytes]:
    batches = map(decode_batch, partition.log.reader.batches(0))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_many_that_begin_at_once_are_confirmed_together(brokers: tuple[str, Broker, Broker]) -> None:
    _, a, _ = brokers
    client: Any = a.driver._client
    pings: list[object] = []
    send = client._send_ping

    async def counted(*args: Any) -> None:
        pings.append(args)
        await send(*args)

    client._send_ping = counted
    settings = settings_from({"subject": "m", "partition_by": "subject_suffix", "partitions": PARTITIONS})
    info = StreamInfo(name="m", incarnation="i", created_us=0, settings=settings)
    partitions = a.make(info)
    done = a.driver._call(_all(a, info, partitions))
    done.result(60)
    assert subscriptions_of(a) == PARTITIONS
    assert len(pings) == 1
    wait([a.driver.end(partition) for partition in partitions])
    assert subscriptions_of(a) == 0


def test_who_begins_costs_those_nothing_that_have_begun(brokers: tuple[str, Broker, Broker]) -> None:
    """All were looked at with each: with ten thousand it was a third of a start."""
    _, a, _ = brokers
    settings = settings_from({"subject": "w", "partition_by": "subject_suffix", "partitions": PARTITIONS})
    info = StreamInfo(name="w", incarnation="i", created_us=0, settings=settings)
    subscribe, asked = a.driver._subscribe, list[int]()

    async def counted(client: Any, attachment: Any) -> None:
        asked.append(attachment.slots[0].partition.partition)
        await subscribe(client, attachment)

    a.driver._subscribe = counted  # type: ignore[method-assign]
    for partition in a.make(info):
        a.driver.begin(info, partition).result(60)
    assert asked == list(range(PARTITIONS))
    assert subscriptions_of(a) == PARTITIONS


def test_one_that_cannot_be_subscribed_keeps_no_other_from_it_and_is_tried_again(
    brokers: tuple[str, Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`driver.I4`. It was the first one in each later round, too, and no other got its turn."""
    _, a, _ = brokers
    settings = settings_from({"subject": "f", "partition_by": "subject_suffix", "partitions": PARTITIONS})
    info = StreamInfo(name="f", incarnation="i", created_us=0, settings=settings)
    client: Any = a.driver._client
    subscribe, fails = client.subscribe, True

    async def failing(subject: str, **options: Any) -> Any:
        if fails and subject == subject_of(settings, 0):
            raise nats.errors.BadSubjectError
        return await subscribe(subject, **options)

    monkeypatch.setattr(client, "subscribe", failing)
    for partition in a.make(info):
        a.driver.begin(info, partition).result(60)
    assert subscriptions_of(a) == PARTITIONS - 1
    fails = False
    a.driver._call(a.driver._subscribe_missing([])).result(60)
    assert subscriptions_of(a) == PARTITIONS


def test_who_is_refused_is_found_without_a_look_at_all_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`driver.I4`. Each refusal looked at all: with two thousand the loop stood for 20 s, and took no message in."""
    count = 40
    monkeypatch.setattr(sys.modules[__name__], "PARTITIONS", count)
    reads, real = [0], Attachment.subscriptions.fget  # type: ignore[attr-defined]

    def counted(self: Attachment) -> Any:
        reads[0] += 1
        return real(self)

    rights = 'authorization { users: [{user: a, password: b, permissions: {subscribe: {deny: ["r.>"]}}}] }\n'
    server = NatsServer(tmp_path, config=rights + "no_auth_user: a").start()
    pool, loop = SyncPool(2), asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as appender:
        broker = Broker(server.url, pool, appender, loop)
        driver = broker.driver
        driver.start()
        eventually(lambda: driver.state == "connected")
        settings = settings_from({"subject": "r", "partition_by": "subject_suffix", "partitions": count})
        info = StreamInfo(name="r", incarnation="i", created_us=0, settings=settings)
        partitions = broker.make(info)
        monkeypatch.setattr(Attachment, "subscriptions", property(counted))
        wait([driver.begin(info, partition) for partition in partitions])
        assert reads[0] < 10 * count
        assert len(driver.not_captured("r")) == count - 1, "all but partition 0"
        driver.end(partitions[1]).result(60)
        assert len(driver.not_captured("r")) == count - 2
        driver.begin(info, partitions[1]).result(60)
        assert len(driver.not_captured("r")) == count - 1, "it is refused anew"
        server.kill9()
        eventually(lambda: driver.state != "connected")
        assert not driver._refused_sids
        server.start()
        eventually(lambda: driver.counts["reconnects"] and len(driver.not_captured("r")) == count - 1)
        wait([driver.end(partition) for partition in partitions])
        assert not driver._asked
        driver.stop(20)
    pool.close()
    loop.close()
    server.stop()


def test_more_subscriptions_than_the_server_takes_keep_no_other_from_being_captured(tmp_path: Path) -> None:
    """`driver.I4`. nats-py ended the connection for it, and the next one, twice in each second and for ever."""
    server = NatsServer(tmp_path, config=f"max_subscriptions: {PARTITIONS - 1}").start()
    pool, loop = SyncPool(2), asyncio.new_event_loop()
    settings = settings_from({"subject": "m", "partition_by": "subject_suffix", "partitions": PARTITIONS})
    info = StreamInfo(name="m", incarnation="i", created_us=0, settings=settings)

    def refused() -> list[str]:
        return [subject_of(settings, n) for n in range(PARTITIONS) if f"{subject_of(settings, n)!r}:" in told()]

    def told() -> str:
        return "; ".join(driver.uncaptured("m"))

    async def publish(*numbers: int) -> None:
        client = await nats.connect(server.url)
        for number in numbers:
            answer = await client.request(subject_of(settings, number), b"x", timeout=30)
            assert "error" not in json.loads(answer.data)
        await client.close()

    with ThreadPoolExecutor(1) as appender:
        broker = Broker(server.url, pool, appender, loop)
        driver = broker.driver
        driver.start()
        eventually(lambda: driver.state == "connected")
        partitions = broker.make(info)
        wait([driver.begin(info, partition) for partition in partitions])
        assert refused() == ["m.3"]
        asyncio.run(publish(0, 1, 2))
        driver.end(partitions[1]).result(60)
        driver.end(partitions[3]).result(60)
        driver.begin(info, partitions[3]).result(60)
        assert not refused(), "there is room for it now"
        asyncio.run(publish(0, 2, 3))
        driver.begin(info, partitions[1]).result(60)
        assert refused() == ["m.1"]
        before = driver.counts["disconnects"]
        assert before == 0
        server.kill9()
        server.start()
        eventually(lambda: driver.counts["reconnects"] and refused() == ["m.1"])
        asyncio.run(publish(0, 2, 3))
        assert driver.counts["disconnects"] == before + 1
        driver.stop(20)
    pool.close()
    loop.close()
    server.stop()


class DeafServer:
    """Speaks NATS; the first connection, once it is deaf, is read no more, and can be ended by an error.

    Attributes:
        subscribed: How many SUBs each connection has sent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.subscribed: list[int] = []
        self.serving: list[Any] = []
        self.writers: list[asyncio.StreamWriter] = []
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listening.bind(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{listening.getsockname()[1]}"
        self.server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self.serve, sock=listening), loop).result(
            60
        )

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = len(self.subscribed)
        self.serving.append(asyncio.current_task())
        self.subscribed.append(0)
        self.writers.append(writer)
        writer.write(b'INFO {"server_id":"s","version":"2.10.0","headers":true,"max_payload":1048576}\r\n')
        while line := await reader.readline():
            self.subscribed[at] += line.startswith(b"SUB ")
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
        writer.close()

    async def close(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.gather(*self.serving, return_exceptions=True)

    def grow_deaf(self) -> None:
        self.loop.call_soon_threadsafe(self.writers[0].transport.pause_reading)  # type: ignore[attr-defined]

    def send(self, line: bytes) -> None:
        self.loop.call_soon_threadsafe(self.writers[0].write, line)


def test_a_connection_that_ends_for_good_amid_thousands_of_subscriptions_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`driver.I2`, `nats_seam.P5`. nats-py waited for ever: to send what the server did not take, and for a place among
    the 1,024 commands that it held. Nothing was captured any more, and the broker said that it was connected."""
    count = 900
    monkeypatch.setattr(sys.modules[__name__], "PARTITIONS", count)
    monkeypatch.setattr(
        nats_seam, "unpace_loopback", lambda sock, _: sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    )
    loop, pool = asyncio.new_event_loop(), SyncPool(1)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = DeafServer(loop)
    with ThreadPoolExecutor(1) as appender:
        broker = Broker(server.url, pool, appender, loop)
        driver = broker.driver
        driver.start()
        eventually(lambda: driver.state == "connected")
        server.grow_deaf()
        first: Any = driver._client
        asked = []
        for name in ("a" * 200, "b" * 200):
            settings = settings_from({"subject": name, "partition_by": "subject_suffix", "partitions": count})
            info = StreamInfo(name=name, incarnation="i", created_us=0, settings=settings)
            asked += [(info, partition) for partition in broker.make(info)]
        may = threading.Event()
        driver._loop.call_soon_threadsafe(may.wait, 60)  # so that they begin in one round
        for info, partition in asked:
            driver.begin(info, partition)
        may.set()
        eventually(lambda: first._flush_queue.full() or len(first._subs) == 2 * count)
        server.send(b"-ERR 'User Authentication Expired'\r\n")
        eventually(lambda: server.subscribed[-1] == 2 * count, what="all anew")
        eventually(lambda: driver.state == "connected")
        driver.stop(20)
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    pool.close()


async def _all(broker: Broker, info: StreamInfo, partitions: list[Partition]) -> None:
    await asyncio.gather(*(broker.driver._captures.begin(info, partition) for partition in partitions))


def test_one_of_several_that_end_takes_in_what_the_server_had_sent(brokers: tuple[str, Broker, Broker]) -> None:
    """The subscription stays for the others, and with it no UNSUB comes behind what was sent."""
    url, a, _ = brokers
    settings = settings_from({"subject": "p", "partition_by": "key", "partitions": PARTITIONS, "linger_ms": 5_000})
    info = StreamInfo(name="p", incarnation="i", created_us=0, settings=settings)
    partitions = a.make(info)
    wait([a.driver.begin(info, partition) for partition in partitions])
    count = 4_000

    async def publish() -> None:
        client = await nats.connect(url)
        for number in range(count):
            await client.publish("p", b"x", headers={"Liftlog-Key": f"k{number}"})
        await flush(client, 60)
        wait([a.driver.end(partition, with_sent=True) for partition in partitions])
        await client.close()

    asyncio.run(publish())
    assert sum(partition.log.state.log_end_offset for partition in partitions) == count


def test_a_broker_that_is_alone_takes_all_of_a_stream_or_none(brokers: tuple[str, Broker, Broker]) -> None:
    """E7. Whoever awaits no ack would lose what hashes to a partition that is not there."""
    url, a, _ = brokers
    alone = Broker(url, a.pool, a.appender, asyncio.new_event_loop(), takes_all=True)
    alone.driver.start()
    eventually(lambda: alone.driver.state == "connected")
    settings = settings_from({"subject": "all", "partition_by": "key", "partitions": 3, "linger_ms": 0})
    info = StreamInfo(name="all", incarnation="i", created_us=0, settings=settings)
    grown = replace(info, settings=replace(settings, partitions=PARTITIONS))
    of = alone.make(info)
    sent = 0

    async def publish() -> None:
        nonlocal sent
        client = await nats.connect(url)
        for number in range(12):
            await client.publish("all", b"%d" % (sent + number), headers={"Liftlog-Key": f"k{number}"})
        await flush(client, 30)
        await client.close()
        sent += 12

    def stored() -> int:
        return sum(each.log.state.log_end_offset for each in of)

    try:
        for partition in of[:2]:
            alone.driver.begin(info, partition).result(60)
            assert subscriptions_of(alone) == 0, "one of them is not there"
        alone.driver.begin(info, of[2]).result(60)
        assert subscriptions_of(alone) == 1
        asyncio.run(publish())
        eventually(lambda: stored() == sent)
        for partition in of[:3]:
            alone.driver.begin(grown, partition).result(60)
        asyncio.run(publish())
        eventually(lambda: stored() == sent)
        assert not of[3].log.state.log_end_offset, "they are sorted as before"
        for partition in of:
            partition.alter(grown)
        alone.driver.begin(grown, of[3]).result(60)
        asyncio.run(publish())
        eventually(lambda: stored() == sent)
        assert of[3].log.state.log_end_offset
        alone.driver.end(of[1], with_sent=True).result(60)
        assert subscriptions_of(alone) == 0, "none is taken once one of them goes"
        alone.driver.begin(grown, of[1]).result(60)
        assert subscriptions_of(alone) == 1
        asyncio.run(publish())
        eventually(lambda: stored() == sent)
        for partition in of:
            alone.driver.end(partition, with_sent=True).result(60)
        assert not alone.driver._streams
    finally:
        alone.driver.stop(20)


@pytest.mark.parametrize("by", ["key", "subject_suffix"])
def test_a_broker_that_is_alone_asks_the_server_nothing_when_settings_are_altered(
    brokers: tuple[str, Broker, Broker], by: str
) -> None:
    """E8. Its answer comes behind all that it sends: a change waited for that, and under load for seconds."""
    url, a, _ = brokers
    alone = Broker(url, a.pool, a.appender, asyncio.new_event_loop(), takes_all=True)
    alone.driver.start()
    eventually(lambda: alone.driver.state == "connected")
    settings = settings_from({"subject": "e8", "partition_by": by, "partitions": PARTITIONS, "linger_ms": 20})
    info = StreamInfo(name="e8", incarnation="i", created_us=0, settings=settings)
    altered = replace(info, settings=replace(settings, linger_ms=0))
    of, captures, asked = alone.make(info), alone.driver._captures, list[str]()
    subscribe = captures._subscribe

    async def counted(of: Any) -> None:
        asked.append("server")
        await subscribe(of)

    try:
        wait([alone.driver.begin(info, partition) for partition in of])
        captures._subscribe = counted
        for partition in of:
            alone.driver.begin(altered, partition).result(60)
        assert not asked
        assert {each.info.settings.linger_ms for each in alone.driver._streams.values()} == {0}
        alone.driver.end(of[1], with_sent=True).result(60)
        alone.driver.begin(altered, of[1]).result(60)
        assert asked, "it subscribes anew"
    finally:
        alone.driver.stop(20)
