"""The batch codec: equal to pyarrow's own writer byte for byte, pinned by golden files, and distrustful.

Goal: what is on disk can be read by anyone who reads Arrow, and no damaged byte is ever served.
"""

from __future__ import annotations

import io
import random
from pathlib import Path

import pyarrow as pa
import pytest

from broker.api import batch as codec
from broker.api.batch import BatchHeader, decode_batch, encode_batch, read_header, verify_batch
from broker.api.errors import BadBatch, UnknownFormatVersion
from broker.api.schema import END_OF_STREAM, HEADERS_TYPE, SCHEMA, SCHEMA_BYTES
from tests.support.messages import split_messages
from tests.support.rows import random_rows

GOLDEN = Path(__file__).parents[2] / "golden" / "format-v1"
HEADER = BatchHeader(first_offset=7, last_offset=9, leader_epoch=3, high_watermark=7, max_timestamp_us=-1)


def small_batch() -> pa.RecordBatch:
    """Three rows with every kind of null, as they are in the golden file."""
    return pa.RecordBatch.from_pylist(
        [
            {"offset": 7, "timestamp": 1, "subject": "a.b", "key": b"k", "value": b"v", "headers": None, "reply": None},
            {
                "offset": 8,
                "timestamp": 3,
                "subject": "a.c",
                "key": None,
                "value": None,
                "headers": [{"key": "x", "value": b"1"}, {"key": "x", "value": None}],
                "reply": "_INBOX.1",
            },
            {"offset": 9, "timestamp": 2, "subject": "é", "key": b"", "value": b"", "headers": [], "reply": None},
        ],
        schema=SCHEMA,
    )


def oracle(batch: pa.RecordBatch, value: bytes) -> bytes:
    """The same message as pyarrow writes it, given the metadata value."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(batch, custom_metadata={b"liftlog": value})
    return sink.getvalue()[len(SCHEMA_BYTES) : -len(END_OF_STREAM)]


@pytest.mark.parametrize("seed", range(60))
def test_encoded_batch_is_what_pyarrow_writes(seed: int) -> None:
    rng = random.Random(seed)
    rows = random_rows(rng, rng.randint(1, 60))
    message = encode_batch(rows, HEADER)
    value = bytes(message[codec.VALUE_AT : codec.VALUE_AT + codec.VALUE_BYTES])
    assert bytes(message) == oracle(rows, value)
    assert decode_batch(message).equals(rows)


@pytest.mark.parametrize("seed", range(30))
def test_slice_is_stored_without_its_neighbours(seed: int) -> None:
    """As long as if its rows had been built alone; pyarrow's writer keeps spare offsets and data."""
    rng = random.Random(seed)
    rows = random_rows(rng, rng.randint(5, 60)).slice(rng.randint(0, 2))
    rows = rows.slice(0, rows.num_rows - rng.randint(0, 2))
    message = encode_batch(rows, HEADER)
    assert decode_batch(message).equals(rows)
    assert len(message) == len(encode_batch(pa.RecordBatch.from_pylist(rows.to_pylist(), schema=SCHEMA), HEADER))


@pytest.mark.parametrize("seed", range(40))
def test_rows_that_were_filtered_or_put_together_are_stored_as_if_they_had_been_built_alone(seed: int) -> None:
    """Compaction and coalescing make such rows: whole arrays, with spare room at their ends, or slices."""
    rng = random.Random(seed)
    parts = [random_rows(rng, rng.randint(1, 20)) for _ in range(3)]
    keep = pa.array([rng.random() < rng.choice([0.0, 0.5, 1.0]) for _ in range(parts[0].num_rows)])
    some = parts[0].filter(keep)
    for rows in (some, pa.concat_batches(parts), pa.concat_batches([some, parts[1].slice(1), parts[2]])):
        alone = pa.RecordBatch.from_pylist(rows.to_pylist(), schema=SCHEMA)
        assert encode_batch(rows, HEADER) == encode_batch(alone, HEADER)
        for cut in (rows.slice(0, rows.num_rows // 2), rows.slice(rows.num_rows // 2)):
            alone = pa.RecordBatch.from_pylist(cut.to_pylist(), schema=SCHEMA)
            assert encode_batch(cut, HEADER) == encode_batch(alone, HEADER)


def test_columns_of_nulls_cost_what_they_hold() -> None:
    """`pa.nulls` makes list children whose offsets are as long as the list; they are not stored."""
    count = 1000
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(range(count), pa.int64()),
            pa.array([1] * count, pa.timestamp("us", tz="UTC")),
            pa.array(["s"] * count),
            pa.nulls(count, pa.binary()),
            pa.nulls(count, pa.binary()),
            pa.nulls(count, HEADERS_TYPE),
            pa.nulls(count, pa.string()),
        ],
        schema=SCHEMA,
    )
    for part in (rows, rows.slice(100, 500)):
        message = encode_batch(part, HEADER)
        assert len(message) < codec.HEADER_BYTES + 40 * part.num_rows
        assert decode_batch(message).equals(part)


