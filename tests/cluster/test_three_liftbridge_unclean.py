"""Groups of Liftbridge's clients on three brokers: what is added is read from its first record, and an unclean election
is told where it has replaced what a group had done.

Method: as test_three_liftbridge.py; a partition whose leader alone has its end dies, and an operator has the other
replica lead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import grpc
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.proto import liftbridge_pb2 as pb
from broker.metadata.cluster import FEATURE_LEVEL
from tests.cluster.test_three_liftbridge import HOSTS, Loopback, when_ready
from tests.support.clusters import IDS, RealCluster, store
from tests.support.liftbridge import client_of
from tests.support.processes import eventually, free_port

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]
PASSES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION)
CURSOR: dict[str, Any] = {"stream": "s", "partition": 0, "cursor_id": "__group:g"}


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def cluster(tmp_path: Any, port: int) -> Iterator[RealCluster]:
    network: Any = Loopback()
    cluster = RealCluster(tmp_path, None, network=network)
    for broker, process in cluster.brokers.items():
        process.env["LIFTLOG_LIFTBRIDGE_LISTEN"] = f"{HOSTS[broker]}:{port}"
    try:
        yield cluster.start()
    finally:
        cluster.stop()


class Consumer:
    """One of group g, which asks the broker `at`."""

    def __init__(self, port: int, at: str, name: str) -> None:
        self.port, self.at, self.named = port, at, {"group_id": "g", "consumer_id": name}
        self.joined = self.call("JoinConsumerGroup", **self.named, streams=["s"])
        self.epoch = self.joined.epoch

    def call(self, name: str, /, *, at: str | None = None, **fields: Any) -> Any:
        with client_of(self.port, host=HOSTS[at or self.at]) as client:
            return eventually(lambda: when_ready(client, name, **fields), what=name)

    def fetch(self) -> set[int]:
        answer = self.call("FetchConsumerGroupAssignments", **self.named, epoch=self.joined.epoch)
        self.epoch = answer.epoch
        return {number for each in answer.assignments for number in each.partitions}

    def read(self, leader: str, number: int, start: int, count: int) -> Any:
        """The offsets, or the code and the facts of the refusal; None: it passes."""
        self.fetch()
        member = pb.Member(**self.named, group_epoch=self.epoch)
        with client_of(self.port, host=HOSTS[leader]) as client:
            call = client.subscribe(stream="s", partition=number, start=start, consumer=member)
            try:
                assert next(call) == pb.Record()
                return [record.offset for record in islice(call, count)]
            except grpc.RpcError as error:
                if error.code() in PASSES:
                    return None
                return error.code().name, json.loads(dict(call.trailing_metadata()).get("liftlog-fields", "{}"))
            finally:
                call.cancel()


def test_a_group_skips_nothing_that_is_added_or_put_in_the_place_of_what_it_had_done(
    cluster: RealCluster, port: int
) -> None:
    with cluster.client(deadline_s=60.0) as client:
        eventually(lambda: client.cluster().feature_level == FEATURE_LEVEL, what="the feature level")
        client.create_stream("s", replication_factor=2, min_insync_replicas=1)
        leader = cluster.leader("s")
        [placed] = client.placements("s")
        [other] = {*placed.replicas} - {leader}
        [third] = {*IDS} - {leader, other}
        store(client, "s", 0, [{"value": b"both"}] * 2)
        cluster.in_sync("s", 2)
        a = Consumer(port, third, "a")
        client.add_partitions("s", 2)
        store(client, "s", 1, [{"value": b"added"}] * 2)
        at = cluster.leader("s", 1)
        eventually(lambda: a.fetch() == {0, 1}, what="its share")
        assert eventually(lambda: a.read(at, 1, pb.NEW_ONLY, 2), what="what was added") == [0, 1]
        leader = cluster.leader("s")
        cluster.brokers[other].kill9()
        cluster.in_sync("s", 1)
        store(client, "s", 0, [{"value": b"one alone"}] * 2)
        assert eventually(lambda: a.read(leader, 0, pb.EARLIEST, 4), what="its records") == [0, 1, 2, 3]
        keeper = eventually(lambda: cluster.leader("__offsets"), what="who keeps offsets")
        a.call("SetCursor", at=keeper, **CURSOR, offset=3)
        a.call("LeaveConsumerGroup", **a.named)
        cluster.brokers[leader].kill9()
        cluster.brokers[other].start(wait=False)
        cluster.wait_ready(other)
        eventually(lambda: client.placements("s")[0].leader is None, what="nobody leads")
        client.elect_unclean("s", 0, broker=other, accept_loss=True)
        store(client, "s", 0, [{"value": b"after"}] * 4)
        b = Consumer(port, third, "b")
        eventually(lambda: b.fetch() == {0, 1}, what="its share")
        said, fields = eventually(lambda: b.read(other, 0, pb.EARLIEST, 1), what="the refusal")
        assert (said, fields["offset"]) == ("OUT_OF_RANGE", 4)
        b.call("LeaveConsumerGroup", **b.named)
        cluster.brokers[leader].start(wait=False)
        cluster.wait_ready(leader)
        client.reset_group("g", "s", 2, partitions=[0])
        b = Consumer(port, third, "b")
        eventually(lambda: b.fetch() == {0, 1}, what="its share")
        assert eventually(lambda: b.read(cluster.leader("s"), 0, pb.EARLIEST, 4), what="the others") == [2, 3, 4, 5]
