"""Request bodies: no byte is taken that is not reserved, and what is read is checked before it is used.

    head ──► reservation (one for each request, of the budget of its kind) ──► read, decode, parse ──► given back

B1  Memory that a body takes is reserved before it is taken: by its declared length, and by its length once decoded
    where it is compressed. What does not fit is `overloaded`, and nothing of it is read.
B2  aiohttp hands on the bytes as they came. Decoding is bounded here, in pieces of `PIECE_BYTES`. A gzip body has at
    most `MEMBERS_MAX` members: each takes time to begin, also one of twenty bytes that stand for nothing.
B3  When there is no room, the body that has been coming for longest ends with `overloaded`, if that is `SLOW_S` or
    more. So a few that never end keep nobody out for long.
B4  An operation that takes no body refuses one (`refuse_content`), instead of letting its bytes lie in buffers. It does
    not wait for them either: with a body that never comes strangers would have requests under way, and no connection
    of theirs could be cut for another one (`connections.N4`).
B5  Bodies of one caller hold a part of the budget at most (`limits.caller_memory_percent`), and what is beyond it is
    `limit_reached`. The only one that holds something may take all that is free: so a long body always has room, and of
    several that grow one at least is done. Whoever is at his limit makes room among his own, by B3.
B6  A change goes on when nobody waits for it any more (`waiting.unbroken`), and has still what it was asked for. So the
    memory is lent to it: it stays reserved, and counts for its caller, until the change is done. Records give it back
    before (`Lent`), when nobody refers to them any more. Else who cuts his connections would have any number of long
    bodies wait for a slow disk. `CHANGE_BYTES` stand for what a change takes beside its body.
B7  What is given back is so for good: nothing is reserved for a request that is over. So no thread that works for it
    still takes what nobody would give back.
B8  Brokers that ask for themselves, and admins of the configuration, may take `RESERVED_PART` more than there is for
    all others: bodies of clients, slow ones or many, keep no record out of the audit, and nobody from mending what is
    wrong.
B9  What is given back is not in memory any more: an error that is answered has let go of what it was met with
    (`errors.forget_frames`).

Media types are required, not only for order: a browser may send `text/plain` or a form from any web
page to a broker on this machine without asking, but neither JSON nor Arrow.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Final, NoReturn, TypeVar

import numpy as np
from aiohttp import web

from broker.api.errors import InvalidRequest, LiftlogError, Overloaded, RequestTimedOut, RequestTooLarge
from broker.serving.http.callers import MEMORY, Callers, caller_now
from broker.serving.http.meters import Meters

T = TypeVar("T")

JSON_BYTES_MAX: Final = 4 << 20
PIECE_BYTES: Final = 256 << 10
"""So much more is reserved before the next bytes of a body of unknown length are read or decoded."""
PACKED_BYTES: Final = 16 << 10
"""So much is handed to the decoder at once: what is behind the end of a member is copied for the next."""
MEMBERS_MAX: Final = 4_096
UNWANTED_S: Final = 1.0
SLOW_S: Final = 10.0
CHANGE_BYTES: Final = 16 << 10
RESERVED_PART: Final = 8
"""One of so many parts of a budget."""
ROOM_MADE_BYTES: Final = 256 << 10
"""A body that says to be so long or longer gets all of its memory at once."""
JSON_MEDIA: Final = "application/json"
BODY_TIMEOUT_S: Final = web.AppKey("body_timeout_s", float)
"""How long nothing may come of a body that is not complete."""
METERS: Final = web.AppKey("meters", Meters)
_ENCODINGS: Final = ("", "identity", "gzip", "deflate")
_GZIP, _ZLIB, _RAW_DEFLATE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class BodyBudget:
    """Bounds the bytes that all request bodies of a kind, or answers, take at once. For any thread.

    Args:
        callers: Says which part of it one caller may take (B5). None: all.
    """

    def __init__(
        self, bytes_max: int, what: str = "request bodies in progress", *, callers: Callers | None = None
    ) -> None:
        self.bytes_max = bytes_max
        self._what = what
        self._callers = callers
        self.bytes_now = 0
        self._held: dict[str, int] = {}  # by caller
        self._lock = threading.Lock()
        self._coming: dict[Reservation, float] = {}  # whose bodies are being read, and since when: the oldest first

    @contextmanager
    def reserved(self, *, has_reserve: bool = False) -> Iterator[Reservation]:
        """A reservation of the caller of this request, which may grow; given back at the end. `has_reserve`: B8."""
        reservation = Reservation(self, caller_now(), has_reserve=has_reserve)
        try:
            yield reservation
        finally:
            reservation.end()

    def begin(self, reservation: Reservation) -> None:
        """Its body begins to come."""
        with self._lock:
            self._coming.setdefault(reservation, time.monotonic())

    def end(self, reservation: Reservation) -> None:
        """Its body is complete, or nobody reads it any more."""
        with self._lock:
            self._coming.pop(reservation, None)

    def take(self, byte_count: int, reservation: Reservation | None = None) -> None:
        """Take so much more. Raises as `Reservation.grow_to`, and then takes nothing, but ends the slowest (B3, B5)."""
        with self._lock:
            refused = self._refusal(byte_count, reservation)
            if refused is not None:
                raise refused
            self.bytes_now += byte_count
            if reservation is not None and (caller := reservation.caller) is not None:
                self._held[caller] = self._held.get(caller, 0) + byte_count

    def _refusal(self, byte_count: int, reservation: Reservation | None) -> LiftlogError | None:
        callers = self._callers
        if callers is not None and reservation is not None and (caller := reservation.caller) is not None:
            held, percent = self._held.get(caller, 0), callers.limits.memory_percent
            most = percent * self.bytes_max // 100
            if percent < 100 and held > reservation.byte_count and held + byte_count > most:
                self._end_slowest(caller)
                return callers.refusal(MEMORY, percent, caller)
        has_reserve = reservation is not None and reservation.has_reserve
        if self.bytes_now + byte_count > self.bytes_max + (self.bytes_max // RESERVED_PART if has_reserve else 0):
            self._end_slowest(None)
            return Overloaded(
                f"{self._what} hold {self.bytes_now} of {self.bytes_max} bytes; try again", limit=self.bytes_max
            )
        return None

    def _end_slowest(self, caller: str | None) -> None:
        """B3. `caller`: of whom; None: of all."""
        of = (each for each in self._coming.items() if caller is None or each[0].caller == caller)
        oldest, since_s = next(of, (None, 0.0))
        if oldest is not None and time.monotonic() - since_s >= SLOW_S:
            del self._coming[oldest]
            oldest.condemn()

    def give_back(self, byte_count: int, reservation: Reservation | None = None) -> None:
        """Let others have it."""
        with self._lock:
            self.bytes_now -= byte_count
            if byte_count and reservation is not None and (caller := reservation.caller) is not None:
                left = self._held[caller] = self._held[caller] - byte_count
                if not left:
                    del self._held[caller]


class Reservation:
    """One request's part of a budget.

    Attributes:
        caller: Whom it counts for (B5). None: nobody.
        has_reserve: Of B8.
        is_condemned: Its body is to end, for others (B3).
    """

    def __init__(self, budget: BodyBudget, caller: str | None = None, *, has_reserve: bool = False) -> None:
        self._budget = budget
        self._lock = threading.Lock()  # taken before that of the budget
        self.caller = caller
        self.has_reserve = has_reserve
        self.byte_count = 0
        self.is_condemned = False
        self._has_ended = False
        self._loans = 0
        self._wait: tuple[asyncio.AbstractEventLoop, asyncio.Timeout] | None = None

    @asynccontextmanager
    async def waiting(self, timeout_s: float) -> AsyncIterator[None]:
        """For the next bytes. Raises TimeoutError when the time is up, or it is condemned."""
        self._budget.begin(self)
        async with asyncio.timeout(0 if self.is_condemned else timeout_s) as timeout:
            self._wait = asyncio.get_running_loop(), timeout
            try:
                yield
            finally:
                self._wait = None

    def complete(self) -> None:
        """All of the body is there."""
        self._budget.end(self)

    def condemn(self) -> None:
        """End its body. From any thread."""
        self.is_condemned = True
        if (wait := self._wait) is not None:
            wait[0].call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        if self._wait is not None:
            loop, timeout = self._wait
            timeout.reschedule(loop.time())

    def grow_to(self, byte_count: int) -> None:
        """Take at least `byte_count` in all.

        Raises:
            Overloaded, LimitReached: other requests hold too much; the same request may succeed later.
        """
        self.grow_by(max(0, byte_count - self.byte_count))

    def grow_by(self, byte_count: int) -> None:
        """Take so much more. Raises as `grow_to`."""
        with self._lock:
            if self._has_ended:
                raise Overloaded("the request is over")  # B7: nobody is told
            self._budget.take(byte_count, self)
            self.byte_count += byte_count

    def lend(self) -> Loan:
        """Keep it until this ends, or nobody refers to it any more, and not only until its end (B6). On the loop."""
        with self._lock:
            self._loans += 1
        return Loan(asyncio.get_running_loop(), self._returned)

    def _returned(self) -> None:
        with self._lock:
            self._loans -= 1
            self._give_back()

    def end(self) -> None:
        """Give all of it back that is not lent."""
        self._budget.end(self)
        with self._lock:
            self._has_ended = True
            self._give_back()

    def _give_back(self) -> None:
        if self._has_ended and not self._loans:
            byte_count, self.byte_count = self.byte_count, 0
            self._budget.give_back(byte_count, self)


class Loan:
    """Reserved memory that is in use for as long as somebody refers to this, if it is not ended before.

    Args:
        returned: Called once, on the loop.
    """

    __slots__ = ("__weakref__", "_dropped", "_returned")

    def __init__(self, loop: asyncio.AbstractEventLoop, returned: Callable[[], None]) -> None:
        self._returned = returned
        self._dropped = weakref.finalize(self, _soon, loop, returned)
        self._dropped.atexit = False

    def end(self) -> None:
        """It is not in use any more. On the loop; does nothing the second time."""
        self.ending()()

    def ending(self) -> Callable[[], None]:
        """`end`, for who is not to keep it in use."""
        dropped, returned = self._dropped, self._returned
        return lambda: None if dropped.detach() is None else returned()


class Lent(list[T]):
    """Records of a body, which are in memory for as long as somebody refers to this.

    Attributes:
        loan: Their memory.
    """

    def __init__(self, records: Iterable[T], loan: Loan) -> None:
        super().__init__(records)
        self.loan = loan


def _soon(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """On the loop. Not at once: this may be called wherever the interpreter frees memory, under any lock."""
    with suppress(RuntimeError):  # it has ended
        loop.call_soon_threadsafe(act)


reservation_now: Final[ContextVar[Reservation]] = ContextVar("reservation")
"""The reservation of this request (B1)."""


def check_media(request: web.Request, allowed: Collection[str]) -> None:
    """Refuse a body of another media type (415) or with an encoding that is not undone (415)."""
    if request.content_type not in allowed or "Content-Type" not in request.headers:
        given = request.headers.get("Content-Type", "none")
        raise web.HTTPUnsupportedMediaType(
            text=f"Content-Type is {given[:100]!r}, must be {' or '.join(sorted(allowed))}"
        )
    encoding = request.headers.get("Content-Encoding", "").lower()
    if encoding not in _ENCODINGS:
        raise web.HTTPUnsupportedMediaType(text=f"Content-Encoding {encoding[:100]!r}: must be gzip, deflate or none")


async def read_body(request: web.Request, bytes_max: int) -> bytearray | memoryview:
    """The whole body, decoded, in this request's reservation (B1).

    Raises:
        RequestTooLarge: more than `bytes_max`, as declared or once decoded (gzip or deflate).
        InvalidRequest: cut off, or broken in its encoding.
        RequestTimedOut: nothing more came.
        Overloaded: the reservation cannot grow.
    """
    reservation, declared = reservation_now.get(), request.content_length
    if declared is not None and declared > bytes_max:
        _too_large(declared, bytes_max)
    encoding = request.headers.get("Content-Encoding", "").lower()
    is_packed, step = encoding in ("gzip", "deflate"), PIECE_BYTES
    if declared is not None and not is_packed:
        reservation.grow_to(declared)
        if declared >= ROOM_MADE_BYTES:
            return await _read_declared(request, declared)
        step = 0
    body = bytearray()
    try:
        reservation.grow_to(min(bytes_max, step))
        async for piece in _inflated(request, encoding) if is_packed else _pieces(request):
            body += piece
            if len(body) > bytes_max:
                _too_large(len(body), bytes_max)
            reservation.grow_to(min(bytes_max, len(body) + step))
    except (web.RequestPayloadError, zlib.error) as error:
        _leave_unread(request)
        what = f"{encoding}: {error}" if is_packed else str(error)
        raise InvalidRequest(f"the request body is broken after {len(body)} bytes: {what}") from error
    return body


async def _read_declared(request: web.Request, declared: int) -> memoryview:
    """A long body of known length, into memory of that length: one that grew would be moved again and again."""
    body, done = np.empty(declared, np.uint8).data, 0
    try:
        while chunk := await _more(request, done):
            body[done : done + len(chunk)] = chunk
            done += len(chunk)
    except web.RequestPayloadError as error:
        _leave_unread(request)
        raise InvalidRequest(f"the request body is broken after {done} bytes: {error}") from error
    if done != declared:
        raise InvalidRequest(f"the request body ended after {done} bytes of {declared}")
    return body


async def _pieces(request: web.Request) -> AsyncIterator[bytes]:
    done = 0
    while chunk := await _more(request, done):
        done += len(chunk)
        yield chunk


async def _inflated(request: web.Request, encoding: str) -> AsyncIterator[bytes]:
    """The decoded body in pieces of at most `PIECE_BYTES` (B2). Raises zlib.error."""
    inflate, members = None, 0
    async for chunk in _packed(request):
        while chunk:
            if inflate is None:  # also for the next member of a gzip file
                members += 1
                if members > MEMBERS_MAX:
                    raise zlib.error(f"more than {MEMBERS_MAX} members")
                is_zlib = chunk[0] & 0x0F == zlib.DEFLATED
                inflate = zlib.decompressobj(_GZIP if encoding == "gzip" else _ZLIB if is_zlib else _RAW_DEFLATE)
            yield inflate.decompress(chunk, PIECE_BYTES)
            chunk = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            if inflate.eof:
                if chunk and encoding != "gzip":
                    raise zlib.error("bytes follow its end")
                inflate = None if encoding == "gzip" else inflate
            await asyncio.sleep(0)  # a short body may be long
    if inflate is not None and not inflate.eof:
        raise zlib.error("it is cut off")


async def _packed(request: web.Request) -> AsyncIterator[bytes]:
    """The body as it came, in pieces of at most `PACKED_BYTES`."""
    async for chunk in _pieces(request):
        for at in range(0, len(chunk), PACKED_BYTES):
            yield chunk[at : at + PACKED_BYTES]


def _leave_unread(request: web.Request) -> None:
    """After a body that is broken. aiohttp would read on, meet the same error, and log it as a fault of ours."""
    request.protocol._lingering_time = 0


async def _more(request: web.Request, byte_count: int) -> bytes:
    """The next bytes of a body of which so many were read; empty at its end."""
    content, timeout_s, reservation = request.content, request.app[BODY_TIMEOUT_S], reservation_now.get()
    while True:
        came = content.total_bytes
        try:
            if content.is_eof():  # all of it has come: nobody waits, and no timer is needed
                chunk = await content.readany()
            else:
                async with reservation.waiting(timeout_s):
                    chunk = await content.readany()
            if not chunk:
                reservation.complete()
            return chunk
        except TimeoutError:
            if reservation.is_condemned:
                _leave_unread(request)
                raise Overloaded(
                    f"after {byte_count} bytes in {SLOW_S:g} s or more others need the memory for the request body; try"
                    " again"
                ) from None
            if content.total_bytes != came or content.is_eof():  # it was this loop that was late
                continue
            request.app[METERS].timeouts.labels("body").inc()
            raise RequestTimedOut(
                f"after {byte_count} bytes of the request body none came for {timeout_s:g} s: http.body_timeout_ms",
                key="http.body_timeout_ms",
                limit=round(1000 * timeout_s),
            ) from None


def _too_large(byte_count: int, bytes_max: int) -> NoReturn:
    raise RequestTooLarge(
        f"a request body of {byte_count} bytes or more: at most {bytes_max} are accepted", limit=bytes_max
    )


async def read_json_text(request: web.Request, bytes_max: int) -> bytearray | memoryview:
    """The body of a request that says that it is JSON. Raises as `read_body`."""
    check_media(request, (JSON_MEDIA,))
    return await read_body(request, bytes_max)


async def refuse_content(request: web.Request) -> None:
    """B4. One of unknown length may be empty, which shows in `UNWANTED_S`. Raises InvalidRequest."""
    if not request.body_exists:
        return
    if request.content_length is None:
        with suppress(TimeoutError):
            async with asyncio.timeout(UNWANTED_S):
                if not await request.content.readany():
                    return
    raise InvalidRequest("this operation takes no request body")
