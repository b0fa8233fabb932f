"""What one caller may have under way: a noisy one is refused, nobody else is, and all is given back.

Method: a real server with limits of two or three, raw sockets that hold long polls and half bodies. A count that were
not given back would refuse the next request of the same caller, and would be left in the tables, which are looked at.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.api import http as names
from broker.api.errors import LimitReached, Overloaded
from broker.api.principals import Token
from broker.client.client import connect
from broker.serving.http import body, callers, new_names, paces
from broker.serving.http.addresses import address_of
from broker.serving.http.app import CONNECTIONS
from broker.serving.http.body import BodyBudget, Reservation
from broker.serving.http.callers import CallerLimits, Callers, Share, share_now
from broker.serving.http.connections import ConnectionLimits
from broker.serving.http.meters import Meters
from broker.serving.http.new_names import NewNames
from tests.support.effort import first_short
from tests.support.processes import eventually
from tests.unit.serving.arrow import stream_of, values
from tests.unit.serving.server import Server, running
from tests.unit.serving.test_access import ADMIN, Enforced, enforcing, proven


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "WAIT_S", 0.02)
    monkeypatch.setattr(callers, "REFUSED_S", 0.0)


RECORDS = "/v1/streams/own/partitions/0/records"
POLL = f"{RECORDS}?max_wait_ms=60000"
GROUP = "/v1/groups/own/members"
GRANTS = (
    ("stream:read", "own"),
    ("stream:append", "own"),
    ("stream:admin", "own"),
    ("metrics", ""),
    ("consumer:write", "own"),
)


def told_all(server: Server) -> bool:
    """Whether nothing is counted any more."""
    serving = server.serving
    budgets = serving.budget, serving.json_budget, serving.lines_budget
    return not serving.callers._shares and not any(budget._held or budget.bytes_now for budget in budgets)


@contextmanager
def sent(
    server: Server,
    path: str,
    token: Token | None = None,
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    data: bytes = b"",
    source: str = "127.0.0.1",
) -> Iterator[socket.socket]:
    """A connection over which this was sent, and of whose answer nothing is read. It ends by a reset: after a close the
    server would wait whether the client still listens."""
    found = {"Host": f"127.0.0.1:{server.port}", **(headers or {})}
    if token is not None:
        found["Authorization"] = f"Bearer {token.text}"
    head = "".join(f"{name}: {value}\r\n" for name, value in found.items())
    with socket.create_connection(("127.0.0.1", server.port), timeout=60, source_address=(source, 0)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
        yield client


def polls(server: Server, count: int, *, by: str) -> None:
    """Wait until a caller has so many."""

    def has() -> bool:
        share = server.serving.callers._shares.get(by)
        return (share.polls if share is not None else 0) == count

    eventually(has, what=f"{by} has {count} long polls")


def said(client: socket.socket) -> tuple[int, dict[str, str], Any]:
    """One answer."""
    with client.makefile("rb") as file:
        status = int(file.readline().split()[1])
        lines = iter(lambda: file.readline().decode().strip(), "")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        data = file.read(int(headers["content-length"]))
    return status, headers, json.loads(data)


@contextmanager
def limited(folder: Path, **limits: int) -> Iterator[tuple[Enforced, Token, Token]]:
    """A server that enforces, with a stream, and two callers who may do everything to it."""
    with enforcing(folder, caller_limits=CallerLimits(**limits)) as enforced:
        enforced.call("POST", "/v1/streams", ADMIN, body={"name": "own"})
        yield enforced, enforced.grant("user:ana", *GRANTS), enforced.grant("user:bob", *GRANTS)


def test_a_caller_at_its_limit_is_refused_and_nobody_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with limited(tmp_path, requests_max=2) as (enforced, ana, bob), ExitStack() as stack:
        server = enforced.server
        held = [stack.enter_context(sent(server, POLL, ana)) for _ in range(2)]
        polls(server, 2, by="user:ana")
        for _ in range(5):
            with sent(server, RECORDS, ana) as client:
                status, headers, problem = said(client)
            assert (status, problem["reason"], headers["retry-after"]) == (429, "limit_reached", "1")
            assert (problem["key"], problem["limit"]) == ("limits.caller_requests_max", 2)
            assert (problem["caller"], problem["retry_after_s"]) == ("user:ana", 1)
        assert enforced.call("GET", RECORDS, bob)[0] == 200
        assert enforced.call("GET", "/livez")[0] == enforced.call("GET", "/readyz", ana)[0] == 200
        assert server.serving.meters.limited.labels("caller_requests_max")._value.get() == 5
        lines = [each.getMessage() for each in caplog.records if "http.limit_reached" in each.getMessage()]
        assert lines == ["http.limit_reached limit=caller_requests_max most=2 caller=user:ana count=1"]
        held[0].close()
        polls(server, 1, by="user:ana")
        assert enforced.call("GET", RECORDS, ana)[0] == 200


def test_questions_after_health_have_room_of_their_own_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "HEALTH_ROOM", 0)
    with limited(tmp_path, requests_max=1) as (enforced, ana, _), sent(enforced.server, POLL, ana):
        polls(enforced.server, 1, by="user:ana")
        assert enforced.call("GET", "/metrics", ana)[1] == "limit_reached"
        monkeypatch.setattr(callers, "HEALTH_ROOM", 1)
        assert enforced.call("GET", "/metrics", ana)[0] == 200


def test_a_request_beyond_the_limit_waits_for_one_of_its_own_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order in which they came; one that is gone meanwhile is passed over, and so is one whose token is."""
    monkeypatch.setattr(callers, "WAIT_S", 60.0)
    with limited(tmp_path, requests_max=1) as (enforced, ana, bob), ExitStack() as stack:
        server = enforced.server
        held = stack.enter_context(sent(server, POLL, ana))
        polls(server, 1, by="user:ana")
        share = server.serving.callers._shares["user:ana"]
        waiting = []
        for number in range(1, 5):
            waiting.append(stack.enter_context(sent(server, f"{RECORDS}?offset={number}", ana)))
            eventually(lambda number=number: len(share.waiting) == number)  # type: ignore[misc]
        assert enforced.call("GET", RECORDS, bob)[0] == 200
        waiting[1].close()
        eventually(lambda: len(share.waiting) == 3, what="one is gone")
        held.close()
        for number in (0, 2, 3):
            status, _, problem = said(waiting[number])
            assert (status, problem["reason"]) == (416, "offset_out_of_range")
        eventually(lambda: told_all(server))

        stack.enter_context(sent(server, POLL, ana))
        polls(server, 1, by="user:ana")
        late = stack.enter_context(sent(server, POLL, ana))
        eventually(lambda: len(server.serving.callers._shares["user:ana"].waiting) == 1)
        enforced.call("DELETE", f"/v1/auth/tokens/{ana.id}", ADMIN)
        assert said(late)[2]["reason"] == "unauthenticated"
        eventually(lambda: told_all(server))


