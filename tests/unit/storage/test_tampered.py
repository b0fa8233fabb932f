"""Goal: a batch of an encrypted log that somebody has changed while the log is open is found once, costs no read of its
segment after that, hides nothing but itself, and comes from other replicas where there are some.

Method: batches forged on a disk of the test, with CRCs that fit; the calls of the disk are counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.api.batch import read_header
from broker.api.errors import BadBatch, CorruptLog
from broker.serving.endpoints.records import nothing, planned
from broker.storage.inspect.scrub import Piece, scrub
from broker.storage.log import PartitionLog
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.mending import mend
from broker.storage.segments.checkpoint import Checkpoint, LogSettings
from broker.storage.segments.index import INDEX_CACHE, IndexView
from broker.storage.writing import state
from tests.support.encrypted_logs import encrypted, forged
from tests.support.logs import FOLDER, commit, create_log, open_log, plan_bytes, read_records, row_batch
from tests.support.simdisk import SimDisk

SETTINGS = encrypted(LogSettings(segment_bytes=8_000))


def filled(disk: SimDisk, settings: LogSettings = SETTINGS, count: int = 30) -> PartitionLog:
    """Batches of two records, some segments."""
    log = create_log(disk, settings=settings)
    for number in range(count):
        log.append([row_batch([b"%d" % number, b"x" * 200])], leader_epoch=1, now_us=number)
        commit(log)
    return log


def forge(disk: SimDisk, log: PartitionLog, offset: int, field: str = "producer_id", value: int = 7) -> None:
    """The index is as it was, but for the CRC."""
    view = log.state.view()
    segment = view.segments[view.segment_of(offset)]
    entry = view.index(segment).entries[view.index(segment).find(offset)]
    at, length = int(entry["position"]), int(entry["length"])
    for content in (disk.names[segment.path].content, disk.names[segment.path].durable):
        batch = forged(bytes(content[at : at + length]), field, value)
        content[at : at + length] = batch
    entry["crc"] = int(batch[256:264], 16)


def scrubbed(log: PartitionLog) -> list[Piece]:
    found, offset = [], 0
    while (piece := scrub(log, offset, bytes_max=1 << 20)) is not None:
        found.append(piece)
        offset = piece.next_offset
    return found


def test_it_is_found_once_and_no_segment_is_read_again_for_it() -> None:
    disk = SimDisk()
    log = filled(disk)
    forge(disk, log, 4)
    with pytest.raises(BadBatch):
        log.reader.read(4)
    assert (log.state.tampered, log.state.tampered_count, log.state.lost_ranges) == (((4, 6),), 1, ())
    disk.calls.clear()
    for _ in range(3):
        for offset in (4, 5):
            with pytest.raises(BadBatch, match=r"\[4, 6\)"):
                log.reader.read(offset)
    assert not disk.calls
    with log.reader.read(0, max_bytes=1 << 20) as plan:
        assert plan.next_offset == 4
    assert [offset for offset, _, _ in read_records(log, 6)] == list(range(6, 60))
    with log.reader.read(0, end=5, max_bytes=1 << 20) as plan:
        assert plan.next_offset == 4
    with pytest.raises(BadBatch):
        list(log.reader.batches(0))
    assert log.state.tampered_count == 1


def test_a_request_looks_at_the_bytes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    log = filled(disk)
    forge(disk, log, 4)
    looked: list[int] = []

    class Handle:
        elsewhere = None

        def scrub(self, offset: int, *, bytes_max: int) -> Piece | None:
            looked.append(offset)
            return scrub(log, offset, bytes_max=bytes_max)

    handle: Any = Handle()
    handle.log = log
    for _ in range(3):
        with pytest.raises(BadBatch):
            planned(handle, {"offset": 4, "end": None}, 4, 1 << 20, reserve=nothing)
    assert looked == [4]


@pytest.mark.parametrize(
    ("field", "value"), [("first_offset", 3), ("first_offset", 5), ("last_offset", 1_000), ("format_version", 2)]
)
@pytest.mark.parametrize("finder", ["read", "scrub"])
def test_it_hides_nothing_but_itself_whatever_it_says(field: str, value: int, finder: str) -> None:
    disk = SimDisk()
    log = filled(disk)
    forge(disk, log, 4, field, value)
    if finder == "scrub":
        assert sum(piece.tampered for piece in scrubbed(log)) == 1
        assert sum(piece.tampered for piece in scrubbed(log)) == 0
    else:
        with pytest.raises(CorruptLog):
            log.reader.read(4)
    assert (log.state.tampered, log.state.lost_ranges) == (((4, 6),), ())
    assert [offset for offset, _, _ in read_records(log, 6)] == list(range(6, 60))
    assert [offset for offset, _, _ in read_records(log, 0, end=4)] == list(range(4))


def test_who_puts_the_file_back_has_lost_nothing() -> None:
    disk = SimDisk()
    log = filled(disk)
    before = {path: bytes(inode.content) for path, inode in disk.names.items() if path.endswith((".arrows", ".index"))}
    forge(disk, log, 4, "last_offset", 1_000)
    scrubbed(log)
    assert log.state.tampered == ((4, 6),)
    log.close()
    point = Checkpoint.decode(disk.read_file(f"{FOLDER}/checkpoint"), where="")
    assert point is not None
    assert point.lost_ranges == ()
    log = open_log(disk, settings=SETTINGS)
    with pytest.raises(BadBatch):
        read_records(log, 0)
    assert log.state.tampered == ((4, 6),)
    log.close()
    for path, content in before.items():
        if path.endswith(".arrows"):
            disk.replace_file(path, content)
    log = open_log(disk, settings=SETTINGS)
    assert [offset for offset, _, _ in read_records(log, 0)] == list(range(60))


def test_compaction_and_coalescing_leave_the_log_alone_and_read_nothing_of_it() -> None:
    disk = SimDisk()
    log = filled(disk)
    forge(disk, log, 4)
    how = CompactionSettings(min_cleanable_dirty_percent=0)
    report = compact(log, how, map_bytes=1 << 16, now_us=1 << 50)
    assert report is not None
    assert "scanned anew" in report.uncleanable
    disk.calls.clear()
    report = compact(log, how, map_bytes=1 << 16, now_us=1 << 50)
    assert report is not None
    assert report.uncleanable == "somebody has changed some of its records"
    assert coalesce(log, CoalescingSettings(), {}, now_us=1 << 50) is None
    assert not disk.calls.keys() & {"open", "pread"}
    assert log.state.tampered == ((4, 6),)


def test_where_there_are_others_it_is_lost_and_comes_from_them() -> None:
    theirs, ours = SimDisk(), SimDisk()
    settings = replace(SETTINGS, is_sole_replica=False)
    other, log = filled(theirs, settings), filled(ours, settings)
    forge(ours, log, 4, "last_offset", 1_000)
    (lost,) = [piece.lost for piece in scrubbed(log) if piece.lost]
    assert lost == log.state.lost_ranges == ((4, 6),)
    assert (log.state.tampered, log.state.tampered_count) == ((), 1)
    with pytest.raises(CorruptLog):
        log.reader.read(4)
    with other.reader.read(4, end=6, max_bytes=1, stored=True) as plan:
        data = plan_bytes(plan)
    mend(log, (4, 6), memoryview(data))
    assert log.state.lost_ranges == ()
    assert [offset for offset, _, _ in read_records(log, 0)] == list(range(60))
    assert sum(piece.tampered for piece in scrubbed(log)) == 0


def test_who_gets_others_has_it_mended_by_them() -> None:
    disk = SimDisk()
    log = filled(disk)
    for offset in (4, 20):
        forge(disk, log, offset)
        scrubbed(log)
    assert (log.state.tampered, log.state.tampered_count) == (((4, 6), (20, 22)), 2)
    log.remembered.update_settings(replace(SETTINGS, is_sole_replica=False))
    assert (log.state.tampered, log.state.lost_ranges) == ((), ((4, 6), (20, 22)))


def test_only_so_many_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "TAMPERED_RANGES_MAX", 3)
    disk = SimDisk()
    log = filled(disk)
    for offset in (4, 8, 12, 16, 40):
        forge(disk, log, offset)
    scrubbed(log)
    assert log.state.tampered == ((4, 6), (8, 10), (12, 42))
    for offset in (12, 20, 41):
        with pytest.raises(BadBatch):
            log.reader.read(offset)
    assert [offset for offset, _, _ in read_records(log, 42)] == list(range(42, 60))


def test_what_is_let_go_of_or_taken_back_is_tampered_with_no_more() -> None:
    disk = SimDisk()
    log = filled(disk)
    forge(disk, log, 4)
    forge(disk, log, 50)
    scrubbed(log)
    assert log.state.tampered == ((4, 6), (50, 52))
    log.trim(5)
    assert log.state.tampered == ((5, 6), (50, 52))
    log.truncate(44)
    assert log.state.tampered == ((5, 6),)


@pytest.mark.parametrize("timestamp_us", [0, 1 << 40])
def test_a_search_by_time_passes_over_nothing_by_what_somebody_has_written(timestamp_us: int) -> None:
    """Seen before: by the timestamp in its header a batch was passed over, and nobody looked whether it opens."""
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    for number in range(6):
        log.append([row_batch([b"x"] * 2, [10 * number] * 2)], leader_epoch=1, now_us=number)
        commit(log)
    assert log.reader.offset_for_time(20) == 4
    forge(disk, log, 4, "max_timestamp_us", timestamp_us)
    assert log.reader.offset_for_time(20) == 6
    assert log.state.tampered == ((4, 6),), "who reads from some time on, and may have missed it, is told"


def test_what_is_missing_around_the_log_start_is_one_gap() -> None:
    """Seen before: the tables of ids of such a log could not be read any more."""
    disk = SimDisk()
    log = filled(disk, count=6)
    view = log.state.view()
    entry = view.index(view.segments[0]).entries[2]
    disk.flip(view.segments[0].path, 8 * (int(entry["position"]) + 700))
    scrubbed(log)
    assert log.state.lost_ranges == ((4, 6),)
    log.trim(5)
    assert log.state.lost_ranges == ((5, 6),)
    whole = [read_header(message).first_offset for message in log.reader.messages(0, None, whole=True)]
    assert whole == [0, 2, 6, 8, 10]


@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize("first", ["read", "coalesce", "put back"])
def test_what_was_found_before_a_kill_is_found_again_and_not_written_over(offset: int, first: str) -> None:
    """Seen before: the index that was written without it was believed. Reads passed over it without a word, a pass of
    coalescing made it so for good, and the file that was put back was not looked at."""
    disk = SimDisk()
    settings = replace(SETTINGS, segment_bytes=1 << 20)
    log = filled(disk, settings, 10)
    path = f"{FOLDER}/{0:020d}.arrows"
    before, records = bytes(disk.names[path].content), read_records(log, 0)
    forge(disk, log, offset)
    with pytest.raises(BadBatch):
        log.reader.read(offset)
    log.checkpoint()
    log.close(clean=False)
    if first == "put back":
        disk.replace_file(path, before)
    log = open_log(disk, settings=settings, boot_id="another")
    log.state.advance_high_watermark(20)
    if first == "put back":
        assert read_records(log, 0) == records
        return
    if first == "coalesce":
        coalesce(log, CoalescingSettings(min_batch_bytes=1 << 16), {}, now_us=1 << 50)
        compact(log, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=1 << 50)
    with pytest.raises(BadBatch):
        log.reader.read(offset)
    assert log.state.tampered == ((offset, offset + 2),)
    assert read_records(log, offset + 2) == records[offset + 2 :]


def test_a_read_begins_where_it_was_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is believed of the index: what lies before the first batch of a plan is missing, or known to be."""
    disk = SimDisk()
    log = filled(disk)
    view = log.state.view()
    index = view.index(view.segments[0])
    for entries, missing in ((index.entries[2:], 0), (index.entries, None)):
        lacking = IndexView(entries)
        monkeypatch.setattr(
            INDEX_CACHE, "get", lambda serial, of=lacking: of if serial == view.segments[0].serial else None
        )
        if missing is None:
            log.reader.read(0).close()
            continue
        with pytest.raises(BadBatch):
            log.reader.read(missing, repairs=False)
        for turn in (lambda: next(log.reader.batches(0)), lambda: next(iter(log.reader.batches_in_turn(0, 60)))):
            with pytest.raises(CorruptLog):
                turn()


def test_what_is_lost_before_what_is_tampered_with_ends_no_reader_without_a_word() -> None:
    """Seen before: an export ended there, as if nothing came behind."""
    disk = SimDisk()
    log = filled(disk)
    forge(disk, log, 10)
    with pytest.raises(BadBatch):
        log.reader.read(10)
    view = log.state.view()
    entry = view.index(view.segments[0]).entries[4]
    disk.flip(view.segments[0].path, 8 * (int(entry["position"]) + 700))
    scrubbed(log)
    assert (log.state.tampered, log.state.lost_ranges) == (((10, 12),), ((8, 10),))
    for start in (0, 8):
        with pytest.raises(BadBatch):
            list(log.reader.batches(start))
        with pytest.raises(BadBatch):
            list(log.reader.batches_in_turn(start, 60))
    assert [read_header(message).first_offset for message in log.reader.batches(0, 9)] == [0, 2, 4, 6]
