"""Many logs made durable by one sync of their file system: what `sync` of each promises, G1 and G2, D5.

Method: real logs on the fake disk, whose sync of everything fails, is cut by a power loss, or lets others append while
it is under way; and on the real file system where it can be trusted.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.api.errors import DiskFull, LiftlogError, StorageFailed
from broker.storage.checkpoint import LogSettings
from broker.storage.disk import File, OsDisk
from broker.storage.durable import sync_together
from broker.storage.log import PartitionLog
from broker.storage.osfile import OsFile
from broker.storage.syncfs import OsFileSystem, is_new_enough, kind_of
from tests.support.effort import seeded
from tests.support.logs import check_log, create_log, open_log, row_batch, verified_records
from tests.support.simdisk import MODES, Crashed, Mode, SimDisk, SimFile, SimFileSystem

FOLDERS = [f"/data/p{n}" for n in range(5)]
SETTINGS = LogSettings(segment_bytes=1 << 20)


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.makedirs("/data")
    return made


def logs_on(disk: SimDisk) -> list[PartitionLog]:
    return [create_log(disk, settings=SETTINGS, folder=folder) for folder in FOLDERS]


def append(log: PartitionLog, value: bytes = b"x") -> None:
    log.append([row_batch([value])], leader_epoch=1, now_us=0)


class During(SimFileSystem):
    """Does something while the sync is under way: when what is dirty is decided, and before it is on the disk."""

    def __init__(self, disk: SimDisk, act: Callable[[], None]) -> None:
        super().__init__(disk, "/data")
        self._act = act

    def sync(self) -> None:
        super().sync()
        self._act()


def values(log: PartitionLog) -> list[bytes]:
    log.advance_high_watermark(log.durable_end)
    return [value for _, _, value in verified_records(log)]


@pytest.mark.parametrize("mode", MODES)
def test_one_sync_of_the_file_system_makes_all_logs_durable(disk: SimDisk, mode: Mode) -> None:
    logs, whole = logs_on(disk), disk.file_system("/data")
    for number, log in enumerate(logs):
        for _ in range(number):
            append(log, b"%d" % number)
    syncs = disk.calls.get("sync", 0)
    assert sync_together(logs, whole) == ([0, 1, 2, 3, 4], None)
    assert disk.calls["syncfs"] == 1
    assert disk.calls.get("sync", 0) == syncs
    assert [log.durable_end for log in logs] == [0, 1, 2, 3, 4]
    after = disk.after_crash(mode, seed=7)
    for number, folder in enumerate(FOLDERS):
        log = open_log(after, settings=SETTINGS, folder=folder)
        assert values(log) == [b"%d" % number] * number
        check_log(log, after)


def test_what_is_appended_while_it_is_under_way_is_not_said_to_be_durable(disk: SimDisk) -> None:
    """G1."""
    logs = logs_on(disk)
    for log in logs:
        append(log)
    outcomes, failed = sync_together(logs, During(disk, lambda: [append(log, b"late") for log in logs] and None))
    assert (outcomes, failed) == ([1] * 5, None)
    assert [log.durable_end for log in logs] == [1] * 5
    assert [log.log_end_offset for log in logs] == [2] * 5
    after = disk.after_crash("lost")
    assert [values(open_log(after, settings=SETTINGS, folder=folder)) for folder in FOLDERS] == [[b"x"]] * 5


def roll_in_vain(log: PartitionLog, disk: SimDisk) -> None:
    disk.fail("sync", errno.EIO, path=log.folder)
    with pytest.raises(StorageFailed):
        log.roll_if_due(1 << 60)


def check_it_comes_back(log: PartitionLog, disk: SimDisk) -> None:
    assert log.durable_end == 0
    log.recover(0)
    assert log.sync() == 1
    assert values(open_log(disk.after_crash("lost"), settings=SETTINGS, folder=log.folder)) == [b"x"]


def test_a_sync_beside_a_roll_that_got_the_error_does_not_say_that_all_is_well(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3."""
    log, plain, rolls = logs_on(disk)[0], SimFile.sync, [roll_in_vain]
    append(log)

    def sync(file: SimFile) -> None:
        if rolls:
            rolls.pop()(log, disk)
        plain(file)

    monkeypatch.setattr(SimFile, "sync", sync)
    with pytest.raises(StorageFailed):
        log.sync()
    check_it_comes_back(log, disk)


