"""Many positions at once. Goal: each kind is right against the log; one that fails does not spoil the others."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from broker.serving.contract.schemas import AtOffset, AtTimestamp, Position
from broker.serving.endpoints.resolve import _resolve
from broker.storage.segments.checkpoint import LogSettings
from tests.support.logs import commit, create_log, row_batch
from tests.support.simdisk import SimDisk
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Api, Server


def at(position: Any, *, stream: str = "orders", partition: int = 0, **more: Any) -> dict[str, Any]:
    return {"stream": stream, "partition": partition, "at": position, **more}


def resolve(api: Api, *positions: dict[str, Any]) -> list[dict[str, Any]]:
    answer = api.post("/v1/offsets/resolve", {"positions": positions})
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["positions"]
    return found


@pytest.fixture
def orders(api: Api) -> Api:
    """Ten records in ten batches, timestamps 0, 100, ... 900 us."""
    api.create("orders", partitions=2)
    for i in range(10):
        batch = pa.record_batch({"value": [b"x"], "timestamp": pa.array([100 * i], pa.timestamp("us", "UTC"))})
        assert api.append("orders", batch).status == 200
    return api


@pytest.mark.parametrize(
    "position, offset",
    [
        ("earliest", 0),
        ("latest", 10),
        ({"offset": 0}, 0),
        ({"offset": 7}, 7),
        ({"offset": 10}, 10),
        ({"timestamp_us": -5}, 0),
        ({"timestamp_us": 300}, 3),
        ({"timestamp_us": 301}, 4),
        ({"timestamp_us": 900}, 9),
        ({"timestamp_us": 901}, None),
    ],
)
def test_each_kind_of_position(orders: Api, position: Any, offset: int | None) -> None:
    stream = orders.get("/v1/streams/orders").json()
    epoch = stream["partitions"][0]["leader_epoch"]
    (found,) = resolve(orders, at(position))
    assert found["offset"] == offset
    assert found["incarnation"] == stream["incarnation"]
    assert (found["log_start_offset"], found["high_watermark"]) == (0, 10)
    assert found["leader_epoch"] == (-1 if offset == 0 else epoch)
    batches = len(orders.read("orders", offset=0 if offset is None else offset).body) - len(
        orders.read("orders", offset=10).body
    )
    assert found["bytes_ahead"] == (None if offset is None else batches)
    assert (found["timestamp_us"] is None) == (found["age_ms"] is None) == (offset in (None, 10))
    assert "error" not in found


def test_an_age_is_by_the_clock_of_the_broker(orders: Api) -> None:
    """Who asks need not have the same one. A record of the future has none."""
    began_ms = time.time_ns() // 1_000_000
    (found,) = resolve(orders, at({"offset": 7}))
    assert began_ms - 1 <= found["age_ms"] <= time.time_ns() // 1_000_000, "it is of 0.7 ms after 1970"
    later = pa.array([time.time_ns() // 1_000 + 3_600_000_000], pa.timestamp("us", "UTC"))
    assert orders.append("orders", pa.record_batch({"value": [b"x"], "timestamp": later})).status == 200
    (found,) = resolve(orders, at({"offset": 10}))
    assert (found["age_ms"], found["timestamp_us"]) == (0, later[0].value)


def test_the_end_of_an_epoch(server: Server, orders: Api) -> None:
    """After a leader change in the middle."""
    partition = server.backend.partition("orders", 0)
    first = partition.leader_epoch
    partition.lead(first + 4)
    orders.append("orders", values(3))
    for epoch, end in [(first, 10), (first + 1, 10), (first + 4, 13), (first + 100, 13), (0, 0)]:
        (found,) = resolve(orders, at({"epoch": epoch}))
        assert found["offset"] == end, epoch
    (found,) = resolve(orders, at({"offset": 11}))
    assert found["leader_epoch"] == first + 4


def test_answers_are_in_the_order_asked_and_failures_stand_alone(orders: Api) -> None:
    incarnation = orders.get("/v1/streams/orders").json()["incarnation"]
    found = resolve(
        orders,
        at("latest", partition=1),
        at("latest", stream="nothing"),
        at("latest", partition=2),
        at({"offset": 11}),
        at("latest", incarnation="old"),
        at("latest", incarnation=incarnation),
    )
    assert [one.get("error", {}).get("reason") for one in found] == [
        None,
        "unknown_stream",
        "unknown_partition",
        "offset_out_of_range",
        "stale_incarnation",
        None,
    ]
    assert [one["offset"] for one in found] == [0, None, None, None, None, 10]
    assert found[3]["error"]["high_watermark"] == found[3]["high_watermark"] == 10
    assert (found[3]["error"]["stream"], found[3]["error"]["partition"], found[3]["error"]["offset"]) == (
        "orders",
        0,
        11,
    )


@pytest.mark.parametrize(
    "body, what",
    [
        ({}, "positions is missing"),
        ({"positions": []}, "must be a list of 1 to 10000 items"),
        ({"positions": {}}, "must be a list"),
        ({"positions": [{}] * 10_001}, "not of 10001 items"),
        ({"positions": ["orders"]}, "positions[0]='orders': must be a JSON object"),
        ({"positions": [{"stream": "orders"}]}, "positions[0].partition is missing"),
        ({"positions": [at("latest"), at("newest")]}, "positions[1].at='newest': must be"),
        ({"positions": [at({"offset": -1})]}, "positions[0].at.offset=-1: must be a whole number"),
        ({"positions": [at({"offset": True})]}, "positions[0].at.offset=True"),
        ({"positions": [at({"offset": 1, "epoch": 1})]}, "positions[0].at"),
        ({"positions": [at({"offset": 1.5})]}, "positions[0].at.offset=1.5"),
        ({"positions": [at({"timestamp_us": 1 << 70})]}, "positions[0].at.timestamp_us"),
        ({"positions": [at("latest", partition="0")]}, "positions[0].partition='0'"),
        ({"positions": [at("latest", more=1)]}, "positions[0].more=1: is unknown; there are stream"),
        ({"positions": [at("latest", stream="a\nb")]}, "must be printable text"),
        ({"positions": [at("latest")], "extra": 1}, "extra=1: is unknown"),
    ],
)
def test_malformed_requests_are_refused_with_the_place(orders: Api, body: Any, what: str) -> None:
    answer = orders.post("/v1/offsets/resolve", body)
    assert (answer.status, answer.reason) == (400, "invalid_request")
    assert what in answer.problem["detail"]


@pytest.mark.slow
@pytest.mark.long
def test_thousands_at_once(orders: Api) -> None:
    found = resolve(orders, *[at({"offset": i % 11}) for i in range(10_000)])
    assert [one["offset"] for one in found] == [i % 11 for i in range(10_000)]


class Growing:
    """A partition that gets a record, committed, whenever its end has been asked for, and loses its first one."""

    incarnation = "i1"

    def __init__(self) -> None:
        self.log = create_log(SimDisk(), settings=LogSettings(segment_bytes=1))
        self.append()

    def append(self) -> None:
        self.log.append([row_batch([b"x"])], leader_epoch=0, now_us=0)
        commit(self.log)

    @property
    def end(self) -> int:
        end = self.log.state.high_watermark
        self.append()
        return end


@pytest.mark.parametrize("asked", ["latest", "earliest", AtOffset(offset=1), AtTimestamp(timestamp_us=0)])
def test_an_answer_holds_together_while_records_are_committed(asked: Any) -> None:
    """A client that read on from the newest record was refused as out of range: by an end that was read before."""
    found = _resolve(Position(stream="orders", partition=0, at=asked, incarnation=None), Growing(), 0)  # type: ignore[arg-type]
    assert found.get("error") is None
    assert found["log_start_offset"] <= found["offset"] <= found["high_watermark"]
