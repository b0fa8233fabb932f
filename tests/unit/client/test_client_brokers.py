"""Goal: a client knows whom to ask, what answers mean, and how long to go on: connections, candidates, problems,
patience."""

from __future__ import annotations

import json
import pickle
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.api import http
from broker.api.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LiftlogError,
    LimitReached,
    NotLeader,
    NotReady,
    Overloaded,
    Unavailable,
    UnknownSink,
    UnknownStream,
)
from broker.client.client import connect
from broker.client.http.address import Address, parse_address
from broker.client.http.brokers import OTHERS_MAX, Brokers, Down
from broker.client.http.calls import Calls, path
from broker.client.http.interrupt import Interrupt
from broker.client.http.outages import Outages
from broker.client.http.patience import PAUSE_S_MAX, Patience
from broker.client.http.pool import Pool
from broker.client.http.pool import Request as Asked
from tests.support.processes import free_port
from tests.unit.client.rawserver import RawServer, Reply, Request

ASKED = Asked(target="/v1/x", timeout_s=60)


def answers(body: bytes, status: int = 200, **headers: str) -> Callable[[Request, Reply], None]:
    return lambda request, reply: reply.answer(status, body, headers)


def problem(error: LiftlogError) -> Callable[[Request, Reply], None]:
    return answers(json.dumps(error.to_problem()).encode(), error.status)


def calls(*addresses: str, deadline_s: float = 60, timeout_s: float = 60) -> Calls:
    return Calls(Brokers(addresses), timeout_s=timeout_s, deadline_s=deadline_s)


def test_a_connection_is_kept_and_used_again() -> None:
    with RawServer(answers(b"{}")) as server:
        api = calls(server.address)
        for _ in range(5):
            assert api.json("GET", "/v1/x") == {}
        assert server.connection_count == 1


def test_closing_an_answer_twice_does_not_end_a_connection_that_serves_another_by_then() -> None:
    with RawServer(answers(b"{}")) as server:
        brokers = Brokers(server.address)
        first = brokers.exchange(ASKED)
        first.read_all(10)
        first.close()
        second = brokers.exchange(ASKED)
        first.close()
        assert second.read_all(10) == b"{}"
        second.close()
        assert server.connection_count == 1
        assert sum(map(len, brokers.pool._idle.values())) == 1


