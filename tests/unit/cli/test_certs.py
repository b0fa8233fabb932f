"""`liftlog certs` makes a CA and certificates that brokers and clients take, and replaces nothing by accident.

Method: the command's own files, in a handshake of the standard library and in `certificates_of`.
"""

from __future__ import annotations

import errno
import os
import ssl
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from broker.api.errors import InvalidRequest, InvalidSetting
from broker.cli.main import app
from broker.config.certificates import certificates_of
from broker.config.configuration import load


def certs(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["certs", *arguments])


def refused(*arguments: str) -> str:
    error = certs(*arguments).exception
    assert isinstance(error, InvalidRequest), error
    return str(error)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    folder = tmp_path / "a ca"
    assert certs("init", str(folder)).exit_code == 0
    return folder


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Raises SSLError: one does not believe the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname=host)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (here, there):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    there.do_handshake()


def contexts(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A broker's, which wants certificates, and the one that it asks others with."""
    files = {"tls_cert": f"{name}.pem", "tls_key": f"{name}.key", "tls_client_ca": "ca.pem", "tls_ca": "ca.pem"}
    found = certificates_of(load(None, {}, {f"http.{key}": str(folder / file) for key, file in files.items()}).http)
    assert found is not None
    return found.contexts.server(), found.contexts.client()


def test_a_broker_and_its_clients_believe_each_other(ca: Path) -> None:
    hosts = ("broker.example", "127.0.0.1", "::1")
    assert certs("issue", str(ca), "broker", *(f"--host={host}" for host in hosts)).exit_code == 0
    assert certs("issue", str(ca), "me").exit_code == 0
    server, peer = contexts(ca, "broker")
    mine = ssl.create_default_context(cafile=str(ca / "ca.pem"))
    mine.verify_flags |= ssl.VERIFY_X509_STRICT
    mine.load_cert_chain(ca / "me.pem", ca / "me.key")
    for host in hosts:
        handshake(server, mine, host)
        handshake(server, peer, host)
    with pytest.raises(ssl.SSLError):
        handshake(server, mine, "other.example")
    with pytest.raises(ssl.SSLError):
        handshake(server, ssl.create_default_context(cafile=str(ca / "ca.pem")), hosts[0])


def test_a_clients_certificate_is_no_brokers(ca: Path) -> None:
    assert certs("issue", str(ca), "me").exit_code == 0
    server, _ = contexts(ca, "me")
    with pytest.raises(ssl.SSLError):
        handshake(server, ssl.create_default_context(cafile=str(ca / "ca.pem")), "me")


def test_a_brokers_certificate_names_the_brokers_that_it_is_for(ca: Path) -> None:
    """Others of the cluster hold it to that, and a broker its own."""
    names = ("--host", "a.example", "--broker", "broker-a", "--broker", "broker-b")
    assert "broker broker-a, broker broker-b" in certs("issue", str(ca), "broker", *names).output
    config = load(None, {}, {f"cluster.{key}": str(ca / file) for key, file in CLUSTER.items()}).cluster
    for broker in ("broker-a", "broker-b", None):
        assert certificates_of(config, broker=broker) is not None
    with pytest.raises(InvalidSetting, match="is the certificate of broker-a, broker-b, and not of broker-c"):
        certificates_of(config, broker="broker-c")
    certs("issue", str(ca), "broker", "--host", "a.example", "--force")
    assert certificates_of(config, broker="broker-c") is not None, "it names nobody"


CLUSTER = {"tls_cert": "broker.pem", "tls_key": "broker.key", "tls_ca": "ca.pem"}


@pytest.mark.parametrize("broker", ["", "a/b", "a b", "__a", "x" * 300])
def test_a_name_that_no_broker_has_is_refused(ca: Path, broker: str) -> None:
    refused("issue", str(ca), "broker", "--host", "a", "--broker", broker)
    assert "--broker needs --host" in refused("issue", str(ca), "broker", "--broker", "broker-a")
    assert not (ca / "broker.pem").exists()


def test_keys_are_their_owners_and_nothing_else_is_left(ca: Path) -> None:
    certs("issue", str(ca), "broker", "--host", "a")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in ca.iterdir()}
    assert modes == {"ca.pem": 0o644, "ca.key": 0o600, "broker.pem": 0o644, "broker.key": 0o600}


