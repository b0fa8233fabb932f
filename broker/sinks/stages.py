"""The stages of one partition, as its hidden log tells them.

                                                     ┌─┐ pin of a newer epoch
              part ... last part            pin      │ ▼          finished
    (none) ───────────────────────► sealed ──────► pinned ──────────────────────► gone
        │    expired, aborted, silent │ same        │ no decision can name it
        └─────────────────────────────┴────────────►└────────────────────────────► gone

T1  A part is stored once. The same again is answered from here; another one in its place is refused.
T2  A stage is sealed when parts 0 to the last one are there. Only a sealed stage is pinned.
T3  A pinned stage neither expires nor is aborted, nor makes room for others; only whoever decides may drop it.
T4  A stage is pinned for one batch of one sink, for good: two decisions never name the same stage.
    It is pinned anew when a newer epoch commits it, and its group is still looked for from where
    the first pin said. A pin of an older epoch is refused: what its epoch may decide is over.
T5  Nothing that `needed_offset` covers is ever trimmed: parts of live stages with all that was noted after
    them, and finished groups until their decision is recorded as done (`forget`).
T6  The table equals what `apply` gives for the notes of the log, from any start that T5 allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.api.errors import InvalidRequest, RequestTooLarge, StageLost, StagesFull
from broker.sinks.notes import GroupFinished, Note, PartStored, StageDropped, StagePinned
from broker.sinks.silence import Holding, Owner

HOLDERS_NAMED: Final = 3
"""So many sinks an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Where a part stands in the hidden log: note and batches, [first_offset, next_offset).

    `batch_count`: without the note. `byte_count`: with it.
    """

    first_offset: int
    next_offset: int
    rows: int
    batch_count: int
    byte_count: int


@dataclass(slots=True, kw_only=True)
class Stage:
    """A live stage.

    Attributes:
        epoch: The epoch of the owner for whom it was staged.
        last_part: Number of the last part, once it came.
        touched_us: When its newest part came; its lease counts from there.
        pin: Why it is kept; None: it is not pinned.
    """

    stage: str
    sink: str
    epoch: int
    parts: dict[int, Part] = field(default_factory=dict)
    last_part: int | None = None
    touched_us: int = 0
    pin: StagePinned | None = None

    @property
    def is_sealed(self) -> bool:
        """All parts are there (T2)."""
        return self.last_part is not None and len(self.parts) == self.last_part + 1

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts.values())

    @property
    def byte_count(self) -> int:
        return sum(part.byte_count for part in self.parts.values())

    @property
    def batch_count(self) -> int:
        return sum(part.batch_count for part in self.parts.values())

    @property
    def first_offset(self) -> int:
        return min(part.first_offset for part in self.parts.values())


class StageTable:
    """See the module. One per partition.

    Attributes:
        stages: Live stages by id.
        finished: Finished groups that may still be asked for, by decision.
        byte_count: Bytes of all live stages.
        freed_bytes: Bytes of stages that went since `trimmed`.
    """

    def __init__(self) -> None:
        self.stages: dict[str, Stage] = {}
        self.finished: dict[str, GroupFinished] = {}
        self.byte_count = 0
        self.freed_bytes = 0
        self._finished_at: dict[str, int] = {}
        self._gone: dict[str, tuple[int, str]] = {}

    def apply(self, note: Note, *, first_offset: int, next_offset: int, byte_count: int, batch_count: int = 0) -> None:
        """Take in one note of the commit group [first_offset, next_offset), `batch_count` batches behind the note."""
        match note:
            case PartStored():
                part = Part(
                    first_offset=first_offset,
                    next_offset=next_offset,
                    rows=note.rows,
                    batch_count=batch_count,
                    byte_count=byte_count,
                )
                self._stored(note, part)
            case StagePinned():
                if note.stage in self.stages:
                    self.stages[note.stage].pin = note
            case StageDropped():
                self._remove(note.stage, first_offset, note.why)
            case GroupFinished():
                for stage in note.stages:
                    self._remove(stage, first_offset, "finished")
                self.finished[note.decision] = note
                self._finished_at[note.decision] = first_offset

    def _stored(self, note: PartStored, part: Part) -> None:
        stage = self.stages.setdefault(note.stage, Stage(stage=note.stage, sink=note.sink, epoch=note.epoch))
        assert note.part not in stage.parts, "T1"
        stage.parts[note.part] = part
        stage.touched_us = max(stage.touched_us, note.stored_us)
        if note.is_last:
            stage.last_part = note.part
        self.byte_count += part.byte_count

    def _remove(self, stage: str, offset: int, why: str) -> None:
        self._gone[stage] = (offset, why)
        if (found := self.stages.pop(stage, None)) is not None:
            self.byte_count -= found.byte_count
            self.freed_bytes += found.byte_count

    # --- may it? --------------------------------------------------------------------------------------------

    def has_part(self, note: PartStored) -> bool:
        """Whether exactly this part is there already (T1).

        Raises:
            StageLost: the stage is gone: it expired, was aborted, or is finished.
            InvalidRequest: it contradicts what is there.
        """
        if note.stage in self._gone:
            raise StageLost(f"stage {note.stage} is {self._gone[note.stage][1]}: stage it again", stage=note.stage)
        stage = self.stages.get(note.stage)
        if stage is None:
            return False
        if (stage.sink, stage.epoch) != (note.sink, note.epoch):
            whose = f"epoch {stage.epoch}" if stage.sink == note.sink else "another sink"
            raise InvalidRequest(
                f"stage {note.stage} belongs to {whose}, not to {note.sink!r}, epoch {note.epoch}", stage=note.stage
            )
        if (part := stage.parts.get(note.part)) is not None:
            if part.rows != note.rows or (stage.last_part == note.part) != note.is_last:
                raise InvalidRequest(
                    f"part {note.part} of stage {note.stage} is there with {part.rows} records; this is another,"
                    f" with {note.rows}",
                    stage=note.stage,
                    part=note.part,
                )
            return True
        last = note.part if note.is_last else stage.last_part
        is_second_end = note.is_last and stage.last_part is not None
        if is_second_end or (last is not None and max([note.part, *stage.parts]) > last):
            raise InvalidRequest(
                f"stage {note.stage} ends with part {last}, and there is "
                + (f"another last one, {stage.last_part}" if is_second_end else "a later one"),
                stage=note.stage,
                part=note.part,
            )
        return False

    def check_room(self, bytes_max: int) -> None:
        """Raise StagesFull when so much is staged that no more is taken."""
        if self.byte_count >= bytes_max:
            largest = sorted(self.holdings(), key=lambda each: -each.byte_count)[:HOLDERS_NAMED]
            raise stages_full(self.byte_count, bytes_max, [(each.sink, each.byte_count) for each in largest])

    def check_share(self, stage: str, byte_count: int, bytes_max: int) -> None:
        """Raise RequestTooLarge when a stage of so many bytes more could never be committed."""
        known = self.stages.get(stage)
        total = byte_count + (0 if known is None else known.byte_count)
        if total > bytes_max:
            raise too_much_at_once(total, bytes_max, f"stage {stage}")

    def check_pin(self, stage: str, *, sink: str, epoch: int, batch_id: int, parts: int | None) -> StagePinned | None:
        """Whether a stage may be pinned, and the pin that it has.

        Args:
            parts: So many the caller stored; None: it does not say.
        Raises:
            StageLost: it is not there as a whole: never was, expired, aborted, finished, or a part is missing; or a
                newer epoch has pinned it.
            InvalidRequest: it belongs to another sink, or is pinned for another batch (T4).
        """
        found = self.stages.get(stage)
        if found is None:
            why = self._gone[stage][1] if stage in self._gone else "not there"
            raise StageLost(f"stage {stage} is {why}; nothing was decided", stage=stage, why=why)
        if found.sink != sink:
            raise InvalidRequest(f"stage {stage} belongs to another sink than {sink!r}", stage=stage)
        if not found.is_sealed or parts not in (None, len(found.parts)):
            raise StageLost(
                f"stage {stage} is incomplete: it has {len(found.parts)} parts"
                f" ({'' if found.last_part is not None else 'not '}the last one among them); nothing was decided",
                stage=stage,
                why="incomplete",
            )
        pin = found.pin
        if pin is not None and pin.batch_id != batch_id:
            raise InvalidRequest(
                f"stage {stage} was committed for batch {pin.batch_id}, and now for {batch_id}", stage=stage
            )
        if pin is not None and pin.epoch > epoch:
            raise StageLost(
                f"stage {stage} was committed by a newer owner (epoch {pin.epoch}, this epoch: {epoch}); nothing was"
                " decided",
                stage=stage,
                why="pinned by a newer epoch",
            )
        return pin

    # --- what to let go -------------------------------------------------------------------------------------

    def expired(self, now_us: int, lease_us: int) -> list[str]:
        """Stages without a pin whose lease is over (T3)."""
        return [s.stage for s in self.stages.values() if s.pin is None and s.touched_us + lease_us <= now_us]

    def superseded(self, sink: str, epoch: int) -> list[str]:
        """Stages of a sink that older owners staged and did not commit."""
        return [s.stage for s in self.stages.values() if s.sink == sink and s.pin is None and s.epoch < epoch]

    def holdings(self) -> list[Holding]:
        """What is staged here, by owner."""
        found: dict[Owner, Holding] = {}
        for stage in self.stages.values():
            owner, pinned = (stage.sink, stage.epoch), int(stage.pin is not None)
            one = Holding(sink=stage.sink, epoch=stage.epoch, stages=1, byte_count=stage.byte_count, pinned=pinned)
            found[owner] = found[owner] + one if owner in found else one
        return list(found.values())

    def making_room(self, owners: Sequence[Owner], bytes_max: int) -> list[str]:
        """Stages of these owners, in their order, that have to go so that there is room again (T3).

        All of an owner's go, or none: a batch that lacks one stage is not committed.
        """
        found: list[str] = []
        left = self.byte_count
        for owner in owners:
            if left < bytes_max:
                break
            theirs = [s for s in self.stages.values() if (s.sink, s.epoch) == owner and s.pin is None]
            found += [stage.stage for stage in theirs]
            left -= sum(stage.byte_count for stage in theirs)
        return found

    def floor(self) -> int | None:
        """Offset of the partition's log from which on an unfinished group may stand; None: there is none."""
        return min((s.pin.search_from for s in self.stages.values() if s.pin is not None), default=None)

    def forget(self, decisions: Iterable[str]) -> None:
        """Nobody will ask for these finished groups any more: they are recorded as done."""
        for decision in decisions:
            self.finished.pop(decision, None)
            self._finished_at.pop(decision, None)

    def needed_offset(self, log_end_offset: int) -> int:
        """First offset of the hidden log that must be kept (T5)."""
        return min([log_end_offset, *self._finished_at.values(), *(s.first_offset for s in self.stages.values())])

    def trimmed(self, log_start_offset: int) -> None:
        """The hidden log begins there now."""
        self.freed_bytes = 0
        self._gone = {stage: gone for stage, gone in self._gone.items() if gone[0] >= log_start_offset}


