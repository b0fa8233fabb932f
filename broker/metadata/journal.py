"""Catalog commands as lines of a file.

    <crc32c of the rest, 8 hex digits> <JSON>\\n

The first line is a snapshot and came with the file, by an atomic replacement: it is never torn. The others are
appended and fsynced before the command's result is told to anyone; refused commands are not among them. A last line
that is torn was never answered and is dropped; a bad first line, or one before the last, means that the disk lost
something: refused. (An empty catalog in its place would begin the numbers of leader epochs and producers again, under
logs that hold them already.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crc32c import crc32c

from broker.api.errors import CorruptLog
from broker.api.plain import parse_json


def encode_line(value: Mapping[str, Any]) -> bytes:
    """One command (or snapshot) as a line."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def decode_lines(data: bytes, *, where: str) -> tuple[list[dict[str, Any]], int]:
    """The values of all whole lines, and how many bytes they take.

    Raises:
        CorruptLog: a damaged line that is the first, or not the last.
    """
    values: list[dict[str, Any]] = []
    at = 0
    if not data:
        raise CorruptLog(f"{where}: empty, a catalog always begins with a snapshot")
    while at < len(data):
        end = data.find(b"\n", at)
        line = data[at : end if end >= 0 else len(data)]
        value = _decode(line) if end >= 0 else None
        if value is None:
            if end >= 0 and end + 1 < len(data):
                raise CorruptLog(f"{where}: damaged line at byte {at}, with more after it")
            if at == 0:
                raise CorruptLog(f"{where}: damaged line at byte 0: the snapshot of the whole catalog")
            break
        values.append(value)
        at = end + 1
    return values, at


def _decode(line: bytes) -> dict[str, Any] | None:
    digits, _, text = line.partition(b" ")
    if digits != b"%08x" % crc32c(text):
        return None
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
