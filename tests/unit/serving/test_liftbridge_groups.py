"""Consumer groups over Liftbridge's API.

Goal: what a stock client does (join, ask for assignments, fetch its cursor, subscribe, set its cursor, leave) shares
the partitions of a stream, and neither passes over a record nor takes back what was done. Method: the application, as a
broker runs it, asked by grpcio as consumer.go of go-liftbridge asks.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.errors import NotLeader, NotReady, OffsetOutOfRange
from broker.api.principals import new_token
from broker.api.proto import liftbridge_pb2 as pb
from broker.groups.offsets import ConsumerOffset
from broker.serving.endpoints import groups
from broker.serving.http.access import AuthRules
from broker.serving.liftbridge import group_offsets, reading, subscribe
from broker.serving.liftbridge.shares import READERS_MAX, SHARES_MAX, Consumer, Shares
from tests.support.liftbridge import Client, client_of, opened
from tests.support.processes import eventually
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Server, running

G = {"group_id": "g"}


@pytest.fixture
def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(subscribe, "WAIT_MS", 50)
    with opened(server) as port, client_of(port.port) as client:
        client.call("CreateStream", name="s", subject="s", partitions=2)
        for number in range(2):
            server.api.append("s", values(10), number)
        yield client


class Stock:
    """A consumer as go-liftbridge has it."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name
        self.joined = client.call("JoinConsumerGroup", **G, consumer_id=name, streams=["s"])
        self.epoch = self.joined.epoch

    def fetch(self) -> set[int]:
        answer = self.client.call("FetchConsumerGroupAssignments", **G, consumer_id=self.name, epoch=self.joined.epoch)
        self.epoch = answer.epoch
        return {number for each in answer.assignments for number in each.partitions}

    def cursor(self, number: int) -> int:
        return int(self.client.call("FetchCursor", stream="s", partition=number, cursor_id="__group:g").offset)

    def commit(self, number: int, offset: int) -> None:
        self.client.call("SetCursor", stream="s", partition=number, cursor_id="__group:g", offset=offset)

    def subscribe(self, number: int, **more: Any) -> Any:
        at = self.cursor(number)
        start = {"start": pb.EARLIEST} if at < 0 else {"start": pb.OFFSET, "start_offset": at + 1}
        consumer = pb.Member(**G, group_epoch=self.epoch, consumer_id=self.name)
        return self.client.subscribe(stream="s", partition=number, consumer=consumer, **{**start, **more})

    def leave(self) -> None:
        self.client.call("LeaveConsumerGroup", **G, consumer_id=self.name)


def offsets(call: Any, count: int) -> list[int]:
    assert next(call) == pb.Record()
    return [record.offset for record in islice(call, count)]


def code(call: Any) -> str:
    with pytest.raises(grpc.RpcError) as ended:
        list(call)
    return str(ended.value.code().name)


# --- shares ---------------------------------------------------------------------------------------------------------


def test_two_share_a_stream_and_the_other_goes_on_where_one_was(client: Client) -> None:
    a = Stock(client, "a")
    assert (a.joined.coordinator, a.joined.consumer_timeout) == ("broker-0", 15_000_000_000)
    assert a.fetch() == {0, 1}
    epoch, reading = a.epoch, {number: a.subscribe(number) for number in range(2)}
    assert [offsets(reading[number], 4) for number in range(2)] == [[0, 1, 2, 3]] * 2
    for number in range(2):
        a.commit(number, 1)
    b = Stock(client, "b")
    assert b.fetch() == set(), "a holds them"
    [kept] = a.fetch()
    assert a.epoch == epoch, "a reads on what it keeps (W1)"
    assert b.fetch() == set(), "a has not come again (W2)"
    lost = 1 - kept
    a.commit(lost, 2)
    assert a.fetch() == {kept}
    assert b.fetch() == {lost}
    assert b.cursor(lost) == 2
    assert offsets(b.subscribe(lost), 3) == [3, 4, 5], "nothing is skipped, and what was committed does not come again"
    assert code(reading[lost]) == "FAILED_PRECONDITION", "X1"
    assert next(reading[kept]).offset == 4
    b.leave()
    assert a.fetch() == {0, 1}
    assert a.epoch > epoch, "its client begins anew (W1)"
    assert a.cursor(lost) == 2
    reading[kept].cancel()


def test_of_two_subscriptions_of_a_consumer_the_later_one_reads(client: Client) -> None:
    """X1. Its client may not have heard yet that the former one is broken."""
    a = Stock(client, "a")
    a.fetch()
    former, kept = a.subscribe(0), a.subscribe(1)
    assert offsets(former, 10) == [*range(10)]
    later = a.subscribe(0)
    assert offsets(later, 2) == [0, 1]
    assert ended(former) == (
        "FAILED_PRECONDITION",
        "another subscription of consumer 'a' of group 'g' reads s/0 by now",
    )
    assert next(later).offset == 2
    assert offsets(kept, 1) == [0]


