"""TLS of the client.

Goal: nothing is said to a broker that is not believed, no answer leads away from TLS, and what cannot work is said at
once, with its cause; a connection over TLS is kept, ended and given up as a plain one is. Method: the application over
TLS, and raw servers, with certificates of a CA of the test. Deadlines are an hour: whoever tried again would never end.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.api.errors import InvalidRequest, InvalidSetting, NotLeader, Unavailable
from broker.client.client import Client, connect
from broker.client.http import pool
from broker.client.http.address import Address
from broker.client.http.brokers import Brokers
from broker.client.http.interrupt import Interrupt
from broker.client.http.pool import Request as Asked
from tests.support.certificates import Authority
from tests.unit.client.rawserver import RawServer, Reply, Request
from tests.unit.serving.server import Server, running

HOUR_S = 3600.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("server"), body_bytes_max=64 << 20) as server:
        yield server


def listening(server: Server, authority: Authority, **settings: str) -> str:
    """The address of that server over TLS."""
    return f"https://127.0.0.1:{server.call(server.listen(authority.certificates(None, **settings).contexts))}"


def client_of(authority: Authority, *addresses: str, ca: str | None = None) -> Client:
    return connect(addresses, tls_ca=ca or authority.ca, deadline_s=HOUR_S)


def test_all_that_a_client_does_works_over_tls(server: Server, authority: Authority) -> None:
    """Large answers, large requests, long polls; on one connection after another."""
    with client_of(authority, listening(server, authority)) as client:
        client.create_stream("all", segment_bytes=8 << 20)
        rows = [{"value": b"%d" % number + b"." * 10_000} for number in range(1000)]
        for _ in range(3):
            client.append("all", 0, rows)
        assert client.read("all").to_table()["value"].to_pylist() == [row["value"] for row in rows] * 3
        version = client.watch(streams="all").version
        assert client.watch(version, "all", max_wait_s=0.05).version == version
        client.commit("me", {"all": {0: 7}})
        assert client.ready() is not None


def test_a_connection_is_kept(authority: Authority) -> None:
    def answer(request: Request, reply: Reply) -> None:
        reply.answer(200, b"{}")

    with RawServer(answer, tls=authority.certificates().contexts.server()) as server:
        brokers = Brokers(server.address, tls=authority.client_files())
        for _ in range(5):
            exchange = brokers.exchange(Asked(target="/v1/x", timeout_s=60))
            assert exchange.read_all(10) == b"{}"
            exchange.close()
        assert (server.connection_count, len(server.requests)) == (1, 5)
        brokers.pool.close()


# --- who is not believed ---------------------------------------------------------------------------------------


def test_another_ca_and_another_name_are_refused_at_once(server: Server, authority: Authority, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign")
    with (
        client_of(authority, listening(server, authority), ca=foreign.ca) as client,
        pytest.raises(InvalidRequest, match=r"^.*https://127\.0\.0\.1:\d+: its certificate is not believed: .*tls_ca"),
    ):
        client.streams()
    elsewhere = authority.certificates(authority.issue("elsewhere", "elsewhere.example"))
    address = f"https://127.0.0.1:{server.call(server.listen(elsewhere.contexts))}"
    with client_of(authority, address) as client, pytest.raises(InvalidRequest, match=r"not believed: .*127\.0\.0\.1"):
        client.streams()


def test_a_change_that_nobody_was_told_of_is_in_no_doubt(server: Server, authority: Authority, tmp_path: Path) -> None:
    """Before the handshake, and after it, where TLS 1.3 has a client say its request before it is refused."""
    foreign = Authority(tmp_path / "foreign")
    strict = listening(server, authority, tls_client_ca=authority.ca)
    for client in (client_of(authority, strict, ca=foreign.ca), client_of(authority, strict)):
        with client, pytest.raises(InvalidRequest) as caught:
            client.append("all", 0, [{"value": b"x"}], stamp=None)
        assert not caught.value.fields.get("sent")
    assert "tls_cert, tls_key" in str(caught.value)


@pytest.mark.parametrize("is_kept", [False, True])
def test_an_alert_says_that_nothing_was_done_on_a_new_connection_alone(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """V2. On a kept one the certificate was taken long ago: nobody knows what was done. Nor amid an answer."""
    alert = ssl.SSLError(1, "alert")
    alert.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"

    def fail(self: http.client.HTTPConnection) -> http.client.HTTPResponse:
        raise alert

    with RawServer(lambda _, reply: reply.answer(200, b"{}"), tls=authority.certificates().contexts.server()) as server:
        brokers = Brokers(server.address, tls=authority.client_files())
        asked = Asked(method="POST", target="/v1/x", timeout_s=60, is_idempotent=False)
        if is_kept:
            exchange = brokers.exchange(asked)
            exchange.read_all(10)
            exchange.close()
        monkeypatch.setattr(http.client.HTTPConnection, "getresponse", fail)
        with pytest.raises(Unavailable if is_kept else InvalidRequest) as caught:
            brokers.exchange(asked)
        assert bool(caught.value.fields.get("sent")) is is_kept
        assert server.connection_count == 1
        assert pool.unavailable(Address("a", 1, True), alert, sent=True).sent, "of a body"
        brokers.pool.close()


def test_who_is_not_believed_is_passed_over_like_one_that_is_away(
    server: Server, authority: Authority, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path / "foreign")
    bad = listening(server, foreign)
    with client_of(authority, bad, listening(server, authority)) as client:
        for _ in range(3):
            client.streams()
    with RawServer(lambda request, reply: None) as gone:
        away = f"https://127.0.0.1:{gone.port}"
    with connect([bad, away], tls_ca=authority.ca, deadline_s=0) as client, pytest.raises(Unavailable, match="not bel"):
        client.streams()


def test_http_where_tls_is_spoken_and_tls_where_it_is_not_are_said(server: Server, authority: Authority) -> None:
    port = listening(server, authority).rpartition(":")[2]
    with connect(f"127.0.0.1:{port}", deadline_s=HOUR_S) as client, pytest.raises(InvalidRequest, match="https://host"):
        client.streams()
    with (
        client_of(authority, f"https://127.0.0.1:{server.port}") as client,
        pytest.raises(InvalidRequest, match=r"does not speak TLS there; .*http\.tls_cert"),
    ):
        client.streams()


def test_a_certificate_is_shown_where_one_is_wanted(server: Server, authority: Authority, tmp_path: Path) -> None:
    strict = listening(server, authority, tls_client_ca=authority.ca)
    mine = authority.issue("me", "me.example")
    with connect(strict, tls_ca=authority.ca, tls_cert=mine.cert, tls_key=mine.key) as client:
        client.streams()
    other = Authority(tmp_path / "foreign").issue()
    with (
        connect(strict, tls_ca=authority.ca, tls_cert=other.cert, tls_key=other.key, deadline_s=HOUR_S) as client,
        pytest.raises(InvalidRequest, match="refuses this client's certificate"),
    ):
        client.streams()


# --- no answer leads away from TLS ---------------------------------------------------------------------------------


def test_brokers_that_others_name_are_asked_over_tls(authority: Authority) -> None:
    """B5. A leader, the others of the cluster and a replica are named as host:port, or even as http://host:port."""
    context = authority.certificates().contexts.server()

    def lead(request: Request, reply: Reply) -> None:
        reply.answer(200, b"{}")

    with RawServer(lead, tls=context) as leader:

        def point(request: Request, reply: Reply) -> None:
            named = {"id": "b", "http": f"http://127.0.0.1:{leader.port}"}
            problem = NotLeader("elsewhere", leader=named).to_problem()
            headers = {"Content-Type": "application/problem+json", "Liftlog-Brokers": "a:1,http://b:2,https://c:3"}
            reply.answer(421, json.dumps(problem).encode(), headers)

        with RawServer(point, tls=context) as first:
            brokers = Brokers(first.address, tls=authority.client_files())
            exchange = brokers.exchange(Asked(target="/v1/x", timeout_s=60), key=("s", 0))
            assert exchange.read_all(10) == b"{}"
            exchange.close()
            assert len(leader.requests) == 1
            candidates = brokers.candidates(("s", 0))
            assert {Address("a", 1, True), Address("b", 2, True), Address("c", 3, True)} <= set(candidates)
            assert all(address.is_tls for address in candidates)
            brokers.pool.close()
    plain = Brokers("a")
    assert plain.named("https://b:1") == Address("b", 1), "nor is TLS begun by what an answer says"


