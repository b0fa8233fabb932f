"""A log of a driven broker that is written anew beside its roles, as `broker.background.compactor` does: passes
of compaction and joins, on a fiber that others overtake between two pieces. The outcome must be legal (`rewritten.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.api.errors import LiftlogError
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.placed import PlacedReplica
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from tests.sim.rewriting import JOINING, OLD_US, SHAPE, Stopped

if TYPE_CHECKING:
    from tests.sim.driven.node import DrivenBroker
    from tests.sim.driven.seen import Seen


class Rewriting:
    """See the module. `zeal`: so likely a pass begins at a tick."""

    def __init__(self, broker: DrivenBroker, seen: Seen) -> None:
        self._broker, self._seen = broker, seen
        self.zeal, self._dirty_percent = broker.cluster.zeal(seen.name)
        self._is_at_work = False

    def tick(self) -> None:
        """Begin something, as luck will have it."""
        placed = self._seen.placed
        if placed is not None and not self._is_at_work and self._broker.world.chance(self.zeal):
            self._is_at_work = True
            self._broker.work.run(lambda: self._guarded(placed))

    def _guarded(self, placed: PlacedReplica) -> None:
        partition = placed.partition
        try:
            if partition is None or partition.log.state.failure is not None:
                return
            self._rewrite(placed, partition)
        except Stopped:
            self._broker.world.saw("rewriting stopped midway")
        except LiftlogError:
            self._broker.world.saw("rewriting refused by the disk")
        finally:
            self._is_at_work = False
        if partition.log is self._seen.log and not partition.log.state.lost_ranges:
            self._seen.checker.wrote_anew(self._seen)

    def _rewrite(self, placed: PlacedReplica, partition: Partition) -> None:
        rng, broker, replica = self._broker.world.rng, self._broker, partition.replica
        is_compacted = CompactionSettings.of(partition.settings) is not None  # as the compactor asks
        throttle = self._pace(replica, rng.choice((1, 3, 8)) if rng.random() < 0.15 else 1 << 30)
        if not (is_compacted and rng.random() < 0.6):
            settings = CoalescingSettings(**JOINING, is_compacted=is_compacted)  # type: ignore[arg-type]
            if coalesce(replica.log, settings, {}, now_us=OLD_US, throttle=throttle) is not None:
                broker.world.saw("batches joined")
            return
        if broker.cluster.changes is not None:
            broker.cluster.changes.compacts(self._seen, partition)
        tombstones_below, compact_to = placed.marks()
        report = compact(
            replica.log,
            CompactionSettings(
                min_cleanable_dirty_percent=self._dirty_percent, delete_retention_ms=rng.choice((0, 400))
            ),
            map_bytes=rng.choice((48, 300, 1 << 16)),
            now_us=broker.wall_us,
            throttle=throttle,
            shape=rng.choice((None, SHAPE, SHAPE)),
            tombstones_below=tombstones_below,
            compact_to=compact_to,
        )
        placed.compacted()
        if report is not None and not report.uncleanable:
            broker.world.saw("pass of compaction")

    def _pace(self, replica: Replica, stop_at: int) -> Callable[[int], None]:
        pieces = 0

        def pace(size: int) -> None:
            nonlocal pieces
            pieces += 1
            if pieces >= stop_at or replica.is_over:
                raise Stopped
            self._broker.work.preempt()

        return pace
