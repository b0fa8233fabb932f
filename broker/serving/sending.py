"""Stored bytes to a socket without a copy in Python: one `sendfile` per range of a read plan.

The head of an answer (HTTP headers and schema bytes) and its tail (the end-of-stream marker) go through
aiohttp's writer, the ranges past it, straight from the page cache. `loop.sendfile` waits until what the
transport has buffered is gone, so the order holds. Under TLS it copies in chunks instead.

Small answers are cheaper in one write: a tail poll is one `pread` and one `send`.

D1  What was announced as Content-Length is sent exactly, or the connection is cut: a reader takes
    nothing for complete that is not. (It checks the end marker, too.)
D2  A reader that takes less than `PIECE_BYTES` in `STALLED_S` is cut: its files stay open meanwhile, so
    their space stays used.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from broker.storage.read import FileRange

SMALL_BYTES_MAX: Final = 64 << 10
PIECE_BYTES: Final = 16 << 20
STALLED_S: Final = 600.0


class AnswerCut(Exception):
    """The announced bytes cannot be sent; the connection has to be cut (D1)."""


async def send_ranges(request: web.Request, ranges: Sequence[FileRange]) -> None:
    """Send the ranges in order. The answer's head was written before.

    Raises:
        ConnectionError: the client went away.
        AnswerCut: a file is shorter than the plan says or cannot be read, or the reader stands still.
    """
    for part in ranges:
        with io.FileIO(part.fd, closefd=False) as file:
            at, end = part.position, part.position + part.length
            while at < end:
                at += await _send_piece(request, file, at, min(PIECE_BYTES, end - at), part.path)


async def _send_piece(request: web.Request, file: io.FileIO, position: int, length: int, path: str) -> int:
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the client went away")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(STALLED_S):
            sent = await loop.sendfile(transport, file, position, length, fallback=True)
    except TimeoutError:
        raise AnswerCut(f"{path}: the reader took less than {length} bytes in {STALLED_S:.0f} s") from None
    except ConnectionError:
        raise
    except RuntimeError as error:  # what asyncio says when the transport closed under it
        raise ConnectionResetError(str(error)) from error
    except OSError as error:
        raise AnswerCut(f"{path}: {length} bytes at {position}: {error}") from error
    if sent != length:
        raise AnswerCut(f"{path}: only {sent} of {length} bytes are there at {position}")
    return sent


def abort(request: web.Request) -> None:
    """Close the connection at once: what was announced does not come."""
    if request.transport is not None:
        request.transport.abort()


def read_ranges(ranges: Sequence[FileRange]) -> bytes:
    """The ranges' bytes, for answers of at most `SMALL_BYTES_MAX`.

    Raises:
        AnswerCut: a file is shorter than the plan says.
    """
    parts = []
    for part in ranges:
        data = os.pread(part.fd, part.length, part.position)
        if len(data) != part.length:
            raise AnswerCut(f"{part.path}: only {len(data)} of {part.length} bytes are there at {part.position}")
        parts.append(data)
    return b"".join(parts)