# --- waits -------------------------------------------------------------------------------------------------------


def test_a_wait_that_is_ended_gives_no_byte_of_what_still_comes(authority: Authority) -> None:
    """`interrupt`: the socket is shut, TLS is not: what came encrypted must not be taken for the answer."""
    interrupt, waits = Interrupt(), threading.Event()

    def half(request: Request, reply: Reply) -> None:
        reply.head(200, 1 << 20)
        reply.send(b"x" * 100)
        waits.wait(60)
        with contextlib.suppress(OSError):
            reply.send(b"y" * 1000)
        reply.close()

    with RawServer(half, tls=authority.certificates().contexts.server()) as server:
        brokers = Brokers(server.address, tls=authority.client_files())
        exchange = brokers.exchange(Asked(target="/v1/x", timeout_s=60, interrupt=interrupt))
        found = bytearray(1 << 16)
        count = 0
        while count < 100:
            count += exchange.readinto(memoryview(found)[count:])
        interrupt.set()
        waits.set()
        try:
            after = exchange.readinto(memoryview(found)[count:])
        except Unavailable:
            after = 0
        assert bytes(found[:count]) == b"x" * 100
        assert set(found[count : count + after]) <= {ord("y")}
        exchange.close()
        brokers.pool.close()


@pytest.mark.slow
@pytest.mark.long
def test_a_frozen_broker_is_passed_over_over_tls_too(authority: Authority) -> None:
    """`silence`: also one that freezes behind the handshake, amid an answer that others could give."""

    def yes(request: Request, reply: Reply) -> None:
        reply.answer(200, b"{}")

    context = authority.certificates().contexts.server()
    with RawServer(yes, tls=context) as first, RawServer(yes, tls=context) as other:
        brokers = Brokers([first.address, other.address], tls=authority.client_files())
        asked = Asked(target="/v1/x", timeout_s=HOUR_S)
        for is_kept in (False, True):
            if is_kept:
                brokers.exchange(asked).close(keep=False)
            with first.frozen():
                begun = time.monotonic()
                exchange = brokers.exchange(asked)
                assert exchange.address.port == other.port
                exchange.close()
                assert time.monotonic() - begun < 60
        brokers.pool.close()


