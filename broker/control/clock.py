"""The clocks of the metadata plane."""

from __future__ import annotations

import time


def boot_ms() -> int:
    """Never goes back, and counts while the machine sleeps: sessions are measured by it (`session.py`)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def boot_s() -> float:
    """As `boot_ms`, in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_ms() -> int:
    """The wall clock: what one controller says by it is to mean the same to the next one."""
    return time.time_ns() // 1_000_000
