"""Goal: the group speaks TLS, between brokers whose certificates are of their CA, and who is kept out is told why.

Method: as test_wire.py, with certificates of a CA of the test: real connections on loopback, of nodes that one thread
ticks.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.poller import PollPoller
from pysyncobj.tcp_connection import TcpConnection

from broker.api.errors import DeadlineExceeded
from broker.raft import wire
from broker.raft.greeting import Lobby
from broker.raft.node import RaftNode, configuration, form
from broker.raft.secured import CUT_WITHIN, HANDSHAKE_READ_BYTES, RaftTls, SecuredSocket, is_open
from broker.raft.wire import STRANGERS_MAX, Voter, over_tls
from broker.storage.disk import OsDisk
from tests.support.certificates import Authority
from tests.unit.raft.test_wire import HELLO, SECRET, ports, until

pytestmark = [pytest.mark.slow, pytest.mark.long]
Told = list[list[tuple[str, str]]]


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "other-ca")


def tls_of(
    authority: Authority,
    *,
    ca: str | None = None,
    hosts: Sequence[str] = (),
    uris: Sequence[str] = (),
    names: str = "optional",
    mode: str = "required",
) -> RaftTls:
    found = authority.cluster_certificates(authority.issue("broker", *hosts, uris=uris), ca=ca, names=names, tls=mode)
    plain = {"takes_plain": found.contexts.takes_plain, "dials": found.contexts.dials}
    return RaftTls(found.contexts.server, found.contexts.client, found.needs_name, **plain)


@contextlib.contextmanager
def group(
    tmp_path: Path, tls: Sequence[RaftTls | None], *, secrets: Sequence[str] = ()
) -> Iterator[tuple[list[RaftNode], Told]]:
    """Nodes of brokers n0, n1, ..., and what each was told of those whom it refused."""
    addresses = [f"127.0.0.1:{port}" for port in ports(len(tls))]
    ids = tuple(f"n{i}.0@{address}" for i, address in enumerate(addresses))
    nodes: list[RaftNode] = []
    told: Told = []
    for i, each in enumerate(tls):
        folder = tmp_path / f"n{i}"
        folder.mkdir()
        journal = form(OsDisk(), str(folder / "raft.log"), node_id=ids[i], voters=ids, cluster_id="x")
        told.append([])
        nodes.append(
            RaftNode(
                journal,
                transport=over_tls(each),
                node=Voter,
                conf=configuration(secret=secrets[i] if secrets else SECRET, bind=addresses[i]),
                clock=time.monotonic,
                life=f"{i}",
                refused=lambda peer, why, told=told[-1]: told.append((peer, why)),
            )
        )
    try:
        yield nodes, told
    finally:
        for node in nodes:
            node.close()


def port_of(node: RaftNode) -> int:
    return int(node.node_id.rpartition(":")[2])


def transport(node: RaftNode) -> Any:
    return node.core._SyncObj__transport


def carried_out(nodes: list[RaftNode], node: RaftNode, **command: Any) -> Any:
    """Its result. Where it is in doubt, it is asked for again under its `request_id`, as whoever asks does: 6 MiB take
    longer than the time of a command on a busy machine."""
    results: list[Any] = []
    while True:
        node.submit({"v": 1, "kind": "register_producer", **command}, results.append)
        until(nodes, lambda: results)
        if not isinstance(result := results.pop(), DeadlineExceeded):
            return result


def test_three_brokers_carry_out_what_any_of_them_is_told(tmp_path: Path, ours: Authority) -> None:
    with group(tmp_path, [tls_of(ours)] * 3) as (nodes, told):
        until(nodes, lambda: any(node.has_begun for node in nodes) and all(node.controller for node in nodes))
        follower = next(node for node in nodes if not node.is_controller)
        assert carried_out(nodes, follower, name="p", request_id="r") == {"ok": {"producer_id": 1, "epoch": 0}}
        for node in nodes:
            for conn in transport(node)._connections.values():
                found = conn._TcpConnection__socket
                assert isinstance(found, SecuredSocket)
                assert found._open.version() == "TLSv1.3"
        assert told == [[], [], []]


@pytest.mark.parametrize(
    "modes",
    [(None, "accept", "accept"), (None, None, "accept"), ("accept", "dial", "dial"), ("dial", "required", "required")],
)
def test_brokers_of_two_steps_to_tls_are_a_group(tmp_path: Path, ours: Authority, modes: Sequence[str | None]) -> None:
    """S8. Each pair of neighbouring steps, whoever calls whom; names are required of those who show a certificate."""
    tls = [
        mode and tls_of(ours, uris=[f"liftlog:broker/n{i}"], names="required", mode=mode)
        for i, mode in enumerate(modes)
    ]
    with group(tmp_path, [each or None for each in tls]) as (nodes, told):
        until(nodes, lambda: any(node.has_begun for node in nodes) and all(node.controller for node in nodes))
        for number, node in enumerate(nodes):
            assert "ok" in carried_out(nodes, node, name=f"p{number}", request_id=f"{number}")
        until(nodes, lambda: len({node.core.raftLastApplied for node in nodes}) == 1)
        assert told == [[], [], []]


def test_who_says_too_little_at_a_port_that_takes_both_is_cut_at_once(
    tmp_path: Path, ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S8. The poller would ask again and again what there is."""
    monkeypatch.setattr(wire, "STRANGER_S", 3_600.0)
    with (
        group(tmp_path, [tls_of(ours, mode="accept")]) as ([node], _),
        socket.create_connection(("127.0.0.1", port_of(node))) as sock,
    ):
        until([node], lambda: transport(node)._unknownConnections)
        sock.sendall(b"\x16")
        until([node], lambda: not transport(node)._unknownConnections)


