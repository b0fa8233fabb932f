"""Requests that a page of another site makes in somebody's browser, and their refusal.

    page of evil.example ─► browser ─► this broker, which only that browser's machine may reach

There is no login that such a page would lack. It reaches the broker by a plain request (a form, an image), or under a
name of its own that it lets point to this address (DNS rebinding): then the browser takes both for one site.

O1  A name in `Host`, or in the target, is this broker's: loopback, configured (`http.hosts`, `http.host`), or the one
    that it is advertised under. An address of numbers is anybody's: a page has to own a name to rebind it.
O2  `Origin`, where there is one, is the host that is asked, and https where that is asked over TLS: whoever can change
    packets can answer for `http://` of every host. Other programs than browsers send none.
O3  `Sec-Fetch-Site: cross-site` is refused: the browser says what it is.
O4  This holds for every method and path but `/livez`, which says nothing: whoever restarts a broker that does not
    answer there may ask by any name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from broker.api.errors import ForeignRequest

OPEN_PATHS: Final = frozenset({"/livez"})
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\],]+)(?::([0-9]{0,5}))?")
_SHOWN: Final = 100


def hosts_of(names: Iterable[str | None]) -> frozenset[str]:
    """The names of this broker, of names and of host:port."""
    return frozenset(host for name in names if name is not None and (host := _host(name)) is not None)


def guard(hosts: frozenset[str]) -> Middleware:
    """The middleware. `hosts`: this broker's names (O1), as `hosts_of` gives them."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS:
            check(request, hosts)
        return await handler(request)

    return middleware


def check(request: web.Request, hosts: frozenset[str]) -> None:
    """Raise ForeignRequest for one that a page of another site has made, or may have."""
    target = request._message.url  # with a host of its own in a request to a proxy
    named = [*request.headers.getall("Host", ()), *([target.raw_authority] if target.absolute else [])]
    for text in named:
        host = _host(text)
        if host is None or not (host in hosts or _is_harmless(host)):
            raise ForeignRequest(
                f"this broker is not called {text[:_SHOWN]!r}: name it in http.hosts, or ask by its address, or by"
                " the name that is http.advertised",
                key="http.hosts",
                host=text[:_SHOWN],
            )
    for origin in request.headers.getall("Origin", ()):
        scheme, _, host = origin.lower().partition("://")
        if host not in {text.lower() for text in named} or (request.secure and scheme != "https"):
            raise ForeignRequest(
                f"a page of {origin[:_SHOWN]!r} asks in a browser, and is not of this broker", origin=origin[:_SHOWN]
            )
    if "cross-site" in [site.strip().lower() for site in request.headers.getall("Sec-Fetch-Site", ())]:
        raise ForeignRequest("a page of another site asks in a browser (Sec-Fetch-Site: cross-site)")


def _host(authority: str) -> str | None:
    """The host of host:port, in small letters; None: it is none."""
    found = _AUTHORITY.fullmatch(authority)
    return found[1].strip("[]").lower().removesuffix(".") if found else None


def _is_harmless(host: str) -> bool:
    """Whether no other site can be of this name."""
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
