"""What a connection is read into: two blocks of memory, in turns.

asyncio's own streams copy each byte twice on its way to whoever reads: into the stream's buffer, and out of it. Here
the socket writes into one block while what the other holds is parsed where it lies.

W1  What `take` has handed out is not written to before the next `take`.
W2  A block that is full stops the reading: the kernel and the server hold what follows.
W3  What had come before the end, or before an error, is handed out first.
"""

from __future__ import annotations

import asyncio


class Inbox(asyncio.BufferedProtocol):
    """Takes over the receiving half of a connection from asyncio's streams; `streams` keeps the sending half.

    Args:
        transport: Of the connection; its protocol is to be set to this by the caller.
        streams: The protocol that it had, whose writer goes on to be used.
        block_bytes: Of each of the two blocks; at most so much is handed out at once.
    """

    def __init__(self, transport: asyncio.Transport, streams: asyncio.StreamReaderProtocol, block_bytes: int) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._streams = streams
        self._filling = memoryview(bytearray(block_bytes))
        self._resting = memoryview(bytearray(block_bytes))
        self._filled = 0
        self._taker: asyncio.Future[memoryview] | None = None
        self._error: Exception | None = None
        self._is_ended = False

    async def take(self) -> memoryview:
        """What has come since the last call, waiting for some; empty at the end. Good until the next call (W1).

        Raises:
            OSError: the connection was lost.
        """
        if self._filled:
            was_full = self._filled == len(self._filling)
            taken = self._hand_out()
            if was_full:
                self._transport.resume_reading()
            return taken
        if self._error is not None:
            raise self._error
        if self._is_ended:
            return self._filling[:0]
        self._taker = self._loop.create_future()
        try:
            return await self._taker
        finally:
            self._taker = None

    def _hand_out(self) -> memoryview:
        taken = self._filling[: self._filled]
        self._filling, self._resting, self._filled = self._resting, self._filling, 0
        return taken

    def at_end(self) -> bool:
        """Whether the server has ended the connection, and nothing is left to be taken."""
        return self._is_ended and not self._filled

    # -- called by the loop --------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._filling[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(self._hand_out())
        elif self._filled == len(self._filling):
            self._transport.pause_reading()

    def eof_received(self) -> bool | None:
        self._ends(None)
        return self._streams.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ends(exc)
        self._streams.connection_lost(exc)

    def _ends(self, error: Exception | None) -> None:
        self._error, self._is_ended = error, True
        if self._taker is not None and not self._taker.done():
            if error is not None:
                self._taker.set_exception(error)
            else:
                self._taker.set_result(self._filling[:0])

    def pause_writing(self) -> None:
        self._streams.pause_writing()

    def resume_writing(self) -> None:
        self._streams.resume_writing()
