"""One record batch as bytes: what is appended, replicated, served and verified as a unit.

A batch is one Arrow IPC record batch message. Its flatbuffer header carries one pair of custom
metadata, key `liftlog`, whose value is fixed-width lower-case ASCII hex (other readers of Arrow
insist on UTF-8). Uncompressed, the header is always `HEADER_BYTES` long and the value is always
at byte `VALUE_AT`, so it is composed from a pinned template (`batch_header.bin`) by patching:

    0    FF FF FF FF          continuation marker
    4    int32                metadata length, always 880
    48   int64                body length
    88   176 x ASCII hex      the value: FIELDS below
    304  int64                rows
    320  25 x (int64, int64)  buffers: position in the body, length
    728  10 x (int64, int64)  nodes: length, null count
    888  ...                  body: buffers in order, each padded to 8 bytes with zeros

A compressed batch (`broker/api/compression.py`; only rewritten ones are) says so in 16 bytes more before its body, all
else is where it was.

Invariants
B1  The CRC-32C covers the whole message, marker to last body byte, with its own eight digits
    read as '0', and is compared as bytes. Any flipped bit anywhere is found.
B2  first_offset <= last_offset; the rows lie in that range, strictly increasing. (After
    compaction a batch keeps its original range and may hold fewer rows.)
B3  The same rows and header give the same bytes, whoever encodes them: this module, the
    compiled intake, and pyarrow's writer agree (a test shows it).

Format: docs/reference/storage.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import resources
from typing import Final

import pyarrow as pa
from crc32c import crc32c

from broker.api.compression import (
    DECODED_BYTES_MAX,
    PACKED_HEADER_BYTES,
    PLAIN_BODY_BYTES_MAX,
    decoded_bytes,
    pack,
    packed_template,
)
from broker.api.errors import BadBatch, UnknownFormatVersion
from broker.api.schema import SCHEMA

FORMAT_VERSION: Final = 1

# name -> hex digits, in order. All are unsigned but max_timestamp_us (two's complement).
FIELDS: Final = {
    "format_version": 4,
    "flags": 4,
    "first_offset": 16,
    "last_offset": 16,
    "leader_epoch": 8,
    "high_watermark": 16,
    "max_timestamp_us": 16,
    "producer_id": 16,
    "producer_epoch": 8,
    "sequence": 16,
    "group_index": 8,
    "group_count": 8,
    "decision": 32,
    "crc": 8,
}
VALUE_BYTES: Final = sum(FIELDS.values())
HEADER_BYTES: Final = 888
VALUE_AT: Final = 88
CRC_AT: Final = VALUE_AT + VALUE_BYTES - FIELDS["crc"]
BODY_LENGTH_AT: Final = 48
ROWS_AT: Final = 304
BUFFERS_AT: Final = 320
BUFFER_COUNT: Final = 25
NODES_AT: Final = 728
NODE_COUNT: Final = 10

TEMPLATE: Final = resources.files(__package__).joinpath("batch_header.bin").read_bytes()
HEADER_LENGTHS: Final = {TEMPLATE[:8]: HEADER_BYTES, packed_template(TEMPLATE, "lz4")[:8]: PACKED_HEADER_BYTES}
"""The first 8 bytes of a message -> length of its header."""
_PLAIN: Final = TEMPLATE[:8]
_START: Final = struct.Struct(f"<8s{BODY_LENGTH_AT - 8}xq")
"""Marker and metadata length, and the body's length."""
_CRC_END: Final = CRC_AT + FIELDS["crc"]
_CRC_ZERO: Final = b"0" * FIELDS["crc"]
_U64: Final = 1 << 64
_DIGITS: Final = "".join(f"%0{width}x" for width in FIELDS.values())

