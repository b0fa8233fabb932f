"""The faulty disk does what Linux does, and what a power cut does; otherwise what the soak finds would mean nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from broker.client import connect
from tests.soak.faults import Faults, FaultyOs, Rule
from tests.soak.pages import Ranges
from tests.support.processes import BrokerProcess

FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND


def test_ranges_are_added_joined_and_cut() -> None:
    ranges = Ranges()
    for start, end in ((10, 20), (20, 30), (50, 60), (0, 5), (5, 10), (7, 7)):
        ranges.add(start, end)
    assert ranges.items == [(0, 30), (50, 60)]
    ranges.add(25, 55)
    assert ranges.items == [(0, 60)]
    ranges.remove(10, 20)
    assert ranges.items == [(0, 10), (20, 60)]
    ranges.remove(0, 100)
    assert not ranges


def test_a_failed_fsync_is_told_once_and_its_pages_are_lost_although_the_next_one_succeeds(tmp_path: Path) -> None:
    disk, path = FaultyOs(str(tmp_path)), str(tmp_path / "f")
    fd = disk.open(path, FLAGS)
    disk.write(fd, b"durable-")
    disk.fdatasync(fd)
    disk.write(fd, b"lost----")
    disk.fail(Rule("fsync", "f$"))
    with pytest.raises(OSError, match="Input/output"):
        disk.fdatasync(fd)
    disk.fdatasync(fd)
    assert os.pread(fd, 100, 0) == b"durable-lost----", "it is still in memory"
    disk.evict()
    assert os.pread(fd, 100, 0) == b"durable-" + bytes(8)
    disk.close(fd)


def test_who_has_the_file_open_is_told_too_and_who_writes_again_saves_it(tmp_path: Path) -> None:
    disk, path = FaultyOs(str(tmp_path)), str(tmp_path / "f")
    first, second = disk.open(path, FLAGS), disk.open(path, FLAGS)
    disk.write(first, b"abc")
    disk.fail(Rule("fsync", "f$"))
    with pytest.raises(OSError, match="soak"):
        disk.fdatasync(first)
    with pytest.raises(OSError, match="soak"):
        disk.fdatasync(second)
    third = disk.open(path, FLAGS)
    disk.fdatasync(third)  # somebody was told: this one is not
    disk.ftruncate(first, 0)
    disk.write(first, b"abc")
    disk.fdatasync(first)
    disk.evict()
    assert os.pread(first, 100, 0) == b"abc"


def test_a_full_disk_takes_what_fits_and_gives_back_what_is_removed(tmp_path: Path) -> None:
    disk, path = FaultyOs(str(tmp_path)), str(tmp_path / "f")
    fd = disk.open(path, FLAGS)
    disk.write(fd, b"12345")
    disk.limit_room(3)
    assert disk.write(fd, b"6789") == 3
    with pytest.raises(OSError, match="No space") as caught:
        disk.write(fd, b"9")
    assert caught.value.errno == errno.ENOSPC
    assert disk.statvfs(str(tmp_path)).f_bavail == 0
    disk.ftruncate(fd, 5)
    assert disk.write(fd, b"678") == 3
    disk.unlink(path)
    disk.write(disk.open(str(tmp_path / "g"), FLAGS), b"12345678")
    disk.clear()
    disk.write(disk.open(str(tmp_path / "h"), FLAGS), bytes(100))


def test_writes_fail_as_often_as_ordered_whole_or_after_half(tmp_path: Path) -> None:
    disk, path = FaultyOs(str(tmp_path)), str(tmp_path / "f")
    fd = disk.open(path, FLAGS)
    disk.fail(Rule("write", "f$", count=2))
    for _ in range(2):
        with pytest.raises(OSError, match="soak"):
            disk.write(fd, b"1234")
    disk.fail(Rule("write", "f$", part=True))
    assert disk.write(fd, b"1234") == 2
    with pytest.raises(OSError, match="soak"):
        disk.write(fd, b"34")
    assert disk.write(fd, b"34") == 2
    assert disk.failed == {"write": 4}


def test_a_power_cut_takes_nothing_that_was_synced_and_other_files_are_left_alone(tmp_path: Path) -> None:
    """In a child, since it ends the process."""
    data = tmp_path / "data"
    data.mkdir()
    child = os.fork()
    if child == 0:
        disk = FaultyOs(str(data))
        for number in range(20):
            fd = disk.open(str(data / str(number)), FLAGS)
            disk.write(fd, b"s" * 10_000)
            disk.fdatasync(fd)
            disk.write(fd, b"u" * 10_000)
        disk.write(disk.open(str(tmp_path / "beside"), FLAGS), b"beside")
        disk.power_cut(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    left = [path.read_bytes() for path in sorted(data.iterdir())]
    assert all(content[:10_000] == b"s" * 10_000 for content in left)
    assert len({content[10_000:] for content in left}) > 2, "whole, cut and torn"
    assert all(set(content[10_000:]) <= set(b"u\0") for content in left)
    assert (tmp_path / "beside").read_bytes() == b"beside"


@pytest.mark.process
def test_a_clock_that_is_moved_is_that_of_records(tmp_path: Path) -> None:
    """Also of those that come over HTTP, before and after a start."""
    faults, hour_ms = Faults(tmp_path / "faults.sock"), 3_600_000
    broker = BrokerProcess(tmp_path / "a", None, command=("tests.soak.broker", "--faults", str(faults.path))).start()
    try:
        with connect(broker.address) as client:
            client.create_stream("s")
            client.append("s", 0, [{"value": b"now"}])
            faults.order("clock", ahead_ms=hour_ms)
            client.append("s", 0, [{"value": b"ahead"}])
            broker.kill9()
            broker.start()
            client.append("s", 0, [{"value": b"ahead"}])
            first, *later = client.read("s", start="earliest").to_table().column("timestamp").cast("int64").to_pylist()
    finally:
        broker.stop()
    assert [round((at - first) / 1000 / hour_ms) for at in later] == [1, 1]
