"""Consumer groups over HTTP: who holds a partition moves it, and nobody else does."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest

from broker.api.errors import LiftlogError, NotReady
from broker.node.partitions.watch import ChangeHub, StreamWatcher
from broker.runtime import samples
from broker.runtime.samples import group_samples
from broker.serving.endpoints import groups
from tests.support.processes import eventually
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Answer, Api, Server


class Member:
    """A member of `billing` that reads `orders`."""

    def __init__(self, api: Api, name: str, **more: Any) -> None:
        self.api, self.name = api, name
        self.held = self.take(api.post("/v1/groups/billing/members", {"member": name, "streams": ["orders"], **more}))

    def take(self, answer: Answer) -> dict[int, dict[str, Any]]:
        said = answer.json()
        assert answer.status == 200, said
        self.session, self.version = said["session"], said["version"]
        self.held = {each["partition"]: each for each in said["partitions"]}
        return self.held

    def poll(self, *released: int, **more: Any) -> Answer:
        rows = [{k: self.held[each][k] for k in ("stream", "partition", "epoch")} for each in released]
        body = {"session": self.session, "version": self.version, "released": rows, **more}
        return self.api.post(f"/v1/groups/billing/members/{self.name}/poll", body)

    def begin(self, number: int, **more: Any) -> dict[str, Any]:
        at = {"stream": "orders", "partition": number, "epoch": self.held[number]["epoch"], **more}
        return step(self.api.post("/v1/groups/billing/begin", {"member": self.name, "partitions": [at]}))

    def commit(self, begun: dict[str, Any], start: int, offset: int) -> dict[str, Any]:
        at = {key: begun[key] for key in ("stream", "partition", "epoch", "incarnation")}
        asked = {"partitions": [{**at, "start": start, "offset": offset}]}
        return step(self.api.post("/v1/groups/billing/commit", asked))

    def leave(self) -> Answer:
        return self.api.post(f"/v1/groups/billing/members/{self.name}/leave", {"session": self.session})


def step(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    [found] = answer.json()["partitions"]
    return dict(found)


def reason(found: dict[str, Any]) -> str:
    assert found["offset"] is None
    return str(found["error"]["reason"])


@pytest.fixture
def orders(api: Api) -> Api:
    api.create("orders", partitions=2)
    for number in range(2):
        api.append("orders", values(10), number)
    return api


def test_a_partition_goes_on_where_the_member_before_has_committed(orders: Api) -> None:
    a = Member(orders, "a")
    assert set(a.held) == {0, 1}
    begun = a.begin(0)
    assert (begun["offset"], begun["error"]) == (0, None)
    assert a.commit(begun, 0, 4)["offset"] == 4
    assert a.commit(begun, 0, 4)["offset"] == 4, "once more"
    b = Member(orders, "b")
    a.take(a.poll())
    [asked] = [number for number, each in a.held.items() if each["is_revoked"]]
    assert (b.held, asked) == ({}, 1)
    a.take(a.poll(asked))
    b.take(b.poll())
    assert set(b.held) == {1}
    assert a.leave().status == 204
    b.take(b.poll())
    again = b.begin(0)
    assert again["offset"] == 4
    assert reason(a.commit(begun, 4, 6)) == "group_fenced"
    assert b.commit(again, 4, 10)["offset"] == 10
    assert a.poll().reason == "unknown_member"
    assert a.leave().reason == "unknown_member"


def told(server: Server) -> dict[str, list[float]]:
    """What /metrics says of groups, by the end of its name, in the order of its labels; five seconds from now."""

    def look(row: Any) -> Any:
        try:
            found = server.backend.partition(row.stream, row.partition)
        except LiftlogError:
            return False
        return found.log if row.incarnation in ("", found.incarnation) else False

    found: dict[str, list[float]] = {}
    now_us = time.time_ns() // 1000 + 5_000_000
    for name, _, _, _, value in group_samples(server.backend.offsets, server.backend.groups, look, now_us=now_us):
        found.setdefault(name.removeprefix("liftlog_group_"), []).append(value)
    return found


def test_the_lag_of_a_group_is_told_whatever_its_members_do(
    server: Server, orders: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(server) == {"partitions_untold": [0]}
    a = Member(orders, "a")
    found = told(server)
    assert (found["members"], found["lag_records"]) == ([1], [10, 10]), "it is stuck before its begin"
    assert all(5 <= behind_s < 60 for behind_s in found["lag_seconds"])
    begun = a.begin(0)
    a.commit(begun, 0, 4)
    assert (told(server)["offset"], told(server)["lag_records"]) == ([4, 0], [6, 10])
    a.commit(begun, 4, 10)
    monkeypatch.setattr(samples, "GROUP_SERIES_MAX", 1)
    found = told(server)
    assert (found["lag_records"], found["lag_seconds"], found["partitions_untold"]) == ([0], [0], [1])
    a.leave()
    orders.append("orders", values(3), 0)
    found = told(server)
    assert (found["members"], found["lag_records"]) == ([0], [3]), "nobody is there"
    assert 5 <= found["lag_seconds"][0] < 60
    assert orders.request("DELETE", "/v1/streams/orders").status == 204
    orders.create("orders", partitions=2)
    assert "lag_records" not in told(server), "what was committed was of the former stream"


def test_a_poll_is_woken_by_what_concerns_its_member_alone(orders: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may poll: a change of another group, or of other members, or a record, is nothing to them."""
    woken, wait = list[str](), StreamWatcher.wait

    async def counted(self: StreamWatcher, timeout_s: float) -> None:
        await wait(self, timeout_s)
        woken.append("woken")

    monkeypatch.setattr(StreamWatcher, "wait", counted)
    orders.create("invoices", partitions=2)
    a = Member(orders, "a")
    asked = threading.Thread(target=lambda: a.take(Member.poll(waiting, wait_ms=60_000)))
    waiting = Member.__new__(Member)
    waiting.__dict__ |= {**a.__dict__, "api": orders.another()}
    asked.start()
    for number in range(5):
        told = orders.post("/v1/groups/other/members", {"member": f"m{number}", "streams": ["orders"]})
        assert told.status == 200
        orders.append("orders", values(1), 0)
    Member(orders, "c", streams=["invoices"])
    d = Member(orders, "d", streams=["invoices"])
    assert d.leave().status == 204
    assert woken == []
    Member(orders, "b")
    asked.join(60)
    assert ({number for number, each in a.held.items() if each["is_revoked"]}, woken) == ({1}, ["woken"])


