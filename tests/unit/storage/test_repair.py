"""Goal: repair makes a damaged log whole again as far as that can be, and takes nothing away but what was never
committed or can be derived.

Method: the damaged logs of the inspection's tests, repaired on the disk that loses power at any step. Each batch that
was whole before is looked for afterwards.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from broker.api.errors import DiskFull
from broker.api.schema import SCHEMA_BYTES
from broker.storage.inspect.repair import RepairReport, repair
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.segments.scan import scan
from tests.support.effort import first_short
from tests.support.logs import FOLDER, IDENTITY, check_log, commit, create_log, open_log, row_batch, verified_records
from tests.support.simdisk import MODES, Crashed, SimDisk

pytestmark = pytest.mark.slow

SMALL = LogSettings(segment_bytes=8_000)
FIRST = f"{FOLDER}/{0:020d}"


def _made() -> SimDisk:
    """Several segments of a killed process, all synced, the last with a batch behind the checkpoint."""
    disk = SimDisk()
    log = create_log(disk, settings=SMALL)
    for number in range(11):
        log.append([row_batch([b"x" * 300] * 3), row_batch([b"y"] * 2)], leader_epoch=1 + number // 5, now_us=number)
        commit(log)
    log.checkpoint()
    log.append([row_batch([b"z" * 10])], leader_epoch=3, now_us=20)
    log.syncer.sync()
    return disk.after_crash("kept")


def _content(disk: SimDisk, path: str) -> bytearray:
    inode = disk.names[path]
    inode.durable = inode.content
    return inode.content


def _segments(disk: SimDisk) -> list[str]:
    return sorted(path for path in disk.names if path.endswith(".arrows") and path.startswith(FOLDER))


def _flip_sealed(disk: SimDisk) -> None:
    _content(disk, _segments(disk)[1])[len(SCHEMA_BYTES) + 1_000] ^= 1


def _flip_active(disk: SimDisk) -> None:
    _content(disk, _segments(disk)[-1])[len(SCHEMA_BYTES) + 1_000] ^= 1


def _tail(disk: SimDisk) -> None:
    _content(disk, _segments(disk)[-1]).extend(b"torn" * 50)


def _index(disk: SimDisk) -> None:
    _content(disk, f"{FIRST}.index")[33] ^= 1


def _no_index(disk: SimDisk) -> None:
    disk.unlink(f"{FIRST}.index")
    disk.sync_dir(FOLDER)


def _active_index(disk: SimDisk) -> None:
    _content(disk, _segments(disk)[-1].replace(".arrows", ".index"))[3] ^= 1


def _checkpoint(disk: SimDisk) -> None:
    _content(disk, f"{FOLDER}/checkpoint")[12] ^= 1


def _epochs(disk: SimDisk) -> None:
    _content(disk, f"{FOLDER}/epochs")[12] ^= 1


def _missing(disk: SimDisk) -> None:
    path = _segments(disk)[1]
    disk.unlink(path)
    disk.unlink(path.replace(".arrows", ".index"))
    disk.sync_dir(FOLDER)


DAMAGES: dict[str, Callable[[SimDisk], None]] = {
    "torn tail": _tail,
    "index": _index,
    "index missing": _no_index,
    "index of the active segment": _active_index,
    "checkpoint": _checkpoint,
    "epochs": _epochs,
    "sealed segment": _flip_sealed,
    "active segment": _flip_active,
    "segment missing": _missing,
}
LOSING = ("sealed segment", "active segment", "segment missing")


def _damaged(*names: str) -> SimDisk:
    disk = _made()
    for name in names:
        DAMAGES[name](disk)
    return disk.after_crash("lost")


def _contents(disk: SimDisk) -> dict[str, bytes]:
    return {path: bytes(inode.content) for path, inode in disk.names.items()}


def _repair(disk: SimDisk, *, dry_run: bool = False) -> RepairReport:
    return repair(disk, FOLDER, now_us=50, expected=IDENTITY, dry_run=dry_run)


def _batches(contents: dict[str, bytes]) -> set[tuple[str, int, int]]:
    """Each batch that is whole: file, position, CRC."""
    found: set[tuple[str, int, int]] = set()
    for path, content in contents.items():
        if path.endswith(".arrows"):
            disk = SimDisk()
            disk.makedirs(FOLDER)
            disk.replace_file(path, content)
            file = disk.open(path, readonly=True)
            base = int(path.rpartition("/")[2].partition(".")[0])
            batches = scan(file, start=len(SCHEMA_BYTES), first_offset=base, where=path).batches
            file.close()
            found |= {(path, int(batch["position"]), int(batch["crc"])) for batch in batches}
    return found


def _check_whole(disk: SimDisk, expected: set[int]) -> None:
    log = open_log(disk.after_crash("kept"), settings=SMALL, boot_id="next")
    log.state.advance_high_watermark(log.state.log_end_offset)
    assert {record[0] for record in verified_records(log)} == expected


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_repaired_and_each_whole_batch_is_where_it_was(name: str) -> None:
    disk = _damaged(name)
    before = _contents(disk)
    report = _repair(disk)
    assert report.refused is None
    assert report.actions
    assert report.after is not None
    assert [f for f in report.after.findings if not f.is_known] == []
    assert bool(report.after.of_kind("lost_range")) == (name in LOSING)
    assert _batches(before) <= _batches(_contents(disk))
    lost = {o for f in report.after.of_kind("lost_range") for o in range(f.first_offset or 0, f.next_offset or 0)}
    _check_whole(disk, set(range(56)) - lost)
    assert disk.open_files == 0


@pytest.mark.parametrize("name", [name for name in DAMAGES if name not in LOSING])
def test_what_is_derived_is_what_it_was(name: str) -> None:
    """All that is asked of a log that nobody damaged holds afterwards."""
    disk = _damaged(name)
    _repair(disk)
    log = open_log(disk, settings=SMALL)
    check_log(log, disk)
    assert log.state.log_end_offset == 56
    assert [log.epochs.epoch_of(offset) for offset in (0, 25, 50)] == [1, 2, 3]


def test_a_log_that_is_well_is_left_alone_and_so_is_a_repaired_one() -> None:
    disk = _made()
    before = _contents(disk)
    report = _repair(disk)
    assert (report.actions, report.after, report.before.findings) == ([], None, [])
    assert (_contents(disk), disk.steps) == (before, 0)
    for name in LOSING:
        DAMAGES[name](disk)
    _repair(disk)
    before, steps = _contents(disk), disk.steps
    again = _repair(disk)
    assert (again.actions, again.after) == ([], None)
    assert (_contents(disk), disk.steps) == (before, steps)


def test_a_dry_run_says_the_same_and_changes_nothing() -> None:
    for name in DAMAGES:
        disk = _damaged(name)
        before = _contents(disk)
        dry = _repair(disk, dry_run=True)
        assert (_contents(disk), disk.steps) == (before, 0), name
        assert disk.open_files == 0
        assert dry.after is None
        assert _repair(disk).actions == dry.actions != [], name


def test_what_a_report_says_was_done_was_done() -> None:
    disk = _damaged("torn tail", "index missing", "epochs", "sealed segment")
    last, lost = _segments(disk)[-1], _segments(disk)[1]
    size = disk.size(last)
    report = _repair(disk)
    done = {(action.what, action.path): action for action in report.actions}
    cut = done["cut", last]
    assert (cut.position, cut.bytes) == (disk.size(last), size - disk.size(last)) == (size - 200, 200)
    assert ("rebuilt", f"{FIRST}.index") in done
    assert ("rebuilt", f"{FOLDER}/epochs") in done
    assert all(disk.exists(path) for what, path in done if what == "rebuilt")
    noted = done["noted", lost]
    assert noted.first_offset is not None
    assert open_log(disk, settings=SMALL).state.lost_ranges == ((noted.first_offset, noted.next_offset),)


def test_a_folder_of_another_partition_is_left_alone() -> None:
    disk = _damaged("torn tail")
    before = _contents(disk)
    report = repair(disk, FOLDER, now_us=0, expected=replace(IDENTITY, stream="clicks"))
    assert report.refused is not None
    assert "clicks" in report.refused
    assert _contents(disk) == before


def test_a_full_disk_stops_a_repair_before_a_batch_is_gone() -> None:
    disk = _damaged("torn tail", "index")
    before = _contents(disk)
    for call in ("write", "open"):
        disk.fail(call, errno.ENOSPC)
        with suppress(DiskFull, OSError):
            _repair(disk)
        disk.heal()
        assert _batches(before) <= _batches(_contents(disk))
    found = _repair(disk)
    assert (found.after or found.before).findings == []
    _check_whole(disk, set(range(56)))


@pytest.mark.parametrize("seed", first_short(range(6), count=2))
def test_power_may_go_at_any_step_of_a_repair(seed: int) -> None:
    """A repair that was cut short has lost nothing, in place or aside, and a second one ends where one would have."""
    rng = random.Random(seed)
    names = rng.sample(sorted(DAMAGES), 3)
    whole = _damaged(*names)
    before = _contents(whole)
    reference = _repair(whole)
    assert reference.after is not None
    total = whole.steps
    assert total > 0
    lost = {o for f in reference.after.of_kind("lost_range") for o in range(f.first_offset or 0, f.next_offset or 0)}
    expected = set(range(reference.after.log_end_offset)) - lost
    for step in range(1, total + 1):
        disk = _damaged(*names).after_crash("lost", seed=seed, crash_at=step)
        with pytest.raises(Crashed):
            _repair(disk)
        disk = disk.after_crash(rng.choice(MODES), seed=step)
        assert _batches(before) <= _batches(_contents(disk))
        second = _repair(disk)
        assert _batches(before) <= _batches(_contents(disk))
        assert second.refused is None
        found = second.after or second.before
        assert [f for f in found.findings if not f.is_known] == [], (step, names)
        _check_whole(disk, expected)
