"""The rules of broker/client/payload/json_columns.py once more, slowly, in plain Python: what tests compare with."""

from __future__ import annotations

import json
import math
import re
import struct as packing
import sys
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

DEPTH_MAX = NUMBER_MAX = 1000
DAY = r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?"
TIME = r"[T ](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?"
ZONE = r" *(?:Z|UTC|([+-])(\d{1,2})(?::(\d\d)(?::(\d\d))?)?|([+-])(\d\d)(\d\d))"
WORDS = {"NaN": math.nan} | {
    sign + word: -math.inf if sign == "-" else math.inf for sign in "+-" for word in ("Infinity", "INF")
}
WORDS["Infinity"] = math.inf


class Corrupt(Exception):
    """The value has no row."""


class Number(str):
    """A number as it is written."""


class Word(str):
    """NaN and its like."""


class Raw(str):
    """The text of an array or object beside what it holds."""

    held: Any


def row(value: bytes | None, schema: pa.Schema) -> dict[str, Any] | None:
    """The row of a value; None: it is corrupt. Floats are compared as Python compares them; times are microseconds."""
    if value is None:
        return dict.fromkeys(schema.names)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 3 * DEPTH_MAX)
    try:
        text = value.decode()
        found, at = Reader(text).value(space(text, 0), 0)
        if space(text, at) != len(text) or not isinstance(found, Raw) or not isinstance(found.held, Pairs):
            return None
        return struct(found.held, list(schema))
    except (Corrupt, UnicodeError):
        return None
    finally:
        sys.setrecursionlimit(limit)


class Pairs(list):  # type: ignore[type-arg]
    """The members of an object."""


def space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


class Reader:
    def __init__(self, text: str) -> None:
        self.text = text

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        text = self.text
        first = text[at : at + 1]
        if first in ("{", "[") and first:
            if depth >= DEPTH_MAX:
                raise Corrupt
            begin, held = at, Pairs() if first == "{" else []
            closer = "}" if first == "{" else "]"
            at = space(text, at + 1)
            while text[at : at + 1] != closer or held:
                name = None
                if first == "{":
                    name, at = self.string(at)
                    at = space(text, at)
                    if text[at : at + 1] != ":":
                        raise Corrupt
                    at = space(text, at + 1)
                each, at = self.value(at, depth + 1)
                held.append((name, each) if first == "{" else each)
                at = space(text, at)
                if text[at : at + 1] == closer:
                    break
                if text[at : at + 1] != ",":
                    raise Corrupt
                at = space(text, at + 1)
            raw = Raw(text[begin : at + 1])
            raw.held = held
            return raw, at + 1
        if first == '"':
            return self.string(at)
        for word, meaning in (("true", True), ("false", False), ("null", None)):
            if text.startswith(word, at):
                return meaning, at + len(word)
        match = re.compile(r"NaN|Infinity|[+-](?:Infinity|INF)").match(text, at)
        if match:
            return Word(match[0]), match.end()
        match = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").match(text, at)
        if not match or len(match[0]) > NUMBER_MAX:
            raise Corrupt
        return Number(match[0]), match.end()

    def string(self, at: int) -> tuple[str, int]:
        if self.text[at : at + 1] != '"':
            raise Corrupt
        try:
            found, end = json.decoder.scanstring(self.text, at + 1, True)  # type: ignore[attr-defined]
        except json.JSONDecodeError:
            raise Corrupt from None
        found.encode()  # no half of a surrogate pair
        return found, end


def struct(pairs: Pairs, fields: list[pa.Field]) -> dict[str, Any]:
    wanted = {field.name: field for field in fields}
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise Corrupt
        if name in wanted:
            found[name] = fitted(value, wanted[name].type)
    return {field.name: found.get(field.name) for field in fields}


def fitted(value: Any, type_: pa.DataType) -> Any:
    """A value as a column of this type has it. Raises Corrupt."""
    types = pa.types
    if value is None:
        return None
    if types.is_struct(type_) and isinstance(value, Raw) and isinstance(value.held, Pairs):
        return struct(value.held, [type_.field(i) for i in range(type_.num_fields)])
    if types.is_list(type_) and isinstance(value, Raw) and not isinstance(value.held, Pairs):
        return [fitted(each, type_.value_type) for each in value.held]
    if types.is_map(type_) and isinstance(value, Raw) and isinstance(value.held, Pairs):
        return [(name, fitted(each, type_.item_type)) for name, each in value.held]
    if types.is_nested(type_):
        raise Corrupt
    if types.is_string(type_):
        return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    if types.is_boolean(type_) and isinstance(value, bool):
        return value
    is_text = isinstance(value, str) and not isinstance(value, Number | Word | Raw)
    if types.is_integer(type_) and isinstance(value, Number) and re.fullmatch(r"-?\d+", value):
        if types.is_unsigned_integer(type_):
            least, greatest = 0, (1 << type_.bit_width) - 1
            if value == "-0":
                raise Corrupt
        else:
            least, greatest = -1 << (type_.bit_width - 1), (1 << (type_.bit_width - 1)) - 1
        if least <= int(value) <= greatest:
            return int(value)
    elif types.is_floating(type_):
        if (isinstance(value, Word) or is_text) and value in WORDS:
            return WORDS[value]
        if isinstance(value, Number):
            return float(value) if type_.bit_width == 64 else narrow(value)
    elif types.is_decimal(type_) and (isinstance(value, Number) or is_text):
        return decimal(value, type_)
    elif types.is_date(type_) and is_text:
        match = re.fullmatch(DAY + r"(?:(?<=-\d)[T ].*|(?<=-\d\d)[T ].*)?", value.strip(BLANK), re.ASCII | re.DOTALL)
        if match and (match[3] or match.end(match.lastindex or 1) == len(value.strip(BLANK))):
            return day(match)
    elif types.is_timestamp(type_):
        if isinstance(value, Number) and type_.tz and re.fullmatch(r"-?\d+", value):
            if abs(int(value)) <= ((1 << 63) - 1) // 1_000_000:
                return int(value) * 1_000_000
        elif is_text:
            return instant(value.strip(BLANK), has_zone=bool(type_.tz))
    raise Corrupt


