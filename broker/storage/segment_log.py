"""One partition's records on one disk: bytes, offsets and leader epochs. Has never heard of ids, producers or subjects.

    log start          high watermark   durable end   log end
        | seg | seg | seg      |             |           |
        [---- committed -------)             |           |
        [---- fsynced -----------------------)           |
        [---- appended ----------------------------------)

A leader appends batches (`append`), a follower what the leader has stored, byte for byte (`append_stored`). A follower
may have to take records back that its new leader does not have (`truncate`, `reset`).

Any thread may call anything. Appends hold the append lock while they compose and write; `sync` does not hold it during
the fsync, so one fsync serves all that was written before it (group commit). Readers hold no lock: they work on a
`LogView`, whose parts are replaced, never changed.

L1  Offsets are dense and strictly increasing; one append is one write, or several that are taken back together.
L2  log start <= high watermark <= log end, durable end <= log end. None of them moves back but in `truncate` and
    `reset`, and the log end in `recover`, down to the high watermark at the least.
L3  After a failed fsync, or a write that could not be taken back, the log is failed: it appends and syncs nothing until
    `recover`. Reads go on.
L4  Locks are taken in this order: checkpoint, sync, append. Whoever holds one may take it again.
L5  What a truncation takes back is taken back on disk first, in an order in which a crash leaves the log as it was, or
    shorter; and all of it is on disk before the next append.
L6  Leader epochs never go down along a log. Once somebody has told it whom it follows or leads as, another epoch is
    refused.

Trouble with files:

- one that can be derived is missing or wrong, or a batch that was fsynced is damaged: scanned anew, lost ranges noted
  (`_repair`); the question that met it is asked again (`ask`). Lost ranges are for a sole replica: with more, whoever
  finds one has the records fetched anew.
- the disk refuses and nothing has changed: an error of the tree (`guarded`);
- what a file holds is not known any more: the log is failed until it is recovered.

The clock is an argument. What was found at open is in `recovery`; the caller logs it.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple, Self, TypeVar

from broker.api.batch import BatchHeader, crc_of, is_plain, message_bytes, verify_batch
from broker.api.errors import BadBatch, CorruptLog, DiskFull, LiftlogError, NotLeader, StorageFailed, WrongFolder
from broker.storage.disk import Disk, File, ReadableBuffer, storage_error
from broker.storage.read import (
    LogView,
    NeedsRepair,
    ReadPlan,
    bytes_between,
    find_time,
    group_start,
    plan_read,
    verified_messages,
)
from broker.storage.recovery import (
    Ranges,
    RecoveryReport,
    is_clean,
    list_segments,
    load_checkpoint,
    merge_ranges,
    recover,
)
from broker.storage.rewrite.clean_state import lower_clean_state
from broker.storage.rewrite.joining import announce, retract, settle_joins
from broker.storage.rewrite.reused_blocks import Turn, messages_in_turn
from broker.storage.rows import Encodable, StoredGroup
from broker.storage.segments.chain import Chain, Untrusted
from broker.storage.segments.checkpoint import (
    CHECKPOINT_FILE,
    PARTITION_FILE,
    Checkpoint,
    LogIdentity,
    LogSettings,
    check_identity,
    read_identity,
    write_identity,
)
from broker.storage.segments.epochs import Epochs, derive_epochs, load_epochs, write_epochs
from broker.storage.segments.index import Entries, GrowingIndex, IndexView
from broker.storage.segments.retention import is_expired, log_start_for
from broker.storage.segments.scan import MESSAGE_BYTES_MAX
from broker.storage.segments.segment import Segment

REPAIRS_PER_CALL_MAX: Final = 8
BATCHES_READ_BYTES: Final = 4 << 20
HASTE_BYTES: Final = 4 << 20
"""After so many bytes of a group the disk begins with them, while further ones are made. 1 M records of 100 bytes were
written and fsynced in 47 ms with it, in 75 ms without; by 16 MB it were 53."""
T = TypeVar("T")
Message = bytes | bytearray | memoryview
Look = Callable[[Sequence[Message]], None]


class AppendResult(NamedTuple):
    """Where an append went: offsets [first_offset, next_offset), and how many bytes were written.

    `duplicate`: nothing was, its producer had appended it before; the offsets are those of then, maybe not yet durable.
    (Or none of its records stays, by their ids and expectations; both offsets are the log end, above the originals.)
    """

    first_offset: int
    next_offset: int
    bytes: int
    duplicate: bool = False


class EpochEnd(NamedTuple):
    """The greatest leader epoch that is not above the one asked for, -1 for none, and the first offset after its
    records and those of all before it."""

    epoch: int
    end_offset: int


class Log:
    """See the module.

    Attributes:
        identity: Which partition this is.
        settings: When it rolls and what it keeps.
        log_start_offset: First offset that can be read.
        log_end_offset: The next offset that will be given out.
        durable_end: First offset that is not known to be on disk; the recovery point.
        high_watermark: First offset that is not committed.
        leader_epoch: Of the last record; -1 before the first.
        group_ends: Where commit groups above the high watermark end, ascending. What an open found above it counts as
            one group.
        lost_ranges: Half-open ranges of offsets that were fsynced and are damaged on disk, at or above the log start.
        recovery: What the last open or `recover` found and did.
        failure: Why appends are refused; None while the log is well.
        cuts: So often records were taken back. Who has read a while, and acts on it, compares.
        is_marked_clean: The checkpoint on disk says that it was closed cleanly.
        checkpoint_lock, sync_lock, lock: L4. Who does something with several calls holds them meanwhile.
    """

    # --- open -----------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings, *, now_us: int, boot_id: str = ""
    ) -> Self:
        """Make a folder for a new, empty log, and open it.

        Raises:
            WrongFolder: the folder already holds a log.
            StorageFailed, DiskFull: the disk refuses.
        """
        try:
            if disk.exists(f"{folder}/{PARTITION_FILE}"):
                raise WrongFolder(f"{folder} already holds a log", path=folder)
            disk.makedirs(folder)
            write_identity(disk, folder, identity)
        except OSError as error:
            raise storage_error(error, f"create {folder}") from error
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
            expected: Refuse a folder of another partition.
        Raises:
            WrongFolder: no log is there, or that of another partition.
            UnknownFormatVersion: a later release wrote it; nothing was changed.
            CorruptLog: a file that cannot be rebuilt from others is damaged.
            StorageFailed, DiskFull: the disk refuses.
        """
        try:
            identity = read_identity(disk, folder)
            if expected is not None:
                check_identity(identity, expected, folder=folder)
            log = cls(disk, folder, identity, settings, boot_id)
            report = RecoveryReport()
            joins: list[str] = []
            checkpoint = load_checkpoint(disk, folder, report)
            settle_joins(disk, folder, joins)
            segments = list_segments(disk, folder)
            if not segments and report.notes:
                raise CorruptLog(
                    f"{folder}: the checkpoint is damaged and no segment is left, so the next offset is not known",
                    path=folder,
                )
            log._note_checkpoint(checkpoint)
            if checkpoint is not None and is_clean(disk, checkpoint, segments, boot_id):
                log._rest(checkpoint, segments)
            else:
                log._recover(checkpoint, report, now_us)
            log.recovery.notes += joins
            return log
        except OSError as error:
            raise storage_error(error, f"open {folder}") from error

    def __init__(self, disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings, boot_id: str) -> None:
        self.identity = identity
        self.settings = settings
        self.folder = folder
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.durable_end = 0
        self.high_watermark = 0
        self.leader_epoch = -1
        self.group_ends: list[int] = []
        self.lost_ranges: Ranges = ()
        self.recovery = RecoveryReport()
        self.failure: LiftlogError | None = None
        self.cuts = 0
        self.is_marked_clean = False
        self.is_closed = False
        self.disk = disk
        self.chain = Chain(disk, folder, [], None)
        self.checkpoint_lock = threading.RLock()
        self.sync_lock = threading.RLock()
        self.lock = threading.RLock()
        self._high_watermark_lock = threading.Lock()
        self._boot_id = boot_id
        self._epochs: Epochs | None = None  # None: not read yet
        self._checkpointed: Checkpoint | None = None  # what the file says
        self._led: int | None = None  # L6: the epoch that it leads in
        self._told = -1  # the greatest epoch that it was told of; -1: none yet

    def _rest(self, checkpoint: Checkpoint, segments: list[Segment]) -> None:
        """Take the state of a clean checkpoint; no segment is read."""
        self.recovery = RecoveryReport(clean=True)
        tail, point = None, checkpoint.tail
        if point is not None:
            tail = segments[-1]
            tail.created_us = point.created_us
            tail.rest(None, size=point.bytes, partial=(point.entry_count, point.entry_crc))
        self.chain = Chain(self.disk, self.folder, segments, tail)
        self.log_start_offset = checkpoint.log_start_offset
        self.log_end_offset = self.durable_end = checkpoint.recovery_point
        self.high_watermark = checkpoint.high_watermark
        self.leader_epoch = checkpoint.leader_epoch
        self.lost_ranges = checkpoint.lost_ranges
        self._group_as_one()

    def _recover(self, checkpoint: Checkpoint | None, report: RecoveryReport, now_us: int) -> None:
        is_sole = self.settings.is_sole_replica
        found = recover(self.disk, self.folder, checkpoint, report, now_us=now_us, is_sole=is_sole)
        self.recovery = found.report
        self.chain = Chain(self.disk, self.folder, found.segments, found.tail)
        self.log_start_offset = found.log_start_offset
        self.log_end_offset = self.durable_end = found.log_end_offset
        with self._high_watermark_lock:  # who was told of a sync may have moved it meanwhile
            self.high_watermark = min(max(self.high_watermark, found.high_watermark), found.log_end_offset)
        self.lost_ranges = found.lost_ranges
        self._group_as_one()
        stored = load_epochs(self.disk, self.folder)
        epochs = Epochs([*stored.items]) if stored is not None else self.ask(derive_epochs)
        epochs.cut(found.log_end_offset)
        for epoch, first_offset in found.new_epochs:
            if epoch > epochs.latest:
                epochs.begin(epoch, first_offset)
        self._epochs, self.leader_epoch = epochs, epochs.latest
        try:
            if epochs.items != (stored.items if stored is not None else []):
                write_epochs(self.disk, self.folder, epochs)
            # Where nothing was wrong the old one still holds, and an empty log needs none: thousands of idle
            # logs start without an fsync.
            is_new = checkpoint is None and found.segments
            if is_new or report.lost or report.cut_offset is not None:
                self._write_checkpoint(self._point())
        except OSError as error:  # a full disk: what was found now is found again at the next open
            report.notes.append(f"{self.folder}: no new checkpoint: {error.strerror or error}")

    def _group_as_one(self) -> None:
        self.group_ends = [self.log_end_offset] if self.log_end_offset > self.high_watermark else []

    # --- what is asked --------------------------------------------------------------------------------------

    @property
    def segment_count(self) -> int:
        return len(self.chain.segments)

    @property
    def is_awake(self) -> bool:
        """Whether it holds a descriptor; `idle` gives it back."""
        return self.chain.file is not None

    @property
    def byte_count(self) -> int:
        """Bytes of all segment files."""
        return self.ask(lambda view: sum(segment.size(view.disk) for segment in view.segments))

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

    # --- append: a leader -----------------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[Encodable],
        *,
        leader_epoch: int,
        now_us: int,
        look: Look | None = None,
        rolled: Callable[[], None] | None = None,
    ) -> AppendResult:
        """Append batches as one commit group, with one write. Not durable before a later `sync`.

        Args:
            batches: n >= 1; they get consecutive offsets in this order.
            leader_epoch: That of `lead`. While nobody has called that, any that is not less than the last one's.
            now_us: Decides the age of a new segment.
            look: Is shown the messages before anything is written; what it raises passes through.
            rolled: Is called when a segment was sealed for this append, before anything is written.
        Raises:
            NotLeader: another epoch leads.
            DiskFull: nothing was appended; a later call may succeed.
            StorageFailed: nothing was appended; nothing will be before `recover`.
        """
        with self.lock:
            if self.failure is not None:
                self.check_writable()
            if leader_epoch != self._led:
                self._check_epoch(leader_epoch)
            first = offset = self.log_end_offset
            rows: list[tuple[int, int, Message]] = []
            for batch in batches:
                message = self._compose(batch, offset, leader_epoch, len(rows), len(batches))
                rows.append((offset, batch.max_timestamp_us, message))
                offset += batch.record_count
            data = rows[0][2] if len(rows) == 1 else b"".join([row[2] for row in rows])
            if look is not None:
                look([row[2] for row in rows])
            try:
                index = self._tail_for(len(data), now_us, rolled)
                if leader_epoch != self.leader_epoch:
                    self._begin_epoch(leader_epoch)
                position = index.end
                index.make_room(len(batches))  # before the write: what is written is in the index
                self.chain.write(data, position)
            except (OSError, Untrusted) as error:
                raise self._error_of(error, "append") from error
            for at, max_timestamp_us, message in rows:
                index.append(at, position, max_timestamp_us, len(message), crc_of(message))
                position += len(message)
            self.group_ends.append(offset)  # before the end: who sees that finds its group
            self.log_end_offset = offset
            return AppendResult(first, offset, len(data))

    def append_group(
        self,
        group: StoredGroup,
        *,
        leader_epoch: int,
        now_us: int,
        look: Look | None = None,
        rolled: Callable[[], None] | None = None,
    ) -> AppendResult:
        """Append a commit group that need not fit into memory: batch by batch, and all taken back if one fails.

        Args:
            group: Gone through once. What that raises passes through; then nothing was appended.
            leader_epoch, now_us: As `append` takes them.
            look: Is shown each message before it is written.
            rolled: As `append` takes it.
        Raises:
            NotLeader, DiskFull, StorageFailed: as `append`.
        """
        with self.lock, self.guarded("append"):
            self.check_writable()
            if leader_epoch != self._led:
                self._check_epoch(leader_epoch)
            entries: list[tuple[int, int, int, int, int]] = []
            index = self._tail_for(group.byte_count, now_us, rolled)
            if leader_epoch != self.leader_epoch:
                self._begin_epoch(leader_epoch)
            first = offset = self.log_end_offset
            begin = position = hastened = index.end
            index.make_room(group.batch_count)
            try:
                for batch in group.batches:
                    message = self._compose(batch, offset, leader_epoch, len(entries), group.batch_count)
                    if look is not None:
                        look([message])
                    self.chain.write(message, begin)
                    entries.append((offset, position, batch.max_timestamp_us, len(message), crc_of(message)))
                    offset += batch.record_count
                    position += len(message)
                    if position - hastened >= HASTE_BYTES:
                        self.chain.hasten(hastened, position)
                        hastened = position
                assert len(entries) == group.batch_count, "a group has as many batches as it says"
            except BaseException:
                self.chain.cut(begin)
                raise
            for entry in entries:
                index.append(*entry)
            self.group_ends.append(offset)
            self.log_end_offset = offset
            return AppendResult(first, offset, position - begin)

    def _compose(self, batch: Encodable, offset: int, leader_epoch: int, group_index: int, group_count: int) -> Message:
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

    def _tail_for(self, size: int, now_us: int, rolled: Callable[[], None] | None = None) -> GrowingIndex:
        """The index of the tail that has room for `size` bytes; its file is open."""
        try:
            index = self.chain.awake()
        except NeedsRepair:
            index = self._awake()
        if index is not None and index.count and index.end + size > self.settings.segment_bytes:
            self.chain.seal()
            self._note_roll()
            if rolled is not None:
                rolled()
            index = None
        if index is None:
            index = self.chain.begin(self.log_end_offset)
        if index.count == 0 and self.chain.tail is not None:
            self.chain.tail.created_us = now_us
        return index

    def _awake(self) -> GrowingIndex | None:
        try:
            return self.chain.awake()
        except NeedsRepair as damage:
            self._repair(damage.segment)
            return self.chain.awake()

    def _note_roll(self) -> None:
        """A sealed segment was fsynced whole, with all before it (`chain.C2`, `chain.C4`)."""
        self.durable_end = self.log_end_offset

    def _seal(self) -> bool:
        with self.guarded("roll"):
            self._awake()
            is_sealed = self.chain.seal()
        if is_sealed:
            self._note_roll()
        return is_sealed

    def roll_if_due(self, now_us: int) -> bool:
        """Seal the active segment if it is older than `segment_age_ms`. Returns whether it did."""
        with self.lock:
            tail = self.chain.tail
            if self.failure or tail is None or now_us - tail.created_us < self.settings.segment_age_ms * 1_000:
                return False
            return self._seal()

    # --- append: a follower ---------------------------------------------------------------------------------

    def append_stored(self, data: ReadableBuffer, *, leader_epoch: int, now_us: int) -> int:
        """Append what the leader has stored, as it is: compressed or compacted, of several epochs and groups.

        Segments are this replica's own: it rolls by its own size, between commit groups. The last group may come in
        several calls; a log that begins to lead cuts one that is incomplete.

        Args:
            data: n >= 0 whole messages, the first of them at the log end.
            leader_epoch: That of `follow`.
            now_us: Decides the age of a new segment.
        Returns:
            The log end.
        Raises:
            NotLeader: another epoch is followed, or this log leads; nothing was appended.
            BadBatch: a message is damaged, or does not continue the log; nothing was appended.
            DiskFull, StorageFailed: as `append`. Messages before the one that failed are appended.
        """
        messages = list(_messages_of(data))
        with self.lock:
            self.check_writable()
            if self._led is not None or leader_epoch != self._told:
                raise self._not_leader(f"append records that leader epoch {leader_epoch} has stored")
            self._check_continues(messages, leader_epoch)
            begin = 0
            while begin < len(messages):
                with self.guarded("append"):
                    begin = self._append_run(messages, begin, now_us)
            return self.log_end_offset

    def _check_continues(self, messages: Sequence[tuple[BatchHeader, memoryview]], leader_epoch: int) -> None:
        expected, epoch = self.log_end_offset, self.leader_epoch
        for header, _ in messages:
            if header.first_offset != expected:
                raise BadBatch(
                    f"{self.folder}: a stored batch begins at {header.first_offset}, the log ends at {expected}",
                    expected=expected,
                    found=header.first_offset,
                )
            if not epoch <= header.leader_epoch <= leader_epoch:
                raise BadBatch(
                    f"{self.folder}: a stored batch at {expected} is of leader epoch {header.leader_epoch},"
                    f" which is not in [{epoch}, {leader_epoch}]",
                    expected=epoch,
                    found=header.leader_epoch,
                )
            expected, epoch = header.next_offset, header.leader_epoch

    def _append_run(self, messages: Sequence[tuple[BatchHeader, memoryview]], begin: int, now_us: int) -> int:
        """Append messages of one epoch that go to one segment, with one write. Returns where to go on."""
        first, message = messages[begin]
        may_roll = first.group_index == 0  # else its group began in this segment
        index = self._tail_for(len(message) if may_roll else 0, now_us)
        if first.leader_epoch != self.leader_epoch:
            self._begin_epoch(first.leader_epoch)
        end, size = begin + 1, len(message)
        while end < len(messages) and messages[end][0].leader_epoch == first.leader_epoch:
            header, message = messages[end]
            if header.group_index == 0 and index.end + size + len(message) > self.settings.segment_bytes:
                break
            end, size = end + 1, size + len(message)
        run = messages[begin:end]
        index.make_room(len(run))
        position = index.end
        self.chain.write(run[0][1] if len(run) == 1 else b"".join([message for _, message in run]), position)
        for header, message in run:
            index.append(header.first_offset, position, header.max_timestamp_us, len(message), header.crc)
            position += len(message)
            if header.group_index == header.group_count - 1:
                self.group_ends.append(header.next_offset)
        self.log_end_offset = run[-1][0].next_offset
        return end

    # --- leader epochs --------------------------------------------------------------------------------------

    def lead(self, leader_epoch: int) -> int:
        """From now on append in this epoch alone. Returns its start: the log end.

        A commit group that is not whole is cut off first, fsynced or not: nobody else has the rest of it.

        Raises:
            NotLeader: a later epoch is known.
            DiskFull, StorageFailed: the cut failed; it does not lead.
        """
        with self.checkpoint_lock, self.sync_lock, self.lock:
            self._check_not_stale(leader_epoch, "lead")
            if not self.settings.is_sole_replica:  # whose recovery leaves whole groups, and whose appends are such
                self.check_writable()
                self._truncate(self.ask(group_start))
            self._led = self._told = leader_epoch
            return self.log_end_offset

    def follow(self, leader_epoch: int) -> None:
        """From now on take only what this epoch's leader has stored. A thread that still appends is refused.

        Raises:
            NotLeader: a later epoch is known.
        """
        with self.lock:
            self._check_not_stale(leader_epoch, "follow")
            self._led, self._told = None, leader_epoch

    def _check_not_stale(self, leader_epoch: int, doing: str) -> None:
        if leader_epoch < max(self._told, self.leader_epoch):
            raise self._not_leader(f"{doing} in leader epoch {leader_epoch}")

    def _check_epoch(self, leader_epoch: int) -> None:
        """Before an append in an epoch that is not known to be led (L6)."""
        if self._told >= 0 or leader_epoch < self.leader_epoch:
            raise self._not_leader(f"append in leader epoch {leader_epoch}")

    def _not_leader(self, doing: str) -> NotLeader:
        what = "leads" if self._led is not None else "follows" if self._told >= 0 else "has records"
        epoch = max(self._told, self.leader_epoch)
        return NotLeader(f"{self.folder}: cannot {doing}: it {what} in {epoch}", leader_epoch=epoch)

    def _begin_epoch(self, leader_epoch: int) -> None:
        """Before the first append of a later leader epoch."""
        assert leader_epoch > self.leader_epoch, "L6"
        epochs = self._known_epochs().trimmed(self.log_start_offset)
        epochs.begin(leader_epoch, self.log_end_offset)
        write_epochs(self.disk, self.folder, epochs)
        self._epochs, self.leader_epoch = epochs, leader_epoch

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that wrote `offset`; -1 when there is no such record, or not any more."""
        return self._known_epochs().epoch_of(offset) if offset < self.log_end_offset else -1

    def epoch_end(self, epoch: int) -> int:
        """First offset after the records of `epoch` and earlier ones; the log end for the latest epoch."""
        return self._known_epochs().end_of(epoch, self.log_end_offset)

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Where the records of `epoch` end, or of the last one before it that has any (KIP-279).

        A follower whose last epoch has another end here cuts there, and asks for its last epoch again: one end alone
        does not tell it whether the two logs agree up to it.
        """
        epochs, end = self._known_epochs(), self.log_end_offset
        return EpochEnd(epochs.last_until(epoch), epochs.end_of(epoch, end))

    def _known_epochs(self) -> Epochs:
        epochs = self._epochs
        if epochs is None:
            with self.guarded("read epochs"):
                epochs = load_epochs(self.disk, self.folder) or self.ask(derive_epochs)
            self._epochs = epochs
        return epochs

    # --- take back ------------------------------------------------------------------------------------------

    def truncate(self, to: int) -> int:
        """Take back the records from `to` on, and those before it whose commit group it would cut.

        It may go below the recovery point and the high watermark; both are lowered on disk first (L5). In this order,
        each step on disk before the next: the mark of compaction; the checkpoint; the epochs; then the segments from
        the newest on, and the end of the one that `to` is in.

        Returns:
            The log end.
        Raises:
            OffsetOutOfRange: `to` is below the log start: `reset` is what is wanted.
            NotLeader: it leads.
            DiskFull, StorageFailed: nothing was changed, or the log is failed and `recover` finds it as it was, or
                shorter.
        """
        with self.checkpoint_lock, self.sync_lock, self.lock:
            self.check_takes_back("truncate")
            if to < self.log_end_offset:
                self._truncate(self.ask(lambda view: group_start(view, to)))
            return self.log_end_offset

    def check_takes_back(self, doing: str) -> None:
        """Raise why nothing may be taken back, if so: the log is failed, or leads."""
        self.check_writable()
        if self._led is not None:
            raise self._not_leader(doing)

    def _truncate(self, to: int) -> None:
        if to >= self.log_end_offset:
            return
        with self.guarded("truncate"):
            lower_clean_state(self.disk, self.folder, to)
            point = self._point(flush=False)
            self._write_checkpoint(
                replace(
                    point,
                    high_watermark=min(point.high_watermark, to),
                    recovery_point=min(point.recovery_point, to),
                    lost_ranges=_below(point.lost_ranges, to),
                    tail=point.tail if point.tail is not None and point.tail.base_offset < to else None,
                )
            )
            epochs = Epochs([*self._known_epochs().items])
            epochs.cut(to)
            write_epochs(self.disk, self.folder, epochs)
        self._lower(to, epochs)
        with self.failing("truncate"):
            self.chain.end_at(to)

    def reset(self, to: int, *, last_epoch: int = -1) -> None:
        """Begin anew and empty at `to`: the leader has nothing below that follows on what is here.

        The start is on disk before any file goes (L5). What was stored, and what was told of it, is gone.

        Args:
            to: Log start and log end.
            last_epoch: The leader epoch of the record before `to`; -1: not known.
        Raises:
            NotLeader, DiskFull, StorageFailed: as `truncate`.
        """
        with self.checkpoint_lock, self.sync_lock, self.lock:
            self.check_takes_back("reset")
            with self.guarded("reset"):
                lower_clean_state(self.disk, self.folder, 0)
                self._write_checkpoint(Checkpoint(high_watermark=to, log_start_offset=to, recovery_point=to))
                epochs = Epochs([(last_epoch, to - 1)] if last_epoch >= 0 and to else [])
                write_epochs(self.disk, self.folder, epochs)
            self.log_start_offset = to
            self._lower(to, epochs)
            self.high_watermark = to
            with self.failing("reset"):
                self.chain.end_at(to, is_all=True)

    def _lower(self, to: int, epochs: Epochs) -> None:
        """In memory, before the files: who reads finds nothing above any more."""
        self.cuts += 1
        with self._high_watermark_lock:
            self.high_watermark = min(self.high_watermark, to)
        self.group_ends = [end for end in self.group_ends if end <= to]
        self.lost_ranges = _below(self.lost_ranges, to)
        self._epochs, self.leader_epoch = epochs, epochs.latest
        self.log_end_offset = self.durable_end = to

    # --- durable, committed ---------------------------------------------------------------------------------

    def sync(self) -> int:
        """Make durable all that was appended before the call. Appends go on meanwhile.

        Everything of a log is durable but the end of its tail: a sealed segment was synced when it was sealed, a new
        name when it was made. So a sync is a matter of one file:

        G1  The durable end moves only to what had been appended when the sync began.
        G2  A sync that failed fails the log (L3).
        G3  An error is told once for each open file. Who is told notes it before anybody else may ask (`chain.C4`): a
            roll beside a sync that fails fails too, and a sync beside a roll that failed ends on a failed log, moves
            nothing and raises.

        Returns:
            The durable end, at least the log end of when the call began.
        Raises:
            StorageFailed, DiskFull: the log is failed (L3); what is not durable is once `recover` has succeeded.
        """
        wanted = self.log_end_offset
        with self.sync_lock:
            end, file = self._sync_begins()
            if self.durable_end < wanted and file is not None:
                try:
                    self.chain.sync(file)
                except OSError as error:
                    with self.lock:
                        raise self.fail(storage_error(error, f"fsync in {self.folder}")) from error
                self._sync_ends(end)
            return self.durable_end

    def _sync_begins(self) -> tuple[int, File | None]:
        with self.lock:
            if self.failure is not None:
                self.check_writable()
            self.chain.close_retired()
            return self.log_end_offset, self.chain.file

    def _sync_ends(self, end: int) -> None:
        with self.lock:
            if self.failure is not None:
                self.check_writable()  # G3
            if end > self.durable_end:
                self.durable_end = end

    def sync_now(self) -> None:
        """Make all durable under the sync lock and the append lock. OSError: the log is failed (L3)."""
        if self.durable_end < self.log_end_offset and self.chain.file is not None:
            try:
                self.chain.sync(self.chain.file)
            except OSError as error:
                self.fail(storage_error(error, f"fsync in {self.folder}"))
                raise
            self.durable_end = self.log_end_offset

    def advance_high_watermark(self, offset: int) -> None:
        """Commit what is below `offset`; one that is not greater changes nothing."""
        assert offset <= self.log_end_offset, f"high watermark {offset} beyond the log end {self.log_end_offset}"
        with self._high_watermark_lock:
            if offset > self.high_watermark:
                self.high_watermark = offset
                ends = self.group_ends
                del ends[: bisect_right(ends, offset)]

    # --- read -----------------------------------------------------------------------------------------------

    def read(
        self, offset: int, *, end: int | None = None, max_bytes: int | None = None, stored: bool = False
    ) -> ReadPlan:
        """Find the batches that hold [offset, min(end, high watermark)).

        Args:
            offset: In [log start, high watermark]; at the high watermark the plan is empty.
            end: Exclusive; the last batch may go past it.
            max_bytes: At least one batch comes, if there is any; further ones while they fit.
            stored: Up to the log end, committed or not: for a follower.
        Returns:
            A plan; close it. Where it stops short, `next_offset` says where to go on.
        Raises:
            OffsetOutOfRange: with `log_start_offset` and `high_watermark`.
            CorruptLog: the files change while they are read.
        """
        return self.ask(lambda view: plan_read(view.stored() if stored else view, offset, end=end, max_bytes=max_bytes))

    def batches(self, offset: int, end: int | None = None) -> Iterator[memoryview]:
        """The verified messages that hold [offset, min(end, high watermark)), in order.

        Damaged ones are not yielded: they are noted in `lost_ranges`.

        Raises:
            OffsetOutOfRange: as `read`.
        """
        return self.messages(offset, end)

    def batches_in_turn(self, offset: int, end: int) -> Iterator[Turn]:
        """As `batches`, with their headers: each in the memory of the one before, and the caller's to change."""
        return messages_in_turn(self.ask, self._repair, offset, end)

    def messages(self, offset: int, end: int | None, *, whole: bool = False) -> Iterator[memoryview]:
        """Verified messages of [offset, min(end, high watermark)); `whole`: of all that is stored, committed or not,
        also below the log start."""

        def seen(view: LogView) -> LogView:
            return replace(view.stored(), log_start_offset=0) if whole else view

        repaired = -1
        while True:
            messages: list[memoryview] = []
            damaged: Segment | None = None
            with self.ask(
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

    def offset_for_time(self, timestamp_us: int) -> int | None:
        """The earliest committed offset whose timestamp is at or after `timestamp_us`, exactly; None when none is."""
        return self.ask(lambda view: find_time(view, timestamp_us))

    def bytes_between(self, start: int, end: int) -> int:
        """Stored bytes of [start, end), to whole batches."""
        return self.ask(lambda view: bytes_between(view, start, end))

    # --- let go ---------------------------------------------------------------------------------------------

    def seal_expired(self, now_us: int) -> bool:
        """Seal the tail if its records are past the limit by age; where the disk is full it stays. Whether it did."""
        with self.lock:
            tail = self.chain.tail
            with self.guarded("read"):
                newest = None if tail is None else tail.max_timestamp_us(self.disk)
            if newest is not None and is_expired(newest, self.settings, now_us) and self.failure is None:
                with suppress(DiskFull):
                    return self._seal()
            return False

    def retained_start(self, now_us: int) -> int:
        """Where the log should start by its settings."""
        return self.ask(lambda view: log_start_for(view, settings=self.settings, now_us=now_us))

    def goes_to(self, start: int) -> int:
        """The end of what goes if the log is to start at `start`: whole segments."""
        bases = [segment.base_offset for segment in self.chain.segments if segment.base_offset <= start]
        return start if self.chain.tail is None and start == self.log_end_offset else max(bases, default=0)

    def let_go(self, start: int) -> int:
        """Remove the segments that lie below `start`, which is committed. Returns the log start offset.

        The new start is checkpointed before anything goes (`checkpoint.K3`), on a full disk by a spare file.

        Raises:
            StorageFailed, DiskFull: nothing has gone.
        """
        with self.lock:
            if self.failure is not None:
                return self.log_start_offset
            if start > self.log_start_offset:
                if start == self.log_end_offset and self.chain.tail is None:
                    with self.guarded("roll"):
                        self.chain.begin(start, frees=True)  # its name keeps the next offset
                self.log_start_offset = start
                self.lost_ranges = merge_ranges(self.lost_ranges, log_start_offset=start)
            start, known = self.log_start_offset, self._checkpointed
        if start > (known.log_start_offset if known is not None else 0):
            with self.checkpoint_lock, self.guarded("checkpoint"):
                with self.lock:
                    point = self._point()
                self._write_checkpoint(point, frees=True)  # K3; also for an earlier call that could not write it down
        with self.lock:
            gone = self.chain.drop_below(start)
        for segment in gone:
            with suppress(OSError):  # tried again at the next open
                segment.unlink(self.disk)
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
        with self.checkpoint_lock, self.guarded("checkpoint"):
            with self.lock:
                point = self._point(clean=clean and self.durable_end == self.log_end_offset)
            found = self._checkpointed
            if clean or withdraw or found is None or point != replace(found, clean_boot_id=None):
                self._write_checkpoint(point)

    def _point(self, *, clean: bool = False, flush: bool = True) -> Checkpoint:
        assert not clean or self.durable_end == self.log_end_offset, "a clean mark on a log that is not durable"
        return Checkpoint(
            high_watermark=self.high_watermark,
            log_start_offset=self.log_start_offset,
            recovery_point=self.durable_end,
            leader_epoch=self.leader_epoch,
            tail=self.chain.point(flush=flush),
            lost_ranges=self.lost_ranges,
            clean_boot_id=self._boot_id if clean else None,
        )

    def _write_checkpoint(self, point: Checkpoint, *, frees: bool = False) -> None:
        if point != self._checkpointed:
            self.disk.replace_file(f"{self.folder}/{CHECKPOINT_FILE}", point.encode(), frees=frees)
            self._note_checkpoint(point)

    def _note_checkpoint(self, point: Checkpoint | None) -> None:
        self._checkpointed = point
        self.is_marked_clean = point is not None and point.clean_boot_id is not None

    def idle(self) -> bool:
        """Close the tail's file and forget its index, if all is durable. Returns whether no descriptor is held."""
        with self.sync_lock, self.lock:
            if self.failure is not None or self.durable_end < self.log_end_offset:
                return False
            with self.guarded("idle"):
                self.chain.rest()
            return True

    def close(self, *, clean: bool = True) -> None:
        """Give everything back. Cleanly: fsync, and set the clean mark, so that the next open reads no segment.

        A failed log is closed without the mark.
        """
        try:
            if clean and self.failure is None:
                self.sync()
                self.checkpoint(clean=True)
        finally:
            with self.sync_lock, self.lock:
                self.is_closed = True
                self.fail(StorageFailed(f"{self.folder} is closed", path=self.folder))
                self.chain.close()

    def recover(self, now_us: int) -> RecoveryReport:
        """Bring a failed log back: write what is not durable anew, fsync it, open everything as after a crash.

        Every offset keeps its record as far as the page cache still has it, so an append whose `sync` failed may turn
        out to be stored after all. What it has lost is cut off above the high watermark, and lost below. With more than
        one replica nothing is salvaged: what is not durable is cut off, and fetched anew. A log that is well, or
        closed, is left alone.

        Raises:
            StorageFailed, DiskFull: the disk still refuses; the log stays failed, and this may be tried again.
        """
        with self.checkpoint_lock, self.sync_lock, self.lock:
            if self.failure is None or self.is_closed:
                return self.recovery
            try:
                self.chain.close()
                self.chain.write_again(self.durable_end, salvage=self.settings.is_sole_replica)
                self._recover(self._point(flush=False), RecoveryReport(), now_us)
            except OSError as error:
                self.failure = storage_error(error, f"recover {self.folder}")
                raise self.failure from error
            self.failure = None
            return self.recovery

    # --- rewrite --------------------------------------------------------------------------------------------

    def sealed_segments(self) -> list[tuple[Segment, int]]:
        """The segments that nothing is appended to any more, each with the offset after it."""
        with self.lock:
            segments, tail, end = self.chain.segments, self.chain.tail, self.log_end_offset
        ends = [*(segment.base_offset for segment in segments[1:]), end]
        return [(segment, end) for segment, end in zip(segments, ends, strict=False) if segment is not tail]

    def index_of(self, segment: Segment) -> IndexView:
        """The index of a sealed segment, with an entry for each batch: what is written anew without one is gone.

        Raises:
            NeedsRepair: there is none, or it lacks entries.
        """
        return self.view().index(segment)

    def replace_segments(
        self, old: Sequence[Segment], staged: str, entries: Entries, size: int, *, cuts: int | None = None
    ) -> bool:
        """Put the file `staged`, which is on disk, in the place of sealed segments, durably. Readers are undisturbed.

        Args:
            old: n >= 1 that follow one another.
            entries: Its index.
            size: Its bytes.
            cuts: What `cuts` was when that was read by which records are left out.
        Returns:
            False: one of them is gone meanwhile, or records were taken back; then `staged` is gone too.
        Raises:
            StorageFailed, DiskFull: the log is failed, or the disk refuses; the old ones are there, or the new one,
                whole (J1).
        """
        start = old[0].base_offset
        end = next((after for segment, after in self.sealed_segments() if segment is old[-1]), start)
        is_done = False
        replaced: File | None = None
        try:
            if end > start:
                if len(old) > 1:
                    with self.guarded("join"):
                        announce(self.disk, self.folder, start, end)
                with suppress(OSError):  # held open, or the lock would wait until its blocks are freed
                    replaced = self.disk.open(old[0].path, readonly=True)
                with self.lock, self.guarded("replace"):
                    self.check_writable()
                    if cuts is None or cuts == self.cuts:
                        is_done = self.chain.replace(old, staged, entries, size)
        finally:
            if replaced is not None:
                replaced.close()
            if not is_done:
                with suppress(OSError):
                    self.disk.unlink(staged)
        with self.guarded("replace"):
            self.disk.sync_dir(self.folder)
            if len(old) > 1 and end > start:
                for segment in old[1:] if is_done else ():
                    segment.unlink(self.disk)
                self.disk.sync_dir(self.folder)
                retract(self.disk, self.folder, start, end)
        return is_done

    # --- trouble --------------------------------------------------------------------------------------------

    def repair_segment(self, segment: Segment) -> None:
        """Scan a segment anew whose batches are not what its index says, or which has none; what is lost is noted."""
        self._repair(segment)

    def view(self) -> LogView:
        """The log at this moment."""
        # In this order: what a later attribute holds covers what an earlier one says.
        high_watermark, end, segments = self.high_watermark, self.log_end_offset, self.chain.segments
        start = self.log_start_offset
        return LogView(self.identity, self.disk, segments, start, high_watermark, end, self.lost_ranges)

    def ask(self, question: Callable[[LogView], T]) -> T:
        """Ask again after each repair, or when a segment went away after the view was taken."""
        for _ in range(REPAIRS_PER_CALL_MAX + len(self.chain.segments)):  # a power cut may take every index file
            view = self.view()
            try:
                return question(view)
            except NeedsRepair as damage:
                self._repair(damage.segment, around_errors=damage.around_errors)
            except FileNotFoundError as error:
                for segment in view.segments:
                    if segment.path == error.filename:
                        self._repair(segment)
            except OSError as error:
                raise storage_error(error, f"read in {self.folder}") from error
        raise CorruptLog(f"{self.folder}: damaged, and scanning it anew did not help", path=self.folder)

    def _repair(self, segment: Segment, *, around_errors: bool = False) -> None:
        """Scan a segment anew: its index is written, what is lost is noted.

        One that is not ours any more is left alone. `around_errors`: what the disk cannot read is damaged; else that
        is an error.
        """
        with self.lock:
            if segment not in self.chain.segments:
                return
            was_tail = segment is self.chain.tail
            if was_tail:
                self.check_writable()  # `recover` is about to write it again
            with self.guarded("scan"):
                lost = self.chain.repair(segment, self.log_end_offset, around_errors=around_errors)
            if was_tail and self.chain.tail is None:
                self._note_roll()
            self.lost_ranges = merge_ranges([*self.lost_ranges, *lost], log_start_offset=self.log_start_offset)

    def guarded(self, doing: str) -> _Guard:
        """What `_error_of` says of what the disk raises within."""
        return _Guard(self, doing)

    def failing(self, doing: str) -> _Guard:
        """As `guarded`, where what the disk holds is not known after any error of it: then the log is failed."""
        return _Guard(self, doing, fails=True)

    def fail(self, error: LiftlogError) -> LiftlogError:
        """Accept nothing until `recover` (L3). Returns the error."""
        if self.failure is None:
            self.failure = error
        return error

    def check_writable(self) -> None:
        """Raise why nothing is accepted, if so."""
        failure = self.failure
        if failure is not None:
            cls = DiskFull if isinstance(failure, DiskFull) else StorageFailed
            raise cls(f"{failure.message} (nothing is accepted until the log has recovered)", **failure.fields)

    def _error_of(self, error: OSError | Untrusted, doing: str, *, fails: bool = False) -> LiftlogError:
        """Trouble of the disk as an error of the tree; the log is failed when a file is not to be trusted."""
        if isinstance(error, Untrusted):
            return self.fail(error.error)
        found = storage_error(error, f"{doing} in {self.folder}")
        return self.fail(found) if fails else found


class _Guard:
    """What `guarded` returns. (A class: a generator would take four times as long to enter.)"""

    __slots__ = ("_doing", "_fails", "_log")

    def __init__(self, log: Log, doing: str, *, fails: bool = False) -> None:
        self._log = log
        self._doing = doing
        self._fails = fails

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (OSError, Untrusted)):
            raise self._log._error_of(error, self._doing, fails=self._fails) from error


def _messages_of(data: ReadableBuffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The messages that stand one after another, verified. Raises BadBatch."""
    view = memoryview(data)
    while view:
        message = view[: message_bytes(view)]
        yield verify_batch(message), message
        view = view[len(message) :]


def _below(ranges: Ranges, end: int) -> Ranges:
    return tuple((start, min(stop, end)) for start, stop in ranges if start < end)
