"""Goal: what a broker that is alone does with partitions, offsets and compaction, three do together.

Method: three real brokers over HTTP and NATS; what is checked is what clients, folders and offline tools see.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zlib import crc32

import nats
import nats.errors
import pyarrow as pa
import pytest

from broker.client import Client
from tests.support.acks import offset_of, partition_of, place_of
from tests.support.clusters import RealCluster, store, three
from tests.support.plain_reader import read_segment
from tests.support.processes import eventually, frozen
from tests.unit.runtime.test_captures import Publishers

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    settings = {"LIFTLOG_CLEANER_INTERVAL_MS": "200", "LIFTLOG_CLEANER_OFFSETS_RETENTION_MS": "2000"}
    with three(tmp_path_factory.mktemp("three"), **settings) as made:
        yield made


@pytest.fixture
def client(cluster: RealCluster) -> Iterator[Client]:
    with cluster.client(deadline_s=60.0) as made:
        yield made


def test_consumer_offsets_are_kept_by_three_from_the_beginning(cluster: RealCluster, client: Client) -> None:
    """The first description that anybody gets: nobody saw it with fewer. (First of this file: the cluster is new.) So
    it is with what sinks commit."""

    def described(name: str) -> list[int]:
        return [s.replication_factor or 0 for s in client.streams(internal=True) if s.name == name]

    for name in ("__offsets", "__commits"):
        assert eventually(lambda name=name: described(name), what=f"the stream {name}") == [3]  # type: ignore[misc]
    client.create_stream("first", replication_factor=3)
    store(client, "first", 0, [{"value": b"x"}])
    client.reset("reader", "first", "latest")
    assert client.consumer("reader").lag == 0


def rows(client: Client, stream: str) -> list[tuple[int, int, bytes]]:
    """(partition, offset, value) of all records."""
    found = client.read(stream).to_table()
    columns = (found.column(name).to_pylist() for name in ("partition", "offset", "value"))
    return list(zip(*columns, strict=True))


def test_partitions_are_added_under_load(cluster: RealCluster, client: Client) -> None:
    """Each acked message is stored where its ack says, twice only if its publisher repeated it, and each key is in the
    partition of the present count. A producer that was opened before goes on, exactly once."""
    client.create_stream("grown", subject="grown", partitions=2, partition_by="key", replication_factor=3)
    assert cluster.nats is not None
    publishers = Publishers(cluster.nats.url, [("grown", {"Liftlog-Key": f"k{number}"}) for number in range(8)])

    def until_more() -> None:
        before = list(publishers.count)
        eventually(lambda: all(now > then + 5 for now, then in zip(publishers.count, before, strict=True)))

    sent = 0
    with ThreadPoolExecutor(1) as thread, client.producer("grown", linger_ms=1, partitioner="key") as producer:
        running = thread.submit(lambda: asyncio.run(publishers.run()))
        try:
            for count in (3, 5):
                for _ in range(50):
                    producer.send(b"p%d" % sent, key=b"p")
                    sent += 1
                until_more()
                assert len(client.add_partitions("grown", count).partitions) == count
            until_more()
            before = set(publishers.acks)
            until_more()
        finally:
            publishers.is_ending = True
        running.result(60)
        for _ in range(50):
            producer.send(b"p%d" % sent, key=b"p")
            sent += 1
        producer.flush(60)
    stored = rows(client, "grown")
    places = {(partition, offset): value for partition, offset, value in stored}
    for value, ack in publishers.acks.items():
        assert places[place_of(ack)] == value
        if value not in before:
            assert partition_of(ack) == crc32(b"k%s" % value.split()[0]) % 5
    times = Counter(value for _, _, value in stored)
    assert sum(count - 1 for count in times.values()) <= sum(publishers.repeated)
    assert [value for _, _, value in stored if value.startswith(b"p")] == [b"p%d" % number for number in range(sent)]


def test_a_leader_that_dies_before_it_has_confirmed_added_partitions(cluster: RealCluster, client: Client) -> None:
    """Nobody counts them before; then another leader confirms, and the old one learns of it when it is back."""
    client.create_stream("halfway", subject="halfway", partitions=1, partition_by="key", replication_factor=3)
    leader = cluster.leader("halfway")
    other = next(broker for broker in sorted(cluster.brokers) if broker != leader)
    pid = cluster.brokers[leader].pid
    with frozen(pid), cluster.client(other, deadline_s=60.0) as there, ThreadPoolExecutor(1) as thread:
        adding = thread.submit(there.add_partitions, "halfway", 3)
        eventually(lambda: "3 partitions are being made" in str(there.describe("halfway").warnings), what="the command")
        cluster.brokers[leader].kill9()
        adding.result(60)
        eventually(lambda: len(there.describe("halfway").partitions) == 3, what="three partitions")
        for partition in range(3):
            assert cluster.leader("halfway", partition) != leader
            there.append("halfway", partition, [{"value": b"%d" % partition}])
    cluster.brokers[leader].start(wait=False)
    cluster.wait_ready(leader)
    for partition in range(3):
        cluster.in_sync("halfway", 3, partition)
    assert sorted(rows(client, "halfway")) == [(partition, 0, b"%d" % partition) for partition in range(3)]


def held(cluster: RealCluster, broker: str, stream: str) -> dict[int, tuple[bytes, bytes | None]] | None:
    """The records that one replica has on its disk: offset -> (key, value). None: it is being written just now."""
    found: dict[int, tuple[bytes, bytes | None]] = {}
    try:
        for path in sorted((cluster.brokers[broker].folder / "data" / "streams" / stream).glob("*/0/*.arrows")):
            for batch in pa.ipc.open_stream(path.read_bytes()):
                columns = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
                found |= {offset: (key, value) for offset, key, value in zip(*columns, strict=True)}
    except (pa.ArrowInvalid, OSError):
        return None
    return found


def test_a_deleted_key_goes_from_all_replicas_and_comes_back_from_none(cluster: RealCluster, client: Client) -> None:
    """A follower is away while keys are deleted: tombstones wait for it, wherever they are, and then go everywhere."""
    settings = {"cleanup": "compact", "segment_bytes": 1 << 16, "min_cleanable_dirty_percent": 1}
    client.create_stream("keyed", replication_factor=3, delete_retention_ms=0, **settings)
    deleted, kept = [b"gone%d" % number for number in range(5)], [b"kept%d" % number for number in range(5)]

    def fill() -> None:
        """Seal what is there: one key, again and again."""
        for _ in range(3):
            client.append("keyed", 0, [{"key": b"filler", "value": b"x" * 10_000}] * 8)

    def all_hold(keys: list[bytes]) -> bool:
        """The same records, of these keys. (An append: who has no news tells his mark every ten seconds only.)"""
        client.append("keyed", 0, [{"key": b"filler", "value": b"x"}])
        logs = [held(cluster, broker, "keyed") for broker in cluster.brokers]
        rest = [{at: r for at, r in log.items() if r[0] != b"filler"} for log in logs if log is not None]
        return len(rest) == 3 and all(r == rest[0] and {key for key, _ in r.values()} == {*keys} for r in rest)

    client.append("keyed", 0, [{"key": key, "value": b"v"} for key in (*deleted, *kept)])
    fill()
    leader = cluster.leader("keyed")
    away = next(broker for broker in sorted(cluster.brokers) if broker != leader)
    stays = [broker for broker in sorted(cluster.brokers) if broker != away]
    eventually(lambda: all_hold([*deleted, *kept]), timeout_s=60, what="three equal logs")
    cluster.brokers[away].kill9()
    client.append("keyed", 0, [{"key": key, "value": None} for key in deleted])
    fill()

    def waits(broker: str) -> bool:
        log = held(cluster, broker, "keyed") or {}
        return [value for key, value in log.values() if key in deleted] == [None] * len(deleted)

    for broker in stays:
        eventually(lambda broker=broker: waits(broker), timeout_s=60, what="tombstones alone")  # type: ignore[misc]
    cluster.brokers[away].start(wait=False)
    cluster.wait_ready(away)
    cluster.in_sync("keyed", 3)
    eventually(lambda: all_hold(kept), timeout_s=90, what="no tombstone on any replica")
    cluster.brokers[cluster.leader("keyed")].kill9()
    eventually(lambda: cluster.leader("keyed") != leader, what="another leader")
    found = client.read("keyed").to_table()
    assert set(found.column("key").to_pylist()) == {*kept, b"filler"}
    for broker in sorted(cluster.brokers.keys() - cluster.running.keys()):
        cluster.brokers[broker].start(wait=False)
        cluster.wait_ready(broker)
    cluster.in_sync("keyed", 3)


def test_a_flipped_bit_in_a_stream_of_one_replica_costs_its_batch_and_no_other(
    cluster: RealCluster, client: Client
) -> None:
    """Nobody else has what stands behind it: it stays, with its offsets, and what is lost is told."""
    client.create_stream("single", replication_factor=1)
    for number in range(8):
        store(client, "single", 0, [{"value": b"%d" % number}])
    leader = cluster.leader("single")
    broker = cluster.brokers[leader]
    broker.kill9()
    [path] = (broker.folder / "data" / "streams" / "single").glob("*/0/*.arrows")
    data = bytearray(path.read_bytes())
    fourth = list(read_segment(bytes(data)))[3]
    data[fourth.position + fourth.length - 5] ^= 1
    path.write_bytes(data)
    broker.start(wait=False)
    cluster.wait_ready(leader)
    assert store(client, "single", 0, [{"value": b"8"}]).first_offset == 8
    found = client.read("single").to_table().column("value").to_pylist()
    assert found == [b"%d" % number for number in range(9) if number != 3]
    assert client.describe("single").partitions[0].lost_ranges == ((3, 4),)


def test_a_consumer_that_was_given_up_is_forgotten_and_the_lag_of_others_is_measured(
    cluster: RealCluster, client: Client
) -> None:
    """This holds whichever brokers lead the offset stream, and whichever lead the partitions that are read."""
    client.create_stream("read", partitions=3, replication_factor=3)
    for partition in range(3):
        store(client, "read", partition, [{"value": b"x"}] * 5)
    client.reset("done", "read", "latest")
    client.reset("behind", "read", "earliest")
    leader = cluster.leader("__offsets")

    def names() -> list[str]:
        return [consumer.consumer for consumer in client.consumers()]

    eventually(lambda: "behind" not in names() and "done" in names(), timeout_s=60, what="one to be forgotten")

    def lags() -> list[float]:
        label = 'liftlog_consumer_lag_records{{consumer="done",stream="read",partition="{}"}}'
        lines = dict(line.rsplit(" ", 1) for line in cluster.brokers[leader].get("/metrics").decode().splitlines())
        return [float(lines.get(label.format(partition), -1)) for partition in range(3)]

    eventually(lambda: lags() == [0, 0, 0], timeout_s=60, what="the lag")


def test_a_sink_stages_for_partitions_that_were_added_since(cluster: RealCluster, client: Client) -> None:
    """The stages of a stream are partitions beside its own, and are added when the first stage comes for one."""
    client.create_stream("sunk", partitions=2, replication_factor=3)
    sink = client.sink("query")
    sink.open()
    for batch_id, count in ((0, 2), (1, 4)):
        assert len(client.add_partitions("sunk", count).partitions) == count
        stages = [sink.stage([{"value": b"x"}], "sunk", partition) for partition in range(count)]
        sink.commit(batch_id, stages, digest=str(batch_id), attributes={})
    assert [partition.high_watermark for partition in client.describe("sunk").partitions] == [2, 2, 1, 1]


async def answers_to(url: str, subject: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """The answers to one message for each name, which is its id; refused or unheard, it is sent again."""
    connection = await nats.connect(url)

    async def answer(name: str) -> dict[str, Any]:
        while True:
            try:
                said = await connection.request(subject, name.encode(), timeout=5, headers={"Nats-Msg-Id": name})
            except (TimeoutError, nats.errors.Error):
                found: dict[str, Any] = {"error": "nobody answers"}
            else:
                found = json.loads(said.data)
            if "error" not in found:
                return found
            await asyncio.sleep(0.01)

    try:
        return [await answer(name) for name in names]
    finally:
        await connection.close()


def test_the_next_leader_knows_the_ids_of_messages(cluster: RealCluster, client: Client) -> None:
    """A repetition is answered with where the first leader has stored the message, whichever broker leads."""
    client.create_stream("ids", subject="ids", replication_factor=3)
    assert cluster.nats is not None
    url, names = cluster.nats.url, [f"id-{number}" for number in range(50)]
    before = asyncio.run(answers_to(url, "ids", names))
    for _ in range(2):
        leader = cluster.leader("ids")
        cluster.brokers[leader].kill9()
        again = asyncio.run(answers_to(url, "ids", names))
        assert cluster.leader("ids") != leader
        assert {each["duplicate"] for each in again} == {True}
        assert [each["seq"] for each in again] == [each["seq"] for each in before]
        cluster.brokers[leader].start(wait=False)
        cluster.wait_ready(leader)
        cluster.in_sync("ids", 3)
    stored = [value.decode() for value in client.read("ids").to_table().column("value").to_pylist()]
    assert [stored[offset_of(each)] for each in before] == names
    assert len(stored) == len(set(stored)) == len(names)
