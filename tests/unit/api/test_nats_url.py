"""Goal: no place shows a password that stands in the URL of a NATS server, however it was written.

Method: URLs as people write them, at every place that shows one: errors of the configuration, `describe`,
`run/up.json`, command lines that are kept, the client's errors, `liftlog doctor`, log lines.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.api.errors import InvalidSetting, LiftlogError
from broker.api.nats_url import HIDDEN, bare, shown_url, shown_urls, split_url, without_credentials
from broker.cli.doctor.network import check_nats
from broker.cli.local import processes, up
from broker.cli.local.datafolder import UpFolder
from broker.client.nats_connection import NatsConnection
from broker.config.configuration import describe, load
from broker.runtime.logs import ConsoleFormatter, JsonFormatter

PASSWORDS = (
    "Zq7xwv",
    "Zq7@xwv",
    "Zq7/xwv",
    "Zq7#xwv",
    "Zq7?xwv",
    "Zq7:xwv",
    "Zq7%xwv",
    "Zq7,xwv",
    "54321/Zq7xwv",
    "Zq7[xwv",
)
URLS = (
    *(f"nats://ann:{password}@h:4222" for password in PASSWORDS),
    *(f"tls://{token}@h" for token in PASSWORDS if ":" not in token),  # what stands before one is a user's name
    "nats://ann:Zq7xwv@h:4222/x@y",
    "nats://ann:Zq7 xwv@h:4222",
    "nats://ann:Zq7://xwv@h:4222",
    "ann:Zq7xwv@h",
    "nats://ann:Zq7xwv@",
    "http://ann:Zq7xwv@h",
    "nats://a:1,nats://ann:54321,Zq7xwv@h:4222",
    "nats://ann:Zq7xwv@h:4222,nats://b:2",
)


def hides(text: object) -> bool:
    return not any(part in str(text) for part in ("Zq7", "xwv", "54321"))


@pytest.mark.parametrize("url", URLS)
def test_a_configuration_shows_none(url: str) -> None:
    try:
        config = load(None, {"LIFTLOG_NATS_URLS": url})
        shown: list[object] = [config.nats.urls, describe(config), repr(config)]
    except LiftlogError as error:
        shown = [str(error), error.fields]
    assert hides(shown), shown


@pytest.mark.parametrize("url", [f"nats://ann:{password}@h:4222" for password in ("Zq7@xwv", "Zq7:xwv", "Zq7%40xwv")])
def test_what_is_understood_is_used_whole(url: str) -> None:
    config = load(None, {"LIFTLOG_NATS_URLS": url})
    assert config.nats.urls == ("nats://h:4222",)
    assert config.nats.password is not None
    assert config.nats.password.value == url[11:-7].replace("%40", "@")


@pytest.mark.parametrize("url", ["nats://ann:54321/Zq7@h:4222", "tls://Zq7#xwv@h", "nats://u:p?q@h"])
def test_what_two_would_read_differently_is_refused_and_says_how_to_write_it(url: str) -> None:
    with pytest.raises(InvalidSetting, match="/ as %2F"):
        load(None, {"LIFTLOG_NATS_URLS": url})


@pytest.mark.parametrize("url", URLS)
async def test_a_client_shows_none(url: str) -> None:
    connection = NatsConnection(url.split(","))
    shown: list[object] = [str(connection)]
    try:
        connection._check()
    except LiftlogError as error:
        shown += [str(error), error.fields]
    assert hides(shown), shown


@pytest.mark.parametrize("url", URLS)
def test_doctor_shows_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def greeting(host: str, port: int) -> None:
        raise OSError("away")

    monkeypatch.setattr("broker.cli.doctor.network.greeting", greeting)
    for check in check_nats([url], record_bytes_max=1):
        assert hides(check), check


@pytest.mark.parametrize("url", URLS)
def test_up_keeps_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})
    try:
        plan = up._plan(UpFolder(Path("/folder")), up.Ports(http=1, grpc=2, nats=3, raft=4), url, detach=True)
        shown: list[object] = [plan.record, plan.commands]
    except LiftlogError as error:
        shown = [str(error), error.fields]
    assert hides(shown), shown


@pytest.mark.parametrize("url", [url for url in URLS if "://" in url])
def test_a_command_line_that_is_kept_has_none(url: str) -> None:
    for word in (url, f"--nats={url}", f"nats.urls={url}"):
        assert hides(processes._shown(word)), processes._shown(word)


@pytest.mark.parametrize("key", ["nats.password", "nats.token", "nats.nkey_seed", "raft.secret"])
def test_a_secret_of_the_command_line_is_not_kept(key: str) -> None:
    assert processes._shown(f"{key}=Zq7 xwv\n") == f"{key}=***"
    assert processes._shown("/usr/bin/python") == "/usr/bin/python"
    assert processes._shown("http.port=1") == "http.port=1"


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    logger, out = logging.Logger("broker.test"), io.StringIO()
    for formatter in (ConsoleFormatter(), JsonFormatter()):
        handler = logging.StreamHandler(out)
        handler.setFormatter(formatter)
        logger.addHandler(handler)
    return logger, out


@pytest.mark.parametrize("url", [url for url in URLS if "://" in url and " " not in url])
def test_log_lines_show_none(log: tuple[logging.Logger, io.StringIO], url: str) -> None:
    logger, out = log
    try:
        raise OSError(f"cannot reach {url}")
    except OSError as error:
        logger.exception("nats.failed url=%s error=%s", url, error)
    assert hides(json.loads(out.getvalue().splitlines()[-1])["fields"])
    assert hides(out.getvalue().replace(str(Path(__file__)), "").split("\n    Traceback")[0])


@pytest.mark.parametrize(
    "url, shown",
    [
        ("nats://u:p@h:1", "nats://h:1"),
        ("u:p@h:1", "h:1"),
        ("tls://p@h", "tls://h"),
        ("wss://u:p@[::1]:443", "wss://[::1]:443"),
        ("nats://h:1", "nats://h:1"),
        ("nats://u:p", f"nats://{HIDDEN}"),
        ("", HIDDEN),
        ("nats://a b", f"nats://{HIDDEN}"),
    ],
)
def test_shown_are_scheme_host_and_port(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_of_a_list_no_beginning_of_a_password_is_shown() -> None:
    assert shown_urls(["nats://u:1", "2@h"]) == [HIDDEN, "h"]
    assert shown_urls(["nats://a:1", "nats://u:p@b:2", "nats://c:3"]) == ["nats://a:1", "nats://b:2", "nats://c:3"]
    assert shown_urls(["http://typed wrong"]) == ["http://typed wrong"]


def test_an_address_to_connect_to_has_no_credentials() -> None:
    assert bare(split_url("nats://u:p@h:1")) == "nats://h:1"
    assert without_credentials("no answer from nats://u:p@ss@h:1, said it") == "no answer from nats://h:1, said it"
