"""Goal: three brokers keep an encrypted stream as any other one: nothing acknowledged is lost, no file of any of them
has what a user sent, and a broker without its key gives nothing up.

Method: three real brokers, each with a master key of its own. Records are appended with stamps while brokers are killed
and one replica begins anew; then every file is searched.
"""

from __future__ import annotations

import base64
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from broker.storage.encrypted.message import is_encrypted
from tests.support.clusters import IDS, RealCluster, store
from tests.support.encrypted_logs import forge_one
from tests.support.processes import NatsServer, eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]
CANARY = "canary-b92d"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    with ExitStack() as stack:
        nats = NatsServer(tmp_path / "nats").start()
        stack.callback(nats.stop)
        made = RealCluster(tmp_path, nats)
        for broker in IDS:
            key = tmp_path / f"{broker}.key"
            key.write_bytes(base64.b64encode(os.urandom(32)))
            key.chmod(0o600)
            made.brokers[broker].env["LIFTLOG_ENCRYPTION_KEY_FILE"] = str(key)
        stack.callback(made.stop)
        yield made.start()


def searched(cluster: RealCluster) -> dict[str, int]:
    """How many segments of users' streams and of what is staged each broker has; no file there has the canary."""
    found = {}
    for broker, process in cluster.brokers.items():
        for path in process.folder.rglob("*"):
            own = any(f"/streams/{name}/" in str(path) for name in ("__offsets", "__commits", "__audit"))
            if path.is_file() and not own:
                assert CANARY.encode() not in path.read_bytes(), path
        found[broker] = len(list((process.folder / "data" / "streams").glob("[!_]*/*/0/*.arrows")))
    return found


def values(cluster: RealCluster, stream: str) -> list[str]:
    with cluster.client() as client:
        return [value.decode(errors="replace") for value in client.read(stream).to_table().column("value").to_pylist()]


def records(number: int, count: int = 20) -> list[dict[str, object]]:
    return [{"value": f"{CANARY} {number}/{i}".encode(), "key": f"{CANARY}-{i}".encode()} for i in range(count)]


def expected(stop: int, count: int = 20) -> list[str]:
    return [f"{CANARY} {number}/{i}" for number in range(stop) for i in range(count)]


def test_nothing_is_lost_by_kills_and_nothing_is_in_clear(cluster: RealCluster) -> None:
    rng, number = random.Random(3), 0
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("s", encryption="aes-256-gcm", segment_bytes=1 << 16)
        cluster.in_sync("s", 3)
        for who in ("leader", "follower", "leader"):
            for _ in range(10):
                store(client, "s", 0, records(number))
                number += 1
            leader = cluster.leader("s")
            victim = leader if who == "leader" else rng.choice(sorted({*IDS} - {leader}))
            cluster.brokers[victim].kill9()
            store(client, "s", 0, records(number))
            number += 1
            cluster.brokers[victim].start()
            cluster.in_sync("s", 3)
        for process in cluster.brokers.values():  # as when the power goes
            os.kill(process.pid, signal.SIGKILL)
        for process in cluster.brokers.values():
            process.kill9()
            process.start(wait=False)
        for broker in IDS:
            cluster.wait_ready(broker)
        cluster.in_sync("s", 3)
        store(client, "s", 0, records(number))
        number += 1
    assert values(cluster, "s") == expected(number)
    assert all(searched(cluster).values())


def test_a_replica_that_begins_anew_is_filled_and_what_is_staged_is_encrypted_too(cluster: RealCluster) -> None:
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("s", encryption="aes-256-gcm", segment_bytes=4 << 20)
        cluster.in_sync("s", 3)
        for number in range(40):  # 16 MB: in bulk
            large = [{"value": f"{CANARY} {number}/{i}".encode() + os.urandom(20_000)} for i in range(20)]
            store(client, "s", 0, large)
        victim = sorted({*IDS} - {cluster.leader("s")})[0]
        cluster.brokers[victim].kill9()
        shutil.rmtree(cluster.brokers[victim].folder / "data" / "streams" / "s")
        cluster.brokers[victim].start()
        cluster.in_sync("s", 3)
        assert cluster.brokers[victim].metric("liftlog_replica_bulk_bytes_total") > 0
        sink = client.sink("query")
        sink.open()
        rows = pa.record_batch({"value": pa.array([f"{CANARY} staged".encode()] * 50, pa.binary())})
        part = sink.stage(rows, "s", 0)
        staged = [
            path
            for process in cluster.brokers.values()
            for path in (process.folder / "data" / "streams").glob("__stages.*/*/0/*.arrows")
        ]
        assert staged
        assert all(is_encrypted(path.read_bytes()[568:]) for path in staged)
        searched(cluster)
        sink.commit(0, [part])
    found = values(cluster, "s")
    assert len(found) == 850
    assert found[-1] == f"{CANARY} staged"
    assert all(searched(cluster).values())


def test_a_broker_without_its_key_does_not_start_and_gives_nothing_up(cluster: RealCluster) -> None:
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("s", encryption="aes-256-gcm")
        cluster.in_sync("s", 3)
        store(client, "s", 0, records(0))
        victim = sorted({*IDS} - {cluster.leader("s")})[0]
        process = cluster.brokers[victim]
        folder = next((process.folder / "data" / "streams" / "s").glob("*/0"))
        process.stop()
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        key = process.env.pop("LIFTLOG_ENCRYPTION_KEY_FILE")
        process.start(wait=False)
        assert process.process is not None
        ended = process.process.popen
        eventually(lambda: ended.poll() is not None, what="it ends")
        assert "key_missing" in process.output()
        process.process = None
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
        store(client, "s", 0, records(1))
        process.env["LIFTLOG_ENCRYPTION_KEY_FILE"] = key
        process.start()
        cluster.in_sync("s", 3)
    assert values(cluster, "s") == expected(2)