assert len(TEMPLATE) == HEADER_BYTES
assert VALUE_BYTES == 176
assert CRC_AT == 256
assert BUFFERS_AT + 16 * BUFFER_COUNT + 8 == NODES_AT
assert NODES_AT + 16 * NODE_COUNT == HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """The header of a batch. The fields are those of `FIELDS`, in its order.

    Attributes:
        first_offset: Offset of the first record that was in the batch when it was appended.
        last_offset: Offset of the last such record, inclusive.
        leader_epoch: Epoch of the leader that appended it.
        high_watermark: The leader's high watermark when it was written.
        max_timestamp_us: Greatest timestamp in the batch, microseconds since 1970 UTC.
        producer_id: Idempotent producer, 0 for none; with `producer_epoch` and `sequence` (of the batch).
        group_index: Place in its commit group of `group_count` batches; 0 of 1 when alone.
        decision: The sink decision that the commit group belongs to, 0 for none.
        crc: CRC-32C of the message (B1). `encode_batch` computes it; 0 until then.
    """

    format_version: int = FORMAT_VERSION
    flags: int = 0
    first_offset: int
    last_offset: int
    leader_epoch: int = 0
    high_watermark: int = 0
    max_timestamp_us: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    sequence: int = 0
    group_index: int = 0
    group_count: int = 1
    decision: int = 0
    crc: int = 0

    @property
    def next_offset(self) -> int:
        """First offset after the batch."""
        return self.last_offset + 1

    def value(self) -> bytes:
        """The metadata value, `VALUE_BYTES` long, with the CRC as it stands in `crc`."""
        digits = _DIGITS % (
            self.format_version,
            self.flags,
            self.first_offset,
            self.last_offset,
            self.leader_epoch,
            self.high_watermark,
            self.max_timestamp_us % _U64,
            self.producer_id,
            self.producer_epoch,
            self.sequence,
            self.group_index,
            self.group_count,
            self.decision,
            self.crc,
        )
        assert len(digits) == VALUE_BYTES, f"a header field does not fit its width: {self}"
        return digits.encode("ascii")


assert [f.name for f in fields(BatchHeader)] == list(FIELDS)


def encode_batch(batch: pa.RecordBatch, header: BatchHeader, *, compression: str = "none") -> bytearray:
    """Encode rows as one batch, with its CRC.

    Args:
        batch: n >= 0 rows of exactly `SCHEMA`; may be a slice. (Only compaction leaves none.)
        header: The header of the batch; `crc` is ignored.
        compression: `none`, `lz4` or `zstd`; a body that is not longer than `PLAIN_BODY_BYTES_MAX` stays as it is.
    Returns:
        The message, a multiple of 8 bytes.
    """
    assert batch.schema.equals(SCHEMA), f"not the record schema: {batch.schema}"
    if not all(map(_is_whole, batch.columns)):  # round trip: pyarrow's writer cuts slices down
        batch = pa.ipc.read_record_batch(batch.serialize(), SCHEMA)
    nodes: list[int] = []
    buffers: list[pa.Buffer | None] = []
    for column in batch.columns:
        _flatten(column, nodes, buffers)
    template = TEMPLATE
    body = sum(buffer.size + -buffer.size % 8 for buffer in buffers if buffer is not None)
    if compression != "none" and body > PLAIN_BODY_BYTES_MAX:
        template, buffers = packed_template(TEMPLATE, compression), pack(buffers, compression)
    places: list[int] = []
    parts: list[pa.Buffer | bytes] = []
    position = 0
    for buffer in buffers:
        size = 0 if buffer is None else buffer.size
        places += (position, size)
        if buffer is not None and size:
            parts.append(buffer)
            if padding := -size % 8:
                parts.append(bytes(padding))
            position += size + padding if padding else size
    head = bytearray(template)
    struct.pack_into("<q", head, BODY_LENGTH_AT, position)
    struct.pack_into("<q", head, ROWS_AT, batch.num_rows)
    struct.pack_into(f"<{2 * BUFFER_COUNT}q", head, BUFFERS_AT, *places)
    struct.pack_into(f"<{2 * NODE_COUNT}q", head, NODES_AT, *nodes)
    head[VALUE_AT:CRC_AT] = header.value()[: -FIELDS["crc"]]
    message = bytearray().join([head, *parts])  # one copy of the body
    seal(message)
    return message


