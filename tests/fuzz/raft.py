"""Messages between voters, as they come out of a connection: JSON, then their shape, then Raft itself.

Each input goes to a node of a group of three that has a log, from a voter and from somebody without a vote. Whatever
it says, the node goes on; one whose shape does not fit ends its connection.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pysyncobj.node import Node

from broker.metadata.catalog import Catalog
from broker.raft.journal import Journal, decode_transfer, encode_entry
from broker.raft.messages import is_hello, misfit
from broker.raft.wire import Codec, Voter
from tests.fuzz.decoder import Decoder
from tests.unit.raft.group import PATH, Group

WORDS: Final = (
    *(b"append_entries", b"request_vote", b"response_vote", b"next_node_idx", b"submit", b"submitted", b"note"),
    *(b'"term"', b'"entries"', b'"prevLogIdx"', b'"serialized"', b'"\\u0000"', b"null", b"true", b"-1", b"1e9"),
)


def messages() -> dict[str, dict[str, Any]]:
    """One sound message of each kind, as a group sends them."""
    command = {"v": 1, "kind": "register_producer", "name": "p", "request_id": "r"}
    register = b"\x00" + json.dumps(command).encode()
    append = {"type": "append_entries", "term": 3, "commit_index": 4}
    at = {"prevLogIdx": 4, "prevLogTerm": 0}
    return {
        "append": {**append, **at, "entries": [(register, 5, 3), (b'\x02["add", "d@d"]', 6, 3), (b"\x01", 7, 3)]},
        "heartbeat": {**append, **at, "entries": []},
        "piece": {**append, "serialized": (b"\0" * 40, True, False)},
        "no_piece": {**append, "serialized": None},
        "vote": {"type": "request_vote", "term": 3, "last_log_index": 4, "last_log_term": 0},
        "voted": {"type": "response_vote", "term": 1},
        "next": {"type": "next_node_idx", "term": 1, "next_node_idx": 5, "reset": False, "success": True},
        "reset": {"type": "next_node_idx", "term": 1, "next_node_idx": 2, "reset": True, "success": False},
        "submit": {"type": "submit", "id": "1/1", "command": command, "until": [1, 2.5]},
        "submitted": {"type": "submitted", "id": "1/1", "result": {"ok": {"index": 3}}},
        "note": {"type": "note", "note": {"type": "beat", "broker": "b", "registration": 1, "number": 1}},
        "hello": {
            **{"type": "hello", "cluster": "x", "broker": "b", "node_id": "b@b", "group": "x/0"},
            **{"named": [["b", "b:1"]], "is_forming": False},
        },
    }


def check_message(data: bytes) -> None:
    message = Codec.loads(data)
    is_hello(message)
    misfit(message, is_node_id=_is_node_id)
    group = Group("abc")
    group.elect("a")
    core = group.nodes["b"].core
    if isinstance(message, dict):
        message = {**message, "cluster": "x"}
    for sender in (Node("a@a"), Node("stranger")):
        core._SyncObj__onMessageReceived(sender, message)
        failure = core.failure
        assert failure is None or _is_a_lie(failure), repr(failure)
    group.nodes["a"].tick()
    for name, disk in group.disks.items():
        if group.nodes[name].core.failure is None:
            Journal.open(disk, PATH).close()


def _is_a_lie(failure: BaseException) -> bool:
    """J4: a voter that has the secret names as its own what stands against what is committed."""
    return isinstance(failure, AssertionError) and "committed" in str(failure)


def check_transfer(data: bytes) -> None:
    """A whole snapshot of another voter, before it is written."""
    snapshot, voters, prev, last = decode_transfer(data)
    for command, index, term in (prev, last):
        encode_entry((command, index, term))
    group = Group("a")
    core, node = group.nodes["a"].core, group.nodes["a"]
    core._check_snapshot(snapshot, voters)
    node._put(snapshot)
    assert Catalog.restore(json.loads(json.dumps(node.catalog.snapshot()))).snapshot() == node.catalog.snapshot()


def _is_node_id(text: str) -> bool:
    try:
        Voter(text)
    except ValueError:
        return False
    return True


RAFT: Final = (
    Decoder(
        name="raft-message",
        modules=("broker/raft/messages.py", "broker/raft/wire.py", "broker/raft/core.py", "broker/raft/snapshots.py"),
        check=check_message,
        errors=(ValueError,),
        form="json",
        words=WORDS,
        weight=6,
    ),
    Decoder(
        name="raft-transfer",
        modules=("broker/raft/snapshots.py", "broker/raft/journal.py"),
        check=check_transfer,
        errors=(ValueError,),
        form="json",
        words=WORDS,
        weight=6,
    ),
)
