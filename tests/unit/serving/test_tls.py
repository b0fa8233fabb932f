"""TLS on the HTTP port.

Goal: the same bytes as in plain; whoever fails a handshake hears why, and one line of the log says it; whoever never
ends one takes no place that another needs. Method: the application as a broker runs it, with certificates of a CA of
the test; clients are the standard library's and raw sockets.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import logging
import os
import re
import socket
import ssl
import time
from asyncio.sslproto import SSLProtocol, SSLProtocolState
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import Unavailable
from broker.api.http import PROBLEM_JSON
from broker.serving.http import closing, connections
from broker.serving.http.access import AuthRules
from broker.serving.http.app import CONNECTIONS
from broker.serving.http.connections import ConnectionLimits
from broker.serving.http.meters import RateLimitedLog
from broker.serving.http.peers import Peers
from broker.serving.http.sending import COPY_BYTES, PIECE_BYTES
from broker.serving.http.tls import BUFFER_BYTES, Secured
from tests.support.certificates import Authority, Issued
from tests.support.processes import eventually
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Server, running

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n"
WHOAMI = LIVEZ.replace(b"/livez", b"/v1/auth/whoami")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "LINGER_S", 60.0)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


class Tls:
    """A server that also listens over TLS."""

    def __init__(self, server: Server, authority: Authority, issued: Issued | None = None, **settings: str) -> None:
        self.server = server
        self.port = server.call(server.listen(authority.certificates(issued, **settings).contexts))
        self.authority = authority

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def connect(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        context = context or self.authority.client_context()
        return context.wrap_socket(self.raw(), server_hostname="127.0.0.1")

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        client = http.client.HTTPSConnection(
            "127.0.0.1", self.port, context=self.authority.client_context(), timeout=60
        )
        try:
            client.request("GET", path, headers=headers or {})
            answer = client.getresponse()
            return answer.status, answer.read()
        finally:
            client.close()

    def metric(self, text: str) -> bool:
        return text.encode() in self.server.api.get("/metrics").body


@pytest.fixture
def tls(tmp_path: Path, authority: Authority) -> Iterator[Tls]:
    with running(tmp_path / "data", body_bytes_max=16 << 20) as server:
        yield Tls(server, authority)


def hurry(tls: Tls) -> None:
    async def on_loop() -> None:
        owner = tls.server.app[CONNECTIONS]
        owner.limits = ConnectionLimits(header_timeout_s=0.3)
        if owner._timer is not None:
            owner._timer.cancel()
            owner._timer = None

    tls.server.call(on_loop())


def heard(client: socket.socket) -> bytes:
    found = b""
    while data := client.recv(1 << 16):
        found += data
    return found


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]


# --- the same bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_same_bytes_arrive_of_large_segments(tmp_path: Path, authority: Authority, version: ssl.TLSVersion) -> None:
    """Several pieces of several files, twice on one connection: there is no sendfile, bytes are copied."""
    with running(tmp_path / "data", body_bytes_max=32 << 20) as server:
        server.api.create("big", segment_bytes=20 << 20)
        for _ in range(3):
            assert server.api.append("big", values(5000, 4000)).status == 200
        tls = Tls(server, authority, tls_min_version="1.2")
        query = "/v1/streams/big/partitions/0/records?max_bytes=100000000"
        plain = server.api.get(query).body
        assert len(plain) > 3 * PIECE_BYTES > COPY_BYTES
        context = authority.client_context()
        context.minimum_version = context.maximum_version = version
        client = http.client.HTTPSConnection("127.0.0.1", tls.port, context=context, timeout=60)
        for _ in range(2):
            client.request("GET", query)
            assert client.getresponse().read() == plain
        client.close()


def test_an_older_version_is_refused_unless_it_is_allowed(tls: Tls, caplog: pytest.LogCaptureFixture) -> None:
    context = tls.authority.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        tls.connect(context)
    eventually(lambda: lines(caplog), what="the log says it")
    (line,) = lines(caplog)
    assert line.startswith("http.handshake_failed error='unsupported protocol' count=1 remote=")


def test_a_handshake_that_comes_byte_by_byte_is_one(tls: Tls) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.authority.client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with tls.raw() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    sock.sendall(bytes([byte]))
                incoming.write(sock.recv(1 << 16))
        client.write(LIVEZ)
        sock.sendall(outgoing.read())
        incoming.write(sock.recv(1 << 16))
        assert client.read(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_what_is_no_http_is_answered_over_tls_too(tls: Tls) -> None:
    with tls.connect() as client:
        client.sendall(b"hello\r\n\r\n")
        assert b" 400 Bad Request" in heard(client)[:30]


def test_no_session_tickets_are_sent(tls: Tls) -> None:
    """T4. Nothing comes that nobody asked for: our clients take that for the answer."""
    with tls.connect() as client:
        client.sendall(LIVEZ)
        assert heard(client).startswith(b"HTTP/1.1 200 ")
        assert client.session is None or not client.session.has_ticket


# --- who asks in plain, and whom nobody believes -------------------------------------------------------------


def test_plain_http_is_answered_in_plain_at_once_and_logged_once(tls: Tls, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        with tls.raw() as client:
            client.sendall(LIVEZ)
            answer = heard(client)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"https://host:port" in answer
            assert PROBLEM_JSON.encode() in answer
    (line,) = lines(caplog)
    assert line.startswith("http.not_tls count=1 remote=")
    assert len(line) < 100


def test_a_client_without_a_certificate_hears_the_alert(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """T2, also when its request was on its way. Nor is one of another CA."""
    with running(tmp_path / "data") as server:
        tls = Tls(server, authority, tls_client_ca=authority.ca)
        with tls.connect() as client:
            client.sendall(LIVEZ)
            with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
                client.recv(100)
        foreign = Authority(tmp_path / "foreign").issue()
        with tls.connect(authority.client_context(foreign)) as client:
            client.sendall(LIVEZ)
            with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
                client.recv(100)
        with tls.connect(authority.client_context(authority.issue("client", "someone"))) as client:
            client.sendall(LIVEZ)
            assert heard(client).startswith(b"HTTP/1.1 200 ")
        assert [line.split(" count")[0] for line in lines(caplog)] == [
            "http.handshake_failed error='peer did not return a certificate'"
        ], "the next one is due in a while"
        assert tls.metric("liftlog_http_handshakes_failed_total 2.0")


async def test_brokers_ask_each_other_over_tls_and_believe_their_ca_alone(tmp_path: Path, authority: Authority) -> None:
    with running(tmp_path / "data") as server:
        tls = Tls(server, authority, tls_client_ca=authority.ca)
        address = f"127.0.0.1:{tls.port}"
        asking = Peers("b1", authority.certificates().contexts)
        assert (await asking.ask(address, "GET", "/v1/streams"))["streams"] == []
        await asking.close()
        foreign = Authority(tmp_path / "foreign")
        for contexts in (foreign.certificates().contexts, None):
            stranger = Peers("b2", contexts)
            try:
                with pytest.raises(Unavailable, match=r"certificate verify failed|this port speaks TLS") as caught:
                    await stranger.ask(address, "GET", "/v1/streams")
                assert caught.value.sent == (contexts is not None), "E7"
            finally:
                await stranger.close()


@pytest.mark.parametrize("mode", ["accept", "dial"])
async def test_a_port_that_takes_both_serves_both_and_counts_them_alike(
    tmp_path: Path, authority: Authority, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """T3, while brokers go from plain text to TLS. Who asks others, asks as they all can by now."""
    caplog.set_level(logging.INFO)
    with running(tmp_path / "data") as server:
        tls = Tls(server, authority, tls_client_ca=authority.ca, tls=mode)
        owner = server.app[CONNECTIONS]
        before = owner._open_count
        for headers in ({}, {"Connection": "close"}):
            plain = http.client.HTTPConnection("127.0.0.1", tls.port, timeout=60)
            plain.request("GET", "/v1/streams", headers=headers)
            assert json.loads(plain.getresponse().read())["streams"] == []
            plain.close()
        mine = authority.issue("b1")
        for step, scheme in (("accept", None), ("dial", "TLSv1.3")):
            asking = Peers("b1", authority.certificates(mine, tls=step).contexts)
            assert (asking._tls is not None) == (scheme is not None)
            assert (await asking.ask(f"127.0.0.1:{tls.port}", "GET", "/v1/streams"))["streams"] == []
            await asking.close()
        with tls.connect(authority.client_context(mine)) as client:
            client.sendall(LIVEZ)
            assert heard(client).startswith(b"HTTP/1.1 200 ")
        with tls.raw() as client:
            client.sendall(b"\0" * 20)
            assert b" 400 " in heard(client)[:16], "what is neither"
        eventually(lambda: owner._open_count == before, what="all are counted out")
        assert tls.metric("liftlog_http_plain_taken_total 4.0"), "two clients, a broker, and what is neither"
        lines = [each.getMessage().rpartition(" remote=")[0] for each in caplog.records]
        assert [line for line in lines if "taken" in line] == ["http.plain_taken count=1"]


@pytest.mark.parametrize("mode", ["accept", "required"])
def test_odd_handshakes_let_nobody_in_where_both_are_taken(
    tmp_path: Path, authority: Authority, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """T3. As where TLS alone is taken: nobody falls back to plain text, and who comes in plain is served meanwhile."""
    caplog.set_level(logging.INFO)
    now = datetime.now(UTC)
    foreign = Authority(tmp_path / "foreign").issue("foreign", uris=["liftlog:user/ana"])
    day = timedelta(days=1)
    bad = {
        "expired": authority.issue("old", uris=["liftlog:user/ana"], not_before=now - 2 * day, not_after=now - day),
        "not yet valid": authority.issue(
            "new", uris=["liftlog:user/ana"], not_before=now + day, not_after=now + 2 * day
        ),
        "unable to get local issuer|self.signed": foreign,
    }
    with running(tmp_path / "data", auth=AuthRules(mode="enforce")) as server:
        tls = Tls(server, authority, tls_client_ca=authority.ca, tls=mode)
        for why, issued in bad.items():
            caplog.clear()
            server.app[CONNECTIONS]._failed = RateLimitedLog()
            with suppress(OSError), tls.connect(authority.client_context(issued)) as client:  # it hears the alert
                client.sendall(LIVEZ)
                assert not heard(client)
            eventually(lambda why=why: re.search(f"http.handshake_failed .*({why})", caplog.text))  # type: ignore[misc]
        for protocols in (["h2"], ["http/1.1"], ["nonsense", "h2"]):
            for issued in (authority.issue("nameless", is_named=False), authority.issue("hosts alone")):
                context = authority.client_context(issued)
                context.set_alpn_protocols(protocols)
                with tls.connect(context) as client:
                    client.sendall(WHOAMI)
                    said = heard(client)
                    assert client.selected_alpn_protocol() in (None, "http/1.1"), "whatever is offered"
                assert b'"principal": "anonymous"' in said, "it names nobody"
        with tls.raw() as client:
            client.sendall(WHOAMI)
            assert (b'"principal": "anonymous"' in heard(client)) == (mode == "accept")


def test_a_page_of_another_site_is_refused_over_tls_too(tls: Tls) -> None:
    """`origin`: by its origin, by a name, and the page of `http://` that whoever changes packets can make."""
    here = f"127.0.0.1:{tls.port}"
    assert tls.get("/v1/streams", {"Origin": f"https://{here}"})[0] == 200
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": f"https://127.0.0.1:{tls.port + 1}"},
        {"Origin": f"http://{here}"},
        {"Host": "evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        status, body = tls.get("/v1/streams", headers)
        assert (status, b"foreign_request" in body) == (403, True), headers


# --- who never ends a handshake --------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_a_handshake_that_does_not_end_counts_and_is_cut(tls: Tls, said: bytes) -> None:
    with tls.raw() as client:
        eventually(lambda: tls.metric("liftlog_http_connections 2.0"), what="it counts")
    eventually(lambda: tls.metric("liftlog_http_connections 1.0"), what="it is gone")
    hurry(tls)
    with tls.raw() as client:
        client.sendall(said)
        with suppress(ConnectionResetError):  # what it said was not read
            assert heard(client) == b""
    assert tls.metric('liftlog_http_timeouts_total{what="handshake"} 1.0')
    eventually(lambda: tls.metric("liftlog_http_connections 1.0"), what="it is gone")


def test_three_hundred_that_never_end_a_handshake_hide_nothing(tmp_path: Path, authority: Authority) -> None:
    """More than may be open: the oldest of them makes room, and never one that is asking something."""
    limits = ConnectionLimits(connections_max=50)
    with running(tmp_path / "data", limits=limits) as server, ExitStack() as stack:
        tls = Tls(server, authority)
        server.api.create("orders")
        poll = stack.enter_context(tls.connect())
        poll.sendall(b"GET /v1/streams/orders/partitions/0/records?max_wait_ms=60000 HTTP/1.1\r\nHost: [::1]\r\n\r\n")
        eventually(lambda: server.backend._hub._waiter_count, what="the poll waits")
        for number in range(300):
            stuck = stack.enter_context(tls.raw())
            if number % 2:
                stuck.sendall(b"\x16\x03\x01")
        assert tls.get("/livez")[0] == 200
        assert tls.get("/readyz")[0] in (200, 503)
        assert server.backend._hub._waiter_count == 1
        writer = server.api.another()
        writer.append("orders", values(1))
        writer.close()
        assert poll.recv(20).startswith(b"HTTP/1.1 200 ")


def test_connections_beyond_the_room_are_ended_without_a_word(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N5: all have requests under way. What cannot be said over TLS is not said in plain."""
    monkeypatch.setattr(connections, "ROOM_MAX", 0)
    poll = b"GET /v1/streams/orders/partitions/0/records?max_wait_ms=60000 HTTP/1.1\r\nHost: [::1]\r\n\r\n"
    with running(tmp_path / "data", limits=ConnectionLimits(connections_max=2)) as server, ExitStack() as stack:
        server.api.create("orders")
        server.api.close()
        tls = Tls(server, authority)
        for count in (1, 2):
            stack.enter_context(tls.connect()).sendall(poll)
            eventually(lambda count=count: server.backend._hub._waiter_count == count, what="it waits")  # type: ignore[misc]
        with tls.raw() as client:
            assert heard(client) == b""


