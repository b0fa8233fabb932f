"""One partition's log on one disk: append, make durable, read, let go.

    log start          high watermark   durable end   log end
        | seg | seg | seg      |             |           |
        [---- committed -------)             |           |
        [---- fsynced -----------------------)           |
        [---- appended ----------------------------------)

Any thread may call anything. `append` holds the append lock while it composes and writes; `sync` does not
hold it during the fsync, so one fsync serves all that was written before it (group commit). Readers hold
no lock: they work on a `LogView`, whose parts are replaced, never changed.

L1  Offsets are dense and strictly increasing; one append is one write, or several that are taken back together.
L2  log start <= high watermark <= log end, durable end <= log end, and none of them ever moves back.
L3  After a failed fsync, or a write that could not be taken back, the log is failed: it appends and
    syncs nothing until `recover`. Reads go on.
L4  Locks are taken in this order: checkpoint, sync, append.

The clock is an argument. What was found at open is in `recovery`; the caller logs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from broker.api.batch import crc_of, is_plain
from broker.api.errors import DiskFull, StorageFailed
from broker.storage.chain import Untrusted
from broker.storage.checkpoint import LogIdentity, LogSettings
from broker.storage.dedup import Found
from broker.storage.disk import storage_error
from broker.storage.durable import SyncedLog
from broker.storage.producers import Stamp
from broker.storage.read import ReadPlan, bytes_between, find_time, plan_read
from broker.storage.recovery import RecoveryReport, merge_ranges
from broker.storage.remembering import stamp_of
from broker.storage.retention import is_expired, log_start_for
from broker.storage.rows import Encodable, RowBatch, StoredGroup, is_conditional
from broker.storage.scan import MESSAGE_BYTES_MAX
from broker.storage.subjects import Latest
from broker.storage.turns import Turn, messages_in_turn

__all__ = ["AppendResult", "Encodable", "LogIdentity", "LogSettings", "PartitionLog", "RecoveryReport", "StoredGroup"]


HASTE_BYTES: Final = 4 << 20
"""After so many bytes of a group the disk begins with them, while further ones are made. 1 M records of 100 bytes were
written and fsynced in 47 ms with it, in 75 ms without; by 16 MB it were 53."""


class AppendResult(NamedTuple):
    """Where an append went: offsets [first_offset, next_offset), and how many bytes were written.

    `duplicate`: nothing was, its producer had appended it before; the offsets are those of then, maybe not yet durable.
    (Or none of its records stays, by their ids and expectations; both offsets are the log end, above the originals.)
    """

    first_offset: int
    next_offset: int
    bytes: int
    duplicate: bool = False


class PartitionLog(SyncedLog):
    """See the module. Made by `create` and `open`; the attributes are those of `OpenLog`."""

    @property
    def segment_count(self) -> int:
        return len(self._chain.segments)

    @property
    def is_awake(self) -> bool:
        """Whether it holds a descriptor; `idle` gives it back."""
        return self._chain.file is not None

    @property
    def byte_count(self) -> int:
        """Bytes of all segment files."""
        return self._ask(lambda view: sum(segment.size(view.disk) for segment in view.segments))

    @property
    def is_dirty(self) -> bool:
        """Whether there is something new for `checkpoint` to write."""
        found = self._checkpointed
        return found is None or (
            found.high_watermark,
            found.log_start_offset,
            found.recovery_point,
            found.lost_ranges,
        ) != (self.high_watermark, self.log_start_offset, self.durable_end, self.lost_ranges)

    # --- append ---------------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Encodable], *, leader_epoch: int, now_us: int) -> AppendResult:
        """Append batches as one commit group, with one write. Not durable before a later `sync`.

        Args:
            batches: n >= 1, of one kind; they get consecutive offsets in this order. With a producer id they all carry
                the same stamp, and a group that was appended before is not appended again.
            leader_epoch: Not less than that of the last append.
            now_us: Decides the age of a new segment.
        Raises:
            DiskFull: nothing was appended; a later call may succeed.
            StorageFailed: nothing was appended; nothing will be before `recover`.
            ProducerFenced, OutOfSequence, UnknownProducer, Overloaded: as `ProducerTable.check`.
        """
        assert batches, "an append holds at least one batch"
        self._unmark_clean()
        with self._lock:
            if self.failure is not None:
                self._check_writable()
            self._latest_us = now_us
            first = batches[0]
            if is_conditional(first):
                if not first.condition_count:
                    return self._write(batches, leader_epoch, now_us, knows_ids=True)
                assert len(batches) == 1, "the conditions of a group are not settled"
                with self._settling(first):
                    if not first.record_count:
                        return AppendResult(self.log_end_offset, self.log_end_offset, 0, duplicate=True)
                    return self._write(batches, leader_epoch, now_us, knows_ids=True)
            stamp = stamp_of(first) if isinstance(first, RowBatch) else None
            if stamp is not None:
                found = self._check_stamp(stamp, sum(batch.record_count for batch in batches), now_us)
                if found is not None:
                    return AppendResult(found.first_offset, found.next_offset, 0, duplicate=True)
            return self._write(batches, leader_epoch, now_us, knows_ids=False, stamp=stamp)

    def append_group(self, group: StoredGroup, *, leader_epoch: int, now_us: int) -> AppendResult:
        """Append a commit group that need not fit into memory: batch by batch, and all taken back if one fails.

        Args:
            group: Gone through once. What that raises passes through; then nothing was appended.
            leader_epoch, now_us: As `append` takes them.
        Raises:
            DiskFull, StorageFailed: as `append`.
        """
        self._unmark_clean()
        with self._lock:
            self._check_writable()
            self._latest_us = now_us
            entries: list[tuple[int, int, int, int, int]] = []
            ids: list[Found | None] = []
            latest: list[Latest] = []
            with self._guarded("append"):
                index = self._tail_for(group.byte_count, now_us)
                if leader_epoch != self.leader_epoch:
                    self._begin_epoch(leader_epoch)
                first = offset = self.log_end_offset
                begin = position = hastened = index.end
                index.make_room(group.batch_count)
                try:
                    for batch in group.batches:
                        message = self._message(batch, offset, leader_epoch, len(entries), group.batch_count)
                        ids.append(self._ids_of(message))
                        latest += self._latest_in([message])
                        self._chain.write(message, begin)
                        entries.append((offset, position, batch.max_timestamp_us, len(message), crc_of(message)))
                        offset += batch.record_count
                        position += len(message)
                        if position - hastened >= HASTE_BYTES:
                            self._chain.hasten(hastened, position)
                            hastened = position
                    assert len(entries) == group.batch_count, "a group has as many batches as it says"
                except BaseException:
                    self._chain.cut(begin)
                    raise
            for entry in entries:
                index.append(*entry)
            self.log_end_offset = offset
            self._note_ids(ids)
            self._note_subjects((), latest, first)
            return AppendResult(first, offset, position - begin)

    def advance_high_watermark(self, offset: int) -> None:
        """Commit what is below `offset`; one that is not greater changes nothing."""
        assert offset <= self.log_end_offset, f"high watermark {offset} beyond the log end {self.log_end_offset}"
        with self._high_watermark_lock:
            if offset > self.high_watermark:
                self.high_watermark = offset

    def roll_if_due(self, now_us: int) -> bool:
        """Seal the active segment if it is older than `segment_age_ms`. Returns whether it did."""
        with self._lock:
            tail = self._chain.tail
            self._latest_us = now_us
            if self.failure or tail is None or now_us - tail.created_us < self.settings.segment_age_ms * 1_000:
                return False
            return self._seal()

    # --- read -----------------------------------------------------------------------------------------------

    def read(self, offset: int, *, end: int | None = None, max_bytes: int | None = None) -> ReadPlan:
        """Find the batches that hold [offset, min(end, high watermark)).

        Args:
            offset: In [log start, high watermark]; at the high watermark the plan is empty.
            end: Exclusive; the last batch may go past it.
            max_bytes: At least one batch comes, if there is any; further ones while they fit.
        Returns:
            A plan; close it. Where it stops short, `next_offset` says where to go on.
        Raises:
            OffsetOutOfRange: with `log_start_offset` and `high_watermark`.
            CorruptLog: the files change while they are read.
        """
        return self._ask(lambda view: plan_read(view, offset, end=end, max_bytes=max_bytes))

    def batches(self, offset: int, end: int | None = None) -> Iterator[memoryview]:
        """The verified messages that hold [offset, min(end, high watermark)), in order.

        Damaged ones are not yielded: they are noted in `lost_ranges`.

        Raises:
            OffsetOutOfRange: as `read`.
        """
        return self._messages(offset, end)

    def batches_in_turn(self, offset: int, end: int) -> Iterator[Turn]:
        """As `batches`, with their headers: each in the memory of the one before, and the caller's to change."""
        return messages_in_turn(self._ask, self._repair, offset, end)

    def offset_for_time(self, timestamp_us: int) -> int | None:
        """The earliest committed offset whose timestamp is at or after `timestamp_us`, exactly; None when none is."""
        return self._ask(lambda view: find_time(view, timestamp_us))

    def bytes_between(self, start: int, end: int) -> int:
        """Stored bytes of [start, end), to whole batches."""
        return self._ask(lambda view: bytes_between(view, start, end))

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that wrote `offset`; -1 when there is no such record, or not any more."""
        return self._known_epochs().epoch_of(offset) if offset < self.log_end_offset else -1

    def epoch_end(self, epoch: int) -> int:
        """First offset after the records of `epoch` and earlier ones; the log end for the latest epoch."""
        return self._known_epochs().end_of(epoch, self.log_end_offset)

    # --- let go ---------------------------------------------------------------------------------------------

    def apply_retention(self, *, now_us: int) -> int:
        """Remove the segments that the settings do not keep. Returns the log start offset."""
        with self._lock:
            self._latest_us = now_us
            tail = self._chain.tail
            with self._guarded("read"):
                newest = None if tail is None else tail.max_timestamp_us(self._disk)
            if newest is not None and is_expired(newest, self.settings, now_us) and self.failure is None:
                with suppress(DiskFull):  # it stays, what is sealed goes
                    self._seal()
        return self._let_go(self._ask(lambda view: log_start_for(view, settings=self.settings, now_us=now_us)))

    def trim(self, before_offset: int) -> int:
        """Let go of records below `before_offset` (at most the high watermark). Returns the log start offset."""
        return self._let_go(min(before_offset, self.high_watermark))

    def _let_go(self, start: int) -> int:
        """Let go of what lies below `start`, on a full disk too: what is written for it may take spare files (B1).

        At each step a power cut leaves the log as it was, or with its new start: the state comes first (T3), then the
        checkpoint (K3), then the segments go.
        """
        if start > self.log_start_offset:
            try:
                self._keep_state_of(start)
            except DiskFull:
                told = self._told_by_state()
                if not self.log_start_offset < told < start:
                    raise
                self._let_go(told)  # needs no new state, and may make the room for one
                self._keep_state_of(start)
        with self._lock:
            if self.failure is not None:
                return self.log_start_offset
            if start > self.log_start_offset:
                if start == self.log_end_offset and self._chain.tail is None:
                    with self._guarded("roll"):
                        self._chain.begin(start, frees=True)  # its name keeps the next offset
                self.log_start_offset = start
                self.lost_ranges = merge_ranges(self.lost_ranges, log_start_offset=start)
            start, known = self.log_start_offset, self._checkpointed
        if start > (known.log_start_offset if known is not None else 0):
            with self._checkpoint_lock, self._guarded("checkpoint"):
                with self._lock:
                    point = self._point()
                self._write_checkpoint(point, frees=True)  # K3; also for an earlier call that could not write it down
        with self._lock:
            gone = self._chain.drop_below(start)
        for segment in gone:
            with suppress(OSError):  # tried again at the next open
                segment.unlink(self._disk)
        return start

    # --- rest -----------------------------------------------------------------------------------------------

    def checkpoint(self, *, clean: bool = False, withdraw: bool = False) -> None:
        """Write down how far the log is, so that the next open starts there. Nothing new: nothing is written.

        Args:
            clean: Also set the clean mark, if the log is wholly durable; an append may have come since it was synced.
            withdraw: Take the clean mark away although nothing is new: an append is about to come (K2). Otherwise
                it stays as long as it holds, so thousands of idle logs are written neither after a start nor at a stop.
        Raises:
            StorageFailed, DiskFull: the old checkpoint stands.
        """
        with self._checkpoint_lock, self._guarded("checkpoint"):
            self._keep_due_state(self.sync)
            with self._lock:
                point = self._point(clean=clean and self.durable_end == self.log_end_offset)
            found = self._checkpointed
            if clean or withdraw or found is None or point != replace(found, clean_boot_id=None):
                self._write_checkpoint(point)

    def idle(self) -> bool:
        """Close the tail's file and forget its index, if all is durable. Returns whether no descriptor is held."""
        with self._sync_lock, self._lock:
            if self.failure is not None or self.durable_end < self.log_end_offset:
                return False
            with self._guarded("idle"):
                self._chain.rest()
            return True

    def close(self, *, clean: bool = True) -> None:
        """Give everything back. Cleanly: fsync, and set the clean mark, so that the next open reads no segment.

        A failed log is closed without the mark.
        """
        try:
            if clean and self.failure is None:
                self.sync()
                self._keep_state(at_close=True)
                self.checkpoint(clean=True)
        finally:
            with self._sync_lock, self._lock:
                self._is_closed = True
                self._fail(StorageFailed(f"{self.folder} is closed", path=self.folder))
                self._chain.close()

    def recover(self, now_us: int) -> RecoveryReport:
        """Bring a failed log back: write what is not durable anew, fsync it, open everything as after a crash.

        Every offset keeps its record as far as the page cache still has it, so an append whose `sync` failed may turn
        out to be stored after all. What it has lost is cut off above the high watermark, and lost below. (RF 1: with
        more replicas nothing is salvaged in place.) A log that is well, or closed, is left alone.

        Raises:
            StorageFailed, DiskFull: the disk still refuses; the log stays failed, and this may be tried again.
        """
        with self._checkpoint_lock, self._sync_lock, self._lock:
            if self.failure is None or self._is_closed:
                return self.recovery
            try:
                self._chain.close()
                self._chain.write_again(self.durable_end)
                self._recover(self._point(flush=False), RecoveryReport(), now_us)
            except OSError as error:
                self.failure = storage_error(error, f"recover {self.folder}")
                raise self.failure from error
            self.failure = None
            return self.recovery

    # --- helpers --------------------------------------------------------------------------------------------

    def _write(
        self,
        batches: Sequence[Encodable],
        leader_epoch: int,
        now_us: int,
        *,
        knows_ids: bool,
        stamp: Stamp | None = None,
    ) -> AppendResult:
        """Append what is settled and no repeat. `knows_ids`: the batches are conditional; nothing is to be decoded."""
        first = offset = self.log_end_offset
        rows: list[tuple[int, int, bytes | bytearray | memoryview]] = []
        for batch in batches:
            message = self._message(batch, offset, leader_epoch, len(rows), len(batches))
            rows.append((offset, batch.max_timestamp_us, message))
            offset += batch.record_count
        data = rows[0][2] if len(rows) == 1 else b"".join([row[2] for row in rows])
        ids = [] if knows_ids else [self._ids_of(row[2]) for row in rows]
        latest = [] if knows_ids else self._latest_in([row[2] for row in rows])
        try:
            index = self._tail_for(len(data), now_us)
            if leader_epoch != self.leader_epoch:
                self._begin_epoch(leader_epoch)
            position = index.end
            index.make_room(len(batches))  # before the write: what is written is in the index
            self._chain.write(data, position)
        except (OSError, Untrusted) as error:
            raise self._error_of(error, "append") from error
        for at, max_timestamp_us, message in rows:
            index.append(at, position, max_timestamp_us, len(message), crc_of(message))
            position += len(message)
        self.log_end_offset = offset
        if stamp is not None:
            self._note_stamp(stamp, first, offset)
        if self._ids is not None:
            self._note_ids(ids, batches)
        if self._subjects is not None:
            self._note_subjects(batches, latest, first)
        return AppendResult(first, offset, len(data))

    def _message(
        self, batch: Encodable, offset: int, leader_epoch: int, group_index: int, group_count: int
    ) -> bytes | bytearray | memoryview:
        message = batch.compose(
            first_offset=offset,
            leader_epoch=leader_epoch,
            high_watermark=self.high_watermark,
            group_index=group_index,
            group_count=group_count,
        )
        assert is_plain(message), "a batch is not as long as it says"
        assert len(message) <= MESSAGE_BYTES_MAX, "a batch is too long to be found again"
        return message

    def _unmark_clean(self) -> None:
        """Before the first append (K2)."""
        known = self._checkpointed
        if known is not None and known.clean_boot_id is not None:
            self.checkpoint(withdraw=True)
