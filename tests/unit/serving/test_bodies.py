"""Request bodies: their memory.

Goal: no operation takes a byte of a body, as sent or once decoded, that is not reserved; all of it is given back.
Method: a real server whose budgets are small or full, raw sockets, and every operation of the table.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import random
import socket
import threading
import weakref
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web

from broker.api.errors import DiskFull, InvalidRecords, InvalidRequest, Overloaded, RequestTooLarge, Unavailable
from broker.api.http import ARROW_STREAM
from broker.api.permissions import IN_EVERY_MODE
from broker.serving.contract import endpoint as contract
from broker.serving.contract.endpoint import CHECKED_INLINE_BYTES, Endpoint, Serving
from broker.serving.endpoints import append, bundles, sinks
from broker.serving.endpoints.watch import STARS_MAX, Patterns
from broker.serving.http import body, connections, json_text, peers
from broker.serving.http.app import BODIES_AT_ONCE, ENDPOINTS
from broker.serving.http.body import JSON_MEDIA, MEMBERS_MAX, BodyBudget
from broker.serving.http.callers import CallerLimits
from broker.serving.http.json_text import DEPTH_MAX, Tally, at_most, parse, tally
from tests.support.effort import seeds
from tests.support.processes import eventually
from tests.unit.serving.arrow import stream_of, values
from tests.unit.serving.server import Api, Server, running

PATH = {
    "{stream}": "orders",
    "{partition}": "0",
    "{sink}": "s",
    "{producer}": "p",
    "{broker}": "b",
    "{group}": "g",
    "{pin}": "p",
    "{consumer}": "c",
    "{member}": "m",
}
QUERY = {
    "stage_records": f"?sink=s&epoch=0&stage={'0' * 32}&part=0",
    "stage_bundle": "?sink=s&epoch=0&head=2",
    "append_bundle": "?head=2",
}


PARTS = b'{"parts": [{"partition": 0, "rows": 1}]}'


def of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


ALL = CallerLimits(memory_percent=100)
"""One caller may take the memory of all."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("bodies")) as server:
        server.api.create("orders")
        yield server


def begin(server: Server, endpoint: Endpoint, headers: str, body: bytes) -> bytes:
    """The answer to a request of which so much is sent."""
    path = endpoint.path
    for name, value in PATH.items():
        path = path.replace(name, value)
    media = next(iter(endpoint.request.media)) if endpoint.request else JSON_MEDIA
    head = f"{endpoint.method} {path}{QUERY.get(endpoint.operation, '')} HTTP/1.1\r\nHost: [::1]\r\n"
    head += f"Content-Type: {media}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 60) as client:
        client.sendall(f"{head}{headers}Connection: close\r\n\r\n".encode() + body)
        client.settimeout(60)
        answer = b""
        while more := client.recv(65_536):
            answer += more
            if b"\r\n\r\n" in answer and b"}" in answer:
                break
    return answer


BEFORE = [each for each in ENDPOINTS if not {need.action for need in each.permission} & IN_EVERY_MODE]
"""The others refuse whoever is nobody before they look at a body (`test_access.py`)."""


@pytest.mark.parametrize("endpoint", [each for each in BEFORE if each.request], ids=of)
@pytest.mark.parametrize("headers", ["Content-Length: 100\r\n", "Transfer-Encoding: chunked\r\n"])
def test_no_operation_reads_a_body_that_is_not_reserved(shared: Server, endpoint: Endpoint, headers: str) -> None:
    budgets = shared.serving.budget, shared.serving.json_budget
    for budget in budgets:
        budget.take(budget.bytes_max)
    try:
        answer = begin(shared, endpoint, headers, b"")
        assert b" 429 " in answer, answer
        assert b"request bodies in progress" in answer
    finally:
        for budget in budgets:
            budget.give_back(budget.bytes_max)
            assert budget.bytes_now == 0


