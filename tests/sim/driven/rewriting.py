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
from broker.storage.rewrite.clean_state import load_clean_state
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.rewriting import BatchShape
from tests.sim.stored import SETTINGS

if TYPE_CHECKING:
    from tests.sim.driven.node import Broker
    from tests.sim.driven.seen import Seen

SHAPE = BatchShape(batch_bytes=2_000, batch_records=64)
JOINING = {"shape": SHAPE, "min_age_ms": SETTINGS.dedup_window_ms, "segment_bytes": 20_000}
OLD_US = SETTINGS.dedup_window_ms * 1_000 + 1_000
"""By this time batches of publishers without ids are old enough to be joined, and those with ids never are."""
LAZY_PERCENT = 101
"""Never is so much dirty."""


class Stopped(Exception):
    """The process wants to end, or the stream is gone: a pass ends where it is."""


class Rewriting:
    """See the module. `zeal`: so likely a pass begins at a tick."""

    def __init__(self, broker: Broker, seen: Seen) -> None:
        self._broker, self._seen = broker, seen
        self.zeal, self._dirty_percent = broker.cluster.zeal(seen.name)
        self._is_at_work = False

    def tick(self) -> None:
        """Begin something, as luck will have it."""
        placed = self._seen.placed
        if placed is not None and not self._is_at_work and self._broker.world.chance(self.zeal):
            self._is_at_work = True
            self._broker.work.run(lambda: self._guarded(placed, self._rewrite))

    def compact_now(self, dirty_percent: int = LAZY_PERCENT, *, shape: BatchShape | None = None, stop: int = 0) -> None:
        """A pass, if one is due, and nothing else meanwhile. `stop`: after so many pieces."""
        assert self._seen.placed is not None
        pace = lambda replica: self._pace(replica, stop or 1 << 30)  # noqa: E731
        self._guarded(
            self._seen.placed,
            lambda placed, partition: self._compact(
                placed, partition, _dirty(dirty_percent, 0), 1 << 16, shape, pace(partition.replica)
            ),
        )

    def _guarded(self, placed: PlacedReplica, act: Callable[[PlacedReplica, Partition], None]) -> None:
        partition = placed.partition
        try:
            if partition is None or partition.log.state.failure is not None:
                return
            act(placed, partition)
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
        dirty = _dirty(self._dirty_percent, rng.choice((0, 400)))
        map_bytes, shape = rng.choice((48, 300, 1 << 16)), rng.choice((None, SHAPE, SHAPE))
        self._compact(placed, partition, dirty, map_bytes, shape, throttle)

    def _compact(
        self,
        placed: PlacedReplica,
        partition: Partition,
        settings: CompactionSettings,
        map_bytes: int,
        shape: BatchShape | None,
        throttle: Callable[[int], None],
    ) -> None:
        log = partition.log
        before = load_clean_state(log.state.disk, log.state.folder).tombstones_to
        tombstones_below, compact_to = placed.marks()
        report = compact(
            log,
            settings,
            map_bytes=map_bytes,
            now_us=self._broker.wall_us,
            throttle=throttle,
            shape=shape,
            tombstones_below=tombstones_below,
            compact_to=compact_to,
        )
        placed.compacted()
        if report is not None and not report.uncleanable:
            self._broker.world.saw("pass of compaction")
            if load_clean_state(log.state.disk, log.state.folder).tombstones_to > before:
                self._broker.world.saw("tombstones let go")

    def _pace(self, replica: Replica, stop_at: int) -> Callable[[int], None]:
        pieces = 0

        def pace(size: int) -> None:
            nonlocal pieces
            pieces += 1
            if pieces >= stop_at or replica.is_over:
                raise Stopped
            self._broker.work.preempt()

        return pace


def _dirty(percent: int, delete_retention_ms: int) -> CompactionSettings:
    return CompactionSettings(min_cleanable_dirty_percent=percent, delete_retention_ms=delete_retention_ms)
