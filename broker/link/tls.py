"""TLS of the link: contexts from files that may be renewed; why a handshake failed.

C1  Each side shows a certificate and believes those of `cluster.tls_ca` alone. The caller wants the name of the host
    that it calls in it. Who is there is proven after that, by the secret (`handshake.py`).
C2  Nothing is said in plain text, and nothing that comes so is looked at.
C3  A connection keeps the certificates of its handshake. Renewed ones are for those that come next.
C4  Python's `SSLSocket.shutdown` has what comes after it go out in plain text: a socket is shut from another thread by
    `shut`.
C5  Where a certificate names brokers, the other side is one of them (`tls_files.F4`). One that its CA has revoked is
    good for no broker.
C6  A certificate is shown at each new connection: nobody is handed a ticket that stands for it.
C8  While brokers go from plain text to TLS one by one (`cluster.tls`), the port takes both (`door.D3`).
C7  A stranger's hello is in one record, as OpenSSL makes it. In pieces of one byte 0.8 MB took the
    time of a core for a second and more, and there may be many at a time.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from broker.api.certificate_faults import MISNAMED, REVOKED, Tell, Unbelieved, tell_nobody
from broker.api.revocations import Revocations, why_revoked
from broker.api.tls_files import misnamed, unbelieved_in, uris_of, why_kept_out
from broker.config.certificates import Certificates
from broker.link.handshake import Refused

HELLO_HEAD_BYTES: Final = 9
HANDSHAKE: Final = 22
"""A record: type, version, length; in it a message: type, length."""
RECORD: Final = re.compile(rb"[\x15\x16]\x03[\x01-\x04]")
RECORD_HEAD_BYTES: Final = 3
RECORD_BEGINS: Final = re.compile(rb"[\x15\x16]\x03?")
"""How TLS begins. One in millions of tickets does: it is asked for anew."""
PIECE_BYTES: Final = 64 << 10
"""One write of bulk over TLS. Each has to be gone within `bulk.STALLED_S`."""


@dataclass(frozen=True, slots=True)
class LinkTls:
    """What is in use at this moment; it is renewed when files change.

    Attributes:
        server: For connections that are accepted.
        client: For connections to other brokers.
        needs_name: A certificate that names no broker is nobody's.
        revocations: What the CAs have revoked; None: nothing says.
        takes_plain: Who speaks no TLS is heard, too (C8).
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

    @staticmethod
    def of(certificates: Certificates | None, tell: Tell = tell_nobody) -> LinkTls | None:
        """Of the files of `[cluster]`; None: there is no TLS."""
        if certificates is None:
            return None
        contexts = certificates.contexts
        return LinkTls(
            contexts.server,
            contexts.client,
            certificates.needs_name,
            contexts.revocations,
            contexts.takes_plain,
            contexts.dials,
            tell,
        )

    def unfit(self, secured: ssl.SSLSocket, broker: str | None, address: str) -> str:
        """Why the other side of a connection, at this address, is not this broker; None: not any. Empty: it may be
        (C5). It is told."""
        if revoked := why_revoked(self.revocations(), secured):
            found = Unbelieved(REVOKED, f"it {revoked}", not secured.server_side)
        elif why := self._misnamed(uris_of(secured), broker):
            found = Unbelieved(MISNAMED, why, not secured.server_side)
        else:
            return ""
        self.tell(address, found)
        return found.why

    def failed(self, error: OSError, address: str, *, is_called: bool = False) -> str:
        """Why a handshake has failed. It is told if it was for the certificate of the other side."""
        if found := unbelieved_in(error, is_called=is_called):
            self.tell(address, found)
        return why_kept_out(error)

    def _misnamed(self, uris: Iterable[str], broker: str | None) -> str:
        why = misnamed(uris, broker, needs_name=self.needs_name)
        return why and f"what it shows {why}"


def connected(host: str, port: int, tls: LinkTls | None, timeout_s: float, broker: str | None = None) -> socket.socket:
    """A connection to a broker, over TLS if there is TLS.

    Args:
        timeout_s: To connect, and for each step of a handshake.
        broker: Who is to be there (C5); None: whoever it is.

    Raises:
        Refused: the handshake fails, and would fail again.
        OSError: nobody can be reached, or is gone at once.
    """
    plain = socket.create_connection((host, port), timeout_s)
    if tls is None:
        return plain
    try:
        secured = tls.client().wrap_socket(plain, server_hostname=host)
    except BaseException as error:
        plain.close()
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            raise _refused(tls.failed(error, host, is_called=True)) from error
        raise
    if why := tls.unfit(secured, broker, host):
        secured.close()
        raise _refused(why)
    return secured


def _refused(text: str) -> Refused:
    return Refused("UNAUTHENTICATED", "tls", text)


def speaks_tls(host: str, port: int, timeout_s: float) -> bool:
    """Whether TLS is spoken there, to a broker that does not. No certificate is believed, and nothing is said."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        with socket.create_connection((host, port), timeout_s) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError:
        return True
    except OSError:
        pass
    return False


def is_plain(connection: socket.socket, until_s: float) -> bool:
    """Whether no TLS is spoken on a connection that was accepted (C8). Takes nothing. OSError: not enough comes."""
    while True:
        heard = socket.socket.recv(connection, HELLO_HEAD_BYTES, socket.MSG_PEEK)
        if len(heard) >= RECORD_HEAD_BYTES or not RECORD_BEGINS.fullmatch(heard):
            return not RECORD.match(heard)
        _wait_for_more(until_s)


def is_in_pieces(connection: ssl.SSLSocket, until_s: float) -> bool:
    """Whether the hello of a caller is not in one record (C7). Takes nothing. OSError: it does not come."""
    while True:
        head = socket.socket.recv(connection, HELLO_HEAD_BYTES, socket.MSG_PEEK)
        if not head or head[0] != HANDSHAKE:
            return False  # OpenSSL says what it is
        if len(head) == HELLO_HEAD_BYTES:
            return int.from_bytes(head[3:5]) < 4 + int.from_bytes(head[6:9])
        _wait_for_more(until_s)


def _wait_for_more(until_s: float) -> None:
    """Poll would say at once that there is something to be read."""
    if time.monotonic() > until_s:
        raise TimeoutError("it says nothing more")
    time.sleep(0.01)


def shut(connection: socket.socket) -> None:
    """End a connection, from any thread (C4)."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
