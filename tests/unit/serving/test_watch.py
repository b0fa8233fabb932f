"""The long poll over all partitions. Goal: no change is missed, no poll waits for what it did not ask for."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from broker.api.errors import NotReady
from broker.node.partitions.watch import ChangeHub
from broker.serving.endpoints import watch
from tests.support.processes import eventually
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Api, Server


class Poll:
    """A watch in the background."""

    def __init__(self, server: Server, **query: Any) -> None:
        self.answer: dict[str, Any] | None = None
        self.seconds = 0.0
        self._api = server.api.another()
        self._thread = threading.Thread(target=self._run, kwargs=query)
        self._thread.start()
        eventually(lambda: server.backend._hub._waiter_count or self.answer, what="it waits")

    def _run(self, **query: Any) -> None:
        began = time.monotonic()
        self.answer = self._api.get("/v1/watch", **query).json()
        self.seconds = time.monotonic() - began

    def result(self) -> dict[str, Any]:
        self._thread.join(60)
        assert self.answer is not None
        self._api.close()
        return self.answer


def test_without_a_version_the_state_comes_at_once(api: Api) -> None:
    created = api.create("orders", partitions=2)
    api.append("orders", values(5), partition=1)
    found = api.get("/v1/watch", max_wait_ms=10_000).json()["streams"]
    leader = created["partitions"][0]["leader"]
    epoch = created["partitions"][0]["leader_epoch"]
    assert found == {
        "orders": {
            "incarnation": created["incarnation"],
            "partitions": {
                "0": {"log_start_offset": 0, "high_watermark": 0, "leader_epoch": epoch, "leader": leader},
                "1": {"log_start_offset": 0, "high_watermark": 5, "leader_epoch": epoch, "leader": leader},
            },
            "unknown": [],
        }
    }


def test_an_old_or_foreign_version_is_answered_at_once(api: Api) -> None:
    api.create("orders")
    version = api.get("/v1/watch").json()["version"]
    began = time.monotonic()
    for since in (0, version - 1, version + 1_000_000):
        assert api.get("/v1/watch", since=since, max_wait_ms=60_000).json()["version"] == version
    assert time.monotonic() - began < 50


@pytest.mark.parametrize("change", ["append", "create", "delete", "trim"])
def test_every_kind_of_change_ends_the_wait(server: Server, api: Api, change: str) -> None:
    api.create("orders", segment_bytes=1 << 16)
    for _ in range(3):
        api.append("orders", values(1000, size=100))
    seen = api.get("/v1/watch").json()
    poll = Poll(server, since=seen["version"], max_wait_ms=60_000)
    if change == "append":
        api.append("orders", values(1))
    elif change == "create":
        api.create("other")
    elif change == "delete":
        api.request("DELETE", "/v1/streams/orders")
    else:
        partition = server.backend.partition("orders", 0)
        assert partition.log.trim(2000) == 2000
        partition.replica.note_change()
    found = poll.result()
    assert found["version"] != seen["version"]
    assert found["streams"] != seen["streams"]
    assert poll.seconds < 50


def test_a_broker_that_stops_answers_who_waits(server: Server, api: Api) -> None:
    """The rule: those who wait are answered at once. Without it they are cut off some seconds later, and have no
    answer."""
    api.create("orders")
    seen = api.get("/v1/watch").json()
    poll = Poll(server, since=seen["version"], max_wait_ms=60_000)
    server.shut_down()
    assert poll.result() == seen


def test_a_session_that_ends_is_told_to_who_waits(server: Server, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends that it would tell may be old by now. Another broker knows better."""
    api.create("orders")
    seen = api.get("/v1/watch").json()
    poll = Poll(server, since=seen["version"], max_wait_ms=60_000)

    def lapsed() -> None:
        raise NotReady("this broker has no session")

    monkeypatch.setattr(server.backend, "check_session", lapsed)
    server.backend._hub.note(ChangeHub.ALL)
    found = poll.result()
    assert (found["status"], found["reason"]) == (503, "not_ready")


def test_nothing_new_is_answered_when_time_is_up(server: Server, api: Api) -> None:
    api.create("orders")
    seen = api.get("/v1/watch").json()
    poll = Poll(server, since=seen["version"], max_wait_ms=200)
    assert poll.result() == seen
    assert poll.seconds > 0.19


def test_changes_of_others_do_not_end_the_wait(server: Server, api: Api) -> None:
    for name in ("orders", "other"):
        api.create(name)
    seen = api.get("/v1/watch", streams="orders").json()
    poll = Poll(server, since=seen["version"], max_wait_ms=60_000, streams="orders")
    api.append("other", values(1))
    assert poll.answer is None
    api.append("orders", values(1))
    assert poll.result()["streams"]["orders"]["partitions"]["0"]["high_watermark"] == 1


def test_changes_of_others_do_not_prevent_the_wait(server: Server, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen before: a stream that took a thousand batches a second had every watch of any other answered at once."""
    for name in ("orders", "other"):
        api.create(name)
    looks: list[int] = []
    look = watch.state
    monkeypatch.setattr(watch, "state", lambda *given: (looks.append(1), look(*given))[1])
    seen = api.get("/v1/watch", streams="orders").json()
    api.append("other", values(1))
    poll = Poll(server, since=seen["version"], max_wait_ms=60_000, streams="orders")
    for _ in range(50):
        api.append("other", values(1))
    assert (poll.answer, len(looks)) == (None, 2), "one for each question, none for each change"
    api.append("orders", values(1))
    assert poll.result()["streams"]["orders"]["partitions"]["0"]["high_watermark"] == 1


def test_a_stream_that_comes_to_match_a_pattern_ends_the_wait(server: Server, api: Api) -> None:
    api.create("a1")
    seen = api.get("/v1/watch", streams="a*").json()
    poll = Poll(server, since=seen["version"], max_wait_ms=60_000, streams="a*")
    api.create("b")
    api.create("a2")
    assert sorted(poll.result()["streams"]) == ["a1", "a2"]


@pytest.mark.parametrize(
    "streams, expected",
    [
        ("a", ["a"]),
        ("a,b1", ["a", "b1"]),
        ("b*", ["b1", "b2"]),
        ("*", ["a", "b1", "b2"]),
        ("nothing", []),
        ("__*", ["__audit", "__commits", "__offsets"]),
        ("__offsets,a", ["__offsets", "a"]),
    ],
)
def test_streams_are_selected_by_patterns(api: Api, streams: str, expected: list[str]) -> None:
    for name in ("a", "b1", "b2"):
        api.create(name)
    assert sorted(api.get("/v1/watch", streams=streams).json()["streams"]) == expected


@pytest.mark.parametrize("streams", ["", ",", "a,,b", "[a]", "a?", "x" * 129, ",".join(["a"] * 257)])
def test_bad_patterns_are_refused(api: Api, streams: str) -> None:
    answer = api.get("/v1/watch", streams=streams)
    assert (answer.status, answer.reason, answer.problem["parameter"]) == (400, "invalid_request", "streams")