def test_a_server_that_ends_cuts_handshakes(tmp_path: Path, authority: Authority) -> None:
    with running(tmp_path / "data") as server:
        tls = Tls(server, authority)
        with tls.raw() as client:
            eventually(lambda: tls.metric("liftlog_http_connections 2.0"), what="it counts")
            begun = time.monotonic()
            server.shut_down()
            assert heard(client) == b""
            assert time.monotonic() - begun < 60


# --- how one ends ----------------------------------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def narrow(server: Server) -> None:
    """The system takes little of what the server sends from now on, and `slow` clients as little of it."""
    for listening in server._listening:
        listening.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 10)


def slow(port: int, context: ssl.SSLContext | None) -> socket.socket:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 10)
    raw.settimeout(60)
    raw.connect(("127.0.0.1", port))
    return raw if context is None else context.wrap_socket(raw, server_hostname="127.0.0.1")


def test_silent_ones_that_are_cut_keep_no_descriptor(tmp_path: Path, authority: Authority) -> None:
    """T5: nobody waits for them to end TLS, and they count no more."""
    with running(tmp_path / "data", limits=ConnectionLimits(connections_max=3)) as server, ExitStack() as stack:
        tls = Tls(server, authority)
        before = descriptors()
        for _ in range(15):
            stack.enter_context(tls.connect())
        eventually(lambda: descriptors() <= before + 15 + 3, timeout_s=20, what="only three are open")


