"""The disk refuses: full, broken, in every call. Nothing stored before is lost, nothing is told that is not so.

L3: after a failed fsync, or a write that could not be taken back, the log accepts nothing until `recover`.
"""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from broker.api.errors import CorruptLog, DiskFull, LiftlogError, StorageFailed
from broker.storage.log import PartitionLog
from broker.storage.rows import StoredGroup
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.segments.index import GrowingIndex
from tests.support.logs import check_log, commit, create_log, open_log, read_records, row_batch, verified_records
from tests.support.simdisk import SimDisk

SMALL = LogSettings(segment_bytes=3_000)


def append(log: PartitionLog, *values: bytes) -> None:
    log.append([row_batch(values)], leader_epoch=1, now_us=0)


def values(log: PartitionLog) -> list[bytes]:
    return [value for _, _, value in verified_records(log)]


@pytest.fixture(params=[False, True], ids=["", "ahead"])
def disk(request: pytest.FixtureRequest) -> SimDisk:
    return SimDisk(runs_ahead=request.param)


@pytest.fixture
def log(disk: SimDisk) -> PartitionLog:
    log = create_log(disk, settings=LogSettings())
    append(log, b"0")
    commit(log)
    return log


@pytest.mark.parametrize("short", [0, 1, 500])
def test_full_disk_refuses_the_append_and_takes_the_next_when_there_is_space(
    disk: SimDisk, log: PartitionLog, short: int
) -> None:
    disk.bytes_max = disk.used_bytes + short
    for _ in range(3):
        with pytest.raises(DiskFull, match="No space left") as caught:
            append(log, b"refused")
        assert caught.value.reason == "disk_full"
    assert log.state.failure is None
    assert values(log) == [b"0"], "reads go on"
    disk.heal()
    append(log, b"1")
    commit(log)
    assert values(log) == [b"0", b"1"]
    check_log(log, disk)


