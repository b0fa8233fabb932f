"""The record schema, and the bytes that stand for it in every segment and every answer.

A segment is `SCHEMA_BYTES`, then record batch messages, then `END_OF_STREAM` once sealed.
An answer over HTTP is the same. The schema message is pinned (`schema.bin`): it is ours,
not whatever the installed pyarrow happens to write, so two brokers with different pyarrow
versions produce equal files and readers may compare bytes.

Format: docs/reference/storage.md. Golden file: tests/golden/format-v1/.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Final

import pyarrow as pa

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(pa.field("item", HEADER_TYPE))

SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("reply", pa.string()),
    ]
)

SCHEMA_BYTES: Final = resources.files(__package__).joinpath("schema.bin").read_bytes()
END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"

assert len(SCHEMA_BYTES) % 8 == 0, "the first batch of a segment must be 8-byte aligned"


def rows_of(entries: Sequence[tuple[bytes, bytes | None]], *, subject: str, timestamp_us: int) -> pa.RecordBatch:
    """Keys and values as rows of the record schema without `offset`, ready to append."""
    n = len(entries)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([timestamp_us] * n, pa.timestamp("us", tz="UTC")),
            pa.array([subject] * n, pa.string()),
            pa.array([key for key, _ in entries], pa.binary()),
            pa.array([value for _, value in entries], pa.binary()),
            pa.nulls(n, HEADERS_TYPE),
            pa.nulls(n, pa.string()),
        ],
        names=["timestamp", "subject", "key", "value", "headers", "reply"],
    )
