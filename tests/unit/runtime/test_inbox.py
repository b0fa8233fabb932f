"""W1 to W4 of broker/intake/inbox.py, over real sockets."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from broker.intake.inbox import Inbox
from tests.support.waiting import DEADLINE_S, until

BLOCK = 1000


def for_the_reader(data: memoryview) -> bool:
    raise AssertionError("nobody waits")


@asynccontextmanager
async def opened(
    take_in: Callable[[memoryview], bool] = for_the_reader,
    ours: socket.socket | None = None,
    theirs: socket.socket | None = None,
) -> AsyncIterator[tuple[Inbox, asyncio.StreamWriter, socket.socket]]:
    """An inbox, the sending half of its connection, and the other end."""
    if ours is None or theirs is None:
        ours, theirs = socket.socketpair()
    _reader, writer = await asyncio.open_connection(sock=ours)
    transport, protocol = writer.transport, writer.transport.get_protocol()
    assert isinstance(transport, asyncio.Transport)
    assert isinstance(protocol, asyncio.StreamReaderProtocol)
    inbox = Inbox(transport, protocol, BLOCK, take_in)
    transport.set_protocol(inbox)
    theirs.setblocking(False)
    try:
        yield inbox, writer, theirs
    finally:
        writer.close()
        theirs.close()


async def taken(inbox: Inbox) -> bytes:
    return bytes(await asyncio.wait_for(inbox.take(), DEADLINE_S))


@pytest.mark.parametrize("seed", range(5))
async def test_what_is_sent_arrives_once_and_in_order_by_either_way_whatever_the_pace(seed: int) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(400_000)
    got = bytearray()
    ways = [0, 0]
    is_waiting = False

    def take_in(piece: memoryview) -> bool:
        nonlocal is_waiting
        assert is_waiting, "W4"
        assert len(piece)
        got.extend(piece)
        ways[0] += 1
        is_waiting = rng.random() < 0.5
        return is_waiting

    async def send() -> None:
        at = 0
        while at < len(data):
            size = rng.choice((1, 7, BLOCK, 3 * BLOCK, 50_000))
            await asyncio.get_running_loop().sock_sendall(theirs, data[at : at + size])
            at += size
            if rng.random() < 0.5:
                sent = min(at, len(data))
                await until(lambda sent=sent: len(got) == sent and is_waiting, "the reader waits")  # type: ignore[misc]
        theirs.shutdown(socket.SHUT_WR)

    async with opened(take_in) as (inbox, _, theirs):
        sending = asyncio.create_task(send())
        while not inbox.at_end():
            is_waiting = True
            piece = await asyncio.wait_for(inbox.take(), DEADLINE_S)
            is_waiting = False
            before = bytes(piece)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)  # more arrives meanwhile
            assert piece == before, "W1"
            got.extend(piece)
            ways[1] += bool(piece)
        await sending
        assert got == data
        assert min(ways) > 0


async def test_a_reader_sleeps_on_until_something_is_left_to_it() -> None:
    done: list[bytes] = []

    def take_in(piece: memoryview) -> bool:
        done.append(bytes(piece))
        return len(done) < 3

    async with opened(take_in) as (inbox, _, theirs):
        waiting = asyncio.create_task(taken(inbox))
        await until(lambda: inbox._taker is not None, "the reader waits")
        for i, piece in enumerate((b"a", b"b"), 1):
            theirs.send(piece)
            await until(lambda i=i: len(done) == i, "it has been taken in")  # type: ignore[misc]
            assert not waiting.done()
        theirs.send(b"c")
        assert await waiting == b""
        assert done == [b"a", b"b", b"c"]
        assert not inbox.at_end()
        theirs.send(b"d")
        await until(lambda: inbox._filled == 1, "it is there")
        assert await taken(inbox) == b"d"
        assert len(done) == 3


async def test_an_error_of_take_in_is_the_readers_and_what_follows_waits_for_its_next_turn() -> None:
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))

    def take_in(piece: memoryview) -> bool:
        raise ValueError(bytes(piece))

    async with opened(take_in) as (inbox, writer, theirs):
        waiting = asyncio.create_task(taken(inbox))
        await until(lambda: inbox._taker is not None, "the reader waits")
        theirs.send(b"wrong")
        with pytest.raises(ValueError, match="wrong"):
            await waiting
        theirs.send(b"next")
        await until(lambda: inbox._filled == 4, "it is there")
        assert await taken(inbox) == b"next"
        assert writer.transport.is_reading()  # type: ignore[attr-defined]
    assert not failed


async def test_a_full_block_stops_the_reading_until_it_is_taken() -> None:
    async with opened() as (inbox, writer, theirs):
        await asyncio.get_running_loop().sock_sendall(theirs, b"a" * (5 * BLOCK))
        await until(lambda: not writer.transport.is_reading(), "the block is full")  # type: ignore[attr-defined]
        first = await asyncio.wait_for(inbox.take(), DEADLINE_S)
        await until(lambda: not writer.transport.is_reading(), "the other block is full")  # type: ignore[attr-defined]
        assert first == b"a" * BLOCK
        for _ in range(4):
            assert await taken(inbox) == b"a" * BLOCK
        assert writer.transport.is_reading()  # type: ignore[attr-defined]


async def test_the_end_wakes_the_reader_after_what_came_before_it() -> None:
    done = bytearray()

    def take_in(piece: memoryview) -> bool:
        done.extend(piece)
        return True

    async with opened(take_in) as (inbox, _, theirs):
        waiting = asyncio.create_task(taken(inbox))
        await until(lambda: inbox._taker is not None, "the reader waits")
        theirs.send(b"last words")
        theirs.close()
        assert await waiting == b""
        assert inbox.at_end()
        assert done == b"last words"


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
    async with opened(ours=ours, theirs=theirs) as (inbox, _, _):
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
