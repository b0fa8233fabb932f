"""Many positions at once: what a planner asks for before it reads hundreds of partitions.

A position that cannot be resolved carries its problem; the others are answered all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from broker.api.errors import InvalidRequest, LiftlogError, StaleIncarnation
from broker.serving.contract.backend import PartitionHandle
from broker.serving.contract.endpoint import Content, Endpoint, Query, Serving
from broker.serving.contract.fields import INT32_MAX, INT64_MAX, LEADER_EPOCH_MAX, Fields, refuse
from broker.serving.contract.schemas import INCARNATION_LENGTH_MAX, ITEMS_MAX, ref
from broker.serving.http.body import JSON_MEDIA, read_json
from broker.storage.log import PartitionLog
from broker.storage.read import out_of_range

At = Callable[[PartitionLog], int | None]


@dataclass(frozen=True, slots=True)
class Asked:
    """One position of a request."""

    stream: str
    partition: int
    incarnation: str | None
    at: At


async def resolve(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Resolve positions. The logs are read in a worker thread: a time may need a look into an index on disk."""
    body = Fields(await read_json(request), "", "positions")
    asked = [
        parse_asked(item, f"positions[{i}]") for i, item in enumerate(body.items("positions", count_max=ITEMS_MAX))
    ]
    handles = [_find(serving, one) for one in asked]
    return await serving.json_answer(_resolve_all, asked, handles)


def parse_asked(item: Any, where: str) -> Asked:
    """One position. Raises InvalidRequest."""
    fields = Fields(item, where, "stream", "partition", "at", "incarnation")
    return Asked(
        stream=fields.stream(),
        partition=fields.integer("partition", least=0, greatest=INT32_MAX),
        incarnation=fields.text("incarnation", length_max=INCARNATION_LENGTH_MAX, default=None),
        at=parse_at(fields.any("at"), f"{where}.at"),
    )


def parse_at(value: Any, where: str, *, epochs: bool = True) -> At:
    """`earliest`, `latest`, {"timestamp_us": n}, {"offset": n} or {"epoch": e}: how to find it in a log.

    The function returns None when no record is that late, and raises OffsetOutOfRange for an offset
    that is not within [log start offset, high watermark].
    """
    if value == "earliest":
        return lambda log: log.log_start_offset
    if value == "latest":
        return lambda log: log.high_watermark
    kinds = ("timestamp_us", "offset", "epoch") if epochs else ("timestamp_us", "offset")
    if not isinstance(value, dict) or len(value) != 1:
        refuse(where, value, f"must be 'earliest', 'latest' or an object with one of {', '.join(kinds)}")
    fields = Fields(value, where, *kinds)
    if "timestamp_us" in fields:
        timestamp_us = fields.integer("timestamp_us", least=-INT64_MAX, greatest=INT64_MAX)
        return lambda log: log.offset_for_time(timestamp_us)
    if "offset" in fields:
        offset = fields.integer("offset", least=0, greatest=INT64_MAX)
        return lambda log: in_range(log, offset)
    epoch = fields.integer("epoch", least=0, greatest=LEADER_EPOCH_MAX)
    return lambda log: min(log.epoch_end(epoch), log.high_watermark)


def in_range(log: PartitionLog, offset: int) -> int:
    """The offset, if it may be read from. Raises OffsetOutOfRange."""
    start, end = log.log_start_offset, log.high_watermark
    if not start <= offset <= end:
        raise out_of_range(log.identity, offset, start, end)
    return offset


def _find(serving: Serving, asked: Asked) -> PartitionHandle | LiftlogError:
    try:
        handle = serving.backend.partition(asked.stream, asked.partition)
    except LiftlogError as error:
        return error
    if asked.incarnation is not None and asked.incarnation != handle.incarnation:
        return StaleIncarnation(
            f"stream {asked.stream!r} has incarnation {handle.incarnation}, not {asked.incarnation}",
            stream=asked.stream,
            incarnation=handle.incarnation,
            asked=asked.incarnation,
        )
    return handle


def _resolve_all(asked: list[Asked], handles: list[PartitionHandle | LiftlogError]) -> dict[str, Any]:
    return {"positions": [_resolve(one, handle) for one, handle in zip(asked, handles, strict=True)]}


def _resolve(asked: Asked, handle: PartitionHandle | LiftlogError) -> dict[str, Any]:
    found: dict[str, Any] = {
        "stream": asked.stream,
        "partition": asked.partition,
        "incarnation": None,
        "offset": None,
        "leader_epoch": -1,
        "log_start_offset": None,
        "high_watermark": None,
        "bytes_ahead": None,
    }
    if isinstance(handle, LiftlogError):
        return {**found, "error": handle.to_problem()}
    log = handle.log
    start, end = log.log_start_offset, log.high_watermark
    found |= {"incarnation": handle.incarnation, "log_start_offset": start, "high_watermark": end}
    try:
        offset = asked.at(log)
        if offset is not None:
            found |= {"offset": offset, "bytes_ahead": log.bytes_between(offset, end) if offset < end else 0}
        before = (end if offset is None else offset) - 1
        if before >= 0:
            found["leader_epoch"] = log.epoch_of(before)
    except LiftlogError as error:
        found |= {"offset": None, "bytes_ahead": None, "error": error.to_problem()}
    return found


ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/v1/offsets/resolve",
        operation="resolve_offsets",
        summary="Resolve many positions to offsets.",
        handler=resolve,
        request=Content(description="The positions.", media={JSON_MEDIA: ref("Positions")}),
        answers={
            200: Content(
                description="In the order asked; one that failed has `error`.", media={JSON_MEDIA: ref("Resolved")}
            )
        },
        errors=(InvalidRequest,),
    ),
)
