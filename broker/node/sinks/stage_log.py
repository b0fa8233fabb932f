"""The hidden log of one partition's stages, and the table that its notes give.

An ordinary partition log. Where a broker is alone: in the folder `stages` beside the segments of its partition, made
when the first stage comes (`StageLog`). In a cluster: another partition (broker.node.sinks.hidden). Each
part, with its note, is one commit group there; other notes are groups of their own. The rules of the table are those of
`broker.sinks.stages`; here they meet the disk:

G1  Nothing is answered, reported or finished before the notes it stands on are durable; but for parts of bundles, where
    a broker is alone (`stages.G7`).
G2  After a failed write or fsync the table is not trusted: the log recovers, and the table is read anew. A caller that
    waits since before that gets an error, whatever is in the log now. The same holds when the partition has another
    leader epoch than when the table was read.
G4  Notes that were judged under a leader epoch are appended under it, or not at all: another leader may have done it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NoReturn

from broker.api.batch import decode_batch, read_header
from broker.api.encodable import Encodable
from broker.api.errors import CorruptLog, LiftlogError, NotLeader, StorageFailed
from broker.common.elapsed import elapsed_us
from broker.node.partitions.partition import Partition
from broker.node.sinks.committed import COMMITTED_S
from broker.node.sinks.groups import Damaged, batch_count, batches_of, runs_of
from broker.sinks.notes import Note, note_batch, notes_in
from broker.sinks.restamp import StampedBatch
from broker.sinks.stages import Stage, StageTable
from broker.sinks.state import StageRef
from broker.storage.disk import Disk, disk_errors
from broker.storage.inspect.scrub import Piece, scrub
from broker.storage.log import AppendResult, PartitionLog, StoredGroup
from broker.storage.rows import Measured
from broker.storage.segments.checkpoint import PARTITION_FILE, LogIdentity, LogSettings, write_identity
from broker.storage.segments.epochs import load_epochs

FOLDER: Final = "stages"
SEGMENT_BYTES: Final = 64 << 20
ONE_WRITE_BYTES: Final = 256 << 10
"""A part that is no larger is in memory, with its note, before it is written."""
FOREVER_US: Final = 1 << 62


def is_staged(disk: Disk, main: Partition) -> bool:
    """Whether anything was ever staged in a partition. OSError passes through."""
    return disk.exists(f"{main.log.state.folder}/{FOLDER}/{PARTITION_FILE}")


class HiddenLog:
    """The base of both forms. See the module. The caller holds its lock, where it says so.

    Attributes:
        exists: Whether anything was ever staged.
        generation: Another one after each time that the table was not to be trusted any more (G2).
        leader_epoch: The partition's, under which the table was read.
        floor_wait_s: So long `StageStore.floor` waits for the lock; -1: as long as it takes.
    """

    floor_wait_s: float = -1.0

    def __init__(self, main: Partition, *, clock: Callable[[], int]) -> None:
        self.exists = True
        self.lock = main.replica.waits.lock()
        self.generation = 0
        self.leader_epoch = main.leader_epoch
        self._main = main
        self._clock = clock
        self._table: StageTable | None = None  # None: not read yet, or not to be trusted (G2)

    # --- what a form does by itself ---------------------------------------------------------------------------

    def open(self) -> PartitionLog:
        """The log, opened or made if need be. Under the lock."""
        raise NotImplementedError

    def ready(self, *, wait_s: float = COMMITTED_S) -> StageTable:
        """The table, read anew where it cannot be trusted (G2). Under the lock.

        Args:
            wait_s: So long the other replicas may take until what is to be read is committed.
        Raises:
            UnknownStream: the stream was deleted.
            NotReady, NotLeader: this broker does not answer for the stages, or not yet.
            StorageFailed, DiskFull: it cannot be read, or not be made durable.
        """
        raise NotImplementedError

    def make_durable(self, generation: int) -> None:
        """Make durable all that was appended up to `generation` (G1, G2).

        Raises:
            UnknownStream: the stream was deleted.
            StorageFailed, DiskFull: what was appended may be there or not.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the log, if it is open for this alone."""

    def _append_group(self, group: StoredGroup | list[Encodable]) -> AppendResult:
        """Append a commit group; a list is written at once."""
        raise NotImplementedError

    def _let_go(self, before: int) -> None:
        """Let go of what lies below an offset, now or soon."""
        raise NotImplementedError

    # --- the table ------------------------------------------------------------------------------------------

    def _distrust(self) -> None:
        self.generation += 1
        self._table = None

    def check_epoch(self, leader_epoch: int) -> None:
        """Raise NotLeader unless it is still the one under which something was judged (G4). Under the lock."""
        if not self.leader_epoch == self._main.leader_epoch == leader_epoch:
            now = self._main.leader_epoch
            raise NotLeader(f"{self._main}: decided in leader epoch {leader_epoch}, the leader epoch is now {now}")

    def append(self, notes: Sequence[Note], batches: Sequence[Measured] = (), *, decision: int = 0) -> None:
        """Append one commit group and apply it. Under the lock, with a table that can be trusted.

        Raises:
            NotLeader: the leader epoch is not that of the table any more (G4).
        """
        assert self._table is not None
        self.check_epoch(self._main.leader_epoch)
        noted = note_batch(notes, subject=self.open().state.identity.stream, timestamp_us=self._clock())
        all_batches = (noted, *batches)
        size = sum(batch.byte_count_max for batch in all_batches)
        stamped = (StampedBatch(batch, decision) for batch in all_batches)
        result = self._append_group(
            list(stamped)
            if size <= ONE_WRITE_BYTES
            else StoredGroup(batches=stamped, batch_count=len(all_batches), byte_count=size)
        )
        if self._main.replica.room is not None:
            self._main.replica.room.took(result.bytes)
        for note in notes:
            self._table.apply(
                note,
                first_offset=result.first_offset,
                next_offset=result.next_offset,
                byte_count=result.bytes,
                batch_count=len(batches),
            )

    def group_of(self, refs: Sequence[StageRef], decision: int) -> StoredGroup:
        """The commit group of a decision, as it is to be appended to the partition: stage by stage, part by part.

        Nothing is locked while it is gone through. That raises CorruptLog where a stage is damaged.

        Raises:
            CorruptLog: a stage is not there.
        """
        with self.lock:
            table, hidden = self.ready(), self.open()
            stages = [table.stages.get(ref.stage) or self._damaged(ref, 0) for ref in refs]
        for ref, stage in zip(refs, stages, strict=True):
            if stage.rows != ref.rows:
                self._damaged(ref, stage.rows)

        parts = [[part for _, part in sorted(stage.parts.items())] for stage in stages]
        runs = runs_of(parts, self._main.settings)

        def batches() -> Iterator[Encodable]:
            try:
                for run in runs:
                    yield from batches_of(run, hidden, decision)
            except Damaged as damaged:
                self._damaged(refs[damaged.stage], damaged.rows)

        return StoredGroup(
            batches=batches(),
            batch_count=sum(map(batch_count, runs)),
            byte_count=sum(stage.byte_count for stage in stages),
        )

    def scrub(self, offset: int, *, give_up: bool = False) -> Piece | None:
        """Check what is staged from `offset` on; that this copy lacks what is damaged is remembered over a restart."""
        with self.lock:
            self.ready()
            hidden = self.open()
        piece = scrub(hidden, offset, give_up=give_up)
        if piece is not None and piece.lost:
            hidden.checkpoint()
        return piece

    def is_intact(self, stage: Stage) -> bool:
        """Whether nothing of a stage is known to be lost, or changed by somebody. Under the lock."""
        lost = (*self.open().state.lost_ranges, *self.open().state.tampered)
        return not lost or not any(
            start < part.next_offset and part.first_offset < end for part in stage.parts.values() for start, end in lost
        )

    def _damaged(self, ref: StageRef, rows: int) -> NoReturn:
        raise CorruptLog(
            f"{self._main}: stage {ref.stage} was decided with {ref.rows} rows, {rows} of them are intact",
            stage=ref.stage,
            path=self.open().state.folder,
        )

    def trim(self, table: StageTable, *, at_least: int = SEGMENT_BYTES) -> None:
        """Let go of what is not needed, once so many bytes are not."""
        hidden = self.open()
        if table.freed_bytes < at_least:
            return
        self._let_go(table.needed_offset(hidden.state.log_end_offset))
        table.trimmed(hidden.state.log_start_offset)

    def byte_count(self) -> int:
        """Bytes of live stages; 0 while the table is not known."""
        table = self._table
        return 0 if table is None else table.byte_count


class StageLog(HiddenLog):
    """The form for a broker that is alone: in a folder of its own, and this broker's fsync commits it.

    Args:
        main: The partition.
        clock: Microseconds since 1970 UTC.
    """

    def __init__(self, disk: Disk, main: Partition, *, boot_id: str, clock: Callable[[], int]) -> None:
        super().__init__(main, clock=clock)
        self.folder = f"{main.log.state.folder}/{FOLDER}"
        self.exists = is_staged(disk, main)
        self._disk = disk
        self._boot_id = boot_id
        self._log: PartitionLog | None = None

    def epoch_seen(self) -> int:
        """The greatest leader epoch of any note; -1: there is none, or it cannot be read now."""
        return epoch_staged(self._disk, self._main.log, boot_id=self._boot_id) if self.exists else -1

    def ready(self, *, wait_s: float = COMMITTED_S) -> StageTable:
        """As `HiddenLog.ready`; there are no others."""
        self._main.check_open(decided=True)
        with disk_errors(f"reading the stages of {self._main}"):
            hidden = self.open()
            if hidden.state.failure is not None:
                self._distrust()
                hidden.recover(elapsed_us())
            if self.leader_epoch != self._main.leader_epoch:
                self._distrust()
                self.leader_epoch = self._main.leader_epoch
            if self._table is None:
                hidden.state.advance_high_watermark(hidden.syncer.sync())
                self._table = read_table(hidden)
        return self._table

    def make_durable(self, generation: int) -> None:
        """As `HiddenLog.make_durable`."""
        try:
            hidden = self.open()
            hidden.state.advance_high_watermark(hidden.syncer.sync())
        except LiftlogError:
            self._main.check_open(decided=True)  # deleted meanwhile, and the log closed: then that is the reason
            raise
        if generation != self.generation:
            raise StorageFailed(f"{self._main}: the log of stages had to recover; the request may have been done")

    def _append_group(self, group: StoredGroup | list[Encodable]) -> AppendResult:
        log, now_us = self.open(), elapsed_us()
        if isinstance(group, list):
            return log.append(group, leader_epoch=self.leader_epoch, now_us=now_us)
        return log.append_group(group, leader_epoch=self.leader_epoch, now_us=now_us)

    def _let_go(self, before: int) -> None:
        self.open().trim(before)

    def open(self) -> PartitionLog:
        """As `HiddenLog.open`."""
        if self._log is None:
            main = self._main.log
            if not self.exists:
                self._make(_identity(main))
            self._log = _open(self._disk, main, boot_id=self._boot_id)
            self.exists = True
        return self._log

    def _make(self, identity: LogIdentity) -> None:
        """Make the folder of an empty log, or finish what an attempt before began: its names may not be durable."""
        self._disk.makedirs(self.folder)
        self._disk.sync_dir(self._main.log.state.folder)
        write_identity(self._disk, self.folder, identity)

    def close(self) -> None:
        """Close the log."""
        with self.lock:
            if self._log is not None:
                self._log.close(clean=not self._main.removed)


def epoch_staged(disk: Disk, main: PartitionLog, *, boot_id: str) -> int:
    """The greatest leader epoch of any note beside a log that no `StageLog` has open; -1: there is none, or it cannot
    be read now."""
    folder = f"{main.state.folder}/{FOLDER}"
    with suppress(LiftlogError, OSError):  # whoever needs the stages is told
        if not disk.exists(f"{folder}/{PARTITION_FILE}"):
            return -1
        known = load_epochs(disk, folder)
        if known is not None:
            return known.latest
        hidden = _open(disk, main, boot_id=boot_id)
        try:
            return hidden.epochs.latest
        finally:
            hidden.close(clean=False)
    return -1


def _identity(main: PartitionLog) -> LogIdentity:
    known = main.state.identity
    return replace(known, stream=f"{known.stream}#{FOLDER}")  # no stream has such a name


def _open(disk: Disk, main: PartitionLog, *, boot_id: str) -> PartitionLog:
    """The hidden log beside a partition's own."""
    settings = LogSettings(
        segment_bytes=SEGMENT_BYTES, is_encrypted=main.state.is_encrypted, keyring=main.state.settings.keyring
    )
    folder = f"{main.state.folder}/{FOLDER}"
    return PartitionLog.open(disk, folder, settings, boot_id=boot_id, now_us=elapsed_us(), expected=_identity(main))


def read_table(hidden: PartitionLog) -> StageTable:
    """The table that the notes of a log give (`stages.T6`)."""
    table = StageTable()
    notes: list[Note] = []
    first = size = 0
    for message in hidden.reader.batches(hidden.state.log_start_offset):
        header = read_header(message)
        if header.group_index == 0:
            notes, first, size = notes_in(decode_batch(message)), header.first_offset, 0
        size += len(message)
        if header.group_index + 1 == header.group_count:
            for note in notes:
                table.apply(
                    note,
                    first_offset=first,
                    next_offset=header.next_offset,
                    byte_count=size,
                    batch_count=header.group_count - 1,
                )
            notes = []
    return table
