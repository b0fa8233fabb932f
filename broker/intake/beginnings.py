"""Captures that are asked for by other threads, begun together.

    ask, ask, ask ──► [the batch] ──► one wake of the loop ──► a task for each attachment ──► captures.begin
              then(end) closes it

B1  What is asked for is begun, and ended, in the order in which it was asked for (`captures.E1`): a batch that is not
    taken yet is closed by whatever else is asked of the loop, and so is what one task begins by other settings.
B2  Each who asks gets an answer of its own. What fails, or is cancelled as the loop ends, is so for all of one task.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from broker.intake.captures import Captures
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Partition

T = TypeVar("T")


@dataclass(slots=True)
class _Together:
    """Partitions of one attachment that begin under the same settings."""

    info: StreamInfo
    asked: list[tuple[Partition, Future[None]]] = field(default_factory=list)


class Beginnings:
    """See the module. Thread-safe.

    Args:
        loop: Of the intake thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, captures: Captures) -> None:
        self._loop, self._captures = loop, captures
        self._lock = threading.Lock()
        self._batch: dict[str, list[_Together]] | None = None  # by key, which the loop has not taken yet
        self._tasks: set[asyncio.Task[None]] = set()  # a loop keeps none alive

    def ask(self, info: StreamInfo, partition: Partition) -> Future[None]:
        """Begin to capture a partition. Raises RuntimeError: the loop is closed."""
        done: Future[None] = Future()
        with self._lock:
            batch = self._batch
            if batch is None:
                batch = {}
                self._loop.call_soon_threadsafe(self._take, batch)
                self._batch = batch
            groups = batch.setdefault(self._captures.key(info, partition), [])
            if not groups or groups[-1].info is not info:
                groups.append(_Together(info))
            groups[-1].asked.append((partition, done))
        return done

    def then(self, ask: Callable[[], T]) -> T:
        """Ask something else of the loop, behind all that was asked for (B1)."""
        with self._lock:
            self._batch = None
            return ask()

    def _take(self, batch: dict[str, list[_Together]]) -> None:
        with self._lock:
            if self._batch is batch:
                self._batch = None
        for group in (group for groups in batch.values() for group in groups):
            task = self._loop.create_task(self._captures.begin(group.info, *(each for each, _ in group.asked)))
            self._tasks.add(task)
            task.add_done_callback(partial(self._answer, group))

    def _answer(self, group: _Together, task: asyncio.Task[None]) -> None:
        """B2."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        for _, done in group.asked:
            if task.cancelled():
                done.cancel()
            elif error is not None:
                done.set_exception(error)
            else:
                done.set_result(None)
