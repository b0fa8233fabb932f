"""Compressed batches: any reader of Arrow reads them, no damaged or oversized one is ever decoded.

The header is pinned by a golden file; the compressed bytes are the libraries', so the golden file is read, not written.
"""

from __future__ import annotations

import io
import os
import random
import struct
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from broker.api.batch import (
    BUFFERS_AT,
    HEADER_BYTES,
    TEMPLATE,
    BatchHeader,
    decode_batch,
    encode_batch,
    is_plain,
    message_bytes,
    read_header,
    seal,
    verify_batch,
)
from broker.api.compression import DECODED_BYTES_MAX, PACKED_HEADER_BYTES, decoded_bytes, packed_template
from broker.api.errors import BadBatch, UnknownFormatVersion
from broker.api.schema import END_OF_STREAM, SCHEMA, SCHEMA_BYTES
from broker.storage.rewrite.rewriting import is_packable
from tests.support.messages import split_messages
from tests.support.rows import random_rows

GOLDEN = Path(__file__).parents[2] / "golden" / "format-v1"
HEADER = BatchHeader(first_offset=7, last_offset=106, leader_epoch=3, high_watermark=7, max_timestamp_us=-1)
CODECS = ["lz4", "zstd"]


def rows_of(count: int = 100) -> pa.RecordBatch:
    """Rows that have in every column some values that compress, and some nulls."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "offset": 7 + i,
                "timestamp": i,
                "subject": "a.b",
                "key": None if i % 3 else b"key %d" % i,
                "value": b"value" * (i % 5) if i % 7 else None,
                "headers": [{"key": "x", "value": b"1"}, {"key": "x", "value": None}] if i % 2 else None,
                "reply": None,
            }
            for i in range(count)
        ],
        schema=SCHEMA,
    )


@pytest.mark.parametrize("compression", CODECS)
def test_golden_compressed_segment_is_still_read_by_everybody(compression: str) -> None:
    path = GOLDEN / f"compressed-{compression}.arrows"
    if os.environ.get("LIFTLOG_UPDATE_GOLDEN"):
        message = encode_batch(rows_of(), HEADER, compression=compression)
        path.write_bytes(SCHEMA_BYTES + bytes(message) + END_OF_STREAM)
    golden = path.read_bytes()
    (message,) = split_messages(golden)
    assert decode_batch(message).equals(rows_of())
    assert verify_batch(message).last_offset == 106
    assert pa.ipc.open_stream(golden).read_all().equals(pa.Table.from_batches([rows_of()]))
    frame = pl.read_ipc_stream(io.BytesIO(golden))
    assert frame["value"].to_list() == rows_of().column("value").to_pylist()
    ours = encode_batch(rows_of(), HEADER, compression=compression)
    for start, end in ((0, 48), (56, 256), (264, 320), (728, PACKED_HEADER_BYTES)):  # but lengths, CRC and places
        assert bytes(ours[start:end]) == bytes(message[start:end])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_plain_message_is_known_by_its_beginning_and_its_length(kind: type) -> None:
    message = bytes(encode_batch(rows_of(), HEADER))
    assert is_plain(kind(message))
    for wrong in (message[:-1], message[:-8], message + bytes(8), b"\0" + message[1:]):
        assert not is_plain(kind(wrong))
    for compression in CODECS:
        assert not is_plain(kind(bytes(encode_batch(rows_of(), HEADER, compression=compression))))


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("seed", range(20))
def test_any_rows_come_back_from_pyarrow_and_polars(compression: str, seed: int) -> None:
    rng = random.Random(seed)
    rows = random_rows(rng, rng.randint(40, 300))
    message = encode_batch(rows, HEADER, compression=compression)
    assert message_bytes(message) == len(message)
    assert len(message) % 8 == 0
    assert read_header(message) == verify_batch(message)
    found = decode_batch(message)
    found.validate(full=True)
    assert found.equals(rows)
    stream = SCHEMA_BYTES + bytes(message) + END_OF_STREAM
    assert pa.ipc.open_stream(stream).read_all().equals(pa.Table.from_batches([rows]))
    assert pl.read_ipc_stream(io.BytesIO(stream))["subject"].to_list() == rows.column("subject").to_pylist()


def test_the_description_of_the_compression_is_what_pyarrow_writes_about_it() -> None:
    """Another layout, the same content: both say codec and method in the same table of the flatbuffer."""
    for compression, codec in (("lz4", 0), ("zstd", 1)):
        head = packed_template(TEMPLATE, compression)
        table = 312 + struct.unpack_from("<i", head, 312)[0]
        fields = table - struct.unpack_from("<i", head, table)[0]
        _, _, codec_at, method_at = struct.unpack_from("<4H", head, fields)
        assert (head[table + codec_at], head[table + method_at]) == (codec, 0)
        assert len(head) == PACKED_HEADER_BYTES == HEADER_BYTES + 16


def test_what_compression_makes_no_shorter_is_stored_as_it_was() -> None:
    rows = rows_of().set_column(4, SCHEMA.field("value"), pa.array([os.urandom(100) for _ in range(100)], pa.binary()))
    plain = encode_batch(rows, HEADER)
    for compression in CODECS:
        message = encode_batch(rows, HEADER, compression=compression)
        assert decode_batch(message).equals(rows)
        assert len(message) < len(plain)
        assert decoded_bytes(message) == sum(struct.unpack_from("<50q", plain, BUFFERS_AT)[1::2])


def test_tiny_batches_are_not_compressed() -> None:
    rows = rows_of(5)
    assert encode_batch(rows, HEADER, compression="zstd") == encode_batch(rows, HEADER)


@pytest.mark.parametrize("compression", CODECS)
def test_every_single_bit_flip_of_a_compressed_batch_is_found(compression: str) -> None:
    message = bytes(encode_batch(rows_of(), HEADER, compression=compression))
    for position in range(len(message)):
        for bit in (0, 5) if position > 1_000 else range(8):
            flipped = bytearray(message)
            flipped[position] ^= 1 << bit
            with pytest.raises((BadBatch, UnknownFormatVersion)):
                verify_batch(flipped)


@pytest.mark.parametrize("length", [DECODED_BYTES_MAX, 1 << 62, -2, -(1 << 62)])
def test_a_batch_that_would_not_fit_into_memory_is_refused_before_it_is_decompressed(length: int) -> None:
    """Its CRC is right: somebody made it so."""
    message = encode_batch(rows_of(), HEADER, compression="zstd")
    struct.pack_into("<q", message, PACKED_HEADER_BYTES, length)
    seal(message)
    with pytest.raises(BadBatch, match="when decompressed"):
        verify_batch(message)
    with pytest.raises(BadBatch):
        decode_batch(message)


@pytest.mark.parametrize("place", [(-8, 100), (0, 7), (1 << 40, 100), (0, 1 << 40)])
def test_a_place_outside_of_the_body_is_refused(place: tuple[int, int]) -> None:
    message = encode_batch(rows_of(), HEADER, compression="zstd")
    struct.pack_into("<qq", message, BUFFERS_AT + 16, *place)
    seal(message)
    with pytest.raises(BadBatch):
        decode_batch(message)


def test_any_bytes_in_a_compressed_batch_give_rows_or_the_documented_error() -> None:
    rng = random.Random(4)
    message = bytes(encode_batch(rows_of(), HEADER, compression="lz4"))
    for _ in range(2_000):
        changed = bytearray(message)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(PACKED_HEADER_BYTES, len(changed))] = rng.randrange(256)
        seal(changed)
        try:
            decode_batch(changed)
        except BadBatch:
            continue


def test_a_batch_is_compressed_exactly_when_its_plain_message_says_that_it_may_be() -> None:
    """Else what is written anew would be found uncompressed, and written anew, for ever."""
    for length in range(700, 1_000):
        rows = rows_of(2).set_column(4, SCHEMA.field("value"), pa.array([b"x" * length, None], pa.binary()))
        plain, packed = encode_batch(rows, HEADER), encode_batch(rows, HEADER, compression="lz4")
        assert is_packable(plain, len(plain)) == (packed[:8] != plain[:8])
