"""Records as subscriptions send them: batches as they are stored become messages, a thousand to a write.

    an answer of `read_records` ──► its batches ──► rows in [offset, end) ──► messages, framed

Rows are written by `_outgoing.pxi`. Protobuf's own library does it where nothing was compiled, and for the activity,
which Liftbridge has in another form.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from broker.api.compiled import load_compiled
from broker.api.proto import liftbridge_pb2 as pb
from broker.api.stream import ACTIVITY_STREAM
from broker.serving.liftbridge.activity import as_liftbridge_has_it
from broker.serving.liftbridge.messages import framed

WRITE_RECORDS: Final = 1_024
_compiled = load_compiled("broker.serving.liftbridge._records")


def encoded(asked: Any, body: bytes, offset: int, end: int | None, *, is_backward: bool = False) -> Iterator[bytes]:
    """The records of an answer in [offset, end), framed, some at a time; from the last to the first, if so wanted."""
    with pa.ipc.open_stream(pa.BufferReader(body)) as reader:
        for batch in reversed(list(reader)) if is_backward else reader:
            yield from _encoded_batch(asked, batch, offset, end, is_backward)


def _encoded_batch(
    asked: Any, batch: pa.RecordBatch, offset: int, end: int | None, is_backward: bool
) -> Iterator[bytes]:
    offsets = _numbers(batch.column("offset"))
    rows = range(bisect_left(offsets, offset), len(offsets) if end is None else bisect_left(offsets, end))
    stored = _stored(asked, batch) if rows else None
    while rows:
        part, rows = (
            (rows[-WRITE_RECORDS:], rows[:-WRITE_RECORDS])
            if is_backward
            else (rows[:WRITE_RECORDS], rows[WRITE_RECORDS:])
        )
        if stored is None:
            found = list(_messages(asked, batch.slice(part.start, len(part))))
            yield framed(reversed(found) if is_backward else found)
        else:
            yield stored.framed(part.start, part.stop, is_backward)


def _stored(asked: Any, batch: pa.RecordBatch) -> Any | None:
    """Rows for the compiled module; None: they are none for it."""
    if _compiled is None or asked.stream == ACTIVITY_STREAM or any(column.offset for column in batch.columns):
        return None
    headers, entries = batch.column("headers"), None
    if headers.null_count < len(headers):
        pairs = headers.values
        if pairs.offset or pairs.null_count:
            return None
        valid, ends = headers.buffers()[:2]
        named, contents = _texts(pairs.field("key")), _texts(pairs.field("value"))
        entries = _compiled.Entries(len(headers), _plain(valid), _ends(ends), named, contents)
    place = pb.Record(stream=asked.stream, partition=asked.partition).SerializeToString()
    texts = (_texts(batch.column(name)) for name in ("key", "value", "subject", "reply"))
    times = _numbers(batch.column("timestamp"))
    return _compiled.Stored(_numbers(batch.column("offset")), times, *texts, entries, place)


def _numbers(column: pa.Array) -> memoryview:
    found: memoryview = _plain(column.buffers()[1]).cast("q")[column.offset : column.offset + len(column)]
    return found


def _texts(column: pa.Array) -> Any:
    assert _compiled is not None
    valid, ends, data = column.buffers()
    return _compiled.Texts(len(column), _plain(valid), _ends(ends), b"" if data is None else _plain(data))


def _ends(buffer: pa.Buffer | None) -> memoryview:
    """Arrow may leave them out where there are no rows."""
    return memoryview(buffer if buffer is not None and buffer.size else bytes(4)).cast("B").cast("i")


def _plain(buffer: pa.Buffer | None) -> Any:
    return None if buffer is None else memoryview(buffer).cast("B")


def _messages(asked: Any, batch: pa.RecordBatch) -> Iterator[bytes]:
    """By protobuf's library."""
    offsets = batch.column("offset").to_pylist()
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    subjects, replies = batch.column("subject").to_pylist(), batch.column("reply").to_pylist()
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    if asked.stream == ACTIVITY_STREAM:
        values = [as_liftbridge_has_it(value) for value in values]
    headers = batch.column("headers")
    given = headers.to_pylist() if headers.null_count < len(headers) else [None] * len(headers)
    for at, time_us, subject, reply, key, value, named in zip(
        offsets, times, subjects, replies, keys, values, given, strict=True
    ):
        record = pb.Record(
            offset=at,
            key=key,
            value=value,
            timestamp=time_us * 1_000,
            stream=asked.stream,
            partition=asked.partition,
            subject=subject,
            reply=reply,
            headers=None if named is None else {each["key"]: each["value"] or b"" for each in named},
        )
        yield record.SerializeToString()
