"""The batches of a complete stream, one by one, as a reader without our client would cut them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from crc32c import crc32c

from broker.api.batch import CRC_AT, FORMAT_VERSION, HEADER_BYTES, message_bytes
from broker.api.columns import Columns, head_bytes, projected_head, spans_of
from broker.api.errors import BadBatch
from broker.api.schema import END_OF_STREAM, SCHEMA, SCHEMA_BYTES


def split_messages(data: bytes | bytearray | memoryview, *, where: str = "") -> Iterator[memoryview]:
    """Yield the batch messages of a complete stream: schema, batches, end-of-stream, nothing else.

    Neither the CRCs nor the headers are checked, only the framing and the pinned schema bytes.

    Raises:
        BadBatch: another schema, a torn batch, a missing end marker, or bytes behind it.
    """
    view = memoryview(data)
    if bytes(view[: len(SCHEMA_BYTES)]) != SCHEMA_BYTES:
        raise BadBatch(f"{where}the stream does not begin with the record schema of format version {FORMAT_VERSION}")
    at, end = len(SCHEMA_BYTES), len(view) - len(END_OF_STREAM)
    if bytes(view[max(at, end) :]) != END_OF_STREAM:
        raise BadBatch(f"{where}no end-of-stream marker at the end of {len(view)} bytes: the answer was cut off")
    while at < end:
        length = message_bytes(view[at : min(at + HEADER_BYTES, end)], where=where)
        if at + length > end:
            raise BadBatch(f"{where}a batch of {length} bytes at {at} runs past the end at {end}")
        yield view[at : at + length]
        at += length


def projected(message: bytes, columns: Columns) -> bytes:
    """Some columns of a batch, as a broker sends them; made slowly, by the description."""
    head = message[: head_bytes(message)]
    spans = spans_of(head)
    assert spans is not None
    body = message[len(head) :]
    sent = [body[start:end] for name, (start, end) in zip(SCHEMA.names, spans, strict=True) if name in columns]
    zeros = [
        body[start:end] if name in columns else bytes(end - start)
        for name, (start, end) in zip(SCHEMA.names, spans, strict=True)
    ]
    unsealed = message[:CRC_AT] + b"0" * 8 + message[CRC_AT + 8 : len(head)]
    added = crc32c(unsealed + b"".join(zeros)) ^ crc32c(unsealed + body)
    return projected_head(head, columns, spans) + head + struct.pack("<II", added, 0) + b"".join(sent)