def test_a_refusal_is_late_while_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever polls again at once waits for himself."""
    monkeypatch.setattr(callers, "REFUSED_S", 60.0)
    with limited(tmp_path, requests_max=2, polls_max=1) as (enforced, ana, bob), ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(sent(enforced.server, POLL, ana))
        eventually(lambda: enforced.server.serving.meters.limited.labels("caller_polls_max")._value.get() == 1)
        assert enforced.call("GET", RECORDS, ana)[2]["key"] == "limits.caller_requests_max"
        assert enforced.call("GET", RECORDS, bob)[0] == 200
        stack.close()
        eventually(lambda: told_all(enforced.server))


def test_long_polls_have_a_limit_of_their_own(tmp_path: Path) -> None:
    """Of records, of watches and of members of groups; what does not wait is none."""
    with limited(tmp_path, polls_max=1) as (enforced, ana, bob), sent(enforced.server, POLL, ana):
        joined = enforced.call("POST", GROUP, ana, body={"member": "m", "streams": ["own"], "timeout_ms": 60_000})[2]
        seen = {key: joined[key] for key in ("session", "version")}
        problem = enforced.call("POST", f"{GROUP}/m/poll", ana, body={**seen, "wait_ms": 60_000})[2]
        assert (problem["reason"], problem["key"]) == ("limit_reached", "limits.caller_polls_max")
        assert enforced.call("POST", f"{GROUP}/m/poll", ana, body=seen)[0] == 200
        enforced.call("POST", GROUP, ana, body={"member": "m", "streams": ["own"], "timeout_ms": 61_000})
        told = enforced.call("POST", f"{GROUP}/m/poll", ana, body={**seen, "wait_ms": 60_000})[2]
        assert told["version"] > seen["version"], "it need not wait, and others may wait for what it gives up"
        polls(enforced.server, 1, by="user:ana")
        for path in (POLL, "/v1/watch?max_wait_ms=60000"):
            problem = enforced.call("GET", path, ana)[2]
            assert (problem["reason"], problem["key"]) == ("limit_reached", "limits.caller_polls_max")
        assert enforced.call("GET", RECORDS, ana)[0] == enforced.call("GET", "/v1/watch", ana)[0] == 200
        with sent(enforced.server, POLL, bob):
            polls(enforced.server, 1, by="user:bob")


Ending = Callable[[Enforced, Token], None]


def _answered(enforced: Enforced, ana: Token) -> None:
    assert enforced.call("GET", f"{RECORDS}?max_wait_ms=1", ana)[0] == 200


def _refused(enforced: Enforced, ana: Token) -> None:
    assert enforced.call("GET", f"{RECORDS}?offset=7", ana)[0] == 416
    assert enforced.call("GET", f"{RECORDS}?no_such=7", ana)[0] == 400


def _unauthorized(enforced: Enforced, ana: Token) -> None:
    assert enforced.call("GET", "/v1/streams/other", ana)[0] == 403
    assert enforced.call("GET", "/v1/streams/other")[0] == 403


def _failed(enforced: Enforced, ana: Token) -> None:
    backend = enforced.server.backend
    backend.look_for = None  # type: ignore[assignment,method-assign]
    assert enforced.call("GET", RECORDS, ana)[0] == 500
    del backend.look_for


def _late(enforced: Enforced, ana: Token) -> None:
    with sent(enforced.server, f"{RECORDS}?timeout_ms=50", ana, method="POST", headers=CHUNKED) as client:
        assert said(client)[0] == 504


def _gone(enforced: Enforced, ana: Token) -> None:
    with sent(enforced.server, POLL, ana):
        polls(enforced.server, 1, by="user:ana")


def _gone_amid_its_body(enforced: Enforced, ana: Token) -> None:
    with sent(enforced.server, RECORDS, ana, method="POST", headers=ARROW | {"Content-Length": "500000"}):
        eventually(lambda: enforced.server.serving.budget._held == {"user:ana": 500_000})


def _gone_while_it_waits(enforced: Enforced, ana: Token) -> None:
    shares = enforced.server.serving.callers._shares
    with ExitStack() as stack:
        for _ in range(FULL):
            stack.enter_context(sent(enforced.server, POLL, ana))
        polls(enforced.server, FULL, by="user:ana")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(callers, "WAIT_S", 60.0)
            with sent(enforced.server, POLL, ana):
                eventually(lambda: len(shares["user:ana"].waiting) == 1)
            eventually(lambda: not shares["user:ana"].waiting)


def _revoked(enforced: Enforced, ana: Token) -> None:
    with sent(enforced.server, POLL, ana) as client:
        polls(enforced.server, 1, by="user:ana")
        enforced.call("DELETE", f"/v1/auth/tokens/{ana.id}", ADMIN)
        assert said(client)[0] == 401


def _takes_nothing(enforced: Enforced, ana: Token) -> None:
    """It has asked for the document of the API again and again, and reads nothing."""
    server = enforced.server
    with sent(server, "/openapi.json", ana) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        again = f"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ana.text}\r\n\r\n"
        client.sendall(200 * again.encode())

        is_over = server.serving.meters.in_flight._value
        eventually(
            lambda: is_over.get() == 0 and "user:ana" in server.serving.callers._shares,
            what="its handler has ended, and the answer is not taken",
        )


def _broken(enforced: Enforced, ana: Token) -> None:
    headers = ARROW | {"Content-Encoding": "gzip", "Content-Length": "4"}
    with sent(enforced.server, RECORDS, ana, method="POST", headers=headers, data=b"none") as client:
        assert said(client)[0] == 400


FULL = 8
ARROW = {"Content-Type": names.ARROW_STREAM}
CHUNKED = ARROW | {"Transfer-Encoding": "chunked"}
ENDINGS = [
    *(_answered, _refused, _unauthorized, _failed, _late, _gone, _gone_amid_its_body, _revoked, _takes_nothing),
    _broken,
    _gone_while_it_waits,
]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda each: each.__name__.strip("_"))
def test_all_is_given_back_however_a_request_ends(tmp_path: Path, ending: Ending) -> None:
    with limited(tmp_path, requests_max=FULL) as (enforced, ana, _):
        ending(enforced, ana)
        eventually(lambda: told_all(enforced.server), what="all is given back")


def test_all_is_given_back_when_the_server_ends(tmp_path: Path) -> None:
    """It lets long polls go, and cuts who stands amid a body."""
    server = Server(tmp_path, body_bytes_max=1 << 20, shutdown_timeout=0.1)
    try:
        server.api.create("own")
        with sent(server, POLL) as poll, sent(server, RECORDS, method="POST", headers=CHUNKED) as half:
            shares = server.serving.callers._shares
            eventually(lambda: [each.requests for each in list(shares.values())] == [2])
            server.shut_down()
            assert told_all(server)
            poll.close()
            half.close()
    finally:
        server.api.close()
        server.close()


def test_whoever_is_nobody_in_particular_is_counted_by_address(tmp_path: Path) -> None:
    with running(tmp_path, caller_limits=CallerLimits(requests_max=1)) as server:
        server.api.create("own")
        with sent(server, POLL, source="127.0.0.2"):
            polls(server, 1, by="127.0.0.2")
            with sent(server, RECORDS, source="127.0.0.2") as client:
                assert said(client)[2]["caller"] == "127.0.0.2"
            assert server.api.get("/v1/streams").status == 200


@pytest.mark.parametrize("mode", ["off", "enforce"])
def test_brokers_are_not_counted_and_whom_they_ask_for_is(tmp_path: Path, mode: str) -> None:
    """C2: by their proof alone, in each mode."""
    limits = CallerLimits(requests_max=1)
    with enforcing(tmp_path, mode, caller_limits=limits) as enforced, ExitStack() as stack:
        server, port = enforced.server, enforced.server.port
        enforced.call("POST", "/v1/streams", ADMIN, body={"name": "own"})
        ana = enforced.grant("user:ana", ("stream:read", "own"), ("stream:admin", "own"))
        for _ in range(3):
            stack.enter_context(sent(server, POLL, headers=proven("GET", POLL, port)))
        eventually(lambda: server.serving.meters.in_flight._value.get() == 3)
        assert not server.serving.callers._shares

        seen: list[list[str]] = []
        look_for = server.backend.look_for

        async def looked(stream: str) -> None:
            seen.append(sorted(server.serving.callers._shares))
            await look_for(stream)

        server.backend.look_for = looked  # type: ignore[method-assign]
        trim, before = "/v1/streams/own/trim", {"before": "latest"}
        for behalf in ("user:ana", "anonymous"):
            enforced.call("POST", trim, body=before, headers=proven("POST", trim, port, behalf=behalf))
        assert seen[0] == ["user:ana"]
        assert seen[1:] == ([[]] if mode == "off" else [])

        if mode == "enforce":
            stack.enter_context(sent(server, POLL, ana))
            polls(server, 1, by="user:ana")
            for_ana = proven("POST", trim, port, behalf="user:ana")
            assert enforced.call("POST", trim, body=before, headers=for_ana)[2]["caller"] == "user:ana"
        else:
            forged = {names.ASKED_BY: "broker-0", names.PROOF: f"broker-0 1 {'0' * 64}"}
            stack.enter_context(sent(server, POLL, headers=forged))
            polls(server, 1, by="127.0.0.1")


# --- connections -------------------------------------------------------------------------------------------------


def test_connections_of_one_address_leave_room_for_others(tmp_path: Path) -> None:
    """Half requests: the longest of the same address goes, and nobody else's."""
    limits = CallerLimits(connections_max=20)
    with running(tmp_path, caller_limits=limits, limits=ConnectionLimits(connections_max=40)) as server:
        server.api.create("own")
        with ExitStack() as stack:
            mine = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            mine.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert said(mine)[0] == 200
            strangers = []
            for _ in range(80):
                other = socket.create_connection(("127.0.0.1", server.port), source_address=("127.0.0.2", 0))
                strangers.append(stack.enter_context(other))
                other.sendall(b"GET /v1/streams HTTP/1.1\r\nHo")
            connections = server.app[CONNECTIONS]
            eventually(lambda: server.serving.meters.idle_cut._value.get() == 60)
            assert connections._places.of("127.0.0.2").open_count == 20
            assert connections._open_count < 40
            mine.sendall(b"GET /v1/streams HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert said(mine)[0] == 200
        server.api.close()
        eventually(lambda: not connections._places._by_address, what="no address is remembered")


def test_whoever_holds_all_connections_of_an_address_hides_no_health(tmp_path: Path) -> None:
    limits = CallerLimits(connections_max=2)
    with enforcing(tmp_path, "off", caller_limits=limits) as enforced, ExitStack() as stack:
        server = enforced.server
        server.api.create("own")
        server.api.close()
        eventually(lambda: server.app[CONNECTIONS]._open_count == 0)
        held = [stack.enter_context(sent(server, POLL, source="127.0.0.2")) for _ in range(2)]
        polls(server, 2, by="127.0.0.2")
        with sent(server, RECORDS, source="127.0.0.2") as client:
            status, headers, problem = said(client)
            assert (status, problem["reason"], headers["retry-after"]) == (429, "limit_reached", "1")
            assert (problem["key"], problem["caller"]) == ("limits.address_connections_max", "127.0.0.2")
        with sent(server, "/livez", source="127.0.0.2") as client:
            assert said(client)[0] == 200
        with sent(server, POLL, source="127.0.0.2", headers={names.ASKED_BY: "b2"}) as client:
            assert said(client)[0] == 429
        with sent(server, POLL, source="127.0.0.2", headers=proven("GET", POLL, server.port)):
            eventually(lambda: len(server.app[CONNECTIONS]._peers) == 1, what="a broker's is under way")
        assert server.api.get("/v1/streams").status == 200
        held[0].close()
        polls(server, 1, by="127.0.0.2")
        with sent(server, RECORDS, source="127.0.0.2") as client:
            client.settimeout(60)
            assert client.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("10.0.0.7", 5), "10.0.0.7"),
        (("::ffff:10.0.0.7", 5, 0, 0), "10.0.0.7"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::9", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        (("not:an:address", 5), "not:an:address"),
        ("", "local"),
        (None, "local"),
    ],
)
def test_an_address_of_ipv6_counts_by_its_network(peer: object, address: str) -> None:
    assert address_of(peer) == address


