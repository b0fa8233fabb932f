"""Values that somebody else wrote, read so that nothing but a ValueError can come of it.

`json.loads` raises RecursionError for a few thousand opening brackets, and a dataclass takes a list where it wants a
number and fails much later, somewhere else. Whoever decodes bytes from a file or a connection begins here.
"""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
INT64_MAX: Final = (1 << 63) - 1


def parse_json(data: bytes | bytearray | str, **options: Any) -> Any:
    """The value of a JSON text; `options` as `json.loads` has them. Raises ValueError, nothing else."""
    try:
        return json.loads(data, **options)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def build(cls: type[T], values: Any) -> T:
    """A dataclass of values that were read: its fields and no others, each of its type; ints fit 64 bits.

    Checked are int, float, str, bool, None and unions of them; a field of any other type is the caller's to check.

    Raises:
        ValueError: says what does not fit.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"not an object but {type(values).__name__}")
    known, required = _shape(cls)  # type: ignore[arg-type]
    if unknown := sorted(str(name) for name in values if name not in known):
        raise ValueError(f"unknown {', '.join(unknown)[:100]}")
    for name, fits in known.items():
        if name not in values:
            if name in required:
                raise ValueError(f"{name} is missing")
        elif not fits(values[name]):
            raise ValueError(f"{name} is {values[name]!r:.100}")
    return cls(**values)


@functools.cache
def _shape(cls: Any) -> tuple[dict[str, Callable[[Any], bool]], frozenset[str]]:
    hints = get_type_hints(cls)
    known = {field.name: _fits(hints[field.name]) for field in fields(cls)}
    optional = {f.name for f in fields(cls) if f.default is not MISSING or f.default_factory is not MISSING}
    return known, frozenset(known.keys() - optional)


def _fits(hint: Any) -> Callable[[Any], bool]:
    if get_origin(hint) in (Union, types.UnionType):
        choices = [_fits(choice) for choice in get_args(hint)]
        return lambda value: any(fits(value) for fits in choices)
    if hint is int:
        return is_int64
    if hint in (str, bool, float, type(None)):
        return lambda value: type(value) is hint
    return lambda value: True


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
