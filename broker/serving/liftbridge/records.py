"""Records as clients publish them: by partition, as columns, and the acks that go back.

    messages that have come ──► in_order: runs of one place ──► arrow_of: an append ──► acks: its answers, framed

A message stays bytes: what is plain is read by _records.pyx, and by protobuf's own library what is not,
and all of it where nothing was compiled.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from broker.api.compiled import load_compiled
from broker.api.proto import liftbridge_pb2 as pb
from broker.api.schema import HEADER_TYPE, HEADERS_TYPE
from broker.serving.liftbridge.messages import framed, parsed

APPENDED_MAX: Final = 4_096
"""Records of one append."""
_compiled = load_compiled("broker.serving.liftbridge._records")
_ACKS: Final[Mapping[int, str]] = {pb.LEADER: "leader", pb.ALL: "all", pb.NONE: "none"}


class Destination(NamedTuple):
    """Where a record goes, and what its publisher waits for."""

    stream: str
    partition: int
    acks: str


class Acked(NamedTuple):
    """Where an append is, and when it came and was safe, in ns since 1970.

    Attributes:
        subject: That of its partition.
    """

    stream: str
    subject: str
    first_offset: int
    received: int
    committed: int


def in_order(messages: list[bytes]) -> Iterator[list[tuple[Destination, list[bytes]]]]:
    """Runs of records, round by round: those of a round go to different partitions, and each has one ack policy.

    Raises:
        StatusError: a message is none.
    """
    found = None if _compiled is None else _compiled.grouped(messages, APPENDED_MAX)
    if found is None:
        found = _grouped(messages)
    for at in range(max(map(len, found), default=0)):
        yield [(_destination(*each[at][:3]), each[at][3]) for each in found if len(each) > at]


def _destination(stream: str, partition: int, ack_policy: int) -> Destination:
    return Destination(stream, partition, _ACKS.get(ack_policy, "leader"))


def place_of(record: Any) -> Destination:
    """Where a record goes."""
    return _destination(record.stream, record.partition, record.ack_policy)


def _grouped(messages: Sequence[bytes]) -> list[list[tuple[str, int, int, list[bytes]]]]:
    """`grouped` of _records.pyx, of all messages. Raises StatusError."""
    runs: dict[tuple[str, int], list[tuple[str, int, int, list[bytes]]]] = {}
    for message in messages:
        record = parsed(pb.Publish, message)
        of_partition = runs.setdefault((record.stream, record.partition), [])
        is_new = not of_partition or of_partition[-1][2] != record.ack_policy
        if is_new or len(of_partition[-1][3]) == APPENDED_MAX:
            of_partition.append((record.stream, record.partition, record.ack_policy, []))
        of_partition[-1][3].append(message)
    return list(runs.values())


def arrow_of(messages: list[bytes], subject: str | None) -> bytes:
    """Records as the HTTP API takes them. A key that is empty is none, as Liftbridge's messages cannot tell."""
    found = None if _compiled is None else _compiled.columns(messages)
    columns = _parsed_columns(messages) if found is None else _plain_columns(len(messages), *found)
    if subject is not None:
        columns["subject"] = pa.repeat(pa.scalar(subject, pa.string()), len(messages))
    batch = pa.RecordBatch.from_pydict(columns)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _plain_columns(count: int, keys: Any, values: Any, headers: Any) -> dict[str, Any]:
    """Of what `columns` of _records.pyx gives."""
    found = {
        "key": pa.nulls(count, pa.binary()) if keys is None else _binary(pa.binary(), count, keys[1], keys[0]),
        "value": _binary(pa.binary(), count, values),
    }
    if headers is not None:
        valid, offsets, names, contents = headers
        name, content = HEADER_TYPE.field("key").type, HEADER_TYPE.field("value").type
        total = len(names.offsets) // 4 - 1
        children = [_binary(name, total, names), _binary(content, total, contents)]
        entries = pa.Array.from_buffers(HEADER_TYPE, total, [None], children=children)
        buffers = [pa.py_buffer(valid), pa.py_buffer(offsets)]
        found["headers"] = pa.Array.from_buffers(HEADERS_TYPE, count, buffers, children=[entries])
    return found


def _binary(kind: pa.DataType, count: int, column: Any, valid: bytes | None = None) -> pa.Array:
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, count, buffers)


def _parsed_columns(messages: Sequence[bytes]) -> dict[str, Any]:
    records = [parsed(pb.Publish, message) for message in messages]
    columns: dict[str, Any] = {
        "key": pa.array([record.key or None for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
    }
    if any(record.headers for record in records):
        columns["headers"] = pa.array([_headers_of(record.headers) for record in records], HEADERS_TYPE)
    return columns


def _headers_of(headers: Mapping[str, bytes]) -> Iterable[Mapping[str, Any]] | None:
    return [{"key": name, "value": headers[name]} for name in sorted(headers)] or None


def acks(messages: list[bytes], stored: Acked) -> bytes:
    """The answers to the records of an append, framed."""
    head = pb.Ack(stream=stored.stream, partition_subject=stored.subject, subject=stored.subject).SerializeToString()
    tail = pb.Ack(received=stored.received, committed=stored.committed).SerializeToString()
    found: bytes | None = None if _compiled is None else _compiled.acks(messages, stored.first_offset, head, tail)
    return _acks(messages, stored) if found is None else found


def _acks(messages: Sequence[bytes], stored: Acked) -> bytes:
    answers: list[bytes] = []
    for offset, message in enumerate(messages, stored.first_offset):
        record = parsed(pb.Publish, message)
        ack = pb.Ack(
            stream=stored.stream,
            partition_subject=stored.subject,
            subject=stored.subject,
            offset=offset,
            ack_inbox=record.ack_inbox,
            correlation_id=record.correlation_id,
            ack_policy=record.ack_policy,
            received=stored.received,
            committed=stored.committed,
        )
        answers.append(pb.Published(ack=ack, correlation_id=record.correlation_id).SerializeToString())
    return framed(answers)
