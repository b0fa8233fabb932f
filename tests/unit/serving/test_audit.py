"""Who did what, and who was refused: what stands in `__audit`. A matrix over the table of endpoints, and each rule.

Method: a real server whose audit is a real log. After each answer the log is read: what has to be there is there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.api import http as names
from broker.api.batch import decode_batch
from broker.api.errors import (
    CorruptLog,
    DiskFull,
    InvalidRequest,
    LiftlogError,
    NotLeader,
    NotReady,
    Overloaded,
    Unavailable,
)
from broker.api.principals import new_token, shown
from broker.api.stream import AUDIT_STREAM
from broker.cli.main import app
from broker.client import connect
from broker.serving.contract.acts import SETTINGS, Act, told_of
from broker.serving.contract.backend import AuditRecord
from broker.serving.contract.endpoint import Endpoint
from broker.serving.contract.openapi import document
from broker.serving.contract.schemas import AUDIT_LENGTH_MAX
from broker.serving.http import audit, callers, trail
from broker.serving.http.allowance import Rate
from broker.serving.http.app import ENDPOINTS
from broker.serving.http.audit import FAILED_LENGTH_MAX, NAME_LENGTH_MAX, TOLD_LENGTH_MAX, Allowances, stranger_at
from broker.serving.http.callers import CallerLimits
from broker.serving.http.trail import PENDING_MAX
from tests.support.messages import split_messages
from tests.support.processes import eventually
from tests.unit.serving.server import Server
from tests.unit.serving.test_access import ADMIN, OWN, Enforced, bodies, enforcing, of, proven

ACTS = [each for each in ENDPOINTS if each.act is not None]
CONTRACT = document(ENDPOINTS)


def records(server: Server) -> list[dict[str, Any]]:
    """All that is in the audit, oldest first."""
    log = server.backend.partition(AUDIT_STREAM, 0).log
    rows = [row for message in log.reader.batches(0) for row in decode_batch(message).to_pylist()]
    assert all(row["key"].decode() == (json.loads(row["value"])["principal"] or "") for row in rows)
    return [json.loads(row["value"]) for row in rows]


def acts(server: Server) -> list[dict[str, Any]]:
    return [each for each in records(server) if each["kind"] == "act"]


@pytest.fixture(scope="module")
def enforced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Enforced]:
    with enforcing(tmp_path_factory.mktemp("audited")) as made:
        yield made


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=of)
def test_an_endpoint_says_whether_it_is_an_act(endpoint: Endpoint) -> None:
    """E4, T1."""
    fields = {name: getattr(endpoint, name) for name in endpoint.__slots__}
    del fields["act"]
    with pytest.raises(TypeError, match="act"):
        Endpoint(**fields)
    for bad in (True, "act", ()):
        with pytest.raises(AssertionError, match="E4"):
            Endpoint(**fields, act=bad)
    operation = CONTRACT["paths"][endpoint.path][endpoint.method.lower()]
    assert operation["x-audited"] is (endpoint.act is not None)


def test_who_may_change_what_others_have_is_audited() -> None:
    """By what an endpoint needs: the rest is what clients do all day, or changes nothing."""
    needed = {each.operation: {need.action for need in each.permission} for each in ENDPOINTS}
    of_admins = {"stream:create", "stream:admin", "sink:admin", "cluster:operate", "cluster:admin", "auth:admin"}
    found = {name for name, actions in needed.items() if actions & of_admins}
    reading = {each.operation for each in ENDPOINTS if each.method == "GET"} | {"test_access"}
    deleting = {each.operation for each in ENDPOINTS if each.method == "DELETE"}
    assert {each.operation for each in ACTS} == (found - reading) | deleting | {
        "reset_consumer",
        "reset_group",
        "raise_fence",
    }


@pytest.mark.parametrize("endpoint", ACTS, ids=of)
def test_what_is_told_of_a_body_is_in_it_and_no_secret(endpoint: Endpoint) -> None:
    """T2."""
    assert endpoint.act is not None
    told = set(endpoint.act.told)
    if endpoint.request is None:
        assert not told
        return
    (schema,) = endpoint.request.media.values()
    assert schema is not None
    properties = CONTRACT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
    assert told <= set(properties) | set(SETTINGS)
    assert not told & {"sha256", "token", "value", "text", "metadata"}
    assert told_of(endpoint.act, {**dict.fromkeys(told, 1), "more": 2}) == dict.fromkeys(told, 1)
    assert told_of(endpoint.act, ["x"]) == {}


@pytest.mark.parametrize("endpoint", ACTS, ids=of)
@pytest.mark.parametrize("name", [OWN, "nowhere"])
def test_an_act_leaves_one_record_before_it_is_answered(enforced: Enforced, endpoint: Endpoint, name: str) -> None:
    """U1, U2."""
    enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
    enforced.call("POST", f"/v1/sinks/{OWN}/open", ADMIN, body={"owner": "me"})
    before = len(records(enforced.server))
    status, reason, said = enforced.ask(endpoint, name, ADMIN)
    (record,) = records(enforced.server)[before:]
    result = "done" if status < 300 else "failed"
    assert (record["result"], record["status"], record["reason"] or "") == (result, status, reason), said
    assert (record["kind"], record["operation"], record["count"]) == ("act", endpoint.operation, 1)
    assert (record["principal"], record["how"]) == ("admin", "token")
    assert (record["address"], record["broker"]) == ("127.0.0.1", "broker-0")
    assert name in record["resource"].values() or not {"stream", "sink", "consumer", "producer"} & set(
        record["resource"]
    )
    body = bodies(name).get(endpoint.operation, {})
    told = {key: value for key, value in body.items() if key in (endpoint.act or Act()).told}
    assert {key: value for key, value in record["asked"].items() if isinstance(body.get(key), str)} == {
        key: value for key, value in told.items() if isinstance(value, str)
    }
    assert set(record["asked"]) == set(told)


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.act is None], ids=of)
def test_what_clients_do_all_day_leaves_none(enforced: Enforced, endpoint: Endpoint) -> None:
    before = len(acts(enforced.server))
    enforced.ask(endpoint, OWN, ADMIN)
    assert len(acts(enforced.server)) == before


def test_acts_are_recorded_in_every_mode_and_by_whom_as_far_as_he_shows_it(tmp_path: Path) -> None:
    for mode in ("off", "permissive"):
        with enforcing(tmp_path / mode, mode) as made:
            ana = made.grant("user:ana")
            assert made.call("POST", "/v1/streams", body={"name": "a"})[0] == 201
            assert made.call("POST", "/v1/streams", ana, body={"name": "b"})[0] == 201
            assert made.call("POST", "/v1/streams", new_token(), body={"name": "c"})[0] == 201
            assert made.call("POST", "/v1/streams", ADMIN, body={"name": "d", "no_such": 1})[0] == 400
            found = [(each["asked"]["name"], each["principal"], each["how"]) for each in acts(made.server)]
            assert found == [
                ("a", "anonymous", "nothing"),
                ("b", "user:ana", "token"),
                ("c", "anonymous", "nothing"),
                ("d", "admin", "token"),
            ]
            assert acts(made.server)[1]["token"] == ana.id
            assert acts(made.server)[3]["reason"] == "unknown_setting"


def test_a_broker_that_is_told_to_records_nothing(tmp_path: Path) -> None:
    with enforcing(tmp_path) as made:
        made.server.serving.audit.is_on = False
        assert made.call("POST", "/v1/streams", ADMIN, body={"name": "a"})[0] == 201
        assert made.call("DELETE", "/v1/streams/a")[0] == 403
        assert records(made.server) == []
        assert refusals(made) == 1, "it is counted"


def refusals(made: Enforced, principal: str = "anonymous", reason: str = "unauthorized") -> float:
    return counted(made, f'liftlog_http_refusals_total{{principal="{principal}",reason="{reason}"}}')


def counted(made: Enforced, name: str) -> float:
    text = made.call("GET", "/metrics", ADMIN)[2].decode()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


def outcome(made: Enforced, which: str) -> float:
    return counted(made, f'liftlog_audit_records_total{{outcome="{which}"}}')


def test_refusals_are_recorded_with_what_was_missing_and_are_no_acts(tmp_path: Path) -> None:
    with enforcing(tmp_path) as made:
        ana = made.grant("user:ana", ("stream:create", "a*"), ("subject:capture", "a"))
        assert made.call("DELETE", "/v1/streams/orders", ana)[1] == "unauthorized"
        assert made.call("GET", "/v1/streams/orders", ana)[1] == "unauthorized"
        assert made.call("POST", "/v1/streams", ana, body={"name": "orders"})[1] == "unauthorized"
        assert made.call("GET", "/v1/streams/orders", "llg_abcdefghijkl_" + "f" * 64)[1] == "unauthenticated"
        eventually(lambda: len(records(made.server)) == 4)
        first, second, third, unknown = records(made.server)
        assert {each["kind"] for each in records(made.server)} == {"refusal"}
        assert (first["principal"], first["token"], first["operation"]) == ("user:ana", ana.id, "delete_stream")
        assert first["asked"] == {"needs": "stream:admin", "name": "orders"}
        assert (first["result"], first["reason"], first["status"]) == ("refused", "unauthorized", 403)
        assert second["operation"] == "describe_stream"
        assert third["asked"] == {"needs": "stream:create", "name": "orders"}
        assert (unknown["principal"], unknown["reason"]) == ("anonymous", "unauthenticated")
        assert refusals(made, "user:ana") == 3
        assert refusals(made, "anonymous", "unauthenticated") == 1


def test_the_audit_says_what_did_not_hold_and_the_answer_does_not(tmp_path: Path) -> None:
    """A5. Nor does either have what was shown."""
    with enforcing(tmp_path) as made:
        token, ended, revoked = made.grant("user:ana"), new_token(), made.grant("user:bob")
        made.server.backend._execute({"kind": "drop_token", "token_id": revoked.id, "by": "user:ops"})
        forged = f"{revoked.text[:20]}{new_token().text[20:]}"
        of = {"token_id": ended.id, "sha256": ended.sha256, "principal": "user:ana", "by": "user:ops"}
        made.server.backend._execute({"kind": "put_token", **of, "expires_ms": 1, "at_ms": 1})
        shown = {
            f"Bearer {new_token().text}": "is not known: it is forged, or has expired or was revoked long ago",
            f"Bearer {revoked.text}": f"token {revoked.id} was revoked",
            f"Bearer {forged}": "is not known: it is forged, or has expired or was revoked long ago",
            f"Bearer {token.text[:-1]}": "is no token of this kind",
            f"Bearer {ended.text}": f"token {ended.id} of user:ana has expired",
            f"Basic {token.text}": "is no bearer token",
        }
        for value in shown:
            said = made.call("GET", "/v1/streams", headers={"Authorization": value})[2]
            assert (said["detail"], set(said)) == ("unauthenticated", {"type", "title", "status", "detail", "reason"})
        eventually(lambda: len(records(made.server)) == len(shown))
        for record, why in zip(records(made.server), shown.values(), strict=True):
            assert record["asked"]["why"].endswith(why)
            assert token.text[5:] not in json.dumps(record)


def test_a_stranger_fills_nothing_and_is_counted(tmp_path: Path) -> None:
    """U4."""
    with enforcing(tmp_path) as made:
        for _ in range(50):
            assert made.call("DELETE", "/v1/streams/orders")[0] == 403
        for number in range(150):
            assert made.call("DELETE", f"/v1/streams/no{number}", ADMIN)[0] == 404
        assert made.call("POST", "/v1/streams", ADMIN, body={"name": "a"})[0] == 201, "what is done is recorded always"
        made.server.loop.call_soon_threadsafe(made.server.serving.audit.summarise)
        eventually(lambda: sum(each["kind"] == "suppressed" for each in records(made.server)) == 2)
        found = records(made.server)
        refused = [each for each in found if each["result"] == "refused"]
        failed = [each for each in found if each["result"] == "failed"]
        assert sum(each["count"] for each in refused) == 50
        assert sum(each["count"] for each in failed) == 150
        assert len(refused) <= 15
        assert len(failed) <= 110
        assert [each["operation"] for each in found if each["result"] == "done"] == ["create_stream"]
        told = next(each for each in refused if each["kind"] == "suppressed")
        assert set(told["asked"]) == {"anonymous at 127.0.0.1"}
        assert outcome(made, "suppressed") >= 50 - 15 + 150 - 110


def test_who_acts_without_end_does_not_wash_out_what_others_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U8. Admins of the configuration go on, and everybody while nobody is told apart."""
    monkeypatch.setattr(callers, "REFUSED_S", 0.0)
    for mode in ("enforce", "off"):
        with enforcing(tmp_path / mode, mode, caller_limits=CallerLimits(audit_bytes_per_hour=3_000)) as made:
            ana = made.grant("user:ana", ("stream:admin", OWN), ("metrics", ""))
            assert made.call("POST", "/v1/streams", ADMIN, body={"name": OWN})[0] == 201
            trim, numbers = f"/v1/streams/{OWN}/trim", {"before": "latest", "partitions": [0] * 600}
            answers = [made.call("POST", trim, ana, body=numbers) for _ in range(3)]
            if mode == "off":
                assert [status for status, _, _ in answers] == [200] * 3
                continue
            assert [status for status, _, _ in answers] == [200, 200, 429]
            assert answers[2][2]["key"] == "limits.caller_audit_bytes_per_hour"
            assert [each["result"] for each in acts(made.server)[-3:]] == ["done", "done", "failed"]
            for _ in range(3):
                assert made.call("POST", trim, ADMIN, body=numbers)[0] == 200
            assert made.call("GET", "/metrics", ana)[0] == 200, "what is no act goes on"


