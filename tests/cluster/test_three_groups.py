"""A consumer group while its members and its brokers are killed and frozen.

Goal: each record is done, and committed once: what a member has committed nobody reads again, and nothing is passed
over. Method: `group_kills.py`, which also plays a hundred rounds by hand. In the end the lag of the group is told by
whichever broker keeps the offsets, though no member is left.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.group_kills import PARTITIONS, Play, append
from tests.support.clusters import RealCluster
from tests.support.effort import examples, seeded
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]


def test_each_record_is_committed_once_whoever_is_killed(tmp_path: Path) -> None:
    Play(tmp_path, seeded(7)).run(examples(8), then=lag_is_told)


def lag_is_told(cluster: RealCluster, appended: dict[int, int]) -> None:
    """Members are gone; then the broker is that told of them."""
    with cluster.client(deadline_s=60.0) as client:
        append(client, appended, 5)
    for _ in range(2):
        teller = cluster.leader("__offsets")
        eventually(lambda by=teller: lags(cluster, by) == [5] * PARTITIONS, timeout_s=60, what="the lag of the group")
        cluster.brokers[teller].kill9()


def lags(cluster: RealCluster, broker: str) -> list[float]:
    """Of the group, by partition, as one broker's /metrics has them."""
    lines = cluster.brokers[broker].get("/metrics").decode().splitlines()
    of_group = 'liftlog_group_lag_records{group="billing",stream="orders",partition='
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(of_group)]
