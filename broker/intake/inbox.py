"""Two blocks of memory into which a connection is read, in turns.

asyncio's own streams copy each byte twice on its way to whoever reads: into the stream's buffer, and out of it. Here
the socket writes into one block while what the other holds is parsed where it lies. And while the reader has nothing
to do but wait in `take`, what comes does not wake it (a future, a task's step, another turn of the loop): the loop's
callback passes it to `take_in`, and the reader is woken when that leaves something to it.

    nobody in `take`    socket ─► block ─► the next `take`
    waiting in `take`   socket ─► block ─► take_in ─► done, the reader sleeps on │ not done, or an error: it is woken

W1  Bytes that `take` has handed out stay as they are until the next `take`; those that `take_in` gets, until it
    returns.
W2  A block that is full stops the reading: the kernel and the server hold what follows.
W3  Bytes that came before the end, or before an error, are handed out first.
W4  `take_in` is called only while the reader waits, and not again until it has been woken and waits anew if it was to
    be woken: each byte goes one way, in order, and nothing overtakes what the reader has still to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Inbox(asyncio.BufferedProtocol):
    """Takes over the receiving half of a connection from asyncio's streams; `streams` keeps the sending half.

    Args:
        transport: The connection's; the caller sets its protocol to this.
        streams: The protocol that it had, whose writer goes on to be used.
        block_bytes: Size of each of the two blocks; at most so much is handed out at once.
        take_in: Takes in what comes while `take` waits. False: something is left to do for who waits.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        streams: asyncio.StreamReaderProtocol,
        block_bytes: int,
        take_in: Callable[[memoryview], bool],
    ) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._streams = streams
        self._take_in = take_in
        self._filling = memoryview(bytearray(block_bytes))
        self._resting = memoryview(bytearray(block_bytes))
        self._filled = 0
        self._taker: asyncio.Future[memoryview] | None = None
        self._error: Exception | None = None
        self._is_ended = False

    async def take(self) -> memoryview:
        """Take the bytes that came since the last call, waiting for some; good until the next call (W1).

        Empty at the end, and when `take_in`, which gets what comes from now on, leaves something to do.

        Raises:
            OSError: the connection was lost.
            Exception: what `take_in` raised.
        """
        if self._filled:
            was_full = self._filled == len(self._filling)
            taken = self._filling[: self._filled]
            self._filling, self._resting, self._filled = self._resting, self._filling, 0
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

    def at_end(self) -> bool:
        """Whether the server has ended the connection, and nothing is left to be taken."""
        return self._is_ended and not self._filled

    # -- called by the loop --------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._filling[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._taker is None or self._taker.done():
            self._filled += nbytes
            if self._filled == len(self._filling):
                self._transport.pause_reading()
            return
        try:
            is_done = self._take_in(self._filling[:nbytes])  # nothing else is in it: `take` waits only when it is empty
        except Exception as error:  # the loop would take it for the end of the connection; the reader knows better
            self._taker.set_exception(error)
        else:
            if not is_done:
                self._taker.set_result(self._filling[:0])

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
