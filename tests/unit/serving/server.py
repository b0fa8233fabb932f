"""A real server on an ephemeral port, and a client that holds every answer against the contract."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import pyarrow as pa
from aiohttp import web
from jsonschema import Draft202012Validator

from broker.api.batch import decode_batch
from broker.api.http import ARROW_STREAM, PROBLEM_JSON
from broker.api.schema import SCHEMA
from broker.serving.contract.endpoint import Serving
from broker.serving.contract.openapi import document
from broker.serving.http.access import AuthRules
from broker.serving.http.app import CONNECTIONS, ENDPOINTS, RUNNER_OPTIONS, SERVING, build_app
from broker.serving.http.callers import DEFAULT_CALLER_LIMITS, CallerLimits
from broker.serving.http.connections import DEFAULT_LIMITS, ConnectionLimits
from broker.serving.http.tls import TlsContexts
from tests.support.backend import LogBackend
from tests.support.messages import split_messages
from tests.unit.serving.arrow import stream_of

T = TypeVar("T")
CONTRACT = document(ENDPOINTS)
_TEMPLATES = [(re.compile(re.sub(r"{\w+}", "[^/]+", path)), path) for path in sorted(CONTRACT["paths"])]
"""A literal path before a template that matches it: `{` stands behind all letters."""


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers.get_content_type() == PROBLEM_JSON, (self.status, self.body[:500])
        found: dict[str, Any] = self.json()
        return found

    @property
    def reason(self) -> str:
        return str(self.problem["reason"])

    def rows(self) -> pa.Table:
        """The records of an Arrow answer, each batch verified as our client does."""
        assert self.status == 200, self.body[:500]
        batches = [decode_batch(message) for message in split_messages(self.body)]
        return pa.Table.from_batches(batches, schema=SCHEMA)


class Server:
    """The application in a thread with its own loop, as a broker runs it."""

    def __init__(
        self,
        folder: Path,
        *,
        body_bytes_max: int,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        caller_limits: CallerLimits = DEFAULT_CALLER_LIMITS,
        tls: TlsContexts | None = None,
        auth: AuthRules | None = None,
        **options: Any,
    ) -> None:
        self._caller_limits = caller_limits
        self._tls = tls
        self._auth = auth
        self.loop = asyncio.new_event_loop()
        self._listening: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self.loop.run_forever, name="server", daemon=True)
        self._thread.start()
        self.call(self._start(folder, body_bytes_max, limits, {**RUNNER_OPTIONS, **options}))
        self.api = Api(self.port)

    async def _start(
        self, folder: Path, body_bytes_max: int, limits: ConnectionLimits, options: dict[str, Any]
    ) -> None:
        self.backend = LogBackend(folder)
        self.app = build_app(
            self.backend,
            body_bytes_max=body_bytes_max,
            limits=limits,
            caller_limits=self._caller_limits,
            tls=self._tls,
            auth_rules=self._auth,
        )
        self._runner = web.AppRunner(self.app, **options)
        await self._runner.setup()
        self.port = await self.listen()
        self.backend.http = f"127.0.0.1:{self.port}"

    async def listen(self, tls: TlsContexts | None = None) -> int:
        """Listen on a port of the system's choice, as a broker does; over TLS, if it is given. Returns it."""
        assert self._runner.server is not None
        factory = self.app[CONNECTIONS].protocol_factory(self._runner.server, tls)
        server = await self.loop.create_server(factory, "127.0.0.1", 0)
        self._listening.append(server)
        return int(server.sockets[0].getsockname()[1])

    @property
    def serving(self) -> Serving:
        return self.app[SERVING]

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = 60) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def shut_down(self) -> None:
        """Stop serving; the loop goes on."""
        self.call(self._cleanup())

    async def _cleanup(self) -> None:
        for server in self._listening:
            server.close()
        await self._runner.cleanup()

    def close(self) -> None:
        self.shut_down()
        self.call(self.backend.sinks.end_asking())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        self.backend.close()


