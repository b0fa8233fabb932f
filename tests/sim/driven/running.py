"""What runs the drivers of one process: executors, a loop, the pool of fsyncs, who waits for others. The seed says when
each goes on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from broker.api.errors import CorruptLog, LiftlogError
from broker.api.stream import StreamSettings
from broker.metadata.catalog import StreamInfo
from broker.node.folders import Folders
from broker.node.partitions import sync
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncTarget
from broker.storage.log import PartitionLog
from broker.storage.recovery import RecoveryReport
from broker.storage.segments.checkpoint import CHECKPOINT_FILE, LogIdentity, LogSettings
from tests.sim.driven.fibers import Fiber, Gone

if TYPE_CHECKING:
    from tests.sim.driven.node import Broker
    from tests.sim.world import World

BEGIN_MS = 0.4
"""A thread is at work so long after it was asked, about."""
LATE_TURN, LATE_TURN_MS = 0.3, 150
"""So likely a turn begins so late where streams are changed: all threads are busy, or the broker is."""
PREEMPTED = 0.3
"""So likely a thread is stopped for a moment where it may be."""
AT_DISK = 0.5
"""So likely others go on while a turn opens, closes or recovers a log."""
LATE, FAILED_LATE = 0.02, 0.3
"""So likely who has made an fsync is so late to say so; and who has failed."""
LATER_MS = 300
SLOW = (0.2, 0.8, 1.0)
"""So likely an fsync was too slow for whoever asks for the next one to make it himself: one of these, by the process.
"""


class Process:
    """One process of a broker.

    Attributes:
        fibers: Those that wait.
        opened: All logs that it has opened.
        waiting: Partitions of those who have appended, and wait for an answer.
        slow: So likely an fsync is slow.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.number = broker.process
        self.slow = broker.world.rng.choice(SLOW)
        self.fibers: dict[Fiber, None] = {}
        self.opened: list[PartitionLog] = []
        self.waiting: dict[object, str] = {}

    @property
    def is_gone(self) -> bool:
        return self.broker.process != self.number

    def later(self, mean_ms: float, act: Callable[..., Any], *args: Any) -> None:
        if not self.is_gone:  # else the next process would do it
            self.broker.after(self.broker.world.rng.expovariate(1 / mean_ms), act, *args)

    def run(self, act: Callable[[], object], *, is_turn: bool = False) -> None:
        """On a fiber. `is_turn`: it moves logs from one role to the next, or closes them."""
        fiber = Fiber(act)
        if is_turn:
            fiber.disk = self.disk_takes
        self.go_on(fiber)

    def disk_takes(self) -> None:
        """On a fiber: the disk takes its time for something."""
        if self.broker.world.chance(AT_DISK):
            self.pause(self.broker.sync_ms / 2)

    def go_on(self, fiber: Fiber, value: Any = None) -> None:
        """Let it go on, with that."""
        self.fibers.pop(fiber, None)
        fiber.resume(value)
        if not fiber.is_over:
            self.fibers[fiber] = None

    def pause(self, mean_ms: float) -> None:
        """On a fiber: others go on."""
        fiber, broker = Fiber.current, self.broker
        assert fiber is not None, "who waits holds up others"
        if self.is_gone:
            raise Gone
        broker.after(broker.world.rng.expovariate(1 / mean_ms), self.go_on, fiber)
        fiber.wait()

    def preempt(self, mean_ms: float = BEGIN_MS) -> None:
        """Others may go on here, if this is on a fiber."""
        if Fiber.current is not None and self.broker.world.chance(PREEMPTED):
            self.pause(mean_ms)

    def end(self) -> None:
        """Nothing of it goes on. (Not of the fiber that has called this: it ends by itself.)"""
        fibers, self.fibers = self.fibers, {}
        for fiber in fibers:
            if fiber is not Fiber.current and not fiber.is_over:
                fiber.resume(Gone())


class Threads(Executor):
    """So many threads of a process.

    Args:
        waits: What they do may wait.
        has_turns: As `is_turn` of `Process.run`.
    """

    def __init__(self, process: Process, count: int, *, waits: bool = False, has_turns: bool = False) -> None:
        self._process = process
        self._has_turns = has_turns
        self._count = count
        self._waits = waits
        self._queue: deque[Callable[[], None]] = deque()
        self._busy = 0
        self._is_shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._process.is_gone or self._is_shut:
            raise RuntimeError("no more")
        future: Future[Any] = Future()

        def act() -> None:
            try:
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    found = fn(*args, **kwargs)
                except Exception as error:
                    if not isinstance(error, LiftlogError):  # also one of the checker: nobody may ask the future
                        self._process.broker.cluster.bugs.found.append(error)
                    future.set_exception(error)
                else:
                    future.set_result(found)
            finally:
                self._busy -= 1
                self._pump()

        self._queue.append(act)
        self._pump()
        return future

    def _pump(self) -> None:
        while self._queue and self._busy < self._count and not self._process.is_gone:
            self._busy += 1
            is_late = self._has_turns and self._process.broker.cluster.changes is not None
            mean_ms = LATE_TURN_MS if is_late and self._process.broker.world.chance(LATE_TURN) else BEGIN_MS
            self._process.later(mean_ms, self._begin, self._queue.popleft())

    def _begin(self, act: Callable[[], None]) -> None:
        if self._waits:
            self._process.run(act, is_turn=self._has_turns)
        else:
            act()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut = True
        if cancel_futures:
            self._queue.clear()
        while wait and (self._busy or self._queue):
            self._process.pause(BEGIN_MS)


