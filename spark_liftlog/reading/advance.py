"""From where the query stands to where its next batch ends: the decisions, without the network.

    start (the checkpoint)        0 1 2 3 4 5 6 7 8 9|
    log                                 4 5 6 7 8 9|10 11 12 13|      log start 4, high watermark 14
    next batch                                     [10 11 12)         begin 10, end 13 (limit 3)

A *loss* is a difference between what the checkpoint remembers and what the log can still give:

    deleted     the stream is gone                                          nothing to go on at
    recreated   same name, other incarnation: offsets count other records   its log start
    expired     retention deleted records before they were read             the log start
    truncated   the log ends below the start, or the record before the      where the logs part
                start has another epoch: the tail was lost and written anew

A1  Without a loss no end is below its start, and an end is at most the high watermark.
A2  After a loss that the user chose to survive, the batch's base says where it really begins.
A3  Nothing new gives no step: the caller returns the start offset itself, text and all.
A4  A partition that one answer does not tell of keeps its position: unknown is not gone. (It would come back as new.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import TypeAlias

from broker.api.answers import PartitionDescription
from broker.api.errors import LiftlogError, StaleIncarnation, UnknownPartition, UnknownStream
from spark_liftlog.errors import HOW_TO_GO_ON, LogTruncated, RecordsExpired, RecordsLost
from spark_liftlog.reading.offsets import Key, Offset, ReadPosition
from spark_liftlog.reading.plan import prorate

Share: TypeAlias = Callable[[Mapping[Key, int]], dict[Key, int]]
"""From the backlog of each partition to the records that a batch takes of it."""


@dataclass(frozen=True, slots=True)
class Head:
    """One partition as the broker tells it now.

    Attributes:
        log_start_offset, high_watermark: The records that can be read, [start, end).
        leader_epoch: The epoch of the leader now, not of any record.
        leader: Its HTTP address.
    """

    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    leader: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The streams of a query as the broker tells them; a stream that does not exist is not in it.

    Attributes:
        unknown: Partitions that are there, but the broker cannot tell now where they end.
    """

    incarnations: Mapping[str, str]
    partitions: Mapping[Key, Head]
    unknown: Set[Key] = frozenset()


@dataclass(frozen=True, slots=True)
class Loss:
    """One partition's loss: the error that names it, and where records are valid again (None: nowhere)."""

    error: LiftlogError
    resume: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A batch to be: per partition where it begins and ends, and which begins its end must record."""

    start: Offset
    incarnations: Mapping[str, str]
    begins: Mapping[Key, int]
    ends: Mapping[Key, int]
    base: Mapping[Key, int]


def losses(start: Offset, heads: Heads, *, added: Set[Key] = frozenset()) -> dict[Key, Loss]:
    """The losses: what `start` asks for and the log cannot give any more, as far as heads alone can tell.

    Args:
        added: Partitions that the query begins to read. Any other without a position was added to its stream: all of
            it is new to the query, from record 0 on.

    Two are not among it. A high watermark below the start: a view that is a moment old, or a leader
    that is still catching up, looks the same. A stream that is not in the heads: it may be deleted, or
    be unavailable for a while. Both are for the caller to say once it has asked the log itself.
    """
    found: dict[Key, Loss] = {}
    for (stream, partition), at in sorted(start.positions.items()):
        head = heads.partitions.get((stream, partition))
        if head is None or heads.incarnations[stream] != start.incarnations[stream]:
            continue
        if head.log_start_offset > at.offset:
            found[stream, partition] = Loss(expired((stream, partition), at.offset, head), head.log_start_offset)
    for (stream, partition), head in sorted(heads.partitions.items()):
        known, now = start.incarnations.get(stream), heads.incarnations[stream]
        if known is not None and known != now:
            error = recreated(stream, known, now, head.log_start_offset)
            found[stream, partition] = Loss(error, head.log_start_offset)
        elif known is not None and head.log_start_offset and (stream, partition) not in start.positions.keys() | added:
            found[stream, partition] = Loss(expired((stream, partition), 0, head), head.log_start_offset)
    return found


def deleted(stream: str) -> UnknownStream:
    """The stream is gone."""
    return UnknownStream(
        f"stream {stream!r} was deleted while the query had a position in it; create it again and set the option"
        " failOnDataLoss=false to continue with the new one, or start with a new checkpoint",
        stream=stream,
    )


def missing(key: Key) -> UnknownPartition:
    """The stream is there, and has no such partition."""
    stream, partition = key
    return UnknownPartition(
        f"stream {stream!r} has no partition {partition} any more, in which the query has a position; set the option"
        " failOnDataLoss=false to continue without it, or start with a new checkpoint",
        stream=stream,
        partition=partition,
    )


def recreated(stream: str, known: str, now: str, log_start_offset: int) -> StaleIncarnation:
    """The stream of this name is another one."""
    where = f"the new stream's first record, {log_start_offset}"
    return StaleIncarnation(
        f"stream {stream!r} was deleted and re-created: the checkpoint counts offsets of incarnation {known},"
        f" now it is {now}, whose offsets mean other records; {HOW_TO_GO_ON.format(where=where)}",
        stream=stream,
        incarnation=now,
    )


def expired(key: Key, offset: int, head: Head) -> RecordsExpired:
    """Retention was faster than the query."""
    stream, partition = key
    return RecordsExpired(
        f"stream {stream!r} partition {partition}: records {offset} to {head.log_start_offset - 1} were deleted by"
        f" retention or a trim before this query read them; valid offsets are {head.log_start_offset} to"
        f" {head.high_watermark};"
        f" {HOW_TO_GO_ON.format(where=f'offset {head.log_start_offset}')}",
        stream=stream,
        partition=partition,
        log_start_offset=head.log_start_offset,
        high_watermark=head.high_watermark,
    )


def lost(key: Key, start: int, end: int, partition: PartitionDescription) -> RecordsLost:
    """The disk gave back other bytes than were written, and there is no other copy."""
    return RecordsLost(
        f"stream {key[0]!r} partition {key[1]}: records {start} to {end - 1} were lost by the broker's disk before this"
        f" query read them; valid offsets are {partition.log_start_offset} to {partition.high_watermark};"
        f" {HOW_TO_GO_ON.format(where=f'offset {end}')}",
        stream=key[0],
        partition=key[1],
        start=start,
        end=end,
    )


def truncated(key: Key, offset: int, resume: int, head: Head) -> LogTruncated:
    """The log's tail is not the one that the query read."""
    stream, partition = key
    what = (
        f"the log ends at {head.high_watermark}, the query has read up to {offset}"
        if head.high_watermark < offset
        else f"records from {resume} on were lost and written anew, the query has read up to {offset}"
    )
    return LogTruncated(
        f"stream {stream!r} partition {partition}: the log was truncated: {what}; valid offsets are"
        f" {head.log_start_offset} to {head.high_watermark}; {HOW_TO_GO_ON.format(where=f'offset {resume}')}",
        stream=stream,
        partition=partition,
        log_start_offset=head.log_start_offset,
        high_watermark=head.high_watermark,
    )


