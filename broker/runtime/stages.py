"""The stages of one partition, driven: its hidden log, and the commit groups that come out of it.

    POST stages ──► hidden log (fsynced) ──► pin (fsynced) ──► decision in __commits (fsynced)
                                                                    │
    readers ◄── high watermark ◄── partition's log, one commit group (fsynced) ◄── finish
                                                                    │
                                     finished note in the hidden log (fsynced) ──► reported

Every call here blocks until what it says is on disk. The hidden log: `broker.runtime.stage_log`, with G1 and G2; the
rules of stages: `broker.sinks.stages` (T).

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

from broker.api.batch import read_header
from broker.api.encodable import Encodable
from broker.api.errors import LiftlogError, RequestTooLarge, StageLost
from broker.runtime.partition import Outcome, Partition
from broker.runtime.stage_log import FOLDER, FOREVER_US, StageLog
from broker.sinks.ledger import StageRef
from broker.sinks.notes import GroupFinished, Note, PartStored, StageDropped, StagePinned
from broker.sinks.stages import StageTable
from broker.storage.disk import Disk
from broker.storage.log import HASTE_BYTES, AppendResult, StoredGroup
from broker.storage.rows import RowBatch
from broker.storage.scrub import Piece

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimits:
    """As `[sinks]` of the configuration."""

    stage_lease_ms: int = 24 * 3_600_000
    stage_bytes_max: int = 16 << 30
    group_bytes_max: int = 1 << 30


def append_durable(
    partition: Partition, batches: Sequence[Encodable] | StoredGroup, *, decided: bool = False
) -> AppendResult:
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
        self._clock = clock
        self._hidden = StageLog(disk, main, boot_id=boot_id, clock=clock)
        self._untried: set[str] = set()  # stages pinned by this process, in no group that it tried to append (G3)
        self._lock = self._hidden.lock
        self._finishing = threading.Lock()
        main.floor = self._floor

    # --- the protocol ---------------------------------------------------------------------------------------

    def store(
        self, batches: Sequence[RowBatch], *, sink: str, epoch: int, stage: str, part: int, is_last: bool
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
            table = self._hidden.ready()
            is_new = not table.has_part(note)
            if is_new:
                table.check_room(self.limits.stage_bytes_max)
                if self.main.room is not None:
                    self.main.room.check()
                self._hidden.append([note], batches, decision=int(stage, 16))
            generation = self._hidden.generation
            is_large = sum(batch.byte_count_max for batch in batches) >= HASTE_BYTES
            if is_large:  # or the part that comes next would be written before this one is answered
                self._hidden.make_durable(generation)
        if not is_large:
            self._hidden.make_durable(generation)
        return is_new

    def pin(self, stages: Sequence[tuple[str, int | None]], *, sink: str, epoch: int, batch_id: int) -> list[StageRef]:
        """Keep stages for a decision. Durable when it returns.

        Args:
            stages: Each with the number of its parts, None if the driver does not say.
        Raises:
            StageLost, InvalidRequest: nothing was pinned. (Lost is also what the scrub found damaged.)
        """
        self.main.check_open()
        with self.main.letting_go, self._lock:
            table = self._hidden.ready()
            new: list[Note] = []
            now_us = self._clock()
            end_offset = self.main.log.durable_end
            for stage, parts in stages:
                is_new = table.needs_pin(stage, sink=sink, batch_id=batch_id, parts=parts)
                if not self._hidden.is_intact(table.stages[stage]):
                    raise StageLost(
                        f"stage {stage} is damaged on the disk; nothing was decided", stage=stage, why="damaged"
                    )
                if is_new:
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
                self._hidden.append(new)
                self._untried.update(note.stage for note in new if isinstance(note, StagePinned))
            refs = [self._ref(table, stage) for stage, _ in stages]
            generation = self._hidden.generation
        self._hidden.make_durable(generation)
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
                table = self._hidden.ready()
                found, generation = table.finished.get(decision), self._hidden.generation
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
                    self._hidden.ready()
                    self._hidden.append([found])
                    generation = self._hidden.generation
            self._hidden.make_durable(generation)
            return found

    def drop(self, stages: Iterable[str], *, sink: str, why: str, pinned: bool = False) -> int:
        """Let stages of a sink go; `pinned`: also those that are pinned. Returns how many went."""
        with self._lock:
            table = self._hidden.ready()
            found = [table.stages[s] for s in dict.fromkeys(stages) if s in table.stages]
            notes: list[Note] = [
                StageDropped(stage=s.stage, why=why) for s in found if s.sink == sink and (pinned or s.pin is None)
            ]
            if notes:
                self._hidden.append(notes)
                self._hidden.trim(table)
            return len(notes)

    def forget(self, decision: str) -> None:
        """The decision is recorded as done: nobody asks for its group any more."""
        with self._lock:
            table = self._hidden.ready()
            table.forget([decision])
            self._hidden.trim(table)

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
            table = self._hidden.ready()
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
                self._hidden.append(notes)
            log_ = self._hidden.open()
            if not table.stages and not table.finished and table.freed_bytes:
                log_.roll_if_due(FOREVER_US)
            generation = self._hidden.generation
        self._hidden.make_durable(generation)
        with self._lock:
            self._hidden.trim(self._hidden.ready(), at_least=1)
        log_.checkpoint()
        if notes:
            log.info("sink.stages_dropped partition=%s stages=%d", self.main, len(notes))
        return [pin for pin in open_pins if pin.pinned_us + lease_us <= now_us]

    def __str__(self) -> str:
        return f"{self.main}#{FOLDER}"

    @property
    def removed(self) -> bool:
        """Whether the stream was deleted."""
        return self.main.removed

    def scrub(self, offset: int, *, give_up: bool = False) -> Piece | None:
        """Check what is staged, as `Partition.scrub` does: a stage that is found damaged is not decided any more."""
        piece = self._hidden.scrub(offset, give_up=give_up)
        if piece is not None and piece.lost:
            log.error("partition.damaged partition=%s lost=%s", self, piece.lost)
        return piece

    @property
    def exists(self) -> bool:
        """Whether anything was ever staged."""
        return self._hidden.exists

    def byte_count(self) -> int:
        """Of live stages; 0 while that is not known."""
        return self._hidden.byte_count()

    def pins(self) -> list[StagePinned]:
        """The pins of live stages."""
        with self._lock:
            return self._hidden.ready().pinned()

    def close(self) -> None:
        """Close the hidden log."""
        self._hidden.close()

    # --- helpers --------------------------------------------------------------------------------------------

    def _floor(self) -> int | None:
        if not self.exists:
            return None
        with self._lock:
            try:
                return self._hidden.ready().floor()
            except LiftlogError:
                return 0  # not known: nothing is let go

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
        group = self._hidden.group_of(refs, int(decision, 16))
        if not group.batch_count:
            end = self.main.log.log_end_offset
            return end, end
        result = append_durable(self.main, group, decided=True)
        return result.first_offset, result.next_offset