def test_a_lobby_that_takes_both_answers_both(ours: Authority) -> None:
    [port] = ports(1)
    address = f"127.0.0.1:{port}"
    answer = {"type": "hello", "refusal": "not now"}
    asks = {"plain": None, "accept": tls_of(ours, mode="accept"), "dial": tls_of(ours, mode="dial")}
    of: Any = {"secret": SECRET, "answer": lambda hello: answer, "clock": time.monotonic}
    for tls in (tls_of(ours, mode="accept"), tls_of(ours, mode="dial")):
        with Lobby(bind=address, tls=tls, **of) as lobby:
            for each in asks.values():
                with Lobby(bind=None, tls=each, **of) as asking:
                    found: list[Any] = []

                    def ask(asking: Lobby = asking, found: list[Any] = found) -> None:
                        found.append(asking.ask([address], HELLO, timeout_s=60))

                    asked = threading.Thread(target=ask)
                    asked.start()
                    while asked.is_alive():
                        lobby.wait(0.02)
                    assert found == [{address: answer}]


def test_a_command_of_many_records_of_tls_arrives(tmp_path: Path, ours: Authority) -> None:
    with group(tmp_path, [tls_of(ours)] * 3) as (nodes, _):
        until(nodes, lambda: any(node.has_begun for node in nodes) and all(node.controller for node in nodes))
        follower = next(node for node in nodes if not node.is_controller)
        assert "ok" in carried_out(nodes, follower, pad="y" * (6 << 20), request_id="r")
        until(nodes, lambda: len({node.core.raftLastApplied for node in nodes}) == 1)


