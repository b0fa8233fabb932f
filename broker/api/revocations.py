"""Certificates that their CA has taken back: the lists (CRL) that stand beside a file of CAs.

L1  A list stays in force after its date: what it takes back stays so, and nobody else is kept out. Where OpenSSL looks
    at lists itself, one that nobody has renewed ends a whole cluster.
L2  Where there are lists, a certificate of a CA that has none there is refused: nothing says that it is still good.
    A certificate names its CA, and not the key that has signed it. So of several CAs of one name each has a list.
L3  A list is a CA's own, signed by it, of all its certificates. One that says less (changes since another, a part, in
    another CA's name) is refused: certificates that it does not speak of would count as good.
L4  The certificate that is shown is looked up, and not those of CAs above it: take such a CA out of its file.
L5  A list with a lower number than the one of its CA that is in use is an old one, put back by mistake, or was begun
    anew by who has lost it. What was revoked stays so, beside what is new in it, until the broker starts again.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from broker.api.tls_files import LOOKED_AT_BYTES, read, unusable

if TYPE_CHECKING:
    from cryptography import x509

Cas = tuple[tuple[Hashable, "x509.Certificate"], ...]
"""CAs, each with its name as `ssl` says it."""
LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Revocations:
    """What the lists of a file say.

    Attributes:
        serials: The numbers of the certificates that are taken back, by the name of their CA: as `ssl` says it, and as
            `cryptography` does.
        expires: When the first of the lists should have been renewed; None: no list says.
        cas: The CAs whose lists they are.
        numbers: Of the last list of each CA, by its name as `ssl` says it, where a list has one.
    """

    serials: Mapping[Hashable, frozenset[int]]
    expires: datetime | None
    cas: Cas = ()
    numbers: Mapping[Hashable, int] = field(default_factory=dict)

    def behind(self, before: Revocations) -> Revocations | None:
        """These, if lists were in use before of which one has a higher number (L5). None: there is none."""
        old = {name for name, number in self.numbers.items() if number < before.numbers.get(name, number)}
        names = {key for name, ca in self.cas if name in old for key in (name, ca.subject)}
        if not names:
            return None
        kept = {name: before.serials.get(name, frozenset()) | self.serials[name] for name in names}
        numbers = {**self.numbers, **{name: before.numbers[name] for name in old}}
        return replace(self, serials={**self.serials, **kept}, numbers=numbers)

    def why_of(self, certificate: Mapping[str, Any]) -> str:
        """Why one is not believed, as `ssl.SSLSocket.getpeercert` says it; empty: it is."""
        try:
            return self._why(certificate["issuer"], int(certificate["serialNumber"], 16))
        except (KeyError, ValueError):
            return "shows no certificate that can be looked up in the lists of those that are revoked"

    def why_of_pem(self, pem: bytes) -> str:
        """The same of one in PEM; empty bytes: none is shown."""
        from cryptography import x509

        try:
            found = x509.load_pem_x509_certificate(pem)
            return self._why(found.issuer, found.serial_number)
        except ValueError:
            return self.why_of({})

    def _why(self, issuer: Hashable, serial: int) -> str:
        found = self.serials.get(issuer)
        if found is None:
            return f"shows certificate {serial:X}, of whose CA there is no list of those that are revoked"  # L2
        return f"shows certificate {serial:X}, which is revoked" if serial in found else ""


def read_lists(name: str, path: str, ca_name: str, ca_path: str, *, cas: Cas | None = None) -> Revocations:
    """The lists in a file.

    Args:
        name, path: The setting, and the file that it names.
        ca_name, ca_path: Those of the CAs whose lists they are.
        cas: These CAs, if their file cannot be read.
    Raises:
        InvalidSetting: it cannot be read, is larger than `LOOKED_AT_BYTES`, or holds what is no list of these CAs (L3).
    """
    from cryptography import x509

    content = read(name, path)
    if len(content) >= LOOKED_AT_BYTES:
        raise unusable(name, path, f"is larger than {LOOKED_AT_BYTES} bytes")
    found = LIST.findall(content)
    if not found:
        raise unusable(name, path, "holds no list of revoked certificates in PEM (BEGIN X509 CRL)")
    cas = _cas_in(ca_path) if cas is None else cas
    serials, dates, without = dict[Hashable, frozenset[int]](), [], set(range(len(cas)))
    numbers = dict[Hashable, int]()
    for number, pem in enumerate(found, 1):
        try:
            crl = x509.load_pem_x509_crl(pem)
            of = [at for at, (_, ca) in enumerate(cas) if _is_of(crl, ca)]
            taken_back = frozenset(each.serial_number for each in crl)
            fault, crl_number = _fault_of(crl), _number_of(crl)
        except (ValueError, TypeError, x509.UnsupportedGeneralNameType, x509.DuplicateExtension) as error:
            raise unusable(name, path, f"list {number} cannot be understood: {error}") from error
        if not of:
            raise unusable(name, path, f"list {number} is of no CA in {ca_name} = {ca_path!r}, or was not signed by it")
        if fault:
            raise unusable(name, path, f"list {number} {fault}")
        without -= set(of)
        for key in (cas[of[0]][0], cas[of[0]][1].subject):
            serials[key] = serials.get(key, frozenset()) | taken_back
        if crl_number is not None:
            numbers[cas[of[0]][0]] = max(crl_number, numbers.get(cas[of[0]][0], crl_number))
        if crl.next_update_utc is not None:
            dates.append(crl.next_update_utc)
    for at in without:
        if cas[at][0] in serials:  # L2
            said = cas[at][1].subject.rfc4514_string()
            raise unusable(
                name, path, f"has a list of one CA {said}, and none of another one of that name in {ca_path!r}"
            )
    return Revocations(serials, min(dates, default=None), cas, numbers)


def _cas_in(path: str) -> Cas:
    """Raises OSError."""
    from cryptography import x509

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=path)
    names = [each["subject"] for each in context.get_ca_certs()]
    found = map(x509.load_der_x509_certificate, context.get_ca_certs(binary_form=True))
    return tuple(zip(names, found, strict=True))


def _is_of(crl: x509.CertificateRevocationList, ca: x509.Certificate) -> bool:
    key: Any = ca.public_key()
    return crl.issuer == ca.subject and bool(crl.is_signature_valid(key))


def _number_of(crl: x509.CertificateRevocationList) -> int | None:
    from cryptography import x509

    return next((each.value.crl_number for each in crl.extensions if isinstance(each.value, x509.CRLNumber)), None)


def _fault_of(crl: x509.CertificateRevocationList) -> str:
    """L3. Empty: it says all."""
    from cryptography import x509

    for each in crl.extensions:
        if isinstance(each.value, x509.DeltaCRLIndicator):
            return "has only what has changed since another one"
        if isinstance(each.value, x509.IssuingDistributionPoint):
            of = each.value
            if of.indirect_crl or of.only_some_reasons or of.only_contains_user_certs or of.only_contains_ca_certs:
                return "is not of all certificates of its CA, or is of other CAs' too"
            if of.only_contains_attribute_certs:
                return "is not of certificates that can be shown here"
        elif each.critical:
            return f"has a critical extension that is not known here: {each.oid.dotted_string}"
    return ""


def why_revoked(revocations: Revocations | None, tls: ssl.SSLObject | ssl.SSLSocket) -> str:
    """Why the other side of a connection is not believed; empty: it is, or there are no lists."""
    if revocations is None:
        return ""
    try:
        return revocations.why_of(tls.getpeercert() or {})
    except ValueError:  # what is in it is no text
        return revocations.why_of({})
