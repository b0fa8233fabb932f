"""Background work for sinks, at the start and at every round of the cleaner.

    recover    finish what was decided before a crash
    sweep      finish; drop stages that expired or that no decision can name any more, also those that a broker took
               when it did not know that yet (`service.K6`); fence drivers
               that pinned and never came back; forget one-shot sinks that are over

A partition gives its pins, the ledger judges them, the partition drops what was judged: three steps
with nothing held in between, as they will be between brokers. So each drop names what was judged
(`stages.G5`), and an unknown sink or a newer epoch proves nothing (`ledger.D7`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from broker.api.errors import DiskFull, LiftlogError, NotReady, Retryable, StorageFailed, UnknownStream
from broker.node.sinks.coordinator import Sinks
from broker.node.sinks.stores import Stages
from broker.sinks.notes import StagePinned
from broker.sinks.state import SinkState

log = logging.getLogger(__name__)


class SinkRounds:
    """See the module. Calls block."""

    def __init__(self, sinks: Sinks) -> None:
        self._sinks = sinks
        self._lease_us = sinks.limits.stage_lease_ms * 1_000
        self._grace_us = sinks.limits.one_shot_grace_ms * 1_000

    def recover(self) -> None:
        """Finish what was decided before a crash. Groups that cannot be finished now are left to `sweep`."""
        for state in self._sinks.commits.ledger().unfinished():
            try:
                with self._sinks.locks.hold(state.sink):
                    self._sinks.complete(state.sink)
            except LiftlogError as error:
                log.log(
                    _level(error), "sink.unfinished sink=%s error=%s (the next round tries again)", state.sink, error
                )
            except Exception:  # it keeps no other from theirs
                log.exception("sink.round_bug at=%s", state.sink)

    def sweep(self) -> None:
        """Finish what is unfinished; let go of stages and sinks that nobody needs."""
        self.recover()
        for store in self._sinks.stores.stores():
            try:
                idle = self._sweep_stages(store)
                for sink in sorted({pin.sink for pin in idle}):
                    self._fence_idle(sink, [pin for pin in idle if pin.sink == sink])
            except UnknownStream:
                pass  # as below, seen first by the broker that has them
            except LiftlogError as error:
                if not store.removed:  # deleted meanwhile, and its stages with it: no fault
                    log.log(
                        _level(error),
                        "sink.sweep_failed partition=%s error=%s (the next round tries again)",
                        store.place,
                        error,
                    )
            except Exception:
                log.exception("sink.round_bug at=%s", store.place)
        self._sinks.forget_signs()
        for state in self._sinks.states():
            if self._is_over(state):
                self._vanish(state.sink)

    def _sweep_stages(self, store: Stages) -> list[StagePinned]:
        """Drop what cannot be decided any more; returns pins that are older than the lease, and not decided yet."""
        store.sweep(is_asked_for=self._is_asked_for)
        staged = store.staged()
        ledger = self._sinks.commits.ledger()  # read after the pins: it knows all that was decided before them
        self.drop(store, staged.leader_epoch, [pin for pin in staged.pins if not ledger.is_open(pin)])
        late = (stage for stage in staged.stages if stage.pin is None)  # they came when superseded ones were looked for
        for sink in sorted({stage.sink for stage in late if ledger.is_superseded(stage.sink, stage.epoch)}):
            self._sinks.supersede_in(store, sink, ledger.states[sink].epoch)
        return [
            pin
            for pin in staged.pins
            if self._sinks.is_past(pin.pinned_us, self._lease_us) and ledger.is_open(pin) and not ledger.is_named(pin)
        ]

    def drop(self, store: Stages, leader_epoch: int | None, closed: Sequence[StagePinned]) -> None:
        """Have a partition drop the stages of these pins, which were judged under its leader epoch (`stages.G5`)."""
        judged: dict[str, dict[str, int]] = {}
        for pin in closed:
            judged.setdefault(pin.sink, {})[pin.stage] = pin.epoch
        count = sum(
            store.drop(pins, sink=sink, leader_epoch=leader_epoch, why="superseded", unpinned=False)
            for sink, pins in judged.items()
        )
        if count:
            store.trim()
            log.info("sink.stages_dropped partition=%s stages=%d", store.place, count)

    def _fence_idle(self, sink: str, pins: Sequence[StagePinned]) -> None:
        """`coordinator.C3`: a driver pinned stages, and neither decided nor came back within the lease.

        Every epoch given so far is fenced, not its owner's alone: a stage may be pinned by several, one after the
        other, and the decision of a lower one name it. An unknown sink gets a state for it, or nothing would ever
        prove that the pin is over (`ledger.D7`).
        """
        with self._sinks.locks.hold_if_free(sink) as held:
            ledger = self._sinks.commits.ledger()
            known = ledger.states.get(sink)
            is_idle = known is None or known.is_done
            if held and is_idle and any(ledger.is_open(pin) and not ledger.is_named(pin) for pin in pins):
                least = max(pin.epoch for pin in pins) + 1
                state = self._sinks.commits.state(
                    lambda ledger, at: ledger.fenced(sink, epoch=max(at, least), now_us=self._sinks.clock())
                )
                log.warning("sink.fenced_idle sink=%s epoch=%d", sink, state.epoch)

    def _is_over(self, state: SinkState) -> bool:
        """Whether a one-shot sink is: committed or ended, and past its grace; or neither, and past its lease."""
        wait_us = self._grace_us if state.last is not None or state.is_ended else self._lease_us
        return state.is_one_shot and state.is_done and self._sinks.is_past(state.changed_us, wait_us)

    def _vanish(self, sink: str) -> None:
        try:
            with self._sinks.locks.hold_if_free(sink) as held:
                state = self._sinks.commits.ledger().states.get(sink)
                if not held or state is None or not self._is_over(state):
                    return
                if state.last is None and self._sinks.staged(sink):
                    return  # they expire first
                self._sinks.remove(sink, unless_opened_since=state)
        except NotReady:
            return
        except LiftlogError as error:
            log.log(_level(error), "sink.unfinished sink=%s error=%s (the next round tries again)", sink, error)
            return
        self._sinks.counts["vanished"] += 1
        log.info("sink.vanished sink=%s", sink)

    def _is_asked_for(self, decision: str) -> bool:
        unfinished = self._sinks.commits.ledger().unfinished()
        return any(state.last is not None and state.last.decision == decision for state in unfinished)


def _level(error: LiftlogError) -> int:
    """A failover, a pause and the like end by themselves; a fault may need a person."""
    passes = isinstance(error, Retryable) and not isinstance(error, StorageFailed | DiskFull)
    return logging.WARNING if passes else logging.ERROR
