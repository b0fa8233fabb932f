"""GET records: the stored bytes of a range of offsets, as one Arrow stream or as JSON lines.

    resolve the position ──► wait if there is nothing yet ──► plan (file ranges) ──► head, ranges, end marker
                                                               │
                                        without the records, and the columns, that are not wanted

R1  At most one read plan is open per request, and it is closed on every path.
R2  The high watermark of the headers is read after the plan was made: it is never below `Liftlog-Next-Offset`.
R3  A wait or a look into an index may outlive the stream: the partition is looked up again after it.
R4  A replica that does not lead hands out plain ranges of offsets that it has, in the leader epoch in which it was
    looked up. Everything else is the leader's to answer (`follower_read.X2`).
R5  Such a replica hears of what is committed a moment after its leader has told readers. One that comes from there, and
    may wait, is not sent back before `BEHIND_S`: at the end of a busy partition it would never be taken.

Contract: /openapi.json.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Final

from aiohttp import web

from broker.api import http
from broker.api.answers import LEADER_EPOCH_MAX
from broker.api.columns import Columns, columns_in, schema_bytes
from broker.api.conditions import KEY_LENGTH_MAX, SUBJECTS_LENGTH_MAX, Conditions
from broker.api.errors import (
    BadBatch,
    CorruptLog,
    InvalidRequest,
    LiftlogError,
    NotLeader,
    NotReady,
    OffsetOutOfRange,
    Overloaded,
    StaleIncarnation,
    StorageFailed,
    UnknownPartition,
    UnknownStream,
)
from broker.api.permissions import of_path
from broker.api.schema import END_OF_STREAM, SCHEMA, SCHEMA_BYTES
from broker.api.validation import Rule
from broker.serving.contract.acts import NO_ACT
from broker.serving.contract.backend import PartitionHandle
from broker.serving.contract.endpoint import (
    MAX_WAIT,
    OFFSET_MAX,
    AtTime,
    Content,
    Endpoints,
    Query,
    Serving,
    begin_answer,
    boolean,
    choice,
    integer,
    moment,
    parameter,
    partition_number,
    position,
    text,
    wait_seconds,
)
from broker.serving.http.access import access_now
from broker.serving.http.body import Reservation
from broker.serving.http.sending import SMALL_BYTES_MAX, STALLED_S, AnswerCut, abort, read_ranges, send_ranges
from broker.serving.http.waiting import until_draining
from broker.serving.payload.ndjson import send_lines
from broker.storage.blooms import Questions, questions_of
from broker.storage.log import PartitionLog
from broker.storage.project import project
from broker.storage.read import ReadPlan
from broker.storage.select import JUDGED_BYTES_MAX, PLANNED_BYTES, after_older, select

log = logging.getLogger(__name__)

RESOLVE_TRIES: Final = 3
VERIFY_BYTES: Final = 16 << 20
BEHIND_S: Final = 1.0
COLUMNS_LENGTH_MAX: Final = 128
"""Characters of all names."""

INCARNATION: Final = text("incarnation", "Refuse with `stale_incarnation` unless the stream has this incarnation.")


ENDPOINTS: Final = Endpoints()


@ENDPOINTS.add(
    "GET",
    "/v1/streams/{stream}/partitions/{partition}/records",
    "read_records",
    {
        200: Content(
            description="The records, possibly none.",
            media={http.ARROW_STREAM: None, http.NDJSON: None},
            headers=(
                http.HIGH_WATERMARK,
                http.LOG_START_OFFSET,
                http.NEXT_OFFSET,
                http.LEADER_EPOCH,
                http.INCARNATION,
                http.NEAREST,
                http.EPOCHS,
                http.LOST,
            ),
        )
    },
    permission=of_path("stream:read", "stream") + of_path("stream:admin", "stream", when="verify"),
    act=NO_ACT,
    query=(
        position(
            "offset",
            "Where to begin. A time (without a zone: UTC) means the first record that is not older.",
            default="earliest",
        ),
        integer("end", "First offset not wanted. Default: the high watermark.", least=0, greatest=OFFSET_MAX),
        integer(
            "max_bytes",
            "Send no more than this many bytes of batches, but at least one batch. Default: no limit.",
            least=1,
            greatest=OFFSET_MAX,
        ),
        MAX_WAIT,
        INCARNATION,
        boolean(
            "verify",
            "Check some megabytes of stored bytes at the offset first, for a reader that met damage. Bytes that are"
            " damaged on the disk are marked lost and passed over from then on; see `lost_ranges`.",
        ),
        integer(
            "epoch",
            "The newest leader epoch that the client has seen here; an older leader answers `not_ready`.",
            least=0,
            greatest=LEADER_EPOCH_MAX,
        ),
        choice(
            "replica",
            "`any`: an in-sync replica that does not lead may answer. If it cannot, it says `not_leader`: ask the"
            " leader.",
            ("leader", "any"),
        ),
        text(
            "rack",
            "Where the client is. If another in-sync replica is in this rack, and the leader is not, the answer has no"
            " records, and `Liftlog-Nearest` has the address of that replica: ask it with `replica=any`.",
        ),
        text(
            "subject",
            "Only records whose subject matches one of these, separated by commas; `*` and `>` are wildcards."
            " With this, `key`, `since` or `until` an answer may have no records: go on at `Liftlog-Next-Offset`.",
            length_max=SUBJECTS_LENGTH_MAX,
        ),
        parameter("key", "Only records with this key, as UTF-8.", Annotated[str, Rule(limit=(0, KEY_LENGTH_MAX))]),
        parameter(
            "key_base64",
            "Only records with this key, as URL-safe base64.",
            Annotated[str, Rule(limit=(0, KEY_LENGTH_MAX))],
        ),
        moment("since", "Only records that are not older, by their timestamps."),
        moment("until", "Only records that are older, by their timestamps."),
        text(
            "columns",
            "Only these columns, separated by commas, and `offset`. Where that would save little, and with `verify`,"
            " the answer has all columns: its schema says which. Not with JSON lines.",
            length_max=COLUMNS_LENGTH_MAX,
        ),
        choice("format", "`json`: JSON lines for people; exactly `[offset, end)`.", ("arrow", "json")),
        integer("limit", "JSON lines only: at most so many rows.", least=1, greatest=OFFSET_MAX),
    ),
    errors=(
        UnknownStream,
        UnknownPartition,
        OffsetOutOfRange,
        StaleIncarnation,
        NotLeader,
        NotReady,
        BadBatch,
        StorageFailed,
        Overloaded,
    ),
)
async def get_records(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Read records in whole batches; the first may begin before `offset`, the last end after `end`."""
    await access_now.get().need("stream:admin", (request.match_info["stream"],) if query["verify"] else ())
    as_lines = wants_lines(request, query)
    handle = find(serving, request, query, leader_epoch=query["epoch"], for_reading=True)
    asked = query["offset"]
    if handle.elsewhere is not None and (not isinstance(asked, int) or query["verify"]):  # R4
        raise handle.elsewhere("only it can tell which offset that is, and look at what is damaged")
    in_index = isinstance(asked, AtTime)
    offset = await serving.in_worker(start_offset, handle, asked) if in_index else start_offset(handle, asked)
    end: int | None = query["end"]
    if isinstance(asked, int) and end is not None and end < offset:
        raise InvalidRequest(f"end={end}: must not be below offset={offset}", parameter="end", value=end, limit=offset)
    if query["rack"] is not None and handle.elsewhere is None and not as_lines:
        nearest = serving.backend.nearest(handle.stream, handle.partition, query["rack"])
        if nearest is not None and handle.log.state.log_start_offset <= offset <= handle.log.state.high_watermark:
            headers = {**headers_of(handle, offset), http.NEAREST: nearest}
            return web.Response(body=SCHEMA_BYTES + END_OF_STREAM, content_type=http.ARROW_STREAM, headers=headers)
    wanted, columns = Conditions.of_query(query), columns_of(query, as_lines=as_lines)
    if handle.elsewhere is not None and offset > handle.log.state.high_watermark:  # R5
        await wait_for(serving, handle, offset - 1, min(wait_seconds(query), BEHIND_S))
        handle = find(serving, request, query, again=handle, leader_epoch=query["epoch"], for_reading=True)
    if offset == handle.log.state.high_watermark and (end is None or end > offset):
        await wait_for(serving, handle, offset, wait_seconds(query))
        handle = find(serving, request, query, again=handle, leader_epoch=query["epoch"], for_reading=True)
    if query["verify"]:
        await serving.in_worker(verify, handle, offset)
    holds = bool(wanted or columns or handle.log.state.is_encrypted)
    with serving.lines_budget.reserved() if holds else nullcontext() as reservation:
        plan, epochs = await plan_read(serving, request, query, handle, offset, wanted, columns, reservation)
        if not wanted and plan.columns is None and not plan.is_opened:
            reservation = None  # nothing is held
        return await send_plan(serving, request, query, handle, plan, offset, epochs, reservation, as_lines=as_lines)


