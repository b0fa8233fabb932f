"""Partitions with `fsync = interval` are handed to the fsync pool when that is due: a thread of its own.

A power cut takes all that was acknowledged and is not synced, so nothing else may be done here: a round of the cleaner
writes a thousand checkpoints, or finishes a sink's commit of a gigabyte.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from broker.node.partitions.partition import Partition

LOOK_S: Final = 1.0
"""So often it is looked which partitions mind time, where nobody says that one does."""

log = logging.getLogger(__name__)


class IntervalSyncs:
    """Owns the thread.

    Args:
        partitions: All of them.
    """

    def __init__(self, partitions: Callable[[], Iterable[Partition]]) -> None:
        self._partitions = partitions
        self._is_stopping = False
        self._wake = threading.Event()
        self._failed: set[Partition] = set()
        self._thread = threading.Thread(target=self._run, name="interval-syncs", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join()

    def look(self) -> None:
        """Look now: a partition is new, or has other settings."""
        self._wake.set()

    def _run(self) -> None:
        due, looked_s = list[Partition](), -math.inf
        while not self._is_stopping:
            now_s = time.monotonic()
            if self._wake.is_set() or now_s - looked_s >= LOOK_S:  # not each time: there may be ten thousand others
                self._wake.clear()  # first: who is not seen below wakes it anew
                due, looked_s = Partition.who_mind_time(self._partitions()), now_s
            pause_s = min([LOOK_S, *(self._sync(partition, now_s) / 1000 for partition in due)])
            if not self._is_stopping:
                self._wake.wait(pause_s)

    def _sync(self, partition: Partition, now_s: float) -> int:
        """Have it synced if that is due, whatever becomes of the others. Returns its interval in milliseconds."""
        try:
            partition.sync_if_due(now_s)
            self._failed.discard(partition)
        except Exception:
            if partition not in self._failed:  # told once, as it may be asked a hundred times a second
                log.exception("cleaner.bug what=fsync partition=%s", partition)
            self._failed.add(partition)
        return partition.fsync_interval_ms