def test_a_subscription_that_is_refused_ends_no_other_one(client: Client, server: Server) -> None:
    """X1. It has not begun."""
    a = Stock(client, "a")
    a.fetch()
    reading = a.subscribe(0)
    assert offsets(reading, 10) == [*range(10)]
    a.commit(0, 3)
    assert code(a.subscribe(0, start=pb.EARLIEST, stop=pb.AT_OFFSET, stop_offset=2)) == "RESOURCE_EXHAUSTED"
    server.api.append("s", values(1), 0)
    assert next(reading).offset == 10


def test_a_subscription_that_is_slow_to_begin_ends_no_later_one(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W5. Its client has given it up, perhaps, and begun the later one. The broker may hear of that late."""
    real, slow = subscribe._read_on, list[threading.Event]()
    go_on = threading.Event()

    async def read_on(asking: Any, asked: Any, *at: Any, **more: Any) -> Any:
        if not slow:
            slow.append(go_on)
            await asyncio.to_thread(go_on.wait, 60)
        return await real(asking, asked, *at, **more)

    a = Stock(client, "a")
    a.fetch()
    monkeypatch.setattr(subscribe, "_read_on", read_on)
    former = a.subscribe(0)
    eventually(lambda: slow, what="a subscription that is slow")
    later = a.subscribe(0)
    assert offsets(later, 10) == [*range(10)]
    go_on.set()
    assert code(former) == "FAILED_PRECONDITION"
    server.api.append("s", values(1), 0)
    assert next(later).offset == 10


def test_an_expired_consumer_ends_and_another_has_its_partitions(client: Client, server: Server) -> None:
    a = Stock(client, "a")
    assert a.fetch() == {0, 1}
    reading = a.subscribe(0)
    assert offsets(reading, 2) == [0, 1]
    session = server.backend.groups.named["g"].members["a"].session
    assert server.api.post("/v1/groups/g/members/a/leave", {"session": session}).status == 204
    b = Stock(client, "b")
    assert b.fetch() == {0, 1}
    assert offsets(b.subscribe(0), 2) == [0, 1]
    assert code(reading) == "FAILED_PRECONDITION"
    asked = {**G, "consumer_id": "a", "epoch": a.joined.epoch}
    assert client.refusal("FetchConsumerGroupAssignments", **asked)[0] == "FAILED_PRECONDITION"
    assert code(a.subscribe(0)) == "FAILED_PRECONDITION"


# --- places ---------------------------------------------------------------------------------------------------------


def test_a_place_goes_forward_alone_and_is_that_of_http(client: Client, server: Server) -> None:
    a = Stock(client, "a")
    a.fetch()
    assert a.cursor(0) == -1
    refused = {"stream": "s", "partition": 0, "cursor_id": "__group:g", "offset": 3}
    assert client.refusal("SetCursor", **refused)[0] == "FAILED_PRECONDITION", "it has not begun"
    reading = a.subscribe(0, start=pb.NEW_ONLY)
    assert next(reading) == pb.Record()
    assert a.cursor(0) == 9, "a group that begins at the end passes over nothing that comes then"
    reading.cancel()
    server.api.append("s", values(5), 0)
    assert offsets(a.subscribe(0, start=pb.NEW_ONLY), 2) == [10, 11], "X2"
    a.commit(0, 12)
    a.commit(0, 10)
    assert a.cursor(0) == 12, "X4"
    assert offsets(a.subscribe(0, start=pb.OFFSET, start_offset=14), 1) == [14], "X2"
    assert client.refusal("SetCursor", **{**refused, "offset": 15})[0] == "OUT_OF_RANGE"
    assert client.refusal("SetCursor", **{**refused, "stream": "t"})[0] == "NOT_FOUND"
    [row] = [each for each in server.api.get("/v1/groups/g").json()["partitions"] if each["offset"] is not None]
    assert (row["partition"], row["member"], row["offset"], row["lag"]) == (0, "a", 13, 2)
    a.leave()
    a.commit(0, 13)
    assert a.cursor(0) == 13, "a client commits once more when it has left"


def test_a_cursor_beyond_the_end_moves_nothing_whoever_leads_the_partition(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X9. It is of a stream made anew since; who stores places does not know where the partitions of others end."""
    monkeypatch.setattr(groups, "checked", _unchecked)
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 10) == [*range(10)]
    place = {"stream": "s", "partition": 0, "cursor_id": "__group:g"}
    assert client.refusal("SetCursor", **place, offset=10)[0] == "OUT_OF_RANGE"
    assert a.cursor(0) == -1
    a.commit(0, 9)
    server.api.append("s", values(5), 0)
    trimmed = server.api.post("/v1/streams/s/trim", {"before": {"offset": 15}, "partitions": [0]})
    assert trimmed.status == 200
    a.commit(0, 11)
    assert a.cursor(0) == 11, "what is done and gone is done"

    async def nobody(asking: Any, asked: Any, at: Any) -> Any:
        raise NotLeader("s/0: nobody leads it")

    monkeypatch.setattr(group_offsets, "resolved", nobody)
    assert client.refusal("SetCursor", **place, offset=12) == ("UNAVAILABLE", "s/0: nobody leads it")
    assert a.cursor(0) == 11


