"""The sink's decisions: columns, partitions, pieces. Goal: K1, K2 of writer.py and the broker's hash."""

from __future__ import annotations

from zlib import crc32

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType, StructField, StructType

from broker.api.errors import InvalidRecords, UnknownPartition
from spark_liftlog.errors import ModeRefused
from spark_liftlog.options import SinkOptions
from spark_liftlog.schema import HEADERS
from spark_liftlog.writing.partitioner import partitions_for
from spark_liftlog.writing.writer import LiftlogStreamWriter, LiftlogWriter, columns_of, pieces

OPTIONS = SinkOptions(brokers="localhost:1", stream="s")
VALUE = StructType([StructField("value", BinaryType())])


@pytest.mark.parametrize("writer", [LiftlogWriter, LiftlogStreamWriter])
def test_overwriting_a_log_is_refused(writer: type[LiftlogWriter] | type[LiftlogStreamWriter]) -> None:
    with pytest.raises(ModeRefused, match="append") as caught:
        writer(OPTIONS, VALUE, overwrite=True)
    assert caught.value.reason == "mode"


def test_the_columns_of_a_record_are_taken_in_any_order_and_case() -> None:
    schema = StructType(
        [
            StructField("Partition", IntegerType()),
            StructField("headers", HEADERS),
            StructField("KEY", StringType()),
            StructField("value", StringType(), nullable=False),
            StructField("subject", StringType()),
        ]
    )
    assert columns_of(schema) == {"partition": 0, "headers": 1, "key": 2, "value": 3, "subject": 4}


@pytest.mark.parametrize(
    "fields, says",
    [
        ([StructField("key", BinaryType())], "needs a column value"),
        ([StructField("value", LongType())], "it must be binary or string"),
        ([*VALUE, StructField("offset", LongType())], "'offset' has no place in a record"),
        ([*VALUE, StructField("partition", LongType())], "is bigint, it must be int"),
        ([*VALUE, StructField("headers", MapType(StringType(), BinaryType()))], "it must be array<struct"),
        ([*VALUE, StructField("VALUE", BinaryType())], "twice"),
    ],
)
def test_a_column_that_would_be_dropped_or_garbled_is_refused(fields: list[StructField], says: str) -> None:
    with pytest.raises(InvalidRecords, match=says):
        columns_of(StructType(fields))


def test_a_key_goes_where_the_brokers_hash_sends_it() -> None:
    keys = [b"", b"a", b"customer-42", b"x" * 1000, "é".encode()]
    found = partitions_for(pa.array(keys, pa.binary()), None, partition_count=7, turn=0)
    assert found.tolist() == [crc32(key) % 7 for key in keys]


def test_a_partition_that_is_named_wins_and_rows_with_neither_take_the_turn() -> None:
    keys = pa.array([b"a", b"a", None, None], pa.binary())
    explicit = pa.array([2, None, 0, None], pa.int32())
    assert partitions_for(keys, explicit, partition_count=3, turn=4).tolist() == [2, crc32(b"a") % 3, 0, 1]


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_partition_that_the_stream_does_not_have_is_refused(wrong: int) -> None:
    with pytest.raises(UnknownPartition, match=f"{wrong} is no partition of the stream, it has 0 to 2"):
        partitions_for(None, pa.array([0, wrong], pa.int32()), partition_count=3, turn=0)


def test_rows_are_halved_until_they_are_small_or_one() -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"x" * 100] * 64 + [b"y" * 5000]})
    cut = list(pieces(rows, 1000))
    assert pa.Table.from_batches(cut).to_pylist() == rows.to_pylist()
    assert all(piece.nbytes <= 1000 or piece.num_rows == 1 for piece in cut)
