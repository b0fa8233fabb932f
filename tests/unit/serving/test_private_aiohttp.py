"""The private parts of aiohttp that connections and requests stand on. Fails first when a new aiohttp changes them."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import create_autospec

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from broker.serving.http.connections import HttpConnection

HEAD = b"POST /x HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\n"


async def _answer(request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("nobody waits for it")


@pytest.mark.parametrize("name", ["_messages", "_waiter", "_lingering_time", "_loop"])
async def test_a_connection_has(name: str) -> None:
    made = web.RequestHandler(web.Server(_answer), loop=asyncio.get_running_loop(), lingering_time=7.0)
    assert hasattr(made, name), f"aiohttp has no RequestHandler.{name} any more: connections.py and body.py use it"


async def test_what_has_come_waits_with_its_body_and_who_is_idle_waits_for_it() -> None:
    """`_messages`, `_waiter`: connections.py goes by these to tell an idle connection from one that is asked."""
    loop = asyncio.get_running_loop()
    made: Any = web.RequestHandler(web.Server(_answer), loop=loop, lingering_time=7.0)
    assert made._lingering_time == 7.0
    assert made._loop is loop
    assert (len(made._messages), made._waiter) == (0, None)
    transport = create_autospec(asyncio.Transport, instance=True)
    transport.get_extra_info.return_value = None
    made.connection_made(transport)
    for _ in range(3):
        await asyncio.sleep(0)
    assert isinstance(made._waiter, asyncio.Future), "idle"
    made.data_received(HEAD)
    (_, body) = made._messages[-1]
    assert not body.is_eof()
    made.data_received(b"abc")
    assert body.is_eof()
    made.connection_lost(None)


@pytest.mark.parametrize(
    "name", ["finish_response", "handle_error", "eof_received", "data_received", "connection_lost"]
)
def test_what_a_connection_does_otherwise_is_still_asked_of_it(name: str) -> None:
    assert name in vars(HttpConnection)
    assert callable(getattr(web.RequestHandler, name)), f"aiohttp has no RequestHandler.{name} any more"


def test_a_request_has_the_target_as_it_came() -> None:
    """`_message`: origin.py looks whether a target names a host."""
    request = make_mocked_request("GET", "http://there/x?y")
    assert (request._message.url.host, request._message.url.path) == ("there", "/x")
