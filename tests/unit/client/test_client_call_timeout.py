"""Goal: with `call_timeout_s` a call ends, whatever a broker does, and says whether it may have been carried out.

Method: a raw socket server that says nothing, a part, or "not now". All other times are an hour: a call that minds one
of them ends with the test run.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterator

import pytest

from broker.api.errors import InvalidRequest, LiftlogError, NotReady, Unavailable
from broker.client.client import Client, connect
from broker.client.http import pool
from tests.unit.client.rawserver import RawServer, Reply, Request

HOUR_S = 3_600.0
NOT_NOW = json.dumps({"reason": "not_ready", "title": "not yet", "status": 503, "detail": "not yet"}).encode()
Behaviour = Callable[[threading.Event], Callable[[Request, Reply], None]]


@pytest.fixture(autouse=True)
def long_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "BODY_TIMEOUT_S", HOUR_S)


@pytest.fixture
def goes_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def client(*ports: int, call_timeout_s: float | None = 0.3) -> Client:
    return connect(
        [f"127.0.0.1:{port}" for port in ports],
        timeout_s=HOUR_S,
        deadline_s=HOUR_S,
        call_timeout_s=call_timeout_s,
        say=lambda _: None,
    )


def silent(goes_on: threading.Event) -> Callable[[Request, Reply], None]:
    def handler(request: Request, reply: Reply) -> None:
        if request.path == "/livez":
            reply.answer()
        else:
            goes_on.wait(60)

    return handler


def trickling(goes_on: threading.Event) -> Callable[[Request, Reply], None]:
    def handler(request: Request, reply: Reply) -> None:
        reply.head(200, 1 << 30)
        while not goes_on.wait(0.02):
            reply.send(b" ")

    return handler


def not_now(request: Request, reply: Reply) -> None:
    reply.answer(503, NOT_NOW, {"Content-Type": "application/problem+json"})


@pytest.mark.parametrize("what", [silent, trickling])
@pytest.mark.parametrize("brokers", [1, 2])
def test_a_call_ends_at_a_broker_that_does_not_answer(goes_on: threading.Event, what: Behaviour, brokers: int) -> None:
    with RawServer(what(goes_on)) as one, RawServer(what(goes_on)) as two:
        try:
            with client(*(one.port, two.port)[:brokers]) as calls, pytest.raises(Unavailable, match="gave up") as error:
                calls.streams()
            assert error.value.fields["call_timeout_s"] == 0.3
            with client(*(one.port, two.port)[:brokers]) as calls, pytest.raises(Unavailable):
                calls.ready()
            assert not calls.brokers._down, "that it was given up says nothing of a broker"
        finally:
            goes_on.set()


def test_what_may_have_been_done_is_said(goes_on: threading.Event) -> None:
    with RawServer(silent(goes_on)) as server:
        try:
            with client(server.port) as calls, pytest.raises(LiftlogError) as error:
                calls.append("s", 0, [{"value": b"x"}])
            assert error.value.fields["sent"] is True
        finally:
            goes_on.set()


def test_a_call_that_is_refused_again_and_again_ends() -> None:
    with RawServer(not_now) as server, client(server.port) as calls:
        with pytest.raises((NotReady, Unavailable)) as error:
            calls.append("s", 0, [{"value": b"x"}])
        if isinstance(error.value, NotReady):
            assert re.search(r"gave up after \d+ failed tries in 0.3 s", str(error.value))
            assert not error.value.fields.get("sent")
        else:  # the last refusal did not come within what was left of the time, or the last try was not sent in it
            assert error.value.fields["sent"] in (True, False)
        assert server.requests


def test_the_limit_is_of_a_call_and_not_of_a_client() -> None:
    def answers(request: Request, reply: Reply) -> None:
        reply.answer(200, json.dumps({"streams": []}).encode())

    with RawServer(answers) as server, client(server.port, call_timeout_s=60) as calls:
        for _ in range(3):
            assert calls.streams() == []


@pytest.mark.parametrize("wrong", [0, -1, math.nan])
def test_a_limit_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidRequest, match="call_timeout_s"):
        client(1, call_timeout_s=wrong)
