"""Each endpoint says what its caller needs. A matrix over the table of endpoints: it has no hole.

That callers are refused by it: `test_matrix.py`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from broker.api.permissions import ACTIONS, Need, Where, kind_of, needs, of_body, of_path, of_query
from broker.serving.contract.endpoint import Endpoint, Endpoints
from broker.serving.http.app import ENDPOINTS

BY_OPERATION = {each.operation: each for each in ENDPOINTS}
THINGS = {"stream": "stream", "consumer": "consumer", "pin": "consumer", "producer": "producer", "sink": "sink"}
"""Path parameters by the kind of thing that they name."""
ASKING = {"resolve_offsets"}
"""They change nothing, and their question is too long for a query."""


def of(endpoint: Endpoint) -> str:
    return endpoint.operation


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=of)
def test_an_endpoint_without_a_permission_does_not_load(endpoint: Endpoint) -> None:
    """E3. There is no default, none of another type, and what says nothing alone may be open."""
    fields = {name: getattr(endpoint, name) for name in endpoint.__slots__}
    assert Endpoint(**fields) == endpoint
    del fields["permission"]
    with pytest.raises(TypeError, match="permission"):
        Endpoint(**fields)
    for bad in (None, "stream:read", [*endpoint.permission], () if endpoint.permission else needs("metrics")):
        with pytest.raises(AssertionError, match="E3"):
            replace(endpoint, permission=bad)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="E3"):
        replace(endpoint, permission=of_path("stream:read", "nothing"))
    with pytest.raises(AssertionError, match="E3"):
        replace(endpoint, permission=of_query("sink:write", "nothing"))
    if endpoint.request is None:
        with pytest.raises(AssertionError, match="E3"):
            replace(endpoint, permission=of_body("stream:read", "stream"))


def test_the_table_of_a_module_has_no_default_either() -> None:
    arguments: Any = ("GET", "/v1/new", "new", {})
    with pytest.raises(TypeError, match="permission"):
        Endpoints().add(*arguments)


def test_a_need_has_a_known_action_and_a_name_where_there_are_names() -> None:
    """P1, P2."""
    for action, where in (("stream:delete", Where.PATH), ("stream:read", Where.NOWHERE), ("metrics", Where.PATH)):
        with pytest.raises(AssertionError):
            Need(action, where, "stream")


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=of)
def test_what_a_path_names_is_what_is_needed(endpoint: Endpoint) -> None:
    """Each name in a path is judged by its kind: none is passed over."""
    needed = {(kind_of(need.action), need.name) for need in endpoint.permission if need.where is Where.PATH}
    is_of_brokers = any(need.action == "broker" for need in endpoint.permission)
    for name in re.findall(r"{(\w+)}", endpoint.path):
        if name in THINGS and not is_of_brokers:
            assert (THINGS[name], name) in needed, name
    if "{broker}" in endpoint.path:
        assert all(need.action.startswith("cluster:") for need in endpoint.permission)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=of)
def test_what_changes_something_needs_more_than_to_read(endpoint: Endpoint) -> None:
    actions = {need.action for need in endpoint.permission if not need.when}
    actions |= {need.action for need in endpoint.permission} if endpoint.operation == "register_producer" else set()
    reading = {action for action in ACTIONS if action.endswith(":read") or action == "metrics"}
    if "auth:admin" in actions:
        return
    if endpoint.method == "GET" and endpoint.permission:
        assert actions & (reading | {"producer:write"})
        assert actions <= reading | {"producer:write"}
    elif endpoint.permission and endpoint.operation not in ASKING:
        assert actions - reading


def test_each_action_is_needed_somewhere() -> None:
    needed = {need.action for endpoint in ENDPOINTS for need in endpoint.permission}
    assert set(ACTIONS) == needed


def test_what_may_cost_records_is_the_cluster_admins() -> None:
    for operation in ("accept_loss", "remove_broker", "excuse_replicas", "end_rescue"):
        assert BY_OPERATION[operation].permission == needs("cluster:admin")
    assert needs("cluster:admin", when="unclean")[0] in BY_OPERATION["elect_leaders"].permission


def test_what_brokers_ask_each_other_is_theirs_alone() -> None:
    theirs = {each.operation for each in ENDPOINTS if needs("broker")[0] in each.permission}
    assert theirs == {"check_sink", "ask_silences", "ask_stages"}
    assert all(BY_OPERATION[each].permission == needs("broker") for each in theirs)
