"""HTTP/1.1 exchanges over pooled keep-alive connections. Nothing of the API is known here.

    Pool.exchange(address, Request)  ->  Exchange: status, headers, body read in place
                                            close(): back into the pool, or closed if the body was not read out

Invariants
C1  An idle connection is used by one thread at a time.
C2  A connection made before a fork is never used in the child: the child's pools start empty, and an
    exchange that the parent had begun fails there as a broken connection.
C3  A failure says whether the request may have been received (`sent`), by this try or by one before it that nobody
    answered. An answer says the same of the tries before it (`is_repeat`).
C4  An answer is whole or a failure. Its head must say how long it is: one that ends early looks like a whole one.
C5  An answer that trickles is given up: its head has twice the time that the socket may be silent, a body that is read
    as a whole has `BODY_TIMEOUT_S`. (A reader that takes a body bit by bit has its own patience.)
C6  In haste, a broker that stands still is given up after some 1.5 s (silence.py), however long it may be silent while
    it lives. It may have received the request.
C7  Over TLS an answer may have come that the kernel does not show: OpenSSL has read it. So it is asked before a wait.
"""

from __future__ import annotations

import http.client
import io
import math
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from broker.api.errors import InvalidName, Unauthenticated, Unavailable
from broker.client.http.address import Address
from broker.client.http.forks import renew_after_fork
from broker.client.http.interrupt import Interrupt
from broker.client.http.silence import CONNECT_S, await_bytes
from broker.client.http.tls import why_refused
from broker.client.http.token import TokenFile

CONNECT_TIMEOUT_S: Final = 5.0
IDLE_PER_ADDRESS_MAX: Final = 8
IDLE_S_MAX: Final = 50.0
"""Brokers end idle connections after a minute or more; one that dies under a request leaves open what became of it."""

BODY_TIMEOUT_S: Final = 120.0
TIME_IS_UP: Final = "the time of the call is up"

READING: Final = ("GET", "HEAD")
"""Methods that change nothing, so that nobody asks whether they were carried out."""

Body = bytes | bytearray | memoryview | Any  # Any: a pyarrow buffer


def quoted(part: str) -> str:
    """A part of a path. Raises InvalidName: UTF-8 does not have it, as half of a character."""
    try:
        return quote(part, safe="")
    except UnicodeEncodeError:
        raise InvalidName(f"name {part!r}: is not Unicode") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to a broker.

    Attributes:
        target: Path and query, quoted.
        timeout_s: Longest silence of the socket, in either direction.
        is_idempotent: It may be sent again at once if a kept connection turns out to be dead.
        interrupt: Ends the wait from another thread.
        until_s: The monotonic time at which nobody waits for it any more.
    """

    method: str = "GET"
    target: str
    timeout_s: float
    body: Body | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_idempotent: bool = True
    interrupt: Interrupt | None = None
    until_s: float = math.inf

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more: that says nothing of a broker."""
        return self.is_interrupted or time.monotonic() >= self.until_s

    def silence_s(self) -> float:
        """How long the socket may be silent from now on. Raises TimeoutError: the time is up."""
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(TIME_IS_UP)
        return min(self.timeout_s, left_s)

    @property
    def is_interrupted(self) -> bool:
        """Whether somebody has ended the wait."""
        return self.interrupt is not None and self.interrupt.is_set


