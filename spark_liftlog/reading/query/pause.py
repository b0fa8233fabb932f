"""How long a question waits for news when there is none: what makes Spark's idle loop a long poll.

Without a trigger interval Spark asks a query that has nothing to read again after 10 ms. Each question costs both
sides the JSON of all positions. So the answer that nothing is new is held back for a while, as a broker would do:

    questions   | | | | | | | | |───| |───| |───────| |───────────| |───news   batch   | | | | | | | |
                nothing new,     WAIT_S each, and longer, the          at once          again for QUIET_S,
                for QUIET_S      longer there was nothing                               at once

S8  News of the query's own streams end the wait at once, and so does the end of the query.
S9  Nobody waits while micro-batches follow each other, whichever source of the query they are for: Spark asks all
    sources one after the other, so who waits holds up all of them. It tells each of them of every micro-batch.
S10  One of several sources of a query waits at most: to the others the questions then come too rarely, since
    `SOON_S` is below `WAIT_S`. Nor does anybody wait at a trigger interval of `SOON_S` or more.
S11  The wait holds up records of another source by a twentieth of the silence before them, or by `WAIT_S`.
"""

from __future__ import annotations

from typing import Final

WAIT_S: Final = 0.1
LONG_WAIT_S: Final = 0.5
WAIT_SHARE: Final = 1 / 20
"""So long a question waits, by how long there was nothing; and so long another source's records may wait, once."""
QUIET_S: Final = 1.0
SOON_S: Final = 0.05
"""Spark asks again sooner than this after an answer if it has nothing else to do."""
BATCH_S: Final = 0.3
"""A pause between two questions that is longer may have been a micro-batch."""


class IdlePause:
    """When the questions of one source wait. Times are those of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._stirred_s = 0.0
        self._answered_s = float("-inf")

    def asked(self, now_s: float) -> float:
        """A question; how many seconds it may wait if nothing is new."""
        pause_s = now_s - self._answered_s
        if pause_s > BATCH_S:
            self._stirred_s = now_s
        quiet_s = now_s - self._stirred_s
        if pause_s >= SOON_S or quiet_s < QUIET_S:
            return 0.0
        return max(WAIT_S, min(LONG_WAIT_S, quiet_s * WAIT_SHARE))

    def answered(self, now_s: float) -> None:
        """The question is answered."""
        self._answered_s = now_s

    def stirred(self, now_s: float) -> None:
        """The query has a micro-batch (S9)."""
        self._stirred_s = now_s
