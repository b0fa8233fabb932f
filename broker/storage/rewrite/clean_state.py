"""How far the keys of a log were compacted: the file `compaction`. It holds two marks.

    [---- clean ----)[-------- dirty --------
                cleaned_to
      ....gone....    ..gone..          newer
                                             superseded_to

`cleaned_to` says something of records below it alone, so it is lowered, on disk, before records below it are taken
back: others may come to stand there. Without it all counts as dirty.

`superseded_to` says that records may be gone for newer ones that stand below it. It is raised, on disk, before the
first of them goes, here or in the log that this one is copied from. It is lowered only where nothing is missing any
more: after the log has begun anew, and when it leads. Where it is not known the high watermark counts for it, since no
record goes for one that is not committed; but in the log of a stream that is not compacted a missing file says 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final

from broker.api.plain import pairs_of_offsets
from broker.api.validation import build
from broker.storage.disk import Disk
from broker.storage.segments.checkpoint import open_json, seal_json

CLEAN_STATE_FILE: Final = "compaction"
HORIZONS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanState:
    """The content of the file.

    Attributes:
        cleaned_to: First offset that may have an earlier record of its key below it.
        horizons: (end, us): all below `end`, and at or above the `end` before, became clean then. Both ascend.
        tombstones_to: Tombstones below it are gone.
        tombstone_count: So many are left below `cleaned_to`.
        superseded_to: See the module; -1: not known, as in a file of an earlier release.
        superseded_epoch: Leader epoch of the record before it; -1: not known.
    """

    cleaned_to: int = 0
    horizons: tuple[tuple[int, int], ...] = ()
    tombstones_to: int = 0
    tombstone_count: int = 0
    superseded_to: int = -1
    superseded_epoch: int = -1

    def tombstone_end(self, now_us: int, delete_retention_ms: int) -> int:
        """Tombstones below it may go (`compaction.Q3`)."""
        clean_since_us = now_us - delete_retention_ms * 1_000
        return max([self.tombstones_to, *(end for end, us in self.horizons if us <= clean_since_us)])

    def after(self, end: int, *, now_us: int, tombstones_to: int, tombstone_count: int) -> CleanState:
        """The state after a pass that ended at `end`."""
        horizons = [(e, us) for e, us in self.horizons if e > tombstones_to]
        if end > self.cleaned_to:
            horizons.append((end, now_us))
        return replace(
            self,
            cleaned_to=max(end, self.cleaned_to),
            horizons=tuple(horizons[-HORIZONS_MAX:]),  # what is left out counts as clean since the next one: later
            tombstones_to=tombstones_to,
            tombstone_count=tombstone_count,
        )

    def lowered(self, end: int) -> CleanState:
        """The state of a log that lost what stood at or above `end`. The times at which the rest became clean stay."""
        if max(self.cleaned_to, self.tombstones_to) <= end:
            return self
        below = [(horizon, us) for horizon, us in self.horizons if horizon <= end]
        above = next(((end, us) for horizon, us in self.horizons if horizon > end), None)
        if above is not None and above[0] > max([0, *(horizon for horizon, _ in below)]):
            below.append(above)
        return replace(
            self,
            cleaned_to=min(self.cleaned_to, end),
            horizons=tuple(below),
            tombstones_to=min(self.tombstones_to, end),
        )


def load_clean_state(disk: Disk, folder: str) -> CleanState:
    """The state; a missing or damaged file is one that says nothing. OSError passes through.

    Raises:
        UnknownFormatVersion: a later release wrote it.
    """
    path = f"{folder}/{CLEAN_STATE_FILE}"
    try:
        values = open_json(disk.read_file(path), where=path)
    except FileNotFoundError:
        return CleanState()
    if values is None:
        return CleanState()
    try:
        horizons = pairs_of_offsets(values.pop("horizons", []))
        return build(CleanState, {**values, "horizons": horizons})
    except ValueError:
        return CleanState()


def save_clean_state(disk: Disk, folder: str, state: CleanState) -> None:
    """Write the file. OSError passes through."""
    disk.replace_file(f"{folder}/{CLEAN_STATE_FILE}", seal_json(asdict(state)), frees=True)


def lower_clean_state(disk: Disk, folder: str, end: int) -> None:
    """Before records at or above `end` go. OSError passes through."""
    state = load_clean_state(disk, folder)
    lowered = state.lowered(end)
    if lowered != state:
        save_clean_state(disk, folder, lowered)