def test_who_takes_an_answer_slowly_gets_all_of_it_before_the_end(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T5, wherever it pauses for longer than a cut one may take."""
    monkeypatch.setattr(closing, "LINGER_S", 0.1)
    with running(tmp_path / "data") as server, ExitStack() as stack:
        server.api.create("big")
        server.api.append("big", values(100, 5000))
        length = len(server.api.get("/v1/streams/big/partitions/0/records").body)
        tls = Tls(server, authority)
        narrow(server)
        ask = b"GET /v1/streams/big/partitions/0/records HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n"
        clients = [(left, stack.enter_context(slow(tls.port, authority.client_context()))) for left in LEFT]
        found = []
        for left, client in clients:
            client.sendall(ask)
            taken = bytearray()
            while len(taken) < length - left:
                taken += client.recv(1000)
            found.append(taken)
        time.sleep(0.5)  # longer than LINGER_S
        for taken, (_, client) in zip(found, clients, strict=True):
            taken += heard(client)
            assert len(taken) - taken.index(b"\r\n\r\n") - 4 == length


LEFT = (10_000, 20_000, 40_000, 70_000, 120_000)


@pytest.mark.parametrize("is_tls", [False, True])
def test_who_is_cut_and_takes_nothing_keeps_no_descriptor(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, is_tls: bool
) -> None:
    """N9: an answer that fits into the broker's buffer is over, and its connection idle."""
    monkeypatch.setattr(closing, "LINGER_S", 0.1)
    with running(tmp_path / "data", limits=ConnectionLimits(connections_max=2)) as server, ExitStack() as stack:
        server.api.create("small")
        server.api.append("small", values(10, 5000))
        server.api.close()
        tls = Tls(server, authority)
        narrow(server)
        port, context = (tls.port, authority.client_context()) if is_tls else (server.port, None)
        before = descriptors()
        for _ in range(8):
            client = stack.enter_context(slow(port, context))
            client.sendall(b"GET /v1/streams/small/partitions/0/records HTTP/1.1\r\nHost: [::1]\r\n\r\n")
            client.recv(1)
        eventually(lambda: descriptors() <= before + 8 + 2, timeout_s=20, what="two are open")


def test_one_that_is_cut_amid_a_head_hears_why_over_tls(tls: Tls) -> None:
    """`connections.N2`: also if it goes on sending."""
    with tls.connect() as client:
        with suppress(OSError):
            client.sendall(b"GET /" + b"a" * (1 << 20))
        assert b" 414 " in heard(client)[:20]


def test_of_what_nobody_takes_little_is_encrypted(tls: Tls) -> None:
    """T6."""
    tls.server.api.create("big")
    tls.server.api.append("big", values(1000, 5000))
    narrow(tls.server)
    with slow(tls.port, tls.authority.client_context()) as client:
        client.sendall(b"GET /v1/streams/big/partitions/0/records HTTP/1.1\r\nHost: [::1]\r\n\r\n")
        (found,) = eventually(
            lambda: [each for each in gc.get_objects() if isinstance(each, Secured) and each._mine._write_backlog]
        )
        assert found.unsent() - found._mine._write_buffer_size < 3 * BUFFER_BYTES
        assert found._get_write_buffer_size() > BUFFER_BYTES


# --- what is private -------------------------------------------------------------------------------------------


async def test_asyncio_has_what_a_handshake_is_made_of(authority: Authority) -> None:
    """A Python that renames it fails here, and not in a handshake."""
    context = authority.certificates().contexts.server()
    made: Any = SSLProtocol(asyncio.get_running_loop(), asyncio.Protocol(), context, None, server_side=True)  # type: ignore[arg-type]
    for name in (
        *("_on_handshake_complete", "_process_outgoing", "get_buffer", "buffer_updated", "resume_writing"),
        *("_set_write_buffer_limits", "_set_read_buffer_limits", "_get_write_buffer_size", "_do_write"),
        *("_start_shutdown", "_set_state"),
    ):
        assert callable(getattr(made, name)), name
    assert made._transport is None
    assert made._app_transport._ssl_protocol is made
    assert made._app_transport._closed is False
    assert (len(made._write_backlog), made._write_buffer_size, made._outgoing.pending) == (0, 0, 0)
    assert made._ssl_writing_paused is False
    assert made._state is SSLProtocolState.UNWRAPPED
    assert made._sslobj is not None
    assert SSLProtocol.max_size > 0
