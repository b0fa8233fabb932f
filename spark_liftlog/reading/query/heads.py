"""The ends of what can be read, for many questions: one long poll in the background, answers from memory.

Spark asks for the latest offset up to a hundred times a second while a query is idle. The thread here waits
at the broker, which answers when a high watermark, a log start or the set of streams has changed; in
between, asking costs neither side anything. The thread belongs to the process that runs the source
of one query, and is started by the second question.

    asked again, nothing new    a long poll is open: `current` answers from memory
    new, asked meanwhile        the next long poll, at once
    new, not asked meanwhile    parked: the next question has the thread ask, and waits for the answer

V1  `current` waits for the first answer only, and at a parked watch for `WAKE_S` at most. Later it returns the newest
    one there is, also while no broker answers: nothing new can be read then, and nothing that was said becomes untrue.
V2  A view may be a few milliseconds old, or `QUICK_S` if the broker has answered early. A caller that must be certain
    asks `fresh`.
V3  The thread never ends by an error of the network or of an answer; it goes on asking, slower.
V4  If nobody asks, nobody polls: between two questions there are two calls at most, however much changes.
V5  A view that is told again is the same object.
V6  `after` returns as soon as there is another view, and when the watch is closed.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from broker.client.http.interrupt import Interrupt
from spark_liftlog.reading.advance import Heads
from spark_liftlog.reading.cluster import Cluster
from spark_liftlog.reading.selection import Selection

MAX_WAIT_MS: Final = 25_000
PAUSE_S_MAX: Final = 2.0
QUICK_S: Final = 0.1
"""An unchanged answer that comes sooner is followed by a pause: a broker that is about to stop does not wait."""
WAKE_S: Final = 1.0
RECENT_S: Final = 1.0

log = logging.getLogger("spark_liftlog")


class HeadWatch:
    """The newest heads of some streams.

    Args:
        cluster: The brokers to ask.
        selection: The streams; one that does not exist is simply not in the answer.
    """

    def __init__(self, cluster: Cluster, selection: Selection) -> None:
        self._cluster = cluster
        self._selection = selection
        self._streams = selection.watched
        self._changed = threading.Condition()
        self._heads: Heads | None = None
        self._told_s = 0.0
        self._tries = 0
        self._is_asked = False  # since the thread's last call began
        self._is_parked = True
        self._thread: threading.Thread | None = None
        self._interrupt = Interrupt()

    def current(self) -> Heads:
        """The newest view (V1).

        Raises:
            Retryable: no broker has ever answered; Unavailable in general.
        """
        with self._changed:
            if self._heads is not None:
                self._is_asked = True
                if self._is_parked:
                    self._wake()
                return self._heads
        return self.fresh()

    def recent(self) -> Heads:
        """A view that is no older than the last `current`, or than `RECENT_S`. Raises as `current`."""
        with self._changed:
            if self._heads is not None and (not self._is_parked or time.monotonic() - self._told_s < RECENT_S):
                return self._heads
        return self.current()

    def after(self, heads: Heads, wait_s: float) -> Heads:
        """The view that follows `heads`, which `current` has told; `heads` if there is none in time (V6)."""
        with self._changed:
            self._changed.wait_for(lambda: self._heads is not heads or self._interrupt.is_set, wait_s)
            return self._heads or heads

    def fresh(self) -> Heads:
        """The heads as a broker tells them now; retried until its deadline. Raises Retryable."""
        _, found = self._cluster.heads_now(self._streams)
        with self._changed:
            self._told(found)
            assert self._heads is not None, "just told"
            return self._heads

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._interrupt.set()
        with self._changed:
            self._changed.notify_all()

    def _wake(self) -> None:
        """Have the thread ask, and wait for what it hears; it may hear nothing in time (V1)."""
        if self._interrupt.is_set:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="liftlog-watch", daemon=True)
            self._thread.start()
        tries = self._tries
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._tries > tries, WAKE_S)

    def _told(self, found: Heads) -> bool:
        """Keep what was told; whether it is new (V5)."""
        heads = self._selection.of(found)
        is_new = heads != self._heads
        if is_new:
            self._heads = heads
        self._told_s = time.monotonic()
        return is_new

    def _run(self) -> None:
        version: int | None = None
        failures = 0
        while True:
            with self._changed:
                if not self._is_asked:
                    self._is_parked = True
                    self._changed.wait_for(lambda: self._is_asked or self._interrupt.is_set)
                    version = None
                if self._interrupt.is_set:
                    return
                self._is_parked = self._is_asked = False
            since, asked_at = version, time.monotonic()
            try:
                version, found = self._cluster.watch(
                    self._streams, since=since, max_wait_ms=MAX_WAIT_MS, interrupt=self._interrupt
                )
            except Exception as error:  # the top of a thread that nobody would start again (V3)
                if self._interrupt.is_set:
                    return
                failures += 1
                if failures == 1:
                    log.warning("watch.failed failures=%d error=%s", failures, error)
                version = None  # another broker may count otherwise
                with self._changed:
                    self._tries += 1
                    self._changed.notify_all()
                self._interrupt.pause(min(0.05 * 2 ** min(failures, 10), PAUSE_S_MAX))
                continue
            if failures:
                log.warning("watch.restored failures=%d", failures)
                failures = 0
            with self._changed:
                is_new = self._told(found)
                if since is None and not is_new:
                    self._is_asked = True  # who asked has heard nothing new, and will ask again
                self._tries += 1
                self._changed.notify_all()
            if since is not None and not is_new and time.monotonic() - asked_at < QUICK_S:
                self._interrupt.pause(QUICK_S)
