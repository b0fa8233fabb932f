"""Records as text: a line for people, or a JSON object per line in the form of the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from broker.api.legible import iso_time, readable
from broker.cli.output import json_text, printable

COLUMNS: Final = ("partition", "offset", "timestamp", "subject", "key", "value")


def json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    """The rows of a batch as JSON objects. Bytes stand as text where they are UTF-8, else as {"base64": …}."""
    for row in rows(batch):
        headers = row.get("headers")
        row["headers"] = headers and [[pair["key"], readable(pair["value"])] for pair in headers]
        row["key"] = readable(row["key"])
        row["value"] = readable(row["value"])
        row["timestamp"] = str(iso_time(row["timestamp"]))
        yield json_text(row)


def rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch as dictionaries, the timestamp as microseconds since 1970 (any int64 is legal)."""
    times = batch.schema.get_field_index("timestamp")
    batch = batch.set_column(times, "timestamp", batch.column(times).cast(pa.int64()))
    yield from batch.to_pylist()


class Lines:
    """Rows as lines with aligned columns.

    Args:
        width: Columns of the terminal, to cut the value at; None: cut nothing.
        with_partition: The stream has several.
    """

    def __init__(self, *, width: int | None, with_partition: bool) -> None:
        self._width = width
        self._columns = [name for name in COLUMNS if name != "partition" or with_partition]
        self._widths = {"partition": 9, "offset": 8, "timestamp": 23, "subject": 12, "key": 4, "value": 0}

    def head(self) -> str:
        return self._line({name: name for name in self._columns})

    def line(self, row: dict[str, Any]) -> str:
        return self._line(
            {
                "partition": str(row.get("partition", "")),
                "offset": str(row["offset"]),
                "timestamp": str(iso_time(row["timestamp"]))[:23].replace("T", " "),
                "subject": printable(row["subject"]),
                "key": value_text(row["key"]),
                "value": value_text(row["value"]),
            }
        )

    def _line(self, cells: dict[str, str]) -> str:
        texts = []
        for name in self._columns:
            self._widths[name] = max(self._widths[name], min(len(cells[name]), 40)) if name != "value" else 0
            is_number = name in ("partition", "offset")
            texts.append(cells[name].rjust(self._widths[name]) if is_number else cells[name].ljust(self._widths[name]))
        line = "  ".join(texts)
        if self._width is not None and len(line) > self._width:
            line = line[: max(1, self._width - 1)] + "…"
        return line


def value_text(value: bytes | None) -> str:
    """Bytes for people: text where they are UTF-8, else hexadecimal; a dash for null."""
    if value is None:
        return "-"
    try:
        return printable(value.decode("utf-8"))
    except UnicodeDecodeError:
        return "0x" + value.hex()
