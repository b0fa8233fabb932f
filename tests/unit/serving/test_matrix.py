"""Each call, by each kind of caller, for each of three names: the answer is what the table and the grants say.

Method: what a caller may do is computed here from the table of endpoints and from what the caller was granted, by a few
lines that share nothing with the gate. Then every call is made for a name of one's own, for one that begins alike, and
for somebody else's. The things are there. Who is refused goes first, and changes nothing; what a list tells is what its
caller may see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from broker.api.permissions import Need, Where
from broker.api.principals import Token, new_token
from broker.api.stream import AUDIT_STREAM
from broker.serving.contract.endpoint import Endpoint
from broker.serving.http.app import ENDPOINTS
from tests.unit.serving.server import Server
from tests.unit.serving.test_access import ADMIN, OTHER, OWN, SIBLING, Enforced, enforcing, of, proven, request_for

REFUSED: Final = {401: "unauthenticated", 403: "unauthorized"}
NAMES: Final = (OWN, SIBLING, OTHER)
BROKERS_ALONE: Final = frozenset({"broker", "audit:tell"})
"""What nobody else may do, admins neither."""
A_BROKER_MAY: Final = BROKERS_ALONE | {"stream:read", "cluster:read", "metrics"}
"""What a broker asks for itself (`access.A6`)."""
MET: Final = {
    "verify": False,
    "it has a name, or is another principal's": False,
    "there is one": True,
    "there is none": False,
    "unclean": False,
}
"""The conditions of the table, and whether the requests of `Enforced.ask` meet them."""
NOT_IN_GROUPS: Final = ("create_stream", "stream:admin")
"""The streams that are created here take no part in a group of NATS: there is no stream of the same group."""
LISTS: Final = {
    "list_streams": ("streams", "name"),
    "list_producers": ("producers", "name"),
    "list_consumers": ("consumers", "consumer"),
    "list_groups": ("groups", "group"),
    "list_sinks": ("sinks", "sink"),
    "watch": ("streams", None),
}
"""Where the names stand in the answer; None: they are the keys."""


@dataclass(frozen=True)
class Caller:
    """Somebody who asks.

    Attributes:
        shows: A token; None: nothing.
        grants: An action, and a name or prefix with `*`.
        is_good: Whether what it shows holds.
        through_broker: The principal for whom a broker asks.
    """

    name: str
    shows: Token | None = None
    grants: tuple[tuple[str, str], ...] = ()
    is_good: bool = True
    is_admin: bool = False
    is_broker: bool = False
    through_broker: str = ""

    def may(self, action: str, thing: str) -> bool:
        if self.is_broker:
            return action in A_BROKER_MAY
        if self.is_admin or action in BROKERS_ALONE:
            return action not in BROKERS_ALONE
        return any(action == of and covers(grant, thing) for of, grant in self.grants)


def covers(grant: str, thing: str) -> bool:
    return thing.startswith(grant[:-1]) if grant.endswith("*") else thing == grant


def lacking(endpoint: Endpoint, caller: Caller, name: str) -> list[str]:
    """The actions that the table demands of a call which names this thing, and that this caller may not do to it."""
    found = []
    for need in endpoint.permission:
        if need.where is Where.ANSWER or (need.when and not MET[need.when]):
            continue
        if (endpoint.operation, need.action) == NOT_IN_GROUPS:
            continue
        assert need.where is not Where.ANY, "of what the requests here do, nothing is for any thing"
        if not caller.may(need.action, "" if need.where is Where.NOWHERE else name):
            found.append(need.action)
    return found


def expected(endpoint: Endpoint, caller: Caller, name: str) -> int:
    """401, 403, or 200 for whatever else: then the call is let in, and is answered as it may be."""
    if endpoint.path == "/livez":
        return 200
    if not caller.is_good:
        return 401
    return 403 if lacking(endpoint, caller, name) else 200


def grants_of(needs: tuple[Need, ...], name: str) -> tuple[tuple[str, str], ...]:
    """All that the table may demand for this name, or this prefix."""
    found = [(n.action, "" if n.where is Where.NOWHERE else name) for n in needs if n.action not in BROKERS_ALONE]
    return tuple(dict.fromkeys(found))


class Peopled(Enforced):
    """A server on which there is something of each name."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._before: tuple[str, dict[str, list[int]]] | None = None

    def renew(self) -> None:
        """Have a new stream of each name, a producer, a sink, and a consumer and a group with offsets of it; unless
        all is as it was."""
        if self._before is not None and self.is_as_it_was():
            return
        for name in NAMES:
            self._delete("streams", name)
            self._delete("sinks", name)
            self._post("/v1/streams", name=name, subject=name)
            self._post("/v1/producers", name=name)
            self._post(f"/v1/sinks/{name}/open", owner="me")
            self._post(f"/v1/consumers/{name}/offsets", offsets=[{"stream": name, "partition": 0, "offset": 0}])
            session = self._post(f"/v1/groups/{name}/members", member="m", streams=[name])["session"]
            self._post(f"/v1/groups/{name}/members/m/leave", session=session)  # who has members is not forgotten
            self._post(f"/v1/groups/{name}/reset", stream=name, to="latest")
        self._before = self._state()

    def is_as_it_was(self) -> bool:
        """Whether no call has changed anything since it was made anew; but grants, tokens and the audit."""
        return self._state() == self._before

    def _state(self) -> tuple[str, dict[str, list[int]]]:
        """The catalog, and where each log ends: what is said of consumers, groups and sinks is in logs."""
        backend = self.server.backend
        logs = {each.name: backend.partitions(each.name) for each in backend.streams(internal=True)}
        ends = {
            name: [each.log.state.log_end_offset for each in of] for name, of in logs.items() if name != AUDIT_STREAM
        }
        catalog = {key: value for key, value in backend._catalog.snapshot().items() if key != "access"}
        return json.dumps(catalog), ends

    def _delete(self, kind: str, name: str) -> None:
        assert self.call("DELETE", f"/v1/{kind}/{name}", ADMIN)[0] in (204, 404)

    def _post(self, path: str, **body: Any) -> Any:
        status, _, said = self.call("POST", path, ADMIN, body=body)
        assert status < 300, said
        return said


