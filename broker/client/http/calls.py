"""Calls of the JSON API: one request and one answer, repeated while that is safe.

A call that asks or sets something (`is_idempotent`) is repeated after any `Retryable` error. Another call
is repeated only if a try certainly had no effect: the connection was refused, or the broker said
`Retryable`. If a connection broke after the request was sent, or a broker ran out of time, nobody knows
what happened, and the error is raised at once.

A1  Doubt is never forgotten. Once a try may have been carried out, every later error of the same call that could have
    changed something says so: its field `sent` is true. Without the field, the call certainly changed nothing.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from broker.api.answers import Readiness
from broker.api.errors import InvalidRequest, LiftlogError, Retryable, Unavailable, may_be_done
from broker.api.misfit import Misfit
from broker.api.plain import parse_json
from broker.api.validation import build
from broker.client.http.brokers import Brokers, PartitionKey, nobody
from broker.client.http.interrupt import Interrupt
from broker.client.http.patience import Patience
from broker.client.http.pool import READING, Request, quoted
from broker.client.positions import whole

T = TypeVar("T")

ANSWER_BYTES_MAX: Final = 256 << 20
JSON_HEADERS: Final = {"Content-Type": "application/json", "Accept": "application/json"}


def path(*parts: str | int) -> str:
    """A path of the API, its parts quoted: `path("streams", name)` is `/v1/streams/<name>`.

    Raises:
        InvalidRequest: a part is neither text nor a number; as text it would name something else.
        InvalidName: as `quoted`.
    """
    for part in parts:
        if not isinstance(part, str | int):
            raise InvalidRequest(f"{part!r}: a name must be text, not {type(part).__name__}")
    return "/v1/" + "/".join(quoted(str(part)) for part in parts)


class Calls:
    """The JSON API of a cluster. Thread-safe and fork-safe.

    Args:
        timeout_s: Longest silence of the socket.
        deadline_s: A call gives up if failures follow each other for this time.
        call_timeout_s: A call gives up after this time, whether it has failed or nobody has answered.
    """

    def __init__(
        self, brokers: Brokers, *, timeout_s: float, deadline_s: float, call_timeout_s: float = math.inf
    ) -> None:
        self.brokers = brokers
        self.call_timeout_s = call_timeout_s
        self.timeout_s = timeout_s
        self.deadline_s = deadline_s

    def json(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        wait_s: float = 0,
        done_if: type[LiftlogError] | None = None,
        interrupt: Interrupt | None = None,
        key: PartitionKey | None = None,
    ) -> Any:
        """An idempotent call.

        Args:
            body: JSON value to send; None: none.
            query: Parameters; None as a value: not given.
            wait_s: Time that the broker may take on purpose (long polls).
            done_if: The error that means success if an earlier try may have been received.
            key: The partition whose leader is asked first.
        Returns:
            The JSON value of the answer, None if it has no body.
        Raises:
            Retryable: no success within the deadline: the last failure, with the fields `tries` and `deadline_s`.
            LiftlogError: what the broker refused.
            Either with the field `sent` if the call may have been carried out (A1).
        """
        given = {name: value for name, value in (query or {}).items() if value is not None}
        request = Request(
            method=method,
            target=f"{target}?{urlencode(given)}" if given else target,
            body=None if body is None else json.dumps(body, default=_plain).encode(),
            headers=JSON_HEADERS,
            timeout_s=self.timeout_s + wait_s,
            interrupt=interrupt,
        )
        return self.send(request, key=key, done_if=done_if)

    def send(
        self, request: Request, *, key: PartitionKey | None = None, done_if: type[LiftlogError] | None = None
    ) -> Any:
        """As `json`, for a request of any kind, to the leader of `key` if one is given."""
        what = f"{request.method} {request.target.partition('?')[0]}"
        patience = Patience(
            self.deadline_s,
            interrupt=request.interrupt,
            what=what,
            outages=self.brokers.outages,
            call_timeout_s=self.call_timeout_s,
        )
        request = replace(request, until_s=patience.call_until_s)
        is_in_doubt = False
        while True:
            try:
                answer = self._once(request, key)
                patience.progress()
                return answer
            except LiftlogError as error:
                is_in_doubt = is_in_doubt or may_be_done(error)
                if is_in_doubt and request.method not in READING:
                    error.fields["sent"] = True  # A1
                if is_in_doubt and done_if is not None and isinstance(error, done_if):
                    return None
                if request.is_interrupted or (is_in_doubt and not request.is_idempotent):
                    raise
                if not isinstance(error, Retryable):
                    raise
                patience.pause(error)

    def ready(self) -> Readiness:
        """Readiness of the first broker that answers. Raises Unavailable."""
        failures = []
        until_s = time.monotonic() + self.call_timeout_s
        candidates = self.brokers.candidates()
        for address in candidates:
            request = Request(target="/readyz", timeout_s=self.timeout_s, until_s=until_s)
            try:
                exchange = self.brokers.pool.exchange(address, request, in_haste=address != candidates[-1])
                try:
                    body = exchange.read_all(ANSWER_BYTES_MAX, by_s=until_s)
                finally:
                    exchange.close()
            except Unavailable as error:
                failures.append(error)
                continue
            return understand(Readiness, _parsed(body, str(address), "GET /readyz"), where=str(address))
        raise nobody(failures)

    def _once(self, request: Request, key: PartitionKey | None) -> Any:
        exchange = self.brokers.exchange(request, key=key)
        try:
            body = exchange.read_all(ANSWER_BYTES_MAX, by_s=request.until_s)
        finally:
            exchange.close()
        return _parsed(body, str(exchange.address), f"{request.method} {request.target}") if body else None


def _parsed(body: bytes | bytearray, where: str, call: str) -> Any:
    try:
        return parse_json(body)
    except ValueError as error:
        raise LiftlogError(f"{where}: the answer to {call} is no JSON: {error}", address=where, sent=True) from error


def understand(cls: type[T], value: Any, *, where: str) -> T:
    """Read an answer.

    Raises:
        LiftlogError: it is not of the shape that this client knows. Its field `sent` is true: the broker did what it
            was asked to.
    """
    try:
        return build(cls, value, is_open=True)
    except ValueError as error:
        what = error.text("it") if isinstance(error, Misfit) else str(error)
        raise LiftlogError(
            f"{where}: an answer that this client does not understand ({what})", address=where, sent=True
        ) from error


def _plain(value: object) -> int:
    """Make numpy's whole numbers, which JSON does not know, plain ones. Raises InvalidRequest for anything else."""
    number = whole(value)
    if number is None:
        raise InvalidRequest(f"{value!r} is no JSON: a {type(value).__name__}")
    return number
