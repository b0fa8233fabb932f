"""Publish and PublishAsync: records to the log of a partition, without a way over NATS.

    messages that have come ──► by stream, partition and ack policy ──► one append for each ──► acks, in their order
             ▲                                                                                       │
             └───────────────── what has come meanwhile is the next append ◄─────────────────────────┘

P1  Records of one call and partition are stored in the order in which they came.
P2  An append is stored whole or not at all. One that is refused for what it holds is made again in halves, down to
    single records, so that each publisher hears of its own. One that is refused for its place or its caller is not.
P3  Another broker leads: it is asked, for the caller, who has been judged here and is judged there again.
P4  Where the stream has `concurrency_control`, `expectedOffset` counts: -1 is any, all others are the offset that the
    record has to get. Records of which each expects the offset behind the one before are one append, which the first
    one's decides. If that fails, those below the next offset are refused, and the one that expects it is tried.
P5  An append names the incarnation of the stream by which this broker judged it: its subject, and whether offsets
    count. The leader may know of a newer stream of that name, and this broker may hear of it meanwhile.
P6  The ack inbox of `Publish` is told on NATS too, as in Liftbridge, by the rules of envelopes (`ingest.rules.R9`); of
    a refusal the caller alone hears. `PublishAsync` passes it over, as Liftbridge does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NoReturn

from broker.api.errors import (
    ExpectationFailed,
    InvalidRequest,
    LiftlogError,
    NotLeader,
    ReadOnly,
    StaleIncarnation,
    Unauthenticated,
    Unauthorized,
    UnknownPartition,
    UnknownStream,
)
from broker.api.http import ARROW_STREAM
from broker.api.plain import INT64_MAX
from broker.api.proto import liftbridge_pb2 as pb
from broker.metadata.catalog import StreamInfo
from broker.serving.contract.backend import Backend
from broker.serving.endpoints.append import default_subject
from broker.serving.endpoints.resolve import leader_named
from broker.serving.liftbridge.calls import Handling, Methods
from broker.serving.liftbridge.messages import MESSAGE_BYTES_MAX, PREFIX, framed, parsed
from broker.serving.liftbridge.records import Acked, Destination, acks, arrow_of, in_order, place_of
from broker.serving.liftbridge.statuses import Code, StatusError, refused

METHODS: Final = Methods()
FORWARDED_S: Final = 30.0
_OF_ALL: Final = (Unauthenticated, Unauthorized, UnknownStream, UnknownPartition, StaleIncarnation, ReadOnly)
"""Refusals that do not depend on the records."""
_CODES: Final[Mapping[Code, Any]] = {
    Code.INVALID_ARGUMENT: pb.AsyncError.BAD_REQUEST,
    Code.NOT_FOUND: pb.AsyncError.NOT_FOUND,
    Code.INTERNAL: pb.AsyncError.INTERNAL,
    Code.PERMISSION_DENIED: pb.AsyncError.PERMISSION_DENIED,
    Code.UNAUTHENTICATED: pb.AsyncError.PERMISSION_DENIED,
}
"""Errors of PublishAsync by the code that they would have elsewhere; all others are UNKNOWN."""
_BY_REASON: Final[Mapping[str, Any]] = {
    "read_only": pb.AsyncError.READONLY,
    "expectation_failed": pb.AsyncError.INCORRECT_OFFSET,
}
"""Those that have one of their own."""
ANY_OFFSET: Final = -1
NONE_KNOWN: Final = "-"
"""No stream has this incarnation (P5)."""


@METHODS.add("Publish", "append_records")
async def publish(asking: Handling) -> None:
    """Append one record, and answer when it is as safe as the ack policy asks for."""
    message = await asking.call.message(MESSAGE_BYTES_MAX)
    asked = parsed(pb.Publish, message)
    stored = await append(asking, place_of(asked), [message])
    if asked.ack_inbox and asked.ack_policy != pb.NONE:  # P6
        ack = pb.Published.FromString(acks([message], stored)[PREFIX.size :]).ack
        asking.serving.backend.tell_inbox(asked.ack_inbox, ack.SerializeToString())
    answer = pb.Published(correlation_id=asked.correlation_id).SerializeToString()
    await asking.call.send_framed(framed([answer]) if asked.ack_policy == pb.NONE else acks([message], stored))


@METHODS.add("PublishAsync", "append_records", is_stream=True)
async def publish_async(asking: Handling) -> None:
    """Append records as they come; each has its own ack or error, by its correlation id."""
    asking.call.begin()
    while messages := await asking.call.messages():
        for appended in in_order(messages):
            answers = await asyncio.gather(*(_published(asking, place, records) for place, records in appended))
            if told := b"".join(chain(*answers)):
                await asking.call.send_framed(told)


async def _published(asking: Handling, place: Destination, messages: list[bytes]) -> list[bytes]:
    """The answers to records of one place, framed; those that want none have one if they are refused."""
    is_controlled = controls(stream_of(asking.serving.backend, place))
    left = deque(runs_of(messages) if is_controlled else (messages,))
    answers: list[bytes] = []
    while left:
        part = left.popleft()
        try:
            stored = await append(asking, place, part)
        except ExpectationFailed as error:  # P4
            behind = error.fields.get("next_offset", 0) - _expected(part[0])
            late = behind if 0 < behind < len(part) else len(part)
            answers.append(_refused(error, part[:late]))
            if part[late:]:
                left.appendleft(part[late:])
        except (StatusError, *_OF_ALL) as error:
            answers.append(_refused(error, [*part, *chain(*left)]))
            left.clear()
        except LiftlogError as error:
            if len(part) > 1 and isinstance(error, InvalidRequest):  # P2
                half = len(part) // 2
                left.extendleft((part[half:], part[:half]))
            else:
                answers.append(_refused(error, part))
        else:
            if place.acks != "none":
                answers.append(acks(part, stored))
    return answers


def runs_of(messages: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Records in a row that expect nothing, or each the offset behind the one before (P4)."""
    run: list[bytes] = []
    follows: int | None = None
    for message in messages:
        expected = _expected(message)
        if run and expected != follows:
            yield run
            run = []
        run.append(message)
        follows = expected + 1 if expected >= 0 else ANY_OFFSET if expected == ANY_OFFSET else None
    if run:
        yield run


