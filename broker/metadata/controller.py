"""The acts of the controller, the broker that leads the Raft group. Sans-I/O: events in, commands to submit out.

    heartbeats  ─► one renewal for all of them ─► each is told that it is committed
    silence     ─► fail_broker                       reports of followers ─► report_leader
    silence of members of consumer groups ─► end_members
    the catalog ─► first elections at their deadline, preferred leaders, replicas for internal streams, feature levels

It reads the catalog, and asks for what is missing there: again and again, until the catalog shows it. So an answer that
is lost, or a controller that is, costs a repetition and nothing else. The catalog decides.

Invariants
H1  A broker is failed after a whole session in which this controller ran and heard nothing of it. It is as long as the
    renewal says that the command names (`session.S5`). It begins when this controller does, when the broker registers
    or comes back, and with each heartbeat. Time in which the controller itself hung counts for nobody: what it did not
    hear may wait in its own sockets.
H2  A heartbeat is answered once its renewal is committed. A controller that was deposed commits nothing, so it cannot
    keep a session alive that its successor counts; and what an earlier one has answered was heard before this one
    began. That is why renewals are commands at all: a message alone could be answered by the wrong controller.
H3  Each duty has one command out at a time; another is submitted after the answer, or after it is said to be lost.
H4  A command of a deposed controller may be committed late, once. No command does more than delay:

    renew_sessions     names registrations; at worst a dead broker is live for one more session
    fail_broker        names registration and renewal: refused if it was renewed since
    report_leader      names the leader's epoch; only reports of one window count together (`leader_reports`)
    elect_first        only before the first leader, only of those that have opened it and live
    elect_preferred    only to the first replica, if that is in sync and lives
    raise_replication  only adds, and only where there are fewer
    set_feature_level  only to what all brokers know
    end_members        names sessions: at worst a member that lives joins again

H5  A heartbeat is not renewed once its broker was taken for dead, or has left, since, nor after a whole session: it
    would bring that back, or keep it alive, though nobody has heard of it any more. The answer to the renewal that it
    was in may be lost for so long.

The caller makes one when the catalog has applied the first entry of this broker's own term, and drops it when the term
ends; submits to its own log only, never on to another controller; answers each submission once, after the catalog has
applied it, with None if the outcome is not known; ticks every 100 ms or so.

Not here: a deleted stream is forgotten by the catalog itself, with the last confirmation or removal (`catalog.M6`).

Design: docs/explain/metadata.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

from broker.metadata.catalog import COMMAND_VERSION, Catalog
from broker.metadata.cluster import ACTIVE, FEATURE_LEVEL, Cluster
from broker.metadata.leader_reports import REPORT_WINDOW_MS, LeaderReports, ReportArrived
from broker.metadata.member_lives import MemberLives
from broker.metadata.partition import PartitionState, Place
from broker.metadata.session import HEARTBEAT_MS, lapse_ms

RENEW_MS: Final = 200
"""Renewals are so far apart at least: each is an fsync of every voter."""
FIRST_ELECTION_MS: Final = 5_000
SCAN_MS: Final = 500
"""So often all partitions are looked at."""
RETRY_MS: Final = 500
BALANCE_MS: Final = 2_000
BALANCE_PARTITIONS: Final = 20
"""So many leaderships are given back at once, and so far apart: each costs its partition a moment."""
CALM_MS: Final = 10_000
CALM_MS_MAX: Final = 600_000
"""How long a broker has to be calm before it is given anything; twice as long each time that it was not for long."""
INTERNAL_REPLICAS: Final = 3
END_PARTITIONS: Final = 4_096
"""At one look groups lose their silent members that read so many partitions together, and one more: hundreds of small
ones, or a few of the greatest. Each has its partitions assigned anew, by each broker."""

# -- events and effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatArrived:
    """A broker lives. `number`: its own, to be given back."""

    broker: str
    registration: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitAnswered:
    """The outcome of a submission: the catalog's result, or None: nobody knows."""

    number: int
    result: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Look whether something is due."""


Event = HeartbeatArrived | ReportArrived | SubmitAnswered | TimePassed


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Submit a command; its answer comes back with the number."""

    number: int
    command: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """Tell a broker that its heartbeat is renewed. `renewal`: as `BrokerInfo` counts it by now."""

    broker: str
    registration: int
    number: int
    renewal: int


Effect = Submit | Renewed

