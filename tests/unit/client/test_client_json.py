"""JSON payloads. Goal: V1 to V4 of json_columns.py, J1 to J4 of _json.pyx, Y1 to Y3 of decoding.py.

Method: random schemas and values against the rules written once more on Python's json (tests/support/plain_json.py);
a case for each rule; a real server for the reader.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from broker.api.errors import InvalidRecords, InvalidRequest
from broker.api.payload_schema import canonical
from broker.client.client import Client
from broker.client.payload.decoding import JsonPayload
from broker.client.payload.json_columns import BATCH_BYTES_MAX, REASONS, ROW_BYTES_MAX, json_decoder
from broker.client.payload.kept import schema_of, text_for
from tests.support import plain_json
from tests.support.plain_json import comparable, rows_of
from tests.support.random_json import LEAVES, random_schema, random_values

pytest.importorskip("broker.client.payload._json", reason="no compiler here")
LARGE = "its lists and maps take more than 128 MiB in columns"
SCHEMA = pa.schema([("item", pa.int64()), ("price", pa.float64()), ("tags", pa.list_(pa.string()))])


@pytest.mark.parametrize("seed", range(40))
def test_random_values_are_decoded_as_the_rules_say(seed: int) -> None:
    rng = random.Random(seed)
    schema = random_schema(rng)
    decoder = json_decoder(schema)
    for _ in range(3):  # one decoder for many batches
        values = random_values(rng, schema, 60)
        skipped = rng.randrange(5)
        arrays, reasons = decoder.decode(pa.array([b"x"] * skipped + values, pa.binary()).slice(skipped))
        expected = [plain_json.row(value, schema) for value in values]
        for i, (found, value) in enumerate(zip(rows_of(arrays, schema), values, strict=True)):
            wanted = expected[i]
            assert (wanted is None) == bool(reasons[i]), (value, schema, REASONS[reasons[i]])
            wanted = wanted or dict.fromkeys(schema.names)
            assert found == {f.name: comparable(wanted[f.name], f.type) for f in schema}, (value, schema)


def test_exponents_that_no_library_has_are_numbers_too() -> None:
    schema = pa.schema([("f", pa.float32()), ("d", pa.float64()), ("m", pa.decimal128(10, 2))])
    for exponent in ("1" * 20, "-" + "1" * 20, "+" + "9" * 900):
        for value in (b'{"f":1e%s,"d":2e%s}', b'{"m":3e%s}', b'{"m":"0e%s"}'):
            text = value.replace(b"%s", exponent.encode())
            arrays, reasons = json_decoder(schema).decode(pa.array([text]))
            wanted = plain_json.row(text, schema)
            assert (wanted is None) == bool(reasons[0])
            expected = {f.name: comparable((wanted or {}).get(f.name), f.type) for f in schema}
            assert rows_of(arrays, schema) == [expected]


def decoded(value: bytes, type_: pa.DataType) -> Any:
    """The value of the column x, or the reason why there is none."""
    (array,), reasons = json_decoder(pa.schema([("x", type_)])).decode(pa.array([value], pa.binary()))
    return REASONS[reasons[0]] if reasons[0] else array.to_pylist()[0]


@pytest.mark.parametrize(
    "value, reason",
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"[]", "it is no object"),
        (b"null", "it is no object"),
        (b'"x"', "it is no object"),
        (b"[", "it is no JSON"),
        (b"hello", "it is no JSON"),
        (b"{'x': 1}", "it is no JSON"),
        (b"{x: 1}", "it is no JSON"),
        (b'{"x": 1,}', "it is no JSON"),
        (b'{"x": 01}', "it is no JSON"),
        (b'{"x": +1}', "it is no JSON"),
        (b'{"x": .5}', "it is no JSON"),
        (b'{"x": 5.}', "it is no JSON"),
        (b'{"x": 1 /* one */}', "it is no JSON"),
        (b'\xef\xbb\xbf{"x": 1}', "it is no JSON"),
        (b'{"y": "a\nb"}', "it is no JSON"),
        (b'{"y": "\\x"}', "it is no JSON"),
        (b'{"y": "\\u12"}', "it is no JSON"),
        (b'{"x": ' + b"9" * 1001 + b"}", "it is no JSON"),
        (b'{"y": "\xff"}', "it is no UTF-8"),
        (b'{"y": "\xc0\x80"}', "it is no UTF-8"),
        (b'{"y": "\xed\xa0\x80"}', "it is no UTF-8"),
        (b'{"\xff": 1}', "it is no UTF-8"),
        (b'{"y": "\\ud800"}', "it is no UTF-8"),
        (b'{"y": "\\ude00\\ud83d"}', "it is no UTF-8"),
        (b'{"y": ' + b"[" * 1000, "it has more than 1,000 levels"),
        (b'{"y": ' * 1001, "it has more than 1,000 levels"),
        (b'{"y": ' + b"[" * 999 + b"]" * 999 + b"}", None),
        (b'{"x": 1, "x": 1}', "a name occurs twice"),
        (b'{"x": null, "x": null}', "a name occurs twice"),
        (b'{"x": 1, "\\u0078": 1}', "a name occurs twice"),
        (b'{"y": 1, "y": 2}', None),
        (b'{"x": 1.0}', "a value does not fit its column"),
        (b'{"x": 1e2}', "a value does not fit its column"),
        (b'{"x": "1"}', "a value does not fit its column"),
        (b'{"x": true}', "a value does not fit its column"),
        (b'{"x": {}}', "a value does not fit its column"),
        (b'{"x": NaN}', "a value does not fit its column"),
        (b'{"x": 9223372036854775807}', None),
        (b'{"x": 9223372036854775808}', "a value does not fit its column"),
        (b'{"x": ' + b"9" * 1000 + b"}", "a value does not fit its column"),
        (b'{"x": 1} {}', "something follows the object"),
        (b'{"x": 1}\x00', "something follows the object"),
        (b' \t\r\n{ "x" : 1 }\n', None),
        (b"{}", None),
    ],
)
def test_each_kind_of_bad_value_is_alone_and_has_its_reason(value: bytes, reason: str | None) -> None:
    good = b'{"x": 7}'
    (array,), reasons = json_decoder(pa.schema([("x", pa.int64())])).decode(pa.array([good, value, good], pa.binary()))
    assert [REASONS[i] for i in reasons] == [REASONS[0], reason or REASONS[0], REASONS[0]]
    assert array.to_pylist()[::2] == [7, 7]
    assert reason is None or array[1].as_py() is None


@pytest.mark.parametrize(
    "value, type_, found",
    [
        (b"NaN", pa.float64(), "nan"),
        (b'"NaN"', pa.float32(), "nan"),
        (b"-Infinity", pa.float64(), "-inf"),
        (b"+INF", pa.float64(), "inf"),
        (b"INF", pa.float64(), "it is no JSON"),
        (b'"INF"', pa.float64(), "a value does not fit its column"),
        (b"1e400", pa.float64(), "inf"),
        (b"16777217.00000000001", pa.float32(), "16777218.0"),
        (b"1e-99999", pa.float32(), "0.0"),
        (b"123456789012345678901234567890", pa.float64(), "1.2345678901234568e+29"),
        (b"0.125", pa.decimal128(5, 2), "0.13"),
        (b"-0.125", pa.decimal128(5, 2), "-0.13"),
        (b'"999.994"', pa.decimal128(5, 2), "999.99"),
        (b"999.995", pa.decimal128(5, 2), "a value does not fit its column"),
        (b"1e-999999999999", pa.decimal128(5, 2), "0.00"),
        (b"1e999999999999", pa.decimal128(5, 2), "a value does not fit its column"),
        (b"9" * 38, pa.decimal128(38, 0), "9" * 38),
        (b"12", pa.string(), "12"),
        (b'{"a": [1, 1.10]}', pa.string(), '{"a": [1, 1.10]}'),
        (b"false", pa.string(), "false"),
        (b'"a\\u0000b"', pa.string(), "a\0b"),
        (b'"2024-02-29T23:59:59.9999999+01:00"', pa.timestamp("us", tz="UTC"), "2024-02-29 22:59:59.999999+00:00"),
        (b'"2024-02-29"', pa.timestamp("us"), "2024-02-29 00:00:00"),
        (b'"2024-02-29T12:00Z"', pa.timestamp("us"), "a value does not fit its column"),
        (b"-1", pa.timestamp("us", tz="UTC"), "1969-12-31 23:59:59+00:00"),
        (b"9223372036854775807", pa.timestamp("us", tz="UTC"), "a value does not fit its column"),
        (b'"2023-02-29"', pa.date32(), "a value does not fit its column"),
        (b'"2024-02-29T12:00"', pa.date32(), "2024-02-29"),
        (b'["a", null, 1]', pa.list_(pa.string()), "['a', None, '1']"),
        (b'["a", 1]', pa.list_(pa.int8()), "a value does not fit its column"),
        (b'{"k": 1, "k": null}', pa.map_(pa.string(), pa.int8()), "[('k', 1), ('k', None)]"),
        (b'{"a": 1, "b": 2}', pa.struct([("b", pa.int8())]), "{'b': 2}"),
        (b"128", pa.int8(), "a value does not fit its column"),
        (b"18446744073709551615", pa.uint64(), "18446744073709551615"),
    ],
)
def test_what_a_column_takes(value: bytes, type_: pa.DataType, found: str) -> None:
    assert str(decoded(b'{"x": ' + value + b"}", type_)) == found


def test_bad_rows_alone_cost_no_more_than_good_ones() -> None:
    """Steps are counted in bytes that are looked at, so the measure is the work and not the clock: half a row each."""
    decoder = json_decoder(SCHEMA)
    bad = pa.array([b'{"item": 1, "price": 2.5, "tags": ["a", "b", 1}'] * 50_000, pa.binary())
    arrays, reasons = decoder.decode(bad)
    assert set(reasons) == {REASONS.index("it is no JSON")}
    assert [array.null_count for array in arrays] == [50_000] * 3
    assert arrays[2].values.nbytes == 0  # nothing of them is kept


@pytest.mark.parametrize(
    "schema, says",
    [
        (pa.schema([]), "the schema has no column"),
        (pa.schema([("x", pa.binary())]), "column 'x' of the schema: its type binary cannot be filled from JSON"),
        (pa.schema([("x", pa.timestamp("ns"))]), "its type timestamp[ns] cannot be filled"),
        (pa.schema([("x", pa.list_(pa.struct([("y", pa.time64("us"))])))]), "column 'x[].y' of the schema"),
        (pa.schema([("x", pa.map_(pa.int8(), pa.int8()))]), "its type map<int8, int8"),
        (pa.schema([pa.field("x", pa.int8(), nullable=False)]), "it must be nullable"),
        (pa.schema([("x", pa.int8()), ("x", pa.int8())]), "its name occurs twice"),
        (pa.schema([("offset", pa.int8())]), "a record has a column of this name"),
        (pa.schema([("_corrupt", pa.binary())]), "a record has a column of this name"),
        ({"x": pa.int8()}, "must be a pyarrow.Schema"),
    ],
)
def test_a_schema_that_cannot_be_is_refused_by_column(schema: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        JsonPayload(schema)


def test_a_schema_has_so_many_levels_at_most() -> None:
    deep: pa.DataType = pa.int8()
    for _ in range(64):
        deep = pa.list_(deep)
    with pytest.raises(InvalidRequest, match="more than 64 levels"):
        JsonPayload(pa.schema([("x", deep)]))


VALUES = [b'{"item": 1, "price": 2.5, "tags": ["a"]}', None, b"no JSON", b'{"item": 2}', b'{"item": "3"}', b""]


@pytest.fixture
def orders(client: Client, new_stream: Callable[..., str]) -> str:
    name = new_stream(partitions=2)
    records = [{"key": f"k{i}".encode(), "value": value} for i, value in enumerate(VALUES)]
    client.append(name, 0, records[:3])
    client.append(name, 0, records[3:])
    return name


def test_objects_are_columns_beside_those_of_the_record(client: Client, orders: str) -> None:
    table = client.read(orders, payload="json", schema=SCHEMA).to_table()
    assert table.schema.names == [
        *("item", "price", "tags", "_corrupt", "offset", "timestamp", "subject", "key", "headers", "reply", "partition")
    ]
    assert table.column("item").to_pylist() == [1, None, None, 2, None, None]
    assert table.column("tags").to_pylist() == [["a"], None, None, None, None, None]
    assert table.column("_corrupt").to_pylist() == [None, None, b"no JSON", None, b'{"item": "3"}', b""]
    assert table.column("offset").to_pylist() == list(range(6))
    assert table.column("key").to_pylist() == [f"k{i}".encode() for i in range(6)]


def test_columns_are_chosen_among_both(client: Client, orders: str) -> None:
    columns = ["partition", "price", "offset"]
    table = client.read(orders, payload="json", schema=SCHEMA, columns=columns).to_table()
    assert table.schema.names == columns
    assert table.to_pylist()[0] == {"partition": 0, "price": 2.5, "offset": 0}
    for wrong, says in ((["value"], "no column 'value'"), ([], "at least one"), (["item", "item"], "each once")):
        with pytest.raises(InvalidRequest, match=says):
            client.read(orders, payload="json", schema=SCHEMA, columns=wrong)


def test_a_struct_in_the_place_of_the_value_has_names_of_its_own(
    client: Client, new_stream: Callable[..., str]
) -> None:
    name = new_stream()
    client.append(name, 0, [{"value": v, "key": b"k"} for v in (b'{"offset": 7, "key": "x"}', None, b"?")])
    schema = pa.schema([("value", pa.struct([("offset", pa.int64()), ("key", pa.string())]))])
    table = client.read(name, payload="json", schema=schema).to_table()
    assert table.column("value").to_pylist() == [{"offset": 7, "key": "x"}, None, None]
    assert table.column("offset").to_pylist() == [0, 1, 2]
    assert table.column("_corrupt").to_pylist() == [None, None, b"?"]


def test_corrupt_rows_are_left_out_if_that_is_asked_for(client: Client, orders: str) -> None:
    reader = client.read(orders, payload="json", schema=SCHEMA, payload_mode="DROPMALFORMED")
    batches = list(reader)
    assert all(batch.num_rows for batch in batches)
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [0, 1, 3]
    assert reader.positions == {0: 6, 1: 0}


def test_a_read_ends_at_a_corrupt_row_if_that_is_asked_for(client: Client, orders: str) -> None:
    reader = client.read(orders, start={0: 3, 1: 0}, payload="json", schema=SCHEMA, payload_mode="FAILFAST")
    with pytest.raises(
        InvalidRecords, match=r"partition 0 offset 4: .* does not fit its column \(byte 9, column 'item'"
    ):
        list(reader)
    assert reader.positions == {0: 3, 1: 0}


@pytest.mark.parametrize(
    "asked, says",
    [
        ({"payload": "json"}, "keeps no schema, so payload='json' needs one"),
        ({"payload": "avro", "schema": SCHEMA}, "payload='avro': must be 'json'"),
        ({"schema": SCHEMA}, "schema=.*: means something with payload='json' only"),
        ({"payload_mode": "FAILFAST"}, "payload_mode='FAILFAST': means something with"),
        ({"payload": "json", "schema": SCHEMA, "payload_mode": "permissive"}, "must be PERMISSIVE, DROPMALFORMED or"),
    ],
)
def test_a_payload_is_asked_for_whole(client: Client, orders: str, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=re.compile(says, re.DOTALL)):
        client.read(orders, **asked)


# Memory


WIDE = pa.struct([(f"m{i}", pa.int64()) for i in range(50)])
WIDE_BYTES = 1 + 50 * 9


def size_of(arrays: list[pa.Array]) -> int:
    return sum(array.get_total_buffer_size() for array in arrays)


def objects(count: int, *, as_map: bool = False) -> bytes:
    if as_map:
        return b'{"l":{%s}}' % b",".join([b'"":{}'] * count)
    return b'{"l":[%s]}' % b",".join([b"{}"] * count)


@pytest.mark.parametrize("as_map", [False, True])
def test_a_row_takes_so_much_memory_at_most_and_the_others_go_on(as_map: bool) -> None:
    """J5: an element that is {} has a place in all 50 columns: 3 bytes are 451."""
    decoder = json_decoder(pa.schema([("l", pa.map_(pa.string(), WIDE) if as_map else pa.list_(WIDE))]))
    most = ROW_BYTES_MAX // WIDE_BYTES
    (array,), reasons = decoder.decode(pa.array([objects(most + 1, as_map=as_map), objects(2, as_map=as_map)]))
    assert [REASONS[reason] for reason in reasons] == [LARGE, REASONS[0]]
    assert decoder.first[0] == 0
    assert [None if row is None else len(row) for row in array.to_pylist()] == [None, 2]
    (array,), reasons = decoder.decode(pa.array([objects(most, as_map=as_map)]))
    assert list(reasons) == [0]
    assert size_of([array]) < 2 * ROW_BYTES_MAX


def test_lists_within_lists_count_as_well() -> None:
    schema = pa.schema([("l", pa.list_(pa.list_(WIDE)))])
    inner = b"[" + b",".join([b"{}"] * 1000) + b"]"
    value = b'{"l":[' + b",".join([inner] * (ROW_BYTES_MAX // WIDE_BYTES // 1000 + 1)) + b"]}"
    assert len(value) < 1 << 20
    _, reasons = json_decoder(schema).decode(pa.array([value]))
    assert REASONS[reasons[0]] == LARGE


@pytest.mark.parametrize("shape", ["rows of many columns", "rows of long lists"])
def test_rows_that_take_much_memory_together_are_decoded_in_pieces(shape: str) -> None:
    """J5: each piece is within the limit; together they are all rows, bad ones in their places."""
    if shape == "rows of many columns":
        schema = pa.schema([("l", pa.int64()), *((f"c{i}", pa.int64()) for i in range(999))])
        values = [b"{}", b"?", b'{"l":7}'] * 7000
    else:
        schema = pa.schema([("l", pa.list_(WIDE))])
        values = [objects(40_000), b"?", objects(0)] * 6
    decoder, left, pieces, found = json_decoder(schema), pa.array(values), 0, list[str]()
    while len(left):
        arrays, reasons = decoder.decode(left)
        assert len(reasons) == len(arrays[0]) > 0
        bad = [i for i, reason in enumerate(reasons) if reason]
        assert (None if decoder.first is None else decoder.first[0]) == (bad[0] if bad else None)
        assert size_of(arrays) < 2 * BATCH_BYTES_MAX
        pieces += 1
        found += [REASONS[reason] for reason in reasons]
        left = left.slice(len(reasons))
    assert found == [REASONS[2] if value == b"?" else REASONS[0] for value in values]
    assert pieces > 1


def test_a_batch_that_is_handed_out_in_pieces_is_read_whole_and_its_positions_follow(
    client: Client, new_stream: Callable[..., str]
) -> None:
    name = new_stream()
    schema = pa.schema([("l", pa.list_(WIDE))])
    values = [objects(0), objects(100_000), b"?", objects(100_000), objects(1), objects(100_000), b"??"]
    client.append(name, 0, [{"value": value} for value in values])
    seen: list[int] = []
    batches = 0
    with client.read(name, payload="json", schema=schema, columns=["offset", "l"]) as reader:
        for batch in reader:
            batches += 1
            seen += batch.column("offset").to_pylist()
            assert reader.positions == {0: seen[-1] + 1}
    assert (seen, batches > 1) == (list(range(7)), True)
    with client.read(name, payload="json", schema=schema, payload_mode="DROPMALFORMED") as reader:
        assert [offset for batch in reader for offset in batch.column("offset").to_pylist()] == [0, 1, 3, 4, 5]
        assert reader.positions == {0: 7}
    reader = client.read(name, payload="json", schema=schema, start=3, payload_mode="FAILFAST")
    with pytest.raises(InvalidRecords, match="offset 6: the value cannot"):
        list(reader)
    assert 3 < reader.positions[0] <= 6, "what was handed out is not read again"


# A schema that is kept with the stream


def kept_twin(schema: pa.Schema) -> pa.Schema | None:
    """The schema if it can be kept: names that differ in case are one name in SQL."""

    def names_differ(fields: list[pa.Field]) -> bool:
        return len({field.name.lower() for field in fields}) == len(fields) and all(map(differs, fields))

    def differs(field: pa.Field) -> bool:
        type_ = field.type
        inner = [type_.value_field] if pa.types.is_list(type_) else [type_.item_field] if pa.types.is_map(type_) else []
        if pa.types.is_struct(type_):
            return names_differ([type_.field(i) for i in range(type_.num_fields)])
        return all(map(differs, inner))

    return schema if names_differ(list(schema)) else None


def test_random_schemas_come_back_as_they_were_kept() -> None:
    kept = 0
    for seed in range(200):
        schema = random_schema(random.Random(seed), leaves=LEAVES)
        text = text_for(schema)
        if kept_twin(schema) is not None:
            kept += 1
            assert schema_of(canonical(text)).equals(schema), text
        else:
            with pytest.raises(InvalidRequest, match="its name occurs twice"):
                canonical(text)
    assert kept > 100


@pytest.mark.parametrize(
    "schema, says",
    [
        (pa.schema({"a": pa.uint8()}), "column 'a': type uint8 cannot be kept"),
        (pa.schema({"a": pa.list_(pa.struct({"b": pa.uint64()}))}), r"column 'a\[\]\.b': type uint64 cannot be kept"),
        (pa.schema({"a": pa.binary()}), "column 'a' of the schema: its type binary cannot be filled from JSON"),
        (pa.schema([pa.field("a", pa.int8(), nullable=False)]), "column 'a' of the schema: it must be nullable"),
        ([("a", "int")], r"payload_schema: \[\('a', 'int'\)\]: must be columns in DDL, or a pyarrow.Schema"),
    ],
)
def test_an_arrow_schema_that_cannot_be_kept_is_refused_by_column(client: Client, schema: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        client.create_stream("never-made", payload_schema=schema)


def test_a_kept_schema_is_what_a_read_without_one_takes(client: Client, new_stream: Callable[..., str]) -> None:
    name = new_stream(payload_schema=SCHEMA)
    client.append(name, 0, [{"value": b'{"item": 1, "price": 2.5, "tags": ["a"]}'}, {"value": b"?"}])
    assert client.describe(name).settings["payload_schema"] == "item BIGINT, price DOUBLE, tags ARRAY<STRING>"
    table = client.read(name, payload="json").to_table()
    assert table.equals(client.read(name, payload="json", schema=SCHEMA).to_table())
    assert table.column("_corrupt").to_pylist() == [None, b"?"]
    chosen = client.read(name, payload="json", columns=["offset", "price"], payload_mode="DROPMALFORMED").to_table()
    assert chosen.to_pylist() == [{"offset": 0, "price": 2.5}]
    with pytest.raises(InvalidRequest, match="there is no column 'colour', only item, price, tags, _corrupt, offset"):
        client.read(name, payload="json", columns=["colour"])
    other = pa.schema({"price": pa.string()})
    assert client.read(name, payload="json", schema=other, columns=["price"]).to_table().num_rows == 2


def test_a_reader_goes_on_with_the_schema_that_it_began_with(client: Client, new_stream: Callable[..., str]) -> None:
    name = new_stream(payload_schema="item INT")
    client.append(name, 0, [{"value": b'{"item": 1, "colour": "red"}'}])
    with client.read(name, payload="json", follow=True, start="earliest", columns=["item"]) as reader:
        assert next(reader).to_pylist() == [{"item": 1}]
        client.alter(name, payload_schema="colour STRING")
        client.append(name, 0, [{"value": b'{"item": 2, "colour": "blue"}'}])
        assert next(reader).to_pylist() == [{"item": 2}]
    assert client.read(name, payload="json").to_table()["colour"].to_pylist() == ["red", "blue"]
    client.alter(name, payload_schema=None)
    with pytest.raises(InvalidRequest, match=f"stream '{name}' keeps no schema"):
        client.read(name, payload="json")