@pytest.mark.parametrize(
    ("believes", "shows", "theirs", "own"),
    [
        (
            "other",
            "other",
            {"it refuses this broker's certificate: tlsv1 alert unknown ca", "its certificate is not believed"},
            {"its certificate is not believed", "it refuses this broker's certificate: tlsv1 alert unknown ca"},
        ),
        ("ours", "other", {"its certificate is not believed"}, {"it refuses this broker's certificate"}),
        ("other", "ours", {"it refuses this broker's certificate"}, {"its certificate is not believed"}),
    ],
)
def test_a_broker_of_another_ca_takes_no_part_and_both_sides_say_why(
    tmp_path: Path, ours: Authority, other: Authority, believes: str, shows: str, theirs: set[str], own: set[str]
) -> None:
    """The secret is the right one."""
    authorities = {"ours": ours, "other": other}
    foreign = tls_of(authorities[shows], ca=authorities[believes].ca)
    with group(tmp_path, [tls_of(ours), tls_of(ours), foreign]) as (nodes, told):
        until(nodes, lambda: any(node.is_controller for node in nodes[:2]))
        leader = next(node for node in nodes if node.is_controller)
        assert "ok" in carried_out(nodes, leader)
        until(nodes, lambda: all(told))
        assert nodes[2].controller is None
        assert nodes[2].core.raftLastApplied == 1
        for which, says in ((0, theirs), (1, theirs), (2, own)):
            for peer, why in told[which]:
                assert peer, "it says who"
                assert any(f"no TLS with it: {each}" in why for each in says), why


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_broker_without_tls_takes_no_part_and_it_is_said(tmp_path: Path, ours: Authority, which: int) -> None:
    tls: list[RaftTls | None] = [tls_of(ours)] * 3
    tls[which] = None
    with group(tmp_path, tls) as (nodes, told):
        others = [node for node in nodes if node is not nodes[which]]
        until(nodes, lambda: any(node.is_controller for node in others))
        until(nodes, lambda: all(told))
        assert nodes[which].controller is None
        whys = {why for each in told for _, why in each}
    assert any("it does not speak TLS there" in why or "it speaks TLS, and this broker does not" in why for why in whys)


def test_who_has_the_certificate_of_another_host_is_not_called(tmp_path: Path, ours: Authority) -> None:
    tls = [tls_of(ours, hosts=["elsewhere.example"])] * 2
    with group(tmp_path, tls) as (nodes, told):
        until(nodes, lambda: all(told))
        assert not any(node.controller for node in nodes)
    assert any("its certificate is not believed: IP address mismatch" in why for each in told for _, why in each)


@pytest.mark.parametrize("which", [0, 1])
def test_who_has_another_secret_takes_no_part_and_both_sides_say_why(
    tmp_path: Path, ours: Authority, which: int
) -> None:
    secrets = [SECRET, SECRET]
    secrets[which] = "another one, as long as that"
    with group(tmp_path, [tls_of(ours)] * 2, secrets=secrets) as (nodes, told):
        called, caller = sorted(nodes, key=lambda node: node.node_id)
        until(nodes, lambda: (called.node_id, CUT_WITHIN) in told[nodes.index(caller)])
        assert not any(node.controller for node in nodes)
    unclear = "what it says is not understood: another secret, or no broker"
    assert ("127.0.0.1", unclear) in told[nodes.index(called)]


@pytest.mark.parametrize("shows", ["liftlog:broker/n1", "liftlog:user/n2"])
def test_who_has_the_certificate_of_another_broker_takes_no_part_and_others_say_why(
    tmp_path: Path, ours: Authority, shows: str
) -> None:
    """S5, W14. Its secret, its CA and its host are the right ones. n0 has a certificate that names nobody. (By itself a
    broker does not start with another one's.)"""
    tls = [tls_of(ours), tls_of(ours, uris=["liftlog:broker/n1"]), tls_of(ours, uris=[shows])]
    with group(tmp_path, tls) as (nodes, told):
        until(nodes, lambda: any(node.is_controller for node in nodes[:2]))
        assert "ok" in carried_out(nodes, next(node for node in nodes if node.is_controller))
        until(nodes, lambda: told[0] and told[1])
        assert nodes[2].controller is None
        assert nodes[2].core.raftLastApplied == 1
        whose = "n1" if "broker" in shows else "no broker"
        for which in (0, 1):
            assert all(f"is the certificate of {whose}, and not of n2" in why for _, why in told[which]), told[which]