def _unchecked(serving: Any, consumer: str, asked: Any, where: str) -> ConsumerOffset:
    """An offset, as it is taken where another broker leads the partition."""
    incarnation = asked.incarnation or serving.backend.stream(asked.stream).incarnation
    of = {"stream": asked.stream, "partition": asked.partition, "incarnation": incarnation}
    return ConsumerOffset(consumer=consumer, offset=asked.offset, timestamp_us=serving.now_us(), **of)


def test_a_group_without_records_done_goes_on_where_it_began(client: Client, server: Server) -> None:
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 1) == [0]
    a.leave()
    b = Stock(client, "b")
    b.fetch()
    assert b.cursor(0) == -1
    assert offsets(b.subscribe(0, start=pb.NEW_ONLY), 1) == [0], (
        "its client takes it for new, and would begin at the end"
    )


def test_what_was_added_since_a_consumer_came_is_begun_at_its_first_record(client: Client, server: Server) -> None:
    """Its client finds no cursor, and asks for what comes from now on. All that is there has come since."""
    a = Stock(client, "a")
    a.fetch()
    reading = a.subscribe(0, start=pb.NEW_ONLY)
    assert next(reading) == pb.Record()
    assert server.api.post("/v1/streams/s/partitions", {"partitions": 4}).status == 200
    for number in range(2, 4):
        server.api.append("s", values(5), number)
    assert a.fetch() == {0, 1, 2, 3}
    assert offsets(a.subscribe(2, start=pb.NEW_ONLY), 2) == [0, 1]
    assert offsets(a.subscribe(3, start=pb.LATEST), 2) == [0, 1]
    assert next(a.subscribe(1, start=pb.NEW_ONLY)) == pb.Record()
    assert a.cursor(1) == 9, "that was there"
    client.call("DeleteStream", name="s")
    client.call("CreateStream", name="s", subject="s", partitions=2)
    for number in range(2):
        server.api.append("s", values(3), number)
    assert a.fetch() == {0, 1}
    assert offsets(a.subscribe(0, start=pb.NEW_ONLY), 3) == [0, 1, 2]
    assert offsets(a.subscribe(1, start=pb.OFFSET, start_offset=1), 2) == [1, 2], "who says where is heard"


def test_a_start_of_a_stream_that_is_gone_begins_nothing_in_the_one_that_is_there(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, spans = subscribe.span_of, list[Any]()

    async def span_of(asking: Any, asked: Any) -> Any:
        return spans.pop() if spans else await real(asking, asked)

    a = Stock(client, "a")
    a.fetch()
    incarnation = server.backend.stream("s").incarnation
    client.call("DeleteStream", name="s")
    client.call("CreateStream", name="s", subject="s", partitions=2)
    server.api.append("s", values(20), 0)
    a.fetch()
    monkeypatch.setattr(subscribe, "span_of", span_of)
    spans.append(reading.Stretch(10, None, incarnation))
    assert ended(a.subscribe(0, start=pb.EARLIEST))[0] == "UNAVAILABLE"
    assert offsets(a.subscribe(0, start=pb.NEW_ONLY), 1) == [0]


def test_a_stream_that_is_made_anew_is_begun_at_its_start(client: Client, server: Server) -> None:
    a = Stock(client, "a")
    assert a.fetch() == {0, 1}
    epoch = a.epoch
    assert offsets(a.subscribe(0), 1) == [0]
    a.commit(0, 5)
    client.call("DeleteStream", name="s")
    client.call("CreateStream", name="s", subject="s", partitions=2)
    server.api.append("s", values(3), 0)
    assert a.fetch() == {0, 1}
    assert a.epoch > epoch, "its client begins anew (W1)"
    assert a.cursor(0) == -1
    assert offsets(a.subscribe(0), 1) == [0]


def test_who_has_not_heard_of_a_stream_made_anew_passes_over_nothing_there(client: Client, server: Server) -> None:
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 1) == [0]
    client.call("DeleteStream", name="s")
    client.call("CreateStream", name="s", subject="s", partitions=2)
    server.api.append("s", values(3), 0)
    assert offsets(a.subscribe(0, start=pb.OFFSET, start_offset=2), 1) == [0], "X2: its epoch is that of before"
    with pytest.raises(grpc.RpcError) as refused:
        a.commit(0, 5)
    assert refused.value.code() == grpc.StatusCode.OUT_OF_RANGE, "it is beyond the end"
    a.fetch()
    assert a.cursor(0) == -1
    assert offsets(a.subscribe(0, start=pb.OFFSET, start_offset=2), 1) == [2], "it has heard"


