"""Arrow streams as a client writes them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def nothing_reserved(byte_count: int) -> None:
    """Any amount is there."""


def stream_of(batches: pa.RecordBatch | pa.Table | Sequence[pa.RecordBatch], **options: Any) -> bytes:
    """One Arrow stream; `options` as `pa.ipc.IpcWriteOptions` takes them."""
    if isinstance(batches, pa.Table):
        batches = batches.to_batches() or [pa.RecordBatch.from_pylist([], schema=batches.schema)]
    elif isinstance(batches, pa.RecordBatch):
        batches = [batches]
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def values(count: int, size: int = 10) -> pa.RecordBatch:
    """`count` rows of one column, `value`, each beginning with its number."""
    return pa.record_batch({"value": pa.array([b"%d" % i + b"." * (size - len(b"%d" % i)) for i in range(count)])})
