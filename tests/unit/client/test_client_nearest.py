"""Goal: a reader near to a follower sees each offset once, as the leader has it, whatever the follower does or lacks.

Method: two raw servers with logs: the leader names the other one, which breaks, refuses, lags or sends damage as the
test says. The other one's log may be shorter, never different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from broker.api import http
from broker.api.errors import InvalidRequest, LiftlogError, NotLeader, NotReady, OffsetOutOfRange, UnknownStream
from broker.client import connect
from broker.client.reading.fetch import PartitionFetch
from broker.client.reading.session import FetchSession
from tests.unit.client.logs import Log, body
from tests.unit.client.rawserver import RawServer, Reply, Request
from tests.unit.client.test_client_fetch import problem

Twist = Callable[[Request, Reply, bytes, dict[str, str]], bool]
COUNT = 100


@dataclass
class Pair:
    """A leader and its follower in rack r."""

    leader: RawServer
    near: RawServer
    session: FetchSession
    plain: list[int] = field(default_factory=list)  # offsets that the leader was asked for without a rack

    def read(self, start: int = 0, end: int = COUNT) -> list[int]:
        fetch = PartitionFetch(self.session, "orders", 0, start, deadline_s=60)
        found = [
            offset
            for rows in fetch.until(end, lambda message, first, stop: [message.rows()])
            for offset in rows.column("offset").to_pylist()
        ]
        assert not fetch.has_gaps
        return found


@contextmanager
def pair(
    twist: Twist | None = None, *, count: int = COUNT, named: str | None = None, per_answer: int = 1000
) -> Iterator[Pair]:
    log, short = Log.of(COUNT, per_batch=10), Log.of(count, per_batch=10)

    def lead(request: Request, reply: Reply) -> None:
        assert request.query.get("replica") is None
        offset = int(request.query["offset"])
        if request.query.get("rack") == "r":
            headers = {**log.answer(offset, None)[1], http.NEXT_OFFSET: str(offset)}
            reply.answer(200, body(), {**headers, http.NEAREST: made.near.address if named is None else named})
            return
        made.plain.append(offset)
        data, headers = log.answer(offset, min(COUNT, offset + per_answer))
        reply.answer(200, data, headers)

    def near(request: Request, reply: Reply) -> None:
        assert request.query["replica"] == "any"
        assert "rack" not in request.query
        offset = int(request.query["offset"])
        if offset > count:
            problem(reply, NotLeader("it does not know so far", leader=made.leader.address))
            return
        data, headers = short.answer(offset, min(count, offset + per_answer))
        del headers[http.HIGH_WATERMARK]
        if twist is None or not twist(request, reply, data, headers):
            reply.answer(200, data, headers)

    with RawServer(lead) as one, RawServer(near) as other:
        made = Pair(one, other, FetchSession(one.address, rack="r"))
        yield made
        made.session.close()


def test_all_comes_from_the_replica_that_the_leader_has_named() -> None:
    with pair(per_answer=20) as made:
        assert made.read() == list(range(COUNT))
        assert (len(made.near.requests), made.plain) == (5, [])
        assert made.read(50) == list(range(50, COUNT))  # another task of the same process asks it at once
        assert len(made.leader.requests) == 1


def test_without_a_rack_the_leader_is_asked_and_nobody_else() -> None:
    with pair() as made:
        made.session.nearest = None
        assert made.read() == list(range(COUNT))
        assert (made.near.requests, made.plain) == ([], [0])


REFUSALS: dict[str, LiftlogError] = {
    "is no replica any more": NotLeader("elsewhere"),
    "has no session": NotReady("no session"),
    "says it is gone": OffsetOutOfRange("no such offset", log_start_offset=90, high_watermark=95),
    "knows no such stream": UnknownStream("no stream"),
}


@pytest.mark.parametrize("error", REFUSALS.values(), ids=REFUSALS)
def test_what_it_refuses_the_leader_answers_from_the_same_offset(error: LiftlogError) -> None:
    """V1: also what sounds like a loss."""

    def refuse(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        if int(request.query["offset"]) < 40:
            return False
        problem(reply, error)
        return True

    with pair(refuse, per_answer=20) as made:
        assert made.read() == list(range(COUNT))
        assert made.plain == [40, 60, 80], "it is left alone for a while"


@pytest.mark.parametrize("cut", [0, 1, 300, 1500, -200], ids=str)
def test_an_answer_that_breaks_is_taken_up_by_the_leader(cut: int) -> None:
    def broken(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        reply.head(200, len(data), headers)
        reply.send(data[:cut])
        reply.close()
        return True

    with pair(broken) as made:
        assert made.read() == list(range(COUNT))
        assert len(made.plain) == 1


def test_damage_there_is_asked_of_the_leader() -> None:
    """V2: it is told to check its disk, as the reader cannot know whose fault it is."""

    def damaged(request: Request, reply: Reply, data: bytes, headers: dict[str, str]) -> bool:
        changed = bytearray(data)
        changed[len(data) // 2] ^= 1
        reply.answer(200, bytes(changed), headers)
        return True

    with pair(damaged) as made:
        assert made.read() == list(range(COUNT))
        assert len(made.plain) == 1
        assert len(made.near.requests) == 1


@pytest.mark.parametrize("count", [0, 10, 50])
def test_what_it_does_not_have_yet_the_leader_has(count: int) -> None:
    """It may have started again, and know less than it has handed out before."""
    with pair(count=count) as made:
        assert made.read() == list(range(COUNT))
        assert made.plain == [count]
        assert made.read(count + 10) == list(range(count + 10, COUNT))


@pytest.mark.parametrize("address", ["", "no address at all:", "127.0.0.1:0"])
def test_an_address_that_is_none_is_passed_over(address: str) -> None:
    with pair(named=address) as made:
        assert made.read() == list(range(COUNT))
        assert made.plain == [0]


def test_one_that_stands_still_is_left_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair(per_answer=20) as made:
        assert made.read(0, 20) == list(range(20))
        with made.near.frozen():
            assert made.read(20, 60) == list(range(20, 60))
            assert made.plain == [20, 40]
        monkeypatch.setattr("broker.client.http.brokers.DOWN_S", 0.0)
        assert made.session.nearest is not None
        made.session.nearest._avoided_s[("orders", 0)] = 0.0  # its time is over
        assert made.read(60) == list(range(60, COUNT))
        assert made.plain == [20, 40]


def test_nobody_is_near_to_nowhere() -> None:
    with connect("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest, match="connect with rack"):
            client.read("orders", read_from="nearest")
        with pytest.raises(InvalidRequest, match="must be 'leader' or 'nearest'"):
            client.read("orders", read_from="moon")  # type: ignore[arg-type]
