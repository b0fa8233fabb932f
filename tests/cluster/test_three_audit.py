"""Goal: of three brokers each records what it was asked, once; and what was answered survives the leader of `__audit`.

Method: acts at each broker in turn, and `kill -9` of the leader right after an answer. Then the stream is read, as any.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from broker.api.errors import InvalidRequest
from broker.client import Client
from broker.metadata.cluster import AUDITED
from tests.support.clusters import RealCluster, store
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

AUDIT = "__audit"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    made = RealCluster(tmp_path_factory.mktemp("audited"), None)
    try:
        made.start()
        with made.client(deadline_s=60.0) as client:
            eventually(lambda: client.cluster().feature_level >= AUDITED, what="the feature level")
            eventually(lambda: AUDIT in {each.name for each in client.streams(internal=True)}, what=AUDIT)
        made.leader(AUDIT)
        made.in_sync(AUDIT, 3)
        yield made
    finally:
        made.stop()


def records(client: Client) -> list[dict[str, Any]]:
    return [json.loads(value) for value in client.read(AUDIT).to_table()["value"].to_pylist()]


def of(client: Client, operation: str, name: str) -> set[tuple[str, str]]:
    """Ids and results of an act: a client that heard nothing has asked twice."""
    return {
        (each["id"], each["result"])
        for each in records(client)
        if each["operation"] == operation and name in (each["resource"].get("stream"), each["asked"].get("name"))
    }


def done(client: Client, operation: str, name: str) -> int:
    """How many records say that it is done."""
    return sum(result == "done" for _, result in of(client, operation, name))


def test_what_was_answered_survives_the_kill_of_the_leader(cluster: RealCluster) -> None:
    for number in range(3):
        leader = cluster.leader(AUDIT)
        others = [broker for broker in cluster.brokers if broker != leader]
        for by in (*others, leader):
            with cluster.client(by, deadline_s=60.0) as client:
                client.create_stream(f"s{number}-{by}", replication_factor=3)
                client.alter(f"s{number}-{by}", retention_ms=1_000_000)
        cluster.brokers[leader].kill9()
        with cluster.client(*others, deadline_s=60.0) as client:
            cluster.leader(AUDIT)
            for by in cluster.brokers:
                assert done(client, "create_stream", f"s{number}-{by}") >= 1  # a client may have asked twice
                assert done(client, "alter_stream", f"s{number}-{by}") >= 1
            assert {each["broker"] for each in records(client)} <= set(cluster.brokers)
        cluster.brokers[leader].start(wait=False)
        cluster.wait_ready(leader)
        cluster.in_sync(AUDIT, 3)


def test_an_act_while_nobody_leads_is_recorded_by_then_or_later(cluster: RealCluster) -> None:
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("amid", replication_factor=3)
        before = len(of(client, "pause_stream", "amid"))
    leader = cluster.leader(AUDIT)
    others = [broker for broker in cluster.brokers if broker != leader]
    cluster.brokers[leader].kill9()
    with cluster.client(*others, deadline_s=60.0) as client:
        client.pause("amid")
        cluster.leader(AUDIT)
        eventually(lambda: len(of(client, "pause_stream", "amid")) > before, timeout_s=60, what="its record")
        client.resume("amid")
    cluster.brokers[leader].start(wait=False)
    cluster.wait_ready(leader)
    cluster.in_sync(AUDIT, 3)


def test_what_other_brokers_carry_out_is_recorded_once_by_the_one_that_was_asked(cluster: RealCluster) -> None:
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("spread", partitions=6, replication_factor=3)
        for partition in range(6):
            store(client, "spread", partition, [{"value": b"v"}])
    asked = next(iter(cluster.brokers))
    with cluster.client(asked, deadline_s=60.0) as client:
        client.trim("spread", before="latest")
        found = Counter(
            (each["broker"], each["principal"], each["result"])
            for each in records(client)
            if each["operation"] == "trim_stream" and each["resource"]["stream"] == "spread"
        )
        assert found[asked, "anonymous", "done"] == 1
        assert {broker for broker, _, result in found if result == "done"} == {asked}


def test_a_drain_of_its_leader_is_recorded(cluster: RealCluster) -> None:
    """Each partition has three replicas, so nothing can move; what is asked is recorded, refused or not."""
    leader = cluster.leader(AUDIT)
    with cluster.client(deadline_s=60.0) as client:
        before = len([each for each in records(client) if each["operation"] == "drain_broker"])
        with suppress(InvalidRequest):
            client.drain(leader)
        found = [each for each in records(client) if each["operation"] == "drain_broker"][before:]
        assert {each["resource"]["broker"] for each in found} == {leader}
