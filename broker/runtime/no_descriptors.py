"""Trouble that an event loop meets by itself: without a free descriptor one line now and then.

asyncio tells for each connection that waits to be accepted that it cannot be, with a traceback, and tries again after a
second.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from broker.serving.http.meters import RateLimitedLog
from broker.storage.disk import NO_DESCRIPTORS

log = logging.getLogger(__name__)


def log_few(loop: asyncio.AbstractEventLoop) -> None:
    """Have this loop say little of what there are no descriptors for."""
    limited = RateLimitedLog()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in NO_DESCRIPTORS:
            loop.default_exception_handler(context)
        elif count := limited.due():
            log.error("http.no_descriptors count=%d error=%s", count, error.strerror)

    loop.set_exception_handler(handle)
