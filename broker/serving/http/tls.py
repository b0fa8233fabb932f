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
T3  What is sent in plain text is never looked at as a request, unless the port takes both (`http.tls`): then the first
    byte says which it is, and a plain connection goes on as on a port without TLS.
T4  No session tickets: this project's clients resume no session, and take bytes that come for an answer.
T5  A connection ends as a plain one: what was written is sent, however slowly it is taken, and the socket is closed
    then. Nobody waits for the other side to end TLS, as asyncio does for some seconds, after which it throws away what
    is not sent yet.
T6  A client that takes nothing holds little: of what is to be sent no more than `BUFFER_BYTES` are encrypted, and
    writers wait while the socket has as many. (asyncio does not count what the socket has, and OpenSSL keeps as much
    memory as was ever encrypted at once.)

Private to asyncio: what `Secured` uses of `SSLProtocol`, as tests/unit/serving/test_tls.py checks.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio.sslproto import SSLProtocol, SSLProtocolState
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from broker.api.errors import InvalidRequest
from broker.api.revocations import Revocations
from broker.serving.http.closing import last_words

if TYPE_CHECKING:
    from broker.serving.http.addresses import CountedAddress
    from broker.serving.http.connections import Connections, HttpConnection
    from broker.serving.liftbridge.multiplexed import Http2Connection

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
        http2: Likewise, on a port where clients speak HTTP/2. None: there is none.
        client: For questions to other brokers.
        revocations: What the CAs of clients have revoked; None: nothing says.
        takes_plain: Connections without TLS are served, too.
        dials: Other brokers are asked over TLS; False: in plain text.
    """

    server: Callable[[], ssl.SSLContext]
    client: Callable[[], ssl.SSLContext]
    revocations: Callable[[], Revocations | None] = lambda: None
    takes_plain: bool = False
    dials: bool = True
    http2: Callable[[], ssl.SSLContext] | None = None


class Handshake(asyncio.Protocol):
    """A connection from the accept to the end of its handshake. One of `Connections`.

    Args:
        make: Gives the connection that goes on when the handshake is done.
    """

    can_hear = False
    """Whether an answer in plain HTTP would be understood."""

    def __init__(
        self,
        owner: Connections,
        context: ssl.SSLContext,
        make: Callable[[], HttpConnection | Http2Connection],
        *,
        takes_plain: bool = False,
    ) -> None:
        self._takes_plain = takes_plain
        self._owner = owner
        self._context = context
        self._make = make
        self._transport: asyncio.Transport | None = None
        self.is_counted = False
        self.is_extra = False
        self.place: CountedAddress | None = None

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
        if data[0] != HANDSHAKE_RECORD and self._takes_plain:
            self._owner.note_plain_taken(transport)
            self.done()
            connection = self._make()
            transport.set_protocol(connection)
            connection.connection_made(transport)
            if connection.is_counted:  # else it is told why not
                connection.data_received(data)
            return
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
        self._owner.note_failed(transport, error)
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
    """asyncio's TLS, which tells a `Handshake` how it ends, with an end and buffers of its own (T5, T6)."""

    max_size = BUFFER_BYTES

    def __init__(
        self,
        handshake: Handshake,
        connection: HttpConnection | Http2Connection,
        context: ssl.SSLContext,
        timeout_s: float,
    ) -> None:
        waiter: Any = None
        super().__init__(
            asyncio.get_running_loop(),
            connection,
            context,
            waiter,
            server_side=True,
            **{"ssl_handshake_timeout": timeout_s},  # type: ignore[arg-type]
        )
        self._handshake = handshake
        self._mine._set_write_buffer_limits(high=BUFFER_BYTES)
        self._mine._set_read_buffer_limits(high=BUFFER_BYTES)

    @property
    def _mine(self) -> Any:
        """Itself, with what the stubs do not have."""
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(BUFFER_BYTES)
        super().connection_made(transport)

    def _on_handshake_complete(self, handshake_exc: Any) -> None:
        if handshake_exc is None:
            self._handshake.done()
        elif isinstance(handshake_exc, ssl.SSLError):
            self._mine._process_outgoing()
            transport, self._transport = self._transport, None  # nor does asyncio close it
            super()._on_handshake_complete(handshake_exc)
            assert isinstance(transport, asyncio.Transport)
            self._handshake.failed(transport, handshake_exc)
            return
        super()._on_handshake_complete(handshake_exc)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._handshake.done()

    # --- T6 ---------------------------------------------------------------------------------------------------

    def _get_write_buffer_size(self) -> int:
        """By which writers wait. What the socket has counts while it says when it has sent: else nobody wakes them."""
        return self.unsent() if self._mine._ssl_writing_paused else self._waiting()

    def unsent(self) -> int:
        """Bytes that the system has not taken yet."""
        transport: Any = self._transport
        return self._waiting() + (0 if transport is None else int(transport.get_write_buffer_size()))

    def _waiting(self) -> int:
        return int(self._mine._outgoing.pending + self._mine._write_buffer_size)

    def _do_write(self) -> None:
        mine = self._mine
        while mine._write_backlog and not mine._ssl_writing_paused:
            self._encrypt()
            mine._process_outgoing()
        mine._process_outgoing()

    def resume_writing(self) -> None:
        """The socket has sent."""
        super().resume_writing()
        self._do_write()

    def _encrypt(self) -> None:
        """A piece of what is to be sent."""
        mine = self._mine
        data = memoryview(mine._write_backlog[0])
        count = mine._sslobj.write(data[:BUFFER_BYTES])
        mine._write_buffer_size -= count
        if count < len(data):
            mine._write_backlog[0] = data[count:]
        else:
            del mine._write_backlog[0]

    # --- T5 ---------------------------------------------------------------------------------------------------

    def _start_shutdown(self) -> None:
        if self._mine._state is not _WRAPPED:
            super()._start_shutdown()
            return
        transport = self._end()
        if transport is not None:
            transport.close()

    def _end(self) -> asyncio.Transport | None:
        """Hand the socket all that is to be sent, and the end of TLS behind it. None: there is none any more."""
        mine, transport = self._mine, self._transport
        assert transport is None or isinstance(transport, asyncio.Transport)
        if transport is not None and mine._state is _WRAPPED:
            with suppress(ssl.SSLError):  # it wants to hear the client's end, too
                while mine._write_backlog:
                    self._encrypt()
                    transport.write(mine._outgoing.read())
                mine._sslobj.unwrap()
            transport.write(mine._outgoing.read())
        mine._set_state(_UNWRAPPED)
        if mine._app_transport is not None:
            mine._app_transport._closed = True
        return transport

    def release(self) -> asyncio.Transport | None:
        """End TLS; what becomes of the connection is the caller's matter. None: it is lost."""
        transport, self._transport = self._end(), None
        return transport


def below(transport: asyncio.Transport, words: bytes) -> tuple[asyncio.Transport | None, bytes]:
    """A connection that is to be ended, without TLS, and what is still to be said there: the words go over TLS."""
    secured = getattr(transport, "_ssl_protocol", None)
    if not isinstance(secured, Secured):
        return transport, words
    transport.write(words)
    return secured.release(), b""


def unsent(transport: asyncio.Transport) -> int:
    """Bytes of a connection that the system has not taken yet."""
    secured = getattr(transport, "_ssl_protocol", None)
    return secured.unsent() if isinstance(secured, Secured) else transport.get_write_buffer_size()


_WRAPPED, _UNWRAPPED = SSLProtocolState.WRAPPED, SSLProtocolState.UNWRAPPED
_PLAIN: Final = last_words(
    InvalidRequest("this port speaks TLS: give its address as https://host:port", tls=True), HTTPStatus.BAD_REQUEST
)
