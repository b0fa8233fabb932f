"""gRPC's framing: messages in a stream of bytes, each behind five bytes.

    0   1 if it is compressed, which is refused: no codec is announced
    1   its length, big endian, 4 bytes
    5   the message

M1  What is kept of a message that is not whole is bounded by `bytes_max`, which its length is judged by first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from broker.api.compiled import load_compiled
from broker.serving.liftbridge.statuses import Code, StatusError

PREFIX: Final = struct.Struct(">BI")
MESSAGE_BYTES_MAX: Final = 16 << 20
"""Of one message. (A record has 8 MiB at most, if its stream does not say otherwise.)"""

_compiled = load_compiled("broker.serving.liftbridge._records")
M = TypeVar("M", bound=Message)


class Messages:
    """Takes bytes, gives messages."""

    def __init__(self, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._rest = bytearray()

    @property
    def byte_count(self) -> int:
        """Of the message that has begun, so far."""
        return len(self._rest)

    @property
    def is_amid(self) -> bool:
        """Whether a message has begun."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now. Raises StatusError."""
        rest, found, at = self._rest, list[bytes](), 0
        rest += data
        if _compiled is not None:
            found, at = _compiled.whole(rest, self._bytes_max)
        while len(rest) - at >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(rest, at)
            if compressed:
                raise StatusError(Code.UNIMPLEMENTED, "messages are compressed: this broker takes none that are")
            if length > self._bytes_max:
                raise StatusError(Code.INVALID_ARGUMENT, f"a message of {length} bytes: at most {self._bytes_max}")
            end = at + PREFIX.size + length
            if end > len(rest):
                break
            found.append(bytes(rest[at + PREFIX.size : end]))
            at = end
        del rest[:at]
        return found


def framed(messages: Iterable[bytes]) -> bytes:
    """These messages, one behind the other."""
    return b"".join(part for message in messages for part in (PREFIX.pack(0, len(message)), message))


def parsed(cls: type[M], data: bytes) -> M:
    """A message of this kind. Raises StatusError."""
    try:
        found: M = cls.FromString(data)
    except DecodeError:
        raise StatusError(Code.INVALID_ARGUMENT, "the message is none of this call") from None
    return found