def test_a_cursor_is_of_the_stream_that_is_there_by_now(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X10. The broker that keeps the places may not have heard yet of a stream that its consumer was granted."""
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 1) == [0]
    a.commit(0, 5)
    backend = server.backend

    async def hears() -> None:
        monkeypatch.undo()
        await backend.delete_stream("s")
        await backend.create_stream("s", {"subject": "s", "partitions": 2})

    monkeypatch.setattr(backend, "catch_up", hears)
    assert a.cursor(0) == -1


def test_a_cursor_is_not_told_where_nobody_knows_of_which_stream_it_is(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Stock(client, "a")
    a.fetch()

    async def hears() -> None:
        raise NotReady("no controller")

    monkeypatch.setattr(server.backend, "catch_up", hears)
    with pytest.raises(grpc.RpcError) as refused:
        a.cursor(0)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def ended(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as refused:
        list(call)
    return refused.value.code().name, refused.value.details()


def test_a_place_that_retention_has_overtaken_is_told_until_somebody_says_where_to_go_on(
    client: Client, server: Server
) -> None:
    """Nothing is passed over without a word, whatever start its client asks for. Who is in no group is not told."""
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 4) == [0, 1, 2, 3]
    a.commit(0, 2)
    assert server.api.post("/v1/streams/s/trim", {"before": {"offset": 7}, "partitions": [0]}).status == 200
    how = "the first that is there is 7: `liftlog group reset` says where it goes on"
    for more, at in (
        ({}, 3),
        ({"start": pb.EARLIEST}, 3),
        ({"start": pb.NEW_ONLY}, 3),
        ({"start": pb.OFFSET, "start_offset": 5}, 5),
    ):
        said = ended(a.subscribe(0, **more))
        assert said == ("OUT_OF_RANGE", f"group 'g' is at offset {at} of s/0, and {how}"), more
    assert a.cursor(0) == 2
    assert offsets(a.subscribe(0, start=pb.OFFSET, start_offset=8), 1) == [8], "it has read up to there"
    assert offsets(a.subscribe(1), 1) == [0], "the others go on"
    assert offsets(client.subscribe(stream="s", start=pb.OFFSET, start_offset=3), 1) == [7]
    a.leave()
    assert server.api.post("/v1/groups/g/reset", {"stream": "s", "to": "earliest"}).status == 200
    b = Stock(client, "b")
    b.fetch()
    assert offsets(b.subscribe(0), 2) == [7, 8]


def test_a_subscription_of_a_group_that_retention_overtakes_ends(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, reads = reading.read, list[int]()

    async def overtaken(asking: Any, asked: Any, span: Any, offset: int, *, wait_ms: int) -> Any:
        reads.append(offset)
        if len(reads) == 2:
            raise OffsetOutOfRange("gone", log_start_offset=offset + 5, high_watermark=offset + 9)
        return await real(asking, asked, span, offset, wait_ms=wait_ms)

    a = Stock(client, "a")
    a.fetch()
    monkeypatch.setattr(reading, "read", overtaken)
    call = a.subscribe(0)
    assert offsets(call, 10) == [*range(10)]
    where = "group 'g' is at offset 10 of s/0, and the first that is there is 15"
    assert ended(call) == ("OUT_OF_RANGE", f"{where}: `liftlog group reset` says where it goes on")


def test_who_has_not_heard_of_a_stream_made_anew_begins_at_the_first_that_is_there(
    client: Client, server: Server
) -> None:
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 1) == [0]
    client.call("DeleteStream", name="s")
    client.call("CreateStream", name="s", subject="s", partitions=2)
    server.api.append("s", values(5), 0)
    assert server.api.post("/v1/streams/s/trim", {"before": {"offset": 2}, "partitions": [0]}).status == 200
    assert offsets(a.subscribe(0, start=pb.OFFSET, start_offset=4), 1) == [2]


# --- unclean elections ------------------------------------------------------------------------------------------------


def replaced(server: Server, count: int = 10, *, is_elected: bool = True) -> int:
    """Partition 0 has others from offset 10 on, so many, as after an operator's unclean election. Returns the epoch of
    what it had. `is_elected`: else as after a power cut, of what was not synced."""
    backend = server.backend
    partition = backend.partition("s", 0)
    epoch = partition.leader_epoch
    backend._catalog.cluster.epoch_last = epoch + 4
    if is_elected:
        backend.unclean["s", 0] = epoch + 4
    partition.log.follow(epoch + 1)
    assert partition.log.truncate(10) == 10
    partition.lead(epoch + 4)
    if count:
        server.api.append("s", values(count), 0)
    return epoch


@pytest.mark.parametrize("is_elected", [True, False])
def test_records_in_the_place_of_those_that_a_group_has_done_are_not_passed_over(
    client: Client, server: Server, is_elected: bool
) -> None:
    """X5. A cursor is stored with the epoch of its partition at the time, which whoever begins there compares."""
    server.api.append("s", values(5), 0)
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 15) == [*range(15)]
    a.commit(0, 12)
    a.leave()
    epoch = replaced(server, is_elected=is_elected)
    [row] = [row for row in server.backend.offsets.group_offsets("g").values() if row.partition == 0]
    assert (row.offset, row.leader_epoch) == (13, epoch)
    b = Stock(client, "b")
    assert b.fetch() == {0, 1}
    for more in ({}, {"start": pb.NEW_ONLY}, {"start": pb.OFFSET, "start_offset": 15}):
        call = b.subscribe(0, **more)
        said, text = ended(call)
        assert (said, text.split(" (")[0]) == (
            "OUT_OF_RANGE",
            "group 'g' is at offset 13 of s/0, and records before it were given up, and others written in their place",
        )
        assert json.loads(dict(call.trailing_metadata())["liftlog-fields"]) == {"offset": 13, "parted_epoch": epoch}
    assert offsets(b.subscribe(1), 1) == [0], "the others go on"
    b.leave()
    asked = {"positions": [{"stream": "s", "partition": 0, "at": {"epoch": epoch}}]}
    [parted] = server.api.post("/v1/offsets/resolve", asked).json()["positions"]
    to = {"stream": "s", "partitions": [0], "to": {"offset": parted["offset"]}}
    assert server.api.post("/v1/groups/g/reset", to).status == 200
    b = Stock(client, "b")
    b.fetch()
    assert offsets(b.subscribe(0), 10) == [*range(10, 20)]


def test_the_epoch_is_that_which_a_broker_knows_to_be_the_newest(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else none: a lower one than that of the record would take what is there for others."""

    async def catch_up() -> None:
        raise NotReady("no controller")

    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 4) == [*range(4)]
    with monkeypatch.context() as patched:
        patched.setattr(server.backend, "catch_up", catch_up)
        a.commit(0, 1)
    [row] = server.backend.offsets.group_offsets("g").values()
    assert (row.offset, row.leader_epoch) == (2, -1)
    a.commit(0, 2)
    [row] = server.backend.offsets.group_offsets("g").values()
    assert (row.offset, row.leader_epoch) == (3, server.backend.partition("s", 0).leader_epoch)


