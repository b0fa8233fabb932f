"""Request bodies: nothing is read beyond a limit, and what is read is checked before it is used.

Media types are required, not only for order: a browser may send `text/plain` or a form from any web
page to a broker on this machine without asking, but neither JSON nor Arrow.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import numpy as np
from aiohttp import web

from broker.api.errors import InvalidRequest, Overloaded, RequestTimedOut, RequestTooLarge
from broker.serving.http.meters import Meters

JSON_BYTES_MAX: Final = 4 << 20
ROOM_MADE_BYTES: Final = 256 << 10
"""A body that says to be so long or longer gets all of its memory at once."""
JSON_MEDIA: Final = "application/json"
BODY_TIMEOUT_S: Final = web.AppKey("body_timeout_s", float)
"""How long nothing may come of a body that is not complete."""
METERS: Final = web.AppKey("meters", Meters)
_ENCODINGS: Final = ("", "identity", "gzip", "deflate")  # what aiohttp undoes while reading


class BodyBudget:
    """Bounds the bytes of all request bodies in memory at once."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_now = 0

    @contextmanager
    def reserved(self) -> Iterator[Reservation]:
        """A reservation that may grow; given back at the end."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.bytes_now -= reservation.byte_count
            reservation.byte_count = 0


class Reservation:
    """One request's part of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.byte_count = 0

    def grow_to(self, byte_count: int) -> None:
        """Take at least `byte_count` in all.

        Raises:
            Overloaded: other requests hold too much; the same request may succeed later.
        """
        more = byte_count - self.byte_count
        if more <= 0:
            return
        budget = self._budget
        if budget.bytes_now + more > budget.bytes_max:
            raise Overloaded(
                f"request bodies in progress hold {budget.bytes_now} of {budget.bytes_max} bytes; try again",
                limit=budget.bytes_max,
            )
        budget.bytes_now += more
        self.byte_count = byte_count


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


async def read_body(
    request: web.Request, bytes_max: int, reservation: Reservation | None = None
) -> bytearray | memoryview:
    """The whole body.

    Raises:
        RequestTooLarge: more than `bytes_max`, as declared or as read (after gzip or deflate).
        InvalidRequest: cut off, or broken in its encoding.
        RequestTimedOut: nothing more came.
        Overloaded: the reservation cannot grow.
    """
    declared = request.content_length
    if declared is not None and declared > bytes_max:
        _too_large(declared, bytes_max)
    if reservation is not None and declared is not None:
        reservation.grow_to(declared)
    if declared is not None and declared >= ROOM_MADE_BYTES and "Content-Encoding" not in request.headers:
        return await _read_declared(request, declared)
    body = bytearray()
    try:
        while chunk := await _more(request, len(body)):
            body += chunk
            if len(body) > bytes_max:
                _too_large(len(body), bytes_max)
            if reservation is not None:
                reservation.grow_to(len(body))
    except web.RequestPayloadError as error:
        _leave_unread(request)
        raise InvalidRequest(f"the request body is broken after {len(body)} bytes: {error}") from error
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


def _leave_unread(request: web.Request) -> None:
    """After a body that is broken. aiohttp would read on, meet the same error, and log it as a fault of ours."""
    request.protocol._lingering_time = 0


async def _more(request: web.Request, byte_count: int) -> bytes:
    """The next bytes of a body of which so many were read; empty at its end."""
    content, timeout_s = request.content, request.app[BODY_TIMEOUT_S]
    while True:
        came = content.total_bytes
        try:
            async with asyncio.timeout(timeout_s):
                return await content.readany()
        except TimeoutError:
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


async def read_json(request: web.Request, bytes_max: int = JSON_BYTES_MAX) -> dict[str, Any]:
    """The body as a JSON object. Doubled keys, NaN and Infinity are refused.

    Raises:
        InvalidRequest: not such a body.
        RequestTooLarge: over `bytes_max`.
    """
    return parse(await read_json_text(request, bytes_max))


async def read_json_text(request: web.Request, bytes_max: int) -> bytearray | memoryview:
    """The body of a request that says that it is JSON. Raises RequestTooLarge, and as `read_body`."""
    check_media(request, (JSON_MEDIA,))
    return await read_body(request, bytes_max)


def parse(body: bytearray | memoryview) -> dict[str, Any]:
    """A body as a JSON object. Raises InvalidRequest."""
    try:
        value = json.loads(bytes(body).decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the request body is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"the request body must be a JSON object, it is {type(value).__name__}")
    return value


async def refuse_body(request: web.Request) -> None:
    """For a POST that takes no body (an empty one is none): refuse one, and refuse other sites' web pages.

    Without a body there is no media type that a browser would have to ask for first, so `Origin` decides.

    Raises:
        InvalidRequest: there is a body.
    """
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        raise web.HTTPForbidden(text=f"a web page of {origin[:100]!r} may not do this")
    if request.body_exists and await read_body(request, JSON_BYTES_MAX):
        raise InvalidRequest("this operation takes no request body")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:100]!r} is given twice")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")
