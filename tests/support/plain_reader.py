"""A reader of partitions written from docs/reference/storage.md alone, as somebody would write it in another language.

Nothing of liftlog and no Arrow library is used (compressed buffers need a decompressor, which is handed in). It is the
test of the document: what it could not know from there belongs there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA_BYTES = 568
END_MARKER = bytes.fromhex("FFFFFFFF00000000")
VALUE_AT, VALUE_DIGITS = 88, 176
FIELDS = (
    ("format_version", 4),
    ("flags", 4),
    ("first_offset", 16),
    ("last_offset", 16),
    ("leader_epoch", 8),
    ("high_watermark", 16),
    ("max_timestamp_us", 16),
    ("producer_id", 16),
    ("producer_epoch", 8),
    ("sequence", 16),
    ("group_index", 8),
    ("group_count", 8),
    ("decision", 32),
    ("crc", 8),
)
Decompress = Callable[[str, bytes, int], bytes]
"""Codec (`lz4` or `zstd`), compressed bytes, length when decompressed."""


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Castagnoli, reflected: as in iSCSI, ext4, SSE 4.2."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class Damaged(Exception):
    """The bytes are not those that were written."""


@dataclass
class Batch:
    """One batch message: where it stands, the header's fields, the rows."""

    position: int
    length: int
    header: dict[str, int]
    rows: list[dict[str, Any]]


def read_segment(data: bytes, decompress: Decompress | None = None) -> Iterator[Batch]:
    """The batches of a segment file. Raises Damaged."""
    if len(data) < SCHEMA_BYTES:
        raise Damaged("no schema")
    at = SCHEMA_BYTES
    while at < len(data):
        if data[at : at + 8] == END_MARKER:
            if at + 8 != len(data):
                raise Damaged("bytes behind the end marker")
            return
        if not data[at:].strip(b"\0"):
            return  # the room of an open segment
        batch = read_batch(data, at, decompress)
        yield batch
        at += batch.length


def read_batch(data: bytes, at: int, decompress: Decompress | None = None) -> Batch:
    if data[at : at + 4] != b"\xff\xff\xff\xff":
        raise Damaged(f"no batch at {at}")
    (metadata_length,) = struct.unpack_from("<i", data, at + 4)
    header_bytes = 8 + metadata_length
    if header_bytes not in (888, 904):
        raise Damaged(f"a header of {header_bytes} bytes")
    (body_length,) = struct.unpack_from("<q", data, at + 48)
    length = header_bytes + body_length
    message = data[at : at + length]
    if body_length < 0 or body_length % 8 or len(message) < length:
        raise Damaged("it ends early")
    header, place = {}, VALUE_AT
    for name, digits in FIELDS:
        header[name] = int(message[place : place + digits], 16)
        place += digits
    if header["max_timestamp_us"] >= 1 << 63:
        header["max_timestamp_us"] -= 1 << 64
    if crc32c(message[: place - 8] + b"00000000" + message[place:]) != header["crc"]:
        raise Damaged(f"wrong CRC at {at}")
    if header["format_version"] != 1:
        raise Damaged(f"format version {header['format_version']}")
    (row_count,) = struct.unpack_from("<q", message, 304)
    places = struct.unpack_from("<50q", message, 320)
    buffers = [
        message[header_bytes + start : header_bytes + start + size]
        for start, size in zip(places[::2], places[1::2], strict=True)
    ]
    if header_bytes == 904:
        codec = {0: "lz4", 1: "zstd"}[message[900]]
        buffers = [_decompressed(buffer, codec, decompress) for buffer in buffers]
    return Batch(at, length, header, _rows(row_count, buffers))


def _decompressed(buffer: bytes, codec: str, decompress: Decompress | None) -> bytes:
    if not buffer:
        return buffer
    (size,) = struct.unpack_from("<q", buffer)
    if size == -1:
        return buffer[8:]
    assert decompress is not None, "a compressed batch"
    return decompress(codec, buffer[8:], size)


def _rows(count: int, buffers: list[bytes]) -> list[dict[str, Any]]:
    """Rows by the table of buffers in the document."""
    headers = _lists(count, buffers[13], buffers[14])
    entry_count = max((end for bounds in headers if bounds for end in [bounds[1]]), default=0)
    names = _strings(entry_count, *buffers[16:19])
    values = _strings(entry_count, *buffers[19:22])
    columns = {
        "offset": list(struct.unpack_from(f"<{count}q", buffers[1])),
        "timestamp": list(struct.unpack_from(f"<{count}q", buffers[3])),
        "subject": _texts(_strings(count, *buffers[4:7])),
        "key": _strings(count, *buffers[7:10]),
        "value": _strings(count, *buffers[10:13]),
        "headers": [
            bounds and [(names[i].decode(), values[i]) for i in range(*bounds)]  # type: ignore[union-attr]
            for bounds in headers
        ],
        "reply": _texts(_strings(count, *buffers[22:25])),
    }
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def _is_valid(validity: bytes, i: int) -> bool:
    return not validity or bool(validity[i // 8] >> i % 8 & 1)


def _strings(count: int, validity: bytes, offsets: bytes, data: bytes) -> list[bytes | None]:
    at = struct.unpack_from(f"<{count + 1}i", offsets) if offsets else (0,)
    return [data[at[i] : at[i + 1]] if _is_valid(validity, i) else None for i in range(count)]


def _texts(values: list[bytes | None]) -> list[str | None]:
    return [None if value is None else value.decode() for value in values]


def _lists(count: int, validity: bytes, offsets: bytes) -> list[tuple[int, int] | None]:
    at = struct.unpack_from(f"<{count + 1}i", offsets) if offsets else (0,)
    return [(at[i], at[i + 1]) if _is_valid(validity, i) else None for i in range(count)]


def read_index(data: bytes) -> tuple[list[tuple[int, int, int, int, int]], bool]:
    """Entries of an index file, and whether it is that of a sealed segment. Raises Damaged."""
    entries = [struct.unpack_from("<qqqII", data, at) for at in range(0, len(data) // 32 * 32, 32)]
    if len(data) >= 32 and data[-32:-24] == b"LIFTINDX":
        _, version, crc, count, end = struct.unpack("<8sIIqq", data[-32:])
        entries = entries[:-1]
        if (version, count) != (1, len(entries)) or crc != crc32c(data[:-32]):
            raise Damaged("the index")
        last = entries[-1] if entries else (0, SCHEMA_BYTES, 0, 0, 0)
        if end != last[1] + last[3]:
            raise Damaged("the end in the index")
        return entries, True
    return entries, False


def read_small_file(path: Path) -> dict[str, Any]:
    """`checkpoint`, `epochs`, `compaction`. Raises Damaged."""
    text, _, digits = path.read_bytes().rstrip(b"\n").rpartition(b" ")
    if b"%08x" % crc32c(text) != digits:
        raise Damaged(str(path))
    found: dict[str, Any] = json.loads(text)
    return found


def read_state(data: bytes) -> tuple[int, dict[str, bytes]]:
    """Offset and sections of a `state-<offset>` file. Raises Damaged."""
    magic, version, count, offset = struct.unpack_from("<8sIIQ", data)
    (crc,) = struct.unpack("<I", data[-4:])
    if (magic, version) != (b"liftlogS", 1) or crc != crc32c(data[:-4]):
        raise Damaged("the state file")
    heads = [struct.unpack_from("<16sQ", data, 24 + 24 * i) for i in range(count)]
    at, sections = 24 + 24 * count, {}
    for name, size in heads:
        sections[name.rstrip(b"\0").decode("ascii")] = data[at : at + size]
        at += size
    return offset, sections
