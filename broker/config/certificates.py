"""The files of TLS that `[http]` or `[cluster]` name: read, checked, and read again when they change.

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
    miss them. It is an ERROR in the log, once, and what is asked before a start refuses it (`certificates_of`).
X5  Lists of revoked certificates are files as the others. One whose date has passed stays in force (`revocations.L1`),
    and is an ERROR in the log. A broker's own certificate that is revoked for other brokers is refused as a wrong one.
    What is revoked is taken also while another file is wrong, or the broker's own certificate has expired. The lists of
    before stay for CAs that have none in the file any more: those of another change may be on their way. They are
    checked by the CAs in use, where it is the file of CAs that is wrong.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from broker.api.errors import InvalidSetting
from broker.api.revocations import Revocations, read_lists
from broker.api.tls_files import load_ca, load_chain, misnamed, read, unusable
from broker.common.looping import ThreadLoop
from broker.common.metrics import Sample
from broker.config.settings import ClusterConfig, HttpConfig
from broker.serving.http.tls import TlsContexts

LOOK_S: Final = 2.0
EXPIRES: Final = {
    "http": ("liftlog_http_certificate_expires_timestamp_seconds", "of the HTTP port"),
    "cluster": ("liftlog_cluster_certificate_expires_timestamp_seconds", "for other brokers"),
}
"""By section: the metric, and whose certificate it tells of."""
LISTS_EXPIRE: Final = {
    "http": ("liftlog_http_revocations_expire_timestamp_seconds", "http.tls_crl"),
    "cluster": ("liftlog_cluster_revocations_expire_timestamp_seconds", "cluster.tls_crl"),
}
"""By section: the metric of the lists, and the setting that names them."""

log = logging.getLogger(__name__)

Files = tuple[tuple[int, ...] | None, ...]
"""Of each file what changes with its content; None: it is not there."""


def certificates_of(
    config: HttpConfig | ClusterConfig, *, broker: str | None = None, by_date: bool = True
) -> Certificates | None:
    """Those of a broker's HTTP port, or of its ports for other brokers; None: these speak no TLS.

    Args:
        broker: Whose they are to be (`tls_files.F4`); None: whoever's.
        by_date: A certificate that has expired, or is not valid yet, cannot be used. False: X3.
    Raises:
        InvalidSetting: a file cannot be used.
    """
    if config.tls_cert is None:
        return None
    found = Certificates(config, broker=broker)
    if by_date and found.out_of_date is not None:
        raise found.out_of_date
    return found


class Named(NamedTuple):
    """A file, by the setting that names it."""

    setting: str
    path: str


@dataclass(frozen=True, slots=True)
class WantedTls:
    """What the settings of one section ask for.

    Attributes:
        section: `http` or `cluster`.
        broker: Whose certificate it is to be; None: whoever's.
        needs_name: It has to name a broker, and so have others'.
        client_ca: Whom the server's side believes; None: it asks for no certificate.
        ca: Whom the client's side believes; None: the CAs of the system.
        crl: What the CAs that the server's side believes have revoked; between brokers those of both sides.
        mode: `http.tls` or `cluster.tls`.
        speaks: What the client's side asks for by ALPN; the server's side, too, if it `offers` that.
    """

    section: str
    cert: Named
    key: Named
    client_ca: Named | None
    ca: Named | None
    crl: Named | None
    version: ssl.TLSVersion
    speaks: str
    offers: bool
    broker: str | None = None
    needs_name: bool = False
    mode: str = "required"

    @property
    def files(self) -> list[Named]:
        return [each for each in (self.cert, self.key, self.client_ca, self.ca, self.crl) if each is not None]


def wanted_by(config: HttpConfig | ClusterConfig, broker: str | None = None) -> WantedTls:
    """The files that these settings name. They have `tls_cert`."""
    section = "http" if isinstance(config, HttpConfig) else "cluster"

    def named(key: str) -> Named | None:
        path = getattr(config, key)
        return None if path is None else Named(f"{section}.{key}", path)

    cert, key, ca, crl = (named(f"tls_{each}") for each in ("cert", "key", "ca", "crl"))
    assert cert is not None, "there is TLS"
    assert key is not None, "checked with the other"
    if isinstance(config, HttpConfig):
        version = ssl.TLSVersion.TLSv1_3 if config.tls_min_version == "1.3" else ssl.TLSVersion.TLSv1_2
        clients = named("tls_client_ca")
        return WantedTls(section, cert, key, clients, ca, crl, version, "http/1.1", offers=True, mode=config.tls)
    needs_name = config.tls_names == "required"
    version = ssl.TLSVersion.TLSv1_3
    return WantedTls(
        section,
        cert,
        key,
        ca,
        ca,
        crl,
        version,
        "liftlog",
        offers=False,
        broker=broker,
        needs_name=needs_name,
        mode=config.tls,
    )


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one reading of the files came to.

    Attributes:
        http2: As `server`, for clients that ask for HTTP/2 by ALPN.
        expires: When the first certificate of the chain does.
        out_of_date: The error that says so if it has expired, or is not valid yet.
        revocations: Of the lists; None: there are none.
    """

    server: ssl.SSLContext
    http2: ssl.SSLContext
    client: ssl.SSLContext
    expires: datetime
    out_of_date: InvalidSetting | None
    revocations: Revocations | None


