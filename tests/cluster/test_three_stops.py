"""Goal: a broker that stops keeps nobody waiting, however long its own end takes, and takes nothing along.

Method: three real brokers whose stop can be held at a point, or whose followers are slow (`support/stopping_broker`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.clusters import WAIT_S, RealCluster, store
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

PARTITIONS = 24


@contextmanager
def stoppable(folder: Path, *options: str) -> Iterator[RealCluster]:
    command = ("tests.support.stopping_broker", *options)
    cluster = RealCluster(folder, None, command=lambda broker: command)
    try:
        yield cluster.start()
    finally:
        (folder / "gate").touch()
        cluster.stop()


def stop(cluster: RealCluster, broker: str) -> list[str]:
    """Ask it to stop; returns the others, once one of them leads each partition of stream `s`."""
    process = cluster.brokers[broker].process
    assert process is not None
    process.popen.send_signal(signal.SIGTERM)
    others = [each for each in cluster.brokers if each != broker]

    def are_led() -> bool:
        states = cluster.describe("s", by=others[0])["partitions"]
        return all(state["leader"] is not None and state["leader"]["id"] != broker for state in states)

    eventually(are_led, timeout_s=WAIT_S, what="other leaders")
    return others


def test_new_leaders_acknowledge_while_the_former_one_closes_its_logs(tmp_path: Path) -> None:
    with stoppable(tmp_path, "--gate", str(tmp_path / "gate")) as cluster:
        with cluster.client() as client:
            client.create_stream("s", partitions=PARTITIONS, replication_factor=3)
            for partition in range(PARTITIONS):
                cluster.in_sync("s", 3, partition)
                store(client, "s", partition, [{"value": b"before"}])
        leader = cluster.leader("s")
        stopping = cluster.brokers[leader].process
        assert stopping is not None
        others = stop(cluster, leader)
        with cluster.client(*others, deadline_s=60.0) as client:
            for partition in range(PARTITIONS):
                store(client, "s", partition, [{"value": b"meanwhile"}])
        assert stopping.popen.poll() is None, "it still closes its logs"
        (tmp_path / "gate").touch()
        assert stopping.popen.wait(WAIT_S) == 0


def test_what_is_acknowledged_by_the_leader_alone_outlives_its_stop(tmp_path: Path) -> None:
    """Its followers lag when it is asked to stop."""
    with stoppable(tmp_path, "--slow-s", "0.3") as cluster:
        with cluster.client(deadline_s=60.0) as client:
            client.create_stream("s", partitions=PARTITIONS, replication_factor=3, acks="leader")
            for partition in range(PARTITIONS):
                cluster.in_sync("s", 3, partition)
            for partition in range(PARTITIONS):
                store(client, "s", partition, [{"value": b"x"}])
        others = stop(cluster, cluster.leader("s"))

        def found() -> list[int]:
            return sorted(client.read("s").to_table().column("partition").to_pylist())

        with cluster.client(*others, deadline_s=60.0) as client:  # those led by the others are committed by and by
            eventually(lambda: found() == [*range(PARTITIONS)], what="all records")
