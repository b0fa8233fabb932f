"""Records that subscriptions send, compiled. Goal: each row in the range is a message once, in its order, and what
protobuf's library reads in it stands in the row. Method: batches by seed, in any range, both ways, by both twins.
"""

from __future__ import annotations

import io
import random
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("google.protobuf", reason="Liftbridge's API needs protobuf: the extra `liftbridge`")

from broker.api.proto import liftbridge_pb2 as pb
from broker.api.schema import HEADERS_TYPE, SCHEMA
from broker.serving.liftbridge import outgoing
from broker.serving.liftbridge.messages import Messages

BYTES = (None, b"", b"k", b"x" * 127, b"y" * 128, b"z" * 20_000)
TEXTS = (None, "", "a", "ü.b", "s" * 300)


def batch_of(chance: random.Random, count: int) -> pa.RecordBatch:
    """Of such rows as a log may have. Offsets have gaps, as of compaction."""
    at, offsets = chance.choice((0, 1, 127, 1 << 40)), list[int]()
    for _ in range(count):
        offsets.append(at)
        at += chance.choice((1, 1, 1, 5))
    names = ("", "a", "ü", "n" * 200)
    pairs = [
        None
        if chance.random() < 0.5
        else [
            {"key": chance.choice(names), "value": chance.choice((None, b"", b"1", bytes(200)))}
            for _ in range(chance.choice((0, 1, 4)))
        ]
        for _ in range(count)
    ]
    has_headers = chance.random() < 0.7
    columns = [
        pa.array(offsets, pa.int64()),
        pa.array(
            [chance.choice((0, 1, 1_764_000_000_000_000, -5)) for _ in range(count)], pa.timestamp("us", tz="UTC")
        ),
        pa.array([chance.choice(TEXTS) or "s" for _ in range(count)], pa.string()),
        pa.array([chance.choice(BYTES) for _ in range(count)], pa.binary()),
        pa.array([chance.choice(BYTES) for _ in range(count)], pa.binary()),
        pa.array(pairs, HEADERS_TYPE) if has_headers else pa.nulls(count, HEADERS_TYPE),
        pa.array([chance.choice(TEXTS) for _ in range(count)], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def body_of(*batches: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def said(row: dict[str, Any], asked: Any) -> Any:
    return pb.Record(
        offset=row["offset"],
        key=row["key"],
        value=row["value"],
        timestamp=row["timestamp"] * 1_000,
        stream=asked.stream,
        partition=asked.partition,
        subject=row["subject"],
        reply=row["reply"],
        headers={each["key"]: each["value"] or b"" for each in row["headers"] or ()},
    )


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    at = batch.schema.get_field_index("timestamp")
    return list(batch.set_column(at, "timestamp", batch.column("timestamp").cast(pa.int64())).to_pylist())


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_each_row_of_a_range_is_its_message(monkeypatch: pytest.MonkeyPatch, seed: int, is_compiled: bool) -> None:
    if not is_compiled:
        monkeypatch.setattr(outgoing, "_compiled", None)
    elif outgoing._compiled is None:
        pytest.skip("no compiler here")
    monkeypatch.setattr(outgoing, "WRITE_RECORDS", 7)
    chance = random.Random(seed)
    asked = pb.Subscribe(stream=chance.choice(("orders", "s" * 200)), partition=chance.choice((0, 1, 300)))
    batches = [batch_of(chance, chance.choice((0, 1, 7, 8, 40))) for _ in range(3)]
    body, rows = body_of(*batches), [row for batch in batches for row in rows_of(batch)]
    for _ in range(10):
        offset = chance.choice(rows)["offset"] + chance.choice((-1, 0, 1)) if rows else 0
        end = chance.choice((None, offset, offset + 3, offset + 1_000))
        for is_backward in (False, True):
            written = list(outgoing.encoded(asked, body, offset, end, is_backward=is_backward))
            found = [[pb.Record.FromString(each) for each in Messages().feed(data)] for data in written]
            assert all(0 < len(part) <= 7 for part in found)
            expected = list[Any]()
            for batch in reversed(batches) if is_backward else batches:
                part = [said(row, asked) for row in rows_of(batch) if is_in(row, offset, end)]
                expected += reversed(part) if is_backward else part
            assert [each for part in found for each in part] == expected


def is_in(row: dict[str, Any], offset: int, end: int | None) -> bool:
    return bool(row["offset"] >= offset and (end is None or row["offset"] < end))


def test_columns_that_contradict_themselves_are_none() -> None:
    compiled = pytest.importorskip("broker.serving.liftbridge._records", reason="no compiler here")

    def ends(*numbers: int) -> memoryview:
        return memoryview(b"".join(each.to_bytes(4, "little", signed=True) for each in numbers)).cast("i")

    for valid, of_rows, data in (
        (None, ends(0, 1), b"ab"),
        (None, ends(0, 2, 1), b"ab"),
        (None, ends(-1, 0, 1), b"ab"),
        (None, ends(0, 1, 3), b"ab"),
        (b"", ends(0, 1, 2), b"ab"),
    ):
        with pytest.raises(ValueError, match="row"):
            compiled.Texts(2, valid, of_rows, data)
    texts = compiled.Texts(2, None, ends(0, 1, 2), b"ab")
    with pytest.raises(ValueError, match="row"):
        compiled.Entries(1, None, ends(0, 3), texts, texts)
    numbers = memoryview(bytes(16)).cast("q")
    stored = compiled.Stored(numbers, numbers, texts, texts, texts, texts, None, b"")
    assert stored.framed(2, 2, False) == b""
    for first, end in ((0, 3), (-1, 1)):
        with pytest.raises(IndexError):
            stored.framed(first, end, False)
