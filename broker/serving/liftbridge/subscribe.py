"""Subscribe: the records of a partition from a position on, one message each.

    positions ──► an empty message: it has begun ──► read a range ──► records, many to a write ──┐
                                                        ▲    └─ nothing new: wait ◄──────────────┘

B1  Only what is committed is sent, in order, each record once.
B2  A start below the log start is the log start, one above the end is the end; so is one that retention overtakes.
B3  A stop that is reached, and the end of a read-only partition, are RESOURCE_EXHAUSTED, as in Liftbridge.
B4  What a client has not taken yet is in memory: of all subscriptions together no more than answers of JSON lines may
    take, and a slow reader is cut when others need it (`ndjson.L2`).
B5  Each read is judged as one of HTTP: a grant that is taken back ends the subscription with the read under way. While
    a client does not take what was read, its right to it is looked at each `LOOK_S`.
B6  That of a consumer group ends with the grant, before the next records are sent (`group_offsets.X1`).
B7  Before what the disk has lost it ends with DATA_LOSS, and says where to go on. One that begins within such a range
    begins behind it: its client has been told, or asks for what is there.
B8  What is read is judged by its CRC before it is taken apart: damaged bytes are no records, and may bring down who
    decodes them.
B9  When another broker leads by now, a subscription that has begun is UNAVAILABLE: its client looks for the leader, and
    goes on. FAILED_PRECONDITION would tell it that the stream is paused, and it would stop.
B10  A read-only partition has come to its end when nothing is behind it, committed or not, at its leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from broker.api import http
from broker.api.batch import HEADER_BYTES, message_bytes, verify_batch
from broker.api.errors import (
    BadBatch,
    LiftlogError,
    NotLeader,
    OffsetOutOfRange,
    Unauthenticated,
    Unauthorized,
    from_problem,
)
from broker.api.proto import liftbridge_pb2 as pb
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.api.stream import ACTIVITY_STREAM
from broker.serving.endpoints.records import verify
from broker.serving.http.sending import STALLED_S
from broker.serving.liftbridge.activity import as_liftbridge_has_it
from broker.serving.liftbridge.calls import Handling, Methods
from broker.serving.liftbridge.door import Within
from broker.serving.liftbridge.group_offsets import BegunPartition, begun
from broker.serving.liftbridge.messages import framed, parsed
from broker.serving.liftbridge.statuses import Code, StatusError
from broker.serving.liftbridge.streams import path_of

METHODS: Final = Methods()
READ_BYTES: Final = 512 << 10
"""Of batches, at a time; a single one may be larger."""
WAIT_MS: Final = 2_000
"""So long a read waits for something new. Then it is asked whether the stream is read-only by now."""
WRITE_RECORDS: Final = 1_024
LOOK_S: Final = 1.0
HELD_FACTOR: Final = 2
"""So many times an answer is taken while it is sent: as it was read, and as messages."""


class Stretch(NamedTuple):
    """From which offset on, to which (None: for ever), of which incarnation of the stream."""

    start: int
    end: int | None
    incarnation: str


@METHODS.add(
    "Subscribe",
    *("resolve_offsets", "read_records", "resume_stream", "begin_partitions", "poll_group"),
    is_stream=True,
)
async def subscribe(asking: Handling) -> None:
    """The records of a partition, from a position on, as they come."""
    asked = parsed(pb.Subscribe, await asking.call.message())
    if asked.reverse:
        raise StatusError(Code.UNIMPLEMENTED, "reverse: records are read forward alone")
    path_of(asked.stream)
    if asked.partition < 0:
        raise StatusError(Code.NOT_FOUND, f"stream {asked.stream!r} has no partition {asked.partition}")
    span = await span_of(asking, asked)
    if asked.resume and asking.serving.backend.stream(asked.stream).paused:
        await asking.ask("resume_stream", path={"stream": asked.stream})
    holding = await begun(asking, asked, span.start)
    if holding is not None:
        span = of_group(asked, span, holding)
    offset, first = span.start, await _read_on(asking, asked, span, span.start)
    await asking.call.send([b""])  # it has begun
    while True:
        if holding is not None:
            holding.check(asking)
        before = offset
        lost = lost_in(first, offset, span)
        await _send(asking, asked, first.body, offset, span.end if lost is None else lost[0])
        if lost is not None:  # B7
            where = f"offsets {lost[0]} to {lost[1] - 1} of {asked.stream}/{asked.partition}"
            raise StatusError(Code.DATA_LOSS, f"{where} are lost: subscribe from {lost[1]} on")
        offset = max(offset, int(first.headers[http.NEXT_OFFSET]))
        if span.end is not None and offset >= span.end:
            raise StatusError(Code.RESOURCE_EXHAUSTED, "the stop position is reached")
        is_read_only = offset == before and asking.serving.backend.stream(asked.stream).read_only
        if is_read_only and await _is_end(asking, asked, offset):
            raise StatusError(Code.RESOURCE_EXHAUSTED, "End of readonly partition")
        if asking.serving.draining.is_set():
            raise StatusError(Code.UNAVAILABLE, "this broker stops")
        try:
            first = await _read_on(asking, asked, span, offset, wait_ms=WAIT_MS)
        except NotLeader as error:  # B9
            raise StatusError(Code.UNAVAILABLE, error.message, error.reason) from None


def of_group(asked: Any, span: Stretch, holding: BegunPartition) -> Stretch:
    """What is left of it for a group (`group_offsets.X2`). Raises StatusError."""
    if holding.incarnation != span.incarnation:
        raise StatusError(Code.UNAVAILABLE, f"stream {asked.stream!r} was just made anew")
    start = max(holding.offset, span.start) if asked.start == pb.OFFSET else holding.offset
    if span.end is not None and span.end <= start:
        raise StatusError(Code.RESOURCE_EXHAUSTED, "the stop position is reached")
    return span._replace(start=start)


async def _send(asking: Handling, asked: Any, body: bytes, offset: int, end: int | None) -> None:
    """What was read, as the client takes it (B4). Raises StatusError, LiftlogError, ConnectionError."""
    with asking.serving.lines_budget.reserved() as reservation:
        reservation.grow_to(HELD_FACTOR * len(body))
        try:
            async with reservation.waiting(STALLED_S):
                for written in encoded(asked, body, offset, end):
                    await _taken(asking, asked, written)
            reservation.complete()
        except TimeoutError:
            raise StatusError(Code.UNAVAILABLE, "others need the memory for what this reader does not take") from None


async def _taken(asking: Handling, asked: Any, written: bytes) -> None:
    """Return when a client has taken this (B5). Raises as `_send`."""
    sending = asyncio.ensure_future(asking.call.send_framed(written))
    try:
        while not (await asyncio.wait({sending}, timeout=LOOK_S))[0]:
            try:
                await _resolved(asking, asked, "latest")
            except (Unauthenticated, Unauthorized):
                raise
            except LiftlogError:  # the next read says so
                continue
        await sending
    finally:
        sending.cancel()


async def _is_end(asking: Handling, asked: Any, offset: int) -> bool:
    """B10. Raises LiftlogError."""
    if (await _resolved(asking, asked, "latest"))["high_watermark"] > offset:
        return False
    try:
        return asking.serving.backend.partition(asked.stream, asked.partition).log.log_end_offset <= offset
    except NotLeader:
        return True


def lost_in(found: Within, offset: int, span: Stretch) -> tuple[int, int] | None:
    """What the disk has lost of an answer from an offset on, of what its subscription is told (B7): [first, end)."""
    is_at_start = offset == span.start
    for text in found.headers.get(http.LOST, "").split(", "):
        if not text:
            continue
        first, end = (int(each) for each in text.split("-"))
        if is_at_start and first <= offset:
            offset = max(offset, end)
        elif span.end is None or first < span.end:
            return first, end
    return None


async def _read_on(asking: Handling, asked: Any, span: Stretch, offset: int, *, wait_ms: int = 0) -> Within:
    """From an offset on; from the first record that is there, if retention has taken that (B2). Whole (B8). Raises
    LiftlogError, StatusError."""
    try:
        found = await _read(asking, asked, span, offset, wait_ms=wait_ms)
    except OffsetOutOfRange as error:
        start = error.fields.get("log_start_offset")
        if not isinstance(start, int) or start <= offset:
            raise
        offset, found = start, await _read(asking, asked, span, start, wait_ms=0)
    if (damaged := damaged_in(found.body, offset)) is None:
        return found
    try:
        handle = asking.serving.backend.partition(asked.stream, asked.partition)
    except NotLeader:
        raise StatusError(Code.UNAVAILABLE, f"this replica is damaged at offset {damaged}: ask another one") from None
    await asking.serving.in_worker(verify, handle, damaged)
    found = await _read(asking, asked, span, offset, wait_ms=0)
    if (damaged := damaged_in(found.body, offset)) is not None:
        raise StatusError(Code.DATA_LOSS, f"the record at offset {damaged} is damaged")
    return found


def damaged_in(body: bytes, offset: int) -> int | None:
    """Where the first batch of an answer stands that is not what was stored (B8); None: all are."""
    view, at, end = memoryview(body), len(SCHEMA_BYTES), len(body) - len(END_OF_STREAM)
    while at < end:
        try:
            length = message_bytes(view[at : at + HEADER_BYTES])
            offset = verify_batch(view[at : min(at + length, end)]).last_offset + 1
        except BadBatch:
            return offset
        at += length
    return None


async def _read(asking: Handling, asked: Any, span: Stretch, offset: int, *, wait_ms: int) -> Within:
    query = {
        "offset": str(offset),
        "max_bytes": str(READ_BYTES),
        "max_wait_ms": str(wait_ms),
        "incarnation": span.incarnation,
    }
    if span.end is not None:
        query["end"] = str(span.end)
    if asked.from_replica:
        query["replica"] = "any"
    path = {"stream": asked.stream, "partition": str(asked.partition)}
    return await asking.ask("read_records", path=path, query=query)


# --- positions --------------------------------------------------------------------------------------------------------


async def span_of(asking: Handling, asked: Any) -> Stretch:
    """What is asked for, as the partition is now. Raises StatusError, LiftlogError."""
    now = await _resolved(asking, asked, _start_at(asked))
    first, end = now["log_start_offset"], now["high_watermark"]
    start = _start(asked, now, first, end)
    match asked.stop:
        case pb.ON_CANCEL:
            return Stretch(start, None, now["incarnation"])
        case pb.AT_OFFSET:
            stop = asked.stop_offset + 1
        case pb.AT_LATEST:
            if end == first:
                raise StatusError(Code.RESOURCE_EXHAUSTED, "Stream is empty")
            stop = end
        case pb.AT_TIMESTAMP:
            at = {"timestamp_us": asked.stop_timestamp // 1_000 + 1}
            found = (await _resolved(asking, asked, at))["offset"]
            stop = end if found is None else found
        case _:
            raise StatusError(Code.INVALID_ARGUMENT, f"Unknown StopPosition {asked.stop}")
    if stop <= start:
        raise StatusError(Code.INVALID_ARGUMENT, f"stop offset {stop - 1} is below start offset {start}")
    return Stretch(start, stop, now["incarnation"])


def _start_at(asked: Any) -> Any:
    if asked.start == pb.TIMESTAMP:
        return {"timestamp_us": -(-asked.start_timestamp // 1_000)}  # not older, to the microsecond
    return "latest"


def _start(asked: Any, now: Any, first: int, end: int) -> int:
    match asked.start:
        case pb.NEW_ONLY:
            return end
        case pb.EARLIEST:
            return first
        case pb.LATEST:
            return max(first, end - 1)
        case pb.TIMESTAMP:
            return end if now["offset"] is None else int(now["offset"])
        case pb.OFFSET:
            return max(first, min(int(asked.start_offset), end))
    raise StatusError(Code.INVALID_ARGUMENT, f"Unknown StartPosition {asked.start}")


async def _resolved(asking: Handling, asked: Any, at: Any) -> Any:
    """One position. Raises LiftlogError."""
    body = {"positions": [{"stream": asked.stream, "partition": asked.partition, "at": at}]}
    [found] = (await asking.ask("resolve_offsets", body=body)).json()["positions"]
    if "error" in found:
        raise from_problem(found["error"])
    return found


# --- records ----------------------------------------------------------------------------------------------------------


def encoded(asked: Any, body: bytes, offset: int, end: int | None) -> Iterator[bytes]:
    """The records of an answer in [offset, end), framed, some at a time."""
    with pa.ipc.open_stream(pa.BufferReader(body)) as reader:
        for batch in reader:
            yield from _encoded_batch(asked, batch, offset, end)


def _encoded_batch(asked: Any, batch: pa.RecordBatch, offset: int, end: int | None) -> Iterator[bytes]:
    offsets = batch.column("offset").to_pylist()
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    subjects, replies = batch.column("subject").to_pylist(), batch.column("reply").to_pylist()
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    if asked.stream == ACTIVITY_STREAM:
        values = [as_liftbridge_has_it(value) for value in values]
    headers = batch.column("headers")
    given = headers.to_pylist() if headers.null_count < len(headers) else [None] * len(headers)
    written: list[bytes] = []
    for at, time_us, subject, reply, key, value, named in zip(
        offsets, times, subjects, replies, keys, values, given, strict=True
    ):
        if at < offset or (end is not None and at >= end):
            continue
        record = pb.Record(
            offset=at,
            key=key,
            value=value,
            timestamp=time_us * 1_000,
            stream=asked.stream,
            partition=asked.partition,
            subject=subject,
            reply=reply,
            headers=None if named is None else {each["key"]: each["value"] or b"" for each in named},
        )
        written.append(record.SerializeToString())
        if len(written) == WRITE_RECORDS:
            yield framed(written)
            written = []
    if written:
        yield framed(written)
