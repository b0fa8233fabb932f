"""How far a group of Liftbridge's clients is: a subscription begins its partition, and a cursor commits.

    FetchCursor ─► where the group is, less one ─► Subscribe ─► begin: a fence for commits of earlier grants
                                                       └─► records ─► SetCursor of the last one ─► commit

A client keeps its place in a cursor of the name `__group:<group>`, of the last record that is done. It is the place
that members over HTTP have, too (`endpoints/groups.py`), so `liftlog group` shows it, and moves it.

X1  A subscription is of the consumer that holds the partition, and begins it. It ends when the grant does, and when a
    later one has begun it (`shares.W5`).
X2  It goes on where the group is, whatever start it asks for. One that asks for an offset beyond has read up to there
    before, in the same membership, and goes on there, if its epoch is not below that of the grant. Else it may speak of
    a stream that was made anew since: it reads some records twice rather than pass over others.
X3  Where the group has never read, it begins at the start that its first subscription asks for. What was added since
    its consumers came (`groups.G13`) begins at its first record, also for `NEW_ONLY` and `LATEST`: all of it is new. A
    start that was found in a stream that is gone begins nothing.
X4  A cursor does not say whose it is, so it counts under the newest grant, and forward alone. Who has lost its
    partition can commit what it has done; it cannot take back what others have.
X5  A cursor has no leader epoch. The one of its partition as it is committed is stored: what was read is of that one or
    an earlier one, and what comes in its place, by an unclean election or where a power cut took what was not synced,
    is of a later one. So whoever begins there sees it (`progress.A3`).
X6  What was granted before an unclean election may have been read before it, and replaced: nothing is committed under
    that grant any more, and no subscription begins or goes on: one that reads is UNAVAILABLE, so that its client comes
    again. Then the grant is given back for another, which begins at the place of the group.
X7  Where such an election has replaced records before the place of a group, no cursor moves it until it is reset. One
    of before would pass over what nobody of the group has read: the begin that hears of it is under a grant of after.
X8  Where it has kept the place, the first cursor since moves a group no further than to what was written since. It may
    be of before, and of a consumer that has begun again meanwhile: its client says at any time what it had read.
X9  A cursor beyond the end moves nothing: it is of a stream that was made anew since, and would pass over what comes
    there. Who leads the partition says where it ends, as the broker that stores the place may not know.
X10  A cursor that is asked for is of the stream that its consumer was granted, also where the broker that keeps it
    has not heard of that stream yet: from the place of a former one it would pass over what came into the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from broker.api.errors import (
    GroupFenced,
    LiftlogError,
    NotLeader,
    OffsetOutOfRange,
    StaleIncarnation,
    UnknownMember,
    from_problem,
)
from broker.api.proto import liftbridge_pb2 as pb
from broker.groups.fencing import GroupProgress
from broker.metadata.group_commands import EPOCH_BITS
from broker.metadata.groups import ConsumerGroup
from broker.serving.endpoints.resolve import leader_named
from broker.serving.liftbridge.calls import Handling
from broker.serving.liftbridge.groups import found, member_of
from broker.serving.liftbridge.reading import Stretch, resolved
from broker.serving.liftbridge.statuses import Code, StatusError

CURSOR: Final = "__group:"
"""A cursor of this name is the place of a group."""
BEGUN_S: Final = 30.0
TRIES: Final = 4
RESET: Final = "`liftlog group reset` says where it goes on"
_FROM_NOW: Final = (pb.NEW_ONLY, pb.LATEST)
_NONE: Final = ConsumerGroup()


# --- subscriptions ----------------------------------------------------------------------------------------------------


class BegunPartition(NamedTuple):
    """A partition that a consumer reads.

    Attributes:
        offset: Where its group is.
        incarnation: Of the stream.
        leader_epoch: That the place was stored with (X5); -1: none.
        has_been_told: Its consumer knows of this grant (X2).
        number: Of the subscription, among those of this broker (`shares.W5`).
    """

    group: str
    member: str
    at: tuple[str, int]
    epoch: int
    offset: int
    incarnation: str
    leader_epoch: int
    has_been_told: bool
    number: int

    def reads(self, asking: Handling) -> None:
        """Its subscription is refused no more: from now on it is the one that reads, if none came later."""
        asking.shares.reads(self.group, self.at, self.number)

    def check(self, asking: Handling) -> None:
        """Raises StatusError: the grant has ended (X1), or may not be read by any more (X6)."""
        grant = _group(asking, self.group).grants.get(self.at)
        if grant is None or grant[:2] != (self.member, self.epoch):
            raise _not_held(self.group, self.member, self.at)
        if _is_of_before(asking, self.at, self.epoch):
            raise StatusError(Code.UNAVAILABLE, f"{self.at[0]}/{self.at[1]}: an unclean election: subscribe again")
        if not asking.shares.is_last(self.group, self.at, self.number):
            where = f"consumer {self.member!r} of group {self.group!r} reads {self.at[0]}/{self.at[1]} by now"
            raise StatusError(Code.FAILED_PRECONDITION, f"another subscription of {where}", GroupFenced.reason)


async def begun(asking: Handling, asked: Any, span: Stretch, number: int) -> BegunPartition | None:
    """Begin the partition of a subscription; None: it is of no group.

    Args:
        span: Where it begins if its group has never read it.
        number: As `BegunPartition` has it.
    Raises:
        StatusError, LiftlogError: its consumer does not hold it.
    """
    consumer, at = asked.consumer, (asked.stream, asked.partition)
    if not consumer.group_id:
        return None
    if not consumer.consumer_id:
        raise StatusError(Code.INVALID_ARGUMENT, "Consumer id cannot be empty when group id is provided")
    if asked.from_replica:
        raise StatusError(Code.INVALID_ARGUMENT, "Consumer groups not compatible with ReadISRReplica")
    group = _group(asking, consumer.group_id)
    grant = group.grants.get(at)
    if grant is None or grant.member != consumer.consumer_id:
        await found(asking, consumer)
        with suppress(LiftlogError):
            await asking.serving.backend.catch_up()
        group = _group(asking, consumer.group_id)
        grant = group.grants.get(at)
    member = member_of(asking, consumer)
    held = grant is not None and grant.member == consumer.consumer_id
    is_of_now = member is not None and consumer.group_epoch >= member.session
    epoch = grant.epoch if grant is not None and held and is_of_now else 0  # 0: refused by the operation
    has_been_told = consumer.group_epoch >= epoch
    is_of_before = asked.start == pb.OFFSET and not has_been_told  # X2
    is_later = asked.start in _FROM_NOW and at in group.added  # X3
    first = span.log_start if is_of_before or is_later else span.start
    place = {"stream": asked.stream, "partition": asked.partition, "epoch": epoch}
    found_in = {"incarnation": span.incarnation} if first else {}  # no record of any is before 0
    body = {"member": consumer.consumer_id, "partitions": [{**place, "first": first, **found_in}]}

    async def give_back() -> None:
        """For another one."""
        if epoch and member is not None:
            path = {"group": consumer.group_id, "member": consumer.consumer_id}
            with suppress(UnknownMember):
                await asking.ask("poll_group", path=path, body={"session": member.session, "released": [place]})

    try:
        step = await _begin(asking, consumer.group_id, body)
    except StaleIncarnation as error:
        raise StatusError(Code.UNAVAILABLE, error.message, error.reason, error.fields) from None
    except GroupFenced:
        await give_back()  # the log knows a later grant
        raise _not_held(consumer.group_id, consumer.consumer_id, at) from None
    if _is_of_before(asking, at, epoch):
        await give_back()
        raise _not_held(consumer.group_id, consumer.consumer_id, at)
    leader_epoch = -1 if step["leader_epoch"] is None else step["leader_epoch"]
    named = (consumer.group_id, consumer.consumer_id, at, epoch)
    return BegunPartition(*named, step["offset"], step["incarnation"], leader_epoch, has_been_told, number)


async def check_kept(asking: Handling, asked: Any, group: str, offset: int, known: int) -> None:
    """Raises StatusError: other records stand in the place of some that a group has done (X7). LiftlogError.

    Args:
        asked: Names the partition.
        offset, known: Its place, and the leader epoch that this was stored with; -1: none.
    """
    if known < 0:
        return
    try:
        now = (await resolved(asking, asked, {"offset": offset}))["leader_epoch"]
    except OffsetOutOfRange as error:
        if offset < error.fields.get("log_start_offset", 0):  # nobody can tell; who begins there hears (`subscribe.B2`)
            return
        error.fields["parted_epoch"] = known
        raise
    if now > known:
        where = f"group {group!r} is at offset {offset} of {asked.stream}/{asked.partition}"
        why = f"records before it were given up, and others written in their place (leader epoch {now}, not {known})"
        fields = {"offset": offset, "parted_epoch": known}
        told = f"{where}, and {why}: {RESET}"
        raise StatusError(Code.OUT_OF_RANGE, told, OffsetOutOfRange.reason, fields)


def _is_of_before(asking: Handling, at: tuple[str, int], epoch: int) -> bool:
    """Whether an unclean election of a partition came after this grant (X6). Raises UnknownStream."""
    return asking.serving.backend.where(*at).unclean_epoch > epoch >> EPOCH_BITS


def _group(asking: Handling, group: str) -> ConsumerGroup:
    return asking.serving.backend.groups.named.get(group, _NONE)


def _not_held(group: str, member: str, at: tuple[str, int]) -> StatusError:
    text = f"{at[0]}/{at[1]} is not assigned to consumer {member!r} of group {group!r}"
    return StatusError(Code.FAILED_PRECONDITION, text, "group_fenced")


async def _begin(asking: Handling, group: str, body: Mapping[str, Any]) -> Any:
    """At the leader of the offset stream. Raises LiftlogError."""
    try:
        answer = (await asking.ask("begin_partitions", path={"group": group}, body=body)).json()
    except NotLeader as error:
        address = leader_named(error)
        if address is None:
            raise
        behalf, path = asking.door.principal, f"/v1/groups/{group}/begin"
        answer = await asking.serving.peers.ask(address, "POST", path, body=body, timeout_s=BEGUN_S, behalf=behalf)
    return _step(answer)


def _step(answer: Any) -> Any:
    [step] = answer["partitions"]
    if step["error"] is not None:
        raise from_problem(step["error"])
    return step


# --- cursors ----------------------------------------------------------------------------------------------------------


def group_of(cursor_id: str) -> str | None:
    """The group whose place a cursor is; None: of none."""
    return cursor_id.removeprefix(CURSOR) if cursor_id.startswith(CURSOR) else None


async def set_place(asking: Handling, group: str, asked: Any) -> None:
    """Store that a group has done a partition up to the record of a cursor (X4). Raises LiftlogError, StatusError."""
    for left in reversed(range(TRIES)):
        try:
            await _commit(asking, group, asked, asked.offset + 1)
            return
        except (GroupFenced, StaleIncarnation):  # another one was faster
            if not left:
                raise


async def place(asking: Handling, group: str, asked: Any) -> int:
    """The last record of a cursor's partition that a group has done; -1: none. Raises LiftlogError."""
    await asking.serving.backend.catch_up()  # X10
    for left in reversed(range(TRIES)):
        try:
            return int((await _commit(asking, group, asked, 0))["offset"]) - 1
        except (GroupFenced, StaleIncarnation):
            if _progress(asking, group, asked.stream, asked.partition)[1].offset is None:
                return -1
            if not left:
                raise
    raise AssertionError("unreachable")


