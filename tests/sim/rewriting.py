"""A replica that writes its log anew, by itself: passes of compaction, joins. Some are stopped midway, some replicas
are lazy. The outcome must be legal at once (`rewritten.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from broker.api.errors import LiftlogError
from broker.replication import following as f
from broker.storage.rewrite.clean_state import load_clean_state
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionReport, CompactionSettings, compact
from broker.storage.rewrite.rewriting import BatchShape
from tests.sim.following import Following
from tests.sim.held import SETTINGS
from tests.sim.leading import Leading

if TYPE_CHECKING:
    from tests.sim.broker import Broker

SHAPE = BatchShape(batch_bytes=2_000, batch_records=64)
JOINING = {"shape": SHAPE, "min_age_ms": SETTINGS.dedup_window_ms, "segment_bytes": 20_000}
OLD_US = SETTINGS.dedup_window_ms * 1_000 + 1_000
"""By this time batches of publishers without ids are old enough to be joined, and those with ids never are."""
LAZY_PERCENT = 101
"""Never is so much dirty."""
T = TypeVar("T")


class Stopped(Exception):
    """The process wants to end, or the stream is gone: a pass ends where it is."""


class Rewriting(Leading, Following):
    """See the module.

    Attributes:
        zeal: So likely it writes something anew at a tick.
        dirty_percent: So much must be dirty for a pass of its own.
    """

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(broker, name)
        self.zeal, self.dirty_percent = broker.cluster.zeal(name)

    def rewrite(self) -> None:
        """One thing or the other, as luck will have it."""
        rng, log = self.world.rng, self.log
        if log is None or log.state.failure is not None or self.is_damaged or rng.random() >= self.zeal:
            return
        stop_at = rng.choice((1, 3, 8)) if rng.random() < 0.15 else 1 << 30
        if self.broker.compacts(self.name) and rng.random() < 0.6:
            map_bytes = rng.choice((48, 300, 1 << 16))
            self.compact_now(
                rng.choice((0, 400)), map_bytes=map_bytes, shape=rng.choice((None, SHAPE, SHAPE)), stop_at=stop_at
            )
        else:
            self.join_now(stop_at)

    def compact_now(
        self,
        delete_retention_ms: int = 0,
        *,
        map_bytes: int = 1 << 16,
        shape: BatchShape | None = None,
        stop_at: int = 1 << 30,
    ) -> CompactionReport | None:
        """A pass, if one is due."""
        log = self.log
        assert log is not None
        before = load_clean_state(log.state.disk, log.state.folder).tombstones_to
        settings = CompactionSettings(
            min_cleanable_dirty_percent=self.dirty_percent, delete_retention_ms=delete_retention_ms
        )

        def act(throttle: Callable[[int], None]) -> CompactionReport | None:
            return compact(
                log,
                settings,
                map_bytes=map_bytes,
                now_us=self.broker.wall_us,
                throttle=throttle,
                shape=shape,
                tombstones_below=(
                    self.leader.tombstones_below(log.state.compacted_to)
                    if self.leads
                    else self.follower.tombstones_below
                ),
                compact_to=self.leader.compact_to() if self.leads else self.follower.compact_to,
            )

        report = self._written_anew(act, stop_at)
        if report is not None and not report.uncleanable:
            self.world.saw("pass of compaction")
            if not report.is_done:
                self.world.saw("pass of compaction that did not come to the end")
            if load_clean_state(log.state.disk, log.state.folder).tombstones_to > before:
                self.world.saw("tombstones let go")
        if self.log is log and not self.leads:
            self._follow_step(f.Compacted(log.state.compacted_to, log.state.waits_to))
        return report

    def join_now(self, stop_at: int = 1 << 30) -> bool:
        """A join, if one is due. Returns whether it was."""
        log = self.log
        assert log is not None
        settings = CoalescingSettings(**JOINING, is_compacted=self.broker.compacts(self.name))  # type: ignore[arg-type]
        report = self._written_anew(
            lambda throttle: coalesce(log, settings, {}, now_us=OLD_US, throttle=throttle), stop_at
        )
        if report is not None and not report.failed:
            self.world.saw("batches joined")
        return report is not None

    def _written_anew(self, act: Callable[[Callable[[int], None]], T | None], stop_at: int) -> T | None:
        pieces = 0

        def throttle(size: int) -> None:
            nonlocal pieces
            pieces += 1
            if pieces >= stop_at:
                raise Stopped

        log, report = self.log, None
        assert log is not None
        try:
            report = act(throttle)
        except Stopped:
            self.world.saw("rewriting stopped midway")
        except LiftlogError as error:
            self.world.saw("rewriting refused by the disk")
            if log.state.failure is not None:
                self._disk_failed(error)
                return None
        if log.state.lost_ranges:
            self.damaged(f"{log.state.lost_ranges} cannot be read")
        elif report is not None:
            self.checker.wrote_anew(self)
        return report
