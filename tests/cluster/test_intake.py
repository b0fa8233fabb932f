"""From a stock NATS client into the log and back, through real processes.

Goal: what a publisher was told is what is in the log, in its order, whatever the client library does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import nats
import nats.errors
import nats.js.errors
import polars
import pyarrow as pa
import pytest

from broker.client import connect
from broker.client.nats_connection import flush
from tests.support.processes import BrokerProcess, NatsServer, eventually

URLLIB = "import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1]).read())"
"""Where there is no curl."""


def table(broker: BrokerProcess, stream: str) -> pa.Table:
    with connect(broker.address) as client:
        return client.read(stream).to_table()


async def test_stock_js_publish_returns_a_puback(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]
) -> None:
    create(subject=f"{name}.*")
    client = await nats.connect(nats_server.url)
    jetstream = client.jetstream(timeout=60)
    for i in range(5):
        ack = await jetstream.publish(f"{name}.1", b"m%d" % i, headers={"Nats-Msg-Id": f"id-{i}"})
        assert (ack.stream, ack.seq, bool(ack.duplicate)) == (name, i + 1, False)
    await client.close()
    rows = table(broker, name).to_pylist()
    assert [r["value"] for r in rows] == [b"m%d" % i for i in range(5)]
    assert [r["offset"] for r in rows] == list(range(5))
    assert rows[0]["subject"] == f"{name}.1"
    assert rows[0]["headers"] == [{"key": "Nats-Msg-Id", "value": b"id-0"}]
    assert rows[0]["reply"].startswith("_INBOX.")


async def test_publisher_is_told_what_is_refused_and_the_rest_is_stored(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]
) -> None:
    create(subject=name, record_bytes_max=1000)
    client = await nats.connect(nats_server.url)
    jetstream = client.jetstream(timeout=60)
    with pytest.raises(nats.js.errors.APIError) as too_large:
        await jetstream.publish(name, b"x" * 2000)
    assert "1000" in str(too_large.value.description)
    with pytest.raises(nats.js.errors.APIError):
        await jetstream.publish(name, b"x", headers={"Nats-Expected-Last-Sequence": "7"})
    with pytest.raises(nats.js.errors.APIError):
        await jetstream.publish(name, b"x", headers={"Liftlog-Ack": "sometimes"})
    with pytest.raises(nats.js.errors.APIError):
        await jetstream.publish(name, b"", headers={"Liftlog-Tombstone": "1"})
    with pytest.raises(nats.js.errors.APIError) as another:
        await jetstream.publish(name, b"x", headers={"Nats-Expected-Stream": "another"})
    assert another.value.err_code == 10060
    ack = await jetstream.publish(name, b"good", headers={"Nats-Expected-Stream": name})
    assert ack.seq == 1
    await client.close()
    assert table(broker, name).column("value").to_pylist() == [b"good"]
    assert b"liftlog_intake_refused_total" in broker.get("/metrics")


async def test_key_tombstone_and_duplicate_headers_are_kept(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]
) -> None:
    create(subject=name)
    client = await nats.connect(nats_server.url)
    await client.jetstream(timeout=60).publish(name, b"", headers={"Liftlog-Key": "k", "Liftlog-Tombstone": "1"})
    await client.jetstream(timeout=60).publish(name, b"", headers={"Liftlog-Key": "k"})
    await client.close()
    rows = table(broker, name).to_pylist()
    assert [(r["key"], r["value"]) for r in rows] == [(b"k", None), (b"k", b"")]


@pytest.mark.parametrize("partition_by", ["key", "subject", "token:2", "subject_suffix"])
async def test_records_go_where_their_key_hashes(
    nats_server: NatsServer,
    broker: BrokerProcess,
    name: str,
    create: Callable[..., dict[str, object]],
    partition_by: str,
) -> None:
    """CRC-32 IEEE, unsigned, modulo the partitions; with suffixes the subject itself says."""
    create(subject=name if partition_by == "subject_suffix" else f"{name}.>", partitions=3, partition_by=partition_by)
    client = await nats.connect(nats_server.url)
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for i in range(60):
        headers = {"Liftlog-Key": f"key-{i % 7}"} if i % 5 else None
        if partition_by == "subject_suffix":
            partition = i % 3
            subject = name if partition == 0 else f"{name}.{partition}"
        else:
            subject = f"{name}.t{i % 4}.x{i % 9}"
            hashed = subject
            if partition_by == "key" and headers:
                hashed = headers["Liftlog-Key"]
            elif partition_by == "token:2":
                hashed = f"t{i % 4}"
            partition = zlib.crc32(hashed.encode()) % 3
        expected[partition].append(b"%d" % i)
        await client.publish(subject, b"%d" % i, headers=headers)
    await flush(client, 60)
    await client.close()
    with connect(broker.address) as reader:
        eventually(lambda: sum(p.high_watermark for p in reader.describe(name).partitions) == 60)
        for partition, values in expected.items():
            got = reader.read(name, partitions=[partition]).to_table().column("value").to_pylist()
            assert got == values


async def test_overlapping_streams_get_a_copy_each_and_one_answers(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]
) -> None:
    create(subject=f"{name}.>")
    second = broker.request("POST", "/v1/streams", {"name": f"{name}-copy", "subject": f"{name}.a"})
    assert any("acks are off" in warning for warning in second["warnings"])
    client = await nats.connect(nats_server.url)
    ack = await client.jetstream(timeout=60).publish(f"{name}.a", b"v")
    await client.close()
    assert ack.stream == name
    eventually(lambda: table(broker, f"{name}-copy").num_rows == 1)
    assert table(broker, name).num_rows == 1


async def test_streams_of_one_group_share_the_messages(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]
) -> None:
    for suffix in "ab":
        broker.request("POST", "/v1/streams", {"name": f"{name}-{suffix}", "subject": name, "group": "g"})
    client = await nats.connect(nats_server.url)
    for i in range(200):
        await client.publish(name, b"%d" % i)
    await flush(client, 60)
    await client.close()

    def values() -> list[bytes]:
        return [v for s in "ab" for v in table(broker, f"{name}-{s}").column("value").to_pylist()]

    eventually(lambda: len(values()) == 200)
    assert sorted(values()) == sorted(b"%d" % i for i in range(200))
    assert all(table(broker, f"{name}-{s}").num_rows for s in "ab")


async def test_altering_settings_leaves_no_gap(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]
) -> None:
    """Publish with acks while settings change under the publisher: every ack comes, every offset is there."""
    create(subject=name)
    client = await nats.connect(nats_server.url)
    jetstream = client.jetstream(timeout=60)

    async def publish() -> list[int]:
        return [(await jetstream.publish(name, b"%d" % i)).seq for i in range(300)]

    publishing = asyncio.create_task(publish())
    for linger in range(20):
        await asyncio.to_thread(broker.request, "PATCH", f"/v1/streams/{name}", {"linger_ms": linger})
    assert await publishing == list(range(1, 301))
    await client.close()
    assert table(broker, name).column("value").to_pylist() == [b"%d" % i for i in range(300)]


async def test_curl_reads_ndjson_and_polars_opens_the_active_segment(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]
) -> None:
    stream = create(subject=name)
    client = await nats.connect(nats_server.url)
    for i in range(3):
        await client.jetstream(timeout=60).publish(name, b"v%d" % i)
    await client.close()
    url = f"http://{broker.address}/v1/streams/{name}/partitions/0/records?format=json"
    get = ["curl", "-sf"] if shutil.which("curl") else [sys.executable, "-c", URLLIB]
    lines = subprocess.run([*get, url], capture_output=True, check=True, text=True).stdout.splitlines()
    assert [json.loads(line)["value"] for line in lines] == ["v0", "v1", "v2"]
    (segment,) = Path(broker.folder / "data" / "streams" / name / str(stream["incarnation"]) / "0").glob("*.arrows")
    assert polars.read_ipc_stream(segment)["value"].to_list() == [b"v0", b"v1", b"v2"]
    assert pa.ipc.open_stream(segment.read_bytes()).read_all().num_rows == 3


async def test_jetstream_on_the_same_subject_is_warned_about(tmp_path: Path) -> None:
    nats_server = NatsServer(tmp_path / "nats", jetstream=True).start()
    broker = BrokerProcess(tmp_path / "broker", nats_server).start()
    try:
        client = await nats.connect(nats_server.url)
        await client.jetstream(timeout=60).add_stream(name="ORDERS", subjects=["orders.*"])
        await client.close()
        numbers = itertools.count()

        def is_warned() -> bool:
            """The log warns about a new stream: the broker gives JetStream a second to answer."""
            settings = {"name": f"o{next(numbers)}", "subject": "orders.>"}
            return any("ORDERS" in warning for warning in broker.request("POST", "/v1/streams", settings)["warnings"])

        await asyncio.to_thread(eventually, is_warned, what="a warning")
        other = await asyncio.to_thread(broker.request, "POST", "/v1/streams", {"name": "p", "subject": "payments"})
        assert other["warnings"] == []
    finally:
        broker.stop()
        nats_server.stop()


async def test_brokers_of_one_queue_group_share_what_is_published(nats_server: NatsServer, tmp_path: Path) -> None:
    """Each message is in one of their logs, and only there; without a group it is in both."""
    count = 2000
    brokers = [BrokerProcess(tmp_path / f"broker-{i}", nats_server) for i in range(2)]
    try:
        for each in brokers:
            each.start()
            each.request("POST", "/v1/streams", {"name": "shared", "subject": "queue-group.>", "group": "loaders"})
            each.request("POST", "/v1/streams", {"name": "own", "subject": "queue-group.>"})
        publisher = await nats.connect(nats_server.url)
        for i in range(count):
            await publisher.publish("queue-group.a", b"%d" % i)
        await flush(publisher, 60)
        await publisher.close()

        def stored(stream: str) -> list[list[bytes]]:
            return [table(each, stream)["value"].to_pylist() for each in brokers]

        def is_there() -> bool:
            return len(stored("own")[0]) == len(stored("own")[1]) == sum(map(len, stored("shared"))) == count

        await asyncio.to_thread(eventually, is_there, what="all is stored")
        expected = sorted(b"%d" % i for i in range(count))
        shared = stored("shared")
        assert sorted(shared[0] + shared[1]) == expected
        assert all(shared), "both take a part"
        assert [sorted(values) for values in stored("own")] == [expected, expected]
    finally:
        for each in brokers:
            each.stop()


def test_a_broker_loads_no_pandas(broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]) -> None:
    """Seen before: the first commit of an offset or of a sink did, amid the request."""
    create()
    with connect(broker.address) as client:
        client.append(name, 0, [{"value": b"x", "key": b"k", "headers": [("a", b"b")]}])
        client.commit(f"reader-{name}", {name: {0: 1}})
        sink = client.sink(f"sink-{name}")
        sink.open()
        sink.commit(1, [sink.stage([{"value": b"y"}], name, 0)])
        assert client.read(name).to_table().num_rows == 2
    assert broker.process is not None
    loaded = Path(f"/proc/{broker.process.popen.pid}/maps").read_text()
    assert ("/pyarrow/" in loaded, "/pandas/" in loaded) == (True, False)
