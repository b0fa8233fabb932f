"""How long a poll of a member of a consumer group waits. Each poll is its sign of life, and takes CPU time.

sign of life ─► a third of the timeout ─► sign of life, which may be lost ─► a third ─► sign of life
"""

from __future__ import annotations

from typing import Final

GROUP_WAIT_MS_MAX: Final = 60_000
"""So long a poll waits at most: connections on which nothing is said are cut by what is in between."""


def longest_poll_ms(timeout_ms: int) -> int:
    """How long a poll of a member with this timeout waits at most, in milliseconds."""
    return min(timeout_ms // 3, GROUP_WAIT_MS_MAX)
