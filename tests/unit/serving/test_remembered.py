"""R1 to R4. What a connection remembers of its caller ends with each thing that it goes by.

Method: one connection, on which the bearer of a token is known and remembered. Then something else is shown on it, or
something changes, and its next request has to be judged as on a new one. That it was remembered is seen by that nobody
was looked up.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from broker.api import http as names
from broker.api.principals import Granted, Token, new_token
from broker.serving.http.access import Asking, Gate, Identified
from broker.serving.http.rights import LastCaller
from tests.support.certificates import Authority
from tests.unit.serving.test_access import ADMIN, OTHER, OWN, SIBLING, Enforced, enforcing, proven


class OneConnection:
    """Asks for descriptions of streams, all on one connection; counts how often its caller was looked up."""

    def __init__(
        self,
        enforced: Enforced,
        monkeypatch: pytest.MonkeyPatch,
        client: http.client.HTTPConnection | None = None,
    ) -> None:
        self.enforced, self.looked_up = enforced, 0
        self.ana = enforced.grant("user:ana", ("stream:read", OWN))
        self._client = client or http.client.HTTPConnection("127.0.0.1", enforced.server.port, timeout=60)
        self._client.connect()
        identified = Gate._identified

        def counted(gate: Gate, request: web.Request) -> Identified:
            self.looked_up += 1
            return identified(gate, request)

        monkeypatch.setattr(Gate, "_identified", counted)

    def ask(self, *authorization: str, name: str = OWN, path: str = "", **headers: str) -> str:
        """The reason of the answer; "ok": it was answered."""
        own = self._client.sock
        self._client.putrequest("GET", path or f"/v1/streams/{name}")
        for value in authorization:
            self._client.putheader("Authorization", value)
        for header, value in headers.items():
            self._client.putheader(header, value)
        self._client.endheaders()
        answer = self._client.getresponse()
        said: dict[str, Any] = json.loads(answer.read())
        assert self._client.sock is own, "it is all one connection"
        return "ok" if answer.status == 200 else str(said["reason"])

    def as_ana(self, **more: Any) -> str:
        return self.ask(bearer(self.ana), **more)

    def is_remembered(self) -> bool:
        """Whether the next request of ana goes without a look-up, and is answered."""
        before = self.looked_up
        return self.as_ana() == "ok" and self.looked_up == before

    def execute(self, kind: str, **command: Any) -> None:
        self.enforced.server.backend._execute({"kind": kind, **command, "by": "user:ops"})


def bearer(token: Token) -> str:
    return f"Bearer {token.text}"


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneConnection]:
    with enforcing(tmp_path) as enforced:
        for name in (OWN, SIBLING, OTHER):
            assert enforced.call("POST", "/v1/streams", ADMIN, body={"name": name})[0] == 201
        found = OneConnection(enforced, monkeypatch)
        assert found.as_ana() == "ok"
        assert found.is_remembered()
        yield found
        found._client.close()


def test_what_else_is_shown_is_judged_for_itself(one: OneConnection) -> None:
    """R2. Another caller, or whoever says more of himself; and then ana again, as before."""
    bo, ana = one.enforced.grant("user:bo", ("stream:read", OTHER)), bearer(one.ana)
    assert one.as_ana() == "ok"
    peer = proven("GET", f"/v1/streams/{OWN}", one.enforced.server.port)
    other_shown: list[tuple[Callable[[], str], str]] = [
        (lambda: one.as_ana(name=SIBLING), "unauthorized"),
        (lambda: one.as_ana(name=OTHER), "unauthorized"),
        (lambda: one.ask(bearer(bo)), "unauthorized"),
        (lambda: one.ask(bearer(bo), name=OTHER), "ok"),
        (lambda: one.ask(bearer(ADMIN), name=OTHER), "ok"),
        (lambda: one.ask(), "unauthorized"),
        (lambda: one.ask(ana, ana), "unauthenticated"),
        (lambda: one.ask(ana, bearer(bo)), "unauthenticated"),
        (lambda: one.ask(ana[:-1] + ("1" if ana[-1] == "0" else "0")), "unauthenticated"),
        (lambda: one.ask(ana + "0"), "unauthenticated"),
        (lambda: one.ask(bearer(new_token())), "unauthenticated"),
        (lambda: one.ask(f"Basic {one.ana.text}"), "unauthenticated"),
        (lambda: one.ask(ana, **{names.BEHALF: "user:bo"}), "unauthenticated"),
        (lambda: one.ask(ana, **{names.PROOF: "b 1 " + "0" * 64}), "unauthenticated"),
        (lambda: one.ask(ana, name=OWN, **peer), "ok"),
        (lambda: one.ask(f"bearer  {one.ana.text}"), "ok"),
    ]
    for ask, expected in other_shown:
        assert ask() == expected
        one.as_ana()
        assert one.is_remembered()


def test_it_ends_with_each_change_of_tokens_and_grants(one: OneConnection) -> None:
    """R1. At the next request, whatever was changed."""
    one.enforced.grant("user:ana", ("stream:read", OTHER))
    assert [one.as_ana(), one.as_ana(name=OTHER)] == ["unauthorized", "ok"]
    one.enforced.grant("user:ana", ("stream:read", OWN))
    assert one.as_ana() == "ok"
    assert one.is_remembered()
    one.enforced.grant("user:bo")
    before = one.looked_up
    assert one.as_ana() == "ok"
    assert one.looked_up == before + 1, "a change of somebody else's ends it, too: there is one number for all"
    assert one.is_remembered()
    one.execute("drop_token", token_id=one.ana.id)
    assert one.as_ana() == "unauthenticated"


def test_it_ends_with_its_token_and_with_its_catalog(one: OneConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3, and R1: a snapshot that is restored may have the same version."""
    gate, backend = one.enforced.server.serving.gate, one.enforced.server.backend
    short = new_token()
    of = {"token_id": short.id, "sha256": short.sha256, "principal": "user:ana"}
    one.execute("put_token", **of, expires_ms=1 << 50, at_ms=1)
    assert [one.ask(bearer(short)), one.ask(bearer(short))] == ["ok", "ok"]
    with monkeypatch.context() as later:
        later.setattr(gate, "_now_ns", lambda: 1 << 70)
        assert one.ask(bearer(short)) == "unauthenticated"
    assert one.as_ana() == "ok"
    assert one.is_remembered()
    other = backend.access.copy()
    other.tokens = {}
    monkeypatch.setattr(gate, "access", lambda: other)
    monkeypatch.setattr(gate.editions, "_access", lambda: other)
    assert one.as_ana() == "unauthenticated"


