"""What a call needs: actions, each on a thing that has a name. One table for brokers, grants and the contract.

    stream:read of orders       an action, whose word before the colon says of what kind the thing is, and the name
    cluster:operate             where there is but one such thing, there is no name

P1  An action that is not in `ACTIONS` can be neither needed nor granted.
P2  What an endpoint needs says where the broker finds the name: before the handler runs (path and query), or in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

ACTIONS: Final[dict[str, str]] = {
    "stream:read": "read records, describe, watch, resolve positions, see it in lists",
    "stream:append": "append records, stage them for a sink",
    "stream:create": "create a stream of this name",
    "stream:admin": "alter, delete, pause, make read-only, add partitions, trim, verify",
    "subject:capture": "create a stream that captures these NATS subjects",
    "producer:write": "register, use and forget the name of an idempotent producer",
    "consumer:read": "see the offsets of a consumer or a group, read a pin",
    "consumer:write": "commit, reset and forget the offsets of a consumer, join, reset and forget a group, place a pin",
    "sink:read": "see a sink",
    "sink:write": "open a sink, stage, commit and abort for it, end a one-shot sink of one's own",
    "sink:admin": "reset, adopt and forget a sink",
    "cluster:read": "see brokers, places of partitions, a rescue",
    "cluster:operate": "reassign, elect, drain",
    "cluster:admin": "what may cost records: unclean elections, accepted losses, removals, the end of a rescue",
    "metrics": "health, metrics, the page of links, the OpenAPI document",
    "auth:admin": "tokens and grants",
    "broker": "what brokers ask each other; it cannot be granted",
    "audit:tell": "tell another broker what belongs into `__audit`; it cannot be granted either",
}
"""Each action, and what it allows."""
UNNAMED: Final = frozenset({"cluster", "metrics", "auth", "broker", "audit"})
"""Kinds of which there is one thing, without a name."""
BROKERS_ALONE: Final = frozenset({"broker", "audit:tell"})
"""Actions that cannot be granted, and that no admin of the configuration has."""
IN_EVERY_MODE: Final = frozenset({"auth:admin", "audit:tell"})
"""Actions that are judged also where `auth.mode` judges nothing."""


def kind_of(action: str) -> str:
    """The kind of thing that an action is done to: `stream` of `stream:read`."""
    return action.partition(":")[0]


class Where(Enum):
    """Where the name of the thing stands, and so who looks at it."""

    NOWHERE = "there is one"
    PATH = "in the path"
    QUERY = "in the query"
    BODY = "in the body: the handler looks"
    CATALOG = "the catalog knows it: the handler looks"
    ANSWER = "in the answer: the handler leaves out what may not be told"
    ANY = "of any name"


@dataclass(frozen=True, slots=True)
class Need:
    """One action that a call needs.

    Attributes:
        name: Of the parameter in path or query; or of the field; or what it is.
        when: Only then it is needed; empty: always.
    """

    action: str
    where: Where = Where.NOWHERE
    name: str = ""
    when: str = ""

    def __post_init__(self) -> None:
        assert self.action in ACTIONS, f"P1: {self.action}"
        assert (kind_of(self.action) in UNNAMED) == (self.where is Where.NOWHERE), f"P2: {self}"

    @property
    def of(self) -> str:
        """The thing, as the contract shows it; empty: there is one."""
        match self.where:
            case Where.PATH:
                return f"{{{self.name}}}"
            case Where.QUERY:
                return f"?{self.name}"
            case Where.ANSWER:
                return f"each {kind_of(self.action)} that is told"
            case Where.ANY:
                return f"any {kind_of(self.action)}"
        return self.name

    def __str__(self) -> str:
        of = f" of {self.of}" if self.of else ""
        return f"{self.action}{of}" + (f", if {self.when}" if self.when else "")


Permission = tuple[Need, ...]
"""All that a call needs. Empty: nothing, which is `OPEN`."""
OPEN: Final[Permission] = ()
"""Whoever reaches the port may. For `/livez` alone."""


def needs(action: str, *, when: str = "") -> Permission:
    """An action on what there is one of."""
    return (Need(action, when=when),)


def of_path(action: str, name: str, *, when: str = "") -> Permission:
    """An action on what `{name}` of the path names."""
    return (Need(action, Where.PATH, name, when),)


def of_query(action: str, name: str) -> Permission:
    """An action on what a parameter of the query names. Without the parameter the call is refused all the same."""
    return (Need(action, Where.QUERY, name),)


def of_body(action: str, field: str, *, when: str = "") -> Permission:
    """An action on all that a field of the body names. The handler looks, before it does anything."""
    return (Need(action, Where.BODY, field, when),)


def of_catalog(action: str, what: str, *, when: str = "") -> Permission:
    """An action on what the broker has to look up. The handler looks, before it does anything."""
    return (Need(action, Where.CATALOG, what, when),)


def of_answer(action: str) -> Permission:
    """An action on each thing that the answer tells: what may not be told is left out, as if it were not there."""
    return (Need(action, Where.ANSWER),)


def of_any(action: str, *, when: str = "") -> Permission:
    """An action on at least one thing, whichever."""
    return (Need(action, Where.ANY, when=when),)
