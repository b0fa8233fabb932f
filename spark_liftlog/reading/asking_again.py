"""How long to ask a broker again before it is believed: its word on a stream may be old.

    deleted, made anew      broker a  ────────────────────── new
                            broker b  ─── old ─── nothing ── new        behind by no more than its session, 2 s

A broker tells the ends of a stream's partitions, and that a stream or partition is not there, only while it has a
session, and a session counts from a moment that its catalog has seen. So what it says was true some 2 s ago at most.

D1  An answer that contradicts a position, or a name, is believed once it was given for longer than that: not there,
    another incarnation, fewer partitions. Before, it is unknown, and nothing is planned from it.
D2  A broker that is alone has the only catalog, and is believed at once.
"""

from __future__ import annotations

import time
from typing import Final

from broker.client.http.brokers import Brokers
from broker.client.http.interrupt import Interrupt

DOUBTED_S: Final = 3.0
"""So long a broker that contradicts what is known is asked again (D1)."""
AGAIN_S: Final = 0.1


class AskingAgain:
    """How long one contradiction is asked about. Its time begins with the first `again`.

    Args:
        brokers: Those that are asked.
    """

    def __init__(self, brokers: Brokers, interrupt: Interrupt | None = None) -> None:
        self._brokers = brokers
        self._interrupt = interrupt or Interrupt()
        self._until_s: float | None = None

    def again(self) -> bool:
        """Whether to ask once more, after a pause (D1)."""
        now_s = time.monotonic()
        if self._until_s is None:
            self._until_s = now_s + DOUBTED_S
        if now_s >= self._until_s or self._interrupt.is_set or len(self._brokers.candidates()) < 2:  # D2
            return False
        self._interrupt.pause(AGAIN_S)
        return True