@pytest.fixture(scope="module")
def peopled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peopled]:
    with enforcing(tmp_path_factory.mktemp("matrix"), admins=frozenset({"user:ops"})) as made:
        yield Peopled(made.server)


def callers(enforced: Peopled, endpoint: Endpoint) -> list[Caller]:
    """All of them, with what they need for this call."""
    exact, prefix, theirs = (grants_of(endpoint.permission, name) for name in (OWN, f"{OWN}*", OTHER))
    found = [
        Caller("anonymous"),
        Caller("no grant", enforced.grant("user:none")),
        Caller("exact", enforced.grant("user:exact", *exact), exact),
        Caller("prefix", enforced.grant("user:prefix", *prefix), prefix),
        Caller("the other's", enforced.grant("user:other", *theirs), theirs),
        Caller("broker", is_broker=True),
        Caller("no grant, through a broker", through_broker="user:none"),
        Caller("admin", ADMIN, is_admin=True),
        Caller("expired", token(enforced, expires_ms=2), is_good=False),
        Caller("revoked", revoked(enforced), is_good=False),
    ]
    for number, grant in enumerate(exact):
        less = tuple(each for each in exact if each != grant)
        found.append(Caller(f"without {grant[0]}", enforced.grant(f"user:less-{number}", *less), less))
        if less and grant[1]:  # who may do it to nothing at all is refused before the body is read
            elsewhere = (*less, (grant[0], OTHER))
            shows = enforced.grant(f"user:elsewhere-{number}", *elsewhere)
            found.append(Caller(f"with {grant[0]} elsewhere", shows, elsewhere))
    return found


def token(enforced: Enforced, *, expires_ms: int) -> Token:
    """A token of an admin, for whom nothing but its end can be in the way."""
    made = new_token()
    of = {"token_id": made.id, "sha256": made.sha256, "principal": "user:ops", "by": "admin"}
    enforced.server.backend._execute({"kind": "put_token", **of, "expires_ms": expires_ms, "at_ms": 1})
    return made


def revoked(enforced: Enforced) -> Token:
    made = token(enforced, expires_ms=1 << 60)
    enforced.server.backend._execute({"kind": "drop_token", "token_id": made.id, "by": "admin"})
    return made


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=of)
def test_a_call_needs_all_that_the_table_says_and_for_this_thing(peopled: Peopled, endpoint: Endpoint) -> None:
    peopled.renew()
    names = (OWN,) if request_for(endpoint, OWN) == request_for(endpoint, OTHER) else NAMES  # some calls name nothing
    asked = [(expected(endpoint, who, name), who, name) for who in callers(peopled, endpoint) for name in names]
    for due, who, name in asked:
        if due != 200:
            status, reason, said = ask(peopled, endpoint, who, name)
            assert (status, reason) == (due, REFUSED[due]), (who.name, name, said)
            assert said.get("needs") in (lacking(endpoint, who, name) if due == 403 else [None]), (who.name, name)
    assert peopled.is_as_it_was(), "a call that was refused has changed something"
    for due, who, name in asked:
        if due == 200:
            status, _, said = ask(peopled, endpoint, who, name)
            assert status not in (401, 403, 500), (who.name, name, said)
            assert told(endpoint, said) == {each for each in NAMES if may_be_told(endpoint, who, each)}, who.name


def ask(enforced: Enforced, endpoint: Endpoint, caller: Caller, name: str) -> tuple[int, str, Any]:
    path, body, headers = request_for(endpoint, name)
    if caller.is_broker or caller.through_broker:
        headers |= proven(endpoint.method, path, enforced.server.port, behalf=caller.through_broker)
    return enforced.call(endpoint.method, path, caller.shows, body=body, headers=headers)


def may_be_told(endpoint: Endpoint, caller: Caller, name: str) -> bool:
    """Whether the answer of a list, or of the page of links, is to have this name in it."""
    listed = [need.action for need in endpoint.permission if need.where is Where.ANSWER]
    return bool(listed) and all(caller.may(action, name) for action in listed)


def told(endpoint: Endpoint, said: Any) -> set[str]:
    """Those of the names that the answer of a list has in it."""
    if not any(need.where is Where.ANSWER for need in endpoint.permission):
        return set()
    if endpoint.operation == "page":
        return {name for name in NAMES if f"/{name}/" in said.decode()}
    listed, name = LISTS[endpoint.operation]
    return {each if name is None else each[name] for each in said[listed]} & {*NAMES}
