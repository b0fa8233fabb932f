"""A broker's part in sessions: its own count, and the controller's core while it holds the controllership.

A controller that is deposed may not know it for a while: it goes on until it hears of a later term. Its commands
meanwhile go to its own log, and are never committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.metadata import controller as c
from broker.metadata.leader_reports import ReportArrived
from broker.metadata.session import Beat, Effect, Lapsed, Session
from tests.sim.metadata import place_of

if TYPE_CHECKING:
    from tests.sim.driven.node import Broker

ANSWER_MS_MAX = 3_000
"""After so long nobody knows what became of a command."""


class Office:
    """The controllership of one term, as its holder sees it."""

    def __init__(self, broker: Broker, term: int) -> None:
        self.broker = broker
        self.world = broker.world
        self.term = term
        self.core = c.Controller(began_ms=broker.now_ms, calm_ms=broker.cluster.calm_ms)
        self._unanswered: set[int] = set()

    def step(self, event: c.Event) -> None:
        for effect in self.core.step(event, self.broker.catalog, self.broker.now_ms):
            match effect:
                case c.Submit(number=number, command=command):
                    self._submit(number, command)
                case c.Renewed(broker=name, registration=registration, number=number, renewal=renewal):
                    self.broker.tell(name, "renewed", registration, number, renewal)

    def _submit(self, number: int, command: dict[str, Any]) -> None:
        self.world.saw(f"controller asks: {command['kind']}")
        self._unanswered.add(number)
        metadata, broker = self.broker.cluster.metadata, self.broker
        metadata.submit_own(
            self.term, broker.name, command, lambda *answer: broker.after(0, self._told, number, *answer)
        )
        broker.after(ANSWER_MS_MAX, self._answered, number, None)

    def _told(self, number: int, result: dict[str, Any], at: int) -> None:
        """Its result counts once this broker has applied it; `at`: so many commands."""
        if self.broker.applied < at:
            self.broker.after(20, self._told, number, result, at)
        else:
            self._answered(number, result)

    def _answered(self, number: int, result: dict[str, Any] | None) -> None:
        if number in self._unanswered and self.broker.office is self:
            self._unanswered.discard(number)
            self.step(c.SubmitAnswered(number=number, result=result))


class Sessions:
    """See the module.

    Attributes:
        session: The session of this process; None: it has not learnt of its registration yet.
        office: None: it does not take itself for the controller.
    """

    def __init__(self) -> None:
        self.session: Session | None = None
        self.office: Office | None = None
        self._known: tuple[int, str | None] = (0, None)  # the newest term that it has heard of, and who controls

    @property
    def has_session(self: Broker) -> bool:  # type: ignore[misc]
        return self.session is not None and self.session.is_open(self.now_ms)

    def forget_sessions(self) -> None:
        """The process is gone."""
        self.session = self.office = None
        self._known = (0, None)

    def tick_sessions(self: Broker) -> None:  # type: ignore[misc]
        """Time has passed: hear of terms, take or leave the controllership, send what is due."""
        metadata, office = self.cluster.metadata, self.office
        self._known = metadata.heard(self.name) or self._known
        if office is not None and office.term < self._known[0]:
            self.note("controls no more")
            self.office = None
        if self.office is None and metadata.may_control(self, self._known):
            self.note(f"controls term {self._known[0]}")
            self.office = Office(self, self._known[0])
        if self.session is not None:
            for effect in (*self.count_renewals(self.session), *self.session.tick(self.now_ms)):
                if isinstance(effect, Beat):
                    self.tell_controller("beat", effect.registration, effect.number)
                elif isinstance(effect, Lapsed):
                    self.world.saw("session lapsed at the broker")
        if self.office is not None:
            self.office.step(c.TimePassed())

    def tell_controller(self: Broker, what: str, *values: Any) -> None:  # type: ignore[misc]
        """Tell the controller of which this broker has heard last."""
        if self._known[1] is not None:
            self.tell(self._known[1], what, self.name, *values)

    def beat(self: Broker, name: str, registration: int, number: int) -> None:  # type: ignore[misc]
        """A heartbeat has come."""
        if self.office is not None:
            self.office.step(c.HeartbeatArrived(broker=name, registration=registration, number=number))

    def report(self: Broker, name: str, registration: int, stream: str, epoch: int) -> None:  # type: ignore[misc]
        """A follower cannot fetch."""
        if self.office is not None:
            wall_ms = self.wall_us // 1_000
            at = place_of(stream)
            self.office.step(
                ReportArrived(broker=name, registration=registration, at=at, leader_epoch=epoch, wall_ms=wall_ms)
            )

    def renewed(self: Broker, registration: int, number: int, renewal: int) -> None:  # type: ignore[misc]
        """The controller says that a heartbeat's renewal is committed."""
        if self.session is not None:
            self.session.renewed(registration, number, renewal, self.now_ms)
            self.count_renewals(self.session)

    def count_renewals(self: Broker, session: Session) -> list[Effect]:  # type: ignore[misc]
        """As the catalog says that this broker has applied."""
        own = self.catalog.brokers.get(self.name)
        if own is None or own.registration != session.registration:
            return []
        return session.applied(own.renewal, own.session_ms, self.now_ms)