def test_at_most_so_many_idle_connections_are_kept() -> None:
    barrier = threading.Barrier(5)

    def together(request: Request, reply: Reply) -> None:
        if request.query:
            barrier.wait(60)
        reply.answer(200, b"{}")

    with RawServer(together) as server:
        brokers = Brokers(server.address, pool=Pool(idle_max=2))
        api = Calls(brokers, timeout_s=60, deadline_s=0)
        threads = [threading.Thread(target=api.json, args=("GET", "/v1/x?wait=1")) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert server.connection_count == 5
        assert len(brokers.pool._idle[parse_address(server.address)]) == 2
        brokers.pool.close()
        assert not brokers.pool._idle
        api.json("GET", "/v1/x")  # a closed pool still serves, and keeps nothing
        assert not any(brokers.pool._idle.values())


def test_a_connection_that_the_broker_wants_to_end_is_not_kept() -> None:
    def ends(request: Request, reply: Reply) -> None:
        reply.answer(200, b"{}", {"Connection": "close"})
        reply.close()

    with RawServer(ends) as server:
        api = calls(server.address, deadline_s=0)
        for _ in range(3):
            assert api.json("GET", "/v1/x") == {}
        assert server.connection_count == 3


def test_a_connection_that_idled_for_too_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with RawServer(answers(b"{}")) as server:
        api = calls(server.address)
        api.json("GET", "/v1/x")
        monkeypatch.setattr("broker.client.http.pool.IDLE_S_MAX", 0)
        api.json("GET", "/v1/x")
        assert server.connection_count == 2


def test_ipv6_addresses_are_reached() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with RawServer(answers(b"{}"), host="::1") as server:
        assert calls(server.address).json("GET", "/v1/x") == {}
        assert server.requests[0].headers["host"] == server.address


def test_a_host_that_cannot_be_found_is_named() -> None:
    with pytest.raises(Unavailable, match=r"no-such-host\.invalid:1234"):
        calls("no-such-host.invalid:1234", deadline_s=0).json("GET", "/v1/x")


def test_the_broker_that_worked_is_asked_first_from_then_on() -> None:
    with RawServer(answers(b"{}")) as alive:
        dead = f"127.0.0.1:{free_port()}"
        brokers = Brokers([dead, alive.address])
        api = Calls(brokers, timeout_s=60, deadline_s=0)
        api.json("GET", "/v1/x")
        assert brokers.candidates()[0] == parse_address(alive.address)


def test_a_broker_that_is_not_ready_makes_room_for_the_next_one() -> None:
    with RawServer(problem(NotReady("starting"))) as starting, RawServer(answers(b"{}")) as ready:
        assert calls(starting.address, ready.address).json("GET", "/v1/x") == {}
        assert (len(starting.requests), len(ready.requests)) == (1, 1)


def test_a_broker_that_is_not_ready_makes_room_for_one_that_it_has_named() -> None:
    """Who was given one address is not left with a broker without a session, which may stay without."""
    with RawServer(answers(b"{}")) as ready:
        named = f"127.0.0.1:{ready.port}"

        def starting(request: Request, reply: Reply) -> None:
            reply.answer(503, json.dumps(NotReady("starting").to_problem()).encode(), {http.BROKERS: named})

        with RawServer(starting) as given:
            api = calls(given.address)
            assert api.json("GET", "/v1/x") == {}
            assert api.json("GET", "/v1/x") == {}
            assert (len(given.requests), len(ready.requests)) == (1, 2), "the one that worked last comes first"


def test_the_leader_is_asked_first_and_forgotten_when_it_cannot_be_reached() -> None:
    with RawServer(answers(b"{}")) as configured, RawServer(answers(b"{}")) as leader:
        brokers = Brokers(configured.address)
        key = ("orders", 3)
        brokers.note_leader(key, leader.address)
        brokers.exchange(ASKED, key=key).close()
        brokers.exchange(ASKED, key=("orders", 4)).close()
        assert (len(leader.requests), len(configured.requests)) == (1, 1)
        brokers.note_leader(key, f"127.0.0.1:{free_port()}")
        brokers.exchange(ASKED, key=key).close()
        assert brokers.candidates(key) == [parse_address(configured.address)]
        brokers.note_leader(key, "no address at all")
        assert brokers.candidates(key) == [parse_address(configured.address)]


def test_a_broker_that_is_gone_costs_one_try_for_all_partitions_and_is_asked_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Address] = []
    exchange = Pool.exchange
    monkeypatch.setattr(
        Pool, "exchange", lambda self, to, *how, **more: (tried.append(to), exchange(self, to, *how, **more))[1]
    )
    with RawServer(answers(b"{}")) as alive:
        gone = parse_address(f"127.0.0.1:{free_port()}")
        brokers = Brokers([str(gone), alive.address])
        monkeypatch.setattr("broker.client.http.brokers.DOWN_S", 3600.0)
        for partition in range(5):  # each has its own idea of who leads
            brokers.note_leader(("orders", partition), gone)
        for partition in range(5):
            brokers.exchange(ASKED, key=("orders", partition)).close()
        assert tried.count(gone) == 1
        monkeypatch.setattr("broker.client.http.brokers.DOWN_S", 0.0)
        brokers._down[gone] = Down(-3600.0, 3600.0)  # its time is over: one call finds out
        brokers.note_leader(("orders", 9), gone)
        brokers.exchange(ASKED, key=("orders", 9)).close()
        assert tried.count(gone) == 2


