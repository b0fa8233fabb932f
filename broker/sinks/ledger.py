"""The sinks: who may decide, what was decided last, and whether all of it is in place.

`__commits` holds one record per change, key = sink id, value = the sink's *whole* state, so the newest record of a
key is enough to go on. The state of one sink:

                 open (epoch + 1)              open (epoch + 1)
                    ┌──┐                          ┌──┐
    (none) ─open─► idle ───────── decide ───────► unfinished
                    ▲  ▲                            │
            reset ──┘  └──── completed: every partition has reported ┘

D1  One decision per (sink, batch id): the first one wins; a later commit of that id completes it.
D2  A batch id below the last decided one, or below where a reset put it, is refused.
D3  Batch b + 1 is not decided before b is completed.
D4  Only the newest epoch decides. An epoch is answered when its record is committed.
D5  `judge` is asked again where the decision is appended, since anything may have happened while stages were pinned.
D6  A record is applied here only once it is committed.

Format: docs/storage.md, section "Sinks".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

import pyarrow as pa

from broker.api.errors import (
    CorruptLog,
    InvalidRequest,
    NotReady,
    SinkBatchRegressed,
    SinkFenced,
    SinkForked,
    UnknownFormatVersion,
    UnknownSink,
)
from broker.api.plain import build, parse_json
from broker.api.stream import COMMITS_STREAM
from broker.sinks.notes import StagePinned, rows_of

STATE_VERSION: Final = 1
CHECKPOINT: Final = "checkpoint"
"""The attribute that tells whose sink it is: another one is a fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRef:
    """One stage that a decision names; `end_offset` as in its pin."""

    stream: str
    incarnation: str
    partition: int
    stage: str
    parts: int
    rows: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a batch consists of. `decision` (32 hex digits) names its commit groups."""

    batch_id: int
    decision: str
    epoch: int
    stages: tuple[StageRef, ...]
    rows: int
    digest: str
    attributes: Mapping[str, str]
    decided_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkState:
    """One sink.

    Attributes:
        epoch: Of the newest driver.
        last: The newest decision; None before the first, and after a reset.
        is_done: The last decision is in place everywhere.
        batch_id_least: Nothing below is decided (D2): set by a reset.
    """

    sink: str
    epoch: int = 0
    last: Decision | None = None
    is_done: bool = True
    batch_id_least: int = 0
    changed_us: int = 0

    def encode(self) -> bytes:
        """The record's value."""
        return json.dumps({"v": STATE_VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> SinkState:
        """Raises UnknownFormatVersion, CorruptLog."""
        try:
            fields: dict[str, Any] = parse_json(value)
            if (version := fields.pop("v")) != STATE_VERSION:
                raise UnknownFormatVersion(f"a sink's state of version {version}, this release reads {STATE_VERSION}")
            if (last := fields["last"]) is not None:
                stages = tuple(build(StageRef, stage) for stage in last["stages"])
                fields["last"] = build(Decision, {**last, "stages": stages})
                _check_attributes(last["attributes"])
            return build(cls, fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptLog(f"no sink state: {value[:200]!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStage:
    """A stage as a driver names it; `parts` None: it does not say how many."""

    stream: str
    partition: int
    stage: str
    parts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The answer to a commit: the state afterwards, and whether this call decided it."""

    state: SinkState
    is_new: bool


def _check_attributes(attributes: Any) -> None:
    if not (isinstance(attributes, dict) and all(isinstance(value, str) for value in attributes.values())):
        raise ValueError("attributes are names with texts")


def decision_id(sink: str, *, epoch: int, batch_id: int, stages: Sequence[StageRef], decided_us: int) -> str:
    """128 bits in hex that no other decision has: stage ids are unique, and so is the rest. Never 0."""
    text = json.dumps([sink, epoch, batch_id, decided_us, sorted(s.stage for s in stages)])
    found = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return found if int(found, 16) else "1".zfill(32)


def state_rows(states: Sequence[SinkState], *, timestamp_us: int) -> pa.RecordBatch:
    """States as rows of `__commits`."""
    return rows_of([(s.sink.encode(), s.encode()) for s in states], subject=COMMITS_STREAM, timestamp_us=timestamp_us)


@dataclass(slots=True)
class Ledger:
    """The committed state of every sink (D6)."""

    states: dict[str, SinkState] = field(default_factory=dict)

    def load(self, batch: pa.RecordBatch) -> None:
        """Take in the records of one batch of `__commits`, in order."""
        for value in batch.column("value").to_pylist():
            self.apply(SinkState.decode(value))

    def apply(self, state: SinkState) -> None:
        """The newest state of a sink."""
        self.states[state.sink] = state

    def get(self, sink: str) -> SinkState:
        """Raises UnknownSink."""
        found = self.states.get(sink)
        if found is None:
            raise UnknownSink(f"no sink {sink!r}: open it first", sink=sink)
        return found

    def unfinished(self) -> list[SinkState]:
        """Sinks whose last decision is not in place everywhere."""
        return [state for _, state in sorted(self.states.items()) if not state.is_done]

    # --- what comes next ------------------------------------------------------------------------------------

    def opened(self, sink: str, *, now_us: int) -> SinkState:
        """The state after another driver opened the sink (D4)."""
        return replace(self.states.get(sink, SinkState(sink=sink)), epoch=self._epoch(sink) + 1, changed_us=now_us)

    def judge(self, sink: str, *, epoch: int, batch_id: int, attributes: Mapping[str, str]) -> Literal["new", "repeat"]:
        """Whether a commit is a new one, or a repetition of the last decision.

        Raises:
            UnknownSink, SinkFenced, SinkForked, SinkBatchRegressed: nothing may be decided, nor dropped.
        """
        state = self.get(sink)
        if epoch != state.epoch:
            raise SinkFenced(
                f"sink {sink!r} was opened again: epoch {state.epoch} decides, this is {epoch}",
                sink=sink,
                epoch=state.epoch,
                asked=epoch,
            )
        last = state.last
        if last is None:
            self._check_least(state, batch_id)
            return "new"
        recorded, asked = last.attributes.get(CHECKPOINT), attributes.get(CHECKPOINT)
        if recorded is not None and asked is not None and recorded != asked:
            raise SinkForked(
                f"sink {sink!r} belongs to checkpoint {recorded}, this commit comes from {asked}: two queries would"
                " overwrite each other's batches. Give this one its own sink id, or reset the sink if it replaces it",
                sink=sink,
                recorded=recorded,
                asked=asked,
                last_batch_id=last.batch_id,
            )
        if batch_id < last.batch_id:
            raise SinkBatchRegressed(
                f"sink {sink!r} has decided batch {last.batch_id}, this is {batch_id}: the driver's checkpoint was"
                " rolled back, and its rows may be in the stream already. Use another sink id, or reset the sink to"
                f" batch {batch_id} if they are to be written again",
                sink=sink,
                batch_id=batch_id,
                last_batch_id=last.batch_id,
            )
        if batch_id == last.batch_id:
            return "repeat"
        return "new"

    def decided(self, sink: str, decision: Decision) -> SinkState:
        """The state after a decision. Asked right where it is appended (D5).

        Raises:
            As `judge`; NotReady: the decision before is not in place yet (D3), or this one was made meanwhile.
        """
        verdict = self.judge(sink, epoch=decision.epoch, batch_id=decision.batch_id, attributes=decision.attributes)
        state = self.get(sink)
        if verdict == "repeat" or not state.is_done:
            raise NotReady(f"sink {sink!r} is finishing batch {state.last.batch_id if state.last else None}", sink=sink)
        done = not decision.stages
        return replace(state, last=decision, is_done=done, changed_us=decision.decided_us)

    def completed(self, sink: str, decision: str, *, now_us: int) -> SinkState:
        """The state after every partition has reported."""
        state = self.get(sink)
        assert state.last is not None, f"{sink}: nothing was decided"
        assert state.last.decision == decision, f"{sink}: another decision was recorded"
        return replace(state, is_done=True, changed_us=now_us)

    def reset(self, sink: str, batch_id: int, *, now_us: int) -> SinkState:
        """The state after a reset: batch `batch_id` is the next one, drivers must open anew.

        Raises:
            UnknownSink: nobody opened it.
            NotReady: its decision is not in place yet.
        """
        state = self.get(sink)
        if not state.is_done:
            raise NotReady(f"sink {sink!r} is unfinished", sink=sink)
        return SinkState(sink=sink, epoch=state.epoch + 1, batch_id_least=batch_id, changed_us=now_us)

    def is_open(self, pin: StagePinned) -> bool:
        """Whether a decision names the pinned stage, or may still come to.

        It may not once its epoch is fenced, or a decision for its batch was made with other stages.
        """
        state = self.states.get(pin.sink)
        if state is None:
            return False
        last = state.last
        if last is not None and any(ref.stage == pin.stage for ref in last.stages):
            return True
        is_late = pin.batch_id < state.batch_id_least or (last is not None and pin.batch_id <= last.batch_id)
        return pin.epoch == state.epoch and not is_late

    def _epoch(self, sink: str) -> int:
        return self.states[sink].epoch if sink in self.states else 0

    @staticmethod
    def _check_least(state: SinkState, batch_id: int) -> None:
        if batch_id < state.batch_id_least:
            raise SinkBatchRegressed(
                f"sink {state.sink!r} was reset to begin with batch {state.batch_id_least}, this is {batch_id}",
                sink=state.sink,
                batch_id=batch_id,
                last_batch_id=state.batch_id_least - 1,
            )


def check_rows(stages: Sequence[StageRef], rows: int | None) -> int:
    """The rows of the stages together.

    Raises:
        InvalidRequest: the driver counted others; nothing was decided.
    """
    staged = sum(ref.rows for ref in stages)
    if rows is not None and rows != staged:
        raise InvalidRequest(f"the stages hold {staged} rows, the commit says {rows}", rows=rows, staged=staged)
    return staged
