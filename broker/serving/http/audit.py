"""Who did what, and who was refused: a record in `__audit` for each administrative act, before it is answered.

    request ─► gate ─► begins ─► handler ─► result ─► record ─► committed ─► answer
                 │                                       │
              refused ─► record, within an allowance     └── not written in time: said loudly, and answered all the same

U1  One act, one record, by the broker that its client has asked. What another broker is asked on behalf of somebody
    was recorded by the one that asks: it is believed by its proof alone, in every mode, never by a header.
U2  An act is carried out before it is recorded, and recorded before it is answered. If this broker ends in between,
    nobody was told that it is done; that it was begun the log has (`audit.begun`).
U3  The audit keeps nobody from acting: who has to make room on a full disk, or to mend the cluster that `__audit` is a
    stream of, must be able to. An act whose record is not written in `WAIT_S` is answered; the log has the record
    (`audit.late`), a metric counts it, and it is written when that is possible (`trail.L2`).
U4  Of what strangers can cause at will, refusals and acts that fail, so many are recorded (`allowance`), and how many
    more there were. Who is nobody in particular is counted by address, of IPv6 by network (`callers.C1`), and has no
    part in the allowance of those who are somebody: strangers hide nothing that these do. Nobody waits for the record
    of a refusal. The line `audit.begun` has an allowance, too. Who goes away before he is let in has done nothing: that
    failed.
U5  No secrets, no payloads, no bodies as they are: the names of the path, the fields that an act names (`acts.T2`),
    each cut, and of what looks like a token its id.
U6  In doubt is what may be done or not: it was begun, and its time ran out, its client went, another broker did not
    answer, or a fault of ours ended it, here or there. A client that is answered so is told the same (`may_be_done`).
U7  What an act asks for is in its record as a whole. Where it is longer than `TOLD_LENGTH_MAX` the act is refused: it
    can be asked for in parts. Else a grant could be hidden behind many others. What failed has changed nothing, and is
    cut at `FAILED_LENGTH_MAX`: while the disk is full, its line in the log takes of what is kept for a deletion.
U8  Who may act cannot wash out what others did by acting: the records of one caller take so many bytes an hour
    (`limits.caller_audit_bytes_per_hour`). An act beyond that is refused before it begins. Admins of the configuration
    may go on, and so does everybody while nobody is told apart (`new_names.N3`).
U9  A handshake of TLS that ends for the certificate that was shown, or was not, is a refusal of nobody in particular,
    at each port and where it calls (another broker, NATS, an issuer of JWTs), with the allowance of those
    (U4). One that fails for something else shows nothing, and is in the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from broker.api.certificate_faults import Unbelieved
from broker.api.errors import InvalidRequest, LiftlogError, Unauthenticated, Unauthorized, may_be_done
from broker.api.principals import ANONYMOUS, shown
from broker.serving.contract.acts import Act, acting_now, told_of
from broker.serving.contract.backend import AuditRecord, Backend
from broker.serving.http.access import ACCESS, NOBODY, Gate, Identified
from broker.serving.http.addresses import address_of
from broker.serving.http.allowance import Allowance, Rate
from broker.serving.http.callers import AUDIT, Callers
from broker.serving.http.meters import Meters
from broker.serving.http.paces import Paces
from broker.serving.http.peers import Peers
from broker.serving.http.trail import WHOLE, Trail

log = logging.getLogger(__name__)

WAIT_S: Final = 5.0
LEAST_WAIT_S: Final = 1.0
ANSWERED_S: Final = 9.0
"""After this time since it was asked an act is answered, if `LEAST_WAIT_S` is over: a client that hears nothing for
10 s asks again."""
SUMMARY_S: Final = 60.0
"""So long what was suppressed may wait to be told."""
POLLED_S: Final = 60.0
"""The same act, which its client polls, is recorded once in this time if it is done."""
POLLED_MAX: Final = 100
HOUR_S: Final = 3_600.0
RETRY_S: Final = 60
"""When to come again, for whose records take as much as they may."""
NAME_LENGTH_MAX: Final = 256
FAILED_LENGTH_MAX: Final = 4 << 10
TOLD_LENGTH_MAX: Final = 64 << 10
"""Characters of the fields of a body, as JSON: so long are 800 grants with short names."""
SUMMARY_CALLERS_MAX: Final = 50
REFUSALS: Final = (Rate(10, 30.0), Rate(100, 5.0))
FAILURES: Final = (Rate(100, 5.0), Rate(1_000, 1.0))
HANDSHAKE: Final = "handshake"
"""The operation of a record of U9."""
BEGUN: Final = (Rate(100, 1.0), Rate(1_000, 0.1))

Call = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Audit:
    """See the module. One per application, on its loop.

    Args:
        now_us: The clock: microseconds since 1970 UTC.
        is_on: As the configuration says. Off: nothing is recorded, and refusals are counted.
    """

    def __init__(
        self,
        backend: Backend,
        gate: Gate,
        peers: Peers,
        meters: Meters,
        now_us: Callable[[], int],
        callers: Callers,
        *,
        is_on: bool = True,
    ) -> None:
        self._backend, self._gate, self._meters, self._now_us = backend, gate, meters, now_us
        self._callers, self._paces = callers, Paces(HOUR_S)
        self.is_on = is_on
        self.trail = Trail(backend, peers, meters)
        self._refusals, self._failures, self._begun = Allowances(REFUSALS), Allowances(FAILURES), Allowances(BEGUN)
        self._polled: OrderedDict[str, float] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None  # while the application runs

    # -- acts --------------------------------------------------------------------------------------------------

    async def acted(self, request: web.Request, operation: str, act: Act, call: Call) -> web.StreamResponse:
        """Carry out an act, and answer when it is recorded (U2). Raises as `call`."""
        if not self.is_on:
            return await call(request)
        under_way = UnderWay(self, request, operation, act)
        acting_now.set(under_way)
        if self._gate.is_off:
            under_way.caller = await self._shown(request)
        try:
            response = await call(request)
        except asyncio.CancelledError:
            self._put(under_way, under_way.ended(is_in_doubt=True), "gone", None)
            raise
        except (Unauthenticated, Unauthorized) as error:
            if under_way.has_ended_amid(error):
                await self._record(under_way, "in_doubt", error.reason, error.status)
            raise
        except LiftlogError as error:
            result = under_way.ended(is_in_doubt=may_be_done(error))
            await self._record(under_way, result, error.reason, error.status)
            raise
        except web.HTTPException as error:
            await self._record(under_way, "failed", InvalidRequest.reason, error.status)
            raise
        except Exception:
            result = under_way.ended(is_in_doubt=True)
            await self._record(under_way, result, LiftlogError.reason, LiftlogError.status)
            raise
        await self._record(under_way, "done", "", response.status)
        return response

    async def _shown(self, request: web.Request) -> Identified:
        """Who asks, as far as he shows it, where nobody has to."""
        try:
            return await self._gate.identify(request, is_refused=False)
        except Unauthenticated:
            return NOBODY

    async def _record(self, under_way: UnderWay, result: str, reason: str, status: int) -> None:
        """Return when it is recorded, or U3."""
        done = self._put(under_way, result, reason, status)
        if done is None:
            return
        took_s = time.monotonic() - under_way.began_s
        try:
            async with asyncio.timeout(max(LEAST_WAIT_S, min(WAIT_S, ANSWERED_S - took_s))):
                await asyncio.shield(done)
        except (TimeoutError, LiftlogError) as error:
            self._meters.audit_records.labels("late").inc()
            why = str(error) or "no answer in time"
            log.error("audit.late why=%s record=%s", why, under_way.value(result, reason, status), extra=WHOLE)

    def _put(self, under_way: UnderWay, result: str, reason: str, status: int | None) -> asyncio.Future[None] | None:
        """Queue its record; None: it has none (U1, U4)."""
        if under_way.is_anothers or (result == "done" and under_way.act.is_polled and self._is_repeated(under_way)):
            return None
        count = (
            self._failures.admitted(under_way.caller_key, is_strangers=under_way.is_strangers)
            if result == "failed"
            else 1
        )
        if not count:
            self._meters.audit_records.labels("suppressed").inc()
            return None
        value = under_way.value(result, reason, status, count=count)
        if under_way.has_begun and (caller := self._paced(under_way)) is not None:
            self._paces.take(caller, len(value), self._callers.limits.audit_bytes_per_hour, time.monotonic())
        return self.trail.put(AuditRecord(under_way.id, under_way.caller.principal, value))

    def _is_repeated(self, under_way: UnderWay) -> bool:
        key, now_s = under_way.polled_key(), time.monotonic()
        if now_s - self._polled.get(key, float("-inf")) < POLLED_S:
            return True
        self._polled[key] = now_s
        self._polled.move_to_end(key)
        if len(self._polled) > POLLED_MAX:
            self._polled.popitem(last=False)
        return False

    def check_pace(self, under_way: UnderWay) -> None:
        """Raise LimitReached: U8."""
        most, caller = self._callers.limits.audit_bytes_per_hour, self._paced(under_way)
        if caller is not None and self._paces.left(caller, most, time.monotonic()) <= 0:
            raise self._callers.refusal(AUDIT, most, caller, RETRY_S)

    def _paced(self, under_way: UnderWay) -> str | None:
        """For whom the bytes of a record count; None: for nobody."""
        is_free = under_way.is_anothers or self._gate.is_off or self._gate.is_admin(under_way.caller.principal)
        return None if is_free else under_way.caller_key

    def may_tell(self, under_way: UnderWay) -> bool:
        """Whether the log has a line that this act begins (U4)."""
        return self._begun.admitted(*under_way.of) > 0

    # -- refusals ----------------------------------------------------------------------------------------------

    def refused(self, request: web.Request, operation: str, error: Unauthenticated | Unauthorized) -> None:
        """Somebody was refused (U4)."""
        access = request.get(ACCESS)
        caller = NOBODY if access is None else access.caller
        self._meters.refused(caller.principal, error.reason)
        if not self.is_on or caller.through is not None:
            return
        under_way = acting_now.get()
        if isinstance(under_way, UnderWay) and under_way.has_ended_amid(error):
            return  # its record says so
        refused = UnderWay(self, request, operation, Act())
        if not (count := self._refusals.admitted(*refused.of)):
            self._meters.audit_records.labels("suppressed").inc()
            return
        needs = {name: error.fields[name] for name in ("needs", "name") if error.fields.get(name)}
        if isinstance(error, Unauthenticated):
            told = {"certificate": error.certificate, "why": error.why[:NAME_LENGTH_MAX]}
            needs.update({name: value for name, value in told.items() if value})
        value = refused.value("refused", error.reason, error.status, asked=needs, count=count)
        self.trail.put(AuditRecord(refused.id, caller.principal, value), is_act=False)

    def kept_out(self, port: str, address: str, found: Unbelieved) -> None:
        """Somebody's certificate is not believed (U9). From any thread; does not wait."""
        loop = self._loop
        if not self.is_on or loop is None:
            return
        if not (count := self._refusals.admitted(stranger_at(address), True)):
            self._meters.audit_records.labels("suppressed").inc()
            return
        record_id = uuid.uuid4().hex
        value = self.composed(
            record_id,
            "refusal",
            caller=NOBODY,
            address=address,
            operation=HANDSHAKE,
            resource={"port": port, "side": "called" if found.is_called else "caller"},
            asked={"certificate": found.fault, "why": found.why[:NAME_LENGTH_MAX]},
            result="refused",
            reason=Unauthenticated.reason,
            count=count,
        )
        record = AuditRecord(record_id, NOBODY.principal, value)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: self.trail.put(record, is_act=False))

    async def summaries(self, _: web.Application) -> AsyncIterator[None]:
        """A cleanup context: what was suppressed is told after `SUMMARY_S` at the latest."""
        self._loop = asyncio.get_running_loop()
        task = self._loop.create_task(self._summarise())
        yield
        self._loop = None
        task.cancel()
        self.summarise()

    async def _summarise(self) -> None:
        while True:
            await asyncio.sleep(SUMMARY_S)
            self.summarise()

    def summarise(self) -> None:
        """Record how many were suppressed since this was told last."""
        for result, allowances in (("refused", self._refusals), ("failed", self._failures)):
            for found in allowances.drained():
                told = dict(found[:SUMMARY_CALLERS_MAX])
                record_id, count = uuid.uuid4().hex, sum(count for _, count in found)
                said = self.composed(record_id, "suppressed", asked=told, result=result, count=count)
                self.trail.put(AuditRecord(record_id, "", said), is_act=False)

    # -- what a record says ------------------------------------------------------------------------------------

    def composed(
        self,
        record_id: str,
        kind: str,
        *,
        caller: Identified | None = None,
        address: str = "",
        operation: str = "",
        resource: Mapping[str, Any] | None = None,
        asked: Mapping[str, Any],
        result: str,
        reason: str = "",
        status: int | None = None,
        count: int = 1,
    ) -> str:
        """The value of a record, as JSON (U5)."""
        told: dict[str, Any] = {
            "id": record_id,
            "at": datetime.fromtimestamp(self._now_us() / 1_000_000, UTC).isoformat(timespec="microseconds"),
            "kind": kind,
            "principal": None if caller is None else caller.principal,
            "how": None if caller is None else caller.how,
            "token": None if caller is None else caller.token_id,
            "address": address or None,
            "broker": self._backend.broker_id,
            "operation": operation or None,
            "resource": {name: _cut(value, NAME_LENGTH_MAX) for name, value in (resource or {}).items()},
            "asked": {name: _cut(value) for name, value in asked.items()},
            "result": result,
            "reason": reason or None,
            "status": status,
            "count": count,
        }
        if is_too_long(told["asked"], FAILED_LENGTH_MAX if result == "failed" else TOLD_LENGTH_MAX):
            told["asked"] = {name: _cut(value, NAME_LENGTH_MAX) for name, value in asked.items()}
        return json.dumps(told)


