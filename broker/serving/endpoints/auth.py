"""Who asks, and who may do what: tokens and grants, for whoever has `auth:admin`, in every mode.

The secret of a token is made by who asks for it, and does not travel: the broker gets its SHA-256 alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from aiohttp import web

from broker.api.auth_answers import (
    AccessChanged,
    AccessTested,
    GrantDescription,
    PrincipalDescription,
    Principals,
    TokenDescription,
    Tokens,
    WhoAmI,
)
from broker.api.errors import InvalidRequest, LiftlogError, UnknownToken
from broker.api.permissions import ACTIONS, OPEN, UNNAMED, kind_of, needs
from broker.api.principals import MODES, TOKEN_ID_PATTERN, check_grant, check_principal
from broker.serving.contract.acts import NO_ACT, Act
from broker.serving.contract.endpoint import Content, Endpoints, Query, Serving, answer, body
from broker.serving.contract.schemas import AccessAsked, AuthRequired, GrantAsked, GrantsAsked, TokenAsked
from broker.serving.http.access import access_now
from broker.serving.http.waiting import unbroken

ENDPOINTS: Final = Endpoints()
TTL_MS_MAX: Final = 366 * 24 * 3_600_000
"""No token lives longer than so."""
_THINGS: Final = {"stream": "stream", "producer": "producer", "sink": "sink", "consumer": "consumer or group"}
"""What a grant can be for and might not be there, by the kind of its action."""


class _Names(NamedTuple):
    """The names of one kind, as far as this broker knows them. `all_known`: there are no others."""

    there: Collection[str]
    all_known: bool


@ENDPOINTS.add("GET", "/v1/auth/whoami", "whoami", answer("The caller.", "WhoAmI"), permission=OPEN, act=NO_ACT)
async def whoami(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Who the caller is, and what it is granted."""
    gate, caller = serving.gate, access_now.get().caller
    said = WhoAmI(
        principal=caller.principal,
        how=caller.how,
        mode=gate.mode,
        admin=gate.is_admin(caller.principal),
        expires_ms=None if caller.until_ms == float("inf") else int(caller.until_ms),
        grants=_grants(gate.access().grants.get(caller.principal, ())),
    )
    return web.json_response(asdict(said))


