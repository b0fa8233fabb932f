"""Streams as JSON: create, describe, list, alter, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

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
from broker.api.permissions import of_answer, of_body, of_catalog, of_path
from broker.api.stream import check_name
from broker.metadata.catalog import StreamInfo
from broker.metadata.info import answered_by, growth_of
from broker.metadata.session import lapse_ms
from broker.serving.contract.acts import NO_ACT, SETTINGS, Act
from broker.serving.contract.backend import Backend, PartitionHandle, Whereabouts
from broker.serving.contract.endpoint import Content, Endpoints, Query, Serving, answer, body, boolean, refused
from broker.serving.http.access import access_now
from broker.serving.http.peers import check_position, is_from_peer
from broker.serving.http.waiting import unbroken


class Gathered(NamedTuple):
    """Facts to describe a stream by. `handles`: those of the partitions that are led here, by number."""

    info: StreamInfo
    whereabouts: Sequence[Whereabouts]
    handles: Mapping[int, PartitionHandle]
    warnings: list[str]

    @property
    def elsewhere(self) -> list[Whereabouts]:
        return [where for where in self.whereabouts if where.partition not in self.handles]


SETTINGS_BYTES_MAX: Final = 64 << 10
"""JSON body with the settings of a stream."""
SERVED_S: Final = 3.0
SERVED_PAUSE_S: Final = 0.05
ACKS_OFF: Final = "acks are off: another stream answers the same subjects"
UNCAPTURED: Final = "uncaptured"
"""In the answer to another broker: what `Backend.uncaptured` says, for the creator of the stream."""
SHOWN_COUNT: Final = 16
"""Partitions that a warning names."""
ENDPOINTS: Final = Endpoints()
_SETTINGS_ERRORS: Final = (UnknownSetting, InvalidSetting, InvalidSubject)


@ENDPOINTS.add(
    "POST",
    "/v1/streams",
    "create_stream",
    answer("Created.", "CreatedStream", 201) | answer("It existed, with the same settings.", "CreatedStream"),
    permission=of_body("stream:create", "name")
    + of_body("subject:capture", "subject")
    + of_catalog("stream:admin", "each stream of the same group"),
    act=Act(("name", *SETTINGS)),
    request=body("Name and settings.", "NewStream"),
    errors=(InvalidName, *_SETTINGS_ERRORS, StreamExists),
)
async def create(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Create a stream. Settings that are not given have the broker's defaults."""
    values = await serving.json_object(request, SETTINGS_BYTES_MAX)
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise refused(Misfit("must be the name of the stream, as text", name, "name"))
    check_name(name)
    await access_now.get().need("stream:create", (name,))
    await access_now.get().need("subject:capture", captured(values))
    others = grouped(serving.backend, name, values)
    await access_now.get().need("stream:admin", others, is_told=False)
    await _admit(serving, name)
    beside = others if access_now.get().is_bounded else None
    info, created = await unbroken(serving.backend.create_stream(name, values, beside=beside))
    warnings = await until_served(serving, request, info)
    if others:
        warnings.append(f"it shares the messages of its group with {', '.join(others[:SHOWN_COUNT])}")
    status, headers = 201 if created else 200, {"Location": f"/v1/streams/{name}"}
    more = {"created": created}
    return await answer_one(
        serving, request, info, more, warnings=warnings, of_capture=True, status=status, headers=headers
    )


async def _admit(serving: Serving, name: str) -> None:
    """Raises LimitReached: its caller makes too many."""

    async def there() -> list[str]:
        return [info.name for info in serving.backend.streams(internal=True)]

    try:
        serving.backend.stream(name)
    except UnknownStream:
        await serving.names.admit("streams", name, there)


def captured(values: Mapping[str, Any]) -> list[str]:
    """The subjects that a stream with these settings captures, as far as they say it: the others are derived from its
    subject, and begin as it does."""
    subject = values.get("subject")
    return [] if subject is None else [str(subject)]


