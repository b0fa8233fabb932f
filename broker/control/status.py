"""The cluster as one broker knows it, for people: who is the controller, who votes, who lives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker.control.identity import Identity
from broker.metadata.voting import address, owner
from broker.raft.node import RaftNode


def of(node: RaftNode, me: Identity, *, has_session: bool, refused: int) -> dict[str, Any]:
    """As JSON values. To be called on the Raft thread.

    Returns:
        cluster_id, feature_level; `controller`: a broker's name or None; `answered_by`: whose view this is, and whether
        it has a session; `voters` and `brokers`, each by name; `observers`: names of brokers without a vote. A vote
        counts once this broker knows that it is committed: until then its own broker may not know that it has it.
    """
    catalog, voters, controller = node.catalog, node.certain_voters(), node.controller
    led: dict[str, int] = {}
    for state in catalog.cluster.partitions.values():
        if state.leader is not None:
            led[state.leader] = led.get(state.leader, 0) + 1
    voting = {owner(voter) for voter in voters}
    return {
        "cluster_id": me.cluster_id,
        "feature_level": catalog.cluster.feature_level,
        "controller": None if controller is None else owner(controller),
        "answered_by": {"broker_id": me.broker_id, "has_session": has_session, "connections_refused": refused},
        "voters": [
            {
                "broker_id": owner(voter),
                "raft": address(voter),
                "is_registered": _is_registered(node, voter),
                "is_live": owner(voter) in catalog.brokers and catalog.brokers[owner(voter)].is_live,
            }
            for voter in sorted(voters)
        ],
        "observers": sorted(broker for broker in catalog.brokers if broker not in voting),
        "brokers": [
            {
                "broker_id": broker,
                "http": info.http,
                "grpc": info.grpc,
                "raft": address(info.raft),
                "rack": info.rack,
                "registration": info.registration,
                "is_live": info.is_live,
                "is_stopping": info.is_stopping,
                "feature_level_max": info.feature_level_max,
                "partitions_led": led.get(broker, 0),
            }
            for broker, info in sorted(catalog.brokers.items())
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The help that one broker can expect of the others, as it sees them.

    Attributes:
        obstacle: Why nobody can decide anything now, in words; "": nothing is in the way.
        is_deserted: So many voters have said that they stop, or were declared dead, and cannot be reached, that the
            rest is no majority.
    """

    obstacle: str = ""
    is_deserted: bool = False


def outlook(node: RaftNode) -> Outlook:
    """To be called on the Raft thread."""
    voters, brokers = node.certain_voters(), node.catalog.brokers
    needed = len(voters) // 2 + 1
    silent = [voter for voter in voters if not node.reaches(voter)]
    infos = [brokers.get(owner(voter)) for voter in silent]
    left = sum(info is not None and (info.is_stopping or not info.is_live) for info in infos)
    is_deserted = len(voters) - left < needed
    there = len(voters) - len(silent)
    if there < needed:
        names = ", ".join(sorted({owner(voter) for voter in silent}))
        return Outlook(
            obstacle=f"of {len(voters)} votes {needed} are needed, and {there} can be reached from here, not: {names}",
            is_deserted=is_deserted,
        )
    return Outlook(obstacle="" if node.controller is not None else "nobody is the controller", is_deserted=is_deserted)


def _is_registered(node: RaftNode, voter: str) -> bool:
    """Whether the broker has registered with this very id: if not, it has lost its journal, or was never there."""
    info = node.catalog.brokers.get(owner(voter))
    return info is not None and info.raft == voter
