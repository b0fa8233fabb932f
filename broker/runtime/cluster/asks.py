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
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Executor
from typing import Any

from broker.api.errors import LiftlogError
from broker.metadata.catalog import COMMAND_VERSION
from broker.runtime.cluster.wiring import CatalogService

log = logging.getLogger(__name__)


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
    ) -> None:
        """Ask this, unless something is under way for the key. Does not wait.

        Args:
            kind, values: The command; its values are made by the thread that waits.
            failed, answered: Called in that thread, with the error or the answer.
        """
        with self._lock:
            if key in self._under_way:
                return
            self._under_way.add(key)
        try:
            self._executor.submit(self._run, key, kind, values, failed, answered)
        except RuntimeError:  # the broker stops
            self._over(key)

    def _run(
        self,
        key: Hashable,
        kind: str,
        values: Callable[[], Mapping[str, Any]],
        failed: Callable[[LiftlogError], None],
        answered: Callable[[Any], None],
    ) -> None:
        try:
            try:
                said = self._service.execute({"v": COMMAND_VERSION, "kind": kind, **values()})
            except LiftlogError as error:
                failed(error)
            else:
                answered(said)
        except Exception:  # nobody looks at what becomes of it in the executor
            log.exception("catalog.ask_bug kind=%s key=%s", kind, key)
        finally:
            self._over(key)

    def _over(self, key: Hashable) -> None:
        with self._lock:
            self._under_way.discard(key)
