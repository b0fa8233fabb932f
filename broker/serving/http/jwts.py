"""JWTs: tokens that an issuer signs whom this broker believes. Who bears one is whom a claim of it names.

    Authorization ─► form, algorithm, key ─► known already ─────────────────────────────────► principal, until `exp`
                                              └─► signature, iss, aud, exp (another thread) ───┘

J1  Only algorithms with a public key are taken, and of them those of the configuration: no `none`, and no HMAC, where
    whoever can check a token can make one. A key belongs to the algorithms of its kind, whatever a token says of
    itself. Keys come from the issuer's set alone, never from a header of the token.
J2  `iss`, `aud` and `exp` have to be there, and a token that is good for longer than `ttl_ms_max` is refused: nothing
    ends it sooner. Clocks may differ by `LEEWAY_S`. One that the issuer has made for something else is refused: of
    another type (`TYPES`), or bound to a key of its bearer (`cnf`), which nobody shows here.
J3  It is a user or a service, as the configuration says: never a broker, and never `admin`.
J4  A token that was good is known by its mark (`access.A3`) until it ends, and `KNOWN_MAX` of them. When the issuer's
    keys change all are judged anew, and requests under way go on if the key of their token is still there. One that
    was refused is not kept: strangers could fill the table.
J5  Signatures are checked beside the loop, `AT_ONCE` at a time, so strangers with forged ones hold up each other. What
    is no JWT of this issuer by its form, algorithm or key gets no further than a look at its header.
J6  Why one is refused is for the log. No error has the token in it.
J7  Where no key is known at all, nobody can tell who asks: `not_ready`, as of one that has just begun (`access.A8`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm

from broker.api.errors import InvalidRequest, InvalidSetting, NotReady
from broker.api.plain import parse_json
from broker.api.principals import JWT_LENGTH_MAX, is_jwt, is_named

KEYS_MAX: Final = 100
RSA_BITS_LEAST: Final = 2048
KNOWN_MAX: Final = 10_000
AT_ONCE: Final = 2
LEEWAY_S: Final = 30.0
TYPES: Final = ("jwt", "at+jwt")
KINDS: Final[Mapping[str, str]] = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""By how the name of an algorithm begins: the kind of its keys (J1)."""
CURVES: Final[Mapping[str, str]] = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}
"""The one algorithm of each curve."""
_SHOWN: Final = 100


class Key(NamedTuple):
    """A public key of the issuer. `algorithm`: the only one that it is for; None: each of its kind."""

    kid: str | None
    kind: str
    algorithm: str | None
    key: Any


Keys = tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtRules:
    """What the configuration says.

    Attributes:
        claim: It names the principal; `principal`: user or svc.
        ttl_ms_max: J2.
        keys: The issuer's, as they are now; another object when they change.
        missed: Told that a token names a key that is not among them: the issuer may have a new one.
    """

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    claim: str
    principal: str
    ttl_ms_max: int
    keys: Callable[[], Keys]
    missed: Callable[[], None] = lambda: None


class Bearer(NamedTuple):
    """Whom a good token names, until when (milliseconds since 1970 UTC), and by which key that is known."""

    principal: str
    until_ms: float
    key: Key


class Jwts:
    """See the module. On the loop of the gate.

    Args:
        now_ms: The clock: milliseconds since 1970 UTC.
        beside: Carries out a call on another thread.
    """

    def __init__(
        self,
        rules: JwtRules,
        now_ms: Callable[[], float],
        beside: Callable[[Callable[[], Bearer]], Awaitable[Bearer]],
    ) -> None:
        self._rules = rules
        self._now_ms = now_ms
        self._beside = beside
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._known: OrderedDict[bytes, Bearer] = OrderedDict()
        self._keys: Keys = ()

    def known(self, mark: bytes) -> Bearer | None:
        """Whom a token names that was good; None: it has to be judged (J4)."""
        if (keys := self._rules.keys()) is not self._keys:
            self._keys = keys
            self._known.clear()
        found = self._known.get(mark)
        if found is not None:
            self._known.move_to_end(mark)
        return found

    def believes(self, key: Key) -> bool:
        """Whether it is a key of the issuer, as they are now."""
        keys = self._rules.keys()
        return key in keys

    async def judge(self, text: str, mark: bytes) -> None:
        """Have a good token known. Raises InvalidRequest: it is not (J6). NotReady: J7."""
        keys = self._rules.keys()
        try:
            algorithm, key = chosen(text, self._rules, keys)
        except UnknownKey:
            self._rules.missed()
            if not keys:
                raise NotReady("this broker cannot tell yet who asks") from None
            raise
        async with self._turns:
            now_ms = self._now_ms()
            found = await self._beside(lambda: judged(text, algorithm, key, self._rules, now_ms))
        if self.known(mark) is None and keys is self._keys:
            self._known[mark] = found
            while len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)


class UnknownKey(InvalidRequest):
    """It names a key that the issuer does not have, as far as this broker knows."""


