"""Consumers as JSON: who reads what, how far behind, commit, reset, forget.

Lag is computed when asked, against the high watermark of the partition that was read. If the stream was
deleted or re-created since, there is no such partition any more: no high watermark, no lag.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from aiohttp import web

from broker.api.errors import (
    InvalidName,
    InvalidRequest,
    LiftlogError,
    OffsetOutOfRange,
    StaleIncarnation,
    UnknownConsumer,
    UnknownPartition,
    UnknownStream,
)
from broker.api.stream import check_name
from broker.groups.offsets import ConsumerOffset
from broker.serving.contract.backend import Backend, PartitionHandle
from broker.serving.contract.endpoint import Content, Endpoints, Query, Serving, answer, body
from broker.serving.contract.schemas import Commit, CommitOffset, Reset
from broker.serving.endpoints.records import stale
from broker.serving.endpoints.resolve import found_at
from broker.serving.http.waiting import unbroken
from broker.storage.read import out_of_range

ENDPOINTS: Final = Endpoints()
_ERRORS: Final = (InvalidName, UnknownStream, UnknownPartition, StaleIncarnation, OffsetOutOfRange)


@ENDPOINTS.add("GET", "/v1/consumers", "list_consumers", answer("The consumers.", "Consumers"))
async def list_all(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """All consumers with their lag, by name."""
    found = []
    for consumer in serving.backend.offsets.consumers():
        try:
            found.append(describe(serving.backend, consumer))
        except UnknownConsumer:  # forgotten meanwhile
            continue
    return web.json_response({"consumers": found})


@ENDPOINTS.add(
    "GET",
    "/v1/consumers/{consumer}",
    "describe_consumer",
    answer("The consumer.", "Consumer"),
    errors=(UnknownConsumer,),
)
async def describe_one(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """One consumer with its lag."""
    return web.json_response(describe(serving.backend, request.match_info["consumer"]))


@ENDPOINTS.add(
    "POST",
    "/v1/consumers/{consumer}/offsets",
    "commit_offsets",
    answer("Durable.", "Committed"),
    request=body("The offsets: the next that it will read.", "Commit"),
    errors=_ERRORS,
)
async def commit(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Store offsets of a consumer, all or none of them."""
    consumer = check_name(request.match_info["consumer"], what="consumer")
    asked = (await serving.asked(request, Commit)).offsets
    offsets = [_checked(serving, consumer, one, f"offsets[{i}]") for i, one in enumerate(asked)]
    _check_once(offsets)
    await unbroken(serving.backend.offsets.commit(consumer, offsets))
    return web.json_response({"committed": len(offsets)})


@ENDPOINTS.add(
    "POST",
    "/v1/consumers/{consumer}/reset",
    "reset_consumer",
    answer("The consumer as it is then.", "Consumer"),
    request=body("Where to.", "Reset"),
    errors=_ERRORS,
)
async def reset(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Move a consumer to a position in some or all partitions of a stream."""
    consumer = check_name(request.match_info["consumer"], what="consumer")
    asked = await serving.asked(request, Reset)
    handles = chosen(serving.backend, asked.stream, asked.partitions)

    def find() -> list[tuple[int, int]]:
        found = []
        for handle in handles:
            offset = found_at(handle.log, asked.to)
            offset = handle.log.high_watermark if offset is None else offset
            found.append((offset, handle.log.epoch_of(offset - 1) if offset else -1))
        return found

    now_us = serving.now_us()
    offsets = [
        ConsumerOffset(
            consumer=consumer,
            stream=asked.stream,
            partition=handle.partition,
            offset=offset,
            leader_epoch=leader_epoch,
            incarnation=handle.incarnation,
            timestamp_us=now_us,
        )
        for handle, (offset, leader_epoch) in zip(handles, await serving.in_worker(find), strict=True)
    ]
    await unbroken(serving.backend.offsets.commit(consumer, offsets))
    return web.json_response(describe(serving.backend, consumer))


@ENDPOINTS.add(
    "DELETE",
    "/v1/consumers/{consumer}",
    "forget_consumer",
    {204: Content(description="Removed.")},
    errors=(UnknownConsumer,),
)
async def forget(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Remove all offsets of a consumer."""
    await unbroken(serving.backend.offsets.forget(request.match_info["consumer"]))
    return web.Response(status=204)


def describe(backend: Backend, consumer: str) -> dict[str, Any]:
    """A consumer, as `Consumer` of the contract. Raises UnknownConsumer."""
    partitions = [_with_lag(backend, entry) for entry in backend.offsets.get(consumer)]
    return {
        "consumer": consumer,
        "partitions": partitions,
        "lag": sum(partition["lag"] or 0 for partition in partitions),
    }


def _with_lag(backend: Backend, entry: ConsumerOffset) -> dict[str, Any]:
    high_watermark = None
    try:
        handle = backend.partition(entry.stream, entry.partition)
        if entry.incarnation in ("", handle.incarnation):
            high_watermark = handle.log.high_watermark
    except LiftlogError:  # gone or offline
        pass
    return {
        "stream": entry.stream,
        "partition": entry.partition,
        "offset": entry.offset,
        "high_watermark": high_watermark,
        "lag": None if high_watermark is None else max(0, high_watermark - entry.offset),
        "leader_epoch": entry.leader_epoch,
        "incarnation": entry.incarnation,
        "committed_ms": entry.timestamp_us // 1000,
        "metadata": entry.metadata,
    }


def _checked(serving: Serving, consumer: str, asked: CommitOffset, where: str) -> ConsumerOffset:
    handle = serving.backend.partition(asked.stream, asked.partition)
    incarnation = asked.incarnation or handle.incarnation
    if incarnation != handle.incarnation:
        raise stale(handle, incarnation, f"{where}: ")
    offset = asked.offset
    if offset > handle.log.high_watermark:
        high_watermark = handle.log.high_watermark
        raise out_of_range(
            handle.log.identity,
            offset,
            handle.log.log_start_offset,
            high_watermark,
            f"{where}: offset {offset} of {handle.stream}/{handle.partition} is above the high watermark"
            f" {high_watermark}: it cannot have been read",
        )
    return ConsumerOffset(
        consumer=consumer,
        stream=handle.stream,
        partition=handle.partition,
        offset=offset,
        leader_epoch=asked.leader_epoch,
        incarnation=incarnation,
        timestamp_us=serving.now_us(),
        metadata=asked.metadata,
    )


def _check_once(offsets: Iterable[ConsumerOffset]) -> None:
    seen = set()
    for entry in offsets:
        at = (entry.stream, entry.partition)
        if at in seen:
            raise InvalidRequest(f"offsets: {entry.stream}/{entry.partition} is given twice", field="offsets")
        seen.add(at)


def chosen(backend: Backend, stream: str, numbers: Iterable[int] | None) -> list[PartitionHandle]:
    """The partitions of a request's list, in order; None: all. Raises UnknownPartition."""
    if numbers is None:
        return list(backend.partitions(stream))
    return [backend.partition(stream, number) for number in sorted(set(numbers))]
