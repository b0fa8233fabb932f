"""Goal: a stream with `encryption` has nothing that a user sent in any file of a broker, whatever it goes through, and
nobody loses a record by it.

Method: real brokers that are alone; what is published over NATS, appended, staged and committed over HTTP carries a
canary in subject, key, value, header and reply. Kills, restarts, other master keys; then every file is searched.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.api.errors import InvalidSetting
from broker.client import connect
from broker.storage.encrypted.keys import MasterKey
from tests.cluster.test_faults import damage
from tests.support.encrypted_logs import forge_one
from tests.support.processes import BrokerProcess, NatsServer, eventually

pytestmark = pytest.mark.process
CANARY = "canary-7f1c2e"


def key_file(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(base64.b64encode(os.urandom(32)) + b"\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats").start()
    yield server
    server.stop()


def broker_of(tmp_path: Path, nats: NatsServer | None, **env: str) -> BrokerProcess:
    return BrokerProcess(tmp_path / "broker", nats, env=env)


def create(broker: BrokerProcess, name: str = "orders", **settings: Any) -> None:
    with connect(broker.address) as client:
        client.create_stream(name, encryption="aes-256-gcm", **settings)


def published(nats: NatsServer, start: int, stop: int, *, ids: bool = True) -> None:
    """Each record over NATS, acked."""
    script = (
        "import asyncio, sys, nats\n"
        "async def main():\n"
        "    c = await nats.connect(sys.argv[1])\n"
        "    for i in range(int(sys.argv[2]), int(sys.argv[3])):\n"
        f"        h = {{'Liftlog-Key': '{CANARY}-key-%d' % (i % 10), '{CANARY}': '{CANARY}'}}\n"
        f"        if sys.argv[4] == 'True': h['Nats-Msg-Id'] = '{CANARY}-id-%d' % i\n"
        f"        await c.request('orders.{CANARY}', b'{CANARY} %d' % i, timeout=30, headers=h)\n"
        "    await c.close()\n"
        "asyncio.run(main())\n"
    )
    arguments = [nats.url, str(start), str(stop), str(ids)]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True, timeout=120)


def values(broker: BrokerProcess, stream: str = "orders", partition: int = 0) -> list[str]:
    with connect(broker.address) as client:
        table = client.read(stream, partitions=[partition]).to_table()
    return [value.decode() for value in table.column("value").to_pylist()]


def searched(broker: BrokerProcess, *, internal: bool = False) -> int:
    """How many files of users' streams there are; none has the canary. All are looked at again if one has gone, as it
    may have another name by now."""
    while True:
        files = [path for path in broker.folder.rglob("*") if path.is_file() and path.name != "broker.log"]
        try:
            for path in files:
                if internal or "/streams/__" not in str(path):
                    assert CANARY.encode() not in path.read_bytes(), path
        except FileNotFoundError:
            continue
        return len(files)


def missing(broker: BrokerProcess) -> set[str]:
    try:
        broker.get("/readyz")
    except urllib.error.HTTPError as error:
        return set(json.loads(error.read())["missing"])
    except OSError:
        return {"it does not answer"}
    return set()


def liftlog(*arguments: str | Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "broker.cli.main", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_nothing_that_was_sent_is_in_any_file_and_all_of_it_is_read(tmp_path: Path, nats: NatsServer) -> None:
    key = key_file(tmp_path, "key")
    broker = broker_of(
        tmp_path,
        nats,
        LIFTLOG_ENCRYPTION_KEY_FILE=str(key),
        LIFTLOG_CLEANER_INTERVAL_MS="100",
        LIFTLOG_CLEANER_CHECKPOINT_INTERVAL_MS="100",
    ).start()
    try:
        create(broker, subject="orders.>", segment_bytes=1 << 16, compression="zstd", partition_by="subject")
        create(broker, "sunk")
        create(broker, "latest", subject="latest.>", segment_bytes=1 << 16, cleanup="compact", partition_by="subject")
        published(nats, 0, 100)
        broker.kill9()
        searched(broker)
        broker.start()
        published(nats, 90, 200)  # ten of them were stored before
        with connect(broker.address) as client:
            sink = client.sink("query")
            sink.open()
            rows = pa.record_batch({"value": pa.array([f"{CANARY} staged".encode()] * 50, pa.binary())})
            left = sink.stage(rows, "sunk", 0)
            searched(broker)
            broker.kill9()
            searched(broker)
            broker.start()
            sink.commit(0, [left])
        assert values(broker, "sunk") == [f"{CANARY} staged"] * 50
        for number in range(200, 1_000, 200):
            published(nats, number, number + 200, ids=False)
        assert values(broker) == [f"{CANARY} {number}" for number in range(1_000)]
        folder = next((broker.folder / "data" / "streams" / "orders").glob("*/0"))
        assert len(list(folder.glob("*.arrows"))) > 1
        lines = broker.get("/v1/streams/orders/partitions/0/records?offset=7&limit=1&format=json")
        assert CANARY in json.dumps(lines)
        with connect(broker.address) as client:
            some = client.read("orders", columns=["offset", "key"]).to_table()
            assert some.column("key").to_pylist()[3] == f"{CANARY}-key-3".encode()
        assert broker.stop() == 0
        assert searched(broker) > 10
        said = liftlog("log", "verify", broker.folder / "data", "--key-file", key)
        assert "all is well" in said
        assert "encrypted; without" not in said
        assert "encrypted; without" in liftlog("log", "verify", broker.folder / "data")
        assert CANARY in liftlog("log", "dump", folder, "--records", "--limit", "2", "--key-file", key)
        assert "encrypted" in liftlog("log", "dump", folder, "--limit", "2")
        assert "key_missing" in liftlog("log", "dump", folder, "--records", code=1)
        liftlog("log", "export", folder, "--parquet", tmp_path / "out.parquet", "--key-file", key)
        assert pq.read_table(tmp_path / "out.parquet").num_rows == 1_000
        assert "key_missing" in liftlog("log", "export", folder, "--parquet", tmp_path / "no.parquet", code=1)
        searched(broker)
    finally:
        broker.stop()


def test_without_its_key_a_stream_is_offline_and_with_it_it_is_back(tmp_path: Path) -> None:
    key, other = key_file(tmp_path, "key"), key_file(tmp_path, "other")
    broker = broker_of(tmp_path, None, LIFTLOG_ENCRYPTION_KEY_FILE=str(key)).start()
    try:
        create(broker)
        with connect(broker.address) as client:
            client.create_stream("plain")
            for stream in ("orders", "plain"):
                client.append(stream, 0, pa.record_batch({"value": pa.array([CANARY.encode()], pa.binary())}))
        assert broker.stop() == 0
        for name in ("", str(other)):
            broker.env["LIFTLOG_ENCRYPTION_KEY_FILE"] = name
            broker.start(wait=False)
            eventually(lambda: missing(broker) == {"stream orders"}, what="it says that a stream is offline")
            assert values(broker, "plain") == [CANARY]
            with pytest.raises(urllib.error.HTTPError) as raised:
                broker.get("/v1/streams/orders/partitions/0/records?offset=0")
            assert json.loads(raised.value.read())["reason"] == "key_missing"
            assert "master key" in broker.output()
            assert broker.stop() == 0
        broker.env["LIFTLOG_ENCRYPTION_KEY_FILE"] = str(other)
        broker.env["LIFTLOG_ENCRYPTION_FORMER_KEY_FILES"] = str(key)
        broker.start()
        assert values(broker) == [CANARY]
        new, old = (
            f'liftlog_encryption_logs{{master="{MasterKey.parse(file.read_bytes(), where="").id}"}}'
            for file in (other, key)
        )
        eventually(lambda: broker.metric(new) == 1.0, what="it has looked which master keys are needed")
        assert f"{old} 0.0" in broker.get("/metrics").decode().splitlines()
        assert broker.stop() == 0
        del broker.env["LIFTLOG_ENCRYPTION_FORMER_KEY_FILES"]
        broker.start()
        assert values(broker) == [CANARY], "it was wrapped anew"
        broker.kill9()
        del broker.env["LIFTLOG_ENCRYPTION_KEY_FILE"]
        broker.env["LIFTLOG_ENCRYPTION_KEY_COMMAND"] = f"cat,{other}"
        broker.start()
        assert values(broker) == [CANARY]
    finally:
        broker.stop()


def test_rot_is_told_and_read_around(tmp_path: Path) -> None:
    broker = broker_of(tmp_path, None, LIFTLOG_ENCRYPTION_KEY_FILE=str(key_file(tmp_path, "key"))).start()
    try:
        create(broker)
        with connect(broker.address) as client:
            for number in range(20):
                client.append("orders", 0, pa.table({"value": [b"%d" % number]}))
        damage(broker.folder / "data", "orders")
        found = values(broker)
        ((start, end),) = broker.get("/v1/streams/orders")["partitions"][0]["lost_ranges"]
        assert found == [str(number) for number in range(20) if not start <= number < end]
        assert end - start == 1
        assert f"partition.damaged partition=orders/0 lost=(({start}, {end}),)" in broker.output()
    finally:
        broker.stop()


def test_a_stream_that_somebody_changed_while_its_broker_was_down_is_offline_until_it_is_put_back(
    tmp_path: Path,
) -> None:
    key = key_file(tmp_path, "key")
    broker = broker_of(tmp_path, None, LIFTLOG_ENCRYPTION_KEY_FILE=str(key)).start()
    try:
        create(broker)
        with connect(broker.address) as client:
            for number in range(20):
                client.append("orders", 0, pa.table({"value": [b"%d" % number]}))
        broker.kill9()
        (segment,) = (broker.folder / "data" / "streams" / "orders").glob("*/0/*.arrows")
        before = forge_one(segment, "group_count", 2)
        broker.start(wait=False)
        eventually(lambda: missing(broker) == {"stream orders"}, what="it says that a stream is offline")
        with pytest.raises(urllib.error.HTTPError) as raised:
            broker.get("/v1/streams/orders/partitions/0/records?offset=0")
        assert json.loads(raised.value.read())["reason"] == "bad_batch"
        assert "put the file back as it was" in broker.output()
        assert broker.stop() == 0
        assert "tampered" in liftlog("log", "verify", segment.parent, "--key-file", key, code=1)
        segment.write_bytes(before)
        broker.start()
        assert values(broker) == [str(number) for number in range(20)]
    finally:
        broker.stop()


def test_a_broker_without_a_master_key_makes_no_such_stream(tmp_path: Path) -> None:
    broker = broker_of(tmp_path, None).start()
    try:
        with connect(broker.address) as client, pytest.raises(InvalidSetting, match="no master key"):
            client.create_stream("orders", encryption="aes-256-gcm")
        assert not (broker.folder / "data" / "streams" / "orders").exists()
    finally:
        broker.stop()


def test_without_the_keys_of_a_log_its_stream_is_offline_and_nothing_is_changed(tmp_path: Path) -> None:
    broker = broker_of(tmp_path, None, LIFTLOG_ENCRYPTION_KEY_FILE=str(key_file(tmp_path, "key"))).start()
    try:
        create(broker)
        create(broker, "other")
        with connect(broker.address) as client:
            for stream in ("orders", "other"):
                client.append(stream, 0, pa.table({"value": [CANARY.encode()]}))
        broker.kill9()
        folder, other = (next((broker.folder / "data/streams" / name).glob("*/0")) for name in ("orders", "other"))
        kept = {name: (folder / name).read_bytes() for name in ("keys", "keys.copy")}
        for harm in ("lost", "of another log"):
            for name in kept:
                (folder / name).unlink()
                if harm != "lost":
                    (folder / name).write_bytes((other / name).read_bytes())
            before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
            broker.start(wait=False)
            eventually(lambda: missing(broker) == {"stream orders"}, what="it says that a stream is offline")
            assert values(broker, "other") == [CANARY]
            with pytest.raises(urllib.error.HTTPError) as raised:
                broker.get("/v1/streams/orders/partitions/0/records?offset=0")
            assert json.loads(raised.value.read())["reason"] == "wrong_keys"
            assert broker.stop() == 0
            assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
            for name, data in kept.items():
                (folder / name).write_bytes(data)
        broker.start()
        assert values(broker) == [CANARY]
    finally:
        broker.stop()
