"""A client's columns as rows of the record schema.

Goal: lossless conversions are taken, everything else is refused with column, row, value and limit; the
bytes of each record are right, and batches are cut where the stream's settings say.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from broker.api.errors import InvalidRecords, RecordTooLarge, RequestTooLarge
from broker.api.plain_rows import PlainRows
from broker.serving.payload.decode import decode_stream, shortest_view, view_lengths
from broker.serving.payload.rows import ROW_OVERHEAD_BYTES, ROW_SCHEMA, expanded_bytes, row_bytes, split, to_rows
from broker.storage.rows import RowBatch
from tests.support.rows import random_rows
from tests.unit.serving.arrow import nothing_reserved, stream_of, values

LIMIT = 1 << 20
NOW_US = 1_700_000_000_000_000


def converted(batches: pa.RecordBatch | Sequence[pa.RecordBatch], **limits: int) -> pa.RecordBatch:
    """As over HTTP: encoded, decoded, converted."""
    decoded = decode_stream(stream_of(batches), decoded_bytes_max=LIMIT, reserve=nothing_reserved)
    rows, lengths = to_rows(
        decoded,
        subject="orders",
        now_us=NOW_US,
        **{"record_bytes_max": LIMIT, "decoded_bytes_max": LIMIT, "reserve": nothing_reserved, **limits},
    )
    rows.validate(full=True)
    assert rows.schema.equals(ROW_SCHEMA)
    assert lengths.tolist() == row_bytes(rows).tolist()
    return rows


def column(name: str, array: pa.Array) -> list[Any]:
    """The values of one column after decoding, beside a plain `value`."""
    columns = {name: array}
    if name not in ("key", "value"):
        columns["value"] = pa.array([b"v"] * len(array))
    found: list[Any] = converted(pa.record_batch(columns)).column(name).to_pylist()
    return found


def test_missing_columns_get_defaults() -> None:
    (row,) = converted(pa.record_batch({"value": [b"x"]})).to_pylist()
    assert row == {
        "timestamp": datetime.fromtimestamp(NOW_US / 1e6, UTC),
        "subject": "orders",
        "key": None,
        "value": b"x",
        "headers": None,
        "reply": None,
    }


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(2),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
    ],
    ids=str,
)
def test_bytes_of_any_kind_stay_the_same_bytes(kind: pa.DataType) -> None:
    texts = ["ab", None, "é"]  # two bytes each
    array = pa.array([t.encode() if t and "binary" in str(kind) else t for t in texts], kind)
    assert column("key", pa.array(["x"] * 3)) == [b"x"] * 3
    with_key = pa.record_batch({"key": ["k"] * 3, "value": array})
    assert converted(with_key).column("value").to_pylist() == [b"ab", None, "é".encode()]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_subjects_of_any_string_type_are_taken_and_nulls_get_the_default(kind: pa.DataType) -> None:
    assert column("subject", pa.array(["a.b", None], kind)) == ["a.b", "orders"]


@pytest.mark.parametrize("name", ["key", "headers", "subject", "timestamp", "reply"])
def test_a_column_of_type_null_is_a_missing_column(name: str) -> None:
    batch = pa.record_batch({name: pa.nulls(2), "value": [b"x", b"y"]})
    assert converted(batch).equals(converted(pa.record_batch({"value": [b"x", b"y"]})))


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.binary()),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
        pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
        pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])),
    ],
    ids=["map", "strings", "large", "views"],
)
def test_headers_keep_order_doubles_and_nulls(kind: pa.DataType) -> None:
    pairs: list[list[tuple[str, Any]] | None] = [[("b", "1"), ("a", None), ("b", "2")], None, []]
    if pa.types.is_map(kind):
        given: list[Any] = [None if row is None else [(k, v and v.encode()) for k, v in row] for row in pairs]
    else:
        text = pa.types.is_string(kind.value_type.field(1).type)
        given = [
            None if row is None else [{"key": k, "value": v if text or v is None else v.encode()} for k, v in row]
            for row in pairs
        ]
    assert column("headers", pa.array(given, kind)) == [
        None if row is None else [{"key": k, "value": v and v.encode()} for k, v in row] for row in pairs
    ]


@pytest.mark.parametrize(
    "kind, number", [("s", 5), ("ms", 5_000), ("us", 5_000_000), ("ns", 5_000_000_000)], ids=["s", "ms", "us", "ns"]
)
def test_times_of_any_unit_and_zone_stay_the_same_instant(kind: str, number: int) -> None:
    array = pa.array([number, None], pa.timestamp(kind, tz="America/New_York"))
    assert column("timestamp", array) == [
        datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
        datetime.fromtimestamp(NOW_US / 1e6, UTC),
    ]


@pytest.mark.parametrize(
    "name, array, what",
    [
        ("timestamp", pa.array([1], pa.timestamp("us")), "a timestamp with a time zone"),
        ("timestamp", pa.array([1]), "a timestamp with a time zone"),
        ("timestamp", pa.array([1], pa.timestamp("ns", "UTC")), "would lose data"),
        ("timestamp", pa.array([1 << 62], pa.timestamp("s", "UTC")), "out of bounds"),
        ("timestamp", pa.array([1 << 62], pa.timestamp("us", "UTC")), "years 1 to 9999"),
        ("timestamp", pa.array([-(1 << 62)], pa.timestamp("us", "UTC")), "years 1 to 9999"),
        ("subject", pa.array([b"a"]), "must be a string"),
        ("subject", pa.array([""]), "must be 1 to 512 bytes"),
        ("subject", pa.array(["a" * 513]), "must be 1 to 512 bytes"),
        ("subject", pa.array(["a..b"]), "empty token"),
        ("subject", pa.array(["a.*"]), "wildcard"),
        ("subject", pa.array([">"]), "wildcard"),
        ("subject", pa.array(["a b"]), "white space"),
        ("subject", pa.array(["a\u2003b"]), "white space"),
        ("subject", pa.array(["a\x00b"]), "control"),
        ("reply", pa.array([1]), "must be a string"),
        ("key", pa.array([1.5]), "must be binary or a string"),
        ("headers", pa.array([["a"]]), "must be a list of struct"),
        ("headers", pa.array([[{"key": "a", "value": b"1", "more": 1}]]), "must be a list of struct"),
        (
            "headers",
            pa.array([[{"value": b"1", "key": "a"}]]).cast(
                pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())]))
            ),
            "must be a list of struct",
        ),
        (
            "headers",
            pa.array(
                [[{"key": None, "value": b"1"}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            ),
            "a header without a name",
        ),
        (
            "headers",
            pa.array([[None]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            "a header without a name",
        ),
    ],
)
def test_what_would_lose_or_bend_something_is_refused(name: str, array: pa.Array, what: str) -> None:
    with pytest.raises(InvalidRecords, match=what) as caught:
        column(name, array)
    assert caught.value.column == name


@pytest.mark.parametrize("subject", ["a", "a.b", "*a", "a*.b>", "é.ü", "$x", "a" * 512])
def test_odd_but_concrete_subjects_are_taken(subject: str) -> None:
    assert column("subject", pa.array([subject])) == [subject]


@pytest.mark.parametrize(
    "names, what",
    [
        (["offset", "value"], "the broker assigns offsets"),
        (["vlaue"], "'vlaue' is unknown; there are key, value"),
        (["subject"], "'value' or 'key' is required"),
        (["value", "value"], "given twice"),
        ([], "'value' or 'key' is required"),
    ],
)
def test_columns_that_records_do_not_have_are_refused(names: list[str], what: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"])] * len(names), names=names)
    with pytest.raises(InvalidRecords, match=what):
        converted(batch)


def test_a_tombstone_needs_a_key() -> None:
    assert converted(pa.record_batch({"key": [b"k"]})).column("value").to_pylist() == [None]
    rows = pa.record_batch({"key": [b"k", None, None], "value": [None, b"v", None]}, ROW_SCHEMA_OF_TWO)
    with pytest.raises(InvalidRecords, match="row 2: the value is null") as caught:
        converted(rows)
    assert caught.value.row == 2


ROW_SCHEMA_OF_TWO = pa.schema([("key", pa.binary()), ("value", pa.binary())])


@pytest.mark.parametrize("seed", range(20))
def test_the_bytes_of_a_record_are_those_of_its_parts(seed: int) -> None:
    """Against the definition, in plain Python, on slices too. Columns without nulls, and of nulls alone, have ways of
    their own."""
    rows = random_rows(random.Random(seed), 50).drop_columns(["offset"])
    for name, value in {"key": [b"k" * (i % 7) for i in range(50)], "value": [None] * 50}.items():
        if seed % 2:
            rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(value, pa.binary()))
    rows = rows.slice(seed, 30)

    def size(value: Any) -> int:
        if value is None:
            return 0
        if isinstance(value, list):
            return sum(size(h["key"]) + size(h["value"]) for h in value)
        return len(value.encode() if isinstance(value, str) else value)

    expected = [sum(size(v) for k, v in row.items() if k != "timestamp") for row in rows.to_pylist()]
    assert row_bytes(rows).tolist() == expected


def test_a_record_over_the_limit_is_named_with_its_size() -> None:
    batches = [values(3, size=10), pa.record_batch({"value": [b"x" * 100]})]
    with pytest.raises(RecordTooLarge, match="row 3 has 106 bytes") as caught:
        converted(batches, record_bytes_max=105)
    assert (caught.value.row, caught.value.size, caught.value.limit) == (3, 106, 105)
    converted(batches, record_bytes_max=106)


def test_views_that_share_their_bytes_count_each_time() -> None:
    """4096 views of the same 64 KiB: a body of 130 KB that would be copied to 256 MiB."""
    array = pa.array([b"x" * 65536], pa.binary_view())
    views, data = array.buffers()[1], array.buffers()[2]
    many = pa.Array.from_buffers(pa.binary_view(), 4096, [None, pa.py_buffer(views.to_pybytes()[:16] * 4096), data])
    body = stream_of(pa.record_batch({"value": many}))
    assert len(body) < 200_000
    decoded = decode_stream(body, decoded_bytes_max=LIMIT, reserve=nothing_reserved)
    with pytest.raises(RequestTooLarge, match=f"{4096 * (65536 + ROW_OVERHEAD_BYTES + 1)} bytes together"):
        to_rows(
            decoded, subject="s", now_us=0, record_bytes_max=LIMIT, decoded_bytes_max=LIMIT, reserve=nothing_reserved
        )


@pytest.mark.parametrize("length", [-1, -(1 << 24), -(1 << 31)])
@pytest.mark.parametrize("where", ["value", "key", "subject", "headers", "map"])
def test_a_null_with_a_length_below_zero_is_refused(where: str, length: int) -> None:
    """Arrow takes it for valid, and writes beyond what it allocates when it casts: it ended the broker, at best."""
    kind = pa.string_view() if where == "subject" else pa.binary_view()
    valid, views, data = pa.array([b"x" * 30, None] if where != "subject" else ["x" * 30, None], kind).buffers()
    wrong = views.to_pybytes()[:16] + length.to_bytes(4, "little", signed=True) + bytes(12)
    made = pa.Array.from_buffers(kind, 2, [valid, pa.py_buffer(wrong), data])
    if where == "headers":
        entries = pa.StructArray.from_arrays([pa.array(["a", "b"]), made], ["key", "value"])
        made = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), entries)
    elif where == "map":
        made = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"]), made)
    made.validate(full=True)
    name = "headers" if where == "map" else where
    batch = pa.record_batch({name: made, **({} if where == "value" else {"value": pa.array([b"v", b"w"])})})
    with pytest.raises(InvalidRecords, match=f"column '{name}' has a view of {length} bytes"):
        decode_stream(stream_of(batch), decoded_bytes_max=LIMIT, reserve=nothing_reserved)


@pytest.mark.parametrize("where", ["value", "large", "fixed", "key", "reply", "headers", "header"])
def test_nothing_is_stored_behind_nulls(where: str) -> None:
    """Arrow takes and stores bytes of nulls: 60 records of no size were a batch of 60 KB, whatever the limits say."""
    count, valid = 60, pa.py_buffer(bytes(8))
    data, ends = pa.py_buffer(b"h" * 1000 * count), pa.py_buffer(np.arange(count + 1, dtype=np.int32) * 1000)
    kind = pa.string() if where == "reply" else pa.binary()
    made = pa.Array.from_buffers(kind, count, [valid, ends, data], count)
    there = pa.array([b"k"] * count)
    if where == "large":
        made = made.cast(pa.large_binary())
    elif where == "fixed":
        made = pa.Array.from_buffers(pa.binary(1000), count, [valid, data], count)
    elif where in ("headers", "header"):
        items = pa.array([b"h" * 1000] * count) if where == "headers" else made
        entries = pa.StructArray.from_arrays([pa.array(["a"] * count), items], ["key", "value"])
        mask = pa.array([where == "headers" and i > 0 for i in range(count)])
        offsets = [0, 0, *range(1, count)] if where == "headers" else range(count + 1)
        made = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), entries, mask=mask)
    name = {"large": "value", "fixed": "value", "header": "headers"}.get(where, where)
    columns = {"key": there, "value": there, name: made}
    rows = converted(pa.record_batch(columns), record_bytes_max=100)
    assert rows.column(name).to_pylist() == pa.array(made.to_pylist(), rows.column(name).type).to_pylist()
    assert len(RowBatch(rows).compose(first_offset=0, leader_epoch=0, high_watermark=0)) < 6_000


def test_offsets_and_times_may_have_any_bytes_behind_them() -> None:
    """Buffers of odd lengths were a fault of the broker in bundles."""
    value = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(4) + b"\1\0\0\0abc"), pa.py_buffer(b"v")])
    times = pa.Array.from_buffers(pa.timestamp("us", "UTC"), 1, [None, pa.py_buffer(bytes(8) + b"abc")])
    columns = {"timestamp": times, "subject": pa.array(["s"]), "key": value, "value": value}
    rows = pa.record_batch({**columns, **{name: pa.nulls(1) for name in ("headers", "reply")}})
    assert PlainRows(rows).batch(0, 1).record_count == 1


def test_views_may_have_any_bytes_behind_them() -> None:
    """A buffer of 35 bytes for two views was a fault of the broker."""
    _, views, data = pa.array([b"x" * 30, b"y"], pa.binary_view()).buffers()
    made = pa.Array.from_buffers(pa.binary_view(), 2, [None, pa.py_buffer(views.to_pybytes() + b"abc"), data])
    assert (view_lengths(made).tolist(), expanded_bytes(made), shortest_view(made)) == ([30, 1], 31, 0)


def test_a_long_default_subject_counts_in_every_row() -> None:
    decoded = decode_stream(stream_of(values(10_000)), decoded_bytes_max=LIMIT, reserve=nothing_reserved)
    with pytest.raises(RequestTooLarge, match="bytes together"):
        to_rows(
            decoded,
            subject="s" * 500,
            now_us=0,
            record_bytes_max=LIMIT,
            decoded_bytes_max=LIMIT,
            reserve=nothing_reserved,
        )


@pytest.mark.parametrize("seed", range(10))
def test_batches_are_full_but_the_last_and_hold_all_rows_in_order(seed: int) -> None:
    rng = random.Random(seed)
    rows = random_rows(rng, rng.randint(1, 300)).drop_columns(["offset"])
    lengths = row_bytes(rows)
    batch_bytes, batch_records = rng.choice([1, 200, 3000]), rng.choice([1, 7, 1000])
    parts = split(rows, lengths, batch_bytes=batch_bytes, batch_records=batch_records)
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([rows]))
    at = 0
    for i, part in enumerate(parts):
        sizes = lengths[at : at + part.num_rows] + ROW_OVERHEAD_BYTES
        at += part.num_rows
        assert part.num_rows <= batch_records
        assert np.sum(sizes[:-1]) < batch_bytes, "the last record is the one that fills it"
        assert i == len(parts) - 1 or part.num_rows == batch_records or np.sum(sizes) >= batch_bytes


def test_rows_without_headers_cost_nothing_for_those_of_others() -> None:
    """However the rows of one body are mixed, a batch is stored in about the bytes of its own rows."""
    kind = pa.map_(pa.string(), pa.binary())
    with_headers = pa.record_batch({"value": [b"x"] * 500, "headers": pa.array([[("a", b"1")]] * 500, kind)})
    without = pa.record_batch({"value": [b"x"] * 500, "headers": pa.array([None, []] * 250, kind)})
    rows = converted([with_headers, without])
    assert rows.column("headers").to_pylist()[500:] == [None, []] * 250
    first, second = split(rows, row_bytes(rows), batch_bytes=LIMIT, batch_records=500)
    assert pa.Table.from_batches([first, second]).equals(pa.Table.from_batches([rows]))
    alone = converted(pa.record_batch({"value": [b"x"] * 500}))
    place = {"first_offset": 0, "leader_epoch": 0, "high_watermark": 0}
    assert len(RowBatch(second).compose(**place)) <= len(RowBatch(alone).compose(**place)) + 8
