"""Goal: a broker leaves out the records that a reader does not want, and the reader comes further all the same.

Method: a real server, asked by hand, by the client and by the command line. Any log, any condition:
tests/properties/storage/test_select.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from broker.api import http
from broker.api.errors import InvalidRequest, InvalidSubject
from broker.client import Client, connect
from tests.support.processes import eventually
from tests.unit.serving.server import Api, Server

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def rows(first: int, subject: str, *keys: bytes | None) -> pa.RecordBatch:
    n = len(keys)
    return pa.record_batch(
        {
            "timestamp": pa.array([NOON + timedelta(minutes=first + i) for i in range(n)], pa.timestamp("us", "UTC")),
            "subject": pa.array([subject] * n),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([b"%d" % (first + i) for i in range(n)], pa.binary()),
        }
    )


@pytest.fixture
def client(server: Server, api: Api) -> Iterator[Client]:
    """Twelve records in four batches; one batch has two subjects."""
    api.create("orders", subject="orders.>")
    with connect(f"127.0.0.1:{server.port}", deadline_s=5) as client:
        client.append("orders", 0, rows(0, "orders.eu.new", b"a", b"b", None))
        client.append("orders", 0, rows(3, "orders.us.new", b"a", b"b", b"\xff"))
        mixed = pa.Table.from_batches([rows(6, "orders.eu.paid", b"a"), rows(7, "orders.us.paid", b"a", b"c")])
        client.append("orders", 0, mixed.combine_chunks().to_batches()[0])
        client.append("orders", 0, rows(9, "orders.eu.new", b"b", b"a", b"a"))
        yield client


def values(client: Client, **conditions: Any) -> list[int]:
    return [int(v) for v in client.read("orders", **conditions).to_table().column("value").to_pylist()]


@pytest.mark.parametrize("judged", [1, 1 << 20])
@pytest.mark.parametrize(
    "conditions, expected",
    [
        ({"subject": "orders.eu.new"}, [0, 1, 2, 9, 10, 11]),
        ({"subject": "orders.*.paid"}, [6, 7, 8]),
        ({"subject": ["orders.eu.paid", "orders.us.>"]}, [3, 4, 5, 6, 7, 8]),
        ({"subject": "orders.*"}, []),
        ({"key": "b"}, [1, 4, 9]),
        ({"key": b"\xff"}, [5]),
        ({"key": b""}, []),
        ({"subject": "orders.eu.>", "key": "a"}, [0, 6, 10, 11]),
        ({"subject": "orders.eu.>", "key": "a", "start": 1, "end": 11}, [6, 10]),
        ({"subject": "orders.eu.>", "columns": ["value"]}, [0, 1, 2, 6, 9, 10, 11]),
    ],
)
def test_the_client_gets_what_it_wants_and_nothing_else(
    client: Client, conditions: dict[str, Any], expected: list[int], judged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.serving.endpoints.records.JUDGED_BYTES_MAX", judged)
    assert values(client, **conditions) == expected


def test_times_are_those_of_the_records(client: Client) -> None:
    table = client.read("orders").to_table()
    times = table.column("timestamp").to_pylist()
    middle = sorted(times)[6]
    expected = [at >= middle for at in times]
    assert values(client, since=middle) == [n for n, fits in enumerate(expected) if fits]
    assert values(client, until=middle) == [n for n, fits in enumerate(expected) if not fits]
    assert values(client, since=middle, until=middle) == []
    assert values(client, since=datetime(2999, 1, 1, tzinfo=UTC)) == []


def test_an_answer_without_records_goes_on_behind_what_was_looked_at(client: Client, api: Api) -> None:
    one = api.read("orders", subject="nothing", max_bytes=1)
    assert one.headers[http.NEXT_OFFSET] == "3"
    answer = api.read("orders", subject="nothing")
    assert answer.rows().num_rows == 0
    assert answer.headers[http.NEXT_OFFSET] == "12"
    again = api.read("orders", subject="nothing", max_bytes=1)
    assert again.headers[http.NEXT_OFFSET] == "12", "what the batches have is known by now"
    assert api.read("orders", since="2999-01-01T00:00:00").headers[http.NEXT_OFFSET] == "12"


def test_a_batch_that_is_wanted_as_a_whole_is_sent_as_it_is_stored(client: Client, api: Api) -> None:
    whole = api.read("orders")
    assert api.read("orders", subject="orders.>").body == whole.body
    some = api.read("orders", subject="orders.eu.new")
    assert len(some.body) < len(whole.body)
    assert some.rows().column("offset").to_pylist() == [0, 1, 2, 9, 10, 11]


def test_lines_are_selected_too(client: Client, api: Api) -> None:
    body = api.read("orders", format="json", key="b", limit=2).body
    assert [json.loads(line)["value"] for line in body.splitlines()] == ["1", "4"]


@pytest.mark.parametrize(
    "query, values, next_offset",
    [
        ({"limit": 2}, [0, 1], "2"),
        ({"limit": 4}, [0, 1, 2, 3], "4"),
        ({"key": "b", "limit": 2}, [1, 4], "5"),
        ({"key": "b", "limit": 3}, [1, 4, 9], "10"),
        ({"key": "b", "limit": 4}, [1, 4, 9], "12"),
        ({"offset": 1, "end": 5}, [1, 2, 3, 4], "5"),
        ({"offset": 1, "end": 5, "key": "b"}, [1, 4], "5"),
        ({"offset": 5, "end": 5}, [], "5"),
        ({"subject": "nothing", "limit": 1}, [], "12"),
        ({}, list(range(12)), "12"),
    ],
)
def test_who_goes_on_behind_lines_misses_none(
    client: Client, api: Api, query: dict[str, Any], values: list[int], next_offset: str
) -> None:
    for method in ("GET", "HEAD"):
        answer = api.read("orders", format="json", method=method, **query)
        assert answer.headers[http.NEXT_OFFSET] == next_offset
        found = [int(json.loads(line)["value"]) for line in answer.body.splitlines()]
        assert found == (values if method == "GET" else [])


def test_a_following_reader_waits_behind_what_it_does_not_want(client: Client) -> None:
    with client.read("orders", subject="orders.late", follow=True) as reader:
        client.append("orders", 0, rows(12, "orders.us.new", b"a"))
        client.append("orders", 0, rows(13, "orders.late", b"a"))
        assert next(reader).column("value").to_pylist() == [b"13"]
        assert reader.positions == {0: 14}


@pytest.mark.parametrize("conditions", [{}, {"subject": "orders.eu.>"}, {"key": "a"}, {"since": NOON}], ids=str)
def test_what_a_disk_has_lost_is_told_from_what_was_left_out(
    server: Server, client: Client, api: Api, conditions: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    plan = server.backend.partition("orders", 0).log.reader.read(3, end=6)
    (at,) = plan.ranges
    plan.close()
    with open(at.path, "r+b") as file:
        file.seek(at.position + at.length - 1)
        file.write(b"!")
    api.read("orders", offset=3, verify="true")
    with client.read("orders", **conditions) as reader:
        found = [offset for batch in reader for offset in batch.column("offset").to_pylist()]
        assert reader.lost == {0: [(3, 6)]}
    assert found
    assert not {3, 4, 5} & set(found)
    said = [each for each in caplog.messages if each.startswith("fetch.gap")]
    assert said == ["fetch.gap at=orders/0/3 next_offset=6 lost=[3,6)"]
    assert api.read("orders", offset=4, end=5, **({"key": "a"} if conditions else {})).headers[http.LOST] == "4-5"
    assert http.LOST not in api.read("orders", offset=9).headers


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    "conditions, expected",
    [
        ({"subject": "far.b"}, range(7500, 9000)),
        ({"key": "4"}, range(0)),
        ({"since": NOON + timedelta(minutes=4)}, range(7500, 9000)),
    ],
    ids=str,
)
def test_damage_far_behind_what_was_asked_for_is_found_and_passed_over(
    server: Server, api: Api, conditions: dict[str, Any], expected: range, is_known: bool
) -> None:
    """Nothing in the segments before it is wanted, and the broker has looked at them before, or has not."""
    api.create("far", subject="far.>", segment_bytes=1 << 16)
    with connect(f"127.0.0.1:{server.port}", deadline_s=5) as client:
        for i in range(6):
            one = rows(i, "far.b" if i >= 4 else "far.a", b"%d" % i)
            client.append("far", 0, pa.Table.from_batches([one] * 1500).combine_chunks())
        plan = server.backend.partition("far", 0).log.reader.read(4 * 1500, end=5 * 1500)
        (at,) = plan.ranges
        plan.close()
        if is_known:
            assert client.read("far", key="nothing", subject="nothing").to_table().num_rows == 0
        with open(at.path, "r+b") as file:
            file.seek(at.position + at.length - 1)
            file.write(b"!")
        with client.read("far", **conditions) as reader:
            found = [offset for batch in reader for offset in batch.column("offset").to_pylist()]
            assert reader.lost == {0: [(6000, 7500)]}
        assert found == list(expected)


def test_so_many_lost_ranges_are_told_that_none_is_missing(server: Server, client: Client, api: Api) -> None:
    log = server.backend.partition("orders", 0).log
    log.state.lost_ranges = tuple((i, i + 1) for i in range(12))
    assert (
        api.read("orders", key="z").headers[http.LOST]
        == "0-1, 1-2, 2-3, 3-4, 4-5, 5-6, 6-7, 7-8, 8-9, 9-10, 10-11, 11-12"
    )
    few = http.LOST_RANGES_MAX
    http.LOST_RANGES_MAX = 3  # type: ignore[misc]
    try:
        assert api.read("orders", key="z").headers[http.LOST] == "0-1, 1-2, 2-12"
    finally:
        http.LOST_RANGES_MAX = few  # type: ignore[misc]


@pytest.mark.parametrize(
    "query, what",
    [
        ({"subject": "a..b"}, "subject"),
        ({"subject": "a,"}, "subject"),
        ({"key_base64": "?"}, "key_base64"),
        ({"key": "a", "key_base64": "YQ=="}, "key"),
        ({"since": "soon"}, "since"),
        ({"until": ""}, "until"),
        ({"subject": "a" * 3000}, "subject"),
    ],
)
def test_a_condition_that_cannot_be_is_refused(client: Client, api: Api, query: dict[str, Any], what: str) -> None:
    answer = api.read("orders", **query)
    assert (answer.status, answer.reason) == (400, "invalid_request")
    assert what in answer.problem["detail"]


def test_the_client_refuses_what_cannot_be_asked(client: Client) -> None:
    with pytest.raises(InvalidSubject):
        client.read("orders", subject="a..b")
    with pytest.raises(InvalidRequest, match="comma"):
        client.read("orders", subject="a,b")
    with pytest.raises(InvalidRequest, match="time zone"):
        client.read("orders", since=datetime(2026, 1, 1))
    with pytest.raises(InvalidRequest, match="characters"):
        client.read("orders", key=b"k" * 5000)
    with pytest.raises(InvalidRequest, match="give bytes"):
        client.read("orders", key="\udcff")


def test_memory_for_what_is_selected_is_reserved(server: Server, client: Client, api: Api) -> None:
    budget = server.serving.lines_budget
    budget.take(budget.bytes_max)
    try:
        assert api.read("orders", key="b").reason == "overloaded"
        assert api.read("orders").rows().num_rows == 12
    finally:
        budget.give_back(budget.bytes_max)
    assert api.read("orders", key="b").status == 200
    eventually(lambda: budget.bytes_now == 0, timeout_s=10, what="the memory given back")
