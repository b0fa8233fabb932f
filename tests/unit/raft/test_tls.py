"""Goal: the group speaks TLS, between brokers whose certificates are of their CA, and who is kept out is told why.

Method: as test_wire.py, with certificates of a CA of the test: real connections on loopback, of nodes that one thread
ticks.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.poller import PollPoller
from pysyncobj.tcp_connection import TcpConnection

from broker.raft import wire
from broker.raft.greeting import Lobby
from broker.raft.node import RaftNode, configuration, form
from broker.raft.secured import RaftTls, SecuredSocket, is_open
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


def tls_of(authority: Authority, *, ca: str | None = None, hosts: Sequence[str] = ()) -> RaftTls:
    contexts = authority.cluster_certificates(authority.issue("broker", *hosts), ca=ca).contexts
    return RaftTls(contexts.server, contexts.client)


@contextlib.contextmanager
def group(tmp_path: Path, tls: Sequence[RaftTls | None]) -> Iterator[tuple[list[RaftNode], Told]]:
    """Nodes, and what each was told of those whom it refused."""
    addresses = [f"127.0.0.1:{port}" for port in ports(len(tls))]
    ids = tuple(f"n{i}@{address}" for i, address in enumerate(addresses))
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
                conf=configuration(secret=SECRET, bind=addresses[i]),
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
    results: list[Any] = []
    node.submit({"v": 1, "kind": "register_producer", **command}, results.append)
    until(nodes, lambda: results)
    return results[0]


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
            before = each.pem
            each.look()
            each.look()
            assert each.pem is not before
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
        "plain": "it does not speak TLS there",
        "noise": "no TLS with it: ",
        "no certificate": "it shows no certificate",
        "another CA's": "its certificate is not believed",
    }[how]
    with group(tmp_path, [tls_of(ours)]) as (nodes, told):
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
        assert "ok" in carried_out(nodes, nodes[0])


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
    with (
        Lobby(**{**asker, "bind": address}, tls=tls_of(ours)) as there,
        Lobby(**asker, tls=tls_of(ours)) as mine,
        Lobby(**asker, tls=tls_of(other)) as foreign,
        Lobby(**asker) as plain,
    ):
        outcomes = [_asked(each, there, address) for each in (mine, foreign, plain)]
    assert outcomes[0] == answer
    assert "its certificate is not believed" in str(outcomes[1])
    assert "cut the connection" in str(outcomes[2])


def _asked(asking: Lobby, answering: Lobby, address: str) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(asking.ask([address], HELLO, timeout_s=30.0)[address]))
    thread.start()
    while thread.is_alive():
        answering.wait(0.02)
    return found[0]
