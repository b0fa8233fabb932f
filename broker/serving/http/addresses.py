"""Connections by the address that they come from: strangers are counted before they have said who they are.

A place is one address, of IPv6 one network: whoever has one address of those has the first 64 bits (`callers.C1`). It
is remembered while it has connections.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.serving.http.connections import Counted

NETWORK_BITS: Final = 64
ADDRESS_CONNECTIONS: Final = "address_connections_max"


@dataclass(slots=True, eq=False)
class CountedAddress:
    """One address.

    Attributes:
        open_count: Connections from there.
        idle: Those without a request under way: the longest first.
    """

    address: str
    open_count: int = 0
    idle: dict[Counted, None] = field(default_factory=dict)


class CountedAddresses:
    """All addresses from which there are connections."""

    def __init__(self) -> None:
        self._by_address: dict[str, CountedAddress] = {}

    def of(self, address: str) -> CountedAddress:
        """The place of an address, which need not be remembered."""
        return self._by_address.get(address) or CountedAddress(address)

    def enter(self, place: CountedAddress) -> None:
        """One connection more."""
        place.open_count += 1
        self._by_address[place.address] = place

    def leave(self, place: CountedAddress) -> None:
        """One less."""
        place.open_count -= 1
        if not place.open_count:
            del self._by_address[place.address]


def address_of(peername: object) -> str:
    """The place that a socket's peer is of, as text."""
    host = str(peername[0]) if isinstance(peername, tuple) and peername else "local"
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> NETWORK_BITS << NETWORK_BITS, NETWORK_BITS)))
