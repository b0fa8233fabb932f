"""Goal: a broker that stands still, or is behind a cut cable, costs a call little where there are others; one that is
slow is waited for; what may have been done is repeated by nobody.

Method: raw servers that are frozen: their kernel takes connections and bytes, nobody reads them. A listener whose queue
is full, which drops what comes as a black hole does. Time-outs are an hour: who waited for one would never end.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from broker.api.errors import NotLeader, Unavailable
from broker.client.http import silence
from broker.client.http.address import Address, parse_address
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls
from broker.client.http.pool import Request as Asked
from tests.support.processes import eventually
from tests.unit.client.rawserver import RawServer, Reply, Request

pytestmark = [pytest.mark.slow, pytest.mark.long]  # these wait for real seconds

HOUR_S = 3600.0
ASKED = Asked(target="/v1/x", timeout_s=HOUR_S)
CHANGE = Asked(method="PATCH", target="/v1/x", timeout_s=HOUR_S, body=b"{}")
APPEND = Asked(method="POST", target="/v1/x", timeout_s=HOUR_S, body=b"rows", is_idempotent=False)


def yes(request: Request, reply: Reply) -> None:
    reply.answer(200, b"{}")


def no(request: Request, reply: Reply) -> None:
    raise AssertionError(f"nobody should have asked: {request}")


def ask(brokers: Brokers, request: Asked = ASKED, key: tuple[str, int] | None = None) -> Address:
    exchange = brokers.exchange(request, key=key)
    assert exchange.read_all(10) == b"{}"
    exchange.close()
    return exchange.address


@contextmanager
def black_hole() -> Iterator[str]:
    """An address where connections are neither taken nor refused."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # what fills its queue, and one whose packets are dropped
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("request_", [ASKED, CHANGE, APPEND], ids=["read", "change", "append"])
def test_a_frozen_broker_is_passed_over_and_remembered(request_: Asked) -> None:
    with RawServer(yes) as first, RawServer(yes) as other, first.frozen():
        brokers = Brokers([first.address, other.address])
        for _ in range(5):
            assert ask(brokers, request_) == parse_address(other.address)
        assert first.connection_count <= 2, "one question, and whether it lives"
        assert len(other.requests) == 5


@pytest.mark.parametrize("request_", [ASKED, CHANGE, APPEND], ids=["read", "change", "append"])
def test_a_black_hole_is_passed_over_and_remembered(request_: Asked) -> None:
    with black_hole() as first, RawServer(yes) as other:
        brokers = Brokers([first, other.address])
        for _ in range(5):
            assert ask(brokers, request_) == parse_address(other.address)
        assert brokers.candidates() == [parse_address(other.address), parse_address(first)]


@pytest.mark.parametrize("request_", [CHANGE, APPEND], ids=["change", "append"])
def test_a_frozen_broker_is_not_handed_a_change_that_it_would_make_when_it_wakes(request_: Asked) -> None:
    with RawServer(no) as first, RawServer(yes) as other:
        with first.frozen():
            ask(Brokers([first.address, other.address]), request_)
        eventually(lambda: first.connection_count == 0, what="it has answered whether it lives, and nothing else")
    assert first.requests == []


def test_a_broker_that_works_on_something_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_S", 0.01)
    asked = []
    lives = silence.lives

    def count(address: Address, *beside: socket.socket) -> bool:
        asked.append(address)
        if len(asked) == 4:
            go_on.set()
        return lives(address, *beside)

    def slow(request: Request, reply: Reply) -> None:
        go_on.wait(60)
        reply.answer(200, b"{}")

    go_on = threading.Event()
    monkeypatch.setattr(silence, "lives", count)
    with RawServer(slow) as first, RawServer(no) as other:
        assert ask(Brokers([first.address, other.address])) == parse_address(first.address)
        assert len(asked) >= 4


def test_who_is_silent_while_nobody_else_answers_is_awaited_in_the_end() -> None:
    """B3: as before there was haste."""
    with RawServer(yes) as first, RawServer(yes) as gone:
        gone.stop_listening()
        brokers = Brokers([first.address, gone.address])
        with first.frozen():
            waiting = threading.Thread(target=ask, args=(brokers,))
            waiting.start()
            eventually(lambda: len(brokers._down) == 2, what="both are passed over")
            waiting.join(2)
            assert waiting.is_alive()
        waiting.join(60)
        assert not waiting.is_alive()
        assert not {parse_address(first.address)} & brokers._down.keys()


def test_one_that_freezes_under_an_append_is_awaited_and_the_append_is_sent_once() -> None:
    """B4: nobody knows whether it was carried out."""
    with RawServer(yes) as first, RawServer(no) as other, ExitStack() as stack:
        brokers = Brokers([first.address, other.address])
        assert ask(brokers, APPEND) == parse_address(first.address)  # so it lives
        stack.enter_context(first.frozen())
        waiting = threading.Thread(target=ask, args=(brokers, APPEND))
        waiting.start()
        waiting.join(3)
        assert waiting.is_alive()
        stack.close()
        waiting.join(60)
        assert len(first.requests) == 2