def test_nor_does_a_sync_of_the_file_system(disk: SimDisk) -> None:
    """G3; the other logs are none the worse."""
    logs = logs_on(disk)
    for log in logs:
        append(log)
    outcomes, failed = sync_together(logs, During(disk, lambda: roll_in_vain(logs[2], disk)))
    assert failed is None
    assert isinstance(outcomes.pop(2), StorageFailed)
    assert outcomes == [1] * 4
    check_it_comes_back(logs[2], disk)


def test_where_nothing_is_dirty_nothing_is_synced(disk: SimDisk) -> None:
    logs = logs_on(disk)
    append(logs[0])
    logs[0].sync()
    assert sync_together(logs, disk.file_system("/data")) == ([1, 0, 0, 0, 0], None)
    assert "syncfs" not in disk.calls


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, StorageFailed), (errno.ENOSPC, DiskFull)])
@pytest.mark.parametrize("seed", range(8))
def test_an_error_fails_every_log_that_had_something_in_it(
    disk: SimDisk, number: int, error: type[LiftlogError], seed: int
) -> None:
    """G2: which of them lost bytes is not known, so none may be said to be durable; and each comes back whole."""
    disk._rng.seed(seeded(seed))
    logs, whole = logs_on(disk), disk.file_system("/data")
    for log in logs[1:]:
        append(log)
    disk.fail("syncfs", number)
    outcomes, failed = sync_together(logs, whole)
    assert failed is not None
    assert failed.errno == number
    assert outcomes[0] == 0
    assert all(isinstance(outcome, error) for outcome in outcomes[1:])
    assert [log.durable_end for log in logs] == [0] * 5
    append(logs[0])  # it had nothing to lose
    assert logs[0].sync() == 1
    for log in logs[1:]:
        with pytest.raises(error):
            append(log)
        log.recover(now_us=0)
        append(log, b"y")
        assert log.sync() == 2
    after = disk.after_crash("lost")
    found = [values(open_log(after, settings=SETTINGS, folder=folder)) for folder in FOLDERS]
    assert found == [[b"x"], *[[b"x", b"y"]] * 4]


