"""The JSON of a request body: its nesting and its items are counted before it is parsed.

A short text may stand for many objects: `{"a":1},` is 8 bytes and 200 in memory. The count costs a few passes over the
bytes (numpy, mostly without the GIL) and no object per item.

J1  What is parsed is nested at most `DEPTH_MAX` deep and has at most the items that its endpoint takes.
J2  The memory of the objects is reserved before they are made.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import numpy as np

from broker.api.errors import InvalidRequest, RequestTooLarge

if TYPE_CHECKING:
    from broker.serving.http.body import Reservation

DEPTH_MAX: Final = 32
ITEMS_MAX: Final = 1 << 17
"""Keys and values of one JSON body, as far as its endpoint does not take more."""
ITEM_COST_BYTES: Final = 128
SHORT_BYTES: Final = 1_024
"""Up to here passes of numpy take longer than all the rest."""
TEXT_COPIES: Final = 3
"""So many times the length of the text is taken while it is counted and parsed."""
_STRUCTURE: Final = np.zeros(256, np.int8)
_STRUCTURE[list(b"[{")] = 1
_STRUCTURE[list(b"]}")] = -1
_STRUCTURE[list(b",")] = 2


class Tally(NamedTuple):
    """How deep a JSON text is nested, and how many items it has: values, a key and its value being one."""

    depth: int
    items: int


def tally(text: bytes) -> Tally:
    """Count without parsing. Of a text that is no JSON the numbers mean nothing."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"..").replace(b'\\"', b"..")
    data = np.frombuffer(text, np.uint8)
    marks = _STRUCTURE[data]
    marks[np.logical_xor.accumulate(data == ord('"'))] = 0  # within a string
    marks = marks[marks != 0]
    nesting = np.cumsum(np.where(marks == 2, 0, marks), dtype=np.int32)
    return Tally(int(nesting.max(initial=0)), 1 + int((marks > 0).sum()))


def at_most(text: bytes) -> Tally:
    """What a text can have at most: its marks, whether they are within strings or not."""
    opened = text.count(b"[") + text.count(b"{")
    return Tally(opened, 1 + opened + text.count(b","))


def parse(body: bytes | bytearray | memoryview, reservation: Reservation, items_max: int = ITEMS_MAX) -> dict[str, Any]:
    """A body as a JSON object. Doubled keys, NaN and Infinity are refused.

    Raises:
        InvalidRequest: not such a body, or nested too deep.
        RequestTooLarge: too many items. Overloaded: as `Reservation.grow_to`.
    """
    reservation.grow_to(TEXT_COPIES * len(body))
    text = bytes(body)
    depth, items = at_most(text)
    if len(text) > SHORT_BYTES or depth > DEPTH_MAX or items > items_max:
        depth, items = tally(text)
    if depth > DEPTH_MAX:
        raise InvalidRequest(
            f"the request body is JSON nested {depth} deep: at most {DEPTH_MAX} are accepted", limit=DEPTH_MAX
        )
    if items > items_max:
        raise RequestTooLarge(
            f"the request body has {items} JSON items: at most {items_max} are accepted", limit=items_max
        )
    reservation.grow_to(TEXT_COPIES * len(body) + ITEM_COST_BYTES * items)
    try:
        value = _DECODER.decode(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the request body is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"the request body must be a JSON object, it is {type(value).__name__}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:100]!r} is given twice")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
