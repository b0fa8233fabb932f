"""The schema that a stream keeps for its JSON objects, as Arrow has it, and back. The text: api/payload_schema.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from broker.api.errors import InvalidRequest
from broker.api.payload_schema import KEY, Column, Type, columns_in, refused, text_of
from broker.client.payload.json_columns import fields_of

if TYPE_CHECKING:
    from broker.api.answers import StreamDescription

_ARROW: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_WORDS: Final = {type_: word for word, type_ in _ARROW.items()}


def kept_schema(stream: StreamDescription) -> pa.Schema | None:
    """The schema that a stream keeps; None: none. Raises InvalidSetting: a later release wrote it."""
    text = stream.settings.get(KEY)
    return None if text is None else schema_of(text)


def schema_of(text: str) -> pa.Schema:
    """The Arrow schema of a text. Raises InvalidSetting."""
    return pa.schema([pa.field(column.name, _arrow(column.type)) for column in columns_in(text)])


def text_for(schema: pa.Schema) -> str:
    """The text of an Arrow schema, for `create_stream` and `alter`. The broker checks what it says.

    Raises:
        InvalidRequest: a column that JSON cannot fill, or of a type that no text has; names the column.
    """
    if not isinstance(schema, pa.Schema):
        raise refused(f"{schema!r:.100}: must be columns in DDL, or a pyarrow.Schema")
    fields_of(schema)
    return text_of(Column(field.name, _type(field.type, field.name)) for field in schema)


def schema_for_reading(stream: StreamDescription) -> pa.Schema:
    """As `kept_schema`. Raises InvalidRequest where there is none."""
    schema = kept_schema(stream)
    if schema is None:
        raise InvalidRequest(
            f"stream {stream.name!r} keeps no schema, so payload='json' needs one: schema=pa.schema({{'item':"
            f" pa.int64(), …}}), or keep one with the stream: liftlog stream alter {stream.name} --schema FILE",
            stream=stream.name,
        )
    return schema


def _arrow(type_: Type) -> pa.DataType:
    if type_.word == "DECIMAL":
        return pa.decimal128(*type_.numbers)
    if type_.word == "ARRAY":
        return pa.list_(_arrow(type_.parts[0].type))
    if type_.word == "MAP":
        return pa.map_(*(_arrow(part.type) for part in type_.parts))
    if type_.word == "STRUCT":
        return pa.struct([pa.field(part.name, _arrow(part.type)) for part in type_.parts])
    return _ARROW[type_.word]


def _type(type_: pa.DataType, path: str) -> Type:
    types = pa.types
    if types.is_timestamp(type_) and type_.unit == "us" and type_.tz:
        return Type("TIMESTAMP")
    if type_ in _WORDS:
        return Type(_WORDS[type_])
    if types.is_decimal128(type_):
        return Type("DECIMAL", (type_.precision, type_.scale))
    if types.is_list(type_):
        return Type("ARRAY", parts=(Column("", _type(type_.value_type, path + "[]")),))
    if types.is_map(type_):
        inner = (type_.key_type, type_.item_type)
        return Type("MAP", parts=tuple(Column("", _type(each, path + "{}")) for each in inner))
    if types.is_struct(type_):
        fields = [type_.field(i) for i in range(type_.num_fields)]
        return Type("STRUCT", parts=tuple(Column(f.name, _type(f.type, f"{path}.{f.name}")) for f in fields))
    raise refused(
        f"column {path!r:.120}: type {type_} cannot be kept; bool, int8 to int64, float, double, string, decimal128,"
        " date32, timestamp('us'), list, struct and map can"
    )
