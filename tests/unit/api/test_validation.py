"""The one validator: any value is what was declared, or is refused with where, value, what must hold and the nearest.

Goal: V1 to V3 of `broker/api/validation.py`. Method: a small declaration with every kind of field, refused by hand and
by random values; what jsonschema refuses by the made schema, `build` refuses too.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator

from broker.api.misfit import Misfit
from broker.api.validation import Rule, build, declared, object_of

Count = Annotated[int, Rule(limit=(0, 9), unit="records")]


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    offset: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    name: Annotated[str, Rule(limit=(1, 5), is_printable=True)]
    at: Literal["first", "last"] | At
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    items: Annotated[tuple[Item, ...], Rule(limit=(1, 3))]
    is_urgent: bool
    kind: Literal["a", "b"] = "a"
    code: str = declared("x", pattern="[x-z]+", says="must be letters from x to z")
    span: tuple[int, int] = (0, 0)
    notes: Annotated[Mapping[str, str], Rule(limit=(0, 2))] = field(default_factory=dict)
    numbered: Mapping[int, Count] = field(default_factory=dict)
    limit: int | None = declared(None, limit=(5, 7), doc="The most.")
    count: Count | None = None
    only: Annotated[Count | None, Rule(is_absent=True)] = None


GOOD: dict[str, Any] = {
    "items": [{"name": "n", "at": "first", "note": None}, {"name": "m", "at": {"offset": 3}}],
    "is_urgent": False,
    "kind": "b",
    "code": "xyz",
    "span": [1, 2],
    "notes": {"k": "v"},
    "numbered": {"12": 4},
    "limit": 6,
    "count": None,
    "only": 4,
}
SCHEMA = Draft202012Validator(object_of(Order).schema({}))
JUNK: list[Any] = [None, True, 0, 6, -1, 1 << 63, 1 << 70, 1.5, "", "x", "first", "\ud800", "a\nb", "z" * 9, [], {}]
JUNK += [[0], [1, 2], {"offset": 3}, {"a": 1}, {"\ud800": "x"}, [[]] * 4, {"1": 1}, "6"]


def test_a_value_becomes_what_was_declared() -> None:
    made = build(Order, GOOD)
    assert made.items[1] == Item(name="m", at=At(offset=3))
    assert (made.span, made.numbered, made.limit, made.notes) == ((1, 2), {12: 4}, 6, {"k": "v"})
    assert build(Order, {"items": made.items, "is_urgent": True}).items == made.items, "what is built is taken as it is"
    assert build(Item, {"name": "n", "at": "last", "later": 1}, is_open=True) == Item(name="n", at="last")


@pytest.mark.parametrize(
    "change, text",
    [
        ({"items": [{"name": "n", "at": "first"}, {"at": "last"}]}, r"items\[1\]\.name is missing"),
        ({"items": [{"name": "n", "at": "x"}]}, r"items\[0\]\.at='x': must be 'first', 'last' or an object .* offset"),
        (
            {"items": [{"name": "n", "at": {"offset": 10}}]},
            r"\]\.at\.offset=10: must be a whole number from 0 to 9 records",
        ),
        ({"items": [{"name": "n\n", "at": "last"}]}, "must be printable text of 1 to 5 characters"),
        ({"items": []}, "must be a list of 1 to 3 items, not of 0 items"),
        ({"is_urgent": 1}, "is_urgent=1: must be true or false"),
        ({"kind": "c"}, "kind='c': must be one of a, b"),
        ({"code": "q"}, "code='q': must be letters from x to z"),
        ({"code": "\ud800"}, "must be Unicode text"),
        ({"span": [1]}, "must be a list of 2 items"),
        ({"span": [1, "2"]}, r"span\[1\]='2': must be a whole number of 64 bits"),
        ({"notes": {"k": 5}}, r"notes\.k=5: must be text"),
        ({"notes": {"\ud800": "v"}}, "keys are Unicode text"),
        ({"notes": {"a": "", "b": "", "c": ""}}, "an object of up to 2 entries"),
        ({"numbered": {"x": 5}}, "keys are whole numbers"),
        ({"limit": 8}, "limit=8: must be a whole number from 5 to 7 or null"),
        ({"count": 10}, "count=10: must be a whole number from 0 to 9 records or null"),
        ({"only": None}, "only=null: must be a whole number from 0 to 9 records$"),
        ({"limt": 6}, "limt=6: is unknown; did you mean 'limit'"),
        ({"q" * 500: 6}, "q=6: is unknown; there are items, is_urgent"),
    ],
)
def test_a_refusal_names_where_value_limit_and_the_nearest(change: dict[str, Any], text: str) -> None:
    with pytest.raises(Misfit, match=text) as caught:
        build(Order, {**GOOD, **change})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", [None, 5, "x", [], [GOOD]])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(Misfit) as caught:
        build(Order, value)
    assert caught.value.text("the body").startswith("the body=")
    assert caught.value.text().endswith(": must be a JSON object")


def test_any_value_is_taken_or_refused_and_never_taken_where_the_schema_forbids_it() -> None:
    rng, taken, named = random.Random(7), 0, set()
    for _ in range(4_000):
        value = copy.deepcopy(GOOD)
        for _ in range(rng.choice((1, 1, 2))):
            holder: Any = value
            while True:
                key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
                if not (isinstance(holder[key], dict | list) and holder[key]) or rng.random() < 0.4:
                    break
                holder = holder[key]
            if isinstance(holder, dict) and rng.random() < 0.3:
                del holder[key]
                holder[rng.choice(("extra", "item", "offset"))] = rng.choice(JUNK)
            else:
                holder[key] = copy.deepcopy(rng.choice(JUNK))
            if not value:
                break
        try:
            build(Order, value)
        except Misfit as misfit:
            named.add(misfit.where.split(".")[0].split("[")[0])
            continue
        taken += 1
        assert SCHEMA.is_valid(value), value
    assert 100 < taken < 3_000
    assert named == {*GOOD, "extra", "item", "offset"}


def test_the_schema_says_what_is_enforced() -> None:
    Draft202012Validator.check_schema(SCHEMA.schema)
    assert SCHEMA.is_valid(GOOD)
    properties = SCHEMA.schema["properties"]
    assert properties["limit"] == {"type": ["integer", "null"], "minimum": 5, "maximum": 7, "description": "The most."}
    assert properties["items"]["maxItems"] == 3
    assert SCHEMA.schema["required"] == ["items", "is_urgent"]
