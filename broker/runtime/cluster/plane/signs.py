"""Signs of life of members of consumer groups, on their way to the controller.

    a poll is served ─► heard (any thread) ─► every half second, on the Raft thread: one note for all ─► the controller

I1  A sign that nobody can have got is sent again. One that is lost on its way is not: the member polls again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from broker.raft.node import RaftNode
from broker.runtime.cluster.plane.clock import boot_ms

TELL_MS: Final = 500
AT_ONCE: Final = 500
"""So many members are in one note."""


class MemberSigns:
    """See the module."""

    def __init__(self, *, now_ms: Callable[[], int] = boot_ms) -> None:
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
        if not self._heard or now_ms < self._at_ms:
            return
        self._at_ms = now_ms + TELL_MS
        with self._lock:
            heard, self._heard = self._heard, {}
        rows = sorted(heard.items())
        for some in (rows[at : at + AT_ONCE] for at in range(0, len(rows), AT_ONCE)):
            note = {"type": "members", "members": [[*member, session] for member, session in some]}
            if not node.note(note):  # I1
                with self._lock:
                    self._heard = {**dict(some), **self._heard}