class Certificates:
    """See the module. Owns a thread.

    Args:
        broker: As `certificates_of` takes it.
        now: The clock.
    Raises:
        InvalidSetting: a file cannot be used.
    """

    def __init__(
        self,
        config: HttpConfig | ClusterConfig,
        *,
        broker: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._wanted = wanted_by(config, broker)
        self._now = now
        self._in_use = self._seen = self._files()
        self._said: Files | None = None  # which the log has a line about
        self._said_expired: datetime | None = None  # X3
        self._said_late: Revocations | None = None  # X5
        self._said_older: Files | None = None
        self._loaded = load_files(self._wanted, now())
        self._loop = ThreadLoop(self._step, "certificates")
        self.contexts = TlsContexts(
            server=lambda: self._loaded.server,
            http2=lambda: self._loaded.http2,
            client=lambda: self._loaded.client,
            revocations=lambda: self._loaded.revocations,
            takes_plain=self._wanted.mode != "required",
            dials=self._wanted.mode != "accept",
        )

    def start(self) -> None:
        """Start the thread."""
        self._taken()
        if self._wanted.mode != "required":
            log.warning("tls.plain_taken setting=%s.tls value=%s", self._wanted.section, self._wanted.mode)
        if (error := self.out_of_date) is not None:
            self._say_expired(error)
        self._loop.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._loop.stop()

    @property
    def needs_name(self) -> bool:
        """Whether certificates have to name a broker, this one's and those of others."""
        return self._wanted.needs_name

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
        name, whose = EXPIRES[self._wanted.section]
        text = f"When the certificate {whose} expires: seconds since 1970 UTC"
        yield name, text, (), (), self.expires.timestamp()
        if (found := self._loaded.revocations) is not None and found.expires is not None:
            name, setting = LISTS_EXPIRE[self._wanted.section]
            text = f"When the lists of {setting} should have been renewed: seconds since 1970 UTC"
            yield name, text, (), (), found.expires.timestamp()

    def look(self) -> None:
        """Take files that have changed. The log says why they are not taken."""
        self._see_lists()
        self._see_date()
        files, before = self._files(), self._seen
        self._seen = files
        if files == self._in_use or files != before:
            return
        try:
            loaded = load_files(self._wanted, self._now())
            if loaded.out_of_date is not None:
                raise loaded.out_of_date
        except InvalidSetting as error:
            if files != self._said:  # X2
                self._said = files
                log.error("tls.certificate_refused error=%s", error)
            self._take_lists()
            return
        if self._files() != files:  # X1
            return
        if loaded.revocations is not None:
            loaded = replace(loaded, revocations=self._gone_on(loaded.revocations))
        self._loaded, self._in_use = loaded, files
        self._taken()

    def _take_lists(self) -> None:
        """X5: those that can be read, beside files of which one cannot be used."""
        wanted, before = self._wanted, self._loaded.revocations
        if wanted.crl is None or wanted.client_ca is None or before is None:
            return
        found = None
        for cas in (None, before.cas):  # those of their file, or, if that is the one that cannot be used, those in use
            if found is None:
                with suppress(InvalidSetting, OSError, ValueError):
                    found = read_lists(*wanted.crl, *wanted.client_ca, cas=cas)
        if found is None:
            return
        found = self._gone_on(found)
        serials, numbers = {**before.serials, **found.serials}, {**before.numbers, **found.numbers}
        if serials != before.serials:
            lists = Revocations(serials, found.expires, found.cas, numbers)
            self._loaded = replace(self._loaded, revocations=lists)
            log.info("tls.revocations_taken setting=%s file=%s", LISTS_EXPIRE[wanted.section][1], wanted.crl.path)

    def _gone_on(self, found: Revocations) -> Revocations:
        """What is in force once these are read (`revocations.L5`). The log says if they are older; once for a file."""
        before = self._loaded.revocations
        kept = None if before is None else found.behind(before)
        if kept is None:
            return found
        if (files := self._files()) != self._said_older:
            self._said_older = files
            setting, path = LISTS_EXPIRE[self._wanted.section][1], self._wanted.crl and self._wanted.crl.path
            log.error("tls.revocations_older setting=%s file=%s", setting, path)
        return kept

    def _see_date(self) -> None:
        """X3."""
        if self.expires != self._said_expired and self.expires.timestamp() < self._now():
            which = "the certificate in use, or another of its chain,"
            self._say_expired(unusable(*self._wanted.cert, f"{which} has expired at {self.expires.isoformat()}"))

    def _say_expired(self, error: InvalidSetting) -> None:
        self._said_expired = self.expires
        log.error("tls.certificate_refused error=%s", f"{error}: others refuse this broker")

    def _see_lists(self) -> None:
        """X5."""
        found = self._loaded.revocations
        if (
            found is None
            or found.expires is None
            or found is self._said_late
            or found.expires.timestamp() > self._now()
        ):
            return
        self._said_late = found
        setting, path = LISTS_EXPIRE[self._wanted.section][1], self._wanted.crl and self._wanted.crl.path
        log.error("tls.revocations_late setting=%s file=%s expired=%s", setting, path, found.expires.isoformat())

    def _taken(self) -> None:
        setting, path = self._wanted.cert
        log.info("tls.certificate_taken setting=%s file=%s expires=%s", setting, path, self.expires.isoformat())

    def _step(self) -> float:
        self.look()
        return LOOK_S

    def _files(self) -> Files:
        return tuple(_mark(path) for _, path in self._wanted.files)


def load_files(wanted: WantedTls, now_s: float) -> Loaded:
    """Read all files.

    Raises:
        InvalidSetting: one cannot be used; the text says which, and why.
    """
    server, http2 = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, http2, client):
        context.minimum_version = wanted.version
        load_chain(context, wanted.cert, wanted.key)
    client.set_alpn_protocols([wanted.speaks])
    http2.set_alpn_protocols(["h2"])
    if wanted.offers:
        server.set_alpn_protocols([wanted.speaks])
    for context in (server, http2):
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0  # `serving.http.tls.T4`
        if wanted.client_ca is not None:
            load_ca(context, *wanted.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    if wanted.ca is not None:
        load_ca(client, *wanted.ca)
    else:
        client.load_default_certs()
    revocations = None
    if wanted.crl is not None and wanted.client_ca is not None:
        revocations = read_lists(*wanted.crl, *wanted.client_ca)
    if wanted.broker is not None:
        why = misnamed(uris_in(*wanted.cert), wanted.broker, needs_name=wanted.needs_name)
        if why:
            raise unusable(*wanted.cert, why)
    why = revocations.why_of_pem(read(*wanted.cert)) if revocations is not None else ""
    if wanted.section == "cluster" and why:  # X5
        raise unusable(*wanted.cert, f"cannot be used with {LISTS_EXPIRE['cluster'][1]}: it {why}")
    return Loaded(server, http2, client, *dates(*wanted.cert, now_s), revocations)


def uris_in(name: str, path: str) -> list[str]:
    """The URIs in the first certificate of a file. Raises InvalidSetting."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(read(name, path)).extensions
        names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise unusable(name, path, f"cannot be understood: {error}") from error
    return names.get_values_for_type(x509.UniformResourceIdentifier)


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


def _mark(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino  # the first can be set back
