"""Consumer groups as JSON: join, poll, begin, commit, leave; describe, reset, forget.

    join ─► any broker ─► the catalog: partitions, each under an epoch ─► begin: the leader of the offset stream
     poll ◄─┘ news, or a while                                              └─► read ─► commit, at the same leader

Who may read what is in the catalog, so any broker answers joins and polls. What counts is judged where the offset
stream is led (`groups/fencing.py`), as offsets of consumers are.

B1  A broker without a session answers no poll: what it knows may be old, and the member asks another one. Polls that
    wait are given a moment (`SESSION_S`), as sessions lapse for less when a controller dies: thousands of members that
    all went elsewhere at once would be what keeps the next session from lasting.
B2  A begin or a commit of several partitions is judged one by one: each has an answer or an error of its own.
B3  A step is of the incarnation that the stream has when it is judged. A grant of before a stream was made anew has
    another epoch than one of after, so neither counts for the other. A begin says in which one `first` was found: a
    broker that is behind may have told it, and what is before it in the new one was never read.
B4  Who has news to hear takes no place among the long polls of its caller. Others of that caller may have all places,
    and take them again at once; and what it would not hear may be what it has to give up.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from math import inf
from typing import Any, Final

from aiohttp import web

from broker.api.errors import (
    GroupFenced,
    GroupInUse,
    InvalidName,
    InvalidRequest,
    LiftlogError,
    NotReady,
    OffsetOutOfRange,
    StaleIncarnation,
    UnknownGroup,
    UnknownMember,
    UnknownPartition,
    UnknownStream,
    from_problem,
)
from broker.api.group_answers import (
    GroupBrief,
    GroupDescription,
    GroupList,
    GroupMember,
    GroupPartition,
    GroupStep,
    GroupSteps,
    HeldPartition,
    HeldShare,
)
from broker.api.group_polls import longest_poll_ms
from broker.api.permissions import of_answer, of_body, of_catalog, of_path
from broker.api.stream import check_name
from broker.groups.fencing import CommitVerdict, GroupProgress, OffsetAndEpoch, judge_begin, judge_commit, judge_fence
from broker.groups.offsets import ConsumerOffset
from broker.metadata.cluster import EPOCHS_OF_GROUPS
from broker.metadata.groups import ConsumerGroup, Member, change_key
from broker.serving.contract.acts import NO_ACT, Act
from broker.serving.contract.backend import Decided
from broker.serving.contract.endpoint import Content, Endpoints, Query, Serving, answer, body
from broker.serving.contract.schemas import (
    CommitOffset,
    GroupBegin,
    GroupCommit,
    GroupDone,
    GroupFirst,
    GroupJoin,
    GroupLeave,
    GroupPoll,
    Position,
    Reset,
)
from broker.serving.endpoints.consumers import checked, describe_all, numbers_of
from broker.serving.endpoints.resolve import resolve_all
from broker.serving.http.access import access_now
from broker.serving.http.waiting import unbroken

SESSION_S: Final = 1.0
ENDPOINTS: Final = Endpoints()
_NONE: Final = ConsumerGroup()


# -- members ---------------------------------------------------------------------------------------------------------


@ENDPOINTS.add(
    "POST",
    "/v1/groups/{group}/members",
    "join_group",
    answer("What the member may read now.", "Membership"),
    permission=of_path("consumer:write", "group") + of_body("stream:read", "streams"),
    act=NO_ACT,
    request=body("Who, and what it reads.", "GroupJoin"),
    errors=(InvalidName, UnknownStream),
)
async def join(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Join a group, or read other streams from now on."""
    name = check_name(request.match_info["group"], what="group")
    asked = await serving.asked(request, GroupJoin)
    await access_now.get().need("stream:read", set(asked.streams))
    backend = serving.backend
    for stream in sorted(set(asked.streams)):
        try:
            backend.stream(stream)
        except UnknownStream:  # members ask for one that is gone again and again: no command for each time
            await backend.catch_up()
            backend.stream(stream)
    if name not in backend.groups.named:
        await serving.names.admit("groups", name, partial(_names, serving))
    values: dict[str, Any] = {"name": name, "member": asked.member, "streams": sorted(set(asked.streams))}
    values |= {"timeout_ms": asked.timeout_ms, **({} if asked.instance is None else {"instance": asked.instance})}
    said = await unbroken(backend.change_group("join_group", values))
    backend.member_heard(name, asked.member, said["session"])
    return _told(serving, name, asked.member, said["session"])


