"""Consumers as JSON: who reads what, how far behind, commit, reset, forget.

Lag is computed when asked, against the high watermark of the partition that was read. If the stream was
deleted or re-created since, there is no such partition any more: no high watermark, no lag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from aiohttp import web

from broker.api.errors import (
    InvalidName,
    InvalidRequest,
    LiftlogError,
    NotLeader,
    NotReady,
    OffsetOutOfRange,
    StaleIncarnation,
    UnknownConsumer,
    UnknownPartition,
    UnknownStream,
    from_problem,
)
from broker.api.permissions import of_answer, of_body, of_catalog, of_path
from broker.api.stream import check_name
from broker.groups.offsets import ConsumerOffset
from broker.serving.contract.acts import NO_ACT, Act
from broker.serving.contract.backend import Backend
from broker.serving.contract.endpoint import Content, Endpoints, Query, Serving, answer, body
from broker.serving.contract.schemas import AtOffset, Commit, CommitOffset, Position, Reset
from broker.serving.endpoints.records import stale
from broker.serving.endpoints.resolve import resolve_all
from broker.serving.http.access import access_now
from broker.serving.http.waiting import unbroken
from broker.storage.read import out_of_range

ENDPOINTS: Final = Endpoints()
_ERRORS: Final = (InvalidName, UnknownStream, UnknownPartition, StaleIncarnation, OffsetOutOfRange)


@ENDPOINTS.add(
    "GET",
    "/v1/consumers",
    "list_consumers",
    answer("The consumers.", "Consumers"),
    permission=of_answer("consumer:read"),
    act=NO_ACT,
)
async def list_all(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """All consumers with their lag, by name."""
    entries, access = {}, access_now.get()
    there = () if access.is_strangers("consumer:read") else serving.backend.offsets.consumers()
    for consumer in access.seen("consumer:read", there, str):
        with suppress(UnknownConsumer):  # forgotten meanwhile
            entries[consumer] = serving.backend.offsets.get(consumer)
    return web.json_response({"consumers": await describe_all(serving, request, entries)})


@ENDPOINTS.add(
    "GET",
    "/v1/consumers/{consumer}",
    "describe_consumer",
    answer("The consumer.", "Consumer"),
    permission=of_path("consumer:read", "consumer"),
    act=NO_ACT,
    errors=(UnknownConsumer,),
)
async def describe_one(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """One consumer with its lag."""
    return web.json_response(await describe(serving, request, request.match_info["consumer"]))


@ENDPOINTS.add(
    "POST",
    "/v1/consumers/{consumer}/offsets",
    "commit_offsets",
    answer("Durable.", "Committed"),
    permission=of_path("consumer:write", "consumer") + of_body("stream:read", "offsets[].stream"),
    act=NO_ACT,
    request=body("The offsets: the next that it will read.", "Commit"),
    errors=_ERRORS,
)
async def commit(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Store offsets of a consumer, all or none of them."""
    consumer = check_name(request.match_info["consumer"], what="consumer")
    asked = (await serving.asked(request, Commit)).offsets
    await access_now.get().need("stream:read", {one.stream for one in asked})
    offsets = [checked(serving, consumer, one, f"offsets[{i}]") for i, one in enumerate(asked)]
    _check_once(offsets)
    await _admit(serving, consumer)
    await unbroken(serving.backend.offsets.commit(consumer, offsets))
    return web.json_response({"committed": len(offsets)})


