"""Subscribe: the records of a partition from a position on, one message each.

    positions ──► an empty message: it has begun ──► read a range ──► records, many to a write ──┐
                                                        ▲    └─ nothing new: wait ◄──────────────┘

B1  Only what is committed is sent, in order, each record once.
B2  A start below the log start is the log start, one above the end is the end; so is one that retention overtakes. A
    consumer group passes over nothing: where its place is gone it is told so, with OUT_OF_RANGE, until it is reset.
B3  A stop that is reached, and the end of a read-only partition, are RESOURCE_EXHAUSTED, as in Liftbridge.
B4  What a client has not taken yet is in memory: of all subscriptions together no more than answers of JSON lines may
    take, and a slow reader is cut when others need it (`ndjson.L2`).
B5  Each read is judged as one of HTTP: a grant that is taken back ends the subscription with the read under way. While
    a client does not take what was read, its right to it is looked at each `LOOK_S`.
B6  That of a consumer group ends with the grant, before the next records are sent (`group_offsets.X1`).
B7  Before what the disk has lost it ends with DATA_LOSS, and says where to go on. One that begins within such a range
    begins behind it: its client has been told, or asks for what is there. A group does so once its consumer has been
    told, by another one that does not begin (`shares.W6`).
B8  What is read is judged by its CRC before it is taken apart: damaged bytes are no records, and may bring down who
    decodes them.
B9  When another broker leads by now, a subscription that has begun is UNAVAILABLE: its client looks for the leader, and
    goes on. FAILED_PRECONDITION would tell it that the stream is paused, and it would stop.
B10  A read-only partition has come to its end when nothing is behind it, committed or not, at its leader.
"""

from __future__ import annotations

from typing import Any, Final

from broker.api import http
from broker.api.errors import NotLeader, OffsetOutOfRange
from broker.api.proto import liftbridge_pb2 as pb
from broker.serving.liftbridge import backward, reading
from broker.serving.liftbridge.calls import Handling, Methods
from broker.serving.liftbridge.door import Within
from broker.serving.liftbridge.group_offsets import RESET, BegunPartition, begun, check_kept
from broker.serving.liftbridge.messages import parsed
from broker.serving.liftbridge.reading import Stretch
from broker.serving.liftbridge.statuses import Code, StatusError
from broker.serving.liftbridge.streams import path_of

METHODS: Final = Methods()
WAIT_MS: Final = 2_000
"""So long a read waits for something new. Then it is asked whether the stream is read-only by now."""


@METHODS.add(
    "Subscribe",
    *("resolve_offsets", "read_records", "resume_stream", "begin_partitions", "poll_group"),
    is_stream=True,
)
async def subscribe(asking: Handling) -> None:
    """The records of a partition, from a position on, as they come."""
    number = asking.shares.number()
    asked = parsed(pb.Subscribe, await asking.call.message())
    path_of(asked.stream)
    if asked.partition < 0:
        raise StatusError(Code.NOT_FOUND, f"stream {asked.stream!r} has no partition {asked.partition}")
    if asked.reverse:
        return await backward.subscribe(asking, asked)
    span = await span_of(asking, asked)
    if asked.resume and asking.serving.backend.stream(asked.stream).paused:
        await asking.ask("resume_stream", path={"stream": asked.stream})
    holding = await begun(asking, asked, span, number)
    if holding is not None:
        span = of_group(asked, span, holding)
        await check_kept(asking, asked, holding.group, holding.offset, holding.leader_epoch)
    offset, first = span.start, await _read_on(asking, asked, span, span.start)
    if holding is not None:
        _check_told(asking, holding, first, offset)
        holding.reads(asking)
    await asking.call.send([b""])  # it has begun
    while True:
        if holding is not None:
            holding.check(asking)
        before = offset
        lost = lost_in(first, offset, span)
        await reading.send(asking, asked, first.body, offset, span.end if lost is None else lost[0])
        if lost is not None:  # B7
            if holding is not None:
                asking.shares.is_news(holding.epoch, lost[1])
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
            raise StatusError(Code.UNAVAILABLE, error.message, error.reason, error.fields) from None
        except OffsetOutOfRange:
            if holding is not None:
                holding.check(asking)  # an unclean election has left less (`group_offsets.X6`)
            raise


