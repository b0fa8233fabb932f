"""Profiles of clients.

Goal: a name stands for brokers, files and a token; the nearest source counts; what is wrong is said by file, key and
what there is; and a token of a profile gets no further than one that is given. Method: files of a test's own home, and
the application over TLS where something is sent.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.api import environment
from broker.api.errors import InvalidRequest, InvalidSetting, UnknownSetting
from broker.api.principals import new_token
from broker.api.tls_files import why_not_private
from broker.api.token_files import token_in
from broker.cli.main import app
from broker.client.client import connect
from broker.client.http.profiles import NO_FILES, brokers_for, files_for
from broker.client.http.tls import TlsFiles, client_context
from tests.support.certificates import Authority
from tests.unit.client.rawserver import RawServer

TOKEN = new_token()
WHO = {"principal": "svc:x", "how": "token", "mode": "enforce", "admin": False, "grants": [], "expires_ms": None}
ANSWER = json.dumps(WHO).encode()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's configuration; no variable of ours is set."""
    for name in [name for name in os.environ if name.startswith("LIFTLOG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "liftlog"


def write(home: Path, text: str, name: str = "profiles.toml") -> Path:
    home.mkdir(exist_ok=True)
    path = home / name
    path.write_text(text)
    path.chmod(0o600)
    return path


PROD = """
[prod]
brokers = ["https://a.example", "https://b.example:1"]
tls_ca = "ca.pem"
tls_cert = "/certs/me.pem"
tls_key = "/certs/me.key"
token_file = "~/me.token"

[local]
brokers = "localhost:1, localhost:2"
token_file = "me.token"

[files]
tls_ca = "other.pem"
"""


def test_a_profile_has_brokers_files_and_a_token(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P6: paths are of the folder of the file."""
    monkeypatch.setenv("HOME", "/home/me")
    write(home, PROD)
    assert brokers_for(None, "prod") == "https://a.example:9293,https://b.example:1"
    found = files_for(TlsFiles(profile="prod"))
    assert found == TlsFiles(
        ca=f"{home}/ca.pem", cert="/certs/me.pem", key="/certs/me.key", token="/home/me/me.token", token_over_tls=True
    )
    assert brokers_for(None, "local") == "localhost:1,localhost:2"
    assert files_for(TlsFiles(profile="local")).token == f"{home}/me.token"
    assert brokers_for(None, "files") == "localhost:9293", "it names none"


def test_a_profile_may_be_in_another_file(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "elsewhere", PROD, "jobs.toml")
    assert brokers_for(None, f"{path}#local") == "localhost:1,localhost:2"
    monkeypatch.chdir(path.parent)
    found = files_for(TlsFiles(profile="jobs.toml#files"))
    assert found.ca == f"{path.parent}/other.pem"


def test_the_users_folder_is_the_one_of_xdg(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert environment.config_home() == str(tmp_path)
    for value in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert environment.config_home() == str(tmp_path / "me/.config")


def test_nothing_is_read_that_nobody_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: no default profile, and none by an empty name."""
    write(home, "no TOML at all").chmod(0o644)
    connect("localhost").close()
    monkeypatch.setenv("LIFTLOG_PROFILE", "")
    connect("localhost").close()
    monkeypatch.setenv("LIFTLOG_PROFILE", "prod")
    connect("localhost", profile="").close()
    with pytest.raises(InvalidSetting):
        connect("localhost")


def test_the_nearest_source_counts_value_by_value(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said directly > the profile that is said directly > a variable > the profile of the variable."""
    write(home, PROD)

    def found(said: TlsFiles = NO_FILES, brokers: str | None = None) -> tuple[str | None, ...]:
        files = files_for(said)
        names = (Path(path).name if path else None for path in (files.ca, files.cert, files.token))
        return (brokers_for(brokers, said.profile), *names)

    prod = "https://a.example:9293,https://b.example:1"
    monkeypatch.setenv("LIFTLOG_PROFILE", "prod")
    assert found() == (prod, "ca.pem", "me.pem", "me.token")
    monkeypatch.setenv("LIFTLOG_BROKERS", "https://env")
    monkeypatch.setenv("LIFTLOG_TLS_CA", "env.pem")
    assert found() == ("https://env", "env.pem", "me.pem", "me.token"), "a variable wins over its profile"
    assert found(TlsFiles(profile="prod")) == (prod, "ca.pem", "me.pem", "me.token"), "a profile that is said wins"
    assert found(TlsFiles(profile="files")) == ("https://env", "other.pem", None, None), "and the other one is not read"
    assert found(TlsFiles(profile="")) == ("https://env", "env.pem", None, None)
    said = TlsFiles(ca="said.pem", token="said.token", profile="prod")
    assert found(said, "https://said") == ("https://said", "said.pem", "me.pem", "said.token")


def test_a_profile_that_is_said_and_names_brokers_stands_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: what the shell has exported is of another cluster."""
    write(home, '[p]\nbrokers = "https://a"\n' + PROD)
    for name in ("TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN_FILE"):
        monkeypatch.setenv(f"LIFTLOG_{name}", "of-others")
    assert files_for(TlsFiles(profile="p")) == TlsFiles()
    assert files_for(TlsFiles(token="said", profile="p")).token == "said"
    assert files_for(TlsFiles(profile="files")).token == "of-others", "it names no brokers: the variables do"
    monkeypatch.setenv("LIFTLOG_PROFILE", "p")
    assert files_for().token == "of-others"


def test_a_certificate_comes_with_its_own_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, PROD)
    monkeypatch.setenv("LIFTLOG_PROFILE", "prod")
    monkeypatch.setenv("LIFTLOG_TLS_CERT", "env.pem")
    found = files_for()
    assert (found.cert, found.key) == ("env.pem", None), "no key of the profile's for another certificate"
    with pytest.raises(InvalidRequest, match="given together"):
        client_context(replace(found, ca=None))


def test_a_file_that_is_no_secret_is_refused(home: Path) -> None:
    """P2."""
    path = write(home, PROD)
    path.chmod(0o604)
    with pytest.raises(InvalidSetting, match=rf"{path}.*mode 0604.*chmod 600"):
        connect(profile="local")
    path.chmod(0o620)
    with pytest.raises(InvalidSetting, match=r"its group can change it.*chmod 600"):
        connect(profile="local")
    path.unlink()
    with pytest.raises(InvalidSetting, match=rf"profile = '{path}': cannot be read: No such file"):
        connect(profile="local")
    os.mkfifo(path, 0o600)
    with pytest.raises(InvalidSetting, match="is not a regular file"):
        connect(profile="local")


@pytest.mark.parametrize(
    "mode, owner, me, says",
    [
        (0o600, 7, 7, ""),
        (0o640, 7, 7, ""),
        (0o640, 0, 7, ""),
        (0o600, 8, 0, ""),
        (0o604, 7, 7, "every user"),
        (0o602, 7, 0, "every user"),
        (0o660, 7, 7, "its group"),
        (0o640, 8, 7, "belongs to user 8"),
    ],
)
def test_a_file_that_somebody_else_can_change_is_no_secret(mode: int, owner: int, me: int, says: str) -> None:
    """P2, F1. Who writes a profile says to whom the token goes."""
    found = why_not_private(mode, owner, me)
    assert says in found
    assert bool(says) == bool(found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[p]\ntls_caa = 'x'", "profile 'p': unknown key 'tls_caa'; a profile has brokers, tls_ca, tls_cert, tls_key, "
                               "token_file; did you mean 'tls_ca'?"),
        ("[p]\ntoken = 'TOKEN'", "unknown key 'token'"),
        ("[prod]\n[staging]", "has no profile 'p'; it has prod, staging"),
        ("", "has no profile 'p'; it has none"),
        ("brokers = 'a'\n[p]", "brokers stands outside of a profile"),
        ("[p]\nbrokers = 1", "profile 'p': brokers must be addresses"),
        ("[p]\nbrokers = ['a', 1]", "brokers must be addresses"),
        ("[p]\nbrokers = []", "brokers must be addresses"),
        ("[p]\nbrokers = 'a:99999'", "profile 'p': brokers: broker address 'a:99999'"),
        ("[p]\nbrokers = 'https://a,b'", "some are https"),
        ("[p]\ntls_ca = ''", "profile 'p': tls_ca must be the path of a file"),
        ("[p]\ntoken_file = ['a']", "token_file must be the path of a file"),
        ("[p]\ntls_cert = 'a'", "profile 'p': tls_cert needs tls_key"),
        ("[p]\nbrokers = 'a'\ntls_ca = 'b'", "profile 'p': tls_ca is for brokers at https://, and a:9293 is not"),
        ("[p\n", "cannot be read as TOML: .*line 1"),
        ("TOKEN", "cannot be read as TOML"),
        ("[p]\ntls_ca = 'none.pem'\nbrokers = 'https://a'", "tls_ca = '.*/none.pem': cannot be read"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_by_file_key_and_what_there_is(home: Path, text: str, says: str) -> None:
    """P4. No value is shown but addresses and paths."""
    path = write(home, text.replace("TOKEN", TOKEN.text))
    with pytest.raises((InvalidSetting, UnknownSetting), match=says) as refused:
        connect(profile="p")
    assert str(path.parent) in str(refused.value)
    assert TOKEN.text.rpartition("_")[2] not in str(refused.value)


def test_bytes_that_are_no_text_are_refused(home: Path) -> None:
    write(home, "").write_bytes(b"[p]\xff")
    with pytest.raises(InvalidSetting, match="not in UTF-8"):
        connect(profile="p")


# --- where a token goes -------------------------------------------------------------------------------------------


def token_of_profile(home: Path, brokers: str, **more: str) -> Path:
    write(home, TOKEN.text, "me.token")
    lines = [f"{key} = {value!r}" for key, value in {"brokers": brokers, "token_file": "me.token", **more}.items()]
    return write(home, "\n".join(["[p]", *lines]))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "broker.example"])
def test_a_token_of_brokers_with_tls_goes_nowhere_without_it(
    home: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: not to this machine either, whoever says that address."""
    token_of_profile(home, "https://broker.example")
    with (
        connect(address, profile="p", deadline_s=0) as client,
        pytest.raises(InvalidRequest, match="not sent there without TLS"),
    ):
        client.whoami()
    monkeypatch.setenv("LIFTLOG_PROFILE", "p")
    monkeypatch.setenv("LIFTLOG_BROKERS", address)
    with connect(deadline_s=0) as client, pytest.raises(InvalidRequest, match="not sent there without TLS"):
        client.whoami()


def test_a_token_without_brokers_goes_over_tls_alone(home: Path) -> None:
    write(home, TOKEN.text, "me.token")
    write(home, "[p]\ntoken_file = 'me.token'")
    with connect("localhost:1", profile="p") as client, pytest.raises(InvalidRequest, match="does not name that addr"):
        client.whoami()


def test_a_token_of_brokers_on_this_machine_goes_there(home: Path) -> None:
    with RawServer(lambda _, reply: reply.answer(200, ANSWER)) as server:
        token_of_profile(home, server.address)
        with connect(profile="p", deadline_s=0) as client:
            assert client.whoami().principal == "svc:x"
        assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN.text}"
        with connect("broker.example", profile="p") as client, pytest.raises(InvalidRequest, match="without TLS"):
            client.whoami()


def test_a_token_is_not_sent_to_whom_the_profiles_ca_does_not_believe(home: Path, tmp_path: Path) -> None:
    """The files of the profile are what TLS goes by; nothing is sent before it has verified the address."""
    ours, foreign = Authority(tmp_path / "ours"), Authority(tmp_path / "foreign")

    with (
        RawServer(lambda _, reply: reply.answer(200, ANSWER), tls=ours.certificates().contexts.server()) as right,
        RawServer(lambda _, reply: reply.answer(200, ANSWER), tls=foreign.certificates().contexts.server()) as wrong,
    ):
        token_of_profile(home, right.address, tls_ca=ours.ca)
        with connect(profile="p", deadline_s=0) as client:
            client.whoami()
        assert right.requests[0].headers["authorization"] == f"Bearer {TOKEN.text}"
        with (
            connect(wrong.address, profile="p", deadline_s=0) as client,
            pytest.raises(InvalidRequest, match="not believed"),
        ):
            client.whoami()
        assert wrong.requests == []


@pytest.mark.parametrize(
    "secret", [TOKEN.text, "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbmEifQ.c2lnbmF0dXJl"], ids=["token", "jwt"]
)
def test_a_token_in_the_place_of_its_path_is_not_repeated(secret: str) -> None:
    """P4. Nor one that a broker's setting has."""
    with pytest.raises(InvalidSetting, match="is a token") as refused:
        connect("localhost", token_file=secret)
    with pytest.raises(InvalidSetting, match="cannot be read") as by_broker:
        token_in("auth.admin_token_file", secret)
    for error in (refused.value, by_broker.value):
        assert secret not in str(error)
        assert secret not in str(error.fields)


# --- the command line ---------------------------------------------------------------------------------------------


def test_commands_take_a_profile_before_them(home: Path) -> None:
    """And options nearer to the command win, also for brokers."""
    with RawServer(lambda _, reply: reply.answer(200, ANSWER)) as server:
        token_of_profile(home, server.address)
        for arguments, env in (
            (["--profile", "p", "auth", "whoami"], {"LIFTLOG_BROKERS": "nowhere.invalid"}),
            (["auth", "whoami"], {"LIFTLOG_PROFILE": "p"}),
            (["auth", "whoami", "--brokers", server.address], {"LIFTLOG_PROFILE": "p"}),
        ):
            done = CliRunner().invoke(app, arguments, env={"LIFTLOG_RETRY_S": "0", **env})
            assert "svc:x" in done.stdout, (done.output, done.exception)
            assert server.requests[-1].headers["authorization"] == f"Bearer {TOKEN.text}"
    done = CliRunner().invoke(app, ["--profile", "q", "auth", "whoami"])
    assert "has no profile 'q'; it has p" in str(done.exception)
