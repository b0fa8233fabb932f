"""The private parts of nats-py that the intake stands on. Fails first when a new nats-py changes them."""

from __future__ import annotations

import asyncio
import inspect
import socket
from pathlib import Path
from typing import Any

import nats
import nats.aio.client
import nats.aio.transport
import pytest

from broker.ingest import Builder, Intake
from broker.intake.nats_seam import ParserSeam, WideTransport, barrier, make_client
from tests.support.processes import NatsServer, frozen

pytestmark = pytest.mark.process


def _no() -> bool:
    return False


async def _nothing() -> None:
    return None


def test_client_has_the_parts_that_are_replaced_or_called() -> None:
    client = nats.aio.client.Client()
    assert hasattr(client._ps, "parse")
    assert hasattr(client._ps, "reset")
    assert client._sid == 0
    assert client._subs == {}
    for name in ("_process_ping", "_process_pong", "_process_err", "_process_info"):
        assert inspect.iscoroutinefunction(getattr(client, name)), name
    source = inspect.getsource(nats.aio.client.Client._read_loop)
    assert "await self._ps.parse(b)" in source
    assert "self._transport.read(" in source
    assert source.index("self._transport.at_eof()") < source.index(
        "self._transport.read("
    )  # what is empty is not the end
    for name in ("_process_op_err", "force_reconnect"):
        source = inspect.getsource(getattr(nats.aio.client.Client, name))
        assert source.index("self._status = Client.RECONNECTING") < source.index("self._ps.reset()")
    assert "if not self._transport" in inspect.getsource(nats.aio.client.Client._connect_to_server)
    assert issubclass(WideTransport, nats.aio.transport.TcpTransport)
    seam = ParserSeam(client, Intake(), lambda n: None, _no, _nothing)
    assert {"_io_reader", "_io_writer"} <= vars(WideTransport(seam)).keys()
    assert not client.is_reconnecting


async def test_messages_reach_the_builders_and_control_operations_reach_nats_py(tmp_path: Path) -> None:
    server = NatsServer(tmp_path).start()
    intake = Intake()
    fed: list[int] = []
    client = make_client(intake, fed.append, _no, _nothing, wide=True)
    builder = Builder(
        stream="s",
        partition=0,
        partition_count=1,
        reply_acks=True,
        default_ack="all",
        record_bytes_max=1 << 20,
        batch_bytes=1 << 20,
        batch_records=1000,
    )
    try:
        await client.connect(server.url)
        assert isinstance(client._transport, WideTransport)
        sock = client._transport._io_writer.get_extra_info("socket")
        if hasattr(socket, "TCP_CONGESTION"):  # acks over loopback are not paced
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
        intake.route(client._sid + 1, [builder], partition_by="subject_suffix")
        subscription = await client.subscribe("s")
        assert subscription._id == 1
        await barrier(client, 60)
        publisher = await nats.connect(server.url)
        for i in range(100):
            await publisher.publish("s", b"%d" % i, reply="r")
        await barrier(publisher, 60)
        await barrier(publisher, 60)  # nats-py's PING may overtake what it still holds; the second one cannot
        await publisher.close()
        await barrier(client, 60)  # UNSUB/PING/PONG as drain barrier: all that was sent before has been parsed
        assert builder.record_count == 100
        assert builder.awaited_count == 100
        assert client._transport._inbox is not None  # what is read is parsed where it lies
        assert sum(fed) > 100
        await subscription.unsubscribe()
        await barrier(client, 60)
    finally:
        await client.close()
        server.stop()


async def test_a_barrier_comes_after_the_commands_before_it() -> None:
    """By a server that writes down what it is told: nats-py alone sends PING first."""
    told: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"s","version":"2.11.0","headers":true,"max_payload":1048576}\r\n')
        while line := await reader.readline():
            told.append(line.split()[0])
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = make_client(Intake(), lambda n: None, _no, _nothing, wide=True)
    try:
        await client.connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for _ in range(20):
            subscription = await client.subscribe("s")
            await subscription.unsubscribe()
            await barrier(client, 60)
    finally:
        await client.close()
        server.close()
    assert told[:2] == [b"CONNECT", b"PING"]
    assert told[2:62] == [b"SUB", b"UNSUB", b"PING"] * 20


async def test_the_late_answer_to_a_barrier_that_gave_up_does_not_end_the_reading(tmp_path: Path) -> None:
    server = NatsServer(tmp_path).start()
    intake = Intake()
    client = make_client(intake, lambda n: None, _no, _nothing, wide=True)
    try:
        await client.connect(server.url)
        await client.subscribe("s")
        await barrier(client, 60)
        with frozen(server.process.popen.pid), pytest.raises(TimeoutError):
            await barrier(client, 0.2)
        publisher = await nats.connect(server.url)
        await publisher.publish("s", b"x")
        await barrier(publisher, 60)
        await barrier(publisher, 60)
        await publisher.close()
        await barrier(client, 60)
        assert client.is_connected
        assert intake.counters["unrouted"] == 1
    finally:
        await client.close()
        server.stop()


