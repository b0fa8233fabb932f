"""What a client's side of HTTP/2 may take of this broker, and the lengths of its frames.

Apart from multiplexed.py, as it needs no h2.
"""

from __future__ import annotations

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
_HEAD_BYTES: Final = 9


class Lengths:
    """The lengths of frames, as their heads come by (`multiplexed.H1`)."""

    def __init__(self) -> None:
        self._left, self._head = _PREFACE_BYTES, b""

    def check(self, data: bytes) -> None:
        """Raises ValueError: a frame is too long."""
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            piece = data[at : at + _HEAD_BYTES - len(self._head)]
            self._head += piece
            at += len(piece)
            if len(self._head) == _HEAD_BYTES:
                self._left, self._head = int.from_bytes(self._head[:3]), b""
                if self._left > FRAME_BYTES_MAX:
                    raise ValueError(f"a frame of {self._left} bytes")