def test_while_one_call_finds_out_whether_a_broker_is_back_others_go_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def slow(request: Request, reply: Reply) -> None:
        arrived.set()
        go_on.wait(60)
        reply.answer(200, b"{}")

    monkeypatch.setattr("broker.client.http.brokers.DOWN_S", 3600.0)
    with RawServer(slow) as back, RawServer(answers(b"{}")) as alive:
        brokers = Brokers([back.address, alive.address])
        brokers._down[parse_address(back.address)] = Down(-3600.0, 3600.0)  # it was gone, and may be back
        first = threading.Thread(target=lambda: brokers.exchange(ASKED).close())
        first.start()
        assert arrived.wait(60)
        brokers.exchange(ASKED).close()
        assert (len(back.requests), len(alive.requests)) == (1, 1)
        go_on.set()
        first.join(60)
        assert brokers.candidates()[0] == parse_address(back.address)  # it has answered


def test_a_leader_that_is_gone_is_not_tried_again_because_somebody_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.http.brokers.DOWN_S", 3600.0)
    gone = f"127.0.0.1:{free_port()}"
    with RawServer(problem(NotLeader("the election is not over", leader=gone))) as other:
        brokers = Brokers([gone, other.address])
        for _ in range(3):
            with pytest.raises(NotLeader):
                brokers.exchange(ASKED, key=("orders", 0))
        assert len(other.requests) == 3
        assert brokers.candidates(("orders", 0)) == [parse_address(other.address), parse_address(gone)]


def test_who_gives_up_on_a_leader_hears_why_it_was_not_asked() -> None:
    """B2: the broker that names it has no fault, and cannot say."""
    gone = f"127.0.0.1:{free_port()}"
    with RawServer(problem(NotLeader(f"s/0: broker b at {gone} leads it", leader=gone))) as other:
        api = calls(gone, other.address, deadline_s=0)
        for _ in range(2):
            with pytest.raises(NotLeader) as met:
                api.json("GET", "/v1/x", key=("s", 0))
            said, leads = str(met.value), f"s/0: broker b at {gone} leads it"
            assert said.startswith(f"{leads}; it was asked a moment ago: {gone}: ")
            assert "refused" in said.removeprefix(leads)
            assert met.value.fields["leader"] == gone


def test_a_lone_broker_is_asked_however_often_it_was_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.http.brokers.DOWN_S", 3600.0)
    with RawServer(answers(b"{}")) as server:
        brokers = Brokers(server.address)
        brokers._down[parse_address(server.address)] = Down(time.monotonic(), 3600.0)
        brokers.exchange(ASKED).close()
        assert not brokers._down


def test_the_other_brokers_of_a_cluster_are_asked_when_those_that_were_given_are_gone() -> None:
    with RawServer(answers(b"{}")) as other:
        with RawServer(answers(b"{}", **{"Liftlog-Brokers": f"127.0.0.1:1,{other.address},,no address"})) as given:
            brokers = Brokers(given.address)
            brokers.exchange(ASKED).close()
            known = [parse_address(each) for each in (given.address, "127.0.0.1:1", other.address)]
            assert brokers.candidates() == known
        brokers.exchange(ASKED).close()
        assert len(other.requests) == 1


def test_so_many_other_brokers_are_remembered_and_no_more() -> None:
    named = ",".join(f"10.0.0.1:{port}" for port in range(1, 200))
    with RawServer(answers(b"{}", **{"Liftlog-Brokers": named})) as server:
        brokers = Brokers(server.address)
        brokers.exchange(ASKED).close()
        assert len(brokers.candidates()) == 1 + OTHERS_MAX


