"""Who may do what, in `enforce`: what callers show, what refusals tell, what calls do beside their path, and when it
ends. Every call by every kind of caller: `test_matrix.py`.
"""

from __future__ import annotations

import hmac
import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from broker.api import http as names
from broker.api.errors import InvalidRequest, LiftlogError, NotLeader, NotReady
from broker.api.permissions import BROKERS_ALONE, Need, Where
from broker.api.principals import Token, check_grant, digest_of, new_token
from broker.cli.main import app
from broker.config.certificates import Certificates
from broker.config.configuration import load
from broker.serving.contract.endpoint import Endpoint
from broker.serving.http import access
from broker.serving.http.access import AuthRules, peer_key, proof_of
from broker.serving.http.app import ENDPOINTS, SERVING
from tests.support.certificates import Issued
from tests.support.processes import eventually
from tests.unit.serving.arrow import stream_of, values
from tests.unit.serving.server import Server

OWN, SIBLING, OTHER = "own", "own2", "other"
KEY = peer_key(b"the secret of the cluster")
ADMIN = new_token()
STAGE = "0" * 32
REFUSED = ("unauthenticated", "unauthorized")


def bodies(name: str) -> dict[str, Any]:
    """A body for each call that takes one, which names this thing wherever a thing can be named."""
    at = {"stream": name, "partition": 0}
    return {
        "register_producer": {"name": name},
        "create_stream": {"name": name, "subject": name},
        "alter_stream": {"retention_ms": 1000},
        "set_stream_read_only": {"read_only": False},
        "add_partitions": {"partitions": 1},
        "trim_stream": {"before": "latest"},
        "resolve_offsets": {"positions": [{**at, "at": "latest"}]},
        "commit_offsets": {"offsets": [{**at, "offset": 0}]},
        "reset_consumer": {"stream": name, "to": "latest"},
        "place_pin": {"text": "x", "version": 0},
        "raise_fence": {"after": 0},
        "join_group": {"member": "m", "streams": [name]},
        "poll_group": {"session": 1},
        "leave_group": {"session": 1},
        "begin_partitions": {"member": "m", "partitions": [{**at, "epoch": 1}]},
        "commit_group": {"partitions": [{**at, "epoch": 1, "start": 0, "offset": 0, "incarnation": ""}]},
        "reset_group": {"stream": name, "to": "latest"},
        "open_sink": {"owner": "me"},
        "renew_owner": {"owner": "me"},
        "end_sink": {"owner": "me"},
        "commit_sink": {
            "owner": "me",
            "epoch": 1,
            "batch_id": 0,
            "rows": 0,
            "stages": [{**at, "stage": STAGE}],
        },
        "abort_stages": {"stages": [{**at, "stage": STAGE}]},
        "reset_sink": {"next_batch_id": 0},
        "adopt_sink": {"checkpoint": "x"},
        "check_sink": {"epoch": 1},
        "ask_silences": {"owners": []},
        "ask_stages": {"incarnation": "x", "act": "held", "what": {}},
        "reassign": {**at, "replicas": ["a"]},
        "elect_leaders": {},
        "accept_loss": {**at, "accept_loss": False},
        "drain_broker": {},
        "excuse_replicas": {"broker": "b"},
        "end_rescue": {"brokers": ["b"]},
        "put_token": {"id": "a" * 12, "sha256": "0" * 64, "principal": "user:new", "expires_ms": 1},
        "change_grants": {"principal": "user:new", "add": []},
        "test_access": {"principal": "user:new", "action": "metrics"},
    }


SINKS = ("job-1", "job-2", "job-3", "other")
QUERY = {
    "stage_records": {"sink": "{name}", "epoch": 1, "stage": STAGE, "part": 0},
    "stage_bundle": {"sink": "{name}", "epoch": 1, "head": 2},
    "append_bundle": {"head": 2},
}


class Enforced:
    """A server in `enforce`, and tokens of callers."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._tokens: dict[str, Token] = {}
        self._kept = threading.local()

    def grant(self, principal: str, *grants: tuple[str, str]) -> Token:
        """A token of a principal that is granted this and nothing else."""
        backend, by = self.server.backend, {"by": "user:ops"}
        known = backend.access.grants.get(principal, ())
        change = {
            "add": [list(each) for each in grants],
            "remove": [list(each) for each in known if each not in grants],
        }
        backend._execute({"kind": "put_grants", "principal": principal, **change, **by})
        if principal not in self._tokens:
            made = self._tokens[principal] = new_token()
            of = {"token_id": made.id, "sha256": made.sha256, "principal": principal}
            backend._execute({"kind": "put_token", **of, "expires_ms": 1 << 60, "at_ms": 1, **by})
        return self._tokens[principal]

    def _of_thread(self) -> http.client.HTTPConnection:
        """A connection that is kept: a new one for each call takes longer than the call."""
        found: http.client.HTTPConnection | None = getattr(self._kept, "connection", None)
        if found is None:
            found = self._kept.connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        return found

    def call(
        self,
        method: str,
        path: str,
        token: Token | str | None = None,
        *,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, str, Any]:
        """Status, reason code and body of the answer."""
        found = dict(headers or {})
        if token is not None:
            found["Authorization"] = f"Bearer {token.text if isinstance(token, Token) else token}"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None:
            found.setdefault("Content-Type", "application/json")
        connection = self._of_thread()
        try:
            connection.request(method, path, body=data, headers=found)
            answer = connection.getresponse()
            text = answer.read()
        except BaseException:
            connection.close()
            raise
        said = json.loads(text) if text and "json" in (answer.getheader("Content-Type") or "") else text
        reason = said.get("reason", "") if isinstance(said, dict) else ""
        return answer.status, reason, said

    def ask(self, endpoint: Endpoint, name: str, token: Token | str | None, **more: Any) -> tuple[int, str, Any]:
        """A request of a call that names this thing."""
        path, body, headers = request_for(endpoint, name)
        return self.call(endpoint.method, path, token, body=body, headers={**headers, **more.get("headers", {})})


def request_for(endpoint: Endpoint, name: str) -> tuple[str, Any, dict[str, str]]:
    """Target, body and headers of a call that names this thing."""
    path = endpoint.path.replace("{partition}", "0").replace("{broker}", "nobody").replace("{token}", "a" * 12)
    path = path.replace("{member}", "m")
    for parameter in ("stream", "consumer", "group", "pin", "producer", "sink"):
        path = path.replace(f"{{{parameter}}}", name)
    if query := QUERY.get(endpoint.operation):
        path += "?" + "&".join(f"{key}={quote(str(value).format(name=name))}" for key, value in query.items())
    if endpoint.request is None:
        return path, None, {}
    body = bodies(name).get(endpoint.operation)
    if body is not None:
        return path, body, {}
    return path, b"{}", {"Content-Type": next(iter(endpoint.request.media))}


@contextmanager
def enforcing(folder: Path, mode: str = "enforce", **rules: Any) -> Iterator[Enforced]:
    of_server = {name: rules.pop(name) for name in ("caller_limits", "limits") if name in rules}
    auth = AuthRules(mode=mode, admin_token=(ADMIN.id, ADMIN.sha256), peer_key=KEY, **rules)
    server = Server(folder, body_bytes_max=1 << 20, auth=auth, **of_server)
    try:
        yield Enforced(server)
    finally:
        server.api.close()
        server.close()


@pytest.fixture(scope="module")
def enforced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Enforced]:
    with enforcing(tmp_path_factory.mktemp("enforced")) as made:
        yield made


def granted(needs: tuple[Need, ...], name: str) -> list[tuple[str, str]]:
    """What the table says that a caller needs for this thing."""
    return [(n.action, "" if n.where is Where.NOWHERE else name) for n in needs if n.action not in BROKERS_ALONE]


def of(endpoint: Endpoint) -> str:
    return endpoint.operation


def is_list(endpoint: Endpoint) -> bool:
    """Its answer is cut to what the caller may see, and so is nobody's secret."""
    return all(need.where is Where.ANSWER for need in endpoint.permission)


