"""How many records a caller may cause, and all callers together. Arithmetic only: no clock, no I/O.

    caller ─► his bucket (burst, one more each refill_s) ─► that of all ─► admitted
                            └──────────── empty ────────────────┴──► counted, and told later

A record that a stranger can cause at will would fill a disk, or wash out others: so it has an allowance.

C1  What is not admitted is counted: `take` and `drain` tell each suppressed one once, under its caller or, once he is
    forgotten, under `OTHERS`.
C2  `CALLERS_MAX` callers are told apart, and the one who was heard of longest ago is forgotten. He begins with a full
    bucket again, which that of all bounds.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

CALLERS_MAX: Final = 256
OTHERS: Final = "others"


@dataclass(frozen=True, slots=True)
class Rate:
    """So many at once, and one more after each `refill_s` seconds."""

    burst: int
    refill_s: float


@dataclass(slots=True)
class _Bucket:
    rate: Rate
    left: float
    at_s: float
    suppressed: int = 0

    def refilled(self, now_s: float) -> bool:
        """Bring it up to date; whether one may be taken."""
        self.left = min(self.rate.burst, self.left + max(0.0, now_s - self.at_s) / self.rate.refill_s)
        self.at_s = now_s
        return self.left >= 1


class Allowance:
    """See the module.

    Args:
        each: Of one caller.
        of_all: Of all together.
    """

    def __init__(self, each: Rate, of_all: Rate) -> None:
        self._each = each
        self._all = _Bucket(of_all, of_all.burst, float("-inf"))
        self._callers: OrderedDict[str, _Bucket] = OrderedDict()
        self._forgotten = 0

    def admits(self, caller: str, now_s: float) -> bool:
        """Whether one more may be recorded; if not, it is counted (C1)."""
        bucket = self._callers.get(caller)
        if bucket is None:
            bucket = self._callers[caller] = _Bucket(self._each, self._each.burst, now_s)
            if len(self._callers) > CALLERS_MAX:  # C2
                self._forgotten += self._callers.popitem(last=False)[1].suppressed
        self._callers.move_to_end(caller)
        if not (bucket.refilled(now_s) and self._all.refilled(now_s)):
            bucket.suppressed += 1
            return False
        bucket.left -= 1
        self._all.left -= 1
        return True

    def take(self, caller: str) -> int:
        """How many of this caller were suppressed and are not told yet."""
        bucket = self._callers.get(caller)
        if bucket is None:
            return 0
        found, bucket.suppressed = bucket.suppressed, 0
        return found

    def drain(self) -> dict[str, int]:
        """As `take`, of all callers for whom there are some."""
        found = {caller: self.take(caller) for caller, bucket in self._callers.items() if bucket.suppressed}
        if self._forgotten:
            found[OTHERS], self._forgotten = found.get(OTHERS, 0) + self._forgotten, 0
        return found
