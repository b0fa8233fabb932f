"""The brokers, as this broker's catalog has them: read by any thread, without waiting for the catalog."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from broker.link.handshake import Peer
from broker.metadata.session import slower
from broker.node.wiring import CatalogService


class Entry(NamedTuple):
    """A registered broker: the number of its registration, and where it answers other brokers (host:port)."""

    registration: int
    address: str


class Directory:
    """See the module.

    Args:
        process: The name of this process in its registration.
    """

    def __init__(self, service: CatalogService, me: str, process: str) -> None:
        self._service = service
        self._me = me
        self._process = process
        self._entries: Mapping[str, Entry] = {}
        self._own: Peer | None = None
        self._callbacks: list[Callable[[], None]] = []
        service.subscribe(self._applied)

    @property
    def own(self) -> Peer | None:
        """This process, if the catalog has it."""
        return self._own

    @property
    def slower(self) -> float:
        """How many times as long as with few partitions a leader may be silent."""
        return slower(len(self._service.catalog.cluster.partitions))

    def entry(self, broker: str) -> Entry | None:
        """None: the catalog has no such broker."""
        return self._entries.get(broker)

    def registration_of(self, broker: str) -> int | None:
        """Likewise."""
        found = self._entries.get(broker)
        return None if found is None else found.registration

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back, on the catalog's thread, when a broker has come, gone, moved or registered anew."""
        self._callbacks.append(callback)

    def _applied(self) -> None:
        brokers = self._service.catalog.brokers
        entries = {name: Entry(info.registration, info.grpc) for name, info in brokers.items()}
        own = brokers.get(self._me)
        is_ours = own is not None and own.incarnation == self._process
        peer = Peer(self._me, own.registration) if own is not None and is_ours else None
        if (entries, peer) != (self._entries, self._own):
            self._entries, self._own = entries, peer
            for callback in self._callbacks:
                callback()
