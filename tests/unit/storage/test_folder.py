"""The data folder: one owner, one process at a time, and an error that says which rule was broken."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.api.errors import (
    CorruptLog,
    DiskFull,
    FolderInUse,
    FolderNotAllowed,
    StorageFailed,
    UnknownFormatVersion,
    WrongFolder,
)
from broker.storage.folder import DataFolder, partition_folder

ROOT = Path(__file__).parents[3]
HOLD = """
import sys
from broker.storage import DataFolder
with DataFolder.open(sys.argv[1], broker_id="b0"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_new_folder_is_made_and_founds_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with DataFolder.open(path, broker_id="b0") as folder:
        assert folder.path == str(path)
        cluster_id = folder.cluster_id
    assert len(cluster_id) == 32
    owner = json.loads((path / "broker.json").read_text())
    assert owner == {"format_version": 1, "cluster_id": cluster_id, "broker_id": "b0"}
    with DataFolder.open(str(path), broker_id="b0") as again:
        assert again.cluster_id == cluster_id


@pytest.mark.parametrize("names", [["broker-0"], ["b1", "b2"]])
def test_a_folder_above_those_of_brokers_founds_no_broker_beside_them(tmp_path: Path, names: list[str]) -> None:
    """Somebody named the folder of `up`, or of several brokers: an empty one would look as if all was lost."""
    for name in names:
        DataFolder.open(tmp_path / name, broker_id=name).close()
    with pytest.raises(WrongFolder, match=f"set data_dir to {tmp_path / names[0]}"):
        DataFolder.open(tmp_path, broker_id="b0")
    assert sorted(path.name for path in tmp_path.iterdir()) == names, "nothing was made there"


def test_a_broker_goes_on_although_another_was_founded_in_its_folder(tmp_path: Path) -> None:
    """As `up` did before it looked: the records are in the upper folder."""
    DataFolder.open(tmp_path, broker_id="b0").close()
    DataFolder.open(tmp_path / "broker-0", broker_id="broker-0").close()
    with DataFolder.open(tmp_path, broker_id="b0"):
        pass


def test_folder_joins_the_cluster_that_is_named(tmp_path: Path) -> None:
    DataFolder.open(tmp_path, broker_id="b0", cluster_id="c7").close()
    with DataFolder.open(tmp_path, broker_id="b0") as folder:
        assert folder.cluster_id == "c7"
    with pytest.raises(WrongFolder, match="belongs to cluster_id 'c7', not 'c8'"):
        DataFolder.open(tmp_path, broker_id="b0", cluster_id="c8")


def test_boot_id_is_the_same_until_the_machine_starts_again(tmp_path: Path) -> None:
    with DataFolder.open(tmp_path, broker_id="b0") as folder:
        assert folder.boot_id() == folder.boot_id()
        assert len(folder.boot_id()) in (0, 36)


def test_folder_of_another_broker_is_refused(tmp_path: Path) -> None:
    DataFolder.open(tmp_path, broker_id="b0").close()
    for _ in range(2):  # and the lock was given back
        with pytest.raises(WrongFolder, match="belongs to broker_id 'b0', not 'b1'") as caught:
            DataFolder.open(tmp_path, broker_id="b1")
        assert (caught.value.found, caught.value.expected, caught.value.path) == ("b0", "b1", str(tmp_path))


def test_folder_of_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text('{"format_version": 3}')
    with pytest.raises(UnknownFormatVersion, match="has format version 3, this release reads 1"):
        DataFolder.open(tmp_path, broker_id="b0")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format_version": 1}'])
def test_damaged_owner_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "broker.json").write_text(text)
    with pytest.raises(CorruptLog, match=r"broker\.json is damaged"):
        DataFolder.open(tmp_path, broker_id="b0")


def test_streams_without_an_owner_are_not_adopted(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    with pytest.raises(WrongFolder, match=r"holds streams but no broker\.json"):
        DataFolder.open(tmp_path, broker_id="b0")


@pytest.mark.parametrize("below", ["", "x"])
def test_path_that_is_a_file_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WrongFolder, match="is not a folder"):
        DataFolder.open(tmp_path / "file" / below, broker_id="b0")