JUDGED = [each for each in ENDPOINTS if each.permission and not is_list(each)]


@pytest.fixture(scope="module")
def peopled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Enforced]:
    """There is a stream, a producer, a sink, a consumer, a pin and a group of the name `other`."""
    with enforcing(tmp_path_factory.mktemp("peopled")) as made:
        for path, body in (
            ("/v1/streams", {"name": OTHER, "subject": OTHER}),
            ("/v1/producers", {"name": OTHER}),
            (f"/v1/sinks/{OTHER}/open", {"owner": "me"}),
            (f"/v1/consumers/{OTHER}/offsets", {"offsets": [{"stream": OTHER, "partition": 0, "offset": 0}]}),
            (f"/v1/pins/{OTHER}", {"text": "x", "version": 0}),
            (f"/v1/groups/{OTHER}/members", {"member": "m", "streams": [OTHER]}),
        ):
            assert made.call("POST", path, ADMIN, body=body)[0] < 300
        yield made


@pytest.mark.parametrize("endpoint", JUDGED, ids=of)
def test_a_refusal_does_not_tell_whether_the_thing_is_there(peopled: Enforced, endpoint: Endpoint) -> None:
    absent = "o" * len(OTHER)
    token = peopled.grant("user:own", *(grant for grant in granted(endpoint.permission, OWN) if grant[1]))
    for shown in (None, token):
        status, reason, there = peopled.ask(endpoint, OTHER, shown)
        assert (status, reason) == (403, "unauthorized")
        assert json.dumps(there).replace(OTHER, absent) == json.dumps(peopled.ask(endpoint, absent, shown)[2])


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=of)
def test_what_a_caller_shows_that_does_not_hold_is_refused_everywhere(enforced: Enforced, endpoint: Endpoint) -> None:
    """Not taken for anonymous. The answer does not say why."""
    good = enforced.grant("user:ana")
    forged = f"llg_{good.id}_{'0' * 64}"
    for bad in (forged, new_token().text, "x", ""):
        status, reason, said = enforced.ask(endpoint, OWN, bad)
        if endpoint.path == "/livez":
            assert status == 200
        else:
            assert (status, reason, said["detail"]) == (401, "unauthenticated", "unauthenticated")
    for headers in (
        {names.BEHALF: "user:admin"},
        {names.PROOF: f"broker-0 {int(time.time() * 1000)} {'0' * 64}"},
        {names.PROOF: "x"},
    ):
        status, reason, _ = enforced.ask(endpoint, OWN, good, headers=headers)
        assert status == (200 if endpoint.path == "/livez" else 401)
    assert endpoint.path == "/livez" or enforced.ask(endpoint, OWN, good, headers={"Authorization": "Basic x"})


def test_lists_tell_what_the_caller_may_see_and_nothing_else(tmp_path: Path) -> None:
    with enforcing(tmp_path) as enforced:
        for name in (OWN, SIBLING, OTHER):
            assert enforced.call("POST", "/v1/streams", ADMIN, body={"name": name})[0] == 201
            enforced.call("POST", "/v1/producers", ADMIN, body={"name": name})
            enforced.call("POST", f"/v1/sinks/{name}/open", ADMIN, body={"owner": "me"})
            offsets = {"offsets": [{"stream": name, "partition": 0, "offset": 0}]}
            assert enforced.call("POST", f"/v1/consumers/{name}/offsets", ADMIN, body=offsets)[0] == 200
            member = {"member": "m", "streams": [name]}
            assert enforced.call("POST", f"/v1/groups/{name}/members", ADMIN, body=member)[0] == 200
        actions = ("stream:read", "producer:write", "consumer:read", "sink:read")
        reader = enforced.grant("user:reader", *((action, OWN) for action in actions), ("metrics", ""))
        both = enforced.grant("user:both", *((action, f"{OWN}*") for action in actions))
        lists = [
            ("/v1/streams", "streams", "name"),
            ("/v1/streams?internal=true", "streams", "name"),
            ("/v1/producers", "producers", "name"),
            ("/v1/consumers", "consumers", "consumer"),
            ("/v1/groups", "groups", "group"),
            ("/v1/sinks", "sinks", "sink"),
            ("/v1/sinks?staged=true", "sinks", "sink"),
        ]
        for path, key, name in lists:
            for token, seen in ((None, set()), (reader, {OWN}), (both, {OWN, SIBLING})):
                status, _, said = enforced.call("GET", path, token)
                assert (status, {each[name] for each in said[key]}) == (200, seen), path
            assert {OWN, OTHER} <= {each[name] for each in enforced.call("GET", path, ADMIN)[2][key]}
        for query in ("", "?streams=*", "?streams=other,own,own2", "?streams=__*"):
            watched = enforced.call("GET", f"/v1/watch{query}", reader)[2]["streams"]
            assert set(watched) <= {OWN}
            assert not enforced.call("GET", f"/v1/watch{query}")[2]["streams"]
        page = enforced.call("GET", "/", reader)[2].decode()
        assert f"/{OWN}/" in page
        assert f"/{OTHER}/" not in page
        assert enforced.call("GET", "/v1/streams/__offsets/partitions/0/records", both)[0] == 403


def test_a_warning_names_no_stream_that_the_caller_may_not_see(tmp_path: Path) -> None:
    """Of two that capture the same subjects one answers, and the other one says so."""
    with enforcing(tmp_path) as enforced:
        assert enforced.call("POST", "/v1/streams", ADMIN, body={"name": OTHER, "subject": "pay.>"})[0] == 201
        may = ("stream:create", OWN), ("subject:capture", "pay.1"), ("stream:read", OWN), ("stream:admin", OWN)
        creator = enforced.grant("user:creator", *may)
        both = enforced.grant("user:both", *may, ("stream:read", OTHER))
        path, calls = f"/v1/streams/{OWN}", list[tuple[str, str, Any]]()
        calls += [("POST", "/v1/streams", {"name": OWN, "subject": "pay.1"}), ("GET", path, None)]
        calls += [("PATCH", path, {"retention_ms": 1000}), ("POST", f"{path}/pause", None)]
        for method, where, body in calls:
            said = enforced.call(method, where, creator, body=body)[2]
            assert said["warnings"] == ["acks are off: another stream answers the same subjects"], (method, where)
            assert "pay.>" not in str(said)
            for token in (both, ADMIN):
                assert f"stream '{OTHER}' on 'pay.>'" in enforced.call("GET", path, token)[2]["warnings"][0]
        [listed] = enforced.call("GET", "/v1/streams", creator)[2]["streams"]
        assert f"'{OTHER}'" not in str(listed)


