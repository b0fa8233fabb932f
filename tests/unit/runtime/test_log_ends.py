"""Goal: a partition's folder that was put back from a copy is noticed, and no other is taken for one, whatever ends the
process at whatever moment.

Method: one life of a log with all that takes records back, on the fake disk; power fails at each of its steps. In half
of the runs somebody notes how far the log is before some of the steps.
"""

from __future__ import annotations

import errno
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from broker.api.errors import DiskFull, LiftlogError, StorageFailed
from broker.api.stream import settings_from
from broker.common.elapsed import elapsed_us
from broker.metadata.catalog import StreamInfo
from broker.node.folders import Folders
from broker.node.log_ends import LogEnds
from broker.storage.disk import Disk, OsDisk
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import first_short
from tests.support.logs import row_batch
from tests.support.simdisk import Crashed, Fault, SimDisk, modes_at

INFO = StreamInfo(name="s", incarnation="i", created_us=0, settings=settings_from({"segment_bytes": 1 << 20}))
AT = "i", 0


def folders_on(disk: Disk, root: str = "/data") -> Folders:
    made = Folders(disk, f"{root}/streams", "c", "boot", LogSettings(), LogEnds(disk, f"{root}/ends"), elapsed_us)
    made.ends.load()
    return made


def opened_in(folders: Folders) -> list[PartitionLog]:
    """All that a start finds and can open."""
    found = []
    for identity in folders.found():
        try:
            found.append(folders.open(identity, folders.log_settings(INFO.settings)))
        except LiftlogError:
            continue
    return found


class MovingDisk(SimDisk):
    """Folders can be renamed, at one go."""

    def rename(self, source: str, target: str) -> None:
        if source not in self.folders:
            super().rename(source, target)
            return
        self.step("rename", source)

        def moved(path: str) -> str:
            return target + path[len(source) :] if f"{path}/".startswith(f"{source}/") else path

        self.folders = {moved(path) for path in self.folders}
        self.names = {moved(path): inode for path, inode in self.names.items()}
        self._durable_names = {moved(path): inode for path, inode in self._durable_names.items()}
        self._pending_names = [(moved(folder), moved(path), inode) for folder, path, inode in self._pending_names]


class NotingDisk(MovingDisk):
    """Somebody notes how far the logs are before some of the steps."""

    ends: LogEnds | None = None

    def step(self, call: str, path: str) -> Fault | None:
        is_free = self.ends is not None and not self.ends._lock.locked()
        if is_free and random.Random(f"{self.crash_at} {self.steps}").random() < 0.2:
            self.ends.note()  # type: ignore[union-attr]
        return super().step(call, path)


def grow(log: PartitionLog, epoch: int, groups: int, *, committed: int) -> None:
    """So many more commit groups of two batches; so many of them are committed."""
    log.lead(epoch)
    for number in range(groups):
        end = log.append([row_batch([b"v"]), row_batch([b"w"])], leader_epoch=epoch, now_us=0).next_offset
        log.syncer.sync()
        if number < committed:
            log.state.advance_high_watermark(end)


def a_life(folders: Folders) -> None:
    ends = folders.ends
    log = folders.create(INFO, 0)
    grow(log, 1, 6, committed=4)
    log.checkpoint()
    ends.note()
    log.follow(2)
    log.truncate(5)  # an operator chose who lacks records: below what is committed, and within a group
    log.checkpoint()
    ends.note()
    grow(log, 3, 4, committed=4)
    log.checkpoint()
    ends.note()
    log.close()
    ends.note()
    [log] = opened_in(folders)
    log.follow(4)
    log.truncate(6)
    grow(log, 5, 5, committed=5)
    log.checkpoint()
    ends.note()
    log.follow(6)
    log.reset(3)
    grow(log, 7, 1, committed=1)
    log.checkpoint()
    ends.note()
    log.follow(8)
    log.reset(40)
    grow(log, 9, 2, committed=1)
    log.checkpoint()
    ends.note()
    log.close(clean=False)  # it has stepped out
    log = folders.create(INFO, 0)
    ends.note()
    grow(log, 10, 2, committed=2)
    log.checkpoint()
    ends.note()
    log.close(clean=False)
    folders.remove("s", "i", 0)
    log = folders.create(INFO, 0)
    grow(log, 11, 1, committed=1)
    log.checkpoint()
    ends.note()


def lived(disk: SimDisk) -> None:
    folders = folders_on(disk)
    if isinstance(disk, NotingDisk):
        disk.ends = folders.ends
    a_life(folders)


