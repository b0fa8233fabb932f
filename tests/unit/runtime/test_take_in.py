"""P1 to P4 of broker/intake/nats_seam.py: what a callback takes in, and what nats-py is woken for.

Method: nats-py as it is, against a server that sends what a test tells it to, chunk by chunk; over TCP and TLS.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import nats.errors
import pytest
import trustme

from broker.ingest import Intake
from broker.intake.inbox import Inbox
from broker.intake.nats_seam import READ_BYTES, barrier, make_client
from tests.support.waiting import DEADLINE_S, until

MESSAGE = b"MSG s 1 5\r\nhello\r\n"
BEGUN = b"MSG s 1 64\r\nbegun on a connection that ends"
INFO = b'INFO {"server_id":"s","version":"2.11.0","headers":true,"max_payload":1048576}\r\n'


class Rig:
    """A client at a scripted server.

    Attributes:
        connections: The server's ends, in the order in which they were made.
        ended: Those whose other end is gone.
        events: `fed` for each chunk, and what a test adds.
        by_loop: For each chunk, whether a callback of the event loop took it in.
        fed_bytes: Bytes of all chunks.
        waits: How often the read loop began to wait in `may_read`.
    """

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self.ended: list[asyncio.StreamWriter] = []
        self.events: list[str] = []
        self.by_loop: list[bool] = []
        self.fed_bytes = 0
        self.waits = 0
        self.reconnects = 0
        self.held_up = False
        self.go = asyncio.Event()
        self.faults: list[Exception] = []
        self.intake = Intake()
        self.client: Any = make_client(self.intake, self._after_feed, lambda: self.held_up, self._may_read, wide=True)

    def _after_feed(self, byte_count: int) -> None:
        if byte_count:
            self.events.append("fed")
            self.by_loop.append(asyncio.current_task() is None)
            self.fed_bytes += byte_count
            if self.faults:
                raise self.faults.pop()

    async def _may_read(self) -> None:
        if self.held_up:
            self.waits += 1
            await self.go.wait()

    async def on_reconnected(self) -> None:
        self.reconnects += 1

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        writer.write(INFO)
        try:
            while line := await reader.readline():
                if line == b"PING\r\n":
                    writer.write(b"PONG\r\n")
        except OSError:
            pass
        finally:
            self.ended.append(writer)
            writer.close()

    @property
    def inbox(self) -> Inbox:
        assert self.client._transport._inbox is not None
        return self.client._transport._inbox  # type: ignore[no-any-return]

    @property
    def count(self) -> int:
        """Messages that have been parsed."""
        return self.intake.counters["unrouted"]

    def arrive(self, data: bytes) -> None:
        """Do as the event loop does when data has come, in this very turn of it."""
        self.inbox.get_buffer(-1)[: len(data)] = data
        self.inbox.buffer_updated(len(data))

    def send(self, data: bytes) -> None:
        """On the newest connection."""
        self.connections[-1].write(data)

    async def idle(self) -> None:
        """Until nats-py's read loop waits for more: what comes next is the callback's."""

        def waits() -> bool:
            inbox = self.client._transport._inbox
            return inbox is not None and inbox._taker is not None and not inbox._taker.done()

        await until(waits, "nats-py's read loop waits")

    async def receive(self, data: bytes) -> None:
        """Send, and wait until it has been taken in."""
        before = self.fed_bytes
        self.send(data)
        await until(lambda: self.fed_bytes >= before + len(data), f"{data!r} has been taken in")


@asynccontextmanager
async def connected(*, tls: bool = False) -> AsyncIterator[Rig]:
    """A rig whose read loop waits; afterwards it is held that nothing failed in a callback of the event loop."""
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    rig = Rig()
    ours = theirs = None
    if tls:
        authority = trustme.CA()
        theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1", "localhost").configure_cert(theirs)
        ours = ssl.create_default_context()
        authority.configure_trust(ours)
    server = await asyncio.start_server(rig.serve, "127.0.0.1", 0, ssl=theirs)
    scheme = "tls" if tls else "nats"
    try:
        await rig.client.connect(
            f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}",
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.05,
            reconnected_cb=rig.on_reconnected,
            tls=ours,
            tls_handshake_first=tls,
        )
        await barrier(rig.client, DEADLINE_S)
        await rig.idle()
        rig.events.clear()
        rig.by_loop.clear()
        yield rig
        await barrier(rig.client, DEADLINE_S)
    finally:
        rig.go.set()
        await rig.client.close()
        server.close()
    assert not failed


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
async def test_while_nats_py_waits_a_callback_takes_in_what_comes(tls: bool) -> None:
    async with connected(tls=tls) as rig:
        waiting = rig.inbox._taker
        for i in range(1, 4):
            before_s = rig.client._ps.read_s
            await rig.receive(MESSAGE)
            assert rig.by_loop == [True] * i
            assert rig.count == i
            assert rig.client._ps.read_s > before_s
        rig.send(MESSAGE[:7])
        await until(lambda: rig.by_loop == [True] * 4, "half a message has been taken in")
        await rig.receive(MESSAGE[7:])
        assert rig.count == 4
        assert rig.inbox._taker is waiting  # nats-py's read loop has slept all the time


async def test_control_operations_are_handled_in_order_and_before_what_comes_later_is_parsed() -> None:
    async with connected() as rig:
        go = asyncio.Event()

        def recorded(name: str, handler: Any) -> Callable[..., Awaitable[None]]:
            async def handle(*args: Any) -> None:
                rig.events.append(name)
                await go.wait()
                await handler(*args)

            return handle

        for name in ("ping", "pong", "info"):
            setattr(rig.client, f"_process_{name}", recorded(name, getattr(rig.client, f"_process_{name}")))
        chunk = MESSAGE + b"PING\r\n" + MESSAGE + INFO + b"PONG\r\n" + MESSAGE
        await rig.receive(chunk)
        await until(lambda: "ping" in rig.events, "the first operation is being handled")
        rig.send(MESSAGE)
        await until(lambda: rig.inbox._filled == len(MESSAGE), "the next chunk is there")
        assert rig.events == ["fed", "ping"]
        assert rig.count == 3
        go.set()
        await until(lambda: rig.count == 4, "the next chunk has been parsed")
        assert rig.events == ["fed", "ping", "info", "pong", "fed"]
        assert rig.by_loop == [True, False]
        await rig.idle()
        await rig.receive(MESSAGE)
        assert rig.by_loop == [True, False, True]


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
async def test_while_held_up_nothing_is_parsed_nor_read_and_then_all_is(tls: bool) -> None:
    flood = MESSAGE * (16 * READ_BYTES // len(MESSAGE))
    async with connected(tls=tls) as rig:
        rig.held_up = True
        await rig.receive(MESSAGE)
        await until(lambda: rig.waits == 1, "the read loop waits")
        assert rig.client._ps.is_busy
        rig.send(flood)
        transport = rig.client._transport._io_writer.transport
        await until(lambda: not transport.is_reading(), "the socket is not read")
        assert rig.inbox._filled == READ_BYTES
        assert rig.count == 1
        rig.held_up = False
        rig.go.set()
        await until(lambda: rig.fed_bytes >= len(MESSAGE) + len(flood), "all has been parsed")
        assert rig.count == 1 + 16 * READ_BYTES // len(MESSAGE)
        await rig.idle()
        await rig.receive(MESSAGE)
        assert rig.by_loop[0]
        assert rig.by_loop[-1]
        assert rig.waits == 1


@pytest.mark.parametrize(
    "fault",
    [
        ZeroDivisionError("a fault"),
        MemoryError("no memory"),
        ConnectionResetError("a socket"),
        b"no NATS\r\n",
        b"-ERR 'Stale Connection'\r\n",
    ],
    ids=str,
)
async def test_what_goes_wrong_in_the_callback_leads_to_one_reconnect(fault: Exception | bytes) -> None:
    async with connected() as rig:
        if isinstance(fault, Exception):
            rig.faults.append(fault)
        await rig.receive(MESSAGE + (fault if isinstance(fault, bytes) else b"PING\r\n") + BEGUN)
        assert rig.by_loop[0]  # on a busy machine more has come by now, on the next connection
        await until(lambda: rig.reconnects == 1, "reconnected")
        await barrier(rig.client, DEADLINE_S)
        await rig.idle()
        before = rig.count
        await rig.receive(MESSAGE)
        assert rig.count == before + 1
        assert rig.by_loop[-1]
        assert len(rig.connections) == 2


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_half_a_message_is_gone_with_its_connection(how: str) -> None:
    async with connected() as rig:
        await rig.receive(MESSAGE + BEGUN)
        assert rig.by_loop == [True]
        if how == "close":
            rig.connections[0].close()
        else:
            rig.connections[0].transport.abort()
        await until(lambda: rig.reconnects == 1, "reconnected")
        await rig.receive(MESSAGE)
        assert rig.count == 2
        assert len(rig.connections) == 2


async def test_the_last_messages_of_a_connection_are_taken_in_before_its_end() -> None:
    async with connected() as rig:
        rig.send(MESSAGE + b"PING\r\n" + MESSAGE)
        rig.connections[0].close()
        await until(lambda: rig.reconnects == 1, "reconnected")
        assert rig.count == 2


async def test_what_still_comes_of_a_connection_that_is_given_up_is_not_taken_in() -> None:
    """In the turn of the loop in which nats-py gives it up (no answer to its PINGs): the callback may come after."""
    async with connected() as rig:
        await rig.receive(MESSAGE + BEGUN)
        await rig.client.force_reconnect()
        rig.arrive(MESSAGE)  # inside of the value that was begun
        await until(lambda: rig.reconnects == 1, "reconnected")
        await rig.receive(MESSAGE)
        assert rig.count == 2
        assert len(rig.connections) == 2


async def test_what_was_left_to_do_of_a_connection_that_is_given_up_is_not_done_on_the_next() -> None:
    async with connected() as rig:
        rig.arrive(MESSAGE + b"-ERR 'of the first connection'\r\n")
        await rig.client.force_reconnect()
        await until(lambda: rig.reconnects == 1, "reconnected")
        await rig.receive(MESSAGE)
        await barrier(rig.client, DEADLINE_S)
        assert rig.client.is_connected
        assert rig.client.last_error is None
        assert rig.count == 2
        assert len(rig.connections) == 2


async def test_a_connection_that_nats_py_leaves_behind_is_ended_and_what_was_half_read_of_it_is_gone() -> None:
    """It does so with one that did not answer in time when it had reconnected: neither closed, nor its reader ended."""
    async with connected() as rig:
        flush = rig.client.flush

        async def fails_once() -> None:
            rig.client.flush = flush
            await rig.receive(MESSAGE + b"PONG\r\n")  # by streams still, as all that comes first
            await rig.idle()
            await rig.receive(BEGUN)
            raise nats.errors.FlushTimeoutError

        rig.client.flush = fails_once
        await rig.client.force_reconnect()
        await until(lambda: rig.reconnects == 1, "reconnected")
        assert len(rig.connections) == 3
        await until(lambda: rig.connections[1] in rig.ended, "the second connection has ended")
        await rig.receive(MESSAGE)
        assert rig.count == 2
        assert len(rig.connections) == 3