@ENDPOINTS.add(
    "GET", "/v1/auth/tokens", "list_tokens", answer("The tokens.", "Tokens"), permission=needs("auth:admin"), act=NO_ACT
)
async def list_tokens(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """The tokens that are kept, without their secrets."""
    found = [
        TokenDescription(id=each, principal=t.principal, expires_ms=t.expires_ms, made_ms=t.made_ms, by=t.by)
        for each, t in serving.gate.access().tokens.items()
    ]
    found.sort(key=lambda each: (each.principal, each.id))
    return await serving.json_answer(lambda: asdict(Tokens(tokens=tuple(found))))


@ENDPOINTS.add(
    "POST",
    "/v1/auth/tokens",
    "put_token",
    answer("It is good from now on.", "AccessChanged"),
    permission=needs("auth:admin"),
    act=Act(("id", "principal", "expires_ms")),
    request=body("The token's id, SHA-256, principal and end.", "TokenAsked"),
)
async def put_token(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Take a token that the caller has made."""
    asked, now_ms = await serving.asked(request, TokenAsked), serving.now_us() // 1000
    check_principal(asked.principal)
    if not now_ms < asked.expires_ms <= now_ms + TTL_MS_MAX:
        raise InvalidRequest(
            f"expires_ms={asked.expires_ms}: must be after now, {now_ms}, and within a year",
            field="expires_ms",
            limit=[now_ms + 1, now_ms + TTL_MS_MAX],
        )
    return await _change(
        serving,
        "put_token",
        token_id=asked.id,
        sha256=asked.sha256,
        principal=asked.principal,
        expires_ms=asked.expires_ms,
        at_ms=now_ms,
    )


@ENDPOINTS.add(
    "DELETE",
    "/v1/auth/tokens/{token}",
    "revoke_token",
    {204: Content(description="Revoked.")},
    permission=needs("auth:admin"),
    act=Act(),
    errors=(UnknownToken,),
)
async def revoke(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Revoke a token. What is under way with it ends within two seconds."""
    token_id = request.match_info["token"]
    if re.fullmatch(TOKEN_ID_PATTERN, token_id) is None:
        raise UnknownToken(f"{token_id!r:.100} is no id of a token: these have 12 of a-z and 2-7", token=token_id[:100])
    await _change(serving, "drop_token", token_id=token_id)
    return web.Response(status=204)


@ENDPOINTS.add(
    "GET",
    "/v1/auth/grants",
    "list_grants",
    answer("The grants.", "Principals"),
    permission=needs("auth:admin"),
    act=NO_ACT,
)
async def list_grants(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """All principals with their grants."""
    access = serving.gate.access()
    found = [PrincipalDescription(principal=each, grants=_grants(of)) for each, of in sorted(access.grants.items())]
    said = Principals(version=access.version, principals=tuple(found))
    return await serving.json_answer(lambda: asdict(said))


@ENDPOINTS.add(
    "POST",
    "/v1/auth/grants",
    "change_grants",
    answer("They hold from now on.", "AccessChanged"),
    permission=needs("auth:admin"),
    act=Act(("principal", "add", "remove")),
    request=body("What a principal is granted, and what it is not granted any more.", "GrantsAsked"),
)
async def change_grants(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Grant a principal something, or take it back. A name need not be there yet."""
    asked = await serving.asked(request, GrantsAsked)
    check_principal(asked.principal)
    add, remove = (_pairs(asked.principal, each) for each in (asked.add, asked.remove))
    left = {*serving.gate.access().grants.get(asked.principal, ()), *map(tuple, add)} - set(map(tuple, remove))
    there = {kind: await _names(serving, kind) for kind in {kind_of(action) for action, _ in add} & _THINGS.keys()}
    said = [
        *(_missing(serving, there, *each) for each in add),
        *(_left(asked.principal, left, *each) for each in remove),
    ]
    warnings = tuple(filter(None, said))
    return await _change(serving, "put_grants", warnings=warnings, principal=asked.principal, add=add, remove=remove)


@ENDPOINTS.add(
    "POST",
    "/v1/auth/test",
    "test_access",
    answer("Whether it may.", "AccessTested"),
    permission=needs("auth:admin"),
    act=NO_ACT,
    request=body("Who wants to do what.", "AccessAsked"),
)
async def test_access(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Whether a principal may do something, by configuration and grants as they are now."""
    asked = await serving.asked(request, AccessAsked)
    check_principal(asked.principal)
    if asked.action not in ACTIONS or (kind_of(asked.action) in UNNAMED) != (asked.name == ""):
        check_grant(asked.principal, asked.action, asked.name)
    allowed = serving.gate.allows(asked.principal, asked.action, asked.name)
    return web.json_response(asdict(AccessTested(allowed=allowed)))


@ENDPOINTS.add(
    "POST",
    "/v1/auth/require",
    "require_auth",
    answer("It holds from now on.", "AccessChanged"),
    permission=needs("auth:admin"),
    act=Act(("required",)),
    request=body("Whether every broker is to judge callers.", "AuthRequired"),
)
async def require(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Have every broker enforce, whatever its configuration says. All have to do so by themselves already."""
    asked, own = await serving.asked(request, AuthRequired), serving.gate.rules.mode
    if asked.required and own != MODES[-1]:
        raise InvalidRequest(f"this broker has auth.mode = {own}: restart all with {MODES[-1]} first", mode=own)
    return await _change(serving, "require_auth", required=asked.required)


async def _change(serving: Serving, kind: str, *, warnings: tuple[str, ...] = (), **values: Any) -> web.Response:
    by = access_now.get().caller.principal
    version = await unbroken(serving.backend.change_access(kind, {**values, "by": by}))
    serving.gate.look()
    return web.json_response(asdict(AccessChanged(version=version, warnings=warnings)))


def _pairs(principal: str, grants: Iterable[GrantAsked]) -> list[list[str]]:
    found = [[each.action, each.name] for each in grants]
    for action, name in found:
        check_grant(principal, action, name)
    return found


async def _names(serving: Serving, kind: str) -> _Names:
    """Consumers and sinks are kept by one broker of a cluster. A grant does not wait for it."""
    backend, there, all_known = serving.backend, set[str](), False
    if kind == "consumer":
        there.update(backend.groups.named)
    with suppress(LiftlogError):
        match kind:
            case "stream":
                there.update(info.name for info in backend.streams(internal=True))
            case "producer":
                there.update(backend.producers())
            case "sink":
                there.update(state.sink for state in await backend.sinks.states())
            case "consumer":
                there.update(backend.offsets.consumers(), backend.offsets.group_names())
        all_known = True
    return _Names(there, all_known)


def _missing(serving: Serving, there: Mapping[str, _Names], action: str, name: str) -> str:
    """What to say of a grant for a name that nothing has; empty: nothing."""
    kind = kind_of(action)
    if kind not in there or action == "stream:create":
        return ""
    found, prefix = there[kind], name.removesuffix("*")
    if name in found.there or (prefix != name and any(each.startswith(prefix) for each in found.there)):
        return ""
    what, which = _THINGS[kind], f"has the name {name!r}" if prefix == name else f"begins with {prefix!r}"
    if not found.all_known:
        return f"whether a {what} {which} is not known to this broker: the grant holds once there is one"
    if kind == "consumer" and prefix == name:
        with suppress(LiftlogError):
            if serving.backend.offsets.pin(name).version:
                return ""
    return f"no {what} {which} yet: the grant holds once there is one"


def _left(principal: str, left: Collection[tuple[str, ...]], action: str, name: str) -> str:
    """What to say of a grant that is taken back if others, which are left, overlap with it; empty: none does."""
    found = [other for of, other in sorted(left) if of == action and (_covers(other, name) or _covers(name, other))]
    return f"{principal} still has {action} of {', '.join(found)}, which was granted apart" if found else ""


def _covers(granted: str, name: str) -> bool:
    return name.startswith(granted[:-1]) if granted.endswith("*") else name == granted


def _grants(grants: Iterable[tuple[str, str]]) -> tuple[GrantDescription, ...]:
    return tuple(GrantDescription(action=action, name=name) for action, name in grants)