@pytest.mark.parametrize("who", ["n2", "others"])
def test_where_names_are_required_who_shows_none_takes_no_part(tmp_path: Path, ours: Authority, who: str) -> None:
    """S5, W14, in both directions: n2 calls and is called. `others`: these ask for names, else n2 does."""
    own = [f"liftlog:broker/n{number}" for number in range(3)]
    if who == "others":
        tls = [tls_of(ours, uris=[own[number]], names="required") for number in (0, 1)] + [tls_of(ours)]
    else:
        tls = [tls_of(ours)] * 2 + [tls_of(ours, uris=[own[2]], names="required")]
    with group(tmp_path, tls) as (nodes, told):
        until(nodes, lambda: any(node.is_controller for node in nodes[:2]))
        assert "ok" in carried_out(nodes, next(node for node in nodes if node.is_controller))
        asks = (0, 1) if who == "others" else (2,)
        until(nodes, lambda: all(told[which] for which in asks))
        assert nodes[2].controller is None
        for which in asks:
            assert all("is a certificate without a URI liftlog:broker/n" in why for _, why in told[which]), told[which]


def test_a_certificate_may_name_several_brokers(tmp_path: Path, ours: Authority) -> None:
    tls = tls_of(ours, uris=[f"liftlog:broker/n{i}" for i in range(3)])
    with group(tmp_path, [tls] * 3) as (nodes, told):
        until(nodes, lambda: any(node.has_begun for node in nodes) and all(node.controller for node in nodes))
        assert told == [[], [], []]


@pytest.mark.parametrize("which", [0, 1])
def test_a_revoked_certificate_is_good_for_no_broker(tmp_path: Path, ours: Authority, which: int) -> None:
    """Whichever of the two calls the other. After the list of the others has it, it is not let in again."""
    shown = [ours.issue(f"n{i}") for i in range(3)]
    crl = ours.revoke(name="ca.crl")
    found = [ours.cluster_certificates(each, crl=crl) for each in shown]
    unbelieved: list[set[str]] = [set() for _ in found]
    tls = [
        RaftTls(
            each.contexts.server,
            each.contexts.client,
            False,
            each.contexts.revocations,
            tell=lambda who, found, there=there: there.add(found.fault),
        )
        for each, there in zip(found, unbelieved, strict=True)
    ]
    with group(tmp_path, tls) as (nodes, told):
        until(nodes, lambda: any(node.has_begun for node in nodes) and all(node.controller for node in nodes))
        ours.revoke(shown[which], name="ca.crl")
        for each in found:
            each.look()
            each.look()
        for node in nodes:
            for conn in list(transport(node)._connections.values()):
                conn.disconnect()
        others = [i for i in range(3) if i != which]
        until(nodes, lambda: any("which is revoked" in why for i in others for _, why in told[i]))
        until([nodes[i] for i in others], lambda: all(nodes[i].controller for i in others))
        assert not any("which is revoked" in why for _, why in told[which]), "the others' are good"
        assert set().union(*(unbelieved[i] for i in others)) == {"revoked"}
        assert not unbelieved[which]


def test_renewed_files_are_taken_by_new_connections_and_old_ones_go_on(
    tmp_path: Path, ours: Authority, other: Authority
) -> None:
    """Even those of another CA: all brokers have it before the first connection breaks."""
    files = ours.issue("broker")
    certificates = [ours.cluster_certificates(files) for _ in range(3)]
    tls = [RaftTls(each.contexts.server, each.contexts.client) for each in certificates]
    with group(tmp_path, tls) as (nodes, told):
        until(nodes, lambda: any(node.has_begun for node in nodes) and all(node.controller for node in nodes))
        issued = other.issue("broker")
        for path, renewed in ((files.cert, issued.cert), (files.key, issued.key), (ours.ca, other.ca)):
            Path(path).write_bytes(Path(renewed).read_bytes())
        for each in certificates:
            before = each.contexts.server()
            each.look()
            each.look()
            assert each.contexts.server() is not before
        leader = next(node for node in nodes if node.is_controller)
        assert "ok" in carried_out(nodes, leader, name="p", request_id="r"), "on the connections of before"
        former = [conn.secured for node in nodes for conn in transport(node)._connections.values()]
        for node in nodes:
            for conn in list(transport(node)._connections.values()):
                conn.disconnect()
        until(nodes, lambda: any(node.has_begun for node in nodes) and all(node.controller for node in nodes))
        leader = next(node for node in nodes if node.is_controller)
        assert "ok" in carried_out(nodes, leader, name="q", request_id="s"), "on new ones"
        until(nodes, lambda: all("q" in node.catalog.producers for node in nodes))
        now = [conn for node in nodes for conn in transport(node)._connections.values() if is_open(conn)]
        assert now
        assert not any(conn.secured in former for conn in now)
        assert not any("not believed" in why for each in told for _, why in each)


