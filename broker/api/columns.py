"""A batch of which only some columns are sent: a message that any reader of Arrow reads, and that a client of ours
checks against the CRC of the stored batch.

    stored      | header | offset | timestamp | subject | key |  value  | headers | reply |
    projected   | header, changed | stored header | what the others add | offset | subject |
                                  '------------------------- body --------------------------'

The bytes of a column lie together in the body, padding included. The changed header has the nodes and buffers of the
columns that are there; their places are behind what the body begins with, which no buffer points at. The schema
message of such an answer is the pinned one with fewer fields.

J1  The client computes the stored CRC: of the stored header and of the columns that came, with zeros for the others,
    and of what the others add to it (`crc_parts`). So a flipped bit of what came is found as in a whole batch.
J2  The changed header and the schema are what `projected_head` and `schema_bytes` make; the client makes them anew, and
    compares. So each byte of the answer is known to be right.
J3  `offset` is always there, and columns are in the order of the schema.

Format: docs/reference/http-api.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Final

import pyarrow as pa
from crc32c import crc32c

from broker.api.batch import (
    BODY_LENGTH_AT,
    BUFFER_COUNT,
    BUFFERS_AT,
    CRC_AT,
    FIELDS,
    HEADER_LENGTHS,
    NODE_COUNT,
    NODES_AT,
    BatchHeader,
    checksum,
    message_bytes,
    read_header,
    verify_batch,
)
from broker.api.compression import DECODED_BYTES_MAX, PACKED_HEADER_BYTES, decoded_bytes
from broker.api.crc_parts import adds, behind
from broker.api.errors import BadBatch
from broker.api.schema import SCHEMA, SCHEMA_BYTES

Columns = tuple[str, ...]
"""As `columns_in` makes them (J3)."""
Spans = Sequence[tuple[int, int]]
"""Where each column of the record lies in the body of a batch: [start, end)."""

ADDED: Final = struct.Struct("<I4x")
"""What the columns that are not there add to the CRC of the batch; zeros."""

BUFFERS_OF: Final = dict(zip(SCHEMA.names, pairwise(accumulate((2, 2, 3, 3, 3, 9, 3), initial=0)), strict=True))
NODES_OF: Final = dict(zip(SCHEMA.names, pairwise(accumulate((1, 1, 1, 1, 1, 4, 1), initial=0)), strict=True))
"""Of each column: which buffers and nodes of a message are its own, [first, stop)."""
KNOWN: Final = struct.Struct("<14I8q")
"""What is known of the columns of a batch: the CRC of each, what each adds to that of the batch, and where they lie in
the body, each from one edge to the next."""
_PLACES: Final = struct.Struct(f"<{2 * BUFFER_COUNT}q")
_LENGTHS: Final = struct.Struct(f"<{2 * NODE_COUNT}q")
_TOLD: Final = struct.Struct("<2I")
_COUNT: Final = struct.Struct("<I")
_CRC_END: Final = CRC_AT + FIELDS["crc"]
_FIELDS_AT: Final = 52
"""Where the schema message has the number of its fields; behind it, how far each of them is from there."""

assert BUFFERS_OF["reply"][1] == BUFFER_COUNT
assert NODES_OF["reply"][1] == NODE_COUNT
assert _COUNT.unpack_from(SCHEMA_BYTES, _FIELDS_AT) == (len(SCHEMA),)


def columns_in(names: Iterable[str]) -> Columns:
    """Columns of the record, in its order, with `offset` (J3). Names that it does not have are left out."""
    wanted = {"offset", *names}
    return tuple(name for name in SCHEMA.names if name in wanted)


@cache
def schema_of(columns: Columns) -> pa.Schema:
    """The schema of messages with these columns."""
    return pa.schema([SCHEMA.field(name) for name in columns])


@cache
def schema_bytes(columns: Columns) -> bytes:
    """The schema message, as long as `SCHEMA_BYTES`."""
    made = bytearray(SCHEMA_BYTES)
    places = [_FIELDS_AT + 4 * (i + 1) for i in range(len(SCHEMA))]
    fields = [at + _COUNT.unpack_from(SCHEMA_BYTES, at)[0] for at in places]
    kept = [fields[SCHEMA.get_field_index(name)] for name in columns]
    _COUNT.pack_into(made, _FIELDS_AT, len(kept))
    for i, at in enumerate(places):
        _COUNT.pack_into(made, at, kept[i] - at if i < len(kept) else 0)
    return bytes(made)


def head_bytes(head: bytes | bytearray | memoryview) -> int:
    """The length of the header that a message begins with."""
    return HEADER_LENGTHS[bytes(head[:8])]


def spans_of(head: bytes | bytearray | memoryview) -> Spans | None:
    """Where the columns lie. None: the buffers are not as every writer of batches puts them (`batch.B3`).

    Args:
        head: The header of a batch, at least; of a right one, or of a damaged one.
    """
    places = _PLACES.unpack_from(head, BUFFERS_AT)
    (body,) = struct.unpack_from("<q", head, BODY_LENGTH_AT)
    sizes = places[1::2]
    edges = list(accumulate((size + 7 & -8 for size in sizes), initial=0))
    if min(sizes) < 0 or edges[-1] != body or tuple(edges[:-1]) != places[::2]:
        return None
    return [(edges[first], edges[stop]) for first, stop in BUFFERS_OF.values()]


def known_of(message: bytes | bytearray | memoryview) -> bytes | None:
    """What is known of the columns of a whole batch, as `KNOWN`. None: as `spans_of`."""
    spans = spans_of(message)
    if spans is None:
        return None
    body = memoryview(message)[head_bytes(message) :]
    crcs = [crc32c(body[start:end]) for start, end in spans]
    behind_all = spans[-1][1]
    added = [adds(crc, end - start, behind_all - end) for crc, (start, end) in zip(crcs, spans, strict=True)]
    return KNOWN.pack(*crcs, *added, spans[0][0], *(end for _, end in spans))


def verify_known(message: bytes | bytearray | memoryview, *, where: str = "") -> tuple[BatchHeader, bytes | None]:
    """Check a whole batch. Returns its header and what is known of its columns. Raises as `batch.verify_batch`."""
    return verify_batch(message, where=where), known_of(message)


def told(added: Sequence[int], columns: Columns) -> bytes:
    """What is sent of the columns that are not."""
    total = 0
    for name, each in zip(SCHEMA.names, added, strict=True):
        if name not in columns:
            total ^= each
    return ADDED.pack(total)


def projected_head(head: bytes | bytearray | memoryview, columns: Columns, spans: Spans) -> bytes:
    """The changed header (J2).

    Args:
        head: The header of the stored batch.
        columns: Those that are sent.
        spans: As `spans_of` has them.
    """
    made = bytearray(head)
    places, lengths = _PLACES.unpack_from(head, BUFFERS_AT), _LENGTHS.unpack_from(head, NODES_AT)
    at = len(head) + ADDED.size
    buffers: list[int] = []
    nodes: list[int] = []
    for name, (start, end) in zip(SCHEMA.names, spans, strict=True):
        if name in columns:
            first, stop = BUFFERS_OF[name]
            for i in range(first, stop):
                buffers += (places[2 * i] - start + at, places[2 * i + 1])
            first, stop = NODES_OF[name]
            nodes += lengths[2 * first : 2 * stop]
            at += end - start
    struct.pack_into("<q", made, BODY_LENGTH_AT, at)
    _COUNT.pack_into(made, BUFFERS_AT - 4, len(buffers) // 2)
    _COUNT.pack_into(made, NODES_AT - 4, len(nodes) // 2)
    _PLACES.pack_into(made, BUFFERS_AT, *buffers, *bytes(2 * BUFFER_COUNT - len(buffers)))
    _LENGTHS.pack_into(made, NODES_AT, *nodes, *bytes(2 * NODE_COUNT - len(nodes)))
    return bytes(made)


def begun(
    head: bytes | bytearray | memoryview, known: bytes, columns: Columns
) -> tuple[bytes, Sequence[tuple[int, int]]]:
    """A message of some columns up to these.

    Args:
        head: The header of the stored batch.
        known: Of its columns, packed as `KNOWN`.
        columns: Those that are sent.
    Returns:
        The bytes, and where in the stored body lies what follows: neighbours as one, none that is empty.
    """
    numbers = KNOWN.unpack(known)
    spans = list(pairwise(numbers[14:]))
    runs: list[tuple[int, int]] = []
    for name, (start, end) in zip(SCHEMA.names, spans, strict=True):
        if name in columns and end > start:
            runs.append((runs.pop()[0] if runs and runs[-1][1] == start else start, end))
    return projected_head(head, columns, spans) + bytes(head) + told(numbers[7:14], columns), runs


def verify_projected(message: bytes | bytearray | memoryview, columns: Columns, *, where: str = "") -> BatchHeader:
    """Check a whole projected message and return the header of its batch. As `batch.verify_batch`.

    Raises:
        BadBatch: a length, the header or the CRC of what is stored does not fit, or it would take too much memory.
        UnknownFormatVersion: a later version wrote the batch.
    """
    view = memoryview(message)
    if message_bytes(view, where=where) != len(view):
        raise BadBatch(f"{where}a message of some columns is {len(view)} bytes, which is not what it says")
    size = head_bytes(view)
    stored, at = view[size : 2 * size], 2 * size + ADDED.size
    spans = spans_of(stored) if len(view) >= at and stored[:8] == view[:8] else None
    if (
        spans is None
        or at + sum(end - start for name, (start, end) in zip(SCHEMA.names, spans, strict=True) if name in columns)
        != len(view)  # so no sum below is more than a header can say
        or bytes(view[:size]) != projected_head(stored, columns, spans)
    ):
        raise BadBatch(f"{where}the header of a message of some columns is damaged")
    added, zeros = _TOLD.unpack_from(view, 2 * size)
    if zeros:
        raise BadBatch(f"{where}a message of some columns is damaged before them")
    computed, said = int(checksum(stored), 16), bytes(stored[CRC_AT:_CRC_END])
    passed_over = 0
    for name, (start, end) in zip(SCHEMA.names, spans, strict=True):
        if name in columns:
            computed = crc32c(view[at : at + end - start], behind(computed, passed_over))
            at += end - start
            passed_over = 0
        else:
            passed_over += end - start
    computed = behind(computed, passed_over) ^ added
    if b"%08x" % computed != said:
        raise BadBatch(f"{where}CRC-32C is {computed:08x} by what came of the batch, the batch says {said!r}")
    if size == PACKED_HEADER_BYTES:
        decoded = decoded_bytes(view)
        if decoded is None or decoded > DECODED_BYTES_MAX:
            raise BadBatch(f"{where}{decoded} bytes when decompressed, {DECODED_BYTES_MAX} are the limit")
    return read_header(stored, where=where)