def test_a_change_while_a_remembered_request_is_judged_ends_it(
    one: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A4. Its grant is taken back when it was judged by what was remembered, and is not under way yet."""
    need_query = Asking.need_query

    async def taken_back(asking: Asking, *given: Any) -> None:
        await need_query(asking, *given)
        one.enforced.grant("user:ana")
        one.enforced.server.serving.gate.look()

    before = one.looked_up
    monkeypatch.setattr(Asking, "need_query", taken_back)
    assert one.as_ana() == "unauthorized"
    assert one.looked_up == before, "it was remembered"


def test_who_is_not_known_for_good_is_not_remembered(one: OneConnection) -> None:
    """R2. Neither a broker, nor whoever it asks for, nor nobody: they are looked up each time."""
    path = f"/v1/streams/{OWN}"
    for headers in (
        proven("GET", path, one.enforced.server.port),
        proven("GET", path, one.enforced.server.port, behalf="user:ana"),
        {},
    ):
        one.as_ana()
        before = one.looked_up
        one.ask(**headers)
        one.ask(**headers)
        assert one.looked_up >= before + 2


def test_what_is_long_is_judged_each_time_and_not_kept(one: OneConnection) -> None:
    """R4. A header may have 8 KiB and a path 64, for each of thousands of connections."""
    padded = f"Bearer {' ' * 1_000}{one.ana.text}"
    before = one.looked_up
    assert [one.ask(padded), one.ask(padded)] == ["ok", "ok"]
    assert one.looked_up == before + 2
    found = LastCaller(1, bearer(one.ana), Identified(), Granted([("stream:read", "s*")]))
    assert found.allows(("stream:read", "s" * 60_000))
    assert found.allowed is None


def test_a_header_of_any_bytes_is_compared_and_no_fault(one: OneConnection) -> None:
    for value in ("Bearer \xff", "\xe9", ""):
        assert one.ask(value) == "unauthenticated"
    found = LastCaller(
        1, bearer(one.ana), Identified(), one.enforced.server.serving.gate.editions.rights_of("user:ana")
    )
    assert found.allows(("stream:read", OWN))
    assert not found.allows(("stream:read", SIBLING))
    assert not found.allows(("stream:append", OWN))
    assert found.allows(("stream:read", OWN))


@pytest.mark.parametrize("who", ["liftlog:user/ana", "liftlog:broker/broker-0"])
def test_a_certificate_is_remembered_if_it_names_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """R2. A broker may have left the cluster meanwhile, of which no edition tells: it is looked up each time."""
    authority = Authority(tmp_path / "ca")
    mine = authority.issue("mine", uris=[who])
    certificates = authority.certificates(None, tls_client_ca=authority.ca)
    with enforcing(tmp_path / "data") as enforced:
        assert enforced.call("POST", "/v1/streams", ADMIN, body={"name": OWN})[0] == 201
        port = enforced.server.call(enforced.server.listen(certificates.contexts))
        client = http.client.HTTPSConnection("127.0.0.1", port, context=authority.client_context(mine), timeout=60)
        one = OneConnection(enforced, monkeypatch, client)
        assert one.ask() == "ok"
        before = one.looked_up
        assert [one.ask(), one.ask("Bearer nonsense")] == ["ok"] * 2, "a certificate comes before a token"
        assert one.looked_up == before + (0 if "user" in who else 2)
        if "user" in who:
            assert one.ask(**{names.BEHALF: "user:ops"}) == "unauthenticated"
            enforced.grant("user:ana")
            assert one.ask() == "unauthorized"
        else:
            gate = enforced.server.serving.gate
            assert one.ask(**{names.BEHALF: "user:bo"}) == "unauthenticated"
            monkeypatch.setattr(gate, "_brokers", lambda: {"broker-1"})
            assert one.ask() == "unauthenticated"
        client.close()
