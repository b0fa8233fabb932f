"""What there is to read, always at hand: one long poll in the background, answers from memory.

Spark asks for the latest offset a hundred times a second while a query is idle. The thread here waits
at the broker, which answers when a high watermark, a log start or the set of streams has changed; in
between, asking costs neither side anything. The thread belongs to the process that runs the source
of one query, and is started by the first question.

V1  `current` waits for the first answer only. Later it returns the newest one there is, also while
    no broker answers: nothing new can be read then, and nothing that was said becomes untrue.
V2  A view may be a few milliseconds old. Whoever must be certain asks `fresh`.
V3  The thread never ends by an error of the network or of an answer; it goes on asking, slower.
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

log = logging.getLogger("spark_liftlog")


class HeadWatch:
    """The newest heads of some streams.

    Args:
        cluster: Whom to ask.
        selection: Which; a stream that does not exist is simply not in the answer.
    """

    def __init__(self, cluster: Cluster, selection: Selection) -> None:
        self._cluster = cluster
        self._selection = selection
        self._streams = selection.watched
        self._changed = threading.Condition()
        self._heads: Heads | None = None
        self._thread: threading.Thread | None = None
        self._interrupt = Interrupt()

    def current(self) -> Heads:
        """The newest view (V1).

        Raises:
            Retryable: no broker has ever answered; Unavailable in general.
        """
        with self._changed:
            if self._heads is not None:
                return self._heads
        return self.fresh()

    def fresh(self) -> Heads:
        """What a broker says now; retried until its deadline. Raises Retryable."""
        version, found = self._cluster.heads_now(self._streams)
        heads = self._selection.of(found)
        with self._changed:
            self._heads = heads
            if self._thread is None and not self._interrupt.is_set:
                self._thread = threading.Thread(target=self._run, args=(version,), name="liftlog-watch", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return heads

    def wait(self, before: Heads, timeout_s: float) -> None:
        """Return when the view is another than `before`, or time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._heads is not before, timeout_s)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._interrupt.set()

    def _run(self, version: int | None) -> None:
        failures = 0
        while not self._interrupt.is_set:
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
                version = None  # whoever answers next may count from anywhere
                self._interrupt.pause(min(0.05 * 2 ** min(failures, 10), PAUSE_S_MAX))
                continue
            if failures:
                log.warning("watch.restored failures=%d", failures)
                failures = 0
            heads = self._selection.of(found)
            with self._changed:
                self._heads = heads
                self._changed.notify_all()
            if version == since and time.monotonic() - asked_at < QUICK_S:
                self._interrupt.pause(QUICK_S)
