"""Goal: where no byte is free, space can still be freed, and a power cut at any step of that loses nothing.

Method: a trim, retention, and a log that lets go of all it has, on the fake disk without a free byte but with spare
files, the power cut at each step; and on a real file system that is full to its last block (tmpfs; only where the tests
may mount one).
"""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from broker.api.errors import DiskFull
from broker.storage.disk import Disk, OsDisk
from broker.storage.disk.spare_files import LARGE_BYTES, SIZES, SMALL_BYTES, SPARE_FOLDER, Spares
from broker.storage.log import PartitionLog
from broker.storage.memory.state_files import list_states
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import first_short
from tests.support.logs import FOLDER, check_log, commit, create_log, open_log, stamped, verified_records
from tests.support.simdisk import MODES, Crashed, SimDisk

SETTINGS = LogSettings(segment_bytes=3_000)
COUNT = 9


def made_log(disk: Disk, folder: str = FOLDER, *, has_state: bool = True) -> PartitionLog:
    """Nine records in five segments, of a producer (so that a state file is to be kept) or of nobody."""
    log = create_log(disk, settings=SETTINGS, folder=folder)
    for number in range(COUNT):
        log.append([stamped([b"%d" % number], 1 if has_state else 0, 0, number)], leader_epoch=1, now_us=0)
        commit(log)
    log.checkpoint()
    return log


def values(log: PartitionLog) -> list[bytes]:
    return [value for _, _, value in verified_records(log)]


def trim_some(log: PartitionLog) -> int:
    return log.trim(5)


def trim_all(log: PartitionLog) -> int:
    return log.trim(COUNT)


def retain(log: PartitionLog) -> int:
    log.remembered.update_settings(replace(SETTINGS, retention_ms=1))
    return log.apply_retention(now_us=6 * 3_600_000_000, wall_us=1 << 50)


FREEING = [trim_some, trim_all, retain]


def full(disk: SimDisk) -> None:
    disk.bytes_max = 0
    disk.spares = list(SIZES)


