"""A server that shows a certificate with a fault, to whoever calls it: for tests of those who call."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from broker.api.certificate_faults import EARLY, EXPIRED, FOREIGN, MALFORMED, MISNAMED
from tests.support.certificates import Authority, Issued

Shown = tuple[Issued, Callable[[bytes], bytes]]
"""A certificate, and what becomes of the server's bytes on the way."""


def shown_with(fault: str, ours: Authority, other: Authority) -> Shown:
    """What is shown to somebody who believes `ours`, and is at 127.0.0.1; without a fault: a good one."""
    day, now = timedelta(days=1), datetime.now(UTC)
    if fault == FOREIGN:
        return other.issue("foreign"), bytes
    if fault == MISNAMED:
        return ours.issue("elsewhere", "elsewhere.example"), bytes
    days = {EXPIRED: (-2, -1), EARLY: (1, 2)}.get(fault, (-1, 1))
    issued = ours.issue("shown", not_before=now + days[0] * day, not_after=now + days[1] * day)
    der = x509.load_pem_x509_certificate(Path(issued.cert).read_bytes()).public_bytes(Encoding.DER)
    return issued, (lambda data: data.replace(der, bytes(len(der)))) if fault == MALFORMED else bytes


@contextmanager
def showing(shown: Shown, greeting: bytes = b"") -> Iterator[int]:
    """Serves at a port, which this gives, one after the other: the greeting in plain, a handshake of TLS 1.2 (where a
    certificate can be changed on the way), and the end."""
    issued, changed = shown
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.cert, issued.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def serve(there: socket.socket) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        there.sendall(greeting)
        while True:
            try:
                tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                there.sendall(changed(outgoing.read()))
                if not (data := there.recv(1 << 16)):
                    return
                incoming.write(data)

    def accept(door: socket.socket) -> None:
        while True:
            try:
                there, _ = door.accept()
            except OSError:
                return
            with there, suppress(OSError):
                there.settimeout(10)
                serve(there)

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=accept, args=(door,))
        thread.start()
        try:
            yield door.getsockname()[1]
        finally:
            door.shutdown(socket.SHUT_RDWR)
            thread.join()
