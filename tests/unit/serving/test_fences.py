"""The fence of a partition over HTTP.

Goal: who holds the newest fence appends, who held a former one is refused, and nobody takes one unseen.
Method: a real server.
"""

from __future__ import annotations

from typing import Any

from tests.unit.serving.arrow import values
from tests.unit.serving.server import Api
from tests.unit.serving.test_producers import register, stamp

FENCE = "/v1/streams/orders/partitions/{}/fence"


def fence(api: Api, after: int, partition: int = 0) -> dict[str, Any]:
    answer = api.post(FENCE.format(partition), {"after": after})
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


def test_a_newer_fence_shuts_out_who_holds_an_older_one(api: Api) -> None:
    api.create("orders", partitions=2)
    assert api.get(FENCE.format(0)).json() == {"fence": 0, "next_offset": 0}
    assert api.append("orders", values(1), fence=0).status == 200, "nobody has fenced it"
    assert fence(api, 0) == {"fence": 1, "next_offset": 1}
    assert api.append("orders", values(1), fence=1).json()["first_offset"] == 1
    for other in (0, 2, 2**63 - 1):
        refused = api.append("orders", values(1), fence=other)
        assert (refused.status, refused.reason) == (409, "writer_fenced")
    assert api.append("orders", values(1)).json()["first_offset"] == 2, "who names none is let in"
    assert api.append("orders", values(1), 1, fence=0).status == 200, "each partition has its own"
    assert fence(api, 1) == {"fence": 2, "next_offset": 3}
    assert api.append("orders", values(1), fence=1).reason == "writer_fenced"
    assert api.append("orders", values(1), fence=2, expected_offset=3).json()["first_offset"] == 3
    assert api.append("orders", values(1), fence=2, expected_offset=3).reason == "expectation_failed"
    assert api.append("orders", values(1), fence=1, expected_offset=4).reason == "writer_fenced"
    assert api.append("orders", values(1).slice(0, 0), fence=2).reason == "invalid_records"


def test_nobody_takes_a_fence_that_he_has_not_seen(api: Api) -> None:
    api.create("orders")
    fence(api, 0)
    for after in (0, 2):
        refused = api.post(FENCE.format(0), {"after": after})
        assert (refused.status, refused.reason, refused.problem["fence"]) == (412, "expectation_failed", 1)
    assert api.post(FENCE.format(0), {"after": -1}).reason == "invalid_request"
    assert api.post(FENCE.format(0) + "?incarnation=other", {"after": 1}).reason == "stale_incarnation"
    assert api.post(FENCE.format(1), {"after": 0}).reason == "unknown_partition"
    assert api.post(FENCE.format(0).replace("orders", "__offsets"), {"after": 0}).reason == "read_only"
    assert api.get(FENCE.format(0)).json()["fence"] == 1


def test_a_repeat_of_what_an_older_fence_has_stored_is_a_repeat(api: Api) -> None:
    api.create("orders")
    producer_id, _ = register(api)
    first = api.append("orders", values(2), fence=0, **stamp(producer_id, 0, 0)).json()
    fence(api, 0)
    assert api.append("orders", values(2), fence=0, **stamp(producer_id, 0, 0)).json() == {**first, "duplicate": True}
    assert api.append("orders", values(1), fence=0, **stamp(producer_id, 0, 1)).reason == "writer_fenced"
    assert api.append("orders", values(1), fence=1, **stamp(producer_id, 0, 1)).json()["first_offset"] == 2


def test_a_stream_that_is_made_anew_has_no_fence(api: Api) -> None:
    former = api.create("orders")["incarnation"]
    fence(api, 0)
    assert api.request("DELETE", "/v1/streams/orders").status == 204
    api.create("orders")
    assert api.get(FENCE.format(0)).json() == {"fence": 0, "next_offset": 0}
    fence(api, 0)
    late = api.append("orders", values(1), fence=1, incarnation=former)
    assert late.reason == "stale_incarnation", "the number alone would do"
