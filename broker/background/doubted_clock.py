"""The time of day for what deletes by age. A clock that jumps ahead is not believed at once.

    wall clock ──► as far ahead as time has passed since the last look? ──yes──► that
                       │ no: over `AHEAD_S` more
                       └──► the last believed time, and what has passed since. Until `DOUBT_S` are over

T1  Deleting too late costs room, deleting too early costs records. So a jump ahead is doubted, and a step back is not.
T2  A clock that nobody sets tells how much time has passed. It counts while the machine sleeps (CLOCK_BOOTTIME).
T3  A jump that is not taken back is believed after `DOUBT_S`.
T4  The believed time is kept in a file, so that a start compares, too. Since the machine's own start it is known how
    much time has passed; else none has, and a machine that was off for longer than `AHEAD_S` is doubted as well.

Records and offsets are stamped by the wall clock as it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from broker.api.errors import LiftlogError
from broker.api.plain import is_offset
from broker.storage.disk import Disk
from broker.storage.segments.checkpoint import open_json, seal_json

AHEAD_S: Final = 60
DOUBT_S: Final = 6 * 3600
KEEP_S: Final = 60
FILE: Final = "clock"

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
        kept: What was believed, and when by `passed_us` (T4); None: the clock is believed as it is.
        keep: Is handed the same, every `KEEP_S`.
    """

    def __init__(
        self,
        wall_us: Callable[[], int] = _wall_us,
        passed_us: Callable[[], int] = _passed_us,
        *,
        kept: tuple[int, int] | None = None,
        keep: Callable[[int, int], object] = lambda believed_us, at_us: None,
    ) -> None:
        self._wall_us = wall_us
        self._passed_us = passed_us
        self._lock = threading.Lock()
        self._believed = kept or (wall_us(), passed_us())
        self._doubted_since_us: int | None = None
        self._keep, self._keep_at_us = keep, passed_us()

    def now_us(self) -> int:
        """Microseconds since 1970 UTC, as far as they are believed."""
        with self._lock:
            passed = self._passed_us()
            believed = self._look(passed)
            if passed >= self._keep_at_us:
                self._keep_at_us = passed + KEEP_S * 1_000_000
                self._keep(believed, passed)
            return believed

    def _look(self, passed: int) -> int:
        wall = self._wall_us()
        expected = self._believed[0] + passed - self._believed[1]
        ahead_s = (wall - expected) // 1_000_000
        since = self._doubted_since_us
        if ahead_s > AHEAD_S:
            if since is None:
                self._doubted_since_us = passed
                log.warning("clock.doubted ahead_s=%d believed_in_s=%d", ahead_s, DOUBT_S)
                return expected
            if passed - since < DOUBT_S * 1_000_000:
                return expected
            log.warning("clock.believed ahead_s=%d", ahead_s)
        elif since is not None:
            log.warning("clock.right_again ahead_s=%d", ahead_s)
        self._doubted_since_us = None
        self._believed = wall, passed
        return wall


def kept_clock(disk: Disk, folder: str, boot_id: str) -> DoubtedClock:
    """The machine's clock, doubted by what the file in a data folder says. A file that is no use is none.

    Args:
        boot_id: Of this run of the machine; empty: not known.
    """
    path, kept = f"{folder}/{FILE}", None
    with suppress(OSError, LiftlogError, KeyError):
        values = open_json(disk.read_file(path), where=path)
        if values is not None and is_offset(values["believed_us"]) and is_offset(values["at_us"]):
            is_same = bool(boot_id) and values["boot_id"] == boot_id
            kept = values["believed_us"], min(values["at_us"], _passed_us()) if is_same else _passed_us()

    def keep(believed_us: int, at_us: int) -> None:
        with suppress(OSError):  # a full disk: in a minute
            disk.replace_file(path, seal_json({"believed_us": believed_us, "at_us": at_us, "boot_id": boot_id}))

    return DoubtedClock(kept=kept, keep=keep)
