"""The output of a command: a table for people, JSON for programs, notes on stderr.

stdout carries the answer and nothing else, so that it can be piped; what is said along the way goes
to stderr. Text that came from outside (payloads, subjects) is made printable first: a record must
not move somebody's cursor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final

from broker.api.plain import printable

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH: Final = 4_096
"""Columns of a table that no terminal limits: a pipe must not cut values."""


def make_writable() -> None:
    """Let stdout and stderr take any text: what their encoding cannot show stands as an escape, `\\u017e`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def json_text(value: Any) -> str:
    """A JSON value on one line, in ASCII unless stdout is UTF-8: there the escape of a character is not JSON's.

    On a terminal all that it would not print is escaped: JSON itself escapes only some of what moves a cursor.
    """
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(value, ensure_ascii=not is_utf8, default=str)
    if text.isprintable() or not sys.stdout.isatty():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def json_out(value: Any) -> None:
    """One JSON value on one line of stdout."""
    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line on stderr, for the person who waits."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    from rich.console import Console

    file = sys.stderr if stderr else sys.stdout
    if width is None and not file.isatty():
        width = PIPE_WIDTH
    return Console(file=file, highlight=False, markup=False, width=width)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "nothing there") -> None:
    """Rows under a head. Numbers stand right; None is a dash; without rows, `empty` goes to stderr.

    A line that is longer than the terminal is left to it: a value that is cut or folded cannot be copied.
    """
    shown = [tuple(row) for row in rows]
    if not shown:
        note(empty)
        return
    is_number = [all(isinstance(row[i], int | float | None) for row in shown) for i in range(len(columns))]
    lines = [tuple(columns), *(tuple(cell(value) for value in row) for row in shown)]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(columns))]
    for number, line in enumerate(lines):
        padded = [
            " " * (width - _width(text)) + text if right else text + " " * (width - _width(text))
            for text, width, right in zip(line, widths, is_number, strict=True)
        ]
        sys.stdout.write("  ".join(padded).rstrip() + "\n")
        if number == 0:
            sys.stdout.write("  ".join("-" * width for width in widths) + "\n")


def _width(text: str) -> int:
    """Columns of a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def pairs(values: Iterable[tuple[str, Any]]) -> None:
    """Names and values below each other."""
    values = list(values)
    width = max((len(name) for name, _ in values), default=0)
    for name, value in values:
        sys.stdout.write(f"{name:<{width}}  {cell(value)}\n")


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value) or "-"
    return printable(str(value))


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 partition`, `2 partitions`."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def bytes_text(count: int) -> str:
    """A size for people: `1.5 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def age_text(ms: int | None) -> str | None:
    """Milliseconds as people say them: 0s, 1.5s, 12m, 3h, 4d."""
    if ms is None:
        return None
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        if ms >= 2 * size:
            return f"{ms // size}{unit}"
    return f"{ms / 1000:.1f}s" if ms else "0s"


def time_text(ms: int | None) -> str | None:
    """Milliseconds since 1970 as UTC."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
