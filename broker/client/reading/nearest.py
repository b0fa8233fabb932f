"""Which replica a reader asks: the leader, or the one in its rack that the leader names (KIP-392).

    leader(rack=r) ──► "broker-b is in r" ──► broker-b(replica=any) ... broker-b(replica=any)
        ▲                                          │ it cannot tell, is gone, or has nothing new
        └────────── from the next offset ◄─────────┘ and for `AVOID_S` no other replica is asked for

V1  A replica that does not lead decides nothing: whatever it refuses, and whatever it does not have though it was
    promised, is asked of the leader, from the same offset.
V2  A reader that has found damage asks the leader from then on.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from broker.client.http.address import Address
from broker.client.http.brokers import PartitionKey
from broker.client.http.forks import renew_after_fork

AVOID_S: Final = 5.0
REPLICA_WAIT_MS: Final = 1_000
"""So long a replica is waited for that lacks what its leader has promised."""


class Nearest:
    """The known replicas near to one place. Thread-safe and fork-safe.

    Args:
        rack: Where the reader is.
    """

    def __init__(self, rack: str) -> None:
        self.rack = rack
        self._replicas: dict[PartitionKey, Address] = {}
        self._avoided_s: dict[PartitionKey, float] = {}
        self._lock = threading.Lock()
        renew_after_fork(self)

    def replica(self, key: PartitionKey) -> Address | None:
        """The replica to ask instead of the leader; None: none."""
        return self._replicas.get(key)

    def rack_for(self, key: PartitionKey) -> str | None:
        """The rack to tell the leader, for it to name a replica; None: none, at the moment."""
        with self._lock:
            until_s = self._avoided_s.get(key)
            if until_s is not None and until_s <= time.monotonic():
                del self._avoided_s[key]
                until_s = None
        return self.rack if until_s is None else None

    def note(self, key: PartitionKey, replica: Address) -> None:
        """The leader has named it."""
        self._replicas[key] = replica

    def avoid(self, key: PartitionKey) -> None:
        """Ask the leader for a while (V1)."""
        with self._lock:
            self._replicas.pop(key, None)
            self._avoided_s[key] = time.monotonic() + AVOID_S

    def after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread may have held it