async def _commit(asking: Handling, group: str, asked: Any, offset: int) -> Any:
    """Move a group on; to where it is, if that is further on. Raises LiftlogError, StatusError: as `_read_so_far`, and
    `_check_end`."""
    incarnation, now = _progress(asking, group, asked.stream, asked.partition)
    start, epoch_read = 0 if now.offset is None else now.offset, -1
    refusal: LiftlogError | StatusError | None = None
    if offset > start:
        try:
            epoch_read, offset = await _read_so_far(asking, group, asked, now, offset)
            await _check_end(asking, asked, offset)
        except (LiftlogError, StatusError) as error:  # it tells of the group: first, whether its caller may hear it
            refusal, offset, epoch_read = error, start, -1
            if isinstance(error, NotLeader):  # its client comes again
                refusal = StatusError(Code.UNAVAILABLE, error.message, error.reason, error.fields)
    step = {
        "stream": asked.stream,
        "partition": asked.partition,
        "epoch": now.epoch,
        "incarnation": incarnation,
        "start": start,
        "offset": max(start, offset),
        "leader_epoch": epoch_read,
    }
    answer = (await asking.ask("commit_group", path={"group": group}, body={"partitions": [step]})).json()
    done = _step(answer)
    if refusal is not None:
        raise refusal
    return done


