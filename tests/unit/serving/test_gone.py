"""Changes whose client is gone, while the broker stood still (`gone.G1` to `G3`)."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api.errors import NotReady
from broker.api.http import ARROW_STREAM
from broker.serving.contract.deadline import answer_due
from broker.serving.http import gone
from tests.support.processes import eventually
from tests.unit.serving.arrow import stream_of, values
from tests.unit.serving.server import Api, Server

STILL_S = 0.3


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone, "BEAT_S", 0.05)
    monkeypatch.setattr(gone, "LATE_S", 0.1)


def post(path: str, body: bytes, media: str = "application/json", method: str = "POST") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: [::1]\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


CREATE = post("/v1/streams", json.dumps({"name": "late"}).encode())
CHANGES = {
    "create": CREATE,
    "alter": post("/v1/streams/orders", json.dumps({"retention_ms": 10**9}).encode(), method="PATCH"),
    "pause": post("/v1/streams/orders/pause", b""),
    "append": post("/v1/streams/orders/partitions/0/records", stream_of(values(10)), ARROW_STREAM),
    "delete": post("/v1/streams/orders", b"", method="DELETE"),
}


@contextmanager
def standing_still(server: Server, seconds: float) -> Iterator[None]:
    """The loop does nothing meanwhile, and not before so long has passed."""
    entered, release = threading.Event(), threading.Event()
    server.loop.call_soon_threadsafe(lambda: (entered.set(), release.wait(60)))
    assert entered.wait(30)
    until_s = time.monotonic() + seconds
    yield
    time.sleep(max(0.0, until_s - time.monotonic()))
    release.set()


def state(api: Api) -> tuple[list[str], object, int]:
    names = sorted(each["name"] for each in api.get("/v1/streams").json()["streams"])
    info = api.get("/v1/streams/orders").json() if "orders" in names else {}
    return names, {key: info.get(key) for key in ("paused", "settings")}, len(info.get("partitions", []))


def refused(server: Server) -> float:
    return float(server.serving.meters.problems.labels("not_ready")._value.get())


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_not_begun(server: Server, api: Api, change: str) -> None:
    api.create("orders")
    before, end = state(api), api.read("orders").rows().num_rows
    with connect(server) as client:
        with standing_still(server, STILL_S):
            client.sendall(CHANGES[change])
            client.close()
        eventually(lambda: refused(server) == 1, what="it was read, and refused")
    assert (state(api), api.read("orders").rows().num_rows) == (before, end)


@pytest.mark.parametrize("change", CHANGES)
def test_who_waits_is_answered(server: Server, api: Api, change: str) -> None:
    api.create("orders")
    with connect(server) as client:
        with standing_still(server, STILL_S):
            client.sendall(CHANGES[change])
        assert client.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 201", b"HTTP/1.1 204")


def test_who_has_ended_its_sending_side_is_told_to_ask_again(server: Server, api: Api) -> None:
    with connect(server) as client:
        with standing_still(server, STILL_S):
            client.sendall(CREATE)
            client.shutdown(socket.SHUT_WR)
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"not_ready"' in answer
    assert b"Retry-After" in answer
    assert state(api)[0] == []


def test_without_a_standstill_it_is_carried_out(server: Server, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks, and goes, has its way as ever."""
    monkeypatch.setattr(gone, "LATE_S", 60.0)
    with connect(server) as client:
        client.sendall(CREATE)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(65536).startswith(b"HTTP/1.1 201 ")
    assert state(api)[0] == ["late"]


def test_a_change_knows_when_its_answer_is_due(server: Server, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind it the client has been told that nobody knows, and goes on."""
    create, due = server.backend.create_stream, []

    def noted(*args: Any, **named: Any) -> object:
        due.append(answer_due.get())
        return create(*args, **named)

    monkeypatch.setattr(server.backend, "create_stream", noted)
    before_s = time.monotonic()
    api.request("POST", "/v1/streams", json_body={"name": "s"}, timeout_ms=5_000)
    assert before_s + 5.0 <= due[0] <= time.monotonic() + 5.0


def test_what_works_for_a_client_looks_again_from_another_thread(server: Server, api: Api) -> None:
    """A command that is tried several times: its broker stood still between two of them."""
    create, checks = server.backend.create_stream, []

    async def noted(*args: Any, **named: Any) -> Any:
        checks.append(gone.asker())
        await asyncio.wrap_future(done)
        return await create(*args, **named)

    def is_refused() -> bool:
        try:
            checks[0]()
        except NotReady:
            return True
        return False

    done: Future[None] = Future()
    server.backend.create_stream = noted  # type: ignore[method-assign]
    with connect(server) as client:
        client.sendall(CREATE)
        eventually(lambda: checks, what="it has begun")
        assert not is_refused()
        with standing_still(server, STILL_S):
            eventually(lambda: server.app[gone.PULSE].stood_still(), what="it stands still")
            assert not is_refused()
            client.close()
            eventually(is_refused, what="its client is gone")
    done.set_result(None)


def test_a_connection_that_is_closed_at_this_very_moment_is_closed() -> None:
    """The loop has closed it between two looks of another thread."""
    with socket.socket() as ended:
        ended.close()
        transport = SimpleNamespace(is_closing=lambda: False, get_extra_info=lambda name: ended)
        assert gone._is_closed(cast(Any, SimpleNamespace(transport=transport)))
