"""Goal: any broker answers for all partitions; what it does not lead it asks of the leaders, and never tells as gone.

Method: two servers over real logs with the same catalog; broker-0 leads partition 0 of `orders`, broker-1 partition 1.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.api import http
from broker.api.answers import LeaderAddress
from broker.api.errors import NotLeader, NotReady, Unavailable
from broker.client import connect
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Partition
from broker.serving.contract.backend import Whereabouts
from broker.serving.endpoints import heads, streams
from broker.serving.http.peers import Peers
from tests.support.backend import LogBackend
from tests.support.processes import eventually
from tests.unit.serving.server import Server, running


@dataclass
class Two:
    servers: list[Server]

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self.servers[number].port}"


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    monkeypatch.setattr(heads, "FIRST_S", 60.0)  # both are in this process: when it stands still, neither answers soon
    with ExitStack() as stack:
        servers = [stack.enter_context(running(tmp_path / str(number))) for number in range(2)]
        made = Two(servers)
        for number, server in enumerate(servers):
            share(made, number, monkeypatch)
            server.call(create(server))
            batch = pa.record_batch({"value": [b"%d-%d" % (number, i) for i in range(3 + number)]})
            assert server.api.append("orders", batch, partition=number).status == 200
        yield made


async def create(server: Server) -> None:
    command = {"kind": "create_stream", "name": "orders", "incarnation": "i", "created_us": 1}
    server.backend._execute({**command, "settings": {"partitions": 2}})
    info = server.backend._catalog.streams["orders"]
    server.backend._partitions["orders"] = [server.backend._partition(info, number) for number in range(2)]


def share(two: Two, me: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker `me` leads the partition of its number."""
    backend = two.servers[me].backend
    open_here = backend._partitions
    brokers = [
        {"id": f"broker-{number}", "http": two.address(number), "grpc": "g", "live": True, "session_ms": 2_000}
        for number in range(2)
    ]

    def partition(stream: str, number: int) -> Partition:
        if stream == "orders" and number != me:
            raise NotLeader("led elsewhere", leader={"id": f"broker-{number}", "http": two.address(number)})
        return open_here[stream][number]

    def partitions(stream: str) -> Sequence[Partition]:
        return [each for each in open_here[stream] if each.partition == me or stream != "orders"]

    def whereabouts(stream: str) -> Sequence[Whereabouts]:
        ids = ("broker-0", "broker-1")
        return [
            Whereabouts(
                partition=number,
                leader=LeaderAddress(id=ids[number], http=two.address(number)),
                replicas=ids,
                isr=ids,
                leader_epoch=backend._catalog.epoch_last,
                replication_factor=2 + number,
                min_insync_replicas=1 + number,
            )
            for number in range(2)
        ]

    monkeypatch.setattr(backend, "broker_id", f"broker-{me}")
    monkeypatch.setattr(backend, "brokers", lambda: brokers)
    for name, value in (("partition", partition), ("partitions", partitions), ("whereabouts", whereabouts)):
        monkeypatch.setattr(backend, name, value)


def test_a_stream_is_described_with_what_each_leader_knows(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "lags", lambda self: {f"broker-{1 - self.partition}": 7 + self.partition})
    for server in two.servers:
        for described in (
            server.api.get("/v1/streams/orders").json(),
            *server.api.get("/v1/streams").json()["streams"],
        ):
            assert [p["high_watermark"] for p in described["partitions"]] == [3, 4]
            assert [p["leader"]["id"] for p in described["partitions"]] == ["broker-0", "broker-1"]
            assert [p["isr"] for p in described["partitions"]] == [["broker-0", "broker-1"]] * 2
            assert [p["replica_lag"] for p in described["partitions"]] == [{"broker-1": 7}, {"broker-0": 8}]
            assert [p["superseded_to"] for p in described["partitions"]] == [0, 0]
            assert (described["replication_factor"], described["min_insync_replicas"]) == (2, 2), "least, and greatest"
    with connect(two.address(0)) as client:
        assert [p.replica_lag for p in client.describe("orders").partitions] == [{"broker-1": 7}, {"broker-0": 8}]


