"""Stamped appends over HTTP.

Goal: a repeat gets the offsets of then and stores nothing; what cannot be one is named. Method: a real server.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.serving.arrow import values
from tests.unit.serving.server import Api


def register(api: Api, name: str | None = None) -> tuple[int, int]:
    answer = api.post("/v1/producers", {} if name is None else {"name": name})
    assert answer.status == 200, answer.body
    return answer.json()["producer_id"], answer.json()["epoch"]


def stamp(producer_id: int, epoch: int, sequence: int) -> dict[str, Any]:
    return {"producer_id": producer_id, "producer_epoch": epoch, "sequence": sequence}


def test_a_repeat_gets_the_offsets_of_then_and_stores_nothing(api: Api) -> None:
    api.create("orders", batch_records=2)
    producer_id, _ = register(api)
    first = api.append("orders", values(5), **stamp(producer_id, 0, 0)).json()
    second = api.append("orders", values(1), **stamp(producer_id, 0, 1)).json()
    assert (first["duplicate"], second["duplicate"]) == (False, False)
    again = api.append("orders", values(5), **stamp(producer_id, 0, 0)).json()
    assert again == {**first, "duplicate": True}
    assert api.get("/v1/streams/orders").json()["partitions"][0]["high_watermark"] == 6
    assert api.append("orders", values(1)).json()["duplicate"] is False


def test_a_repeat_is_one_whatever_it_expects_and_a_refusal_is_no_group(api: Api) -> None:
    api.create("orders")
    producer_id, _ = register(api)
    first = api.append("orders", values(2), expected_offset=0, **stamp(producer_id, 0, 0)).json()
    assert api.append("orders", values(1), expected_offset=0, **stamp(producer_id, 0, 1)).reason == "expectation_failed"
    again = api.append("orders", values(2), expected_offset=0, **stamp(producer_id, 0, 0)).json()
    assert again == {**first, "duplicate": True}
    assert api.append("orders", values(1), expected_offset=2, **stamp(producer_id, 0, 1)).json()["first_offset"] == 2


def test_partitions_count_for_themselves(api: Api) -> None:
    api.create("orders", partitions=2)
    producer_id, _ = register(api)
    for partition in (0, 1):
        answer = api.append("orders", values(2), partition, **stamp(producer_id, 0, 0)).json()
        assert (answer["first_offset"], answer["duplicate"]) == (0, False)


def test_ids_are_new_each_time_and_a_name_keeps_its_id(api: Api) -> None:
    ids = [register(api) for _ in range(3)]
    assert len({producer_id for producer_id, _ in ids}) == 3
    assert {epoch for _, epoch in ids} == {0}
    producer_id, _ = register(api, "job")
    assert [register(api, "job") for _ in range(2)] == [(producer_id, 1), (producer_id, 2)]


def test_an_older_epoch_is_fenced_everywhere_at_once(api: Api) -> None:
    """Also in a partition that the newer one has not written to."""
    api.create("orders", partitions=2)
    producer_id, epoch = register(api, "job")
    assert api.append("orders", values(1), **stamp(producer_id, epoch, 0)).status == 200
    register(api, "job")
    for partition in (0, 1):
        answer = api.append("orders", values(1), partition, **stamp(producer_id, epoch, 1 - partition))
        assert (answer.status, answer.reason, answer.problem["producer_epoch"]) == (409, "producer_fenced", epoch + 1)


def test_what_does_not_fit_is_named_and_stores_nothing(api: Api) -> None:
    api.create("orders")
    producer_id, _ = register(api)
    gap = api.append("orders", values(1), **stamp(producer_id, 0, 3))
    assert (gap.status, gap.reason) == (404, "unknown_producer")
    api.append("orders", values(1), **stamp(producer_id, 0, 0))
    gap = api.append("orders", values(1), **stamp(producer_id, 0, 3))
    assert (gap.status, gap.reason, gap.problem["expected"]) == (409, "out_of_sequence", 1)
    never = api.append("orders", values(1), **stamp(producer_id + 1_000_000, 0, 0))
    assert (never.status, never.reason) == (404, "unknown_producer")
    later = api.append("orders", values(1), **stamp(producer_id, 1, 0))
    assert (later.status, later.reason) == (404, "unknown_producer")
    none = api.append("orders", values(0), **stamp(producer_id, 0, 1))
    assert (none.status, none.reason) == (400, "invalid_records")
    assert api.get("/v1/streams/orders").json()["partitions"][0]["high_watermark"] == 1


@pytest.mark.parametrize("missing", ["producer_id", "producer_epoch", "sequence"])
def test_a_stamp_is_whole_or_not_there(api: Api, missing: str) -> None:
    api.create("orders")
    given = {name: value for name, value in stamp(1, 0, 0).items() if name != missing}
    answer = api.append("orders", values(1), **given)
    assert (answer.status, answer.problem["parameter"]) == (400, missing)


@pytest.mark.parametrize("body", [{"name": "no spaces"}, {"name": ""}, {"name": 1}, {"nam": "x"}, {"name": "x" * 129}])
def test_names_that_cannot_be(api: Api, body: dict[str, Any]) -> None:
    assert api.post("/v1/producers", body).status == 400


def test_names_are_listed_and_deleted(api: Api) -> None:
    api.create("orders")
    register(api)
    producer_id, _ = register(api, "job")
    register(api, "job")
    found = api.get("/v1/producers").json()["producers"]
    assert [(each["name"], each["producer_id"], each["epoch"]) for each in found] == [("job", producer_id, 1)]
    assert api.request("DELETE", "/v1/producers/job").status == 204
    assert api.get("/v1/producers").json() == {"producers": []}
    assert api.append("orders", values(1), **stamp(producer_id, 1, 0)).reason == "unknown_producer"
    assert api.request("DELETE", "/v1/producers/job").reason == "unknown_producer"
    assert register(api, "job") == (producer_id + 1, 0)
