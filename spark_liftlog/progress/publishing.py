"""Publishing how far a query is: best effort, in the background, never ahead of what is done.

    Spark                     this process                      broker
    latestOffset(start) ────► learned(start) ──► thread ──────► __offsets[consumer]

Spark hands the end of a batch to `latestOffset` as its start only when that batch is done, so a start
is progress; the end of a batch that is planned is not. `commit(end)` says the same one batch later.

G1  Only what was learned so is published, also at the end: `close` flushes, it does not guess. Before that a new query
    publishes where it `begins`, or its lag would be unknown while its first batch runs. That is no progress: its text
    begins with `BEGINS`, and no query with another checkpoint takes it for one.
G2  Nothing here raises into the query. Only two wait for the network, shortly: `close`, and the last trigger of an
    AvailableNow query (its process may end before its thread has published).
G3  A position that was published is not published again; of several that wait only the newest counts.
G4  A position that brokers refuse refuses no other. Once that is believed (asking_again.py) it is left out of what is
    published later, and logged once: a stream that is gone must not cost a call for each partition, every second. A
    position that has moved, or counts in another incarnation, is another one.
G5  Between two publications lies `PACE_S`, unless somebody waits (`flush`, `close`). A broker answers a commit after an
    fsync, and small micro-batches, several a second, would each have one in their middle (decision record 79).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Final

from broker.api.errors import InvalidRequest, Retryable, StaleIncarnation, UnknownStream
from spark_liftlog.reading.cluster import Cluster
from spark_liftlog.reading.offsets import Key, Offset, ReadPosition

PACE_S: Final = 1.0
PAUSE_S_MAX: Final = 5.0
FLUSH_S: Final = 2.0
BEGINS: Final = "begins here"
"""Kept with a position that was published before anything was processed (G1)."""

log = logging.getLogger("spark_liftlog")


class Progress:
    """Publishes the newest position of one query.

    Args:
        cluster: Where to.
        note: A text that is kept with each position.
        pace_s: The least time between two publications (G5).
    """

    def __init__(self, cluster: Cluster, *, note: str = "", pace_s: float = PACE_S) -> None:
        self._cluster = cluster
        self._note = note
        self._pace_s = pace_s
        self._changed = threading.Condition()
        self._newest: Offset | None = None
        self._published: Offset | None = None
        self._refused: dict[Key, tuple[str, ReadPosition]] = {}  # G4: in which incarnation, and what
        self._begin: Offset | None = None  # G1
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()
        self._is_closing = False
        self._is_awaited = False

    def begins(self, at: Offset) -> None:
        """A new query begins there; published until something is learned (G1)."""
        self._begin = at
        self.learned(at)

    def learned(self, done: Offset) -> None:
        """Every record before `done` has been processed; publish that, some time soon."""
        with self._changed:
            if self._is_closing:
                return
            if self._newest is not None and self._newest is not self._begin and _same(self._newest, done):
                return
            self._newest = done
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="liftlog-progress", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Wait until what was learned is published, or given up, for `timeout_s` at most."""
        with self._changed:
            self._is_awaited = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._newest is self._published, timeout_s)
            self._is_awaited = False

    def close(self, timeout_s: float = FLUSH_S) -> None:
        """Publish what waits, for `timeout_s` at most, and end the thread. Idempotent."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        self._is_closed.set()

    def _run(self) -> None:
        failures, due_s = 0, 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not self._published or self._is_closing)
                self._changed.wait_for(lambda: self._is_awaited or self._is_closing, max(0.0, due_s - time.monotonic()))
                wanted = self._newest
                if wanted is None or wanted is self._published:
                    return  # closing, and nothing waits
            positions = {
                key: at
                for key, at in wanted.positions.items()
                if self._refused.get(key) != (wanted.incarnations[key[0]], at)
            }
            try:
                if positions:
                    self._cluster.commit(wanted.consumer, positions, wanted.incarnations, self._text(wanted))
                if failures:
                    log.warning("progress.restored consumer=%s failures=%d", wanted.consumer, failures)
                failures = 0
            except InvalidRequest:
                if not self._publish_apart(wanted, positions):
                    self._pause(1)
                    continue
            except Exception as error:  # the top of a thread (G2)
                failures += 1
                if failures == 1:
                    log.warning("progress.failed consumer=%s error=%s", wanted.consumer, error)
                if self._is_closed.is_set():
                    return
                if isinstance(error, Retryable):
                    self._pause(failures)
                    continue
            due_s = time.monotonic() + self._pace_s
            with self._changed:
                self._published = wanted
                self._changed.notify_all()

    def _publish_apart(self, wanted: Offset, positions: Mapping[Key, ReadPosition]) -> bool:
        """Stream by stream, and leave out from now on what is refused (G4). Whether that was all there is to do."""
        streams: dict[str, dict[Key, ReadPosition]] = {}
        for key, at in sorted(positions.items()):
            streams.setdefault(key[0], {})[key] = at
        refused = [each for some in streams.values() for each in self._refusals(wanted, some)]
        asking = self._cluster.asking_again()
        while refused and not self._is_closing and asking.again():
            refused = [each for some, _ in refused for each in self._refusals(wanted, some)]
        for some, error in refused:
            stream = next(iter(some))[0]
            log.warning(
                "progress.failed consumer=%s stream=%s partitions=%d error=%s",
                wanted.consumer,
                stream,
                len(some),
                error,
            )
            if isinstance(error, InvalidRequest):
                self._refused |= {key: (wanted.incarnations[stream], at) for key, at in some.items()}
        return not any(isinstance(error, Retryable) for _, error in refused)

    def _refusals(
        self, wanted: Offset, some: Mapping[Key, ReadPosition]
    ) -> list[tuple[Mapping[Key, ReadPosition], Exception]]:
        """Publish positions of one stream. Those that were not taken, and why."""
        if self._is_closed.is_set():
            return []
        try:
            self._cluster.commit(wanted.consumer, some, wanted.incarnations, self._text(wanted))
        except Exception as error:  # best effort, as above
            is_of_all = not isinstance(error, InvalidRequest) or isinstance(error, UnknownStream | StaleIncarnation)
            if is_of_all or len(some) == 1:
                return [(some, error)]
            return [each for key, at in some.items() for each in self._refusals(wanted, {key: at})]
        return []

    def _text(self, wanted: Offset) -> str:
        return f"{BEGINS} {self._note}".rstrip() if wanted is self._begin else self._note

    def _pause(self, failures: int) -> None:
        with self._changed:
            seconds = min(0.1 * 2 ** min(failures, 10), PAUSE_S_MAX)
            self._changed.wait(0.2 if self._is_closing else seconds)


def _same(a: Offset, b: Offset) -> bool:
    return (a.consumer, a.incarnations, a.positions) == (b.consumer, b.incarnations, b.positions)