def grouped(backend: Backend, name: str, values: Mapping[str, Any]) -> list[str]:
    """The other streams of the group of one with these settings: it would take messages away from them."""
    group = values.get("group")
    streams = backend.streams() if group is not None else ()
    return [info.name for info in streams if info.name != name and info.settings.group == group]


async def until_served(
    serving: Serving, request: web.Request, info: StreamInfo, *, within_s: float | None = None
) -> list[str]:
    """Wait until the leaders of a stream capture and answer, by the settings and the state that it has now: that holds
    for what is published next. If somebody changes it again meanwhile, these are the ones that it has then. Or until
    time is up (`SERVED_S`): one that stands still does not answer.

    Returns:
        Warnings for the answer: the partitions of which that is not known in the end.
    """
    within_s = SERVED_S if within_s is None else within_s
    path, pause_s, late = f"/v1/streams/{info.name}", SERVED_PAUSE_S / 8, list[int]()
    position: int | None = None
    try:
        async with asyncio.timeout(within_s):
            while (now := serving.backend.stream(info.name)).incarnation == info.incarnation:
                if position is None or now is not info:
                    info, position = now, await serving.backend.position()  # which has this change
                late = _late(gathered := _gather(serving.backend, info), info, _Told(()))
                if gathered.elsewhere:
                    answers = await _ask_others(serving, request, [gathered], path, position)
                    late = _late(gathered, info, _Told([answer] for answer in answers if _goes_by(answer, info)))
                if not late:
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, SERVED_PAUSE_S)
    except TimeoutError:
        return [_not_served(late, within_s)]
    except UnknownStream:
        pass
    return []


def _late(gathered: Gathered, info: StreamInfo, told: _Told) -> list[int]:
    """The partitions whose leaders do not go by this, as far as is known."""

    def goes_by(where: Whereabouts) -> bool:
        if (handle := gathered.handles.get(where.partition)) is not None:
            return not handle.is_changing and _terms(handle.goes_by or info) == _terms(info)
        return told.of(info.incarnation, where) is not None

    return [where.partition for where in gathered.whereabouts if not goes_by(where)]


def _not_served(partitions: Sequence[int], within_s: float) -> str:
    shown = ", ".join(map(str, partitions[:SHOWN_COUNT])) + ", ..." * (len(partitions) > SHOWN_COUNT)
    return (
        f"partition {shown}: no leader has said within {within_s:g} s that it goes by this. Until it does, messages "
        "may be missed, or taken as before: a publisher that asks for acks is told"
    )


async def until_changed(serving: Serving, request: web.Request, info: StreamInfo) -> list[str]:
    """As `until_served`, of a change that was committed. A leader that does not hear of it goes on as before, for as
    long as it has a session: it renews none without having the change. Who lives may lead until then."""
    lengths = (lapse_ms(each["session_ms"]) / 1000 for each in serving.backend.brokers() if each["live"])
    return await until_served(serving, request, info, within_s=max([SERVED_S, *lengths]))


def _terms(info: StreamInfo) -> tuple[str, Mapping[str, Any], bool, bool]:
    """What records are taken by."""
    return info.incarnation, info.settings.as_dict(), info.paused, info.read_only


def _goes_by(answer: Mapping[str, Any], info: StreamInfo) -> bool:
    """Whether another broker has said that its partitions go by this. Another release may have other settings."""
    settings = info.settings.as_dict()
    return (answer["paused"], answer["read_only"]) == (info.paused, info.read_only) and all(
        settings.get(key, value) == value for key, value in answer["settings"].items()
    )


