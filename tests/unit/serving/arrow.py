"""Arrow streams as a client writes them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
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


def not_utf8() -> Iterator[tuple[str, bytes]]:
    """Streams with text in their schema that is not UTF-8, each at another place, by its name."""
    word = "QZQ"
    zoned = pa.timestamp("ms", word)
    entry = pa.struct([(word, pa.string()), ("value", pa.binary())])
    columns: dict[str, tuple[str, pa.Array]] = {
        "column": (word, pa.array([b"v"])),
        "zone": ("timestamp", pa.array([1], zoned)),
        "zone-of-value": ("value", pa.array([1], zoned)),
        "zone-deep": ("headers", pa.array([[[1]]], pa.list_(pa.list_(zoned)))),
        "zone-of-dictionary": ("key", pa.array([1], zoned).dictionary_encode()),
        "headers": ("headers", pa.array([[{word: "a", "value": b"b"}]], pa.list_(entry))),
        "headers-large": ("headers", pa.array([[{word: "a", "value": b"b"}]], pa.large_list(entry))),
        "headers-null": ("headers", pa.nulls(1, pa.list_(entry))),
        "item": ("headers", pa.nulls(1, pa.list_(pa.field(word, pa.struct([("key", pa.string())]))))),
        "struct": ("value", pa.nulls(1, pa.struct([(word, pa.int64())]))),
        "map": ("headers", pa.nulls(1, pa.map_(pa.string(), pa.struct([(word, pa.int64())])))),
    }
    for name, (column, array) in columns.items():
        others = {} if column in ("value", "key") else {"value": pa.array([b"v"], pa.binary())}
        data = stream_of(pa.record_batch({**others, column: array}))
        assert word.encode() in data
        yield name, data.replace(word.encode(), b"Q\x80Q")