def test_calls_about_consumers_and_sinks_go_to_the_leaders_of_their_streams() -> None:
    def leads(request: Request, reply: Reply) -> None:
        if request.path.startswith("/v1/sinks"):
            problem(UnknownSink("no sink"))(request, reply)
        else:
            reply.answer(200, b'{"consumers": []}')

    def elsewhere(request: Request, reply: Reply) -> None:
        problem(NotLeader("not here", leader=leader.address))(request, reply)

    with RawServer(leads) as leader, RawServer(elsewhere) as asked:
        client = connect(asked.address)
        for _ in range(3):
            assert client.consumers() == []
            assert not client.sink("s").delete(missing_ok=True)
        assert (len(asked.requests), len(leader.requests)) == (2, 6)
        for stream in ("__offsets", "__commits"):
            assert client.brokers.candidates((stream, 0))[0] == parse_address(leader.address)


@pytest.mark.parametrize(
    ("leader", "expected"),
    [
        ("b:1", Address("b", 1)),
        ({"id": "b", "http": "http://b:1"}, Address("b", 1)),
        (None, None),
        ("", None),
        ({"id": "b"}, None),
        ("::::", None),
        (7, None),
    ],
)
def test_whoever_a_not_leader_answer_names_is_understood(leader: object, expected: Address | None) -> None:
    assert Brokers("a")._leader_of(NotLeader("elsewhere", leader=leader)) == expected


def test_not_leader_during_an_election_is_tried_again() -> None:
    def electing(request: Request, reply: Reply) -> None:
        (problem(NotLeader("election", leader=None)) if request.number < 2 else answers(b"{}"))(request, reply)

    with RawServer(electing) as server:
        assert calls(server.address).json("GET", "/v1/x") == {}
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, b"<html>not found</html>", InvalidRequest),
        (502, b"bad gateway", Unavailable),
        (503, b"", Unavailable),
        (400, b'{"detail": "no reason"}', InvalidRequest),
        (500, b'{"reason": "invented_later", "detail": "a newer broker"}', LiftlogError),
        (301, b"", InvalidRequest),
        (404, b'{"reason": "unknown_stream", "detail": "no stream"}', UnknownStream),
    ],
)
def test_any_answer_that_is_no_success_becomes_an_error_that_names_the_address(
    status: int, body: bytes, kind: type[LiftlogError]
) -> None:
    with RawServer(answers(body, status)) as server:
        with pytest.raises(LiftlogError) as caught:
            Brokers(server.address).exchange(ASKED)
        assert type(caught.value) is kind
        assert caught.value.address == server.address


def test_what_is_no_http_at_all_is_an_error() -> None:
    def greets(request: Request, reply: Reply) -> None:
        reply.send(b"SSH-2.0-OpenSSH\r\n")
        reply.close()

    with RawServer(greets) as server:
        with pytest.raises(Unavailable, match=server.address) as caught:
            Brokers(server.address).exchange(ASKED)
        assert caught.value.sent


def test_an_answer_that_is_no_json_is_an_error_that_names_the_address() -> None:
    with RawServer(answers(b"hello")) as server, pytest.raises(LiftlogError, match="is no JSON"):
        calls(server.address).json("GET", "/v1/x")


def test_an_answer_cut_short_is_asked_for_again() -> None:
    def cut(request: Request, reply: Reply) -> None:
        if request.number:
            reply.answer(200, b'{"whole": 1}')
        else:
            reply.head(200, 12)
            reply.send(b'{"whol')
            reply.close()

    with RawServer(cut) as server:
        assert calls(server.address).json("GET", "/v1/x") == {"whole": 1}


def test_a_delete_whose_answer_was_lost_has_succeeded_when_nothing_is_there_any_more() -> None:
    def deletes(request: Request, reply: Reply) -> None:
        if request.number == 0:
            reply.close()
        else:
            problem(UnknownStream("no stream 'a'"))(request, reply)

    with RawServer(deletes) as server:
        assert calls(server.address).json("DELETE", "/v1/streams/a", done_if=UnknownStream) is None
    with RawServer(problem(UnknownStream("no stream 'a'"))) as server, pytest.raises(UnknownStream):
        calls(server.address).json("DELETE", "/v1/streams/a", done_if=UnknownStream)


