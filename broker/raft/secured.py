"""TLS around a connection of pysyncobj: its socket is exchanged for one of these, and nothing of pysyncobj is changed.

    accepted, or connected ─► `secure` ─► a handshake, step by step as bytes come ─► `then`: the first message goes out
                                             └─► not: why is kept, and the connection is cut

S1  Nothing is handed to pysyncobj to send before the handshake is done (`is_open`): it would ask the poller again and
    again whether the socket takes bytes, which it does, while TLS waits for some. What a handshake itself says fits
    into the kernel's buffer.
S2  A handshake has as much time as the connection has to say who is there: `wire.STRANGER_S` where it was accepted,
    `wire.CALL_S` where it was called.
S3  What was decrypted is handed on at once: the poller knows only of what is in the kernel.
S4  A connection has one context for life: renewed certificates are for those that come next.
S5  Each side shows a certificate. The caller wants the host that it calls in it. Which broker that is says the secret
    (`wire.W1`), and its id.
S6  Why the other side has ended a connection may still lie in the kernel when pysyncobj hears that it is over. It is
    looked for before the socket is closed.
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

from broker.api.tls_files import ENDED_AMID, said, why_kept_out

RECORD_BYTES: Final = 1 << 16
"""So much is encrypted at once."""
RECORD: Final = re.compile(rb"[\x15\x16]\x03[\x01-\x04]")
"""How the first record of TLS begins: an alert, or a handshake. As the length of a message it would be too much."""
CUT: Final = "it cut the connection; is its raft.secret another one? Or has one of the two cluster.tls_cert?"
SPEAKS_TLS: Final = "it speaks TLS, and this broker does not: it has no cluster.tls_cert"


@dataclass(frozen=True, slots=True)
class RaftTls:
    """The contexts of this moment.

    Attributes:
        server: For connections that are accepted.
        client: For those to others.
    """

    server: Callable[[], ssl.SSLContext]
    client: Callable[[], ssl.SSLContext]


class SecuredSocket:
    """A socket under TLS, as far as pysyncobj uses one. It does not block.

    Args:
        host: Whom this side has called; None: it was called.
        then: Called when the handshake is done.

    Attributes:
        is_done: The handshake is.
        fault: Why it was cut, for the log; empty: nothing is known.
    """

    def __init__(
        self, plain: socket.socket, context: ssl.SSLContext, host: str | None, then: Callable[[], None]
    ) -> None:
        self._plain = plain
        self._context = context
        self._host = host
        self._then = then
        self._tls: ssl.SSLSocket | None = None
        self.is_done = False
        self.fault = ""

    def step(self) -> bool:
        """Go on with the handshake. Returns whether it is done. Raises OSError: it failed."""
        try:
            if self._tls is None:
                self._tls = self._context.wrap_socket(
                    self._plain,
                    server_side=self._host is None,
                    server_hostname=self._host,
                    do_handshake_on_connect=False,
                )
            self._tls.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            self._fail(error)
            raise
        except ValueError as error:  # a host that no certificate can name
            self.fault = f"no TLS with it: {error}"
            raise OSError(str(error)) from error
        self.is_done = True
        self._then()
        return True

    def recv(self, size: int) -> bytes:
        """As a socket's; S3."""
        try:
            data = self._open.recv(size)
            while more := self._open.pending():
                data += self._open.recv(more)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError(errno.EAGAIN, "nothing yet") from None
        except ssl.SSLError as error:
            self._fail(error)
            raise ConnectionResetError(errno.ECONNRESET, said(error)) from error
        return data

    def _fail(self, error: OSError) -> None:
        self.fault = self.fault or f"no TLS with it: {why_kept_out(error)}"

    def send(self, data: memoryview) -> int:
        """As a socket's. What it did not take is to be given again, with what has come behind it."""
        try:
            return self._open.send(data[:RECORD_BYTES])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError(errno.EAGAIN, "not now") from None

    @property
    def _open(self) -> ssl.SSLSocket:
        """Raises BlockingIOError: S1."""
        if self._tls is None or not self.is_done:
            raise BlockingIOError(errno.EAGAIN, "a handshake is under way")
        return self._tls

    def getsockopt(self, level: int, option: int) -> int:
        return self._socket.getsockopt(level, option)

    def close(self) -> None:
        """S6."""
        if self._tls is not None and not self.fault:
            try:
                self._tls.recv(1) if self.is_done else self._tls.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
            except ssl.SSLError as error:
                self._fail(error)
            except OSError:
                pass
        self._socket.close()

    @property
    def _socket(self) -> socket.socket:
        return self._plain if self._tls is None else self._tls


def secure(conn: Any, context: ssl.SSLContext, host: str | None, then: Callable[[], None] = lambda: None) -> None:
    """Have a connection of pysyncobj speak TLS from now on. One that cannot is cut at its next event."""
    conn.secured = made = SecuredSocket(conn._TcpConnection__socket, context, host, then)
    conn._TcpConnection__socket = made
    if host is not None:
        with contextlib.suppress(OSError):  # the next step meets it again
            made.step()


def is_open(conn: Any) -> bool:
    """Whether messages may go out on a connection that is to speak TLS (S1)."""
    found = conn._TcpConnection__socket
    return isinstance(found, SecuredSocket) and found.is_done


def go_on(conn: Any) -> bool:
    """Something came: go on with the handshake, if it is not done. Returns whether messages may be read."""
    found = conn._TcpConnection__socket
    if not isinstance(found, SecuredSocket) or found.is_done:
        return True
    try:
        return found.step() and conn._TcpConnection__socket is found
    except OSError:
        conn.disconnect()
        return False


def fault_of(conn: Any) -> str:
    """Why TLS failed on the connection that it had last; empty: it did not."""
    found = getattr(conn, "secured", None)
    return str(getattr(conn, "fault", "") if found is None else found.fault)


def is_sudden(fault: str) -> bool:
    """Whether a broker that ends, or has not entered the group yet, may be all that it is."""
    return fault == CUT or fault.endswith(ENDED_AMID)


def heed_last_word(conn: Any) -> None:
    """S6, of a connection in plain text that is to be closed: has the other side spoken TLS, or nothing at all?"""
    conn.fault = ""
    found = conn._TcpConnection__socket
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