# -- what is remembered ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Out:
    """A submission without an answer.

    Attributes:
        beats: What it renews: broker -> (registration, number).
        report: What it passes on.
    """

    duty: str
    rest_ms: int
    beats: dict[str, tuple[int, int]]
    report: ReportArrived | None = None


@dataclass(slots=True)
class _Seen:
    """A broker, as it was seen last.

    Attributes:
        heard_ms: Its session runs from then on (H1).
        beat_ms: When its last heartbeat came; None: there was none since it was taken for dead, or has left.
        calm_since_ms, calm_ms: Since when nothing happened to it, and how long that has to last.
    """

    registration: int
    is_live: bool
    heard_ms: int
    calm_since_ms: int
    calm_ms: int
    beat_ms: int | None = None

    def disturb(self, now_ms: int, least_ms: int) -> None:
        """A restart is several disturbances, and one trouble; only who was calm for a while is in another."""
        if now_ms - self.calm_since_ms >= 4 * self.calm_ms:
            self.calm_ms = least_ms
        elif self.is_calm(now_ms):
            self.calm_ms = min(2 * self.calm_ms, CALM_MS_MAX)
        self.calm_since_ms = now_ms

    def is_calm(self, now_ms: int) -> bool:
        return now_ms - self.calm_since_ms >= self.calm_ms


