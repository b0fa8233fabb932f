"""Runs by hand in which the clocks that show the time of day are apart, and are set. As those of `scenarios.py`."""

from __future__ import annotations

from tests.sim.cluster import Cluster
from tests.sim.machine import HOUR_MS
from tests.sim.stage import leader_of, until
from tests.sim.staged_rewrites import NAME, alone, send


def clocks_are_apart_and_are_set(cluster: Cluster) -> None:
    """Leaders follow one another whose clocks are an hour or two apart, in both directions, and those that lead are set
    an hour ahead and back: within its window a repeat is known. A broker that comes back leads as well.
    """
    alone(cluster)
    places: list[int] = []
    for step_ms in (0, HOUR_MS, -HOUR_MS, 2 * HOUR_MS):
        leader = leader_of(cluster, NAME)
        places.append(send(cluster, len(places)))
        leader.wall_jump_ms += step_ms
        assert send(cluster, len(places) - 1) == places[-1], f"stored again after a step of {step_ms} ms"
        until(cluster, 1_500)
        leader.crash("kill")
        until(cluster, 4_000)
        leader.start()
        assert leader_of(cluster, NAME) is not leader, "nobody else leads"
        until(cluster, 3_000)
        for number, at in enumerate(places):
            assert send(cluster, number) == at, "stored again by the next leader"
    assert cluster.world.seen["repeat known by its id"] >= len(places), "nobody says that it is a repeat"
