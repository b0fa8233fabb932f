"""Liftbridge's Subscribe where the disk has lost records, or has other bytes than were stored.

Goal: a subscription tells of each range that is lost, hands out no damaged byte, and the client goes on behind it.
Method: ranges that are marked lost, and bytes that are changed in the file below a broker that runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.errors import NotLeader
from broker.api.proto import liftbridge_pb2 as pb
from broker.serving.liftbridge import reading
from tests.support.liftbridge import Client, client_of, opened
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Server
from tests.unit.serving.test_liftbridge_groups import Stock, code, ended, offsets


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with opened(server) as port, client_of(port.port) as client:
        client.call("CreateStream", name="s", subject="s")
        for _ in range(3):
            server.api.append("s", values(10))
        yield client


def read(client: Client, **fields: Any) -> tuple[list[int], str, str]:
    """Offsets, and how it ended."""
    found: list[int] = []
    call = client.subscribe(**{"stream": "s", "start": pb.EARLIEST, "stop": pb.AT_LATEST, **fields})
    try:
        for record in call:
            if record != pb.Record():
                assert record.value == b"%d" % (record.offset % 10) + b"." * (len(record.value) - 1)
                found.append(record.offset)
    except grpc.RpcError as error:
        return found, error.code().name, error.details()
    raise AssertionError("it has no end")


def test_when_another_broker_leads_by_now_a_client_is_told_to_look_for_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has begun another code says so: by that clients look up the metadata."""
    real, reads = reading.read, list[int]()

    async def moved(asking: Any, asked: Any, span: Any, offset: int, *, wait_ms: int) -> Any:
        reads.append(offset)
        if len(reads) == 2:
            raise NotLeader("another broker leads it")
        return await real(asking, asked, span, offset, wait_ms=wait_ms)

    monkeypatch.setattr(reading, "read", moved)
    assert read(client, stop=pb.ON_CANCEL)[:2] == (list(range(30)), "UNAVAILABLE")
    reads[:] = [0]
    assert read(client, stop=pb.ON_CANCEL)[:2] == ([], "FAILED_PRECONDITION")


def test_a_subscription_ends_before_what_is_lost_and_another_goes_on_behind_it(client: Client, server: Server) -> None:
    server.backend.partition("s", 0).log.state.lost_ranges = ((0, 2), (5, 10), (20, 21), (21, 22))
    asked: dict[str, Any] = {}
    told = []
    while (found := read(client, **asked))[1] == "DATA_LOSS":
        told.append(found[2])
        asked = {"start": pb.OFFSET, "start_offset": int(found[2].rpartition("from ")[2].split()[0])}
    assert told == [
        "offsets 5 to 9 of s/0 are lost: subscribe from 10 on",
        "offsets 20 to 20 of s/0 are lost: subscribe from 21 on",
    ]
    assert found[1] == "RESOURCE_EXHAUSTED"
    assert read(client, stop=pb.AT_OFFSET, stop_offset=4)[1] == "RESOURCE_EXHAUSTED", "it is behind the end"


def test_each_consumer_of_a_group_hears_once_of_what_is_lost_at_its_place(client: Client, server: Server) -> None:
    a = Stock(client, "a")
    a.fetch()
    assert offsets(a.subscribe(0), 10) == [*range(10)]
    a.commit(0, 9)
    a.leave()
    server.backend.partition("s", 0).log.state.lost_ranges = ((10, 15), (15, 20))
    for name in ("b", "c"):
        who = Stock(client, name)
        who.fetch()
        told = "offsets 10 to 19 of s/0 are lost: subscribe again to go on behind them"
        assert ended(who.subscribe(0)) == ("DATA_LOSS", told)
        assert offsets(who.subscribe(0), 1) == [20], "it goes on"
        who.leave()


def test_who_has_heard_of_it_amid_its_reading_goes_on_behind_it(client: Client, server: Server) -> None:
    server.backend.partition("s", 0).log.state.lost_ranges = ((10, 20),)
    a = Stock(client, "a")
    a.fetch()
    call = a.subscribe(0)
    assert offsets(call, 10) == [*range(10)]
    assert code(call) == "DATA_LOSS"
    a.commit(0, 9)
    assert offsets(a.subscribe(0), 1) == [20]


@pytest.mark.parametrize("at", [150, 250, 320, 900])
def test_damaged_bytes_are_no_records(client: Client, server: Server, at: int) -> None:
    plan = server.backend.partition("s", 0).log.reader.read(10, end=20)
    (stored,) = plan.ranges
    plan.close()
    with open(stored.path, "r+b") as file:
        file.seek(stored.position + stored.length - at)
        [byte] = file.read(1)
        file.seek(stored.position + stored.length - at)
        file.write(bytes([byte ^ 0xFF]))
    found, code, text = read(client)
    assert (found, code, text) == (
        list(range(10)),
        "DATA_LOSS",
        "offsets 10 to 19 of s/0 are lost: subscribe from 20 on",
    )
    assert read(client, start=pb.OFFSET, start_offset=20)[:2] == (list(range(20, 30)), "RESOURCE_EXHAUSTED")
