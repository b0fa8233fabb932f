"""PublishToSubject: a record for each stream that captures a subject.

    subject ─► the streams that capture it, of each the partition ─► an append to each ─► the first one's ack

T1  The record does not go to NATS, so the rights of this broker there are lent to nobody: a caller reaches nothing but
    what he may append to. Who only listens on NATS does not hear of it. Acks go to an ack inbox (`publish.P6`).
T2  The caller may append to every stream that captures the subject, or nothing is stored.
T3  Of the streams of a queue group one has the record, as of a message from NATS; so have all others that take records.
T4  It is answered when all of them have it, with the ack of the first by name. If one fails, the caller is told: which
    one, why, and which ones have it. One that is gone, or takes no records any more, captures nothing (T3).
T5  A refusal does not name the streams that capture a subject: its caller has named none. Who is nobody, or may append
    to nothing, does not hear whether there are any. The log has the name.
"""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn

import pyarrow as pa

from broker.api.errors import (
    LiftlogError,
    NotLeader,
    ReadOnly,
    StaleIncarnation,
    StreamPaused,
    Unauthenticated,
    Unauthorized,
    UnknownPartition,
    UnknownStream,
)
from broker.api.http import ARROW_STREAM
from broker.api.partitioning import partition_of
from broker.api.proto import liftbridge_pb2 as pb
from broker.api.schema import HEADERS_TYPE
from broker.api.stream import RESERVED_PREFIXES, check_subject
from broker.metadata.catalog import StreamInfo
from broker.metadata.overlap import covers, subjects_of
from broker.serving.endpoints.resolve import leader_named
from broker.serving.liftbridge.call import STATUS_LENGTH_MAX
from broker.serving.liftbridge.calls import Handling, Methods
from broker.serving.liftbridge.messages import MESSAGE_BYTES_MAX, parsed
from broker.serving.liftbridge.publish import FORWARDED_S
from broker.serving.liftbridge.statuses import Code, StatusError, code_of

METHODS: Final = Methods()
_ACKS: Final = {pb.LEADER: "leader", pb.ALL: "all", pb.NONE: "none"}
CAPTURES_MAX: Final = 64
"""Partitions that one record goes to."""
AT_ONCE: Final = 4
"""Of these appends. Each holds the record in memory, against the limit of the caller."""
_CAPTURE_NOTHING: Final = (UnknownStream, StaleIncarnation, UnknownPartition, ReadOnly, StreamPaused)


@METHODS.add("PublishToSubject", "whoami", "append_records")
async def publish_to_subject(asking: Handling) -> None:
    """Append one record to each stream that captures a subject, and answer with one ack."""
    asked = parsed(pb.PublishToSubject, await asking.call.message(MESSAGE_BYTES_MAX))
    _check(asked.subject)
    acks = _ACKS.get(asked.ack_policy, "leader")
    found = [
        (info, number, heard)
        for info in asking.serving.backend.streams()
        for number, heard in captured(info, asked.subject, asked.key)
    ]
    ack = None
    try:
        if found:
            ack = await _appended(asking, asked, acks, found)
        else:
            await _captured_by_none(asking, asked, acks)
    except Unauthorized:  # T5
        await _refuse(asking, asked)
    answer = pb.PublishedToSubject() if acks == "none" else pb.PublishedToSubject(ack=ack)
    await asking.call.send([answer.SerializeToString()])


async def _appended(asking: Handling, asked: Any, acks: str, found: list[Captured]) -> Any:
    """The ack. Raises LiftlogError, StatusError: T2, T4."""
    if len(found) > 1:
        for info, number, _ in found[: CAPTURES_MAX + 1]:
            await _judged(asking, info.name, number)
    if len(found) > CAPTURES_MAX:
        raise StatusError(Code.INVALID_ARGUMENT, f"over {CAPTURES_MAX} streams capture {asked.subject!r}")
    return await _published(asking, asked, acks, [*_of_groups(found)])


async def _captured_by_none(asking: Handling, asked: Any, acks: str) -> None:
    """Raises StatusError: no ack comes. Unauthorized: T5."""
    if asking.serving.gate.is_enforced and not await _may_append(asking):
        await _judged(asking, asked.subject, 0)  # by which the refusal is recorded
    if acks != "none":
        raise StatusError(Code.DEADLINE_EXCEEDED, f"no stream captures {asked.subject!r}: no ack comes")


async def _may_append(asking: Handling) -> bool:
    """Whether the caller may append to anything."""
    gate = asking.serving.gate
    await asking.ask("whoami")  # which says for whom it asks
    principal = asking.door.principal
    if not gate.allows_any(principal, "stream:append"):
        await gate.hear_all()  # `access.A8`
    return gate.allows_any(principal, "stream:append")


async def _refuse(asking: Handling, asked: Any) -> NoReturn:
    """T5. Raises StatusError."""
    if not (await asking.ask("whoami")).is_told:
        raise StatusError(Code.UNAUTHENTICATED, "unauthenticated", "unauthenticated")
    needs = f"stream:append of each stream that captures {asked.subject!r} is needed"
    raise StatusError(Code.PERMISSION_DENIED, needs, Unauthorized.reason)


