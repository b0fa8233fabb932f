"""POST records.

Goal: what is answered is durable and readable as it was sent, in one group, cut into batches as the stream
says; what cannot be stored is refused whole, with the reason, and changes nothing. Method: a real server.
"""

from __future__ import annotations

import gzip
import random
import threading
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.api.batch import read_header
from broker.api.encodable import Encodable
from broker.api.errors import DiskFull, InvalidRecords, RecordTooLarge, StaleIncarnation, UnknownPartition
from broker.api.http import ARROW_STREAM
from broker.client import Client, connect
from broker.node.partitions.partition import Partition
from broker.serving.contract.endpoint import IN_TURN_BYTES_MAX, INLINE_BYTES_MAX
from broker.serving.endpoints import append
from broker.serving.endpoints.append import encode
from broker.serving.http.app import BODIES_AT_ONCE
from broker.serving.http.body import ROOM_MADE_BYTES
from broker.storage.log import AppendResult
from broker.storage.rows import RowBatch
from tests.support.messages import split_messages
from tests.support.processes import eventually
from tests.support.rows import random_rows
from tests.unit.serving.arrow import not_utf8, stream_of, values
from tests.unit.serving.server import Api, Server, running


def test_the_answer_says_where_the_records_are(api: Api) -> None:
    api.create("orders")
    first = api.append("orders", values(3)).json()
    second = api.append("orders", [values(2), values(2)]).json()
    assert (first["first_offset"], first["next_offset"], first["record_count"]) == (0, 3, 3)
    assert (second["first_offset"], second["next_offset"], second["record_count"]) == (3, 7, 4)
    assert second["leader_epoch"] == api.get("/v1/streams/orders").json()["partitions"][0]["leader_epoch"]
    assert (
        api.read("orders").rows().column("value").to_pylist() == values(3)[0].to_pylist() + 2 * values(2)[0].to_pylist()
    )


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
@pytest.mark.parametrize("seed", range(5))
def test_rows_come_back_as_they_were_sent(api: Api, seed: int, codec: str | None) -> None:
    rng = random.Random(seed)
    rows = random_rows(rng, 200).drop_columns(["offset"])
    texts = pa.array([f"s.{i}" for i in range(200)])
    rows = rows.set_column(1, "subject", texts)
    rows = rows.set_column(2, "key", pa.array([rng.randbytes(3) for _ in range(200)]))  # any value may be null then
    api.create("orders")
    assert api.append("orders", stream_of(rows, compression=codec)).status == 200
    # a header without a name is refused, and random_rows makes none
    assert api.read("orders").rows().drop_columns(["offset"]).to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_a_long_body_comes_back_as_it_was_sent(api: Api, encoding: str | None) -> None:
    """A packed body is longer than the length that its request declares."""
    rng = random.Random(3)
    sent = pa.record_batch({"value": pa.array([rng.randbytes(1_000) for _ in range(2 * ROOM_MADE_BYTES // 1_000)])})
    api.create("orders")
    body, headers = stream_of(sent), {"Content-Type": ARROW_STREAM}
    if encoding is not None:
        body, headers["Content-Encoding"] = gzip.compress(body, 1), encoding
        assert len(body) > ROOM_MADE_BYTES
    answer = api.request("POST", "/v1/streams/orders/partitions/0/records", body=body, headers=headers)
    assert answer.status == 200, answer.body
    assert api.read("orders").rows().column("value").to_pylist() == sent[0].to_pylist()


@pytest.mark.parametrize(
    "subject, expected", [("flights.EWR", "flights.EWR"), ("flights.*", "copy"), ("flights.>", "copy"), (None, "copy")]
)
def test_the_default_subject_is_the_streams_where_it_is_concrete(api: Api, subject: str | None, expected: str) -> None:
    api.create("copy", subject=subject)
    api.append("copy", values(1))
    assert api.read("copy").rows().column("subject").to_pylist() == [expected]


def test_a_body_is_cut_into_batches_of_one_commit_group(api: Api) -> None:
    api.create("orders", batch_records=100)
    api.append("orders", values(250))
    headers = [read_header(message) for message in split_messages(api.read("orders").body)]
    assert [(h.first_offset, h.last_offset, h.group_index, h.group_count) for h in headers] == [
        (0, 99, 0, 3),
        (100, 199, 1, 3),
        (200, 249, 2, 3),
    ]


def test_many_small_batches_become_one(api: Api) -> None:
    api.create("orders")
    api.append("orders", [values(1)] * 500)
    assert len(list(split_messages(api.read("orders").body))) == 1


@pytest.mark.parametrize("acks", ["all", "leader", "none"])
def test_every_kind_of_ack_stores(api: Api, acks: str) -> None:
    api.create("orders")
    assert api.append("orders", values(5), acks=acks).json()["next_offset"] == 5
    assert api.read("orders", max_wait_ms=5_000).rows().num_rows == 5


def test_nothing_to_append_is_no_error(api: Api) -> None:
    api.create("orders")
    api.append("orders", values(2))
    answer = api.append("orders", values(1).slice(0, 0)).json()
    assert (answer["first_offset"], answer["next_offset"], answer["record_count"]) == (2, 2, 0)


def test_records_that_expect_an_offset_get_it_or_are_refused_with_the_next_one(api: Api) -> None:
    api.create("orders", batch_records=2)
    assert api.append("orders", values(5), expected_offset=0).json()["next_offset"] == 5
    for wrong in (0, 4, 6, 2**63 - 1):
        answer = api.append("orders", values(1), expected_offset=wrong)
        assert (answer.status, answer.reason) == (412, "expectation_failed")
        assert (answer.problem["expected_offset"], answer.problem["next_offset"]) == (wrong, 5)
    assert api.append("orders", values(1), expected_offset=4, acks="none").status == 412
    assert api.append("orders", values(2), expected_offset=5).json()["first_offset"] == 5
    for malformed in (-1, "x", 2**63, "", "1_0"):
        answer = api.append("orders", values(1), expected_offset=malformed)
        assert (answer.status, answer.reason) == (400, "invalid_request"), malformed
    assert api.append("orders", values(1).slice(0, 0), expected_offset=7).reason == "invalid_records"
    assert api.append("orders", values(1), expected_offset=7, incarnation="another").reason == "stale_incarnation"
    assert api.get("/v1/streams/orders").json()["partitions"][0]["high_watermark"] == 7


def test_several_clients_append_at_once_and_nothing_is_lost_or_mixed(api: Api) -> None:
    api.create("orders")
    answers: list[tuple[int, int, int]] = []

    def work(number: int) -> None:
        mine = api.another()
        for i in range(10):
            batch = pa.record_batch({"value": [f"{number}:{i}:{k}" for k in range(20)]})
            answer = mine.append("orders", batch).json()
            answers.append((answer["first_offset"], number, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    stored = api.read("orders").rows().column("value").to_pylist()
    assert len(stored) == 4 * 10 * 20
    for first, number, i in answers:
        assert stored[first : first + 20] == [f"{number}:{i}:{k}".encode() for k in range(20)]


@pytest.mark.parametrize("encoding, pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_an_encoded_body_is_undone(api: Api, encoding: str, pack: object) -> None:
    api.create("orders")
    answer = api.request(
        "POST",
        "/v1/streams/orders/partitions/0/records",
        body=pack(stream_of(values(1000))),  # type: ignore[operator]
        headers={"Content-Type": ARROW_STREAM, "Content-Encoding": encoding},
    )
    assert answer.json()["record_count"] == 1000


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_is_broken_in_its_encoding_is_answered_and_no_fault_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, encoding: str
) -> None:
    with running(tmp_path) as server:
        server.api.create("orders")
        answer = server.api.request(
            "POST",
            "/v1/streams/orders/partitions/0/records",
            body=b"xxx",
            headers={"Content-Type": ARROW_STREAM, "Content-Encoding": encoding},
        )
        assert answer.status == 400
        assert answer.problem["reason"] == "invalid_request"
        assert encoding in answer.problem["detail"]
    assert "Unhandled" not in caplog.text


def test_a_chunked_body_is_taken(api: Api) -> None:
    api.create("orders")
    body = stream_of(values(1000))

    def chunks() -> Iterator[bytes]:
        for at in range(0, len(body), 1000):
            yield body[at : at + 1000]

    path = "/v1/streams/orders/partitions/0/records"
    answer = api.request("POST", path, body=chunks(), headers={"Content-Type": ARROW_STREAM})
    assert answer.json()["record_count"] == 1000


# --- refusals: each leaves the stream as it was ------------------------------------------------------------


@pytest.fixture
def untouched(api: Api) -> Iterator[Api]:
    """A stream that must stay as it is."""
    api.create("orders", record_bytes_max=1000)
    api.append("orders", values(3))
    yield api
    assert api.read("orders").rows().num_rows == 3


def test_an_internal_stream_takes_no_records(untouched: Api) -> None:
    answer = untouched.append("__offsets", values(1))
    assert (answer.status, answer.reason) == (403, "read_only")


@pytest.mark.parametrize(
    "body, what",
    [
        (b"", "no end-of-stream marker"),
        (b"hello", "no Arrow message begins at byte 0: 68656c6c6f"),
        (stream_of(values(3))[:-8], "no end-of-stream marker"),
        (stream_of(values(3))[:-20], "cut off"),
        (stream_of(pa.record_batch({"price": [1.5]})), "column 'price' is unknown"),
        (stream_of(pa.record_batch({"value": [1.5]})), "column 'value' is double: must be binary or a string"),
        (stream_of(pa.record_batch({"subject": ["a"]})), "'value' or 'key' is required"),
        (stream_of(pa.record_batch({"value": ["a"], "subject": ["a.*"]})), "wildcard"),
    ],
)
def test_malformed_bodies_are_refused_with_the_reason(untouched: Api, body: bytes, what: str) -> None:
    answer = untouched.append("orders", body)
    assert (answer.status, answer.reason) == (400, "invalid_records")
    assert what in answer.problem["detail"]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in not_utf8()])
def test_a_schema_whose_text_is_not_utf8_is_refused(untouched: Api, body: bytes) -> None:
    """Wherever it is: Arrow lets it in, and it is an error where it is read."""
    answer = untouched.append("orders", body)
    assert (answer.status, answer.reason) == (400, "invalid_records"), answer.body
    assert "UTF-8" in answer.problem["detail"] or "dictionary" in answer.problem["detail"]


def test_one_bad_row_refuses_the_whole_body(untouched: Api) -> None:
    batches = [values(10), pa.record_batch({"value": [b"x", b"y" * 1001]})]
    answer = untouched.append("orders", batches)
    assert (answer.status, answer.reason) == (413, "record_too_large")
    assert (answer.problem["row"], answer.problem["limit"]) == (11, 1000)


def test_a_body_over_the_limit_is_refused_before_it_is_read(untouched: Api) -> None:
    answer = untouched.append("orders", bytes((1 << 20) + 1))
    assert (answer.status, answer.reason) == (413, "request_too_large")
    assert answer.problem["limit"] == 1 << 20
    assert untouched.get("/livez").status == 200, "the connection, or a new one, goes on"


def test_a_chunked_body_over_the_limit_is_refused(untouched: Api) -> None:
    answer = untouched.another().request(
        "POST",
        "/v1/streams/orders/partitions/0/records",
        body=iter([bytes(1 << 19)] * 3),
        headers={"Content-Type": ARROW_STREAM},
    )
    assert (answer.status, answer.reason) == (413, "request_too_large")


@pytest.mark.slow
def test_bombs_are_refused(untouched: Api) -> None:
    """A small body that would be 64 MB: by Arrow's compression, and by HTTP's."""
    large = pa.record_batch({"value": pa.array([b"\0" * 900] * 70_000)})
    packed = stream_of(large, compression="zstd")
    assert len(packed) < 1 << 18
    assert untouched.append("orders", packed).reason == "request_too_large"
    answer = untouched.another().request(
        "POST",
        "/v1/streams/orders/partitions/0/records",
        body=gzip.compress(stream_of(large)),
        headers={"Content-Type": ARROW_STREAM, "Content-Encoding": "gzip"},
    )
    assert answer.reason == "request_too_large"


def test_a_broken_encoding_is_refused(untouched: Api) -> None:
    answer = untouched.another().request(
        "POST",
        "/v1/streams/orders/partitions/0/records",
        body=b"this is not gzip",
        headers={"Content-Type": ARROW_STREAM, "Content-Encoding": "gzip"},
    )
    assert (answer.status, answer.reason) == (400, "invalid_request")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json"},
        {"Content-Type": ARROW_STREAM, "Content-Encoding": "compress"},
    ],
)
def test_other_media_types_are_refused(untouched: Api, headers: dict[str, str]) -> None:
    answer = untouched.request(
        "POST", "/v1/streams/orders/partitions/0/records", body=stream_of(values(1)), headers=headers
    )
    assert (answer.status, answer.reason) == (415, "invalid_request")


@pytest.mark.parametrize("query", [{"acks": "some"}, {"max_wait_ms": 1}, {"incarnation": ""}])
def test_bad_parameters_are_refused(untouched: Api, query: dict[str, object]) -> None:
    assert untouched.append("orders", values(1), **query).status == 400


def test_another_incarnation_is_refused(untouched: Api) -> None:
    assert untouched.append("orders", values(1), incarnation="not-this").reason == "stale_incarnation"


def test_bodies_in_memory_are_bounded(tmp_path: Path) -> None:
    with running(tmp_path, body_bytes_max=1000) as server:
        server.api.create("orders")
        server.serving.budget.take(BODIES_AT_ONCE * 1000 - 10)
        answer = server.api.append("orders", stream_of(values(1)))
        assert (answer.status, answer.reason) == (429, "overloaded")
        assert answer.headers["Retry-After"]
        server.serving.budget.give_back(BODIES_AT_ONCE * 1000 - 10)
        assert server.api.append("orders", stream_of(values(1))).status == 200
        assert server.serving.budget.bytes_now == 0


def test_a_post_whose_time_is_up_says_so(server: Server, api: Api) -> None:
    """The disk is busy for longer: nothing is promised, and the records come all the same."""
    api.create("orders")
    held = threading.Event()
    server.backend._appender.submit(held.wait)
    try:
        answer = api.append("orders", values(1), timeout_ms=100)
        assert (answer.status, answer.reason) == (504, "deadline_exceeded")
        assert api.read("orders").rows().num_rows == 0
    finally:
        held.set()
    late = api.read("orders", max_wait_ms=60_000).rows()
    assert late.num_rows == 1


def test_records_are_decoded_where_they_hold_up_others_least(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the loop: a few, of a caller with nothing else under way. One after the other: those of usual size."""
    decoders: list[str] = []

    def decode(*arguments: Any) -> list[RowBatch]:
        decoders.append(threading.current_thread().name.partition("_")[0])
        return encode(*arguments)

    monkeypatch.setattr(append, "encode", decode)
    api.create("orders")
    for size in (100, INLINE_BYTES_MAX, IN_TURN_BYTES_MAX):
        assert api.append("orders", values(1, size=size)).status == 200
    assert decoders == ["server", "http-decoder", "http-worker"]
    held = threading.Event()
    server.backend._appender.submit(held.wait)
    busy = [threading.Thread(target=api.another().append, args=("orders", values(1))) for _ in range(3)]
    try:
        for number, thread in enumerate(busy):
            thread.start()
            eventually(lambda n=number: len(decoders) == 4 + n)
    finally:
        held.set()
        for thread in busy:
            thread.join()
    assert decoders[3:] == ["server", "http-decoder", "http-decoder"]


# --- bundles


@pytest.fixture
def client(server: Server, api: Api) -> Iterator[Client]:
    api.create("orders", partitions=3)
    with connect(f"127.0.0.1:{server.port}", deadline_s=0) as client:
        yield client


def rows_of(*texts: str) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([text.encode() for text in texts], pa.binary())})


def found_in(client: Client) -> list[list[bytes]]:
    return [client.read("orders", partitions=[n]).to_table().column("value").to_pylist() for n in range(3)]


def test_records_for_many_partitions_are_appended_by_one_request(client: Client) -> None:
    parts = [(2, 2), (0, 1), (1, 0)]
    assert client._appender.append_bundle("orders", parts, rows_of("a", "b", "c")) == ()
    assert client._appender.append_bundle("orders", [(0, 1)], rows_of("d")) == ()
    assert found_in(client) == [[b"c", b"d"], [], [b"a", b"b"]]


def test_a_part_that_meets_an_error_is_named_and_the_others_are_appended(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone is sent again: what the others appended would be there twice."""
    broken = {1}

    def append(partition: Partition, batches: Sequence[Encodable], *, acks: str = "all") -> Future[AppendResult]:
        if partition.partition in broken:
            raise DiskFull("no room")
        return partition._queued.append(batches, acks=acks)

    monkeypatch.setattr(Partition, "append", append)
    parts = [(0, 1), (1, 1)]
    assert client._appender.append_bundle("orders", parts, rows_of("a", "b")) == (1,)
    assert found_in(client) == [[b"a"], [], []]
    broken.add(0)
    with pytest.raises(DiskFull, match="no room"):
        client._appender.append_bundle("orders", parts, rows_of("a", "b"))
    assert found_in(client) == [[b"a"], [], []]


def test_an_appended_bundle_that_is_none_is_refused_whole(client: Client, api: Api) -> None:
    append = client._appender.append_bundle
    api.create("small", partitions=2, record_bytes_max=4_096)
    with pytest.raises(InvalidRecords, match="3 records by their head, the body has 2"):
        append("orders", [(0, 1), (1, 2)], rows_of("a", "b"))
    with pytest.raises(UnknownPartition):
        append("orders", [(0, 1), (3, 1)], rows_of("a", "b"))
    with pytest.raises(StaleIncarnation):
        append("orders", [(0, 1)], rows_of("a"), incarnation="0" * 32)
    with pytest.raises(RecordTooLarge):
        append("small", [(0, 1), (1, 1)], rows_of("a", "b" * 5_000))
    headers = {"Content-Type": "application/octet-stream"}
    answer = api.request("POST", "/v1/streams/orders/records", body=b"{}", headers=headers)
    assert "'head' is missing" in answer.problem["detail"]
    assert found_in(client) == [[], [], []]