def test_a_replica_whose_last_batch_was_changed_is_filled_by_the_others(cluster: RealCluster) -> None:
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("s", encryption="aes-256-gcm")
        cluster.in_sync("s", 3)
        for number in range(5):
            store(client, "s", 0, records(number))
        victim = sorted({*IDS} - {cluster.leader("s")})[0]
        process = cluster.brokers[victim]
        process.kill9()
        (segment,) = (process.folder / "data" / "streams" / "s").glob("*/0/*.arrows")
        forge_one(segment, "last_offset", 1_000)
        store(client, "s", 0, records(5))
        process.start()
        cluster.in_sync("s", 3)
    assert "replica.cannot_open partition=s/0" in process.output()
    assert "put the file back as it was" in process.output()
    assert values(cluster, "s") == expected(6)


def taken(cluster: RealCluster, to: Path) -> None:
    """Take both files of keys of stream `s` away from every broker."""
    for broker in IDS:
        folder = next((cluster.brokers[broker].folder / "data" / "streams" / "s").glob("*/0"))
        (to / broker).mkdir()
        for name in ("keys", "keys.copy"):
            (folder / name).rename(to / broker / name)


def given_back(cluster: RealCluster, kept: Path, broker: str) -> None:
    folder = next((cluster.brokers[broker].folder / "data" / "streams" / "s").glob("*/0"))
    for path in (kept / broker).iterdir():
        shutil.copy(path, folder / path.name)


def test_keys_that_are_gone_on_all_brokers_at_once_take_no_replica(cluster: RealCluster, tmp_path: Path) -> None:
    """Seen before: each began anew from the next one that had lost its own."""
    kept = tmp_path / "kept"
    kept.mkdir()
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("s", encryption="aes-256-gcm")
        client.create_stream("plain")
        cluster.in_sync("s", 3)
        store(client, "s", 0, records(0))
        for broker in IDS:
            cluster.brokers[broker].kill9()
        taken(cluster, kept)
        for broker in IDS:
            cluster.brokers[broker].start(wait=False)
        for broker in IDS:
            cluster.wait_ready(broker)
        for broker in IDS:
            process = cluster.brokers[broker]
            eventually(lambda p=process: p.metric("liftlog_replicas_shut") == 1, what="it says so")  # type: ignore[misc]
            assert "replica.shut partition=s/0" in process.output()
            assert "is missing" in process.get("/readyz")["warnings"]["keys"]
            folder = next((process.folder / "data" / "streams" / "s").glob("*/0"))
            assert [path.name for path in folder.parent.iterdir()] == ["0"]
            assert list(folder.glob("*.arrows"))
        store(client, "plain", 0, [{"value": b"in clear"}])
        for broker in IDS:
            cluster.brokers[broker].stop()
            given_back(cluster, kept, broker)
            cluster.brokers[broker].start()
        cluster.in_sync("s", 3)
        store(client, "s", 0, records(1))
    assert values(cluster, "s") == expected(2)
    assert all(searched(cluster).values())


def test_one_replica_without_its_keys_is_made_anew_when_an_operator_says_so(cluster: RealCluster) -> None:
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("s", encryption="aes-256-gcm")
        cluster.in_sync("s", 3)
        store(client, "s", 0, records(0))
        victim = sorted({*IDS} - {cluster.leader("s")})[0]
        process = cluster.brokers[victim]
        process.kill9()
        folder = next((process.folder / "data" / "streams" / "s").glob("*/0"))
        for name in ("keys", "keys.copy"):
            (folder / name).write_bytes(b"")
        process.start()
        store(client, "s", 0, records(1))
        assert process.metric("liftlog_replicas_shut") == 1
        process.stop()
        folder.rename(folder.with_name("0.lost"))
        process.start()
        cluster.in_sync("s", 3)
        assert process.metric("liftlog_replicas_shut") == 0
    assert values(cluster, "s") == expected(2)


def test_keys_that_go_while_brokers_run_are_written_anew(cluster: RealCluster, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("s", encryption="aes-256-gcm")
        cluster.in_sync("s", 3)
        store(client, "s", 0, records(0))
        taken(cluster, kept)
        for broker in IDS:
            cluster.brokers[broker].stop()
            cluster.brokers[broker].start()
            assert cluster.brokers[broker].metric("liftlog_replicas_shut") == 0
            cluster.in_sync("s", 3)
        store(client, "s", 0, records(1))
        for process in cluster.brokers.values():
            assert "replica.stepped_out" not in process.output()
    assert values(cluster, "s") == expected(2)


def test_what_somebody_changed_is_found_by_the_scrub_and_mended_by_the_others(cluster: RealCluster) -> None:
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("s", encryption="aes-256-gcm")
        cluster.in_sync("s", 3)
        for number in range(5):
            store(client, "s", 0, records(number))
        victim = sorted({*IDS} - {cluster.leader("s")})[0]
        process = cluster.brokers[victim]
        process.stop()
        (segment,) = (process.folder / "data" / "streams" / "s").glob("*/0/*.arrows")
        before = forge_one(segment, "last_offset", 70, 1)
        process.env["LIFTLOG_SCRUB_INTERVAL_MS"] = "50"
        process.start()
        eventually(lambda: "replica.mended partition=s/0" in process.output(), what="it is mended")
        cluster.in_sync("s", 3)
        assert "partition.tampered partition=s/0" in process.output()
        assert process.metric('liftlog_partition_tampered_ranges{stream="s",partition="0"}') == 1.0
        assert segment.read_bytes() != before
    assert values(cluster, "s") == expected(5)