def test_strangers_hide_nothing_that_others_do(tmp_path: Path) -> None:
    """U4: they come from many addresses, which a test cannot make up; of IPv6 a network is one."""
    with enforcing(tmp_path) as made:
        ana = made.grant("user:ana", ("stream:read", "nothing"))
        before, owner = len(records(made.server)), made.server.serving.audit
        for number in range(300):
            owner._refusals.admitted(stranger_at(f"2001:db8:{number % 100:x}::{number:x}"), True)
        assert made.call("DELETE", "/v1/streams/orders", ana)[0] == 403
        eventually(lambda: len(records(made.server)) > before)
        assert [(each["principal"], each["result"]) for each in records(made.server)[before:]] == [
            ("user:ana", "refused")
        ]
        assert stranger_at("2001:db8:1::ffff") == "anonymous at 2001:db8:1::/64"


def test_refusals_are_counted_by_so_many_principals(tmp_path: Path) -> None:
    with enforcing(tmp_path) as made:
        meters = made.server.serving.meters
        for number in range(100):
            meters.refused(f"user:u{number}", "unauthorized")
        meters.refused("user:u1", "unauthorized")
        assert (refusals(made, "user:u1"), refusals(made, "other"), refusals(made, "user:u99")) == (2, 36, 0)


def test_no_secret_gets_there(tmp_path: Path) -> None:
    """U5: where a caller puts one in the wrong place, too."""
    with enforcing(tmp_path) as made:
        token, other = made.grant("user:ana", ("stream:admin", "*")), new_token()
        made.call("DELETE", f"/v1/auth/tokens/{other.text}", ADMIN)
        made.call("DELETE", f"/v1/streams/{token.text}", token)
        made.call("POST", "/v1/streams", ADMIN, body={"name": other.text, "payload_schema": f"a{token.text} INT"})
        taken = {"id": other.id, "sha256": other.sha256, "principal": "user:bob", "expires_ms": 1}
        made.call("POST", "/v1/auth/tokens", ADMIN, body=taken)
        made.call("GET", f"/v1/streams/{token.text}")
        eventually(lambda: len(records(made.server)) == 5)
        text = json.dumps(records(made.server))
        assert other.id in text
        for secret in (token.text, other.text, other.sha256, token.text.rpartition("_")[2], ADMIN.text):
            assert secret not in text
        assert shown("llg_x llg_ LLG_abcdefghijkl_0f say") == "llg_… llg_… llg_abcdefghijkl… say"