def _expected(message: bytes) -> int:
    return int(parsed(pb.Publish, message).expected_offset)


def _refused(error: LiftlogError | StatusError, messages: Sequence[bytes]) -> bytes:
    status = refused(error) if isinstance(error, LiftlogError) else error
    code = _BY_REASON.get(status.reason) or _CODES.get(status.code, pb.AsyncError.UNKNOWN)
    told = pb.AsyncError(code=code, message=status.message)
    ids = (parsed(pb.Publish, message).correlation_id for message in messages)
    return framed(pb.Published(error=told, correlation_id=each).SerializeToString() for each in ids)


async def append(asking: Handling, place: Destination, messages: list[bytes]) -> Acked:
    """Store records that go to one place. Raises LiftlogError, StatusError: none of them is stored, or it is in
    doubt."""
    if not place.stream:
        raise StatusError(Code.INVALID_ARGUMENT, "No stream provided")
    if place.partition < 0:
        raise StatusError(Code.NOT_FOUND, f"stream {place.stream!r} has no partition {place.partition}")
    received = asking.serving.now_us() * 1_000
    info = stream_of(asking.serving.backend, place)
    stream_subject, subject = subjects_of(info, place)
    path = {"stream": place.stream, "partition": str(place.partition)}
    query = {"acks": place.acks, "incarnation": NONE_KNOWN if info is None else info.incarnation}  # P5
    if info is not None and controls(info):
        if place.acks == "none":
            await _refuse_none(asking, path)
        if (expected := _expected(messages[0])) != ANY_OFFSET:
            query["expected_offset"] = str(expected if expected >= 0 else INT64_MAX)  # nothing has a negative one
    body = arrow_of(messages, subject)
    try:
        answer = (await asking.ask("append_records", path=path, query=query, data=body, media=ARROW_STREAM)).json()
    except NotLeader as error:
        address = leader_named(error)
        if address is None:
            raise
        answer = await _forwarded(asking, address, place, query, body)
    committed = asking.serving.now_us() * 1_000
    return Acked(place.stream, subject or stream_subject, answer["first_offset"], received, committed)


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


async def _refuse_none(asking: Handling, path: Mapping[str, str]) -> NoReturn:
    """Refuse an append that nobody wants to hear of, as Liftbridge does, if the caller may append."""
    with suppress(NotLeader):
        await asking.ask("append_records", path=path, data=arrow_of([], None), media=ARROW_STREAM)
    raise StatusError(Code.INVALID_ARGUMENT, "stream with concurrency control must have AckPolicy set")


def stream_of(backend: Backend, place: Destination) -> StreamInfo | None:
    """The stream, as far as this broker knows of it; whoever may ask is told by the append why not."""
    try:
        return backend.stream(place.stream)
    except LiftlogError:
        return None


def controls(info: StreamInfo | None) -> bool:
    """Whether `expectedOffset` counts in it (P4)."""
    return info is not None and info.settings.concurrency_control is not None


def subjects_of(info: StreamInfo | None, place: Destination) -> tuple[str, str | None]:
    """The subject of a stream, and that of its partition if it is another one, as a message from NATS would have it."""
    if info is None:
        return place.stream, None
    subject = default_subject(info)
    has_own = place.partition > 0 and info.settings.partition_by == "subject_suffix"
    return subject, f"{subject}.{place.partition}" if has_own and subject == info.settings.subject else None
