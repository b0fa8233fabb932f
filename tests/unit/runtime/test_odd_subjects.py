"""Goal: a stream whose subject nats-py would not subscribe to takes no other stream's messages away.

Such subjects are in catalogs of before (`api.stream.check_new_subject`). Method: a real nats-server and a driver.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nats
import pytest

from broker.api.stream import settings_from
from broker.common.elapsed import MACHINE
from broker.config.configuration import load
from broker.intake.driver import IntakeDriver
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncPool
from broker.node.partitions.watch import ChangeHub
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from tests.support.led_alone import LedAlone
from tests.support.processes import NatsServer, eventually
from tests.support.simdisk import SimDisk

pytestmark = pytest.mark.process
ODD = "orders.**"


class One:
    """A driver, and streams of one partition."""

    def __init__(self, url: str, pool: SyncPool, appender: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop) -> None:
        self.driver = IntakeDriver(load(None, {}, {"nats.urls": [url]}), pool)
        self.url, self.pool, self.appender, self.hub = url, pool, appender, ChangeHub(loop)

    def stream(self, name: str, subject: str) -> tuple[StreamInfo, Partition]:
        info = StreamInfo(name=name, incarnation="i", settings=settings_from({"subject": subject}), created_us=0)
        identity = LogIdentity(cluster_id="c", stream=name, incarnation="i", partition=0)
        log = PartitionLog.create(SimDisk(), f"/{name}", identity, LogSettings.of(info.settings), now_us=0)
        replica = Replica(info, 0, log, appender=self.appender, hub=self.hub, clocks=MACHINE)
        return info, LedAlone(info, replica, leader_epoch=1, pool=self.pool, appender=self.appender)

    def published(self, subject: str) -> dict[str, Any]:
        """The ack of one message."""
        return asyncio.run(_published(self.url, subject))


async def _published(url: str, subject: str) -> dict[str, Any]:
    client = await nats.connect(url)
    try:
        return dict(json.loads((await client.request(subject, b"x", timeout=10)).data))
    finally:
        await client.close()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[One]:
    server = NatsServer(tmp_path).start()
    pool, loop = SyncPool(2), asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as appender:
        broker = One(server.url, pool, appender, loop)
        broker.driver.start()
        eventually(lambda: broker.driver.state == "connected")
        yield broker
        broker.driver.stop(20)
        pool.close()
    loop.close()
    server.stop()


def test_an_odd_subject_keeps_no_other_stream_from_being_captured(one: One) -> None:
    begun = [one.driver.begin(*one.stream(name, subject)) for name, subject in (("odd", ODD), ("plain", "plain"))]
    for each in begun:
        each.result(20)
    assert one.published("plain") == {"stream": "plain", "seq": 1}
    assert one.published(ODD) == {"stream": "odd", "seq": 1}


def test_what_ends_takes_no_other_streams_subscription_along(one: One) -> None:
    info, odd = one.stream("odd", ODD)
    one.driver.begin(info, odd).result(20)
    one.driver.begin(*one.stream("plain", "plain")).result(20)
    one.driver.end(odd).result(20)
    assert one.published("plain") == {"stream": "plain", "seq": 1}
