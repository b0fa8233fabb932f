"""A page of another site cannot use this broker through somebody's browser: every method, every endpoint, each way.

Seen before: a page under a name that pointed to 127.0.0.1 could read and delete every stream of a broker on loopback.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from broker.api.errors import ForeignRequest
from broker.config.configuration import load
from broker.serving.http.app import ENDPOINTS
from broker.serving.http.origin import check, hosts_of
from tests.unit.serving.server import Server

HOSTS = hosts_of(("Broker-A.example:9293", "logs.example.", None, "10.0.0.7"))
OURS = (
    *("127.0.0.1:9293", "localhost:9293", "LOCALHOST", "[::1]:9293", "10.1.2.3", "[fd00::7]:9293", "0.0.0.0:1"),
    *("broker-a.example:9293", "BROKER-A.EXAMPLE:80", "logs.example", "logs.example.:9293"),
)
FOREIGN = (
    *("evil.example:9293", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "broker-a", ""),
    *("localhost@evil.example", "evil.example/localhost", "a b", "broker-a.example:9293,evil", "[::1", "1.2.3.4.5"),
)


def request(*headers: tuple[str, str], method: str = "GET", path: str = "/v1/streams") -> web.Request:
    return make_mocked_request(method, path, headers=dict(headers))


@pytest.mark.parametrize("host", OURS)
def test_own_names_and_addresses_are_taken(host: str) -> None:
    """O1. Other brokers ask by what is registered, clients by an address or a configured name."""
    check(request(("Host", host)), HOSTS)
    check(request(("Host", host), ("Origin", f"http://{host}"), ("Sec-Fetch-Site", "same-origin")), HOSTS)
    check(request(("Host", host), ("Origin", f"https://{host}"), ("Sec-Fetch-Site", "none")), HOSTS)


@pytest.mark.parametrize("host", FOREIGN)
def test_a_name_that_is_not_this_brokers_is_refused(host: str) -> None:
    with pytest.raises(ForeignRequest, match=r"http\.hosts") as refused:
        check(request(("Host", host)), HOSTS)
    assert (refused.value.status, refused.value.key) == (403, "http.hosts")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://127.0.0.1:9293"},
        {"Origin": "http://evil.example/http://localhost:9293"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "Cross-Site "},
    ],
)
def test_what_a_browser_says_of_another_page_is_heeded(headers: dict[str, str]) -> None:
    """O2, O3."""
    with pytest.raises(ForeignRequest):
        check(request(("Host", "localhost:9293"), *headers.items()), HOSTS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("data"), body_bytes_max=1 << 20)
    made.api.post("/v1/streams", {"name": "orders", "subject": "orders"})
    yield made
    made.close()


def said(server: Server, method: str, path: str, headers: dict[str, str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if data and answer.status == 403 else data
    finally:
        connection.close()


ATTACKS: list[dict[str, str]] = [
    {"Host": "evil.example:9293"},
    {"Host": "localhost", "Origin": "http://evil.example"},
    {"Host": "localhost", "Sec-Fetch-Site": "cross-site"},
]


@pytest.mark.parametrize("attack", ATTACKS, ids=["rebound", "origin", "cross-site"])
def test_every_endpoint_refuses_and_nothing_is_done(server: Server, attack: dict[str, str]) -> None:
    """O4. Also paths and methods that there are not: nobody learns which there are."""
    tried = [(endpoint.method, endpoint.path) for endpoint in ENDPOINTS] + [
        *(("HEAD", "/v1/streams"), ("OPTIONS", "/v1/streams"), ("PUT", "/nothing"), ("GET", "/%2e%2e/livez"))
    ]
    tried = [(method, path) for method, path in tried if path != "/livez"]
    for method, path in tried:
        names = {"consumer": "c", "group": "g", "member": "m", "sink": "s", "producer": "p", "pin": "p"}
        path = path.format(stream="orders", partition=0, broker="b", token="t", **names)
        status, body = said(server, method, path, attack)
        assert status == 403, (method, path)
        assert method == "HEAD" or body["reason"] == "foreign_request"
    assert [stream["name"] for stream in server.api.get("/v1/streams").json()["streams"]] == ["orders"]
    assert said(server, "GET", "/livez", attack)[0] == 200


def raw(server: Server, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        found = b""
        while piece := sock.recv(1 << 16):
            found += piece
        return found


def test_each_place_of_a_name_is_looked_at(server: Server) -> None:
    """Two names, one of them ours; a target with a name of its own, as a proxy gets it; none, as no browser asks."""
    end = b"Connection: close\r\n\r\n"
    ours = b"Host: localhost\r\n"
    for head in (
        b"GET /v1/streams HTTP/1.1\r\n" + ours + b"Host: evil.example\r\n",
        b"GET /v1/streams HTTP/1.1\r\nHost: evil.example\r\n" + ours,
        b"GET http://evil.example/v1/streams HTTP/1.1\r\n" + ours,
        b"GET http://localhost/v1/streams HTTP/1.1\r\nHost: evil.example\r\n",
    ):
        status = raw(server, head + end).split(b" ", 2)[1]
        assert status in (b"403", b"400"), head
    assert raw(server, b"GET http://localhost/v1/streams HTTP/1.1\r\n" + ours + end).split(b" ", 2)[1] == b"200"
    assert raw(server, b"GET /v1/streams HTTP/1.0\r\n\r\n").split(b" ", 2)[1] == b"200"


def test_a_header_with_a_control_character_costs_no_answer(server: Server) -> None:
    """The second wall: an address that came into the catalog before it checked addresses."""
    backend = server.backend
    own = backend.brokers()
    bad = [{**own[0], "http": "x\r\nSet-Cookie: a=b"}, {**own[0], "http": "b:1"}]
    backend.brokers = lambda: bad  # type: ignore[method-assign]
    try:
        answer = raw(server, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    finally:
        del backend.brokers  # type: ignore[attr-defined]
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"Liftlog-Brokers: b:1\r\n" in answer
    assert b"Set-Cookie" not in answer


def test_names_are_configured_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "liftlog.toml"
    file.write_text('[http]\nhosts = ["logs.example", "logs"]\n')
    assert load(str(file), {}, {}).http.hosts == ("logs.example", "logs")
    assert load(None, {"LIFTLOG_HTTP_HOSTS": "a.example, b"}, {}).http.hosts == ("a.example", "b")
    for bad in ("a:1", "http://a", "a b", ""):
        with pytest.raises(Exception, match=r"http\.hosts"):
            load(None, {}, {"http.hosts": [bad]})
