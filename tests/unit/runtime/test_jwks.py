"""Goal: the keys of the issuer of JWTs are those that it has now; while it does not answer, those of before, for a day.

Method: files that change; a real server over TLS that answers, fails, leads elsewhere and says too much; clocks that
the test moves. The thread is not started: its step is called.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jwt", reason="make install")

from broker.api.errors import InvalidSetting
from broker.config import jwks
from broker.config.auth import check_auth_files
from broker.config.configuration import load
from broker.config.jwks import (
    JWKS_BYTES_MAX,
    KEPT_S,
    LOOK_S,
    MISSED_S,
    REFRESH_S,
    RETRY_S,
    Jwks,
    jwks_of,
    place_of,
)
from broker.config.settings import JwtConfig
from tests.support.certificates import Authority
from tests.unit.serving.test_jwts import EC, OTHER, RSA, as_set, public


def config(keys: str, **more: str) -> JwtConfig:
    of = {"issuer": "https://id.example", "audience": "liftlog", "keys": keys, **more}
    return load(None, {}, {f"jwt.{key}": value for key, value in of.items()}).jwt


def kids(of: Jwks) -> list[str | None]:
    found = of.keys()
    return [key.kid for key in found]


class Answers(BaseHTTPRequestHandler):
    """`said`: status and body, or how it fails."""

    said: tuple[int, bytes] = 200, b""
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, body = self.said
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def issuer(ours: Authority) -> Iterator[tuple[str, type[Answers]]]:
    handler = type("Handler", (Answers,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.socket = ours.certificates().contexts.server().wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}/keys?v=1", handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_is_read_again_when_it_changes_and_a_wrong_one_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "keys.json"
    path.write_bytes(as_set(public(RSA)))
    made = Jwks(config(str(path)))
    before = made.keys()
    assert kids(made) == ["k"]
    assert made._step() == LOOK_S
    assert made.keys() is before, "it has not changed, so nobody is judged anew"
    path.write_bytes(as_set(public(OTHER, "o"), public(EC, "e")))
    made._step()
    assert kids(made) == ["o", "e"]
    for wrong in (b"{", as_set()):
        path.write_bytes(wrong)
        for _ in range(3):
            made._step()
        assert kids(made) == ["o", "e"]
        with pytest.raises(InvalidSetting):
            Jwks(config(str(path)))
    path.unlink()
    made._step()
    assert kids(made) == ["o", "e"]
    told = [each.getMessage().split()[0] for each in caplog.records]
    assert told == [*["jwt.keys_taken"] * 2, *["jwt.keys_refused"] * 3]


def test_a_file_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    """V4."""
    path = tmp_path / "keys.json"
    path.write_bytes(as_set(public(RSA)))
    os.chmod(path, 0o666)
    named = {"jwt.issuer": "i", "jwt.audience": "a", "jwt.keys": str(path)}
    with pytest.raises(InvalidSetting, match="chmod o-w"):
        check_auth_files(load(None, {}, named))
    os.chmod(path, 0o644)
    check_auth_files(load(None, {}, named))


def test_keys_are_fetched_over_tls_and_nothing_else_is_taken_for_them(
    ours: Authority, issuer: tuple[str, type[Answers]], tmp_path: Path
) -> None:
    url, answers = issuer
    made = Jwks(config(url, tls_ca=ours.ca))
    assert made.keys() == (), "V1"
    assert (made.rules.issuer, made.rules.keys()) == ("https://id.example", ())
    answers.said = 200, as_set(public(RSA))
    assert made._step() == REFRESH_S
    assert kids(made) == ["k"]
    assert answers.asked == ["/keys?v=1"]
    for said in (
        (404, b"{}"),
        (302, b""),
        (500, as_set(public(EC))),
        (200, b"<html>"),
        (200, bytes(JWKS_BYTES_MAX + 1)),
    ):
        answers.said = said
        assert made._step() == RETRY_S
        assert kids(made) == ["k"]
    assert "/elsewhere" not in answers.asked
    answers.said = 200, as_set(public(EC, "e"))
    stranger = Jwks(config(url, tls_ca=Authority(tmp_path / "other").ca))
    assert stranger._step() == RETRY_S
    assert stranger.keys() == ()
    assert made._step() == REFRESH_S
    assert kids(made) == ["e"]


def test_keys_are_kept_for_a_day_and_no_longer(caplog: pytest.LogCaptureFixture) -> None:
    """V2."""
    now, answer = [1_000.0], [as_set(public(RSA))]

    def fetch(_: JwtConfig) -> bytes:
        if not answer:
            raise ConnectionRefusedError("refused")
        return answer[0]

    made = Jwks(config("https://id.example/keys"), fetch=fetch, clock_s=lambda: now[0], wall_s=lambda: 7.0)
    assert [value for *_, value in made.samples()] == [0.0]
    made._step()
    assert [value for *_, value in made.samples()] == [7.0]
    del answer[0]
    now[0] += KEPT_S
    for _ in range(3):
        made._step()
    assert kids(made) == ["k"]
    assert len([each for each in caplog.records if "jwt.keys_refused" in each.getMessage()]) == 1
    now[0] += 1
    assert kids(made) == []
    answer.append(as_set(public(RSA)))
    made._step()
    assert kids(made) == ["k"]


def test_who_shows_unknown_keys_has_them_fetched_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """V3."""
    now, woken = [1_000.0], [0]
    made = Jwks(config("https://id.example/keys"), fetch=lambda _: as_set(public(RSA)), clock_s=lambda: now[0])

    def wake() -> None:
        woken[0] += 1

    monkeypatch.setattr(made._loop, "wake", wake)
    made._step()
    for _ in range(100):
        made.missed()
    assert woken == [0]
    now[0] += MISSED_S
    made.missed()
    assert woken == [1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"issuer": "i"}, r"jwt\.issuer needs jwt\.audience and jwt\.keys"),
        ({"keys": "/x"}, r"jwt\.keys needs jwt\.issuer and jwt\.audience"),
        ({"keys": "http://id.example/keys"}, "must be a path, or https"),
        ({"keys": "https://"}, "must be a path, or https"),
        ({"keys": "https://user:password@id.example/"}, "must be a path, or https"),
        ({"algorithms": "HS256"}, r"jwt\.algorithms"),
        ({"algorithms": "none"}, r"jwt\.algorithms"),
        ({"principal": "broker"}, r"jwt\.principal"),
        ({"principal": "admin"}, r"jwt\.principal"),
    ],
)
def test_a_configuration_that_would_believe_too_much_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        load(None, {f"LIFTLOG_JWT_{key.upper()}": value for key, value in given.items()})


def test_a_url_that_cannot_be_asked_is_refused_at_the_start() -> None:
    for place in ("id.example:99999/keys", "[::1/keys", "id.example/a key", "id.example/ä"):
        with pytest.raises(InvalidSetting, match="is no address of the form"):
            Jwks(config(f"https://{place}"))
    assert place_of("https://[::1]:5/keys?v=1") == ("::1", 5, "/keys?v=1")
    assert place_of("https://id.example") == ("id.example", 443, "/")


def test_a_fault_of_ours_is_said_and_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    def fetch(_: JwtConfig) -> bytes:
        raise KeyError("oops")

    made = Jwks(config("https://id.example/keys"), fetch=fetch)
    assert made._step() == RETRY_S
    assert "jwt.bug" in caplog.text


def test_an_issuer_that_does_not_end_its_answer_is_given_up_and_no_stop_waits_for_it(
    ours: Authority, issuer: tuple[str, type[Answers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, answers = issuer
    go_on = threading.Event()

    def drip(self: Answers) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while not go_on.wait(0.02):
                self.wfile.write(b" ")

    monkeypatch.setattr(answers, "do_GET", drip)
    monkeypatch.setattr(jwks, "TIMEOUT_S", 0.2)
    with pytest.raises(TimeoutError, match="its answer took more than"):
        jwks.fetched(config(url, tls_ca=ours.ca))
    monkeypatch.setattr(jwks, "TIMEOUT_S", 60.0)
    made = Jwks(config(url, tls_ca=ours.ca))
    made.start()
    made.stop()
    assert made._loop._thread.is_alive(), "it hears to the end, and nobody waits"
    go_on.set()
    made._loop._thread.join(30)
    assert not made._loop._thread.is_alive()


def test_without_an_issuer_there_are_none() -> None:
    assert jwks_of(JwtConfig()) is None
