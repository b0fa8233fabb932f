"""Reading over HTTP. Goal: each offset of the asked range exactly once, or a clear error, whatever the broker does.

Method: a raw-socket server that has a real log and misbehaves where the test says so.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from broker.api import http
from broker.api.batch import read_header
from broker.api.conditions import ALL, Conditions
from broker.api.errors import (
    BadBatch,
    InvalidRequest,
    LiftlogError,
    NotLeader,
    NotReady,
    OffsetOutOfRange,
    StaleIncarnation,
    Unavailable,
    UnknownStream,
)
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls
from broker.client.http.interrupt import Interrupt
from broker.client.reader import QUICK_S, RecordReader, Span
from broker.client.reading.fetch import PartitionFetch, decoded
from broker.client.reading.session import FetchSession
from tests.unit.client.logs import INCARNATION, Log, body, message
from tests.unit.client.rawserver import Handler, RawServer, Reply, Request


def serve(log: Log, twist: Callable[[Request, Reply, bytes, dict[str, str]], bool] | None = None) -> Handler:
    """Answer from the log, unless the twist says that it has dealt with the request."""

    def handler(request: Request, reply: Reply) -> None:
        offset, end = int(request.query["offset"]), request.query.get("end")
        data, headers = log.answer(offset, None if end is None else int(end))
        if twist is None or not twist(request, reply, data, headers):
            reply.answer(200, data, headers)

    return handler


def problem(reply: Reply, error: LiftlogError) -> None:
    reply.answer(error.status, json.dumps(error.to_problem()).encode(), {"Content-Type": http.PROBLEM_JSON})


def collect(batches: Iterable[pa.RecordBatch], into: list[int]) -> None:
    for batch in batches:
        into += batch.column("offset").to_pylist()


def fetch_batches(
    session: FetchSession, stream: str, partition: int, start: int, end: int, **options: Any
) -> Iterator[pa.RecordBatch]:
    return PartitionFetch(session, stream, partition, start, **options).until(end, decoded)


def offsets(server: RawServer, start: int, end: int, **options: object) -> list[int]:
    session = FetchSession(server.address)
    try:
        batches = list(fetch_batches(session, "orders", 0, start, end, **options))
    finally:
        session.close()
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize(("start", "end"), [(0, 100), (0, 1), (7, 8), (15, 52), (99, 100), (40, 40), (10, 20)])
def test_exactly_the_asked_range_comes_back(start: int, end: int) -> None:
    with RawServer(serve(Log.of(100, per_batch=10))) as server:
        assert offsets(server, start, end) == list(range(start, end))


def test_rows_that_compaction_left_are_sliced_by_their_offsets() -> None:
    log = Log([message(0, 10, keep=[1, 4, 9]), message(10, 20, keep=[15]), message(20, 30, keep=[20, 29])])
    with RawServer(serve(log)) as server:
        assert offsets(server, 0, 30) == [1, 4, 9, 15, 20, 29]
        assert offsets(server, 2, 29) == [4, 9, 15, 20]
        assert offsets(server, 5, 9) == []


def test_one_connection_serves_many_reads() -> None:
    with RawServer(serve(Log.of(100, per_batch=10))) as server:
        session = FetchSession(server.address)
        for _ in range(5):
            assert sum(b.num_rows for b in fetch_batches(session, "orders", 0, 0, 100)) == 100
        assert server.connection_count == 1


@pytest.mark.parametrize("cut", [0, 50, 1500, 5000, 9000, -8, -1])
def test_a_connection_cut_anywhere_costs_no_row_and_repeats_none(cut: int) -> None:
    """The first three answers are cut at this byte (negative: from the end)."""

    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        if request.number >= 3:
            return False
        reply.head(200, len(data), headers)
        reply.send(data[:cut])
        reply.close()
        return True

    with RawServer(serve(Log.of(100, per_batch=10), twist)) as server:
        assert offsets(server, 3, 97) == list(range(3, 97))
        assert server.connection_count == len(server.requests)


def test_a_connection_closed_before_any_answer_is_tried_again() -> None:
    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        if request.number < 2:
            reply.close()
        return request.number < 2

    with RawServer(serve(Log.of(30, per_batch=10), twist)) as server:
        assert offsets(server, 0, 30) == list(range(30))


def test_a_kept_connection_that_died_meanwhile_is_replaced_without_a_pause() -> None:
    with RawServer(serve(Log.of(30, per_batch=10))) as server:
        session = FetchSession(server.address)
        assert sum(b.num_rows for b in fetch_batches(session, "orders", 0, 0, 30)) == 30
        server.drop_connections()
        assert sum(b.num_rows for b in fetch_batches(session, "orders", 0, 0, 30, deadline_s=0)) == 30


def test_bytes_damaged_once_are_asked_for_again() -> None:
    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        if request.number:
            return False
        damaged = bytearray(data)
        damaged[len(data) // 2] ^= 4
        reply.answer(200, bytes(damaged), headers)
        return True

    with RawServer(serve(Log.of(100, per_batch=10), twist)) as server:
        assert offsets(server, 0, 100) == list(range(100))
        assert len(server.requests) == 2
        assert 0 < int(server.requests[1].query["offset"]) < 100


def test_bytes_damaged_twice_are_an_error_that_names_the_place_and_never_served() -> None:
    log = Log.of(100, per_batch=10)
    damaged = bytearray(log.messages[5])
    damaged[-20] ^= 1
    log.messages[5] = bytes(damaged)
    with RawServer(serve(log)) as server:
        found: list[int] = []
        with pytest.raises(BadBatch, match=f"{server.address} orders/0: CRC-32C"):
            collect(fetch_batches(FetchSession(server.address), "orders", 0, 0, 100), found)
        assert found == list(range(50))


@pytest.mark.parametrize("change", [-8, -1, 8, 1000])
def test_a_wrong_length_is_found(change: int) -> None:
    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        reply.head(200, len(data) + change, headers)
        reply.send(data)
        reply.close()
        return True

    with RawServer(serve(Log.of(10, per_batch=10), twist)) as server, pytest.raises(LiftlogError):
        offsets(server, 0, 20, deadline_s=0)


def test_an_answer_of_something_else_is_refused() -> None:
    def html(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        reply.answer(200, b"<html>hello</html>", {"Content-Type": "text/html"})
        return True

    server = RawServer(serve(Log.of(10, per_batch=10), html))
    with server, pytest.raises(BadBatch, match="not an answer of a liftlog broker"):
        offsets(server, 0, 10)


def test_an_answer_without_a_length_is_refused() -> None:
    def chunked(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        reply.head(200, None, {**headers, "Transfer-Encoding": "chunked"})
        reply.send(b"%x\r\n" % len(data) + data + b"\r\n0\r\n\r\n")
        return True

    server = RawServer(serve(Log.of(10, per_batch=10), chunked))
    with server, pytest.raises(BadBatch, match="no Content-Length"):
        offsets(server, 0, 10)


def test_a_silent_broker_ends_in_an_error_within_the_deadline() -> None:
    silent = threading.Event()

    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        silent.wait(60)
        return True

    with RawServer(serve(Log.of(10, per_batch=10), twist)) as server:
        with pytest.raises(Unavailable, match="timed out") as caught:
            list(fetch_batches(FetchSession(server.address), "orders", 0, 0, 10, timeout_s=0.2, deadline_s=0.3))
        silent.set()
        assert server.address in str(caught.value)


def test_a_broker_that_trickles_bytes_is_given_up() -> None:
    stop = threading.Event()

    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        reply.head(200, len(data), headers)
        for i in range(len(data)):
            reply.send(data[i : i + 1])
            if stop.wait(0.01):
                break
        return True

    with RawServer(serve(Log.of(10, per_batch=10), twist)) as server:
        with pytest.raises(Unavailable, match="took longer than"):
            offsets(server, 0, 10, deadline_s=0.2, batch_timeout_s=0.2)
        stop.set()


def test_a_slow_answer_is_read_to_its_end() -> None:
    pause = threading.Event()

    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        reply.head(200, len(data), headers)
        for at in range(0, len(data), 3000):
            reply.send(data[at : at + 3000])
            pause.wait(0.005)
        return True

    with RawServer(serve(Log.of(100, per_batch=10), twist)) as server:
        assert offsets(server, 0, 100) == list(range(100))
        assert len(server.requests) == 1


def test_a_moved_leader_is_followed_and_remembered() -> None:
    with RawServer(serve(Log.of(30, per_batch=10))) as leader:

        def moved(request: Request, reply: Reply) -> None:
            problem(reply, NotLeader("another broker leads", leader={"id": "b", "http": leader.address}))

        with RawServer(moved) as follower:
            session = FetchSession(follower.address)
            for _ in range(3):
                assert sum(b.num_rows for b in fetch_batches(session, "orders", 0, 0, 30)) == 30
            assert len(follower.requests) == 1


def test_a_read_does_not_go_back_to_a_leader_that_was_deposed() -> None:
    """The new leader has 30 records. The old one, which comes first again, has lost the last ten and wrote others."""
    asked: list[str | None] = []

    def of(epoch: int, log: Log, obeys: bool) -> Handler:
        def handler(request: Request, reply: Reply) -> None:
            known = request.query.get("epoch")
            asked.append(known)
            if obeys and known is not None and int(known) > epoch:
                problem(reply, NotReady(f"the leader epoch here is {epoch}", leader_epoch=epoch))
                return
            data, headers = log.answer(int(request.query["offset"]), min(int(request.query["end"]), 20))
            reply.answer(200, data, {**headers, http.LEADER_EPOCH: str(epoch)})

        return handler

    for obeys in (True, False):
        asked.clear()
        with (
            RawServer(of(7, Log.of(30, per_batch=10), obeys)) as new,
            RawServer(of(5, Log.of(40, per_batch=10), obeys)) as old,
        ):
            session = FetchSession([old.address])
            fetch = PartitionFetch(session, "orders", 0, 0, deadline_s=0)
            session.brokers.note_leader(("orders", 0), new.address)
            assert sum(batch.num_rows for batch in fetch.answer(30)) == 20
            session.brokers.note_leader(("orders", 0), old.address)
            with pytest.raises(NotReady):
                list(fetch.answer(40))
            assert fetch.position == 20
        assert asked == [None, "7"]


def with_epochs(log: Log, offset: int, end: int | None) -> tuple[bytes, dict[str, str]]:
    """As a broker answers that tells of epochs: of the records before the two ends of what it sends."""
    headers = [read_header(m) for m in log.messages]

    def before(at: int) -> int:
        return max((h.leader_epoch for h in headers if h.first_offset < at), default=-1)

    data, said = log.answer(offset, end)
    epochs = f"{before(offset)}, {before(int(said[http.NEXT_OFFSET]))}"
    return data, {**said, http.LEADER_EPOCH: str(headers[-1].leader_epoch), http.EPOCHS: epochs}


@pytest.mark.parametrize("wanted", [ALL, Conditions(subjects=("orders.1",), key=None, since_us=None, until_us=None)])
@pytest.mark.parametrize("cut", [False, True])
def test_records_that_were_given_up_after_they_had_been_read_end_the_read(wanted: Conditions, cut: bool) -> None:
    """An operator had a broker lead that has 20 of 30 records, and 30 others were written since."""
    logs = [Log([message(0, 10, epoch=4), message(10, 30, epoch=5)])]

    def handler(request: Request, reply: Reply) -> None:
        offset, end = int(request.query["offset"]), request.query.get("end")
        data, headers = with_epochs(logs[-1], offset, None if end is None else int(end))
        if cut and request.number == 0:
            reply.head(200, len(data), headers)
            reply.send(data[:-8])
            reply.close()
        else:
            reply.answer(200, data, headers)

    with RawServer(handler) as server:
        fetch = PartitionFetch(FetchSession(server.address), "orders", 0, 0, deadline_s=5, wanted=wanted)
        assert sum(batch.num_rows for batch in fetch.answer(None)) == 30
        assert list(fetch.answer(None)) == []
        logs.append(Log([message(0, 10, epoch=4), message(10, 20, epoch=5), message(20, 50, epoch=9)]))
        with pytest.raises(OffsetOutOfRange, match="orders/0/30: records before this offset were given up") as caught:
            list(fetch.answer(None))
        assert caught.value.fields.items() >= {"parted_epoch": 5, "high_watermark": 50}.items()
        assert fetch.position == 30


def test_another_leader_that_has_what_was_read_is_no_loss() -> None:
    """Also one that knows an epoch only from where its first record was left by compaction."""
    logs = [Log([message(0, 10, epoch=4), message(10, 30, epoch=5)])]

    def handler(request: Request, reply: Reply) -> None:
        data, headers = with_epochs(logs[-1], int(request.query["offset"]), None)
        reply.answer(200, data, headers)

    with RawServer(handler) as server:
        fetch = PartitionFetch(FetchSession(server.address), "orders", 0, 0, deadline_s=0)
        assert sum(batch.num_rows for batch in fetch.answer(None)) == 30
        logs.append(Log([message(0, 10, epoch=4), message(10, 30, epoch=5), message(30, 40, epoch=9)]))
        assert sum(batch.num_rows for batch in fetch.answer(None)) == 10
        logs.append(Log([message(0, 10, epoch=4), message(35, 40, epoch=5), message(40, 50, epoch=12)]))
        assert sum(batch.num_rows for batch in fetch.answer(None)) == 10


@pytest.mark.parametrize("said", ["", "3", "3,4", "-2, 1", "a, b", "1, 2, 3"])
def test_epochs_that_are_none_are_no_answer_of_a_broker(said: str) -> None:
    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        reply.answer(200, data, {**headers, http.EPOCHS: said})
        return True

    with (
        RawServer(serve(Log.of(10, per_batch=10), twist)) as server,
        pytest.raises(BadBatch, match="header Liftlog-Epochs"),
    ):
        offsets(server, 0, 10)


def test_two_brokers_that_send_each_other_are_not_followed_for_ever() -> None:
    addresses: list[str] = []

    def other(index: int) -> Handler:
        return lambda request, reply: problem(reply, NotLeader("not me", leader=addresses[index]))

    with RawServer(other(1)) as a, RawServer(other(0)) as b:
        addresses += [a.address, b.address]
        with pytest.raises(NotLeader):
            offsets(a, 0, 10, deadline_s=0)
        assert len(a.requests) + len(b.requests) < 10


def test_a_leader_that_dies_in_the_middle_is_replaced_by_a_configured_broker() -> None:
    log = Log.of(100, per_batch=10)
    with RawServer(serve(log)) as second:

        def dies(request: Request, reply: Reply) -> None:
            data, headers = log.answer(int(request.query["offset"]), None)
            reply.head(200, len(data), headers)
            reply.send(data[: len(data) // 2])
            first.stop_listening()
            reply.close()

        with RawServer(dies) as first:
            session = FetchSession([first.address, second.address])
            session.brokers.note_leader(("orders", 0), first.address)
            found = [o for b in fetch_batches(session, "orders", 0, 0, 100) for o in b.column("offset").to_pylist()]
        assert found == list(range(100))


@pytest.mark.parametrize(
    "error",
    [
        OffsetOutOfRange("below the log start", log_start_offset=50, high_watermark=100),
        UnknownStream("no stream 'orders'", stream="orders"),
        StaleIncarnation("re-created", incarnation="inc-2"),
    ],
)
def test_what_the_broker_refuses_comes_out_as_it_is(error: LiftlogError) -> None:
    with RawServer(lambda request, reply: problem(reply, error)) as server:
        with pytest.raises(type(error)) as caught:
            offsets(server, 0, 10)
        assert caught.value.fields.items() >= error.fields.items()
        assert caught.value.address == server.address
        assert len(server.requests) == 1


def test_not_ready_is_waited_out() -> None:
    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        if request.number < 3:
            problem(reply, NotReady("starting"))
        return request.number < 3

    with RawServer(serve(Log.of(10, per_batch=10), twist)) as server:
        assert offsets(server, 0, 10) == list(range(10))
        assert len(server.requests) == 4


def test_records_that_are_not_committed_yet_are_waited_for() -> None:
    log = Log.of(20, per_batch=10)

    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        if request.number == 2:
            log.messages.append(message(20, 30))
        return False

    with RawServer(serve(log, twist)) as server:
        # request 0 gives [0, 20), request 1 nothing, request 2 nothing, request 3 the rest
        assert offsets(server, 0, 30) == list(range(30))
        assert int(server.requests[-1].query["max_wait_ms"]) > 0


def test_a_quiet_log_forgives_failures_that_lie_far_apart() -> None:
    """The rule: a reader that meets a failure now and then, in a log in which nothing happens, has not met one long
    failure."""
    failed_s: list[float] = []

    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        if request.number % 3:
            return False
        failed_s.append(time.monotonic())
        problem(reply, NotReady("restarting"))
        return True

    with RawServer(serve(Log.of(10, per_batch=10), twist)) as server:
        fetch = PartitionFetch(FetchSession(server.address), "orders", 0, 10, deadline_s=0.5)
        while not failed_s or failed_s[-1] - failed_s[0] < 1.0:
            assert list(fetch.answer(None)) == []
    assert len(failed_s) > 3


def test_records_that_are_never_committed_end_in_an_error_that_says_so() -> None:
    said = "20 is not committed yet, the high watermark is 20"
    with RawServer(serve(Log.of(20, per_batch=10))) as server, pytest.raises(NotReady, match=said):
        offsets(server, 0, 30, deadline_s=0.1)


def test_a_range_that_the_broker_lost_is_passed_over() -> None:
    log = Log([message(0, 10), message(20, 30)])
    with RawServer(serve(log)) as server:
        assert offsets(server, 0, 30) == [*range(10), *range(20, 30)]
        assert offsets(server, 10, 25) == list(range(20, 25))


@pytest.mark.parametrize("said", ["", "3", "3-", "a-b", "1-2,3-4", "1-2, ", "-1-2", ", ".join(["1-2"] * 101)])
def test_lost_ranges_that_are_none_are_no_answer_of_a_broker(said: str) -> None:
    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        reply.answer(200, data, {**headers, http.LOST: said})
        return True

    with (
        RawServer(serve(Log.of(10, per_batch=10), twist)) as server,
        pytest.raises(BadBatch, match="header Liftlog-Lost"),
    ):
        offsets(server, 0, 10)


def test_a_stream_that_was_re_created_between_two_answers_is_noticed() -> None:
    log = Log.of(100, per_batch=10)

    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        if request.number == 0:
            reply.head(200, len(data), headers)
            reply.send(data[: len(data) // 2])
            reply.close()
            return True
        reply.answer(200, data, {**headers, http.INCARNATION: "inc-2"})
        return True

    with RawServer(serve(log, twist)) as server:
        with pytest.raises(StaleIncarnation, match="inc-2 answers, inc-1 was asked for"):
            offsets(server, 0, 100)
        assert server.requests[1].query["incarnation"] == INCARNATION


def test_an_interrupt_ends_a_read_that_waits() -> None:
    waits = threading.Event()
    interrupt = Interrupt()

    def twist(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        waits.set()
        while reply.sock.recv(1):
            pass
        return True

    with RawServer(serve(Log.of(10, per_batch=10), twist)) as server:
        found: list[int] = []
        reading = threading.Thread(
            target=lambda: found.extend(offsets(server, 0, 10, interrupt=interrupt, timeout_s=60))
        )
        reading.start()
        assert waits.wait(60)
        interrupt.set()
        reading.join(60)
        assert not reading.is_alive()
        assert found == []


@pytest.mark.process
def test_a_child_never_uses_its_parents_connections() -> None:
    """The parent's session has an idle connection and a half-read answer; the child reads on with both."""
    log = Log.of(2000, per_batch=10, value_bytes=2000)
    with RawServer(serve(log)) as server:
        session = FetchSession(server.address)
        assert sum(b.num_rows for b in fetch_batches(session, "orders", 0, 0, 10)) == 10
        reading = fetch_batches(session, "orders", 0, 0, 2000)
        first = next(reading)
        assert server.connection_count == 1
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:  # no pytest machinery in here
            try:
                rest = [o for b in reading for o in b.column(0).to_pylist()]
                again = sum(b.num_rows for b in fetch_batches(session, "orders", 0, 0, 2000))
                os.write(send, f"{rest == list(range(10, 2000))} {again}".encode())
            finally:
                os._exit(0)
        os.close(send)
        with os.fdopen(receive, "rb") as pipe:
            assert pipe.read() == b"True 2000"
        os.waitpid(child, 0)
        assert server.connection_count == 2
        assert sum(b.num_rows for b in (first, *reading)) == 2000
        assert server.connection_count == 2


