"""Goal: where the catalog requires it, a broker judges its callers whatever its own `auth.mode` says.

Method: a server with each mode; the requirement comes and goes in its catalog, as commands of others do.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from broker.serving.http import callers
from broker.serving.http.callers import CallerLimits
from tests.support.processes import eventually
from tests.unit.serving.test_access import ADMIN, enforcing


@pytest.mark.parametrize("mode", ["off", "permissive"])
def test_a_weaker_broker_refuses_what_others_refuse_and_stops_when_that_ends(tmp_path: Path, mode: str) -> None:
    with enforcing(tmp_path, mode) as server:
        assert server.call("POST", "/v1/streams", body={"name": "s"})[0] == 201
        refused = server.call("POST", "/v1/auth/require", ADMIN, body={"required": True})
        assert refused[0] == 400, "this broker itself would be the one that opens the cluster"
        assert refused[2]["mode"] == mode
        require = {"kind": "require_auth", "by": "admin"}
        server.server.backend._execute({**require, "required": True})
        assert server.call("GET", "/v1/streams/s")[:2] == (403, "unauthorized")
        assert server.call("POST", "/v1/streams", body={"name": "t"})[:2] == (403, "unauthorized")
        assert server.call("GET", "/v1/auth/whoami", ADMIN)[2]["mode"] == "enforce"
        assert server.call("GET", "/v1/streams", "llg_x")[:2] == (401, "unauthenticated")
        assert server.call("GET", "/v1/cluster", ADMIN)[2]["auth_required"] is True
        assert server.call("POST", "/v1/auth/require", body={"required": False})[:2] == (403, "unauthorized")
        assert server.call("POST", "/v1/auth/require", ADMIN, body={"required": False})[0] == 200
        assert server.call("GET", "/v1/streams/s")[0] == 200


@pytest.mark.parametrize("mode", ["off", "permissive"])
def test_limits_of_callers_hold_too(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`new_names.N3`: callers are told apart from then on."""
    monkeypatch.setattr(callers, "REFUSED_S", 0.0)
    with enforcing(tmp_path, mode, caller_limits=CallerLimits(made_max={"streams": 1})) as server:
        server.server.backend._execute({"kind": "require_auth", "by": "admin", "required": True})
        assert server.call("POST", "/v1/streams", ADMIN, body={"name": "a"})[0] == 201
        assert server.call("POST", "/v1/streams", ADMIN, body={"name": "b"})[:2] == (429, "limit_reached")


def test_what_began_before_it_was_required_ends(tmp_path: Path) -> None:
    """A broker that has just begun may hear of it late: `access.A4`."""
    with enforcing(tmp_path, "off") as server:
        version = server.call("GET", "/v1/watch")[2]["version"]
        found: list[int] = []
        path = f"/v1/watch?since={version}&max_wait_ms=60000"
        watcher = threading.Thread(target=lambda: found.append(server.call("GET", path)[0]))
        watcher.start()
        eventually(lambda: server.server.serving.gate._under_way, what="it is under way")
        server.server.backend._execute({"kind": "require_auth", "by": "admin", "required": True})
        watcher.join(30)
        assert found == [401]


def test_an_admin_requires_it_where_it_is_enforced(tmp_path: Path) -> None:
    with enforcing(tmp_path) as server:
        ana = server.grant("user:ana", ("metrics", ""), ("cluster:read", ""))
        for required in (True, True, False):
            assert server.call("POST", "/v1/auth/require", ana, body={"required": required})[0] == 403
            assert server.call("POST", "/v1/auth/require", ADMIN, body={"required": required})[0] == 200
            assert server.call("GET", "/v1/cluster", ana)[2]["auth_required"] is required


def test_readiness_and_the_doctor_warn_and_the_broker_stays_ready(tmp_path: Path) -> None:
    from broker.cli.doctor.network import check_broker

    with enforcing(tmp_path, "off") as server:
        assert server.call("GET", "/readyz")[2] == {"ready": True, "missing": {}, "warnings": {}}
        server.server.backend.warnings = lambda: {"auth": "brokers whose …: b (off)"}  # type: ignore[method-assign]
        status, _, said = server.call("GET", "/readyz")
        assert (status, said["ready"], said["warnings"]) == (200, True, {"auth": "brokers whose …: b (off)"})
        checks = list(check_broker(f"127.0.0.1:{server.server.port}", in_use=True))
        assert [(each.name, each.status) for each in checks if "b (off)" in each.found] == [("auth", "warning")]
