"""New names: how many a caller makes in a minute, and has made.

    create, register, commit, open, join ─► is the name there? ──yes──► nothing is counted
                                                   │ no
                                                   ▼
                                 one of those of this minute ─► one of those that its caller has made ─► made

N1  A minute's worth may come at once, and then as many as come in a minute, evenly: who is beyond it waits a moment,
    and goes on. Each broker counts those that are asked of it.
N2  What a caller has made counts while it is there, at the broker that was asked for it, since its start. When a caller
    is at the limit, and not more than once in `LOOK_S`, those are forgotten that are gone.
N3  While `auth.mode` is off nobody is told apart, and whoever may delete all streams is not kept from making them: N2
    is for the other modes.
N4  At most `REMEMBERED_MAX` of each kind are remembered. Beyond that the oldest counts for nobody.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from broker.serving.http.callers import NAMES, Callers, caller_now
from broker.serving.http.paces import Paces

LOOK_S: Final = 1.0
REMEMBERED_MAX: Final = 65_536
GONE_S: Final = 3_600
"""When to come again, for who has made as many as he may: something has to be deleted first."""
MINUTE_S: Final = 60.0


@dataclass(slots=True)
class _Kind:
    """What was made of one kind: whose each is, the oldest first, and how many each has."""

    caller_of: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    looked_s: float = -math.inf

    def add(self, name: str, caller: str) -> None:
        self.drop(name)
        self.caller_of[name] = caller
        self.counts[caller] += 1
        if len(self.caller_of) > REMEMBERED_MAX:
            self.drop(next(iter(self.caller_of)))

    def drop(self, name: str) -> None:
        caller = self.caller_of.pop(name, None)
        if caller is not None:
            self.counts[caller] -= 1
            if not self.counts[caller]:
                del self.counts[caller]


class NewNames:
    """See the module. One per application; on its loop.

    Args:
        is_told_apart: N3, as it is now: it may be required meanwhile (`metadata.access.Z5`).
        now_s: A clock that never runs back.
    """

    def __init__(
        self, callers: Callers, *, is_told_apart: Callable[[], bool], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._callers = callers
        self._is_told_apart = is_told_apart
        self._now_s = now_s
        self._paces = Paces(MINUTE_S)
        self._kinds: dict[str, _Kind] = {}

    async def admit(self, kind: str, name: str, there: Callable[[], Awaitable[Collection[str]]]) -> None:
        """A name is made that is not there, for the caller of this request.

        Args:
            kind: `streams` and the like.
            there: All names of the kind that are there.
        Raises:
            LimitReached: N1, N2.
        """
        caller = caller_now()
        if caller is None:
            return
        most = self._callers.limits.made_max.get(kind) if self._is_told_apart() else None
        made = self._kinds.setdefault(kind, _Kind())
        if most is not None and made.counts[caller] >= most:
            await self._look(made, there)
            if made.counts[caller] >= most:
                raise self._callers.refusal(f"caller_{kind}_max", most, caller, GONE_S)
        self._take(caller)
        if most is not None:
            made.add(name, caller)

    def _take(self, caller: str) -> None:
        """One of this minute. Raises LimitReached."""
        most, now_s = self._callers.limits.names_per_minute, self._now_s()
        if self._paces.left(caller, most, now_s) < 1:
            raise self._callers.refusal(NAMES, most, caller, math.ceil(MINUTE_S / most))
        self._paces.take(caller, 1, most, now_s)

    async def _look(self, made: _Kind, there: Callable[[], Awaitable[Collection[str]]]) -> None:
        """Forget those that are gone (N2)."""
        now_s = self._now_s()
        if now_s - made.looked_s < LOOK_S:
            return
        made.looked_s = now_s
        found = set(await there())
        for name in [name for name in made.caller_of if name not in found]:
            made.drop(name)
