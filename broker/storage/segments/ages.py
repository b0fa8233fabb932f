"""How long the records of one log have been here, at least, by a clock that nobody sets. Arithmetic only.

    marks   (us, end)   (us, end)   ...   (us, end)      at that time, all records below `end` were here
            older, the further apart                     newest

A record's timestamp is the publisher's, or a wall clock's: of another broker, or of before somebody set it. It cannot
say how much time has passed. So each replica measures that itself, from when it had the record. No record is younger
than it says: it was appended before it was copied.

A1  Time is a count that only goes forward and that nobody sets (`broker/common/elapsed.py`). The caller brings it.
A2  An age is never more than what has passed. A record without a mark is new: marks may be missing, and time in which
    no broker had the log open does not count. So whatever goes by age goes too late, never too early.
A3  Marks are kept in the checkpoint as ages, so the count may begin anywhere in the next life.
A4  Records that are taken back take their marks along: others may come to stand there (`cut`).
A5  Marks are an eighth of their age apart at most, or `STEP_US`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

DOUBT_MS: Final = 6 * 3_600_000
"""A record that is deleted because its timestamp is old has been here for so long, or for the whole limit if that is
less."""
STEP_US: Final = 100_000
MARKS_MAX: Final = 256
"""With more of them some go: those that are closer to each other than A5 asks for."""
KEPT_PART: Final = 2
"""Marks in the checkpoint are a half of their age apart."""


class Ages:
    """See the module. The log's append lock covers it.

    Attributes:
        now_us: The time, as last told.
    """

    __slots__ = ("_begun_us", "_ends", "_times", "now_us")

    def __init__(self, now_us: int, kept: Iterable[tuple[int, int]] = ()) -> None:
        """Begin at `now_us`, with what `kept` said before."""
        self.now_us = now_us
        self._times = array("q", [now_us - age_us for age_us, _ in kept])
        self._ends = array("q", [end for _, end in kept])
        self._begun_us = now_us - 2 * STEP_US  # when the newest mark began

    def tell(self, now_us: int, end: int) -> None:
        """It is that late, and the log ends at `end`. Earlier than was told before: that stands (A1)."""
        if now_us > self.now_us:
            self.now_us = now_us
        else:
            now_us = self.now_us
        ends = self._ends
        if ends and ends[-1] >= end:
            return
        if ends and now_us - self._begun_us < STEP_US:
            self._times[-1], ends[-1] = now_us, end
            return
        self._begun_us = now_us
        self._times.append(now_us)
        ends.append(end)
        if len(ends) > MARKS_MAX:
            self._thin(8)

    def copy(self) -> Ages:
        """As they are now, for one who does not hold the lock."""
        return Ages(self.now_us, self._aged(zip(self._times, self._ends, strict=True)))

    def cut(self, end: int) -> None:
        """The records at or above `end` are gone."""
        while self._ends and self._ends[-1] > end:
            if len(self._ends) > 1 and self._ends[-2] >= end:
                self._times.pop()
                self._ends.pop()
            else:
                self._ends[-1] = end
        self._begun_us = self.now_us - 2 * STEP_US

    def here_for(self, age_us: int) -> int:
        """The end of what has been here for so long; 0: nothing that is known."""
        at = bisect_right(self._times, self.now_us - age_us)
        return self._ends[at - 1] if at else 0

    def since(self, offsets: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """When each of these was here at the latest."""
        times = np.append(np.array(self._times, np.int64), self.now_us)
        found: npt.NDArray[np.int64] = times[np.searchsorted(np.array(self._ends, np.int64), offsets, side="right")]
        return found

    def kept(self, below: int) -> tuple[tuple[int, int], ...]:
        """(age, end) of what is below an offset, for the checkpoint, the oldest first."""
        marks = self._apart(KEPT_PART)
        whole = bisect_right(marks, below, key=lambda mark: mark[1])
        if whole < len(marks):  # the next mark is true of a part, too
            marks = [*marks[:whole], (marks[whole][0], below)]
        return self._aged(marks)

    def _aged(self, marks: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        return tuple((self.now_us - us, end) for us, end in marks)

    def _thin(self, part: int) -> None:
        marks = self._apart(part)
        self._times, self._ends = array("q", [us for us, _ in marks]), array("q", [end for _, end in marks])

    def _apart(self, part: int) -> list[tuple[int, int]]:
        """The marks, as many as are the given part of their age from the next newer one."""
        marks: list[tuple[int, int]] = []
        before_us = self.now_us
        for us, end in zip(reversed(self._times), reversed(self._ends), strict=True):
            if not marks or before_us - us >= max(STEP_US, (self.now_us - us) // part):
                marks.append((us, end))
                before_us = us
        return marks[::-1]
