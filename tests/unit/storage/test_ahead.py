"""A tail's file runs ahead of what was written: nobody who reads takes the room for records, and nothing keeps it.

The real disk and the fake one where both can show it. Power cuts with room are in tests/properties/storage.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import polars
import pyarrow as pa
import pytest

from broker.api.errors import StorageFailed
from broker.api.schema import END_OF_STREAM
from broker.storage.disk import Disk, OsDisk
from broker.storage.disk.preallocate import AheadFile
from broker.storage.inspect.inspection import inspect_partition
from broker.storage.inspect.repair import repair
from broker.storage.log import PartitionLog
from broker.storage.segments.chain import AHEAD_BYTES
from broker.storage.segments.checkpoint import LogSettings
from tests.support.logs import IDENTITY, check_log, commit, create_log, open_log, row_batch, verified_records
from tests.support.plain_reader import read_segment
from tests.support.simdisk import SimDisk

SETTINGS = LogSettings(segment_bytes=1 << 20)
ROOM = 1 << 16


@pytest.fixture(params=["os", "sim"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Disk, str]]:
    """A disk and an empty folder on it."""
    if request.param == "os":
        yield OsDisk(), str(tmp_path)
    else:
        disk = SimDisk(runs_ahead=True)
        disk.makedirs("/data")
        yield disk, "/data"


def append(log: PartitionLog, *values: bytes) -> None:
    log.append([row_batch(values)], leader_epoch=1, now_us=0)
    commit(log)


def segment(folder: str, base: int = 0) -> str:
    return f"{folder}/p/{base:020d}.arrows"


def opened_log(place: tuple[Disk, str], *values: bytes) -> PartitionLog:
    disk, folder = place
    log = create_log(disk, settings=SETTINGS, folder=f"{folder}/p")
    for value in values:
        append(log, value)
    return log


# --- the file -------------------------------------------------------------------------------------------------


def test_a_file_that_runs_ahead_knows_what_was_written(place: tuple[Disk, str]) -> None:
    disk, folder = place
    path = f"{folder}/a"
    file = disk.open(path, create=True, ahead=ROOM)
    file.write(b"0123456789abc")
    file.write(b"def")
    assert (file.size(), disk.size(path)) == (16, 13 + ROOM)
    assert disk.read_file(path) == b"0123456789abcdef" + bytes(ROOM - 3)
    file.truncate(14)
    assert (file.size(), disk.size(path)) == (14, 14)
    file.write(b"X" * 20)
    assert (file.size(), disk.size(path)) == (34, 34 + ROOM)
    file.trim()
    file.sync()
    assert disk.size(path) == 34
    file.write(b"Y" * 20)
    file.close()
    assert disk.read_file(path) == b"0123456789abcd" + b"X" * 20 + b"Y" * 20


def test_a_large_write_makes_no_room_and_goes_over_what_there_is(place: tuple[Disk, str]) -> None:
    disk, folder = place
    path = f"{folder}/a"
    file = disk.open(path, create=True, ahead=ROOM)
    file.write(b"L" * (ROOM // 4))
    assert disk.size(path) == file.size() == ROOM // 4
    file.write(b"s")
    file.write(b"M" * 2 * ROOM)
    assert disk.size(path) == file.size() == ROOM // 4 + 1 + 2 * ROOM
    file.close()
    assert disk.read_file(path) == b"L" * (ROOM // 4) + b"s" + b"M" * 2 * ROOM


def test_a_file_with_room_that_was_left_behind_is_as_long_as_it_is(place: tuple[Disk, str]) -> None:
    """A later open cannot know what was written: recovery finds out, before anything is appended."""
    disk, folder = place
    disk.replace_file(f"{folder}/a", b"abc" + bytes(100))
    file = disk.open(f"{folder}/a", ahead=ROOM)
    assert file.size() == 103
    file.close()


def test_a_batch_in_the_room_is_seen_by_its_first_bytes_which_come_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2. Before them, zeros stand where it begins: the end of the stream for who opens the file by its name."""
    file = OsDisk().open(str(tmp_path / "a"), create=True, ahead=ROOM)
    file.write(b"before..")
    seen = []
    pwrite = os.pwrite

    def spied(fd: int, data: memoryview, position: int) -> int:
        done = pwrite(fd, data[:50], position)  # and in pieces, as a system may write them
        seen.append((tmp_path / "a").read_bytes()[8:16])
        return done

    monkeypatch.setattr(os, "pwrite", spied)
    file.write(b"message:" + b"b" * 200)
    assert seen == [bytes(8)] * 4 + [b"message:"]
    assert file.pread(1000, 0)[:216] == b"before..message:" + b"b" * 200
    file.close()


