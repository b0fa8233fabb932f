"""Goal: through three real brokers a caller at a limit is told so, with the time after which to ask again, and nobody
else is; what is handed on to another broker counts at both, for the caller and not for the broker.

Method: small limits, `enforce`, and bare requests with tokens: long polls that hold their places until the test ends.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from broker.api.principals import Token, new_token
from tests.cluster.test_access import written
from tests.support.clusters import RealCluster
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

REQUESTS, NAMES = 8, 3
"""The least that `limits.caller_requests_max` may be; and of `limits.caller_names_per_minute`."""


class Limited(RealCluster):
    """Attributes: polls: Held open until the end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        admin = written(folder / "admin.token", new_token())
        limits = {"REQUESTS_MAX": REQUESTS, "POLLS_MAX": REQUESTS, "NAMES_PER_MINUTE": NAMES}
        super().__init__(
            folder,
            None,
            LIFTLOG_AUTH_MODE="enforce",
            LIFTLOG_AUTH_ADMIN_TOKEN_FILE=str(admin),
            **{f"LIFTLOG_LIMITS_CALLER_{key}": str(value) for key, value in limits.items()},
        )
        self._stack = stack

    def begin(self, broker: str, method: str, path: str, token: Token, body: Any = None) -> http.client.HTTPConnection:
        host, _, port = self.brokers[broker].address.rpartition(":")
        connection = self._stack.enter_context(closing(http.client.HTTPConnection(host, int(port), timeout=60)))
        headers = {"Authorization": f"Bearer {token.text}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection

    def ask(
        self, broker: str, method: str, path: str, token: Token, body: Any = None
    ) -> tuple[int, str | None, dict[str, Any]]:
        """Its status, `Retry-After` and JSON."""
        answer = self.begin(broker, method, path, token, body).getresponse()
        return answer.status, answer.headers["Retry-After"], json.loads(answer.read() or b"{}")

    def fill(self, broker: str, token: Token) -> list[http.client.HTTPConnection]:
        """All that a caller may have under way at one broker, by long polls."""
        since = self.ask(broker, "GET", "/v1/watch", token)[2]["version"]
        path = f"/v1/watch?since={since}&max_wait_ms=300000&timeout_ms=300000"
        return [self.begin(broker, "GET", path, token) for _ in range(REQUESTS)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Limited]:
    with ExitStack() as stack:
        made = Limited(tmp_path, stack)
        stack.callback(made.stop)
        made.start()
        with made.client(deadline_s=60.0) as client:
            client.create_stream("s", partitions=1, replication_factor=3)
            eventually(lambda: client.cluster().feature_level >= 6, what="the feature level")
        made.in_sync("s", 3)
        yield made


def of(cluster: Limited, name: str) -> Token:
    """A user who may read, trim and register."""
    with cluster.client(deadline_s=60.0) as client:
        token = client.create_token(f"user:{name}", ttl_s=3_600)
        for action, resource in (("stream:read", "s"), ("stream:admin", "s"), ("producer:write", "*")):
            client.grant(f"user:{name}", action, resource)
    for broker in cluster.brokers:
        eventually(lambda b=broker: cluster.ask(b, "GET", "/v1/streams/s", token)[0] == 200, what=f"{broker} knows")
    return token


def is_refused(answer: tuple[int, str | None, dict[str, Any]], limit: str, caller: str) -> bool:
    status, retry, said = answer
    is_told = status == 429 and retry is not None and int(retry) >= 1
    return is_told and (said["reason"], said["key"], said["caller"]) == ("limit_reached", f"limits.{limit}", caller)


def test_a_caller_at_its_limit_is_refused_there_and_what_is_handed_on_counts_for_it(cluster: Limited) -> None:
    ana, bob = of(cluster, "ana"), of(cluster, "bob")
    leader = cluster.leader("s")
    other, third = sorted(set(cluster.brokers) - {leader})
    trim, before = "/v1/streams/s/trim", {"before": "latest"}
    held = cluster.fill(leader, ana)

    def at(broker: str, token: Token) -> tuple[int, str | None, dict[str, Any]]:
        return cluster.ask(broker, "POST", trim, token, before)

    eventually(lambda: is_refused(at(leader, ana), "caller_requests_max", "user:ana"), what="she is at her limit there")
    for broker in (other, third):
        assert cluster.ask(broker, "GET", "/v1/streams/s", ana)[0] == 200, "each broker counts for itself"
        handed_on = at(broker, ana)
        assert is_refused(handed_on, "caller_requests_max", "user:ana"), f"the leader counts it for her: {handed_on}"
        assert at(broker, bob)[0] == 200, "not for the broker that hands it on, nor for anybody else"
    assert at(leader, bob)[0] == 200
    for connection in held:
        connection.close()
    for broker in cluster.brokers:
        eventually(lambda b=broker: at(b, ana)[0] == 200, what="what has ended counts no more")

    cluster.fill(other, ana)
    eventually(lambda: is_refused(at(other, ana), "caller_requests_max", "user:ana"), what="where it came in, too")
    assert at(leader, ana)[0] == 200


def test_new_names_are_counted_where_they_were_asked_for(cluster: Limited) -> None:
    """The command is the controller's, whichever of the three was asked."""
    ana, bob = of(cluster, "ana"), of(cluster, "bob")
    for number, broker in enumerate(cluster.brokers):
        names = [f"p{number}-{each}" for each in range(NAMES + 1)]
        asked = [cluster.ask(broker, "POST", "/v1/producers", ana, {"name": name}) for name in names]
        assert [status for status, _, _ in asked[:NAMES]] == NAMES * [200], asked
        assert is_refused(asked[NAMES], "caller_names_per_minute", "user:ana"), asked[NAMES]
        assert cluster.ask(broker, "POST", "/v1/producers", ana, {"name": f"p{number}-0"})[0] == 200, "no new name"
        assert cluster.ask(broker, "POST", "/v1/producers", bob, {"name": f"q{number}"})[0] == 200
