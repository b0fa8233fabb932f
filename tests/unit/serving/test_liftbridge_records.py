"""Liftbridge's API: records and cursors.

Goal: what a client of Liftbridge publishes is in the log, once and in order, and what is in the log comes to its
subscriptions from the position that it asks for, with the codes by which it decides. Method: the application as a
broker runs it, asked by grpcio, and what it stores read over HTTP.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from queue import Queue
from typing import Any

import grpc
import pyarrow as pa
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.errors import NotLeader
from broker.api.principals import new_token
from broker.api.proto import liftbridge_pb2 as pb
from broker.serving.http.access import AuthRules
from broker.serving.liftbridge import publish, reading, records, subscribe
from broker.serving.liftbridge.call import Call
from broker.serving.liftbridge.messages import PREFIX
from broker.serving.liftbridge.records import Destination, in_order
from broker.serving.liftbridge.statuses import Code
from tests.support.liftbridge import Client, client_of, opened
from tests.support.processes import eventually
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Server, running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with opened(server) as port, client_of(port.port) as client:
        client.call("CreateStream", name="s", subject="s.in", partitions=2)
        yield client


def stored(server: Server, partition: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.api.read("s", partition).rows().to_pylist()
    return found


def of_stream(call: Any, count: int) -> list[Any]:
    """The first records behind the message that says that it has begun."""
    begun = next(call)
    assert begun == pb.Record()
    return list(islice(call, count))


def end_of(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as ended:
        list(call)
    return ended.value.code().name, ended.value.details()


# --- publish --------------------------------------------------------------------------------------------------------


def test_a_record_is_stored_and_its_ack_says_where(client: Client, server: Server) -> None:
    answer = client.call(
        "Publish",
        stream="s",
        partition=1,
        key=b"k",
        value=b"v",
        headers={"b": b"2", "a": b"1"},
        correlation_id="c",
        ack_policy=pb.ALL,
        ack_inbox="ack",
    )
    ack = answer.ack
    assert (ack.stream, ack.partition_subject, ack.subject, ack.offset) == ("s", "s.in.1", "s.in.1", 0)
    assert (ack.correlation_id, answer.correlation_id, ack.ack_policy, ack.ack_inbox) == ("c", "c", pb.ALL, "ack")
    assert 0 < ack.received <= ack.committed
    [row] = stored(server, 1)
    assert (row["subject"], row["key"], row["value"]) == ("s.in.1", b"k", b"v")
    assert row["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]
    assert client.call("Publish", stream="s", value=b"", ack_policy=pb.NONE) == pb.Published()
    [row] = eventually(lambda: stored(server))
    assert (row["subject"], row["key"], row["value"], row["headers"]) == ("s.in", None, b"", None)


def test_the_ack_of_publish_goes_to_its_inbox_too(client: Client, server: Server) -> None:
    asked = {"stream": "s", "value": b"v", "correlation_id": "c", "ack_inbox": "_INBOX.x"}
    for policy in (pb.LEADER, pb.ALL):
        answer = client.call("Publish", **asked, ack_policy=policy)
        inbox, ack = server.backend.inboxes.pop()
        assert (inbox, pb.Ack.FromString(ack)) == ("_INBOX.x", answer.ack)
    client.call("Publish", **asked, ack_policy=pb.NONE)
    client.refusal("Publish", **{**asked, "stream": "t"})
    client.call("Publish", stream="s", value=b"v")
    assert len(list(client.publish_async(iter([pb.Publish(**asked)])))) == 1
    assert server.backend.inboxes == [], "nobody waits there, or the caller alone is told"


def test_what_cannot_be_published_is_refused_with_liftbridges_codes(client: Client, server: Server) -> None:
    assert client.refusal("Publish", value=b"")[0] == "INVALID_ARGUMENT"
    assert client.refusal("Publish", stream="t", value=b"")[0] == "NOT_FOUND"
    assert client.refusal("Publish", stream="s", partition=7, value=b"")[0] == "NOT_FOUND"
    assert client.refusal("Publish", stream="s", partition=-1, value=b"")[0] == "NOT_FOUND"
    assert client.refusal("Publish", stream="__offsets", value=b"")[0] == "FAILED_PRECONDITION"
    assert server.api.request("PATCH", "/v1/streams/s", json_body={"record_bytes_max": 100}).status == 200
    assert client.refusal("Publish", stream="s", value=bytes(101))[0] == "INVALID_ARGUMENT"
    assert not stored(server)


def test_many_are_published_at_once_and_each_hears_of_its_own(client: Client, server: Server) -> None:
    assert server.api.request("PATCH", "/v1/streams/s", json_body={"record_bytes_max": 1_000}).status == 200
    asked = [
        pb.Publish(stream="s", partition=i % 2, value=b"%d" % i, correlation_id=str(i), expected_offset=-1)
        for i in range(500)
    ]
    asked[100].value = bytes(2_000)
    asked[101].stream = "t"
    asked[102].ack_policy = pb.NONE
    answers = {each.correlation_id: each for each in client.publish_async(iter(asked))}
    assert sorted(answers) == sorted(str(i) for i in range(500) if i != 102)
    assert (answers["100"].error.code, answers["101"].error.code) == (
        pb.AsyncError.BAD_REQUEST,
        pb.AsyncError.NOT_FOUND,
    )
    assert not answers["100"].HasField("ack")
    for partition in range(2):
        rows = stored(server, partition)
        taken = [i for i in range(500) if i % 2 == partition and i not in (100, 101)]
        assert sorted(int(row["value"]) for row in rows) == taken
        by_value = {int(row["value"]): row["offset"] for row in rows}
        for i in taken:
            if i != 102:
                assert answers[str(i)].ack.offset == by_value[i], i
                assert answers[str(i)].ack.correlation_id == str(i)
    in_log = [int(row["value"]) for row in stored(server, 1)]
    assert in_log == sorted(in_log), "P1"


def test_more_than_the_windows_hold_is_published(client: Client, server: Server) -> None:
    asked = (pb.Publish(stream="s", value=bytes(8_000), correlation_id=str(i)) for i in range(300))
    assert [each.ack.offset for each in client.publish_async(asked)] == list(range(300))
    assert len(stored(server)) == 300


def test_a_read_only_stream_says_so_to_all(client: Client) -> None:
    client.call("SetStreamReadonly", name="s", readonly=True)
    assert client.refusal("Publish", stream="s", value=b"")[0] == "FAILED_PRECONDITION"
    [answer] = client.publish_async(iter([pb.Publish(stream="s", correlation_id="c")]))
    assert (answer.error.code, answer.correlation_id) == (pb.AsyncError.READONLY, "c")


# --- optimistic concurrency control ---------------------------------------------------------------------------------


@pytest.fixture
def controlled(client: Client) -> Client:
    client.call("CreateStream", name="o", subject="o.in", expects_offsets=pb.Bool(value=True))
    return client


def test_an_expected_offset_counts_where_the_stream_says_so(controlled: Client, server: Server) -> None:
    settings = server.api.get("/v1/streams/o").json()["settings"]
    assert settings["concurrency_control"] == "optimistic"
    assert controlled.call("Publish", stream="o", value=b"0").ack.offset == 0, "0 is what nobody says"
    for wrong in (0, 2, -2, 2**63 - 1):
        code, text = controlled.refusal("Publish", stream="o", value=b"x", expected_offset=wrong)
        assert (code, "the next one is 1" in text) == ("UNKNOWN", True), "as Liftbridge's"
    assert controlled.call("Publish", stream="o", value=b"1", expected_offset=1).ack.offset == 1
    assert controlled.call("Publish", stream="o", value=b"2", expected_offset=-1).ack.offset == 2
    refused = controlled.refusal("Publish", stream="o", value=b"x", expected_offset=3, ack_policy=pb.NONE)
    assert refused == ("INVALID_ARGUMENT", "stream with concurrency control must have AckPolicy set")
    assert [row["value"] for row in server.api.read("o").rows().to_pylist()] == [b"0", b"1", b"2"]
    for expected in (0, 0, 7, -1):
        assert controlled.call("Publish", stream="s", value=b"", expected_offset=expected), "there it does not"


def expecting(*offsets: int, **fields: Any) -> Iterator[Any]:
    for i, offset in enumerate(offsets):
        yield pb.Publish(stream="o", value=b"%d" % i, correlation_id=str(i), expected_offset=offset, **fields)


def test_each_record_of_many_is_stored_where_it_expects_to_be(controlled: Client, server: Server) -> None:
    answers = list(controlled.publish_async(expecting(0, 0, 1, 2, 4, 3, -1, -1, 6, -2, 4, 5, 6, 7, 8)))
    assert [int(each.correlation_id) for each in answers] == list(range(15)), "in their order"
    stored_at = {int(each.correlation_id): each.ack.offset for each in answers if each.HasField("ack")}
    assert stored_at == {0: 0, 2: 1, 3: 2, 5: 3, 6: 4, 7: 5, 8: 6, 13: 7, 14: 8}
    codes = {each.error.code for each in answers if not each.HasField("ack")}
    assert codes == {pb.AsyncError.INCORRECT_OFFSET}
    rows = server.api.read("o").rows().to_pylist()
    assert {int(row["value"]): row["offset"] for row in rows} == stored_at


def test_those_that_are_refused_for_more_than_their_offset_hear_of_it(controlled: Client, server: Server) -> None:
    assert server.api.request("PATCH", "/v1/streams/o", json_body={"record_bytes_max": 100}).status == 200
    asked = list(expecting(0, 1, 2, 3))
    asked[1].value = bytes(101)
    answers = list(controlled.publish_async(iter(asked)))
    assert [each.error.code for each in answers[1:]] == [
        pb.AsyncError.BAD_REQUEST,
        pb.AsyncError.INCORRECT_OFFSET,
        pb.AsyncError.INCORRECT_OFFSET,
    ]
    assert answers[0].ack.offset == 0
    [none] = controlled.publish_async(expecting(1, ack_policy=pb.NONE))
    assert none.error.code == pb.AsyncError.BAD_REQUEST
    controlled.call("SetStreamReadonly", name="o", readonly=True)
    told = {each.error.code for each in controlled.publish_async(expecting(1, 1, 1))}
    assert told == {pb.AsyncError.READONLY}


@pytest.mark.parametrize("was_controlled", [True, False])
def test_nothing_is_stored_in_a_stream_that_was_made_anew_meanwhile(
    controlled: Client, server: Server, monkeypatch: pytest.MonkeyPatch, was_controlled: bool
) -> None:
    """Of which this broker does not know yet: what it judged by, above all whether offsets count, was another one's."""
    info = server.backend.stream("o")
    settings = replace(info.settings, concurrency_control="optimistic" if was_controlled else None)
    older = replace(info, incarnation="another", settings=settings)
    monkeypatch.setattr(publish, "stream_of", lambda *_: older)
    answers = list(controlled.publish_async(expecting(0, 1, 2)))
    assert [each.error.code for each in answers] == 3 * [pb.AsyncError.NOT_FOUND]
    assert not server.api.read("o").rows().to_pylist()