def test_what_is_not_idempotent_is_repeated_only_while_it_had_no_effect() -> None:
    def refuses(request: Request, reply: Reply) -> None:
        if request.number < 2:
            problem(Overloaded("full"))(request, reply)
        else:
            reply.close()

    with RawServer(refuses) as server:
        with pytest.raises(Unavailable) as caught:
            calls(server.address).send(replace(ASKED, method="POST", body=b"x", is_idempotent=False))
        assert caught.value.sent
        assert len(server.requests) == 3


def test_a_doubt_that_a_former_leader_tells_of_goes_on_at_the_one_that_it_names() -> None:
    with RawServer(problem(UnknownStream("gone"))) as leader:
        over = NotLeader("another broker leads now", leader={"id": "b", "http": leader.address}, sent=True)
        with RawServer(problem(over)) as former:
            asked = replace(ASKED, method="POST", body=b"x")
            with pytest.raises(UnknownStream) as caught:
                calls(former.address).send(asked)
            assert caught.value.sent
            with pytest.raises(NotLeader) as met:
                calls(former.address).send(replace(asked, is_idempotent=False))
            assert met.value.sent
        assert len(leader.requests) == 1, "what is not idempotent may be done"


def test_a_broker_that_ran_out_of_time_may_have_done_it() -> None:
    with RawServer(problem(DeadlineExceeded("too slow"))) as server:
        with pytest.raises(DeadlineExceeded, match="too slow"):
            calls(server.address).send(replace(ASKED, method="POST", body=b"x", is_idempotent=False))
        assert len(server.requests) == 1


def test_paths_are_quoted() -> None:
    assert path("streams", "a/b c?d", "partitions", 3) == "/v1/streams/a%2Fb%20c%3Fd/partitions/3"


def test_patience_ends_with_the_deadline_and_tells_the_last_error() -> None:
    patience = Patience(0.2, what="doing it")
    began = time.monotonic()

    def for_ever() -> None:
        while True:
            patience.pause(NotReady("still starting"))

    with pytest.raises(NotReady) as caught:
        for_ever()
    assert 0.2 <= time.monotonic() - began < 30
    assert str(caught.value).startswith("doing it: gave up after ")
    assert str(caught.value).endswith("still starting")
    assert isinstance(caught.value.__cause__, NotReady)
    assert caught.value.deadline_s == 0.2
    assert pickle.loads(pickle.dumps(caught.value)).tries == caught.value.tries


