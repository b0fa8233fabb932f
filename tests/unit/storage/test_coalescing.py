"""Coalescing, one fact at a time. Against a model, with crashes: tests/properties/storage/test_coalescing.py."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from broker.api.batch import BatchHeader, decode_batch, read_header
from broker.api.errors import DiskFull, StorageFailed
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.api.stream import StreamSettings
from broker.storage.inspect.inspection import inspect_partition
from broker.storage.inspect.repair import repair
from broker.storage.log import PartitionLog
from broker.storage.rewrite.coalescing import (
    CoalescingReport,
    CoalescingSettings,
    Known,
    KnownSegments,
    coalesce,
    next_join,
)
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.rewriting import BatchRun, BatchShape
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.segments.segment import Segment
from tests.support.compacting import check_compacted, keyed_batch, keyed_records
from tests.support.effort import first_short
from tests.support.logs import (
    FOLDER,
    Record,
    commit,
    create_log,
    open_log,
    plan_bytes,
    read_records,
    row_batch,
    sent_records,
    stamped,
    verified_records,
)
from tests.support.simdisk import SimDisk

GOLDEN = Path(__file__).parents[2] / "golden" / "format-v1"
LARGE = LogSettings(segment_bytes=1 << 20)
SETTINGS = CoalescingSettings(min_age_ms=0, segment_bytes=1 << 20)
NOW_US = 1 << 50


def trickled(
    count: int, *, segments: int = 1, disk: SimDisk | None = None, settings: LogSettings = LARGE
) -> PartitionLog:
    """A log of batches of one record, in so many sealed segments."""
    log = create_log(disk or SimDisk(), settings=settings)
    for number in range(segments):
        for i in range(count):
            log.append([row_batch([b"%d-%d" % (number, i)], [number * 1_000 + i])], leader_epoch=1, now_us=0)
        commit(log)
        assert log.roll_if_due(NOW_US)
    return log


def settle(log: PartitionLog, settings: CoalescingSettings = SETTINGS, memory: KnownSegments | None = None) -> int:
    """Coalesce until nothing is due. Returns how many files were written."""
    memory = {} if memory is None else memory
    for count in range(20):
        if coalesce(log, settings, memory, now_us=NOW_US) is None:
            check_compacted(log)
            return count
    raise AssertionError("it does not come to rest")


def headers_of(log: PartitionLog) -> list[BatchHeader]:
    return [read_header(message) for message in log.reader.batches(log.state.log_start_offset)]


def ranges_of(log: PartitionLog) -> list[tuple[int, int]]:
    return [(header.first_offset, header.next_offset) for header in headers_of(log)]


# --- inside one segment -------------------------------------------------------------------------------------------


def test_batches_of_one_record_become_one_with_the_same_records() -> None:
    log = trickled(50)
    records, before = verified_records(log), log.state.byte_count
    assert coalesce(log, SETTINGS, {}, now_us=NOW_US) == CoalescingReport(
        end=50, segments=1, batches_before=50, batches_after=1, bytes_before=before, bytes_after=log.state.byte_count
    )
    check_compacted(log)
    assert verified_records(log) == records
    assert read_records(log, 17, end=31) == records[17:31]
    assert ranges_of(log) == [(0, 50)]
    assert log.state.byte_count < before / 8
    assert log.reader.offset_for_time(30) == 30
    assert log.reader.bytes_between(0, 50) == log.state.byte_count - len(SCHEMA_BYTES) - len(END_OF_STREAM)


def test_joined_batches_are_closed_at_the_bytes_and_the_records_of_the_stream() -> None:
    log = trickled(100)
    settle(log, CoalescingSettings(min_age_ms=0, shape=BatchShape(batch_records=30)))
    assert ranges_of(log) == [(0, 30), (30, 60), (60, 90), (90, 100)]
    log = trickled(100)
    settle(log, CoalescingSettings(min_age_ms=0, shape=BatchShape(batch_bytes=2_000)))
    assert len(ranges_of(log)) > 3
    assert all(len(message) < 888 + 2_000 for message in log.reader.batches(0))


def test_a_joined_batch_says_what_holds_of_all_that_went_into_it() -> None:
    log = create_log(SimDisk(), settings=LARGE)
    for i, timestamp in enumerate([5, 90, *range(10, 18)]):
        log.append([row_batch([b"%d" % i], [timestamp])], leader_epoch=4, now_us=0)
        commit(log)
    log.roll_if_due(NOW_US)
    assert headers_of(log)[-1].high_watermark == 9
    settle(log)
    (header,) = headers_of(log)
    assert (header.first_offset, header.last_offset, header.leader_epoch) == (0, 9, 4)
    assert header.max_timestamp_us == 90
    assert header.high_watermark == 0  # a scan that searches trusts no batch that claims to be committed
    assert log.reader.offset_for_time(80) == 1


@pytest.mark.parametrize("seed", range(50))
def test_of_headers_by_chance_comes_the_one_that_w3_says(seed: int) -> None:
    rng = random.Random(seed)
    headers: list[BatchHeader] = []
    at = rng.randrange(1 << rng.choice([1, 40, 62]))
    for _ in range(rng.randint(1, 6)):
        count = rng.randint(1, 20)
        headers.append(
            BatchHeader(
                first_offset=at,
                last_offset=at + count - 1,
                leader_epoch=7,
                high_watermark=max(0, at + rng.randrange(-60, 60)),
                max_timestamp_us=rng.randrange(-(10**15), 10**15),
                producer_id=rng.choice([0, 5]),
                producer_epoch=rng.randrange(3),
                sequence=rng.randrange(9),
                group_index=rng.randrange(2),
                group_count=2,
                decision=rng.randrange(2),
            )
        )
        at += count + rng.choice([0, 3])
    first, *more = headers
    run = BatchRun(first, 1, 10)
    assert run.header is first, "a batch that stays alone keeps its producer, group and decision"
    for header in more:
        run.add(header, 2, 20)
    assert (run.rows, run.body_bytes) == (1 + 2 * len(more), 10 + 20 * len(more))
    if more:
        assert run.header == BatchHeader(
            first_offset=first.first_offset,
            last_offset=headers[-1].last_offset,
            leader_epoch=7,
            high_watermark=max(first.high_watermark, *(min(each.high_watermark, first.first_offset) for each in more)),
            max_timestamp_us=max(each.max_timestamp_us for each in headers),
        )


def test_batches_of_different_epochs_are_not_joined() -> None:
    log = create_log(SimDisk(), settings=LARGE)
    for epoch in (1, 3):
        for i in range(10):
            log.append([row_batch([b"%d" % i])], leader_epoch=epoch, now_us=0)
    commit(log)
    log.roll_if_due(NOW_US)
    settle(log)
    assert [(h.first_offset, h.last_offset, h.leader_epoch) for h in headers_of(log)] == [(0, 9, 1), (10, 19, 3)]
    assert (log.epochs.epoch_of(9), log.epochs.epoch_of(10), log.epochs.end_of(1).end_offset) == (1, 3, 10)


def test_the_newest_groups_of_a_producer_keep_their_stamps_and_older_ones_are_joined() -> None:
    disk = SimDisk()
    log = create_log(disk, settings=LARGE)
    for sequence in range(20):
        log.append([stamped([b"%d" % sequence], 7, 0, sequence)], leader_epoch=1, now_us=0)
    commit(log)
    log.roll_if_due(NOW_US)
    records = verified_records(log)
    settle(log)
    assert verified_records(log) == records
    stamps = [(h.first_offset, h.last_offset, h.producer_id, h.sequence) for h in headers_of(log)]
    assert stamps == [(0, 14, 0, 0), *((i, i, 7, i) for i in range(15, 20))]
    log.close()
    for name in [name for name in disk.names if "/state-" in name]:  # the headers alone must do, too
        disk.flip(name, 100)
    opened = open_log(disk, settings=LARGE)
    for sequence in range(15, 20):
        repeat = opened.append([stamped([b"%d" % sequence], 7, 0, sequence)], leader_epoch=1, now_us=0)
        assert (repeat.duplicate, repeat.first_offset) == (True, sequence)


def test_stamps_stay_while_a_later_group_of_their_producer_may_be_lost() -> None:
    log = create_log(SimDisk(), settings=LARGE)
    for sequence in range(20):
        log.append([stamped([b"%d" % sequence], 7, 0, sequence)], leader_epoch=1, now_us=0)
    commit(log)
    log.roll_if_due(NOW_US)
    log.append([stamped([b"20"], 7, 0, 20)], leader_epoch=1, now_us=0)  # neither durable nor committed
    assert settle(log) == 0
    commit(log)
    assert settle(log) == 1


def test_commit_groups_of_several_batches_stay_as_they_are() -> None:
    log = create_log(SimDisk(), settings=LARGE)
    for _ in range(10):
        log.append([row_batch([b"x"])], leader_epoch=1, now_us=0)
    log.append([row_batch([b"a"]), row_batch([b"b"])], leader_epoch=1, now_us=0)
    for _ in range(10):
        log.append([row_batch([b"x"])], leader_epoch=1, now_us=0)
    commit(log)
    log.roll_if_due(NOW_US)
    settle(log)
    assert [(h.first_offset, h.next_offset, h.group_index, h.group_count) for h in headers_of(log)] == [
        (0, 10, 0, 1),
        (10, 11, 0, 2),
        (11, 12, 1, 2),
        (12, 22, 0, 1),
    ]


# --- compressed ----------------------------------------------------------------------------------------------------


def compressed(compression: str, **shape: int) -> CoalescingSettings:
    return CoalescingSettings(min_age_ms=0, segment_bytes=1 << 20, shape=BatchShape(compression=compression, **shape))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_is_written_anew_is_compressed_and_read_by_everybody(compression: str) -> None:
    disk = SimDisk()
    log = trickled(200, disk=disk)
    records = verified_records(log)
    settle(log)
    plain = log.state.byte_count
    assert settle(log, compressed(compression)) == 1
    assert log.state.byte_count < plain * 0.6
    assert verified_records(log) == records
    assert read_records(log, 17, end=31) == records[17:31]
    assert log.reader.offset_for_time(30) == 30
    data = bytes(disk.names[f"{FOLDER}/{0:020d}.arrows"].content)
    assert pl.read_ipc_stream(data)["value"].to_list() == [value for _, _, value in records]
    for found in (disk.after_kill(), disk.after_crash("lost")):
        opened = open_log(found, settings=LARGE)
        commit(opened)
        check_compacted(opened)
        assert verified_records(opened) == records


def test_compression_alone_joins_nothing_and_keeps_stamps_decisions_and_groups() -> None:
    log = create_log(SimDisk(), settings=LARGE)
    value = b"value" * 400
    log.append([stamped([value], 7, 0, 0)], leader_epoch=1, now_us=0)
    log.append([row_batch([value]), row_batch([value])], leader_epoch=1, now_us=0)
    log.append([row_batch([value])], leader_epoch=1, now_us=0)
    log.append([row_batch([b"tiny"])], leader_epoch=1, now_us=0)
    commit(log)
    log.roll_if_due(NOW_US)
    before, size = headers_of(log), log.state.byte_count
    settings = CoalescingSettings.of(
        StreamSettings(coalesce_min_batch_bytes=0, compression="zstd", retention_ms=None, dedup_window_ms=0)
    )
    assert settings is not None
    assert settle(log, settings) == 1
    assert log.state.byte_count < size / 2
    assert [replace(header, crc=0) for header in headers_of(log)] == [replace(header, crc=0) for header in before]


def test_a_compressed_log_comes_to_rest_and_is_not_compressed_anew_for_another_codec() -> None:
    log = trickled(300, segments=2)
    memory: KnownSegments = {}
    assert settle(log, compressed("lz4", batch_records=40), memory) >= 1
    assert settle(log, compressed("lz4", batch_records=40)) == 0
    assert settle(log, compressed("zstd", batch_records=40), memory) == 0
    assert settle(log, compressed("none", batch_records=40), memory) == 0


def test_a_log_that_was_left_plain_is_compressed_when_its_stream_is_altered() -> None:
    log = trickled(300)
    memory: KnownSegments = {}
    assert settle(log, memory=memory) == 1
    before = log.state.byte_count
    assert settle(log, compressed("zstd"), memory) == 1
    assert log.state.byte_count < before


def test_damage_in_a_compressed_segment_loses_one_batch_wherever_it_strikes() -> None:
    disk = SimDisk()
    log = trickled(400, disk=disk)
    records = verified_records(log)
    settle(log, compressed("zstd", batch_records=100))
    path = f"{FOLDER}/{0:020d}.arrows"
    assert log.state.segment_count == 1
    entries = log.state.chain.segments[0].index(disk).entries  # type: ignore[union-attr]
    start, length = int(entries["position"][1]), int(entries["length"][1])
    log.append([row_batch([b"tail"])], leader_epoch=1, now_us=0)
    commit(log)
    for at in (0, 4, 48, 100, 320, 890, 900, length - 4):
        found = disk.after_kill()
        found.flip(path, 8 * (start + at))
        del found.names[path.replace(".arrows", ".index")]
        opened = open_log(found, settings=LARGE)
        commit(opened)
        assert verified_records(opened) == records[:100] + records[200:] + [(400, 0, b"tail")]
        assert opened.state.lost_ranges == ((100, 200),)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_bad_sector_in_a_rewritten_segment_loses_one_batch(compression: str) -> None:
    """Where a batch begins its header is gone, both lengths with it: the index tells where the next one is."""
    disk = SimDisk()
    log = trickled(400, disk=disk)
    records = verified_records(log)
    settle(log, compressed(compression, batch_records=100))
    entries = log.state.chain.segments[0].index(disk).entries  # type: ignore[union-attr]
    start = int(entries["position"][1])
    log.append([row_batch([b"tail"])], leader_epoch=1, now_us=0)
    commit(log)
    inode = disk.names[f"{FOLDER}/{0:020d}.arrows"]
    for content in (inode.content, inode.durable):
        content[start : start + 512] = bytes(512)
    with log.reader.read(100) as plan:
        assert plan.first_offset == 200
    assert log.state.lost_ranges == ((100, 200),)
    assert [record for record in verified_records(log) if record[0] < 400] == records[:100] + records[200:]
    found = disk.after_kill()
    (lost,) = inspect_partition(found, FOLDER).of_kind("lost_range")
    assert (lost.first_offset, lost.next_offset) == (100, 200)


def test_compaction_compresses_what_it_writes_anew() -> None:
    log = create_log(SimDisk(), settings=LARGE)
    for i in range(40):
        log.append([keyed_batch([(b"%d" % (i % 30), b"v" * 500)])], leader_epoch=1, now_us=0)
    commit(log)
    log.roll_if_due(NOW_US)
    settings = CompactionSettings(min_cleanable_dirty_percent=0)
    compact(log, settings, map_bytes=1 << 16, now_us=0, shape=BatchShape(compression="lz4"))
    check_compacted(log)
    assert log.state.byte_count < 40 * 100
    assert sorted(keyed_records(log)) == list(range(10, 40))


# --- several segments ---------------------------------------------------------------------------------------------


def test_small_segments_become_one_with_the_same_records() -> None:
    disk = SimDisk()
    log = trickled(20, segments=5, disk=disk)
    records = verified_records(log)
    report = coalesce(log, SETTINGS, {}, now_us=NOW_US)
    assert report is not None
    assert (report.segments, report.batches_before, report.batches_after) == (5, 100, 1)
    check_compacted(log)
    assert log.state.segment_count == 1
    assert verified_records(log) == records
    names = sorted(name.rpartition("/")[2] for name in disk.names if ".arrows" in name or "join" in name)
    assert names == ["00000000000000000000.arrows"]
    log.append([row_batch([b"more"])], leader_epoch=2, now_us=0)
    commit(log)
    for again in (disk.after_kill(), disk.after_crash("lost")):
        opened = open_log(again, settings=LARGE)
        commit(opened)
        check_compacted(opened)
        assert verified_records(opened)[:100] == records


def test_a_large_segment_is_not_written_again_for_the_sake_of_small_ones() -> None:
    log = trickled(200, segments=1)
    settle(log)
    for _ in range(2):
        log.append([row_batch([b"x"])], leader_epoch=1, now_us=0)
        commit(log)
        log.roll_if_due(NOW_US)
    before = log.state.segment_count
    settle(log)
    assert log.state.segment_count == before


@pytest.mark.parametrize(
    "sizes,limits,expected",
    [
        ([10, 10, 10], {}, (0, 3)),
        ([10, 10], {}, None),
        ([90, 10, 10, 10], {}, (1, 4)),
        ([10, 10, 10, 90], {}, (0, 3)),
        ([10, 10, 10, 50], {}, (0, 3)),
        ([40, 40, 40], {}, None),
        ([30, 30, 30, 30, 30, 30], {}, (0, 3)),
        ([10] * 4, {"span_records": 3}, (0, 3)),
        ([10] * 4, {"span_records": 2}, None),
        ([10] * 9, {"span_ms": 3}, (0, 4)),
        ([10] * 9, {"span_ms": 1}, None),
        ([], {}, None),
    ],
)
def test_neighbours_are_joined_when_they_fit_and_none_of_them_weighs_most(
    sizes: Sequence[int], limits: dict[str, int], expected: tuple[int, int] | None
) -> None:
    found = [
        Known(segment=Segment(FOLDER, i), end=i + 1, bytes=size, batches=1, oldest_us=i * 1_000, newest_us=i * 1_000)
        for i, size in enumerate(sizes)
    ]
    assert next_join(found, CoalescingSettings(segment_bytes=100, **limits)) == expected  # type: ignore[arg-type]


def test_retention_takes_joined_segments_no_later_than_an_eighth_of_its_limit() -> None:
    keep_all = CoalescingSettings.of(StreamSettings(retention_ms=8_000, retention_bytes=8 << 20, retention_records=800))
    assert keep_all is not None
    assert (keep_all.span_ms, keep_all.segment_bytes, keep_all.span_records) == (1_000, 1 << 20, 100)
    compacted = CoalescingSettings.of(StreamSettings(retention_ms=8_000, cleanup="compact"))
    assert compacted is not None
    assert (compacted.span_ms, compacted.is_compacted) == (None, True)
    assert CoalescingSettings.of(StreamSettings(coalesce_min_batch_bytes=0)) is None
    assert keep_all.min_age_ms == StreamSettings().dedup_window_ms == 120_000


def test_a_time_in_the_future_holds_up_nothing_where_no_age_is_asked_for() -> None:
    assert coalesce(trickled(20), SETTINGS, {}, now_us=-1) is not None
    assert coalesce(trickled(20), CoalescingSettings(min_age_ms=1, segment_bytes=1 << 20), {}, now_us=-1) is None


def test_retention_by_age_bytes_and_records_works_on_joined_segments() -> None:
    for limits in ({"retention_ms": 5}, {"retention_bytes": 2_000}, {"retention_records": 30}):
        log = trickled(10, segments=12)
        settle(log, CoalescingSettings(min_age_ms=0, segment_bytes=1 << 20, span_records=40))
        assert 3 <= log.state.segment_count <= 5
        records = verified_records(log)
        log.remembered.update_settings(LogSettings(segment_bytes=1 << 20, **limits))  # type: ignore[arg-type]
        start = log.apply_retention(now_us=10_000)  # a segment has 1 ms, the newest record is from 11 ms
        assert 40 <= start < 120
        assert verified_records(log) == records[start:]
        check_compacted(log)


# --- when ---------------------------------------------------------------------------------------------------------


def test_a_log_that_nothing_is_appended_to_comes_to_rest() -> None:
    disk = SimDisk()
    log = trickled(20, segments=4, disk=disk)
    memory: KnownSegments = {}
    assert settle(log, memory=memory) == 1
    steps = disk.steps
    assert settle(log, memory=memory) == settle(log) == 0
    assert disk.steps == steps
    assert len(memory) == 1


def test_small_batches_that_cannot_be_joined_are_read_once_and_left_alone() -> None:
    log = create_log(SimDisk(), settings=LARGE)
    for _ in range(20):
        log.append([row_batch([b"a"]), row_batch([b"b"])], leader_epoch=1, now_us=0)
    commit(log)
    log.roll_if_due(NOW_US)
    memory: KnownSegments = {}
    assert settle(log, memory=memory) == 0
    assert all(known.left_alone_for for known in memory.values())


def test_the_active_segment_young_records_and_what_is_not_committed_stay_as_they_are() -> None:
    log = trickled(20, segments=2)
    for i in range(20):
        log.append([row_batch([b"tail %d" % i])], leader_epoch=1, now_us=0)
    young = CoalescingSettings(min_age_ms=1, segment_bytes=1 << 20)
    assert coalesce(log, young, {}, now_us=1_019) is not None  # they end with 19 us, 1,019 us
    assert ranges_of(log)[:2] == [(0, 20), (20, 21)]
    assert coalesce(log, young, {}, now_us=2_018) is None
    log.roll_if_due(NOW_US)
    assert log.state.high_watermark == 40
    settle(log)
    log.state.advance_high_watermark(60)
    assert ranges_of(log) == [(0, 20), (20, 40), *((i, i + 1) for i in range(40, 60))]


def test_a_compacted_log_is_left_to_compaction_until_it_is_clean() -> None:
    log = create_log(SimDisk(), settings=LARGE)
    for i in range(40):
        log.append([keyed_batch([(b"%d" % (i % 10), b"%d" % i)])], leader_epoch=1, now_us=0)
        if i % 10 == 9:
            commit(log)
            log.roll_if_due(NOW_US)
    settings = CoalescingSettings(min_age_ms=0, segment_bytes=1 << 20, is_compacted=True)
    assert settle(log, settings) == 0
    compact(log, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=0)
    records = keyed_records(log)
    assert sorted(records) == list(range(30, 40))
    assert settle(log, settings) == 2  # the three that are empty; then the last one, which weighs most
    assert ranges_of(log) == [(0, 30), (30, 40)]
    assert keyed_records(log) == records


def test_compaction_joins_the_batches_of_what_it_writes_anew() -> None:
    log = create_log(SimDisk(), settings=LARGE)
    for i in range(40):
        log.append([keyed_batch([(b"%d" % (i % 30), b"%d" % i)])], leader_epoch=1, now_us=0)
    commit(log)
    log.roll_if_due(NOW_US)
    compact(log, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=0, shape=BatchShape())
    check_compacted(log)
    assert ranges_of(log) == [(0, 40)]
    assert sorted(keyed_records(log)) == list(range(10, 40))


def test_segments_that_compaction_emptied_become_one() -> None:
    log = create_log(SimDisk(), settings=LARGE)
    for i in range(10):
        log.append([keyed_batch([(b"k", b"%d" % i)])], leader_epoch=1, now_us=0)
        commit(log)
        log.roll_if_due(NOW_US)
    compact(log, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=0, shape=BatchShape())
    assert log.state.segment_count == 10
    settle(log, CoalescingSettings(min_age_ms=0, segment_bytes=1 << 20, is_compacted=True))
    assert log.state.segment_count == 1
    assert keyed_records(log) == {9: (b"k", b"9")}
    assert log.state.byte_count < 2_000


# --- beside others ------------------------------------------------------------------------------------------------


def test_readers_with_the_old_files_open_read_them_to_their_end() -> None:
    log = trickled(20, segments=3)
    records = verified_records(log)
    with log.reader.read(0) as plan:
        sent = plan_bytes(plan)
        settle(log)
        assert plan_bytes(plan) == sent
        assert sent_records(plan) == records


def test_a_question_that_began_before_segments_were_joined_is_asked_again() -> None:
    for offset in (0, 25, 45):
        log = trickled(20, segments=3)
        records = verified_records(log)
        view = log.state.view()
        for segment in view.segments:
            assert view.index(segment)
        settle(log)
        views = [log.state.view(), view]
        log.state.view = views.pop  # type: ignore[method-assign]
        with log.reader.read(offset) as plan:
            assert sent_records(plan) == records
        assert views == []


def test_retention_that_takes_a_segment_meanwhile_wins() -> None:
    disk = SimDisk()
    log = trickled(20, segments=4, disk=disk)
    records, calls = verified_records(log), []

    def throttle(_: int) -> None:
        calls.append(1)
        if len(calls) == 3:
            log.trim(20)

    report = coalesce(log, SETTINGS, {}, now_us=NOW_US, throttle=throttle)
    assert report is not None
    assert report.failed
    assert (log.state.log_start_offset, log.state.segment_count) == (20, 3)
    assert [name for name in disk.names if "join" in name or name.endswith(".tmp")] == []
    assert settle(log) == 1
    assert verified_records(log) == records[20:]


def test_a_call_that_is_stopped_leaves_nothing_behind() -> None:
    disk = SimDisk()
    log = trickled(20, segments=3, disk=disk)

    class Stopped(Exception):
        pass

    def throttle(_: int) -> None:
        raise Stopped

    names = set(disk.names)
    with pytest.raises(Stopped):
        coalesce(log, SETTINGS, {}, now_us=NOW_US, throttle=throttle)
    assert set(disk.names) == names
    assert settle(log) == 1


def test_a_full_disk_stops_it_and_appends_go_on() -> None:
    disk = SimDisk()
    log = trickled(20, segments=3, disk=disk)
    records = verified_records(log)
    disk.bytes_max = disk.used_bytes + 700
    with pytest.raises(DiskFull):
        coalesce(log, SETTINGS, {}, now_us=NOW_US)
    disk.heal()
    assert log.state.failure is None
    assert settle(log) == 1
    assert verified_records(log) == records


@pytest.mark.slow
@pytest.mark.parametrize("call", first_short(["sync", "write", "create", "sync_dir", "rename", "unlink"], count=2))
def test_a_disk_that_fails_at_any_call_loses_nothing(call: str) -> None:
    for after in range(6):
        disk = SimDisk()
        log = trickled(20, segments=3, disk=disk)
        records = verified_records(log)
        memory: KnownSegments = {}
        disk.fail(call, errno.EIO, after=after)
        with suppress(StorageFailed):
            coalesce(log, SETTINGS, memory, now_us=NOW_US)
        disk.heal()
        check_compacted(log)
        assert verified_records(log) == records
        settle(log)
        for found in (disk.after_kill(), disk.after_crash("lost")):
            opened = open_log(found, settings=LARGE)
            commit(opened)
            check_compacted(opened)
            assert verified_records(opened) == records


def test_a_damaged_batch_stops_it_and_a_log_with_lost_records_is_left_alone() -> None:
    disk = SimDisk()
    log = trickled(20, segments=3, disk=disk)
    disk.flip(f"{FOLDER}/{20:020d}.arrows", 8 * 1_500)
    report = coalesce(log, SETTINGS, {}, now_us=NOW_US)
    assert report is not None
    assert report.failed
    assert log.state.lost_ranges == ((20, 21),)
    assert coalesce(log, SETTINGS, {}, now_us=NOW_US) is None


# --- an interrupted join ------------------------------------------------------------------------------------------


def interrupted(disk: SimDisk, *, batch_records: int = 100) -> list[Record]:
    """A join that was killed when the new file was in its place and the old ones were there still."""
    log = trickled(20, segments=3, disk=disk)
    records = verified_records(log)
    disk.fail("unlink", errno.EIO, path="00020.arrows")
    settings = CoalescingSettings(min_age_ms=0, segment_bytes=1 << 20, shape=BatchShape(batch_records=batch_records))
    with pytest.raises(StorageFailed):
        coalesce(log, settings, {}, now_us=NOW_US)
    disk.heal()
    names = sorted(name.rpartition("/")[2] for name in disk.names)
    assert [name for name in names if name.endswith(".arrows")] == [f"{i:020d}.arrows" for i in (0, 20, 40)]
    assert f"join-{0:020d}-{60:020d}" in names
    return records


def test_the_next_open_finishes_a_join_that_was_interrupted() -> None:
    disk = SimDisk()
    records = interrupted(disk)
    for found in (disk.after_kill(), disk.after_crash("kept")):
        opened = open_log(found, settings=LARGE)
        commit(opened)
        check_compacted(opened)
        assert opened.state.segment_count == 1
        assert verified_records(opened) == records
        assert any("interrupted join of 3 segments" in note for note in opened.state.recovery.notes)
        assert not any("join-" in name for name in found.names)


@pytest.mark.parametrize("byte", [1_800, 4_500])
def test_a_new_file_that_was_damaged_since_removes_nothing(byte: int) -> None:
    disk = SimDisk()
    records = interrupted(disk, batch_records=30)
    disk.flip(f"{FOLDER}/{0:020d}.arrows", 8 * byte)
    found = disk.after_kill()
    opened = open_log(found, settings=LARGE)
    commit(opened)
    assert any("damaged" in note for note in opened.state.recovery.notes)
    for log in (opened, open_log(found.after_crash("lost"), settings=LARGE)):
        commit(log)
        assert verified_records(log) == records[20:]
        assert log.state.lost_ranges == ((0, 20),)
        assert log.state.log_end_offset == 60


def test_verify_calls_what_an_interrupted_join_left_harmless_and_repair_finishes_it() -> None:
    disk = SimDisk()
    records = interrupted(disk)
    found = disk.after_kill()
    assert {finding.kind for finding in inspect_partition(found, FOLDER).findings} == {"leftover"}
    done = repair(found, FOLDER, now_us=0)
    assert done.after is not None
    assert done.after.findings == []
    assert f"{FOLDER}/{20:020d}.arrows" in {action.path for action in done.actions if action.what == "removed"}
    opened = open_log(found, settings=LARGE)
    commit(opened)
    assert verified_records(opened) == records


def test_verify_finds_nothing_wrong_with_a_joined_and_compressed_log() -> None:
    disk = SimDisk()
    log = trickled(200, segments=3, disk=disk)
    settle(log, compressed("zstd", batch_records=100))
    log.close()
    assert inspect_partition(disk, FOLDER).findings == []


def test_old_segments_stand_where_nothing_of_the_new_file_can_be_read() -> None:
    disk = SimDisk()
    records = interrupted(disk)
    disk.flip(f"{FOLDER}/{0:020d}.arrows", 8 * 1_800)
    opened = open_log(disk.after_kill(), settings=LARGE)
    commit(opened)
    assert verified_records(opened) == records[20:]
    assert opened.state.lost_ranges == ((0, 20),)


# --- others read it -----------------------------------------------------------------------------------------------


def test_pyarrow_and_polars_read_a_joined_segment() -> None:
    disk = SimDisk()
    log = trickled(20, segments=3, disk=disk)
    records = verified_records(log)
    settle(log)
    data = bytes(disk.names[f"{FOLDER}/{0:020d}.arrows"].content)
    table = pa.ipc.open_stream(data).read_all()
    assert table.column("offset").to_pylist() == [offset for offset, _, _ in records]
    frame = pl.read_ipc_stream(data)
    assert frame["value"].to_list() == [value for _, _, value in records]
    (message,) = log.reader.batches(0)
    assert decode_batch(message).num_rows == 60


def test_golden_joined_segment_is_still_written_and_read_the_same() -> None:
    """Two epochs, a stamp that counts, an empty batch, and what was joined around them."""
    disk = SimDisk()
    log = create_log(disk, settings=LARGE)
    for epoch in (1, 2):
        for i in range(5):
            log.append([keyed_batch([(b"k", b"%d" % i)], timestamp_us=10 * epoch + i)], leader_epoch=epoch, now_us=0)
            commit(log)
        log.append([keyed_batch([(None, b"p")], producer_id=7, sequence=epoch - 1)], leader_epoch=epoch, now_us=0)
        commit(log)
    log.append([keyed_batch([(b"k", b"last")], timestamp_us=40)], leader_epoch=2, now_us=0)
    commit(log)
    log.roll_if_due(NOW_US)
    wanted = CompactionSettings(min_cleanable_dirty_percent=0)
    compact(log, wanted, map_bytes=1 << 16, now_us=NOW_US, shape=BatchShape())
    written = bytes(disk.names[f"{FOLDER}/{0:020d}.arrows"].content)
    if os.environ.get("LIFTLOG_UPDATE_GOLDEN"):
        (GOLDEN / "rewritten.arrows").write_bytes(written)
    assert written == (GOLDEN / "rewritten.arrows").read_bytes(), "the format changed"
    assert [(h.first_offset, h.next_offset, h.leader_epoch, h.producer_id) for h in headers_of(log)] == [
        (0, 5, 1, 0),
        (5, 6, 1, 7),
        (6, 11, 2, 0),
        (11, 12, 2, 7),
        (12, 13, 2, 0),
    ]
    table = pa.ipc.open_stream(written).read_all()
    assert table.column("offset").to_pylist() == [5, 11, 12]
