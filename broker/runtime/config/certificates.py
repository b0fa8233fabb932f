"""The files of TLS that the `[http]` settings name: read, checked, and read again when they change.

    start ─► read ─► wrong: the broker does not start, and says which file and why
              └─► contexts in use ◄─────────────── read well
                       │ each LOOK_S: have the files changed, and then stayed as they are for one look?
                       └─► read again ─► wrong: one ERROR line for each change; those in use stay

X1  Contexts come from files that were the same before and after they were read: never a certificate of one change with
    the key of another.
X2  Files that are wrong now may be right later without a change, as a certificate that is not valid yet. So they are
    read at each look until they are; the log has one line for each change.
X3  A certificate that expires while it is in use stays in use, and a broker starts with one that has expired: clients
    say what is wrong, and messages from NATS are taken meanwhile. A broker that did not come up after a crash would
    miss them. It is an ERROR in the log, and what is asked before a start refuses it (`certificates_of`).
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from broker.api.errors import InvalidSetting
from broker.api.tls_files import load_ca, load_chain, read, unusable
from broker.runtime.config.settings import HttpConfig
from broker.runtime.looping import ThreadLoop
from broker.runtime.metrics import Sample
from broker.serving.http.tls import TlsContexts

LOOK_S: Final = 2.0

log = logging.getLogger(__name__)

Files = tuple[tuple[int, int, int] | None, ...]
"""Of each file what changes with its content; None: it is not there."""


def certificates_of(config: HttpConfig, *, by_date: bool = True) -> Certificates | None:
    """Those of a broker; None: it speaks plain HTTP.

    Args:
        by_date: A certificate that has expired, or is not valid yet, cannot be used. False: X3.
    Raises:
        InvalidSetting: a file cannot be used.
    """
    if config.tls_cert is None:
        return None
    found = Certificates(config)
    if by_date and found.out_of_date is not None:
        raise found.out_of_date
    return found


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one reading of the files came to.

    Attributes:
        expires: When the first certificate of the chain does.
        out_of_date: The error that says so if it has expired, or is not valid yet.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    expires: datetime
    out_of_date: InvalidSetting | None


class Certificates:
    """See the module. Owns a thread.

    Args:
        now: The clock.
    Raises:
        InvalidSetting: a file cannot be used.
    """

    def __init__(self, config: HttpConfig, *, now: Callable[[], float] = time.time) -> None:
        self._config = config
        self._now = now
        self._paths = [
            path for path in (config.tls_cert, config.tls_key, config.tls_client_ca, config.tls_ca) if path is not None
        ]
        self._in_use = self._seen = self._files()
        self._said: Files | None = None  # which the log has a line about
        self._loaded = load_files(config, now())
        self._loop = ThreadLoop(self._step, "certificates")
        self.contexts = TlsContexts(server=lambda: self._loaded.server, client=lambda: self._loaded.client)

    def start(self) -> None:
        """Start the thread."""
        log.info("http.certificate_taken file=%s expires=%s", self._config.tls_cert, self.expires.isoformat())
        if (error := self.out_of_date) is not None:  # X3
            log.error("http.certificate_refused error=%s", f"{error}: clients refuse this broker")
        self._loop.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._loop.stop()

    @property
    def expires(self) -> datetime:
        """When the certificate in use does, or another of its chain, if that is sooner."""
        return self._loaded.expires

    @property
    def out_of_date(self) -> InvalidSetting | None:
        """What was wrong with the dates of those in use when they were taken."""
        return self._loaded.out_of_date

    def samples(self) -> Iterator[Sample]:
        """For /metrics."""
        text = "When the certificate of the HTTP port expires: seconds since 1970 UTC"
        yield "liftlog_http_certificate_expires_timestamp_seconds", text, (), (), self.expires.timestamp()

    def look(self) -> None:
        """Take files that have changed. The log says why they are not taken."""
        files, before = self._files(), self._seen
        self._seen = files
        if files == self._in_use or files != before:
            return
        try:
            loaded = load_files(self._config, self._now())
            if loaded.out_of_date is not None:
                raise loaded.out_of_date
        except InvalidSetting as error:
            if files != self._said:  # X2
                self._said = files
                log.error("http.certificate_refused error=%s", error)
            return
        if self._files() != files:  # X1
            return
        self._loaded, self._in_use = loaded, files
        log.info("http.certificate_taken file=%s expires=%s", self._config.tls_cert, self.expires.isoformat())

    def _step(self) -> float:
        self.look()
        return LOOK_S

    def _files(self) -> Files:
        return tuple(map(_mark, self._paths))


def load_files(config: HttpConfig, now_s: float) -> Loaded:
    """Read all files.

    Raises:
        InvalidSetting: one cannot be used; the text says which, and why.
    """
    assert config.tls_cert is not None, "there is TLS"
    assert config.tls_key is not None, "checked with the other"
    cert, key = ("http.tls_cert", config.tls_cert), ("http.tls_key", config.tls_key)
    version = ssl.TLSVersion.TLSv1_3 if config.tls_min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.minimum_version = version
        context.set_alpn_protocols(["http/1.1"])
        load_chain(context, cert, key)
    server.options |= ssl.OP_NO_RENEGOTIATION
    server.num_tickets = 0  # `serving.http.tls.T4`
    if config.tls_client_ca is not None:
        load_ca(server, "http.tls_client_ca", config.tls_client_ca)
        server.verify_mode = ssl.CERT_REQUIRED
    if config.tls_ca is not None:
        load_ca(client, "http.tls_ca", config.tls_ca)
    else:
        client.load_default_certs()
    return Loaded(server, client, *dates(*cert, now_s))


def dates(name: str, path: str, now_s: float) -> tuple[datetime, InvalidSetting | None]:
    """When a chain expires, and the error for one that has expired, or is not valid yet.

    Args:
        name: The setting that names the file.
    Raises:
        InvalidSetting: it cannot be read.
    """
    from cryptography import x509

    try:
        chain = x509.load_pem_x509_certificates(read(name, path))
    except ValueError as error:
        raise unusable(name, path, f"cannot be understood: {error}") from error
    now, fault = datetime.fromtimestamp(now_s, UTC), None
    for number, certificate in enumerate(chain):
        which = f"the certificate number {number + 1} in it" if number else "the certificate"
        if now > certificate.not_valid_after_utc:
            fault = unusable(name, path, f"{which} has expired at {certificate.not_valid_after_utc.isoformat()}")
        if now < certificate.not_valid_before_utc:
            fault = unusable(name, path, f"{which} is not valid before {certificate.not_valid_before_utc.isoformat()}")
    return min(certificate.not_valid_after_utc for certificate in chain), fault


def _mark(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