def test_pinned_schema_is_what_pyarrow_writes() -> None:
    assert SCHEMA.serialize().to_pybytes() == SCHEMA_BYTES
    assert pa.ipc.read_schema(pa.py_buffer(SCHEMA_BYTES)).equals(SCHEMA)


def test_golden_segment_is_still_written_and_read_the_same() -> None:
    golden = (GOLDEN / "segment.arrows").read_bytes()
    written = SCHEMA_BYTES + bytes(encode_batch(small_batch(), HEADER)) + END_OF_STREAM
    assert written == golden, "the format changed: that needs a new format version, not a new golden file"
    (message,) = split_messages(golden)
    assert decode_batch(message).equals(small_batch())
    assert pa.ipc.open_stream(golden).read_all().equals(pa.Table.from_batches([small_batch()]))


def test_header_survives_a_round_trip_at_the_ends_of_its_ranges() -> None:
    big = BatchHeader(
        flags=0xFFFF,
        first_offset=2**63 - 2,
        last_offset=2**63 - 1,
        leader_epoch=2**32 - 1,
        high_watermark=2**63 - 1,
        max_timestamp_us=-(2**63),
        producer_id=2**64 - 1,
        producer_epoch=2**32 - 1,
        sequence=2**64 - 1,
        group_index=2**32 - 1,
        group_count=2**32 - 1,
        decision=2**128 - 1,
    )
    message = encode_batch(small_batch(), big)
    found = verify_batch(message)
    assert {n: getattr(found, n) for n in codec.FIELDS if n != "crc"} == {
        n: getattr(big, n) for n in codec.FIELDS if n != "crc"
    }


def test_every_single_bit_flip_is_found() -> None:
    """B1, over the whole message: prefix, flatbuffer, metadata, body, padding."""
    message = bytes(encode_batch(small_batch(), HEADER))
    for position in range(len(message)):
        for bit in range(8):
            flipped = bytearray(message)
            flipped[position] ^= 1 << bit
            with pytest.raises((BadBatch, UnknownFormatVersion)):
                verify_batch(flipped)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 87, 264, 887, 888, 889, -1])
def test_truncated_batch_is_refused(length: int) -> None:
    message = bytes(encode_batch(small_batch(), HEADER))
    with pytest.raises(BadBatch):
        verify_batch(message[:length])


def test_another_format_version_is_named() -> None:
    message = encode_batch(small_batch(), HEADER)
    message[codec.VALUE_AT : codec.VALUE_AT + 4] = b"0002"
    codec.seal(message)
    with pytest.raises(UnknownFormatVersion, match=r"version 2.*reads 1"):
        verify_batch(message)
    with pytest.raises(UnknownFormatVersion):
        read_header(message[: codec.HEADER_BYTES])


def test_stream_must_begin_with_our_schema_and_end_with_the_marker() -> None:
    message = bytes(encode_batch(small_batch(), HEADER))
    whole = SCHEMA_BYTES + message + message + END_OF_STREAM
    assert [len(m) for m in split_messages(whole)] == [len(message)] * 2
    assert list(split_messages(SCHEMA_BYTES + END_OF_STREAM)) == []
    for bad in (
        whole[:-1],
        whole[:-8],
        whole + b"\0",
        whole[8:],
        b"",
        SCHEMA_BYTES,
        SCHEMA_BYTES + message[:-8] + END_OF_STREAM,
        SCHEMA_BYTES + message + END_OF_STREAM + message + END_OF_STREAM,
    ):
        with pytest.raises(BadBatch):
            list(split_messages(bad))