class Api:
    """A keep-alive connection. Every answer is held against the OpenAPI document."""

    def __init__(self, port: int, timeout_s: float = 90) -> None:
        self.port = port
        self._timeout_s = timeout_s
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)

    def another(self) -> Api:
        """Another connection to the same server."""
        return Api(self.port, self._timeout_s)

    def close(self) -> None:
        self._connection.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json_body: Any = None,
        body: bytes | Iterator[bytes] | None = None,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        headers = dict(headers or {})
        if json_body is not None:
            body = json.dumps(json_body).encode()
            headers.setdefault("Content-Type", "application/json")
        if query:
            path += "?" + "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
        self._connection.request(method, path, body=body, headers=headers)
        response = self._connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
        check_contract(method, path, answer)
        return answer

    def get(self, path: str, **more: Any) -> Answer:
        return self.request("GET", path, **more)

    def post(self, path: str, json_body: Any, **more: Any) -> Answer:
        return self.request("POST", path, json_body=json_body, **more)

    def create(self, name: str, **settings: Any) -> dict[str, Any]:
        answer = self.post("/v1/streams", {"name": name, **settings})
        assert answer.status == 201, answer.body
        found: dict[str, Any] = answer.json()
        assert found.pop("created") is True, "said of a new one, and not again"
        return found

    def read(self, stream: str, partition: int = 0, *, method: str = "GET", **query: Any) -> Answer:
        return self.request(method, f"/v1/streams/{stream}/partitions/{partition}/records", **query)

    def append(self, stream: str, records: Any, partition: int = 0, **query: Any) -> Answer:
        """Append record batches (or bytes as they are)."""
        return self.request(
            "POST",
            f"/v1/streams/{stream}/partitions/{partition}/records",
            body=records if isinstance(records, bytes) else stream_of(records),
            headers={"Content-Type": ARROW_STREAM},
            **query,
        )


def check_contract(method: str, path: str, answer: Answer) -> None:
    """The answer is one that the OpenAPI document allows for this operation, in status, type, headers and shape."""
    where = f"{method} {path} -> {answer.status}"
    template = next((t for pattern, t in _TEMPLATES if pattern.fullmatch(urlsplit(path).path)), None)
    operation = CONTRACT["paths"].get(template, {}).get(method.lower())
    if operation is None:
        assert answer.status in (404, 405), f"{where}: not in the contract"
        if method == "HEAD":
            assert not answer.body, where
            return
        _check_body(where, ref_problem(), answer)
        return
    response = operation["responses"].get(str(answer.status), operation["responses"]["default"])
    for name in response.get("headers", ()):
        is_required = CONTRACT["components"]["headers"][name].get("required", False)
        assert not is_required or name in answer.headers, f"{where}: header {name} is missing"
    if method == "HEAD" or answer.status == 204:
        assert not answer.body, where
        return
    kind = answer.headers.get_content_type()
    assert kind in response["content"], f"{where}: {kind} is not in the contract: {answer.body[:300]!r}"
    if "schema" in response["content"][kind]:
        _check_body(where, response["content"][kind]["schema"], answer)


def ref_problem() -> dict[str, Any]:
    return {"$ref": "#/components/schemas/Problem"}


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    """The validator of a part of the contract. Made once: to look through its components takes longer than to check an
    answer."""
    return _validator(json.dumps(schema))


@cache
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator({**json.loads(schema), "components": CONTRACT["components"]})


def _check_body(where: str, schema: dict[str, Any], answer: Answer) -> None:
    errors = list(validator(schema).iter_errors(answer.json()))
    assert not errors, f"{where}: {errors[0].message} at {errors[0].json_path}"


@contextmanager
def running(
    folder: Path, *, body_bytes_max: int = 1 << 20, limits: ConnectionLimits = DEFAULT_LIMITS, **options: Any
) -> Iterator[Server]:
    """A server for one test. It listens in plain; `tls` is for its questions to others, and for `listen`."""
    server = Server(folder, body_bytes_max=body_bytes_max, limits=limits, **options)
    try:
        yield server
    finally:
        server.api.close()
        server.close()
