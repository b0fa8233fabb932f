"""Does what the core of a partition wants (`broker.replication.events`): high watermark, readers, answers, syncs.

P22  Each effect is tried, whatever becomes of those before it: somebody waits for his answer. But nobody is told of
    success by answers behind an effect that has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from broker.api.errors import LiftlogError, NotLeader, StorageFailed
from broker.common.weak_methods import WeakCall
from broker.node.partitions.acks import Ticket, gone
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import Outcome
from broker.replication.events import Answer, Commit, Effect, Sync, Wake
from broker.replication.events import Outcome as Fate
from broker.replication.leader import STORED
from broker.storage.log import AppendResult

log = logging.getLogger(__name__)


class Effects:
    """See the module. Done without the partition's lock.

    Args:
        submit: Has the partition synced by the pool: a method of it, which is there as long as `do` is called.
        tell: Tells a ticket what became of it, or does so later (`Completions`).
        to_others: Does the effects that need the catalog or other replicas.
    """

    __slots__ = ("_replica", "_submit", "_tell", "to_others")

    def __init__(
        self,
        replica: Replica,
        *,
        submit: WeakCall[Callable[[], None]],
        tell: Callable[[Ticket, Outcome], None],
        to_others: Callable[[Effect], None],
    ) -> None:
        self._replica = replica
        self._submit = submit
        self._tell = tell
        self.to_others = to_others

    def do(self, effects: Sequence[Effect], *, syncs: bool = True) -> None:
        """Do these in their order (P22). `syncs`: a sync is the pool's; else the caller sees to it."""
        replica = self._replica
        refused: LiftlogError | None = None
        for effect in effects:
            kind = type(effect)
            if kind is Answer:
                ticket: Ticket = effect.ticket  # type: ignore[union-attr]
                try:
                    outcome: Outcome
                    if effect.outcome is STORED and refused is None:  # type: ignore[union-attr]
                        outcome = replica.state.high_watermark
                    else:
                        outcome = refused or self._error_of(effect, ticket.result)  # type: ignore[arg-type]
                    self._tell(ticket, outcome)
                except Exception:
                    log.exception("partition.callback_bug partition=%s", replica)
                continue
            try:
                if kind is Commit:
                    replica.state.advance_high_watermark(effect.high_watermark)  # type: ignore[union-attr]
                elif kind is Wake:
                    replica.note_change()
                elif kind is not Sync:
                    self.to_others(effect)
                elif syncs and (submit := self._submit()) is not None:
                    submit()
            except Exception as error:
                log.exception("partition.effect_bug partition=%s effect=%s", replica, effect)
                refused = StorageFailed(f"{replica}: {effect} failed: {error!r}")

    def _error_of(self, answer: Answer, result: AppendResult) -> LiftlogError:
        if self._replica.removed or answer.outcome is Fate.CLOSED:
            return gone(self._replica)
        if answer.outcome is Fate.DEPOSED:
            return NotLeader(
                f"{self._replica}: another broker leads now; it is not known whether the records are stored"
            )
        if answer.outcome is Fate.FAILED and isinstance(answer.error, LiftlogError):  # else nobody may take it for done
            return answer.error
        records = f"[{result.first_offset}, {result.next_offset})"
        return StorageFailed(f"{self._replica}: records {records} may be lost: the log had to recover")
