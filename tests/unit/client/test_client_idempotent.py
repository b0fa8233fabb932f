"""The idempotent producer against a real server.

Goal: whatever becomes of the answers, each record is stored once, in order.

Method: a raw-socket relay that loses answers (the request was carried out), requests (it was not).
"""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from broker.api.errors import (
    ExpectationFailed,
    InvalidName,
    InvalidRecords,
    InvalidRequest,
    LiftlogError,
    OutOfSequence,
    ProducerFenced,
    Unavailable,
    UnknownProducer,
    WriterFenced,
)
from broker.client.client import Client, connect
from broker.client.writing.append import Stamp
from tests.support.effort import first_short
from tests.unit.client.rawserver import RawServer, Reply, Request
from tests.unit.serving.server import Server

NewStream = Callable[..., str]
ROWS = pa.table({"value": [b"a", b"b"]})


class Relay:
    """Passes requests on to a real server; `fate` says what becomes of each append: `ok`, `lost answer`, `lost`."""

    def __init__(self, port: int, fate: Callable[[], str]) -> None:
        self._port = port
        self._fate = fate
        self.repeats = 0

    def __call__(self, request: Request, reply: Reply) -> None:
        is_append = request.path.endswith("/records") and request.method == "POST"
        fate = self._fate() if is_append else "ok"
        if fate == "lost":
            reply.close()
            return
        target = request.path + "?" + "&".join(f"{name}={value}" for name, value in request.query.items())
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        kind = {"Content-Type": request.headers.get("content-type", "application/json")}
        connection.request(request.method, target, body=request.body or None, headers=kind)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        self.repeats += is_append and answer.status == 200 and json.loads(body)["duplicate"]
        if fate == "lost answer":
            reply.close()
            return
        if not is_append:  # the leader is where we are
            host, port = reply.sock.getsockname()
            body = body.replace(b"127.0.0.1:%d" % self._port, f"{host}:{port}".encode())
        reply.answer(answer.status, body, {"Content-Type": answer.headers["Content-Type"] or ""})


def values(client: Client, stream: str, partition: int = 0) -> list[Any]:
    rows = client.read(stream, partitions=[partition], columns=["value"]).to_table()
    return list(rows.column("value").to_pylist())


@pytest.mark.parametrize("seed", first_short(range(3)))
def test_each_record_is_stored_once_and_in_order_whatever_answers_are_lost(
    server: Server, client: Client, new_stream: NewStream, seed: int
) -> None:
    rng = random.Random(seed)
    name = new_stream(partitions=3)
    relay = Relay(server.port, lambda: rng.choice(["ok", "ok", "lost answer", "lost"]))
    with RawServer(relay) as between, connect(between.address, deadline_s=60) as far:
        with far.producer(name, partitioner="key", batch_records=9, linger_ms=1) as producer:
            futures = [producer.send(b"%d" % i, key=b"%d" % (i % 7)) for i in range(200)]
        places = [future.result() for future in futures]
    assert relay.repeats > 0
    found = {(p, offset): value for p in range(3) for offset, value in enumerate(values(client, name, p))}
    assert {place: b"%d" % i for i, place in enumerate(places)} == found
    for p in range(3):
        numbers = [int(value) for value in values(client, name, p)]
        assert numbers == sorted(numbers)


def test_when_no_answer_ever_comes_the_error_says_so_and_what_follows_is_stored_once(
    server: Server, client: Client, new_stream: NewStream
) -> None:
    name = new_stream()
    healed = threading.Event()
    relay = Relay(server.port, lambda: "ok" if healed.is_set() else "lost answer")
    with RawServer(relay) as between, connect(between.address) as far:
        producer = far.producer(name, deadline_s=0.5)
        first = producer.send(b"first")
        error = first.exception(60)
        assert isinstance(error, Unavailable)
        assert error.sent
        healed.set()
        second = producer.send(b"second")
        assert second.result(60) == (0, 1)
        with pytest.raises(Unavailable):
            producer.close()
    assert values(client, name) == [b"first", b"second"]


def test_a_newer_producer_of_the_name_fences_the_older_one(client: Client, new_stream: NewStream) -> None:
    name = new_stream()
    with client.producer(name, name="job-1") as older:
        assert older.send(b"0").result(60) == (0, 0)
        with client.producer(name, name="job-1") as newer:
            assert newer.send(b"1").result(60) == (0, 1)
            for _ in range(2):  # and it does not fence the newer one in its turn
                error = older.send(b"never").exception(60)
                assert isinstance(error, ProducerFenced)
                assert error.producer_epoch == 1
            assert newer.send(b"2").result(60) == (0, 2)
        with pytest.raises(ProducerFenced):
            older.flush()
    assert values(client, name) == [b"0", b"1", b"2"]


def test_a_producer_that_the_partition_has_forgotten_gets_an_error_and_begins_anew(
    server: Server, client: Client, new_stream: NewStream
) -> None:
    name = new_stream()
    log = server.backend.partition(name, 0).log
    with client.producer(name) as producer:
        assert producer.send(b"0").result(60) == (0, 0)
        log.remembered.known().producers._producers.clear()  # as if it had expired
        with pytest.raises(UnknownProducer):
            producer.send(b"1").result(60)
        assert producer.send(b"2").result(60) == (0, 1)
        with pytest.raises(UnknownProducer):
            producer.flush()
    assert values(client, name) == [b"0", b"2"]