def test_who_holds_the_room_for_stages_is_told_to_those_who_may_know(tmp_path: Path) -> None:
    """Sinks of several callers stage in one partition; the error when it is full names those that hold most."""
    with enforcing(tmp_path) as enforced:
        assert enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})[0] == 201
        may = ("stream:append", OWN), ("sink:write", "mine")
        mine = enforced.grant("user:mine", *may)
        reader = enforced.grant("user:reader", *may, ("sink:read", "payroll"))
        arrow, octets = {"Content-Type": names.ARROW_STREAM}, {"Content-Type": "application/octet-stream"}
        body = stream_of([values(1)])

        def stage(sink: str, token: Token, number: int) -> tuple[int, str, Any]:
            epoch = enforced.call("POST", f"/v1/sinks/{sink}/open", token, body={"owner": "me"})[2]["epoch"]
            at = f"/v1/streams/{OWN}/partitions/0/stages?sink={sink}&epoch={epoch}&stage={number:032x}&part=0&last=true"
            return enforced.call("POST", at, token, body=body, headers=arrow)

        def bundle(token: Token) -> tuple[int, str, Any]:
            epoch = enforced.call("POST", "/v1/sinks/mine/open", token, body={"owner": "me"})[2]["epoch"]
            part = {"partition": 0, "stage": f"{9:032x}", "part": 0, "last": True, "rows": 1}
            head = json.dumps({"parts": [part]}).encode().ljust(256)
            at = f"/v1/streams/{OWN}/stages?sink=mine&epoch={epoch}&head={len(head)}"
            return enforced.call("POST", at, token, body=head + bytes(body), headers=octets)

        assert [stage("payroll", ADMIN, 1)[0], stage("mine", mine, 2)[0]] == [200, 200]
        store = enforced.server.backend.sinks._store_of(OWN, 0)
        store.limits = replace(store.limits, stage_bytes_max=1)
        for status, reason, said in (stage("mine", mine, 3), bundle(mine)):
            assert (status, reason, said["sinks"]) == (507, "stages_full", ["mine"])
            assert "payroll" not in str(said)
            assert "by others, and by sink 'mine' (" in said["detail"]
        for token in (reader, ADMIN):
            for _, reason, said in (stage("mine", token, 3), bundle(token)):
                assert (reason, said["sinks"]) == ("stages_full", ["payroll", "mine"])
                assert "held by sink 'payroll' (" in said["detail"]


def test_who_may_write_a_sink_for_one_batch_may_end_his_own_and_no_other(tmp_path: Path) -> None:
    with enforcing(tmp_path) as enforced:
        jobs = enforced.grant("user:jobs", ("sink:write", "job-*"))
        for sink, owner, one_shot in (("job-1", "one", True), ("job-2", "two", True), ("job-3", "one", False)):
            body = {"owner": owner, "one_shot": one_shot}
            assert enforced.call("POST", f"/v1/sinks/{sink}/open", jobs, body=body)[0] == 200
        assert enforced.call("POST", "/v1/sinks/other/open", ADMIN, body={"owner": "one", "one_shot": True})[0] == 200
        end = [enforced.call("POST", f"/v1/sinks/{sink}/end", jobs, body={"owner": "one"})[:2] for sink in SINKS]
        assert end == [(204, ""), (409, "sink_fenced"), (400, "invalid_request"), (403, "unauthorized")]
        assert [enforced.call("DELETE", f"/v1/sinks/{sink}", jobs)[0] for sink in SINKS[1:]] == [403] * 3
        left = enforced.call("GET", "/v1/sinks", ADMIN)[2]["sinks"]
        assert {each["sink"] for each in left} == set(SINKS)
        assert enforced.call("POST", "/v1/sinks/job-1/open", jobs, body={"owner": "one"})[:2] == (409, "sink_fenced")


def test_what_a_call_does_beside_its_path_is_judged_too(tmp_path: Path) -> None:
    """Bodies that name further things, `verify`, producers with names, unclean elections, reserved subjects."""
    with enforcing(tmp_path) as enforced:
        for name in (OWN, OTHER):
            assert enforced.call("POST", "/v1/streams", ADMIN, body={"name": name})[0] == 201
        records = f"/v1/streams/{OWN}/partitions/0/records"
        reader = enforced.grant("user:reader", ("stream:read", OWN), ("consumer:write", "c"))
        assert enforced.call("GET", records, reader)[0] == 200
        assert enforced.call("HEAD", records, reader)[0] == 200
        assert enforced.call("HEAD", records)[0] == 403
        assert enforced.call("GET", f"{records}?verify=true", reader)[2]["needs"] == "stream:admin"
        at = [{"stream": name, "partition": 0, "offset": 0} for name in (OWN, OTHER)]
        assert enforced.call("POST", "/v1/consumers/c/offsets", reader, body={"offsets": at[:1]})[0] == 200
        assert enforced.call("POST", "/v1/consumers/c/offsets", reader, body={"offsets": at})[1] == "unauthorized"
        enforced.call("POST", "/v1/consumers/c/offsets", ADMIN, body={"offsets": at})
        assert enforced.call("DELETE", "/v1/consumers/c", reader)[1] == "unauthorized"
        positions = {"positions": [{"stream": name, "partition": 0, "at": "latest"} for name in (OWN, OTHER)]}
        assert enforced.call("POST", "/v1/offsets/resolve", reader, body=positions)[1] == "unauthorized"

        said = enforced.call("POST", "/v1/producers", ADMIN, body={"name": "theirs"})[2]
        writer = enforced.grant("user:writer", ("stream:append", OWN))
        arrow = {"Content-Type": names.ARROW_STREAM}
        stamp = f"{records}?producer_id={said['producer_id']}&producer_epoch={said['epoch']}&sequence=0"
        body = stream_of([values(1)])
        assert enforced.call("POST", records, writer, body=body, headers=arrow)[0] == 200
        assert enforced.call("POST", stamp, writer, body=body, headers=arrow)[2]["needs"] == "producer:write"
        said = enforced.call("POST", "/v1/producers", writer, body={})[2]
        stamp = f"{records}?producer_id={said['producer_id']}&producer_epoch={said['epoch']}&sequence=0"
        assert enforced.call("POST", stamp, writer, body=body, headers=arrow)[0] == 200
        thief = enforced.grant("user:thief", ("stream:append", OWN), ("stream:read", OWN))
        stolen = stamp.replace("sequence=0", "sequence=1")
        assert enforced.call("POST", stolen, thief, body=body, headers=arrow)[2]["needs"] == "producer:write"
        assert enforced.call("POST", stolen, writer, body=body, headers=arrow)[2]["duplicate"] is False
        assert enforced.call("POST", stolen, ADMIN, body=body, headers=arrow)[2]["duplicate"] is True
        assert enforced.call("POST", "/v1/producers", reader, body={})[2]["needs"] == "stream:append"
        assert enforced.call("POST", records.replace(OWN, OTHER), writer, body=body, headers=arrow)[0] == 403

        operator = enforced.grant("user:operator", ("cluster:operate", ""))
        unclean = {"stream": OWN, "partition": 0, "unclean": True, "accept_loss": True}
        assert enforced.call("POST", "/v1/cluster/elect", operator, body=unclean)[2]["needs"] == "cluster:admin"
        maker = enforced.grant("user:maker", ("stream:create", "*"), ("subject:capture", "*"))
        for subject in ("$SYS.>", "_INBOX.>", ">", "*.a"):
            made = enforced.call("POST", "/v1/streams", maker, body={"name": "new", "subject": subject})
            assert made[2]["needs"] == "subject:capture", subject
        assert enforced.call("POST", "/v1/streams", maker, body={"name": "new", "subject": "new.>"})[0] == 201
        assert enforced.call("POST", "/v1/streams", maker, body={"name": "__new"})[1] != ""
        of_group = {"subject": "new.>", "group": "g", "partitions": 1}
        assert enforced.call("POST", "/v1/streams", ADMIN, body={"name": "first", **of_group})[0] == 201
        thief = enforced.call("POST", "/v1/streams", maker, body={"name": "thief", **of_group})
        assert (thief[2]["needs"], thief[2]["name"]) == ("stream:admin", ""), "it would take half of the messages"
        both = enforced.grant("user:both", ("stream:create", "*"), ("subject:capture", "*"), ("stream:admin", "first"))
        assert enforced.call("POST", "/v1/streams", both, body={"name": "second", **of_group})[0] == 201
        assert enforced.call("POST", "/v1/streams", maker, body={"name": "third", **of_group, "group": "h"})[0] == 201