@pytest.mark.parametrize("runs_ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("has_state", [False, True], ids=["", "producer"])
@pytest.mark.parametrize("free", FREEING)
def test_space_is_freed_where_no_byte_is_free(
    free: Callable[[PartitionLog], int], has_state: bool, runs_ahead: bool
) -> None:
    disk = SimDisk(runs_ahead=runs_ahead)
    log = made_log(disk, has_state=has_state)
    used = disk.used_bytes
    full(disk)
    start = free(log)
    assert start >= 5
    assert disk.used_bytes < used - 3_000
    disk.bytes_max = None
    log.append([stamped([b"more"], 1 if has_state else 0, 0, COUNT)], leader_epoch=1, now_us=0)
    commit(log)
    expected = [b"%d" % number for number in range(COUNT)][start:]
    for boot in ("boot-1", "next"):
        commit(log)
        assert values(log) == [*expected, b"more"]
        assert log.state.log_start_offset == start
        if has_state:
            assert log.append([stamped([b"7"], 1, 0, 7)], leader_epoch=1, now_us=0).duplicate
        check_log(log, disk)
        log = open_log(disk.after_kill(), settings=SETTINGS, boot_id=boot)


@pytest.mark.parametrize("free", FREEING)
def test_without_spare_files_the_error_says_that_the_disk_is_full_and_nothing_is_lost(
    free: Callable[[PartitionLog], int],
) -> None:
    disk = SimDisk()
    log = made_log(disk)
    disk.bytes_max = 0
    with pytest.raises(DiskFull):
        free(log)
    disk.heal()
    assert open_log(disk.after_kill(), settings=SETTINGS).state.log_start_offset == 0
    assert free(log) >= 5
    assert open_log(disk.after_kill(), settings=SETTINGS).state.log_start_offset >= 5


def test_a_leadership_whose_epoch_cannot_be_written_appends_nothing_and_begins_once_there_is_room() -> None:
    disk = SimDisk()
    log = made_log(disk)
    disk.bytes_max = disk.used_bytes
    for _ in range(2):
        with pytest.raises(DiskFull):
            log.append([stamped([b"9"], 1, 0, COUNT)], leader_epoch=2, now_us=0)
        assert (log.state.log_end_offset, log.epochs.latest) == (COUNT, 1)
    disk.heal()
    assert values(open_log(disk.after_kill(), settings=SETTINGS, boot_id="next")) == values(log)
    assert log.append([stamped([b"9"], 1, 0, COUNT)], leader_epoch=2, now_us=0).first_offset == COUNT
    commit(log)
    assert (log.epochs.epoch_of(COUNT - 1), log.epochs.epoch_of(COUNT)) == (1, 2)
    check_log(log, disk)


def test_where_a_roll_has_no_room_for_a_state_file_the_older_one_stands() -> None:
    disk = SimDisk()
    log = made_log(disk)
    before = list_states(disk, FOLDER)
    disk.fail("write", errno.ENOSPC, path="/state-", times=100)
    for number in range(COUNT, 3 * COUNT):
        log.append([stamped([b"%d" % number], 1, 0, number)], leader_epoch=1, now_us=0)
        commit(log)
    assert list_states(disk, FOLDER) == before
    assert "no new state file" in str(log.state.recovery.notes)
    disk.heal()
    found = open_log(disk.after_kill(), settings=SETTINGS, boot_id="next")
    commit(found)
    assert values(found) == [b"%d" % number for number in range(3 * COUNT)]
    assert found.append([stamped([b"?"], 1, 0, 3 * COUNT - 1)], leader_epoch=1, now_us=0).duplicate


def test_a_start_that_has_no_room_to_cut_a_torn_end_is_made_again() -> None:
    """It needs room for the index of a segment that the power cut left without one, and no more."""
    disk = SimDisk()
    log = made_log(disk)
    for path in [path for path in disk.names if path.endswith(".index")]:
        disk.unlink(path)
    disk.sync_dir(FOLDER)
    log.append([stamped([b"9"], 1, 0, COUNT)], leader_epoch=1, now_us=0)
    used = disk.used_bytes
    for free in itertools.count(0, 50):
        found = disk.after_kill()
        found.bytes_max = used + free
        try:
            again = open_log(found, settings=SETTINGS, boot_id="next")
        except DiskFull:
            found.heal()
            again = open_log(found, settings=SETTINGS, boot_id="next")
            commit(again)
        else:
            break
        assert values(again)[:COUNT] == [b"%d" % number for number in range(COUNT)]
    found.heal()
    commit(again)
    assert values(again)[:COUNT] == [b"%d" % number for number in range(COUNT)]


@pytest.mark.slow
@pytest.mark.parametrize("free", first_short(FREEING))
def test_a_power_cut_at_any_step_of_freeing_on_a_full_disk_loses_nothing(free: Callable[[PartitionLog], int]) -> None:
    for step in itertools.count(1):
        disk = SimDisk()
        log = made_log(disk)
        full(disk)
        disk.crash_at = disk.steps + step
        try:
            start = free(log)
        except Crashed:
            pass
        else:
            break
        for mode in MODES:
            found = open_log(disk.after_crash(mode, seed=step), settings=SETTINGS, boot_id="next")
            commit(found)
            assert found.state.lost_ranges == (), f"step {step}, {mode}"
            assert found.state.log_end_offset == COUNT
            assert values(found) == [b"%d" % number for number in range(COUNT)][found.state.log_start_offset :]
            again = found.append([stamped([b"8"], 1, 0, 8)], leader_epoch=1, now_us=0)
            assert again.duplicate, f"step {step}, {mode}: what the producer did is forgotten"
    assert start >= 5
    assert step > 6


@pytest.mark.parametrize("makes_room", [False, True])
def test_what_needs_no_new_state_file_goes_first_where_there_is_no_room_for_one(makes_room: bool) -> None:
    """The state file of the last roll could not be written, and a new one is larger than any spare file."""
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    for number in range(COUNT):
        if number == 4:
            disk.fail("write", errno.ENOSPC, path="state-", times=1 << 20)
        log.append([stamped([b"%d" % number], 1, 0, number)], leader_epoch=1, now_us=0)
        commit(log)
    disk.heal()
    told = next(int(name.removeprefix("state-")) for name in disk.listdir(FOLDER) if name.startswith("state-"))
    assert 0 < told < 5
    full(disk)
    disk.fail("write", errno.ENOSPC, path="state-", times=2 if makes_room else 1 << 20)  # once by a spare file
    if makes_room:
        assert log.trim(COUNT) == COUNT
    else:
        with pytest.raises(DiskFull):
            log.trim(COUNT)
        assert log.state.log_start_offset == told
        assert not [name for name in disk.listdir(FOLDER) if name < f"{told:020d}"], "and its room is back"
    disk.heal()
    assert log.trim(COUNT) == COUNT
    log = open_log(disk.after_kill(), settings=SETTINGS)
    assert log.append([stamped([b"8"], 1, 0, 8)], leader_epoch=1, now_us=0).duplicate


# --- the real thing -------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    """Write until not a byte is free."""
    with open(place / "filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):  # no space left
                while True:
                    file.write(bytes(size))
    assert os.statvfs(place).f_bavail == 0


@pytest.mark.process
@pytest.mark.parametrize("free", FREEING)
def test_space_is_freed_on_a_real_file_system_that_is_full(small: Path, free: Callable[[PartitionLog], int]) -> None:
    disk = OsDisk(Spares(str(small)))
    log = made_log(disk, str(small / "p"))
    fill(small)
    with pytest.raises(DiskFull):
        log.append([stamped([bytes(8_000)], 1, 0, COUNT)], leader_epoch=1, now_us=0)
    assert free(log) >= 5
    assert os.statvfs(small).f_bavail > 0
    (small / "filler").unlink()
    log.append([stamped([b"more"], 1, 0, COUNT)], leader_epoch=1, now_us=0)
    commit(log)
    start = log.state.log_start_offset
    log.close()
    log = open_log(disk, settings=SETTINGS, folder=str(small / "p"))
    assert values(log) == [*[b"%d" % number for number in range(COUNT)][start:], b"more"]
    assert sorted(os.listdir(small / SPARE_FOLDER)) == [str(number) for number in range(len(SIZES))], "made again"
    log.close()


@pytest.mark.process
def test_many_partitions_are_trimmed_on_a_full_file_system(small: Path) -> None:
    """More than there are spare files: what one frees is the next one's."""
    disk = OsDisk(Spares(str(small)))
    logs = [made_log(disk, str(small / f"p{number}")) for number in range(3 * len(SIZES))]
    fill(small)
    for log in logs:
        assert log.trim(5) == 5
    for log in logs:
        log.close(clean=False)


def test_spare_files_are_blocks_of_their_own_and_are_not_left_under_two_names(tmp_path: Path) -> None:
    """A rename of which a crash kept both names: writing into the spare file would write into the other one (B3)."""
    spares = Spares(str(tmp_path))
    assert not spares.is_short
    places = [os.stat(tmp_path / SPARE_FOLDER / str(number)) for number in range(len(SIZES))]
    assert [place.st_size for place in places] == list(SIZES)
    assert all(place.st_blocks * 512 >= place.st_size for place in places)
    (tmp_path / SPARE_FOLDER / "0").write_bytes(b"a checkpoint")
    os.link(tmp_path / SPARE_FOLDER / "0", tmp_path / "checkpoint")
    again = Spares(str(tmp_path))
    with again.taken(5) as taken:
        assert taken is not None
        assert os.stat(taken).st_nlink == 1
    assert (tmp_path / "checkpoint").read_bytes() == b"a checkpoint"


def test_a_spare_file_is_given_to_one_only_and_the_smallest_that_fits(tmp_path: Path) -> None:
    """Nor is one made again that somebody writes to: two targets would share its blocks (B4)."""
    spares = Spares(str(tmp_path))
    with spares.taken(LARGE_BYTES + 1) as none:
        assert none is None
    with ExitStack() as held:
        assert held.enter_context(spares.taken(SMALL_BYTES + 1)) == f"{tmp_path}/{SPARE_FOLDER}/{len(SIZES) - 1}"
        small = [held.enter_context(spares.taken(1)) for _ in range(len(SIZES) - 1)]
        assert len(set(small)) == len(SIZES) - 1
        spares.refill()
        assert spares.is_short
        assert held.enter_context(spares.taken(1)) is None
        assert held.enter_context(spares.taken(SMALL_BYTES + 1)) is None
    spares.refill()
    assert not spares.is_short


def lead(log: PartitionLog) -> None:
    log.lead(7)


def truncate(log: PartitionLog) -> None:
    log.truncate(COUNT - 2)


def reset(log: PartitionLog) -> None:
    log.reset(COUNT + 5, last_epoch=3)


@pytest.mark.parametrize("spares", [SIZES, ()], ids=["", "no spare file left"])
@pytest.mark.parametrize("act", [lead, truncate, reset])
def test_a_replica_that_is_to_make_room_leads_is_cut_and_begins_anew_on_a_full_disk(
    act: Callable[[PartitionLog], None], spares: tuple[int, ...]
) -> None:
    """Nobody trims a partition that nobody leads. The leader lacks a state file: nobody had one to give to it."""
    disk = SimDisk()
    log = made_log(disk)
    log.remembered.update_settings(replace(SETTINGS, is_sole_replica=False))
    log.follow(2)
    log.remembered.drop()
    disk.bytes_max, disk.spares = 0, list(spares)
    if act is not lead and not spares:
        with pytest.raises(DiskFull):
            act(log)
        return
    act(log)
    assert log.state.failure is None
    if act is lead:
        if spares:
            assert log.trim(5) == 5
        disk.heal()
        assert log.handover.offered(0, COUNT) >= 0, "whoever lacks a state file is given one"
        log.append([stamped([b"x"], 1, 0, COUNT)], leader_epoch=7, now_us=0)
        commit(log)
        log.checkpoint()
    else:
        assert log.state.log_end_offset == {truncate: COUNT - 2, reset: COUNT + 5}[act]
    found = open_log(disk.after_crash("lost"), settings=replace(SETTINGS, is_sole_replica=False))
    assert (found.state.log_end_offset, values(found)) == (log.state.log_end_offset, values(log))
