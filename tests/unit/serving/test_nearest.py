"""Goal: a follower hands out ranges of committed records, and nothing that a reader could take for an end, a loss or a
gap; what ends its right to do so between any two steps of an answer ends that answer.

Method: a real server and log, of which the backend says that another broker leads it.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from broker.api import http
from broker.api.errors import NotLeader
from broker.groups.offsets import offset_rows
from broker.node.partitions.follower_read import FollowerRead
from broker.serving.endpoints import records
from broker.storage.read import ReadPlan
from broker.storage.rows import RowBatch
from tests.support.processes import eventually
from tests.unit.serving.server import Answer, Api, Server

LEADER = "10.0.0.1:9293"


class Following:
    """The partition `orders/0` of a server, followed in an epoch."""

    def __init__(self, server: Server) -> None:
        self.api, self.server = server.api, server
        self.epoch = 7
        self.partition = server.backend.partition("orders", 0)
        self.log = self.partition.log

    def reader(self, stream: str, number: int) -> FollowerRead:
        def elsewhere(why: str = "") -> NotLeader:
            return NotLeader(f"elsewhere; {why}", leader={"id": "l", "http": LEADER})

        if self.epoch < 0:
            raise elsewhere()
        return FollowerRead(self.partition.replica, self.epoch, lambda: self.epoch, elsewhere)

    def read(self, **query: Any) -> Answer:
        return self.api.read("orders", **{"replica": "any", **query})


@pytest.fixture
def followed(server: Server, monkeypatch: pytest.MonkeyPatch) -> Following:
    server.api.create("orders")
    assert server.api.append("orders", pa.record_batch({"value": [b"a", b"b", b"c"]})).status == 200
    made = Following(server)
    monkeypatch.setattr(server.backend, "reader", made.reader)

    def partition(stream: str, number: int) -> Any:
        raise NotLeader("elsewhere", leader={"id": "l", "http": LEADER})

    monkeypatch.setattr(server.backend, "partition", partition)
    return made


def refused(answer: Answer) -> bool:
    assert (answer.status, answer.reason) == (421, "not_leader"), answer.body
    assert answer.problem["leader"]["http"] == LEADER
    return True


def test_a_range_is_handed_out_without_a_word_on_the_end(followed: Following) -> None:
    answer = followed.read(offset=1)
    assert answer.rows()["value"].to_pylist() == [b"a", b"b", b"c"]
    assert http.HIGH_WATERMARK not in answer.headers
    assert (answer.headers[http.LEADER_EPOCH], answer.headers[http.NEXT_OFFSET]) == ("7", "3")
    assert followed.read(offset=3).rows().num_rows == 0, "nothing yet"
    assert followed.read(offset=0, epoch=7).status == 200


@pytest.mark.parametrize(
    "query",
    [
        {"offset": 4},
        {"offset": "latest"},
        {"offset": "earliest"},
        {},
        {"offset": "time:2001-01-01"},
        {"offset": 0, "epoch": 8},
        {"offset": 0, "verify": "true"},
        {"offset": 0, "replica": "leader"},
    ],
    ids=str,
)
def test_everything_else_is_the_leaders_to_answer(followed: Following, query: dict[str, Any]) -> None:
    """R4: an offset that it does not know may be there, and have been read before it started again."""
    assert refused(followed.read(**query))


def test_an_offset_that_it_has_let_go_is_the_leaders_to_answer(followed: Following) -> None:
    followed.log.trim(3)
    assert refused(followed.read(offset=0))


def test_damage_is_the_leaders_to_answer(followed: Following) -> None:
    followed.log.remembered.update_settings(replace(followed.log.state.settings, is_sole_replica=False))
    followed.log.state.lost_ranges = ((0, 3),)
    assert refused(followed.read(offset=1))


@pytest.mark.parametrize("epoch", [-1, 8], ids=["deposed", "another leader"])
def test_an_answer_that_was_planned_in_another_epoch_is_not_given(
    followed: Following, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """Its log may have been cut, and written anew, between the look and the plan."""
    plans: list[ReadPlan] = []

    def planned(*asked: Any) -> tuple[ReadPlan, tuple[int, int]]:
        plan, epochs = open_plan(*asked)
        plans.append(plan)
        followed.epoch = epoch
        return plan, epochs

    open_plan = records.open_plan
    monkeypatch.setattr(records, "open_plan", planned)
    assert refused(followed.read(offset=0))
    assert [plan._files for plan in plans] == [[]], "closed"


def test_an_offset_that_it_hears_of_in_a_moment_is_waited_for(
    followed: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: a reader that comes from the leader is a step ahead of it."""
    found: list[Answer] = []
    waits, wait_for = threading.Event(), FollowerRead.wait_for

    async def waiting(reader: FollowerRead, offset: int, timeout_s: float) -> None:
        waits.set()
        await wait_for(reader, offset, timeout_s)

    monkeypatch.setattr(FollowerRead, "wait_for", waiting)
    asking = threading.Thread(target=lambda: found.append(followed.read(offset=4, max_wait_ms=30_000)))
    asking.start()
    eventually(lambda: waits.is_set() or not asking.is_alive(), what="a wait")
    for value in (b"d", b"e"):
        followed.partition.append([RowBatch(offset_rows([(b"k", value)], timestamp_us=1))]).result(60)
    asking.join(60)
    assert found[0].rows()["value"].to_pylist() == [b"e"]


def test_an_offset_that_it_does_not_hear_of_is_the_leaders_to_answer(followed: Following) -> None:
    assert refused(followed.read(offset=4, max_wait_ms=100))


@pytest.mark.parametrize("epoch", [-1, 8])
def test_who_waits_is_sent_on_when_it_is_over(followed: Following, epoch: int) -> None:
    """X4: nobody has to note a change for it."""
    found: list[Answer] = []
    waiting = threading.Thread(target=lambda: found.append(followed.read(offset=3, max_wait_ms=30_000)))
    waiting.start()
    eventually(lambda: followed.server.serving.meters is not None and waiting.is_alive(), what="a wait")
    waiting.join(0.3)
    followed.epoch = epoch
    waiting.join(25)
    assert not waiting.is_alive()
    assert refused(found[0])


def test_it_takes_no_records_and_looks_at_nothing(followed: Following) -> None:
    reader = followed.reader("orders", 0)
    for call in (lambda: reader.append([]), lambda: reader.scrub(0)):
        with pytest.raises(NotLeader):
            call()


def test_a_leader_names_who_is_near_instead_of_an_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    api: Api = server.api
    api.create("orders")
    assert api.append("orders", pa.record_batch({"value": [b"a", b"b", b"c"]})).status == 200
    assert api.read("orders", offset=0, rack="r").rows().num_rows == 3, "there is nobody else"
    monkeypatch.setattr(server.backend, "nearest", lambda stream, partition, rack: LEADER if rack == "r" else None)
    for offset in (0, 3):
        answer = api.read("orders", offset=offset, rack="r", max_wait_ms=60_000)
        assert (answer.headers[http.NEAREST], answer.headers[http.NEXT_OFFSET]) == (LEADER, str(offset))
        assert answer.rows().num_rows == 0
    assert api.read("orders", offset=0, rack="s").rows().num_rows == 3
    assert api.read("orders", offset=9, rack="r").reason == "offset_out_of_range", "who leads decides"
