"""Counts those who wait for acks of messages sorted by a number of partitions, and stops all that (`acceptance.P17`).

    appended: one waits ──► told: one less ─┐
    stop ──► nothing more is appended ──────┴──► none is left: `has_stopped`, `on_stopped` is called

A stop is asked for as of a moment (`growth.G4`), again for a later one, and taken back. Its own ticket waits behind all
others in the log: when that is answered, it is known what became of all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Stopping:
    """The stop of one partition. Thread-safe.

    Attributes:
        as_of: The moment of the stop that was asked for last; None: there is none.
    """

    __slots__ = ("_committed_number", "_epoch", "_lock", "_number", "_on_stopped", "_waiting_count", "as_of")

    def __init__(self) -> None:
        self.as_of: int | None = None
        self._epoch = -1
        self._number = self._committed_number = 0  # of stops that began: the last one, and the last that is committed
        self._waiting_count = 0
        self._on_stopped: Callable[[], None] = _nothing
        self._lock = threading.Lock()

    def began(self) -> None:
        """Somebody waits. Said with the partition's lock held, so that a stop finds him counted or not appended."""
        with self._lock:
            self._waiting_count += 1

    def ended(self) -> None:
        """And was told."""
        with self._lock:
            self._waiting_count -= 1
        self._look()

    def stop(self, as_of: int, epoch: int, on_stopped: Callable[[], None]) -> int:
        """The number of a stop that begins: when what the log holds now is committed, `committed` is to say so. 0: it
        has begun in this leadership."""
        with self._lock:
            is_new = self.as_of is None or self._epoch != epoch
            self.as_of, self._epoch, self._on_stopped = as_of, epoch, on_stopped
            self._number += is_new
            number = self._number
        self._look()
        return number if is_new else 0

    def committed(self, number: int) -> None:
        """All that the log held when this stop began."""
        with self._lock:
            self._committed_number = max(self._committed_number, number)
        self._look()

    def go_on(self) -> None:
        """Take the stop back."""
        with self._lock:
            self.as_of, self._epoch = None, -1

    def has_stopped(self, as_of: int, epoch: int) -> bool:
        """Whether all that was taken in is committed and answered, and nothing more is taken."""
        with self._lock:
            return self._is_done() and (self.as_of, self._epoch) == (as_of, epoch)

    def _is_done(self) -> bool:
        return self.as_of is not None and self._committed_number == self._number and not self._waiting_count

    def _look(self) -> None:
        with self._lock:
            is_done, on_stopped = self._is_done(), self._on_stopped
        if is_done:
            on_stopped()


def _nothing() -> None:
    pass
