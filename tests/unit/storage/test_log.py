"""Goal: a log does its work while nothing goes wrong: append, commit groups, group commit, rolling, reading, letting
go."""

from __future__ import annotations

import io
import os
from itertools import pairwise
from pathlib import Path

import polars
import pyarrow as pa
import pytest

from broker.api.batch import HEADER_BYTES, decode_batch, read_header
from broker.api.errors import NotSupported, OffsetOutOfRange, StorageFailed, WrongFolder
from broker.api.schema import END_OF_STREAM, SCHEMA, SCHEMA_BYTES
from broker.storage.disk import OsDisk
from broker.storage.log import AppendResult, PartitionLog
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from tests.support.logs import (
    BOOT_ID,
    FOLDER,
    IDENTITY,
    check_log,
    commit,
    create_log,
    open_log,
    plan_bytes,
    read_records,
    records_of,
    row_batch,
    verified_records,
)
from tests.support.simdisk import Crashed, SimDisk


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> PartitionLog:
    return create_log(disk, settings=LogSettings())


def fill(log: PartitionLog, appends: int, *, size: int = 100, epoch: int = 0, now_us: int = 0) -> None:
    """One record per append, timestamp = offset."""
    for _ in range(appends):
        offset = log.state.log_end_offset
        log.append([row_batch([bytes(size)], [offset])], leader_epoch=epoch, now_us=now_us)


# --- append ---------------------------------------------------------------------------------------------------


def test_offsets_are_dense_and_appends_say_where_they_went(log: PartitionLog) -> None:
    first = log.append([row_batch([b"a", b"b"])], leader_epoch=1, now_us=0)
    second = log.append([row_batch([b"c"]), row_batch([b"d", b"e"])], leader_epoch=1, now_us=0)
    assert (first.first_offset, first.next_offset) == (0, 2)
    assert (second.first_offset, second.next_offset) == (2, 5)
    assert log.state.log_end_offset == 5
    assert log.state.byte_count == len(SCHEMA_BYTES) + first.bytes + second.bytes
    commit(log)
    assert [(offset, value) for offset, _, value in verified_records(log)] == list(
        enumerate([b"a", b"b", b"c", b"d", b"e"])
    )


def test_append_is_one_write_however_many_batches(disk: SimDisk, log: PartitionLog) -> None:
    fill(log, 1)
    before = disk.calls["write"]
    log.append([row_batch([b"x"]) for _ in range(7)], leader_epoch=0, now_us=0)
    assert disk.calls["write"] == before + 1


def test_batches_of_one_append_are_one_commit_group(log: PartitionLog) -> None:
    fill(log, 1)
    commit(log)
    log.append([row_batch([b"x"]), row_batch([b"y", b"z"]), row_batch([b"w"])], leader_epoch=6, now_us=0)
    commit(log)
    alone, *group = (read_header(message) for message in log.reader.batches(0))
    assert (alone.group_index, alone.group_count, alone.high_watermark) == (0, 1, 0)
    assert [(h.group_index, h.group_count) for h in group] == [(0, 3), (1, 3), (2, 3)]
    assert {(h.leader_epoch, h.high_watermark) for h in group} == {(6, 1)}
    assert [(h.first_offset, h.last_offset) for h in group] == [(1, 1), (2, 3), (4, 4)]


def test_failing_compose_appends_nothing(log: PartitionLog) -> None:
    class Refuses:
        record_count = 1
        max_timestamp_us = 0

        def compose(self, **_: int) -> bytes:
            raise NotSupported("no")

    with pytest.raises(NotSupported):
        log.append([row_batch([b"x"]), Refuses()], leader_epoch=0, now_us=0)
    assert log.state.log_end_offset == 0
    fill(log, 1)
    commit(log)
    assert len(verified_records(log)) == 1


