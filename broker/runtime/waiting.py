"""How somebody waits for another thread, or for a moment: handed in, as clocks and executors are.

A driver that closes something waits until nobody is at it. The broker hands `ThreadWaits`. The simulator lets others go
on meanwhile, in an order that a seed chooses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Waits(Protocol):
    """See the module. Nobody who waits holds another lock."""

    def until(self, changed: threading.Condition, is_so: Callable[[], bool]) -> None:
        """Return once `is_so()`. The lock of `changed` is held once, and let go meanwhile. Who makes it so notifies."""
        ...

    def pause(self, seconds: float) -> None:
        """Let so much time pass."""
        ...


class ThreadWaits:
    """The calling thread waits."""

    def until(self, changed: threading.Condition, is_so: Callable[[], bool]) -> None:
        """As `Waits.until`."""
        changed.wait_for(is_so)

    def pause(self, seconds: float) -> None:
        """As `Waits.pause`."""
        time.sleep(seconds)
