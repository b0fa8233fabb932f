"""Lists of revoked certificates: which are taken, what they say, and how long they hold.

Method: real lists of a CA in files, as `Certificates` reads them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509

from broker.api.errors import InvalidSetting
from broker.api.revocations import LIST, Revocations
from broker.config import certificates
from broker.config.certificates import Certificates, certificates_of
from broker.config.configuration import load
from tests.support.certificates import Authority, Issued


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def http_of(authority: Authority, crl: str) -> Certificates:
    found = certificates_of(load(None, {}, authority.settings(None, tls_client_ca=authority.ca, tls_crl=crl)).http)
    assert found is not None
    return found


def lists_of(authority: Authority, crl: str) -> Revocations:
    found = http_of(authority, crl).contexts.revocations()
    assert found is not None
    return found


def pem(issued: Issued) -> bytes:
    return Path(issued.cert).read_bytes()


def _written(authority: Authority, content: bytes) -> str:
    path = authority.folder / "ca.crl"
    path.write_bytes(content)
    return str(path)


def _of_another_ca(authority: Authority) -> str:
    return Authority(authority.folder / "other").revoke()


def _signed_by_another(authority: Authority) -> str:
    """It has the name of the CA, and another's signature."""
    other = Authority(authority.folder / "other")
    other._authority._certificate, kept = authority._authority._certificate, other._authority._certificate
    path = other.revoke()
    other._authority._certificate = kept
    return path


def _part(**of: Any) -> Callable[[Authority], str]:
    """A list of a part of the CA's certificates."""
    wanted = {
        "only_contains_user_certs": False,
        "only_contains_ca_certs": False,
        "only_contains_attribute_certs": False,
        "indirect_crl": False,
        "only_some_reasons": None,
        "relative_name": None,
        "full_name": None,
        **of,
    }
    return lambda authority: authority.revoke(extensions=[(x509.IssuingDistributionPoint(**wanted), True)])


