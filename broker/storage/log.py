"""One partition's log on one disk, which everyone else uses: records are judged, appended, noted.

    append(batches)
      judge      Memory says what stays of them, or that they are a repeat
      append     the appender composes and writes them (writing/append.py)
      note       Memory knows them; or takes back what it had noted, if the write failed

A leader appends batches (`append`), a follower what the leader has stored, byte for byte (`append_stored`). A follower
may have to take records back that its new leader does not have (`truncate`, `reset`). Any thread may call anything.

`PartitionLog` does what concerns several parts. What one part does alone is asked of that part. Each is given only
those before it:

    state         where it begins and ends, files, locks, trouble: what all others are given (writing/state.py)
    epochs        who led when, who leads now (writing/leader_epochs.py)
    checkpoints   the file that says where the next open starts (writing/checkpoints.py)
    reader        plans, messages, times (log_reader.py)
    appender      a leader's batches, a follower's messages, the roll of a segment (writing/append.py)
    syncer        fsync (writing/sync.py)
    remembered    the tables that judge (memory/), and the state files that keep them beside the log
    tracking      how the table of subjects comes to be, once somebody asks
    handover      state files from a leader to a follower (memory/handover.py)

The first three come from `opening.py`. The clock is an argument. The findings of an open are in `state.recovery`; the
caller logs them.

Design: docs/reference/storage.md, docs/adr/0024-the-log-by-composition.md, 0268.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from broker.api.errors import DiskFull, LiftlogError, OffsetOutOfRange, StorageFailed
from broker.storage.disk import Disk, ReadableBuffer
from broker.storage.log_reader import LogReader
from broker.storage.memory.handover import Handover
from broker.storage.memory.memory import NOTHING, Noted, Repeat, Rows, Settled, Verdict, stamp_of
from broker.storage.memory.producers import GroupStamp
from broker.storage.opening import FilledParts, make_folder, open_again, open_folder
from broker.storage.read import group_start
from broker.storage.recovery import RecoveryReport
from broker.storage.remembered import Remembered
from broker.storage.rows import Conditional, Encodable, RowBatch, StoredGroup
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from broker.storage.segments.index import INDEX_CACHE
from broker.storage.segments.retention import log_start_for, old_end
from broker.storage.tracking import Tracking
from broker.storage.writing.append import WRITEBACK_BYTES, Appender, AppendResult
from broker.storage.writing.leader_epochs import EpochEnd
from broker.storage.writing.let_go import let_go
from broker.storage.writing.sync import Syncer
from broker.storage.writing.truncate import check_takes_back, reset, truncate

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
    """See the module, which has its attributes. Made by `create` and `open`."""

    __slots__ = (
        "_lock",
        "appender",
        "checkpoints",
        "epochs",
        "handover",
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
        """Make a folder for a new, empty log, and open it.

        Raises:
            KeyMissing: it is to be encrypted, and the key for it is not here; nothing was made.
            WrongFolder: the folder already holds a log.
            StorageFailed, DiskFull: the disk refuses.
        """
        make_folder(disk, folder, identity, settings)
        return cls.open(disk, folder, settings, boot_id=boot_id, now_us=now_us, expected=identity)

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
        """Open a log; recover it unless it was closed cleanly since this machine booted.

        Args:
            boot_id: Identifies this run of the machine; empty: not known, a clean mark is not trusted.
            now_us: Microseconds of a clock that nobody sets (`ages.A1`).
            expected: Refuse a folder of another partition.
        Raises:
            WrongFolder: no log is there, or that of another partition.
            UnknownFormatVersion: a later release wrote it; nothing was changed.
            KeyMissing: it is encrypted, and the key for it is not here; nothing was changed.
            WrongKeys: its own files of keys are lost, or another log's; nothing was changed.
            CorruptLog: a file that cannot be rebuilt from others is damaged; nothing was changed. With other replicas
                the checkpoint is one: log start and high watermark are not proven by segments.
            BadBatch: somebody has changed an encrypted batch that the recovery meets (`recovery.R9`).
            StorageFailed, DiskFull: the disk refuses.
        """
        opened = open_folder(disk, folder, settings, boot_id=boot_id, now_us=now_us, expected=expected)
        return cls(opened)

    def __init__(self, opened: FilledParts) -> None:
        state, epochs, checkpoints = opened
        self.state, self.epochs, self.checkpoints, self._lock = state, epochs, checkpoints, state.lock
        self.appender, self.syncer, self.reader = Appender(state, epochs), Syncer(state), LogReader(state)
        self.remembered = Remembered(state, self.reader, self.syncer)
        self.handover = Handover(self.remembered, checkpoints)
        self.tracking = Tracking(self.remembered)
        if not state.recovery.clean:
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
            superseded: The leader's, if these are from below it: on disk before they are (`state.raise_superseded`).
        """
        if self.checkpoints.is_lacking:
            self.checkpoints.keep(withdraw=True)
        self.state.raise_superseded(*superseded)
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
        """From now on append in this epoch alone. Returns its start: the log end.

        A commit group that is not whole is cut off first, fsynced or not: nobody else has the rest of it.

        Raises:
            NotLeader: a later epoch is known.
            DiskFull, StorageFailed: the cut failed; it does not lead.
        """
        state = self.state
        with state.checkpoint_lock, state.sync_lock, self._lock:
            if state.may_end_in_part and (end := state.ask(group_start)) < state.log_end_offset:
                self.remembered.cut(end)
            if not state.settings.is_sole_replica:
                self.remembered.begin_to_lead()
            self.remembered.complete()
            self.epochs.check_not_stale(leader_epoch, "lead")
            state.committed_to = 0
            if state.may_end_in_part:
                state.check_writable()
                truncate(self.state, self.epochs, self.checkpoints, self.state.ask(group_start))
            self.epochs.lead(leader_epoch)
            if state.superseded[0] > state.log_end_offset:
                self._lead_by_what_is_there()
            return state.log_end_offset

    def _lead_by_what_is_there(self) -> None:
        """An operator chose it although newer records are missing above its end: now there are none."""
        to, epoch = self.state.log_end_offset, self.epochs.latest
        self.state.note_superseded(to, epoch)
        with suppress(OSError):  # a full disk: after the next open it begins anew if it follows
            self.state.write_superseded(to, epoch)

    def follow(self, leader_epoch: int) -> None:
        """From now on take only what this epoch's leader has stored. A thread that still appends is refused.

        Raises:
            NotLeader: a later epoch is known.
        """
        with self._lock:
            self.epochs.follow(leader_epoch)
            self.state.committed_to = 0

    def truncate(self, to: int, *, is_copied_again: bool = False) -> int:
        """Take back the records from `to` on, and those before it whose stored batch or commit group it would cut. If
        that begins below the log start, nothing stays. State files above the cut go first, with the records
        (`state_files.T5`).

        It may go below the recovery point and the high watermark; both are lowered on disk first (`truncate.L5`).

        Args:
            is_copied_again: From a log that has all that is cut. Otherwise nothing is cut below the mark of what others
                may be gone for (`truncate.L10`); a pass of compaction may have raised it just now.
        Returns:
            The log end.
        Raises:
            OffsetOutOfRange: that is so, or `to` is below the log start: `reset` is what is wanted.
            NotLeader: it leads.
            DiskFull, StorageFailed: nothing was changed, or the log is failed and `recover` finds it as it was, or
                shorter.
        """
        state = self.state
        with state.checkpoint_lock, state.sync_lock, self._lock:
            check_takes_back(state, self.epochs, "truncate")
            start, (kept_to, _) = state.log_start_offset, state.superseded
            if to < min(kept_to, state.log_end_offset) and not is_copied_again:
                raise OffsetOutOfRange(f"{state.folder}: below {kept_to} records have gone for newer ones")
            if start <= to < state.log_end_offset:
                try:
                    self.remembered.cut(state.ask(lambda view: group_start(view, to)))
                except OffsetOutOfRange:
                    self.reset(start, last_epoch=self.epochs.epoch_of(start - 1))
                    return start
            if to < state.log_end_offset:
                end = state.ask(lambda view: group_start(view, to))
                truncate(state, self.epochs, self.checkpoints, end)
            return state.log_end_offset

    def reset(self, to: int, *, last_epoch: int = -1) -> None:
        """Begin anew and empty at `to`: the leader has nothing below that follows on what is here.

        All that was stored is gone, and so is what was told of it. State files go first: from now on one is lacking
        (`state_files.T6`).

        Args:
            to: Log start and log end.
            last_epoch: The leader epoch of the record before `to`; -1: not known.
        Raises:
            NotLeader, DiskFull, StorageFailed: as `truncate`.
        """
        state = self.state
        with state.checkpoint_lock, state.sync_lock, self._lock:
            check_takes_back(state, self.epochs, "reset")
            with state.guarded("reset"):
                self.remembered.drop()
            reset(state, self.epochs, self.checkpoints, to, last_epoch=last_epoch)

    def recover(self, now_us: int) -> RecoveryReport:
        """Bring a failed log back: write what is not durable anew, fsync it, open everything as after a crash.

        Every offset keeps its record as far as the page cache still has it, so an append whose `sync` failed may turn
        out to be stored after all. Damage above the high watermark is cut off; records damaged below it are lost. With
        more than one replica nothing is salvaged: what is not durable is cut off, and fetched anew. A log that is
        well, or closed, is left alone.

        Raises:
            StorageFailed, DiskFull: the disk still refuses; the log stays failed, and this may be tried again.
            BadBatch: as `open`; likewise.
        """
        state = self.state
        with state.checkpoint_lock, state.sync_lock, self._lock:
            if state.failure is None or state.is_closed:
                return state.recovery
            state.ages.tell(now_us, state.log_end_offset)
            open_again(FilledParts(state, self.epochs, self.checkpoints), now_us)
            try:
                self.remembered.after_recovery()
            except LiftlogError as error:
                raise state.fail(error) from error  # or it would go on with files that tell of what it has lost
            return state.recovery

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
        state = self.state
        with self._lock:
            settings, old = state.settings, old_end(state.ages, state.settings.retention_ms)
        start = state.ask(lambda view: log_start_for(view, settings=settings, now_us=wall_us, old_end=old))
        return self._let_go(start)

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
                let_go(self.state, self.checkpoints, told)  # needs no new state, and may make the room for one
                self.remembered.keep_what_goes(start)
        return let_go(self.state, self.checkpoints, start)

    def checkpoint(self, *, clean: bool = False, withdraw: bool = False) -> None:
        """As `Checkpoints.keep`, and write the state file that a roll has left to it."""
        if not (clean or withdraw or self.remembered.is_due) and self.checkpoints.is_up_to_date:
            return
        with self.state.checkpoint_lock, self.state.guarded("checkpoint"):
            self.remembered.keep_due()
            self.checkpoints.keep(clean=clean, withdraw=withdraw)

    def idle(self) -> bool:
        """Close the tail's file and forget its index, if all is durable. Returns whether no descriptor is held."""
        state = self.state
        with state.sync_lock, self._lock:
            if state.is_closed:
                return True
            if state.failure is not None or state.durable_end < state.log_end_offset:
                return False
            with state.guarded("idle"):
                state.chain.rest()
            return True

    def close(self, *, clean: bool = True) -> None:
        """Give everything back. Cleanly: fsync, write the state as of the end, and set the clean mark, so that the next
        open reads no segment.

        A failed log is closed without the mark. Behind it nothing is written into the folder, whoever is still at it
        (`state.L8`).
        """
        state = self.state
        try:
            if clean and state.failure is None:
                self.syncer.sync()
                self.remembered.keep(at_close=True)
                self.checkpoint(clean=True)
        finally:
            with state.checkpoint_lock, state.sync_lock, self._lock:
                state.is_closed = True
                state.fail(StorageFailed(f"{state.folder} is closed", path=state.folder))
                state.chain.close()
                for segment in state.chain.segments:
                    INDEX_CACHE.drop(segment.serial)
            with self._lock:
                self.remembered.forget()  # whoever still has this log needs no tables
