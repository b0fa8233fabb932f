"""How somebody waits for another thread, or for a moment: handed in, as clocks and executors are.

A driver that closes something waits until nobody is at it, and a sink's call waits for other replicas and brokers. The
broker hands `ThreadWaits`. The simulator lets others go on meanwhile, in an order that a seed chooses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Final, Protocol


class Lock(Protocol):
    """Reentrant. Whoever holds it may wait."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`."""
        ...

    def release(self) -> None:
        """As `threading.Lock.release`."""
        ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Waits(Protocol):
    """See the module. Nobody who waits holds another lock than those that `lock` has made."""

    def now_s(self) -> float:
        """The clock by which somebody gives up waiting. It never goes back."""
        ...

    def lock(self) -> Lock:
        """Make a lock that is held while its holder waits."""
        ...

    def ended(self, future: Future[Any], timeout_s: float | None = None) -> bool:
        """Wait until it is done, be it with an error. Returns whether it is; None: for as long as it takes."""
        ...

    def until(self, changed: threading.Condition, is_so: Callable[[], bool]) -> None:
        """Return once `is_so()`. The lock of `changed` is held once, and let go meanwhile. Who makes it so notifies."""
        ...

    def pause(self, seconds: float) -> None:
        """Let so much time pass."""
        ...


class ThreadWaits:
    """The calling thread waits."""

    def now_s(self) -> float:
        """As `Waits.now_s`."""
        return time.monotonic()

    def lock(self) -> Lock:
        """As `Waits.lock`."""
        return threading.RLock()

    def ended(self, future: Future[Any], timeout_s: float | None = None) -> bool:
        """As `Waits.ended`."""
        try:
            future.exception(timeout_s)
        except CancelledError:
            return True
        except TimeoutError:
            return future.done()
        return True

    def until(self, changed: threading.Condition, is_so: Callable[[], bool]) -> None:
        """As `Waits.until`."""
        changed.wait_for(is_so)

    def pause(self, seconds: float) -> None:
        """As `Waits.pause`."""
        time.sleep(seconds)


THREADS: Final = ThreadWaits()
