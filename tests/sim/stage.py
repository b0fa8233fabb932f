"""The means of scenarios: a cluster, time that passes, who leads, links that are cut, an operator who asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.cluster import Cluster
from tests.sim.driven.node import Broker

OPTIONS = {"size": 3, "partitions": 2, "min_insync_replicas": 2}
OF_FIVE = ("an_operator", "the_catalog", "a_stream_is_d", "a_stream_is_m", "a_stream_b")
"""Beginnings of names: two brokers may go there, and the catalog goes on."""
REWRITES = (
    "tombstones_",
    "a_copy_",
    "a_replica_is_away",
    "a_follower_ends",
    "a_stream_is_compacted",
    "an_operator_elects_who_lacks_a_newer",
)
"""Beginnings of names: replicas write their logs anew there, when they are told to."""
AT_LEVEL = ("sessions_",)
"""Beginnings of names: the cluster has the feature level of this release there."""
Scenario = Callable[[Cluster], None]


def made(name: str, seed: int) -> Cluster:
    """A cluster for a scenario."""
    options = {**OPTIONS, "size": 5 if name.startswith(OF_FIVE) else 3}
    seed = 8 * seed + 2 if name.startswith(AT_LEVEL) else seed
    return Cluster(seed, faults=False, rewrites=name.startswith(REWRITES), **options)


def until(cluster: Cluster, ms: float) -> None:
    """Let so much more time pass."""
    cluster.world.run(cluster.world.now_ms + ms)


def leader_of(cluster: Cluster, name: str = "p0") -> Broker:
    leader = cluster.metadata.states[name].leader
    assert leader is not None, "nobody leads"
    return cluster.brokers[leader]


def others_of(cluster: Cluster, broker: Broker) -> list[Broker]:
    return [one for one in cluster.brokers.values() if one is not broker]


def cut_off(cluster: Cluster, broker: Broker) -> None:
    """From the other brokers; clients still come."""
    for one in others_of(cluster, broker):
        cluster.network.cut |= {(broker.name, one.name), (one.name, broker.name)}


def ask(cluster: Cluster, kind: str, **values: Any) -> None:
    """As an operator, at whoever controls."""
    for _ in range(200):
        if cluster.metadata.controller is not None:
            break
        until(cluster, 50)
    cluster.metadata.submit(cluster.metadata.controller or "", {"kind": kind, **values})
