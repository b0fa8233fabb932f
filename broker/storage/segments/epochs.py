"""Which leader wrote what: leader epoch -> offset of its first record. The file `epochs`.

Both columns grow along the list. It has one entry for each leadership that appended, so it is
short. Derivable: every batch carries its epoch, and epochs only grow along a log, so the borders
are found by bisection over batch headers.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from broker.api.plain import pairs_of_offsets
from broker.storage.disk import Disk, File
from broker.storage.read import LogView, check_head, read_head
from broker.storage.segments.checkpoint import open_json, seal_json
from broker.storage.segments.index import IndexView
from broker.storage.segments.segment import Segment

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault

EPOCHS_FILE: Final = "epochs"


class Epochs:
    """The epochs of one log. Replaced, not changed, once readers may see it."""

    __slots__ = ("items",)

    def __init__(self, items: list[tuple[int, int]] | None = None) -> None:
        self.items = items or []

    @property
    def latest(self) -> int:
        """The epoch of the last record; -1 when there is none."""
        return self.items[-1][0] if self.items else -1

    def begin(self, epoch: int, first_offset: int) -> None:
        """Note that `epoch`, if it is not the current one, appends from `first_offset` on."""
        self.cut(first_offset)
        if epoch != self.latest:
            assert epoch > self.latest, f"leader epoch {epoch} after {self.latest}"
            self.items.append((epoch, first_offset))

    def cut(self, end_offset: int) -> None:
        """Forget epochs that begin at or after `end_offset`: their records are gone."""
        while self.items and self.items[-1][1] >= end_offset:
            self.items.pop()

    def trimmed(self, log_start_offset: int) -> Epochs:
        """Without the epochs whose records are all below the log start, but for that of the record before it: a
        follower whose log ends there asks for it, and would begin anew if nobody knew it."""
        return Epochs(self.items[max(0, self._at(log_start_offset - 1)) :])

    def epoch_of(self, offset: int) -> int:
        """The epoch that wrote `offset`; -1 when that is not known any more."""
        at = self._at(offset)
        return self.items[at][0] if at >= 0 else -1

    def end_of(self, epoch: int, log_end_offset: int) -> int:
        """First offset that an epoch later than `epoch` wrote; the log end when there is none."""
        return next((first for later, first in self.items if later > epoch), log_end_offset)

    def last_until(self, epoch: int) -> int:
        """The greatest epoch that is not above `epoch`; -1 when there is none."""
        return max((known for known, _ in self.items if known <= epoch), default=-1)

    def _at(self, offset: int) -> int:
        return bisect_right(self.items, offset, key=lambda item: item[1]) - 1


def write_epochs(disk: Disk, folder: str, epochs: Epochs, *, frees: bool = False) -> None:
    """`frees`: as `Disk.replace_file` takes it."""
    disk.replace_file(f"{folder}/{EPOCHS_FILE}", seal_json({"epochs": epochs.items}), frees=frees)


def load_epochs(disk: Disk, folder: str) -> Epochs | None:
    """The epochs file; None when it is missing or damaged.

    Raises:
        UnknownFormatVersion: a later release wrote it.
    """
    path = f"{folder}/{EPOCHS_FILE}"
    try:
        values = open_json(disk.read_file(path), where=path)
    except FileNotFoundError:
        return None
    if values is None:
        return None
    try:
        items = list(pairs_of_offsets(values.get("epochs")))
    except ValueError:
        return None
    is_rising = all(a < c and b < d for (a, b), (c, d) in pairwise(items))
    return Epochs(items) if is_rising and all(epoch < 1 << 32 for epoch, _ in items) else None


def derive_epochs(view: LogView) -> Epochs:
    """The epochs by the batches themselves.

    Raises:
        NeedsRepair: see there.
    """
    epochs = Epochs()
    for segment in view.segments:
        index = view.index(segment)
        file = view.disk.open(segment.path, readonly=True)
        try:
            at, epoch_of = 0, partial(_epoch_at, view.vault, segment, file, index)
            while at < len(index):
                epoch = epoch_of(at)
                if epoch > epochs.latest:
                    epochs.begin(epoch, int(index.first_offsets[at]))
                at = bisect_right(range(len(index)), epoch, at + 1, key=epoch_of)
        finally:
            file.close()
    return epochs


def _epoch_at(vault: Vault | None, segment: Segment, file: File, index: IndexView, at: int) -> int:
    check_head(vault, segment, file, index, at)
    return read_head(segment, file, index, at).leader_epoch
