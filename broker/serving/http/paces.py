"""How fast callers go on: what may be taken at once, and from then on evenly. Arithmetic only: no clock, no I/O.

P1  A caller may take `most` at once, and as much again evenly in `in_s`. Who has taken more than there was, as its size
    was not known before, has less than nothing until time has made up for it.
P2  Beyond `CALLERS_MAX` callers those are forgotten who have all that they may take: that is what a new one has.
"""

from __future__ import annotations

from typing import Final

CALLERS_MAX: Final = 1_024
"""So many callers are remembered before some are forgotten."""


class Paces:
    """See the module.

    Args:
        in_s: Seconds.
    """

    def __init__(self, in_s: float) -> None:
        self._in_s = in_s
        self._callers: dict[str, tuple[float, float]] = {}  # how much is left, and when that was

    def left(self, caller: str, most: int, now_s: float) -> float:
        """How much a caller may take now."""
        left, then_s = self._callers.get(caller, (float(most), now_s))
        return min(float(most), left + (now_s - then_s) * most / self._in_s)

    def take(self, caller: str, count: float, most: int, now_s: float) -> None:
        """A caller takes so much (P1)."""
        if len(self._callers) >= CALLERS_MAX and caller not in self._callers:
            self._callers = {each: pace for each, pace in self._callers.items() if self.left(each, most, now_s) < most}
        self._callers[caller] = self.left(caller, most, now_s) - count, now_s
