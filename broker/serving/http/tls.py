"""TLS of the HTTP port: what comes before the first request.

    accepted ──► counted ──first byte──► a handshake ──► done ──► HttpConnection, over TLS
                    │                        │            └─ failed: the alert is sent, one line in the log
                    │                        └─ not one: 400 in plain text, one line in the log
                    └─ header_timeout_s without a handshake that is done: cut

asyncio counts a connection of TLS only once its handshake is done. Here it counts from the accept on, as one that is
idle: whoever opens connections and says nothing takes no place that another needs (`connections.N4`).

T1  A connection has one context for life: a renewed certificate is for those that come next.
T2  A handshake that fails says why, by its alert, and is then closed as all that are cut (closing.py). asyncio would
    throw the alert away.
T3  What is sent in plain text is never looked at as a request.
T4  No session tickets: this project's clients resume no session, and take bytes that come for an answer.

Private to asyncio: `SSLProtocol` and its `_on_handshake_complete`, `_process_outgoing`, `_transport`, as
tests/unit/serving/test_tls.py checks.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from broker.api.errors import InvalidRequest
from broker.api.tls_files import said
from broker.serving.http import closing
from broker.serving.http.closing import last_words

if TYPE_CHECKING:
    from broker.serving.http.connections import Connections, HttpConnection

log = logging.getLogger(__name__)

HANDSHAKE_RECORD: Final = 22
"""The first byte that a client of TLS sends."""
BUFFER_BYTES: Final = 64 << 10
"""Of each connection. asyncio takes 256 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsContexts:
    """The contexts of this moment; they are renewed when their files change.

    Attributes:
        server: For connections that are accepted.
        client: For questions to other brokers.
    """

    server: Callable[[], ssl.SSLContext]
    client: Callable[[], ssl.SSLContext]


class Handshake(asyncio.Protocol):
    """A connection from the accept to the end of its handshake. One of `Connections`.

    Args:
        make: Gives the connection that goes on when the handshake is done.
    """

    can_hear = False
    """Whether an answer in plain HTTP would be understood."""

    def __init__(self, owner: Connections, context: ssl.SSLContext, make: Callable[[], HttpConnection]) -> None:
        self._owner = owner
        self._context = context
        self._make = make
        self._transport: asyncio.Transport | None = None
        self.is_counted = False
        self.is_extra = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._owner.admit(self, transport):
            self._transport = transport
            self._owner.await_head(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.leave(self)

    def data_received(self, data: bytes) -> None:
        """The first bytes; the next go to what takes over."""
        transport = self._transport
        assert transport is not None, "admitted"
        if data[0] != HANDSHAKE_RECORD:
            self._end(transport, _PLAIN)  # T3
            self._owner.note_plain(transport)
            return
        secured = Secured(self, self._make(), self._context, 2 * self._owner.limits.header_timeout_s)
        transport.set_protocol(secured)
        secured.connection_made(transport)
        view = memoryview(data)
        while view and not transport.is_closing():
            buffer = secured.get_buffer(len(view))
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            secured.buffer_updated(count)

    def done(self) -> None:
        """The handshake is over: the connection over it is counted next."""
        self._owner.leave(self)

    def failed(self, transport: asyncio.Transport, error: ssl.SSLError) -> None:
        """T2. The alert is on its way."""
        self._owner.note_failed(transport, said(error))
        self._end(transport, b"")

    def cut_idle(self, why: object) -> None:
        """Its place goes to a new one."""
        self._abort()

    def cut_slow(self) -> None:
        """The time for the handshake is up."""
        self._owner.meters.timeouts.labels("handshake").inc()
        self._abort()

    def _abort(self) -> None:
        if self._transport is not None:
            log.debug("http.handshake_cut remote=%s", self._transport.get_extra_info("peername"))
            self._transport.abort()

    def _end(self, transport: asyncio.Transport, words: bytes) -> None:
        self._owner.leave(self)
        self._transport = None
        self._owner.dismiss(transport, words)


class Secured(SSLProtocol):
    """asyncio's TLS, which tells a `Handshake` how it ends."""

    max_size = BUFFER_BYTES

    def __init__(
        self, handshake: Handshake, connection: HttpConnection, context: ssl.SSLContext, timeout_s: float
    ) -> None:
        options: dict[str, Any] = {"ssl_handshake_timeout": timeout_s, "ssl_shutdown_timeout": closing.LINGER_S}
        waiter: Any = None
        super().__init__(asyncio.get_running_loop(), connection, context, waiter, server_side=True, **options)
        self._handshake = handshake

    def _on_handshake_complete(self, handshake_exc: Any) -> None:
        if handshake_exc is None:
            self._handshake.done()
        elif isinstance(handshake_exc, ssl.SSLError):
            self._process_outgoing()  # type: ignore[attr-defined]
            transport, self._transport = self._transport, None  # nor does asyncio close it
            super()._on_handshake_complete(handshake_exc)
            assert isinstance(transport, asyncio.Transport)
            self._handshake.failed(transport, handshake_exc)
            return
        super()._on_handshake_complete(handshake_exc)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._handshake.done()


_PLAIN: Final = last_words(
    InvalidRequest("this port speaks TLS: give its address as https://host:port"), HTTPStatus.BAD_REQUEST
)
