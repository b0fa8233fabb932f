"""The coordinator of all sinks: decides in `__commits`, and sees to it that what was decided is finished.

    judge ─► pin everywhere ─► judge again, append the decision ─► finish everywhere ─► append `done` ─► answer

Each arrow stands for what is on disk before the next step begins. After a crash at any of them the decision is
either not there, and the same commit may be sent again, or it is there, and is finished by `recover`, by the next
`sweep`, or by the commit that is repeated. Calls block; one sink's calls wait for each other.

C1  Nothing is finished before its decision is committed; nothing is answered before `done` is.
C2  After a failed append to `__commits` the ledger is read anew: the record may be there or not.
C3  An idle driver's pinned stages are let go only after its epoch was fenced in `__commits`.

Protocol and states: docs/sinks.md. Rules: broker.sinks.ledger (D), broker.sinks.stages (T), broker.runtime.stages (G).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final, Protocol, TypeVar

from broker.api.batch import decode_batch
from broker.api.errors import InvalidRequest, LiftlogError, UnknownPartition, UnknownStream
from broker.runtime.partition import Partition
from broker.runtime.stages import StageStore, append_durable
from broker.sinks.ledger import (
    Committed,
    Decision,
    Ledger,
    NamedStage,
    SinkState,
    StageRef,
    check_rows,
    decision_id,
    state_rows,
)
from broker.sinks.notes import GroupFinished, StagePinned
from broker.storage.rows import RowBatch

log = logging.getLogger(__name__)

A = TypeVar("A")
B = TypeVar("B")

REWRITE_BYTES: Final = 32 << 20
WRITES_PER_LOOK: Final = 256


class Stores(Protocol):
    """The stages of every partition."""

    def store(self, stream: str, partition: int) -> StageStore:
        """Raises UnknownStream, UnknownPartition, or why the stream is offline."""

    def stores(self) -> Sequence[StageStore]:
        """Those with something staged."""


class Sinks:
    """The coordinator. Thread-safe; calls block.

    Args:
        commits: The partition of `__commits`.
        clock: Microseconds since 1970 UTC.
        executor: Works on several partitions at once; None: one after the other.
    """

    def __init__(
        self, commits: Partition, stores: Stores, *, clock: Callable[[], int], executor: Executor | None = None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._commits = commits
        self._stores = stores
        self._clock = clock
        self._executor = executor
        self._ledger = Ledger()
        self._is_known = False  # C2
        self._writes = 0
        self._lock = threading.Lock()
        self._sink_locks: dict[str, threading.Lock] = {}

    # --- what drivers ask -----------------------------------------------------------------------------------

    def open(self, sink: str) -> SinkState:
        """Give the sink to a new driver: its epoch fences those before."""
        state = self._write(lambda: self._ledger.opened(sink, now_us=self._clock()))
        self.counts["opened"] += 1
        log.info("sink.opened sink=%s epoch=%d", sink, state.epoch)
        return state

    def describe(self, sink: str) -> SinkState:
        """Raises UnknownSink."""
        return self._known().get(sink)

    def states(self) -> list[SinkState]:
        """All sinks by name."""
        return [state for _, state in sorted(self._known().states.items())]

    def commit(
        self,
        sink: str,
        *,
        epoch: int,
        batch_id: int,
        stages: Sequence[NamedStage],
        rows: int | None = None,
        digest: str = "",
        attributes: Mapping[str, str] | None = None,
    ) -> Committed:
        """Decide a batch and finish it, or finish the decision that was made for it before.

        Raises:
            UnknownSink, SinkFenced, SinkForked, SinkBatchRegressed, InvalidRequest: nothing was decided.
            StageLost: nothing was decided; the batch may be staged again, under new ids, and committed.
            StorageFailed, DiskFull and others that are Retryable: not known; the same commit tells.
        """
        given = dict(attributes or {})
        if len({named.stage for named in stages}) < len(stages):
            raise InvalidRequest("a stage is named twice")
        with self._lock_of(sink):
            verdict = self._known().judge(sink, epoch=epoch, batch_id=batch_id, attributes=given)
            state = self._complete(sink)
            if verdict == "repeat":
                self._drop_new(state, stages, rows=rows, digest=digest)
                return Committed(state=state, is_new=False)
            by_store = self._by_store(stages)
            pinned = self._each(
                lambda item: item[0].pin(item[1], sink=sink, epoch=epoch, batch_id=batch_id), by_store.items()
            )
            refs = tuple(ref for refs in pinned for ref in refs)
            counted = check_rows(refs, rows)
            now_us = self._clock()
            decision = Decision(
                batch_id=batch_id,
                decision=decision_id(sink, epoch=epoch, batch_id=batch_id, stages=refs, decided_us=now_us),
                epoch=epoch,
                stages=refs,
                rows=counted,
                digest=digest,
                attributes=given,
                decided_us=now_us,
            )
            self._write(lambda: self._ledger.decided(sink, decision))
            state = self._complete(sink)
            self.counts["committed"] += 1
            return Committed(state=state, is_new=True)

    def abort(self, sink: str, stages: Sequence[NamedStage]) -> int:
        """Drop stages that are not pinned; after a decision this does nothing. Returns how many went."""
        dropped = 0
        for store, named in self._by_store(stages).items():
            dropped += store.drop((stage for stage, _ in named), sink=sink, why="aborted")
        return dropped

    def reset(self, sink: str, batch_id: int) -> SinkState:
        """Let the sink go on with `batch_id`, whatever was decided. Drivers must open it anew."""
        with self._lock_of(sink):
            self._complete(sink)
            state = self._write(lambda: self._ledger.reset(sink, batch_id, now_us=self._clock()))
        log.warning("sink.reset sink=%s batch_id=%d epoch=%d", sink, batch_id, state.epoch)
        return state

    # --- in the background ----------------------------------------------------------------------------------

    def recover(self) -> None:
        """Finish what was decided before a crash. What cannot be finished now is left to `sweep`."""
        for state in self._known().unfinished():
            self._try_to_complete(state.sink)

    def sweep(self) -> None:
        """Finish what is unfinished; let go of stages that nobody needs."""
        self.recover()
        for store in self._stores.stores():
            try:
                stale = store.sweep(is_open=self._is_open, is_asked_for=self._is_asked)
            except LiftlogError as error:
                if not store.main.removed:  # deleted meanwhile, and its stages with it: no fault
                    log.error("sink.sweep_failed partition=%s error=%s", store.main, error)
                continue
            for sink in sorted({pin.sink for pin in stale}):
                self._fence_idle(sink, [pin for pin in stale if pin.sink == sink])

    def _fence_idle(self, sink: str, pins: Sequence[StagePinned]) -> None:
        """C3: its driver pinned stages, and neither decided nor came back within the lease."""
        lock = self._lock_of(sink)
        if not lock.acquire(blocking=False):
            return  # it is at work
        try:
            if self._known().get(sink).is_done and any(self._is_open(pin) for pin in pins):
                state = self._write(lambda: self._ledger.opened(sink, now_us=self._clock()))
                log.warning("sink.fenced_idle sink=%s epoch=%d", sink, state.epoch)
        finally:
            lock.release()

    def _try_to_complete(self, sink: str) -> None:
        try:
            with self._lock_of(sink):
                self._complete(sink)
        except LiftlogError as error:
            log.error("sink.unfinished sink=%s error=%s", sink, error)

    # --- helpers --------------------------------------------------------------------------------------------

    def _complete(self, sink: str) -> SinkState:
        """Finish the last decision everywhere and record that. Under the sink's lock."""
        state = self._known().get(sink)
        last = state.last
        if state.is_done or last is None:
            return state
        by_partition: dict[tuple[str, str, int], list[StageRef]] = {}
        for ref in last.stages:
            by_partition.setdefault((ref.stream, ref.incarnation, ref.partition), []).append(ref)
        self._each(lambda refs: self._finish(sink, last.decision, refs), by_partition.values())
        state = self._write(lambda: self._ledger.completed(sink, last.decision, now_us=self._clock()))
        for refs in by_partition.values():
            store = self._store_of(refs[0])
            if store is not None and self._executor is not None:
                self._executor.submit(self._forget, store, last.decision)
            elif store is not None:
                self._forget(store, last.decision)
        return state

    def _forget(self, store: StageStore, decision: str) -> None:
        """Let go of what is committed. The answer does not wait for it: freeing 100 MB of files takes 30 ms."""
        try:
            store.forget(decision)
        except LiftlogError as error:  # `sweep` does it
            log.warning("sink.forget_failed partition=%s error=%s", store.main, error)

    def _finish(self, sink: str, decision: str, refs: Sequence[StageRef]) -> GroupFinished | None:
        store = self._store_of(refs[0])
        try:
            if store is not None:
                return store.finish(decision, sink, refs)
        except UnknownStream:
            pass
        log.warning("sink.stream_gone sink=%s stream=%s decision=%s", sink, refs[0].stream, decision)
        return None

    def _store_of(self, ref: StageRef) -> StageStore | None:
        """None: the stream was deleted, and the rows with it."""
        try:
            store = self._stores.store(ref.stream, ref.partition)
        except (UnknownStream, UnknownPartition):
            return None
        return store if store.main.incarnation == ref.incarnation else None

    def _drop_new(self, state: SinkState, stages: Sequence[NamedStage], *, rows: int | None, digest: str) -> None:
        """A repeated commit: its stages go, unless the decision names them."""
        last = state.last
        assert last is not None
        self.counts["already_done"] += 1
        if digest != last.digest or rows not in (None, last.rows):
            self.counts["repeated_differently"] += 1
            log.warning(
                "sink.repeated_differently sink=%s batch_id=%d rows=%s decided_rows=%d digest=%s decided_digest=%s",
                state.sink,
                last.batch_id,
                rows,
                last.rows,
                digest,
                last.digest,
            )
        named = {ref.stage for ref in last.stages}
        try:
            for store, given in self._by_store([s for s in stages if s.stage not in named]).items():
                store.drop((stage for stage, _ in given), sink=state.sink, why="superseded", pinned=True)
        except LiftlogError as error:  # they expire
            log.warning("sink.drop_failed sink=%s error=%s", state.sink, error)

    def _by_store(self, stages: Iterable[NamedStage]) -> dict[StageStore, list[tuple[str, int | None]]]:
        found: dict[StageStore, list[tuple[str, int | None]]] = {}
        for named in stages:
            found.setdefault(self._stores.store(named.stream, named.partition), []).append((named.stage, named.parts))
        return found

    def _each(self, act: Callable[[A], B], items: Iterable[A]) -> list[B]:
        """Run `act` for every item, at once where there is an executor. All of them end before an error is raised."""
        if self._executor is None:
            return [act(item) for item in items]
        futures = [self._executor.submit(act, item) for item in items]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def _is_open(self, pin: StagePinned) -> bool:
        return self._known().is_open(pin)

    def _is_asked(self, decision: str) -> bool:
        return any(s.last is not None and s.last.decision == decision for s in self._known().unfinished())

    def _lock_of(self, sink: str) -> threading.Lock:
        with self._lock:
            return self._sink_locks.setdefault(sink, threading.Lock())

    def _known(self) -> Ledger:
        with self._lock:
            return self._read()

    def _read(self) -> Ledger:
        """The ledger, read anew where it cannot be trusted (C2). Under the lock."""
        if not self._is_known:
            self._commits.settle()
            ledger = Ledger()
            for message in self._commits.log.batches(self._commits.log.log_start_offset):
                ledger.load(decode_batch(message))
            self._ledger, self._is_known = ledger, True
        return self._ledger

    def _write(self, change: Callable[[], SinkState]) -> SinkState:
        """Append what `change` makes of the ledger, which is asked with nothing in between (D5); durable on return."""
        with self._lock:
            self._read()
            state = change()
            self._append([state])
            self._ledger.apply(state)
            self._writes += 1
            if self._writes % WRITES_PER_LOOK == 0 and self._commits.log.byte_count > REWRITE_BYTES:
                self._rewrite()
            return state

    def _append(self, states: Sequence[SinkState]) -> int:
        self._is_known = False
        result = append_durable(self._commits, [RowBatch(state_rows(states, timestamp_us=self._clock()))])
        self._is_known = True
        return result.first_offset

    def _rewrite(self) -> None:
        """Every state once more, then let go of all before: each record is a whole state."""
        first = self._append([state for _, state in sorted(self._ledger.states.items())])
        self._commits.log.trim(first)
