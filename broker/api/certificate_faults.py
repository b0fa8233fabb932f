"""What is wrong with the certificate that somebody has shown, or has not: one word, for filters, and a text.

    handshake ─► an error of OpenSSL ─► `found_in` ─► Unbelieved, or None: it failed for something else
    believed, and then looked up ─► `revocations.py`, `tls_files.F4` ─► Unbelieved

K1  Only what this side has judged. That the other side refuses our certificate is no fault of his, and anybody may say
    so.
K2  What fails before a certificate is due (no TLS, another version, a scan of ports, a connection that is cut) is none.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

EXPIRED: Final = "expired"
EARLY: Final = "not_yet_valid"
FOREIGN: Final = "foreign"
REVOKED: Final = "revoked"
MALFORMED: Final = "malformed"
MISSING: Final = "missing"
MISNAMED: Final = "misnamed"
UNPROVEN: Final = "unproven"
UNFIT: Final = "unfit"
FAULTS: Final = {
    EXPIRED: "its last day is over",
    EARLY: "its first day has not come",
    FOREIGN: "it is of no CA that is believed, or was not signed by it",
    REVOKED: "its CA has taken it back, or has no list there",
    MALFORMED: "it cannot be read",
    MISSING: "none was shown, where one is needed",
    MISNAMED: "it is that of another broker, or names none",
    UNPROVEN: "who shows it does not have its key",
    UNFIT: "anything else, as a weak key or another purpose",
}
"""All of them, with what they mean."""

_BY_CODE: Final = {
    **dict.fromkeys((2, 7, 18, 19, 20, 21, 24, 27, 29, 30, 31, 32, 79), FOREIGN),
    **dict.fromkeys((4, 6, 13, 14, 41, 53), MALFORMED),
    **dict.fromkeys((62, 63, 64), MISNAMED),
    9: EARLY,
    10: EXPIRED,
    23: REVOKED,
}
"""OpenSSL's `X509_V_ERR_…`, of the certificate or one above it."""
_BY_REASON: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": MISSING,
    "CERT_LENGTH_MISMATCH": MALFORMED,
    "BAD_SIGNATURE": UNPROVEN,
}
_UNREADABLE: Final = ("ASN1 lib", "X509 lib", "X509V3 lib")
"""What OpenSSL says, without a reason, of a certificate that is none."""


class Unbelieved(NamedTuple):
    """`fault`: one of `FAULTS`. `why`: for people. `is_called`: this side had called the other one."""

    fault: str
    why: str
    is_called: bool = False


Tell = Callable[[str, Unbelieved], None]
"""Told of somebody whose certificate is not believed, and of the address. From any thread; does not wait."""


def tell_nobody(address: str, found: Unbelieved) -> None:
    """A `Tell`."""


def fault_in(error: OSError) -> str:
    """Which of `FAULTS` ended a handshake; empty: none of them (K1, K2)."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _BY_CODE.get(error.verify_code, UNFIT)
    if not isinstance(error, ssl.SSLError):
        return ""
    reason = getattr(error, "reason", None) or ""  # one that this process has made has none
    if not reason and any(each in str(error.strerror) for each in _UNREADABLE):
        return MALFORMED
    return _BY_REASON.get(reason, "")
