"""The port of Liftbridge's API: what the data plane starts and stops, and what answers each call.

S1  It runs on the loop that serves HTTP, beside that port: its calls are requests to the same application (door.py).
S2  A stop takes no new call, and cuts what is under way after `STOP_S`, as HTTP does. Subscriptions end at once, and so
    do calls that wait for their client.
S3  A call is answered only as gRPC: with another content type a browser's page could ask.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web

from broker.api.errors import LiftlogError
from broker.serving.http.app import CONNECTIONS, RUNNER_OPTIONS, SERVING
from broker.serving.http.tls import Handshake, TlsContexts
from broker.serving.liftbridge import (
    cursors,
    groups,
    health,
    metadata,
    publish,
    reflection,
    streams,
    subscribe,
    to_subject,
)
from broker.serving.liftbridge.call import CONTENT_TYPE, TIMEOUT_S, Call
from broker.serving.liftbridge.calls import Handling, Method, Reachable
from broker.serving.liftbridge.door import WayIn
from broker.serving.liftbridge.multiplexed import Http2Connection
from broker.serving.liftbridge.shares import Shares
from broker.serving.liftbridge.statuses import Code, StatusError, refused

log = logging.getLogger(__name__)

_TABLE: Final = (
    *streams.METHODS,
    *metadata.METHODS,
    *publish.METHODS,
    *to_subject.METHODS,
    *subscribe.METHODS,
    *cursors.METHODS,
    *groups.METHODS,
    *health.METHODS,
    *reflection.METHODS,
)
METHODS: Final[Mapping[str, Method]] = {method.path: method for method in _TABLE}
STOP_S: Final[float] = RUNNER_OPTIONS["shutdown_timeout"]


class LiftbridgePort:
    """See the module. On the loop of the application.

    Args:
        server: Of the application, running.
        tls: As of the HTTP port.
    """

    def __init__(self, app: web.Application, server: web.Server, tls: TlsContexts | None) -> None:
        self._serving, self._connections, self._server, self._tls = app[SERVING], app[CONNECTIONS], server, tls
        self.held = 0
        self._open: set[Http2Connection] = set()
        self._is_ending = False
        self._shares = Shares()
        self._addresses = Reachable(here=("", 0))

    def take_place(self, here: tuple[str, int]) -> None:
        """Clients are told to find this broker at this host and port."""
        self._addresses = Reachable(here=here)

    def protocol_factory(self) -> Callable[[], asyncio.Protocol]:
        """For `loop.create_server`, which itself is given no TLS."""
        tls = self._tls
        if tls is None:
            return self._connection
        context = tls.http2
        assert context is not None, "made by `certificates`"
        return lambda: Handshake(self._connections, context(), self._connection, takes_plain=tls.takes_plain)

    def _connection(self) -> Http2Connection:
        return Http2Connection(self._connections, self)

    def came(self, connection: Http2Connection) -> bool:
        """As `multiplexed.Port.came`."""
        if not self._is_ending:
            self._open.add(connection)
        return not self._is_ending

    def left(self, connection: Http2Connection) -> None:
        """As `multiplexed.Port.left`."""
        self._open.discard(connection)

    def make_room(self) -> bool:
        """As `multiplexed.Port.make_room`."""
        most = max(self._open, key=lambda each: each.held, default=None)
        if most is None or not most.held:
            return False
        most.give_up()
        return True

    async def close(self) -> None:
        """S2."""
        self._is_ending = True
        for connection in list(self._open):
            connection.stop()
        ends = [asyncio.ensure_future(connection.ended()) for connection in self._open]
        if ends:
            _, late = await asyncio.wait(ends, timeout=STOP_S)
            for each in late:
                each.cancel()
        for connection in list(self._open):
            connection.cut()

    async def answer(self, connection: Http2Connection, call: Call) -> None:
        """The top of a call: whatever happens, it has a status."""
        try:
            method = self._method(call)
            timeout_s = call.timeout_s()
            if timeout_s is None and not method.is_stream:
                timeout_s = TIMEOUT_S
            door = WayIn(self._server, connection, call.authorization)
            asking = Handling(
                call=call,
                serving=self._serving,
                addresses=self._addresses,
                door=door,
                operations=method.operations,
                shares=self._shares,
            )
            async with asyncio.timeout(timeout_s):
                await method.answer(asking)
            call.end(Code.OK)
        except StatusError as error:
            call.end(error.code, error.message, error.reason, error.fields)
        except LiftlogError as error:
            status = refused(error)
            call.end(status.code, status.message, status.reason, status.fields)
        except TimeoutError:
            call.end(Code.DEADLINE_EXCEEDED, f"{call.path}: no answer in time", "deadline_exceeded")
        except ConnectionError:
            return
        except Exception:
            log.exception("liftbridge.bug path=%s", call.path[:200])
            call.end(Code.INTERNAL, "internal error: the broker's log says more")

    def _method(self, call: Call) -> Method:
        """Raises StatusError: there is none, or this is no call."""
        kind = call.metadata.get("content-type", "")
        if call.metadata.get(":method") != "POST" or not CONTENT_TYPE.fullmatch(kind):  # S3
            raise StatusError(Code.INTERNAL, "this port speaks gRPC alone")
        method = METHODS.get(call.path)
        if method is not None:
            return method
        raise StatusError(Code.UNIMPLEMENTED, f"there is no call {call.path[:200]!r}")
