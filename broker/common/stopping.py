"""The steps of a stop, one after the other, and each has its time.

A thread that is at a disk or a peer which hangs does not come back, and nothing that waits for it goes on. So a step
that does not end in time is named in the log, and the next one is taken.

Z1  A step that fails, or does not end in time, keeps no other from being taken.
Z2  What hangs may still write. So the data folder stays locked until the process has ended, and the process ends
    without waiting for its threads (`end_process`). What was not marked clean is recovered by the next start.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NoReturn

log = logging.getLogger(__name__)

STEP_S: Final = 60.0
"""A step may take so long, and `LOG_S` more for each log."""
LOG_S: Final = 0.1
"""A log is closed with some fsyncs."""
THREAD_S: Final = 5.0
"""So long a step that ends several threads waits for what they are at."""
HUNG: Final = 70
"""The exit code of a process that ends so."""


class StillRunning(Exception):
    """Raised by a step that has ended all but this."""


async def take(steps: Iterable[Callable[[], Awaitable[None] | None]], *, log_count: int) -> bool:
    """Take them (Z1), each in a thread unless it is a coroutine. Returns whether all have ended."""
    has_ended, limit_s = True, STEP_S + LOG_S * log_count
    for step in steps:
        taken = asyncio.ensure_future(_done(step))
        await asyncio.wait({taken}, timeout=limit_s)
        if not taken.done():
            log.error("broker.stop_hangs step=%s waited_s=%.1f", step, limit_s)
            has_ended, limit_s = False, THREAD_S + LOG_S * log_count  # others hang, too, if it is a disk
            continue
        error = taken.exception()
        if isinstance(error, StillRunning):
            log.error("broker.stop_hangs step=%s waited_s=%.1f what=%s", step, THREAD_S, error)
            has_ended = False
        elif error is not None:
            log.error("broker.stop_failed step=%s", step, exc_info=error)
    return has_ended


async def _done(step: Callable[[], Awaitable[None] | None]) -> None:
    if (awaited := step() if inspect.iscoroutinefunction(step) else await asyncio.to_thread(step)) is not None:
        await awaited


def end_process() -> NoReturn:
    """End at once: what hangs is not waited for (Z2)."""
    logging.shutdown()
    os._exit(HUNG)