def _check(subject: str) -> None:
    """Raises InvalidSubject, StatusError: no message can have this subject, or no stream may have it."""
    check_subject(subject, wildcards=False)
    if subject.startswith("$") or subject.split(".", 1)[0] in RESERVED_PREFIXES:
        raise StatusError(Code.INVALID_ARGUMENT, f"subject {subject!r} is one of the server's own", "invalid_subject")


def captured(info: StreamInfo, subject: str, key: bytes) -> Iterator[tuple[int, str]]:
    """The partitions of a stream that a message of this subject goes to, each with what it listens on."""
    settings = info.settings
    heard = [(number, each) for number, each in enumerate(subjects_of(settings)) if covers(each, subject)]
    if heard and settings.partition_by != "subject_suffix":
        number = partition_of(subject.encode(), key or None, settings.partition_by, settings.partitions)
        heard = [(number, heard[0][1])]
    yield from heard


Captured = tuple[StreamInfo, int, str]
"""A stream, a partition, and what that listens on."""


def _of_groups(found: Iterable[Captured]) -> Iterator[Captured]:
    """Those that have the record (T3). If none takes any, all: they say why."""
    found = list(found)
    taking = [each for each in found if not (each[0].paused or each[0].read_only)] or found
    groups: dict[str, list[Captured]] = {}
    for each in taking:
        if (group := each[0].settings.group) is None:
            yield each
        else:
            groups.setdefault(group, []).append(each)
    for _, members in sorted(groups.items()):
        yield random.choice(members)


async def _judged(asking: Handling, stream: str, partition: int) -> None:
    """T2. What else is wrong with a stream does not keep the others from having the record."""
    path = {"stream": stream, "partition": str(partition)}
    try:
        await asking.ask("append_records", path=path, data=_arrow_of([], ""), media=ARROW_STREAM)
    except (Unauthenticated, Unauthorized):
        raise
    except LiftlogError:
        return


async def _published(asking: Handling, asked: Any, acks: str, found: list[Captured]) -> Any:
    """T4. Raises LiftlogError, StatusError: not all of them have it, or that is in doubt."""
    received = asking.serving.now_us() * 1_000
    body = _arrow_of([asked], asked.subject)
    few = asyncio.Semaphore(AT_ONCE)

    async def stored(info: StreamInfo, number: int, heard: str) -> Any:
        async with few:
            offset = await _stored(asking, info, number, acks, body)
        ack = pb.Ack(
            stream=info.name,
            partition_subject=heard,
            subject=asked.subject,
            offset=offset,
            ack_inbox=asked.ack_inbox,
            correlation_id=asked.correlation_id,
            ack_policy=asked.ack_policy,
            received=received,
            committed=asking.serving.now_us() * 1_000,
        )
        if asked.ack_inbox and acks != "none":
            asking.serving.backend.tell_inbox(asked.ack_inbox, ack.SerializeToString())
        return ack

    found = sorted(found, key=lambda each: (each[0].name, each[1]))
    said = await asyncio.gather(*(stored(*each) for each in found), return_exceptions=True)
    kept, failed = [each for each in said if isinstance(each, pb.Ack)], list[tuple[str, LiftlogError]]()
    for (info, _, _), error in zip(found, said, strict=True):
        if isinstance(error, LiftlogError):
            failed.append((info.name, error))
        elif isinstance(error, BaseException):
            raise error
    told = [each for each in failed if not isinstance(each[1], _CAPTURE_NOTHING)]
    if len(found) == 1 and failed:
        raise failed[0][1]
    if told or not kept:
        raise _refused_by((told or failed)[0], [ack.stream for ack in kept])
    return kept[0]


def _refused_by(failed: tuple[str, LiftlogError], kept: list[str]) -> StatusError:
    name, error = failed
    code = Code.UNAVAILABLE if isinstance(error, NotLeader) else code_of(error)  # no broker leads it
    others = f"stored in {', '.join(map(repr, kept))}" if kept else "nothing is known to be stored"
    return StatusError(code, f"stream {name!r}: {error.message}; {others}"[:STATUS_LENGTH_MAX], error.reason)


async def _stored(asking: Handling, info: StreamInfo, partition: int, acks: str, body: bytes) -> int:
    """Append the record, here or where its partition is led (`publish.P3`). Returns its offset. Raises LiftlogError."""
    query = {"acks": acks, "incarnation": info.incarnation}
    path = {"stream": info.name, "partition": str(partition)}
    try:
        answer = (await asking.ask("append_records", path=path, query=query, data=body, media=ARROW_STREAM)).json()
    except NotLeader as error:
        address = leader_named(error)
        if address is None:
            raise
        answer = await asking.serving.peers.ask(
            address,
            "POST",
            f"/v1/streams/{info.name}/partitions/{partition}/records",
            query=query,
            content=body,
            media=ARROW_STREAM,
            timeout_s=FORWARDED_S,
            behalf=asking.door.principal,
        )
    return int(answer["first_offset"])


def _arrow_of(records: Sequence[Any], subject: str) -> bytes:
    """Records as the HTTP API takes them; a key that is empty is none."""
    headers = [
        [{"key": name, "value": each.headers[name]} for name in sorted(each.headers)] or None for each in records
    ]
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([each.key or None for each in records], pa.binary()),
            "value": pa.array([each.value for each in records], pa.binary()),
            "headers": pa.array(headers, HEADERS_TYPE),
            "subject": pa.array([subject] * len(records), pa.string()),
        }
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
