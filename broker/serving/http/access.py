"""Who asks, and whether it may: the gate before every handler.

    request ─► identify ─► principal ─► needs of path and query ─► handler ─► needs of body, catalog, answer ─► answer
                  │                            │                                     │
           unauthenticated               unauthorized                          unauthorized, or left out
                                               └── each change of the catalog's access, each token that ends:
                                                   all requests under way are judged again

A principal comes from, in this order: the proof of another broker, a client's certificate (SAN, URI), a bearer token
or JWT; else it is `anonymous`. Modes (`auth.mode`): `off` judges what is `IN_EVERY_MODE` alone, as tokens and grants
themselves are; `permissive` says what `enforce` would refuse. Where the catalog requires it (`metadata.access.Z5`) it
is `enforce`, whatever the configuration says.

A1  In `enforce` no handler runs before its caller is known and may do what path and query name (`Where`). What only a
    handler can find it has to ask for here; one that answers without having asked is a fault, and the answer is lost.
A2  Whatever cannot be decided is refused. An admin of the configuration may do all but what is the brokers' own. A
    broker that does not hear its cluster goes by what it knew last: without a majority nothing can be revoked either.
A3  What a principal is granted is laid out once for each state of the catalog's access, and whose a good token is is
    looked up once (`rights.py`). A connection remembers its last caller, so that one who asks again costs a comparison.
    Another token is found by its mark, a hash with a key of this process. It is BLAKE2: OpenSSL's SHA-256 costs a
    request some 12 us more, as its code is not in the processor's caches then. Nothing is kept of tokens that are no
    good. So a request costs the same whatever grants there are, and no record costs anything.
A4  Within `LOOK_S` of a change here no request goes on that could not begin now: neither a long poll nor a download.
A5  A refusal says which permission is missing, and not whether the thing is there. That a caller is not known is said
    without a reason; the log has it.
A6  Who asks for somebody else is believed if it is a broker that has proven it, and for changes alone: the broker that
    carries it out judges the caller again. What brokers only ask, they ask for themselves, having judged before. A
    certificate proves nothing here: whoever took one of a broker could ask for `ADMIN`.
A7  A proof holds for one method, target, host, asker and caller, and for `PROOF_S`. It does not cover a body, and may
    come twice: who can read or change packets is kept out by TLS. A proxy between brokers has to leave target and
    `Host` as they are.
A8  Who is refused for what the catalog does not have, is so by a broker that knows all that was acknowledged before. A
    token or grant may just have been made at another broker, and one that has begun knows nothing yet: `not_ready`, and
    the client tries again. Nor does one that has begun go by what its disk says: a token may have been revoked
    meanwhile. Admins of the configuration and brokers need no catalog. While nobody is refused, who shows a token that
    is not known here is looked for as well: another broker may refuse what is asked on behalf of nobody.
A9  Who shows a certificate that its CA has revoked is refused in every mode, health checks too, as who shows none is by
    the handshake. What is under way over its connection ends as what is no longer granted does (A4).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiohttp import web
from aiohttp.hdrs import AUTHORIZATION
from multidict import istr

from broker.api import http
from broker.api.certificate_faults import REVOKED
from broker.api.errors import InvalidRequest, NotReady, Unauthenticated, Unauthorized
from broker.api.permissions import IN_EVERY_MODE, Permission, Where
from broker.api.principals import (
    ADMIN,
    ANONYMOUS,
    MODES,
    check_caller,
    digest_of,
    is_broker,
    is_jwt,
    principal_of_uri,
    token_of,
)
from broker.api.revocations import Revocations
from broker.metadata.access import Access
from broker.serving.http.origin import OPEN_PATHS
from broker.serving.http.rights import REMEMBERED_LENGTH, Editions, LastCaller

if TYPE_CHECKING:
    from broker.serving.http.jwts import JwtRules, Jwts, Key

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
PROOF_S: Final = 120.0
"""Clocks of brokers may differ so much."""
_NOBODYS: Final = "0" * 64
_PROOF: Final = istr(http.PROOF)
_BEHALF: Final = istr(http.BEHALF)
_PATH: Final = (Where.NOWHERE, Where.PATH)
_FIRST: Final = (*_PATH, Where.QUERY)

T = TypeVar("T")

access_now: Final[ContextVar[Asking]] = ContextVar("access")
"""Who asks in this request, for handlers. There is no default: code that runs outside of a request asks for nobody."""


ACCESS: Final[web.RequestKey[Asking]] = web.RequestKey("access", object)  # type: ignore[arg-type]  # it comes below
"""The same, as a key of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthRules:
    """What the configuration says.

    Attributes:
        mode: off, permissive or enforce.
        admins: Principals that may do everything (A2).
        admin_token: Id and SHA-256 of the token of `ADMIN`.
        peer_key: Of proofs between brokers; None: there is no other broker.
        jwt: Which JWTs are good; None: none is.
    """

    mode: str = "off"
    admins: frozenset[str] = frozenset()
    admin_token: tuple[str, str] | None = None
    peer_key: bytes | None = None
    jwt: JwtRules | None = None


