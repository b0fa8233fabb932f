"""A disk with no byte free, through a real broker on a small file system that is really full.

Goal: records are refused as `disk_full`, the broker's own log does not grow with them, and whatever makes room works:
trim, delete, retention. Then appends go on, without a restart. With the reserve switched off and with it: what it keeps
is gone too, since somebody else fills the disk to the last block.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nats
import nats.aio.client
import pyarrow as pa
import pytest

from broker.api.errors import DiskFull
from broker.client import connect
from tests.support.processes import BrokerProcess, NatsServer, eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system: needs root")

DISK_BYTES = 24 << 20
SEGMENT_BYTES = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no mount here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats").start()
    yield server
    server.stop()


def broker_on(disk: Path, nats_server: NatsServer, reserve_bytes: int) -> BrokerProcess:
    env = {
        "LIFTLOG_DATA_DIR": str(disk / "data"),
        "LIFTLOG_LIMITS_DISK_RESERVE_BYTES": str(reserve_bytes),
        "LIFTLOG_CLEANER_INTERVAL_MS": "200",
        "LIFTLOG_CLEANER_CHECKPOINT_INTERVAL_MS": "100",
    }
    return BrokerProcess(disk.parent / "broker", nats_server, env=env).start()


def free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def fill(disk: Path) -> Path:
    """Somebody else takes the last block."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    assert free(disk) == 0
    return filler


async def publish_until_refused(client: nats.aio.client.Client, subject: str) -> int:
    """How many were stored."""
    for count in range(1_000):
        if b'"error"' in (await client.request(subject, b"y" * 100_000, timeout=60)).data:
            return count
    raise AssertionError("the disk does not fill")


async def all_refused(client: nats.aio.client.Client, subject: str, count: int) -> None:
    for _ in range(count // 10):
        answers = await asyncio.gather(*(client.request(subject, b"y" * 9_000, timeout=60) for _ in range(10)))
        assert all(b"disk_full" in answer.data for answer in answers), answers


async def stored_again(client: nats.aio.client.Client, subject: str) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while b'"error"' in (answer := (await client.request(subject, b"after", timeout=60)).data):
        assert asyncio.get_running_loop().time() < deadline, answer


@pytest.mark.parametrize("reserve_bytes", [0, 64 << 20])
async def test_a_trim_makes_room_on_a_disk_without_a_byte_and_appends_go_on(
    disk: Path, nats_server: NatsServer, reserve_bytes: int
) -> None:
    broker = broker_on(disk, nats_server, reserve_bytes)
    client = await nats.connect(nats_server.url)
    try:
        with connect(broker.address, deadline_s=10) as api:
            api.create_stream("s", subject="s", segment_bytes=SEGMENT_BYTES)
            stored = await publish_until_refused(client, "s")
            fill(disk)
            log_bytes = len(broker.output())
            await all_refused(client, "s", 3_000)
            assert len(broker.output()) - log_bytes < 60_000
            assert free(disk) == 0
            missing = api.ready().missing
            assert set(missing) == ({"disk"} if reserve_bytes else set())
            with pytest.raises(DiskFull), connect(broker.address, deadline_s=0.5) as impatient:
                impatient.append("s", 0, pa.table({"value": [b"x" * 9_000]}))
            start = api.trim("s", before=stored - 20)[0]
            assert start == stored - 20
            assert free(disk) > 4 << 20
            await stored_again(client, "s")
            assert api.ready()
            values = api.read("s").to_table().column("value").to_pylist()
            assert values == [b"y" * 100_000] * 20 + [b"after"]
            broker.kill9()
            broker.start()
            assert api.describe("s").partitions[0].log_start_offset == start
            assert "Traceback" not in broker.output()
    finally:
        await client.close()
        broker.stop()


@pytest.mark.parametrize("way", ["delete", "retention", "trim again and again"])
async def test_whatever_makes_room_works_without_a_byte(disk: Path, nats_server: NatsServer, way: str) -> None:
    """A deletion and a shorter retention are lines in the catalog; a start is one too."""
    broker = broker_on(disk, nats_server, 64 << 20)
    client = await nats.connect(nats_server.url)
    try:
        with connect(broker.address, deadline_s=10) as api:
            for name in ("s", "t"):
                api.create_stream(name, subject=name, segment_bytes=SEGMENT_BYTES)
            assert b'"error"' not in (await client.request("t", b"t", timeout=60)).data
            stored = await publish_until_refused(client, "s")
            filler = fill(disk)
            broker.kill9()
            broker.start()  # without a byte
            assert api.describe("s").partitions[0].high_watermark == stored
            if way == "delete":
                api.delete_stream("s")
                assert [stream.name for stream in api.streams()] == ["t"]
            elif way == "retention":
                api.alter("s", retention_bytes=2 * SEGMENT_BYTES)
                await asyncio.to_thread(eventually, lambda: api.describe("s").partitions[0].log_start_offset > 0)
            else:
                for before in range(10, stored, 10):  # whole segments or not; each room is taken at once
                    assert api.trim("s", before=before) == {0: before}
                    fill(disk)
                assert free(disk) == 0
                filler.unlink()
            eventually(lambda: free(disk) > 2 << 20, what="there is room")
            await stored_again(client, "t")
            filler.unlink(missing_ok=True)
            broker.kill9()
            broker.start()
            assert api.read("t").to_table().column("value").to_pylist() == [b"t", b"after"]
            assert [stream.name for stream in api.streams()] == (["t"] if way == "delete" else ["s", "t"])
            assert "Traceback" not in broker.output()
    finally:
        await client.close()
        broker.stop()


def test_what_is_not_made_on_a_disk_without_a_byte_does_not_come_later(disk: Path, nats_server: NatsServer) -> None:
    """Neither a stream nor partitions that are added: who was refused has made no other plans for them."""
    broker = broker_on(disk, nats_server, 0)
    try:
        with connect(broker.address, deadline_s=10) as api, connect(broker.address, deadline_s=0.5) as impatient:
            api.create_stream("s")
            filler = fill(disk)
            with pytest.raises(DiskFull):
                impatient.create_stream("t", partitions=3)
            with pytest.raises(DiskFull):
                impatient.add_partitions("s", 3)
            filler.unlink()
            assert [(stream.name, len(stream.partitions)) for stream in api.streams()] == [("s", 1)]
            assert not (disk / "data" / "streams" / "t").exists()
            broker.kill9()
            broker.start()
            assert [(stream.name, len(stream.partitions)) for stream in api.streams()] == [("s", 1)]
            api.add_partitions("s", 3)
            api.create_stream("t", partitions=3)
            assert sorted((each.name, len(each.partitions)) for each in api.streams()) == [("s", 3), ("t", 3)]
            assert "Traceback" not in broker.output()
    finally:
        broker.stop()
