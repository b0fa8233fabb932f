"""Events of `__activity` as clients of Liftbridge take them: protobuf, `ActivityStreamEvent` of liftbridge-api.

In the log they are JSON, for all others (docs/adr/0246). What has not the form of an event is handed out as it is.

    id 1, op 2, and as a message in the field op + 3:
    CREATE_STREAM 0, PAUSE_STREAM 2, RESUME_STREAM 3    stream 1, partitions 2
    DELETE_STREAM 1                                     stream 1
    SET_STREAM_READONLY 4                               stream 1, partitions 2, readonly 3
    JOIN_CONSUMER_GROUP 5                               group 1, consumer 2, streams 3
    LEAVE_CONSUMER_GROUP 6                              group 1, consumer 2, expired 3
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

_OPS: Final[Mapping[str, tuple[int, tuple[str, ...]]]] = {
    "create_stream": (0, ("name", "partitions")),
    "delete_stream": (1, ("name",)),
    "pause_stream": (2, ("name", "partitions")),
    "resume_stream": (3, ("name", "partitions")),
    "set_stream_read_only": (4, ("name", "partitions", "read_only")),
    "join_group": (5, ("group", "consumer", "streams")),
    "leave_group": (6, ("group", "consumer", "expired")),
}
"""Number of the operation, and its fields in the order of their numbers, from 1."""


def as_liftbridge_has_it(value: bytes | None) -> bytes | None:
    """The value of a record of the stream."""
    try:
        event: Any = json.loads(value or b"")
        op, names = _OPS[event["op"]]
        inner = b"".join(_field(number, event[name]) for number, name in enumerate(names, 1))
        return _field(1, event["id"]) + _field(2, op) + _bytes(op + 3, inner)
    except (ValueError, KeyError, TypeError, AttributeError):
        return value


def _field(number: int, value: Any) -> bytes:
    """A field; nothing, if it has its default."""
    if isinstance(value, str):
        return _bytes(number, value.encode()) if value else b""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value) if value else b""
    if all(isinstance(each, int) for each in value):  # packed
        return _bytes(number, b"".join(map(_varint, value))) if value else b""
    return _joined(number, value)


def _joined(number: int, texts: Iterable[str]) -> bytes:
    return b"".join(_bytes(number, each.encode()) for each in texts)


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    if value < 0:
        raise ValueError("no number of an event is negative")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