@ENDPOINTS.add(
    "GET",
    "/v1/streams",
    "list_streams",
    answer("The streams.", "Streams"),
    permission=of_answer("stream:read"),
    act=NO_ACT,
    query=(boolean("internal", "With the broker's own streams, whose names begin with `__`."),),
)
async def list_all(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """All streams, by name."""
    backend = serving.backend
    infos = access_now.get().seen("stream:read", backend.streams(internal=query["internal"]), attrgetter("name"))
    gathered = [_gather(backend, info) for info in infos]
    internal = str(query["internal"]).lower()
    answers = await _ask_others(serving, request, gathered, "/v1/streams", internal=internal)
    return await serving.json_answer(_render_all, gathered, _Told(answer["streams"] for answer in answers))


@ENDPOINTS.add(
    "GET",
    "/v1/streams/{stream}",
    "describe_stream",
    answer("The stream.", "Stream"),
    permission=of_path("stream:read", "stream"),
    act=NO_ACT,
    errors=(UnknownStream,),
)
async def describe_one(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """One stream with its partitions."""
    await check_position(serving.backend, request)
    return await answer_one(serving, request, serving.backend.stream(request.match_info["stream"]))


@ENDPOINTS.add(
    "PATCH",
    "/v1/streams/{stream}",
    "alter_stream",
    answer("The altered stream.", "Stream"),
    permission=of_path("stream:admin", "stream"),
    act=Act(SETTINGS),
    request=body("The settings to change.", "AlteredSettings"),
    errors=(UnknownStream, *_SETTINGS_ERRORS, ReadOnly),
)
async def alter(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Change settings of a stream."""
    info = changeable(serving, request)
    values = await serving.json_object(request, SETTINGS_BYTES_MAX)
    if not values:
        raise refused(Misfit("must name at least one setting", values))
    info = await unbroken(serving.backend.alter_stream(info.name, values))
    warnings = await until_changed(serving, request, info)
    return await answer_one(serving, request, info, warnings=warnings)


@ENDPOINTS.add(
    "DELETE",
    "/v1/streams/{stream}",
    "delete_stream",
    {204: Content(description="Deleted.")},
    permission=of_path("stream:admin", "stream"),
    act=Act(),
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
    serving: Serving,
    request: web.Request,
    info: StreamInfo,
    more: Mapping[str, Any] | None = None,
    *,
    warnings: Sequence[str] = (),
    of_capture: bool = False,
    **answer: Any,
) -> web.Response:
    """Answer with one stream; `more`: keys to add; `warnings`: besides its own. `of_capture`: with those of its leaders
    that cannot capture it."""
    gathered = _gather(serving.backend, info)
    uncaptured, more = _uncaptured(serving.backend, gathered), {**(more or {})}
    if is_from_peer(request):
        gathered = _as_led(gathered)
        more[UNCAPTURED] = uncaptured
    answers = await _ask_others(serving, request, [gathered], f"/v1/streams/{info.name}")
    gathered.warnings.extend(warnings)
    if of_capture:
        gathered.warnings.extend([*uncaptured, *(text for each in answers for text in each.get(UNCAPTURED, ()))])
    told = _Told([each] for each in answers)
    return await serving.json_answer(lambda: {**_render(gathered, told), **more}, **answer)


def _uncaptured(backend: Backend, gathered: Gathered) -> list[str]:
    """Why this broker does not capture what it leads of a stream; it names itself where it is not the only one."""
    told = backend.uncaptured(gathered.info) if gathered.handles else []
    return told if len(backend.brokers()) < 2 else [f"broker {backend.broker_id}: {each}" for each in told]


def _gather(backend: Backend, info: StreamInfo) -> Gathered:
    """Gather the facts; on the loop. A stream that is offline says why, and has no partitions."""
    info = _as_told(info)
    try:
        where = backend.whereabouts(info.name)
        return Gathered(info, where, {handle.partition: handle for handle in backend.partitions(info.name)}, [])
    except LiftlogError as error:
        return Gathered(info, (), {}, [f"offline ({error.reason}): {error}"])


def _as_told(info: StreamInfo) -> StreamInfo:
    """Without the names of other streams that the caller may not see."""
    named = {other for warning in info.warnings if (other := answered_by(warning)) is not None}
    hidden = named - {*access_now.get().seen("stream:read", named, str)}
    if not hidden:
        return info
    told = (ACKS_OFF if answered_by(warning) in hidden else warning for warning in info.warnings)
    return replace(info, warnings=tuple(told))


def _as_led(gathered: Gathered) -> Gathered:
    """For another broker: with the settings and the state that all partitions go by which are led here, and nothing of
    those that are changing."""
    info = gathered.info
    gathered = gathered._replace(handles={at: each for at, each in gathered.handles.items() if not each.is_changing})
    former = (each.goes_by for each in gathered.handles.values() if each.goes_by is not None)
    return gathered._replace(info=next((each for each in former if _terms(each) != _terms(info)), info))


async def _ask_others(
    serving: Serving, request: web.Request, gathered: Sequence[Gathered], path: str, position: int = 0, **query: str
) -> list[Any]:
    """Ask the leaders of partitions that are not led here (`peers.E1`)."""
    if is_from_peer(request):
        return []
    me = serving.backend.broker_id
    leaders = {where.leader.http for one in gathered for where in one.elsewhere if where.leader is not None}
    leaders -= {str(each["http"]) for each in serving.backend.brokers() if each["id"] == me}
    return await serving.peers.ask_all(leaders, "GET", path, query=query, position=position) if leaders else []


class _Told:
    """The words of other brokers on partitions that they lead."""

    def __init__(self, answers: Iterable[Iterable[Any]]) -> None:
        self._partitions: dict[tuple[str, int], dict[str, Any]] = {}
        for stream in (stream for streams in answers for stream in streams):
            for partition in stream["partitions"]:
                if partition["log_end_offset"] is not None:
                    self._partitions[stream["incarnation"], partition["partition"]] = partition

    def of(self, incarnation: str, where: Whereabouts) -> dict[str, Any] | None:
        """A partition as its leader describes it; None: nobody has, or a former leader did."""
        found = self._partitions.get((incarnation, where.partition))
        return found if found is not None and found["leader_epoch"] >= where.leader_epoch else None


def _render_all(gathered: Sequence[Gathered], told: _Told) -> dict[str, Any]:
    return {"streams": [_render(one, told) for one in gathered]}


def _render(gathered: Gathered, told: _Told) -> dict[str, Any]:
    """A stream and its partitions, as `Stream` of the contract; in a worker: there may be file sizes to ask for."""
    info, whereabouts, handles, warnings = gathered
    return {
        "name": info.name,
        "incarnation": info.incarnation,
        "created_ms": info.created_us // 1000,
        "internal": info.internal,
        "paused": info.paused,
        "read_only": info.read_only,
        "settings": info.settings.as_dict(),
        "reply_acks_effective": info.reply_acks_effective,
        "replication_factor": min((where.replication_factor for where in whereabouts), default=None),
        "min_insync_replicas": max((where.min_insync_replicas for where in whereabouts), default=None),
        "warnings": [*info.warnings, *(each for each in growth_of(info) if each not in info.warnings), *warnings],
        "partitions": [
            told.of(info.incarnation, where) or _partition(where, handles.get(where.partition)) for where in whereabouts
        ],
    }


def _partition(where: Whereabouts, handle: PartitionHandle | None) -> dict[str, Any]:
    log = None if handle is None else handle.log
    return {
        "partition": where.partition,
        "leader": None if where.leader is None else {"id": where.leader.id, "http": where.leader.http},
        "replicas": list(where.replicas),
        "isr": list(where.isr),
        "leader_epoch": where.leader_epoch if handle is None else handle.leader_epoch,
        "log_start_offset": log and log.state.log_start_offset,
        "high_watermark": handle and handle.end,
        "log_end_offset": log and log.state.log_end_offset,
        "bytes": log and log.state.byte_count,
        "segments": log and log.state.segment_count,
        "lost_ranges": [list(lost) for lost in log.state.lost_ranges] if log is not None else [],
        "replica_lag": {} if handle is None else dict(handle.lags()),
        "superseded_to": log and log.state.superseded[0],
    }


def leader_of(backend: Backend) -> dict[str, str]:
    """Id and HTTP address of this broker: it leads what it says something of."""
    me = backend.broker_id
    return {"id": me, "http": next((str(b["http"]) for b in backend.brokers() if b["id"] == me), "")}
