"""A thread that goes on only when it is told to: one at a time with all others, so that a run has one order.

    resume ─► act ... wait ─┐            resume ─► ... act ends
                 ▲          ▼                 ▲
                 └─ here, until somebody calls `resume` again

It holds no lock where it waits. A driver's code may run on one without knowing of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar


class Gone(BaseException):
    """The process is gone: nothing of it goes on."""


class Worker:
    """A thread that runs one fiber after another: to begin one takes longer than to hand it something."""

    idle: ClassVar[list[Worker]] = []

    def __init__(self) -> None:
        self.turn = _held()
        self.fiber: Fiber | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self.turn.acquire()
            fiber, self.fiber = self.fiber, None
            assert fiber is not None
            fiber.run()
            self.idle.append(self)
            fiber.back.release()


class Fiber:
    """See the module.

    Attributes:
        current: The one that runs; None: it is the scheduler itself.
        of: Whom the pool of fsyncs has it sync; None: something else.
        disk: Takes time, where this is a turn or a stop: it holds no lock where it opens, closes or recovers a log.
        back: Let go when it waits, or has ended.
    """

    current: ClassVar[Fiber | None] = None

    def __init__(self, act: Callable[[], object]) -> None:
        self.is_over = False
        self.of: object = None
        self.disk: Callable[[], None] | None = None
        self.back = _held()
        self._act = act
        self._value: Any = None
        self._error: BaseException | None = None
        self._worker: Worker | None = None

    def resume(self, value: Any = None) -> None:
        """Go on until it waits again, or ends. An exception is raised where it waits. Raises what it raises."""
        assert not self.is_over, "it has ended"
        before, Fiber.current = Fiber.current, self
        self._value = value
        if self._worker is None:
            self._worker = Worker.idle.pop() if Worker.idle else Worker()
            self._worker.fiber = self
        self._worker.turn.release()
        self.back.acquire()
        Fiber.current = before
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> Any:
        """On its own thread: returns what `resume` is given."""
        assert self._worker is not None
        self.back.release()
        self._worker.turn.acquire()
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value

    def run(self) -> None:
        """On its thread: from its beginning to its end."""
        try:
            self._act()
        except Gone:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.is_over = True


def _held() -> threading.Lock:
    """A lock that one lets go for another one to go on: a semaphore, and quicker."""
    lock = threading.Lock()
    lock.acquire()
    return lock
