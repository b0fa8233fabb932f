"""Goal: a composed batch is the batch codec's and pyarrow's, byte for byte.

Method: random messages in through the wire; out come the bytes of compose. They must decode to the messages, and
be what the oracles make of these rows: `encode_batch`, and pyarrow's own writer with the same custom metadata.
"""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from broker.api.batch import (
    CRC_AT,
    VALUE_AT,
    VALUE_BYTES,
    BatchHeader,
    decode_batch,
    encode_batch,
    read_header,
    verify_batch,
)
from broker.api.schema import END_OF_STREAM, SCHEMA, SCHEMA_BYTES
from tests.unit.ingest.twins import builder
from tests.unit.ingest.wire import hmsg, msg

POSITION: dict[str, Any] = {"first_offset": 41, "leader_epoch": 9, "high_watermark": 40}


def random_message(rng: random.Random, rates: dict[str, float]) -> tuple[bytes, dict[str, Any]]:
    """A message and its row, as far as the message decides."""
    subject = ".".join(rng.choice(("a", "bc", "é", "€uro")) for _ in range(rng.randint(1, 5)))
    reply = f"r.{rng.randrange(10**6)}" if rng.random() < rates["reply"] else None
    value = rng.randbytes(rng.choice((0, 1, 7, 8, 9, 100)))
    if rng.random() >= rates["headers"]:
        row = {"subject": subject, "key": None, "value": value, "headers": None, "reply": reply}
        return msg(subject, value, reply=reply), row
    headers = [(rng.choice("ABé"), "v" * rng.randrange(9)) for _ in range(rng.randrange(4))]
    if rng.random() < rates["key"]:
        headers.append(("Liftlog-Key", f"k{rng.randrange(10)}"))
        if rng.random() < rates["tombstone"]:
            headers.append(("Liftlog-Tombstone", "true"))
    row = {
        "subject": subject,
        "key": next((text.encode() for name, text in headers if name == "Liftlog-Key"), None),
        "value": None if ("Liftlog-Tombstone", "true") in headers else value,
        "headers": [{"key": name, "value": text.encode()} for name, text in headers],
        "reply": reply,
    }
    return hmsg(subject, value, *headers, reply=reply), row


def pending(twin: ModuleType, wires: list[bytes], **settings: Any) -> Any:
    target = builder(twin, **settings)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    for i, wire in enumerate(wires):
        intake.feed(wire, 1_700_000_000_000_000 + i % 7 - 3)
    assert target.record_count == len(wires)
    return target.take()


@pytest.mark.parametrize("seed", range(40))
def test_a_composed_batch_is_what_the_codec_and_arrow_write(twin: ModuleType, seed: int) -> None:
    rng = random.Random(seed)
    rates = {name: rng.choice((0.0, 0.1, 0.5, 1.0)) for name in ("reply", "headers", "key", "tombstone")}
    count = rng.choice((1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 300))
    wires, expected = zip(*(random_message(rng, rates) for _ in range(count)), strict=True)
    batch = pending(twin, list(wires))
    message = batch.compose(**POSITION, group_index=2, group_count=5, decision=(1 << 127) + 3)
    rows = decode_batch(message)
    header = read_header(message)
    assert batch.record_count == count
    assert rows.drop_columns(["offset", "timestamp"]).to_pylist() == list(expected)
    assert rows.column("offset").to_pylist() == list(range(41, 41 + count))
    assert header.max_timestamp_us == batch.max_timestamp_us == max(rows.column("timestamp").cast("int64").to_pylist())
    rebuilt = pa.RecordBatch.from_pylist(rows.to_pylist(), schema=SCHEMA)
    assert message == encode_batch(rebuilt, header)
    assert message == by_arrow(rebuilt, header)


def by_arrow(rows: pa.RecordBatch, header: BatchHeader) -> bytes:
    """The message as pyarrow's stream writer writes it, with our metadata."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(rows, custom_metadata={b"liftlog": header.value()})
    return bytes(sink.getvalue().to_pybytes()[len(SCHEMA_BYTES) : -len(END_OF_STREAM)])


def test_every_header_field_is_in_its_place(twin: ModuleType) -> None:
    batch = pending(twin, [msg("a", b"x"), msg("b", b"y")])
    message = batch.compose(
        first_offset=2**62 - 1, leader_epoch=2**32 - 1, high_watermark=2**63 - 1, group_index=7, group_count=2**32 - 1,
        decision=2**128 - 1,
    )  # fmt: skip
    crc = int(message[CRC_AT : CRC_AT + 8], 16)
    assert verify_batch(message) == BatchHeader(
        first_offset=2**62 - 1, last_offset=2**62, leader_epoch=2**32 - 1, high_watermark=2**63 - 1,
        max_timestamp_us=1_700_000_000_000_000 - 2, group_index=7, group_count=2**32 - 1, decision=2**128 - 1, crc=crc,
    )  # fmt: skip
    assert message[VALUE_AT : VALUE_AT + VALUE_BYTES].isascii()


def test_timestamps_before_1970_are_kept(twin: ModuleType) -> None:
    target = builder(twin)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    intake.feed(msg("a"), -5)
    intake.feed(msg("a"), -9)
    message = target.take().compose(**POSITION)
    assert read_header(message).max_timestamp_us == -5
    assert decode_batch(message).column("timestamp").cast("int64").to_pylist() == [-5, -9]


def test_composing_twice_gives_the_same_and_another_offset_another_batch(twin: ModuleType) -> None:
    batch = pending(twin, [msg("a", b"x")])
    first = batch.compose(**POSITION)
    assert first == batch.compose(**POSITION)
    moved = batch.compose(**{**POSITION, "first_offset": 100})
    assert decode_batch(moved).column("offset").to_pylist() == [100]


def test_an_empty_batch_cannot_be_composed(twin: ModuleType) -> None:
    batch = builder(twin).take()
    assert (batch.record_count, batch.byte_count, batch.awaited_count) == (0, 0, 0)
    assert batch.acks(0) == b""
    assert batch.errors(503, 10077, "x") == b""
    with pytest.raises(ValueError, match="at least one record"):
        batch.compose(**POSITION)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_offset": -1},
        {"first_offset": 1 << 62},
        {"high_watermark": -1},
        {"decision": -1},
        {"decision": 1 << 128},
        {"leader_epoch": 1 << 32},
        {"leader_epoch": -1},
        {"group_index": 1 << 32},
        {"group_count": -1},
    ],
)
def test_a_number_that_does_not_fit_its_field_is_refused(twin: ModuleType, wrong: dict[str, int]) -> None:
    batch = pending(twin, [msg("a", b"x")])
    with pytest.raises(ValueError, match=next(iter(wrong))):
        batch.compose(**{**POSITION, **wrong})


def test_a_batch_counts_its_records_bytes_and_awaited(twin: ModuleType) -> None:
    wires = [msg("ab", b"123", reply="r.1"), hmsg("c", b"4", ("Liftlog-Key", "k1"), ("X", "yz")), msg("d", b"")]
    batch = pending(twin, wires)
    assert (batch.stream, batch.partition, batch.record_count, batch.awaited_count) == ("orders", 0, 3, 1)
    headers = len("Liftlog-Key") + len("k1") + len("X") + len("yz")
    assert batch.byte_count == (2 + 3 + 3) + (1 + 1 + 2 + headers) + 1
