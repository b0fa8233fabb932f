"""Random schemas, and random values for them: most fit, some do not, some are no JSON."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa

LEAVES = (
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.bool_(), pa.date32(),
    pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.decimal128(10, 2), pa.decimal128(38, 18), pa.decimal128(5, 0),
)  # fmt: skip
UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())


class Luck(random.Random):
    """For values that Spark's `from_json` reads alike: a string column gets strings only (it writes others anew)."""


DAYS = (
    *("2023-02-29", "2024-13-01", "24-01-01", "2024", "2024-2", "2024-2-3", "2024-02-30", "x", "2024-01-01Tx"),
    *("2024-01-01 ", " 2024-01-01", "2024-01-01x", "2024-1-", "0000-02-29"),
)
DAYS_OF_OURS = ("", "20240101")
"""Spark takes the first for today where a time is behind it, the second for a number of days."""
NAMES = ("a", "b", "item", "é", "name with space", "A", 'quo"te', "a.b")


def random_schema(
    rng: random.Random, *, leaves: tuple[pa.DataType, ...] = LEAVES + UNSIGNED, names: tuple[str, ...] = NAMES
) -> pa.Schema:
    chosen = rng.sample(names, rng.randint(1, len(names)))
    return pa.schema([pa.field(name, random_type(rng, leaves, 0)) for name in chosen])


def random_type(rng: random.Random, leaves: tuple[pa.DataType, ...], depth: int) -> pa.DataType:
    what = rng.random()
    if depth > 2 or what < 0.7:
        return rng.choice(leaves)
    if what < 0.8:
        return pa.list_(random_type(rng, leaves, depth + 1))
    if what < 0.9:
        return pa.map_(pa.string(), random_type(rng, leaves, depth + 1))
    names = rng.sample(NAMES, rng.randint(1, 3))
    return pa.struct([pa.field(name, random_type(rng, leaves, depth + 1)) for name in names])


def random_values(rng: random.Random, schema: pa.Schema, count: int) -> list[bytes | None]:
    wild = rng.choice((0.0, 0.01, 0.1))
    return [random_value(rng, schema, wild) for _ in range(count)]


def random_value(rng: random.Random, schema: pa.Schema, wild: float) -> bytes | None:
    if rng.random() < 0.03:
        return None
    text = members(rng, list(schema), wild).encode()
    if rng.random() < wild:
        at = rng.randrange(len(text) + 1)
        what = rng.randrange(5)
        if what == 0:
            text = text[:at]
        elif what == 1:
            text = (
                text[:at]
                + rng.choice((b"\xff", b"\x00", b"\n", b'"', b"}", b"]", b",", b" ", b"\xed\xa0\x80"))
                + text[at:]
            )
        elif what == 2:
            text = text[:at] + text[at + 1 :]
        elif what == 3:
            text += rng.choice((b"{}", b"\n", b" ", b"x", b"null"))
        else:
            text = rng.choice(
                (b"", b" ", b"[]", b"null", b"1", b'"a"', b"[" * 1200, b'{"z":' * 999 + b"1" + b"}" * 999)
            )
    return text


def members(rng: random.Random, fields: list[pa.Field], wild: float) -> str:
    chosen = [field for field in fields if rng.random() < 0.9]
    if rng.random() < 0.2:
        rng.shuffle(chosen)
    if chosen and rng.random() < wild:
        chosen.append(rng.choice(chosen))
    parts = [f"{quoted(rng, field.name)}{blank(rng)}:{blank(rng)}{value_of(rng, field.type, wild)}" for field in chosen]
    if rng.random() < 0.3:
        parts.insert(rng.randrange(len(parts) + 1), f'"zz":{anything(rng, 0)}')
    return "{" + blank(rng) + f"{blank(rng)},{blank(rng)}".join(parts) + blank(rng) + "}"


