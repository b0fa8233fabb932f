"""How long others may be silent: longer with many partitions. A turn of this node's own is nobody's silence (N9)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.monotonic import monotonic

from broker.metadata.partition import PartitionState
from broker.metadata.session import FEW_PARTITIONS, slower
from broker.raft.core import Core
from broker.raft.node import RaftNode, configuration
from tests.unit.raft.group import Group
from tests.unit.raft.test_wire import SECRET, group, until

SILENCES = ("raftMinTimeout", "raftMaxTimeout", "leaderFallbackTimeout", "connectionTimeout")
STATE = PartitionState(replicas=("a",), min_insync_replicas=1)


def has_partitions(node: RaftNode, count: int) -> None:
    node.catalog.cluster.partitions = {("s", number): STATE for number in range(count)}


def silences(node: RaftNode) -> tuple[float, ...]:
    return tuple(getattr(node.core.conf, name) for name in SILENCES)


@pytest.mark.parametrize(
    ("partitions", "times"), [(0, 1.0), (FEW_PARTITIONS, 1.0), (3_000, 2.0), (10_000, 5.0), (50_000, 5.0)]
)
def test_silences_grow_with_the_partitions_that_there_are_now(partitions: int, times: float) -> None:
    assert slower(partitions) == times
    few = tuple(getattr(configuration(), name) for name in SILENCES)
    assert few == (0.5, 1.0, 2.0, 3.0), "a failover with few partitions is as it was"
    trio = Group("abc")
    node = trio.nodes["b"]
    node.tick()
    before = silences(node)
    has_partitions(node, partitions)
    trio.clocks["b"] += 1.0
    node.tick()
    assert silences(node) == tuple(times * each for each in before)
    has_partitions(node, 0)
    trio.clocks["b"] += 1.0
    node.tick()
    assert silences(node) == before


def test_who_starts_with_many_partitions_waits_for_a_leader_as_long_as_others() -> None:
    """It would stand for election, and depose the leader that it has just not heard yet."""
    trio = Group("abc")
    trio.elect("a")
    for number in range(3):
        trio.submit("a", number)
        trio.turn()
    node = trio.nodes["b"]
    has_partitions(node, 3_000)
    node.core.forceLogCompaction()
    for _ in range(3):
        trio.turn()
    node.close()
    trio.start("b")
    node = trio.nodes["b"]
    assert len(node.catalog.cluster.partitions) == 3_000
    least_s, most_s = silences(node)[:2]
    assert (least_s, most_s) == (2e6, 4e6)
    assert node.core._SyncObj__raftElectionDeadline - monotonic() > least_s - 60


def test_a_turn_of_its_own_that_takes_long_is_no_silence_of_the_leader() -> None:
    trio = Group("abc")
    trio.elect("a")
    trio.turn()
    b = trio.nodes["b"]
    deadline_s = b.core._SyncObj__raftElectionDeadline = monotonic() + 100.0

    def takes_long(_: Mapping[str, Any] | None) -> None:
        trio.clocks["b"] += 8.25

    b._on_applied = takes_long
    trio.submit("a", 1)
    while not trio.has("b"):
        trio.nodes["a"].tick()
        trio.deliver(lambda message: message[1][0] == "b")
        b.core._SyncObj__raftElectionDeadline = deadline_s
        b.tick()
        trio.deliver(lambda message: message[1][0] == "a")
    assert b.core._SyncObj__raftElectionDeadline == deadline_s + 8.0
    b.core._SyncObj__raftElectionDeadline = deadline_s
    trio.clocks["b"] += 8.25
    b.tick()
    assert b.core._SyncObj__raftElectionDeadline == deadline_s, "what passes between turns counts"


def test_a_deadline_that_is_long_over_is_soon() -> None:
    trio = Group("abc")
    core: Core = trio.nodes["b"].core
    core.conf.raftMinTimeout = 0.5
    core._SyncObj__raftElectionDeadline = now_s = monotonic()
    core.was_away(30.0)
    assert now_s + 0.5 <= core._SyncObj__raftElectionDeadline < now_s + 10.0


def test_connections_are_told_how_long_they_may_be_silent(tmp_path: Path) -> None:
    """W12. pysyncobj keeps the time that was right when they were made."""
    with group(tmp_path, [SECRET] * 2) as nodes:
        until(nodes, lambda: all(node.controller is not None for node in nodes))
        for node in nodes:
            has_partitions(node, 10_000)
        found = [list(node.core._SyncObj__transport._connections.values()) for node in nodes]
        assert all(found)
        until(nodes, lambda: all(conn._TcpConnection__timeout == 15.0 for each in found for conn in each))
