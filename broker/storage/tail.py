"""Where the next append goes: a log that keeps its tail ready, and begins another segment or leader epoch when due.

All of it is done under the append lock, by the operations of `log.py`.
"""

from __future__ import annotations

from broker.storage.epochs import write_epochs
from broker.storage.index import GrowingIndex
from broker.storage.read import NeedsRepair
from broker.storage.tracking import SubjectLog


class TailLog(SubjectLog):
    """See the module."""

    def _tail_for(self, size: int, now_us: int) -> GrowingIndex:
        """The index of the tail that has room for `size` bytes; its file is open."""
        try:
            index = self._chain.awake()
        except NeedsRepair:
            index = self._awake()
        if index is not None and index.count and index.end + size > self.settings.segment_bytes:
            self._chain.seal()
            self.durable_end = self.log_end_offset
            self._keep_state()
            index = None
        if index is None:
            index = self._chain.begin(self.log_end_offset)
        if index.count == 0 and self._chain.tail is not None:
            self._chain.tail.created_us = now_us
        return index

    def _awake(self) -> GrowingIndex | None:
        try:
            return self._chain.awake()
        except NeedsRepair as damage:
            self._repair(damage.segment)
            return self._chain.awake()

    def _seal(self) -> bool:
        with self._guarded("roll"):
            self._awake()
            is_sealed = self._chain.seal()
        if is_sealed:
            self.durable_end = self.log_end_offset
            self._keep_state()
        return is_sealed

    def _begin_epoch(self, leader_epoch: int) -> None:
        """Before the first append of a later leader epoch."""
        assert leader_epoch > self.leader_epoch, f"leader epoch {leader_epoch} after {self.leader_epoch}"
        epochs = self._known_epochs().trimmed(self.log_start_offset)
        epochs.begin(leader_epoch, self.log_end_offset)
        write_epochs(self._disk, self.folder, epochs)
        self._epochs, self.leader_epoch = epochs, leader_epoch
