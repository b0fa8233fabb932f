"""The calls of a client about who may do what: itself, tokens, grants. All but the first take `auth:admin`."""

from __future__ import annotations

import time

from broker.api.auth_answers import (
    AccessChanged,
    AccessTested,
    PrincipalDescription,
    Principals,
    TokenDescription,
    Tokens,
    WhoAmI,
)
from broker.api.errors import UnknownToken
from broker.api.principals import Token, check_grant, check_principal, new_token
from broker.client.http.calls import Calls, path, understand


class AccessCalls:
    """A part of `Client`, which has the rest."""

    @property
    def _calls(self) -> Calls:
        raise NotImplementedError

    def whoami(self) -> WhoAmI:
        """This client, as a broker sees it."""
        return understand(WhoAmI, self._calls.json("GET", path("auth", "whoami")), where="asking who this is")

    def tokens(self) -> list[TokenDescription]:
        """The tokens that are kept, without their secrets."""
        return list(understand(Tokens, self._calls.json("GET", path("auth", "tokens")), where="listing tokens").tokens)

    def create_token(self, principal: str, *, ttl_s: float, made: Token | None = None) -> Token:
        """A new token of a principal. Its secret is made here, and brokers never keep it.

        Args:
            made: The token, if the caller has one that nobody has seen (`principals.new_token`).
            ttl_s: It is good for so long, in seconds; a year at most.
        Returns:
            The token; `text` is what its holder shows. Nobody can tell it again.
        """
        check_principal(principal)
        made = made or new_token()
        of = {"id": made.id, "sha256": made.sha256, "principal": principal}
        expires_ms = int((time.time() + ttl_s) * 1000)
        self._calls.json("POST", path("auth", "tokens"), {**of, "expires_ms": expires_ms})
        return made

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token. Raises UnknownToken."""
        self._calls.json("DELETE", path("auth", "tokens", token_id), done_if=UnknownToken)

    def grants(self) -> list[PrincipalDescription]:
        """All principals with their grants."""
        value = self._calls.json("GET", path("auth", "grants"))
        return list(understand(Principals, value, where="listing grants").principals)

    def grant(self, principal: str, action: str, name: str = "") -> tuple[str, ...]:
        """Let a principal do this to what has this name, or to all whose name begins so (`orders*`).

        Returns:
            Warnings: nothing has such a name yet.
        """
        return self._change(principal, "add", action, name)

    def revoke(self, principal: str, action: str, name: str = "") -> tuple[str, ...]:
        """Take a grant back. The name is the one that was granted.

        Returns:
            Warnings: grants that overlap with it are left, such as `orders*` where `orders` is taken back.
        """
        return self._change(principal, "remove", action, name)

    def test_access(self, principal: str, action: str, name: str = "") -> bool:
        """Whether a principal may do this."""
        asked = {"principal": check_principal(principal), "action": action, "name": name}
        value = self._calls.json("POST", path("auth", "test"), asked)
        return understand(AccessTested, value, where="testing access").allowed

    def require_auth(self, required: bool = True) -> None:
        """Have every broker enforce, whatever its configuration says; False: each goes by its own again."""
        self._calls.json("POST", path("auth", "require"), {"required": required})

    def _change(self, principal: str, key: str, action: str, name: str) -> tuple[str, ...]:
        check_principal(principal)
        check_grant(principal, action, name)
        body = {"principal": principal, key: [{"action": action, "name": name}]}
        value = self._calls.json("POST", path("auth", "grants"), body)
        return understand(AccessChanged, value, where="changing grants").warnings
