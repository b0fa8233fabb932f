"""The coordinator of all sinks: decides in `__commits`, and sees to it that what was decided is finished.

    judge ─► pin everywhere ─► judge again, append the decision ─► finish everywhere ─► append `done` ─► answer

Each arrow stands for what is on disk before the next step begins. After a crash at any of them the decision is
either not there, and the same commit may be sent again, or it is there, and is finished by `recover`, by the next
`sweep`, or by the commit that is repeated. Calls block; one sink's calls wait for each other, but for `open`.

C1  Nothing is finished before its decision is committed; nothing is answered before `done` is.
C3  An idle driver's pinned stages are let go only after every epoch given so far was fenced in `__commits`.
C6  A stream is gone only if the catalog says so. One that is not open here is waited for.

The ledger on the disk: `commits_log.C2`, `commits_log.C4`, `commits_log.C5`.
In the background: broker.node.sinks.rounds.
Protocol and states: docs/explain/sinks.md.
Rules: broker.sinks.ledger (D), broker.sinks.stages (T), broker.node.sinks.stages (G).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from broker.api.errors import (
    InvalidRequest,
    LiftlogError,
    NotReady,
    SinkFenced,
    UnknownPartition,
    UnknownStream,
    partly,
)
from broker.common.elapsed import Tenure, elapsed_us
from broker.node.partitions.partition import Partition
from broker.node.sinks.commits_log import CommitsLog, Removed
from broker.node.sinks.keyed_locks import KeyedLocks
from broker.node.sinks.stages import Staged, StageLimits
from broker.node.sinks.stores import Stages, Stores
from broker.sinks.destinations import destination_new, destinations
from broker.sinks.ledger import CommitRequest, CommitResult, Ledger, NamedStage, OpenResult, check_rows
from broker.sinks.notes import GroupFinished
from broker.sinks.silence import Holding, Owner, Signs, Silence
from broker.sinks.state import Decision, SinkState, StageRef, decision_id

log = logging.getLogger(__name__)

A = TypeVar("A")
B = TypeVar("B")

LOOK_S: Final = 4.0
"""Whoever lists sinks waits no longer for brokers that do not answer."""
RENEW_MS: Final = 10_000
RENEWALS: Final = 6
"""An owner says so often within `sinks.owner_silent_ms` that it lives."""
CHECKPOINT: Final = "checkpoint"
"""The attribute that tells whose sink it is: another one is a fork."""


def renew_ms(limits: StageLimits) -> int:
    """So often an owner shall say that it lives."""
    return min(RENEW_MS, limits.owner_silent_ms // RENEWALS)


class Sinks:
    """The coordinator. Thread-safe; calls block.

    Args:
        commits: The partition of `__commits`.
        clock: Microseconds since 1970 UTC.
        executor: Works on several partitions at once; None: one after the other.
        counts: Calls by their outcome, for /metrics; goes on counting where it is.
    """

    def __init__(
        self,
        commits: Partition,
        stores: Stores,
        *,
        clock: Callable[[], int],
        elapsed: Callable[[], int] = elapsed_us,
        executor: Executor | None = None,
        limits: StageLimits | None = None,
        counts: Counter[str] | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.limits = limits or StageLimits()
        self.commits = CommitsLog(commits, clock)
        self.stores = stores
        self._waits = commits.replica.waits
        self.locks = KeyedLocks(self._waits)
        self.clock = clock
        self._tenure = Tenure(commits.leader_epoch, elapsed)
        self._signs_lock = threading.Lock()
        self._signs = Signs(self.limits.owner_silent_ms * 1_000, elapsed, commits.leader_epoch)
        self._executor = executor

    def is_past(self, since_us: int, limit_us: int) -> bool:
        """Whether a time limit is over, by the clock and by how long this broker coordinates."""
        lasts = self._tenure.lasts(self.commits.leader_epoch, limit_us)
        return lasts and since_us + limit_us <= self.clock()

    # --- what drivers ask -----------------------------------------------------------------------------------

    def open(self, sink: str, owner: str, *, is_one_shot: bool = False) -> OpenResult:
        """Give the owner its epoch: the same one however often it asks. Nobody is fenced before it commits.

        Args:
            owner: Names the run, to all of its tasks the same and to no other run.
            is_one_shot: The sink is for one batch, and vanishes with it. One that was made without stays.
        Raises:
            SinkFenced: the owner is superseded.
        """
        epoch = self._known().epoch_of(sink, owner)
        if epoch is None:

            def change(ledger: Ledger, at: int) -> SinkState:
                if ledger.epoch_of(sink, owner) is not None:
                    return ledger.get(sink)
                return ledger.opened(sink, owner, epoch=at, is_one_shot=is_one_shot, now_us=self.clock())

            state = self.commits.state(change)
            epoch = state.owners[owner]
            self.counts["opened"] += 1
            log.info("sink.opened sink=%s owner=%s epoch=%d", sink, owner, epoch)
        self._heard(sink, epoch)
        return OpenResult(state=self.describe(sink), owner=owner, epoch=epoch)

    def renew(self, sink: str, owner: str) -> int:
        """An owner says that it lives; returns when it shall say so again, in ms.

        Raises:
            UnknownSink: nobody has opened it. SinkFenced: the owner is superseded, or has to open anew.
        """
        state, epoch = self.describe(sink), self._known().epoch_of(sink, owner)
        if epoch is None:
            raise SinkFenced(f"sink {sink!r}: owner {owner!r} has not opened it", sink=sink, epoch=state.epoch)
        self._heard(sink, epoch, renews=True)
        return renew_ms(self.limits)

    def silences(self, owners: Sequence[Owner]) -> list[Silence]:
        """How long each owner was not heard of."""
        states = self._known().states
        with self._signs_lock:
            return self._signs.look(self.commits.leader_epoch, states, owners)

    def holdings(self) -> dict[Owner, tuple[Holding, Silence]]:
        """What is staged in all partitions that answer within `LOOK_S`, by owner."""
        found: dict[Owner, Holding] = {}
        until_s = self._waits.now_s() + LOOK_S
        for store in self.stores.stores():  # one after the other: a commit needs the executor more than a list does
            if self._waits.now_s() > until_s:
                break
            with suppress(LiftlogError):  # it is led by nobody now, or by a broker of an older release
                for each in store.holdings():
                    owner = each.sink, each.epoch
                    found[owner] = found[owner] + each if owner in found else each
        silences = self.silences(list(found))
        return {owner: (held, silence) for (owner, held), silence in zip(found.items(), silences, strict=True)}

    def described(self) -> tuple[list[SinkState], dict[Owner, tuple[Holding, Silence]]]:
        """All sinks by name, and what is staged for each owner."""
        return self.states(), self.holdings()

    def forget_signs(self) -> None:
        """Forget owners that commit nothing any more; note the time, if this broker has just begun to coordinate."""
        states = self.states()
        with self._signs_lock:
            self._signs.keep(self.commits.leader_epoch, states)

    def describe(self, sink: str) -> SinkState:
        """Raises UnknownSink."""
        return self._known().get(sink)

    def states(self) -> list[SinkState]:
        """All sinks by name."""
        return self._known().all()

    def check_stage(self, sink: str, epoch: int) -> None:
        """Whether records may be staged under this epoch. Raises UnknownSink, SinkFenced."""
        self._known().check_stage(sink, epoch)
        self._heard(sink, epoch)

    def commit(
        self, sink: str, asked: CommitRequest, stages: Sequence[NamedStage], attributes: Mapping[str, str]
    ) -> CommitResult:
        """Decide a batch and finish it, or finish the decision that was made for it before.

        Args:
            asked: Its checkpoint is that of the attributes.
        Raises:
            UnknownSink, SinkFenced, SinkForked, SinkBatchRegressed, SinkBatchesMissing, SinkRowsDiffer,
                SinkDestinationNew, InvalidRequest: nothing was decided.
            StageLost: nothing was decided; the batch may be staged again, under new ids, and committed.
            StorageFailed, DiskFull and others that are Retryable: not known; the same commit tells.
        """
        asked = replace(asked, checkpoint=attributes.get(CHECKPOINT))
        if len({named.stage for named in stages}) < len(stages):
            raise InvalidRequest("a stage is named twice")
        with self.locks.hold(sink):
            verdict = self._known().judge(sink, asked)
            self._heard(sink, asked.epoch)
            state = self.complete(sink)
            self._check_destinations(state, asked, stages)
            if verdict == "repeat":
                return self._repeat(state, asked, stages)
            refs = self.pin(sink, asked, stages)
            self.decide(sink, asked, refs, attributes=attributes)
            if asked.epoch > state.epoch:
                self._supersede(sink, asked.epoch)
            state = self.complete(sink)
            self.counts["committed"] += 1
            return CommitResult(state=state, is_new=True)

    def abort(self, sink: str, stages: Sequence[NamedStage]) -> int:
        """Drop stages that are not pinned; after a decision this does nothing. Returns how many went."""
        return sum(
            store.abort((stage for stage, _ in named), sink=sink) for store, named in self._by_store(stages).items()
        )

    def end(self, sink: str, owner: str) -> None:
        """Supersede the owner that alone has opened a one-shot sink, or would have, and drop what is staged for it.

        What was decided stands. What cannot be dropped now, and what is on its way, goes with the next sweep.

        Raises:
            InvalidRequest: it is not for one batch. SinkFenced: others have opened it.
        """
        with self.locks.hold(sink):
            self.commits.state(lambda ledger, at: ledger.ended(sink, owner, epoch=at, now_us=self.clock()))
            self._each(partial(self._drop_closed, sink), self.stores.stores())
        log.info("sink.ended sink=%s owner=%s", sink, owner)

    # --- what people ask ------------------------------------------------------------------------------------

    def reset(self, sink: str, batch_id: int) -> SinkState:
        """Let the sink go on with `batch_id`, whatever was decided. Its owners are superseded."""
        with self.locks.hold(sink):
            self.complete(sink)
            state = self.commits.state(lambda ledger, at: ledger.reset(sink, batch_id, epoch=at, now_us=self.clock()))
        log.warning("sink.reset sink=%s batch_id=%d epoch=%d", sink, batch_id, state.epoch)
        return state

    def adopt(self, sink: str, checkpoint: str) -> SinkState:
        """Give the sink to another checkpoint: it was moved. Its decisions stay, and count."""
        with self.locks.hold(sink):
            state = self.commits.state(lambda ledger, _: ledger.adopted(sink, checkpoint, now_us=self.clock()))
        log.warning("sink.adopted sink=%s checkpoint=%s", sink, checkpoint)
        return state

    def delete(self, sink: str) -> None:
        """Forget the sink, and drop what is staged for it. Records that it committed stay.

        Raises:
            UnknownSink: nobody opened it.
            NotReady, or why not: its last decision cannot be finished.
        """
        with self.locks.hold(sink):
            self.complete(sink)
            self.remove(sink)
        self.counts["deleted"] += 1
        log.warning("sink.deleted sink=%s", sink)

    # --- the steps, for those who hold the sink's lock --------------------------------------------------------

    def pin(self, sink: str, asked: CommitRequest, stages: Sequence[NamedStage]) -> tuple[StageRef, ...]:
        """Keep the stages everywhere for this commit."""
        pinned = self._each(
            lambda item: item[0].pin(item[1], sink=sink, epoch=asked.epoch, batch_id=asked.batch_id),
            self._by_store(stages).items(),
        )
        refs = tuple(ref for refs in pinned for ref in refs)
        check_rows(refs, asked.rows)
        return refs

    def decide(
        self,
        sink: str,
        asked: CommitRequest,
        refs: tuple[StageRef, ...],
        attributes: Mapping[str, str] | None = None,
    ) -> SinkState:
        """Judge the commit again and append its decision, with nothing in between (`ledger.D5`)."""
        now_us, batch_id = self.clock(), asked.batch_id
        decision = Decision(
            batch_id=batch_id,
            decision=decision_id(sink, epoch=asked.epoch, batch_id=batch_id, stages=refs, decided_us=now_us),
            owner=asked.owner,
            epoch=asked.epoch,
            stages=refs,
            rows=asked.rows,
            digest=asked.digest,
            attributes=dict(attributes or {}),
            decided_us=now_us,
        )
        return self.commits.state(lambda ledger, _: ledger.decided(sink, asked, decision))

    def complete(self, sink: str) -> SinkState:
        """Finish the last decision everywhere and record that. Under the sink's lock."""
        state = self._known().get(sink)
        last = state.last
        if state.is_done or last is None:
            return state
        by_partition: dict[tuple[str, str, int], list[StageRef]] = {}
        for ref in last.stages:
            by_partition.setdefault(ref.place, []).append(ref)
        self._each(lambda refs: self._finish(sink, last.decision, refs), by_partition.values())
        state = self.commits.state(lambda ledger, _: ledger.completed(sink, last.decision, now_us=self.clock()))
        for refs in by_partition.values():
            self._afterwards(self._forget, refs[0], last.decision)
        return state

    def staged(self, sink: str) -> list[tuple[Stages, Staged]]:
        """Where there are stages of a sink, and which."""
        found = []
        for store in self.stores.stores():
            try:
                found.append((store, store.staged(sink)))
            except UnknownStream:  # deleted meanwhile, and its stages with it
                continue
        return [(store, staged) for store, staged in found if staged.stages]

    def remove(self, sink: str, *, unless_opened_since: SinkState | None = None) -> None:
        """Drop what is staged for a sink, then the sink. Under the sink's lock.

        Pinned stages go only after every epoch was fenced, on the disk (C3). Stages that cannot be dropped now go with
        their lease.

        Raises:
            NotReady: it is unfinished; or another owner has opened it since the given state.
            LiftlogError: with the field `sent`: some of that is done.
        """
        self._known().check_done(sink)  # before anything is dropped
        staged = self.staged(sink)
        with partly(bool(staged)):
            self._remove(sink, staged, unless_opened_since)

    def _remove(
        self, sink: str, staged: Sequence[tuple[Stages, Staged]], unless_opened_since: SinkState | None
    ) -> None:
        pins = [stage.pin.epoch for _, found in staged for stage in found.stages if stage.pin is not None]
        if pins:
            least = max(pins) + 1
            self.commits.write(lambda ledger, at: ledger.fenced(sink, epoch=max(at, least), now_us=self.clock()))
        for store, found in staged:
            judged = {stage.stage: stage.pin.epoch if stage.pin is not None else 0 for stage in found.stages}
            self._drop(store, judged, sink, leader_epoch=found.leader_epoch, why="deleted with its sink")

        def removed(ledger: Ledger, _: int) -> Removed:
            ledger.check_done(sink)
            if unless_opened_since is not None and ledger.get(sink).owners != unless_opened_since.owners:
                raise NotReady(f"sink {sink!r} was opened meanwhile", sink=sink)
            return Removed(sink)

        self.commits.write(removed)

    # --- helpers --------------------------------------------------------------------------------------------

    def _repeat(self, state: SinkState, asked: CommitRequest, stages: Sequence[NamedStage]) -> CommitResult:
        """A repeated commit: its owner is current from now on; its stages go, unless the decision names them."""
        last = state.last
        assert last is not None
        self.counts["already_done"] += 1
        if (asked.digest, asked.rows) != (last.digest, last.rows):
            self.counts["repeated_differently"] += 1
            log.warning(
                "sink.repeated_differently sink=%s batch_id=%d rows=%d decided_rows=%d digest=%s decided_digest=%s",
                state.sink,
                last.batch_id,
                asked.rows,
                last.rows,
                asked.digest,
                last.digest,
            )
        try:
            for store, named in self._by_store([s for s in stages if not state.names(s.stage)]).items():
                judged = dict.fromkeys((stage for stage, _ in named), asked.epoch)
                self._drop(store, judged, state.sink, leader_epoch=store.judged_in, why="superseded")
        except LiftlogError as error:  # they expire
            log.warning("sink.drop_failed sink=%s error=%s", state.sink, error)
        if asked.epoch > state.epoch:
            state = self.commits.state(lambda ledger, _: ledger.made_current(state.sink, asked, now_us=self.clock()))
            self._supersede(state.sink, asked.epoch)
        return CommitResult(state=state, is_new=False)

    def _drop(self, store: Stages, judged: Mapping[str, int], sink: str, *, leader_epoch: int | None, why: str) -> None:
        try:
            store.drop(judged, sink=sink, leader_epoch=leader_epoch, why=why)
        except LiftlogError as error:  # they expire
            if not store.removed:
                log.warning("sink.drop_failed partition=%s sink=%s error=%s", store.place, sink, error)

    def _supersede(self, sink: str, epoch: int) -> None:
        """Drop what older owners staged: it cannot be committed any more."""
        for store in self.stores.stores():
            self._afterwards(self.supersede_in, store, sink, epoch)

    def supersede_in(self, store: Stages, sink: str, epoch: int) -> None:
        """Drop what owners below this epoch staged in a partition, unless a commit has pinned it."""
        try:
            count = store.supersede(sink, epoch)
        except LiftlogError as error:  # they expire
            if not store.removed:
                log.warning("sink.drop_failed partition=%s sink=%s error=%s", store.place, sink, error)
            return
        if count:
            log.info("sink.stages_dropped partition=%s stages=%d", store.place, count)

    def _drop_closed(self, sink: str, store: Stages) -> None:
        """Drop the stages of a sink that no decision can name any more, with a pin or without."""
        try:
            found, ledger = store.staged(sink), self._known()  # in this order: it knows all that was decided before
        except LiftlogError as error:
            if not store.removed:
                log.warning("sink.drop_failed partition=%s sink=%s error=%s", store.place, sink, error)
            return
        judged: dict[str, int] = {}
        for stage in found.stages:
            pin = stage.pin
            if ledger.is_superseded(sink, stage.epoch) if pin is None else not ledger.is_open(pin):
                judged[stage.stage] = 0 if pin is None else pin.epoch
        if judged:
            self._drop(store, judged, sink, leader_epoch=found.leader_epoch, why="ended with its sink")

    def _forget(self, ref: StageRef, decision: str) -> None:
        """Let go of what is committed. The answer does not wait for it: freeing 100 MB of files takes 30 ms."""
        try:
            store = self._store_of(ref)
            if store is not None:
                store.forget(decision)
        except LiftlogError as error:  # `sweep` does it
            log.warning("sink.forget_failed partition=%s/%d error=%s", ref.stream, ref.partition, error)

    def _finish(self, sink: str, decision: str, refs: Sequence[StageRef]) -> GroupFinished | None:
        try:
            store = self._store_of(refs[0])
            if store is not None:
                return store.finish(decision, sink, refs)
        except (UnknownStream, UnknownPartition) as error:
            if not self._is_gone(refs[0]):
                raise NotReady(f"sink {sink!r} is unfinished: {error}", sink=sink) from error
        log.warning("sink.stream_gone sink=%s stream=%s decision=%s", sink, refs[0].stream, decision)
        return None

    def _store_of(self, ref: StageRef) -> Stages | None:
        """None: the stream was deleted, and the rows with it (C6)."""
        if self._is_gone(ref):
            return None
        store = self.stores.store(ref.stream, ref.partition)
        if store.incarnation != ref.incarnation:
            if self._is_gone(ref):
                return None
            raise UnknownPartition(
                f"{ref.stream}/{ref.partition}: incarnation {ref.incarnation} is not open here",
                stream=ref.stream,
                partition=ref.partition,
            )
        return store

    def _check_destinations(self, state: SinkState, asked: CommitRequest, stages: Sequence[NamedStage]) -> None:
        """Refuse streams made anew before their stages are looked for, and where a batch comes again with other stages.

        The last decision's own stages are those of a commit whose answer was lost: it is answered as it was.
        """
        known = destinations(state)
        for stream in sorted({named.stream for named in stages if not state.names(named.stage)}):
            if stream in known and self.stores.is_gone(stream, known[stream]):
                if not asked.accepts_new:
                    raise destination_new(state, stream, asked.batch_id)
                text = "sink.destination_accepted sink=%s stream=%s batch_id=%d"
                log.warning(text, state.sink, stream, asked.batch_id)

    def _is_gone(self, ref: StageRef) -> bool:
        return self.stores.is_gone(ref.stream, ref.incarnation)

    def _by_store(self, stages: Iterable[NamedStage]) -> dict[Stages, list[tuple[str, int | None]]]:
        found: dict[tuple[str, int], list[tuple[str, int | None]]] = {}
        for named in stages:
            found.setdefault((named.stream, named.partition), []).append((named.stage, named.parts))
        return {self.stores.store(*place): named for place, named in found.items()}

    def _each(self, act: Callable[[A], B], items: Iterable[A]) -> list[B]:
        """Run `act` for every item, at once where there is an executor. All of them end before an error is raised."""
        if self._executor is None:
            return [act(item) for item in items]
        futures = [self._executor.submit(act, item) for item in items]
        for future in futures:
            self._waits.ended(future)
        for future in futures:
            if (error := future.exception()) is not None:
                raise error
        return [future.result() for future in futures]

    def _afterwards(self, act: Callable[..., None], *args: Any) -> None:
        """Run what the answer does not wait for."""
        if self._executor is None:
            act(*args)
        else:
            self._executor.submit(act, *args)

    def _heard(self, sink: str, epoch: int, *, renews: bool = False) -> None:
        with self._signs_lock:
            self._signs.heard(self.commits.leader_epoch, (sink, epoch), renews=renews)

    def _known(self) -> Ledger:
        return self.commits.ledger()
