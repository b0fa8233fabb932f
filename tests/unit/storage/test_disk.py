"""Goal: the real disk and the fake one answer all calls of storage alike."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.api.errors import DiskFull, StorageFailed
from broker.storage.disk import Disk, OsDisk, storage_error
from tests.support.simdisk import Crashed, SimDisk


@pytest.fixture(params=["os", "sim"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Disk, str]]:
    """A disk and an empty folder on it."""
    if request.param == "os":
        yield OsDisk(), str(tmp_path)
    else:
        disk = SimDisk()
        disk.makedirs("/data")
        yield disk, "/data"
        assert disk.open_files == 0


def test_writes_append_and_reads_find_them(place: tuple[Disk, str]) -> None:
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    file.write(b"hello ")
    file.write(bytearray(b"wor"))
    file.write(memoryview(b"xldx")[1:3])
    file.write(b"")
    assert file.size() == disk.size(f"{folder}/a") == 11
    assert file.pread(5, 6) == b"world"
    assert file.pread(100, 9) == b"ld"
    assert file.pread(5, 11) == file.pread(5, 50) == b""
    file.close()
    file.close()
    assert disk.read_file(f"{folder}/a") == b"hello world"


def test_a_file_is_written_within_what_was_allocated_and_found_under_both_its_names(place: tuple[Disk, str]) -> None:
    disk, folder = place
    assert isinstance(disk, OsDisk | SimDisk)
    file = disk.open_fixed(f"{folder}/a", create=True)
    file.allocate(100)
    file.allocate(50)
    file.write_at(b"there", 10)
    file.write_at(b"beyond", 98)
    file.sync()
    assert file.size() == disk.size(f"{folder}/a") == 104
    file.close()
    disk.link(f"{folder}/a", f"{folder}/b")
    with pytest.raises(FileExistsError):
        disk.link(f"{folder}/a", f"{folder}/b")
    disk.unlink(f"{folder}/a")
    found = disk.read_file(f"{folder}/b")
    assert found == bytes(10) + b"there" + bytes(83) + b"beyond"


def test_a_cold_read_and_a_forgotten_piece_give_the_same_bytes(place: tuple[Disk, str]) -> None:
    """Also of what is not synced yet, and across the end of the file."""
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    file.write(bytes(range(256)) * 40)
    for _ in range(2):
        assert file.pread_cold(300, 5_000) == (bytes(range(256)) * 40)[5_000:5_300]
        assert file.pread_cold(500, 10_000) == (bytes(range(256)) * 40)[10_000:]
        assert file.pread_cold(5, 20_000) == b""
        file.forget(10_000, 0)
        file.sync()
    file.close()


def test_a_read_into_memory_that_is_there_gives_the_same_bytes(place: tuple[Disk, str]) -> None:
    """Also of what is not synced yet, and across the end of the file; what is behind that stays."""
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    file.write(b"0123456789")
    block = bytearray(b"....")
    assert (file.pread_into(block, 3), bytes(block)) == (4, b"3456")
    assert (file.pread_into(memoryview(block)[1:], 8), bytes(block)) == (2, b"3896")
    assert (file.pread_into(block, 10), file.pread_into(block, 99), bytes(block)) == (0, 0, b"3896")
    file.close()


def test_a_disk_may_begin_with_bytes_before_they_are_synced(place: tuple[Disk, str]) -> None:
    """Also with ranges that are not there, and twice: nothing is said, and nothing changes."""
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    file.write(b"x" * 10_000)
    for size, position in ((10_000, 0), (5, 3), (100, 9_990), (7, 50_000)):
        file.start_writeback(size, position)
    file.write(b"y")
    file.start_writeback(1, 10_000)
    file.sync()
    assert file.pread(3, 9_998) == b"xxy"
    file.close()


def test_what_is_written_once_more_stays_where_it_is(place: tuple[Disk, str]) -> None:
    """And is on the disk afterwards, also where a sync has failed."""
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    data = bytes(range(256)) * 10_000
    file.write(data)
    if isinstance(disk, SimDisk):
        disk.fail("sync", errno.EIO)
        with pytest.raises(OSError, match="error"):
            file.sync()
    for size, position in ((2_000_000, 300_000), (5, 3), (0, 7), (900, len(data) - 5), (5, len(data) + 9)):
        file.rewrite(size, position)
    file.rewrite(300_000, 0)
    file.rewrite(300_000, 2_300_000)
    assert file.size() == len(data)
    file.sync()
    file.close()
    disk.sync_dir(folder)
    if isinstance(disk, SimDisk):
        disk = disk.after_crash("lost")
    assert disk.read_file(f"{folder}/a") == data


def test_two_handles_of_a_file_see_each_other(place: tuple[Disk, str]) -> None:
    disk, folder = place
    first = disk.open(f"{folder}/a", create=True)
    second = disk.open(f"{folder}/a", readonly=True)
    first.write(b"abc")
    assert second.pread(10, 0) == b"abc"
    first.truncate(1)
    assert second.size() == 1
    first.write(b"Z")  # at the end as it is now
    assert second.pread(10, 0) == b"aZ"
    first.sync()
    first.close()
    second.close()


def test_descriptor_reads_the_same_bytes(place: tuple[Disk, str]) -> None:
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    file.write(b"0123456789")
    assert os.pread(file.fileno(), 4, 3) == b"3456"
    file.close()


def test_missing_file_is_not_found_unless_created(place: tuple[Disk, str]) -> None:
    disk, folder = place
    calls = [disk.open, disk.read_file, disk.size, disk.unlink]
    for call in calls:
        with pytest.raises(FileNotFoundError) as caught:
            call(f"{folder}/none")
        assert caught.value.filename == f"{folder}/none"
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/no/file", create=True)
    assert not disk.exists(f"{folder}/none")
    disk.open(f"{folder}/none", create=True).close()
    assert disk.exists(f"{folder}/none")
    assert disk.read_file(f"{folder}/none") == b""


def test_open_with_create_keeps_what_is_there(place: tuple[Disk, str]) -> None:
    disk, folder = place
    disk.replace_file(f"{folder}/a", b"kept")
    file = disk.open(f"{folder}/a", create=True)
    assert file.size() == 4
    file.close()


def test_folders_are_made_with_those_above_and_listed(place: tuple[Disk, str]) -> None:
    disk, folder = place
    disk.makedirs(f"{folder}/x/y/z")
    disk.makedirs(f"{folder}/x/y/z")
    disk.replace_file(f"{folder}/x/file", b"1")
    assert sorted(disk.listdir(f"{folder}/x")) == ["file", "y"]
    assert disk.listdir(f"{folder}/x/y/z") == []
    assert disk.exists(f"{folder}/x/y")
    disk.sync_dir(f"{folder}/x")
    with pytest.raises(FileNotFoundError):
        disk.listdir(f"{folder}/nowhere")
    for full in (f"{folder}/x", f"{folder}/x/y"):
        with pytest.raises(OSError, match="not empty"):
            disk.remove_folder(full)
    disk.remove_folder(f"{folder}/x/y/z")
    assert not disk.exists(f"{folder}/x/y/z")
    disk.remove_tree(f"{folder}/x")
    disk.remove_tree(f"{folder}/x")
    assert not disk.exists(f"{folder}/x/file")
    assert not disk.exists(f"{folder}/x")


def test_a_disk_that_cannot_say_whether_a_file_is_there_fails(tmp_path: Path) -> None:
    """Else a catalog that cannot be looked at would be taken for a new one, and replaced by an empty one."""
    (tmp_path / "catalog.log").symlink_to("catalog.log")
    (tmp_path / "file").write_bytes(b"")
    disk = OsDisk()
    assert [disk.exists(f"{tmp_path}/{name}") for name in ("file", "missing", "file/below")] == [True, False, False]
    with pytest.raises(OSError, match="symbolic link"):
        disk.exists(f"{tmp_path}/catalog.log")


def test_a_tree_into_which_somebody_writes_while_it_is_removed_is_gone_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint under way renames its file between the listing and the removal."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "checkpoint.tmp").write_bytes(b"")
    real = os.unlink

    def unlink(path: str, **options: int) -> None:
        monkeypatch.setattr(os, "unlink", real)
        (tree / "checkpoint.tmp").rename(tree / "checkpoint")
        real(path, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    disk = OsDisk()
    with pytest.raises(FileNotFoundError):
        disk.remove_tree(str(tree))
    disk.remove_tree(str(tree))
    disk.remove_tree(str(tree))
    assert not tree.exists()


def test_replaced_file_has_the_new_content_and_leaves_nothing_beside_it(place: tuple[Disk, str]) -> None:
    disk, folder = place
    path = f"{folder}/small"
    disk.replace_file(path, b"old")
    reader = disk.open(path, readonly=True)
    disk.replace_file(path, b"newer")
    assert disk.read_file(path) == b"newer"
    assert reader.pread(10, 0) == b"old", "D4"
    reader.close()
    assert disk.listdir(folder) == ["small"]


def test_unlinked_and_renamed_files_stay_readable_where_open(place: tuple[Disk, str]) -> None:
    disk, folder = place
    disk.replace_file(f"{folder}/a", b"aaa")
    reader = disk.open(f"{folder}/a", readonly=True)
    disk.rename(f"{folder}/a", f"{folder}/b")
    assert not disk.exists(f"{folder}/a")
    disk.unlink(f"{folder}/b")
    assert reader.pread(3, 0) == b"aaa"
    reader.close()
    assert disk.listdir(folder) == []


def test_errors_say_what_is_wrong_and_what_may_help() -> None:
    assert isinstance(storage_error(OSError(28, "No space left on device"), "write"), DiskFull)
    failed = storage_error(OSError(5, "Input/output error"), "fsync in /data/x")
    assert isinstance(failed, StorageFailed)
    assert str(failed) == "fsync in /data/x: Input/output error"
    assert failed.errno == 5


# --- the fault model itself: a fake disk that forgives would make every test above it worthless -----------------


def test_unsynced_bytes_are_gone_after_a_crash_and_synced_ones_are_not() -> None:
    disk = SimDisk()
    disk.makedirs("/data")
    file = disk.open("/data/a", create=True)
    disk.sync_dir("/data")
    file.write(b"synced")
    file.sync()
    file.write(b" and not")
    assert disk.after_crash("lost").read_file("/data/a") == b"synced"
    assert disk.after_crash("kept").read_file("/data/a") == b"synced and not"
    torn = {disk.after_crash("torn", seed=seed).read_file("/data/a") for seed in range(50)}
    assert len(torn) > 3
    assert all(b"synced and not".startswith(data) and data.startswith(b"synced") for data in torn)
    zeros = {disk.after_crash("zeros", seed=seed).read_file("/data/a") for seed in range(50)}
    assert all(len(data) == 14 and data.rstrip(b"\0") in b"synced and not" for data in zeros)
    assert b"synced" + bytes(8) in zeros


def test_reordered_crash_may_keep_a_later_sector_and_lose_an_earlier_one() -> None:
    disk = SimDisk()
    disk.makedirs("/data")
    file = disk.open("/data/a", create=True)
    disk.sync_dir("/data")
    file.write(b"a" * 512)
    file.write(b"b" * 512)
    found = {disk.after_crash("reordered", seed=seed).read_file("/data/a") for seed in range(50)}
    assert found == {b"", b"a" * 512, b"a" * 512 + b"b" * 512, bytes(512) + b"b" * 512}


def test_unsynced_name_may_be_gone_after_a_crash() -> None:
    disk = SimDisk()
    disk.makedirs("/data")
    file = disk.open("/data/a", create=True)
    file.write(b"x")
    file.sync()
    assert not disk.after_crash("lost").exists("/data/a"), "its folder was not synced"
    disk.sync_dir("/data")
    assert disk.after_crash("lost").read_file("/data/a") == b"x"
    disk.unlink("/data/a")
    assert disk.after_crash("lost").exists("/data/a")
    assert not disk.after_crash("kept").exists("/data/a")


def test_replaced_file_is_old_or_new_at_every_step() -> None:
    for step in range(1, 20):
        disk = SimDisk()
        disk.makedirs("/data")
        disk.replace_file("/data/a", b"old")
        disk.crash_at = disk.steps + step
        try:
            disk.replace_file("/data/a", b"newer")
        except Crashed:
            for mode in ("lost", "kept", "torn", "zeros", "reordered"):
                assert disk.after_crash(mode, seed=step).read_file("/data/a") in (b"old", b"newer")
        else:
            assert step > 5
            assert disk.after_crash("lost").read_file("/data/a") == b"newer"
            return
    raise AssertionError("never got to the end")


def test_failed_sync_is_not_made_good_by_the_next() -> None:
    disk = SimDisk()
    disk.makedirs("/data")
    file = disk.open("/data/a", create=True)
    disk.sync_dir("/data")
    file.write(b"abc")
    disk.fail("sync", 5)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert file.pread(3, 0) == b"abc", "the kernel still shows it"
    assert disk.after_crash("kept").read_file("/data/a") == b"abc"
    assert disk.after_crash("lost").read_file("/data/a") == b""


def test_full_disk_takes_what_fits() -> None:
    disk = SimDisk()
    disk.makedirs("/data")
    disk.bytes_max = 10
    file = disk.open("/data/a", create=True)
    file.write(b"12345678")
    with pytest.raises(OSError, match="No space"):
        file.write(b"abcd")
    assert file.pread(20, 0) == b"12345678ab"
    file.truncate(8)
    disk.heal()
    file.write(b"abcd")
    assert file.size() == 12


def test_nothing_happens_after_the_power_is_gone() -> None:
    disk = SimDisk(crash_at=3)
    disk.makedirs("/data")
    file = disk.open("/data/a", create=True)
    for call in (lambda: file.write(b"x"), file.sync, lambda: disk.listdir("/data"), file.size):
        with pytest.raises(Crashed):
            call()
