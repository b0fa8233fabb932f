"""Acks as values: a ticket is made with an append, lies in the core until it is known what became of that, and is told.

    append_now ──Ticket──► core ──Answer──► effects.py ──► told at once ──────────────────┬─► Ticket.tell
                                                      └──► held, as there is no session ──┘

P8  Without a session nothing is appended, and nobody is told that something is stored (`metadata.session.S3`). He is
    told once there is a session again, if this broker leads in the same epoch still; else that another one does. Errors
    are told at once, and so is what a broker counts for itself (`Acks.OWN`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.api.errors import NotLeader, UnknownStream
from broker.node.partitions.replica import Replica
from broker.node.partitions.stopping import Stopping
from broker.node.partitions.sync import Outcome
from broker.replication.events import Acks
from broker.replication.leader import LEADING, Leader
from broker.storage.log import AppendResult

log = logging.getLogger(__name__)

OnDurable = Callable[[AppendResult, Outcome], None]
"""Is told once what was appended, and the high watermark or the error."""


OWN: Final = Acks.OWN


@dataclass(slots=True, eq=False)
class Ticket:
    """Somebody who waits for the fate of an append. Nobody changes one.

    Attributes:
        tell: Where the answer goes.
        result: What was appended for him, or found in the log.
        epoch: The leader epoch in which that was.
        acks: The moment that he waits for.
        is_sorted: A stop waits until he is told (`stopping.py`).
    """

    tell: OnDurable
    result: AppendResult
    epoch: int
    acks: Acks
    is_sorted: bool = False


class Completions:
    """Tells the tickets of a partition. Thread-safe.

    Args:
        has_session: Whether this broker has one now, by its own count.

    Attributes:
        served_epoch: The last leadership in which clients may be answered (`acceptance.P11`).
        least_epoch: In no earlier leadership is a client answered any more (`partition.P12`).
        stopping: Counts those who are sorted, until they are told.
    """

    __slots__ = ("_core", "_held", "_lock", "_replica", "has_session", "least_epoch", "served_epoch", "stopping")

    def __init__(self, core: Leader, replica: Replica, has_session: Callable[[], bool]) -> None:
        self.has_session = has_session
        self.served_epoch = self.least_epoch = -1
        self.stopping = Stopping()
        self._core = core
        self._replica = replica
        self._held: list[tuple[Ticket, int]] = []  # with the high watermark: they are stored
        self._lock = threading.Lock()

    def may_answer(self) -> bool:
        """Whether clients may be told now what this broker knows as the leader."""
        return self.served_epoch == self._core.epoch >= self.least_epoch and self.has_session()

    def tell(self, ticket: Ticket, outcome: Outcome) -> None:
        """Tell this one, or hold him until he may be told (P8)."""
        if isinstance(outcome, int) and ticket.acks is not OWN and not self.may_answer():
            with self._lock:
                self._held.append((ticket, outcome))
            if (
                self._core.role is not LEADING
            ):  # it ended since this was decided, and who ended it may have looked already
                self.release()
            return
        try:
            ticket.tell(ticket.result, outcome)
        finally:
            if ticket.is_sorted:
                self.stopping.ended()

    def release(self) -> None:
        """Tell who was held, in order, if he may be told by now: asked for each, as the session may end meanwhile."""
        if not self._held:
            return
        with self._lock:
            held, self._held = self._held, []
        for ticket, high_watermark in held:
            try:
                self.tell(ticket, self._why_not(ticket) or high_watermark)
            except Exception:
                log.exception("partition.callback_bug partition=%s", self._replica)

    def _why_not(self, ticket: Ticket) -> UnknownStream | NotLeader | None:
        if self._replica.removed:
            return gone(self._replica)
        if self._core.role is LEADING and self._core.epoch == ticket.epoch:
            return None
        reason = "was stored under a leadership that is over; it is not known whether the records are kept"
        return NotLeader(f"{self._replica}: {reason}")


def gone(replica: Replica) -> UnknownStream:
    """The error of who wants something of a deleted stream."""
    return UnknownStream(
        f"stream {replica.stream!r} was deleted (incarnation {replica.incarnation})",
        stream=replica.stream,
        incarnation=replica.incarnation,
    )
