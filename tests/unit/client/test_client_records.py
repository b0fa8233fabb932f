"""Goal: records of users are taken where they are obvious, and else refused by their type; calls after `close()` say
so.

Method: a real server; what is read back is compared with what was given.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from broker.api.errors import InvalidRecords, InvalidRequest, InvalidSubject
from broker.client.client import Client, connect
from broker.client.positions import Position
from broker.client.writing.records import record_batches
from tests.unit.serving.server import Server

NewStream = Callable[..., str]
ROWS = [{"value": b"a", "key": b"k"}, {"value": b"b", "key": None}]
TABLE = pa.Table.from_pylist(ROWS, pa.schema([("value", pa.binary()), ("key", pa.binary())]))


def batches_of(rows: list[Any]) -> Iterator[pa.RecordBatch]:
    yield from pa.Table.from_pylist(rows).to_batches()


FORMS: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "batch": lambda: TABLE.to_batches()[0],
    "reader": TABLE.to_reader,
    "batches": TABLE.to_batches,
    "tables": lambda: [TABLE.slice(0, 1), TABLE.slice(1)],
    "generator of batches": lambda: batches_of(ROWS),
    "dicts": lambda: ROWS,
    "generator of dicts": lambda: iter(ROWS),
    "dicts of text": lambda: [{"value": "a", "key": "k"}, {"value": "b"}],
    "pandas": lambda: pd.DataFrame(ROWS),
    "pandas with an index": lambda: pd.DataFrame(ROWS, index=["x", "y"]),
    "pandas of text": lambda: pd.DataFrame({"value": ["a", "b"], "key": ["k", None]}),
    "polars": lambda: pl.DataFrame(ROWS),
    "polars of text": lambda: pl.DataFrame({"value": ["a", "b"], "key": ["k", None]}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_sink_takes_the_same(client: Client, new_stream: NewStream, form: str) -> None:
    stream = new_stream()
    sink = client.sink(f"sink-of-{stream}")
    sink.open()
    sink.commit(1, [sink.stage(FORMS[form](), stream, 0)])
    assert client.read(stream, columns=["value", "key"]).to_table().to_pylist() == ROWS
    with pytest.raises(InvalidRecords):
        sink.stage(b"x", stream, 0)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_obvious_is_taken(client: Client, new_stream: NewStream, form: str) -> None:
    stream = new_stream()
    assert client.append(stream, 0, FORMS[form]()).record_count == 2
    with client.producer(stream) as producer:
        assert sum(part.record_count for part in producer.send_batch(FORMS[form]()).result(60)) == 2
    found = client.read(stream, columns=["value", "key"]).to_table().to_pylist()
    assert found == ROWS * 2


def test_a_dict_may_have_all_that_a_record_has(client: Client, new_stream: NewStream) -> None:
    stream = new_stream()
    time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    given = [
        {"value": b"a", "headers": {"a": "1", "b": b"2"}, "subject": "x.y", "timestamp": time, "reply": "_INBOX.1"},
        {"key": "k", "value": None, "headers": [("a", "1"), ("a", "2")], "timestamp": np.int64(7)},
    ]
    client.append(stream, 0, given)
    first, second = client.read(stream).to_table().to_pylist()
    assert (first["subject"], first["timestamp"], first["reply"]) == ("x.y", time, "_INBOX.1")
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]
    assert (second["key"], second["value"], second["subject"]) == (b"k", None, stream)
    assert second["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]


def test_many_dicts_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.writing.records.DICTS_PER_BATCH", 3)
    batches = list(record_batches({"value": b"%d" % i} for i in range(7)))
    assert [batch.num_rows for batch in batches] == [3, 3, 1]
    assert len({batch.schema for batch in batches}) == 1


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (b"x", "bytes"),
        ("x", "str"),
        (None, "NoneType"),
        (7, "int"),
        ({"value": b"x"}, "dict"),
        ({"value": [b"x"]}, "dict"),
        ([b"x"], "bytes"),
        ([{"value": b"x"}, b"y"], "bytes"),
        ([TABLE, {"value": b"x"}], "dict"),
        ([[{"value": b"x"}]], "list"),
        (pd.Series([b"x"]), "pandas"),
        (pl.Series([b"x"]), "polars"),
        (np.array([b"x"]), "bytes"),
        (pd.DataFrame({"value": [b"x", 7]}), "DataFrame"),
        (pa.array([b"x"]), "pyarrow"),
        (object(), "object"),
        ([], "no records"),
        ([{"valu": b"x"}], "'valu'"),
        ([{"partition": 0, "value": b"x"}], "'partition'"),
        ([{"value": 7}], "int"),
        ([{"headers": {"a": "1"}}], "needs a key"),
        ([{"value": b"x", "headers": "a"}], "headers"),
        ([{"value": b"x", "headers": 7}], "headers"),
        ([{"value": b"x", "headers": [("a",)]}], "headers"),
        ([{"value": b"x", "timestamp": "now"}], "timestamp"),
        ([{"value": b"x", "reply": 7}], "reply"),
        ([{"value": b"x", "subject": 7}], "subject"),
        ([TABLE, pa.table({"value": [1]})], "encoded"),
    ],
)
def test_the_rest_is_refused_by_its_type(client: Client, new_stream: NewStream, given: Any, named: str) -> None:
    stream = new_stream()
    with pytest.raises(InvalidRecords) as caught:
        client.append(stream, 0, given)
    assert named in str(caught.value)
    assert not caught.value.fields.get("sent")
    pickle.loads(pickle.dumps(caught.value))
    assert client.describe(stream).record_count == 0


def test_a_subject_in_a_dict_is_checked(client: Client, new_stream: NewStream) -> None:
    with pytest.raises(InvalidSubject):
        client.append(new_stream(), 0, [{"value": b"x", "subject": "a.*"}])


def test_no_rows_are_as_good_as_before(client: Client, new_stream: NewStream) -> None:
    stream = new_stream()
    assert client.append(stream, 0, TABLE.slice(0, 0)).record_count == 0
    assert client.append(stream, 0, pl.DataFrame(schema={"value": pl.Binary})).record_count == 0


def test_what_a_producer_cannot_take_it_refuses_before_anything_is_sent(client: Client, new_stream: NewStream) -> None:
    stream = new_stream()
    with client.producer(stream) as producer:
        for given in (b"x", [{"value": b"x"}, 7], None):
            with pytest.raises(InvalidRecords):
                producer.send_batch(given)
        for headers in ("a", 7, [("a",)], [(7, "a")]):
            with pytest.raises(InvalidRecords):
                producer.send(b"x", headers=headers)  # type: ignore[arg-type]
    assert client.describe(stream).record_count == 0


@pytest.mark.parametrize(
    "offsets",
    [
        7,
        None,
        "orders",
        b"orders",
        {"orders": [0, 42]},
        {"orders": 42},
        {"orders": None},
        {"orders": {"zero": 42}},
        {"orders": {0: "42"}},
        {"orders": {0: 1.5}},
        {"orders": {None: 1}},
        [("orders", 0, 42)],
        ["orders"],
        [7],
    ],
)
def test_a_misshaped_commit_is_refused_by_its_shape(client: Client, offsets: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be") as caught:
        client.commit("c", offsets)
    assert type(caught.value) is InvalidRequest


def test_a_commit_of_either_form_is_taken(client: Client, new_stream: NewStream) -> None:
    stream = new_stream(partitions=2)
    client.append(stream, 1, ROWS)
    assert client.commit("forms", {stream: {np.int64(1): np.int64(1)}}) == 1
    assert client.commit("forms", iter([{"stream": stream, "partition": 1, "offset": 2}])) == 1
    assert client.consumer("forms").offsets(stream) == {1: 2}


@pytest.mark.parametrize("partitions", [3, "0", [None], 1.5])
def test_partitions_that_are_none_are_refused(client: Client, new_stream: NewStream, partitions: Any) -> None:
    stream = new_stream()
    client.append(stream, 0, ROWS)
    client.commit("partitions", {stream: {0: 1}})
    for call in (
        lambda: client.trim(stream, before=1, partitions=partitions),
        lambda: client.reset("partitions", stream, "earliest", partitions=partitions),
        lambda: client.read(stream, partitions=partitions),
    ):
        with pytest.raises(InvalidRequest, match="partitions="):
            call()


@pytest.mark.parametrize("addresses", [7, [None], [b"host"]])
def test_addresses_that_are_no_text_are_refused(addresses: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be text"):
        connect(addresses)


def test_calls_after_close_say_so(server: Server, client: Client, new_stream: NewStream) -> None:
    stream = new_stream()
    client.append(stream, 0, ROWS)
    closed = connect(f"127.0.0.1:{server.port}")
    producer, reader, sink = closed.producer(stream), closed.read(stream), closed.sink("after-close")
    closed.close()
    closed.close()
    for call in (
        lambda: closed.append(stream, 0, ROWS),
        lambda: closed.streams(),
        lambda: closed.describe(stream),
        lambda: closed.create_stream("never"),
        lambda: closed.delete_stream(stream),
        lambda: closed.read(stream),
        lambda: closed.producer(stream),
        lambda: closed.commit("c", {stream: {0: 1}}),
        lambda: closed.consumers(),
        lambda: closed.resolve([Position(stream, 0, "latest")]),
        lambda: closed.watch(),
        lambda: closed.sink("x"),
        lambda: closed.sinks(),
        lambda: closed.cluster(),
        lambda: closed.ready(),
        lambda: closed.register_producer(),
    ):
        with pytest.raises(InvalidRequest, match="the client is closed"):
            call()
    assert producer.send(b"c").result(60) == (0, 2), "what a producer holds is not lost with the client"
    producer.close()
    producer.close()
    for call in (lambda: producer.send(b"x"), lambda: producer.send_batch(ROWS), lambda: producer.flush()):
        with pytest.raises(InvalidRequest, match="the producer is closed"):
            call()
    assert next(reader).num_rows == 2
    reader.close()
    reader.close()
    for call in (reader.to_table, reader.to_pandas, reader.to_polars, lambda: list(reader)):
        with pytest.raises(InvalidRequest, match="is closed"):
            call()
    with pytest.raises(StopIteration):
        next(reader)
    assert sink.open().sink == "after-close"


@pytest.mark.parametrize(
    "call",
    [
        lambda client, stream: client.describe(None),
        lambda client, stream: client.sink(None).open(),
        lambda client, stream: client.consumer(b"c"),
        lambda client, stream: client.resolve([(stream, 0, "latest")]),
        lambda client, stream: client.append(stream, 0, ROWS, stamp=(1, 0, 0)),
        lambda client, stream: client.producer(stream, partition="0"),
        lambda client, stream: client.producer(stream, linger_ms="5"),
        lambda client, stream: client.producer(stream).send(b"x", subject=5),
        lambda client, stream: client.producer(stream).send(b"x", subject=b"a.b"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused_before_anything_is_asked(
    client: Client, new_stream: NewStream, call: Callable[[Client, str], Any]
) -> None:
    """Above all a name that is none: as text it would be another one, and `sink(None)` made the sink `None`."""
    stream = new_stream()
    with pytest.raises(InvalidRequest, match="must be"):
        call(client, stream)
    assert client.describe(stream).record_count == 0
    assert "None" not in [sink.sink for sink in client.sinks()]