def test_nothing_is_replaced_without_force(ca: Path) -> None:
    certs("issue", str(ca), "broker", "--host", "a")
    before = {path: path.read_bytes() for path in ca.iterdir()}
    assert "ca.pem exists" in refused("init", str(ca))
    assert "broker.pem exists: name another, or replace it with --force" in refused("issue", str(ca), "broker")
    (ca / "broker.pem").unlink()
    assert "broker.key exists" in refused("issue", str(ca), "broker")
    assert {path: path.read_bytes() for path in ca.iterdir()} == {
        path: content for path, content in before.items() if path.name != "broker.pem"
    }
    assert certs("issue", str(ca), "broker", "--host", "a", "--force").exit_code == 0
    assert (ca / "broker.key").read_bytes() != before[ca / "broker.key"]


def test_no_certificate_outlives_its_ca(tmp_path: Path) -> None:
    assert certs("init", str(tmp_path / "ca"), "--days", "2").exit_code == 0
    assert certs("issue", str(tmp_path / "ca"), "broker", "--host", "a", "--days", "900").exit_code == 0
    ca, issued = (
        x509.load_pem_x509_certificate((tmp_path / "ca" / name).read_bytes()) for name in ("ca.pem", "broker.pem")
    )
    assert issued.not_valid_after_utc == ca.not_valid_after_utc


@pytest.mark.parametrize("name", ["ca", "CA", "", "../x", ".x", "a/b", "a b", "x" * 64])
def test_a_name_that_is_none_of_a_file_is_refused(ca: Path, name: str) -> None:
    assert "must be 1 to 63" in refused("issue", str(ca), name)


@pytest.mark.parametrize("host", ["", "https://a", "a:9293", "a b", "*.example", "-a", "x" * 64, "a..b"])
def test_what_is_no_host_is_refused(ca: Path, host: str) -> None:
    assert "--host" in refused("issue", str(ca), "broker", "--host", host)
    assert not (ca / "broker.key").exists()


