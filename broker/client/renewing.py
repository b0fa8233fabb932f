"""Signs of life of sinks: one thread of a process says for each open sink that its run lives, once in some seconds.

    with renewing(sink): ...      while this lasts
    keep_renewing(sink)           as long as the object is there, and its client is not closed

A run that is silent for long loses what it has staged when others need the room (docs/explain/sinks.md). Several
objects of one run, as Spark's tasks have in one process, renew together, and the next one begins where the
last one ended.

N1  Nothing here raises, nor waits: a sign of life that is lost is one of many.
N2  A run that brokers know no more is left alone: superseded, deleted, or at brokers that know of no renewing. One that
    they refuse for who asks is there all the same: a token is renewed too late, a grant comes back.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from broker.api.errors import LiftlogError, Retryable, Unauthenticated, Unauthorized
from broker.client.http.forks import renew_after_fork

if TYPE_CHECKING:
    from broker.client.http.brokers import Brokers
    from broker.client.sinks import Sink

log = logging.getLogger(__name__)

Run = tuple[str, str, str]
"""Brokers, sink, owner."""

AGAIN: Final = 3
"""A sign that was not taken is given again after this part of the time between two."""
IDLE_S: Final = 60.0
"""The thread ends when there was nothing to renew for so long."""


@dataclass(slots=True)
class _Due:
    every_s: float
    due_s: float = 0.0
    is_over: bool = False
    sinks: weakref.WeakSet[Sink] = field(default_factory=weakref.WeakSet)


class Renewing:
    """See the module. Thread-safe."""

    def __init__(self) -> None:
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Begin anew: a forked process has no such thread."""
        self._runs: dict[Run, _Due] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, sink: Sink, every_s: float) -> None:
        """Renew for this object, too. The first time at once, unless another one of its run did lately."""
        with self._changed:
            due = self._runs.setdefault(sink.run, _Due(every_s))
            due.is_over = False
            due.sinks.add(sink)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="liftlog-renew", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, sink: Sink) -> None:
        """Renew no more for this object."""
        with self._changed:
            for due in self._runs.values():
                due.sinks.discard(sink)

    def end(self, brokers: Brokers) -> None:
        """Renew no more for sinks of a client that is closed."""
        with self._changed:
            for due in self._runs.values():
                due.sinks = weakref.WeakSet(sink for sink in due.sinks if sink.brokers is not brokers)

    def _work(self) -> None:
        while (found := self._next()) is not None:
            run, sink = found
            over, every_s = False, 0.0
            try:
                every_s = sink.renew() / 1000
            except (Retryable, Unauthenticated, Unauthorized) as error:
                log.debug("sink.renew_failed sink=%s error=%s", sink.sink, error)
            except LiftlogError as error:
                log.info("sink.renew_ended sink=%s error=%s", sink.sink, error)
                over = True
            except Exception:
                log.exception("sink.renew_bug sink=%s", sink.sink)
            with self._changed:
                if (due := self._runs.get(run)) is not None:
                    due.is_over |= over
                    due.every_s = every_s or due.every_s
                    due.due_s = time.monotonic() + (due.every_s if every_s else due.every_s / AGAIN)
            del found, sink  # or it would be there for ever

    def _next(self) -> tuple[Run, Sink] | None:
        """Wait for the next one that is due; None: there was nothing for long, and the thread is given up."""
        with self._changed:
            idle_until_s = time.monotonic() + IDLE_S
            while True:
                now_s = time.monotonic()
                for run in [run for run, due in self._runs.items() if not due.sinks and due.due_s <= now_s]:
                    del self._runs[run]
                live = [due for due in self._runs.values() if due.sinks and not due.is_over]
                for run, due in self._runs.items():
                    sink = next((each for each in due.sinks if each.run == run), None)
                    if due.due_s <= now_s and sink is not None and not due.is_over:
                        return run, sink
                    del sink
                if live:
                    idle_until_s = now_s + IDLE_S
                elif now_s >= idle_until_s:
                    self._thread = None
                    return None
                soonest = min((due.due_s for due in live), default=idle_until_s)
                self._changed.wait(max(soonest - now_s, 0.1))


_RENEWING: Final = Renewing()


def keep_renewing(sink: Sink, renew_ms: int) -> None:
    """Say that the sink's run lives, as long as this object is there. 0: its brokers do not ask for it."""
    if renew_ms:
        _RENEWING.add(sink, renew_ms / 1000)


def end_renewing(brokers: Brokers) -> None:
    """Renew no more for sinks that use these connections: their client is closed."""
    _RENEWING.end(brokers)


@contextmanager
def renewing(sink: Sink, renew_ms: int) -> Iterator[None]:
    """Say that the sink's run lives, while this lasts."""
    keep_renewing(sink, renew_ms)
    try:
        yield
    finally:
        _RENEWING.remove(sink)
