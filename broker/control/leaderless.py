"""How long partitions are without a leader: counted by the controller, for /metrics.

    session renewed ... renewed         the catalog names another leader (or the same one again)
                           └─────────────────┘ without a leader, by cause

W1  A leader that died led until the last renewal of its session, as far as others know: this is right to half a second.
    One that gives a leadership away has it until the catalog says who is next.
W2  Every broker keeps this, since it may be the next controller. Only the controller counts, and only once it knows all
    that was committed before its term: so nothing is counted twice.
W3  A process does not know of what came before it: a time counts from its start at the earliest.
W4  Not counted: the first leader of a partition, and one that goes on in another epoch.

The Raft thread calls it with each command, so it looks only at those partitions that the command has touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.common.metrics import LEADERLESS_SECONDS
from broker.control.clock import boot_ms
from broker.metadata.catalog import Catalog
from broker.metadata.cluster import Cluster
from broker.metadata.partition import Place

CAUSES: Final = {
    "fail_broker": "failed",
    "report_leader": "unreachable",
    "register_broker": "restarted",
    "renew_sessions": "returned",
    "stop_broker": "stopped",
    "elect_preferred": "preferred",
    "elect_unclean": "unclean",
}
"""By the command that names the next leader; any other: `other`."""
DIED: Final = frozenset({"fail_broker", "report_leader", "register_broker"})
"""Commands after which the former leader is not there any more (W1)."""


def observe(cause: str, seconds: float) -> None:
    """Count one change of a leader."""
    LEADERLESS_SECONDS.labels(cause).observe(seconds)


@dataclass(frozen=True, slots=True)
class Leadership:
    """A partition's leader in an epoch; None: nobody leads it, since `ended_ms`."""

    epoch: int
    leader: str | None
    ended_ms: int = 0


class Leaderless:
    """See the module. For the Raft thread alone.

    Args:
        tell: Gets the cause and the seconds of each change.
    """

    def __init__(self, *, now_ms: Callable[[], int] = boot_ms, tell: Callable[[str, float], None] = observe) -> None:
        self._now_ms = now_ms
        self._tell = tell
        self._renewed_ms: dict[str, int] = {}
        self._led: dict[Place, Leadership] = {}
        self._epoch = -1
        self._of: Cluster | None = None

    def applied(self, catalog: Catalog, command: Mapping[str, Any] | None, *, counts: bool) -> None:
        """A command was applied, or the catalog is another one (None). `counts`: this broker is the controller (W2)."""
        cluster, kind, now_ms = catalog.cluster, "" if command is None else command.get("kind", ""), self._now_ms()
        if command is None or cluster.epoch_last != self._epoch:
            self._epoch = cluster.epoch_last
            is_other, self._of = command is None or cluster is not self._of, cluster
            for at in [*cluster.partitions] if is_other else sorted(cluster.touched.places):
                state, before = cluster.partitions.get(at), self._led.get(at)
                if state is None:
                    continue
                if not state.has_led or (before is not None and before.epoch == state.leader_epoch):
                    continue
                ended_ms = now_ms if before is None else self._ended_ms(before, kind, now_ms)
                self._led[at] = Leadership(state.leader_epoch, state.leader, ended_ms)
                goes_on = before is not None and before.leader == state.leader and kind not in DIED
                if counts and before is not None and state.leader is not None and not goes_on:
                    self._tell(CAUSES.get(kind, "other"), (now_ms - ended_ms) / 1000)
            if len(self._led) > len(cluster.partitions):  # streams were deleted
                self._led = {at: led for at, led in self._led.items() if at in cluster.partitions}
        if kind == "renew_sessions" and command is not None:
            self._renewed_ms |= dict.fromkeys(command.get("renewals", ()), now_ms)

    def _ended_ms(self, before: Leadership, kind: str, now_ms: int) -> int:
        """When the last leadership ended (W1)."""
        if before.leader is None:
            return before.ended_ms
        return self._renewed_ms.get(before.leader, now_ms) if kind in DIED else now_ms
