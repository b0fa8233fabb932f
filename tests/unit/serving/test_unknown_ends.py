"""Goal: of a partition whose leader does not know yet where it ends no end is told, neither as a number nor as "gone".

Method: the partition of a real log whose end is said to be unknown, as it is to a new leader.
"""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from broker.api import http
from broker.client import connect
from broker.node.partitions.partition import Partition
from tests.unit.serving.server import Api, Server


@pytest.fixture
def unknown(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    api.create("orders")
    assert api.append("orders", pa.record_batch({"value": [b"a", b"b", b"c"]})).status == 200
    monkeypatch.setattr(Partition, "end", property(lambda _: None))
    return api


def test_what_is_known_to_be_committed_is_read_without_a_word_on_the_end(unknown: Api) -> None:
    answer = unknown.read("orders", offset=0)
    assert answer.rows().num_rows == 3
    assert http.HIGH_WATERMARK not in answer.headers
    assert answer.headers[http.NEXT_OFFSET] == "3"


def test_nothing_behind_it_is_nothing_yet(unknown: Api) -> None:
    answer = unknown.read("orders", offset=3, max_wait_ms=20)
    assert answer.rows().num_rows == 0
    assert http.HIGH_WATERMARK not in answer.headers


@pytest.mark.parametrize("offset", ["latest", "time:2099-01-01", 4])
def test_what_may_be_there_is_not_ready(unknown: Api, offset: int | str) -> None:
    answer = unknown.read("orders", offset=offset)
    assert (answer.status, answer.reason) == (503, "not_ready")


def test_a_position_is_not_ready(unknown: Api) -> None:
    asked = [{"stream": "orders", "partition": 0, "at": at} for at in ("earliest", "latest", {"offset": 1})]
    found = unknown.post("/v1/offsets/resolve", {"positions": asked}).json()["positions"]
    assert [(one["error"]["reason"], one["high_watermark"]) for one in found] == [("not_ready", None)] * 3


def test_a_trim_to_the_latest_needs_no_known_end(unknown: Api) -> None:
    """The leader trims what it knows to be committed: on a full disk nothing else may make room."""
    answer = unknown.post("/v1/streams/orders/trim", {"before": "latest"})
    assert (answer.status, answer.json()["partitions"][0]["log_start_offset"]) == (200, 3)


@pytest.mark.parametrize("before", [{"offset": 4}, {"timestamp_us": 0}])
def test_a_trim_up_to_there_is_not_ready(unknown: Api, before: object) -> None:
    """Seen before: refused for good as out of range, or answered although a part had not been trimmed."""
    answer = unknown.post("/v1/streams/orders/trim", {"before": before})
    assert (answer.status, answer.reason) == (503, "not_ready")
    assert unknown.post("/v1/streams/orders/trim", {"before": {"offset": 2}}).status == 200


def test_a_watch_says_of_which_partitions_it_does_not_know(unknown: Api) -> None:
    [stream] = unknown.get("/v1/watch").json()["streams"].values()
    assert (stream["partitions"], stream["unknown"]) == ({}, [0])


def test_the_client_waits_until_the_end_is_known(api: Api, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    api.create("orders")
    assert api.append("orders", pa.record_batch({"value": [b"a", b"b", b"c"]})).status == 200
    asked = itertools.count()
    monkeypatch.setattr(Partition, "end", property(lambda self: 3 if next(asked) > 6 else None))
    with connect(f"127.0.0.1:{server.port}") as client, client.read("orders") as reader:
        assert reader.to_table().num_rows == 3
