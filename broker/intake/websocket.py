"""NATS over WebSocket: nats-py's transport, which sends what is written.

nats-py's own keeps what is written until somebody flushes, and acks are written past what it flushes: publishers had
theirs with the next PING, minutes later.

    write ─► pending ─► one task sends, frame by frame ─► aiohttp
    drain ─► wait until it has

S1  What is pending when a connection ends is dropped: the next one begins with its own handshake.
S2  A send that fails is an error of who drains. Whoever only writes hears nothing: nats-py's read loop sees the end.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

import aiohttp
import nats.aio.transport

if TYPE_CHECKING:
    from broker.intake.nats_seam import ParserSeam


class SendingWebSocket(nats.aio.transport.WebSocketTransport):
    """See the module. For all connections of its client, one after the other.

    Args:
        seam: Takes in what comes.
    """

    def __init__(self, seam: ParserSeam) -> None:
        # nats-py's own begins with a session, which a client that never connects does not close
        self._ws: aiohttp.ClientWebSocketResponse | None = None
        self._client = None  # type: ignore[assignment]
        self._pending: asyncio.Queue[bytes] = asyncio.Queue()
        self._close_task: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._using_tls: bool | None = None
        self._ws_headers = None
        self._seam = seam
        self._waiting_bytes = 0
        self._sending: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return True  # nats-py would make its own for the second connection otherwise

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        self._begin()
        await super().connect(uri, buffer_size, connect_timeout)

    async def connect_tls(self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int) -> None:
        if self._ws is None or self._ws.closed:
            self._begin()
        await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)

    def _begin(self) -> None:
        self._seam.reset()
        self._drop()
        if self._client is None:
            self._client = aiohttp.ClientSession()

    def write(self, payload: bytes) -> None:
        """Send it after what was written before; nobody waits for it."""
        self._pending.put_nowait(payload)
        self._waiting_bytes += len(payload)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())
            self._sending.add_done_callback(_seen)

    async def _send(self) -> None:
        while not self._pending.empty():
            payload = self._pending.get_nowait()
            try:
                if self._ws is None:
                    raise ConnectionResetError("there is no connection")
                await self._ws.send_bytes(payload)
            finally:
                self._waiting_bytes -= len(payload)

    async def drain(self) -> None:
        """Return when all is sent. Raises OSError."""
        if (sending := self._sending) is not None:
            await asyncio.wait((sending,))
            if sending.cancelled():
                raise ConnectionResetError("the connection has ended")
            sending.result()

    def close(self) -> None:
        self._drop()
        super().close()  # type: ignore[no-untyped-call]

    async def wait_closed(self) -> None:
        ws, session = self._ws, self._client
        self._ws = self._client = None  # type: ignore[assignment]
        try:
            if ws is not None:
                await self._close_task
        finally:
            if session is not None:
                await session.close()

    def _drop(self) -> None:
        """S1."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        while not self._pending.empty():
            self._waiting_bytes -= len(self._pending.get_nowait())

    def write_buffer_bytes(self) -> int:
        """Bytes that wait to be sent; the system has less than aiohttp's mark besides."""
        return self._waiting_bytes


def _seen(task: asyncio.Task[None]) -> None:
    """S2."""
    if not task.cancelled():
        task.exception()