# -- strangers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["plain", "noise", "no certificate", "another CA's"])
def test_a_stranger_is_cut_and_said(tmp_path: Path, ours: Authority, other: Authority, how: str) -> None:
    says = {
        "plain": "it does not speak TLS there: it has no cluster.tls_cert, or cluster.tls is accept, or is no broker",
        "noise": "no TLS with it: ",
        "no certificate": "it shows no certificate",
        "another CA's": "its certificate is not believed",
    }[how]
    unbelieved: list[tuple[str, str]] = []
    tls = replace(tls_of(ours), tell=lambda who, found: unbelieved.append((who, found.fault)))
    with group(tmp_path, [tls]) as (nodes, told):
        until(nodes, lambda: nodes[0].is_controller)
        with socket.create_connection(("127.0.0.1", port_of(nodes[0])), 60) as plain:
            if how in ("plain", "noise"):
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n" if how == "plain" else b"\x16\x03\x01\xff\xff" + b"x" * 65_535)
            else:
                context = ours.client_context(other.issue() if how == "another CA's" else None)
                context.check_hostname = False
                plain.setblocking(False)
                secured = context.wrap_socket(plain, do_handshake_on_connect=False)

                def shook() -> bool:
                    try:
                        secured.do_handshake()
                    except ssl.SSLWantReadError:
                        return False
                    return True

                until(nodes, shook)
            until(nodes, lambda: told[0])
            assert not transport(nodes[0])._unknownConnections
        [(peer, why)] = told[0]
        assert peer == "127.0.0.1"
        assert says in why
        fault = {"no certificate": "missing", "another CA's": "foreign"}.get(how)
        assert unbelieved == ([("127.0.0.1", fault)] if fault else []), "for the audit, once"
        assert "ok" in carried_out(nodes, nodes[0])


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Of a connection: who is called, without blocking, and who calls."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        called, _ = listener.accept()
    called.setblocking(False)
    with called, caller:
        yield called, caller


def left_in(called: socket.socket) -> int:
    """How many bytes lie in the kernel."""
    return len(called.recv(1 << 20, socket.MSG_PEEK))


