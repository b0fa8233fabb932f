"""The streams that a task writes to, as they are when it begins.

F1  Tasks of one job, or of one micro-batch, that one process runs within `KNOWN_S` look at a stream once: to ask costs
    a short task as much as to write. Another job asks anew, since a stream may have been made anew in between.
F2  What did not hold is asked anew: a task that fails, or that misses a partition, believes nothing older than itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from broker.api.answers import StreamDescription
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls, path, understand
from broker.client.writing.outgoing import default_subject
from spark_liftlog.writing.rows import Target

KNOWN_S: Final = 5.0
"""Partitions that are added to a stream are used after so long, as by a task that has begun before."""

Known = tuple[str, str, str]
"""Brokers, job, stream."""

_known: dict[Known, tuple[float, Target]] = {}
_lock = threading.Lock()


class Targets:
    """What one task knows of its streams.

    Args:
        job: Names the job or micro-batch; empty: it is not known which one this is.
        again: Whether to ask once more for what a broker does not have.
    """

    def __init__(self, calls: Calls, job: str, again: Callable[[], bool]) -> None:
        self._calls = calls
        self._job = job
        self._again = again
        self._asked: set[str] = set()
        self._old: set[str] = set()  # streams that are known from another task

    def find(self, stream: str) -> Target:
        """The stream as tasks of this job have seen it lately, or as it is now; the second time: as it is now (F1, F2).

        Raises:
            UnknownStream: there is no such stream.
        """
        key, now_s = (str(self._calls.brokers), self._job, stream), time.monotonic()
        if self._job and stream not in self._asked:
            self._asked.add(stream)
            with _lock:
                seen = _known.get(key)
            if seen is not None and now_s - seen[0] < KNOWN_S:
                self._old.add(stream)
                return seen[1]
        target = find(self._calls, stream)
        if self._job:
            with _lock:
                for old in [old for old, (seen_s, _) in _known.items() if now_s - seen_s >= KNOWN_S]:
                    del _known[old]
                _known[key] = now_s, target
        return target

    def again(self, stream: str) -> bool:
        """Whether to find this stream once more, as it lacks something (F2)."""
        if stream in self._old:
            self._old.remove(stream)
            return True
        return self._again()


def forget(brokers: Brokers, job: str) -> None:
    """A task of this job has failed (F2)."""
    with _lock:
        for old in [old for old in _known if old[:2] == (str(brokers), job)]:
            del _known[old]


def find(calls: Calls, stream: str) -> Target:
    """The stream as it is now.

    Raises:
        UnknownStream: there is no such stream.
    """
    answer: Any = calls.json("GET", path("streams", stream))
    found = understand(StreamDescription, answer, where=str(calls.brokers))
    for each in found.partitions:
        if each.leader is not None:
            calls.brokers.note_leader((stream, each.partition), each.leader.http)
    return Target(
        stream=stream,
        partition_count=found.partition_count,
        incarnation=found.incarnation,
        record_bytes_max=int(found.settings["record_bytes_max"]),
        subject=default_subject(found),
    )
