"""Requests that nobody meant to send.

Goal: whatever JSON or query comes, the server answers with 2xx or a named refusal, never an internal error;
and what the contract's request schemas forbid is refused. Method: valid requests, changed at random by seed;
every answer is held against the contract by `Api`.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from tests.support.effort import seeds
from tests.unit.serving.arrow import values
from tests.unit.serving.server import CONTRACT, Api, validator

STAGE = {"stream": "orders", "partition": 0, "stage": "0f" * 16, "parts": 1}
VALID: list[tuple[str, str, str, dict[str, Any]]] = [
    ("POST", "/v1/streams", "/v1/streams", {"name": "new", "subject": "a.*", "partitions": 2, "acks": "all"}),
    ("PATCH", "/v1/streams/orders", "/v1/streams/{stream}", {"retention_ms": 5000, "linger_ms": 1, "fsync": "batch"}),
    (
        "POST",
        "/v1/offsets/resolve",
        "/v1/offsets/resolve",
        {
            "positions": [
                {"stream": "orders", "partition": 0, "at": "earliest"},
                {"stream": "orders", "partition": 0, "at": {"timestamp_us": 5}, "incarnation": "x"},
                {"stream": "orders", "partition": 0, "at": {"offset": 5}},
                {"stream": "orders", "partition": 0, "at": {"epoch": 1}},
            ]
        },
    ),
    (
        "POST",
        "/v1/consumers/c/offsets",
        "/v1/consumers/{consumer}/offsets",
        {"offsets": [{"stream": "orders", "partition": 0, "offset": 3, "leader_epoch": 1, "metadata": "m"}]},
    ),
    (
        "POST",
        "/v1/consumers/c/reset",
        "/v1/consumers/{consumer}/reset",
        {"stream": "orders", "partitions": [0], "to": {"offset": 4}},
    ),
    ("POST", "/v1/streams/orders/read-only", "/v1/streams/{stream}/read-only", {"read_only": False}),
    (
        "POST",
        "/v1/streams/orders/trim",
        "/v1/streams/{stream}/trim",
        {"before": {"offset": 4}, "partitions": [0]},
    ),
    ("POST", "/v1/streams/orders/trim", "/v1/streams/{stream}/trim", {"before": {"timestamp_us": 4}}),
    ("POST", "/v1/streams/orders/partitions", "/v1/streams/{stream}/partitions", {"partitions": 2}),
    ("POST", "/v1/producers", "/v1/producers", {"name": "p"}),
    ("POST", "/v1/sinks/q/open", "/v1/sinks/{sink}/open", {"owner": "o", "one_shot": False}),
    ("POST", "/v1/sinks/q/reset", "/v1/sinks/{sink}/reset", {"next_batch_id": 4}),
    ("POST", "/v1/sinks/q/adopt", "/v1/sinks/{sink}/adopt", {"checkpoint": "/c"}),
    ("POST", "/v1/sinks/q/end", "/v1/sinks/{sink}/end", {"owner": "o"}),
    ("POST", "/v1/sinks/q/abort", "/v1/sinks/{sink}/abort", {"stages": [STAGE]}),
    (
        "POST",
        "/v1/sinks/q/commit",
        "/v1/sinks/{sink}/commit",
        {
            "owner": "o",
            "epoch": 1,
            "batch_id": 0,
            "rows": 0,
            "stages": [STAGE],
            "digest": "d",
            "attributes": {"checkpoint": "/c"},
            "on_repeat_with_other_rows": "keep_first",
        },
    ),
]
JUNK: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1 << 40,
    1 << 63,
    1 << 70,
    1.5,
    "",
    "x",
    "\ud800",
    "latest",
    [],
    {},
    [0],
    {"a": 1},
]


def changed(rng: random.Random, value: Any) -> Any:
    """The value with one thing in it replaced, removed, doubled or added."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def collect(inner: Any) -> None:
        if isinstance(inner, (dict, list)):
            for key in list(inner) if isinstance(inner, dict) else range(len(inner)):
                places.append((inner, key))
                collect(inner[key])

    collect(value)
    if not places:
        return rng.choice(JUNK)
    holder, key = rng.choice(places)
    match rng.randrange(5):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(["extra", "offset", "stream", key + "x"])] = rng.choice(JUNK)
        case 2 if isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        case _:
            holder[key] = copy.deepcopy(rng.choice(JUNK))
    return value


@pytest.mark.parametrize("seed", seeds(5))
def test_changed_requests_are_answered_or_refused_as_the_contract_says(api: Api, seed: int) -> None:
    rng = random.Random(seed)
    api.create("orders")
    api.append("orders", values(10))
    for _ in range(150):
        method, path, template, valid = rng.choice(VALID)
        schema = CONTRACT["paths"][template][method.lower()]["requestBody"]["content"]["application/json"]["schema"]
        body = changed(rng, valid)
        if rng.random() < 0.3:
            body = changed(rng, body)
        answer = api.request(method, path, json_body=body)
        where = f"{method} {path} {body!r} -> {answer.status} {answer.body[:300]!r}"
        assert answer.status < 500, where
        if not validator(schema).is_valid(body):
            assert answer.status >= 400, f"the contract forbids it: {where}"
        elif answer.status == 400 and answer.reason == "invalid_request":
            is_beyond = any(word in answer.problem["detail"] for word in ("twice", "printable", "Unicode"))
            assert is_beyond, f"the contract allows it: {where}"
            assert "twice" in answer.problem["detail"] or answer.problem["field"], where
        if "stream" not in template and answer.status in (200, 201) and body.get("name") not in (None, "orders"):
            api.request("DELETE", f"/v1/streams/{body['name']}")


@pytest.mark.parametrize("seed", seeds(5))
def test_changed_queries_are_answered_or_refused(api: Api, seed: int) -> None:
    rng = random.Random(seed)
    api.create("orders")
    api.append("orders", values(10))
    names = ["offset", "end", "max_bytes", "max_wait_ms", "incarnation", "epoch", "format", "limit", "timeout_ms", "x"]
    junk = [
        "0",
        "5",
        "10",
        "11",
        "-1",
        "latest",
        "earliest",
        "time:5",
        "time:2020-01-01",
        "json",
        "arrow",
        "",
        "é",
        "%",
    ]
    junk += ["1" * 30, "1e3", "0x1", "٣", " 5", "5 ", "null", "\x00", "time:" + "9" * 14, "time:9999-12-31"]
    for _ in range(150):
        query = {rng.choice(names): rng.choice(junk) for _ in range(rng.randint(1, 4))}
        if query.get("max_wait_ms") in ("5", "10", "11"):
            query["timeout_ms"] = "1000"
        answer = api.read("orders", **query)
        assert answer.status < 500 or answer.reason in ("not_ready", "deadline_exceeded"), (query, answer.body)