@pytest.mark.process
def test_folder_in_use_names_the_process_and_is_free_once_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(FolderInUse, match=f"is in use by process {holder.pid}") as caught:
                DataFolder.open(tmp_path, broker_id="b0")
            assert caught.value.pid == holder.pid
        finally:
            holder.send_signal(signal.SIGKILL)
    DataFolder.open(tmp_path, broker_id="b0").close()


def test_folder_in_use_by_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with DataFolder.open(tmp_path, broker_id="b0"), pytest.raises(FolderInUse):
        DataFolder.open(tmp_path, broker_id="b0")
    DataFolder.open(tmp_path, broker_id="b0").close()


@contextmanager
def without_privileges() -> Iterator[None]:
    """As somebody who is not root, since root may do anything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_folder_without_permission_is_refused_and_named(mode: int) -> None:
    with tempfile.TemporaryDirectory() as name:  # not below pytest's folder, which others may not enter at all
        data = Path(name) / "data"
        data.mkdir()
        if os.geteuid() == 0:
            for path in (name, data):
                os.chown(path, 65_534, 65_534)
        data.chmod(mode)
        for path in (data, data / "new"):
            with without_privileges(), pytest.raises(FolderNotAllowed, match=f"no permission for {data}"):
                DataFolder.open(path, broker_id="b0")
        data.chmod(0o700)
        with without_privileges():
            DataFolder.open(data, broker_id="b0").close()


@pytest.mark.parametrize(
    "number,expected", [(28, DiskFull), (5, StorageFailed), (30, FolderNotAllowed)], ids=["full", "broken", "read-only"]
)
def test_disk_that_refuses_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(expected, match=str(tmp_path)):
        DataFolder.open(tmp_path, broker_id="b0")
    monkeypatch.undo()
    DataFolder.open(tmp_path, broker_id="b0").close()


def test_on_a_full_disk_no_folder_is_founded_and_one_that_is_there_is_locked(tmp_path: Path) -> None:
    """`broker.json` needs room, once. The number in `lock` is a courtesy: the lock holds without it."""
    new, there = tmp_path / "new", tmp_path / "there"
    new.mkdir()
    (new / "broker.json.tmp").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=f"{new}"):
        DataFolder.open(new, broker_id="b0")
    assert [path.name for path in new.iterdir()] == ["lock"]
    DataFolder.open(there, broker_id="b0").close()
    (there / "lock").unlink()
    (there / "lock").symlink_to("/dev/full")
    with DataFolder.open(there, broker_id="b0"), pytest.raises(FolderInUse):
        DataFolder.open(there, broker_id="b0")
    DataFolder.open(new, broker_id="b0").close()


@pytest.mark.parametrize("part", ["..", ".", "", "../../..", "/etc", "a/b", "a\0", "\n", "a b", ".aside", "x" * 300])
def test_no_name_of_the_catalog_leads_out_of_the_folder(part: str) -> None:
    """The second wall: also for a name that came into the catalog before it checked names."""
    for stream, incarnation in ((part, "i"), ("s", part)):
        with pytest.raises(OSError, match="leaves the data folder"):
            partition_folder("/d/streams", stream, incarnation)
        with pytest.raises(OSError, match="leaves the data folder"):
            partition_folder("/d/streams", stream, incarnation, 0)


def test_names_of_streams_and_incarnations_are_parts_of_paths() -> None:
    assert partition_folder("/d/streams", "__offsets", "0" * 32, 7) == f"/d/streams/__offsets/{'0' * 32}/7"
    assert partition_folder("/d/streams", "orders.eu-1", "i1") == "/d/streams/orders.eu-1/i1"


def test_nothing_else_makes_a_path_of_an_incarnation() -> None:
    """Those that are named here list what is on the disk."""
    listed = {
        "broker/storage/folder.py": 1,
        "broker/storage/encrypted/in_use.py": 2,
        "broker/node/folders.py": 2,
        "broker/control/orphans.py": 2,
        "broker/storage/inspect/places.py": 1,  # a label
    }
    root = Path(__file__).parents[3]
    found = {}
    for path in (root / "broker").rglob("*.py"):
        count = len(re.findall(r"/\{[\w.]*incarnation\}|/ *(?:\w+\.)?incarnation\b", path.read_text()))
        if count:
            found[str(path.relative_to(root))] = count
    assert found == listed
