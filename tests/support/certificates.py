"""A CA and what it issues, as files: for tests of TLS."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import trustme

from broker.client.http.tls import TlsFiles
from broker.runtime.config.certificates import Certificates
from broker.runtime.config.configuration import load


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
    ) -> Issued:
        """A certificate for hosts, by default for this machine; in files of that name, which are replaced."""
        issued = self._authority.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")), not_before=not_before, not_after=not_after
        )
        files = Issued(str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key"))
        Path(files.cert).write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        Path(files.key).write_bytes(issued.private_key_pem.bytes())
        os.chmod(files.key, 0o600)
        return files

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

    def cluster_certificates(self, issued: Issued | None = None, *, ca: str | None = None) -> Certificates:
        """What a broker makes of them. `ca`: whom it believes, if that is another one."""
        settings = self.cluster_settings(issued)
        return Certificates(load(None, {}, {**settings, "cluster.tls_ca": ca or self.ca}).cluster)

    def client_files(self, issued: Issued | None = None) -> TlsFiles:
        return TlsFiles(ca=self.ca, cert=issued.cert if issued else None, key=issued.key if issued else None)

    def client_context(self, issued: Issued | None = None) -> ssl.SSLContext:
        """The standard library's: a client that is none of ours."""
        context = ssl.create_default_context(cafile=self.ca)
        if issued is not None:
            context.load_cert_chain(issued.cert, issued.key)
        return context
