"""How long to ask a broker again before it is believed: its word on a stream may be old.

    deleted, made anew      broker a  ────────────────────── new
                            broker b  ─── old ─── nothing ── new        behind by no more than its session

A broker tells the ends of a stream's partitions, and that a stream or partition is not there, only while it has a
session, and a session counts from a moment that its catalog has seen. So what it says was true a session ago at most:
2 s, with many partitions up to 10 s.

D1  An answer that contradicts a position, or a name, is believed once it was given for longer than that: not there,
    another incarnation, fewer partitions. Before, it is unknown, and nothing is planned from it.
D2  A broker that is alone has the only catalog, and is believed at once.
D3  How long sessions are the brokers say, when the first contradiction comes. Those of an earlier release do not say
    it, and have short ones.
"""

from __future__ import annotations

import time
from typing import Final

from broker.api.errors import LiftlogError
from broker.api.placements import ClusterDescription
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls, path, understand
from broker.client.http.interrupt import Interrupt

DOUBTED_S: Final = 3.0
"""So long a broker that contradicts what is known is asked again, at least (D1): half as long again as a session."""
AGAIN_S: Final = 0.1
TIMEOUT_S: Final = 2.0


def longest_session_s(brokers: Brokers, interrupt: Interrupt) -> float:
    """Of all brokers, as one of them knows (D3); 0: nobody says."""
    try:
        calls = Calls(brokers, timeout_s=TIMEOUT_S, deadline_s=TIMEOUT_S)
        value = calls.json("GET", path("cluster"), interrupt=interrupt)
        found = understand(ClusterDescription, value, where="describing the cluster")
    except LiftlogError:
        return 0.0
    return max((each.session_ms for each in found.brokers), default=0) / 1_000


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
        if self._interrupt.is_set or len(self._brokers.candidates()) < 2:  # D2
            return False
        now_s = time.monotonic()
        if self._until_s is None:
            self._until_s = now_s + max(DOUBTED_S, 1.5 * longest_session_s(self._brokers, self._interrupt))
        if now_s >= self._until_s:
            return False
        self._interrupt.pause(AGAIN_S)
        return True
