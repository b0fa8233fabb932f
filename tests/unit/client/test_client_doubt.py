"""Goal: a client says of a call that failed that certainly nothing was done, or that nobody knows.

Goal: doubt is never forgotten (calls.A1). Once a try may have been carried out, whatever comes after it, the error of
the call has `sent=True`; and an error has not if every try was certainly refused.

Method: a raw socket server that carries each request out and answers with exactly the bytes that the test wants: cut
after every byte of head and body, on a new connection and on a kept one; then pairs of a doubtful answer and another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any, Final

import pyarrow as pa
import pytest

from broker.api.errors import (
    BadBatch,
    DeadlineExceeded,
    LiftlogError,
    NotLeader,
    NotReady,
    OutOfSequence,
    Overloaded,
    ProducerFenced,
    ReadOnly,
    StaleIncarnation,
    StorageFailed,
    Unavailable,
    UnknownConsumer,
    UnknownSink,
    UnknownStream,
)
from broker.client.client import Client
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls
from broker.client.reading.session import FetchSession
from broker.client.sinks import Sink
from broker.client.writing.append import AppendCalls, Stamp
from broker.client.writing.sequences import Sequences
from tests.support.effort import first_short
from tests.support.processes import free_port
from tests.unit.client.logs import Log
from tests.unit.client.rawserver import RawServer, Reply, Request
from tests.unit.client.test_client_producer import producer_to

pytestmark = pytest.mark.slow

ROWS: Final = pa.table({"value": [b"a"]})
APPENDED: Final = {"first_offset": 0, "next_offset": 1, "record_count": 1, "leader_epoch": 0}
STREAM: Final[dict[str, Any]] = {
    "name": "s",
    "incarnation": "i",
    "created_ms": 1,
    "internal": False,
    "settings": {},
    "warnings": [],
    "partitions": [],
}
SINK: Final = {
    "sink": "k",
    "epoch": 1,
    "current_epoch": 0,
    "checkpoint": None,
    "one_shot": False,
    "least_batch_id": 0,
    "changed_ms": 1,
    "last": None,
}
CONSUMER: Final[dict[str, Any]] = {"consumer": "c", "partitions": [], "lag": 0}


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.http.patience.FIRST_PAUSE_S", 0.001)


Call = Callable[[Client], object]


def appending(**options: Any) -> Call:
    return lambda client: client.append("s", 0, ROWS, **options)


CHANGES: Final[dict[str, tuple[Call, Any]]] = {
    "append": (appending(), APPENDED),
    "append at least once": (appending(at_least_once=True), APPENDED),
    "append with a stamp": (appending(stamp=Stamp(7, 0, 0)), APPENDED),
    "create": (lambda client: client.create_stream("s"), STREAM),
    "alter": (lambda client: client.alter("s", segment_bytes=1), STREAM),
    "pause": (lambda client: client.pause("s"), STREAM),
    "trim": (lambda client: client.trim("s", before=1), {"partitions": [{"partition": 0, "log_start_offset": 1}]}),
    "add partitions": (lambda client: client.add_partitions("s", 2), STREAM),
    "commit": (lambda client: client.commit("c", {"s": {0: 1}}), {"committed": 1}),
    "reset": (lambda client: client.reset("c", "s", "earliest"), CONSUMER),
    "delete": (lambda client: client.delete_stream("s"), None),
    "forget a consumer": (lambda client: client.delete_consumer("c"), None),
    "register": (lambda client: client.register_producer(), {"producer_id": 7, "epoch": 0}),
    "open a sink": (lambda client: client.sink("k").open(), SINK),
    "stage": (lambda client: client.sink("k", epoch=1).stage(ROWS, "s", 0), {"record_count": 1}),
    "delete a sink": (lambda client: client.sink("k").delete(), None),
    "commit a sink": (
        lambda client: Sink(client._calls, "k", epoch=1).commit(1, []),
        {"outcome": "committed", **SINK},
    ),
}
"""Everything that changes something, and its answer."""
REPEATED: Final = set(CHANGES) - {"append"}
"""The calls that the client sends again after a doubtful try."""


def whole_answer(value: Any, status: int = 0, *, chunked: bool = False) -> bytes:
    body = b"" if value is None else json.dumps(value).encode()
    status = status or (204 if value is None else 200)
    lines = [f"HTTP/1.1 {status} Some Words", "Server: liftlog"]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:9], body[9:])) + b"0\r\n\r\n"
    elif status != 204:
        lines.append(f"Content-Length: {len(body)}")
    lines.append("Content-Type: application/json")
    return "\r\n".join([*lines, "", ""]).encode() + body


def says_all(answer: bytes, sent: bytes, *, chunked: bool) -> bool:
    """Whether HTTP lets a client take what was sent for the answer: a 204 is complete with its status."""
    if answer.startswith(b"HTTP/1.1 204"):
        return sent.startswith(b"HTTP/1.1 204")
    return sent == answer or (chunked and b"\r\n0" in sent.partition(b"\r\n\r\n")[2])


def client_of(server: RawServer | str, deadline_s: float = 0, timeout_s: float = 60) -> Client:
    addresses = server if isinstance(server, str) else server.address
    return Client(Brokers(addresses), timeout_s=timeout_s, deadline_s=deadline_s)


class Cutter:
    """Carries out what is asked and sends the first `count` bytes of `answer`; then the connection ends."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.count = len(answer)

    def __call__(self, request: Request, reply: Reply) -> None:
        if request.method == "GET":
            reply.answer(200, json.dumps({"ready": True, "missing": {}}).encode())
            return
        reply.send(self.answer[: self.count])
        reply.close()


