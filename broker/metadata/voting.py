"""Which brokers have a vote in the Raft group: what the controller changes, one at a time. A pure function.

    <broker>.<random>@<host>:<port>     an id in the group; the random part is lost with its journal

V1  An id goes when its broker has registered under another one: its journal is lost, and so is what it has acknowledged
    (`node.N3`). Only then may the other one get a vote.
V2  An id goes when its broker was removed.
V3  A voter that is merely away keeps its vote: it has what it acknowledged, and comes back.
V4  Votes are added while there are live brokers without one, up to VOTERS_MAX, and not to an even number: a fourth
    voter tolerates no more failures than three, and makes each command wait for one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.metadata.cluster import Cluster

VOTERS_MAX: Final = 5
Change = tuple[str, str]
"""`add` or `rem`, and an id."""


def owner(node_id: str) -> str:
    """The broker that an id in the group belongs to."""
    return node_id.partition("@")[0].rpartition(".")[0]


def address(node_id: str) -> str:
    """host:port of an id in the group."""
    return node_id.partition("@")[2]


def next_change(cluster: Cluster, voters: Sequence[str], me: str) -> Change | None:
    """The change to make now; None: nothing. Asked again when it is done.

    Args:
        voters: As the controller's log has them. me: The controller's own id, which never removes itself.
    """
    for voter in sorted(voters):
        info = cluster.brokers.get(owner(voter))
        is_replaced = info is not None and info.raft not in ("", voter)
        if voter != me and (is_replaced or voter in cluster.removed):
            return "rem", voter
    taken = {address(voter) for voter in voters}
    fit = [
        info.raft
        for _, info in sorted(cluster.brokers.items())
        if info.is_live and not info.is_stopping and info.raft
        if info.raft not in voters and address(info.raft) not in taken
    ]
    wanted = min(VOTERS_MAX, len(voters) + len(fit))
    wanted -= wanted % 2 == 0
    return ("add", fit[0]) if len(voters) < wanted else None
