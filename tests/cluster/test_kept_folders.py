"""Goal: data folders of an earlier commit open and lose nothing, and everything in them goes on.

Method: folders of a lone broker and of three, made by fcd1e96 with its own brokers and clients, which were killed with
kill -9 (`tests/folders`). Brokers of today open them, with a secret where there are several (record 139).
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import nats.js.errors
import pyarrow.parquet as pq
import pytest

from broker.client import Client, connect
from tests.folders import checks, contents
from tests.folders.keep import KEPT, kept_addresses, unpack
from tests.support.clusters import RealCluster
from tests.support.processes import BrokerProcess, NatsServer, eventually

SOON = {"LIFTLOG_CLEANER_INTERVAL_MS": "100", "LIFTLOG_CLEANER_CHECKPOINT_INTERVAL_MS": "100"}
"""Settings of brokers that compact, join and let go at once."""


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats").start()
    yield server
    server.stop()


def liftlog(*args: str | Path, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "broker.cli.main", *map(str, args)], capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


async def messages_go_on(url: str, was: dict[str, Any]) -> None:
    """Known ids are answered as repeats, new ones are stored, expectations are held against the last of a subject."""
    connection = await nats.connect(url)
    jetstream = connection.jetstream(timeout=60)
    for name, (subject, seq) in was["ids"].items():
        again = await jetstream.publish(subject, b"again", headers={"Nats-Msg-Id": name})
        assert (again.seq, again.duplicate) == (seq, True), name
    assert not (await jetstream.publish("ids.1", b"new", headers={"Nats-Msg-Id": "new"})).duplicate
    for subject, seq in was["counted"].items():
        with pytest.raises(nats.js.errors.BadRequestError, match=f"wrong last sequence: {seq}"):
            await jetstream.publish(subject, b"", headers={"Nats-Expected-Last-Subject-Sequence": str(seq - 1)})
    for subject, seq in was["counted"].items():
        await jetstream.publish(subject, b"", headers={"Nats-Expected-Last-Subject-Sequence": str(seq)})
    await connection.close()


def everything_goes_on(client: Client, was: dict[str, Any], url: str, hasty: Client) -> None:
    checks.producers_go_on(client, was)
    checks.sinks_go_on(client, was)
    asyncio.run(messages_go_on(url, was))
    checks.takes_appends(client, was, hasty)
    for number in range(10):  # a sealed segment that is to be compacted
        client.append("keyed", 0, contents.rows(number * 50, 50, keys=3))


def seen(client: Client) -> dict[str, list[bytes]]:
    """The values of all streams but the compacted one, sorted."""
    return {
        each.name: sorted(value or b"" for value in checks.values_of(client, each.name))
        for each in client.streams()
        if each.name != "keyed"
    }


def test_a_lone_brokers_folder_opens_and_goes_on(tmp_path: Path, nats_server: NatsServer) -> None:
    was = checks.kept("lone")
    unpack(KEPT / "lone.tar.zst", tmp_path)
    broker = BrokerProcess(tmp_path / "broker", nats_server, env=checks.FOREVER).start()
    try:
        with connect(broker.address) as client, connect(broker.address, deadline_s=0) as hasty:
            checks.same(client, was)
            everything_goes_on(client, was, nats_server.url, hasty)
            before, newest = seen(client), checks.newest(client)
        broker.kill9()
        broker.env |= SOON
        broker.start()
        with connect(broker.address) as client:
            eventually(lambda: "compaction.done partition=keyed/0" in broker.output(), what="a pass")
            assert (seen(client), checks.newest(client)) == (before, newest)
        assert broker.stop() == 0
        broker.start()
        with connect(broker.address) as client:
            assert (seen(client), checks.newest(client)) == (before, newest)
        assert broker.stop() == 0
    finally:
        broker.stop()
    liftlog("log", "verify", tmp_path / "broker" / "data", "--known-ok")


def test_a_clusters_folders_open_and_go_on(tmp_path: Path, nats_server: NatsServer) -> None:
    was = checks.kept("cluster")
    unpack(KEPT / "cluster.tar.zst", tmp_path)
    cluster = RealCluster(tmp_path, nats_server, **checks.FOREVER)
    with kept_addresses(cluster), stopped_at_the_end(cluster):
        cluster.start()
        with cluster.client(deadline_s=60.0) as client, cluster.client(deadline_s=0) as hasty:
            all_in_sync(cluster, client)
            checks.same(client, was)
            everything_goes_on(client, was, nats_server.url, hasty)
            before, newest = seen(client), checks.newest(client)
        for process in cluster.brokers.values():
            process.kill9()
            process.env |= SOON
        cluster.start()
        with cluster.client(deadline_s=60.0) as client:
            all_in_sync(cluster, client)
            done = "compaction.done partition=keyed/0"  # by whoever leads then: leaders move back after a start
            eventually(lambda: done in cluster.brokers[cluster.leader("keyed")].output(), what="a pass")
            assert (seen(client), checks.newest(client)) == (before, newest)
    for broker in cluster.brokers:
        liftlog("log", "verify", tmp_path / broker / "data", "--known-ok")


@contextmanager
def stopped_at_the_end(cluster: RealCluster) -> Iterator[None]:
    try:
        yield
    finally:
        cluster.stop()


def all_in_sync(cluster: RealCluster, client: Client) -> None:
    for stream in client.streams(internal=True):
        for partition in stream.partitions:
            cluster.in_sync(stream.name, len(partition.replicas), partition.partition)


@pytest.mark.parametrize("name", ["lone", "cluster"])
def test_stages_that_nobody_commits_expire(tmp_path: Path, name: str) -> None:
    was = checks.kept(name)
    unpack(KEPT / f"{name}.tar.zst", tmp_path)
    short = {**SOON, "LIFTLOG_SINKS_STAGE_LEASE_MS": "1000"}
    if name != "cluster":
        broker = BrokerProcess(tmp_path / "broker", None, env=short).start()
        try:
            with connect(broker.address) as client:
                checks.stages_expire(client, was)
        finally:
            broker.stop()
        return
    cluster = RealCluster(tmp_path, None, **short)
    with kept_addresses(cluster), stopped_at_the_end(cluster):
        cluster.start()
        with cluster.client(deadline_s=60.0) as client:
            checks.stages_expire(client, was)


@pytest.mark.parametrize("name", ["lone", "cluster"])
def test_offline_tools_read_what_was_there(tmp_path: Path, name: str) -> None:
    """Before any broker has opened the folder; that of a lone one after `log repair`, too."""
    was = checks.kept(name)
    unpack(KEPT / f"{name}.tar.zst", tmp_path)
    for data in sorted(tmp_path.glob("*/data")):
        liftlog("log", "verify", data, "--known-ok")
        exported(data, was)
        liftlog("log", "repair", data, *(["--dry-run"] if name == "cluster" else []))
        liftlog("log", "verify", data, "--known-ok")
        exported(data, was)


def exported(data: Path, was: dict[str, Any]) -> None:
    """Every partition in the folder gives the records that clients saw; the damaged one says so."""
    out = data.parent / "parquet"
    here = {folder.parts[-3:][::2] for folder in data.glob("streams/[!_]*/*/*") if folder.name.isdigit()}
    has_lost = any(was["streams"][name]["partitions"][int(number)]["lost_ranges"] for name, number in here)
    liftlog("log", "export", data, "--parquet", f"{out}/", "--overwrite", code=int(has_lost))
    for name, number in here:
        rows = pq.read_table(out / f"{name}-{number}.parquet")
        assert checks.hashes_of(rows) == was["streams"][name]["partitions"][int(number)]["records"], (name, number)
