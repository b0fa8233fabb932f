"""A log that knows its producers and its latest message ids: the tables of `producers.py` and `dedup.py`, kept by the
files of `state.py`.

    append   check ─ write ─ note         under the append lock, so that two requests cannot race
    roll     the tables as of the roll    so that the next open reads one segment at most; large ones soon after it
    close    the tables as of the end     so that it reads none

The tables are read when the first append with a stamp or an id, or the first roll, needs them. A log without a state
file has neither and does none of this (T1).

M1  Whatever an id is answered with was decided under the append lock, from what is in the log: nothing is pending.
M2  An append that fails leaves no id behind.

Design: docs/storage.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np

from broker.api.batch import BatchHeader, read_header
from broker.api.errors import BadBatch, CorruptLog, LiftlogError
from broker.storage.checkpoint import Checkpoint, LogIdentity, LogSettings
from broker.storage.dedup import Found, IdTable, ids_in
from broker.storage.disk import Disk, storage_error
from broker.storage.opened import OpenLog
from broker.storage.producers import Group, ProducerTable, Stamp
from broker.storage.read import LogView, plan_read, verified_messages
from broker.storage.recovery import RecoveryReport
from broker.storage.rows import Conditional, Encodable, RowBatch, is_conditional
from broker.storage.segment import Segment
from broker.storage.state import IDS, PRODUCERS, list_states, load_state, save_state, state_name
from broker.storage.subjects import SubjectTable

BATCHES_READ_BYTES: Final = 4 << 20
IDS_KEPT_AT_ONCE: Final = 1 << 14
"""A roll writes a table of so many ids itself, half a megabyte; a larger one is left to the next checkpoint."""


class RememberingLog(OpenLog):
    """See the module. What `PartitionLog` needs of it begins with `_`."""

    def __init__(self, disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings, boot_id: str) -> None:
        super().__init__(disk, folder, identity, settings, boot_id)
        self._producers: ProducerTable | None = None  # None: not read yet
        self._ids: IdTable | None = None  # likewise; both or none
        self._is_state_due = False  # a roll has left it to `_keep_due_state`
        self._is_settling = False  # the table of subjects is ahead of the log
        self._state_lock = threading.Lock()  # innermost: one state file is written at a time
        self._states: list[int] | None = None  # offsets of the state files, the newest first; None: not listed yet
        self._latest_us = 0  # the clock, as last told: who is found in the log by its batches counts as used then

    def _recover(self, checkpoint: Checkpoint | None, report: RecoveryReport, now_us: int) -> None:
        super()._recover(checkpoint, report, now_us)
        self._latest_us = max(self._latest_us, now_us)
        self._states = None
        self._forget_tables()
        if any(offset > self.log_end_offset for offset in self._known_states()):
            self._cut_state()

    # --- append -------------------------------------------------------------------------------------------------

    def _check_stamp(self, stamp: Stamp, record_count: int, now_us: int) -> Group | None:
        """The group that this one repeats, None when it is to be appended. Raises as `ProducerTable.check`."""
        table = self._known_producers()
        found = table.check(
            stamp,
            record_count=record_count,
            now_us=now_us,
            expiry_us=self.settings.producer_id_expiry_ms * 1_000,
            ids_max=self.settings.producer_ids_max,
        )
        if found is None and not self._known_states():
            self._begin_state()
        return found

    def _note_stamp(self, stamp: Stamp, first_offset: int, next_offset: int) -> None:
        """Remember what was just appended."""
        self._known_producers().note(stamp, first_offset, next_offset, now_us=self._latest_us)

    def needs_stamp(self, header: BatchHeader) -> bool:
        """Whether the producer stamp of a stored batch may still decide an append, also if the state files are lost."""
        stamp = Stamp(header.producer_id, header.producer_epoch, header.sequence)
        with self._lock:
            return self._known_producers().needs(stamp, self.high_watermark)

    @contextmanager
    def _settling(self, batch: Conditional) -> Iterator[None]:
        """Let a batch drop the records that are not to be stored, while it is appended; M2.

        Raises:
            StorageFailed, DiskFull: the ids are not known, or there is no place to keep them.
        """
        table, tail = None, 0
        subjects = self._subjects_for(batch)
        if self._window_us and batch.minds_ids:
            table = self._known_ids()
            if batch.id_count and not self._known_states():
                self._begin_state()
            batch.make_room(table, window_us=self._window_us, ids_max=self.settings.dedup_ids_max)
            tail = int(table.places[1])  # after the room: entries keep their places until they are taken back
        self._is_settling = subjects is not None
        try:
            batch.settle(
                table,
                subjects,
                next_offset=self.log_end_offset,
                window_us=self._window_us,
                ids_max=self.settings.dedup_ids_max,
                subjects_max=self.settings.subjects_max,
            )
            yield
        except BaseException:
            if table is not None:
                table.take_back(tail)
            if subjects is not None:
                batch.take_back(subjects)
            raise
        finally:
            self._is_settling = False

    def _subjects_for(self, batch: Conditional) -> SubjectTable | None:
        """The table that a batch's expectations are settled with; None: there is none, or not yet (tracking.py)."""

    def _ids_of(self, message: bytes | bytearray | memoryview) -> Found | None:
        """Before it is written: what is to be noted of a message. The first id of a log makes its state file (T1)."""
        if not self._window_us:
            return None
        if self._ids is None and self._known_states():
            return None  # they are found in the log when they are needed
        found = ids_in(message)
        if found.texts and not self._known_states():
            self._begin_state()
        return found

    def _note_ids(self, found: Sequence[Found | None], batches: Sequence[Encodable] = ()) -> None:
        """Remember what was just appended. The ids of conditional batches are noted already, but for which is last."""
        table = self._ids
        if table is None:
            return
        for ids in found:
            if ids is not None:
                table.note(ids.texts, ids.offsets, ids.times_us)
                table.last_id = ids.last_id
        if batches and is_conditional(last := batches[-1]) and self._window_us:
            table.last_id = last.last_id

    @property
    def _window_us(self) -> int:
        return self.settings.dedup_window_ms * 1_000

    def update_settings(self, settings: LogSettings) -> None:
        """Take other limits from now on."""
        with self._lock:
            if (settings.dedup_window_ms == 0) != (self.settings.dedup_window_ms == 0):
                self._forget_tables()  # what is known of ids is another matter now: read it anew
            self.settings = settings

    # --- keep ---------------------------------------------------------------------------------------------------

    def _begin_state(self) -> None:
        """T1: there is nothing to tell yet, so any durable offset does."""
        self._known_producers()
        with self._guarded("write state"):
            self._save_state(self.durable_end)

    def _keep_state(self, *, at_close: bool = False) -> None:
        """At a roll or a close, if there is anything to keep. Where it fails the older file stands, and T3 minds it."""
        with self._lock:
            if self.failure is not None or self.durable_end < self.log_end_offset:
                return
            if at_close and self._producers is None:
                return
            try:
                states = self._known_states()
                if states and states[0] != self.log_end_offset:
                    if not at_close and self._is_large():
                        self._is_state_due = True
                    else:
                        self._save_state(self.log_end_offset)
            except (OSError, LiftlogError) as error:
                self.recovery.notes.append(f"{self.folder}: no new state file: {error}")

    def _is_large(self) -> bool:
        """Whether a state file is too much work for a roll, or comes too early."""
        return self._is_settling or len(self._known_ids()) > IDS_KEPT_AT_ONCE

    def _keep_due_state(self, sync: Callable[[], int]) -> None:
        """What a roll has left to do. The caller holds the checkpoint lock; appends go on during the write.

        Raises:
            OSError, StorageFailed, DiskFull: the older file stands.
        """
        with self._lock:
            if not self._is_state_due or self.failure is not None:
                return
            end, self._is_state_due = self.log_end_offset, False
            sections = self._sections(end)
        try:
            sync()  # T2
            self._write_state(sections, end)
        except BaseException:
            self._is_state_due = True
            raise

    def _keep_state_of(self, start: int) -> None:
        """Before the segments below `start` go, write what only they would tell (T3).

        Raises:
            StorageFailed, DiskFull: nothing may go.
        """
        with self._sync_lock, self._lock:
            states = self._known_states()
            if not states or self.failure is not None:
                return
            bases = [segment.base_offset for segment in self._chain.segments if segment.base_offset <= start]
            goes_to = start if self._chain.tail is None and start == self.log_end_offset else max(bases, default=0)
            if states[0] >= goes_to:
                return
            with self._guarded("write state"):
                self._sync_now()
                self._save_state(self.durable_end, frees=True)

    def _told_by_state(self) -> int:
        """Below it, segments may go without another state file (T3)."""
        with self._lock:
            states = self._known_states()
            return states[0] if states else self.log_end_offset

    def _sync_now(self) -> None:
        """Make all durable (T2), under the sync lock and the append lock. OSError: the log is failed (L3)."""
        if self.durable_end < self.log_end_offset and self._chain.file is not None:
            try:
                self._chain.sync(self._chain.file)
            except OSError as error:
                self._fail(storage_error(error, f"fsync in {self.folder}"))
                raise
            self.durable_end = self.log_end_offset

    def rewritable_end(self) -> int:
        """Below it, sealed segments may be written anew with fewer records: no scan has to tell of them (T3)."""
        with self._lock:
            states = self._known_states()
            return states[0] if states and self._window_us else self.log_end_offset

    def _sections(self, offset: int) -> dict[str, bytes]:
        """The state of all below `offset`; what is above it the scan tells."""
        sections = {PRODUCERS: self._known_producers().snapshot()}
        table = self._known_ids()
        if self._window_us and (len(table) or table.last_id):
            sections[IDS] = table.snapshot(end=offset, since_us=self._latest_us - self._window_us)
        return sections

    def _save_state(self, offset: int, *, anew: bool = False, frees: bool = False) -> None:
        self._write_state(self._sections(offset), offset, anew=anew, frees=frees)
        self._is_state_due = False

    def _write_state(
        self, sections: Mapping[str, bytes], offset: int, *, anew: bool = False, frees: bool = False
    ) -> None:
        """Write a state file; `anew`: also over one of the same offset; `frees`: as `Disk.replace_file` takes it."""
        with self._state_lock:
            states = self._known_states()
            if states and offset + anew <= states[0] <= self.log_end_offset:
                return  # a newer one came first
            save_state(self._disk, self.folder, offset, sections, frees=frees)
            self._states = [offset]

    def _cut_state(self) -> None:
        """Files of records that are cut off would count for the ones that take their offsets."""
        end = self.log_end_offset
        self._known_producers().cut(end)
        self._known_ids().cut(end)
        self._save_state(end)

    # --- read ---------------------------------------------------------------------------------------------------

    def _known_states(self) -> list[int]:
        if self._states is None:
            self._states = list_states(self._disk, self.folder)
        return self._states

    def _known_producers(self) -> ProducerTable:
        """The table as of the log end."""
        if self._producers is None:
            with self._guarded("read state"):
                self._read_tables()
        assert self._producers is not None
        return self._producers

    def _known_ids(self) -> IdTable:
        """The table as of the log end; without those that came while ids were not minded."""
        self._known_producers()
        assert self._ids is not None
        return self._ids

    def _read_tables(self) -> None:
        producers, ids, start = ProducerTable(), IdTable(), -1
        self._take_sections({})
        for offset in self._known_states():
            sections = load_state(self._disk, self.folder, offset)
            if sections is not None and PRODUCERS in sections:
                producers, start = ProducerTable.restore(sections[PRODUCERS]), offset
                if self._window_us and IDS in sections:
                    ids = IdTable.restore(sections[IDS])
                self._take_sections(sections)
                break
            self.recovery.notes.append(f"{self.folder}/{state_name(offset)} is damaged: passed over")
            start = 0
        segments = self._chain.segments
        start = max(start, segments[0].base_offset) if segments and start >= 0 else self.log_end_offset
        if start < self.log_end_offset:
            for message in self._messages(start, self.log_end_offset, whole=True):
                header = read_header(message)
                if header.producer_id and header.first_offset >= start:
                    stamp = Stamp(header.producer_id, header.producer_epoch, header.sequence)
                    now_us = self._latest_us or header.max_timestamp_us
                    continues = header.group_index > 0
                    producers.note(stamp, header.first_offset, header.next_offset, now_us=now_us, continues=continues)
                self._read_ids(ids, message, header, start)
        self._producers, self._ids = producers, ids

    def _take_sections(self, sections: Mapping[str, bytes]) -> None:
        """What else the newest state file says (tracking.py)."""

    def _forget_tables(self) -> None:
        """They are read again when they are needed."""
        self._producers = self._ids = None

    def _read_ids(self, table: IdTable, message: memoryview, header: BatchHeader, start: int) -> None:
        """Note the ids of the records from `start` on; a batch that was joined may begin before it."""
        table.last_id = b""
        is_last = header.next_offset == self.log_end_offset
        since_us = self._latest_us - self._window_us
        if self._window_us and (is_last or header.max_timestamp_us > since_us):
            found = ids_in(message)
            skip = int(np.searchsorted(found.offsets, start))
            table.expire(since_us)
            table.note(found.texts[skip:], found.offsets[skip:], found.times_us[skip:])
            table.last_id = found.last_id

    def _messages(self, offset: int, end: int | None, *, whole: bool = False) -> Iterator[memoryview]:
        """Verified messages of [offset, min(end, high watermark)); `whole`: of all that is stored, committed or not."""

        def seen(view: LogView) -> LogView:
            return replace(view, log_start_offset=0, high_watermark=view.log_end_offset) if whole else view

        repaired = -1
        while True:
            messages: list[memoryview] = []
            damaged: Segment | None = None
            with self._ask(
                lambda view, at=offset: plan_read(seen(view), at, end=end, max_bytes=BATCHES_READ_BYTES)  # type: ignore[misc]
            ) as plan:
                next_offset, is_empty = plan.next_offset, not plan.ranges
                for place, (segment, file) in zip(plan.ranges, plan.sources, strict=True):
                    try:
                        for message, after in verified_messages(file, place):
                            messages.append(message)
                            offset = after
                    except BadBatch:
                        damaged = segment
                        break
            yield from messages
            if is_empty:
                return
            if damaged is None:
                offset = next_offset
            elif repaired == offset:
                raise CorruptLog(f"{damaged.path}: damaged, and scanning it anew did not help", path=damaged.path)
            else:
                repaired = offset
                self._repair(damaged)


def stamp_of(first: RowBatch) -> Stamp | None:
    """Whose commit group begins with this batch; None for one without a producer."""
    if first.producer_id == 0:
        return None
    return Stamp(first.producer_id, first.producer_epoch, first.sequence)
