"""The clock by which logs measure how long they have had their records (`broker/storage/segments/ages.py`).

It begins at the time of day, once in a process, and then counts what passes: also while the machine sleeps, and
whatever is done to the clock that shows the time of day. So it tells no time. It is no use to compare it with that of
another process, or with a timestamp.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.storage.segments.ages import DOUBT_MS


def _passed_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


_BEGAN_US: Final = time.time_ns() // 1000 - _passed_us()


def elapsed_us() -> int:
    """Microseconds since any time; it goes forward only, as fast as time passes."""
    return _BEGAN_US + _passed_us()


def wall_us() -> int:
    """The time of day: microseconds since 1970 UTC, as the machine says. Timestamps are taken from it; nothing goes by
    it that may lose a record, or store it twice."""
    return time.time_ns() // 1000


class Clocks(NamedTuple):
    """The clocks that a partition and its log go by: this machine's, or a simulated one's.

    Attributes:
        now_s: Goes forward only.
        elapsed_us, wall_us: As the functions of these names.
    """

    now_s: Callable[[], float]
    elapsed_us: Callable[[], int]
    wall_us: Callable[[], int]


MACHINE: Final = Clocks(time.monotonic, elapsed_us, wall_us)


class Tenure:
    """How long one leadership has lasted, as far as it was asked.

    Another broker may have led before, and noted times by its own clock, which may be far back from this one's. So
    nothing expires by a noted time before this broker has led for as long as the time limit, or for `DOUBT_MS`.

    Args:
        epoch: The leader epoch now.
    """

    def __init__(self, epoch: int, elapsed: Callable[[], int] = elapsed_us) -> None:
        self._elapsed = elapsed
        self._epoch, self._began_us = epoch, elapsed()

    def lasts(self, epoch: int, limit_us: int) -> bool:
        """Whether it has, up to now, in this leader epoch."""
        now_us = self._elapsed()
        if epoch != self._epoch:
            self._epoch, self._began_us = epoch, now_us
        return now_us - self._began_us >= min(limit_us, DOUBT_MS * 1_000)
