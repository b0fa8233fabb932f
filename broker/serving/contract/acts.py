"""What an endpoint says of the audit: whether a call of it is an administrative act, and what is told of it.

An act changes the catalog or an operator's state: streams, consumers, sinks, producers' names, places, tokens, grants.
What a client does all day (appends, commits of offsets, stages) is none.

T1  An endpoint says which it is: there is no default, so that a new one cannot be forgotten (`endpoint.E3`).
T2  Of a body those fields are told that the act names, and no others: a new field is a secret until somebody names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

from broker.api.stream import REPLICATION, SHAPES

SETTINGS: Final = (*SHAPES, *REPLICATION)
"""The fields of a body that holds settings of a stream."""


@dataclass(frozen=True, slots=True)
class Act:
    """An administrative act.

    Attributes:
        told: Fields of the body that the record has (T2). What path names is told always.
        is_polled: A client asks again and again until all is done: the same answer is told once in a while.
    """

    told: tuple[str, ...] = ()
    is_polled: bool = False


NO_ACT: Final[None] = None


class Acting(Protocol):
    """The act that is under way in this request."""

    def begins(self) -> None:
        """Its caller is let in: it is carried out from here on."""

    def asked(self, body: Any) -> None:
        """Its body is this."""


acting_now: Final[ContextVar[Acting | None]] = ContextVar("acting", default=None)


def told_of(act: Act, body: Any) -> dict[str, Any]:
    """What of a JSON body may be told (T2)."""
    return {name: body[name] for name in act.told if name in body} if isinstance(body, Mapping) else {}
