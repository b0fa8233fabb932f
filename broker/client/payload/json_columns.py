"""JSON objects in the columns of a schema: the rules, and the schemas that are possible. The decoder: _json.pyx.

V1  A value is one JSON object in UTF-8 (RFC 8259), with space around it or none. A member whose name is that of a
    column, letter for letter, gives the column's value. Null, and no such member, are null. Other members are checked
    and passed over.
V2  A value that is not decoded is *corrupt*: all its columns are null, and the reason is one of `REASONS`. The rows
    before and after it are not affected. No value at all (a tombstone) is not corrupt: its columns are null.
V3  What a column takes:

    int8 … uint64     a number without point and exponent, within the type
    float, double     a number, the nearest; NaN, Infinity, +Infinity, -Infinity, +INF, -INF, bare or as a string
    decimal128        a number, or one in a string; rounded half up to the scale, and within the precision then
    bool              true, false
    string            a string; of any other value its JSON, as it stands there
    date32            a string: yyyy, yyyy-mm or yyyy-mm-dd, behind this last a T or a space and anything
    timestamp, zone   a string: a date, or yyyy-mm-ddThh[:mm[:ss[.fraction][zone]]], zone Z, UTC or ±hh[:mm[:ss]];
                      without a zone it is UTC, a fraction is cut to microseconds; a whole number: seconds since 1970
    timestamp         the same string, without a zone
    list, struct, map an array; an object; an object whose names are the keys

V4  Limits: 1,000 levels; a number of 1,000 characters; ROW_BYTES_MAX. A struct's name that occurs twice is an error; a
    map keeps both.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import pyarrow as pa

from broker.api.compiled import load_compiled
from broker.api.errors import InvalidRequest, NotSupported
from broker.api.payload_schema import LEVELS_MAX

REASONS: Final = (
    "it is decoded",
    "it is empty",
    "it is no JSON",
    "it is no UTF-8",
    "it has more than 1,000 levels",
    "it is no object",
    "a name occurs twice",
    "a value does not fit its column",
    "something follows the object",
    "its lists and maps take more than 128 MiB in columns",
)
KINDS: Final = (
    *("bool", "int", "uint", "float", "string", "decimal"),
    *("date", "instant", "local", "list", "struct", "map"),
)
"""In the order of _tree.pxi."""

ROW_BYTES_MAX: Final = 128 << 20
"""What elements of lists and maps of one row may take in all columns below them, strings not counted. An element has a
place in each of these columns, whatever it holds: so 3 bytes of a value, `{},`, may become hundreds."""
BATCH_BYTES_MAX: Final = 64 << 20
"""The same of several rows that are decoded together, and of the rows themselves: more become several batches."""

Field: TypeAlias = tuple[int, int, int, int, bytes, pa.DataType, tuple[Any, ...]]
"""Kind, width in bytes (0: it varies), precision, scale, name, type, children."""


def json_decoder(schema: pa.Schema) -> Any:
    """A decoder for the columns of a schema (`_json.Decoder`).

    Raises:
        InvalidRequest: a column's type cannot be filled from JSON, a name occurs twice, or there is no column.
        NotSupported: this installation has no compiled decoder.
    """
    fields = fields_of(schema)
    compiled = load_compiled("broker.client.payload._json", otherwise="payload='json' is refused")
    if compiled is None:
        raise NotSupported(
            "payload='json': this installation has no decoder, as there was no compiler when it was installed, or the"
            " decoder belongs to other sources. Install one of the wheels for your platform, or install again with a"
            " C compiler"
        )
    return compiled.Decoder(fields)


def fields_of(schema: pa.Schema) -> tuple[Field, ...]:
    """The columns as the decoder takes them. Raises InvalidRequest as `json_decoder`."""
    if not len(schema):
        raise InvalidRequest("payload='json': the schema has no column")
    return _fields(list(schema), "", 1)


def _fields(fields: list[pa.Field], path: str, level: int) -> tuple[Field, ...]:
    names = [field.name for field in fields]
    for field in fields:
        if names.count(field.name) > 1:
            raise _refused(path + field.name, "its name occurs twice")
        if not field.nullable:
            raise _refused(path + field.name, "it must be nullable: an object may be without it")
    return tuple(_field(field.type, path + field.name, field.name, level) for field in fields)


def _field(type_: pa.DataType, path: str, name: str, level: int) -> Field:
    children: tuple[Field, ...] = ()
    width = precision = scale = 0
    types = pa.types
    if level > LEVELS_MAX:
        raise _refused(path, f"the schema has more than {LEVELS_MAX} levels")
    if types.is_boolean(type_):
        kind, width = "bool", 1
    elif types.is_signed_integer(type_):
        kind, width = "int", type_.bit_width // 8
    elif types.is_unsigned_integer(type_):
        kind, width = "uint", type_.bit_width // 8
    elif types.is_float32(type_) or types.is_float64(type_):
        kind, width = "float", type_.bit_width // 8
    elif types.is_string(type_):
        kind = "string"
    elif types.is_decimal128(type_) and 0 <= type_.scale <= type_.precision:
        kind, width, precision, scale = "decimal", 16, type_.precision, type_.scale
    elif types.is_date32(type_):
        kind, width = "date", 4
    elif types.is_timestamp(type_) and type_.unit == "us":
        kind, width = "instant" if type_.tz else "local", 8
    elif types.is_struct(type_) and type_.num_fields:
        kind = "struct"
        children = _fields([type_.field(i) for i in range(type_.num_fields)], path + ".", level + 1)
    elif types.is_list(type_):
        _check_nullable(type_.value_field, path)
        kind, children = "list", (_field(type_.value_type, path + "[]", "", level + 1),)
    elif types.is_map(type_) and types.is_string(type_.key_type):
        _check_nullable(type_.item_field, path)
        kind = "map"
        children = tuple(_field(each, path + "{}", "", level + 1) for each in (type_.key_type, type_.item_type))
    else:
        raise _refused(
            path,
            f"its type {type_} cannot be filled from JSON; bool, int8 to uint64, float, double, string, decimal128,"
            " date32, timestamp('us'), list, struct and map of strings to any of these can",
        )
    return KINDS.index(kind), width, precision, scale, name.encode(), type_, children


def _check_nullable(held: pa.Field, path: str) -> None:
    if not held.nullable:
        raise _refused(path, "what it holds must be nullable: null may stand there")


def _refused(column: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"column {column!r} of the schema: {why}", key="schema", column=column)