@dataclass(frozen=True, slots=True)
class Identified:
    """Who asks.

    Attributes:
        principal: Of whom it is judged.
        how: broker, certificate, token, jwt or nothing.
        token_id: Of a token that the catalog keeps; it may be revoked meanwhile.
        until_ms: It is not believed from then on, milliseconds since 1970 UTC.
        through: The broker that asks for it.
        key: Of the issuer, by which its JWT was found good; it may be taken back meanwhile.
        is_own_peer: Whether a broker asks for itself.
        is_peer: Whether a broker asks, for itself or for somebody.
    """

    principal: str = ANONYMOUS
    how: str = "nothing"
    token_id: str | None = None
    until_ms: float = float("inf")
    through: str | None = None
    key: Key | None = None
    is_own_peer: bool = field(init=False)  # each request asks several times
    is_peer: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_own_peer", is_broker(self.principal))
        object.__setattr__(self, "is_peer", self.is_own_peer or self.through is not None)


NOBODY: Final = Identified()


def behalf() -> str:
    """The principal for whom this request changes something, to be told to another broker (A6)."""
    return access_now.get().caller.principal


def peer_key(secret: bytes) -> bytes:
    """The key of proofs, made of the cluster's secret for this alone."""
    return hmac.new(secret, b"liftlog.v1.Http", hashlib.sha256).digest()


def proof_of(key: bytes, me: str, host: str, method: str, target: str, now_ms: int, behalf: str) -> str:
    """The header by which a broker says who it is (A7)."""
    return f"{me} {now_ms} {_mac(key, me, host, method, target, str(now_ms), behalf)}"


