"""GET records for people.

Goal: exactly the asked rows, readable, each line one JSON object, streamed. Method: a real server; the same
rows through Arrow as the oracle.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.api.batch import BatchHeader, encode_batch
from broker.api.http import ARROW_STREAM, NDJSON
from broker.api.legible import iso_time
from broker.api.schema import SCHEMA
from broker.serving.http import body
from broker.serving.payload import ndjson
from broker.storage.read import FileRange, ReadPlan
from tests.support.processes import eventually
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Answer, Api, Server


def lines(answer: Answer) -> list[dict[str, Any]]:
    assert answer.headers.get_content_type() == NDJSON, answer.body[:300]
    return [json.loads(line) for line in answer.body.splitlines()]


@pytest.fixture
def orders(api: Api) -> Api:
    """100 records in batches of ten."""
    api.create("orders", batch_records=10)
    api.append("orders", values(100))
    return api


def test_a_line_says_all_of_a_record(api: Api) -> None:
    api.create("orders")
    kind = pa.map_(pa.string(), pa.binary())
    api.append(
        "orders",
        pa.record_batch(
            {
                "timestamp": pa.array([1_357_016_400_123_456, 0, -1], pa.timestamp("us", "UTC")),
                "subject": ["flights.EWR", "a", "b"],
                "key": pa.array([b"k\xc3\xa9", b"\xff\x00", None]),
                "value": pa.array([b'{"a": 1}\n', None, b""]),
                "headers": pa.array([[("N", b"1"), ("N", b"\xfe"), ("M", None)], None, []], kind),
                "reply": ["_INBOX.1", None, None],
            }
        ),
    )
    assert lines(api.read("orders", format="json")) == [
        {
            "offset": 0,
            "timestamp": "2013-01-01T05:00:00.123456Z",
            "subject": "flights.EWR",
            "key": "ké",
            "value": '{"a": 1}\n',
            "headers": [["N", "1"], ["N", {"base64": base64.b64encode(b"\xfe").decode()}], ["M", None]],
            "reply": "_INBOX.1",
        },
        {
            "offset": 1,
            "timestamp": "1970-01-01T00:00:00.000000Z",
            "subject": "a",
            "key": {"base64": "/wA="},
            "value": None,
            "headers": None,
            "reply": None,
        },
        {
            "offset": 2,
            "timestamp": "1969-12-31T23:59:59.999999Z",
            "subject": "b",
            "key": None,
            "value": "",
            "headers": [],
            "reply": None,
        },
    ]


@pytest.mark.parametrize(
    "query, expected",
    [
        ({}, range(100)),
        ({"offset": 37}, range(37, 100)),
        ({"offset": 37, "end": 41}, range(37, 41)),
        ({"offset": 8, "end": 9}, range(8, 9)),
        ({"offset": 5, "limit": 3}, range(5, 8)),
        ({"offset": 5, "limit": 30}, range(5, 35)),
        ({"offset": 5, "end": 12, "limit": 30}, range(5, 12)),
        ({"offset": "latest"}, range(0)),
        ({"offset": 95, "end": 1000}, range(95, 100)),
    ],
)
def test_exactly_the_asked_rows(orders: Api, query: dict[str, Any], expected: range) -> None:
    assert [line["offset"] for line in lines(orders.read("orders", format="json", **query))] == list(expected)


@pytest.mark.parametrize(
    "accept, kind",
    [
        (NDJSON, NDJSON),
        (f"text/html, {NDJSON};q=0.9", NDJSON),
        (ARROW_STREAM, ARROW_STREAM),
        (f"{ARROW_STREAM}, {NDJSON};q=0.1", ARROW_STREAM),
        ("*/*", ARROW_STREAM),
    ],
)
def test_accept_chooses_the_form(orders: Api, accept: str, kind: str) -> None:
    path = "/v1/streams/orders/partitions/0/records"
    assert orders.get(path, headers={"Accept": accept}).headers.get_content_type() == kind
    assert orders.get(path, headers={"Accept": accept}, format="json").headers.get_content_type() == NDJSON


def test_head_is_taken(orders: Api) -> None:
    answer = orders.read("orders", method="HEAD", format="json")
    assert answer.status == 200
    assert answer.headers.get_content_type() == NDJSON


@pytest.mark.slow
def test_a_long_answer_comes_in_pieces_and_the_connection_goes_on(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ndjson, "CHUNK_BYTES", 1000)
    api.create("orders")
    for _ in range(3):
        api.append("orders", values(5000, size=100))
    answer = api.read("orders", format="json")
    assert answer.headers["Transfer-Encoding"] == "chunked"
    assert [line["offset"] for line in lines(answer)] == list(range(15_000))
    assert api.get("/livez").status == 200


def test_a_long_poll_waits_here_too(orders: Api) -> None:
    assert lines(orders.read("orders", format="json", offset=100, max_wait_ms=50)) == []


def flip(server: Server, record: int) -> None:
    """Change a byte within the record's batch on disk, behind the broker's back."""
    with server.backend.partition("orders", 0).log.reader.read(record, end=record + 1) as plan:
        place = plan.ranges[0]
    with Path(place.path).open("r+b") as file:
        file.seek(place.position + place.length - 20)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


def test_a_damaged_first_batch_is_a_problem(server: Server, orders: Api) -> None:
    flip(server, 0)
    answer = orders.read("orders", format="json")
    assert (answer.status, answer.reason) == (500, "bad_batch")
    assert "CRC-32C" in answer.problem["detail"]


def test_a_damaged_later_batch_cuts_the_answer(server: Server, orders: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows before are intact, and the client sees that the rest is missing."""
    monkeypatch.setattr(ndjson, "CHUNK_BYTES", 100)
    flip(server, 50)
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    client.request("GET", "/v1/streams/orders/partitions/0/records?format=json")
    seen = b""
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):  # noqa: PT012
        response = client.getresponse()
        while chunk := response.read1(1000):
            seen += chunk
    assert [json.loads(line)["offset"] for line in seen.splitlines()] == list(range(50))
    client.close()


