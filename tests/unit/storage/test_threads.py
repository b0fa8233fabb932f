"""One log, many threads, the real disk: what each sees at every moment must be possible."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from broker.api.errors import OffsetOutOfRange
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.storage.disk import OsDisk
from broker.storage.segments.checkpoint import LogSettings
from tests.support.logs import check_log, create_log, records_of, row_batch

APPENDS = 300


@pytest.mark.slow
def test_appends_syncs_reads_and_retention_beside_each_other(tmp_path: Path) -> None:
    """Two appenders, two syncers, two readers, a cleaner. Readers check every record they see."""
    disk = OsDisk()
    log = create_log(
        disk, settings=LogSettings(segment_bytes=20_000, retention_records=400), folder=str(tmp_path / "p")
    )
    done = threading.Event()
    errors: list[BaseException] = []
    given: list[tuple[int, int]] = []

    def appender(name: int) -> None:
        for i in range(APPENDS):
            batches = [row_batch([b"%d.%d.%d" % (name, i, k) for k in range(3)]) for _ in range(1 + i % 2)]
            result = log.append(batches, leader_epoch=1, now_us=i)
            given.append((result.first_offset, result.next_offset))

    def syncer() -> None:
        while not done.is_set():
            wanted = log.state.log_end_offset
            end = log.syncer.sync()
            assert end >= wanted
            log.state.advance_high_watermark(end)

    def reader() -> None:
        offset = 0
        while not done.is_set() or offset < log.state.high_watermark:
            try:
                with log.reader.read(offset, max_bytes=50_000) as plan:
                    data = b"".join(os.pread(place.fd, place.length, place.position) for place in plan.ranges)
                    first, after = plan.first_offset, plan.next_offset
            except OffsetOutOfRange as error:
                if offset >= error.log_start_offset:
                    raise
                offset = error.log_start_offset
                continue
            rows = records_of(pa.ipc.open_stream(SCHEMA_BYTES + data + END_OF_STREAM).read_all())
            assert [row[0] for row in rows] == list(range(first, after if rows else first))
            assert first <= offset <= after <= log.state.high_watermark
            offset = after
            log.reader.offset_for_time(1)
            log.reader.bytes_between(0, offset)

    def cleaner() -> None:
        is_last = False
        while not is_last:
            is_last = done.is_set()  # it may be so before there was a round
            end = log.state.log_end_offset
            log.apply_retention(now_us=0)
            log.checkpoint()
            log.idle()
            assert log.state.byte_count > 0 or not end

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
            done.set()

    appenders = [threading.Thread(target=guarded, args=(lambda n=n: appender(n),)) for n in range(2)]
    others = [threading.Thread(target=guarded, args=(work,)) for work in (syncer, syncer, reader, reader, cleaner)]
    for thread in (*appenders, *others):
        thread.start()
    for thread in appenders:
        thread.join(120)
    log.state.advance_high_watermark(log.syncer.sync())
    done.set()
    for thread in others:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    given.sort()
    assert given[0][0] == 0
    assert all(end == begin for (_, end), (begin, _) in pairwise(given)), "S1"
    assert log.state.log_end_offset == given[-1][1]
    assert log.state.log_start_offset > 0
    check_log(log, disk)
    log.close()


def test_syncs_at_the_same_time_share_one_fsync(tmp_path: Path) -> None:
    """While one fsync is under way the others wait, and find their records covered by the next one."""
    started, go_on, calls = threading.Event(), threading.Event(), []
    log = create_log(OsDisk(), settings=LogSettings(), folder=str(tmp_path / "p"))
    log.append([row_batch([b"0"])], leader_epoch=1, now_us=0)
    file = log.state.chain.file
    assert file is not None
    real = file.sync

    class Slow:
        """The file, with a sync that waits for the test."""

        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

        def sync(self) -> None:
            calls.append(log.state.log_end_offset)
            started.set()
            assert go_on.wait(60)
            real()

    log.state.chain.file = Slow()  # type: ignore[assignment]
    threads = [threading.Thread(target=log.syncer.sync)]
    threads[0].start()
    assert started.wait(60)
    log.append([row_batch([b"1"])], leader_epoch=1, now_us=0)  # not held up by the fsync
    threads += [threading.Thread(target=log.syncer.sync) for _ in range(8)]
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert log.state.durable_end == 2
    assert calls == [1, 2]
    log.close()


@pytest.mark.parametrize("when", ["roll", "idle", "close"])
def test_file_is_not_closed_under_a_running_fsync(tmp_path: Path, when: str) -> None:
    log = create_log(OsDisk(), settings=LogSettings(segment_bytes=1_000), folder=str(tmp_path / "p"))
    log.append([row_batch([b"0"])], leader_epoch=1, now_us=0)
    started, go_on, errors = threading.Event(), threading.Event(), []
    file = log.state.chain.file
    assert file is not None

    class Slow:
        is_first = True

        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

        def sync(self) -> None:
            first, self.is_first = self.is_first, False
            if first:
                started.set()
                assert go_on.wait(60)
            file.sync()

    log.state.chain.file = Slow()  # type: ignore[assignment]

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    syncing = threading.Thread(target=run, args=(log.syncer.sync,))
    syncing.start()
    assert started.wait(60)
    others: dict[str, Callable[[], object]] = {
        "roll": lambda: log.append([row_batch([b"1"])], leader_epoch=1, now_us=0),
        "idle": log.idle,
        "close": log.close,
    }
    other = threading.Thread(target=run, args=(others[when],))
    other.start()
    go_on.set()
    other.join(60)
    assert not other.is_alive()
    assert log.state.segment_count == 1 + (when == "roll")
    syncing.join(60)
    assert not syncing.is_alive()
    assert errors == []
    log.close()