@pytest.mark.parametrize("lasts", [False, True])
def test_a_poll_that_waits_outlasts_a_session_that_lapses_for_a_moment(
    server: Server, orders: Api, monkeypatch: pytest.MonkeyPatch, *, lasts: bool
) -> None:
    """B1. One that does not come back sends the member elsewhere."""
    a, told, looked = Member(orders, "a"), list[Answer](), threading.Event()
    monkeypatch.setattr(groups, "SESSION_S", 0.05 if lasts else 60.0)
    waiting = Member.__new__(Member)
    waiting.__dict__ |= {**a.__dict__, "api": orders.another()}
    asked = threading.Thread(target=lambda: told.append(waiting.poll(wait_ms=60_000)))

    def refuse() -> None:
        looked.set()
        raise NotReady("no session")

    asked.start()
    eventually(lambda: server.backend._hub._watchers, what="the poll waits")
    monkeypatch.setattr(server.backend, "check_session", refuse)
    server.backend._hub.note(ChangeHub.ALL)
    assert looked.wait(60)
    if not lasts:
        monkeypatch.undo()
        Member(orders, "b")
    asked.join(60)
    assert (told[0].status, told[0].reason if lasts else "") == ((503, "not_ready") if lasts else (200, ""))


def test_polls_that_wait_end_when_the_broker_drains(server: Server, orders: Api) -> None:
    a, told = Member(orders, "a"), list[Answer]()
    waiting = Member.__new__(Member)
    waiting.__dict__ |= {**a.__dict__, "api": orders.another()}
    asked = threading.Thread(target=lambda: told.append(waiting.poll(wait_ms=60_000)))
    asked.start()
    eventually(lambda: server.backend._hub._watchers, what="the poll waits")
    server.backend._hub._loop.call_soon_threadsafe(server.serving.drain)
    asked.join(60)
    assert (told[0].status, told[0].json()["version"]) == (200, a.version)


def test_a_request_leaves_nothing_to_the_search_for_cycles(orders: Api) -> None:
    """`endpoint.E5`."""
    a = Member(orders, "a")
    for wait_ms in (0, 2):
        a.poll(wait_ms=wait_ms)
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                a.poll(wait_ms=wait_ms)
            assert gc.collect() < 10, "less than one object for each request"
        finally:
            gc.enable()


def test_a_commit_that_passes_over_or_goes_back_is_refused(orders: Api) -> None:
    a = Member(orders, "a")
    begun = a.begin(0)
    assert a.commit(begun, 0, 4)["offset"] == 4
    for start, offset in ((5, 6), (0, 6), (4, 3), (3, 5)):
        found = a.commit(begun, start, offset)
        assert (reason(found), found["error"]["epoch"]) == ("group_fenced", begun["epoch"]), (start, offset)
    assert reason(a.commit(begun, 4, 11)) == "offset_out_of_range"
    assert reason(a.commit({**begun, "incarnation": "another"}, 4, 5)) == "stale_incarnation"
    assert reason(a.commit({**begun, "partition": 7}, 4, 5)) == "unknown_partition"
    assert reason(a.commit({**begun, "epoch": begun["epoch"] + 1}, 4, 5)) == "group_fenced"


