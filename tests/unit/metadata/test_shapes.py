"""Every field of every command has a shape. A matrix: all commands, all fields, values that nobody honest writes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest

from broker.api.errors import InvalidRequest
from broker.metadata import access, broker_commands, catalog, group_commands, partition_commands, rescue, shapes
from broker.metadata.catalog import Catalog
from broker.metadata.shapes import FIELDS, Address, Line, RequestId, VoterId

TEXTS = (
    "../../..",
    "..",
    ".",
    "/etc",
    "a/b",
    "a b",
    "x\r\nSet-Cookie: a=b",
    "a\nb",
    "a\0",
    "\x85",
    "\u2028",
    "a\ud800",
)
LONG = "x" * 1_000
NO_TEXTS = (None, 7, True, 1.5, [], {}, ["a"], {"a": 1})
NO_NUMBERS = (None, True, 1.5, "1", "", [], {}, -2, 1 << 63, 10**30, float("nan"))
REGISTER = {"v": 1, "kind": "register_broker", "broker_id": "b", "incarnation": "i", "http": "h:1", "grpc": "h:2"}


def kinds_of_dispatch() -> set[str]:
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(Catalog._dispatch)))
    named = {node.value.value for node in ast.walk(tree) if isinstance(node, ast.MatchValue)}  # type: ignore[attr-defined]
    return (
        named
        | set(broker_commands.KINDS)
        | set(partition_commands.KINDS)
        | set(rescue.KINDS)
        | set(access.KINDS)
        | group_commands.KINDS
    )


def misfits(hint: Any) -> Iterator[Any]:
    """Values that do not fit, in each place of a shape."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if arguments[0] is str:
            yield from NO_TEXTS
            yield LONG
            harmless = {Line: TEXTS[:6], RequestId: TEXTS[:6], Address: TEXTS[1:3], VoterId: ()}.get(hint, ())
            yield from (text for text in TEXTS if text not in harmless)
        elif get_origin(arguments[0]) is None:
            yield from NO_NUMBERS
        else:
            yield from ({text: []} for text in TEXTS)
            yield from misfits(arguments[0])
    elif hint is int:
        yield from (each for each in NO_NUMBERS if each != -2)
    elif hint is bool:
        yield from (None, 0, 1, "true", [])
    elif origin is tuple and arguments[-1] is Ellipsis:
        yield from (None, 7, "ab", {"a": 1})
        yield from ([each] for each in misfits(arguments[0]))
    elif origin is tuple:
        yield from (None, 7, [], ["a"] * (len(arguments) + 1))
        fits = ["a" if each in (shapes.Word, shapes.Name) else 1 for each in arguments]
        for at, each in enumerate(arguments):
            yield from ([*fits[:at], bad, *fits[at + 1 :]] for bad in misfits(each))
    elif isinstance(origin, type):  # a mapping
        yield from (None, 7, "ab", ["a"])
        if arguments[1] is not Any:
            yield from ({"a": each} for each in misfits(arguments[1]))
    else:  # or None
        yield from (each for each in misfits(arguments[0]) if each is not None)


def test_every_command_has_shapes_and_every_shape_a_command() -> None:
    assert kinds_of_dispatch() == set(FIELDS)
    assert len(FIELDS) >= 30


@pytest.mark.parametrize("kind", sorted(FIELDS))
def test_no_field_takes_what_it_is_not(kind: str) -> None:
    """M10. Each value is refused by its field's shape, before anything is looked up, and changes nothing."""
    for key, hint in {**FIELDS[kind], "request_id": RequestId}.items():
        tried = list(misfits(hint))
        assert len(tried) >= 4, key
        for value in tried:
            of = Catalog()
            before = of.snapshot()
            command = {"v": 1, "kind": kind, key: value}
            if value is not None or hint is not bool:
                error = of.apply(command)["error"]
                assert error["reason"] in ("invalid_request", "invalid_name"), (key, value)
                assert error["reason"] == "invalid_name" or error.get("key") == key, (key, value, error)
            with pytest.raises(InvalidRequest):
                of.judge(command)
            assert of.snapshot() == before


def test_a_command_sees_no_field_that_has_no_shape() -> None:
    """D1. A handler that reads a field which is not in the table finds nothing."""
    seen = shapes.checked({**REGISTER, "pad": "y", "v": 1, "kind": "register_broker"}, "register_broker")
    assert seen == {key: REGISTER[key] for key in ("broker_id", "incarnation", "http", "grpc")}


@pytest.mark.parametrize(
    "http", ["10.0.0.7:9293", "[::1]:9293", "::1:9293", "broker-1.example_net:9293", "h", "bröker:1"]
)
def test_addresses_that_a_release_has_written_are_taken(http: str) -> None:
    """D3. A single broker of before registered its host as configured, an IPv6 one without brackets, port 0 too."""
    assert "ok" in Catalog().apply({**REGISTER, "http": http, "grpc": "::1:0", "rack": "Ä 1, left"})


@pytest.mark.parametrize(
    "http", ["x\r\nLiftlog: y", "a,b:1", "u@h:1", "h:1/p", 'h"', "h\t", "", "h" * 301, "h:1?q", "h#"]
)
def test_an_address_is_safe_in_a_header(http: str) -> None:
    """Seen before: one registration with a line break emptied every HTTP answer of every broker, for good."""
    assert Catalog().apply({**REGISTER, "http": http})["error"]["key"] == "http"


def test_an_incarnation_is_one_part_of_a_path() -> None:
    """Seen before: `../../..` deleted a foreign folder when the stream was deleted."""
    of = Catalog()
    command = {"v": 1, "kind": "create_stream", "name": "s", "created_us": 1, "settings": {}}
    for incarnation in ("../../..", "..", "a/b", "/tmp/x", "a.aside", "a\0b", ""):
        assert of.apply({**command, "incarnation": incarnation})["error"]["key"] == "incarnation"
    assert "ok" in of.apply({**command, "incarnation": "0123456789abcdef" * 2})


def test_a_journal_with_a_refused_command_replays_without_it() -> None:
    """One that a stranger had written before there were shapes is passed over, on every broker alike."""
    bad = {"v": 1, "kind": "create_stream", "name": "s", "incarnation": "../x", "created_us": 1, "settings": {}}
    journal = [REGISTER, bad, {**bad, "name": "t", "incarnation": "i1"}]
    of = Catalog()
    for command in journal:
        of.apply(command)
    assert list(of.streams) == ["t"]
    assert of.snapshot()["v"] == catalog.SNAPSHOT_VERSION
