"""Lines of the log about roles of replicas: one for many, as a broker may have ten thousand.

turns of replicas ─► note ─┬─► DEBUG  a line for each
                           └─► write, at each tick ─► INFO  a line for each kind: how many, and the first of them
"""

from __future__ import annotations

import logging
import threading
from typing import Final

log = logging.getLogger(__name__)

SHOWN: Final = 8
"""So many partitions a line at INFO names."""
LINES: Final = {
    "leads": "replica.leads count=%d partitions=%s",
    "follows": "replica.follows count=%d partitions=%s",
    "rests": "replica.rests count=%d partitions=%s",
    "left": "replica.left count=%d partitions=%s",
}


class RoleLines:
    """Changes of roles that are in no line yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted: dict[str, tuple[int, list[str]]] = {}  # by kind: how many, and the first

    def note(self, kind: str, partition: object, epoch: int | None = None, more: str = "") -> None:
        """A replica has another role.

        Args:
            kind: One of `LINES`.
            epoch: The leader epoch, if it has one by it.
            more: What its own line has besides.
        """
        text = f"{partition}" if epoch is None else f"{partition}@{epoch}"
        log.debug("replica.role partition=%s role=%s more=%s", text, kind, more)
        with self._lock:
            count, first = self._noted.get(kind, (0, []))
            if count < SHOWN:
                first.append(text)
            self._noted[kind] = count + 1, first

    def write(self) -> None:
        """A line for each kind that was noted since."""
        if not self._noted:
            return
        with self._lock:
            noted, self._noted = self._noted, {}
        for kind, (count, first) in noted.items():
            log.info(LINES[kind], count, ",".join(first) + ",..." * (count > len(first)))
