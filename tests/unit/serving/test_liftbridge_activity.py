"""Goal: clients of Liftbridge take the events of `__activity` as Liftbridge has them.

Method: what this writes is read by protobuf's own library, with the fields of liftbridge-api v2.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="Liftbridge's API needs protobuf: the extra `liftbridge`")

from broker.serving.liftbridge.activity import as_liftbridge_has_it
from tests.support.activity_events import read_event

NAMED = {"name": "orders", "partitions": [0, 1, 200]}
STREAM = {"stream": "orders", "partitions": [0, 1, 200]}
MEMBER = {"group": "g", "consumer": "ü"}


@pytest.mark.parametrize(
    ("said", "op", "name", "fields"),
    [
        ({"op": "create_stream", **NAMED}, 0, "createStreamOp", STREAM),
        ({"op": "delete_stream", "name": "orders"}, 1, "deleteStreamOp", {"stream": "orders"}),
        ({"op": "pause_stream", **NAMED}, 2, "pauseStreamOp", {**STREAM, "resumeAll": False}),
        ({"op": "resume_stream", **NAMED}, 3, "resumeStreamOp", STREAM),
        ({"op": "set_stream_read_only", **NAMED, "read_only": True}, 4, "setStreamReadonlyOp", STREAM),
        ({"op": "join_group", **MEMBER, "streams": ["a", "b"]}, 5, "joinConsumerGroupOp", {"streams": ["a", "b"]}),
        ({"op": "join_group", **MEMBER, "streams": []}, 5, "joinConsumerGroupOp", {"streams": []}),
        ({"op": "leave_group", **MEMBER, "expired": True}, 6, "leaveConsumerGroupOp", {"expired": True}),
        ({"op": "leave_group", **MEMBER, "expired": False}, 6, "leaveConsumerGroupOp", {"expired": False}),
    ],
)
def test_an_event_is_liftbridges(said: dict[str, Any], op: int, name: str, fields: dict[str, Any]) -> None:
    for number in (1, 5 << 28, (1 << 63) - 1):
        value = as_liftbridge_has_it(json.dumps({"id": number, **said}).encode())
        assert value is not None
        found = read_event(value)
        assert found[:3] == (number, op, name)
        assert fields.items() <= found[3].items()
        if "group" in said:
            assert (found[3]["groupId"], found[3]["consumerId"]) == ("g", "ü")
        if "read_only" in said:
            assert found[3]["readonly"] is True


@pytest.mark.parametrize(
    "value", [None, b"", b"{", b"[]", b"7", b'{"op": "other", "id": 1}', b'{"op": "delete_stream", "id": -1}', b"\xff"]
)
def test_what_is_no_event_is_handed_out_as_it_is(value: bytes | None) -> None:
    assert as_liftbridge_has_it(value) == value
