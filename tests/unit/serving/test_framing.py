"""The frame of untrusted Arrow streams.

Goal: what Arrow writes passes with the right counts, anything else is a named error, and no claim of a
stranger makes the broker allocate. Method: pyarrow as the oracle for good streams; cuts at every byte,
flips and patched claims for bad ones.
"""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest

from broker.api.errors import InvalidRecords, LiftlogError, RequestTooLarge
from broker.api.schema import END_OF_STREAM
from broker.api.stream import StreamSettings
from broker.metadata.catalog import StreamInfo
from broker.serving.endpoints.append import encode
from broker.serving.http.body import BodyBudget, Reservation
from broker.serving.payload.decode import decode_stream
from broker.serving.payload.framing import BATCHES_MAX, RECORDS_MAX, SCHEMA_BYTES_MAX, walk
from tests.support.effort import first_short
from tests.unit.serving.arrow import nothing_reserved, stream_of, values

LIMIT = 1 << 20
INFO = StreamInfo(name="orders", incarnation="i", created_us=0, settings=StreamSettings())


def test_a_stream_of_pyarrow_is_counted_as_pyarrow_counts() -> None:
    batches = [values(10), values(7), values(1)]
    frame = walk(stream_of(batches), decoded_bytes_max=LIMIT)
    assert (frame.batches, frame.records) == (3, 18)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_batches_count_as_large_as_they_decompress(codec: str) -> None:
    batch = values(1000, size=100)
    plain = walk(stream_of(batch), decoded_bytes_max=LIMIT)
    packed = walk(stream_of(batch, compression=codec), decoded_bytes_max=LIMIT)
    assert packed.records == plain.records
    assert plain.decoded_bytes - 64 * 3 <= packed.decoded_bytes <= plain.decoded_bytes  # bodies are padded
    assert len(stream_of(batch, compression=codec)) < plain.decoded_bytes / 2


def test_a_stream_without_batches_is_empty() -> None:
    assert walk(stream_of(values(1).slice(0, 0)), decoded_bytes_max=LIMIT).records == 0


def test_every_cut_is_refused() -> None:
    whole = stream_of([values(3), values(2)])
    for length in range(len(whole)):
        with pytest.raises(InvalidRecords):
            walk(whole[:length], decoded_bytes_max=LIMIT)
    assert walk(whole, decoded_bytes_max=LIMIT).records == 5


def test_bytes_behind_the_end_marker_are_refused() -> None:
    with pytest.raises(InvalidRecords, match="8 bytes follow"):
        walk(stream_of(values(1)) + END_OF_STREAM, decoded_bytes_max=LIMIT)


@pytest.mark.parametrize(
    "body, what",
    [
        (b"", "after 0 bytes there is no end-of-stream marker"),
        (END_OF_STREAM, "there is no schema"),
        (b"ARROW1\0\0" + bytes(100), "Arrow file"),
        (b'{"value": "x"}', "no Arrow message begins at byte 0"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", -8), "metadata is -8 bytes"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", 1 << 30), "malformed"),
        (b"\xff\xff\xff\xff\x08\0\0\0" + b"\xff" * 8, "malformed"),
    ],
)
def test_what_is_no_stream_is_named(body: bytes, what: str) -> None:
    with pytest.raises(InvalidRecords, match=what):
        walk(body, decoded_bytes_max=LIMIT)


def test_an_old_format_without_markers_is_refused() -> None:
    with pytest.raises(InvalidRecords, match="no Arrow message begins"):
        walk(stream_of(values(1), use_legacy_format=True), decoded_bytes_max=LIMIT)


def test_old_metadata_is_refused() -> None:
    """Version 4 has another way to say that a batch is compressed, which would hide what it claims."""
    old = stream_of(values(1), metadata_version=pa.ipc.MetadataVersion.V4)
    with pytest.raises(InvalidRecords, match="metadata version 5"):
        walk(old, decoded_bytes_max=LIMIT)


