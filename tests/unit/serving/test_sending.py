"""Big answers: sendfile, connections that go on, readers that go away, files that break.

Goal: exact lengths on reused connections, no copy in Python, no descriptor left open on any path, and an
answer that cannot be completed is never taken for complete. Method: a real server, `/proc/self/fd`.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.api import http as names
from broker.api.http import ARROW_STREAM
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.serving.http import connections, sending
from tests.support.processes import eventually
from tests.unit.serving.arrow import stream_of, values
from tests.unit.serving.server import Api, Server, running

RECORDS = 8 * 1000
RECORD_BYTES = 4000  # 32 MB in all


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a stream of 32 MB in 8 MB segments."""
    with running(tmp_path_factory.mktemp("loaded"), body_bytes_max=16 << 20) as server:
        server.api.create("big", segment_bytes=8 << 20)
        for _ in range(8):
            assert server.api.append("big", values(1000, RECORD_BYTES)).status == 200
        yield server


def open_segments(folder: str = "/proc/self/fd") -> list[str]:
    """Segment files that this process has open for reading (the tail's writer is not among them)."""
    found = []
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
            flags = int(Path(f"/proc/self/fdinfo/{name}").read_text().split("flags:")[1].split()[0], 8)
        except FileNotFoundError:
            continue
        if target.endswith(".arrows") and flags & os.O_ACCMODE == os.O_RDONLY:
            found.append(target)
    return found


def test_a_big_answer_is_exact_and_the_connection_goes_on(loaded: Server) -> None:
    for _ in range(3):
        answer = loaded.api.read("big")
        assert answer.rows().column("offset").to_pylist() == list(range(RECORDS))
        assert loaded.api.get("/livez").status == 200
    eventually(lambda: not open_segments(), what="all plans are closed")


def test_the_same_bytes_whether_small_answers_or_big_ones(loaded: Server) -> None:
    whole = loaded.api.read("big").body[len(SCHEMA_BYTES) : -len(END_OF_STREAM)]
    parts, offset = b"", 0
    while offset < RECORDS:
        answer = loaded.api.read("big", offset=offset, max_bytes=2 << 20)
        parts += answer.body[len(SCHEMA_BYTES) : -len(END_OF_STREAM)]
        offset = int(answer.headers[names.NEXT_OFFSET])
    assert parts == whole


def test_head_of_a_big_answer_opens_nothing_for_long(loaded: Server) -> None:
    answer = loaded.api.read("big", method="HEAD")
    assert int(answer.headers["Content-Length"]) > 30e6
    eventually(lambda: not open_segments(), what="the plan is closed")


