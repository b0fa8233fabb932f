"""Streams as JSON: create, describe, list, alter, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from broker.api.errors import (
    InvalidName,
    InvalidSetting,
    InvalidSubject,
    LiftlogError,
    ReadOnly,
    StreamExists,
    UnknownSetting,
    UnknownStream,
)
from broker.api.misfit import Misfit
from broker.api.stream import check_name
from broker.metadata.catalog import StreamInfo
from broker.serving.contract.backend import Backend, PartitionHandle
from broker.serving.contract.endpoint import Content, Endpoints, Query, Serving, answer, body, boolean, refused
from broker.serving.http.body import read_json
from broker.serving.http.waiting import unbroken

Gathered = tuple[StreamInfo, Sequence[PartitionHandle], list[str]]


ENDPOINTS: Final = Endpoints()
_SETTINGS_ERRORS: Final = (UnknownSetting, InvalidSetting, InvalidSubject)


@ENDPOINTS.add(
    "POST",
    "/v1/streams",
    "create_stream",
    answer("Created.", "CreatedStream", 201) | answer("It existed, with the same settings.", "CreatedStream"),
    request=body("Name and settings.", "NewStream"),
    errors=(InvalidName, *_SETTINGS_ERRORS, StreamExists),
)
async def create(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Create a stream. Settings that are not given have the broker's defaults."""
    values = await read_json(request)
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise refused(Misfit("must be the name of the stream, as text", name, "name"))
    check_name(name)
    info, created = await unbroken(serving.backend.create_stream(name, values))
    status, headers = 201 if created else 200, {"Location": f"/v1/streams/{name}"}
    return await answer_one(serving, info, {"created": created}, status=status, headers=headers)


@ENDPOINTS.add(
    "GET",
    "/v1/streams",
    "list_streams",
    answer("The streams.", "Streams"),
    query=(boolean("internal", "With the broker's own streams, whose names begin with `__`."),),
)
async def list_all(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """All streams, by name."""
    backend = serving.backend
    gathered = [_gather(backend, info) for info in backend.streams(internal=query["internal"])]
    return await serving.json_answer(_render_all, gathered, leader_of(backend))


@ENDPOINTS.add(
    "GET",
    "/v1/streams/{stream}",
    "describe_stream",
    answer("The stream.", "Stream"),
    errors=(UnknownStream,),
)
async def describe_one(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """One stream with its partitions."""
    return await answer_one(serving, serving.backend.stream(request.match_info["stream"]))


@ENDPOINTS.add(
    "PATCH",
    "/v1/streams/{stream}",
    "alter_stream",
    answer("The altered stream.", "Stream"),
    request=body("The settings to change.", "AlteredSettings"),
    errors=(UnknownStream, *_SETTINGS_ERRORS, ReadOnly),
)
async def alter(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Change settings of a stream."""
    info = changeable(serving, request)
    values = await read_json(request)
    if not values:
        raise refused(Misfit("must name at least one setting", values))
    return await answer_one(serving, await unbroken(serving.backend.alter_stream(info.name, values)))


@ENDPOINTS.add(
    "DELETE",
    "/v1/streams/{stream}",
    "delete_stream",
    {204: Content(description="Deleted.")},
    errors=(UnknownStream, ReadOnly),
)
async def delete(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Delete a stream and its records."""
    info = changeable(serving, request)
    await unbroken(serving.backend.delete_stream(info.name))
    return web.Response(status=204)


def changeable(serving: Serving, request: web.Request) -> StreamInfo:
    """The stream of the path. Raises UnknownStream; ReadOnly for the broker's own."""
    info = serving.backend.stream(request.match_info["stream"])
    if info.internal:
        raise ReadOnly(f"stream {info.name!r} is internal: it can only be read", stream=info.name)
    return info


async def answer_one(
    serving: Serving, info: StreamInfo, more: Mapping[str, Any] | None = None, **answer: Any
) -> web.Response:
    """Answer with one stream; `more`: keys to add."""
    gathered, leader = _gather(serving.backend, info), leader_of(serving.backend)
    return await serving.json_answer(lambda: {**_render(gathered, leader), **(more or {})}, **answer)


def _gather(backend: Backend, info: StreamInfo) -> Gathered:
    """What to describe; on the loop. A stream that is offline says why, and has no partitions."""
    try:
        return info, backend.partitions(info.name), []
    except LiftlogError as error:
        return info, (), [f"offline ({error.reason}): {error}"]


def _render_all(gathered: Sequence[Gathered], leader: dict[str, str]) -> dict[str, Any]:
    return {"streams": [_render(one, leader) for one in gathered]}


def _render(gathered: Gathered, leader: dict[str, str]) -> dict[str, Any]:
    """A stream and its partitions, as `Stream` of the contract; in a worker: there may be file sizes to ask for."""
    info, handles, warnings = gathered
    return {
        "name": info.name,
        "incarnation": info.incarnation,
        "created_ms": info.created_us // 1000,
        "internal": info.internal,
        "paused": info.paused,
        "read_only": info.read_only,
        "settings": info.settings.as_dict(),
        "reply_acks_effective": info.reply_acks_effective,
        "warnings": [*info.warnings, *warnings],
        "partitions": [_partition(handle, leader) for handle in handles],
    }


def _partition(handle: PartitionHandle, leader: dict[str, str]) -> dict[str, Any]:
    log = handle.log
    return {
        "partition": handle.partition,
        "leader": leader,
        "replicas": [leader["id"]],
        "isr": [leader["id"]],
        "leader_epoch": handle.leader_epoch,
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
        "bytes": log.byte_count,
        "segments": log.segment_count,
        "lost_ranges": [list(lost) for lost in log.lost_ranges],
    }


def leader_of(backend: Backend) -> dict[str, str]:
    """Id and HTTP address of the leader: with one broker, always itself."""
    me = backend.broker_id
    return {"id": me, "http": next((str(b["http"]) for b in backend.brokers() if b["id"] == me), "")}
