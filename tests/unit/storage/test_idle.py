"""S6: what a partition costs that nobody writes to: no descriptor, little memory, few calls."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from broker.storage.disk import OsDisk
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.segments.index import INDEX_CACHE
from tests.support.logs import commit, create_log, open_log, read_records, row_batch
from tests.support.simdisk import SimDisk


def test_idle_log_holds_no_file_and_wakes_up_where_it_was() -> None:
    disk = SimDisk()
    log = create_log(disk)
    for i in range(30):
        log.append([row_batch([b"%d" % i])], leader_epoch=1, now_us=0)
    assert not log.idle(), "not durable yet"
    commit(log)
    assert log.idle()
    assert log.idle()
    assert disk.open_files == 0
    assert len(read_records(log, 0)) == 30
    assert disk.open_files == 0
    log.append([row_batch([b"30"])], leader_epoch=1, now_us=0)
    commit(log)
    assert [record[2] for record in read_records(log, 0)] == [b"%d" % i for i in range(31)]


def test_log_that_was_opened_cleanly_opens_its_file_at_the_first_append() -> None:
    disk = SimDisk()
    log = create_log(disk)
    log.append([row_batch([b"x"])], leader_epoch=1, now_us=0)
    log.close()
    log = open_log(disk)
    assert disk.open_files == 0
    assert log.syncer.sync() == 1
    log.checkpoint()
    assert log.reader.offset_for_time(0) is None, "what is not committed has no time"
    log.state.advance_high_watermark(1)
    assert log.reader.offset_for_time(0) == 0
    assert disk.open_files == 0
    log.append([row_batch([b"y"])], leader_epoch=1, now_us=0)
    assert disk.open_files == 1


def test_three_hundred_idle_logs_hold_no_descriptor_and_a_few_kilobytes_each(tmp_path: Path) -> None:
    """On the real disk. The bound is generous: 10,000 of them must fit beside everything else."""
    disk, settings, count = OsDisk(), LogSettings(segment_bytes=2_000), 300
    folders = [str(tmp_path / str(i)) for i in range(count)]
    template = create_log(disk, settings=settings, folder=folders[0])
    for i in range(8):
        template.append([row_batch([b"%d" % i])], leader_epoch=1, now_us=0)
    commit(template)
    template.close()
    for folder in folders[1:]:
        os.mkdir(folder)
        for name in os.listdir(folders[0]):
            os.link(f"{folders[0]}/{name}", f"{folder}/{name}")  # only read here
    descriptors = len(os.listdir("/proc/self/fd"))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    logs = [open_log(disk, settings=settings, folder=folder) for folder in folders]
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert all(log.state.recovery.clean for log in logs)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert used / count < 12_000
    logs[7].state.advance_high_watermark(8)
    assert len(read_records(logs[7], 0)) == 8
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_indexes_of_sealed_segments_stay_within_the_shared_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every segment of every log has one; only those used last are kept, the others are read again."""
    monkeypatch.setattr(INDEX_CACHE, "bytes_max", 320)
    disk = SimDisk()
    log = create_log(disk, settings=LogSettings(segment_bytes=1_000))
    for i in range(50):
        log.append([row_batch([b"%d" % i])], leader_epoch=1, now_us=0)
    commit(log)
    for _ in range(2):
        assert len(read_records(log, 0)) == 50
        assert INDEX_CACHE.byte_count <= 320
