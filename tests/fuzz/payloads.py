"""Decoders of what publishers put into a value, beside those of the network.

The JSON decoder is compiled: each batch of values lies in memory of exactly its length, and each row is compared with
the rules in plain Python, whatever stands beside it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.api.errors import NotSupported
from broker.client.payload.json_columns import json_decoder
from tests.fuzz.decoder import Decoder
from tests.support import plain_json
from tests.support.plain_json import comparable, rows_of

END_OF_VALUE: Final = b"\x1e"
"""Between the values of an input. Its first byte chooses the schema."""
_INNER: Final = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string())), ("c", pa.map_(pa.string(), pa.float32()))])
SCHEMAS: Final = (
    pa.schema([("item", pa.int64()), ("price", pa.float64()), ("tags", pa.list_(pa.string()))]),
    pa.schema([("a", _INNER), ("b", pa.list_(_INNER)), ("c", pa.map_(pa.string(), _INNER))]),
    pa.schema([("a", pa.decimal128(38, 18)), ("b", pa.decimal128(5, 0)), ("f", pa.float32()), ("d", pa.float64())]),
    pa.schema([("a", pa.uint8()), ("b", pa.int16()), ("c", pa.uint64()), ("d", pa.bool_()), ("s", pa.string())]),
    pa.schema([("a", pa.date32()), ("b", pa.timestamp("us")), ("c", pa.timestamp("us", tz="UTC"))]),
    pa.schema([("\u00e9", pa.string()), ('quo"te', pa.list_(pa.list_(pa.int32()))), ("", pa.bool_())]),
)


def check_json(data: bytes) -> None:
    """Each row is what the rules say, whatever stands beside it, and whatever the decoder had before."""
    schema, values = SCHEMAS[(data[0] if data else 0) % len(SCHEMAS)], data[1:].split(END_OF_VALUE)
    decoder = json_decoder(schema)
    expected = [plain_json.row(value, schema) for value in values]
    for order in (1, -1):
        arrays, reasons = decoder.decode(_exactly(values[::order]))
        found = rows_of(arrays, schema)
        for value, wanted, row, reason in zip(values[::order], expected[::order], found, reasons, strict=True):
            assert (wanted is None) == bool(reason), value
            whole: dict[str, Any] = wanted or dict.fromkeys(schema.names)
            assert row == {field.name: comparable(whole[field.name], field.type) for field in schema}, value


def _exactly(values: list[bytes]) -> pa.BinaryArray:
    """The values in memory that ends where they end."""
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    held = np.frombuffer(b"".join(values), np.uint8).copy()
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(held)])


PAYLOADS: Final = (
    Decoder(
        name="payload-json",
        modules=("broker/client/payload/_json.pyx", "broker/client/payload/json_columns.py"),
        check=check_json,
        errors=(NotSupported,),
        words=(
            *(b"null", b"NaN", b"-Infinity", b"+INF", b"1e-46", b"-0", b"0.5", b"9" * 19, b"1" * 1001, b"e+400"),
            *(
                b"\\ud83d\\ude00",
                b"\\ud800",
                b"\\u0000",
                b"\xf0\x9f\x98\x80",
                b"\xed\xa0\x80",
                b"\xc0\x80",
                b"\xf4\x90",
            ),
            *(b'{"', b'":', b"[", b"]", b"}", b",", b"[" * 1001, b'{"a":' * 999, END_OF_VALUE, b'"a":1,"a":1'),
            *(b"2024-02-29", b"T12:00:00.123456Z", b"+18:00"),
        ),
        weight=3,
    ),
)
