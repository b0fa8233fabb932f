"""Threads append to one partition in all ways at once, while fsyncs fail and settings change: each waiter is told once,
and who was told that his record is stored finds it.

Method: the real log on the fake disk, the real pool. Nothing depends on which thread is quicker.
"""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from broker.api.batch import decode_batch
from broker.api.errors import LiftlogError
from broker.api.stream import settings_from
from broker.common.elapsed import MACHINE
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncPool, SyncRow
from broker.node.partitions.watch import ChangeHub
from broker.replication.events import Acks
from broker.storage.log import AppendResult, PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import seeds
from tests.support.led_alone import LedAlone
from tests.support.processes import eventually
from tests.support.simdisk import SimDisk
from tests.unit.runtime.test_partition import IDENTITY, info, rows

THREADS, APPENDS = 4, 60


@pytest.mark.parametrize("seed", seeds(4))
def test_everybody_is_told_once_and_the_truth(seed: int) -> None:
    disk, loop, lock = SimDisk(seed=seed), asyncio.new_event_loop(), threading.Lock()
    settings = replace(LogSettings.of(settings_from({})), segment_bytes=20_000)
    log = PartitionLog.create(disk, "/p", IDENTITY, settings, now_us=0)
    pool = SyncPool(2)
    told: dict[bytes, list[Any]] = {}
    appended: set[bytes] = set()

    with ThreadPoolExecutor(1) as appender:
        hub = ChangeHub(loop)
        partition = LedAlone(
            info(),
            Replica(info(), 0, log, appender=appender, hub=hub, clocks=MACHINE),
            leader_epoch=1,
            pool=pool,
            appender=appender,
        )

        def publish(number: int) -> None:
            rng = random.Random(seed * 100 + number)
            row = SyncRow(pool)
            for i in range(APPENDS):
                value = b"%d-%d" % (number, i)

                def tell(result: AppendResult, outcome: Any, value: bytes = value) -> None:
                    with lock:
                        told.setdefault(value, []).append((result, outcome))

                way: dict[str, Any] = rng.choice(({}, {"here": True}, {"row": row}, {"acks": Acks.LEADER}))
                if rng.random() < 0.05:
                    disk.fail("sync", errno.EIO, path=".arrows")
                if rng.random() < 0.03:
                    changed = settings_from({"fsync": rng.choice(("batch", "interval"))})
                    partition.alter(replace(info(), settings=changed))
                try:
                    partition.append_now([rows(value)], tell, **way)
                    with lock:
                        appended.add(value)
                except LiftlogError:  # refused: nothing was appended, and nobody is told
                    pass
                row.submit()

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        disk.heal()
        partition.alter(info())
        last = threading.Event()
        partition.append_now([rows(b"last")], lambda *_: last.set())
        assert last.wait(60)
        eventually(lambda: set(told) == appended, what="everybody to be told")
        pool.close()
    loop.close()
    assert all(len(outcomes) == 1 for outcomes in told.values())
    assert log.state.high_watermark == log.state.durable_end == log.state.log_end_offset
    records = {
        row["offset"]: row["value"] for message in log.reader.batches(0) for row in decode_batch(message).to_pylist()
    }
    for value, [(result, outcome)] in told.items():
        if isinstance(outcome, int):
            assert records[result.first_offset] == value
    assert sum(isinstance(outcome, int) for [(_, outcome)] in told.values()) > THREADS * APPENDS // 4