@pytest.mark.slow
@pytest.mark.parametrize("case", first_short([(kind, part) for kind in (MovingDisk, NotingDisk) for part in range(6)]))
def test_no_log_is_taken_for_an_old_one_whenever_the_power_goes(case: tuple[type[MovingDisk], int]) -> None:
    """Every step, in six parts."""
    kind, part = case
    whole = kind()
    lived(whole)
    assert folders_on(whole.after_kill()).ends.known(AT) == 2
    assert whole.steps > 100
    for step in range(1 + part, whole.steps + 1, 6):
        disk = kind(crash_at=step)
        with suppress(Crashed):  # in some lives there are fewer steps
            lived(disk)
        for mode in modes_at(step):
            left = disk.after_crash(mode, seed=step)
            for _ in range(2):
                folders = folders_on(left)
                for log in opened_in(folders):
                    assert log.state.log_end_offset >= folders.ends.known(AT), (step, mode)
                    log.close()
                folders.ends.note()


def test_an_older_copy_ends_below_what_is_known(tmp_path: Path) -> None:
    """The process stopped, or was killed after it had noted its ends."""
    for how in ("stopped", "killed"):
        root = tmp_path / how
        folders = folders_on(OsDisk(), str(root))
        log = folders.create(INFO, 0)
        place, copies = root / "streams/s/i/0", []
        for number in range(3):
            grow(log, number, 2, committed=2)
            log.checkpoint()
            copies.append(tmp_path / f"{how}-{number}")
            shutil.copytree(place, copies[-1])
        grow(log, 3, 1, committed=1)
        if how == "stopped":
            log.close()
        else:
            log.checkpoint()
        folders.ends.note()
        if how == "killed":
            grow(log, 4, 1, committed=1)
            log.close(clean=False)
        [now] = opened_in(folders_on(OsDisk(), str(root)))
        assert now.state.log_end_offset >= folders_on(OsDisk(), str(root)).ends.known(AT) == 14
        now.close(clean=False)
        for copy in copies:
            shutil.rmtree(place)
            shutil.copytree(copy, place)
            folders = folders_on(OsDisk(), str(root))
            [old] = opened_in(folders)
            assert old.state.log_end_offset < folders.ends.known(AT)
            folders.ends.note(kept={AT})
            assert folders_on(OsDisk(), str(root)).ends.known(AT) == 14, "a process that is killed now is told again"
            old.close(clean=False)


def test_the_end_of_records_that_are_not_committed_or_not_checkpointed_is_not_noted() -> None:
    folders = folders_on(SimDisk())
    log = folders.create(INFO, 0)
    grow(log, 1, 3, committed=1)
    folders.ends.note()
    assert folders.ends.known(AT) == 0
    log.checkpoint()
    folders.ends.note()
    assert folders.ends.known(AT) == 2


def test_a_cut_that_cannot_be_noted_is_not_made() -> None:
    disk = SimDisk()
    folders = folders_on(disk)
    log = folders.create(INFO, 0)
    grow(log, 1, 3, committed=3)
    log.checkpoint()
    folders.ends.note()
    log.follow(2)
    disk.fail("write", errno.ENOSPC, path="/data/ends")
    with pytest.raises(DiskFull):
        log.truncate(2)
    assert (log.state.log_end_offset, folders.ends.known(AT)) == (6, 6)
    disk.heal()
    assert (log.truncate(2), folders.ends.known(AT)) == (2, 2)


def test_ends_that_cannot_be_written_stay_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    folders = folders_on(disk)
    log = folders.create(INFO, 0)
    grow(log, 1, 1, committed=1)
    log.checkpoint()
    disk.fail("write", errno.ENOSPC, path="/data/ends")
    folders.ends.note()
    assert folders_on(disk).ends.known(AT) == 0
    assert "replica.ends_not_saved" in caplog.text
    folders.ends.note()
    assert folders.ends.known(AT) == folders_on(disk).ends.known(AT) == 2


@pytest.mark.parametrize("then", ["cut", "begun anew"])
def test_ends_that_were_written_although_it_failed_are_lowered_all_the_same(then: str) -> None:
    """The file has its name, and the fsync of its folder fails."""
    disk = MovingDisk()
    folders = folders_on(disk)
    log = folders.create(INFO, 0)
    grow(log, 1, 3, committed=3)
    log.checkpoint()
    disk.fail("sync_dir", errno.EIO)
    folders.ends.note()
    assert folders_on(disk).ends.known(AT) == 6
    if then == "cut":
        log.follow(2)
        log.truncate(2)
    else:
        log.close(clean=False)
        folders.create(INFO, 0)
    folders = folders_on(disk.after_kill())
    [log] = opened_in(folders)
    assert log.state.log_end_offset == folders.ends.known(AT) == (2 if then == "cut" else 0)