@pytest.mark.parametrize("first", first_short(range(4)))
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("name", CHANGES)
def test_an_answer_that_is_cut_anywhere_leaves_doubt(name: str, chunked: bool, first: int) -> None:
    call, value = CHANGES[name]
    answer = whole_answer(value, chunked=chunked and value is not None)
    cutter = Cutter(answer)
    with RawServer(cutter) as server:
        client = client_of(server)
        for count in range(first, len(answer) + 1, 4):
            cutter.count = count
            if says_all(answer, answer[:count], chunked=chunked):
                call(client)
                continue
            with pytest.raises(LiftlogError) as caught:
                call(client)
            assert type(caught.value) is Unavailable, (answer[:count], caught.value)
            assert caught.value.sent, answer[:count]


@pytest.mark.parametrize("name", sorted(REPEATED))
def test_on_a_kept_connection_a_cut_answer_is_not_forgotten_when_nobody_is_there_any_more(name: str) -> None:
    """The pool sends the request again, on a new connection: which is refused."""
    call, value = CHANGES[name]
    answer = whole_answer(value)
    for count in range(0, len(answer), 7):
        if says_all(answer, answer[:count], chunked=False):
            continue

        def cut(request: Request, reply: Reply, count: int = count) -> None:
            if request.method == "GET":
                reply.answer(200, json.dumps({"ready": True, "missing": {}}).encode())
                return
            server.stop_listening()
            reply.send(answer[:count])
            reply.close()

        with RawServer(cut) as server:
            client = client_of(server)
            assert client.ready()
            with pytest.raises(Unavailable) as caught:
                call(client)
            assert caught.value.sent, answer[:count]
            assert len(server.requests) == 2


@pytest.mark.parametrize("status", [200, 404, 409, 503])
@pytest.mark.parametrize("name", ["append", "append with a stamp", "create"])
def test_a_refusal_that_is_cut_is_no_refusal(name: str, status: int) -> None:
    """A whole one is: nothing was done."""
    call, _ = CHANGES[name]
    answer = whole_answer({"reason": "read_only", "detail": "no", "title": "ReadOnly"}, status)
    if status == 200:
        answer = whole_answer({"no": "offsets"})
    cutter = Cutter(answer)
    with RawServer(cutter) as server:
        client = client_of(server)
        for count in range(len(answer)):
            cutter.count = count
            with pytest.raises(Unavailable) as caught:
                call(client)
            assert caught.value.sent
        cutter.count = len(answer)
        with pytest.raises(LiftlogError) as refused:
            call(client)
        assert bool(refused.value.fields.get("sent")) is (status == 200), "the broker did something: what, nobody reads"


def problem(error: LiftlogError) -> bytes:
    return whole_answer(error.to_problem(), error.status)