async def test_a_barrier_waits_while_the_disk_holds_up_the_reading(tmp_path: Path) -> None:
    server = NatsServer(tmp_path).start()
    intake = Intake()
    held, go = asyncio.Event(), asyncio.Event()
    go.set()

    async def may_read() -> None:
        held.set()
        await go.wait()

    client = make_client(intake, lambda n: None, lambda: not go.is_set(), may_read, wide=True)
    try:
        await client.connect(server.url)
        await client.subscribe("s")
        await barrier(client, 60)
        go.clear()
        held.clear()
        publisher = await nats.connect(server.url)
        await publisher.publish("s", b"x")
        await publisher.flush()
        await asyncio.wait_for(held.wait(), 60)
        waiting = asyncio.create_task(barrier(client, 0.2))
        _, pending = await asyncio.wait((waiting,), timeout=1.0)
        assert pending, waiting.exception()
        await publisher.publish("s", b"y")
        await publisher.close()
        go.set()
        await asyncio.wait_for(waiting, 60)
    finally:
        go.set()
        await client.close()
        server.stop()


async def test_a_barrier_ends_when_the_connection_is_lost(tmp_path: Path) -> None:
    server = NatsServer(tmp_path).start()
    client = make_client(Intake(), lambda n: None, _no, _nothing, wide=True)
    try:
        await client.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)  # type: ignore[arg-type]
        with frozen(server.process.popen.pid):
            waiting = asyncio.create_task(barrier(client, 1.0))
            await asyncio.sleep(0)
            server.kill9()
        with pytest.raises((OSError, TimeoutError)):
            await asyncio.wait_for(waiting, 60)
    finally:
        await client.close()
        server.stop()


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_barrier_ends_at_once_when_the_connection_is_lost(comes_back: bool) -> None:
    """Others wait behind it: what is begun meanwhile is not captured before it has ended."""
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        if asked > 1 and not comes_back:
            writer.transport.abort()
            return
        writer.write(b'INFO {"server_id":"s","version":"2.11.0","headers":true,"max_payload":1048576}\r\n')
        while line := await reader.readline():
            asked += line == b"PING\r\n"
            if asked == 2 and line == b"PING\r\n":
                break
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = make_client(Intake(), lambda n: None, _no, _nothing, wide=True)
    try:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await client.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)  # type: ignore[arg-type]
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(barrier(client, 600), 30)
    finally:
        await client.close()
        server.close()


async def test_a_fault_of_ours_leads_to_a_reconnect(tmp_path: Path) -> None:
    """nats-py would end its read loop, and nobody would notice for minutes."""
    server = NatsServer(tmp_path).start()
    intake = Intake()
    reconnected = asyncio.Event()
    faults = [ZeroDivisionError("a fault")]

    def after_feed(byte_count: int) -> None:
        if intake.counters["unrouted"] and faults:
            raise faults.pop()

    async def on_reconnected() -> None:
        reconnected.set()

    client: Any = make_client(intake, after_feed, _no, _nothing, wide=True)
    try:
        await client.connect(
            server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, reconnected_cb=on_reconnected
        )
        await client.subscribe("s")
        await barrier(client, 60)
        publisher = await nats.connect(server.url)
        await publisher.publish("s", b"x")
        await publisher.flush()
        await asyncio.wait_for(reconnected.wait(), 60)
        await barrier(client, 60)
        await publisher.publish("s", b"x")
        await barrier(publisher, 60)
        await barrier(publisher, 60)
        await publisher.close()
        await barrier(client, 60)
        assert intake.counters["unrouted"] == 2
    finally:
        await client.close()
        server.stop()


async def test_reconnect_replays_subscriptions_with_their_ids(tmp_path: Path) -> None:
    server = NatsServer(tmp_path).start()
    intake = Intake()
    reconnected = asyncio.Event()

    async def on_reconnected() -> None:
        reconnected.set()

    client: Any = make_client(intake, lambda n: None, _no, _nothing, wide=True)
    try:
        await client.connect(
            server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, reconnected_cb=on_reconnected
        )
        await client.subscribe("s")
        await barrier(client, 60)
        server.kill9()
        server.start()
        await asyncio.wait_for(reconnected.wait(), 60)
        await barrier(client, 60)  # the server has its subscription again
        publisher = await nats.connect(server.url)
        await publisher.publish("s", b"x")
        await barrier(publisher, 60)
        await publisher.close()
        await barrier(client, 60)
        assert intake.counters["unrouted"] == 1
    finally:
        await client.close()
        server.stop()
