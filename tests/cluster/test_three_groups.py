"""A consumer group while its members and its brokers are killed and frozen.

Goal: each record is done, and committed once: what a member has committed nobody reads again, and nothing is passed
over. Method: `group_kills.py`, which also plays a hundred rounds by hand. In the end the lag of the group is told by
whichever broker keeps the offsets, though no member is left.

And a member that is silent from the start on ends, though the controller is killed that would have ended it: what it
has goes to the other one.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from broker.client.group import GroupReader
from broker.client.http.calls import path
from tests.cluster.group_kills import PARTITIONS, Play, append, joinable
from tests.support.clusters import RealCluster
from tests.support.effort import examples, seeded
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]


def test_each_record_is_committed_once_whoever_is_killed(tmp_path: Path) -> None:
    Play(tmp_path, seeded(7)).run(examples(8), then=lag_is_told)


def test_a_silent_member_ends_though_the_controller_is_killed(tmp_path: Path) -> None:
    cluster, appended = RealCluster(tmp_path, None), dict[int, int]()
    try:
        cluster.start()
        with cluster.client(deadline_s=60.0) as client:
            client.create_stream("orders", partitions=PARTITIONS, replication_factor=3)
            append(client, appended, 10)
            eventually(lambda: joinable(client), timeout_s=90, what="the feature level of groups")
            silent = {"member": "silent", "streams": ["orders"], "timeout_ms": 6_000}
            client._calls.json("POST", path("groups", "billing", "members"), silent)
            with closing(client.group("billing", timeout_s=30.0).read("orders")) as reader:
                killed = cluster.controller()
                cluster.brokers[killed].kill9()
                done = dict[int, int]()
                thread = Thread(target=read_all, args=(reader, done), daemon=True)
                thread.start()
                eventually(lambda: done == appended, timeout_s=120, what="all partitions to be read by the other one")
                thread.join()
                cluster.brokers[killed].start(wait=False)
                cluster.wait_ready(killed)
                reader.commit()
                said = client.describe_group("billing")
                assert [each.member for each in said.members] == [reader._life.member]
                assert {(each.member, each.is_revoked, each.lag) for each in said.partitions} == {
                    (reader._life.member, False, 0)
                }
    finally:
        cluster.stop()


def read_all(reader: GroupReader, done: dict[int, int]) -> None:
    """Up to the end of each partition: how many records of each."""
    while sum(done.values()) < 10 * PARTITIONS:
        rows = next(reader)
        assert reader.at is not None
        done[reader.at[1]] = done.get(reader.at[1], 0) + rows.num_rows


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