def test_of_two_that_begin_a_group_at_once_the_second_needs_to_be_its_admin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst order: the gate looked before this broker heard of the other one's stream, and the command comes after
    it. Each of two brokers may be in that place."""
    of_group = {"subject": "new.>", "group": "g", "partitions": 1}
    with enforcing(tmp_path) as enforced:
        maker = enforced.grant("user:maker", ("stream:create", "*"), ("subject:capture", "*"))
        thief = enforced.grant("user:thief", ("stream:create", "*"), ("subject:capture", "*"))
        assert enforced.call("POST", "/v1/streams", maker, body={"name": "first", **of_group})[0] == 201
        with monkeypatch.context() as not_heard:
            not_heard.setattr(enforced.server.backend, "streams", lambda **_: [])
            for name, of in (("thief", of_group), ("thief", {**of_group, "subject": "other.>"})):
                status, reason, said = enforced.call("POST", "/v1/streams", thief, body={"name": name, **of})
                assert (status, reason) == (503, "not_ready"), "whoever asks again is judged again"
                assert "first" not in str(said)
            made = enforced.call("POST", "/v1/streams", ADMIN, body={"name": "second", **of_group})
            assert made[0] == 201, "an admin may do it whatever is there"
            assert enforced.call("POST", "/v1/streams", thief, body={"name": "a", **of_group, "group": "h"})[0] == 201
        asked = enforced.call("POST", "/v1/streams", thief, body={"name": "thief", **of_group})
        assert asked[:2] == (403, "unauthorized")
        assert not {"first", "second"} & set(re.findall(r"\w+", json.dumps(asked[2]))), (
            "nobody learns who is in a group"
        )
        both = ("stream:admin", "first"), ("stream:admin", "second")
        thief = enforced.grant("user:thief", ("stream:create", "*"), ("subject:capture", "*"), *both)
        assert enforced.call("POST", "/v1/streams", thief, body={"name": "thief", **of_group})[0] == 201


def test_a_revoked_token_ends_what_is_under_way(tmp_path: Path) -> None:
    """A4. A long poll of records, and one of a watch, that would go on for a minute."""
    with enforcing(tmp_path) as enforced:
        enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        token = enforced.grant("user:ana", ("stream:read", OWN))
        since = enforced.call("GET", "/v1/watch", token)[2]["version"]
        found: dict[str, tuple[int, str]] = {}

        def poll(what: str, path: str) -> None:
            found[what] = enforced.call("GET", path, token)[:2]

        polls = {
            "records": f"/v1/streams/{OWN}/partitions/0/records?max_wait_ms=60000",
            "watch": f"/v1/watch?since={since}&max_wait_ms=60000",
        }
        threads = [threading.Thread(target=poll, args=each) for each in polls.items()]
        for thread in threads:
            thread.start()
        eventually(lambda: len(enforced.server.serving.gate._under_way) == 2)
        assert enforced.call("DELETE", f"/v1/auth/tokens/{token.id}", ADMIN)[0] == 204
        for thread in threads:
            thread.join(30)
        assert found == dict.fromkeys(("records", "watch"), (401, "unauthenticated"))
        assert access.LOOK_S <= 1.0, "so it takes two seconds at most, and not a minute"
        assert enforced.call("GET", "/v1/watch", token)[0] == 401


def test_a_grant_that_is_taken_back_while_another_one_is_looked_for_is_not_used(tmp_path: Path) -> None:
    """A4. It was judged already, and the request was not under way yet when the gate looked."""
    with enforcing(tmp_path) as enforced:
        enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        gate, ana = enforced.server.serving.gate, enforced.grant("user:ana", ("stream:append", OWN))
        [endpoint] = [each for each in ENDPOINTS if each.operation == "stage_records"]
        assert enforced.ask(endpoint, OWN, ana)[:2] == (403, "unauthorized")

        async def catch_up() -> None:
            enforced.grant("user:ana", ("sink:write", OWN))
            gate.look()

        gate.catch_up = catch_up
        assert enforced.ask(endpoint, OWN, ana)[:2] == (403, "unauthorized")
        enforced.grant("user:ana", ("stream:append", OWN), ("sink:write", OWN))
        assert enforced.ask(endpoint, OWN, ana)[0] != 403, "with both it is let in"
        assert enforced.call("GET", "/livez")[0] == 200


def test_a_token_that_was_just_made_elsewhere_is_known_where_nobody_is_refused(tmp_path: Path) -> None:
    """A8. A command for its bearer went to a broker that enforces as nobody's, and was refused for good."""
    with enforcing(tmp_path, "permissive") as enforced:
        gate, token = enforced.server.serving.gate, new_token()

        async def catch_up() -> None:
            of = {"token_id": token.id, "sha256": token.sha256, "principal": "user:ana", "by": "user:ops"}
            enforced.server.backend._execute({"kind": "put_token", **of, "expires_ms": 1 << 60, "at_ms": 1})

        async def nobody_knows() -> None:
            raise NotReady("no controller")

        gate.catch_up = nobody_knows
        assert enforced.call("GET", "/v1/auth/whoami", token)[2]["principal"] == "anonymous", "and nobody is refused"
        gate.catch_up = catch_up
        assert enforced.call("GET", "/v1/auth/whoami", token)[2]["principal"] == "user:ana"


