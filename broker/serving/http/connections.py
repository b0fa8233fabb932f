"""Connections: how many there may be, how long a silent one is kept, what is said to one that is cut.

    accepted ──► is there room? ──no──► the longest idle one is cut; there is none: room of its own, or 503, closing
                       │ yes
                       ▼
               ┌► no request ──first byte──► head ──complete──► request under way ──answered──┐
               │       │ idle_timeout_s       │ header_timeout_s       │ no HTTP               │
               │       ▼                      ▼                        ▼                       │
               │    closed              408, closing             400, closing                  │
               └───────────────────────────────────────────────────────────────────────────────┘

aiohttp parses and runs the handlers; this is its protocol class with the edges that it leaves open. While a request is
under way its client owes the body alone (`body.read_body`); all else then is the broker's time, bounded by the deadline
of the request, so that no long poll is ever cut here.

N1  The time for a head runs from its first byte (on a new connection from the accept) until it is complete. First bytes
    that come glued to the request before do not count: such a client is idle at worst, and cut as idle.
N2  A client that is cut hears why (closing.py).
N3  A loop that was held up is no slow client: a time-out that is noticed late begins anew.
N4  When `connections_max` are open, each new one cuts the one that has been without a request for longest: silent, amid
    a head or between two requests.
N5  While all of them have requests under way, `ROOM_MAX` more are taken, for questions after the broker's health and
    for other brokers alone: whoever holds all others, by long polls say, hides neither. Brokers take `PEERS_MAX` of
    them, so that some are left for health, and have to prove that they are brokers (`access.A7`). Other requests get
    503 there.
N6  A client that ends its sending side behind a whole request is still answered (RFC 9112, section 9.6), for
    `HALF_CLOSED_S`: whether it listens or is gone cannot be told. There is no half-close under TLS.
N7  Who is told that his request is refused may send it again: it is never carried out. So a request counts as under way
    from the end of its head on. Its handler begins later, and others may connect before that.
N8  Under TLS a connection is one of these from its accept on, and its handshake has the time of a head (tls.py).
N9  What is cut is gone in `closing.LINGER_S`, also if its client does not take the end of the last answer: it counts no
    more, and who takes nothing would keep a descriptor for ever.
N10  One address has at most `limits.address_connections_max` of these. By N4 and N5 another one from there cuts the one
    of its own that has been idle for longest; if none is, it is for health and brokers alone.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import StreamReader

from broker.api import http
from broker.api.certificate_faults import Tell, tell_nobody
from broker.api.errors import InvalidRequest, LiftlogError, Overloaded, RequestTimedOut, RequestTooLarge
from broker.api.tls_files import said, unbelieved_in
from broker.serving.contract.problems import from_http, internal_error, problem_response, protocol_log
from broker.serving.http import sending
from broker.serving.http.addresses import ADDRESS_CONNECTIONS, CountedAddress, CountedAddresses, address_of
from broker.serving.http.closing import ClosingConnection, last_words
from broker.serving.http.meters import HEALTH, Meters, RateLimitedLog
from broker.serving.http.tls import Handshake, TlsContexts, below, unsent

if TYPE_CHECKING:
    from broker.serving.http.callers import Callers, Turn
    from broker.serving.http.rights import LastCaller

log = logging.getLogger(__name__)

TARGET_BYTES_MAX: Final = 64 << 10
"""Path and query of a request. (A watch may name 256 streams.)"""
HEADER_BYTES_MAX: Final = 8 << 10
"""One header, name and value."""
ROOM_MAX: Final = 64
"""Connections beyond `connections_max` (N5)."""
PEERS_MAX: Final = 48
"""Requests of other brokers that may be under way on those."""
LINGERING_S: Final = 10.0
"""So long the rest of a body is taken, and thrown away, whose request has been answered."""
CLOSING_MAX: Final = 256
"""Connections that are being told why they are cut; beyond that they are cut without a word."""
HALF_CLOSED_S: Final = 10.0
"""So long a client is answered that has ended its sending side."""
LATE_S: Final = 1.0
ERROR_SHOWN_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The most that a client may take, and how long it may be silent.

    Attributes:
        connections_max: Open at once.
        header_timeout_s: From the first byte of a request to the end of its headers.
        body_timeout_s: Without a byte of a body that is not complete.
        idle_timeout_s: Between two requests.
    """

    connections_max: int = 4096
    header_timeout_s: float = 30.0
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 3600.0


