"""A log that knows its producers: the table of `producers.py`, kept by the files of `state.py`.

    append   check ─ write ─ note        under the append lock, so that two requests cannot race
    roll     the table as of the roll    so that the next open reads the headers of one segment at most
    close    the table as of the end     so that it reads none

The table is read when the first stamped append, or the first roll, needs it. A log without a state file has no
producers and does none of this (T1).

Design: docs/storage.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from broker.api.batch import BatchHeader, read_header
from broker.api.errors import BadBatch, CorruptLog, LiftlogError
from broker.storage.checkpoint import Checkpoint, LogIdentity, LogSettings
from broker.storage.disk import Disk
from broker.storage.opened import OpenLog
from broker.storage.producers import Group, ProducerTable, Stamp
from broker.storage.read import LogView, plan_read, verified_messages
from broker.storage.recovery import RecoveryReport
from broker.storage.rows import Encodable, RowBatch
from broker.storage.segment import Segment
from broker.storage.state import PRODUCERS, list_states, load_state, save_state, state_name

BATCHES_READ_BYTES: Final = 4 << 20


class RememberingLog(OpenLog):
    """See the module. What `PartitionLog` needs of it begins with `_`."""

    def __init__(self, disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings, boot_id: str) -> None:
        super().__init__(disk, folder, identity, settings, boot_id)
        self._producers: ProducerTable | None = None  # None: not read yet
        self._states: list[int] | None = None  # offsets of the state files, the newest first; None: not listed yet
        self._latest_us = 0  # the clock, as last told: who is found in the log by its batches counts as used then

    def _recover(self, checkpoint: Checkpoint | None, report: RecoveryReport, now_us: int) -> None:
        super()._recover(checkpoint, report, now_us)
        self._latest_us = max(self._latest_us, now_us)
        self._producers = self._states = None
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
            with self._guarded("write state"):
                self._save_state(table, self.durable_end)  # T1: nothing is stamped yet, so any durable offset does
        return found

    def _note_stamp(self, stamp: Stamp, first_offset: int, next_offset: int) -> None:
        """Remember what was just appended."""
        self._known_producers().note(stamp, first_offset, next_offset, now_us=self._latest_us)

    def needs_stamp(self, header: BatchHeader) -> bool:
        """Whether the producer stamp of a stored batch may still decide an append, also if the state files are lost."""
        stamp = Stamp(header.producer_id, header.producer_epoch, header.sequence)
        with self._lock:
            return self._known_producers().needs(stamp, self.high_watermark)

    # --- keep ---------------------------------------------------------------------------------------------------

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
                    self._save_state(self._known_producers(), self.log_end_offset)
            except (OSError, LiftlogError) as error:
                self.recovery.notes.append(f"{self.folder}: no new state file: {error}")

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
                if self.durable_end < self.log_end_offset and self._chain.file is not None:
                    self._chain.file.sync()
                    self.durable_end = self.log_end_offset
                self._save_state(self._known_producers(), self.durable_end)

    def _save_state(self, table: ProducerTable, offset: int) -> None:
        save_state(self._disk, self.folder, offset, {PRODUCERS: table.snapshot()})
        self._states = [offset]

    def _cut_state(self) -> None:
        """Files of records that are cut off would count for the ones that take their offsets."""
        end = self.log_end_offset
        table = self._known_producers()
        table.cut(end)
        self._save_state(table, end)

    # --- read ---------------------------------------------------------------------------------------------------

    def _known_states(self) -> list[int]:
        if self._states is None:
            self._states = list_states(self._disk, self.folder)
        return self._states

    def _known_producers(self) -> ProducerTable:
        """The table as of the log end."""
        if self._producers is None:
            with self._guarded("read state"):
                self._producers = self._read_producers()
        return self._producers

    def _read_producers(self) -> ProducerTable:
        states = self._known_states()
        if not states:
            return ProducerTable()
        table, start = ProducerTable(), 0
        for offset in states:
            sections = load_state(self._disk, self.folder, offset)
            if sections is not None and PRODUCERS in sections:
                table, start = ProducerTable.restore(sections[PRODUCERS]), offset
                break
            self.recovery.notes.append(f"{self.folder}/{state_name(offset)} is damaged: passed over")
        segments = self._chain.segments
        start = max(start, segments[0].base_offset if segments else self.log_end_offset)
        if start < self.log_end_offset:
            for message in self._messages(start, self.log_end_offset, whole=True):
                header = read_header(message)
                if header.producer_id and header.first_offset >= start:
                    stamp = Stamp(header.producer_id, header.producer_epoch, header.sequence)
                    now_us = self._latest_us or header.max_timestamp_us
                    continues = header.group_index > 0
                    table.note(stamp, header.first_offset, header.next_offset, now_us=now_us, continues=continues)
        return table

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


def stamp_of(batches: Sequence[Encodable]) -> Stamp | None:
    """Whose commit group this is; None for one without a producer."""
    first = batches[0]
    if not isinstance(first, RowBatch) or first.producer_id == 0:
        return None
    return Stamp(first.producer_id, first.producer_epoch, first.sequence)