class FiberWaits:
    """`Waits` of one process: the fiber is stopped at least once, and then looks again and again.

    Args:
        patience_s: Who waits for an outcome for a while waits no longer.
    """

    def __init__(self, process: Process, patience_s: float = 60.0) -> None:
        self._process = process
        self._patience_s = patience_s

    def until(self, changed: threading.Condition, is_so: Callable[[], bool]) -> None:
        is_waiting = True
        while is_waiting:
            held = changed._release_save()  # type: ignore[attr-defined]
            try:
                self._process.pause(BEGIN_MS)
            finally:
                changed._acquire_restore(held)  # type: ignore[attr-defined]
            is_waiting = not is_so()

    def pause(self, seconds: float) -> None:
        self._process.pause(seconds * 1_000)

    def now_s(self) -> float:
        return self._process.broker.now_s()

    def lock(self) -> FiberLock:
        return FiberLock(self._process)

    def ended(self, future: Future[Any], timeout_s: float | None = None) -> bool:
        process, fiber, is_woken = self._process, Fiber.current, False
        if future.done():
            return True
        assert fiber is not None, "who waits holds up others"
        if process.is_gone:
            raise Gone

        def wake(_: object = None) -> None:
            nonlocal is_woken
            if not is_woken:
                is_woken = True
                process.later(BEGIN_MS, process.go_on, fiber)

        future.add_done_callback(wake)
        if timeout_s is not None:
            process.broker.after(min(timeout_s, self._patience_s) * 1_000 / process.broker.clock.rate, wake)
        fiber.wait()
        return future.done()


class FiberLock:
    """A lock that a fiber holds while it waits (`waiting.Lock`). Who would wait for a while only does not."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._holder: object = None
        self._depth = 0
        self._waiting: list[Fiber] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        fiber = Fiber.current
        me = fiber or self._process
        while self._holder not in (None, me):
            if not blocking or timeout >= 0:
                return False
            assert fiber is not None, "who waits holds up others"
            if self._process.is_gone:
                raise Gone
            self._waiting.append(fiber)
            fiber.wait()
        self._holder = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = None
            waiting, self._waiting = self._waiting, []
            for fiber in waiting:
                self._process.later(BEGIN_MS, self._process.go_on, fiber)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True, kw_only=True)
class PausedFolders(Folders):
    """Making and removing a folder takes time. Where files are damaged logs have several of them."""

    process: Process

    def log_settings(self, settings: StreamSettings, *, is_sole: bool = False) -> LogSettings:
        found = Folders.log_settings(self, settings, is_sole=is_sole)
        is_of_many = self.process.broker.cluster.rots or self.process.broker.cluster.rewrites
        return replace(found, segment_bytes=self.settings.segment_bytes) if is_of_many else found

    def open(self, identity: LogIdentity, settings: LogSettings) -> PartitionLog:
        try:
            return self._opened(Folders.open(self, identity, settings))
        except LiftlogError as error:
            is_checkpoint = isinstance(error, CorruptLog) and CHECKPOINT_FILE in str(error)
            self.process.broker.world.saw("damaged checkpoint" if is_checkpoint else "folder that cannot be opened")
            raise

    def create(self, info: StreamInfo, number: int) -> PartitionLog:
        self._takes()
        made = self._opened(Folders.create(self, info, number))
        self._takes()
        return made

    def _opened(self, made: PartitionLog) -> PartitionLog:
        made.__class__ = PausedLog
        self.process.opened.append(made)
        return made

    def remove(self, name: str, incarnation: str, number: int) -> None:
        self._takes()
        Folders.remove(self, name, incarnation, number)
        self._takes()

    def _takes(self) -> None:
        self.process.pause(2 * self.process.broker.sync_ms)


class PausedLog(PartitionLog):
    """What a turn does to a log takes time."""

    __slots__ = ()

    def recover(self, now_us: int) -> RecoveryReport:
        _disk_takes()
        found = super().recover(now_us)
        _disk_takes()
        return found

    def close(self, *, clean: bool = True) -> None:
        _disk_takes()
        super().close(clean=clean)


def _disk_takes() -> None:
    if Fiber.current is not None and Fiber.current.disk is not None:
        Fiber.current.disk()


class Stepped:
    """A loop (`broker.common.looping`) that is stepped by the schedule."""

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


class SteppedWaiting(Stepped):
    """One whose steps wait for something."""

    _is_busy = False

    def stop(self) -> None:
        super().stop()
        while self._is_busy:
            self._process.pause(BEGIN_MS)

    def _do(self, number: int) -> None:
        if number == self._number and not self._is_over and not self._is_busy:
            self._is_busy = True
            self._process.run(self._waits)

    def _waits(self) -> None:
        try:
            due_s = self._step()
        finally:
            self._is_busy = False
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
            self._process.later(BEGIN_MS, self._process.run, lambda target=target: self._sync(target))

    def _sync(self, target: SyncTarget) -> None:
        assert Fiber.current is not None
        Fiber.current.of = target
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
        world, sync_ms = self.process.broker.world, self.process.broker.sync_ms
        try:
            return self._sync(world, sync_ms)
        finally:  # the next one is the pool's, or is not
            self.sync_took_s = sync_ms / 1_000 if world.chance(self.process.slow) else 0.0

    def _sync(self, world: World, sync_ms: float) -> int | LiftlogError:
        if Fiber.current is None or Fiber.current.of is None:
            world.saw("fsync with a lock")
            return super().sync()
        world.saw("fsync of the pool")
        self.process.pause(sync_ms / 2)
        outcome = super().sync()
        is_late = world.chance(LATE if isinstance(outcome, int) else FAILED_LATE)
        self.process.pause(LATER_MS if is_late else sync_ms / 2)
        return outcome
