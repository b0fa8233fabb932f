"""Goal: what brokers replicate goes over TLS, between those whose certificates are of their CA, and between no others.
Who is kept out hears why.

Method: as test_link.py and test_bulk.py, with certificates of a CA of the test; strangers are bare sockets.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker.api.certificate_faults import Unbelieved
from broker.config.certificates import Certificates
from broker.link import answering, bulk, door, tls
from broker.link.bulk import Transfer
from broker.link.bulk_reader import BulkReader
from broker.link.door import GREETING_S, STRANGERS_MAX
from broker.link.handshake import Refused
from broker.link.server import PURPOSE
from broker.link.tls import LinkTls, connected
from broker.metadata.partition import Place
from broker.storage.disk import OsDisk
from broker.storage.read import ReadPlan
from broker.storage.segments.segment import Segment
from tests.support.certificates import Authority
from tests.support.doors import BulkDoor, RawCall, bulk_door
from tests.support.linked import Linked, linked
from tests.support.processes import eventually
from tests.unit.link.test_faults import BIG, filled

pytestmark = pytest.mark.slow


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "other-ca")


@pytest.fixture
def two(tmp_path: Path, ours: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Linked]:
    monkeypatch.setattr(answering, "BULK_BYTES_LEAST", 1 << 16)
    with linked(tmp_path, ("a", "b")) as cluster:
        cluster.certificates = {name: ours.cluster_certificates(ours.issue(name)) for name in cluster.names}
        cluster.start()
        yield cluster


def test_records_are_replicated_over_tls_and_in_bulk(two: Linked) -> None:
    [at] = two.create(min_insync=1)
    away = filled(two, at)
    two.start(away)
    two.in_sync(at)
    two.same(at)
    assert two.nodes[away].link.bulk_bytes > 1 << 16
    assert two.nodes[away].link.counts["bulk_failed"] == 0
    two.stored(at, BIG)
    two.same(at)
    assert not any(node.link.server.refused for node in two.nodes.values())


@pytest.mark.parametrize(
    ("leads", "follows"),
    [
        (None, "accept"),
        ("accept", None),
        ("accept", "dial"),
        ("dial", "accept"),
        ("dial", "required"),
        ("required", "dial"),
    ],
)
def test_brokers_of_two_steps_to_tls_replicate_and_in_bulk(
    tmp_path: Path, ours: Authority, monkeypatch: pytest.MonkeyPatch, leads: str | None, follows: str | None
) -> None:
    """C8. Each pair of neighbouring steps; names are required of those who show a certificate."""
    monkeypatch.setattr(answering, "BULK_BYTES_LEAST", 1 << 16)
    with linked(tmp_path, ("a", "b")) as cluster:
        cluster.start()
        [at] = cluster.create(min_insync=1)
        away = filled(cluster, at)
        [leader] = set(cluster.names) - {away}
        for name, mode in ((leader, leads), (away, follows)):
            if mode is not None:
                issued = ours.issue(name, uris=[f"liftlog:broker/{name}"])
                cluster.certificates[name] = ours.cluster_certificates(issued, names="required", tls=mode)
        cluster.stop(leader)
        cluster.start(leader)
        cluster.start(away)
        cluster.in_sync(at)
        cluster.same(at)
        link = cluster.nodes[away].link
        assert link.bulk_bytes > 1 << 16
        assert link.counts["bulk_failed"] == 0
        cluster.stored(at, BIG)
        cluster.same(at)
        assert not any(node.link.server.refused for node in cluster.nodes.values())


def returns(cluster: Linked, at: Place, certificates: Certificates | None) -> str:
    """Let a follower come back with these. Its name."""
    away = filled(cluster, at, 1)
    issued = cluster.certificates.pop(away)
    if certificates is not None:
        cluster.certificates[away] = certificates
    cluster.start(away)
    eventually(lambda: cluster.nodes[away].link.counts["refused"] > 1, what="handshakes that fail")
    leader = cluster.leader(at)
    eventually(lambda: not leader.link.server.streams(), what="the stream of before is over")
    assert cluster.nodes[away].log(at).state.log_end_offset < leader.log(at).state.log_end_offset
    cluster.stop(away)
    cluster.certificates[away] = issued
    cluster.start(away)
    cluster.in_sync(at)
    cluster.same(at)
    return away


@pytest.mark.parametrize(
    ("believes", "shows", "says"),
    [
        ("other", "other", "its certificate is not believed: self-signed certificate in certificate chain"),
        ("other", "ours", "its certificate is not believed: self-signed certificate in certificate chain"),
        ("ours", "other", "it refuses this broker's certificate: tlsv1 alert unknown ca (cluster.tls_cert)"),
    ],
)
def test_a_broker_of_another_ca_is_kept_out_and_hears_why(
    two: Linked,
    ours: Authority,
    other: Authority,
    believes: str,
    shows: str,
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The secret is the right one."""
    authorities = {"ours": ours, "other": other}
    [at] = two.create(min_insync=1)
    shown = authorities[shows]
    returns(two, at, shown.cluster_certificates(shown.issue("returned"), ca=authorities[believes].ca))
    [line] = not_let_in(caplog)
    assert f"reason=tls count=1 error={says}" in line


