"""Messages that are joined without Arrow are byte for byte the batch that Arrow makes of their rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from broker.api.batch import BatchHeader, decode_batch, encode_batch
from broker.api.compression import PLAIN_BODY_BYTES_MAX
from broker.api.plain_join import joined
from broker.storage.rows import ROW_COLUMNS, RowBatch
from tests.unit.api.test_plain_rows import PLACE, ROW, arrow

ROWS = st.lists(ROW, min_size=1, max_size=9)


def message(rows: pa.RecordBatch, **more: Any) -> memoryview:
    return memoryview(RowBatch(rows).compose(**{**PLACE, **more}))


def in_one(messages: list[memoryview]) -> RowBatch:
    """As Arrow joins them."""
    rows = pa.concat_batches([decode_batch(each) for each in messages])
    return RowBatch(rows.select(ROW_COLUMNS))


@given(parts=st.lists(ROWS, min_size=1, max_size=9))
def test_joined_messages_are_the_batch_that_arrow_makes_of_their_rows(parts: list[list[Any]]) -> None:
    messages = [message(arrow(rows), first_offset=n * 1000) for n, rows in enumerate(parts)]
    found, expected = joined(messages), in_one(messages)
    assert found is not None
    assert found.compose(**PLACE) == expected.compose(**PLACE)
    assert (found.record_count, found.max_timestamp_us) == (expected.record_count, expected.max_timestamp_us)
    assert len(found.compose(**PLACE)) <= found.byte_count_max


def test_what_has_headers_a_reply_or_no_time_is_left_to_arrow() -> None:
    plain = arrow([(1, "a", None, b"x"), (2, "b", b"k", None)])
    others = {
        "headers": pa.array([[("a", b"b")], None], plain.schema.field("headers").type),
        "reply": pa.array(["r", None]),
        "timestamp": pa.array([1, None], plain.schema.field("timestamp").type),
    }
    for name, column in others.items():
        odd = plain.set_column(plain.schema.get_field_index(name), plain.schema.field(name), column)
        assert joined([message(plain), message(odd)]) is None


def test_what_is_compressed_is_left_to_arrow() -> None:
    value = bytes(PLAIN_BODY_BYTES_MAX + 1)
    rows = decode_batch(message(arrow([(1, "a", None, value)])))
    packed = encode_batch(rows, BatchHeader(first_offset=0, last_offset=0), compression="zstd")
    assert joined([memoryview(packed)]) is None
