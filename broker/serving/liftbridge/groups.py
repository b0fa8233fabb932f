"""Consumer groups, as clients of Liftbridge know them: they are the groups of HTTP.

    JoinConsumerGroup ─► join_group        FetchConsumerGroupAssignments ─► poll_group ─► shares.py
    Subscribe ─► begin_partitions          SetCursor of `__group:<group>` ─► commit_group

Q1  A client names its consumer, and no session: it is that of the member of this name. An epoch below it is of an
    earlier membership, and refused.
Q2  Any broker answers. Clients are told that the leader of the offset stream coordinates, as they go there with their
    offsets, too. So there is nothing to be done when one reports it.
Q3  Whether a caller may ask is judged by an operation first, whatever is wrong with the group.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import groupby
from typing import Any, Final

from broker.api.errors import LiftlogError, Unauthorized, UnknownMember, UnknownStream
from broker.api.proto import liftbridge_pb2 as pb
from broker.api.stream import OFFSETS_STREAM
from broker.metadata.groups import ConsumerGroup, Member
from broker.serving.contract.backend import Backend
from broker.serving.liftbridge.calls import Handling, Methods
from broker.serving.liftbridge.messages import parsed
from broker.serving.liftbridge.shares import Consumer
from broker.serving.liftbridge.statuses import Code, StatusError

METHODS: Final = Methods()
CONSUMER_TIMEOUT_MS: Final = 15_000
"""As Liftbridge has it. Clients ask for their assignments after two fifths of it."""
COORDINATOR_TIMEOUT_MS: Final = 15_000
_NONE: Final = ConsumerGroup()
_EMPTY: Final = pb.Empty().SerializeToString()


@METHODS.add("JoinConsumerGroup", "poll_group", "join_group")
async def join(asking: Handling) -> None:
    """Take a part of some streams."""
    asked = parsed(pb.JoinGroup, await asking.call.message())
    _check(asked)
    if not asked.streams:
        raise StatusError(Code.INVALID_ARGUMENT, "No streams provided")
    if member_of(asking, asked) is not None:
        await _judge(asking, asked)
        raise StatusError(Code.FAILED_PRECONDITION, f"consumer {asked.consumer_id!r} is a member of the group already")
    body = {"member": asked.consumer_id, "streams": list(asked.streams), "timeout_ms": CONSUMER_TIMEOUT_MS}
    try:
        said = (await asking.ask("join_group", path={"group": asked.group_id}, body=body)).json()
    except UnknownStream as error:
        raise StatusError(Code.FAILED_PRECONDITION, error.message, error.reason, error.fields) from None
    answer = pb.JoinedGroup(
        coordinator=coordinator_of(asking.serving.backend),
        epoch=said["session"],
        consumer_timeout=CONSUMER_TIMEOUT_MS * 1_000_000,
        coordinator_timeout=COORDINATOR_TIMEOUT_MS * 1_000_000,
    )
    await asking.call.send([answer.SerializeToString()])


@METHODS.add("LeaveConsumerGroup", "poll_group", "leave_group")
async def leave(asking: Handling) -> None:
    """Give its part to the others."""
    asked = parsed(pb.LeaveGroup, await asking.call.message())
    _check(asked)
    member = await found(asking, asked)
    session = 0 if member is None else member.session
    try:
        path = {"group": asked.group_id, "member": asked.consumer_id}
        await asking.ask("leave_group", path=path, body={"session": session})
    except UnknownMember as error:
        raise _no_member(asking, asked, error) from None
    asking.shares.forget(Consumer(asked.group_id, asked.consumer_id, session))
    await asking.call.send([_EMPTY])


@METHODS.add("FetchConsumerGroupAssignments", "poll_group")
async def fetch_assignments(asking: Handling) -> None:
    """Say that a consumer lives. The answer is what it may read now."""
    asked = parsed(pb.FetchAssignments, await asking.call.message())
    _check(asked)
    session = await _session(asking, asked)
    consumer = Consumer(asked.group_id, asked.consumer_id, session)
    share = await _poll(asking, asked, session, asking.shares.leaving(consumer))
    now_s, timeout_s = asyncio.get_running_loop().time(), share["timeout_ms"] / 1_000
    epoch, partitions = asking.shares.tell(
        consumer,
        share["partitions"],
        now_s=now_s,
        timeout_s=timeout_s,
        under=_coordination(asking.serving.backend),
    )
    answer = pb.Assignments(epoch=epoch)
    for stream, numbers in groupby(partitions, key=lambda each: each[0]):
        answer.assignments.add(stream=stream, partitions=[number for _, number in numbers])
    await asking.call.send([answer.SerializeToString()])


@METHODS.add("ReportConsumerGroupCoordinator", "poll_group")
async def report(asking: Handling) -> None:
    """Take note that a coordinator does not answer: any other broker does (Q2)."""
    asked = parsed(pb.ReportCoordinator, await asking.call.message())
    _check(asked)
    if not asked.coordinator:
        raise StatusError(Code.INVALID_ARGUMENT, "No coordinator provided")
    try:
        await _poll(asking, asked, await _session(asking, asked))
    except StatusError as error:
        code = Code.FAILED_PRECONDITION if error.code is Code.NOT_FOUND else error.code
        raise StatusError(code, error.message, error.reason, error.fields) from None
    if asked.coordinator != (now := coordinator_of(asking.serving.backend)):
        raise StatusError(Code.FAILED_PRECONDITION, f"the coordinator is {now!r} now")
    await asking.call.send([_EMPTY])


def _check(asked: Any) -> None:
    for field, name in (("group_id", "groupId"), ("consumer_id", "consumerId")):
        if not getattr(asked, field):
            raise StatusError(Code.INVALID_ARGUMENT, f"No {name} provided")


async def _session(asking: Handling, asked: Any) -> int:
    """Of the consumer; of a membership that is over, if its epoch is (Q1)."""
    member = await found(asking, asked)
    return int(asked.epoch) if member is None or asked.epoch < member.session else member.session


async def _poll(asking: Handling, asked: Any, session: int, released: list[dict[str, Any]] | None = None) -> Any:
    """What the consumer holds. Raises LiftlogError, StatusError: it is no member."""
    path = {"group": asked.group_id, "member": asked.consumer_id}
    body = {"session": min(session, (1 << 63) - 1), "released": released or []}
    try:
        return (await asking.ask("poll_group", path=path, body=body)).json()
    except UnknownMember as error:
        raise _no_member(asking, asked, error) from None


async def _judge(asking: Handling, asked: Any) -> None:
    """Q3. Raises LiftlogError: the caller may not ask for the group."""
    path = {"group": asked.group_id, "member": asked.consumer_id}
    with suppress(UnknownMember):
        await asking.ask("poll_group", path=path, body={"session": 0})


def _no_member(asking: Handling, asked: Any, error: LiftlogError) -> StatusError:
    if not asking.serving.backend.groups.named.get(asked.group_id, _NONE).members:
        return StatusError(Code.NOT_FOUND, f"no consumer group {asked.group_id!r}", "unknown_group")
    return StatusError(Code.FAILED_PRECONDITION, error.message, error.reason, error.fields)


def member_of(asking: Handling, asked: Any) -> Member | None:
    """A consumer, as far as this broker knows."""
    return asking.serving.backend.groups.named.get(asked.group_id, _NONE).members.get(asked.consumer_id)


async def found(asking: Handling, asked: Any) -> Member | None:
    """A consumer; also of one that is not known here yet. Raises LiftlogError: the caller may not ask."""
    if member_of(asking, asked) is None:
        await _judge(asking, asked)
        await asking.serving.backend.catch_up()
    return member_of(asking, asked)


def coordinator_of(backend: Backend) -> str:
    """The broker that clients are to ask (Q2)."""
    with suppress(LiftlogError):
        for where in backend.whereabouts(OFFSETS_STREAM):
            if where.leader is not None:
                return where.leader.id
    return backend.broker_id


def _coordination(backend: Backend) -> tuple[str, int]:
    """The coordinator, and since which election it is (`shares.W4`)."""
    with suppress(LiftlogError):
        for where in backend.whereabouts(OFFSETS_STREAM):
            return coordinator_of(backend), where.leader_epoch
    return backend.broker_id, -1


async def told_of(asking: Handling, group: str) -> Any:
    """A group, for the metadata. One without members is none, and so is one that the caller may not use."""
    kept = asking.serving.backend.groups.named.get(group, _NONE)
    if kept.members:
        try:
            await _judge(asking, pb.LeaveGroup(group_id=group, consumer_id="-"))
        except Unauthorized:
            kept = _NONE
    if not kept.members:
        return pb.Group(id=group, error=pb.Group.UNKNOWN_GROUP)
    return pb.Group(id=group, coordinator=coordinator_of(asking.serving.backend), epoch=kept.version)