async def _read_so_far(asking: Handling, group: str, asked: Any, now: GroupProgress, offset: int) -> tuple[int, int]:
    """At most of which leader epoch is what was read of a cursor's partition (X5), and up to where it counts (X8). -1:
    this broker cannot tell.

    Raises:
        StatusError, LiftlogError: it may have been replaced since (X6), or what is before it has been (X7).
    """
    backend, at = asking.serving.backend, (asked.stream, asked.partition)
    try:
        await backend.catch_up()  # what was read may be of an epoch that is not known here yet
        where = backend.where(*at)
    except LiftlogError:  # the commit says what is wrong
        return -1, offset
    if _is_of_before(asking, at, now.epoch):
        why = f"an unclean election came after epoch {now.epoch}, and may have replaced what was read: subscribe again"
        told = f"group {group!r}, {asked.stream}/{asked.partition}: {why}"
        raise StatusError(Code.FAILED_PRECONDITION, told, GroupFenced.reason)
    if now.offset is not None and 0 <= now.leader_epoch < where.unclean_epoch:
        await check_kept(asking, asked, group, now.offset, now.leader_epoch)
        offset = min(offset, (await resolved(asking, asked, {"epoch": now.leader_epoch}))["offset"])
    return where.leader_epoch, offset


async def _check_end(asking: Handling, asked: Any, offset: int) -> None:
    """Raises OffsetOutOfRange: a partition has no such place yet (X9). LiftlogError."""
    try:
        await resolved(asking, asked, {"offset": offset})
    except OffsetOutOfRange as error:
        if offset > error.fields.get("high_watermark", 0):
            raise


def _progress(asking: Handling, group: str, stream: str, partition: int) -> tuple[str, GroupProgress]:
    """Where a group is, as far as this broker knows; the commit judges it. An empty incarnation: there is no stream."""
    backend = asking.serving.backend
    try:
        incarnation = backend.stream(stream).incarnation
        row = backend.offsets.group_offsets(group).get((incarnation, partition))
    except LiftlogError:
        return "", GroupProgress()
    return incarnation, GroupProgress() if row is None else GroupProgress(row.epoch, row.offset, row.leader_epoch)