async def send_plan(
    serving: Serving,
    request: web.Request,
    query: Query,
    handle: PartitionHandle,
    plan: ReadPlan,
    offset: int,
    epochs: tuple[int, int],
    reservation: Reservation | None,
    *,
    as_lines: bool,
) -> web.StreamResponse:
    """The answer. Closes the plan (R1)."""
    end: int | None = query["end"]
    headers = {**headers_of(handle, plan.next_offset), **lost_between(handle, offset, plan.next_offset)}
    response = web.StreamResponse(headers=headers)
    try:
        if as_lines:
            response.content_type = http.NDJSON
            response.charset = "utf-8"
            await send_lines(serving, request, response, plan, offset=offset, end=end, limit=query["limit"])
        else:
            response.headers[http.EPOCHS] = f"{epochs[0]}, {epochs[1]}"
            response.content_type = http.ARROW_STREAM
            response.content_length = len(SCHEMA_BYTES) + plan.bytes + len(END_OF_STREAM)
            await send_held(serving, request, response, plan, reservation)
        if request.method != "HEAD":
            serving.meters.sent_bytes.inc(plan.bytes)
    except AnswerCut as error:
        serving.meters.cut_answers.labels("reader" if error.is_readers else "storage").inc()
        level = logging.WARNING if error.is_readers else logging.ERROR
        log.log(level, "http.answer_cut path=%s remote=%s error=%s", request.path, request.remote, error)
        abort(request)
    except StorageFailed as error:
        serving.meters.cut_answers.labels("storage").inc()
        log.error("http.answer_cut path=%s remote=%s error=%s", request.path, request.remote, error)
        raise
    except ConnectionError:  # the client went away
        abort(request)
    finally:
        plan.close()
    return response