@ENDPOINTS.add(
    "POST",
    "/v1/consumers/{consumer}/reset",
    "reset_consumer",
    answer("The consumer as it is then.", "Consumer"),
    permission=of_path("consumer:write", "consumer") + of_body("stream:read", "stream"),
    act=Act(("stream", "partitions", "to")),
    request=body("Where to.", "Reset"),
    errors=_ERRORS,
)
async def reset(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Move a consumer to a position in some or all partitions of a stream."""
    consumer = check_name(request.match_info["consumer"], what="consumer")
    asked = await serving.asked(request, Reset)
    await access_now.get().need("stream:read", (asked.stream,))
    numbers = numbers_of(serving.backend, asked.stream, asked.partitions)
    positions = [Position(stream=asked.stream, partition=number, at=asked.to) for number in numbers]
    offsets = []
    for found in await resolve_all(serving, request, positions):
        if "error" in found:
            raise from_problem(found["error"])
        offset = found["high_watermark"] if found["offset"] is None else found["offset"]
        offsets.append(
            ConsumerOffset(
                consumer=consumer,
                stream=asked.stream,
                partition=found["partition"],
                offset=offset,
                leader_epoch=found["leader_epoch"],
                incarnation=found["incarnation"],
                timestamp_us=serving.now_us(),
            )
        )
    await _admit(serving, consumer)
    known = {}
    with suppress(UnknownConsumer):
        known = {(entry.stream, entry.partition): entry for entry in serving.backend.offsets.get(consumer)}
    await unbroken(serving.backend.offsets.commit(consumer, offsets))
    known |= {(entry.stream, entry.partition): entry for entry in offsets}
    try:
        entries = serving.backend.offsets.get(consumer)
    except (NotLeader, NotReady, UnknownConsumer):  # it is done: an error would say that it may be tried again
        entries = [known[at] for at in sorted(known)]
    return web.json_response((await describe_all(serving, request, {consumer: entries}))[0])


async def _admit(serving: Serving, consumer: str) -> None:
    """Raises LimitReached: its caller makes too many."""

    async def there() -> list[str]:
        return serving.backend.offsets.consumers()

    if not serving.backend.offsets.knows(consumer):
        await serving.names.admit("consumers", consumer, there)


@ENDPOINTS.add(
    "DELETE",
    "/v1/consumers/{consumer}",
    "forget_consumer",
    {204: Content(description="Removed.")},
    permission=of_path("consumer:write", "consumer") + of_catalog("stream:read", "each stream that it has offsets of"),
    act=Act(),
    errors=(UnknownConsumer,),
)
async def forget(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Remove all offsets of a consumer."""
    consumer, access = request.match_info["consumer"], access_now.get()
    streams = {entry.stream for entry in serving.backend.offsets.get(consumer)}
    await access.need("stream:read", streams, is_told=False)
    await unbroken(serving.backend.offsets.forget(consumer))
    return web.Response(status=204)


async def describe(serving: Serving, request: web.Request, consumer: str) -> dict[str, Any]:
    """A consumer, as `Consumer` of the contract. Raises UnknownConsumer."""
    entries = serving.backend.offsets.get(consumer)
    return (await describe_all(serving, request, {consumer: entries}))[0]


async def describe_all(
    serving: Serving, request: web.Request, consumers: Mapping[str, Sequence[ConsumerOffset]]
) -> list[dict[str, Any]]:
    """Consumers with their lag; of partitions that are led elsewhere their leaders are asked, once for all."""
    ends: dict[tuple[str, int], _End] = {}
    for at in {(entry.stream, entry.partition) for entries in consumers.values() for entry in entries}:
        ends[at] = _end_here(serving.backend, *at)
    asked = [at for at, end in ends.items() if end is UNKNOWN]
    if asked:
        positions = [Position(stream=stream, partition=number, at="latest") for stream, number in asked]
        for at, found in zip(asked, await resolve_all(serving, request, positions), strict=True):
            if "error" not in found:
                ends[at] = _End(found["incarnation"], found["high_watermark"])
    found = {
        consumer: [_with_lag(entry, ends[entry.stream, entry.partition]) for entry in entries]
        for consumer, entries in consumers.items()
    }
    await _find_ages(serving, request, [partition for partitions in found.values() for partition in partitions])
    return [_described(consumer, partitions) for consumer, partitions in found.items()]


async def _find_ages(serving: Serving, request: web.Request, partitions: Sequence[dict[str, Any]]) -> None:
    """Fill `behind_ms` in: of those that have a lag their leaders are asked, once for all."""
    lagging = [partition for partition in partitions if partition["lag"]]
    places = sorted({(each["stream"], each["partition"], each["offset"]) for each in lagging})
    positions = [Position(stream=stream, partition=n, at=AtOffset(offset=offset)) for stream, n, offset in places]
    answers = await resolve_all(serving, request, positions) if positions else []
    ages_ms = {place: _age_ms(answer, serving.now_us()) for place, answer in zip(places, answers, strict=True)}
    for each in lagging:
        each["behind_ms"] = ages_ms[each["stream"], each["partition"], each["offset"]]


def _age_ms(answer: Mapping[str, Any], now_us: int) -> int | None:
    """As its leader says it. One of an earlier release does not: then by the clock here."""
    age_ms: int | None = answer.get("age_ms")
    timestamp_us: int | None = answer.get("timestamp_us")
    return age_ms if age_ms is not None or timestamp_us is None else max(0, now_us - timestamp_us) // 1000


def _described(consumer: str, partitions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "consumer": consumer,
        "partitions": partitions,
        "lag": sum(partition["lag"] or 0 for partition in partitions),
    }


class _End(NamedTuple):
    """Where a partition ends; of which incarnation of its stream."""

    incarnation: str
    high_watermark: int | None


GONE: Final = _End("", None)
UNKNOWN: Final = _End("?", None)


def _end_here(backend: Backend, stream: str, partition: int) -> _End:
    try:
        handle = backend.partition(stream, partition)
    except (UnknownStream, UnknownPartition):
        return GONE
    except LiftlogError:  # not led here, or offline
        return UNKNOWN
    end = handle.end
    return UNKNOWN if end is None else _End(handle.incarnation, end)


def _with_lag(entry: ConsumerOffset, end: _End) -> dict[str, Any]:
    high_watermark = end.high_watermark if entry.incarnation in ("", end.incarnation) else None
    return {
        "stream": entry.stream,
        "partition": entry.partition,
        "offset": entry.offset,
        "high_watermark": high_watermark,
        "lag": None if high_watermark is None else max(0, high_watermark - entry.offset),
        "behind_ms": 0 if high_watermark is not None and high_watermark <= entry.offset else None,
        "unknown": end is UNKNOWN,
        "leader_epoch": entry.leader_epoch,
        "incarnation": entry.incarnation,
        "committed_ms": entry.timestamp_us // 1000,
        "metadata": entry.metadata,
    }


def checked(serving: Serving, consumer: str, asked: CommitOffset, where: str) -> ConsumerOffset:
    """An offset that may be stored. Raises UnknownStream, UnknownPartition, StaleIncarnation, OffsetOutOfRange."""
    offset = asked.offset
    entry: dict[str, Any] = {"consumer": consumer, "stream": asked.stream, "partition": asked.partition}
    entry |= {"offset": offset, "leader_epoch": asked.leader_epoch, "metadata": asked.metadata}
    try:
        handle = serving.backend.partition(asked.stream, asked.partition)
    except (NotLeader, NotReady):  # its leader knows where it ends; who commits has read from it
        info = serving.backend.stream(asked.stream)
        incarnation = asked.incarnation or info.incarnation
        info.check_incarnation(incarnation)
        return ConsumerOffset(**entry, incarnation=incarnation, timestamp_us=serving.now_us())
    incarnation = asked.incarnation or handle.incarnation
    if incarnation != handle.incarnation:
        raise stale(handle, incarnation, f"{where}: ")
    high_watermark = handle.end
    if high_watermark is not None and offset > high_watermark:
        raise out_of_range(
            handle.log.state.identity,
            offset,
            handle.log.state.log_start_offset,
            high_watermark,
            f"{where}: offset {offset} of {handle.stream}/{handle.partition} is above the high watermark"
            f" {high_watermark}: it cannot have been read",
        )
    return ConsumerOffset(**entry, incarnation=incarnation, timestamp_us=serving.now_us())


def _check_once(offsets: Iterable[ConsumerOffset]) -> None:
    seen = set()
    for entry in offsets:
        at = (entry.stream, entry.partition)
        if at in seen:
            raise InvalidRequest(f"offsets: {entry.stream}/{entry.partition} is given twice", field="offsets")
        seen.add(at)


def numbers_of(backend: Backend, stream: str, numbers: Iterable[int] | None) -> list[int]:
    """The partitions of a request's list, in order; None: all. Raises UnknownStream."""
    if numbers is None:
        return list(range(backend.stream(stream).settings.partitions))
    return sorted(set(numbers))
