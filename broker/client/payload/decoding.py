"""Record batches with the value decoded. Nothing is done per row.

    offset, timestamp, subject, key, value, headers, reply     a batch of records, partition beside it
                                       |
    item, price,  _corrupt,  offset, timestamp, subject, key, headers, reply, partition

Y1  The columns of the schema first; `_corrupt`, which has the bytes of a value that is no JSON of the schema, else
    null; then the columns of the record without the value, partition last where there is one.
Y2  A schema has no column of a record's name: which of the two is meant would be a guess. A schema whose only column
    is `value`, a struct, gives the whole object in this column: then its names are free.
Y3  PERMISSIVE keeps a corrupt row, with nulls. DROPMALFORMED leaves it out. FAILFAST ends the read at it.
Y4  A batch of records may become several batches: rows whose columns take more memory together than BATCH_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from broker.api.errors import InvalidRecords, InvalidRequest
from broker.api.schema import SCHEMA
from broker.client.payload.json_columns import REASONS, json_decoder

CORRUPT: Final = "_corrupt"
MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
OF_RECORDS: Final = (*(name for name in SCHEMA.names if name != "value"), "partition", CORRUPT)
"""Columns that no JSON column may be called like."""


class JsonPayload:
    """Decodes the values of one stream. For one thread.

    Args:
        schema: Of the objects: flat, or one column `value` that is a struct (Y2).
        mode: One of MODES.
        taken: Names that no column may have.

    Attributes:
        fields: The columns that are made of a value.
    Raises:
        InvalidRequest: a mode that does not exist, or a column that cannot be.
        NotSupported: this installation has no compiled decoder.
    """

    def __init__(self, schema: pa.Schema, *, mode: str = MODES[0], taken: Collection[str] = OF_RECORDS) -> None:
        if not isinstance(schema, pa.Schema):
            raise InvalidRequest(
                f"schema={schema!r}: must be a pyarrow.Schema with the columns of the JSON objects,"
                " such as pa.schema({'item': pa.int64(), 'price': pa.float64()})"
            )
        if mode not in MODES:
            raise InvalidRequest(f"payload_mode={mode!r}: must be {', '.join(MODES[:-1])} or {MODES[-1]}")
        self.mode = mode
        self._given = schema, mode, taken
        self.fields = list(schema)
        self._is_whole = schema.names == ["value"] and pa.types.is_struct(schema.field(0).type)
        for name in schema.names:
            if name in taken:
                raise InvalidRequest(
                    f"column {name!r} of the schema: a record has a column of this name. Give a schema with one column,"
                    " 'value', which is a struct with the columns of the objects",
                    key="schema",
                    column=name,
                )
        if self._is_whole:
            struct = schema.field(0).type
            schema = pa.schema([struct.field(i) for i in range(struct.num_fields)])
        self._decoder = json_decoder(schema)

    def __reduce__(self) -> Any:
        schema, mode, taken = self._given
        return partial(JsonPayload, mode=mode, taken=taken), (schema,)

    def decoded(self, values: pa.BinaryArray) -> tuple[list[pa.Array], pa.Array, pa.BooleanArray | None]:
        """Decode the first values: all, or as many as may be together (Y4).

        Returns:
            The array of each field, that of `_corrupt`, and which rows are corrupt; None: no row is.
        """
        import pyarrow.compute as pc  # it takes a process of Spark's as long as all of ours

        arrays, reasons = self._decoder.decode(values)
        values = values.slice(0, len(reasons))
        corrupt = pc.not_equal(pa.array(reasons), 0) if self._decoder.first is not None else None
        if self._is_whole:
            missing = values.is_null() if corrupt is None else pc.or_(values.is_null(), corrupt)
            arrays = [pa.StructArray.from_arrays(arrays, fields=list(self.fields[0].type), mask=missing)]
        if corrupt is None:
            return arrays, pa.nulls(len(values), pa.binary()), None
        return arrays, pc.if_else(corrupt, values, pa.scalar(None, pa.binary())), corrupt

    def check(self, place: Callable[[int], tuple[str, int, int]]) -> None:
        """With FAILFAST: raise InvalidRecords if a row that was decoded last is corrupt.

        Args:
            place: Stream, partition and offset of a row.
        """
        if self.mode != "FAILFAST" or self._decoder.first is None:
            return
        row, reason, byte, column = self._decoder.first
        at = "" if column is None else f", column {column!r}"
        stream, partition, offset = place(row)
        raise InvalidRecords(
            f"stream {stream!r} partition {partition} offset {offset}: the value cannot be decoded as JSON:"
            f" {REASONS[reason]} (byte {byte}{at}); payload mode PERMISSIVE keeps such rows, with the value in"
            f" {CORRUPT!r}",
            stream=stream,
            partition=partition,
            offset=offset,
            column=column,
        )

    def schema(self, columns: Sequence[str] | None, *, of_record: pa.Schema) -> pa.Schema:
        """The schema of decoded batches (Y1).

        Args:
            columns: Names in the order wanted; None: all.
            of_record: The columns of a record, its value among them or not.
        Raises:
            InvalidRequest: a name that is not there, one that occurs twice, or none at all.
        """
        rest = [field for field in of_record if field.name != "value"]
        whole = pa.schema([*self.fields, pa.field(CORRUPT, pa.binary()), *rest])
        if columns is None:
            return whole
        for name in columns:
            if name not in whole.names:
                raise InvalidRequest(f"there is no column {name!r}, only {', '.join(whole.names)}", column=name)
        if len(set(columns)) != len(columns) or not columns:
            raise InvalidRequest(f"columns {list(columns)}: must name at least one column, each once")
        return pa.schema([whole.field(name) for name in columns])

    def shaped(
        self, rows: pa.RecordBatch, schema: pa.Schema, *, stream: str, partition: int
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The first of these records in a schema that `schema` has made, and the records that are left (Y4). With
        DROPMALFORMED there are fewer rows.

        Raises:
            InvalidRecords: a row is corrupt, and the mode is FAILFAST.
        """
        arrays, kept, corrupt = self.decoded(rows.column("value"))
        rows, rest = rows.slice(0, len(kept)), rows.slice(len(kept))
        self.check(lambda row: (stream, partition, rows.column("offset")[row].as_py()))
        made = {field.name: array for field, array in zip(self.fields, arrays, strict=True)}
        made[CORRUPT] = kept
        columns = [
            made[name]
            if name in made
            else pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)
            if name == "partition"
            else rows.column(name)
            for name in schema.names
        ]
        found = pa.RecordBatch.from_arrays(columns, schema=schema)
        if corrupt is not None and self.mode == "DROPMALFORMED":
            import pyarrow.compute as pc

            found = found.filter(pc.invert(corrupt))
        return found, rest
