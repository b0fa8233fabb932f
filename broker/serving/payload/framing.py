"""The frame of an Arrow stream that a stranger sent, read before Arrow decodes anything of it.

Arrow checks a message when it decodes it, but by then it has allocated what the message claims: each
compressed buffer begins with the length that it says it has when decompressed. So the frame is walked
first, and the claims are added up:

    FF FF FF FF │ int32 metadata length │ flatbuffer Message │ body        again and again, then
    FF FF FF FF │ 00 00 00 00           │ end-of-stream marker, and nothing behind it

F1  Messages tile the body exactly: the first is the schema, the others are record batches. Dictionaries
    are refused: a small body could expand without bound through them.
F2  Rows, batches and decompressed bytes are within the limits before Arrow sees a batch. A codec never
    writes more than the claimed length, so the claim is a true bound.
F3  Any bytes give a `Frame` or InvalidRecords or RequestTooLarge, in time linear in their number.

Source: Arrow's Message.fbs and Schema.fbs (slot numbers below), the flatbuffers internals page.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NoReturn

from broker.api.errors import InvalidRecords, RequestTooLarge
from broker.api.schema import END_OF_STREAM

BATCHES_MAX: Final = 4096
RECORDS_MAX: Final = 1 << 20
SCHEMA_BYTES_MAX: Final = 1 << 20
METADATA_VERSION: Final = 4  # "V5": since Arrow 1.0
_SCHEMA, _DICTIONARY, _RECORD_BATCH = 1, 2, 3
_MARKER: Final = b"\xff\xff\xff\xff"
_FILE_MAGIC: Final = b"ARROW1"
# Slots: Message
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = 0, 1, 2, 3
# Slots: RecordBatch
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3


@dataclass(frozen=True, slots=True)
class Frame:
    """The content of a body by its own account.

    Attributes:
        batches: Number of record batches.
        records: Their rows together.
        decoded_bytes: Their bodies together, decompressed.
        inflated_bytes: Those of them that are compressed: memory beside the body's own.
    """

    batches: int
    records: int
    decoded_bytes: int
    inflated_bytes: int


def walk(body: bytes | bytearray | memoryview, *, decoded_bytes_max: int) -> Frame:
    """Check the frame of a whole stream.

    Raises:
        InvalidRecords: no Arrow stream, cut off, or with something that is not taken.
        RequestTooLarge: over a limit, which it names.
    """
    view = memoryview(body)
    if bytes(view[: len(_FILE_MAGIC)]) == _FILE_MAGIC:
        _refuse("this is an Arrow file (Feather); send an Arrow stream")
    at = batches = records = decoded_bytes = inflated_bytes = 0
    while True:
        if bytes(view[at : at + 8]) == END_OF_STREAM:
            break
        try:
            message = _Message(view, at)
            if at == 0:
                if message.header_type != _SCHEMA or message.body_length:
                    _refuse("the first message is not a schema")
                if message.end > SCHEMA_BYTES_MAX:
                    _refuse(f"a schema of {message.end} bytes: at most {SCHEMA_BYTES_MAX} are accepted")
            elif message.header_type == _RECORD_BATCH:
                batches += 1
                records += message.rows()
                length = message.decoded_bytes()
                decoded_bytes += length
                inflated_bytes += length if message.is_compressed() else 0
            elif message.header_type == _DICTIONARY:
                _refuse("dictionary-encoded columns are not accepted; decode them before sending")
            else:
                _refuse(f"message {batches + 1} is not a record batch (type {message.header_type})")
        except struct.error:
            _refuse(f"the message at byte {at} is malformed")
        at = message.end
        for what, count, limit in (
            ("batches", batches, BATCHES_MAX),
            ("records", records, RECORDS_MAX),
            ("bytes when decompressed", decoded_bytes, decoded_bytes_max),
        ):
            if count > limit:
                raise RequestTooLarge(f"the body holds {count} {what} or more: {limit} is the limit", limit=limit)
    if at == 0:
        _refuse("there is no schema")
    if len(view) != at + len(END_OF_STREAM):
        _refuse(f"{len(view) - at - len(END_OF_STREAM)} bytes follow the end-of-stream marker")
    return Frame(batches, records, decoded_bytes, inflated_bytes)


class _Message:
    """One encapsulated message that begins at `at`. Reads outside the metadata raise struct.error."""

    def __init__(self, view: memoryview, at: int) -> None:
        if at == len(view):
            _refuse(f"cut off: after {at} bytes there is no end-of-stream marker")
        if bytes(view[at : at + 4]) != _MARKER:
            _refuse(f"no Arrow message begins at byte {at}: {bytes(view[at : at + 8]).hex() or 'nothing is there'}")
        if len(view) < at + 8:
            _refuse(f"cut off within the message at byte {at}")
        (length,) = struct.unpack_from("<i", view, at + 4)
        if length < 0 or length % 8:
            _refuse(f"the message at byte {at} says that its metadata is {length} bytes long")
        self._metadata = view[at + 8 : at + 8 + length]
        root = self._uoffset(0)
        if self._scalar(root, _VERSION, "<h", 0) != METADATA_VERSION:
            _refuse(f"the message at byte {at} is not of Arrow's metadata version 5")
        self.header_type = self._scalar(root, _HEADER_TYPE, "<B", 0)
        self.body_length = self._scalar(root, _BODY_LENGTH, "<q", 0)
        if self.body_length < 0:
            _refuse(f"the message at byte {at} says that its body is {self.body_length} bytes long")
        self.end = at + 8 + length + self.body_length
        if self.end > len(view):
            _refuse(f"cut off: the message at byte {at} needs {self.end} bytes, {len(view)} are there")
        self._body = view[at + 8 + length : self.end]
        self._header = self._table(root, _HEADER)

    def rows(self) -> int:
        """Rows of a record batch."""
        rows = self._scalar(self._batch(), _LENGTH, "<q", 0)
        if rows < 0:
            _refuse(f"a batch of {rows} rows")
        return rows

    def decoded_bytes(self) -> int:
        """Bytes of a record batch, as its buffers say of themselves, together."""
        batch = self._batch()
        if not self.is_compressed():
            return self.body_length
        total = 0
        field = self._field(batch, _BUFFERS)
        if field is None:
            return 0
        vector = field + self._uoffset(field)
        (count,) = struct.unpack_from("<I", self._metadata, vector)
        if vector + 4 + 16 * count > len(self._metadata):
            raise struct.error
        for position, length in struct.iter_unpack("<qq", self._metadata[vector + 4 : vector + 4 + 16 * count]):
            if length == 0:
                continue
            if position < 0 or length < 8 or position + length > self.body_length:
                _refuse(f"a compressed buffer of {length} bytes at {position} is not within its body")
            (claimed,) = struct.unpack_from("<q", self._body, position)
            if claimed < -1:
                _refuse(f"a compressed buffer says that it has {claimed} bytes")
            total += length if claimed == -1 else claimed
        return total

    def is_compressed(self) -> bool:
        """Whether its buffers are."""
        return self._table(self._batch(), _COMPRESSION) is not None

    def _batch(self) -> int:
        if self._header is None:
            raise struct.error
        return self._header

    def _uoffset(self, at: int) -> int:
        (value,) = struct.unpack_from("<I", self._metadata, at)
        return int(value)

    def _field(self, table: int, slot: int) -> int | None:
        """Where a table's field is, by the table's vtable; None: it has its default."""
        (back,) = struct.unpack_from("<i", self._metadata, table)
        vtable = table - back
        if vtable < 0:  # unpack_from would count from the end
            raise struct.error
        (vtable_bytes,) = struct.unpack_from("<H", self._metadata, vtable)
        if 4 + 2 * slot + 2 > vtable_bytes:
            return None
        (at,) = struct.unpack_from("<H", self._metadata, vtable + 4 + 2 * slot)
        return table + at if at else None

    def _scalar(self, table: int, slot: int, form: str, default: int) -> int:
        at = self._field(table, slot)
        return default if at is None else int(struct.unpack_from(form, self._metadata, at)[0])

    def _table(self, table: int, slot: int) -> int | None:
        at = self._field(table, slot)
        return None if at is None else at + self._uoffset(at)


def _refuse(what: str) -> NoReturn:
    raise InvalidRecords(f"the request body is not a usable Arrow stream: {what}")