def chosen(text: str, rules: JwtRules, keys: Keys) -> tuple[str, Key]:
    """The algorithm and the key of a token, by its header (J1, J5). Raises InvalidRequest, UnknownKey."""
    if not is_jwt(text):
        raise InvalidRequest(f"it is no JWT: three parts in base64url, at most {JWT_LENGTH_MAX} characters")
    header = _header(text.partition(".")[0])
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in rules.algorithms:
        raise InvalidRequest(f"a JWT by algorithm {algorithm!r:.{_SHOWN}}, and not by {', '.join(rules.algorithms)}")
    if "crit" in header or "b64" in header:
        raise InvalidRequest("a JWT whose header has crit or b64, which nothing here understands")
    if str(header.get("typ", TYPES[0])).lower().removeprefix("application/") not in TYPES:
        raise InvalidRequest(f"a JWT of type {header['typ']!r:.{_SHOWN}}, which is for something else")
    kind = KINDS[algorithm[:2]]
    fit = [key for key in keys if key.kind == kind and key.algorithm in (None, algorithm)]
    fit = fit if kid is None else [key for key in fit if key.kid == kid]
    if not fit:
        raise UnknownKey(
            f"a JWT whose key {kid!r:.{_SHOWN}} for {algorithm} is not among the {len(keys)} of the issuer"
        )
    if kid is None and len(fit) > 1:
        raise InvalidRequest(f"a JWT that does not say by which of the {len(fit)} keys for {algorithm} it is signed")
    if any(each.key != fit[0].key for each in fit):
        raise InvalidRequest(f"a JWT whose key {kid!r:.{_SHOWN}} for {algorithm} is {len(fit)} keys of the issuer")
    return algorithm, fit[0]


def _header(part: str) -> Mapping[str, Any]:
    try:
        header = parse_json(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error):
        header = None
    if not isinstance(header, dict):
        raise InvalidRequest("a JWT whose header is no JSON object")
    return header


def judged(text: str, algorithm: str, key: Key, rules: JwtRules, now_ms: float) -> Bearer:
    """Whom a token names. Raises InvalidRequest: J2, J3, or it is not signed by this key."""
    own = dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_sub", "verify_jti"), False)
    options: Any = {"require": ["exp", "iss", "aud"], **own}  # times are compared below, by the clock that is handed in
    try:
        claims: dict[str, Any] = jwt.PyJWT().decode(
            text, key.key, algorithms=[algorithm], issuer=rules.issuer, audience=rules.audience, options=options
        )
    except jwt.InvalidSignatureError:
        raise InvalidRequest("a JWT that is forged, or signed by another key of this name") from None
    except jwt.InvalidIssuerError:
        raise InvalidRequest(f"a JWT of another issuer than {rules.issuer}") from None
    except jwt.InvalidAudienceError:
        raise InvalidRequest(f"a JWT for another audience than {rules.audience}") from None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"a JWT that cannot be taken: {type(error).__name__} {error!s:.{_SHOWN}}") from None
    if "cnf" in claims:
        raise InvalidRequest("a JWT that is bound to a key of its bearer (cnf), which nothing here looks for")
    now_s = now_ms / 1000
    end_s = _time(claims, "exp")
    begin_s = max(_time(claims, "nbf", 0.0), _time(claims, "iat", 0.0))
    if end_s + LEEWAY_S <= now_s:
        raise InvalidRequest(f"a JWT that expired {now_s - end_s:.0f} s ago")
    if begin_s - LEEWAY_S > now_s:
        raise InvalidRequest(f"a JWT that is not valid yet, for {begin_s - now_s:.0f} s")
    if (end_s - LEEWAY_S - now_s) * 1000 > rules.ttl_ms_max:
        raise InvalidRequest(
            f"a JWT that is good for another {end_s - now_s:.0f} s: jwt.ttl_ms_max is {rules.ttl_ms_max}"
        )
    name = claims.get(rules.claim)
    principal = f"{rules.principal}:{name}"
    if not isinstance(name, str) or not is_named(principal):  # J3
        raise InvalidRequest(f"a JWT whose claim {rules.claim} is no name: {name!r:.{_SHOWN}}")
    return Bearer(principal, (end_s + LEEWAY_S) * 1000, key)


def _time(claims: Mapping[str, Any], name: str, default: float = math.nan) -> float:
    value = claims.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 53:
        raise InvalidRequest(f"a JWT whose {name} is no time: {value!r:.{_SHOWN}}")
    return float(value)


def keys_of(data: bytes) -> Keys:
    """The keys of a set (RFC 7517) that can sign tokens. Others are passed over.

    Raises:
        InvalidSetting: it is none, or has none that can be used; or it shows what nobody should see.
    """
    try:
        found = parse_json(data)
    except ValueError:
        found = None
    given = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(given, list) or len(given) > KEYS_MAX:
        raise InvalidSetting(f"it is no set of keys in JSON (RFC 7517) of at most {KEYS_MAX}")
    keys = [key for each in given if isinstance(each, dict) and (key := _key(each)) is not None]
    if not keys:
        raise InvalidSetting(f"of {len(given)} keys in it none is public and can check a signature (RSA, EC, Ed25519)")
    return tuple(keys)


def _key(given: dict[str, Any]) -> Key | None:
    kind: Any = given.get("kty")
    kid, algorithm = given.get("kid"), given.get("alg")
    if not isinstance(kind, str) or kind not in KINDS.values() or given.get("use", "sig") != "sig":
        return None
    if "d" in given:
        raise InvalidSetting("it has a private key: whoever reads it can sign tokens. Publish the public ones alone")
    uses = given.get("key_ops", ["verify"])
    if not isinstance(uses, list) or "verify" not in uses:
        return None
    if kind != "RSA":
        of_curve = CURVES.get(str(given.get("crv")))
        if of_curve is None or algorithm not in (None, of_curve):
            return None
        algorithm = of_curve
    if not isinstance(kid, str | None) or not (algorithm is None or KINDS.get(str(algorithm)[:2]) == kind):
        return None
    try:
        key: Any = jwt.PyJWK(given, algorithm=algorithm or "RS256").key
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, OverflowError):
        return None
    if kind == "RSA" and key.key_size < RSA_BITS_LEAST:
        return None
    return Key(kid, kind, algorithm, key)