def test_a_broker_without_tls_is_kept_out_and_hears_why(two: Linked, caplog: pytest.LogCaptureFixture) -> None:
    [at] = two.create(min_insync=1)
    returns(two, at, None)
    [line] = not_let_in(caplog)
    assert "reason=tls count=1 error=TLS is spoken there, and not by this broker" in line


def test_a_broker_with_tls_says_that_another_one_has_none(
    tmp_path: Path, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with linked(tmp_path, ("a", "b")) as cluster:
        cluster.start()
        [at] = cluster.create(min_insync=1)
        away = filled(cluster, at, 1)
        cluster.certificates[away] = ours.cluster_certificates()
        cluster.start(away)
        eventually(lambda: cluster.nodes[away].link.counts["refused"] > 1, what="handshakes that fail")
    [line] = not_let_in(caplog)
    assert "reason=tls count=1 error=it does not speak TLS there" in line


def not_let_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("replica.not_let_in ")]


def test_a_certificate_is_good_for_its_hosts_alone(two: Linked, ours: Authority) -> None:
    """Whoever has another broker's cannot take the place of this one."""
    [at] = two.create(min_insync=1)
    away = filled(two, at, 1)
    two.certificates[away] = ours.cluster_certificates(ours.issue("elsewhere", "elsewhere.example"))
    two.start(away)
    port = two.relays[away].target
    with pytest.raises(Refused, match="tls: its certificate is not believed: IP address mismatch"):
        connected("127.0.0.1", port, link_tls(ours), 5.0)
    two.in_sync(at)  # as one that calls it is believed


def link_tls(authority: Authority) -> LinkTls:
    found = LinkTls.of(authority.cluster_certificates(authority.issue("caller", "caller.example")))
    assert found is not None
    return found


@pytest.mark.parametrize("how", ["plain", "no certificate", "another CA's"])
def test_strangers_are_not_greeted(two: Linked, ours: Authority, other: Authority, how: str) -> None:
    connection = socket.create_connection(("127.0.0.1", two.relays["a"].target), 60)
    if how != "plain":
        context = ours.client_context(None if how == "no certificate" else other.issue())
        connection = context.wrap_socket(connection, server_hostname="127.0.0.1")
    assert RawCall(connection, PURPOSE).end() == ("", "")
    eventually(lambda: two.nodes["a"].link.server.refused == {"tls": 1}, what="it is counted")


@pytest.mark.long
def test_handshakes_that_never_end_keep_nobody_out(two: Linked) -> None:
    port = two.relays["a"].target
    silent = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(50)]
    begun_s = time.monotonic()
    [at] = two.create()
    two.stored(at, b"x")
    two.in_sync(at)
    for each in silent:
        with contextlib.suppress(ConnectionResetError):
            assert each.recv(1) == b""
        each.close()
    assert time.monotonic() - begun_s < 10 * GREETING_S


# -- renewed files -----------------------------------------------------------------------------------------------


def test_a_certificate_is_shown_at_each_connection(tmp_path: Path, ours: Authority) -> None:
    """C6. Seen before, with gRPC's server: by a ticket an expired one was good for two days more."""
    context = ours.client_context(ours.issue("caller"))
    with linked(tmp_path, ("a",)) as cluster:
        cluster.certificates = {"a": ours.cluster_certificates(ours.issue("a"))}
        cluster.start()
        address = "127.0.0.1", cluster.relays["a"].target
        with context.wrap_socket(socket.create_connection(address, 60), server_hostname="127.0.0.1") as connection:
            connection.sendall(b"what?")
            assert connection.recv(1_000), "it is answered"
            assert connection.session is None or not connection.session.has_ticket
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
            context.wrap_socket(socket.create_connection(address, 60), server_hostname="127.0.0.1")


