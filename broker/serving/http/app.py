"""The HTTP application of a broker: one table of endpoints, one middleware, a clean end.

    ENDPOINTS ──► routes (validation, deadline) ──► handlers ──► Backend
        └───────► OpenAPI document                                 the broker

At shutdown long polls are let go first, so that waiting for requests under way is short.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from broker.api import http
from broker.metadata.shapes import ADDRESS_PATTERN
from broker.serving.contract.backend import Backend
from broker.serving.contract.endpoint import Endpoint, Serving
from broker.serving.contract.openapi import endpoint_for
from broker.serving.contract.problems import problems
from broker.serving.endpoints import (
    append,
    audit,
    auth,
    bundles,
    changes,
    cluster,
    consumers,
    fences,
    groups,
    operator,
    pins,
    producers,
    records,
    resolve,
    sinks,
    streams,
    watch,
)
from broker.serving.endpoints.heads import PolledHeads
from broker.serving.http.access import ACCESS, AuthRules, Gate, is_told
from broker.serving.http.audit import Audit
from broker.serving.http.body import BODY_TIMEOUT_S, METERS, BodyBudget
from broker.serving.http.callers import DEFAULT_CALLER_LIMITS, CallerLimits, Callers
from broker.serving.http.connections import DEFAULT_LIMITS, ConnectionLimits, Connections
from broker.serving.http.gone import PULSE, Pulse
from broker.serving.http.meters import Meters
from broker.serving.http.new_names import NewNames
from broker.serving.http.origin import guard
from broker.serving.http.peers import Peers
from broker.serving.http.tls import TlsContexts
from broker.serving.threads import Threads

if TYPE_CHECKING:
    from broker.serving.http.jwts import Jwts

WORKER_THREADS: Final = 4
BODIES_AT_ONCE: Final = 8
"""So many times `http.body_bytes_max` is taken by bodies of records at once, copies and decoded ones included. Beyond
that POSTs get `overloaded`. One body takes 7 times its limit at most."""
JSON_BUDGET_BYTES_MAX: Final = 256 << 20
"""Memory of all JSON bodies and of what is made of them."""
LINES_BUDGET_BYTES_MAX: Final = 512 << 20
"""Memory of all answers of JSON lines, as far as `http.body_bytes_max` does not allow larger batches."""

_TABLE: Final = (
    *records.ENDPOINTS,
    *append.ENDPOINTS,
    *fences.ENDPOINTS,
    *producers.ENDPOINTS,
    *streams.ENDPOINTS,
    *changes.ENDPOINTS,
    *watch.ENDPOINTS,
    *resolve.ENDPOINTS,
    *consumers.ENDPOINTS,
    *groups.ENDPOINTS,
    *pins.ENDPOINTS,
    *sinks.ENDPOINTS,
    *bundles.ENDPOINTS,
    *cluster.ENDPOINTS,
    *operator.ENDPOINTS,
    *auth.ENDPOINTS,
    *audit.ENDPOINTS,
)
ENDPOINTS: Final[tuple[Endpoint, ...]] = (*_TABLE, endpoint_for(_TABLE))
"""All that the server answers, besides HEAD for each GET."""

RUNNER_OPTIONS: Final[dict[str, Any]] = {
    "handle_signals": False,
    "handler_cancellation": True,  # a long poll ends with its client
    "shutdown_timeout": 5.0,  # for answers under way; a reader that takes longer is cut off
}
"""How `web.AppRunner` should run the application."""

SERVING: Final = web.AppKey("serving", Serving)
CONNECTIONS: Final = web.AppKey("connections", Connections)
"""Listen with its `protocol_factory`."""


_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def build_app(
    backend: Backend,
    *,
    body_bytes_max: int,
    limits: ConnectionLimits = DEFAULT_LIMITS,
    caller_limits: CallerLimits = DEFAULT_CALLER_LIMITS,
    hosts: frozenset[str] = frozenset(),
    tls: TlsContexts | None = None,
    auth_rules: AuthRules | None = None,
    is_audited: bool = True,
    now_ns: Callable[[], int] = time.time_ns,
) -> web.Application:
    """The application, to be run with `RUNNER_OPTIONS` on the loop that the backend waits on.

    Args:
        backend: The broker.
        body_bytes_max: Limit of a request body of records, in bytes; twice that when decompressed.
        limits: Limits of connections.
        caller_limits: The most that one caller may take.
        hosts: Names of this broker, beside addresses and loopback (`origin.hosts_of`).
        tls: Of this broker, and of all others. None: plain HTTP. Listen with it, too (`CONNECTIONS`).
        auth_rules: Who may do what, as far as the configuration says. None: whoever reaches the port may do everything.
        is_audited: Whether administrative acts and refusals are recorded in `__audit`.
        now_ns: The clock: nanoseconds since 1970 UTC.
    """

    def now_us() -> int:
        return now_ns() // 1_000

    meters = Meters()
    callers = Callers(caller_limits, meters)
    rules = auth_rules or AuthRules()
    peers = Peers(backend.broker_id, tls, rules.peer_key, lambda *found: serving.audit.kept_out("http", *found))
    worker = Threads(WORKER_THREADS, name="http-worker")
    gate = Gate(
        rules,
        lambda: backend.access,
        lambda: {str(each["id"]) for each in backend.brokers()},
        now_ns,
        backend.catch_up,
        _jwts_of(rules, lambda: now_ns() / 1e6, worker),
        tls.revocations if tls is not None else lambda: None,
    )
    serving = Serving(
        backend=backend,
        body_bytes_max=body_bytes_max,
        now_us=now_us,
        worker=worker,
        decoder=Threads(1, name="http-decoder"),
        meters=meters,
        budget=BodyBudget(BODIES_AT_ONCE * body_bytes_max, callers=callers),
        json_budget=BodyBudget(JSON_BUDGET_BYTES_MAX, callers=callers),
        lines_budget=BodyBudget(
            max(BODIES_AT_ONCE * body_bytes_max, LINES_BUDGET_BYTES_MAX), "answers of JSON lines", callers=callers
        ),
        peers=peers,
        heads=PolledHeads(peers, backend.note_elsewhere),
        gate=gate,
        callers=callers,
        names=NewNames(callers, is_told_apart=lambda: not gate.is_off),
        audit=Audit(backend, gate, peers, meters, now_us, callers, is_on=is_audited),
    )
    app = web.Application(middlewares=[problems(meters), guard(hosts)])
    app[SERVING] = serving
    app[METERS] = meters
    app[BODY_TIMEOUT_S] = limits.body_timeout_s
    app[CONNECTIONS] = Connections(limits, meters, callers, partial(serving.audit.kept_out, "http"), gate.is_peer)
    for endpoint in ENDPOINTS:
        handler = endpoint.bind(serving)
        if endpoint.method == "GET":
            app.router.add_get(endpoint.path, handler, allow_head=True)
        else:
            app.router.add_route(endpoint.method, endpoint.path, handler)
    app.on_response_prepare.append(_name_servers)
    app.on_shutdown.append(_drain)
    app[PULSE] = pulse = Pulse()
    app.cleanup_ctx.extend((_worker, pulse.beats, gate.looks, serving.audit.trail.works, serving.audit.summaries))
    return app


def _jwts_of(rules: AuthRules, now_ms: Callable[[], float], worker: Threads) -> Jwts | None:
    if rules.jwt is None:
        return None
    from broker.serving.http.jwts import Jwts  # what it needs is loaded where JWTs are used

    return Jwts(rules.jwt, now_ms, lambda call: asyncio.get_running_loop().run_in_executor(worker, call))


async def _name_servers(request: web.Request, response: web.StreamResponse) -> None:
    """This one, and the others: a client goes on with them when those that it was given are gone."""
    response.headers["Server"] = "liftlog"
    serving = request.app[SERVING]  # this may run in another context than the handler did
    may_hear = is_told(serving.gate, request.get(ACCESS), response.status)
    known = serving.backend.addresses() if may_hear else ()
    if len(known) > 1:
        response.headers[http.BROKERS] = _listed(known)
    for name in [name for name, value in response.headers.items() if _CONTROL.search(value)]:
        del response.headers[name]


@lru_cache(4)
def _listed(addresses: tuple[str, ...]) -> str:
    """A catalog of before may hold what would end the header, and with it the answer."""
    return ",".join(each for each in addresses if re.fullmatch(ADDRESS_PATTERN, each))


async def _drain(app: web.Application) -> None:
    app[SERVING].drain()


async def _worker(app: web.Application) -> AsyncIterator[None]:
    yield
    app[CONNECTIONS].close()
    await app[SERVING].heads.close()
    await app[SERVING].peers.close()
    app[SERVING].worker.shutdown(wait=True)
    app[SERVING].decoder.shutdown(wait=True)
