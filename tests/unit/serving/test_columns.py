"""Goal: who asks for some columns gets them, and little else; what is damaged is found as in any read.

Method: a real server, asked by hand and by the client. Any log, any columns: tests/properties/storage/test_select.py.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from broker.api import http
from broker.api.columns import head_bytes, schema_of, spans_of
from broker.api.errors import InvalidRequest
from broker.api.schema import SCHEMA
from broker.client import Client, connect
from broker.client.reading.fetch import PartitionFetch, decoded
from broker.client.reading.session import FetchSession
from broker.storage.column_crcs import ColumnCrcs
from tests.unit.client.logs import Log
from tests.unit.client.rawserver import RawServer, Reply, Request
from tests.unit.serving.server import Api, Server

BATCHES = 3
ROWS = 40


@pytest.fixture
def client(server: Server, api: Api) -> Iterator[Client]:
    """Three batches of 40 records of 1 KiB."""
    api.create("orders", subject="orders.>")
    with connect(f"127.0.0.1:{server.port}", deadline_s=5) as client:
        for number in range(BATCHES):
            client.append("orders", 0, rows(number))
        yield client


def rows(number: int, subject: str | None = None) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "subject": pa.array([subject or f"orders.{i % 4}" for i in range(ROWS)]),
            "key": pa.array([None if i % 3 else b"%d" % i for i in range(ROWS)], pa.binary()),
            "value": pa.array([bytes([number]) * 1024 for _ in range(ROWS)], pa.binary()),
        }
    )


def asked(api: Api, **query: Any) -> pa.Table:
    answer = api.read("orders", **query)
    assert answer.status == 200
    return pa.ipc.open_stream(answer.body).read_all()


@pytest.mark.parametrize("columns", [["offset", "timestamp"], ["key"], ["reply", "subject"], ["headers", "partition"]])
def test_the_client_gets_its_columns(client: Client, columns: list[str]) -> None:
    whole = client.read("orders", columns=[*SCHEMA.names, "partition"]).to_table()
    for _ in range(2):  # at first nothing is known of the batches
        assert client.read("orders", columns=columns).to_table() == whole.select(columns)
        some = client.read("orders", columns=columns, subject="orders.2", start=5, end=115).to_table()
        assert some == whole.slice(5, 110).filter([i % 4 == 2 for i in range(5, 115)]).select(columns)


def test_an_answer_has_few_bytes_and_any_reader_of_arrow_reads_it(client: Client, api: Api) -> None:
    whole = api.read("orders")
    for _ in range(2):
        answer = api.read("orders", columns="timestamp,offset")
        assert len(answer.body) < len(whole.body) / 15
        assert answer.headers[http.NEXT_OFFSET] == "120"
        found = pa.ipc.open_stream(answer.body).read_all()
        assert found == asked(api).select(["offset", "timestamp"])
    assert asked(api, columns="subject").column_names == ["offset", "subject"]


def test_all_columns_come_where_little_would_be_saved(client: Client, api: Api) -> None:
    whole = api.read("orders").body
    assert api.read("orders", columns="value").body == whole
    assert api.read("orders", columns="offset", verify="true").body == whole
    client.append("orders", 0, rows(0).slice(0, 1))
    assert asked(api, offset=120, columns="offset").schema == SCHEMA, "a small batch"
    assert client.read("orders", start=120, columns=["key"]).to_table().to_pylist() == [{"key": b"0"}]
    assert client.read("orders", start=120, end=120, columns=["key"]).to_table().num_rows == 0


@pytest.mark.parametrize(
    "query, said",
    [
        ({"columns": "offset,ofset"}, "no column 'ofset'"),
        ({"columns": ""}, "columns"),
        ({"columns": "key", "format": "json"}, "JSON lines"),
    ],
)
def test_what_cannot_be_is_refused(client: Client, api: Api, query: dict[str, str], said: str) -> None:
    answer = api.read("orders", **query)
    assert answer.status == InvalidRequest.status
    assert said in answer.problem["detail"]
    assert answer.problem["parameter"] == "columns"


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("at", [100, 900, 1000, -100])
def test_damage_on_the_disk_is_found_where_it_is_wanted(
    server: Server, client: Client, is_known: bool, at: int
) -> None:
    """In the header, in the offsets, in the timestamps, in the headers' offsets behind the values."""
    if is_known:
        client.read("orders", columns=["timestamp"]).to_table()
    plan = server.backend.partition("orders", 0).log.reader.read(40, end=80)
    (place,) = plan.ranges
    plan.close()
    with open(place.path, "r+b") as file:
        file.seek(place.position + at % place.length)
        byte = file.read(1)[0]
        file.seek(place.position + at % place.length)
        file.write(bytes([byte ^ 1]))
    is_wanted = at >= 0 or not is_known
    with client.read("orders", columns=["offset", "timestamp"]) as reader:
        found = [offset for batch in reader for offset in batch.column("offset").to_pylist()]
        assert found == ([*range(40), *range(80, 120)] if is_wanted else list(range(120)))
        assert reader.lost == ({0: [(40, 80)]} if is_wanted else {})
    with client.read("orders") as reader:
        assert [row for batch in reader for row in batch.column("offset").to_pylist()] == [*range(40), *range(80, 120)]
        assert reader.lost == {0: [(40, 80)]}


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.ENOMEM])
def test_an_answer_ends_before_a_message_for_which_there_is_no_room(
    client: Client, api: Api, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    """Of the third message a part was kept already."""
    no_room_after(BATCHES, problem, monkeypatch)
    monkeypatch.setattr("broker.storage.made.BLOCK_BYTES", 1)  # each message is written alone
    answer = api.read("orders", columns="offset,timestamp")
    assert answer.headers[http.NEXT_OFFSET] == str(2 * ROWS)
    assert pa.ipc.open_stream(answer.body).read_all().column("offset").to_pylist() == list(range(2 * ROWS))


def no_room_after(calls: int, problem: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of so many calls writes a part, and the next one nothing."""
    kept = list[int]()

    def pwrite(fd: int, data: memoryview, position: int) -> int:
        kept.append(position)
        if len(kept) > calls:
            raise OSError(problem, os.strerror(problem))
        return os.pwrite(fd, data[:100] if len(kept) == calls else data, position)

    monkeypatch.setattr("broker.storage.made.os", SimpleNamespace(**{**vars(os), "pwrite": pwrite}))


def test_without_room_for_any_message_all_columns_are_sent(
    client: Client, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages are written together; with conditions that is the error, as what was left out is never sent."""
    no_room_after(1, errno.ENOSPC, monkeypatch)
    answer = api.read("orders", columns="offset,timestamp")
    assert answer.headers[http.NEXT_OFFSET] == str(BATCHES * ROWS)
    assert pa.ipc.open_stream(answer.body).read_all().schema == SCHEMA
    assert api.read("orders", columns="offset", subject="orders.>").status == 507


@pytest.mark.parametrize(
    "conditions, chosen",
    [
        ({"subject": "orders.2"}, lambda row: row % 4 == 2),
        ({"subject": "orders.0", "key": "24"}, lambda row: row == 24),
        ({"subject": "orders.>"}, lambda row: True),
        ({"subject": "orders.5"}, lambda row: False),
    ],
)
def test_with_conditions_an_answer_has_the_columns_alone(
    client: Client, api: Api, conditions: dict[str, str], chosen: Callable[[int], bool]
) -> None:
    expected = [offset for offset in range(BATCHES * ROWS) if chosen(offset % ROWS)]
    for _ in range(2):  # at first nothing is known of the batches
        found = asked(api, columns="offset", **conditions)
        assert found.schema == schema_of(("offset",)), "the columns of the conditions are not among them"
        assert found.column("offset").to_pylist() == expected


def test_what_is_made_anew_is_never_sent_whole(client: Client, api: Api) -> None:
    """Its other columns are blank, also where all of them would come without conditions."""
    assert asked(api, columns="value").schema == SCHEMA
    for _ in range(2):
        found = asked(api, columns="value", subject="orders.1")
        assert found.schema == schema_of(("offset", "value"))
        assert found == asked(api, subject="orders.1").select(["offset", "value"])
    client.append("orders", 0, rows(0).slice(0, 2))
    assert asked(api, offset=120, columns="key", subject="orders.1").to_pylist() == [{"offset": 121, "key": None}]


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("column, is_needed", [("timestamp", True), ("subject", True), ("value", False)])
def test_conditions_find_damage_in_the_columns_that_they_look_at(
    server: Server, client: Client, column: str, is_needed: bool, is_known: bool
) -> None:
    if is_known:
        client.read("orders", columns=["timestamp"], subject="orders.2").to_table()
    damage(server, column)
    is_found = is_needed or not is_known
    with client.read("orders", columns=["timestamp"], subject="orders.2") as reader:
        found = sum(batch.num_rows for batch in reader)
        assert found == (20 if is_found else 30)
        assert reader.lost == ({0: [(40, 80)]} if is_found else {})


def test_damage_behind_what_was_left_out_is_met_where_it_is(
    server: Server, client: Client, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of which all is wanted is forgotten before its columns are taken: then all of it is read and checked."""
    client.append("orders", 0, rows(3, subject="orders.all"))
    client.read("orders", columns=["timestamp"]).to_table()
    damage(server, "value", start=120, end=160)
    monkeypatch.setattr("broker.storage.project.CRCS_OF_COLUMNS", ColumnCrcs(1))
    answer = api.read("orders", columns="timestamp", subject="orders.all")
    assert (answer.status, answer.headers[http.NEXT_OFFSET]) == (200, "120"), "it may be too far to be looked for"
    with client.read("orders", columns=["timestamp"], subject="orders.all") as reader:
        assert [*reader] == []
        assert reader.lost == {0: [(120, 160)]}


def damage(server: Server, column: str, *, start: int = 40, end: int = 80) -> None:
    """Flip a bit in a column of a batch."""
    plan = server.backend.partition("orders", 0).log.reader.read(start, end=end)
    (place,) = plan.ranges
    plan.close()
    with open(place.path, "r+b") as file:
        file.seek(place.position)
        message = file.read(place.length)
        spans = spans_of(message)
        assert spans is not None
        at = head_bytes(message) + spans[SCHEMA.get_field_index(column)][1] - 16  # the last entries, not the padding
        file.seek(place.position + at)
        file.write(bytes([message[at] ^ 1]))


def test_a_broker_of_an_earlier_release_is_asked_for_all_columns() -> None:
    log, seen = Log.of(12, per_batch=4), list[bool]()

    def answer(request: Request, reply: Reply) -> None:
        seen.append("columns" in request.query)
        if seen[-1]:
            refusal = InvalidRequest("unknown query parameter 'columns'", parameter="columns", nearest=None)
            body, headers = json.dumps(refusal.to_problem()).encode(), {"Content-Type": http.PROBLEM_JSON}
            reply.answer(refusal.status, body, headers)
        else:
            reply.answer(200, *log.answer(int(request.query["offset"])))

    with RawServer(answer) as server:
        session = FetchSession(server.address)
        for _ in range(2):
            fetch = PartitionFetch(session, "orders", 0, 0, columns=["timestamp"], deadline_s=0)
            assert sum(batch.num_rows for batch in fetch.until(12, decoded)) == 12
    assert seen == [True, False, False]