def test_a_client_that_goes_away_in_the_middle_is_no_error(loaded: Server, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", loaded.port)) as client:
            client.sendall(b"GET /v1/streams/big/partitions/0/records HTTP/1.1\r\nHost: [::1]\r\n\r\n")
            assert client.recv(1000)
            assert open_segments()
    eventually(lambda: not open_segments(), what="all plans are closed")
    assert loaded.api.get("/livez").status == 200
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_a_slow_reader_holds_up_nobody(loaded: Server) -> None:
    with socket.create_connection(("127.0.0.1", loaded.port)) as slow:
        slow.sendall(b"GET /v1/streams/big/partitions/0/records HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n")
        assert slow.recv(100)
        assert loaded.api.read("big", max_bytes=4 << 20).rows().num_rows
        rest = bytearray()
        while data := slow.recv(1 << 20):
            rest += data
    assert rest.endswith(END_OF_STREAM)


def test_a_reader_that_stands_still_is_cut(loaded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "STALLED_S", 0.3)
    with socket.create_connection(("127.0.0.1", loaded.port)) as still:
        still.sendall(b"GET /v1/streams/big/partitions/0/records HTTP/1.1\r\nHost: [::1]\r\n\r\n")
        cut = b'liftlog_http_answers_cut_total{by="reader"} 1.0'
        eventually(lambda: cut in loaded.api.get("/metrics").body, what="it is cut")
        eventually(lambda: not open_segments(), what="its plan is closed")


def test_record_bytes_are_sent_by_the_kernel(loaded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte of a batch goes by sendfile: none passes through Python. (The benchmarks tell what that costs.)"""
    sent = []
    sendfile = os.sendfile

    def counted(*args: int) -> int:
        sent.append(sendfile(*args))
        return sent[-1]

    monkeypatch.setattr(os, "sendfile", counted)
    answer = loaded.api.read("big")
    assert sum(sent) == len(answer.body) - len(SCHEMA_BYTES) - len(END_OF_STREAM)


def test_a_file_that_shrinks_while_it_is_sent_cuts_the_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing that was announced may look complete."""
    with running(tmp_path, body_bytes_max=16 << 20) as server:
        server.api.create("big")
        for _ in range(8):
            server.api.append("big", values(1000, RECORD_BYTES))
        (path,) = tmp_path.glob("big/*/0/*.arrows")
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        client.request("GET", "/v1/streams/big/partitions/0/records")
        response = client.getresponse()
        assert response.read(1000)
        os.truncate(path, 1 << 20)
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()
        client.close()
        eventually(lambda: not open_segments(), what="the plan is closed")
        eventually(lambda: [r.levelname for r in caplog.records if "http.answer_cut" in r.getMessage()] == ["ERROR"])
        server.api.request("DELETE", "/v1/streams/big")


@pytest.fixture
def server_of_4_mb(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, body_bytes_max=16 << 20) as server:
        server.api.create("big")
        server.api.append("big", values(1000, RECORD_BYTES))
        yield server


def test_a_file_system_without_sendfile_serves_the_same_bytes(
    server_of_4_mb: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_of_4_mb
    expected = server.api.read("big").body

    async def unavailable(*args: object, **kwargs: object) -> int:
        raise asyncio.SendfileNotAvailableError("not on this file system")

    monkeypatch.setattr(server.loop, "sendfile", unavailable)
    assert server.api.read("big").body == expected


def test_a_disk_error_cuts_the_answer(server_of_4_mb: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server = server_of_4_mb

    async def fail(*args: object, **kwargs: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(server.loop, "sendfile", fail)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        server.api.read("big")
    eventually(lambda: not open_segments(), what="the plan is closed")


@pytest.mark.parametrize("kind", ["arrow", "json"])
def test_a_disk_error_before_the_answer_has_begun_is_storage_failed(
    server: Server, api: Api, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    api.create("small")
    api.append("small", values(10, 100))

    def fail(*args: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("broker.serving.http.sending.os", SimpleNamespace(pread=fail))
        answer = api.get(f"/v1/streams/small/partitions/0/records?format={kind}")
        assert (answer.status, answer.json()["reason"]) == (503, "storage_failed")
    assert "http.answer_cut" in caplog.text
    assert api.get(f"/v1/streams/small/partitions/0/records?format={kind}").status == 200


def test_shutting_down_lets_long_polls_go_and_big_answers_end(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.api.create("orders")
        answers = []
        poller = server.api.another()
        thread = threading.Thread(target=lambda: answers.append(poller.read("orders", max_wait_ms=60_000)))
        thread.start()
        eventually(lambda: server.backend._hub._waiter_count, what="the poll waits")
        began = time.monotonic()
        server.shut_down()
        thread.join(60)
        assert time.monotonic() - began < 30
        assert answers[0].body == SCHEMA_BYTES + END_OF_STREAM


def test_a_long_poll_ends_with_its_client(server: Server, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HALF_CLOSED_S", 0.2)
    api.create("orders")
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET /v1/streams/orders/partitions/0/records?max_wait_ms=60000 HTTP/1.1\r\nHost: [::1]\r\n\r\n")
        eventually(lambda: server.backend._hub._waiter_count, what="the poll waits")
    eventually(lambda: not server.backend._hub._waiter_count, what="it ends")


def test_a_post_that_breaks_off_stores_nothing(server: Server, api: Api) -> None:
    api.create("orders")
    body = stream_of(values(100))
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(
            b"POST /v1/streams/orders/partitions/0/records HTTP/1.1\r\nHost: [::1]\r\n"
            b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n" % (ARROW_STREAM.encode(), len(body)) + body[:-20]
        )
        eventually(lambda: b"in_flight 2.0" in api.get("/metrics").body, what="it is being read")
    eventually(lambda: b"in_flight 1.0" in api.get("/metrics").body, what="it is given up")
    assert api.read("orders").rows().num_rows == 0
    assert server.serving.budget.bytes_now == 0


def test_shutting_down_does_not_wait_for_ever_for_a_reader_that_stands_still(tmp_path: Path) -> None:
    with running(tmp_path, body_bytes_max=16 << 20, shutdown_timeout=0.2) as server:
        server.api.create("big")
        for _ in range(4):
            server.api.append("big", values(1000, RECORD_BYTES))
        with socket.create_connection(("127.0.0.1", server.port)) as still:
            still.sendall(b"GET /v1/streams/big/partitions/0/records HTTP/1.1\r\nHost: [::1]\r\n\r\n")
            eventually(open_segments, what="the answer begins")
            server.shut_down()
            assert not open_segments()


# --- without sendfile


@pytest.mark.parametrize("told", ["all", "parts", "nothing"])
def test_what_is_copied_waits_for_no_thread_where_it_is_in_the_page_cache(
    loaded: Server, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    """However much of it the file system says is there, all is sent, in order."""
    whole, waited, real = loaded.api.read("big").body, [0], os.preadv

    def cached(fd: int, buffers: Sequence[bytearray], position: int, flags: int) -> int:
        if told == "nothing" or (told == "parts" and position // 65_536 % 3 == 0):
            raise OSError(errno.EOPNOTSUPP if told == "nothing" else errno.EAGAIN, "not told")
        (into,) = buffers
        cut = memoryview(into)[: len(into) // 3 if told == "parts" else None]
        return real(fd, [cut], position)  # a file system that does not know of the flag would make this test wait

    def pread(fd: int, size: int, position: int) -> bytes:
        waited[0] += 1
        assert threading.current_thread().name.startswith("http-worker")
        return real_pread(fd, size, position)

    async def none(*_: object) -> int:
        raise asyncio.SendfileNotAvailableError

    real_pread = os.pread
    monkeypatch.setattr(sending, "_sendfile", none)
    monkeypatch.setattr(sending, "os", SimpleNamespace(preadv=cached, pread=pread, RWF_NOWAIT=os.RWF_NOWAIT))
    assert loaded.api.read("big").body == whole
    assert (waited[0] == 0) == (told == "all")


def test_what_the_page_cache_has_is_what_the_file_has(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_bytes(b"0123456789" * 10_000)
    with file.open("rb") as opened:
        there = sending.cached(opened.fileno(), 50_000, 7)
        assert there in (b"", file.read_bytes()[7:50_007]), "a file system may not tell"
        assert sending.cached(opened.fileno(), 10, 100_000) == b""
    assert sending.cached(-1, 10, 0) == b"", "whoever may wait says what is wrong"
