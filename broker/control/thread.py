"""The thread that owns this broker's Raft node. Nobody else touches the node.

    other threads ── do(call) ──► bounded queue, wakeup ──► this thread: calls, hooks, tick ─┬─► sockets, journal
                                                                                             └─► on_applied

T1  The node is called by one thread only. Calls of others come through the queue, in order.
T2  A call that is taken in is made once, or `lost` is called for it: it was never made then. No call waits for room.
T3  When the node fails, the process ends (`halt`): its journal may lack what it has promised, so nothing may be
    done under its id before a start has looked at the disk.
T4  An error in a call or a hook is a bug; it is logged, and ends neither the thread nor what comes after it.
"""

from __future__ import annotations

import collections
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from broker.api.errors import LiftlogError, NotReady, Overloaded

log = logging.getLogger(__name__)

CALLS_MAX: Final = 4_096
"""Calls that may wait for the thread; another is refused."""
CALLS_AT_ONCE: Final = 64
"""Calls between two ticks: a flood of them does not keep the node from its heartbeats."""
TICK_S: Final = 0.05


class Node(Protocol):
    """What answers for the catalog: a voter or an observer of the group, or the file of a broker that is alone."""

    @property
    def node_id(self) -> str:
        """Its name in log lines."""

    @property
    def applied_index(self) -> int:
        """So many commands are in the catalog."""

    def submit(
        self, command: Mapping[str, Any], done: Callable[[Any], None], *, timeout_s: float = ..., timely: bool = ...
    ) -> None:
        """As `RaftNode.submit`."""

    def read(self, done: Callable[[Any], None], *, timeout_s: float = ...) -> None:
        """As `RaftNode.read`."""

    def change_voters(self, change: str, node_id: str, done: Callable[[Any], None]) -> None:
        """As `RaftNode.change_voters`."""

    def tick(self, wait_s: float = ...) -> None:
        """Do what is due; wait for more until somebody wakes it, or for so long."""

    def close(self) -> None:
        """End."""


N = TypeVar("N", bound=Node)


class RaftThread(Generic[N]):
    """See the module.

    Args:
        halt: Ends the process, and says why (T3). Called on the thread.
    """

    def __init__(self, *, halt: Callable[[str], None], tick_s: float = TICK_S) -> None:
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._halt = halt
        self._tick_s = tick_s
        self._calls: collections.deque[tuple[Callable[[N], None], Callable[[], None]]] = collections.deque()
        self._lock = threading.Lock()  # of `_is_open`, `_calls` and the wakeup
        self._is_open = True
        self._is_stopping = False
        self._hooks: list[Callable[[N], None]] = []
        self._node: N | None = None
        self._thread = threading.Thread(target=self._run, name="raft", daemon=True)

    def start(self, node: N) -> None:
        """Own a node, which was made with `wakeup`."""
        self._node = node
        self._thread.start()

    def each_tick(self, hook: Callable[[N], None]) -> None:
        """Have something called before each tick, on the thread. Before `start` only."""
        self._hooks.append(hook)

    def do(self, call: Callable[[N], None], lost: Callable[[], None] = lambda: None) -> None:
        """Have the thread make a call soon; it may not wait for anything. Never waits itself.

        Args:
            lost: Called instead, once, when the thread ends before (T2).
        Raises:
            Overloaded: too many wait already. NotReady: the thread has ended. Nothing was done.
        """
        with self._lock:
            if not self._is_open:
                raise NotReady("this broker takes no part in the catalog any more", sent=False)
            if len(self._calls) >= CALLS_MAX:
                raise Overloaded(f"{CALLS_MAX} commands wait for the catalog already", limit=CALLS_MAX, sent=False)
            self._calls.append((call, lost))
            os.eventfd_write(self.wakeup, 1)

    def wake(self) -> None:
        """Have the hooks called soon. From the thread itself, which has something to do that must not be done now."""
        os.eventfd_write(self.wakeup, 1)

    def is_current(self) -> bool:
        """Whether the caller is the thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """End the thread, and close the node. Calls that wait are lost."""
        with self._lock:
            self._is_stopping = True
            if self._is_open:
                os.eventfd_write(self.wakeup, 1)
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._end()

    def _run(self) -> None:
        assert self._node is not None, "started with one"
        node = self._node
        try:
            while not self._is_stopping:
                for _ in range(min(len(self._calls), CALLS_AT_ONCE)):
                    self._make(node, self._calls.popleft()[0])
                for hook in self._hooks:
                    self._make(node, hook)
                node.tick(0.0 if self._calls else self._tick_s)
        except Exception as error:
            log.error("raft.failed id=%s error=%s", node.node_id, error, exc_info=not isinstance(error, LiftlogError))
            self._end()
            self._halt(f"the Raft node failed: {error}")
        else:
            self._end()

    @staticmethod
    def _make(node: N, call: Callable[[N], None]) -> None:
        try:
            call(node)
        except Exception:  # T4
            log.exception("raft.call_bug call=%s", call)

    def _end(self) -> None:
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            calls, self._calls = self._calls, collections.deque()
        if self._node is not None:
            self._node.close()
        os.close(self.wakeup)
        for _, lost in calls:
            lost()
