"""What runs the drivers of one process: executors, a loop, the pool of fsyncs. The seed says when each goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from broker.api.errors import LiftlogError
from broker.runtime.partitions import sync
from broker.runtime.partitions.replica import Replica
from broker.runtime.partitions.sync import SyncTarget
from tests.sim.driven.fibers import Fiber, Gone

if TYPE_CHECKING:
    from tests.sim.driven.node import DrivenBroker

BEGIN_MS = 0.4
"""A thread is at work so long after it was asked, about."""


class Process:
    """One process of a broker. `fibers`: those that wait."""

    def __init__(self, broker: DrivenBroker) -> None:
        self.broker = broker
        self.number = broker.process
        self.fibers: dict[Fiber, object] = {}

    @property
    def is_gone(self) -> bool:
        return self.broker.process != self.number

    def later(self, mean_ms: float, act: Callable[..., Any], *args: Any) -> None:
        self.broker.after(self.broker.world.rng.expovariate(1 / mean_ms), act, *args)

    def run(self, act: Callable[[], object], owner: object) -> None:
        """On a fiber; `owner`: for whom."""
        self.go_on(Fiber(act), owner)

    def go_on(self, fiber: Fiber, owner: object, value: Any = None) -> None:
        """Let it go on, with that."""
        self.fibers.pop(fiber, None)
        fiber.resume(value)
        if not fiber.is_over:
            self.fibers[fiber] = owner

    def pause(self, mean_ms: float) -> None:
        """On a fiber: others go on."""
        fiber, broker = Fiber.current, self.broker
        assert fiber is not None
        broker.after(broker.world.rng.expovariate(1 / mean_ms), lambda: self.go_on(fiber, self.fibers.get(fiber)))
        fiber.wait()

    def end(self) -> None:
        """Nothing of it goes on. (Not of the fiber that has called this: it ends by itself.)"""
        fibers, self.fibers = self.fibers, {}
        for fiber in fibers:
            if fiber is not Fiber.current and not fiber.is_over:
                fiber.resume(Gone())


class Threads(Executor):
    """So many threads of a process.

    Args:
        waits: What they do may wait for the catalog.
        may_begin: Whether something may begin now; None: always.
    """

    def __init__(
        self,
        process: Process,
        count: int,
        *,
        waits: bool = False,
        may_begin: Callable[[Callable[..., Any]], bool] | None = None,
    ) -> None:
        self._process = process
        self._count = count
        self._waits = waits
        self._may_begin = may_begin
        self._queue: deque[Callable[[], None]] = deque()
        self._busy = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._process.is_gone:
            raise RuntimeError("the process is gone")
        future: Future[Any] = Future()

        def act() -> None:
            try:
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    found = fn(*args, **kwargs)
                except Exception as error:
                    future.set_exception(error)
                else:
                    future.set_result(found)
            finally:
                self._busy -= 1
                self._pump()

        act.__wrapped__ = fn  # type: ignore[attr-defined]
        self._queue.append(act)
        self._pump()
        return future

    def _pump(self) -> None:
        while self._queue and self._busy < self._count and not self._process.is_gone:
            self._busy += 1
            self._process.later(BEGIN_MS, self._begin, self._queue.popleft())

    def _begin(self, act: Callable[[], None]) -> None:
        if self._may_begin is not None and not self._may_begin(act.__wrapped__):  # type: ignore[attr-defined]
            self._process.later(BEGIN_MS, self._begin, act)
        elif self._waits:
            self._process.run(act, None)
        else:
            act()


class Stepped:
    """A loop (`broker.runtime.looping`) that is stepped by the schedule."""

    def __init__(self, process: Process, step: Callable[[], float]) -> None:
        self._process = process
        self._step = step
        self._number = 0
        self._is_over = False

    def start(self) -> None:
        self._at(BEGIN_MS)

    def wake(self) -> None:
        self._at(self._process.broker.world.rng.expovariate(1 / BEGIN_MS))

    def stop(self) -> None:
        self._is_over = True

    def _at(self, delay_ms: float) -> None:
        self._number += 1
        self._process.broker.after(delay_ms, self._do, self._number)

    def _do(self, number: int) -> None:
        if number == self._number and not self._is_over:
            due_s = self._step()
            if number == self._number:  # else it was woken meanwhile
                self._at(due_s * 1_000 / self._process.broker.clock.rate)


class Syncs:
    """The pool of fsyncs: so many are under way at the same time, each as long as the disk of the broker takes."""

    thread_count = 2

    def __init__(self, process: Process) -> None:
        self._process = process
        self._queue: deque[SyncTarget] = deque()
        self._busy = 0

    def submit(self, partition: SyncTarget) -> None:
        self._queue.append(partition)
        self._pump()

    def _pump(self) -> None:
        while self._queue and self._busy < self.thread_count and not self._process.is_gone:
            self._busy += 1
            target = self._queue.popleft()
            self._process.later(BEGIN_MS, self._process.run, lambda target=target: self._sync(target), target)

    def _sync(self, target: SyncTarget) -> None:
        try:
            is_more = sync._synced(target)
        finally:
            self._busy -= 1
        if is_more:
            self._queue.append(target)
        self._pump()


class PausedReplica(Replica):
    """One whose fsync takes time where it is the pool's: others go on between what it makes durable and its outcome."""

    process: Process

    def sync(self) -> int | LiftlogError:
        is_of_pool = Fiber.current is not None
        if is_of_pool:
            self.process.pause(self.process.broker.sync_ms / 2)
        outcome = super().sync()
        if is_of_pool:
            self.process.pause(self.process.broker.sync_ms / 2)
        return outcome
