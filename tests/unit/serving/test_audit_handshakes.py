"""Whose certificate is not believed stands in `__audit`, and fills it no more than other strangers do.

Method: a real server over TLS whose audit is a real log; clients are the standard library's. Ports for other brokers:
tests/unit/link/test_tls.py, tests/unit/raft/test_tls.py, tests/cluster/test_three_tls.py.
"""

from __future__ import annotations

import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from broker.api.certificate_faults import FOREIGN, MALFORMED, Unbelieved
from broker.api.errors import Unavailable
from broker.api.stream import AUDIT_STREAM
from tests.support.certificates import Authority, Issued
from tests.support.processes import eventually
from tests.unit.serving.server import Server, running
from tests.unit.serving.test_audit import records
from tests.unit.serving.test_tls import LIVEZ, Tls


def tried(tls: Tls, issued: Issued | None) -> None:
    with suppress(ssl.SSLError, ConnectionError), tls.connect(tls.authority.client_context(issued)) as client:
        client.sendall(LIVEZ)
        while client.recv(100):
            pass


def told(server: Server) -> list[dict[str, Any]]:
    return [each for each in records(server) if each["operation"] == "handshake"]


@pytest.mark.parametrize("mode", ["required", "accept"])
def test_each_that_is_not_believed_is_recorded_and_nobody_else(tmp_path: Path, mode: str) -> None:
    """U9. A port that takes plain text, too, asks for a certificate of those who speak TLS."""
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    day, now = timedelta(days=1), datetime.now(UTC)
    with running(tmp_path / "data", body_bytes_max=1 << 20) as server:
        tls = Tls(server, ours, tls_client_ca=ours.ca, tls=mode)
        tls.raw().close()
        with tls.raw() as plain:
            plain.sendall(LIVEZ)
            assert plain.recv(12) == (b"HTTP/1.1 200" if mode == "accept" else b"HTTP/1.1 400")
        with tls.raw() as noise:
            noise.sendall(b"\x16\x03\x01\xff\xff" + b"x" * 100)
        with suppress(ssl.SSLError), tls.connect(other.client_context(ours.issue("mine"))):
            pass  # he does not believe this broker
        tried(tls, ours.issue("good"))
        tried(tls, ours.issue("old", not_before=now - 2 * day, not_after=now - day))
        tried(tls, ours.issue("new", not_before=now + day, not_after=now + 2 * day))
        tried(tls, other.issue())
        tried(tls, None)
        eventually(lambda: len(told(server)) == 4)
        faults = {each["asked"]["certificate"]: each["asked"]["why"] for each in told(server)}
        assert faults == {
            "expired": "the certificate is not believed: certificate has expired",
            "not_yet_valid": "the certificate is not believed: certificate is not yet valid",
            "foreign": "the certificate is not believed: unable to get local issuer certificate",
            "missing": "peer did not return a certificate",
        }
        for record in told(server):
            assert record["resource"] == {"port": "http", "side": "caller"}
            assert (record["kind"], record["result"], record["reason"]) == ("refusal", "refused", "unauthenticated")
            assert (record["principal"], record["how"], record["address"]) == ("anonymous", "nothing", "127.0.0.1")
            assert (record["broker"], record["status"], record["count"]) == ("broker-0", None, 1)
        assert len(records(server)) == 4, "the port scan, the noise and the alert are in the log alone"


