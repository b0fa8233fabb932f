"""Goal: whoever is killed at a chosen moment of a transfer in bulk, nothing of it counts, and nothing is lost.

Method: three real brokers, each with a relay through which others fetch from it in bulk, which stops at
that moment. A stream of two replicas is given a third one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from broker.link.bulk import ASKS
from tests.cluster.test_three_bulk import stored
from tests.support.clusters import IDS, RealCluster, store
from tests.support.effort import EFFORT
from tests.support.linked import Relay
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]
BATCHES, ROWS = 24, 100
MOMENTS = ("the first bytes", "half-way", "all has come, and it asks")
VICTIMS = ("leader and follower", "leader", "follower")
CASES = [
    (moment, who) for moment in MOMENTS for who in (VICTIMS if moment == "half-way" or EFFORT > 1 else VICTIMS[:1])
]
"""CI leaves out that only one of the two is killed at the first and the last moment."""


@contextmanager
def relayed(folder: Path) -> Iterator[tuple[RealCluster, dict[str, Relay]]]:
    """Three brokers, and the relays through which others fetch from them."""
    with ExitStack() as stack:
        relays = {broker: Relay() for broker in IDS}
        cluster = RealCluster(
            folder, None, command=lambda broker: ("tests.support.bulk_told", str(relays[broker].port))
        )
        stack.callback(cluster.stop)
        for broker, relay in relays.items():
            stack.callback(relay.close)
            relay.target = cluster.brokers[broker].port + 1
        yield cluster.start(), relays


@pytest.mark.parametrize(("moment", "victims"), CASES)
def test_who_is_killed_amid_a_transfer_has_nothing_of_it_and_all_in_the_end(
    tmp_path: Path, moment: str, victims: str
) -> None:
    rng = random.Random(7)
    with relayed(tmp_path) as (cluster, relays), cluster.client(deadline_s=60.0) as client:
        client.create_stream("s", replication_factor=2, segment_bytes=4 << 20)
        cluster.in_sync("s", 2)
        for _ in range(BATCHES):
            store(client, "s", 0, [{"value": rng.randbytes(10_000)} for _ in range(ROWS)])
        [empty] = {*IDS} - {*cluster.state("s")["replicas"]}
        leader = cluster.leader("s")
        whole = stored(cluster, leader)
        for relay in relays.values():
            relay.pause_after = {MOMENTS[0]: 1, MOMENTS[1]: 8 << 20}.get(moment)
            relay.pause_before = ASKS if moment == MOMENTS[2] else None
        client.alter("s", replication_factor=3)
        eventually(lambda: any(relay.paused for relay in relays.values()), what=moment)
        named = {"follower": [empty], "leader": [leader], "leader and follower": [leader, empty]}[victims]
        for broker in named:
            cluster.brokers[broker].kill9()
        if empty in named:
            assert stored(cluster, empty) == b"", "nobody has said that it holds"
        for relay in relays.values():
            relay.pause_after = relay.pause_before = None
            relay.paused = False
        for broker in named:
            cluster.brokers[broker].start(wait=False)
        for broker in named:
            cluster.wait_ready(broker)
        cluster.in_sync("s", 3)
        assert cluster.state("s")["high_watermark"] == BATCHES * ROWS
        assert stored(cluster, cluster.leader("s")) == whole
        store(client, "s", 0, [{"value": b"one more"}])
        whole = stored(cluster, cluster.leader("s"))
    for broker in IDS:
        eventually(lambda broker=broker: stored(cluster, broker) == whole, what=f"{broker} to have the same bytes")
