"""Goal: the broker says the truth about itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.api.placements import Placement, ReplicaEnd, Vote
from tests.unit.serving.server import Api, Server


def test_the_cluster_says_where_its_brokers_are(server: Server, api: Api) -> None:
    assert api.get("/v1/cluster").json() == {
        "cluster_id": "cluster-of-the-tests",
        "feature_level": 1,
        "controller": "broker-0",
        "version": "0.0.0",
        "brokers": [
            {
                "id": "broker-0",
                "http": f"127.0.0.1:{server.port}",
                "grpc": "",
                "live": True,
                "rack": "",
                "stopping": False,
                "session_ms": 2_000,
                "auth_mode": "off",
            }
        ],
        "voters": ["broker-0"],
        "votes": [{"broker": "broker-0", "valid": True, "live": True}],
        "answered_by": "broker-0",
        "auth_required": False,
    }


def test_a_vote_that_went_with_a_disk_makes_nobody_a_voter(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def votes() -> list[Vote]:
        return [Vote(broker=b, valid=b != "c", live=b == "a") for b in "abc"]

    monkeypatch.setattr(server.backend, "votes", votes)
    said = api.get("/v1/cluster").json()
    assert said["voters"] == ["a", "b"]
    assert said["votes"][2] == {"broker": "c", "valid": False, "live": False}


def test_each_answer_names_the_brokers_of_a_cluster_and_a_lone_one_none(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Liftlog-Brokers" not in api.get("/v1/cluster").headers
    rest = {"grpc": "", "live": True, "rack": "", "stopping": False, "session_ms": 2_000, "auth_mode": ""}
    known = [{"id": f"b{n}", "http": f"10.0.0.{n}:9293", **rest} for n in (1, 2)]
    monkeypatch.setattr(server.backend, "brokers", lambda: known)
    api.create("orders")
    for path in ("/v1/cluster", "/v1/streams/orders/partitions/0/records", "/metrics", "/v1/streams/nothing"):
        assert api.get(path).headers["Liftlog-Brokers"] == "10.0.0.1:9293,10.0.0.2:9293", path


def test_a_living_broker_may_not_be_ready(server: Server, api: Api) -> None:
    assert api.get("/livez").json() == {"status": "live"}
    ready = api.get("/readyz")
    assert (ready.status, ready.json()) == (200, {"ready": True, "missing": {}, "warnings": {}})
    server.backend.missing["nats"] = "connecting"
    ready = api.get("/readyz")
    assert (ready.status, ready.json()) == (503, {"ready": False, "missing": {"nats": "connecting"}, "warnings": {}})
    assert api.get("/livez").status == 200


def test_a_draining_broker_is_not_ready(server: Server, api: Api) -> None:
    server.serving.draining.set()
    ready = api.get("/readyz")
    assert (ready.status, ready.json()["missing"]) == (503, {"http": "draining"})


def test_metrics_are_prometheus_text_without_doubles(api: Api) -> None:
    answer = api.get("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = [family.name for family in text_string_to_metric_families(answer.body.decode())]
    assert len(names) == len(set(names))
    assert {"liftlog_up", "liftlog_http_requests", "liftlog_http_records_sent_bytes"} <= set(names)


def test_the_page_links_what_there_is(api: Api) -> None:
    api.create("orders")
    page = api.get("/")
    assert page.headers.get_content_type() == "text/html"
    for link in ("/v1/streams", "/metrics", "/openapi.json", "/v1/streams/orders/partitions/0/records?format=json"):
        assert link in page.body.decode()
        assert api.get(link).status == 200


def test_a_rescue_is_not_for_a_lone_broker_and_costs_nothing_by_accident(api: Api) -> None:
    assert api.get("/v1/cluster/rescue").json()["rescue"] is None
    refused = api.post("/v1/cluster/rescue/excuse", {"broker": "b"})
    assert (refused.status, refused.reason, refused.problem["field"]) == (400, "invalid_request", "accept_loss")
    refused = api.post("/v1/cluster/rescue/excuse", {"broker": "b", "partition": 0, "accept_loss": True})
    assert (refused.reason, refused.problem["field"]) == ("invalid_request", "stream")
    assert api.post("/v1/cluster/rescue/excuse", {"broker": "b", "accept_loss": True}).reason == "not_supported"
    assert api.post("/v1/cluster/rescue/end", {"brokers": ["a"]}).reason == "not_supported"
    assert api.post("/v1/cluster/rescue/end", {"brokers": []}).status == 400


def test_a_copy_that_was_interrupted_is_elected_only_by_its_name(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leads without keys whose newer records it does not have yet. Which copy lacks less, a person has to say."""
    elected: list[str] = []
    api.create("orders")
    where = {"stream": "orders", "partition": 0}
    placed = Placement(**where, leader=None, leader_epoch=3, replicas=("a", "b", "c"), isr=(), last_isr=("a",))
    ends = [
        ReplicaEnd(**where, broker="b", last_epoch=2, log_end_offset=30),
        ReplicaEnd(**where, broker="c", last_epoch=2, log_end_offset=80, is_interrupted=True),
    ]

    async def elect_unclean(stream: str, partition: int, broker: str, epoch_seen: int) -> Placement:
        elected.append(broker)
        return replace(placed, leader=broker)

    admin = server.backend.admin
    monkeypatch.setattr(admin, "placements", lambda: [placed])
    monkeypatch.setattr(admin, "ends", lambda: ends)
    monkeypatch.setattr(admin, "elect_unclean", elect_unclean)
    asked = {**where, "unclean": True}
    for accept_loss in (False, True):
        refused = api.post("/v1/cluster/elect", {**asked, "accept_loss": accept_loss})
        assert (refused.status, refused.problem["field"]) == (400, "broker")
        assert "c (epoch 2, offset 80, interrupted), b (epoch 2, offset 30)" in refused.problem["detail"]
        assert refused.problem["chosen"]["broker"] == "c"
    refused = api.post("/v1/cluster/elect", {**asked, "broker": "c"})
    assert (refused.status, refused.problem["field"]) == (400, "accept_loss")
    assert "its copy was interrupted" in refused.problem["detail"]
    assert "interrupted." not in api.post("/v1/cluster/elect", {**asked, "broker": "b"}).problem["detail"]
    assert elected == []
    for broker in ("c", "b"):
        assert api.post("/v1/cluster/elect", {**asked, "broker": broker, "accept_loss": True}).status == 200
    assert elected == ["c", "b"]