async def send_held(
    serving: Serving,
    request: web.Request,
    response: web.StreamResponse,
    plan: ReadPlan,
    reservation: Reservation | None,
) -> None:
    """As `send_stream`; a slow reader of what is held in memory is cut when others need that (`ndjson.L2`)."""
    if reservation is None:
        await send_stream(serving, request, response, plan)
        return
    try:
        async with reservation.waiting(STALLED_S):
            await send_stream(serving, request, response, plan)
        reservation.complete()
    except TimeoutError:
        why = "while others need the memory" if reservation.is_condemned else f"in {STALLED_S:.0f} s"
        raise AnswerCut(f"the reader did not take the answer {why}", is_readers=True) from None


async def send_stream(serving: Serving, request: web.Request, response: web.StreamResponse, plan: ReadPlan) -> None:
    """Schema, ranges, end marker. Raises ConnectionError, AnswerCut."""
    if request.method == "HEAD":
        await response.prepare(request)
        return
    schema = SCHEMA_BYTES if plan.columns is None else schema_bytes(plan.columns)
    if plan.bytes <= SMALL_BYTES_MAX:
        body = schema + read_ranges(plan.ranges) + END_OF_STREAM
        begin_answer()
        await response.prepare(request)
        await response.write(body)
    else:
        begin_answer()
        await response.prepare(request)
        await response.write(schema)
        await send_ranges(serving, request, response, plan.ranges)
        await response.write(END_OF_STREAM)
    await response.write_eof()


def wants_lines(request: web.Request, query: Query) -> bool:
    """Whether the answer is JSON lines: `format` says, else `Accept`."""
    if query["format"] is not None:
        lines = bool(query["format"] == "json")
    else:
        accept = request.headers.get("Accept", "").lower()
        lines = http.NDJSON in accept and http.ARROW_STREAM not in accept
    if query["limit"] is not None and not lines:
        raise InvalidRequest("limit applies to JSON lines only; for Arrow give end or max_bytes", parameter="limit")
    return lines


def columns_of(query: Query, *, as_lines: bool) -> Columns | None:
    """The columns that are asked for; None: all.

    Raises:
        InvalidRequest: one that a record does not have; or the answer is JSON lines.
    """
    if query["columns"] is None:
        return None
    if as_lines:
        raise InvalidRequest("columns applies to Arrow only; JSON lines have all", parameter="columns")
    names = [name.strip() for name in query["columns"].split(",")]
    for name in names:
        if name not in SCHEMA.names:
            raise InvalidRequest(
                f"columns: records have no column {name!r}, only {', '.join(SCHEMA.names)}",
                parameter="columns",
                value=name,
                limit=SCHEMA.names,
            )
    columns = columns_in(names)
    return None if query["verify"] or len(columns) == len(SCHEMA) else columns


