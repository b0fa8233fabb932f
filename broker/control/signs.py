"""Signs of life of members of consumer groups, on their way to the controller, and to whoever will be it.

    a poll is served ─► heard (any thread) ─► every half second, on the Raft thread: one note for all ─► every broker

I1  A sign that no controller can have got is sent again. One that is lost on its way is not: the member polls again.
I2  Where there are members, a broker with a session says so every time, also if it has heard nobody: silence of those
    counts by that (`member_watch.L1`). One without a session says nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from broker.control.clock import boot_ms
from broker.raft.node import RaftNode

TELL_MS: Final = 500
AT_ONCE: Final = 500
"""So many members are in one note."""


class MemberSigns:
    """See the module. `broker_id`: this broker's. `has_session`: whether it may answer polls."""

    def __init__(self, broker_id: str, *, has_session: Callable[[], bool], now_ms: Callable[[], int] = boot_ms) -> None:
        self._broker_id, self._has_session = broker_id, has_session
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._heard: dict[tuple[str, str], int] = {}
        self._at_ms = 0

    def heard(self, group: str, member: str, session: int) -> None:
        """A member has polled here."""
        with self._lock:
            self._heard[group, member] = session

    def tick(self, node: RaftNode) -> None:
        """Send what is due."""
        now_ms = self._now_ms()
        is_of_use = self._heard or node.catalog.groups.member_count
        if now_ms < self._at_ms or not is_of_use or not self._has_session():
            return
        self._at_ms = now_ms + TELL_MS
        with self._lock:
            heard, self._heard = self._heard, {}
        rows = sorted(heard.items())
        for some in [rows[at : at + AT_ONCE] for at in range(0, len(rows), AT_ONCE)] or [[]]:
            told = [[*member, session] for member, session in some]
            if not node.tell({"type": "members", "broker": self._broker_id, "members": told}):  # I1
                with self._lock:
                    self._heard = {**dict(some), **self._heard}
