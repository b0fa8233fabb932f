"""A state file that goes from a leader to a follower that lacks one (`state_files.T6`).

    leader      offered   the newest file that tells of nothing beyond what the follower has fsynced, and of all that
                          its log begins above
                piece     some bytes of it
    follower    take      piece after piece, in memory; with the last one all of it is checked, and written as
                          one file, durably, or forgotten

H1  A file that is taken counts whole or not at all: before its CRC and its tables were read nothing is on the disk.
H2  It tells of nothing beyond the durable end (`state_files.T2`), and of no log that was cut since it was begun.
H3  A file that its leader finds damaged is not offered again: another is made of the tables.
H4  The high watermark on disk is never below what was written anew, here or where it was copied from: it is written
    down before a pass of compaction, and before a file is taken. By it whoever leads after a start tells others how
    far records may be missing.

Any thread may call. A leader's side reads and writes without the append lock (`state.L10`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from broker.api.errors import LiftlogError, NotReady
from broker.storage.memory.memory import Memory
from broker.storage.memory.state_files import PRODUCERS, decode_state, state_name

if TYPE_CHECKING:
    from broker.storage.remembered import Remembered
    from broker.storage.writing.checkpoints import Checkpoints

STATE_BYTES_MAX: Final = 1 << 30
"""A state file that is larger is not taken. 8 million ids, or as many subjects, take less."""


class Handover:
    """See the module."""

    def __init__(self, remembered: Remembered, checkpoints: Checkpoints) -> None:
        self._remembered = remembered
        self._state, self._checkpoints = remembered.state, checkpoints
        self._states = remembered.states
        self._taken = bytearray()
        self._of = (-1, -1, -1)  # its offset, its size, and how often the log had been cut

    # --- the leader -----------------------------------------------------------------------------------------

    def offered(self, start: int, end: int) -> int:
        """Offset of the newest state file that tells of all below `start`, and of nothing at or above `end`; -1: there
        is none, or not yet.

        Args:
            start: The follower's log may not tell all below it: those records are below its log start, or were
                copied before this one led (`replication.leader.L11`).
            end: End of what the follower has fsynced.
        Raises:
            StorageFailed, DiskFull: one is needed, and cannot be written.
        """
        states = self._states
        with self._state.sync_lock, self._state.guarded("write state"):
            states.look()
            if self._state.failure is not None:
                return -1
            if not states.offsets:  # the disk was full when it began to lead
                self._remembered.begin_to_lead()
            if states.offsets and states.offsets[0] < start:  # what is below is told by segments that are still there
                with suppress(NotReady):  # `remembered.U5`: not yet
                    self._remembered.keep_committed()
                    # not committed: it goes where its records are cut
                    if states.offsets[0] < start <= self._state.durable_end:
                        self._remembered.keep_end()
            return next((offset for offset in states.offsets if start <= offset <= end), -1)

    def rewritten_to(self) -> int:
        """Below it a compacted log may lack records of which only a state file tells: of their ids, their subjects.

        At most the high watermark: who has all that is committed does not copy what was written anew (H4).
        """
        with self._state.guarded("read state"):
            self._states.look()
            kept, offsets = self._remembered.kept_offset(), self._states.offsets
            return kept if kept >= 0 else min(offsets[0] if offsets else 0, self._state.high_watermark)

    def piece(self, offset: int, at: int, length: int) -> tuple[bytes, int] | None:
        """At most `length` bytes of a state file from `at` on, and its size. None: there is no such file any more."""
        with self._state.guarded("read state"):
            self._states.look()
            if offset not in self._states.offsets:
                return None
            try:
                if at or self._states.load(offset) is not None:
                    return self._states.piece(offset, at, length)
            except FileNotFoundError:
                return None
            self._replace(offset)
            return None

    def _replace(self, damaged: int) -> None:
        """H3. The tables of now are known without it, or read from what else there is."""
        with self._state.sync_lock, suppress(NotReady):  # `remembered.U5`: it is asked for again
            self._state.recovery.notes.append(f"{self._state.folder}/{state_name(damaged)} is damaged: made anew")
            if self._remembered.keep_end(anew=True) != damaged:
                self._states.drop(damaged)

    # --- the follower ---------------------------------------------------------------------------------------

    @property
    def lacks(self) -> bool:
        """Whether this log waits for a state file."""
        with self._state.guarded("read state"):
            self._states.look()
            return self._remembered.lacks_state

    def take(self, offset: int, at: int, data: bytes, size: int) -> bool:
        """Take a piece. Returns whether the log has a state file now.

        Args:
            offset, size: The offset of the file, and its length.
            at: Where the piece belongs. One that does not follow on the last one begins anew, or is dropped.
        Raises:
            StorageFailed, DiskFull: it was whole, and could not be written; it is to be sent again.
        """
        of = (offset, size, self._state.cuts)
        with self._state.checkpoint_lock, self._state.lock, self._state.guarded("write state"):
            if not self._remembered.lacks_state:
                return True
            if at == 0:
                self._taken, self._of = bytearray(), of
            if of != self._of or at != len(self._taken) or at + len(data) > min(size, STATE_BYTES_MAX):
                self._taken, self._of = bytearray(), (-1, -1, -1)
                return False
            self._taken += data
            if len(self._taken) < size:
                return False
            whole = bytes(self._taken)
            self._taken, self._of = bytearray(), (-1, -1, -1)
            if not self._is_sound(offset, whole):
                return False
            self._checkpoints.keep()  # H4
            self._states.install(offset, whole)
            self._remembered.forget()
            return True

    def _is_sound(self, offset: int, data: bytes) -> bool:
        """H1, H2."""
        if not 0 <= offset <= self._state.durable_end:
            return False
        try:
            sections = decode_state(data, offset, where=f"{self._state.folder}/{state_name(offset)}")
            if sections is None or PRODUCERS not in sections:
                return False
            Memory.restore(sections, self._state.settings, self._state.log_end_offset, ages=self._state.ages)
        except LiftlogError as error:
            self._state.recovery.notes.append(f"{self._state.folder}: a state file that was sent is no use: {error}")
            return False
        return True