def test_one_that_cannot_be_read_is_recorded_as_malformed(tmp_path: Path) -> None:
    """No client loads such a one: under TLS 1.2, where a certificate can be seen, its bytes are changed on the way."""
    ours = Authority(tmp_path / "ours")
    good = ours.issue("good")
    der = x509.load_pem_x509_certificate(Path(good.cert).read_bytes()).public_bytes(Encoding.DER)
    context = ours.client_context(good)
    context.maximum_version = context.minimum_version = ssl.TLSVersion.TLSv1_2
    with running(tmp_path / "data", body_bytes_max=1 << 20) as server:
        tls = Tls(server, ours, tls_client_ca=ours.ca, tls_min_version="1.2")
        to_client, from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(to_client, from_client, server_hostname="127.0.0.1")
        changed, alert = 0, ""
        with tls.raw() as wire:
            while not alert:
                try:
                    client.do_handshake()
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError as error:
                    alert = error.reason
                said = from_client.read()
                changed += said.count(der)
                wire.sendall(said.replace(der, bytes(len(der))))
                if not alert:
                    heard = wire.recv(1 << 16)
                    assert heard, "the end without an alert"
                    to_client.write(heard)
        assert changed == 1
        assert "ALERT" in alert
        eventually(lambda: len(told(server)) == 1)
        (record,) = told(server)
        assert record["asked"]["certificate"] == MALFORMED
        assert (record["result"], record["reason"], record["address"]) == ("refused", "unauthenticated", "127.0.0.1")


def test_a_broker_that_is_asked_is_recorded_as_one_that_asks(tmp_path: Path) -> None:
    """E8. Only for its certificate: one that is gone, speaks plain text, or does not believe this broker is in the log
    alone."""
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    day, now = timedelta(days=1), datetime.now(UTC)
    mine = ours.certificates(ours.issue("b1")).contexts
    shown = {
        "foreign": other.issue("b2"),
        "expired": ours.issue("b3", not_before=now - 2 * day, not_after=now - day),
        "misnamed": ours.issue("b4", "elsewhere.example"),
    }
    with (
        running(tmp_path / "data", body_bytes_max=1 << 20, tls=mine) as server,
        running(tmp_path / "there") as there,
    ):

        def ask(port: int) -> None:
            with pytest.raises(Unavailable):
                server.call(server.serving.peers.ask(f"127.0.0.1:{port}", "GET", "/v1/streams"))

        for issued in shown.values():
            ask(Tls(there, ours if issued is not shown["foreign"] else other, issued=issued).port)
        ask(Tls(there, ours, tls_client_ca=other.ca).port)
        ask(there.port)
        ask(1)
        eventually(lambda: len(told(server)) == len(shown))
        server.shut_down()
        assert [each["asked"]["certificate"] for each in told(server)] == list(shown)
        for record in told(server):
            assert record["resource"] == {"port": "http", "side": "called"}
            assert (record["address"], record["principal"], record["count"]) == ("127.0.0.1", "anonymous", 1)


def test_a_flood_from_all_ports_costs_so_many_records_and_one_that_counts_the_rest(tmp_path: Path) -> None:
    """U4, U9. From threads as those of the ports are; the addresses cannot be made up otherwise."""
    with running(tmp_path / "data", body_bytes_max=1 << 20) as server:
        owner = server.serving.audit

        def flood(port: str, address: str) -> None:
            for number in range(500):
                owner.kept_out(port, address.format(number % 50), Unbelieved(FOREIGN, "x" * 10_000))

        ports = [("raft", "10.0.0.1"), ("replica", "10.0.0.1"), ("replica", "10.1.{}.1"), ("http", "2001:db8:{}::1")]
        threads = [threading.Thread(target=flood, args=each) for each in ports]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        server.loop.call_soon_threadsafe(owner.summarise)
        eventually(lambda: any(each["kind"] == "suppressed" for each in records(server)))
        found = records(server)
        assert sum(each["count"] for each in found) == 2_000
        assert 100 <= len(found) <= 105
        assert max(len(str(each["asked"])) for each in told(server)) < 400
        of_one = [each for each in told(server) if each["address"] == "10.0.0.1"]
        assert len(of_one) <= 11
        assert server.backend.partition(AUDIT_STREAM, 0).log.state.byte_count < 100 << 10


def test_who_comes_before_and_behind_the_application_ends_nothing(tmp_path: Path) -> None:
    """Ports for brokers are open longer than the one for clients."""
    with running(tmp_path / "data", body_bytes_max=1 << 20) as server:
        owner = server.serving.audit
        server.shut_down()
        owner.kept_out("raft", "10.0.0.1", Unbelieved(FOREIGN, "x"))
    owner.kept_out("raft", "10.0.0.1", Unbelieved(FOREIGN, "x"))
