"""payload=json: values of records as columns. Decoded by broker/client/payload; the rules: docs/reference/payloads.md.

    declared    item BIGINT, price DOUBLE, offset BIGINT, _corrupt BINARY
    read        offset, value                         what is gathered of the records (schema.py)
    decoded                  -> item, price, _corrupt

D1  A field of the declared schema that has the name of a record's column is that column, of its type; `value` is that
    only as BINARY. `_corrupt` has the values that could not be decoded. All others are members of the objects.
D2  A schema is given, by .schema(…), or as DDL by the option payloadSchema, or it is the one that the stream keeps:
    `_corrupt` and the record's columns are added to the last two. Nothing is inferred: a stream's schema must be known
    before its first record.
D3  The kept schema is looked up by load(), once. Spark hands it to all that comes of the frame, so a query goes on with
    it, and a query that is begun anew from its checkpoint takes the one of that moment.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from broker.api.answers import StreamDescription
from broker.api.errors import InvalidSetting
from broker.api.payload_schema import KEY
from broker.client.payload.decoding import CORRUPT, MODES, JsonPayload
from broker.client.payload.kept import schema_of
from spark_liftlog.parsing import invalid, one_of
from spark_liftlog.schema import ROW, Projection

_OF_RECORD: Final = {field.name: field for field in ROW}
_PLACE: Final = ("stream", "partition", "offset")
_BESIDE: Final = [StructField(CORRUPT, BinaryType()), *(field for field in ROW if field.name != "value")]
"""What a schema by the option payloadSchema, or of the stream, has behind the columns of the objects."""


@dataclass(frozen=True, slots=True)
class Payload:
    """The checked options: `mode` is one of MODES; `ddl` None: .schema(…) has the columns, or the stream keeps them."""

    mode: str
    ddl: str | None


def payload_in(given: Mapping[str, str]) -> Payload | None:
    """The options about the payload, in any case; None: values stay as they are.

    Raises:
        InvalidSetting: a value that is none, or an option that means something with another one only.
    """
    names = {name.lower(): name for name in ("payload", "payloadSchema", "payloadMode", "columns")}
    options = {names[name.lower()]: value for name, value in given.items() if name.lower() in names}
    if "payload" not in options:
        for name in ("payloadSchema", "payloadMode"):
            if name in options:
                raise invalid(name, options[name], "means something with the option payload=json only")
        return None
    if options["payload"].strip().lower() != "json":
        raise invalid("payload", options["payload"], "must be json; without the option, values stay as they are")
    if "columns" in options:
        raise invalid("columns", options["columns"], "with payload=json, name the columns in .schema(…)")
    ddl = options.get("payloadSchema")
    if ddl is not None and not ddl.strip():
        raise invalid("payloadSchema", ddl, "must be columns in DDL, such as item BIGINT, price DOUBLE")
    return Payload(one_of(options, "payloadMode", MODES), ddl)


def declared_schema(ddl: str) -> str:
    """The schema of a read with payloadSchema, in DDL: Spark reads it (D2)."""
    beside = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in _BESIDE)
    return f"{ddl.strip()}, {beside}"


def kept_schema(streams: Iterable[StreamDescription], *, with_value: bool = False) -> StructType:
    """The schema of a read of streams that keep one, all the same (D2).

    Args:
        with_value: Also with the column `value`, where no column of the objects has this name.
    Raises:
        InvalidSetting: a stream keeps none, two keep others, or there is no stream.
    """
    first: tuple[str, str] | None = None
    for stream in streams:
        text = stream.settings.get(KEY)
        if text is None:
            raise _unknown(f"stream {stream.name!r} keeps no schema")
        if first is not None and first[1] != text:
            raise _unknown(f"streams {first[0]!r} and {stream.name!r} keep different schemas")
        first = first or (stream.name, text)
    if first is None:
        raise _unknown("no stream matches the option streamPattern yet")
    members = from_arrow_schema(schema_of(first[1]), prefer_timestamp_ntz=True)
    has_value = any(name.lower() == "value" for name in members.names)
    value = [_OF_RECORD["value"]] if with_value and not has_value else []
    return StructType([*members, *value, *_BESIDE])


def _unknown(why: str) -> InvalidSetting:
    return InvalidSetting(
        f"option payload='json': {why}, so the columns of the objects are not known; give them with .schema('item"
        " BIGINT, price DOUBLE'), or with the option payloadSchema in the same form, which adds the columns of the"
        " record, or keep them with the stream: liftlog stream alter NAME --schema FILE",
        key="payload",
        value="json",
    )


class JsonProjection(Projection):
    """The making of batches of the declared schema, of values that are JSON objects (D1).

    Raises:
        InvalidSetting: as `Projection`, and for .schema(…) beside payloadSchema.
        InvalidRequest: a column that cannot be filled from JSON.
        NotSupported: this installation has no decoder.
    """

    def __init__(self, schema: StructType, payload: Payload) -> None:
        names = [field.name.lower() for field in schema]
        if payload.ddl is not None and names[-len(_BESIDE) :] != [field.name for field in _BESIDE]:
            raise invalid("payloadSchema", payload.ddl, ".schema(…) names columns, too: one of them is enough")
        for name in (*_OF_RECORD, CORRUPT):
            if names.count(name) > 1:
                raise _taken(name)
        of_record = [field for field in schema if _is_of_record(field) and field.name.lower() != CORRUPT]
        needed = ["value", *(_PLACE if payload.mode == "FAILFAST" else ())]
        present = [field.name.lower() for field in of_record]
        super().__init__(StructType([*of_record, *(_OF_RECORD[name] for name in needed if name not in present)]))
        self._declared = to_arrow_schema(schema, timezone="UTC")
        self._names = names
        self._objects = frozenset(i for i, field in enumerate(schema) if not _is_of_record(field))
        fields = [self._declared.field(i) for i in sorted(self._objects)]
        self._payload = JsonPayload(pa.schema(fields), mode=payload.mode, taken=())

    def finished(self, batches: Generator[pa.RecordBatch, None, None]) -> Generator[pa.RecordBatch, None, None]:
        with closing(batches):
            for rest in batches:
                while rest.num_rows:
                    found, rest = self._decoded(rest)
                    if found.num_rows:
                        yield found

    def _decoded(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The first rows decoded, and those that are left (`decoding.Y4`)."""
        at = {name: i for i, name in enumerate(self._columns)}
        arrays, kept, corrupt = self._payload.decoded(batch.column(at["value"]))
        batch, rest = batch.slice(0, len(kept)), batch.slice(len(kept))
        self._payload.check(lambda row: tuple(batch.column(at[name])[row].as_py() for name in _PLACE))
        columns = []
        decoded = iter(arrays)
        for i, name in enumerate(self._names):
            if i in self._objects:
                columns.append(next(decoded))
            else:
                columns.append(kept if name == CORRUPT else batch.column(at[name]))
        found = pa.RecordBatch.from_arrays(columns, schema=self._declared)
        if corrupt is not None and self._payload.mode == "DROPMALFORMED":
            import pyarrow.compute as pc

            return found.filter(pc.invert(corrupt)), rest
        return found, rest


