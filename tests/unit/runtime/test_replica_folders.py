"""Folders of replicas that are removed at the same time: two partitions of a stream have two folders in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.runtime.cluster.replicas.folders import Folders
from broker.runtime.cluster.replicas.log_ends import LogEnds
from broker.runtime.elapsed import elapsed_us
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
