"""TLS of a client: whom it believes, which certificate it shows, and what a failed handshake means.

    https://host:port ─► context ─► handshake ─► the certificate is the host's, by a CA that is believed ─► request
                                        └─► not: an error that trying again does not mend, before anything was sent

V1  A broker's certificate is always checked, and its name too. There is no switch that turns it off.
V2  A certificate that a broker refuses is noticed late: under TLS 1.3 the client's handshake is over by then, and the
    request may be on its way. The alert says that nothing of it was looked at, if it is the first request of its
    connection and no answer has begun.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

from broker.api import environment
from broker.api.errors import InvalidRequest
from broker.api.tls_files import load_ca, load_chain, said

_REFUSED: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR")
"""Parts of the names of alerts by which a server refuses a client's certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files. They are read when a client is made.

    Attributes:
        ca: CAs that are believed. None: those of the system.
        cert, key: The certificate that is shown to brokers that ask for one, and its key. None: none is shown.
        token: Not of TLS: a bearer token, by which brokers know the client (`token.py`). None: none is shown.
        token_over_tls: It goes over TLS alone, also on this machine (`profiles.P3`).
        profile: Where those come from that are None, if they are what was said directly (`profiles.files_for`).
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token: str | None = None
    token_over_tls: bool = False
    profile: str | None = None


def files_of_environment() -> TlsFiles:
    """Those that variables name, but for a profile's (`profiles.files_for`)."""
    return TlsFiles(
        ca=environment.tls_ca(), cert=environment.tls_cert(), key=environment.tls_key(), token=environment.token_file()
    )


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of a client's connections.

    Raises:
        InvalidSetting: a file cannot be used; the text names it.
        InvalidRequest: a certificate without its key, or a key without its certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # V1
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if files.ca is not None:
        load_ca(context, "tls_ca", files.ca)
    else:
        context.load_default_certs()
    if (files.cert is None) != (files.key is None):
        raise InvalidRequest("tls_cert and tls_key are given together, or neither of them")
    if files.cert is not None and files.key is not None:
        load_chain(context, ("tls_cert", files.cert), ("tls_key", files.key))
    return context


def first_words() -> bytes:
    """What a client of TLS says first: to ask a broker whether it lives, without going on."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing follows
    try:
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
    raise AssertionError("a handshake that needs no answer")


def why_refused(error: BaseException, *, is_connecting: bool) -> str | None:
    """What stands in the way of TLS with this broker; None: something that may be over soon, or is no matter of TLS.

    Args:
        is_connecting: The handshake was not over. False: V2, with the first request of a connection.
    """
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    reason = error.reason or ""
    if "ALERT" in reason and any(word in reason for word in _REFUSED):
        return f"the broker refuses this client's certificate, or wants one (tls_cert, tls_key): {said(error)}"
    if not is_connecting:
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message} (tls_ca says which CA is)"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "it does not speak TLS there; https:// is for a broker with http.tls_cert"
    return f"no TLS with it: {said(error)}"
