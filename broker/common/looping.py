"""Something that is done again and again: a step says when the next one is due, and anybody may ask for one earlier.

    step ─► so many seconds ─► step ─► ...
    wake ────────┘

L1  One step at a time. A step that is asked for while one is under way comes after it.
L2  After `stop` no step begins. `stop` returns when none is under way.

A driver is handed what makes its loop (`MakeLoop`). The broker hands `ThreadLoop`; the simulator one that is stepped by
the schedule of a seed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Loop(Protocol):
    """See the module. Thread-safe."""

    def start(self) -> None:
        """Do the first step soon."""
        ...

    def wake(self) -> None:
        """Let there be a step now. Does not wait."""
        ...

    def stop(self) -> None:
        """For good. Not to be called by a step."""
        ...


MakeLoop = Callable[[Callable[[], float], str], Loop]
"""Makes the loop of a step, which returns how many seconds there are until the next one; its name is for people."""


class ThreadLoop:
    """On a thread of that name. A step sees to its own errors."""

    def __init__(self, step: Callable[[], float], name: str) -> None:
        self._step = step
        self._woken = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self, *, waits: bool = True) -> None:
        """`waits`: as L2 says. False: the step under way touches nothing that somebody else needs."""
        self._is_stopping = True
        self._woken.set()
        if waits and self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._is_stopping:
            self._woken.wait(self._step())
            self._woken.clear()
