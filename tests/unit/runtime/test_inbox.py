"""W1 to W3 of broker/runtime/inbox.py, over real sockets."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from broker.runtime.inbox import Inbox

BLOCK = 1000
DEADLINE_S = 60


@asynccontextmanager
async def opened(
    ours: socket.socket | None = None, theirs: socket.socket | None = None
) -> AsyncIterator[tuple[Inbox, asyncio.StreamWriter, socket.socket]]:
    """An inbox, the sending half of its connection, and the other end."""
    if ours is None or theirs is None:
        ours, theirs = socket.socketpair()
    _reader, writer = await asyncio.open_connection(sock=ours)
    transport, protocol = writer.transport, writer.transport.get_protocol()
    assert isinstance(transport, asyncio.Transport)
    assert isinstance(protocol, asyncio.StreamReaderProtocol)
    inbox = Inbox(transport, protocol, BLOCK)
    transport.set_protocol(inbox)
    theirs.setblocking(False)
    try:
        yield inbox, writer, theirs
    finally:
        writer.close()
        theirs.close()


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(DEADLINE_S * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {DEADLINE_S} s: {what}")


async def taken(inbox: Inbox) -> bytes:
    return bytes(await asyncio.wait_for(inbox.take(), DEADLINE_S))


@pytest.mark.parametrize("seed", range(5))
async def test_what_is_sent_is_taken_byte_for_byte_whatever_the_pace(seed: int) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(400_000)

    async def send() -> None:
        at = 0
        while at < len(data):
            size = rng.choice((1, 7, BLOCK, 3 * BLOCK, 50_000))
            await asyncio.get_running_loop().sock_sendall(theirs, data[at : at + size])
            at += size
        theirs.shutdown(socket.SHUT_WR)

    async with opened() as (inbox, _, theirs):
        sending = asyncio.create_task(send())
        got = bytearray()
        while piece := await asyncio.wait_for(inbox.take(), DEADLINE_S):
            before = bytes(piece)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)  # more arrives meanwhile
            assert piece == before, "W1"
            got += piece
        await sending
        assert got == data
        assert inbox.at_end()


async def test_a_full_block_stops_the_reading_until_it_is_taken() -> None:
    async with opened() as (inbox, writer, theirs):
        await asyncio.get_running_loop().sock_sendall(theirs, b"a" * (5 * BLOCK))
        first = await asyncio.wait_for(inbox.take(), DEADLINE_S)
        await until(lambda: not writer.transport.is_reading(), "the other block is full")  # type: ignore[attr-defined]
        assert first == b"a" * BLOCK
        for _ in range(4):
            assert await taken(inbox) == b"a" * BLOCK
        assert writer.transport.is_reading()  # type: ignore[attr-defined]


async def test_what_came_before_the_end_or_an_error_is_taken_first() -> None:
    async with opened() as (inbox, _, theirs):
        theirs.send(b"last words")
        theirs.close()
        await until(lambda: inbox._is_ended, "the end has come")
        assert not inbox.at_end()
        assert await taken(inbox) == b"last words"
        assert inbox.at_end()
        assert await taken(inbox) == b""


async def test_a_lost_connection_is_an_error_to_who_waits_and_to_who_asks_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    async with opened(ours, theirs) as (inbox, _, _):
        waiting = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends by RST
        theirs.close()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(waiting, DEADLINE_S)
        with pytest.raises(ConnectionResetError):
            await taken(inbox)


async def test_a_taker_that_gives_up_loses_nothing() -> None:
    async with opened() as (inbox, _, theirs):
        waiting = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        waiting.cancel()
        theirs.send(b"still here")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await taken(inbox) == b"still here"


async def test_the_writer_still_waits_for_a_peer_that_does_not_read() -> None:
    async with opened() as (_, writer, theirs):
        sent = 32 << 20
        writer.write(bytes(sent))
        draining = asyncio.create_task(writer.drain())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not draining.done()
        received = 0
        while received < sent:
            received += len(await asyncio.get_running_loop().sock_recv(theirs, 1 << 20))
        await asyncio.wait_for(draining, DEADLINE_S)
