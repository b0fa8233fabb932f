"""What a client's side of HTTP/2 may take of this broker, and its frames before h2 has them.

Apart from multiplexed.py, as it needs no h2.
"""

from __future__ import annotations

import struct
from typing import Final

STREAMS_MAX: Final = 256
TASKS_MAX: Final = 2 * STREAMS_MAX
HEADERS_BYTES_MAX: Final = 16 << 10
STREAM_WINDOW_BYTES: Final = 1 << 20
CONNECTION_WINDOW_BYTES: Final = 8 << 20
FRAME_BYTES_MAX: Final = 16 << 10
"""Of one frame. A head in several of them may have 64, which is h2's."""
SETTINGS_MAX: Final = 64
"""Different ones that a client has made, known to HTTP/2 or not."""
SENT_TABLE_BYTES: Final = 4_096
HELD_BYTES_MAX: Final = 256 << 20
BUFFER_BYTES: Final = 1 << 20
"""What is to be sent and the system has not taken: beyond it writers wait, and nothing is read (`multiplexed.H4`)."""

READ_BYTES: Final = 32 << 10
GOODBYE: Final = b"\x00\x00\x08\x07" + bytes(5)
"""The head of a GOAWAY. Behind it come the last stream that was taken, and the code, of 4 bytes each."""
_PREFACE_BYTES: Final = 24
_HEAD: Final = struct.Struct(">IBI")
"""Of a frame: its length (3 bytes) and kind (1), flags, stream."""
_DATA: Final = 0
_GOAWAY: Final = 7
_END_STREAM: Final = 1


class Frames:
    """Frames as they come by, for h2: whole, and those of data joined.

    A client of gRPC sends each message as a frame of its own, and each frame costs h2 some 10 us, however small it is.
    Neighbours of one stream are one frame to h2: the same bytes, the same windows.

    F1  A frame's length is judged by its head (`multiplexed.H1`).
    F2  Data is joined up to `FRAME_BYTES_MAX`, without padding, and nothing behind the end of its stream.
    F3  A client's GOAWAY is kept from h2, which would send nothing any more (`multiplexed.H7`).

    Attributes:
        has_gone_away: Whether the client has said so.
    """

    def __init__(self) -> None:
        self._preface_left = _PREFACE_BYTES
        self._rest = bytearray()
        self.has_gone_away = False

    def feed(self, data: bytes) -> bytes:
        """What h2 has to be given now. Raises ValueError: a frame is too long."""
        found: list[bytes | bytearray] = []
        if self._preface_left:  # h2 looks at each byte of it
            found.append(data[: self._preface_left])
            data = data[self._preface_left :]
            self._preface_left -= len(found[0])
        rest, at = self._rest, 0
        rest += data
        joined: list[bytearray] = []
        length = of_stream = 0
        while len(rest) - at >= _HEAD.size:
            sized, flags, stream = _HEAD.unpack_from(rest, at)
            size = sized >> 8
            if size > FRAME_BYTES_MAX:  # F1
                raise ValueError(f"a frame of {size} bytes")
            start, end = at + _HEAD.size, at + _HEAD.size + size
            if end > len(rest):
                break
            kind = sized & 0xFF
            is_plain = kind == _DATA and not flags & ~_END_STREAM
            if joined and (not is_plain or stream != of_stream or length + size > FRAME_BYTES_MAX):
                found += (_HEAD.pack(length << 8, 0, of_stream), *joined)
                joined, length = [], 0
            if kind == _GOAWAY:  # F3
                self.has_gone_away = True
            elif not is_plain:
                found.append(rest[at:end])
            else:
                of_stream = stream
                length += size
                joined.append(rest[start:end])
                if flags:  # F2
                    found += (_HEAD.pack(length << 8, flags, of_stream), *joined)
                    joined, length = [], 0
            at = end
        if joined:
            found += (_HEAD.pack(length << 8, 0, of_stream), *joined)
        del rest[:at]
        return b"".join(found)
