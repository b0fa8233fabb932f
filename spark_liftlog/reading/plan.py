"""Which records go into which Spark task. Arithmetic only.

An input partition costs Spark about 26 ms however little is in it, and one task reads about
300 MB/s. So there is none for an empty range, small ranges share one, long ones are split:

    ranges      |--- orders/0 ---|- orders/1 -|-- orders/2 --|            laid end to end, by weight
    cuts        0           1           2           3                     equal parts of the whole
    tasks       [orders/0   )[0|orders/1 )[1|orders/2)...

N1  The pieces of a plan are exactly the ranges: each record once, each piece non-empty, in order.
N2  At most `partitions_max` tasks, at most one per record; at least `partitions_min` where there are as many records.
N3  A cut that would leave a sliver at a range's edge moves to the edge: a piece costs a request.
N4  Proration: a share never exceeds the backlog, every partition that has a backlog gets some, and
    the shares add up to at most the limit unless there are more such partitions than records allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spark_liftlog.reading.offsets import Key

TASK_BYTES: Final = 32 << 20
"""So much is worth a task of its own: reading it takes about four times as long as the task's start."""
SLIVER: Final = 0.1
"""Share of a task's weight below which an edge piece is not worth a request (N3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Records [start, end) of one partition.

    Attributes:
        incarnation: Which incarnation of the stream the offsets count in.
        address: HTTP address of the leader when it was planned; executors ask there first.
        byte_count: About how many bytes they are, for the balance of tasks.
        is_open: The range ends where the partition ends when it is read (refresh.py).
    """

    stream: str
    partition: int
    incarnation: str
    start: int
    end: int
    address: str = ""
    byte_count: int = 0
    is_open: bool = False

    @property
    def record_count(self) -> int:
        """Offsets in the range; fewer records where the log has gaps."""
        return self.end - self.start


def prorate(backlogs: Mapping[Key, int], limit: int | None) -> dict[Key, int]:
    """Share `limit` records among partitions in proportion to their backlogs (N4).

    Args:
        backlogs: Records there are per partition, >= 0.
        limit: Records for all of them, >= 1; None: everything.
    Returns:
        Records to take, for every partition with a backlog.
    """
    waiting = {key: count for key, count in sorted(backlogs.items()) if count > 0}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return waiting
    shares = {key: max(1, limit * count // total) for key, count in waiting.items()}
    # The first ones that can use it get what rounding down left; what rounding up overdrew stays.
    rest = limit - sum(shares.values())
    for key, count in waiting.items():
        if rest <= 0:
            break
        if shares[key] < count:
            shares[key] += 1
            rest -= 1
    return shares


def plan(
    ranges: Sequence[Range], *, partitions_min: int, partitions_max: int, records_max: int | None = None
) -> list[list[Range]]:
    """Distribute ranges over tasks.

    Args:
        ranges: Any order; empty ones are left out. No two overlap.
        partitions_min: Tasks wanted at least.
        partitions_max: Tasks allowed, >= 1. Wins over `partitions_min`.
        records_max: Records that a task may have, >= 1; wins over both. None: any number.
    Returns:
        Per task its pieces, in (stream, partition, offset) order. Empty when there is nothing to read.
    """
    full = sorted((r for r in ranges if r.record_count > 0), key=lambda r: (r.stream, r.partition, r.start))
    if not full:
        return []
    records = sum(r.record_count for r in full)
    weights = [max(r.byte_count, r.record_count) for r in full]
    wanted = max(partitions_min, -(-sum(weights) // TASK_BYTES))
    tasks_count = min(wanted, partitions_max, records)
    if records_max is not None and -(-records // records_max) >= tasks_count:
        tasks_count = -(-records // records_max)
        return _split(full, [records * (number + 1) // tasks_count for number in range(tasks_count)])
    if records_max is not None:
        weights = [r.record_count for r in full]  # equal shares are below the bound, whatever the bytes are
    cuts = _cuts(full, weights, tasks_count, sliver=SLIVER if records_max is None else 0)
    return _split(full, cuts)


def _cuts(ranges: list[Range], weights: list[int], tasks_count: int, *, sliver: float) -> list[int]:
    """Where tasks end, counted in records from the first of the first range; strictly rising, the last is the end."""
    records = sum(r.record_count for r in ranges)
    share = sum(weights) / tasks_count
    cuts: list[int] = []
    records_before = weight_before = 0
    for r, weight in zip(ranges, weights, strict=True):
        while len(cuts) < tasks_count - 1 and share * (len(cuts) + 1) <= weight_before + weight:
            beyond = share * (len(cuts) + 1) - weight_before
            if beyond < sliver * share:
                cut = records_before
            elif weight - beyond < sliver * share:
                cut = records_before + r.record_count
            else:
                cut = records_before + round(r.record_count * beyond / weight)
            least, greatest = (cuts[-1] if cuts else 0) + 1, records - (tasks_count - 1 - len(cuts))
            cuts.append(max(least, min(cut, greatest)))
        records_before += r.record_count
        weight_before += weight
    # The last shares may have been lost to the rounding of floats: they end one record apart.
    while len(cuts) < tasks_count - 1:
        cuts.append(records - (tasks_count - 1 - len(cuts)))
    return [*cuts, records]


def _split(ranges: list[Range], cuts: list[int]) -> list[list[Range]]:
    """The pieces of the ranges between the cuts (N1)."""
    tasks: list[list[Range]] = [[]]
    ends = iter(cuts)
    end, at = next(ends), 0
    for r in ranges:
        start = r.start
        while start < r.end:
            take = min(r.end - start, end - at)
            share = round(r.byte_count * take / r.record_count)
            tasks[-1].append(replace(r, start=start, end=start + take, byte_count=share))
            start += take
            at += take
            if at == end and (end := next(ends, at)) > at:
                tasks.append([])
    return tasks