def test_nobody_begins_what_is_not_granted_to_him(orders: Api) -> None:
    a = Member(orders, "a")
    thief = Member(orders, "b")
    thief.held = a.held
    assert reason(thief.begin(0)) == "group_fenced"
    a.held[0] = {**a.held[0], "epoch": 1 << 60}
    assert reason(a.begin(0)) == "not_ready", "of a catalog that is ahead: H3"


def test_a_consumer_of_the_same_name_moves_nothing(orders: Api) -> None:
    a = Member(orders, "a")
    begun = a.begin(0)
    a.commit(begun, 0, 4)
    offsets = {"offsets": [{"stream": "orders", "partition": 0, "offset": 9}]}
    assert orders.post("/v1/consumers/billing/offsets", offsets).status == 200
    assert orders.post("/v1/consumers/billing/reset", {"stream": "orders", "to": "latest"}).status == 200
    assert orders.request("DELETE", "/v1/consumers/billing").status == 204
    assert a.commit(begun, 4, 5)["offset"] == 5
    assert orders.get("/v1/consumers").json() == {"consumers": []}


def test_who_asks_for_a_stream_that_is_not_there_costs_the_catalog_nothing(
    orders: Api, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members do so again and again. Each command is written by most of the controllers."""

    async def change_group(kind: str, values: Any) -> dict[str, Any]:
        raise AssertionError(f"{kind}: {values}")

    monkeypatch.setattr(server.backend, "change_group", change_group)
    asked = {"member": "a", "streams": ["none", "orders"]}
    told = orders.post("/v1/groups/billing/members", asked)
    assert (told.status, told.reason, told.json()["stream"]) == (404, "unknown_stream", "none")

    async def catch_up() -> None:
        raise NotReady("no controller")

    monkeypatch.setattr(server.backend, "catch_up", catch_up)
    assert orders.post("/v1/groups/billing/members", asked).reason == "not_ready", "nobody can tell"


def test_a_stream_that_is_made_anew_is_read_from_its_start(orders: Api) -> None:
    """A2, B3: what was committed of the former one moves nothing, and neither does who held it."""
    a = Member(orders, "a")
    begun, before = a.begin(0), a.held[0]
    a.commit(begun, 0, 4)
    assert orders.request("DELETE", "/v1/streams/orders").status == 204
    assert reason(a.begin(0)) == "unknown_stream"
    orders.create("orders", partitions=2)
    orders.append("orders", values(10), 0)
    a.take(a.poll())
    assert a.held[0]["epoch"] > before["epoch"]
    assert reason(a.commit(begun, 4, 5)) == "stale_incarnation"
    found = {"first": 1, "incarnation": begun["incarnation"]}
    assert reason(a.begin(0, **found)) == "stale_incarnation", "that is no place in the new one"
    anew = a.begin(0)
    assert (anew["offset"], anew["incarnation"] != begun["incarnation"]) == (0, True)
    a.held[0] = before
    assert reason(a.begin(0)) == "group_fenced"


def test_where_nobody_has_begun_a_member_says_where(orders: Api) -> None:
    a = Member(orders, "a")
    assert reason(a.begin(0, first=11)) == "offset_out_of_range"
    assert a.begin(0, first=7)["offset"] == 7
    assert a.begin(0, first=3)["offset"] == 7, "asked again"


def test_a_poll_waits_for_news(orders: Api) -> None:
    a = Member(orders, "a")
    found: list[Answer] = []
    with_news = threading.Thread(target=lambda: found.append(a.poll(wait_ms=60_000)))
    with_news.start()
    other = orders.another()
    Member(other, "b")
    with_news.join(30)
    a.take(found[0])
    assert sum(each["is_revoked"] for each in a.held.values()) == 1
    assert a.poll(wait_ms=1).status == 200, "a while, and nothing"
    assert orders.post("/v1/groups/billing/members/a/poll", {"session": 1 << 50}).reason == "not_ready"
    other.close()


def test_who_joins_as_an_instance_takes_its_place_and_the_former_one_is_told(orders: Api) -> None:
    a = Member(orders, "a", instance="one")
    begun = a.begin(0)
    a.commit(begun, 0, 4)
    b = Member(orders, "b", instance="one")
    assert set(b.held) == {0, 1}
    assert b.begin(0)["offset"] == 4
    assert reason(a.commit(begun, 4, 5)) == "group_fenced"
    assert a.poll(instance="one").reason == "group_fenced", "it would take the place again"
    assert a.poll().reason == "unknown_member"
    b.leave()
    assert a.poll(instance="one").reason == "unknown_member"


def test_a_description_has_members_and_lags(orders: Api) -> None:
    a = Member(orders, "a", instance="one")
    a.commit(a.begin(0), 0, 4)
    said = orders.get("/v1/groups/billing").json()
    assert said["members"] == [{"member": "a", "instance": "one", "streams": ["orders"], "timeout_ms": 10_000}]
    first, second = said["partitions"]
    assert (first["offset"], first["high_watermark"], first["lag"], first["member"]) == (4, 10, 6, "a")
    assert first["behind_ms"] >= 0
    assert (second["offset"], second["lag"], said["lag"]) == (None, None, 6)
    assert orders.get("/v1/groups").json() == {"groups": [{"group": "billing", "members": 1, "partitions": 2}]}
    assert orders.get("/v1/groups/other").reason == "unknown_group"


def test_a_group_without_members_is_reset_and_removed(orders: Api) -> None:
    a = Member(orders, "a")
    begun = a.begin(0)
    a.commit(begun, 0, 4)
    to = {"stream": "orders", "to": {"offset": 2}}
    assert orders.post("/v1/groups/billing/reset", to).reason == "group_in_use"
    assert orders.request("DELETE", "/v1/groups/billing").reason == "group_in_use"
    a.leave()
    said = orders.post("/v1/groups/billing/reset", to).json()
    assert [each["offset"] for each in said["partitions"]] == [2, 2]
    assert reason(a.commit(begun, 4, 5)) == "group_fenced"
    assert orders.post("/v1/groups/billing/reset", {**to, "to": {"offset": 99}}).reason == "offset_out_of_range"
    b = Member(orders, "b")
    held = b.begin(0)
    assert held["offset"] == 2
    b.leave()
    assert orders.request("DELETE", "/v1/groups/billing").status == 204
    assert orders.request("DELETE", "/v1/groups/billing").reason == "unknown_group"
    assert orders.post("/v1/groups/billing/reset", to).reason == "unknown_group"
    assert orders.get("/v1/groups").json() == {"groups": []}
    assert reason(b.commit(held, 2, 3)) == "group_fenced"
    assert Member(orders, "c").begin(0, first=1)["offset"] == 1, "another group"


def test_a_group_whose_catalog_was_lost_can_be_removed(orders: Api, server: Server) -> None:
    """A removal that broke off: the group is gone, and its offsets are there. It is asked for again."""
    a = Member(orders, "a")
    a.commit(a.begin(0), 0, 4)
    a.leave()
    server.backend._execute({"kind": "fence_group", "name": "billing", "forget": True})
    assert orders.get("/v1/groups").json()["groups"] == [{"group": "billing", "members": 0, "partitions": 0}]
    assert orders.get("/v1/groups/billing").json()["partitions"][0]["offset"] == 4
    assert orders.request("DELETE", "/v1/groups/billing").status == 204
    assert orders.get("/v1/groups").json() == {"groups": []}


def test_steps_of_one_partition_come_one_after_the_other(orders: Api) -> None:
    """Many commits of one member at once: each offset is stored once, and none passes over another."""
    a = Member(orders, "a")
    begun = a.begin(0)
    found: list[dict[str, Any]] = []

    def commit(start: int) -> None:
        api = orders.another()
        at = {key: begun[key] for key in ("stream", "partition", "epoch", "incarnation")}
        asked = {"partitions": [{**at, "start": start, "offset": start + 1}]}
        found.append(step(api.post("/v1/groups/billing/commit", asked)))
        api.close()

    threads = [threading.Thread(target=commit, args=(start,)) for start in (0, 0, 1, 1, 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    done = {each["offset"] for each in found if each["error"] is None}
    assert done == set(range(1, max(done) + 1))
    assert orders.get("/v1/groups/billing").json()["partitions"][0]["offset"] == max(done)


@pytest.mark.parametrize(
    "path,body",
    [
        ("members", {"member": "a b", "streams": ["orders"]}),
        ("members", {"member": "a", "streams": []}),
        ("members", {"member": "a", "streams": ["orders"], "timeout_ms": 1}),
        ("members", {"member": "a", "streams": ["orders"], "instance": "a b"}),
        ("members/a/poll", {"session": -1}),
        ("begin", {"member": "a", "partitions": [{"stream": "orders", "partition": 0, "epoch": 1}] * 2}),
        ("commit", {"partitions": []}),
    ],
)
def test_what_cannot_be_is_refused(orders: Api, path: str, body: dict[str, Any]) -> None:
    answer = orders.post(f"/v1/groups/billing/{path}", body)
    assert (answer.status, answer.reason) == (400, "invalid_request")
    assert orders.post(f"/v1/groups/not%2Fone/{path}", body).status in (400, 404)
    missing = orders.post("/v1/groups/billing/members", {"member": "a", "streams": ["missing"]})
    assert missing.reason == "unknown_stream"
