"""One partition's log: records that are judged, appended, noted. What everyone else uses.

    append(batches)
      judge      Memory says what stays of them, or that they are a repeat
      append     Log composes and writes them (segment_log.py)
      note       Memory knows them; or takes back what it had noted, if the write failed

Three parts, of which none knows another: `Log` has bytes, offsets and epochs; `Memory` has the tables that judge
(memory.py); `StateFiles` keeps those beside the log (state.py), so that retention does not take them. They meet here,
under the append lock.

    roll     the tables as of the roll    so that the next open reads one segment at most; large ones soon after it
    close    the tables as of the end     so that it reads none

The tables are read when the first append with a stamp or an id, or the first roll, needs them. A log without a state
file has neither and does none of this (`state.T1`).

Last records of subjects, once somebody has asked:

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

Design: docs/storage.md, docs/adr/0024-the-log-by-composition.md, docs/adr/0019-last-sequence-of-a-subject.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

from broker.api.batch import BatchHeader, read_header
from broker.api.errors import DiskFull, LiftlogError
from broker.storage.disk import Disk, ReadableBuffer, storage_error
from broker.storage.memory.memory import NOTHING, Growing, Memory, Noted, Repeat, Rows, Settled, Verdict, stamp_of
from broker.storage.memory.producers import Stamp
from broker.storage.memory.state_files import PRODUCERS, SUBJECTS, StateFiles, state_name
from broker.storage.memory.subjects import SubjectTable, read_head
from broker.storage.read import ReadPlan, bytes_between, group_start
from broker.storage.recovery import Ranges, RecoveryReport
from broker.storage.rewrite.reused_blocks import Turn
from broker.storage.rows import Conditional, Encodable, RowBatch, StoredGroup
from broker.storage.segment_log import HASTE_BYTES, AppendResult, EpochEnd, Log
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from broker.storage.segments.index import Entries, IndexView
from broker.storage.segments.segment import Segment

__all__ = [
    "HASTE_BYTES",
    "AppendResult",
    "Encodable",
    "EpochEnd",
    "LogIdentity",
    "LogSettings",
    "PartitionLog",
    "RecoveryReport",
    "StoredGroup",
]

IDS_KEPT_AT_ONCE: Final = 1 << 14
"""A roll writes a table of so many ids itself, half a megabyte; a larger one is left to the next checkpoint."""
SUBJECTS_KEPT_AT_ONCE: Final = 1 << 14
"""A roll writes a table of so many subjects itself, as with ids."""
BUILT_AT_ONCE_BYTES: Final = 1 << 20
"""So much of the log, and of a state file, is read under the append lock: some milliseconds."""
PIECE_BYTES: Final = 4 << 20
"""What one call of `build_subjects` reads, about: some 50 ms."""


class PartitionLog:
    """See the module. Made by `create` and `open`.

    Attributes:
        log: The records, without what was ever told of them. Readers may use it as it is.
    """

    @classmethod
    def create(
        cls, disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings, *, now_us: int, boot_id: str = ""
    ) -> Self:
        """As `Log.create`."""
        return cls(Log.create(disk, folder, identity, settings, now_us=now_us, boot_id=boot_id), now_us)

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str,
        settings: LogSettings,
        *,
        boot_id: str,
        now_us: int,
        expected: LogIdentity | None = None,
    ) -> Self:
        """As `Log.open`."""
        return cls(Log.open(disk, folder, settings, boot_id=boot_id, now_us=now_us, expected=expected), now_us)

    def __init__(self, log: Log, now_us: int) -> None:
        self.log = log
        self._lock = log.lock
        self._states = StateFiles(log.disk, log.folder)
        self._memory: Memory | None = None  # None: not read yet
        self._latest_us = now_us  # the clock, as last told: who is found in the log by its batches counts as used then
        self._is_state_due = False  # a roll has left it to `_keep_due_state`
        self._is_ahead = False  # the table of subjects tells of what is being appended
        self._is_wanted = False  # somebody asks for subjects for the first time, and all must be durable before
        self._build_lock = threading.Lock()  # before all others
        self._told: tuple[int, int | None] | None = None  # a state file, and up to where it tells of subjects
        if not log.recovery.clean:
            self._after_recovery()

    # --- append ---------------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Encodable], *, leader_epoch: int, now_us: int) -> AppendResult:
        """Append batches as one commit group, with one write. Not durable before a later `sync`.

        Args:
            batches: n >= 1, of one kind; they get consecutive offsets in this order. With a producer id they all carry
                the same stamp, and a group that was appended before is not appended again.
            leader_epoch, now_us: As `Log.append` takes them.
        Raises:
            NotLeader, DiskFull, StorageFailed: as `Log.append`.
            ProducerFenced, OutOfSequence, UnknownProducer, Overloaded: as `ProducerTable.check`.
        """
        assert batches, "an append holds at least one batch"
        log = self.log
        if log.is_marked_clean:
            log.checkpoint(withdraw=True)  # K2
        with self._lock:
            if log.failure is not None:
                log.check_writable()
            self._latest_us = now_us
            verdict = self._judge(batches, now_us)
            if verdict.repeat is not None:
                return verdict.repeat
            self._is_ahead = verdict.is_ahead
            try:
                result = log.append(
                    batches,
                    leader_epoch=leader_epoch,
                    now_us=now_us,
                    look=verdict.look if verdict.looks else None,
                    rolled=self._keep_state,
                )
            except BaseException:
                verdict.take_back()
                raise
            if verdict is not NOTHING:
                self._note(verdict, result)
            return result

    def append_group(self, group: StoredGroup, *, leader_epoch: int, now_us: int) -> AppendResult:
        """Append a commit group that need not fit into memory: batch by batch, and all taken back if one fails.

        Args:
            group: Gone through once. What that raises passes through; then nothing was appended.
            leader_epoch, now_us: As `append` takes them.
        Raises:
            NotLeader, DiskFull, StorageFailed: as `append`.
        """
        log = self.log
        if log.is_marked_clean:
            log.checkpoint(withdraw=True)
        with self._lock:
            log.check_writable()
            self._latest_us = now_us
            verdict = self._judge_rows(None)
            result = log.append_group(
                group, leader_epoch=leader_epoch, now_us=now_us, look=verdict.look, rolled=self._keep_state
            )
            self._note(verdict, result)
            return result

    def append_stored(self, data: ReadableBuffer, *, leader_epoch: int, now_us: int) -> int:
        """As `Log.append_stored`. What the records tell is read from the log when it is needed: when this one leads.

        A log that follows always has a state file, since who wrote a record is not looked at here (`state.T1`).
        """
        log = self.log
        if log.is_marked_clean:
            log.checkpoint(withdraw=True)
        with self._lock:
            log.check_writable()
            self._latest_us = now_us
            if not self._states.offsets:
                self._begin_state()
            before = log.segment_count
            try:
                return log.append_stored(data, leader_epoch=leader_epoch, now_us=now_us)
            finally:
                if log.segment_count != before:
                    self._is_state_due = True  # as at any roll, so that whoever leads has a segment to read at most

    def _judge(self, batches: Sequence[Encodable], now_us: int) -> Verdict:
        """What may be appended, and what is to be noted of it. Raises why nothing may."""
        memory = self._memory
        if memory is not None and memory.end != self.log.log_end_offset:
            memory = None  # U3
            self._forget()
        first: Any = batches[0]
        if hasattr(first, "settle"):  # from NATS
            if first.condition_count:
                assert len(batches) == 1, "the conditions of a group are not settled"
                return self._settle(first)
            if memory is None:
                return NOTHING
            conditional: Any = batches
            return Noted(memory, conditional, self.settings, self.log.log_start_offset)
        stamp = stamp_of(first) if isinstance(first, RowBatch) else None
        if stamp is not None:
            found = self._known().producers.check(
                stamp,
                record_count=sum(batch.record_count for batch in batches),
                now_us=now_us,
                expiry_us=self.settings.producer_id_expiry_ms * 1_000,
                ids_max=self.settings.producer_ids_max,
            )
            if found is not None:
                return Repeat(found.first_offset, found.next_offset)
            if not self._states.offsets:
                self._begin_state()
        return self._judge_rows(stamp)

    def _judge_rows(self, stamp: Stamp | None) -> Rows:
        memory = self._memory
        if memory is not None and memory.end != self.log.log_end_offset:
            memory = None
            self._forget()
        return Rows(
            memory,
            stamp,
            self.settings,
            log_start_offset=self.log.log_start_offset,
            now_us=self._latest_us,
            begin=None if self._has_states() else self._begin_ids,
        )

    def _settle(self, batch: Conditional) -> Verdict:
        """Let a batch drop the records that are not to be stored.

        Raises:
            StorageFailed, DiskFull: the ids are not known, or there is no place to keep them.
        """
        settings, ids = self.settings, None
        window_us = settings.dedup_window_ms * 1_000
        subjects = self._subjects_for(batch)
        if window_us and batch.minds_ids:
            ids = self._known().ids
            if batch.id_count and not self._states.offsets:
                self._begin_state()
            batch.make_room(ids, window_us=window_us, ids_max=settings.dedup_ids_max)
        memory = self._memory
        noted = Noted(memory, [batch], settings, self.log.log_start_offset) if memory is not None else None
        verdict = Settled(batch, noted, ids, subjects)
        try:
            batch.settle(
                ids,
                subjects,
                next_offset=self.log.log_end_offset,
                window_us=window_us,
                ids_max=settings.dedup_ids_max,
                subjects_max=settings.subjects_max,
            )
        except BaseException:
            verdict.take_back()
            raise
        if not batch.record_count:
            end = self.log.log_end_offset
            return Repeat(end, end)
        return verdict

    def _note(self, verdict: Verdict, result: AppendResult) -> None:
        self._is_ahead = False
        try:
            verdict.note(result)
        except BaseException:
            self._forget()  # U3
            raise

    # --- follow, take back ----------------------------------------------------------------------------------

    def lead(self, leader_epoch: int) -> int:
        """As `Log.lead`."""
        log = self.log
        with log.checkpoint_lock, log.sync_lock, self._lock:
            if not self.settings.is_sole_replica:
                self._cut_states(log.ask(group_start))
            return log.lead(leader_epoch)

    def follow(self, leader_epoch: int) -> None:
        """As `Log.follow`."""
        self.log.follow(leader_epoch)

    def truncate(self, to: int) -> int:
        """As `Log.truncate`. State files above the cut go first, with the records that they tell of (`state.T5`)."""
        log = self.log
        with log.checkpoint_lock, log.sync_lock, self._lock:
            log.check_takes_back("truncate")
            if to < log.log_end_offset:
                self._cut_states(log.ask(lambda view: group_start(view, to)))
            return log.truncate(to)

    def reset(self, to: int, *, last_epoch: int = -1) -> None:
        """As `Log.reset`. The state is that of nobody and nothing; that of the leader is to come."""
        log = self.log
        with log.checkpoint_lock, log.sync_lock, self._lock:
            log.check_takes_back("reset")
            with log.guarded("reset"):
                self._states.put(to, Memory().snapshot(to, self.settings, log_start_offset=to, now_us=self._latest_us))
            self._forget()
            log.reset(to, last_epoch=last_epoch)
            with log.guarded("reset"):
                self._states.drop_others(to)
                log.disk.sync_dir(log.folder)

    def recover(self, now_us: int) -> RecoveryReport:
        """As `Log.recover`."""
        log = self.log
        with log.checkpoint_lock, log.sync_lock, self._lock:
            if log.failure is None or log.is_closed:
                return log.recovery
            self._latest_us = max(self._latest_us, now_us)
            report = log.recover(now_us)
            try:
                self._after_recovery()
            except LiftlogError as error:
                raise log.fail(error) from error  # or it would go on with files that tell of what it has lost
            return report

    def _after_recovery(self) -> None:
        """What was lost may be told of: by a table, or by a state file."""
        self._states.forget()
        self._forget()
        try:
            self._cut_states(self.log.log_end_offset)
        except OSError as error:
            raise storage_error(error, f"open {self.folder}") from error

    def _cut_states(self, end: int) -> None:
        """Before records at or above `end` go, or after: no state file tells of them. One stays, so that it is known
        that there is something to tell (T1): if need be one of what the log below tells.
        """
        self._forget()  # the log may be as long again, with others in their places
        with self.log.guarded("write state"):
            there = self._states.offsets
            if not there or there[0] <= end:
                return
            if there[-1] > end:
                self._states.put(end, self._sections_of(self._read(end, (-1,)), end))
            self._states.drop_above(end)
            self.log.disk.sync_dir(self.folder)  # before the next append: a file may come back after a power cut

    # --- the tables -----------------------------------------------------------------------------------------

    def _known(self) -> Memory:
        """The tables as of the log end; without ids that came while ids were not minded."""
        memory = self._memory
        if memory is None or memory.end != self.log.log_end_offset:
            with self.log.guarded("read state"):
                memory = self._memory = self._read(self.log.log_end_offset, self._states.offsets)
        return memory

    def _forget(self) -> None:
        """They are read again when they are needed."""
        self._memory = None
        self._is_wanted = False

    def _read(self, end: int, offsets: Sequence[int]) -> Memory:
        """The tables of all below `end`: what a state file says, the first of `offsets` that is whole, and the log from
        there on. OSError passes through.
        """
        log, start = self.log, -1
        sections: Mapping[str, bytes] = {}
        for offset in offsets:
            found = self._states.load(offset) if offset >= 0 else None
            if found is not None and PRODUCERS in found:
                sections, start = found, offset
                break
            if offset >= 0:
                log.recovery.notes.append(f"{self.folder}/{state_name(offset)} is damaged: passed over")
            start = 0
        memory = Memory.restore(sections, self.settings, end)
        segments = log.chain.segments
        start = max(start, segments[0].base_offset) if segments and start >= 0 else end
        if start < end:
            window_us = self.settings.dedup_window_ms * 1_000
            for message in log.messages(start, end, whole=True):
                memory.learn(message, start, end, now_us=self._latest_us, window_us=window_us)
        memory.end = end
        return memory

    def _sections_of(self, memory: Memory, offset: int) -> dict[str, bytes]:
        return memory.snapshot(
            offset, self.settings, log_start_offset=self.log.log_start_offset, now_us=self._latest_us
        )

    def needs_stamp(self, header: BatchHeader) -> bool:
        """Whether the producer stamp of a stored batch may still decide an append, also if the state files are lost."""
        stamp = Stamp(header.producer_id, header.producer_epoch, header.sequence)
        with self._lock:
            return self._known().producers.needs(stamp, self.log.high_watermark)

    def update_settings(self, settings: LogSettings) -> None:
        """Take other limits from now on."""
        with self._lock:
            before = self.log.settings
            if (settings.dedup_window_ms == 0, settings.subjects_max == 0) != (
                before.dedup_window_ms == 0,
                before.subjects_max == 0,
            ):
                self._forget()  # what is known is another matter now: read it anew
            self.log.settings = settings

    # --- state files ----------------------------------------------------------------------------------------

    def _has_states(self) -> bool:
        with self.log.guarded("read state"):
            return bool(self._states.offsets)

    def _begin_state(self) -> None:
        """T1: there is nothing to tell yet, so any durable offset does."""
        self._known()
        with self.log.guarded("write state"):
            self._save(self.log.durable_end)

    def _begin_ids(self) -> Memory:
        """Before the first id of a log is written (T1)."""
        self._begin_state()
        return self._known()

    def _save(self, offset: int, *, anew: bool = False, frees: bool = False) -> None:
        self._write(self._sections_of(self._known(), offset), offset, anew=anew, frees=frees)
        self._is_state_due = False

    def _write(self, sections: Mapping[str, bytes], offset: int, *, anew: bool = False, frees: bool = False) -> None:
        high_watermark = self.log.high_watermark
        if self._states.save(offset, sections, high_watermark=high_watermark, anew=anew, frees=frees):
            self._told = (offset, _told_to(sections))

    def _keep_state(self, *, at_close: bool = False) -> None:
        """At a roll or a close, if there is anything to keep. Where it fails the older file stands, and T3 minds it."""
        log = self.log
        with self._lock:
            if log.failure is not None or log.durable_end < log.log_end_offset:
                return
            if at_close and self._memory is None:
                return
            try:
                states = self._states.offsets
                if states and states[0] != log.log_end_offset:
                    if not at_close and self._is_large():
                        self._is_state_due = True
                    else:
                        self._save(log.log_end_offset)
            except (OSError, LiftlogError) as error:
                log.recovery.notes.append(f"{self.folder}: no new state file: {error}")

    def _is_large(self) -> bool:
        """Whether a state file is too much work for a roll, or comes too early."""
        if self._is_ahead:
            return True
        memory = self._known()
        return len(memory.ids) > IDS_KEPT_AT_ONCE or (
            memory.subjects is not None and len(memory.subjects) > SUBJECTS_KEPT_AT_ONCE
        )

    def _keep_due_state(self) -> None:
        """What a roll has left to do. The caller holds the checkpoint lock; appends go on during the write.

        Raises:
            OSError, StorageFailed, DiskFull: the older file stands.
        """
        log = self.log
        with self._lock:
            if not self._is_state_due or log.failure is not None:
                return
            end, self._is_state_due = log.log_end_offset, False
            try:
                sections = self._sections_of(self._known(), end)
            except BaseException:
                self._is_state_due = True
                raise
        try:
            log.sync()  # T2
            self._write(sections, end, anew=True)  # it may tell more than one that a roll has written
        except BaseException:
            self._is_state_due = True
            raise

    def _keep_state_of(self, start: int) -> None:
        """Before the segments below `start` go, write what only they would tell (T3), in a file that no truncation
        takes: with more replicas one of what is committed.

        Raises:
            StorageFailed, DiskFull: nothing may go.
        """
        log = self.log
        with log.sync_lock, self._lock, log.guarded("write state"):
            states = self._states.offsets
            if not states or log.failure is not None or self._kept_state() >= log.goes_to(start):
                return
            log.sync_now()
            high_watermark = log.high_watermark
            end = log.ask(lambda view: group_start(view, high_watermark))
            if self.settings.is_sole_replica or end == log.log_end_offset:
                self._save(log.durable_end, frees=True)
            else:
                memory = self._read(end, [offset for offset in states if offset <= end] or (-1,))
                sections = self._sections_of(memory, end)
                self._states.put(end, sections, high_watermark=high_watermark, frees=True)

    def _kept_state(self) -> int:
        """Offset of the newest state file that stays whatever is taken back; -1: there is none. OSError passes
        through."""
        limit = self.log.log_end_offset if self.settings.is_sole_replica else self.log.high_watermark
        return next((offset for offset in self._states.offsets if offset <= limit), -1)

    def rewritable_end(self) -> int:
        """Below it, sealed segments may be written anew with fewer records: no scan has to tell of them (T3, U2)."""
        log = self.log
        with self._lock, log.guarded("read state"):
            if not self._states.offsets:
                return log.log_end_offset
            kept = self._kept_state()
            if self._told is None or self._told[0] != kept:
                sections = self._states.load(kept) if kept >= 0 else None
                self._told = (kept, _told_to(sections) if sections is not None else 0)
            end = kept if self.settings.dedup_window_ms else log.log_end_offset
            told_to = self._told[1]
            return max(0, end if told_to is None else min(end, told_to))

    # --- last records of subjects ---------------------------------------------------------------------------

    @property
    def lacks_subjects(self) -> bool:
        """Whether there is something for `build_subjects` to do."""
        memory = self._memory
        is_carried = memory is not None and memory.carried is not None
        return (is_carried or self._is_wanted) and self.settings.subjects_max > 0

    def build_subjects(self) -> bool:
        """Read a piece of what the table lacks. Returns whether there is more. One caller at a time does it.

        Raises:
            StorageFailed, CorruptLog: the log cannot be read; may be tried again.
        """
        log = self.log
        with self._build_lock:
            if self._is_wanted:
                with log.sync_lock, self._lock:
                    if log.failure is None and self._is_wanted:
                        self._is_wanted = False
                        memory = self._known()
                        if memory.subjects is None and memory.carried is None:
                            self._begin_tracking(memory)
            with self._lock:
                known = self._memory
                if log.failure is not None or known is None or known.carried is None or not self.lacks_subjects:
                    return False
                growing = known.growing = known.growing or Growing()
                carried, end = known.carried, log.log_end_offset
            self._grow(growing, carried, end, PIECE_BYTES)
            with self._lock:
                if (
                    self._memory is known
                    and known.growing is growing
                    and log.failure is None
                    and self._left(growing) <= BUILT_AT_ONCE_BYTES
                ):
                    self._grow(growing, carried, log.log_end_offset)
                    self._go_live(known, growing)
                return self.lacks_subjects

    def _grow(self, growing: Growing, carried: bytes, end: int, bytes_max: int = 1 << 62) -> None:
        if growing.table is None:
            growing.next_offset = read_head(carried).next_offset
            growing.table = SubjectTable.restore(carried)
        table, read_bytes = growing.table, 0
        start = max(growing.next_offset, self.log.log_start_offset)
        table.begin(self.log.log_start_offset, self.settings.subjects_max)
        for message in self.log.messages(start, end, whole=True) if start < end else ():
            table.note(table.digest(message, start))
            growing.next_offset = read_header(message).next_offset
            read_bytes += len(message)
            if read_bytes >= bytes_max:
                return
        growing.next_offset = end

    def _left(self, growing: Growing) -> int:
        return self.log.ask(lambda view: bytes_between(view, growing.next_offset, view.log_end_offset))

    def _go_live(self, memory: Memory, growing: Growing) -> None:
        memory.subjects, memory.carried, memory.growing = growing.table, None, None
        self._is_state_due = True  # so that compaction may go on

    def _subjects_for(self, batch: Conditional) -> SubjectTable | None:
        """The table that a batch's expectations are settled with; None: there is none, or not yet."""
        log, subjects_max = self.log, self.settings.subjects_max
        if not batch.minds_subjects or not subjects_max:
            return None
        memory = self._known()
        if memory.subjects is None:
            if memory.carried is None:
                if self._has_states() and log.durable_end < log.log_end_offset:
                    self._is_wanted = True  # the locks of a sync come before this one (L4)
                    return None
                self._begin_tracking(memory)
            if memory.growing is None and memory.carried is not None:
                growing = Growing(next_offset=read_head(memory.carried).next_offset)
                if self._left(growing) + len(memory.carried) <= BUILT_AT_ONCE_BYTES:
                    self._grow(growing, memory.carried, log.log_end_offset)
                    self._go_live(memory, growing)
        if memory.subjects is not None:
            memory.subjects.begin(log.log_start_offset, subjects_max)
        return memory.subjects

    def _begin_tracking(self, memory: Memory) -> None:
        """From now on the state says that subjects are tracked (U2). Under the sync lock, unless all is durable."""
        with self.log.guarded("write state"):
            if self._states.offsets:
                self.log.sync_now()
            memory.carried = SubjectTable().snapshot(0)
            try:
                self._save(self.log.durable_end, anew=True)
            except BaseException:
                memory.carried = None
                raise

    # --- rolls, let go, rest --------------------------------------------------------------------------------

    def roll_if_due(self, now_us: int) -> bool:
        """Seal the active segment if it is older than `segment_age_ms`. Returns whether it did."""
        with self._lock:
            self._latest_us = now_us
            is_sealed = self.log.roll_if_due(now_us)
            if is_sealed:
                self._keep_state()
            return is_sealed

    def apply_retention(self, *, now_us: int) -> int:
        """Remove the segments that the settings do not keep. Returns the log start offset."""
        with self._lock:
            self._latest_us = now_us
            if self.log.seal_expired(now_us):
                self._keep_state()
        return self._let_go(self.log.retained_start(now_us))

    def trim(self, before_offset: int) -> int:
        """Let go of records below `before_offset` (at most the high watermark). Returns the log start offset."""
        return self._let_go(min(before_offset, self.log.high_watermark))

    def _let_go(self, start: int) -> int:
        """Let go of what lies below `start`, on a full disk too: what is written for it may take spare files.

        At each step a power cut leaves the log as it was, or with its new start: the state comes first (T3), then the
        checkpoint (K3), then the segments go.
        """
        log = self.log
        if start > log.log_start_offset:
            try:
                self._keep_state_of(start)
            except DiskFull:
                told = self._told_by_state()
                if not log.log_start_offset < told < start:
                    raise
                log.let_go(told)  # needs no new state, and may make the room for one
                self._keep_state_of(start)
        return log.let_go(start)

    def _told_by_state(self) -> int:
        """Below it, segments may go without another state file (T3)."""
        with self._lock, self.log.guarded("read state"):
            return self._kept_state() if self._states.offsets else self.log.log_end_offset

    def checkpoint(self, *, clean: bool = False, withdraw: bool = False) -> None:
        """As `Log.checkpoint`, and write the state file that a roll has left to it."""
        with self.log.checkpoint_lock, self.log.guarded("checkpoint"):
            self._keep_due_state()
            self.log.checkpoint(clean=clean, withdraw=withdraw)

    def close(self, *, clean: bool = True) -> None:
        """As `Log.close`, and write the state as of the end, so that the next open reads none."""
        log = self.log
        try:
            if clean and log.failure is None:
                log.sync()
                self._keep_state(at_close=True)
                self.checkpoint(clean=True)
        finally:
            log.close(clean=False)

    # --- what is the log's alone ----------------------------------------------------------------------------

    @property
    def identity(self) -> LogIdentity:
        return self.log.identity

    @property
    def settings(self) -> LogSettings:
        return self.log.settings

    @property
    def folder(self) -> str:
        return self.log.folder

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def durable_end(self) -> int:
        return self.log.durable_end

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def leader_epoch(self) -> int:
        return self.log.leader_epoch

    @property
    def lost_ranges(self) -> Ranges:
        return self.log.lost_ranges

    @property
    def recovery(self) -> RecoveryReport:
        return self.log.recovery

    @property
    def failure(self) -> LiftlogError | None:
        return self.log.failure

    @property
    def disk(self) -> Disk:
        return self.log.disk

    @property
    def segment_count(self) -> int:
        return self.log.segment_count

    @property
    def is_awake(self) -> bool:
        return self.log.is_awake

    @property
    def byte_count(self) -> int:
        return self.log.byte_count

    @property
    def is_dirty(self) -> bool:
        return self.log.is_dirty

    def sync(self) -> int:
        """As `Log.sync`."""
        return self.log.sync()

    def advance_high_watermark(self, offset: int) -> None:
        """As `Log.advance_high_watermark`."""
        self.log.advance_high_watermark(offset)

    def read(
        self, offset: int, *, end: int | None = None, max_bytes: int | None = None, stored: bool = False
    ) -> ReadPlan:
        """As `Log.read`."""
        return self.log.read(offset, end=end, max_bytes=max_bytes, stored=stored)

    def batches(self, offset: int, end: int | None = None) -> Iterator[memoryview]:
        """As `Log.batches`."""
        return self.log.batches(offset, end)

    def batches_in_turn(self, offset: int, end: int) -> Iterator[Turn]:
        """As `Log.batches_in_turn`."""
        return self.log.batches_in_turn(offset, end)

    def offset_for_time(self, timestamp_us: int) -> int | None:
        """As `Log.offset_for_time`."""
        return self.log.offset_for_time(timestamp_us)

    def bytes_between(self, start: int, end: int) -> int:
        """As `Log.bytes_between`."""
        return self.log.bytes_between(start, end)

    def epoch_of(self, offset: int) -> int:
        """As `Log.epoch_of`."""
        return self.log.epoch_of(offset)

    def epoch_end(self, epoch: int) -> int:
        """As `Log.epoch_end`."""
        return self.log.epoch_end(epoch)

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """As `Log.end_of_epoch`."""
        return self.log.end_of_epoch(epoch)

    def idle(self) -> bool:
        """As `Log.idle`."""
        return self.log.idle()

    def sealed_segments(self) -> list[tuple[Segment, int]]:
        """As `Log.sealed_segments`."""
        return self.log.sealed_segments()

    def index_of(self, segment: Segment) -> IndexView:
        """As `Log.index_of`."""
        return self.log.index_of(segment)

    def replace_segments(
        self, old: Sequence[Segment], staged: str, entries: Entries, size: int, *, cuts: int | None = None
    ) -> bool:
        """As `Log.replace_segments`."""
        return self.log.replace_segments(old, staged, entries, size, cuts=cuts)

    def repair_segment(self, segment: Segment) -> None:
        """As `Log.repair_segment`."""
        self.log.repair_segment(segment)


def _told_to(sections: Mapping[str, bytes]) -> int | None:
    """Up to where a state file tells of subjects; None: they are not tracked."""
    return read_head(sections[SUBJECTS]).next_offset if SUBJECTS in sections else None
