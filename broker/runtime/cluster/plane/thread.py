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
from collections.abc import Callable
from typing import Final

from broker.api.errors import LiftlogError, NotReady, Overloaded
from broker.raft.node import RaftNode

log = logging.getLogger(__name__)

CALLS_MAX: Final = 4_096
"""Calls that may wait for the thread; another is refused."""
CALLS_AT_ONCE: Final = 64
"""Calls between two ticks: a flood of them does not keep the node from its heartbeats."""
TICK_S: Final = 0.05
Call = Callable[[RaftNode], None]


class RaftThread:
    """See the module.

    Args:
        halt: Ends the process, and says why (T3). Called on the thread.
    """

    def __init__(self, *, halt: Callable[[str], None], tick_s: float = TICK_S) -> None:
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._halt = halt
        self._tick_s = tick_s
        self._calls: collections.deque[tuple[Call, Callable[[], None]]] = collections.deque()
        self._lock = threading.Lock()  # of `_is_open`, `_calls` and the wakeup
        self._is_open = True
        self._is_stopping = False
        self._hooks: list[Call] = []
        self._node: RaftNode | None = None
        self._thread = threading.Thread(target=self._run, name="raft", daemon=True)

    def start(self, node: RaftNode) -> None:
        """Own a node, which was made with `wakeup`."""
        self._node = node
        self._thread.start()

    def each_tick(self, hook: Call) -> None:
        """Have something called before each tick, on the thread. Before `start` only."""
        self._hooks.append(hook)

    def do(self, call: Call, lost: Callable[[], None] = lambda: None) -> None:
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
    def _make(node: RaftNode, call: Call) -> None:
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
