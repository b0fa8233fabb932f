"""Publish and PublishAsync: records to the log of a partition, without a way over NATS.

    messages that have come ──► by stream, partition and ack policy ──► one append for each ──► acks, in their order
             ▲                                                                                       │
             └───────────────── what has come meanwhile is the next append ◄─────────────────────────┘

P1  Records of one call and partition are stored in the order in which they came.
P2  An append is stored whole or not at all. One that is refused for what it holds is made again in halves, down to
    single records, so that each publisher hears of its own. One that is refused for its place or its caller is not.
P3  Another broker leads: it is asked, for the caller, who has been judged here and is judged there again.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from broker.api.errors import (
    InvalidRequest,
    LiftlogError,
    NotLeader,
    ReadOnly,
    Unauthenticated,
    Unauthorized,
    UnknownPartition,
    UnknownStream,
)
from broker.api.http import ARROW_STREAM
from broker.api.proto import liftbridge_pb2 as pb
from broker.api.schema import HEADERS_TYPE
from broker.serving.contract.backend import Backend
from broker.serving.endpoints.append import default_subject
from broker.serving.endpoints.resolve import leader_named
from broker.serving.liftbridge.calls import Handling, Methods
from broker.serving.liftbridge.messages import MESSAGE_BYTES_MAX, parsed
from broker.serving.liftbridge.statuses import Code, StatusError, refused

METHODS: Final = Methods()
APPENDED_MAX: Final = 4_096
"""Records of one append."""
FORWARDED_S: Final = 30.0
_OF_ALL: Final = (Unauthenticated, Unauthorized, UnknownStream, UnknownPartition, ReadOnly)
"""Refusals that do not depend on the records."""
_ACKS: Final = {pb.LEADER: "leader", pb.ALL: "all", pb.NONE: "none"}
_CODES: Final[Mapping[Code, Any]] = {
    Code.INVALID_ARGUMENT: pb.AsyncError.BAD_REQUEST,
    Code.NOT_FOUND: pb.AsyncError.NOT_FOUND,
    Code.INTERNAL: pb.AsyncError.INTERNAL,
    Code.PERMISSION_DENIED: pb.AsyncError.PERMISSION_DENIED,
    Code.UNAUTHENTICATED: pb.AsyncError.PERMISSION_DENIED,
}
"""Errors of PublishAsync by the code that they would have elsewhere; all others are UNKNOWN."""


class Destination(NamedTuple):
    """Where a record goes, and what its publisher waits for."""

    stream: str
    partition: int
    acks: str


@METHODS.add("Publish", "append_records")
async def publish(asking: Handling) -> None:
    """Append one record, and answer when it is as safe as the ack policy asks for."""
    asked = parsed(pb.Publish, await asking.call.message(MESSAGE_BYTES_MAX))
    answer = pb.Published(ack=await _append_one(asking, asked))
    if asked.ack_policy == pb.NONE:
        answer = pb.Published()
    answer.correlation_id = asked.correlation_id
    await asking.call.send([answer.SerializeToString()])


@METHODS.add("PublishAsync", "append_records", is_stream=True)
async def publish_async(asking: Handling) -> None:
    """Append records as they come; each has its own ack or error, by its correlation id."""
    asking.call.begin()
    while messages := await asking.call.messages():
        asked = [parsed(pb.Publish, message) for message in messages]
        for appended in in_order(asked):
            answers = await asyncio.gather(*(_published(asking, place, records) for place, records in appended))
            told = [answer.SerializeToString() for each in answers for answer in each]
            if told:
                await asking.call.send(told)


def in_order(asked: Sequence[Any]) -> Iterator[list[tuple[Destination, list[Any]]]]:
    """Groups of records, round by round: those of a round go to different places (P1)."""
    by_place: dict[Destination, list[Any]] = {}
    for record in asked:
        by_place.setdefault(place_of(record), []).append(record)
    longest = max(map(len, by_place.values()), default=0)
    for at in range(0, longest, APPENDED_MAX):
        end = at + APPENDED_MAX
        yield [(place, records[at:end]) for place, records in by_place.items() if len(records) > at]


def place_of(record: Any) -> Destination:
    """Where a record goes."""
    return Destination(record.stream, record.partition, _ACKS.get(record.ack_policy, "leader"))


async def _published(asking: Handling, place: Destination, records: list[Any]) -> list[Any]:
    """The answers to records of one place; those that want none have one if they are refused."""
    try:
        acks = await append(asking, place, records)
    except (LiftlogError, StatusError) as error:
        if len(records) > 1 and isinstance(error, InvalidRequest) and not isinstance(error, _OF_ALL):  # P2
            half = len(records) // 2
            return [
                *await _published(asking, place, records[:half]),
                *await _published(asking, place, records[half:]),
            ]
        status = refused(error) if isinstance(error, LiftlogError) else error
        code = (
            pb.AsyncError.READONLY if status.reason == "read_only" else _CODES.get(status.code, pb.AsyncError.UNKNOWN)
        )
        error_told = pb.AsyncError(code=code, message=status.message)
        return [pb.Published(error=error_told, correlation_id=record.correlation_id) for record in records]
    if place.acks == "none":
        return []
    return [pb.Published(ack=ack, correlation_id=ack.correlation_id) for ack in acks]


async def _append_one(asking: Handling, record: Any) -> Any:
    [ack] = await append(asking, place_of(record), [record])
    return ack


async def append(asking: Handling, place: Destination, records: Sequence[Any]) -> list[Any]:
    """The acks of records that go to one place. Raises LiftlogError, StatusError: none of them is stored, or it is in
    doubt."""
    if not place.stream:
        raise StatusError(Code.INVALID_ARGUMENT, "No stream provided")
    if place.partition < 0:
        raise StatusError(Code.NOT_FOUND, f"stream {place.stream!r} has no partition {place.partition}")
    received = asking.serving.now_us() * 1_000
    stream_subject, subject = subjects_of(asking.serving.backend, place)
    body = arrow_of(records, subject)
    path, query = {"stream": place.stream, "partition": str(place.partition)}, {"acks": place.acks}
    try:
        answer = (await asking.ask("append_records", path=path, query=query, data=body, media=ARROW_STREAM)).json()
    except NotLeader as error:
        address = leader_named(error)
        if address is None:
            raise
        answer = await _forwarded(asking, address, place, query, body)
    committed = asking.serving.now_us() * 1_000
    return [
        pb.Ack(
            stream=place.stream,
            partition_subject=subject or stream_subject,
            subject=subject or stream_subject,
            offset=offset,
            ack_inbox=record.ack_inbox,
            correlation_id=record.correlation_id,
            ack_policy=record.ack_policy,
            received=received,
            committed=committed,
        )
        for offset, record in enumerate(records, answer["first_offset"])
    ]


async def _forwarded(
    asking: Handling, address: str, place: Destination, query: Mapping[str, str], body: bytes
) -> Mapping[str, Any]:
    """P3."""
    answer: Mapping[str, Any] = await asking.serving.peers.ask(
        address,
        "POST",
        f"/v1/streams/{place.stream}/partitions/{place.partition}/records",
        query=query,
        content=body,
        media=ARROW_STREAM,
        timeout_s=FORWARDED_S,
        behalf=asking.door.principal,
    )
    return answer


def subjects_of(backend: Backend, place: Destination) -> tuple[str, str | None]:
    """The subject of a stream, and that of its partition if it is another one, as a message from NATS would have it."""
    try:
        info = backend.stream(place.stream)
    except (UnknownStream, LiftlogError):  # whoever may ask is told by the append
        return place.stream, None
    subject = default_subject(info)
    has_own = place.partition > 0 and info.settings.partition_by == "subject_suffix"
    return subject, f"{subject}.{place.partition}" if has_own and subject == info.settings.subject else None


def arrow_of(records: Sequence[Any], subject: str | None) -> bytes:
    """Records as the HTTP API takes them. A key that is empty is none, as Liftbridge's messages cannot tell."""
    columns: dict[str, Any] = {
        "key": pa.array([record.key or None for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
    }
    if any(record.headers for record in records):
        columns["headers"] = pa.array([_headers_of(record.headers) for record in records], HEADERS_TYPE)
    if subject is not None:
        columns["subject"] = pa.array([subject] * len(records), pa.string())
    batch = pa.RecordBatch.from_pydict(columns)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _headers_of(headers: Mapping[str, bytes]) -> Iterable[Mapping[str, Any]] | None:
    return [{"key": name, "value": headers[name]} for name in sorted(headers)] or None
