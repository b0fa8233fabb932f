"""What the broker says of itself."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.unit.serving.server import Api, Server


def test_the_cluster_says_where_its_brokers_are(server: Server, api: Api) -> None:
    assert api.get("/v1/cluster").json() == {
        "cluster_id": "cluster-of-the-tests",
        "feature_level": 1,
        "controller": "broker-0",
        "version": "0.0.0",
        "brokers": [{"id": "broker-0", "http": f"127.0.0.1:{server.port}", "grpc": ""}],
    }


def test_a_living_broker_may_not_be_ready(server: Server, api: Api) -> None:
    assert api.get("/livez").json() == {"status": "live"}
    ready = api.get("/readyz")
    assert (ready.status, ready.json()) == (200, {"ready": True, "missing": {}})
    server.backend.missing["nats"] = "connecting"
    ready = api.get("/readyz")
    assert (ready.status, ready.json()) == (503, {"ready": False, "missing": {"nats": "connecting"}})
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