def test_dictionaries_are_refused() -> None:
    batch = pa.record_batch({"value": pa.array(["x"] * 10).dictionary_encode()})
    with pytest.raises(InvalidRecords, match="dictionary"):
        walk(stream_of(batch), decoded_bytes_max=LIMIT)


def test_a_compressed_bomb_is_refused_before_it_is_decompressed() -> None:
    bomb = stream_of(pa.record_batch({"value": pa.array([b"\0" * (64 << 20)])}), compression="zstd")
    assert len(bomb) < 64 << 10
    before = pa.total_allocated_bytes()
    with pytest.raises(RequestTooLarge, match="bytes when decompressed") as caught:
        decode_stream(bomb, decoded_bytes_max=LIMIT, reserve=nothing_reserved)
    assert caught.value.limit == LIMIT
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("claim", [1 << 62, (1 << 63) - 1, -2, -(1 << 62)])
def test_a_false_claim_of_a_compressed_buffer_is_refused(claim: int) -> None:
    body = bytearray(stream_of(values(1000, size=100), compression="zstd"))
    at = body.index(b"\x28\xb5\x2f\xfd") - 8  # zstd's magic number, behind the claim
    body[at : at + 8] = struct.pack("<q", claim)
    with pytest.raises((InvalidRecords, RequestTooLarge)):
        walk(body, decoded_bytes_max=LIMIT)


def test_a_claim_below_the_truth_is_refused_by_the_decoder() -> None:
    body = bytearray(stream_of(values(1000, size=100), compression="zstd"))
    at = body.index(b"\x28\xb5\x2f\xfd") - 8
    body[at : at + 8] = struct.pack("<q", 16)
    with pytest.raises(InvalidRecords):
        decode_stream(body, decoded_bytes_max=LIMIT, reserve=nothing_reserved)


def test_too_many_batches_are_refused() -> None:
    body = stream_of([values(1)] * (BATCHES_MAX + 1))
    with pytest.raises(RequestTooLarge, match="4097 batches"):
        walk(body, decoded_bytes_max=64 << 20)


def test_too_many_rows_are_refused_whatever_they_cost() -> None:
    """A column of type null has no buffers: rows without bytes."""
    body = stream_of(pa.record_batch({"value": pa.nulls(RECORDS_MAX + 1)}))
    assert len(body) < 1000
    with pytest.raises(RequestTooLarge, match="records"):
        walk(body, decoded_bytes_max=LIMIT)


def test_a_huge_schema_is_refused() -> None:
    schema = pa.schema([pa.field("value", pa.binary())], metadata={"pandas": "x" * SCHEMA_BYTES_MAX})
    body = stream_of(pa.RecordBatch.from_pylist([], schema=schema))
    with pytest.raises(InvalidRecords, match="a schema of"):
        walk(body, decoded_bytes_max=LIMIT)


@pytest.mark.parametrize("codec", [None, "zstd"])
@pytest.mark.parametrize("seed", first_short(range(4)))
def test_changed_bytes_give_batches_or_a_named_error(codec: str | None, seed: int) -> None:
    """For all changes the outcome is batches that can be stored, or InvalidRecords or RequestTooLarge."""
    rng = random.Random(seed)
    rows = pa.record_batch(
        {
            "key": pa.array([b"k", None, b"kk"] * 20),
            "value": pa.array([rng.randbytes(30) for _ in range(60)]),
            "subject": pa.array(["a.b", "c", "d"] * 20),
            "headers": pa.array([[("a", b"1")], None, []] * 20, pa.map_(pa.string(), pa.binary())),
        }
    )
    whole = stream_of([rows, rows.slice(5, 20)], compression=codec)
    for _ in range(500):
        body = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(len(body))
            body[at] = rng.choice([0, 255, 1, 128, rng.randrange(256)])
        try:
            for batch in encode(body, INFO, 1, LIMIT, Reservation(BodyBudget(8 * LIMIT))):
                batch.compose(first_offset=0, leader_epoch=0, high_watermark=0)
        except LiftlogError as error:
            assert isinstance(error, (InvalidRecords, RequestTooLarge)), error  # noqa: PT017
