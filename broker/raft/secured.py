"""TLS around a connection of pysyncobj: its socket is exchanged for one of these, and nothing of pysyncobj is changed.

    accepted, or connected ─► `secure` ─► a handshake, step by step as bytes come ─► `then`: the first message goes out
                                             └─► not: why is kept, and the connection is cut

    kernel ── so many bytes a turn ──► memory ──► OpenSSL ──► messages
           ◄── what it takes ───────── memory ◄── OpenSSL ◄──

S1  Nothing is handed to pysyncobj to send before the handshake is done (`is_open`): it would ask the poller again and
    again whether the socket takes bytes, which it does, while TLS waits for some. What a handshake itself says fits
    into the kernel's buffer.
S2  A handshake has as much time as the connection has to say who is there: `wire.STRANGER_S` where it was accepted,
    `wire.CALL_S` where it was called.
S3  All that can be decrypted of what was read is handed on at once: the poller knows only of what is in the kernel.
S4  A connection has one context for life: renewed certificates are for those that come next.
S5  Each side shows a certificate. The caller wants the host that it calls in it. Which broker that is says the secret
    (`wire.W1`), and its id, which the certificate must not contradict (`tls_files.F4`). One
    that its CA has revoked is good for no broker.
S6  Why the other side has ended a connection may still lie in the kernel when pysyncobj hears that it is over. It is
    looked for before the socket is closed.
S7  A turn is bounded. OpenSSL reads on within one call for as long as the kernel has bytes that are no data: a hello in
    pieces of one byte from anybody, new keys again and again from who has a certificate. It did so on the one thread
    of the group for seconds. So it reads from memory, where there is what one turn may take.
S8  While brokers go from plain text to TLS one by one, a port takes both: the first bytes say which it is. They come at
    once, or it is no broker.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pysyncobj.tcp_connection import CONNECTION_STATE

from broker.api.certificate_faults import MISNAMED, REVOKED, Tell, Unbelieved, tell_nobody
from broker.api.revocations import Revocations, why_revoked
from broker.api.tls_files import ENDED_AMID, misnamed, said, unbelieved_in, uris_of, why_kept_out

RECORD_BYTES: Final = 1 << 16
"""So much is encrypted at once."""
HANDSHAKE_READ_BYTES: Final = 4_096
"""So much of a handshake, or of a stranger, is read in a turn (S7)."""
HANDSHAKE_BYTES_MAX: Final = 1 << 16
"""A longer one is cut. Some KiB is what certificates take."""
UNSENT_BYTES_MAX: Final = 4 * RECORD_BYTES
"""Who has TLS answer so much, and takes nothing, is cut."""
RECORD: Final = re.compile(rb"[\x15\x16]\x03[\x01-\x04]")
"""How the first record of TLS begins: an alert, or a handshake. As the length of a message it would be too much."""
CUT: Final = "it cut the connection; is its raft.secret another one? Or has one of the two cluster.tls_cert?"
CUT_WITHIN: Final = "it cut the connection after the handshake of TLS; is its raft.secret another one?"
SPEAKS_TLS: Final = "it speaks TLS, and this broker does not: it has no cluster.tls_cert, or cluster.tls is accept"


@dataclass(frozen=True, slots=True)
class RaftTls:
    """The contexts of this moment.

    Attributes:
        server: For connections that are accepted.
        client: For those to others.
        needs_name: A certificate that names no broker is nobody's.
        revocations: What the CAs have revoked; None: nothing says.
        takes_plain: Who says something else than TLS is heard, too (S8).
        dials: Others are called over TLS; False: in plain text.
        tell: Whom this side does not believe.
    """

    server: Callable[[], ssl.SSLContext]
    client: Callable[[], ssl.SSLContext]
    needs_name: bool = False
    revocations: Callable[[], Revocations | None] = lambda: None
    takes_plain: bool = False
    dials: bool = True
    tell: Tell = tell_nobody


class SecuredSocket:
    """A socket under TLS, as far as pysyncobj uses one. It does not block.

    Args:
        host: Whom this side has called; None: it was called.
        then: Called when the handshake is done.
        needs_name, revocations, tell: As of `RaftTls`.

    Attributes:
        is_done: The handshake is.
        is_stranger: Nobody has said yet who is there: its turns are short (S7).
        is_answered: Whoever was called has said that it knows the secret.
        fault: Why it was cut, for the log; empty: nothing is known.
    """

    def __init__(
        self,
        plain: socket.socket,
        context: ssl.SSLContext,
        host: str | None,
        then: Callable[[], None],
        *,
        needs_name: bool = False,
        revocations: Revocations | None = None,
        tell: Tell = tell_nobody,
    ) -> None:
        self._plain = plain
        self._context = context
        self._host = host
        self._then = then
        self._needs_name = needs_name
        self._revocations = revocations
        self._tell = tell
        self._tls: ssl.SSLObject | None = None
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._greeting_bytes = 0
        self._is_over = False  # nothing more will come
        self._unsent = b""  # encrypted, and not in the kernel yet
        self._taken = 0  # so many of the bytes that `send` was given last are in `_unsent`
        self.is_done = False
        self.is_stranger = False
        self.is_answered = True
        self.fault = ""

    def step(self) -> bool:
        """Go on with the handshake. Returns whether it is done. Raises OSError: it failed."""
        try:
            if self._tls is None:
                self._tls = self._context.wrap_bio(
                    self._in, self._out, server_side=self._host is None, server_hostname=self._host
                )
            self._greeting_bytes += self._read(HANDSHAKE_READ_BYTES)
            if self._greeting_bytes > HANDSHAKE_BYTES_MAX:
                raise ConnectionAbortedError(errno.ECONNABORTED, f"a handshake of over {HANDSHAKE_BYTES_MAX} bytes")
            self._tls.do_handshake()
            self._flush()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except OSError as error:
            self._fail(error)
            with contextlib.suppress(OSError):
                self._flush()  # the alert that says why
            raise
        except ValueError as error:  # a host that no certificate can name
            self.fault = f"no TLS with it: {error}"
            raise OSError(str(error)) from error
        self.is_done = True
        self._then()
        return True

    def recv(self, size: int) -> bytes:
        """As a socket's; S3, S7."""
        tls = self._open
        try:
            data = self._decrypted(tls)
            if not data and not self._is_over:
                self._read(min(size, HANDSHAKE_READ_BYTES) if self.is_stranger else size)
                data = self._decrypted(tls)
            self._flush()
        except ssl.SSLError as error:
            self._fail(error)
            with contextlib.suppress(OSError):
                self._flush()
            raise ConnectionResetError(errno.ECONNRESET, said(error)) from error
        if not data and not self._is_over:
            raise BlockingIOError(errno.EAGAIN, "nothing yet")
        return data

    def misnamed(self, broker: str | None) -> str:
        """Why the other side is not this broker, or not any; empty: it may be (S5). It is told."""
        if revoked := why_revoked(self._revocations, self._open):
            return self._told(Unbelieved(REVOKED, f"it {revoked}", self._host is not None))
        if why := misnamed(uris_of(self._open), broker, needs_name=self._needs_name):
            return self._told(Unbelieved(MISNAMED, f"what it shows {why}", self._host is not None))
        return ""

    def _told(self, found: Unbelieved) -> str:
        with contextlib.suppress(OSError):  # it is gone, and nobody knows from where it was
            self._tell(str(self._plain.getpeername()[0]), found)
        return found.why

    def _read(self, size: int) -> int:
        """Take what is in the kernel. Returns how many bytes those are."""
        try:
            data = self._plain.recv(size)
        except BlockingIOError:
            return 0
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
        return len(data)

    def _decrypted(self, tls: ssl.SSLObject) -> bytes:
        """S3. Raises ssl.SSLError."""
        pieces = []
        try:
            while piece := tls.read(RECORD_BYTES):
                pieces.append(piece)
            self._is_over = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLEOFError:  # without a word of TLS: messages have a length of their own
            self._is_over = True
        return b"".join(pieces)

    def _fail(self, error: OSError) -> None:
        if not self.fault and (found := unbelieved_in(error, is_called=self._host is not None)):
            self._told(found)
        self.fault = self.fault or f"no TLS with it: {why_kept_out(error)}"

    def send(self, data: memoryview) -> int:
        """As a socket's. What it did not take is to be given again, with what has come behind it."""
        tls = self._open
        if not self._taken:
            if not self._flush():
                raise BlockingIOError(errno.EAGAIN, "not now")
            piece = data[:RECORD_BYTES]
            while self._taken < len(piece):
                self._taken += tls.write(piece[self._taken :])
        if not self._flush():
            raise BlockingIOError(errno.EAGAIN, "not now")
        taken, self._taken = self._taken, 0
        return taken

    def _flush(self) -> bool:
        """Have the kernel take what is encrypted. Returns whether it took all. Raises OSError: it is over."""
        if self._out.pending:
            self._unsent += self._out.read()
        while self._unsent:
            try:
                sent = self._plain.send(self._unsent)
            except BlockingIOError:
                if len(self._unsent) > UNSENT_BYTES_MAX:
                    raise ConnectionAbortedError(errno.ECONNABORTED, "it takes nothing") from None
                return False
            self._unsent = self._unsent[sent:]
        return True

    @property
    def _open(self) -> ssl.SSLObject:
        """Raises BlockingIOError: S1."""
        if self._tls is None or not self.is_done:
            raise BlockingIOError(errno.EAGAIN, "a handshake is under way")
        return self._tls

    def getsockopt(self, level: int, option: int) -> int:
        return self._plain.getsockopt(level, option)

    def close(self) -> None:
        """S6."""
        if self._tls is not None and not self.fault:
            try:
                self._read(RECORD_BYTES if self.is_done else HANDSHAKE_READ_BYTES)
                if self.is_done:
                    self._decrypted(self._tls)
                else:
                    self._tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                self._fail(error)
            except OSError:
                pass
            if self.is_done and self._is_over and self._host is not None and not self.is_answered:
                self.fault = self.fault or CUT_WITHIN
        self._plain.close()


