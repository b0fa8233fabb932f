"""The stream `__activity`, where it is led: events that wait in the catalog are appended, then forgotten there.

    catalog changes ─► events wait ─► append ─► committed on all in sync ─► forget_activity
                            ▲           │ not led here, too few in sync, …
                            └─ again ◄──┘

W1  Events are appended in the order of their ids. One may stand there twice, under one id, if its append or its
    forgetting was in doubt: whoever reads passes over ids that are not above the last one he took.
W2  Who leads the stream writes it; the others look again when the catalog changes, or after `AGAIN_S`.
W3  There is a thread for it once there is the stream.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as NotDone
from typing import Any, Final

from broker.api.errors import Retryable, Unavailable
from broker.api.schema import rows_of
from broker.api.stream import ACTIVITY_STREAM
from broker.common.elapsed import wall_us
from broker.metadata.activity import Event
from broker.metadata.catalog import COMMAND_VERSION, Catalog
from broker.node.partitions.partition import Partition
from broker.storage.rows import RowBatch

log = logging.getLogger(__name__)

AT_ONCE: Final = 500
APPEND_S: Final = 10.0
AGAIN_S: Final = 1.0
END_S: Final = 2.0
"""So long the end of a broker waits for what is being written."""


class ActivityLog:
    """See the module. Thread-safe.

    Args:
        catalog: As it is applied here.
        find: The stream's partition, if it is led and served here. Raises as `Backend.partition`.
        execute: Carries out a command of the catalog. Waits.
    """

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        find: Callable[[str, int], Partition],
        execute: Callable[[Mapping[str, Any]], Any],
        *,
        wall_us: Callable[[], int] = wall_us,
    ) -> None:
        self._catalog, self._find, self._execute, self._wall_us = catalog, find, execute, wall_us
        self._news = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_ending = False
        self._written = self._lost = 0

    def look(self) -> None:
        """After each change of the catalog. Does not wait."""
        if ACTIVITY_STREAM in self._catalog().streams:
            with self._lock:
                if self._thread is None and not self._is_ending:
                    self._thread = threading.Thread(target=self._run, name="activity", daemon=True)
                    self._thread.start()
            self._news.set()

    def stop(self) -> None:
        """Write no more."""
        with self._lock:
            self._is_ending = True
            thread = self._thread
        self._news.set()
        if thread is not None:
            thread.join(END_S)

    def _run(self) -> None:
        shown = ""
        while not self._is_ending:
            self._news.clear()
            try:
                waits = self.write()
            except Retryable as error:  # W2
                log.debug("activity.waits error=%s", error)
                waits = True
            except Exception as error:
                if not self._is_ending and repr(error) != shown:  # once, not at each of the tries
                    shown = repr(error)
                    log.warning("activity.not_written error=%r", error)
                waits = True
            self._news.wait(AGAIN_S if waits else None)

    def write(self) -> bool:
        """Write what waits, some at a time; whether there is more. Raises LiftlogError: it is not known to be there."""
        activity = self._catalog().activity
        if activity.lost > self._lost:
            self._lost = activity.lost
            log.error("activity.lost count=%d", activity.lost)
        if not activity.pending:
            return False
        partition = self._find(ACTIVITY_STREAM, 0)
        new = [each for each in activity.pending if each["id"] > self._written][:AT_ONCE]
        if new:
            entries = [(key_of(each), value_of(each)) for each in new]
            rows = rows_of(entries, subject=ACTIVITY_STREAM, timestamp_us=self._wall_us())
            try:
                partition.append([RowBatch(rows)]).result(APPEND_S)
            except NotDone:
                raise Unavailable("the append of the activity is not done", sent=True) from None
            self._written = int(new[-1]["id"])
        self._execute({"v": COMMAND_VERSION, "kind": "forget_activity", "through": self._written})
        return bool(self._catalog().activity.pending)


def key_of(event: Event) -> bytes:
    """Of its record: the stream, or the group."""
    return str(event.get("name") or event.get("group")).encode()


def value_of(event: Event) -> bytes:
    """Of its record: JSON, with the numbers of the partitions."""
    said = dict(event)
    if "partitions" in said:
        said["partitions"] = [*range(said["partitions"])]
    return json.dumps(said, separators=(",", ":")).encode()
