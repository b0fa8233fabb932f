"""A frame that is planned once and read again: what it has grown by is asked when it is read.

Spark keeps the plan of a `load()` for as long as the frame lives. A temporary view, or the static side of a
stream-static join, would show for ever what there was then. So a plan says where it is *open*:

    planned     orders/0 [0, 60)  orders/0 [60, 100)      orders/1 [0, 80)
    tasks       [orders/0 [0, 60)]   [orders/0 [60, 100) open, orders/1 [0, 80) open, added]
    read later  [orders/0 [0, 60)]   [orders/0 [60, 140), orders/1 [0, 95), orders/2 [0, 7)]

R1  The last piece of each partition is open, in whichever task it is; one task takes partitions that were added, and
    streams that have come to match a pattern.
R2  Where the plan begins at the earliest record, what retention took since is left out, as a new plan would.
R3  A stream that was deleted, or is another one, is an error: its offsets count other records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from broker.api.errors import StaleIncarnation, UnknownStream
from spark_liftlog.reading.advance import Heads
from spark_liftlog.reading.plan import Range
from spark_liftlog.reading.selection import Selection

QUERY_ID: Final = "sql.streaming.queryId"
"""The local property that tells a task of a micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a task's ranges may have grown.

    Attributes:
        always: Also outside of micro-batches.
        from_earliest: The plan begins at the earliest record (R2).
        added: Per stream, of which incarnation and how many partitions the plan knew: the task takes further ones.
        pattern: The task takes streams, too, that the plan did not know and that are read now; None: none.
        watched: As brokers take it, what all streams of the plan match; empty: their names. There may be too many.
    """

    always: bool
    from_earliest: bool
    added: Mapping[str, tuple[str, int]]
    pattern: Selection | None = None
    watched: Sequence[str] = ()

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
            piece = replace(piece, start=min(start, end), end=end, address=head.leader)
        found.append(piece)
    matching = {} if opening.pattern is None else opening.pattern.of(heads).incarnations
    new = {stream: (incarnation, 0) for stream, incarnation in matching.items() if stream not in opening.added}
    for stream, (incarnation, count) in sorted((*opening.added.items(), *new.items())):
        check(stream, incarnation, heads)
        for (name, partition), head in sorted(heads.partitions.items()):
            if name == stream and partition >= count:
                found.append(
                    Range(
                        stream=name,
                        partition=partition,
                        incarnation=incarnation,
                        start=head.log_start_offset,
                        end=head.high_watermark,
                        address=head.leader,
                    )
                )
    return [piece for piece in found if piece.record_count]


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