def test_who_watches_is_told_when_more_or_less_may_be_seen(tmp_path: Path) -> None:
    """A4. Also a watch that sees nothing yet."""
    with enforcing(tmp_path) as enforced:
        enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        ana = enforced.grant("user:ana")
        for grants, seen in (((("stream:read", OWN),), {OWN}), ((), set())):
            since = enforced.call("GET", "/v1/watch", ana)[2]["version"]
            found: list[Any] = []
            path = f"/v1/watch?since={since}&max_wait_ms=60000"
            thread = threading.Thread(
                target=lambda path=path, found=found: found.append(enforced.call("GET", path, ana))
            )
            thread.start()
            eventually(lambda: enforced.server.serving.gate._changed is not None)
            enforced.grant("user:ana", *grants)
            thread.join(30)
            assert set(found[0][2]["streams"]) == seen


def test_a_grant_that_is_taken_back_and_a_token_that_expires_end_it_too(tmp_path: Path) -> None:
    with enforcing(tmp_path) as enforced:
        enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        records = f"/v1/streams/{OWN}/partitions/0/records?max_wait_ms=60000"
        gate, backend, found = enforced.server.serving.gate, enforced.server.backend, list[tuple[int, str]]()

        def poll(token: Token) -> threading.Thread:
            thread = threading.Thread(target=lambda: found.append(enforced.call("GET", records, token)[:2]))
            thread.start()
            eventually(lambda: len(gate._under_way) == 1)
            return thread

        thread = poll(enforced.grant("user:ana", ("stream:read", OWN)))
        enforced.grant("user:ana")
        thread.join(30)
        assert found.pop() == (403, "unauthorized")
        enforced.grant("user:bob", ("stream:read", OWN))
        brief = new_token()
        soon = int(time.time() * 1000) + 700
        of = {"token_id": brief.id, "sha256": brief.sha256, "principal": "user:bob", "expires_ms": soon}
        backend._execute({"kind": "put_token", **of, "at_ms": 1, "by": "user:ops"})
        poll(brief).join(30)
        assert found.pop() == (401, "unauthenticated")
        assert enforced.call("GET", records, brief)[0] == 401


def proven(method: str, path: str, port: int, *, behalf: str = "", key: bytes = KEY, **more: Any) -> dict[str, str]:
    host, me = f"127.0.0.1:{port}", more.get("me", "broker-0")
    now_ms = int(time.time() * 1000) + more.get("later_ms", 0)
    proof = proof_of(
        key, me, more.get("host", host), method, more.get("signed", path), now_ms, more.get("said", behalf)
    )
    found = {names.PROOF: proof, names.ASKED_BY: me}
    return {**found, names.BEHALF: behalf} if behalf else found


def test_a_broker_is_believed_by_its_proof_alone_and_judged_for_whom_it_asks(tmp_path: Path) -> None:
    """A6, A7."""
    with enforcing(tmp_path) as enforced:
        enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        port, silences, owners = enforced.server.port, "/v1/sinks/silences", {"owners": []}
        assert enforced.call("POST", silences, body=owners, headers=proven("POST", silences, port))[0] == 200
        bad: list[dict[str, Any]] = [
            {"key": peer_key(b"another secret")},
            {"signed": "/v1/watch"},
            {"host": "127.0.0.2:1"},
            {"later_ms": 200_000},
            {"later_ms": -200_000},
            {"me": "broker-9"},
            {"behalf": "user:ana", "said": "admin"},
            {"behalf": "broker:broker-0"},
        ]
        for each in bad:
            assert (
                enforced.call("POST", silences, body=owners, headers=proven("POST", silences, port, **each))[0] == 401
            )
        assert enforced.call("GET", silences, headers=proven("POST", silences, port))[0] in (401, 405)
        for headers in ({names.ASKED_BY: "broker-0"}, {}):
            assert enforced.call("POST", silences, ADMIN, body=owners, headers=headers)[2]["needs"] == "broker"

        watch, trim = f"/v1/watch?streams={OWN}", f"/v1/streams/{OWN}/trim"
        assert enforced.call("GET", watch, headers=proven("GET", watch, port))[2]["streams"]
        before = {"before": "latest"}
        assert (
            enforced.call("POST", trim, body=before, headers=proven("POST", trim, port))[2]["needs"] == "stream:admin"
        )
        enforced.grant("user:ana", ("stream:admin", OWN))
        ana, bob = (proven("POST", trim, port, behalf=f"user:{name}") for name in ("ana", "bob"))
        assert enforced.call("POST", trim, body=before, headers=ana)[0] == 200
        assert enforced.call("POST", trim, body=before, headers=bob)[1] == "unauthorized"
        grants = "/v1/auth/grants"
        assert enforced.call("GET", grants, headers=proven("GET", grants, port))[1] == "unauthorized"


def test_a_grant_for_a_name_that_is_not_there_is_accepted_and_said(tmp_path: Path) -> None:
    there = {
        "stream": ("/v1/streams", {"name": OWN}),
        "producer": ("/v1/producers", {"name": OWN}),
        "sink": (f"/v1/sinks/{OWN}/open", {"owner": "me"}),
        "consumer": (f"/v1/consumers/{OWN}/offsets", {"offsets": [{"stream": OWN, "partition": 0, "offset": 0}]}),
        "a group": ("/v1/groups/team/members", {"member": "m", "streams": [OWN]}),
        "a pin": ("/v1/pins/held", {"text": "x", "version": 0}),
    }
    with enforcing(tmp_path) as enforced:
        for path, asked in there.values():
            assert enforced.call("POST", path, ADMIN, body=asked)[0] in (200, 201)
        for action, name, is_there in (
            *((f"{kind}:{what}", OWN, True) for kind, what in SEEN),
            *((f"{kind}:{what}", f"{OWN[:2]}*", True) for kind, what in SEEN),
            *((f"{kind}:{what}", "nowhere", False) for kind, what in SEEN),
            *((f"{kind}:{what}", "nowhere*", False) for kind, what in SEEN),
            ("consumer:read", "team", True),
            ("consumer:read", "te*", True),
            ("consumer:read", "held", True),
            ("stream:create", "nowhere", True),
            ("subject:capture", "nowhere", True),
            ("metrics", "", True),
        ):
            add = [{"action": action, **({"name": name} if name else {})}]
            status, _, said = enforced.call(
                "POST", "/v1/auth/grants", ADMIN, body={"principal": "user:ana", "add": add}
            )
            told = [repr(name.rstrip("*")) in each for each in said["warnings"]]
            assert (status, told) == (200, [] if is_there else [True]), (action, name, said)
        assert enforced.call("DELETE", "/v1/auth/tokens/nothing", ADMIN)[:2] == (404, "unknown_token")
        with pytest.raises(InvalidRequest, match=r"did you mean 'stream:read'"):
            check_grant("user:ana", "stream:reed", OWN)


SEEN = [("stream", "read"), ("producer", "write"), ("sink", "read"), ("sink", "write"), ("consumer", "read")]