def find(
    serving: Serving,
    request: web.Request,
    query: Query,
    *,
    again: PartitionHandle | None = None,
    leader_epoch: int | None = None,
    for_reading: bool = False,
) -> PartitionHandle:
    """The partition of the path, if it is the one that the client means.

    Args:
        again: The one that was found before. It is to be the same stream; and the same leader epoch, if it is not led
            here.
        for_reading: One that is not led here will do if the client says so.
        leader_epoch: The newest one that the client has seen, if it says so. Not read from `query`, since the
            `epoch` of other calls is something else: a stage's is that of its sink.
    Raises:
        UnknownStream, UnknownPartition: not there.
        StaleIncarnation: the stream was deleted and re-created, before the request or while it waited.
        NotReady: the client has seen a newer leader epoch than this broker.
        NotLeader: so it has, and this broker does not lead; or it may not answer any more.
    """
    looked_for = serving.backend.reader if for_reading and query["replica"] == "any" else serving.backend.partition
    handle = looked_for(request.match_info["stream"], partition_number(request))
    asked = query["incarnation"] or (None if again is None else again.incarnation)
    if asked is not None and asked != handle.incarnation:
        raise stale(handle, asked)
    if again is not None and again.elsewhere is not None and again.leader_epoch != handle.leader_epoch:
        raise again.elsewhere("another leader epoch has begun")
    if leader_epoch is not None and leader_epoch > handle.leader_epoch:
        if handle.elsewhere is not None:
            raise handle.elsewhere(f"the leader epoch here is {handle.leader_epoch}, older than {leader_epoch}")
        raise NotReady(
            f"{handle.stream}/{handle.partition}: the leader epoch here is {handle.leader_epoch},"
            f" older than {leader_epoch}",
            leader_epoch=handle.leader_epoch,
            asked=leader_epoch,
        )
    return handle


def stale(handle: PartitionHandle, asked: str, where: str = "") -> StaleIncarnation:
    """The error for another incarnation of a stream than the one that is there."""
    return StaleIncarnation(
        f"{where}stream {handle.stream!r} has incarnation {handle.incarnation}, not {asked[:128]}:"
        " it was deleted and re-created",
        stream=handle.stream,
        incarnation=handle.incarnation,
        asked=asked,
    )


def end_of(handle: PartitionHandle) -> int:
    """The high watermark. Raises NotReady: it is not known yet."""
    end = handle.end
    if end is None:
        raise unknown_end(handle)
    return end


def unknown_end(handle: PartitionHandle) -> NotReady:
    """The error for a question about the end of a partition whose leader has just begun to lead."""
    return NotReady(
        f"{handle.stream}/{handle.partition}: it is not known yet where it ends: leader epoch"
        f" {handle.leader_epoch} has just begun",
        leader_epoch=handle.leader_epoch,
    )


def start_offset(handle: PartitionHandle, asked: int | str | AtTime) -> int:
    """The offset that a position stands for now. A time after the last record: the high watermark.

    Raises:
        NotReady: that is not known yet.
    """
    if isinstance(asked, AtTime):
        found = handle.log.reader.offset_for_time(asked.timestamp_us)
        return end_of(handle) if found is None else found
    if isinstance(asked, str):
        return handle.log.state.log_start_offset if asked == "earliest" else end_of(handle)
    return asked


async def plan_read(
    serving: Serving,
    request: web.Request,
    query: Query,
    handle: PartitionHandle,
    offset: int,
    wanted: Conditions,
    columns: Columns | None,
    reservation: Reservation | None,
) -> tuple[ReadPlan, tuple[int, int]]:
    """Plan the read in a worker thread. If the stream is deleted under it, that is the error, and no other (R3).

    Returns:
        The plan, and the leader epochs of the records before its two ends (`epoch_before`).
    """
    again = functools.partial(find, serving, request, query, again=handle, for_reading=True)
    try:
        plan, epochs = await serving.in_worker(
            open_plan, handle, query, offset, wanted, columns, reservation, undo=lambda opened: opened[0].close()
        )
    except LiftlogError as error:
        again()
        if handle.elsewhere is not None and isinstance(error, OffsetOutOfRange | BadBatch | StorageFailed | CorruptLog):
            raise handle.elsewhere(f"this replica cannot tell: {error}") from error  # R4
        raise
    try:
        again()
    except LiftlogError:
        plan.close()
        raise
    return plan, epochs