@pytest.mark.parametrize("endpoint", [each for each in BEFORE if not each.request], ids=of)
def test_an_operation_without_a_body_refuses_one(shared: Server, endpoint: Endpoint) -> None:
    answer = begin(shared, endpoint, "Content-Length: 100000\r\n", b"x")
    assert b" 400 " in answer, answer
    assert b"takes no request body" in answer


def test_slow_bodies_keep_no_more_than_the_budget_and_give_it_back(tmp_path: Path) -> None:
    with running(tmp_path, caller_limits=ALL) as server:
        budget = server.serving.json_budget
        budget.bytes_max = 3 << 20
        head = b"POST /v1/offsets/resolve HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\n"
        head += b"Content-Length: 1048576\r\n\r\n"
        slow = [socket.create_connection(("127.0.0.1", server.port), 60) for _ in range(3)]
        for client in slow:
            client.sendall(head + b'{"')
        eventually(lambda: budget.bytes_now == 3 << 20, what="their reservations")
        with socket.create_connection(("127.0.0.1", server.port), 60) as another:
            another.sendall(head)
            assert b" 429 " in another.recv(4096)
        assert server.api.append("none", values(1)).status == 404, "records have a budget of their own"
        for client in slow:
            client.close()
        eventually(lambda: budget.bytes_now == 0, what="all given back")


