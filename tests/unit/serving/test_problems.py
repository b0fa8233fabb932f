"""Errors, whatever causes them.

Goal: always a problem body, never a traceback, and a log line where a person is needed.
"""

from __future__ import annotations

import logging
import re

import pytest

from broker.api.errors import BY_REASON, CorruptLog, LiftlogError, NotSupported, StorageFailed, from_problem
from broker.serving.contract.problems import problem_response
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Api, Server


@pytest.mark.parametrize("path", ["/nothing", "/v1", "/v1/streams/a/things", "/v1/streams/", "//", "/v2/streams"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_path_that_is_not_there(api: Api, path: str, method: str) -> None:
    answer = api.request(method, path)
    assert (answer.status, answer.reason, answer.problem["status"]) == (404, "invalid_request", 404)


@pytest.mark.parametrize(
    "method, path, allowed",
    [
        ("PUT", "/v1/streams", "GET, HEAD, POST"),
        ("POST", "/livez", "GET, HEAD"),
        ("DELETE", "/v1/streams/a/partitions/0/records", "GET, HEAD, POST"),
        ("OPTIONS", "/v1/watch", "GET, HEAD"),
        ("PATCH", "/", "GET, HEAD"),
    ],
)
def test_a_method_that_is_not_allowed(api: Api, method: str, path: str, allowed: str) -> None:
    answer = api.request(method, path)
    assert (answer.status, answer.reason) == (405, "invalid_request")
    assert answer.headers["Allow"] == allowed


def test_unknown_parameters_are_refused_everywhere(api: Api) -> None:
    for method, path in [
        ("GET", "/v1/streams"),
        ("POST", "/v1/streams"),
        ("GET", "/v1/cluster"),
        ("GET", "/livez"),
        ("GET", "/metrics"),
        ("GET", "/"),
        ("POST", "/v1/offsets/resolve"),
        ("DELETE", "/v1/consumers/a"),
    ]:
        answer = api.request(method, path, bogus=1)
        assert (answer.status, answer.problem["parameter"]) == (400, "bogus"), path


def test_head_of_an_error_has_its_status_and_no_body(api: Api) -> None:
    assert api.request("HEAD", "/v1/streams/nothing").status == 404
    assert api.get("/livez").status == 200, "the connection goes on"


def test_an_unexpected_error_is_internal_with_an_id_that_is_in_the_log(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode() -> list[str]:
        raise ZeroDivisionError("a secret of the broker")

    monkeypatch.setattr(server.backend.offsets, "consumers", explode)
    answer = api.get("/v1/consumers")
    assert (answer.status, answer.reason) == (500, "internal")
    assert b"secret" not in answer.body
    assert b"Traceback" not in answer.body
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert answer.problem["id"] in line.getMessage()
    assert line.exc_info is not None
    assert api.get("/livez").status == 200


def test_only_what_nobody_foresaw_is_logged_as_a_failure(
    server: Server, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """An offline stream was logged when it was found; every reader gets its error, and is counted."""
    api.create("orders")
    for error, status, is_logged in [
        (CorruptLog("no folder", stream="orders", offline=True), 500, False),
        (StorageFailed("the disk is gone"), 503, False),
        (NotSupported("not in this release"), 501, False),
        (CorruptLog("neither foreseen nor told"), 500, True),
    ]:
        server.backend.offline["orders"] = error
        caplog.clear()
        answers = [api.read("orders") for _ in range(3)]
        assert [(a.status, a.problem) for a in answers] == [(status, error.to_problem())] * 3
        lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert [line.startswith("http.failed") for line in lines] == [True] * (3 if is_logged else 0)
    assert 'liftlog_http_problems_total{reason="corrupt_log"} 6.0' in api.get("/metrics").body.decode()


def test_every_error_of_the_tree_makes_a_round_trip() -> None:
    for reason, kind in BY_REASON.items():
        error = kind("what happened", limit=5)
        response = problem_response(error)
        assert response.status == kind.status
        assert response.content_type == "application/problem+json"
        assert ("Retry-After" in response.headers) == (response.status in (408, 421, 429, 503, 504, 507))
        again = from_problem(error.to_problem())
        assert (type(again), again.reason, again.limit) == (kind, reason, 5)
    assert BY_REASON["internal"] is LiftlogError


def test_a_log_line_per_request_at_debug_only(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        api.get("/livez")
        api.get("/nothing")
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, logger="broker.serving"):
        api.get("/v1/streams", internal="true")
        api.get("/livez")  # the line of the one before is certainly written then
    line = caplog.records[0].getMessage()
    assert re.match(
        r"http\.request method=GET path=/v1/streams\?internal=true operation=list_streams status=200 remote=\S+ "
        r"elapsed_ms=[0-9.]+$",
        line,
    )


def test_requests_and_refusals_are_counted(api: Api) -> None:
    api.create("orders")
    api.append("orders", values(10))
    api.append("orders", b"junk")
    api.read("orders")
    text = api.get("/metrics").body.decode()
    for line in (
        'liftlog_http_requests_total{operation="create_stream",status="201"} 1.0',
        'liftlog_http_requests_total{operation="append_records",status="400"} 1.0',
        'liftlog_http_problems_total{reason="invalid_records"} 1.0',
        "liftlog_http_records_posted_total 10.0",
        "liftlog_up 1.0",
    ):
        assert line in text


def test_no_answer_tells_what_software_serves(api: Api) -> None:
    for path in ("/livez", "/nothing", "/v1/streams/nothing"):
        assert api.get(path).headers["Server"] == "liftlog"
