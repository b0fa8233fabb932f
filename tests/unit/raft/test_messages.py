"""What is no message ends its connection, and nothing else. A matrix: every message, every field, what it is not."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from pysyncobj.node import Node

from broker.metadata.catalog import Catalog
from broker.raft.messages import FIELDS, HELLO, HELLO_ANSWER, is_hello, membership, misfit
from broker.raft.wire import Codec, Voter
from tests.fuzz.raft import messages
from tests.unit.raft.group import PATH, Group
from tests.unit.raft.test_wire import group, until

NOTHING = object()
UNFIT = (NOTHING, -1, 1.5, True, "x" * 600, "a\ud800", [], [1], [[]], {}, b"x", [[b"x", 1, 1]], [[b"\x02[]", 1, 1]])


def is_sound(message: dict[str, Any]) -> bool:
    return misfit(message, is_node_id=lambda text: "@" in text) is None


def test_the_messages_of_a_group_are_sound() -> None:
    for name, message in messages().items():
        over_the_wire = Codec.loads(Codec.dumps(message))
        assert is_sound(over_the_wire), name
        assert is_sound(message), name
    assert {message["type"] for message in messages().values()} - {"hello"} == set(FIELDS)


@pytest.mark.parametrize("name", messages())
def test_each_field_of_a_message_is_looked_at(name: str) -> None:
    """A11. Replaced by what it is not, or gone: another kind of value never gets through."""
    message = messages()[name]
    sound = is_hello if message["type"] == "hello" else is_sound
    for key in message.keys() - {"type"}:
        kept = [value for value in UNFIT if sound(_with(message, key, value))]
        of_its_kind = {
            "reset": [True],
            "success": [True],
            "is_forming": [True],
            "command": [{}],
            "note": [{}],
            "entries": [[]],
            "named": [[], [[]]],
            "until": [NOTHING],
            "serialized": [NOTHING],
            "prevLogIdx": [NOTHING],
        }.get(key, [])
        assert kept == of_its_kind, key


def test_a_place_has_both_of_its_parts_or_the_message_does_not_fit() -> None:
    """Seen before: half a place, which said that there is none, ended the thread of the group (KeyError)."""
    append = messages()["heartbeat"]
    nothing = {"prevLogIdx": None, "prevLogTerm": None}
    assert is_sound({**append, **nothing})
    for value in (None, 4):
        assert not is_sound({**_with(append, "prevLogTerm", NOTHING), "prevLogIdx": value})


def _with(message: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    return {k: v for k, v in message.items() if k != key} | ({} if value is NOTHING else {key: value})


def test_every_field_of_a_greeting_and_its_answer_is_looked_at() -> None:
    answer = dict.fromkeys(HELLO_ANSWER, "x") | {"first": ["a@b:1"], "voters": [], "has_acted": False}
    answer |= {"type": "hello", "registration": 3, "refusal": None}
    assert is_hello(answer, HELLO_ANSWER)
    assert is_hello({"type": "hello", "refusal": "no"}, HELLO_ANSWER)
    for shape, message in ((HELLO, messages()["hello"]), (HELLO_ANSWER, answer)):
        for key in shape:
            for value in (NOTHING, None, 1.5, b"x", [7], {"a": 1}, [["a", [[]]]]):
                assert not is_hello(_with(message, key, value), shape), (key, value)


def test_an_entry_is_a_command_or_a_change_of_voters() -> None:
    assert membership(b'\x02["add", "a@b"]') == ("add", "a@b")
    for text in (
        b"",
        b"[]",
        b'["add"]',
        b'["set", "a@b"]',
        b'["add", 7]',
        b'["add", ["a"]]',
        b"{}",
        b'"ab"',
        b"[" * 9_000,
    ):
        assert membership(b"\x02" + text) is None
    append = messages()["append"]
    for command in (b"", b"\x00[]", b"\x00", b"\x03x", b'\x02["add", "nobody"]', "{}", None):
        assert not is_sound({**append, "entries": [[command, 5, 3]]})


@pytest.mark.parametrize("name", messages())
def test_a_node_outlives_what_is_no_message(name: str) -> None:
    """Seen before: `append_entries` without a term ended the process, and all that it led."""
    nodes = Group("abc")
    nodes.elect("a")
    core, cut = nodes.nodes["b"].core, []
    core._SyncObj__transport.cut = cut.append
    message = {**messages()[name], "cluster": "x"}
    for key in message.keys() - {"cluster"}:
        for value in UNFIT:
            for sender in ("a@a", "stranger"):
                core._SyncObj__onMessageReceived(Node(sender), _with(message, key, value))
                assert core.failure is None
    for nonsense in ([], None, 7, "x"):
        cut.clear()
        core._SyncObj__onMessageReceived(Node("a@a"), nonsense)
        assert cut
        assert core.failure is None


def transfers() -> dict[str, bytes]:
    """Snapshots that are whole, by their CRC, and that nobody could start with."""
    sound = {"snapshot": Catalog().snapshot(), "voters": ["a@a", "b@b"], "entries": [["AAAA", 90, 1], ["AQ==", 91, 1]]}
    bad: dict[str, Any] = {
        "no object": [],
        "no snapshot": {**sound, "snapshot": None},
        "another version": {**sound, "snapshot": {**Catalog().snapshot(), "v": 99}},
        "streams of none": {**sound, "snapshot": {**Catalog().snapshot(), "streams": [{"name": "s"}]}},
        "cluster of none": {**sound, "snapshot": {**Catalog().snapshot(), "cluster": []}},
        "voters": {**sound, "voters": [7]},
        "no voters": {**sound, "voters": None},
        "no entries": {**sound, "entries": []},
        "an index": {**sound, "entries": [["AAAA", -2, 1], ["AQ==", -1, 1]]},
        "endless": {**sound, "entries": [["AAAA", float("inf"), 1], ["AQ==", 91, 1]]},
        "no base64": {**sound, "entries": [[7, 90, 1], ["AQ==", 91, 1]]},
    }
    return {name: json.dumps(value).encode() for name, value in bad.items()} | {"no JSON": b"\xff" * 9}


@pytest.mark.parametrize("name", transfers())
def test_a_snapshot_that_cannot_be_read_is_not_written(name: str) -> None:
    """S3. It would be what the node begins with, at every start from then on."""
    nodes = Group("abc")
    nodes.elect("a")
    b, cut = nodes.nodes["b"], []
    b.core._SyncObj__transport.cut = cut.append
    before = nodes.disks["b"].read_file(PATH)
    data = transfers()[name]
    piece = struct.pack("<QQIQ", 91, len(data), crc32c(data), 0) + data
    term = b.core.raftCurrentTerm
    message = {"type": "append_entries", "cluster": "x", "term": term, "commit_index": 1}
    b.core._SyncObj__onMessageReceived(Node("a@a"), {**message, "serialized": [piece, True, True]})
    assert cut == [Node("a@a")]
    assert b.core.failure is None
    assert nodes.disks["b"].read_file(PATH) == before
    results = nodes.submit("a", 1)
    for _ in range(4):
        nodes.turn()
    assert "ok" in results[0]
    assert nodes.has("b") == {"p1"}


def frame(message: Any) -> bytes:
    data = zlib.compress(Codec.dumps(message))
    return struct.pack("i", len(data)) + data


@pytest.mark.parametrize("is_voter", [True, False])
def test_a_malformed_message_cuts_its_connection(tmp_path: Path, is_voter: bool) -> None:
    """Over real connections; the group goes on."""
    with group(tmp_path, [None] * 2) as nodes:
        first, caller = sorted(nodes, key=lambda node: node.node_id)
        until(nodes, lambda: first.controller is not None and caller.controller is not None)
        cluster = first.journal.base.cluster_id
        for bad in (
            {"type": "append_entries", "cluster": cluster, "entries": []},
            {"type": "request_vote", "cluster": cluster, "term": "9"},
            {"type": "submit", "cluster": cluster, "id": "x", "command": [[]]},
            ["add", "x@y:1"],
        ):
            with socket.create_connection(("127.0.0.1", int(first.node_id.rpartition(":")[2]))) as sock:
                sock.sendall(frame(caller.node_id if is_voter else "readonly") + frame(bad))
                sock.setblocking(False)
                until(nodes, lambda sock=sock: _is_over(sock))
        assert first.core.failure is caller.core.failure is None
        results: list[Any] = []
        until(nodes, lambda: any(node.has_begun for node in nodes))
        next(node for node in nodes if node.is_controller).submit({"v": 1, "kind": "register_producer"}, results.append)
        until(nodes, lambda: results)
        assert "ok" in results[0]


def _is_over(sock: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        while sock.recv(1 << 16):
            pass
        return True
    return False


def test_nested_values_reach_no_limit_of_recursion() -> None:
    """The text of an error shows what it refuses; what is nested deep is refused first, and not shown."""
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    nodes = Group("a")
    nodes.elect("a")
    core = nodes.nodes["a"].core
    for command in (
        {"v": deep, "kind": "register_broker"},
        {"v": 1, "kind": deep},
        {"v": 1, "kind": "register_broker", "broker_id": deep},
        {"kind": "change_voters", "change": deep, "node_id": deep},
    ):
        text = json.loads(json.dumps({"type": "submit", "id": "x/1", "cluster": "x", "command": command}))
        core._SyncObj__onMessageReceived(Node("stranger"), text)
        assert core.failure is None


def test_a_vote_is_asked_for_an_id_that_is_one(tmp_path: Path) -> None:
    """Seen before: an id without a port, once in the log, ended each broker that read it."""
    with group(tmp_path, [None]) as (node,):
        until([node], lambda: node.has_begun)
        for bad in ("garbage", "a@b", "a@b:x", "a@b:0", "a@b:99999", "a@b\r\n:1", "@b:1", "", "x" * 600 + "@b:1"):
            results: list[Any] = []
            node.change_voters("add", bad, results.append)
            until([node], lambda results=results: results)
            assert results[0]["error"]["reason"] == "invalid_request", bad
        assert Voter("a.0f@[::1]:9294").port == 9294
        assert Voter("broker-1.0f@db_1.example:9294").port == 9294
