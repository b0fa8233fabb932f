"""Retries after failures: exponential pauses with jitter, up to a deadline.

The clock starts at the first failure and is set back by progress, so a long read may survive many
broken connections, and a consumer that is slow between two batches is never out of time.

A broker that says when to come again (`retry_after_s`) is not asked before that. If the time is up by then, there is
nothing to wait for.
"""

from __future__ import annotations

import math
import random
import time
from typing import Final

from broker.api.errors import LiftlogError
from broker.client.http.interrupt import Interrupt
from broker.client.http.outages import Outages

DEADLINE_S: Final = 30.0
"""The patience of everything that asks a broker, where nobody says otherwise: a restart takes less."""
FIRST_PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 2.0


class Patience:
    """The retries of one call or one read.

    Args:
        deadline_s: How long failures may follow each other without progress; 0: the first one is raised as it is.
        interrupt: Ends a pause early.
        what: Name of the call; begins the text of the error.
        outages: Says that somebody waits, and when that is over.
        call_timeout_s: No try begins later than this after now, whatever was achieved.
    """

    def __init__(
        self,
        deadline_s: float,
        *,
        interrupt: Interrupt | None = None,
        what: str = "",
        outages: Outages | None = None,
        call_timeout_s: float = math.inf,
    ) -> None:
        self._call_timeout_s = call_timeout_s
        self.call_until_s = time.monotonic() + call_timeout_s
        self._deadline_s = deadline_s
        self._sleep = time.sleep if interrupt is None else interrupt.pause
        self._what = f"{what}: " if what else ""
        self._outages = outages
        self._until_s = 0.0
        self.failure_count = 0

    def progress(self) -> None:
        """Something was achieved: the next failure is a first one again."""
        self.failure_count = 0
        if self._outages is not None:
            self._outages.answered()

    def pause(self, error: LiftlogError) -> None:
        """Note a failure and wait before the next try; the last one is made when the time is up.

        Raises:
            LiftlogError: failures have followed each other for `deadline_s`, or would have: one like `error` and caused
                by it, with the fields `tries` and `deadline_s`.
        """
        if self._deadline_s <= 0:
            raise error
        now_s = time.monotonic()
        if self.failure_count == 0:
            self._until_s = min(now_s + self._deadline_s, self.call_until_s)
        self.failure_count += 1
        told_s = told_pause_s(error)
        if now_s >= self._until_s or now_s + told_s > self._until_s + PAUSE_S_MAX:
            raise self._given_up(error) from error
        if self._outages is not None:
            self._outages.failed(error, self._deadline_s)
        longest_s = min(PAUSE_S_MAX, FIRST_PAUSE_S * 2 ** min(self.failure_count - 1, 10))
        pause_s = told_s + random.uniform(longest_s / 2, longest_s)
        self._sleep(min(pause_s, self._until_s - now_s))
        if time.monotonic() >= self.call_until_s:
            raise self._given_up(error) from error

    def _given_up(self, error: LiftlogError) -> LiftlogError:
        fields = {**error.fields, "deadline_s": self._deadline_s, "tries": self.failure_count}
        why = f"; it may be asked again in {told_s:g} s" if (told_s := told_pause_s(error)) > PAUSE_S_MAX else ""
        within_s = self._deadline_s
        if self._until_s == self.call_until_s:
            within_s = fields["call_timeout_s"] = self._call_timeout_s
        return type(error)(
            f"{self._what}gave up after {self.failure_count} failed tries in {within_s:g} s{why}; the last: {error}",
            **fields,
        )


def told_pause_s(error: LiftlogError) -> float:
    """When to come again, as whoever refused says it; 0: he says nothing that is a time."""
    told = error.fields.get("retry_after_s")
    if isinstance(told, int | float) and not isinstance(told, bool) and 0 < told < math.inf:
        return float(told)
    return 0.0
