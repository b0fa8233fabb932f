"""How fast replicas that are not in sync may be filled: bytes per second, of all that this broker leads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

BURST_S: Final = 0.1
"""So much of what was not used is kept."""


class Pace:
    """See the module. Thread-safe. One may take more than there is: whoever comes next waits for it."""

    def __init__(self, bytes_per_s: int, now_s: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._free_s = now_s()  # from then on something may be taken

    def within(self, seconds: float) -> int:
        """So many bytes may be taken in that time."""
        return int(self._bytes_per_s * seconds)

    def wait_s(self) -> float:
        """How long until something may be taken; 0: now."""
        with self._lock:
            return max(0.0, self._free_s - self._now_s())

    def take(self, count: int) -> None:
        """So many bytes go."""
        with self._lock:
            self._free_s = max(self._free_s, self._now_s() - BURST_S) + count / self._bytes_per_s