# --- memory ------------------------------------------------------------------------------------------------------


def test_bodies_of_one_caller_leave_memory_for_others() -> None:
    """B5: several hold a part; a single one may have all, and of several that grow one is done."""
    budget = BodyBudget(100, callers=Callers(CallerLimits(memory_percent=60), Meters()))
    first, second, other = (Reservation(budget, caller) for caller in ("ana", "ana", "bob"))
    first.grow_to(30)
    second.grow_to(30)
    for each in (first, second):
        with pytest.raises(LimitReached) as caught:
            each.grow_by(1)
        assert (caught.value.key, caught.value.limit) == ("limits.caller_memory_percent", 60)
    other.grow_to(40)
    with pytest.raises(Overloaded):
        other.grow_by(1)
    other.end()
    second.end()
    first.grow_to(100)
    first.end()
    first.end()
    assert (budget.bytes_now, budget._held) == (0, {})


def test_whoever_is_at_his_limit_makes_room_among_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "SLOW_S", 0.0)
    budget = BodyBudget(100, callers=Callers(CallerLimits(memory_percent=50), Meters()))
    slow, others, next_one = (Reservation(budget, caller) for caller in ("ana", "bob", "ana"))
    others.grow_to(10)
    slow.grow_to(50)
    budget.begin(others)
    budget.begin(slow)
    with pytest.raises(LimitReached):
        next_one.grow_to(1)
    assert (slow.is_condemned, others.is_condemned) == (True, False)


