"""Says once that a client waits for its brokers, and once that they answer again.

    failed ──► "retrying for 30 s: 127.0.0.1:9293: Connection refused"   once per outage
    answered ──► "answered again after 4.2 s"                            if the outage was told

O1  Outages that follow each other quickly (a full queue, a flapping connection) are told once in `INTERVAL_S`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from broker.api.errors import LiftlogError
from broker.client.http.forks import renew_after_fork

INTERVAL_S: Final = 5.0

log = logging.getLogger(__name__)

Say = Callable[[str], object]
"""Takes a line of text for the person who waits."""


class Outages:
    """The messages while calls of one client fail. Thread-safe and fork-safe.

    Args:
        say: Is called with each message. None: the log gets it.
    """

    def __init__(self, say: Say | None = None) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._since_s: float | None = None  # of the first failure that nobody has been answered after
        self._is_told = False
        self._told_s = -INTERVAL_S
        renew_after_fork(self)

    def failed(self, error: LiftlogError, deadline_s: float) -> None:
        """A try failed, and others follow for `deadline_s` at most."""
        now_s = time.monotonic()
        with self._lock:
            if self._since_s is None:
                self._since_s = now_s
            if self._is_told or now_s - self._told_s < INTERVAL_S:
                return
            self._is_told, self._told_s = True, now_s
        if self._say is None:
            log.warning("client.retrying deadline_s=%g error=%s", deadline_s, error)
        else:
            with contextlib.suppress(Exception):  # who cannot be told must not end the call
                self._say(f"retrying for {deadline_s:g} s: {error}")

    def answered(self) -> None:
        """A call succeeded."""
        if self._since_s is None:
            return
        with self._lock:
            since_s, self._since_s = self._since_s, None
            is_told, self._is_told = self._is_told, False
        if since_s is None or not is_told:
            return
        after_s = time.monotonic() - since_s
        if self._say is None:
            log.info("client.answered_again after_s=%.1f", after_s)
        else:
            with contextlib.suppress(Exception):
                self._say(f"answered again after {after_s:.1f} s")

    def after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread may have held it
