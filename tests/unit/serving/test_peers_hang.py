"""Brokers ask each other over connections that are counted for each broker: one that hangs keeps nobody from others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from broker.serving.http.peers import CONNECTIONS_MAX, Peers


@asynccontextmanager
async def answering(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """A broker that answers all like this, by its address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield "127.0.0.1:{1}".format(*runner.addresses[0])
    finally:
        await runner.cleanup()


async def _asked(count: int) -> tuple[int, list[object]]:
    """How many of many questions a broker that hangs has got, and what another one answers beside them."""
    under_way, is_full, is_over = 0, asyncio.Event(), asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        nonlocal under_way
        under_way += 1
        if under_way == CONNECTIONS_MAX:
            is_full.set()
        await is_over.wait()
        return web.json_response({})

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"x": 1})

    peers = Peers("a")
    async with answering(hang) as silent, answering(answer) as other:
        waiting = [asyncio.create_task(peers.ask(silent, "POST", "/", body={}, timeout_s=600)) for _ in range(count)]
        await is_full.wait()
        try:
            found = await asyncio.gather(*(peers.ask(other, "POST", "/", body={}, timeout_s=20) for _ in range(20)))
            at_once = under_way
        finally:
            is_over.set()
            await asyncio.gather(*waiting, return_exceptions=True)
            await peers.close()
    return at_once, found


def test_a_broker_that_hangs_keeps_nobody_from_the_others() -> None:
    at_once, found = asyncio.run(_asked(CONNECTIONS_MAX + 50))
    assert found == [{"x": 1}] * 20
    assert at_once == CONNECTIONS_MAX, "the others wait for one of its connections"
