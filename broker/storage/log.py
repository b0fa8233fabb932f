"""One partition's log, which everyone else uses: records are judged, appended, noted.

    append(batches)
      judge      Memory says what stays of them, or that they are a repeat
      append     Log composes and writes them (segment_log.py, writing/append.py)
      note       Memory knows them; or takes back what it had noted, if the write failed

Parts, each given only those before it:

    Log          bytes, offsets and epochs
    Remembered   the tables that judge (memory/), and the state files that keep them beside the log
    Tracking     how the table of subjects comes to be, once somebody asks
    Handover     state files from a leader to a follower

They meet here, under the append lock.

Design: docs/reference/storage.md, docs/adr/0024-the-log-by-composition.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from broker.api.errors import DiskFull, LiftlogError, OffsetOutOfRange
from broker.storage.disk import Disk, ReadableBuffer
from broker.storage.memory.handover import Handover
from broker.storage.memory.memory import NOTHING, Noted, Repeat, Rows, Settled, Verdict, stamp_of
from broker.storage.memory.producers import GroupStamp
from broker.storage.read import group_start
from broker.storage.recovery import RecoveryReport
from broker.storage.remembered import Remembered
from broker.storage.rows import Conditional, Encodable, RowBatch, StoredGroup
from broker.storage.segment_log import WRITEBACK_BYTES, AppendResult, EpochEnd, Log
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from broker.storage.tracking import Tracking

__all__ = [
    "WRITEBACK_BYTES",
    "AppendResult",
    "Encodable",
    "EpochEnd",
    "LogIdentity",
    "LogSettings",
    "PartitionLog",
    "RecoveryReport",
    "StoredGroup",
]


class PartitionLog:
    """See the module. Made by `create` and `open`. What one part does alone is asked of that part.

    Attributes:
        log: The records alone.
        state, epochs, checkpoints, reader, appender, syncer: Its parts.
        remembered: All that was ever told of producers, ids and subjects.
        tracking, handover: See the module.
    """

    __slots__ = (
        "_lock",
        "appender",
        "checkpoints",
        "epochs",
        "handover",
        "log",
        "reader",
        "remembered",
        "state",
        "syncer",
        "tracking",
    )

    @classmethod
    def create(
        cls, disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings, *, now_us: int, boot_id: str = ""
    ) -> Self:
        """As `Log.create`."""
        return cls(Log.create(disk, folder, identity, settings, now_us=now_us, boot_id=boot_id))

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
        return cls(Log.open(disk, folder, settings, boot_id=boot_id, now_us=now_us, expected=expected))

    def __init__(self, log: Log) -> None:
        self.log = log
        self.state, self._lock = log.state, log.state.lock
        self.epochs, self.checkpoints, self.reader = log.epochs, log.checkpoints, log.reader
        self.appender, self.syncer = log.appender, log.syncer
        self.remembered = Remembered(self.state, self.reader, self.syncer)
        self.handover = Handover(self.remembered, self.checkpoints)
        self.tracking = Tracking(self.remembered)
        if not log.state.recovery.clean:
            self.remembered.after_recovery()

    # --- append ---------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[Encodable],
        *,
        leader_epoch: int,
        now_us: int,
        wall_us: int | None = None,
        expected_offset: int | None = None,
        fence: int = 0,
    ) -> AppendResult:
        """Append batches as one commit group, with one write. Not durable before a later `sync`.

        Args:
            batches: n >= 1, of one kind; they get consecutive offsets in this order. With a producer id they all carry
                the same stamp, and a group that was appended before is not appended again.
            leader_epoch, now_us: As `Appender.append` takes them.
            wall_us: The clock that timestamps are of, now (`memory.M4`); None: the same.
            expected_offset: Append them if the first one gets this offset. If not, nothing is appended, and the result
                has no records: both of its offsets are the log end. A group that was appended before is a repeat,
                whatever it expects. Not for batches from NATS, whose records have expectations of their own.
            fence: The partition's, which records from NATS may name.
        Raises:
            NotLeader, DiskFull, StorageFailed: as `Appender.append`.
            ProducerFenced, OutOfSequence, UnknownProducer, Overloaded: as `ProducerTable.check`.
        """
        assert batches, "an append holds at least one batch"
        if self.checkpoints.is_lacking:
            self.checkpoints.keep(withdraw=True)  # `checkpoint.K2`
        with self._lock:
            if self.state.failure is not None:
                self.state.check_writable()
            self.state.ages.tell(now_us, self.state.log_end_offset)
            verdict = self._judge(batches, now_us if wall_us is None else wall_us, expected_offset, fence)
            if verdict.repeat is not None:
                return verdict.repeat
            self.remembered.is_ahead = verdict.is_ahead
            try:
                result = self.appender.append(
                    batches,
                    leader_epoch=leader_epoch,
                    now_us=now_us,
                    look=verdict.look if verdict.looks else None,
                    rolled=self.remembered.keep,
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
            group: Gone through once. Its errors pass through; then nothing was appended.
            leader_epoch, now_us: As `append` takes them.
        Raises:
            NotLeader, DiskFull, StorageFailed: as `append`.
        """
        if self.checkpoints.is_lacking:
            self.checkpoints.keep(withdraw=True)
        with self._lock:
            self.state.check_writable()
            self.state.ages.tell(now_us, self.state.log_end_offset)
            verdict = self._judge_rows(None)
            result = self.appender.append_group(
                group, leader_epoch=leader_epoch, now_us=now_us, look=verdict.look, rolled=self.remembered.keep
            )
            self._note(verdict, result)
            return result

    def append_stored(
        self,
        data: ReadableBuffer,
        *,
        leader_epoch: int,
        now_us: int,
        is_rewritten: bool = False,
        superseded: tuple[int, int] = (0, -1),
    ) -> int:
        """As `Appender.append_stored`. The tables read these records later: in `keep_up`, or when it leads.

        A log that follows has a state file from its first record on, or lacks one (`state_files.T6`).

        Args:
            is_rewritten: Not all that was ever stored there may be among it: a state file is lacking from now on.
            superseded: The leader's, if these are from below it; it is on disk before they are (`Log.note_superseded`).
        """
        if self.checkpoints.is_lacking:
            self.checkpoints.keep(withdraw=True)
        self.log.note_superseded(*superseded)
        with self._lock:
            self.state.check_writable()
            self.state.ages.tell(now_us, self.state.log_end_offset)
            if is_rewritten:
                with self.state.guarded("write state"):
                    self.remembered.drop()
            elif self.state.log_end_offset == 0 and not self.remembered.states.offsets:
                self.remembered.begin()
            before = self.state.segment_count
            try:
                return self.appender.append_stored(
                    data, leader_epoch=leader_epoch, now_us=now_us, look=self.remembered.hear
                )
            finally:
                if self.state.segment_count != before:
                    self.remembered.is_due = True  # as at any roll, so that whoever leads has a segment to read at most

    def _judge(self, batches: Sequence[Encodable], wall_us: int, expected_offset: int | None, fence: int) -> Verdict:
        """Say which records may be appended and what is to be noted of them. Raises why nothing may be appended."""
        memory = self.remembered.memory
        if memory is not None and memory.end != self.state.log_end_offset:
            memory = None  # `remembered.U3`
            self.remembered.forget()
        first: Any = batches[0]
        if hasattr(first, "settle"):  # from NATS
            assert expected_offset is None, "its records have expectations of their own"
            if first.condition_count:
                assert len(batches) == 1, "the conditions of a group are not settled"
                return self._settle(first, wall_us, fence)
            if memory is None:
                return NOTHING
            conditional: Any = batches
            return Noted(memory, conditional, self.state.settings, self.state.log_start_offset)
        stamp = stamp_of(first) if isinstance(first, RowBatch) else None
        if stamp is not None:
            found = self.remembered.whole().producers.check(
                stamp,
                record_count=sum(batch.record_count for batch in batches),
                now_us=self.state.ages.now_us,
                expiry_us=self.state.settings.producer_id_expiry_ms * 1_000,
                ids_max=self.state.settings.producer_ids_max,
            )
            if found is not None:
                return Repeat(found.first_offset, found.next_offset)
        end = self.state.log_end_offset
        if expected_offset is not None and expected_offset != end:
            return Repeat(end, end)
        if stamp is not None and not self.remembered.states.offsets:
            self.remembered.begin()
        return self._judge_rows(stamp)

    def _judge_rows(self, stamp: GroupStamp | None) -> Rows:
        memory = self.remembered.memory
        if memory is not None and memory.end != self.state.log_end_offset:
            memory = None
            self.remembered.forget()
        return Rows(
            memory,
            stamp,
            self.state.settings,
            log_start_offset=self.state.log_start_offset,
            now_us=self.state.ages.now_us,
            begin=None if self.remembered.has_states() else self.remembered.begin_ids,
        )

    def _settle(self, batch: Conditional, wall_us: int, fence: int) -> Verdict:
        """Let a batch drop the records that are not to be stored.

        Raises:
            StorageFailed, DiskFull: the ids are not known, or there is no place to keep them.
        """
        settings, ids, now_us = self.state.settings, None, self.state.ages.now_us
        window_us = settings.dedup_window_ms * 1_000
        subjects = self.tracking.table_for(batch)
        if window_us and batch.minds_ids:
            ids = self.remembered.whole(window_us=window_us).ids
            if batch.id_count and not self.remembered.states.offsets:
                self.remembered.begin()
            batch.make_room(ids, now_us=now_us, wall_us=wall_us, window_us=window_us, ids_max=settings.dedup_ids_max)
        memory = self.remembered.memory
        noted = Noted(memory, [batch], settings, self.state.log_start_offset) if memory is not None else None
        verdict = Settled(batch, noted, ids, subjects)
        try:
            batch.settle(
                ids,
                subjects,
                next_offset=self.state.log_end_offset,
                now_us=now_us,
                wall_us=wall_us,
                window_us=window_us,
                ids_max=settings.dedup_ids_max,
                subjects_max=settings.subjects_max,
                fence=fence,
            )
        except BaseException:
            verdict.take_back()
            raise
        if not batch.record_count:
            end = self.state.log_end_offset
            return Repeat(end, end)
        return verdict

    def _note(self, verdict: Verdict, result: AppendResult) -> None:
        self.remembered.is_ahead = False
        try:
            verdict.note(result)
        except BaseException:
            self.remembered.forget()  # `remembered.U3`
            raise

    # --- follow, take back ----------------------------------------------------------------------------------

    def lead(self, leader_epoch: int) -> int:
        """As `Log.lead`."""
        with self.state.checkpoint_lock, self.state.sync_lock, self._lock:
            if self.state.may_end_in_part and (end := self.state.ask(group_start)) < self.state.log_end_offset:
                self.remembered.cut(end)
            if not self.state.settings.is_sole_replica:
                self.remembered.begin_to_lead()
            self.remembered.complete()
            return self.log.lead(leader_epoch)

    def truncate(self, to: int, *, is_copied_again: bool = False) -> int:
        """As `Log.truncate`. State files above the cut go first, with the records (`state_files.T5`).

        A cut within a stored batch or a commit group takes all of it. If that begins below the log start, nothing
        stays.

        Args:
            is_copied_again: From a log that has all that is cut. Otherwise nothing is cut below the mark of what others
                may be gone for (`truncate.L10`); a pass of compaction may have raised it just now.
        Raises:
            OffsetOutOfRange: that is so: `reset` is what is wanted.
        """
        with self.state.checkpoint_lock, self.state.sync_lock, self._lock:
            self.log.check_takes_back("truncate")
            start, (kept_to, _) = self.state.log_start_offset, self.state.superseded
            if to < min(kept_to, self.state.log_end_offset) and not is_copied_again:
                raise OffsetOutOfRange(f"{self.state.folder}: below {kept_to} records have gone for newer ones")
            if start <= to < self.state.log_end_offset:
                try:
                    self.remembered.cut(self.state.ask(lambda view: group_start(view, to)))
                except OffsetOutOfRange:
                    self.reset(start, last_epoch=self.epochs.epoch_of(start - 1))
                    return start
            return self.log.truncate(to)

    def reset(self, to: int, *, last_epoch: int = -1) -> None:
        """As `Log.reset`. State files go first: from now on one is lacking (`state_files.T6`)."""
        with self.state.checkpoint_lock, self.state.sync_lock, self._lock:
            self.log.check_takes_back("reset")
            with self.state.guarded("reset"):
                self.remembered.drop()
            self.log.reset(to, last_epoch=last_epoch)

    def recover(self, now_us: int) -> RecoveryReport:
        """As `Log.recover`."""
        with self.state.checkpoint_lock, self.state.sync_lock, self._lock:
            if self.state.failure is None or self.state.is_closed:
                return self.state.recovery
            self.state.ages.tell(now_us, self.state.log_end_offset)
            report = self.log.recover(now_us)
            try:
                self.remembered.after_recovery()
            except LiftlogError as error:
                raise self.state.fail(error) from error  # or it would go on with files that tell of what it has lost
            return report

    # --- rolls, let go, rest --------------------------------------------------------------------------------

    def tell_time(self, now_us: int) -> None:
        """It is that late, by the clock of `append`: a log to which nobody appends grows older, too."""
        with self._lock:
            self.state.ages.tell(now_us, self.state.log_end_offset)

    def roll_if_due(self, now_us: int) -> bool:
        """Seal the active segment if it is older than `segment_age_ms`. Returns whether it did."""
        if not self.appender.is_roll_due(now_us):
            return False
        self._read_ahead()
        with self._lock:
            is_sealed = self.appender.roll_if_due(now_us)
            if is_sealed:
                self.remembered.keep()
            return is_sealed

    def apply_retention(self, *, now_us: int, wall_us: int | None = None) -> int:
        """Remove the segments that the settings do not keep. Returns the log start offset.

        Args:
            now_us: As `Appender.append` takes it.
            wall_us: The time that timestamps are compared with; None: the same.
        """
        wall_us = now_us if wall_us is None else wall_us
        self.tell_time(now_us)
        if self.appender.is_expired(wall_us):
            self._read_ahead()
            with self._lock:
                if self.appender.seal_expired(wall_us):
                    self.remembered.keep()
        return self._let_go(self.log.retained_start(wall_us))

    def _read_ahead(self) -> None:
        """Before a segment is sealed and its state kept (`state.L10`)."""
        self.appender.read_tail()
        if self.remembered.has_states():
            self.remembered.read_ahead()

    def trim(self, before_offset: int) -> int:
        """Let go of records below `before_offset` (at most the high watermark). Returns the log start offset."""
        return self._let_go(min(before_offset, self.state.high_watermark))

    def _let_go(self, start: int) -> int:
        """Let go of what lies below `start`, on a full disk too: what is written for it may take spare files.

        At each step a power cut leaves the log as it was, or with its new start: the state comes first
        (`state_files.T3`), then the checkpoint (`checkpoint.K3`), then the segments go.
        """
        if start > self.state.log_start_offset:
            try:
                self.remembered.keep_what_goes(start)
            except DiskFull:
                told = self.remembered.told_by_state()
                if not self.state.log_start_offset < told < start:
                    raise
                self.log.let_go(told)  # needs no new state, and may make the room for one
                self.remembered.keep_what_goes(start)
        return self.log.let_go(start)

    def checkpoint(self, *, clean: bool = False, withdraw: bool = False) -> None:
        """As `Checkpoints.keep`, and write the state file that a roll has left to it."""
        if not (clean or withdraw or self.remembered.is_due) and self.checkpoints.is_up_to_date:
            return
        with self.state.checkpoint_lock, self.state.guarded("checkpoint"):
            self.remembered.keep_due()
            self.checkpoints.keep(clean=clean, withdraw=withdraw)

    # --- as a follower, and at rest -------------------------------------------------------------------------

    def follow(self, leader_epoch: int) -> None:
        """As `Log.follow`."""
        self.log.follow(leader_epoch)

    def idle(self) -> bool:
        """As `Log.idle`."""
        return self.log.idle()

    def close(self, *, clean: bool = True) -> None:
        """As `Log.close`, and write the state as of the end, so that the next open reads none."""
        try:
            if clean and self.state.failure is None:
                self.syncer.sync()
                self.remembered.keep(at_close=True)
                self.checkpoint(clean=True)
        finally:
            self.log.close(clean=False)
            with self._lock:
                self.remembered.forget()  # whoever still has this log needs no tables
