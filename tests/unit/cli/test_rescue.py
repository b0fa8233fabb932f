"""Goal: `liftlog cluster rescue begin` and `join` say what they do, ask, and touch no folder that is not theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.api.errors import FolderInUse, InvalidRequest, LiftlogError, WrongFolder
from broker.cli.main import app
from broker.storage.folder import DataFolder
from tests.unit.cluster.test_rescue_folders import FOLDER, member


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data folder of broker a, of three."""
    root = tmp_path / "up" / "a"
    root.parent.mkdir()
    DataFolder.open(root, broker_id="a", cluster_id="x").close()
    disk = member()
    for name in disk.listdir(FOLDER):
        (root / name).write_bytes(disk.read_file(f"{FOLDER}/{name}"))
    return root


def run(*arguments: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["cluster", "rescue", *arguments], input=typed)


def test_it_says_what_it_will_do_and_does_nothing_without_a_yes(data: Path) -> None:
    before = sorted((path.name, path.read_bytes()) for path in data.glob("raft.*"))
    for command in ("begin", "join"):
        asked = run(command, "--data", str(data), typed="n\n")
        assert asked.exit_code == 1
        assert sorted((path.name, path.read_bytes()) for path in data.glob("raft.*")) == before
    asked = run("begin", "--data", str(data), typed="n\n")
    assert "broker a of cluster x knows 1 stream," in asked.stderr
    assert "its catalog ends at term 3, index 10" in asked.stderr
    assert "these vote now, and a majority of them has to be lost for good: a, b, c" in asked.stderr


def test_it_begins_once(data: Path) -> None:
    begun = json.loads(run("begin", "--data", str(data), "--yes", "--json").stdout)
    assert (begun["broker"], begun["brokers"]) == ("a", ["a", "b", "c"])
    again = run("begin", "--data", str(data), "--yes", "--json")
    assert json.loads(again.stdout) == begun
    assert f"rescue {begun['rescue']} has begun here already" in again.stderr


def test_a_survivor_joins(data: Path) -> None:
    left = json.loads(run("join", "--data", str(data), "--yes", "--json").stdout)
    assert left["broker"] == "a"
    assert left["left"].startswith("x/")
    assert not (data / "raft.log").exists()
    assert (data / "broker.json").exists()


def test_who_may_not_join_is_refused_before_it_is_told_what_happens(data: Path) -> None:
    run("begin", "--data", str(data), "--yes")
    done = run("join", "--data", str(data), typed="n\n")
    assert isinstance(done.exception, InvalidRequest)
    assert "has the only vote of its group" in str(done.exception)
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["begin", "join"])
def test_a_folder_that_is_not_a_stopped_brokers_is_refused(command: str, data: Path) -> None:
    def refused(path: Path, kind: type[LiftlogError], text: str) -> None:
        done = run(command, "--data", str(path), "--yes")
        assert isinstance(done.exception, kind)
        assert text in str(done.exception)

    refused(data / "nothing", WrongFolder, "is no data folder of a broker")
    refused(data.parent, WrongFolder, "it holds those of a: name one of them")
    with DataFolder.open(data, broker_id="a"):
        refused(data, FolderInUse, "is in use by process")
    assert not (data / "nothing").exists()


@pytest.mark.parametrize("place", ["orders", "orders/", "/0", "orders/x"])
def test_a_replica_is_named_by_its_stream_and_number(place: str) -> None:
    done = run("excuse", "b", "--partition", place, "--yes")
    assert done.exit_code == 2
    assert "must be STREAM/PARTITION" in done.stderr
