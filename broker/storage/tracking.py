"""A log that knows the last record of each subject, once somebody has asked: the table of `subjects.py`, kept by the
files of `state.py`.

    nobody asked       no table, no section, no cost
    the first asks     a state file says from now on that the partition is tracked; the log is read
    carried            what the newest state file says; the log above it is being read, piece by piece, beside appends
    live               each append notes its subjects under the append lock

A small log is read where it is asked; a larger one by `build_subjects`, away from the append lock but for what comes at
the end. Until then nobody is told anything.

U1  A live table tells of all records below the log end. An append that fails leaves it as it was.
U2  What was ever told holds after a restart: the state file has it, or the log above `next_offset` of the file's table;
    so nothing above that is written anew with fewer records (`rewritable_end`). Retention may take it: then there is
    none. So may damage: what is lost counts as removed.
U3  Whatever is not certain (a table that may have missed an append, a log that has lost its tail) is dropped, and read
    anew.

Design: docs/adr/0019-last-sequence-of-a-subject.md.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.api.batch import read_header
from broker.storage.checkpoint import LogIdentity, LogSettings
from broker.storage.disk import Disk
from broker.storage.read import bytes_between
from broker.storage.remembering import RememberingLog
from broker.storage.rows import Conditional, Encodable, is_conditional
from broker.storage.state import SUBJECTS, load_state
from broker.storage.subjects import Latest, SubjectTable, read_head

BUILT_AT_ONCE_BYTES: Final = 1 << 20
"""So much of the log, and of a state file, is read under the append lock: some milliseconds."""
PIECE_BYTES: Final = 4 << 20
"""What one call of `build_subjects` reads, about: some 50 ms."""
SUBJECTS_KEPT_AT_ONCE: Final = 1 << 14
"""A roll writes a table of so many subjects itself, as with ids."""


@dataclass(slots=True)
class _Growing:
    """A table that is being built: of all records below `next_offset`. None: it is not read yet."""

    table: SubjectTable | None = None
    next_offset: int = 0


class SubjectLog(RememberingLog):
    """See the module. What `PartitionLog` needs of it begins with `_`."""

    def __init__(self, disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings, boot_id: str) -> None:
        super().__init__(disk, folder, identity, settings, boot_id)
        self._subjects: SubjectTable | None = None  # live
        self._carried: bytes | None = None  # a snapshot; at most one of the two is there
        self._growing: _Growing | None = None
        self._is_wanted = False  # somebody asks for the first time, and all must be durable before that is written
        self._build_lock = threading.Lock()  # before all others
        self._told: tuple[int, int | None] | None = None  # newest state file, and up to where it tells of subjects

    @property
    def lacks_subjects(self) -> bool:
        """Whether there is something for `build_subjects` to do."""
        return (self._carried is not None or self._is_wanted) and self.settings.subjects_max > 0

    def build_subjects(self) -> bool:
        """Read a piece of what the table lacks. Returns whether there is more. One caller at a time does it.

        Raises:
            StorageFailed, CorruptLog: the log cannot be read; may be tried again.
        """
        with self._build_lock:
            if self._is_wanted:
                with self._sync_lock, self._lock:
                    if self.failure is None and self._is_wanted:
                        self._is_wanted = False
                        self._known_producers()
                        if self._subjects is None and self._carried is None:
                            self._begin_tracking()
            with self._lock:
                if self.failure is not None or self._carried is None or not self.lacks_subjects:
                    return False
                growing = self._growing = self._growing or _Growing()
                carried, end = self._carried, self.log_end_offset
            self._grow(growing, carried, end, PIECE_BYTES)
            with self._lock:
                if self._growing is growing and self.failure is None and self._left(growing) <= BUILT_AT_ONCE_BYTES:
                    self._grow(growing, carried, self.log_end_offset)
                    self._go_live(growing)
                return self.lacks_subjects

    def _grow(self, growing: _Growing, carried: bytes, end: int, bytes_max: int = 1 << 62) -> None:
        if growing.table is None:
            growing.next_offset = read_head(carried).next_offset
            growing.table = SubjectTable.restore(carried)
        table, read_bytes = growing.table, 0
        start = max(growing.next_offset, self.log_start_offset)
        table.begin(self.log_start_offset, self.settings.subjects_max)
        for message in self._messages(start, end, whole=True) if start < end else ():
            table.note(table.digest(message, start))
            growing.next_offset = read_header(message).next_offset
            read_bytes += len(message)
            if read_bytes >= bytes_max:
                return
        growing.next_offset = end

    def _left(self, growing: _Growing) -> int:
        return self._ask(lambda view: bytes_between(view, growing.next_offset, view.log_end_offset))

    def _go_live(self, growing: _Growing) -> None:
        self._subjects, self._carried, self._growing = growing.table, None, None
        self._is_state_due = True  # so that compaction may go on

    # --- append -------------------------------------------------------------------------------------------------

    def _subjects_for(self, batch: Conditional) -> SubjectTable | None:
        if not batch.minds_subjects or not self.settings.subjects_max:
            return None
        self._known_producers()
        if self._subjects is None:
            if self._carried is None:
                if self._known_states() and self.durable_end < self.log_end_offset:
                    self._is_wanted = True  # the locks of a sync come before this one (L4)
                    return None
                self._begin_tracking()
            if self._growing is None and self._carried is not None:
                growing = _Growing(next_offset=read_head(self._carried).next_offset)
                if self._left(growing) + len(self._carried) <= BUILT_AT_ONCE_BYTES:
                    self._grow(growing, self._carried, self.log_end_offset)
                    self._go_live(growing)
        if self._subjects is not None:
            self._subjects.begin(self.log_start_offset, self.settings.subjects_max)
        return self._subjects

    def _begin_tracking(self) -> None:
        """From now on the state says that subjects are tracked (U2). Under the sync lock, unless all is durable."""
        with self._guarded("write state"):
            if self._known_states():
                self._sync_now()
            self._carried = SubjectTable().snapshot(0)
            try:
                self._save_state(self.durable_end, anew=True)
            except BaseException:
                self._carried = None
                raise

    def _latest_in(self, messages: Sequence[bytes | bytearray | memoryview]) -> list[Latest]:
        """Before they are written: what is to be noted of messages whose batches do not do it themselves."""
        table = self._subjects
        return [] if table is None else [table.digest(message) for message in messages]

    def _note_subjects(self, batches: Sequence[Encodable], latest: Sequence[Latest], first_offset: int) -> None:
        """Remember what was just appended (U1)."""
        table = self._subjects
        if table is None:
            return
        try:
            table.begin(self.log_start_offset, self.settings.subjects_max)
            for found in latest:
                table.note(found)
            for batch in () if latest else batches:
                if is_conditional(batch) and not batch.minds_subjects:
                    batch.note_subjects(table, first_offset)
                first_offset += batch.record_count
        except BaseException:
            self._forget_tables()  # U3
            raise

    # --- keep ---------------------------------------------------------------------------------------------------

    def update_settings(self, settings: LogSettings) -> None:
        """Take other limits from now on."""
        with self._lock:
            if (settings.subjects_max == 0) != (self.settings.subjects_max == 0):
                self._forget_tables()
            super().update_settings(settings)

    def rewritable_end(self) -> int:
        """Below it, sealed segments may be written anew with fewer records (U2)."""
        end = super().rewritable_end()
        with self._lock:
            states = self._known_states()
            if not states:
                return end
            if self._told is None or self._told[0] != states[0]:
                sections = load_state(self._disk, self.folder, states[0])
                self._told = (states[0], _told_to(sections) if sections is not None else 0)
            told_to = self._told[1]
            return end if told_to is None else min(end, told_to)

    def _sections(self, offset: int) -> dict[str, bytes]:
        sections = super()._sections(offset)
        table, carried = self._subjects, self._carried
        if self.settings.subjects_max and table is not None:
            assert offset == self.log_end_offset, "of a live table only the end is told"
            assert not self._is_settling, "the table is ahead of the log"
            table.begin(self.log_start_offset, self.settings.subjects_max)
            sections[SUBJECTS] = table.snapshot(offset)
        elif self.settings.subjects_max and carried is not None:
            sections[SUBJECTS] = carried
        return sections

    def _write_state(
        self, sections: Mapping[str, bytes], offset: int, *, anew: bool = False, frees: bool = False
    ) -> None:
        super()._write_state(sections, offset, anew=anew, frees=frees)
        if self._states == [offset]:
            self._told = (offset, _told_to(sections))

    def _is_large(self) -> bool:
        return super()._is_large() or (self._subjects is not None and len(self._subjects) > SUBJECTS_KEPT_AT_ONCE)

    def _take_sections(self, sections: Mapping[str, bytes]) -> None:
        found = sections.get(SUBJECTS) if self.settings.subjects_max else None
        if found is not None and (head := read_head(found)).next_offset > self.log_end_offset:
            found = SubjectTable(head.key).snapshot(0)  # U3
        self._subjects, self._growing, self._carried = None, None, found

    def _forget_tables(self) -> None:
        super()._forget_tables()
        self._subjects = self._growing = self._carried = None
        self._is_wanted = False


def _told_to(sections: Mapping[str, bytes]) -> int | None:
    """Up to where a state file tells of subjects; None: they are not tracked."""
    return read_head(sections[SUBJECTS]).next_offset if SUBJECTS in sections else None
