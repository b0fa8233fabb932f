"""Who calls: principals, bearer tokens, and what a grant covers. Text to values; no state, no I/O.

    user:ana   svc:etl   broker:b1   anonymous   admin    principals
    llg_<id>_<secret>                                  a token: 12 characters, and 256 bits as 64 hex digits
    header.claims.signature                            a JWT: whom it names, its issuer says (`serving.http.jwts`)
    liftlog:user/ana                                   a principal, as a certificate names it (SAN, URI)

Q1  A broker keeps the SHA-256 of a token, and nothing that the token could be made of. 256 random bits cannot be tried
    out, so no slow hash is needed; one would be work that a stranger can order.
Q2  A grant is for a name, or for all names with a prefix: `orders`, `orders.*`. A prefix covers internal streams only
    if it begins as they do.
Q3  A grant for subjects covers a subject with wildcards only if all that it can match begins with the prefix. No grant
    covers subjects of the server and of inboxes, nor such as begin with a wildcard and so may be any.
Q4  `admin` is who bears the token of a broker's configuration, and nobody else: no certificate can name it, no token be
    made of it, nothing be granted to it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from typing import Final, NamedTuple

from broker.api.errors import InvalidRequest
from broker.api.permissions import ACTIONS, BROKERS_ALONE, UNNAMED, kind_of
from broker.api.stream import INTERNAL_PREFIX

ANONYMOUS: Final = "anonymous"
NOBODYS: Final = frozenset({"auth:admin", "cluster:admin"})
"""Actions that need somebody: with the first one whoever reaches the port could give himself all others."""
ADMIN: Final = "admin"
"""Q4."""
_NAME: Final = "[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}"
NAMED_PATTERN: Final = f"(user|svc):{_NAME}"
PRINCIPAL_PATTERN: Final = f"{NAMED_PATTERN}|{ANONYMOUS}"
"""Those that something can be granted to."""
MODES: Final = ("off", "permissive", "enforce")
"""What a broker may do with callers (`auth.mode`), from weak to strong."""
CALLER_PATTERN: Final = f"{PRINCIPAL_PATTERN}|{ADMIN}"
"""Those for whom a broker may ask another one."""
_NAMED: Final = re.compile(NAMED_PATTERN)
_PRINCIPAL: Final = re.compile(PRINCIPAL_PATTERN)
_CALLER: Final = re.compile(CALLER_PATTERN)
URI_SCHEME: Final = "liftlog:"
BROKER_URI: Final = f"{URI_SCHEME}broker/"
"""How the URIs of a certificate begin that name somebody to us, and a broker."""
_URI: Final = re.compile(f"{URI_SCHEME}(user|svc|broker)/({_NAME})")
TOKEN_ID_PATTERN: Final = "[a-z2-7]{12}"
SHA256_PATTERN: Final = "[0-9a-f]{64}"
_TOKEN: Final = re.compile(f"llg_({TOKEN_ID_PATTERN})_({SHA256_PATTERN})")
_LIKE_TOKEN: Final = re.compile(f"(?i)llg_(?:({TOKEN_ID_PATTERN})(?![a-z0-9]))?[A-Za-z0-9_]*")
_JSON: Final = "e(?:yJ|yA|wo|w0)"
"""How an object of JSON begins in base64url, as both parts of a JWT before its signature do."""
_LIKE_JWT: Final = re.compile(
    rf"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]*?{_JSON})[A-Za-z0-9_-]++\.{_JSON}[A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]*+)?"
)
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
JWT_LENGTH_MAX: Final = 8_000
_JWT: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
GRANT_NAME_PATTERN: Final = "[!-~]{0,512}"


class Token(NamedTuple):
    """A bearer token. `text` is the secret; `id` may be shown."""

    id: str
    text: str

    @property
    def sha256(self) -> str:
        """What a broker keeps (Q1)."""
        return digest_of(self.text)

    def __repr__(self) -> str:
        return f"Token({self.id})"


def new_token() -> Token:
    """A token that nobody has seen."""
    number = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    return Token(number, f"llg_{number}_{secrets.token_hex(32)}")


def token_of(text: str) -> Token | None:
    """The token that a text is; None: it is none."""
    found = _TOKEN.fullmatch(text)
    return Token(found[1], text) if found else None


def shown(text: str) -> str:
    """A text without what may be a token or a JWT: the id of the one is left, of the other as much of its SHA-256 as
    tells it from others."""
    text = _LIKE_JWT.sub(lambda found: f"jwt_{digest_of(found[0])[:12]}…", text)
    return _LIKE_TOKEN.sub(lambda found: f"llg_{found[1] or ''}…", text)


def is_secret(text: str) -> bool:
    """Whether a text is what a bearer shows, where something else was to be said."""
    return token_of(text) is not None or _LIKE_JWT.fullmatch(text) is not None


def is_jwt(text: str) -> bool:
    """Whether a text has the form of a JWT."""
    return len(text) <= JWT_LENGTH_MAX and _JWT.fullmatch(text) is not None


def digest_of(text: str) -> str:
    """SHA-256 of a token, in hex."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def principal_of_uri(uri: str) -> str | None:
    """The principal that a URI of a certificate names; None: none."""
    found = _URI.fullmatch(uri)
    return f"{found[1]}:{found[2]}" if found else None


