"""Changes of a stream while it runs: paused or read-only, trimmed, given more partitions.

Each of these may be sent twice: it says what should be, not what to add. A trim is checked for all its
partitions before the first one is touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from aiohttp import web

from broker.api.errors import (
    InvalidSetting,
    LiftlogError,
    NotLeader,
    OffsetOutOfRange,
    ReadOnly,
    StaleIncarnation,
    UnknownPartition,
    UnknownStream,
)
from broker.api.permissions import of_path
from broker.serving.contract.acts import Act
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
from broker.serving.endpoints.consumers import numbers_of
from broker.serving.endpoints.records import end_of
from broker.serving.endpoints.resolve import leader_named
from broker.serving.endpoints.streams import answer_one, changeable, until_changed, until_served
from broker.serving.http.access import behalf
from broker.serving.http.peers import is_from_peer
from broker.serving.http.waiting import unbroken
from broker.storage.read import out_of_range

ENDPOINTS: Final = Endpoints()
PEER_TRIM_S: Final = 20.0
"""A leader answers when all its replicas in sync have followed."""
_STREAM: Final = answer("The stream as it is then.", "Stream")


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/pause",
    "pause_stream",
    _STREAM,
    permission=of_path("stream:admin", "stream"),
    act=Act(),
    errors=(UnknownStream, ReadOnly),
)
async def pause(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Stop capturing and appending until the stream is resumed. Messages that NATS has delivered are stored first."""
    return await _set_paused(serving, request, True)


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/resume",
    "resume_stream",
    _STREAM,
    permission=of_path("stream:admin", "stream"),
    act=Act(),
    errors=(UnknownStream, ReadOnly),
)
async def resume(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Capture and append again."""
    return await _set_paused(serving, request, False)


async def _set_paused(serving: Serving, request: web.Request, paused: bool) -> web.StreamResponse:
    info = changeable(serving, request)
    info = await unbroken(serving.backend.set_stream_state(info.name, paused=paused))
    warnings = await until_changed(serving, request, info)
    return await answer_one(serving, request, info, warnings=warnings)


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/read-only",
    "set_stream_read_only",
    _STREAM,
    permission=of_path("stream:admin", "stream"),
    act=Act(("read_only",)),
    request=body("Which of the two.", "ReadOnlyState"),
    errors=(UnknownStream, ReadOnly),
)
async def set_read_only(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Answer every record with an error, or take records again. Reads go on."""
    read_only = (await serving.asked(request, ReadOnlyState)).read_only
    info = changeable(serving, request)
    info = await unbroken(serving.backend.set_stream_state(info.name, read_only=read_only))
    warnings = await until_changed(serving, request, info)
    return await answer_one(serving, request, info, warnings=warnings)


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/partitions",
    "add_partitions",
    _STREAM,
    permission=of_path("stream:admin", "stream"),
    act=Act(("partitions",)),
    request=body("How many in all, not fewer than now.", "PartitionCount"),
    errors=(UnknownStream, InvalidSetting, ReadOnly),
)
async def add_partitions(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Raise the number of partitions. Keys may move between partitions: see the warnings of the answer."""
    count = (await serving.asked(request, PartitionCount)).partitions
    info = await unbroken(serving.backend.add_partitions(changeable(serving, request).name, count))
    warnings = await until_served(serving, request, info)
    return await answer_one(serving, request, info, warnings=warnings)


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/trim",
    "trim_stream",
    answer("Where each log begins then.", "Trimmed"),
    permission=of_path("stream:admin", "stream"),
    act=Act(("before", "partitions")),
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
    handles, elsewhere = _here_and_elsewhere(serving, request, info.name, asked)
    offsets = await serving.in_worker(_find_all, handles, asked.before)
    before = asked.before if isinstance(asked.before, str) else asdict(asked.before)
    path = f"/v1/streams/{info.name}/trim"
    try:
        answers = await asyncio.gather(
            *(
                serving.peers.ask(
                    address,
                    "POST",
                    path,
                    body={"before": before, "partitions": numbers},
                    timeout_s=PEER_TRIM_S,
                    behalf=behalf(),
                )
                for address, numbers in elsewhere.items()
            )
        )
        starts = {one["partition"]: one["log_start_offset"] for answer in answers for one in answer["partitions"]}
        if offsets:
            starts |= await unbroken(serving.backend.trim_stream(info.name, info.incarnation, offsets))
    except LiftlogError as error:
        if len(elsewhere) + bool(offsets) > 1:  # others may have trimmed
            error.fields["sent"] = True
        raise
    return web.json_response(
        {"partitions": [{"partition": number, "log_start_offset": start} for number, start in sorted(starts.items())]}
    )


def _here_and_elsewhere(
    serving: Serving, request: web.Request, stream: str, asked: Trim
) -> tuple[list[PartitionHandle], dict[str, list[int]]]:
    """The partitions of a trim that are led here, and the numbers of the others by the address of their leader."""
    handles, elsewhere = [], dict[str, list[int]]()
    for number in numbers_of(serving.backend, stream, asked.partitions):
        try:
            handles.append(serving.backend.partition(stream, number))
        except NotLeader as error:
            address = leader_named(error)
            if address is None or is_from_peer(request):
                raise
            elsewhere.setdefault(address, []).append(number)
    return handles, elsewhere


def first_kept(handle: PartitionHandle, before: Before) -> int:
    """The first offset to keep. `latest` is what is known to be committed: where followers have no room for the last
    records of a new leader, its end is not known before a trim makes room.

    Raises:
        OffsetOutOfRange: an offset above the high watermark.
        NotReady: that is not known yet, and it matters.
    """
    match before:
        case AtOffset():
            return _not_above(handle, before.offset)
        case AtTimestamp():
            return _at_time(handle, before.timestamp_us)
    return handle.log.state.high_watermark if handle.end is None else handle.end


def _not_above(handle: PartitionHandle, offset: int) -> int:
    log = handle.log
    if offset <= log.state.high_watermark:
        return offset
    start, end = log.state.log_start_offset, end_of(handle)
    if offset > end:
        raise out_of_range(
            log.state.identity,
            offset,
            start,
            end,
            f"{log.state.identity.stream}/{log.state.identity.partition}: cannot trim before offset {offset}, valid is"
            f" [{start}, {end}]; nothing was trimmed",
        )
    return offset


def _at_time(handle: PartitionHandle, timestamp_us: int) -> int:
    end = end_of(handle)  # before the search: what is committed during it is not older for sure
    found = handle.log.reader.offset_for_time(timestamp_us)
    return end if found is None else found


def _find_all(handles: Sequence[PartitionHandle], before: Before) -> Mapping[int, int]:
    return {handle.partition: first_kept(handle, before) for handle in handles}
