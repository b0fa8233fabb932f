"""How many logs keep their file open: those that were appended to last, up to a limit.

    appended ──► [ newest ... oldest ] ──► over the limit: the oldest gives its file back, in the fsync pool

A log opens its file when it is appended to, and the cleaner closes it once it is quiet; this bounds what is open in
between, however many partitions trickle. Only a log that is wholly durable gives its file back (`PartitionLog.idle`): a
descriptor that is closed while pages are dirty would take the error of a failed write with it. So for as long as
an fsync takes there may be more. One that cannot give its file back, as it has failed or is synced now and then, does
not keep the next ones from it.
"""

from __future__ import annotations

import logging
import resource
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

from broker.api.errors import LiftlogError
from broker.node.partitions.sync import SyncPool

log = logging.getLogger(__name__)

BESIDE: Final = 512
"""Descriptors for sockets, readers, small files and libraries."""
LEAST: Final = 16
ASKED_MAX: Final = 8
"""So many logs are asked at once. If none of them can give its file back, others are asked the next time."""
CONNECTIONS_SHARE: Final = 4
"""One in so many files may be an HTTP connection: one that reads has files open besides."""
RAISED_TO: Final = 1 << 20


class Restable(Protocol):
    """A partition's log."""

    def idle(self) -> bool:
        """Close its file if all is durable; returns whether none is open."""


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one. Returns the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = RAISED_TO if hard == resource.RLIM_INFINITY else min(hard, RAISED_TO)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return RAISED_TO if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("broker.open_files_limit soft=%d error=%s", soft, error)
        return soft
    return wanted


def files_within(wanted: int, limit: int) -> int:
    """How many logs may be open where the process may have `limit` files; says so if that is less than wanted."""
    found = min(wanted, max(LEAST, limit - BESIDE))
    if found < wanted:
        log.warning("broker.open_files_limit limit=%d open_files_max=%d used=%d", limit, wanted, found)
    return found


def connections_within(wanted: int, limit: int) -> int:
    """How many HTTP connections the process takes that may have `limit` files; says so if it is fewer than wanted."""
    found = min(wanted, max(LEAST, limit // CONNECTIONS_SHARE))
    if found < wanted:
        log.warning("broker.open_files_limit limit=%d connections_max=%d used=%d", limit, wanted, found)
    return found


class OpenLogs:
    """The order of the last appends. Thread-safe.

    Args:
        limit: So many may be open.
        pool: Closes what is over it.
    """

    def __init__(self, limit: int, pool: SyncPool) -> None:
        self.limit = limit
        self._pool = pool
        self._lock = threading.Lock()
        self._order: OrderedDict[Restable, None] = OrderedDict()
        self._newest: Restable | None = None  # the last in that order, where nothing was taken out since

    def __len__(self) -> int:
        return len(self._order)

    def touch(self, log: Restable) -> None:
        """It was just appended to."""
        if log is self._newest:
            return
        oldest = None
        with self._lock:
            self._order[log] = None
            self._order.move_to_end(log)
            self._newest = log
            if len(self._order) > self.limit:
                oldest, _ = self._order.popitem(last=False)
        if oldest is not None:
            self._pool.submit(_Rest(self, oldest))

    def forget(self, log: Restable) -> None:
        """It is closed for good, or gave its file back by itself."""
        with self._lock:
            self._order.pop(log, None)
            self._newest = None

    def next_over(self, count: int) -> Restable | None:
        """The next one to be asked, taken out, if with `count` that were taken out there are too many; else None."""
        with self._lock:
            if len(self._order) + count <= self.limit or not self._order:
                return None
            self._newest = None
            return self._order.popitem(last=False)[0]

    def put_off(self, logs: Sequence[Restable], *, others_first: bool) -> None:
        """They could not give their file back yet: they are the first to be asked next time, or the last."""
        with self._lock:
            self._newest = None
            for log in logs if others_first else reversed(logs):
                if log not in self._order:
                    self._order[log] = None
                    self._order.move_to_end(log, last=others_first)


class _Rest:
    """One log that is to give its file back, in the queue of the fsync pool: behind its own fsync."""

    def __init__(self, open_logs: OpenLogs, log: Restable) -> None:
        self._open_logs = open_logs
        self._log = log

    def run_sync(self) -> bool:
        blocked: list[Restable] = []
        log = self._log
        for asked in range(1, ASKED_MAX + 1):
            if not _gives_back(log):
                blocked.append(log)
            following = self._open_logs.next_over(len(blocked)) if asked < ASKED_MAX else None
            if following is None:
                break
            log = following
        self._open_logs.put_off(blocked, others_first=len(blocked) == ASKED_MAX)
        return False


def _gives_back(rested: Restable) -> bool:
    try:
        return rested.idle()
    except LiftlogError as error:
        log.warning("partition.rest_failed log=%s error=%s", rested, error)
        return False