@pytest.mark.parametrize("seed", range(8))
def test_a_file_that_failed_and_was_not_asked_for_tells_it_when_it_is_synced_by_itself(
    disk: SimDisk, seed: int
) -> None:
    """D5: the sync of others wrote it too. Were it believed to be clean, its record would be lost."""
    disk._rng.seed(seeded(seed))
    logs, whole = logs_on(disk), disk.file_system("/data")
    for log in logs:
        append(log)
    bystander = logs.pop()
    disk.fail("syncfs", errno.EIO)
    sync_together(logs, whole)
    try:
        end = bystander.sync()
    except StorageFailed:
        bystander.recover(now_us=0)
        end = bystander.sync()
    assert end == 1
    assert values(open_log(disk.after_crash("lost"), settings=SETTINGS, folder=FOLDERS[-1])) == [b"x"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_in_the_middle_loses_nothing_that_was_durable_before(mode: Mode, seed: int) -> None:
    """Any of the files may be written by then. Each log ends where an append ended."""

    def life(disk: SimDisk) -> None:
        disk.makedirs("/data")
        logs, whole = logs_on(disk), disk.file_system("/data")
        for value in (b"a" * 900, b"b" * 900):
            for log in logs:
                append(log, value)
            sync_together(logs, whole)

    steps = SimDisk()
    life(steps)
    disk = SimDisk(seed=seed, crash_at=steps.steps)  # the last step: the second sync
    with pytest.raises(Crashed):
        life(disk)
    assert disk.calls["syncfs"] == 2
    after = disk.after_crash(mode, seed=seed)
    for folder in FOLDERS:
        log = open_log(after, settings=SETTINGS, folder=folder)
        assert log.lost_ranges == ()
        assert values(log) in ([b"a" * 900], [b"a" * 900, b"b" * 900])
        check_log(log, after)


def test_a_file_elsewhere_is_synced_by_itself(disk: SimDisk) -> None:
    disk.mounts.append(FOLDERS[3])
    logs, whole = logs_on(disk), disk.file_system("/data")
    for log in logs:
        append(log)
    syncs = disk.calls.get("sync", 0)
    assert sync_together(logs, whole) == ([1] * 5, None)
    assert disk.calls["sync"] == syncs + 1
    assert values(open_log(disk.after_crash("lost"), settings=SETTINGS, folder=FOLDERS[3])) == [b"x"]


def test_a_log_that_is_failed_or_closed_gets_its_error_and_holds_up_no_other(disk: SimDisk) -> None:
    logs, whole = logs_on(disk), disk.file_system("/data")
    for log in logs:
        append(log)
    disk.fail("sync", errno.EIO, path=FOLDERS[1])
    with pytest.raises(StorageFailed):
        logs[1].sync()
    logs[2].close()
    outcomes, failed = sync_together(logs, whole)
    assert failed is None
    assert [outcome if isinstance(outcome, int) else type(outcome) for outcome in outcomes] == [
        *(1, StorageFailed, StorageFailed, 1, 1)
    ]


def test_a_log_that_is_busy_is_synced_afterwards_by_itself(disk: SimDisk) -> None:
    """No lock is waited for while others are held."""
    logs = logs_on(disk)
    for log in logs:
        append(log)
    busy = logs[2]
    busy._sync_lock.acquire()
    outcomes, _ = sync_together(logs, During(disk, busy._sync_lock.release))
    assert outcomes == [1] * 5


def real_file_system(folder: Path) -> OsFileSystem:
    try:
        return OsFileSystem(str(folder))
    except OSError as error:
        pytest.skip(f"not to be trusted here: {error}")


def test_logs_of_the_real_file_system_are_synced_at_once(tmp_path: Path) -> None:
    whole = real_file_system(tmp_path)
    disk = OsDisk()
    logs = [create_log(disk, settings=SETTINGS, folder=str(tmp_path / f"p{n}")) for n in range(3)]
    for log in logs:
        append(log)
    assert sync_together(logs, whole) == ([1, 1, 1], None)
    for log in logs:
        log.close()
    whole.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        whole.sync()
    whole.close()


def test_a_file_of_another_file_system_is_not_held(tmp_path: Path) -> None:
    whole = real_file_system(tmp_path)
    here: File = OsDisk().open(str(tmp_path / "a"), create=True)
    there = OsFile(os.memfd_create("there"), "there")
    assert whole.holds(here)
    assert not whole.holds(there)
    here.close()
    there.close()
    whole.close()


def test_a_folder_on_a_file_system_that_is_not_known_to_keep_the_promise_is_refused() -> None:
    with pytest.raises(OSError, match=r"file system is proc|later"):
        OsFileSystem("/proc")


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No such file|later"):
        OsFileSystem(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("release", "wanted"),
    [
        *(("6.18.44-fc", True), ("5.17", True), ("5.17.0-1-amd64", True), ("10.0", True)),
        *(("5.16.20", False), ("5.8.0", False), ("4.4.0", False), ("", False), ("unknown", False)),
    ],
)
def test_kernels_that_keep_errors_to_themselves_are_too_old(release: str, wanted: bool) -> None:
    assert is_new_enough(release) is wanted


def test_the_kind_of_a_file_system_is_found_by_its_device() -> None:
    mounts = (
        "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
        "23 22 0:21 / /proc rw shared:5 master:2 - proc proc rw\n"
        "30 22 0:33 / /home rw - btrfs /dev/vdb rw,subvol=/home\n"
        "broken\n"
    )
    assert kind_of(os.makedev(254, 0), mounts) == "ext4"
    assert kind_of(os.makedev(0, 21), mounts) == "proc"
    assert kind_of(os.makedev(0, 99), mounts) is None
    assert kind_of(os.makedev(254, 0), "") is None
