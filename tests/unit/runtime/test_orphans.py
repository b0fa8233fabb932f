"""Goal: the remains of a killed deletion are removed; folders for which nobody can vouch are not."""

from __future__ import annotations

import errno
import logging

import pytest

from broker.api.errors import CorruptLog
from broker.control.orphans import remove_folder, remove_orphans, require_catalog
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from tests.support.encrypted_logs import encrypted
from tests.support.logs import commit, row_batch
from tests.support.simdisk import Crashed, SimDisk

ROOT = "/data/streams"
SETTINGS = LogSettings()


def partition(
    disk: SimDisk,
    stream: str,
    incarnation: str,
    number: int = 0,
    other: dict[str, str] | None = None,
    *,
    records: int = 1,
    settings: LogSettings = SETTINGS,
) -> str:
    """A log in the folder of a partition; `other`: its identity says something else."""
    folder = f"{ROOT}/{stream}/{incarnation}/{number}"
    values = {"cluster_id": "c", "stream": stream, "incarnation": incarnation, **(other or {})}
    log = PartitionLog.create(disk, folder, LogIdentity(partition=number, **values), settings, now_us=0)
    for _ in range(records):
        log.append([row_batch([b"v"])], leader_epoch=0, now_us=0)
        commit(log)
    log.close()
    return folder


def run(disk: SimDisk, *, known: set[tuple[str, str]], deleted: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return remove_orphans(disk, ROOT, cluster_id="c", known=known, deleted=deleted)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


def test_a_catalog_that_is_missing_beside_folders_of_streams_stops_the_start(disk: SimDisk) -> None:
    """An empty one would give their leader epochs and producers' ids out again."""
    require_catalog(disk, "/data/catalog.log", ROOT)
    partition(disk, "s", "i1")
    with pytest.raises(CorruptLog, match=r"^/data/catalog\.log is missing, and /data/streams holds 1 streams"):
        require_catalog(disk, "/data/catalog.log", ROOT)
    disk.replace_file("/data/catalog.log", b"anything")
    require_catalog(disk, "/data/catalog.log", ROOT)


def test_a_deletion_that_was_cut_short_is_finished(disk: SimDisk) -> None:
    """All partitions; the stream that was made again under the name stays."""
    gone = [partition(disk, "s", "old", number) for number in range(2)]
    kept = partition(disk, "s", "new")
    assert run(disk, known={("s", "new")}, deleted=[("s", "old"), ("t", "gone")]) == [("s", "old"), ("t", "gone")]
    assert not any(disk.exists(f"{folder}/partition.json") for folder in gone)
    assert disk.exists(f"{kept}/partition.json")


def test_a_removal_that_was_cut_short_itself_is_finished(disk: SimDisk) -> None:
    first, second = (partition(disk, "s", "old", number) for number in range(2))
    for name in disk.listdir(first):
        disk.unlink(f"{first}/{name}")
    run(disk, known=set(), deleted=[("s", "old")])
    assert not disk.exists(f"{second}/partition.json")


@pytest.mark.parametrize("other", [{"cluster_id": "another"}, {"stream": "t"}, {"incarnation": "x"}])
def test_a_folder_that_says_it_is_something_else_stays(
    disk: SimDisk, other: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = partition(disk, "s", "old", other=other)
    with caplog.at_level(logging.WARNING):
        assert run(disk, known=set(), deleted=[("s", "old")]) == [], "its deletion is still to be remembered"
    assert disk.exists(f"{folder}/partition.json")
    assert f"{ROOT}/s/old" in caplog.text


def test_a_folder_whose_deletion_nobody_remembers_stays_and_is_named(
    disk: SimDisk, caplog: pytest.LogCaptureFixture
) -> None:
    folder = partition(disk, "s", "unknown")
    with caplog.at_level(logging.WARNING):
        run(disk, known=set(), deleted=[])
    assert disk.exists(f"{folder}/partition.json")
    assert "stream.folders_unknown count=1" in caplog.text


def test_known_streams_and_an_empty_root_say_nothing(disk: SimDisk, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        run(disk, known=set(), deleted=[])
        partition(disk, "s", "i")
        run(disk, known={("s", "i")}, deleted=[])
    assert caplog.text == ""


def test_the_folder_of_a_name_goes_with_the_last_incarnation_in_it(disk: SimDisk) -> None:
    partition(disk, "s", "one")
    partition(disk, "s", "two")
    remove_folder(disk, ROOT, "s", "one")
    assert disk.listdir(f"{ROOT}/s") == ["two"]
    remove_folder(disk, ROOT, "s", "two")
    assert disk.listdir(ROOT) == []
    remove_folder(disk, ROOT, "s", "two")
    disk.makedirs(f"{ROOT}/left")  # by an earlier release, or a kill
    run(disk, known=set(), deleted=[])
    assert disk.listdir(ROOT) == []


@pytest.mark.parametrize("call", ["listdir", "remove_tree", "remove_folder", "unlink", "sync_dir"])
def test_a_deletion_is_remembered_while_its_folder_may_come_back(disk: SimDisk, call: str) -> None:
    """The rule holds whichever call the disk refuses. The rest is removed then, also without `partition.json`, which
    went first."""
    gone = ("s", "old")
    folder = f"{ROOT}/s/old"
    partition(disk, *gone)
    partition(disk, "kept", "i")
    for after in range(12):
        found = disk.after_kill()
        found.fail(call, errno.EIO, after=after)
        if gone in run(found, known={("kept", "i")}, deleted=[gone]):
            assert not found.exists(folder)
            assert found.calls["sync_dir"] > 1
        found.heal()
        assert run(found, known={("kept", "i")}, deleted=[gone]) == [gone]
        assert found.listdir(ROOT) == ["kept"]


@pytest.mark.parametrize("settings", [LogSettings(), LogSettings(is_compacted=True), encrypted(LogSettings())])
def test_what_a_creation_leaves_that_was_killed_goes(settings: LogSettings) -> None:
    """At each step, by a kill and by a power cut. A second partition may not be there yet."""
    step, is_done = 0, False
    while not is_done:
        step += 1
        disk = SimDisk(crash_at=step)
        try:
            for number in range(2):
                partition(disk, "s", "i", number, records=0, settings=settings)
            is_done = True
        except Crashed:
            pass
        for found in (disk.after_kill(), disk.after_crash("kept"), disk.after_crash("lost")):
            run(found, known=set(), deleted=[])
            assert not found.exists(ROOT) or found.listdir(ROOT) == [], step
    assert step > 5


def test_what_has_or_had_a_record_stays(disk: SimDisk, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that was let go, and one beside empty partitions."""
    partition(disk, "had", "i", records=0)
    had = PartitionLog.open(disk, f"{ROOT}/had/i/0", LogSettings(), boot_id="", now_us=0)
    had.reset(5)
    had.close()
    partition(disk, "one", "i", 0, records=0)
    partition(disk, "one", "i", 1)
    partition(disk, "another", "i", records=0, other={"cluster_id": "another"})
    damaged = partition(disk, "damaged", "i", records=0)
    disk.replace_file(f"{damaged}/checkpoint", b"{}")
    more = partition(disk, "more", "i", records=0)
    disk.replace_file(f"{more}/of-a-later-release", b"")
    disk.makedirs(f"{ROOT}/file")
    disk.replace_file(f"{ROOT}/file/notes.txt", b"")
    disk.makedirs(f"{ROOT}/folder/i/notes")
    run(disk, known=set(), deleted=[])
    assert set(disk.listdir(ROOT)) == {"had", "one", "another", "damaged", "more", "file", "folder"}
    assert "stream.folders_unknown count=7" in caplog.text
