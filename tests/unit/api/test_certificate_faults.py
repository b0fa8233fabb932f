"""What is wrong with a certificate, as OpenSSL judges it: each fault is made, and told by its name.

Method: a handshake in memory, between a server that wants a certificate and a client that shows a bad one. What no
client would load is made on the way, under TLS 1.2, where a certificate can still be seen.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from broker.api.certificate_faults import (
    EARLY,
    EXPIRED,
    FAULTS,
    FOREIGN,
    MALFORMED,
    MISNAMED,
    MISSING,
    REVOKED,
    UNFIT,
    UNPROVEN,
    fault_in,
)
from broker.api.tls_files import said, unbelieved_in, why_kept_out
from tests.support.certificates import Authority, Issued

OTHERWISE = {REVOKED, MISNAMED}
"""Found behind the handshake."""
Changed = Callable[[bytes], bytes]


def as_it_is(data: bytes) -> bytes:
    return data


class Doors:
    def __init__(self, folder: Path) -> None:
        self.ours, self.other = Authority(folder / "ours"), Authority(folder / "other")
        self.server = self.ours.issue("server")
        self.day, self.now = timedelta(days=1), datetime.now(UTC)

    def shown(self, fault: str) -> tuple[Issued | None, Changed]:
        """What a client shows, and what becomes of its bytes on the way."""
        day, now, good = self.day, self.now, self.ours.issue("good")
        pem = Path(good.cert).read_bytes()
        der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)

        def unreadable(data: bytes) -> bytes:
            return data.replace(der, bytes(len(der)))

        def without_its_key(data: bytes) -> bytes:
            if der not in data:
                return data
            at = data.index(b"\x0f\x00", data.index(der) + len(der)) + 20  # amid the signature
            return data[:at] + bytes(255 - each for each in data[at : at + 4]) + data[at + 4 :]

        return {
            "": lambda: (good, as_it_is),
            EXPIRED: lambda: (self.ours.issue("old", not_before=now - 2 * day, not_after=now - day), as_it_is),
            EARLY: lambda: (self.ours.issue("new", not_before=now + day, not_after=now + 2 * day), as_it_is),
            FOREIGN: lambda: (self.other.issue(), as_it_is),
            MISSING: lambda: (None, as_it_is),
            MALFORMED: lambda: (good, unreadable),
            UNPROVEN: lambda: (good, without_its_key),
            UNFIT: lambda: (self.ours.issue("use", uses=[ExtendedKeyUsageOID.SERVER_AUTH]), as_it_is),
            "weak": lambda: (self.ours.issue("weak", key=rsa.generate_private_key(65_537, 1_024)), as_it_is),
        }[fault]()

    def ended_by(self, fault: str) -> ssl.SSLError | None:
        """What ends the handshake at the server; None: nothing does."""
        issued, changed = self.shown(fault)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server.cert, self.server.key)
        context.load_verify_locations(self.ours.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        mine = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        mine.check_hostname, mine.verify_mode = False, ssl.CERT_NONE
        mine.set_ciphers("DEFAULT:@SECLEVEL=0")
        mine.maximum_version = ssl.TLSVersion.TLSv1_2
        if issued is not None:
            mine.load_cert_chain(issued.cert, issued.key)
        to_server, to_client, from_server, from_client = (ssl.MemoryBIO() for _ in range(4))
        server = context.wrap_bio(to_server, from_server, server_side=True)
        client = mine.wrap_bio(to_client, from_client)
        for _ in range(3):
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            to_server.write(changed(from_client.read()))
            try:
                server.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                return error
            to_client.write(from_server.read())
        return None


def test_each_fault_is_told_by_its_name(tmp_path: Path) -> None:
    doors = Doors(tmp_path)
    for fault in FAULTS.keys() - OTHERWISE:
        error = doors.ended_by(fault)
        assert error is not None, fault
        assert fault_in(error) == fault, error
        found = unbelieved_in(error, is_called=True)
        assert found == (fault, said(error), True)
        assert "lib" not in why_kept_out(error), "a text for people"
    weak = doors.ended_by("weak")
    assert weak is not None
    assert fault_in(weak) == UNFIT
    assert doors.ended_by("") is None


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(104, "gone"),
        TimeoutError("late"),
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
        ssl.SSLError(1, "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca"),
        ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
    ],
)
def test_what_fails_otherwise_is_no_fault_of_a_certificate(error: OSError) -> None:
    """K1, K2."""
    assert unbelieved_in(error) is None


def test_the_page_has_each_fault() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/storage.md").read_text()
    for fault, means in FAULTS.items():
        assert f"| `{fault}` | {means} |\n" in page
