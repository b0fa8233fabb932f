"""This broker's session: heartbeats to the controller, and what its answers mean. Called on the Raft thread.

    tick ─► core (metadata/session.py) ─► Beat ─► note to the controller ─► renewed ─► core
    any thread ─► has_session ─► the clock

B1  Whether there is a session is read from the clock, by any thread, and waits for nothing: it ends by itself while the
    Raft thread hangs.
B2  A session belongs to one registration of this process. If the catalog shows another process under our name, or has
    shown us and does so no more (this broker was removed), this process halts.
B3  Where no controller is known, or another one is than before, a heartbeat is due at once (`session.S4`). A follower
    that cannot reach a leader is told of another controller as well: its reports to the former one are lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from broker.control.clock import boot_ms
from broker.metadata.catalog import Catalog
from broker.metadata.session import Beat, Lapsed, Opened, Session
from broker.raft.node import RaftNode

log = logging.getLogger(__name__)


class Heart:
    """See the module.

    Args:
        broker_id: This broker's. process: The name of this process in its registration.
        halt: Ends the process, and says why (B2).
        changed: Called when the session has opened or lapsed, on the Raft thread; must not wait.
        controlled: Likewise, when another controller is known than before (B3).
    """

    def __init__(
        self,
        broker_id: str,
        process: str,
        *,
        halt: Callable[[str], None],
        changed: Callable[[bool], None] = lambda is_open: None,
        controlled: Callable[[], None] = lambda: None,
        now_ms: Callable[[], int] = boot_ms,
    ) -> None:
        self._broker_id, self._process = broker_id, process
        self._halt = halt
        self._changed = changed
        self._controlled = controlled
        self._now_ms = now_ms
        self._session: Session | None = None
        self._is_over = False
        self._controller: tuple[int, str | None] = (0, None)  # of which term, and who: to whom the last tick has sent
        self._was_seen = False  # by the catalog here, which may be behind the one that has answered

    @property
    def registration(self) -> int:
        """This process's; 0: it has none yet."""
        session = self._session
        return 0 if session is None else session.registration

    def has_session(self) -> bool:
        """Whether this broker may lead, ack and answer ends of logs (`session.S3`). From any thread (B1)."""
        session = self._session
        return session is not None and not self._is_over and session.is_open(self._now_ms())

    def registered(self, registration: int, sent_ms: int) -> None:
        """The catalog has this process. `sent_ms`: when that was first asked for."""
        if self.registration != registration:
            self._session = Session(registration, sent_ms)

    def end(self) -> None:
        """There is no session any more, and no heartbeats: this broker is about to stop."""
        self._is_over = True

    def tick(self, node: RaftNode) -> None:
        """Send what is due."""
        if self._session is not None and not self._is_over:
            self._count(self._session, node.catalog)
            controller = node.term, node.controller
            if controller != self._controller:  # B3
                self._controller = controller
                self._session.hurry()
                if node.controller is not None:
                    self._controlled()
            self._do(self._session.tick(self._now_ms()), node)

    def renewed(self, note: Mapping[str, Any], catalog: Catalog) -> None:
        """The controller's answer to a heartbeat. `catalog`: as it is applied here."""
        values = note.get("registration"), note.get("number"), note.get("renewal")
        if self._session is None or not all(isinstance(value, int) for value in values):
            return
        registration, number, renewal = cast(tuple[int, int, int], values)
        self._do(self._session.renewed(registration, number, renewal, self._now_ms()), None)
        self._count(self._session, catalog)

    def _count(self, session: Session, catalog: Catalog) -> None:
        own = catalog.brokers.get(self._broker_id)
        if own is not None and own.registration == session.registration:
            self._do(session.applied(own.renewal, own.session_ms, self._now_ms()), None)

    def applied(self, catalog: Catalog) -> None:
        """The catalog has changed (B2)."""
        if self._session is None or self._is_over:
            return
        own = catalog.brokers.get(self._broker_id)
        if own is not None and own.registration == self._session.registration:
            self._was_seen = True
        if own is None and self._was_seen:
            self.end()
            log.error("session.removed broker=%s", self._broker_id)
            self._halt(f"broker {self._broker_id} was removed from the cluster")
        if own is not None and own.registration > self._session.registration and own.incarnation != self._process:
            self.end()
            log.error("session.taken broker=%s by=%s", self._broker_id, own.http)
            self._halt(f"another process has registered as broker {self._broker_id}, at {own.http}")

    def _do(self, effects: list[Beat | Opened | Lapsed], node: RaftNode | None) -> None:
        for effect in effects:
            match effect:
                case Beat() if node is not None:
                    note = {
                        "type": "beat",
                        "broker": self._broker_id,
                        "registration": effect.registration,
                        "number": effect.number,
                    }
                    if not node.note(note) and self._session is not None:  # B3
                        self._session.hurry()
                case Opened():
                    log.info("session.opened broker=%s registration=%d", self._broker_id, self.registration)
                    self._changed(True)
                case Lapsed():
                    log.warning("session.lapsed broker=%s registration=%d", self._broker_id, self.registration)
                    self._changed(False)
