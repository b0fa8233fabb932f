"""Owners of sinks that have not been heard of: whose stages go first when others need the room.

    open, renew, a part of a stage, a commit ─► heard ─── nothing for the limit ───► silent

Whoever coordinates sinks notes when an owner was heard, in memory, by a clock that nobody sets. What it does not know
it takes for fresh, and never for ever:

S1  Nobody is silent before this coordinator has led for the limit. After a failover all owners are as if heard just
    then; those that live are heard again, the others are silent once the limit has passed.
S2  An owner that renews is silent after the limit. Another one may be an older client that never does, and is silent
    only after `PATIENCE` limits. So is one that renewed to a former coordinator alone.
S3  An owner that can commit nothing any more (it is superseded, or its sink was deleted) is silent at once.

Silence fences nobody. An owner whose stages went finds that out when it commits them (`stage_lost`), as if they had
expired, and stages them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from broker.sinks.state import SinkState

PATIENCE: Final = 12

Owner = tuple[str, int]
"""Sink and epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How long an owner was not heard of. `is_silent`: too long."""

    silent_us: int
    is_silent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The stages of one owner, in a partition or in all."""

    sink: str
    epoch: int
    stages: int = 0
    byte_count: int = 0
    pinned: int = 0

    def __add__(self, other: Holding) -> Holding:
        return Holding(
            sink=self.sink,
            epoch=self.epoch,
            stages=self.stages + other.stages,
            byte_count=self.byte_count + other.byte_count,
            pinned=self.pinned + other.pinned,
        )


class Signs:
    """When owners were heard. One call at a time.

    Args:
        limit_us: See S2.
        elapsed: Microseconds since any time, by a clock that nobody sets.
        epoch: The coordinator's leader epoch now.
    """

    def __init__(self, limit_us: int, elapsed: Callable[[], int], epoch: int) -> None:
        self._limit_us = limit_us
        self._elapsed = elapsed
        self._epoch, self._began_us = epoch, elapsed()
        self._heard: dict[Owner, int] = {}
        self._renewing: set[Owner] = set()

    def heard(self, leader_epoch: int, owner: Owner, *, renews: bool = False) -> None:
        """An owner gave a sign of life."""
        self._heard[owner] = self._now(leader_epoch)
        if renews:
            self._renewing.add(owner)

    def look(self, leader_epoch: int, states: dict[str, SinkState], owners: Sequence[Owner]) -> list[Silence]:
        """How long each was silent, in the order asked."""
        now_us = self._now(leader_epoch)
        return [self._silence(now_us, owner, states.get(owner[0])) for owner in owners]

    def keep(self, leader_epoch: int, states: Collection[SinkState]) -> None:
        """Forget all but those that may still commit."""
        alive = {(state.sink, epoch) for state in states for epoch in state.owners.values() if epoch >= state.epoch}
        self._now(leader_epoch)
        self._heard = {owner: at for owner, at in self._heard.items() if owner in alive}
        self._renewing &= alive

    def _now(self, leader_epoch: int) -> int:
        now_us = self._elapsed()
        if leader_epoch != self._epoch:  # S1
            self._epoch, self._began_us = leader_epoch, now_us
            self._heard.clear()
            self._renewing.clear()
        return now_us

    def _silence(self, now_us: int, owner: Owner, state: SinkState | None) -> Silence:
        silent_us = now_us - max(self._heard.get(owner, self._began_us), self._began_us)
        is_over = state is None or owner[1] < state.epoch or owner[1] not in state.owners.values()  # S3
        limit_us = self._limit_us if owner in self._renewing else self._limit_us * PATIENCE
        return Silence(silent_us=silent_us, is_silent=is_over or silent_us >= limit_us)
