"""Waiting, on an event loop, for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

DEADLINE_S = 60


async def until(condition: Callable[[], bool], what: str) -> None:
    """Return once it holds; fail after `DEADLINE_S`, saying what did not."""
    for _ in range(DEADLINE_S * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {DEADLINE_S} s: {what}")
