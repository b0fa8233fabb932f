"""One of those who use and change a cluster amid faults: a loop in a thread, commands with one try. See `operators`."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.api.errors import LiftlogError, Retryable
from broker.client import Client, connect

ONE_TRY_S: Final = 30.0
"""Longer than a process stands still: an answer that comes late is waited for."""
PATIENT_S: Final = 120.0
CALM_S: Final = 60.0
PAUSE_S: Final = 0.05


class Worker:
    """One of them, in a thread of its own.

    Attributes:
        seen: Outcomes of its commands.
        error: The error that ended it.
    """

    def __init__(self, addresses: Sequence[str], url: str, seed: str) -> None:
        self.rng = random.Random(f"{seed}/{type(self).__name__}")
        self.seen: Counter[str] = Counter()
        self.error: BaseException | None = None
        self.url = url
        self._stop = threading.Event()
        self.patient = connect(list(addresses), deadline_s=PATIENT_S)
        self.hasty = [connect([at], deadline_s=0.0, timeout_s=ONE_TRY_S) for at in addresses]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Make what it needs, and start."""
        self.prepare()
        self._thread.start()

    def prepare(self) -> None:
        """Before any fault."""

    def step(self) -> None:
        """One thing."""
        raise NotImplementedError

    def check(self) -> None:
        """When all is quiet."""

    @property
    def any(self) -> Client:
        """Asks one broker, once."""
        return self.rng.choice(self.hasty)

    def note(self, what: str, outcome: str) -> None:
        self.seen[f"{what} {outcome}"] += 1

    def attempt(self, what: str, call: Callable[[], Any]) -> tuple[str, Any]:
        """`done` and its answer; `refused`, `not now` or `in doubt`, and the error."""
        try:
            answer = call()
        except Retryable as error:
            outcome, answer = "in doubt" if error.fields.get("sent") else "not now", error
        except LiftlogError as error:
            outcome, answer = "in doubt" if error.fields.get("sent") else "refused", error
        else:
            outcome = "done"
        self.note(what, outcome)
        return outcome, answer

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.step()
                self._stop.wait(self.rng.uniform(0, 2 * PAUSE_S))
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """No step after this one; returns at once."""
        self._stop.set()

    def stop(self) -> None:
        """Returns when its last step is done."""
        self.end()
        if self._thread.ident is not None:
            self._thread.join(2 * PATIENT_S)
        assert not self._thread.is_alive(), f"{type(self).__name__} goes on"
        self.look()

    def look(self) -> None:
        """Raise what it has met."""
        if self.error is not None:
            raise AssertionError(f"{type(self).__name__}: {self.error}") from self.error

    def close(self) -> None:
        self.end()
        for client in (self.patient, *self.hasty):
            client.close()
