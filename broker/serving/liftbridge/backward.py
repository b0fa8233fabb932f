"""Subscribe with `reverse`: the records of a partition from a position back, the newest first.

    the end of what is left ──► some offsets before it ──► a read forward, up to that end ──► its records, reversed
             ▲                       └─ more than a read takes: those behind them first              │
             └───────────────────────────── where these began ◄─────────────────────────────────────┘

V1  Nothing is read from back to front on the disk: a read is one of `read_records`, judged as any (`subscribe.B4`,
    `subscribe.B5`, `subscribe.B8`), and one at a time is held. How many offsets it takes is learnt from those before,
    so a few reads bring each piece, also where a gap of compaction is before many records.
V2  Each record that is kept comes once: a batch is sent as a whole, though only its end was asked for.
V3  It ends as forward reads do, with RESOURCE_EXHAUSTED: at its stop, and where the partition begins by then.
V4  Before what the disk has lost it ends with DATA_LOSS, and says where to go on; one that begins within such a range
    begins before it.
V5  A replica that has not yet what its leader told is waited for.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from broker.api import http
from broker.api.batch import HEADER_BYTES, read_header
from broker.api.errors import NotLeader, OffsetOutOfRange
from broker.api.proto import liftbridge_pb2 as pb
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.serving.liftbridge import reading
from broker.serving.liftbridge.calls import Handling
from broker.serving.liftbridge.reading import READ_BYTES, Stretch
from broker.serving.liftbridge.statuses import Code, StatusError

STEP: Final = 256
"""Offsets of the first read. How many more, or fewer, the next may have is `GROWTH`."""
GROWTH: Final = 8
WAIT_MS: Final = 2_000
WAITS: Final = 5


class Preceding(NamedTuple):
    """What was read.

    Attributes:
        start: Up to there nothing is left out.
        lost: The last range of it that is lost, [first, end).
    """

    body: bytes
    start: int
    lost: tuple[int, int] | None


async def subscribe(asking: Handling, asked: Any) -> None:
    """See the module."""
    if asked.consumer.group_id:
        raise StatusError(Code.INVALID_ARGUMENT, "reverse: a group reads forward")
    span = await _span_of(asking, asked)
    if asked.resume and asking.serving.backend.stream(asked.stream).paused:
        await asking.ask("resume_stream", path={"stream": asked.stream})
    assert span.end is not None
    end, step = span.end, STEP
    piece = await _before(asking, asked, span, end, step)
    await asking.call.send([b""])  # it has begun
    while True:
        step = _next_step(min(step, max(1, end - piece.start)), len(piece.body))
        if piece.lost is None:
            await reading.send(asking, asked, piece.body, piece.start, end, is_backward=True)
            end = piece.start
        else:
            if end != span.end or piece.lost[1] < end:  # V4
                await reading.send(asking, asked, piece.body, piece.lost[1], end, is_backward=True)
                first = await _lost_from(asking, asked, span, piece.lost[0], step)
                where = f"offsets {first} to {piece.lost[1] - 1} of {asked.stream}/{asked.partition}"
                on = f"subscribe from {first - 1} on" if first > span.start else "nothing more is before them"
                raise StatusError(Code.DATA_LOSS, f"{where} are lost: {on}")
            end = piece.lost[0]
            span = span._replace(end=end)
        if end <= span.start:
            is_stop = asked.stop != pb.ON_CANCEL
            raise StatusError(Code.RESOURCE_EXHAUSTED, f"the {'stop position' if is_stop else 'beginning'} is reached")
        if asking.serving.draining.is_set():
            raise StatusError(Code.UNAVAILABLE, "this broker stops")
        try:
            piece = await _before(asking, asked, span, end, step)
        except NotLeader as error:  # `subscribe.B9`
            raise StatusError(Code.UNAVAILABLE, error.message, error.reason, error.fields) from None


def _next_step(step: int, byte_count: int) -> int:
    return max(1, step // GROWTH, min(step * GROWTH, _fitting(step, byte_count)))


def _fitting(offsets: int, byte_count: int) -> int:
    """How many offsets are half of what a read may bring, if so many were these bytes."""
    return max(1, offsets * READ_BYTES // (2 * max(1, byte_count)))


async def _before(asking: Handling, asked: Any, span: Stretch, end: int, step: int) -> Preceding:
    """The records before an offset, so many offsets of them, or as many as a read takes. Raises as `reading.whole`."""
    start, waits = max(span.start, end - step), 0
    while True:
        try:
            found = await reading.whole(asking, asked, span._replace(end=end), start)
        except OffsetOutOfRange as error:
            kept = error.fields.get("log_start_offset")
            if not isinstance(kept, int) or kept <= start:
                raise
            if kept >= end:  # V3
                return Preceding(SCHEMA_BYTES + END_OF_STREAM, span.start, None)
            start = kept
            continue
        known = int(found.headers.get(http.HIGH_WATERMARK, end))
        if known < end:  # V5
            if (waits := waits + 1) > WAITS:
                raise StatusError(Code.UNAVAILABLE, f"this replica has nothing from offset {known} on yet")
            await reading.read(asking, asked, span._replace(end=None), known, wait_ms=WAIT_MS)
            continue
        lost = [(first, min(last, end)) for first, last in reading.lost_of(found) if first < end]
        reached = int(found.headers[http.NEXT_OFFSET])
        if len(lost) == http.LOST_RANGES_MAX:  # the last one may stand for several
            start = lost[-1][0]
        elif start < reached < end:
            start = max(reached, end - _fitting(reached - start, len(found.body)))
        else:
            held = _first_of(found.body)
            log_start = int(found.headers[http.LOG_START_OFFSET])
            begins = start if held is None else max(log_start, span.start, min(start, held))  # V2
            return Preceding(found.body, begins, _joined(lost))


async def _lost_from(asking: Handling, asked: Any, span: Stretch, first: int, step: int) -> int:
    """Where a lost range begins that goes on to this offset at least. Raises as `reading.whole`."""
    while first > span.start:
        lost = (await _before(asking, asked, span, first, step)).lost
        if lost is None or lost[1] != first:
            break
        first, step = lost[0], step * GROWTH
    return first


def _first_of(body: bytes) -> int | None:
    """The offset at which the first batch of an answer begins."""
    if len(body) <= len(SCHEMA_BYTES) + len(END_OF_STREAM):
        return None
    first: int = read_header(body[len(SCHEMA_BYTES) : len(SCHEMA_BYTES) + HEADER_BYTES]).first_offset
    return first


def _joined(lost: list[tuple[int, int]]) -> tuple[int, int] | None:
    """The last range, and those that touch it."""
    if not lost:
        return None
    first, last = lost[-1]
    for before in reversed(lost[:-1]):
        if before[1] == first:
            first = before[0]
    return first, last


async def _span_of(asking: Handling, asked: Any) -> Stretch:
    """From which offset on, and up to which one: the newest record is the first. Raises StatusError, LiftlogError."""
    at: Any = "latest"
    if asked.start == pb.TIMESTAMP:
        at = {"timestamp_us": -(-asked.start_timestamp // 1_000)}
    now = await reading.resolved(asking, asked, at)
    first, end = now["log_start_offset"], now["high_watermark"]
    if first == end:
        raise StatusError(Code.RESOURCE_EXHAUSTED, "Stream is empty")
    newest = _newest(asked, now, first, end)
    match asked.stop:
        case pb.ON_CANCEL:
            oldest = first
        case pb.AT_OFFSET:
            oldest = asked.stop_offset
        case pb.AT_LATEST:
            oldest = end - 1
        case pb.AT_TIMESTAMP:
            stop = {"timestamp_us": asked.stop_timestamp // 1_000 + 1}
            found = (await reading.resolved(asking, asked, stop))["offset"]
            oldest = (end if found is None else found) - 1
        case _:
            raise StatusError(Code.INVALID_ARGUMENT, f"Unknown StopPosition {asked.stop}")
    if oldest > newest:
        raise StatusError(Code.INVALID_ARGUMENT, f"reverse: stop offset {oldest} is above start offset {newest}")
    return Stretch(max(first, oldest), newest + 1, now["incarnation"])


def _newest(asked: Any, now: Any, first: int, end: int) -> int:
    match asked.start:
        case pb.NEW_ONLY | pb.LATEST:
            return end - 1
        case pb.EARLIEST:
            return first
        case pb.TIMESTAMP:
            return end - 1 if now["offset"] is None else int(now["offset"])
        case pb.OFFSET:
            return max(first, min(int(asked.start_offset), end - 1))
    raise StatusError(Code.INVALID_ARGUMENT, f"Unknown StartPosition {asked.start}")
