"""Streams as JSON. Goal: what is created is what is described; refusals name key, value, limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.api.errors import StorageFailed
from broker.api.stream import StreamSettings
from broker.metadata.info import StreamInfo, growth_of
from broker.serving.endpoints.streams import Gathered, _render, _Told
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Api, Server


def test_a_created_stream_has_the_defaults_and_what_was_asked(server: Server, api: Api) -> None:
    answer = api.post("/v1/streams", {"name": "orders", "subject": "orders.*", "partitions": 3, "partition_by": "key"})
    assert answer.status == 201
    assert answer.headers["Location"] == "/v1/streams/orders"
    stream = answer.json()
    assert stream.pop("created") is True
    asked = {"subject": "orders.*", "partitions": 3, "partition_by": "key"}
    assert stream["settings"] == {**StreamSettings().as_dict(), **asked}
    assert [p["partition"] for p in stream["partitions"]] == [0, 1, 2]
    leader = {"id": "broker-0", "http": f"127.0.0.1:{server.port}"}
    for partition in stream["partitions"]:
        assert partition["leader"] == leader
        assert partition["replicas"] == partition["isr"] == ["broker-0"]
        assert partition["high_watermark"] == partition["log_end_offset"] == partition["log_start_offset"] == 0
        assert partition["lost_ranges"] == []
    assert stream["warnings"], "partition_by=key has a warning"
    assert api.get("/v1/streams/orders").json() == stream


def test_a_description_follows_the_log(api: Api) -> None:
    api.create("orders")
    api.append("orders", values(10))
    (partition,) = api.get("/v1/streams/orders").json()["partitions"]
    assert (partition["high_watermark"], partition["log_end_offset"], partition["segments"]) == (10, 10, 1)
    assert partition["bytes"] > 100


def test_creating_it_again_succeeds_with_the_same_settings_only(api: Api) -> None:
    created = api.create("orders", retention_ms=1000)
    again = api.post("/v1/streams", {"name": "orders", "retention_ms": 1000})
    assert (again.status, again.json()) == (200, {**created, "created": False})
    other = api.post("/v1/streams", {"name": "orders", "retention_ms": 2000, "acks": "none"})
    assert (other.status, other.reason) == (409, "stream_exists")
    assert other.problem["differences"] == {"retention_ms": [1000, 2000], "acks": ["all", "none"]}


def test_streams_are_listed_by_name_and_internal_ones_only_when_asked(api: Api) -> None:
    for name in ("b", "a", "c"):
        api.create(name)
    assert [s["name"] for s in api.get("/v1/streams").json()["streams"]] == ["a", "b", "c"]
    listed = api.get("/v1/streams", internal="true").json()["streams"]
    assert [(s["name"], s["internal"]) for s in listed] == [
        ("__audit", True),
        ("__commits", True),
        ("__offsets", True),
        ("a", False),
        ("b", False),
        ("c", False),
    ]


def test_an_offline_stream_does_not_hide_the_others(server: Server, api: Api) -> None:
    api.create("a")
    api.create("b")
    server.backend.offline["a"] = StorageFailed("the disk is gone")
    a, b = api.get("/v1/streams").json()["streams"]
    assert a["partitions"] == []
    assert a["warnings"] == ["offline (storage_failed): the disk is gone"]
    assert b["partitions"]
    assert api.read("a").reason == "storage_failed"
    streams = api.get("/v1/watch").json()["streams"]
    assert (streams["a"]["partitions"], streams["a"]["unknown"]) == ({}, [0])
    assert (streams["b"]["partitions"].keys(), streams["b"]["unknown"]) == ({"0"}, [])


def test_altered_settings_are_there_at_once(api: Api) -> None:
    api.create("orders")
    answer = api.request("PATCH", "/v1/streams/orders", json_body={"retention_bytes": 1 << 30, "retention_ms": None})
    assert answer.status == 200
    settings = api.get("/v1/streams/orders").json()["settings"]
    assert (settings["retention_bytes"], settings["retention_ms"]) == (1 << 30, None)


def test_a_deleted_stream_is_gone(api: Api) -> None:
    api.create("orders")
    assert api.request("DELETE", "/v1/streams/orders").status == 204
    assert api.get("/v1/streams/orders").reason == "unknown_stream"
    assert api.request("DELETE", "/v1/streams/orders").reason == "unknown_stream"


@pytest.mark.parametrize("method, body", [("PATCH", {"acks": "none"}), ("DELETE", None)])
def test_internal_streams_cannot_be_changed(api: Api, method: str, body: Any) -> None:
    answer = api.request(method, "/v1/streams/__offsets", json_body=body)
    assert (answer.status, answer.reason) == (403, "read_only")


@pytest.mark.parametrize(
    "body, reason, field, what",
    [
        ({}, "invalid_request", "name", "must be the name"),
        ({"name": 5}, "invalid_request", "name", "must be the name"),
        ({"name": ""}, "invalid_name", "", "1 to 128 characters"),
        ({"name": "__mine"}, "invalid_name", "", "1 to 128 characters"),
        ({"name": "a b"}, "invalid_name", "", "1 to 128 characters"),
        ({"name": "x" * 129}, "invalid_name", "", "1 to 128 characters"),
        ({"name": "a", "partitons": 3}, "unknown_setting", "", "did you mean 'partitions'?"),
        ({"name": "a", "partitions": 0}, "invalid_setting", "", "must be a whole number from 1 to 1024"),
        ({"name": "a", "partitions": "3"}, "invalid_setting", "", "must be a whole number"),
        ({"name": "a", "acks": None}, "invalid_setting", "", "acks=null: must be one of all"),
        ({"name": "a", "subject": "a..b"}, "invalid_subject", "", "empty token"),
        ({"name": "a", "subject": ">"}, "invalid_subject", "", "covers"),
    ],
)
def test_what_cannot_be_created_is_refused(api: Api, body: Any, reason: str, field: str, what: str) -> None:
    answer = api.post("/v1/streams", body)
    assert (answer.status, answer.reason) == (400, reason)
    assert what in answer.problem["detail"]
    assert api.get("/v1/streams").json()["streams"] == []


@pytest.mark.parametrize(
    "body, reason, what",
    [
        ({}, "invalid_request", "at least one setting"),
        ({"partitions": 4}, "invalid_setting", "partitions are added by a call of their own"),
        ({"subject": "other"}, "invalid_setting", "cannot be altered"),
        ({"linger_ms": -1}, "invalid_setting", "must be a whole number from 0 to 10000 ms"),
        ({"name": "other"}, "unknown_setting", "no setting 'name'"),
    ],
)
def test_what_cannot_be_altered_is_refused(api: Api, body: Any, reason: str, what: str) -> None:
    before = api.create("orders")
    answer = api.request("PATCH", "/v1/streams/orders", json_body=body)
    assert (answer.status, answer.reason) == (400, reason)
    assert what in answer.problem["detail"]
    assert api.get("/v1/streams/orders").json() == before


@pytest.mark.parametrize(
    "body, what",
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[]", "must be a JSON object, it is list"),
        (b'"x"', "must be a JSON object, it is str"),
        (b'{"name": "a", "name": "b"}', "'name' is given twice"),
        (b'{"name": NaN}', "NaN is not valid JSON"),
        (b'{"name": "\xff"}', "is not JSON"),
        (b"[" * 60_000, "nested 60000 deep"),
        (b'{"name": "a", "partitions": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
)
def test_what_is_no_json_object_is_refused(api: Api, body: bytes, what: str) -> None:
    answer = api.request("POST", "/v1/streams", body=body, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.reason) == (400, "invalid_request")
    assert what in answer.problem["detail"]


def test_json_is_bounded(api: Api) -> None:
    answer = api.post("/v1/streams", {"name": "x" * (5 << 20)})
    assert (answer.status, answer.reason) == (413, "request_too_large")


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_web_page_cannot_make_a_browser_create_streams(api: Api, kind: str | None) -> None:
    """These are the types that a browser sends to another site without asking it first."""
    headers = {"Content-Type": kind} if kind else {}
    answer = api.request("POST", "/v1/streams", body=b'{"name": "a"}', headers=headers)
    assert (answer.status, answer.reason) == (415, "invalid_request")


@pytest.mark.parametrize("is_said", [False, True])
def test_partitions_that_are_being_added_are_told_once_whatever_was_altered_meanwhile(is_said: bool) -> None:
    """An alteration takes the sentence away that the catalog had kept of them (once seed 5, with a mistake)."""
    info = StreamInfo(name="s", incarnation="i", created_us=1, settings=StreamSettings(), partitions_next=3)
    if is_said:
        info = replace(info, warnings=tuple(growth_of(info)))
    answer = _render(Gathered(info, (), {}, []), _Told(()))
    assert answer["warnings"] == ["3 partitions are being made; until each leader has confirmed that, there are 1"]
