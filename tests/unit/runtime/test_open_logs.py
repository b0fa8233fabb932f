"""However many logs are appended to, only so many keep their file; none that is not durable gives it back.

Method: real logs on the fake disk, whose open files are counted; the real fsync pool.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from broker.api.errors import StorageFailed
from broker.node.partitions.open_logs import (
    ASKED_MAX,
    BESIDE,
    LEAST,
    OpenLogs,
    connections_within,
    files_within,
    raise_limit,
)
from broker.node.partitions.sync import SyncPool
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from tests.support.logs import commit, row_batch
from tests.support.processes import eventually
from tests.support.simdisk import SimDisk

LIMIT = 4


@pytest.fixture
def pool() -> Iterator[SyncPool]:
    made = SyncPool(1)
    yield made
    made.close()


def logs(disk: SimDisk, count: int) -> list[PartitionLog]:
    return [
        PartitionLog.create(
            disk,
            f"/{number}",
            LogIdentity(cluster_id="c", stream="s", incarnation="i", partition=number),
            LogSettings(),
            now_us=0,
        )
        for number in range(count)
    ]


def append(log: PartitionLog) -> None:
    log.append([row_batch([b"v"])], leader_epoch=1, now_us=0)


def test_only_the_latest_keep_their_files_and_all_can_be_appended_to_again(pool: SyncPool) -> None:
    disk = SimDisk()
    made, open_logs = logs(disk, 20), OpenLogs(LIMIT, pool)
    for _ in range(3):
        for log in made:
            append(log)
            commit(log)
            open_logs.touch(log)
            eventually(lambda: disk.open_files <= LIMIT)  # or one that is asked late may have been appended to since
        assert disk.open_files == LIMIT
        assert [log.state.is_awake for log in made] == [False] * 16 + [True] * LIMIT
    assert [log.state.log_end_offset for log in made] == [3] * 20


def test_a_log_that_is_not_durable_keeps_its_file_and_is_asked_again(pool: SyncPool) -> None:
    disk = SimDisk()
    made, open_logs = logs(disk, LIMIT + 2), OpenLogs(LIMIT, pool)
    for log in made:
        append(log)
        open_logs.touch(log)
    eventually(lambda: len(open_logs) == LIMIT + 2, what="both that were asked came back")
    assert all(log.state.is_awake for log in made)
    for log in made:
        commit(log)
    for log in made[2:]:
        append(log)
        commit(log)
        open_logs.touch(log)
    eventually(lambda: [log.state.is_awake for log in made] == [False] * 2 + [True] * LIMIT)


@pytest.mark.parametrize("blocked", [1, 3, LIMIT - 1, ASKED_MAX, 3 * ASKED_MAX])
@pytest.mark.parametrize("why", ["not durable", "failed"])
def test_logs_that_cannot_give_their_file_back_do_not_keep_others_from_it(
    pool: SyncPool, blocked: int, why: str
) -> None:
    """They count: with too many of them nobody else keeps a file for long."""
    disk = SimDisk()
    made, open_logs = logs(disk, blocked + 40), OpenLogs(LIMIT, pool)
    for log in made[:blocked]:
        append(log)
        open_logs.touch(log)
        if why == "failed":
            log.state.fail(StorageFailed("the disk"))
    for log in made[blocked:] * 2:
        append(log)
        commit(log)
        open_logs.touch(log)
    last = made[-1]
    wanted = max(LIMIT, blocked + ASKED_MAX)

    def few() -> bool:
        open_logs.touch(made[-2])
        open_logs.touch(last)
        return disk.open_files <= wanted

    eventually(few, what=f"{disk.open_files} files to become {wanted}")
    assert all(log.state.is_awake for log in made[:blocked])
    assert len(open_logs) <= wanted + 2


def test_a_log_that_was_closed_is_not_counted_for_good(pool: SyncPool) -> None:
    """Its stream may be deleted while it is asked, or just before it is counted."""
    disk = SimDisk()
    made, open_logs = logs(disk, LIMIT + 1), OpenLogs(LIMIT, pool)
    made[0].close(clean=False)
    for log in made:
        open_logs.touch(log)
    pool.close()  # now it has been asked
    assert made[0] not in open_logs._order


def test_one_that_is_forgotten_is_not_asked(pool: SyncPool) -> None:
    disk = SimDisk()
    made, open_logs = logs(disk, 2), OpenLogs(LIMIT, pool)
    for log in made:
        append(log)
        open_logs.touch(log)
    open_logs.forget(made[0])
    open_logs.forget(made[0])
    assert len(open_logs) == 1


def test_the_newest_is_counted_again_after_it_was_forgotten(pool: SyncPool) -> None:
    (log,) = logs(SimDisk(), 1)
    open_logs = OpenLogs(LIMIT, pool)
    for _ in range(2):
        open_logs.touch(log)
        open_logs.touch(log)
        assert len(open_logs) == 1
        open_logs.forget(log)
        assert len(open_logs) == 0


def test_the_limit_of_the_process_bounds_what_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    assert files_within(1_000, 100_000) == 1_000
    assert caplog.text == ""
    assert files_within(1_000, 1_024) == 1_024 - BESIDE
    assert files_within(1_000, 100) == LEAST
    assert caplog.text.count("broker.open_files_limit") == 2


def test_connections_leave_files_for_the_logs(caplog: pytest.LogCaptureFixture) -> None:
    assert connections_within(4_096, 1 << 20) == 4_096
    assert not caplog.records
    assert connections_within(4_096, 4_096) == 1_024
    assert connections_within(4_096, 20) == LEAST
    assert [record.message.split()[0] for record in caplog.records] == ["broker.open_files_limit"] * 2


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 256:
        pytest.skip("the hard limit of this machine is too low to try")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 255
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
