"""Compressed batches: each buffer of the body by itself, as Arrow's IPC format has it; any reader of Arrow reads them.

    uncompressed  | header 888          | buffer | buffer | ...
    compressed    | header 888, changed | 16 bytes | buffer | buffer | ...

These bytes of the header change, so that all else keeps its place (it is a flatbuffer: tables point at their fields):

    4    int32      896 instead of 880
    280  12 bytes   the record batch's table of fields, two bytes longer, into padding: field `compression` is at 312
    292  int32      12: how far back that table lies
    312  int32      584: how far on the description of the compression lies
    888  8 bytes    that description's table of fields
    896  8 bytes    its content: int32 8; the codec, one byte: 0 LZ4 frame, 1 zstd; zeros

A buffer that is not empty begins with its length when decompressed (int64); -1: it is stored as it was, since
compression made it no shorter.

The broker compresses only batches that it rewrites in the background. Appended batches are not compressed, because
the flush would pay for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Final

import pyarrow as pa

PACKED_HEADER_BYTES: Final = 904
CODEC_AT: Final = 900
CODECS: Final = {"lz4": 0, "zstd": 1}
ZSTD_LEVEL: Final = 3
PLAIN_BODY_BYTES_MAX: Final = 1 << 10
"""Smaller bodies are not worth it, and stay as they are for ever."""
DECODED_BYTES_MAX: Final = 1 << 30
"""A batch that would take more memory is refused before it is decompressed."""

_PLACES_AT: Final = 320
_PLACES: Final = struct.Struct("<50q")
_RAW: Final = struct.pack("<q", -1)


@cache
def packed_template(template: bytes, compression: str) -> bytes:
    """The header of a compressed batch, made of that of an uncompressed one."""
    head = bytearray(template + bytes(PACKED_HEADER_BYTES - len(template)))
    struct.pack_into("<i", head, 4, PACKED_HEADER_BYTES - 8)
    struct.pack_into("<6H", head, 280, 12, 24, 12, 4, 8, 20)
    struct.pack_into("<i", head, 292, 12)
    struct.pack_into("<i", head, 312, 896 - 312)
    struct.pack_into("<4H", head, 888, 8, 8, 4, 5)
    struct.pack_into("<i", head, 896, 8)
    head[CODEC_AT] = CODECS[compression]
    return bytes(head)


def pack(buffers: Sequence[pa.Buffer | None], compression: str) -> list[pa.Buffer | None]:
    """Compress the buffers of a body."""
    codec = pa.Codec("zstd", compression_level=ZSTD_LEVEL) if compression == "zstd" else pa.Codec("lz4")
    packed: list[pa.Buffer | None] = []
    for buffer in buffers:
        if buffer is None or buffer.size == 0:
            packed.append(buffer)
            continue
        data = codec.compress(buffer, asbytes=True)
        whole = struct.pack("<q", buffer.size) + data if len(data) < buffer.size else _RAW + buffer.to_pybytes()
        packed.append(pa.py_buffer(whole))
    return packed


def decoded_bytes(message: bytes | bytearray | memoryview) -> int | None:
    """Length of the buffers of a compressed message when decompressed. None: the message states it wrongly."""
    places = _PLACES.unpack_from(message, _PLACES_AT)
    total = 0
    for position, size in zip(places[::2], places[1::2], strict=True):
        if size == 0:
            continue
        if position < 0 or size < 8 or PACKED_HEADER_BYTES + position + size > len(message):
            return None
        (length,) = struct.unpack_from("<q", message, PACKED_HEADER_BYTES + position)
        if length < -1:
            return None
        total += size - 8 if length == -1 else length
    return total