def of_group(asked: Any, span: Stretch, holding: BegunPartition) -> Stretch:
    """What is left of it for a group (`group_offsets.X2`). Raises StatusError."""
    if holding.incarnation != span.incarnation:
        raise StatusError(Code.UNAVAILABLE, f"stream {asked.stream!r} was just made anew")
    is_beyond = asked.start == pb.OFFSET and holding.has_been_told
    start = max(holding.offset, min(span.start, asked.start_offset)) if is_beyond else holding.offset
    if start < span.log_start:
        raise _gone(asked, start, span.log_start)
    if span.end is not None and span.end <= start:
        raise StatusError(Code.RESOURCE_EXHAUSTED, "the stop position is reached")
    return span._replace(start=start)


async def _is_end(asking: Handling, asked: Any, offset: int) -> bool:
    """B10. Raises LiftlogError."""
    if (await reading.resolved(asking, asked, "latest"))["high_watermark"] > offset:
        return False
    try:
        return asking.serving.backend.partition(asked.stream, asked.partition).log.state.log_end_offset <= offset
    except NotLeader:
        return True


def lost_in(found: Within, offset: int, span: Stretch) -> tuple[int, int] | None:
    """What the disk has lost of an answer from an offset on, of what its subscription is told (B7): [first, end)."""
    is_at_start = offset == span.start
    for first, end in reading.lost_of(found):
        if is_at_start and first <= offset:
            offset = max(offset, end)
        elif span.end is None or first < span.end:
            return first, end
    return None


def _check_told(asking: Handling, holding: BegunPartition, found: Within, offset: int) -> None:
    """Raises StatusError: what is at the place of a group is lost, and its consumer has not heard of it yet (B7)."""
    behind = offset
    for first, end in reading.lost_of(found):
        behind = max(behind, end) if first <= behind else behind
    if behind > offset and asking.shares.is_news(holding.epoch, behind):
        where = f"offsets {offset} to {behind - 1} of {holding.at[0]}/{holding.at[1]}"
        raise StatusError(Code.DATA_LOSS, f"{where} are lost: subscribe again to go on behind them")


async def _read_on(asking: Handling, asked: Any, span: Stretch, offset: int, *, wait_ms: int = 0) -> Within:
    """From an offset on; from the first record that is there, if retention has taken that (B2). Raises LiftlogError,
    StatusError."""
    try:
        return await reading.whole(asking, asked, span, offset, wait_ms=wait_ms)
    except OffsetOutOfRange as error:
        start = error.fields.get("log_start_offset")
        if not isinstance(start, int) or start <= offset:
            raise
        if asked.consumer.group_id:
            raise _gone(asked, offset, start) from None
        return await reading.whole(asking, asked, span, start)


def _gone(asked: Any, offset: int, log_start: int) -> StatusError:
    """B2, of a group."""
    where = f"group {asked.consumer.group_id!r} is at offset {offset} of {asked.stream}/{asked.partition}"
    told = f"{where}, and the first that is there is {log_start}: {RESET}"
    fields = {"offset": offset, "log_start_offset": log_start}
    return StatusError(Code.OUT_OF_RANGE, told, OffsetOutOfRange.reason, fields)


# --- positions --------------------------------------------------------------------------------------------------------


async def span_of(asking: Handling, asked: Any) -> Stretch:
    """What is asked for, as the partition is now. Raises StatusError, LiftlogError."""
    now = await reading.resolved(asking, asked, _start_at(asked))
    first, end = now["log_start_offset"], now["high_watermark"]
    start = _start(asked, now, first, end)
    match asked.stop:
        case pb.ON_CANCEL:
            return Stretch(start, None, now["incarnation"], first)
        case pb.AT_OFFSET:
            stop = asked.stop_offset + 1
        case pb.AT_LATEST:
            if end == first:
                raise StatusError(Code.RESOURCE_EXHAUSTED, "Stream is empty")
            stop = end
        case pb.AT_TIMESTAMP:
            at = {"timestamp_us": asked.stop_timestamp // 1_000 + 1}
            found = (await reading.resolved(asking, asked, at))["offset"]
            stop = end if found is None else found
        case _:
            raise StatusError(Code.INVALID_ARGUMENT, f"Unknown StopPosition {asked.stop}")
    if asked.stop == pb.AT_TIMESTAMP and stop == first:
        raise StatusError(Code.INVALID_ARGUMENT, "each record that is there is younger than the stop timestamp")
    if stop <= start:
        raise StatusError(Code.INVALID_ARGUMENT, f"stop offset {stop - 1} is below start offset {start}")
    return Stretch(start, stop, now["incarnation"], first)


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