BLANK = "".join(map(chr, range(33)))


def exactly(number: str) -> Decimal:
    """The number; an exponent that is far beyond every type is a smaller one, which Decimal has."""
    digits, _, exponent = number.lower().partition("e")
    return Decimal(f"{digits}e{max(-100_000, min(100_000, int(exponent or 0)))}")


def narrow(number: str) -> float:
    """The nearest float of 32 bits."""
    if abs(exactly(number)) < Decimal("1e-46"):
        return math.copysign(0.0, -1 if number[0] == "-" else 1)
    if abs(exactly(number)) > Decimal("1e40"):
        return math.copysign(math.inf, float(number))
    exact = abs(Fraction(exactly(number)))
    with np.errstate(all="ignore"):
        near = np.float32(float(exact))
        around = [near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))]
    best = min(
        (abs((Fraction(float(x)) if np.isfinite(x) else 1 << 128) - exact), int(x.view(np.uint32)) & 1, float(x))
        for x in around
    )
    return -best[2] if number[0] == "-" else best[2]


def decimal(text: str, type_: pa.DataType) -> Decimal:
    if not re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", text) or len(text) > NUMBER_MAX:
        raise Corrupt
    number = exactly(text)
    if number and number.adjusted() >= 100:
        raise Corrupt
    if not number or number.adjusted() < -100:
        return Decimal(0).scaleb(-type_.scale)
    number = number.quantize(Decimal(1).scaleb(-type_.scale), rounding=ROUND_HALF_UP, context=Context(prec=2000))
    if number and number.adjusted() + type_.scale + 1 > type_.precision:
        raise Corrupt
    return number or abs(number)


def day(match: re.Match[str]) -> int:
    """Days since 1970."""
    year, month, number = (int(match[i] or 1) for i in (1, 2, 3))
    try:
        if year == 0:  # Python has no such year: 400 years on, the calendar is the same
            return date(400, month, number).toordinal() - 146_097 - date(1970, 1, 1).toordinal()
        return date(year, month, number).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        raise Corrupt from None


def instant(text: str, *, has_zone: bool) -> int:
    """Microseconds since 1970."""
    match = re.fullmatch(f"{DAY}(?:{TIME}(?:{ZONE})?)?", text, re.ASCII)
    if not match or (match[4] and not match[3]):
        raise Corrupt
    days = day(match)
    hour, minute, second = (int(match[i] or 0) for i in (4, 5, 6))
    if hour > 23 or minute > 59 or second > 59:
        raise Corrupt
    us = int(((match[7] or "") + "000000")[:6])
    if match[6] is None and (match[8] or match[12] or text[-1] in "ZC"):
        raise Corrupt
    zone = text[match.end(7) if match[7] is not None else max(match.end(i) for i in range(1, 7)) :].strip(" .")
    if zone and not has_zone:
        raise Corrupt
    offset_s = 0
    if match[8] or match[12]:
        parts = [int(match[i] or 0) for i in ((9, 10, 11) if match[8] else (13, 14))]
        if parts[1] > 59 or (len(parts) > 2 and parts[2] > 59):
            raise Corrupt
        offset_s = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
        if offset_s > 64_800:
            raise Corrupt
        offset_s = -offset_s if (match[8] or match[12]) == "-" else offset_s
    return days * 86_400_000_000 + (hour * 3600 + minute * 60 + second - offset_s) * 1_000_000 + us


def comparable(value: Any, type_: pa.DataType) -> Any:
    """As plain_json has it, and floats by their bits: NaN equals itself, and 0 is not -0."""
    if isinstance(value, pa.Scalar) and value.is_valid and (pa.types.is_timestamp(type_) or pa.types.is_date(type_)):
        return value.value
    if isinstance(value, pa.Scalar) and not value.is_valid:
        return None
    if pa.types.is_struct(type_):
        if value is None:
            return None
        fields = [type_.field(i) for i in range(type_.num_fields)]
        return {field.name: comparable(value[field.name], field.type) for field in fields}
    if pa.types.is_list(type_) and value is not None:
        return [
            comparable(each, type_.value_type) for each in (value.values if isinstance(value, pa.Scalar) else value)
        ]
    if pa.types.is_map(type_) and value is not None:
        if isinstance(value, pa.Scalar):
            keys, items = value.values.field(0), value.values.field(1)
            return [(key.as_py(), comparable(item, type_.item_type)) for key, item in zip(keys, items, strict=True)]
        return [(key, comparable(item, type_.item_type)) for key, item in value]
    found = value.as_py() if isinstance(value, pa.Scalar) else value
    if isinstance(found, float):
        return "NaN" if math.isnan(found) else packing.pack("d", found)
    return str(found) if isinstance(found, Decimal) else found


def rows_of(arrays: list[pa.Array], schema: pa.Schema) -> list[dict[str, Any]]:
    for array in arrays:
        array.validate(full=True)
    return [
        {field.name: comparable(array[i], field.type) for field, array in zip(schema, arrays, strict=True)}
        for i in range(len(arrays[0]))
    ]
