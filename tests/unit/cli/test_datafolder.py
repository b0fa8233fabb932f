"""Goal: the record of an `up` survives, and a damaged one counts as none.

Method: real folders.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from broker.api.errors import DiskFull, FolderInUse, FolderNotAllowed, StorageFailed, WrongFolder
from broker.cli.local.datafolder import LOG_BYTES_KEPT, Record, UpFolder, copy_notice
from broker.cli.local.processes import ProcessIdentity
from broker.storage import DataFolder


def _record() -> Record:
    me = ProcessIdentity.of(os.getpid())
    assert me is not None
    gone = ProcessIdentity(pid=me.pid, started_ticks=1, boot_id=me.boot_id, command=me.command)
    return Record(
        http="127.0.0.1:1",
        grpc="127.0.0.1:2",
        nats_url="nats://127.0.0.1:3",
        nats_embedded=True,
        mode="detached",
        processes={"nats": me, "broker-0": gone},
    )


def test_a_disk_that_refuses_the_record_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    folder = UpFolder(str(tmp_path / "data"))
    folder.prepare()
    folder.record_path.mkdir()
    with pytest.raises(StorageFailed, match=r"write .*up\.json: Is a directory"):
        folder.save(_record())
    (folder.run / "nats.conf.tmp").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=r"write .*nats\.conf: No space left"):
        folder.write_nats_config("x")
    assert not list(folder.run.glob("*.tmp"))


@pytest.mark.parametrize("name", ["up.json", "nats.pid", "brokers", "nats.conf"])
def test_on_a_full_disk_each_file_of_a_run_is_an_error_that_names_it_and_the_former_one_stands(
    tmp_path: Path, name: str
) -> None:
    folder = UpFolder(str(tmp_path / "data"))
    folder.prepare()

    def write() -> None:
        folder.keep_count(3)
        folder.write_nats_config("x")
        folder.save(_record())

    write()
    before = {path.name: path.read_bytes() for path in folder.run.iterdir()}
    (folder.run / f"{name}.tmp").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=rf"write .*{name}: No space left"):
        write()
    assert {path.name: path.read_bytes() for path in folder.run.iterdir()} == before
    assert (folder.load(), folder.brokers_count()) == (_record(), 3)
    write()


def test_a_saved_record_is_loaded_again_with_its_pid_files(tmp_path: Path) -> None:
    folder = UpFolder(str(tmp_path / "data"))
    assert folder.load() is None
    folder.prepare()
    record = _record()
    folder.save(record)
    assert UpFolder(str(tmp_path / "data")).load() == record
    assert (folder.run / "nats.pid").read_text() == f"{os.getpid()}\n"
    assert set(record.alive()) == {"nats"}
    folder.forget(record)
    assert folder.load() is None
    assert list(folder.run.glob("*.pid")) == []


def test_a_copy_has_none_of_the_processes_and_a_moved_folder_has_them(tmp_path: Path) -> None:
    folder = UpFolder(str(tmp_path / "data"))
    folder.prepare()
    record = _record()
    folder.save(record)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    copy = UpFolder(str(tmp_path / "copy"))
    assert copy.load() is None
    assert copy.copied() == (str(tmp_path / "data"), record)
    assert f"copy of /x: nats (pid {os.getpid()}) run there" in copy_notice(copy, "/x", record)
    copy.forget(record)
    assert copy.copied() is not None, "what is another folder's is left alone"
    copy.disown()
    assert copy.copied() is None
    assert list(copy.run.glob("*.pid")) == []

    assert (folder.load(), folder.copied()) == (record, None)
    (tmp_path / "data").rename(tmp_path / "moved")
    assert UpFolder(str(tmp_path / "moved")).load() == record
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    assert UpFolder(str(tmp_path / "link")).load() == record


def test_the_original_in_the_place_of_a_copy_and_the_copy_in_its_place(tmp_path: Path) -> None:
    """A copy that takes the path of the original does not take its processes."""
    folder = UpFolder(str(tmp_path / "data"))
    folder.prepare()
    folder.save(_record())
    (tmp_path / "data").rename(tmp_path / "before")
    shutil.copytree(tmp_path / "before", tmp_path / "data")
    assert folder.load() is None
    folder.forget(_record())  # as the supervisor of the original does at its end
    assert folder.record_path.exists()
    assert UpFolder(str(tmp_path / "before")).load() == _record()


def test_a_record_of_an_earlier_build_is_that_of_its_path(tmp_path: Path) -> None:
    folder = UpFolder(str(tmp_path / "data"))
    folder.prepare()
    folder.save(_record())
    values = json.loads(folder.record_path.read_text())
    del values["folder"]
    folder.record_path.write_text(json.dumps(values))
    assert folder.load() == _record()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    assert UpFolder(str(tmp_path / "copy")).load() is None


def test_the_record_names_the_addresses_for_others(tmp_path: Path) -> None:
    folder = UpFolder(str(tmp_path))
    folder.prepare()
    folder.save(_record())
    values = json.loads(folder.record_path.read_text())
    assert values["brokers"] == [{"id": "broker-0", "http": "127.0.0.1:1", "grpc": "127.0.0.1:2"}]
    assert values["nats"] == {"url": "nats://127.0.0.1:3", "embedded": True}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"brokers": []}', "null", "\x00"])
def test_a_damaged_record_counts_as_none(tmp_path: Path, text: str) -> None:
    folder = UpFolder(str(tmp_path))
    folder.prepare()
    folder.record_path.write_text(text)
    assert folder.load() is None


def test_a_cut_record_counts_as_none(tmp_path: Path) -> None:
    folder = UpFolder(str(tmp_path))
    folder.prepare()
    folder.save(_record())
    whole = folder.record_path.read_text().rstrip()
    for end in range(0, len(whole), 7):
        folder.record_path.write_text(whole[:end])
        assert folder.load() is None


def test_the_lock_keeps_a_second_one_out(tmp_path: Path) -> None:
    folder = UpFolder(str(tmp_path))
    folder.prepare()
    with folder.locked(), pytest.raises(FolderInUse), UpFolder(str(tmp_path)).locked():
        pass
    with folder.locked():
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderNotAllowed, match="file"):
        UpFolder(str(tmp_path / "file" / "data")).prepare()


def test_a_long_log_is_put_aside(tmp_path: Path) -> None:
    folder = UpFolder(str(tmp_path))
    folder.prepare()
    path = folder.log("nats")
    path.write_text("short")
    assert folder.log("nats").exists()
    os.truncate(path, LOG_BYTES_KEPT + 1)
    assert not folder.log("nats").exists()
    assert (folder.logs / "nats.log.1").stat().st_size == LOG_BYTES_KEPT + 1


def _found(path: Path, broker_id: str) -> Path:
    DataFolder.open(path, broker_id=broker_id).close()
    return path


def test_a_brokers_own_folder_is_refused_with_the_call_that_goes_on_with_it(tmp_path: Path) -> None:
    mine = _found(tmp_path / "data" / "broker-0", "broker-0")
    other = _found(tmp_path / "it's b7", "b7")
    restored = _found(tmp_path / "restored", "broker-0")
    for path, call in (
        (mine, f"liftlog up --data {tmp_path}/data"),
        (other, f"liftlog broker --set {shlex.quote(f'data_dir={other}')} --set broker_id=b7"),
        (restored, f"liftlog broker --set data_dir={restored}; `up` works one level above, and calls it DATA/broker-0"),
    ):
        with pytest.raises(WrongFolder) as refused:
            UpFolder(str(path)).check()
        assert str(refused.value).endswith(call)
        assert sorted(entry.name for entry in path.iterdir()) == ["broker.json", "lock"], "nothing was made there"
    UpFolder(str(tmp_path / "data")).check()
    UpFolder(str(tmp_path / "new")).check()


@pytest.mark.parametrize("file", ["broker.json", "catalog.log"])
def test_a_damaged_brokers_folder_is_still_one(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("{")
    with pytest.raises(WrongFolder, match="liftlog broker --set data_dir="):
        UpFolder(str(tmp_path)).check()


def test_a_folder_of_other_brokers_is_refused(tmp_path: Path) -> None:
    _found(tmp_path / "b1", "b1")
    with pytest.raises(WrongFolder, match=f"liftlog broker --set data_dir={tmp_path}/b1 --set broker_id=b1"):
        UpFolder(str(tmp_path)).check()
    _found(tmp_path / "broker-0", "broker-0")
    UpFolder(str(tmp_path)).check()
