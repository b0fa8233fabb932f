"""Goal: files of TLS that cannot be used are said with their setting, their path and what is wrong with them; a renewed
certificate is taken without a restart, and a bad one is not.

Method: files of a CA of the test, spoiled in each way; the clock is the test's.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from broker.api.errors import InvalidSetting
from broker.cli.main import app
from broker.config.certificates import Certificates, certificates_of
from broker.config.configuration import load
from tests.support.certificates import Authority, Issued
from tests.support.lone import lone_broker

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def spoil(path: str, text: str) -> None:
    Path(path).write_text(text)
    os.chmod(path, 0o600)


def _no_cert(authority: Authority, issued: Issued) -> None:
    os.remove(issued.cert)


def _pipe(authority: Authority, issued: Issued) -> None:
    os.remove(issued.cert)
    os.mkfifo(issued.cert)


def _folder(authority: Authority, issued: Issued) -> None:
    os.remove(issued.key)
    os.mkdir(issued.key)


def _no_pem(authority: Authority, issued: Issued) -> None:
    spoil(issued.cert, "hello\n")


def _broken_pem(authority: Authority, issued: Issued) -> None:
    spoil(issued.cert, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


def _other_key(authority: Authority, issued: Issued) -> None:
    spoil(issued.key, Path(authority.issue("other").key).read_text())


def _open_key(authority: Authority, issued: Issued) -> None:
    os.chmod(issued.key, 0o644)


def _no_key(authority: Authority, issued: Issued) -> None:
    spoil(issued.key, Path(issued.cert).read_text())


def _locked_key(authority: Authority, issued: Issued) -> None:
    spoil(issued.key, "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")


def _expired(authority: Authority, issued: Issued) -> None:
    authority.issue("broker", not_before=NOW - 3 * DAY, not_after=NOW - DAY)


def _not_yet(authority: Authority, issued: Issued) -> None:
    authority.issue("broker", not_before=NOW + DAY, not_after=NOW + 2 * DAY)


def _empty_ca(authority: Authority, issued: Issued) -> None:
    spoil(authority.ca, "")


def _broken_ca(authority: Authority, issued: Issued) -> None:
    spoil(authority.ca, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


FAULTS: list[tuple[Callable[[Authority, Issued], None], str]] = [
    (_no_cert, r"http\.tls_cert = '.*broker\.pem': cannot be read: No such file"),
    (_pipe, r"http\.tls_cert = '.*broker\.pem': is not a regular file"),
    (_folder, r"http\.tls_key = '.*broker\.key': "),
    (_no_pem, r"http\.tls_cert = '.*broker\.pem': holds no certificate in PEM"),
    (_broken_pem, r"http\.tls_cert = '.*broker\.pem': cannot be "),
    (_other_key, r"http\.tls_key = '.*broker\.key': is not the key of http\.tls_cert = '.*broker\.pem'"),
    (_open_key, r"http\.tls_key = '.*broker\.key': has mode 0644, .* chmod 600 .*broker\.key"),
    (_no_key, r"http\.tls_key = '.*broker\.key': holds no private key in PEM"),
    (_locked_key, r"http\.tls_key = '.*broker\.key': has a passphrase"),
    (_expired, r"http\.tls_cert = '.*broker\.pem': the certificate has expired at "),
    (_not_yet, r"http\.tls_cert = '.*broker\.pem': the certificate is not valid before "),
    (_empty_ca, r"http\.tls_client_ca = '.*ca\.pem': holds no certificate in PEM"),
    (_broken_ca, r"http\.tls_client_ca = '.*ca\.pem': is not a file of certificates"),
]


@pytest.mark.parametrize(("fault", "says"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(
    authority: Authority, fault: Callable[[Authority, Issued], None], says: str
) -> None:
    issued = authority.issue()
    settings = authority.settings(issued, tls_client_ca=authority.ca)
    assert certificates_of(load(None, {}, settings).http) is not None
    fault(authority, issued)
    with pytest.raises(InvalidSetting, match=says) as caught:
        certificates_of(load(None, {}, settings).http)
    assert caught.value.fields["key"] in says.replace("\\", "")


def test_a_broker_does_not_start_with_it_and_touches_nothing(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue()
    os.remove(issued.key)
    settings = {**authority.settings(issued), "data_dir": str(tmp_path / "data"), "intake.enabled": False}
    with pytest.raises(InvalidSetting, match=r"http\.tls_key"):
        lone_broker(load(None, {}, settings))
    assert not (tmp_path / "data").exists()
    text = [f"--set={key}={value}" for key, value in settings.items() if key != "intake.enabled"]
    result = CliRunner().invoke(app, ["broker", "--check", "--set", "intake.enabled=false", *text])
    assert "http.tls_key = " in str(result.exception)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("tls_cert", r"http\.tls_cert needs http\.tls_key"),
        ("tls_key", r"http\.tls_key needs http\.tls_cert"),
        ("tls_client_ca", r"http\.tls_client_ca needs http\.tls_cert"),
        ("tls_ca", r"http\.tls_ca needs http\.tls_cert"),
    ],
)
def test_settings_that_need_others_say_so(given: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        load(None, {}, {f"http.{given}": "a file"})


@pytest.mark.parametrize("missing", ["tls_cert", "tls_key", "tls_ca"])
def test_those_for_other_brokers_are_three_or_none(authority: Authority, missing: str) -> None:
    settings = authority.cluster_settings()
    del settings[f"cluster.{missing}"]
    with pytest.raises(InvalidSetting, match=rf"cluster\.tls_(cert|key) needs cluster\.{missing}"):
        load(None, {}, settings)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (_no_cert, r"cluster\.tls_cert = '.*broker\.pem': cannot be read"),
        (_open_key, r"cluster\.tls_key = '.*broker\.key': has mode 0644"),
        (_empty_ca, r"cluster\.tls_ca = '.*ca\.pem': holds no certificate"),
        (_expired, r"cluster\.tls_cert = '.*broker\.pem': the certificate has expired at "),
    ],
)
def test_files_for_other_brokers_are_checked_as_those_of_http_are(
    authority: Authority, fault: Callable[[Authority, Issued], None], says: str
) -> None:
    issued = authority.issue()
    settings = authority.cluster_settings(issued)
    found = certificates_of(load(None, {}, settings).cluster)
    assert found is not None
    ((name, *_),) = found.samples()
    assert name == "liftlog_cluster_certificate_expires_timestamp_seconds"
    fault(authority, issued)
    with pytest.raises(InvalidSetting, match=says):
        certificates_of(load(None, {}, settings).cluster)
    text = [f"--set={key}={value}" for key, value in settings.items()]
    result = CliRunner().invoke(app, ["broker", "--check", "--set", "intake.enabled=false", *text])
    assert result.exit_code
    assert "cluster.tls_" in str(result.exception)


def test_both_sides_between_brokers_show_a_certificate(authority: Authority) -> None:
    contexts = authority.cluster_certificates().contexts
    for context in (contexts.server(), contexts.client()):
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert contexts.client().check_hostname


def test_without_settings_there_is_none_and_versions_are_two() -> None:
    assert certificates_of(load(None, {}).http) is None
    with pytest.raises(InvalidSetting, match=r"http\.tls_min_version"):
        load(None, {}, {"http.tls_min_version": "1.1"})


def test_the_oldest_version_and_the_clients_certificate_are_as_set(authority: Authority) -> None:
    contexts = authority.certificates().contexts
    assert contexts.server().minimum_version == ssl.TLSVersion.TLSv1_3
    assert contexts.server().verify_mode == ssl.CERT_NONE
    assert contexts.client().verify_mode == ssl.CERT_REQUIRED
    contexts = authority.certificates(tls_min_version="1.2", tls_client_ca=authority.ca).contexts
    assert contexts.server().minimum_version == ssl.TLSVersion.TLSv1_2
    assert contexts.server().verify_mode == ssl.CERT_REQUIRED


def test_the_metric_says_when_the_certificate_expires(authority: Authority) -> None:
    expires = (NOW + DAY).replace(microsecond=0)
    found = authority.certificates(authority.issue("broker", not_before=NOW - DAY, not_after=expires))
    ((name, _, _, _, value),) = found.samples()
    assert (name, value) == ("liftlog_http_certificate_expires_timestamp_seconds", expires.timestamp())


# --- files that change -----------------------------------------------------------------------------------------


def looks(certificates: Certificates, count: int = 2) -> None:
    """So often, as the thread does: files that have changed are read once they stay as they are."""
    for _ in range(count):
        certificates.look()


def test_a_renewed_certificate_is_taken_and_a_bad_one_is_not(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    certificates = authority.certificates()
    first = certificates.contexts.server()
    looks(certificates)
    assert certificates.contexts.server() is first

    issued = authority.issue("broker", not_before=NOW - DAY, not_after=NOW + 7 * DAY)
    certificates.look()
    assert certificates.contexts.server() is first, "it may be half written"
    certificates.look()
    second = certificates.contexts.server()
    assert second is not first
    assert abs(certificates.expires - (NOW + 7 * DAY)) < timedelta(seconds=2)
    assert [line.split(" ")[0] for line in caplog.messages] == ["tls.certificate_taken"]

    caplog.clear()
    good = Path(issued.key).read_text()
    spoil(issued.key, "hello\n")
    looks(certificates, 5)
    assert certificates.contexts.server() is second
    os.remove(issued.key)
    looks(certificates, 5)
    assert certificates.contexts.server() is second
    assert [line.split(": ")[-1] for line in caplog.messages] == [
        "holds no private key in PEM",
        "No such file or directory",
    ], "one line for each change"

    caplog.clear()
    spoil(issued.key, good)
    looks(certificates)
    assert certificates.contexts.server() is not second
    assert [line.split(" ")[0] for line in caplog.messages] == ["tls.certificate_taken"]


def test_one_whose_size_and_time_are_as_before_is_taken(authority: Authority) -> None:
    """A key is always as long, and whoever copies with `cp -p` or from an image sets the time."""
    issued = authority.issue()
    certificates = authority.certificates(issued)
    first = certificates.contexts.server()
    paths = [Path(issued.cert), Path(issued.key)]
    before = [path.stat() for path in paths]
    for path, content in zip(paths, as_long_as(before, authority), strict=True):
        with path.open("r+b") as file:
            file.write(content)
    for path, was in zip(paths, before, strict=True):
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
        assert path.stat().st_size == was.st_size
    looks(certificates)
    assert certificates.contexts.server() is not first


def as_long_as(before: list[os.stat_result], authority: Authority) -> list[bytes]:
    """A certificate and its key of these sizes: signatures differ by a byte or two."""
    for _ in range(200):
        other = authority.issue("other")
        found = [Path(path).read_bytes() for path in (other.cert, other.key)]
        if [len(each) for each in found] == [each.st_size for each in before]:
            return found
    raise AssertionError("none is as long")


def test_one_that_is_not_valid_yet_is_taken_when_it_is(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """X2: its files do not change again."""
    now_s = [NOW.timestamp()]
    certificates = Certificates(load(None, {}, authority.settings()).http, now=lambda: now_s[0])
    first = certificates.contexts.server()
    authority.issue("broker", not_before=NOW + DAY, not_after=NOW + 9 * DAY)
    looks(certificates, 5)
    assert certificates.contexts.server() is first
    assert len(caplog.messages) == 1
    now_s[0] += 2 * DAY.total_seconds()
    certificates.look()
    assert certificates.contexts.server() is not first


async def test_a_broker_starts_with_one_that_has_expired_and_says_so(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """X3: it takes what comes over NATS. A renewed one is taken without a restart."""
    now_s = [NOW.timestamp()]
    expired = authority.issue("broker", not_before=NOW - 3 * DAY, not_after=NOW - DAY)
    settings = {**authority.settings(expired), "data_dir": str(tmp_path / "data"), "http.port": 0}
    config = load(None, {}, {**settings, "intake.enabled": False})
    with pytest.raises(InvalidSetting, match="has expired at"):
        certificates_of(config.http)
    broker = lone_broker(config)
    await broker.start()
    await broker.stop()
    caplog.clear()
    certificates = Certificates(config.http, now=lambda: now_s[0])
    certificates.start()
    certificates.stop()
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "has expired at" in line
    first = certificates.contexts.server()
    authority.issue("broker", not_before=NOW - 2 * DAY, not_after=NOW - DAY)
    looks(certificates, 4)
    assert certificates.contexts.server() is first, "of two that have expired the first stays"
    authority.issue("broker", not_before=NOW - DAY, not_after=NOW + DAY)
    looks(certificates, 4)
    assert certificates.contexts.server() is not first
    assert certificates.out_of_date is None


@pytest.mark.parametrize("section", ["http", "cluster"])
def test_one_that_expires_while_it_is_in_use_stays_and_that_is_an_error(
    authority: Authority, caplog: pytest.LogCaptureFixture, section: str
) -> None:
    """X3: one line, when it expires. A renewed one that expires in its turn has another."""
    now_s = [NOW.timestamp()]

    def errors() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]

    issued = authority.issue("broker", not_before=NOW - DAY, not_after=NOW + DAY)
    config = load(None, {}, {**authority.settings(issued), **authority.cluster_settings(issued)})
    certificates = Certificates(config.http if section == "http" else config.cluster, now=lambda: now_s[0])
    looks(certificates)
    assert errors() == []
    now_s[0] += 2 * DAY.total_seconds()
    looks(certificates, 3)
    assert certificates.expires.timestamp() < now_s[0]
    assert certificates.contexts.server() is not None
    [line] = errors()
    assert line.startswith("tls.certificate_refused ")
    assert all(each in line for each in (f"{section}.tls_cert", issued.cert, certificates.expires.isoformat()))
    authority.issue("broker", not_before=NOW - DAY, not_after=NOW + 3 * DAY)
    looks(certificates, 3)
    assert len(errors()) == 1
    now_s[0] += 2 * DAY.total_seconds()
    looks(certificates, 3)
    assert len(errors()) == 2


def test_where_names_are_required_a_broker_shows_one(authority: Authority) -> None:
    """When it starts, and when the files are renewed."""
    settings = {
        **authority.cluster_settings(authority.issue(uris=["liftlog:broker/a"])),
        "cluster.tls_names": "required",
    }
    config = load(None, {}, settings).cluster
    certificates = Certificates(config, broker="a")
    before = certificates.contexts.server()
    authority.issue()
    certificates.look()
    certificates.look()
    assert certificates.contexts.server() is before
    with pytest.raises(InvalidSetting, match="is a certificate without a URI liftlog:broker/a, which"):
        certificates_of(config, broker="a")
    with pytest.raises(InvalidSetting, match=r"tls_names needs cluster\.tls_cert"):
        load(None, {}, {"cluster.tls_names": "required"})


KEYS: dict[str, Callable[[], Any]] = {
    "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "p521": lambda: ec.generate_private_key(ec.SECP521R1()),
    "rsa": lambda: rsa.generate_private_key(65_537, 2048),
    "ed25519": ed25519.Ed25519PrivateKey.generate,
}


@pytest.mark.parametrize(
    ("uris", "says"),
    [
        ([], ""),
        (["https://elsewhere.example/"], ""),
        (["liftlog:broker/b", "liftlog:broker/a"], ""),
        (["liftlog:broker/b"], "is the certificate of b, and not of a"),
        (["liftlog:user/a"], "is the certificate of no broker, and not of a"),
        (["LIFTLOG:broker/a"], "is the certificate of no broker, and not of a"),
        (["liftlog:broker/a/b", "liftlog:broker/"], "is the certificate of , a/b, and not of a"),
    ],
)
def test_a_broker_takes_no_certificate_of_another_one(authority: Authority, uris: list[str], says: str) -> None:
    """Neither when it starts nor when the files are renewed: others would refuse it."""
    config = load(None, {}, authority.cluster_settings()).cluster
    certificates = Certificates(config, broker="a")
    before = certificates.contexts.server()
    authority.issue(uris=uris)
    certificates.look()
    certificates.look()
    assert (certificates.contexts.server() is before) == bool(says)
    if says:
        with pytest.raises(InvalidSetting, match=says):
            certificates_of(config, broker="a")
    else:
        assert certificates_of(config, broker="a") is not None
