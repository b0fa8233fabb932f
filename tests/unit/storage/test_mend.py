"""Goal: repair makes a damaged log whole again as far as that can be, loses nothing that was there, deletes nothing.

Method: the damaged logs of the inspection's tests, repaired on the disk that loses power at any step. What was there
before is looked for afterwards: in its place, or aside.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.api.schema import SCHEMA_BYTES
from broker.storage.inspect.repair import Mending, mend
from broker.storage.segments.checkpoint import LogSettings
from tests.support.logs import FOLDER, IDENTITY, check_log, commit, create_log, open_log, row_batch, verified_records
from tests.support.simdisk import MODES, Crashed, SimDisk

SMALL = LogSettings(segment_bytes=8_000)
ASIDE = "/data/moved-aside/now"
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
    log.sync()
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


def _mend(disk: SimDisk, *, dry_run: bool = False) -> Mending:
    return mend(disk, FOLDER, ASIDE, now_us=50, expected=IDENTITY, dry_run=dry_run)


def _check_nothing_is_gone(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Every byte that was there is in its place, or behind it in a file aside."""
    aside: dict[str, list[tuple[int, bytes]]] = {}
    for path, content in after.items():
        if path.startswith(ASIDE):
            name = path.rpartition("/")[2].partition("~")[0]
            stem, _, position = name.rpartition(".")
            is_cut = position.isdigit()
            aside.setdefault(stem if is_cut else name, []).append((int(position) if is_cut else 0, content))
    for path, content in before.items():
        now = after.get(path, b"")
        if now[: len(content)] == content:
            continue
        kept = aside.get(path.rpartition("/")[2], [])
        assert any(now[:at] + data == content or (at == 0 and data == content) for at, data in kept), path


def _check_whole(disk: SimDisk, expected: set[int]) -> None:
    log = open_log(disk.after_crash("kept"), settings=SMALL, boot_id="next")
    log.advance_high_watermark(log.log_end_offset)
    assert {record[0] for record in verified_records(log)} == expected


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_mended_and_what_was_there_is_aside(name: str) -> None:
    disk = _damaged(name)
    before = _contents(disk)
    mending = _mend(disk)
    assert mending.refused is None
    assert mending.deeds
    assert mending.after is not None
    assert [f for f in mending.after.findings if not f.is_known] == []
    assert bool(mending.after.of_kind("lost_range")) == (name in LOSING)
    _check_nothing_is_gone(before, _contents(disk))
    lost = {o for f in mending.after.of_kind("lost_range") for o in range(f.first_offset or 0, f.next_offset or 0)}
    _check_whole(disk, set(range(56)) - lost)
    assert disk.open_files == 0


@pytest.mark.parametrize("name", [name for name in DAMAGES if name not in LOSING])
def test_what_is_derived_is_what_it_was(name: str) -> None:
    """All that is asked of a log that nobody damaged holds afterwards."""
    disk = _damaged(name)
    _mend(disk)
    log = open_log(disk, settings=SMALL)
    check_log(log, disk)
    assert log.log_end_offset == 56
    assert [log.epoch_of(offset) for offset in (0, 25, 50)] == [1, 2, 3]


def test_a_log_that_is_well_is_left_alone_and_so_is_a_mended_one() -> None:
    disk = _made()
    before = _contents(disk)
    mending = _mend(disk)
    assert (mending.deeds, mending.after, mending.before.findings) == ([], None, [])
    assert (_contents(disk), disk.steps) == (before, 0)
    for name in LOSING:
        DAMAGES[name](disk)
    _mend(disk)
    before, steps = _contents(disk), disk.steps
    again = _mend(disk)
    assert (again.deeds, again.after) == ([], None)
    assert (_contents(disk), disk.steps) == (before, steps)


def test_a_dry_run_says_the_same_and_changes_nothing() -> None:
    for name in DAMAGES:
        disk = _damaged(name)
        before = _contents(disk)
        dry = _mend(disk, dry_run=True)
        assert (_contents(disk), disk.steps) == (before, 0), name
        assert disk.open_files == 0
        done = _mend(disk)
        assert [replace(deed, aside=None) for deed in done.deeds] == dry.deeds, name
        assert dry.after is not None
        assert done.after is not None
        assert dry.after.findings == done.after.findings


def test_a_folder_of_another_partition_is_left_alone() -> None:
    disk = _damaged("torn tail")
    before = _contents(disk)
    mending = mend(disk, FOLDER, ASIDE, now_us=0, expected=replace(IDENTITY, stream="clicks"))
    assert mending.refused is not None
    assert "clicks" in mending.refused
    assert _contents(disk) == before


def test_several_repairs_may_go_aside_into_the_same_folder() -> None:
    disk = _damaged("torn tail")
    _mend(disk)
    _tail(disk)
    before = _contents(disk)
    _mend(disk)
    assert before.items() <= {**_contents(disk), _segments(disk)[-1]: before[_segments(disk)[-1]]}.items()
    names = [path for path in sorted(disk.names) if path.startswith(ASIDE) and ".arrows." in path]
    assert len(names) == 2
    assert names[1] == f"{names[0]}~1"
    assert bytes(_content(disk, names[0])) == bytes(_content(disk, names[1])) == b"torn" * 50


def test_a_full_disk_stops_a_repair_before_anything_is_taken_away() -> None:
    disk = _damaged("torn tail")
    before = _contents(disk)
    disk.fail("write", errno.ENOSPC, path=ASIDE)
    with pytest.raises(Exception, match="space"):
        _mend(disk)
    assert before.items() <= _contents(disk).items()
    disk.heal()
    assert _mend(disk).after is not None
    _check_whole(disk, set(range(56)))


@pytest.mark.parametrize("seed", range(6))
def test_power_may_go_at_any_step_of_a_repair(seed: int) -> None:
    """A repair that was cut short has lost nothing, in place or aside, and a second one ends where one would have."""
    rng = random.Random(seed)
    names = rng.sample(sorted(DAMAGES), 3)
    whole = _damaged(*names)
    before = _contents(whole)
    reference = _mend(whole)
    assert reference.after is not None
    total = whole.steps
    assert total > 0
    lost = {o for f in reference.after.of_kind("lost_range") for o in range(f.first_offset or 0, f.next_offset or 0)}
    expected = set(range(reference.after.log_end_offset)) - lost
    for step in range(1, total + 1):
        disk = _damaged(*names).after_crash("lost", seed=seed, crash_at=step)
        with pytest.raises(Crashed):
            _mend(disk)
        disk = disk.after_crash(rng.choice(MODES), seed=step)
        _check_nothing_is_gone(before, _contents(disk))
        second = _mend(disk)
        _check_nothing_is_gone(before, _contents(disk))
        assert second.refused is None
        found = second.after or second.before
        assert [f for f in found.findings if not f.is_known] == [], (step, names)
        _check_whole(disk, expected)
