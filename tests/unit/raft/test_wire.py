"""Real connections on loopback: where they listen, who may take part, and what a command comes to."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.encryptor import getEncryptor
from pysyncobj.poller import createPoller
from pysyncobj.tcp_connection import CONNECTION_STATE, TcpConnection

from broker.api.errors import InvalidSetting
from broker.raft import wire
from broker.raft.greeting import Lobby
from broker.raft.node import RaftNode, configuration, form
from broker.raft.wire import (
    MESSAGE_BYTES_MAX,
    READS_AT_ONCE,
    STRANGERS_MAX,
    BoundedZlib,
    Codec,
    GuardedTcp,
    Voter,
)
from broker.storage.disk import OsDisk

SECRET = "of at least sixteen bytes"


def ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def listening(port: int) -> set[str]:
    """The addresses on which somebody listens at this port, as hexadecimal digits."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}


@contextlib.contextmanager
def group(tmp_path: Path, secrets: list[str | None], *, observers: int = 0) -> Iterator[list[RaftNode]]:
    addresses = [f"127.0.0.1:{port}" for port in ports(len(secrets))]
    ids = tuple(f"n{i}@{address}" for i, address in enumerate(addresses))
    voters, nodes = ids[: len(ids) - observers], []
    for i, secret in enumerate(secrets):
        folder = tmp_path / f"n{i}"
        folder.mkdir()
        journal = form(OsDisk(), str(folder / "raft.log"), node_id=ids[i], voters=voters, cluster_id="x")
        conf = configuration(secret=secret, bind=addresses[i])
        nodes.append(RaftNode(journal, transport=GuardedTcp, node=Voter, conf=conf, clock=time.monotonic, life=f"{i}"))
    try:
        yield nodes
    finally:
        for node in nodes:
            node.close()


