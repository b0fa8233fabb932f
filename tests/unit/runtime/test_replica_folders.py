"""Folders of replicas: two partitions of a stream have two folders in common. They may be removed at the same time, and
are synced once, not with each of ten thousand partitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

from broker.api.stream import settings_from
from broker.common.elapsed import elapsed_us
from broker.metadata.catalog import StreamInfo
from broker.node.folders import Folders
from broker.node.log_ends import LogEnds
from broker.storage.disk import OsDisk
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity, LogSettings


class BetweenDisk(OsDisk):
    """Before the first call of `sync_dir` for a path that ends so, something else happens."""

    def __init__(self, ending: str) -> None:
        super().__init__()
        self.ending = ending
        self.then: Callable[[], None] | None = None

    def sync_dir(self, path: str) -> None:
        if path.endswith(self.ending) and self.then is not None:
            then, self.then = self.then, None
            then()
        super().sync_dir(path)


class CountingDisk(BetweenDisk):
    """Notes which folders were synced."""

    def __init__(self, ending: str = "nowhere") -> None:
        super().__init__(ending)
        self.synced: list[str] = []

    def sync_dir(self, path: str) -> None:
        self.synced.append(path)
        super().sync_dir(path)

    def above(self) -> set[str]:
        """Names of the folders above those of partitions that were synced since somebody last asked."""
        synced, self.synced = self.synced, []
        return {name for path in synced if (name := PurePath(path).name) in ("orders", "streams")}


@pytest.mark.parametrize("ending", ["/orders/i1", "/orders"])
def test_two_partitions_are_removed_in_turns_that_overlap(tmp_path: Path, ending: str) -> None:
    disk, root = BetweenDisk(ending), str(tmp_path / "streams")
    folders = Folders(disk, root, "c", "boot", LogSettings(), LogEnds(disk, f"{tmp_path}/ends"), elapsed_us)
    for number in (0, 1):
        identity = LogIdentity(cluster_id="c", stream="orders", incarnation="i1", partition=number)
        folder = folders.path("orders", "i1", number)
        PartitionLog.create(disk, folder, identity, LogSettings(), boot_id="boot", now_us=0).close(clean=True)
    disk.then = lambda: folders.remove("orders", "i1", 1)
    folders.remove("orders", "i1", 0)
    assert disk.then is None
    assert list((tmp_path / "streams").iterdir()) == []


INFO = StreamInfo(name="orders", incarnation="i1", created_us=0, settings=settings_from({}))


def folders_at(disk: OsDisk, path: Path) -> Folders:
    return Folders(disk, f"{path}/streams", "c", "boot", LogSettings(), LogEnds(disk, f"{path}/ends"), elapsed_us)


def made(folders: Folders, number: int) -> None:
    folders.create(INFO, number).close(clean=True)


def test_what_partitions_have_in_common_is_synced_once_and_again_after_a_removal(tmp_path: Path) -> None:
    disk = CountingDisk()
    folders = folders_at(disk, tmp_path)
    made(folders, 0)
    assert disk.above() == {"orders", "streams"}
    made(folders, 1)
    made(folders, 2)
    assert disk.above() == set()
    folders.remove("orders", "i1", 1)
    disk.above()
    made(folders, 1)
    assert disk.above() == {"orders", "streams"}


def test_a_removal_amid_the_sync_has_the_next_partition_sync_all(tmp_path: Path) -> None:
    disk = CountingDisk("/streams")
    folders = folders_at(disk, tmp_path)
    (tmp_path / "streams/orders/i1").mkdir(parents=True)
    disk.then = lambda: folders.remove("orders", "i1", 7)
    made(folders, 0)
    assert disk.then is None
    disk.above()
    made(folders, 1)
    assert disk.above() == {"orders", "streams"}


def test_a_folder_is_made_while_one_of_another_incarnation_is_removed(tmp_path: Path) -> None:
    """A stream is made again at once under the name of one that was just deleted: each of that one's partitions removes
    the folder of the name if it is empty. Who made the stream was told that the disk had failed."""
    disk = BetweenDisk("/streams")
    folders = folders_at(disk, tmp_path)
    (tmp_path / "streams").mkdir()
    disk.then = lambda: folders.remove("orders", "i0", 7)
    made(folders, 0)
    assert disk.then is None
    assert folders.holds("orders", "i1", 0)
    folders.take_back("orders", "i1", 0)
    assert list((tmp_path / "streams").iterdir()) == []
    folders.take_back("orders", "i1", 0)  # or what is to be taken back was never made
