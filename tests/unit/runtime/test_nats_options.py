"""Goal: what `[nats]` names and cannot be used is said at the start, with its key."""

from __future__ import annotations

from pathlib import Path

import nkeys
import pytest

from broker.api.errors import InvalidSetting
from broker.config.configuration import load
from broker.config.nats_options import checked_options, connect_options
from tests.support.lone import lone_broker

FILES = ("tls_ca", "creds")


@pytest.mark.parametrize("key", FILES)
@pytest.mark.parametrize("what", ["missing", "a folder", "something else"])
def test_a_file_that_cannot_be_used_is_named_with_its_key(tmp_path: Path, key: str, what: str) -> None:
    path = tmp_path / "file"
    if what == "a folder":
        path.mkdir()
    elif what == "something else":
        path.write_text("hello\n")
    config = load(None, {}, {f"nats.{key}": str(path)}).nats
    with pytest.raises(InvalidSetting, match=rf"nats\.{key} = .*file") as caught:
        checked_options(config)
    assert caught.value.fields["key"] == f"nats.{key}"
    with pytest.raises(OSError, match=rf"nats\.{key} = .*file"):  # which the intake waits for and tries again
        connect_options(config)


def test_a_certificate_without_its_key_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("hello\n")
    settings = {"nats.tls_cert": str(tmp_path / "cert"), "nats.tls_key": str(tmp_path / "none")}
    with pytest.raises(InvalidSetting, match=r"nats\.tls_key = .*No such file"):
        checked_options(load(None, {}, settings).nats)


@pytest.mark.parametrize("seed", ["SUnonsense", "x"])
def test_what_is_no_seed_is_refused_and_not_shown(seed: str) -> None:
    with pytest.raises(InvalidSetting, match=r"nats\.nkey_seed: not the seed") as caught:
        checked_options(load(None, {}, {"nats.nkey_seed": seed}).nats)
    assert seed not in str(caught.value) + str(caught.value.fields)


def test_a_seed_and_tls_first_are_handed_on() -> None:
    seed = nkeys.from_seed(bytearray(b"SUAKYRHVIOREXV7EUZTBHUHL7NUMHPMAS7QMDU3GTIUWEI5LDNOXD43IZY")).seed.decode()
    options = checked_options(load(None, {}, {"nats.nkey_seed": seed, "nats.tls_first": True}).nats)
    assert options["nkeys_seed_str"] == seed
    assert options["tls_handshake_first"] is True
    assert options["tls"] is not None
    assert "tls" not in checked_options(load(None, {}).nats)


def test_a_broker_does_not_start_with_it_and_touches_nothing(tmp_path: Path) -> None:
    settings = {"data_dir": str(tmp_path / "data"), "nats.creds": str(tmp_path / "none")}
    with pytest.raises(InvalidSetting, match=r"nats\.creds"):
        lone_broker(load(None, {}, settings))
    assert not (tmp_path / "data").exists()