def secure(conn: Any, tls: RaftTls, host: str | None, then: Callable[[], None] = lambda: None) -> None:
    """Have a connection of pysyncobj speak TLS from now on. One that cannot is cut at its next event.

    Args:
        host, then: As of `SecuredSocket`.
    """
    if host is None and tls.takes_plain and not _speaks_tls(conn):
        return
    context = tls.server() if host is None else tls.client()
    plain = conn._TcpConnection__socket
    conn.secured = made = SecuredSocket(
        plain, context, host, then, needs_name=tls.needs_name, revocations=tls.revocations(), tell=tls.tell
    )
    conn._TcpConnection__socket = made
    if host is not None:
        with contextlib.suppress(OSError):  # the next step meets it again
            made.step()


def _speaks_tls(conn: Any) -> bool:
    """S8: whether TLS is spoken on a connection that was accepted, as far as it has said something."""
    try:
        heard = conn._TcpConnection__socket.recv(3, socket.MSG_PEEK)
    except OSError:
        heard = b""
    conn.is_undecided = len(heard) < 3
    return bool(RECORD.match(heard))


def is_open(conn: Any, takes_plain: bool = False) -> bool:
    """Whether messages may go out on a connection that is to speak TLS (S1)."""
    found = conn._TcpConnection__socket
    return found.is_done if isinstance(found, SecuredSocket) else takes_plain


