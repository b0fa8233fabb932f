"""What is changed of a stream while it runs: paused or read-only, trimmed, given more partitions.

Each of these may be sent twice: it says what should be, not what to add. A trim is checked for all its
partitions before the first one is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from broker.api.errors import (
    InvalidSetting,
    OffsetOutOfRange,
    ReadOnly,
    StaleIncarnation,
    UnknownPartition,
    UnknownStream,
)
from broker.serving.contract.backend import PartitionHandle
from broker.serving.contract.endpoint import Endpoints, Query, Serving, answer, body
from broker.serving.contract.schemas import (
    AtOffset,
    AtTimestamp,
    Before,
    PartitionCount,
    ReadOnlyState,
    Trim,
)
from broker.serving.endpoints.consumers import chosen
from broker.serving.endpoints.streams import answer_one, changeable
from broker.serving.http.body import refuse_body
from broker.serving.http.waiting import unbroken
from broker.storage.log import PartitionLog
from broker.storage.read import out_of_range

ENDPOINTS: Final = Endpoints()
_STREAM: Final = answer("The stream as it is then.", "Stream")


@ENDPOINTS.add("POST", "/v1/streams/{stream}/pause", "pause_stream", _STREAM, errors=(UnknownStream, ReadOnly))
async def pause(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Stop capturing and appending until the stream is resumed. What NATS has delivered is stored first."""
    return await _set_paused(serving, request, True)


@ENDPOINTS.add("POST", "/v1/streams/{stream}/resume", "resume_stream", _STREAM, errors=(UnknownStream, ReadOnly))
async def resume(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Capture and append again."""
    return await _set_paused(serving, request, False)


async def _set_paused(serving: Serving, request: web.Request, paused: bool) -> web.StreamResponse:
    await refuse_body(request)
    info = changeable(serving, request)
    return await answer_one(serving, await unbroken(serving.backend.set_stream_state(info.name, paused=paused)))


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/read-only",
    "set_stream_read_only",
    _STREAM,
    request=body("Which of the two.", "ReadOnlyState"),
    errors=(UnknownStream, ReadOnly),
)
async def set_read_only(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Answer every record with an error, or take records again. Reads go on."""
    read_only = (await serving.asked(request, ReadOnlyState)).read_only
    info = changeable(serving, request)
    return await answer_one(serving, await unbroken(serving.backend.set_stream_state(info.name, read_only=read_only)))


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/partitions",
    "add_partitions",
    _STREAM,
    request=body("How many in all, not fewer than now.", "PartitionCount"),
    errors=(UnknownStream, InvalidSetting, ReadOnly),
)
async def add_partitions(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Raise the number of partitions. Keys may move between partitions: see the warnings of the answer."""
    count = (await serving.asked(request, PartitionCount)).partitions
    info = changeable(serving, request)
    return await answer_one(serving, await unbroken(serving.backend.add_partitions(info.name, count)))


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/trim",
    "trim_stream",
    answer("Where each log begins then.", "Trimmed"),
    request=body(
        "The first position to keep. If it is gone already, nothing changes. If an offset is above the high"
        " watermark of any of the partitions, it is refused, and nothing is trimmed.",
        "Trim",
    ),
    errors=(UnknownStream, UnknownPartition, OffsetOutOfRange, StaleIncarnation, ReadOnly),
)
async def trim(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Delete the records before a position, for good, in some or all partitions."""
    asked = await serving.asked(request, Trim)
    info = changeable(serving, request)
    handles = chosen(serving.backend, info.name, asked.partitions)
    offsets = await serving.in_worker(_find_all, handles, asked.before)
    starts = await unbroken(serving.backend.trim_stream(info.name, info.incarnation, offsets))
    return web.json_response(
        {"partitions": [{"partition": number, "log_start_offset": start} for number, start in sorted(starts.items())]}
    )


def first_kept(log: PartitionLog, before: Before) -> int:
    """The first offset to keep. Raises OffsetOutOfRange for an offset above the high watermark."""
    match before:
        case AtOffset():
            return _not_above(log, before.offset)
        case AtTimestamp():
            return _at_time(log, before.timestamp_us)
    return log.high_watermark


def _not_above(log: PartitionLog, offset: int) -> int:
    start, end = log.log_start_offset, log.high_watermark
    if offset > end:
        raise out_of_range(
            log.identity,
            offset,
            start,
            end,
            f"{log.identity.stream}/{log.identity.partition}: cannot trim before offset {offset}, valid is"
            f" [{start}, {end}]; nothing was trimmed",
        )
    return offset


def _at_time(log: PartitionLog, timestamp_us: int) -> int:
    end = log.high_watermark  # before the search: what is committed during it is not older for sure
    found = log.offset_for_time(timestamp_us)
    return end if found is None else found


def _find_all(handles: Sequence[PartitionHandle], before: Before) -> Mapping[int, int]:
    return {handle.partition: first_kept(handle.log, before) for handle in handles}
