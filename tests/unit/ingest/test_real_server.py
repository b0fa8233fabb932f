"""Goal: the bytes are those of a real nats-server, and it takes our answers.

Method: an Intake behind a bare socket on one side, stock nats-py on the other; nothing of ours in between.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import nats
import nats.js.errors
import pytest

from broker.api.batch import decode_batch
from broker.client.nats_connection import flush
from tests.support.processes import NatsServer
from tests.unit.ingest.twins import builder

pytestmark = pytest.mark.process

WAIT_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats")).start()
    yield server
    server.stop()


class Subscriber:
    """Feeds what a socket receives; answers PING, like any client."""

    def __init__(self, twin: ModuleType, server: NatsServer, **settings: Any) -> None:
        self.target = builder(twin, **settings)
        self.intake = twin.Intake()
        self.intake.route(7, [self.target], partition_by="subject_suffix")
        self.events: list[tuple[Any, ...]] = []
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
        options = {"verbose": True, "headers": True, "no_responders": True, "echo": False}
        self.send(b"CONNECT %b\r\nSUB orders.> 7\r\nPING\r\n" % json.dumps(options).encode())
        while ("PONG",) not in self.events:
            self.receive()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> None:
        data = self._socket.recv(1 << 16)
        assert data, "the server cut the connection"
        events = self.intake.feed(data, 1)
        self.events += events
        for event in events:
            assert event[0] != "ERR", event
            if event == ("PING",):
                self.send(b"PONG\r\n")

    def receive_messages(self, count: int) -> None:
        while self.intake.counters["messages"] < count:
            self.receive()

    def rows(self) -> list[dict[str, Any]]:
        pending = self.target.take()
        self.send(pending.acks(100) + self.intake.refusals())
        rows: list[dict[str, Any]] = decode_batch(
            pending.compose(first_offset=100, leader_epoch=0, high_watermark=0)
        ).to_pylist()
        return rows

    def close(self) -> None:
        self._socket.close()


def test_a_stock_client_gets_its_acks_and_errors(twin: ModuleType, server: NatsServer) -> None:
    subscriber = Subscriber(twin, server, record_bytes_max=2000)

    async def publish() -> None:
        client = await nats.connect(server.url)
        js = client.jetstream(timeout=WAIT_S)
        await client.publish("orders.plain", b"no reply")
        stored = asyncio.ensure_future(
            js.publish("orders.eu.1", b"\r\nvalue", headers={"Liftlog-Key": "k", "X": "y z"})
        )
        refused = asyncio.ensure_future(js.publish("orders.big", bytes(3000)))
        last = {"Nats-Expected-Stream": "another"}
        conditional = asyncio.ensure_future(js.publish("orders.last", b"", headers=last))
        await asyncio.to_thread(subscriber.receive_messages, 4)
        rows = await asyncio.to_thread(subscriber.rows)
        ack = await stored
        assert (ack.stream, ack.seq, bool(ack.duplicate)) == ("orders", 102, False)
        with pytest.raises(nats.js.errors.BadRequestError, match="record_too_large"):
            await refused
        with pytest.raises(nats.js.errors.BadRequestError) as raised:
            await conditional
        assert raised.value.err_code == 10060
        assert [(row["subject"], row["key"], row["value"]) for row in rows] == [
            ("orders.plain", None, b"no reply"),
            ("orders.eu.1", b"k", b"\r\nvalue"),
        ]
        assert rows[1]["headers"] == [{"key": "Liftlog-Key", "value": b"k"}, {"key": "X", "value": b"y z"}]
        await client.close()

    try:
        asyncio.run(publish())
    finally:
        subscriber.close()
    assert [event[0] for event in subscriber.events[:2]] == ["INFO", "OK"]
    assert json.loads(subscriber.events[0][1])["headers"] is True


def test_the_longest_reply_subject_that_is_answered_does_not_cost_the_connection(
    twin: ModuleType, server: NatsServer
) -> None:
    """The server cuts who sends a longer control line than it allows: 4096 bytes, by default."""
    subscriber = Subscriber(twin, server)

    async def publish() -> None:
        client = await nats.connect(server.url)
        reply = "r" * 4084  # "PUB orders.a <reply> 1" is then as long as allowed
        answers: asyncio.Queue[Any] = asyncio.Queue()

        async def take(message: Any) -> None:
            answers.put_nowait(message)

        short = reply[:4000]
        await client.subscribe(short, cb=take)
        await flush(client, 60)
        await client.publish("orders.a", b"1", reply=short)
        await client.publish("orders.a", b"1", reply=reply)
        await flush(client, 60)
        await asyncio.to_thread(subscriber.receive_messages, 2)
        assert len(await asyncio.to_thread(subscriber.rows)) == 2
        message = await asyncio.wait_for(answers.get(), WAIT_S)
        assert json.loads(message.data)["seq"] == 101
        await client.close()

    try:
        asyncio.run(publish())
        subscriber.events.clear()
        subscriber.send(b"PING\r\n")
        while ("PONG",) not in subscriber.events:
            subscriber.receive()
    finally:
        subscriber.close()


def test_a_flood_through_a_real_socket_loses_nothing(twin: ModuleType, server: NatsServer) -> None:
    count = 20_000
    subscriber = Subscriber(twin, server)
    publisher = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
    try:
        publisher.sendall(b'CONNECT {"headers": true, "verbose": false}\r\n')
        block = b"NATS/1.0\r\nLiftlog-Key: k\r\n\r\n"
        wire = []
        for i in range(count):
            value = b"%d" % i * (i % 40)
            if i % 3:
                wire.append(b"PUB orders.%d %d\r\n%b\r\n" % (i % 10, len(value), value))
            else:
                sizes = (i % 10, len(block), len(block) + len(value), block, value)
                wire.append(b"HPUB orders.%d %d %d\r\n%b%b\r\n" % sizes)
        publisher.sendall(b"".join(wire))
        subscriber.receive_messages(count)
        rows = subscriber.rows()
    finally:
        publisher.close()
        subscriber.close()
    assert [row["value"] for row in rows] == [b"%d" % i * (i % 40) for i in range(count)]
    assert [row["key"] for row in rows] == [None if i % 3 else b"k" for i in range(count)]