# -- names of brokers ---------------------------------------------------------------------------------------------


def named(authority: Authority, *brokers: str, names: str = "optional") -> Certificates:
    uris = [f"liftlog:broker/{broker}" for broker in brokers]
    return authority.cluster_certificates(authority.issue("-".join(brokers) or "nobody", uris=uris), names=names)


def test_brokers_with_certificates_of_their_own_replicate_also_in_bulk(
    tmp_path: Path, ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "BULK_BYTES_LEAST", 1 << 16)
    with linked(tmp_path, ("a", "b")) as cluster:
        cluster.certificates = {name: named(ours, name) for name in cluster.names}
        cluster.start()
        [at] = cluster.create(min_insync=1)
        away = filled(cluster, at)
        cluster.start(away)
        cluster.in_sync(at)
        cluster.same(at)
        assert cluster.nodes[away].link.bulk_bytes > 1 << 16


def test_who_has_the_certificate_of_another_broker_is_kept_out_and_hears_why(
    two: Linked, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """C5: as one that calls. Its secret, its CA and its host are the right ones."""
    [at] = two.create(min_insync=1)
    away = filled(two, at, 1)
    issued = two.certificates[away]
    two.certificates[away] = named(ours, "somebody")
    two.start(away)
    leader = two.leader(at)
    eventually(lambda: two.nodes[away].link.counts["refused"] > 1, what="it is not let in")
    assert leader.link.server.refused["certificate"] > 1
    eventually(lambda: not leader.link.server.streams(), what="the stream of before is over")
    [line] = not_let_in(caplog)
    assert f"{away}: what it shows is the certificate of somebody, and not of {away}" in line
    two.stop(away)
    two.certificates[away] = issued
    two.start(away)
    two.in_sync(at)
    two.same(at)


def test_who_shows_the_certificate_of_another_broker_is_not_called(two: Linked, ours: Authority) -> None:
    """C5: as one that is called."""
    two.stop("a")
    two.certificates["a"] = named(ours, "somebody", "elsewhere")
    two.start("a")
    port = two.relays["a"].target
    says = "tls: what it shows is the certificate of elsewhere, somebody, and not of a"
    with pytest.raises(Refused, match=says):
        connected("127.0.0.1", port, link_tls(ours), 60.0, "a")
    connected("127.0.0.1", port, link_tls(ours), 60.0, "somebody").close()


def test_where_names_are_required_who_shows_none_is_kept_out(
    two: Linked, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """C5: as one that calls, and as one that is called. It asks for no names itself."""
    for name in two.names:
        two.stop(name)
        two.certificates[name] = named(ours, name, names="required")
        two.start(name)
    [at] = two.create(min_insync=1)
    away = filled(two, at, 1)
    issued = two.certificates[away]
    two.certificates[away] = named(ours)
    two.start(away)
    leader = two.leader(at)
    eventually(lambda: two.nodes[away].link.counts["refused"] > 1, what="it is not let in")
    assert leader.link.server.refused["certificate"] > 1
    eventually(lambda: not leader.link.server.streams(), what="the stream of before is over")
    says = f"what it shows is a certificate without a URI liftlog:broker/{away}"
    assert any(f"{away}: {says}" in line for line in not_let_in(caplog))
    mine = LinkTls.of(named(ours, "caller", names="required"))
    with pytest.raises(Refused, match=says):
        connected("127.0.0.1", two.relays[away].target, mine, 60.0, away)
    two.stop(away)
    two.certificates[away] = issued
    two.start(away)
    two.in_sync(at)
    two.same(at)


def test_a_revoked_certificate_is_good_for_no_broker(
    two: Linked, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """At the port, on the way there, and after the CA has taken it off its list."""
    shown = {name: ours.issue(name, uris=[f"liftlog:broker/{name}"]) for name in two.names}
    crl = ours.revoke()
    for name in two.names:
        two.stop(name)
        two.certificates[name] = ours.cluster_certificates(shown[name], crl=crl)
        two.start(name)
    [at] = two.create(min_insync=1)
    away = filled(two, at, 1)
    ours.revoke(shown[away])
    leader = two.leader(at)
    for name in set(two.names) - {away}:
        two.certificates[name].look()
        two.certificates[name].look()
    two.start(away)
    eventually(lambda: two.nodes[away].link.counts["refused"] > 1, what="it is not let in")
    assert leader.link.server.refused["certificate"] > 1
    eventually(lambda: not leader.link.server.streams(), what="the stream of before is over")
    assert any(f"{away}: it shows certificate" in line and "revoked" in line for line in not_let_in(caplog))
    mine = LinkTls.of(ours.cluster_certificates(ours.issue("caller"), crl=crl))
    with pytest.raises(Refused, match=r"tls: it shows certificate .*, which is revoked"):
        connected("127.0.0.1", two.relays[away].target, mine, 60.0, away)
    ours.revoke()
    for name in two.names:
        two.certificates[name].look()
        two.certificates[name].look()
    two.in_sync(at)
    two.same(at)


def test_renewed_files_are_taken_by_new_connections_and_old_ones_go_on(
    two: Linked, ours: Authority, other: Authority
) -> None:
    """Even those of another CA: all brokers have it before the first connection breaks."""
    [at] = two.create()
    two.stored(at, b"x")
    two.in_sync(at)
    for name in two.names:
        issued, now = other.issue(name), two.certificates[name]
        for old, new in ((ours.folder / f"{name}.pem", issued.cert), (ours.folder / f"{name}.key", issued.key)):
            old.write_bytes(Path(new).read_bytes())
    Path(ours.ca).write_bytes(Path(other.ca).read_bytes())
    for name in two.names:
        now = two.certificates[name]
        before = now.contexts.server()
        now.look()
        now.look()
        assert now.contexts.server() is not before
    two.stored(at, b"on the connection of before")
    streams = [stream for node in two.nodes.values() for stream in node.link.server.streams()]
    assert streams
    for relay in two.relays.values():
        relay.cut()
    eventually(lambda: all(stream.is_over for stream in streams), what="them to be over")
    two.stored(at, b"on a new one")
    two.in_sync(at)
    two.same(at)
    theirs = link_tls(other)
    for relay in two.relays.values():
        connected("127.0.0.1", relay.target, theirs, 60.0).close()


# -- bulk --------------------------------------------------------------------------------------------------------


@pytest.fixture
def refused() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def server(ours: Authority, refused: list[tuple[str, str]]) -> Iterator[BulkDoor]:
    with bulk_door(lambda reason, who, text: refused.append((reason, text)), link_tls(ours)) as made:
        yield made


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("plain", "it does not speak TLS there"),
        ("no certificate", "it shows no certificate"),
        ("another CA's", "its certificate is not believed: unable to get local issuer certificate"),
        ("believes another CA", "it refuses this broker's certificate: tlsv1 alert unknown ca"),
    ],
)
def test_a_stranger_gets_nothing_in_bulk_and_is_said(
    server: BulkDoor, refused: list[tuple[str, str]], ours: Authority, other: Authority, how: str, says: str
) -> None:
    with socket.create_connection(("127.0.0.1", server.told_port), 60) as connection:
        if how == "plain":
            connection.sendall(bytes(64))
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(100):  # an alert
                    pass
        else:
            context = (other if how == "believes another CA" else ours).client_context(
                None if how == "no certificate" else other.issue()
            )
            context.check_hostname = False
            refusals = contextlib.suppress(ssl.SSLError, ConnectionResetError)
            with refusals, context.wrap_socket(connection) as secured:
                assert secured.recv(1) == b""
    eventually(lambda: refused, what="it is counted")
    [(reason, text)] = refused
    assert (reason, text[: len(says)]) == ("tls", says)


@pytest.fixture(params=["optional", "required"])
def strict(ours: Authority, refused: list[tuple[str, str]], request: pytest.FixtureRequest) -> Iterator[BulkDoor]:
    """One that may ask for names. Whose certificate is another's is among those refused."""
    tls = LinkTls.of(
        named(ours, "server", names=request.param), lambda who, found: refused.append((found.fault, found.why))
    )
    with bulk_door(lambda reason, who, text: refused.append((reason, text)), tls) as made:
        yield made


def test_a_ticket_is_for_the_broker_that_was_told_it(
    strict: BulkDoor, refused: list[tuple[str, str]], ours: Authority, tmp_path: Path
) -> None:
    """B1: who stole it on the way has another certificate. It is good for its own broker after that."""
    server, is_required = strict, strict.tls is not None and strict.tls.needs_name
    (tmp_path / "file").write_bytes(b"0123456789")
    plan = ReadPlan(0)
    file = plan.own(OsDisk().open(f"{tmp_path}/file", readonly=True))
    plan.add(Segment(str(tmp_path), 0), file, 0, 0, 10, 1)
    transfer = Transfer("b", plan, lambda: True)
    server.offer(transfer)
    for who in ("", "b") if is_required else ("somebody", "b"):
        context = named(ours, *filter(None, [who])).contexts.client()
        context.check_hostname = False
        plain = socket.create_connection(("127.0.0.1", server.told_port), 60)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(bulk.PURPOSE + transfer.ticket)
            assert connection.recv(100) == (b"0123456789" if who == "b" else b"")
    shows = "the certificate of somebody, and not of b"
    if is_required:
        shows = "a certificate without a URI liftlog:broker/b, which cluster.tls_names asks for"
    assert refused == [
        ("misnamed", f"what it shows is {shows}"),
        ("ticket", f"no ticket: what it shows is {shows}, whose ticket this is"),
    ]


def test_whose_certificate_is_not_believed_is_told_with_its_fault_and_nobody_else(
    ours: Authority, other: Authority
) -> None:
    """For the audit. On both sides."""
    told: list[tuple[str, Unbelieved]] = []
    good, bad, day, now = ours.issue("good"), ours.issue("bad"), timedelta(days=1), datetime.now(UTC)
    strict = ours.cluster_certificates(good, crl=ours.revoke(bad))
    tls = LinkTls.of(strict, lambda address, found: told.append((address, found)))
    callers = {
        "expired": ours.issue("old", not_before=now - 2 * day, not_after=now - day),
        "not_yet_valid": ours.issue("new", not_before=now + day, not_after=now + 2 * day),
        "foreign": other.issue(),
        "missing": None,
    }
    with bulk_door(lambda *_: None, tls) as made:
        address = "127.0.0.1", made.told_port
        socket.create_connection(address, 60).close()
        with socket.create_connection(address, 60) as plain, contextlib.suppress(ConnectionResetError):
            plain.sendall(bytes(64))
            while plain.recv(100):
                pass
        for number, (fault, issued) in enumerate(callers.items(), 1):
            context = ours.client_context(issued)
            refusals = contextlib.suppress(ssl.SSLError, ConnectionResetError)
            with refusals, context.wrap_socket(socket.create_connection(address, 60), server_hostname="127.0.0.1") as c:
                assert c.recv(1) == b""
            eventually(lambda number=number: len(told) == number, what=f"{fault} is told")
        assert [(who, each.fault, each.is_called) for who, each in told] == [
            ("127.0.0.1", fault, False) for fault in callers
        ]
        told.clear()
    foreign, revoked = LinkTls.of(other.cluster_certificates()), LinkTls.of(ours.cluster_certificates(bad))
    for theirs in (foreign, revoked):
        with bulk_door(lambda *_: None, theirs) as made, pytest.raises(Refused):
            connected("127.0.0.1", made.told_port, tls, 60.0)
    assert [(who, each.fault, each.is_called) for who, each in told] == [
        ("127.0.0.1", "foreign", True),
        ("127.0.0.1", "revoked", True),
    ]


def test_bulk_is_fetched_of_a_leader_that_shows_its_name_where_names_are_required(ours: Authority) -> None:
    for shown, is_taken in (((), False), (("b",), False), (("a",), True)):
        made = BulkDoor(lambda reason, who, text: None, LinkTls.of(named(ours, *shown)))
        mine = LinkTls.of(named(ours, "me", names="required"))
        reader = BulkReader("a", lambda said, data: True, lambda at: None, Counter(), mine)
        with contextlib.ExitStack() as stack:
            stack.callback(made.stop)
            if not is_taken:
                stack.enter_context(pytest.raises(Refused, match="what it shows is"))
            reader._connected("127.0.0.1", made.told_port).close()


def test_bulk_knows_no_revoked_certificate(ours: Authority, refused: list[tuple[str, str]], tmp_path: Path) -> None:
    """Neither of whoever fetches, nor of whoever answers."""
    good, bad = ours.issue("good"), ours.issue("bad")
    crl = ours.revoke(bad)
    strict = LinkTls.of(
        ours.cluster_certificates(good, crl=crl), lambda who, found: refused.append((found.fault, found.why))
    )
    (tmp_path / "file").write_bytes(b"0123456789")
    for shown, mine in ((LinkTls.of(ours.cluster_certificates(bad)), strict), (strict, None)):
        server = BulkDoor(lambda reason, who, text: refused.append((reason, text)), shown)
        try:
            if mine is not None:
                reader = BulkReader("a", lambda said, data: True, lambda at: None, Counter(), mine)
                with pytest.raises(Refused, match=r"it shows certificate .*, which is revoked"):
                    reader._connected("127.0.0.1", server.told_port)
                continue
            plan = ReadPlan(0)
            file = plan.own(OsDisk().open(f"{tmp_path}/file", readonly=True))
            plan.add(Segment(str(tmp_path), 0), file, 0, 0, 10, 1)
            transfer = Transfer("b", plan, lambda: True)
            server.offer(transfer)
            for issued, answer in ((bad, b""), (good, b"0123456789")):
                context = ours.cluster_certificates(issued).contexts.client()
                plain = socket.create_connection(("127.0.0.1", server.told_port), 60)
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                    connection.sendall(bulk.PURPOSE + transfer.ticket)
                    assert connection.recv(100) == answer
        finally:
            server.stop()
    assert [reason for reason, text in refused if "which is revoked" in text] == ["revoked", "revoked", "ticket"]


def test_a_hello_in_pieces_is_refused_before_it_is_read(server: BulkDoor, refused: list[tuple[str, str]]) -> None:
    """C7."""
    with socket.create_connection(("127.0.0.1", server.told_port), 60) as connection:
        connection.sendall(b"\x16\x03\x01")
        connection.sendall(b"\x00\x01\x01" + b"".join(b"\x16\x03\x01\x00\x01" + bytes([at]) for at in (1, 255, 0)))
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    eventually(lambda: refused, what="it is counted")
    assert refused == [("tls", "its first message of TLS comes in pieces, as no broker's does")]


@pytest.mark.parametrize(
    ("says", "is_plain"), [(b"\x16\x03\x01\x00", False), (b"\x16\x04", True), (b"llq3", True), (b"", True)]
)
def test_what_is_spoken_is_known_from_as_many_bytes_as_it_takes(says: bytes, is_plain: bool) -> None:
    """C8: TCP may bring the first ones by themselves."""
    here, there = socket.socketpair()
    with here, there:
        found: list[bool] = []
        looks = threading.Thread(target=lambda: found.append(tls.is_plain(there, time.monotonic() + 60)))
        looks.start()
        for at in range(len(says)):
            here.sendall(says[at : at + 1])
            time.sleep(0.002)
        here.shutdown(socket.SHUT_WR)
        looks.join(60)
        assert found == [is_plain]
        assert there.recv(10) == says, "nothing is taken"


def test_who_begins_tls_and_goes_on_no_further_is_not_waited_for() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"\x16")
        with pytest.raises(TimeoutError):
            tls.is_plain(there, time.monotonic() + 0.05)


def test_a_handshake_that_takes_too_long_is_ended(
    server: BulkDoor, refused: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "GREETING_S", 0.2)
    with socket.create_connection(("127.0.0.1", server.told_port), 60) as connection:
        assert connection.recv(1) == b""
    assert [reason for reason, _ in refused] == ["tls"]


def test_the_oldest_unfinished_handshake_goes_first(
    server: BulkDoor, refused: list[tuple[str, str]], ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "GREETING_S", 3_600.0)
    silent = []
    for count in range(1, STRANGERS_MAX + 1):
        silent.append(socket.create_connection(("127.0.0.1", server.told_port), 60))
        eventually(lambda: len(server.door._strangers) == count, what="it is counted")  # noqa: B023
    context = link_tls(ours).client()
    context.check_hostname = False
    plain = socket.create_connection(("127.0.0.1", server.told_port), 60)
    with context.wrap_socket(plain) as connection:
        assert silent[0].recv(1) == b""
        eventually(lambda: refused, what="it is counted")
        eventually(lambda: len(server.door._visitors) == STRANGERS_MAX, what="the thread of the first one ends")
        connection.sendall(bulk.PURPOSE + bytes(32))
        assert connection.recv(1) == b""
    for each in silent:
        each.close()