def test_a_ca_that_cannot_sign_is_said(ca: Path, tmp_path: Path) -> None:
    assert "make a CA with `liftlog certs init" in refused("issue", str(tmp_path / "none"), "x")
    os.chmod(ca / "ca.key", 0o644)
    assert "mode 0644" in refused("issue", str(ca), "x")
    os.chmod(ca / "ca.key", 0o600)
    (ca / "ca.key").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    assert "cannot be understood" in refused("issue", str(ca), "x")
    certs("init", str(tmp_path / "other"))
    (ca / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    assert "is not the key of" in refused("issue", str(ca), "x")


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be made" in refused("init", str(tmp_path / "file" / "ca"))


def test_on_a_full_disk_the_former_files_stand_and_nothing_else_is_left(
    ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs("issue", str(ca), "broker", "--host", "a")
    before = {path: path.read_bytes() for path in ca.iterdir()}

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "broker.key cannot be written: No space left on device" in refused(
        "issue", str(ca), "broker", "--host", "a", "--force"
    )
    assert "ca.key cannot be written: No space left on device" in refused("init", str(ca), "--force")
    assert {path: path.read_bytes() for path in ca.iterdir()} == before


@pytest.mark.parametrize(
    ("option", "uri"),
    [
        ("--user=a", "liftlog:user/a"),
        ("--service=etl.7", "liftlog:svc/etl.7"),
        ("--broker=b1", "liftlog:broker/b1"),
    ],
)
def test_a_certificate_says_whose_it_is(ca: Path, option: str, uri: str) -> None:
    assert certs("issue", str(ca), "mine", option, "--host", "h.example").exit_code == 0
    names = x509.load_pem_x509_certificate((ca / "mine.pem").read_bytes()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.UniformResourceIdentifier) == [uri]
    assert names.value.get_values_for_type(x509.DNSName) == ["h.example"]
    assert "one of these kinds" in refused("issue", str(ca), "two", "--user=a", "--service=b")
    assert "must be user:NAME" in refused("issue", str(ca), "bad", "--user=a/b")


# --- what is revoked ------------------------------------------------------------------------------------------


def listed(folder: Path) -> set[int]:
    return {each.serial_number for each in x509.load_pem_x509_crl((folder / "ca.crl").read_bytes())}


def number(folder: Path, name: str) -> int:
    return x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes()).serial_number


def test_what_was_revoked_stays_on_the_list(ca: Path) -> None:
    """G4. Each list has the next number, and a date."""
    for name in ("ana", "bob"):
        assert certs("issue", str(ca), name).exit_code == 0
    assert "0 certificates are revoked, 0 of them new" in certs("revoke", str(ca)).output
    assert listed(ca) == set()
    assert "1 certificate is revoked, 1 of them new" in certs("revoke", str(ca), "ana").output
    former = number(ca, "ana")
    assert certs("issue", str(ca), "ana", "--force").exit_code == 0
    assert "3 certificates are revoked, 2 of them new" in certs("revoke", str(ca), "bob", "--serial", "0a").output
    assert "3 certificates are revoked, 0 of them new" in certs("revoke", str(ca), "bob", "--days", "7").output
    assert listed(ca) == {former, number(ca, "bob"), 10}
    found = x509.load_pem_x509_crl((ca / "ca.crl").read_bytes())
    assert found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 4
    assert found.next_update_utc is not None
    assert 6 <= (found.next_update_utc - found.last_update_utc).days <= 7
    assert stat.S_IMODE(os.stat(ca / "ca.crl").st_mode) == 0o644


def test_brokers_take_the_list_and_know_who_is_on_it(ca: Path) -> None:
    for name in ("broker", "ana"):
        assert certs("issue", str(ca), name, "--host", "localhost").exit_code == 0
    certs("revoke", str(ca), "ana")
    names = {"cert": "broker.pem", "key": "broker.key", "client_ca": "ca.pem", "crl": "ca.crl"}
    found = certificates_of(load(None, {}, {f"http.tls_{key}": str(ca / name) for key, name in names.items()}).http)
    assert found is not None
    lists = found.contexts.revocations()
    assert lists is not None
    assert (
        lists.why_of_pem((ca / "ana.pem").read_bytes()) == f"shows certificate {number(ca, 'ana'):X}, which is revoked"
    )
    assert lists.why_of_pem((ca / "broker.pem").read_bytes()) == ""


def test_a_list_that_cannot_be_gone_on_with_is_not_replaced(ca: Path, tmp_path: Path) -> None:
    """G4: what it has would be lost."""
    assert certs("issue", str(ca), "ana").exit_code == 0
    other = tmp_path / "other"
    certs("init", str(other))
    certs("revoke", str(other))
    for content, says in ((b"", "cannot be understood"), ((other / "ca.crl").read_bytes(), "is not of this CA")):
        (ca / "ca.crl").write_bytes(content)
        assert says in refused("revoke", str(ca), "ana")
        assert (ca / "ca.crl").read_bytes() == content


def test_only_what_the_ca_has_issued_can_be_revoked(ca: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    certs("init", str(other))
    certs("issue", str(other), "eve")
    (ca / "eve.pem").write_bytes((other / "eve.pem").read_bytes())
    assert "is no certificate of this CA" in refused("revoke", str(ca), "eve")
    assert "must be a NAME" in refused("revoke", str(ca), "../ca/eve")
    assert "must be a NAME" in refused("revoke", str(ca), "ca")
    assert isinstance(certs("revoke", str(ca), "nobody").exception, InvalidSetting)
    for text in ("zz", "", "0" * 41, "-1"):
        assert "must be 1 to 40 hexadecimal digits" in refused("revoke", str(ca), f"--serial={text}")
    assert not (ca / "ca.crl").exists()
