"""Real connections on loopback: where they listen, who may take part, and what a command comes to."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pysyncobj import SyncObj, SyncObjConf

from broker.api.errors import InvalidRequest
from broker.raft.node import RaftNode, configuration, form
from broker.raft.wire import Codec, GuardedTcp, Voter, check_secret
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
def group(tmp_path: Path, secrets: list[str | None]) -> Iterator[list[RaftNode]]:
    addresses = [f"127.0.0.1:{port}" for port in ports(len(secrets))]
    ids = tuple(f"n{i}@{address}" for i, address in enumerate(addresses))
    nodes = []
    for i, secret in enumerate(secrets):
        folder = tmp_path / f"n{i}"
        folder.mkdir()
        journal = form(OsDisk(), str(folder / "raft.log"), node_id=ids[i], voters=ids, cluster_id="x")
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
        until(nodes, lambda: any(node.is_controller for node in nodes) and all(node.controller for node in nodes))
        results: list[Any] = []
        follower = next(node for node in nodes if not node.is_controller)
        follower.submit({"v": 1, "kind": "register_producer", "name": "p", "request_id": "r"}, results.append)
        follower.submit({"v": 1, "kind": "delete_stream", "name": "nobody"}, results.append)
        until(nodes, lambda: len(results) == 2)
        assert {"ok": {"producer_id": 1, "epoch": 0}} in results
        assert [r["error"]["reason"] for r in results if "error" in r] == ["unknown_stream"]
        follower.read(results.append)
        until(nodes, lambda: len(results) == 3)
        assert follower.catalog.producers == {"p": (1, 0)}
        port = int(follower.node_id.rpartition(":")[2])
        assert listening(port) == {"0100007F"}, "127.0.0.1 and nothing else"


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
    import struct
    import zlib

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
    """`bind_and_poison.py`: why there is a bind address of our own."""
    [port] = ports(1)
    bare = SyncObj(f"127.0.0.1:{port}", [], conf=SyncObjConf(autoTick=False))
    bare.doTick(0.01)
    found = listening(port)
    bare._doDestroy()
    assert found == {"00000000"}


@pytest.mark.parametrize(
    "addresses,secret,is_refused",
    [
        (["127.0.0.1:9294", "localhost:9294", "[::1]:9294", "x@127.0.0.2:1"], None, False),
        (["127.0.0.1:9294", "10.0.0.7:9294"], None, True),
        (["0.0.0.0:9294"], None, True),
        (["broker-1:9294"], None, True),
        (["[::]:9294"], None, True),
        (["10.0.0.7:9294"], "short", True),
        (["10.0.0.7:9294"], SECRET, False),
    ],
)
def test_without_a_secret_all_addresses_are_loopback(
    addresses: list[str], secret: str | None, is_refused: bool
) -> None:
    """W1, and the refusal says why."""
    if not is_refused:
        check_secret(addresses, secret)
        return
    with pytest.raises(InvalidRequest, match=r"raft\.secret") as refusal:
        check_secret(addresses, secret)
    assert refusal.value.key == "raft.secret"


def test_messages_are_json_and_keep_bytes() -> None:
    """W2."""
    message = {"entries": [(b"\x00\xff", 1, 2)], "data": (b"", True, False), "n": None}
    back = Codec.loads(Codec.dumps(message))
    assert back == {"entries": [[b"\x00\xff", 1, 2]], "data": [b"", True, False], "n": None}
    with pytest.raises(TypeError):
        Codec.dumps({"x": object()})
