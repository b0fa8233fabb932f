"""Consumers. Goal: what is committed is what is told, lag follows the log, and nothing impossible is stored."""

from __future__ import annotations

import threading
import time
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from broker.api.errors import CorruptLog, NotReady
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Answer, Api, Server


@pytest.fixture
def orders(api: Api) -> Api:
    """Two partitions with 10 and 20 records."""
    api.create("orders", partitions=2)
    api.append("orders", values(10))
    api.append("orders", values(20), partition=1)
    return api


def commit(api: Api, consumer: str, *offsets: tuple[int, int], **more: Any) -> Answer:
    return api.post(
        f"/v1/consumers/{consumer}/offsets",
        {"offsets": [{"stream": "orders", "partition": p, "offset": o, **more} for p, o in offsets]},
    )


def test_a_committed_offset_is_told_with_its_lag(orders: Api) -> None:
    before_ms = time.time() * 1000 - 1
    assert commit(orders, "spark", (1, 5), (0, 10), metadata="batch 7", leader_epoch=1).json() == {"committed": 2}
    found = orders.get("/v1/consumers/spark").json()
    assert found["lag"] == 15
    first, second = found["partitions"]
    assert before_ms <= first.pop("committed_ms") <= time.time() * 1000 + 1
    assert first == {
        "stream": "orders",
        "partition": 0,
        "offset": 10,
        "high_watermark": 10,
        "lag": 0,
        "behind_ms": 0,
        "unknown": False,
        "leader_epoch": 1,
        "incarnation": orders.get("/v1/streams/orders").json()["incarnation"],
        "metadata": "batch 7",
    }
    assert (second["partition"], second["offset"], second["high_watermark"], second["lag"]) == (1, 5, 20, 15)
    assert second["behind_ms"] >= 0


def without_ages(consumer: dict[str, Any]) -> dict[str, Any]:
    """They grow from one answer to the next."""
    return {**consumer, "partitions": [{**p, "behind_ms": None} for p in consumer["partitions"]]}


