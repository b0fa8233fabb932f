"""Goal: streams of a cluster are altered, paused, trimmed and deleted as those of one broker, also while one is away.

Method: three real brokers over HTTP and NATS; one of them is killed before a change and comes back after it.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
from collections.abc import Iterator
from typing import Any

import nats
import nats.errors
import pytest

from broker.api.errors import InvalidSetting, LiftlogError, Retryable, StreamPaused, UnknownStream
from broker.client import Client
from broker.client.nats_connection import flush
from tests.support.acks import offset_of
from tests.support.clusters import RealCluster, store, three
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with three(tmp_path_factory.mktemp("three")) as made:
        yield made


@pytest.fixture
def client(cluster: RealCluster) -> Iterator[Client]:
    with cluster.client(deadline_s=60.0) as made:
        yield made


def follower(cluster: RealCluster, stream: str) -> str:
    leader = cluster.leader(stream)
    return next(broker for broker in sorted(cluster.brokers) if broker != leader)


def back(cluster: RealCluster, broker: str, stream: str) -> None:
    cluster.brokers[broker].start(wait=False)
    cluster.wait_ready(broker)
    cluster.in_sync(stream, 3)


def folders(cluster: RealCluster, broker: str, stream: str) -> list[str]:
    path = cluster.brokers[broker].folder / "data" / "streams" / stream
    return sorted(each.name for each in path.iterdir()) if path.exists() else []


def publish(cluster: RealCluster, subject: str, value: bytes) -> dict[str, Any]:
    """Publish once; returns the answer."""

    async def run() -> bytes:
        assert cluster.nats is not None
        connection = await nats.connect(cluster.nats.url)
        try:
            return bytes((await connection.request(subject, value, timeout=5.0)).data)
        finally:
            await connection.close()

    found: dict[str, Any] = json.loads(asyncio.run(run()))
    return found


def test_a_stream_that_is_deleted_and_made_again_while_a_broker_is_away(cluster: RealCluster, client: Client) -> None:
    client.create_stream("again", subject="again", replication_factor=3)
    store(client, "again", 0, [{"value": b"old"}] * 3)
    away = follower(cluster, "again")
    [old] = folders(cluster, away, "again")
    cluster.brokers[away].kill9()
    assert client.delete_stream("again")
    with pytest.raises(UnknownStream):
        client.describe("again")
    eventually(lambda: len([b for b in client.cluster().brokers if b.live]) == 2, what="it to be failed")
    with cluster.client(deadline_s=0.0) as impatient, pytest.raises(Retryable, match="3 replicas need as many"):
        impatient.create_stream("again", subject="again", replication_factor=3)
    client.create_stream("again", subject="again", replication_factor=2)
    store(client, "again", 0, [{"value": b"new"}])
    cluster.brokers[away].start(wait=False)
    cluster.wait_ready(away)
    eventually(lambda: old not in folders(cluster, away, "again"), what="the old folder to go")
    assert offset_of(publish(cluster, "again", b"newer")) == 1
    client.alter("again", replication_factor=3)
    cluster.in_sync("again", 3)
    assert client.read("again").to_table().column("value").to_pylist() == [b"new", b"newer"]
    client.delete_stream("again")
    for broker in cluster.brokers:
        eventually(lambda broker=broker: not folders(cluster, broker, "again"), what="no folder")  # type: ignore[misc]


def test_a_trim_reaches_who_was_away(cluster: RealCluster, client: Client) -> None:
    client.create_stream("trimmed", replication_factor=3)
    for number in range(4):
        store(client, "trimmed", 0, [{"value": b"%d" % number}])
    away = follower(cluster, "trimmed")
    cluster.brokers[away].kill9()
    cluster.in_sync("trimmed", 2)
    assert client.trim("trimmed", before=2) == {0: 2}
    back(cluster, away, "trimmed")
    leader = cluster.leader("trimmed")
    cluster.brokers[leader].kill9()
    assert cluster.leader("trimmed") != leader
    assert client.read("trimmed").to_table().column("value").to_pylist() == [b"2", b"3"]
    assert cluster.state("trimmed")["log_start_offset"] == 2
    back(cluster, leader, "trimmed")


def test_pause_and_read_only_hold_on_every_broker(cluster: RealCluster, client: Client) -> None:
    client.create_stream("paused", subject="paused", replication_factor=3)
    assert offset_of(publish(cluster, "paused", b"one")) == 0
    client.pause("paused")
    with pytest.raises(StreamPaused), cluster.client(deadline_s=0.0) as impatient:
        impatient.append("paused", 0, [{"value": b"x"}])
    with pytest.raises(nats.errors.Error):
        publish(cluster, "paused", b"x")
    leader = cluster.leader("paused")
    cluster.brokers[leader].kill9()
    client.read("paused").to_table()  # waits for the next leader
    assert cluster.leader("paused") != leader
    with pytest.raises(StreamPaused), cluster.client(deadline_s=0.0) as impatient:
        impatient.append("paused", 0, [{"value": b"x"}])
    client.resume("paused")
    eventually(lambda: stored(cluster, "paused", b"two"), what="an ack")
    client.set_read_only("paused")
    eventually(lambda: "error" in publish(cluster, "paused", b"x"), what="a refusal")
    assert client.read("paused").to_table().column("value").to_pylist() == [b"one", b"two"]
    back(cluster, leader, "paused")


def test_who_creates_a_stream_without_nats_hears_it_from_each_leader(cluster: RealCluster, client: Client) -> None:
    assert cluster.nats is not None
    cluster.nats.kill9()
    try:
        for broker in cluster.brokers.values():
            eventually(lambda each=broker: each.metric("liftlog_intake_connected") == 0, what="no NATS")  # type: ignore[misc]
        made = client.create_stream("deaf", subject="deaf", partitions=3, replication_factor=3)
        told = [each for each in made.warnings if "not connected to NATS" in each]
        assert [each.partition(":")[0] for each in sorted(told)] == ["broker a", "broker b", "broker c"], told
        assert client.describe("deaf").warnings == made.warnings[: -len(told)]
    finally:
        cluster.nats.start()
    for broker in cluster.brokers.values():
        eventually(lambda each=broker: each.metric("liftlog_intake_connected") == 1, what="NATS")  # type: ignore[misc]
    assert client.create_stream("deaf", subject="deaf", partitions=3, replication_factor=3).warnings == ()


def test_a_change_holds_when_it_is_answered(cluster: RealCluster, client: Client) -> None:
    """Seen before: the leaders heard of it later, and a pause lost what NATS had delivered before it."""
    made = client.create_stream("held", subject="held.*", partitions=3, partition_by="subject", replication_factor=3)
    assert not [each for each in made.warnings if "no leader has said" in each], made.warnings
    burst = 500

    async def send() -> None:
        assert cluster.nats is not None
        connection = await nats.connect(cluster.nats.url)
        for number in range(burst):
            await connection.publish(f"held.{number % 50}", b"x")
        await flush(connection, 60)
        await connection.close()

    def count() -> int:
        return sum(eventually(lambda: ends(client, "held"), what="each partition to say its end"))

    def refusals() -> set[str]:
        found = set()
        with cluster.client(deadline_s=0.0) as impatient:
            for partition in range(3):
                try:
                    impatient.append("held", partition, [{"value": b"x"}])
                    found.add("stored")
                except LiftlogError as error:
                    found.add(error.reason)
        return found

    for number in range(8):
        before = count()
        asyncio.run(send())
        client.pause("held")
        assert refusals() == {"stream_paused"}
        # What was stored before the pause is committed a moment later, when the followers have it.
        eventually(lambda: count() == before + burst, what=f"all of burst {number}")  # noqa: B023
        client.resume("held")
        assert stored(cluster, f"held.{number}", b"x")
        client.set_read_only("held")
        assert refusals() == {"read_only"}
        client.set_read_only("held", False)
        assert refusals() == {"stored"}


def ends(client: Client, stream: str) -> list[int]:
    """Of all partitions; empty: of one it is not known."""
    found = [partition.high_watermark for partition in client.describe(stream).partitions]
    return [end for end in found if end is not None] if None not in found else []


def stored(cluster: RealCluster, subject: str, value: bytes) -> bool:
    try:
        return "error" not in publish(cluster, subject, value)
    except nats.errors.Error:
        return False


def test_settings_and_minimum_are_altered(cluster: RealCluster, client: Client) -> None:
    client.create_stream("altered", subject="altered", replication_factor=3)
    changed = client.alter("altered", retention_ms=60_000, min_insync_replicas=3)
    assert changed.settings["retention_ms"] == 60_000
    for broker in cluster.brokers:
        with cluster.client(broker) as one:
            [listed] = [each for each in one.streams() if each.name == "altered"]
            for shown in (changed, one.describe("altered"), listed):
                assert (shown.replication_factor, shown.min_insync_replicas) == (3, 3)
    away = follower(cluster, "altered")
    cluster.brokers[away].kill9()
    cluster.in_sync("altered", 2)
    with pytest.raises(Retryable, match="min_insync_replicas=3"), cluster.client(deadline_s=0.0) as impatient:
        impatient.append("altered", 0, [{"value": b"x"}])
    assert client.alter("altered", min_insync_replicas=2).min_insync_replicas == 2
    store(client, "altered", 0, [{"value": b"x"}])
    back(cluster, away, "altered")


def test_a_schema_is_kept_by_every_broker_and_outlives_a_death(cluster: RealCluster, client: Client) -> None:
    client.create_stream("kept", replication_factor=3, payload_schema="item long")  # waits for the level, if need be
    away = follower(cluster, "kept")
    cluster.brokers[away].kill9()
    client.alter("kept", payload_schema="item STRING")
    back(cluster, away, "kept")
    cluster.brokers[away].kill9()  # now it begins with what it has on its disk
    back(cluster, away, "kept")
    for broker in cluster.brokers:
        with cluster.client(broker) as one:
            assert one.describe("kept").settings["payload_schema"] == "item STRING", broker


def test_what_a_cluster_cannot_do_is_refused_by_name(cluster: RealCluster, client: Client) -> None:
    client.create_stream("refused", replication_factor=1)
    with pytest.raises(InvalidSetting, match="share of all"):
        client.create_stream("group", subject="g.>", partitions=2, partition_by="key", group="g")
    with pytest.raises(InvalidSetting, match="interval"):
        client.create_stream("interval", fsync="interval", replication_factor=3)


def test_replicas_are_not_taken_away_by_a_setting(cluster: RealCluster, client: Client) -> None:
    """Seen before: it was answered as if it were done."""
    client.create_stream("fewer", replication_factor=3)
    with pytest.raises(InvalidSetting, match="has 3 replicas"):
        client.alter("fewer", replication_factor=2)
    changed = client.alter("fewer", replication_factor=3, min_insync_replicas=3)
    assert (changed.replication_factor, changed.min_insync_replicas) == (3, 3)


def test_every_broker_says_the_same(cluster: RealCluster, client: Client) -> None:
    client.create_stream("same", partitions=3, replication_factor=2)
    for partition in range(3):
        store(client, "same", partition, [{"value": b"x"}] * (partition + 1))
    for broker in cluster.brokers:
        with cluster.client(broker) as one:
            assert [p.high_watermark for p in one.describe("same").partitions] == [1, 2, 3]
            watched = one.watch(streams="same").streams["same"]
            assert ({p: at.high_watermark for p, at in watched.partitions.items()}, watched.unknown) == (
                {0: 1, 1: 2, 2: 3},
                (),
            )
            assert one.read("same").to_table().num_rows == 6
            one.reset("c", "same", "latest")
            assert one.consumer("c").lag == 0
        metrics = cluster.brokers[broker].get("/metrics").decode()
        assert "liftlog_session_open 1.0" in metrics
        assert "liftlog_partitions_without_leader 0.0" in metrics
        assert "liftlog_votes_to_spare 1.0" in metrics
        assert f"liftlog_controller {float(cluster.controller() == broker)}" in metrics
        assert "liftlog_leadership_start_seconds_count" in metrics


def test_a_stream_is_known_to_all_as_soon_as_it_is_made(cluster: RealCluster) -> None:
    """Also to brokers that keep nothing of it."""
    makers = [cluster.brokers[broker] for broker in sorted(cluster.brokers)]
    for number in range(30):
        made = makers[number % 3].request("POST", "/v1/streams", {"name": f"known-{number}", "replication_factor": 1})
        for other in makers:
            assert other.get(f"/v1/streams/known-{number}")["incarnation"] == made["incarnation"]


def test_a_name_that_nobody_has_is_unknown_on_every_broker(cluster: RealCluster) -> None:
    for broker in cluster.brokers.values():
        with pytest.raises(urllib.error.HTTPError) as found:
            broker.get("/v1/streams/nowhere")
        assert found.value.code == 404