def test_a_hello_in_pieces_is_read_by_turns_and_cut(ours: Authority, ends: tuple[socket.socket, socket.socket]) -> None:
    """S7. Seen before: one turn of the thread of the group took all of it, which was seconds for 64 strangers."""
    called, caller = ends
    there = SecuredSocket(called, tls_of(ours).server(), None, lambda: None)
    sent = 40_000
    caller.sendall(b"".join(b"\x16\x03\x01\x00\x01" + bytes([at]) for at in (1, 1, 255, 0, 3, 3)))
    caller.sendall(b"\x16\x03\x01\x00\x01x" * (sent // 6 - 6))
    total = sent // 6 * 6
    until([], lambda: left_in(called) == total)
    assert not there.step()
    assert left_in(called) == total - HANDSHAKE_READ_BYTES

    def more() -> None:
        caller.sendall(b"\x16\x03\x01\x00\x01x" * 700)
        assert not there.step()

    with pytest.raises(OSError, match="a handshake of over"):
        until([], more)
    assert "a handshake of over" in there.fault


def test_what_a_stranger_says_is_read_by_turns_and_a_voters_is_not_kept_back(
    ours: Authority, ends: tuple[socket.socket, socket.socket]
) -> None:
    """S3, S7: with bytes behind the handshake that came with its last ones."""
    called, caller = ends
    done: list[int] = []
    there = SecuredSocket(called, tls_of(ours).server(), None, lambda: done.append(1))
    there.is_stranger = True
    context = ours.client_context(ours.issue())
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = context.wrap_bio(coming, going, server_hostname="127.0.0.1")
    caller.settimeout(60)
    while True:
        try:
            here.do_handshake()
            break
        except ssl.SSLWantReadError:
            caller.sendall(going.read())
            until([], lambda: not there.step())
            coming.write(caller.recv(1 << 16))
    said = bytes(range(256)) * 12
    for each in said:
        here.write(bytes([each]))
    data = going.read()
    caller.sendall(data)
    until([], lambda: left_in(called) == len(data))
    assert there.step()
    assert done == [1]
    heard = there.recv(1 << 16)
    assert 0 < len(heard) < HANDSHAKE_READ_BYTES // 20
    assert left_in(called) == len(data) - HANDSHAKE_READ_BYTES
    heard += there.recv(1 << 16)
    assert left_in(called) == len(data) - 2 * HANDSHAKE_READ_BYTES
    there.is_stranger = False
    while len(heard) < len(said):
        heard += there.recv(1 << 16)
    assert heard == said
    with pytest.raises(BlockingIOError):
        there.recv(1 << 16)


def test_what_the_kernel_does_not_take_is_sent_later_and_once(
    ours: Authority, ends: tuple[socket.socket, socket.socket]
) -> None:
    called, caller = ends
    called.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
    there = SecuredSocket(called, tls_of(ours).server(), None, lambda: None)
    heard: list[bytes] = []

    def listen() -> None:
        context = ours.client_context(ours.issue())
        with context.wrap_socket(caller, server_hostname="127.0.0.1") as here:
            while data := here.recv(1 << 16):
                heard.append(data)

    thread = threading.Thread(target=listen)
    thread.start()
    until([], there.step)
    said = bytearray(random.Random(0).randbytes(8 << 20))
    wanted, waits = bytes(said), 0
    while said:
        try:
            with memoryview(said) as view:
                count = there.send(view)
            del said[:count]
        except BlockingIOError:
            waits += 1
    there.close()
    thread.join(60)
    assert waits, "the kernel's buffer was full"
    assert b"".join(heard) == wanted


def test_unfinished_handshakes_are_strangers_and_the_oldest_goes_first(
    tmp_path: Path, ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with group(tmp_path, [tls_of(ours)]) as (nodes, _), contextlib.ExitStack() as stack:
        until(nodes, lambda: nodes[0].is_controller)
        there = transport(nodes[0])._unknownConnections
        silent = []
        for _ in range(STRANGERS_MAX + 1):
            before = len(there)
            each = stack.enter_context(socket.create_connection(("127.0.0.1", port_of(nodes[0])), 60))
            each.sendall(b"\x16\x03\x01")  # it begins, and goes no further
            silent.append(each)
            until(nodes, lambda before=before: len(there) > min(before, STRANGERS_MAX - 1))
        silent[0].setblocking(False)

        def is_cut() -> bool:
            with contextlib.suppress(BlockingIOError):
                return silent[0].recv(1) == b""
            return False

        with contextlib.suppress(ConnectionResetError):
            until(nodes, is_cut)
        assert len(there) == STRANGERS_MAX
        monkeypatch.setattr(wire, "STRANGER_S", 0.0)
        until(nodes, lambda: not there)


def test_a_handshake_that_is_not_answered_takes_no_time_of_the_poller_and_ends(
    tmp_path: Path, ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1. Seen in a trial: the poller came back at once, again and again, until the other side spoke."""
    monkeypatch.setattr(wire, "CALL_S", 1.0)
    tls = tls_of(ours)
    polls = 0
    poll = PollPoller.poll

    def counted(poller: Any, timeout: float) -> None:
        nonlocal polls
        polls += 1
        poll(poller, timeout)

    connects: list[float] = []
    connect = TcpConnection.connect

    def noted(conn: Any, *where: Any) -> Any:
        connects.append(time.monotonic())
        return connect(conn, *where)

    monkeypatch.setattr(TcpConnection, "connect", noted)
    with group(tmp_path, [tls, tls]) as (nodes, _):
        _, caller = sorted(nodes, key=lambda node: node.node_id)
        until([caller], lambda: connects)
        monkeypatch.setattr(PollPoller, "poll", counted)
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 0.5:
            caller.tick(0.05)  # nobody ticks the other one: its kernel takes the call
        assert polls < 40
        until([caller], lambda: len(connects) >= 3)
        until(nodes, lambda: all(node.controller for node in nodes))


# -- those who take no part yet ----------------------------------------------------------------------------------


def test_a_lobby_asks_and_answers_over_tls(ours: Authority, other: Authority) -> None:
    [port] = ports(1)
    address, answer = f"127.0.0.1:{port}", {"type": "hello", "refusal": "not now"}
    asker: dict[str, Any] = {"bind": None, "secret": SECRET, "answer": lambda hello: answer, "clock": time.monotonic}
    unbelieved: list[tuple[str, str]] = []
    tls = replace(tls_of(ours), tell=lambda who, found: unbelieved.append((who, found.fault)))
    with (
        Lobby(**{**asker, "bind": address}, tls=tls) as there,
        Lobby(**asker, tls=tls_of(ours)) as mine,
        Lobby(**asker, tls=tls_of(other, ca=ours.ca)) as shows_foreign,
        Lobby(**asker, tls=tls_of(other)) as foreign,
        Lobby(**asker) as plain,
    ):
        outcomes = [_asked(each, there, address) for each in (mine, foreign, plain, shows_foreign)]
    assert outcomes[0] == answer
    assert unbelieved == [("127.0.0.1", "foreign")], "for the audit"
    assert "its certificate is not believed" in str(outcomes[1])
    assert "cut the connection" in str(outcomes[2])


def test_a_question_of_who_is_not_the_broker_that_it_says_is_refused(ours: Authority) -> None:
    [port] = ports(1)
    address = f"127.0.0.1:{port}"
    asker: dict[str, Any] = {"bind": None, "secret": SECRET, "answer": lambda hello: {}, "clock": time.monotonic}
    theirs, unbelieved = tls_of(ours, uris=["liftlog:broker/somebody"]), list[tuple[str, str]]()
    tls = replace(tls_of(ours), tell=lambda who, found: unbelieved.append((who, found.fault)))
    with Lobby(**{**asker, "bind": address}, tls=tls) as there, Lobby(**asker, tls=theirs) as mine:
        found = _asked(mine, there, address)
    assert (
        found["refusal"]
        == f"broker {HELLO['broker']}: what it shows is the certificate of somebody, and not of {HELLO['broker']}"
    )
    assert unbelieved == [("127.0.0.1", "misnamed")]


def test_where_names_are_required_a_question_without_one_is_refused_and_nobody_without_one_is_asked(
    ours: Authority,
) -> None:
    asker: dict[str, Any] = {"bind": None, "secret": SECRET, "answer": lambda hello: {}, "clock": time.monotonic}
    named = tls_of(ours, uris=[f"liftlog:broker/{HELLO['broker']}"], names="required")
    for there, mine in ((named, tls_of(ours)), (tls_of(ours), named), (named, named)):
        [port] = ports(1)
        address = f"127.0.0.1:{port}"
        with Lobby(**{**asker, "bind": address}, tls=there) as called, Lobby(**asker, tls=mine) as caller:
            found = _asked(caller, called, address)
        assert ("is a certificate without a URI liftlog:broker/" in str(found)) is (there is not mine), found


def _asked(asking: Lobby, answering: Lobby, address: str) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(asking.ask([address], HELLO, timeout_s=30.0)[address]))
    thread.start()
    while thread.is_alive():
        answering.wait(0.02)
    return found[0]
