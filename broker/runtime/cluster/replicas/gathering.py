"""Gathers what many partitions ask of the catalog, so that one command asks for many.

    partition a ─ add ─► under way: [a]                       a thread that may wait for the controller
    partition b ─ add ─► waiting: b, c, ... ─► under way: [b, c, ...]

O1  One command is under way at a time, and all that is added meanwhile waits for the next: ten thousand partitions send
    some tens of commands. What is alone goes at once.
O2  What is under way is not asked for again. What waits is replaced by what its partition asks for later.
O3  A fault of ours in one command holds up no later one.
O4  Who has asked is told when that is not under way any more: what is asked again because of the answer goes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from itertools import islice
from typing import Any, Generic, TypeVar

from broker.metadata.partition import Place

log = logging.getLogger(__name__)

Asked = TypeVar("Asked")


class Gathering(Generic[Asked]):
    """See the module. Thread-safe.

    Args:
        send: Sends one command for all of these, and waits for its answer.
        commands: For what is asked of the catalog.
        at_once: So many go by one command at most.
        ended: Takes what a command has asked for, and what it said (O4); None: a fault of ours.
    """

    def __init__(
        self,
        send: Callable[[Mapping[Place, Asked]], Any],
        commands: Executor,
        *,
        at_once: int,
        ended: Callable[[Mapping[Place, Asked], Any], None] = lambda asked, said: None,
    ) -> None:
        self._send = send
        self._ended = ended
        self._commands = commands
        self._at_once = at_once
        self._lock = threading.Lock()
        self._waiting: dict[Place, Asked] = {}
        self._under_way: dict[Place, Asked] = {}

    def add(self, at: Place, asked: Asked) -> None:
        """Ask for this. Does not wait."""
        with self._lock:
            if self._under_way.get(at) == asked:  # O2
                return
            self._waiting[at] = asked
            is_first = not self._under_way
            if is_first:
                self._take()
        if is_first:
            self._submit()

    def _take(self) -> None:
        """Under the lock: those that wait go next, as many as may."""
        due = list(islice(self._waiting, self._at_once))
        self._under_way = {at: self._waiting.pop(at) for at in due}

    def _submit(self) -> None:
        try:
            self._commands.submit(self._run)
        except RuntimeError:  # the broker stops
            with self._lock:
                self._under_way = {}

    def _run(self) -> None:
        asked, said = self._under_way, None
        try:
            said = self._send(asked)
        except Exception:  # O3
            log.exception("replica.want_bug partitions=%d", len(asked))
        with self._lock:
            self._take()
            is_more = bool(self._under_way)
        if is_more:
            self._submit()
        self._ended(asked, said)
