"""A client's token: where it is read, and to whom it goes."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from traceback import TracebackException
from typing import Any

import pytest

from broker.api.errors import InvalidRequest, InvalidSetting, Unauthenticated, Unavailable
from broker.api.principals import is_jwt, new_token
from broker.client.client import connect
from broker.client.http import token as client_token
from broker.client.http.address import parse_address
from broker.client.http.pool import Pool
from broker.client.http.profiles import files_for
from broker.client.http.token import TokenFile
from tests.unit.client.rawserver import RawServer, Reply, Request

TOKEN = new_token()


def refuses(*_: Any) -> None:
    raise ConnectionRefusedError


def resets(*_: Any) -> None:
    raise ConnectionResetError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN.text + "\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("address", ["https://broker.example:9293", "localhost", "127.0.0.1:1", "127.9.9.9", "::1"])
def test_a_token_goes_over_tls_and_to_this_machine(file: Path, address: str) -> None:
    """W1."""
    header = TokenFile(str(file)).header_for(parse_address(address))
    assert header == {"Authorization": f"Bearer {TOKEN.text}"}


@pytest.mark.parametrize(
    "address", ["broker.example", "10.0.0.1:9293", "localhost.evil.example", "0.0.0.0", "[fe80::1]:1", "128.0.0.1"]
)
def test_a_token_goes_nowhere_else(file: Path, address: str) -> None:
    token = TokenFile(str(file))
    with pytest.raises(InvalidRequest, match="not sent there without TLS") as refused:
        token.header_for(parse_address(address))
    assert TOKEN.text not in str(refused.value)
    with (
        connect(address, token_file=str(file), deadline_s=0) as client,
        pytest.raises(InvalidRequest, match="not sent"),
    ):
        client.whoami()


def test_a_file_that_is_no_secret_or_no_token_is_refused(file: Path) -> None:
    """W2, W4."""
    file.chmod(0o604)
    with pytest.raises(InvalidSetting, match="chmod 600"):
        connect("localhost", token_file=str(file))
    file.chmod(0o600)
    for text in ("", "llg_x", TOKEN.text[:-1], "x" * 10_000, "a.b", "a.b.", "a.b.c.d", "a.b c.d", "a.b." + "c" * 8_000):
        file.write_text(text)
        with pytest.raises(InvalidSetting, match="holds no token"):
            connect("localhost", token_file=str(file))
    with pytest.raises(InvalidSetting, match="cannot be read"):
        connect("localhost", token_file=str(file.parent / "nothing"))


def test_a_jwt_is_shown_as_it_is(file: Path) -> None:
    """A broker says whether it is good."""
    file.write_text("eyJh-_.eyJp.c2ln\n")
    shown = TokenFile(str(file)).header_for(parse_address("localhost"))
    assert shown == {"Authorization": "Bearer eyJh-_.eyJp.c2ln"}


def test_a_token_can_be_replaced_while_its_client_runs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W3."""
    monkeypatch.setattr("broker.client.http.token.LOOK_S", 0.0)
    here, token, later = parse_address("localhost"), TokenFile(str(file)), new_token()
    file.write_text(later.text)
    os.utime(file, ns=(1, 1))
    assert token.header_for(here) == {"Authorization": f"Bearer {later.text}"}
    file.unlink()
    assert token.header_for(here) == {"Authorization": f"Bearer {later.text}"}


def test_half_a_token_is_not_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W3. Half a JWT looks like one, and the call that showed it was refused for good."""
    monkeypatch.setattr(client_token, "LOOK_S", 0.0)
    token, here = TokenFile(str(file)), parse_address("127.0.0.1:1")
    first, whole = token.header_for(here), ".".join(part * 20 for part in ("eyJhbGciOiJub25l", "claim", "signature"))
    file.write_text(whole[:-90])
    assert is_jwt(whole[:-90])
    assert token.header_for(here) == first
    with file.open("a") as goes_on:
        goes_on.write(whole[-90:])
    assert token.header_for(here) == first, "nobody knows that it is whole"
    written_s = file.stat().st_mtime - 2 * client_token.SETTLED_S
    os.utime(file, (written_s, written_s))
    assert token.header_for(here) == {"Authorization": f"Bearer {whole}"}


def test_a_call_that_outlives_its_token_is_made_again_with_the_one_that_is_in_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W5. Once, and only if the file has another one: also one that is just written."""
    monkeypatch.setattr(client_token, "SETTLED_S", 0.02)
    shown: list[str] = []
    refused = b'{"reason": "unauthenticated", "title": "x", "status": 401, "detail": "unauthenticated"}'
    whoami = {"principal": "user:a", "how": "jwt", "mode": "enforce", "admin": False, "grants": [], "expires_ms": None}
    renewed = [new_token(), new_token()]

    def handle(request: Request, reply: Reply) -> None:
        shown.append(request.headers["authorization"].removeprefix("Bearer "))
        if len(shown) in (2, 3, 5):
            if len(shown) != 3:
                file.write_text(renewed[len(shown) == 5].text)
            reply.answer(401, refused, {"Content-Type": "application/problem+json"})
        else:
            reply.answer(200, json.dumps(whoami).encode(), {"Content-Type": "application/json"})

    with RawServer(handle) as server, connect(server.address, token_file=str(file), deadline_s=0) as client:
        for is_refused in (False, True, False, False):
            with pytest.raises(Unauthenticated) if is_refused else contextlib.nullcontext():
                client.whoami()
    first, second = (each.text for each in renewed)
    assert shown == [TOKEN.text, TOKEN.text, first, first, first, second]