def test_ends_that_may_not_be_on_disk_are_written_again() -> None:
    disk = SimDisk()
    folders = folders_on(disk)
    log = folders.create(INFO, 0)
    grow(log, 1, 3, committed=3)
    log.checkpoint()
    disk.fail("sync_dir", errno.EIO)
    for known in (0, 6):
        folders.ends.note()
        assert folders_on(disk.after_crash("lost")).ends.known(AT) == known


@pytest.mark.parametrize(("call", "path"), [("write", "epochs"), ("write", "checkpoint"), ("sync_dir", "/0")])
def test_a_reset_that_failed_raises_no_end(call: str, path: str) -> None:
    """Its checkpoint said that the log begins where the leader's does, and the log went on as it was."""
    disk = SimDisk()
    folders = folders_on(disk)
    log = folders.create(INFO, 0)
    grow(log, 1, 2, committed=1)
    log.follow(2)
    disk.fail(call, errno.ENOSPC, path=path, after=call == "sync_dir")  # the first one is of the state files
    with suppress(DiskFull):
        log.reset(9, last_epoch=1)
    folders.ends.note()
    log.close()
    folders = folders_on(disk.after_kill())
    [log] = opened_in(folders)
    assert log.state.log_end_offset >= folders.ends.known(AT)


def test_an_end_that_was_forgotten_does_not_come_back_with_the_power() -> None:
    """The process that had forgotten it ended before its file was durable under its name."""
    disk = MovingDisk()
    folders = folders_on(disk)
    log = folders.create(INFO, 0)
    grow(log, 1, 3, committed=3)
    log.checkpoint()
    folders.ends.note()
    log.close(clean=False)
    disk.fail("sync_dir", errno.EIO, after=1)
    with pytest.raises(StorageFailed):
        folders.create(INFO, 0)
    folders = folders_on(disk)
    folders.create(INFO, 0)
    folders = folders_on(disk.after_crash("lost"))
    [log] = opened_in(folders)
    assert log.state.log_end_offset == folders.ends.known(AT) == 0


def test_half_a_removal_leaves_no_log() -> None:
    """It would be told as an old one."""
    for step in range(1, 40):
        disk = MovingDisk()
        folders = folders_on(disk)
        log = folders.create(INFO, 0)
        grow(log, 1, 3, committed=3)
        log.checkpoint()
        folders.ends.note()
        log.close()
        disk.names = dict(reversed(disk.names.items()))  # the system removes them in any order
        disk.crash_at = disk.steps + step
        try:
            folders.remove("s", "i", 0)
        except Crashed:
            folders = folders_on(disk.after_kill())
            assert [log.state.log_end_offset for log in opened_in(folders)] in ([], [6]), step
        else:
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("content", [b"", b"nonsense", b'{"format_version":1,"ends":[["i",0,7]]} 00000000'])
def test_a_damaged_file_says_nothing(content: bytes) -> None:
    disk = SimDisk()
    disk.makedirs("/data")
    disk.replace_file("/data/ends", content)
    assert folders_on(disk).ends.known(AT) == 0


@pytest.mark.parametrize("call", ["read_file", "sync_dir"])
def test_a_file_that_cannot_be_read_for_now_is_named(call: str) -> None:
    """An error of a read names no file."""
    disk = SimDisk()
    disk.makedirs("/data")
    disk.replace_file("/data/ends", b"")
    disk.fail(call, errno.EIO)
    with pytest.raises(StorageFailed, match="read /data/ends: Input/output error"):
        folders_on(disk)


def test_nothing_is_written_where_nothing_is_new() -> None:
    disk = SimDisk()
    folders = folders_on(disk)
    log = folders.create(INFO, 0)
    grow(log, 1, 1, committed=1)
    log.checkpoint()
    folders.ends.note()
    steps = disk.steps
    folders.ends.note()
    log.follow(2)
    folders.ends.forget(("other", 0))
    assert disk.steps == steps


@pytest.mark.parametrize("act", ["is cut", "begins anew"])
def test_on_a_disk_without_a_free_byte_a_log_takes_records_back_all_the_same(act: str) -> None:
    """The rule (`spare_files.B1`): it makes room by that. Its end was lowered before, in a file that found none."""
    disk = MovingDisk()
    folders = folders_on(disk)
    log = folders.create(INFO, 0)
    grow(log, 1, 6, committed=4)
    log.checkpoint()
    folders.ends.note()
    log.follow(2)
    disk.spares, disk.bytes_max = [4 << 10] * 4, disk.used_bytes
    if act == "is cut":
        log.truncate(6)
    else:
        log.reset(6)
    assert log.state.log_end_offset == folders.ends.known(AT) == 6