def value_of(rng: random.Random, type_: pa.DataType, wild: float) -> str:
    types = pa.types
    if rng.random() < 0.1:
        return "null"
    if rng.random() < wild and not (types.is_string(type_) and isinstance(rng, Luck)):
        return anything(rng, 0)
    if types.is_struct(type_):
        return members(rng, [type_.field(i) for i in range(type_.num_fields)], wild)
    if types.is_list(type_):
        return "[" + ",".join(value_of(rng, type_.value_type, wild) for _ in range(rng.randrange(4))) + "]"
    if types.is_map(type_):
        each = (f'"k{i}":{value_of(rng, type_.item_type, wild)}' for i in range(rng.randrange(4)))
        return "{" + ",".join(each) + "}"
    if types.is_boolean(type_):
        return rng.choice(("true", "false"))
    if types.is_string(type_):
        return quoted(rng, "".join(rng.choice('ab"\\/\n\té€😀\x7f') for _ in range(rng.randrange(8))))
    if types.is_integer(type_):
        if rng.random() < 2 * wild:
            return rng.choice(("128", "-129", "255", "256", "9223372036854775807", "9223372036854775808", "1.0", "1e2"))
        unsigned = types.is_unsigned_integer(type_)
        bits = rng.randrange(type_.bit_width if unsigned else type_.bit_width - 1)
        number = rng.getrandbits(bits + 1) if unsigned or bits == 0 else rng.getrandbits(bits)
        return str(number if unsigned or rng.random() < 0.6 else -number)
    if types.is_date(type_):
        return f'"{a_day(rng, wild)}"'
    if types.is_timestamp(type_):
        return a_time(rng, wild, zone=bool(type_.tz))
    if types.is_decimal(type_):
        number = a_number(rng) if rng.random() < 4 * wild else f"{rng.uniform(-99, 99):.{rng.randrange(1, 6)}f}"
        return f'"{number}"' if rng.random() < 0.3 else number
    return a_number(rng)


def a_number(rng: random.Random) -> str:
    what = rng.randrange(8)
    if what < 3:
        return repr(round(rng.uniform(-1000, 1000), rng.randrange(1, 4)))
    if what == 3:
        return repr(rng.uniform(-1, 1) * 10.0 ** rng.randrange(-50, 50))
    if what == 4:
        return f"{rng.randrange(10**20)}.{rng.randrange(10**20)}e{rng.randrange(-340, 340)}"
    if what == 5:
        return str(rng.randrange(-(10 ** rng.randrange(1, 30)), 10**30))
    if what == 6:
        zero = "0" if isinstance(rng, Luck) else "-0"  # of -0 alone Spark makes 0.0
        return rng.choice(("0", zero, "0.0", "-0.0", "1e400", "1e-400", "1.17549435e-38", "1e-45", "7e-46", "16777217",
                           "16777217.00000001", "3.4028235677973366e38", "3.4028235e38", "0.005",
                           "0.015", "99.995"))  # fmt: skip
    return rng.choice(("1E5", "1e+5", "12.5e-3", "5e-324", "2.4703282292062327e-324", "9007199254740993", "0.1"))


def a_day(rng: random.Random, wild: float) -> str:
    if rng.random() < 2 * wild:
        return rng.choice(DAYS if isinstance(rng, Luck) else (*DAYS, *DAYS_OF_OURS))
    return f"{rng.randrange(1, 10000):04}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"


def a_time(rng: random.Random, wild: float, *, zone: bool) -> str:
    if zone and rng.random() < 0.1:
        return str(rng.randrange(-(10**10), 10**10))
    text = a_day(rng, wild) + rng.choice("T ")
    if rng.random() < 2 * wild:
        text += rng.choice(
            ("24:00:00", "12", "12:5", "1:2:3", "12:00:60", "12:00:00.", "", "12:00:00,5", "T12:00", "12:60")
        )
    else:
        text += f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
        text += rng.choice(("", ".5", ".123", ".123456", ".123456789"))
    if (zone and rng.random() < 0.8) or rng.random() < wild:
        text += rng.choice(("Z", "+02:00", "-03:30", "+0530", "+7", "-07", "UTC", " Z", "+18:00"))
        if rng.random() < wild:
            text += rng.choice(("x", ":00", "+19:00", ":99"))
    return json.dumps(text)


def anything(rng: random.Random, depth: int) -> str:
    what = rng.randrange(9 if depth < 3 else 7)
    if what < 7:
        some: tuple[Any, ...] = ("null", "true", "1", "-2.5e3", '"x"', '"a\\u00e9\\ud83d\\ude00"', a_number(rng))
        return str(some[what])
    parts = [anything(rng, depth + 1) for _ in range(rng.randrange(3))]
    if what == 7:
        return "[" + ", ".join(parts) + "]"
    return "{" + ",".join(f'"k{i}": {part}' for i, part in enumerate(parts)) + "}"


def quoted(rng: random.Random, text: str) -> str:
    return json.dumps(text, ensure_ascii=rng.random() < 0.5)


def blank(rng: random.Random) -> str:
    return rng.choice(("", "", "", " ", "\n ", "\t\r"))