def _mac(key: bytes, *parts: str) -> str:
    encoded = [part.encode(errors="surrogateescape") for part in parts]  # whatever bytes a stranger's headers had
    said = b"".join(len(part).to_bytes(4) + part for part in encoded)
    return hmac.new(key, said, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class Needed:
    """The permission of an endpoint, sorted by when it is judged.

    Attributes:
        is_open: It says nothing, and nobody is asked who he is.
        says_who: Its answer is who asks, in every mode.
        is_admins: It is judged in every mode.
        path, query: Actions, each with the parameter that names the thing, which are judged before the handler runs.
        body: Actions on what the body names: whoever may do this to nothing sends none.
        later: Actions for which the handler has to ask (A1).
    """

    is_open: bool
    says_who: bool
    is_admins: bool
    path: tuple[tuple[str, str], ...]
    query: tuple[tuple[str, str], ...]
    body: tuple[str, ...]
    later: frozenset[str]

    @classmethod
    def of(cls, path: str, permission: Permission) -> Needed:
        """Of an endpoint's path and permission."""
        always = [need for need in permission if not need.when]
        in_path = {need.action for need in always if need.where in _PATH}
        return cls(
            path in OPEN_PATHS,
            not permission,
            any(need.action in IN_EVERY_MODE for need in permission),
            tuple((need.action, need.name) for need in always if need.where in _PATH),
            tuple((need.action, need.name) for need in always if need.where is Where.QUERY),
            tuple(need.action for need in always if need.where is Where.BODY),
            frozenset(
                need.action
                for need in permission
                if (need.when or need.where not in _FIRST) and need.action not in in_path
            ),
        )


class _NotKnown(InvalidRequest):
    """The catalog has none, as far as this broker knows it (A8)."""


class _NotJudged(InvalidRequest):
    """A JWT that this broker has not seen yet, or not since the issuer has other keys."""

    def __init__(self, text: str, mark: bytes) -> None:
        super().__init__("a JWT whose issuer has other keys just now")
        self.text, self.mark = text, mark


class Gate:
    """See the module. One per application; on its loop.

    Args:
        access: The catalog's tokens and grants, as they are now.
        brokers: The ids of the cluster's brokers, as they are now.
        now_ns: The clock: nanoseconds since 1970 UTC.
        catch_up: Returns when all that was acknowledged before is known here. Raises NotReady: nobody can tell.
        jwts: Judges JWTs; None: none is good.
        revocations: Of clients' certificates, as they are now (A9); None: nobody says.
    """

    def __init__(
        self,
        rules: AuthRules,
        access: Callable[[], Access],
        brokers: Callable[[], Collection[str]],
        now_ns: Callable[[], int],
        catch_up: Callable[[], Awaitable[None]],
        jwts: Jwts | None = None,
        revocations: Callable[[], Revocations | None] = lambda: None,
    ) -> None:
        self.rules = rules
        self.access = access
        self._brokers = brokers
        self._now_ns = now_ns
        self.catch_up = catch_up
        self._jwts = jwts
        self._has_heard = False  # since the start
        self._changed: asyncio.Future[None] | None = None  # somebody waits for it
        self._revocations = revocations
        self.looked_at: tuple[Access, int, Revocations | None] | None = None
        self._key_of_marks = secrets.token_bytes(32)
        self._admins = rules.admins | ({ADMIN} if rules.admin_token is not None else set())
        self.editions = Editions(access, self._admins)
        self._under_way: set[Asking] = set()

    @property
    def mode(self) -> str:
        """As it is now."""
        own = self.rules.mode
        return MODES[-1] if own != MODES[-1] and self.access().is_required else own

    @property
    def is_off(self) -> bool:
        return self.mode == MODES[0]

    @property
    def is_enforced(self) -> bool:
        return self.rules.mode == MODES[-1] or self.access().is_required

    # -- who asks ----------------------------------------------------------------------------------------------

    async def identify(self, request: web.Request, *, is_refused: bool) -> Identified:
        """Who asks. Raises Unauthenticated: it shows what does not hold (A5). NotReady: A8."""
        try:
            try:
                found = await self._judged(request)
                if self._is_believed(found, is_refused=is_refused):
                    return found
            except _NotKnown:
                if not is_refused and self.is_off:
                    raise
            await self.hear_all()
            return await self._judged(request)
        except (InvalidRequest, NotReady) as error:
            if is_refused and isinstance(error, NotReady):
                raise
            raise _not_believed(request, str(error)) from None

    def _identified_at_once(self, request: web.Request, *, is_refused: bool) -> Identified | None:
        """As `identify`; None: it takes longer, or is refused."""
        try:
            found = self._identified(request)
        except InvalidRequest:
            return None
        return found if self._is_believed(found, is_refused=is_refused) else None

    def _is_believed(self, found: Identified, *, is_refused: bool) -> bool:
        """Whether who asks is so also as far as this broker has heard (A8)."""
        return self._has_heard or not is_refused or found.principal in self._admins or found.is_own_peer

    async def _judged(self, request: web.Request) -> Identified:
        """As `_identified`, also with a JWT that is new; once more, if the issuer's keys change meanwhile."""
        for _ in range(2):
            try:
                return self._identified(request)
            except _NotJudged as new:
                assert self._jwts is not None, "who judges has asked"
                await self._jwts.judge(new.text, new.mark)
        return self._identified(request)

    def _identified(self, request: web.Request) -> Identified:
        proofs = request.headers.getall(http.PROOF, ())
        caller = self._proven(request, proofs) if proofs else _certified(request, self._brokers)
        if caller is not None and caller.until_ms <= self._now_ns() / 1e6:
            raise InvalidRequest(f"the certificate of {caller.principal} has expired")
        if caller is not None and is_broker(caller.principal):
            return self._behalf(request, caller)
        if http.BEHALF in request.headers:
            raise InvalidRequest(f"{http.BEHALF} is for brokers")
        given = request.headers.getall("Authorization", ())
        if caller is not None or not given:
            return caller or NOBODY
        return self._bearer(given)

    def _bearer(self, given: Collection[str]) -> Identified:
        if len(given) > 1:
            raise InvalidRequest("several Authorization headers")
        scheme, _, text = next(iter(given)).partition(" ")
        if scheme.lower() != "bearer":
            raise InvalidRequest("Authorization is no bearer token")
        self.editions.now()
        text = text.strip()
        mark = blake2b(text.encode(errors="surrogateescape"), digest_size=32, key=self._key_of_marks).digest()
        if self._jwts is not None and is_jwt(text):
            bearer = self._jwts.known(mark)
            if bearer is None:
                raise _NotJudged(text, mark)
            return self._in_time(Identified(bearer.principal, how="jwt", until_ms=bearer.until_ms, key=bearer.key))
        bearers = self.editions.bearers
        found = bearers.get(mark)
        if found is None:
            found = bearers[mark] = self._bearer_of(self.access(), text)
        return self._in_time(found)

    def _in_time(self, found: Identified) -> Identified:
        if found.until_ms <= self._now_ns() / 1e6:
            raise InvalidRequest(
                " ".join(filter(None, (found.how, found.token_id, "of", found.principal, "has expired")))
            )
        return found

    def _bearer_of(self, access: Access, text: str) -> Identified:
        token, digest = token_of(text), digest_of(text)
        if token is None:
            raise InvalidRequest("Authorization is no token of this kind")
        if self.rules.admin_token is not None and token.id == self.rules.admin_token[0]:
            if not hmac.compare_digest(digest, self.rules.admin_token[1]):
                raise InvalidRequest("the admin's token is another one")
            return Identified(principal=ADMIN, how="token")
        kept = access.tokens.get(token.id)
        if not hmac.compare_digest(digest, _NOBODYS if kept is None else kept.sha256) or kept is None:
            if hmac.compare_digest(digest, access.revoked.get(token.id, _NOBODYS)):
                raise _NotKnown(f"token {token.id} was revoked")
            raise _NotKnown(f"token {token.id} is not known: it is forged, or has expired or was revoked long ago")
        return Identified(principal=kept.principal, how="token", token_id=token.id, until_ms=kept.expires_ms)

    def is_peer(self, request: web.BaseRequest) -> bool:
        """Whether a broker has proven that it asks (A7), for the room that is kept for those (`connections.N5`)."""
        proofs = request.headers.getall(http.PROOF, ())
        try:
            return bool(proofs) and self._proven(request, proofs) is not None
        except InvalidRequest:
            return False

    def _proven(self, request: web.BaseRequest, proofs: Collection[str]) -> Identified:
        """A7."""
        key, parts = self.rules.peer_key, next(iter(proofs)).split(" ")
        if key is None or len(proofs) > 1 or len(parts) != 3:
            raise InvalidRequest("a proof of a broker that cannot be one")
        me, at, mac = parts
        behalf = request.headers.get(http.BEHALF, "")
        if not (at.isascii() and at.isdigit() and len(at) < 16 and mac.isascii()):
            raise InvalidRequest("a proof of a broker that is none")
        if not hmac.compare_digest(mac, _mac(key, me, request.host, request.method, request.raw_path, at, behalf)):
            raise InvalidRequest(f"the proof of broker {me[:100]!r} does not hold: is its raft.secret another one?")
        if abs(self._now_ns() / 1e6 - int(at)) > 1000 * PROOF_S:
            raise InvalidRequest(f"the proof of broker {me} is of another time: its clock, or this one, is wrong")
        return Identified(principal=f"broker:{me}", how="broker")

    def _behalf(self, request: web.Request, caller: Identified) -> Identified:
        """A6."""
        if caller.principal.removeprefix("broker:") not in self._brokers():
            raise _NotKnown(f"the catalog knows no {caller.principal[:200]}")
        said = request.headers.getall(http.BEHALF, ())
        if len(said) > 1:
            raise InvalidRequest(f"several {http.BEHALF} headers")
        if not said:
            return caller
        if caller.how != "broker":
            raise InvalidRequest(f"{http.BEHALF} takes a proof of the cluster's secret, not a broker's certificate")
        return Identified(principal=check_caller(said[0]), how=caller.how, through=caller.principal)

    # -- what it may -------------------------------------------------------------------------------------------

    def allows(self, principal: str, action: str, name: str) -> bool:
        """Whether a principal may do this (A2)."""
        return self.editions.rights_of(principal).allows(action, name)

    def allows_any(self, principal: str, action: str) -> bool:
        """Whether a principal may do this to anything."""
        return self.editions.rights_of(principal).allows_any(action)

    def is_admin(self, principal: str) -> bool:
        """Whether the configuration says so."""
        return principal in self._admins

    # -- requests under way --------------------------------------------------------------------------------------

    async def begin(self, request: web.Request, needed: Needed) -> Asking:
        """A1: know who asks. Raises Unauthenticated, NotReady."""
        certificate = _certificate(request)
        if why := self.why_revoked(certificate):  # A9
            raise _not_believed(request, why, REVOKED)
        asking = self._again(request, needed)
        if asking is None:
            asking = await self._begun(request, needed)
        asking.certificate = certificate
        return asking

    def _again(self, request: web.Request, needed: Needed) -> Asking | None:
        """One whom its connection remembers; None: `_begun` finds out (A3). In line: amid a request each function that
        it calls has to come into the processor's caches, which takes longer than what it does."""
        found: LastCaller | None = getattr(request.protocol, "remembered", None)  # of a `connections.HttpConnection`
        if found is None or needed.is_open or not (self.is_enforced or needed.is_admins):
            return None
        if found.edition != self.editions.now() or found.caller.until_ms <= self._now_ns() / 1e6:  # rights.R3
            return None
        headers, shown = request.headers, found.shown
        if _PROOF in headers or _BEHALF in headers:
            return None
        if shown is not None:  # rights.R2; else the certificate, which comes before a token
            given = headers.getall(AUTHORIZATION, ())
            if len(given) != 1 or not given[0].isascii() or not compare_digest(given[0], shown):
                return None
        return Asking(self, found.caller, found, is_judged=True, is_refused=True)

    def _remembered(self, request: web.Request, edition: int, caller: Identified) -> LastCaller:
        """What is known of a caller as of an edition, for the next request of its connection too."""
        given = request.headers.getall("Authorization", ())
        shown = None if caller.how == "certificate" else next(iter(given), "")
        found = LastCaller(edition, shown, caller, self.editions.rights_of(caller.principal))
        is_lasting = caller.how in ("certificate", "token") and not caller.is_peer
        is_lasting = is_lasting and (shown is None or (shown.isascii() and len(shown) <= REMEMBERED_LENGTH))
        is_lasting = is_lasting and self._has_heard
        if is_lasting and hasattr(request.protocol, "remembered"):
            request.protocol.remembered = found
        return found

    async def _begun(self, request: web.Request, needed: Needed) -> Asking:
        is_refused = self.is_enforced or needed.is_admins
        is_asked = not self.is_off or needed.says_who or is_refused or self._may_be_peer(request)
        if needed.is_open or not is_asked:
            return Asking(self, NOBODY, is_judged=False, is_refused=is_refused)
        edition = self.editions.now()  # before who asks is looked up, which may be as of a newer one
        try:
            caller = self._identified_at_once(request, is_refused=is_refused)
            if caller is None:
                caller = await self.identify(request, is_refused=is_refused)
        except Unauthenticated:
            if is_refused:
                raise
            caller = NOBODY
        if self.is_enforced and not is_refused:  # it is required since
            return await self._begun(request, needed)
        found, is_judged = self._remembered(request, edition, caller), is_refused or not self.is_off
        as_of = found if edition == self.editions.now() else None  # it may have waited
        return Asking(self, caller, as_of, is_judged=is_judged, is_refused=is_refused)

    def why_revoked(self, certificate: Mapping[str, Any] | None) -> str:
        """Why the certificate of a connection is not believed (A9). Empty: it is, or there is none."""
        found = None if certificate is None else self._revocations()
        return "" if found is None or certificate is None else found.why_of(certificate)

    def _may_be_peer(self, request: web.Request) -> bool:
        """Whether it shows a proof of a broker: those are not counted as callers, in any mode (`callers.C2`)."""
        return self.rules.peer_key is not None and http.PROOF in request.headers

    async def hear_all(self) -> None:
        """A8. Raises NotReady."""
        await self.catch_up()
        self._has_heard = True

    def watch_over(self, asking: Asking) -> None:
        """A4, until `let_go`. Raises Unauthenticated, Unauthorized: what has changed since it was judged ends it. That
        may have waited for keys or the cluster, and nobody would look at it again."""
        if not asking.is_as_judged() and (refusal := asking.refused_now()) is not None:
            raise refusal
        self._under_way.add(asking)

    def let_go(self, asking: Asking) -> None:
        self._under_way.discard(asking)
        asking.limited(None)  # the limit knows its task, and the task this asking: a cycle

    def look(self) -> None:
        """End the requests that could not begin now (A4), and have those that watch look again."""
        access, before = self.access(), self.looked_at
        now = self.looked_at = access, access.version, self._revocations()
        is_changed = before is None or before[1] != now[1] or before[0] is not now[0] or before[2] is not now[2]
        for asking in list(self._under_way):
            if is_changed or asking.refusal is not None or not self.is_good(asking.caller):
                asking.look()
        if is_changed and self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    async def until_changed(self) -> None:
        """Return when tokens or grants are others: who watches has to look again."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def is_good(self, caller: Identified) -> bool:
        """Whether a caller would be known now."""
        if caller.until_ms <= self._now_ns() / 1e6:
            return False
        if caller.key is not None and not (self._jwts is not None and self._jwts.believes(caller.key)):
            return False
        return caller.token_id is None or caller.token_id in self.access().tokens

    async def looks(self, _: web.Application) -> AsyncIterator[None]:
        """A cleanup context: it looks as long as the application runs."""
        task = asyncio.get_running_loop().create_task(self._look_on())
        yield
        task.cancel()

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.look()
            except Exception:  # one look that fails, as a catalog may that is not there yet, is not the last one
                log.exception("http.access_bug")


class Asking:
    """One request: who asks, and what for."""

    __slots__ = (
        *("gate", "caller", "certificate", "is_judged", "is_refused", "is_let_in", "refusal"),
        *("_as_of", "_looked_at", "_given", "_given_any", "_asked", "_limit"),
    )

    def __init__(
        self, gate: Gate, caller: Identified, as_of: LastCaller | None = None, *, is_judged: bool, is_refused: bool
    ) -> None:
        self.gate = gate
        self.caller = caller
        self._as_of, self._looked_at = as_of, gate.looked_at
        self.certificate: Mapping[str, Any] | None = None
        """Of the connection (A9)."""
        self.is_judged = is_judged
        self.is_refused = is_refused
        self.is_let_in = not is_refused
        """Whether it has done what it needs to be told of other brokers."""
        self.refusal: InvalidRequest | None = None
        self._given: set[tuple[str, str]] = set()
        self._given_any: set[str] = set()
        self._asked: set[str] = set()
        self._limit: asyncio.Timeout | None = None

    # -- for handlers --------------------------------------------------------------------------------------------

    async def need(self, action: str, names: Iterable[str] = ("",), *, is_told: bool = True) -> None:
        """Go on if the caller may do this to all of these.

        Args:
            is_told: The caller has named them itself. False: a refusal does not say of which it is one.
        Raises:
            Unauthorized: it may not. NotReady: A8.
        """
        self._asked.add(action)
        if not self.is_judged:
            return
        for name in names:
            if (action, name) in self._given:
                continue
            if not self._may(action, name) and not (await self._knows_all() and self._may(action, name)):
                self._refuse(action, name, is_told=is_told)
            self._given.add((action, name))

    async def need_any(self, action: str, *, is_needed: bool = True) -> None:
        """Go on if there is something to which the caller may do this. Raises Unauthorized."""
        self._asked.add(action)
        if not (self.is_judged and is_needed):
            return
        if not self._may_any(action) and not (await self._knows_all() and self._may_any(action)):
            self._refuse(action, "")
        self._given_any.add(action)

    @property
    def is_bounded(self) -> bool:
        """Whether there is anything that it may not do."""
        return self.is_refused and not self.gate.is_admin(self.caller.principal)

    def is_strangers(self, action: str) -> bool:
        """Whether nobody in particular asks, who may do this to nothing. What is asked of another broker
        for a list would tell him of that one."""
        return self.is_refused and self.caller.principal == ANONYMOUS and not self._may_any(action)

    def seen(self, action: str, things: Iterable[T], name: Callable[[T], str]) -> list[T]:
        """Those of these that the caller may be told of, by this action. Some are left out only in `enforce`."""
        self._asked.add(action)
        if not self.is_refused:
            return list(things)
        allows, principal = self.gate.allows, self.caller.principal
        return [each for each in things if allows(principal, action, name(each))]

    def _may(self, action: str, name: str) -> bool:
        return self.gate.allows(self.caller.principal, action, name)

    def _may_any(self, action: str) -> bool:
        return self.gate.allows_any(self.caller.principal, action)

    async def _knows_all(self) -> bool:
        """A8: whether to judge again, before a refusal that counts."""
        if self.is_refused:
            self._as_of = None  # by then it may be another edition
            await self.gate.hear_all()
        return self.is_refused

    def _refuse(self, action: str, name: str, *, is_told: bool = True) -> None:
        if not self.is_refused:
            log.warning("http.would_refuse principal=%s needs=%s name=%s", self.caller.principal, action, name[:128])
            return
        log.warning(
            "http.unauthorized principal=%s through=%s needs=%s name=%s",
            self.caller.principal,
            self.caller.through,
            action,
            name[:128],
        )
        told = name[:128] if is_told else ""
        of = f" of {told!r}" if told else ""
        raise Unauthorized(f"{action}{of} is needed", needs=action, name=told)

    # -- for endpoints -------------------------------------------------------------------------------------------

    async def need_path(self, needed: Needed, path: Mapping[str, str]) -> None:
        """A1: what is known before the query is read. Raises Unauthorized."""
        if not self.is_judged:
            return
        as_of = self._as_of
        for action, parameter in needed.path:
            asked = action, path[parameter] if parameter else ""
            if as_of is not None and (
                asked == as_of.allowed or as_of.allows(asked)
            ):  # as of now, or `watch_over` looks once more
                self._given.add(asked)
            else:
                await self.need(action, asked[1:])
        for action in needed.body:
            if not self._may_any(action) and not (await self._knows_all() and self._may_any(action)):
                self._refuse(action, "")  # whatever it names: so nothing of it is read

    async def need_query(self, needed: Needed, query: Mapping[str, str | None]) -> None:
        """A1. A parameter that is missing the handler misses, too. Raises Unauthorized."""
        for action, parameter in needed.query:
            if (name := query[parameter]) is not None:
                await self.need(action, (name,))

    def let_in(self) -> None:
        """The handler runs next. Who is known, or may do something here, may know of the other brokers."""
        self.is_let_in = self.is_let_in or self.caller.principal != ANONYMOUS or bool(self._given)

    def check_asked(self, needed: Needed) -> None:
        """A1: the handler has asked for what it had to, also for what is needed of nothing this time."""
        left = needed.later - self._asked
        assert not left, f"A1: answered without having asked for {sorted(left)}"

    def limited(self, limit: asyncio.Timeout | None) -> None:
        """What ends this request (A4); None: it has ended."""
        self._limit = limit

    def look(self) -> None:
        """End this request if it could not begin now. What stopped its limit meanwhile is ended anew."""
        refusal = self.refused_now()
        if refusal is None:
            return
        if self.refusal is None:
            log.info("http.access_ended principal=%s error=%s", self.caller.principal, refusal.reason)
        self.refusal = refusal
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    def is_as_judged(self) -> bool:
        """Whether it has neither waited nor been looked past (`Gate.look`) since: what changes then the next look
        sees."""
        as_of = self._as_of
        return (
            as_of is not None
            and self.is_refused
            and self._looked_at is self.gate.looked_at
            and self.certificate is None  # it may be revoked since
            and self.caller.key is None  # the issuer may have taken it back since
        )

    def refused_now(self) -> InvalidRequest | None:
        """Why it could not begin now; None: it could."""
        if self.gate.why_revoked(self.certificate):
            return Unauthenticated("unauthenticated")
        if not self.is_refused:  # it began before the catalog that requires it was known here
            return Unauthenticated("unauthenticated") if self.gate.is_enforced else None
        if not self.gate.is_good(self.caller):
            return Unauthenticated("unauthenticated")
        principal = self.caller.principal
        for action, name in self._given:
            if not self.gate.allows(principal, action, name):
                return Unauthorized(f"{action} is needed", needs=action, name="")
        for action in self._given_any:
            if not self.gate.allows_any(principal, action):
                return Unauthorized(f"{action} is needed", needs=action, name="")
        return None


def is_told(gate: Gate, access: Asking | None, status: int) -> bool:
    """Whether who asked may hear of the cluster's other brokers, in an answer of this status."""
    if not gate.is_enforced:
        return True
    return access is not None and access.is_let_in and status not in (401, 403)


def _not_believed(request: web.Request, why: str, certificate: str = "") -> Unauthenticated:
    """The refusal of one who shows what does not hold (A5), which is logged."""
    log.warning("http.unauthenticated remote=%s path=%s error=%s", request.remote, request.path[:200], why)
    refusal = Unauthenticated("unauthenticated")
    refusal.why, refusal.certificate = why, certificate
    return refusal


_seconds: Final = lru_cache(1_024)(ssl.cert_time_to_seconds)
"""Of the texts that certificates have, which the CA chooses: to read one costs more than all else here."""


def _certificate(request: web.Request) -> Mapping[str, Any] | None:
    """What the client of a connection shows, as `ssl.SSLSocket.getpeercert` says it; None: nothing."""
    transport = request.transport
    return None if transport is None else transport.get_extra_info("peercert") or None


def _certified(request: web.Request, brokers: Callable[[], Collection[str]]) -> Identified | None:
    """The principal of a client's certificate, which the handshake has checked; None: it names none. One of several
    brokers is of the first that is known (`tls_files.F4`)."""
    found = _certificate(request)
    if found is None:
        return None
    uris = [uri for kind, uri in found.get("subjectAltName", ()) if kind == "URI" and uri.startswith("liftlog:")]
    if not uris:
        return None
    named = [principal for uri in uris if (principal := principal_of_uri(uri)) is not None]
    if len(named) < len(uris) or (len(named) > 1 and not all(map(is_broker, named))):
        raise InvalidRequest(f"the certificate names {', '.join(uris)[:200]}, and not one principal")
    principal = named[0]
    if len(named) > 1:
        known = {f"broker:{broker}" for broker in brokers()}
        principal = next((each for each in named if each in known), principal)
    until_ms = 1000.0 * _seconds(found["notAfter"])
    return Identified(principal=principal, how="certificate", until_ms=until_ms)