@pytest.mark.parametrize("error", [NotLeader("elsewhere", leader="127.0.0.1:1"), NotReady("not yet")], ids=str)
def test_a_grant_is_accepted_though_another_broker_knows_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: LiftlogError
) -> None:
    """Of consumers and sinks: in a cluster one broker keeps these. Groups are in the catalog."""

    def elsewhere(*_: object) -> NoReturn:
        raise error

    with enforcing(tmp_path) as enforced:
        enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        enforced.call("POST", "/v1/groups/team/members", ADMIN, body={"member": "m", "streams": [OWN]})
        backend = enforced.server.backend
        for view, call in (
            (backend.offsets, "consumers"),
            (backend.offsets, "group_names"),
            (backend.offsets, "pin"),
            (backend.sinks, "states"),
        ):
            monkeypatch.setattr(view, call, elsewhere)
        names = [("consumer:read", "team"), ("consumer:read", "nowhere"), ("sink:read", "no*"), ("stream:read", "none")]
        add = [{"action": action, "name": name} for action, name in names]
        status, _, said = enforced.call("POST", "/v1/auth/grants", ADMIN, body={"principal": "user:ana", "add": add})
        assert status == 200
        assert said["warnings"] == [
            f"{what}: the grant holds once there is one"
            for what in (
                "whether a consumer or group has the name 'nowhere' is not known to this broker",
                "whether a sink begins with 'no' is not known to this broker",
                "no stream has the name 'none' yet",
            )
        ]


def test_tokens_and_grants_are_the_admins_in_every_mode(tmp_path: Path) -> None:
    for mode in ("off", "permissive", "enforce"):
        with enforcing(tmp_path / mode, mode) as enforced:
            made, soon = new_token(), int(time.time() * 1000) + 60_000
            asked = {"id": made.id, "sha256": made.sha256, "principal": "user:ana", "expires_ms": soon}
            grant = {"principal": "user:ana", "add": [{"action": "auth:admin"}]}
            for token in (None, new_token()):
                assert enforced.call("POST", "/v1/auth/tokens", token, body=asked)[1] in REFUSED
                assert enforced.call("POST", "/v1/auth/grants", token, body=grant)[1] in REFUSED
                assert enforced.call("GET", "/v1/auth/tokens", token)[1] in REFUSED
            assert enforced.call("POST", "/v1/auth/tokens", ADMIN, body=asked)[0] == 200
            assert enforced.call("GET", "/v1/auth/grants", made)[1] == "unauthorized"
            assert enforced.call("POST", "/v1/auth/grants", ADMIN, body=grant)[0] == 200
            said = enforced.call("GET", "/v1/auth/tokens", made)[2]
            assert [each["id"] for each in said["tokens"]] == [made.id]
            assert made.sha256 not in json.dumps(said)
            said = enforced.call("GET", "/v1/auth/whoami", made)[2]
            assert (said["principal"], said["how"], said["mode"], said["admin"]) == ("user:ana", "token", mode, False)
            assert enforced.call("GET", "/v1/auth/whoami", ADMIN)[2]["admin"] is True
            asked["expires_ms"] = 1
            assert enforced.call("POST", "/v1/auth/tokens", ADMIN, body=asked)[2]["field"] == "expires_ms"
            tested = {"principal": "user:ana", "action": "auth:admin"}
            assert enforced.call("POST", "/v1/auth/test", ADMIN, body=tested)[2] == {"allowed": True}


