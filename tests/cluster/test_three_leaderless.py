"""Goal: an operator sees how often partitions changed their leader, why, and how long they were without one.

Method: three real brokers. One that leads is killed, the controller or another one; `/metrics` of those that live tell.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.clusters import RealCluster, three
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

PARTITIONS = 3
Counts = dict[str, float]
DIED = ("failed", "unreachable")


def told(cluster: RealCluster, brokers: list[str]) -> tuple[Counts, Counts]:
    """Changes of leaders by cause, and their seconds, summed over brokers."""
    counts: Counts = defaultdict(float)
    sums: Counts = defaultdict(float)
    for broker in brokers:
        text = cluster.brokers[broker].get("/metrics").decode()
        for what, cause, value in re.findall(r'^liftlog_leaderless_seconds_(\w+)\{cause="(\w+)"\} (\S+)$', text, re.M):
            if what in ("count", "sum"):
                (counts if what == "count" else sums)[cause] += float(value)
    return counts, sums


@pytest.mark.parametrize("is_controller", [False, True], ids=["another broker", "the controller"])
def test_a_leader_that_is_killed_is_counted_and_its_time_told(tmp_path: Path, is_controller: bool) -> None:
    began_s = time.monotonic()  # no session was renewed before
    with three(tmp_path) as cluster, cluster.client(deadline_s=60.0) as client:
        controller = cluster.controller()
        victim = next(broker for broker in cluster.brokers if (broker == controller) is is_controller)
        others = [broker for broker in cluster.brokers if broker != victim]
        client.create_stream("kept", partitions=PARTITIONS, replication_factor=3)
        client.create_stream("alone", partitions=PARTITIONS, replication_factor=1)  # one on each broker
        for partition in range(PARTITIONS):
            cluster.in_sync("kept", 3, partition)
        led = [
            each.partition
            for each in client.placements("kept")
            if client.elect_preferred("kept", each.partition) and cluster.leader("kept", each.partition) == victim
        ]
        (alone,) = (number for number in range(PARTITIONS) if cluster.leader("alone", number) == victim)
        assert led
        before = told(cluster, others)
        cluster.brokers[victim].kill9()
        for partition in led:
            assert cluster.leader("kept", partition) != victim

        def since(*causes: str) -> tuple[float, float]:
            """How many changes were told since it was killed, and their seconds."""
            after = told(cluster, others)
            count, seconds = (
                sum(now[each] - then[each] for each in causes) for now, then in zip(after, before, strict=True)
            )
            return count, seconds

        eventually(lambda: since(*DIED)[0] >= len(led), what="the changes to be told")
        count, seconds = since(*DIED)
        assert 0 < seconds < count * (time.monotonic() - began_s)

        def is_led_by_nobody() -> bool:
            return all(cluster.brokers[broker].metric("liftlog_partitions_without_leader") > 0 for broker in others)

        eventually(is_led_by_nobody, what="nobody to lead the one replica that there is")
        unled_s = time.monotonic()
        assert since("restarted") == (0, 0)
        restarted_s = time.monotonic()
        cluster.brokers[victim].start(wait=False)
        cluster.wait_ready(victim)
        assert cluster.leader("alone", alone) == victim
        count, seconds = since("restarted")
        assert count > 0
        assert restarted_s - unled_s < seconds < count * (time.monotonic() - began_s)
