"""Goal: some columns of a batch are what the batch has in them, for any reader of Arrow, and no flipped bit passes.

Method: batches of random rows, stored as they are and compressed; every choice of columns; a flipped bit in every
byte.
"""

from __future__ import annotations

import io
import random
from itertools import combinations

import polars as pl
import pyarrow as pa
import pytest
from crc32c import crc32c

from broker.api.batch import BatchHeader, encode_batch, verify_batch
from broker.api.columns import (
    columns_in,
    schema_bytes,
    schema_of,
    verify_projected,
)
from broker.api.crc_parts import adds, after, behind
from broker.api.errors import BadBatch
from broker.api.schema import END_OF_STREAM, HEADERS_TYPE, SCHEMA, SCHEMA_BYTES
from tests.support.effort import examples, seeded
from tests.support.messages import projected

CHOICES = [columns_in(some) for n in range(len(SCHEMA)) for some in combinations(SCHEMA.names[1:], n)]


def rows_of(rng: random.Random, n: int) -> pa.RecordBatch:
    columns = [
        pa.array(range(5, 5 + n), pa.int64()),
        pa.array([rng.randrange(1 << 50) for _ in range(n)], pa.timestamp("us", "UTC")),
        pa.array([rng.choice(["a", "a.é", ""]) for _ in range(n)], pa.string()),
        pa.array([rng.choice([None, b"", b"k"]) for _ in range(n)], pa.binary()),
        pa.array([rng.choice([None, rng.randbytes(rng.choice([0, 9, 300]))]) for _ in range(n)], pa.binary()),
        pa.array([rng.choice([None, [], [{"key": "h", "value": None}]]) for _ in range(n)], HEADERS_TYPE),
        pa.array([rng.choice([None, "reply"]) for _ in range(n)], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def batch_of(rng: random.Random, n: int, compression: str = "none") -> bytes:
    header = BatchHeader(first_offset=5, last_offset=5 + max(n, 1), leader_epoch=3)
    return bytes(encode_batch(rows_of(rng, n), header, compression=compression))


def test_the_crc_of_parts_is_that_of_the_whole() -> None:
    rng = random.Random(seeded(179))
    for _ in range(examples(200)):
        first, middle, last = (rng.randbytes(rng.choice([0, 1, 2, 7, 8, 100, 5_000])) for _ in range(3))
        assert after(crc32c(first), len(last)) ^ crc32c(last) == crc32c(first + last)
        assert behind(crc32c(first), len(last)) == crc32c(first + bytes(len(last)))
        lacking = crc32c(first + middle + last) ^ crc32c(first + bytes(len(middle)) + last)
        assert adds(crc32c(middle), len(middle), len(last)) == lacking
    assert behind(0x12345678, 3 << 20) == crc32c(bytes(3 << 20), 0x12345678)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_any_reader_reads_the_chosen_columns(compression: str) -> None:
    rng = random.Random(seeded(180))
    for n in (0, 1, 9, 200):
        message = batch_of(rng, n, compression)
        whole = pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA)
        header = verify_batch(message)
        for columns in rng.sample(CHOICES, examples(8)):
            sent = projected(message, columns)
            assert verify_projected(sent, columns) == header
            stream = schema_bytes(columns) + sent + sent + END_OF_STREAM
            found = pa.ipc.open_stream(stream).read_all()
            found.validate(full=True)
            assert found == pa.Table.from_batches([whole.select(columns)] * 2)
            assert pl.read_ipc_stream(io.BytesIO(stream)).equals(pl.from_arrow(found))


def test_each_choice_of_columns_has_its_schema() -> None:
    for columns in CHOICES:
        assert len(schema_bytes(columns)) == len(SCHEMA_BYTES)
        assert pa.ipc.read_schema(pa.py_buffer(schema_bytes(columns))).equals(schema_of(columns))
    assert schema_bytes(columns_in(SCHEMA.names)) == SCHEMA_BYTES
    assert columns_in(["reply", "key", "partition"]) == ("offset", "key", "reply")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_every_flipped_bit_is_found(compression: str) -> None:
    rng = random.Random(seeded(181))
    columns = columns_in(["timestamp", "key"])
    sent = bytearray(projected(batch_of(rng, 40, compression), columns))
    verify_projected(sent, columns)
    for at in range(len(sent)):
        bit = 1 << rng.randrange(8)
        sent[at] ^= bit
        with pytest.raises(BadBatch):
            verify_projected(sent, columns)
        sent[at] ^= bit
    for end in (0, 8, 900, 1776, 1808, len(sent) - 8):
        with pytest.raises(BadBatch):
            verify_projected(sent[:end], columns)
    with pytest.raises(BadBatch):
        verify_projected(sent, columns_in(["timestamp"]))