def stages_full(
    byte_count: int, bytes_max: int, held: Sequence[tuple[str, int]], *, others: bool = False
) -> StagesFull:
    """The error of a partition with so much staged that no more is taken.

    Args:
        held: Sinks that hold most of it, and how many bytes.
        others: So do further ones, which are not named.
    """
    by = ", ".join(f"sink {sink!r} ({size} bytes)" for sink, size in held)
    if others:
        by = f"others, and by {by}" if held else "others"
    return StagesFull(
        f"{byte_count} bytes are staged in this partition: at most sinks.stage_bytes_max={bytes_max}. Most of it is"
        f" held by {by}. Room comes with their commits, and when a run has been silent for sinks.owner_silent_ms;"
        " `liftlog sink list` shows who is silent, and `liftlog sink delete` frees what a dead job holds",
        key="sinks.stage_bytes_max",
        limit=bytes_max,
        value=byte_count,
        sinks=[sink for sink, _ in held],
        sink_bytes=[size for _, size in held],
    )


def stages_full_seen(error: StagesFull, is_seen: Callable[[str], bool]) -> StagesFull:
    """The error for a caller who may not be told of all sinks."""
    fields = error.fields
    held = list(zip(fields["sinks"], fields["sink_bytes"], strict=True))
    seen = [each for each in held if is_seen(each[0])]
    return error if seen == held else stages_full(fields["value"], fields["limit"], seen, others=True)


def too_much_at_once(byte_count: int, bytes_max: int, what: str) -> RequestTooLarge:
    """More bytes than one commit may add to one partition."""
    return RequestTooLarge(
        f"{what} has {byte_count} bytes: one commit adds at most sinks.group_bytes_max={bytes_max} to one partition;"
        " write smaller batches, or to more partitions",
        key="sinks.group_bytes_max",
        limit=bytes_max,
        value=byte_count,
    )
