"""Tokens and grants. Part of the catalog: no clock, all times are given.

    put_token    token_id, sha256, principal, expires_ms, at_ms, by      drop_token  token_id, by
    put_grants   principal, add [[action, name]], remove [[action, name]], by
    require_auth required, by                     whether every broker judges callers, whatever its configuration says

Invariants
Z1  A token id is one token for good: under it no other is taken while it is kept.
Z2  `version` counts changes, and every change of what somebody may do is one. Whoever has decided under another version
    decides again.
Z3  There is no grant that forbids: what is allowed is what a grant covers (`principals.Granted`).
Z4  Each command says by whom it was asked for.
Z5  It is required only where every broker does it by itself already, so the command refuses nobody anything. From then
    on no broker's configuration can end it; to take it back is a command, too.
Z6  A token that was revoked is told from one that was never there. That is for the log alone, so brokers that do not
    remember it (those of before) agree with those that do about all else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broker.api.errors import InvalidRequest, UnknownToken
from broker.api.principals import MODES, check_grant
from broker.metadata import fields
from broker.metadata.info import BrokerInfo

TOKENS_MAX: Final = 10_000
REVOKED_MAX: Final = 1_000
"""So many revoked tokens are remembered, the newest (Z6)."""
PRINCIPALS_MAX: Final = 10_000
GRANTS_MAX: Final = 256
Grant = tuple[str, str]
"""An action, and a name or prefix with `*`; of an action without names it is empty."""


class KeptToken(NamedTuple):
    """What is known of a token. `expires_ms`: milliseconds since 1970 UTC."""

    sha256: str
    principal: str
    expires_ms: int
    made_ms: int
    by: str


@dataclass(slots=True)
class Access:
    """See the module. The tables are replaced, never changed: a reader on another thread keeps what it has."""

    tokens: Mapping[str, KeptToken] = field(default_factory=dict)
    grants: Mapping[str, tuple[Grant, ...]] = field(default_factory=dict)
    version: int = 0
    is_required: bool = False
    revoked: Mapping[str, str] = field(default_factory=dict)  # id -> SHA-256, the oldest first (Z6)

    def copy(self) -> Access:
        """Another one with the same content."""
        return Access(self.tokens, self.grants, self.version, self.is_required, self.revoked)

    def put_token(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Take a token. One that is there already stays as it is."""
        token_id, at_ms = fields.text(command, "token_id"), fields.whole(command, "at_ms")
        token = KeptToken(
            fields.text(command, "sha256"),
            fields.text(command, "principal"),
            fields.whole(command, "expires_ms"),
            at_ms,
            fields.text(command, "by"),
        )
        known = self.tokens.get(token_id)
        if known is not None:
            if (known.sha256, known.principal, known.expires_ms) != token[:3]:  # Z1
                raise InvalidRequest(f"token {token_id} is another one", token_id=token_id)
            return {"version": self.version}
        kept = self.tokens
        if len(kept) >= TOKENS_MAX:  # not sooner: the clock that says so may be wrong, and take tokens that are good
            kept = {each: token for each, token in kept.items() if token.expires_ms > at_ms}
        if len(kept) >= TOKENS_MAX:
            raise InvalidRequest(f"there are {TOKENS_MAX} tokens, which is the limit", limit=TOKENS_MAX)
        self.tokens = {**kept, token_id: token}
        self.revoked = {each: sha256 for each, sha256 in self.revoked.items() if each != token_id}
        return self._changed()

    def drop_token(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Revoke a token. Raises UnknownToken."""
        token_id = fields.text(command, "token_id")
        fields.text(command, "by")
        token = self.tokens.get(token_id)
        if token is None:
            raise UnknownToken(f"there is no token {token_id}", token_id=token_id)
        self.revoked = dict([*self.revoked.items(), (token_id, token.sha256)][-REVOKED_MAX:])
        self.tokens = {each: kept for each, kept in self.tokens.items() if each != token_id}
        return self._changed()

    def put_grants(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Take grants away from a principal, and give it others. Each may be sent twice."""
        principal = fields.text(command, "principal")
        fields.text(command, "by")
        add, remove = _grants(principal, command, "add"), set(_grants(principal, command, "remove"))
        before = self.grants.get(principal, ())
        after = tuple(sorted({*before, *add} - remove))
        if len(after) > GRANTS_MAX:
            raise InvalidRequest(f"{principal}: {GRANTS_MAX} grants are the limit", limit=GRANTS_MAX)
        if after and principal not in self.grants and len(self.grants) >= PRINCIPALS_MAX:
            raise InvalidRequest(f"{PRINCIPALS_MAX} principals have grants, which is the limit", limit=PRINCIPALS_MAX)
        if after == before:
            return {"version": self.version}
        others = {each: grants for each, grants in self.grants.items() if each != principal}
        self.grants = {**others, principal: after} if after else others
        return self._changed()

    def require_auth(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Z5. `Cluster.check_enforcing` comes before it."""
        fields.text(command, "by")
        if command["required"] is self.is_required:
            return {"version": self.version}
        self.is_required = command["required"]
        return self._changed()

    def snapshot(self) -> dict[str, Any]:
        """All of it as JSON values; nothing, if there was never any."""
        if not self.version:
            return {}
        return {
            "access": {
                "version": self.version,
                "tokens": [[each, *self.tokens[each]] for each in sorted(self.tokens)],
                "grants": [[each, list(map(list, self.grants[each]))] for each in sorted(self.grants)],
                **({"required": True} if self.is_required else {}),
                **({"revoked": list(map(list, self.revoked.items()))} if self.revoked else {}),
            }
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> Access:
        """What `snapshot` described; of before there was any: nothing."""
        value = snapshot.get("access")
        if value is None:
            return cls()
        return cls(
            {token_id: KeptToken(*rest) for token_id, *rest in value["tokens"]},
            {principal: tuple((action, name) for action, name in grants) for principal, grants in value["grants"]},
            value["version"],
            value.get("required", False),
            dict(value.get("revoked", ())),
        )

    def _changed(self) -> dict[str, Any]:
        self.version += 1
        return {"version": self.version}


KINDS: Final = {
    "put_token": Access.put_token,
    "drop_token": Access.drop_token,
    "put_grants": Access.put_grants,
    "require_auth": Access.require_auth,
}


def weaker_brokers(access: Access, brokers: Iterable[BrokerInfo], mine: str) -> dict[str, str]:
    """Brokers that live, and let callers do what this one refuses: id -> mode. None, where it is required (Z5)."""
    if access.is_required:
        return {}
    weaker = MODES[: MODES.index(mine)]
    return {b.broker_id: b.auth_mode for b in brokers if b.is_live and b.auth_mode in weaker}


def _grants(principal: str, command: Mapping[str, Any], key: str) -> Iterable[Grant]:
    found: Sequence[Sequence[str]] = command.get(key, ())
    for action, name in found:
        check_grant(principal, action, name)
    return [(action, name) for action, name in found]
