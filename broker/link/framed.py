"""Frames over one connection, plain or TLS: one thread reads, any thread writes.

    read ◄── a frame at a time, into memory that is used again        say ───► at once, if the socket takes it
                                                                      write ─► waits, `STALLED_S` at most

M1  A socket never blocks in a call: who has to wait polls. So OpenSSL, which has no lock of its own for a connection,
    is held by one thread at a time, and a reader that waits keeps no writer out.
M2  A frame is written whole, or the connection ends. What the socket has not taken of it goes before the next one.
M3  Who takes nothing for `STALLED_S` is cut, also by the system where a machine is gone (TCP_USER_TIMEOUT): what was
    sent and is not confirmed waits no longer. That is longer than a disk hangs that comes back: a follower reads
    nothing meanwhile. Poll says that a socket takes something once much of its buffer is free, so it is tried, too.
M4  The data of a frame that was read hold until the next one is read. Their memory is kept, up to `KEPT_BYTES_MAX`.
M6  A frame that may be made anew is made once it is its turn: what was made before, and comes later, would be old.
M7  Nobody is in a call with a descriptor that is being closed: it may be another file's by then.
M8  Under TLS a frame is one write, if it is not large: each write is a record of its own at least, which the other side
    reads by itself. And who waits for a frame polls before it reads, where OpenSSL has nothing left: a read in vain
    costs an exception.
M5  The last frame arrives: this side stops to send, and reads on for `LINGER_S` until the other one ends. A socket
    that is closed with something unread in it takes back what it has sent.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from broker.link.codec import PREAMBLE, BadFrame, LinkFrame
from broker.link.tls import PIECE_BYTES, shut

STALLED_S: Final = 30.0
TRY_S: Final = 1.0
LINGER_S: Final = 1.0
BUFFER_BYTES: Final = 64 << 10
KEPT_BYTES_MAX: Final = 4 << 20
WAITS_FOR_READ: Final = (BlockingIOError, ssl.SSLWantReadError)


class FrameTooLarge(BadFrame):
    """The other side says more than it may. What comes next is not read."""


class Framed:
    """See the module.

    Args:
        connection: It is this object's from now on; the handshake of TLS is over.

    Attributes:
        coming: So many bytes have come since the last frame was whole.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with suppress(AttributeError, OSError):  # Linux has the second one (M3)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STALLED_S * 1_000))
        self._socket = connection
        self._fd = connection.fileno()
        self._one_at_a_time = threading.Lock() if isinstance(connection, ssl.SSLSocket) else None  # M1
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._begin = self._end = 0  # what has come and was not read, in the buffer
        self.coming = 0
        self._kept = memoryview(b"")
        self._writing = threading.Lock()
        self._ending = threading.Lock()  # within the one above
        self._is_closed = False
        self._rest: list[memoryview] = []

    # -- reading (one thread) ------------------------------------------------------------------------------------

    def read(self, bytes_max: int, until_s: float | None = None, *, whole_s: float | None = None) -> LinkFrame | None:
        """The next frame, of at most so many bytes; None: the other side has ended.

        Args:
            until_s: When it has to be there, by `time.monotonic`.
            whole_s: So soon after it has begun.

        Raises:
            FrameTooLarge: it says that it is larger.
            TimeoutError: it is not there by then.
            OSError: the connection is broken, or ends amid a frame.
        """
        head_bytes, head_crc, data_bytes = self._preamble(until_s)
        if head_bytes < 0:
            return None
        if head_bytes + data_bytes > bytes_max:
            raise FrameTooLarge(f"a frame of {head_bytes + data_bytes} bytes, {bytes_max} are the limit")
        if whole_s is not None:
            until_s = time.monotonic() + whole_s
        head = bytes(self._exactly(head_bytes, until_s))
        frame = LinkFrame(head, head_crc, self._exactly(data_bytes, until_s) if data_bytes else b"")
        self.coming = 0
        return frame

    def _preamble(self, until_s: float | None) -> tuple[int, int, int]:
        while self._end - self._begin < PREAMBLE.size:
            if not self._fill(until_s):
                if self._end == self._begin:
                    return -1, 0, 0
                raise ConnectionError("it ended amid a frame")
        found = PREAMBLE.unpack_from(self._buffer, self._begin)
        self._begin += PREAMBLE.size
        return found

    def take(self, count: int, until_s: float) -> bytes:
        """So many bytes that are no frame, or fewer: the other side has ended. Raises OSError."""
        while self._end - self._begin < count and self._fill(until_s):
            pass
        begin, self._begin = self._begin, min(self._begin + count, self._end)
        return bytes(self._buffer[begin : self._begin])

    def _exactly(self, count: int, until_s: float | None) -> memoryview:
        if count <= BUFFER_BYTES:
            while self._end - self._begin < count:
                if not self._fill(until_s, count):
                    raise ConnectionError("it ended amid a frame")
            begin, self._begin = self._begin, self._begin + count
            return self._buffer[begin : begin + count]
        into = self._memory(count)
        at = self._end - self._begin
        into[:at] = self._buffer[self._begin : self._end]
        self._begin = self._end = 0
        while at < count:
            got = self._receive(into[at:], until_s)
            if not got:
                raise ConnectionError("it ended amid a frame")
            at += got
        return into

    def _memory(self, count: int) -> memoryview:
        """M4."""
        if count > KEPT_BYTES_MAX:
            return memoryview(bytearray(count))
        if len(self._kept) < count:
            self._kept = memoryview(bytearray(min(KEPT_BYTES_MAX, 2 * count)))
        return self._kept[:count]

    def _fill(self, until_s: float | None, wanted: int = PREAMBLE.size) -> int:
        """Read what is there, so that `wanted` bytes have room. Returns how much; 0: the other side has ended."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._begin + wanted > BUFFER_BYTES:
            left = bytes(self._buffer[self._begin : self._end])
            self._buffer[: len(left)] = left
            self._begin, self._end = 0, len(left)
        got = self._receive(self._buffer[self._end :], until_s)
        self._end += got
        return got

    def _receive(self, into: memoryview, until_s: float | None) -> int:
        if isinstance(self._socket, ssl.SSLSocket) and not self._guarded(self._socket.pending):  # M8
            self._await(select.POLLIN, until_s)
        while True:
            try:
                got = self._guarded(lambda: self._socket.recv_into(into))
                self.coming += got
                return got
            except WAITS_FOR_READ:
                self._await(select.POLLIN, until_s)
            except ssl.SSLWantWriteError:
                self._await(select.POLLOUT, until_s)

    def _await(self, events: int, until_s: float | None) -> None:
        """Raises TimeoutError."""
        if not self._is_ready(events, until_s):
            raise TimeoutError("nothing more came")

    def _guarded(self, act: Callable[[], int]) -> int:
        """M1."""
        if self._one_at_a_time is None:
            return act()
        with self._one_at_a_time:
            return act()

    def _is_ready(self, events: int, until_s: float | None) -> bool:
        """Wait, until then at most."""
        poller = select.poll()
        poller.register(self._fd, events)
        return bool(poller.poll(None if until_s is None else max(0.0, until_s - time.monotonic()) * 1_000))

    # -- writing (any thread) ------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Write bytes that are no frame. Raises OSError (M3)."""
        with self._writing:
            self._rest.append(memoryview(data))
            self._push(None, is_whole=True)

    def write(self, frame: LinkFrame, until_s: float | None = None) -> None:
        """Write a frame; wait for whoever writes one. Raises OSError (M3)."""
        with self._writing:
            self._push(until_s, is_whole=True)
            self._rest = self._parts(frame)
            self._push(until_s, is_whole=True)

    def write_made(self, make: Callable[[], LinkFrame | None]) -> None:
        """Write what is made when its turn has come (M6); None: nothing. Raises OSError (M3)."""
        with self._writing:
            self._push(None, is_whole=True)
            frame = make()
            if frame is not None:
                self._rest = self._parts(frame)
                self._push(None, is_whole=True)

    def say(self, make: Callable[[], LinkFrame | None]) -> bool:
        """Likewise, without waiting. False: somebody else writes, or not all of it was taken, and `write_made` has to
        be called. Raises OSError."""
        if not self._writing.acquire(blocking=False):
            return False
        try:
            if self._is_closed:
                raise ConnectionError("it is closed")
            if self._rest:
                return False
            frame = make()
            if frame is not None:
                self._rest = self._parts(frame)
                self._push(None, is_whole=False)
            return not self._rest
        finally:
            self._writing.release()

    def _push(self, until_s: float | None, *, is_whole: bool) -> None:
        """With the lock held: write the rest, or what is taken at once."""
        rest = self._rest
        due_s = until_s or time.monotonic() + STALLED_S
        while rest:
            try:
                sent = self._guarded(self._send)
            except (*WAITS_FOR_READ, ssl.SSLWantWriteError) as error:
                if not is_whole:
                    break
                if (now_s := time.monotonic()) >= due_s:
                    raise TimeoutError(f"it took nothing for {STALLED_S} s") from None
                events = select.POLLIN if isinstance(error, ssl.SSLWantReadError) else select.POLLOUT
                self._is_ready(events, min(due_s, now_s + TRY_S))
                continue
            due_s = until_s or time.monotonic() + STALLED_S
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if sent:
                rest[0] = rest[0][sent:]

    def _send(self) -> int:
        if self._one_at_a_time is not None:
            return self._socket.send(self._rest[0][:PIECE_BYTES])
        return self._socket.sendmsg(self._rest)

    def _parts(self, frame: LinkFrame) -> list[memoryview]:
        parts = [memoryview(frame.preamble() + frame.head)]
        if frame.data:
            parts.append(memoryview(frame.data))
            if self._one_at_a_time is not None and len(parts[0]) + len(parts[1]) <= PIECE_BYTES:  # M8
                return [memoryview(b"".join(parts))]
        return parts

    # -- the end -------------------------------------------------------------------------------------------------

    def last(self, frame: LinkFrame) -> None:
        """Write the last frame, and send no more. The other side hears so, if somebody reads on until it ends (M5).
        Raises OSError."""
        self.write(frame, time.monotonic() + LINGER_S)
        socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def drain(self) -> None:
        """Read on, whatever it is, until the other side ends, or `end`. Raises OSError."""
        while self._receive(self._buffer, None):
            pass

    def farewell(self, frame: LinkFrame) -> None:
        """Say the last frame, and see that it arrives (M5). For a thread that does both."""
        with suppress(OSError):
            self.last(frame)
            linger(self._socket)

    def end(self) -> None:
        """End it, from any thread: who reads or writes hears of it. Does not wait."""
        with self._ending:
            if not self._is_closed:
                shut(self._socket)

    def close(self) -> None:
        """Once nobody reads or waits to write (M7)."""
        with self._writing, self._ending:
            self._is_closed = True
            self._socket.close()


def linger(connection: socket.socket) -> None:
    """Send no more, and read on until the other side ends, or for `LINGER_S` (M5). Raises OSError."""
    until_s = time.monotonic() + LINGER_S
    socket.socket.shutdown(connection, socket.SHUT_WR)
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    while (left_s := until_s - time.monotonic()) > 0 and poller.poll(left_s * 1_000):
        if not socket.socket.recv(connection, BUFFER_BYTES, socket.MSG_DONTWAIT):
            return
