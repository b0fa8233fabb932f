"""Control lines of the NATS protocol, as a server sends them to a client.

    MSG  <subject> <sid> [reply] <size>                     HMSG <subject> <sid> [reply] <header size> <size>
    PING · PONG · +OK · -ERR ['text'] · INFO {json}

Fields are separated by any number of spaces and tabs; operations are compared without regard to case.
A line ends in CR LF, which is not part of what is given here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from broker.ingest.rules import HEADER_START

_FIRST_BYTES: Final = frozenset(b"MHPImhpi+-")
_BLANKS: Final = re.compile(rb"[ \t]+")
_NUMBER: Final = re.compile(rb"[0-9]{1,18}")
_WITHOUT_ARGUMENT: Final = {b"PING": "PING", b"PONG": "PONG", b"+OK": "OK"}


@dataclass(frozen=True, slots=True)
class ControlLine:
    """A MSG or HMSG line.

    Attributes:
        reply: b"" for none.
        header_size: None for a MSG.
        size: Header block and payload together.
    """

    subject: bytes
    sid: int
    reply: bytes
    header_size: int | None
    size: int


def begins_operation(first: int) -> bool:
    """Can a control line begin with this byte?"""
    return first in _FIRST_BYTES


def read_control_line(line: bytes, payload_max: int) -> ControlLine | str | None:
    """Read a MSG or HMSG line; None if it is another operation; text: what is wrong with it."""
    operation, *fields = _BLANKS.split(line.rstrip(b" \t"))
    match operation.upper():
        case b"MSG":
            expected, header_fields = 3, 0
        case b"HMSG":
            expected, header_fields = 4, 1
        case _:
            return None
    if len(fields) > 6:
        return "too many fields in a control line"
    if len(fields) not in (expected, expected + 1):
        return "wrong number of fields in a control line"
    if not _NUMBER.fullmatch(fields[1]):
        return "a subscription id that is no number"
    if not _NUMBER.fullmatch(fields[-1]):
        return "a size that is no number"
    size = int(fields[-1])
    if size > payload_max:
        return "a message over payload_max"
    header_size = None
    if header_fields:
        if not _NUMBER.fullmatch(fields[-2]):
            return "a header size that is no number"
        header_size = int(fields[-2])
        if header_size > size:
            return "a header size over the message size"
    reply = fields[2] if len(fields) > expected else b""
    return ControlLine(fields[0], int(fields[1]), reply, header_size, size)


def read_operation(line: bytes) -> tuple[Any, ...] | str:
    """Read any other line as an event for the driver; text: what is wrong with it."""
    operation, *rest = _BLANKS.split(line, maxsplit=1)
    argument = rest[0].rstrip(b" \t") if rest else b""
    name = operation.upper()
    if name in _WITHOUT_ARGUMENT:
        return "an operation that takes no argument has one" if argument else (_WITHOUT_ARGUMENT[name],)
    if name == b"-ERR":
        if len(argument) >= 2 and argument[:1] == argument[-1:] == b"'":
            argument = argument[1:-1]
        return ("ERR", argument.decode("utf-8", "replace"))
    if name == b"INFO":
        return ("INFO", argument)
    return "an unknown operation"


def parse_headers(block: bytes) -> list[tuple[bytes, bytes]] | None:
    r"""The header block of an HMSG as pairs, in order, duplicates kept; None if it is malformed.

        NATS/1.0[ status and text]\r\n      the status is the server's own; it is read past
        name:[spaces]value\r\n              0..n times
        \r\n                                exactly at the end of the block

    Names are kept as they are; of values, leading spaces and tabs are dropped and nothing else, as
    nats-server and nats.go do. A line without a colon or with an empty name makes the block malformed.
    """
    first, found, rest = block.partition(b"\r\n")
    status = first[len(HEADER_START) :]
    if not found or not first.startswith(HEADER_START) or (status and status[:1] not in b" \t"):
        return None
    if not rest.endswith(b"\r\n"):
        return None
    lines = rest[:-2].split(b"\r\n")
    if lines.pop():
        return None
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name:
            return None
        headers.append((name, value.lstrip(b" \t")))
    return headers
