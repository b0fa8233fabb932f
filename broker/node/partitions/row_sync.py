"""How a partition is synced in a row (`sync.SyncRow`): what nobody awaits, with other partitions, by one thread.

P5  Partitions in a row keep nobody waiting: a later append that is awaited is synced at once, and with it all that the
    row was to sync. The row then finds nothing to do here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto

from broker.common.metrics import FSYNC_SECONDS
from broker.node.partitions.replica import Replica
from broker.replication.events import Synced, SyncFailed


class RowState(Enum):
    """Whether the sync that the core has asked for waits in a row, or is under way there."""

    NONE = auto()
    WAITS = auto()
    AT_IT = auto()


NO_ROW = RowState.NONE


class RowSync:
    """One partition's place in a row.

    Args:
        lock: The partition's, held over each change of `state`.

    Attributes:
        state: An append that is awaited takes the place back from a row that has not begun with it.
    """

    def __init__(self, replica: Replica, lock: threading.RLock) -> None:
        self.state: RowState = NO_ROW
        self._replica = replica
        self._lock = lock

    def sync(self, sync: Callable[[], Synced | SyncFailed]) -> Synced | SyncFailed | None:
        """For a row: sync, unless somebody who is awaited has had it done (P5).

        Args:
            sync: Syncs the log; never raises.
        """
        with self._lock:
            if self.state is not RowState.WAITS:
                return None
            self.state = RowState.AT_IT
        return sync()

    def synced(self, tell: Callable[[Synced | SyncFailed], None], event: Synced | SyncFailed | None) -> None:
        """For a row: do what comes of it.

        Args:
            tell: Tells the core, and does what comes of it.
        """
        if event is not None:
            with self._lock:
                self.state = RowState.NONE
            tell(event)
            FSYNC_SECONDS.observe(self._replica.sync_took_s)
