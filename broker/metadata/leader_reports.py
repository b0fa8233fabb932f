"""Which reports that a leader cannot be reached become commands, and when. Each follower sends one a second.

    follower of each partition ─► report ─► arrived ─┬─► report_leader ─► answered ─► the next that waits
                                                     └─► waits

One partition that a majority of its other in-sync replicas reports takes its leader out of all. So the first few decide
it, and thousands at once would hold up heartbeats: each is judged, logged and applied on the controller's Raft thread.

Y1  A broker has `REPORTS_MAX` out at once. The others wait, in order, for the window at most; they come again.
Y2  None waits of a leader that leads no more in that epoch, or by who is not in sync: it would be refused.
Y3  What another broker has reported within the window waits for nobody: only reports of the same partition count
    together, and two brokers may send theirs in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.metadata.cluster import Cluster
from broker.metadata.partition import Place

REPORTS_MAX: Final = 16
REPORT_WINDOW_MS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportArrived:
    """A follower cannot fetch from its leader. It says so again as long as that is so.

    Attributes:
        wall_ms: The wall clock now: the window is to mean the same to the next controller.
    """

    broker: str
    registration: int
    at: Place
    leader_epoch: int
    wall_ms: int


class LeaderReports:
    """See the module. Those that are out were submitted by this controller, and have no answer."""

    def __init__(self) -> None:
        self._out: dict[str, set[Place]] = {}
        self._waiting: dict[str, dict[Place, tuple[int, ReportArrived]]] = {}  # and when it came

    def arrived(self, report: ReportArrived, cluster: Cluster, now_ms: int) -> bool:
        """Whether it is submitted now, and out."""
        broker, at = report.broker, report.at
        out, waiting = self._out.setdefault(broker, set()), self._waiting.setdefault(broker, {})
        if at in out:
            return False
        if len(out) >= REPORTS_MAX and not (_has_a_say(report, cluster) and self._is_shared(report, cluster)):
            if _has_a_say(report, cluster):
                waiting[at] = now_ms, report  # in its former place, if it waits already
            return False
        waiting.pop(at, None)
        out.add(at)
        return True

    def answered(self, report: ReportArrived, cluster: Cluster, now_ms: int) -> ReportArrived | None:
        """Its command has an answer, or none will come. Returns what is submitted next, and out."""
        out, waiting = self._out[report.broker], self._waiting[report.broker]
        out.discard(report.at)
        while waiting and len(out) < REPORTS_MAX:
            at = next(iter(waiting))
            came_ms, following = waiting.pop(at)
            if now_ms - came_ms <= REPORT_WINDOW_MS and _has_a_say(following, cluster):
                out.add(at)
                return following
        return None

    def _is_shared(self, report: ReportArrived, cluster: Cluster) -> bool:
        """Y3."""
        if any(report.at in out for other, out in self._out.items() if other != report.broker):
            return True
        epoch, said = cluster.reports.get(report.at, (-1, {}))
        return epoch == report.leader_epoch and any(
            other != report.broker and abs(report.wall_ms - ms) <= REPORT_WINDOW_MS for other, ms in said.items()
        )


def _has_a_say(report: ReportArrived, cluster: Cluster) -> bool:
    """Y2."""
    state = cluster.partitions.get(report.at)
    return (
        state is not None
        and state.leader not in (None, report.broker)
        and state.leader_epoch == report.leader_epoch
        and report.broker in state.isr
    )