DOUBTFUL: Final[dict[str, bytes]] = {
    "no answer": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": whole_answer(APPENDED)[:-5],
    "a silent length": b"HTTP/1.1 200 OK\r\n\r\n",
    "no HTTP": b"\x00\xff\x16\x03 garbage\r\n\r\n",
    "out of time": problem(DeadlineExceeded("too slow")),
    "a proxy": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad",
    "the broker does not know": problem(StorageFailed("may be lost", sent=True)),
}
LAST: Final[dict[str, LiftlogError | bytes | None]] = {
    "nobody is there": None,
    "not ready": NotReady("starting"),
    "read-only": ReadOnly("no"),
    "deleted": UnknownStream("no stream"),
    "replaced": StaleIncarnation("another one"),
    "fenced": ProducerFenced("another one", producer_epoch=3),
    "out of sequence": OutOfSequence("a gap", expected=3),
    "full": Overloaded("full"),
    "elsewhere": NotLeader("an election", leader=None),
    "a page": b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno!",
    "a fault": whole_answer({"reason": "internal", "detail": "a bug"}, 500),
}


@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("first", DOUBTFUL)
@pytest.mark.parametrize("name", first_short(["append with a stamp", "alter"]))
@pytest.mark.parametrize("place", ["one broker", "another broker"])
def test_no_later_error_hides_a_doubtful_try(place: str, name: str, first: str, last: str) -> None:
    call, _ = CHANGES[name]
    end = LAST[last]
    final = b"" if end is None else end if isinstance(end, bytes) else problem(end)

    def doubtful(request: Request, reply: Reply) -> None:
        if place == "one broker" and request.number > 0:
            refusing(request, reply)
            return
        if end is None:
            one.stop_listening()
        reply.send(DOUBTFUL[first])
        reply.close()

    def refusing(request: Request, reply: Reply) -> None:
        reply.send(final)
        reply.close()

    with RawServer(doubtful) as one, RawServer(refusing) as other:
        if end is None:
            other.stop_listening()
        addresses = one.address if place == "one broker" else f"{one.address},{other.address}"
        with pytest.raises(LiftlogError) as caught:
            call(client_of(addresses, deadline_s=0.03))
        assert caught.value.sent, caught.value


@pytest.mark.parametrize("last", [last for last in LAST if last not in ("a fault", "a page")])
@pytest.mark.parametrize("name", CHANGES)
def test_what_was_only_refused_is_certainly_not_done(name: str, last: str) -> None:
    call, _ = CHANGES[name]
    end = LAST[last]

    def refuse(request: Request, reply: Reply) -> None:
        assert isinstance(end, LiftlogError)
        reply.send(problem(end))  # and the connection stays: one that dies under the next try would leave doubt

    with RawServer(refuse) as server:
        if end is None:
            server.stop_listening()
        with pytest.raises(LiftlogError) as caught:
            call(client_of(server, deadline_s=0.03))
        assert not caught.value.fields.get("sent"), caught.value


def test_a_plain_append_that_met_doubt_is_not_sent_again() -> None:
    for first, answer in DOUBTFUL.items():
        with RawServer(Cutter(answer)) as server:
            client = client_of(server, deadline_s=60)
            with pytest.raises(LiftlogError) as caught:
                client.append("s", 0, ROWS)
            assert caught.value.sent, first
            assert len(server.requests) == 1, first


