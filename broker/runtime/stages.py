"""The stages of one partition, driven: its hidden log, and the commit groups that come out of it.

    POST stages ──► hidden log (fsynced) ──► pin (fsynced) ──► decision in __commits (fsynced)
                                                                    │
    readers ◄── high watermark ◄── partition's log, one commit group (fsynced) ◄── finish
                                                                    │
                                     finished note in the hidden log (fsynced) ──► reported

The hidden log is a partition log of its own in the folder `stages` beside the segments, made when the first stage
comes. Every call here blocks until what it says is on disk. The rules are those of `broker.sinks.stages`; here they
meet the disk:

G1  Nothing is answered, reported or finished before the notes it stands on are durable.
G2  After a failed write or fsync the table is not trusted: the log recovers, and the table is read anew. Who waits
    since before that gets an error, whatever is in the log now.
G3  A group is appended at most once. Unless this process pinned its stages and never tried, the partition's log is
    made durable first and searched for the decision, from the pin's offset on; nothing is let go there meanwhile
    (`Partition.floor`). The offset is the *durable* end: the log end may move back in a power cut.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from broker.api.batch import decode_batch, read_header
from broker.api.errors import CorruptLog, LiftlogError, RequestTooLarge, StorageFailed
from broker.runtime.partition import Outcome, Partition
from broker.sinks.ledger import StageRef
from broker.sinks.notes import GroupFinished, Note, PartStored, StageDropped, StagePinned, note_rows, notes_in
from broker.sinks.restamp import Composable, RestampedBatch, StampedBatch
from broker.sinks.stages import StageTable
from broker.storage.checkpoint import LogIdentity, LogSettings
from broker.storage.disk import Disk
from broker.storage.log import AppendResult, PartitionLog
from broker.storage.rows import RowBatch

log = logging.getLogger(__name__)

FOLDER: Final = "stages"
SEGMENT_BYTES: Final = 64 << 20
FOREVER_US: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimits:
    """As `[sinks]` of the configuration."""

    stage_lease_ms: int = 24 * 3_600_000
    stage_bytes_max: int = 16 << 30
    group_bytes_max: int = 1 << 30


def append_durable(partition: Partition, batches: Sequence[Composable], *, decided: bool = False) -> AppendResult:
    """Append one commit group and wait until it is on disk, also where `fsync = interval`.

    Raises:
        LiftlogError: as `Partition.append_now`. After StorageFailed the group may be there or not.
    """
    future: Future[Outcome] = Future()
    result = partition.append_now(batches, lambda _, outcome: future.set_result(outcome), decided=decided)
    outcome = future.result()
    if isinstance(outcome, LiftlogError):
        raise outcome
    if partition.log.durable_end < result.next_offset:
        partition.log.sync()
    return result


class StageStore:
    """The stages of one partition. Thread-safe; calls block.

    Args:
        main: The partition.
        clock: Microseconds since 1970 UTC.
    """

    def __init__(
        self, disk: Disk, main: Partition, limits: StageLimits, *, boot_id: str, clock: Callable[[], int]
    ) -> None:
        self.main = main
        self.limits = limits
        self._disk = disk
        self._boot_id = boot_id
        self._clock = clock
        self._folder = f"{main.log.folder}/{FOLDER}"
        self.exists: bool = disk.exists(f"{self._folder}/partition.json")  # whether anything was ever staged
        self._log: PartitionLog | None = None
        self._table: StageTable | None = None  # None: not read yet, or not to be trusted (G2)
        self._generation = 0
        self._untried: set[str] = set()  # stages pinned by this process, in no group that it tried to append (G3)
        self._lock = threading.RLock()
        self._finishing = threading.Lock()
        main.floor = self._floor

    # --- the protocol ---------------------------------------------------------------------------------------

    def store(
        self, batches: Sequence[Composable], *, sink: str, epoch: int, stage: str, part: int, is_last: bool
    ) -> bool:
        """Store one part of a stage; the same again is stored once. Returns whether it was new.

        Raises:
            StageLost: the stage is gone.
            StagesFull, InvalidRequest: nothing was stored.
            DiskFull, StorageFailed: it may be stored; the same again may succeed.
        """
        self.main.check_open()
        rows = sum(batch.record_count for batch in batches)
        note = PartStored(
            stage=stage, sink=sink, epoch=epoch, part=part, is_last=is_last, rows=rows, stored_us=self._clock()
        )
        with self._lock:
            table = self._ready()
            is_new = not table.has_part(note)
            if is_new:
                table.check_room(self.limits.stage_bytes_max)
                self._append([note], batches, decision=int(stage, 16))
            generation = self._generation
        self._durable(generation)
        return is_new

    def pin(self, stages: Sequence[tuple[str, int | None]], *, sink: str, epoch: int, batch_id: int) -> list[StageRef]:
        """Keep stages for a decision. Durable when it returns.

        Args:
            stages: Each with the number of its parts, None if the driver does not say.
        Raises:
            StageLost, InvalidRequest: nothing was pinned.
        """
        self.main.check_open()
        with self.main.letting_go, self._lock:
            table = self._ready()
            new: list[Note] = []
            now_us = self._clock()
            end_offset = self.main.log.durable_end
            for stage, parts in stages:
                if table.needs_pin(stage, sink=sink, batch_id=batch_id, parts=parts):
                    new.append(
                        StagePinned(
                            stage=stage,
                            sink=sink,
                            epoch=epoch,
                            batch_id=batch_id,
                            end_offset=end_offset,
                            pinned_us=now_us,
                        )
                    )
            self._check_group(sum(table.stages[stage].byte_count for stage, _ in stages))
            if new:
                self._append(new)
                self._untried.update(note.stage for note in new if isinstance(note, StagePinned))
            refs = [self._ref(table, stage) for stage, _ in stages]
            generation = self._generation
        self._durable(generation)
        return refs

    def finish(self, decision: str, sink: str, refs: Sequence[StageRef]) -> GroupFinished:
        """Append the stages as one commit group, once (G3). All of it is durable when it returns.

        Raises:
            UnknownStream: the stream was deleted, and the rows with it.
            CorruptLog: a decided stage is damaged.
            DiskFull, StorageFailed: not known; to be called again.
        """
        with self._finishing:
            with self._lock:
                table = self._ready()
                found, generation = table.finished.get(decision), self._generation
            if found is None:
                is_untried = all(ref.stage in self._untried for ref in refs)
                self._untried.difference_update(ref.stage for ref in refs)
                place = None if is_untried else self._find(int(decision, 16), min(ref.end_offset for ref in refs))
                if place is None:
                    place = self._append_group(decision, refs)
                found = GroupFinished(
                    decision=decision,
                    sink=sink,
                    stages=tuple(ref.stage for ref in refs),
                    first_offset=place[0],
                    next_offset=place[1],
                )
                with self._lock:
                    self._ready()
                    self._append([found])
                    generation = self._generation
            self._durable(generation)
            return found

    def drop(self, stages: Iterable[str], *, sink: str, why: str, pinned: bool = False) -> int:
        """Let stages of a sink go; `pinned`: also those that are pinned. Returns how many went."""
        with self._lock:
            table = self._ready()
            found = [table.stages[s] for s in dict.fromkeys(stages) if s in table.stages]
            notes: list[Note] = [
                StageDropped(stage=s.stage, why=why) for s in found if s.sink == sink and (pinned or s.pin is None)
            ]
            if notes:
                self._append(notes)
                self._trim(table)
            return len(notes)

    def forget(self, decision: str) -> None:
        """The decision is recorded as done: nobody asks for its group any more."""
        with self._lock:
            table = self._ready()
            table.forget([decision])
            self._trim(table)

    # --- in the background ----------------------------------------------------------------------------------

    def sweep(
        self, *, is_open: Callable[[StagePinned], bool], is_asked_for: Callable[[str], bool]
    ) -> list[StagePinned]:
        """Let go of what nobody needs: expired stages, pins that cannot be decided any more, groups that are done.

        Args:
            is_open: Whether a decision names a pinned stage, or may come to.
            is_asked_for: Whether a decision may still be asked for.
        Returns:
            Pins that are older than the lease and may still be decided.
        """
        with self._lock:
            table = self._ready()
            now_us, lease_us = self._clock(), self.limits.stage_lease_ms * 1_000
            table.forget([decision for decision in table.finished if not is_asked_for(decision)])
            notes: list[Note] = [StageDropped(stage=s, why="expired") for s in table.expired(now_us, lease_us)]
            open_pins = []
            for pin in table.pinned():
                if is_open(pin):
                    open_pins.append(pin)
                else:
                    notes.append(StageDropped(stage=pin.stage, why="superseded"))
            if notes:
                self._append(notes)
            log_ = self._open_log()
            if not table.stages and not table.finished and table.freed_bytes:
                log_.roll_if_due(FOREVER_US)
            generation = self._generation
        self._durable(generation)
        with self._lock:
            self._trim(self._ready(), at_least=1)
        log_.checkpoint()
        if notes:
            log.info("sink.stages_dropped partition=%s stages=%d", self.main, len(notes))
        return [pin for pin in open_pins if pin.pinned_us + lease_us <= now_us]

    def byte_count(self) -> int:
        """Of live stages; 0 while the table is not known."""
        table = self._table
        return 0 if table is None else table.byte_count

    def pins(self) -> list[StagePinned]:
        """The pins of live stages."""
        with self._lock:
            return self._ready().pinned()

    def close(self) -> None:
        """Close the hidden log."""
        with self._lock:
            if self._log is not None:
                self._log.close(clean=True)

    # --- helpers --------------------------------------------------------------------------------------------

    def _floor(self) -> int | None:
        if not self.exists:
            return None
        with self._lock:
            try:
                return self._ready().floor()
            except LiftlogError:
                return 0  # not known: nothing is let go

    def _open_log(self) -> PartitionLog:
        if self._log is None:
            main = self.main
            identity = LogIdentity(
                cluster_id=main.log.identity.cluster_id,
                stream=f"{main.stream}#{FOLDER}",  # no stream has such a name
                incarnation=main.incarnation,
                partition=main.partition,
            )
            settings, now_us = LogSettings(segment_bytes=SEGMENT_BYTES), self._clock()
            if self.exists:
                self._log = PartitionLog.open(
                    self._disk, self._folder, settings, boot_id=self._boot_id, now_us=now_us, expected=identity
                )
            else:
                self._log = PartitionLog.create(
                    self._disk, self._folder, identity, settings, boot_id=self._boot_id, now_us=now_us
                )
                self.exists = True
        return self._log

    def _ready(self) -> StageTable:
        """The table, read anew where it cannot be trusted (G2). Under the lock."""
        self.main.check_open(decided=True)
        hidden = self._open_log()
        if hidden.failure is not None:
            self._generation += 1
            self._table = None
            hidden.recover(self._clock())
        if self._table is None:
            hidden.advance_high_watermark(hidden.sync())
            self._table = _read_table(hidden)
        return self._table

    def _append(self, notes: Sequence[Note], batches: Sequence[Composable] = (), *, decision: int = 0) -> None:
        """Append one commit group and apply it. Under the lock, with a table that can be trusted."""
        assert self._table is not None
        now_us = self._clock()
        rows = note_rows(notes, subject=self._open_log().identity.stream, timestamp_us=now_us)
        group = [StampedBatch(batch, decision) for batch in (RowBatch(rows), *batches)]
        result = self._open_log().append(group, leader_epoch=self.main.leader_epoch, now_us=now_us)
        for note in notes:
            self._table.apply(
                note, first_offset=result.first_offset, next_offset=result.next_offset, byte_count=result.bytes
            )

    def _durable(self, generation: int) -> None:
        """Make durable all that was appended up to `generation` (G1, G2)."""
        hidden = self._open_log()
        hidden.advance_high_watermark(hidden.sync())
        if generation != self._generation:
            raise StorageFailed(f"{self.main}: the stages' log had to recover; what was asked may be done or not")

    def _ref(self, table: StageTable, stage: str) -> StageRef:
        found = table.stages[stage]
        assert found.pin is not None
        return StageRef(
            stream=self.main.stream,
            incarnation=self.main.incarnation,
            partition=self.main.partition,
            stage=stage,
            parts=len(found.parts),
            rows=found.rows,
            end_offset=found.pin.end_offset,
        )

    def _check_group(self, byte_count: int) -> None:
        if byte_count > self.limits.group_bytes_max:
            raise RequestTooLarge(
                f"{byte_count} bytes are staged for one commit in {self.main}: at most"
                f" sinks.group_bytes_max={self.limits.group_bytes_max}; commit smaller batches",
                key="sinks.group_bytes_max",
                limit=self.limits.group_bytes_max,
                value=byte_count,
            )

    def _find(self, decision: int, start: int) -> tuple[int, int] | None:
        """Where the commit group of a decision stands in the partition's log, which is made durable first (G3)."""
        self.main.settle()
        place = None
        for message in self.main.log.batches(max(start, self.main.log.log_start_offset)):
            header = read_header(message)
            if header.decision == decision:
                place = (place[0] if place else header.first_offset, header.next_offset)
        return place

    def _append_group(self, decision: str, refs: Sequence[StageRef]) -> tuple[int, int]:
        group = [batch for ref in refs for batch in self._staged(ref, int(decision, 16))]
        if not group:
            end = self.main.log.log_end_offset
            return end, end
        result = append_durable(self.main, group, decided=True)
        return result.first_offset, result.next_offset

    def _staged(self, ref: StageRef, decision: int) -> list[Composable]:
        """The batches of a stage, part by part."""
        with self._lock:
            stage = self._ready().stages.get(ref.stage)
            hidden = self._open_log()
        batches: list[Composable] = []
        if stage is not None:
            for _, part in sorted(stage.parts.items()):
                for message in hidden.batches(part.first_offset, part.next_offset):
                    if read_header(message).group_index > 0:  # behind the note
                        batches.append(RestampedBatch(message, decision))
        rows = sum(batch.record_count for batch in batches)
        if stage is None or rows != ref.rows:
            raise CorruptLog(
                f"{self.main}: stage {ref.stage} was decided with {ref.rows} rows, {rows} of them are intact",
                stage=ref.stage,
                path=self._folder,
            )
        return batches

    def _trim(self, table: StageTable, *, at_least: int = SEGMENT_BYTES) -> None:
        """Let go of what is not needed, once so many bytes are not."""
        hidden = self._open_log()
        if table.freed_bytes < at_least:
            return
        start = hidden.trim(table.needed_offset(hidden.log_end_offset))
        table.trimmed(start)


def _read_table(hidden: PartitionLog) -> StageTable:
    """The table that the notes of a log give (T6)."""
    table = StageTable()
    notes: list[Note] = []
    first = size = 0
    for message in hidden.batches(hidden.log_start_offset):
        header = read_header(message)
        if header.group_index == 0:
            notes, first, size = notes_in(decode_batch(message)), header.first_offset, 0
        size += len(message)
        if header.group_index + 1 == header.group_count:
            for note in notes:
                table.apply(note, first_offset=first, next_offset=header.next_offset, byte_count=size)
            notes = []
    return table
