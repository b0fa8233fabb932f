"""`liftlog secret new` makes a file that a broker takes, and `up` makes one where several brokers need it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from broker.api.errors import InvalidRequest
from broker.cli.commands.secret import write_master_key, write_secret
from broker.cli.local.datafolder import Record, UpFolder
from broker.cli.local.processes import ProcessIdentity
from broker.cli.local.up import Ports, _keep_secret, _plan
from broker.cli.main import app
from broker.config.configuration import load
from broker.config.master_keys import from_file, load_keyring
from broker.config.settings import EncryptionConfig
from broker.control.identity import check_secret, identity_from
from broker.runtime.broker import check_asserts

COMMAND: click.Command = app


def test_a_new_secret_is_its_owners_alone_and_a_broker_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "a secret"
    done = CliRunner().invoke(COMMAND, ["secret", "new", str(file)])
    assert done.exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() not in done.output
    given = {"cluster.id": "c", "cluster.voters": ["a@127.0.0.1:1"], "raft.secret_file": str(file), "broker_id": "a"}
    identity = identity_from(load(None, {}, given))
    assert identity is not None
    check_secret(identity.secret)
    assert identity.secret == file.read_text().strip()


def test_a_new_master_key_is_its_owners_alone_and_a_broker_takes_it(tmp_path: Path) -> None:
    files = [tmp_path / "master.key", tmp_path / "master-2.key"]
    for file in files:
        done = CliRunner().invoke(COMMAND, ["secret", "master-key", str(file)])
        assert done.exit_code == 0
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_text().strip() not in done.output
    first, second = map(str, files)
    keyring = load_keyring(EncryptionConfig(key_file=first, former_key_files=(second,)))
    assert keyring is not None
    assert from_file(first, setting="x").id == keyring.current != from_file(second, setting="x").id
    before = files[0].read_bytes()
    again = CliRunner().invoke(COMMAND, ["secret", "master-key", first])
    assert again.exit_code != 0
    assert files[0].read_bytes() == before
    with pytest.raises(InvalidRequest, match="exists: it may be the master key of records"):
        write_master_key(first)


def test_a_secret_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    write_secret(str(file))
    before = file.read_bytes()
    with pytest.raises(InvalidRequest, match="exists: it may be the secret of a cluster"):
        write_secret(str(file))
    assert file.read_bytes() == before
    with pytest.raises(InvalidRequest, match="cannot be written: No such file"):
        write_secret(str(tmp_path / "no" / "secret"))
    write_secret(str(tmp_path / "another"))
    assert (tmp_path / "another").read_bytes() != before


def test_a_secret_is_there_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of one would stand in the way of the next try, and of every start."""

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    file = tmp_path / "secret"
    for step in ("fsync", "link"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, fails)
            with pytest.raises(InvalidRequest, match="No space left"):
                write_secret(str(file))
        assert list(tmp_path.iterdir()) == []
    write_secret(str(file))
    assert list(tmp_path.iterdir()) == [file]


def test_up_makes_a_secret_for_several_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIFTLOG_RAFT_SECRET", "LIFTLOG_RAFT_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    folder = UpFolder(str(tmp_path / "data"))
    folder.prepare()
    _keep_secret(_plan(folder, Ports(), None, detach=True))
    assert not folder.secret.exists(), "one that is alone opens no port that needs it"
    plan = _plan(folder, Ports(), None, detach=True, count=3)
    _keep_secret(plan)
    before = folder.secret.read_text()
    assert stat.S_IMODE(folder.secret.stat().st_mode) == 0o600
    assert all(f"raft.secret_file={folder.secret}" in command for command in plan.commands.values())
    assert not any(before.strip() in word for command in plan.commands.values() for word in command)
    _keep_secret(plan)
    assert folder.secret.read_text() == before


def test_up_uses_the_secret_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFTLOG_RAFT_SECRET", "of at least sixteen bytes")
    folder = UpFolder(str(tmp_path / "data"))
    folder.prepare()
    plan = _plan(folder, Ports(), None, detach=True, count=3)
    _keep_secret(plan)
    assert not folder.secret.exists()
    assert not any("raft.secret" in word for command in plan.commands.values() for word in command)


def test_up_gives_no_secret_to_some_while_others_run_without(tmp_path: Path) -> None:
    """A folder of an earlier build: they would not hear each other."""
    folder = UpFolder(str(tmp_path / "data"))
    folder.prepare()
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None
    record = Record(http="h:1", grpc="h:2", nats_url="n", nats_embedded=True, mode="detached", others=())
    record.processes["broker-1"] = identity
    folder.save(record)
    with pytest.raises(InvalidRequest, match=r"broker-1 have no secret.*liftlog down"):
        _keep_secret(_plan(folder, Ports(), None, detach=True, count=3))
    assert not folder.secret.exists()
    record.processes.clear()
    folder.save(record)
    _keep_secret(_plan(folder, Ports(), None, detach=True, count=3))
    assert folder.secret.exists()


def test_no_broker_starts_where_checks_are_left_out() -> None:
    """Seen before: under -O recorded bytes of another connection were taken."""
    check_asserts(0)
    for optimize in (1, 2):
        with pytest.raises(InvalidRequest, match="runs with -O"):
            check_asserts(optimize)


@pytest.mark.process
def test_the_command_refuses_minus_o(tmp_path: Path) -> None:
    words = [sys.executable, "-O", "-P", "-m", "broker.cli.main", "broker", "--set", f"data_dir={tmp_path / 'd'}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 1
    assert "runs with -O" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "d").exists()


def test_check_says_that_a_cluster_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LIFTLOG_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "secret"
    words = ["broker", "--check", "--set", "cluster.id=c", "--set", "cluster.voters=broker-0@127.0.0.1:1"]
    with pytest.raises(InvalidRequest, match="liftlog secret new"):
        CliRunner().invoke(COMMAND, words, catch_exceptions=False)
    write_secret(str(file))
    named = [*words, "--set", f"raft.secret_file={file}"]
    done = CliRunner().invoke(COMMAND, named, catch_exceptions=False)
    assert (done.exit_code, f"raft.secret_file = {file}" in done.output) == (0, True)
    file.chmod(0o644)
    with pytest.raises(InvalidRequest, match="has mode 0644"):
        CliRunner().invoke(COMMAND, named, catch_exceptions=False)