@pytest.mark.parametrize(
    ("call", "gone"),
    [
        (lambda client: client.delete_stream("s"), UnknownStream("no stream")),
        (lambda client: client.delete_consumer("c"), UnknownConsumer("no consumer")),
        (lambda client: client.sink("k").delete(), UnknownSink("no sink")),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_what_was_deleted_by_a_try_whose_answer_was_lost_is_deleted(call: Call, gone: LiftlogError, kept: bool) -> None:
    def delete(request: Request, reply: Reply) -> None:
        if request.method == "GET":
            reply.answer(200, json.dumps({"ready": True, "missing": {}}).encode())
        elif sum(seen.method == "DELETE" for seen in server.requests) > 1:
            reply.send(problem(gone))
        else:
            reply.close()

    with RawServer(delete) as server:
        client = client_of(server, deadline_s=60)
        if kept:
            client.ready()
        call(client)
        assert len(server.requests) == 2 + kept


def test_reading_leaves_nothing_in_doubt() -> None:
    def lose(request: Request, reply: Reply) -> None:
        if request.number == 0:
            reply.close()
        else:
            reply.send(problem(UnknownStream("no stream")))

    with RawServer(lose) as server, pytest.raises(UnknownStream) as caught:
        client_of(server, deadline_s=60).describe("s")
    assert "sent" not in caught.value.fields


class Losing:
    """A stream `s` that takes appends; `fates` says what becomes of each, in order."""

    def __init__(self, fates: Iterator[bytes]) -> None:
        self.fates = fates
        self.stamps: list[tuple[int, int, int]] = []
        self.registered = 0

    def __call__(self, request: Request, reply: Reply) -> None:
        if request.path == "/v1/producers":
            self.registered += 1
            reply.answer(200, json.dumps({"producer_id": self.registered, "epoch": 0}).encode())
            return
        query = request.query
        self.stamps.append((int(query["producer_id"]), int(query["producer_epoch"]), int(query["sequence"])))
        fate = next(self.fates)
        reply.send(fate)
        if not fate.endswith(b"}"):
            reply.close()


def test_a_producers_numbers_stay_right_after_doubt() -> None:
    """A number that may have been used is not used again for other records; the next batch is another producer's."""
    ok, lost, no = whole_answer(APPENDED), b"HTTP/1.1 200 OK\r\n", problem(ReadOnly("no"))
    losing = Losing(iter([ok, lost, no, ok, lost, ok, no, ok]))
    with RawServer(losing) as server:
        producer = producer_to(server)
        outcomes: list[Any] = [producer.send(b"x").exception(60) for _ in range(6)]
        with pytest.raises(ReadOnly):
            producer.close()
    assert [type(outcome) for outcome in outcomes] == [NoneType, ReadOnly, NoneType, NoneType, ReadOnly, NoneType]
    assert [bool(outcome and outcome.fields.get("sent")) for outcome in outcomes] == [
        False,
        True,
        False,
        False,
        False,
        False,
    ]
    assert losing.stamps == [(1, 0, 0), (1, 0, 1), (1, 0, 1), (2, 0, 0), (2, 0, 1), (2, 0, 1), (2, 0, 2), (3, 0, 0)]


def test_a_fenced_producer_says_of_later_records_that_they_are_not_stored() -> None:
    losing = Losing(iter([b"", problem(ProducerFenced("another one", producer_epoch=1))]))
    with RawServer(losing) as server:
        brokers = Brokers(server.address)
        sequences = Sequences(Calls(brokers, timeout_s=60, deadline_s=60), "job")
        with pytest.raises(ProducerFenced) as first:
            AppendCalls(brokers, deadline_s=60).append("s", 0, ROWS, stamp=sequences.stamp(0))
        sequences.failed(first.value)
        with pytest.raises(ProducerFenced) as second:
            sequences.stamp(0)
    assert first.value.sent
    assert not second.value.sent
    assert second.value.producer_epoch == 1


def test_nobody_at_all_is_a_refusal() -> None:
    with pytest.raises(Unavailable) as caught:
        client_of(f"127.0.0.1:{free_port()}").append("s", 0, ROWS)
    assert not caught.value.sent


@pytest.mark.parametrize("first", first_short(range(8)))
def test_an_answer_of_records_that_is_cut_anywhere_is_never_taken_for_the_end(first: int) -> None:
    """Every place, in eight parts."""
    body, headers = Log.of(4, per_batch=2).answer(0)
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *(f"{name}: {text}" for name, text in headers.items())]
    cutter = Cutter("\r\n".join([*lines, "", ""]).encode() + body)

    def rows(session: FetchSession) -> int:
        with session.open("s", 0, 0) as answer:
            return sum(message.rows().num_rows for message in answer.messages())

    with RawServer(lambda request, reply: (reply.send(cutter.answer[: cutter.count]), reply.close())[1]) as server:
        session = FetchSession(server.address)
        for count in range(first, len(cutter.answer), 8):
            cutter.count = count
            with pytest.raises((Unavailable, BadBatch)):
                rows(session)
        cutter.count = len(cutter.answer)
        assert rows(session) == 4
