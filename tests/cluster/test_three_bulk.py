"""Goal: an empty replica is filled in bulk, and has its leader's bytes in the end, whoever ends or hangs half-way.

Method: three real brokers; a stream of two replicas is given a third one, and is copied at a limited pace.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.api.batch import HEADER_BYTES, message_bytes
from broker.api.errors import BadBatch
from broker.api.schema import SCHEMA_BYTES
from tests.support.clusters import RealCluster, store, three
from tests.support.processes import eventually, frozen

pytestmark = [pytest.mark.process, pytest.mark.slow]
BATCHES, ROWS = 60, 100
PACE = 24 << 20
BULK = 'liftlog_replica_connections_total{what="bulk"}'


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    with three(tmp_path, LIFTLOG_REPLICATION_CATCH_UP_BYTES_PER_S=str(PACE)) as made:
        yield made


def stored(cluster: RealCluster, broker: str) -> bytes:
    """The batches of partition 0 of `s` on the disk of a broker, without what its segments add."""
    found = []
    for path in sorted((cluster.brokers[broker].folder / "data" / "streams" / "s").glob("*/0/*.arrows")):
        data, at = path.read_bytes(), len(SCHEMA_BYTES)
        while len(data) - at > HEADER_BYTES:
            try:
                end = at + message_bytes(data[at : at + HEADER_BYTES])
            except BadBatch:
                break  # the end marker, or room for more
            found.append(data[at:end])
            at = end
    return b"".join(found)


@pytest.mark.parametrize("what", ["nothing", "follower killed", "leader killed", "leader frozen"])
def test_an_empty_replica_has_all_in_the_end_whatever_happens_half_way(cluster: RealCluster, what: str) -> None:
    rng = random.Random(7)
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("s", replication_factor=2, segment_bytes=16 << 20)
        cluster.in_sync("s", 2)
        for _ in range(BATCHES):
            store(client, "s", 0, [{"value": rng.randbytes(10_000)} for _ in range(ROWS)])
        [empty] = {*cluster.brokers} - {*cluster.state("s")["replicas"]}
        client.alter("s", replication_factor=3)
        eventually(lambda: cluster.brokers[empty].metric(BULK) >= 2, what="the first bytes in bulk")
        leader = cluster.leader("s")
        assert len(stored(cluster, empty)) < len(stored(cluster, leader)), "it has all, and nothing is half-way"
        if what == "follower killed":
            cluster.brokers[empty].kill9()
            cluster.brokers[empty].start()
        elif what == "leader killed":
            cluster.brokers[leader].kill9()
            cluster.brokers[leader].start()
        elif what == "leader frozen":
            with frozen(cluster.brokers[leader].pid):
                eventually(
                    lambda: cluster.describe("s", by=empty)["partitions"][0]["leader"]["id"] != leader, timeout_s=60
                )
        cluster.in_sync("s", 3)
        end = cluster.state("s")["high_watermark"]
        store(client, "s", 0, [{"value": b"one more"}])
        assert end == BATCHES * ROWS
        if what != "follower killed":  # that one counts from its start on: whether much was left then is luck
            assert cluster.brokers[empty].metric("liftlog_replica_bulk_bytes_total") > 8 << 20
    whole = stored(cluster, leader)
    for broker in cluster.brokers:
        eventually(lambda broker=broker: stored(cluster, broker) == whole, what=f"{broker} to have the same bytes")
