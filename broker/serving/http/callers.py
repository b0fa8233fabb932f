"""How much one caller may take: what each has under way is counted here.

    request ─► the gate: who asks ─► room for one more? ──no──► it waits ──still no──► `limit_reached`: 429, Retry-After
                                          │ yes                    │ yes
                                          ▼◄───────────────────────┘
                       its handler ─► its answer is sent, or its connection is gone ─► given back

C1  A caller is a principal. Whoever is nobody in particular (`anonymous`; everybody while `auth.mode` is off) is
    counted by address, of IPv6 by the first 64 bits: whoever has one address of those has them all.
C2  What brokers ask for themselves is not counted: they have proven who they are, also while the mode is off. What they
    hand on counts for its caller, never for them: once at each broker that works for it, as limits are per broker. Who
    is nobody in particular was counted where the request came in, by an address that the second broker does not know.
C3  A request counts from the moment at which its caller is known, until its handler has ended and its answer is sent or
    its connection is gone, whatever comes first of these two. Each way to end passes `end`, once (`Turn`).
C4  Questions after the broker's health have `HEALTH_ROOM` of their own: whoever is at his limit can still be watched.
C5  No more is remembered than is under way. Strangers choose their addresses.
C6  A request beyond the limit waits `WAIT_S` for one of its own caller to end, in the order in which they came, and its
    caller is asked for anew then. What is refused for any limit of a caller is so after `REFUSED_S`, while it still
    counts. So whoever does not mind `Retry-After` waits for himself, and costs others little.

Memory for bodies is counted by its budget (`body.B5`), connections of an address by `connections.N10`, new names by
`new_names.py`, records of acts by `audit.U8`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from aiohttp import web

from broker.api.errors import LimitReached
from broker.api.principals import ANONYMOUS
from broker.serving.http.addresses import ADDRESS_CONNECTIONS
from broker.serving.http.meters import HEALTH, Meters, RateLimitedLog

if TYPE_CHECKING:
    from broker.serving.http.access import Identified

log = logging.getLogger(__name__)

HEALTH_ROOM: Final = 16
WAIT_S: Final = 1.0
REFUSED_S: Final = 0.5
RETRY_AFTER_S: Final = 1

REQUESTS: Final = "caller_requests_max"
POLLS: Final = "caller_polls_max"
NAMES: Final = "caller_names_per_minute"
AUDIT: Final = "caller_audit_bytes_per_hour"
MEMORY: Final = "caller_memory_percent"
_WHAT: Final = {
    REQUESTS: "requests under way",
    POLLS: "long polls under way",
    MEMORY: "percent of the memory for bodies",
    ADDRESS_CONNECTIONS: "open connections",
    NAMES: "new names a minute",
    AUDIT: "bytes of records of the audit an hour",
    "caller_streams_max": "streams that it has made",
    "caller_producers_max": "names of producers that it has made",
    "caller_consumers_max": "consumers that it has made",
    "caller_sinks_max": "sinks that it has made",
    "caller_groups_max": "consumer groups that it has made",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerLimits:
    """The most that one caller may take of this broker; as `[limits]` of the configuration.

    Attributes:
        requests_max: Under way.
        polls_max: Of these, such as wait for something new.
        memory_percent: Of the memory for bodies, in several requests at once. A single one may take all that is free.
        connections_max: Open, of one address.
        names_per_minute: New, of all kinds.
        audit_bytes_per_hour: Of the records of its acts.
        made_max: Made and there, by kind; of a kind that is missing any number.
    """

    requests_max: int = 1_024
    polls_max: int = 768
    memory_percent: int = 75
    connections_max: int = 2_048
    names_per_minute: int = 3_000
    audit_bytes_per_hour: int = 16 << 20
    made_max: Mapping[str, int] = field(default_factory=dict)


DEFAULT_CALLER_LIMITS: Final = CallerLimits()


class Share:
    """What one caller has under way.

    Attributes:
        caller: Its principal, or its address.
        waiting: Requests beyond the limit, the first first (C6).
    """

    __slots__ = ("caller", "polls", "requests", "waiting")

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.requests = 0
        self.polls = 0
        self.waiting: dict[asyncio.Future[None], None] = {}


share_now: Final[ContextVar[Share | None]] = ContextVar("share", default=None)
"""Of the caller of this request. None: it is not counted (C2)."""


def caller_now() -> str | None:
    """Whom this request counts for."""
    share = share_now.get()
    return None if share is None else share.caller


def is_alone() -> bool:
    """Whether nothing else of this request's caller is under way. True also where it is not counted."""
    share = share_now.get()
    return share is None or share.requests == 1