DEFAULT_LIMITS: Final = ConnectionLimits()


class Counted(Protocol):
    """A connection, or its handshake: what counts against `connections_max`.

    Attributes:
        can_hear: It would understand an answer in HTTP.
        is_counted: It is among the open ones.
        is_extra: It is beyond `connections_max` (N5), or what its address may have (N10).
        place: Its address.
    """

    can_hear: bool
    is_counted: bool
    is_extra: bool
    place: CountedAddress | None

    def cut_idle(self, why: LiftlogError | None) -> None: ...

    def cut_slow(self) -> None: ...


class Connections:
    """All connections of one application. On the loop that serves.

    Args:
        tell: Whose certificate is not believed.
        is_peer: Whether a broker of this cluster has proven that a request is its own.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        meters: Meters,
        callers: Callers,
        tell: Tell = tell_nobody,
        is_peer: Callable[[web.BaseRequest], bool] = lambda request: False,
    ) -> None:
        self.limits = limits
        self.meters = meters
        self._callers = callers
        self._tell, self._is_peer = tell, is_peer
        self._places = CountedAddresses()
        self._open_count = 0
        self._idle: dict[Counted, None] = {}  # without a request under way: the longest first
        self._peers: set[HttpConnection] = set()  # with a broker's request, in the room of N5
        # When the time of each is up. All wait equally long, so the first is due first.
        self._heads: dict[Counted, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[ClosingConnection] = set()
        self._refused_log = RateLimitedLog()
        self._malformed = RateLimitedLog()
        self._plain = RateLimitedLog()
        self._plain_taken = RateLimitedLog()
        self._failed = RateLimitedLog()

    def protocol_factory(
        self, server: web.Server, tls: TlsContexts | None = None
    ) -> Callable[[], HttpConnection | Handshake]:
        """The factory for `loop.create_server`, which itself is not given any TLS: connections of this server."""
        loop = asyncio.get_running_loop()
        if tls is not None:
            return lambda: Handshake(
                self, tls.server(), lambda: HttpConnection(self, server, loop), takes_plain=tls.takes_plain
            )
        return lambda: HttpConnection(self, server, loop)

    def close(self) -> None:
        """Cut who is still being told why, or has not begun; for when the server has ended."""
        if self._timer is not None:
            self._timer.cancel()
        for handshake in [each for each in self._idle if isinstance(each, Handshake)]:
            handshake.cut_idle(None)
        for closing in list(self._closing):
            closing.transport.abort()

    # --- how many -------------------------------------------------------------------------------------------

    def admit(self, connection: Counted, transport: asyncio.Transport) -> bool:
        """Count a new connection in, or turn it away (N4, N5, N10)."""
        place = self._places.of(address_of(transport.get_extra_info("peername")))
        if self._is_full(place) and place.idle:
            self._cut_longest(place.idle, place)
        if self._open_count >= self.limits.connections_max and self._idle:
            self._cut_longest(self._idle, place)
        if self._is_full(place, ROOM_MAX) or self._open_count >= self.limits.connections_max + ROOM_MAX:
            why = self._refused(place, transport)
            self.dismiss(transport, last_words(why, _status(why)) if connection.can_hear else b"")
            return False
        connection.is_counted, connection.is_extra, connection.place = True, self._is_over(place), place
        self._places.enter(place)
        self._count(+1)
        self._idle[connection] = place.idle[connection] = None
        return True

    def _is_full(self, place: CountedAddress, room: int = 0) -> bool:
        return place.open_count >= self._callers.limits.connections_max + room

    def _is_over(self, place: CountedAddress) -> bool:
        """Whether the next one of this address would be beyond a limit."""
        return self._is_full(place) or self._open_count >= self.limits.connections_max

    def _cut_longest(self, idle: dict[Counted, None], place: CountedAddress) -> None:
        longest = next(iter(idle))
        is_amid_head = longest in self._heads
        why = self._too_many(place) if is_amid_head else None
        self.leave(longest)
        longest.cut_idle(why)
        self.meters.idle_cut.inc()

    def asked(self, connection: HttpConnection) -> None:
        """The head of a request is complete: it is carried out, so nobody cuts it as idle or slow (N7)."""
        self.head_done(connection)
        self.works(connection)

    def works(self, connection: Counted) -> None:
        """It has something under way: nobody cuts it as idle."""
        self._idle.pop(connection, None)
        if connection.place is not None:
            connection.place.idle.pop(connection, None)

    def begin(self, connection: HttpConnection, request: web.BaseRequest) -> LiftlogError | None:
        """A request begins. Returns why it may not (N5)."""
        self.asked(connection)
        place = connection.place
        assert place is not None, "admitted"
        is_over = self._is_full(place, 1) or self._open_count > self.limits.connections_max
        connection.is_extra = connection.is_extra and is_over
        if not connection.is_extra or request.path in HEALTH:
            return None
        if http.ASKED_BY in request.headers and len(self._peers) < PEERS_MAX and self._is_peer(request):
            self._peers.add(connection)
            return None
        assert connection.transport is not None
        return self._refused(place, connection.transport)

    def end(self, connection: HttpConnection) -> None:
        """Its request is answered."""
        self.head_done(connection)
        self._peers.discard(connection)
        connection.turn_over()
        if not connection.has_more:
            self.rests(connection)

    def rests(self, connection: Counted) -> None:
        """It has nothing under way."""
        if connection.is_counted:
            self._idle[connection] = None
            if connection.place is not None:
                connection.place.idle[connection] = None

    def leave(self, connection: Counted) -> None:
        """It is closed, or will be at once."""
        self.head_done(connection)
        self.works(connection)
        if isinstance(connection, HttpConnection):
            self._peers.discard(connection)
            connection.turn_over()
        if connection.is_counted and connection.place is not None:
            connection.is_counted = False
            self._places.leave(connection.place)
            self._count(-1)

    def _count(self, by: int) -> None:
        self._open_count += by
        self.meters.connections.set(self._open_count)

    def _too_many(self, place: CountedAddress) -> LiftlogError:
        """Why there is no room for one more of this address."""
        if self._is_full(place):
            return self._callers.refusal(ADDRESS_CONNECTIONS, self._callers.limits.connections_max, place.address)
        limit = self.limits.connections_max
        return Overloaded(
            f"{limit} connections are open, and more are not accepted: try again later, or raise http.connections_max",
            key="http.connections_max",
            limit=limit,
        )

    def _refused(self, place: CountedAddress, transport: asyncio.BaseTransport) -> LiftlogError:
        """Count that there is none, and say why."""
        self.meters.refused_connections.inc()
        why = self._too_many(place)
        if isinstance(why, Overloaded) and (count := self._refused_log.due()):
            limit, remote = self.limits.connections_max, transport.get_extra_info("peername")
            log.warning("http.connections_refused connections_max=%d count=%d remote=%s", limit, count, remote)
        return why

    # --- how long -------------------------------------------------------------------------------------------

    def await_head(self, connection: Counted) -> None:
        """Its time for a head runs, from now on unless it runs already (N1)."""
        if connection in self._heads:
            return
        loop = asyncio.get_running_loop()
        due = self._heads[connection] = loop.time() + self.limits.header_timeout_s
        if self._timer is None:
            self._timer = loop.call_at(due, self._cut_slow, due)

    def head_done(self, connection: Counted) -> None:
        """The head is complete, or the connection closed."""
        self._heads.pop(connection, None)

    def _cut_slow(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        now, self._timer = loop.time(), None
        is_late = now - due > LATE_S
        for connection in [connection for connection, up in self._heads.items() if up <= now]:
            del self._heads[connection]
            if is_late:  # N3
                self._heads[connection] = now + self.limits.header_timeout_s
            else:
                connection.cut_slow()
        if self._heads:
            due = next(iter(self._heads.values()))
            self._timer = loop.call_at(due, self._cut_slow, due)

    # --- what is said ---------------------------------------------------------------------------------------

    def dismiss(
        self, transport: asyncio.Transport, words: bytes, on_lost: Callable[[Exception | None], None] | None = None
    ) -> None:
        """Send the last words and end the connection (N2). `on_lost` is called when it is closed."""
        bare, words = below(transport, words)
        if bare is None:
            return
        closing = ClosingConnection(bare, self._closing, on_lost)
        if len(self._closing) < CLOSING_MAX:
            closing.begin(words)
        else:
            bare.set_protocol(closing)
            bare.abort()

    def note_plain(self, transport: asyncio.BaseTransport) -> None:
        """Something was said in plain text that has to come over TLS."""
        self.meters.requests.labels("none", 400).inc()
        if count := self._plain.due():
            log.warning("http.not_tls count=%d remote=%s", count, transport.get_extra_info("peername"))

    def note_plain_taken(self, transport: asyncio.BaseTransport) -> None:
        """Somebody speaks plain text where both are taken: he would be refused after the next step."""
        self.meters.plain_taken.inc()
        if count := self._plain_taken.due():
            log.info("http.plain_taken count=%d remote=%s", count, transport.get_extra_info("peername"))

    def note_failed(self, transport: asyncio.BaseTransport, error: ssl.SSLError) -> None:
        """A handshake failed."""
        self.meters.failed_handshakes.inc()
        remote = transport.get_extra_info("peername")
        if found := unbelieved_in(error):
            self._tell(str(remote[0]) if remote else "", found)
        if count := self._failed.due():
            shown = said(error)[:ERROR_SHOWN_MAX]
            log.warning("http.handshake_failed error=%r count=%d remote=%s", shown, count, remote)

    def refusal(self, error: HttpProcessingError, connection: HttpConnection, remote: str | None) -> web.Response:
        """The answer to what is no HTTP, counted and logged."""
        refused, status = refusal_of(error, headers_max=connection.max_headers)
        self.meters.requests.labels("none", status).inc()
        self.meters.problems.labels(refused.reason).inc()
        if count := self._malformed.due():
            log.warning("http.malformed error=%r count=%d remote=%s", refused.message[:ERROR_SHOWN_MAX], count, remote)
        return problem_response(refused, status=status)


class HttpConnection(web.RequestHandler):
    """One connection: aiohttp's protocol, and what this module adds."""

    can_hear = True

    __slots__ = (
        "_body",
        "_half_closed",
        "_has_spoken",
        "_is_busy",
        "_is_malformed",
        "_newest",
        "_owner",
        "_turn",
        "is_counted",
        "is_extra",
        "place",
        "remembered",
    )

    def __init__(self, owner: Connections, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # ours is a DEBUG line of `problems`
            logger=protocol_log,
            keepalive_timeout=owner.limits.idle_timeout_s,
            lingering_time=min(LINGERING_S, owner.limits.body_timeout_s),
            max_line_size=TARGET_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            auto_decompress=False,  # `body.B2`
        )
        self._owner = owner
        self._body: StreamReader | None = None  # of the last request
        self._newest: StreamReader | None = None  # the body of the last request whose head is complete
        self._is_busy = False
        self._is_malformed = False
        self._has_spoken = False
        self._half_closed: asyncio.TimerHandle | None = None  # what ends it then
        self.is_counted = False  # among the open ones
        self.is_extra = False  # beyond `connections_max` (N5)
        self.place: CountedAddress | None = None
        self._turn: Turn | None = None  # of a request that is answered, and the answer not sent
        self.remembered: LastCaller | None = None  # whom its last request was of (`rights.R2`)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._owner.admit(self, transport):
            super().connection_made(transport)
            self._owner.await_head(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._owner.leave(self)
        if self._half_closed is not None:
            self._half_closed.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if data and not self._is_busy and (self._body is None or self._body.is_eof()):
            self._has_spoken = True
            self._owner.await_head(self)
        super().data_received(data)
        if self._messages:
            self._newest = self._messages[-1][1]
            self._owner.asked(self)

    def hold(self, turn: Turn) -> None:
        """A request counts until its answer is sent (`callers.C3`)."""
        if self.is_counted and self.transport is not None:
            self._turn = turn
        else:
            turn.end()

    def turn_over(self) -> None:
        """It is, or never will be."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.end()

    @property
    def has_more(self) -> bool:
        """Whether the head of a request has come whose handler has not begun."""
        return bool(self._messages)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has said all. True: the connection stays, until what it asked for is answered (N6)."""
        transport = self.transport
        is_idle = self._waiter is not None and not self._messages
        is_whole = self._newest is not None and self._newest.is_eof()
        if transport is None or is_idle or not is_whole or not transport.can_write_eof():
            return False
        self._half_closed = self._loop.call_later(HALF_CLOSED_S, transport.abort)
        return True

    def request_began(self, request: web.BaseRequest) -> LiftlogError | None:
        """The head of a request is complete; its handler begins. Returns why it may not."""
        self._is_busy, self._body = True, request.content
        return self._owner.begin(self, request)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send what is left to send of an answer; with it the request is over."""
        if isinstance(resp, web.HTTPException):  # refused before the middleware, as an `Expect` that nobody meets
            resp = from_http(resp, request)
        try:
            async with asyncio.timeout(sending.STALLED_S):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            sending.abort(request)
            raise ConnectionResetError(f"the reader took nothing in {sending.STALLED_S:.0f} s") from None
        finally:
            self._is_busy = False
            self._owner.end(self)
            if self._half_closed is not None and not self._messages:
                self.close()  # when this answer is sent
            if self._is_malformed:
                self._dismiss(b"")

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to what is no HTTP, and to what went wrong outside of all handlers; the connection ends."""
        self._owner.head_done(self)
        if request.writer.output_size > 0:
            raise ConnectionResetError("the answer had begun")
        if isinstance(exc, HttpProcessingError):
            response = self._owner.refusal(exc, self, request.remote)
            self._is_malformed = True
        else:
            response = problem_response(internal_error(request, exc))
        response.headers["Server"] = "liftlog"
        response.force_close()
        return response

    def cut_idle(self, why: LiftlogError | None) -> None:
        """Its place goes to a new one (N4). `why` is for one that has begun to say something."""
        if self.transport is None:
            return
        log.debug("http.idle_cut remote=%s", self.peername)
        if why is not None and self._has_spoken:
            self._dismiss(last_words(why, _status(why)))
        elif unsent(self.transport):  # N9
            self._dismiss(b"")
        else:
            self.transport.close()

    def cut_slow(self) -> None:
        """The time for a head is up."""
        if self.transport is None:
            return
        self._owner.meters.timeouts.labels("head").inc()
        log.debug("http.timed_out what=head remote=%s", self.peername)
        if not self._has_spoken:  # nobody asked anything
            self.transport.close()
            return
        timeout_s = self._owner.limits.header_timeout_s
        error = RequestTimedOut(
            f"the headers of the request did not come within {timeout_s:g} s: http.header_timeout_ms",
            key="http.header_timeout_ms",
            limit=round(1000 * timeout_s),
        )
        self._dismiss(last_words(error, error.status))

    def _dismiss(self, words: bytes) -> None:
        transport, self.transport = self.transport, None  # aiohttp would close it at once
        if transport is not None:
            self._owner.dismiss(transport, words, self.connection_lost)


def _status(why: LiftlogError) -> int:
    """Of an answer to who has not been heard: there may be nothing that he could do about it."""
    return HTTPStatus.SERVICE_UNAVAILABLE if isinstance(why, Overloaded) else why.status


def refusal_of(error: HttpProcessingError, *, headers_max: int) -> tuple[LiftlogError, int]:
    """A parser's finding as an error and its HTTP status."""
    if isinstance(error, LineTooLong):
        limit = error.args[1]
        if limit == TARGET_BYTES_MAX:
            return RequestTooLarge(f"path and query have more than {limit} bytes", limit=limit), 414
        return RequestTooLarge(f"a header has more than {limit} bytes", limit=limit), 431
    text = (str(error.message).strip().splitlines() or [""])[0].rstrip(": ")[:ERROR_SHOWN_MAX]
    if text.startswith("Too many headers"):
        return RequestTooLarge(f"more than {headers_max} headers", limit=headers_max), 431
    return InvalidRequest(f"not an HTTP request: {text or type(error).__name__}"), 400
