"""Many positions at once: what a planner asks for before it reads hundreds of partitions.

A position that cannot be resolved carries its problem; the others are answered all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from broker.api.errors import InvalidRequest, LiftlogError, NotLeader
from broker.api.permissions import of_body
from broker.serving.contract.acts import NO_ACT
from broker.serving.contract.backend import PartitionHandle
from broker.serving.contract.endpoint import Endpoints, Query, Serving, answer, body
from broker.serving.contract.schemas import At, AtEpoch, AtOffset, AtTimestamp, Position, Positions
from broker.serving.endpoints.records import stale, unknown_end
from broker.serving.http.access import access_now
from broker.serving.http.peers import is_from_peer
from broker.storage.log import PartitionLog
from broker.storage.read import out_of_range

log = logging.getLogger(__name__)

ENDPOINTS: Final = Endpoints()


@ENDPOINTS.add(
    "POST",
    "/v1/offsets/resolve",
    "resolve_offsets",
    answer("In the order asked; one that failed has `error`.", "Resolved"),
    permission=of_body("stream:read", "positions[].stream"),
    act=NO_ACT,
    request=body("The positions.", "Positions"),
    errors=(InvalidRequest,),
)
async def resolve(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Resolve many positions to offsets."""
    asked = (await serving.asked(request, Positions)).positions
    await access_now.get().need("stream:read", {one.stream for one in asked})
    found = await resolve_all(serving, request, asked)
    return await serving.json_answer(lambda: {"positions": found})


async def resolve_all(serving: Serving, request: web.Request, asked: Sequence[Position]) -> list[dict[str, Any]]:
    """Each position, as `Resolved` of the contract; those of partitions that are led elsewhere by their leaders."""
    for stream in {one.stream for one in asked}:
        await serving.backend.look_for(stream)
    handles = [_find(serving, one) for one in asked]
    now_us = serving.now_us()
    found = await serving.in_worker(
        lambda: [_resolve(one, handle, now_us) for one, handle in zip(asked, handles, strict=True)]
    )
    elsewhere: dict[str, list[int]] = {}
    for number, handle in enumerate(handles):
        if isinstance(handle, NotLeader) and not is_from_peer(request) and (address := leader_named(handle)):
            elsewhere.setdefault(address, []).append(number)

    async def ask(address: str, numbers: Sequence[int]) -> None:
        body = {"positions": [_as_json(asked[number]) for number in numbers]}
        try:
            answers = (await serving.peers.ask(address, "POST", "/v1/offsets/resolve", body=body))["positions"]
        except LiftlogError as error:
            log.info("http.peer_silent path=/v1/offsets/resolve error=%s", error)
            return  # who leads them was told, and can be asked again
        for number, told in zip(numbers, answers, strict=True):
            found[number] = told

    await asyncio.gather(*(ask(address, numbers) for address, numbers in elsewhere.items()))
    return found


def leader_named(error: NotLeader) -> str | None:
    """The address of the leader that an error names."""
    leader = error.fields.get("leader")
    return leader.get("http") if isinstance(leader, dict) else None


def _as_json(asked: Position) -> dict[str, Any]:
    at = asked.at if isinstance(asked.at, str) else asdict(asked.at)
    of = {} if asked.incarnation is None else {"incarnation": asked.incarnation}
    return {"stream": asked.stream, "partition": asked.partition, "at": at, **of}


def found_at(log: PartitionLog, at: At) -> int | None:
    """Where a position is in a log. None: no record is that late.

    Raises:
        OffsetOutOfRange: an offset that is not within [log start offset, high watermark].
    """
    match at:
        case AtTimestamp():
            return log.reader.offset_for_time(at.timestamp_us)
        case AtOffset():
            return in_range(log, at.offset)
        case AtEpoch():
            return min(log.epochs.end_of(at.epoch).end_offset, log.state.high_watermark)
    return log.state.log_start_offset if at == "earliest" else log.state.high_watermark


def in_range(log: PartitionLog, offset: int) -> int:
    """The offset, if it may be read from. Raises OffsetOutOfRange."""
    start, end = log.state.log_start_offset, log.state.high_watermark
    if not start <= offset <= end:
        raise out_of_range(log.state.identity, offset, start, end)
    return offset


def _find(serving: Serving, asked: Position) -> PartitionHandle | LiftlogError:
    try:
        handle = serving.backend.partition(asked.stream, asked.partition)
    except LiftlogError as error:
        return error
    if asked.incarnation is not None and asked.incarnation != handle.incarnation:
        return stale(handle, asked.incarnation)
    return handle


def _resolve(asked: Position, handle: PartitionHandle | LiftlogError, now_us: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "stream": asked.stream,
        "partition": asked.partition,
        "incarnation": None,
        "offset": None,
        "leader_epoch": -1,
        "log_start_offset": None,
        "high_watermark": None,
        "bytes_ahead": None,
        "timestamp_us": None,
        "age_ms": None,
    }
    if isinstance(handle, LiftlogError):
        return {**found, "error": handle.to_problem()}
    log, found["incarnation"] = handle.log, handle.incarnation
    if handle.end is None:
        return {**found, "error": unknown_end(handle).to_problem()}
    start, offset, error = log.state.log_start_offset, None, None
    try:
        offset = found_at(log, asked.at)
    except LiftlogError as refusal:
        error = refusal
    end = handle.end  # both ends only grow: read in this order, they hold the offset
    if end is None:
        return {**found, "error": unknown_end(handle).to_problem()}
    found |= {"log_start_offset": start, "high_watermark": end}
    if error is None:
        try:
            return found | _about(log, offset, end, now_us)
        except LiftlogError as damage:
            error = damage
    return {**found, "error": error.to_problem()}


def _about(log: PartitionLog, offset: int | None, end: int, now_us: int) -> dict[str, Any]:
    """What stands at an offset; None: at the end."""
    before = (end if offset is None else offset) - 1
    found: dict[str, Any] = {"leader_epoch": log.epochs.epoch_of(before)} if before >= 0 else {}
    if offset is None:
        return found
    timestamp_us = log.reader.timestamp_at(offset) if offset < end else None
    return found | {
        "offset": offset,
        "bytes_ahead": log.reader.bytes_between(offset, end) if offset < end else 0,
        "timestamp_us": timestamp_us,
        "age_ms": None if timestamp_us is None else max(0, now_us - timestamp_us) // 1000,
    }