def test_bodies_that_never_end_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B3. They take all there is, and would have the whole time of a request."""
    monkeypatch.setattr(body, "SLOW_S", 0.0)
    with running(tmp_path, caller_limits=ALL) as server, ExitStack() as stack:
        budget = server.serving.json_budget
        budget.bytes_max = 3 << 20
        head = b"POST /v1/offsets/resolve?timeout_ms=600000 HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: 1048576\r\n\r\n"
        slow = []
        for number in range(1, 4):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
            client.sendall(head + b'{"')
            eventually(lambda: budget.bytes_now == number << 20, what="its reservation")  # noqa: B023
            slow.append(client)
        refused = server.api.post("/v1/streams", {"name": "orders", "partitions": 1, "x": "y" * 10})
        assert refused.reason == "overloaded"
        answer = slow[0].recv(65_536)
        assert b" 429 " in answer
        assert b"others need the memory" in answer
        eventually(lambda: budget.bytes_now == 2 << 20, what="its memory is given back")
        assert server.api.create("orders")
        for client in slow[1:]:
            client.close()
        eventually(lambda: budget.bytes_now == 0 and not budget._coming, what="all is given back")


def test_a_body_that_is_complete_is_not_ended_for_others() -> None:
    budget = BodyBudget(100)
    with budget.reserved() as first, budget.reserved() as second:
        first.grow_to(100)
        budget.begin(first)
        first.complete()
        with pytest.raises(Overloaded):
            second.grow_to(1)
        assert not first.is_condemned


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_what_arrow_would_decompress_is_reserved_before(tmp_path: Path, codec: str) -> None:
    """A few KiB that stand for 700 KB."""
    body = stream_of(pa.record_batch({"value": pa.array([bytes(7_000)] * 100)}), compression=codec)
    assert len(body) < 10_000
    with running(tmp_path, body_bytes_max=1 << 20) as server:
        server.api.create("orders")
        budget = server.serving.budget
        budget.take(budget.bytes_max - 600_000)
        before = pa.total_allocated_bytes()
        assert server.api.append("orders", body).reason == "overloaded"
        assert pa.total_allocated_bytes() <= before + 1_000
        budget.give_back(budget.bytes_now)
        assert server.api.append("orders", body).status == 200
        assert budget.bytes_now == 0


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_the_largest_body_fits_an_empty_budget(tmp_path: Path, codec: str | None) -> None:
    """As many batches and bytes as the limits allow: too large is said of what is, `overloaded` of nothing."""
    limit = 256 << 10
    with running(tmp_path, body_bytes_max=limit) as server:
        server.api.create("orders")
        times = 2 * limit // 1_100 if codec else limit // 1_600
        body = stream_of([pa.record_batch({"value": pa.array([bytes(1_000)])})] * times, compression=codec)
        assert len(body) <= limit
        assert server.api.append("orders", body).status == 200
        assert server.serving.budget.bytes_max == BODIES_AT_ONCE * limit


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_packed_body_is_decoded_within_the_limit(tmp_path: Path, encoding: str) -> None:
    packed = (gzip.compress if encoding == "gzip" else zlib.compress)(b'{"positions": [' + b" " * (64 << 20) + b"]}")
    assert len(packed) < 100_000
    with running(tmp_path) as server:
        headers = {"Content-Type": JSON_MEDIA, "Content-Encoding": encoding}
        answer = server.api.request("POST", "/v1/offsets/resolve", body=packed, headers=headers)
        assert answer.reason == "request_too_large"
        assert server.serving.json_budget.bytes_now == 0


def test_a_packed_body_may_have_several_members_and_no_half(tmp_path: Path) -> None:
    with running(tmp_path) as server:

        def ask(body: bytes, encoding: str = "gzip") -> Any:
            headers = {"Content-Type": JSON_MEDIA, "Content-Encoding": encoding}
            return server.api.request("POST", "/v1/offsets/resolve", body=body, headers=headers)

        assert (
            ask(
                gzip.compress(b'{"posi') + gzip.compress(b'tions": [{"stream": "s", "partition": 0, "at": "latest"}]}')
            ).status
            == 200
        )
        assert (
            ask(gzip.compress(b'{"positions": [{"stream": "s", "partition": 0, "at": "latest"}]}')[:-1]).reason
            == "invalid_request"
        )
        assert (
            ask(
                zlib.compress(b'{"positions": [{"stream": "s", "partition": 0, "at": "latest"}]}') + b"x", "deflate"
            ).reason
            == "invalid_request"
        )
        assert (
            ask(
                zlib.compress(b'{"positions": [{"stream": "s", "partition": 0, "at": "latest"}]}', wbits=-15), "deflate"
            ).status
            == 200
        )


def test_members_that_stand_for_nothing_are_counted(tmp_path: Path) -> None:
    """Each takes as long to begin as one that stands for something, and is twenty bytes."""
    body, empty = gzip.compress(b'{"positions": [{"stream": "s", "partition": 0, "at": "latest"}]}'), gzip.compress(b"")
    headers = {"Content-Type": JSON_MEDIA, "Content-Encoding": "gzip"}
    with running(tmp_path) as server:
        for more, status in ((MEMBERS_MAX - 1, 200), (MEMBERS_MAX, 400)):
            packed = more * empty + body
            answer = server.api.request("POST", "/v1/offsets/resolve", body=packed, headers=headers)
            assert answer.status == status, answer.body
        assert f"more than {MEMBERS_MAX} members" in answer.problem["detail"]
        assert server.serving.json_budget.bytes_now == 0


def test_long_settings_are_refused(api: Api) -> None:
    answer = api.post("/v1/streams", {"name": "a", "x": "y" * 70_000})
    assert (answer.status, answer.reason) == (413, "request_too_large")


@pytest.mark.parametrize("seed", seeds(40))
def test_depth_and_items_are_counted_as_a_parser_would(seed: int) -> None:
    rng = random.Random(seed)

    def make(depth: int) -> Any:
        kind = rng.random()
        if depth == 0 or kind < 0.4:
            return rng.choice([1, None, True, 'a"b\\', "[{,", "\\\\", '\\"', "é,", ""])
        if kind < 0.7:
            return [make(depth - 1) for _ in range(rng.randrange(1, 4))]
        return {rng.choice('ab,\\"[{') + str(i): make(depth - 1) for i in range(rng.randrange(1, 4))}

    def count(value: Any) -> Tally:
        if not isinstance(value, list | dict):
            return Tally(0, 1)
        found = [count(each) for each in (value.values() if isinstance(value, dict) else value)]
        return Tally(1 + max(each.depth for each in found), 1 + sum(each.items for each in found))

    value = make(6)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
    assert tally(text) == count(value)
    assert all(most >= each for most, each in zip(at_most(text), count(value), strict=True))


def test_json_too_deep_or_of_too_many_items_is_refused_before_it_is_parsed() -> None:
    budget = BodyBudget(1 << 30)
    with budget.reserved() as reservation:
        assert parse(b'{"a":' * (DEPTH_MAX - 1) + b"{}" + b"}" * (DEPTH_MAX - 1), reservation)
        with pytest.raises(InvalidRequest, match=f"nested {DEPTH_MAX + 1} deep"):
            parse(b'{"a":' * DEPTH_MAX + b"{}" + b"}" * DEPTH_MAX, reservation)
        with pytest.raises(RequestTooLarge, match="JSON items: at most 100"):
            parse(b'{"a":[' + b"1," * 200 + b"1]}", reservation, 100)
    small = BodyBudget(10_000)
    with small.reserved() as reservation, pytest.raises(Overloaded):
        parse(b'{"a":[' + b"1," * 200 + b"1]}", reservation)
    assert (budget.bytes_now, small.bytes_now) == (0, 0)


def test_a_watch_with_a_costly_pattern_is_refused(api: Api) -> None:
    assert api.get("/v1/watch", streams="*a" * STARS_MAX).status == 200
    assert api.get("/v1/watch", streams="*a" * (STARS_MAX + 1)).reason == "invalid_request"


async def test_a_peers_answer_is_taken_whole_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b'{"a": "', b"x" * 300_000, b"y" * 300_000, b'"}'):
            await response.write(piece)
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    asker = peers.Peers("b1")
    try:
        address = f"127.0.0.1:{runner.addresses[0][1]}"
        assert len((await asker.ask(address, "GET", "/"))["a"]) == 600_000
        monkeypatch.setattr(peers, "ANSWER_BYTES_MAX", 400_000)
        with pytest.raises(Unavailable, match="more than 400000 bytes"):
            await asker.ask(address, "GET", "/")
    finally:
        await asker.close()
        await runner.cleanup()


def test_a_reservation_is_given_back_whatever_happens() -> None:
    budget = BodyBudget(100)
    with budget.reserved() as reservation:
        reservation.grow_to(60)
        reservation.grow_to(50)
        assert budget.bytes_now == 60
        with pytest.raises(Overloaded):
            reservation.grow_by(41)
        assert budget.bytes_now == 60
    assert budget.bytes_now == 0


def is_on_a_loop() -> bool:
    return asyncio._get_running_loop() is not None


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "late"])
def test_what_goes_on_when_nobody_waits_stays_reserved_while_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """B6. Before, whoever cut his connections had any number of bodies wait for a slow disk. One that is on the disk,
    and waits for others to have it, takes none."""
    monkeypatch.setattr(connections, "HALF_CLOSED_S", 0.2)
    with running(tmp_path) as server:
        server.api.create("orders")
        handle, queue = server.backend.partition("orders", 0), list[Any]()

        def append(_: object, batches: object, **__: object) -> Future[Any]:
            queue.append(batches)
            return Future()

        monkeypatch.setattr(type(handle), "append", append)
        told = stream_of([values(100, 1_000)])
        head = f"POST /v1/streams/orders/partitions/0/records?timeout_ms={60_000 if is_cut else 50} HTTP/1.1\r\n"
        head += f"Host: [::1]\r\nContent-Type: {ARROW_STREAM}\r\nContent-Length: {len(told)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), 60) as client:
            client.sendall(head.encode() + told)
            eventually(lambda: queue)
            if not is_cut:
                assert b" 504 " in client.recv(1_000)
        eventually(lambda: not server.serving.gate._under_way)
        assert server.serving.budget.bytes_now >= len(told)
        assert server.serving.budget._held
        queue.clear()
        eventually(lambda: server.serving.budget.bytes_now == 0)
        assert not server.serving.budget._held


def posted(server: Server, path: str, head: str, body: bytes) -> bytes:
    """The answer, on a connection of its own."""
    with socket.create_connection(("127.0.0.1", server.port), 60) as client:
        client.sendall(
            f"POST {path} HTTP/1.1\r\nHost: [::1]\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        )
        return client.recv(10_000)


@pytest.mark.parametrize("count", [1, 100], ids=["small", "large"])
def test_what_fails_is_in_memory_no_longer_than_its_answer_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """B6. The error had the frames, and they the records, and the future that had the error: so they stayed until the
    next search for cycles, reserved. On a full disk a client that tried again had the memory of all."""
    with running(tmp_path) as server:
        server.api.create("orders")
        handle, kept = server.backend.partition("orders", 0), list[Any]()

        def append(_: object, batches: list[Any], *__: object, **___: object) -> None:
            kept.append(weakref.ref(batches))
            raise DiskFull("there is no room")

        monkeypatch.setattr(type(handle.log), "append", append)
        gc.disable()
        try:
            path, head = "/v1/streams/orders/partitions/0/records", f"Content-Type: {ARROW_STREAM}\r\n"
            assert b" 507 " in posted(server, path, head, stream_of([values(count, 1_000)]))
            eventually(lambda: server.serving.budget.bytes_now == 0, what="its memory is given back")
            eventually(lambda: not any(each() for each in kept), what="its records are gone")
            assert kept
        finally:
            gc.enable()


@pytest.mark.parametrize(
    ("path", "media", "module", "name"),
    [
        ("/v1/streams/orders/partitions/0/records", ARROW_STREAM, append, "encode"),
        (f"/v1/streams/orders/records?head={len(PARTS)}", "application/octet-stream", bundles, "encode"),
        (
            "/v1/streams/orders/partitions/0/stages?sink=s&epoch=0&stage=" + "0" * 32 + "&part=0",
            ARROW_STREAM,
            sinks,
            "encode",
        ),
        ("/v1/offsets/resolve", JSON_MEDIA, contract, "parse"),
    ],
    ids=["records", "bundle", "stage", "json"],
)
def test_a_body_that_is_refused_is_in_memory_no_longer_than_its_answer_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, media: str, module: Any, name: str
) -> None:
    """B9. 25 bodies of 30 MiB with a column that is unknown left 750 MiB, until the next search for cycles."""
    kept = list[Any]()

    def refuse(body: Any, *_: object) -> Any:
        kept.append(weakref.ref(body))
        raise InvalidRecords("it is no such thing")

    with running(tmp_path) as server:
        server.api.create("orders")
        monkeypatch.setattr(module, name, refuse)
        gc.disable()
        try:
            assert b" 400 " in posted(server, path, f"Content-Type: {media}\r\n", PARTS + b" " * body.ROOM_MADE_BYTES)
            eventually(lambda: not any(each() for each in kept), what="it is gone")
            assert kept
        finally:
            gc.enable()


def test_a_change_keeps_its_memory_when_nobody_waits_and_so_there_are_not_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B6. Of pins with one name each waits for the one before; who cut his connections had any number wait."""
    monkeypatch.setattr(connections, "HALF_CLOSED_S", 0.2)
    with running(tmp_path, caller_limits=ALL) as server:
        budget, ends = server.serving.json_budget, list[asyncio.Future[None]]()

        async def place(*_: object, **__: object) -> tuple[Any, bool]:
            ends.append(asyncio.get_running_loop().create_future())
            await ends[-1]
            return server.backend.offsets.pin("p"), False

        monkeypatch.setattr(server.backend.offsets, "place_pin", place)
        head, text = "Content-Type: application/json\r\n", b'{"text": "x", "version": 0}'
        begun = f"POST /v1/pins/p HTTP/1.1\r\nHost: [::1]\r\n{head}Content-Length: {len(text)}\r\n\r\n".encode()
        budget.bytes_max = 3 * body.CHANGE_BYTES
        for number in range(1, 4):
            with socket.create_connection(("127.0.0.1", server.port), 60) as client:
                client.sendall(begun + text)
                eventually(lambda: len(ends) == number)  # noqa: B023
            eventually(lambda: not server.serving.gate._under_way)
        assert budget.bytes_now == 3 * body.CHANGE_BYTES
        assert b" 429 " in posted(server, "/v1/pins/p", head, text)
        assert len(ends) == 3
        server.loop.call_soon_threadsafe(lambda: [end.set_result(None) for end in ends])
        eventually(lambda: budget.bytes_now == 0, what="all given back")
        assert not budget._held


