"""The sinks: who may decide, what was decided last, and whether all of it is in place.

             open                            open
            ┌────┐                          ┌────┐
    (none) ─► idle ────────── decide ───────► unfinished
      ▲      ▲  ▲                             │
      │ reset┘  └─ completed: every partition has reported
      └──────── delete, or a one-shot sink that is over

D1  One decision per (sink, batch id): the first one wins; a later commit of that id completes it.
    It is refused where it has other rows, by their number or their digest, unless it asks to keep
    the first. Digests are compared only if both sides gave one of the same kind.
D8  A commit that names the batch it follows is refused where the sink has not come so far.
D2  A batch id below the last decided one, or below where a reset put it, is refused.
D3  Batch b + 1 is not decided before b is completed.
D4  A commit names its owner and its epoch. It decides only if the state holds exactly that pair,
    and nobody with a higher epoch has committed. Opening gives an epoch and fences nobody: a late
    task of a run that is over may open, and must not stop the run that took its place.
D5  `judge` is asked again where the decision is appended, since anything may have happened while
    stages were pinned.
D6  A record is applied here only once it is committed.
D9  An owner that has ended its one-shot sink is superseded, also one that had never opened it, until the sink vanishes:
    a task that comes late does not make the sink again.
D7  For a pinned stage an unknown sink and a newer epoch mean *open*: only a committed state that
    rules it out proves that no decision can come to name the stage.

The records: broker.sinks.state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import pyarrow as pa

from broker.api.errors import (
    InvalidRequest,
    NotReady,
    SinkBatchesMissing,
    SinkBatchRegressed,
    SinkFenced,
    SinkForked,
    SinkRowsDiffer,
    UnknownSink,
)
from broker.sinks.destinations import check_same, former
from broker.sinks.notes import StagePinned
from broker.sinks.state import Decision, SinkState, StageRef

OWNERS_MAX: Final = 32
"""A sink remembers so many owners. One that is forgotten cannot commit: it has to open anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStage:
    """A stage as a driver names it; `parts` None: it does not say how many."""

    stream: str
    partition: int
    stage: str
    parts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """A decision that a driver asks for.

    Attributes:
        rows: Rows of all stages together, as the driver counted them.
        digest: The digest of the rows, in any order, as "kind:value"; "": the driver gives none.
        follows: A batch that the driver knows to be written; None: it does not say (D8).
        checkpoint: The checkpoint that the batch belongs to; None: the driver does not say.
        keeps_first: A batch that was decided with other rows is answered as decided first (D1).
        accepts_new: Streams may have been deleted and made anew since the sink wrote them (`destinations.N1`).
    """

    owner: str
    epoch: int
    batch_id: int
    rows: int
    digest: str = ""
    follows: int | None = None
    checkpoint: str | None = None
    keeps_first: bool = False
    accepts_new: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenResult:
    """The answer to an open: the state afterwards, and the owner's epoch."""

    state: SinkState
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The answer to a commit: the state afterwards, and whether this call decided it."""

    state: SinkState
    is_new: bool


@dataclass(slots=True)
class Ledger:
    """The committed state of every sink (D6). Readers need no lock: states are replaced, never changed."""

    states: dict[str, SinkState] = field(default_factory=dict)

    def load(self, batch: pa.RecordBatch) -> None:
        """Take in the records of one batch of `__commits`, in order."""
        for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
            if value is None:
                self.states.pop(key.decode(), None)
            else:
                self.apply(SinkState.decode(value))

    def apply(self, state: SinkState) -> None:
        """The newest state of a sink."""
        self.states[state.sink] = state

    def get(self, sink: str) -> SinkState:
        """Raises UnknownSink."""
        found = self.states.get(sink)
        if found is None:
            raise UnknownSink(f"no sink {sink!r}: nobody has opened it, or it was deleted", sink=sink)
        return found

    def all(self) -> list[SinkState]:
        """The states by name."""
        found = tuple(self.states.values())  # at once: others may change the dict meanwhile
        return sorted(found, key=lambda state: state.sink)

    def unfinished(self) -> list[SinkState]:
        """Sinks whose last decision is not in place everywhere."""
        return [state for state in self.all() if not state.is_done]

    # --- owners (D4) ----------------------------------------------------------------------------------------

    def epoch_of(self, sink: str, owner: str) -> int | None:
        """The epoch that an owner was given; None: it was given none, or the sink forgot it.

        Raises:
            SinkFenced: the owner is superseded.
        """
        state = self.states.get(sink)
        epoch = state.owners.get(owner) if state is not None else None
        if state is not None and epoch is not None and epoch < state.epoch:
            raise _fenced(state, epoch, owner)
        return epoch

    def opened(self, sink: str, owner: str, *, epoch: int, is_one_shot: bool, now_us: int) -> SinkState:
        """The state after a new owner opened the sink. Nobody is fenced by it.

        Args:
            epoch: That of a record written now; the owner's from here on.
        """
        known = self.states.get(sink)
        state = known or SinkState(sink=sink, is_one_shot=is_one_shot)
        owners = {**state.owners, owner: _above(state, epoch)}
        spare = sorted((e, o) for o, e in owners.items() if e != state.epoch and o != owner)
        for _, forgotten in spare[: max(len(owners) - OWNERS_MAX, 0)]:
            del owners[forgotten]
        return replace(state, owners=owners, is_one_shot=state.is_one_shot and is_one_shot, changed_us=now_us)

    def check_stage(self, sink: str, epoch: int) -> None:
        """Whether records may be staged under this epoch.

        Raises:
            UnknownSink: nobody has opened it.
            SinkFenced: a newer owner has committed, or nobody was given this epoch.
        """
        state = self.get(sink)
        if epoch < state.epoch or epoch not in state.owners.values():
            raise _fenced(state, epoch)

    # --- what comes next ------------------------------------------------------------------------------------

    def judge(self, sink: str, commit: CommitRequest) -> Literal["new", "repeat"]:
        """Whether a commit is a new one, or a repetition of the last decision.

        Raises:
            UnknownSink, SinkFenced, SinkForked, SinkBatchRegressed, SinkBatchesMissing, SinkRowsDiffer: nothing may be
                decided, nor dropped.
        """
        state = self.get(sink)
        if commit.epoch < state.epoch or state.owners.get(commit.owner) != commit.epoch:
            raise _fenced(state, commit.epoch, commit.owner)
        if None not in (state.checkpoint, commit.checkpoint) and state.checkpoint != commit.checkpoint:
            raise _forked(state, commit)
        last = state.last
        if commit.batch_id < state.batch_id_least or (last is not None and commit.batch_id < last.batch_id):
            raise _regressed(state, commit.batch_id)
        reached = state.batch_id_least - 1 if last is None else last.batch_id
        if commit.follows is not None and commit.follows > reached:
            raise _missing(state, commit, reached)
        if last is None or commit.batch_id > last.batch_id:
            return "new"
        if _has_other_rows(last, commit) and not commit.keeps_first:
            raise _rows_differ(state, last, commit)
        return "repeat"

    def decided(self, sink: str, commit: CommitRequest, decision: Decision) -> SinkState:
        """The state after a decision, whose owner is current from now on. Asked right where it is appended (D5).

        Raises:
            As `judge` and `check_same`; NotReady: the decision before is not in place yet (D3), or this one was made
                meanwhile.
        """
        verdict = self.judge(sink, commit)
        state = self.get(sink)
        if verdict == "repeat" or not state.is_done:
            raise NotReady(f"sink {sink!r} is finishing batch {state.last.batch_id if state.last else None}", sink=sink)
        check_same(state, decision.stages, commit.batch_id, accepts_new=commit.accepts_new)
        return replace(
            self.made_current(sink, commit, now_us=decision.decided_us),
            last=decision,
            former=former(state, decision),
            is_done=not decision.stages,
        )

    def made_current(self, sink: str, commit: CommitRequest, *, now_us: int) -> SinkState:
        """The state after an owner's commit: those before are superseded, and its checkpoint is the sink's."""
        state = self.get(sink)
        checkpoint = state.checkpoint if commit.checkpoint is None else commit.checkpoint
        return replace(state, epoch=commit.epoch, checkpoint=checkpoint, changed_us=now_us)

    def completed(self, sink: str, decision: str, *, now_us: int) -> SinkState:
        """The state after every partition has reported; as it is if that was recorded before (D3).

        It may have been, by another coordinator who has decided more since.
        """
        state = self.get(sink)
        if state.is_done or state.last is None or state.last.decision != decision:
            return state
        return replace(state, is_done=True, changed_us=now_us)

    # --- by hand, and when time is up -----------------------------------------------------------------------

    def fenced(self, sink: str, *, epoch: int, now_us: int) -> SinkState:
        """The state in which no epoch that was given so far decides.

        An unknown sink gets a state too, one that vanishes: without it nothing would rule out what
        its drivers had pinned (D7).

        Args:
            epoch: That of a record written now, and above any epoch that has to be ruled out.
        """
        state = self.states.get(sink) or SinkState(sink=sink, is_one_shot=True)
        return replace(state, epoch=_above(state, epoch), changed_us=now_us)

    def reset(self, sink: str, batch_id: int, *, epoch: int, now_us: int) -> SinkState:
        """The state after a reset: batch `batch_id` is the next one, and no epoch given so far decides.

        Raises:
            UnknownSink: nobody opened it.
            NotReady: its decision is not in place yet.
        """
        state = self.get(sink)
        self.check_done(sink)
        return SinkState(
            sink=sink,
            epoch=_above(state, epoch),
            owners=state.owners,
            batch_id_least=batch_id,
            is_one_shot=state.is_one_shot,
            changed_us=now_us,
        )

    def adopted(self, sink: str, checkpoint: str, *, now_us: int) -> SinkState:
        """The state after the sink was given to another checkpoint; what was decided stays. Raises UnknownSink."""
        return replace(self.get(sink), checkpoint=checkpoint, changed_us=now_us)

    def ended(self, sink: str, owner: str, *, epoch: int, now_us: int) -> SinkState:
        """The state after an owner ended its one-shot sink (D9); as it is, if the owner is superseded.

        A sink that nobody has opened yet gets a state, too, in which the owner has epoch 0.

        Args:
            epoch: That of a record written now.
        Raises:
            InvalidRequest: it is not for one batch.
            SinkFenced: another owner has opened it.
        """
        state = self.states.get(sink) or SinkState(sink=sink, is_one_shot=True)
        if not state.is_one_shot:
            raise InvalidRequest(
                f"sink {sink!r} is not for one batch, and stays when a run of it ends; to delete it needs sink:admin",
                sink=sink,
            )
        if state.owners.get(owner, state.epoch) < state.epoch:
            return state
        if set(state.owners) - {owner}:
            raise SinkFenced(f"sink {sink!r} is not of owner {owner!r} alone", sink=sink, epoch=state.epoch)
        owners = {owner: state.owners.get(owner, 0)}
        return replace(state, owners=owners, epoch=_above(state, epoch), changed_us=now_us)

    def is_superseded(self, sink: str, epoch: int) -> bool:
        """Whether a committed state rules out that this epoch decides any more (D7)."""
        state = self.states.get(sink)
        return state is not None and epoch < state.epoch

    def check_done(self, sink: str) -> None:
        """Raises UnknownSink; NotReady: its last decision is not in place everywhere."""
        state = self.get(sink)
        if not state.is_done:
            raise NotReady(
                f"sink {sink!r} is unfinished: batch {state.last.batch_id if state.last else None} is not in place"
                " everywhere yet",
                sink=sink,
            )

    # --- pins (D7) ------------------------------------------------------------------------------------------

    def is_open(self, pin: StagePinned) -> bool:
        """Whether a decision names the pinned stage, or may still come to.

        It may not once its epoch is superseded, or a decision for its batch was made with other stages.
        """
        state = self.states.get(pin.sink)
        if state is None or pin.epoch > state.epoch or state.names(pin.stage):
            return True
        last = -1 if state.last is None else state.last.batch_id
        return pin.epoch == state.epoch and pin.batch_id > last and pin.batch_id >= state.batch_id_least

    def is_named(self, pin: StagePinned) -> bool:
        """Whether the last decision of its sink names the pinned stage."""
        state = self.states.get(pin.sink)
        return state is not None and state.names(pin.stage)


def _above(state: SinkState, epoch: int) -> int:
    """The epoch of a record, above all that the sink knows: also those of a `__commits` that was lost."""
    return max(epoch, state.epoch + 1, *(known + 1 for known in state.owners.values()))


def _fenced(state: SinkState, epoch: int, owner: str | None = None) -> SinkFenced:
    if epoch < state.epoch:
        why = f"epoch {epoch} is superseded: {state.epoch} has committed since, or the sink was ended, reset or fenced"
    else:
        why = f"epoch {epoch} was not given to {'this owner' if owner is not None else 'any owner'}: open the sink"
    return SinkFenced(f"sink {state.sink!r}: {why}", sink=state.sink, epoch=state.epoch, asked=epoch)


def _forked(state: SinkState, commit: CommitRequest) -> SinkForked:
    return SinkForked(
        f"sink {state.sink!r} belongs to checkpoint {state.checkpoint}, this commit comes from {commit.checkpoint}:"
        " two queries would overwrite each other's batches. Give this one its own sink id; or adopt the sink, if its"
        " checkpoint was moved; or reset it, if another query takes its place",
        sink=state.sink,
        recorded=state.checkpoint,
        asked=commit.checkpoint,
        last_batch_id=state.last.batch_id if state.last else None,
    )


def _regressed(state: SinkState, batch_id: int) -> SinkBatchRegressed:
    if batch_id < state.batch_id_least:
        return SinkBatchRegressed(
            f"sink {state.sink!r} was reset to begin with batch {state.batch_id_least}, this is {batch_id}",
            sink=state.sink,
            batch_id=batch_id,
            last_batch_id=state.batch_id_least - 1,
        )
    assert state.last is not None
    return SinkBatchRegressed(
        f"sink {state.sink!r} has decided batch {state.last.batch_id}, this is {batch_id}: the driver's checkpoint was"
        " rolled back, and its rows may be in the stream already. Use another sink id, or reset the sink to"
        f" batch {batch_id} if they are to be written again",
        sink=state.sink,
        batch_id=batch_id,
        last_batch_id=state.last.batch_id,
    )


def _missing(state: SinkState, commit: CommitRequest, reached: int) -> SinkBatchesMissing:
    has = f"batch {reached} as its last" if state.last is not None else "no batch"
    return SinkBatchesMissing(
        f"sink {state.sink!r} has {has}, and this commit of batch {commit.batch_id} follows batch {commit.follows}: the"
        " broker's data was restored from an older copy, or the sink deleted, or it is another sink than before. Rows"
        f" written after batch {reached} may be missing. Reset the sink to batch {commit.batch_id} to go on",
        sink=state.sink,
        batch_id=commit.batch_id,
        last_batch_id=reached,
    )


def _has_other_rows(last: Decision, commit: CommitRequest) -> bool:
    """Whether a repetition is not what was decided. Digests of different kinds tell nothing."""
    (kind, _, digest), (last_kind, _, last_digest) = commit.digest.rpartition(":"), last.digest.rpartition(":")
    is_comparable = kind == last_kind and bool(digest) and bool(last_digest)
    return commit.rows != last.rows or (is_comparable and digest != last_digest)


def _rows_differ(state: SinkState, last: Decision, commit: CommitRequest) -> SinkRowsDiffer:
    if commit.rows < last.rows:
        what = (
            f"with {last.rows} rows, this commit of it has {commit.rows}: records that the job reads are gone since"
            " (retention, a trim, compaction), and what was decided is complete; or the driver planned the batch anew,"
            " and its"
        )
    elif commit.rows != last.rows:
        what = f"with {last.rows} rows, this commit of it has {commit.rows}: the driver planned the batch anew, so its"
    else:
        what = (
            f"with {last.rows} rows, this commit of it has as many, but others (digest {commit.digest}, decided"
            f" {last.digest}): either the rows come out otherwise each time (chance, a clock, an order that matters),"
            " or the driver planned the batch anew, and its"
        )
    return SinkRowsDiffer(
        f"sink {state.sink!r} has decided batch {last.batch_id} {what} checkpoint may have been rolled back. Reset the"
        f" sink to batch {last.batch_id} if these rows are to be written too, or commit with"
        " on_repeat_with_other_rows=keep_first to go on with what was decided first",
        sink=state.sink,
        batch_id=last.batch_id,
        rows=commit.rows,
        decided_rows=last.rows,
        digest=commit.digest,
        decided_digest=last.digest,
    )


def check_rows(stages: Sequence[StageRef], rows: int) -> None:
    """Whether the stages hold as many rows together as the driver counted.

    Raises:
        InvalidRequest: they do not; nothing was decided.
    """
    staged = sum(ref.rows for ref in stages)
    if rows != staged:
        raise InvalidRequest(f"the stages hold {staged} rows, the commit says {rows}", rows=rows, staged=staged)
