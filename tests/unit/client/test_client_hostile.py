"""Answers that no broker gives: whatever a server sends, a call ends with a value or with an error of the tree.

Method: a raw socket server; right answers with bytes changed, doubled, left out and put in at random (seeded), and the
worst by hand: stalls, endless heads, late answers, half-closed and reset connections.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest

from broker.api.errors import LiftlogError, ReadOnly, Unavailable
from broker.client.reading.session import FetchSession
from tests.support.effort import examples, seeded, seeds
from tests.unit.client.logs import Log
from tests.unit.client.rawserver import RawServer, Reply, Request
from tests.unit.client.test_client_doubt import APPENDED, CHANGES, client_of, problem, whole_answer

WORDS = [
    b"\r\n",
    b"\r\n\r\n",
    b"\x00",
    b"\xff\xfe",
    b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\n",
    b"Connection: close\r\n",
    b"X: " + b"y" * 70_000 + b"\r\n",
    b"X: y\r\n" * 200,
    b"\xf0\x9f\x92\xa9",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"-5\r\n",
    b"[" * 5_000,
    b'{"first_offset": 1e999}',
]


def spoilt(answer: bytes, rng: random.Random) -> bytes:
    data = bytearray(answer)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at:at] = rng.choice(WORDS)
            case 1:
                del data[at : at + rng.randrange(1, 20)]
            case 2:
                data[at : at + 1] = rng.randbytes(1)
            case 3:
                data[at:at] = data[at : at + rng.randrange(1, 40)]
            case _:
                data = data[:at] + rng.randbytes(rng.randrange(30)) if rng.random() < 0.3 else data
    return bytes(data)


@pytest.mark.parametrize("seed", seeds(4))
def test_any_bytes_for_an_answer_give_a_value_or_an_error_of_the_tree(seed: int) -> None:
    rng = random.Random(seeded(seed))
    whole = [whole_answer(value) for _, value in CHANGES.values()]
    whole += [whole_answer(APPENDED, chunked=True), problem(ReadOnly("no")), whole_answer({}, 503)]
    sent = b""
    certain: list[tuple[bytes, LiftlogError]] = []

    def answer(request: Request, reply: Reply) -> None:
        reply.send(sent)
        reply.close()

    with RawServer(answer) as server:
        client = client_of(server)
        for _ in range(examples(250)):
            sent = spoilt(rng.choice(whole), rng)
            call, _ = CHANGES[rng.choice(list(CHANGES))]
            try:
                call(client)
            except LiftlogError as error:
                if not error.fields.get("sent") and b" 403 " not in sent and b" 503 " not in sent:
                    certain.append((sent, error))
    assert not certain, "only a whole refusal is certain"


@pytest.mark.parametrize("seed", seeds(2))
def test_any_bytes_for_records_give_right_records_or_an_error_of_the_tree(seed: int) -> None:
    rng = random.Random(seeded(seed))
    body, headers = Log.of(12, per_batch=4).answer(0)
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *(f"{name}: {text}" for name, text in headers.items())]
    whole = "\r\n".join([*lines, "", ""]).encode() + body
    sent = b""

    def answer(request: Request, reply: Reply) -> None:
        reply.send(sent)
        reply.close()

    with RawServer(answer) as server:
        session = FetchSession(server.address)
        for _ in range(examples(250)):
            sent = spoilt(whole, rng)
            try:
                with session.open("s", 0, 0) as opened:
                    for message in opened.messages():
                        values = message.rows().column("value").to_pylist()
                        assert values == [
                            (b"%d " % o).ljust(20, b".") for o in message.rows().column("offset").to_pylist()
                        ]
            except LiftlogError:
                pass


def endless(what: bytes) -> Callable[[Request, Reply], None]:
    def answer(request: Request, reply: Reply) -> None:
        while True:
            reply.send(what)

    return answer


@pytest.mark.parametrize(
    "what",
    [
        b"x" * 1000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50,
    ],
    ids=["a line", "continue", "headers"],
)
def test_an_endless_head_is_given_up(what: bytes) -> None:
    with RawServer(endless(what)) as server, pytest.raises(Unavailable) as caught:
        client_of(server, timeout_s=0.5).create_stream("s")
    assert caught.value.sent


def test_a_head_that_trickles_is_given_up() -> None:
    """A byte now and then keeps the socket from being silent."""
    stop = threading.Event()

    def trickle(request: Request, reply: Reply) -> None:
        answer = whole_answer(APPENDED)
        for i in range(len(answer)):
            reply.send(answer[i : i + 1])
            if stop.wait(0.1):
                return

    began = time.monotonic()
    with RawServer(trickle) as server:
        client = client_of(server, timeout_s=0.5)
        with pytest.raises(Unavailable) as caught:
            client.create_stream("s")
        stop.set()
    assert caught.value.sent
    assert time.monotonic() - began < 60


def test_a_body_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.http.pool.BODY_TIMEOUT_S", 0.5)
    stop = threading.Event()

    def trickle(request: Request, reply: Reply) -> None:
        reply.head(200, 10_000)
        while not stop.wait(0.05):
            reply.send(b" ")

    with RawServer(trickle) as server, pytest.raises(Unavailable, match=r"longer than 0\.5 s") as caught:
        client_of(server).create_stream("s")
    stop.set()
    assert caught.value.sent


def test_a_late_answer_is_not_taken_for_that_of_the_next_call() -> None:
    """The client gave up and closed; what comes then belongs to nobody."""
    late = threading.Event()

    def answer(request: Request, reply: Reply) -> None:
        if request.number == 0:
            late.wait(60)
            reply.send(whole_answer({**APPENDED, "first_offset": 77}))
        else:
            reply.answer(200, json.dumps(APPENDED).encode())

    with RawServer(answer) as server:
        client = client_of(server, timeout_s=0.3)
        client._appender._calls.timeout_s = 0.3
        with pytest.raises(Unavailable) as caught:
            client.append("s", 0, [{"value": b"x"}])
        assert caught.value.sent
        late.set()
        assert client.append("s", 0, [{"value": b"y"}]).first_offset == 0
        assert server.connection_count == 2


@pytest.mark.parametrize("more", [b"x", whole_answer({**APPENDED, "first_offset": 77}), b"HTTP/1.1 503 X\r\n\r\n"])
def test_what_comes_behind_an_answer_is_never_the_next_answer(more: bytes) -> None:
    def answer(request: Request, reply: Reply) -> None:
        reply.send(whole_answer(APPENDED) + more)

    with RawServer(answer) as server:
        client = client_of(server)
        for _ in range(3):
            assert client.append("s", 0, [{"value": b"x"}]).first_offset == 0
        assert server.connection_count == 3


@pytest.mark.parametrize("end", ["reset", "half-close", "close"])
@pytest.mark.parametrize("count", [0, 1, 20, 60, 150])
def test_a_connection_that_ends_in_any_way_leaves_doubt(end: str, count: int) -> None:
    def answer(request: Request, reply: Reply) -> None:
        reply.send(whole_answer(APPENDED)[:count])
        if end == "reset":
            reply.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif end == "half-close":
            reply.sock.shutdown(socket.SHUT_WR)
        reply.closed = True

    assert count < len(whole_answer(APPENDED))
    with RawServer(answer) as server:
        client = client_of(server)
        with pytest.raises(Unavailable) as caught:
            client.append("s", 0, [{"value": b"x"}])
        assert caught.value.sent
