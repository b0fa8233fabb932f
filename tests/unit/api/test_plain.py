"""Values that somebody else wrote: whatever they are, a value of the right shape or a ValueError."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from broker.api.errors import NotReady, from_problem
from broker.api.plain import is_offset, pairs_of_offsets, parse_json
from broker.api.validation import build


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    name: str
    count: int
    note: str | None = None


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 50_000, b"\xff", b"", b"{", "[" * 100_000])
def test_json_that_cannot_be_read_is_a_value_error(text: bytes | str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 that it is one, and no RecursionError, is the point
        parse_json(text)


def test_a_dataclass_is_built_of_values_that_fit() -> None:
    assert build(Thing, {"name": "a", "count": 3}) == Thing(name="a", count=3)
    assert build(Thing, {"name": "a", "count": -(1 << 63), "note": None}).note is None


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        5,
        {},
        {"name": "a"},
        {"name": "a", "count": True},
        {"name": "a", "count": 1.0},
        {"name": "a", "count": 1 << 63},
        {"name": 5, "count": 1},
        {"name": "a", "count": 1, "note": 5},
        {"name": "a", "count": 1, "more": 5},
        {"name": "a", "count": [1]},
    ],
)
def test_a_dataclass_is_not_built_of_values_that_do_not(values: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        build(Thing, values)


@pytest.mark.parametrize("value", [None, 5, [1], [[1]], [[1, 2, 3]], [[1, -2]], [[True, 1]], [["a", "b"]], {"a": 1}])
def test_pairs_are_offsets_or_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"offsets|list"):
        pairs_of_offsets(value)


def test_pairs_of_offsets_come_back() -> None:
    assert pairs_of_offsets([[0, 3], [5, (1 << 63) - 1]]) == ((0, 3), (5, (1 << 63) - 1))
    assert not is_offset(1 << 63)


def test_a_problem_may_have_fields_of_any_name() -> None:
    """One called `message` was an error within the error."""
    found = from_problem({"reason": "not_ready", "detail": "x", "message": "y", "self": 1, "args": []})
    assert isinstance(found, NotReady)
    assert (str(found), found.fields["message"], found.fields["self"]) == ("x", "y", 1)