def test_batches_share_memory_with_what_was_received() -> None:
    """Zero copy: what the batches of an answer hold is about what was received, not twice that."""
    log = Log.of(20_000, per_batch=5_000, value_bytes=200)
    data, _ = log.answer(0)
    with RawServer(serve(log)) as server:
        before = pa.total_allocated_bytes()
        kept = list(fetch_batches(FetchSession(server.address), "orders", 0, 0, 20_000))
        held = pa.total_allocated_bytes() - before
    assert sum(b.num_rows for b in kept) == 20_000
    assert held < 1.6 * len(data)


def test_short_answers_are_joined() -> None:
    log = Log.of(100, per_batch=10)

    def one_batch(request: Request, reply: Reply) -> None:
        chosen = log.plan(int(request.query["offset"]), int(request.query["end"]))[:1]
        offset = int(request.query["offset"])
        reply.answer(200, body(*chosen), log.headers(min((offset // 10 + 1) * 10, 100)))

    with RawServer(one_batch) as server:
        assert offsets(server, 5, 95, max_bytes=1) == list(range(5, 95))
        assert len(server.requests) == 10
        assert {r.query["max_bytes"] for r in server.requests} == {"1"}


def test_a_high_watermark_that_was_promised_and_went_back_is_asked_for_gently() -> None:
    """After an unclean stop a log may end before what was announced: whoever follows it waits, and does not hammer."""
    log = Log.of(10, per_batch=10)
    reads = 0

    def handler(request: Request, reply: Reply) -> None:
        nonlocal reads
        leader = {"id": "b", "http": server.address}
        if request.path == "/v1/watch":
            head = {"log_start_offset": 0, "leader_epoch": 0, "leader": leader}
            partitions = {"0": {**head, "high_watermark": 30}, "1": {**head, "high_watermark": 0}}
            stream = {"incarnation": INCARNATION, "partitions": partitions}
            reply.answer(200, json.dumps({"version": 1, "streams": {"orders": stream}}).encode())
            return
        reads += 1
        if reads == 4:
            log.messages.append(message(10, 30))
        if reads > 20:
            problem(reply, InvalidRequest("hammered"))
        serve(log)(request, reply)

    began = time.monotonic()
    with RawServer(handler) as server:
        reader = RecordReader(
            Calls(Brokers(server.address), timeout_s=60, deadline_s=60),
            "orders",
            {number: Span(start=10 * (1 - number), end=0, from_earliest=False) for number in (0, 1)},
            incarnation=INCARNATION,
            columns=None,
            with_partition=True,
            follow=True,
            max_bytes=None,
        )
        assert next(reader).column("offset").to_pylist() == list(range(10, 30))
        assert time.monotonic() - began >= 2 * QUICK_S
        assert reads < 10
        reader.close()