def rounds_of(asked: list[Any]) -> list[list[tuple[Destination, list[int]]]]:
    return [
        [(place, [int(pb.Publish.FromString(message).value) for message in messages]) for place, messages in each]
        for each in in_order([record.SerializeToString() for record in asked])
    ]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_records_of_a_place_stay_in_order(monkeypatch: pytest.MonkeyPatch, is_compiled: bool) -> None:
    monkeypatch.setattr(records, "APPENDED_MAX", 2)
    if not is_compiled:
        monkeypatch.setattr(records, "_compiled", None)
    asked = [pb.Publish(stream=stream, value=b"%d" % i) for i, stream in enumerate("abaaab")]
    a, b = (Destination(stream, 0, "leader") for stream in "ab")
    assert rounds_of(asked) == [[(a, [0, 2]), (b, [1, 5])], [(a, [3, 4])]]
    for i in (2, 3):
        asked[i].ack_policy = pb.ALL
    by_policy = [[(a, [0]), (b, [1, 5])], [(a._replace(acks="all"), [2, 3])], [(a, [4])]]
    assert rounds_of(asked) == by_policy, "whatever acks they ask for"


def test_what_is_under_way_at_a_stop_is_answered(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Queue[Any] = Queue()
    held, append = list[int](), publish.append
    go = asyncio.Event()

    async def held_up(asking: Any, place: Destination, records: Any) -> Any:
        held.append(len(records))
        await go.wait()
        return await append(asking, place, records)

    with opened(server) as port, client_of(port.port) as client:
        client.call("CreateStream", name="s", subject="s.in")
        answers = client.publish_async(iter(asked.get, None))
        asked.put(pb.Publish(stream="s"))
        assert next(answers).ack.offset == 0
        monkeypatch.setattr(publish, "append", held_up)
        asked.put(pb.Publish(stream="s"))
        eventually(lambda: held == [1])
        closing = asyncio.run_coroutine_threadsafe(port.served.close(), server.loop)
        eventually(lambda: port.served._is_ending)
        server.loop.call_soon_threadsafe(go.set)
        assert next(answers).ack.offset == 1
        with pytest.raises(grpc.RpcError) as ended:
            next(answers)
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        asked.put(None)
        closing.result(30)


def test_what_comes_while_an_append_is_made_is_the_next_one(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Queue[Any] = Queue()
    made, append, go = list[int](), publish.append, asyncio.Event()

    async def held_up(asking: Any, place: Destination, records: Any) -> Any:
        made.append(len(records))
        await go.wait()
        return await append(asking, place, records)

    monkeypatch.setattr(publish, "append", held_up)
    more = [pb.Publish(stream="s", correlation_id=str(i)) for i in range(200)]
    with opened(server) as port, client_of(port.port) as client:
        client.call("CreateStream", name="s", subject="s.in")
        answers = client.publish_async(iter(asked.get, None))
        asked.put(pb.Publish(stream="s"))
        eventually(lambda: made == [1])
        for each in more:
            asked.put(each)
        total = sum(PREFIX.size + each.ByteSize() for each in more)
        eventually(lambda: port.served.held >= total, what="they have come")
        server.loop.call_soon_threadsafe(go.set)
        assert [each.ack.offset for each in islice(answers, 201)] == [*range(201)]
        assert made == [1, 200]
        asked.put(None)


def test_what_its_place_refuses_is_not_tried_record_by_record(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, append = list[int](), publish.append

    async def counted(asking: Any, place: Destination, records: Any) -> list[Any]:
        tried.append(len(records))
        return await append(asking, place, records)

    monkeypatch.setattr(publish, "append", counted)
    client.call("SetStreamReadonly", name="s", readonly=True)
    for stream in ("s", "t"):
        asked = [pb.Publish(stream=stream, correlation_id=str(i)) for i in range(200)]
        assert len(list(client.publish_async(iter(asked)))) == 200
    assert sum(tried) == 400
    older = replace(server.backend.stream("s"), incarnation="another")
    monkeypatch.setattr(publish, "stream_of", lambda *_: older)
    assert len(list(client.publish_async(pb.Publish(stream="s") for _ in range(200)))) == 200
    assert sum(tried) == 600


# --- subscribe --------------------------------------------------------------------------------------------------------


@pytest.fixture
def five(client: Client, server: Server) -> Client:
    assert server.api.append("s", values(5)).status == 200
    return client


def test_a_subscription_begins_where_it_is_told(five: Client, server: Server) -> None:
    times = [row["timestamp"] for row in stored(server)]
    ns = int(times[0].timestamp() * 1_000_000) * 1_000
    for fields, offsets in (
        ({"start": pb.EARLIEST}, [0, 1, 2, 3, 4]),
        ({"start": pb.OFFSET, "start_offset": 3}, [3, 4]),
        ({"start": pb.OFFSET, "start_offset": -5}, [0, 1, 2, 3, 4]),
        ({"start": pb.LATEST}, [4]),
        ({"start": pb.TIMESTAMP, "start_timestamp": ns}, [0, 1, 2, 3, 4]),
        ({"start": pb.TIMESTAMP, "start_timestamp": 0}, [0, 1, 2, 3, 4]),
    ):
        call = five.subscribe(stream="s", **fields)
        assert [record.offset for record in of_stream(call, len(offsets))] == offsets, fields
        call.cancel()


def test_times_are_those_of_the_records_and_both_ends_count(client: Client, server: Server) -> None:
    times = list[int]()
    while len(set(times)) < 3:
        client.call("Publish", stream="s", value=b"")
        times = server.api.read("s").rows()["timestamp"].cast(pa.int64()).to_pylist()
    for ns in sorted(at * 1_000 + more for at in set(times) for more in (-1, 0, 1, 999)):
        behind = [offset for offset, at in enumerate(times) if at * 1_000 >= ns]
        if behind:
            call = client.subscribe(stream="s", start=pb.TIMESTAMP, start_timestamp=ns)
            assert [record.offset for record in of_stream(call, len(behind))] == behind, ns
            call.cancel()
        before = [offset for offset, at in enumerate(times) if at * 1_000 <= ns]
        if before:
            call = client.subscribe(stream="s", start=pb.EARLIEST, stop=pb.AT_TIMESTAMP, stop_timestamp=ns)
            assert [record.offset for record in of_stream(call, len(before))] == before, ns
            assert end_of(call)[0] == "RESOURCE_EXHAUSTED", ns


def test_new_records_come_as_they_are_committed(five: Client, server: Server) -> None:
    new = five.subscribe(stream="s")
    beyond = five.subscribe(stream="s", start=pb.OFFSET, start_offset=50)
    late = five.subscribe(stream="s", start=pb.TIMESTAMP, start_timestamp=4 * 10**18)
    calls = (new, beyond, late)
    for call in calls:
        assert next(call) == pb.Record()
    five.call("Publish", stream="s", key=b"k", value=b"v", headers={"h": b"x"})
    for call in calls:
        record = next(call)
        assert (record.offset, record.key, record.value, dict(record.headers)) == (5, b"k", b"v", {"h": b"x"})
        assert (record.stream, record.partition, record.subject) == ("s", 0, "s.in")
        assert record.timestamp > 1_700_000_000 * 10**9
        call.cancel()


def test_a_stop_before_the_first_record_is_told(five: Client, server: Server) -> None:
    """Of an empty partition, too: the stop is looked up as the call comes."""
    for partition in (0, 1):
        for start in (pb.EARLIEST, pb.NEW_ONLY):
            asked = {"start": start, "stop": pb.AT_TIMESTAMP, "stop_timestamp": 10**18}
            call = five.subscribe(stream="s", partition=partition, **asked)
            told = ("INVALID_ARGUMENT", "each record that is there is younger than the stop timestamp")
            assert end_of(call) == told, (partition, start)


def test_a_subscription_ends_where_it_is_told(five: Client, server: Server) -> None:
    ns = int(stored(server)[-1]["timestamp"].timestamp() * 1_000_000) * 1_000
    for fields, count in (
        ({"stop": pb.AT_OFFSET, "stop_offset": 2}, 3),
        ({"stop": pb.AT_LATEST}, 5),
        ({"stop": pb.AT_TIMESTAMP, "stop_timestamp": ns}, 5),
    ):
        call = five.subscribe(stream="s", start=pb.EARLIEST, **fields)
        assert len(of_stream(call, count)) == count
        assert end_of(call)[0] == "RESOURCE_EXHAUSTED", fields
    for fields, code in (
        ({"stop": pb.AT_OFFSET, "stop_offset": 2, "start": pb.OFFSET, "start_offset": 3}, "INVALID_ARGUMENT"),
        ({"stop": pb.AT_LATEST, "partition": 1}, "RESOURCE_EXHAUSTED"),
        ({"stop": pb.AT_LATEST}, "INVALID_ARGUMENT"),
        ({"stop": 9}, "INVALID_ARGUMENT"),
        ({"start": 9}, "INVALID_ARGUMENT"),
        ({"consumer": pb.Member(group_id="g")}, "INVALID_ARGUMENT"),
        ({"partition": 2}, "NOT_FOUND"),
        ({"partition": -1}, "NOT_FOUND"),
        ({"stream": "t"}, "NOT_FOUND"),
        ({"stream": ""}, "NOT_FOUND"),
    ):
        assert end_of(five.subscribe(**{"stream": "s", **fields}))[0] == code, fields


def test_the_end_of_a_read_only_stream_and_of_a_deleted_one_are_told(
    five: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribe, "WAIT_MS", 50)
    call = five.subscribe(stream="s", start=pb.LATEST)
    assert [record.offset for record in of_stream(call, 1)] == [4]
    five.call("SetStreamReadonly", name="s", readonly=True)
    assert end_of(call) == ("RESOURCE_EXHAUSTED", "End of readonly partition")
    five.call("SetStreamReadonly", name="s", readonly=False)
    call = five.subscribe(stream="s")
    assert next(call) == pb.Record()
    five.call("DeleteStream", name="s")
    assert end_of(call)[0] == "NOT_FOUND"


def test_large_batches_come_whole_to_a_client_that_takes_its_time(client: Client, server: Server) -> None:
    for _ in range(3):
        assert server.api.append("s", values(2_000, 400), 1).status == 200
    call = client.subscribe(stream="s", partition=1, start=pb.EARLIEST, stop=pb.AT_LATEST)
    records = of_stream(call, 6_000)
    assert [record.offset for record in records] == list(range(6_000))
    assert all(len(record.value) == 400 for record in records)
    assert end_of(call)[0] == "RESOURCE_EXHAUSTED"


def test_only_what_is_asked_for_comes_of_a_batch(five: Client, server: Server) -> None:
    table = pa.record_batch({"value": pa.array([None, b""]), "key": pa.array([b"k", b""])})
    assert server.api.append("s", table).status == 200
    call = five.subscribe(stream="s", start=pb.OFFSET, start_offset=2, stop=pb.AT_OFFSET, stop_offset=5)
    records = of_stream(call, 4)
    assert [record.offset for record in records] == [2, 3, 4, 5]
    assert (records[3].key, records[3].value) == (b"k", b"")
    assert end_of(call)[0] == "RESOURCE_EXHAUSTED"


def test_readers_that_take_nothing_hold_no_more_than_they_may(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.api.append("s", values(100, 8_000)).status == 200
    monkeypatch.setattr(server.serving.lines_budget, "bytes_max", 100_000)
    call = client.subscribe(stream="s", start=pb.EARLIEST)
    assert next(call) == pb.Record()
    assert end_of(call)[0] == "UNAVAILABLE"
    eventually(lambda: not server.serving.lines_budget.bytes_now)


def test_a_paused_stream_goes_on_if_the_subscriber_says_so(five: Client, server: Server) -> None:
    five.call("PauseStream", name="s")
    assert five.refusal("Publish", stream="s", value=b"")[0] == "FAILED_PRECONDITION"
    call = five.subscribe(stream="s", start=pb.LATEST, resume=True)
    assert len(of_stream(call, 1)) == 1
    call.cancel()
    five.call("Publish", stream="s", value=b"")


def test_records_need_what_they_need_over_http_and_a_grant_that_goes_ends_a_subscription(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribe, "WAIT_MS", 5_000)
    with running(tmp_path, auth=AuthRules(mode="enforce")) as server, opened(server) as port:
        backend, made = server.backend, new_token()

        def grants(**change: list[list[str]]) -> None:
            backend._execute(
                {"kind": "put_grants", "principal": "user:ana", "by": "user:ops", "add": [], "remove": [], **change}
            )

        async def make() -> None:
            await backend.create_stream("s", {"subject": "s"})
            grants(add=[["stream:append", "s"]])
            of = {"token_id": made.id, "sha256": made.sha256, "principal": "user:ana", "expires_ms": 1 << 60}
            backend._execute({"kind": "put_token", **of, "at_ms": 1, "by": "user:ops"})

        server.call(make())
        with client_of(port.port) as stranger:
            assert stranger.refusal("Publish", stream="s", value=b"")[0] == "PERMISSION_DENIED"
            [answer] = stranger.publish_async(iter([pb.Publish(stream="s")]))
            assert answer.error.code == pb.AsyncError.PERMISSION_DENIED
            assert end_of(stranger.subscribe(stream="s"))[0] == "PERMISSION_DENIED"
        with client_of(port.port, metadata=[("authorization", f"Bearer {made.text}")]) as ana:
            assert ana.call("Publish", stream="s", value=b"v").ack.offset == 0
            assert end_of(ana.subscribe(stream="s"))[0] == "PERMISSION_DENIED"
            assert ana.refusal("SetCursor", stream="s", cursor_id="c", offset=0)[0] == "PERMISSION_DENIED"

            async def give(*, is_given: bool) -> None:
                grants(**{"add" if is_given else "remove": [["stream:read", "s"]]})

            server.call(give(is_given=True))
            call = ana.subscribe(stream="s", start=pb.EARLIEST)
            assert [record.value for record in of_stream(call, 1)] == [b"v"]
            server.call(give(is_given=False))
            assert end_of(call)[0] == "PERMISSION_DENIED"


def test_a_right_that_goes_ends_a_subscription_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LOOK_S", 0.05)
    with running(tmp_path, auth=AuthRules(mode="enforce")) as server, opened(server) as port:
        backend, made = server.backend, new_token()
        rights = [["stream:append", "s"], ["stream:read", "s"]]

        async def make() -> None:
            await backend.create_stream("s", {"subject": "s"})
            backend._execute(
                {"kind": "put_grants", "principal": "user:ana", "by": "user:ops", "add": rights, "remove": []}
            )
            of = {"token_id": made.id, "sha256": made.sha256, "principal": "user:ana", "expires_ms": 1 << 60}
            backend._execute({"kind": "put_token", **of, "at_ms": 1, "by": "user:ops"})

        async def revoke() -> None:
            backend._execute(
                {"kind": "put_grants", "principal": "user:ana", "by": "user:ops", "add": [], "remove": rights}
            )

        server.call(make())
        with client_of(port.port, metadata=[("authorization", f"Bearer {made.text}")]) as ana:
            for _ in range(120):
                ana.call("Publish", stream="s", value=bytes(4_000))
            call = ana.subscribe(stream="s", start=pb.EARLIEST)
            assert next(call) == pb.Record()
            server.call(revoke())
            eventually(lambda: not any(connection._tasks for connection in port.served._open))
            assert end_of(call)[0] == "PERMISSION_DENIED"


def test_a_read_only_stream_has_not_ended_before_what_is_still_to_be_committed(
    five: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribe, "WAIT_MS", 20)
    looked, resolved = list[Any](), reading.resolved

    async def once_more(asking: Any, asked: Any, at: Any) -> Any:
        found = await resolved(asking, asked, at)
        looked.append(at)
        return {**found, "high_watermark": 6} if len(looked) == 2 else found

    call = five.subscribe(stream="s", start=pb.LATEST)
    assert len(of_stream(call, 1)) == 1
    monkeypatch.setattr(reading, "resolved", once_more)
    looked.append("before")
    five.call("SetStreamReadonly", name="s", readonly=True)
    assert end_of(call)[1] == "End of readonly partition"
    assert len(looked) >= 3, "B6"


def test_an_error_has_its_reason_and_the_facts_behind_its_text(five: Client, controlled: Client) -> None:
    at = {"stream": "s", "partition": 0, "cursor_id": "mine"}
    for call, fields, reason, facts in (
        ("SetCursor", {**at, "offset": 50}, "offset_out_of_range", {"log_start_offset": 0, "high_watermark": 5}),
        ("Publish", {"stream": "o", "expected_offset": 7}, "expectation_failed", {"next_offset": 0}),
        ("Publish", {"stream": "s", "partition": 9}, "unknown_partition", {"partitions": 2}),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            five.call(call, **fields)
        told = dict(refused.value.trailing_metadata())
        assert told["liftlog-reason"] == reason
        assert facts.items() <= json.loads(told["liftlog-fields"]).items(), call


class Taken:
    """The headers of a call's end."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    def send_headers(self, headers: Any, *, is_last: bool) -> None:
        self.headers = dict(headers)

    def acknowledge(self, byte_count: int) -> None: ...

    def freed(self, byte_count: int) -> None: ...


def test_facts_are_ascii_and_too_many_are_left_out() -> None:
    for fields, told in (({"name": "ü"}, r'{"name": "\u00fc"}'), ({"name": "x" * 2_000}, None), ({}, None)):
        taken: Any = Taken()
        Call(taken, "/proto.API/Publish", {}, ()).end(Code.NOT_FOUND, "no", "unknown_stream", fields)
        assert taken.headers["liftlog-reason"] == "unknown_stream"
        assert taken.headers.get("liftlog-fields") == told


# --- cursors ----------------------------------------------------------------------------------------------------------


def test_a_cursor_of_a_stream_that_was_made_anew_is_none(five: Client, server: Server) -> None:
    at = {"stream": "s", "partition": 0, "cursor_id": "mine"}
    five.call("SetCursor", offset=3, **at)
    five.call("DeleteStream", name="s")
    assert five.call("FetchCursor", **at).offset == -1, "there is none"
    five.call("CreateStream", name="s", subject="s.in", partitions=2)
    assert five.call("FetchCursor", **at).offset == -1
    five.call("SetCursor", offset=0, **at)
    assert five.call("FetchCursor", **at).offset == 0


def test_a_cursor_is_an_offset_of_a_consumer(five: Client, server: Server) -> None:
    at = {"stream": "s", "partition": 0, "cursor_id": "mine"}
    assert five.call("FetchCursor", **at).offset == -1
    five.call("SetCursor", offset=3, **at)
    assert five.call("FetchCursor", **at).offset == 3
    assert five.call("FetchCursor", stream="s", partition=1, cursor_id="mine").offset == -1
    assert server.api.get("/v1/consumers/mine").json()["lag"] == 2
    five.call("SetCursor", offset=5, **at)
    assert five.refusal("SetCursor", offset=-1, **at)[0] == "INVALID_ARGUMENT"
    assert five.refusal("SetCursor", offset=50, **at)[0] == "OUT_OF_RANGE"
    assert five.refusal("SetCursor", offset=3, stream="s", cursor_id="")[0] == "INVALID_ARGUMENT"
    assert five.refusal("SetCursor", offset=3, stream="t", cursor_id="mine")[0] == "NOT_FOUND"
    assert five.refusal("FetchCursor", stream="", cursor_id="mine")[0] == "NOT_FOUND"


def test_a_cursor_at_a_broker_that_does_not_keep_them_is_looked_for_elsewhere(
    five: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this code clients look up the metadata, which names who leads `__cursors`, and ask there."""

    def elsewhere(backend: Any) -> Any:
        raise NotLeader("another broker leads __offsets/0")

    monkeypatch.setattr(type(server.backend), "offsets", property(elsewhere), raising=False)
    for cursor_id in ("mine", "__group:g"):
        at = {"stream": "s", "partition": 0, "cursor_id": cursor_id}
        assert five.refusal("SetCursor", offset=3, **at)[0] == "FAILED_PRECONDITION", cursor_id
        assert five.refusal("FetchCursor", **at)[0] == "FAILED_PRECONDITION", cursor_id
