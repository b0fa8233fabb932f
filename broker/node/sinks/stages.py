"""The stages of one partition, driven: its hidden log, and the commit groups that come out of it.

    POST stages ──► hidden log (fsynced) ──► pin (fsynced) ──► decision in __commits (fsynced)
                                                                    │
    readers ◄── high watermark ◄── partition's log, one commit group (fsynced) ◄── finish
                                                                    │
                                     finished note in the hidden log (fsynced) ──► reported

Every call here but `put` blocks until what it says is on disk.
The hidden log: `stage_log.G1`, `stage_log.G2`; the
rules of stages: `broker.sinks.stages` (T).

G3  A group is appended at most once. Unless this process pinned its stages, in this leadership, and never tried, the
    partition's log is made durable first and searched for the decision, from where the first pin says on; nothing is
    let go there meanwhile (`Replica.floor`; no group is appended before the pin has returned, and it waits for whoever
    is just letting go by an older floor). That is the *high watermark*: what lies behind it may be truncated, and
    the group then stand before the place where it is looked for. With `fsync = interval` it may be above the durable
    end, and a power cut moves the end back: then that is the one.
G5  A pinned stage is dropped only with the pin that was judged: the drop names its epoch, and the leader epoch, and a
    stage that was pinned anew meanwhile stays.
G6  A pin keeps what it keeps until the note that it is finished is durable, not only written: without the note the
    group is looked for again, and has to be there.
G7  A part of a bundle may be answered before it is durable: its pin makes it so, since what a log has is durable in its
    order. A power cut before that takes parts away; then the pin is refused, and nothing is decided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Unpack

from broker.api.batch import read_header
from broker.api.errors import LiftlogError, StageLost
from broker.common.elapsed import Tenure, elapsed_us
from broker.common.waiting import Lock
from broker.node.partitions.partition import Partition
from broker.node.sinks.committed import WholeRead, append_durable, await_committed
from broker.node.sinks.stage_log import FOLDER, FOREVER_US, HiddenLog
from broker.sinks.notes import GroupFinished, Note, PartStored, StageDropped, StagePart, StagePinned
from broker.sinks.silence import Holding, Owner
from broker.sinks.stages import Stage, StageTable, too_much_at_once
from broker.sinks.state import StageRef
from broker.storage.disk import disk_errors
from broker.storage.inspect.scrub import Piece
from broker.storage.log import WRITEBACK_BYTES
from broker.storage.rows import Measured

log = logging.getLogger(__name__)


SILENT: Final = "dropped: its run was not heard of, and others needed the room"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimits:
    """As `[sinks]` of the configuration."""

    stage_lease_ms: int = 24 * 3_600_000
    stage_bytes_max: int = 16 << 30
    group_bytes_max: int = 1 << 30
    one_shot_grace_ms: int = 3_600_000
    owner_silent_ms: int = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Live stages of a partition at one moment, to be judged. `leader_epoch`: the partition's then (G5)."""

    leader_epoch: int | None
    stages: tuple[Stage, ...]

    @property
    def pins(self) -> list[StagePinned]:
        """The pins of the stages that have one."""
        return [stage.pin for stage in self.stages if stage.pin is not None]


