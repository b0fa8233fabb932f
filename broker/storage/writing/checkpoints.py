"""The checkpoint of a log: what is in its file, and when it is written anew. Its rules: `checkpoint.K1`
to `checkpoint.K3`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from broker.storage.segments.checkpoint import CHECKPOINT_FILE, Checkpoint
from broker.storage.writing.leader_epochs import LeaderEpochs
from broker.storage.writing.state import LogState

EMPTY: Final = Checkpoint()
"""What a log says that never had a record. It needs no file for that: one comes with the first record
(`checkpoint.K4`), or with the clean mark."""


class Checkpoints:
    """See the module.

    Attributes:
        written: The checkpoint in the file; None: there is none. is_sure: Unless a write has failed, and may have been
            made all the same.
        is_marked_clean: It says that the log was closed cleanly.
    """

    def __init__(self, state: LogState, epochs: LeaderEpochs, boot_id: str) -> None:
        self._state = state
        self._epochs = epochs
        self._boot_id = boot_id
        self.written: Checkpoint | None = None
        self.is_sure = True
        self.is_marked_clean = False

    @property
    def is_dirty(self) -> bool:
        """Whether there is something new for `checkpoint` to write."""
        found, state = self.written or EMPTY, self._state
        return not self.is_sure or (
            found.high_watermark,
            found.log_start_offset,
            found.recovery_point,
            found.lost_ranges,
        ) != (self._committed, state.log_start_offset, state.durable_end, state.lost_ranges)

    @property
    def _committed(self) -> int:
        """The high watermark to write down: above the log end while nobody else was told of that (`recovery.R8`)."""
        return max(self._state.high_watermark, self._state.committed_to)

    @property
    def kept_start_offset(self) -> int:
        """The log start by the file: a later one may be undone by a crash (`checkpoint.K3`)."""
        return min(self._state.log_start_offset, self.written.log_start_offset if self.written is not None else 0)

    @property
    def kept_end_offset(self) -> int:
        """So far all is committed and on disk by the file: no recovery ends below (`recovery.R1`)."""
        return 0 if self.written is None else min(self.written.high_watermark, self.written.recovery_point)

    @property
    def is_lacking(self) -> bool:
        """Whether one is to be written before the next append (`checkpoint.K2`, `checkpoint.K4`)."""
        return self.is_marked_clean or self.written is None

    @property
    def is_up_to_date(self) -> bool:
        """Whether the file says all that there is to say, and no index is in memory that may be ahead of its file.

        Without a lock, and for much less than a point costs: thousands of idle logs are asked in each round.
        """
        found, tail = self.written or EMPTY, self._state.chain.tail
        if self.is_dirty or found.leader_epoch != self._epochs.latest:
            return False
        if tail is None or found.tail is None:
            return tail is None and found.tail is None
        partial = tail.partial  # None: it is being sealed or scanned anew, and may still be the tail for as long
        return tail.live is None and partial is not None and found.tail == tail.point(partial, self._state.disk)

    def keep(self, *, clean: bool = False, withdraw: bool = False) -> None:
        """Write down how far the log is, so that the next open starts there. Nothing new: nothing is written.

        Args:
            clean: Also set the clean mark, if the log is wholly durable; an append may have come since it was synced.
            withdraw: Take the clean mark away although nothing is new: an append is about to come
                (`checkpoint.K2`). Otherwise it stays as long as it holds, so thousands of idle logs are
                written neither after a start nor at a stop.
        Raises:
            StorageFailed, DiskFull: the old checkpoint stands.
        """
        with self._state.checkpoint_lock, self._state.guarded("checkpoint"):
            with self._state.lock:
                if self._state.is_closed:
                    self._state.check_writable()
                point = self.point(clean=clean and self._state.durable_end == self._state.log_end_offset)
            if self._state.vault is not None and not withdraw:  # an append waits for that
                self._state.vault.keep(self._state.disk, self._state.folder)
            is_new = point != replace(self.written or EMPTY, clean_boot_id=None)
            if clean or withdraw or is_new or not self.is_sure:
                self.write(point)

    def point(self, *, clean: bool = False, flush: bool = True) -> Checkpoint:
        """The checkpoint as it would be written now. `flush`: bring the tail's index file up to it."""
        state = self._state
        assert not clean or state.durable_end == state.log_end_offset, "a clean mark on a log that is not durable"
        return Checkpoint(
            high_watermark=self._committed,
            log_start_offset=state.log_start_offset,
            recovery_point=state.durable_end,
            leader_epoch=self._epochs.latest,
            tail=state.chain.point(flush=flush),
            lost_ranges=state.lost_ranges,
            clean_boot_id=self._boot_id if clean and not state.committed_to else None,
            ages=state.ages.kept(state.durable_end),  # what is above may go, and others come there
        )

    def write(self, point: Checkpoint, *, frees: bool = False) -> None:
        """Write it, unless the file says so already. OSError passes through; the old one stands.

        Raises:
            StorageFailed: the log is closed (`state.L8`).
        """
        if self._state.is_closed:
            self._state.check_writable()
        if point != self.written or not self.is_sure:
            self.is_sure = False
            self._state.disk.replace_file(f"{self._state.folder}/{CHECKPOINT_FILE}", self._encoded(point), frees=frees)
            self.note(point)

    def may_say(self, point: Checkpoint) -> bool:
        """Whether a write of it that failed is in the file all the same."""
        try:
            return self._state.disk.read_file(f"{self._state.folder}/{CHECKPOINT_FILE}") == self._encoded(point)
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def _encoded(self, point: Checkpoint) -> bytes:
        vault = self._state.vault
        return (point if vault is None else replace(point, key=vault.check)).encode()

    def note(self, point: Checkpoint | None) -> None:
        """This is in the file."""
        self.written, self.is_sure = point, True
        self.is_marked_clean = point is not None and point.clean_boot_id is not None