class Paused(Interrupt):
    """Notes how long is waited, and lets no time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s: list[float] = []

    def pause(self, seconds: float) -> None:
        self.waited_s.append(seconds)


def full(retry_after_s: object) -> LimitReached:
    return LimitReached("ana has 7", key="limits.caller_requests_max", limit=7, retry_after_s=retry_after_s)


def test_nobody_is_asked_before_it_says_so() -> None:
    paused = Paused()
    patience = Patience(30, interrupt=paused)
    for after in (1, 1.5, "9", -1, True, float("nan"), None):
        patience.pause(full(after))
    assert [int(each * 2) for each in paused.waited_s[:2]] == [2, 3]
    assert all(each <= PAUSE_S_MAX for each in paused.waited_s[2:])


def test_there_is_nothing_to_wait_for_behind_the_deadline() -> None:
    paused = Paused()
    with pytest.raises(LimitReached) as caught:
        Patience(30, interrupt=paused, what="doing it").pause(full(3600))
    assert paused.waited_s == []
    assert str(caught.value).endswith("in 30 s; it may be asked again in 3600 s; the last: ana has 7")
    assert (caught.value.key, caught.value.tries) == ("limits.caller_requests_max", 1)
    patience = Patience(1, interrupt=paused)
    patience.pause(full(1.5))
    assert paused.waited_s[0] <= 1, "the last try is made when the time is up"


@pytest.mark.parametrize(("said", "after"), [("7", 7), ("soon", None), ("9999999", None), ("", None)])
def test_what_a_proxy_says_of_its_limit_is_understood(said: str, after: int | None) -> None:
    with RawServer(answers(b"slow down", 429, **{"Retry-After": said})) as server, pytest.raises(Unavailable) as caught:
        calls(server.address, deadline_s=0).json("GET", "/v1/x")
    assert caught.value.fields.get("retry_after_s") == after


def test_progress_makes_the_next_failure_the_first_one() -> None:
    patience = Patience(0.15)
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        patience.pause(NotReady("again"))
        patience.progress()
    assert patience.failure_count == 0


def test_at_the_end_the_error_is_the_last_one_and_one_more_try_is_made_when_the_time_is_up() -> None:
    patience = Patience(0.05)
    began = time.monotonic()

    def for_ever() -> None:
        while True:
            patience.pause(Overloaded("full", limit=7))

    with pytest.raises(Overloaded) as caught:
        for_ever()
    assert time.monotonic() - began >= 0.05
    assert (caught.value.limit, caught.value.tries) == (7, patience.failure_count)


class Told(list[str]):
    """The words of a client, and a broker that is away or there."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False

    def handle(self, request: Request, reply: Reply) -> None:
        if self.is_away:
            self.is_away = len(self) == 0  # until it is told, and one try longer
            problem(NotReady("starting"))(request, reply)
        else:
            reply.answer(200, b"{}")


def test_an_outage_is_told_at_once_and_once_and_so_is_its_end() -> None:
    told = Told()
    with RawServer(told.handle) as server:
        api = Calls(Brokers(server.address, say=told.append), timeout_s=60, deadline_s=30)
        api.json("GET", "/v1/x")
        assert told == []
        told.is_away = True
        api.json("GET", "/v1/x")
        assert len(server.requests) == 4
        api.json("GET", "/v1/x")
    assert told[0] == "retrying for 30 s: starting"
    assert re.fullmatch(r"answered again after [0-9.]+ s", told[1])
    assert len(told) == 2


def test_without_anybody_to_tell_the_log_has_it(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Unavailable):
        calls(f"127.0.0.1:{free_port()}", deadline_s=0.1).json("GET", "/v1/x")
    lines = [record for record in caplog.records if record.name == "broker.client.http.outages"]
    assert [(line.levelname, line.getMessage().partition(" ")[0]) for line in lines] == [("WARNING", "client.retrying")]
    assert "Connection refused" in lines[0].getMessage()


def test_outages_that_follow_each_other_quickly_are_told_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    outages = Outages(told.append)
    for _ in range(100):
        outages.failed(Overloaded("full"), 30)
        outages.answered()
    assert len(told) == 2
    monkeypatch.setattr("broker.client.http.outages.INTERVAL_S", 0.0)
    outages.failed(Overloaded("full"), 30)
    outages.answered()
    assert len(told) == 4


def test_who_cannot_be_told_ends_no_call() -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError(text)

    with pytest.raises(Unavailable):
        calls_saying(broken).json("GET", "/v1/x")


def calls_saying(say: Callable[[str], object]) -> Calls:
    return Calls(Brokers(f"127.0.0.1:{free_port()}", say=say), timeout_s=60, deadline_s=0.1)


def test_no_patience_is_one_try() -> None:
    with pytest.raises(NotReady, match="no"):
        Patience(0).pause(NotReady("no"))


def test_an_interrupt_ends_pauses_and_waits_for_ever() -> None:
    interrupt = Interrupt()
    interrupt.set()
    began = time.monotonic()
    interrupt.pause(120)
    with RawServer(lambda request, reply: None) as server, pytest.raises(Unavailable):
        Brokers(server.address).exchange(replace(ASKED, interrupt=interrupt))
    assert time.monotonic() - began < 60
