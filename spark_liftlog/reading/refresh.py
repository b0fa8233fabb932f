"""A frame that is planned once and read again: what it has grown by is asked when it is read.

Spark keeps the plan of a `load()` for as long as the frame lives. A temporary view, or the static side of a
stream-static join, would show for ever what there was then. So a plan says where it is *open*:

    planned     orders/0 [0, 60)  orders/0 [60, 100)      orders/1 [0, 80)
    tasks       [orders/0 [0, 60)]   [orders/0 [60, 100) open, orders/1 [0, 80) open, added]
    read later  [orders/0 [0, 60)]   [orders/0 [60, 140), orders/1 [0, 95), orders/2 [0, 7)]

In a micro-batch the first task that asks pins the answer for all of them, and for a replay (pins.py).

R1  The last piece of each partition is open, in whichever task it is; one task takes partitions that were added, and
    streams that have come to match a pattern.
R2  Where the plan begins at the earliest record, what retention took since is left out, as a new plan would.
R3  A stream that was deleted, or is another one, is an error: its offsets count other records.
R4  What a replay is to read again and the log does not have any more is a loss, never fewer rows without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from broker.api.errors import LiftlogError, StaleIncarnation, UnknownStream
from spark_liftlog.errors import RecordsExpired
from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.reading.offsets import Key
from spark_liftlog.reading.plan import Range
from spark_liftlog.reading.selection import Selection

Lost = Callable[[LiftlogError], None]
"""Takes a loss: raises it, or logs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePlan:
    """What is pinned of a frame, and as what.

    Attributes:
        name: The same for each `load()` with the same options, as far as they say which records are read.
        load: This very `load()`: how its plan is told from others.
        selection: What is read.
        plan: The begin and end that was planned for each partition.
    """

    name: str
    load: str
    selection: Selection
    plan: Heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a task's ranges may have grown.

    Attributes:
        always: Also outside of micro-batches.
        from_earliest: The plan begins at the earliest record (R2).
        added: Per stream, of which incarnation and how many partitions the plan knew: the task takes further ones.
        pattern: The task takes streams, too, that the plan did not know and that are read now; None: none.
        watched: As brokers take it, what all streams of the plan match; empty: their names. There may be too many.
        frame: What a micro-batch pins; None: nothing.
    """

    always: bool
    from_earliest: bool
    added: Mapping[str, tuple[str, int]]
    pattern: Selection | None = None
    watched: Sequence[str] = ()
    frame: FramePlan | None = None

    def takes(self, stream: str) -> bool:
        """Whether the task takes what was added to the stream, or all of it."""
        return stream in self.added or (self.pattern is not None and self.pattern.has(stream))


def opened(tasks: list[list[Range]], planned: Sequence[Range]) -> list[list[Range]]:
    """The tasks of a plan with the last piece of each partition open (R1).

    Args:
        planned: The ranges that were planned, partitions without records included.
    """
    tasks = [[replace(piece, is_open=False) for piece in task] for task in tasks] or [[]]
    last: dict[tuple[str, int], tuple[int, int]] = {}
    for number, task in enumerate(tasks):
        for index, piece in enumerate(task):
            last[piece.stream, piece.partition] = (number, index)
    for whole in planned:
        found = last.get((whole.stream, whole.partition))
        if found is None:
            tasks[-1].append(replace(whole, start=whole.end, is_open=True))
        else:
            number, index = found
            tasks[number][index] = replace(tasks[number][index], is_open=True)
    return tasks


def grown(ranges: Sequence[Range], opening: Opening, heads: Heads) -> list[Range]:
    """A task's ranges as they are now.

    Raises:
        UnknownStream, StaleIncarnation: a stream is gone, or another one (R3).
    """
    found = []
    for piece in ranges:
        check(piece.stream, piece.incarnation, heads)
        head = heads.partitions.get((piece.stream, piece.partition))
        if head is not None:
            start = max(piece.start, head.log_start_offset) if opening.from_earliest else piece.start
            end = max(piece.end, head.high_watermark) if piece.is_open else piece.end
            piece = replace(piece, start=min(start, end), end=end, address=head.leader or piece.address)
        found.append(piece)
    new = _added(opening, heads)
    for stream, incarnation, _ in new:
        check(stream, incarnation, heads)
    found += _ranges(new, heads)
    return [piece for piece in found if piece.record_count]


def _added(opening: Opening, heads: Heads) -> list[tuple[str, str, int]]:
    """The streams of which a task takes what was added: their incarnations, and how many partitions were planned."""
    matching = {} if opening.pattern is None else opening.pattern.of(heads).incarnations
    new = {stream: (incarnation, 0) for stream, incarnation in matching.items() if stream not in opening.added}
    return [
        (stream, incarnation, count) for stream, (incarnation, count) in sorted((*opening.added.items(), *new.items()))
    ]


def _ranges(added: Sequence[tuple[str, str, int]], heads: Heads) -> list[Range]:
    return [
        Range(
            stream=stream,
            partition=partition,
            incarnation=incarnation,
            start=head.log_start_offset,
            end=head.high_watermark,
            address=head.leader,
        )
        for stream, incarnation, count in added
        for (name, partition), head in sorted(heads.partitions.items())
        if name == stream and partition >= count
    ]


def reaching(heads: Heads, opening: Opening, frame: FramePlan) -> Heads:
    """What the whole frame reads now: what there is, and no less than was planned, begin and end of each partition.

    Raises:
        UnknownStream, StaleIncarnation: a stream is gone, or another one (R3).
    """
    for stream, incarnation in sorted(frame.plan.incarnations.items()):
        check(stream, incarnation, heads)
    found = dict(heads.partitions)
    for key, planned in frame.plan.partitions.items():
        head = found.get(key, planned)
        start = planned.log_start_offset
        start = max(start, head.log_start_offset) if opening.from_earliest else start
        end = max(planned.high_watermark, head.high_watermark)
        found[key] = Head(start, end, head.leader_epoch, head.leader)
    return Heads(incarnations=heads.incarnations, partitions=found)


def replayed(ranges: Sequence[Range], opening: Opening, frame: FramePlan, state: Heads, lost: Lost) -> list[Range]:
    """A task's ranges as another run has read them before, whatever there is now.

    Args:
        state: What that run has read of the frame.
        lost: Takes what the log does not have any more (R4). What was planned now is read then.
    """
    found = []
    for piece in ranges:
        key = (piece.stream, piece.partition)
        known, head = state.incarnations.get(piece.stream), state.partitions.get(key)
        if known is not None and known != piece.incarnation:
            lost(_another(piece.stream, known, piece.incarnation))
            found.append(piece)
        elif head is not None:
            start, end = max(piece.start, head.log_start_offset), head.high_watermark
            end = end if piece.is_open else min(piece.end, end)
            planned = frame.plan.partitions[key].log_start_offset
            if head.high_watermark > head.log_start_offset < planned:
                lost(_expired(key, head, planned))
            found.append(replace(piece, start=min(start, end), end=end))
    same = [one for one in _added(opening, state) if state.incarnations.get(one[0]) == one[1]]
    found += _ranges(same, state)
    return [piece for piece in found if piece.record_count]


def _expired(key: Key, head: Head, planned: int) -> RecordsExpired:
    stream, partition = key
    return RecordsExpired(
        f"stream {stream!r} partition {partition}: this micro-batch was begun by another run, which has read records"
        f" {head.log_start_offset} to {head.high_watermark - 1} of it for a frame; those before {planned} were deleted"
        " since by retention or a trim, so this run would not compute the same; set the frame's option"
        f" failOnDataLoss=false to go on from offset {planned}",
        stream=stream,
        partition=partition,
        log_start_offset=planned,
        high_watermark=head.high_watermark,
    )


def _another(stream: str, known: str, now: str) -> StaleIncarnation:
    return StaleIncarnation(
        f"stream {stream!r} was deleted and re-created: this micro-batch was begun by another run, which has read"
        f" incarnation {known} of it for a frame; now it is {now}, so this run would not compute the same; set the"
        " frame's option failOnDataLoss=false to go on with the new stream",
        stream=stream,
        incarnation=now,
    )


def check(stream: str, incarnation: str, heads: Heads) -> None:
    """Whether it is the stream that was planned. Raises as `grown`."""
    now = heads.incarnations.get(stream)
    if now is None:
        raise UnknownStream(
            f"stream {stream!r} was deleted after this frame was planned; create it again, and call load() again",
            stream=stream,
        )
    if now != incarnation:
        raise StaleIncarnation(
            f"stream {stream!r} was deleted and re-created after this frame was planned, whose offsets are those of"
            f" incarnation {incarnation}; now it is {now}, whose offsets mean other records; call load() again",
            stream=stream,
            incarnation=now,
        )
