"""Every error as an RFC 9457 problem body, with the reason codes of `broker.api.errors`.

The outermost middleware, the top of this driver: what no handler expected becomes a 500 with reason
`internal` and an id that is also in the log; clients never see a traceback. A client that went away
is no error.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from broker.api.errors import (
    InvalidRequest,
    LiftlogError,
    Overloaded,
    RequestTimedOut,
    Retryable,
    Unauthenticated,
    forget_frames,
)
from broker.api.http import PROBLEM_JSON
from broker.serving.contract.endpoint import operation_now
from broker.serving.http.meters import Meters
from broker.serving.http.sending import abort

log = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 1

protocol_log = logging.getLogger(f"{__name__}.protocol")
"""For aiohttp itself."""


def problem_response(
    error: LiftlogError, *, status: int | None = None, headers: dict[str, str] | None = None
) -> web.Response:
    """The answer that stands for an error.

    Args:
        status: Where HTTP has a status of its own for it (404 for a path, 405, 415); else the error's.
    """
    problem = error.to_problem()
    if status is not None:
        problem["status"] = status
    response = web.Response(
        status=problem["status"],
        body=json.dumps(problem, default=str).encode(),
        content_type=PROBLEM_JSON,
        headers=headers,
    )
    if isinstance(error, Retryable):
        response.headers["Retry-After"] = str(error.fields.get("retry_after_s", RETRY_AFTER_S))
    if isinstance(error, Unauthenticated):
        response.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RequestTimedOut):
        response.force_close()  # the rest of the request may still come
    return response


def internal_error(request: web.BaseRequest, error: BaseException | None) -> LiftlogError:
    """The error for what nobody foresaw: an id, under which the log says more."""
    error_id = secrets.token_hex(6)
    log.error("http.bug id=%s method=%s path=%s", error_id, request.method, request.path[:500], exc_info=error)
    return LiftlogError(f"internal error {error_id}: the broker's log says more under this id", id=error_id)


def from_http(error: web.HTTPException, request: web.BaseRequest) -> web.Response:
    """aiohttp's own refusals, in our shape."""
    path = request.path[:200]
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = sorted(error.allowed_methods)
        return problem_response(
            InvalidRequest(f"{request.method} is not allowed for {path}; {', '.join(allowed)} are", limit=allowed),
            status=405,
            headers={"Allow": ", ".join(allowed)},
        )
    if isinstance(error, web.HTTPNotFound):
        return problem_response(
            InvalidRequest(f"there is nothing at {path}; /openapi.json lists all paths", path=path), status=404
        )
    kind = InvalidRequest if error.status < 500 else LiftlogError
    return problem_response(kind(error.text or error.reason), status=error.status)


def problems(meters: Meters) -> Middleware:
    """The middleware. Also counts, and writes one access log line per request at DEBUG."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.perf_counter()
        meters.in_flight.inc()
        begin = getattr(request.protocol, "request_began", None)  # a `connections.HttpConnection`
        refused = begin(request) if begin else None
        status: Any = "gone"
        try:
            if refused is None:
                response, reason = await _answer(request, handler)
            else:
                status = 503 if isinstance(refused, Overloaded) else None
                response, reason = problem_response(refused, status=status), refused.reason
                response.force_close()
            status = response.status
            if reason is not None:
                meters.problems.labels(reason).inc()
            return response
        finally:
            meters.in_flight.dec()
            operation = operation_now.get()
            meters.requests.labels(operation, status).inc()
            if log.isEnabledFor(logging.DEBUG):
                log.debug(
                    "http.request method=%s path=%s operation=%s status=%s remote=%s elapsed_ms=%.1f",
                    request.method,
                    request.path_qs[:500],
                    operation,
                    status,
                    request.remote,
                    1000 * (time.perf_counter() - began),
                )

    return middleware


def needs_a_person(error: LiftlogError) -> bool:
    """Whether an error is news to whoever keeps the broker.

    It is not where the client can do something (try again, or change the call), nor where a stream is offline: that
    was logged when it was found, and each request that meets it is counted.
    """
    expected = isinstance(error, Retryable | InvalidRequest) or error.fields.get("offline") is True
    return error.status >= 500 and not expected


async def _answer(request: web.Request, handler: Handler) -> tuple[web.StreamResponse, str | None]:
    """The answer, and the reason code if it is a problem."""
    try:
        return await handler(request), None
    except LiftlogError as error:
        response, reason = problem_response(error), error.reason
        if needs_a_person(error):
            log.error("http.failed method=%s path=%s error=%s", request.method, request.path[:500], error)
        forget_frames(error)
    except web.HTTPException as error:
        response = from_http(error, request)
        reason = InvalidRequest.reason if error.status < 500 else LiftlogError.reason
        forget_frames(error)
    except ConnectionError as error:  # the client went away: nobody reads this
        forget_frames(error)
        return web.Response(status=499, reason="Client Closed Request"), None
    except Exception as error:
        response, reason = problem_response(internal_error(request, error)), LiftlogError.reason
        forget_frames(error)
    if request.writer.output_size > 0:  # a half-sent answer cannot become another one
        abort(request)
        raise ConnectionResetError("the answer had begun")
    return response, reason