def test_who_is_not_known_hears_which_file_was_not_taken(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker says nothing. The new token is in a file that cannot be used: that is said before the old one ends."""
    monkeypatch.setattr(client_token, "LOOK_S", 0.0)
    refused = b'{"reason": "unauthenticated", "title": "x", "status": 401, "detail": "unauthenticated", "sent": true}'

    def handle(request: Request, reply: Reply) -> None:
        reply.answer(401, refused, {"Content-Type": "application/problem+json"})

    later = new_token()
    with RawServer(handle) as server, connect(server.address, token_file=str(file), deadline_s=0) as client:
        with pytest.raises(Unauthenticated, match=f"{server.address} does not take the token of '{file}'") as first:
            client.whoami()
        file.write_text(later.text)
        os.utime(file, ns=(1, 1))
        file.chmod(0o644)
        for _ in range(2):
            with pytest.raises(Unauthenticated, match=r"an earlier token was shown: .*chmod 600") as second:
                client.whoami()
    assert first.value.fields["sent"] is second.value.fields["sent"] is True
    told = [each.getMessage() for each in caplog.records if "client.token_not_read" in each.getMessage()]
    assert len(told) == 1, "once"
    for each in (*told, str(first.value), str(second.value)):
        assert TOKEN.text not in each
        assert later.text not in each
    with (
        RawServer(handle) as server,
        connect(server.address, deadline_s=0) as client,
        pytest.raises(Unauthenticated, match="does not take the certificate of this client"),
    ):
        client.whoami()


def test_a_change_that_outlives_its_token_is_in_doubt_though_nobody_is_there_any_more(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W5, C3. The second try reaches nobody: that says nothing of the first."""
    exchange, tries = Pool._exchange, list[object]()

    def once(pool: Pool, address: Any, *arguments: Any, **options: Any) -> Any:
        tries.append(address)
        if len(tries) > 1:
            raise Unavailable(f"{address}: connection refused", address=str(address), sent=False, timed_out=False)
        return exchange(pool, address, *arguments, **options)

    def handle(request: Request, reply: Reply) -> None:
        file.write_text(new_token().text)
        refused = b'{"reason": "unauthenticated", "title": "x", "status": 401, "detail": "unauthenticated"}'
        reply.answer(401, refused, {"Content-Type": "application/problem+json"})

    monkeypatch.setattr(Pool, "_exchange", once)
    monkeypatch.setattr(client_token, "SETTLED_S", 0.02)
    with (
        RawServer(handle) as server,
        connect(server.address, token_file=str(file), deadline_s=0) as client,
        pytest.raises(Unavailable) as error,
    ):
        client.delete_stream("orders")
    assert error.value.fields["sent"] is True
    assert len(tries) == 2


@pytest.mark.parametrize(("call", "fails"), [("connect", refuses), ("send", resets), ("getresponse", resets)])
def test_a_traceback_with_all_locals_has_no_token(
    file: Path, monkeypatch: pytest.MonkeyPatch, call: str, fails: Callable[..., None]
) -> None:
    """W4. As debuggers, notebooks and those who collect errors print them."""
    with RawServer(lambda _, reply: reply.answer(200, b"{}")) as server:
        monkeypatch.setattr(HTTPConnection, call, fails)
        with (
            connect(f"127.0.0.1:{server.port}", deadline_s=0.1, token_file=str(file)) as client,
            pytest.raises(Unavailable) as error,
        ):
            client.delete_stream("orders")
    told = "".join(TracebackException.from_exception(error.value, capture_locals=True).format())
    assert "request = Request(method='DELETE'" in told
    assert "Authorization" in told
    assert TOKEN.text.rpartition("_")[2] not in told


def test_nothing_that_is_shown_or_pickled_has_the_token(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W4."""
    monkeypatch.setenv("LIFTLOG_TOKEN_FILE", str(file))
    files = files_for()
    assert files.token == str(file)
    secret = TOKEN.text.rpartition("_")[2]
    with connect("localhost") as client:
        shown = [repr(client), repr(client.brokers.pool), repr(files), repr(TokenFile(str(file))), pickle.dumps(files)]
    assert not any(secret in str(each) for each in shown)