def uri_of(principal: str) -> str:
    """As a certificate names it."""
    kind, _, name = principal.partition(":")
    uri = f"{URI_SCHEME}{kind}/{name}"
    if principal_of_uri(uri) is None:
        raise InvalidRequest(f"{principal!r:.200}: must be user:NAME, svc:NAME or broker:ID", value=principal[:200])
    return uri


def is_broker(principal: str) -> bool:
    """Whether this is one of the brokers of the cluster."""
    return principal.startswith("broker:")


def is_named(text: str) -> bool:
    """Whether this is a user or a service."""
    return _NAMED.fullmatch(text) is not None


def check_principal(text: str) -> str:
    """One that something can be granted to. Raises InvalidRequest."""
    if _PRINCIPAL.fullmatch(text) is None:
        raise InvalidRequest(f"{text!r:.200}: must be user:NAME, svc:NAME or anonymous", value=text[:200])
    return text


def check_caller(text: str) -> str:
    """One for whom a broker asks another one. Raises InvalidRequest."""
    return text if _CALLER.fullmatch(text) else check_principal(text)


def check_grant(principal: str, action: str, name: str) -> None:
    """Whether this can be granted to this principal.

    Raises:
        InvalidRequest: no such action, or one that cannot be granted; or a name that the action does not take.
    """
    if principal == ANONYMOUS and action in NOBODYS:
        raise InvalidRequest(f"{action} cannot be granted to {ANONYMOUS}: it needs somebody", value=action)
    if action not in ACTIONS or action in BROKERS_ALONE:
        import difflib

        near = difflib.get_close_matches(action[:100], ACTIONS.keys() - BROKERS_ALONE, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidRequest(
            f"action {action!r:.100} cannot be granted{hint}", value=action[:100], limit=sorted(ACTIONS)
        )
    if (kind_of(action) in UNNAMED) != (name == ""):
        needed = "no name" if name else "a name, or a prefix and *"
        raise InvalidRequest(f"{action}: a grant of it has {needed}", value=name[:100])
    if re.fullmatch(GRANT_NAME_PATTERN, name) is None:
        raise InvalidRequest(f"name {name!r:.100} of a grant: must be printable ASCII without spaces", value=name[:100])
    prefix = name.removesuffix("*")
    if "*" in prefix or (name.endswith("*") and ">" in prefix):  # Q3
        raise InvalidRequest(f"name {name!r:.100} of a grant: * may stand at the end alone", value=name[:100])


class _Of(NamedTuple):
    """The grants of one action: names, and the beginnings of names; `internal`: those of internal streams."""

    names: frozenset[str]
    prefixes: tuple[str, ...]
    internal: tuple[str, ...]
    kind: str


class Granted:
    """All that one principal is granted, laid out so that a question costs the same however many grants there are."""

    __slots__ = ("_of",)

    def __init__(self, grants: Iterable[tuple[str, str]]) -> None:
        names: dict[str, list[str]] = {}
        for action, name in grants:
            names.setdefault(action, []).append(name)
        self._of = {action: _laid_out(action, granted) for action, granted in names.items()}

    def allows(self, action: str, name: str) -> bool:
        """Whether a grant covers this (Q2, Q3)."""
        of = self._of.get(action)
        if of is None or (of.kind == "subject" and is_reserved(name)):
            return False
        is_internal = of.kind == "stream" and name.startswith(INTERNAL_PREFIX)
        return name in of.names or name.startswith(of.internal if is_internal else of.prefixes)

    def allows_any(self, action: str) -> bool:
        """Whether there is a grant of this action, for whatever name."""
        return action in self._of


def _laid_out(action: str, granted: Iterable[str]) -> _Of:
    prefixes = tuple(sorted(each[:-1] for each in granted if each.endswith("*")))
    internal = tuple(each for each in prefixes if each.startswith(INTERNAL_PREFIX))
    return _Of(frozenset(each for each in granted if not each.endswith("*")), prefixes, internal, kind_of(action))


def is_reserved(subject: str) -> bool:
    """Whether it may be one of the server, or of an inbox (Q3)."""
    first = subject.partition(".")[0]
    return first.startswith(("$", "_")) or first in ("*", ">", "")
