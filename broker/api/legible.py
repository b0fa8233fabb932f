"""Cells of a record as JSON that people read: what the HTTP API's lines and `liftlog tail --json` have in common.

Bytes stand as text where they are UTF-8, else as {"base64": "..."}; a time as ISO 8601 in UTC.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def iso_time(time_us: int) -> str | int:
    """ISO 8601 in UTC with microseconds; the number itself where the year is not 1 to 9999."""
    try:
        moment = _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return time_us
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def readable(value: bytes | None) -> str | dict[str, str] | None:
    """Bytes as text if they are UTF-8, else {"base64": ...}."""
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}


def readable_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch, each as a JSON object, in the order of its columns."""
    for row in plain_rows(batch):
        headers = row["headers"]
        row["headers"] = headers and [[pair["key"], readable(pair["value"])] for pair in headers]
        row["key"], row["value"] = readable(row["key"]), readable(row["value"])
        row["timestamp"] = iso_time(row["timestamp"])
        yield row


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch, the timestamp as microseconds since 1970 (any int64 is legal)."""
    at = batch.schema.get_field_index("timestamp")
    rows: list[dict[str, Any]] = batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64())).to_pylist()
    return rows
