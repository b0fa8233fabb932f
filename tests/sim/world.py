"""The clock, what is to happen when, luck, and the story of it all. One thread: what happens, happens in order."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Violation(Exception):
    """Something that must hold does not. Begins with its name."""


class Line(NamedTuple):
    """One event. With `first` and `end` it is of so many records, and of many only some are worth a line."""

    at_ms: float
    who: str
    text: str
    first: int = -1
    end: int = -1

    @property
    def is_detail(self) -> bool:
        return self.end >= 0

    def __str__(self) -> str:
        text = self.text.format(span=f"[{self.first}, {self.end})", end=self.end) if self.is_detail else self.text
        return f"{self.at_ms / 1000:8.3f}  {self.who:<9} {text}"


def told(lines: Iterable[Line]) -> str:
    """All of it."""
    return "\n".join(map(str, lines))


class World:
    """One run.

    Attributes:
        now_ms: Since the run began.
        steps: Things that have happened.
        story: All that a reader wants to know, a line each (`story.py`).
        seen: How often each thing has happened, for the table of what seeds cover.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0.0
        self.steps = 0
        self.story: list[Line] = []
        self.seen: Counter[str] = Counter()
        self._due: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._number = 0

    def after(self, delay_ms: float, act: Callable[..., Any], *args: Any) -> None:
        """Let something happen later; of two at the same time the one that was asked for first."""
        self._number += 1
        heapq.heappush(self._due, (self.now_ms + delay_ms, self._number, act, args))

    def run(self, until_ms: float, is_done: Callable[[], bool] | None = None) -> None:
        """Let happen what is due, until a time, or until something is so."""
        due = self._due
        while due and due[0][0] <= until_ms:
            at, _, act, args = heapq.heappop(due)
            self.now_ms = max(self.now_ms, at)
            self.steps += 1
            act(*args)
            if is_done is not None and self.steps % 16 == 0 and is_done():
                return
        self.now_ms = max(self.now_ms, until_ms)

    def note(self, who: str, text: str) -> None:
        self.story.append(Line(self.now_ms, who, text))

    def detail(self, who: str, text: str, first: int, end: int) -> None:
        """As `note`, of records [first, end); `text` says where with {span} and {end}."""
        self.story.append(Line(self.now_ms, who, text, first, end))

    def saw(self, what: str) -> None:
        self.seen[what] += 1

    def chance(self, share: float) -> bool:
        return self.rng.random() < share
