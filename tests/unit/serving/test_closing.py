"""The end of a connection that is cut, on a real loop: its client may be gone before our side is shut.

Method: the client resets, and its reset has come, at the moment in which all is sent and the sending side is about to
be shut. asyncio logs whatever a callback raises.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from broker.serving.http.closing import ClosingConnection
from tests.support.waiting import DEADLINE_S, until

NO_LINGER = struct.pack("ii", 1, 0)
"""With it a close is a reset."""


async def accepted() -> tuple[asyncio.Transport, socket.socket]:
    """Both ends of a connection."""
    loop = asyncio.get_running_loop()
    taken: asyncio.Future[Any] = loop.create_future()

    class Serving(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            taken.set_result(transport)

    server = await loop.create_server(Serving, "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname())
    client.setblocking(False)
    transport = await taken
    server.close()
    return transport, client


def reset(client: socket.socket, transport: asyncio.Transport) -> None:
    """Reset the connection; return once the other end could know."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
    client.close()
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLHUP | select.POLLERR)
    assert poll.poll(DEADLINE_S * 1000), "the reset does not come"


class Watched(ClosingConnection):
    """Does something just before our side is shut."""

    def __init__(
        self, transport: asyncio.Transport, others: set[ClosingConnection], before: Callable[[], None]
    ) -> None:
        self.lost: list[Exception | None] = []
        self.shut = 0
        self._before = before
        super().__init__(transport, others, self.lost.append)

    def _shut(self) -> None:
        self.shut += 1
        self._before()
        super()._shut()


@pytest.mark.parametrize("size", [100, 16 << 20], ids=["sent at once", "sent bit by bit"])
async def test_a_client_that_resets_before_our_side_is_shut_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture, size: int
) -> None:
    transport, client = await accepted()
    others: set[ClosingConnection] = set()
    ending = Watched(transport, others, lambda: reset(client, transport))
    with caplog.at_level(logging.WARNING):
        ending.begin(b"x" * size)
        while not ending.shut and not ending.lost:
            with suppress(BlockingIOError):
                client.recv(1 << 20)
            await asyncio.sleep(0)
        await until(lambda: bool(ending.lost), "it does not end")
    assert ending.shut == 1
    assert not others
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_client_that_resets_while_words_are_on_their_way_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport, client = await accepted()
    others: set[ClosingConnection] = set()
    ending = Watched(transport, others, lambda: None)
    with caplog.at_level(logging.WARNING):
        ending.begin(b"x" * (16 << 20))
        assert others == {ending}
        reset(client, transport)
        await until(lambda: bool(ending.lost), "it does not end")
    assert (ending.shut, others) == (0, set())
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_client_that_reads_to_the_end_hears_all_of_it(caplog: pytest.LogCaptureFixture) -> None:
    transport, client = await accepted()
    ending = Watched(transport, set(), lambda: None)
    with caplog.at_level(logging.WARNING):
        ending.begin(b"x" * (4 << 20))
        heard = 0
        while found := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
            heard += len(found)
        client.close()
        await until(lambda: bool(ending.lost), "it does not end")
    assert (heard, ending.lost) == (4 << 20, [None])
    assert [record.getMessage() for record in caplog.records] == []