def until(nodes: list[RaftNode], reached: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, "it never came"
        for node in nodes:
            node.tick(0.005)


def test_three_brokers_on_loopback_carry_out_what_any_of_them_is_told(tmp_path: Path) -> None:
    with group(tmp_path, [SECRET] * 3) as nodes:
        until(nodes, lambda: any(node.has_begun for node in nodes) and all(node.controller for node in nodes))
        results: list[Any] = []
        follower = next(node for node in nodes if not node.is_controller)
        follower.submit({"v": 1, "kind": "register_producer", "name": "p", "request_id": "r"}, results.append)
        follower.submit({"v": 1, "kind": "delete_stream", "name": "nobody"}, results.append)
        until(nodes, lambda: len(results) == 2)
        assert {"ok": {"producer_id": 1, "epoch": 0}} in results
        assert [r["error"]["reason"] for r in results if "error" in r] == ["unknown_stream"]
        follower.read(results.append)
        until(nodes, lambda: len(results) == 3)
        assert follower.catalog.producers["p"].producer_id == 1
        port = int(follower.node_id.rpartition(":")[2])
        assert listening(port) == {"0100007F"}, "127.0.0.1 and nothing else"


def test_one_without_a_vote_hears_of_all_and_does_not_listen(tmp_path: Path) -> None:
    """W5. Seen before: each broker that came back with an empty folder ended, as it has no socket to look after."""
    with group(tmp_path, [SECRET] * 3, observers=1) as nodes:
        *voters, observer = nodes
        until(nodes, lambda: all(node.controller is not None for node in nodes))
        results: list[Any] = []
        voters[0].submit({"v": 1, "kind": "register_producer", "name": "p", "request_id": "r"}, results.append)
        until(nodes, lambda: results and observer.catalog.producers)
        assert observer.catalog.producers["p"].producer_id == 1
        assert not listening(int(observer.node_id.rpartition(":")[2]))


def test_who_has_another_secret_takes_no_part(tmp_path: Path) -> None:
    with group(tmp_path, [SECRET, SECRET, "another one, as long as that"]) as nodes:
        until(nodes, lambda: any(node.is_controller for node in nodes[:2]))
        results: list[Any] = []
        leader = next(node for node in nodes if node.is_controller)
        leader.submit({"v": 1, "kind": "register_producer"}, results.append)
        until(nodes, lambda: results)
        assert nodes[2].controller is None
        assert nodes[2].core.raftLastApplied == 1


def test_bytes_of_a_stranger_do_not_end_a_broker(tmp_path: Path) -> None:
    """Without a secret, on loopback: a first message that is no id, an id of nobody, and noise."""
    with group(tmp_path, [None]) as nodes:
        until(nodes, lambda: nodes[0].is_controller)
        port = int(nodes[0].node_id.rpartition(":")[2])
        for value in ([], {}, ["add", "x:1"], 7, "nobody@127.0.0.1:1", "readonly"):
            data = zlib.compress(Codec.dumps(value))
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(struct.pack("i", len(data)) + data)
                for _ in range(5):
                    nodes[0].tick(0.01)
        for noise in (b"\xff" * 64, b"\x04\x00\x00\x00abcd", b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(noise)
                for _ in range(5):
                    nodes[0].tick(0.01)
        results: list[Any] = []
        nodes[0].submit({"v": 1, "kind": "register_producer"}, results.append)
        until(nodes, lambda: results)
        assert "ok" in results[0]


def test_pysyncobj_itself_listens_everywhere() -> None:
    """The reason for a bind address of our own."""
    [port] = ports(1)
    bare = SyncObj(f"127.0.0.1:{port}", [], conf=SyncObjConf(autoTick=False))
    bare.doTick(0.01)
    found = listening(port)
    bare._doDestroy()
    assert found == {"00000000"}


def test_messages_are_json_and_keep_bytes() -> None:
    """W2."""
    message = {"entries": [(b"\x00\xff", 1, 2)], "data": (b"", True, False), "n": None}
    back = Codec.loads(Codec.dumps(message))
    assert back == {"entries": [[b"\x00\xff", 1, 2]], "data": [b"", True, False], "n": None}
    with pytest.raises(TypeError):
        Codec.dumps({"x": object()})


def test_who_never_stops_sending_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W6. Seen before: one call of `tick` took 13 s, as long as somebody without the secret went on sending."""
    with group(tmp_path, [SECRET]) as nodes:
        until(nodes, lambda: nodes[0].is_controller)
        port = int(nodes[0].node_id.rpartition(":")[2])
        reads = 0

        def read(conn: Any) -> bool:
            nonlocal reads
            reads += 1
            assert reads < 10_000, "it reads on and on"
            return True

        monkeypatch.setattr(TcpConnection, "_TcpConnection__processRead", read)
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b"x" * 1_000)
            until(nodes, lambda: reads)
        assert reads <= READS_AT_ONCE
        monkeypatch.undo()
        results: list[Any] = []
        nodes[0].submit({"v": 1, "kind": "register_producer"}, results.append)
        until(nodes, lambda: results)


def test_connections_of_strangers_are_few_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W5. They say nothing, as those of a scanner, or of a machine that is gone."""
    with group(tmp_path, [SECRET]) as nodes, contextlib.ExitStack() as stack:
        until(nodes, lambda: nodes[0].is_controller)
        transport = nodes[0].core._SyncObj__transport
        port = int(nodes[0].node_id.rpartition(":")[2])
        for _ in range(STRANGERS_MAX + 3):
            before = len(transport._unknownConnections)
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            until(nodes, lambda before=before: len(transport._unknownConnections) > min(before, STRANGERS_MAX - 1))
        assert len(transport._unknownConnections) == STRANGERS_MAX
        monkeypatch.setattr(wire, "STRANGER_S", 0.0)
        until(nodes, lambda: not transport._unknownConnections)


@pytest.mark.parametrize("said", [b"", b"\x10\x00"])
@pytest.mark.parametrize("ends", ["by itself", "too late"])
def test_who_says_nothing_is_not_said_to_have_another_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes, ends: str
) -> None:
    """W4. Seen before: of a broker that was killed, or stood still, amid its call."""
    told: list[str] = []
    with group(tmp_path, [SECRET]) as nodes:
        until(nodes, lambda: nodes[0].is_controller)
        monkeypatch.setattr(nodes[0].core, "refused", lambda peer, why: told.append(why))
        transport, port = nodes[0].core._SyncObj__transport, int(nodes[0].node_id.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(said)
            until(nodes, lambda: transport._unknownConnections)
            if ends == "too late":
                monkeypatch.setattr(wire, "STRANGER_S", 0.0)
                until(nodes, lambda: told)
        until(nodes, lambda: told)
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            monkeypatch.setattr(wire, "STRANGER_S", 3_600.0)
            until(nodes, lambda: len(told) > 1)
    assert told == [wire.SILENT, wire.UNCLEAR]


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_stranger_may_say_only_so_much_secret_or_none(
    tmp_path: Path, secret: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W4. A frame of 60 MiB is cut by its length, long before its time is up."""
    monkeypatch.setattr(wire, "STRANGER_S", 3_600.0)
    with group(tmp_path, [secret]) as nodes:
        until(nodes, lambda: nodes[0].is_controller)
        transport = nodes[0].core._SyncObj__transport
        port = int(nodes[0].node_id.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(struct.pack("i", 60 << 20))
            until(nodes, lambda: transport._unknownConnections)
            until(nodes, lambda: not transport._unknownConnections)


class Pipe:
    """A socket that gives and takes what it is told."""

    def __init__(self, data: bytes = b"") -> None:
        self.data, self.sent = data, bytearray()

    def recv(self, size: int) -> bytes:
        piece, self.data = self.data[:size], self.data[size:]
        if not piece:
            raise BlockingIOError(errno.EAGAIN, "nothing")
        return piece

    def send(self, data: memoryview) -> int:
        self.sent += data[:65_536]
        return min(len(data), 65_536)

    def getsockopt(self, *_: int) -> int:
        return 0

    def close(self) -> None:
        pass


def connection(pipe: Pipe) -> Any:
    conn = TcpConnection(None, recvBufferSize=1 << 16)
    conn._TcpConnection__socket = pipe
    conn._TcpConnection__state = CONNECTION_STATE.CONNECTED
    return conn


def test_buffers_grow_and_shrink_in_place() -> None:
    """W9. Before, each piece of 64 KiB copied all before it, and each message all after it."""
    messages = [{"n": number, "text": "x" * (number % 3)} for number in range(20_000)] + [
        random.Random(1).randbytes(8 << 20)
    ]
    sender = connection(Pipe())
    out = sender._TcpConnection__writeBuffer = bytearray()
    for message in messages:
        data = zlib.compress(Codec.dumps(message), 1)
        out += struct.pack("i", len(data)) + data
    whole = bytes(out)
    while sender._TcpConnection__processSend():
        assert sender._TcpConnection__writeBuffer is out
    assert bytes(sender._TcpConnection__socket.sent) == whole
    receiver = connection(Pipe(whole))
    found, buffer = [], None
    while receiver._TcpConnection__socket.data:
        receiver._TcpConnection__tryReadBuffer()
        buffer = buffer or receiver._TcpConnection__readBuffer
        assert receiver._TcpConnection__readBuffer is buffer
        while (message := receiver._TcpConnection__processParseMessage()) is not None:
            found.append(message)
    assert found == messages
    assert not buffer


@pytest.mark.slow
def test_who_does_not_take_a_call_is_called_again_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W7. By itself the kernel would repeat a call that nobody takes after 1, 2, 4 and up to 64 s."""
    monkeypatch.setattr(wire, "CALL_S", 0.1)
    with group(tmp_path, [SECRET] * 2) as nodes:
        first, caller = sorted(nodes, key=lambda node: node.node_id)
        transport = caller.core._SyncObj__transport
        calls: list[float] = []
        connect = TcpConnection.connect

        def count(conn: Any, *where: Any) -> Any:
            calls.append(time.monotonic())
            return connect(conn, *where)

        monkeypatch.setattr(TcpConnection, "connect", count)
        until([caller], lambda: len(calls) >= 8)  # nobody ticks the other one: its kernel takes calls, then none
        until(nodes, lambda: first.controller is not None and caller.controller is not None)
        known = list(transport._connections.values())
        until(nodes, lambda: all(each.state == CONNECTION_STATE.CONNECTED for each in known))
        told = len(calls)
        until(nodes, lambda: time.monotonic() > calls[-1] + 5 * wire.CALL_S)
        assert len(calls) == told, "a connection that is there is kept"


def test_the_former_connection_of_a_voter_is_closed(tmp_path: Path) -> None:
    """W8. Seen before: it was kept for ever if the cable had been cut meanwhile."""
    with group(tmp_path, [None] * 2) as nodes:
        first, caller = sorted(nodes, key=lambda node: node.node_id)
        until(nodes, lambda: first.controller is not None and caller.controller is not None)
        former = next(iter(first.core._SyncObj__transport._connections.values()))
        data = zlib.compress(Codec.dumps(caller.node_id))
        with socket.create_connection(("127.0.0.1", int(first.node_id.rpartition(":")[2]))) as sock:
            sock.sendall(struct.pack("i", len(data)) + data)
            until([first], lambda: former.state == CONNECTION_STATE.DISCONNECTED)
            assert [conn.state for conn in first.core._SyncObj__transport._connections.values()] == [
                CONNECTION_STATE.CONNECTED
            ]


def test_connections_without_a_vote_leave_nothing_behind(tmp_path: Path) -> None:
    """Each has a node of its own. Seen before: it was kept for ever, with what it had not read."""
    import struct
    import zlib

    with group(tmp_path, [None]) as (node,):
        until([node], lambda: node.has_begun)
        transport = node.core._SyncObj__transport
        data = zlib.compress(Codec.dumps("readonly"))
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", int(node.node_id.rpartition(":")[2]))) as sock:
                sock.sendall(struct.pack("i", len(data)) + data)
                until([node], lambda: transport._readonlyNodes)
            until([node], lambda: not transport._readonlyNodes)
        until([node], lambda: not transport._connections)


def test_a_connection_without_a_vote_that_dies_under_a_message_ends_only_itself(tmp_path: Path) -> None:
    """W11. Seen before: KeyError in pysyncobj's `send`, and the controller's process ended."""
    import struct
    import zlib

    with group(tmp_path, [None]) as (node,):
        until([node], lambda: node.has_begun)
        transport, results = node.core._SyncObj__transport, list[Any]()
        data = zlib.compress(Codec.dumps("readonly"))
        with socket.create_connection(("127.0.0.1", int(node.node_id.rpartition(":")[2]))) as sock:
            sock.sendall(struct.pack("i", len(data)) + data)
            until([node], lambda: transport._readonlyNodes)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        command = {"v": 1, "kind": "register_producer", "name": "p", "request_id": "r"}
        node.core.propose(command, lambda *result: results.append(result))  # no tick has seen the reset
        until([node], lambda: results and not transport._connections)
        assert "p" in node.catalog.producers


def test_without_descriptors_it_listens_again_later(tmp_path: Path) -> None:
    """W5. pysyncobj closes the socket that it listens on when nothing can be accepted."""
    with group(tmp_path, [SECRET] * 2) as nodes:
        until(nodes, lambda: any(node.is_controller for node in nodes))
        port = int(nodes[0].node_id.rpartition(":")[2])
        nodes[0].core._SyncObj__transport._server.unbind()
        assert not listening(port)
        until(nodes, lambda: listening(port))


@pytest.mark.slow
def test_a_message_that_is_longer_than_it_looks_is_refused() -> None:
    """W4."""
    text = b"a" * (MESSAGE_BYTES_MAX + 1)
    with pytest.raises(ValueError, match="more than"):
        BoundedZlib.decompress(BoundedZlib.compress(text))
    assert BoundedZlib.decompress(BoundedZlib.compress(text[:-1])) == text[:-1]
    for damaged in (b"", BoundedZlib.compress(b"text")[:-1], BoundedZlib.compress(b"text") + b"more"):
        with pytest.raises(ValueError, match="less than"):
            BoundedZlib.decompress(damaged)


HELLO = {"type": "hello", "cluster": "c", "broker": "b", "node_id": "n", "group": "", "named": [], "is_forming": True}


def test_a_broker_that_waits_listens_again_too() -> None:
    """`greeting.G4`. Without descriptors it listened no more, and the group was never formed."""
    [port] = ports(1)
    address, answer = f"127.0.0.1:{port}", {"type": "hello", "refusal": "not now"}
    with Lobby(bind=address, secret=SECRET, answer=lambda hello: answer, clock=time.monotonic) as lobby:
        assert lobby._server is not None
        lobby._server.unbind()
        assert not listening(port)
        lobby.wait(0.01)
        assert lobby.ask([address], HELLO, timeout_s=60) == {address: answer}
    assert not listening(port)


@pytest.mark.parametrize("host", ["b..example", "b" * 64 + ".example"])
def test_what_can_be_no_name_has_no_address(host: str) -> None:
    """getaddrinfo raises UnicodeError for it: a broker with such a voter ended with `internal`."""
    with Lobby(bind=None, secret=SECRET, answer=lambda hello: hello, clock=time.monotonic) as lobby:
        assert lobby.ask([f"{host}:9294"], HELLO, timeout_s=60) == {f"{host}:9294": f"{host} has no address"}
    with pytest.raises(InvalidSetting, match=r"raft\.host"):
        Lobby(bind=f"{host}:9294", secret=SECRET, answer=lambda hello: hello, clock=time.monotonic)


def test_guests_of_a_broker_that_waits_are_few() -> None:
    """`greeting.G3`: the oldest goes first, and who asks something hears an answer."""
    [port] = ports(1)
    address = f"127.0.0.1:{port}"
    answer = {"type": "hello", "refusal": "not now"}
    with (
        Lobby(bind=address, secret=SECRET, answer=lambda hello: answer, clock=time.monotonic) as lobby,
        contextlib.ExitStack() as stack,
    ):
        silent = []
        for _ in range(STRANGERS_MAX + 3):
            silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            guests = min(len(silent), STRANGERS_MAX)
            while len(lobby._guests) < guests:
                lobby.wait(0.01)
        lobby.wait(0.05)
        assert len(lobby._guests) <= STRANGERS_MAX
        assert silent[0].recv(1) == b""
        assert lobby.ask([address], HELLO, timeout_s=60) == {address: answer}


def test_a_stranger_without_the_secret_commands_nothing(tmp_path: Path) -> None:
    """What it could once: ask who is there, listen without a vote, and have a command carried out, all in plain."""
    command = {"v": 1, "kind": "register_producer", "name": "stranger", "request_id": "r"}
    said = [
        {"type": "hello", "cluster": "x", "broker": "n9", "node_id": "", "group": "", "named": [], "is_forming": False},
        "readonly",
        {"type": "submit", "id": "stranger/1", "command": command, "cluster": "x"},
    ]
    with group(tmp_path, [SECRET]) as (node,):
        until([node], lambda: node.is_controller)
        port = int(node.node_id.rpartition(":")[2])
        for first in range(len(said)):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                for message in said[first:]:
                    data = zlib.compress(Codec.dumps(message))
                    sock.sendall(struct.pack("i", len(data)) + data)
                sock.setblocking(False)
                heard: list[bytes] = []

                def is_cut(sock: socket.socket = sock, heard: list[bytes] = heard) -> bool:
                    with contextlib.suppress(BlockingIOError):
                        try:
                            heard.append(sock.recv(1 << 16))
                        except ConnectionResetError:
                            heard.append(b"")
                    return heard[-1:] == [b""]

                until([node], is_cut)
                assert heard == [b""], "it hears nothing"
        results: list[Any] = []
        node.submit({"v": 1, "kind": "register_producer", "name": "own", "request_id": "s"}, results.append)
        until([node], lambda: results)
        assert set(node.catalog.producers) == {"own"}


class Tapped:
    """A socket of which somebody on the path keeps what is sent."""

    def __init__(self, inner: socket.socket, tap: list[bytes]) -> None:
        self._inner, self._tap = inner, tap

    def send(self, data: memoryview) -> int:
        count = self._inner.send(data)
        self._tap.append(bytes(data[:count]))
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_what_was_heard_of_a_session_is_taken_of_no_other() -> None:
    """Somebody on the path sends it again, byte by byte as it was, without knowing the secret."""
    poller, encryptor = createPoller("auto"), getEncryptor(SECRET)

    def serving(sock: socket.socket, got: list[Any]) -> None:
        sock.setblocking(False)
        conn = TcpConnection(poller, socket=sock, timeout=60, recvBufferSize=1 << 16)
        conn.encryptor = encryptor
        conn.setOnDisconnectedCallback(lambda: got.append("cut"))

        def on_message(message: Any) -> None:
            if not conn.sendRandKey:
                conn.sendRandKey, conn.recvRandKey = message, os.urandom(32)
                conn.send(conn.recvRandKey)
            else:
                got.append(message)

        conn.setOnMessageReceivedCallback(on_message)

    tap: list[bytes] = []
    got: list[Any] = []
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    serving(theirs, got)
    honest = TcpConnection(poller, socket=Tapped(ours, tap), timeout=60, recvBufferSize=1 << 16)
    honest.encryptor, honest.recvRandKey = encryptor, os.urandom(32)

    def greet(message: Any) -> None:
        honest.sendRandKey = message
        honest.send("n1@127.0.0.1:1")
        honest.send({"type": "request_vote", "term": 9})

    honest.setOnMessageReceivedCallback(greet)
    honest.send(honest.recvRandKey)
    while len(got) < 2:
        poller.poll(0.02)
    assert got == ["n1@127.0.0.1:1", {"type": "request_vote", "term": 9}]
    again: list[Any] = []
    ours, theirs = socket.socketpair()
    serving(theirs, again)
    for piece in tap:
        with contextlib.suppress(BrokenPipeError):
            ours.sendall(piece)
        poller.poll(0.02)
        poller.poll(0.02)
    while not again:
        poller.poll(0.02)
    assert again == ["cut"]
