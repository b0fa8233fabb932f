"""A request to the HTTP API from within this process, for whoever called over another protocol.

It goes the way of every request, without a socket: callers and permissions, limits, the audit, the deadline, the
counters and the log are those of its endpoint, and there is no second rule for any of them.

    call ─► operation, its path, query and body ─► web.Request ─► the application ─► answer, or an error

D1  What identifies the caller is what the connection below has shown (certificate, address) and the header
    `Authorization`, as with HTTP. No other header of the client's goes in: none can be a broker's proof.
D2  An answer is collected in memory, up to `ANSWER_BYTES_MAX`: who asks for records says how many bytes it takes.
D3  If what asked is cancelled, the request is, as when a client of HTTP goes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from broker.api.errors import InvalidRequest, LiftlogError, RequestTooLarge, Unavailable, UnknownStream, from_problem
from broker.api.http import PROBLEM_JSON
from broker.api.principals import ANONYMOUS
from broker.serving.http.access import ACCESS, is_told
from broker.serving.http.app import ENDPOINTS, SERVING
from broker.serving.http.body import JSON_MEDIA

if TYPE_CHECKING:
    from broker.serving.http.addresses import CountedAddress
    from broker.serving.http.rights import LastCaller

ANSWER_BYTES_MAX: Final = 64 << 20
BY_OPERATION: Final = {endpoint.operation: endpoint for endpoint in ENDPOINTS}


class Below(Protocol):
    """The connection of who asks.

    Attributes:
        place: Its address, as it is counted.
        remembered: The last caller (`rights.R2`).
    """

    transport: asyncio.Transport | None
    place: CountedAddress | None
    remembered: LastCaller | None


class Within(NamedTuple):
    """An answer.

    Attributes:
        is_told: Its caller may hear of the cluster's brokers, as by the header of HTTP.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_told: bool

    def json(self) -> Any:
        """Its JSON."""
        return json.loads(self.body)


class WayIn:
    """See the module.

    Args:
        server: Of the application; running.
        below: Whose request it is.
        authorization: The headers of that name.
    """

    def __init__(self, server: web.Server, below: Below, authorization: tuple[str, ...]) -> None:
        self._server, self._below, self._authorization = server, below, authorization
        self.principal = ANONYMOUS
        """Of whom the last request was judged; for one that goes on to another broker (`access.A6`)."""

    async def ask(
        self,
        operation: str,
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        data: bytes | None = None,
        media: str = JSON_MEDIA,
    ) -> Within:
        """Carry out one operation.

        Args:
            body: JSON. Or
            data: Bytes of type `media`.
        Raises:
            LiftlogError: what the endpoint answered.
        """
        endpoint = BY_OPERATION[operation]
        target = endpoint.path.format(**{name: quote(text, safe="") for name, text in (path or {}).items()})
        url = URL(target, encoded=True).with_query(query or {})
        content = json.dumps(body).encode() if body is not None else data
        headers = CIMultiDict[str](Host="localhost")
        for each in self._authorization:
            headers.add("Authorization", each)
        if content is not None:
            headers["Content-Type"], headers["Content-Length"] = media, str(len(content))
        raw = tuple((name.encode(), value.encode(errors="surrogateescape")) for name, value in headers.items())
        message = RawRequestMessage(
            endpoint.method,
            str(url),
            HttpVersion11,
            CIMultiDictProxy(headers),
            raw,
            should_close=False,
            compression=None,
            upgrade=False,
            chunked=False,
            url=url,
        )
        return await asyncio.create_task(self._answered(message, content))  # in a context of its own

    async def _answered(self, message: RawRequestMessage, content: bytes | None) -> Within:
        loop = asyncio.get_running_loop()
        payload = EMPTY_PAYLOAD
        if content is not None:
            payload = StreamReader(BaseProtocol(loop), max(1, len(content)), loop=loop)  # it never asks for a pause
            payload.feed_data(content)
            payload.feed_eof()
        collected = Collected()
        asking: Any = SeenConnection(self._below)
        task: Any = asyncio.current_task()
        request: Any = self._server.request_factory(message, payload, asking, collected, task)
        response = await self._server.request_handler(request)
        if (access := request.get(ACCESS)) is not None:
            self.principal = access.caller.principal
        if asking.transport.is_cut:
            raise Unavailable("the answer was cut off")
        body = bytes(collected.data) if response.prepared else _body_of(response)
        if response.status >= 300:
            raise _error_of(response, body)
        told = is_told(request.app[SERVING].gate, request.get(ACCESS), response.status)
        return Within(response.status, response.headers, body, told)


def _body_of(response: web.StreamResponse) -> bytes:
    body = response.body if isinstance(response, web.Response) else b""
    return bytes(body) if isinstance(body, bytes | bytearray) else b""


def _error_of(response: web.StreamResponse, body: bytes) -> LiftlogError:
    if response.content_type == PROBLEM_JSON:
        error = from_problem(json.loads(body))
        if response.status == HTTPStatus.NOT_FOUND and type(error) is InvalidRequest:  # a name that no path can have
            return UnknownStream("there is nothing of such a name")
        return error
    return Unavailable(f"HTTP status {response.status}")


class Unsent:
    """The connection below, as a request from within sees it: who is there, and nothing to write to."""

    def __init__(self, below: asyncio.Transport | None) -> None:
        self._below = below
        self.is_cut = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the connection says. It counts as one that files cannot be sent to, as under TLS."""
        if name == "sslcontext":
            return self
        return default if self._below is None else self._below.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether nobody waits for the answer."""
        return self.is_cut or self._below is None or self._below.is_closing()

    def abort(self) -> None:
        """The answer is worth nothing."""
        self.is_cut = True


class SeenConnection:
    """What a request knows of its connection: as much of `connections.HttpConnection` as requests look at."""

    def __init__(self, below: Below) -> None:
        self._below = below
        transport = below.transport
        self.transport = Unsent(transport)
        self.ssl_context = None if transport is None else transport.get_extra_info("sslcontext")
        self.peername = None if transport is None else transport.get_extra_info("peername")
        self.sockname = None if transport is None else transport.get_extra_info("sockname")
        self.place = below.place
        self._lingering_time = 0.0

    @property
    def remembered(self) -> LastCaller | None:
        """Of the connection: of one that asks again little has to be looked up."""
        return self._below.remembered

    @remembered.setter
    def remembered(self, found: LastCaller | None) -> None:
        self._below.remembered = found


class Collected(AbstractStreamWriter):
    """An answer that is written, in memory (D2)."""

    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """More of it. Raises RequestTooLarge."""
        self.data += chunk
        self.output_size = len(self.data)
        if len(self.data) > ANSWER_BYTES_MAX:
            raise RequestTooLarge(f"an answer of more than {ANSWER_BYTES_MAX} bytes", limit=ANSWER_BYTES_MAX)

    async def write_eof(self, chunk: bytes = b"") -> None:
        """The last of it."""
        if chunk:
            await self.write(chunk)

    async def drain(self) -> None:
        """Nothing waits."""

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        """None asks for it."""

    def enable_chunking(self) -> None:
        """It has no frames."""

    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None:
        """They are the response's."""