def test_a_place_that_is_beyond_the_end_since_an_unclean_election_is_told(client: Client, server: Server) -> None:
    server.api.append("s", values(15), 0)
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 25) == [*range(25)]
    a.commit(0, 24)
    a.leave()
    epoch = replaced(server)
    b = Stock(client, "b")
    b.fetch()
    cursor = {"stream": "s", "partition": 0, "cursor_id": "__group:g"}
    assert client.refusal("FetchCursor", **cursor)[0] == "OUT_OF_RANGE"
    call = client.subscribe(stream="s", consumer=pb.Member(**G, group_epoch=b.epoch, consumer_id="b"))
    assert code(call) == "OUT_OF_RANGE"
    assert json.loads(dict(call.trailing_metadata())["liftlog-fields"])["parted_epoch"] == epoch


def test_a_place_that_an_unclean_election_has_kept_is_gone_on_from(client: Client, server: Server) -> None:
    server.api.append("s", values(5), 0)
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 15) == [*range(15)]
    a.commit(0, 9)
    a.leave()
    replaced(server)
    b = Stock(client, "b")
    b.fetch()
    assert offsets(b.subscribe(0), 10) == [*range(10, 20)]


def test_who_reads_beyond_the_end_that_an_unclean_election_has_left_comes_again(client: Client, server: Server) -> None:
    """X6."""
    server.api.append("s", values(5), 0)
    a = Stock(client, "a")
    a.fetch()
    reading = a.subscribe(0)
    assert offsets(reading, 15) == [*range(15)]
    a.commit(0, 3)
    replaced(server, 0)
    assert code(reading) == "UNAVAILABLE"
    assert code(a.subscribe(0, start=pb.OFFSET, start_offset=15)) == "FAILED_PRECONDITION", "it is given back"
    assert a.fetch() == {0, 1}
    assert offsets(a.subscribe(0), 6) == [*range(4, 10)]