class Exchange:
    """A request that was answered. Its body is read once, front to back, by one thread.

    Attributes:
        address: The broker that answered.
        status: HTTP status.
        headers: Headers of the answer; the case of names does not matter.
        length: Bytes of body still to come; None: it comes in chunks.
        is_repeat: A try before this one may have been received (C3).
    """

    def __init__(
        self,
        pool: Pool,
        address: Address,
        connection: http.client.HTTPConnection,
        response: _Response,
        interrupt: Interrupt | None,
        *,
        is_reusable: bool,
        is_repeat: bool,
        patience_s: float | None,
    ) -> None:
        self._pool = pool
        self._connection = connection
        self._response = response
        self._is_reusable = is_reusable and not response.will_close
        self._interrupt = interrupt
        self._pid = os.getpid()
        self._direct: socket.socket | None = None
        self._patience_s = patience_s  # in haste (C6)
        self._is_closed = False
        self.address = address
        self.status = response.status
        self.headers = response.headers
        self.is_repeat = is_repeat

    @property
    def length(self) -> int | None:
        return self._response.length

    def readinto(self, view: memoryview) -> int:
        """Read up to `len(view)` bytes of the body in place, by one `recv` at most.

        Returns:
            n >= 1 bytes; 0 when the body is over or the connection ended before it was.
        Raises:
            Unavailable: the connection broke or nothing came within the time-out.
        """
        response = self._response
        if response.closed or response.length == 0:
            return 0
        if os.getpid() != self._pid:
            raise unavailable(self.address, "the connection belongs to the process before the fork", sent=True)  # C2
        try:
            if response.length is None:  # in chunks
                return response.readinto(view)
            view = view[: response.length]
            if self._direct is not None:
                if self._patience_s is not None:
                    await_bytes(self._direct, self.address, patience_s=self._patience_s)
                count = self._direct.recv_into(view)
            else:
                count = response.fp.readinto1(view)
                if len(view) > 2 * io.DEFAULT_BUFFER_SIZE:  # what came with the head is taken now, and nothing kept
                    self._direct = self._connection.sock
        except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: closed by another thread
            raise unavailable(self.address, error, sent=True) from error
        response.length -= count
        return count

    def read_all(self, bytes_max: int, *, by_s: float = math.inf) -> bytes:
        """The whole body, cut at `bytes_max` bytes. Raises as `readinto`, also at the monotonic time `by_s`."""
        body = bytearray()
        piece = memoryview(bytearray(1 << 16))
        until_s = min(time.monotonic() + BODY_TIMEOUT_S, by_s)
        while len(body) < bytes_max and (count := self.readinto(piece[: bytes_max - len(body)])):
            body += piece[:count]
            if time.monotonic() > until_s:  # C5
                long = f"the answer took longer than {BODY_TIMEOUT_S:g} s"
                raise unavailable(self.address, TIME_IS_UP if until_s == by_s else long, sent=True)
        if self.length and len(body) < bytes_max:
            raise unavailable(self.address, f"the answer ended {self.length} bytes early", sent=True)
        return bytes(body)

    def close(self, *, keep: bool = True) -> None:
        """Give the connection back if the body was read to its end; close it otherwise. Idempotent.

        Args:
            keep: False: close it in any case. An owner that the collector of cycles may end must say False: the
                collector ends the socket as well, in any order and in any thread, even one that is in the pool.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._interrupt is not None:
            self._interrupt.guard(None)
        response = self._response
        keep = keep and self._is_reusable and response.length == 0 and os.getpid() == self._pid
        keep = keep and not response.has_more()
        response.close()
        if keep:
            self._pool.give(self.address, self._connection)
        else:
            self._connection.close()


class Pool:
    """Connections by address. Thread-safe and fork-safe.

    Args:
        idle_max: Number of idle connections that are kept for each address.
        connect_timeout_s: Longest time of a connection attempt.
        tls: For addresses with `is_tls`, which need it.
        token: Shown with each request, where it may be (`token.W1`).
    """

    def __init__(
        self,
        *,
        idle_max: int = IDLE_PER_ADDRESS_MAX,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        token: TokenFile | None = None,
    ) -> None:
        self._token = token
        self._idle_max = idle_max
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._lock = threading.Lock()
        self._idle: dict[Address, list[tuple[http.client.HTTPConnection, float]]] = {}  # with when it was given back
        self._is_closed = False
        renew_after_fork(self)

    @property
    def shown(self) -> str:
        """By what brokers know this client, in words for whom they do not."""
        return "the certificate of this client" if self._token is None else str(self._token)

    def exchange(self, address: Address, request: Request, *, in_haste: bool = False) -> Exchange:
        """Send a request and read the head of its answer.

        Args:
            in_haste: There is somebody else to ask (C6).
        Raises:
            Unavailable: nobody answered; fields `address`, `sent` (C3).
        """
        if self._token is None:
            return self._exchange(address, request, in_haste=in_haste)
        shown = self._token.header_for(address)
        found = self._exchange(address, replace(request, headers={**request.headers, **shown}), in_haste=in_haste)
        is_refused = found.status == Unauthenticated.status and request.is_idempotent and not request.is_interrupted
        if not (is_refused and self._token.is_renewed(shown)):
            return found
        found.close()  # `token.W5`
        headers = {**request.headers, **self._token.header_for(address)}
        try:
            again = self._exchange(address, replace(request, headers=headers), in_haste=in_haste)
        except Unavailable as error:
            error.fields["sent"] = True  # C3, as below
            raise
        again.is_repeat = True  # a token that ended amid a call leaves open what became of it
        return again

    def _exchange(self, address: Address, request: Request, *, in_haste: bool) -> Exchange:
        may_be_received = False
        while True:
            connection, is_reused = self._take(address)
            try:
                response, is_whole = self._try(connection, address, request, in_haste)
                return Exchange(
                    self,
                    address,
                    connection,
                    response,
                    request.interrupt,
                    is_reusable=is_whole,
                    is_repeat=may_be_received,
                    patience_s=request.timeout_s if in_haste else None,
                )
            except Unavailable as error:
                connection.close()
                if request.interrupt is not None:
                    request.interrupt.guard(None)
                may_be_received = error.fields["sent"] = may_be_received or error.sent
                # A dead kept connection says nothing of the broker: once more, on a new one in the end.
                if not (is_reused and (request.is_idempotent or not may_be_received) and not error.timed_out):
                    raise
                if request.is_interrupted:
                    raise

    def _try(
        self, connection: http.client.HTTPConnection, address: Address, request: Request, in_haste: bool
    ) -> tuple[_Response, bool]:
        """The head of the answer, and whether the request was sent as a whole."""
        is_new = connection.sock is None
        try:
            silence_s = request.silence_s()
            if is_new:
                most_s = min(self._connect_timeout_s, CONNECT_S) if in_haste else self._connect_timeout_s
                connection.timeout = min(most_s, silence_s)
                connection.connect()
                silence_s = request.silence_s()
        except OSError as error:
            raise unavailable(address, error, sent=False, is_connecting=True) from error
        except ValueError as error:  # a host that no certificate can be for
            raise unavailable(address, error, sent=False) from error
        sock: socket.socket = connection.sock
        if request.interrupt is not None:
            request.interrupt.guard(sock)
        sock.settimeout(silence_s)
        is_whole = True
        try:
            try:
                connection.request(request.method, request.target, body=request.body, headers=dict(request.headers))
            except (BrokenPipeError, ConnectionResetError):
                if request.body is None:
                    raise
                is_whole = False  # refused before all of it was sent: the answer may be there and say why
            if in_haste:
                await_bytes(sock, address, patience_s=silence_s)
            by_s = min(time.monotonic() + 2 * request.timeout_s, request.until_s)
            connection.response_class = partial(_Response, until_s=by_s)  # type: ignore[assignment]  # it makes one
            response = connection.getresponse()
            assert isinstance(response, _Response)
        except (OSError, http.client.HTTPException) as error:
            cause = error.with_traceback(None)  # `http.client` has the bytes that it sends in a variable: `token.W4`
            raise unavailable(address, error, sent=True, is_first=is_new) from cause
        if response.length is None and not response.chunked:  # C4
            response.close()
            raise unavailable(address, "the answer was cut short, or does not say how long it is", sent=True)
        return response, is_whole

    def _take(self, address: Address) -> tuple[http.client.HTTPConnection, bool]:
        while True:
            with self._lock:
                idle = self._idle.get(address)
                kept = idle.pop() if idle else None
            if kept is None:
                return self._made(address), False
            connection, since_s = kept
            if time.monotonic() - since_s < IDLE_S_MAX and _is_quiet(connection):
                return connection, True
            connection.close()

    def _made(self, address: Address) -> http.client.HTTPConnection:
        if not address.is_tls:
            return http.client.HTTPConnection(address.host, address.port, timeout=self._connect_timeout_s)
        assert self._tls is not None, "a pool without TLS"
        return http.client.HTTPSConnection(
            address.host, address.port, timeout=self._connect_timeout_s, context=self._tls
        )

    def give(self, address: Address, connection: http.client.HTTPConnection) -> None:
        """Keep a connection whose last answer was read to its end."""
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if not self._is_closed and len(idle) < self._idle_max and connection.sock is not None:
                idle.append((connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        """Close what is idle; exchanges under way end by themselves and are not kept. Idempotent."""
        with self._lock:
            self._is_closed = True
            connections = [connection for idle in self._idle.values() for connection, _ in idle]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread may have held it
        for idle in self._idle.values():
            for connection, _ in idle:
                connection.close()  # the child's copy of the descriptor; the parent's connection lives on
        self._idle = {}


class _Response(http.client.HTTPResponse):
    """An answer whose head has to be there at `until_s` (C5)."""

    def __init__(self, sock: socket.socket, *, until_s: float, **options: Any) -> None:
        super().__init__(sock, **options)
        self._raw = _Timed(self.fp.detach(), until_s)
        self.fp = io.BufferedReader(self._raw)

    def begin(self) -> None:
        super().begin()
        self._raw.until_s = float("inf")

    def has_more(self) -> bool:
        """Whether bytes came behind the answer: nobody asked for them, so the connection is no good any more."""
        self._raw.is_over = True
        return self.fp is not None and bool(self.fp.peek(1))


class _Timed(io.RawIOBase):
    """Bytes of a socket, until the time is up."""

    def __init__(self, raw: io.RawIOBase, until_s: float) -> None:
        self._raw = raw
        self.until_s = until_s
        self.is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self.is_over:
            return 0
        if time.monotonic() > self.until_s:
            raise TimeoutError("the head of the answer took too long")
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _is_quiet(connection: http.client.HTTPConnection) -> bool:
    """Nothing arrived while it was idle; what can arrive then is the end, or bytes that nobody asked for."""
    if connection.sock is None or connection.sock.fileno() < 0:
        return False
    if isinstance(connection.sock, ssl.SSLSocket) and connection.sock.pending():  # C7
        return False
    poller = select.poll()
    poller.register(connection.sock, select.POLLIN)
    return not poller.poll(0)


def unavailable(
    address: Address, why: object, *, sent: bool, is_connecting: bool = False, is_first: bool = False
) -> Unavailable:
    """The error of a broker that did not answer. It has the field `tls` if TLS is what fails.

    Args:
        sent: Of C3.
        is_connecting, is_first: The connection was being made; nothing was answered there (`tls.V2`).
    """
    timed_out = isinstance(why, TimeoutError)
    is_early = is_connecting or is_first
    if is_early and isinstance(why, ssl.SSLError) and (refused := why_refused(why, is_connecting=is_connecting)):
        return Unavailable(f"{address}: {refused}", address=str(address), sent=False, timed_out=False, tls=True)
    text = str(why) or type(why).__name__
    if isinstance(why, OSError) and why.strerror:
        text = why.strerror
    return Unavailable(f"{address}: {text}", address=str(address), sent=sent, timed_out=timed_out)
