"""The time of day for what deletes by age. A clock that jumps ahead is not believed at once.

    wall clock ──► as far ahead as time has passed since the last look? ──yes──► that
                       │ no: over `AHEAD_S` more
                       └──► the last believed time, and what has passed since. Until `DOUBT_S` are over

T1  Deleting too late costs room, deleting too early costs records. So a jump ahead is doubted, and a step back is not.
T2  A clock that nobody sets tells how much time has passed. It counts while the machine sleeps (CLOCK_BOOTTIME).
T3  A jump that is not taken back is believed after `DOUBT_S`, or by the next start: then there is nothing to compare.

Records and offsets are stamped by the wall clock as it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

AHEAD_S: Final = 60
DOUBT_S: Final = 6 * 3600

log = logging.getLogger(__name__)


def _passed_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def _wall_us() -> int:
    return time.time_ns() // 1000


class DoubtedClock:
    """See the module. Thread-safe.

    Args:
        wall_us: Microseconds since 1970 UTC, as the machine says.
        passed_us: Microseconds since any time; never goes back.
    """

    def __init__(self, wall_us: Callable[[], int] = _wall_us, passed_us: Callable[[], int] = _passed_us) -> None:
        self._wall_us = wall_us
        self._passed_us = passed_us
        self._lock = threading.Lock()
        self._believed = wall_us(), passed_us()
        self._doubted_since_us: int | None = None

    def now_us(self) -> int:
        """Microseconds since 1970 UTC, as far as they are believed."""
        with self._lock:
            wall, passed = self._wall_us(), self._passed_us()
            expected = self._believed[0] + passed - self._believed[1]
            ahead_s = (wall - expected) // 1_000_000
            since = self._doubted_since_us
            if ahead_s > AHEAD_S:
                if since is None:
                    self._doubted_since_us = passed
                    log.error("clock.doubted ahead_s=%d believed_in_s=%d", ahead_s, DOUBT_S)
                    return expected
                if passed - since < DOUBT_S * 1_000_000:
                    return expected
                log.warning("clock.believed ahead_s=%d", ahead_s)
            elif since is not None:
                log.warning("clock.right_again ahead_s=%d", ahead_s)
            self._doubted_since_us = None
            self._believed = wall, passed
            return wall
