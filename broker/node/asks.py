"""What this broker asks of the catalog until that shows it: one question for each key at a time, in threads
that may wait.

    whoever looks at the catalog ─ ask(key, command) ─► under way ─ execute ─► answered, or failed: over
                     ▲                                                            │
                     └──────── looks again: it is shown, or it is asked again ────┘

A1  What is under way for a key is not asked again: the first try may take as long as the controller does.
A2  Who asks looks whether the catalog shows it, now and then: a question that failed leaves a line and nothing else. It
    may have been carried out all the same.
A3  A question is over once who asked was told, and whatever becomes of it: a fault of ours, which leaves its traceback,
    or a broker that stops.
A4  Questions of many partitions go by few commands, one at a time. What is added meanwhile goes by the next one, and
    what is alone goes at once: ten thousand partitions send some tens of commands. What waits is replaced by what its
    partition asks for later, so a command has each partition once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Executor
from itertools import islice
from typing import Any, Generic, TypeVar

from broker.api.errors import LiftlogError
from broker.metadata.catalog import COMMAND_VERSION
from broker.metadata.partition import Place
from broker.node.wiring import CatalogService

log = logging.getLogger(__name__)

Asked = TypeVar("Asked")


class Asks:
    """See the module. Thread-safe.

    Args:
        executor: Its threads wait for the controller.
    """

    def __init__(self, service: CatalogService, executor: Executor) -> None:
        self._service, self._executor = service, executor
        self._lock = threading.Lock()
        self._under_way: set[Hashable] = set()

    def __contains__(self, key: Hashable) -> bool:
        """Whether something is under way for it (A1)."""
        return key in self._under_way

    def ask(
        self,
        key: Hashable,
        kind: str,
        values: Callable[[], Mapping[str, Any]],
        *,
        failed: Callable[[LiftlogError], None],
        answered: Callable[[Any], None] = lambda said: None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Ask this, unless something is under way for the key. Does not wait.

        Args:
            kind, values: The command; its values are made by the thread that waits.
            failed, answered: Called in that thread, with the error or the answer.
            then: Called in that thread when it is over.
        """
        with self._lock:
            if key in self._under_way:
                return
            self._under_way.add(key)

        def run() -> None:
            try:
                self._run(kind, values, failed, answered)
            except Exception:  # nobody looks at what becomes of it in the executor
                log.exception("catalog.ask_bug kind=%s key=%s", kind, key)
            finally:
                self._over(key)
                then()

        try:
            self._executor.submit(run)
        except RuntimeError:  # the broker stops
            self._over(key)

    def _run(
        self,
        kind: str,
        values: Callable[[], Mapping[str, Any]],
        failed: Callable[[LiftlogError], None],
        answered: Callable[[Any], None],
    ) -> None:
        try:
            said = self._service.execute({"v": COMMAND_VERSION, "kind": kind, **values()})
        except LiftlogError as error:
            failed(error)
        else:
            answered(said)

    def _over(self, key: Hashable) -> None:
        with self._lock:
            self._under_way.discard(key)


class BatchedAsks(Generic[Asked]):
    """Questions of one kind, of many partitions (A4). Thread-safe.

    Args:
        values: Those of a command that asks all of this.
        at_once: So many go by one command at most.
        failed, answered: As of `Asks.ask`; called with what was asked, too.
    """

    def __init__(
        self,
        asks: Asks,
        kind: str,
        values: Callable[[Mapping[Place, Asked]], Mapping[str, Any]],
        *,
        at_once: int,
        failed: Callable[[Mapping[Place, Asked], LiftlogError], None],
        answered: Callable[[Mapping[Place, Asked], Any], None] = lambda asked, said: None,
    ) -> None:
        self._asks, self._kind, self._values, self._at_once = asks, kind, values, at_once
        self._failed, self._answered = failed, answered
        self._lock = threading.Lock()
        self._waiting: dict[Place, Asked] = {}
        self._under_way: dict[Place, Asked] = {}

    def ask(self, at: Place, asked: Asked) -> None:
        """Ask this, unless the same is under way for the partition. Does not wait."""
        with self._lock:
            if self._under_way.get(at) == asked:  # A1
                return
            self._waiting[at] = asked
        self._go()

    def _go(self) -> None:
        """The next command, unless one is under way."""
        with self._lock:
            if self._under_way or not self._waiting:
                return
            due = list(islice(self._waiting, self._at_once))
            asked = self._under_way = {at: self._waiting.pop(at) for at in due}
        self._asks.ask(
            self._kind,
            self._kind,
            lambda: self._values(asked),
            failed=lambda error: self._failed(asked, error),
            answered=lambda said: self._answered(asked, said),
            then=self._next,
        )

    def _next(self) -> None:
        with self._lock:
            self._under_way = {}
        self._go()
