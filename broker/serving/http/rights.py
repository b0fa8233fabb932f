"""What each caller may do, laid out once for each state of the catalog's access; and whom a connection last knew.

    catalog's access ──► edition 7 ──► rights by principal, bearers by mark
                             ▲                  ▲
    connection ──► LastCaller(edition 7, header, caller, rights): used while this is the edition

R1  All that is remembered is of one edition. Each change of a token, a grant or of what is required begins a new one,
    and so does another catalog (a snapshot that is restored). What was remembered before is not used again.
R2  A connection remembers one caller: the last whom a token or its certificate named. It is used for a request that
    shows the same, and nothing else by which it could be somebody else. That is compared in constant time: a proxy may
    have put several callers on one connection.
R3  Time is looked at each time: an edition does not end a token, its `until_ms` does.
R4  Nothing is kept by names that callers choose, but the last one by each connection. The header is kept as long as its
    connection is open; what has parsed it keeps it as long. What is longer than `REMEMBERED_LENGTH` is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from broker.api.permissions import BROKERS_ALONE
from broker.api.principals import Granted, is_broker
from broker.metadata.access import Access

if TYPE_CHECKING:
    from broker.serving.http.access import Identified

REMEMBERED_LENGTH: Final = 256
"""Characters. A token is a third of that, and so is nearly each name."""
BROKERS_OWN: Final = BROKERS_ALONE | {"stream:read", "cluster:read", "metrics"}
"""What a broker may ask for itself (`access.A6`), and whoever asks with its files whether it is ready, as `up` does."""


class Rights(Protocol):
    """What one principal may do."""

    def allows(self, action: str, name: str) -> bool:
        """Whether it may do this to this."""
        ...

    def allows_any(self, action: str) -> bool:
        """Whether it may do this to anything."""
        ...


class _Brokers:
    """Of a broker that asks for itself."""

    def allows(self, action: str, name: str) -> bool:
        return action in BROKERS_OWN

    def allows_any(self, action: str) -> bool:
        return action in BROKERS_OWN


class _Admins:
    """Of an admin of the configuration: all but what is the brokers' own."""

    def allows(self, action: str, name: str) -> bool:
        return action not in BROKERS_ALONE

    def allows_any(self, action: str) -> bool:
        return action not in BROKERS_ALONE


_BROKERS: Final = _Brokers()
_ADMINS: Final = _Admins()
_NONE: Final = Granted(())


class Editions:
    """See the module. On the loop of its gate.

    Args:
        access: The catalog's tokens and grants, as they are now.
        admins: Principals that may do everything.

    Attributes:
        bearers: Of this edition: by the mark of a token that is good.
    """

    def __init__(self, access: Callable[[], Access], admins: frozenset[str]) -> None:
        self._access = access
        self._admins = admins
        self._state: tuple[Access, int] | None = None
        self._number = 0
        self._granted: dict[str, Granted] = {}
        self.bearers: dict[bytes, Identified] = {}

    def now(self) -> int:
        """The number of the edition that holds now (R1)."""
        access, state = self._access(), self._state
        if state is None or state[0] is not access or state[1] != access.version:
            self._state = access, access.version  # before what is looked up in it, which may be newer
            self._number += 1
            self._granted, self.bearers = {}, {}
        return self._number

    def rights_of(self, principal: str) -> Rights:
        """As they are now."""
        self.now()
        if is_broker(principal):
            return _BROKERS
        if principal in self._admins:
            return _ADMINS
        found = self._granted.get(principal)
        if found is None:
            grants = self._access().grants.get(principal)
            if grants is None:
                return _NONE
            found = self._granted[principal] = Granted(_grantable(grants))
        return found


def _grantable(grants: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Without what nobody can be granted, whatever the catalog holds."""
    return [grant for grant in grants if grant[0] not in BROKERS_ALONE]


class LastCaller:
    """Whom a connection last knew (R2; `access.Gate._again` compares).

    Attributes:
        shown: The value of its Authorization header; None: its certificate named it.
        allowed: The last that was asked for and allowed: an action, a name.
    """

    __slots__ = ("_rights", "allowed", "caller", "edition", "shown")

    def __init__(self, edition: int, shown: str | None, caller: Identified, rights: Rights) -> None:
        self.edition = edition
        self.shown = shown
        self.caller = caller
        self._rights = rights
        self.allowed: tuple[str, str] | None = None

    def allows(self, asked: tuple[str, str]) -> bool:
        """Whether the caller may do this action to what has this name, as of its edition."""
        if not self._rights.allows(*asked):
            return False
        if len(asked[1]) <= REMEMBERED_LENGTH:
            self.allowed = asked
        return True
