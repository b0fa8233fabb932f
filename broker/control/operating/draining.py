"""The plan of a drain: who is to keep what a broker keeps. Pure. Its rules: `admin.D2`, `admin.D4` and `admin.D5`."""

from __future__ import annotations

from collections.abc import Sequence

from broker.api.errors import InvalidRequest
from broker.metadata.cluster import Cluster
from broker.metadata.partition import PartitionState, Place
from broker.metadata.placement import Candidate, candidates, extend

Moves = dict[Place, tuple[tuple[str, ...], int]]
"""For each partition the replicas that it is to have, and their minimum in sync."""


def planned(cluster: Cluster, broker: str, *, fewer_replicas: bool) -> tuple[Moves, list[Place]]:
    """Return what has to be moved, and the partitions that stay (`admin.D4`). Raises InvalidRequest."""
    stuck, moves = [], {}
    racks = {each.broker_id: each.rack for each in list(cluster.brokers.values())}
    brokers = candidates(racks, (s.target or s.replicas for s in list(cluster.partitions.values())))
    for at, state in kept_by(cluster, broker):
        if broker not in (state.target or state.replicas):
            continue  # it is moved already
        if _only_at(state, broker, cluster):
            stuck.append(at)
            continue
        moves[at] = _without(cluster, at, state, broker, brokers, fewer_replicas=fewer_replicas)
    return moves, stuck


def kept_by(cluster: Cluster, broker: str) -> list[tuple[Place, PartitionState]]:
    """The partitions that a broker keeps, or is to keep."""
    partitions = sorted(cluster.partitions.items())
    return [(at, state) for at, state in partitions if broker in {*state.replicas, *(state.target or ())}]


def _only_at(state: PartitionState, broker: str, cluster: Cluster) -> bool:
    """`admin.D4`: nobody leads it, and only the broker may."""
    info = cluster.brokers[broker]
    return not info.is_live and state.leader is None and state.has_led and state.electable <= {broker}


def _without(
    cluster: Cluster,
    at: Place,
    state: PartitionState,
    broker: str,
    brokers: Sequence[Candidate],
    *,
    fewer_replicas: bool,
) -> tuple[tuple[str, ...], int]:
    """The replicas of a partition without a broker, and their minimum. InvalidRequest: `admin.D2`, `admin.D5`."""
    before = state.target or state.replicas
    kept = tuple(each for each in before if each != broker)
    fit = {b.broker_id for b in list(cluster.brokers.values()) if b.is_live and not b.is_stopping} - {broker}
    able = {each for each in fit if each in state.replicas or at not in cluster.leftovers.get(each, ())}
    target = extend(brokers, kept, len(before), able)
    least = state.target_min if state.target else state.min_insync_replicas
    is_live = cluster.brokers[broker].is_live
    if len(target) < len(before) and (not fewer_replicas or not target or is_live):
        or_else = "" if is_live else ", or ask for fewer replicas (--fewer-replicas)"
        if is_live and fewer_replicas:
            or_else = f"; --fewer-replicas is for a broker that is gone, and {broker} is live: stop it first"
        raise InvalidRequest(
            f"{len(before)} replicas of what broker {broker} keeps need as many other brokers, {len(fit)} are there:"
            f" start another one{or_else}",
            broker=broker,
        )
    return target, min(least, len(target))
