"""The small files: what is written is read, damage is known, later versions are refused by name."""

from __future__ import annotations

import json

import pytest

from broker.api.errors import CorruptLog, UnknownFormatVersion, WrongFolder
from broker.api.stream import StreamSettings
from broker.storage.segments.checkpoint import (
    Checkpoint,
    LogIdentity,
    LogSettings,
    TailPoint,
    check_identity,
    open_json,
    read_identity,
    seal_json,
    write_identity,
)
from broker.storage.segments.epochs import Epochs, load_epochs, write_epochs
from tests.support.simdisk import SimDisk

IDENTITY = LogIdentity(cluster_id="c", stream="orders", incarnation="i", partition=3)
POINT = Checkpoint(
    high_watermark=7,
    log_start_offset=2,
    recovery_point=9,
    leader_epoch=4,
    tail=TailPoint(base_offset=5, created_us=1, entry_count=2, entry_crc=3, bytes=4),
    lost_ranges=((3, 4), (6, 7)),
    clean_boot_id="b",
)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.makedirs("/p")
    return disk


@pytest.mark.parametrize("point", [POINT, Checkpoint()])
def test_checkpoint_is_read_as_it_was_written(point: Checkpoint) -> None:
    assert Checkpoint.decode(point.encode(), where="x") == point


def test_small_files_are_these_bytes() -> None:
    """Golden: a change of these is a change of the format, and needs a new version."""
    assert POINT.encode() == (
        b'{"format_version":1,"high_watermark":7,"log_start_offset":2,"recovery_point":9,"leader_epoch":4,'
        b'"tail":{"base_offset":5,"created_us":1,"entry_count":2,"entry_crc":3,"bytes":4},'
        b'"lost_ranges":[[3,4],[6,7]],"clean_boot_id":"b"} e9851fd2\n'
    )
    assert seal_json({"epochs": [(1, 0), (2, 5)]}) == b'{"format_version":1,"epochs":[[1,0],[2,5]]} b4c6a2d4\n'


def test_damaged_checkpoint_is_none() -> None:
    data = POINT.encode()
    for size in range(len(data) - 1):
        assert Checkpoint.decode(data[:size], where="x") is None
    for at in range(len(data) - 1):
        assert Checkpoint.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], where="x") is None
    assert Checkpoint.decode(bytes(len(data)), where="x") is None


def test_later_version_is_refused_and_named() -> None:
    data = seal_json({"format_version": 2, "anything": 1})
    with pytest.raises(UnknownFormatVersion, match="file-x: format version 2, this release reads 1"):
        open_json(data, where="file-x")


def test_identity_is_read_as_it_was_written_and_by_people(disk: SimDisk) -> None:
    write_identity(disk, "/p", IDENTITY)
    assert read_identity(disk, "/p") == IDENTITY
    assert json.loads(disk.read_file("/p/partition.json"))["stream"] == "orders"


def test_identity_of_another_log_is_refused_and_named(disk: SimDisk) -> None:
    for other in (
        LogIdentity(cluster_id="d", stream="orders", incarnation="i", partition=3),
        LogIdentity(cluster_id="c", stream="other", incarnation="i", partition=3),
        LogIdentity(cluster_id="c", stream="orders", incarnation="j", partition=3),
        LogIdentity(cluster_id="c", stream="orders", incarnation="i", partition=0),
    ):
        with pytest.raises(WrongFolder, match="/p belongs to") as caught:
            check_identity(other, IDENTITY, folder="/p")
        assert caught.value.found != caught.value.expected


def test_identity_that_is_missing_damaged_or_later_is_refused(disk: SimDisk) -> None:
    with pytest.raises(WrongFolder, match=r"no partition\.json"):
        read_identity(disk, "/p")
    for data in (b"", b"{", b"[]", b"{}", b'{"format_version": 1}', b'{"format_version": 1, "stream": "s", "more": 1}'):
        disk.replace_file("/p/partition.json", data)
        with pytest.raises(CorruptLog, match=r"/p/partition\.json is damaged"):
            read_identity(disk, "/p")
    disk.replace_file("/p/partition.json", b'{"format_version": 7}')
    with pytest.raises(UnknownFormatVersion, match="format version 7"):
        read_identity(disk, "/p")


def test_settings_are_the_storage_part_of_a_streams() -> None:
    stream = StreamSettings(
        segment_bytes=1 << 16,
        segment_age_ms=5,
        retention_ms=6,
        retention_bytes=7,
        retention_records=8,
        dedup_window_ms=9,
        dedup_ids_max=10,
        subjects_max=11,
    )
    assert LogSettings.of(stream) == LogSettings(
        segment_bytes=1 << 16,
        segment_age_ms=5,
        retention_ms=6,
        retention_bytes=7,
        retention_records=8,
        dedup_window_ms=9,
        dedup_ids_max=10,
        subjects_max=11,
    )


def test_epochs_answer_who_wrote_what() -> None:
    epochs = Epochs()
    assert (epochs.latest, epochs.epoch_of(0), epochs.end_of(3, 10)) == (-1, -1, 10)
    epochs.begin(1, 0)
    epochs.begin(3, 10)
    epochs.begin(3, 12)
    epochs.begin(7, 20)
    assert epochs.items == [(1, 0), (3, 10), (7, 20)]
    assert [epochs.epoch_of(offset) for offset in (0, 9, 10, 19, 20, 99)] == [1, 1, 3, 3, 7, 7]
    assert [epochs.end_of(epoch, 30) for epoch in (0, 1, 2, 3, 4, 7, 8)] == [0, 10, 10, 20, 20, 30, 30]
    assert epochs.trimmed(15).items == [(3, 10), (7, 20)]
    assert epochs.trimmed(20).items == [(3, 10), (7, 20)]  # that of the record before is kept
    assert epochs.trimmed(21).items == [(7, 20)]
    epochs.cut(20)
    assert epochs.latest == 3


def test_epoch_without_a_record_leaves_no_trace() -> None:
    epochs = Epochs([(1, 0), (2, 5)])
    epochs.begin(3, 5)
    assert epochs.items == [(1, 0), (3, 5)]


def test_epochs_file_is_read_as_written_and_damage_is_none(disk: SimDisk) -> None:
    assert load_epochs(disk, "/p") is None
    write_epochs(disk, "/p", Epochs([(1, 0), (2, 5)]))
    found = load_epochs(disk, "/p")
    assert found is not None
    assert found.items == [(1, 0), (2, 5)]
    disk.flip("/p/epochs", 40)
    assert load_epochs(disk, "/p") is None