def test_rows_keep_every_column_and_get_their_offsets() -> None:
    rows = pa.RecordBatch.from_pylist(
        [
            {"offset": 99, "timestamp": 3, "subject": "s", "key": b"k", "value": None, "headers": [], "reply": "r"},
            {"offset": 7, "timestamp": 9, "subject": "é", "headers": [{"key": "h", "value": b"v"}, {"key": "h"}]},
        ],
        schema=SCHEMA,
    )
    batch = RowBatch(rows, producer_id=5, producer_epoch=6, sequence=7)
    assert (batch.record_count, batch.max_timestamp_us) == (2, 9)
    message = batch.compose(
        first_offset=40, leader_epoch=2, high_watermark=33, group_index=1, group_count=2, decision=8
    )
    found = decode_batch(message)
    assert found.column("offset").to_pylist() == [40, 41]
    assert found.drop_columns("offset").equals(rows.drop_columns("offset"))
    header = read_header(message)
    assert (header.producer_id, header.producer_epoch, header.sequence, header.decision) == (5, 6, 7, 8)


# --- durable --------------------------------------------------------------------------------------------------


def test_one_sync_serves_all_appends_before_it(disk: SimDisk, log: PartitionLog) -> None:
    fill(log, 10)
    assert log.state.durable_end == 0
    before = disk.calls.get("sync", 0)
    assert log.syncer.sync() == log.state.durable_end == 10
    assert log.syncer.sync() == 10
    assert disk.calls["sync"] == before + 1, "nothing new: no fsync"


def test_sync_covers_segments_that_were_rolled_meanwhile(disk: SimDisk) -> None:
    log = create_log(disk, settings=LogSettings(segment_bytes=3_000))
    fill(log, 12)
    assert log.state.segment_count > 3
    assert log.syncer.sync() == 12
    found = open_log(disk.after_crash("lost"), boot_id="other")
    assert found.state.log_end_offset == 12


def test_high_watermark_never_moves_back(log: PartitionLog) -> None:
    fill(log, 5)
    log.state.advance_high_watermark(3)
    log.state.advance_high_watermark(1)
    assert log.state.high_watermark == 3


# --- roll -----------------------------------------------------------------------------------------------------


def test_segments_roll_by_bytes_and_never_within_an_append(disk: SimDisk) -> None:
    log = create_log(disk, settings=LogSettings(segment_bytes=5_000))
    for _ in range(10):
        log.append([row_batch([bytes(600)]), row_batch([bytes(600)])], leader_epoch=0, now_us=0)
    commit(log)
    assert all(segment.size(disk) <= 5_000 + len(END_OF_STREAM) for segment in log.state.view().segments)
    assert all(segment.base_offset % 2 == 0 for segment in log.state.view().segments)
    check_log(log, disk)


def test_batch_over_the_segment_size_gets_a_segment_of_its_own(disk: SimDisk) -> None:
    log = create_log(disk, settings=LogSettings(segment_bytes=2_000))
    fill(log, 1)
    fill(log, 1, size=50_000)
    fill(log, 1)
    assert [segment.base_offset for segment in log.state.view().segments] == [0, 1, 2]


def test_segments_roll_by_age_of_their_first_append(log: PartitionLog) -> None:
    log.remembered.update_settings(LogSettings(segment_age_ms=1_000))
    assert not log.roll_if_due(1 << 60), "nothing to seal"
    fill(log, 1, now_us=5_000_000)
    fill(log, 1, now_us=5_900_000)
    assert not log.roll_if_due(5_999_999)
    assert log.roll_if_due(6_000_000)
    assert not log.roll_if_due(1 << 60), "is sealed already"
    assert log.state.durable_end == 2
    fill(log, 1, now_us=7_000_000)
    assert log.state.segment_count == 2


def test_age_survives_a_restart(disk: SimDisk, log: PartitionLog) -> None:
    settings = LogSettings(segment_age_ms=1_000)
    fill(log, 1, now_us=5_000_000)
    log.close()
    log = open_log(disk, settings=settings)
    assert not log.roll_if_due(5_999_999)
    assert log.roll_if_due(6_000_000)