FAULTS: list[tuple[Callable[[Authority], str], str]] = [
    (lambda authority: str(authority.folder / "none"), "cannot be read: No such file"),
    (lambda authority: _written(authority, b""), "holds no list of revoked certificates in PEM"),
    (lambda authority: authority.ca, "holds no list of revoked certificates in PEM"),
    (
        lambda authority: _written(authority, b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"),
        "list 1 cannot be understood",
    ),
    (lambda authority: _written(authority, b"x" * (4 << 20)), "is larger than 4194304 bytes"),
    (_of_another_ca, "list 1 is of no CA in http.tls_client_ca = "),
    (_signed_by_another, "list 1 is of no CA in http.tls_client_ca = .* or was not signed by it"),
    (
        lambda authority: _written(
            authority, Path(authority.revoke()).read_bytes() + Path(_of_another_ca(authority)).read_bytes()
        ),
        "list 2 is of no CA",
    ),
    (lambda authority: authority.revoke(extensions=[(x509.DeltaCRLIndicator(1), True)]), "list 1 has only what has"),
    (_part(only_contains_user_certs=True), "list 1 is not of all certificates"),
    (_part(indirect_crl=True), "list 1 is not of all certificates"),
    (_part(only_some_reasons=frozenset([x509.ReasonFlags.key_compromise])), "list 1 is not of all certificates"),
    (_part(only_contains_attribute_certs=True), "list 1 is not of certificates that can be shown"),
    (
        lambda authority: authority.revoke(
            extensions=[(x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"), True)]
        ),
        r"list 1 has a critical extension that is not known here: 1\.2\.3\.4",
    ),
]


@pytest.mark.parametrize(("made", "says"), FAULTS, ids=[says[:40] for _, says in FAULTS])
def test_a_list_that_does_not_say_all_of_a_ca_is_refused(
    authority: Authority, made: Callable[[Authority], str], says: str
) -> None:
    with pytest.raises(InvalidSetting, match=rf"^http\.tls_crl = '.*': {says}") as caught:
        http_of(authority, made(authority))
    assert caught.value.fields["key"] == "http.tls_crl"


def test_a_list_of_all_from_one_place_is_taken(authority: Authority) -> None:
    """Large CAs say where a list comes from, in an extension that is critical."""
    place = [x509.UniformResourceIdentifier("http://ca.example/all.crl")]
    made = _part(full_name=place)(authority)
    assert lists_of(authority, made).why_of_pem(pem(authority.issue("ana"))) == ""


@pytest.mark.parametrize("crl", ["http.tls_crl", "cluster.tls_crl"])
def test_a_list_needs_the_ca_that_it_is_of(crl: str) -> None:
    with pytest.raises(InvalidSetting, match=rf"{crl} needs "):
        load(None, {}, {crl: "ca.crl"})


def test_both_ways_of_saying_whose_a_certificate_is_find_it(authority: Authority) -> None:
    """As a handshake says it, and of a file."""
    ana, bob = authority.issue("ana"), authority.issue("bob")
    lists = lists_of(authority, authority.revoke(ana))
    for issued, is_revoked in ((ana, True), (bob, False)):
        assert lists.why_of_pem(pem(issued)).endswith("which is revoked") == is_revoked
        said = ssl_says(issued)
        assert lists.why_of(said).endswith("which is revoked") == is_revoked
        assert is_revoked or lists.why_of(said) == ""


def ssl_says(issued: Issued) -> dict[str, Any]:
    """A certificate as `getpeercert` says it."""
    import _ssl

    decoded: dict[str, Any] = _ssl._test_decode_cert(issued.cert)  # type: ignore[attr-defined]
    return decoded


def test_a_certificate_of_a_ca_without_a_list_is_refused(authority: Authority, tmp_path: Path) -> None:
    """L2. The file of CAs has two, and the file of lists one."""
    other = Authority(tmp_path / "other")
    Path(authority.ca).write_bytes(Path(authority.ca).read_bytes() + Path(other.ca).read_bytes())
    crl = authority.revoke()
    theirs = other.issue("theirs")
    assert "there is no list" in lists_of(authority, crl).why_of_pem(pem(theirs))
    assert "there is no list" in lists_of(authority, crl).why_of(ssl_says(theirs))
    assert lists_of(authority, crl).why_of_pem(pem(authority.issue("ours"))) == ""
    Path(crl).write_bytes(Path(crl).read_bytes() + Path(other.revoke()).read_bytes())
    assert lists_of(authority, crl).why_of_pem(pem(theirs)) == ""


def test_of_two_cas_of_one_name_each_has_a_list(tmp_path: Path) -> None:
    """L2. One that is made anew has the name of the one before. Its certificates would be looked up in the other one's
    list, which does not speak of them."""
    both = [Authority(tmp_path / name) for name in ("first", "second")]
    for made in both:
        made._authority = trustme.CA(organization_name="liftlog", organization_unit_name="CA")
        made._authority.cert_pem.write_to_path(made.ca)
    first, second = both
    ana, bob = first.issue("ana"), second.issue("bob")
    Path(first.ca).write_bytes(Path(first.ca).read_bytes() + Path(second.ca).read_bytes())
    crl, theirs = first.revoke(ana), second.revoke(bob)
    with pytest.raises(InvalidSetting, match=r"has a list of one CA .*, and none of another one of that name"):
        http_of(first, crl)
    Path(crl).write_bytes(Path(crl).read_bytes() + Path(theirs).read_bytes())
    assert all("is revoked" in lists_of(first, crl).why_of_pem(pem(each)) for each in (ana, bob))
    assert lists_of(first, crl).why_of_pem(pem(second.issue("eve"))) == ""


@pytest.mark.parametrize("shown", [{}, {"issuer": ()}, {"issuer": (), "serialNumber": "x"}], ids=str)
def test_what_cannot_be_looked_up_is_refused(authority: Authority, shown: dict[str, Any]) -> None:
    lists = lists_of(authority, authority.revoke())
    assert "shows no certificate" in lists.why_of(shown)
    assert "shows no certificate" in lists.why_of_pem(b"")
    assert "shows no certificate" in lists.why_of_pem(b"-----BEGIN CERTIFICATE-----")


def test_all_lists_of_a_ca_count(authority: Authority) -> None:
    ana, bob = authority.issue("ana"), authority.issue("bob")
    both = Path(authority.revoke(ana)).read_bytes() + Path(authority.revoke(bob)).read_bytes()
    lists = lists_of(authority, _written(authority, both))
    assert len(LIST.findall(both)) == 2
    assert all(lists.why_of_pem(pem(each)) for each in (ana, bob))


def test_a_list_stays_in_force_after_its_date_and_that_is_an_error(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """L1, X5: while it is in use, and at a start. One line for each list."""
    caplog.set_level(logging.INFO)
    now = datetime.now(UTC)
    ana, bob, shown = authority.issue("ana"), authority.issue("bob"), authority.issue()
    crl = authority.revoke(ana, expires=now + timedelta(hours=1))
    clock = [now.timestamp()]
    settings = authority.settings(shown, tls_client_ca=authority.ca, tls_crl=crl)
    found = Certificates(load(None, {}, settings).http, now=lambda: clock[0])

    def late() -> list[str]:
        return [line for line in caplog.messages if line.startswith("tls.revocations_late ")]

    found.look()
    assert late() == []
    assert [value for name, *_, value in found.samples() if "revocations" in name] == [
        pytest.approx(now.timestamp() + 3600, abs=1)
    ]
    clock[0] += 3601
    found.look()
    found.look()
    assert len(late()) == 1
    assert "http.tls_crl" in late()[0]
    lists = found.contexts.revocations()
    assert lists is not None
    assert lists.why_of_pem(pem(ana))
    assert not lists.why_of_pem(pem(bob))
    again = Certificates(load(None, {}, settings).http, now=lambda: clock[0])
    again.look()
    assert len(late()) == 2
    authority.revoke(ana, bob, expires=now + timedelta(days=1))
    found.look()
    found.look()
    lists = found.contexts.revocations()
    assert lists is not None
    assert lists.why_of_pem(pem(bob)), "a new list is taken"
    Path(crl).write_bytes(b"")
    found.look()
    found.look()
    assert found.contexts.revocations() is lists, "one that cannot be used is not"
    assert any("tls.certificate_refused" in line and "http.tls_crl" in line for line in caplog.messages)


@pytest.mark.parametrize("fault", ["no key", "half a CA", "expired", "another CA's list"])
def test_what_is_revoked_is_taken_whatever_else_is_wrong(authority: Authority, tmp_path: Path, fault: str) -> None:
    """X5: a key that cannot be used, a certificate that has expired, and a change of the CA that is half copied."""
    ana, shown = authority.issue("ana"), authority.issue()
    crl = authority.revoke()
    settings = authority.settings(shown, tls_client_ca=authority.ca, tls_crl=crl)
    found = Certificates(load(None, {}, settings).http)
    bob, before = authority.issue("bob"), found.contexts.server()
    if fault == "no key":
        Path(shown.key).write_bytes(b"")
    elif fault == "half a CA":
        Path(authority.ca).write_bytes(Path(authority.ca).read_bytes()[:300])
    elif fault == "expired":
        authority.issue(
            not_after=datetime.now(UTC) - timedelta(days=1), not_before=datetime.now(UTC) - timedelta(days=2)
        )
    else:
        other = Authority(tmp_path / "other")
        Path(authority.ca).write_bytes(Path(other.ca).read_bytes())
        Path(crl).write_bytes(Path(other.revoke()).read_bytes())
        Path(shown.key).write_bytes(b"")
    if fault != "another CA's list":
        authority.revoke(ana)
    found.look()
    found.look()
    lists = found.contexts.revocations()
    assert lists is not None
    assert found.contexts.server() is before
    assert lists.why_of_pem(pem(bob)) == "", "who is not on it comes in, whatever is half copied"
    assert bool(lists.why_of_pem(pem(ana))) == (fault != "another CA's list")


@pytest.mark.parametrize("is_beside", [False, True], ids=["alone", "beside a key that cannot be used"])
def test_a_list_of_before_takes_nothing_back(
    authority: Authority, caplog: pytest.LogCaptureFixture, is_beside: bool
) -> None:
    """L5. A copy of an old one let who had taken a certificate in again, and nothing said so."""
    ana, bob, shown = authority.issue("ana"), authority.issue("bob"), authority.issue()
    crl = authority.revoke(ana, extensions=[(x509.CRLNumber(7), False)])
    found = Certificates(load(None, {}, authority.settings(shown, tls_client_ca=authority.ca, tls_crl=crl)).http)

    def now(number: int, *revoked: Issued) -> list[bool]:
        authority.revoke(*revoked, extensions=[(x509.CRLNumber(number), False)])
        if is_beside:
            Path(shown.key).write_bytes(b"")
        for _ in range(3):
            found.look()
        lists = found.contexts.revocations()
        assert lists is not None
        return ["is revoked" in lists.why_of_pem(pem(each)) for each in (ana, bob)]

    def said() -> int:
        return sum(line.startswith("tls.revocations_older ") for line in caplog.messages)

    assert now(6) == [True, False]
    assert now(1, bob) == [True, True], "one that was begun anew"
    assert said() == 2
    assert now(8, bob) == [False, True], "the next one says what is so"
    assert now(8) == [False, False]
    assert said() == 2


def test_a_brokers_own_certificate_that_is_revoked_is_refused(authority: Authority) -> None:
    """X5: other brokers would not let it in."""
    issued = authority.issue()
    settings = {**authority.cluster_settings(issued), "cluster.tls_crl": authority.revoke(issued)}
    with pytest.raises(
        InvalidSetting, match=r"cluster\.tls_cert = '.*': cannot be used with cluster\.tls_crl: .* revoked"
    ):
        certificates_of(load(None, {}, settings).cluster)


def test_the_settings_and_metrics_are_of_the_same_sections() -> None:
    assert certificates.LISTS_EXPIRE.keys() == certificates.EXPIRES.keys()