def step(
    start: Offset,
    heads: Heads,
    resume: Mapping[Key, int],
    *,
    limit: int | None,
    added: Mapping[Key, int] | None = None,
    held: Set[Key] = frozenset(),
    share: Share | None = None,
) -> Step | None:
    """The next batch, or None when there is nothing new (A3).

    Args:
        start: Where the query stands.
        heads: The ends of what can be read.
        resume: Where partitions go on after a loss; overrides `start`.
        limit: Records for the whole batch.
        added: Where partitions begin that the query did not read before.
        held: Partitions that cannot go on now.
        share: How many records to take of each partition's backlog; None: by `limit`.
    """
    added = added or {}
    begins: dict[Key, int] = {}
    base: dict[Key, int] = {}
    for key, head in sorted(heads.partitions.items()):
        known = start.positions.get(key)
        if key in held or (key[0] not in start.incarnations and key not in added):
            continue
        if key in resume or key in added:
            begins[key] = base[key] = resume[key] if key in resume else added[key]
        elif known is not None:
            begins[key] = known.offset
        else:  # a partition that was added while the query ran: all of it is new
            begins[key] = base[key] = head.log_start_offset
    backlogs = {key: max(0, heads.partitions[key].high_watermark - begin) for key, begin in begins.items()}
    taken = prorate(backlogs, limit) if share is None else share(backlogs)
    if not taken and not base:
        return None
    ends = {key: begin + taken.get(key, 0) for key, begin in begins.items()}
    incarnations = dict(start.incarnations)
    incarnations |= {stream: heads.incarnations[stream] for stream, _ in begins}
    return Step(start=start, incarnations=incarnations, begins=begins, ends=ends, base=base)


def unknown_epochs(it: Step, heads: Heads) -> dict[Key, int]:
    """The ends whose epoch must be asked for, as offsets.

    Epochs only rise along a log. If the record before the begin already has the present leader's
    epoch, so has every record behind it, and nobody need be asked: the usual case.
    """
    asked: dict[Key, int] = {}
    for key, end in it.ends.items():
        if _known_epoch(it, heads, key) is None:
            asked[key] = end
    return asked


def finish(it: Step, heads: Heads, epochs: Mapping[Key, int]) -> Offset:
    """The end offset of a step, `epochs` being the answers to `unknown_epochs`."""
    positions = {
        key: at  # (A4)
        for key, at in it.start.positions.items()
        if key not in it.ends and it.incarnations[key[0]] == it.start.incarnations[key[0]]
    }
    for key, end in it.ends.items():
        known = _known_epoch(it, heads, key)
        positions[key] = ReadPosition(end, epochs[key] if known is None else known)
    return Offset(consumer=it.start.consumer, incarnations=it.incarnations, positions=positions, base=it.base)


def _known_epoch(it: Step, heads: Heads, key: Key) -> int | None:
    at = it.start.positions.get(key)
    if at is None or at.offset != it.begins[key] or it.start.incarnations[key[0]] != it.incarnations[key[0]]:
        return None
    if it.ends[key] == at.offset or at.leader_epoch == heads.partitions[key].leader_epoch:
        return at.leader_epoch
    return None