# --- what is given -------------------------------------------------------------------------------------------------


def test_files_are_of_the_arguments_or_of_the_environment(
    server: Server, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = authority.issue("mine", "me.example")
    address = listening(server, authority, tls_client_ca=authority.ca)
    monkeypatch.setenv("LIFTLOG_BROKERS", address)
    monkeypatch.setenv("LIFTLOG_TLS_CA", authority.ca)
    monkeypatch.setenv("LIFTLOG_TLS_CERT", mine.cert)
    monkeypatch.setenv("LIFTLOG_TLS_KEY", mine.key)
    with connect() as client:
        client.streams()
    with connect(f"127.0.0.1:{server.port}") as client:
        client.streams()  # they are for others
    with pytest.raises(InvalidSetting, match=r"tls_ca = .*none\.pem.: cannot be read"):
        connect(tls_ca=str(tmp_path / "none.pem"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tls_ca": "none"}, "tls_ca = 'none': cannot be read: No such file"),
        ({"tls_cert": "a"}, "tls_cert and tls_key are given together"),
        ({"tls_key": "a"}, "tls_cert and tls_key are given together"),
        ({"tls_cert": "none", "tls_key": "none"}, "tls_cert = 'none': cannot be read"),
    ],
)
def test_what_cannot_be_used_is_said_when_a_client_is_made(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        connect("https://a", **given)  # type: ignore[arg-type]


def test_files_for_addresses_without_tls_are_refused(authority: Authority) -> None:
    with pytest.raises(InvalidRequest, match=r"tls_ca: for addresses such as https://host:port, and a:9293 is not"):
        connect("a", tls_ca=authority.ca)


def test_a_key_that_others_can_read_is_refused(authority: Authority, tmp_path: Path) -> None:
    mine = authority.issue("open", "me.example")
    Path(mine.key).chmod(0o604)
    with pytest.raises(InvalidRequest, match=r"tls_key = .*mode 0604"):
        connect("https://a", tls_ca=authority.ca, tls_cert=mine.cert, tls_key=mine.key)