def test_sealed_segment_ends_with_the_marker_and_the_active_one_does_not(disk: SimDisk) -> None:
    log = create_log(disk, settings=LogSettings(segment_bytes=3_000))
    fill(log, 4)
    *sealed, active = (disk.read_file(segment.path) for segment in log.state.view().segments)
    assert sealed
    assert all(data.endswith(END_OF_STREAM) for data in sealed)
    assert not active.endswith(END_OF_STREAM)
    assert all(data.startswith(SCHEMA_BYTES) for data in (*sealed, active))


def test_polars_and_pyarrow_read_segment_files_as_they_are(tmp_path: Path) -> None:
    """Sealed and active, on the real disk, while the log is open."""
    log = create_log(OsDisk(), settings=LogSettings(segment_bytes=6_000), folder=str(tmp_path / "p"))
    fill(log, 20)
    paths = sorted(tmp_path.rglob("*.arrows"))
    assert len(paths) == log.state.segment_count > 2
    offsets = []
    for path in paths:
        table = pa.ipc.open_stream(path.read_bytes()).read_all()
        assert table.schema.equals(SCHEMA)
        frame = polars.read_ipc_stream(path)
        assert frame.columns == SCHEMA.names
        assert frame["offset"].to_list() == table["offset"].to_pylist()
        offsets += frame["offset"].to_list()
    assert offsets == list(range(20))
    log.close()


# --- read -----------------------------------------------------------------------------------------------------


def test_ranges_between_schema_and_marker_are_a_stream(disk: SimDisk) -> None:
    log = create_log(disk, settings=LogSettings(segment_bytes=4_000))
    fill(log, 30)
    commit(log)
    with log.reader.read(7, end=21) as plan:
        data = SCHEMA_BYTES + plan_bytes(plan) + END_OF_STREAM
        assert len(data) == len(SCHEMA_BYTES) + plan.bytes + len(END_OF_STREAM)
        assert len({place.path for place in plan.ranges}) == len(plan.ranges) > 1
    assert pa.ipc.open_stream(data).read_all()["offset"].to_pylist() == list(range(7, 21))
    assert polars.read_ipc_stream(io.BytesIO(data))["offset"].to_list() == list(range(7, 21))


def test_ranges_of_the_real_disk_are_read_by_their_descriptor(tmp_path: Path) -> None:
    log = create_log(OsDisk(), settings=LogSettings(segment_bytes=4_000), folder=str(tmp_path / "p"))
    fill(log, 10)
    commit(log)
    with log.reader.read(3) as plan:
        data = b"".join(os.pread(place.fd, place.length, place.position) for place in plan.ranges)
    stream = pa.ipc.open_stream(SCHEMA_BYTES + data + END_OF_STREAM)
    assert [offset for offset, _, _ in records_of(stream.read_all())] == list(range(3, 10))
    log.close()


def test_first_batch_may_begin_before_and_the_last_end_after_what_was_asked(log: PartitionLog) -> None:
    log.append([row_batch([b"0", b"1", b"2"])], leader_epoch=0, now_us=0)
    log.append([row_batch([b"3", b"4", b"5"])], leader_epoch=0, now_us=0)
    fill(log, 1)
    commit(log)
    with log.reader.read(1, end=4) as plan:
        assert (plan.first_offset, plan.next_offset) == (0, 6)
    assert [record[0] for record in read_records(log, 1, end=4)] == [1, 2, 3]


def test_limit_by_bytes_gives_at_least_one_batch_and_then_what_fits(log: PartitionLog) -> None:
    fill(log, 5)
    commit(log)
    with log.reader.read(0) as all_of_it:
        one = all_of_it.bytes // 5
    for max_bytes, count in ((0, 1), (one - 1, 1), (one, 1), (2 * one - 1, 1), (2 * one, 2), (100 * one, 5)):
        with log.reader.read(0, max_bytes=max_bytes) as plan:
            assert (plan.bytes, plan.next_offset) == (count * one, count)


