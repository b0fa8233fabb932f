"""Goal: a rewrite spares those beside it: it waits after every little, leaves no burst to the disk, holds no lock long.

Method: a real disk that notes what is done to its files, in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.storage.disk import OsDisk, ReadableBuffer
from broker.storage.disk.osfile import OsFile
from broker.storage.log import PartitionLog
from broker.storage.rewrite import rewriting as rewrite
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionReport, CompactionSettings, compact
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from broker.storage.writing.replace import sealed_segments
from tests.support.compacting import keyed_batch, keyed_records
from tests.support.logs import commit
from tests.support.processes import eventually

VALUE = b"v" * 1_000
WINDOW = 4_096
SETTINGS = CompactionSettings(min_cleanable_dirty_percent=0)


class Disk(OsDisk):
    """Notes (what, path, bytes); `on_close` is called before a file is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[str, str, int]] = []
        self.on_close: Callable[[str], None] = lambda path: None

    def open(self, path: str, *, create: bool = False, readonly: bool = False, ahead: int = 0) -> OsFile:
        opened = super().open(path, create=create, readonly=readonly, ahead=ahead)
        return File(self, opened)

    def rename(self, source: str, target: str) -> None:
        self.notes.append(("rename", target, 0))
        super().rename(source, target)


class File(OsFile):
    def __init__(self, disk: Disk, opened: OsFile) -> None:
        super().__init__(opened.fileno(), opened.path)
        self._disk = disk
        disk.notes.append(("open", self.path, 0))

    def write(self, data: ReadableBuffer) -> None:
        self._disk.notes.append(("write", self.path, len(data)))
        super().write(data)

    def sync(self) -> None:
        self._disk.notes.append(("sync", self.path, 0))
        super().sync()

    def close(self) -> None:
        self._disk.on_close(self.path)
        self._disk.notes.append(("close", self.path, 0))
        super().close()


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def log(disk: Disk, tmp_path: Path) -> PartitionLog:
    """A segment of 40 batches of which only the last loses its record, and the segment of its successor."""
    identity = LogIdentity(cluster_id="c", stream="s", incarnation="i", partition=0)
    made = PartitionLog.create(disk, str(tmp_path / "log"), identity, LogSettings(), now_us=0)
    for key in [*(b"%d" % number for number in range(39)), b"last"]:
        made.append([keyed_batch([(key, VALUE)])], leader_epoch=1, now_us=0)
    commit(made)
    made.roll_if_due(1 << 60)
    made.append([keyed_batch([(b"last", VALUE)])], leader_epoch=1, now_us=0)
    commit(made)
    made.roll_if_due(1 << 60)
    disk.notes.clear()
    return made


def run(log: PartitionLog, throttle: Callable[[int], None] = lambda _: None) -> CompactionReport:
    report = compact(log, SETTINGS, map_bytes=1 << 16, now_us=0, throttle=throttle)
    assert report is not None
    assert report.records_gone == 1
    return report


def test_it_waits_after_every_little_also_where_it_only_copies(
    disk: Disk, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "WINDOW_BYTES", WINDOW)
    waits: list[int] = []
    most = 0

    def throttle(size: int) -> None:
        nonlocal most
        waits.append(size)
        most = max(most, sum(n for what, _, n in disk.notes if what == "write"))
        disk.notes.clear()

    segment = sealed_segments(log.state)[0][0]
    size = segment.size(disk)
    run(log, throttle)
    assert sum(waits) >= 3 * size  # read for the map, read to be written, written
    assert most <= 2 * WINDOW  # a window, and the batch that was held back for the one after it
    assert max(waits) <= WINDOW + rewrite.BATCH_COST_BYTES * (WINDOW // len(VALUE))


def test_many_small_batches_are_taken_few_at_a_time(
    disk: Disk, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "WINDOW_BATCHES", 5)
    waits: list[int] = []
    settings = CoalescingSettings(min_age_ms=0, segment_bytes=1 << 20)
    report = coalesce(log, settings, {}, now_us=1 << 60, throttle=waits.append)
    assert report is not None
    assert report.batches_after < report.batches_before
    assert sum(n > rewrite.BATCH_COST_BYTES * 4 for n in waits) >= report.batches_before // 5


def test_a_new_file_is_synced_while_it_grows_and_at_its_end(
    disk: Disk, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "WINDOW_BYTES", WINDOW)
    monkeypatch.setattr(rewrite, "SYNC_BYTES", 3 * WINDOW)
    run(log)
    unsynced = most = syncs = 0
    for what, path, size in disk.notes:
        if not path.endswith(".arrows.new.tmp"):
            continue
        if what == "write":
            unsynced += size
        elif what == "sync":
            most, unsynced, syncs = max(most, unsynced), 0, syncs + 1
        elif what == "close":
            assert unsynced == 0, "W6"
    assert syncs > 2
    assert most <= 4 * WINDOW


def test_the_blocks_of_the_old_file_are_freed_after_the_lock_is_given_back(disk: Disk, log: PartitionLog) -> None:
    path = sealed_segments(log.state)[0][0].path
    appended = []

    def append() -> None:
        log.append([keyed_batch([(b"new", VALUE)])], leader_epoch=1, now_us=0)
        appended.append(path)

    def on_close(closed: str) -> None:
        replaced = ("rename", path, 0) in disk.notes
        if closed == path and replaced and not appended:  # freed by this close: others append meanwhile
            threading.Thread(target=append, daemon=True).start()
            eventually(lambda: appended, what="the append beside the close")

    disk.on_close = on_close
    run(log)
    assert appended
    commit(log)
    assert len(keyed_records(log)) == 41
