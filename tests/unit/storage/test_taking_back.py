"""Goal: an append that fails leaves no id behind, whatever its table has to do to take them.

A publisher whose message was refused repeats it under its id. If the id were known from the append that failed, the
repeat would be acked as a duplicate of a record that is not in the log. Method: the real log on the fake disk, whose
write fails while a batch makes the table grow; either implementation of the batches, whose ids are noted before the
write.
"""

from __future__ import annotations

import errno
import json
from types import ModuleType
from typing import Any

import pytest

from broker.api.errors import DiskFull, StorageFailed
from broker.storage.log import PartitionLog
from broker.storage.memory.ids import CAPACITY_MIN
from broker.storage.segments.checkpoint import LogSettings
from tests.support.logs import check_log, commit, create_log, verified_records
from tests.support.simdisk import SimDisk
from tests.unit.ingest.twins import TWIN_IDS, TWINS, builder
from tests.unit.ingest.wire import answers_in, hmsg

SETTINGS = LogSettings(segment_bytes=1 << 20, dedup_window_ms=120_000)
WINDOW_US = SETTINGS.dedup_window_ms * 1_000


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> PartitionLog:
    return create_log(disk, settings=SETTINGS)


def publish(log: PartitionLog, twin: ModuleType, ids: range, *, now_us: int = 1_000) -> list[dict[str, Any]]:
    """One batch of messages with these ids, which are their values too; what each publisher is told."""
    if not ids:
        return []
    made, intake = builder(twin), twin.Intake()
    intake.route(1, [made], partition_by="subject_suffix")
    for i in ids:
        intake.feed(hmsg("s", b"%d" % i, ("Nats-Msg-Id", f"id-{i}"), reply=f"r{i}"), now_us)
    batch = made.take()
    result = log.append([batch], leader_epoch=0, now_us=now_us)
    told = {int(reply[1:]): json.loads(body) for reply, body in answers_in(batch.acks(result.first_offset))}
    return [told[i] for i in ids]


@pytest.mark.parametrize("twin", TWINS, ids=TWIN_IDS)
@pytest.mark.parametrize("kind", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("expired", [0, 40, CAPACITY_MIN])
@pytest.mark.parametrize("before", [0, 10, CAPACITY_MIN - 1, CAPACITY_MIN])
def test_a_refused_batch_whose_ids_made_the_table_grow_is_stored_when_it_comes_again(
    disk: SimDisk, log: PartitionLog, twin: ModuleType, kind: int, expired: int, before: int
) -> None:
    """`expired`: ids that came and went before, so that the ring does not begin at its first place."""
    now_us, earlier = 3 * WINDOW_US, range(1_000, 1_000 + before)
    publish(log, twin, range(2_000, 2_000 + expired), now_us=1_000)
    publish(log, twin, earlier, now_us=now_us)
    commit(log)
    disk.fail("write", kind, path=".arrows")
    with pytest.raises((DiskFull, StorageFailed)):
        publish(log, twin, range(60), now_us=now_us)
    log.recover(0)
    told = publish(log, twin, range(60), now_us=now_us)
    assert [answer.get("duplicate", False) for answer in told] == [False] * 60
    commit(log)
    assert [value for _, _, value in verified_records(log)][expired + before :] == [b"%d" % i for i in range(60)]
    assert all(answer["duplicate"] for answer in publish(log, twin, range(60), now_us=now_us))
    assert all(answer["duplicate"] for answer in publish(log, twin, earlier, now_us=now_us))
    check_log(log, disk)


@pytest.mark.parametrize("twin", TWINS, ids=TWIN_IDS)
def test_ids_that_are_out_of_their_window_are_gone_before_the_table_grows(log: PartitionLog, twin: ModuleType) -> None:
    for turn in range(1, 40):
        publish(log, twin, range(50 * turn, 50 * turn + 50), now_us=turn * WINDOW_US)
    assert log.remembered.known().ids.capacity <= 2 * CAPACITY_MIN
