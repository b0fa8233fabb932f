"""`liftlog certs`: a private CA in a folder, and certificates of it, without openssl.

    certs init DIR ─► DIR/ca.pem, DIR/ca.key          ca.pem goes to everybody, ca.key to nobody
    certs issue DIR NAME --host H [--broker B] ─► DIR/NAME.pem, DIR/NAME.key
    certs revoke DIR NAME ─► DIR/ca.crl, the list of all that were revoked

G1  A file that is there is replaced with `--force` alone, and then by one that is whole.
G2  Keys are their owner's alone from the moment that they are there. Certificates may be read by all.
G3  A certificate does not outlive the CA. It is for the hosts that are named, and for nothing else; without any it is a
    client's. With --broker other brokers take it from no other one (`tls_files.F4`).
G4  What was revoked stays so: each list has all of the one before, and no two are made at once.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import tempfile
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

from broker.api.errors import InvalidRequest
from broker.api.principals import BROKER_URI, uri_of
from broker.api.stream import check_name
from broker.api.tls_files import check_key, read
from broker.cli.arguments import Argument, Option
from broker.cli.output import counted, note
from broker.storage.disk import OsDisk

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_DAYS: Final = 3650
ISSUED_DAYS: Final = 365
LIST_DAYS: Final = 90
SKEW: Final = timedelta(minutes=5)
"""A certificate is good from so long ago: clocks differ."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
SERIAL: Final = re.compile(r"[0-9A-Fa-f]{1,40}")
HOST: Final = re.compile(
    r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*"
)

Folder = Annotated[str, Argument(metavar="DIR", help="Folder of the CA.")]
Force = Annotated[bool, Option("--force", help="Replace files that are there.")]


