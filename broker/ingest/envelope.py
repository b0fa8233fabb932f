"""Liftbridge's envelope: a message with key, headers and an address for its ack, in the payload of a NATS message.

    0   b9 0e 43 b4    the cookie
    4   0              version
    5   8, or 12       where the message begins
    6   flags          bit 0: a CRC-32C of the message stands before it, 4 bytes, big endian
    7   0              type: a message that is published (1: an ack)
    8   message        protobuf, `Message` of liftbridge-api

What is anything else is no envelope, and its bytes are the value of a plain record, as in Liftbridge. An ack goes to
the inbox that the envelope names, in an envelope of type 1, without a CRC: `Ack` of liftbridge-api.

E1  The message is taken as Go's protobuf takes it: of a field that is repeated the last counts; unknown fields, known
    ones of another wire type, and groups are passed over; texts are UTF-8. Headers are a map: one that stands twice is
    kept twice, as a record may.
E2  A header that begins before byte 8, or ends behind the payload, is none. (Liftbridge reads its own header as a
    message then, or ends.)

Source: liftbridge, server/protocol/envelope.go; liftbridge-api, api.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

COOKIE: Final = b"\xb9\x0e\x43\xb4"
HEADER_BYTES: Final = 8
HEADER_WITH_CRC_BYTES: Final = 12
HAS_CRC: Final = 1
VERSION: Final = 0
PUBLISH: Final = 0
ACK: Final = 1
ACK_HEADER: Final = COOKIE + bytes([VERSION, HEADER_BYTES, 0, ACK])
GROUPS_DEPTH_MAX: Final = 100
"""Of groups in a message. (Go's limit is 10,000; no client of Liftbridge writes one.)"""
HEADERS_MAX: Final = 32_767
"""Liftbridge's own log has room for no more."""
FIELD_NUMBER_MAX: Final = (1 << 29) - 1

OFFSET: Final = 1
KEY: Final = 2
VALUE: Final = 3
HEADERS: Final = 9
ACK_INBOX: Final = 10
CORRELATION_ID: Final = 11
ACK_POLICY: Final = 12
TEXTS: Final = frozenset({5, 7, 8, ACK_INBOX, CORRELATION_ID})
"""Fields that are UTF-8: stream, subject and reply too, which mean nothing here."""
HEADER_NAME: Final = 1
HEADER_VALUE: Final = 2

OK: Final = 0
UNKNOWN: Final = 1
INCORRECT_OFFSET: Final = 2
TOO_LARGE: Final = 3
ENCRYPTION: Final = 4
"""Errors of an ack. UNKNOWN is never sent: go-liftbridge's `UnmarshalAck` drops the error, so an ack that says only
that something went wrong would pass for one of a record. Liftbridge is silent then, too, and publishers ask again."""

VARINT: Final = 0
EIGHT_BYTES: Final = 1
BYTES: Final = 2
GROUP: Final = 3
GROUP_END: Final = 4
FOUR_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is in one.

    Attributes:
        key: Empty: none, which Liftbridge's messages cannot tell apart.
        headers: In order.
        ack_policy: A number of Liftbridge's `AckPolicy`, or any other.
        offset: That the record is to get (`rules.R11`).
    """

    key: bytes = b""
    value: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    ack_inbox: bytes = b""
    correlation_id: bytes = b""
    ack_policy: int = 0
    offset: int = 0


def open_envelope(payload: bytes) -> Envelope | None:
    """What is in a payload; None: it is no envelope."""
    if len(payload) < HEADER_BYTES or not payload.startswith(COOKIE):
        return None
    version, header_bytes, flags, kind = payload[4:HEADER_BYTES]
    if version != VERSION or kind != PUBLISH or not HEADER_BYTES <= header_bytes <= len(payload):
        return None
    message = payload[header_bytes:]
    if flags & HAS_CRC and (
        header_bytes != HEADER_WITH_CRC_BYTES
        or crc32c(message) != int.from_bytes(payload[HEADER_BYTES:HEADER_WITH_CRC_BYTES], "big")
    ):
        return None
    try:
        return _read_message(message)
    except _Malformed:
        return None


def encode_ack(
    *,
    stream: bytes,
    partition_subject: bytes,
    subject: bytes,
    inbox: bytes,
    correlation_id: bytes,
    policy: int,
    offset: int,
    received_us: int,
    committed_us: int,
    error: int,
) -> bytes:
    """An ack in its envelope. A field that is empty or 0 is left out, as in all of protobuf.

    Args:
        policy: As `Envelope` has it.
        offset, committed_us: 0, too, with an error.
    """
    signed = policy - (1 << 32) if policy >> 31 else policy
    fields: tuple[bytes | int, ...] = (
        *(stream, partition_subject, subject, offset, inbox, correlation_id),
        *(signed % (1 << 64), received_us * 1000, committed_us * 1000, error),
    )
    return ACK_HEADER + b"".join(_field(number, value) for number, value in enumerate(fields, 1) if value)


def is_publishable(subject: bytes) -> bool:
    """Whether a message may be published on a subject: it has no wildcard, and nothing that would end its line."""
    tokens = subject.split(b".")
    return all(tokens) and not {b"*", b">"} & {*tokens} and all(byte > 0x20 and byte != 0x7F for byte in subject)


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _encode_varint(number << 3) + _encode_varint(value)
    return _encode_varint(number << 3 | BYTES) + _encode_varint(len(value)) + value


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


class _Malformed(Exception):
    pass


def _read_message(message: bytes) -> Envelope:
    found: dict[int, bytes] = {}
    headers = []
    ack_policy = offset = 0
    for number, value in _fields(message):
        if number == ACK_POLICY and isinstance(value, int):
            ack_policy = value & 0xFFFFFFFF
        elif number == OFFSET and isinstance(value, int):
            offset = value - (1 << 64) if value >> 63 else value
        elif isinstance(value, int):
            continue
        elif number == HEADERS:
            headers.append(_read_header(value))
            if len(headers) > HEADERS_MAX:
                raise _Malformed
        else:
            if number in TEXTS:
                _check_text(value)
            found[number] = value
    return Envelope(
        key=found.get(KEY, b""),
        value=found.get(VALUE, b""),
        headers=tuple(headers),
        ack_inbox=found.get(ACK_INBOX, b""),
        correlation_id=found.get(CORRELATION_ID, b""),
        ack_policy=ack_policy,
        offset=offset,
    )


def _read_header(entry: bytes) -> tuple[bytes, bytes]:
    name = text = b""
    for number, value in _fields(entry):
        if isinstance(value, int):
            continue
        if number == HEADER_NAME:
            _check_text(value)
            name = value
        elif number == HEADER_VALUE:
            text = value
    return name, text


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields that are numbers or bytes, and in no group. Raises _Malformed."""
    at = 0
    groups: list[int] = []
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number <= FIELD_NUMBER_MAX:
            raise _Malformed
        value: int | bytes | None = None
        if kind == VARINT:
            value, at = _varint(message, at)
        elif kind == BYTES:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        elif kind == EIGHT_BYTES:
            at += 8
        elif kind == FOUR_BYTES:
            at += 4
        elif kind == GROUP and len(groups) < GROUPS_DEPTH_MAX:
            groups.append(number)
        elif kind != GROUP_END or not groups or groups.pop() != number:
            raise _Malformed
        if at > len(message):
            raise _Malformed
        if value is not None and not groups:
            yield number, value
    if groups:
        raise _Malformed


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of at most 64 bits, and where it ends. Raises _Malformed."""
    value = 0
    for shift in range(0, 70, 7):
        if at == len(message):
            raise _Malformed
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise _Malformed
            return value, at
    raise _Malformed


def _check_text(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise _Malformed from None
