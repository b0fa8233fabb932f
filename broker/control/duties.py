"""Duties of the controller: drives its core (metadata/controller.py), on the Raft thread.

    notes of brokers ─► beats, reports ─┐
    each tick ──────────► TimePassed ───┼─► core ─► Submit ─► this broker's own log ─► applied ─► SubmitAnswered
                                        │        └► Renewed ─► note to the broker
    a term ends ─► the core is dropped ─┘

O1  There is a core while this broker leads and has applied the first entry of its term; another one for each term.
O2  Its commands go into this broker's own log, and to no other controller.
O3  An answer reaches the core between two ticks, never while an entry is being applied: what it then submits would be
    logged in the middle of that.
O4  Votes are changed one at a time (metadata/voting.py), and the cluster is given its id, as long as the catalog or the
    group do not show it.
O5  A heartbeat or a report that comes between an election and the first applied entry of its term is kept for the
    core: brokers send both as soon as they hear who leads, and the next ones half a second or a second later.
O6  Signs of members of consumer groups are counted whoever is the controller (`member_watch.py`).
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from broker.control.clock import boot_ms, wall_ms
from broker.metadata.catalog import COMMAND_VERSION
from broker.metadata.controller import (
    SCAN_MS,
    Controller,
    Effect,
    Event,
    HeartbeatArrived,
    Renewed,
    Submit,
    SubmitAnswered,
    TimePassed,
)
from broker.metadata.leader_reports import ReportArrived
from broker.metadata.member_watch import MemberWatch
from broker.metadata.partition import Place
from broker.metadata.voting import next_change
from broker.raft.node import CHANGE_VOTERS, Answer, RaftNode

log = logging.getLogger(__name__)

STEP_MS: Final = 100
GROUP_MS: Final = 500
GROUP_REST_MS: Final = 10_000
"""How long the group is left alone at most, after changes of it that failed."""
QUIET: Final = frozenset({"renew_sessions", "report_leader"})
"""Commands that are not worth a line in the log each time."""


class Duties:
    """See the module.

    Args:
        wake: Has `tick` called soon.
    """

    def __init__(
        self,
        broker_id: str,
        cluster_id: str,
        *,
        wake: Callable[[], None],
        now_ms: Callable[[], int] = boot_ms,
        now_wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._broker_id, self._cluster_id = broker_id, cluster_id
        self._wake = wake
        self._now_ms = now_ms
        self._now_wall_ms = now_wall_ms
        self._controller: Controller | None = None
        self._term = 0
        self._step_at_ms = 0
        self._watch, self._watch_at_ms = MemberWatch(broker_id, now_ms()), 0
        self._answered: collections.deque[tuple[int, SubmitAnswered]] = collections.deque()  # and of which term
        self._early: dict[str, tuple[HeartbeatArrived, Answer]] = {}  # O5
        self._early_reports: dict[tuple[str, Place], ReportArrived] = {}  # O5
        self._reply: dict[str, Answer] = {}  # how the newest heartbeat of a broker is answered
        self._group_rest_ms = GROUP_MS
        self._group_at_ms: int | None = 0  # when the group is looked at next; None: a change of it is under way

    def tick(self, node: RaftNode) -> None:
        """Look who is the controller, and do what is due."""
        self._turn(node)
        while self._answered:
            term, answer = self._answered.popleft()
            if term == self._term:
                self._step(node, answer)
        now_ms = self._now_ms()
        if self._controller is not None and now_ms >= self._step_at_ms:
            self._step_at_ms = now_ms + STEP_MS
            self._step(node, TimePassed())
            self._look_at_group(node, now_ms)
        if now_ms >= self._watch_at_ms:
            self._watch_at_ms = now_ms + SCAN_MS
            self._watch.look(node.catalog, now_ms, leads=self._controller is not None)

    def _look_at_group(self, node: RaftNode, now_ms: int) -> None:
        """O4."""
        if self._group_at_ms is None or now_ms < self._group_at_ms:
            return
        self._group_at_ms = now_ms + GROUP_MS
        cluster, command = node.catalog.cluster, None
        if cluster.cluster_id is None:
            command = {"v": COMMAND_VERSION, "kind": "form_cluster", "cluster_id": self._cluster_id}
        elif (change := next_change(cluster, node.voters(), node.node_id)) is not None:
            command = {"kind": CHANGE_VOTERS, "change": change[0], "node_id": change[1]}
        if command is not None:
            self._group_at_ms = None
            log.info("controller.asks command=%s", command)
            node.lead(command, partial(self._group_changed, self._term))

    def _group_changed(self, term: int, result: Mapping[str, Any] | None) -> None:
        if term == self._term:
            is_done = result is not None and "ok" in result
            self._group_rest_ms = GROUP_MS if is_done else min(2 * self._group_rest_ms, GROUP_REST_MS)
            if not is_done:
                log.info("controller.refused result=%s", result)
            self._group_at_ms = self._now_ms() + self._group_rest_ms

    def beat(self, node: RaftNode, note: Mapping[str, Any], answer: Answer) -> None:
        """A heartbeat of a broker. A malformed one is dropped."""
        broker, registration, number = note.get("broker"), note.get("registration"), note.get("number")
        if isinstance(broker, str) and isinstance(registration, int) and isinstance(number, int):
            self._turn(node)
            if broker in node.catalog.brokers:
                beat = HeartbeatArrived(broker=broker, registration=registration, number=number)
                if self._controller is not None:
                    self._hear(node, beat, answer)
                elif node.is_controller:
                    self._early[broker] = beat, answer

    def _hear(self, node: RaftNode, beat: HeartbeatArrived, answer: Answer) -> None:
        self._reply[beat.broker] = answer
        self._step(node, beat)

    def report(self, node: RaftNode, note: Mapping[str, Any]) -> None:
        """A follower cannot fetch from its leader. A malformed report is dropped."""
        broker, stream = note.get("broker"), note.get("stream")
        numbers = [note.get(key) for key in ("registration", "partition", "leader_epoch")]
        if not isinstance(broker, str) or not isinstance(stream, str):
            return
        registration, partition, epoch = (each if isinstance(each, int) else -1 for each in numbers)
        if min(registration, partition, epoch) >= 0:
            self._turn(node)
            report = ReportArrived(
                broker=broker,
                registration=registration,
                at=(stream, partition),
                leader_epoch=epoch,
                wall_ms=self._now_wall_ms(),
            )
            if self._controller is not None:
                self._step(node, report)
            elif node.is_controller and broker in node.catalog.brokers and report.at in node.catalog.cluster.partitions:
                self._early_reports[broker, report.at] = report

    def members(self, node: RaftNode, note: Mapping[str, Any]) -> None:
        """A broker has heard of members of consumer groups. What is malformed is dropped."""
        rows = note.get("members")
        known = [
            (row[0], row[1], row[2])
            for row in (rows if isinstance(rows, list) else [])
            if isinstance(row, list) and len(row) == 3 and [type(each) for each in row] == [str, str, int]
        ]
        self._turn(node)
        broker = note.get("broker")
        told = broker if isinstance(broker, str) and broker in node.catalog.brokers else ""
        self._watch.told(told, known, self._now_ms(), leads=self._controller is not None)

    def _turn(self, node: RaftNode) -> None:
        """O1."""
        is_controller = node.has_begun
        if not node.is_controller:
            self._early.clear()
            self._early_reports.clear()
        if self._controller is not None and (not is_controller or node.term != self._term):
            log.info("controller.ended broker=%s term=%d", self._broker_id, self._term)
            self._controller = None
            self._reply.clear()
            self._answered.clear()
        if is_controller and self._controller is None:
            self._term = node.term
            now_ms = self._now_ms()
            self._controller = Controller(now_ms, lives=self._watch.lead(node.catalog, now_ms))
            self._step_at_ms = self._group_at_ms = 0
            log.info("controller.began broker=%s term=%d", self._broker_id, self._term)
            early, self._early = self._early, {}
            for beat, answer in early.values():
                self._hear(node, beat, answer)
            reports, self._early_reports = self._early_reports, {}
            for report in reports.values():
                self._step(node, report)

    def _step(self, node: RaftNode, event: Event) -> None:
        if self._controller is not None:
            for effect in self._controller.step(event, node.catalog, self._now_ms()):
                self._do(node, effect)

    def _do(self, node: RaftNode, effect: Effect) -> None:
        match effect:
            case Submit():
                if effect.command["kind"] not in QUIET:
                    log.info("controller.asks command=%s", effect.command)
                node.lead(effect.command, partial(self._note_answer, self._term, effect.number))
            case Renewed():
                reply = self._reply.get(effect.broker)
                if reply is not None:
                    reply(
                        {
                            "type": "renewed",
                            "registration": effect.registration,
                            "number": effect.number,
                            "renewal": effect.renewal,
                            "stamp": node.stamp(),
                        }
                    )

    def _note_answer(self, term: int, number: int, result: Mapping[str, Any] | None) -> None:
        """O3."""
        self._answered.append((term, SubmitAnswered(number=number, result=result)))
        self._wake()
