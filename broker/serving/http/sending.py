"""Stored bytes to a socket without a copy in Python: one `sendfile` per range of a read plan.

The head of an answer (HTTP headers and schema bytes) and its tail (the end-of-stream marker) go through
aiohttp's writer, the ranges past it, straight from the page cache. `loop.sendfile` waits until what the
transport has buffered is gone, so the order holds. Under TLS, and where a file system has no sendfile, the
bytes are copied in chunks: on the loop what is in the page cache, as waking a thread for a chunk and being
woken by it costs as much as its encryption; in a worker thread what has to come from the disk. (Not by
asyncio's own fallback: cancelled, it leaves a thread behind that reads from a descriptor which is closed by
then, and may be another file's.)

Small answers are cheaper in one write: a tail poll is one `pread` and one `send`.

D1  The bytes that Content-Length announced are sent exactly, or the connection is cut: a reader takes
    nothing for complete that is not. (It checks the end marker, too.)
D2  A reader that takes less than `PIECE_BYTES` in `STALLED_S` is cut: its files stay open meanwhile, so
    their space stays used.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from aiohttp import web

from broker.serving.contract.endpoint import Serving
from broker.storage.disk import disk_errors
from broker.storage.read import FileRange

SMALL_BYTES_MAX: Final = 64 << 10
PIECE_BYTES: Final = 16 << 20
COPY_BYTES: Final = 256 << 10
STALLED_S: Final = 600.0


class AnswerCut(Exception):
    """The announced bytes cannot be sent; the connection has to be cut (D1).

    `is_readers`: because the reader stands still, not because of what is stored.
    """

    def __init__(self, message: str, *, is_readers: bool = False) -> None:
        super().__init__(message)
        self.is_readers = is_readers


async def send_ranges(
    serving: Serving, request: web.Request, response: web.StreamResponse, ranges: Sequence[FileRange]
) -> None:
    """Send the ranges in order. The answer's head was written before.

    Raises:
        ConnectionError: the client went away.
        AnswerCut: a file is shorter than the plan says or cannot be read, or the reader stands still.
    """
    for part in ranges:
        at, end = part.position, part.position + part.length
        while at < end:
            piece = replace(part, position=at, length=min(PIECE_BYTES, end - at))
            try:
                async with asyncio.timeout(STALLED_S):
                    await _send_piece(serving, request, response, piece)
            except TimeoutError:
                raise AnswerCut(
                    f"{part.path}: the reader took less than {piece.length} bytes in {STALLED_S:.0f} s", is_readers=True
                ) from None
            at += piece.length


async def _send_piece(serving: Serving, request: web.Request, response: web.StreamResponse, piece: FileRange) -> None:
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the client went away")
    try:
        if transport.get_extra_info("sslcontext") is None:
            try:
                sent = await _sendfile(transport, piece)
            except asyncio.SendfileNotAvailableError:  # the file system has none
                sent = await _copy(serving, response, piece)
        else:
            sent = await _copy(serving, response, piece)
    except ConnectionError:
        raise
    except OSError as error:
        raise AnswerCut(f"{piece.path}: {piece.length} bytes at {piece.position}: {error}") from error
    if sent != piece.length:
        raise AnswerCut(f"{piece.path}: only {sent} of {piece.length} bytes are there at {piece.position}")


async def _sendfile(transport: asyncio.Transport, piece: FileRange) -> int:
    with io.FileIO(piece.fd, closefd=False) as file:
        try:
            return await asyncio.get_running_loop().sendfile(
                transport, file, piece.position, piece.length, fallback=False
            )
        except asyncio.SendfileNotAvailableError:
            raise
        except RuntimeError as error:  # what asyncio says when the transport closed under it
            raise ConnectionResetError(str(error)) from error


async def _copy(serving: Serving, response: web.StreamResponse, piece: FileRange) -> int:
    """Where there is no sendfile: read, write through TLS."""
    sent = 0
    while sent < piece.length:
        size = min(COPY_BYTES, piece.length - sent)
        place = piece.position + sent
        data = cached(piece.fd, size, place) or await serving.in_worker(os.pread, piece.fd, size, place)
        if not data:
            break
        await response.write(data)
        sent += len(data)
    return sent


def cached(fd: int, size: int, position: int) -> bytearray | bytes:
    """The first of these bytes that are in the page cache. Empty: none, or the file system does not tell.

    It never waits for the disk.
    """
    found = bytearray(size)
    try:
        count = os.preadv(fd, [found], position, os.RWF_NOWAIT)
    except OSError:  # whoever may wait for the disk hears why
        return b""
    del found[count:]
    return found


def abort(request: web.BaseRequest) -> None:
    """Close the connection at once: what was announced does not come."""
    if request.transport is not None:
        request.transport.abort()


def read_ranges(ranges: Sequence[FileRange]) -> bytes:
    """The ranges' bytes, for answers of at most `SMALL_BYTES_MAX`.

    Raises:
        AnswerCut: a file is shorter than the plan says.
        StorageFailed: the disk does not give them.
    """
    parts = []
    for part in ranges:
        data = read_piece(part, part.length, part.position)
        if len(data) != part.length:
            raise AnswerCut(f"{part.path}: only {len(data)} of {part.length} bytes are there at {part.position}")
        parts.append(data)
    return b"".join(parts)


def read_piece(part: FileRange, size: int, position: int) -> bytes:
    """Up to `size` bytes of a range's file. Raises StorageFailed."""
    with disk_errors(f"read {part.path}"):
        return os.pread(part.fd, size, position)
