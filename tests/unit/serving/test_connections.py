"""Connections that are too many, too slow, or no HTTP.

Goal: each hears why it is cut, in the shape of every other error, and whoever behaves notices nothing: neither its
requests nor its waiting. Method: a real server, raw sockets, time-outs of a few hundred milliseconds; what is waited
for is always the close.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from broker.api.http import ARROW_STREAM, PROBLEM_JSON
from broker.serving.http import closing, connections, gone
from broker.serving.http.access import peer_key, proof_of
from broker.serving.http.app import CONNECTIONS
from broker.serving.http.body import ROOM_MADE_BYTES
from broker.serving.http.callers import CallerLimits
from broker.serving.http.connections import (
    HEADER_BYTES_MAX,
    TARGET_BYTES_MAX,
    ConnectionLimits,
    Connections,
    HttpConnection,
)
from tests.support.processes import eventually
from tests.unit.serving.arrow import stream_of, values
from tests.unit.serving.server import Api, Server, running
from tests.unit.serving.test_access import ADMIN, KEY, Enforced, enforcing

POLL = b"GET /v1/streams/orders/partitions/0/records?max_wait_ms=60000 HTTP/1.1\r\nHost: [::1]\r\n\r\n"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "LINGER_S", 60.0)


def hurry(server: Server) -> None:
    """From now on heads have 0.3 s. (Heads that behaving clients sent before had as long as they took.)"""

    async def on_loop() -> None:
        owner = owner_of(server)
        assert not owner._heads
        owner.limits = ConnectionLimits(header_timeout_s=0.3)
        if owner._timer is not None:
            owner._timer.cancel()
            owner._timer = None

    server.call(on_loop())


def owner_of(server: Server) -> Connections:
    return server.app[CONNECTIONS]


def answered(client: socket.socket) -> None:
    """One good request."""
    client.sendall(b"GET /livez HTTP/1.1\r\nHost: [::1]\r\n\r\n")
    head = b""
    while not head.endswith(b"}"):
        head += client.recv(1 << 16)
    assert head.startswith(b"HTTP/1.1 200 ")


@contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        yield client


def heard(client: socket.socket) -> bytes:
    """All that comes until the server closes; a reset would be an error."""
    found = b""
    while data := client.recv(1 << 16):
        found += data
    return found


def problem_in(answer: bytes, status: int) -> dict[str, Any]:
    """The problem body of a raw answer, checked as a client would."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
    assert lines[0].split(" ")[1] == str(status), lines[0]
    assert headers["content-type"].startswith(PROBLEM_JSON)
    assert headers["server"] == "liftlog"
    assert int(headers["content-length"]) == len(body)
    found: dict[str, Any] = json.loads(body)
    assert found["status"] == status
    return found