def init(
    folder: Folder,
    name: Annotated[str, Option("--name", metavar="NAME", help="Name of the CA.")] = "liftlog CA",
    days: Annotated[int, Option("--days", metavar="N", min=1, max=36_500, help="So long it is good.")] = CA_DAYS,
    force: Force = False,
) -> None:
    """Make a private CA: DIR/ca.pem, which clients and brokers believe, and its key, DIR/ca.key.

    Give ca.pem to everybody, and ca.key to nobody: whoever has it can be any broker.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise InvalidRequest(f"--name {name!r}: must be a line of 1 to 64 characters")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{folder} cannot be made: {error.strerror}") from error
    cert, key = _paths(folder, "ca", force)
    made = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(made.public_key())
    signed = (
        _builder(subject, subject, made, now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_ca=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(made, hashes.SHA256())
    )
    _write(key, _key_pem(made), 0o600, force)
    _write(cert, _pem(signed), 0o644, force)
    note(f"{cert}: for all brokers and clients (http.tls_ca, LIFTLOG_TLS_CA); {key}: keep it to yourself")


def issue(
    folder: Folder,
    name: Annotated[str, Argument(metavar="NAME", help="Of the broker or client, and of the files.")],
    host: Annotated[
        list[str] | None,
        Option("--host", metavar="HOST", help="Name or IP address of a broker; repeatable. None: it is a client's."),
    ] = None,
    broker: Annotated[
        list[str] | None,
        Option("--broker", metavar="ID", help="broker_id of the one that other brokers take it from; repeatable."),
    ] = None,
    user: Annotated[str | None, Option("--user", metavar="NAME", help="It is of user:NAME.")] = None,
    service: Annotated[str | None, Option("--service", metavar="NAME", help="It is of svc:NAME.")] = None,
    days: Annotated[int, Option("--days", metavar="N", min=1, max=36_500, help="So long it is good.")] = ISSUED_DAYS,
    force: Force = False,
) -> None:
    """Issue a certificate of the CA in DIR: DIR/NAME.pem, and its key, DIR/NAME.key.

    A broker's names each host that clients and other brokers ask it by. Whose it is stands in it as a URI,
    `liftlog:user/NAME`: by that a broker knows who shows it (auth.mode).
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    if not NAME.fullmatch(name) or name.lower() == "ca":  # there are disks to which both are one
        raise InvalidRequest(f"{name!r}: must be 1 to 63 of A-Z a-z 0-9 . _ -, beginning with no sign, and not 'ca'")
    if broker and not host:
        raise InvalidRequest("--broker needs --host: a broker's certificate names the hosts that it is called by")
    names = [_host(each) for each in host or ()]
    named = [f"{kind}:{each}" for kind, each in (("user", user), ("svc", service)) if each is not None]
    if len(named) + bool(broker) > 1:
        raise InvalidRequest("--user, --service, --broker: a certificate is of one of these kinds")
    uris = [x509.UniformResourceIdentifier(uri_of(principal)) for principal in named]
    uris += [x509.UniformResourceIdentifier(BROKER_URI + check_name(each, what="broker")) for each in broker or ()]
    ca, ca_key = _load_ca(folder)
    cert, key = _paths(folder, name, force)
    made, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    until = min(now + timedelta(days=days), ca.not_valid_after_utc)  # G3
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if names else [])]
    builder = (
        _builder(subject, ca.subject, made, now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(made.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    if names or uris:
        builder = builder.add_extension(x509.SubjectAlternativeName([*names, *uris]), critical=False)
    _write(key, _key_pem(made), 0o600, force)
    _write(cert, _pem(builder.sign(ca_key, hashes.SHA256())), 0o644, force)
    whose = f"for {', '.join([*host, *(f'broker {each}' for each in broker or ())])}" if host else "a client's"
    nameless = [] if host or named else ["which names nobody: a token says who asks"]
    whose = ", ".join([whose, *named, *nameless])
    note(f"{cert}, {key}: {whose}, good until {until.isoformat(timespec='seconds')}")


def revoke(
    folder: Folder,
    name: Annotated[str | None, Argument(metavar="NAME", help="Whose certificate: DIR/NAME.pem.")] = None,
    serial: Annotated[
        list[str] | None,
        Option("--serial", metavar="HEX", help="Number of one whose file is not there any more; repeatable."),
    ] = None,
    days: Annotated[
        int, Option("--days", metavar="N", min=1, max=36_500, help="So long until the next list, at most.")
    ] = LIST_DAYS,
) -> None:
    """Revoke a certificate: it is added to DIR/ca.crl, for http.tls_crl and cluster.tls_crl.

    Without a name the list is made anew, with a new date; the first one is empty then. Give it to all brokers, which
    take it within seconds.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    ca, ca_key = _load_ca(folder)
    path, now = os.path.join(folder, "ca.crl"), datetime.now(UTC)
    numbers = [_serial_of(folder, name, ca)] if name is not None else []
    numbers += [_number(each) for each in serial or ()]
    with open(os.path.join(folder, "ca.pem"), "rb") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)  # G4
        before = _list_before(path, ca)
        entries = {each.serial_number: each for each in before or ()}
        number = 1
        if before is not None:
            number += before.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        added = [each for each in dict.fromkeys(numbers) if each not in entries]
        for each in added:
            builder = x509.RevokedCertificateBuilder().serial_number(each).revocation_date(now)
            entries[each] = builder.build()
        until = now + timedelta(days=days)
        made = x509.CertificateRevocationListBuilder(ca.subject, now - SKEW, until, [], list(entries.values()))
        signed = (
            made.add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        _write(path, signed.public_bytes(serialization.Encoding.PEM), 0o644, force=True)
    listed = counted(len(entries), "certificate is", "certificates are")
    note(
        f"{path}: {listed} revoked, {len(added)} of them new; give it to all brokers, and make another one before"
        f" {until.isoformat(timespec='seconds')}"
    )


def _serial_of(folder: str, name: str, ca: x509.Certificate) -> int:
    """The number of a certificate in the folder. Raises InvalidRequest: it is none of this CA."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    path = os.path.join(folder, f"{name}.pem")
    if not NAME.fullmatch(name) or name.lower() == "ca":
        raise InvalidRequest(f"{name!r}: must be a NAME that `liftlog certs issue` was given")
    try:
        found = x509.load_pem_x509_certificate(read("the certificate", path))
        found.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise InvalidRequest(f"{path} is no certificate of this CA") from error
    return found.serial_number


def _number(text: str) -> int:
    if not SERIAL.fullmatch(text):
        raise InvalidRequest(f"--serial {text[:100]!r}: must be 1 to 40 hexadecimal digits")
    return int(text, 16)


def _list_before(path: str, ca: x509.Certificate) -> x509.CertificateRevocationList | None:
    """The list that is there; None: this is the first. Raises InvalidRequest: it cannot be gone on with (G4)."""
    from cryptography import x509

    if not os.path.lexists(path):
        return None
    key: Any = ca.public_key()
    try:
        with open(path, "rb") as file:
            found = x509.load_pem_x509_crl(file.read())
        found.extensions.get_extension_for_class(x509.CRLNumber)
        if found.is_signature_valid(key):
            return found
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise InvalidRequest(f"{path} cannot be understood, and what it lists must not be lost: {error}") from error
    raise InvalidRequest(f"{path} is not of this CA, and what it lists must not be lost: move it away")


def _load_ca(folder: str) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    cert, key = os.path.join(folder, "ca.pem"), os.path.join(folder, "ca.key")
    if not os.path.exists(cert):
        raise InvalidRequest(f"{cert} is not there: make a CA with `liftlog certs init {folder}`")
    check_key("the CA's key", key)
    try:
        ca = x509.load_pem_x509_certificate(read("the CA", cert))
        found = serialization.load_pem_private_key(read("the CA's key", key), None)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{cert} or {key} cannot be understood: {error}") from error
    if not isinstance(found, EllipticCurvePrivateKey) or found.public_key() != ca.public_key():
        raise InvalidRequest(f"{key} is not the key of {cert}")
    if ca.not_valid_after_utc <= datetime.now(UTC):
        raise InvalidRequest(f"{cert} has expired at {ca.not_valid_after_utc.isoformat()}")
    return ca, found


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(until)
    )


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    try:
        name = text.lower().encode("idna").decode()
    except UnicodeError:
        name = ""
    if not HOST.fullmatch(name):
        raise InvalidRequest(f"--host {text[:100]!r}: must be a name or an IP address, without scheme and port")
    return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _paths(folder: str, name: str, force: bool) -> tuple[str, str]:
    """Of a certificate and its key. Raises InvalidRequest: one is there (G1)."""
    paths = os.path.join(folder, f"{name}.pem"), os.path.join(folder, f"{name}.key")
    for path in paths:
        if not force and os.path.lexists(path):
            raise InvalidRequest(f"{path} exists: name another, or replace it with --force")
    return paths


def _write(path: str, content: bytes, mode: int, force: bool) -> None:
    """A file, durable; whole or not at all. Raises InvalidRequest."""
    folder = os.path.dirname(path) or "."
    try:
        handle, made = tempfile.mkstemp(dir=folder, prefix=".certs-")  # mode 0600
        try:
            with open(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            if force:
                os.replace(made, path)
            else:
                os.link(made, path)
        finally:
            if os.path.exists(made):
                os.unlink(made)
        OsDisk().sync_dir(folder)
    except FileExistsError:
        raise InvalidRequest(f"{path} exists: name another, or replace it with --force") from None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error