def test_times_beyond_the_calendar_are_numbers() -> None:
    assert iso_time(1 << 62) == 1 << 62
    assert datetime.fromisoformat(str(iso_time(1))).microsecond == 1


def ask_and_take_nothing(server: Server, stack: ExitStack) -> socket.socket:
    reader = stack.enter_context(socket.socket())
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", server.port))
    reader.sendall(b"GET /v1/streams/orders/partitions/0/records?format=json HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return reader


def test_readers_that_take_nothing_hold_no_more_than_the_budget(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """150 of them on one batch of 100 MiB held 2.3 GiB. When others need it, the slowest is cut."""
    monkeypatch.setattr(body, "SLOW_S", 3_600.0)
    api.create("orders")
    for _ in range(4):
        assert api.append("orders", pa.record_batch({"value": pa.array([bytes(900_000)])})).status == 200
    budget = server.serving.lines_budget
    with ExitStack() as stack:
        budget.bytes_max = 64 << 20
        readers = [ask_and_take_nothing(server, stack) for _ in range(4)]
        eventually(lambda: 30 << 20 < budget.bytes_now <= 64 << 20, what="as many as there is room for")
        eventually(lambda: api.read("orders", format="json").status == 429, what="another is refused")
        assert api.read("orders").status == 200, "Arrow is sent from the file"
        monkeypatch.setattr(body, "SLOW_S", 0.0)
        eventually(lambda: api.read("orders", format="json").status == 200, what="the slowest are cut")
        for reader in readers:
            reader.close()
        eventually(lambda: budget.bytes_now == 0, what="all is given back")


def test_a_compressed_batch_is_reserved_as_it_is_in_memory(tmp_path: Path) -> None:
    """In the background batches are compressed: 8 MB of zeros take 2 kB on the disk."""
    rows = [{"offset": i, "timestamp": 0, "subject": "s", "value": bytes(8_000)} for i in range(1_000)]
    header = BatchHeader(first_offset=0, last_offset=999)
    message = encode_batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), header, compression="zstd")
    assert len(message) < 100_000
    (tmp_path / "segment").write_bytes(message)
    plan, reserved = ReadPlan(0), list[int]()
    with (tmp_path / "segment").open("rb") as file:
        plan.ranges.append(FileRange(file.fileno(), 0, len(message), "segment"))
        next(ndjson.lines(plan, offset=0, end=None, limit=None, reserve=reserved.append))
    assert reserved[0] < 1_000_000
    assert reserved[1] > 8_000_000, "before it is decompressed"
    assert reserved[-1] > 8_000_000 + ndjson.CHUNK_BYTES, "it is kept while its rows are sent"
