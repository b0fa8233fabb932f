"""Goal: three real brokers, each with a damaged record in another place, lose nothing, and nobody begins anew.

Method: bits are flipped in the files of running brokers; a scrub that never rests finds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import Client
from tests.cluster.test_three_operator import rot
from tests.support.clusters import RealCluster, store, three
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

RECORDS = [b"record number %02d, which is long enough to be found" % number for number in range(12)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with three(tmp_path_factory.mktemp("damaged"), LIFTLOG_SCRUB_INTERVAL_MS="200") as made:
        yield made


@pytest.fixture
def client(cluster: RealCluster) -> Iterator[Client]:
    with cluster.client(deadline_s=60.0) as made:
        yield made


def made(cluster: RealCluster, client: Client, name: str) -> None:
    client.create_stream(name, replication_factor=3)
    cluster.in_sync(name, 3)
    for record in RECORDS:
        store(client, name, 0, [{"value": record}])


def mended(cluster: RealCluster, broker: str, name: str) -> bool:
    return cluster.brokers[broker].metric(_named("liftlog_partition_mended_offsets", name)) == 1


def _named(metric: str, stream: str) -> str:
    return f'{metric}{{stream="{stream}",partition="0"}}'


def values(client: Client, name: str) -> list[bytes]:
    found: list[bytes] = client.read(name).to_table().column("value").to_pylist()
    return found


def held(cluster: RealCluster, broker: str, name: str) -> bool:
    """Whether each record is whole on the disk of a broker."""
    folder = Path(cluster.brokers[broker].folder, "data", "streams", name)
    stored = b"".join(path.read_bytes() for path in sorted(folder.glob("*/0/*.arrows")))
    return all(record in stored for record in RECORDS)


def test_each_replica_is_damaged_in_another_place_and_nothing_is_lost(cluster: RealCluster, client: Client) -> None:
    made(cluster, client, "rotten")
    for number, broker in enumerate(sorted(cluster.brokers)):
        rot(cluster, broker, "rotten", RECORDS[2 + 3 * number])
    for broker in cluster.brokers:
        eventually(lambda broker=broker: mended(cluster, broker, "rotten"), what=f"{broker} to be mended")  # type: ignore[misc]
    cluster.in_sync("rotten", 3)
    assert values(client, "rotten") == RECORDS
    store(client, "rotten", 0, [{"value": b"after"}])
    assert values(client, "rotten") == [*RECORDS, b"after"]
    for name, process in cluster.brokers.items():
        assert held(cluster, name, "rotten")
        assert process.metric(_named("liftlog_partition_lost_ranges", "rotten")) == 0
        assert "replica.mended partition=rotten/0" in process.output()
        assert "replica.steps_out" not in process.output()


def asks_in_vain(cluster: RealCluster, broker: str) -> bool:
    return "replica.not_mended partition=alone/0" in cluster.brokers[broker].output()


def test_two_are_damaged_in_the_same_place_and_the_third_comes_back(cluster: RealCluster, client: Client) -> None:
    made(cluster, client, "alone")
    leader = client.placements("alone")[0].leader
    away = next(broker for broker in sorted(cluster.brokers) if broker not in (leader, cluster.controller()))
    cluster.brokers[away].kill9()
    cluster.in_sync("alone", 2)
    two = [broker for broker in cluster.brokers if broker != away]
    for broker in two:
        rot(cluster, broker, "alone", RECORDS[5])
    for broker in two:
        eventually(lambda broker=broker: asks_in_vain(cluster, broker), what=f"{broker} to ask in vain")  # type: ignore[misc]
    cluster.brokers[away].start(wait=False)
    cluster.wait_ready(away)
    for broker in two:
        eventually(lambda broker=broker: mended(cluster, broker, "alone"), what=f"{broker} to be mended")  # type: ignore[misc]
    cluster.in_sync("alone", 3)
    assert values(client, "alone") == RECORDS
    for name, process in cluster.brokers.items():
        assert held(cluster, name, "alone")
        assert "replica.steps_out" not in process.output()
