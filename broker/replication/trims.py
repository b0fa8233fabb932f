"""When a trim may be answered: once nobody who may lead can undo it.

T1  A trim waits while fewer are in sync than must be.
T2  It is answered once the leader, each in-sync replica and an addition that is asked for have checkpointed its start.
T3  Nobody joins the in-sync replicas with a start below the last trim that was answered. A new leader takes its own
    start for that: one that it does not have was not answered.
T4  Where the leader's own disk refuses a trim, who waits for one is told that at once. It may come to be done later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.replication.events import Answer, Effect, Outcome, Ticket, Trim


class Trims:
    """The trims of one leadership.

    Attributes:
        log_start: As the leader's checkpoint has it.
        answered: Nobody may lead who starts below (T3).
    """

    __slots__ = ("_asked", "_waiting", "answered", "log_start")

    def __init__(self, log_start: int) -> None:
        self.log_start = self.answered = log_start
        self._asked = log_start
        self._waiting: list[tuple[int, Ticket]] = []

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def ask(self, start: int, ticket: Ticket) -> None:
        self._waiting.append((start, ticket))

    def advance(self, starts: Iterable[int]) -> list[Effect]:
        """Enough are in sync (T1). `starts`: of all others that count."""
        effects: list[Effect] = []
        least = min([self.log_start, *starts])
        wanted = max([start for start, _ in self._waiting], default=0)
        if wanted > self._asked:
            self._asked = wanted
            effects.append(Trim(wanted))
        still: list[tuple[int, Ticket]] = []
        for start, ticket in self._waiting:
            if start <= least:
                self.answered = max(self.answered, start)
                effects.append(Answer(ticket, Outcome.STORED))
            else:
                still.append((start, ticket))
        self._waiting = still
        return effects

    def refused(self, error: Any) -> list[Effect]:
        """T4. The next one is tried at once, also if it is the same."""
        self._asked = self.log_start
        return self.tell_all(Outcome.FAILED, error)

    def tell_all(self, outcome: Outcome, error: Any = None) -> list[Effect]:
        """Nobody waits any more. `error`: as `Answer.error`."""
        effects: list[Effect] = [Answer(ticket, outcome, error) for _, ticket in self._waiting]
        self._waiting.clear()
        return effects
