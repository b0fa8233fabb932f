"""Goal: `sync` of a log keeps its promise, and a sync that failed leaves what it should: G1 to G3.

Method: real logs on the fake disk, whose sync fails, or lets others append while it is under way.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest

from broker.api.errors import DiskFull, LiftlogError, StorageFailed
from broker.api.schema import END_OF_STREAM
from broker.storage.disk import File
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.writing.sync import Syncer
from tests.support.logs import create_log, open_log, row_batch, verified_records
from tests.support.simdisk import SimDisk, SimFile


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


def append(log: PartitionLog, value: bytes = b"x") -> None:
    log.append([row_batch([value])], leader_epoch=1, now_us=0)


def values(log: PartitionLog) -> list[bytes]:
    log.state.advance_high_watermark(log.state.durable_end)
    return [value for _, _, value in verified_records(log)]


def test_what_is_appended_while_it_is_under_way_is_not_said_to_be_durable(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1."""
    log, plain = create_log(disk), SimFile.sync
    append(log)

    def sync(file: SimFile) -> None:
        plain(file)
        append(log, b"late")

    monkeypatch.setattr(SimFile, "sync", sync)
    assert log.syncer.sync() == log.state.durable_end == 1
    assert log.state.log_end_offset == 2
    assert values(open_log(disk.after_crash("lost"))) == [b"x"]


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, StorageFailed), (errno.ENOSPC, DiskFull)])
def test_a_sync_that_failed_fails_the_log_until_it_has_recovered(
    disk: SimDisk, number: int, error: type[LiftlogError]
) -> None:
    """G2: the next fsync says that all is well, and the record is not on the disk."""
    log = create_log(disk)
    append(log)
    disk.fail("sync", number, path=".arrows")
    for _ in range(2):
        with pytest.raises(error):
            log.syncer.sync()
    with pytest.raises(error):
        append(log)
    assert log.state.durable_end == 0
    assert values(open_log(disk.after_crash("lost"))) == []
    log.recover(now_us=0)
    append(log, b"y")
    assert log.syncer.sync() == 2
    assert values(open_log(disk.after_crash("lost"))) == [b"x", b"y"]


def roll_in_vain(log: PartitionLog, disk: SimDisk) -> None:
    disk.fail("sync", errno.EIO, path=log.state.folder)
    with pytest.raises(StorageFailed):
        log.roll_if_due(1 << 60)


def check_it_comes_back(log: PartitionLog, disk: SimDisk) -> None:
    assert log.state.durable_end == 0
    log.recover(0)
    assert log.syncer.sync() == 1
    assert values(open_log(disk.after_crash("lost"))) == [b"x"]


class Beside:
    """Another thread, and what it raised."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except LiftlogError as error:
            self.error = error

    def ends(self) -> BaseException | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error


def roll_by_append(log: PartitionLog) -> None:
    log.remembered.update_settings(LogSettings(segment_bytes=1_000))
    append(log, b"y")


ROLLS = [
    pytest.param(lambda log: log.roll_if_due(1 << 60), id="by-age"),
    pytest.param(roll_by_append, id="by-size"),
]


@pytest.mark.parametrize("roll", ROLLS)
def test_a_roll_beside_a_sync_that_was_told_the_error_does_not_say_that_all_is_well(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch, roll: Callable[[PartitionLog], object]
) -> None:
    """G3: the kernel has told the sync, which has told nobody yet; the roll's fsync of the same file would succeed. The
    roll holds the append lock from before its end marker on, so it is over before the sync can say what it knows.
    """
    log, plain, marked = create_log(disk), SimFile.sync, threading.Event()
    append(log)
    told, go_on = threading.Event(), threading.Event()
    syncing: list[Beside] = []

    def sync(file: SimFile) -> None:
        try:
            plain(file)
        except OSError:
            told.set()
            assert go_on.wait(60)
            raise

    def write(file: SimFile, data: bytes, plain: Callable[[SimFile, bytes], None] = SimFile.write) -> None:
        plain(file, data)
        if bytes(data) == END_OF_STREAM:
            marked.set()

    monkeypatch.setattr(SimFile, "sync", sync)
    monkeypatch.setattr(SimFile, "write", write)
    disk.fail("sync", errno.EIO, path=log.state.folder)
    syncing.append(Beside(log.syncer.sync))
    assert told.wait(60)
    rolling = Beside(lambda: roll(log))
    assert marked.wait(60)
    go_on.set()
    assert isinstance(rolling.ends(), StorageFailed)
    assert isinstance(syncing[0].ends(), StorageFailed)
    assert log.state.log_end_offset == 1
    check_it_comes_back(log, disk)


def test_a_sync_beside_a_roll_that_was_told_the_error_does_not_either(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3, the other order: the sync knows its file and has not asked yet when the roll is told."""
    log, begins = create_log(disk), Syncer._sync_begins
    append(log)

    def begins_and_rolls(records: Syncer) -> tuple[int, File | None]:
        found = begins(records)
        roll_in_vain(log, disk)
        return found

    monkeypatch.setattr(Syncer, "_sync_begins", begins_and_rolls)
    with pytest.raises(StorageFailed):
        log.syncer.sync()
    monkeypatch.undo()
    check_it_comes_back(log, disk)


def test_a_tail_that_is_given_up_beside_a_failing_sync_is_not_durable(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3: a reader meets damage in the tail, and its repair fsyncs what is left of it."""
    log, plain = create_log(disk), SimFile.sync
    for value in (b"x", b"y"):
        append(log, value)
    told, go_on, scanned = threading.Event(), threading.Event(), threading.Event()
    tail = log.state.view().segments[-1]

    def sync(file: SimFile) -> None:
        try:
            plain(file)
        except OSError:
            told.set()
            assert go_on.wait(60)
            raise

    def trim(file: SimFile, plain: Callable[[SimFile], None] = SimFile.trim) -> None:
        plain(file)
        scanned.set()

    monkeypatch.setattr(SimFile, "sync", sync)
    monkeypatch.setattr(SimFile, "trim", trim)
    disk.fail("sync", errno.EIO, path=log.state.folder)
    syncing = Beside(log.syncer.sync)
    assert told.wait(60)
    disk.flip(tail.path, 8 * (disk.size(tail.path) - 3))  # in the last batch
    repairing = Beside(lambda: log.state.repair(tail))
    assert scanned.wait(60)
    go_on.set()
    assert isinstance(repairing.ends(), StorageFailed)
    assert isinstance(syncing.ends(), StorageFailed)
    assert log.state.durable_end == 0