@dataclass(slots=True)
class Controller:
    """See the module. `began_ms`: when the caller made it; all times are of one monotonic clock.

    Attributes:
        calm_ms: So long a broker has to be calm, at least.
        lives: Of members of consumer groups, as this broker has counted them until now (`member_watch.py`).
    """

    began_ms: int
    calm_ms: int = CALM_MS
    lives: MemberLives = field(default_factory=MemberLives)
    _ran_ms: int = field(init=False)
    _scan_at_ms: int = field(init=False)
    _number: int = 0
    _out: dict[int, _Out] = field(default_factory=dict)
    _duties: set[str] = field(default_factory=set)  # of those
    _reports: LeaderReports = field(default_factory=LeaderReports)
    _rest: dict[str, int] = field(default_factory=dict)  # duty -> not before
    _brokers: dict[str, _Seen] = field(default_factory=dict)
    _beats: dict[str, tuple[int, int]] = field(default_factory=dict)  # to be renewed
    _unled: dict[Place, int] = field(default_factory=dict)  # partitions before their first leader: seen since
    _led: dict[Place, str] = field(default_factory=dict)  # partitions that their preferred replica had by the last scan

    def __post_init__(self) -> None:
        self._ran_ms = self._scan_at_ms = self.began_ms

    def step(self, event: Event, catalog: Catalog, now_ms: int) -> list[Effect]:
        """Take one event; return what to do. `catalog`: as applied on this broker; only read."""
        match event:
            case HeartbeatArrived():
                return self._on_heartbeat(event, catalog, now_ms)
            case ReportArrived():
                return self._report(event) if self._reports.arrived(event, catalog.cluster, now_ms) else []
            case SubmitAnswered():
                return self._on_answer(event, catalog, now_ms)
            case TimePassed():
                return self._on_time(catalog, now_ms)
            case _:
                assert_never(event)

    # -- sessions ---------------------------------------------------------------------------------------------

    def _on_heartbeat(self, event: HeartbeatArrived, catalog: Catalog, now_ms: int) -> list[Effect]:
        info = catalog.brokers.get(event.broker)
        if info is None or info.registration != event.registration:
            return []
        self._see(catalog.cluster, now_ms)
        seen = self._brokers[event.broker]
        seen.heard_ms = seen.beat_ms = now_ms
        self._beats[event.broker] = (event.registration, event.number)
        return []

    def _see(self, cluster: Cluster, now_ms: int) -> None:
        """Note who registered, came back or failed: its session begins, and it is not calm."""
        for broker, info in cluster.brokers.items():
            seen = self._brokers.get(broker)
            if seen is None:
                self._brokers[broker] = _Seen(info.registration, info.is_live, now_ms, now_ms, self.calm_ms)
            elif (seen.registration, seen.is_live) != (info.registration, info.is_live):
                seen.registration, seen.is_live, seen.heard_ms = info.registration, info.is_live, now_ms
                if not info.is_live:  # H5
                    seen.beat_ms = None
                seen.disturb(now_ms, self.calm_ms)
        for broker in self._brokers.keys() - cluster.brokers.keys():
            del self._brokers[broker]

    def _is_fresh(self, broker: str, cluster: Cluster, now_ms: int) -> bool:
        """H5."""
        seen, info = self._brokers.get(broker), cluster.brokers.get(broker)
        if seen is None or seen.beat_ms is None or info is None:
            return False
        return now_ms - seen.beat_ms <= lapse_ms(info.session_ms)

    def _lapsed(self, cluster: Cluster, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for broker, info in sorted(cluster.brokers.items()):
            if info.is_live and now_ms - self._brokers[broker].heard_ms > lapse_ms(info.session_ms):
                named: dict[str, Any] = {
                    "broker_id": broker,
                    "registration": info.registration,
                    "renewal": info.renewal,
                }
                effects += self._submit(f"fail {broker}", now_ms, "fail_broker", **named)
        return effects

    def _renew(self, cluster: Cluster, now_ms: int) -> list[Effect]:
        self._beats = {broker: beat for broker, beat in self._beats.items() if self._is_fresh(broker, cluster, now_ms)}
        if not self._beats:
            return []
        renewals = {broker: registration for broker, (registration, _) in sorted(self._beats.items())}
        effects = self._submit("renew", now_ms, "renew_sessions", rest_ms=RENEW_MS, renewals=renewals)
        if effects:
            self._out[self._number].beats, self._beats = self._beats, {}
        return effects

    # -- all events -------------------------------------------------------------------------------------------

    def _report(self, report: ReportArrived) -> list[Effect]:
        stream, partition = report.at
        effects = self._submit(
            f"report {report.broker} {stream}/{partition}",
            None,
            "report_leader",
            rest_ms=0,
            broker_id=report.broker,
            registration=report.registration,
            stream=stream,
            partition=partition,
            leader_epoch=report.leader_epoch,
            at_ms=report.wall_ms,
            window_ms=REPORT_WINDOW_MS,
        )
        self._out[self._number].report = report
        return effects

    def _on_answer(self, event: SubmitAnswered, catalog: Catalog, now_ms: int) -> list[Effect]:
        out = self._out.pop(event.number, None)
        if out is None:
            return []
        self._duties.discard(out.duty)
        self._rest[out.duty] = now_ms + out.rest_ms
        if out.report is not None:
            following = self._reports.answered(out.report, catalog.cluster, now_ms)
            return self._report(following) if following is not None else []
        if event.result is None or "ok" not in event.result:
            self._beats = {**out.beats, **self._beats}  # those that came since are newer
            return []
        if out.duty == "balance":  # one that is lost again before the next scan is lost all the same
            self._led |= {(stream, number): leader for stream, number, leader in event.result["ok"]["moved"]}
        live = event.result["ok"].get("live", ())
        return [
            Renewed(broker=broker, registration=registration, number=number, renewal=info.renewal)
            for broker, (registration, number) in out.beats.items()
            if broker in live and (info := catalog.brokers.get(broker)) and info.registration == registration
        ]

    def _on_time(self, catalog: Catalog, now_ms: int) -> list[Effect]:
        cluster = catalog.cluster
        if (hung_ms := now_ms - self._ran_ms - HEARTBEAT_MS) > 0:  # H1
            for seen in self._brokers.values():
                seen.heard_ms = min(now_ms, seen.heard_ms + hung_ms)
            self.lives.hung(hung_ms, now_ms)
        self._ran_ms = now_ms
        self._rest = {duty: ms for duty, ms in self._rest.items() if ms > now_ms}
        self._see(cluster, now_ms)
        effects = [*self._renew(cluster, now_ms), *self._lapsed(cluster, now_ms)]
        if now_ms >= self._scan_at_ms:
            effects += self._first_elections(cluster, now_ms)
            effects += self._balance(cluster, now_ms)
            effects += self._internal_streams(catalog, now_ms)
            effects += self._feature_level(cluster, now_ms)
            effects += self._end_members(catalog, now_ms)
            self._scan_at_ms = now_ms + SCAN_MS
        return effects

    def _submit(
        self, duty: str, now_ms: int | None, kind: str, *, rest_ms: int = RETRY_MS, **named: Any
    ) -> list[Effect]:
        """H3. `now_ms`: None: not held back by the rest after the last answer."""
        if duty in self._duties:
            return []
        if now_ms is not None and self._rest.get(duty, now_ms) > now_ms:
            return []
        self._number += 1
        self._out[self._number] = _Out(duty, rest_ms, {})
        self._duties.add(duty)
        return [Submit(number=self._number, command={"v": COMMAND_VERSION, "kind": kind, **named})]

    # -- partitions -------------------------------------------------------------------------------------------

    def _first_elections(self, cluster: Cluster, now_ms: int) -> list[Effect]:
        """Where the deadline is over, and enough have opened the partition."""
        live = cluster.who().registrations
        unled = {at: state for at, state in cluster.partitions.items() if not state.has_led}
        self._unled = {at: self._unled.get(at, now_ms) for at in unled}
        due = [
            at
            for at, state in unled.items()
            if now_ms - self._unled[at] >= FIRST_ELECTION_MS
            and sum(broker in live for broker in state.isr) >= state.min_insync_replicas
        ]
        return self._submit("first", now_ms, "elect_first", partitions=_by_stream(due)) if due else []

    def _balance(self, cluster: Cluster, now_ms: int) -> list[Effect]:
        """Give leaderships back to preferred replicas that are calm."""
        scanned_ms = self._scan_at_ms - SCAN_MS
        for at, broker in self._led.items():
            state, seen = cluster.partitions.get(at), self._brokers.get(broker)
            if state is None or seen is None or state.leader == broker or state.replicas[0] != broker:
                continue
            if seen.calm_since_ms < scanned_ms:  # else it is known already: it has failed, or lost another one
                seen.disturb(now_ms, self.calm_ms)
        led = {at: s.replicas[0] for at, s in cluster.partitions.items() if s.leader == s.replicas[0]}
        self._led = led
        calm = self._calm(cluster, now_ms)
        due = [at for at, state in cluster.partitions.items() if _is_misled(state, calm)][:BALANCE_PARTITIONS]
        if not due:
            return []
        return self._submit("balance", now_ms, "elect_preferred", rest_ms=BALANCE_MS, partitions=_by_stream(due))

    def _calm(self, cluster: Cluster, now_ms: int) -> set[str]:
        """Brokers that may be given something: live, not about to stop, and so for long enough."""
        who = cluster.who()
        return {b for b in who.registrations if b not in who.stopping and self._brokers[b].is_calm(now_ms)}

    def _internal_streams(self, catalog: Catalog, now_ms: int) -> list[Effect]:
        """As many replicas as there are calm brokers, up to INTERNAL_REPLICAS."""
        factor = min(INTERNAL_REPLICAS, len(self._calm(catalog.cluster, now_ms)))
        effects: list[Effect] = []
        if catalog.cluster.rescue is not None:  # it would be refused
            return effects
        for name, info in sorted(catalog.streams.items()):
            places = catalog.cluster.places_of(info.incarnation) if info.internal else []
            states = [catalog.cluster.partitions[at] for at in places]
            if any(len(state.target or state.replicas) < factor for state in states):
                named: dict[str, Any] = {"name": name, "replication_factor": factor}
                effects += self._submit(f"replicas {name}", now_ms, "raise_replication", **named)
        return effects

    def _end_members(self, catalog: Catalog, now_ms: int) -> list[Effect]:
        """Of consumer groups, who was not heard for too long."""
        effects: list[Effect] = []
        partitions = 0
        for group, members in sorted(self.lives.lapsed(catalog.groups, now_ms).items()):
            if partitions > END_PARTITIONS:
                break
            named: dict[str, Any] = {"name": group, "members": members}
            if catalog.cluster.feature_level >= ACTIVE:
                named["expired"] = True
            asked = self._submit(f"members {group}", now_ms, "end_members", **named)
            partitions += len(catalog.groups.get(group).target) if asked else 0
            effects += asked
        return effects

    def _feature_level(self, cluster: Cluster, now_ms: int) -> list[Effect]:
        """The greatest that all brokers know, once all of them are calm: none is being put back to an earlier release.
        It never falls again."""
        level = min([FEATURE_LEVEL, *(info.feature_level_max for info in cluster.brokers.values())])
        if level <= cluster.feature_level or cluster.rescue is not None:
            return []
        if not cluster.brokers or self._calm(cluster, now_ms) != cluster.brokers.keys():
            return []
        return self._submit("level", now_ms, "set_feature_level", level=level)


def _is_misled(state: PartitionState, calm: set[str]) -> bool:
    """Whether its preferred replica could lead it, and does not. While replicas are moved that is left alone."""
    first = state.replicas[0]
    return state.leader not in (None, first) and state.target is None and first in state.isr and first in calm


def _by_stream(places: Iterable[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for stream, number in sorted(places):
        found.setdefault(stream, []).append(number)
    return found