async def test_a_worker_thread_is_waited_for_however_often_nobody_waits() -> None:
    """Whose client went behind the end of its time had its memory given back while a thread still took more of it: for
    good, so that a few such requests left none for others."""
    entered, goes_on, budget = threading.Event(), threading.Event(), BodyBudget(1_000)

    def work(reservation: body.Reservation) -> None:
        entered.set()
        assert goes_on.wait(60)
        reservation.grow_to(500)

    async def handle(serving: Serving) -> None:
        with budget.reserved() as reservation:
            await serving.in_worker(work, reservation)

    with ThreadPoolExecutor(1) as worker:
        serving = object.__new__(Serving)
        serving.worker = worker
        task = asyncio.create_task(handle(serving))
        await asyncio.to_thread(entered.wait, 60)
        for _ in range(3):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        is_waiting = not task.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert is_waiting
    assert budget.bytes_now == 0


def test_nothing_is_reserved_for_a_request_that_is_over() -> None:
    """B7."""
    budget = BodyBudget(100)
    with budget.reserved() as reservation:
        reservation.grow_to(60)
    with pytest.raises(Overloaded):
        reservation.grow_to(10)
    assert budget.bytes_now == 0


def test_long_json_and_patterns_never_hold_up_the_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """B12. Either would keep everybody waiting who is connected."""
    parsed, matched = list[tuple[int, bool]](), list[bool]()
    selects = Patterns.selects

    def noting_tally(text: bytes) -> Tally:
        parsed.append((len(text), is_on_a_loop()))
        return at_most(text)

    def noting_selects(patterns: Patterns, name: str) -> bool:
        if name not in patterns._selected:
            matched.append(is_on_a_loop())
        return selects(patterns, name)

    monkeypatch.setattr(json_text, "at_most", noting_tally)
    monkeypatch.setattr(Patterns, "selects", noting_selects)
    api.create("orders")
    long = CHECKED_INLINE_BYTES + 1
    taken = [each for each in ENDPOINTS if each.request and JSON_MEDIA in each.request.media]
    for endpoint in taken:
        path = endpoint.path
        for name, value in PATH.items():
            path = path.replace(name, value)
        api.request(endpoint.method, path, body=b"{}".ljust(long), headers={"Content-Type": JSON_MEDIA})
    assert len(parsed) > len(taken) // 2
    for path, query in (("records", {}), ("stages", {"sink": "q", "epoch": 1})):
        octets = {"Content-Type": "application/octet-stream"}
        answer = api.request(
            "POST", f"/v1/streams/orders/{path}", body=b"{}".ljust(long), headers=octets, head=long, **query
        )
        assert answer.status == 400
        assert parsed[-1] == (long, False), "the head of a bundle"
    assert {(size == long, is_on_loop) for size, is_on_loop in parsed} == {(True, False), (False, True)}
    assert api.get("/v1/watch", streams="*rders").status == 200
    assert matched
    assert not any(matched)
