"""What brokers answer about who may do what, as frozen dataclasses; as `answers.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from broker.api.answers import Count
from broker.api.validation import Rule

Moment = Annotated[int, Rule(limit=(0, (1 << 63) - 1), doc="Milliseconds since 1970 UTC")]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantDescription:
    """An action, and the name or prefix with `*` that it is granted for; empty where there are no names."""

    action: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhoAmI:
    """A caller, as a broker sees it.

    Attributes:
        how: broker, certificate, token, jwt or nothing: what it has shown.
        mode: off, permissive or enforce.
        admin: It may do everything, as the broker's configuration says.
        expires_ms: It is not believed from then on; None: no such time is known.
    """

    principal: str
    how: str
    mode: str
    admin: bool
    expires_ms: Moment | None
    grants: tuple[GrantDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDescription:
    """A token, without its secret. `by`: the principal that made it."""

    id: str
    principal: str
    expires_ms: Moment
    made_ms: Moment
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens that are kept, by principal and id. Some may have expired."""

    tokens: tuple[TokenDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalDescription:
    """A principal and what it is granted."""

    principal: str
    grants: tuple[GrantDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Principals:
    """All principals with grants, by name. `version`: grows with each change of tokens and grants."""

    version: Count
    principals: tuple[PrincipalDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessChanged:
    """A change is committed.

    Attributes:
        version: Of tokens and grants, as of it or later.
        warnings: Remarks, as of a name that nothing has yet.
    """

    version: Count
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessTested:
    """Whether a principal may do something."""

    allowed: bool
