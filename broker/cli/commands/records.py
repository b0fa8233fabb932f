"""Records as lines for people. As JSON: `broker.api.legible`."""

from __future__ import annotations

from typing import Any, Final

from broker.api.legible import iso_time
from broker.api.plain import printable

COLUMNS: Final = ("partition", "offset", "timestamp", "subject", "key", "value")


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
