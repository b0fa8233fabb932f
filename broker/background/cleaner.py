"""Background work for all partitions: one thread, one round after the other.

Every `checkpoint_interval_ms` the partitions that moved write their checkpoint, those to which little was appended in
every `REST_ROUNDS`th round only: each is a file, its fsync and that of its folder, and says no more than from where a
start after a crash has to read (`checkpoint.K1`). Every `interval_ms` old segments are sealed or removed. Every second
logs that follow, and moved, read what their leaders were told, so that whoever leads next is quick (`remembered.U4`).
Nothing here is waited for by an append or a fetch. A round may take long: `fsync = interval` has a thread of its own.

A round works on the partitions that moved since the last one, and on a slice of the others, in turn: age passes
without a move, and so does damage that a read has found. So the cost of idle partitions is bounded however many there
are, and each is looked at after `partitions / SLICE` rounds at the latest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakSet

from broker.api.errors import DiskFull, LiftlogError
from broker.background.doubted_clock import DoubtedClock
from broker.background.interval_syncs import IntervalSyncs
from broker.background.lasting import Lasting
from broker.common.elapsed import elapsed_us
from broker.config.configuration import Config
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica

KEEP_UP_S = 1.0
REST_ROUNDS = 12
LITTLE_BYTES = 64 << 10
"""A partition that got less since its last checkpoint may do without another for `REST_ROUNDS` rounds. So much is read
sooner than a file is opened, and the room of an open tail, which is read as well after a crash, is four times that."""
SLICE = 1_000
"""Partitions that did not move and are looked at all the same in one round."""

log = logging.getLogger(__name__)


class Cleaner:
    """Owns the cleaner thread, and that of the interval's syncs.

    Args:
        partitions: All of them.
        moved: All that changed since the last call; keys of other things than partitions are passed over.
        also: Done before each look at retention.
        clock: Tells which timestamps are old.
        elapsed: The clock by which logs measure time.

    Attributes:
        syncs: Owns the syncs of `fsync = interval`.
    """

    def __init__(
        self,
        config: Config,
        partitions: Callable[[], Iterable[Partition]],
        *,
        moved: Callable[[], Iterable[object]],
        also: Callable[[], object] = lambda: None,
        clock: DoubtedClock | None = None,
        elapsed: Callable[[], int] = elapsed_us,
    ) -> None:
        self._elapsed = elapsed
        self._clock = clock or DoubtedClock()
        self._clean_s = config.cleaner.interval_ms / 1000
        self._checkpoint_s = config.cleaner.checkpoint_interval_ms / 1000
        self.syncs = IntervalSyncs(partitions)
        self._partitions = partitions
        self._moved = moved
        self._also = also
        self._lasting = Lasting()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cleaner", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self.syncs.start()

    def stop(self) -> None:
        """Finish the round and stop."""
        self._stop.set()
        self._thread.join()
        self.syncs.stop()

    def _run(self) -> None:
        clean_at = checkpoint_at = time.monotonic()
        pause_s = min(self._clean_s, self._checkpoint_s, KEEP_UP_S)
        to_checkpoint, to_clean = DueReplicas(), DueReplicas()
        while not self._stop.wait(pause_s):
            now = time.monotonic()
            moved = {p for p in self._moved() if isinstance(p, Replica)}
            to_checkpoint.note(moved)
            to_clean.note(moved)
            self._each(moved, Replica.keep_up, "keep up")
            if now - checkpoint_at >= self._checkpoint_s:
                checkpoint_at = now
                replicas = self._replicas()
                self._lasting.note(len(replicas))
                self._checkpoint(to_checkpoint, replicas, now)
            if now - clean_at >= self._clean_s:
                clean_at = now
                wall_us = self._clock.now_us()
                self._apart()
                due = to_clean.take(self._replicas())
                failed = self._each(due, lambda p, wall_us=wall_us: self._clean(p, wall_us), "clean")  # type: ignore[misc]
                to_clean.note(failed)
                # Open logs are asked once more, or a partition that fell quiet would keep its file for a whole turn.
                to_clean.note(p for p in due if p.log.state.is_awake)

    def _replicas(self) -> list[Replica]:
        return [partition.replica for partition in self._partitions()]

    def _checkpoint(self, turns: DueReplicas, partitions: Sequence[Replica], now_s: float) -> None:
        """One round of checkpoints; who failed, or may wait, is noted for the next."""
        rest_s = REST_ROUNDS * self._checkpoint_s
        due: list[Replica] = []
        later: list[Replica] = []
        for partition in turns.take(partitions):
            rests = partition.rests_from_checkpoints(now_s, rest_s=rest_s, little_bytes=LITTLE_BYTES)
            (later if rests else due).append(partition)
        turns.note(later)
        turns.note(self._each(due, lambda p: p.checkpoint(now_s), "checkpoint"))

    def _clean(self, partition: Replica, wall_us: int) -> None:
        if not partition.log.state.segment_count:
            return  # it is empty: nothing to seal, to let go of, or to close
        partition.log.tell_time(self._elapsed())
        full: DiskFull | None = None
        try:
            partition.log.roll_if_due(self._elapsed())
        except DiskFull as error:  # what retention lets go may be what is missing
            full = error
        before = partition.log.state.log_start_offset
        after = partition.apply_retention(self._elapsed(), wall_us)
        partition.rest_if_quiet()
        if after != before:
            log.info("retention.removed partition=%s log_start_offset=%d records=%d", partition, after, after - before)
            partition.note_change()
        if full is not None:
            raise full

    def _apart(self) -> None:
        """Do the work of a round that is not the partitions': unfinished decisions of sinks, old stages."""
        try:
            self._also()
        except (LiftlogError, OSError) as error:
            log.error("cleaner.failed what=sinks error=%s", error)
        except Exception:
            log.exception("cleaner.bug what=sinks")

    def _each(self, partitions: Iterable[Replica], act: Callable[[Replica], object], what: str) -> list[Replica]:
        """Do it to each; returns those where it failed."""
        failed = []
        for partition in partitions:
            if self._stop.is_set():
                break
            if partition.removed or partition.is_closed:
                continue
            try:
                act(partition)
            except (LiftlogError, OSError) as error:
                if partition.removed or partition.is_closed:
                    continue
                failed.append(partition)
                partition.refused()
                log.error("cleaner.failed what=%s partition=%s error=%s", what, partition, error)
            except Exception:
                failed.append(partition)
                log.exception("cleaner.bug what=%s partition=%s", what, partition)
        return failed


class DueReplicas:
    """Which partitions one kind of work is due for. One that is gone meanwhile is not kept for it."""

    def __init__(self) -> None:
        self._moved: WeakSet[Replica] = WeakSet()
        self._at = 0

    def note(self, moved: Iterable[Replica]) -> None:
        """These moved, or are to come again."""
        self._moved.update(moved)

    def take(self, partitions: Sequence[Replica]) -> list[Replica]:
        """Those that moved, and the next slice of the others."""
        moved, self._moved = set(self._moved), WeakSet()
        if self._at >= len(partitions):
            self._at = 0
        rest = partitions[self._at : self._at + SLICE]
        self._at += SLICE
        return [*(p for p in moved if not p.removed), *(p for p in rest if p not in moved)]