def test_a_record_has_a_greatest_length(tmp_path: Path) -> None:
    with enforcing(tmp_path) as made:
        for length in (20_000, 900):
            long = {"stream": "\x01" * length, "replicas": ["\x02" * length], "partition": 0}
            assert made.call("POST", "/v1/cluster/reassign", ADMIN, body=long)[0] == 400
            record = acts(made.server)[-1]
            assert len(json.dumps(record["asked"])) <= FAILED_LENGTH_MAX
            assert set(record["asked"]) == set(long)
            assert all(len(each) <= NAME_LENGTH_MAX for each in record["asked"].values())
        grants = [{"action": "stream:read", "name": f"{number}{'x' * 30}"} for number in range(200)]
        assert made.call("POST", "/v1/auth/grants", ADMIN, body={"principal": "user:a", "add": grants})[0] == 200
        assert json.loads(acts(made.server)[-1]["asked"]["add"]) == grants, "an auditor sees all of them"


def test_nothing_is_hidden_behind_what_is_cut(tmp_path: Path) -> None:
    """U7: a grant behind so many others that the record of it would be cut is refused."""
    with enforcing(tmp_path) as made:
        hiding = [{"action": "stream:read", "name": f"{number:x<500}"} for number in range(200)]
        asked = {"principal": "user:ana", "add": [*hiding, {"action": "auth:admin"}]}
        status, reason, said = made.call("POST", "/v1/auth/grants", ADMIN, body=asked)
        assert (status, reason, said["limit"]) == (400, "invalid_request", TOLD_LENGTH_MAX)
        assert "user:ana" not in made.server.backend.access.grants
        assert [each["result"] for each in acts(made.server)] == ["failed"]
        for at in range(0, len(asked["add"]), 50):
            part = asked["add"][at : at + 50]
            assert made.call("POST", "/v1/auth/grants", ADMIN, body={**asked, "add": part})[0] == 200
        assert "auth:admin" in acts(made.server)[-1]["asked"]["add"]
        numbers = {"before": "latest", "partitions": list(range(10_000))}
        headers = proven("POST", f"/v1/streams/{OWN}/trim", made.server.port, behalf="admin")
        assert made.call("POST", f"/v1/streams/{OWN}/trim", body=numbers, headers=headers)[1] == "unknown_stream"
        assert made.call("POST", f"/v1/streams/{OWN}/trim", ADMIN, body=numbers)[1] == "unknown_stream"


