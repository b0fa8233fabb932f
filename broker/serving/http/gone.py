"""A change whose client is gone is not begun, if this broker stood still while it was asked for.

    client ─► request ─► this process stands still ─► the client gives up, and asks elsewhere, or for something else
                                 └─► goes on: the request is read at last ─► its client is gone: refused, to nobody

G1  A client that gave up was told that its change is in doubt. If it is not there when the client goes on, it may not
    come later: an answered deletion would be followed by the creation that was asked for before it.
G2  A connection whose sending side is closed may be half closed, by a client that listens (`connections.N4`). It is
    taken for closed in `STOOD_STILL_S` after a standstill only; a client that listens is told that this is retriable.
    A change that takes several tries is looked at before each of them (`asker`): what it waited for may have taken as
    long as this process stood still.
G3  A broker that is only slow stands still as well, if its loop is: for `LATE_S` or longer.

A client that waited a moment only is not looked at.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from functools import partial
from typing import Final

from aiohttp import web

from broker.api.errors import NotReady

BEAT_S: Final = 0.25
LATE_S: Final = 0.5
STOOD_STILL_S: Final = 5.0
"""After a standstill: all that was asked for during it has been read by then."""

asking_now: Final[ContextVar[web.Request]] = ContextVar("asking")
"""The request that this task answers (aiohttp runs each in a context of its own)."""


class Pulse:
    """Tells whether the loop stood still not long ago."""

    def __init__(self) -> None:
        self._beat_s = 0.0
        self._still_until_s = 0.0

    async def beats(self, _: web.Application) -> AsyncIterator[None]:
        """A cleanup context: it beats as long as the application runs."""
        self._beat_s = time.monotonic()
        task = asyncio.get_running_loop().create_task(self._beat())
        yield
        task.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self.stood_still()
            self._beat_s = time.monotonic()

    def stood_still(self) -> bool:
        """Now, or less than `STOOD_STILL_S` ago. From any thread."""
        now_s = time.monotonic()
        if now_s - self._beat_s >= BEAT_S + LATE_S:
            self._still_until_s = now_s + STOOD_STILL_S
        return now_s < self._still_until_s


PULSE: Final = web.AppKey("pulse", Pulse)


def check_asker() -> None:
    """Before a change: whether its client may still wait for it. Does nothing outside of a request.

    Raises:
        NotReady: G1.
    """
    asker()()


def asker() -> Callable[[], None]:
    """`check_asker` of the request that this task works for; for any thread."""
    request = asking_now.get(None)
    return partial(_check, request) if request is not None else lambda: None


def _check(request: web.Request) -> None:
    if request.app[PULSE].stood_still() and _is_closed(request):
        raise NotReady(
            "this broker stood still, and its client has closed the connection meanwhile: no change is begun"
        )


def _is_closed(request: web.Request) -> bool:
    """Whether the client has closed it, or its sending side; also if the loop has not been told yet."""
    transport = request.transport
    if transport is None or transport.is_closing():
        return True
    descriptor = transport.get_extra_info("socket").fileno()
    if descriptor < 0:  # closed by now: another thread asks (`asker`)
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))
