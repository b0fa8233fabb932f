"""A client whose certificate is revoked: on the connection that it has, on new ones, in each mode.

Method: a server over TLS that wants certificates, and clients of the standard library.
"""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.serving.http.access import AuthRules
from tests.support.certificates import Authority, Issued
from tests.support.processes import eventually
from tests.unit.serving.server import Server, running
from tests.unit.serving.test_audit import records

LONG_POLL = "/v1/streams/orders/partitions/0/records?offset=0&max_wait_ms=60000&timeout_ms=120000"


class Client:
    """A client over one connection."""

    def __init__(self, authority: Authority, issued: Issued, port: int) -> None:
        context = authority.client_context(issued)
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)

    def get(self, path: str) -> tuple[int, Any]:
        self.connection.request("GET", path)
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")


@pytest.mark.parametrize("mode", ["off", "permissive", "enforce"])
def test_a_revoked_certificate_ends_what_is_under_way_and_lets_nobody_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    authority = Authority(tmp_path / "ca")
    ana = authority.issue("ana", uris=["liftlog:user/ana"])
    bob = authority.issue("bob", uris=["liftlog:user/bob"])
    crl = authority.revoke()
    certificates = authority.certificates(None, tls_client_ca=authority.ca, tls_crl=crl)
    rules = AuthRules(mode=mode, admins=frozenset({"user:ana", "user:bob"}))
    with running(tmp_path / "data", body_bytes_max=1 << 20, tls=certificates.contexts, auth=rules) as server:
        port = server.call(server.listen(certificates.contexts))
        hers, waiting, his = (Client(authority, each, port) for each in (ana, ana, bob))
        made(hers)
        assert hers.get("/livez")[0] == his.get("/livez")[0] == 200
        ended: list[tuple[int, Any]] = []
        polling = threading.Thread(target=lambda: ended.append(waiting.get(LONG_POLL)))
        polling.start()
        eventually(lambda: under_way(server) == 1, what="her long poll waits")
        authority.revoke(ana)
        certificates.look()
        certificates.look()
        polling.join(60)
        assert [(status, body["reason"]) for status, body in ended] == [(401, "unauthenticated")]
        for client in (hers, Client(authority, ana, port)):
            for path in ("/v1/streams", "/livez", "/readyz", "/metrics", "/v1/auth/whoami"):
                status, body = client.get(path)
                assert (status, body["reason"], body["detail"]) == (401, "unauthenticated", "unauthenticated"), path
        assert his.get("/v1/streams")[0] == 200
        assert any("http.unauthenticated" in line and "which is revoked" in line for line in caplog.messages)
        eventually(lambda: refusals(server), what="the audit says so")
        asked = refusals(server)[-1]["asked"]
        assert asked["certificate"] == "revoked"
        assert asked["why"].endswith("which is revoked")
        authority.revoke()
        certificates.look()
        certificates.look()
        assert hers.get("/v1/streams")[0] == 200, "a CA may take it off its list"


def made(client: Client) -> None:
    """Make the stream."""
    client.connection.request(
        "POST", "/v1/streams", json.dumps({"name": "orders"}), {"Content-Type": "application/json"}
    )
    answer = client.connection.getresponse()
    assert answer.status in (200, 201), answer.read()
    answer.read()


def refusals(server: Server) -> list[dict[str, Any]]:
    return [each for each in records(server) if "certificate" in each["asked"]]


def under_way(server: Server) -> int:
    return len(server.serving.gate._under_way)
