"""Changed inputs, by seed: the usual ways in which bytes and JSON go wrong."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any, Final

GROWN_MAX: Final = 1 << 17
"""An input does not grow over this many bytes."""

_NUMBERS: Final = (0, 1, 7, 8, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63)
_TEXTS: Final = (b"", b"\0", b"\r\n", b" ", b"-1", b"0", b"1e999", b"99999999999999999999", b"\xff\xfe", b"{}", b"[]")
_JUNK: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 70, -(1 << 63) - 1, 1.5, -0.0, 1e308),
    *("", "x", "0", "-1", "é", "\0", "\ud800", "a/b", "latest", "__offsets", "f" * 32),
    *([], {}, [0], [[]], {"v": 1}, {"a": {"b": []}}),
)


def mutate_bytes(
    rng: random.Random, data: bytes, *, others: Sequence[bytes] = (), words: Sequence[bytes] = ()
) -> bytes:
    """The bytes with one to eight things changed."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3, 8])):
        at = rng.randint(0, len(changed))
        size = min(rng.choice([1, 1, 2, 4, 8, 32, 200]), len(changed) - at)
        match rng.randrange(11):
            case 0 if size:
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if size:
                changed[at] = rng.randrange(256)
            case 2:
                changed[at:at] = rng.randbytes(rng.choice([1, 2, 8, 40]))
            case 3:
                del changed[at : at + size]
            case 4:
                changed[at:at] = changed[at : at + size]
            case 5:
                del changed[at:]
            case 6:
                changed[at : at + size] = bytes(size)
            case 7:
                width = rng.choice([1, 2, 4, 8])
                number = rng.choice(_NUMBERS) % (1 << 8 * width)
                changed[at : at + width] = number.to_bytes(width, rng.choice(["little", "big"]))
            case 8:
                word = rng.choice([*words, *_TEXTS])
                changed[at : at + rng.choice([0, len(word)])] = word
            case 9 if others:
                other = rng.choice(others)
                start = rng.randint(0, len(other))
                changed[at : at + size] = other[start : start + rng.choice([1, 8, 64, 2_000])]
            case _:
                start = rng.randint(0, len(changed))
                changed[at:at] = changed[start : start + rng.choice([8, 64, 1_000])]
        del changed[GROWN_MAX:]
    return bytes(changed)


def mutate_json(rng: random.Random, value: Any) -> Any:
    """A value with one thing in it replaced, removed, doubled, renamed or added."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def collect(inner: Any) -> None:
        if isinstance(inner, dict | list):
            for key in list(inner) if isinstance(inner, dict) else range(len(inner)):
                places.append((inner, key))
                collect(inner[key])

    collect(value)
    if not places or rng.random() < 0.03:
        return copy.deepcopy(rng.choice(_JUNK))
    holder, key = rng.choice(places)
    match rng.randrange(7):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(["extra", "message", "self", "v", "", key + "x"])] = copy.deepcopy(rng.choice(_JUNK))
        case 2 if isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        case 3 if isinstance(holder, list):
            del holder[key]
        case 4:
            other, inner = rng.choice(places)
            holder[key] = copy.deepcopy(other[inner])
        case _:
            holder[key] = copy.deepcopy(rng.choice(_JUNK))
    return value