def test_reading_at_the_high_watermark_is_empty_and_beyond_is_an_error(log: PartitionLog) -> None:
    with log.reader.read(0) as plan:
        assert (plan.ranges, plan.first_offset, plan.next_offset, plan.bytes) == ([], 0, 0, 0)
    fill(log, 4)
    log.syncer.sync()
    log.state.advance_high_watermark(2)
    with log.reader.read(2) as plan:
        assert (plan.ranges, plan.next_offset) == ([], 2)
    for offset in (-1, 3, 99):
        with pytest.raises(OffsetOutOfRange, match=r"outside \[0, 2\]") as caught:
            log.reader.read(offset)
        assert (caught.value.log_start_offset, caught.value.high_watermark) == (0, 2)
        assert (caught.value.stream, caught.value.partition) == (
            log.state.identity.stream,
            log.state.identity.partition,
        )


def test_uncommitted_records_are_not_found(log: PartitionLog) -> None:
    fill(log, 4)
    log.state.advance_high_watermark(2)
    assert [record[0] for record in read_records(log, 0)] == [0, 1]
    assert [record[0] for record in verified_records(log)] == [0, 1]
    assert log.reader.offset_for_time(1) == 1
    assert log.reader.offset_for_time(2) is None


def test_batch_is_committed_as_a_whole_or_not_at_all(log: PartitionLog) -> None:
    fill(log, 1)
    log.append([row_batch([b"1", b"2", b"3"])], leader_epoch=0, now_us=0)
    log.state.advance_high_watermark(3)
    with log.reader.read(0) as plan:
        assert (plan.first_offset, plan.next_offset) == (0, 1)
    with log.reader.read(2) as plan:
        assert plan.ranges == []
    assert [record[0] for record in verified_records(log)] == [0]


def test_plan_closes_its_files(disk: SimDisk, log: PartitionLog) -> None:
    fill(log, 3)
    commit(log)
    held = disk.open_files
    plan = log.reader.read(0)
    assert disk.open_files == held + 1
    plan.close()
    plan.close()
    assert disk.open_files == held


def test_plan_opens_a_bounded_number_of_files_and_says_where_to_go_on(disk: SimDisk) -> None:
    log = create_log(disk, settings=LogSettings(segment_bytes=1_000))
    fill(log, 100)
    commit(log)
    with log.reader.read(0) as plan:
        assert (len(plan.ranges), plan.next_offset) == (64, 64)
    assert [record[0] for record in read_records(log, 0, max_bytes=1 << 30)] == list(range(100))


def test_time_is_found_to_the_record_though_timestamps_are_in_no_order(log: PartitionLog) -> None:
    log.append([row_batch([b"", b"", b""], [5, 30, 20])], leader_epoch=0, now_us=0)
    log.append([row_batch([b"", b""], [10, 25])], leader_epoch=0, now_us=0)
    log.append([row_batch([b"", b""], [31, 29])], leader_epoch=0, now_us=0)
    commit(log)
    assert [log.reader.offset_for_time(time) for time in (0, 5, 6, 30, 31, 32)] == [0, 0, 1, 1, 5, None]


def test_time_below_the_log_start_is_not_found(log: PartitionLog) -> None:
    """The greatest timestamp lies in a record that was trimmed, in a segment that is still there."""
    log.append([row_batch([b"", b""], [99, 1])], leader_epoch=0, now_us=0)
    log.append([row_batch([b"", b""], [2, 50])], leader_epoch=0, now_us=0)
    commit(log)
    log.trim(1)
    assert log.reader.offset_for_time(1) == 1
    assert log.reader.offset_for_time(3) == 3
    assert log.reader.offset_for_time(51) is None


