"""TLS of the link: credentials of gRPC and contexts of bulk, from files that may be renewed; why a handshake failed.

    caller ─ TCP ─► handshake of the standard library ─► a word of gRPC comes ─► closed; then gRPC's own channel
                              └──────── no: this says why ─► one line in the log

gRPC says of a handshake that failed no more than "unavailable", and that only to the caller: the broker that was called
hears nothing of it. So the caller tries one of its own first.

C1  Each side shows a certificate and believes those of `cluster.tls_ca` alone. The caller wants the name of the host
    that it calls in it. Who is there is proven after that, by the secret (`handshake.py`).
C2  Nothing is said in plain text, and nothing that comes so is looked at.
C3  A connection keeps the certificates of its handshake. Renewed ones are for those that come next.
C4  Python's `SSLSocket.shutdown` has what comes after it go out in plain text: a socket is shut from another thread by
    `shut`.
C5  Where a certificate names brokers, the other side is one of them (`tls_files.F4`). gRPC tells a server the names in
    its caller's, and a caller nothing: so that of the server is looked at when it is tried out. One that its CA has
    revoked is good for no broker.
C6  A certificate is looked at again at each new connection, `SESSION_S` after it was shown at the latest. gRPC's server
    hands out tickets that are good for two days: who has one shows no certificate any more, whether it has expired
    or not. It has other keys for them after that time.
C8  While brokers go from plain text to TLS one by one (`cluster.tls`), both ports take both. gRPC cannot: so two of its
    own listen at sockets in a folder that is this user's alone, and `both.py` stands before them.
C7  A stranger's hello at the port for bulk is in one record, as OpenSSL makes it. In pieces of one byte 0.8 MB took the
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
from typing import Any, Final

import grpc

from broker.api.revocations import Revocations, why_revoked
from broker.api.tls_files import misnamed, uris_of, why_kept_out
from broker.runtime.cluster.link.handshake import Refused
from broker.runtime.config.certificates import Certificates, Pem

SESSION_S: Final = 60.0
"""See C6."""
HELLO_HEAD_BYTES: Final = 9
HANDSHAKE: Final = 22
"""A record: type, version, length; in it a message: type, length."""
RECORD: Final = re.compile(rb"[\x15\x16]\x03[\x01-\x04]")
"""How TLS begins. One in millions of tickets does: it is asked for anew."""
PIECE_BYTES: Final = 64 << 10
"""One write of bulk over TLS. Each has to be gone within `bulk.STALLED_S`."""


@dataclass(frozen=True, slots=True)
class LinkTls:
    """What is in use at this moment; it is renewed when files change.

    Attributes:
        server: For bulk connections that are accepted.
        client: For connections to other brokers.
        pem: For gRPC.
        needs_name: A certificate that names no broker is nobody's.
        revocations: What the CAs have revoked; None: nothing says.
        takes_plain: Who speaks no TLS is heard, too (C8).
        dials: Others are called over TLS; False: in plain text.
    """

    server: Callable[[], ssl.SSLContext]
    client: Callable[[], ssl.SSLContext]
    pem: Callable[[], Pem]
    needs_name: bool = False
    revocations: Callable[[], Revocations | None] = lambda: None
    takes_plain: bool = False
    dials: bool = True

    @staticmethod
    def of(certificates: Certificates | None) -> LinkTls | None:
        """Of the files of `[cluster]`; None: there is no TLS."""
        if certificates is None:
            return None
        contexts = certificates.contexts
        return LinkTls(
            contexts.server,
            contexts.client,
            lambda: certificates.pem,
            certificates.needs_name,
            contexts.revocations,
            contexts.takes_plain,
            contexts.dials,
        )

    def unfit(self, secured: ssl.SSLSocket, broker: str | None) -> str:
        """Why the other side of a connection is not this broker; None: not any. Empty: it may be (C5)."""
        why = why_revoked(self.revocations(), secured)
        return f"it {why}" if why else self._misnamed(uris_of(secured), broker)

    def unfit_at(self, context: Any, broker: str) -> str:
        """Why the caller of a call of gRPC is not this broker. Empty: it may be (C5)."""
        shown, found = context.auth_context(), self.revocations()
        if self.takes_plain and b"ssl" not in shown.get("transport_security_type", ()):
            return ""
        why = "" if found is None else found.why_of_pem(b"".join(shown.get("x509_pem_cert", ())))
        uris = [uri.decode("utf-8", "replace") for uri in shown.get("peer_uri", ())]
        return f"it {why}" if why else self._misnamed(uris, broker)

    def _misnamed(self, uris: Iterable[str], broker: str | None) -> str:
        why = misnamed(uris, broker, needs_name=self.needs_name)
        return why and f"what it shows {why}"


def add_port(server: Any, address: str, tls: LinkTls | None) -> int:
    """Have a gRPC server listen. Returns the port. Raises RuntimeError."""
    if tls is None:
        return int(server.add_insecure_port(address))
    given, given_s = tls.pem(), time.monotonic()

    def renewed() -> Any:
        nonlocal given, given_s
        pem, now_s = tls.pem(), time.monotonic()
        if pem is given and now_s - given_s < SESSION_S:
            return None
        given, given_s = pem, now_s
        return _configuration(pem)

    credentials = grpc.dynamic_ssl_server_credentials(
        _configuration(given), renewed, require_client_authentication=True
    )
    return int(server.add_secure_port(address, credentials))


def _configuration(pem: Pem) -> Any:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], root_certificates=pem.ca)


def open_channel(address: str, options: Any, tls: LinkTls | None) -> Any:
    """A channel of gRPC to this address (C3)."""
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    pem = tls.pem()
    credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
    return grpc.secure_channel(address, credentials, options=options)


def try_out(host: str, port: int, tls: LinkTls | None, timeout_s: float, broker: str | None = None) -> None:
    """See whether somebody listens, and lets this broker in as far as TLS goes.

    Args:
        broker: Who is to be there (C5); None: whoever it is.
    Raises:
        Refused: the handshake fails, and would fail again.
        OSError: nobody can be reached, or is gone at once.
    """
    with socket.create_connection((host, port), timeout_s) as plain:
        if tls is None:
            return
        try:
            with tls.client().wrap_socket(plain, server_hostname=host) as secured:
                if why := tls.unfit(secured, broker):
                    raise _refused(why)
                if not _is_heard(secured):
                    raise _refused(NOT_TAKEN)
        except ssl.SSLError as error:
            if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                raise
            raise _refused(why_kept_out(error)) from error


def _is_heard(secured: ssl.SSLSocket) -> bool:
    """Whether the other side has taken the certificate: gRPC ends the connection else, without an alert."""
    try:
        return bool(secured.recv(1))
    except ConnectionError:
        return False


NOT_TAKEN: Final = (
    "it ended the connection after the handshake: it does not take this broker's certificate (cluster.tls_cert). It"
    " believes another CA, or that has expired there, is not valid yet, or is not for clients"
)


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


def is_plain(connection: socket.socket) -> bool:
    """Whether no TLS is spoken on a connection that was accepted (C8). Takes nothing. OSError: nothing comes."""
    heard = socket.socket.recv(connection, HELLO_HEAD_BYTES, socket.MSG_PEEK)
    return not RECORD.match(heard)


def is_in_pieces(connection: ssl.SSLSocket, until_s: float) -> bool:
    """Whether the hello of a caller is not in one record (C7). Takes nothing. OSError: it does not come."""
    while True:
        head = socket.socket.recv(connection, HELLO_HEAD_BYTES, socket.MSG_PEEK)
        if not head or head[0] != HANDSHAKE:
            return False  # OpenSSL says what it is
        if len(head) == HELLO_HEAD_BYTES:
            return int.from_bytes(head[3:5]) < 4 + int.from_bytes(head[6:9])
        if time.monotonic() > until_s:
            raise TimeoutError("it says nothing more")
        time.sleep(0.01)


def shut(connection: socket.socket) -> None:
    """End a connection, from any thread (C4)."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
