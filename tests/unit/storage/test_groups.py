"""A commit group that is appended batch by batch is what `append` makes of it at once, or nothing is there of it.

Compared byte for byte with a log that got the same batches by `append`; then everything that can end it in the middle
does: its source, a full disk, a failing disk, a power cut at every step.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence

import pytest

from broker.api.errors import CorruptLog, DiskFull, StorageFailed
from broker.storage.log import PartitionLog, StoredGroup
from broker.storage.rows import RowBatch
from tests.support.effort import first_short
from tests.support.logs import FOLDER, check_log, commit, create_log, open_log, row_batch
from tests.support.logs import verified_records as records
from tests.support.simdisk import MODES, Crashed, Mode, SimDisk

VALUES = [[b"a"], [b"b" * 2_000, b"c"], [b"d" * 3_000]]


def group_of(values: Sequence[Sequence[bytes]] = VALUES) -> StoredGroup:
    messages = [row_batch(v).compose(first_offset=0, leader_epoch=0, high_watermark=0) for v in values]
    return StoredGroup(
        batches=(row_batch(v) for v in values), batch_count=len(values), byte_count=sum(map(len, messages))
    )


def before(disk: SimDisk) -> PartitionLog:
    log = create_log(disk)
    log.append([row_batch([b"before"])], leader_epoch=1, now_us=0)
    commit(log)
    return log


def appended(log: PartitionLog) -> None:
    log.append_group(group_of(), leader_epoch=1, now_us=0)
    commit(log)


def test_a_group_is_what_an_append_at_once_writes() -> None:
    one, other = SimDisk(), SimDisk()
    log, expected = before(one), before(other)
    for _ in range(3):  # over a roll
        result = log.append_group(group_of(), leader_epoch=1, now_us=0)
        assert result == expected.append([row_batch(v) for v in VALUES], leader_epoch=1, now_us=0)
        commit(log), commit(expected)
    names = sorted(name for name in one.listdir(FOLDER) if name.endswith(".arrows"))
    assert len(names) > 1
    assert names == sorted(name for name in other.listdir(FOLDER) if name.endswith(".arrows"))
    for name in names:
        assert one.read_file(f"{FOLDER}/{name}") == other.read_file(f"{FOLDER}/{name}")
    assert records(log) == records(expected)
    check_log(log, one)


def test_a_batch_is_asked_for_after_the_one_before_was_written() -> None:
    """Memory holds one at a time."""
    disk = SimDisk()
    log = before(disk)
    sizes: list[int] = []

    def source() -> Iterator[RowBatch]:
        for values in VALUES:
            sizes.append(disk.size(log.state.chain.tail.path))  # type: ignore[union-attr]
            yield row_batch(values)

    log.append_group(StoredGroup(batches=source(), batch_count=3, byte_count=7_000), leader_epoch=1, now_us=0)
    assert sizes == sorted(set(sizes))


def test_what_the_source_raises_takes_all_of_it_back() -> None:
    disk = SimDisk()
    log = before(disk)
    kept, size = records(log), disk.size(log.state.chain.tail.path)  # type: ignore[union-attr]

    def source() -> Iterator[RowBatch]:
        yield row_batch([b"x"])
        raise CorruptLog("damaged")

    with pytest.raises(CorruptLog):
        log.append_group(StoredGroup(batches=source(), batch_count=2, byte_count=4_000), leader_epoch=1, now_us=0)
    assert disk.size(log.state.chain.tail.path) == size  # type: ignore[union-attr]
    log.append_group(group_of(), leader_epoch=1, now_us=0)
    commit(log)
    assert [value for _, _, value in records(log)] == [b"before", *(v for vs in VALUES for v in vs)]
    assert records(log)[: len(kept)] == kept
    check_log(log, disk)


@pytest.mark.parametrize("number,error", [(errno.ENOSPC, DiskFull), (errno.EIO, StorageFailed)])
@pytest.mark.parametrize("after", range(len(VALUES)))
def test_a_write_that_fails_takes_all_of_it_back(after: int, number: int, error: type[Exception]) -> None:
    disk = SimDisk()
    log = before(disk)
    kept = records(log)
    disk.fail("write", number, path=".arrows", after=after, short=700)
    with pytest.raises(error):
        log.append_group(group_of(), leader_epoch=1, now_us=0)
    if log.state.failure is not None:
        log.recover(0)
    commit(log)
    assert records(log) == kept
    log.append_group(group_of(), leader_epoch=1, now_us=0)
    commit(log)
    assert len(records(log)) == len(kept) + 4
    check_log(log, disk)


@pytest.mark.slow
@pytest.mark.parametrize("mode", first_short(MODES))
def test_after_a_power_cut_at_any_step_all_of_it_is_there_or_nothing(mode: Mode) -> None:
    disk = SimDisk()
    log = before(disk)
    started = disk.steps
    appended(log)
    steps, seen = disk.steps - started, set()
    assert steps > len(VALUES)
    for step in range(1, steps + 1):
        for seed in range(4):
            disk = SimDisk()
            log = before(disk)
            disk.crash_at = disk.steps + step
            with pytest.raises(Crashed):
                appended(log)
            after = disk.after_crash(mode, seed=seed)
            again = open_log(after, boot_id="boot-2")
            commit(again)
            found = [value for _, _, value in records(again)]
            assert found in ([b"before"], [b"before", *(v for vs in VALUES for v in vs)]), (step, seed)
            seen.add(len(found))
            check_log(again, after)
    assert seen == {"lost": {1}, "kept": {1, 5}}.get(mode, seen)


def resting(disk: SimDisk) -> PartitionLog:
    """A log that was closed cleanly and opened anew: of its epochs it has read nothing yet."""
    before(disk).close()
    log = open_log(disk)
    assert log.state.recovery.clean
    return log


def test_a_group_whose_source_fails_is_taken_back_also_where_epochs_cannot_be_read() -> None:
    """Else what is acked next stands behind a batch of its own offset, and is passed over as damage."""
    disk = SimDisk()
    log = resting(disk)

    def ends() -> Iterator[RowBatch]:
        yield row_batch([b"stale"])
        raise CorruptLog("the source fails")

    disk.fail("read_file", errno.EIO, path="epochs")
    with pytest.raises(CorruptLog, match="the source fails"):
        log.append_group(StoredGroup(batches=ends(), batch_count=2, byte_count=1_000), leader_epoch=1, now_us=0)
    disk.heal()
    log.append([row_batch([b"acked"])], leader_epoch=1, now_us=0)
    log.syncer.sync()
    again = open_log(disk.after_crash("lost"), boot_id="next")
    commit(again)
    assert [value for _, _, value in records(again)] == [b"before", b"acked"]


def test_a_write_that_cannot_be_taken_back_fails_the_log_also_where_epochs_cannot_be_read() -> None:
    disk = SimDisk()
    log = resting(disk)
    disk.fail("write", errno.EIO, path=".arrows", short=100)
    disk.fail("read_file", errno.EIO, path="epochs")
    with pytest.raises(StorageFailed):
        log.append([row_batch([b"x"])], leader_epoch=1, now_us=0)
    assert log.state.failure is not None