def test_what_a_broker_asks_for_somebody_is_recorded_by_that_broker(tmp_path: Path) -> None:
    """U1: a header makes nobody a broker."""
    for mode in ("off", "permissive", "enforce"):
        with enforcing(tmp_path / mode, mode) as made:
            assert made.call("POST", "/v1/streams", ADMIN, body={"name": OWN})[0] == 201
            trim, before = f"/v1/streams/{OWN}/trim", {"before": "latest"}
            headers = proven("POST", trim, made.server.port, behalf="admin")
            assert made.call("POST", trim, body=before, headers=headers)[0] == 200
            assert len(acts(made.server)) == 1
            asked_by = {names.ASKED_BY: "broker-0"}
            assert made.call("POST", trim, ADMIN, body=before, headers=asked_by)[0] == 200
            assert len(acts(made.server)) == 2
            if mode != "enforce":
                forged = {**headers, names.PROOF: f"broker-0 1 {'0' * 64}"}
                assert made.call("POST", trim, body=before, headers=forged)[0] == 200
                assert acts(made.server)[2]["principal"] == "anonymous"


def test_nobody_writes_it_or_takes_it_away(tmp_path: Path) -> None:
    """G2: neither an admin, nor whoever may do everything because nothing is judged."""
    for mode in ("off", "enforce"):
        with enforcing(tmp_path / mode, mode) as made:
            for endpoint in ENDPOINTS:
                if "{stream}" in endpoint.path and endpoint.method != "GET" and endpoint.operation != "ask_stages":
                    status, reason, _ = made.ask(endpoint, AUDIT_STREAM, ADMIN)
                    assert status >= 400, endpoint.operation
                    assert reason == ("read_only" if endpoint.operation != "stage_records" else reason), (
                        endpoint.operation
                    )
            assert made.call("POST", "/v1/streams", ADMIN, body={"name": AUDIT_STREAM})[1] == "invalid_name"
            told = {"records": [{"id": "0" * 32, "key": "admin", "value": "{}"}]}
            asked_by = {names.ASKED_BY: "broker-0"}
            for token in (None, ADMIN):
                for headers in ({}, asked_by):
                    status = made.call("POST", trail.PATH, token, body=told, headers=headers)[0]
                    assert status == 403
            assert all(each["principal"] for each in records(made.server) if each["kind"] == "act")
            headers = proven("POST", trail.PATH, made.server.port)
            for _ in range(2):
                assert made.call("POST", trail.PATH, body=real(), headers=headers)[0] == 204
            assert sum("id" not in each for each in records(made.server)) == 1, "an id is taken once"