def test_bytes_between_adds_up(disk: SimDisk) -> None:
    log = create_log(disk, settings=LogSettings(segment_bytes=4_000))
    fill(log, 12)
    commit(log)
    with log.reader.read(0) as plan:
        one = plan.bytes // 12
    assert log.reader.bytes_between(5, 5) == log.reader.bytes_between(9, 3) == 0
    assert log.reader.bytes_between(0, 1) == one
    overhead = (len(SCHEMA_BYTES) + len(END_OF_STREAM)) * log.state.segment_count
    assert 12 * one <= log.reader.bytes_between(0, 12) <= 12 * one + overhead
    assert 4 * one <= log.reader.bytes_between(3, 7) <= 4 * one + overhead


def test_bytes_of_a_part_of_a_batch_are_in_proportion_to_its_records(disk: SimDisk) -> None:
    log = create_log(disk)
    log.append([row_batch([bytes(100)] * 1000)], leader_epoch=0, now_us=0)
    commit(log)
    whole = log.reader.bytes_between(0, 1000)
    assert whole > 100_000
    assert log.reader.bytes_between(0, 500) == log.reader.bytes_between(500, 1000) == whole // 2
    for start, end in ((0, 1), (1, 2), (17, 18), (999, 1000)):
        assert abs(log.reader.bytes_between(start, end) - whole / 1000) <= 1
    cuts = [0, 3, 400, 401, 998, 1000]
    assert sum(log.reader.bytes_between(*pair) for pair in pairwise(cuts)) == whole
    log.trim(750)
    assert log.reader.bytes_between(0, 1000) == whole // 4, "of the batch that the log begins in, too"


def test_epochs_of_leaders_are_known_after_a_restart(disk: SimDisk, log: PartitionLog) -> None:
    assert (log.epochs.latest, log.epochs.epoch_of(0), log.epochs.end_of(4).end_offset) == (-1, -1, 0)
    fill(log, 3, epoch=1)
    fill(log, 2, epoch=4)
    for _ in range(2):
        assert [log.epochs.epoch_of(offset) for offset in range(6)] == [1, 1, 1, 4, 4, -1]
        assert [log.epochs.end_of(epoch).end_offset for epoch in (0, 1, 2, 4)] == [0, 3, 3, 5]
        assert log.epochs.latest == 4
        log.close()
        log = open_log(disk)


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_epochs_are_derived_from_the_batches_when_the_file_is_gone(disk: SimDisk, damage: str) -> None:
    log = create_log(disk, settings=LogSettings(segment_bytes=3_500))
    for epoch in (1, 1, 1, 2, 5, 5, 5, 5, 5, 5, 9, 9):
        fill(log, 1, epoch=epoch)
    expected = [log.epochs.epoch_of(offset) for offset in range(12)]
    for is_clean in (True, False):
        log.close(clean=is_clean)
        if damage == "missing":
            disk.unlink(f"{FOLDER}/epochs")
        else:
            disk.flip(f"{FOLDER}/epochs", 77)
        log = open_log(disk)
        assert log.state.recovery.clean == is_clean
        assert [log.epochs.epoch_of(offset) for offset in range(len(expected))] == expected
        fill(log, 1, epoch=11 - is_clean)
        expected.append(11 - is_clean)


@pytest.mark.parametrize("checkpointed", [0, 4, 8, 12])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("version", range(5))
def test_an_old_file_of_epochs_is_not_believed(disk: SimDisk, version: int, is_clean: bool, checkpointed: int) -> None:
    """Put back from a copy, say. A leader that believes it lacks epochs below what its batches say: no follower that
    has those agrees with it, and each cuts what is committed (once for five minutes, four times a second)."""
    log = create_log(disk, settings=LogSettings(segment_bytes=3_500, is_sole_replica=False))
    versions: list[bytes] = []
    for at, epoch in enumerate((1, 1, 1, 2, 5, 5, 5, 5, 5, 5, 9, 9, 12), 1):
        fill(log, 1, epoch=epoch)
        versions += {disk.read_file(f"{FOLDER}/epochs")} - {*versions}
        if at == checkpointed:
            log.checkpoint()
    expected = [(log.epochs.epoch_of(offset), log.epochs.end_of(log.epochs.epoch_of(offset))) for offset in range(13)]
    assert len(versions) == 5
    log.close(clean=is_clean)
    disk.replace_file(f"{FOLDER}/epochs", versions[version])
    log = open_log(disk, settings=log.state.settings)
    assert log.state.recovery.clean == is_clean
    for _ in range(2):
        assert [
            (log.epochs.epoch_of(offset), log.epochs.end_of(log.epochs.epoch_of(offset))) for offset in range(13)
        ] == expected
        assert log.epochs.latest == 12
        log.close()
        log = open_log(disk, settings=log.state.settings)


