"""Bundles: records for many partitions of one stream, which one broker leads, in one request.

    body    {"parts": [{"partition", "stage", "part", "last", "rows"}, ...]}  |  Arrow stream: their rows, part by part
            `head` bytes

A part of a stage is stored as `stage_records` stores it, and is as idempotent. A bundle that fails may be stored in
part: send it again. Parts of partitions that are led elsewhere are not stored; the answer names them. Where a broker is
alone, parts are answered when they are written, and their commit makes them durable (`stages.G7`).

Records to append are appended as by `append_records`, each part whole or not at all. A part that met an error is named,
too, unless all have; it alone is to be sent again, or what the others appended would be there twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from aiohttp import web

from broker.api.errors import (
    DiskFull,
    InvalidName,
    InvalidRecords,
    InvalidRequest,
    LiftlogError,
    NotLeader,
    Overloaded,
    ReadOnly,
    RecordTooLarge,
    RequestTooLarge,
    SinkFenced,
    StageLost,
    StagesFull,
    StaleIncarnation,
    StorageFailed,
    StreamPaused,
    UnknownPartition,
    UnknownSink,
    UnknownStream,
    may_be_done,
    partly,
)
from broker.api.permissions import of_path, of_query
from broker.api.plain import INT64_MAX
from broker.api.plain_rows import PlainRows
from broker.api.stream import check_name
from broker.metadata.catalog import StreamInfo
from broker.serving.contract.acts import NO_ACT
from broker.serving.contract.backend import PartitionHandle
from broker.serving.contract.endpoint import Content, Endpoints, Query, Serving, answer, integer, text
from broker.serving.contract.schemas import AppendBundle, AppendedPart, Bundle, BundledPart
from broker.serving.endpoints.append import DECODED_FACTOR, appendable, default_subject
from broker.serving.endpoints.records import INCARNATION, stale
from broker.serving.endpoints.sinks import holders_seen
from broker.serving.http.body import Lent, Reservation, check_media, read_body, reservation_now
from broker.serving.http.gone import check_asker
from broker.serving.http.waiting import unbroken
from broker.serving.payload.decode import decode_stream
from broker.serving.payload.rows import ROW_OVERHEAD_BYTES, split, to_rows
from broker.sinks.notes import StagePart
from broker.storage.rows import Measured, RowBatch

ENDPOINTS: Final = Endpoints()
HEAD_BYTES_MAX: Final = 256 << 10
SMALL_ROWS: Final = 256
SMALL_BYTES: Final = 64 << 10
"""A part that is no larger is composed without Arrow, if the stream's settings allow a batch of that size."""


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/stages",
    "stage_bundle",
    answer(
        "Stored, but for the parts of partitions that are led elsewhere. Durable with their commit.", "BundleStaged"
    ),
    permission=of_path("stream:append", "stream") + of_query("sink:write", "sink"),
    act=NO_ACT,
    query=(
        text("sink", "Sink of the stages. Required."),
        integer("epoch", "The epoch that `open` gave. Required.", least=0, greatest=INT64_MAX),
        integer("head", "So many bytes of the body name the parts. Required.", least=1, greatest=HEAD_BYTES_MAX),
        INCARNATION,
    ),
    request=Content(
        description="A JSON object (`Bundle`) of `head` bytes, then an Arrow stream with the rows of all parts in their"
        " order, as for `append_records`.",
        media={"application/octet-stream": None},
    ),
    errors=(
        InvalidName,
        StaleIncarnation,
        InvalidRecords,
        RecordTooLarge,
        RequestTooLarge,
        Overloaded,
        UnknownSink,
        SinkFenced,
        StageLost,
        StagesFull,
        DiskFull,
        StorageFailed,
        StreamPaused,
        ReadOnly,
        UnknownStream,
        UnknownPartition,
    ),
)
async def stage_bundle(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Store parts of stages of several partitions, invisible until they are committed."""
    info = appendable(serving, request.match_info["stream"])
    for needed in ("sink", "epoch", "head"):
        if query[needed] is None:
            raise InvalidRequest(f"query parameter {needed!r} is missing", parameter=needed)
    check_media(request, ("application/octet-stream",))
    body = await read_body(request, serving.body_bytes_max)
    serving.meters.posted_bytes.inc(len(body))
    reservation = reservation_now.get()
    view = memoryview(body)
    parts = (await serving.asked_in(view[: query["head"]], Bundle)).parts
    led_here(serving, info, parts, query["incarnation"] or info.incarnation)
    arguments = (view[query["head"] :], parts, info, serving.now_us(), serving.body_bytes_max, reservation)
    encoded = await serving.decoded(len(body), encode, *arguments)
    batches = lent(encoded, reservation)
    del body, view, arguments, encoded
    handles = led_here(serving, info, parts, info.incarnation)
    sink, epoch = check_name(query["sink"], what="sink"), query["epoch"]
    given = [
        (part.partition, rows, StagePart(sink=sink, stage=part.stage, part=part.part, is_last=part.last, epoch=epoch))
        for part, rows in zip(parts, batches, strict=True)
        if part.partition in handles
    ]
    loans = [rows.loan for rows in batches]
    with holders_seen(sink):
        gone = await unbroken(serving.backend.sinks.stage_bundle(info.name, given), loans)
    elsewhere = {part.partition for part in parts} - handles.keys() | set(gone)
    return web.json_response({"elsewhere": sorted(elsewhere)})


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/records",
    "append_bundle",
    answer("Committed, but for the parts of partitions that are named.", "BundleAppended"),
    permission=of_path("stream:append", "stream"),
    act=NO_ACT,
    query=(
        integer("head", "So many bytes of the body name the parts. Required.", least=1, greatest=HEAD_BYTES_MAX),
        INCARNATION,
    ),
    request=Content(
        description="A JSON object (`AppendBundle`) of `head` bytes, then an Arrow stream with the records of all parts"
        " in their order, as for `append_records`.",
        media={"application/octet-stream": None},
    ),
    errors=(
        StaleIncarnation,
        InvalidRecords,
        RecordTooLarge,
        RequestTooLarge,
        Overloaded,
        DiskFull,
        StorageFailed,
        StreamPaused,
        ReadOnly,
        UnknownStream,
        UnknownPartition,
    ),
)
async def append_bundle(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Append records to several partitions, to each all of its part or nothing."""
    info = appendable(serving, request.match_info["stream"])
    if query["head"] is None:
        raise InvalidRequest("query parameter 'head' is missing", parameter="head")
    check_media(request, ("application/octet-stream",))
    body = await read_body(request, serving.body_bytes_max)
    serving.meters.posted_bytes.inc(len(body))
    reservation = reservation_now.get()
    view = memoryview(body)
    parts = (await serving.asked_in(view[: query["head"]], AppendBundle)).parts
    led_here(serving, info, parts, query["incarnation"] or info.incarnation)
    arguments = (view[query["head"] :], parts, info, serving.now_us(), serving.body_bytes_max, reservation)
    encoded = await serving.decoded(len(body), encode, *arguments)
    batches = lent(encoded, reservation)
    del body, view, arguments, encoded
    handles = led_here(serving, info, parts, info.incarnation)
    check_asker()  # before it begins
    outcomes = await asyncio.gather(
        *(
            _appended(handles.get(part.partition), rows, info.settings.acks)
            for part, rows in zip(parts, batches, strict=True)
        )
    )
    failed = [part.partition for part, outcome in zip(parts, outcomes, strict=True) if outcome is not None]
    errors = [outcome for outcome in outcomes if isinstance(outcome, LiftlogError)]
    if errors and len(failed) == len(parts):
        with partly(any(map(may_be_done, errors))):
            raise errors[0]
    serving.meters.posted_records.inc(sum(part.rows for part in parts if part.partition not in failed))
    return web.json_response({"failed": failed})


async def _appended(handle: PartitionHandle | None, rows: Lent[Measured], acks: str) -> LiftlogError | bool | None:
    """Append one part. Returns None: it is; True: the partition is led elsewhere; or why it may not be."""
    if handle is None:
        return True
    if rows:
        try:
            await unbroken(handle.append(rows, acks=acks), [rows.loan])
        except LiftlogError as error:
            return error
    return None


def led_here(
    serving: Serving, info: StreamInfo, parts: Sequence[BundledPart | AppendedPart], incarnation: str
) -> dict[int, PartitionHandle]:
    """The partitions of a bundle that this broker leads.

    Raises:
        UnknownStream, UnknownPartition: not there. StaleIncarnation: the stream is another one by now.
        NotLeader: it leads none of them; whoever leads the first one is named.
    """
    found: dict[int, PartitionHandle] = {}
    elsewhere: NotLeader | None = None
    for part in parts:
        try:
            handle = serving.backend.partition(info.name, part.partition)
        except NotLeader as error:
            elsewhere = elsewhere or error
            continue
        if handle.incarnation != incarnation:
            raise stale(handle, incarnation)
        found[part.partition] = handle
    if elsewhere is not None and not found:
        raise elsewhere
    return found


def lent(parts: Iterable[list[Measured]], reservation: Reservation) -> list[Lent[Measured]]:
    """The rows of parts that have the memory of one body together (`body.B6`)."""
    return [Lent(each, reservation.lend()) for each in parts]


def encode(
    body: memoryview,
    parts: Sequence[BundledPart | AppendedPart],
    info: StreamInfo,
    now_us: int,
    body_bytes_max: int,
    reservation: Reservation,
) -> list[list[Measured]]:
    """The rows of each part, as batches to store.

    Raises:
        InvalidRecords, RecordTooLarge, RequestTooLarge: nothing of it may be stored.
        Overloaded: the memory for it is not there now.
    """
    settings, most = info.settings, DECODED_FACTOR * body_bytes_max
    decoded = decode_stream(body, decoded_bytes_max=most, reserve=reservation.grow_by)
    named, there = sum(part.rows for part in parts), sum(batch.num_rows for batch in decoded)
    if named != there:
        raise InvalidRecords(f"the parts have {named} records by their head, the body has {there}")
    if not decoded:
        return [[] for _ in parts]
    rows, lengths = to_rows(
        decoded,
        subject=default_subject(info),
        now_us=now_us,
        record_bytes_max=settings.record_bytes_max,
        decoded_bytes_max=most,
        reserve=reservation.grow_by,
    )
    found: list[list[Measured]] = []
    plain = PlainRows.of(rows)
    rows_max = min(SMALL_ROWS, settings.batch_records)
    bytes_max = min(SMALL_BYTES, settings.batch_bytes)
    at = 0
    for part in parts:
        of_part = lengths[at : at + part.rows]
        size = int(of_part.sum()) + ROW_OVERHEAD_BYTES * part.rows
        if part.rows == 0:
            found.append([])
        elif plain is not None and part.rows <= rows_max and size <= bytes_max:
            found.append([plain.batch(at, at + part.rows)])
        else:
            pieces = split(
                rows.slice(at, part.rows),
                of_part,
                batch_bytes=settings.batch_bytes,
                batch_records=settings.batch_records,
            )
            found.append([RowBatch(piece) for piece in pieces])
        at += part.rows
    return found
