"""The stream `__audit` of a broker that is alone: made, kept by its settings, each record once, and never in the way.

Method: a real broker in this process.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.batch import decode_batch
from broker.api.errors import DiskFull, NotLeader, NotReady, StorageFailed
from broker.api.stream import AUDIT_STREAM, settings_from
from broker.config.configuration import load
from broker.config.settings import AuditConfig
from broker.node.own_settings import audit_settings
from broker.node.partitions.partition import Partition
from broker.runtime.audit_log import AuditLog
from broker.runtime.clustered import ClusterBroker
from broker.serving.contract.backend import AuditRecord
from broker.storage.log import PartitionLog
from tests.support.lone import lone_broker
from tests.support.waiting import until
from tests.unit.runtime.test_control import append, make
from tests.unit.test_writers import small


def record(number: int) -> AuditRecord:
    return AuditRecord(f"{number:032x}", "user:ana", json.dumps({"number": number}))


def stored(broker: ClusterBroker) -> list[int]:
    log = broker.partition(AUDIT_STREAM, 0).log
    rows = [row for message in log.reader.batches(0) for row in decode_batch(message).to_pylist()]
    return [json.loads(row["value"])["number"] for row in rows]


async def tell(broker: ClusterBroker, *numbers: int) -> None:
    await broker.audit.append([record(number) for number in numbers])


async def test_it_is_there_with_the_first_start_and_keeps_its_records(tmp_path: Path) -> None:
    broker = make(tmp_path)
    await broker.start()
    try:
        info = broker.stream(AUDIT_STREAM)
        assert (info.internal, info.settings.subject, info.settings.retention_bytes) == (True, None, 1 << 30)
        assert AUDIT_STREAM not in {each.name for each in broker.streams()}
        await tell(broker, 1, 2)
        await tell(broker, 2, 3)
        assert stored(broker) == [1, 2, 3], "an id is taken once"
    finally:
        await broker.stop()
    broker = make(tmp_path)
    await broker.start()
    try:
        await tell(broker, 4)
        assert stored(broker) == [1, 2, 3, 4]
    finally:
        await broker.stop()


async def test_what_failed_is_taken_when_it_is_told_again(tmp_path: Path) -> None:
    broker = make(tmp_path)
    await broker.start()
    try:
        await tell(broker, 1)
        place = small(broker, 4)
        with pytest.raises(DiskFull):
            await tell(broker, 2)
        place.free = 1 << 40
        broker._room._looked_s = float("-inf")
        await tell(broker, 2)
        assert stored(broker) == [1, 2]
    finally:
        await broker.stop()


async def test_it_has_the_room_of_the_brokers_own_streams(tmp_path: Path) -> None:
    """When records are refused, who makes room still leaves his record."""
    broker = make(tmp_path)
    await broker.start()
    try:
        await broker.create_stream("s", {})
        small(broker, 5)
        with pytest.raises(DiskFull):
            broker._room.users.check()
        await tell(broker, 1)
        assert stored(broker) == [1]
    finally:
        await broker.stop()


def configured(path: Path, **env: str) -> ClusterBroker:
    data = {"LIFTLOG_DATA_DIR": str(path / "data"), "LIFTLOG_HTTP_PORT": "0", "LIFTLOG_INTAKE_ENABLED": "false"}
    return lone_broker(load(None, {**data, **env}))


def _keeps_for(partition: Partition, retention_ms: int) -> bool:
    return partition.log.state.settings.retention_ms == retention_ms


async def test_it_goes_by_the_configuration_also_later(tmp_path: Path) -> None:
    for number, retention in enumerate((120_000, 86_400_000)):
        broker = configured(
            tmp_path, LIFTLOG_AUDIT_RETENTION_MS=str(retention), LIFTLOG_AUDIT_RETENTION_BYTES="2097152"
        )
        await broker.start()
        try:
            settings = broker.stream(AUDIT_STREAM).settings
            assert (settings.retention_ms, settings.retention_bytes) == (retention, 2 << 20)
            partition = broker.partition(AUDIT_STREAM, 0)
            await until(partial(_keeps_for, partition, retention), "it goes by another one")
            await tell(broker, number)
        finally:
            await broker.stop()


async def test_off_there_is_none_and_what_was_recorded_stays(tmp_path: Path) -> None:
    broker = configured(tmp_path, LIFTLOG_AUDIT_ENABLED="false")
    await broker.start()
    try:
        assert AUDIT_STREAM not in {each.name for each in broker.streams(internal=True)}
        with pytest.raises(NotReady) as error:
            await tell(broker, 1)
        assert error.value.made is False
    finally:
        await broker.stop()
    for enabled in ("true", "false"):
        broker = configured(tmp_path, LIFTLOG_AUDIT_ENABLED=enabled)
        await broker.start()
        try:
            if enabled == "true":
                await tell(broker, 1)
            assert stored(broker) == [1]
        finally:
            await broker.stop()


async def test_a_broker_starts_where_it_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator has to free a full disk."""
    broker = make(tmp_path)
    real = PartitionLog.create

    def refused(disk: Any, folder: str, *args: Any, **options: Any) -> PartitionLog:
        if f"/{AUDIT_STREAM}/" in folder:
            raise StorageFailed("no room")
        return real(disk, folder, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "create", refused)
        await broker.start()
        try:
            assert list(broker.ready()[1]) == [f"stream {AUDIT_STREAM}"]
            await broker.create_stream("s", {})
            assert await append(broker, "s") == 0
            with pytest.raises(NotReady, match="no room"):
                await tell(broker, 1)
        finally:
            await broker.stop()
    broker = make(tmp_path)
    await broker.start()
    try:
        await tell(broker, 1)
    finally:
        await broker.stop()


async def test_what_is_told_again_goes_to_the_next_leader_if_it_is_not_done_here() -> None:
    """G3: an append hangs at the disk, and the leadership is over."""
    appended: list[Future[Any]] = []

    def append(_: object) -> Future[Any]:
        appended.append(Future())
        return appended[-1]

    partition: Any = SimpleNamespace(append=append)
    leads = [True]

    def find(*_: object) -> Any:
        if leads[0]:
            return partition
        raise NotLeader("another one leads")

    told = AuditLog(find, lambda: "")
    first = asyncio.ensure_future(told.append([record(1)]))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(told.append([record(1)]))
    await asyncio.sleep(0)
    leads[0] = False
    with pytest.raises(NotLeader):
        await told.append([record(1)])
    appended[0].set_result(None)
    await asyncio.gather(first, second)
    await told.append([record(1)])  # it is there
    assert len(appended) == 1


@pytest.mark.parametrize("config", [AuditConfig(), AuditConfig(retention_ms=60_000, retention_bytes=1 << 20)])
def test_its_settings_are_within_the_limits_and_its_records_go(config: AuditConfig) -> None:
    settings = settings_from(audit_settings(config))
    assert settings.payload_schema is not None
    assert settings.retention_bytes is not None
    assert settings.segment_bytes * 4 <= settings.retention_bytes, "only sealed segments go"
    assert settings.retention_ms is not None
    assert settings.segment_age_ms * 4 <= settings.retention_ms
    assert "resource" in settings.payload_schema
