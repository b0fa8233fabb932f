"""Liftbridge's API: streams and metadata.

Goal: a client of Liftbridge finds what it knows, with the codes by which it decides; and each call is judged, counted
and recorded as the operation of HTTP that it is made of. Method: the application as a broker runs it, asked by grpcio.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.errors import BY_REASON
from broker.api.principals import new_token
from broker.api.proto import liftbridge_pb2 as pb
from broker.serving.http.access import AuthRules
from broker.serving.liftbridge.calls import OPEN, Method
from broker.serving.liftbridge.server import METHODS
from broker.serving.liftbridge.statuses import CODES, Code, code_of
from broker.serving.liftbridge.streams import settings_of
from tests.support.certificates import Authority
from tests.support.liftbridge import Client, client_of, opened
from tests.unit.serving.server import Server, running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with opened(server) as port, client_of(port.port) as client:
        yield client


# --- streams --------------------------------------------------------------------------------------------------------


def test_a_stream_is_made_described_and_deleted(client: Client, server: Server) -> None:
    client.call("CreateStream", name="orders", subject="shop.orders", partitions=2)
    assert server.backend.stream("orders").settings.partition_by == "subject_suffix"
    metadata = client.call("FetchMetadata")
    [broker] = metadata.brokers
    assert (broker.id, broker.host, broker.partitions, broker.leaders) == ("broker-0", "127.0.0.1", 2, 2)
    stream, cursors = metadata.streams
    assert (cursors.name, cursors.partitions[0].leader) == ("__cursors", "broker-0"), "to whom cursors are brought"
    assert (stream.name, stream.subject, stream.error) == ("orders", "shop.orders", pb.Stream.OK)
    assert stream.created > 1_700_000_000 * 10**9
    assert sorted(stream.partitions) == [0, 1]
    one = stream.partitions[1]
    assert (one.id, one.leader, list(one.replicas), list(one.isr)) == (1, "broker-0", ["broker-0"], ["broker-0"])
    assert (one.high_watermark, one.newest_offset) == (-1, -1)
    client.call("DeleteStream", name="orders")
    assert [stream.name for stream in client.call("FetchMetadata").streams] == ["__cursors"]


def test_settings_of_a_stream_are_those_of_here(client: Client, server: Server) -> None:
    client.call(
        "CreateStream",
        name="s",
        subject="s",
        retention_bytes=pb.Int64(value=1 << 30),
        retention_records=pb.Int64(value=10),
        retention_ms=pb.Int64(value=0),
        segment_bytes=pb.Int64(value=1 << 20),
        segment_ms=pb.Int64(value=5_000),
        cleaner_interval_ms=pb.Int64(value=1),
        compaction_threads=pb.Int32(value=3),
        compact=pb.Bool(value=True),
        group="g",
        auto_pause_ms=pb.Int64(value=0),
    )
    settings = server.backend.stream("s").settings
    assert (settings.retention_bytes, settings.retention_records, settings.retention_ms) == (1 << 30, 10, None)
    assert (settings.segment_bytes, settings.segment_age_ms) == (1 << 20, 5_000)
    assert (settings.cleanup, settings.group, settings.partitions) == ("both", "g", 1)


def test_a_stream_may_be_encrypted_and_wait_for_replicas() -> None:
    """Both are refused by a broker that has no key, or is alone."""
    asked = pb.CreateStream(subject="s", min_isr=pb.Int32(value=2), encryption=pb.Bool(value=True))
    nobody: Any = None
    assert settings_of(asked, nobody) == {
        "subject": "s",
        "partition_by": "subject_suffix",
        "min_insync_replicas": 2,
        "encryption": "aes-256-gcm",
    }


IMPOSSIBLE: list[tuple[dict[str, object], str]] = [
    ({"name": "", "subject": "s"}, "INVALID_ARGUMENT"),
    ({"name": "s", "subject": ""}, "INVALID_ARGUMENT"),
    ({"name": "s", "subject": "a b"}, "INVALID_ARGUMENT"),
    ({"name": "s", "subject": "a..b"}, "INVALID_ARGUMENT"),
    ({"name": "__s", "subject": "s"}, "INVALID_ARGUMENT"),
    ({"name": "s/s", "subject": "s"}, "INVALID_ARGUMENT"),
    ({"name": "s", "subject": "s", "partitions": -1}, "INVALID_ARGUMENT"),
    ({"name": "s", "subject": "s", "partitions": 5_000}, "INVALID_ARGUMENT"),
    ({"name": "s", "subject": "s", "replication_factor": -2}, "INVALID_ARGUMENT"),
    ({"name": "s", "subject": "s", "auto_pause_ms": pb.Int64(value=5)}, "INVALID_ARGUMENT"),
    ({"name": "there", "subject": "there"}, "ALREADY_EXISTS"),
    ({"name": "there", "subject": "elsewhere"}, "ALREADY_EXISTS"),
]


def test_what_no_stream_can_be_is_refused(client: Client) -> None:
    client.call("CreateStream", name="there", subject="there")
    for fields, code in IMPOSSIBLE:
        assert client.refusal("CreateStream", **fields)[0] == code, fields
    assert [stream.name for stream in client.call("FetchMetadata").streams] == ["there", "__cursors"]


def test_a_stream_is_paused_and_read_only_as_a_whole(client: Client, server: Server) -> None:
    client.call("CreateStream", name="s", subject="s", partitions=2)
    client.call("PauseStream", name="s")
    client.call("PauseStream", name="s", partitions=[0, 1])
    assert client.call("FetchMetadata", streams=["s"]).streams[0].partitions[1].paused
    client.call("SetStreamReadonly", name="s", readonly=True)
    assert server.backend.stream("s").read_only
    client.call("SetStreamReadonly", name="s", partitions=[1, 0], readonly=False)
    assert not server.backend.stream("s").read_only
    for call in ("PauseStream", "SetStreamReadonly"):
        assert client.refusal(call, name="s", partitions=[1])[0] == "UNIMPLEMENTED"
        assert client.refusal(call, name="s", partitions=[2])[0] == "NOT_FOUND"
        assert client.refusal(call, name="none")[0] == "NOT_FOUND"
        assert client.refusal(call, name="")[0] == "NOT_FOUND"
        assert client.refusal(call, name="__offsets")[0] == "FAILED_PRECONDITION"


def test_who_deletes_what_is_not_there_is_told(client: Client) -> None:
    for name in ("none", "", "a/b", "%2e%2e", "ä", ".", "..", "a?b#c", "x" * 5_000, "{stream}"):
        assert client.refusal("DeleteStream", name=name)[0] == "NOT_FOUND"
    assert client.refusal("DeleteStream", name="__commits")[0] == "FAILED_PRECONDITION"


# --- metadata -------------------------------------------------------------------------------------------------------


def test_streams_and_groups_that_are_not_there_are_told_of(client: Client) -> None:
    client.call("CreateStream", name="s", subject="s")
    metadata = client.call("FetchMetadata", streams=["s", "t"], groups=["g"])
    assert [(stream.name, stream.error) for stream in metadata.streams] == [
        ("s", pb.Stream.OK),
        ("t", pb.Stream.UNKNOWN_STREAM),
    ]
    assert [(group.id, group.error) for group in metadata.groups] == [("g", pb.Group.UNKNOWN_GROUP)]


def test_one_partition_is_described(client: Client, server: Server) -> None:
    client.call("CreateStream", name="s", subject="s")
    assert server.api.post("/v1/streams/s/read-only", {"read_only": True}).status == 200
    partition = client.call("FetchPartitionMetadata", stream="s", partition=0).partition
    assert (partition.leader, partition.readonly, partition.high_watermark) == ("broker-0", True, -1)
    assert client.refusal("FetchPartitionMetadata", stream="s", partition=1)[0] == "NOT_FOUND"
    assert client.refusal("FetchPartitionMetadata", stream="t", partition=0)[0] == "NOT_FOUND"


def test_what_is_not_there_says_so(client: Client) -> None:
    for path in ("/proto.API/Nothing", "/other/Call", "/"):
        call = client.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=30)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED, path


# --- one door -------------------------------------------------------------------------------------------------------


def test_a_call_without_a_permission_does_not_load() -> None:
    async def nothing(asking: object) -> None:
        """Nothing."""

    for path, operations in (("/proto.API/Anything", ()), ("/proto.API/Anything", ("no_such_operation",))):
        with pytest.raises(AssertionError, match="L1"):
            Method(path=path, summary="", answer=nothing, operations=operations)
    for method in METHODS.values():
        assert method.summary
        assert bool(method.operations) != (method.path in OPEN)


def test_the_reference_names_each_call_and_what_it_is_made_of() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "liftbridge.md").read_text()
    for method in METHODS.values():
        name = method.path.removeprefix("/proto.API/").removeprefix("/")
        operations = ", ".join(f"`{operation}`" for operation in method.operations)
        assert re.search(rf"^\| `{re.escape(name)}` \| ?{operations} \|", page, re.MULTILINE), name


def test_every_error_has_a_code() -> None:
    for cls in BY_REASON.values():
        assert code_of(cls("")) in Code
    assert set(CODES.values()) >= {Code.NOT_FOUND, Code.INTERNAL}
    assert Code.RESOURCE_EXHAUSTED not in CODES.values(), "to clients it is the end of a subscription"


def test_callers_are_judged_as_over_http_and_acts_recorded(tmp_path: Path) -> None:
    token = new_token()
    rules = AuthRules(mode="enforce", admin_token=(token.id, token.sha256))
    with running(tmp_path, auth=rules) as server, opened(server) as port:
        with client_of(port.port) as stranger:
            assert stranger.refusal("FetchMetadata")[0] == "UNAUTHENTICATED"
            assert stranger.refusal("CreateStream", name="s", subject="s")[0] == "PERMISSION_DENIED"
        with client_of(port.port, metadata=[("authorization", "Bearer nonsense")]) as forger:
            assert forger.refusal("CreateStream", name="s", subject="s") == ("UNAUTHENTICATED", "unauthenticated")
        admin = {"Authorization": f"Bearer {token.text}"}
        with client_of(port.port, metadata=[("authorization", admin["Authorization"])]) as client:
            client.call("CreateStream", name="s", subject="s")
            assert [stream.name for stream in client.call("FetchMetadata").streams] == ["s", "__cursors"]
        rows = server.api.read("__audit", headers=admin).rows().to_pydict()["value"]
        told = [json.loads(row) for row in rows]
        seen = [(each["kind"], each["operation"], each["principal"], each["result"], each["address"]) for each in told]
        assert ("act", "create_stream", "admin", "done", "127.0.0.1") in seen
        assert ("refusal", "create_stream", "anonymous", "refused", "127.0.0.1") in seen


def test_over_tls_a_certificate_says_who_calls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    rules = AuthRules(mode="enforce", admins=frozenset({"user:ana"}))
    ana = authority.issue("ana", uris=["liftlog:user/ana"])
    contexts = authority.certificates(None, tls_client_ca=authority.ca).contexts
    with running(tmp_path / "data", auth=rules) as server, opened(server, contexts) as port:
        read = {name: Path(path).read_bytes() for name, path in (("cert", ana.cert), ("key", ana.key))}
        credentials = grpc.ssl_channel_credentials(Path(authority.ca).read_bytes(), read["key"], read["cert"])
        with client_of(port.port, credentials=credentials) as client:
            client.call("CreateStream", name="s", subject="s")
            assert [stream.name for stream in client.call("FetchMetadata").streams] == ["s", "__cursors"]
        with client_of(port.port) as plain:
            assert plain.refusal("FetchMetadata")[0] == "UNAVAILABLE"


HIDDEN: Final = "hushed"
"""A stream that the caller has no grant for, its subject, a consumer and a group, whose member reads it."""


def test_no_refusal_tells_whether_a_thing_is_there(tmp_path: Path) -> None:
    """To a stranger, and to the reader of another stream: each call says the same of what is there and what is not."""
    token, reader = new_token(), new_token()
    rules = AuthRules(mode="enforce", admin_token=(token.id, token.sha256))
    admin = {"Authorization": f"Bearer {token.text}"}

    def asked(path: str, body: object) -> None:
        assert server.api.post(path, body, headers=admin).status < 300, path

    with running(tmp_path, auth=rules) as server, opened(server) as port:
        for name in (HIDDEN, "own"):
            asked("/v1/streams", {"name": name, "subject": name})
        asked(f"/v1/consumers/{HIDDEN}/offsets", {"offsets": [{"stream": HIDDEN, "partition": 0, "offset": 0}]})
        asked(f"/v1/groups/{HIDDEN}/members", {"member": "m", "streams": [HIDDEN]})
        of = {"id": reader.id, "sha256": reader.sha256, "principal": "user:reader"}
        asked("/v1/auth/tokens", {**of, "expires_ms": int(time.time() * 1000) + 60_000})
        grants = [{"action": "stream:read", "name": "own"}, {"action": "consumer:read", "name": "own"}]
        asked("/v1/auth/grants", {"principal": "user:reader", "add": grants})
        for shown in ([], [("authorization", f"Bearer {reader.text}")]):
            with client_of(port.port, metadata=shown) as client:
                there, absent = answers_of(client, HIDDEN), answers_of(client, "absent")
                assert [*there] == [*absent]
                for call, answer in there.items():
                    assert answer.replace(HIDDEN, "absent") == absent[call], call
                    if shown and not call.startswith("FetchMetadata"):
                        assert "PERMISSION_DENIED" in answer, call


def answers_of(client: Client, name: str) -> dict[str, str]:
    """What each call says of a stream, subject, consumer and group of this name."""
    at, group = {"stream": name, "partition": 0}, {"group_id": name, "consumer_id": "m"}
    own = {"stream": "own", "partition": 0}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("CreateStream", {"name": name, "subject": name}),
        ("DeleteStream", {"name": name}),
        ("PauseStream", {"name": name}),
        ("PauseStream", {"name": name, "partitions": [0]}),
        ("SetStreamReadonly", {"name": name}),
        ("FetchMetadata", {"streams": [name], "groups": [name]}),
        ("FetchPartitionMetadata", at),
        ("FetchPartitionMetadata", {"stream": name, "partition": 9}),
        ("Publish", {**at, "ack_policy": pb.ALL, "expected_offset": 3}),
        ("Publish", {**at, "ack_policy": pb.NONE}),
        ("PublishToSubject", {"subject": name, "ack_policy": pb.ALL}),
        ("PublishToSubject", {"subject": name, "ack_policy": pb.NONE}),
        ("JoinConsumerGroup", {**group, "streams": ["own"]}),
        ("LeaveConsumerGroup", group),
        ("FetchConsumerGroupAssignments", {**group, "epoch": 1}),
        ("ReportConsumerGroupCoordinator", {**group, "epoch": 1, "coordinator": "broker-0"}),
        ("SetCursor", {**at, "cursor_id": "own"}),
        ("SetCursor", {**own, "cursor_id": name}),
        ("SetCursor", {**own, "cursor_id": f"__group:{name}"}),
        ("FetchCursor", {**own, "cursor_id": name}),
        ("FetchCursor", {**own, "cursor_id": f"__group:{name}"}),
        ("FetchCursor", {**at, "cursor_id": f"__group:{name}"}),
    ]
    said = {f"{call} {fields}".replace(name, "…"): answer_of(client, call, fields) for call, fields in calls}
    member = pb.Member(**group, group_epoch=1 << 40)
    for more in (
        {**at, "start": pb.EARLIEST, "stop": pb.AT_LATEST},
        {**at, "start": pb.TIMESTAMP},
        {**at, "reverse": True},
        {**at, "resume": True},
        {**at, "from_replica": True},
        {**own, "consumer": member},
    ):
        said[f"Subscribe {more}".replace(name, "…")] = refusal_of(client.subscribe(**more))
    record = pb.Publish(**at, expected_offset=3, ack_policy=pb.ALL)
    said["PublishAsync"] = refusal_of(client.publish_async(iter([record])))
    return said


def answer_of(client: Client, call: str, fields: dict[str, Any]) -> str:
    try:
        return str(client.call(call, **fields))
    except grpc.RpcError as error:
        return f"{error.code().name} {error.details()} {sorted(error.trailing_metadata())}"


def refusal_of(call: Any) -> str:
    try:
        return " ".join(map(str, call))
    except grpc.RpcError as error:
        return f"{error.code().name} {error.details()} {sorted(error.trailing_metadata())}"