def _is_whole(array: pa.Array) -> bool:
    """Whether an array and its children begin where their buffers do, so that `_flatten` only has to cut their ends."""
    if array.offset:
        return False
    kind, n = array.type, len(array)
    if pa.types.is_struct(kind):
        return all(_is_whole(array.field(i)) for i in range(kind.num_fields))
    own = array.buffers()[1]
    if pa.types.is_primitive(kind):
        return own is not None and own.size * 8 >= n * kind.bit_width
    if own is None or own.size < 4 * (n + 1) or struct.unpack_from("<i", own)[0] != 0:
        return False
    if pa.types.is_list(kind):  # its child is stored whole, and so must end where the list does
        return struct.unpack_from("<i", own, 4 * n)[0] == len(array.values) and _is_whole(array.values)
    return True


def _flatten(array: pa.Array, nodes: list[int], buffers: list[pa.Buffer | None]) -> None:
    """Append an array's nodes and buffers in Arrow's order: depth first, own buffers before children."""
    nodes += (len(array), array.null_count)
    own = array.buffers()
    n = len(array)
    validity = _validity(own[0], n) if array.null_count else None
    # Cut what pyarrow's writer leaves behind the end, up to its own padding: neighbouring rows of a slice,
    # and the offsets of an empty child, which are as long as its parent's.
    if pa.types.is_primitive(array.type):
        own[1] = own[1].slice(0, n * array.type.bit_width // 8)
    elif not pa.types.is_struct(array.type):
        own[1] = own[1].slice(0, 4 * (n + 1))
        if len(own) == 3 and own[2] is not None:
            own[2] = own[2].slice(0, struct.unpack_from("<i", own[1], 4 * n)[0])
    if pa.types.is_list(array.type):
        buffers += (validity, own[1])
        _flatten(array.values, nodes, buffers)
    elif pa.types.is_struct(array.type):
        buffers.append(validity)
        for i in range(array.type.num_fields):
            _flatten(array.field(i), nodes, buffers)
    else:
        buffers += (validity, *own[1:])


def _validity(bits: pa.Buffer, n: int) -> pa.Buffer:
    """The first n bits, without those of rows that were cut off behind them."""
    if n % 8 == 0:
        return bits.slice(0, n // 8)
    cut = bytearray(bits.slice(0, n // 8 + 1))
    cut[-1] &= (1 << n % 8) - 1
    return pa.py_buffer(cut)


def checksum(message: bytes | bytearray | memoryview) -> bytes:
    """The CRC-32C of a message as its eight hex digits, its own digits read as '0' (B1)."""
    view = memoryview(message)
    crc = crc32c(view[:CRC_AT])
    crc = crc32c(_CRC_ZERO, crc)
    crc = crc32c(view[CRC_AT + len(_CRC_ZERO) :], crc)
    return b"%08x" % crc


def seal(message: bytearray | memoryview) -> int:
    """Write a message's CRC into its place. Returns the CRC."""
    digits = checksum(message)
    message[CRC_AT : CRC_AT + len(digits)] = digits
    return int(digits, 16)


def crc_of(message: bytes | bytearray | memoryview) -> int:
    """The CRC that a message says it has."""
    return int(bytes(message[CRC_AT:_CRC_END]), 16)


def message_bytes(head: bytes | bytearray | memoryview, *, where: str = "") -> int:
    """Whole length of the message that begins with `head`, in bytes.

    Args:
        head: At least the first `HEADER_BYTES` bytes of a message.
        where: Named in the error.
    Raises:
        BadBatch: these bytes do not begin a batch. (Nothing is said of the CRC yet.)
    """
    if len(head) < HEADER_BYTES:
        raise BadBatch(f"{where}a batch header is {HEADER_BYTES} bytes, only {len(head)} are there")
    length = HEADER_LENGTHS.get(bytes(head[:8]))
    if length is None:
        raise BadBatch(f"{where}no batch begins here: {bytes(head[:8]).hex()}")
    (body,) = struct.unpack_from("<q", head, BODY_LENGTH_AT)
    if body < 0 or body % 8:
        raise BadBatch(f"{where}impossible body length {body}")
    return length + int(body)


def is_plain(message: bytes | bytearray | memoryview) -> bool:
    """Whether it begins as an uncompressed batch does, and is as long as it says."""
    return len(message) >= HEADER_BYTES and _START.unpack_from(message) == (_PLAIN, len(message) - HEADER_BYTES)


def read_header(head: bytes | bytearray | memoryview, *, where: str = "") -> BatchHeader:
    """Decode the metadata value of a message. The CRC is *not* checked; `verify_batch` does.

    Raises:
        BadBatch: the bytes are no batch header.
        UnknownFormatVersion: a later version wrote it.
    """
    message_bytes(head, where=where)
    value = bytes(head[VALUE_AT : VALUE_AT + VALUE_BYTES])
    if value.translate(None, _HEX):
        raise BadBatch(f"{where}a header field is not lower-case hex: {value!r}")
    found = dict(zip(FIELDS, _VALUE.unpack(bytes.fromhex(value.decode("ascii"))), strict=True))
    version, first, last = found["format_version"], found["first_offset"], found["last_offset"]
    if version != FORMAT_VERSION:
        raise UnknownFormatVersion(f"{where}batch format version {version}, this release reads {FORMAT_VERSION}")
    if last < first:
        raise BadBatch(f"{where}last offset {last} before first {first}")
    found["decision"] = int.from_bytes(found["decision"], "big")
    return BatchHeader(**found)


_HEX: Final = b"0123456789abcdef"
_VALUE: Final = struct.Struct(">HHQQIQqQIQII16sI")  # FIELDS, as bytes
assert 2 * _VALUE.size == VALUE_BYTES


def verify_batch(message: bytes | bytearray | memoryview, *, where: str = "") -> BatchHeader:
    """Check a whole message and return its header.

    Args:
        message: Exactly one message.
        where: Put before the error's text: file, position.
    Raises:
        BadBatch: length or CRC do not fit, or it would take over `DECODED_BYTES_MAX` of memory: the bytes must not be
            served, stored or decoded.
        UnknownFormatVersion: a later version wrote it.
    """
    length = message_bytes(message, where=where)
    if length != len(message):
        raise BadBatch(f"{where}batch of {length} bytes, {len(message)} are there")
    stored, computed = bytes(message[CRC_AT : CRC_AT + 8]), checksum(message)
    if stored != computed:
        raise BadBatch(f"{where}CRC-32C is {computed!r}, the batch says {stored!r}")
    if HEADER_LENGTHS[bytes(message[:8])] == PACKED_HEADER_BYTES:
        size = decoded_bytes(message)
        if size is None or size > DECODED_BYTES_MAX:
            raise BadBatch(f"{where}{size} bytes when decompressed, {DECODED_BYTES_MAX} are the limit")
    return read_header(message, where=where)


def decode_batch(
    message: bytes | bytearray | memoryview | pa.Buffer,
    *,
    where: str = "",
    reserve: Callable[[int], None] = lambda byte_count: None,
) -> pa.RecordBatch:
    """Verify one message and return its rows (zero-copy views into `message`, unless it is compressed).

    Args:
        reserve: Takes the memory of what is decompressed, before it is.
    Raises:
        BadBatch: the message is damaged.
    """
    view = memoryview(message)
    verify_batch(view, where=where)
    if not is_plain(view):
        reserve(decoded_bytes(view) or 0)
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA)
    except (pa.ArrowException, OSError) as error:  # the CRC is right, so whoever wrote it was wrong
        raise BadBatch(f"{where}{error}") from error