def test_what_is_refused_costs_no_other_record(client: Client, new_stream: NewStream) -> None:
    with client.producer(new_stream()) as producer:
        assert producer.send(b"x").result(60) == (0, 0)
        assert isinstance(producer.send_batch(pa.table({"value": [1]})).exception(60), InvalidRecords)
        assert [producer.send(b"x").result(60) for _ in range(2)] == [(0, 1), (0, 2)]
        with pytest.raises(InvalidRecords):
            producer.flush()


def test_stamps_of_ones_own(client: Client, new_stream: NewStream) -> None:
    name = new_stream()
    producer_id, epoch = client.register_producer()
    assert epoch == 0
    first = client.append(name, 0, ROWS, stamp=Stamp(producer_id, 0, 0))
    again = client.append(name, 0, ROWS, stamp=Stamp(producer_id, 0, 0))
    assert (first.first_offset, first.next_offset, first.duplicate) == (0, 2, False)
    assert (again.first_offset, again.next_offset, again.duplicate) == (0, 2, True)
    with pytest.raises(OutOfSequence) as caught:
        client.append(name, 0, ROWS, stamp=Stamp(producer_id, 0, 2))
    assert caught.value.expected == 1
    with pytest.raises(UnknownProducer):
        client.append(name, 0, ROWS, stamp=Stamp(producer_id + 1_000_000, 0, 0))
    assert client.append(name, 0, ROWS).first_offset == 2


@pytest.mark.parametrize("fate", ["lost answer", "lost"])
def test_an_append_that_expects_an_offset_is_stored_once_whatever_is_lost(
    server: Server, client: Client, new_stream: NewStream, fate: str
) -> None:
    name = new_stream()
    fates = ["ok", fate]
    relay = Relay(server.port, lambda: fates.pop() if fates else "ok")
    with RawServer(relay) as between, connect(between.address, deadline_s=60) as far:
        if fate == "lost":
            assert far.append(name, 0, ROWS, expected_offset=0).first_offset == 0
        else:
            with pytest.raises(ExpectationFailed) as refused:
                far.append(name, 0, ROWS, expected_offset=0)
            assert (refused.value.next_offset, refused.value.sent) == (2, True)
        with pytest.raises(ExpectationFailed) as refused:
            far.append(name, 0, ROWS, expected_offset=0)
        assert (refused.value.next_offset, "sent" in refused.value.fields) == (2, False)
    assert values(client, name) == [b"a", b"b"]
    with pytest.raises(InvalidRequest, match="expected_offset='2': must be a whole number"):
        client.append(name, 0, ROWS, expected_offset="2")  # type: ignore[arg-type]


def test_who_takes_the_fence_shuts_out_who_had_it(server: Server, client: Client, new_stream: NewStream) -> None:
    name = new_stream()
    mine = client.fence(name, 0)
    assert (mine.fence, mine.next_offset) == (1, 0)
    client.append(name, 0, ROWS, fence=mine.fence)
    theirs = client.fence(name, 0)
    assert (theirs.fence, theirs.next_offset) == (2, 2)
    with pytest.raises(WriterFenced):
        client.append(name, 0, ROWS, fence=mine.fence)
    with pytest.raises(ExpectationFailed) as refused:
        client.append(name, 0, ROWS, fence=theirs.fence, expected_offset=0)
    assert refused.value.next_offset == 2
    with pytest.raises(InvalidRequest, match=r"fence=1\.5: must be a whole number"):
        client.append(name, 0, ROWS, fence=1.5)  # type: ignore[arg-type]


def test_a_producer_that_holds_a_fence_stores_nothing_once_it_is_anothers(
    client: Client, new_stream: NewStream
) -> None:
    name = new_stream(partitions=2)
    held = client.fence(name, 1)
    with pytest.raises(InvalidRequest, match="is that of one partition"):
        client.producer(name, fence=held.fence)
    producer = client.producer(name, partition=1, fence=held.fence)
    assert producer.send(b"mine").result(60) == (1, 0)
    client.fence(name, 1)
    for _ in range(2):
        error = producer.send(b"late").exception(60)
        assert isinstance(error, WriterFenced)
        assert not error.fields.get("sent")
    with pytest.raises(WriterFenced):
        producer.close()
    assert values(client, name, 1) == [b"mine"]


def test_names_that_cannot_be_and_options_that_contradict_each_other(client: Client, new_stream: NewStream) -> None:
    with pytest.raises(InvalidName):
        client.register_producer("no spaces")
    with pytest.raises(InvalidRequest, match="idempotent"):
        client.producer(new_stream(), idempotent=False, name="x")
    with client.producer(new_stream(), name="no spaces") as producer:
        assert isinstance(producer.send(b"x").exception(60), InvalidName)
        with pytest.raises(LiftlogError):
            producer.flush()
