"""Liftbridge's envelopes for the tests of ingest, written by hand: no protobuf library stands between test and code."""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c

from broker.ingest.envelope import COOKIE

LEADER, ALL, NONE = 0, 1, 2


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def tagged(number: int, value: bytes | int) -> bytes:
    """A field of a protobuf message: bytes, or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def header(name: bytes, value: bytes) -> bytes:
    return tagged(9, tagged(1, name) + tagged(2, value))


def message(
    value: bytes = b"",
    *,
    key: bytes = b"",
    headers: Sequence[tuple[bytes, bytes]] = (),
    inbox: bytes = b"",
    correlation: bytes = b"",
    policy: int = LEADER,
) -> bytes:
    """What is in an envelope, as Liftbridge's clients write it: by field, and nothing that is empty."""
    return (
        (tagged(2, key) if key else b"")
        + (tagged(3, value) if value else b"")
        + b"".join(header(*pair) for pair in headers)
        + (tagged(10, inbox) if inbox else b"")
        + (tagged(11, correlation) if correlation else b"")
        + (tagged(12, policy) if policy else b"")
    )


def envelope(inner: bytes, *, version: int = 0, header_size: int = 8, flags: int = 0, kind: int = 0) -> bytes:
    return COOKIE + bytes([version, header_size, flags, kind]) + inner


def checked(inner: bytes, *, crc: int | None = None) -> bytes:
    """With its CRC-32C, or with another one."""
    crc = crc32c(inner) if crc is None else crc
    return envelope(crc.to_bytes(4, "big") + inner, header_size=12, flags=1)
