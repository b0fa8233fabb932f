"""Mends taken out again, one at a time, to show that the soak finds what they mend.

Each is a few lines over the class that was mended, and raises AttributeError where that has changed: then write it anew
for what stands there now, or take it out together with what it is about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def half_message() -> None:
    """`alter` gives a slot a new builder; a message that is half read completes into the one that nobody knows."""
    from broker.intake.flush import Flusher

    after_feed = Flusher.after_feed

    def alter(self: Any, slot: Any, info: Any) -> None:
        self._flush(slot, force=True)
        slot.builder.tag = None
        slot.builder = self.add(info, slot.partition).builder
        slot.builder.tag = slot
        self._configure(slot, info)

    def raising(self: Any) -> None:
        for builder in self._intake.dirty():
            if builder.tag is None:
                raise KeyError(builder)
        after_feed(self)

    _replace(Flusher, alter=alter, after_feed=raising)


def ids_kept() -> None:
    """A batch that could not be appended takes back its ids by places that are old, if the table has grown for it."""
    from broker.storage.memory.ids import IdTable

    reserve, take_back = IdTable.reserve, IdTable.take_back
    moved: dict[int, int] = {}

    def noting(self: IdTable, *args: Any) -> None:
        before = int(self.places[1])
        reserve(self, *args)
        moved[id(self)] = before - int(self.places[1])

    def taking(self: IdTable, tail: int) -> None:
        take_back(self, tail + moved.get(id(self), 0))

    _replace(IdTable, reserve=noting, take_back=taking)


def ids_by_the_time_of_day() -> None:
    """The clock that a window is measured by is the one that somebody sets."""
    from broker.storage.log import PartitionLog

    settle = PartitionLog._settle

    def by_wall(self: Any, batch: Any, wall_us: int, fence: int) -> Any:
        ages = self.state.ages
        elapsed_us, ages.now_us = ages.now_us, wall_us
        try:
            return settle(self, batch, wall_us, fence)
        finally:
            ages.now_us = elapsed_us

    _replace(PartitionLog, _settle=by_wall)


def durable_end() -> None:
    """A roll beside a failing sync fsyncs the same file, is told nothing, and passes for durable."""
    from broker.storage.segments.chain import Chain

    def sync(self: Chain, file: Any) -> None:
        file.sync()

    _replace(Chain, sync=sync)


def commits_alone() -> None:
    """A leader takes for committed what it has on its own disk, whatever its followers have."""
    from broker.replication.insync import InSync

    _replace(InSync, durable_end=lambda self, own_end: own_end)


def _replace(cls: type, **functions: Any) -> None:
    for name, function in functions.items():
        getattr(cls, name)
        setattr(cls, name, function)


MUTANTS: dict[str, Callable[[], None]] = {
    "half-message": half_message,
    "ids-kept": ids_kept,
    "ids-by-wall": ids_by_the_time_of_day,
    "durable-end": durable_end,
    "commits-alone": commits_alone,
}
