"""What a query's WHERE leaves of a read, beside what the options say: streams, partitions, offsets and times. Pure.

A plan is made of what is left, and a task looks again: what its ranges have grown by is narrowed, too (refresh.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from spark_liftlog.reading.plan import Range

_LEAST: Final = -1 << 63
_BEYOND: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Interval:
    """The whole numbers of [start, stop)."""

    start: int = _LEAST
    stop: int = _BEYOND

    def __contains__(self, number: int) -> bool:
        return self.start <= number < self.stop

    def both(self, other: Interval) -> Interval:
        """Those that are in the other, too."""
        return Interval(max(self.start, other.start), min(self.stop, other.stop))


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """What is left of a read.

    Attributes:
        is_empty: Nothing.
        streams: None: all.
        partitions: Their numbers, in any stream.
        numbers: Only these of them; None: all.
        offsets: Of records, in any partition.
        times: Their timestamps, microseconds since 1970 UTC. Brokers leave out others; a range is not cut by it.
    """

    is_empty: bool = False
    streams: frozenset[str] | None = None
    partitions: Interval = field(default_factory=Interval)
    numbers: frozenset[int] | None = None
    offsets: Interval = field(default_factory=Interval)
    times: Interval = field(default_factory=Interval)

    @property
    def since_us(self) -> int | None:
        """The first timestamp; None: any."""
        return None if self.times.start == _LEAST else self.times.start

    @property
    def until_us(self) -> int | None:
        """The first timestamp that is too late; None: none is."""
        return None if self.times.stop == _BEYOND else self.times.stop

    def of(self, wanted: Range) -> Range | None:
        """What is left of a range. None: nothing is, and it cannot grow. It may be empty where it is open."""
        if (
            self.is_empty
            or self.times.start >= self.times.stop
            or (self.streams is not None and wanted.stream not in self.streams)
            or wanted.partition not in self.partitions
            or (self.numbers is not None and wanted.partition not in self.numbers)
        ):
            return None
        return between(wanted, self.offsets.start, self.offsets.stop)

    def of_all(self, ranges: Iterable[Range]) -> list[Range]:
        """What is left of some ranges, in their order."""
        return [left for wanted in ranges if (left := self.of(wanted)) is not None]


NO_NARROWING: Final = Narrowing()


def between(wanted: Range, start: int, stop: int) -> Range | None:
    """The part of a range with offsets in [start, stop), as `Narrowing.of`."""
    is_open = wanted.is_open and stop > max(start, wanted.end)
    begin = min(max(wanted.start, start), wanted.end)
    end = max(begin, min(wanted.end, stop))
    if begin == end and not is_open:
        return None
    if (begin, end, is_open) == (wanted.start, wanted.end, wanted.is_open):
        return wanted
    share = wanted.byte_count * (end - begin) // max(1, wanted.record_count)
    return replace(wanted, start=begin, end=end, byte_count=share, is_open=is_open)
