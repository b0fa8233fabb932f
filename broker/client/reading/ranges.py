"""The range of a read: the first and last offset in each partition.

Users say where to begin and to end, once for all partitions or for each. One call resolves all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from broker.api.answers import Resolved, StreamDescription
from broker.api.errors import InvalidRequest, LiftlogError, OffsetOutOfRange, UnknownPartition
from broker.client.positions import At, Position, partition_numbers
from broker.client.reader import Span

Start = At | Mapping[int, At]
End = Literal["latest"] | int | datetime | Mapping[int, At] | None


def plan_read(
    resolve: Callable[[Iterable[Position]], list[Resolved]],
    description: StreamDescription,
    *,
    partitions: Iterable[int] | None,
    start: Start,
    end: End,
) -> dict[int, Span]:
    """The offsets to read, by partition. `resolve`, `partitions`, `start`, `end`: as those of `Client.read`.

    Raises:
        UnknownPartition, OffsetOutOfRange, InvalidRequest: as `Client.read`.
    """
    stream, count = description.name, description.partition_count
    numbers = list(range(count)) if partitions is None else partition_numbers(partitions)
    if not numbers:
        raise InvalidRequest("partitions=[]: name at least one, or None for all")
    for number in numbers:
        if not 0 <= number < count:
            raise UnknownPartition(f"stream {stream!r} has no partition {number}, only {count}", partitions=count)
    starts = _spread(start, numbers, "earliest")
    ends = _spread(end, numbers, "latest")
    found = resolve(
        Position(stream, number, at, description.incarnation) for ats in (starts, ends) for number, at in ats.items()
    )
    for resolved in found:
        if resolved.error is not None:
            raise resolved.error
    spans = {}
    for number, first, last in zip(starts, found, found[len(starts) :], strict=False):
        begin = _within(first, last)
        finish = _within(last, last)
        if finish < begin:
            raise InvalidRequest(
                f"{stream}/{number}: the end, {finish}, is before the start, {begin}", start=begin, end=finish
            )
        spans[number] = Span(start=begin, end=finish, from_earliest=starts[number] == "earliest")
    return spans


def _spread(at: Start | End, numbers: Sequence[int], default: At) -> dict[int, At]:
    """One position for each partition."""
    if isinstance(at, Mapping):
        if unknown := sorted(at.keys() - set(numbers)):
            raise InvalidRequest(f"a position is given for partition {unknown[0]}, which is not read")
        return {number: at.get(number, default) for number in numbers}
    return dict.fromkeys(numbers, default if at is None else at)


def _within(resolved: Resolved, heads: Resolved) -> int:
    """The resolved offset; the high watermark where no record is that late."""
    low, high = heads.log_start_offset, heads.high_watermark
    if low is None or high is None:
        raise LiftlogError(f"resolving {resolved.stream}/{resolved.partition}: the answer has no range")
    if resolved.offset is None:
        return high
    if not low <= resolved.offset <= high:
        raise OffsetOutOfRange(
            f"{resolved.stream}/{resolved.partition}: offset {resolved.offset} is not within [{low}, {high}]",
            stream=resolved.stream,
            partition=resolved.partition,
            offset=resolved.offset,
            log_start_offset=low,
            high_watermark=high,
        )
    return resolved.offset