def test_what_was_read_before_an_unclean_election_is_not_committed_after_it(client: Client, server: Server) -> None:
    """X6. Its client comes with what it had read, and not committed: others stand there now."""
    server.api.append("s", values(5), 0)
    a = Stock(client, "a")
    a.fetch()
    reading = a.subscribe(0)
    assert offsets(reading, 15) == [*range(15)]
    a.commit(0, 3)
    replaced(server)
    assert code(reading) == "UNAVAILABLE", "its client comes again"
    refused = {"stream": "s", "partition": 0, "cursor_id": "__group:g", "offset": 13}
    assert client.refusal("SetCursor", **refused)[0] == "FAILED_PRECONDITION"
    assert a.cursor(0) == 3
    epoch = a.epoch
    assert code(a.subscribe(0, start=pb.OFFSET, start_offset=15)) == "FAILED_PRECONDITION", "it is given back"
    assert a.fetch() == {0, 1}
    assert a.epoch > epoch, "its client begins anew (W1)"
    assert offsets(a.subscribe(0), 10) == [*range(4, 14)]
    a.commit(0, 13)
    assert a.cursor(0) == 9, "X8"
    a.commit(0, 13)
    assert a.cursor(0) == 13


@pytest.mark.parametrize("done", [3, 9])
def test_a_cursor_of_before_an_unclean_election_passes_over_nothing_that_was_written_since(
    client: Client, server: Server, done: int
) -> None:
    """X8. A client tries again before it asks for its assignments, and stores what it had read before the first record
    that comes is done. `done` 9: all that was kept."""
    server.api.append("s", values(5), 0)
    a = Stock(client, "a")
    a.fetch()
    reading = a.subscribe(0)
    assert offsets(reading, 15) == [*range(15)]
    a.commit(0, done)
    replaced(server)
    assert code(reading) == "UNAVAILABLE"
    again = {"start": pb.OFFSET, "start_offset": 15}
    assert code(a.subscribe(0, **again)) == "FAILED_PRECONDITION", "it is given back"
    assert offsets(a.subscribe(0, **again), 1) == [done + 1], "under another grant"
    a.commit(0, 14)
    assert a.cursor(0) == 9
    assert a.fetch() == {0, 1}
    assert offsets(a.subscribe(0), 5) == [*range(10, 15)]
    a.commit(0, 14)
    assert a.cursor(0) == 14, "by now it is of after"


def test_a_cursor_of_before_an_unclean_election_moves_no_group_whose_place_is_replaced(
    client: Client, server: Server
) -> None:
    """X7. The begin that is refused is under a grant of after it, and a cursor says not when its record was read."""
    server.api.append("s", values(5), 0)
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 15) == [*range(15)]
    a.commit(0, 12)
    replaced(server)
    assert code(a.subscribe(0)) == "FAILED_PRECONDITION", "it is given back"
    assert a.fetch() == {0, 1}
    assert code(a.subscribe(0)) == "OUT_OF_RANGE"
    late = {"stream": "s", "partition": 0, "cursor_id": "__group:g", "offset": 14}
    assert client.refusal("SetCursor", **late)[0] == "OUT_OF_RANGE"
    assert a.cursor(0) == 12
    assert code(a.subscribe(0)) == "OUT_OF_RANGE", "until the group is reset"


