"""Goal: the configuration says who a broker is in a cluster, and settings that do not fit together are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import InvalidRequest, InvalidSetting
from broker.config.configuration import describe, load
from broker.control.identity import Identity, check_secret, identity_from

VOTERS = ["a@10.0.0.1:9294", "b@[fd00::2]:9294", "c@c.example:19294"]
SECRET = "of at least sixteen bytes"


def identity(**settings: Any) -> Identity | None:
    given = {
        "cluster.id": "prod",
        "cluster.voters": VOTERS,
        "broker_id": "a",
        "raft.host": "0.0.0.0",
        "insecure": True,
        **settings,
    }
    return identity_from(load(None, {}, {key.replace("__", "."): value for key, value in given.items()}))


def test_a_broker_that_names_no_cluster_is_alone() -> None:
    assert identity_from(load(None, {}, {})) is None


def test_a_named_broker_is_reached_as_it_is_named() -> None:
    found = identity()
    assert found is not None
    assert (found.address, found.bind, found.is_named) == ("10.0.0.1:9294", "0.0.0.0:9294", True)
    assert found.others == {"[fd00::2]:9294": "b", "c.example:19294": "c"}
    assert found.new_id().startswith("a.")
    assert found.new_id() != found.new_id()


def test_another_broker_says_where_it_is_reached() -> None:
    found = identity(broker_id="d", raft__advertised="d.example:1")
    assert found is not None
    assert (found.address, found.is_named, len(found.others)) == ("d.example:1", False, 3)
    with pytest.raises(InvalidSetting, match=r"the others cannot reach 0\.0\.0\.0:9294: set raft\.advertised"):
        identity(broker_id="d")


@pytest.mark.parametrize(
    "settings,says",
    [
        ({"raft__advertised": "elsewhere:1"}, r"cluster\.voters names a at 10\.0\.0\.1:9294"),
        ({"raft__port": 0}, r"raft\.port = 0"),
        ({"cluster__id": None}, r"cluster\.voters needs cluster\.id"),
        ({"cluster__voters": []}, r"cluster\.id needs cluster\.voters"),
        ({"cluster__voters": ["a@h:1", "a@h:2"]}, "names a broker or an address twice"),
        ({"cluster__voters": ["a@h:1", "b@h:1"]}, "names a broker or an address twice"),
        ({"cluster__voters": ["h:1"]}, "must be like broker-id@host:port"),
        ({"cluster__voters": ["a@h"]}, "must be like broker-id@host:port"),
        ({"cluster__voters": [f"{i}@h:{i + 1}" for i in range(6)]}, "5"),
        ({"cluster__id": "no spaces"}, "cluster name"),
        ({"raft__secret": SECRET, "raft__secret_file": "x"}, r"raft\.secret_file cannot stand beside"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        identity(**settings)


def test_the_secret_comes_from_a_file_and_never_shows(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    found = identity(raft__secret_file=str(file))
    assert found is not None
    assert found.secret == SECRET
    assert SECRET not in repr(found)
    with pytest.raises(InvalidRequest, match=r"raft\.secret_file: .*/gone cannot be read: No such file"):
        identity(raft__secret_file=str(tmp_path / "gone"))
    assert describe(load(None, {"LIFTLOG_RAFT_SECRET": SECRET}, {}))["raft.secret"] == "***"


@pytest.mark.parametrize(
    "mode,is_taken", [(0o600, True), (0o400, True), (0o640, True), (0o660, False), (0o644, False), (0o604, False)]
)
def test_a_secret_that_everybody_can_read_is_none(tmp_path: Path, mode: int, is_taken: bool) -> None:
    """A group may: of the service, or of a mount."""
    file = tmp_path / "the secret"
    file.write_text(SECRET)
    file.chmod(mode)
    if is_taken:
        found = identity(raft__secret_file=str(file))
        assert found is not None
        assert found.secret == SECRET
        return
    with pytest.raises(InvalidRequest, match=f"has mode {mode:04o}.*: chmod 600 '.*the secret'"):
        identity(raft__secret_file=str(file))


@pytest.mark.parametrize(
    "secret,says", [(None, "liftlog secret new"), ("", "less than 16"), ("x" * 15, "less than 16")]
)
def test_there_is_a_secret_on_loopback_too(secret: str | None, says: str) -> None:
    """W1. Any process of any user of the machine reaches loopback; the refusal says what to do."""
    with pytest.raises(InvalidRequest, match=says) as refusal:
        check_secret(secret)
    assert str(refusal.value.key).startswith("raft.secret")
    check_secret(SECRET)


@pytest.mark.parametrize("rack", ["a\nb", "a\r", "x" * 129, "\u2028"])
def test_a_rack_is_a_line(rack: str) -> None:
    """As the catalog takes it: a broker is refused at its start, not at its registration."""
    with pytest.raises(InvalidSetting, match=r"cluster\.rack"):
        load(None, {}, {"cluster.rack": rack})
    assert load(None, {}, {"cluster.rack": "Halle 7, Ä"}).cluster.rack == "Halle 7, Ä"
