"""payload=json in Spark. Goal: D1 and D2 of payload.py; decoding equals Spark's own from_json but for a list.

Method: random objects, appended, read as columns and beside it as bytes through from_json; DIFFERENT is the list, the
same as in docs/reference/payloads.md. What the decoder does with each value: tests/unit/client/test_client_json.py.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructType

from broker.client.payload.json_columns import REASONS, json_decoder
from spark_liftlog.schema import ROW
from tests.spark.streams import Stream, run
from tests.support.random_json import LEAVES, Luck, random_schema, random_values

pytest.importorskip("broker.client.payload._json", reason="no compiler here")

DDL = (
    "item BIGINT, price DOUBLE, at TIMESTAMP, tags ARRAY<STRING>, pos STRUCT<x: INT, y: DECIMAL(5, 2)>,"
    " m MAP<STRING, DATE>"
)
GOOD = b"""{"item": 1, "price": 2.5, "at": "2026-11-27T02:00:00.5+01:00", "tags": ["a", null],
 "pos": {"x": 3, "y": 1.005}, "m": {"k": "2026-11-27"}}"""
VALUES = [GOOD, None, b"no JSON", b'{"item": 2, "offset": 9}', b'{"item": "3"}', b"{}"]
SHOWN = {"timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS", "timestampNTZFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS"}
DIFFERENT = {
    "it is empty": "from_json gives null, and nothing is corrupt",
    "it is no UTF-8": "from_json puts U+FFFD or ? there",
    "it is no object": "from_json takes the first object of an array",
    "a name occurs twice": "from_json takes the last one",
    "something follows the object": "from_json does not look",
}


def append(stream: Stream, values: list[bytes | None]) -> None:
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), "key": [b"k"] * len(values)})
    stream.client.append(stream.name, 0, batch)


def read(spark: SparkSession, stream: Stream, schema: str | StructType | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("liftlog").options(**{"brokers": stream.address, "payload": "json", **options})
    return (reader if schema is None else reader.schema(schema)).load(stream.name)


def test_members_are_columns_and_corrupt_rows_are_kept(spark: SparkSession, stream: Stream) -> None:
    append(stream, VALUES)
    frame = read(spark, stream, f"OFFSET BIGINT NOT NULL, {DDL}, _corrupt BINARY, stream STRING")
    rows = sorted(frame.collect(), key=lambda row: row.OFFSET)
    assert frame.columns == ["OFFSET", "item", "price", "at", "tags", "pos", "m", "_corrupt", "stream"]
    assert [row.item for row in rows] == [1, None, None, 2, None, None]
    assert [row._corrupt for row in rows] == [None, None, b"no JSON", None, b'{"item": "3"}', None]
    parsed = spark.createDataFrame([(GOOD.decode(),)], "v STRING").select(F.from_json("v", DDL).alias("v")).first()
    assert parsed is not None
    assert rows[0].asDict() == {**parsed.v.asDict(), "OFFSET": 0, "_corrupt": None, "stream": stream.name}


def test_the_schema_may_be_an_option_and_then_all_columns_are_there(spark: SparkSession, stream: Stream) -> None:
    append(stream, VALUES)
    frame = read(spark, stream, payloadSchema="item BIGINT, `a b` STRING")
    names = ["item", "a b", "_corrupt", *(name for name in ROW.names if name != "value")]
    assert frame.columns == names
    assert frame.where("item = 2").select("offset", "partition", "key").collect() == [
        Row(offset=3, partition=0, key=b"k")
    ]
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING liftlog OPTIONS (stream '{stream.name}', brokers"
        f" '{stream.address}', payload 'json', payloadSchema 'item BIGINT')"
    )
    assert spark.sql("SELECT sum(item) AS s FROM orders WHERE partition = 0").first() == Row(s=3)


def test_a_stream_of_objects_goes_through_a_query(
    spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Any
) -> None:
    append(stream, VALUES)
    frame = (
        spark.readStream.format("liftlog")
        .options(brokers=stream.address, payload="json", startingOffsets="earliest", payloadMode="dropMalformed")
        .schema("item BIGINT, offset BIGINT")
        .load(stream.name)
    )
    folder = str(tmp_path / "out")
    run(frame, folder, checkpoint)
    append(stream, [b'{"item": 7}', b"?"])
    run(frame, folder, checkpoint)
    assert sorted(spark.read.parquet(folder).collect(), key=lambda row: row.offset) == [
        Row(item=item, offset=offset) for item, offset in ((1, 0), (None, 1), (2, 3), (None, 5), (7, 6))
    ]


def test_a_struct_in_the_place_of_the_value_has_names_of_its_own(spark: SparkSession, stream: Stream) -> None:
    append(stream, [b'{"offset": 7, "key": "x"}', None, b"?"])
    frame = read(spark, stream, "value STRUCT<offset: BIGINT, key: STRING>, offset BIGINT, _corrupt BINARY")
    assert sorted(frame.collect(), key=lambda row: row.offset) == [
        Row(value=Row(offset=7, key="x"), offset=0, _corrupt=None),
        Row(value=None, offset=1, _corrupt=None),
        Row(value=None, offset=2, _corrupt=b"?"),
    ]


def test_the_bytes_can_be_had_beside_the_columns(spark: SparkSession, stream: Stream) -> None:
    append(stream, [b'{"item": 7}'])
    assert read(spark, stream, "item INT, value BINARY").collect() == [Row(item=7, value=b'{"item": 7}')]


def test_a_query_ends_at_a_corrupt_row_if_that_is_asked_for(spark: SparkSession, stream: Stream) -> None:
    append(stream, VALUES)
    says = f"LIFTLOG_INVALID_RECORDS: stream '{stream.name}' partition 0 offset 2: the value cannot be decoded"
    with pytest.raises(PySparkException, match=says):
        read(spark, stream, "item BIGINT", payloadMode="FAILFAST").collect()
    before = json.dumps({stream.name: {"0": 2, "1": 0, "2": 0}})
    assert read(spark, stream, "item BIGINT", payloadMode="FAILFAST", endingOffsets=before).count() == 2


@pytest.mark.parametrize(
    "schema, options, says",
    [
        (
            None,
            {},
            r"keeps no schema, so the columns of the objects are not known; give them with \.schema\('item BIGINT",
        ),
        ("item BIGINT", {"payload": "avro"}, "option payload='avro': must be json"),
        ("item BIGINT", {"payloadMode": "lenient"}, "option payloadMode='lenient': must be PERMISSIVE or"),
        ("item BIGINT", {"columns": "offset"}, "option columns='offset': .* one of them is enough"),
        ("item BIGINT", {"payloadSchema": "item INT"}, "option payloadSchema='item INT': .*too: one of them"),
        (None, {"payloadSchema": " "}, "option payloadSchema=' ': must be columns in DDL"),
        (None, {"payloadSchema": "timestamp STRING"}, "column 'timestamp' of the given schema: a row has a column"),
        ("timestamp STRING", {}, "column 'timestamp' of the given schema: a row has a column .* STRUCT<timestamp"),
        ("item BIGINT, _corrupt STRING", {}, "column '_corrupt' of the given schema: it must be BINARY"),
        ("offset BIGINT", {}, "the schema has no column"),
        ("item BINARY", {}, "column 'item' of the schema: its type binary cannot be filled"),
        ("item BIGINT NOT NULL", {}, "column 'item' of the schema: it must be nullable"),
        ("a STRUCT<b: INT NOT NULL>", {}, "column 'a.b' of the schema: it must be nullable"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    spark: SparkSession, stream: Stream, schema: str | None, options: dict[str, str], says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        read(spark, stream, schema, **options).collect()


def test_a_schema_without_a_payload_is_a_projection_as_before(spark: SparkSession, stream: Stream) -> None:
    with pytest.raises(PySparkException, match="column 'item' of the given schema: a liftlog row has"):
        spark.read.format("liftlog").schema("item INT").option("brokers", stream.address).load(stream.name).collect()
    with pytest.raises(PySparkException, match="option payloadMode='FAILFAST': means something with"):
        stream.read(spark, payloadMode="FAILFAST").collect()


def test_a_kept_schema_is_that_of_a_frame_for_good(
    spark: SparkSession, stream: Stream, checkpoint: str, tmp_path: Any
) -> None:
    append(stream, VALUES)
    stream.client.alter(stream.name, payload_schema=DDL)
    frame = read(spark, stream)
    assert frame.schema == read(spark, stream, payloadSchema=DDL).schema, "both are read alike, also by Spark itself"
    assert frame.orderBy("offset").collect() == read(spark, stream, payloadSchema=DDL).orderBy("offset").collect()
    options = {"brokers": stream.address, "payload": "json", "startingOffsets": "earliest"}
    query = spark.readStream.format("liftlog").options(**options).load(stream.name).select("item", "offset")
    folder = str(tmp_path / "out")
    run(query, folder, checkpoint)
    stream.client.alter(stream.name, payload_schema="item STRING")
    append(stream, [b'{"item": 7}'])
    run(query, folder, checkpoint)
    assert spark.read.parquet(folder).where("offset = 6").collect() == [Row(item=7, offset=6)]
    assert read(spark, stream).where("offset = 6").select("item").collect() == [Row(item="7")]
    stream.client.alter(stream.name, payload_schema=None)
    with pytest.raises(PySparkException, match=r"LIFTLOG_INVALID_SETTING: option payload='json': stream .* keeps no"):
        read(spark, stream)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_objects_are_decoded_as_from_json_does(spark: SparkSession, stream: Stream, seed: int) -> None:
    compare(spark, stream, seed, 400)


def compare(spark: SparkSession, stream: Stream, seed: int, count: int) -> None:
    rng = Luck(seed)
    arrow = random_schema(rng, leaves=LEAVES, names=("a", "b", "item", "é", "c", "d"))
    schema = from_arrow_schema(arrow)
    values = random_values(rng, arrow, count)
    _, reasons = json_decoder(arrow).decode(pa.array(values, pa.binary()))
    append(stream, values)
    mine = read(spark, stream, StructType([*schema, ROW["offset"], ROW["value"]]).add("_corrupt", "binary"))
    mine = mine.select("offset", "value", "_corrupt", F.to_json(F.struct(*schema.names), SHOWN).alias("row"))
    with_corrupt = StructType([*schema]).add("_corrupt_record", StringType())
    parsed = F.from_json(F.col("value").cast("string"), with_corrupt)
    theirs = stream.read(spark).select("offset", parsed.alias("p"))
    theirs = theirs.selectExpr(
        "offset",
        "p._corrupt_record AS c",
        "named_struct({}) AS r".format(", ".join(f"'{name}', p.`{name}`" for name in schema.names)),
    ).select("offset", "c", F.to_json("r", SHOWN).alias("row"))
    other = {row.offset: row for row in theirs.collect()}
    for row in mine.collect():
        value, found, reason = values[row.offset], other[row.offset], REASONS[reasons[row.offset]]
        if value is None:
            continue
        assert (row._corrupt is None) == (reasons[row.offset] == 0)
        if row._corrupt is None:
            assert (row.row, None) == (found.row, found.c), (value, arrow)
        elif reason not in DIFFERENT and not ("int8" in str(arrow) and found.c is None):  # it takes 255 for -1
            assert found.c is not None, (value, arrow, reason)