def test_one_that_freezes_under_a_change_that_may_be_repeated_is_left_and_the_doubt_is_kept() -> None:
    def refuse(request: Request, reply: Reply) -> None:
        error = NotLeader("an election", leader=None)
        reply.answer(error.status, json.dumps(error.to_problem()).encode())

    with RawServer(yes) as first, RawServer(refuse) as other:
        brokers = Brokers([first.address, other.address])
        assert ask(brokers, CHANGE) == parse_address(first.address)
        with first.frozen(), pytest.raises(NotLeader) as caught:
            ask(brokers, CHANGE)
        assert caught.value.fields["sent"] is True


def test_a_leader_that_is_frozen_ends_a_call_when_the_others_have_nobody_else_to_name() -> None:
    """A retry asks the others who leads by then, and not the frozen one once more, for an hour."""
    frozen: list[str] = []

    def name(request: Request, reply: Reply) -> None:
        error = NotLeader("elsewhere", leader=frozen[0])
        reply.answer(error.status, json.dumps(error.to_problem()).encode())

    with RawServer(yes) as leader, RawServer(name) as other, RawServer(name) as third, leader.frozen():
        frozen.append(leader.address)
        brokers = Brokers([other.address, third.address])
        for _ in range(3):
            with pytest.raises(NotLeader):
                brokers.exchange(ASKED, key=("orders", 0))
        assert leader.connection_count <= 2


def test_a_leader_that_is_named_again_is_asked_soon_however_long_it_was_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """B3: the pause after silence grows, but who leads by now has to be asked."""
    monkeypatch.setattr("broker.client.http.brokers.DOWN_S", 0.0)
    monkeypatch.setattr("broker.client.http.brokers.SILENT_MOST_S", HOUR_S)
    leading: list[str] = []

    def name(request: Request, reply: Reply) -> None:
        error = NotLeader("elsewhere", leader=leading[0])
        reply.answer(error.status, json.dumps(error.to_problem()).encode())

    with RawServer(yes) as back, RawServer(name) as other:
        leading.append(back.address)
        brokers = Brokers([back.address, other.address])
        address = parse_address(back.address)
        for _ in range(3):
            brokers._note_failure(address, None, error=Unavailable("silent", address=str(address), timed_out=True))
            brokers._down[address].pause_s = HOUR_S
        assert brokers.candidates()[-1] == address
        assert ask(brokers, key=("orders", 0)) == address


def test_the_pause_after_silence_doubles_and_that_after_a_refusal_does_not() -> None:
    brokers = Brokers("127.0.0.1:1,127.0.0.1:2")
    [silent, refusing] = brokers.addresses
    found: list[tuple[float, float]] = []
    for _ in range(7):
        for address, timed_out in ((silent, True), (refusing, False)):
            brokers._note_failure(address, None, error=Unavailable("no", address=str(address), timed_out=timed_out))
        found.append((brokers._down[silent].pause_s, brokers._down[refusing].pause_s))
    assert found == [(pause_s, 2.0) for pause_s in (2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0)]


def test_an_answer_that_stops_half_way_is_left_when_the_broker_stands_still() -> None:
    """A long answer is read in place; its reader goes on elsewhere, from the next offset."""
    half = threading.Event()

    def stop(request: Request, reply: Reply) -> None:
        reply.head(200, 1 << 20)
        reply.send(bytes(1 << 19))
        half.set()
        server._goes_on.clear()
        server._goes_on.wait(60)

    with RawServer(stop) as server, RawServer(no) as other:
        exchange = Brokers([server.address, other.address]).exchange(ASKED)
        assert half.wait(60)
        memory = memoryview(bytearray(1 << 20))
        count = 0
        while count < 1 << 19:
            count += exchange.readinto(memory[count:])
        with pytest.raises(Unavailable, match="stands still") as caught:
            exchange.readinto(memory[count:])
        exchange.close()
        server._goes_on.set()
        assert count == 1 << 19
        assert caught.value.timed_out


def lives(address: str) -> bool:
    return silence.lives(parse_address(address))


def test_only_silence_counts() -> None:
    """Z1: who refuses, or ends the connection, is somebody."""
    with RawServer(no, on_head=lambda reply: reply.close()) as ending, RawServer(no) as gone:
        gone.stop_listening()
        assert lives(gone.address)
        assert lives(ending.address)
        with ending.frozen():
            assert not lives(ending.address)


@pytest.mark.parametrize("ready", [False, True])
def test_whether_one_is_ready_is_asked_of_the_next_where_the_first_is_frozen(ready: bool) -> None:
    def say(request: Request, reply: Reply) -> None:
        reply.answer(200, json.dumps({"ready": ready, "missing": {}}).encode())

    with RawServer(say) as first, RawServer(say) as other, first.frozen():
        calls = Calls(Brokers([first.address, other.address]), timeout_s=HOUR_S, deadline_s=0)
        assert calls.ready().ready is ready
        assert first.requests == []
