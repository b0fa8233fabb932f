"""Last records of subjects, once somebody has asked.

    nobody asked       no table, no section, no cost
    the first asks     a state file says from now on that the partition is tracked; the log is read
    carried            what the newest state file says; the log above it is being read, piece by piece,
                       beside appends
    live               each append notes its subjects under the append lock

A small log is read where it is asked; a larger one by `build`, away from the append lock but for what
comes at the end. Until then nobody is told anything (`remembered.U1` to `remembered.U3`).

Design: docs/adr/0019-last-sequence-of-a-subject.md.
"""

from __future__ import annotations

import threading
from typing import Final

from broker.api.batch import read_header
from broker.storage.memory.memory import Growing, Memory
from broker.storage.memory.subjects import SubjectTable, read_head
from broker.storage.read import bytes_between
from broker.storage.remembered import Remembered
from broker.storage.rows import Conditional

BUILT_AT_ONCE_BYTES: Final = 1 << 20
"""So much of the log, and of a state file, is read under the append lock: some milliseconds."""
PIECE_BYTES: Final = 4 << 20
"""One call of `build` reads about so much: some 50 ms."""


class Tracking:
    """See the module."""

    __slots__ = ("_build_lock", "_remembered", "_state")

    def __init__(self, remembered: Remembered) -> None:
        self._remembered = remembered
        self._state = remembered.state
        self._build_lock = threading.Lock()  # before all others

    @property
    def lacks_some(self) -> bool:
        """Whether there is something for `build` to do."""
        memory = self._remembered.memory
        is_carried = memory is not None and memory.carried is not None
        return (is_carried or self._remembered.is_wanted) and self._state.settings.subjects_max > 0

    def build(self) -> bool:
        """Read a piece of what the table lacks. Returns whether there is more. One caller at a time does it.

        Raises:
            StorageFailed, CorruptLog: the log cannot be read; may be tried again.
        """
        with self._build_lock:
            if self._remembered.is_wanted:
                self._remembered.read_ahead()
                with self._state.sync_lock, self._state.lock:
                    if self._state.failure is None and self._remembered.is_wanted:
                        self._remembered.is_wanted = False
                        memory = self._remembered.known()
                        if memory.subjects is None and memory.carried is None:
                            self._begin_tracking(memory)
            with self._state.lock:
                known = self._remembered.memory
                if self._state.failure is not None or known is None or known.carried is None or not self.lacks_some:
                    return False
                growing = known.growing = known.growing or Growing()
                carried, end = known.carried, self._state.log_end_offset
            self._grow(growing, carried, end, PIECE_BYTES)
            if self._left(growing) <= BUILT_AT_ONCE_BYTES:  # what comes after that is not on a disk alone (`state.L10`)
                self._grow(growing, carried, self._state.log_end_offset)
            with self._state.lock:
                if (
                    self._remembered.memory is known
                    and known.growing is growing
                    and self._state.failure is None
                    and self._left(growing) <= BUILT_AT_ONCE_BYTES
                ):
                    self._grow(growing, carried, self._state.log_end_offset)
                    self._go_live(known, growing)
                return self.lacks_some

    def table_for(self, batch: Conditional) -> SubjectTable | None:
        """The table that a batch's expectations are settled with; None: there is none, or not yet.

        Raises:
            NotReady: a record that cannot be read may decide them (`remembered.U5`).
        """
        subjects_max = self._state.settings.subjects_max
        if not batch.minds_subjects or not subjects_max:
            return None
        memory = self._remembered.known()
        if memory.subjects is None:
            if memory.carried is None:
                if self._remembered.has_states() and self._state.durable_end < self._state.log_end_offset:
                    self._remembered.is_wanted = True  # the locks of a sync come before this one (`state.L4`)
                    return None
                self._begin_tracking(memory)
            if memory.growing is None and memory.carried is not None:
                growing = Growing(next_offset=read_head(memory.carried).next_offset)
                if self._left(growing) + len(memory.carried) <= BUILT_AT_ONCE_BYTES:
                    self._grow(growing, memory.carried, self._state.log_end_offset)
                    self._go_live(memory, growing)
        if memory.subjects is not None:
            self._remembered.check_whole(memory, self._state.log_start_offset)
            memory.subjects.begin(self._state.log_start_offset, subjects_max)
        return memory.subjects

    def _begin_tracking(self, memory: Memory) -> None:
        """From now on the state says that subjects are tracked (`remembered.U2`). Under the sync lock,
        unless all is durable."""
        with self._state.guarded("write state"):
            if self._remembered.states.offsets:
                self._remembered.syncer.sync_now()
            memory.carried = SubjectTable().snapshot(0)
            try:
                self._remembered.save(self._state.durable_end, anew=True)
            except BaseException:
                memory.carried = None
                raise

    def _grow(self, growing: Growing, carried: bytes, end: int, bytes_max: int = 1 << 62) -> None:
        if growing.table is None:
            growing.next_offset = read_head(carried).next_offset
            growing.table = SubjectTable.restore(carried)
        table, read_bytes, lost = growing.table, 0, self._state.lost_ranges
        start = max(growing.next_offset, self._state.log_start_offset)
        table.begin(self._state.log_start_offset, self._state.settings.subjects_max)
        for message in self._remembered.reader.messages(start, end, whole=True) if start < end else ():
            table.note(table.digest(message, start))
            growing.next_offset = read_header(message).next_offset
            read_bytes += len(message)
            if read_bytes >= bytes_max:
                break
        else:
            growing.next_offset = end
        missed_to = self._remembered.missed(lost, start, growing.next_offset)
        growing.missed_to = max(growing.missed_to, missed_to)

    def _left(self, growing: Growing) -> int:
        return self._state.ask(lambda view: bytes_between(view, growing.next_offset, view.log_end_offset))

    def _go_live(self, memory: Memory, growing: Growing) -> None:
        memory.subjects, memory.carried, memory.growing = growing.table, None, None
        memory.missed_to = max(memory.missed_to, growing.missed_to)
        self._remembered.is_due = True  # so that compaction may go on
