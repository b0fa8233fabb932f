"""The leader epochs: those in which the records were written, and the one of now.

L6  Leader epochs never go down along a log. Once somebody has told it whom it follows or leads as,
    another epoch is refused.

L7  Where file and batch say different epochs of a record, the batch is right: a reset that was killed
    leaves the file of the log that was to be, beside the records of the one that was. If the file were
    believed, another leader's records would pass for those of an epoch that the new leader has.

L9  A file that is older than the checkpoint beside it is not believed: each epoch is in the file before
    the first record of it is written. A leader that lacks one finds no follower who agrees with it.
    Nor is one of a later time, when the log began further up, or had other records (L7).

The epochs of the records are in the file `epochs`, which can be derived from the batches. The log is
told anew after each open whom it follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.api.errors import NotLeader
from broker.storage.recovery import RecoveredLog
from broker.storage.segments.checkpoint import Checkpoint
from broker.storage.segments.epochs import Epochs, derive_epochs, load_epochs, write_epochs
from broker.storage.writing.state import LogState


class EpochEnd(NamedTuple):
    """The greatest leader epoch that is not above the one asked for, -1 for none, and the first offset
    after its records and those of all before it."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """See the module.

    Attributes:
        latest: Leader epoch of the last record; -1 before the first.
        led: The epoch that it leads in; None: it does not, or nobody has said.
    """

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._epochs: Epochs | None = None  # None: not read yet
        self._told = -1  # the greatest epoch that it was told of; -1: none yet
        self.latest = -1
        self.led: int | None = None

    def take_recovered(self, found: RecoveredLog, checkpoint: Checkpoint | None) -> bool:
        """The epochs of what recovery found. Returns whether their file says something else (`save`)."""
        state = self._state
        stored = load_epochs(state.disk, state.folder)
        start, end = found.log_start_offset, found.log_end_offset
        is_whole = stored is not None and _knows(stored, start, end)
        if stored is None or checkpoint is None or not is_whole or _is_older(stored, checkpoint, found.new_epochs):
            epochs = state.ask(derive_epochs)
        else:
            epochs = Epochs([*stored.items])
        epochs.cut(end)
        for epoch, first_offset in found.new_epochs:
            if epoch > epochs.latest:
                epochs.begin(epoch, first_offset)
        if any(epochs.epoch_of(max(first, start)) != epoch for epoch, first in found.new_epochs):  # L7
            epochs = state.ask(derive_epochs)
            epochs.cut(end)
        self.put(epochs)
        return epochs.items != (stored.items if stored is not None else [])

    def save(self) -> None:
        """Write them down as they are. OSError passes through."""
        write_epochs(self._state.disk, self._state.folder, self.known(), frees=True)

    # --- who leads ------------------------------------------------------------------------------------------

    def lead(self, leader_epoch: int) -> None:
        """From now on append in this epoch alone. `check_not_stale` comes first."""
        self.led = self._told = leader_epoch

    def follow(self, leader_epoch: int) -> None:
        """From now on take only what this epoch's leader has stored.

        Raises:
            NotLeader: a later epoch is known.
        """
        self.check_not_stale(leader_epoch, "follow")
        self.led, self._told = None, leader_epoch

    def check_not_stale(self, leader_epoch: int, doing: str) -> None:
        """Raise NotLeader if a later epoch is known."""
        if leader_epoch < max(self._told, self.latest):
            raise self.refusal(f"{doing} in leader epoch {leader_epoch}")

    def check_leads(self, leader_epoch: int) -> None:
        """Before an append in an epoch other than `led`: nobody may have said who leads (L6)."""
        if self._told >= 0 or leader_epoch < self.latest:
            raise self.refusal(f"append in leader epoch {leader_epoch}")

    def check_follows(self, leader_epoch: int) -> None:
        """Before what the leader of this epoch has stored is appended."""
        if self.led is not None or leader_epoch != self._told:
            raise self.refusal(f"append records that leader epoch {leader_epoch} has stored")

    def refusal(self, doing: str) -> NotLeader:
        """The error of who is not to do this."""
        what = "leads" if self.led is not None else "follows" if self._told >= 0 else "has records"
        epoch = max(self._told, self.latest)
        return NotLeader(f"{self._state.folder}: cannot {doing}: it {what} in {epoch}", leader_epoch=epoch)

    # --- the records' ---------------------------------------------------------------------------------------

    def begin(self, leader_epoch: int) -> None:
        """Before the first append of a later leader epoch. OSError passes through; nothing has changed."""
        assert leader_epoch > self.latest, "L6"
        state = self._state
        epochs = self.known().trimmed(state.log_start_offset)
        epochs.begin(leader_epoch, state.log_end_offset)
        write_epochs(state.disk, state.folder, epochs)
        self.put(epochs)

    def forget_empty(self) -> None:
        """An append has failed: the epoch that it began has no record, so it is not the last one's. Reads no file."""
        if self._epochs is not None:  # else none was begun
            epochs = Epochs([*self._epochs.items])
            epochs.cut(self._state.log_end_offset)
            self.put(epochs)

    def write(self, items: Sequence[tuple[int, int]], *, end: int) -> Epochs:
        """Write down other epochs, as far as they begin below `end`; in memory they stand with `put`."""
        epochs = Epochs([*items])
        epochs.cut(end)
        write_epochs(self._state.disk, self._state.folder, epochs, frees=True)
        return epochs

    def put(self, epochs: Epochs) -> None:
        """These are on disk."""
        self._epochs, self.latest = epochs, epochs.latest

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that wrote `offset`; -1 when there is no such record, or not any more."""
        return self.known().epoch_of(offset) if offset < self._state.log_end_offset else -1

    def end_of(self, epoch: int) -> EpochEnd:
        """Where the records of `epoch` end, or of the last one before it that has any (KIP-279).

        A follower whose last epoch has another end here cuts there, and asks for its last epoch again:
        one end alone does not tell it whether the two logs agree up to it.
        """
        epochs, end = self.known(), self._state.log_end_offset
        return EpochEnd(epochs.last_until(epoch), epochs.end_of(epoch, end))

    @property
    def superseded_there(self) -> tuple[int, int]:
        """`LogState.superseded` for who copies this log while it leads."""
        to, epoch = self._state.superseded
        return to, self.epoch_of(to - 1) if to and epoch < 0 else epoch

    def known(self) -> Epochs:
        """All of them, read from their file or the batches."""
        epochs, state = self._epochs, self._state
        if epochs is None:
            with state.guarded("read epochs"):
                epochs = self._read()
            with state.lock:
                if self._epochs is None:  # else an append has begun one meanwhile
                    self._epochs = epochs
                return self._epochs
        return epochs

    def _read(self) -> Epochs:
        """From the file, if it ends as the checkpoint said that the log does (L9)."""
        state = self._state
        end = state.log_end_offset
        epochs = load_epochs(state.disk, state.folder)
        if epochs is not None:
            epochs.cut(end)  # an append that failed may have begun one
            if epochs.latest == self.latest and _knows(epochs, state.log_start_offset, end):
                return epochs
        epochs = state.ask(derive_epochs)
        if not epochs.items and self.latest >= 0 and end:
            epochs.begin(self.latest, end - 1)  # nothing is stored, and somebody may end there
        return epochs


def _knows(epochs: Epochs, start: int, end: int) -> bool:
    """Whether it has the epoch of the first record of the log, if there is any (L9)."""
    return start >= end or epochs.epoch_of(start) >= 0


def _is_older(stored: Epochs, checkpoint: Checkpoint, scanned: Sequence[tuple[int, int]]) -> bool:
    """Whether the file lacks an epoch that the checkpoint knew, or one of a batch below the recovery point (L9)."""
    known = [(epoch, first) for epoch, first in scanned if first < checkpoint.recovery_point]
    return stored.latest < checkpoint.leader_epoch or any(stored.epoch_of(first) != epoch for epoch, first in known)
