"""A CA and what it issues, as files: for tests of TLS."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ObjectIdentifier

from broker.client.http.tls import TlsFiles
from broker.config.certificates import Certificates
from broker.config.configuration import load


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, as files."""

    cert: str
    key: str


class Authority:
    """A CA of its own in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(
        self,
        name: str = "broker",
        *hosts: str,
        not_before: datetime | None = None,
        not_after: datetime | None = None,
        uris: Sequence[str] = (),
        uses: Sequence[ObjectIdentifier] = (),
        key: Any = None,
        is_named: bool = True,
    ) -> Issued:
        """A certificate for hosts, by default for this machine; in files of that name, which are replaced.

        Args:
            uris: Beside the hosts. uses: Of its key, instead of all. key: Private; None: a new one.
            is_named: False: it has no names at all (SAN), as some of old.
        """
        issued = self._authority.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")), not_before=not_before, not_after=not_after
        )
        files = Issued(str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key"))
        chain = [pem.bytes() for pem in issued.cert_chain_pems]
        chain[0] = self._changed(chain[0], uris, uses, key, is_named=is_named)
        Path(files.cert).write_bytes(b"".join(chain))
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        Path(files.key).write_bytes(issued.private_key_pem.bytes() if key is None else key.private_bytes(*form))
        os.chmod(files.key, 0o600)
        return files

    def _changed(
        self, pem: bytes, uris: Sequence[str], uses: Sequence[ObjectIdentifier], own: Any, *, is_named: bool
    ) -> bytes:
        """A certificate with other names and uses and another key, signed again."""
        found = x509.load_pem_x509_certificate(pem)
        builder = (
            x509.CertificateBuilder()
            .subject_name(found.subject)
            .issuer_name(found.issuer)
            .public_key(found.public_key() if own is None else own.public_key())
            .serial_number(found.serial_number)
            .not_valid_before(found.not_valid_before_utc)
            .not_valid_after(found.not_valid_after_utc)
        )
        for each in found.extensions:
            value = each.value
            if isinstance(value, x509.SubjectAlternativeName) and not is_named:
                continue
            if isinstance(value, x509.SubjectAlternativeName):
                value = x509.SubjectAlternativeName([*value, *map(x509.UniformResourceIdentifier, uris)])
            elif isinstance(value, x509.ExtendedKeyUsage) and uses:
                value = x509.ExtendedKeyUsage(uses)
            builder = builder.add_extension(value, each.critical)
        key: Any = serialization.load_pem_private_key(self._authority.private_key_pem.bytes(), None)
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def settings(self, issued: Issued | None = None, /, **more: str) -> dict[str, Any]:
        """The `[http]` settings of a broker with such a certificate, which asks others of this CA."""
        issued = issued or self.issue()
        files = {"http.tls_cert": issued.cert, "http.tls_key": issued.key, "http.tls_ca": self.ca}
        return {**files, **{f"http.{key}": value for key, value in more.items()}}

    def certificates(self, issued: Issued | None = None, /, **more: str) -> Certificates:
        """What a broker makes of them."""
        return Certificates(load(None, {}, self.settings(issued, **more)).http)

    def cluster_settings(self, issued: Issued | None = None) -> dict[str, Any]:
        """The `[cluster]` settings of a broker with such a certificate."""
        issued = issued or self.issue()
        return {"cluster.tls_cert": issued.cert, "cluster.tls_key": issued.key, "cluster.tls_ca": self.ca}

    def revoke(
        self,
        *revoked: Issued,
        expires: datetime | None = None,
        extensions: Sequence[tuple[x509.ExtensionType, bool]] = (),
        name: str = "ca.crl",
    ) -> str:
        """The CA's list of these, and of nothing else, in a file. Returns its path.

        Args:
            expires: In an hour unless given. extensions: Of the list, and whether critical.
        """
        now = datetime.now(UTC)
        until = expires or now + timedelta(hours=1)
        ca = x509.load_pem_x509_certificate(self._authority.cert_pem.bytes())
        entries = [
            x509.RevokedCertificateBuilder()
            .serial_number(x509.load_pem_x509_certificate(Path(each.cert).read_bytes()).serial_number)
            .revocation_date(now)
            .build()
            for each in revoked
        ]
        made = x509.CertificateRevocationListBuilder(ca.subject, until - timedelta(days=1), until, [], entries)
        for each, is_critical in extensions:
            made = made.add_extension(each, is_critical)
        key: Any = serialization.load_pem_private_key(self._authority.private_key_pem.bytes(), None)
        path = self.folder / name
        path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return str(path)

    def cluster_certificates(
        self,
        issued: Issued | None = None,
        *,
        ca: str | None = None,
        names: str = "optional",
        crl: str | None = None,
        tls: str = "required",
    ) -> Certificates:
        """What a broker makes of them, whichever it is.

        Args:
            ca: Whom it believes, if that is another one. names: `cluster.tls_names`. crl: `cluster.tls_crl`.
            tls: `cluster.tls`.
        """
        more = {"cluster.tls_ca": ca or self.ca, "cluster.tls_names": names, "cluster.tls": tls}
        if crl is not None:
            more["cluster.tls_crl"] = crl
        return Certificates(load(None, {}, {**self.cluster_settings(issued), **more}).cluster)

    def client_files(self, issued: Issued | None = None) -> TlsFiles:
        return TlsFiles(ca=self.ca, cert=issued.cert if issued else None, key=issued.key if issued else None)

    def client_context(self, issued: Issued | None = None) -> ssl.SSLContext:
        """The standard library's: a client that is none of ours."""
        context = ssl.create_default_context(cafile=self.ca)
        if issued is not None:
            context.load_cert_chain(issued.cert, issued.key)
        return context
