"""The stages of one partition, as its hidden log tells them.

              part ... last part            pin                       finished
    (none) ───────────────────────► sealed ──────► pinned ──────────────────────► gone
        │         expired, aborted    │ same        │ no decision can name it
        └─────────────────────────────┴────────────►└────────────────────────────► gone

T1  A part is stored once. The same again is answered from here; another one in its place is refused.
T2  A stage is sealed when parts 0 to the last one are there. Only a sealed stage is pinned.
T3  A pinned stage neither expires nor is aborted; only whoever decides may drop it.
T4  A stage is pinned for one batch of one sink, for good: two decisions never name the same stage.
T5  What `needed_offset` covers is never trimmed: parts of live stages with all that was noted after them, and
    finished groups until their decision is recorded as done (`forget`).
T6  The table equals what `apply` gives for the notes of the log, from any start that T5 allows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.api.errors import InvalidRequest, StageLost, StagesFull
from broker.sinks.notes import GroupFinished, Note, PartStored, StageDropped, StagePinned


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
        last_part: Number of the last part, once it came.
        touched_us: When its newest part came; its lease counts from there.
        pin: Why it is kept; None: it is not pinned.
    """

    stage: str
    sink: str
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
        byte_count: Of all live stages.
        freed_bytes: Of stages that went since `trimmed`.
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
        stage = self.stages.setdefault(note.stage, Stage(stage=note.stage, sink=note.sink))
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
            raise StageLost(f"stage {note.stage} is {self._gone[note.stage][1]}: stage anew", stage=note.stage)
        stage = self.stages.get(note.stage)
        if stage is None:
            return False
        if stage.sink != note.sink:
            raise InvalidRequest(
                f"stage {note.stage} belongs to sink {stage.sink!r}, not {note.sink!r}", stage=note.stage
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
            raise StagesFull(
                f"{self.byte_count} bytes are staged in this partition: at most sinks.stage_bytes_max={bytes_max};"
                " stages that nobody commits go after sinks.stage_lease_ms",
                key="sinks.stage_bytes_max",
                limit=bytes_max,
                value=self.byte_count,
            )

    def needs_pin(self, stage: str, *, sink: str, batch_id: int, parts: int | None) -> bool:
        """Whether a stage that may be pinned is not pinned yet.

        Args:
            parts: So many the caller stored; None: it does not say.
        Raises:
            StageLost: it is not there as a whole: never was, expired, aborted, finished, or a part is missing.
            InvalidRequest: it belongs to another sink, or is pinned for another batch (T4).
        """
        found = self.stages.get(stage)
        if found is None:
            why = self._gone[stage][1] if stage in self._gone else "not there"
            raise StageLost(f"stage {stage} is {why}; nothing was decided", stage=stage, why=why)
        if found.sink != sink:
            raise InvalidRequest(f"stage {stage} belongs to sink {found.sink!r}, not {sink!r}", stage=stage)
        if not found.is_sealed or parts not in (None, len(found.parts)):
            raise StageLost(
                f"stage {stage} is incomplete: it has {len(found.parts)} parts"
                f" ({'' if found.last_part is not None else 'not '}the last one among them); nothing was decided",
                stage=stage,
                why="incomplete",
            )
        if found.pin is not None and found.pin.batch_id != batch_id:
            raise InvalidRequest(
                f"stage {stage} was committed for batch {found.pin.batch_id}, and now for {batch_id}", stage=stage
            )
        return found.pin is None

    # --- what to let go -------------------------------------------------------------------------------------

    def expired(self, now_us: int, lease_us: int) -> list[str]:
        """Stages without a pin whose lease is over (T3)."""
        return [s.stage for s in self.stages.values() if s.pin is None and s.touched_us + lease_us <= now_us]

    def pinned(self) -> list[StagePinned]:
        """The pins of live stages."""
        return [s.pin for s in self.stages.values() if s.pin is not None]

    def floor(self) -> int | None:
        """Offset of the partition's log from which on an unfinished group may stand; None: there is none."""
        return min((pin.end_offset for pin in self.pinned()), default=None)

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
