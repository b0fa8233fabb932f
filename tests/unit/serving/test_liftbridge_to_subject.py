"""Liftbridge's PublishToSubject.

Goal: a record of a subject is in each stream that captures it, where a message from NATS would be, and in none that the
caller may not append to. Method: the application as a broker runs it, asked by grpcio.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.errors import (
    LiftlogError,
    NotLeader,
    Overloaded,
    RecordTooLarge,
    StorageFailed,
    StreamPaused,
    UnknownStream,
)
from broker.api.principals import new_token
from broker.api.proto import liftbridge_pb2 as pb
from broker.serving.http.access import AuthRules
from broker.serving.liftbridge import to_subject
from tests.support.liftbridge import Client, client_of, opened
from tests.support.processes import eventually
from tests.unit.serving.server import Server, running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with opened(server) as port, client_of(port.port) as client:
        yield client


def make(server: Server, name: str, subject: str, **settings: Any) -> None:
    made = server.api.post("/v1/streams", {"name": name, "subject": subject, **settings})
    assert made.status == 201, made.body


def rows_of(server: Server, stream: str, partition: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.api.read(stream, partition).rows().to_pylist()
    return found


def test_every_stream_that_captures_a_subject_has_the_record(client: Client, server: Server) -> None:
    make(server, "one", "shop.*")
    make(server, "parts", "shop", partitions=2, partition_by="subject_suffix", reply_acks=False)
    make(server, "keyed", "shop.>", partitions=5, partition_by="key", reply_acks=False)
    make(server, "other", "shop.2")
    fields = {"subject": "shop.1", "key": b"k", "value": b"v", "headers": {"h": b"1"}, "correlation_id": "c"}
    ack = client.call("PublishToSubject", **fields, ack_inbox="in", ack_policy=pb.ALL).ack
    assert (ack.stream, ack.partition_subject, ack.subject, ack.offset) == ("keyed", "shop.>", "shop.1", 0)
    assert (ack.ack_inbox, ack.correlation_id, ack.ack_policy) == ("in", "c", pb.ALL)
    assert 0 < ack.received <= ack.committed
    for stream, partition in (("one", 0), ("parts", 1), ("keyed", crc32(b"k") % 5)):
        [row] = rows_of(server, stream, partition)
        assert (row["subject"], row["key"], row["value"]) == ("shop.1", b"k", b"v")
        assert row["headers"] == [{"key": "h", "value": b"1"}]
    assert not rows_of(server, "other")
    assert not rows_of(server, "parts", 0)


def test_one_of_a_queue_group_has_it(client: Client, server: Server) -> None:
    for name in ("a", "b"):
        make(server, name, "jobs", group="g")
    for _ in range(3):
        assert client.call("PublishToSubject", subject="jobs", value=b"v").ack.stream in ("a", "b")
    assert len(rows_of(server, "a")) + len(rows_of(server, "b")) == 3


def test_what_takes_no_records_does_not_keep_the_others_from_it(client: Client, server: Server) -> None:
    make(server, "a", "s", reply_acks=False)
    make(server, "b", "s")
    assert server.api.post("/v1/streams/a/pause", None).status == 200
    assert client.call("PublishToSubject", subject="s", value=b"v").ack.stream == "b"
    assert server.api.post("/v1/streams/b/read-only", {"read_only": True}).status == 200
    assert client.refusal("PublishToSubject", subject="s", value=b"v")[0] == "FAILED_PRECONDITION"
    assert server.api.request("PATCH", "/v1/streams/b", json_body={"record_bytes_max": 100}).status == 200
    assert server.api.post("/v1/streams/b/read-only", {"read_only": False}).status == 200
    assert client.refusal("PublishToSubject", subject="s", value=bytes(101))[0] == "INVALID_ARGUMENT"


def test_offsets_are_not_expected_and_no_ack_is_sent_if_none_is_wanted(client: Client, server: Server) -> None:
    make(server, "s", "s", concurrency_control="optimistic")
    for _ in range(2):
        assert client.call("PublishToSubject", subject="s", value=b"v", ack_policy=pb.NONE) == pb.PublishedToSubject()
    eventually(lambda: len(rows_of(server, "s")) == 2)
    assert client.call("PublishToSubject", subject="nobody", ack_policy=pb.NONE) == pb.PublishedToSubject()


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (Overloaded("too much at once"), "UNAVAILABLE"),
        (StorageFailed("a disk"), "UNAVAILABLE"),
        (NotLeader("nobody leads it"), "UNAVAILABLE"),
        (RecordTooLarge("too large"), "INVALID_ARGUMENT"),
        (StreamPaused("just now"), None),
        (UnknownStream("just now"), None),
    ],
)
def test_a_stream_that_does_not_have_the_record_is_named(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch, wrong: LiftlogError, code: str | None
) -> None:
    """Else the caller takes a record for stored that one of its streams does not have."""
    for name in ("a", "b"):
        make(server, name, "s", reply_acks=False)
    append = to_subject._stored

    async def stored(asking: Any, info: Any, *more: Any) -> int:
        if info.name == "b":
            raise wrong
        return await append(asking, info, *more)

    monkeypatch.setattr(to_subject, "_stored", stored)
    if code is None:
        assert client.call("PublishToSubject", subject="s", value=b"v").ack.stream == "a"
    else:
        told = client.refusal("PublishToSubject", subject="s", value=b"v")
        assert told == (code, f"stream 'b': {wrong.message}; stored in 'a'")
    assert len(rows_of(server, "a")) == 1


def test_each_stream_acks_at_the_inbox(client: Client, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        make(server, name, "s", reply_acks=False)
    asked = {"subject": "s", "value": b"v", "ack_inbox": "_INBOX.x", "correlation_id": "c"}
    first = client.call("PublishToSubject", **asked).ack
    told = [(inbox, pb.Ack.FromString(ack)) for inbox, ack in server.backend.inboxes]
    assert {inbox for inbox, _ in told} == {"_INBOX.x"}
    assert sorted(ack.stream for _, ack in told) == ["a", "b"]
    assert first in [ack for _, ack in told]
    client.call("PublishToSubject", **asked, ack_policy=pb.NONE)
    append = to_subject._stored

    async def stored(asking: Any, info: Any, *more: Any) -> int:
        if info.name == "b":
            raise StorageFailed("a disk")
        return await append(asking, info, *more)

    monkeypatch.setattr(to_subject, "_stored", stored)
    assert client.refusal("PublishToSubject", **asked)[0] == "UNAVAILABLE"
    assert [pb.Ack.FromString(ack).stream for _, ack in server.backend.inboxes[2:]] == ["a"], "it is stored there"


def test_few_appends_of_a_record_are_under_way_at_once(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        make(server, f"s{number}", "s", reply_acks=False)
    append, under_way, most = to_subject._stored, 0, 0

    async def stored(*more: Any) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await append(*more)
        finally:
            under_way -= 1

    monkeypatch.setattr(to_subject, "_stored", stored)
    client.call("PublishToSubject", subject="s", value=b"v")
    assert most == to_subject.AT_ONCE


REFUSED = {
    "": "INVALID_ARGUMENT",
    "a b": "INVALID_ARGUMENT",
    "a..b": "INVALID_ARGUMENT",
    "a\r\nPUB b 0": "INVALID_ARGUMENT",
    "shop.*": "INVALID_ARGUMENT",
    ">": "INVALID_ARGUMENT",
    "x" * 513: "INVALID_ARGUMENT",
    "$JS.API.STREAM.DELETE.s": "INVALID_ARGUMENT",
    "$SYS.REQ.SERVER.PING": "INVALID_ARGUMENT",
    "$KV.bucket.key": "INVALID_ARGUMENT",
    "_INBOX.another": "INVALID_ARGUMENT",
    "nobody": "DEADLINE_EXCEEDED",
    "__offsets": "DEADLINE_EXCEEDED",
    "one": "DEADLINE_EXCEEDED",
}


def test_a_subject_that_no_stream_has_is_refused(client: Client, server: Server) -> None:
    make(server, "one", "shop.*")
    make(server, "all", ">", reply_acks=False)
    for subject, code in REFUSED.items():
        if code == "INVALID_ARGUMENT":
            assert client.refusal("PublishToSubject", subject=subject, value=b"v")[0] == code, subject
    assert not rows_of(server, "all")
    client.call("DeleteStream", name="all")
    for subject, code in REFUSED.items():
        assert client.refusal("PublishToSubject", subject=subject, value=b"v")[0] == code, subject


def test_nothing_is_stored_if_one_of_the_streams_is_closed_to_the_caller(tmp_path: Path) -> None:
    token = new_token()
    rules = AuthRules(mode="enforce", admin_token=(token.id, token.sha256))
    admin = {"Authorization": f"Bearer {token.text}"}
    with running(tmp_path, auth=rules) as server, opened(server) as port:
        for name in ("open", "closed"):
            settings = {"name": name, "subject": "s", "reply_acks": False}
            assert server.api.post("/v1/streams", settings, headers=admin).status == 201
        ana, soon = new_token(), int(time.time() * 1000) + 60_000
        asked = {"id": ana.id, "sha256": ana.sha256, "principal": "user:ana", "expires_ms": soon}
        assert server.api.post("/v1/auth/tokens", asked, headers=admin).status == 200
        grant(server, admin, "open")
        with client_of(port.port) as stranger:
            assert stranger.refusal("PublishToSubject", subject="s", value=b"v")[0] == "UNAUTHENTICATED"
            assert stranger.refusal("PublishToSubject", subject="nobody", value=b"v")[0] == "UNAUTHENTICATED"
        with client_of(port.port, metadata=[("authorization", f"Bearer {ana.text}")]) as client:
            assert client.refusal("PublishToSubject", subject="s", value=b"v")[0] == "PERMISSION_DENIED"
            assert client.refusal("PublishToSubject", subject="nobody", value=b"v")[0] == "DEADLINE_EXCEEDED"
            assert not server.api.read("open", headers=admin).rows().num_rows, "T2"
            grant(server, admin, "closed")
            assert client.call("PublishToSubject", subject="s", value=b"v").ack.stream == "closed"
            assert server.api.read("open", headers=admin).rows().num_rows == 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_refusal_does_not_tell_who_captures_a_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Nor, to who may append to nothing, whether somebody does."""
    monkeypatch.setattr(to_subject, "CAPTURES_MAX", 2)
    token = new_token()
    rules = AuthRules(mode="enforce", admin_token=(token.id, token.sha256))
    admin = {"Authorization": f"Bearer {token.text}"}
    with running(tmp_path, auth=rules) as server, opened(server) as port:
        for number in range(count):
            settings = {"name": f"hushed-{number}", "subject": "s", "reply_acks": False}
            assert server.api.post("/v1/streams", settings, headers=admin).status == 201
        assert server.api.post("/v1/streams", {"name": "open"}, headers=admin).status == 201
        ana, soon = new_token(), int(time.time() * 1000) + 60_000
        asked = {"id": ana.id, "sha256": ana.sha256, "principal": "user:ana", "expires_ms": soon}
        assert server.api.post("/v1/auth/tokens", asked, headers=admin).status == 200
        grant(server, admin, "open", "stream:read")

        def told(client: Client, policy: Any) -> list[tuple[str, str]]:
            asked = {"value": b"v", "ack_policy": policy}
            refusals = [client.refusal("PublishToSubject", subject=subject, **asked) for subject in ("s", "t")]
            assert "hushed" not in str(refusals)
            return [(code, text.replace("'t'", "'s'")) for code, text in refusals]

        with client_of(port.port) as stranger:
            for policy in (pb.ALL, pb.NONE):
                assert told(stranger, policy) == [("UNAUTHENTICATED", "unauthenticated")] * 2
        with client_of(port.port, metadata=[("authorization", f"Bearer {ana.text}")]) as reader:
            for policy in (pb.ALL, pb.NONE):
                needs = "stream:append of each stream that captures 's' is needed"
                assert told(reader, policy) == [("PERMISSION_DENIED", needs)] * 2
            twice = sorted(2 * [("user:ana", "stream:append", named) for named in ("hushed-0", "t")])
            eventually(lambda: named_in(server, admin) == twice, what="both are recorded, captured or not")
            grant(server, admin, "open")
            assert [code for code, _ in told(reader, pb.ALL)] == ["PERMISSION_DENIED", "DEADLINE_EXCEEDED"]


def named_in(server: Server, admin: dict[str, str]) -> list[tuple[str, str, str]]:
    """Who was refused what in the audit, of those who are somebody."""
    rows = server.api.read("__audit", headers=admin).rows().to_pydict()["value"]
    told = [each for each in map(json.loads, rows) if each["kind"] == "refusal"]
    named = [each for each in told if each["principal"] != "anonymous"]
    return sorted((each["principal"], each["asked"]["needs"], each["asked"]["name"]) for each in named)


def grant(server: Server, admin: dict[str, str], stream: str, action: str = "stream:append") -> None:
    asked = {"principal": "user:ana", "add": [{"action": action, "name": stream}]}
    assert server.api.post("/v1/auth/grants", asked, headers=admin).status == 200
