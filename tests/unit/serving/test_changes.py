"""Pause, read-only, trim, more partitions. Goal: each says what it did; what is refused has changed nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.serving.arrow import values
from tests.unit.serving.server import Api


def change(api: Api, what: str, body: Any = None, stream: str = "orders") -> Any:
    answer = api.request("POST", f"/v1/streams/{stream}/{what}", json_body=body)
    assert answer.status == 200, answer.body
    return answer.json()


def test_a_paused_stream_takes_nothing_and_is_read_on(api: Api) -> None:
    created = api.create("orders")
    assert (created["paused"], created["read_only"]) == (False, False)
    api.append("orders", values(3))
    for _ in range(2):
        assert change(api, "pause")["paused"]
    refused = api.append("orders", values(1))
    assert (refused.status, refused.reason) == (503, "stream_paused")
    assert refused.headers["Retry-After"]
    assert api.read("orders").rows().num_rows == 3
    assert api.get("/v1/streams/orders").json()["paused"]
    for _ in range(2):
        assert not change(api, "resume")["paused"]
    assert api.append("orders", values(1)).json()["first_offset"] == 3


def test_a_read_only_stream_refuses_and_is_read_on(api: Api) -> None:
    api.create("orders")
    api.append("orders", values(3))
    assert change(api, "read-only", {"read_only": True})["read_only"]
    refused = api.append("orders", values(1))
    assert (refused.status, refused.reason) == (403, "read_only")
    assert api.read("orders").rows().num_rows == 3
    assert change(api, "pause")["read_only"], "the two do not touch each other"
    assert api.append("orders", values(1)).reason == "stream_paused"
    change(api, "resume")
    assert api.append("orders", values(1)).reason == "read_only"
    assert not change(api, "read-only", {"read_only": False})["read_only"]
    assert api.append("orders", values(1)).status == 200


@pytest.mark.parametrize(
    "before, start",
    [("latest", 10), ({"offset": 4}, 4), ({"offset": 0}, 0), ({"offset": 10}, 10), ({"timestamp_us": 0}, 0)],
)
def test_a_trim_moves_the_start_of_the_log(api: Api, before: Any, start: int) -> None:
    api.create("orders", partitions=2)
    api.append("orders", values(10))
    answer = change(api, "trim", {"before": before, "partitions": [0, 0]})
    assert answer == {"partitions": [{"partition": 0, "log_start_offset": start}]}
    assert api.read("orders", offset="earliest").headers["Liftlog-Log-Start-Offset"] == str(start)
    if start:
        gone = api.read("orders", offset=start - 1)
        assert (gone.status, gone.reason, gone.problem["log_start_offset"]) == (416, "offset_out_of_range", start)
    assert change(api, "trim", {"before": {"offset": 0}})["partitions"][0]["log_start_offset"] == start


def test_a_time_after_the_last_record_trims_all(api: Api) -> None:
    api.create("orders", partitions=2)
    api.append("orders", values(10))
    answer = change(api, "trim", {"before": {"timestamp_us": 1 << 60}})
    assert [p["log_start_offset"] for p in answer["partitions"]] == [10, 0]


def test_an_offset_that_does_not_exist_yet_trims_nothing_anywhere(api: Api) -> None:
    api.create("orders", partitions=2)
    api.append("orders", values(10))
    api.append("orders", values(5), partition=1)
    answer = api.post("/v1/streams/orders/trim", {"before": {"offset": 7}})
    assert (answer.status, answer.reason) == (416, "offset_out_of_range")
    problem = answer.problem
    said = {name: problem[name] for name in ("stream", "partition", "offset", "log_start_offset", "high_watermark")}
    assert said == {"stream": "orders", "partition": 1, "offset": 7, "log_start_offset": 0, "high_watermark": 5}
    assert [p["log_start_offset"] for p in api.get("/v1/streams/orders").json()["partitions"]] == [0, 0]


def test_partitions_are_added_and_a_keyed_stream_warns(api: Api) -> None:
    api.create("orders", partition_by="key")
    api.append("orders", values(3))
    stream = change(api, "partitions", {"partitions": 3})
    assert [p["high_watermark"] for p in stream["partitions"]] == [3, 0, 0]
    assert stream["settings"]["partitions"] == 3
    assert any("from 1 to 3 partitions" in warning for warning in stream["warnings"])
    assert api.append("orders", values(1), partition=2).status == 200
    assert len(change(api, "partitions", {"partitions": 3})["partitions"]) == 3
    fewer = api.post("/v1/streams/orders/partitions", {"partitions": 2})
    assert (fewer.status, fewer.reason) == (400, "invalid_setting")
    assert "would lose records" in fewer.problem["detail"]


CHANGES: list[tuple[str, Any]] = [
    ("pause", None),
    ("resume", None),
    ("read-only", {"read_only": True}),
    ("trim", {"before": "latest"}),
    ("partitions", {"partitions": 2}),
]


@pytest.mark.parametrize("what, body", CHANGES)
def test_internal_and_unknown_streams_are_not_changed(api: Api, what: str, body: Any) -> None:
    internal = api.request("POST", f"/v1/streams/__offsets/{what}", json_body=body)
    assert (internal.status, internal.reason) == (403, "read_only")
    unknown = api.request("POST", f"/v1/streams/nobody/{what}", json_body=body)
    assert (unknown.status, unknown.reason) == (404, "unknown_stream")


@pytest.mark.parametrize(
    "what, body, says",
    [
        ("pause", {}, "takes no request body"),
        ("resume", {"paused": False}, "takes no request body"),
        ("read-only", {}, "read_only is missing"),
        ("read-only", {"read_only": 1}, "must be true or false"),
        ("read-only", {"read_only": True, "why": "x"}, "is unknown; there are read_only"),
        ("trim", {}, "before is missing"),
        ("trim", {"before": "earliest"}, "must be 'latest' or an object"),
        ("trim", {"before": 5}, "must be 'latest' or an object"),
        ("trim", {"before": {}}, "must be 'latest' or an object"),
        ("trim", {"before": {"offset": 1, "timestamp_us": 1}}, "must be 'latest' or an object"),
        ("trim", {"before": {"offset": -1}}, "must be a whole number"),
        ("trim", {"before": {"epoch": 1}}, "an object with one of offset, timestamp_us"),
        ("trim", {"before": "latest", "partitions": []}, "a list of 1 to"),
        ("trim", {"before": "latest", "partitions": None}, "a list of 1 to"),
        ("trim", {"before": "latest", "partitions": ["0"]}, "must be a whole number"),
        ("partitions", {}, "partitions is missing"),
        ("partitions", {"partitions": 0}, "must be a whole number from 1 to 1024"),
        ("partitions", {"partitions": 1025}, "must be a whole number from 1 to 1024"),
    ],
)
def test_what_is_no_such_change_is_refused(api: Api, what: str, body: Any, says: str) -> None:
    before = api.create("orders")
    answer = api.post(f"/v1/streams/orders/{what}", body)
    assert (answer.status, answer.reason) == (400, "invalid_request")
    assert says in answer.problem["detail"]
    assert api.get("/v1/streams/orders").json() == before


def test_trim_of_an_unknown_partition_trims_none(api: Api) -> None:
    api.create("orders")
    api.append("orders", values(3))
    answer = api.post("/v1/streams/orders/trim", {"before": "latest", "partitions": [0, 7]})
    assert (answer.status, answer.reason) == (404, "unknown_partition")
    assert api.get("/v1/streams/orders").json()["partitions"][0]["log_start_offset"] == 0


@pytest.mark.parametrize("what", ["pause", "resume"])
def test_another_sites_web_page_cannot_make_a_browser_pause_streams(api: Api, what: str) -> None:
    """A POST without a body needs no media type, so a browser would not ask before it sends it."""
    api.create("orders")
    for origin in ("https://elsewhere.example", "null", f"http://127.0.0.1:{api.port + 1}"):
        refused = api.request("POST", f"/v1/streams/orders/{what}", headers={"Origin": origin})
        assert (refused.status, refused.reason) == (403, "foreign_request")
    own = api.request("POST", f"/v1/streams/orders/{what}", headers={"Origin": f"http://127.0.0.1:{api.port}"})
    assert own.status == 200