@pytest.mark.parametrize("since", ["cut", "trimmed", "begun anew"])
@pytest.mark.parametrize("checkpointed", [5, 8])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_file_of_epochs_of_a_later_time_is_not_believed(
    disk: SimDisk, is_clean: bool, checkpointed: int, since: str
) -> None:
    """The log was put back without it. If it were believed, another leader's records would pass for those that the
    present one has, or a follower would begin anew."""
    segment_bytes = 1 << 20 if since == "cut" else 3_500
    log = create_log(disk, settings=LogSettings(segment_bytes=segment_bytes, is_sole_replica=False))
    for epoch in (1, 1, 1, 1, 6, 6, 6, 6):
        log.lead(epoch)
        fill(log, 1, size=600, epoch=epoch)
        commit(log)
        if log.state.log_end_offset == checkpointed:
            log.checkpoint()
    expected = [(log.epochs.epoch_of(offset), log.epochs.end_of(log.epochs.epoch_of(offset))) for offset in range(8)]
    log.close(clean=is_clean)
    copy = disk.after_kill()
    log = open_log(disk, settings=log.state.settings)
    log.follow(7)
    match since:
        case "cut":
            log.truncate(6)
        case "trimmed":
            commit(log)
            assert log.trim(5) > 3
        case _:
            log.reset(3)
    log.lead(8)
    fill(log, 4, size=600, epoch=8)
    copy.replace_file(f"{FOLDER}/epochs", disk.read_file(f"{FOLDER}/epochs"))
    log = open_log(copy, settings=log.state.settings)
    assert log.state.recovery.clean == is_clean
    assert [
        (log.epochs.epoch_of(offset), log.epochs.end_of(log.epochs.epoch_of(offset))) for offset in range(8)
    ] == expected


def test_an_old_file_of_epochs_beside_an_empty_log_is_not_believed(disk: SimDisk) -> None:
    """A follower whose log ends there asks for the epoch of the record before the start."""
    log = create_log(disk)
    fill(log, 2, epoch=1)
    old = disk.read_file(f"{FOLDER}/epochs")
    fill(log, 2, epoch=3)
    commit(log)
    assert log.trim(4) == 4
    log.close()
    disk.replace_file(f"{FOLDER}/epochs", old)
    log = open_log(disk)
    assert (log.state.recovery.clean, log.epochs.latest, log.epochs.end_of(3)) == (True, 3, (3, 4))


# --- let go ---------------------------------------------------------------------------------------------------


def rolled(disk: SimDisk, **limits: int) -> PartitionLog:
    """Six sealed segments of two records each and an active one; timestamps are the offsets, in seconds."""
    log = create_log(disk, settings=LogSettings(segment_bytes=3_000, **limits))
    for offset in range(13):
        log.append([row_batch([bytes(100)], [offset * 1_000_000])], leader_epoch=0, now_us=0)
    commit(log)
    assert [segment.base_offset for segment in log.state.view().segments] == [0, 2, 4, 6, 8, 10, 12]
    return log