# --- what is no HTTP ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "junk",
    [
        b"hello\r\n\r\n",
        b"\x00\xff" * 100 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [::1]\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [::1]\r\nContent-Length: many\r\n\r\n",
        b"PUB orders.1 5\r\nhello\r\n",
    ],
)
def test_what_is_no_http_gets_a_problem_body(
    server: Server, api: Api, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(server) as client:
        client.sendall(junk)
        problem = problem_in(heard(client), 400)
    assert problem["reason"] == "invalid_request"
    assert len(problem["detail"]) < 300
    (line,) = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert line.getMessage().startswith("http.malformed ")
    assert (line.levelname, line.exc_info) == ("WARNING", None)
    assert len(line.getMessage()) < 400
    assert api.get("/livez").status == 200


@pytest.mark.parametrize(
    "head, status, limit",
    [
        (b"GET /" + b"x" * TARGET_BYTES_MAX + b" HTTP/1.1\r\nHost: [::1]\r\n", 414, TARGET_BYTES_MAX),
        (
            b"GET /livez HTTP/1.1\r\nHost: [::1]\r\nX: " + b"y" * (HEADER_BYTES_MAX + 1) + b"\r\n",
            431,
            HEADER_BYTES_MAX,
        ),
        (b"GET /livez HTTP/1.1\r\nHost: [::1]\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(200)), 431, 128),
    ],
)
def test_headers_over_a_limit_name_it(server: Server, head: bytes, status: int, limit: int) -> None:
    """Sent whole, with a megabyte behind: what is not read any more does not cost the client its answer."""
    with connected(server) as client:
        client.sendall(head + b"\r\n" + b"z" * (1 << 20))
        client.shutdown(socket.SHUT_WR)
        problem = problem_in(heard(client), status)
    assert (problem["reason"], problem["limit"]) == ("request_too_large", limit)
    assert str(limit) in problem["detail"]


def test_a_path_as_long_as_a_watch_may_be_is_taken(api: Api) -> None:
    assert api.get("/v1/watch", streams=",".join("s" * 128 for _ in range(256))).status == 200


def test_an_expectation_that_nobody_meets_is_a_problem_body(api: Api) -> None:
    answer = api.request("GET", "/livez", headers={"Expect": "a-wonder"})
    assert (answer.status, answer.reason) == (417, "invalid_request")


def test_who_sends_what_is_no_http_again_and_again_fills_no_log(
    server: Server, api: Api, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line in a while, and the next says how many there were."""
    for _ in range(20):
        with connected(server) as client:
            client.sendall(b"hello\r\n\r\n")
            problem_in(heard(client), 400)
    assert len([record for record in caplog.records if "http.malformed" in record.getMessage()]) == 1
    text = api.get("/metrics").body.decode()
    assert 'liftlog_http_problems_total{reason="invalid_request"} 20.0' in text
    assert 'liftlog_http_requests_total{operation="none",status="400"} 20.0' in text
    monkeypatch.setattr(owner_of(server)._malformed, "_next_s", 0.0)
    with connected(server) as client:
        client.sendall(b"hello\r\n\r\n")
        problem_in(heard(client), 400)
    assert "count=20" in caplog.records[-1].getMessage()


# --- too slow ----------------------------------------------------------------------------------------------


def test_a_head_that_comes_byte_by_byte_is_cut_and_hears_why(server: Server) -> None:
    with connected(server) as client:
        answered(client)
        hurry(server)
        client.settimeout(0.02)
        answer = b""
        for byte in b"GET /livez HTTP/1.1\r\nHost: [::1]\r\nX: " + b"y" * 5000:
            try:
                client.sendall(bytes([byte]))
                answer = client.recv(1 << 16)
                break
            except TimeoutError:
                continue
        client.settimeout(30)
        problem = problem_in(answer + heard(client), 408)
    assert (problem["reason"], problem["key"]) == ("request_timed_out", "http.header_timeout_ms")
    assert problem["limit"] == 300


def test_who_connects_and_says_nothing_is_closed_without_a_word(tmp_path: Path) -> None:
    with running(tmp_path, limits=ConnectionLimits(header_timeout_s=0.3)) as server, connected(server) as client:
        assert heard(client) == b""


@pytest.mark.parametrize("room_made_bytes", [ROOM_MADE_BYTES, 1], ids=["grows", "room"])
def test_a_body_that_stops_half_way_is_cut_and_nothing_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_made_bytes: int
) -> None:
    monkeypatch.setattr("broker.serving.http.body.ROOM_MADE_BYTES", room_made_bytes)
    with running(tmp_path, limits=ConnectionLimits(body_timeout_s=0.3)) as server:
        server.call(server.backend.create_stream("orders", {}))
        body = stream_of(values(100))
        head = b"POST /v1/streams/orders/partitions/0/records HTTP/1.1\r\nHost: [::1]\r\nContent-Type: %s\r\n"
        for framing, sent in (
            (b"Content-Length: %d\r\n\r\n" % len(body), body[:-20]),
            (b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n" % len(body) + body[:-20]),
        ):
            with connected(server) as client:
                client.sendall(head % ARROW_STREAM.encode() + framing + sent)
                problem = problem_in(heard(client), 408)
            assert (problem["reason"], problem["key"]) == ("request_timed_out", "http.body_timeout_ms")
        assert server.api.read("orders").rows().num_rows == 0
        assert server.serving.budget.bytes_now == 0
        assert b'liftlog_http_timeouts_total{what="body"} 2.0' in server.api.get("/metrics").body


def test_a_body_that_nobody_wants_is_not_waited_for(tmp_path: Path) -> None:
    with running(tmp_path, limits=ConnectionLimits(body_timeout_s=0.3)) as server, connected(server) as client:
        client.sendall(b"POST /nothing HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 1000\r\n\r\nabc")
        assert problem_in(heard(client), 404)["reason"] == "invalid_request"


def test_who_waits_is_not_cut_while_others_are(server: Server, api: Api) -> None:
    """A long poll, and a connection that is kept between requests, outlive several of the slow."""
    api.create("orders")
    with connected(server) as poller, ExitStack() as stack:
        poller.sendall(POLL)
        eventually(lambda: server.backend._hub._waiter_count, what="the poll waits")
        slow = [stack.enter_context(connected(server)) for _ in range(3)]
        for client in slow:
            answered(client)
        hurry(server)
        for client in slow:
            client.sendall(b"GET /")
            problem_in(heard(client), 408)
        assert server.backend._hub._waiter_count, "it waits still"
        kept = api._connection.sock
        assert api.append("orders", values(1)).status == 200
        assert api._connection.sock is kept
        assert poller.recv(100).startswith(b"HTTP/1.1 200 ")
        assert b'liftlog_http_timeouts_total{what="head"} 3.0' in api.get("/metrics").body


def test_the_rest_of_a_body_after_its_answer_is_no_head(server: Server) -> None:
    """Refused before its body was read, a request leaves its connection good for the next."""
    with connected(server) as client, connected(server) as slow:
        answered(slow)
        client.sendall(b"POST /nothing HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 6\r\n\r\nabc")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 404 ")
        hurry(server)
        client.sendall(b"def")
        slow.sendall(b"GET /")
        problem_in(heard(slow), 408)
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n")
        assert heard(client).startswith(b"HTTP/1.1 200 ")


def test_a_loop_that_was_held_up_cuts_nobody(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that came meanwhile lie unread in the kernel: the time begins anew."""
    monkeypatch.setattr(connections, "LATE_S", -1.0)  # every look is a late one
    with connected(server) as client:
        answered(client)
        hurry(server)
        client.sendall(b"GET /livez HTTP/1.1\r\n")
        seen: set[float] = set()
        eventually(lambda: seen.update(owner_of(server)._heads.values()) or len(seen) > 2, what="it began anew")
        client.sendall(b"Host: [::1]\r\nConnection: close\r\n\r\n")
        assert heard(client).startswith(b"HTTP/1.1 200 ")


# --- too many ----------------------------------------------------------------------------------------------


@contextmanager
def polling(server: Server, headers: bytes = b"") -> Iterator[socket.socket]:
    """A connection whose request is under way, and stays so."""
    in_flight = server.serving.meters.in_flight._value
    before = in_flight.get()
    with connected(server) as client:
        client.sendall(POLL[:-2] + headers + b"\r\n")
        eventually(lambda: in_flight.get() == before + 1, what="its request is under way")
        yield client


def by_broker(key: bytes = KEY) -> bytes:
    """Headers by which a request of `POLL` is one of a broker's."""
    target, now_ms = POLL.split(b" ")[1].decode(), time.time_ns() // 1_000_000
    proof = proof_of(key, "b2", "[::1]", "GET", target, now_ms, "")
    return f"Liftlog-Asked-By: b2\r\nLiftlog-Proof: {proof}\r\n".encode()


@pytest.mark.slow
@pytest.mark.long
def test_a_connection_too_many_hears_so_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have requests under way, and so have those in the room for brokers."""
    monkeypatch.setattr(connections, "ROOM_MAX", 1)
    limits = ConnectionLimits(connections_max=3)
    with enforcing(tmp_path, mode="off", limits=limits) as enforced, ExitStack() as stack:
        server = enforced.server
        server.api.create("orders")
        server.api.close()
        others = [stack.enter_context(polling(server)) for _ in range(3)]
        stack.enter_context(polling(server, by_broker()))
        for _ in range(10):
            with connected(server) as client:
                client.sendall(b"GET /livez HTTP/1.1\r\nHost: [::1]\r\n\r\n" + b"x" * 100_000)
                problem = problem_in(heard(client), 503)
            assert (problem["reason"], problem["key"]) == ("overloaded", "http.connections_max")
            assert problem["limit"] == 3
        assert server.serving.meters.refused_connections._value.get() == 10
        assert server.serving.meters.connections._value.get() == 4
        lines = [record.getMessage() for record in caplog.records if "http.connections_refused" in record.getMessage()]
        assert len(lines) == 1
        assert "connections_max=3 count=1 " in lines[0]
        others[0].close()
        eventually(lambda: server.api.another().get("/livez").status == 200, what="there is room again")


def test_the_longest_idle_goes_first(tmp_path: Path) -> None:
    """Silent since the accept, amid a head, between two requests: in the order in which they last did something."""
    with running(tmp_path, limits=ConnectionLimits(connections_max=4)) as server, ExitStack() as stack:
        server.api.create("orders")
        server.api.close()
        eventually(lambda: owner_of(server)._open_count == 0, what="all are gone")
        stack.enter_context(polling(server))
        between, amid, silent = (stack.enter_context(connected(server)) for _ in range(3))
        eventually(lambda: len(owner_of(server)._idle) == 3, what="they are counted")
        amid.sendall(b"GET /livez HTTP/1.1\r\nHo")
        eventually(lambda: any(each._has_spoken for each in owner_of(server)._idle), what="its first bytes")
        answered(between)
        gone = []
        for client in (amid, silent, between):
            newest = stack.enter_context(connected(server))
            answered(newest)
            gone.append(heard(client)[:12])
            assert owner_of(server)._open_count == 4
        assert gone == [b"HTTP/1.1 503", b"", b""]
        assert server.serving.meters.refused_connections._value.get() == 0
        assert server.serving.meters.idle_cut._value.get() == 3


def test_a_request_that_has_come_is_not_refused_and_carried_out(tmp_path: Path) -> None:
    """Somebody connects between the end of its head and the beginning of its handler."""
    body = stream_of(values(1))
    request = (
        b"POST /v1/streams/orders/partitions/0/records HTTP/1.1\r\nHost: [::1]\r\n"
        b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n" % (ARROW_STREAM.encode(), len(body))
    ) + body

    with running(tmp_path, limits=ConnectionLimits(connections_max=1)) as server, ExitStack() as stack:
        owner = owner_of(server)
        server.api.create("orders")
        server.api.close()
        eventually(lambda: owner._open_count == 0, what="it is gone")
        client = stack.enter_context(connected(server))
        answered(client)
        eventually(lambda: len(owner._idle) == 1, what="its request is over")

        async def on_loop() -> None:
            (connection,) = owner._idle
            other = HttpConnection(owner, connection._manager, asyncio.get_running_loop())
            connection.data_received(request)
            assert owner.admit(other, asyncio.Transport())
            owner.leave(other)

        server.call(on_loop())
        head = client.recv(1 << 16)
        assert head.startswith(b"HTTP/1.1 200 "), head
        assert server.backend.partition("orders", 0).log.state.log_end_offset == 1


@pytest.mark.slow
@pytest.mark.long
def test_whoever_holds_all_connections_hides_neither_health_nor_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room for brokers is for those that prove that they know the secret of the cluster (`access.A7`).

    Seen before: whoever sent the header of a broker took that room.
    """
    monkeypatch.setattr(connections, "PEERS_MAX", 1)
    limits = ConnectionLimits(connections_max=2)
    with enforcing(tmp_path, mode="off", limits=limits) as enforced, ExitStack() as stack:
        server = enforced.server
        server.api.create("orders")
        server.api.close()
        held = [stack.enter_context(polling(server)) for _ in range(2)]
        with connected(server) as client:
            client.sendall(b"GET /v1/streams HTTP/1.1\r\nHost: [::1]\r\n\r\n")
            assert problem_in(heard(client), 503)["key"] == "http.connections_max"
        unproven = (b"Liftlog-Asked-By: b2\r\n", b"Liftlog-Asked-By: b2\r\nLiftlog-Proof: b2 1 0\r\n")
        for headers in (*unproven, by_broker(peer_key(b"of another cluster"))):
            with connected(server) as client:
                client.sendall(POLL[:-2] + headers + b"\r\n")
                assert problem_in(heard(client), 503)["key"] == "http.connections_max"
        assert not owner_of(server)._peers
        stack.enter_context(polling(server, by_broker()))
        with connected(server) as client:
            client.sendall(POLL[:-2] + by_broker() + b"\r\n")
            assert problem_in(heard(client), 503)["key"] == "http.connections_max"
        with connected(server) as client:
            answered(client)
            held[0].close()
            eventually(lambda: owner_of(server)._open_count < 4, what="one is gone")
            answered(client)
        assert owner_of(server)._peers


def test_who_never_leaves_is_cut_at_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that goes on sending after it was turned away holds its connection for `LINGER_S` at most."""
    monkeypatch.setattr(closing, "LINGER_S", 0.2)
    monkeypatch.setattr(connections, "ROOM_MAX", 0)
    with running(tmp_path, limits=ConnectionLimits(connections_max=1)) as server:
        server.api.create("orders")
        server.api.close()
        with polling(server), connected(server) as client:
            assert problem_in(heard(client), 503)["reason"] == "overloaded"
            owner = owner_of(server)
            eventually(lambda: not owner._closing, what="it is cut")


def test_connections_that_are_being_closed_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CLOSING_MAX", 0)
    monkeypatch.setattr(connections, "ROOM_MAX", 0)
    with running(tmp_path, limits=ConnectionLimits(connections_max=1)) as server:
        server.api.create("orders")
        server.api.close()
        with polling(server), connected(server) as client:
            assert heard(client) == b""


def test_hundreds_of_bad_clients_hold_up_no_good_one(server: Server, api: Api) -> None:
    api.create("orders")
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in range(210)]
        for client in clients:
            answered(client)
        hurry(server)
        for number, client in enumerate(clients):
            client.sendall((b"GET /", b"hello\r\n\r\n", POLL)[number % 3])
        for _ in range(20):
            assert api.append("orders", values(10)).status == 200
        for number, client in enumerate(clients):
            if number % 3 < 2:
                problem_in(heard(client), (408, 400)[number % 3])
            else:
                assert client.recv(100).startswith(b"HTTP/1.1 200 ")
    assert api.read("orders").rows().num_rows == 200
    eventually(lambda: owner_of(server)._open_count == 1, what="all of them are gone")


# --- half-closed --------------------------------------------------------------------------------------------


GET = b"GET /livez HTTP/1.1\r\nHost: [::1]\r\n\r\n"


@pytest.mark.parametrize("pieces", [1, 2, 40], ids=["at once", "in two", "bit by bit"])
@pytest.mark.parametrize("count", [1, 3])
def test_who_ends_its_sending_side_behind_whole_requests_is_answered(server: Server, pieces: int, count: int) -> None:
    """N4, as `nc -N` and other small clients do."""
    data = GET * count
    with connected(server) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in range(pieces):
            client.sendall(data[len(data) * piece // pieces : len(data) * (piece + 1) // pieces])
        client.shutdown(socket.SHUT_WR)
        assert heard(client).count(b"HTTP/1.1 200 ") == count
    eventually(lambda: owner_of(server)._open_count == 0, what="it is closed")


def test_an_append_and_a_long_poll_of_half_closed_clients_are_answered(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gone, "LATE_S", 60.0)  # a machine that is busy is no matter here
    api.create("orders")
    body = stream_of(values(100))
    head = b"POST /v1/streams/orders/partitions/0/records HTTP/1.1\r\nHost: [::1]\r\n"
    head += b"Content-Type: %s\r\nContent-Length: %d"
    with connected(server) as reader, connected(server) as writer:
        reader.sendall(POLL)
        reader.shutdown(socket.SHUT_WR)
        writer.sendall(head % (ARROW_STREAM.encode(), len(body)) + b"\r\n\r\n" + body)
        writer.shutdown(socket.SHUT_WR)
        assert b'"record_count": 100' in heard(writer)
        assert heard(reader).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /li",
        GET + b"GET /li",
        GET[:-2],
        b"POST /v1/streams HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
        b"POST /v1/streams HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    ],
)
def test_who_ends_its_sending_side_in_the_middle_is_closed_at_once(server: Server, sent: bytes) -> None:
    with connected(server) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        assert heard(client).count(b"HTTP/1.1 200 ") in (0, sent.count(GET))
    eventually(lambda: owner_of(server)._open_count == 0, what="it is closed", timeout_s=9)


def test_a_long_poll_of_a_client_that_is_gone_is_given_up_soon(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HALF_CLOSED_S", 0.2)
    api.create("orders")
    api.close()
    with connected(server) as client:
        client.sendall(POLL)
        client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert heard(client) == b""
    eventually(lambda: owner_of(server)._open_count == 0, what="it is closed")


def test_strangers_have_nothing_under_way_that_keeps_others_out(tmp_path: Path) -> None:
    """N4: from as many addresses as they like, with a body that nobody wants, and with a watch."""
    limits, of_callers = ConnectionLimits(connections_max=12), CallerLimits(requests_max=8, connections_max=12)
    with enforcing(tmp_path, limits=limits, caller_limits=of_callers) as made, ExitStack() as stack:
        port = made.server.port
        version = made.call("GET", "/v1/watch")[2]["version"]
        for number in range(40):
            source = f"127.0.0.{2 + number % 20}", 0
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=source))
            path = "/v1/auth/whoami" if number % 2 else f"/v1/watch?since={version}&max_wait_ms=60000"
            length = "Content-Length: 5\r\n" if number % 2 else ""
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{length}\r\n".encode())
            client.settimeout(30)
            with suppress(ConnectionError):
                assert client.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 200")
        assert Enforced(made.server).call("GET", "/v1/streams", ADMIN)[0] == 200, "over a new connection"
