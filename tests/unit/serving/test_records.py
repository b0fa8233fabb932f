"""GET records, in Arrow.

Goal: the answer is the stored bytes of exactly the batches that hold the asked offsets, with a length that
is right to the byte, on a connection that goes on; waiting, refusals and deletions in between are as the
contract says. Method: a real server on real logs; every batch verified.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from broker.api import http
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from tests.support.processes import eventually
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Api, Server

DAY_US = 24 * 3600 * 1_000_000


@pytest.fixture
def orders(api: Api) -> Api:
    """A stream with 100 records in ten batches of ten."""
    api.create("orders")
    for _ in range(10):
        assert api.append("orders", values(10)).status == 200
    return api


def offsets(table: pa.Table) -> list[int]:
    found: list[int] = table.column("offset").to_pylist()
    return found


def test_an_empty_stream_is_a_schema_and_an_end(api: Api) -> None:
    created = api.create("orders")
    answer = api.read("orders")
    assert answer.body == SCHEMA_BYTES + END_OF_STREAM
    assert answer.headers.get_content_type() == http.ARROW_STREAM
    assert answer.headers[http.HIGH_WATERMARK] == "0"
    assert answer.headers[http.NEXT_OFFSET] == "0"
    assert answer.headers[http.INCARNATION] == created["incarnation"]


def test_everything_committed_is_served_by_default(orders: Api) -> None:
    answer = orders.read("orders")
    assert offsets(answer.rows()) == list(range(100))
    assert answer.headers["Content-Length"] == str(len(answer.body))
    assert answer.headers[http.HIGH_WATERMARK] == "100"
    assert answer.headers[http.LOG_START_OFFSET] == "0"
    assert answer.headers[http.NEXT_OFFSET] == "100"
    assert pa.ipc.open_stream(answer.body).read_all().num_rows == 100


@pytest.mark.parametrize(
    "query, first, stop",
    [
        ({"offset": 0, "end": 10}, 0, 10),
        ({"offset": 37}, 30, 100),
        ({"offset": 37, "end": 38}, 30, 40),
        ({"offset": 37, "end": 41}, 30, 50),
        ({"offset": "earliest", "end": 1}, 0, 10),
        ({"offset": 95, "end": 10_000}, 90, 100),
        ({"offset": 100}, 0, 0),
        ({"offset": "latest"}, 0, 0),
        ({"offset": 50, "end": 50}, 0, 0),
        ({"offset": 50, "max_bytes": 1}, 50, 60),
    ],
)
def test_whole_batches_that_hold_the_asked_range(orders: Api, query: dict[str, object], first: int, stop: int) -> None:
    assert offsets(orders.read("orders", **query).rows()) == list(range(first, stop))


def test_max_bytes_is_kept_and_next_offset_says_where_to_go_on(orders: Api) -> None:
    one = int(orders.read("orders", end=10).headers["Content-Length"])
    seen, offset = [], 0
    while offset < 100:
        answer = orders.read("orders", offset=offset, max_bytes=2 * one)
        assert len(answer.body) <= 2 * one + len(SCHEMA_BYTES)
        seen += offsets(answer.rows())
        offset = int(answer.headers[http.NEXT_OFFSET])
    assert seen == list(range(100))


def test_a_time_is_the_first_record_that_is_not_older(api: Api) -> None:
    api.create("orders")
    kind = pa.timestamp("us", "UTC")
    for day in range(5):
        api.append("orders", pa.record_batch({"value": [b"x"], "timestamp": pa.array([day * DAY_US], kind)}))
    for at, first in [
        ("1970-01-03", 2),
        ("1970-01-03T00:00:00Z", 2),
        ("1970-01-03T01:00:00+01:00", 2),
        ("1970-01-02T12:00:00", 2),
        (str(2 * DAY_US // 1000), 2),
        ("-1", 0),
        ("1999-01-01", 5),
    ]:
        answer = api.read("orders", offset=f"time:{at}")
        assert offsets(answer.rows()) == list(range(first, 5)), at


WHERE = ("stream", "partition", "offset", "log_start_offset", "high_watermark")


@pytest.mark.parametrize("offset", [101, 1 << 40])
def test_above_the_high_watermark_is_out_of_range(orders: Api, offset: int) -> None:
    answer = orders.read("orders", offset=offset, max_wait_ms=10_000)
    assert answer.status == 416
    assert answer.reason == "offset_out_of_range"
    said = {name: answer.problem[name] for name in WHERE}
    assert said == dict(zip(WHERE, ("orders", 0, offset, 0, 100), strict=True))
    assert answer.problem["detail"] == f"orders/0: offset {offset} is outside [0, 100]"


def test_below_the_log_start_is_out_of_range_but_earliest_is_not(server: Server, orders: Api) -> None:
    log = server.backend.partition("orders", 0).log
    log.trim(40)
    start = log.state.log_start_offset
    assert start > 0
    answer = orders.read("orders", offset=0)
    assert (answer.status, answer.problem["log_start_offset"]) == (416, start)
    assert offsets(orders.read("orders").rows())[-1] == 99
    assert int(orders.read("orders").headers[http.LOG_START_OFFSET]) == start


def test_a_long_poll_ends_with_the_first_new_record(orders: Api) -> None:
    polled: list[float | list[int]] = []

    def poll() -> None:
        began = time.monotonic()
        rows = orders.another().read("orders", offset=100, max_wait_ms=60_000).rows()
        polled.extend((offsets(rows), time.monotonic() - began))

    thread = threading.Thread(target=poll)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "it did not wait"
    orders.append("orders", values(1))
    thread.join(60)
    assert polled[0] == [100]
    assert isinstance(polled[1], float)
    assert polled[1] < 50


def test_a_long_poll_without_news_is_empty_when_time_is_up(orders: Api) -> None:
    began = time.monotonic()
    answer = orders.read("orders", offset=100, max_wait_ms=100)
    assert answer.body == SCHEMA_BYTES + END_OF_STREAM
    assert 0.09 < time.monotonic() - began < 50


@pytest.mark.slow
def test_a_long_poll_ends_before_its_timeout_without_an_error(orders: Api) -> None:
    answer = orders.read("orders", offset=100, max_wait_ms=60_000, timeout_ms=3_000)
    assert answer.body == SCHEMA_BYTES + END_OF_STREAM


def test_no_long_poll_where_there_is_something_or_nothing_can_come(orders: Api) -> None:
    began = time.monotonic()
    assert orders.read("orders", offset=99, max_wait_ms=60_000).rows().num_rows
    assert not orders.read("orders", offset=100, end=100, max_wait_ms=60_000).rows().num_rows
    assert time.monotonic() - began < 50


def test_a_long_poll_on_a_stream_that_is_deleted_says_so(server: Server, orders: Api) -> None:
    answers = []
    poller = orders.another()
    thread = threading.Thread(target=lambda: answers.append(poller.read("orders", offset=100, max_wait_ms=60_000)))
    thread.start()
    eventually(lambda: server.backend._hub._waiter_count, what="the poll waits")
    assert orders.request("DELETE", "/v1/streams/orders").status == 204
    thread.join(60)
    assert answers[0].reason == "unknown_stream"


def test_a_recreated_stream_is_another_incarnation(orders: Api) -> None:
    old = orders.get("/v1/streams/orders").json()["incarnation"]
    assert orders.read("orders", incarnation=old).status == 200
    orders.request("DELETE", "/v1/streams/orders")
    new = orders.create("orders")["incarnation"]
    answer = orders.read("orders", incarnation=old)
    assert (answer.status, answer.reason) == (409, "stale_incarnation")
    assert answer.problem["incarnation"] == new


def test_a_newer_leader_epoch_than_ours_is_not_ready(orders: Api) -> None:
    epoch = orders.get("/v1/streams/orders").json()["partitions"][0]["leader_epoch"]
    assert orders.read("orders", epoch=epoch).status == 200
    answer = orders.read("orders", epoch=epoch + 1)
    assert (answer.status, answer.reason) == (503, "not_ready")
    assert answer.headers["Retry-After"]


def test_the_epochs_of_the_records_before_both_ends_are_told(server: Server, orders: Api) -> None:
    partition = server.backend.partition("orders", 0)
    first = partition.leader_epoch
    partition.lead(first + 4)
    orders.append("orders", values(10))
    for query, said in [
        ({"offset": 0}, f"-1, {first + 4}"),
        ({"offset": 50, "end": 60}, f"{first}, {first}"),
        ({"offset": 100}, f"{first}, {first + 4}"),
        ({"offset": 101}, f"{first + 4}, {first + 4}"),
        ({"offset": 110}, f"{first + 4}, {first + 4}"),
        ({"offset": 50, "end": 60, "key": "nobody"}, f"{first}, {first}"),
    ]:
        assert orders.read("orders", **query).headers[http.EPOCHS] == said, query
    assert orders.post("/v1/streams/orders/trim", {"before": {"offset": 60}}).status == 200
    assert orders.read("orders", offset=60).headers[http.EPOCHS] == f"-1, {first + 4}"
    assert http.EPOCHS not in orders.read("orders", offset=60, format="json").headers


def test_head_has_the_headers_of_get(orders: Api) -> None:
    got, head = orders.read("orders"), orders.read("orders", method="HEAD")
    assert head.status == 200
    for name in ("Content-Length", "Content-Type", http.HIGH_WATERMARK, http.NEXT_OFFSET, http.INCARNATION):
        assert head.headers[name] == got.headers[name]
    assert orders.read("orders", offset=101, method="HEAD").status == 416


@pytest.mark.parametrize(
    "query, what",
    [
        ({"offset": "-1"}, "offset='-1': must be a number, earliest, latest or time:"),
        ({"offset": "first"}, "offset='first'"),
        ({"offset": str(1 << 63)}, "offset="),
        ({"offset": "9" * 300}, "offset="),
        ({"offset": "time:"}, "ISO 8601"),
        ({"offset": "time:yesterday"}, "ISO 8601"),
        ({"offset": "time:1970-01-01T00:00:00 01:00"}, "write \\+ as %2B"),
        ({"end": "x"}, "end='x': must be a whole number"),
        ({"end": "²"}, "end="),
        ({"offset": 10, "end": 9}, "end=9: must not be below offset=10"),
        ({"max_bytes": 0}, "max_bytes='0': must be a whole number from 1"),
        ({"max_wait_ms": 300_001}, "must be a whole number from 0 to 300000"),
        ({"timeout_ms": 0}, "timeout_ms='0': must be a whole number from 1"),
        ({"limit": 5}, "limit applies to JSON lines"),
        ({"format": "xml"}, "must be one of arrow, json"),
        ({"ofset": 1}, "unknown query parameter 'ofset'; did you mean 'offset'?"),
        ({"zzz": 1}, "unknown query parameter 'zzz'; there are columns, end, epoch"),
    ],
)
def test_bad_parameters_are_refused_with_name_value_and_limit(orders: Api, query: dict[str, object], what: str) -> None:
    answer = orders.read("orders", **query)
    assert (answer.status, answer.reason) == (400, "invalid_request")
    assert what.replace("\\", "") in answer.problem["detail"]


def test_a_doubled_parameter_is_refused(orders: Api) -> None:
    answer = orders.get("/v1/streams/orders/partitions/0/records?offset=1&offset=2")
    assert answer.problem["detail"] == "query parameter 'offset' is given twice"


@pytest.mark.parametrize("query", ["key=%FF", "subject=orders.%C3", "%FF=1", "offset=0&key=a%ED%A0%80"])
def test_a_query_that_is_no_utf_8_is_refused_and_not_taken_for_another_one(orders: Api, query: str) -> None:
    answer = orders.get(f"/v1/streams/orders/partitions/0/records?{query}")
    assert (answer.status, answer.reason) == (400, "invalid_request")
    assert "not UTF-8" in answer.problem["detail"]


@pytest.mark.parametrize(
    "path, status, reason",
    [
        ("/v1/streams/nothing/partitions/0/records", 404, "unknown_stream"),
        ("/v1/streams/orders/partitions/1/records", 404, "unknown_partition"),
        ("/v1/streams/orders/partitions/999999999/records", 404, "unknown_partition"),
        ("/v1/streams/orders/partitions/x/records", 400, "invalid_request"),
        ("/v1/streams/orders/partitions/-1/records", 400, "invalid_request"),
        ("/v1/streams/..%2F..%2Fetc/partitions/0/records", 404, "unknown_stream"),
    ],
)
def test_what_is_not_there_is_named(orders: Api, path: str, status: int, reason: str) -> None:
    answer = orders.get(path)
    assert (answer.status, answer.reason) == (status, reason)


def test_internal_streams_can_be_read(api: Api) -> None:
    assert api.read("__offsets").rows().num_rows == 0


def test_a_record_says_when_it_came(orders: Api) -> None:
    (row,) = orders.read("orders", end=1).rows().slice(0, 1).to_pylist()
    assert abs((datetime.now(UTC) - row["timestamp"]).total_seconds()) < 60
