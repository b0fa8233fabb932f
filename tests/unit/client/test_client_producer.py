"""The producer. Goal: each record is stored once, in order, or its future says why not.

Method: a real server for what works; a raw-socket server for answers that get lost.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from broker.api.answers import StreamDescription
from broker.api.errors import (
    InvalidRecords,
    InvalidRequest,
    InvalidSubject,
    LiftlogError,
    Overloaded,
    RecordTooLarge,
    StorageFailed,
    Unavailable,
    UnknownPartition,
)
from broker.api.partitioning import BY_KEY, hashed_part
from broker.api.validation import build
from broker.client.client import Client
from broker.client.http.brokers import Brokers
from broker.client.producer import Producer
from broker.client.writing.partitioner import partition_of, partitions_of
from tests.unit.client.rawserver import RawServer, Reply, Request

NewStream = Callable[..., str]


def stored(client: Client, stream: str, column: str = "value") -> list[Any]:
    found: list[Any] = client.read(stream, columns=[column]).to_table().column(column).to_pylist()
    return found


def test_records_come_back_as_they_were_sent(client: Client, new_stream: NewStream) -> None:
    name = new_stream(subject="some.subject")
    at = datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    with client.producer(name) as producer:
        producer.send(b"plain")
        producer.send("text", key="k", headers={"a": "1"}, subject="other.subject", timestamp=at)
        producer.send(None, key=b"gone", headers=[("b", b"\xff"), ("b", b"2")])
        producer.send(b"", timestamp=1_700_000_000_000_001)
    rows = client.read(name).to_table().to_pylist()
    assert [r["value"] for r in rows] == [b"plain", b"text", None, b""]
    assert [r["key"] for r in rows] == [None, b"k", b"gone", None]
    assert [r["subject"] for r in rows] == ["some.subject", "other.subject", "some.subject", "some.subject"]
    assert rows[1]["timestamp"] == at
    assert rows[1]["headers"] == [{"key": "a", "value": b"1"}]
    assert [(h["key"], h["value"]) for h in rows[2]["headers"]] == [("b", b"\xff"), ("b", b"2")]
    assert rows[0]["headers"] is None


def test_futures_say_where_each_record_went(client: Client, new_stream: NewStream) -> None:
    name = new_stream()
    with client.producer(name, batch_records=7) as producer:
        futures = [producer.send(b"%d" % i) for i in range(100)]
        called: list[tuple[int, int]] = []
        futures[50].add_done_callback(lambda future: called.append(future.result()))
        assert [future.result(60) for future in futures] == [(0, i) for i in range(100)]
    assert called == [(0, 50)]
    assert all(future.done() and future.exception() is None for future in futures)
    assert stored(client, name) == [b"%d" % i for i in range(100)]


def test_a_single_record_is_sent_without_a_flush(client: Client, new_stream: NewStream) -> None:
    with client.producer(new_stream(), linger_ms=1) as producer:
        assert producer.send(b"x").result(60) == (0, 0)


def test_many_threads_may_send(client: Client, new_stream: NewStream) -> None:
    name = new_stream()
    with client.producer(name, batch_records=50, in_flight=2) as producer:

        def run(letter: bytes) -> None:
            for i in range(500):
                producer.send(letter + b"%d" % i)

        threads = [threading.Thread(target=run, args=(letter,)) for letter in (b"a", b"b", b"c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = stored(client, name)
    for letter in (b"a", b"b", b"c"):
        assert [v for v in found if v.startswith(letter)] == [letter + b"%d" % i for i in range(500)]


def test_keys_go_where_the_broker_would_put_them(client: Client, new_stream: NewStream) -> None:
    name = new_stream(partitions=5, subject="orders.>", partition_by="key")
    keys = [f"key-{i}".encode() for i in range(60)]
    with client.producer(name, partitioner="key") as producer:
        futures = [producer.send(b"v", key=key) for key in keys]
        no_key = producer.send(b"v", subject="orders.7")
        assert [f.result(60)[0] for f in futures] == [zlib.crc32(key) % 5 for key in keys]
        assert no_key.result(60)[0] == zlib.crc32(b"orders.7") % 5
    for key in (*keys, None):
        mine = partition_of(b"orders.7" if key is None else key, 5)
        assert mine == zlib.crc32(hashed_part(b"orders.7", key, BY_KEY, 0)) % 5


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.dictionary(pa.int32(), pa.binary())])
def test_whole_batches_are_hashed_like_single_records(kind: pa.DataType) -> None:
    keys = ["a", "b", None, "a", "", "ü", None]
    subjects = ["s.1", None, "s.2", "s.1", "s.1", "s.1", None]
    plain = [None if key is None else key.encode() for key in keys]
    column = (
        pa.array(keys, kind)
        if kind == pa.string()
        else pa.array(plain, pa.binary()).dictionary_encode()
        if pa.types.is_dictionary(kind)
        else pa.array(plain, kind)
    )
    rows = pa.record_batch({"key": column, "subject": pa.array(subjects)}).slice(0)
    expected = [
        partition_of(key if key is not None else (subject or "dflt").encode(), 7)
        for key, subject in zip(plain, subjects, strict=True)
    ]
    assert partitions_of(rows, 7, default_subject="dflt").tolist() == expected
    assert partitions_of(rows.slice(2, 3), 7, default_subject="dflt").tolist() == expected[2:5]


def test_round_robin_gives_each_batch_to_the_next_partition(client: Client, new_stream: NewStream) -> None:
    name = new_stream(partitions=3)
    with client.producer(name, batch_records=10) as producer:
        futures = [producer.send(b"x") for _ in range(60)]
    assert [f.result()[0] for f in futures] == [p for p in (0, 1, 2, 0, 1, 2) for _ in range(10)]


def test_tables_and_batches_are_sent_whole_and_in_order_with_single_records(
    client: Client, new_stream: NewStream
) -> None:
    name = new_stream()
    table = pa.table({"value": [b"%d" % i for i in range(1, 5)], "key": [b"k"] * 4})
    with client.producer(name, linger_ms=60_000) as producer:
        producer.send(b"0")
        sent = producer.send_batch(table)
        producer.send(b"5")
        more = producer.send_batch(table.slice(0, 2).to_batches()[0])
    assert [(a.partition, a.first_offset, a.next_offset) for a in sent.result()] == [(0, 1, 5)]
    assert [(a.first_offset, a.record_count) for a in more.result()] == [(6, 2)]
    assert stored(client, name) == [b"0", b"1", b"2", b"3", b"4", b"5", b"1", b"2"]


def test_large_tables_are_split_into_requests(client: Client, new_stream: NewStream) -> None:
    def key(i: int) -> bytes:
        return b"key-%d" % (i % 8)

    name = new_stream(partitions=2)
    numbers = range(24)
    table = pa.table({"value": [b"%d " % i + bytes(1 << 20) for i in numbers], "key": [key(i) for i in numbers]})
    with client.producer(name, partitioner="key") as producer:
        parts = producer.send_batch(table).result(60)
    assert sorted(part.partition for part in parts) == [0, 0, 1, 1]
    assert sum(part.record_count for part in parts) == 24
    for partition in (0, 1):
        rows = client.read(name, partitions=[partition], columns=["key", "value"]).to_table().to_pylist()
        found = [int(row["value"].split()[0]) for row in rows]
        assert found == [i for i in range(24) if zlib.crc32(key(i)) % 2 == partition]


def test_what_cannot_be_a_record_is_refused_at_once(client: Client, new_stream: NewStream) -> None:
    with client.producer(new_stream(record_bytes_max=100)) as producer:
        with pytest.raises(RecordTooLarge) as caught:
            producer.send(b"x" * 101)
        assert caught.value.limit == 100
        with pytest.raises(InvalidRecords, match="tombstone"):
            producer.send(None)
        with pytest.raises(InvalidRecords):
            producer.send(5)  # type: ignore[arg-type]
        with pytest.raises(InvalidSubject):
            producer.send(b"x", subject="a.*")
        with pytest.raises(InvalidRequest, match="time zone"):
            producer.send(b"x", timestamp=datetime(2024, 1, 1))
        with pytest.raises(InvalidRecords):
            producer.send(b"x", timestamp=1 << 64)
        assert producer.send(b"y").result(60) == (0, 0)


def test_what_the_broker_refuses_reaches_the_future_and_the_flush_and_the_rest_goes_on(
    client: Client, new_stream: NewStream
) -> None:
    with client.producer(new_stream()) as producer:
        wrong = producer.send_batch(pa.table({"value": [1, 2]}))
        right = producer.send(b"x")
        with pytest.raises(InvalidRecords):
            producer.flush(60)
        assert isinstance(wrong.exception(), InvalidRecords)
        assert right.result() == (0, 0)
        producer.flush(60)


def test_options_out_of_their_limits_are_named(client: Client, new_stream: NewStream) -> None:
    name = new_stream()
    with pytest.raises(UnknownPartition):
        client.producer(name, partition=1)
    for option, value in (("batch_bytes", 0), ("in_flight", 0), ("linger_ms", -1), ("partitioner", "random")):
        with pytest.raises(InvalidRequest, match=option):
            client.producer(name, **{option: value})


def test_a_closed_producer_takes_nothing(client: Client, new_stream: NewStream) -> None:
    producer = client.producer(new_stream())
    producer.send(b"x")
    producer.close()
    producer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        producer.send(b"y")


@pytest.mark.process
def test_a_producer_is_not_used_after_a_fork(client: Client, new_stream: NewStream) -> None:
    with client.producer(new_stream()) as producer:
        producer.send(b"x").result(60)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:  # no pytest machinery in here
            try:
                producer.send(b"y")
            except InvalidRequest as error:
                os.write(send, str(error).encode())
            finally:
                os._exit(0)
        os.close(send)
        with os.fdopen(receive, "rb") as pipe:
            assert b"fork" in pipe.read()
        os.waitpid(child, 0)
        assert producer.send(b"z").result(60) == (0, 1)


DESCRIPTION: dict[str, Any] = {
    "name": "orders",
    "incarnation": "inc-1",
    "created_ms": 0,
    "internal": False,
    "settings": {"subject": "orders"},
    "warnings": [],
    "partitions": [
        {
            "partition": 0,
            "leader": {"id": "b", "http": ""},
            "replicas": ["b"],
            "isr": ["b"],
            "leader_epoch": 0,
            "log_start_offset": 0,
            "high_watermark": 0,
            "log_end_offset": 0,
            "bytes": 0,
            "segments": 1,
            "lost_ranges": [],
        }
    ],
}


def producer_to(server: RawServer, **options: Any) -> Producer:
    return Producer(Brokers(server.address), build(StreamDescription, DESCRIPTION), **{"deadline_s": 60, **options})


class Appends:
    """Counts what it stored, repeats or not; the first answers to appends go wrong as told."""

    def __init__(self, *wrong: Callable[[Reply], None]) -> None:
        self.wrong = list(wrong)
        self.stored: list[bytes] = []
        self.stamps: list[tuple[int, ...]] = []

    def __call__(self, request: Request, reply: Reply) -> None:
        if request.path == "/v1/producers":
            reply.answer(200, b'{"producer_id": 7, "epoch": 2}')
            return
        self.stamps.append(tuple(int(request.query.get(n, -1)) for n in ("producer_id", "producer_epoch", "sequence")))
        if self.wrong:
            wrong = self.wrong.pop(0)
            if wrong is Reply.close:  # stored, and the answer is lost
                self._store(request)
            wrong(reply)
            return
        first = len(self.stored)
        self._store(request)
        after = len(self.stored)
        answer = {"first_offset": first, "next_offset": after, "record_count": after - first, "leader_epoch": 0}
        reply.answer(200, json.dumps(answer).encode())

    def _store(self, request: Request) -> None:
        self.stored += pa.ipc.open_stream(request.body).read_all().column("value").to_pylist()


def say(error: LiftlogError) -> Callable[[Reply], None]:
    return lambda reply: reply.answer(error.status, json.dumps(error.to_problem()).encode())


def test_what_was_certainly_not_stored_is_sent_again() -> None:
    appends = Appends(say(Overloaded("full")), say(StorageFailed("recovering")))
    with RawServer(appends) as server, producer_to(server) as producer:
        assert producer.send(b"x").result(60) == (0, 0)
    assert appends.stored == [b"x"]
    assert appends.stamps == [(7, 2, 0)] * 3


def test_without_idempotence_an_answer_that_was_lost_is_an_error_and_nothing_is_sent_twice() -> None:
    appends = Appends(Reply.close)
    with RawServer(appends) as server, producer_to(server, idempotent=False) as producer:
        lost = producer.send(b"x")
        with pytest.raises(Unavailable) as caught:
            lost.result(60)
        assert caught.value.sent
        assert server.address in str(caught.value)
        with pytest.raises(Unavailable):
            producer.flush()
        assert producer.send(b"y").result(60) == (0, 1)
    assert appends.stored == [b"x", b"y"]
    assert appends.stamps == [(-1, -1, -1)] * 2


def test_at_least_once_sends_again_when_an_answer_was_lost() -> None:
    appends = Appends(Reply.close)
    with RawServer(appends) as server, producer_to(server, idempotent=False, at_least_once=True) as producer:
        assert producer.send(b"x").result(60) == (0, 1)
    assert appends.stored == [b"x", b"x"]


def test_a_kept_connection_that_died_meanwhile_costs_no_record() -> None:
    """It is seen before the request is sent, so nothing is ambiguous."""
    appends = Appends()
    with RawServer(appends) as server, producer_to(server) as producer:
        producer.send(b"x").result(60)
        server.drop_connections()
        assert producer.send(b"y").result(60) == (0, 1)
    assert appends.stored == [b"x", b"y"]


def test_a_refusal_before_the_body_was_read_is_understood() -> None:
    """The server answers and closes while the client is still sending megabytes."""

    def refuses(request: Request, reply: Reply) -> None:
        raise AssertionError("the body was read")

    def early(sock_reply: Reply) -> None:
        body = json.dumps(RecordTooLarge("too large", limit=5).to_problem()).encode()
        sock_reply.head(413, len(body), {"Connection": "close"})
        sock_reply.send(body)

    with RawServer(refuses, on_head=early) as server, producer_to(server) as producer:
        future = producer.send_batch(pa.table({"value": [bytes(8 << 20)]}))
        error = future.exception(60)
        assert isinstance(error, RecordTooLarge | Unavailable)
        with pytest.raises(LiftlogError):
            producer.flush()


def test_send_blocks_while_the_queue_is_full_and_goes_on_when_there_is_room() -> None:
    go = threading.Event()
    appends = Appends(lambda reply: (go.wait(60), say(Overloaded("full"))(reply))[1])
    with RawServer(appends) as server, producer_to(server, batch_records=1, in_flight=2) as producer:
        producer.send(b"0")
        producer.send(b"1")
        blocked = threading.Thread(target=producer.send, args=(b"2",))
        blocked.start()
        blocked.join(0.2)
        assert blocked.is_alive()
        go.set()
        blocked.join(60)
        assert not blocked.is_alive()
        producer.flush(60)
    assert appends.stored == [b"0", b"1", b"2"]


def test_a_flush_that_takes_too_long_says_so() -> None:
    go = threading.Event()
    appends = Appends(lambda reply: (go.wait(60), say(Overloaded("full"))(reply))[1])
    with RawServer(appends) as server, producer_to(server) as producer:
        future = producer.send(b"x")
        with pytest.raises(TimeoutError):
            producer.flush(0.05)
        with pytest.raises(TimeoutError):
            future.result(0.05)
        go.set()
        assert future.result(60) == (0, 0)