def test_a_lag_is_told_as_the_age_of_the_first_record_not_read(api: Api) -> None:
    api.create("orders")
    now_us = time.time_ns() // 1000
    for age_s in (500, 300, 100):
        stamped = pa.array([now_us - age_s * 1_000_000] * 2, pa.timestamp("us", "UTC"))
        api.append("orders", values(2).append_column("timestamp", stamped))
    for offset, age_s in ((0, 500), (1, 500), (3, 300), (4, 100)):
        commit(api, "spark", (0, offset))
        (found,) = api.get("/v1/consumers/spark").json()["partitions"]
        elapsed_ms = (time.time_ns() // 1000 - now_us) / 1000
        assert age_s * 1000 <= found["behind_ms"] <= age_s * 1000 + elapsed_ms
    commit(api, "spark", (0, 6))
    (found,) = api.get("/v1/consumers/spark").json()["partitions"]
    assert found["behind_ms"] == 0


def test_lag_follows_the_log_and_the_consumer(orders: Api) -> None:
    commit(orders, "spark", (0, 10))
    orders.append("orders", values(7))
    assert orders.get("/v1/consumers/spark").json()["lag"] == 7
    commit(orders, "spark", (0, 17))
    assert orders.get("/v1/consumers/spark").json()["lag"] == 0


def test_consumers_are_listed_by_name(orders: Api) -> None:
    for name in ("b", "a"):
        commit(orders, name, (0, 1))
    listed = orders.get("/v1/consumers").json()["consumers"]
    assert [(c["consumer"], c["lag"]) for c in listed] == [("a", 9), ("b", 9)]
    assert without_ages(listed[0]) == without_ages(orders.get("/v1/consumers/a").json())


def test_a_consumer_may_go_back(orders: Api) -> None:
    commit(orders, "spark", (0, 10))
    commit(orders, "spark", (0, 3))
    assert orders.get("/v1/consumers/spark").json()["partitions"][0]["offset"] == 3


def test_commits_are_records_of_the_offset_stream(orders: Api) -> None:
    commit(orders, "spark", (0, 10), (1, 2))
    assert orders.read("__offsets").rows().column("key").to_pylist() == [b"spark/orders/0", b"spark/orders/1"]


@pytest.mark.parametrize("recreate", [False, True])
def test_of_a_partition_that_is_gone_there_is_no_lag(orders: Api, recreate: bool) -> None:
    commit(orders, "spark", (0, 4))
    orders.request("DELETE", "/v1/streams/orders")
    if recreate:
        orders.create("orders")
    found = orders.get("/v1/consumers/spark").json()
    assert found["lag"] == 0
    assert [(p["offset"], p["high_watermark"], p["lag"]) for p in found["partitions"]] == [(4, None, None)]
    assert not found["partitions"][0]["unknown"]


def test_of_a_stream_that_is_offline_the_lag_is_unknown(server: Server, orders: Api) -> None:
    """It was told as one that is gone is: nothing to read, and nothing wrong."""
    commit(orders, "spark", (0, 4))
    server.backend.offline["orders"] = CorruptLog("partition.json is damaged", stream="orders", offline=True)
    (found,) = orders.get("/v1/consumers/spark").json()["partitions"]
    assert (found["offset"], found["lag"], found["unknown"]) == (4, None, True)


@pytest.mark.parametrize(
    "to, expected",
    [
        ("earliest", [0, 0]),
        ("latest", [10, 20]),
        ({"offset": 7}, [7, 7]),
        ({"timestamp_us": 0}, [0, 0]),
        ({"timestamp_us": 1 << 60}, [10, 20]),
    ],
)
def test_reset_moves_all_partitions(orders: Api, to: Any, expected: list[int]) -> None:
    commit(orders, "spark", (0, 5))
    answer = orders.post("/v1/consumers/spark/reset", {"stream": "orders", "to": to})
    assert [p["offset"] for p in answer.json()["partitions"]] == expected
    assert without_ages(answer.json()) == without_ages(orders.get("/v1/consumers/spark").json())


def test_reset_of_some_partitions_leaves_the_others(orders: Api) -> None:
    commit(orders, "spark", (0, 5), (1, 5))
    answer = orders.post("/v1/consumers/spark/reset", {"stream": "orders", "partitions": [1], "to": "latest"})
    assert [p["offset"] for p in answer.json()["partitions"]] == [5, 20]


def test_a_reset_that_is_stored_is_told_where_the_offsets_move_on_at_once(
    orders: Api, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was `not_ready`, which says that nothing was changed (found by chaos, seed 24000)."""
    commit(orders, "spark", (0, 5), (1, 5))
    told = server.backend.offsets
    commits, get = told.commit, told.get

    async def moves_on(*values: Any) -> None:
        await commits(*values)
        monkeypatch.setattr(told, "get", Mock(side_effect=NotReady("another broker keeps them")))

    monkeypatch.setattr(told, "commit", moves_on)
    answer = orders.post("/v1/consumers/spark/reset", {"stream": "orders", "partitions": [1], "to": "latest"})
    assert (answer.status, [p["offset"] for p in answer.json()["partitions"]]) == (200, [5, 20])
    monkeypatch.setattr(told, "get", get)
    told_now, kept = answer.json(), orders.get("/v1/consumers/spark").json()
    for partition in (*told_now["partitions"], *kept["partitions"]):
        del partition["committed_ms"]  # it is stamped anew when it is stored, maybe in the next millisecond
    assert without_ages(told_now) == without_ages(kept)


def test_reset_goes_to_the_time_in_each_partition(api: Api) -> None:
    api.create("orders", partitions=2)
    for partition in range(2):
        times = pa.array([1000 * i * (1 + partition) for i in range(10)], pa.timestamp("us", "UTC"))
        api.append("orders", pa.record_batch({"value": [b"x"] * 10, "timestamp": times}), partition=partition)
    answer = api.post("/v1/consumers/spark/reset", {"stream": "orders", "to": {"timestamp_us": 4000}})
    assert [p["offset"] for p in answer.json()["partitions"]] == [4, 2]


def test_a_forgotten_consumer_is_unknown(orders: Api) -> None:
    commit(orders, "spark", (0, 5))
    assert orders.request("DELETE", "/v1/consumers/spark").status == 204
    assert orders.get("/v1/consumers").json() == {"consumers": []}
    for method in ("GET", "DELETE"):
        answer = orders.request(method, "/v1/consumers/spark")
        assert (answer.status, answer.reason) == (404, "unknown_consumer")


@pytest.mark.parametrize(
    "offset, status, reason",
    [
        ({"offset": 11}, 416, "offset_out_of_range"),
        ({"partition": 2}, 404, "unknown_partition"),
        ({"stream": "nothing"}, 404, "unknown_stream"),
        ({"incarnation": "old"}, 409, "stale_incarnation"),
        ({"offset": -1}, 400, "invalid_request"),
        ({"offset": "5"}, 400, "invalid_request"),
        ({"offset": 1 << 63}, 400, "invalid_request"),
        ({"leader_epoch": -2}, 400, "invalid_request"),
        ({"metadata": "x" * 4097}, 400, "invalid_request"),
        ({"metadata": 5}, 400, "invalid_request"),
        ({"offest": 5}, 400, "invalid_request"),
    ],
)
def test_one_bad_offset_refuses_the_whole_commit(orders: Api, offset: Any, status: int, reason: str) -> None:
    good = {"stream": "orders", "partition": 1, "offset": 1}
    bad = {"stream": "orders", "partition": 0, "offset": 1, **offset}
    answer = orders.post("/v1/consumers/spark/offsets", {"offsets": [good, bad]})
    assert (answer.status, answer.reason) == (status, reason)
    assert orders.get("/v1/consumers").json() == {"consumers": []}


def test_the_same_partition_twice_is_refused(orders: Api) -> None:
    answer = commit(orders, "spark", (0, 1), (0, 2))
    assert (answer.status, answer.problem["detail"]) == (400, "offsets: orders/0 is given twice")


@pytest.mark.parametrize("name", ["a%20b", "%2Fx", "__x", "x" * 129, "-x"])
def test_names_that_cannot_be_are_refused(orders: Api, name: str) -> None:
    answer = commit(orders, name, (0, 1))
    assert (answer.status, answer.reason) == (400, "invalid_name")


@pytest.mark.parametrize(
    "body, status",
    [
        ({"stream": "orders"}, 400),
        ({"to": "latest"}, 400),
        ({"stream": "orders", "to": "middle"}, 400),
        ({"stream": "orders", "to": {"epoch": 1}}, 400),
        ({"stream": "orders", "to": {"offset": 15}}, 416),
        ({"stream": "orders", "to": "latest", "partitions": []}, 400),
        ({"stream": "orders", "to": "latest", "partitions": ["0"]}, 400),
        ({"stream": "orders", "to": "latest", "partitions": [5]}, 404),
        ({"stream": "nothing", "to": "latest"}, 404),
    ],
)
def test_a_bad_reset_changes_nothing(orders: Api, body: Any, status: int) -> None:
    commit(orders, "spark", (0, 5))
    assert orders.post("/v1/consumers/spark/reset", body).status == status
    assert [p["offset"] for p in orders.get("/v1/consumers/spark").json()["partitions"]] == [5]


def test_a_commit_goes_on_when_its_client_does_not_wait(server: Server, orders: Api) -> None:
    """A time-out answers the client; what was begun is finished, not broken off half done."""
    held = threading.Event()
    server.backend._appender.submit(held.wait)
    try:
        answer = orders.post(
            "/v1/consumers/spark/offsets",
            {"offsets": [{"stream": "orders", "partition": 0, "offset": 1}]},
            timeout_ms=100,
        )
        assert answer.reason == "deadline_exceeded"
    finally:
        held.set()
    commit(orders, "other", (0, 1))
    assert orders.get("/v1/consumers/spark").json()["partitions"][0]["offset"] == 1