class Turn:
    """One request, which counts until it is answered (C3)."""

    __slots__ = ("_callers", "_share")

    def __init__(self, callers: Callers | None, share: Share | None) -> None:
        self._callers = callers
        self._share = share

    def hold(self, request: web.Request) -> None:
        """Its handler has ended; it counts until its answer is sent."""
        if self._share is not None:
            hold = getattr(request.protocol, "hold", None)  # of a `connections.HttpConnection`
            if hold is None:
                self.end()
            else:
                hold(self)

    def end(self) -> None:
        """Give it back, if it is not."""
        share, self._share = self._share, None
        if share is not None and self._callers is not None:
            self._callers.ended(share)


UNCOUNTED: Final = Turn(None, None)


class Callers:
    """See the module. One per application; on its loop, but for `refusal`."""

    def __init__(self, limits: CallerLimits, meters: Meters) -> None:
        self.limits = limits
        self._meters = meters
        self._shares: dict[str, Share] = {}
        self._logs = {limit: RateLimitedLog() for limit in _WHAT}
        self._lock = threading.Lock()  # of the logs

    def begin(self, caller: Identified, request: web.Request) -> Turn | None:
        """A request begins; whoever calls this ends the turn, or has it held. None: there is no room (`wait`)."""
        name = caller.principal
        if name == ANONYMOUS and caller.through is None:
            place = getattr(request.protocol, "place", None)  # of a `connections.HttpConnection`
            name = "local" if place is None else place.address
        elif name == ANONYMOUS or caller.is_own_peer:
            return UNCOUNTED
        share, most = self._shares.get(name), self.limits.requests_max
        if share is None:
            share = self._shares[name] = Share(name)
        elif share.requests >= most and (request.path not in HEALTH or share.requests >= most + HEALTH_ROOM):
            share_now.set(share)
            return None
        share.requests += 1
        share_now.set(share)
        return Turn(self, share)

    async def wait(self) -> Turn:
        """For a turn, of the caller for whom there was no room just now (C6). Raises LimitReached."""
        share, most = share_now.get(), self.limits.requests_max
        assert share is not None, "there was no room for it"
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting[turn] = None
        try:
            await asyncio.wait((turn,), timeout=WAIT_S)
        except asyncio.CancelledError:
            if share.waiting.pop(turn, turn) is turn:  # it had got one
                self.ended(share)
            raise
        if turn.done():
            return Turn(self, share)
        del share.waiting[turn]
        raise self.refusal(REQUESTS, most, share.caller)

    def ended(self, share: Share) -> None:
        """A request of this caller has: the next one begins."""
        share.requests -= 1
        if share.waiting and share.requests < self.limits.requests_max:
            turn = next(iter(share.waiting))
            del share.waiting[turn]
            share.requests += 1
            turn.set_result(None)
        elif not share.requests:
            del self._shares[share.caller]

    @contextmanager
    def polling(self) -> Iterator[None]:
        """While this request waits for something new. Raises LimitReached."""
        share = share_now.get()
        if share is None:
            yield
            return
        if share.polls >= self.limits.polls_max:
            raise self.refusal(POLLS, self.limits.polls_max, share.caller)
        share.polls += 1
        try:
            yield
        finally:
            share.polls -= 1

    def refusal(self, limit: str, most: int, caller: str, after_s: int | None = None) -> LimitReached:
        """The error of one who is at a limit, counted and logged. From any thread."""
        self._meters.limited.labels(limit).inc()
        with self._lock:
            count = self._logs[limit].due()
        if count:
            log.warning("http.limit_reached limit=%s most=%d caller=%s count=%d", limit, most, caller, count)
        return LimitReached(
            f"{caller} has {most} {_WHAT[limit]}, which is the limit of one caller here: limits.{limit}",
            key=f"limits.{limit}",
            limit=most,
            caller=caller,
            retry_after_s=RETRY_AFTER_S if after_s is None else after_s,
        )
