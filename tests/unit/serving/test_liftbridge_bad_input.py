"""Goal: wrong input has the code that the reference says, over gRPC and over HTTP.

Method: the table "Bad input" of docs/reference/liftbridge.md is read, and each of its rows is done on a server.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.proto import liftbridge_pb2 as pb
from broker.serving.http.access import AuthRules
from tests.support.liftbridge import Client, client_of, opened
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Server, running

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "liftbridge.md"
SECTION = PAGE.read_text().partition("\n## Bad input\n")[2].partition("\n### ")[0]
ROWS = {
    case: (over_grpc, over_http)
    for case, over_grpc, over_http in re.findall(r"^\| (.+?) \| `?(.+?)`? \| `?(.+?)`? \|", SECTION, re.M)
}
GROUP = {"group_id": "g", "consumer_id": "a"}


def subscribed(client: Client, **fields: Any) -> str:
    try:
        list(client.subscribe(**{"stream": "s", "stop": pb.AT_LATEST, **fields}))
    except grpc.RpcError as error:
        return str(error.code().name)
    raise AssertionError("it has an end")


def published(client: Client, **fields: Any) -> str:
    """The codes of Publish and of PublishAsync."""
    asked = {"value": b"v", **fields}
    [answer] = client.publish_async(iter([pb.Publish(**asked)]))
    return f"{client.refusal('Publish', **asked)[0]}, {pb.AsyncError.Code.Name(answer.error.code)}"


def raw(client: Client, name: str, message: bytes) -> str:
    call = client.channel.unary_unary(f"/proto.API/{name}", request_serializer=bytes, response_deserializer=bytes)
    try:
        call(message, timeout=30)
    except grpc.RpcError as error:
        return str(error.code().name)
    raise AssertionError("it was taken")


def cursor(client: Client, **fields: Any) -> str:
    return client.refusal("SetCursor", **{"stream": "s", "cursor_id": "mine", **fields})[0]


def committed(server: Server, **fields: Any) -> Any:
    entry = {"stream": "s", "partition": 0, "offset": 0, **fields}
    return server.api.post("/v1/consumers/mine/offsets", {"offsets": [entry]})


def poll(server: Server, session: int) -> Any:
    return server.api.post("/v1/groups/g/members/a/poll", {"session": session})


def place(server: Server, **fields: Any) -> str:
    incarnation = server.backend.stream("s").incarnation
    step = {"stream": "s", "partition": 0, "epoch": 1, "incarnation": incarnation, "start": 0, "offset": 1, **fields}
    [found] = server.api.post("/v1/groups/g/commit", {"partitions": [step]}).json()["partitions"]
    return str(found["error"]["type"].rpartition(":")[2])


def stale(client: Client, server: Server) -> str:
    session = client.call("JoinConsumerGroup", **GROUP, streams=["s"]).epoch
    found = client.refusal("FetchConsumerGroupAssignments", **GROUP, epoch=session - 1)[0]
    assert poll(server, session - 1).reason == "unknown_member"
    client.call("LeaveConsumerGroup", **GROUP)
    return found


def overtaken(client: Client, server: Server) -> str:
    group = {"group_id": "h", "consumer_id": "a"}
    epoch = client.call("JoinConsumerGroup", **group, streams=["kept"]).epoch
    asked = {"stream": "kept", "start": pb.EARLIEST, "consumer": pb.Member(**group, group_epoch=epoch)}
    assert subscribed(client, **asked) == "RESOURCE_EXHAUSTED", "it has begun"
    assert server.api.post("/v1/streams/kept/trim", {"before": {"offset": 2}}).status == 200
    return subscribed(client, **asked)


def foreign_cursor(folder: Path) -> tuple[str, str]:
    """At a broker that asks who comes."""
    with running(folder, auth=AuthRules(mode="enforce")) as server, opened(server) as port:
        server.call(server.backend.create_stream("s", {}))
        with client_of(port.port) as client:
            return cursor(client), committed(server).reason


Case = tuple[Callable[[Client, Server], str], Callable[[Server], str]]
DONE: dict[str, Case] = {
    "a stream that is not there": (
        lambda c, s: published(c, stream="t"),
        lambda s: s.api.append("t", values(1)).reason,
    ),
    "a partition that it does not have": (
        lambda c, s: published(c, stream="s", partition=7),
        lambda s: s.api.append("s", values(1), 7).reason,
    ),
    "no stream": (lambda c, s: published(c), lambda s: s.api.append("%20", values(1)).reason),
    "a record that is too large": (
        lambda c, s: published(c, stream="small", value=bytes(101)),
        lambda s: s.api.append("small", values(1, 101)).reason,
    ),
    "bytes that are no message": (
        lambda c, s: raw(c, "Publish", b"\xff"),
        lambda s: s.api.append("s", b"\xff").reason,
    ),
    "an offset that is not the next one": (
        lambda c, s: published(c, stream="counted", expected_offset=7),
        lambda s: s.api.append("counted", values(1), expected_offset=7).reason,
    ),
    "a read-only stream": (
        lambda c, s: published(c, stream="closed"),
        lambda s: s.api.append("closed", values(1)).reason,
    ),
    "a subscription to a stream that is not there": (
        lambda c, s: subscribed(c, stream="t"),
        lambda s: s.api.read("t").reason,
    ),
    "a start or a stop that there is not": (
        lambda c, s: subscribed(c, start=9),
        lambda s: s.api.read("s", offset="never").reason,
    ),
    "a stop before the start": (
        lambda c, s: subscribed(c, start=pb.OFFSET, start_offset=1, stop=pb.AT_OFFSET, stop_offset=0),
        lambda s: s.api.read("s", offset=1, end=0).reason,
    ),
    "a cursor of a partition that is not there": (
        lambda c, s: cursor(c, partition=7),
        lambda s: committed(s, partition=7).reason,
    ),
    "a cursor beyond the end": (lambda c, s: cursor(c, offset=99), lambda s: committed(s, offset=99).reason),
    "a cursor without a name": (
        lambda c, s: cursor(c, cursor_id=""),
        lambda s: s.api.post("/v1/consumers/%20/offsets", {"offsets": []}).reason,
    ),
    "the place of a group that has not begun": (
        lambda c, s: cursor(c, cursor_id="__group:g"),
        lambda s: place(s),
    ),
    "the place of a group that retention has overtaken": (overtaken, lambda s: s.api.read("kept", offset=0).reason),
    "a stale epoch of a group": (stale, lambda s: poll(s, 1).reason),
    "a consumer that holds nothing": (
        lambda c, s: subscribed(c, start=pb.EARLIEST, consumer=pb.Member(**GROUP)),
        lambda s: place(s),
    ),
}


def test_each_bad_input_has_the_code_of_the_table(server: Server, tmp_path: Path) -> None:
    with opened(server) as port, client_of(port.port) as client:
        for name in ("s", "small", "counted", "closed", "kept"):
            optimistic = pb.Bool(value=name == "counted")
            client.call("CreateStream", name=name, subject=name, expects_offsets=optimistic)
        server.api.append("s", values(3))
        server.api.append("kept", values(3))
        assert server.api.request("PATCH", "/v1/streams/small", json_body={"record_bytes_max": 100}).status == 200
        client.call("SetStreamReadonly", name="closed", readonly=True)
        done = {case: (over_grpc(client, server), over_http(server)) for case, (over_grpc, over_http) in DONE.items()}
    done["a cursor of a name that the caller may not use"] = foreign_cursor(tmp_path / "enforcing")
    assert done == {case: codes for case, codes in ROWS.items() if case != "case"}
