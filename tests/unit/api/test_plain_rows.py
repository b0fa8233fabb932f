"""Batches that are composed without Arrow are byte for byte those that Arrow gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from broker.api.plain_rows import PlainRows, plain_batch
from broker.api.schema import HEADERS_TYPE, rows_of
from broker.serving.payload.rows import ROW_SCHEMA, split, to_rows
from broker.storage.rows import RowBatch

PLACE: dict[str, Any] = {
    "first_offset": 1 << 40,
    "leader_epoch": 3,
    "high_watermark": 7,
    "group_index": 1,
    "group_count": 2,
    "decision": 9,
}
BYTES = st.binary(max_size=20)
ROW = st.tuples(
    st.integers(-(10**15), 10**15), st.text("ab", min_size=1, max_size=9), st.none() | BYTES, st.none() | BYTES
)


def arrow(rows: list[tuple[int, str, bytes | None, bytes | None]]) -> pa.RecordBatch:
    times, subjects, keys, values = zip(*rows, strict=True)
    columns = {
        "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
        "subject": pa.array(subjects, pa.string()),
        "key": pa.array([b"k" if v is None else k for k, v in zip(keys, values, strict=True)], pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    no_limit: Any = {"record_bytes_max": 1 << 20, "decoded_bytes_max": 1 << 30, "reserve": lambda _: None}
    return to_rows([pa.RecordBatch.from_pydict(columns)], subject="s", now_us=1, **no_limit)[0]


@given(rows=st.lists(ROW, min_size=1, max_size=40), data=st.data())
def test_a_slice_is_the_batch_that_arrow_makes_of_it(rows: list[Any], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(first + 1, len(rows)))
    whole = arrow(rows)
    plain = PlainRows.of(whole)
    assert plain is not None
    lengths = np.zeros(stop - first, np.int64)
    (piece,) = split(whole.slice(first, stop - first), lengths, batch_bytes=1 << 20, batch_records=1 << 20)
    expected, found = RowBatch(piece), plain.batch(first, stop)
    assert found.compose(**PLACE) == expected.compose(**PLACE)
    assert (found.record_count, found.max_timestamp_us) == (expected.record_count, expected.max_timestamp_us)
    assert len(found.compose(**PLACE)) <= found.byte_count_max <= len(found.compose(**PLACE)) + 400


@given(entries=st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=9), subject=st.text("ab.", max_size=9))
def test_keys_and_values_are_the_batch_of_their_rows(entries: list[tuple[bytes, bytes]], subject: str) -> None:
    expected = RowBatch(rows_of(entries, subject=subject, timestamp_us=5))
    assert plain_batch(entries, subject=subject, timestamp_us=5).compose(**PLACE) == expected.compose(**PLACE)


def test_rows_with_headers_or_replies_are_left_to_arrow() -> None:
    rows = arrow([(1, "a", None, b"v"), (2, "a", None, b"w")])
    headers = pa.array([None, [("k", b"v")]], HEADERS_TYPE)
    assert PlainRows.of(rows.set_column(4, ROW_SCHEMA.field("headers"), headers)) is None
    assert PlainRows.of(rows.set_column(5, ROW_SCHEMA.field("reply"), pa.array([None, "r"]))) is None
    assert PlainRows.of(rows.slice(0, 0)) is None
