"""One lock per name, kept only while somebody holds it or waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from broker.common.waiting import Lock, Waits


class KeyedLocks:
    """Locks by name. Thread-safe. Whoever holds one may wait."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[Lock, int]] = {}

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Wait for the lock of `key`, and hold it."""
        with self._used(key) as lock, lock:
            yield

    @contextmanager
    def hold_if_free(self, key: str) -> Iterator[bool]:
        """Hold the lock of `key` if nobody does; whether that is so."""
        with self._used(key) as lock:
            held = lock.acquire(blocking=False)
            try:
                yield held
            finally:
                if held:
                    lock.release()

    @contextmanager
    def _used(self, key: str) -> Iterator[Lock]:
        with self._guard:
            lock, users = self._locks.get(key) or (self._waits.lock(), 0)
            self._locks[key] = (lock, users + 1)
        try:
            yield lock
        finally:
            with self._guard:
                lock, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = (lock, users - 1)
