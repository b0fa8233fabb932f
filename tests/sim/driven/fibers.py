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


class Fiber:
    """See the module.

    Attributes:
        current: The one that runs; None: it is the scheduler itself.
    """

    current: ClassVar[Fiber | None] = None

    def __init__(self, act: Callable[[], object]) -> None:
        self.is_over = False
        self._act = act
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def resume(self, value: Any = None) -> None:
        """Go on until it waits again, or ends. An exception is raised where it waits. Raises what it raises."""
        before, Fiber.current = Fiber.current, self
        self._value = value
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._turn.release()
        self._back.acquire()
        Fiber.current = before
        error, self._error = self._error, None
        if self.is_over and self._thread is not None:
            self._thread.join()
        if error is not None:
            raise error

    def wait(self) -> Any:
        """On its own thread: returns what `resume` is given."""
        self._back.release()
        self._turn.acquire()
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value

    def _run(self) -> None:
        try:
            self._act()
        except Gone:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.is_over = True
            self._back.release()
