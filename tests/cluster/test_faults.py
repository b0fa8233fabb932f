"""Processes that die, servers that go away, folders that are not ours.

Goal: every record whose ack arrived is in the log, in order, after anything that can happen to the processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError

import nats
import nats.errors
import pyarrow as pa
import pytest

from broker.api.errors import DiskFull
from broker.cli.doctor.folder import check_catalog
from broker.client import connect
from broker.client.nats_connection import flush
from broker.common.disk_reserve import LOOK_S
from tests.support.acks import offset_of
from tests.support.processes import BrokerProcess, NatsServer, eventually, free_port, frozen, running


async def publish_until(stop: asyncio.Event, url: str, subject: str, acked: list[tuple[int, int]]) -> None:
    """Publish numbers one after the other; remember (number, offset) of each ack; repeat what was not acked."""
    client = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
    number = 0
    while not stop.is_set():
        try:
            answer = await client.request(subject, b"%d" % number, timeout=0.5)
        except (nats.errors.Error, OSError):
            await asyncio.sleep(0.01)
            continue
        body = json.loads(answer.data)
        assert "error" not in body, body
        acked.append((number, offset_of(body)))
        number += 1
    await client.close()


@pytest.mark.parametrize("round_", range(3))
async def test_every_acked_record_survives_kill_9_of_the_broker(tmp_path: Path, round_: int) -> None:
    nats_server = NatsServer(tmp_path / "nats").start()
    broker = BrokerProcess(tmp_path / "broker", nats_server).start()
    try:
        broker.request("POST", "/v1/streams", {"name": "s", "subject": "s"})
        acked: list[tuple[int, int]] = []
        stop = asyncio.Event()
        publishing = [asyncio.create_task(publish_until(stop, nats_server.url, "s", acked))]
        for goal in (50, 120, 200):
            await asyncio.to_thread(eventually, lambda goal=goal: len(acked) >= goal)
            broker.kill9()
            await asyncio.to_thread(broker.start)
        await asyncio.to_thread(eventually, lambda: len(acked) >= 300)
        stop.set()
        await asyncio.gather(*publishing)
        with connect(broker.address) as client:
            rows = client.read("s").to_table()
        stored = dict(zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True))
        assert [stored.get(offset) for _, offset in acked] == [b"%d" % number for number, _ in acked]
        assert [offset for _, offset in acked] == sorted(offset for _, offset in acked)
    finally:
        broker.stop()
        nats_server.stop()


async def test_restart_of_nats_is_survived_and_reported(tmp_path: Path) -> None:
    with running(tmp_path) as (nats_server, broker):
        broker.request("POST", "/v1/streams", {"name": "s", "subject": "s"})
        acked: list[tuple[int, int]] = []
        stop = asyncio.Event()
        publishing = asyncio.create_task(publish_until(stop, nats_server.url, "s", acked))
        await asyncio.to_thread(eventually, lambda: len(acked) >= 20)
        nats_server.kill9()
        await asyncio.to_thread(
            eventually, lambda: b"liftlog_intake_connected 0.0" in broker.get("/metrics"), what="loss is seen"
        )
        since = time.monotonic()
        await asyncio.sleep(0.25)  # not for luck: how long it is away at least
        away_s = time.monotonic() - since
        nats_server.start()
        before = len(acked)
        await asyncio.to_thread(eventually, lambda: len(acked) >= before + 20)
        stop.set()
        await publishing
        # Counted and logged when all is captured again: the first acks may come before.
        await asyncio.to_thread(eventually, lambda: broker.metric("liftlog_intake_reconnects_total") == 1)
        said = await asyncio.to_thread(eventually, lambda: re.search(r"reconnected away_s=([0-9.]+)", broker.output()))
        assert float(said[1]) >= round(away_s, 3) - 0.001, "the time away, from which is reckoned what may be missing"
        with connect(broker.address) as client:
            values = client.read("s").to_table().column("value").to_pylist()
        assert {b"%d" % n for n, _ in acked} <= set(values)


async def test_slow_consumer_cut_is_survived(tmp_path: Path) -> None:
    """The broker is stopped (SIGSTOP) until nats-server cuts it off; then it comes back and goes on."""
    nats_server = NatsServer(tmp_path / "nats", config='max_pending: 9437184\nwrite_deadline: "1s"').start()
    broker = BrokerProcess(tmp_path / "broker", nats_server).start()
    try:
        broker.request("POST", "/v1/streams", {"name": "s", "subject": "s"})
        client = await nats.connect(nats_server.url)
        os.kill(broker.pid, signal.SIGSTOP)
        for _ in range(400):
            await client.publish("s", b"x" * 100_000)
        await flush(client, 60)
        log = tmp_path / "nats" / "nats.log"
        await asyncio.to_thread(eventually, lambda: "Slow Consumer" in log.read_text(), what="nats-server cuts it off")
        os.kill(broker.pid, signal.SIGCONT)

        async def acked() -> bool:
            try:
                await client.request("s", b"after", timeout=5)
            except nats.errors.Error:
                return False
            return True

        deadline = asyncio.get_running_loop().time() + 60
        while not await acked():
            assert asyncio.get_running_loop().time() < deadline, broker.output()[-3000:]
            await asyncio.sleep(0.1)
        await client.close()
        assert broker.metric("liftlog_intake_disconnects_total") >= 1
    finally:
        broker.stop()
        nats_server.stop()


async def test_sigterm_keeps_what_nats_had_accepted(tmp_path: Path) -> None:
    """Drain: what was flushed to the server before SIGTERM is in the log, nobody waited for an ack."""
    with running(tmp_path) as (nats_server, broker):
        broker.request("POST", "/v1/streams", {"name": "s", "subject": "s", "linger_ms": 5000})
        client = await nats.connect(nats_server.url)
        for i in range(5000):
            await client.publish("s", b"%d" % i)
        await flush(client, 60)
        await client.close()
        assert await asyncio.to_thread(broker.stop) == 0
        await asyncio.to_thread(broker.start)
        with connect(broker.address) as reader:
            values = reader.read("s").to_table().column("value").to_pylist()
        assert values == [b"%d" % i for i in range(5000)]
        assert "recovered" not in broker.output()


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_stop_beside_a_server_that_hangs_waits_for_it_once_and_keeps_what_was_captured(
    tmp_path: Path, is_killed: bool
) -> None:
    """Each stream waited for it by itself: 40 of them took 24 s."""
    names = [f"s{number}" for number in range(8)]
    with running(tmp_path) as (nats_server, broker):
        for name in names:
            broker.request("POST", "/v1/streams", {"name": name, "subject": name, "linger_ms": 5_000})
        client = await nats.connect(nats_server.url)
        for name in names:
            await client.publish(name, name.encode())
        await flush(client, 60)
        await client.close()
        await asyncio.to_thread(eventually, lambda: broker.metric("liftlog_intake_messages_total") == len(names))
        assert nats_server.process is not None
        with frozen(nats_server.process.popen.pid):
            stopping = asyncio.create_task(asyncio.to_thread(broker.stop))
            if is_killed:
                await asyncio.to_thread(eventually, lambda: "broker.stopping" in broker.output())
                nats_server.kill9()
                nats_server.start()
            assert await stopping == 0
        said = broker.output()
        unconfirmed = said.count("intake.unsubscribe_unconfirmed")
        assert unconfirmed == 1 or (is_killed and not unconfirmed)
        assert "intake.drain_timeout" not in said
        await asyncio.to_thread(broker.start)
        with connect(broker.address) as reader:
            for name in names:
                assert reader.read(name).to_table().column("value").to_pylist() == [name.encode()]


def test_second_broker_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    first = BrokerProcess(tmp_path / "b", None).start()
    second = BrokerProcess(tmp_path / "b", None, port=free_port())
    second.start(wait=False)
    assert second.process is not None
    try:
        assert second.process.popen.wait(60) == 1
        assert "folder_in_use" in second.output()
        assert first.get("/livez")
    finally:
        first.stop()


def test_port_in_use_is_named(tmp_path: Path) -> None:
    first = BrokerProcess(tmp_path / "a", None).start()
    second = BrokerProcess(tmp_path / "b", None, port=first.port)
    second.start(wait=False)
    assert second.process is not None
    try:
        assert second.process.popen.wait(60) == 1
        assert "port_in_use" in second.output()
        assert str(first.port) in second.output()
    finally:
        first.stop()


def test_lost_stream_folder_takes_only_that_stream_offline(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "b", None).start()
    try:
        for name in ("kept", "lost"):
            broker.request("POST", "/v1/streams", {"name": name})
        broker.stop()
        shutil.rmtree(tmp_path / "b" / "data" / "streams" / "lost")
        broker.start(wait=False)
        eventually(lambda: "broker.started" in broker.output().rpartition("broker.stopped")[2])
        with connect(broker.address) as client:
            assert client.read("kept").to_table().num_rows == 0
            assert not client.ready().ready
        for _ in range(3):
            with pytest.raises(HTTPError) as caught:
                broker.get("/v1/streams/lost/partitions/0/records")
            problem = json.load(caught.value)
            assert (problem["stream"], problem["offline"], problem["status"]) == ("lost", True, 500)
        assert broker.metric("liftlog_streams_offline") == 1
        assert broker.metric(f'liftlog_http_problems_total{{reason="{problem["reason"]}"}}') >= 3
        assert broker.output().count("stream.offline stream=lost") == 1
        assert "http.failed" not in broker.output(), "it is known"
        broker.request("DELETE", "/v1/streams/lost")
        eventually(broker.is_ready)
    finally:
        broker.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system: needs root")
async def test_full_disk_is_answered_and_passes_without_a_restart(tmp_path: Path) -> None:
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)], check=True)
    nats_server = NatsServer(tmp_path / "nats").start()
    broker = BrokerProcess(tmp_path / "broker", nats_server, env={"LIFTLOG_DATA_DIR": str(disk / "data")})
    try:
        broker.start()
        broker.request("POST", "/v1/streams", {"name": "s", "subject": "s"})
        client = await nats.connect(nats_server.url)
        filler = disk / "filler"
        acked = [(await client.request("s", b"before", timeout=60)).data]
        filler.write_bytes(b"x" * (4 << 20))
        refused = b""
        for _ in range(40):
            answer = (await client.request("s", b"y" * 200_000, timeout=60)).data
            if b'"error"' in answer:
                refused = answer
                break
            acked.append(answer)
        assert b"disk_full" in refused, refused
        with connect(broker.address) as reader:
            assert reader.read("s").to_table().num_rows == len(acked)
        filler.unlink()
        deadline = asyncio.get_running_loop().time() + 60  # the broker looks at the disk once in a while
        while b'"error"' in (answer := (await client.request("s", b"after", timeout=60)).data):
            assert asyncio.get_running_loop().time() < deadline, answer
        await client.close()
        with connect(broker.address) as reader:
            values = reader.read("s").to_table().column("value").to_pylist()
        assert values[0] == b"before"
        assert values[-1] == b"after"
        assert len(values) == len(acked) + 1
    finally:
        broker.stop()
        nats_server.stop()
        subprocess.run(["umount", str(disk)], check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system: needs root")
async def test_the_reserve_keeps_the_broker_working_while_records_are_refused(tmp_path: Path) -> None:
    """Publishers, appends and new streams get disk_full; streams are altered, consumers commit; room comes back."""
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], check=True)
    nats_server = NatsServer(tmp_path / "nats").start()
    env = {"LIFTLOG_DATA_DIR": str(disk / "data"), "LIFTLOG_CLEANER_CHECKPOINT_INTERVAL_MS": "50"}
    broker = BrokerProcess(tmp_path / "broker", nats_server, env=env)
    try:
        broker.start()
        broker.request("POST", "/v1/streams", {"name": "s", "subject": "s"})
        client = await nats.connect(nats_server.url)
        filler = disk / "filler"
        filler.write_bytes(b"x" * (12 << 20))
        await asyncio.sleep(LOOK_S)  # what it saw of the disk before is then too old for it
        acked, refused = 0, b""
        for _ in range(100):
            answer = (await client.request("s", b"y" * 100_000, timeout=60)).data
            if b'"error"' in answer:
                refused = answer
                break
            acked += 1
        assert b"disk_full" in refused, refused
        assert b"disk_reserve_bytes" in refused, refused
        found = os.statvfs(disk)
        assert found.f_bavail * found.f_frsize > (16 << 20) // 16 - 200_000, "the reserve is still there"
        with connect(broker.address, deadline_s=0) as reader:
            with pytest.raises(DiskFull):
                reader.append("s", 0, pa.table({"value": [b"x"]}))
            reader.commit("c", {"s": {0: 3}})
            assert reader.read("s").to_table().num_rows == acked
            with pytest.raises(DiskFull, match="disk_reserve_bytes"):
                reader.create_stream("new", subject="new")
        broker.request("PATCH", "/v1/streams/s", {"retention_ms": 3_600_000})
        assert broker.metric("liftlog_disk_reserve_reached") == 1
        assert "cleaner.failed" not in broker.output()
        filler.unlink()

        def is_stored(answer: bytes) -> bool:
            return b'"error"' not in answer

        deadline = asyncio.get_running_loop().time() + 60
        while not is_stored((await client.request("s", b"after", timeout=60)).data):
            assert asyncio.get_running_loop().time() < deadline
        broker.request("POST", "/v1/streams", {"name": "new", "subject": "new"})
        assert is_stored((await client.request("new", b"after", timeout=60)).data)
        await client.close()
        for line in ("disk.reserve_reached", "disk.reserve_restored"):
            await asyncio.to_thread(eventually, lambda line=line: line in broker.output(), what=line)
    finally:
        broker.stop()
        nats_server.stop()
        subprocess.run(["umount", str(disk)], check=False)


async def test_stream_created_while_nats_is_away_captures_once_it_is_back(tmp_path: Path) -> None:
    """The command says what it waits for. And one deleted meanwhile does not come back."""
    with running(tmp_path) as (nats_server, broker):
        broker.request("POST", "/v1/streams", {"name": "old", "subject": "old"})
        nats_server.kill9()
        await asyncio.to_thread(eventually, lambda: b"liftlog_intake_connected 0.0" in broker.get("/metrics"))
        create = [sys.executable, "-m", "broker.cli.main", "--brokers", broker.address, "stream", "create", "new"]
        for said in ("created", "exists already, with these settings"):
            made = await asyncio.to_thread(
                subprocess.run, [*create, "--subject", "new"], capture_output=True, text=True, check=True, timeout=150
            )
            first, warning = made.stderr.splitlines()
            assert first == f"stream new {said}"
            assert warning.startswith("warning: not connected to NATS (")
            assert warning.endswith("): this broker captures nothing until it is")
        await asyncio.to_thread(broker.request, "DELETE", "/v1/streams/old")
        nats_server.start()
        await asyncio.to_thread(eventually, lambda: b"liftlog_intake_connected 1.0" in broker.get("/metrics"))
        client = await nats.connect(nats_server.url)
        await asyncio.to_thread(eventually, lambda: b"intake_reconnects_total 1.0" in broker.get("/metrics"))
        answer = await client.request("new", b"x", timeout=60)
        assert json.loads(answer.data) == {"stream": "new", "seq": 1}
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request("old", b"x", timeout=60)
        await client.close()


def damage(data: Path, stream: str) -> None:
    """Flip one bit in the middle of what was written to the first segment of partition 0."""
    (segment, *_) = sorted((data / "streams" / stream).glob("*/0/*.arrows"))
    with segment.open("r+b") as file:
        at = len(segment.read_bytes().rstrip(b"\0")) // 2
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))
        file.flush()
        os.fsync(file.fileno())


@pytest.mark.parametrize("finder", ["scrub", "reader"])
def test_rot_on_the_disk_is_marked_lost_and_read_around(tmp_path: Path, finder: str) -> None:
    """Found by the scrub, or, with the scrub off, because a reader met it and the broker looked."""
    broker = BrokerProcess(
        tmp_path / "broker", None, env={"LIFTLOG_SCRUB_INTERVAL_MS": "50" if finder == "scrub" else "0"}
    ).start()
    try:
        broker.request("POST", "/v1/streams", {"name": "s"})
        with connect(broker.address) as client:
            for number in range(20):
                client.append("s", 0, pa.table({"value": [b"%d" % number]}))
            damage(tmp_path / "broker" / "data", "s")
            if finder == "scrub":
                eventually(lambda: broker.get("/v1/streams/s")["partitions"][0]["lost_ranges"])
            values = client.read("s").to_table().column("value").to_pylist()
        ((start, end),) = broker.get("/v1/streams/s")["partitions"][0]["lost_ranges"]
        assert values == [b"%d" % n for n in range(20) if not start <= n < end]
        assert end - start == 1
        assert broker.metric('liftlog_partition_lost_ranges{stream="s",partition="0"}') == 1
        eventually(lambda: f"partition.damaged partition=s/0 lost=(({start}, {end}),)" in broker.output())
        if finder == "reader":
            broker.kill9()
            broker.start()
            assert broker.get("/v1/streams/s")["partitions"][0]["lost_ranges"] == [[start, end]]
    finally:
        broker.stop()


def test_a_deletion_that_was_cut_short_by_a_kill_is_finished_at_the_next_start(tmp_path: Path) -> None:
    """The journal has the deletion, the folder is still there. One that nobody knows is left, and doctor names it."""
    broker = BrokerProcess(tmp_path / "broker", None).start()
    try:
        streams = tmp_path / "broker" / "data" / "streams"
        for name in ("kept", "gone"):
            broker.request("POST", "/v1/streams", {"name": name})
        (incarnation,) = (streams / "gone").iterdir()
        shutil.copytree(streams / "gone", tmp_path / "copy")
        broker.request("DELETE", "/v1/streams/gone")
        broker.kill9()
        assert not incarnation.exists()
        shutil.copytree(tmp_path / "copy", streams / "gone", dirs_exist_ok=True)
        shutil.copytree(incarnation, streams / "gone" / "f00d")
        broker.start()
        assert not incarnation.exists()
        assert "stream.folder_removed" in broker.output()
        assert (streams / "gone" / "f00d" / "0" / "partition.json").exists()
        assert "stream.folders_unknown count=1" in broker.output()
        assert len(list((streams / "kept").iterdir())) == 1
    finally:
        broker.stop()
    checks, _ = check_catalog(str(tmp_path / "broker" / "data"))
    (unknown,) = (check for check in checks if check.name == "stream folders")
    assert unknown.values["unknown"] == [str(streams / "gone" / "f00d")]