def open_plan(
    handle: PartitionHandle,
    query: Query,
    offset: int,
    wanted: Conditions,
    columns: Columns | None,
    reservation: Reservation | None,
) -> tuple[ReadPlan, tuple[int, int]]:
    """Plan the read, and leave in it what is wanted.

    Raises:
        As `planned`, `select` and `epoch_before`.
    """
    reserve = nothing if reservation is None else reservation.grow_to
    if not wanted:
        plan = planned(handle, query, offset, query["max_bytes"], reserve=reserve)
    else:
        begin = after_older(handle.log, offset, query["end"], wanted)
        most = JUDGED_BYTES_MAX if columns is None else PLANNED_BYTES
        bytes_max = min(query["max_bytes"] or most, most)
        plan = planned(handle, query, begin, bytes_max, questions_of(wanted), reserve=reserve)
    try:
        if reservation is not None and wanted:
            opened = reservation.byte_count
            select(plan, wanted, lambda size: reservation.grow_to(opened + size), asked=offset, columns=columns)
        if reservation is not None and columns is not None:
            held = reservation.byte_count
            project(
                plan,
                columns,
                lambda byte_count: reservation.grow_to(held + byte_count),
                selected_from=offset if wanted else None,
            )
        return plan, (epoch_before(handle.log, offset), epoch_before(handle.log, plan.next_offset))
    except BaseException:
        plan.close()
        raise


def nothing(byte_count: int) -> None:
    """For what holds no memory."""


def epoch_before(log: PartitionLog, offset: int) -> int:
    """The leader epoch of the record before an offset; -1: there is none (at the log start it has gone), or not known.

    By this a reader notices that what it read was given up in an unclean election, and that other records are at those
    offsets.

    Raises:
        StorageFailed: the disk cannot read it.
    """
    return log.epochs.epoch_of(offset - 1) if offset > log.state.log_start_offset else -1


def planned(
    handle: PartitionHandle,
    query: Query,
    offset: int,
    max_bytes: int | None,
    questions: Questions | None = None,
    *,
    reserve: Callable[[int], None],
) -> ReadPlan:
    """Plan the read. Where the client named no number, retention may move the start: then look again.

    Raises:
        OffsetOutOfRange: with `log_start_offset` and `high_watermark`.
        NotReady: the offset may be committed, which this leader does not know yet.
        BadBatch: an encrypted batch is whole, and not what was encrypted there.
    """
    is_verified = False
    for attempt in range(RESOLVE_TRIES + 1):
        read = functools.partial(handle.log.reader.read, end=query["end"], max_bytes=max_bytes, questions=questions)
        try:
            return read(offset, reserve=reserve, repairs=False)
        except BadBatch:  # as a client that finds one damaged: what is lost is told, and passed over
            if is_verified or any(first <= offset < after for first, after in handle.log.state.tampered):
                raise
            is_verified = True
            verify(handle, offset)
        except OffsetOutOfRange:
            if offset > handle.log.state.log_start_offset and handle.elsewhere is None:
                end_of(handle)
            if isinstance(query["offset"], int) or attempt >= RESOLVE_TRIES - 1:
                raise
            offset = start_offset(handle, query["offset"])
    raise AssertionError("unreachable")


def verify(handle: PartitionHandle, offset: int) -> None:
    """Check the stored bytes at `offset`: what is damaged is marked lost, and the answer passes over it."""
    handle.scrub(offset, bytes_max=VERIFY_BYTES)


async def wait_for(serving: Serving, handle: PartitionHandle, offset: int, timeout_s: float) -> None:
    """Wait until the high watermark is past `offset`, time is up, or the server drains."""
    if timeout_s > 0:
        with serving.callers.polling():
            await until_draining(serving, handle.wait_for(offset, timeout_s))


def lost_between(handle: PartitionHandle, start: int, end: int) -> dict[str, str]:
    """What the disk has lost of these offsets, as a header: to a reader it is a gap like any other."""
    found = [(max(a, start), min(b, end)) for a, b in handle.log.state.lost_ranges if a < end and b > start]
    if not found:
        return {}
    if len(found) > http.LOST_RANGES_MAX:
        found = [*found[: http.LOST_RANGES_MAX - 1], (found[http.LOST_RANGES_MAX - 1][0], found[-1][1])]
    return {http.LOST: ", ".join(f"{a}-{b}" for a, b in found)}


def headers_of(handle: PartitionHandle, next_offset: int) -> dict[str, str]:
    """Headers of an answer about its partition (R2). An end that is not known yet has none."""
    end = handle.end
    return {
        **({} if end is None else {http.HIGH_WATERMARK: str(end)}),
        http.LOG_START_OFFSET: str(handle.log.state.log_start_offset),
        http.NEXT_OFFSET: str(next_offset),
        http.LEADER_EPOCH: str(handle.leader_epoch),
        http.INCARNATION: handle.incarnation,
        "Cache-Control": "no-store",
    }
