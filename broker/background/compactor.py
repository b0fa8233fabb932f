"""Sealed segments are written anew: one thread, one partition after the other, a little at a time.

Every `cleaner.interval_ms` each partition is asked whether a pass of key compaction is due, if its stream is compacted
(`broker/storage/rewrite/compaction.py`), and then whether small batches or small segments are to be joined
(`coalescing.py`); before, offsets of consumers that are silent for `cleaner.offsets_retention_ms` get tombstones. Reads
and writes are paced to `compaction.bytes_per_s`: some 2 ms of work, then a pause. The thread has the priority of all
others (docs/adr/0021-no-niceness.md). No append and no fetch waits for anything here. A stop does not wait for a pass:
the pass ends at its next piece, and leaves each segment whole.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from weakref import WeakKeyDictionary

from broker.api.errors import LiftlogError
from broker.background.doubted_clock import DoubtedClock
from broker.common.metrics import Sample
from broker.config.configuration import Config
from broker.node.chores import Chores
from broker.node.partitions.partition import Partition
from broker.storage.rewrite.coalescing import CoalescingReport, CoalescingSettings, KnownSegments, coalesce
from broker.storage.rewrite.compaction import CompactionReport, CompactionSettings, compact

log = logging.getLogger(__name__)


class Stopped(Exception):
    """The broker stops, or the stream was deleted."""


class Compactor:
    """Owns the compactor thread.

    Args:
        chores: The partitions to look after, asked for in each round.
        also: Done before each round.
        clock: Tells what is old.
    """

    def __init__(
        self,
        config: Config,
        chores: Callable[[], Iterable[Chores]],
        *,
        also: Callable[[], object] = lambda: None,
        clock: DoubtedClock | None = None,
    ) -> None:
        self._pause_s = config.cleaner.interval_ms / 1000
        self._map_bytes = config.compaction.map_bytes
        self._bytes_per_s = config.compaction.bytes_per_s
        self._chores = chores
        self._also = also
        self._clock = clock or DoubtedClock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compactor", daemon=True)
        self._uncleanable: dict[Partition, str] = {}
        self._memories: WeakKeyDictionary[Partition, KnownSegments] = WeakKeyDictionary()
        self._counts = {"passes": 0, "read_bytes": 0, "removed_records": 0, "freed_bytes": 0, "failed_passes": 0}
        self._joined = {"segments": 0, "segments_made": 0, "batches": 0, "batches_made": 0, "bytes": 0, "bytes_made": 0}

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop at the next piece."""
        self._stop.set()
        self._thread.join()

    def samples(self) -> Iterator[Sample]:
        """For /metrics."""
        for name, value in self._counts.items():
            yield f"liftlog_compaction_{name}_total", f"Compaction: {name.replace('_', ' ')}", (), (), value
        for name, value in self._joined.items():
            yield f"liftlog_coalescing_{name}_total", f"Coalescing: {name.replace('_', ' ')}", (), (), value
        left_alone = "Partitions that cannot be compacted"
        yield "liftlog_compaction_uncleanable_partitions", left_alone, (), (), len(self._uncleanable)

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            self._guarded("offsets", self._also)
            chores = list(self._chores())
            for partition in self._uncleanable.keys() - {todo.partition for todo in chores if todo.compaction}:
                del self._uncleanable[partition]
            for todo in chores:
                self._guarded(todo.partition, lambda todo=todo: self._do(todo))  # type: ignore[misc]

    def _guarded(self, what: object, act: Callable[[], object]) -> None:
        if self._stop.is_set():
            return
        try:
            act()
        except Stopped:
            pass
        except (LiftlogError, OSError) as error:
            if isinstance(what, Partition) and what.replica.is_over:
                return
            self._counts["failed_passes"] += 1
            log.error("compaction.failed what=%s error=%s", what, error)
        except Exception:
            self._counts["failed_passes"] += 1
            log.exception("compaction.bug what=%s", what)

    def _do(self, todo: Chores) -> None:
        if todo.compaction is not None:
            self._clean(todo, todo.compaction)
        if todo.coalescing is not None:
            self._join(todo.partition, todo.coalescing)

    def _pace(self, partition: Partition) -> Callable[[int], None]:
        def pace(size: int) -> None:
            if self._stop.wait(size / self._bytes_per_s) or partition.replica.is_over:
                raise Stopped
            if partition.replica.room is not None:
                partition.replica.room.check()  # a rewrite must not eat what is kept for checkpoints

        return pace

    def _join(self, partition: Partition, settings: CoalescingSettings) -> None:
        """Join until nothing is due."""
        if not partition.log.state.segment_count:
            return
        memory = self._memories.setdefault(partition, {})
        while not partition.removed and partition.log.state.failure is None:
            begun = time.monotonic()
            report = coalesce(
                partition.log,
                settings,
                memory,
                now_us=self._clock.now_us(),
                throttle=self._pace(partition),
            )
            if report is None:
                return
            if report.failed:
                log.info("coalescing.postponed partition=%s reason=%s", partition, report.failed)
                return
            self._note_joined(partition, report, time.monotonic() - begun)

    def _note_joined(self, partition: Partition, report: CoalescingReport, took_s: float) -> None:
        self._joined["segments"] += report.segments
        self._joined["segments_made"] += 1
        self._joined["batches"] += report.batches_before
        self._joined["batches_made"] += report.batches_after
        self._joined["bytes"] += report.bytes_before
        self._joined["bytes_made"] += report.bytes_after
        log.info(
            "coalescing.done partition=%s offsets=[%d,%d) segments=%d batches=%d batches_made=%d bytes=%d bytes_made=%d"
            " ms=%d",
            partition,
            report.start,
            report.end,
            report.segments,
            report.batches_before,
            report.batches_after,
            report.bytes_before,
            report.bytes_after,
            took_s * 1000,
        )

    def _clean(self, todo: Chores, settings: CompactionSettings) -> None:
        """Passes until nothing is due."""
        partition = todo.partition
        while not partition.removed and partition.log.state.failure is None:
            begun = time.monotonic()
            tombstones_below, compact_to = todo.marks()
            report = compact(
                partition.log,
                settings,
                map_bytes=self._map_bytes,
                now_us=self._clock.now_us(),
                throttle=self._pace(partition),
                shape=None if todo.coalescing is None else todo.coalescing.shape,
                tombstones_below=tombstones_below,
                compact_to=compact_to,
            )
            todo.passed()
            if report is None:
                self._uncleanable.pop(partition, None)
                return
            if report.uncleanable:
                self._note_uncleanable(partition, report.uncleanable)
                return
            self._uncleanable.pop(partition, None)
            self._note(partition, report, time.monotonic() - begun)
            if report.is_done:
                return

    def _note(self, partition: Partition, report: CompactionReport, took_s: float) -> None:
        freed = report.bytes_before - report.bytes_after
        self._counts["passes"] += 1
        self._counts["read_bytes"] += report.read_bytes
        self._counts["removed_records"] += report.records_gone
        self._counts["freed_bytes"] += freed
        log.info(
            "compaction.done partition=%s cleaned_to=%d done=%s keys=%d records_removed=%d bytes_freed=%d"
            " segments=%d ms=%d",
            partition,
            report.cleaned_to,
            report.is_done,
            report.key_count,
            report.records_gone,
            freed,
            report.segments_rewritten,
            took_s * 1000,
        )

    def _note_uncleanable(self, partition: Partition, why: str) -> None:
        if self._uncleanable.get(partition) != why:
            log.warning("compaction.uncleanable partition=%s reason=%s", partition, why)
        self._uncleanable[partition] = why
