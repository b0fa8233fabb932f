"""Files of TLS: certificates, keys, CAs, put into an `ssl.SSLContext`, and errors that say what is wrong with which.
Which brokers a certificate is for.

OpenSSL says of most faults no more than "PEM lib", and names no file. So a file is looked at here before OpenSSL sees
it.

F1  A key that every user of the machine can read is refused: it is no secret. So is one that its group can write, or
    that belongs to somebody else: whoever can exchange a profile or a token says to whom secrets go, and who acts. (Who
    is root may use the files of all. A group may read: so one file can serve the user of a service.)
F2  No key with a passphrase is taken: nobody is there to type it, and OpenSSL would wait at the terminal.
F3  A file is a regular one: it is read more than once, and who opens a pipe waits for whoever writes to it.
F4  A certificate with a URI `liftlog:broker/<id>` is good for the brokers that it names, and for no other; one with
    another URI of ours for none. One without, as those of earlier releases and of other CAs, is good for each; where
    names are required, for none.
"""

from __future__ import annotations

import os
import shlex
import ssl
import stat
from collections.abc import Iterable
from typing import Any, Final

from broker.api.certificate_faults import MALFORMED, Unbelieved, fault_in
from broker.api.errors import InvalidSetting
from broker.api.principals import BROKER_URI, URI_SCHEME, is_secret, shown

CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
ENDED_AMID: Final = "it ended the connection amid the handshake: it has no cluster.tls_cert, or ends just now"
LOOKED_AT_BYTES: Final = 4 << 20
"""The CAs of the whole world take a quarter of a MiB."""


def load_chain(context: ssl.SSLContext, cert: tuple[str, str], key: tuple[str, str]) -> None:
    """Have a context show a certificate. `cert`, `key`: the name of the setting, and the path of its file.

    Raises:
        InvalidSetting: a file cannot be read, or is not what it should be; or they do not belong together.
    """
    if CERTIFICATE not in read(*cert):
        raise unusable(*cert, "holds no certificate in PEM")
    check_key(*key)
    try:
        context.load_cert_chain(cert[1], key[1], password=b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise unusable(*key, f"is not the key of {cert[0]} = {cert[1]!r}") from error
        raise unusable(*cert, f"cannot be used with {key[0]} = {key[1]!r}: {said(error)}") from error
    except OSError as error:
        raise unusable(*cert, f"cannot be read: {error.strerror}") from error


def load_ca(context: ssl.SSLContext, name: str, path: str) -> None:
    """Have a context believe the certificates of a file. Raises as `load_chain`."""
    if CERTIFICATE not in read(name, path):
        raise unusable(name, path, "holds no certificate in PEM")
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        raise unusable(name, path, f"is not a file of certificates: {said(error)}") from error


def read(name: str, path: str) -> bytes:
    """The bytes of a file. Raises InvalidSetting."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # F3
                raise unusable(name, path, "is not a regular file")
            return file.read(LOOKED_AT_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise unusable(name, path, f"cannot be read: {why}") from error


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def said(error: OSError) -> str:
    """What OpenSSL says, without the numbers of its source; of a certificate that is not believed, why not."""
    reason = getattr(error, "reason", None)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not believed: {error.verify_message}"
    if fault_in(error) == MALFORMED:
        return "the certificate cannot be read"
    return str(reason).replace("_", " ").lower() if reason else error.strerror or str(error)


def why_kept_out(error: OSError) -> str:
    """What stands in the way between two brokers, for the log of either."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message} (cluster.tls_ca says which CA is)"
    reason = (isinstance(error, ssl.SSLError) and error.reason) or ""
    if "ALERT" in reason:
        return f"it refuses this broker's certificate: {said(error)} (cluster.tls_cert)"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"):
        return "it does not speak TLS there: it has no cluster.tls_cert, or cluster.tls is accept, or is no broker"
    if isinstance(error, ssl.SSLEOFError):
        return ENDED_AMID
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate"
    if fault_in(error) == MALFORMED:
        return "its certificate cannot be read"
    return said(error)


def unbelieved_in(error: BaseException, *, is_called: bool = False) -> Unbelieved | None:
    """What is wrong with the certificate of the other side of a handshake; None: that is not why it failed.

    Args:
        error: Of OpenSSL, or one with such a cause, as aiohttp's.
    """
    for each in (error.__cause__, error):  # aiohttp's own calls itself an SSLCertVerificationError, and has no code
        if isinstance(each, OSError) and (fault := fault_in(each)):
            return Unbelieved(fault, said(each), is_called)
    return None


def uris_of(tls: ssl.SSLObject | ssl.SSLSocket) -> list[str]:
    """The URIs in the certificate of the other side, which is believed."""
    try:
        names: Any = (tls.getpeercert() or {}).get("subjectAltName", ())
    except ValueError:  # what is in it is no text
        return [URI_SCHEME]
    return [value for kind, value in names if kind == "URI"]


def misnamed(uris: Iterable[str], broker: str | None, *, needs_name: bool = False) -> str:
    """Why a certificate with these URIs is not for this broker; None: for any. Empty: it is (F4)."""
    ours = [uri for uri in uris if uri.lower().startswith(URI_SCHEME)]
    named = sorted(uri.removeprefix(BROKER_URI) for uri in ours if uri.startswith(BROKER_URI))
    if not ours and needs_name:
        return f"is a certificate without a URI {BROKER_URI}{broker or 'ID'}, which cluster.tls_names asks for"
    if not ours or broker in named or (broker is None and named):
        return ""
    return f"is the certificate of {', '.join(named) or 'no broker'}" + (f", and not of {broker}" if broker else "")


def unusable(name: str, path: str, why: str) -> InvalidSetting:
    """The error for a file. One that has a secret in the place of the path does not repeat it."""
    path = shown(path) if is_secret(path) else path
    return InvalidSetting(f"{name} = {path!r}: {why}", key=name, value=path)


def check_private(name: str, path: str) -> None:
    """F1. Raises InvalidSetting."""
    found = os.stat(path)
    if why := why_not_private(stat.S_IMODE(found.st_mode), found.st_uid, os.geteuid()):
        raise unusable(name, path, why + (f": chmod 600 {shlex.quote(path)}" if why.startswith("has mode") else ""))


def why_not_private(mode: int, owner: int, me: int) -> str:
    """Why a file with this mode, of this owner, is no secret of this user. Empty: it is one (F1)."""
    for bits, who in (
        (stat.S_IRWXO, "every user of this machine can use it"),
        (stat.S_IWGRP, "its group can change it"),
    ):
        if mode & bits:
            return f"has mode {mode:04o}, so {who}"
    if me and owner not in (me, 0):
        return f"belongs to user {owner}, who can change it, and neither to user {me} nor to root"
    return ""


def check_key(name: str, path: str) -> None:
    """F1, F2. Raises InvalidSetting."""
    content = read(name, path)
    check_private(name, path)
    if b"ENCRYPTED" in content:  # F2
        raise unusable(name, path, "has a passphrase; write it without one, readable by its owner alone")
    if b"PRIVATE KEY-----" not in content:
        raise unusable(name, path, "holds no private key in PEM")