@pytest.mark.parametrize("count", [1, 3])
def test_an_append_for_whose_index_there_is_no_memory_writes_nothing(
    disk: SimDisk, log: PartitionLog, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The rule: each batch in the file is in the index. Else the next batch would not be where its entry says."""

    def refused(index: GrowingIndex, count: int) -> None:
        raise MemoryError

    before = {path: bytes(inode.content) for path, inode in disk.names.items()}
    with monkeypatch.context() as patch:
        patch.setattr(GrowingIndex, "make_room", refused)
        with pytest.raises(MemoryError):
            log.append([row_batch([b"refused"])] * count, leader_epoch=1, now_us=0)
        group = StoredGroup(batches=[row_batch([b"refused"])] * count, batch_count=count, byte_count=10_000)
        with pytest.raises(MemoryError):
            log.append_group(group, leader_epoch=1, now_us=0)
    assert {path: bytes(inode.content) for path, inode in disk.names.items()} == before
    for number in range(1, 40):  # and it does grow
        append(log, b"%d" % number)
    commit(log)
    assert values(log) == [b"%d" % number for number in range(40)]
    check_log(log, disk)


def test_full_disk_at_a_roll_refuses_the_append_and_rolls_later(disk: SimDisk) -> None:
    log = create_log(disk, settings=SMALL)
    append(log, b"0")
    append(log, b"1")
    commit(log)
    log.checkpoint()
    for free in (0, 4, 8, 100, 568, 700):
        disk.bytes_max = disk.used_bytes + free
        with pytest.raises(DiskFull):
            append(log, b"refused")
        assert log.state.failure is None
        assert values(log) == [b"0", b"1"]
    disk.heal()
    append(log, b"2")
    commit(log)
    assert log.state.segment_count == 2
    assert values(log) == [b"0", b"1", b"2"]
    check_log(log, disk)


def test_write_error_fails_the_log_until_it_has_recovered(disk: SimDisk, log: PartitionLog) -> None:
    append(log, b"1")
    disk.fail("write", errno.EIO, short=300)
    with pytest.raises(StorageFailed, match="Input/output error"):
        append(log, b"refused")
    for _ in range(2):
        with pytest.raises(StorageFailed, match="until the log has recovered"):
            append(log, b"refused")
    with pytest.raises(StorageFailed):
        log.syncer.sync()
    assert values(log) == [b"0"], "reads go on"
    log.recover(0)
    assert log.state.failure is None
    assert log.state.durable_end == 2
    append(log, b"2")
    commit(log)
    assert values(log) == [b"0", b"1", b"2"]
    check_log(log, disk)


def test_write_that_cannot_be_taken_back_fails_the_log_also_on_a_full_disk(disk: SimDisk, log: PartitionLog) -> None:
    disk.fail("write", errno.ENOSPC, short=300)
    disk.fail("truncate", errno.EIO)
    with pytest.raises(StorageFailed):
        append(log, b"refused")
    assert log.state.failure is not None
    log.recover(0)
    append(log, b"1")
    commit(log)
    assert values(log) == [b"0", b"1"]
    check_log(log, disk)


@pytest.mark.parametrize("kind,error", [(errno.EIO, StorageFailed), (errno.ENOSPC, DiskFull)])
def test_failed_fsync_is_never_trusted_again(
    disk: SimDisk, log: PartitionLog, kind: int, error: type[LiftlogError]
) -> None:
    """The kernel forgets what it could not write; the log writes it again and syncs that."""
    append(log, b"1", b"2")
    disk.fail("sync", kind)
    with pytest.raises(error):
        log.syncer.sync()
    assert log.state.durable_end == 1
    with pytest.raises(error):
        append(log, b"refused")
    with pytest.raises(error):
        log.syncer.sync()
    assert not log.idle()
    log.recover(0)
    assert (log.state.durable_end, log.state.log_end_offset) == (3, 3)
    found = open_log(disk.after_crash("lost"), boot_id="next")
    found.state.advance_high_watermark(3)
    assert values(found) == [b"0", b"1", b"2"]


def test_failed_first_fsync_of_a_segment_is_not_trusted_with_its_schema_message_either(disk: SimDisk) -> None:
    log = create_log(disk)
    append(log, b"0")
    disk.fail("sync", errno.EIO)
    with pytest.raises(StorageFailed):
        log.syncer.sync()
    log.recover(0)
    found = open_log(disk.after_crash("lost"), boot_id="next")
    assert found.state.recovery.notes == []
    assert found.state.log_end_offset == 1


def test_failed_fsync_at_a_roll_is_never_trusted_again(disk: SimDisk) -> None:
    log = create_log(disk, settings=SMALL)
    append(log, b"0")
    append(log, b"1")
    disk.fail("sync", errno.EIO, path=".arrows")
    with pytest.raises(StorageFailed, match="fsync"):
        append(log, b"refused")
    log.recover(0)
    append(log, b"2")
    commit(log)
    assert log.state.segment_count == 2
    found = open_log(disk.after_crash("lost"), boot_id="next")
    found.state.advance_high_watermark(3)
    assert values(found) == [b"0", b"1", b"2"]
    check_log(found, disk)


def test_recovery_may_be_tried_again_and_again(disk: SimDisk, log: PartitionLog) -> None:
    """Each of its calls fails once; what could not be written yet is kept in memory meanwhile."""
    append(log, b"1")
    append(log, b"2")
    log.state.advance_high_watermark(3)  # fsync = interval: readers may have seen it
    disk.fail("sync", errno.EIO)
    with pytest.raises(StorageFailed):
        log.syncer.sync()
    for call, kind in (
        ("open", errno.EIO),
        ("pread", errno.EIO),
        ("truncate", errno.EIO),
        ("write", errno.ENOSPC),
        ("write", errno.EIO),
        ("sync", errno.EIO),
        ("listdir", errno.EIO),
    ):
        disk.fail(call, kind, short=100)
        with pytest.raises((StorageFailed, DiskFull)):
            log.recover(0)
        assert log.state.failure is not None
        with pytest.raises((StorageFailed, DiskFull)):
            append(log, b"refused")
        assert log.state.lost_ranges == ()
    log.recover(0)
    assert values(log) == [b"0", b"1", b"2"]
    check_log(log, disk)
    found = open_log(disk.after_crash("lost"), boot_id="next")
    assert found.state.log_end_offset == 3


def test_recovering_a_log_that_is_well_changes_nothing(disk: SimDisk, log: PartitionLog) -> None:
    append(log, b"1")
    before = disk.steps
    log.recover(0)
    assert (disk.steps, log.state.durable_end, log.state.log_end_offset) == (before, 1, 2)


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename", "sync_dir"])
def test_checkpoint_that_cannot_be_written_leaves_the_old_one(disk: SimDisk, log: PartitionLog, call: str) -> None:
    append(log, b"1")
    log.syncer.sync()
    disk.fail(call, errno.ENOSPC, path="" if call == "sync_dir" else "checkpoint")
    with pytest.raises(DiskFull, match="checkpoint in"):
        log.checkpoint()
    assert log.state.failure is None
    append(log, b"2")
    commit(log)
    log.close()
    log = open_log(disk)
    assert log.state.recovery.clean
    assert values(log) == [b"0", b"1", b"2"]


def test_new_epoch_that_cannot_be_written_refuses_the_append(disk: SimDisk, log: PartitionLog) -> None:
    disk.fail("write", errno.ENOSPC, path="epochs")
    with pytest.raises(DiskFull):
        log.append([row_batch([b"x"])], leader_epoch=2, now_us=0)
    assert (log.epochs.latest, log.state.log_end_offset) == (1, 1)
    log.append([row_batch([b"x"])], leader_epoch=2, now_us=0)
    assert (log.epochs.latest, log.epochs.epoch_of(0), log.epochs.epoch_of(1)) == (2, 1, 2)


def test_clean_mark_that_cannot_be_withdrawn_refuses_the_append(disk: SimDisk, log: PartitionLog) -> None:
    log.close()
    log = open_log(disk)
    disk.fail("sync", errno.EIO, path="checkpoint")
    with pytest.raises(StorageFailed):
        append(log, b"x")
    append(log, b"1")
    found = open_log(disk.after_crash("kept"))
    assert not found.state.recovery.clean
    assert found.state.log_end_offset == 2


def test_an_append_that_comes_while_the_log_is_closed_costs_the_clean_mark_and_nothing_else(
    disk: SimDisk, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a stream is deleted, or a broker stops, under a publisher: the log was just synced."""
    keep_state = log.remembered.keep

    def late(**how: bool) -> None:
        append(log, b"late")
        keep_state(**how)

    monkeypatch.setattr(log.remembered, "keep", late)
    log.close(clean=True)
    found = open_log(disk)
    assert not found.state.recovery.clean
    commit(found)
    assert values(found) == [b"0", b"late"]


def test_disk_that_cannot_be_read_is_an_error_of_the_tree(disk: SimDisk, log: PartitionLog) -> None:
    for call in ("open", "pread"):
        disk.fail(call, errno.EIO)
        with pytest.raises(StorageFailed, match="Input/output error"):
            log.reader.read(0)
    assert disk.open_files == 1
    assert [record[0] for record in read_records(log, 0)] == [0]
    assert log.state.lost_ranges == ()


@pytest.mark.parametrize("call", ["read_file", "listdir", "pread", "open"])
def test_log_that_cannot_be_opened_says_why(disk: SimDisk, log: PartitionLog, call: str) -> None:
    found = disk.after_crash("kept")
    found.fail(call, errno.EIO)
    with pytest.raises(StorageFailed, match=r"open .*Input/output error"):
        open_log(found)
    assert found.open_files == 0
    assert open_log(found).state.log_end_offset == 1


def test_log_that_cannot_be_made_says_why(disk: SimDisk) -> None:
    disk.bytes_max = 0
    with pytest.raises(DiskFull, match="create"):
        create_log(disk, folder="/data/other")


def test_retention_goes_on_when_a_file_cannot_be_removed(disk: SimDisk) -> None:
    log = create_log(disk, settings=SMALL)
    for i in range(8):
        append(log, b"%d" % i)
    commit(log)
    disk.fail("unlink", errno.EIO, times=2)
    assert log.trim(5) == 5
    assert [record[0] for record in read_records(log, 5)] == [5, 6, 7]
    log.close()
    disk = disk.after_crash("kept")
    found = open_log(disk, boot_id="next")
    assert (found.state.log_start_offset, found.state.lost_ranges) == (5, ())
    assert not [name for name in disk.listdir(found.state.folder) if name < f"{4:020d}"]


def test_segments_that_vanish_under_an_open_log_are_lost_not_a_crash(disk: SimDisk) -> None:
    log = create_log(disk, settings=SMALL)
    for i in range(8):
        append(log, b"%d" % i)
    commit(log)
    disk.unlink(log.state.view().segments[1].path)
    assert [record[0] for record in read_records(log, 0)] == [0, 1, 4, 5, 6, 7]
    assert log.state.lost_ranges == ((2, 4),)


def test_file_that_changes_all_the_time_is_an_error_not_a_loop(disk: SimDisk, log: PartitionLog) -> None:
    """Reads that give other bytes each time: no answer is better than a wrong one."""
    append(log, b"1")
    commit(log)
    log.roll_if_due(1 << 60)

    path = log.state.view().segments[0].path
    real = disk.open

    def fickle(name: str, *, create: bool = False, readonly: bool = False):  # type: ignore[no-untyped-def]
        disk.flip(path, 8 * 568 + 8 * 90)  # a digit of the first batch's header
        return real(name, create=create, readonly=readonly)

    disk.open = fickle  # type: ignore[method-assign]
    try:
        found = read_records(log, 0)
    except CorruptLog:
        found = []
    assert all(record[2] in (b"0", b"1") for record in found)


@pytest.mark.parametrize("again", ["trim", "checkpoint, trim", "retention"])
def test_a_trim_that_the_full_disk_refused_is_not_done_until_it_is_written_down(disk: SimDisk, again: str) -> None:
    log = create_log(disk, settings=SMALL)
    for number in range(8):
        append(log, b"%d" % number)
        commit(log)
    log.checkpoint()
    files = len(disk.listdir(log.state.folder))
    disk.bytes_max = 0
    for _ in range(3):
        with pytest.raises(DiskFull):
            log.trim(5)
        assert (
            log.checkpoints.kept_start_offset == open_log(disk.after_kill(), settings=SMALL).state.log_start_offset == 0
        )
    disk.heal()
    if again == "checkpoint, trim":
        log.checkpoint()
    assert (log.apply_retention(now_us=0) if again == "retention" else log.trim(5)) == 5
    assert log.checkpoints.kept_start_offset == 5
    assert len(disk.listdir(log.state.folder)) < files, "and its room is back"
    reopened = open_log(disk, settings=SMALL)
    assert reopened.state.log_start_offset == 5
    assert values(reopened) == [b"5", b"6", b"7"]


def test_a_log_that_recovers_lets_nothing_go_that_could_not_be_written_down(disk: SimDisk) -> None:
    """Else the next open would find records gone that its checkpoint knows: damage."""
    log = create_log(disk, settings=LogSettings(segment_bytes=1_500, is_sole_replica=False))
    for epoch in range(4):
        log.append([row_batch([bytes(1_000)])], leader_epoch=epoch, now_us=0)
        commit(log)
    log.checkpoint()
    disk.fail("write", errno.ENOSPC, path="checkpoint", times=2)
    with pytest.raises(DiskFull):
        log.trim(3)
    log.state.fail(StorageFailed("made to fail"))
    with pytest.raises(DiskFull):
        log.recover(0)
    found = open_log(disk.after_kill(), settings=log.state.settings)
    assert (found.state.log_start_offset, found.state.log_end_offset, found.state.lost_ranges) == (0, 4, ())
    log.recover(0)
    assert log.state.log_start_offset == 3
    found = open_log(disk.after_kill(), settings=log.state.settings)
    assert (found.state.log_start_offset, found.state.log_end_offset, found.state.lost_ranges) == (3, 4, ())


@pytest.mark.process
def test_limit_of_the_file_size_on_the_real_disk_is_a_full_disk(tmp_path: Path) -> None:
    """EFBIG from a real kernel, in a process of its own: the limit holds for all its files."""
    script = f"""
        import resource, signal
        from broker.api.errors import DiskFull
        from broker.storage.segments.checkpoint import LogSettings
        from broker.storage.disk import OsDisk
        from tests.support.logs import commit, create_log, row_batch, verified_records

        log = create_log(OsDisk(), settings=LogSettings(), folder={str(tmp_path / "p")!r})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        stored = 0
        try:
            while True:
                log.append([row_batch([bytes(1_000)] * 7)], leader_epoch=1, now_us=0)
                stored += 7
        except DiskFull as error:
            print(error)
        commit(log)
        assert log.state.failure is None
        assert len(verified_records(log)) == stored > 50
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        log.append([row_batch([b"more"])], leader_epoch=1, now_us=0)
        commit(log)
        assert len(verified_records(log)) == stored + 1
        log.close()
    """
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