def test_where_the_disk_refuses_room_the_file_grows_by_its_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A4."""
    file = OsDisk().open(str(tmp_path / "a"), create=True, ahead=ROOM)
    assert isinstance(file, AheadFile)

    def refused(fd: int, size: int) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "ftruncate", refused)
    for _ in range(3):
        file.write(b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789" * 3
    file.close()


# --- a log ----------------------------------------------------------------------------------------------------


def test_an_open_segment_is_an_arrow_stream_with_room_behind_it(tmp_path: Path) -> None:
    place = OsDisk(), str(tmp_path)
    log = opened_log(place, b"a", b"b")
    path = segment(str(tmp_path))
    assert os.path.getsize(path) > AHEAD_BYTES > log.state.byte_count
    assert os.stat(path).st_blocks * 512 < AHEAD_BYTES, "room takes no space"
    assert pa.ipc.open_stream(path).read_all()["value"].to_pylist() == [b"a", b"b"]
    assert polars.read_ipc_stream(path)["value"].to_list() == [b"a", b"b"]
    plain = read_segment(Path(path).read_bytes())
    assert [row["value"] for batch in plain for row in batch.rows] == [b"a", b"b"]
    log.close()
    assert os.path.getsize(path) == log.state.byte_count


def test_a_sealed_segment_and_a_resting_tail_have_no_room(place: tuple[Disk, str]) -> None:
    disk, folder = place
    log = opened_log(place, b"a")
    assert log.roll_if_due(1 << 60)
    assert disk.read_file(segment(folder)).endswith(END_OF_STREAM)
    append(log, b"b")
    assert disk.size(segment(folder, 1)) > AHEAD_BYTES
    log.checkpoint()
    assert log.idle()
    assert disk.size(segment(folder, 1)) < AHEAD_BYTES
    append(log, b"c")
    assert disk.size(segment(folder, 1)) > AHEAD_BYTES
    assert [value for _, _, value in verified_records(log)] == [b"a", b"b", b"c"]
    check_log(log, disk)
    log.close()


def test_what_a_sealed_segment_had_as_room_does_not_come_back_after_a_power_cut() -> None:
    disk = SimDisk(runs_ahead=True)
    disk.makedirs("/data")
    log = opened_log((disk, "/data"), b"a")
    log.roll_if_due(1 << 60)
    assert disk.after_crash("lost").read_file(segment("/data")).endswith(END_OF_STREAM)


def test_recovery_cuts_room_and_says_nothing_of_it(place: tuple[Disk, str]) -> None:
    disk, folder = place
    written = opened_log(place, b"a", b"b").state.byte_count  # and the process is gone
    if isinstance(disk, SimDisk):
        disk = disk.after_kill()
    found = inspect_partition(disk, f"{folder}/p")
    assert (found.findings, found.log_end_offset) == ([], 2)
    log = open_log(disk, settings=SETTINGS, folder=f"{folder}/p", boot_id="next")
    assert (log.state.recovery.cut_bytes, log.state.recovery.cut_offset, log.state.recovery.notes) == (0, None, [])
    assert (log.state.log_end_offset, log.state.durable_end, log.state.lost_ranges) == (2, 2, ())
    assert disk.size(segment(folder)) == log.state.byte_count == written
    append(log, b"c")
    assert log.state.segment_count == 1, "it goes on where it was"
    assert [value for _, _, value in verified_records(log)] == [b"a", b"b", b"c"]
    log.close()
    assert inspect_partition(disk, f"{folder}/p").findings == []


def test_a_torn_batch_before_the_room_is_a_torn_tail(place: tuple[Disk, str]) -> None:
    disk, folder = place
    log = opened_log(place, b"a")
    end = log.state.byte_count
    if isinstance(disk, SimDisk):
        disk = disk.after_kill()
    file = disk.open(segment(folder))
    rest = file.pread(file.size(), end)
    file.truncate(end)
    file.write(bytes(8) + b"\xff" * 100 + rest[108:])  # the body came, its first bytes did not
    file.close()
    assert [finding.kind for finding in inspect_partition(disk, f"{folder}/p").findings] == ["torn_tail"]
    log = open_log(disk, settings=SETTINGS, folder=f"{folder}/p", boot_id="next")
    assert log.state.recovery.cut_bytes > 100
    assert (log.state.log_end_offset, log.state.lost_ranges) == (1, ())


def test_committed_records_of_which_zeros_are_left_are_lost_not_room(place: tuple[Disk, str]) -> None:
    disk, folder = place
    log = opened_log(place, b"a")
    end = log.state.byte_count
    append(log, b"b")
    log.checkpoint()
    if isinstance(disk, SimDisk):
        disk = disk.after_kill()
    size = disk.size(segment(folder))
    file = disk.open(segment(folder))
    file.truncate(end)
    file.write(bytes(size - end))
    file.close()
    found = inspect_partition(disk, f"{folder}/p")
    assert [(f.kind, f.first_offset, f.next_offset) for f in found.findings if f.kind == "lost_range"] == [
        ("lost_range", 1, 2)
    ]
    log = open_log(disk, settings=SETTINGS, folder=f"{folder}/p", boot_id="next")
    assert (log.state.log_end_offset, log.state.lost_ranges) == (2, ((1, 2),))
    assert disk.size(segment(folder)) == size, "the file is left as it is"
    append(log, b"c")
    assert log.state.log_end_offset == 3


def test_a_repair_tells_of_no_room(place: tuple[Disk, str]) -> None:
    disk, folder = place
    log = opened_log(place, b"a")
    log.roll_if_due(1 << 60)
    append(log, b"b")
    if isinstance(disk, SimDisk):
        disk = disk.after_kill()
    disk.replace_file(segment(folder).replace(".arrows", ".index"), b"wrong")
    done = repair(disk, f"{folder}/p", now_us=0, expected=IDENTITY)
    assert any(action.path.endswith(".index") for action in done.actions)
    assert [action for action in done.actions if action.path.endswith(".arrows")] == []
    assert disk.size(segment(folder, 1)) < AHEAD_BYTES
    assert inspect_partition(disk, f"{folder}/p").findings == []


# --- room that the disk does not give back ------------------------------------------------------------------------


@pytest.fixture
def refusing(place: tuple[Disk, str], monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Let the disk refuse to shorten files, or not any more."""
    disk, _ = place
    real = os.ftruncate

    def refuse(fd: int, size: int) -> None:
        if size < os.fstat(fd).st_size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd, size)

    def switch(is_refusing: bool) -> None:
        if isinstance(disk, SimDisk):
            disk.heal()
            if is_refusing:
                disk.fail("truncate", errno.EIO, path=".arrows", times=1 << 30)
        else:
            monkeypatch.setattr(os, "ftruncate", refuse if is_refusing else real)

    return switch