def go_on(conn: Any) -> bool:
    """Something came: go on with the handshake, if it is not done. Returns whether messages may be read."""
    if getattr(conn, "is_undecided", False):
        secure(conn, conn.tls, None)
        if conn.is_undecided:  # it is over, or says so little as no broker does: the poller would ask again and again
            conn.disconnect()
            return False
    found = conn._TcpConnection__socket
    if not isinstance(found, SecuredSocket):
        return True
    found.is_stranger = getattr(conn, "is_stranger", False)
    if found.is_done:
        return True
    try:
        return found.step() and conn._TcpConnection__socket is found
    except OSError:
        conn.disconnect()
        return False


def misnamed_at(conn: Any, broker: str | None) -> str:
    """Why the other side of a connection is not this broker, or not any; empty: it may be, or there is no TLS."""
    found = conn._TcpConnection__socket
    return found.misnamed(broker) if isinstance(found, SecuredSocket) else ""


def expect(conn: Any, broker: str | None) -> None:
    """Raises OSError, which ends a handshake: this broker, or any, is not the one that was called (S5)."""
    if why := misnamed_at(conn, broker):
        conn.secured.fault = f"no TLS with it: {why}"
        raise ConnectionAbortedError(errno.ECONNABORTED, why)


def fault_of(conn: Any) -> str:
    """Why TLS failed on the connection that it had last; empty: it did not."""
    found = getattr(conn, "secured", None)
    return str(getattr(conn, "fault", "") if found is None else found.fault)


def is_sudden(fault: str) -> bool:
    """Whether a broker that ends, or has not entered the group yet, may be all that it is."""
    return fault in (CUT, CUT_WITHIN) or fault.endswith(ENDED_AMID)


def heed_last_word(conn: Any) -> None:
    """S6, of a connection that is to be closed: has the other side said nothing at all, or in plain text spoken TLS?"""
    conn.fault = ""
    found = conn._TcpConnection__socket
    if isinstance(found, SecuredSocket):
        found.is_answered = conn.encryptor is None or conn.sendRandKey is not None
    if not isinstance(found, socket.socket) or conn.sendRandKey is not None:
        return
    heard, is_over = bytes(conn._TcpConnection__readBuffer[:3]), False
    if not heard:
        try:
            heard = found.recv(3, socket.MSG_PEEK)
            is_over = not heard
        except OSError as error:
            is_over = isinstance(error, ConnectionError)
    is_called = conn.recvRandKey is not None and conn.state == CONNECTION_STATE.CONNECTED
    conn.fault = SPEAKS_TLS if RECORD.match(heard) else CUT if is_called and is_over else ""