GZIP = ARROW | {"Content-Encoding": "gzip"}


@pytest.mark.parametrize(
    ("path", "headers", "size"),
    [
        (RECORDS, ARROW | {"Content-Length": "700000"}, 700_000),
        (RECORDS, CHUNKED, body.PIECE_BYTES),
        (RECORDS, GZIP | {"Content-Length": "1000"}, body.PIECE_BYTES),
        ("/v1/offsets/resolve", {"Content-Type": "application/json", "Content-Length": "70000"}, 70_000),
    ],
    ids=["arrow", "chunked", "gzip", "json"],
)
def test_a_body_of_each_kind_counts_for_its_caller(
    tmp_path: Path, path: str, headers: dict[str, str], size: int
) -> None:
    """It is half sent; another one finds that the first has what one caller may have."""
    with limited(tmp_path, memory_percent=1) as (enforced, ana, bob):
        server = enforced.server
        budget = server.serving.json_budget if "json" in str(headers) else server.serving.budget
        more = {} if budget is server.serving.budget else {"_": "x" * (budget.bytes_max // 100)}
        with sent(server, path, ana, method="POST", headers=headers) as client:
            eventually(lambda: budget._held.get("user:ana") == size, what="it is reserved")
            arrow = stream_of([values(100, size=1_000)]) if not more else json.dumps(more).encode()
            kind = ARROW if not more else {}
            problem = enforced.call("POST", path, ana, body=arrow, headers=kind)[2]
            assert (problem["reason"], problem["caller"]) == ("limit_reached", "user:ana"), problem
            assert enforced.call("POST", path, bob, body=arrow, headers=kind)[0] in (200, 400)
            if headers is GZIP:
                client.sendall(gzip.compress(arrow))
        eventually(lambda: told_all(server))


def test_lines_that_nobody_takes_count_for_their_reader(tmp_path: Path) -> None:
    with limited(tmp_path, memory_percent=1) as (enforced, ana, bob), ExitStack() as stack:
        server = enforced.server
        arrow = stream_of([values(900, size=1_000)])
        for _ in range(16):
            assert enforced.call("POST", RECORDS, ana, body=arrow, headers=ARROW)[0] == 200
        for _ in range(8):
            client = stack.enter_context(sent(server, f"{RECORDS}?format=json&max_bytes=100000000", ana))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        refused = server.serving.meters.limited.labels("caller_memory_percent")._value
        eventually(lambda: refused.get() > 0, what="there is no more memory for it")
        assert enforced.call("GET", f"{RECORDS}?format=json&limit=1", bob)[0] == 200
        stack.close()
        eventually(lambda: told_all(server))


# --- names -------------------------------------------------------------------------------------------------------


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def _nothing() -> tuple[str, ...]:
    return ()


def by(caller: str, names: NewNames, name: str, there: Callable[[], Awaitable[Collection[str]]] = _nothing) -> None:
    """A caller makes a stream."""
    token = share_now.set(Share(caller))
    try:
        asyncio.run(names.admit("streams", name, there))
    finally:
        share_now.reset(token)


def test_names_beyond_a_minutes_worth_come_evenly() -> None:
    clock = Clock()
    names = NewNames(Callers(CallerLimits(names_per_minute=30), Meters()), is_told_apart=lambda: False, now_s=clock)
    for number in range(30):
        by("ana", names, f"s{number}")
    for waited_s in (0, 1.9):
        clock.now_s += waited_s
        with pytest.raises(LimitReached) as caught:
            by("ana", names, "more")
        assert (caught.value.key, caught.value.retry_after_s) == ("limits.caller_names_per_minute", 2)
    by("bob", names, "his")
    clock.now_s += 0.2
    by("ana", names, "more")
    clock.now_s += 10_000
    for number in range(30):
        by("ana", names, f"t{number}")
    with pytest.raises(LimitReached):
        by("ana", names, "more")


def test_callers_that_make_nothing_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces, "CALLERS_MAX", 3)
    clock = Clock()
    names = NewNames(Callers(CallerLimits(names_per_minute=1), Meters()), is_told_apart=lambda: False, now_s=clock)
    for number in range(10):
        by(f"caller-{number}", names, "x")
        clock.now_s += 30
    assert len(names._paces._callers) <= 3


def test_what_was_made_counts_while_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, there = Clock(), {"a", "b"}
    limits = CallerLimits(made_max={"streams": 2})
    names = NewNames(Callers(limits, Meters()), is_told_apart=lambda: True, now_s=clock)

    async def looked() -> set[str]:
        return there

    for name in ("a", "b"):
        by("ana", names, name, looked)
    with pytest.raises(LimitReached) as caught:
        by("ana", names, "c", looked)
    problem = caught.value.to_problem()
    assert (problem["key"], problem["limit"], problem["retry_after_s"]) == ("limits.caller_streams_max", 2, 3_600)
    by("bob", names, "d", looked)
    there.remove("a")
    clock.now_s += new_names.LOOK_S
    by("ana", names, "c", looked)
    monkeypatch.setattr(new_names, "REMEMBERED_MAX", 2)
    by("bob", names, "e", looked)
    assert len(names._kinds["streams"].caller_of) <= 3
    assert names._kinds["streams"].counts.total() == len(names._kinds["streams"].caller_of)


MAKING = {
    "streams": ("stream:create", "POST", "/v1/streams", lambda name: {"name": name, "subject": name}),
    "producers": ("producer:write", "POST", "/v1/producers", lambda name: {"name": name}),
    "consumers": (
        "consumer:write",
        "POST",
        "/v1/consumers/{name}/offsets",
        lambda name: {"offsets": [{"stream": "own", "partition": 0, "offset": 0}]},
    ),
    "sinks": ("sink:write", "POST", "/v1/sinks/{name}/open", lambda name: {"owner": "me"}),
    "groups": (
        "consumer:write",
        "POST",
        "/v1/groups/{name}/members",
        lambda name: {"member": "m", "streams": ["own"], "timeout_ms": 60_000},
    ),
}


@pytest.mark.parametrize("kind", first_short(sorted(MAKING)))  # a caller waits for the next look at what is there
def test_a_caller_makes_so_many_of_each_kind(tmp_path: Path, kind: str) -> None:
    """What is there may be named again; another caller makes its own; the count is given back by deletions."""
    action, method, path, body_of = MAKING[kind]
    grants = ((action, "x*"), ("stream:read", "own"), ("stream:admin", "x*"), ("subject:capture", "x*"))
    with limited(tmp_path, made_max={kind: 2}) as (enforced, *_):
        ana, bob = enforced.grant("user:ana", *grants), enforced.grant("user:bob", *grants)

        def make(token: Token, name: str) -> tuple[int, str, Any]:
            return enforced.call(method, path.format(name=name), token, body=body_of(name))

        for name in ("x1", "x2", "x1", "x2"):
            status, _, answer = make(ana, name)
            assert status in (200, 201)
            if kind == "groups" and name == "x1":
                session = answer["session"]
        _, reason, problem = make(ana, "x3")
        assert (reason, problem.get("key")) == ("limit_reached", f"limits.caller_{kind}_max"), problem
        assert make(bob, "x4")[0] in (200, 201)
        assert make(ana, "x4")[0] in (200, 201)
        if kind == "groups":
            assert enforced.call("POST", "/v1/groups/x1/members/m/leave", ana, body={"session": session})[0] == 204
            assert make(ana, "x3")[1] == "limit_reached", "one without members is there"
        assert enforced.call("DELETE", f"/v1/{kind}/x1", ADMIN)[0] == 204
        enforced.server.serving.names._kinds[kind].looked_s = 0.0
        assert make(ana, "x3")[0] in (200, 201)


def test_new_names_of_each_kind_have_one_pace(tmp_path: Path) -> None:
    with running(tmp_path, caller_limits=CallerLimits(names_per_minute=6)) as server:
        api = server.api
        made = [
            lambda name: api.post("/v1/streams", {"name": name}),
            lambda name: api.post("/v1/producers", {"name": name}),
            lambda name: api.post(f"/v1/consumers/{name}/offsets", {"offsets": [COMMITTED]}),
            lambda name: api.post(f"/v1/sinks/{name}/open", {"owner": "me"}),
            lambda name: api.post(f"/v1/pins/{name}", {"text": "x", "version": 0}),
            lambda name: api.post(f"/v1/groups/{name}/members", {"member": "m", "streams": ["own"]}),
        ]
        assert made[0]("own").status == 201
        for make in made[1:]:
            assert make("x").status == 200
        for make in made:
            answer = make("y")
            assert (answer.status, answer.json()["key"]) == (429, "limits.caller_names_per_minute")
            assert answer.headers["Retry-After"] == "10"
        for make in (*made[1:4], made[5]):
            assert make("x").status == 200
        assert made[0]("own").status == 200


COMMITTED = {"stream": "own", "partition": 0, "offset": 0}


# --- clients -----------------------------------------------------------------------------------------------------


def test_clients_beyond_a_limit_wait_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "RETRY_AFTER_S", 0.05)
    with running(tmp_path, caller_limits=CallerLimits(requests_max=1)) as server:
        server.api.create("own")
        failed: list[BaseException] = []

        def work() -> None:
            try:
                with connect(f"127.0.0.1:{server.port}") as client:
                    for _ in range(5):
                        client.append("own", 0, [{"value": b"x"}])
            except BaseException as error:
                failed.append(error)

        slow = server.backend.look_for

        async def looked(stream: str) -> None:
            await asyncio.sleep(0.01)
            await slow(stream)

        server.backend.look_for = looked  # type: ignore[method-assign]
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert server.serving.meters.limited.labels("caller_requests_max")._value.get() > 0
        assert server.backend.partition("own", 0).log.state.log_end_offset == 20