class StageStore:
    """The stages of one partition. Thread-safe; calls block.

    Args:
        main: The partition.
        hidden: The log of its stages.
        clock: Microseconds since 1970 UTC.
        finishing: The lock under which groups are looked for and appended, if another store of the partition has one:
            who searches must see what that one is about to append (G3).
    """

    def __init__(
        self,
        main: Partition,
        hidden: HiddenLog,
        limits: StageLimits,
        *,
        clock: Callable[[], int],
        elapsed: Callable[[], int] = elapsed_us,
        finishing: Lock | None = None,
    ) -> None:
        self.main = main
        self.limits = limits
        self._clock = clock
        self._tenure = Tenure(main.leader_epoch, elapsed)
        self._hidden = hidden
        self._untried: set[str] = set()  # pinned in this leadership, in no group that it tried to append (G3)
        self._untried_in = main.leader_epoch
        self._waiting_bytes = 0  # put since `make_durable` was called last
        self._noting: dict[str, tuple[int, int]] = {}  # by decision, of G6: the table's generation, and from where on
        self._lock = self._hidden.lock
        self.finishing = finishing or main.replica.waits.lock()

    # --- the protocol ---------------------------------------------------------------------------------------

    def store(
        self,
        batches: Sequence[Measured],
        check: Callable[[], None] = lambda: None,
        **part: Unpack[StagePart],
    ) -> bool:
        """Store one part of a stage; the same again is stored once. Returns whether it was new. As `put`."""
        is_new, generation = self.put(batches, check, **part)
        self.make_durable(generation)
        return is_new

    def put(
        self,
        batches: Sequence[Measured],
        check: Callable[[], None] = lambda: None,
        **part: Unpack[StagePart],
    ) -> tuple[bool, int]:
        """Write one part of a stage, or find that it is there: whether it was new, and what `make_durable` takes.

        It is durable when that has returned, or the pin of its stage (G7). Much is made durable here, so that a pin
        has little to wait for.

        Args:
            check: Raises if the epoch is superseded. Asked under the lock: what it lets pass is there when
                `supersede` looks for it.
        Raises:
            StageLost: the stage is gone.
            StagesFull, RequestTooLarge, InvalidRequest: nothing was stored.
            DiskFull, StorageFailed: it may be stored; the same again may succeed.
        """
        self.main.check_open()
        rows = sum(batch.record_count for batch in batches)
        note = PartStored(**part, rows=rows, stored_us=self._clock())
        with self._lock:
            table = self._hidden.ready()
            check()
            is_new = not table.has_part(note)
            if is_new:
                size = sum(batch.byte_count_max for batch in batches)
                table.check_share(note.stage, size, self.limits.group_bytes_max)
                table.check_room(self.limits.stage_bytes_max)
                if self.main.replica.room is not None:
                    self.main.replica.room.check(size)
                self._hidden.append([note], batches, decision=int(note.stage, 16))
                self._waiting_bytes += size
            generation = self._hidden.generation
            if self._waiting_bytes >= WRITEBACK_BYTES:  # locked, or what comes next would be written before
                self.make_durable(generation)
        return is_new, generation

    def make_durable(self, generation: int) -> None:
        """Make durable what was put. Raises as `put`; what was put may be stored."""
        self._waiting_bytes = 0
        self._hidden.make_durable(generation)

    def pin(self, stages: Sequence[tuple[str, int | None]], *, sink: str, epoch: int, batch_id: int) -> list[StageRef]:
        """Keep stages for a decision of this epoch. Durable when it returns.

        Stages that an older epoch had pinned are pinned anew, and are still looked for where they were (`stages.T4`).

        Args:
            stages: Each with the number of its parts, None if the driver does not say.
        Raises:
            StageLost, InvalidRequest: nothing was pinned. (Lost is also what the scrub found damaged.)
        """
        self.main.check_open()
        with self._lock:
            table = self._hidden.ready()
            self._lead()
            new: list[Note] = []
            fresh: set[str] = set()
            now_us, search_from = (
                self._clock(),
                min(self.main.log.state.high_watermark, self.main.log.state.durable_end),
            )
            for stage, parts in stages:
                had = table.check_pin(stage, sink=sink, epoch=epoch, batch_id=batch_id, parts=parts)
                if not self._hidden.is_intact(table.stages[stage]):
                    raise StageLost(
                        f"stage {stage} is damaged on the disk; nothing was decided", stage=stage, why="damaged"
                    )
                if had is None or had.epoch < epoch:
                    new.append(
                        StagePinned(
                            stage=stage,
                            sink=sink,
                            epoch=epoch,
                            batch_id=batch_id,
                            search_from=search_from if had is None else min(search_from, had.search_from),
                            pinned_us=now_us,
                        )
                    )
                if had is None:
                    fresh.add(stage)
            total = sum(table.stages[stage].byte_count for stage, _ in stages)
            if total > self.limits.group_bytes_max:
                raise too_much_at_once(total, self.limits.group_bytes_max, f"the batch's share in {self.main}")
            if new:
                self._hidden.append(new)
                self._untried |= fresh
            refs = [self._ref(table, stage) for stage, _ in stages]
            generation = self._hidden.generation
        with self.main.replica.letting_go:
            pass  # whoever had asked for the floor before these pins were there is through (G3)
        self.make_durable(generation)
        return refs

    def finish(self, decision: str, sink: str, refs: Sequence[StageRef]) -> GroupFinished:
        """Append the stages as one commit group, once (G3). All of it is durable when it returns.

        Raises:
            UnknownStream: the partition was closed, because its stream was deleted.
            CorruptLog: a decided stage is damaged.
            NotLeader, DiskFull, StorageFailed: not known; to be called again.
        """
        with self.finishing:
            with self._lock:
                table = self._hidden.ready()
                self._lead()
                leader_epoch = self._hidden.leader_epoch
                found, generation = table.finished.get(decision), self._hidden.generation
                is_untried = all(ref.stage in self._untried for ref in refs)
                self._untried.difference_update(ref.stage for ref in refs)
            if found is None:
                place = None if is_untried else self._find(int(decision, 16), min(ref.search_from for ref in refs))
                if place is None:
                    place = self._append_group(decision, refs, leader_epoch)
                found = GroupFinished(
                    decision=decision,
                    sink=sink,
                    stages=tuple(ref.stage for ref in refs),
                    first_offset=place[0],
                    next_offset=place[1],
                )
                with self._lock:
                    self._hidden.ready()
                    self._hidden.check_epoch(leader_epoch)
                    self._hidden.append([found])
                    generation = self._hidden.generation
                    self._noting[decision] = generation, min(ref.search_from for ref in refs)
            self._hidden.make_durable(generation)
            with self._lock:
                self._noting.pop(decision, None)
            return found

    def abort(self, stages: Iterable[str], *, sink: str) -> int:
        """Let stages of a sink go that are not pinned. Returns how many went."""
        return self._drop(lambda stage: stage.pin is None, stages, sink=sink, why="aborted")

    def drop(
        self, stages: Mapping[str, int], *, sink: str, leader_epoch: int | None, why: str, unpinned: bool = True
    ) -> int:
        """Let stages go that no decision names, nor ever will. Returns how many went.

        Args:
            stages: Each with the pin epoch that was judged; what was pinned anew since then stays (G5).
            leader_epoch: Under which it was judged; None: what was judged is told by the pins alone.
            unpinned: Also those that have no pin.
        Raises:
            NotLeader: the partition has another leader epoch by now; nothing was dropped.
        """
        return self._drop(
            lambda stage: unpinned if stage.pin is None else stage.pin.epoch <= stages[stage.stage],
            stages,
            sink=sink,
            why=why,
            leader_epoch=leader_epoch,
        )

    def supersede(self, sink: str, epoch: int) -> int:
        """Let stages go that older owners of a sink have not committed: they cannot any more. Returns how many."""
        with self._lock:
            found = self._hidden.ready().superseded(sink, epoch)
        return self.abort(found, sink=sink) if found else 0

    def make_room(self, owners: Sequence[Owner]) -> int:
        """Let stages of silent owners go, the first ones first, until others have room. Returns how many went.

        What is pinned stays. A commit that names one that went is refused, as if it had expired: nothing is decided.
        """
        with self._lock:
            found = self._hidden.ready().making_room(owners, self.limits.stage_bytes_max)
            notes: list[Note] = [StageDropped(stage=stage, why=SILENT) for stage in found]
            if notes:
                self._hidden.append(notes)
                self._hidden.trim(self._hidden.ready(), at_least=1)
        if notes:
            log.warning("sink.silent_stages_dropped partition=%s stages=%d", self.main, len(notes))
        return len(notes)

    def holdings(self) -> list[Holding]:
        """What is staged, by owner."""
        with self._lock:
            return self._hidden.ready().holdings()

    def forget(self, decision: str) -> None:
        """The decision is recorded as done: nobody asks for its group any more."""
        with self._lock:
            table = self._hidden.ready()
            table.forget([decision])
            self._hidden.trim(table)

    # --- in the background ----------------------------------------------------------------------------------

    def sweep(self, *, is_asked_for: Callable[[str], bool]) -> None:
        """Let go of expired stages, of groups that are done, and of the room that they took.

        Args:
            is_asked_for: Whether a decision may still be asked for.
        """
        with self._lock:
            table = self._hidden.ready()
            now_us, lease_us = self._clock(), self.limits.stage_lease_ms * 1_000
            table.forget([decision for decision in table.finished if not is_asked_for(decision)])
            lasts = self._tenure.lasts(self.main.leader_epoch, lease_us)
            expired = table.expired(now_us, lease_us) if lasts else []
            notes: list[Note] = [StageDropped(stage=s, why="expired") for s in expired]
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

    def trim(self) -> None:
        """Let go of what is not needed, however little it is."""
        with self._lock:
            self._hidden.trim(self._hidden.ready(), at_least=1)

    def __str__(self) -> str:
        return f"{self.main}#{FOLDER}"

    @property
    def place(self) -> str:
        """The partition, for people."""
        return str(self.main)

    @property
    def incarnation(self) -> str:
        """The stream's."""
        return self.main.incarnation

    @property
    def judged_in(self) -> int | None:
        """The leader epoch that something judged now is judged under (G5)."""
        return self.main.leader_epoch

    @property
    def removed(self) -> bool:
        """Whether the stream was deleted."""
        return self.main.removed

    @property
    def is_over(self) -> bool:
        """As `Replica.is_over`."""
        return self.main.replica.is_over

    def scrub(self, offset: int, *, give_up: bool = False) -> Piece | None:
        """Check what is staged, as `Partition.scrub` does: a stage that is found damaged is not decided any more."""
        piece = self._hidden.scrub(offset, give_up=give_up)
        if piece is not None and piece.tampered:
            log.error("partition.tampered partition=%s ranges=%d", self, piece.tampered)
        if piece is not None and piece.lost:
            log.error("partition.damaged partition=%s lost=%s", self, piece.lost)
        return piece

    @property
    def exists(self) -> bool:
        """Whether anything was ever staged."""
        return self._hidden.exists

    def byte_count(self) -> int:
        """Bytes of live stages; 0 while that is not known."""
        return self._hidden.byte_count()

    def finished(self) -> list[str]:
        """The decisions whose groups are remembered."""
        with self._lock:
            return list(self._hidden.ready().finished)

    def staged(self, sink: str | None = None) -> Staged:
        """The live stages, of one sink or of all."""
        with self._lock:
            stages = self._hidden.ready().stages.values()
            found = tuple(replace(stage) for stage in stages if sink in (None, stage.sink))
            return Staged(leader_epoch=self._hidden.leader_epoch, stages=found)

    def close(self) -> None:
        """Close the hidden log."""
        self._hidden.close()

    # --- helpers --------------------------------------------------------------------------------------------

    def floor(self) -> int | None:
        """Offset of the partition's log from which on nothing is let go (`replica.R1`)."""
        if not self.exists:
            return None
        if not self._lock.acquire(timeout=self._hidden.floor_wait_s):
            return 0  # not known in time: nothing is let go
        try:
            pinned = self._hidden.ready(wait_s=0.0).floor()
            now = self._hidden.generation  # in another one the table has the note, or the pins again
            noting = [start for generation, start in self._noting.values() if generation == now]
        except LiftlogError:
            return 0  # not known: nothing is let go
        finally:
            self._lock.release()
        return min([*noting, *([] if pinned is None else [pinned])], default=None)

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
            search_from=found.pin.search_from,
        )

    def _lead(self) -> None:
        """Forget what it had never tried when it becomes leader, again or newly (G3). Under the lock."""
        if self._untried_in != self._hidden.leader_epoch:
            self._untried.clear()
            self._untried_in = self._hidden.leader_epoch

    def _drop(
        self,
        may_go: Callable[[Stage], bool],
        stages: Iterable[str],
        *,
        sink: str,
        why: str,
        leader_epoch: int | None = None,
    ) -> int:
        with self._lock:
            table = self._hidden.ready()
            if leader_epoch is not None:
                self._hidden.check_epoch(leader_epoch)
            found = [table.stages[s] for s in dict.fromkeys(stages) if s in table.stages]
            notes: list[Note] = [StageDropped(stage=s.stage, why=why) for s in found if s.sink == sink and may_go(s)]
            if notes:
                self._hidden.append(notes)
                self._hidden.trim(table)
                self._untried.difference_update(note.stage for note in notes if isinstance(note, StageDropped))
            return len(notes)

    def _find(self, decision: int, start: int) -> tuple[int, int] | None:
        """Where the commit group of a decision stands in the partition's log, which is made durable first (G3)."""
        await_committed(self.main)
        place, read = None, WholeRead(self.main)
        with disk_errors(f"searching {self.main} for a group"):
            for message in self.main.log.reader.batches(max(start, self.main.log.state.log_start_offset)):
                header = read_header(message)
                if header.decision == decision:
                    place = (place[0] if place else header.first_offset, header.next_offset)
        if place is None:
            read.check()
        return place

    def _append_group(self, decision: str, refs: Sequence[StageRef], leader_epoch: int) -> tuple[int, int]:
        group = self._hidden.group_of(refs, int(decision, 16))
        if not group.batch_count:
            end = self.main.log.state.log_end_offset
            return end, end
        result = append_durable(self.main, group, decided=True, leader_epoch=leader_epoch)
        return result.first_offset, result.next_offset