def test_retention_by_age_lets_go_of_segments_whose_newest_record_is_too_old(disk: SimDisk) -> None:
    log = rolled(disk, retention_ms=4_000)
    assert log.apply_retention(now_us=5_000_000) == 0
    assert log.apply_retention(now_us=5_000_001) == 2
    assert log.apply_retention(now_us=9_999_999) == 6
    assert log.state.segment_count == 4
    assert not [name for name in disk.listdir(FOLDER) if name.startswith(f"{4:020d}")]


def test_retention_by_age_takes_the_active_segment_when_all_of_it_is_too_old(disk: SimDisk) -> None:
    log = rolled(disk, retention_ms=4_000)
    assert log.apply_retention(now_us=17_000_000) == 13
    assert (log.state.log_end_offset, log.state.segment_count) == (13, 1)
    log.close()
    log = open_log(disk)
    assert (log.state.log_start_offset, log.state.log_end_offset) == (13, 13)
    fill(log, 1)
    assert log.state.log_end_offset == 14


def test_retention_by_bytes_keeps_at_least_so_many(disk: SimDisk) -> None:
    log = rolled(disk)
    total = log.state.byte_count
    log.remembered.update_settings(LogSettings(segment_bytes=3_000, retention_bytes=total // 2))
    log.apply_retention(now_us=0)
    assert total // 2 <= log.state.byte_count < total // 2 + 3_500


def test_retention_by_records_keeps_at_least_so_many(disk: SimDisk) -> None:
    log = rolled(disk, retention_records=5)
    assert log.apply_retention(now_us=0) == 8
    assert [record[0] for record in read_records(log, 8)] == [8, 9, 10, 11, 12]


def test_retention_stops_at_the_high_watermark(disk: SimDisk) -> None:
    log = create_log(disk, settings=LogSettings(segment_bytes=3_000, retention_ms=1))
    fill(log, 9)
    log.syncer.sync()
    log.state.advance_high_watermark(5)
    assert log.apply_retention(now_us=1 << 60) == 4


def test_no_limit_keeps_everything(disk: SimDisk) -> None:
    log = rolled(disk)
    assert log.apply_retention(now_us=1 << 60) == 0


def test_reading_below_the_log_start_is_an_error_with_the_range(disk: SimDisk) -> None:
    log = rolled(disk)
    assert log.trim(5) == 5
    with pytest.raises(OffsetOutOfRange) as caught:
        log.reader.read(4)
    assert (caught.value.log_start_offset, caught.value.high_watermark) == (5, 13)
    assert [record[0] for record in read_records(log, 5)] == list(range(5, 13))
    assert log.trim(3) == 5, "never moves back"
    assert log.trim(99) == 13, "not beyond the high watermark"


def test_plan_that_is_open_outlives_the_segments_it_reads(disk: SimDisk) -> None:
    log = rolled(disk)
    with log.reader.read(0) as plan:
        log.trim(13)
        assert pa.ipc.open_stream(SCHEMA_BYTES + plan_bytes(plan) + END_OF_STREAM).read_all().num_rows == 13


# --- open and close -------------------------------------------------------------------------------------------


def test_clean_restart_reads_no_segment(disk: SimDisk) -> None:
    log = rolled(disk)
    log.close()
    disk.calls.clear()
    log = open_log(disk)
    assert log.state.recovery.clean
    assert "open" not in disk.calls
    assert disk.calls["read_file"] == 2, "identity and checkpoint"
    assert (log.state.log_end_offset, log.state.high_watermark, log.state.durable_end) == (13, 13, 13)
    assert len(read_records(log, 0)) == 13


def test_clean_mark_of_another_boot_is_not_trusted_but_costs_little(disk: SimDisk) -> None:
    log = rolled(disk)
    log.close()
    log = open_log(disk, boot_id="after the reboot")
    assert not log.state.recovery.clean
    assert log.state.recovery.scanned_batches == 1, "the last one below the recovery point"
    assert log.state.log_end_offset == 13


@pytest.mark.parametrize("boot_id", ["", BOOT_ID])
def test_unknown_boot_is_never_trusted(disk: SimDisk, boot_id: str) -> None:
    log = create_log(disk, boot_id=boot_id)
    log.close()
    assert open_log(disk, boot_id=boot_id).state.recovery.clean == bool(boot_id)


def test_clean_mark_is_withdrawn_before_the_next_append(disk: SimDisk, log: PartitionLog) -> None:
    fill(log, 3)
    log.close()
    log = open_log(disk)
    assert log.state.recovery.clean
    fill(log, 1)
    found = open_log(disk.after_crash("kept"))
    assert not found.state.recovery.clean
    assert found.state.log_end_offset == 4


def test_clean_mark_stays_while_nothing_is_appended(disk: SimDisk, log: PartitionLog) -> None:
    """The cleaner's checkpoints write nothing then; a kill -9 of thousands of idle logs costs no scan."""
    fill(log, 3)
    log.close()
    log = open_log(disk)
    disk.calls.clear()
    log.checkpoint()
    log.apply_retention(now_us=1)
    log.idle()
    assert disk.calls.keys() <= {"read_file"}
    log.close()
    assert "replace_file" not in disk.calls
    assert open_log(disk.after_crash("lost")).state.recovery.clean


def test_clean_mark_does_not_cover_a_roll_after_it(disk: SimDisk, log: PartitionLog) -> None:
    fill(log, 3)
    log.close()
    log = open_log(disk)
    assert log.roll_if_due(1 << 60)
    found = open_log(killed := disk.after_kill())
    assert not found.state.recovery.clean
    fill(found, 1)
    commit(found)
    assert len(verified_records(found)) == 4
    check_log(found, killed)


def test_folder_of_another_partition_is_refused(disk: SimDisk, log: PartitionLog) -> None:
    log.close()
    other = LogIdentity(cluster_id="c1", stream="orders", incarnation="i2", partition=0)
    with pytest.raises(WrongFolder, match="incarnation 'i1', not 'i2'"):
        PartitionLog.open(disk, FOLDER, LogSettings(), boot_id="b", now_us=0, expected=other)
    with pytest.raises(WrongFolder, match="already holds a log"):
        create_log(disk)
    assert PartitionLog.open(disk, FOLDER, LogSettings(), boot_id="b", now_us=0).state.identity == IDENTITY


def test_closed_log_accepts_nothing_and_recover_does_not_wake_it(log: PartitionLog) -> None:
    log.close()
    log.recover(0)
    with pytest.raises(StorageFailed, match="is closed"):
        fill(log, 1)
    with pytest.raises(StorageFailed, match="is closed"):
        log.syncer.sync()
    log.close()


def test_trim_to_the_end_that_was_cut_short_by_a_crash_is_no_clean_state() -> None:
    """The new, empty segment is there; the checkpoint that goes with it is not."""
    made = create_log(disk := SimDisk())
    fill(made, 3)
    commit(made)
    made.roll_if_due(1 << 60)
    made.close()
    steps = disk.steps
    for step in range(1, 12):
        found = disk.after_crash("kept", crash_at=step)
        log = open_log(found)
        assert log.state.recovery.clean
        try:
            log.trim(3)
            fill(log, 1)
        except Crashed:
            log = open_log(found.after_crash("kept"))
            start, end = log.state.log_start_offset, log.state.log_end_offset
            assert (start, end) in ((0, 3), (3, 3), (3, 4))
            fill(log, 1)
            commit(log)
            assert [record[0] for record in verified_records(log)] == list(range(start, end + 1))
            assert len({segment.base_offset for segment in log.state.view().segments}) == log.state.segment_count
    assert steps == disk.steps


def test_append_result_counts_bytes_of_the_messages(log: PartitionLog) -> None:
    result = log.append([row_batch([b"x"])], leader_epoch=0, now_us=0)
    assert isinstance(result, AppendResult)
    assert result.bytes > HEADER_BYTES
    assert result.bytes % 8 == 0