def test_a_cursor_waits_for_whoever_knows_what_an_unclean_election_has_kept(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X7, X8. Its client comes again, as with any cursor while the partition has no leader (X9)."""
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 10) == [*range(10)]
    a.commit(0, 7)
    epoch = replaced(server)
    assert code(a.subscribe(0)) == "FAILED_PRECONDITION", "it is given back"
    assert offsets(a.subscribe(0), 1) == [8]

    async def nobody(asking: Any, asked: Any, at: Any) -> Any:
        raise NotLeader("s/0: nobody leads it")

    monkeypatch.setattr(group_offsets, "resolved", nobody)
    place = {"stream": "s", "partition": 0, "cursor_id": "__group:g"}
    assert client.refusal("SetCursor", **place, offset=9) == ("UNAVAILABLE", "s/0: nobody leads it")
    [row] = server.backend.offsets.group_offsets("g").values()
    assert (row.offset, row.leader_epoch) == (8, epoch)


def test_a_cursor_that_is_refused_leaves_the_place_as_it_is(client: Client, server: Server) -> None:
    """X8. Else the next one would count as one of after the election."""
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 4) == [*range(4)]
    a.commit(0, 3)
    epoch = replaced(server, is_elected=False)
    beyond = {"stream": "s", "partition": 0, "cursor_id": "__group:g", "offset": 50}
    assert client.refusal("SetCursor", **beyond)[0] == "OUT_OF_RANGE"
    [row] = server.backend.offsets.group_offsets("g").values()
    assert (row.offset, row.leader_epoch) == (4, epoch)


# --- codes ----------------------------------------------------------------------------------------------------------


def test_what_a_group_cannot_do_is_refused_with_liftbridges_codes(client: Client) -> None:
    calls = ("LeaveConsumerGroup", "FetchConsumerGroupAssignments", "ReportConsumerGroupCoordinator")
    for call in calls:
        more = {"coordinator": "broker-0"} if call.startswith("Report") else {}
        code = "FAILED_PRECONDITION" if more else "NOT_FOUND"
        assert client.refusal(call, **G, consumer_id="a", **more)[0] == code, call
        assert client.refusal(call, consumer_id="a", **more)[0] == "INVALID_ARGUMENT", call
        assert client.refusal(call, **G, **more)[0] == "INVALID_ARGUMENT", call
    join = {**G, "consumer_id": "a", "streams": ["s"]}
    for change, code in (
        ({"group_id": ""}, "INVALID_ARGUMENT"),
        ({"group_id": "a/b"}, "INVALID_ARGUMENT"),
        ({"consumer_id": ""}, "INVALID_ARGUMENT"),
        ({"consumer_id": "a.b"}, "INVALID_ARGUMENT"),
        ({"streams": []}, "INVALID_ARGUMENT"),
        ({"streams": ["t"]}, "FAILED_PRECONDITION"),
    ):
        assert client.refusal("JoinConsumerGroup", **{**join, **change})[0] == code, change
    a = Stock(client, "a")
    a.fetch()
    assert "already" in client.refusal("JoinConsumerGroup", **join)[1]
    assert client.refusal("JoinConsumerGroup", **join)[0] == "FAILED_PRECONDITION"
    for call in calls:
        more = {"coordinator": "broker-0"} if call.startswith("Report") else {}
        assert client.refusal(call, **G, consumer_id="b", **more)[0] == "FAILED_PRECONDITION", call
    for call in calls[1:]:
        more = {"coordinator": "broker-0"} if call.startswith("Report") else {}
        asked = {**G, "consumer_id": "a", "epoch": a.joined.epoch - 1, **more}
        assert client.refusal(call, **asked)[0] == "FAILED_PRECONDITION", "a stale epoch"
    report = {**G, "consumer_id": "a", "epoch": a.epoch}
    assert client.call("ReportConsumerGroupCoordinator", **report, coordinator="broker-0") == pb.Empty()
    assert client.refusal("ReportConsumerGroupCoordinator", **report, coordinator="x")[0] == "FAILED_PRECONDITION"
    assert client.refusal("ReportConsumerGroupCoordinator", **report)[0] == "INVALID_ARGUMENT"
    member = {**G, "consumer_id": "a", "group_epoch": a.epoch}
    for change, more, code in (
        ({"consumer_id": ""}, {}, "INVALID_ARGUMENT"),
        ({}, {"from_replica": True}, "INVALID_ARGUMENT"),
        ({"consumer_id": "b"}, {}, "FAILED_PRECONDITION"),
        ({"group_id": "h"}, {}, "FAILED_PRECONDITION"),
        ({"group_epoch": a.joined.epoch - 1}, {}, "FAILED_PRECONDITION"),
        ({}, {"partition": 2}, "NOT_FOUND"),
        ({}, {"stream": "t"}, "NOT_FOUND"),
    ):
        asked = {"stream": "s", "consumer": pb.Member(**{**member, **change}), **more}
        assert globals()["code"](client.subscribe(**asked)) == code, (change, more)


def test_metadata_tells_of_groups_that_have_consumers(client: Client) -> None:
    a = Stock(client, "a")
    g, h = client.call("FetchMetadata", groups=["g", "h"]).groups
    assert (g.id, g.error, g.coordinator) == ("g", pb.Group.OK, "broker-0")
    assert g.epoch >= a.joined.epoch
    assert (h.id, h.error) == ("h", pb.Group.UNKNOWN_GROUP)
    a.leave()
    assert client.call("FetchMetadata", groups=["g"]).groups[0].error == pb.Group.UNKNOWN_GROUP


def test_who_may_not_use_a_group_is_refused_by_every_call(tmp_path: Path) -> None:
    token = new_token()
    rules = AuthRules(mode="enforce", admin_token=(token.id, token.sha256))
    admin = [("authorization", f"Bearer {token.text}")]
    with running(tmp_path, auth=rules) as server, opened(server) as port:
        with client_of(port.port, metadata=admin) as client:
            client.call("CreateStream", name="s", subject="s")
            Stock(client, "a").fetch()
        with client_of(port.port) as stranger:
            for name in ("a", "b"):
                who = {**G, "consumer_id": name}
                assert stranger.refusal("JoinConsumerGroup", **who, streams=["s"])[0] == "PERMISSION_DENIED"
                assert stranger.refusal("LeaveConsumerGroup", **who)[0] == "PERMISSION_DENIED"
                assert stranger.refusal("FetchConsumerGroupAssignments", **who)[0] == "PERMISSION_DENIED"
                report = {**who, "coordinator": "broker-0"}
                assert stranger.refusal("ReportConsumerGroupCoordinator", **report)[0] == "PERMISSION_DENIED"
                assert code(stranger.subscribe(stream="s", consumer=pb.Member(**who))) == "PERMISSION_DENIED"
            place = {"stream": "s", "cursor_id": "__group:g"}
            assert stranger.refusal("FetchCursor", **place)[0] == "PERMISSION_DENIED"
            assert stranger.refusal("SetCursor", **place, offset=1)[0] == "PERMISSION_DENIED"


# --- what was told --------------------------------------------------------------------------------------------------


def grant(number: int, epoch: int, *, revoked: bool = False) -> dict[str, Any]:
    return {"stream": "s", "partition": number, "epoch": epoch, "is_revoked": revoked}


def test_the_epoch_of_a_share_changes_when_a_grant_that_was_told_does() -> None:
    shares, who = Shares(), Consumer("g", "a", 3)

    def tell(*held: dict[str, Any], now_s: float = 0) -> tuple[int, list[int]]:
        epoch, found = shares.tell(who, held, now_s=now_s, timeout_s=15)
        return epoch, [number for _, number in found]

    assert tell() == (3, [])
    assert tell(grant(0, 5)) == (3, [0])
    assert tell(grant(0, 5), grant(1, 6)) == (3, [0, 1])
    assert tell(grant(0, 5), grant(1, 6, revoked=True)) == (3, [0])
    assert shares.leaving(who) == [{"stream": "s", "partition": 1, "epoch": 6}]
    assert tell(grant(0, 5)) == (3, [0])
    assert shares.leaving(who) == []
    assert tell(grant(0, 5), grant(1, 9)) == (9, [0, 1]), "W1: its client may not have heard that it was gone"
    assert tell(grant(0, 5), grant(1, 9)) == (9, [0, 1])
    assert tell(grant(0, 12), now_s=100) == (12, [0]), "W3"
    shares.forget(who)
    assert tell(grant(0, 5), grant(1, 9)) == (9, [0, 1])


def test_with_another_coordinator_what_was_told_before_is_not_known() -> None:
    """W4: a consumer that goes from one broker to another and back is not told that it keeps what it has lost."""
    first, second, who = Shares(), Shares(), Consumer("g", "a", 3)
    assert first.tell(who, [], now_s=0, timeout_s=15, under=("x", 1)) == (3, [])
    assert second.tell(who, [], now_s=1, timeout_s=15, under=("y", 2)) == (3, [])
    assert second.tell(who, [grant(0, 5)], now_s=2, timeout_s=15, under=("y", 2)) == (3, [("s", 0)])
    assert first.tell(who, [grant(0, 9)], now_s=3, timeout_s=15, under=("x", 3)) == (9, [("s", 0)]), "it is another one"


def test_no_more_consumers_are_remembered_than_a_limit_says() -> None:
    shares = Shares()
    for session in range(SHARES_MAX + 5):
        shares.tell(Consumer("g", "a", session), [grant(0, 1)], now_s=0, timeout_s=15)
    assert len(shares._told) == SHARES_MAX


def test_of_no_more_partitions_than_a_limit_says_the_last_subscription_is_remembered() -> None:
    """W5."""
    shares = Shares()
    first, later = shares.number(), shares.number()
    shares.reads("g", ("s", 0), first)
    assert shares.is_last("g", ("s", 0), first)
    for each in (later, first):
        shares.reads("g", ("s", 0), each)
    assert (shares.is_last("g", ("s", 0), first), shares.is_last("g", ("s", 0), later)) == (False, True)
    for number in range(1, READERS_MAX + 1):
        shares.reads("g", ("s", number), shares.number())
    assert len(shares._readers) == READERS_MAX
    assert shares.is_last("g", ("s", 0), first), "it is forgotten"


def test_of_no_more_grants_than_a_limit_says_it_is_known_what_was_told() -> None:
    """W6."""
    shares = Shares()
    assert [shares.is_news(7, end) for end in (10, 10, 5, 20)] == [True, False, False, True]
    for epoch in range(8, 8 + READERS_MAX):
        shares.is_news(epoch, 10)
    assert len(shares._lost) == READERS_MAX
    assert shares.is_news(7, 20), "it is forgotten"