def _is_of_record(field: StructField) -> bool:
    """Whether a field is a column of the record, or `_corrupt` (D1). Raises InvalidSetting: it cannot be told."""
    name = field.name.lower()
    if name == "value":
        return isinstance(field.dataType, BinaryType)
    if name == CORRUPT:
        if not isinstance(field.dataType, BinaryType) or not field.nullable:
            raise InvalidSetting(
                f"column {field.name!r} of the given schema: it must be BINARY, and may be null",
                key="schema",
                value=name,
            )
        return True
    if name not in _OF_RECORD:
        return False
    if field.dataType != _OF_RECORD[name].dataType:
        raise _taken(field.name)
    return True


def _taken(name: str) -> InvalidSetting:
    known = _OF_RECORD.get(name.lower())
    type_ = "BINARY" if known is None else known.dataType.simpleString()
    return InvalidSetting(
        f"column {name!r} of the given schema: a row has a column of this name, {type_}. For a member of the objects"
        f" that is called so, declare the column value STRUCT<{name}: …> in place of the members",
        key="schema",
        value=name,
    )


def projection_of(schema: StructType, payload: Payload | None) -> Projection:
    """What makes batches of the declared schema. Raises as `Projection` and `JsonProjection`."""
    return Projection(schema) if payload is None else JsonProjection(schema, payload)