def test_off_judges_nothing_and_permissive_says_what_it_would(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for mode in ("off", "permissive"):
        caplog.clear()
        with enforcing(tmp_path / mode, mode) as enforced:
            for token in (None, new_token()):
                assert enforced.call("GET", "/v1/streams", token)[0] == 200
                assert enforced.call("POST", "/v1/streams", token, body={"name": "a"})[0] in (200, 201)
                assert enforced.call("GET", "/v1/watch", token)[2]["streams"].keys() == {"a"}
        would = [each.getMessage() for each in caplog.records if "http.would_refuse" in each.getMessage()]
        assert bool(would) is (mode == "permissive")


def test_admins_of_the_configuration_cannot_be_locked_out(tmp_path: Path) -> None:
    with enforcing(tmp_path, admins=frozenset({"user:ops"})) as enforced:
        ops = enforced.grant("user:ops")
        assert enforced.call("POST", "/v1/streams", ops, body={"name": "a", "subject": "a.>"})[0] == 201
        assert enforced.call("GET", "/v1/auth/grants", ops)[0] == 200
        assert enforced.call("DELETE", f"/v1/auth/tokens/{ADMIN.id}", ops)[1] == "unknown_token"
        assert enforced.call("GET", "/v1/auth/grants", ADMIN)[0] == 200


def test_nothing_is_kept_by_names_that_callers_choose(tmp_path: Path) -> None:
    """A3. What is laid out is of one state of the catalog, and of principals that are granted something."""
    with enforcing(tmp_path) as enforced:
        gate = enforced.server.serving.gate
        enforced.grant("user:ana", ("stream:read", "s*"))
        for number in range(10):
            assert gate.allows("user:ana", "stream:read", f"s{number}")
            assert not gate.allows(f"user:{number}", "stream:read", f"s{number}")
        assert gate.editions._granted.keys() == {"user:ana"}
        enforced.grant("user:ana")
        assert not gate.allows("user:ana", "stream:read", "s9")
        assert not gate.editions._granted


def test_tokens_are_found_by_their_ids_and_compared_in_constant_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No table is asked for the secret, nor for its hash; and what is kept is compared by nothing else."""
    looked_up, compared = set[str](), list[tuple[str, str]]()

    class Kept(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            looked_up.add(key)
            return super().get(key, default)

        def __getitem__(self, key: str) -> Any:
            looked_up.add(key)
            return super().__getitem__(key)

        def __contains__(self, key: object) -> bool:
            looked_up.add(str(key))
            return super().__contains__(key)

    class Digest(str):
        """What is kept of a token."""

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared byte by byte")

        __hash__ = str.__hash__

    real = hmac.compare_digest

    def compares(left: Any, right: Any) -> bool:
        compared.append((str(left), str(right)))
        return real(str(left), str(right))

    with enforcing(tmp_path) as enforced:
        ana, bob = enforced.grant("user:ana"), enforced.grant("user:bob")
        drop = {"kind": "drop_token", "token_id": bob.id, "by": "user:ops"}
        enforced.server.backend._execute(drop)
        kept = enforced.server.backend.access
        for table in ("tokens", "revoked"):
            told = getattr(kept, table)
            guarded = {each: _guarded(value, Digest) for each, value in told.items()}
            monkeypatch.setattr(kept, table, Kept(guarded))
        monkeypatch.setattr(access.hmac, "compare_digest", compares)
        monkeypatch.setattr(access, "compare_digest", compares)
        gate, admin = enforced.server.app[SERVING].gate, (ADMIN.id, Digest(ADMIN.sha256))
        monkeypatch.setattr(gate, "rules", replace(gate.rules, admin_token=admin))
        for shown, status, against in (
            (ana.text, 200, ana.sha256),
            (f"llg_{ana.id}_{'0' * 64}", 401, ana.sha256),
            (f"llg_{'a' * 12}_{'0' * 64}", 401, "0" * 64),
            (bob.text, 401, bob.sha256),
            (f"llg_{bob.id}_{'0' * 64}", 401, bob.sha256),
            (ADMIN.text, 200, ADMIN.sha256),
            (f"llg_{ADMIN.id}_{'0' * 64}", 401, ADMIN.sha256),
        ):
            compared.clear()
            assert enforced.call("GET", "/v1/auth/whoami", shown)[0] == status
            assert (digest_of(shown), against) in compared, shown
        assert looked_up == {ana.id, bob.id, "a" * 12}, "and so by nothing that is a secret"
        compared.clear()
        for _ in range(2):
            assert enforced.call("GET", "/v1/auth/whoami", ana.text)[0] == 200
        bearer = f"Bearer {ana.text}"
        assert (bearer, bearer) in compared, "a connection remembers its last caller"


def _guarded(value: Any, digest: type[str]) -> Any:
    return digest(value) if isinstance(value, str) else value._replace(sha256=digest(value.sha256))


def test_a_grant_that_is_taken_back_beside_others_that_overlap_is_warned_of(tmp_path: Path) -> None:
    """Whoever takes `orders` back where `orders*` was granted would think that it is closed."""
    with enforcing(tmp_path) as enforced:
        granted = [
            ("stream:read", "orders*"),
            ("stream:read", "orders.eu"),
            ("stream:append", "orders"),
            ("metrics", ""),
        ]
        enforced.grant("user:ana", *granted)

        def taken_back(action: str, name: str) -> list[str]:
            asked = {"principal": "user:ana", "remove": [{"action": action, "name": name}]}
            status, _, said = enforced.call("POST", "/v1/auth/grants", ADMIN, body=asked)
            assert status == 200
            return list(said["warnings"])

        for _ in range(2):  # a call may be made twice
            assert taken_back("stream:read", "orders") == [
                "user:ana still has stream:read of orders*, which was granted apart"
            ]
        assert "of orders.eu," in taken_back("stream:read", "orders*")[0]
        for last in (
            ("stream:read", "orders.eu"),
            ("stream:append", "orders"),
            ("stream:read", "other"),
            ("metrics", ""),
        ):
            assert taken_back(*last) == []


def test_nobody_but_the_bearer_of_the_configured_token_is_the_admin(tmp_path: Path) -> None:
    """Q4. Neither a token nor a grant can be made for it, and a user of this name is one like others."""
    with enforcing(tmp_path) as enforced:
        assert enforced.call("GET", "/v1/auth/whoami", ADMIN)[2]["principal"] == "admin"
        soon = int(time.time() * 1000) + 60_000
        asked = {"id": "a" * 12, "sha256": "0" * 64, "principal": "admin", "expires_ms": soon}
        assert enforced.call("POST", "/v1/auth/tokens", ADMIN, body=asked)[1] == "invalid_request"
        grant = {"principal": "admin", "add": [{"action": "metrics"}]}
        assert enforced.call("POST", "/v1/auth/grants", ADMIN, body=grant)[1] == "invalid_request"
        for name in ("user:admin", "svc:admin"):
            namesake = enforced.grant(name)
            assert enforced.call("GET", "/v1/auth/whoami", namesake)[2]["admin"] is False
            assert enforced.call("GET", "/v1/auth/tokens", namesake)[1] == "unauthorized"


def test_a_broker_may_ask_for_the_admin(tmp_path: Path) -> None:
    """A6. What the admin changes another broker may have to carry out."""
    with enforcing(tmp_path) as enforced:
        enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        trim = f"/v1/streams/{OWN}/trim"
        headers = proven("POST", trim, enforced.server.port, behalf="admin")
        assert enforced.call("POST", trim, body={"before": "latest"}, headers=headers)[0] == 200


def test_headers_of_any_bytes_are_refused_and_no_fault(tmp_path: Path) -> None:
    with enforcing(tmp_path) as enforced:
        now_ms = int(time.time() * 1000)
        for header in (names.PROOF, names.BEHALF, "Authorization", "Host"):
            for value in (b"\xff", f"b {now_ms} ".encode() + b"\xff", b"b\xff " + f"{now_ms} {'0' * 64}".encode()):
                with socket.create_connection(("127.0.0.1", enforced.server.port), timeout=60) as client:
                    proof = f"{names.PROOF}: b {now_ms} {'0' * 64}\r\n" if header in (names.BEHALF, "Host") else ""
                    host = b"" if header == "Host" else b"Host: 127.0.0.1\r\n"
                    line = f"GET /v1/auth/whoami HTTP/1.1\r\n{proof}{header}: ".encode() + value + b"\r\n"
                    client.sendall(line + host + b"Connection: close\r\n\r\n")
                    answer = client.makefile("rb").read()
                assert answer.split(b" ", 2)[1] in (b"400", b"401", b"403"), answer
                assert b"internal" not in answer


def test_who_would_be_refused_is_judged_by_all_that_the_cluster_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A8. Another broker has just made the token, then given the grants; a broker that hears nobody refuses nobody."""
    with enforcing(tmp_path) as enforced:
        backend, made, caught_up = enforced.server.backend, new_token(), list[str]()
        path, body = "/v1/offsets/resolve", {"positions": [{"stream": OWN, "partition": 0, "at": "latest"}]}
        enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        of = {"token_id": made.id, "sha256": made.sha256, "principal": "user:ana", "by": "admin"}
        token = {"kind": "put_token", **of, "expires_ms": 1 << 60, "at_ms": 1}
        grant = {"kind": "put_grants", "principal": "user:ana", "add": [["stream:read", OWN]], "by": "admin"}

        async def hears_nobody() -> None:
            raise NotReady("this broker has no session")

        async def hears() -> None:
            backend._execute(token if not caught_up else grant)
            caught_up.append("")

        for how, status in ((hears_nobody, 503), (hears, 200)):
            monkeypatch.setattr(enforced.server.serving.gate, "catch_up", how)
            assert enforced.call("POST", path, made, body=body)[0] == status
            assert enforced.call("GET", f"/v1/streams/{OWN}", made)[0] == status
        assert len(caught_up) == 2, "what is allowed asks nobody"
        monkeypatch.setattr(enforced.server.serving.gate, "catch_up", hears_nobody)
        for bad in ("x", f"llg_{made.id}_{'0' * 63}"):
            assert enforced.call("GET", f"/v1/streams/{OWN}", bad)[0] == 401, "no catalog can make it good"


def test_one_that_has_begun_goes_by_no_token_of_before_until_it_has_heard_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A8. The token was revoked while it was down. Its admin and other brokers are served meanwhile."""
    with enforcing(tmp_path) as enforced:
        gate, path, heard = enforced.server.serving.gate, f"/v1/streams/{OWN}", list[str]()
        assert enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})[0] == 201
        good, revoked = (enforced.grant(f"user:{name}", ("stream:read", OWN)) for name in ("ana", "bob"))

        async def hears() -> None:
            if not heard:
                raise NotReady("this broker has no session")
            if heard.pop() == "bob":
                enforced.server.backend._execute({"kind": "drop_token", "token_id": revoked.id, "by": "admin"})

        monkeypatch.setattr(gate, "catch_up", hears)
        assert not gate._has_heard
        for token in (good, revoked, None):
            assert enforced.call("GET", path, token)[0] == 503
        assert enforced.call("GET", path, ADMIN)[0] == 200
        assert enforced.call("GET", path, headers=proven("GET", path, enforced.server.port))[0] == 200
        heard[:] = ["bob"]
        assert enforced.call("GET", path, revoked)[0] == 401
        heard.clear()
        assert enforced.call("GET", path, good)[0] == 200, "it has heard"


def test_who_is_not_known_is_told_how_to_show_it(tmp_path: Path) -> None:
    """RFC 9110, section 15.5.2."""
    with enforcing(tmp_path) as enforced:
        connection = http.client.HTTPConnection("127.0.0.1", enforced.server.port, timeout=60)
        connection.request("GET", "/v1/streams", headers={"Authorization": "Bearer x"})
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("WWW-Authenticate")) == (401, "Bearer")
        connection.close()


def test_a_download_that_has_begun_ends_with_its_token(tmp_path: Path) -> None:
    """A4. Also if its client takes nothing: a part of the answer lies in the kernel, and the rest is not sent."""
    with enforcing(tmp_path) as enforced:
        server = enforced.server
        enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})
        arrow = {"Content-Type": names.ARROW_STREAM}
        records = f"/v1/streams/{OWN}/partitions/0/records"
        body = stream_of([values(1, size=900_000)])
        for _ in range(24):
            assert enforced.call("POST", records, ADMIN, body=body, headers=arrow)[0] == 200
        token = enforced.grant("user:ana", ("stream:read", OWN))
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asked = f"GET {records}?max_bytes=100000000 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            client.sendall(f"{asked}Authorization: Bearer {token.text}\r\n\r\n".encode())
            assert client.recv(12) == b"HTTP/1.1 200"
            eventually(lambda: len(server.serving.gate._under_way) == 1)
            enforced.call("DELETE", f"/v1/auth/tokens/{token.id}", ADMIN)
            eventually(lambda: not server.serving.gate._under_way)


def issued(folder: Path, name: str, *options: str) -> Issued:
    """A certificate as `liftlog certs` issues it."""
    assert CliRunner().invoke(app, ["certs", "issue", str(folder), name, *options]).exit_code == 0
    return Issued(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))


def test_a_certificate_names_its_principal_and_ends_with_it(tmp_path: Path) -> None:
    """Over TLS, as a broker speaks it: a user's, a broker's, one that names nobody, one that names two."""
    ca = tmp_path / "ca"
    assert CliRunner().invoke(app, ["certs", "init", str(ca)]).exit_code == 0
    broker = issued(ca, "broker", "--host", "127.0.0.1")
    files = {"tls_cert": broker.cert, "tls_key": broker.key, "tls_ca": "ca.pem", "tls_client_ca": "ca.pem"}
    settings = {f"http.{key}": str(ca / path) for key, path in files.items()}
    certificates = Certificates(load(None, {}, settings).http)
    with enforcing(tmp_path / "data", admins=frozenset({"user:ops"})) as enforced:
        port = enforced.server.call(enforced.server.listen(certificates.contexts))

        def asked(mine: Issued, method: str, path: str, **headers: str) -> tuple[int, Any]:
            context = ssl.create_default_context(cafile=str(ca / "ca.pem"))
            context.load_cert_chain(mine.cert, mine.key)
            client = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
            try:
                client.request(method, path, headers=headers)
                answer = client.getresponse()
                return answer.status, json.loads(answer.read())
            finally:
                client.close()

        ops, nobody = issued(ca, "ops", "--user", "ops"), issued(ca, "nobody")
        peer, stranger, several = (
            issued(ca, name, "--host", "peer.example", *(word for each in of for word in ("--broker", each)))
            for name, of in (("peer", ["broker-0"]), ("stranger", ["broker-9"]), ("several", ["broker-9", "broker-0"]))
        )
        said = asked(ops, "GET", "/v1/auth/whoami")[1]
        assert (said["principal"], said["how"], said["admin"]) == ("user:ops", "certificate", True)
        assert said["expires_ms"] > time.time() * 1000
        assert asked(nobody, "GET", "/v1/auth/whoami")[1]["principal"] == "anonymous"
        assert asked(ops, "GET", "/v1/auth/whoami", **{names.BEHALF: "user:ana"})[0] == 401
        assert asked(stranger, "GET", "/v1/auth/whoami")[0] == 401
        assert asked(peer, "GET", "/v1/auth/whoami")[1]["principal"] == "broker:broker-0"
        for whom in ("user:ops", "admin", "anonymous"):
            assert asked(peer, "GET", "/v1/auth/whoami", **{names.BEHALF: whom})[0] == 401, "it proves no secret"
        theirs = proven("GET", "/v1/auth/whoami", port, behalf="user:ops")
        assert asked(peer, "GET", "/v1/auth/whoami", **theirs)[1]["principal"] == "user:ops"
        assert asked(peer, "GET", "/v1/auth/grants")[1]["reason"] == "unauthorized"
        assert asked(peer, "GET", "/readyz")[0] == 200, "as `up` asks, with the broker's own files"
        assert asked(several, "GET", "/v1/auth/whoami")[1]["principal"] == "broker:broker-0", "one of them is known"
        assert asked(several, "GET", "/v1/auth/grants")[1]["reason"] == "unauthorized"


@pytest.mark.parametrize("path", ["/v1/groups", "/v1/consumers", "/v1/sinks", "/v1/sinks?staged=true"])
def test_a_list_that_another_broker_keeps_tells_strangers_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def elsewhere(*_: Any) -> Any:
        raise NotLeader("broker b at b:1 leads it", leader={"id": "b", "http": "b:1"})

    with enforcing(tmp_path) as enforced:
        backend = enforced.server.backend
        for kept, call in (
            (backend.offsets, "group_names"),
            (backend.offsets, "consumers"),
            (backend.sinks, "states"),
            (backend.sinks, "described"),
        ):
            monkeypatch.setattr(kept, call, elsewhere)
        status, _, said = enforced.call("GET", path)
        assert (status, [*said.values()]) == (200, [[]])
        for token in (ADMIN, enforced.grant("user:ana")):
            assert enforced.call("GET", path, token)[2]["leader"]["http"] == "b:1"
        action = "sink:read" if "sinks" in path else "consumer:read"
        enforced.grant("anonymous", (action, "own"))
        assert enforced.call("GET", path)[2]["leader"]["http"] == "b:1", "who may see some of it goes there"


def test_who_is_let_in_is_told_of_the_other_brokers_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(of: Enforced, path: str, token: Token | None) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", of.server.port, timeout=60)
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token.text}"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return names.BROKERS in answer.headers

    for mode in ("off", "permissive", "enforce"):
        with enforcing(tmp_path / mode, mode) as enforced:
            two = [{"id": each, "http": f"{each}:1"} for each in ("broker-0", "b")]
            monkeypatch.setattr(enforced.server.backend, "brokers", lambda found=two: found)
            ana = enforced.grant("user:ana")
            for path in (
                "/v1/streams",
                "/v1/producers",
                "/v1/auth/whoami",
                "/livez",
                "/v1/streams/nothing",
                "/nothing",
            ):
                assert told(enforced, path, None) is (mode != "enforce"), path
            assert told(enforced, "/v1/streams", ana)
            assert told(enforced, "/v1/streams/nothing", ana) is (mode != "enforce"), "it may not know whether it is"
