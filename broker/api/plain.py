"""Values that somebody else wrote, read so that nothing but a ValueError can come of it.

`json.loads` raises RecursionError for a few thousand opening brackets. Decode bytes from a file or a connection here
first; `validation.build` makes a dataclass of what comes out.
"""

from __future__ import annotations

import json
from typing import Any, Final

INT64_MAX: Final = (1 << 63) - 1


def parse_json(data: bytes | bytearray | str, **options: Any) -> Any:
    """The value of a JSON text; `options` as `json.loads` has them. Raises ValueError, nothing else."""
    try:
        return json.loads(data, **options)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def printable(text: str, chars_max: int | None = None) -> str:
    """The text with control characters, line breaks included, as escapes; cut if it is longer."""
    if chars_max is not None and len(text) > chars_max:
        text = f"{text[:chars_max]}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def is_int64(value: Any) -> bool:
    """Whether it is a whole number, not a truth value, that fits a signed 64-bit integer."""
    return type(value) is int and -INT64_MAX - 1 <= value <= INT64_MAX


def is_offset(value: Any) -> bool:
    """Whether it can be an offset: a whole number, 0 <= value < 2^63."""
    return type(value) is int and 0 <= value <= INT64_MAX


def pairs_of_offsets(value: Any) -> tuple[tuple[int, int], ...]:
    """A list of two offsets each. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"not a list but {value!r:.100}")
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2 and all(map(is_offset, pair))):
            raise ValueError(f"not two offsets: {pair!r:.100}")
    return tuple((first, second) for first, second in value)