@pytest.mark.parametrize("rest", ["idle", "close"])
def test_room_that_could_not_be_trimmed_is_not_taken_for_what_was_written(
    place: tuple[Disk, str], refusing: Callable[[bool], None], rest: str
) -> None:
    """Else the next batch would stand behind zeros, which other readers take for the end of the stream."""
    disk, folder = place
    log = opened_log(place, b"0", b"1")
    refusing(True)
    if rest == "idle":
        log.idle()
    else:
        log.close()
    refusing(False)
    assert disk.size(segment(folder)) > 100_000, "the room is still there"
    if rest == "close":
        log = open_log(disk, settings=SETTINGS, folder=f"{folder}/p")
    append(log, b"2")
    assert log.roll_if_due(1 << 60)
    append(log, b"3")
    assert log.state.lost_ranges == ()
    assert [value for _, _, value in verified_records(log)] == [b"0", b"1", b"2", b"3"]
    check_log(log, disk)
    with pa.ipc.open_stream(disk.read_file(segment(folder))) as stream:
        assert stream.read_all().column("value").to_pylist() == [b"0", b"1", b"2"]
    log.close()


def test_an_append_is_refused_while_the_room_of_a_resting_tail_cannot_be_trimmed(
    place: tuple[Disk, str], refusing: Callable[[bool], None]
) -> None:
    disk, _ = place
    log = opened_log(place, b"0")
    refusing(True)
    log.idle()
    for _ in range(2):
        with pytest.raises(StorageFailed):
            append(log, b"refused")
    refusing(False)
    if log.state.failure is not None:
        log.recover(0)
    append(log, b"1")
    assert [value for _, _, value in verified_records(log)] == [b"0", b"1"]
    check_log(log, disk)
    log.close()


def test_a_segment_whose_room_could_not_be_trimmed_is_not_sealed(
    place: tuple[Disk, str], refusing: Callable[[bool], None]
) -> None:
    disk, folder = place
    log = opened_log(place, b"0")
    refusing(True)
    with pytest.raises(StorageFailed):
        log.roll_if_due(1 << 60)
    refusing(False)
    log.recover(0)
    append(log, b"1")
    assert log.roll_if_due(1 << 60)
    append(log, b"2")
    check_log(log, disk)
    with pa.ipc.open_stream(disk.read_file(segment(folder))) as stream:
        assert stream.read_all().column("value").to_pylist() == [b"0", b"1"]
    log.close()