def test_a_former_leader_describes_nothing(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not heard yet that it leads no more, or leads anew; the one that is asked has."""
    asked = two.servers[0]
    known = asked.backend.whereabouts("orders")
    later = [replace(where, leader_epoch=where.leader_epoch + where.partition) for where in known]
    monkeypatch.setattr(asked.backend, "whereabouts", lambda stream: later)
    for described in (asked.api.get("/v1/streams/orders").json(), *asked.api.get("/v1/streams").json()["streams"]):
        here, there = described["partitions"]
        assert (here["high_watermark"], there["high_watermark"], there["log_end_offset"]) == (3, None, None)
        assert (there["leader"]["id"], there["leader_epoch"]) == ("broker-1", later[1].leader_epoch)


def test_a_broker_without_a_session_is_not_watched(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen before: it told of partitions that it knew nothing of, for as long as it was cut off, and the client waited
    for them there. The next broker knows."""
    cut_off = two.servers[0]

    def lapsed() -> None:
        raise NotReady("this broker has no session")

    now = cut_off.api.get("/v1/watch?streams=orders").json()
    assert now["streams"]["orders"]["unknown"] == []
    monkeypatch.setattr(heads, "FIRST_S", 0.2)
    monkeypatch.setattr(cut_off.backend, "check_session", lapsed)
    for query in ("streams=orders", "streams=ord*", f"streams=orders&since={now['version']}&max_wait_ms=50", ""):
        answer = cut_off.api.get(f"/v1/watch?{query}")
        assert (answer.status, answer.reason) == (503, "not_ready"), query
    with connect([two.address(0), two.address(1)], deadline_s=60) as client:
        told = client.watch(streams="orders").streams["orders"]
        assert ({*told.partitions}, told.unknown) == ({1}, (0,)), "what the one leads that is cut off is unknown"


def test_who_is_asked_by_a_broker_asks_nobody(two: Two) -> None:
    """E1."""
    asked = {"headers": {"Liftlog-Asked-By": "broker-9"}}
    [here, there] = two.servers[0].api.request("GET", "/v1/streams/orders", **asked).json()["partitions"]
    assert (here["high_watermark"], there["high_watermark"], there["log_start_offset"]) == (3, None, None)
    watched = two.servers[0].api.request("GET", "/v1/watch", **asked).json()["streams"]["orders"]
    assert (list(watched["partitions"]), watched["unknown"]) == (["0"], [1])


def test_a_stream_is_made_although_a_leader_of_it_stands_still(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other leaders are not asked again and again for as long as that takes."""
    asked = []

    async def ask(self: Peers, *args: object, **options: object) -> None:
        asked.append(args)
        await asyncio.sleep(0.4)
        raise Unavailable("it does not answer")

    monkeypatch.setattr(Peers, "ask", ask)
    monkeypatch.setattr(streams, "SERVED_S", 0.1)
    made = two.servers[0].api.post("/v1/streams", {"name": "orders", "partitions": 2})
    assert made.status == 200, made.json()
    assert [each["high_watermark"] for each in made.json()["partitions"]] == [3, None]
    assert len(asked) < 5
    [warning] = made.json()["warnings"]
    assert warning.startswith("partition 1: no leader has said within 0.1 s")


def test_who_asks_for_a_stream_hears_which_partitions_do_not_take_messages_yet(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of leaders here and elsewhere, by each door that waits for them. Seen before: it was answered as if all did."""
    here, there = (server.backend for server in two.servers)
    info = replace(here._partitions["orders"][0].goes_by, paused=True)
    monkeypatch.setattr(here, "brokers", lambda: [])
    for change in ("set_stream_state", "alter_stream", "add_partitions"):
        monkeypatch.setattr(here, change, says(here, info))
    api = two.servers[0].api
    for ask in (
        lambda: api.request("POST", "/v1/streams/orders/pause", json_body=None),
        lambda: api.post("/v1/streams/orders/partitions", {"partitions": 2}),
        lambda: api.request("PATCH", "/v1/streams/orders", json_body={"acks": "leader"}),
    ):
        monkeypatch.setattr(streams, "SERVED_S", 0.2)
        for backend in (here, there):  # neither goes by it
            backend._partitions["orders"][backend is there].alter(replace(info, paused=False))
        [warning] = ask().json()["warnings"]
        assert warning.startswith("partition 0, 1: "), warning
        here._partitions["orders"][0].alter(info)
        [warning] = ask().json()["warnings"]
        assert warning.startswith("partition 1: "), warning
        there._catalog.streams["orders"] = info
        there._partitions["orders"][1].alter(info)
        monkeypatch.setattr(streams, "SERVED_S", 60.0)
        assert ask().json()["warnings"] == []
        there._catalog.streams["orders"] = replace(info, paused=False)


def test_who_creates_a_stream_hears_from_each_leader_why_it_captures_nothing(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each leader knows its own connection to NATS. Who leads no partition says nothing: it need not capture it."""
    for number, server in enumerate(two.servers):
        monkeypatch.setattr(server.backend, "uncaptured", lambda info, n=number: [f"{info.name}: no NATS {n}"])
    asked = two.servers[0]
    told = [f"broker broker-{number}: orders: no NATS {number}" for number in range(2)]

    def warned() -> list[str]:
        found: list[str] = asked.api.post("/v1/streams", {"name": "orders", "partitions": 2}).json()["warnings"]
        return found

    assert warned() == told
    assert asked.api.get("/v1/streams/orders").json()["warnings"] == []
    monkeypatch.setattr(asked.backend, "partitions", lambda stream: [])
    monkeypatch.setattr(streams, "SERVED_S", 0.0)
    assert warned()[1:] == told[1:], "the first one says that its own partition is not led yet"


def test_a_change_is_answered_once_every_leader_goes_by_it(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen before: it was answered once the broker that was asked had it, and other leaders went on as before."""
    here, there = (server.backend for server in two.servers)
    mine, others = here._partitions["orders"][0], there._partitions["orders"][1]
    monkeypatch.setattr(streams, "SERVED_S", 60.0)
    changes: list[tuple[str, str, Any, dict[str, Any]]] = [
        ("POST", "/pause", None, {"paused": True}),
        ("POST", "/resume", None, {"paused": False}),
        ("POST", "/read-only", {"read_only": True}, {"read_only": True}),
        ("PATCH", "", {"acks": "leader"}, {"settings": replace(mine.settings, acks="leader")}),
    ]
    for method, path, body, changed in changes:
        info = replace(mine.goes_by, **changed)
        with ThreadPoolExecutor(1) as thread:
            for backend in (here, there):  # the catalogs have it before the partitions do
                monkeypatch.setattr(backend, "set_stream_state", says(backend, info))
                monkeypatch.setattr(backend, "alter_stream", says(backend, info))
            there._catalog.streams["orders"] = info
            asked = partial(two.servers[0].api.request, method, f"/v1/streams/orders{path}", json_body=body)
            answer = thread.submit(asked)
            mine.alter(info)
            assert wait([answer], timeout=0.1).not_done, f"{path}: broker-1 goes by the former settings"
            others.alter(info)
            assert answer.result(60).status == 200


def test_a_leader_that_is_changing_goes_by_nothing_yet(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen before, by seed 93 of the real drivers: paused, resumed and paused once more, a leader that was about to go
    on was taken for paused, and took records behind the answer."""
    here, there = (server.backend for server in two.servers)
    leaders = here._partitions["orders"][0], there._partitions["orders"][1]
    info = replace(leaders[0].goes_by, paused=True)
    monkeypatch.setattr(streams, "SERVED_S", 0.2)
    monkeypatch.setattr(here, "brokers", lambda: [])
    monkeypatch.setattr(here, "set_stream_state", says(here, info))
    there._catalog.streams["orders"] = info
    changing: list[Any] = []
    monkeypatch.setattr(Partition, "is_changing", property(lambda of: of in changing))
    for leader in leaders:
        leader.alter(info)

    def late() -> list[str]:
        said = two.servers[0].api.request("POST", "/v1/streams/orders/pause", json_body=None).json()
        return [each[:13] for each in said["warnings"]]

    for changing[:], expected in (([], []), (leaders[:1], ["partition 0: "]), (leaders[1:], ["partition 1: "])):
        eventually(lambda expected=expected: late() == expected, what=f"{expected}, where broker-1 answers in time")


def test_a_leader_whose_catalog_is_behind_goes_by_nothing_yet(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paused, resumed and paused once more: one that had heard of the first pause alone was taken for paused. It was
    about to take records behind the answer."""
    here, there = (server.backend for server in two.servers)
    info = replace(here._partitions["orders"][0].goes_by, paused=True)
    positions = {0: 7, 1: 6}
    monkeypatch.setattr(streams, "SERVED_S", 60.0)
    monkeypatch.setattr(here, "set_stream_state", says(here, info))
    there._catalog.streams["orders"] = info

    def at(number: int) -> Callable[[], Awaitable[int]]:
        async def position() -> int:
            return positions[number]

        return position

    for number, backend in enumerate((here, there)):
        backend._partitions["orders"][number].alter(info)
        monkeypatch.setattr(backend, "position", at(number))
    asked = partial(two.servers[0].api.request, "POST", "/v1/streams/orders/pause", json_body=None)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(asked)
        assert wait([answer], timeout=0.1).not_done, "broker-1 has not heard of it"
        positions[0] = 8  # of something else, which nobody has to wait for
        assert wait([answer], timeout=0.1).not_done
        positions[1] = 7
        said = answer.result(60)
    assert (said.status, said.json()["warnings"]) == (200, [])
    for text in ("-1", "x", "9" * 30):
        refused = {http.ASKED_BY: "broker-9", http.POSITION: text}
        assert two.servers[1].api.request("GET", "/v1/streams/orders", headers=refused).status == 200, text
    behind = {http.ASKED_BY: "broker-9", http.POSITION: "8"}
    answer_to = two.servers[1].api.request("GET", "/v1/streams/orders", headers=behind)
    assert (answer_to.status, answer_to.reason) == (503, "not_ready")


def test_a_change_that_another_one_follows_waits_for_both(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen before: whoever's stream was changed by somebody else while he waited was told at once that all is well."""
    here, there = (server.backend for server in two.servers)
    mine, others = here._partitions["orders"][0], there._partitions["orders"][1]
    before = mine.goes_by
    first = replace(before, paused=True)
    newest = replace(first, read_only=True)
    monkeypatch.setattr(here, "brokers", lambda: [])
    monkeypatch.setattr(here, "set_stream_state", says(here, first, then=newest))
    there._catalog.streams["orders"] = newest
    for goes_by, late in ((before, "partition 0, 1: "), (first, "partition 0, 1: "), (newest, None)):
        monkeypatch.setattr(streams, "SERVED_S", 60.0 if late is None else 0.1)
        mine.alter(goes_by)
        others.alter(goes_by)
        warnings = two.servers[0].api.request("POST", "/v1/streams/orders/pause", json_body=None).json()["warnings"]
        assert [each[: len(late or "")] for each in warnings] == ([] if late is None else [late])


def test_a_change_is_not_answered_while_a_leader_that_does_not_hear_of_it_may_have_a_session(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many partitions a session is longer than the 3 s after which it was answered."""
    here, there = (server.backend for server in two.servers)
    mine, others = here._partitions["orders"][0], there._partitions["orders"][1]
    info = replace(mine.goes_by, read_only=True)
    known = [{**each, "session_ms": 60_000} for each in here.brokers()]
    monkeypatch.setattr(streams, "SERVED_S", 0.0)
    monkeypatch.setattr(here, "brokers", lambda: known)
    monkeypatch.setattr(here, "set_stream_state", says(here, info))
    asked = partial(two.servers[0].api.post, "/v1/streams/orders/read-only", {"read_only": True})
    with ThreadPoolExecutor(1) as thread:
        mine.alter(info)
        answer = thread.submit(asked)
        assert wait([answer], timeout=0.1).not_done, "broker-1 goes by the former state"
        others.alter(info)
        assert answer.result(60).status == 200
    others.alter(replace(info, read_only=False))
    known[:] = [{**each, "live": False} for each in known]
    assert asked().status == 200, "nobody has a session: nobody takes a record"


def says(
    backend: LogBackend, info: StreamInfo, *, then: StreamInfo | None = None
) -> Callable[..., Awaitable[StreamInfo]]:
    """A change; `then`: what somebody else makes of it at once."""

    async def change(*_: object, **__: object) -> StreamInfo:
        backend._catalog.streams["orders"] = then or info
        return info

    return change


def test_a_broker_that_is_gone_is_unknown_and_not_gone(two: Two) -> None:
    """E2."""
    two.servers[1].shut_down()
    [here, there] = two.servers[0].api.get("/v1/streams/orders").json()["partitions"]
    assert (here["high_watermark"], there["high_watermark"], there["leader"]["id"]) == (3, None, "broker-1")
    found = positions(two.servers[0], "latest")
    assert (found[0]["offset"], found[1]["error"]["reason"]) == (3, "not_leader")


def positions(server: Server, at: Any) -> list[dict[str, Any]]:
    asked = [{"stream": "orders", "partition": number, "at": at} for number in (1, 0)]
    found: list[dict[str, Any]] = server.api.post("/v1/offsets/resolve", {"positions": asked}).json()["positions"]
    return found[::-1]


@pytest.mark.parametrize(
    "at, offsets", [("latest", [3, 4]), ({"offset": 1}, [1, 1]), ("earliest", [0, 0]), ({"timestamp_us": 1}, [0, 0])]
)
def test_positions_are_those_of_each_leader(two: Two, at: Any, offsets: list[int]) -> None:
    for server in two.servers:
        assert [one["offset"] for one in positions(server, at)] == offsets


def test_a_watch_tells_all_heads_and_wakes_when_another_broker_moves(two: Two) -> None:
    here, there = two.servers
    before = here.api.get("/v1/watch").json()
    heads_of = {p: at["high_watermark"] for p, at in before["streams"]["orders"]["partitions"].items()}
    assert (heads_of, before["streams"]["orders"]["unknown"]) == ({"0": 3, "1": 4}, [])
    found: list[Any] = []

    def wait() -> None:
        version = before["version"]
        while not found:
            answer = here.api.get("/v1/watch", since=version, max_wait_ms=20_000).json()
            version = answer["version"]
            if answer["streams"]["orders"]["partitions"]["1"]["high_watermark"] == 5:
                found.append(answer)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert there.api.append("orders", pa.record_batch({"value": [b"x"]}), partition=1).status == 200
    waiter.join(60)
    assert found


def test_who_has_seen_what_one_broker_tells_has_seen_what_the_other_tells(two: Two) -> None:
    """The version does not count what a broker went through: a client may go on at another one, and misses nothing."""
    versions = {server.api.get("/v1/watch", streams="orders").json()["version"] for server in two.servers}
    assert len(versions) == 1
    assert two.servers[0].api.append("orders", pa.record_batch({"value": [b"x"]}), partition=0).status == 200
    found = two.servers[0].api.get("/v1/watch", streams="orders", since=versions.pop(), max_wait_ms=60_000).json()
    assert found["streams"]["orders"]["partitions"]["0"]["high_watermark"] == 4


def test_what_moves_elsewhere_wakes_who_watches_it(two: Two) -> None:
    """And nobody else: a busy stream of another broker costs nothing to who watches an idle one."""
    moved: list[list[str]] = []
    made = heads.PolledHeads(None, lambda names: moved.append(sorted(names)))  # type: ignore[arg-type]
    poll = heads._Poll()
    for told in ({"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2}, {"b": 2, "c": 1}, {}):
        made._told(poll, told)
    assert moved == [["a", "b"], ["b"], ["a", "c"], ["b", "c"]]


def test_a_head_is_forgotten_when_its_broker_is_gone(two: Two) -> None:
    """H2."""
    here, there = two.servers
    assert here.api.get("/v1/watch").json()["streams"]["orders"]["unknown"] == []
    there.shut_down()
    eventually(lambda: here.api.get("/v1/watch").json()["streams"]["orders"]["unknown"] == [1], what="to forget")


def test_who_waits_is_told_that_the_broker_is_gone_that_told_of_a_head(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H2. It has been asked to wait for that broker's records, and would wait for all its time."""
    monkeypatch.setattr(heads, "IDLE_S", 3600.0)  # when a poll ends what it told is forgotten, too
    here, there = two.servers
    seen = here.api.get("/v1/watch?streams=orders").json()
    with ThreadPoolExecutor(1) as thread:
        waiting = here.api.another()
        poll = thread.submit(waiting.get, f"/v1/watch?streams=orders&since={seen['version']}&max_wait_ms=60000")
        eventually(lambda: here.backend._hub._waiter_count, what="it to wait")
        there.shut_down()
        found = poll.result(60).json()["streams"]["orders"]
        waiting.close()
    assert (found["unknown"], {*found["partitions"]}) == ([1], {"0"})


def test_a_head_of_another_epoch_is_nobodys(two: Two) -> None:
    """H1."""
    made = heads.PolledHeads(None, lambda names: None)  # type: ignore[arg-type]
    poll = made._polls["b:1"] = heads._Poll()
    poll.streams = {"orders": {"incarnation": "i", "partitions": {"1": {"leader_epoch": 4, "high_watermark": 9}}}}
    leader = LeaderAddress(id="b", http="b:1")

    def of(epoch: int, incarnation: str = "i") -> Any:
        where = Whereabouts(partition=1, leader=leader, replicas=("b",), isr=("b",), leader_epoch=epoch)
        return made.of("orders", incarnation, where)

    assert of(4) == {"leader_epoch": 4, "high_watermark": 9}
    assert (of(5), of(4, "j")) == (None, None)


def test_polls_end_when_nobody_watches(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """H3."""
    monkeypatch.setattr(heads, "FIRST_S", 0.2)
    monkeypatch.setattr(heads, "IDLE_S", 0.0)
    monkeypatch.setattr(heads, "POLL_S", 0.05)
    here = two.servers[0]
    here.api.get("/v1/watch")
    polls = here.serving.heads._polls.values()
    eventually(lambda: all(poll.task is None or poll.task.done() for poll in polls), what="the polls to end")


def test_a_trim_goes_to_the_leaders(two: Two) -> None:
    answer = two.servers[0].api.post("/v1/streams/orders/trim", {"before": {"offset": 2}})
    assert answer.json()["partitions"] == [
        {"partition": 0, "log_start_offset": 2},
        {"partition": 1, "log_start_offset": 2},
    ]
    assert [one["offset"] for one in positions(two.servers[1], "earliest")] == [2, 2]
    answer = two.servers[0].api.post("/v1/streams/orders/trim", {"before": {"offset": 4}, "partitions": [1, 0]})
    assert (answer.status, answer.reason) == (416, "offset_out_of_range")


def test_a_trim_that_one_leader_refuses_says_that_others_may_have_trimmed(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it says that certainly nothing was changed."""
    here, there = two.servers

    async def refuses(*_: object) -> dict[int, int]:
        raise NotReady("it leads no more")

    monkeypatch.setattr(here.backend, "trim_stream", refuses)
    answer = here.api.post("/v1/streams/orders/trim", {"before": {"offset": 2}})
    assert (answer.reason, answer.problem["sent"]) == ("not_ready", True)
    assert [one["offset"] for one in positions(there, "earliest")] == [0, 2]
    answer = here.api.post("/v1/streams/orders/trim", {"before": {"offset": 2}, "partitions": [0]})
    assert (answer.reason, answer.problem.get("sent", False)) == ("not_ready", False)


def test_lag_is_counted_where_the_partition_is_led(two: Two) -> None:
    api = two.servers[0].api
    offsets = [{"stream": "orders", "partition": number, "offset": 1} for number in range(2)]
    assert api.post("/v1/consumers/c/offsets", {"offsets": offsets}).status == 200
    found = api.get("/v1/consumers/c").json()
    assert [(p["high_watermark"], p["lag"], p["unknown"]) for p in found["partitions"]] == [
        (3, 2, False),
        (4, 3, False),
    ]
    moved = api.post("/v1/consumers/c/reset", {"stream": "orders", "to": "latest"}).json()
    assert [(p["offset"], p["lag"]) for p in moved["partitions"]] == [(3, 0), (4, 0)]
    two.servers[1].shut_down()
    unknown = api.get("/v1/consumers/c").json()["partitions"][1]
    assert (unknown["high_watermark"], unknown["lag"], unknown["unknown"]) == (None, None, True)
    assert api.post("/v1/consumers/c/reset", {"stream": "orders", "to": "latest"}).reason == "not_leader"


def test_one_client_reads_and_follows_all(two: Two) -> None:
    with connect(two.address(0)) as client:
        assert client.read("orders").to_table().num_rows == 7
        with client.read("orders", follow=True) as reader:
            count = 0
            for batch in reader:
                count += batch.num_rows
                if count == 7:
                    break


def test_every_answer_names_the_brokers(two: Two) -> None:
    assert two.servers[0].api.get("/v1/cluster").headers["Liftlog-Brokers"] == f"{two.address(0)},{two.address(1)}"