async def _names(serving: Serving) -> Sequence[str]:
    return list(serving.backend.groups.named)


@ENDPOINTS.add(
    "POST",
    "/v1/groups/{group}/members/{member}/poll",
    "poll_group",
    answer("What the member may read now.", "Membership"),
    permission=of_path("consumer:write", "group"),
    act=NO_ACT,
    request=body("What the member has seen, and has released.", "GroupPoll"),
    errors=(UnknownMember, GroupFenced),
)
async def poll(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Say that a member lives, and wait until what it may read has changed. Ask again at once."""
    name, member = request.match_info["group"], request.match_info["member"]
    asked = await serving.asked(request, GroupPoll)
    backend = serving.backend
    kept = _checked(serving, name, member, asked)
    backend.member_heard(name, member, asked.session)
    if asked.released:
        rows = [[each.stream, each.partition, each.epoch] for each in asked.released]
        await unbroken(backend.change_group("release_partitions", {"name": name, "member": member, "partitions": rows}))
    with suppress(NotReady):  # B1
        if _group(serving, name, asked.session).has_news(member, asked.version):  # B4
            _checked(serving, name, member, asked)
            return _told(serving, name, member, asked.session)
    loop = asyncio.get_running_loop()
    end_s, lost_s = loop.time() + min(asked.wait_ms, longest_poll_ms(kept.timeout_ms)) / 1000, inf
    with serving.watching() as watcher, serving.callers.polling() if asked.wait_ms else nullcontext():
        watcher.streams = {change_key(name, member)}
        while (left_s := end_s - loop.time()) > 0 and not serving.draining.is_set():
            try:
                _checked(serving, name, member, asked)
                if _group(serving, name, asked.session).has_news(member, asked.version):  # or this broker is behind
                    break
                lost_s = inf
            except NotReady:  # B1
                lost_s = min(lost_s, loop.time())
                left_s = min(left_s, lost_s + SESSION_S - loop.time())
                if left_s <= 0:
                    raise
            await watcher.wait(left_s)
    _checked(serving, name, member, asked)
    return _told(serving, name, member, asked.session)


def _checked(serving: Serving, name: str, member: str, asked: GroupPoll) -> Member:
    """Who polls. Raises UnknownMember, or GroupFenced: another process has taken its place for good."""
    group = _group(serving, name, asked.session)
    try:
        return group.checked(member, asked.session)
    except UnknownMember:
        if asked.instance and any(kept.instance == asked.instance for kept in group.members.values()):
            raise GroupFenced(
                f"another process has joined group {name!r} as instance {asked.instance!r}", group=name
            ) from None
        raise


@ENDPOINTS.add(
    "POST",
    "/v1/groups/{group}/members/{member}/leave",
    "leave_group",
    {204: Content(description="It has left.")},
    permission=of_path("consumer:write", "group"),
    act=NO_ACT,
    request=body("Which membership ends.", "GroupLeave"),
    errors=(UnknownMember,),
)
async def leave(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Leave a group: the partitions of the member go to others at once."""
    name, member = request.match_info["group"], request.match_info["member"]
    asked = await serving.asked(request, GroupLeave)
    values = {"name": check_name(name, what="group"), "members": {member: asked.session}}
    if not (await unbroken(serving.backend.change_group("end_members", values)))["ended"]:
        raise UnknownMember(f"{member!r} is no member any more", member=member)
    return web.Response(status=204)


def _group(serving: Serving, name: str, session: int) -> ConsumerGroup:
    """As this broker knows it. Raises NotReady: it knows less than who asks, or may (B1)."""
    serving.backend.check_session()
    groups = serving.backend.groups
    if groups.last < session:
        raise NotReady(f"group {name!r}: session {session} is not known here yet")
    return groups.named.get(name, _NONE)


def _told(serving: Serving, name: str, member: str, session: int) -> web.Response:
    group = _group(serving, name, session)
    kept = group.checked(member, session)
    held = tuple(
        HeldPartition(stream=stream, partition=number, epoch=grant.epoch, is_revoked=grant.is_revoked)
        for (stream, number), grant in sorted(group.of(member).items())
    )
    told = HeldShare(
        group=name,
        member=member,
        session=session,
        version=group.version,
        timeout_ms=kept.timeout_ms,
        partitions=held,
    )
    return web.json_response(text=json.dumps(told, default=_fields))  # not `asdict`: this is answered most often


def _fields(value: HeldShare | HeldPartition) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


# -- offsets ---------------------------------------------------------------------------------------------------------


@ENDPOINTS.add(
    "POST",
    "/v1/groups/{group}/begin",
    "begin_partitions",
    answer("Where each is, durable; one that failed has `error`.", "GroupSteps"),
    permission=of_path("consumer:write", "group") + of_body("stream:read", "partitions[].stream"),
    act=NO_ACT,
    request=body("Which partitions.", "GroupBegin"),
    errors=(InvalidName,),
)
async def begin(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Begin to read partitions that are granted. From then on commits under earlier epochs are refused."""
    name = check_name(request.match_info["group"], what="group")
    asked = await serving.asked(request, GroupBegin)
    await access_now.get().need("stream:read", {one.stream for one in asked.partitions})
    serving.backend.offsets.group_offsets(name)  # or who leads them
    _check_once(asked.partitions)
    return await _steps(_step(serving, _begin_one(serving, name, asked.member, one), one) for one in asked.partitions)


async def _begin_one(serving: Serving, name: str, member: str, asked: GroupFirst) -> tuple[OffsetAndEpoch, str]:
    backend, at = serving.backend, (asked.stream, asked.partition)
    place: dict[str, Any] = {"stream": at[0], "partition": at[1], "incarnation": asked.incarnation}
    entry = checked(serving, name, CommitOffset(**place, offset=asked.first), "first")

    def decide(newest: GroupProgress) -> Decided:
        last = backend.groups.last  # before the grants (`groups.G11`)
        grant = backend.groups.named.get(name, _NONE).grants.get(at)
        verdict = judge_begin(newest, member, asked.epoch, None if grant is None else grant[:2], last)
        if verdict is CommitVerdict.APPEND and not _is_of(serving, asked.stream, entry.incarnation):
            verdict = CommitVerdict.FENCED  # B3
        return verdict, newest.at(entry.offset)

    read = entry.incarnation, asked.partition
    found = await backend.offsets.move_group(name, asked.stream, read, asked.epoch, decide)
    return found.at(entry.offset), entry.incarnation


def _is_of(serving: Serving, stream: str, incarnation: str) -> bool:
    try:
        return serving.backend.stream(stream).incarnation == incarnation
    except UnknownStream:
        return False


@ENDPOINTS.add(
    "POST",
    "/v1/groups/{group}/commit",
    "commit_group",
    answer("Where each is, durable; one that failed has `error`.", "GroupSteps"),
    permission=of_path("consumer:write", "group") + of_body("stream:read", "partitions[].stream"),
    act=NO_ACT,
    request=body("What is done.", "GroupCommit"),
    errors=(InvalidName,),
)
async def commit(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Store that records are done, under the epochs by which they were read."""
    name = check_name(request.match_info["group"], what="group")
    asked = await serving.asked(request, GroupCommit)
    await access_now.get().need("stream:read", {one.stream for one in asked.partitions})
    serving.backend.offsets.group_offsets(name)  # or who leads them
    _check_once(asked.partitions)
    return await _steps(_step(serving, _commit_one(serving, name, one), one) for one in asked.partitions)


async def _commit_one(serving: Serving, name: str, asked: GroupDone) -> tuple[OffsetAndEpoch, str]:
    at: dict[str, Any] = {"stream": asked.stream, "partition": asked.partition, "incarnation": asked.incarnation}
    entry = checked(serving, name, CommitOffset(**at, offset=asked.offset), "offset")
    done = OffsetAndEpoch(asked.offset, asked.leader_epoch if serving.backend.knows(EPOCHS_OF_GROUPS) else -1)

    def decide(newest: GroupProgress) -> Decided:
        return judge_commit(newest, asked.epoch, asked.start, asked.offset, done.leader_epoch), done

    read = entry.incarnation, asked.partition
    found = await serving.backend.offsets.move_group(name, asked.stream, read, asked.epoch, decide)
    return found.at(asked.offset), entry.incarnation


def _check_once(asked: Sequence[GroupFirst] | Sequence[GroupDone]) -> None:
    if len({(one.stream, one.partition) for one in asked}) < len(asked):
        raise InvalidRequest("partitions: one is given twice", field="partitions")


async def _step(
    serving: Serving, step: Coroutine[Any, Any, tuple[OffsetAndEpoch, str]], asked: GroupFirst | GroupDone
) -> GroupStep:
    """B2."""
    of: dict[str, Any] = {"stream": asked.stream, "partition": asked.partition, "epoch": asked.epoch}
    try:
        place, incarnation = await step
    except LiftlogError as error:
        return GroupStep(**of, offset=None, error=error.to_problem())
    leader_epoch = place.leader_epoch if serving.backend.knows(EPOCHS_OF_GROUPS) else None
    return GroupStep(**of, offset=place.offset, incarnation=incarnation, leader_epoch=leader_epoch)


async def _steps(steps: Iterator[Coroutine[Any, Any, GroupStep]]) -> web.Response:
    async def all_of_them() -> list[GroupStep]:
        return await asyncio.gather(*steps)

    return web.json_response(asdict(GroupSteps(partitions=tuple(await unbroken(all_of_them())))))


# -- for people ------------------------------------------------------------------------------------------------------


@ENDPOINTS.add(
    "GET",
    "/v1/groups",
    "list_groups",
    answer("The groups.", "Groups"),
    permission=of_answer("consumer:read"),
    act=NO_ACT,
)
async def list_all(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """All groups, by name: those that have members, and those that have offsets."""
    named, access = serving.backend.groups.named, access_now.get()
    is_strangers = access.is_strangers("consumer:read")
    names = [] if is_strangers else sorted({*named, *serving.backend.offsets.group_names()})
    found = []
    for name in access.seen("consumer:read", names, str):
        group = named.get(name, _NONE)
        found.append(GroupBrief(group=name, members=len(group.members), partitions=len(group.grants)))
    return web.json_response(asdict(GroupList(groups=tuple(found))))


@ENDPOINTS.add(
    "GET",
    "/v1/groups/{group}",
    "describe_group",
    answer("The group.", "Group"),
    permission=of_path("consumer:read", "group"),
    act=NO_ACT,
    errors=(UnknownGroup,),
)
async def describe_one(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """One group: its members, what each may read, and how far each partition is."""
    return await _described(serving, request, request.match_info["group"])


async def _described(serving: Serving, request: web.Request, name: str) -> web.Response:
    _check_known(serving, name)
    backend, group = serving.backend, serving.backend.groups.named.get(name, _NONE)
    incarnations = {info.name: info.incarnation for info in backend.streams(internal=True)}
    rows = {
        (row.stream, row.partition): row
        for row in backend.offsets.group_offsets(name).values()
        if row.offset is not None and incarnations.get(row.stream) == row.incarnation
    }
    entries = [
        ConsumerOffset(
            consumer=name,
            stream=row.stream,
            partition=row.partition,
            offset=row.offset or 0,
            incarnation=row.incarnation,
            timestamp_us=row.timestamp_us,
        )
        for row in rows.values()
    ]
    [lags] = await describe_all(serving, request, {name: entries})
    lag_of = {(each["stream"], each["partition"]): each for each in lags["partitions"]}
    partitions = []
    for at in sorted({*rows, *group.grants, *group.target}):
        grant, row, lag = group.grants.get(at), rows.get(at), lag_of.get(at, {})
        partitions.append(
            GroupPartition(
                stream=at[0],
                partition=at[1],
                member=None if grant is None else grant.member,
                epoch=grant.epoch if grant is not None else row.epoch if row is not None else 0,
                is_revoked=grant is not None and grant.is_revoked,
                offset=None if row is None else row.offset,
                high_watermark=lag.get("high_watermark"),
                lag=lag.get("lag"),
                behind_ms=lag.get("behind_ms"),
            )
        )
    members = tuple(
        GroupMember(member=each, instance=kept.instance, streams=kept.streams, timeout_ms=kept.timeout_ms)
        for each, kept in sorted(group.members.items())
    )
    told = GroupDescription(group=name, members=members, partitions=tuple(partitions), lag=lags["lag"])
    return web.json_response(asdict(told))


def _check_known(serving: Serving, name: str) -> None:
    rows = serving.backend.offsets.group_offsets(name).values()
    if name not in serving.backend.groups.named and all(row.offset is None for row in rows):
        raise UnknownGroup(f"no group {name!r}", group=name)


@ENDPOINTS.add(
    "POST",
    "/v1/groups/{group}/reset",
    "reset_group",
    answer("The group as it is then.", "Group"),
    permission=of_path("consumer:write", "group") + of_body("stream:read", "stream"),
    act=Act(("stream", "partitions", "to")),
    request=body("Where to.", "Reset"),
    errors=(UnknownGroup, GroupInUse, GroupFenced, UnknownStream, UnknownPartition, StaleIncarnation, OffsetOutOfRange),
)
async def reset(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Move a group without members to a position in some or all partitions of a stream."""
    name = check_name(request.match_info["group"], what="group")
    asked = await serving.asked(request, Reset)
    await access_now.get().need("stream:read", (asked.stream,))
    _check_known(serving, name)
    numbers = numbers_of(serving.backend, asked.stream, asked.partitions)
    positions = [Position(stream=asked.stream, partition=number, at=asked.to) for number in numbers]
    found = await resolve_all(serving, request, positions)
    for each in found:
        if "error" in each:
            raise from_problem(each["error"])
    epoch = await _fence(serving, name, forget=False)
    for each in found:
        offset = each["high_watermark"] if each["offset"] is None else each["offset"]
        read = each["incarnation"], each["partition"]
        await unbroken(_move(serving, name, asked.stream, read, epoch, OffsetAndEpoch(offset)))
    return await _described(serving, request, name)


@ENDPOINTS.add(
    "DELETE",
    "/v1/groups/{group}",
    "forget_group",
    {204: Content(description="Removed.")},
    permission=of_path("consumer:write", "group") + of_catalog("stream:read", "each stream that it has offsets of"),
    act=Act(),
    errors=(UnknownGroup, GroupInUse),
)
async def forget(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Remove a group without members, and all of its offsets."""
    name = check_name(request.match_info["group"], what="group")
    rows = serving.backend.offsets.group_offsets(name)
    await access_now.get().need("stream:read", {row.stream for row in rows.values()}, is_told=False)
    _check_known(serving, name)
    epoch = await _fence(serving, name, forget=True)
    for read, row in serving.backend.offsets.group_offsets(name).items():
        if row.offset is not None:
            with suppress(GroupFenced):  # somebody has joined since, and begun: it is another group's
                await unbroken(_move(serving, name, row.stream, read, epoch, OffsetAndEpoch(None)))
    return web.Response(status=204)


async def _fence(serving: Serving, name: str, *, forget: bool) -> int:
    values = {"name": name, "forget": forget}
    return int((await unbroken(serving.backend.change_group("fence_group", values)))["epoch"])


def _move(serving: Serving, name: str, stream: str, read: tuple[str, int], epoch: int, place: OffsetAndEpoch) -> Any:
    def decide(newest: GroupProgress) -> Decided:
        return judge_fence(newest, epoch), place

    return serving.backend.offsets.move_group(name, stream, read, epoch, decide)
