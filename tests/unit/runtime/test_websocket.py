"""S1 and S2 of broker/intake/websocket.py: acks over WebSocket, which nats-py kept until its next PING.

Method: nats-py as it is, against a server over WebSocket that a test has in its hands; and a real nats-server with a
driver that takes in a stream: tests/cluster/test_websocket.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from broker.config.configuration import load
from broker.ingest import Intake
from broker.intake.driver import WRITE_PENDING_BYTES_MAX, IntakeDriver
from broker.intake.nats_seam import barrier, make_client
from broker.intake.websocket import SendingWebSocket
from tests.support.waiting import until
from tests.unit.runtime.test_partition import HeldPool, pool
from tests.unit.runtime.test_take_in import INFO, MESSAGE

__all__ = ["pool"]  # a fixture
ACK = b"PUB _INBOX.x 3\r\nack\r\n"


class Rig:
    """A client at a server.

    Attributes:
        said: What the client has said on each connection.
        connections: The server's ends.
        reads: While it is set the server reads.
    """

    def __init__(self) -> None:
        self.said: list[bytearray] = []
        self.connections: list[web.WebSocketResponse] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.greets = asyncio.Event()
        self.greets.set()
        self.intake = Intake()
        self.client: Any = make_client(self.intake, lambda _: None, lambda: False, self._may_read, wide=False)

    async def _may_read(self) -> None:
        pass

    @property
    def transport(self) -> SendingWebSocket:
        assert isinstance(self.client._transport, SendingWebSocket)
        return self.client._transport

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        connection = web.WebSocketResponse(max_msg_size=0)
        await connection.prepare(request)
        number = len(self.connections)
        self.connections.append(connection)
        self.said.append(bytearray())
        await self.greets.wait()
        await connection.send_bytes(INFO)
        while (message := await connection.receive()).type == WSMsgType.BINARY:
            self.said[number] += message.data
            if message.data.endswith(b"PING\r\n"):
                await connection.send_bytes(b"PONG\r\n")
            await self.reads.wait()
        return connection


@asynccontextmanager
async def connected() -> AsyncIterator[Rig]:
    rig = Rig()
    app = web.Application()
    app.router.add_get("/", rig.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        await rig.client.connect(f"ws://{host}:{port}/", reconnect_time_wait=0.01, max_reconnect_attempts=-1)
        yield rig
    finally:
        rig.reads.set()
        rig.greets.set()
        await rig.client.close()
        await runner.cleanup()


async def test_what_is_written_is_sent_and_what_comes_is_taken_in() -> None:
    async with connected() as rig:
        rig.transport.write(ACK)
        await until(lambda: ACK in rig.said[0], "the ack is there")
        await rig.connections[0].send_bytes(MESSAGE)
        await barrier(rig.client, 30)
        assert rig.intake.counters["unrouted"] == 1


async def test_nothing_of_before_comes_on_a_new_connection() -> None:
    async with connected() as rig:
        rig.greets.clear()
        await rig.connections[0].close()
        await until(lambda: len(rig.connections) == 2, "there is another connection")
        rig.transport._pending.put_nowait(ACK)  # as it was left by one that ended amid its sends
        rig.transport._waiting_bytes += len(ACK)
        await rig.connections[1].close()
        rig.greets.set()
        await until(lambda: rig.client.is_connected and b"PING" in rig.said[-1], "it has greeted")
        await barrier(rig.client, 30)
        assert all(said.startswith(b"CONNECT ") or not said for said in rig.said)
        assert ACK not in b"".join(rig.said)
        assert rig.transport.write_buffer_bytes() == 0
        rig.transport.write(ACK)
        await until(lambda: ACK in rig.said[-1], "what is written now is sent")


async def test_who_flushes_hears_that_nothing_can_be_sent() -> None:
    async with connected() as rig:
        transport = rig.transport
        await rig.client.close()
        transport.write(ACK)
        with pytest.raises(ConnectionResetError):
            await transport.drain()
        assert transport.write_buffer_bytes() == 0


async def test_a_server_that_takes_nothing_is_told_no_more_acks(pool: HeldPool) -> None:
    driver = IntakeDriver(load(None, {}), pool)
    async with connected() as rig:
        driver._client = rig.client
        rig.reads.clear()
        line = bytes(1023) + b"\n"
        for _ in range(8 * WRITE_PENDING_BYTES_MAX // (64 << 10)):
            rig.transport.write(line * 64)
        assert driver._is_held_up()
        driver._tell_inbox(ACK)
        assert driver.counts["inboxes_not_told"] == 1
        rig.reads.set()
        await driver._may_read()
        assert not driver._is_held_up()
        assert rig.transport.write_buffer_bytes() == 0
        driver._tell_inbox(ACK)
        await until(lambda: rig.said[0].endswith(ACK), "it is told again")
    driver._loop.close()
