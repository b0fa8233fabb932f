"""N2 of broker/intake/flush.py, from a real nats-server to a disk that is held back.

Bytes that are not read stay there."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nats
import pytest

from broker.api.stream import settings_from
from broker.common.elapsed import MACHINE
from broker.config.configuration import load
from broker.intake import driver as intake
from broker.intake.driver import WRITE_PENDING_BYTES_MAX, IntakeDriver
from broker.intake.flush import Flusher, FlushSlot
from broker.intake.nats_seam import barrier
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.replica import Replica
from broker.node.partitions.watch import ChangeHub
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from tests.support.led_alone import LedAlone
from tests.support.processes import NatsServer, eventually, free_port
from tests.support.simdisk import SimDisk
from tests.unit.runtime.test_partition import HeldPool, pool
from tests.unit.runtime.test_take_in import connected, until

__all__ = ["pool"]  # a fixture

VALUE = bytes(1 << 10)
COUNT = 32 << 10


async def _publish(url: str, count: int, subject: str = "s") -> None:
    client = await nats.connect(url)
    for _ in range(count):
        await client.publish(subject, VALUE)
    await barrier(client, 60)
    await barrier(client, 60)
    await client.close()


@pytest.mark.process
def test_while_the_disk_is_held_back_the_socket_is_not_read_and_then_all_comes(tmp_path: Path, pool: HeldPool) -> None:
    server = NatsServer(tmp_path).start()
    driver = IntakeDriver(load(None, {}, {"nats.urls": [server.url], "intake.pending_bytes_max": 1 << 20}), pool)
    info = StreamInfo(name="s", incarnation="i", created_us=0, settings=settings_from({"subject": "s"}))
    identity = LogIdentity(cluster_id="c", stream="s", incarnation="i", partition=0)
    log = PartitionLog.create(SimDisk(), "/s", identity, LogSettings.of(info.settings), now_us=0)
    hub_loop = asyncio.new_event_loop()

    def is_reading() -> bool:
        client: Any = driver._client
        return bool(client._transport._io_writer.transport.is_reading())

    with ThreadPoolExecutor(1) as appender:
        hub = ChangeHub(hub_loop)
        partition = LedAlone(
            info,
            Replica(info, 0, log, appender=appender, hub=hub, clocks=MACHINE),
            leader_epoch=1,
            pool=pool,
            appender=appender,
        )
        driver.start()
        try:
            eventually(lambda: driver.state == "connected")
            driver.begin(info, partition).result(60)
            asyncio.run(_publish(server.url, COUNT))
            eventually(lambda: driver.message_counts()["pauses"] == 1 and not is_reading())
            assert driver.message_counts()["messages"] < COUNT
            pool.go.release(COUNT)
            eventually(lambda: log.state.durable_end == COUNT)
            assert is_reading()
            assert driver.message_counts()["append_failed_records"] == 0
        finally:
            pool.go.release(COUNT)
            driver.stop(60)
            hub_loop.close()
            server.stop()


@pytest.mark.process
def test_a_drain_goes_on_where_one_partition_of_several_fails(
    tmp_path: Path, pool: HeldPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages that the others have captured are durable, the connection is closed, and the thread ends."""
    server = NatsServer(tmp_path).start()
    driver = IntakeDriver(load(None, {}, {"nats.urls": [server.url]}), pool)
    hub_loop = asyncio.new_event_loop()
    pool.go.release(COUNT)
    real = Flusher.remove

    async def remove(self: Flusher, slot: FlushSlot) -> None:
        if slot.partition.stream == "a":
            raise RuntimeError("a fault of ours")
        await real(self, slot)

    monkeypatch.setattr(Flusher, "remove", remove)
    with ThreadPoolExecutor(1) as appender:
        hub = ChangeHub(hub_loop)
        logs = {}
        driver.start()
        try:
            eventually(lambda: driver.state == "connected")
            for name in ("a", "b"):
                settings = settings_from({"subject": name, "linger_ms": 5_000})
                info = StreamInfo(name=name, incarnation="i", created_us=0, settings=settings)
                identity = LogIdentity(cluster_id="c", stream=name, incarnation="i", partition=0)
                logs[name] = PartitionLog.create(SimDisk(), f"/{name}", identity, LogSettings.of(settings), now_us=0)
                replica = Replica(info, 0, logs[name], appender=appender, hub=hub, clocks=MACHINE)
                partition = LedAlone(info, replica, leader_epoch=1, pool=pool, appender=appender)
                driver.begin(info, partition).result(60)
            asyncio.run(_publish(server.url, 1, "b"))
            eventually(lambda: driver.message_counts()["messages"] == 1)
        finally:
            driver.stop(60)
            hub_loop.close()
            server.stop()
    assert not driver._thread.is_alive()
    assert driver._client is not None
    assert driver._client.is_closed
    assert logs["b"].state.durable_end == 1
    assert caplog.text.count("intake.drain_failed") == 1
    assert "intake.drain_timeout" not in caplog.text


def test_a_drain_that_does_not_end_leaves_no_task_behind(pool: HeldPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that outlived their loop ended the process with SIGSEGV behind `broker.stopped`: soak, seed 6001."""
    monkeypatch.setattr(intake, "DRAIN_GRACE_S", 0.05)
    driver = IntakeDriver(load(None, {}, {"nats.urls": [f"nats://127.0.0.1:{free_port()}"]}), pool)
    draining: list[asyncio.Task[Any]] = []

    async def drain(timeout_s: float) -> None:
        draining.append(asyncio.current_task())  # type: ignore[arg-type]
        await asyncio.Event().wait()

    monkeypatch.setattr(driver, "_drain", drain)
    driver.start()
    eventually(lambda: driver._main is not None)
    driver.stop(0.05)
    assert driver._loop.is_closed()
    assert draining[0].cancelled()
    assert driver._main is not None
    assert driver._main.done()


async def test_while_the_server_does_not_take_our_acks_we_do_not_read(pool: HeldPool) -> None:
    driver = IntakeDriver(load(None, {}), pool)
    async with connected() as rig:
        driver._client = rig.client
        assert not driver._is_held_up()
        transport = rig.client._transport
        rig.connections[0].transport.pause_reading()  # type: ignore[attr-defined]
        line = bytes(1023) + b"\n"
        transport.write(line * (8 * WRITE_PENDING_BYTES_MAX // len(line)))
        assert driver._is_held_up()
        waiting = asyncio.create_task(driver._may_read())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        rig.connections[0].transport.resume_reading()  # type: ignore[attr-defined]
        await asyncio.wait_for(waiting, 60)
        assert not driver._is_held_up()
        await until(lambda: transport.write_buffer_bytes() == 0, "all is sent")
    driver._loop.close()


def test_a_stop_amid_the_connecting_ends_the_connection(monkeypatch: pytest.MonkeyPatch, pool: HeldPool) -> None:
    """Seen before: `asyncio.wait_for` lost the cancellation, the stop took 5 s, and tasks outlived their loop."""

    class Connecting:
        is_asked = is_closed = is_connected = False
        connected_url = None

        async def connect(self, **_: Any) -> None:
            self.is_asked = True
            with contextlib.suppress(asyncio.CancelledError):  # as `wait_for` does
                await asyncio.sleep(3600)

        async def close(self) -> None:
            self.is_closed = True

    client = Connecting()
    monkeypatch.setattr(intake, "make_client", lambda *_, **__: client)
    driver = IntakeDriver(load(None, {}), pool)
    driver.start()
    eventually(lambda: client.is_asked)
    driver.stop(60)
    assert client.is_closed
    assert driver._main is not None
    assert driver._main.done()