def real() -> dict[str, Any]:
    return {"records": [{"id": "1" * 32, "key": "admin", "value": '{"principal": "admin", "kind": "act"}'}]}


def test_whoever_may_read_it_reads_it_and_a_star_does_not_cover_it(tmp_path: Path) -> None:
    with enforcing(tmp_path) as made:
        made.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        path = f"/v1/streams/{AUDIT_STREAM}/partitions/0/records"
        assert made.call("GET", path, made.grant("user:all", ("stream:read", "*")))[0] == 403
        reader = made.grant("user:auditor", ("stream:read", AUDIT_STREAM))
        status, _, stored = made.call("GET", path, reader)
        assert status == 200
        rows = [row for message in split_messages(stored) for row in decode_batch(message).to_pylist()]
        assert next(json.loads(row["value"])["operation"] for row in rows) == "create_stream"
        assert {row["subject"] for row in rows} == {AUDIT_STREAM}


def test_it_is_read_as_columns_and_from_the_command_line(tmp_path: Path) -> None:
    with enforcing(tmp_path, "off") as made:
        made.call("POST", "/v1/streams", body={"name": OWN, "partitions": 2})
        made.call("DELETE", f"/v1/streams/{OWN}")
        address = f"127.0.0.1:{made.server.port}"
        with connect(address) as client:
            asked = ["at", "principal", "operation", "resource", "asked", "status", "_corrupt"]
            table = client.read(AUDIT_STREAM, payload="json", columns=asked).to_table()
        created, deleted = table.to_pylist()
        assert (created["operation"], created["status"], created["_corrupt"]) == ("create_stream", 201, None)
        assert dict(created["asked"]) == {"name": OWN, "partitions": "2"}
        assert dict(deleted["resource"]) == {"stream": OWN}
        assert created["at"] <= deleted["at"]
        told = CliRunner().invoke(app, ["tail", AUDIT_STREAM, "--brokers", address])
        assert told.exit_code == 0, told.output
        assert told.output.count("stream") >= 2
        listed = CliRunner().invoke(app, ["stream", "list", "--internal", "--brokers", address])
        assert AUDIT_STREAM in listed.output


class Stuck:
    """An audit that cannot be written, until `error` is None."""

    def __init__(self, server: Server, error: Exception | None) -> None:
        self.error = error
        self.real = server.backend.audit
        self.tries = 0
        server.backend.audit = self  # type: ignore[assignment]

    async def append(self, told: Sequence[AuditRecord]) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        await self.real.append(told)


