"""The port for other brokers: it accepts, speaks TLS, and bounds what strangers take.

    accepted ──► a thread of its own ──► handshake of TLS ──► four bytes: what for ──► serves it to its end
                       └── a stranger until it has proven who it is: `GREETING_S` at most, `STRANGERS_MAX` at a time

D1  A connection is a stranger's until `let_in`. All of its greeting, TLS included, has to be over within `GREETING_S`.
    Beyond `STRANGERS_MAX` the oldest stranger makes room. Who is let in takes no stranger's place: there are as many as
    brokers have streams and tickets.
D2  Where the system allows no more threads or descriptors, a new connection is closed and counted, and the next one is
    accepted.
D3  While brokers go from plain text to TLS (`tls.C8`), the first bytes say which it is.
D4  A stranger's TLS in plain text, or the reverse, is answered so that the other side can say which it is. So is a
    broker of an earlier release, which speaks gRPC.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from broker.api.tls_files import why_kept_out
from broker.link.codec import Ended, encode
from broker.link.framed import Framed, linger
from broker.link.tls import RECORD, LinkTls, is_in_pieces, is_plain, shut

log = logging.getLogger(__name__)

GREETING_S: Final = 2.0
STRANGERS_MAX: Final = 64
BACKLOG: Final = 128
PURPOSE_BYTES: Final = 4
GRPC: Final = b"PRI "
"""How HTTP/2 begins."""


class Visitor:
    """A connection that was accepted.

    Attributes:
        who: The address it comes from.
        socket: With TLS where there is TLS, once `serve` is called.
        until_s: When its greeting has to be over, by `time.monotonic`.
    """

    def __init__(self, connection: socket.socket, who: str, until_s: float) -> None:
        self.socket = connection
        self.who = who
        self.until_s = until_s
        self.is_dropped = False


Serve = Callable[["Door", Visitor, Framed], None]
"""Serves a connection to its end, on its own thread; the connection is closed after that. May raise OSError: it is
gone."""


class Door:
    """See the module. Thread-safe.

    Args:
        purposes: Who serves a connection, by its first four bytes.
        refuse: Counts and logs who is not let in: reason, who, text.
        tls: None: it speaks plain text.
    """

    def __init__(
        self, purposes: Mapping[bytes, Serve], refuse: Callable[[str, str, str], None], tls: LinkTls | None = None
    ) -> None:
        self._purposes = purposes
        self._refuse = refuse
        self._tls = tls
        self._lock = threading.Lock()
        self._visitors: dict[Visitor, threading.Thread] = {}
        self._strangers: dict[Visitor, None] = {}  # the oldest first
        self._listener: socket.socket | None = None
        self._is_stopping = False

    def start(self, host: str, port: int) -> int:
        """Listen. Returns the port. Raises OSError: somebody else does."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        dual = host == "::"
        self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=dual)
        threading.Thread(target=self._accept, args=(self._listener,), name="link-door", daemon=True).start()
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Accept no more."""
        self._is_stopping = True
        if self._listener is not None:
            shut(self._listener)
            self._listener.close()

    def stop(self, timeout_s: float) -> bool:
        """End all connections. Returns whether their threads have ended: one may be at a disk that hangs."""
        self.close()
        with self._lock:
            visitors = dict(self._visitors)
            for visitor in visitors:
                shut(visitor.socket)
        until_s = time.monotonic() + timeout_s
        for thread in visitors.values():
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in visitors.values())

    def let_in(self, visitor: Visitor) -> None:
        """It has proven who it is. Raises ConnectionAbortedError: its place was needed."""
        with self._lock:
            self._strangers.pop(visitor, None)
            if visitor.is_dropped:
                raise ConnectionAbortedError("its place was needed")

    # -- connections (a thread each) -------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while not self._is_stopping:
            try:
                connection, address = listener.accept()
            except OSError:
                if not self._is_stopping:
                    time.sleep(0.1)  # as without a free descriptor
                continue
            except Exception:
                log.exception("replica.link_bug at=door")
                time.sleep(0.1)
                continue
            visitor = Visitor(connection, str(address[0]), time.monotonic() + GREETING_S)
            thread = threading.Thread(target=self._serve, args=(visitor,), name="link-in", daemon=True)
            dropped = None
            with self._lock:
                if self._is_stopping:
                    connection.close()
                    return
                if len(self._strangers) >= STRANGERS_MAX:
                    dropped = next(iter(self._strangers))
                    del self._strangers[dropped]
                    dropped.is_dropped = True
                    shut(dropped.socket)  # its thread closes it
                self._visitors[visitor] = thread
                self._strangers[visitor] = None
            if dropped is not None:
                self._refuse("crowded", dropped.who, f"{STRANGERS_MAX} others are being greeted")
            try:
                thread.start()
            except RuntimeError as error:  # no more threads are allowed
                self._refuse("no_thread", visitor.who, str(error))
                self._over(visitor)

    def _over(self, visitor: Visitor) -> None:
        with self._lock:
            self._visitors.pop(visitor, None)
            self._strangers.pop(visitor, None)
            visitor.socket.close()  # under the lock: nobody shuts a descriptor that is another one's by then

    def _serve(self, visitor: Visitor) -> None:
        try:
            if self._secured(visitor):
                self._greet(visitor, Framed(visitor.socket))
        except OSError:  # it is gone
            pass
        finally:
            self._over(visitor)

    def _greet(self, visitor: Visitor, framed: Framed) -> None:
        try:
            purpose = framed.take(PURPOSE_BYTES, visitor.until_s)
        except OSError as error:
            if isinstance(error, ssl.SSLError):
                self.complain("tls", visitor, why_kept_out(error))
            elif isinstance(error, TimeoutError):
                self.complain("greeting_timeout", visitor, f"no greeting within {GREETING_S} s")
            return
        if not purpose:
            return
        serve = self._purposes.get(purpose)
        if serve is not None:
            serve(self, visitor, framed)
            return
        says = "it does not greet as a broker does"
        if RECORD.match(purpose):
            says = "it speaks TLS, and this broker does not: it has no cluster.tls_cert"
        elif purpose == GRPC:
            says = "it speaks gRPC, as brokers of an earlier release do: stop all brokers, and start them with this one"
        self.complain("bad_greeting", visitor, says)
        framed.farewell(encode(Ended("INVALID_ARGUMENT", f"bad_greeting: {says}")))

    def complain(self, reason: str, visitor: Visitor, text: str) -> None:
        """Count and log who is not let in. One whose place was needed was counted then."""
        if not (visitor.is_dropped or self._is_stopping):
            self._refuse(reason, visitor.who, text)

    def _secured(self, visitor: Visitor) -> bool:
        """Speak TLS, where there is TLS (D3). False: its certificate, or what it says, is not good."""
        plain, tls = visitor.socket, self._tls
        if tls is None:
            return True
        plain.settimeout(GREETING_S)
        if tls.takes_plain and is_plain(plain, visitor.until_s):
            return True
        try:
            secured = tls.server().wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        except OSError as error:  # it is gone
            self.complain("tls", visitor, why_kept_out(error))
            return False
        with self._lock:
            visitor.socket = secured
            if visitor.is_dropped or self._is_stopping:  # before it was this socket
                return False
        try:
            if is_in_pieces(secured, visitor.until_s):
                self.complain("tls", visitor, "its first message of TLS comes in pieces, as no broker's does")
                return False
            secured.settimeout(max(0.001, visitor.until_s - time.monotonic()))
            secured.do_handshake()
        except OSError as error:
            self.complain("tls", visitor, tls.failed(error, visitor.who))
            with suppress(OSError):
                linger(secured)  # it hears why
            return False
        return True