class Allowances:
    """One for those who are somebody, and one for strangers (U4). Thread-safe."""

    def __init__(self, rates: tuple[Rate, Rate]) -> None:
        self._lock = threading.Lock()
        self._named, self._strangers = Allowance(*rates), Allowance(*rates)

    def admitted(self, caller_key: str, is_strangers: bool) -> int:
        """How many a record of this caller stands for; 0: there is none, and it is counted."""
        key, allowance = caller_key, self._strangers if is_strangers else self._named
        with self._lock:
            return 1 + allowance.take(key) if allowance.admits(key, time.monotonic()) else 0

    def drained(self) -> list[list[tuple[str, int]]]:
        """How many were suppressed, by caller, the most first; of each of the two, if there are some."""
        with self._lock:
            each = [allowance.drain() for allowance in (self._named, self._strangers)]
        return [sorted(found.items(), key=lambda one: -one[1]) for found in each if found]


class UnderWay:
    """One act, from its request to its record; or one refusal."""

    __slots__ = (
        "_address",
        "_asked",
        "_audit",
        "_caller",
        "_request",
        "act",
        "began_s",
        "has_begun",
        "id",
        "operation",
    )

    def __init__(self, audit: Audit, request: web.Request, operation: str, act: Act) -> None:
        self._audit, self._request, self.operation, self.act = audit, request, operation, act
        self.began_s = time.monotonic()
        self.has_begun = False
        self.id = uuid.uuid4().hex
        self._address = request.remote or ""  # a connection that is closed has none any more
        self._asked: dict[str, Any] = {}
        self._caller: Identified | None = None

    @property
    def caller(self) -> Identified:
        """Who asks."""
        if self._caller is not None:
            return self._caller
        access = self._request.get(ACCESS)
        return NOBODY if access is None else access.caller

    @caller.setter
    def caller(self, found: Identified) -> None:
        self._caller = found

    @property
    def caller_key(self) -> str:
        """Whom an allowance counts for: one stranger does not hide another one."""
        principal = self.caller.principal
        return stranger_at(self._address) if self.is_strangers else principal

    @property
    def of(self) -> tuple[str, bool]:
        """As `Allowances.admitted` takes it."""
        return self.caller_key, self.is_strangers

    @property
    def is_strangers(self) -> bool:
        """Whether who asks is nobody in particular."""
        return self.caller.principal == ANONYMOUS

    @property
    def is_anothers(self) -> bool:
        """U1: the broker that asks has recorded it, or will."""
        return self.caller.through is not None

    def has_ended_amid(self, error: LiftlogError) -> bool:
        """Whether a refusal came when the act was under way: another broker's, or as its caller's right was revoked."""
        return self.has_begun and error.fields.get("sent") is True

    def ended(self, *, is_in_doubt: bool) -> str:
        """The result of one that is not done (U6)."""
        return "in_doubt" if is_in_doubt and self.has_begun else "failed"

    def begins(self) -> None:
        """As `acts.Acting` (U2). Raises LimitReached: U8."""
        self._audit.check_pace(self)
        self.has_begun = True
        if not self.is_anothers and self._audit.may_tell(self):
            log.info(
                "audit.begun id=%s operation=%s principal=%s address=%s resource=%s",
                self.id,
                self.operation,
                self.caller.principal,
                self._address,
                json.dumps({name: _cut(value, NAME_LENGTH_MAX) for name, value in self._request.match_info.items()}),
            )

    def asked(self, body: Any) -> None:
        """As `acts.Acting`. From a worker thread, too. Raises InvalidRequest: U7."""
        self._asked = told_of(self.act, body)
        if not self.is_anothers and is_too_long(
            {name: _cut(value) for name, value in self._asked.items()}, TOLD_LENGTH_MAX
        ):
            raise InvalidRequest(
                f"{', '.join(self._asked)}: {TOLD_LENGTH_MAX} characters as JSON are the most that the audit can tell"
                " of one request; ask for less at once",
                limit=TOLD_LENGTH_MAX,
            )

    def value(
        self,
        result: str,
        reason: str,
        status: int | None,
        *,
        asked: Mapping[str, Any] | None = None,
        count: int = 1,
    ) -> str:
        """The value of its record."""
        return self._audit.composed(
            self.id,
            "refusal" if result == "refused" else "act",
            caller=self.caller,
            address=self._address,
            operation=self.operation,
            resource=self._request.match_info,
            asked=self._asked if asked is None else asked,
            result=result,
            reason=reason,
            status=status,
            count=count,
        )

    def polled_key(self) -> str:
        """The same for the same act of the same caller."""
        said = (self.caller.principal, self._address, self.operation, dict(self._request.match_info), self._asked)
        return json.dumps(said, default=str)


def stranger_at(address: str) -> str:
    """For whom an allowance counts who is nobody in particular."""
    return f"{ANONYMOUS} at {address_of((address, 0))}"


def is_too_long(told: Mapping[str, Any], length_max: int) -> bool:
    """Whether a record cannot have all of this (U7)."""
    return len(json.dumps(told)) > length_max


def _cut(value: Any, length_max: int | None = None) -> str:
    """A value as text: as it is, or as JSON (U5)."""
    text = shown(value if isinstance(value, str) else json.dumps(value, default=str))
    return text if length_max is None or len(text) <= length_max else text[: length_max - 1] + "…"