@pytest.mark.parametrize(
    "error",
    [DiskFull("no room"), NotReady("not made", made=False), NotLeader("nobody"), RuntimeError("a fault")],
    ids=lambda each: type(each).__name__,
)
def test_what_cannot_be_written_keeps_nobody_from_acting_and_is_said_loudly(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U3, L2."""
    caplog.set_level(logging.INFO)
    with enforcing(tmp_path) as made:
        assert made.call("POST", "/v1/streams", ADMIN, body={"name": OWN})[0] == 201
        stuck = Stuck(made.server, error)
        monkeypatch.setattr(audit, "WAIT_S", 0.05)
        monkeypatch.setattr(audit, "LEAST_WAIT_S", 0.05)
        assert made.call("DELETE", f"/v1/streams/{OWN}", ADMIN)[0] == 204
        assert made.call("POST", "/v1/streams", ADMIN, body={"name": "next"})[0] == 201
        late = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
        assert sum("audit.late" in each and "delete_stream" in each and OWN in each for each in late) == 1
        assert outcome(made, "late") == 2
        assert len(acts(made.server)) == 1
        stuck.error = None
        eventually(lambda: len(acts(made.server)) == 3)
        assert [each["operation"] for each in acts(made.server)] == ["create_stream", "delete_stream", "create_stream"]
        eventually(lambda: "audit.caught_up" in caplog.text)
        monkeypatch.setattr(audit, "LEAST_WAIT_S", 30.0)
        assert made.call("DELETE", "/v1/streams/next", ADMIN)[0] == 204
        assert (outcome(made, "written"), outcome(made, "late"), outcome(made, "lost")) == (4, 2, 0)


def test_a_change_of_leaders_is_waited_for(tmp_path: Path) -> None:
    with enforcing(tmp_path) as made:
        stuck = Stuck(made.server, NotLeader("nobody leads"))

        def lead() -> None:
            stuck.error = None

        made.server.loop.call_soon_threadsafe(made.server.loop.call_later, 0.2, lead)
        assert made.call("POST", "/v1/streams", ADMIN, body={"name": OWN})[0] == 201
        assert len(acts(made.server)) == 1
        assert stuck.tries > 1


def test_another_broker_leads_it(tmp_path: Path) -> None:
    """Told over HTTP with a proof. Its answer is lost once: the record is there once."""
    with enforcing(tmp_path / "a") as asked, enforcing(tmp_path / "b", "off") as leading:
        there = leading.server
        elsewhere = NotLeader("elsewhere", leader={"id": "broker-0", "http": f"127.0.0.1:{there.port}"})
        Stuck(asked.server, elsewhere)
        peers, losses = asked.server.serving.peers, iter([True])
        real_ask = peers.ask

        async def ask(*args: Any, **more: Any) -> Any:
            said = await real_ask(*args, **more)
            if next(losses, False):
                raise NotLeader("its answer is lost", sent=True)
            return said

        peers.ask = ask  # type: ignore[method-assign]
        assert asked.call("POST", "/v1/streams", ADMIN, body={"name": OWN})[0] == 201
        assert records(asked.server) == []
        (record,) = records(there)
        assert (record["operation"], record["principal"], record["asked"]) == ("create_stream", "admin", {"name": OWN})


def test_however_much_the_records_say_their_leader_takes_them(tmp_path: Path) -> None:
    """L5: text in JSON in text in JSON. Another one that it does not take is lost alone."""
    with enforcing(tmp_path / "a") as asked, enforcing(tmp_path / "b", "off") as leading:
        there = leading.server
        elsewhere = NotLeader("elsewhere", leader={"id": "broker-0", "http": f"127.0.0.1:{there.port}"})
        Stuck(asked.server, elsewhere)
        written, value = asked.server.serving.audit.trail, json.dumps({"principal": "", "asked": '"' * 60_000})

        async def put() -> list[Any]:
            said = [value] * 18 + ["x" * (AUDIT_LENGTH_MAX + 1), "{}"]
            told = [written.put(AuditRecord(f"{n:032x}", "", each)) for n, each in enumerate(said)]
            return await asyncio.wait_for(asyncio.gather(*told, return_exceptions=True), 20)

        told = asked.server.call(put())
        assert [n for n, each in enumerate(told) if each is not None] == [18]
        assert isinstance(told[18], InvalidRequest)
        assert there.backend.partition(AUDIT_STREAM, 0).log.state.high_watermark == 19
        assert outcome(asked, "lost") == 1


def test_a_broker_that_has_just_lost_the_leadership_names_its_heir_by_address(tmp_path: Path) -> None:
    """As `partition.P12` does."""
    with enforcing(tmp_path / "a") as asked, enforcing(tmp_path / "b", "off") as leading:
        Stuck(asked.server, NotLeader("it is over", leader=f"127.0.0.1:{leading.server.port}"))
        assert asked.call("POST", "/v1/streams", ADMIN, body={"name": OWN})[0] == 201
        assert [each["operation"] for each in records(leading.server)] == ["create_stream"]


def test_a_leader_whose_disk_hangs_keeps_no_record_from_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: what hangs at this broker goes to whoever leads now."""
    monkeypatch.setattr(trail, "ASK_S", 0.2)
    with enforcing(tmp_path / "a") as asked, enforcing(tmp_path / "b", "off") as leading:
        elsewhere = NotLeader("it is over", leader=f"127.0.0.1:{leading.server.port}")
        stuck = Stuck(asked.server, None)

        async def append(told: Sequence[AuditRecord]) -> None:
            stuck.tries += 1
            if stuck.tries > 1:
                raise elsewhere
            await asyncio.sleep(60)

        monkeypatch.setattr(stuck, "append", append)
        assert asked.call("POST", "/v1/streams", ADMIN, body={"name": OWN})[0] == 201
        assert [each["operation"] for each in records(leading.server)] == ["create_stream"]


def test_who_goes_before_he_is_let_in_has_done_nothing_and_fills_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U4, U6: a stranger waits for the catalog before he is refused, and does not."""
    with enforcing(tmp_path) as made:
        asked = 0

        async def catch_up() -> None:
            nonlocal asked
            asked += 1
            await asyncio.sleep(30)

        monkeypatch.setattr(made.server.serving.gate, "catch_up", catch_up)
        made.server.serving.audit._failures = Allowances((Rate(5, 60.0), Rate(10, 60.0)))
        for number in range(12):
            with socket.create_connection(("127.0.0.1", made.server.port)) as client:
                client.sendall(b"DELETE /v1/streams/orders HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                eventually(lambda number=number: asked > number)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        eventually(lambda: not busy(made))
        found = acts(made.server)
        assert {(each["result"], each["reason"]) for each in found} == {("failed", "gone")}
        assert len(found) == 5
        assert outcome(made, "suppressed") == 7


def busy(made: Enforced) -> bool:
    return counted(made, "liftlog_http_requests_in_flight") > 1


def test_the_queue_is_bounded_and_what_is_lost_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """L4."""
    with enforcing(tmp_path) as made:
        Stuck(made.server, DiskFull("no room"))
        written = made.server.serving.audit.trail

        async def put(count: int, *, is_act: bool = True) -> int:
            made = [AuditRecord(f"{number:032x}", "", "{}") for number in range(count)]
            told = [written.put(each, is_act=is_act) for each in made]
            await asyncio.sleep(0)
            return sum(isinstance(each.done() and each.exception(), Overloaded) for each in told)

        assert made.server.call(put(PENDING_MAX // 2, is_act=False)) == 0
        assert made.server.call(put(3, is_act=False)) == 3
        assert made.server.call(put(PENDING_MAX // 2)) == 0
        assert made.server.call(put(3)) == 3
        assert caplog.text.count("audit.lost") == 6
        assert outcome(made, "lost") == 6


def test_what_is_queued_at_the_end_is_written_or_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "LAST_TRY_S", 0.1)
    monkeypatch.setattr(audit, "LEAST_WAIT_S", 0.01)
    with enforcing(tmp_path) as made:
        Stuck(made.server, DiskFull("no room"))
        assert made.call("POST", "/v1/streams", ADMIN, body={"name": OWN})[0] == 201
    assert caplog.text.count("audit.lost") == 1


@pytest.mark.slow
@pytest.mark.long  # it waits until the time of an answer is up
def test_what_is_broken_off_is_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """U6: its client goes, or its time is up."""
    with enforcing(tmp_path) as made:
        backend, began, go_on = made.server.backend, asyncio.Event(), asyncio.Event()
        for name in ("a", "b", "c"):
            made.call("POST", "/v1/streams", ADMIN, body={"name": name})
        real_delete = backend.delete_stream

        async def delete(name: str) -> None:
            began.set()
            if name == "c":
                raise NotReady("it may be done", sent=True)
            await go_on.wait()
            await real_delete(name)

        monkeypatch.setattr(backend, "delete_stream", delete)
        with socket.create_connection(("127.0.0.1", made.server.port)) as client:
            bearer = f"Authorization: Bearer {ADMIN.text}"
            client.sendall(f"DELETE /v1/streams/a HTTP/1.1\r\nHost: 127.0.0.1\r\n{bearer}\r\n\r\n".encode())
            eventually(began.is_set)
        eventually(lambda: len(acts(made.server)) == 4)
        assert made.call("DELETE", "/v1/streams/b?timeout_ms=50", ADMIN)[0] == 504
        assert made.call("DELETE", "/v1/streams/c", ADMIN)[0] == 503
        found = [(each["resource"]["stream"], each["result"], each["reason"]) for each in acts(made.server)[3:]]
        assert found == [
            ("a", "in_doubt", "gone"),
            ("b", "in_doubt", "deadline_exceeded"),
            ("c", "in_doubt", "not_ready"),
        ]
        made.server.loop.call_soon_threadsafe(go_on.set)


@pytest.mark.parametrize("error", [LiftlogError("a fault there"), CorruptLog("a fault here")], ids=["internal", "log"])
def test_what_a_fault_ended_is_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: LiftlogError) -> None:
    """U6: another broker has it in doubt, and so has its client."""
    with enforcing(tmp_path) as made:
        made.call("POST", "/v1/streams", ADMIN, body={"name": OWN})

        async def delete(name: str) -> None:
            raise error

        monkeypatch.setattr(made.server.backend, "delete_stream", delete)
        assert made.call("DELETE", f"/v1/streams/{OWN}", ADMIN)[:2] == (500, error.reason)
        assert [(each["result"], each["reason"]) for each in acts(made.server)[1:]] == [("in_doubt", error.reason)]


def test_what_fails_behind_an_act_leaves_it_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """U6: it is made, and its client must not be told that it is not."""
    with enforcing(tmp_path) as made:

        async def position() -> int:
            raise NotReady("this broker is stopping")

        monkeypatch.setattr(made.server.backend, "position", position)
        status, reason, said = made.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        assert (status, reason, said["sent"]) == (503, "not_ready", True)
        assert [(each["result"], each["reason"]) for each in acts(made.server)] == [("in_doubt", "not_ready")]
        assert made.call("DELETE", "/v1/streams/nowhere", ADMIN)[2].get("sent") is None, "of another request"


def test_a_broker_that_is_refused_itself_refuses_no_client(tmp_path: Path) -> None:
    """E6: the audit would say that the client was."""
    with enforcing(tmp_path / "a") as asks, enforcing(tmp_path / "b") as refuses:
        peers, there = asks.server.serving.peers, f"127.0.0.1:{refuses.server.port}"
        peers._key = b"another secret"
        with pytest.raises(Unavailable) as error:
            asks.server.call(peers.ask(there, "GET", "/v1/cluster/replicas", timeout_s=60))
        assert error.value.fields["sent"] is False
        with pytest.raises(Unavailable, match="refuses this broker: unauthenticated") as error:
            asks.server.call(peers.ask(there, "DELETE", "/v1/streams/s", behalf="user:ana", timeout_s=60))
        assert error.value.fields["sent"] is False, "for somebody, too: it was not believed that a broker asks"
        peers._key = refuses.server.serving.peers._key
        with pytest.raises(LiftlogError) as refused:
            asks.server.call(peers.ask(there, "DELETE", "/v1/streams/s", behalf="user:ana", timeout_s=60))
        assert not isinstance(refused.value, Unavailable), refused.value


def test_a_right_that_is_taken_back_amid_an_act_leaves_it_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with enforcing(tmp_path) as made:
        made.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        ana = made.grant("user:ana", ("stream:admin", OWN))

        async def delete(name: str) -> None:
            made.server.backend._execute({"kind": "drop_token", "token_id": ana.id, "by": "admin"})
            await asyncio.sleep(30)

        monkeypatch.setattr(made.server.backend, "delete_stream", delete)
        status, reason, said = made.call("DELETE", f"/v1/streams/{OWN}", ana)
        assert (status, reason, said.get("sent")) == (401, "unauthenticated", True), "its client is told the same"
        (record,) = [each for each in records(made.server) if each["principal"] == "user:ana"]
        assert (record["kind"], record["result"], record["reason"]) == ("act", "in_doubt", "unauthenticated")


def test_a_right_that_is_taken_back_before_a_change_is_begun_leaves_nothing_in_doubt(tmp_path: Path) -> None:
    """It was waiting for its body."""
    with enforcing(tmp_path) as made:
        made.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        ana = made.grant("user:ana", ("stream:admin", OWN))
        head = f"POST /v1/streams/{OWN}/trim HTTP/1.1\r\nHost: [::1]\r\nAuthorization: Bearer {ana.text}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        with socket.create_connection(("127.0.0.1", made.server.port), 60) as client:
            client.sendall(head.encode())
            eventually(lambda: made.server.serving.gate._under_way, what="its request")
            drop = {"kind": "drop_token", "token_id": ana.id, "by": "admin"}
            made.server.loop.call_soon_threadsafe(made.server.backend._execute, drop)
            answer = client.recv(10_000)
        assert b" 401 " in answer
        assert b'"sent"' not in answer

        def found() -> list[tuple[str, str]]:
            of_ana = [each for each in records(made.server) if each["principal"] == "user:ana"]
            return [(each["kind"], each["result"]) for each in of_ana]

        eventually(lambda: found() == [("refusal", "refused")], what="its record")


def test_brokers_are_heard_while_callers_have_all_memory_for_bodies(tmp_path: Path) -> None:
    """B8. Slow bodies of two callers at the leader of `__audit` kept the records of the other brokers out."""
    with enforcing(tmp_path / "a") as asks, enforcing(tmp_path / "b") as leads:
        budget, there = leads.server.serving.json_budget, f"127.0.0.1:{leads.server.port}"
        budget.take(budget.bytes_max)
        record = AuditRecord("1" * 32, "user:ana", '{"principal": "user:ana"}').as_json()
        asks.server.call(asks.server.serving.peers.ask(there, "POST", "/v1/audit", body={"records": [record]}))
        ana = leads.grant("user:ana", ("consumer:write", OWN), ("stream:read", OWN))
        told = leads.call("POST", f"/v1/consumers/{OWN}/offsets", ana, body={"offsets": []})
        assert told[:2] == (429, "overloaded")
        assert leads.call("POST", "/v1/streams", ADMIN, body={"name": OWN})[0] == 201, "who can mend it"
        budget.give_back(budget.bytes_max)
        assert {"principal": "user:ana"} in records(leads.server), "the one that was told"


def test_what_was_begun_is_in_the_log_before_it_is_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U2: a broker may end between act and record."""
    caplog.set_level(logging.INFO)
    with enforcing(tmp_path) as made:
        made.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        seen: list[bool] = []

        async def delete(name: str) -> None:
            seen.append("audit.begun" in caplog.text and "operation=delete_stream principal=admin" in caplog.text)

        monkeypatch.setattr(made.server.backend, "delete_stream", delete)
        made.call("DELETE", f"/v1/streams/{OWN}", ADMIN)
        assert seen == [True]
        begun = [each.getMessage() for each in caplog.records if "operation=delete_stream" in each.getMessage()]
        assert acts(made.server)[1]["id"] in begun[0]


def test_what_a_client_polls_is_recorded_once_in_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with enforcing(tmp_path) as made:

        async def drain(broker: str, *, fewer_replicas: bool) -> Any:
            from broker.api.placements import Drained

            return Drained(broker=broker, moving=(), stuck=())

        monkeypatch.setattr(made.server.backend.admin, "drain", drain)
        for broker in ("b", "b", "c", "b"):
            assert made.call("POST", f"/v1/cluster/brokers/{broker}/drain", ADMIN, body={})[0] == 200
        assert [each["resource"]["broker"] for each in acts(made.server)] == ["b", "c"]
        monkeypatch.setattr(audit, "POLLED_S", 0.0)
        made.call("POST", "/v1/cluster/brokers/b/drain", ADMIN, body={})
        assert len(acts(made.server)) == 3
